/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Large new files: what a stream costs the device, and what power cuts leave of it.
 *
 * New pages are written before their descriptors are durable, and blocks of the descriptor table
 * are made instead of read. After a cut a page of a file that was not synced has its bytes, or
 * zeros. It never has bytes of another file, and never counts as damaged.
 */
#include "tests/unit/ops_account.h"

#define MIB (1ull << 20)

static struct ops_file *open_new(struct fs *fs, const char *name)
{
	struct ops_file *f;
	struct ops_attr a;

	OK(ops_create(fs, DISK_INO_ROOT, nm(name), &root_user, 0644, O_RDWR, &f, &a));
	return f;
}

/* ---- counts ------------------------------------------------------------------------ */

#define STREAM_MIB 48u

struct counts {
	uint64_t flushes, table_reads, batches;
};

static struct counts counts_now(struct fs *fs)
{
	struct volume *v = fs_volume(fs);
	struct store_counters *store = store_counters(v->store);

	return (struct counts){
		.flushes = atomic_load(&store->flushes) +
			   atomic_load(&log_counters(v->log)->flushes),
		.table_reads = atomic_load(&store->table_reads),
		.batches = atomic_load(&cache_counters(v->cache)->write_batches),
	};
}

static struct counts counts_since(struct fs *fs, const struct counts *before)
{
	struct counts now = counts_now(fs);

	now.flushes -= before->flushes;
	now.table_reads -= before->table_reads;
	now.batches -= before->batches;
	return now;
}

static struct counts stream_write(struct fs *fs, const char *name)
{
	struct counts before = counts_now(fs);
	struct ops_file *f = open_new(fs, name);
	uint8_t *bytes = rt_alloc(MIB);

	memset(bytes, 'x', MIB);
	for (unsigned i = 0; i < STREAM_MIB; i++)
		EQ(ops_write(fs, f, &root_user, i * MIB, bytes, MIB, false), MIB);
	OK(ops_fsync(fs, ops_file_ino(f), false));
	ops_close(fs, f);
	rt_free(bytes);
	return counts_since(fs, &before);
}

/* The table, the log in the background and the metadata have a few flushes of their own. */
#define FLUSHES_BESIDE 12u

static void do_streams(struct fs *fs)
{
	for (unsigned i = 0; i < 10; i++) {
		struct counts c = stream_write(fs, "stream");

		if (c.table_reads || c.flushes > c.batches + FLUSHES_BESIDE) {
			fprintf(stderr,
				"file %u: %llu flushes, %llu batches, %llu table blocks "
				"read\n",
				i, (unsigned long long)c.flushes,
				(unsigned long long)c.batches,
				(unsigned long long)c.table_reads);
			abort();
		}
		OK(ops_unlink(fs, DISK_INO_ROOT, nm("stream")));
		OK(ops_syncfs(fs));
	}
}

static void a_stream_costs_a_flush_a_batch_and_no_read_of_the_table(void **state)
{
	for (unsigned seed = 1; seed <= 3; seed++)
		with_fs_sized(seed, 256, 32, do_streams);
}

/* ---- power cuts -------------------------------------------------------------------- */

#define NAMES      4u
#define PAGES_MAX  300u
#define LIVES      3u
#define LIFE_FILES 24u

/* What the world outside the node remembers of a name. */
struct remembered {
	unsigned file;  /* the newest that was begun; 0: none */
	unsigned pages; /* of it */
	bool whole;     /* it was synced, or was found whole after a cut */
};

static struct {
	struct rt_sim_disk *disk;
	struct fs_test world;
	struct remembered name[NAMES];
	unsigned files;
	bool checked, quiet; /* quiet: no cut in this life */
} w;

static const char *const names[NAMES] = {"a", "b", "c", "d"};

static void page_fill(uint64_t *page, unsigned file, unsigned index)
{
	for (unsigned i = 0; i < PAGE_SIZE / sizeof(*page); i++)
		page[i] = (uint64_t)file << 32 | (uint64_t)index << 16 | i;
}

static void file_make(struct fs *fs, unsigned n)
{
	struct remembered *r = &w.name[n];
	uint64_t *bytes = rt_alloc(PAGES_MAX * PAGE_SIZE);
	unsigned pages = 20 + (unsigned)(rt_random() % (PAGES_MAX - 20)), done = 0, some;
	struct ops_file *f;

	if (r->file) {
		int rc = ops_unlink(fs, DISK_INO_ROOT, nm(names[n]));

		HOLDS(rc == 0 || rc == -ENOENT);
	}
	*r = (struct remembered){.file = ++w.files, .pages = pages};
	for (unsigned i = 0; i < pages; i++)
		page_fill(bytes + (size_t)i * PAGE_SIZE / 8, r->file, i);
	f = open_new(fs, names[n]);
	for (; done < pages; done += some) {
		some = 1 + (unsigned)(rt_random() % 100);
		some = MIN(some, pages - done);
		EQ(ops_write(fs, f, &root_user, (uint64_t)done * PAGE_SIZE,
			   bytes + (size_t)done * PAGE_SIZE / 8, some * PAGE_SIZE, false),
			some * PAGE_SIZE);
	}
	if (rt_random() % 3) {
		OK(ops_fsync(fs, ops_file_ino(f), rt_random() % 2));
		r->whole = true;
	}
	ops_close(fs, f);
	rt_free(bytes);
}

static int copy_page(void *arg, const struct iovec *iov, unsigned n, size_t total)
{
	uint8_t *to = arg;

	for (unsigned i = 0; i < n; i++) {
		memcpy(to, iov[i].iov_base, iov[i].iov_len);
		to += iov[i].iov_len;
	}
	return (int)total;
}

/* Checks each page, and returns the number of those with bytes. *file: the file that they are of.
 */
static unsigned pages_check(struct fs *fs, struct ops_file *f, unsigned pages,
	unsigned newest, unsigned *file)
{
	static const uint8_t zeros[PAGE_SIZE];
	uint64_t page[PAGE_SIZE / 8], want[PAGE_SIZE / 8];
	unsigned full = 0;

	for (unsigned i = 0; i < pages; i++) {
		EQ(ops_read(fs, f, (uint64_t)i * PAGE_SIZE, PAGE_SIZE, copy_page, page),
			PAGE_SIZE);
		if (memcmp(page, zeros, PAGE_SIZE) == 0)
			continue;
		if (!*file)
			*file = (unsigned)(page[0] >> 32);
		HOLDS(*file && *file <= newest);
		page_fill(want, *file, i);
		HOLDS(memcmp(page, want, PAGE_SIZE) == 0);
		full++;
	}
	return full;
}

static void check_name(struct fs *fs, unsigned n)
{
	struct remembered *r = &w.name[n];
	unsigned file = 0, pages, full;
	struct ops_file *f;
	struct ops_attr a;
	uint64_t ino;

	if (!r->file)
		return;
	if (try_lookup(fs, DISK_INO_ROOT, names[n])) {
		HOLDS(!r->whole);
		*r = (struct remembered){0};
		return;
	}
	ino = ino_of(fs, DISK_INO_ROOT, names[n]);
	OK(ops_open(fs, ino, &root_user, O_RDONLY, &f, &a));
	EQ(a.inode.size % PAGE_SIZE, 0);
	pages = (unsigned)(a.inode.size / PAGE_SIZE);
	full = pages_check(fs, f, pages, r->file, &file);
	if (r->whole) {
		EQ(file, r->file);
		EQ(pages, r->pages);
		EQ(full, pages);
	}
	r->file = file ? file : r->file;
	r->pages = pages;
	r->whole = file && full == pages;
	ops_close(fs, f);
}

static void node_format(void *arg)
{
	test_fs_format(w.world.disk_name, 2 * MIB);
}

static void node_life(void *arg)
{
	struct fs *fs = test_fs_open(&w.world);

	EQ(pages_over(fs), 0);
	for (unsigned n = 0; n < NAMES; n++)
		check_name(fs, n);
	w.checked = true;
	if (!w.quiet) {
		rt_sim_disk_cut_after(w.disk, 1 + rt_random() % 400);
		for (unsigned i = 0; i < LIFE_FILES; i++)
			file_make(fs, (unsigned)(rt_random() % NAMES));
	}
	test_fs_close(fs);
}

static void on_node(void (*fn)(void *))
{
	unsigned node = rt_sim_node_new("node");

	OK(rt_sim_spawn_on(node, "main", fn, NULL));
	(void)rt_sim_node_wait(node);
	rt_sim_node_kill(node);
	rt_sim_disk_cut_after(w.disk, 0);
}

static int lives_main(void *arg)
{
	w.disk = rt_sim_disk_create(w.world.disk_name, w.world.disk_bytes, NULL);
	HOLDS(w.disk);
	on_node(node_format);
	for (unsigned life = 0; life <= LIVES; life++) {
		w.checked = false;
		w.quiet = life == LIVES;
		on_node(node_life);
		HOLDS(w.checked);
	}
	return 0;
}

static void a_cut_leaves_a_new_page_or_zeros(void **state)
{
	for (unsigned seed = 1; seed <= 12; seed++) {
		memset(&w, 0, sizeof(w));
		w.world = (struct fs_test){.disk_name = "disk",
			.disk_bytes = 12 * MIB,
			.cache_bytes = 8 * MIB};
		OK(rt_sim_run(seed, NULL, lives_main, NULL));
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_stream_costs_a_flush_a_batch_and_no_read_of_the_table),
		cmocka_unit_test(a_cut_leaves_a_new_page_or_zeros),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
