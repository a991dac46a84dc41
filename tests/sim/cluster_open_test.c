/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What nodes of one volume do to files that others have open: pages are unmapped between
 * another node's look-up and its latch, the same fallocated page is first written on several
 * nodes, a cut fails half way and another node meets what it left.
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/cluster_open_test     one seed
 *   WEFT_SIM_SEEDS=1000                                   so many of each kind
 */
#include <linux/falloc.h>

#include "fs/ops/data_internal.h"
#include "tests/sim/cluster_world.h"

/* The root directory's names; all nodes look each other's files up. */
static void wait_and_find(struct node *n, const char *name, uint64_t *ino)
{
	barrier(n);
	*ino = ino_of(n->fs, DISK_INO_ROOT, name);
}

static struct ops_file *open_file(struct node *n, uint64_t ino)
{
	struct ops_file *f;

	OK(ops_open(n->fs, ino, &root_user, O_RDWR, &f, NULL));
	return f;
}

static void set_size(struct node *n, uint64_t ino, uint64_t size)
{
	struct ops_setattr set = {.set = OPS_SET_SIZE, .size = size};
	struct ops_attr a;

	OK(ops_setattr(n->fs, ino, &root_user, &set, &a));
	EQ(a.inode.size, size);
}

struct words {
	uint64_t first;
	size_t len;
};

static int take_first(void *arg, const struct iovec *iov, unsigned count, size_t total)
{
	struct words *w = (struct words *)arg;

	w->len = total;
	w->first = 0;
	if (total > 0)
		memcpy(&w->first, iov[0].iov_base, MIN(total, sizeof(w->first)));
	return (int)total;
}

/* ---- pages that go between look-up and latch ---------------------------------------------- */

/*
 * A file goes through states, one after the other, changed on any node: some blocks that all
 * hold a number, then holes in their place, then nothing. Readers on all nodes must find it in
 * a state that it was in while they read: not the size of one with the pages of another.
 */
#define STATE_BLOCKS 10u /* most; so many pages go into one transaction */

static struct {
	uint64_t ino;
	_Atomic uint32_t begun, done; /* states */
	_Atomic uint32_t working;     /* nodes that change it */
} states;

static unsigned state_blocks(uint32_t state)
{
	return state % 3 == 2 ? 0 : 1 + state / 3 * 7 % STATE_BLOCKS;
}

static uint64_t state_number(uint32_t state)
{
	return state % 3 == 0 ? 1000 + state : 0;
}

static void state_write(struct node *n, struct ops_file *f, uint32_t state)
{
	uint64_t page[STATE_BLOCKS][PAGE_SIZE / 8] = {0};
	size_t len = state_blocks(state) * PAGE_SIZE;

	for (unsigned b = 0; b < STATE_BLOCKS; b++)
		page[b][0] = state_number(state);
	EQ(ops_write(n->fs, f, &root_user, 0, page, len, false), len);
	if (pick(2))
		OK(ops_fsync(n->fs, states.ino, false));
}

static void state_change(struct node *n, struct ops_file *f)
{
	uint32_t next = atomic_load(&states.begun) + 1;

	atomic_store(&states.begun, next);
	switch (next % 3) {
	case 0:
		state_write(n, f, next);
		break;
	case 1:
		OK(ops_fallocate(n->fs, f, &root_user,
			FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0,
			STATE_BLOCKS * PAGE_SIZE));
		break;
	default:
		set_size(n, states.ino, 0);
	}
	atomic_store(&states.done, next);
}

struct numbers {
	size_t len;
	uint64_t number[STATE_BLOCKS];
};

static int take_numbers(void *arg, const struct iovec *iov, unsigned count, size_t total)
{
	struct numbers *r = (struct numbers *)arg;

	r->len = total;
	for (unsigned i = 0; i < count; i++)
		memcpy(&r->number[i], iov[i].iov_base, sizeof(r->number[i]));
	return (int)total;
}

static bool state_is(uint32_t state, const struct numbers *r)
{
	if (r->len != state_blocks(state) * PAGE_SIZE)
		return false;
	for (unsigned b = 0; b < state_blocks(state); b++)
		if (r->number[b] != state_number(state))
			return false;
	return true;
}

static void state_look(struct node *n, struct ops_file *f)
{
	uint32_t from = atomic_load(&states.done), to;
	struct numbers r = {0};

	HOLDS(ops_read(n->fs, f, 0, STATE_BLOCKS * PAGE_SIZE, take_numbers, &r) >= 0);
	to = atomic_load(&states.begun);
	for (uint32_t i = from; i <= to; i++)
		if (state_is(i, &r))
			return;
	print_message("node %u: %zu bytes of %" PRIu64 " to %" PRIu64
		      ", in states %u to %u\n",
		n->id, r.len, r.number[0], r.number[MAX(r.len / PAGE_SIZE, 1u) - 1], from,
		to);
	abort();
}

static void looker_main(void *arg)
{
	struct node *n = (struct node *)arg;
	struct ops_file *f = open_file(n, states.ino);

	while (atomic_load(&states.working) > 0) {
		state_look(n, f);
		rt_sleep_ns(1 + pick(100000));
	}
	ops_close(n->fs, f);
}

static void states_work(struct node *n)
{
	struct world *w = n->w;
	struct rt_task *looker;
	struct ops_file *f;

	if (n->id == 1) {
		mk_file(n->fs, DISK_INO_ROOT, "states");
		atomic_store(&states.begun, 2);
		atomic_store(&states.done, 2);
	}
	wait_and_find(n, "states", &states.ino);
	atomic_fetch_add(&states.working, 1);
	barrier(n);
	f = open_file(n, states.ino);
	OK(rt_task_spawn(&looker, "looker", looker_main, n));
	for (unsigned i = 0; i < w->steps; i++) {
		rt_mutex_lock(&w->turn);
		state_change(n, f);
		rt_mutex_unlock(&w->turn);
		rt_sleep_ns(1 + pick(200000));
	}
	atomic_fetch_sub(&states.working, 1);
	rt_task_join(looker);
	ops_close(n->fs, f);
}

static void states_check(struct node *n)
{
	struct ops_file *f = open_file(n, states.ino);

	state_look(n, f);
	ops_close(n->fs, f);
}

/* ---- pages that several nodes fill -------------------------------------------------------- */

#define COMMON_PAGES 24u
#define COMMON_PIECE 512u /* bytes; each piece is written once, by one of the nodes */
#define COMMON_BYTES (COMMON_PAGES * (unsigned)PAGE_SIZE)

static uint64_t common_ino;

static uint8_t common_byte(unsigned piece)
{
	return (uint8_t)(1 + piece * 37 % 255);
}

/* Its own pieces, of pages that no node has written yet. */
static void common_work(struct node *n)
{
	uint8_t bytes[COMMON_PIECE];
	struct ops_file *f;

	if (n->id == 1) {
		mk_file(n->fs, DISK_INO_ROOT, "common");
		f = open_file(n, ino_of(n->fs, DISK_INO_ROOT, "common"));
		OK(ops_fallocate(n->fs, f, &root_user, pick(2) ? FALLOC_FL_KEEP_SIZE : 0,
			0, COMMON_BYTES));
		ops_close(n->fs, f);
	}
	wait_and_find(n, "common", &common_ino);
	f = open_file(n, common_ino);
	for (unsigned piece = n->id - 1; piece < COMMON_BYTES / COMMON_PIECE;
		piece += n->w->nodes) {
		memset(bytes, common_byte(piece), sizeof(bytes));
		EQ(ops_write(n->fs, f, &root_user, piece * COMMON_PIECE, bytes,
			   sizeof(bytes), false),
			sizeof(bytes));
	}
	ops_close(n->fs, f);
}

static void common_check(struct node *n)
{
	struct ops_file *f = open_file(n, common_ino);

	for (unsigned piece = 0; piece < COMMON_BYTES / COMMON_PIECE; piece++) {
		struct words w = {0};
		uint64_t want;

		memset(&want, common_byte(piece), sizeof(want));
		HOLDS(ops_read(n->fs, f, piece * COMMON_PIECE, COMMON_PIECE, take_first,
			      &w) > 0);
		if (w.first != want) {
			print_message("node %u: piece %u is %" PRIx64 ", not %" PRIx64
				      "\n",
				n->id, piece, w.first, want);
			abort();
		}
	}
	ops_close(n->fs, f);
}

/* ---- a cut that fails half way ------------------------------------------------------------ */

#define CUT_PAGES 1200u

static struct {
	uint64_t ino, large;
	bool cut;
	enum { CUT_WRITE, CUT_GROW, CUT_ALLOCATE, CUT_AGAIN, CUT_WAYS } way;
} cut;

static int count_item(void *arg, struct disk_key key, const void *value, size_t len)
{
	++*(unsigned *)arg;
	return 0;
}

static unsigned intents(struct node *n)
{
	unsigned count = 0;

	OK(tree_scan(n->v->tree, disk_key(DISK_INO_SYSTEM, DISK_ITEM_INTENT, 0),
		disk_key(DISK_INO_SYSTEM, DISK_ITEM_INTENT + 1, 0), false, count_item,
		&count));
	return count;
}

/* One extent for each second page. */
static void scatter(struct node *n, struct ops_file *f)
{
	for (uint64_t page = 0; page < CUT_PAGES; page += 2)
		EQ(ops_write(n->fs, f, &root_user, page * PAGE_SIZE, "old", 3, false), 3);
}

/* Fills the cache with other things, so that leaves must be read. */
static void wash(struct node *n, struct ops_file *large)
{
	struct words w;

	for (unsigned i = 0; i < 8 * FRAMES; i++) /* in no order: none is read ahead */
		HOLDS(ops_read(n->fs, large, pick(2 * FRAMES) * PAGE_SIZE, PAGE_SIZE,
			      take_first, &w) > 0);
}

/* Reads of this node's disk fail from the nth on; did the cut stop there? */
static bool cut_fails(struct node *n, struct ops_file *large, uint64_t nth)
{
	struct rt_sim_fail fail = {.ops = RT_SIM_FAIL_READ, .n = nth, .sticky = true};
	struct ops_setattr set = {.set = OPS_SET_SIZE};
	struct ops_file *f = open_file(n, cut.ino);
	struct ops_attr a;
	int rc;

	scatter(n, f);
	ops_close(n->fs, f);
	OK(volume_sync(n->v));
	wash(n, large);
	rt_sim_disk_fail(n->sim_disk, &fail);
	rc = ops_setattr(n->fs, cut.ino, &root_user, &set, &a);
	rt_sim_disk_fail(n->sim_disk, &(struct rt_sim_fail){0});
	HOLDS(rc == 0 || rc == -EIO);
	return intents(n) > 0;
}

static void cut_half(struct node *n)
{
	uint8_t page[PAGE_SIZE] = {1};
	struct ops_file *large;

	mk_file(n->fs, DISK_INO_ROOT, "cut");
	cut.ino = ino_of(n->fs, DISK_INO_ROOT, "cut");
	cut.large = mk_file(n->fs, DISK_INO_ROOT, "large");
	large = open_file(n, cut.large);
	for (uint64_t at = 0; at < 2 * FRAMES; at++)
		EQ(ops_write(n->fs, large, &root_user, at * PAGE_SIZE, page, PAGE_SIZE,
			   false),
			PAGE_SIZE);
	for (uint64_t nth = 1; !cut_fails(n, large, nth); nth++)
		HOLDS(nth < 60); /* else there was no such moment */
	ops_close(n->fs, large);
}

/* Nothing of what was cut is seen again, whatever another node does to the file. */
static void cut_meet(struct node *n)
{
	const uint64_t at = 900 * PAGE_SIZE;
	struct ops_file *f = open_file(n, cut.ino);

	HOLDS(attr_of(n->fs, cut.ino).blocks > 0);
	switch (cut.way) {
	case CUT_WRITE:
		EQ(ops_write(n->fs, f, &root_user, at, "n", 1, false), 1);
		break;
	case CUT_GROW:
		set_size(n, cut.ino, at + 1);
		break;
	case CUT_ALLOCATE:
		OK(ops_fallocate(n->fs, f, &root_user, 0, at, 1));
		break;
	default:
		set_size(n, cut.ino, 0);
		set_size(n, cut.ino, at + 1);
	}
	ops_close(n->fs, f);
	EQ(attr_of(n->fs, cut.ino).blocks,
		cut.way == CUT_WRITE || cut.way == CUT_ALLOCATE);
	EQ(intents(n), 0);
}

static void cut_check(struct node *n)
{
	struct ops_file *f = open_file(n, cut.ino);

	EQ(attr_of(n->fs, cut.ino).size, 900 * PAGE_SIZE + 1);
	for (uint64_t page = 0; page < 901; page++) {
		uint64_t want = page == 900 && cut.way == CUT_WRITE ? 'n' : 0;
		struct words w = {0};

		HOLDS(ops_read(n->fs, f, page * PAGE_SIZE, page == 900 ? 1 : PAGE_SIZE,
			      take_first, &w) > 0);
		EQ(w.first, want);
	}
	EQ(ops_lseek(n->fs, f, 0, SEEK_DATA, NULL, NULL),
		cut.way == CUT_WRITE ? 900 * (int64_t)PAGE_SIZE : -ENXIO);
	ops_close(n->fs, f);
}

static void cut_work(struct node *n)
{
	if (n->id == 1) {
		cut.way = pick(CUT_WAYS);
		cut_half(n);
	}
	barrier(n);
	if (n->id == 2)
		cut_meet(n);
}

/* ---- unlinked and open -------------------------------------------------------------------- */

/*
 * Files that all nodes have a name for, open, write, read and unlink, in turn; what a node has
 * open it goes on reading and writing, with or without a name. A node closes all that it has
 * and opens the operations anew while others have files open. In the end nothing is left.
 */
#define SLOTS      6u
#define SLOT_BYTES 50000u
#define GONE_MAX   4096u

struct slot {
	uint64_t ino;  /* 0: none */
	unsigned last; /* 1 + the place among `gone` of the one before; 0: none */
	bool named;
	bool awaited[NODES_MAX]; /* its kernel has unlinked it, and not forgotten it */
	struct ops_file *file[NODES_MAX];
	uint8_t bytes[SLOT_BYTES];
};

static struct {
	struct slot slot[SLOTS];
	uint64_t gone[GONE_MAX];
	unsigned gone_count, unlinked_open, reopened, taken;
} held;

static struct ops_name slot_name(char out[8], unsigned i)
{
	snprintf(out, 8, "slot%u", i);
	return nm(out);
}

static bool slot_used(const struct slot *s)
{
	bool used = s->named;

	for (unsigned i = 0; i < NODES_MAX; i++)
		used |= s->file[i] || s->awaited[i];
	return used;
}

static void slot_write(struct node *n, struct slot *s)
{
	struct ops_file *f = s->file[n->id - 1];
	unsigned at = pick(SLOT_BYTES), len = 1 + pick(SLOT_BYTES - at);
	uint8_t seed = (uint8_t)rt_random();

	for (unsigned i = 0; i < len; i++)
		s->bytes[at + i] = (uint8_t)(seed + i * 11);
	EQ(ops_write(n->fs, f, &root_user, at, s->bytes + at, len, false), len);
}

struct same {
	const uint8_t *bytes;
	bool same;
};

static int take_same(void *arg, const struct iovec *iov, unsigned count, size_t total)
{
	struct same *s = (struct same *)arg;

	for (unsigned i = 0; i < count; i++) {
		s->same &= memcmp(iov[i].iov_base, s->bytes, iov[i].iov_len) == 0;
		s->bytes += iov[i].iov_len;
	}
	return (int)total;
}

static void slot_read(struct node *n, const struct slot *s)
{
	struct ops_file *f = s->file[n->id - 1];
	struct same same = {.bytes = s->bytes, .same = true};
	size_t done = 0;
	int rc;

	while (done < SLOT_BYTES) {
		rc = ops_read(n->fs, f, done, SLOT_BYTES - done, take_same, &same);
		if (rc <= 0)
			print_message(
				"node %u: inode %" PRIu64 ": %d\n", n->id, s->ino, rc);
		HOLDS(rc > 0);
		done += (size_t)rc;
	}
	HOLDS(same.same);
	EQ(attr_of(n->fs, s->ino).nlink, s->named);
}

/* As a file handle does, which holds nothing. */
static void slot_find(struct node *n, const struct slot *s)
{
	EQ(ino_of(n->fs, s->ino, "."), s->ino);
}

static void slot_create(struct node *n, struct slot *s, unsigned i)
{
	struct ops_attr a;
	char text[8];

	memset(s->bytes, 0, sizeof(s->bytes));
	OK(ops_create(n->fs, DISK_INO_ROOT, slot_name(text, i), &root_user, 0644,
		O_RDWR | O_EXCL, &s->file[n->id - 1], &a));
	s->ino = a.ino;
	s->named = true;
	set_size(n, s->ino, SLOT_BYTES);
}

static void slot_open(struct node *n, struct slot *s)
{
	struct ops_file **f = &s->file[n->id - 1];

	if (!*f)
		*f = open_file(n, s->ino);
}

/* One that nobody uses any more is still there, with all its bytes, or it is not. */
static void slot_open_gone(struct node *n, struct slot *s)
{
	struct ops_file **f = &s->file[n->id - 1];
	uint64_t *gone = &held.gone[s->last - 1];
	int rc = ops_open(n->fs, *gone, &root_user, O_RDWR, f, NULL);

	s->last = 0;
	if (rc) {
		EQ(rc, -ENOENT);
		*f = NULL;
		return;
	}
	s->ino = *gone;
	*gone = 0;
	held.taken++;
}

static void slot_unlink(struct node *n, struct slot *s, unsigned i)
{
	struct ops_attr a;
	char text[8];

	if (!s->named)
		return;
	if (pick(2)) {
		OK(ops_unlink(n->fs, DISK_INO_ROOT, slot_name(text, i)));
	} else { /* by another file that takes the name */
		OK(ops_mknod(n->fs, DISK_INO_ROOT, nm("other"), &root_user,
			S_IFREG | 0644, 0, 0, &a));
		OK(ops_rename(n->fs, DISK_INO_ROOT, nm("other"), DISK_INO_ROOT,
			slot_name(text, i), 0));
		OK(ops_unlink(n->fs, DISK_INO_ROOT, slot_name(text, i)));
		ops_forget(n->fs, a.ino);
	}
	s->named = false;
	s->awaited[n->id - 1] = n->w->caller_forgets;
	for (unsigned k = 0; k < NODES_MAX; k++)
		held.unlinked_open += s->file[k] && k != n->id - 1;
}

static void slot_close(struct node *n, struct slot *s)
{
	struct ops_file **f = &s->file[n->id - 1];

	if (*f)
		ops_close(n->fs, *f);
	*f = NULL;
}

static void slot_forget(struct node *n, struct slot *s)
{
	if (s->awaited[n->id - 1])
		ops_forget(n->fs, s->ino);
	s->awaited[n->id - 1] = false;
}

/* Nobody uses it any more. */
static void slot_settle(struct slot *s)
{
	if (!s->ino || slot_used(s))
		return;
	HOLDS(held.gone_count < GONE_MAX);
	held.gone[held.gone_count++] = s->ino;
	s->last = held.gone_count;
	s->ino = 0;
}

static void reopen(struct node *n)
{
	struct ops_options oo = {
		.atime = OPS_RELATIME, .caller_forgets = n->w->caller_forgets};
	struct weft_error err = {0};

	for (unsigned i = 0; i < SLOTS; i++) {
		if (pick(2)) /* else by fs_close */
			slot_close(n, &held.slot[i]);
		held.slot[i].file[n->id - 1] = NULL;
		held.slot[i].awaited[n->id - 1] = false;
	}
	fs_close(n->fs);
	OK(fs_open(&n->fs, n->v, &oo, &err));
	held.reopened++;
	for (unsigned i = 0; i < SLOTS; i++)
		slot_settle(&held.slot[i]);
}

static void held_step(struct node *n)
{
	unsigned i = pick(SLOTS);
	struct slot *s = &held.slot[i];

	if (pick(60) == 0) {
		reopen(n);
		return;
	}
	if (!s->ino && s->last && pick(4)) {
		slot_open_gone(n, s);
		return;
	}
	if (!s->ino) {
		slot_create(n, s, i);
		return;
	}
	switch (pick(8)) {
	case 0 ... 1:
		slot_open(n, s);
		break;
	case 2:
		slot_unlink(n, s, i);
		break;
	case 3:
		slot_close(n, s);
		break;
	case 4:
		slot_forget(n, s);
		break;
	default:
		slot_find(n, s);
		if (s->file[n->id - 1] && pick(2))
			slot_write(n, s);
		if (s->file[n->id - 1])
			slot_read(n, s);
	}
	slot_settle(s);
}

static unsigned items(struct node *n, enum disk_item_type type)
{
	unsigned count = 0;

	OK(tree_scan(n->v->tree, disk_key(DISK_INO_SYSTEM, type, 0),
		disk_key(DISK_INO_SYSTEM, type + 1, 0), false, count_item, &count));
	return count;
}

static void held_work(struct node *n)
{
	struct world *w = n->w;

	barrier(n);
	for (unsigned i = 0; i < w->steps; i++) {
		rt_mutex_lock(&w->turn);
		held_step(n);
		rt_mutex_unlock(&w->turn);
		rt_sleep_ns(1 + pick(pick(4) ? 100000 : 30000000));
	}
	barrier(n);
	for (unsigned i = 0; i < SLOTS; i++) {
		struct slot *s = &held.slot[i];
		char text[8];

		if (n->id == 1 && s->named)
			OK(ops_unlink(n->fs, DISK_INO_ROOT, slot_name(text, i)));
		if (n->id == 1 && s->named && w->caller_forgets)
			ops_forget(n->fs, s->ino);
	}
	barrier(n);
	for (unsigned i = 0; i < SLOTS; i++) {
		slot_close(n, &held.slot[i]);
		slot_forget(n, &held.slot[i]);
	}
	barrier(n);
	for (unsigned tries = 0; items(n, DISK_ITEM_ORPHAN) > 0; tries++) {
		HOLDS(tries < 100);
		rt_sleep_ns(100000000);
	}
}

/* Of what was unlinked nothing is left. */
static void held_check(struct node *n)
{
	for (unsigned i = 0; i < held.gone_count; i++) {
		struct disk_inode inode;

		if (held.gone[i])
			EQ(inode_get(n->fs, held.gone[i], &inode), -ENOENT);
	}
	EQ(items(n, DISK_ITEM_ORPHAN), 0);
}

/* ---- told, replaced, opened ----------------------------------------------------------------- */

/*
 * Node 1 replaces a file whose name the others' kernels were just told, and these open what they
 * were told. That works, unless room was needed meanwhile; and what was opened stays whole.
 */
#define TOLD_ROUNDS 12u
#define TOLD_PAGES  (2 * EXTENTS_A_PIECE + 8) /* every other one: freed in pieces */

static struct {
	uint64_t ino;
	unsigned pages;
	_Atomic bool drained;
	unsigned opened, failed;
} told;

static struct ops_file *told_make(struct node *n, const char *name, uint64_t *ino)
{
	uint64_t page[PAGE_SIZE / 8];
	struct ops_file *f;
	struct ops_attr a;

	OK(ops_create(n->fs, DISK_INO_ROOT, nm(name), &root_user, 0644, O_RDWR, &f, &a));
	*ino = a.ino;
	for (unsigned b = 0; b < told.pages; b += 2) {
		for (unsigned i = 0; i < PAGE_SIZE / 8; i++)
			page[i] = a.ino * 1000 + b;
		EQ(ops_write(n->fs, f, &root_user, b * PAGE_SIZE, page, PAGE_SIZE, false),
			PAGE_SIZE);
	}
	return f;
}

static void told_read(struct node *n, struct ops_file *f, uint64_t ino)
{
	for (unsigned b = 0; b < told.pages; b += 2) {
		struct words w = {0};

		EQ(ops_read(n->fs, f, b * PAGE_SIZE, PAGE_SIZE, take_first, &w),
			PAGE_SIZE);
		EQ(w.first, ino * 1000 + b);
	}
}

static uint64_t told_replace(struct node *n, uint64_t ino, bool drains)
{
	uint64_t fresh;

	rt_sleep_ns(1 + pick(2000000));
	ops_close(n->fs, told_make(n, "new", &fresh));
	OK(ops_rename(n->fs, DISK_INO_ROOT, nm("new"), DISK_INO_ROOT, nm("told"), 0));
	if (n->w->caller_forgets)
		ops_forget(n->fs, ino);
	if (drains) {
		struct statvfs st;

		rt_sleep_ns(1 + pick(1000000));
		atomic_store(&told.drained, true);
		OK(ops_statfs(n->fs, &st));
	}
	return fresh;
}

/* Just when others are asked whether it is open, or at any time. */
static void told_wait(bool drains)
{
	if (!drains || pick(4) == 0) {
		rt_sleep_ns(1 + pick(pick(2) ? 8000000 : 400000000));
		return;
	}
	while (!atomic_load(&told.drained))
		rt_sleep_ns(5000);
	rt_sleep_ns(1 + pick(400000));
}

static void told_open(struct node *n, uint64_t ino, bool drains)
{
	struct ops_file *f;
	int rc;

	told_wait(drains);
	rc = ops_open(n->fs, ino, &root_user, O_RDONLY, &f, NULL);
	if (rc) {
		EQ(rc, -ENOENT);
		HOLDS(atomic_load(&told.drained));
		told.failed++;
		return;
	}
	told.opened++;
	told_read(n, f, ino);
	rt_sleep_ns(1 + pick(pick(4) ? 1000000 : 2000000000));
	told_read(n, f, ino);
	ops_close(n->fs, f);
}

static void told_work(struct node *n)
{
	uint64_t ino = 0, fresh = 0;

	for (unsigned round = 0; round < TOLD_ROUNDS; round++) {
		if (n->id == 1) {
			told.pages = pick(2) ? 1 : TOLD_PAGES;
			told.drained = false;
			ops_close(n->fs, told_make(n, "told", &told.ino));
		}
		wait_and_find(n, "told", &ino);
		EQ(ino, told.ino);
		barrier(n);
		if (n->id == 1)
			fresh = told_replace(n, ino, round % 2);
		else
			told_open(n, ino, round % 2);
		barrier(n);
		if (n->id == 1) {
			OK(ops_unlink(n->fs, DISK_INO_ROOT, nm("told")));
			if (n->w->caller_forgets)
				ops_forget(n->fs, fresh);
		}
	}
	for (unsigned tries = 0; items(n, DISK_ITEM_ORPHAN) > 0; tries++) {
		HOLDS(tries < 100);
		rt_sleep_ns(200000000);
	}
}

static void told_check(struct node *n)
{
	EQ(items(n, DISK_ITEM_ORPHAN), 0);
}

/* ---- a node that does not answer ------------------------------------------------------------ */

static uint64_t mute_ino;
static unsigned mute_checks[NODES_MAX];

/* What may be open on a node that cannot be asked stays, and goes once it was asked. */
static void mute_work(struct node *n)
{
	struct ops_file *f = NULL;
	struct words w = {0};

	if (n->id == 1)
		mk_file(n->fs, DISK_INO_ROOT, "mute");
	wait_and_find(n, "mute", &mute_ino);
	if (n->id == 2) {
		f = open_file(n, mute_ino);
		EQ(ops_write(n->fs, f, &root_user, 0, "mute", 5, false), 5);
		elsewhere_serve(n->fs, false);
	}
	barrier(n);
	if (n->id == 1) {
		OK(ops_unlink(n->fs, DISK_INO_ROOT, nm("mute")));
		ops_forget(n->fs, mute_ino);
	}
	rt_sleep_ns(pick(4) * 1000000000ull);
	barrier(n);
	EQ(items(n, DISK_ITEM_ORPHAN), 1);
	if (n->id == 2) {
		EQ(ops_read(n->fs, f, 0, 5, take_first, &w), 5);
		if (pick(2)) {
			elsewhere_serve(n->fs, true);
			rt_sleep_ns(9000000000ull); /* it is asked meanwhile */
			EQ(ops_read(n->fs, f, 0, 5, take_first, &w), 5);
			ops_close(n->fs, f);
		} else {
			ops_close(n->fs, f);
			elsewhere_serve(n->fs, true);
		}
	}
	barrier(n);
	for (unsigned tries = 0; items(n, DISK_ITEM_ORPHAN) > 0; tries++) {
		HOLDS(tries < 100);
		rt_sleep_ns(200000000);
	}
}

static void mute_check(struct node *n)
{
	struct disk_inode inode;

	EQ(inode_get(n->fs, mute_ino, &inode), -ENOENT);
	EQ(items(n, DISK_ITEM_ORPHAN), 0);
	if (mute_checks[n->id - 1]++ == 1) /* all have closed since, and opened nothing */
		EQ(items(n, DISK_ITEM_OPENERS), 0);
}

/* ---- the runner -------------------------------------------------------------------------- */

/* `power_cut`: at some moment all nodes end, and fsck looks at what they leave. */
static void run_seeds_as(unsigned nodes, unsigned steps, void (*work)(struct node *),
	void (*check)(struct node *), bool power_cut)
{
	struct world *w = (struct world *)calloc(1, sizeof(*w));
	uint64_t seeds = seeds_count(SEEDS);
	struct rt_sim_options o = {.time_limit_ns = 600ull * 1000000000};
	uint64_t redone = 0, unlinked_open = 0, reopened = 0, runs = seeds;
	uint64_t taken = 0, opened = 0, failed = 0;

	assert_non_null(w);
	for (uint64_t seed = seeds_first(); seeds--; seed++) {
		memset(w, 0, sizeof(*w));
		memset(&states, 0, sizeof(states));
		memset(&cut, 0, sizeof(cut));
		memset(&held, 0, sizeof(held));
		memset(&told, 0, sizeof(told));
		memset(mute_checks, 0, sizeof(mute_checks));
		w->nodes = nodes;
		w->caller_forgets = work != states_work && seed % 2;
		w->steps = steps;
		w->work = work;
		w->check = check;
		w->cut_ns = power_cut ? 50000000 + seed * 7919 % 30 * 40000000 : 0;
		assert_int_equal(rt_sim_run(seed, &o, run_world, w), 0);
		redone += w->cut_redone;
		unlinked_open += held.unlinked_open;
		reopened += held.reopened;
		taken += held.taken;
		opened += told.opened;
		failed += told.failed;
	}
	if (work == held_work && !power_cut && runs >= SEEDS)
		assert_true(
			unlinked_open >= SEEDS && reopened >= SEEDS && taken >= SEEDS);
	if (work == told_work && runs >= SEEDS)
		assert_true(opened >= SEEDS && failed >= SEEDS);
	assert_true(redone > 0 || !power_cut || runs < SEEDS);
	free(w);
}

static void run_seeds(unsigned nodes, unsigned steps, void (*work)(struct node *),
	void (*check)(struct node *))
{
	run_seeds_as(nodes, steps, work, check, false);
}

static void two_nodes_read_what_the_other_unmaps(void **state)
{
	run_seeds(2, 60, states_work, states_check);
}

static void three_nodes_read_what_others_unmap(void **state)
{
	run_seeds(3, 30, states_work, states_check);
}

static void three_nodes_fill_the_same_pages(void **state)
{
	run_seeds(3, 1, common_work, common_check);
}

static void a_cut_that_failed_is_finished_elsewhere(void **state)
{
	run_seeds(2, 1, cut_work, cut_check);
}

static void two_nodes_unlink_what_the_other_has_open(void **state)
{
	run_seeds(2, 150, held_work, held_check);
}

static void three_nodes_unlink_what_others_have_open(void **state)
{
	run_seeds(3, 120, held_work, held_check);
}

static void what_a_kernel_was_told_opens_though_it_was_replaced(void **state)
{
	run_seeds(2, 1, told_work, told_check);
	run_seeds(3, 1, told_work, told_check);
}

static void what_cannot_be_asked_for_is_kept(void **state)
{
	run_seeds(3, 1, mute_work, mute_check);
}

static void a_power_cut_among_unlinked_files_leaves_sound_stores(void **state)
{
	run_seeds_as(3, 120, held_work, held_check, true);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(two_nodes_read_what_the_other_unmaps),
		cmocka_unit_test(three_nodes_read_what_others_unmap),
		cmocka_unit_test(three_nodes_fill_the_same_pages),
		cmocka_unit_test(a_cut_that_failed_is_finished_elsewhere),
		cmocka_unit_test(what_a_kernel_was_told_opens_though_it_was_replaced),
		cmocka_unit_test(what_cannot_be_asked_for_is_kept),
		cmocka_unit_test(two_nodes_unlink_what_the_other_has_open),
		cmocka_unit_test(three_nodes_unlink_what_others_have_open),
		cmocka_unit_test(a_power_cut_among_unlinked_files_leaves_sound_stores),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
