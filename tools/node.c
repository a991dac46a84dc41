/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft node fence: gives back the rights of a node that does not return. (weft node start is in
 * node_start.c.)
 *
 * Opens the node's store as the node itself would, under its next incarnation. All nodes then
 * refuse every earlier start that still runs. Redoes the log, sends its changes of others' pages to
 * their homes, and ends locks and open files. The node then leaves, and all others note that
 * (docs/nodes/lifecycle.md, "Leaving"). Durable changes are kept, and the next start of the node is
 * like any other. Without the store none of this is possible, and nothing is guessed. Others go on
 * waiting for pages that it may have changed. node_dead.c ends their waiting for pages that it only
 * shared.
 */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/node/client_logs.h"
#include "engine/node/node.h"
#include "fs/daemonize.h"
#include "fs/ops/ops.h"
#include "fs/options.h"
#include "fs/source.h"
#include "tools/tools.h"

#define POLL_NS 20000000ull

static const char usage[] =
	"Usage: weft node fence FILE N [--store PATH | --without-store] [--yes]\n"
	"       weft node start ...\n"
	"\n"
	"start: see `weft node start --help`. fence:\n"
	"Ends the waits of other nodes for node N of the cluster file FILE, which has\n"
	"crashed or hangs and is not started again soon. Its log is recovered, as at a\n"
	"start: the others get the changes of their pages, and its locks and open files\n"
	"end. Only requests for data in its own store still wait for it. That store must\n"
	"be reachable here; a client has none, and needs none. Nothing durable is lost.\n"
	"When the node is started again, it takes part as before.\n"
	"\n"
	"Stop the node first: its weftd, or its machine. If it still runs, all others\n"
	"refuse it, and it ends when it learns of that; until then it may write to the\n"
	"store.\n"
	"\n"
	"If the store cannot be reached, use --without-store. Others may then change\n"
	"pages that the node had only read, as they had, and its locks are free. Requests\n"
	"for pages that it may have changed, and for its store, still wait.\n"
	"\n"
	"      --store PATH  where its store is now, if not where FILE says\n"
	"      --without-store\n"
	"                    the store cannot be reached; run this where another node is\n"
	"                    mounted\n"
	"  -y, --yes         do not ask\n"
	"\n"
	"Example:\n"
	"  weft node fence /etc/weft/scratch.cluster 3\n"
	"\n"
	"Exit codes: 0, 1 wrong usage, 2 it failed: others wait for the node as "
	"before.\n";

struct fence {
	struct source source;
	struct mount_options options; /* for source_open */
	struct local_node *node;
	struct volume *volume;
	struct fs *fs;
};

static volatile sig_atomic_t interrupted;

static void on_signal(int number)
{
	interrupted = 1;
}

static enum node_patience signal_patience(void *arg)
{
	return interrupted ? NODE_CUT : NODE_WAITS;
}

/* ---- checks ---------------------------------------------------------------------------- */

struct look {
	const char *volume_uuid;
	unsigned node;
	char who[200]; /* a daemon of this machine that has a link to the node */
};

static bool look_visit(void *arg, struct client *c)
{
	struct look *l = arg;
	struct weft_error err = {0};
	json_t *status, *nodes, *one;
	size_t i;

	if (strcmp(client_text(c->identity, "volume_uuid"), l->volume_uuid) != 0)
		return false;
	status = client_ask(c->fd, "status", &err);
	nodes = json_object_get(json_object_get(status, "cluster"), "nodes");
	json_array_foreach(nodes, i,
		one) if (json_integer_value(json_object_get(one, "id")) == l->node &&
			 json_is_true(json_object_get(one, "up")))
		snprintf(l->who, sizeof(l->who), "the weftd of %s",
			client_text(c->identity, "mount_point"));
	json_decref(status);
	return *l->who;
}

/* Refuses a node with a link to others: it is not dead. */
static int check_away(const struct cluster *c, unsigned node, struct weft_error *err)
{
	char uuid[UUID_TEXT];
	struct look l = {.volume_uuid = uuid, .node = node};

	uuid_print(cluster_volume_uuid(c), uuid);
	client_each(look_visit, &l);
	if (!*l.who)
		return 0;
	return weft_error(err, -EBUSY,
		"node %u is up, as %s says: unmount it there, or stop its weftd or its "
		"machine "
		"(a link is noticed to be dead after 10 s)",
		node, l.who);
}

static int confirm_fence(const struct fence *f, bool yes, struct weft_error *err)
{
	char line[16];

	if (yes)
		return 0;
	if (!isatty(STDIN_FILENO))
		return weft_error(
			err, -EINVAL, "without a terminal to ask at, say --yes");
	printf("Node %u of %s must not run any more: not on any machine that "
	       "reaches\n%s.\n"
	       "Has it been stopped? [yes/no] ",
		f->source.node, f->options.cluster_file, f->options.store);
	fflush(stdout);
	if (fgets(line, sizeof(line), stdin) && strcmp(line, "yes\n") == 0)
		return 0;
	return weft_error(err, -ECANCELED, "nothing was done");
}

/* ---- the fence -------------------------------------------------------------------------- */

static bool waits_for_host(void *arg)
{
	return !interrupted;
}

/* A client has its log at another node. */
static int log_open_remote(
	const struct fence *f, struct rt_disk **out, struct weft_error *err)
{
	struct remote_log_options r = {.cluster = f->source.cluster,
		.node = f->source.node,
		.waits = waits_for_host};
	int rc;

	source_format(&f->source, &r.format);
	rc = remote_log_open(out, &r, err);
	explicit_bzero(r.format.key, sizeof(r.format.key));
	return rc;
}

static int fence_open(struct fence *f, struct weft_error *err)
{
	const struct node_options mo = {
		.cluster = f->source.cluster,
		.node = f->source.node,
		.dials_only = true,
		.patience = signal_patience,
	};
	struct volume_options vo = {
		.background = true,
		.cache = {.cache_bytes = f->options.cache_bytes},
	};
	const struct ops_options oo = {.atime = OPS_NOATIME};
	struct rt_disk *disk;
	int rc = node_open(&f->node, &mo, err);

	if (rc < 0)
		return rc;
	vo.peers = node_volume_peers(f->node);
	source_expect(&f->source, &vo);
	rc = source_is_client(&f->source)
		      ? log_open_remote(f, &disk, err)
		      : rt_disk_open(&disk, f->options.store, RT_DISK_EXCLUSIVE, err);
	if (rc == -EBUSY && !source_is_client(&f->source))
		return weft_error(err, rc,
			"%s is in use: node %u runs on this machine; stop it",
			f->options.store, f->source.node);
	if (rc < 0)
		return rc;
	rc = volume_open(&f->volume, disk, &vo, err);
	if (rc < 0)
		return rc;
	rc = fs_open(&f->fs, f->volume, &oo, err);
	if (rc == 0)
		return 0;
	node_alone(f->node);
	volume_close(f->volume);
	f->volume = NULL;
	return rc;
}

/* Waits until others have made the node's changes durable (fs/ops/sync.c). */
static void await_others(const struct fence *f)
{
	while (atomic_load(&f->volume->returned) && !interrupted &&
		!volume_failed(f->volume))
		rt_sleep_ns(POLL_NS);
}

static int report_fenced(const struct fence *f, struct weft_error *err)
{
	const struct cluster *c = f->source.cluster;
	const struct cluster_member *m = NULL;
	uint64_t told = node_told_left(f->node);
	unsigned waiting = 0;

	if (source_is_client(&f->source)) { /* others examine its log (client.c) */
		printf("Client %u is fenced: its log was recovered, and no node waits "
		       "for it.\n",
			f->source.node);
		return 0;
	}
	while ((m = cluster_next(c, m))) {
		if (m->id == f->source.node || m->role != CLUSTER_STORAGE ||
			told >> m->id & 1)
			continue;
		waiting++;
		fprintf(stderr, "weft node fence: node %u goes on waiting for node %u\n",
			m->id, f->source.node);
	}
	if (waiting)
		return weft_error(err, -EAGAIN,
			"not all other nodes were reached; run the command again");
	printf("Node %u is fenced: its log was recovered. Only requests for data in "
	       "its store wait for it:\n"
	       "%s. Start the node to serve that store again.\n",
		f->source.node, f->options.store);
	return 0;
}

static int fence_run(struct fence *f, struct weft_error *err)
{
	int rc = rt_real_start();

	if (rc < 0)
		return weft_error(
			err, rc, "cannot start the runtime: %s", strerror(-rc));
	rc = fence_open(f, err);
	if (rc < 0)
		return rc;
	await_others(f);
	node_alone(f->node);
	fs_close(f->fs);
	rc = volume_close(f->volume);
	if (interrupted)
		return weft_error(err, -EINTR, "interrupted");
	if (rc < 0)
		return weft_error(err, rc, "%s could not be closed cleanly: %s",
			f->options.store, strerror(-rc));
	return report_fenced(f, err);
}

/* ---- the command line ---------------------------------------------------------------------- */

int node_number(const char *text, unsigned *out)
{
	char *end;
	unsigned long n = strtoul(text, &end, 10);

	if (*text < '0' || *text > '9' || *end || n < 1 || n > CLUSTER_NODE_MAX)
		return -EINVAL;
	*out = (unsigned)n;
	return 0;
}

static int fence_node(const char *file, unsigned node, const char *store, bool yes,
	struct weft_error *err)
{
	struct sigaction sa = {.sa_handler = on_signal};
	struct fence f = {0};
	int rc;

	mount_options_default(&f.options);
	f.options.node = node;
	f.options.store = realpath(file, NULL);
	if (!f.options.store)
		return weft_error(err, -errno, "%s: %s", file, strerror(errno));
	sigaction(SIGINT, &sa, NULL);
	sigaction(SIGTERM, &sa, NULL);
	rc = source_open_at(&f.source, &f.options, store, err);
	if (rc == 0 && !source_shared(&f.source))
		rc = weft_error(err, -EINVAL, "%s names no other node", file);
	if (rc == 0)
		rc = check_away(f.source.cluster, node, err);
	if (rc == 0)
		rc = confirm_fence(&f, yes, err);
	if (rc == 0)
		rc = fence_run(&f, err);
	node_close(f.node);
	source_close(&f.source);
	mount_options_free(&f.options);
	return rc;
}

int weft_node(int argc, char **argv)
{
	static const struct option words[] = {{"store", required_argument, NULL, 's'},
		{"without-store", no_argument, NULL, 'w'},
		{"yes", no_argument, NULL, 'y'}, {"help", no_argument, NULL, 'h'}, {0}};
	static const char *const known[] = {"fence", "start", NULL};
	static char self[] = "weft node start"; /* what getopt(3) begins its messages with */
	struct weft_error err = {0};
	const char *store = NULL;
	bool yes = false, without = false;
	unsigned node;
	int c, ret;

	if (argc > 1 && strcmp(argv[1], "start") == 0) {
		argv[1] = self;
		return node_start_here(argc - 1, argv + 1);
	}
	while ((c = getopt_long(argc, argv, "yh", words, NULL)) != -1) {
		if (c == 's')
			store = optarg;
		else if (c == 'w')
			without = true;
		else if (c == 'y')
			yes = true;
		else
			return weft_option(usage, c, argv, words);
	}
	if (optind < argc && strcmp(argv[optind], "fence") != 0)
		return weft_wrong_word(argv[0], "command", argv[optind], known);
	if (weft_operands(usage, argc, argv, 3, 3, "fence FILE N"))
		return EXIT_USAGE;
	if (node_number(argv[optind + 2], &node) < 0)
		return weft_wrong(argv[0], "\"%s\" is no node: must be 1 to %u",
			argv[optind + 2], CLUSTER_NODE_MAX);
	if (store && without)
		return weft_wrong(
			argv[0], "--store and --without-store do not go together");
	ret = without ? node_dead(argv[optind + 1], node, yes, &err)
		      : fence_node(argv[optind + 1], node, store, yes, &err);
	if (ret == 0)
		return 0;
	fprintf(stderr, "weft node fence: %s\n", err.text);
	return EXIT_FAILED;
}
