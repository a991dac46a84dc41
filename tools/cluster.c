/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft cluster: cluster files for people. `new` is in cluster_new.c, `add` in cluster_add.c,
 * `reload` in cluster_reload.c.
 *
 * Nothing that is there is changed: show and check only look.
 */
#include <errno.h>
#include <getopt.h>
#include <netdb.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/socket.h>

#include "engine/rt/rt.h"
#include "fs/daemonize.h"
#include "fs/source.h"
#include "tools/tools.h"

const char cluster_usage[] =
	"Usage: weft cluster new [-d|--directory FOLDER] NAME HOST[:PORT]:STORE...\n"
	"                        [--client HOST[:PORT]]...\n"
	"       weft cluster show FILE [--json]\n"
	"       weft cluster check FILE [--node N]\n"
	"       weft cluster add FILE --client HOST[:PORT] [--host N]\n"
	"       weft cluster reload [DIR|FILE]...\n"
	"\n"
	"Cluster files say which nodes serve a volume; they are the same on every node.\n"
	"\n"
	"  new     writes FOLDER/NAME.cluster, and a fresh key into FOLDER/NAME.key\n"
	"  show    prints what FILE says\n"
	"  check   reads FILE and the key, looks up all addresses, and looks at the store "
	"of\n"
	"          this node, or of node N\n"
	"  add     writes a section for a new client to FILE, whose log will be in the "
	"store\n"
	"          of node N (the storage node with the lowest id)\n"
	"  reload  has running daemons read their cluster files again, and take in nodes "
	"that\n"
	"          were added: those of DIR or FILE, or all of this machine and user\n"
	"\n"
	"Examples:\n"
	"  weft cluster new scratch alpha:/dev/nvme0n1p4 beta:/dev/nvme0n1p4\n"
	"  weft cluster check /etc/weft/scratch.cluster\n"
	"  weft cluster add /etc/weft/scratch.cluster --client gamma\n"
	"\n"
	"Exit codes: 0, 1 wrong usage, 2 it failed, or something is wrong.\n";

/* ---- show -------------------------------------------------------------------------- */

static void print_addresses(const struct cluster_member *m, unsigned machine)
{
	char text[CLUSTER_VALUE_BYTES + 16], cache[SIZE_TEXT];
	uint64_t bytes = cluster_cache_at(m, machine);
	const char *between = "";

	for (unsigned i = 0; i < m->address_count; i++) {
		if (m->address[i].machine != machine)
			continue;
		cluster_address_print(&m->address[i], text, sizeof(text));
		printf("%s%s", between, text);
		between = " ";
	}
	if (bytes) {
		size_print(bytes, cache);
		printf(", cache %s", cache);
	}
	putchar('\n');
}

static void print_cluster(const struct cluster *c)
{
	const struct cluster_member *m = NULL;
	char uuid[UUID_TEXT];

	uuid_print(cluster_volume_uuid(c), uuid);
	printf("volume   %s, %s\n", cluster_name(c), uuid);
	printf("file     %s\n", cluster_path(c));
	printf("key      %s\n", cluster_key_path(c));
	printf("tls      %s\n", cluster_tls(c) ? "yes" : "no");
	printf("network  %s\n", cluster_transport(c));
	while ((m = cluster_next(c, m))) {
		printf("node %-3u ", m->id);
		if (m->role == CLUSTER_STORAGE)
			printf("storage, shard %u, %s, ", m->shard, m->store);
		else
			printf("client, its log at node %u, ", m->host);
		print_addresses(m, 1);
		for (unsigned i = 2; i <= CLUSTER_MACHINES_MAX; i++) {
			if (!cluster_has_machine(m, i))
				continue;
			printf("  machine %u   %s, ", i, cluster_store_at(m, i));
			print_addresses(m, i);
		}
	}
}

static int show_file(const char *path, bool json)
{
	struct weft_error err = {0};
	struct cluster *c;
	json_t *o;

	if (cluster_open(&c, path, CLUSTER_WITHOUT_KEY, &err)) {
		fprintf(stderr, "weft cluster show: %s\n", err.text);
		return EXIT_FAILED;
	}
	if (json) {
		o = cluster_describe(c);
		json_dumpf(o, stdout, JSON_INDENT(2));
		putchar('\n');
		json_decref(o);
	} else {
		print_cluster(c);
	}
	cluster_close(c);
	return 0;
}

/* ---- check ------------------------------------------------------------------------- */

struct check {
	struct cluster *c;
	unsigned failures;
};

/* One line of the report. */
static void report_line(struct check *k, const char *word, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

static void report_line(struct check *k, const char *word, const char *fmt, ...)
{
	va_list args;

	printf("%-6s", word);
	va_start(args, fmt);
	vprintf(fmt, args);
	va_end(args);
	putchar('\n');
	if (strcmp(word, "WRONG") == 0)
		k->failures++;
}

static void check_file(struct check *k, const char *path)
{
	struct weft_error err = {0};

	if (cluster_open(&k->c, path, CLUSTER_WITHOUT_KEY, &err))
		report_line(k, "WRONG", "%s", err.text);
	else
		report_line(k, "ok", "%s: volume %s, nodes: %u, with a store: %u", path,
			cluster_name(k->c), cluster_nodes(k->c),
			cluster_storage_nodes(k->c));
}

/* Opens it once more, now with the key. */
static void check_key(struct check *k)
{
	struct weft_error err = {0};
	struct cluster *with_key;

	if (cluster_open(&with_key, cluster_path(k->c), 0, &err)) {
		report_line(k, "WRONG", "%s", err.text);
		return;
	}
	report_line(k, "ok", "key %s", cluster_key_path(k->c));
	cluster_close(k->c);
	k->c = with_key;
}

static void check_addresses(struct check *k, const struct cluster_member *m)
{
	struct sockaddr_storage address[4 * CLUSTER_ADDRESSES_MAX];
	struct weft_error err = {0};
	char list[600] = "", host[64], port[8];
	int count = cluster_resolve(k->c, m->id, 0, address, ARRAY_SIZE(address), &err);

	if (err.code)
		report_line(k, "WRONG", "%s", err.text);
	if (count < 0)
		return;
	for (int i = 0; i < count; i++) {
		size_t used = strlen(list);

		if (getnameinfo((const struct sockaddr *)&address[i], sizeof(address[i]),
			    host, sizeof(host), port, sizeof(port),
			    NI_NUMERICHOST | NI_NUMERICSERV) == 0)
			snprintf(list + used, sizeof(list) - used, " %s port %s%s", host,
				port, i + 1 < count ? "," : "");
	}
	report_line(k, "ok", "node %u is at%s%s", m->id, list,
		count > 1 ? ": tried in this order" : "");
}

/* Those where this node could not listen: no interface has them. */
static void check_own_addresses(
	struct check *k, const struct cluster_member *m, unsigned machine)
{
	struct sockaddr_storage address[4 * CLUSTER_ADDRESSES_MAX];
	struct weft_error err = {0};
	int count = cluster_resolve(
		k->c, m->id, machine, address, ARRAY_SIZE(address), &err);
	char host[64] = "?";

	for (int i = 0; i < count; i++) {
		struct sockaddr *at = (struct sockaddr *)&address[i];

		if (cluster_address_here(at))
			continue;
		getnameinfo(at, sizeof(address[i]), host, sizeof(host), NULL, 0,
			NI_NUMERICHOST);
		report_line(k, "note",
			"%s is none of this machine's addresses: node %u is not reached "
			"there",
			host, m->id);
	}
}

static void check_store(
	struct check *k, const struct cluster_member *m, const char *path)
{
	uint8_t key[CLUSTER_KEY_BYTES];
	const struct store_options options = {
		.read_only = true,
		.volume_uuid = cluster_volume_uuid(k->c),
		.node = (uint16_t)m->id,
		.shard = m->shard,
		.key = cluster_volume_key(k->c, key) == 0 ? key : NULL,
		.file = cluster_path(k->c),
		.nodes = cluster_node_bits(k->c),
	};
	struct weft_error err = {0};
	struct rt_disk *disk;
	struct store *s;
	int rc = rt_disk_open(&disk, path, RT_DISK_READ_ONLY, &err);

	if (rc) {
		report_line(k, "WRONG", "store of node %u: %s", m->id, err.text);
		return;
	}
	rc = store_open(&s, disk, &options, &err);
	if (rc) {
		report_line(k, "WRONG", "%s: %s", path, err.text);
	} else {
		report_line(k, "ok",
			"%s is the store of node %u, with shard %u; its last start is "
			"%llu",
			path, m->id, m->shard,
			(unsigned long long)store_superblock(s)->incarnation);
		store_close(s);
	}
	rt_disk_close(disk);
	explicit_bzero(key, sizeof(key));
}

/* Of nodes whose sections name several machines: those that may run here, too. Their stores may be
 * away now. */
static void check_guests(struct check *k, unsigned self)
{
	const struct cluster_member *m = NULL;
	struct weft_error unused = {0};

	while ((m = cluster_next(k->c, m))) {
		int machine = m->id == self ? 0 : cluster_machine_here(k->c, m->id, &unused);

		if (machine > 1)
			report_line(k, "ok",
				"this machine is machine %d of node %u: weft node start %u "
				"can start it here",
				machine, m->id, m->id);
	}
}

static void check_self(struct check *k, unsigned said)
{
	const struct cluster_member *m;
	struct weft_error err = {0};
	int machine, node = cluster_self(k->c, said, "--node N", &err);

	if (node < 0) {
		/* the file may be looked at on any machine */
		report_line(k, said ? "WRONG" : "note", "%s", err.text);
		check_guests(k, 0);
		return;
	}
	m = cluster_member(k->c, (unsigned)node);
	if (!said)
		report_line(k, "ok", "this machine is node %d", node);
	machine = cluster_machine_here(k->c, m->id, &err);
	if (machine < 0) {
		report_line(k, "WRONG", "%s", err.text);
		return;
	}
	if (cluster_machines(m) > 1)
		report_line(k, "ok", "this machine is machine %d of node %d", machine, node);
	check_own_addresses(k, m, (unsigned)machine);
	if (m->role == CLUSTER_STORAGE)
		check_store(k, m, cluster_store_at(m, (unsigned)machine));
	check_guests(k, m->id);
}

static int check_cluster(const char *path, unsigned node)
{
	const struct cluster_member *m = NULL;
	struct check k = {0};

	check_file(&k, path);
	if (!k.c)
		return EXIT_FAILED;
	check_key(&k);
	while ((m = cluster_next(k.c, m)))
		check_addresses(&k, m);
	check_self(&k, node);
	cluster_close(k.c);
	return k.failures ? EXIT_FAILED : 0;
}

/* ---- the command ------------------------------------------------------------------- */

/* 0, or 1 + the exit code. */
static int cluster_parse_options(int argc, char **argv, bool *json, unsigned *node)
{
	static const struct option words[] = {{"json", no_argument, NULL, 'j'},
		{"node", required_argument, NULL, 'n'}, {"help", no_argument, NULL, 'h'},
		{0}};
	uint64_t number;
	int c;

	while ((c = getopt_long(argc, argv, "jn:h", words, NULL)) != -1) {
		if (c == 'j') {
			*json = true;
		} else if (c == 'n' && number_parse(optarg, &number) == 0 &&
			   number >= 1 && number <= CLUSTER_NODE_MAX) {
			*node = (unsigned)number;
		} else {
			return 1 +
			       (c == 'n' ? weft_wrong(argv[0],
						   "--node %s: must be 1 to %u", optarg,
						   CLUSTER_NODE_MAX)
					 : weft_option(cluster_usage, c, argv, words));
		}
	}
	return weft_operands(cluster_usage, argc, argv, 1, 1, "FILE") ? 1 + EXIT_USAGE
								      : 0;
}

static int show_or_check(int argc, char **argv, bool shows)
{
	unsigned node = 0;
	bool json = false;
	int rc = cluster_parse_options(argc, argv, &json, &node);

	if (rc)
		return rc - 1;
	return shows ? show_file(argv[optind], json) : check_cluster(argv[optind], node);
}

int weft_cluster(int argc, char **argv)
{
	static const char *const known[] = {
		"new", "show", "check", "add", "reload", NULL};
	static char self[32]; /* what getopt(3) begins its messages with */
	const char *what = argc > 1 ? argv[1] : "";
	int rc;

	if (!*what || strcmp(what, "--help") == 0 || strcmp(what, "-h") == 0)
		return weft_usage(cluster_usage, *what);
	rc = rt_real_start();
	if (rc) {
		fprintf(stderr, "weft cluster: cannot start: %s\n", strerror(-rc));
		return EXIT_FAILED;
	}
	argc--;
	argv++;
	snprintf(self, sizeof(self), "weft cluster %s", what);
	argv[0] = self;
	if (strcmp(what, "new") == 0)
		return cluster_new(argc, argv);
	if (strcmp(what, "add") == 0)
		return cluster_add_node(argc, argv);
	if (strcmp(what, "reload") == 0)
		return cluster_reload(argc, argv);
	if (strcmp(what, "show") == 0 || strcmp(what, "check") == 0)
		return show_or_check(argc, argv, *what == 's');
	return weft_wrong_word("weft cluster", "command", what, known);
}
