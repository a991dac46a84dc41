/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For linear_test: tasks of all nodes do operations on the same few
 * things, several at a time, and note when, and what came back; and the judge of that.
 */
#ifndef WEFT_TEST_LINEAR_WORK_H
#define WEFT_TEST_LINEAR_WORK_H

#include "tests/sim/cluster_world.h"
#include "tests/sim/linear_spec.h"
#include "tests/unit/locks_fixture.h"

#define TASKS     SPEC_TASKS
#define OPS       4u /* of each task in a round */
#define KNOWN_MAX 100u

_Static_assert(SPEC_NODES == NODES_MAX && BLOCK_BYTES == PAGE_SIZE, "the world's");
_Static_assert((int)LOCK_FREE == (int)OPS_LOCK_NONE &&
		       (int)LOCK_SHARED == (int)OPS_LOCK_SHARED &&
		       (int)LOCK_ALONE == (int)OPS_LOCK_EXCLUSIVE,
	"types");

/* A task of a node, in a round. */
struct worker {
	struct node *n;
	unsigned number;
	struct ops_file *file; /* that it locks */
	unsigned flock;        /* what it has of it */
	struct rt_task *task;
};

/* What all nodes of the simulation see. */
static struct {
	const struct linear_model *model;
	void (*choose)(const struct worker *w, struct action *a);
	uint64_t directory[2], file, log, locked, pages;
	uint64_t clock, number;
	struct linear_op op[LINEAR_OPS_MAX];
	struct action action[LINEAR_OPS_MAX];
	unsigned count;
	union {
		struct names_state names;
		struct file_state file;
		struct log_state log;
		struct locks_state locks;
	} state;
	uint64_t known[KNOWN_MAX]; /* inodes that there were */
	unsigned inodes;
	uint64_t overlapped;
	/* Bad weather. Bits of numbers of nodes: those that may crash, which make durable most of
	 * what they do, those of them that do not in this round, and those that have crashed in
	 * it. And what all are at. */
	bool weather;
	unsigned mortal, lax, crashed;
	struct {
		bool is;
		uint64_t began;
		struct action action;
	} doing[NODES_MAX + 1][TASKS];
} shared;

/* ---- doing them -------------------------------------------------------------------------- */

static const char *slot_name(unsigned slot)
{
	static const char *const names[] = {"a", "b", "c"};

	_Static_assert(SLOTS == 2 * ARRAY_SIZE(names), "names for all slots");
	return names[slot / 2];
}

static uint64_t slot_directory(unsigned slot)
{
	return shared.directory[slot % 2];
}

static void known_add(uint64_t ino)
{
	for (unsigned i = 0; i < shared.inodes; i++)
		if (shared.known[i] == ino)
			return;
	HOLDS(shared.inodes < KNOWN_MAX);
	shared.known[shared.inodes++] = ino;
}

static void do_name(struct fs *fs, struct action *a)
{
	struct ops_name at = nm(slot_name(a->at)), to = nm(slot_name(a->to));
	struct ops_attr attr = {0};

	switch (a->kind) {
	case NAME_LOOKUP:
		a->result = ops_lookup(fs, slot_directory(a->at), at, &attr);
		break;
	case NAME_CREATE:
		a->result = ops_mknod(fs, slot_directory(a->at), at, &root_user,
			S_IFREG | 0644, 0, 0, &attr);
		break;
	case NAME_UNLINK:
		a->result = ops_unlink(fs, slot_directory(a->at), at);
		return;
	case NAME_LINK:
		a->result = ops_link(fs, a->ino, slot_directory(a->to), to, &attr);
		return;
	case NAME_RENAME:
		a->result = ops_rename(fs, slot_directory(a->at), at,
			slot_directory(a->to), to, a->flags);
		return;
	default:
		a->result = ops_getattr(fs, a->ino, &attr);
		a->value = attr.inode.nlink;
		return;
	}
	a->ino = attr.ino;
	a->value = attr.inode.nlink;
	if (!a->result)
		known_add(attr.ino);
}

static int take_value(void *arg, const struct iovec *iov, unsigned count, size_t total)
{
	HOLDS(total <= VALUE_BYTES && count <= 1);
	if (total)
		memcpy(arg, iov[0].iov_base, total);
	return (int)total;
}

static void do_bytes(struct fs *fs, struct action *a, uint64_t ino, uint64_t offset)
{
	struct ops_file *f;
	struct ops_attr attr;

	OK(ops_open(fs, ino, &root_user, O_RDWR, &f, &attr));
	if (a->kind == FILE_READ || a->kind == LOG_READ)
		a->result = ops_read(fs, f, offset, VALUE_BYTES, take_value, &a->value);
	else
		a->result = (int)ops_write(fs, f, &root_user, offset, &a->value,
			VALUE_BYTES, a->kind == LOG_APPEND);
	ops_close(fs, f);
}

static void do_file(struct fs *fs, struct action *a)
{
	uint64_t ino = a->kind < FILE_KINDS ? shared.file : shared.log;
	struct ops_setattr cut = {.set = OPS_SET_SIZE, .size = a->at * PAGE_SIZE};
	struct ops_attr attr = {0};

	switch (a->kind) {
	case FILE_CUT:
		a->result = ops_setattr(fs, ino, &root_user, &cut, &attr);
		break;
	case FILE_SIZE:
	case LOG_SIZE:
		a->result = ops_getattr(fs, ino, &attr);
		a->value = attr.inode.size;
		break;
	default:
		do_bytes(fs, a, ino,
			a->at * (a->kind < FILE_KINDS ? PAGE_SIZE : VALUE_BYTES));
	}
}

/* The places of a file: bytes, and the rest of it. */
static uint64_t last_byte(unsigned place)
{
	return place == LOCK_PLACES - 1 ? OPS_LOCK_END : place;
}

static unsigned place_of(uint64_t byte)
{
	return (unsigned)MIN(byte, LOCK_PLACES - 1);
}

static void do_test(struct worker *w, struct action *a, const struct ops_lock *l)
{
	struct ops_lock found;

	a->result = ops_lock_test(w->n->fs, w->file, l, &found);
	a->found = found.type;
	a->found_at = place_of(found.first);
	a->found_to = place_of(found.last);
	a->found_by = found.pid;
	HOLDS(a->result || !found.type || found.last == last_byte(a->found_to));
}

/*
 * Who waits gives up sometimes; always, after a moment, in bad weather: of a circle with a
 * node that does not answer nobody need be told.
 */
static int wait_for(struct worker *w, struct ops_lock l)
{
	bool gives_up = shared.weather || l.kind == OPS_LOCK_FLOCK || pick(2);
	struct waiter waiter;
	int rc = start(w->n->fs, w->file, &waiter, l);

	if (rc != -EINPROGRESS)
		return rc;
	if (gives_up && !is_over(&waiter, pick(pick(2) ? 1000000 : 30000000)))
		ops_lock_cancel(w->n->fs, &waiter.wait);
	return finish(&waiter);
}

static void do_lock(struct worker *w, struct action *a)
{
	enum ops_lock_type type = (enum ops_lock_type)a->flags;
	struct ops_lock range = posix(w->number + 1, type, a->at, last_byte(a->to));
	struct ops_lock all = whole(w->number + 1, type);

	switch (a->kind) {
	case LOCK_TRY:
		a->result = set(w->n->fs, w->file, range);
		break;
	case LOCK_WAIT:
		a->result = wait_for(w, range);
		break;
	case LOCK_TEST:
		do_test(w, a, &range);
		break;
	case LOCK_CLOSE:
		a->result = ops_flush(w->n->fs, w->file, range.owner);
		break;
	default:
		a->result = a->kind == LOCK_FLOCK ? set(w->n->fs, w->file, all)
						  : wait_for(w, all);
		w->flock = a->result && w->flock != a->flags ? LOCK_FREE : a->flags;
	}
}

/* What ended before `began`, on whatever node; by a sync of all, or what was done to these. */
static void note_durable(uint64_t began, const struct action *by)
{
	for (unsigned i = 0; i < shared.count; i++)
		if (shared.op[i].ended < began &&
			(!by || action_covered(&shared.action[i], by)))
			shared.action[i].loose = false;
}

static inline void sync_all(struct fs *fs)
{
	uint64_t began = ++shared.clock;

	OK(ops_syncfs(fs));
	note_durable(began, NULL);
}

/* What it has done everybody finds for ever. */
static void make_durable(struct fs *fs, const struct action *a)
{
	uint64_t began = ++shared.clock;

	if (a->kind > NAME_KINDS) {
		OK(ops_fsync(fs, a->kind < FILE_KINDS ? shared.file : shared.log, false));
	} else {
		OK(ops_fsync(
			fs, slot_directory(a->kind == NAME_LINK ? a->to : a->at), false));
		if (a->kind == NAME_RENAME && (a->at ^ a->to) % 2)
			OK(ops_fsync(fs, slot_directory(a->to), false));
	}
	note_durable(began, a);
}

/* Who lives need not make anything durable, but may: what others have done, too. */
static void see_to(struct node *n, struct action *a)
{
	unsigned how = pick(6);

	if (!(shared.mortal >> n->id & 1)) {
		if (how == 0)
			make_durable(n->fs, a);
		return;
	}
	a->loose = shared.lax >> n->id & 1 ? how > 0 : how == 0;
	if (how == 1 && !a->loose)
		sync_all(n->fs);
	else if (!a->loose)
		make_durable(n->fs, a);
}

/* ---- noting them --------------------------------------------------------------------------- */

static void note(const struct action *a, uint64_t began, uint64_t ended)
{
	unsigned i = shared.count++;

	HOLDS(i < LINEAR_OPS_MAX);
	shared.action[i] = *a;
	shared.op[i] = (struct linear_op){began, ended, &shared.action[i], a->lost};
}

/* Something that is so from one moment on. */
static inline void note_event(enum kind kind, unsigned nodes)
{
	uint64_t began = ++shared.clock;

	note(&(struct action){.kind = kind, .nodes = nodes}, began, ++shared.clock);
}

/*
 * Does it, and notes when. A look-up is two operations, as for stat(2): the name's inode, then
 * what that is.
 */
static void perform(struct worker *w, struct action what)
{
	uint64_t began = ++shared.clock, ended;
	struct action *a = &shared.doing[w->n->id][w->number].action;

	*a = what;
	a->node = w->n->id;
	a->task = w->number;
	shared.doing[w->n->id][w->number].began = began;
	shared.doing[w->n->id][w->number].is = true;
	if (a->kind < NAME_KINDS)
		do_name(w->n->fs, a);
	else if (a->kind < LOG_KINDS)
		do_file(w->n->fs, a);
	else
		do_lock(w, a);
	if (shared.mortal && a->result >= 0 && a->kind < LOG_KINDS &&
		action_changes(a->kind))
		see_to(w->n, a);
	ended = ++shared.clock;
	shared.doing[w->n->id][w->number].is = false;
	note(a, began, ended);
	shared.overlapped += ended - began > 1;
	if (a->kind == NAME_LOOKUP && !a->result) {
		a->kind = NAME_LINKS;
		note(a, began, ended);
	}
}

/* ---- choosing them ----------------------------------------------------------------------- */

static void choose_name(const struct worker *w, struct action *a)
{
	static const unsigned flags[] = {0, 0, RENAME_NOREPLACE, RENAME_EXCHANGE};

	a->kind = (enum kind)pick(NAME_KINDS);
	a->at = pick(SLOTS);
	a->to = pick(SLOTS);
	a->flags = flags[pick(ARRAY_SIZE(flags))];
	if (a->kind != NAME_LINK && a->kind != NAME_LINKS)
		return;
	if (!shared.inodes)
		a->kind = NAME_CREATE;
	else /* one of the last */
		a->ino = shared.known[shared.inodes - 1 - pick(MIN(shared.inodes, 5u))];
}

static void choose_file(const struct worker *w, struct action *a)
{
	static const enum kind kinds[] = {
		FILE_READ, FILE_READ, FILE_WRITE, FILE_WRITE, FILE_CUT, FILE_SIZE};

	a->kind = kinds[pick(ARRAY_SIZE(kinds))];
	a->at = pick(a->kind == FILE_CUT ? BLOCKS + 1 : BLOCKS);
	a->value = a->kind == FILE_WRITE ? ++shared.number : 0;
}

static void choose_log(const struct worker *w, struct action *a)
{
	uint64_t records = shared.state.log.records;

	a->kind = (enum kind)(LOG_APPEND + pick(3));
	a->at = a->kind == LOG_READ ? (unsigned)records + pick(4) : 0;
	if (a->kind == LOG_APPEND)
		a->value = ++shared.number;
}

static void choose_lock(const struct worker *w, struct action *a)
{
	static const enum kind kinds[] = {LOCK_TRY, LOCK_TRY, LOCK_TRY, LOCK_TRY,
		LOCK_WAIT, LOCK_WAIT, LOCK_TEST, LOCK_TEST, LOCK_FLOCK, LOCK_FLOCK,
		LOCK_FLOCK_WAIT, LOCK_CLOSE};
	unsigned one = pick(LOCK_PLACES), other = pick(LOCK_PLACES);

	a->kind = kinds[pick(ARRAY_SIZE(kinds))];
	if (a->kind == LOCK_FLOCK_WAIT && w->flock) /* that would be two steps */
		a->kind = LOCK_FLOCK;
	a->at = MIN(one, other);
	a->to = MAX(one, other);
	if (a->kind == LOCK_TRY || a->kind == LOCK_FLOCK)
		a->flags = pick(3); /* LOCK_FREE, too */
	else
		a->flags = LOCK_SHARED + pick(2);
}

/* ---- rounds ------------------------------------------------------------------------------ */

/* It has no locks any more. */
static void worker_ends(struct worker *w)
{
	perform(w, (struct action){.kind = LOCK_CLOSE});
	perform(w, (struct action){.kind = LOCK_FLOCK});
	ops_close(w->n->fs, w->file);
}

/* What is there when all is still, so that a round ends in one state. */
static void look_at_all(struct node *n)
{
	struct worker w = {.n = n};

	if (shared.model == &names_model) {
		for (unsigned i = 0; i < SLOTS; i++)
			perform(&w, (struct action){.kind = NAME_LOOKUP, .at = i});
	} else if (shared.model == &file_model) {
		for (unsigned i = 0; i < BLOCKS; i++)
			perform(&w, (struct action){.kind = FILE_READ, .at = i});
		perform(&w, (struct action){.kind = FILE_SIZE});
	} else if (shared.model == &log_model) {
		unsigned i = (unsigned)shared.state.log.records;
		uint64_t bytes;

		perform(&w, (struct action){.kind = LOG_SIZE});
		bytes = shared.action[shared.count - 1].value;
		for (; i * VALUE_BYTES < bytes; i++)
			perform(&w, (struct action){.kind = LOG_READ, .at = i});
	} else {
		static const enum kind kinds[] = {LOCK_TEST, LOCK_TRY, LOCK_FLOCK};
		struct action a = {.to = LOCK_PLACES - 1, .flags = LOCK_ALONE};

		w.file = open_file(n->fs, shared.locked);
		for (unsigned i = 0; i < ARRAY_SIZE(kinds); i++) {
			a.kind = kinds[i];
			perform(&w, a);
		}
		worker_ends(&w);
	}
}

static void print_history(uint64_t deepest)
{
	for (unsigned i = 0; i < shared.count; i++) {
		fprintf(stderr, "%s%3" PRIu64 "-%-3" PRIu64 " ",
			deepest >> i & 1 ? "  " : "? ", shared.op[i].began,
			shared.op[i].ended);
		action_print(&shared.action[i]);
	}
}

/* Inodes that were found, and that no create has returned. */
static void find_unknown(void)
{
	uint64_t found[UNKNOWN_MAX];
	unsigned count = 0;

	for (unsigned i = 0; i < shared.count; i++) {
		const struct action *a = &shared.action[i];
		bool is_known = a->kind != NAME_LOOKUP || a->result;

		for (unsigned k = 0; k < shared.count && !is_known; k++)
			is_known = shared.action[k].kind == NAME_CREATE &&
				   shared.action[k].ino == a->ino;
		for (unsigned k = 0; k < shared.state.names.inodes && !is_known; k++)
			is_known = shared.state.names.ino[k] == a->ino;
		for (unsigned k = 0; k < count && !is_known; k++)
			is_known = found[k] == a->ino;
		if (!is_known && count < UNKNOWN_MAX)
			found[count++] = a->ino;
	}
	lossy_unknown(found, count);
}

static bool judge_crashes(uint64_t *deepest)
{
	static uint64_t lossy[LINEAR_STATE_MAX / 8];
	struct linear_model m = lossy_model(shared.model);
	bool found;

	if (shared.model == &names_model)
		find_unknown();
	lossy_begin(shared.model, &shared.state, lossy);
	found = linear_check(&m, shared.op, shared.count, lossy, deepest);
	lossy_end(shared.model, lossy, &shared.state);
	return found;
}

static void judge(void)
{
	uint64_t deepest;

	if (shared.mortal && shared.model != &locks_model
			? !judge_crashes(&deepest)
			: !linear_check(shared.model, shared.op, shared.count,
				  &shared.state, &deepest)) {
		fprintf(stderr, "no order explains these (?: not in the longest that "
				"there is):\n");
		print_history(deepest);
		abort();
	}
	shared.count = 0;
}

/* Pages that nothing is expected of drive others out of a cache. */
static void use_pages(struct node *n)
{
	static uint8_t bytes[PAGE_SIZE];
	struct ops_file *f;
	unsigned first = pick(200);

	OK(ops_open(n->fs, shared.pages, &root_user, O_RDWR, &f, NULL));
	for (unsigned i = 0; i < 24; i++)
		EQ(ops_write(n->fs, f, &root_user,
			   (uint64_t)(n->id * 256 + first + i) * PAGE_SIZE, bytes,
			   PAGE_SIZE, false),
			PAGE_SIZE);
	ops_close(n->fs, f);
}

/* There must be room for what others are at, and for what is looked at in the end. */
static bool is_room(void)
{
	return shared.count < (shared.model == &log_model ? 28u : 40u);
}

static void worker_main(void *arg)
{
	struct worker *w = (struct worker *)arg;
	bool locks = shared.model == &locks_model;

	if (locks)
		w->file = open_file(w->n->fs, shared.locked);
	for (unsigned i = 0; i < OPS + locks && is_room(); i++) {
		struct action a = {0};

		shared.choose(w, &a);
		perform(w, a);
		if (shared.weather && !pick(12))
			use_pages(w->n);
		if (!pick(3))
			rt_sleep_ns(pick(50000));
	}
	if (locks)
		worker_ends(w);
}

static void things_make(struct node *n)
{
	shared.directory[0] = mk_dir(n->fs, DISK_INO_ROOT, "one");
	shared.directory[1] = mk_dir(n->fs, DISK_INO_ROOT, "two");
	shared.file = mk_file(n->fs, DISK_INO_ROOT, "file");
	shared.log = mk_file(n->fs, DISK_INO_ROOT, "log");
	shared.locked = mk_file(n->fs, DISK_INO_ROOT, "locked");
	shared.pages = mk_file(n->fs, DISK_INO_ROOT, "pages");
}

/* What a round does must fit a map of 64, and be looked through. */
static unsigned tasks_of(unsigned nodes)
{
	return nodes > 3 ? 1 : nodes > 2 ? TASKS - 1 : TASKS;
}

/* So many tasks of this node do some operations each. */
static void work_together(struct node *n, unsigned tasks)
{
	struct worker w[TASKS];

	for (unsigned i = 0; i < tasks; i++) {
		w[i] = (struct worker){.n = n, .number = i};
		OK(rt_task_spawn(&w[i].task, "work", worker_main, &w[i]));
	}
	for (unsigned i = 0; i < tasks; i++)
		rt_task_join(w[i].task);
}

#endif
