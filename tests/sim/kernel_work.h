/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of what kernels keep: tasks that read, stat and look up through them, and tasks that
 * write, cut and punch the same files, and make, move and remove the same names.
 */
#ifndef WEFT_TEST_KERNEL_WORK_H
#define WEFT_TEST_KERNEL_WORK_H

#include "tests/sim/kernel_history.h"

static unsigned neighbours;
static _Atomic bool over; /* also before all steps are done */
static bool fsyncs;
static uint64_t pause_ns = 200000; /* between two changes by a task, the longest */
static uint64_t sum_reads, sum_reads_asked, sum_drops;

/* ---- readers -------------------------------------------------------------------------------- */

static void read_once(struct kernel_model *k, unsigned file)
{
	unsigned block = pick(BLOCKS);
	struct history *h = &files[file];
	struct asked a = history_ask(h, block);
	uint64_t word = kernel_read_block(k, file, block);

	history_says(h, a, h->begun, block, word);
}

static void stat_once(struct kernel_model *k, unsigned file)
{
	struct history *h = &files[file];
	struct asked a = history_ask(h, SIZE);
	uint64_t size = kernel_stat(k, file);

	history_sizes(h, a, h->begun, size);
}

static void find_once(struct kernel_model *k, unsigned file)
{
	struct history *h = &files[file];
	struct asked a = history_ask(h, SIZE);
	uint64_t size = kernel_find(k, DISK_INO_ROOT, file, true);

	kernel_let_go(k, &k->file[file]);
	history_sizes(h, a, h->begun, size);
}

static void look_once(struct kernel_model *k, unsigned i)
{
	struct asked a = history_ask(names, i);
	uint64_t ino = kernel_look(k, links_dir, i);

	history_says(names, a, names->begun, i, ino);
}

/* read(2) finds the mtime changed (AUTO_INVAL_DATA). */
static void find_changed(struct kernel_model *k, unsigned file)
{
	rt_mutex_lock(&k->lock);
	for (unsigned i = 0; i < BLOCKS; i++)
		kernel_drop_itself(k, &k->file[file], i);
	rt_mutex_unlock(&k->lock);
}

static void reader_main(void *arg)
{
	struct kernel_model *k = (struct kernel_model *)arg;
	unsigned file = 0, name = 0;

	for (unsigned i = 0; i < k->n->w->steps * 4 && !atomic_load(&over); i++) {
		if (kernel_stores && pick(4) == 0)
			find_changed(k, file);
		if (i % 32 == 0) { /* others' leaves are not kernel-cached for a while */
			file = pick(FILES);
			name = pick(LINKS);
		}
		switch (pick(8)) {
		case 0:
		case 1:
			stat_once(k, file);
			break;
		case 2:
		case 3:
			look_once(k, name);
			break;
		case 4:
			find_once(k, file);
			break;
		default:
			read_once(k, file);
		}
		if (pick(4) == 0)
			rt_sleep_ns(pick(20000));
	}
}

/* ---- writers -------------------------------------------------------------------------------- */

/* Blocks [first, end) of the state are that. */
static void state_set(
	struct history *h, unsigned s, unsigned first, unsigned end, uint64_t w)
{
	for (unsigned i = first; i < end; i++)
		h->word[s][i] = w;
}

static void state_size(struct history *h, unsigned s, uint64_t size)
{
	unsigned end = (unsigned)(size / PAGE_SIZE),
		 was = (unsigned)(h->size[s] / PAGE_SIZE);

	if (end > was)
		for (unsigned i = was; i < end; i++)
			if (h->word[s][i] == WORD_END)
				h->word[s][i] = WORD_HOLE;
	state_set(h, s, end, BLOCKS, WORD_END);
	h->size[s] = size;
}

static unsigned bits(unsigned first, unsigned end)
{
	return (1u << end) - (1u << first);
}

/* While that is in doubt. */
static uint64_t size_at_least(const struct history *h)
{
	uint64_t size = UINT64_MAX;

	for (unsigned s = history_floor(h, SIZE); s <= h->done; s++)
		size = MIN(size, h->blind[s] ? 0 : h->size[s]);
	return size;
}

/* What the kernel does itself behind a change of its own. */
static void own_change(struct kernel_model *k, unsigned file, uint64_t size, bool cut)
{
	struct kernel_file *f = &k->file[file];

	rt_mutex_lock(&k->lock);
	kernel_attributes_drop(k, f);
	f->size = cut ? size : MAX(f->size, size);
	if (cut) {
		kernel_own_drop(k, f, size / PAGE_SIZE, BLOCKS);
		kernel_write_range(k, f, 0, size / PAGE_SIZE);
		kernel_own_drop(k, f, 0, BLOCKS);
	}
	rt_mutex_unlock(&k->lock);
}

static void write_block(struct kernel_model *k, unsigned file, struct history *h)
{
	unsigned block = pick(BLOCKS), s = history_next(h);
	uint64_t word = ++next_word, end = (block + 1) * (uint64_t)PAGE_SIZE;
	static uint64_t page[FILES][PAGE_SIZE / 8];
	uint64_t *p = page[file];

	for (unsigned i = 0; i < PAGE_SIZE / 8; i++)
		p[i] = word;
	if (h->doubt && end > size_at_least(h))
		return;
	if (end > h->size[s])
		state_size(h, s, end);
	state_set(h, s, block, block + 1, word);
	history_begins(h, s, 1u << block);
	rt_mutex_lock(&k->lock);
	kernel_drop_itself(k, &k->file[file], block);
	rt_mutex_unlock(&k->lock);
	EQ(ops_write(k->n->fs, k->open[file], &root_user, block * PAGE_SIZE, p, PAGE_SIZE,
		   false),
		PAGE_SIZE);
	own_change(k, file, end, false);
	history_ends(h, s);
}

/* From here on nothing is written back (FUSE_NOWRITE). */
static void begins_to_cut(struct kernel_model *k, struct kernel_file *f)
{
	rt_mutex_lock(&k->lock);
	f->sets_size = f->keeps_stores = true;
	while (f->writes)
		rt_cond_wait(&k->changed, &k->lock, RT_FOREVER);
	rt_mutex_unlock(&k->lock);
}

static void writes_back(struct kernel_model *k, struct kernel_file *f)
{
	rt_mutex_lock(&k->lock);
	f->keeps_stores = false;
	rt_cond_broadcast(&k->changed);
	rt_mutex_unlock(&k->lock);
}

static void cut_file(struct kernel_model *k, unsigned file, struct history *h)
{
	unsigned blocks = pick(BLOCKS + 1), s = history_next(h);
	struct ops_setattr set = {
		.set = OPS_SET_SIZE, .size = blocks * (uint64_t)PAGE_SIZE};
	struct ops_attr a;

	if (h->doubt)
		return;
	state_size(h, s, set.size);
	history_begins(h, s, 1u << SIZE | bits(blocks, BLOCKS));
	begins_to_cut(k, &k->file[file]);
	OK(ops_setattr(k->n->fs, file_ino[file], &root_user, &set, &a));
	writes_back(k, &k->file[file]);
	own_change(k, file, set.size, true);
	k->file[file].sets_size = false;
	history_ends(h, s);
}

static void punch_file(struct kernel_model *k, unsigned file, struct history *h)
{
	unsigned first = pick(BLOCKS), end = first + 1 + pick(BLOCKS - first);
	unsigned s = history_next(h);

	end = MIN(end, (unsigned)(h->size[s] / PAGE_SIZE));
	if (first >= end || h->doubt)
		return;
	state_set(h, s, first, end, WORD_HOLE);
	history_begins(h, s, bits(first, end));
	rt_mutex_lock(&k->lock);
	kernel_write_range(k, &k->file[file], first, end);
	rt_mutex_unlock(&k->lock);
	OK(ops_fallocate(k->n->fs, k->open[file], &root_user,
		FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, first * PAGE_SIZE,
		(end - first) * PAGE_SIZE));
	rt_mutex_lock(&k->lock);
	kernel_attributes_drop(k, &k->file[file]);
	kernel_own_drop(k, &k->file[file], first, end);
	rt_mutex_unlock(&k->lock);
	history_ends(h, s);
}

/* Through a mapping: there at once, and no request. */
static void store_block(struct kernel_model *k, unsigned file, struct history *h)
{
	unsigned s, blocks = (unsigned)(h->size[h->done] / PAGE_SIZE), block;
	uint64_t word = ++next_word;
	bool stale = true;

	if (h->doubt)
		blocks = (unsigned)(size_at_least(h) / PAGE_SIZE);
	if (!blocks)
		return;
	block = pick(blocks);
	while (stale) /* the mapping goes by the size that the kernel knows */
		(void)kernel_ask_stat(k, file, &stale);
	if (h->doubt && (block + 1) * (uint64_t)PAGE_SIZE > size_at_least(h))
		return;
	s = history_next(h); /* there was a wait */
	state_set(h, s, block, block + 1, word);
	history_begins(h, s, 1u << block);
	if (!kernel_store(k, file, block, word)) {
		HOLDS(h->blind[s]); /* what made the file so long is lost */
		h->set[s] = 0;
	}
	history_ends(h, s);
}

static void kernel_stores_come(struct kernel_model *k, unsigned file)
{
	rt_mutex_lock(&k->lock);
	kernel_write_range(k, &k->file[file], 0, BLOCKS);
	rt_mutex_unlock(&k->lock);
}

/* msync, or the kernel by itself. */
static void write_back(struct kernel_model *k, unsigned file)
{
	kernel_stores_come(k, file);
	if (pick(2))
		ops_stored(k->n->fs, file_ino[file]);
}

/* Zeros behind the end are harmless: the size says so. */
static void kernel_has_only_this(struct history *h, unsigned block, uint64_t word)
{
	if (h->doubt || word != WORD_HOLE || h->word[h->done][block] != WORD_END)
		history_says(h, history_ask(h, block), h->done, block, word);
}

/*
 * Invariant 5: when a change has ended no kernel has anything from before it, nor has a processor
 * through a mapping, whether somebody looks or not.
 */
static void kernels_have_only_this(unsigned nodes, unsigned file, struct history *h)
{
	for (unsigned n = 0; n < nodes; n++) {
		const struct kernel_file *f = &kernels[n].file[file];

		kernel_of = n + 1;
		if (f->known)
			history_sizes(h, history_ask(h, SIZE), h->done, f->size);
		for (unsigned i = 0; i < BLOCKS; i++) {
			const struct kernel_page *p = &f->page[i];

			if (p->good)
				kernel_has_only_this(h, i, p->word);
			if (p->loaded)
				kernel_has_only_this(h, i, p->is);
		}
	}
	kernel_of = 0;
}

static void sync_file(struct kernel_model *k, unsigned file, struct history *h)
{
	unsigned s = h->done, before = crashes;
	bool doubt = h->doubt;

	if (kernel_stores)
		kernel_stores_come(k, file);
	OK(ops_fsync(k->n->fs, file_ino[file], pick(2)));
	if (!doubt && before == crashes)
		h->durable = MAX(h->durable, s);
}

static void change_file(struct kernel_model *k)
{
	unsigned file = pick(FILES), what = pick(12);
	struct history *h = &files[file];

	if (kernel_stores && pick(6) == 0)
		write_back(k, file);
	if (fsyncs && pick(8) == 0)
		sync_file(k, file, h);
	history_take(h, k->n->id);
	if (kernel_stores && what > 3)
		store_block(k, file, h);
	else if (what == 0)
		cut_file(k, file, h);
	else if (what == 1)
		punch_file(k, file, h);
	else
		write_block(k, file, h);
	kernels_have_only_this(k->n->w->nodes, file, h);
	history_let_go(h);
}

static void writer_main(void *arg)
{
	struct kernel_model *k = (struct kernel_model *)arg;

	for (unsigned i = 0; i < k->n->w->steps && !atomic_load(&over); i++) {
		change_file(k);
		rt_sleep_ns(pick(pause_ns));
	}
}

/* ---- names ---------------------------------------------------------------------------------- */

static void name_forget(struct kernel_model *k, unsigned i)
{
	rt_mutex_lock(&k->lock);
	k->name[i] = NULL;
	k->dir_known = false;
	rt_mutex_unlock(&k->lock);
}

/* What another node had done to the name, and somebody has gone by, may be lost meanwhile. */
static bool name_done(int rc, unsigned s)
{
	HOLDS(rc == 0 || (names->blind[s] && (rc == -EEXIST || rc == -ENOENT)));
	return rc == 0;
}

static void name_make(struct kernel_model *k, unsigned i, unsigned s)
{
	struct ops_attr a;
	char text[8];

	names->word[s][i] = WORD_ANY; /* its inode is not known before */
	history_begins(names, s, 0);
	if (name_done(ops_mknod(k->n->fs, links_dir, kernel_link_name(text, i), &root_user,
			      S_IFREG | 0644, 0, 0, &a),
		    s))
		names->word[s][i] = a.ino;
	name_forget(k, i);
}

static void name_remove(struct kernel_model *k, unsigned i, unsigned s)
{
	char text[8];

	names->word[s][i] = 0;
	history_begins(names, s, 0);
	name_done(ops_unlink(k->n->fs, links_dir, kernel_link_name(text, i)), s);
	name_forget(k, i);
}

/*
 * rename(2): the kernel moves what it has of the old name to the new one. Returns true if the new one is to be
 * expired when the directory is not locked any more.
 */
static bool name_move(struct kernel_model *k, unsigned i, unsigned to, unsigned s,
	struct kcache_gate *gate)
{
	uint64_t ino = names->word[s][i];
	char a[8], b[8];
	bool gated;

	names->word[s][to] = ino;
	names->word[s][i] = 0;
	history_begins(names, s, 0);
	name_done(ops_rename(k->n->fs, links_dir, kernel_link_name(a, i), links_dir,
			  kernel_link_name(b, to), 0),
		s);
	gated = pick(8) == 0 || kcache_names_gated(fs_kcache(k->n->fs), links_dir) ||
		!ops_renamed_kept(k->n->fs, links_dir, kernel_link_name(b, to), ino);
	if (gated)
		kcache_names_gate(fs_kcache(k->n->fs), links_dir, gate);
	rt_sleep_ns(pick(10000));
	rt_mutex_lock(&k->lock);
	if (k->name[i] && k->name[i]->ino == ino && !names->blind[s])
		k->name[to] = k->name[i];
	else
		k->name[to] = NULL;
	k->name[i] = NULL;
	k->dir_known = false;
	rt_mutex_unlock(&k->lock);
	return gated;
}

/* Returns the name to be expired, or LINKS. */
static unsigned change_name(struct kernel_model *k, struct kcache_gate *gate)
{
	unsigned i = pick(LINKS), to = pick(LINKS), s = history_next(names);
	unsigned expire = LINKS;

	if (names->doubt)
		return expire;
	if (!names->word[s][i])
		name_make(k, i, s);
	else if (i == to)
		name_remove(k, i, s);
	else if (name_move(k, i, to, s, gate))
		expire = to;
	history_ends(names, s);
	for (unsigned n = 0; n < k->n->w->nodes; n++)
		for (unsigned at = 0; at < LINKS; at++) {
			const struct kernel_name *e = kernels[n].name[at];

			kernel_of = n + 1;
			if (e && e->known && kernels[n].dir_known)
				history_says(
					names, history_ask(names, at), s, at, e->ino);
		}
	kernel_of = 0;
	return expire;
}

static struct ops_name filler_name(
	char out[160], const struct kernel_model *k, unsigned i)
{
	snprintf(out, 160, "%0*u-filler-%u-%u", 120, i, k->n->id, k->life);
	return nm(out);
}

/* Large items among the names, and inodes among those of the files, come and go: leaves are
 * split and joined. */
static void fill(struct kernel_model *k, unsigned i)
{
	unsigned most = 15;
	struct ops_attr a;
	char text[160];

	OK(ops_mknod(k->n->fs, links_dir, filler_name(text, k, i), &root_user,
		S_IFREG | 0644, 0, 0, &a));
	for (unsigned gone = i - most; i % most == 0 && i && gone < i; gone++)
		OK(ops_unlink(k->n->fs, links_dir, filler_name(text, k, gone)));
}

static void namer_main(void *arg)
{
	struct kernel_model *k = (struct kernel_model *)arg;

	for (unsigned i = 0; i < k->n->w->steps / 2 && !atomic_load(&over); i++) {
		struct kcache_gate gate;
		unsigned expire;
		char text[8];

		history_take(names, k->n->id);
		kernel_enter(k, links_dir, false);
		rt_mutex_lock(&k->dir);
		kernel_enter(k, links_dir, true);
		expire = change_name(k, &gate);
		rt_mutex_unlock(&k->dir);
		if (expire < LINKS)
			kcache_names_expire(fs_kcache(k->n->fs), &gate,
				kernel_link_name(text, expire),
				names->word[names->done][expire]);
		history_let_go(names);
		fill(k, i);
		rt_sleep_ns(pick(pause_ns * 3 / 2));
	}
}

/* ---- files that nobody has open ------------------------------------------------------------- */

/* The inode is used by the caller from here on: it is there, or is looked up. */
static void file_use(struct kernel_model *k, unsigned file)
{
	struct kernel_file *f = &k->file[file];
	bool there;

	rt_mutex_lock(&k->lock);
	there = !f->absent && pick(4);
	f->used += there;
	rt_mutex_unlock(&k->lock);
	if (!there)
		(void)kernel_find(k, DISK_INO_ROOT, file, true);
}

/* stat(2) of a path. */
static void stat_name(struct kernel_model *k, unsigned file)
{
	file_use(k, file);
	stat_once(k, file);
	kernel_let_go(k, &k->file[file]);
}

static void closed_look_main(void *arg)
{
	struct kernel_model *k = (struct kernel_model *)arg;

	for (unsigned i = 0; i < k->n->w->steps * 4 && !atomic_load(&over); i++) {
		unsigned file = pick(FILES);

		if (pick(3))
			kernel_evict(k, &k->file[file]);
		if (pick(4))
			stat_name(k, file);
		else
			find_once(k, file);
		if (pick(8) ==
			0) /* other leaves' files meanwhile; the thread asks nothing */
			rt_sleep_ns(pick(3000000));
	}
}

static void closed_cut_main(void *arg)
{
	struct kernel_model *k = (struct kernel_model *)arg;

	for (unsigned i = 0; i < k->n->w->steps && !atomic_load(&over); i++) {
		unsigned file = pick(FILES);
		struct history *h = &files[file];

		history_take(h, k->n->id);
		file_use(k, file);
		kernel_await_made(k, file);
		cut_file(k, file, h);
		kernel_let_go(k, &k->file[file]);
		kernels_have_only_this(k->n->w->nodes, file, h);
		history_let_go(h);
		rt_sleep_ns(pick(MAX(pause_ns, 2000000)));
	}
}

static inline void closed_open(struct kernel_model *k, struct node *n)
{
	*k = (struct kernel_model){.n = n};
	for (unsigned i = 0; i < FILES; i++)
		k->file[i] = (struct kernel_file){.ino = file_ino[i], .absent = true};
	kernel_start(n, &kernel_ops, k);
}

/* Until all have done their work; the kernel stays. */
static inline void closed_run(struct kernel_model *k, struct node *n)
{
	static void (*const mains[])(void *) = {closed_look_main, closed_look_main,
		closed_look_main, closed_cut_main, closed_cut_main};
	struct rt_task *task[ARRAY_SIZE(mains)];

	closed_open(k, n);
	for (unsigned i = 0; i < ARRAY_SIZE(mains); i++)
		OK(rt_task_spawn(&task[i], "work", mains[i], k));
	for (unsigned i = 0; i < ARRAY_SIZE(mains); i++)
		rt_task_join(task[i]);
}

/* ---- from the start to the end --------------------------------------------------------------- */

/* Full leaves of inodes, in whose middle extents will be inserted. */
static void make_neighbours(struct node *n)
{
	unsigned count = 8 + pick(10);
	char text[16];

	for (unsigned i = 0; i < count; i++) {
		snprintf(text, sizeof(text), "near%u", neighbours++);
		mk_file(n->fs, DISK_INO_ROOT, text);
	}
}

static void make_files(struct node *n)
{
	char text[8];

	make_neighbours(n);
	for (unsigned i = n->id - 1; i < FILES; i += n->w->nodes) {
		snprintf(text, sizeof(text), "f%u", i);
		file_ino[i] = mk_file(n->fs, DISK_INO_ROOT, text);
		state_set(&files[i], 0, 0, BLOCKS, WORD_END);
	}
	make_neighbours(n);
	if (n->id == 1)
		links_dir = mk_dir(n->fs, DISK_INO_ROOT, "links");
}

static void kernel_open(struct kernel_model *k, struct node *n)
{
	struct ops_attr a;

	*k = (struct kernel_model){.n = n};
	if (kernel_stores) /* what is opened then may be stored into */
		kernel_start(n, &kernel_ops, k);
	for (unsigned i = 0; i < FILES; i++) {
		k->file[i].ino = file_ino[i];
		OK(ops_open(n->fs, file_ino[i], &root_user, O_RDWR, &k->open[i], &a));
	}
	if (!kernel_stores)
		kernel_start(n, &kernel_ops, k);
	for (unsigned i = 0; i < FILES; i++)
		ops_opened_kept(n->fs, k->open[i], 0);
}

/* Until all have done their work; the kernel stays. Its task is returned, for kernel_shut. */
static inline struct rt_task *open_run(struct kernel_model *k, struct node *n)
{
	static void (*const mains[])(void *) = {
		reader_main, reader_main, reader_main, writer_main, namer_main};
	struct rt_task *task[ARRAY_SIZE(mains)], *answers;

	kernel_open(k, n);
	OK(rt_task_spawn(&answers, "kernel", kernel_main, k));
	for (unsigned i = 0; i < ARRAY_SIZE(mains); i++)
		OK(rt_task_spawn(&task[i], "work", mains[i], k));
	for (unsigned i = 0; i < ARRAY_SIZE(mains); i++)
		rt_task_join(task[i]);
	return answers;
}

/*
 * All changes have ended. Though nobody asks, the kernel is told a moment later where each open file ends. (Where
 * ends of drops are not heard of, each step of the way takes 10 ms.)
 */
static inline void sizes_are_pushed(struct kernel_model *k)
{
	uint64_t until_ns = rt_now_ns() + (k->n->w->deaf ? 5000000000 : 50000000);

	if (pick(2))
		kcache_sizes_await(fs_kcache(k->n->fs));
	for (unsigned i = 0; i < FILES; i++)
		while (k->file[i].size < files[i].size[files[i].done]) {
			HOLDS(rt_now_ns() < until_ns);
			rt_sleep_ns(100000);
		}
}

static void kernel_shut(struct kernel_model *k, struct rt_task *task)
{
	rt_mutex_lock(&k->lock);
	for (unsigned i = 0; i < FILES; i++)
		kernel_write_range(k, &k->file[i], 0, BLOCKS);
	k->stopping = true;
	rt_mutex_unlock(&k->lock);
	rt_cond_broadcast(&k->answered);
	rt_task_join(task);
	if (kernel_stores)
		barrier(k->n); /* each may have what the others' kernels want back */
	for (unsigned i = 0; i < FILES && kernel_stores; i++)
		ops_close(k->n->fs, k->open[i]);
	fs_kernel_stop(k->n->fs);
	for (unsigned i = 0; i < FILES && !kernel_stores; i++)
		if (k->open[i])
			ops_close(k->n->fs, k->open[i]);
	sum_reads += k->reads;
	sum_reads_asked += k->reads_asked;
	sum_drops += k->drops;
}

static void check_words(struct node *n, unsigned file)
{
	const struct history *h = &files[file];
	struct kernel_request r;
	struct ops_file *f;
	struct ops_attr a;

	OK(ops_open(n->fs, file_ino[file], &root_user, O_RDONLY, &f, &a));
	for (unsigned i = 0; i < h->size[h->done] / PAGE_SIZE; i++) {
		EQ(ops_read(n->fs, f, i * PAGE_SIZE, PAGE_SIZE, kernel_answer, &r),
			PAGE_SIZE);
		EQ(r.word[0], h->word[h->done][i]);
	}
	ops_close(n->fs, f);
}

/* What is there at the end, also after closing and opening again. */
static void kernel_check(struct node *n)
{
	struct ops_attr a;

	for (unsigned i = 0; i < FILES; i++) {
		OK(ops_getattr(n->fs, file_ino[i], &a));
		EQ(a.inode.size, files[i].size[files[i].done]);
		check_words(n, i);
	}
}

static inline void closed_check(struct node *n)
{
	struct ops_attr a;

	for (unsigned i = 0; i < FILES; i++) {
		OK(ops_getattr(n->fs, file_ino[i], &a));
		EQ(a.inode.size, files[i].size[files[i].done]);
	}
}

#endif
