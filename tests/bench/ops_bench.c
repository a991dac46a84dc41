/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How fast fs/ops is by itself, without a kernel in between: N empty files are created,
 * looked up, listed, unlinked and forgotten, by one task and by two, each in a directory
 * of its own.
 *
 *	ops_bench STORE [files] [cache MiB] [log MiB]
 *	ops_bench STORE dirty [files] [cache MiB] [log MiB]	and end as a crash would
 *	ops_bench STORE recover [cache MiB]			and say what recovery took
 *
 * STORE is overwritten, but by "recover". Prints one key=value per line; *_ns is per file
 * and task, *_log_bytes what each file adds to the log.
 */
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

#include "fs/ops/ops.h"

#define MUST(expr)                                                                       \
	do {                                                                             \
		long long must_ = (long long)(expr);                                     \
		if (must_ < 0) {                                                         \
			fprintf(stderr, "ops_bench: %s: %lld\n", #expr, must_);          \
			exit(1);                                                         \
		}                                                                        \
	} while (0)

#define TASKS_MAX 2

struct bench {
	struct fs *fs;
	unsigned files;
	uint64_t dir[TASKS_MAX];
	uint64_t *ino[TASKS_MAX];
};

struct part {
	struct bench *bench;
	unsigned me;
	void (*run)(struct part *p);
	struct rt_task *task;
	uint64_t cpu_ns;
};

static const struct ops_caller caller = {.keeps_setid = true, .in_group = true};

static struct ops_name name_at(char *buf, unsigned i)
{
	int len = snprintf(buf, 16, "file%u", i);

	return (struct ops_name){buf, (size_t)len};
}

static void create_part(struct part *p)
{
	struct bench *b = p->bench;
	char name[16];

	for (unsigned i = 0; i < b->files; i++) {
		struct ops_file *file;
		struct ops_attr attr;

		MUST(ops_create(b->fs, b->dir[p->me], name_at(name, i), &caller, 0644,
			O_RDWR | O_CREAT, &file, &attr));
		ops_close(b->fs, file);
		b->ino[p->me][i] = attr.ino;
	}
}

static void stat_part(struct part *p)
{
	struct bench *b = p->bench;
	char name[16];

	for (unsigned i = 0; i < b->files; i++) {
		struct ops_attr attr;

		MUST(ops_lookup(b->fs, b->dir[p->me], name_at(name, i), &attr));
	}
}

static int take_entry(void *arg, const struct ops_dirent *entry)
{
	uint64_t *cookie = arg;

	cookie[0] = entry->cookie;
	return ++cookie[1] % 128 == 0; /* as many as a request of the kernel takes */
}

static void readdir_part(struct part *p)
{
	struct bench *b = p->bench;
	uint64_t cookie[2] = {0, 0}, before;

	do {
		before = cookie[1];
		MUST(ops_readdir(b->fs, b->dir[p->me], cookie[0], OPS_READDIR_PLUS,
			take_entry, cookie));
	} while (cookie[1] != before);
}

static void unlink_part(struct part *p)
{
	struct bench *b = p->bench;
	char name[16];

	for (unsigned i = 0; i < b->files; i++) {
		MUST(ops_unlink(b->fs, b->dir[p->me], name_at(name, i)));
		ops_forget(b->fs, b->ino[p->me][i]);
	}
}

/* ---- measuring ------------------------------------------------------------------- */

static void part_main(void *arg)
{
	struct part *p = arg;
	struct timespec used;

	p->run(p);
	clock_gettime(CLOCK_THREAD_CPUTIME_ID, &used);
	p->cpu_ns = (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}

static void measure(
	struct bench *b, const char *what, unsigned tasks, void (*run)(struct part *p))
{
	struct log *log = fs_volume(b->fs)->log;
	uint64_t logged = atomic_load(&log_counters(log)->record_bytes);
	uint64_t commits = atomic_load(&tree_counters(fs_volume(b->fs)->tree)->commits);
	uint64_t start = rt_now_ns(), took, cpu = 0, total = (uint64_t)b->files * tasks;
	struct part part[TASKS_MAX];

	for (unsigned i = 0; i < tasks; i++) {
		part[i] = (struct part){.bench = b, .me = i, .run = run};
		MUST(rt_task_spawn(&part[i].task, "bench", part_main, &part[i]));
	}
	for (unsigned i = 0; i < tasks; i++) {
		rt_task_join(part[i].task);
		cpu += part[i].cpu_ns;
	}
	took = rt_now_ns() - start;
	logged = atomic_load(&log_counters(log)->record_bytes) - logged;
	commits = atomic_load(&tree_counters(fs_volume(b->fs)->tree)->commits) - commits;
	printf("%s_tasks_%u_per_second=%.0f\n", what, tasks,
		(double)total * 1e9 / (double)took);
	printf("%s_tasks_%u_ns=%.0f\n", what, tasks, (double)took / b->files);
	printf("%s_tasks_%u_cpu_ns=%.0f\n", what, tasks, (double)cpu / (double)total);
	printf("%s_tasks_%u_log_bytes=%.0f\n", what, tasks,
		(double)logged / (double)total);
	printf("%s_tasks_%u_commits=%.2f\n", what, tasks,
		(double)commits / (double)total);
	fflush(stdout);
}

/* ---- the volume ------------------------------------------------------------------ */

static void format(const char *path, uint64_t bytes, uint64_t log_bytes)
{
	struct store_format f = {
		.checksum_kind = DISK_CHECKSUM_GMAC, .log_bytes = log_bytes};
	struct weft_error err = {0};
	struct rt_disk *disk;

	MUST(truncate(path, 0));
	MUST(truncate(path, (off_t)bytes));
	if (rt_disk_open(&disk, path, RT_DISK_EXCLUSIVE, &err) ||
		volume_format(disk, &f, 0, 0, &err)) {
		fprintf(stderr, "ops_bench: %s\n", err.text);
		exit(1);
	}
	rt_disk_close(disk);
}

static struct fs *open_fs(const char *path, uint64_t cache_bytes)
{
	struct volume_options vo = {.background = true, .cache.cache_bytes = cache_bytes};
	struct ops_options oo = {.atime = OPS_RELATIME, .caller_forgets = true};
	struct weft_error err = {0};
	struct rt_disk *disk;
	struct volume *v;
	struct fs *fs;

	if (rt_disk_open(&disk, path, RT_DISK_EXCLUSIVE, &err) ||
		volume_open(&v, disk, &vo, &err) || fs_open(&fs, v, &oo, &err)) {
		fprintf(stderr, "ops_bench: %s\n", err.text);
		exit(1);
	}
	return fs;
}

static void bench_open(struct bench *b, struct fs *fs, unsigned files)
{
	*b = (struct bench){.fs = fs, .files = files};
	for (unsigned i = 0; i < TASKS_MAX; i++) {
		struct ops_attr attr;
		char name[16];

		MUST(ops_mkdir(
			fs, DISK_INO_ROOT, name_at(name, i), &caller, 0755, &attr));
		b->dir[i] = attr.ino;
		b->ino[i] = rt_alloc(files * sizeof(uint64_t));
		MUST(b->ino[i] ? 0 : -1);
	}
}

static int run_all(struct fs *fs, unsigned files)
{
	struct volume *v = fs_volume(fs);
	struct bench b;

	bench_open(&b, fs, files);
	printf("files=%u\n", files);
	for (unsigned tasks = 1; tasks <= TASKS_MAX; tasks++) {
		measure(&b, "create", tasks, create_part);
		measure(&b, "stat", tasks, stat_part);
		measure(&b, "readdir", tasks, readdir_part);
		measure(&b, "unlink", tasks, unlink_part);
	}
	fs_close(fs);
	MUST(volume_close(v));
	return 0;
}

static int run_dirty(struct fs *fs, unsigned files)
{
	struct volume *v = fs_volume(fs);
	struct bench b;

	bench_open(&b, fs, files);
	measure(&b, "create", 2, create_part);
	MUST(log_flush(v->log, log_end(v->log)));
	printf("log_mib=%llu\n", (unsigned long long)(log_used_bytes(v->log) >> 20));
	fflush(stdout);
	_exit(0);
}

static int run_recover(struct fs *fs)
{
	struct volume *v = fs_volume(fs);

	printf("recovery_log_mib=%llu\nrecovery_records=%llu\nrecovery_pages=%llu\n"
	       "recovery_ms=%llu\n",
		(unsigned long long)(v->recovery.log_bytes >> 20),
		(unsigned long long)v->recovery.records,
		(unsigned long long)v->recovery.pages,
		(unsigned long long)(v->recovery.took_ns / 1000000));
	fs_close(fs);
	MUST(volume_close(v));
	return 0;
}

static uint64_t number(int argc, char **argv, int at, uint64_t otherwise)
{
	return argc > at ? strtoull(argv[at], NULL, 0) : otherwise;
}

int main(int argc, char **argv)
{
	bool dirty = argc > 2 && strcmp(argv[2], "dirty") == 0;
	bool recover = argc > 2 && strcmp(argv[2], "recover") == 0;
	int at = 2 + (dirty || recover);
	unsigned files = recover ? 0 : (unsigned)number(argc, argv, at++, 100000);
	uint64_t cache = number(argc, argv, at, 256) << 20;
	uint64_t log = number(argc, argv, at + 1, 256) << 20;

	if (argc < 2 || (!recover && files == 0) || rt_real_start()) {
		fprintf(stderr, "usage: ops_bench STORE [dirty|recover] [files] [cache "
				"MiB] [log MiB]\n");
		return 2;
	}
	if (recover)
		return run_recover(open_fs(argv[1], cache));
	format(argv[1], log + (4ull << 30), log);
	return dirty ? run_dirty(open_fs(argv[1], cache), files)
		     : run_all(open_fs(argv[1], cache), files);
}
