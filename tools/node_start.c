/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft node start: runs a node on this machine, without a mount, until a signal ends it.
 *
 * The cluster file names the machines that may run the node. A start finds this machine's among
 * them, and asks at the addresses of the others whether the node runs there. Then weftd takes the
 * node's store, which its lock protects on this machine. Two machines that reach one device have no
 * such lock in common (docs/operations.md, "A node that starts elsewhere").
 */
#include <errno.h>
#include <getopt.h>
#include <glob.h>
#include <limits.h>
#include <netdb.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/rt/rt.h"
#include "fs/daemonize.h"
#include "fs/source.h"
#include "tools/net.h"
#include "tools/tools.h"

#define CONFIGURED "/etc/weft/" "*.cluster"

static const char usage[] =
	"Usage: weft node start N [-c FILE] [-o OPTION,...] [-f] [--yes]\n"
	"\n"
	"Starts storage node N on this machine, without a mount.\n"
	"It serves its store to the other nodes until SIGTERM or SIGINT ends it.\n"
	"[node N] or [node N machine M] of the cluster file has an address of this\n"
	"machine. That section names the store and the cache here.\n"
	"\n"
	"The node must not run on any other machine.\n"
	"The command asks at the addresses of its other machines.\n"
	"A machine that does not answer may be cut off, and still use the store.\n"
	"Switch it off, or keep it from the store, before you start the node here.\n"
	"\n"
	"  -c FILE        the cluster file (default: the one in /etc/weft)\n"
	"  -o OPTION,...  as of weftd\n"
	"  -f             stay in the foreground; messages go to standard error\n"
	"  -y, --yes      do not ask the other machines: the node has been ended there\n"
	"\n"
	"Example:\n"
	"  weft node start 1 -c /etc/weft/scratch.cluster\n"
	"\n"
	"Exit codes: 0 it serves, 1 wrong usage, 2 not started, 32 weftd failed.\n";

/* ---- which file ------------------------------------------------------------------------ */

/* Returns the file's path, or NULL with a text. The caller frees it. */
static char *file_find(const char *said, struct weft_error *err)
{
	glob_t found = {0};
	char *path = NULL;

	if (!said && glob(CONFIGURED, 0, NULL, &found) == 0 && found.gl_pathc == 1)
		said = found.gl_pathv[0];
	if (!said)
		weft_error(err, -ENOENT, "%s: say which cluster file is meant, with -c FILE",
			found.gl_pathc ? "several files match " CONFIGURED
				       : "no file matches " CONFIGURED);
	else if (!(path = realpath(said, NULL)))
		weft_error(err, -errno, "%s: %s", said, strerror(errno));
	globfree(&found);
	return path;
}

/* ---- does it run already? --------------------------------------------------------------- */

struct running {
	const char *volume_uuid;
	unsigned node;
	char how[PATH_MAX + 64]; /* empty: it does not run here */
};

static bool running_visit(void *arg, struct client *c)
{
	struct running *r = arg;
	struct weft_error unused = {0};
	const char *mount = client_text(c->identity, "mount_point");
	long long pid = json_integer_value(json_object_get(c->identity, "pid"));
	json_t *status;

	if (strcmp(client_text(c->identity, "volume_uuid"), r->volume_uuid) != 0)
		return false;
	status = client_ask(c->fd, "status", &unused);
	if (json_integer_value(json_object_get(status, "node")) != r->node)
		*r->how = '\0';
	else if (strcmp(mount, "-") != 0)
		snprintf(r->how, sizeof(r->how), "process %lld, mounted on %s", pid, mount);
	else if (json_is_true(json_object_get(c->identity, "stays")))
		snprintf(r->how, sizeof(r->how), "process %lld, without a mount", pid);
	/* any other gives way (fs/takeover.h) */
	json_decref(status);
	return *r->how;
}

static int check_here(const struct source *s, struct weft_error *err)
{
	char uuid[UUID_TEXT];
	struct running r = {.volume_uuid = uuid, .node = s->node};

	uuid_print(cluster_volume_uuid(s->cluster), uuid);
	client_each(running_visit, &r);
	if (!*r.how)
		return 0;
	return weft_error(err, -EBUSY, "node %u runs on this machine already: %s", s->node,
		r.how);
}

/* Looks whether the node listens at one address of another machine. */
static int check_address(const struct source *s, unsigned machine,
	const struct sockaddr_storage *at, struct weft_error *err)
{
	char host[64] = "?", port[8] = "?", text[80];
	struct weft_error unused = {0};
	int rc;

	getnameinfo((const struct sockaddr *)at, sizeof(*at), host, sizeof(host), port,
		sizeof(port), NI_NUMERICHOST | NI_NUMERICSERV);
	snprintf(text, sizeof(text), strchr(host, ':') ? "[%s]:%s" : "%s:%s", host, port);
	if (net_try_connect(at, NET_START_CONNECT_MS) != 0)
		return 0;
	rc = net_greet(s->cluster, s->node, text, &unused);
	if (rc == -ENOENT) /* it knows the volume, and is this node */
		return weft_error(err, -EADDRINUSE,
			"node %u runs on its machine %u already: its weftd answers at %s; end "
			"it there first",
			s->node, machine, text);
	if (rc == -ETIMEDOUT)
		return weft_error(err, -EADDRINUSE,
			"a program listens at %s, an address of machine %u of node %u, and does "
			"not answer: its weftd may hang or be stopped; end it there first, "
			"or, if it is not that, say --yes",
			text, machine, s->node);
	return 0;
}

static int check_elsewhere(const struct source *s, struct weft_error *err)
{
	const struct cluster_member *m = cluster_member(s->cluster, s->node);
	struct sockaddr_storage address[4 * CLUSTER_ADDRESSES_MAX];
	int rc = 0;

	for (unsigned i = 1; i <= CLUSTER_MACHINES_MAX; i++) {
		struct weft_error unused = {0};
		int count;

		if (i == MAX(s->machine, 1u) || !cluster_has_machine(m, i))
			continue;
		count = cluster_resolve(
			s->cluster, s->node, i, address, ARRAY_SIZE(address), &unused);
		for (int k = 0; rc == 0 && k < count; k++)
			rc = check_address(s, i, &address[k], err);
	}
	return rc;
}

/* ---- the command ------------------------------------------------------------------------- */

static int check_start(const char *file, unsigned node, bool yes, struct weft_error *err)
{
	struct mount_options o;
	struct source s = {0};
	int rc;

	mount_options_default(&o);
	o.node = node;
	o.store = strdup(file);
	if (!o.store)
		return weft_error(err, -ENOMEM, "no memory");
	rc = cluster_file_is(file) ? source_open(&s, &o, err)
				   : weft_error(err, -EINVAL, "%s is no cluster file", file);
	if (rc == 0 && source_is_client(&s))
		rc = weft_error(err, -EINVAL,
			"node %u is a client, which has no store to serve: mount it", node);
	if (rc == 0 && !source_shared(&s))
		rc = weft_error(err, -EINVAL, "%s names no other node to serve", file);
	if (rc == 0)
		rc = check_here(&s, err);
	if (rc == 0 && !yes)
		rc = check_elsewhere(&s, err);
	if (s.cluster)
		source_close(&s);
	mount_options_free(&o);
	return rc;
}

int node_start_here(int argc, char **argv)
{
	static const struct option words[] = {{"yes", no_argument, NULL, 'y'},
		{"help", no_argument, NULL, 'h'}, {0}};
	char node_option[24], serve[] = "--serve", option[] = "-o", foreground[] = "-f";
	char *args[10] = {NULL, serve, option, node_option}, *file = NULL;
	struct weft_error err = {0};
	const char *said = NULL;
	char *options = NULL;
	unsigned node, count = 4;
	bool yes = false, stays = false;
	int c;

	while ((c = getopt_long(argc, argv, "c:o:fyh", words, NULL)) != -1) {
		if (c == 'c')
			said = optarg;
		else if (c == 'o')
			options = optarg;
		else if (c == 'f')
			stays = true;
		else if (c == 'y')
			yes = true;
		else
			return weft_option(usage, c, argv, words);
	}
	if (weft_operands(usage, argc, argv, 1, 1, "N"))
		return EXIT_USAGE;
	if (node_number(argv[optind], &node) < 0)
		return weft_wrong(argv[0], "\"%s\" is no node: must be 1 to %u", argv[optind],
			CLUSTER_NODE_MAX);
	if (rt_real_start() < 0)
		weft_error(&err, -ENOMEM, "cannot start the runtime");
	else if ((file = file_find(said, &err)))
		check_start(file, node, yes, &err);
	if (err.code) {
		fprintf(stderr, "weft node start: %s\n", err.text);
		free(file);
		return EXIT_FAILED;
	}
	if (options) {
		args[count++] = option;
		args[count++] = options;
	}
	if (stays)
		args[count++] = foreground;
	snprintf(node_option, sizeof(node_option), "node=%u", node);
	args[count] = file;
	exec_weftd(args);
}
