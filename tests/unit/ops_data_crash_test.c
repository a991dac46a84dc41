/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Power cuts and failing disks in the middle of large truncations, reclaims, appends and
 * synced overwrites: what was synced is there, every page is some file's or free, and
 * nothing half done is left.
 */
#include "fs/ops/data_internal.h"
#include "tests/unit/ops_account.h"

#include <linux/falloc.h>

#define KEEP_PAGES 20u
#define ROUNDS     200u

static const char line[] = "a line of the log\n";
#define LINE_BYTES (sizeof(line) - 1)

/* What the world outside the node remembers. */
static struct {
	uint64_t disk_ops;                /* requests until the cut */
	uint64_t appended, append_synced; /* bytes of "log" */
	unsigned written, synced;         /* versions of "keep" */
	bool finished, failing;
	void (*synced_by)(void *);
	struct rt_sim_disk *disk;
	struct fs_test world;
} w;

/* In a run with a failing disk anything may fail; in one with a power cut nothing may. */
static bool went_well(int64_t got, int64_t want)
{
	if (!w.failing)
		EQ(got, want);
	return got == want;
}

static uint8_t version_byte(unsigned version)
{
	return (uint8_t)(version % 251 + 1);
}

static struct ops_file *open_name(struct fs *fs, const char *name, int flags)
{
	struct ops_file *f;
	struct ops_attr a;

	if (!went_well(ops_create(fs, DISK_INO_ROOT, nm(name), &root_user, 0644, flags,
			       &f, &a),
		    0))
		return NULL;
	return f;
}

static int sink_copy(void *arg, const struct iovec *iov, unsigned n, size_t total)
{
	uint8_t *to = arg;

	for (unsigned i = 0; i < n; i++) {
		memcpy(to, iov[i].iov_base, iov[i].iov_len);
		to += iov[i].iov_len;
	}
	return (int)total;
}

/* One version of "keep": whole or its start, sometimes synced. Small sets go through the
 * log, larger ones in place. */
static void keep_round(struct fs *fs, struct ops_file *f, uint8_t *buf, unsigned round)
{
	size_t len = KEEP_PAGES * PAGE_SIZE, part = round % 3 ? 5000 : len;
	unsigned version;

	if (round % 3 == 0)
		w.written++;
	version = w.written;
	memset(buf, version_byte(version), len);
	if (!went_well(ops_write(fs, f, &root_user, 0, buf, part, false), (int64_t)part))
		return;
	/* Only a whole version may be called synced. */
	if (round % 3 == 0 && went_well(ops_fsync(fs, ops_file_ino(f), round % 2), 0))
		w.synced = version;
	if (round % 3 == 2)
		went_well(ops_fsync(fs, ops_file_ino(f), round % 2), 0);
}

static void log_round(struct fs *fs, struct ops_file *log, unsigned round)
{
	uint64_t sure;

	if (!went_well(ops_write(fs, log, &root_user, 0, line, LINE_BYTES, false),
		    LINE_BYTES))
		return;
	sure = w.appended += LINE_BYTES;
	if (round % 5 == 0 && went_well(ops_fsync(fs, ops_file_ino(log), true), 0))
		w.append_synced = sure;
}

static void keep_run(struct fs *fs)
{
	struct ops_file *f = open_name(fs, "keep", O_RDWR);
	struct ops_file *log = open_name(fs, "log", O_RDWR | O_APPEND);
	uint8_t *buf = rt_alloc(KEEP_PAGES * PAGE_SIZE);

	for (unsigned i = 0; f && log && i < ROUNDS; i++) {
		keep_round(fs, f, buf, i);
		log_round(fs, log, i);
	}
	rt_free(buf);
	if (f)
		ops_close(fs, f);
	if (log)
		ops_close(fs, log);
}

static void scatter_file(struct fs *fs, struct ops_file *f, unsigned blocks)
{
	uint8_t page[PAGE_SIZE];

	memset(page, 'x', sizeof(page));
	for (unsigned b = 0; b < blocks; b += 2)
		if (!went_well(ops_write(fs, f, &root_user, (uint64_t)b * PAGE_SIZE, page,
				       sizeof(page), false),
			    sizeof(page)))
			return;
}

/* A file of many extents, some of them held by fallocate before; cut, punched, removed.
 */
static void churn_round(struct fs *fs, unsigned round)
{
	const struct ops_setattr set = {.set = OPS_SET_SIZE, .size = 5000};
	struct ops_file *f = open_name(fs, "churn", O_RDWR);
	struct ops_attr a;

	if (!f)
		return;
	if (round % 4 == 1)
		went_well(ops_fallocate(fs, f, &root_user, 0, 1000, 90 * PAGE_SIZE), 0);
	scatter_file(fs, f, 160);
	if (round % 3 == 0)
		went_well(ops_setattr(fs, ops_file_ino(f), &root_user, &set, &a), 0);
	if (round % 3 == 1)
		went_well(ops_fallocate(fs, f, &root_user,
				  FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 3000,
				  100 * PAGE_SIZE),
			0);
	if (round % 2)
		went_well(ops_unlink(fs, DISK_INO_ROOT, nm("churn")), 0);
	ops_close(fs, f);
	if (round % 2 == 0)
		went_well(ops_unlink(fs, DISK_INO_ROOT, nm("churn")), 0);
	if (round % 4 == 0)
		went_well(ops_syncfs(fs), 0);
}

static void run_task(struct fs *fs, unsigned n)
{
	if (n == 0)
		keep_run(fs);
	else
		for (unsigned i = 0; i < ROUNDS / 10; i++)
			churn_round(fs, i);
}

static void node_format(void *arg)
{
	test_fs_format(w.world.disk_name, 0);
}

static void node_work(void *arg)
{
	struct fs *fs = test_fs_open(&w.world);

	rt_sim_disk_cut_after(w.disk, w.disk_ops);
	crew(fs, 2, run_task);
	test_fs_close(fs);
}

/* The n-th write fails, or all from then on; reads go well. */
static void node_fail(void *arg)
{
	const struct rt_sim_fail fault = {
		.ops = RT_SIM_FAIL_WRITE, .n = w.disk_ops, .sticky = w.disk_ops % 2};
	struct fs *fs = test_fs_open(&w.world);
	struct volume *v = fs_volume(fs);

	rt_sim_disk_fail(w.disk, &fault);
	crew(fs, 2, run_task);
	fs_close(fs);
	(void)volume_close(v);
	rt_sim_disk_fail(w.disk, &(struct rt_sim_fail){0});
}

static void read_all(struct fs *fs, struct ops_file *f, uint8_t *buf, uint64_t len)
{
	for (uint64_t at = 0; at < len;) {
		int rc = ops_read(fs, f, at, len - at, sink_copy, buf + at);

		HOLDS(rc > 0);
		at += (uint64_t)rc;
	}
}

static void check_keep(struct fs *fs)
{
	uint64_t len = KEEP_PAGES * PAGE_SIZE;
	uint8_t *buf = rt_alloc(len);
	struct ops_file *f;

	if (w.synced) {
		f = open_name(fs, "keep", O_RDWR);
		read_all(fs, f, buf, len);
		for (uint64_t i = 0; i < len; i++) {
			bool known = false;

			for (unsigned v = w.synced; v <= w.written && !known; v++)
				known = buf[i] == version_byte(v);
			if (!known) {
				fprintf(stderr,
					"byte %llu of keep is %u, of no version %u..%u\n",
					(unsigned long long)i, buf[i], w.synced,
					w.written);
				abort();
			}
		}
		ops_close(fs, f);
	}
	rt_free(buf);
}

static void check_log(struct fs *fs)
{
	uint8_t *buf = rt_alloc(w.appended + PAGE_SIZE);
	struct ops_file *f;
	uint64_t size;

	if (w.append_synced) {
		f = open_name(fs, "log", O_RDWR);
		size = attr_of(fs, ops_file_ino(f)).size;
		HOLDS(size >= w.append_synced && size <= w.appended + LINE_BYTES);
		EQ(size % LINE_BYTES, 0);
		read_all(fs, f, buf, size);
		for (uint64_t i = 0; i < size; i++)
			HOLDS(buf[i] == (uint8_t)line[i % LINE_BYTES] ||
				(i >= w.append_synced && buf[i] == 0));
		/* Whatever the cut left behind the end is not to be seen when the file
		 * grows. */
		EQ(ops_write(fs, f, &root_user, size + 1000, "x", 1, false), 1);
		EQ(ops_read(fs, f, size, 1000, sink_copy, buf), 1000);
		for (unsigned i = 0; i < 1000; i++)
			EQ(buf[i], 0);
		ops_close(fs, f);
	}
	rt_free(buf);
}

static void node_check(void *arg)
{
	struct fs *fs = test_fs_open(&w.world);

	EQ(pages_over(fs), 0);
	check_keep(fs);
	check_log(fs);
	test_fs_close(fs);
	fs = test_fs_open(&w.world);
	EQ(pages_over(fs), 0);
	test_fs_close(fs);
	w.finished = true;
}

static void on_node(void (*fn)(void *))
{
	unsigned node = rt_sim_node_new("node");

	OK(rt_sim_spawn_on(node, "main", fn, NULL));
	(void)rt_sim_node_wait(node);
	rt_sim_node_kill(node);
}

static int world_main(void *arg)
{
	w.disk = rt_sim_disk_create(w.world.disk_name, w.world.disk_bytes, NULL);
	HOLDS(w.disk);
	on_node(node_format);
	on_node(w.failing ? node_fail : node_work);
	rt_sim_disk_cut_after(w.disk, 0);
	on_node(node_check);
	HOLDS(w.finished);
	return 0;
}

/* ---- fsync of a file that another handle wrote ----------------------------------- */

static void keep_write(struct fs *fs, struct ops_file *f)
{
	size_t len = KEEP_PAGES * PAGE_SIZE;
	uint8_t *buf = rt_alloc(len);

	memset(buf, version_byte(1), len);
	EQ(ops_write(fs, f, &root_user, 0, buf, len, false), len);
	rt_free(buf);
}

/* By a handle that has written nothing; then the node dies. */
static void keep_sync(struct fs *fs)
{
	struct ops_file *f = open_name(fs, "keep", O_RDONLY);

	OK(ops_fsync(fs, ops_file_ino(f), false));
	w.written = w.synced = 1;
	rt_sim_node_kill(rt_sim_node());
}

static void node_reopen(void *arg)
{
	struct fs *fs = test_fs_open(&w.world);
	struct ops_file *f = open_name(fs, "keep", O_WRONLY);

	keep_write(fs, f);
	ops_close(fs, f);
	keep_sync(fs);
}

/* The file was without a name when it was written, and its caller has forgotten it. */
static void node_named(void *arg)
{
	const struct ops_options o = {.caller_forgets = true};
	struct weft_error err = {0};
	struct ops_file *f;
	struct statvfs s;
	struct ops_attr a;
	struct fs *fs;

	OK(fs_open(&fs, fs_volume(test_fs_open(&w.world)), &o, &err));
	OK(ops_tmpfile(fs, DISK_INO_ROOT, &root_user, 0644, O_RDWR, &f, &a));
	keep_write(fs, f);
	OK(try_link(fs, a.ino, DISK_INO_ROOT, "keep"));
	ops_close(fs, f);
	ops_forget(fs, a.ino);
	OK(ops_statfs(fs, &s)); /* what is forgotten has been looked at */
	keep_sync(fs);
}

static int synced_main(void *arg)
{
	w.disk = rt_sim_disk_create(w.world.disk_name, w.world.disk_bytes, NULL);
	HOLDS(w.disk);
	on_node(node_format);
	on_node(w.synced_by);
	on_node(node_check);
	HOLDS(w.finished && w.synced);
	return 0;
}

static void synced_by(void (*node)(void *))
{
	for (unsigned seed = 1; seed <= 10; seed++) {
		memset(&w, 0, sizeof(w));
		w.synced_by = node;
		w.world = (struct fs_test){.disk_name = "disk",
			.disk_bytes = 48u << 20,
			.cache_bytes = 8u << 20};
		OK(rt_sim_run(seed, NULL, synced_main, NULL));
	}
}

static void fsync_covers_what_closed_handles_wrote(void **state)
{
	synced_by(node_reopen);
}

static void fsync_covers_what_was_written_before_the_file_had_a_name(void **state)
{
	synced_by(node_named);
}

/* More files than states are kept of: what is made then has nothing that was forgotten. */
static void many_written(struct fs *fs)
{
	const unsigned count = 20000;
	struct inode_state *st;
	struct ops_file *f;
	char name[16];

	for (unsigned i = 0; i < count; i++) {
		sprintf(name, "f%u", i);
		f = open_name(fs, name, O_WRONLY);
		EQ(ops_write(fs, f, &root_user, 0, "x", 1, false), 1);
		if (i + 1 < count)
			ops_close(fs, f);
	}
	st = state_find(fs, ops_file_ino(f));
	HOLDS(!st->dirty_unknown);
	state_put(fs, st);
	ops_close(fs, f);
	f = open_name(fs, "f0", O_RDONLY);
	st = state_find(fs, ops_file_ino(f));
	HOLDS(st->dirty_unknown);
	state_put(fs, st);
	ops_close(fs, f);
}

static void new_files_have_nothing_forgotten(void **state)
{
	with_fs_sized(1, 256, 128, many_written);
}

/* ---- two cuts in the middle of appends ------------------------------------------- */

#define TAIL_KEPT 1000u

static struct {
	uint64_t offset, bytes; /* the second append */
} tail;

/* The bytes of a lost append have reached the disk: all of the page behind the end. */
static void node_lost_append(void *arg)
{
	struct fs *fs = test_fs_open(&w.world);
	struct ops_file *f = open_name(fs, "tail", O_RDWR);
	uint8_t bytes[TAIL_KEPT];
	struct disk_extent e;
	struct guard g;

	memset(bytes, 'k', sizeof(bytes));
	EQ(ops_write(fs, f, &root_user, 0, bytes, sizeof(bytes), false), sizeof(bytes));
	EQ(tree_read(fs->tree, disk_key(ops_file_ino(f), DISK_ITEM_EXTENT, 0), &e,
		   sizeof(e)),
		sizeof(e));
	OK(guard_exclusive(fs->volume->cache, e.pid, e.incarnation, &g));
	memset(g.image + TAIL_KEPT, 'l', PAGE_SIZE - TAIL_KEPT);
	guard_release_dirty(fs->volume->cache, &g, false);
	OK(cache_checkpoint(fs->volume->cache));
	rt_sim_node_kill(rt_sim_node());
}

/* Of this one only what the log has of it remains. */
static void node_second_append(void *arg)
{
	struct fs *fs = test_fs_open(&w.world);
	struct ops_file *f = open_name(fs, "tail", O_RDWR);
	uint8_t bytes[2 * PAGE_SIZE];

	memset(bytes, 'n', sizeof(bytes));
	EQ(ops_write(fs, f, &root_user, tail.offset, bytes, tail.bytes, false),
		tail.bytes);
	OK(log_flush(fs->volume->log, log_end(fs->volume->log)));
	rt_sim_node_kill(rt_sim_node());
}

static void node_check_tail(void *arg)
{
	struct fs *fs = test_fs_open(&w.world);
	struct ops_file *f = open_name(fs, "tail", O_RDWR);
	uint64_t size = attr_of(fs, ops_file_ino(f)).size;
	uint8_t bytes[3 * PAGE_SIZE];

	EQ(size, tail.offset + tail.bytes);
	read_all(fs, f, bytes, size);
	for (uint64_t i = 0; i < size; i++) {
		bool kept = i < TAIL_KEPT, written = i >= tail.offset;

		HOLDS((kept && bytes[i] == 'k') || (!kept && bytes[i] == 0) ||
			(written && bytes[i] == 'n'));
	}
	ops_close(fs, f);
	test_fs_close(fs);
	w.finished = true;
}

static int tail_main(void *arg)
{
	w.disk = rt_sim_disk_create(w.world.disk_name, w.world.disk_bytes, NULL);
	HOLDS(w.disk);
	on_node(node_format);
	on_node(node_lost_append);
	on_node(node_second_append);
	on_node(node_check_tail);
	HOLDS(w.finished);
	return 0;
}

static void bytes_of_a_lost_append_are_never_shown(void **state)
{
	static const struct {
		uint64_t offset, bytes;
	} append[] = {{TAIL_KEPT, 1}, {TAIL_KEPT, 500}, {TAIL_KEPT, PAGE_SIZE},
		{TAIL_KEPT + 100, 50}, {500, 600}, {0, PAGE_SIZE}, {0, 2 * PAGE_SIZE},
		{2 * PAGE_SIZE - 1, 2}};

	for (unsigned i = 0; i < ARRAY_SIZE(append); i++) {
		memset(&w, 0, sizeof(w));
		w.world = (struct fs_test){.disk_name = "disk",
			.disk_bytes = 48u << 20,
			.cache_bytes = 8u << 20};
		tail.offset = append[i].offset;
		tail.bytes = append[i].bytes;
		OK(rt_sim_run(i + 1, NULL, tail_main, NULL));
	}
}

/* ---- cuts between the pieces of a large change ----------------------------------- */

static struct {
	bool unlinks, done;
	unsigned intents, orphans; /* that cuts left, over all runs */
} pieces;

static void pieces_run(struct fs *fs, unsigned n)
{
	const struct ops_setattr set = {.set = OPS_SET_SIZE, .size = 5000};
	struct ops_file *f;
	struct ops_attr a;

	if (n == 1) { /* makes each piece durable as it comes */
		while (!pieces.done) {
			OK(log_flush(fs->volume->log, log_end(fs->volume->log)));
			rt_yield();
		}
		return;
	}
	f = open_name(fs, "churn", O_RDWR);
	if (pieces.unlinks)
		OK(ops_unlink(fs, DISK_INO_ROOT, nm("churn")));
	else
		OK(ops_setattr(fs, ops_file_ino(f), &root_user, &set, &a));
	ops_close(fs, f);
	pieces.done = true;
}

static void node_pieces(void *arg)
{
	struct fs *fs = test_fs_open(&w.world);
	struct ops_file *f = open_name(fs, "churn", O_RDWR);

	scatter_file(fs, f, 1200);
	ops_close(fs, f);
	OK(ops_syncfs(fs));
	rt_sim_disk_cut_after(w.disk, w.disk_ops);
	crew(fs, 2, pieces_run);
	rt_sim_node_kill(rt_sim_node());
}

/* What the cut left, before anyone works it off. */
static void node_count(void *arg)
{
	const struct disk_key end = disk_key(DISK_INO_SYSTEM, DISK_ITEM_INTENT + 1, 0);
	struct volume_options vo = {
		.background = true, .cache.cache_bytes = w.world.cache_bytes};
	struct disk_key at = disk_key(DISK_INO_SYSTEM, DISK_ITEM_ORPHAN, 0), found;
	struct weft_error err = {0};
	uint8_t value[DISK_VALUE_MAX];
	struct rt_disk *disk;
	struct volume *v;

	OK(rt_disk_open(&disk, w.world.disk_name, 0, &err));
	OK(volume_open(&v, disk, &vo, &err));
	while (tree_next(v->tree, at, end, &found, value, sizeof(value)) >= 0) {
		if ((found.high & 0xff) == DISK_ITEM_ORPHAN)
			pieces.orphans++;
		else
			pieces.intents++;
		at = found;
		at.low++;
	}
	OK(volume_close(v));
}

static int pieces_main(void *arg)
{
	w.disk = rt_sim_disk_create(w.world.disk_name, w.world.disk_bytes, NULL);
	HOLDS(w.disk);
	on_node(node_format);
	on_node(node_pieces);
	rt_sim_disk_cut_after(w.disk, 0);
	on_node(node_count);
	on_node(node_check);
	HOLDS(w.finished);
	return 0;
}

static void mounts_finish_what_cuts_left(void **state)
{
	for (unsigned seed = 1; seed <= 40; seed++) {
		memset(&w, 0, sizeof(w));
		w.world = (struct fs_test){.disk_name = "disk",
			.disk_bytes = 48u << 20,
			.cache_bytes = 1u << 20};
		w.disk_ops = 1 + seed / 2;
		pieces.done = false;
		pieces.unlinks = seed % 2;
		OK(rt_sim_run(seed, NULL, pieces_main, NULL));
	}
	HOLDS(pieces.intents > 0 && pieces.orphans > 0); /* else nothing was tested */
}

static unsigned runs(void)
{
	const char *more = getenv("OPS_CRASH_RUNS");

	return more ? (unsigned)atoi(more) : 60;
}

static void run_worlds(bool failing, uint64_t ops_max)
{
	uint64_t synced = 0;

	for (unsigned seed = 1; seed <= runs(); seed++) {
		memset(&w, 0, sizeof(w));
		w.failing = failing;
		w.world = (struct fs_test){.disk_name = "disk",
			.disk_bytes = 48u << 20,
			.cache_bytes = 1u << 20};
		w.disk_ops = 1 + (uint64_t)seed * seed * 2654435761u % ops_max;
		OK(rt_sim_run(seed, NULL, world_main, NULL));
		synced += w.synced;
	}
	HOLDS(synced > 0); /* else nothing was tested */
}

static void cuts_leave_synced_data_and_exact_space(void **state)
{
	run_worlds(false, 4000);
}

static void failing_disks_leave_synced_data_and_exact_space(void **state)
{
	run_worlds(true, 1500);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(fsync_covers_what_closed_handles_wrote),
		cmocka_unit_test(
			fsync_covers_what_was_written_before_the_file_had_a_name),
		cmocka_unit_test(new_files_have_nothing_forgotten),
		cmocka_unit_test(bytes_of_a_lost_append_are_never_shown),
		cmocka_unit_test(mounts_finish_what_cuts_left),
		cmocka_unit_test(cuts_leave_synced_data_and_exact_space),
		cmocka_unit_test(failing_disks_leave_synced_data_and_exact_space),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
