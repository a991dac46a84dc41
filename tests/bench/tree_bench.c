/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast the tree is by itself: random inserts, lookups in a cached tree, by one thread
 * and more.
 *
 *	tree_bench [items] [threads] [value bytes] [cache MiB]
 *
 * Prints one key=value per line. Keys are random 128-bit numbers; every insert is a
 * transaction of its own, and the log is not flushed for it (as an fsync would).
 * TREE_BENCH_SEQUENTIAL in the environment: ascending keys.
 */
#include <time.h>

#include "tests/unit/tree_fixture.h"

struct bench {
	struct tree_fixture fixture;
	uint64_t items;
	unsigned threads;
	unsigned value_bytes;
	bool sequential;
};

struct part {
	struct bench *bench;
	unsigned me;
	void (*run)(struct part *p);
	uint64_t found;
	uint64_t cpu_ns;
};

/* A permutation of 64-bit numbers: random keys that can be made again without being kept.
 */
static uint64_t mix(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9ull;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static struct disk_key key_at(const struct bench *b, uint64_t i)
{
	if (b->sequential)
		return (struct disk_key){.high = i >> 10, .low = i & 1023};
	return (struct disk_key){.high = mix(i + 1), .low = mix(~i)};
}

static void insert_part(struct part *p)
{
	struct bench *b = p->bench;
	uint8_t value[DISK_VALUE_MAX] = {0};

	for (uint64_t i = p->me; i < b->items; i += b->threads) {
		memcpy(value, &i, sizeof(i));
		FIXTURE_MUST(fixture_put(
			b->fixture.tree, key_at(b, i), value, b->value_bytes));
	}
}

static void lookup_part(struct part *p)
{
	struct bench *b = p->bench;
	uint8_t value[DISK_VALUE_MAX];

	for (uint64_t n = p->me; n < b->items; n += b->threads) {
		uint64_t i = mix(n * 7 + 3) % b->items;

		p->found += tree_read(b->fixture.tree, key_at(b, i), value,
				    sizeof(value)) == (int)b->value_bytes;
	}
}

static int count_item(void *arg, struct disk_key key, const void *value, size_t len)
{
	(*(uint64_t *)arg)++;
	return 0;
}

static void scan_part(struct part *p)
{
	FIXTURE_MUST(tree_scan(p->bench->fixture.tree, (struct disk_key){0},
		(struct disk_key){UINT64_MAX, UINT64_MAX}, false, count_item, &p->found));
}

static void part_main(void *arg)
{
	struct part *p = arg;
	struct timespec used;

	p->run(p);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	p->cpu_ns = (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}

static uint64_t measure(
	struct bench *b, const char *name, unsigned threads, void (*run)(struct part *p))
{
	struct rt_task *task[64];
	struct part part[64];
	uint64_t start = rt_now_ns(), took, found = 0, cpu = 0;

	b->threads = threads;
	for (unsigned i = 0; i < threads; i++) {
		part[i] = (struct part){.bench = b, .me = i, .run = run};
		FIXTURE_MUST(rt_task_spawn(&task[i], "bench", part_main, &part[i]));
	}
	for (unsigned i = 0; i < threads; i++) {
		rt_task_join(task[i]);
		found += part[i].found;
		cpu += part[i].cpu_ns;
	}
	took = rt_now_ns() - start;
	printf("%s_threads_%u_per_second=%.0f\n", name, threads, b->items * 1e9 / took);
	printf("%s_threads_%u_ns=%.1f\n", name, threads,
		(double)took * threads / b->items);
	printf("%s_threads_%u_cpu_ns=%.1f\n", name, threads, (double)cpu / b->items);
	fflush(stdout);
	return found;
}

int main(int argc, char **argv)
{
	struct bench b = {
		.items = argc > 1 ? strtoull(argv[1], NULL, 0) : 1000000,
		.value_bytes = argc > 3 ? (unsigned)atoi(argv[3]) : 8,
		.sequential = getenv("TREE_BENCH_SEQUENTIAL") != NULL,
	};
	unsigned threads = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
	uint64_t cache = (argc > 4 ? strtoull(argv[4], NULL, 0) : 1024) << 20;
	uint64_t pages, found;

	if (b.items == 0 || threads == 0 || threads > 64 || b.value_bytes < 8 ||
		b.value_bytes > DISK_VALUE_MAX || rt_real_start()) {
		fprintf(stderr, "usage: tree_bench [items] [threads <= 64] [value bytes "
				"8..1024] [cache MiB]\n");
		return 2;
	}
	fixture_open_file(&b.fixture, 3 * cache + (2ull << 30), 1ull << 30, cache);
	printf("items=%llu\nvalue_bytes=%u\ncache_mib=%llu\n",
		(unsigned long long)b.items, b.value_bytes,
		(unsigned long long)(cache >> 20));
	measure(&b, "insert", threads, insert_part);
	found = measure(&b, "lookup", 1, lookup_part);
	if (threads > 1)
		measure(&b, "lookup", threads, lookup_part);
	measure(&b, "scan", 1, scan_part);
	printf("found=%llu\nheight=%u\n", (unsigned long long)found,
		tree_height(b.fixture.tree));
	fixture_check_all(&b.fixture, &pages);
	printf("pages=%llu\nlog_mib=%llu\n", (unsigned long long)pages,
		(unsigned long long)(log_end(b.fixture.log) >> 20));
	printf("restarts=%llu\n", (unsigned long long)atomic_load(
					  &tree_counters(b.fixture.tree)->restarts));
	fixture_close(&b.fixture);
	return 0;
}
