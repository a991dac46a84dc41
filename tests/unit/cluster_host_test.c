/* SPDX-License-Identifier: Apache-2.0 */
/* The two files of a cluster as they lie on a machine, keys, and which node is this one. */
#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <unistd.h>
#include <cmocka.h>

#include "engine/cluster/cluster.h"
#include "engine/rt/rt.h"

#define VOLUME                                                                           \
	"[volume]\nname = s\nuuid = 0d4f6f0e-6d8c-4c1f-9a57-0f5f3c0f2b11\nkey = s.key\n"
#define KEY "00112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF"

static char folder[256];
static char file[300], key[300];
static struct weft_error err;

static int group_setup(void **state)
{
	snprintf(folder, sizeof(folder), "%s/weft-test.XXXXXX",
		getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp");
	if (rt_real_start() != 0 || !mkdtemp(folder))
		return -1;
	snprintf(file, sizeof(file), "%s/s.cluster", folder);
	snprintf(key, sizeof(key), "%s/s.key", folder);
	return 0;
}

static int group_teardown(void **state)
{
	unlink(file);
	unlink(key);
	return rmdir(folder);
}

static void put(const char *path, const char *text, mode_t mode)
{
	FILE *f;

	unlink(path);
	f = fopen(path, "w");
	assert_non_null(f);
	fputs(text, f);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(chmod(path, mode), 0);
}

static int try(struct cluster **c, unsigned flags)
{
	err = (struct weft_error){0};
	return cluster_open(c, file, flags, &err);
}

static void refused(int code, const char *said)
{
	struct cluster *c = NULL;

	assert_int_equal(try(&c, 0), code);
	assert_null(c);
	assert_int_equal(err.code, code);
	if (!strstr(err.text, said))
		fail_msg("said: %s\nnot:  %s", err.text, said);
}

static struct cluster *opened(const char *nodes)
{
	char text[2000];
	struct cluster *c;

	snprintf(text, sizeof(text), "%s%s", VOLUME, nodes);
	put(file, text, 0644);
	put(key, KEY "\n", 0600);
	if (try(&c, 0))
		fail_msg("refused: %s", err.text);
	return c;
}

#define ONE "[node 1]\naddress = 127.0.0.1\nstore = /x\n"
#define OTHER                                                                            \
	"[node 2]\naddress = 192.0.2.1\nstore = /y\n" /* documentation's, nobody's */

static void the_key_is_read_and_a_volumes_key_made_from_it(void **state)
{
	/* HMAC-SHA-256 of "weft volume key" and the UUID, by openssl dgst -mac */
	static const char expected[] =
		"e4e492daea173cb23ef521bc74787a67211a21afe152aef53fa3ba7d5f19cd96";
	struct cluster *c = opened(ONE);
	uint8_t volume[CLUSTER_KEY_BYTES];
	char text[2 * CLUSTER_KEY_BYTES + 1];

	hex_print(cluster_key(c), CLUSTER_KEY_BYTES, text);
	assert_int_equal(strcasecmp(text, KEY), 0);
	assert_int_equal(cluster_volume_key(c, volume), 0);
	hex_print(volume, sizeof(volume), text);
	assert_string_equal(text, expected);
	cluster_close(c);
}

static void without_the_key_there_is_no_volumes_key(void **state)
{
	uint8_t volume[CLUSTER_KEY_BYTES];
	struct cluster *c = opened(ONE);

	cluster_close(c);
	unlink(key);
	refused(-ENOENT, "s.key: No such file");
	assert_int_equal(try(&c, CLUSTER_WITHOUT_KEY), 0);
	assert_null(cluster_key(c));
	assert_int_equal(cluster_volume_key(c, volume), -ENOKEY);
	cluster_close(c);
}

static void another_key_is_not_taken_while_the_volume_is_in_use(void **state)
{
	struct cluster *c = opened(ONE), *n;
	uint64_t added;

	n = opened(ONE OTHER);
	assert_int_equal(cluster_compare(c, n, &added, &err), -EINVAL);
	cluster_close(n); /* a storage node; the key is the same */
	assert_non_null(strstr(err.text, "only a client can be added"));
	put(key,
		"0"
		"0112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFE\n",
		0600);
	put(file, VOLUME ONE, 0644);
	assert_int_equal(try(&n, 0), 0);
	assert_int_equal(cluster_compare(c, n, &added, &err), -EINVAL);
	assert_non_null(strstr(err.text,
		"s.cluster:4: [volume] key: it is not the key that the volume is in use "
		"with"));
	cluster_close(n);
	cluster_close(c);
}

static void a_key_that_others_may_touch_is_refused(void **state)
{
	static const mode_t modes[] = {0640, 0604, 0620, 0602, 0610, 0601, 0644, 0666};
	struct cluster *c = opened(ONE);

	cluster_close(c);
	for (size_t i = 0; i < ARRAY_SIZE(modes); i++) {
		chmod(key, modes[i]);
		refused(-EACCES, "may be read by others");
		refused(-EACCES, "chmod 600");
	}
	chmod(key, 0400);
	assert_int_equal(try(&c, 0), 0);
	cluster_close(c);
}

static void a_key_of_another_user_is_refused(void **state)
{
	if (geteuid() != 0)
		return; /* only root can give files away */
	cluster_close(opened(ONE));
	assert_int_equal(chown(key, 12345, 0), 0);
	refused(-EACCES, "belongs to user 12345");
	assert_int_equal(chown(key, 0, 0), 0);
}

static void a_cluster_file_that_others_may_write_is_refused(void **state)
{
	static const mode_t modes[] = {0664, 0646, 0666};
	struct cluster *c = opened(ONE);

	cluster_close(c);
	for (size_t i = 0; i < ARRAY_SIZE(modes); i++) {
		chmod(file, modes[i]);
		refused(-EACCES, "may be written by others");
		refused(-EACCES, "chmod go-w");
		assert_int_equal(try(&c, CLUSTER_WITHOUT_KEY), 0); /* for looking only */
		cluster_close(c);
	}
	chmod(file, 0644);
	if (geteuid() == 0) {
		assert_int_equal(chown(file, 12345, 0), 0);
		refused(-EACCES, "belongs to user 12345");
		assert_int_equal(chown(file, 0, 0), 0);
	}
	assert_int_equal(try(&c, 0), 0);
	cluster_close(c);
}

/* Flags of the memory that has this address, as smaps says them; empty: none has it. */
static void memory_flags(const void *at, char flags[512])
{
	FILE *f = fopen("/proc/self/smaps", "re");
	unsigned long from, to;
	bool here = false;
	char line[512];

	assert_non_null(f);
	flags[0] = '\0';
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx ", &from, &to) == 2)
			here = (unsigned long)at >= from && (unsigned long)at < to;
		else if (here && strncmp(line, "VmFlags:", 8) == 0)
			strcpy(flags, line + 8);
	}
	fclose(f);
}

static void the_key_is_in_no_swap_core_or_child(void **state)
{
	struct cluster *c = opened(ONE);
	const uint8_t *at = cluster_key(c);
	char flags[512];

	memory_flags(at, flags);
#if !defined(__SANITIZE_ADDRESS__) && !defined(__SANITIZE_THREAD__) /* they take mlock for themselves */
	assert_non_null(strstr(flags, " lo"));
#endif
	assert_non_null(strstr(flags, " dd"));
	assert_non_null(strstr(flags, " wf"));
	cluster_close(c);
}

static void what_is_no_key_is_refused(void **state)
{
	static const char longer[] = KEY "0\n", twice[] = KEY KEY "\n";
	static const char behind[] = "x0112233445566778899aabbccddeeff" KEY;
	static const char *const bad[] = {"", "\n", longer, twice, "0011223344556677\n",
		behind,
		"g0112233445566778899aabbccddeeff00112233445566778899AABBCCDDEEFF\n"};

	cluster_close(opened(ONE));
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		put(key, bad[i], 0600);
		refused(-EINVAL, "does not hold a key");
	}
	unlink(key);
	assert_int_equal(mkdir(key, 0700), 0);
	refused(-EINVAL, "is not a regular file");
	assert_int_equal(rmdir(key), 0);
}

static void a_file_that_is_not_there_or_too_large_is_told(void **state)
{
	static char large[CLUSTER_FILE_BYTES + 2];

	unlink(file);
	refused(-ENOENT, "s.cluster: No such file");
	memset(large, ';', sizeof(large) - 1);
	put(file, large, 0644);
	refused(-EFBIG, "it is no cluster file");
	assert_false(cluster_file_is(file));
}

static void a_cluster_file_is_known_by_its_first_line(void **state)
{
	static const char *const yes[] = {
		"[volume]\n", "; c\n\n  # d\n\t[x", "\xef\xbb\xbf[v]"};
	static const char *const no[] = {
		"", "\n", "; only this\n", "name = x\n[volume]\n", "WEFTSUPR", "x[\n"};

	for (size_t i = 0; i < ARRAY_SIZE(yes); i++) {
		put(file, yes[i], 0644);
		assert_true(cluster_file_is(file));
	}
	for (size_t i = 0; i < ARRAY_SIZE(no); i++) {
		put(file, no[i], 0644);
		assert_false(cluster_file_is(file));
	}
	assert_false(cluster_file_is(folder));
	assert_false(cluster_file_is("/dev/null"));
	assert_false(cluster_file_is("/nonexistent"));
}

static void a_node_finds_itself_by_its_addresses(void **state)
{
	struct cluster *c = opened(ONE OTHER);

	assert_int_equal(cluster_self(c, 0, "-o node=N", &err), 1);
	cluster_close(c);
	c = opened("[node 1]\naddress = 192.0.2.7, 127.1.2.3\nstore = /x\n" OTHER);
	assert_int_equal(cluster_self(c, 0, "-o node=N", &err), 1);
	cluster_close(c);
}

static void nobody_and_several_are_told_apart(void **state)
{
	struct cluster *c = opened("[node 1]\naddress = 192.0.2.7\nstore = /x\n" OTHER);

	assert_int_equal(cluster_self(c, 0, "-o node=N", &err), -ENOENT);
	assert_non_null(strstr(err.text, "none of this machine's addresses"));
	assert_non_null(strstr(err.text, "-o node=N"));
	assert_int_equal(cluster_self(c, 2, "-o node=N", &err), 2);
	err.code = 0;
	assert_int_equal(cluster_self(c, 3, "-o node=N", &err), -ENOENT);
	assert_non_null(strstr(err.text, "names no node 3"));
	cluster_close(c);
	c = opened(ONE "[node 9]\naddress = 127.0.0.1:1\nstore = /z\n");
	assert_int_equal(cluster_self(c, 0, "--node N", &err), -ENOTUNIQ);
	assert_non_null(strstr(err.text, "nodes 1 and 9 are all on this machine"));
	cluster_close(c);
}

static void a_machine_is_found_among_those_of_its_node(void **state)
{
	struct cluster *c = opened("[node 1]\naddress = 192.0.2.7\nstore = /x\n" OTHER
				   "[node 1 machine 3]\naddress = 127.0.0.1:2\n"
				   "store = /y\n");

	assert_int_equal(cluster_machine_here(c, 1, &err), 3);
	assert_string_equal(cluster_store_here(c, 1), "/y");
	/* it runs here when somebody says so, and by itself on its own machine alone */
	assert_int_equal(cluster_self(c, 0, "-o node=N", &err), -ENOENT);
	cluster_close(c);
	c = opened("[node 1]\naddress = 192.0.2.7\nstore = /x\n" OTHER
		   "[node 1 machine 2]\naddress = 192.0.2.8\nstore = /y\n");
	err.code = 0;
	assert_int_equal(cluster_machine_here(c, 1, &err), -ENOENT);
	assert_non_null(strstr(err.text, "no address of its 2 machines is one of this machine's"));
	assert_string_equal(cluster_store_here(c, 1), "/x");
	cluster_close(c);
	/* with one machine nothing is compared: its address may be translated on the way */
	c = opened("[node 1]\naddress = 192.0.2.7\nstore = /x\n" OTHER);
	assert_int_equal(cluster_machine_here(c, 1, &err), 1);
	cluster_close(c);
	c = opened(ONE OTHER "[node 1 machine 2]\naddress = 127.0.0.9\n");
	err.code = 0;
	assert_int_equal(cluster_machine_here(c, 1, &err), -ENOTUNIQ);
	assert_non_null(strstr(err.text, "machines 1 and 2 are both of this machine"));
	cluster_close(c);
}

static void numeric_addresses_resolve_with_their_ports(void **state)
{
	struct cluster *c = opened("[node 1]\naddress = 192.0.2.7:77, [2001:db8::1]:78\n"
				   "store = /x\n");
	struct sockaddr_storage out[4];
	const struct sockaddr_in *v4 = (const struct sockaddr_in *)&out[0];
	const struct sockaddr_in6 *v6 = (const struct sockaddr_in6 *)&out[1];

	assert_int_equal(cluster_resolve(c, 1, 0, out, 4, &err), 2);
	assert_int_equal(v4->sin_family, AF_INET);
	assert_int_equal(ntohl(v4->sin_addr.s_addr), 0xc0000207);
	assert_int_equal(ntohs(v4->sin_port), 77);
	assert_int_equal(v6->sin6_family, AF_INET6);
	assert_int_equal(ntohs(v6->sin6_port), 78);
	assert_int_equal(cluster_resolve(c, 1, 0, out, 1, &err), 1);
	assert_int_equal(cluster_resolve(c, 2, 0, out, 4, &err), -ENOENT);
	assert_non_null(strstr(err.text, "names no node 2"));
	cluster_close(c);
}

/* ".invalid" never resolves (RFC 6761). */
static void a_name_that_does_not_resolve_is_told_with_its_line(void **state)
{
	struct cluster *c = opened("[node 1]\naddress = weft.invalid\nstore = /x\n");
	struct sockaddr_storage out[4];
	char place[400];

	snprintf(place, sizeof(place),
		"%s:6: [node 1] address: \"weft.invalid\" does not", file);
	assert_int_equal(cluster_resolve(c, 1, 0, out, 4, &err), -EHOSTUNREACH);
	assert_non_null(strstr(err.text, place));
	err.code = 0;
	assert_int_equal(cluster_self(c, 0, "-o node=N", &err), -ENOENT);
	assert_non_null(strstr(err.text, "\"weft.invalid\" does not resolve"));
	cluster_close(c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_key_is_read_and_a_volumes_key_made_from_it),
		cmocka_unit_test(without_the_key_there_is_no_volumes_key),
		cmocka_unit_test(another_key_is_not_taken_while_the_volume_is_in_use),
		cmocka_unit_test(a_key_that_others_may_touch_is_refused),
		cmocka_unit_test(a_key_of_another_user_is_refused),
		cmocka_unit_test(a_cluster_file_that_others_may_write_is_refused),
		cmocka_unit_test(the_key_is_in_no_swap_core_or_child),
		cmocka_unit_test(what_is_no_key_is_refused),
		cmocka_unit_test(a_file_that_is_not_there_or_too_large_is_told),
		cmocka_unit_test(a_cluster_file_is_known_by_its_first_line),
		cmocka_unit_test(a_node_finds_itself_by_its_addresses),
		cmocka_unit_test(nobody_and_several_are_told_apart),
		cmocka_unit_test(a_machine_is_found_among_those_of_its_node),
		cmocka_unit_test(numeric_addresses_resolve_with_their_ports),
		cmocka_unit_test(a_name_that_does_not_resolve_is_told_with_its_line),
	};

	return cmocka_run_group_tests(tests, group_setup, group_teardown);
}
