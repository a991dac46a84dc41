/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The status of a running daemon, as JSON.
 *
 * Numbers are read one after the other while the daemon goes on. Each is right, but they are not of
 * one moment. Names end in their unit. Counters count from the start.
 */
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "fs/contended.h"
#include "fs/daemon.h"
#include "fs/waits.h"

static json_t *counter_json(const _Atomic uint64_t *c)
{
	return json_integer((json_int_t)atomic_load_explicit(c, memory_order_relaxed));
}

static void put_number(json_t *o, const char *key, uint64_t value)
{
	json_object_set_new(o, key, json_integer((json_int_t)value));
}

#define PUT_COUNTER(o, counters, field)                                                  \
	json_object_set_new((o), #field, counter_json(&(counters)->field))

static json_t *cache_status(struct volume *v)
{
	struct cache_counters *c = cache_counters(v->cache);
	struct kernel_counters *k = cache_kernel_counters(v->cache);
	json_t *o = json_object();

	put_number(o, "bytes", cache_frame_count(v->cache) * PAGE_SIZE);
	put_number(o, "frames", cache_frame_count(v->cache));
	put_number(o, "free_frames", cache_free_frames(v->cache));
	put_number(o, "dirty_pages", cache_dirty_pages(v->cache));
	PUT_COUNTER(o, c, hits);
	PUT_COUNTER(o, c, misses);
	PUT_COUNTER(o, c, fetch_requests);
	PUT_COUNTER(o, c, prefetches);
	PUT_COUNTER(o, c, evictions);
	PUT_COUNTER(o, c, evicted_dirty);
	PUT_COUNTER(o, c, swept);
	PUT_COUNTER(o, c, stays);
	PUT_COUNTER(o, c, pages_written);
	PUT_COUNTER(o, c, write_batches);
	PUT_COUNTER(o, c, write_failures);
	if (cache_write_error(v->cache))
		json_object_set_new(o, "write_error",
			json_string(strerrordesc_np(-cache_write_error(v->cache))));
	PUT_COUNTER(o, c, sync_logged);
	PUT_COUNTER(o, c, sync_in_place);
	PUT_COUNTER(o, c, checkpoints);
	PUT_COUNTER(o, c, latch_waits);
	PUT_COUNTER(o, c, latch_restarts);
	PUT_COUNTER(o, c, frame_waits);
	if (k) {
		PUT_COUNTER(o, k, kernel_drops);
		PUT_COUNTER(o, k, kernel_inodes);
		PUT_COUNTER(o, k, kernel_inodes_dropped);
	}
	return o;
}

static json_t *log_status(struct volume *v)
{
	struct log_counters *c = log_counters(v->log);
	json_t *o = json_object();

	put_number(o, "bytes", log_ring_bytes(v->log));
	put_number(o, "used_bytes", log_used_bytes(v->log));
	put_number(o, "tail_lsn", log_tail(v->log));
	put_number(o, "end_lsn", log_end(v->log));
	put_number(o, "durable_lsn", log_durable(v->log));
	put_number(o, "failed", log_failed(v->log) != 0);
	PUT_COUNTER(o, c, records);
	PUT_COUNTER(o, c, record_bytes);
	PUT_COUNTER(o, c, chunks);
	PUT_COUNTER(o, c, chunk_bytes);
	PUT_COUNTER(o, c, flushes);
	PUT_COUNTER(o, c, flush_waits);
	PUT_COUNTER(o, c, reserve_waits);
	return o;
}

static json_t *store_status(struct volume *v)
{
	struct store_counters *c = store_counters(v->store);
	json_t *o = json_object();

	put_number(o, "bytes", store_superblock(v->store)->store_bytes);
	PUT_COUNTER(o, c, pages_read);
	PUT_COUNTER(o, c, pages_written);
	PUT_COUNTER(o, c, read_requests);
	PUT_COUNTER(o, c, write_requests);
	PUT_COUNTER(o, c, flushes);
	PUT_COUNTER(o, c, table_reads);
	PUT_COUNTER(o, c, table_writes);
	PUT_COUNTER(o, c, checksum_failures);
	return o;
}

static json_t *tree_status(struct volume *v)
{
	struct tree_counters *c = tree_counters(v->tree);
	json_t *o = json_object();

	put_number(o, "height", tree_height(v->tree));
	PUT_COUNTER(o, c, lookups);
	PUT_COUNTER(o, c, restarts);
	PUT_COUNTER(o, c, splits);
	PUT_COUNTER(o, c, merges);
	PUT_COUNTER(o, c, grown);
	PUT_COUNTER(o, c, split_elsewhere);
	PUT_COUNTER(o, c, commits);
	PUT_COUNTER(o, c, conflicts);
	PUT_COUNTER(o, c, waits);
	PUT_COUNTER(o, c, guesses_right);
	PUT_COUNTER(o, c, guesses_wrong);
	PUT_COUNTER(o, c, guesses_refused);
	PUT_COUNTER(o, c, leaf_calls);
	put_number(o, "learned_leaves", tree_learned(v->tree));
	put_number(o, "learned_bytes", tree_learned_bytes(v->tree));
	return o;
}

static json_t *space_status(struct volume *v)
{
	struct space_stat st;
	json_t *o = json_object();

	space_stat(v->space, &st);
	put_number(o, "total_bytes", st.total_pages * PAGE_SIZE);
	put_number(o, "free_bytes", st.free_pages * PAGE_SIZE);
	put_number(o, "available_bytes", st.available_pages * PAGE_SIZE);
	return o;
}

static json_t *recovery_status(struct volume *v)
{
	json_t *o = json_object();

	json_object_set_new(o, "was_clean", json_boolean(v->recovery.was_clean));
	put_number(o, "log_bytes", v->recovery.log_bytes);
	put_number(o, "records", v->recovery.records);
	put_number(o, "pages", v->recovery.pages);
	put_number(o, "redone_ns", v->recovery.redone_ns);
	if (v->calls)
		put_number(o, "met_ns", v->recovery.met_ns);
	put_number(o, "took_ns", v->recovery.took_ns);
	return o;
}

/* By FUSE opcode (<linux/fuse.h>). Opcodes that the kernel never sends have no name here. */
static const char *const request_names[SESSION_OPCODES] = {
	[0] = "other",
	[1] = "lookup",
	[2] = "forget",
	[3] = "getattr",
	[4] = "setattr",
	[5] = "readlink",
	[6] = "symlink",
	[8] = "mknod",
	[9] = "mkdir",
	[10] = "unlink",
	[11] = "rmdir",
	[12] = "rename",
	[13] = "link",
	[14] = "open",
	[15] = "read",
	[16] = "write",
	[17] = "statfs",
	[18] = "release",
	[20] = "fsync",
	[21] = "setxattr",
	[22] = "getxattr",
	[23] = "listxattr",
	[24] = "removexattr",
	[25] = "flush",
	[26] = "init",
	[27] = "opendir",
	[28] = "readdir",
	[29] = "releasedir",
	[30] = "fsyncdir",
	[31] = "getlk",
	[32] = "setlk",
	[33] = "setlkw",
	[34] = "access",
	[35] = "create",
	[36] = "interrupt",
	[37] = "bmap",
	[38] = "destroy",
	[39] = "ioctl",
	[40] = "poll",
	[42] = "batch_forget",
	[43] = "fallocate",
	[44] = "readdirplus",
	[45] = "rename2",
	[46] = "lseek",
	[47] = "copy_file_range",
	[50] = "syncfs",
	[51] = "tmpfile",
	[52] = "statx",
	[53] = "copy_file_range_64",
};

const char *status_request_name(uint32_t opcode)
{
	return opcode < SESSION_OPCODES ? request_names[opcode] : NULL;
}

/* The histogram, for metrics.c: number of values below 2^LATENCY_POWER_FIRST ns, and so on. */
static json_t *below_status(const struct latency_summary *l)
{
	json_t *list = json_array();

	for (unsigned i = 0; i < LATENCY_POWERS; i++)
		json_array_append_new(list, json_integer((json_int_t)l->below[i]));
	return list;
}

static json_t *requests_status(struct session *s)
{
	struct session_counters *c = session_counters(s);
	json_t *o = json_object();

	for (unsigned i = 0; i < SESSION_OPCODES; i++) {
		struct latency_summary l;
		char number[16];
		json_t *one;

		latency_summarise(&c->latency[i], &l);
		if (l.count == 0)
			continue;
		one = json_object();
		put_number(one, "count", l.count);
		put_number(one, "mean_ns", l.mean_ns);
		put_number(one, "p50_ns", l.p50_ns);
		put_number(one, "p90_ns", l.p90_ns);
		put_number(one, "p99_ns", l.p99_ns);
		put_number(one, "max_ns", l.max_ns);
		put_number(one, "total_ns", l.total_ns);
		json_object_set_new(one, "below", below_status(&l));
		snprintf(number, sizeof(number), "opcode%u", i);
		json_object_set_new(o, request_names[i] ? request_names[i] : number, one);
	}
	return o;
}

static json_t *session_status(struct session *s)
{
	struct session_counters *c = session_counters(s);
	json_t *o = json_object();

	put_number(o, "fuse_flags", session_init_flags(s));
	PUT_COUNTER(o, c, requests);
	PUT_COUNTER(o, c, workers);
	PUT_COUNTER(o, c, workers_most);
	json_object_set_new(o, "uring", json_boolean(session_uses_uring(s)));
	put_number(o, "uring_entries", session_uring_entries(s));
	PUT_COUNTER(o, c, uring_requests);
	PUT_COUNTER(o, c, bytes_read);
	PUT_COUNTER(o, c, bytes_written);
	return o;
}

static json_t *contended_status(struct session *s)
{
	struct contended_inode list[CONTENDED_LISTED];
	uint64_t now = rt_now_ns(), since;
	unsigned count = contended_list(
		session_contended(s), now, list, CONTENDED_LISTED, &since);
	json_t *o = json_object(), *inodes = json_array();

	json_object_set_new(o, "since_s", json_real(now > since ? (double)(now - since) / 1e9 : 0));
	for (unsigned i = 0; i < count; i++) {
		json_t *one = json_object();

		put_number(one, "inode", list[i].ino);
		put_number(one, "pages_changed", list[i].changed);
		put_number(one, "pages_read", list[i].read);
		put_number(one, "requests", list[i].requests);
		put_number(one, "took_ns", list[i].took_ns);
		json_array_append_new(inodes, one);
	}
	json_object_set_new(o, "inodes", inodes);
	return o;
}

static json_t *memory_status(void)
{
	unsigned long size = 0, resident = 0;
	FILE *f = fopen("/proc/self/statm", "re");
	json_t *o = json_object();

	if (f && fscanf(f, "%lu %lu", &size, &resident) == 2) {
		put_number(o, "virtual_bytes", (uint64_t)size * (uint64_t)sysconf(_SC_PAGESIZE));
		put_number(o, "resident_bytes",
			(uint64_t)resident * (uint64_t)sysconf(_SC_PAGESIZE));
	}
	if (f)
		fclose(f);
	return o;
}

json_t *status_identify(void *arg)
{
	struct daemon *d = arg;
	const struct disk_superblock *sb = store_superblock(d->volume->store);
	char volume_uuid[37], store_uuid[37], device[32],
		label[sizeof(sb->label) + 1] = "";
	json_t *o = json_object();

	uuid_print(sb->volume_uuid, volume_uuid);
	uuid_print(sb->store_uuid, store_uuid);
	memcpy(label, sb->label, sizeof(sb->label));
	json_object_set_new(o, "version", json_string(WEFT_VERSION));
	put_number(o, "pid", (uint64_t)getpid());
	snprintf(device, sizeof(device), "%u:%u", major(d->device), minor(d->device));
	json_object_set_new(o, "device_number", json_string(device));
	/* A path or label need not be UTF-8, which jansson requires. */
	json_object_set_new(
		o, "store", json_string(d->options.store) ?: json_string("?"));
	if (d->options.cluster_file)
		json_object_set_new(o, "cluster_file",
			json_string(d->options.cluster_file) ?: json_string("?"));
	json_object_set_new(o, "mount_point",
		json_string(atomic_load(&d->leaving) ? "-" : d->options.directory)
			?: json_string("?"));
	if (d->stays) /* unmounted, and not for a mount to take its place */
		json_object_set_new(o, "stays", json_true());
	json_object_set_new(o, "label", json_string(label) ?: json_string("?"));
	json_object_set_new(o, "volume_uuid", json_string(volume_uuid));
	json_object_set_new(o, "store_uuid", json_string(store_uuid));
	return o;
}

json_t *status_sync(void *arg)
{
	struct daemon *d = arg;
	int rc = ops_syncfs(d->fs);

	if (rc < 0)
		return json_pack("{s:s}", "error", strerror(-rc));
	return json_pack("{s:b}", "durable", 1);
}

json_t *status_leave(void *arg)
{
	struct daemon *d = arg;

	if (!atomic_load(&d->leaving))
		return json_pack("{s:s}", "error", "it is mounted");
	weft_log(6, "%s is to be mounted again", d->options.store);
	guardian_restarts(&d->guardian, false);
	atomic_store(&d->dismissed, true);
	if (atomic_load(&d->served)) /* otherwise it checks when it is */
		node_alone(d->node);
	return json_pack("{s:b}", "leaves", 1);
}

/* ---- other nodes ----------------------------------------------------------- */

static json_t *traffic_status(const struct net_counters *c)
{
	json_t *o = json_object();

	put_number(o, "messages_out", c->messages_out);
	put_number(o, "messages_in", c->messages_in);
	put_number(o, "writes_out", c->writes_out);
	put_number(o, "writes_in", c->writes_in);
	put_number(o, "reads_out", c->reads_out);
	put_number(o, "reads_in", c->reads_in);
	put_number(o, "data_bytes_out", c->bytes_out);
	put_number(o, "data_bytes_in", c->bytes_in);
	put_number(o, "sends_out", c->sends_out);
	put_number(o, "calls_out", c->calls_out);
	put_number(o, "calls_in", c->calls_in);
	put_number(o, "work_requests", c->requests);
	put_number(o, "work_requests_signalled", c->signalled);
	put_number(o, "completions", c->completions);
	put_number(o, "registrations", c->registered);
	put_number(o, "links", c->links);
	put_number(o, "cuts", c->cuts);
	put_number(o, "checksum_errors", c->checksum_errors);
	return o;
}

/* Data from the link with another node. The cluster's view of the node is separate. */
static void link_status(json_t *o, const struct node_link *l)
{
	double since_s = (double)(rt_now_ns() - l->since_ns) / 1e9;

	json_object_set_new(o, "up", json_boolean(l->connected));
	json_object_set_new(o, "unmounted", json_boolean(l->leaving));
	json_object_set_new(o, "left", json_boolean(l->left));
	json_object_set_new(o, "dead", json_boolean(l->dead));
	json_object_set_new(o, l->connected ? "up_s" : "away_s", json_real(since_s));
	if (l->connected) {
		json_object_set_new(o, "by", json_string(l->address) ?: json_string("?"));
		json_object_set_new(o, "dialed", json_boolean(l->dialed));
	}
	if (l->text[0])
		json_object_set_new(o, "why", json_string(l->text) ?: json_string("?"));
	json_object_set_new(o, "traffic", traffic_status(&l->traffic));
}

static json_t *messages_status(struct coherence *c)
{
	const struct coherence_counters *counters = coherence_counters(c);
	json_t *o = json_object();
	const char *name;

	for (unsigned i = 0; (name = coherence_sent_name(c, i)); i++) {
		uint64_t n = atomic_load_explicit(&counters->sent[i], memory_order_relaxed);

		if (n)
			put_number(o, name, n);
	}
	return o;
}

/* The steps of the last change of the cluster's epoch. */
static json_t *change_status(struct daemon *d)
{
	struct coherence_change c;
	json_t *o = json_object();

	coherence_change(d->volume->coherence, &c);
	json_object_set_new(
		o, "since_s", json_real((double)(rt_now_ns() - c.began_ns) / 1e9));
	json_object_set_new(o, "ended", json_boolean(c.resumed_ns != 0));
	put_number(o, "shard_served_ns", c.served_ns);
	put_number(o, "all_served_ns", c.resumed_ns);
	put_number(o, "pages_reported", c.reported);
	put_number(o, "pages_heard", c.received);
	put_number(o, "entries_rebuilt", c.rebuilt);
	return o;
}

static json_t *coherence_status(struct daemon *d)
{
	const struct coherence_counters *c = coherence_counters(d->volume->coherence);
	struct coherence_records records;
	json_t *o = json_object();
	bool served = false;

	coherence_records(d->volume->coherence, &records);
	put_number(o, "epoch", coherence_epoch(d->volume->coherence, &served));
	json_object_set_new(o, "shard_served", json_boolean(served));
	put_number(o, "pages", records.pages);
	put_number(o, "pages_awake", records.expanded);
	put_number(o, "record_bytes", records.bytes);
	PUT_COUNTER(o, c, deferred);
	PUT_COUNTER(o, c, gives_tried_again);
	PUT_COUNTER(o, c, ease_looks);
	PUT_COUNTER(o, c, eased_unheard);
	PUT_COUNTER(o, c, forced);
	PUT_COUNTER(o, c, given_back);
	PUT_COUNTER(o, c, taken_over);
	PUT_COUNTER(o, c, alone_again);
	PUT_COUNTER(o, c, declined);
	PUT_COUNTER(o, c, downgrades);
	json_object_set_new(o, "change", change_status(d));
	json_object_set_new(o, "sent", messages_status(d->volume->coherence));
	return o;
}

/* Number of pages of a shard, another node's or its own, in this node's cache. */
static json_t *cached_status(const struct cache_census *c)
{
	json_t *o = json_object();

	put_number(o, "pages", c->exclusive + c->shared);
	put_number(o, "exclusive", c->exclusive);
	put_number(o, "dirty", c->dirty);
	put_number(o, "owed", c->owed);
	return o;
}

/* The requests that wait for a node, and the remedy. */
static void waits_status(json_t *o, const struct daemon *d, unsigned node,
	const struct node_link *l, const struct waits_for *waits)
{
	char remedy[AWAY_REMEDY_BYTES];

	put_number(o, "waiting_requests", waits->requests);
	if (waits->requests)
		json_object_set_new(o, "waiting_s",
			json_real((double)(rt_now_ns() - waits->since_ns) / 1e9));
	if (away_remedy(d, node, l, remedy))
		json_object_set_new(o, "remedy", json_string(remedy) ?: json_string("?"));
}

static void put_cached(struct daemon *d, json_t *cluster)
{
	struct cache_census census[SHARDS_MAX];
	json_t *node;
	size_t i;

	cache_census(d->volume->cache, census);
	json_array_foreach(json_object_get(cluster, "nodes"), i, node)
	{
		const json_t *shard = json_object_get(node, "shard");

		if (shard && json_integer_value(shard) < SHARDS_MAX)
			json_object_set_new(node, "cached",
				cached_status(&census[json_integer_value(shard)]));
	}
}

static json_t *cluster_status(struct daemon *d)
{
	struct waits_for waits[WAITS_NODES] = {0};
	json_t *o = cluster_describe(d->source.cluster), *node;
	size_t i;

	if (d->session)
		waits_count(d->session, waits);

	json_array_foreach(json_object_get(o, "nodes"), i, node)
	{
		struct node_link l;
		json_int_t id = json_integer_value(json_object_get(node, "id"));

		if (d->node && node_link(d->node, (unsigned)id, &l) == 0) {
			link_status(node, &l);
			waits_status(node, d, (unsigned)id, &l, &waits[id]);
		}
	}
	if (d->node)
		json_object_set_new(o, "coherence", coherence_status(d));
	return o;
}

json_t *status_counters(void *arg)
{
	struct daemon *d = arg;
	struct volume *v = d->volume;
	struct ops_counters *ops = ops_counters(d->fs);
	char options[512];
	json_t *o = status_identify(arg);

	rt_mutex_lock(&d->options_lock);
	mount_options_print(&d->options, options, sizeof(options));
	rt_mutex_unlock(&d->options_lock);
	json_object_set_new(o, "options", json_string(options));
	if (d->source.cluster) {
		json_object_set_new(o, "cluster", cluster_status(d));
		put_number(o, "node", d->source.node);
	}
	json_object_set_new(o, "read_only", json_boolean(v->read_only));
	put_number(o, "failed", volume_failed(v) != 0);
	json_object_set_new(
		o, "uptime_s", json_real((double)(rt_now_ns() - d->started_ns) / 1e9));
	json_object_set_new(o, "space", space_status(v));
	json_object_set_new(o, "cache", cache_status(v));
	json_object_set_new(o, "log", log_status(v));
	json_object_set_new(o, "device", store_status(v));
	if (d->scrub)
		json_object_set_new(o, "scrub", scrub_describe(d));
	json_object_set_new(o, "tree", tree_status(v));
	put_number(o, "operation_restarts",
		atomic_load_explicit(&ops->restarts, memory_order_relaxed));
	PUT_COUNTER(o, ops, listed_ahead);
	PUT_COUNTER(o, ops, listed_ahead_used);
	if (d->session) {
		json_object_set_new(o, "session", session_status(d->session));
		json_object_set_new(o, "requests", requests_status(d->session));
		if (d->source.cluster)
			json_object_set_new(o, "contended", contended_status(d->session));
	}
	json_object_set_new(o, "waiting", status_waiting(d));
	json_object_set_new(o, "recovery", recovery_status(v));
	json_object_set_new(o, "memory", memory_status());
	return o;
}

json_t *status_build(void *arg)
{
	struct daemon *d = arg;
	json_t *o = status_counters(arg);

	if (d->source.cluster)
		put_cached(d, json_object_get(o, "cluster"));
	return o;
}
