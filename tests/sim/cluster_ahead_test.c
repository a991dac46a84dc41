/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a read or an overwrite of another node's pages waits for: one node has written a file, another one reads
 * it, or writes over it. The link between them is a clock: what has been sent is delivered once in a millisecond
 * of virtual time, all of it, as far as the streams have room (256 KiB on their way). So a
 * round trip takes two ticks, and who waits for a page is seen to wait.
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/cluster_ahead_test     one seed
 */
#define FRAMES 4096 /* the file fits; a 16th of it is read ahead at most */
#include "tests/sim/cluster_world.h"

#define TICK_NS     1000000u
#define FILE_PAGES  2048u
#define BATCH       256u /* pages: 1 MiB, the most that is read at a time */
#define AHEAD_SEEDS 5
/* A first request waits for the tree, some for the windows that are still small. */
#define FEW 8
#define LISTED 2000u /* files of a directory */

static uint64_t the_file, the_directory;
static void (*used_as)(struct node *n, struct ops_file *f);

/* ---- the link ---------------------------------------------------------------------------- */

static struct link {
	struct rt_task *task;
	struct world *w;
	_Atomic uint32_t ends;
	_Atomic uint64_t ticks;
} the_link;

static void link_hold(const struct world *w, bool held)
{
	rt_sim_net_block(w->node[0].sim, w->node[1].sim, held);
	rt_sim_net_block(w->node[1].sim, w->node[0].sim, held);
}

static void link_main(void *arg)
{
	struct link *l = (struct link *)arg;

	while (!atomic_load(&l->ends)) {
		rt_sleep_ns(TICK_NS);
		link_hold(l->w, false);
		link_hold(l->w, true);
		atomic_fetch_add(&l->ticks, 1);
	}
	link_hold(l->w, false);
}

static void link_begin(struct world *w)
{
	the_link = (struct link){.w = w};
	rt_sim_net_delay(0, 0); /* once it is delivered */
	link_hold(w, true);
	OK(rt_task_spawn(&the_link.task, "link", link_main, &the_link));
}

static void link_end(void)
{
	atomic_store(&the_link.ends, 1);
	rt_task_join(the_link.task);
}

/* ---- reading ------------------------------------------------------------------------------ */

static uint64_t asked(const struct node *n)
{
	return atomic_load(&coherence_counters(n->coherence)
				    ->sent[PAGE_REQUEST - PAGE_MESSAGE_FIRST]);
}

/* The pages say which they are. */
struct sight {
	uint64_t offset;
};

static int see(void *arg, const struct iovec *iov, unsigned count, size_t total)
{
	uint64_t at = ((struct sight *)arg)->offset;

	for (unsigned i = 0; i < count; i++) {
		uint64_t said;

		if (at % PAGE_SIZE == 0) {
			memcpy(&said, iov[i].iov_base, sizeof(said));
			EQ(said, at / PAGE_SIZE + 1);
		}
		at += iov[i].iov_len;
	}
	return (int)total;
}

/* The ticks that it took. */
static uint64_t read_at(
	struct node *n, struct ops_file *f, uint64_t block, unsigned pages)
{
	uint64_t before = atomic_load(&the_link.ticks);
	struct sight s = {block * PAGE_SIZE};

	EQ(ops_read(n->fs, f, s.offset, (size_t)pages * PAGE_SIZE, see, &s),
		pages * PAGE_SIZE);
	return atomic_load(&the_link.ticks) - before;
}

/* 1 MiB, with what the tree says of it here already: all is asked for before anything is there. */
static void read_a_mebibyte(struct node *n, struct ops_file *f)
{
	struct cache_counters *c = cache_counters(n->v->cache);
	uint64_t requests, fetches, ticks;

	EQ(ops_lseek(n->fs, f, 0, SEEK_HOLE, NULL, NULL), FILE_PAGES * PAGE_SIZE);
	requests = asked(n);
	fetches = atomic_load(&c->fetch_requests);
	/* not where it would be the beginning of the file, and more be read ahead */
	ticks = read_at(n, f, BATCH, BATCH);
	EQ(asked(n) - requests, BATCH);
	EQ(atomic_load(&c->fetch_requests) - fetches, 1);
	EQ(atomic_load(&c->prefetches), 0);
	/* there, and back in four pieces and a little; one after the other it would take 512 */
	HOLDS(ticks >= 2 && ticks <= 8);
}

/* 1 MiB over what the other node has, and perhaps this one, too, to be read: asked for at once, with the leaf. */
static void write_a_mebibyte(struct node *n, struct ops_file *f, uint64_t block)
{
	uint8_t *bytes = rt_alloc(BATCH * PAGE_SIZE);
	uint64_t requests = asked(n), before = atomic_load(&the_link.ticks), ticks;

	memset(bytes, 0xa5, BATCH * PAGE_SIZE);
	EQ(ops_write(n->fs, f, &root_user, block * PAGE_SIZE, bytes, BATCH * PAGE_SIZE,
		   false),
		BATCH * PAGE_SIZE);
	ticks = atomic_load(&the_link.ticks) - before;
	requests = asked(n) - requests;
	rt_free(bytes);
	HOLDS(requests >= BATCH && requests <= BATCH + 4);
	/* there, and back in four pieces and a little; a page does not fit with the leaf into what is asked for at a time */
	if (ticks > 14)
		print_message("overwriting took %llu ticks\n", (unsigned long long)ticks);
	HOLDS(ticks >= 2 && ticks <= 14);
}

static void write_over(struct node *n, struct ops_file *f)
{
	EQ(ops_lseek(n->fs, f, 0, SEEK_HOLE, NULL, NULL), FILE_PAGES * PAGE_SIZE);
	write_a_mebibyte(n, f, BATCH);
	read_at(n, f, 2 * BATCH, BATCH);
	write_a_mebibyte(n, f, 2 * BATCH);
}

/* All of the file, as fast as the link has it, in requests of so many pages. */
static void read_on(struct node *n, struct ops_file *f, unsigned pages)
{
	uint64_t requests = asked(n);
	unsigned waited = 0;

	for (uint64_t block = 0; block < FILE_PAGES; block += pages) {
		waited += read_at(n, f, block, pages) > 0;
		rt_sleep_ns(TICK_NS * pages / 32); /* 128 KiB in a tick */
	}
	if (waited > FEW)
		print_message("%u requests of %u waited\n", waited, FILE_PAGES / pages);
	HOLDS(waited > 0 && waited <= FEW);
	/* each page once, and some of the tree */
	HOLDS(asked(n) - requests >= FILE_PAGES &&
		asked(n) - requests <= FILE_PAGES + 64);
}

static void read_on_in_large_requests(struct node *n, struct ops_file *f)
{
	read_on(n, f, 32);
}

static void read_on_in_pages(struct node *n, struct ops_file *f)
{
	read_on(n, f, 1);
}

/* Pages that do not follow each other. */
static void read_about(struct node *n, struct ops_file *f)
{
	struct cache_counters *c = cache_counters(n->v->cache);
	uint64_t requests, before = atomic_load(&c->prefetches);

	EQ(ops_lseek(n->fs, f, 0, SEEK_HOLE, NULL, NULL), FILE_PAGES * PAGE_SIZE);
	requests = asked(n);
	for (unsigned i = 1; i <= 200; i++) {
		HOLDS(read_at(n, f, i * 797u % FILE_PAGES, 1) > 0);
		rt_sleep_ns(TICK_NS); /* for what would be asked for ahead */
	}
	EQ(atomic_load(&c->prefetches), before);
	EQ(asked(n) - requests, 200);
}

/* Who has gone on for a while, and then looks about, is read ahead for no more. */
static void read_on_and_about(struct node *n, struct ops_file *f)
{
	struct cache_counters *c = cache_counters(n->v->cache);
	uint64_t before;

	for (unsigned i = 0; i < 4; i++)
		read_at(n, f, i * 8, 8);
	rt_sleep_ns(20 * TICK_NS);
	before = atomic_load(&c->prefetches);
	HOLDS(before > 0);
	for (unsigned i = 1; i <= 50; i++)
		read_at(n, f, FILE_PAGES / 2 + i * 397u % (FILE_PAGES / 2), 1);
	rt_sleep_ns(20 * TICK_NS);
	EQ(atomic_load(&c->prefetches), before);
}

/* ---- listing ------------------------------------------------------------------------------ */

/* The names of the directory, in the order in which they are listed. */
struct listed {
	unsigned count;
	struct {
		char name[16];
		uint64_t ino;
	} entry[LISTED];
};

static int list_entry(void *arg, const struct ops_dirent *e)
{
	struct listed *l = (struct listed *)arg;

	if (e->name[0] == '.')
		return 0;
	HOLDS(l->count < LISTED && e->name_len < sizeof(l->entry[0].name));
	memcpy(l->entry[l->count].name, e->name, e->name_len);
	l->entry[l->count].name[e->name_len] = 0;
	l->entry[l->count++].ino = e->ino;
	return 0;
}

static int by_inode(const void *a, const void *b)
{
	uint64_t x, y;

	memcpy(&x, (const char *)a + sizeof(((struct listed *)0)->entry[0].name), sizeof(x));
	memcpy(&y, (const char *)b + sizeof(((struct listed *)0)->entry[0].name), sizeof(y));
	return (x > y) - (x < y);
}

/* Looks at the listed files, one after the other. Returns the lookups that waited. */
static unsigned look_at(struct node *n, const struct listed *l)
{
	unsigned waited = 0;

	for (unsigned i = 0; i < l->count; i++) {
		uint64_t before = atomic_load(&the_link.ticks);
		struct ops_attr a;

		OK(ops_lookup(n->fs, the_directory, nm(l->entry[i].name), &a));
		EQ(a.ino, l->entry[i].ino);
		waited += atomic_load(&the_link.ticks) > before;
	}
	return waited;
}

static struct listed *list(struct node *n)
{
	struct listed *l = (struct listed *)rt_alloc(sizeof(*l));

	OK(ops_readdir(n->fs, the_directory, 0, 0, list_entry, l));
	EQ(l->count, LISTED);
	return l;
}

/* The files' inodes lie in some 70 leaves, which another node has. Each would be waited for. */
static void look_in_order(struct node *n, bool inodes)
{
	struct ops_counters *c = ops_counters(n->fs);
	struct listed *l = list(n);
	uint64_t requests;
	unsigned waited;

	if (inodes)
		qsort(l->entry, l->count, sizeof(l->entry[0]), by_inode);
	requests = asked(n);
	waited = look_at(n, l);
	requests = asked(n) - requests;
	if (waited >= requests / 3)
		print_message("%u lookups waited for %u leaves\n", waited, (unsigned)requests);
	HOLDS(requests > LISTED / 40 && requests < LISTED / 20);
	HOLDS(waited > 0 && waited < requests / 3);
	if (!inodes)
		HOLDS(atomic_load(&c->listed_ahead_used) > atomic_load(&c->listed_ahead) * 9 / 10);
	rt_free(l);
}

static void look_as_listed(struct node *n, struct ops_file *f)
{
	look_in_order(n, false);
}

static void look_by_inode(struct node *n, struct ops_file *f)
{
	look_in_order(n, true);
}

/* Of three entries two are passed over: no request is larger than the first one. */
static void look_at_each_third(struct node *n, struct ops_file *f)
{
	struct ops_counters *c = ops_counters(n->fs);
	struct listed *l = list(n);
	uint64_t ahead, used;
	struct ops_attr a;
	unsigned i;

	for (i = 0; i < LISTED / 2; i += 3)
		OK(ops_lookup(n->fs, the_directory, nm(l->entry[i].name), &a));
	ahead = atomic_load(&c->listed_ahead);
	used = atomic_load(&c->listed_ahead_used);
	HOLDS(ahead > i / 2 && ahead < i + 64);
	HOLDS(used <= i / 3 && used > i / 6);
	rt_free(l);
}

/* By name: the hashes are in no order. */
static void look_about(struct node *n, struct ops_file *f)
{
	struct cache_counters *c = cache_counters(n->v->cache);
	struct listed *l = list(n);
	struct ops_attr a;
	uint64_t before;
	char name[16];

	rt_sleep_ns(100 * TICK_NS); /* for what the listing had read ahead */
	before = atomic_load(&c->prefetches);

	for (unsigned i = 0; i < 300; i++) {
		snprintf(name, sizeof(name), "file%u", i * 797 % LISTED);
		OK(ops_lookup(n->fs, the_directory, nm(name), &a));
	}
	EQ(atomic_load(&c->prefetches), before);
	rt_free(l);
}

static void make_files(struct node *n)
{
	struct ops_attr a;
	char name[16];

	OK(ops_mkdir(n->fs, DISK_INO_ROOT, nm("directory"), &root_user, 0755, &a));
	the_directory = a.ino;
	for (unsigned i = 0; i < LISTED; i++) {
		snprintf(name, sizeof(name), "file%u", i);
		OK(ops_mknod(n->fs, the_directory, nm(name), &root_user,
			S_IFREG | 0644, 0, 0, &a));
	}
}

/* ---- the nodes ---------------------------------------------------------------------------- */

static void write_all(struct node *n)
{
	uint8_t *bytes = rt_alloc(BATCH * PAGE_SIZE);
	struct ops_file *f;
	struct ops_attr a;

	memset(bytes, 0x5a, BATCH * PAGE_SIZE);
	OK(ops_create(n->fs, DISK_INO_ROOT, nm("file"), &root_user, 0644, O_RDWR | O_EXCL,
		&f, &a));
	for (uint64_t block = 0; block < FILE_PAGES; block += BATCH) {
		for (uint64_t i = 0; i < BATCH; i++) {
			uint64_t said = block + i + 1;

			memcpy(bytes + i * PAGE_SIZE, &said, sizeof(said));
		}
		EQ(ops_write(n->fs, f, &root_user, block * PAGE_SIZE, bytes,
			   BATCH * PAGE_SIZE, false),
			BATCH * PAGE_SIZE);
	}
	ops_close(n->fs, f);
	rt_free(bytes);
	the_file = a.ino;
}

static void ahead_work(struct node *n)
{
	struct ops_file *f;
	struct ops_attr a;

	if (n->id == 1) {
		write_all(n);
		make_files(n);
	}
	barrier(n);
	if (n->id == 2) {
		/* no atime: it would be another node's leaf to be changed */
		OK(ops_open(n->fs, the_file, &root_user,
			(used_as == write_over ? O_RDWR : O_RDONLY) | O_NOATIME, &f, &a));
		link_begin(n->w);
		used_as(n, f);
		link_end();
		ops_close(n->fs, f);
	}
	barrier(n);
}

static void ahead_check(struct node *n)
{
}

static void run_with(void (*as)(struct node *n, struct ops_file *f))
{
	struct world *w = (struct world *)calloc(1, sizeof(*w));
	uint64_t seeds = seeds_count(AHEAD_SEEDS);
	struct rt_sim_options o = {.time_limit_ns = 600ull * 1000000000};

	assert_non_null(w);
	used_as = as;
	for (uint64_t seed = seeds_first(); seeds--; seed++) {
		memset(w, 0, sizeof(*w));
		w->nodes = 2;
		w->work = ahead_work;
		w->check = ahead_check;
		assert_int_equal(rt_sim_run(seed, &o, run_world, w), 0);
	}
	free(w);
}

static void a_mebibyte_is_asked_for_at_once(void **state)
{
	run_with(read_a_mebibyte);
}

static void a_mebibyte_is_overwritten_in_one_round(void **state)
{
	run_with(write_over);
}

static void who_reads_on_finds_what_was_asked_for(void **state)
{
	run_with(read_on_in_large_requests);
	run_with(read_on_in_pages);
}

static void nothing_is_asked_for_ahead_of_who_looks_about(void **state)
{
	run_with(read_about);
	run_with(read_on_and_about);
}

static void who_looks_at_listed_files_finds_most_of_them(void **state)
{
	run_with(look_as_listed);
	run_with(look_by_inode);
}

static void who_passes_most_names_over_finds_few_ahead(void **state)
{
	run_with(look_at_each_third);
}

static void nothing_is_asked_for_ahead_of_who_looks_names_up(void **state)
{
	run_with(look_about);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_mebibyte_is_asked_for_at_once),
		cmocka_unit_test(a_mebibyte_is_overwritten_in_one_round),
		cmocka_unit_test(who_reads_on_finds_what_was_asked_for),
		cmocka_unit_test(nothing_is_asked_for_ahead_of_who_looks_about),
		cmocka_unit_test(who_looks_at_listed_files_finds_most_of_them),
		cmocka_unit_test(who_passes_most_names_over_finds_few_ahead),
		cmocka_unit_test(nothing_is_asked_for_ahead_of_who_looks_names_up),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
