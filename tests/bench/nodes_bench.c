/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several nodes of one volume, each a process, over tcp or shm: what pages of other nodes
 * cost at engine level.
 *
 *	nodes_bench fetch HOW [PAGES]      pages of node 1's memory, one at a time, by node 2
 *	nodes_bench sequential HOW [MIB]   the same, 1 MiB at a time, with read-ahead
 *	nodes_bench third HOW [MIB]        node 2 reads pages of node 1's device, then node 3 does
 *	nodes_bench contend HOW NODES [MS] one page that all nodes count up
 *
 * HOW: tcp or shm. Prints lines NAME=VALUE: times in ns, bytes_per_second; messages, sends
 * (system calls, or for shm none) and bytes for each page or operation.
 */
#include <errno.h>
#include <sys/resource.h>

#include "tests/bench/nodes_processes.h"
#include "tests/unit/cache_fixture.h"

#define BASE_SLOT 10
#define MIB       (1u << 20)
#define BATCH     (MIB / PAGE_SIZE)
/* third: the home has few of the pages in memory */
#define HOME_FRAMES 2048u

static struct bench {
	struct world w; /* first: nodes know it by that */
	unsigned count, pages, frames;
	uint64_t run_ms;
	uint64_t device_reads[3]; /* third: node 1's pages read, before and after each reader */
	void (*run)(struct node *n, struct engine *e);
	/* contend: what each has done */
	struct {
		uint64_t operations, turns, p99_ns, messages, retries;
	} share[NODES_MAX];
} * bench;

static uint64_t now_ns(void)
{
	return rt_now_ns();
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static page_id pid_of(unsigned i)
{
	return pid_make(0, BASE_SLOT + i); /* node 1 is the home of all */
}

/* The pages are in node 1's memory, and written. No memory is touched for the first time
 * later. */
static void fill_pages(struct node *n, struct engine *e)
{
	memset(e->cache->frames.image, 1, (size_t)e->cache->frames.count * PAGE_SIZE);
	for (unsigned i = 0; n->id == 1 && i < bench->pages; i++) {
		struct guard g;

		OK(guard_fill(e->cache, pid_of(i), 1, &g));
		memset(g.image, (int)i, PAGE_SIZE);
		guard_release_dirty(e->cache, &g, false);
	}
	OK(cache_checkpoint(e->cache));
	barrier(n);
}

static void print_traffic(
	const struct net_counters *a, const struct net_counters *b, double per)
{
	print_value("messages_out", (double)(b->messages_out - a->messages_out) / per);
	print_value("messages_in", (double)(b->messages_in - a->messages_in) / per);
	print_value("calls_out", (double)(b->calls_out - a->calls_out) / per);
	print_value("calls_in", (double)(b->calls_in - a->calls_in) / per);
	print_value("bytes_in", (double)(b->bytes_in - a->bytes_in) / per);
}

/* So many of its pages node 2 gets before it uses a frame again; what comes after is as in
 * the long run: no node touches memory of another for the first time. */
static void third_run(struct node *n, struct engine *e);

static unsigned frames_of(const struct node *n)
{
	if (bench->run == third_run)
		return n->id == 1 ? HOME_FRAMES : bench->frames;
	return n->id == 1 ? bench->frames : bench->pages / 4 + 4096;
}

/* ---- one page at a time --------------------------------------------------------------------- */

static void fetch_run(struct node *n, struct engine *e)
{
	uint64_t *ns = calloc(bench->pages, sizeof(*ns));
	struct net_counters before, after = {0};
	unsigned first = frames_of(n);
	unsigned counted = first / 2; /* evicts nothing before that */

	fill_pages(n, e);
	before = node_traffic(n);
	for (unsigned i = 0; n->id == 2 && i < bench->pages; i++) {
		uint64_t began = now_ns();
		struct guard g;

		if (i == counted)
			after = node_traffic(n);
		OK(guard_shared(e->cache, pid_of(i), 1, &g));
		HOLDS(g.image[17] == (uint8_t)i);
		guard_release(e->cache, &g);
		ns[i] = now_ns() - began;
	}
	barrier(n);
	if (n->id == 2) {
		size_t count = bench->pages - first;
		uint64_t median, last;

		qsort(ns + first, count, sizeof(*ns), compare);
		median = ns[first + count / 2];
		last = ns[first + count * 99 / 100];
		print_value("median_ns", (double)median);
		print_value("p99_ns", (double)last);
		print_traffic(&before, &after, counted);
	}
	free(ns);
}

/* ---- a mebibyte at a time ------------------------------------------------------------------- */

static void batch_refs(struct page_ref refs[BATCH], unsigned i)
{
	for (unsigned k = 0; k < BATCH; k++)
		refs[k] = (struct page_ref){pid_of(i * BATCH + k), 1};
}

/* Reads the i-th batch, and requests two ahead of it. */
static void read_batch(struct engine *e, unsigned i, unsigned batches)
{
	struct page_ref refs[BATCH];
	struct guard g[BATCH];

	for (unsigned ahead = i ? i + 2 : 1; ahead <= i + 2 && ahead < batches; ahead++) {
		batch_refs(refs, ahead);
		cache_prefetch(e->cache, refs, BATCH, true);
	}
	batch_refs(refs, i);
	OK(guard_shared_batch(e->cache, refs, BATCH, false, g));
	for (unsigned k = 0; k < BATCH; k++) {
		HOLDS(g[k].image[17] == (uint8_t)(i * BATCH + k));
		guard_release(e->cache, &g[k]);
	}
}

static void sequential_run(struct node *n, struct engine *e)
{
	struct net_counters before, after;
	unsigned batches = bench->pages / BATCH, first = frames_of(n) / BATCH + 1;
	uint64_t began = 0;
	double worked;

	fill_pages(n, e);
	before = node_traffic(n);
	worked = processor_ns();
	for (unsigned i = 0; n->id == 2 && i < batches; i++) {
		if (i == first) {
			before = node_traffic(n);
			worked = processor_ns();
			began = now_ns();
		}
		read_batch(e, i, batches);
	}
	if (n->id == 2) {
		double s = (double)(now_ns() - began) / 1e9;
		unsigned pages = (batches - first) * BATCH;

		after = node_traffic(n);
		print_value("bytes_per_second", (double)pages * PAGE_SIZE / s);
		print_value("processor_ns", (processor_ns() - worked) / pages);
		print_traffic(&before, &after, pages);
	}
	barrier(n);
	if (n->id == 1) {
		after = node_traffic(n);
		print_value(
			"home_processor_ns", (processor_ns() - worked) / bench->pages);
		print_value("home_calls_out",
			(double)(after.calls_out - before.calls_out) / bench->pages);
	}
}

/* ---- pages in another node's memory, and not in their home's -------------------------------- */

static void third_run(struct node *n, struct engine *e)
{
	unsigned batches = bench->pages / BATCH;

	fill_pages(n, e);
	for (unsigned reader = 2; reader <= 3; reader++) {
		struct net_counters before = node_traffic(n), after;
		uint64_t began = now_ns();

		if (n->id == 1)
			bench->device_reads[reader - 2] = store_counters(e->store)->pages_read;
		barrier(n);
		for (unsigned i = 0; n->id == reader && i < batches; i++)
			read_batch(e, i, batches);
		after = node_traffic(n);
		if (n->id == reader)
			print_value(reader == 2 ? "second_bytes_per_second" : "bytes_per_second",
				(double)bench->pages * PAGE_SIZE * 1e9 / (double)(now_ns() - began));
		if (n->id == 3 && reader == 3)
			print_traffic(&before, &after, bench->pages);
		barrier(n);
		if (n->id == 1)
			bench->device_reads[reader - 1] = store_counters(e->store)->pages_read;
	}
	if (n->id != 1)
		return;
	for (unsigned reader = 2; reader <= 3; reader++)
		print_value(reader == 2 ? "second_device_reads" : "device_reads",
			(double)(bench->device_reads[reader - 1] - bench->device_reads[reader - 2]) /
				bench->pages);
}

/* ---- one page that all want ------------------------------------------------------------------- */

#define WAITS_MAX 1000000u

/* Of one number of each node: the least and the most, where 1 is an equal share. */
static void print_shares(const char *what, const uint64_t *of)
{
	uint64_t total = 0, least = UINT64_MAX, most = 0;
	char name[32];

	for (unsigned i = 0; i < bench->w.nodes; i++) {
		total += of[i];
		least = MIN(least, of[i]);
		most = MAX(most, of[i]);
	}
	print_value(what, (double)total);
	snprintf(name, sizeof(name), "least_%s", what);
	print_value(name, (double)least * bench->w.nodes / (double)total);
	snprintf(name, sizeof(name), "most_%s", what);
	print_value(name, (double)most * bench->w.nodes / (double)total);
}

static void contend_print(void)
{
	uint64_t operations[NODES_MAX], turns[NODES_MAX], messages = 0, all = 0, p99 = 0;
	uint64_t retries = 0;

	for (unsigned i = 0; i < bench->w.nodes; i++) {
		operations[i] = bench->share[i].operations;
		turns[i] = bench->share[i].turns;
		all += turns[i];
		messages += bench->share[i].messages;
		retries += bench->share[i].retries;
		p99 = MAX(p99, bench->share[i].p99_ns);
	}
	print_shares("operations", operations);
	print_shares("turns", turns);
	print_value("wait_p99_ns", (double)p99);
	print_value("messages", (double)messages / (double)all);
	print_value("retries", (double)retries / (double)all);
}

/* A turn: the page was not here, and came. */
static void contend_run(struct node *n, struct engine *e)
{
	uint64_t *ns = calloc(WAITS_MAX, sizeof(*ns)), done = 0, turns = 0, began;
	struct net_counters before, after;

	fill_pages(n, e);
	before = node_traffic(n);
	began = now_ns();
	while (now_ns() < began + bench->run_ms * 1000000) {
		uint64_t at = now_ns(), misses = cache_counters(e->cache)->misses;
		struct guard g;
		uint64_t count;

		OK(guard_exclusive(e->cache, pid_of(0), 1, &g));
		count = page_load_u64(g.image) + 1;
		guard_store(&g, 0, &count, sizeof(count));
		guard_release_dirty(e->cache, &g, false);
		done++;
		if (cache_counters(e->cache)->misses != misses && turns < WAITS_MAX)
			ns[turns++] = now_ns() - at;
	}
	after = node_traffic(n);
	qsort(ns, turns, sizeof(*ns), compare);
	bench->share[n->id - 1].operations = done;
	bench->share[n->id - 1].turns = turns;
	bench->share[n->id - 1].p99_ns = turns ? ns[turns * 99 / 100] : 0;
	bench->share[n->id - 1].retries =
		coherence_counters(n->coherence)->gives_tried_again;
	bench->share[n->id - 1].messages = after.messages_out - before.messages_out;
	free(ns);
	barrier(n);
	if (n->id == 1)
		contend_print();
}

/* ---- a node --------------------------------------------------------------------------------- */

static void engine_run(struct node *n)
{
	struct cache_options co = {.cache_bytes = frames_of(n) * (uint64_t)PAGE_SIZE};
	struct engine e;

	engine_format_shard(n->file.path, 64 << 20, (uint16_t)(n->id - 1));
	engine_open_log(&e, n->file.path);
	e.coherence = node_provide(n, e.store, e.log);
	OK(cache_open(&e.cache, e.store, e.log, e.coherence, &co));
	node_join(n);
	OK(cache_start(e.cache));
	barrier(n);
	bench->run(n, &e);
	barrier(n);
	cache_stop(e.cache);
	node_part_all(n);
	engine_close(&e);
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "", *how = argc > 2 ? argv[2] : "";
	unsigned nodes = 2;
	int failed;

	bench = nodes_share(sizeof(*bench));
	if (!strcmp(what, "fetch")) {
		bench->run = fetch_run;
		bench->pages = argc > 3 ? (unsigned)atoi(argv[3]) : 20000;
	} else if (!strcmp(what, "sequential")) {
		bench->run = sequential_run;
		bench->pages = (argc > 3 ? (unsigned)atoi(argv[3]) : 128) * BATCH;
	} else if (!strcmp(what, "third")) {
		bench->run = third_run;
		bench->pages = (argc > 3 ? (unsigned)atoi(argv[3]) : 64) * BATCH;
		nodes = 3;
	} else if (!strcmp(what, "contend") && argc > 3) {
		bench->run = contend_run;
		nodes = MIN((unsigned)atoi(argv[3]), (unsigned)NODES_MAX);
		bench->run_ms = argc > 4 ? (unsigned)atoi(argv[4]) : 1000;
		bench->pages = 1;
	}
	if (!bench->run || (strcmp(how, "tcp") && strcmp(how, "shm"))) {
		fprintf(stderr, "usage: nodes_bench fetch|sequential|third|contend tcp|shm "
				"[NODES] [COUNT]\n");
		return 2;
	}
	if (bench->run != contend_run && bench->pages < 6144) {
		fprintf(stderr, "nodes_bench: at least 6144 pages, or 24 MiB\n");
		return 2;
	}
	bench->frames = bench->pages + bench->pages / 4 + 4096;
	world_make_real(&bench->w, how, nodes, NULL,
		(128ull << 20) + 2ull * bench->pages * PAGE_SIZE);
	failed = nodes_processes(&bench->w, engine_run);
	world_drop_real(&bench->w);
	return failed;
}
