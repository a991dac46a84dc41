/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mmap=local (docs/nodes/mappings.md, "Mappings for one node"): programs of several nodes store into the same
 * pages, through mappings, each into words of its node. Their kernels write back when they are
 * told to, or drop a page. No store may be lost, whatever others store, write or read in that page
 * meanwhile; a node never sees less than it has stored; what was written back with msync is
 * seen by all that look later; and nobody waits for ever.
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/kernel_local_test      one seed
 *   WEFT_SIM_SEEDS=1000                                    so many of each kind
 */
#include "tests/sim/cluster_world.h"

#define FILES   2u
#define BLOCKS  4u
#define PAGES   (FILES * BLOCKS)
#define WORKERS (2 * PAGES)

/* The first of a page: of each node one that grows, and one that is 0 or 1. */
typedef uint64_t words[2 * NODES_MAX];

struct local_page {
	bool locked, good, dirty;
	words word;
};

/* A READ whose answer is to be taken in, or a WRITE to be served. */
struct request {
	struct request *next;
	struct local_page *page;
	bool write, answered;
	uint8_t image[PAGE_SIZE];
};

struct local_kernel {
	struct node *n;
	struct local_page page[PAGES];
	struct ops_file *open[FILES];
	struct rt_mutex lock;
	struct rt_cond changed;
	struct request *first, **end;
	bool stopping;
	struct rt_mutex program[PAGES]; /* who has the node's word of it */
	uint64_t stores, brought, drops;
};

static struct local_kernel local[NODES_MAX];
static uint64_t local_ino[FILES];
/* By page: what the node has stored last; what all see from now on. */
static words mine[PAGES];
static _Atomic uint64_t shown[PAGES][NODES_MAX];
static uint64_t sum_stores, sum_brought, sum_drops;

static unsigned page_index(const struct local_kernel *k, const struct local_page *p)
{
	return (unsigned)(p - k->page);
}

static uint64_t page_offset(unsigned i)
{
	return (uint64_t)(i % BLOCKS) * PAGE_SIZE;
}

static void a_moment(void)
{
	rt_sleep_ns(pick(3) ? pick(2000) : pick(200000));
}

static void unlock_page(struct local_kernel *k, struct local_page *p)
{
	p->locked = false;
	rt_cond_broadcast(&k->changed);
}

/* ---- the kernel ------------------------------------------------------------------------------ */

static void on_answer(void *arg)
{
	struct request *r = (struct request *)arg;
	struct local_kernel *k = &local[0];

	while (r->page < k->page || r->page >= k->page + PAGES)
		k++;
	rt_mutex_lock(&k->lock);
	HOLDS(!r->answered);
	r->answered = true;
	unlock_page(k, r->page);
	rt_mutex_unlock(&k->lock);
}

/* As a worker of the daemon. */
static void serve_write(struct local_kernel *k, struct request *r)
{
	unsigned i = page_index(k, r->page);

	EQ(ops_store_local(k->n->fs, k->open[i / BLOCKS], page_offset(i), r->image,
		   PAGE_SIZE, on_answer, r),
		PAGE_SIZE);
	if (!r->answered)
		on_answer(r);
	ops_stored(k->n->fs, local_ino[i / BLOCKS]);
	k->brought++;
	rt_free(r);
}

static void take_in(struct local_kernel *k, struct request *r)
{
	rt_mutex_lock(&k->lock);
	memcpy(r->page->word, r->image, sizeof(r->page->word));
	r->page->good = true;
	r->answered = true; /* whoever asked frees it */
	unlock_page(k, r->page);
	rt_mutex_unlock(&k->lock);
}

static void worker_main(void *arg)
{
	struct local_kernel *k = (struct local_kernel *)arg;

	rt_mutex_lock(&k->lock);
	while (!k->stopping || k->first) {
		struct request *r = k->first;

		if (!r) {
			rt_cond_wait(&k->changed, &k->lock, RT_FOREVER);
			continue;
		}
		k->first = r->next;
		if (!k->first)
			k->end = &k->first;
		rt_mutex_unlock(&k->lock);
		a_moment();
		if (r->write)
			serve_write(k, r);
		else
			take_in(k, r);
		rt_mutex_lock(&k->lock);
	}
	rt_mutex_unlock(&k->lock);
}

static void put(struct local_kernel *k, struct request *r)
{
	r->next = NULL;
	*k->end = r;
	k->end = &r->next;
	rt_cond_broadcast(&k->changed);
}

static void await_unlocked(struct local_kernel *k, const struct local_page *p)
{
	while (p->locked)
		rt_cond_wait(&k->changed, &k->lock, RT_FOREVER);
}

/* Under the lock: locked until it is answered. */
static void write_back(struct local_kernel *k, struct local_page *p)
{
	struct request *r;

	if (!p->dirty)
		return;
	r = (struct request *)rt_alloc(sizeof(*r));
	HOLDS(r);
	*r = (struct request){.page = p, .write = true};
	memcpy(r->image, p->word, sizeof(p->word));
	p->locked = true;
	p->dirty = false;
	put(k, r);
}

static void drop_page(struct local_kernel *k, struct local_page *p, _Atomic uint32_t *by)
{
	while (p->locked || p->dirty) {
		atomic_store(by, 1);
		if (!p->locked)
			write_back(k, p);
		await_unlocked(k, p);
	}
	atomic_store(by, 0);
	k->drops += p->good;
	p->good = false;
}

static void on_drop_pages(
	void *owner, uint64_t ino, uint64_t first, uint64_t end, _Atomic uint32_t *by)
{
	struct local_kernel *k = (struct local_kernel *)owner;

	a_moment();
	rt_mutex_lock(&k->lock);
	for (unsigned i = 0; i < PAGES; i++)
		if (local_ino[i / BLOCKS] == ino && i % BLOCKS >= first &&
			i % BLOCKS < end)
			drop_page(k, &k->page[i], by);
	rt_mutex_unlock(&k->lock);
}

static void on_tell_size(void *owner, uint64_t ino, uint64_t size)
{
	(void)owner;
	(void)ino;
	(void)size;
}

static bool on_drop_waits(void *owner, const _Atomic uint32_t *by)
{
	(void)owner;
	return atomic_load(by);
}

static bool on_drop_attributes(void *owner, uint64_t ino)
{
	(void)owner;
	(void)ino;
	return true;
}

static void on_expire_name(void *owner, uint64_t dir, struct ops_name name)
{
	(void)owner;
	(void)dir;
	(void)name;
}

static enum kcache_walk on_walks(void *owner, uint32_t thread)
{
	(void)owner;
	(void)thread;
	return KCACHE_WALK_UNKNOWN;
}

static bool on_gone_on(void *owner, uint32_t thread, struct kcache_seen *seen)
{
	(void)owner;
	(void)thread;
	(void)seen;
	return true;
}

/* No directory moves in these tests. */
static int on_look(void *owner, const struct ops_attr *dir, struct ops_name name)
{
	(void)owner;
	(void)dir;
	(void)name;
	return -ENOSYS;
}

static bool on_is_own(void *owner, uint32_t thread)
{
	(void)owner;
	(void)thread;
	return false;
}

static const struct kcache_ops local_ops = {
	.tell_size = on_tell_size,
	.drop_pages = on_drop_pages,
	.drop_waits = on_drop_waits,
	.drop_attributes = on_drop_attributes,
	.expire_name = on_expire_name,
	.walks = on_walks,
	.look = on_look,
	.is_own = on_is_own,
	.returned = on_gone_on,
};

struct asking {
	struct local_kernel *k;
	struct request *r;
};

static int copy_answer(void *arg, const struct iovec *iov, unsigned count, size_t total)
{
	EQ(total, PAGE_SIZE);
	EQ(count, 1);
	memcpy(arg, iov[0].iov_base, PAGE_SIZE);
	return (int)total;
}

/* The answer is given: it is taken in soon, without the daemon. */
static int read_answer(void *arg, const struct iovec *iov, unsigned count, size_t total)
{
	struct asking *a = (struct asking *)arg;

	copy_answer(a->r->image, iov, count, total);
	rt_mutex_lock(&a->k->lock);
	put(a->k, a->r);
	rt_mutex_unlock(&a->k->lock);
	return (int)total;
}

/* Under the lock: the page is there, and not locked. */
static struct local_page *page_get(struct local_kernel *k, unsigned i)
{
	struct local_page *p = &k->page[i];

	for (;;) {
		struct request r = {.page = p};
		struct asking a = {k, &r};

		await_unlocked(k, p);
		if (p->good)
			return p;
		p->locked = true;
		rt_mutex_unlock(&k->lock);
		EQ(ops_read_kept(k->n->fs, k->open[i / BLOCKS], page_offset(i), PAGE_SIZE,
			   read_answer, &a),
			PAGE_SIZE);
		rt_mutex_lock(&k->lock);
		while (!r.answered)
			rt_cond_wait(&k->changed, &k->lock, RT_FOREVER);
	}
}

/* ---- programs --------------------------------------------------------------------------------- */

static void look_at(struct local_kernel *k, unsigned i, const uint64_t *word,
	const uint64_t *at_least)
{
	unsigned me = k->n->id - 1u;

	EQ(word[me], mine[i][me]);
	EQ(word[NODES_MAX + me], mine[i][NODES_MAX + me]);
	for (unsigned n = 0; n < k->n->w->nodes; n++)
		if (word[n] < at_least[n]) {
			print_message("node %u sees %" PRIu64 " of node %u in page %u, "
				      "which was %" PRIu64 " before\n",
				me + 1, word[n], n + 1, i, at_least[n]);
			abort();
		}
}

static void shown_now(const struct local_kernel *k, unsigned i, uint64_t *out)
{
	for (unsigned n = 0; n < k->n->w->nodes; n++)
		out[n] = atomic_load(&shown[i][n]);
}

static void do_store(struct local_kernel *k, unsigned i, bool stores)
{
	unsigned me = k->n->id - 1u;
	struct local_page *p;
	words before;

	shown_now(k, i, before);
	rt_mutex_lock(&k->lock);
	p = page_get(k, i);
	look_at(k, i, p->word, before);
	if (stores) {
		if (pick(2))
			p->word[me] = ++mine[i][me];
		else
			p->word[NODES_MAX + me] = mine[i][NODES_MAX + me] ^= 1;
		p->dirty = true;
		k->stores++;
	}
	rt_mutex_unlock(&k->lock);
}

static void do_direct_read(struct local_kernel *k, unsigned i)
{
	static uint64_t image[NODES_MAX][PAGES][PAGE_SIZE / 8];
	uint64_t *at = image[k->n->id - 1][i];
	words before;

	shown_now(k, i, before);
	rt_mutex_lock(&k->lock); /* the kernel writes the range back first */
	await_unlocked(k, &k->page[i]);
	write_back(k, &k->page[i]);
	await_unlocked(k, &k->page[i]);
	rt_mutex_unlock(&k->lock);
	EQ(ops_read(k->n->fs, k->open[i / BLOCKS], page_offset(i), PAGE_SIZE, copy_answer,
		   at),
		PAGE_SIZE);
	look_at(k, i, at, before);
}

static void do_direct_write(struct local_kernel *k, unsigned i)
{
	_Atomic uint32_t unused = 0;
	unsigned me = k->n->id - 1u;
	uint64_t word = mine[i][me] + 1;

	rt_mutex_lock(&k->lock);
	drop_page(k, &k->page[i], &unused);
	rt_mutex_unlock(&k->lock);
	EQ(ops_write(k->n->fs, k->open[i / BLOCKS], &root_user, page_offset(i) + me * 8,
		   &word, 8, false),
		8);
	mine[i][me] = word;
	atomic_store(&shown[i][me], word);
}

/* msync of the page, or a close. */
static void do_sync(struct local_kernel *k, unsigned i)
{
	unsigned me = k->n->id - 1u;
	uint64_t word = mine[i][me];

	rt_mutex_lock(&k->lock);
	await_unlocked(k, &k->page[i]);
	write_back(k, &k->page[i]);
	await_unlocked(k, &k->page[i]);
	rt_mutex_unlock(&k->lock);
	if (pick(3))
		OK(ops_flush(k->n->fs, k->open[i / BLOCKS], 1));
	else
		OK(ops_fsync(k->n->fs, local_ino[i / BLOCKS], pick(2)));
	if (atomic_load(&shown[i][me]) < word)
		atomic_store(&shown[i][me], word);
}

static void program_main(void *arg)
{
	struct local_kernel *k = (struct local_kernel *)arg;

	for (unsigned s = 0; s < k->n->w->steps; s++) {
		unsigned i = pick(PAGES), what = pick(16);

		rt_mutex_lock(&k->program[i]);
		if (what < 9)
			do_store(k, i, what < 7);
		else if (what < 11)
			do_direct_read(k, i);
		else if (what < 13)
			do_direct_write(k, i);
		else
			do_sync(k, i);
		rt_mutex_unlock(&k->program[i]);
		rt_sleep_ns(pick(300000));
	}
}

/* ---- the runner ---------------------------------------------------------------------------------- */

/* The first page is written, the second unwritten space, the others are holes. */
static void make_local_files(struct node *n)
{
	static const uint8_t zeros[PAGE_SIZE];
	struct ops_setattr set = {
		.set = OPS_SET_SIZE, .size = (uint64_t)BLOCKS * PAGE_SIZE};
	struct ops_file *f;
	struct ops_attr a;
	char text[8];

	for (unsigned i = n->id - 1u; i < FILES; i += n->w->nodes) {
		snprintf(text, sizeof(text), "f%u", i);
		local_ino[i] = mk_file(n->fs, DISK_INO_ROOT, text);
		OK(ops_open(n->fs, local_ino[i], &root_user, O_RDWR, &f, &a));
		EQ(ops_write(n->fs, f, &root_user, 0, zeros, PAGE_SIZE, false),
			PAGE_SIZE);
		OK(ops_fallocate(n->fs, f, &root_user, 0, PAGE_SIZE, PAGE_SIZE));
		OK(ops_setattr(n->fs, local_ino[i], &root_user, &set, &a));
		ops_close(n->fs, f);
	}
}

static void local_work(struct node *n)
{
	struct local_kernel *k = &local[n->id - 1];
	struct rt_task *worker[WORKERS], *program[3];
	struct ops_attr a;

	make_local_files(n);
	barrier(n);
	memset(k, 0, sizeof(*k));
	k->n = n;
	k->end = &k->first;
	OK(fs_kernel_start(n->fs, &local_ops, k, NULL));
	for (unsigned i = 0; i < FILES; i++)
		OK(ops_open(n->fs, local_ino[i], &root_user, O_RDWR, &k->open[i], &a));
	for (unsigned i = 0; i < WORKERS; i++)
		OK(rt_task_spawn(&worker[i], "kernel", worker_main, k));
	for (unsigned i = 0; i < ARRAY_SIZE(program); i++)
		OK(rt_task_spawn(&program[i], "program", program_main, k));
	for (unsigned i = 0; i < ARRAY_SIZE(program); i++)
		rt_task_join(program[i]);
	for (unsigned i = 0; i < PAGES; i++)
		do_sync(k, i);
	barrier(n);
	for (unsigned i = 0; i < PAGES; i++) { /* all see all */
		words all;

		memcpy(all, mine[i], sizeof(all));
		rt_mutex_lock(&k->lock);
		look_at(k, i, page_get(k, i)->word, all);
		EQ(memcmp(k->page[i].word, all, sizeof(all)), 0);
		rt_mutex_unlock(&k->lock);
	}
	barrier(n);
	rt_mutex_lock(&k->lock);
	k->stopping = true;
	rt_mutex_unlock(&k->lock);
	rt_cond_broadcast(&k->changed);
	for (unsigned i = 0; i < WORKERS; i++)
		rt_task_join(worker[i]);
	for (unsigned i = 0; i < FILES; i++)
		ops_close(n->fs, k->open[i]);
	fs_kernel_stop(n->fs);
	sum_stores += k->stores;
	sum_brought += k->brought;
	sum_drops += k->drops;
}

/* What is there at the end, also after closing and opening again. */
static void local_check(struct node *n)
{
	uint64_t image[PAGE_SIZE / 8];
	struct ops_file *f;
	struct ops_attr a;

	for (unsigned i = 0; i < PAGES; i++) {
		OK(ops_open(n->fs, local_ino[i / BLOCKS], &root_user, O_RDONLY, &f, &a));
		EQ(ops_read(n->fs, f, page_offset(i), PAGE_SIZE, copy_answer, image),
			PAGE_SIZE);
		for (unsigned m = 0; m < n->w->nodes; m++) {
			EQ(image[m], mine[i][m]);
			EQ(image[NODES_MAX + m], mine[i][NODES_MAX + m]);
		}
		ops_close(n->fs, f);
	}
}

static void run_local(unsigned nodes, unsigned steps, unsigned part)
{
	struct world *w = (struct world *)calloc(1, sizeof(*w));
	uint64_t seeds = seeds_count(SEEDS / part);
	struct rt_sim_options o = {.time_limit_ns = 600ull * 1000000000};

	assert_true(w);
	sum_stores = sum_brought = sum_drops = 0;
	for (uint64_t seed = seeds_first(); seeds--; seed++) {
		memset(w, 0, sizeof(*w));
		memset(mine, 0, sizeof(mine));
		memset(shown, 0, sizeof(shown));
		w->nodes = seeds_nodes(nodes, seed);
		w->steps = steps * (unsigned)setting("WEFT_SIM_LONGER", 1);
		w->mmap = OPS_MMAP_LOCAL;
		w->work = local_work;
		w->check = local_check;
		assert_int_equal(rt_sim_run(seed, &o, run_world, w), 0);
	}
	print_message("%" PRIu64 " stores, %" PRIu64 " pages written back, %" PRIu64
		      " dropped\n",
		sum_stores, sum_brought, sum_drops);
	assert_true(sum_brought > 0 && sum_drops > 0);
	free(w);
}

static void stores_of_two_nodes_in_one_page_are_not_lost(void **state)
{
	run_local(2, 80, 1);
}

static void stores_of_three_and_five_nodes_in_one_page_are_not_lost(void **state)
{
	run_local(3, 60, 1);
	run_local(5, 30, 4);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(stores_of_two_nodes_in_one_page_are_not_lost),
		cmocka_unit_test(stores_of_three_and_five_nodes_in_one_page_are_not_lost),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
