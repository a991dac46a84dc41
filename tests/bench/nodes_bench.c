/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several nodes of one volume, each a process, over tcp or shm: what pages of other nodes
 * cost at engine level.
 *
 *	nodes_bench fetch HOW [PAGES]      pages of node 1's memory, one at a time, by node 2
 *	nodes_bench sequential HOW [MIB]   the same, 1 MiB at a time, with read-ahead
 *	nodes_bench contend HOW NODES [MS] one page that all nodes count up
 *
 * HOW: tcp or shm. Prints lines NAME=VALUE: times in ns, bytes_per_second; messages, sends
 * (system calls, or for shm none) and bytes for each page or operation.
 */
#include <errno.h>
#include <sys/mman.h>
#include <sys/wait.h>

#include "tests/unit/cache_fixture.h"
#include "tests/unit/nodes_fixture.h"

#define BASE_SLOT  10
#define MIB        (1u << 20)
#define BATCH      (MIB / PAGE_SIZE)
#define WARM_UP_MS 200

static struct bench {
	struct nodes w; /* first: nodes know it by that */
	unsigned count, pages, frames;
	uint64_t until_ms;
	void (*run)(struct node *n, struct engine *e);
	/* contend: what each has done */
	_Atomic uint64_t begun_ns;
	struct {
		uint64_t operations, p99_ns, messages;
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

static void print(const char *name, double value)
{
	printf("%s=%.6g\n", name, value);
}

static page_id pid_of(unsigned i)
{
	return pid_make(0, BASE_SLOT + i); /* node 1 is the home of all */
}

/* Over all links of the node. */
static struct net_counters traffic(const struct node *n)
{
	struct net_counters sum = {0}, c;

	for (unsigned id = 1; id <= n->w->count; id++) {
		if (id == n->id)
			continue;
		net_counters(net_peer_find(n->net, (uint16_t)id), &c);
		sum.messages_out += c.messages_out;
		sum.messages_in += c.messages_in;
		sum.writes_out += c.writes_out;
		sum.bytes_out += c.bytes_out;
		sum.bytes_in += c.bytes_in;
		sum.calls_out += c.calls_out;
		sum.calls_in += c.calls_in;
	}
	return sum;
}

/* The pages are in node 1's memory, and written. No memory is touched for the first time
 * later. */
static void fill_pages(struct node *n, struct engine *e)
{
	memset(e->cache->images, 1, (size_t)bench->frames * PAGE_SIZE);
	for (unsigned i = 0; n->id == 1 && i < bench->pages; i++) {
		struct guard g;

		OK(guard_fill(e->cache, pid_of(i), 1, &g));
		memset(g.image, (int)i, PAGE_SIZE);
		guard_release_dirty(e->cache, &g, false);
	}
	OK(cache_checkpoint(e->cache));
	nodes_barrier(n);
}

static void print_traffic(
	const struct net_counters *a, const struct net_counters *b, double per)
{
	print("messages_out", (double)(b->messages_out - a->messages_out) / per);
	print("messages_in", (double)(b->messages_in - a->messages_in) / per);
	print("calls_out", (double)(b->calls_out - a->calls_out) / per);
	print("calls_in", (double)(b->calls_in - a->calls_in) / per);
	print("bytes_in", (double)(b->bytes_in - a->bytes_in) / per);
}

/* ---- one page at a time --------------------------------------------------------------------- */

static void fetch_run(struct node *n, struct engine *e)
{
	uint64_t *ns = calloc(bench->pages, sizeof(*ns));
	struct net_counters before, after;
	unsigned first = bench->pages / 10;

	fill_pages(n, e);
	before = traffic(n);
	for (unsigned i = 0; n->id == 2 && i < bench->pages; i++) {
		uint64_t began = now_ns();
		struct guard g;

		OK(guard_shared(e->cache, pid_of(i), 1, &g));
		HOLDS(g.image[17] == (uint8_t)i);
		guard_release(e->cache, &g);
		ns[i] = now_ns() - began;
	}
	after = traffic(n);
	nodes_barrier(n);
	if (n->id == 2) {
		qsort(ns + first, bench->pages - first, sizeof(*ns), compare);
		print("median_ns", (double)ns[first + (bench->pages - first) / 2]);
		print("p99_ns", (double)ns[first + (bench->pages - first) * 99 / 100]);
		print_traffic(&before, &after, bench->pages);
	}
	free(ns);
}

/* ---- a mebibyte at a time ------------------------------------------------------------------- */

static void batch_refs(struct page_ref refs[BATCH], unsigned i)
{
	for (unsigned k = 0; k < BATCH; k++)
		refs[k] = (struct page_ref){pid_of(i * BATCH + k), 1};
}

static void sequential_run(struct node *n, struct engine *e)
{
	struct page_ref refs[BATCH];
	struct guard g[BATCH];
	struct net_counters before, after;
	unsigned batches = bench->pages / BATCH;
	uint64_t began;

	fill_pages(n, e);
	before = traffic(n);
	began = now_ns();
	for (unsigned i = 0; n->id == 2 && i < batches; i++) {
		for (unsigned ahead = i ? i + 2 : 1; ahead <= i + 2 && ahead < batches;
			ahead++) {
			batch_refs(refs, ahead);
			cache_prefetch(e->cache, refs, BATCH, true);
		}
		batch_refs(refs, i);
		OK(guard_shared_batch(e->cache, refs, BATCH, g));
		for (unsigned k = 0; k < BATCH; k++) {
			HOLDS(g[k].image[17] == (uint8_t)(i * BATCH + k));
			guard_release(e->cache, &g[k]);
		}
	}
	if (n->id == 2) {
		double s = (double)(now_ns() - began) / 1e9;

		after = traffic(n);
		print("bytes_per_second", (double)batches * MIB / s);
		print_traffic(&before, &after, bench->pages);
	}
	nodes_barrier(n);
	if (n->id == 1) {
		after = traffic(n);
		print("home_calls_out",
			(double)(after.calls_out - before.calls_out) / bench->pages);
	}
}

/* ---- one page that all want ------------------------------------------------------------------- */

#define WAITS_MAX 1000000u

static void contend_run(struct node *n, struct engine *e)
{
	uint64_t *ns = calloc(WAITS_MAX, sizeof(*ns)), done = 0, began;
	struct net_counters before, after;
	uint64_t total = 0, messages = 0, least = UINT64_MAX, most = 0, p99 = 0;

	fill_pages(n, e);
	before = traffic(n);
	began = now_ns();
	while (now_ns() < began + bench->until_ms * 1000000) {
		uint64_t at = now_ns();
		struct guard g;
		uint64_t count;

		OK(guard_exclusive(e->cache, pid_of(0), 1, &g));
		count = page_load_u64(g.image) + 1;
		page_store(g.image, &count, sizeof(count));
		guard_release_dirty(e->cache, &g, false);
		if (done < WAITS_MAX)
			ns[done] = now_ns() - at;
		done++;
	}
	after = traffic(n);
	qsort(ns, MIN(done, (uint64_t)WAITS_MAX), sizeof(*ns), compare);
	bench->share[n->id - 1].operations = done;
	bench->share[n->id - 1].p99_ns =
		done ? ns[MIN(done, (uint64_t)WAITS_MAX) * 99 / 100] : 0;
	bench->share[n->id - 1].messages = after.messages_out - before.messages_out;
	free(ns);
	nodes_barrier(n);
	if (n->id != 1)
		return;
	for (unsigned i = 0; i < bench->w.count; i++) {
		total += bench->share[i].operations;
		messages += bench->share[i].messages;
		least = MIN(least, bench->share[i].operations);
		most = MAX(most, bench->share[i].operations);
		p99 = MAX(p99, bench->share[i].p99_ns);
	}
	print("operations", (double)total);
	print("least_share", (double)least * bench->w.count / (double)total);
	print("most_share", (double)most * bench->w.count / (double)total);
	print("p99_ns", (double)p99);
	print("messages", (double)messages / (double)total);
}

/* ---- a node --------------------------------------------------------------------------------- */

static void engine_run(struct node *n)
{
	struct cache_options co = {.cache_bytes = bench->frames * (uint64_t)PAGE_SIZE};
	struct engine e;

	rt_real_start();
	engine_format_shard(n->file.path, 64 << 20, (uint16_t)(n->id - 1));
	engine_open_log(&e, n->file.path);
	e.coherence = node_provide(n, e.store, e.log);
	OK(cache_open(&e.cache, e.store, e.log, e.coherence, &co));
	node_join(n);
	OK(cache_start(e.cache));
	nodes_barrier(n);
	bench->run(n, &e);
	nodes_barrier(n);
	cache_stop(e.cache);
	node_leave(n);
	engine_close(&e);
	fflush(stdout);
}

/* Each node a process. */
static int run_all(const char *transport, unsigned nodes)
{
	int failed = 0;

	nodes_make(&bench->w, transport, nodes, NULL,
		(128ull << 20) + 2ull * bench->pages * PAGE_SIZE);
	fflush(stdout);
	for (unsigned i = 0; i < nodes; i++)
		if (fork() == 0) {
			alarm(NODES_SECONDS);
			engine_run(&bench->w.node[i]);
			_exit(0);
		}
	for (unsigned i = 0; i < nodes; i++) {
		int status;

		wait(&status);
		failed |= status;
		if (status) /* the others would wait for it for ever */
			kill(0, SIGTERM);
	}
	nodes_drop(&bench->w);
	return failed ? 1 : 0;
}

int main(int argc, char **argv)
{
	const char *what = argc > 2 ? argv[1] : "", *how = argc > 2 ? argv[2] : "";
	unsigned nodes = 2;

	setpgid(0, 0);
	bench = mmap(NULL, sizeof(*bench), PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	HOLDS(bench != MAP_FAILED);
	if (!strcmp(what, "fetch")) {
		bench->run = fetch_run;
		bench->pages = argc > 3 ? (unsigned)atoi(argv[3]) : 20000;
	} else if (!strcmp(what, "sequential")) {
		bench->run = sequential_run;
		bench->pages = (argc > 3 ? (unsigned)atoi(argv[3]) : 128) * BATCH;
	} else if (!strcmp(what, "contend") && argc > 3) {
		bench->run = contend_run;
		nodes = MIN((unsigned)atoi(argv[3]), (unsigned)NODES_MAX);
		bench->until_ms = argc > 4 ? (unsigned)atoi(argv[4]) : 1000;
		bench->pages = 1;
	}
	if (!bench->run || (strcmp(how, "tcp") && strcmp(how, "shm"))) {
		fprintf(stderr, "usage: nodes_bench fetch|sequential|contend tcp|shm "
				"[NODES] [COUNT]\n");
		return 2;
	}
	bench->frames = bench->pages + bench->pages / 4 + 4096;
	return run_all(how, nodes);
}
