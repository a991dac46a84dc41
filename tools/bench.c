/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft bench: the engine without the kernel's part, on a volume made for it. The volume vanishes
 * when the program ends, in any way. `tree` is a server of measurements. It loads the tree, prints
 * "ready", and runs one measurement for each line of its input. So it can take turns with other
 * stores (tests/bench/kvbench.c understands the same lines).
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ptrace.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/common/text.h"
#include "engine/volume/volume.h"
#include "fs/daemonize.h"
#include "tools/tools.h"

#define THREADS_MAX   64u
#define LOAD_BATCH    64u /* number of items in one transaction while loading */
#define CHUNK         (1u << 20)
#define GUARDS        1000u
#define ITEMS_DEFAULT 1000000u

static const char usage[] =
	"Usage: weft bench guard|tree [OPTION...]\n"
	"       weft bench net ...    (weft bench net --help)\n"
	"\n"
	"  guard            instructions of a guard on a cached page\n"
	"  net              a link between two nodes; see weft bench net --help\n"
	"  tree             load a tree, say \"ready\", then one measurement per line of "
	"input:\n"
	"                     lookup THREADS COUNT   random items, cached\n"
	"                     insert THREADS COUNT   random new items, a transaction "
	"each\n"
	"                     cold THREADS COUNT     lookups with a cache of a fifth of "
	"the data\n"
	"                     device THREADS COUNT   4 KiB reads of a file of the same "
	"size\n"
	"\n"
	"  -d, --dir DIR    where the volume's file is made, and removed (/var/tmp)\n"
	"  -n, --items N    items to load (1000000)\n"
	"  -c, --cache MIB  page cache (1024)\n"
	"  -h, --help       this text\n"
	"\n"
	"Example:\n"
	"  echo 'lookup 2 1000000' | weft bench tree --items 10000000\n"
	"\n"
	"Exit codes: 0 done, 1 wrong usage, 2 failed.\n";

struct bench {
	const char *dir;
	uint64_t items, cache_mib;
	int file;      /* holds the volume; without a name, so that it always vanishes */
	char path[32]; /* path by which it is opened */
	int plain;     /* a file as large as the data, without a name, written once; or -1 */
	struct volume *volume;
	uint64_t data_pages;
};

static int bench_error(const char *what, int error, const struct weft_error *err)
{
	fprintf(stderr, "weft bench: %s: %s\n", what,
		err && *err->text ? err->text : strerror(-error));
	return error;
}

/* ---- the volume ------------------------------------------------------------------ */

static int bench_mount(struct bench *b, uint64_t cache_bytes)
{
	/* As the stores beside it: a checkpoint only if the log is full. */
	struct volume_options o = {.background = true,
		.cache = {.cache_bytes = cache_bytes, .dirty_age_ms = 3600 * 1000},
		.log = {.flush_interval_ms = UINT64_MAX}};
	struct weft_error err = {0};
	struct rt_disk *disk;
	int rc = rt_disk_open(&disk, b->path, RT_DISK_EXCLUSIVE, &err);

	if (rc == 0)
		rc = volume_open(&b->volume, disk, &o, &err);
	return rc < 0 ? bench_error("cannot open the volume", rc, &err) : 0;
}

static int bench_make(struct bench *b)
{
	/* A log smaller than the tree would write leaves back that soon change again. */
	uint64_t log_bytes = MAX(1ull << 30, 4 * (b->cache_mib << 20));
	uint64_t bytes = 3 * (b->cache_mib << 20) + 2 * log_bytes;
	struct store_format f = {
		.checksum_kind = DISK_CHECKSUM_GMAC, .log_bytes = log_bytes};
	struct weft_error err = {0};
	struct rt_disk *disk;
	int rc;

	b->file = open(b->dir, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	if (b->file < 0)
		return bench_error(b->dir, -errno, NULL);
	snprintf(b->path, sizeof(b->path), "/proc/self/fd/%d", b->file);
	rc = ftruncate(b->file, (off_t)bytes) < 0 ? -errno : 0;
	if (rc == 0)
		rc = rt_disk_open(&disk, b->path, RT_DISK_EXCLUSIVE, &err);
	if (rc < 0)
		return bench_error("cannot make the volume", rc, &err);
	rc = volume_format(disk, &f, 0, 0, &err);
	rt_disk_close(disk);
	return rc < 0 ? bench_error("cannot make the volume", rc, &err)
		      : bench_mount(b, b->cache_mib << 20);
}

static void bench_end(struct bench *b)
{
	if (b->volume)
		volume_close(b->volume);
	if (b->plain >= 0)
		close(b->plain);
	if (b->file >= 0)
		close(b->file);
}

/* ---- items ----------------------------------------------------------------------- */

/* A permutation of 64-bit numbers: random keys that can be computed again. tests/bench/kvbench.c
 * makes the same ones. */
static uint64_t mix_bits(uint64_t x)
{
	x ^= x >> 30;
	x *= 0xbf58476d1ce4e5b9ull;
	x ^= x >> 27;
	x *= 0x94d049bb133111ebull;
	return x ^ x >> 31;
}

static struct disk_key key_of(uint64_t i)
{
	return (struct disk_key){.high = mix_bits(i + 1), .low = mix_bits(~i)};
}

static int insert_run(struct tree *t, uint64_t first, unsigned count)
{
	struct txn *x;
	int rc = txn_begin(t, false, &x);

	if (rc < 0)
		return rc;
	for (;;) {
		for (uint64_t i = first; i < first + count && rc == 0; i++)
			rc = txn_write(x, key_of(i), &i, sizeof(i));
		if (rc == 0)
			rc = txn_commit(x, NULL);
		if (rc != -EAGAIN)
			break;
		txn_restart(x);
		rc = 0;
	}
	txn_end(x);
	return rc;
}

/* ---- measurements ---------------------------------------------------------------- */

struct part {
	struct bench *b;
	unsigned number, threads;
	uint64_t count; /* of this part */
	int fd;         /* of a plain file, for `device` */
	int error;
};

static void lookup_part(void *arg)
{
	struct part *p = arg;
	uint64_t value, state = rt_now_ns() + p->number;

	for (uint64_t n = 0; n < p->count && p->error == 0; n++) {
		uint64_t i = mix_bits(state + n) % p->b->items;
		int rc = tree_read(p->b->volume->tree, key_of(i), &value, sizeof(value));

		if (rc != sizeof(value) || value != i)
			p->error = rc < 0 ? rc : -EUCLEAN;
	}
}

static void insert_part(void *arg)
{
	struct part *p = arg;

	for (uint64_t n = 0; n < p->count && p->error == 0; n++)
		p->error = insert_run(
			p->b->volume->tree, p->b->items + n * p->threads + p->number, 1);
}

static void device_part(void *arg)
{
	struct part *p = arg;
	uint64_t state = rt_now_ns() + p->number;
	void *page = rt_alloc_pages(PAGE_SIZE);

	for (uint64_t n = 0; page && n < p->count && p->error == 0; n++) {
		uint64_t at = mix_bits(state + n) % p->b->data_pages * PAGE_SIZE;

		if (pread(p->fd, page, PAGE_SIZE, (off_t)at) != PAGE_SIZE)
			p->error = -EIO;
	}
	if (page)
		rt_free_pages(page, PAGE_SIZE);
	else
		p->error = -ENOMEM;
}

static int measure_tasks(
	struct bench *b, void (*run)(void *), unsigned threads, uint64_t count)
{
	struct rt_task *task[THREADS_MAX];
	struct part part[THREADS_MAX];
	uint64_t began = rt_now_ns();
	uint64_t done = count / threads * threads;
	unsigned n = 0;
	int rc = 0;

	for (; n < threads && rc == 0; n++) {
		part[n] = (struct part){.b = b,
			.number = n,
			.threads = threads,
			.count = count / threads,
			.fd = b->plain};
		rc = rt_task_spawn(&task[n], "bench", run, &part[n]);
		if (rc < 0)
			break;
	}
	for (unsigned i = 0; i < n; i++) {
		rt_task_join(task[i]);
		rc = rc ? rc : part[i].error;
	}
	if (rc < 0)
		return bench_error("measuring", rc, NULL);
	printf("per_second=%.1f\n", (double)done * 1e9 / (double)(rt_now_ns() - began));
	fflush(stdout);
	return 0;
}

/* The device is measured on a file whose blocks are all written, because holes cost nothing. */
static int make_plain(struct bench *b)
{
	void *chunk = rt_alloc_pages(CHUNK);
	int rc = chunk ? 0 : -ENOMEM;

	b->plain = open(b->dir, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
	if (b->plain < 0)
		rc = -errno;
	for (uint64_t at = 0; rc == 0 && at < b->data_pages * PAGE_SIZE; at += CHUNK) {
		memset(chunk, (int)(at / CHUNK) + 1, CHUNK);
		if (pwrite(b->plain, chunk, CHUNK, (off_t)at) != (ssize_t)CHUNK)
			rc = -EIO;
	}
	if (chunk)
		rt_free_pages(chunk, CHUNK);
	return rc;
}

/* Uses a cache of a fifth of the data, until the end. */
static int make_cold(struct bench *b)
{
	int rc = volume_close(b->volume);

	b->volume = NULL;
	if (rc == 0)
		rc = make_plain(b);
	if (rc < 0)
		return bench_error("making room for cold measurements", rc, NULL);
	return bench_mount(b, MAX(b->data_pages / 5, 256u) * PAGE_SIZE);
}

static int tree_line(struct bench *b, const char *line, bool *cold)
{
	struct space_stat space;
	unsigned long count;
	unsigned threads;
	char what[16];
	int rc;

	if (sscanf(line, "%15s %u %lu", what, &threads, &count) != 3 || threads == 0 ||
		threads > THREADS_MAX || count < threads)
		return bench_error(line, -EINVAL, NULL);
	if (strcmp(what, "insert") == 0) {
		rc = measure_tasks(b, insert_part, threads, count);
		b->items += count / threads * threads;
		return rc;
	}
	if (strcmp(what, "lookup") == 0)
		return measure_tasks(b, lookup_part, threads, count);
	if (strcmp(what, "cold") != 0 && strcmp(what, "device") != 0)
		return bench_error(line, -EINVAL, NULL);
	if (!*cold) {
		space_stat(b->volume->space, &space);
		b->data_pages = space.total_pages - space.free_pages;
		rc = make_cold(b);
		if (rc < 0)
			return rc;
		*cold = true;
	}
	return measure_tasks(
		b, strcmp(what, "cold") == 0 ? lookup_part : device_part, threads, count);
}

static int bench_tree(struct bench *b)
{
	bool cold = false;
	char line[128];
	int rc = bench_make(b);

	if (rc < 0)
		return rc;
	for (uint64_t i = 0; i < b->items && rc == 0; i += LOAD_BATCH)
		rc = insert_run(
			b->volume->tree, i, (unsigned)MIN(LOAD_BATCH, b->items - i));
	if (rc < 0)
		return bench_error("loading the items (a larger --cache makes a larger volume)",
			rc, NULL);
	puts("ready");
	fflush(stdout);
	while (rc == 0 && fgets(line, sizeof(line), stdin))
		rc = tree_line(b, line, &cold);
	return rc;
}

/* ---- instructions ---------------------------------------------------------------- */

/* Runs in a child that its parent single-steps. The instructions between two stops are counted. */
static _Noreturn void guards_stepped(
	struct cache *cache, page_id pid, enum guard_kind kind, unsigned n)
{
	struct guard g;
	int rc = 0;

	if (ptrace(PTRACE_TRACEME, 0, NULL, NULL) < 0)
		_exit(1);
	raise(SIGSTOP);
	for (unsigned i = 0; i < n; i++) {
		if (kind == GUARD_OPTIMISTIC)
			rc |= guard_optimistic(cache, pid, NULL, &g) || !guard_valid(&g);
		else if (kind == GUARD_SHARED)
			rc |= guard_shared(cache, pid, 0, &g);
		else
			rc |= guard_exclusive(cache, pid, 0, &g);
		guard_release(cache, &g);
	}
	raise(SIGSTOP);
	_exit(rc != 0);
}

/* Steps from one stop of the child to the next. Returns a negative value if that is not
 * possible. */
static int64_t step_through(pid_t child)
{
	int64_t steps = 0;
	int status;

	if (waitpid(child, &status, 0) < 0 || !WIFSTOPPED(status))
		return -ECHILD;
	do {
		steps++;
		if (ptrace(PTRACE_SINGLESTEP, child, NULL, NULL) < 0)
			return -errno;
		if (waitpid(child, &status, 0) < 0 || !WIFSTOPPED(status))
			return -ECHILD;
	} while (WSTOPSIG(status) != SIGSTOP);
	if (ptrace(PTRACE_CONT, child, NULL, NULL) < 0)
		return -errno;
	return steps;
}

static int64_t count_steps(struct bench *b, page_id pid, enum guard_kind kind, unsigned n)
{
	int64_t steps;
	int status = 0;
	pid_t child = fork();

	if (child < 0)
		return -errno;
	if (child == 0)
		guards_stepped(b->volume->cache, pid, kind, n);
	steps = step_through(child);
	if (steps < 0)
		kill(child, SIGKILL);
	if (waitpid(child, &status, 0) == child && steps >= 0 &&
		!(WIFEXITED(status) && WEXITSTATUS(status) == 0))
		steps = -ECHILD;
	return steps;
}

static int bench_guard(struct bench *b)
{
	static const struct {
		const char *name;
		enum guard_kind kind;
	} kinds[] = {{"optimistic", GUARD_OPTIMISTIC}, {"shared", GUARD_SHARED},
		{"exclusive", GUARD_EXCLUSIVE}};
	struct guard g;
	page_id pid;
	int rc = bench_make(b);

	if (rc < 0)
		return rc;
	pid = pid_make(store_superblock(b->volume->store)->shard, disk_group_slot(0));
	rc = guard_shared(b->volume->cache, pid, 0, &g);
	if (rc < 0)
		return bench_error("cannot read a page", rc, NULL);
	guard_release(b->volume->cache, &g);
	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
		int64_t none = count_steps(b, pid, kinds[i].kind, 0);
		int64_t all = count_steps(b, pid, kinds[i].kind, GUARDS);

		if (none < 0 || all < 0)
			return bench_error("cannot step through a process (ptrace)",
				(int)MIN(none, all), NULL);
		printf("guard_%s_instructions=%.1f\n", kinds[i].name,
			(double)(all - none) / GUARDS);
	}
	return 0;
}

/* Returns true to continue; otherwise *code is the exit code. */
static bool bench_parse_options(int argc, char **argv, struct bench *b, int *code)
{
	static const struct option options[] = {{"dir", required_argument, NULL, 'd'},
		{"items", required_argument, NULL, 'n'},
		{"cache", required_argument, NULL, 'c'}, {"help", no_argument, NULL, 'h'},
		{0}};
	static const char *const known[] = {"guard", "tree", "net", NULL};
	int c;

	*code = EXIT_USAGE;

	while ((c = getopt_long(argc, argv, "d:n:c:h", options, NULL)) != -1) {
		if (c == 'd') {
			b->dir = optarg;
		} else if (c == 'n') {
			if (number_parse(optarg, &b->items) || !b->items) {
				weft_wrong(
					argv[0], "--items %s: must be 1 or more", optarg);
				return false;
			}
		} else if (c == 'c') {
			if (number_parse(optarg, &b->cache_mib) || b->cache_mib < 16 ||
				b->cache_mib > 1u << 20) {
				weft_wrong(argv[0], "--cache %s: must be 16 to %u (MiB)",
					optarg, 1u << 20);
				return false;
			}
		} else {
			*code = weft_option(usage, c, argv, options);
			return false;
		}
	}
	if (weft_operands(usage, argc, argv, 1, 1, "guard|tree|net"))
		return false;
	if (strcmp(argv[optind], "tree") == 0 || strcmp(argv[optind], "guard") == 0)
		return true;
	weft_wrong_word(argv[0], "benchmark", argv[optind], known);
	return false;
}

int weft_bench(int argc, char **argv)
{
	struct bench b = {.dir = "/var/tmp",
		.items = ITEMS_DEFAULT,
		.cache_mib = 1024,
		.file = -1,
		.plain = -1};
	int code, rc;

	if (argc > 1 && strcmp(argv[1], "net") == 0)
		return bench_net(argc - 1, argv + 1);
	if (!bench_parse_options(argc, argv, &b, &code))
		return code;
	rc = rt_real_start();
	if (rc < 0)
		bench_error("cannot start", rc, NULL);
	else
		rc = strcmp(argv[optind], "tree") == 0 ? bench_tree(&b) : bench_guard(&b);
	bench_end(&b);
	return rc < 0 ? EXIT_FAILED : 0;
}
