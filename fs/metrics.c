/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A daemon's status as text of Prometheus's exposition format. All values come from the JSON of
 * status.c. The tables give each metric its name, type and help; the name has the unit.
 */
#include "fs/metrics.h"

#include <inttypes.h>
#include <string.h>

#include "fs/latency.h"

enum type { COUNTER, GAUGE };

struct metric {
	const char *name;
	enum type type;
	const char *path; /* in the status: keys with dots between them */
	const char *help;
};

/* A path that ends in _ns is told in seconds. */
static const struct metric metrics[] = {
	{"weft_uptime_seconds", GAUGE, "uptime_s", "Time since the daemon was started."},
	{"weft_read_only", GAUGE, "read_only", "1 if the volume is mounted read-only."},
	{"weft_failed", GAUGE, "failed",
		"1 if the log has failed: the mount accepts no changes."},
	{"weft_memory_resident_bytes", GAUGE, "memory.resident_bytes",
		"Resident memory of the daemon."},

	{"weft_space_bytes", GAUGE, "space.total_bytes",
		"Size of this node's shard; on one node, of the volume."},
	{"weft_space_free_bytes", GAUGE, "space.free_bytes", "Free space in the shard."},
	{"weft_space_available_bytes", GAUGE, "space.available_bytes",
		"Free space in the shard that users may fill."},

	{"weft_cache_bytes", GAUGE, "cache.bytes", "Size of the page cache."},
	{"weft_cache_frames", GAUGE, "cache.frames", "Frames of the page cache."},
	{"weft_cache_free_frames", GAUGE, "cache.free_frames",
		"Frames without a page."},
	{"weft_cache_dirty_pages", GAUGE, "cache.dirty_pages",
		"Cached pages that are newer than their store."},
	{"weft_cache_hits_total", COUNTER, "cache.hits",
		"Page requests that the cache answered."},
	{"weft_cache_misses_total", COUNTER, "cache.misses",
		"Page requests that had to be fetched, or needed a stronger right."},
	{"weft_cache_fetch_requests_total", COUNTER, "cache.fetch_requests",
		"Fetches, each of one page or more."},
	{"weft_cache_prefetches_total", COUNTER, "cache.prefetches",
		"Pages that were read ahead."},
	{"weft_cache_evictions_total", COUNTER, "cache.evictions", "Pages evicted from the cache."},
	{"weft_cache_dirty_evictions_total", COUNTER, "cache.evicted_dirty",
		"Dirty pages evicted from the cache."},
	{"weft_cache_pages_written_total", COUNTER, "cache.pages_written",
		"Pages written back, to this node's store or to their home."},
	{"weft_cache_write_batches_total", COUNTER, "cache.write_batches",
		"Batches of pages written back."},
	{"weft_cache_write_failures_total", COUNTER, "cache.write_failures",
		"Batches that a store refused. Their pages stay dirty."},
	{"weft_cache_sync_logged_total", COUNTER, "cache.sync_logged",
		"Pages that fsync wrote to the log."},
	{"weft_cache_sync_in_place_total", COUNTER, "cache.sync_in_place",
		"Pages that fsync wrote to the store."},
	{"weft_cache_checkpoints_total", COUNTER, "cache.checkpoints", "Checkpoints taken."},
	{"weft_cache_latch_waits_total", COUNTER, "cache.latch_waits",
		"Waits for a latch of a page."},
	{"weft_cache_latch_restarts_total", COUNTER, "cache.latch_restarts",
		"Optimistic reads that had to be repeated."},
	{"weft_cache_frame_waits_total", COUNTER, "cache.frame_waits",
		"Waits for a free frame."},
	{"weft_cache_kernel_drops_total", COUNTER, "cache.kernel_drops",
		"Pages that this node's kernel was told to drop."},
	{"weft_cache_kernel_inodes", GAUGE, "cache.kernel_inodes",
		"Inodes of which this node's kernel may cache pages or attributes."},
	{"weft_cache_kernel_inodes_dropped_total", COUNTER, "cache.kernel_inodes_dropped",
		"Inodes that this node's kernel was told to drop to make room for others."},

	{"weft_log_bytes", GAUGE, "log.bytes", "Size of the log."},
	{"weft_log_used_bytes", GAUGE, "log.used_bytes",
		"Bytes of the log that a recovery would read."},
	{"weft_log_records_total", COUNTER, "log.records", "Records written to the log."},
	{"weft_log_record_bytes_total", COUNTER, "log.record_bytes",
		"Bytes of records written to the log."},
	{"weft_log_chunks_total", COUNTER, "log.chunks",
		"Chunks (group commits) written to the log."},
	{"weft_log_chunk_bytes_total", COUNTER, "log.chunk_bytes",
		"Bytes of chunks written to the log."},
	{"weft_log_flushes_total", COUNTER, "log.flushes", "Flushes of the log."},
	{"weft_log_flush_waits_total", COUNTER, "log.flush_waits",
		"Waits for a flush that another task had begun."},
	{"weft_log_reserve_waits_total", COUNTER, "log.reserve_waits",
		"Waits for room in the log."},

	{"weft_device_bytes", GAUGE, "device.bytes", "Size of the store."},
	{"weft_device_pages_read_total", COUNTER, "device.pages_read",
		"Pages read from the store."},
	{"weft_device_pages_written_total", COUNTER, "device.pages_written",
		"Pages written to the store."},
	{"weft_device_read_requests_total", COUNTER, "device.read_requests",
		"Read requests to the store, each of one page or more."},
	{"weft_device_write_requests_total", COUNTER, "device.write_requests",
		"Write requests to the store, each of one page or more."},
	{"weft_device_flushes_total", COUNTER, "device.flushes",
		"Flushes of the store, without those of the log."},
	{"weft_device_table_reads_total", COUNTER, "device.table_reads",
		"Blocks of the descriptor table read."},
	{"weft_device_table_writes_total", COUNTER, "device.table_writes",
		"Blocks of the descriptor table written."},
	{"weft_device_checksum_failures_total", COUNTER, "device.checksum_failures",
		"Pages read from the store with a wrong checksum."},

	{"weft_scrub_running", GAUGE, "scrub.running", "1 while the store is scrubbed."},
	{"weft_scrub_position_bytes", GAUGE, "scrub.position_bytes",
		"How far the last scrub of the store is."},
	{"weft_scrub_store_bytes", GAUGE, "scrub.store_bytes",
		"Where a scrub of the store ends."},
	{"weft_scrub_pages", GAUGE, "scrub.pages",
		"Pages that the last scrub of the store has read."},
	{"weft_scrub_damaged", GAUGE, "scrub.damaged",
		"Pages and descriptors that the last scrub of the store found damaged."},
	{"weft_scrub_end_timestamp_seconds", GAUGE, "scrub.ended_s",
		"When the last scrub of the store ended; 0 if it has not."},

	{"weft_tree_height", GAUGE, "tree.height", "Levels of the metadata tree."},
	{"weft_tree_lookups_total", COUNTER, "tree.lookups",
		"Look-ups of items in the metadata tree."},
	{"weft_tree_restarts_total", COUNTER, "tree.restarts",
		"Descents of the tree that had to be repeated."},
	{"weft_tree_splits_total", COUNTER, "tree.splits", "Splits of tree pages."},
	{"weft_tree_merges_total", COUNTER, "tree.merges", "Merges of tree pages."},
	{"weft_tree_grown_total", COUNTER, "tree.grown",
		"Tree pages that grew in place because their parent could not be changed."},
	{"weft_tree_splits_elsewhere_total", COUNTER, "tree.split_elsewhere",
		"Splits that the page's home made on behalf of this node."},
	{"weft_tree_commits_total", COUNTER, "tree.commits", "Transactions committed."},
	{"weft_tree_conflicts_total", COUNTER, "tree.conflicts",
		"Transactions that had to be repeated."},
	{"weft_tree_waits_total", COUNTER, "tree.waits", "Waits for a page of the tree."},
	{"weft_tree_guesses_right_total", COUNTER, "tree.guesses_right",
		"Leaves of the tree that were found without the pages above them."},
	{"weft_tree_guesses_wrong_total", COUNTER, "tree.guesses_wrong",
		"Pages that were requested as a leaf and were not that leaf."},
	{"weft_tree_guesses_refused_total", COUNTER, "tree.guesses_refused",
		"Pages that were requested as a leaf and could not be had."},
	{"weft_tree_leaf_calls_total", COUNTER, "tree.leaf_calls",
		"Questions to other nodes for the place of a leaf of the tree."},
	{"weft_tree_learned_leaves", GAUGE, "tree.learned_leaves",
		"Leaves of the tree whose places are noted."},
	{"weft_tree_learned_bytes", GAUGE, "tree.learned_bytes",
		"Memory for the places of leaves, used or not."},
	{"weft_operation_restarts_total", COUNTER, "operation_restarts",
		"Operations that had to be repeated."},
	{"weft_listed_ahead_total", COUNTER, "listed_ahead",
		"Entries of listings whose inodes were read ahead."},
	{"weft_listed_ahead_used_total", COUNTER, "listed_ahead_used",
		"Lookups of entries whose inodes were read ahead."},

	{"weft_session_requests_total", COUNTER, "session.requests",
		"Requests received from the kernel."},
	{"weft_session_uring_requests_total", COUNTER, "session.uring_requests",
		"Requests received through io_uring."},
	{"weft_session_workers", GAUGE, "session.workers",
		"Threads that serve requests."},
	{"weft_session_workers_most", GAUGE, "session.workers_most",
		"Highest number of request threads so far."},
	{"weft_session_read_bytes_total", COUNTER, "session.bytes_read",
		"Bytes read by the kernel."},
	{"weft_session_written_bytes_total", COUNTER, "session.bytes_written",
		"Bytes written by the kernel."},

	{"weft_recovery_log_bytes", GAUGE, "recovery.log_bytes",
		"Bytes of log read when the volume was opened."},
	{"weft_recovery_pages", GAUGE, "recovery.pages",
		"Pages redone when the volume was opened."},
	{"weft_recovery_redone_seconds", GAUGE, "recovery.redone_ns",
		"Time from the start until the log was redone."},
	{"weft_recovery_met_seconds", GAUGE, "recovery.met_ns",
		"Time from the start until the other nodes were connected."},
	{"weft_recovery_seconds", GAUGE, "recovery.took_ns",
		"Time from the start until the volume was open."},

	{"weft_cluster_epoch", GAUGE, "cluster.coherence.epoch", "Epoch of the cluster."},
	{"weft_cluster_shard_served", GAUGE, "cluster.coherence.shard_served",
		"1 if this node's shard is served; 0 while it waits for nodes that are away."},
	{"weft_cluster_change_ended", GAUGE, "cluster.coherence.change.ended",
		"1 if all connected nodes resumed service after the last epoch change."},
	{"weft_cluster_change_seconds", GAUGE, "cluster.coherence.change.all_served_ns",
		"Duration of the last epoch change; 0 while it lasts."},
	{"weft_cluster_change_pages_reported", GAUGE,
		"cluster.coherence.change.pages_reported",
		"Pages that this node reported to their homes in the last epoch change."},
	{"weft_cluster_change_pages_heard", GAUGE, "cluster.coherence.change.pages_heard",
		"Pages that other nodes reported to this node in the last epoch change."},
	{"weft_coherence_pages", GAUGE, "cluster.coherence.pages",
		"Pages with a record in this node's directory."},
	{"weft_coherence_pages_awake", GAUGE, "cluster.coherence.pages_awake",
		"Page records with an operation under way."},
	{"weft_coherence_record_bytes", GAUGE, "cluster.coherence.record_bytes",
		"Memory of the page records."},
	{"weft_coherence_deferred_total", COUNTER, "cluster.coherence.deferred",
		"Requests of other nodes that had to wait on this node."},
	{"weft_coherence_gives_tried_again_total", COUNTER,
		"cluster.coherence.gives_tried_again",
		"Repeated attempts to revoke a page from this node."},
	{"weft_coherence_ease_looks_total", COUNTER, "cluster.coherence.ease_looks",
		"Checks of requests that wait long for this node's kernel to drop a page."},
	{"weft_coherence_eased_unheard_total", COUNTER, "cluster.coherence.eased_unheard",
		"Checks that found the page dropped without a notification (a fault of weft)."},
	{"weft_coherence_forced_total", COUNTER, "cluster.coherence.forced",
		"Pages that were revoked before the operation that had fetched them used them."},
	{"weft_coherence_given_back_total", COUNTER, "cluster.coherence.given_back",
		"Pages that were revoked while the operation that had fetched them waited for "
		"others."},
	{"weft_coherence_alone_again_total", COUNTER, "cluster.coherence.alone_again",
		"Pages of this node's shard whose last other sharer has dropped them."},
	{"weft_coherence_taken_over_total", COUNTER, "cluster.coherence.taken_over",
		"Dirty pages that this home adopted from evicting nodes."},
	{"weft_coherence_declined_total", COUNTER, "cluster.coherence.declined",
		"Evictions that this home declined."},
	{"weft_coherence_downgrades_total", COUNTER, "cluster.coherence.downgrades",
		"Idle pages that this node downgraded from exclusive to shared."},
};

/* Of each other node, by its object in cluster.nodes. */
static const struct metric peer_metrics[] = {
	{"weft_peer_up", GAUGE, "up", "1 if the other node is connected."},
	{"weft_peer_unmounted", GAUGE, "unmounted",
		"1 if the volume is no longer mounted on the other node."},
	{"weft_peer_waiting_requests", GAUGE, "waiting_requests",
		"Requests of this mount that wait for the other node, which is away."},
	{"weft_peer_away_seconds", GAUGE, "away_s",
		"Time since the other node is away; absent while it is up."},
	{"weft_peer_incarnation", GAUGE, "incarnation",
		"Incarnation (number of the last known start) of the other node."},
	{"weft_peer_messages_sent_total", COUNTER, "traffic.messages_out",
		"Messages sent to the other node."},
	{"weft_peer_messages_received_total", COUNTER, "traffic.messages_in",
		"Messages received from the other node."},
	{"weft_peer_writes_sent_total", COUNTER, "traffic.writes_out",
		"One-sided writes into the other node's memory."},
	{"weft_peer_writes_received_total", COUNTER, "traffic.writes_in",
		"One-sided writes of the other node into this node's memory."},
	{"weft_peer_reads_sent_total", COUNTER, "traffic.reads_out",
		"One-sided reads of the other node's memory."},
	{"weft_peer_reads_received_total", COUNTER, "traffic.reads_in",
		"One-sided reads of this node's memory by the other node."},
	{"weft_peer_sent_bytes_total", COUNTER, "traffic.data_bytes_out",
		"Bytes of data sent to the other node, without messages."},
	{"weft_peer_received_bytes_total", COUNTER, "traffic.data_bytes_in",
		"Bytes of data received from the other node, without messages."},
	{"weft_peer_send_calls_total", COUNTER, "traffic.calls_out",
		"System calls that sent messages and data."},
	{"weft_peer_receive_calls_total", COUNTER, "traffic.calls_in",
		"System calls that received messages and data."},
	{"weft_peer_links_total", COUNTER, "traffic.links", "Links made with the other node."},
	{"weft_peer_cuts_total", COUNTER, "traffic.cuts", "Links with the other node that ended."},
	{"weft_peer_checksum_errors_total", COUNTER, "traffic.checksum_errors",
		"Images and messages received with a wrong checksum: they changed on the way."},
};

/* Of each storage node: what the asked one has cached of its shard. */
static const struct metric home_metrics[] = {
	{"weft_cached_pages", GAUGE, "cached.pages", "Pages that this node caches, by their home."},
	{"weft_cached_exclusive_pages", GAUGE, "cached.exclusive",
		"Cached pages that no other node has."},
	{"weft_cached_dirty_pages", GAUGE, "cached.dirty",
		"Cached pages that are newer than their home's store."},
	{"weft_cached_owed_images", GAUGE, "cached.owed",
		"Images given up dirty and kept until their home has persisted them."},
};

/* ---- samples ------------------------------------------------------------------------- */

static void put_label(FILE *to, const char *key, const char *value)
{
	fprintf(to, "%s=\"", key);
	for (; *value; value++) {
		if (*value == '\n')
			fputs("\\n", to);
		else if (*value == '"' || *value == '\\')
			fprintf(to, "\\%c", *value);
		else
			fputc(*value, to);
	}
	fputc('"', to);
}

static const char *text_of(const json_t *o, const char *key)
{
	const char *s = json_string_value(json_object_get(o, key));

	return s ? s : "";
}

/* Which daemon: the volume, and the node where it has several. */
static void put_labels(FILE *to, const json_t *status)
{
	json_int_t node = json_integer_value(json_object_get(status, "node"));

	fputc('{', to);
	put_label(to, "volume", text_of(status, "volume_uuid"));
	if (node)
		fprintf(to, ",node=\"%" JSON_INTEGER_FORMAT "\"", node);
}

static const json_t *find_path(const json_t *o, const char *path)
{
	char key[32];

	while (o && *path) {
		size_t len = strcspn(path, ".");

		WEFT_ASSERT(len < sizeof(key));
		memcpy(key, path, len);
		key[len] = '\0';
		o = json_object_get(o, key);
		path += len + (path[len] == '.');
	}
	return o;
}

static bool in_nanoseconds(const char *path)
{
	size_t len = strlen(path);

	return len > 3 && strcmp(path + len - 3, "_ns") == 0;
}

static void put_value(FILE *to, const json_t *value, const char *path)
{
	if (in_nanoseconds(path))
		fprintf(to, "} %.9f\n", (double)json_integer_value(value) / 1e9);
	else if (json_is_integer(value))
		fprintf(to, "} %" JSON_INTEGER_FORMAT "\n", json_integer_value(value));
	else if (json_is_real(value))
		fprintf(to, "} %.6f\n", json_real_value(value));
	else
		fprintf(to, "} %d\n", json_is_true(value));
}

static void put_family(FILE *to, const char *name, const char *type, const char *help)
{
	fprintf(to, "# HELP %s %s\n# TYPE %s %s\n", name, help, name, type);
}

static void put_metric_family(FILE *to, const struct metric *m, bool *begun)
{
	if (!*begun)
		put_family(
			to, m->name, m->type == COUNTER ? "counter" : "gauge", m->help);
	*begun = true;
}

/* ---- families -------------------------------------------------------------------------- */

static void put_metric(FILE *to, const struct metric *m, const json_t *statuses)
{
	bool begun = false;
	json_t *status;
	size_t i;

	json_array_foreach(statuses, i, status)
	{
		const json_t *value = find_path(status, m->path);

		if (!value)
			continue;
		put_metric_family(to, m, &begun);
		fputs(m->name, to);
		put_labels(to, status);
		put_value(to, value, m->path);
	}
}

/* Of each node whose object has it: `label` is its id. */
static void put_nodes(FILE *to, const struct metric *m, const char *label,
	const char *condition, const json_t *statuses)
{
	bool begun = false;
	json_t *status, *node;
	size_t i, n;

	json_array_foreach(statuses, i, status)
	{
		json_array_foreach(find_path(status, "cluster.nodes"), n, node)
		{
			const json_t *value = find_path(node, m->path);

			if (!value || !json_object_get(node, condition))
				continue;
			put_metric_family(to, m, &begun);
			fputs(m->name, to);
			put_labels(to, status);
			fprintf(to, ",%s=\"%" JSON_INTEGER_FORMAT "\"", label,
				json_integer_value(json_object_get(node, "id")));
			put_value(to, value, m->path);
		}
	}
}

static void put_messages(FILE *to, const json_t *statuses)
{
	static const struct metric m = {"weft_coherence_messages_sent_total", COUNTER, "",
		"Messages of the page protocol sent, by type."};
	bool begun = false;
	const char *type;
	json_t *status, *value;
	size_t i;

	json_array_foreach(statuses, i, status)
	{
		json_object_foreach((json_t *)find_path(status, "cluster.coherence.sent"),
			type, value)
		{
			put_metric_family(to, &m, &begun);
			fputs(m.name, to);
			put_labels(to, status);
			fputc(',', to);
			put_label(to, "type", type);
			put_value(to, value, m.path);
		}
	}
}

static void put_info(FILE *to, const json_t *statuses)
{
	static const char *const keys[] = {"version", "label", "store", "mount_point"};
	json_t *status;
	size_t i;

	put_family(to, "weft_info", "gauge", "Always 1. The labels name the volume and its mount.");
	json_array_foreach(statuses, i, status)
	{
		fputs("weft_info", to);
		put_labels(to, status);
		for (unsigned k = 0; k < ARRAY_SIZE(keys); k++) {
			fputc(',', to);
			put_label(to, keys[k], text_of(status, keys[k]));
		}
		fputs("} 1\n", to);
	}
}

#define DURATIONS "weft_request_duration_seconds"

static void put_bucket(
	FILE *to, const json_t *status, const char *request, const char *le, json_int_t n)
{
	fputs(DURATIONS "_bucket", to);
	put_labels(to, status);
	fputc(',', to);
	put_label(to, "request", request);
	fprintf(to, ",le=\"%s\"} %" JSON_INTEGER_FORMAT "\n", le, n);
}

static void put_sum(FILE *to, const json_t *status, const char *request, const char *what,
	const json_t *value, const char *path)
{
	fprintf(to, DURATIONS "_%s", what);
	put_labels(to, status);
	fputc(',', to);
	put_label(to, "request", request);
	put_value(to, value, path);
}

static void put_histogram(
	FILE *to, const json_t *status, const char *request, const json_t *one)
{
	const json_t *count = json_object_get(one, "count");
	const json_t *total = json_object_get(one, "total_ns");
	json_t *below;
	char le[32];
	size_t i;

	if (!total) /* a daemon of an earlier version */
		return;
	json_array_foreach(json_object_get(one, "below"), i, below)
	{
		snprintf(le, sizeof(le), "%.9f",
			(double)(1ull << (LATENCY_POWER_FIRST + i)) / 1e9);
		put_bucket(to, status, request, le, json_integer_value(below));
	}
	put_bucket(to, status, request, "+Inf", json_integer_value(count));
	put_sum(to, status, request, "sum", total, "total_ns");
	put_sum(to, status, request, "count", count, "count");
}

static void put_requests(FILE *to, const json_t *statuses)
{
	const char *request;
	json_t *status, *one;
	size_t i;

	put_family(to, DURATIONS, "histogram",
		"From the receipt of a request of the kernel to its answer.");
	json_array_foreach(statuses, i, status)
	{
		json_object_foreach(json_object_get(status, "requests"), request, one)
		{
			put_histogram(to, status, request, one);
		}
	}
}

/* ---- single values ----------------------------------------------------------------------- */

static double value_number(const json_t *value, const char *path)
{
	double number = json_is_boolean(value) ? json_is_true(value) : json_number_value(value);

	return in_nanoseconds(path) ? number / 1e9 : number;
}

static const struct metric *find_metric(
	const struct metric *table, size_t count, const char *name)
{
	for (size_t i = 0; i < count; i++)
		if (strcmp(table[i].name, name) == 0)
			return &table[i];
	return NULL;
}

static bool sum_nodes(const json_t *status, const struct metric *m, double *out)
{
	bool found = false;
	json_t *node;
	size_t n;

	*out = 0;
	json_array_foreach(find_path(status, "cluster.nodes"), n, node)
	{
		const json_t *value = find_path(node, m->path);

		if (!value)
			continue;
		*out += value_number(value, m->path);
		found = true;
	}
	return found;
}

bool metrics_value(const json_t *status, const char *name, double *out)
{
	const struct metric *m = find_metric(metrics, ARRAY_SIZE(metrics), name);
	const json_t *value;

	if (!m) {
		m = find_metric(peer_metrics, ARRAY_SIZE(peer_metrics), name);
		WEFT_ASSERT(m);
		return sum_nodes(status, m, out);
	}
	value = find_path(status, m->path);
	if (value)
		*out = value_number(value, m->path);
	return value != NULL;
}

/* ---- all ----------------------------------------------------------------------------------- */

void metrics_print(FILE *to, const json_t *statuses)
{
	put_info(to, statuses);
	for (unsigned i = 0; i < ARRAY_SIZE(metrics); i++)
		put_metric(to, &metrics[i], statuses);
	for (unsigned i = 0; i < ARRAY_SIZE(peer_metrics); i++)
		put_nodes(to, &peer_metrics[i], "peer", "traffic", statuses);
	for (unsigned i = 0; i < ARRAY_SIZE(home_metrics); i++)
		put_nodes(to, &home_metrics[i], "home", "cached", statuses);
	put_messages(to, statuses);
	put_requests(to, statuses);
}
