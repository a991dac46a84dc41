/* SPDX-License-Identifier: Apache-2.0 */
/* The cluster file's text: what is taken, and every way in which it is refused. */
#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <cmocka.h>

#include "engine/cluster/cluster.h"
#include "engine/rt/rt.h"

#define UUID "0d4f6f0e-6d8c-4c1f-9a57-0f5f3c0f2b11"
#define VOLUME                                                                           \
	"[volume]\n"                                                                     \
	"name = scratch\n"                                                               \
	"uuid = " UUID "\n"                                                              \
	"key = scratch.key\n"
#define NODE(n, host) "[node " #n "]\naddress = " host "\nstore = /srv/" #n ".weft\n"
#define MACHINE(n, m, host) "[node " #n " machine " #m "]\naddress = " host "\n"

static int parse(struct cluster **c, const char *text, struct weft_error *err)
{
	*err = (struct weft_error){0};
	return cluster_parse(c, text, strlen(text), "/etc/weft/c", err);
}

static struct cluster *good(const char *text)
{
	struct weft_error err;
	struct cluster *c;

	if (parse(&c, text, &err))
		fail_msg("refused: %s", err.text);
	return c;
}

static void refused(const char *text, const char *said)
{
	struct weft_error err;
	struct cluster *c = (struct cluster *)1;
	int rc = parse(&c, text, &err);

	if (rc >= 0)
		fail_msg("taken, but should say: %s", said);
	assert_null(c);
	assert_int_equal(rc, err.code);
	if (strncmp(err.text, said, strlen(said)) != 0)
		fail_msg("said: %s\nnot:  %s", err.text, said);
}

static void a_clients_log_is_where_the_file_says(void **state)
{
	struct cluster *c =
		good(VOLUME "[node 1]\nrole = client\naddress = a\n"
			    "[node 2]\nrole = client\naddress = b\nhost = 4\n" NODE(
				    3, "c") "shard = 0\n" NODE(4, "d"));

	assert_int_equal(cluster_member(c, 1)->host, 3); /* the first that has a store */
	assert_int_equal(cluster_member(c, 2)->host, 4);
	assert_int_equal(cluster_member(c, 3)->host, 0);
	assert_int_equal(cluster_clients_of(c, 3), 1);
	assert_int_equal(cluster_clients_of(c, 4), 1);
	assert_int_equal(cluster_member(c, 1)->shard, DISK_SHARD_CLIENT(1));
	assert_int_equal(cluster_home(c, DISK_SHARD_CLIENT(1)), CLUSTER_NODE_NONE);
	cluster_close(c);
}

static void a_whole_file_is_taken_as_it_says(void **state)
{
	struct cluster *c =
		good("; a comment\n# another\n\n" VOLUME "[node 7]   ; the first\r\n"
		     "\taddress = alpha , beta:12\t[::1]:9 fe80::1%eth0\n"
		     "  store: /dev/disk/by-id/x=y ; where it is\n"
		     "  shard = 0\n"
		     "[node  2]\nrole = client\naddress=10.0.0.1:65535\n"
		     "[node 63]\nrole = storage\naddress = gamma\nstore = /s");
	const struct cluster_member *m = cluster_member(c, 7);

	assert_string_equal(cluster_name(c), "scratch");
	assert_string_equal(cluster_key_path(c), "/etc/weft/scratch.key");
	assert_string_equal(cluster_path(c), "/etc/weft/c");
	assert_false(cluster_tls(c));
	assert_int_equal(cluster_nodes(c), 3);
	assert_int_equal(cluster_storage_nodes(c), 2);
	assert_int_equal(m->address_count, 4);
	assert_string_equal(m->address[0].host, "alpha");
	assert_int_equal(m->address[0].port, CLUSTER_PORT_DEFAULT);
	assert_string_equal(m->address[1].host, "beta");
	assert_int_equal(m->address[1].port, 12);
	assert_string_equal(m->address[2].host, "::1");
	assert_int_equal(m->address[2].port, 9);
	assert_string_equal(m->address[3].host, "fe80::1%eth0");
	assert_int_equal(m->address[3].port, CLUSTER_PORT_DEFAULT);
	assert_string_equal(m->store, "/dev/disk/by-id/x=y");
	assert_int_equal(cluster_home(c, 0), 7);
	assert_int_equal(cluster_home(c, 62), 63);
	assert_int_equal(cluster_home(c, 1), CLUSTER_NODE_NONE);
	assert_int_equal(cluster_home(c, 40000), CLUSTER_NODE_NONE);
	assert_int_equal(cluster_member(c, 2)->role, CLUSTER_CLIENT);
	assert_null(cluster_member(c, 1));
	assert_null(cluster_member(c, 64));
	assert_int_equal(cluster_next(c, NULL)->id, 2);
	assert_int_equal(cluster_next(c, cluster_member(c, 2))->id, 7);
	assert_null(cluster_next(c, cluster_member(c, 63)));
	assert_null(cluster_key(c));
	cluster_close(c);
}

static void a_node_may_run_on_several_machines(void **state)
{
	struct cluster *c = good(VOLUME NODE(1, "a, b:7") "cache = 64M\n" NODE(2, "c")
			MACHINE(1, 4, "c:9339") "store = /dev/drbd1\ncache = 32M\n"
			MACHINE(1, 2, "d"));
	const struct cluster_member *m = cluster_member(c, 1);
	char all[200];

	assert_int_equal(cluster_nodes(c), 2);
	assert_int_equal(cluster_machines(m), 3);
	assert_int_equal(cluster_machines(cluster_member(c, 2)), 1);
	assert_true(cluster_has_machine(m, 1) && cluster_has_machine(m, 2));
	assert_false(cluster_has_machine(m, 0) || cluster_has_machine(m, 3));
	assert_false(cluster_has_machine(m, 5));
	assert_string_equal(cluster_store_at(m, 1), "/srv/1.weft");
	assert_string_equal(cluster_store_at(m, 2), "/srv/1.weft");
	assert_string_equal(cluster_store_at(m, 4), "/dev/drbd1");
	assert_int_equal(cluster_cache_at(m, 1), 64 << 20);
	assert_int_equal(cluster_cache_at(m, 2), 64 << 20);
	assert_int_equal(cluster_cache_at(m, 4), 32 << 20);
	assert_int_equal(cluster_cache_at(cluster_member(c, 2), 1), 0);
	cluster_addresses_print(m, 0, all, sizeof(all));
	assert_string_equal(all, "a:9338, b:7, c:9339, d:9338");
	cluster_addresses_print(m, 1, all, sizeof(all));
	assert_string_equal(all, "a:9338, b:7");
	cluster_addresses_print(m, 2, all, sizeof(all));
	assert_string_equal(all, "d:9338");
	cluster_close(c);
}

static void the_order_of_sections_means_nothing(void **state)
{
	struct cluster *c = good(NODE(2, "beta") NODE(1, "alpha") VOLUME);

	assert_int_equal(cluster_home(c, 0), 1);
	assert_int_equal(cluster_home(c, 1), 2);
	cluster_close(c);
}

static void tls_is_what_the_file_says(void **state)
{
	struct cluster *c = good(VOLUME "tls = yes\n" NODE(1, "a"));

	assert_true(cluster_tls(c));
	cluster_close(c);
	c = good(VOLUME "tls = no\n" NODE(1, "a"));
	assert_false(cluster_tls(c));
	cluster_close(c);
}

static void an_absolute_key_path_stays_as_it_is(void **state)
{
	struct cluster *c =
		good("[volume]\nname=a\nuuid=" UUID "\nkey=/k\n" NODE(1, "a"));

	assert_string_equal(cluster_key_path(c), "/k");
	cluster_close(c);
}

/* Line 5 is the first of the node's section. */
static void every_mistake_is_told_with_its_line_and_key(void **state)
{
	static const struct {
		const char *text, *said;
	} cases[] = {
		{"", "/etc/weft/c:1: there is no section [volume]"},
		{"; nothing\n", "/etc/weft/c:1: there is no section [volume]"},
		{"name = x\n", "/etc/weft/c:1: \"name\" is in no section"},
		{"[volumes]\n", "/etc/weft/c:1: section [volumes] is unknown"},
		{"[volume\n", "/etc/weft/c:1: is not a section"},
		{"[volume] name = x\n", "/etc/weft/c:1: is not a section"},
		{VOLUME "hello\n" NODE(1, "a"), "/etc/weft/c:5: is neither [SECTION]"},
		{VOLUME "= x\n", "/etc/weft/c:5: [volume]: there is no key"},
		{VOLUME "size = 3\n", "/etc/weft/c:5: [volume] size: is unknown"},
		{VOLUME "tls = on\n",
			"/etc/weft/c:5: [volume] tls: \"on\" is neither yes nor no"},
		{VOLUME "tls = yes\ntls = yes\n",
			"/etc/weft/c:6: [volume] tls: is there twice"},
		{VOLUME "name = y\n",
			"/etc/weft/c:5: [volume] name: is there twice, here and "
			"in line 2"},
		{VOLUME VOLUME,
			"/etc/weft/c:5: [volume] is there twice, here and in line 1"},
		{"[volume]\nname =\n", "/etc/weft/c:2: [volume] name: is empty"},
		{"[volume]\nname = -x\n",
			"/etc/weft/c:2: [volume] name: \"-x\" is not a name"},
		{"[volume]\nname = a/b\n",
			"/etc/weft/c:2: [volume] name: \"a/b\" is not"},
		{"[volume]\nname = "
		 "1234567890123456789012345678901234567890123456789012345678901234\n",
			"/etc/weft/c:2: [volume] name: \"12345"},
		{"[volume]\nuuid = 0d4f6f0e\n",
			"/etc/weft/c:2: [volume] uuid: \"0d4f6f0e\" is "
			"not a UUID"},
		{"[volume]\nuuid = " UUID "0\n", "/etc/weft/c:2: [volume] uuid: "},
		{"[volume]\nuuid = 00000000-0000-0000-0000-000000000000\n",
			"/etc/weft/c:2: [volume] uuid: "},
		{"[volume]\nname = a\nuuid = " UUID "\n" NODE(1, "a"),
			"/etc/weft/c:1: [volume] key: is missing"},
		{"[volume]\n[node 1]\n", "/etc/weft/c:1: [volume] name: is missing"},
		{"[volume]\nname = a\n", "/etc/weft/c:1: [volume] uuid: is missing"},
		{VOLUME, "/etc/weft/c:4: no node has a store"},
		{VOLUME "[node 0]\n", "/etc/weft/c:5: section [node 0] is unknown"},
		{VOLUME "[node 64]\n", "/etc/weft/c:5: section [node 64] is unknown"},
		{VOLUME "[node]\n", "/etc/weft/c:5: section [node] is unknown"},
		{VOLUME "[node x]\n", "/etc/weft/c:5: section [node x] is unknown"},
		{VOLUME "[node 1]\n", "/etc/weft/c:5: [node 1] address: is missing"},
		{VOLUME "[node 1]\naddress = a\n",
			"/etc/weft/c:5: [node 1] store: is missing"},
		{VOLUME "[node 1]\naddress = a\n[node 2]\n",
			"/etc/weft/c:5: [node 1] store: is missing"},
		{VOLUME "[node 1]\naddress = ,\n",
			"/etc/weft/c:6: [node 1] address: names no"},
		{VOLUME "[node 1]\naddress = a:0\n",
			"/etc/weft/c:6: [node 1] address: \"a:0\" is not an address"},
		{VOLUME "[node 1]\naddress = a:65536\n",
			"/etc/weft/c:6: [node 1] address: \"a:65536\" is not"},
		{VOLUME "[node 1]\naddress = a:\n",
			"/etc/weft/c:6: [node 1] address: \"a:\" is not"},
		{VOLUME "[node 1]\naddress = [::1\n",
			"/etc/weft/c:6: [node 1] address: \"[::1\" is not"},
		{VOLUME "[node 1]\naddress = [a]:1\n",
			"/etc/weft/c:6: [node 1] address: \"[a]:1\" is not"},
		{VOLUME "[node 1]\naddress = -a\n",
			"/etc/weft/c:6: [node 1] address: \"-a\" is not"},
		{VOLUME "[node 1]\naddress = a/b\n",
			"/etc/weft/c:6: [node 1] address: \"a/b\" is not"},
		{VOLUME "[node 1]\naddress = a b c d e\n",
			"/etc/weft/c:6: [node 1] address: has more than 4"},
		{VOLUME "[node 1]\nrole = server\n",
			"/etc/weft/c:6: [node 1] role: \"server\" is not a role"},
		{VOLUME "[node 1]\nstore = data\n", "/etc/weft/c:6: [node 1] store: "
						    "\"data\" is not an absolute path"},
		{VOLUME "[node 1]\nstore = /\n",
			"/etc/weft/c:6: [node 1] store: \"/\" is not"},
		{VOLUME "[node 1]\nshard = 63\n",
			"/etc/weft/c:6: [node 1] shard: \"63\" is not a shard"},
		{VOLUME "[node 1]\nshard = -1\n",
			"/etc/weft/c:6: [node 1] shard: \"-1\" is"},
		{VOLUME "[node 1]\nshard = 1x\n",
			"/etc/weft/c:6: [node 1] shard: \"1x\" is"},
		{VOLUME "[node 1]\nweight = 1\n",
			"/etc/weft/c:6: [node 1] weight: is unknown"},
		{VOLUME "[node 1]\naddress = a\naddress = b\n",
			"/etc/weft/c:7: [node 1] address: is there twice, here and in "
			"line 6"},
		{VOLUME NODE(1, "a") NODE(1, "b"),
			"/etc/weft/c:8: [node 1] is there twice, here and in line 5"},
		{VOLUME "[node 1]\nrole = client\naddress = a\nstore = /x\n",
			"/etc/weft/c:8: [node 1] store: a client has none"},
		{VOLUME NODE(1, "a") "[node 2]\nshard = 1\nrole = client\naddress = b\n",
			"/etc/weft/c:9: [node 2] shard: a client has none"},
		{VOLUME NODE(1, "a") "[node 2]\nrole = client\naddress = b\nhost = 3\n",
			"/etc/weft/c:11: [node 2] host: node 3 is not there"},
		{VOLUME NODE(1, "a") "[node 2]\nrole = client\naddress = b\nhost = 2\n",
			"/etc/weft/c:11: [node 2] host: node 2 is a client"},
		{VOLUME NODE(1, "a") "[node 2]\nrole = client\naddress = b\nhost = x\n",
			"/etc/weft/c:11: [node 2] host: \"x\" is not a node"},
		{VOLUME NODE(1, "a") "host = 1\n",
			"/etc/weft/c:8: [node 1] host: a storage node has its own log"},
		{VOLUME "[node 1]\nrole = client\naddress = a\n",
			"/etc/weft/c:7: no node has a store"},
		{VOLUME NODE(2, "a"), "/etc/weft/c:7: no node has shard 0"},
		{VOLUME NODE(1, "a") NODE(2, "A:9338"),
			"/etc/weft/c:9: [node 2] address: A port 9338 is also node 1's "
			"(line 6)"},
		{VOLUME NODE(2, "a") NODE(1, "a"), "/etc/weft/c:9: [node 1] address: a "
						   "port 9338 is also node 2's (line 6)"},
		{VOLUME NODE(1, "a") NODE(2, "b") "shard = 0\n",
			"/etc/weft/c:11: [node 2] shard: 0 is also node 1's (line 5)"},
		{VOLUME "[node 1]\naddress = a:1\nstore = /x\n[node 2]\naddress = "
			"a:2\nstore = "
			"/x\n",
			"/etc/weft/c:10: [node 2] store: /x is also node 1's on the same "
			"host"},
		{VOLUME MACHINE(1, 2, "b") NODE(1, "a"),
			"/etc/weft/c:5: [node 1 machine 2] stands above [node 1]"},
		{VOLUME NODE(1, "a") "[node 1 machine 1]\n",
			"/etc/weft/c:8: section [node 1 machine 1] is unknown"},
		{VOLUME NODE(1, "a") "[node 1 machine 5]\n",
			"/etc/weft/c:8: section [node 1 machine 5] is unknown"},
		{VOLUME NODE(1, "a") "[node 1 machine]\n",
			"/etc/weft/c:8: section [node 1 machine] is unknown"},
		{VOLUME NODE(1, "a") "[node 1 on 2]\n",
			"/etc/weft/c:8: section [node 1 on 2] is unknown"},
		{VOLUME NODE(1, "a") "[node 1 machine 2 3]\n",
			"/etc/weft/c:8: section [node 1 machine 2 3] is unknown"},
		{VOLUME NODE(1, "a") "[node 1 machine 2]\nstore = /x\n",
			"/etc/weft/c:8: [node 1 machine 2] address: is missing"},
		{VOLUME NODE(1, "a") "[node 1 machine 2]\naddress = ,\n",
			"/etc/weft/c:9: [node 1 machine 2] address: names no host"},
		{VOLUME NODE(1, "a") MACHINE(1, 2, "b") MACHINE(1, 2, "c"),
			"/etc/weft/c:10: [node 1 machine 2] is there twice, here and in "
			"line 8"},
		{VOLUME NODE(1, "a") MACHINE(1, 2, "b") "shard = 0\n",
			"/etc/weft/c:10: [node 1 machine 2] shard: is unknown here"},
		{VOLUME NODE(1, "a") MACHINE(1, 2, "b") "store = x\n",
			"/etc/weft/c:10: [node 1 machine 2] store: \"x\" is not an "
			"absolute path"},
		{VOLUME NODE(1, "a") MACHINE(1, 2, "b") "cache = 4\n",
			"/etc/weft/c:10: [node 1 machine 2] cache: \"4\" is not a size of "
			"1M"},
		{VOLUME NODE(1, "a") "cache = much\n",
			"/etc/weft/c:8: [node 1] cache: \"much\" is not a size"},
		{VOLUME NODE(1, "a b c") MACHINE(1, 2, "d e"),
			"/etc/weft/c:9: [node 1 machine 2] address: has more than 4 "
			"addresses, with those of the node's other machines"},
		{VOLUME NODE(1, "a") MACHINE(1, 2, "A:2"),
			"/etc/weft/c:9: [node 1 machine 2] address: names a host of machine "
			"1 (line 6), too"},
		{VOLUME NODE(1, "a") NODE(2, "b") MACHINE(1, 2, "b"),
			"/etc/weft/c:12: [node 1 machine 2] address: b port 9338 is also "
			"node 2's (line 9)"},
		{VOLUME NODE(1, "a") NODE(2, "b") MACHINE(1, 2, "b:2") "store = /srv/2.weft\n",
			"/etc/weft/c:13: [node 1 machine 2] store: /srv/2.weft is also node "
			"2's on the same host (line 10)"},
		{VOLUME NODE(1, "a") "[node 2]\nrole = client\naddress = b\n" MACHINE(
			 2, 2, "c"),
			"/etc/weft/c:11: [node 2 machine 2]: node 2 is a client"},
		{VOLUME "na\001me = x\n",
			"/etc/weft/c:5: [volume]: the line has control characters"},
		{VOLUME "a\rb = x\n",
			"/etc/weft/c:5: [volume]: the line has control characters"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
		refused(cases[i].text, cases[i].said);
}

static void one_store_path_on_two_hosts_is_fine(void **state)
{
	cluster_close(
		good(VOLUME "[node 1]\naddress = a\nstore = /x\n[node 2]\naddress = b\n"
			    "store = /x\n"));
}

static void a_line_has_at_most_198_bytes(void **state)
{
	char text[1024];
	struct cluster *c;

	for (int length = 190; length < 400; length++) {
		snprintf(text, sizeof(text),
			VOLUME "[node 1]\naddress = a\nstore = /%.*s\n", length - 9,
			"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
			"xxxxxxxx"
			"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
			"xxxxxxxx"
			"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
			"xxxxxxxx"
			"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
			"xxxxxxxx"
			"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
			"xxxxxxxx"
			"xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx"
			"xxxxxxxx");
		if (length > 198) {
			refused(text,
				"/etc/weft/c:7: [node 1]: the line is longer than 198");
			continue;
		}
		c = good(text);
		assert_int_equal(strlen(cluster_member(c, 1)->store), length - 8);
		cluster_close(c);
	}
}

static void text_with_zeros_or_too_much_of_it_is_refused(void **state)
{
	static char text[CLUSTER_FILE_BYTES + 1] = VOLUME;
	struct weft_error err = {0};
	struct cluster *c;

	assert_int_equal(cluster_parse(&c, text, sizeof(VOLUME), "c", &err), -EINVAL);
	assert_non_null(
		strstr(err.text, "c:5: [volume]: the line has control characters"));
	memset(text, '\n', sizeof(text));
	err.code = 0;
	assert_int_equal(cluster_parse(&c, text, sizeof(text), "c", &err), -EFBIG);
}

static void a_long_path_leaves_room_for_the_message(void **state)
{
	struct weft_error err = {0};
	struct cluster *c;
	char path[4000];

	memset(path, 'p', sizeof(path));
	path[sizeof(path) - 1] = '\0';
	assert_int_equal(cluster_parse(&c, "x", 1, path, &err), -EINVAL);
	assert_non_null(strstr(err.text, "p:1: is neither"));
	assert_non_null(strstr(err.text, "comments begin with ;"));
}

static void sixty_three_nodes_fit_and_each_is_found(void **state)
{
	static char text[CLUSTER_FILE_BYTES] = VOLUME;
	struct cluster *c;
	unsigned seen = 0;

	for (unsigned i = CLUSTER_NODE_MAX; i >= 1; i--)
		sprintf(text + strlen(text), "[node %u]\naddress = h%u\nstore = /s\n", i,
			i);
	c = good(text);
	for (const struct cluster_member *m = NULL; (m = cluster_next(c, m));) {
		assert_int_equal(m->id, ++seen);
		assert_int_equal(cluster_home(c, m->shard), m->id);
	}
	assert_int_equal(seen, CLUSTER_NODE_MAX);
	cluster_close(c);
}

/* ---- a file that is read anew -------------------------------------------------------- */

#define CLIENT(n, host) "[node " #n "]\nrole = client\naddress = " host "\n"
#define THREE           VOLUME NODE(1, "a") NODE(2, "b") CLIENT(3, "c")

/* `newer` is refused after THREE with this text, behind the file's name; nothing is new. */
static void change_refused(const char *newer, const char *said)
{
	struct cluster *c = good(THREE), *n = good(newer);
	struct weft_error err = {0};
	uint64_t added = ~0ull;

	assert_int_equal(cluster_compare(c, n, &added, &err), -EINVAL);
	assert_int_equal(added, 0);
	assert_int_equal(err.code, -EINVAL);
	if (strncmp(err.text, "/etc/weft/c:", 12) != 0 ||
		strncmp(err.text + 12, said, strlen(said)) != 0)
		fail_msg("said: %s\nnot:  %s", err.text, said);
	cluster_close(n);
	cluster_close(c);
}

static void clients_may_be_added_and_each_is_found(void **state)
{
	struct cluster *c = good(THREE);
	struct cluster *n = good("; said otherwise\n" CLIENT(63, "e") CLIENT(4, "d") CLIENT(
		3, "c") NODE(2, "b") NODE(1, "a") VOLUME);
	const struct cluster_member *first = cluster_member(c, 1);
	struct weft_error err = {0};
	uint64_t added;

	assert_int_equal(cluster_compare(c, n, &added, &err), 0);
	assert_int_equal(added, 1ull << 4 | 1ull << 63);
	assert_int_equal(cluster_nodes(c), 3); /* compared, not taken in */
	assert_int_equal(cluster_heard(c, 63, 5), -ENOENT);
	cluster_add(c, n, 4);
	cluster_add(c, n, 63);
	assert_int_equal(cluster_nodes(c), 5);
	assert_int_equal(cluster_storage_nodes(c), 2);
	assert_ptr_equal(cluster_member(c, 1), first);
	assert_string_equal(cluster_member(c, 63)->address[0].host, "e");
	assert_int_equal(cluster_member(c, 63)->host, 1);
	assert_int_equal(cluster_clients_of(c, 1), 3);
	assert_int_equal(cluster_next(c, cluster_member(c, 3))->id, 4);
	assert_int_equal(cluster_next(c, cluster_member(c, 4))->id, 63);
	assert_int_equal(cluster_heard(c, 63, 5), 1);
	assert_int_equal(cluster_compare(c, n, &added, &err), 0);
	assert_int_equal(added, 0);
	cluster_close(n);
	cluster_close(c);
}

static void what_cannot_change_is_refused_by_name(void **state)
{
	static const struct {
		const char *newer, *said;
	} cases[] = {
		{"[volume]\nname = other\nuuid = " UUID "\nkey = k\n" NODE(1, "a") NODE(
			 2, "b") CLIENT(3, "c"),
			"2: [volume] name: \"scratch\" cannot become \"other\""},
		{"[volume]\nname = scratch\nkey = k\n"
		 "uuid = 1d4f6f0e-6d8c-4c1f-9a57-0f5f3c0f2b11\n" NODE(1, "a") NODE(2, "b")
			 CLIENT(3, "c"),
			"4: [volume] uuid: it is the file of another volume: the volume in use "
			"has " UUID},
		{VOLUME "tls = yes\n" NODE(1, "a") NODE(2, "b") CLIENT(3, "c"),
			"5: [volume] tls: no cannot become yes"},
		{VOLUME "transport = verbs\n" NODE(1, "a") NODE(2, "b") CLIENT(3, "c"),
			"5: [volume] transport: tcp cannot become verbs"},
		{VOLUME NODE(1, "a") NODE(2, "b"),
			"1: [node 3]: is not there any more"},
		{VOLUME NODE(1, "a") CLIENT(3, "c"), "1: [node 2]: is not there any more"},
		{VOLUME NODE(1, "a") NODE(2, "b") NODE(3, "c"),
			"11: [node 3] role: a client stays one"},
		{VOLUME NODE(1, "a") CLIENT(2, "b") CLIENT(3, "c"),
			"9: [node 2] role: a storage node stays one"},
		{VOLUME NODE(1, "a") NODE(2, "b") "shard = 7\n" CLIENT(3, "c"),
			"11: [node 2] shard: 1 cannot become 7"},
		{VOLUME NODE(1, "a") "[node 2]\naddress = b\nstore = /dev/x\n" CLIENT(
			 3, "c"),
			"10: [node 2] store: /srv/2.weft is in use: it cannot become "
			"/dev/x"},
		{VOLUME NODE(1, "a") NODE(2, "b") CLIENT(3, "c") "host = 2\n",
			"14: [node 3] host: node 1 has this client's log"},
		{VOLUME NODE(1, "a") NODE(2, "b") CLIENT(3, "d"),
			"13: [node 3] address: addresses cannot change"},
		{VOLUME NODE(1, "a:99") NODE(2, "b") CLIENT(3, "c"),
			"6: [node 1] address: addresses cannot change"},
		{VOLUME NODE(1, "a, x") NODE(2, "b") CLIENT(3, "c"),
			"6: [node 1] address: addresses cannot change"},
		{THREE MACHINE(1, 2, "x"), "14: [node 1 machine 2]: was not there before"},
		{THREE NODE(4, "d"), "14: [node 4]: only a client can be added"},
		{THREE CLIENT(4, "d") NODE(5, "e"),
			"17: [node 5]: only a client can be added"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++)
		change_refused(cases[i].newer, cases[i].said);
}

/* ---- the epoch ---------------------------------------------------------------------- */

static void machines_cannot_change_but_their_caches_can(void **state)
{
	static const char was[] = VOLUME NODE(1, "a") MACHINE(1, 2, "b");
	static const struct {
		const char *newer, *said;
	} cases[] = {
		{VOLUME NODE(1, "a"), "1: [node 1 machine 2]: is not there any more"},
		{VOLUME NODE(1, "a") MACHINE(1, 2, "c"), "addresses cannot change"},
		{VOLUME NODE(1, "a, b"), "is not there any more"},
		{VOLUME NODE(1, "a") MACHINE(1, 2, "b") "store = /x\n",
			"10: [node 1 machine 2] store: /srv/1.weft is in use"},
	};
	struct cluster *c = good(was), *n;
	struct weft_error err = {0};
	uint64_t added;

	for (size_t i = 0; i < ARRAY_SIZE(cases); i++) {
		n = good(cases[i].newer);
		err = (struct weft_error){0};
		assert_int_equal(cluster_compare(c, n, &added, &err), -EINVAL);
		if (!strstr(err.text, cases[i].said))
			fail_msg("said: %s\nnot:  %s", err.text, cases[i].said);
		cluster_close(n);
	}
	n = good(VOLUME NODE(1, "a") "cache = 2G\n" MACHINE(1, 2, "b") "cache = 1G\n");
	assert_int_equal(cluster_compare(c, n, &added, &err), 0);
	cluster_close(n);
	cluster_close(c);
}

static void an_incarnation_only_rises(void **state)
{
	struct cluster *c = good(VOLUME NODE(1, "a") NODE(5, "b"));

	assert_int_equal(cluster_incarnation(c, 1), 0);
	assert_int_equal(cluster_heard(c, 1, 7), 1);
	assert_int_equal(cluster_heard(c, 1, 7), 0);
	assert_int_equal(cluster_heard(c, 1, 6), -ESTALE);
	assert_int_equal(cluster_incarnation(c, 1), 7);
	assert_int_equal(cluster_incarnation(c, 5), 0);
	assert_int_equal(cluster_heard(c, 1, 9), 1);
	assert_int_equal(cluster_incarnation(c, 1), 9);
	assert_int_equal(cluster_heard(c, 2, 1), -ENOENT);
	assert_int_equal(cluster_heard(c, 64, 1), -ENOENT);
	assert_int_equal(cluster_heard(c, 5, 0), -EINVAL);
	cluster_close(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_whole_file_is_taken_as_it_says),
		cmocka_unit_test(a_clients_log_is_where_the_file_says),
		cmocka_unit_test(the_order_of_sections_means_nothing),
		cmocka_unit_test(tls_is_what_the_file_says),
		cmocka_unit_test(an_absolute_key_path_stays_as_it_is),
		cmocka_unit_test(every_mistake_is_told_with_its_line_and_key),
		cmocka_unit_test(one_store_path_on_two_hosts_is_fine),
		cmocka_unit_test(a_line_has_at_most_198_bytes),
		cmocka_unit_test(a_node_may_run_on_several_machines),
		cmocka_unit_test(machines_cannot_change_but_their_caches_can),
		cmocka_unit_test(text_with_zeros_or_too_much_of_it_is_refused),
		cmocka_unit_test(a_long_path_leaves_room_for_the_message),
		cmocka_unit_test(sixty_three_nodes_fit_and_each_is_found),
		cmocka_unit_test(an_incarnation_only_rises),
		cmocka_unit_test(clients_may_be_added_and_each_is_found),
		cmocka_unit_test(what_cannot_change_is_refused_by_name),
	};

	if (rt_real_start() != 0)
		return 1;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
