/* SPDX-License-Identifier: Apache-2.0 */
/* weft status: the mounts and their state, as a table, JSON or Prometheus text. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/metrics.h"
#include "fs/daemonize.h"
#include "tools/table.h"
#include "tools/tools.h"
#include "tools/watch.h"

static const char usage[] =
	"Usage: weft status [DIR|STORE|FILE|LABEL|UUID] [--json | --prometheus | --watch]\n"
	"\n"
	"Without a name, lists the mounted volumes. With one, shows its space, cache, log and\n"
	"device, latency percentiles of each kind of request, and the last recovery.\n"
	"\n"
	"  --json             one JSON object (a list of them without a name)\n"
	"  --prometheus       Prometheus's text format\n"
	"  --watch[=SECONDS]  again and again, by default every 2 s; q or ^C ends it\n"
	"\n"
	"Examples:\n"
	"  weft status\n"
	"  weft status /mnt/weft\n"
	"  weft status /mnt/weft --json | jq .cache\n"
	"\n"
	"Exit codes: 0; 1 wrong usage; 2 nothing of that name is mounted, or its daemon does\n"
	"not answer.\n";

/* ---- tables ---------------------------------------------------------------------- */

static void print_requests(const json_t *requests)
{
	static const char *const percentiles[] = {"p50_ns", "p90_ns", "p99_ns", "max_ns"};
	struct table *t = table_new();
	const char *name;
	json_t *one;

	table_column(t, "request", TABLE_TEXT);
	table_column(t, "count", TABLE_NUMBER);
	table_column(t, "p50", TABLE_NUMBER);
	table_column(t, "p90", TABLE_NUMBER);
	table_column(t, "p99", TABLE_NUMBER);
	table_column(t, "max", TABLE_NUMBER);
	json_object_foreach((json_t *)requests, name, one)
	{
		char time[16];

		table_row(t);
		table_cell(t, "%s", name);
		table_cell(t, "%.0f", client_number(one, "count"));
		for (unsigned i = 0; i < ARRAY_SIZE(percentiles); i++)
			table_cell(t, "%s",
				format_duration(
					time, client_number(one, percentiles[i])));
	}
	putchar('\n');
	table_print(t, 0, stdout);
	table_free(t);
}

static void print_scrub(const json_t *scrub)
{
	char a[16];

	if (scrub && strcmp(client_text(scrub, "state"), "none") != 0)
		printf("scrub      %s, %s read, %.0f damaged%s\n", client_text(scrub, "state"),
			format_bytes(a, client_number(scrub, "pages") * PAGE_SIZE),
			client_number(scrub, "damaged"),
			client_number(scrub, "damaged") != 0 ? ": see weft scrub --status" : "");
}

static void print_engine(const json_t *status)
{
	const json_t *cache = json_object_get(status, "cache");
	const json_t *log = json_object_get(status, "log");
	const json_t *device = json_object_get(status, "device");
	const json_t *tree = json_object_get(status, "tree");
	double hits = client_number(cache, "hits"), misses = client_number(cache, "misses");
	char a[16], b[16];

	printf("cache      %s, %.0f%% free, %s, hit rate %.2f%%, %s\n",
		format_bytes(a, client_number(cache, "bytes")),
		100 * client_number(cache, "free_frames") /
			(client_number(cache, "frames") ?: 1),
		format_count(client_number(cache, "dirty_pages"), "dirty page"),
		hits + misses > 0 ? 100 * hits / (hits + misses) : 0,
		format_count(client_number(cache, "evictions"), "eviction"));
	if (*client_text(cache, "write_error"))
		printf("NOT WRITTEN: the store refuses writes (%s), %s so far; %s in "
		       "memory\n",
			client_text(cache, "write_error"),
			format_count(client_number(cache, "write_failures"), "batch"),
			format_count(client_number(cache, "dirty_pages"), "dirty page"));
	printf("log        %s, %s used, %s in %s, %s\n",
		format_bytes(a, client_number(log, "bytes")),
		format_bytes(b, client_number(log, "used_bytes")),
		format_count(client_number(log, "records"), "record"),
		format_count(client_number(log, "chunks"), "chunk"),
		format_count(client_number(log, "flushes"), "flush"));
	printf("device     %s read in %s, %s written in %s, %s, %s\n",
		format_count(client_number(device, "pages_read"), "page"),
		format_count(client_number(device, "read_requests"), "request"),
		format_count(client_number(device, "pages_written"), "page"),
		format_count(client_number(device, "write_requests"), "request"),
		format_count(client_number(device, "flushes"), "flush"),
		format_count(
			client_number(device, "checksum_failures"), "checksum failure"));
	print_scrub(json_object_get(status, "scrub"));
	printf("tree       height %.0f, %s, %s, %s, %s\n", client_number(tree, "height"),
		format_count(client_number(tree, "commits"), "commit"),
		format_count(client_number(tree, "conflicts"), "conflict"),
		format_count(client_number(tree, "splits"), "split"),
		format_count(client_number(tree, "merges"), "merge"));
}

/* Prints the number of requests that wait for the node, and the remedy. */
static void print_waits(const json_t *node)
{
	double waiting = client_number(node, "waiting_requests");
	char a[16];

	if (waiting != 0)
		printf("            %s of this mount %s for it, the first for %s\n",
			format_count(waiting, "request"), waiting == 1 ? "waits" : "wait",
			format_duration(a, client_number(node, "waiting_s") * 1e9));
	if (*client_text(node, "remedy"))
		printf("            start the node again; if that is impossible, stop its "
		       "machine, then: %s\n",
			client_text(node, "remedy"));
}

/* Prints whether the node has a link, since when, and the traffic with it. */
static void print_link(const json_t *node)
{
	const json_t *traffic = json_object_get(node, "traffic");
	bool up = json_is_true(json_object_get(node, "up"));
	bool left = json_is_true(json_object_get(node, "left"));
	bool dead = json_is_true(json_object_get(node, "dead"));
	const char *state = up     ? "up"
			    : left ? "left, AWAY"
			    : dead ? "dead, AWAY"
				   : "AWAY";
	char a[16], b[16], c[16];

	if (!traffic)
		return;
	printf("            %s for %s", state,
		format_duration(a, client_number(node, up ? "up_s" : "away_s") * 1e9));
	if (up)
		printf(" by %s%s%s", client_text(node, "by"),
			json_is_true(json_object_get(node, "dialed")) ? "" : " here",
			json_is_true(json_object_get(node, "unmounted"))
				? ", unmounted there"
				: "");
	printf("; messages: %.0f sent, %.0f received; data: %s sent, %s received\n",
		client_number(traffic, "messages_out"), client_number(traffic, "messages_in"),
		format_bytes(b, client_number(traffic, "data_bytes_out")),
		format_bytes(c, client_number(traffic, "data_bytes_in")));
	if (!up && *client_text(node, "why"))
		printf("            %s\n", client_text(node, "why"));
	print_waits(node);
}

/* Prints the pages of the other node's shard in this node's cache. */
static void print_cached(const json_t *cached)
{
	if (!cached)
		return;
	printf("            cached here from its shard: %s (%.0f exclusive, %.0f dirty)",
		format_count(client_number(cached, "pages"), "page"),
		client_number(cached, "exclusive"), client_number(cached, "dirty"));
	if (client_number(cached, "owed") != 0)
		printf(", %s awaiting write-back",
			format_count(client_number(cached, "owed"), "image"));
	putchar('\n');
}

static void print_coherence(const json_t *c)
{
	const json_t *sent = json_object_get(c, "sent");
	const char *name, *sep = "";
	char memory[16];
	json_t *n;

	if (!c)
		return;
	printf("  epoch     %.0f%s\n", client_number(c, "epoch"),
		json_is_true(json_object_get(c, "shard_served"))
			? ""
			: "; this node's shard is not served: nodes are away");
	printf("  directory %s, %s; %s deferred, %s adopted\n",
		format_count(client_number(c, "pages"), "page"),
		format_bytes(memory, client_number(c, "record_bytes")),
		format_count(client_number(c, "deferred"), "request"),
		format_count(client_number(c, "taken_over"), "dirty page"));
	printf("  sent      ");
	json_object_foreach((json_t *)sent, name, n)
	{
		printf("%s%s %.0f", sep, name, json_number_value(n));
		sep = ", ";
	}
	puts(*sep ? "" : "nothing");
}

/* Prints the last change of the epoch, with the time that the arrival or return of a node took. */
static void print_change(const json_t *change)
{
	char a[16], b[16];

	if (!change)
		return;
	printf("  changed   last epoch change %s ago, ",
		format_duration(a, client_number(change, "since_s") * 1e9));
	if (json_is_true(json_object_get(change, "ended")))
		printf("service resumed after %s",
			format_duration(b, client_number(change, "all_served_ns")));
	else
		printf("service not resumed yet");
	printf("; pages reported: %.0f sent, %.0f received; directory entries rebuilt: "
	       "%.0f\n",
		client_number(change, "pages_reported"), client_number(change, "pages_heard"),
		client_number(change, "entries_rebuilt"));
}

static void print_recovery(const json_t *recovery)
{
	char a[16], b[16], c[16];

	if (json_is_true(json_object_get(recovery, "was_clean"))) {
		printf("recovery   not needed\n");
		return;
	}
	printf("recovery   %s of log, %s, %s redone in %s",
		format_bytes(a, client_number(recovery, "log_bytes")),
		format_count(client_number(recovery, "records"), "record"),
		format_count(client_number(recovery, "pages"), "page"),
		format_duration(b, client_number(recovery, "redone_ns")));
	if (json_object_get(recovery, "met_ns"))
		printf("; other nodes connected after %s",
			format_duration(c, client_number(recovery, "met_ns")));
	printf("; served after %s\n",
		format_duration(c, client_number(recovery, "took_ns")));
}

static void print_addresses(const json_t *addresses)
{
	const json_t *one;
	size_t i;

	json_array_foreach((json_t *)addresses, i, one)
		printf("%s%s", i ? " " : ", ", json_string_value(one));
}

static void print_cluster(const json_t *status)
{
	const json_t *cluster = json_object_get(status, "cluster");
	const json_t *nodes = json_object_get(cluster, "nodes");
	json_t *one, *shard;
	size_t i;

	if (!cluster)
		return;
	printf("cluster    %s (%s), node %.0f of %zu\n", client_text(cluster, "name"),
		client_text(cluster, "file"), client_number(status, "node"),
		json_array_size(nodes));
	json_array_foreach((json_t *)nodes, i, one)
	{
		shard = json_object_get(one, "shard");
		printf("  node %-4.0f%s", client_number(one, "id"),
			client_text(one, "role"));
		if (shard)
			printf(" of shard %.0f, %s", json_number_value(shard),
				client_text(one, "store"));
		print_addresses(json_object_get(one, "addresses"));
		if (json_object_get(one, "incarnation"))
			printf(", start %.0f\n", client_number(one, "incarnation"));
		else
			puts(", never connected");
		print_link(one);
		print_cached(json_object_get(one, "cached"));
	}
	print_coherence(json_object_get(cluster, "coherence"));
	print_change(json_object_get(json_object_get(cluster, "coherence"), "change"));
}

static void print_waiting(const json_t *status)
{
	const json_t *waiting = json_object_get(status, "waiting");
	double requests = client_number(waiting, "requests");
	double locks = client_number(waiting, "locks");
	char a[16];

	if (requests + locks > 0)
		printf("waiting    %s, %s, the longest for %s; `weft waits %s` lists "
		       "them\n",
			format_count(requests, "request"),
			format_count(locks, "lock request"),
			format_duration(a, 1e9 * client_number(waiting, "longest_s")),
			client_text(status, "mount_point"));
}

static void print_status(const json_t *status)
{
	const json_t *space = json_object_get(status, "space");
	const json_t *memory = json_object_get(status, "memory");
	const json_t *session = json_object_get(status, "session");
	double total = client_number(space, "total_bytes"),
	       free_bytes = client_number(space, "free_bytes");
	char a[16], b[16];

	printf("volume     %s%s%s\n", client_text(status, "label"),
		*client_text(status, "label") ? ", " : "",
		client_text(status, "volume_uuid"));
	print_cluster(status);
	printf("store      %s\n", client_text(status, "store"));
	printf("mounted    %s (%s)%s%s\n", client_text(status, "mount_point"),
		client_text(status, "options"),
		json_is_true(json_object_get(session, "uring")) ? ", by io_uring" : "",
		client_number(status, "failed") != 0 ? ", FAILED: takes no changes" : "");
	printf("daemon     weftd %s, pid %.0f, up %s, %s resident\n",
		client_text(status, "version"), client_number(status, "pid"),
		format_duration(a, client_number(status, "uptime_s") * 1e9),
		format_bytes(b, client_number(memory, "resident_bytes")));
	printf("space      %s, %s free (%.0f%% used)\n", format_bytes(a, total),
		format_bytes(b, free_bytes),
		total > 0 ? 100 * (total - free_bytes) / total : 0);
	print_waiting(status);
	print_engine(status);
	print_recovery(json_object_get(status, "recovery"));
	print_requests(json_object_get(status, "requests"));
}

static void print_table(json_t *status)
{
	client_clean(status);
	print_status(status);
}

/* The mounts whose daemons have answered, by the kernel's names of their devices. */
#define HEARD_MAX 256u
struct heard {
	unsigned count;
	struct {
		char *directory;
		char device[CLIENT_DEVICE];
	} at[HEARD_MAX];
	struct table *table; /* of the mounts that were heard; NULL: it is not printed */
	FILE *to; /* stream for the other mounts */
	unsigned told;
};

static void heard_add(struct heard *h, const json_t *identity)
{
	if (h->count == HEARD_MAX)
		return;
	h->at[h->count].directory = strdup(client_text(identity, "mount_point"));
	snprintf(h->at[h->count].device, CLIENT_DEVICE, "%s",
		client_text(identity, "device_number"));
	h->count += h->at[h->count].directory != NULL;
}

static bool is_heard(const struct heard *h, const char *directory)
{
	char device[CLIENT_DEVICE] = "";

	client_device(directory, device);
	for (unsigned i = 0; i < h->count; i++)
		if (strcmp(h->at[i].directory, directory) == 0 ||
			(*device && strcmp(h->at[i].device, device) == 0))
			return true;
	return false;
}

/* Prints a mount of another user, or of a daemon that has ended. */
static bool tell_unheard(void *arg, const struct weft_mount *m)
{
	struct heard *h = arg;
	char name[MOUNT_USER];

	if (!m->ours || is_heard(h, m->directory))
		return false;
	if (h->told++ == 0 && h->to == stdout && h->count)
		putchar('\n');
	if (m->user == geteuid())
		fprintf(h->to,
			"%s is mounted, but no weftd answers for it; if it has ended, "
			"`weft "
			"umount %s` takes the mount away\n",
			m->directory, m->directory);
	else if (m->user == 0)
		fprintf(h->to,
			"%s is mounted by root, and its weftd answers only root; use "
			"`sudo weft status`\n",
			m->directory);
	else
		fprintf(h->to,
			"%s is mounted by user %s, and its weftd answers only that "
			"user; use `sudo -u %s weft status`\n",
			m->directory, mount_user(m->user, name), name);
	return false;
}

static struct table *list_begin(void)
{
	struct table *t = table_new();

	table_column(t, "MOUNT POINT", TABLE_LONG);
	table_column(t, "STORE", TABLE_LONG);
	table_column(t, "LABEL", TABLE_TEXT);
	table_column(t, "PID", TABLE_NUMBER);
	return t;
}

static bool list_one(void *arg, struct client *c)
{
	struct heard *h = arg;
	const char *label = client_text(c->identity, "label");

	heard_add(h, c->identity);
	table_row(h->table);
	table_cell(h->table, "%s", client_text(c->identity, "mount_point"));
	table_cell(h->table, "%s", client_text(c->identity, "store"));
	table_cell(h->table, "%s", *label ? label : "-");
	table_cell(h->table, "%.0f", client_number(c->identity, "pid"));
	return false;
}

static void print_metrics(json_t *status)
{
	json_t *list = json_array();

	json_array_append(list, status);
	metrics_print(stdout, list);
	json_decref(list);
}

static void print_json(const json_t *o)
{
	json_dumpf(o, stdout, JSON_INDENT(2));
	putchar('\n');
}

/* ---- the command ----------------------------------------------------------------- */

enum form { FORM_TABLE, FORM_JSON, FORM_PROMETHEUS };

struct collected {
	struct heard heard;
	json_t *list;
};

static bool collect_one(void *arg, struct client *c)
{
	struct collected *all = arg;
	struct weft_error err = {0};
	json_t *status = client_ask(c->fd, "status", &err);

	heard_add(&all->heard, c->identity);
	if (status)
		json_array_append_new(all->list, status);
	else if (err.code == -ETIMEDOUT)
		fprintf(stderr, "weft status: %s: %s\n",
			client_text(c->identity, "mount_point"), err.text);
	return false;
}

static void status_all(enum form form)
{
	struct collected all = {
		.list = json_array(), .heard.to = form == FORM_TABLE ? stdout : stderr};

	if (form == FORM_TABLE) {
		all.heard.table = list_begin();
		client_each(list_one, &all.heard);
		table_print(all.heard.table, 0, stdout);
		table_free(all.heard.table);
	} else {
		client_each(collect_one, &all);
	}
	if (form == FORM_JSON)
		print_json(all.list);
	else if (form == FORM_PROMETHEUS && json_array_size(all.list))
		metrics_print(stdout, all.list);
	json_decref(all.list);
	mounts_each(tell_unheard, &all.heard);
	if (form == FORM_TABLE && !all.heard.count && !all.heard.told)
		puts("No weft volume is mounted.");
	for (unsigned i = 0; i < all.heard.count; i++)
		free(all.heard.at[i].directory);
}

static int status_of(const char *name, enum form form)
{
	struct weft_error err = {0};
	json_t *identity = NULL, *status = NULL;
	int fd = client_find_inside(name, &identity, &err);

	if (fd >= 0) {
		status = client_ask(fd, "status", &err);
		close(fd);
	}
	if (!status)
		fprintf(stderr, "weft status: %s: %s\n", name, err.text);
	else if (form == FORM_JSON)
		print_json(status);
	else if (form == FORM_PROMETHEUS)
		print_metrics(status);
	else
		print_table(status);
	json_decref(identity);
	json_decref(status);
	return status ? 0 : EXIT_FAILED;
}

/* The volume to watch, or NULL for the list of mounts. */
static int show_status(void *arg)
{
	if (arg)
		return status_of(arg, FORM_TABLE);
	status_all(FORM_TABLE);
	return 0;
}

int weft_status(int argc, char **argv)
{
	static const struct option words[] = {{"json", no_argument, NULL, 'j'},
		{"prometheus", no_argument, NULL, 'p'},
		{"watch", optional_argument, NULL, 'w'}, {"help", no_argument, NULL, 'h'},
		{0}};
	enum form form = FORM_TABLE;
	double seconds = 0;
	int c;

	while ((c = getopt_long(argc, argv, "jph", words, NULL)) != -1) {
		if (c == 'j') {
			form = FORM_JSON;
		} else if (c == 'p') {
			form = FORM_PROMETHEUS;
		} else if (c == 'w') {
			seconds = WATCH_SECONDS;
			if (optarg && watch_interval(argv[0], "--watch", optarg, &seconds))
				return EXIT_USAGE;
		} else {
			return weft_option(usage, c, argv, words);
		}
	}
	if (weft_operands(usage, argc, argv, 0, 1, "DIR|STORE|FILE|LABEL|UUID"))
		return EXIT_USAGE;
	if (seconds > 0 && form != FORM_TABLE)
		return weft_wrong(argv[0],
			"--watch is for people; programs call --json or --prometheus again "
			"and again");
	if (seconds > 0)
		return watch_run(seconds, show_status, argv[optind]);
	if (argc > optind)
		return status_of(argv[optind], form);
	status_all(form);
	return 0;
}
