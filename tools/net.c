/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft net check: checks that this machine can be a node, and that it reaches the others. Names,
 * addresses, ports, limits of memory. With RDMA also the device, port and GID that the transport
 * would use, and their abilities. Changes nothing.
 */
#include <errno.h>
#include <getopt.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/rt/rt.h"
#include "fs/daemonize.h"
#include "fs/options.h"
#include "tools/net.h"
#include "tools/tools.h"

static const char usage[] =
	"Usage: weft net check [OPTION...] [HOST[:PORT]]\n"
	"       weft net check [OPTION...] FILE [-o node=N,cache=SIZE]\n"
	"\n"
	"Tells whether this machine can be a node of a cluster and reaches HOST, or all "
	"nodes of\n"
	"the cluster file FILE, over tcp and RDMA, and what to do where it cannot. "
	"Without HOST\n"
	"looks at this machine alone. Changes nothing.\n"
	"\n"
	"  -t, --transport tcp|verbs   what the cluster is to use (FILE's; else both are "
	"looked\n"
	"                              at, and RDMA may be missing)\n"
	"  -o, --options node=N,cache=SIZE\n"
	"                              as for the mount: which node this is, its cache\n"
	"  -s, --strict                a warning is a failure, too\n"
	"  -j, --json                  print it as JSON\n"
	"  -h, --help                  this text\n"
	"\n"
	"Each line begins with ok, note, warn (works, but not as well as it could, or "
	"not "
	"yet) or\n"
	"fail. docs/operations.md, \"RDMA\", explains the names.\n"
	"\n"
	"Examples:\n"
	"  weft net check                     this machine, and its RDMA devices\n"
	"  weft net check beta -t verbs\n"
	"  weft net check /etc/weft/scratch.cluster -o cache=64G\n"
	"\n"
	"Exit codes: 0, 1 wrong usage, 2 something fails.\n";

/* ---- the report ---------------------------------------------------------------------- */

void net_about(struct net_check *k, const char *about)
{
	k->about = about;
	if (!k->json)
		printf("%s\n", about);
}

void net_say(struct net_check *k, enum net_result result, const char *name,
	const char *remedy, const char *fmt, ...)
{
	static const char *const words[] = {"ok", "note", "warn", "fail"};
	char text[600];
	va_list args;

	k->warnings += result == NET_IS_WARN;
	k->failures += result == NET_IS_FAIL;
	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	if (k->json) {
		json_array_append_new(
			k->list, json_pack("{s:s, s:s, s:s, s:s, s:s?}", "about",
					 k->about, "name", name, "result", words[result],
					 "text", text, "remedy", remedy));
		return;
	}
	printf("  %-4s  %-14s %s\n", words[result], name, text);
	if (remedy)
		printf("  %-4s  %-14s -> %s\n", "", "", remedy);
	fflush(stdout); /* the next check may take its time */
}

enum net_result net_rdma_problem(const struct net_check *k)
{
	if (k->transport)
		return NET_IS_FAIL;
	return k->devices ? NET_IS_WARN : NET_IS_NOTE;
}

static int finish_checks(struct net_check *k, bool strict)
{
	json_t *o;

	if (k->json) {
		o = json_pack("{s:o, s:i, s:i}", "checks", k->list, "failures",
			(int)k->failures, "warnings", (int)k->warnings);
		json_dumpf(o, stdout, JSON_INDENT(2));
		putchar('\n');
		json_decref(o);
	} else {
		printf("%u failed, %u warning%s\n", k->failures, k->warnings,
			k->warnings == 1 ? "" : "s");
	}
	return k->failures || (strict && k->warnings) ? EXIT_FAILED : 0;
}

/* ---- checks -------------------------------------------------------------------------- */

static bool wants_rdma(const struct net_check *k)
{
	return !k->transport || strcmp(k->transport, "verbs") == 0;
}

/* `self`: the target is an address of this machine. */
static void check_target(struct net_check *k, const struct net_target *target, bool self)
{
	struct net_target t[NET_TARGETS_MAX] = {*target};
	unsigned count = net_check_name(k, t);

	for (unsigned i = 0; i < count; i++) {
		(self ? net_check_own : net_check_tcp)(k, &t[i]);
		if (wants_rdma(k) && k->devices)
			(self ? net_check_rdma_own : net_check_rdma)(k, &t[i]);
	}
}

/* Checks one of a node's addresses. Nodes try them in their order. */
static void check_address(
	struct net_check *k, const struct cluster_member *m, unsigned i, bool self)
{
	char about[CLUSTER_VALUE_BYTES + 96], at[CLUSTER_VALUE_BYTES + 16], nth[40] = "";
	struct net_target t = {.port = m->address[i].port, .node = m->id};

	snprintf(t.host, sizeof(t.host), "%s", m->address[i].host);
	cluster_address_print(&m->address[i], at, sizeof(at));
	if (m->address_count > 1)
		snprintf(nth, sizeof(nth), ", address %u of %u", i + 1, m->address_count);
	snprintf(about, sizeof(about), "node %u, %s%s%s", m->id, at, nth,
		self ? ", which this is" : "");
	net_about(k, about);
	check_target(k, &t, self);
}

static void check_nodes(struct net_check *k, unsigned self)
{
	const struct cluster_member *m = NULL;

	while ((m = cluster_next(k->cluster, m)))
		for (unsigned i = 0; i < m->address_count; i++)
			check_address(k, m, i, m->id == self);
}

/* A user without access to the key can check the rest. */
static void check_key(struct net_check *k)
{
	struct weft_error err = {0};
	struct cluster *with_key;

	if (cluster_open(&with_key, cluster_path(k->cluster), 0, &err)) {
		net_say(k, NET_IS_FAIL, "key",
			"without it no other node talks to this one", "%s", err.text);
		return;
	}
	net_say(k, NET_IS_OK, "key", NULL, "%s", cluster_key_path(k->cluster));
	cluster_close(k->cluster);
	k->cluster = with_key;
}

/* This node may be unknown if it is not named: the file may be checked on another machine. */
static int check_file(struct net_check *k, const char *path, unsigned node)
{
	struct weft_error err = {0};
	int self = -1;

	if (!cluster_open(&k->cluster, path, CLUSTER_WITHOUT_KEY, &err))
		self = cluster_self(k->cluster, node, "-o node=N", &err);
	if (self < 0 && (node || !k->cluster)) {
		fprintf(stderr, "weft net check: %s\n", err.text);
		return EXIT_FAILED;
	}
	if (!k->transport)
		k->transport = cluster_transport(k->cluster);
	net_about(k, "this machine");
	check_key(k);
	if (self < 0)
		net_say(k, NET_IS_NOTE, "node", NULL, "%s", err.text);
	net_check_memory(k);
	if (wants_rdma(k))
		net_check_devices(k, false);
	check_nodes(k, self < 0 ? 0 : (unsigned)self);
	return 0;
}

/* HOST, HOST:PORT, [IPV6]:PORT, IPV6. */
static bool parse_host(const char *text, struct net_target *t)
{
	const char *colon = strrchr(text, ':'), *port = NULL;
	size_t length = strlen(text);
	uint64_t number = CLUSTER_PORT_DEFAULT;

	if (*text == '[') {
		const char *end = strchr(text, ']');

		if (!end || (end[1] && end[1] != ':'))
			return false;
		port = end[1] ? end + 2 : NULL;
		text++;
		length = (size_t)(end - text);
	} else if (colon && colon == strchr(text, ':')) {
		port = colon + 1;
		length = (size_t)(colon - text);
	}
	if (port && (number_parse(port, &number) || !number || number > UINT16_MAX))
		return false;
	if (!length || length >= sizeof(t->host) || text[0] == '-')
		return false;
	memcpy(t->host, text, length);
	t->host[length] = '\0';
	t->port = (uint16_t)number;
	return true;
}

static int check_host(struct net_check *k, const char *text)
{
	struct net_target t = {0};

	if (!parse_host(text, &t)) {
		fprintf(stderr,
			"weft net check: \"%s\" is no host: write HOST, HOST:PORT or "
			"[IPV6]:PORT, or the path of a cluster file\n",
			text);
		return EXIT_USAGE;
	}
	net_about(k, "this machine");
	net_check_memory(k);
	if (wants_rdma(k))
		net_check_devices(k, false);
	net_about(k, text);
	check_target(k, &t, false);
	return 0;
}

static int check_here(struct net_check *k)
{
	net_about(k, "this machine");
	net_check_memory(k);
	if (wants_rdma(k))
		net_check_devices(k, true);
	return 0;
}

/* ---- the command --------------------------------------------------------------------- */

/* Returns 0, or 1 + the exit code. */
static int net_parse_options(
	int argc, char **argv, struct net_check *k, struct mount_options *o, bool *strict)
{
	static const struct option words[] = {{"json", no_argument, NULL, 'j'},
		{"transport", required_argument, NULL, 't'},
		{"options", required_argument, NULL, 'o'},
		{"strict", no_argument, NULL, 's'}, {"help", no_argument, NULL, 'h'},
		{0}};
	struct weft_error err = {0};
	int c;

	while ((c = getopt_long(argc, argv, "jt:o:sh", words, NULL)) != -1) {
		if (c == 'j') {
			k->json = true;
		} else if (c == 's') {
			*strict = true;
		} else if (c == 't' &&
			   (strcmp(optarg, "tcp") == 0 || strcmp(optarg, "verbs") == 0)) {
			k->transport = optarg;
		} else if (c == 'o') {
			if (mount_options_parse(o, optarg, &err)) {
				fprintf(stderr, "weft net check: %s\n", err.text);
				return 1 + EXIT_USAGE;
			}
		} else {
			return 1 +
			       (c == 't' ? weft_wrong(argv[0],
						   "--transport %s: must be tcp or verbs",
						   optarg)
					 : weft_option(usage, c, argv, words));
		}
	}
	return weft_operands(usage, argc, argv, 0, 1, "FILE|HOST") ? 1 + EXIT_USAGE : 0;
}

/* Drops the transports' log: the report has it. */
static void no_log(int level, const char *line)
{
}

static int check_network(int argc, char **argv)
{
	struct net_check k = {0};
	struct mount_options o;
	bool strict = false;
	const char *what;
	int rc;

	mount_options_default(&o);
	rc = net_parse_options(argc, argv, &k, &o, &strict);
	if (rc)
		return rc - 1;
	k.cache_bytes = o.cache_bytes;
	k.list = k.json ? json_array() : NULL;
	what = argv[optind];
	weft_log_sink = no_log;
	if (!what)
		rc = check_here(&k);
	else if (cluster_file_is(what) || strchr(what, '/'))
		rc = check_file(&k, what, o.node);
	else
		rc = check_host(&k, what);
	if (!rc)
		rc = finish_checks(&k, strict);
	else
		json_decref(k.list);
	cluster_close(k.cluster);
	mount_options_free(&o);
	return rc;
}

int weft_net(int argc, char **argv)
{
	static const char *const known[] = {"check", NULL};
	static char self[] = "weft net check"; /* for messages of getopt(3) */
	const char *what = argc > 1 ? argv[1] : "";
	int rc;

	if (!*what || strcmp(what, "--help") == 0 || strcmp(what, "-h") == 0)
		return weft_usage(usage, *what);
	if (strcmp(what, "check") != 0)
		return weft_wrong_word(argv[0], "command", what, known);
	argv[1] = self;
	rc = rt_real_start();
	if (rc) {
		fprintf(stderr, "weft net: cannot start: %s\n", strerror(-rc));
		return EXIT_FAILED;
	}
	return check_network(argc - 1, argv + 1);
}
