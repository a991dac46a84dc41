/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The text of weft top.
 *
 * Rates are of the time between two answers of the daemon; those of the first are of the time since
 * its start. So are percentiles: they come from the difference of two histograms, whose bins are
 * powers of two.
 */
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "fs/latency.h"
#include "tools/table.h"
#include "tools/top.h"
#include "tools/waits.h"

#define REQUESTS_MAX  64u
#define WAITS_SHOWN   10u
#define INODES_SHOWN  10u

static const char *const sort_names[] = {
	[TOP_BY_RATE] = "rate",
	[TOP_BY_BUSY] = "busy",
	[TOP_BY_P99] = "p99",
	[TOP_BY_NAME] = "name",
};

const char *top_sort_name(enum top_sort sort)
{
	return sort_names[sort];
}

enum top_sort top_sort_of(const char *name)
{
	enum top_sort sort = TOP_BY_RATE;

	while (sort < TOP_SORTS && strcmp(name, sort_names[sort]) != 0)
		sort++;
	return sort;
}

/* ---- differences ---------------------------------------------------------------------------- */

static double elapsed_s(const struct top *t)
{
	double s = t->before ? t->now_s - t->before_s : client_number(t->now, "uptime_s");

	return s > 0 ? s : 1;
}

/* Returns the increase of a member; of all of it if there was no answer before. */
static double get_increase(const json_t *now, const json_t *before, const char *key)
{
	double more = client_number(now, key) - client_number(before, key);

	return more > 0 ? more : 0;
}

/* Of a member of an object of the status. */
static double rate_of(const struct top *t, const char *object, const char *key)
{
	return get_increase(json_object_get(t->now, object),
		       json_object_get(t->before, object), key) /
	       elapsed_s(t);
}

static const char *format_rate(char buf[16], double rate)
{
	snprintf(buf, 16, rate == 0 ? "0" : rate < 10 ? "%.1f" : "%.0f", rate);
	return buf;
}

/* Returns the value, in nanoseconds, of which the share of all values is below. `below`: numbers of
 * values below the powers of two. Straight lines between these. */
static double percentile_of(const double below[LATENCY_POWERS], double count, double share)
{
	double rank = count * share, low = 0, high = ldexp(1, LATENCY_POWER_FIRST);
	double before = 0;

	for (unsigned i = 0; i < LATENCY_POWERS; i++) {
		if (below[i] >= rank && below[i] > before)
			return low + (high - low) * (rank - before) / (below[i] - before);
		before = MAX(before, below[i]);
		low = high;
		high *= 2;
	}
	return low;
}

/* ---- the head ------------------------------------------------------------------------------- */

static void print_first_line(const struct top *t)
{
	const json_t *nodes = json_object_get(json_object_get(t->now, "cluster"), "nodes");
	time_t now = time(NULL);
	char clock[16] = "", a[16], b[16];
	struct tm local;

	if (localtime_r(&now, &local))
		strftime(clock, sizeof(clock), "%T", &local);
	printf("weft top - %s  %s", clock, client_text(t->now, "mount_point"));
	if (*client_text(t->now, "label"))
		printf(" (%s)", client_text(t->now, "label"));
	if (nodes)
		printf(", node %.0f of %zu", client_number(t->now, "node"),
			json_array_size(nodes));
	printf(", weftd %.0f up %s, %s resident\n", client_number(t->now, "pid"),
		format_duration(a, 1e9 * client_number(t->now, "uptime_s")),
		format_bytes(b, client_number(json_object_get(t->now, "memory"),
					"resident_bytes")));
	if (t->error.code)
		printf("NO ANSWER: %s\n", t->error.text);
	if (client_number(t->now, "failed") != 0)
		puts("FAILED: takes no changes");
}

static void print_head(const struct top *t)
{
	const json_t *space = json_object_get(t->now, "space");
	const json_t *cache = json_object_get(t->now, "cache");
	const json_t *log = json_object_get(t->now, "log");
	const json_t *waiting = json_object_get(t->now, "waiting");
	double hits = rate_of(t, "cache", "hits"), misses = rate_of(t, "cache", "misses");
	char a[16], b[16], c[16];

	print_first_line(t);
	printf("space     %s, %s free; log %s, %.0f%% used\n",
		format_bytes(a, client_number(space, "total_bytes")),
		format_bytes(b, client_number(space, "free_bytes")),
		format_bytes(c, client_number(log, "bytes")),
		100 * client_number(log, "used_bytes") /
			(client_number(log, "bytes") ?: 1));
	printf("cache     %s, %.0f%% free, %s; hit rate %.2f%%",
		format_bytes(a, client_number(cache, "bytes")),
		100 * client_number(cache, "free_frames") /
			(client_number(cache, "frames") ?: 1),
		format_count(client_number(cache, "dirty_pages"), "dirty page"),
		hits + misses > 0 ? 100 * hits / (hits + misses) : 0);
	printf(", %s misses/s, %s evictions/s\n", format_rate(a, misses),
		format_rate(b, rate_of(t, "cache", "evictions")));
	if (*client_text(cache, "write_error"))
		printf("NOT WRITTEN: the store refuses writes (%s)\n",
			client_text(cache, "write_error"));
	printf("requests  %s/s", format_rate(a, rate_of(t, "session", "requests")));
	printf(", %s/s read, %s/s written; waiting: %s, %s\n",
		format_bytes(a, rate_of(t, "session", "bytes_read")),
		format_bytes(b, rate_of(t, "session", "bytes_written")),
		format_count(client_number(waiting, "requests"), "request"),
		format_count(client_number(waiting, "locks"), "lock request"));
}

/* ---- nodes and links ------------------------------------------------------------------------ */

static const char *state_of(const json_t *node, bool here)
{
	if (here)
		return "here";
	if (json_is_true(json_object_get(node, "up")))
		return json_is_true(json_object_get(node, "unmounted")) ? "unmounted" : "up";
	return json_is_true(json_object_get(node, "left"))   ? "left"
	       : json_is_true(json_object_get(node, "dead")) ? "DEAD"
							     : "AWAY";
}

static const json_t *node_before(const struct top *t, double id)
{
	const json_t *nodes =
		json_object_get(json_object_get(t->before, "cluster"), "nodes");
	json_t *one;
	size_t i;

	json_array_foreach(nodes, i, one)
		if (client_number(one, "id") == id)
			return one;
	return NULL;
}

static void print_node(const struct top *t, struct table *table, const json_t *node)
{
	static const char *const traffic[] = {
		"messages_out", "messages_in", "data_bytes_out", "data_bytes_in"};
	double id = client_number(node, "id");
	const json_t *link = json_object_get(node, "traffic");
	const json_t *before = json_object_get(node_before(t, id), "traffic");
	bool here = id == client_number(t->now, "node");
	double since = client_number(node, "up_s") + client_number(node, "away_s");
	char a[16];

	table_row(table);
	table_cell(table, "%.0f", id);
	table_cell(table, "%s", client_text(node, "role"));
	table_cell(table, "%s", state_of(node, here));
	table_cell(table, "%s", here ? "" : format_duration(a, 1e9 * since));
	for (unsigned i = 0; i < ARRAY_SIZE(traffic); i++) {
		double rate = get_increase(link, before, traffic[i]) / elapsed_s(t);

		table_cell(table, "%s",
			here	? ""
			: i < 2 ? format_rate(a, rate)
				: format_bytes(a, rate));
	}
	table_cell(table, "%.0f",
		client_number(json_object_get(node, "cached"), "pages"));
	table_cell(table, "%.0f", client_number(node, "waiting_requests"));
	table_cell(table, "%s",
		json_string_value(json_array_get(json_object_get(node, "addresses"), 0)) ?: "");
}

static void print_nodes(const struct top *t, const char *mark)
{
	const json_t *nodes = json_object_get(json_object_get(t->now, "cluster"), "nodes");
	static const char *const numbers[] = {
		"FOR", "MSGS OUT", "IN", "DATA OUT", "IN", "CACHED", "WAIT"};
	struct table *table;
	json_t *one;
	size_t i;

	if (!json_array_size(nodes))
		return;
	printf("\n%sNodes: links by second, pages of their shards cached here, requests that "
	       "wait\n",
		mark);
	table = table_new();
	table_column(table, "NODE", TABLE_NUMBER);
	table_column(table, "ROLE", TABLE_TEXT);
	table_column(table, "STATE", TABLE_TEXT);
	for (i = 0; i < ARRAY_SIZE(numbers); i++)
		table_column(table, numbers[i], TABLE_NUMBER);
	table_column(table, "ADDRESS", TABLE_LONG);
	json_array_foreach(nodes, i, one)
		print_node(t, table, one);
	table_print(table, 0, stdout);
	table_free(table);
}

/* ---- requests ------------------------------------------------------------------------------- */

struct request_kind {
	const char *name;
	double rate, mean_ns, p50_ns, p99_ns;
	double busy; /* mean number of such requests under way */
};

static enum top_sort sorted_by; /* for qsort */

static int compare_kinds(const void *a, const void *b)
{
	const struct request_kind *x = a, *y = b;
	double more = sorted_by == TOP_BY_RATE	 ? y->rate - x->rate
		      : sorted_by == TOP_BY_BUSY ? y->busy - x->busy
		      : sorted_by == TOP_BY_P99	 ? y->p99_ns - x->p99_ns
						 : 0;

	return more > 0 ? 1 : more < 0 ? -1 : strcmp(x->name, y->name);
}

/* Returns false if there was no such request in the time. */
static bool kind_read(
	const struct top *t, const char *name, const json_t *now, struct request_kind *out)
{
	const json_t *before =
		json_object_get(json_object_get(t->before, "requests"), name);
	const json_t *now_below = json_object_get(now, "below");
	const json_t *old_below = json_object_get(before, "below");
	double count = get_increase(now, before, "count");
	double total = get_increase(now, before, "total_ns");
	double below[LATENCY_POWERS];

	if (count == 0)
		return false;
	for (unsigned i = 0; i < LATENCY_POWERS; i++)
		below[i] = json_number_value(json_array_get(now_below, i)) -
			   json_number_value(json_array_get(old_below, i));
	*out = (struct request_kind){
		.name = name,
		.rate = count / elapsed_s(t),
		.mean_ns = total / count,
		.p50_ns = percentile_of(below, count, 0.5),
		.p99_ns = percentile_of(below, count, 0.99),
		.busy = total / 1e9 / elapsed_s(t),
	};
	return true;
}

static void print_requests(const struct top *t, const char *mark)
{
	static const char *const numbers[] = {"RATE/s", "MEAN", "P50", "P99", "BUSY"};
	const json_t *requests = json_object_get(t->now, "requests");
	struct request_kind kind[REQUESTS_MAX];
	struct table *table = table_new();
	unsigned count = 0;
	const char *name;
	json_t *one;
	char a[16], b[16], c[16], d[16];

	json_object_foreach((json_t *)requests, name, one)
		if (count < REQUESTS_MAX)
			count += kind_read(t, name, one, &kind[count]);
	sorted_by = t->sort;
	qsort(kind, count, sizeof(*kind), compare_kinds);
	table_column(table, "REQUEST", TABLE_TEXT);
	for (unsigned i = 0; i < ARRAY_SIZE(numbers); i++)
		table_column(table, numbers[i], TABLE_NUMBER);
	for (unsigned i = 0; i < count; i++) {
		table_row(table);
		table_cell(table, "%s", kind[i].name);
		table_cell(table, "%s", format_rate(a, kind[i].rate));
		table_cell(table, "%s", format_duration(b, kind[i].mean_ns));
		table_cell(table, "%s", format_duration(c, kind[i].p50_ns));
		table_cell(table, "%s", format_duration(d, kind[i].p99_ns));
		table_cell(table, "%.2f", kind[i].busy);
	}
	printf("\n%sRequests of the kernel, %s, by %s\n", mark,
		t->before ? "since the round before" : "since the start",
		sort_names[t->sort]);
	table_print(table, 0, stdout);
	table_free(table);
}

/* ---- files ---------------------------------------------------------------------------------- */

static void print_contended(const struct top *t, const char *mark)
{
	const json_t *contended = json_object_get(t->now, "contended");
	const json_t *inodes = json_object_get(contended, "inodes");
	double since = client_number(contended, "since_s");
	struct table *table;
	json_t *one;
	size_t i;

	if (!json_array_size(inodes))
		return;
	printf("\n%sContended: pages taken back from other nodes in %.0f s, to change or read "
	       "them\n",
		mark, since);
	table = table_new();
	table_column(table, "CHANGED", TABLE_NUMBER);
	table_column(table, "READ", TABLE_NUMBER);
	table_column(table, "REQUESTS", TABLE_NUMBER);
	table_column(table, "MEAN", TABLE_NUMBER);
	table_column(table, "FILE", TABLE_LONG);
	json_array_foreach(inodes, i, one)
	{
		json_int_t ino = json_integer_value(json_object_get(one, "inode"));
		const char *path = inode_path(t->paths, ino);
		double requests = client_number(one, "requests");
		char a[16];

		if (i == INODES_SHOWN)
			break;
		table_row(table);
		table_cell(table, "%.0f", client_number(one, "pages_changed"));
		table_cell(table, "%.0f", client_number(one, "pages_read"));
		table_cell(table, "%.0f", requests);
		table_cell(table, "%s",
			format_duration(
				a, client_number(one, "took_ns") / (requests ?: 1)));
		if (path)
			table_cell(table, "%s", path);
		else
			table_cell(table, "inode %" JSON_INTEGER_FORMAT, ino);
	}
	table_print(table, 0, stdout);
	table_free(table);
}

void top_print(const struct top *t, const char *mark)
{
	double waiting = client_number(t->waits, "requests_all") +
			 client_number(t->waits, "locks_all");

	print_head(t);
	print_nodes(t, mark);
	if (waiting > 0) {
		printf("\n%sWaiting: what for, and for which node (`weft waits` says what to do)\n",
			mark);
		waits_table(t->waits, t->paths, WAITS_SHOWN);
	}
	print_contended(t, mark);
	print_requests(t, mark);
}
