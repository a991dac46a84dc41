/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Several tasks on the same directories and files, with caches far too small: whatever
 * the schedule, every operation happens as a whole, once, and nothing gets stuck (the
 * simulator finds a run in which nothing can go on). Each task counts what it did; the
 * sums must fit in the end.
 */
#include <errno.h>
#include <fcntl.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/stat.h>
#include <cmocka.h>

#include "tests/sim/harness.h"

#define TASKS      6u
#define NAMES      12u
#define FILES      3u
#define RECORD     700u /* bytes an append adds: across pages */
#define BLOCK_PART 512u

static const struct ops_caller caller = {.keeps_setid = true, .in_group = true};

static struct {
	struct sim_shape shape;
	struct fs *fs;
	unsigned rounds;
	uint64_t dir[2], file[FILES], log;
	unsigned appended[TASKS];
	int64_t made, removed; /* names in the shared directories */
} run;

struct crewman {
	unsigned n;
	uint64_t rng;
	struct rt_task *task;
};

static uint64_t rnd(struct crewman *c, uint64_t below)
{
	c->rng ^= c->rng << 13;
	c->rng ^= c->rng >> 7;
	c->rng ^= c->rng << 17;
	return c->rng % below;
}

/* One of the answers that a race may bring, or success. */
static bool well(const char *what, int64_t rc, int other, int another)
{
	if (rc && rc != other && rc != another)
		workload_die("%s returned %lld", what, (long long)rc);
	return rc == 0;
}

static struct ops_name name_of(unsigned n, char *buf)
{
	snprintf(buf, 64,
		n % 4 ? "n%u" : "n%u with a name that takes some room in its leaf", n);
	return (struct ops_name){buf, strlen(buf)};
}

static void names(struct crewman *c)
{
	char a[64], b[64];
	uint64_t from = run.dir[rnd(c, 2)], to = run.dir[rnd(c, 2)];
	struct ops_name name = name_of((unsigned)rnd(c, NAMES), a);
	struct ops_name other = name_of((unsigned)rnd(c, NAMES), b);
	struct ops_attr attr;

	switch (rnd(c, 5)) {
	case 0:
	case 1:
		run.made += well("mknod",
			ops_mknod(
				run.fs, from, name, &caller, S_IFREG | 0644, 0, 0, &attr),
			-EEXIST, 0);
		break;
	case 2:
		run.removed += well("unlink", ops_unlink(run.fs, from, name), -ENOENT, 0);
		break;
	case 3:
		well("rename",
			ops_rename(run.fs, from, name, to, other, RENAME_NOREPLACE),
			-ENOENT, -EEXIST);
		break;
	default:
		well("exchange",
			ops_rename(run.fs, from, name, to, other, RENAME_EXCHANGE),
			-ENOENT, 0);
	}
}

/* Appends are whole and none is lost. */
static void append(struct crewman *c)
{
	uint8_t record[RECORD];
	struct ops_file *f;

	memset(record, (int)('A' + c->n), sizeof(record));
	OK(ops_open(run.fs, run.log, &caller, O_WRONLY | O_APPEND, &f, NULL));
	WEFT_ASSERT(ops_write(run.fs, f, &caller, 0, record, sizeof(record), true) ==
		    (int64_t)sizeof(record));
	run.appended[c->n]++;
	if (rnd(c, 6) == 0)
		OK(ops_fsync(run.fs, run.log, true));
	ops_close(run.fs, f);
}

/* Every task has its own part of every page of the shared files. */
static void part(struct crewman *c)
{
	unsigned page = (unsigned)rnd(c, 20);
	uint64_t offset = (uint64_t)page * PAGE_SIZE + c->n * BLOCK_PART;
	uint8_t bytes[BLOCK_PART];
	struct ops_file *f;
	unsigned file = (unsigned)rnd(c, FILES);

	memset(bytes, (int)(1 + c->n), sizeof(bytes));
	OK(ops_open(run.fs, run.file[file], &caller, O_RDWR, &f, NULL));
	WEFT_ASSERT(ops_write(run.fs, f, &caller, offset, bytes, sizeof(bytes), false) ==
		    (int64_t)sizeof(bytes));
	if (rnd(c, 5) == 0)
		OK(ops_fsync(run.fs, run.file[file], false));
	ops_close(run.fs, f);
}

static int drop_entry(void *arg, const struct ops_dirent *e)
{
	return 0;
}

static void crew_main(void *arg)
{
	struct crewman *c = arg;
	struct ops_attr attr;

	for (unsigned i = 0; i < run.rounds; i++) {
		switch (rnd(c, 8)) {
		case 0:
		case 1:
		case 2:
			names(c);
			break;
		case 3:
			append(c);
			break;
		case 4:
		case 5:
			part(c);
			break;
		case 6:
			OK(ops_readdir(run.fs, run.dir[rnd(c, 2)], 0, OPS_READDIR_PLUS,
				drop_entry, NULL));
			break;
		default:
			if (rnd(c, 10) == 0)
				OK(ops_syncfs(run.fs));
			else
				OK(ops_getattr(run.fs, run.file[rnd(c, FILES)], &attr));
		}
	}
}

struct sum {
	struct fs *fs;
	int64_t names;
	uint64_t position;
	unsigned records[TASKS];
	bool torn;
	uint8_t expect;
};

static int count_entry(void *arg, const struct ops_dirent *e)
{
	struct sum *s = arg;

	if (e->cookie > 2) {
		s->names++;
		if (!e->attr || e->attr->inode.nlink != 1)
			workload_die("a name without its inode");
	}
	return 0;
}

static int log_sink(void *arg, const struct iovec *iov, unsigned count, size_t total)
{
	struct sum *s = arg;

	for (unsigned i = 0; i < count; i++)
		for (size_t k = 0; k < iov[i].iov_len; k++, s->position++) {
			uint8_t byte = ((uint8_t *)iov[i].iov_base)[k];

			if (s->position % RECORD == 0) {
				s->expect = byte;
				s->torn |= byte < 'A' || byte >= 'A' + TASKS;
				if (!s->torn)
					s->records[byte - 'A']++;
			}
			s->torn |= byte != s->expect;
		}
	return (int)total;
}

static int part_sink(void *arg, const struct iovec *iov, unsigned count, size_t total)
{
	struct sum *s = arg;

	for (unsigned i = 0; i < count; i++)
		for (size_t k = 0; k < iov[i].iov_len; k++, s->position++) {
			uint8_t byte = ((uint8_t *)iov[i].iov_base)[k];
			unsigned owner = (unsigned)(s->position % PAGE_SIZE / BLOCK_PART);

			if (byte && (owner >= TASKS || byte != 1 + owner))
				s->torn = true;
		}
	return (int)total;
}

static void read_whole(struct fs *fs, uint64_t ino, ops_sink sink, struct sum *s)
{
	struct ops_file *f;
	struct ops_attr a;

	OK(ops_open(fs, ino, &caller, O_RDONLY, &f, &a));
	for (s->position = 0; s->position < a.inode.size;)
		if (ops_read(fs, f, s->position, a.inode.size - s->position, sink, s) <=
			0)
			workload_die("a read ends early");
	ops_close(fs, f);
}

static void check_sums(struct fs *fs)
{
	struct sum s = {.fs = fs};
	unsigned total = 0;

	for (unsigned d = 0; d < 2; d++) {
		int64_t before = s.names;
		struct ops_attr a;

		OK(ops_readdir(fs, run.dir[d], 0, OPS_READDIR_PLUS, count_entry, &s));
		OK(ops_getattr(fs, run.dir[d], &a));
		if ((int64_t)a.inode.size != s.names - before)
			workload_die("a directory counts %llu names and has %lld",
				(unsigned long long)a.inode.size,
				(long long)(s.names - before));
	}
	if (s.names != run.made - run.removed)
		workload_die("%lld names, not %lld", (long long)s.names,
			(long long)(run.made - run.removed));
	read_whole(fs, run.log, log_sink, &s);
	for (unsigned i = 0; i < TASKS; i++) {
		total += run.appended[i];
		if (s.records[i] != run.appended[i])
			workload_die("task %u appended %u records, %u are there", i,
				run.appended[i], s.records[i]);
	}
	if (s.torn || s.position != (uint64_t)total * RECORD)
		workload_die("appended records are torn");
	for (unsigned f = 0; f < FILES; f++)
		read_whole(fs, run.file[f], part_sink, &s);
	if (s.torn)
		workload_die("a part of a page has another's bytes");
	sim_check_space(fs);
}

static uint64_t make(uint64_t dir, const char *name, uint32_t type)
{
	const struct ops_name n = {name, strlen(name)};
	struct ops_attr a;

	OK(type == S_IFDIR ? ops_mkdir(run.fs, dir, n, &caller, 0755, &a)
			   : ops_mknod(run.fs, dir, n, &caller, type | 0644, 0, 0, &a));
	return a.ino;
}

static void node_main(void *arg)
{
	struct crewman crew[TASKS];
	struct weft_error err = {0};

	OK(sim_open("disk", &run.shape, &run.fs, &err));
	run.dir[0] = make(DISK_INO_ROOT, "one", S_IFDIR);
	run.dir[1] = make(DISK_INO_ROOT, "two", S_IFDIR);
	run.log = make(DISK_INO_ROOT, "log", S_IFREG);
	for (unsigned i = 0; i < FILES; i++)
		run.file[i] =
			make(DISK_INO_ROOT, (const char *[]){"x", "y", "z"}[i], S_IFREG);
	for (unsigned i = 0; i < TASKS; i++) {
		crew[i] = (struct crewman){.n = i,
			.rng = run.shape.seed * 0x9e3779b97f4a7c15ull + i * 77 + 1};
		OK(rt_task_spawn(&crew[i].task, "crew", crew_main, &crew[i]));
	}
	for (unsigned i = 0; i < TASKS; i++)
		rt_task_join(crew[i].task);
	check_sums(run.fs);
	OK(sim_close(run.fs));
}

static void again_main(void *arg)
{
	struct weft_error err = {0};

	OK(sim_open("disk", &run.shape, &run.fs, &err));
	check_sums(run.fs);
	OK(sim_close(run.fs));
}

static int run_main(void *arg)
{
	sim_watch();
	(void)sim_disk_formatted("disk", &run.shape);
	WEFT_ASSERT(!sim_node_run(node_main, NULL) && !sim_node_run(again_main, NULL));
	return 0;
}

/* The same crowd under several schedules. */
static void seed_main(uint64_t seed)
{
	const struct rt_sim_options options = {
		.step_limit = SIM_STEP_LIMIT, .switch_one_in = seed % 3 ? 16 : 3};
	struct sim_shape shape = sim_shape_of(seed);

	shape.frames = seed % 2 ? 64 : 96;
	sim_prepare(&shape);
	for (uint64_t i = 0; i < sim_env("WEFT_SIM_CUTS", 5); i++) {
		memset(&run, 0, sizeof(run));
		run.shape = shape;
		run.rounds = 60;
		sim_repeat_note("schedule %llu:", (unsigned long long)i);
		OK(rt_sim_run(seed * 1000 + i, &options, run_main, NULL));
		atomic_fetch_add(&sim_totals->runs, 1);
	}
}

static void crowds_leave_sums_that_fit_under_any_schedule(void **state)
{
	unsigned failed = sim_each_seed("", sim_env("WEFT_SIM_FIRST", 1),
		sim_env("WEFT_SIM_SEEDS", 16), 300, seed_main);

	printf("             %llu runs\n", (unsigned long long)sim_totals->runs);
	assert_int_equal(failed, 0);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(crowds_leave_sums_that_fit_under_any_schedule),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
