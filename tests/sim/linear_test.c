/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations of several nodes on the same few names and files, several at a time on each,
 * are linearizable: there is one order of all of them that explains what each returned, and
 * in which none comes before one that had ended before it began (linear.h).
 *
 * In rounds: some tasks of each node do some operations each, everyone stops, and what is
 * there is read once more, so that a round ends in one state. Three things are judged by
 * themselves: names (create, look up, link, unlink, rename, numbers of links), the bytes of
 * a file that also shrinks and grows, and a file that is only appended to.
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/linear_test     one seed; a failure prints its history
 *   WEFT_SIM_SEEDS=1000                             so many of each kind
 */
#include "tests/sim/cluster_world.h"
#include "tests/sim/linear.h"

#define TASKS      3u /* of each node, at most */
#define OPS        4u /* of each in a round */
#define ROUNDS     8u
#define SLOTS      6u /* names: in two directories */
#define INODES_MAX 40u
#define BLOCKS     3u
#define RECORDS    64u

enum kind {
	NAME_LOOKUP,
	NAME_CREATE,
	NAME_UNLINK,
	NAME_LINK,
	NAME_RENAME,
	NAME_LINKS, /* getattr: how many links */
	NAME_KINDS,
	FILE_READ,
	FILE_WRITE,
	FILE_CUT, /* to a size in blocks, shorter or longer */
	FILE_SIZE,
	FILE_KINDS,
	LOG_APPEND,
	LOG_READ,
	LOG_SIZE,
	LOG_KINDS
};

static const char *const kind_names[] = {"look up", "create", "unlink", "link", "rename",
	"links", "", "read", "write", "cut", "size", "", "append", "read record",
	"records", ""};

/* What was asked and what came back; not all of it of each kind. */
struct action {
	enum kind kind;
	unsigned node, at, to; /* slots, block, record */
	unsigned flags;        /* of a rename */
	uint64_t ino;          /* of LINK and LINKS; found by LOOKUP and CREATE */
	uint64_t value;        /* of bytes: written, or read; links; a size */
	int result;
};

/* ---- what they should do ----------------------------------------------------------------- */

struct names_state {
	uint64_t slot[SLOTS]; /* inode; 0: there is none */
	uint64_t ino[INODES_MAX];
	uint64_t links
		[INODES_MAX]; /* by rising inode, so that equal states are equal bytes */
	uint64_t inodes;
};

static uint64_t *links_of(struct names_state *s, uint64_t ino)
{
	for (unsigned i = 0; i < s->inodes; i++)
		if (s->ino[i] == ino)
			return &s->links[i];
	return NULL;
}

static void links_new(struct names_state *s, uint64_t ino)
{
	unsigned i = (unsigned)s->inodes++;

	HOLDS(i < INODES_MAX);
	for (; i && s->ino[i - 1] > ino; i--) {
		s->ino[i] = s->ino[i - 1];
		s->links[i] = s->links[i - 1];
	}
	s->ino[i] = ino;
	s->links[i] = 1;
}

static void slot_clear(struct names_state *s, unsigned slot)
{
	--*links_of(s, s->slot[slot]);
	s->slot[slot] = 0;
}

static bool step_rename(const struct action *a, struct names_state *s)
{
	uint64_t from = s->slot[a->at], to = s->slot[a->to];

	if (!from || (a->flags == RENAME_EXCHANGE && !to))
		return a->result == -ENOENT;
	if (a->flags == RENAME_NOREPLACE && to)
		return a->result == -EEXIST;
	if (a->result)
		return false;
	if (from == to)
		return true;
	if (a->flags == RENAME_EXCHANGE) {
		s->slot[a->at] = to;
		s->slot[a->to] = from;
		return true;
	}
	if (to)
		slot_clear(s, a->to);
	s->slot[a->to] = from;
	s->slot[a->at] = 0;
	return true;
}

static bool step_link(const struct action *a, struct names_state *s)
{
	uint64_t *links = links_of(s, a->ino);

	if (!links || !*links)
		return a->result == -ENOENT || (s->slot[a->to] && a->result == -EEXIST);
	if (s->slot[a->to])
		return a->result == -EEXIST;
	if (a->result)
		return false;
	s->slot[a->to] = a->ino;
	++*links;
	return true;
}

static bool step_create(const struct action *a, struct names_state *s)
{
	if (s->slot[a->at])
		return a->result == -EEXIST;
	if (a->result || links_of(s, a->ino))
		return false;
	s->slot[a->at] = a->ino;
	links_new(s, a->ino);
	return true;
}

static bool names_step(const void *op, void *state)
{
	const struct action *a = (const struct action *)op;
	struct names_state *s = (struct names_state *)state;
	uint64_t *links;

	switch (a->kind) {
	case NAME_LOOKUP:
		if (!s->slot[a->at])
			return a->result == -ENOENT;
		return !a->result && a->ino == s->slot[a->at];
	case NAME_CREATE:
		return step_create(a, s);
	case NAME_UNLINK:
		if (!s->slot[a->at])
			return a->result == -ENOENT;
		slot_clear(s, a->at);
		return !a->result;
	case NAME_LINK:
		return step_link(a, s);
	case NAME_RENAME:
		return step_rename(a, s);
	case NAME_LINKS:
		links = links_of(s, a->ino);
		if (!links)
			return a->result == -ENOENT;
		if (!*links && a->result == -ENOENT)
			return true; /* reclaimed, or soon */
		return !a->result && a->value == *links;
	default:
		return false;
	}
}

static const struct linear_model names_model = {sizeof(struct names_state), names_step};

/* A block has eight bytes at its beginning, or nothing but zeros. */
struct file_state {
	uint64_t size;
	uint64_t value[BLOCKS];
};

#define VALUE_BYTES 8u

static bool step_cut(const struct action *a, struct file_state *s)
{
	if (a->result)
		return false;
	s->size = a->at * PAGE_SIZE;
	for (unsigned i = a->at; i < BLOCKS; i++)
		s->value[i] = 0;
	return true;
}

static bool file_step(const void *op, void *state)
{
	const struct action *a = (const struct action *)op;
	struct file_state *s = (struct file_state *)state;
	uint64_t at = a->at * PAGE_SIZE;

	switch (a->kind) {
	case FILE_READ:
		if (s->size <= at)
			return a->result == 0;
		return a->result == VALUE_BYTES && a->value == s->value[a->at];
	case FILE_WRITE:
		s->size = MAX(s->size, at + VALUE_BYTES);
		s->value[a->at] = a->value;
		return a->result == VALUE_BYTES;
	case FILE_CUT:
		return step_cut(a, s);
	case FILE_SIZE:
		return !a->result && a->value == s->size;
	default:
		return false;
	}
}

static const struct linear_model file_model = {sizeof(struct file_state), file_step};

struct log_state {
	uint64_t records, value[RECORDS];
};

static bool log_step(const void *op, void *state)
{
	const struct action *a = (const struct action *)op;
	struct log_state *s = (struct log_state *)state;

	switch (a->kind) {
	case LOG_APPEND:
		HOLDS(s->records < RECORDS);
		s->value[s->records++] = a->value;
		return a->result == VALUE_BYTES;
	case LOG_READ:
		if (a->at >= s->records)
			return a->result == 0;
		return a->result == VALUE_BYTES && a->value == s->value[a->at];
	case LOG_SIZE:
		return !a->result && a->value == s->records * VALUE_BYTES;
	default:
		return false;
	}
}

static const struct linear_model log_model = {sizeof(struct log_state), log_step};

/* ---- doing them -------------------------------------------------------------------------- */

/* What all nodes of the simulation see. */
static struct {
	const struct linear_model *model;
	void (*choose)(struct action *a);
	uint64_t directory[2], file, log;
	uint64_t clock, number;
	struct linear_op op[LINEAR_OPS_MAX];
	struct action action[LINEAR_OPS_MAX];
	unsigned count;
	union {
		struct names_state names;
		struct file_state file;
		struct log_state log;
	} state;
	uint64_t known[INODES_MAX]; /* inodes that there were */
	unsigned inodes;
	uint64_t overlapped;
} shared;

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
	HOLDS(shared.inodes < INODES_MAX);
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
		if (!a->result)
			known_add(attr.ino);
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

static void note(const struct action *a, uint64_t began, uint64_t ended)
{
	unsigned i = shared.count++;

	HOLDS(i < LINEAR_OPS_MAX);
	shared.action[i] = *a;
	shared.op[i] = (struct linear_op){began, ended, &shared.action[i]};
}

/*
 * Does it, and notes when. A look-up is two operations, as for stat(2): the name's inode, then
 * what that is.
 */
static void perform(struct node *n, struct action a)
{
	uint64_t began = ++shared.clock, ended;

	a.node = n->id;
	if (a.kind < NAME_KINDS)
		do_name(n->fs, &a);
	else
		do_file(n->fs, &a);
	ended = ++shared.clock;
	note(&a, began, ended);
	shared.overlapped += ended - began > 1;
	if (a.kind == NAME_LOOKUP && !a.result) {
		a.kind = NAME_LINKS;
		note(&a, began, ended);
	}
}

/* ---- choosing them ----------------------------------------------------------------------- */

static void choose_name(struct action *a)
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

static void choose_file(struct action *a)
{
	static const enum kind kinds[] = {
		FILE_READ, FILE_READ, FILE_WRITE, FILE_WRITE, FILE_CUT, FILE_SIZE};

	a->kind = kinds[pick(ARRAY_SIZE(kinds))];
	a->at = pick(a->kind == FILE_CUT ? BLOCKS + 1 : BLOCKS);
	a->value = a->kind == FILE_WRITE ? ++shared.number : 0;
}

static void choose_log(struct action *a)
{
	uint64_t records = shared.state.log.records;

	a->kind = (enum kind)(LOG_APPEND + pick(3));
	a->at = a->kind == LOG_READ ? (unsigned)records + pick(4) : 0;
	if (a->kind == LOG_APPEND)
		a->value = ++shared.number;
}

/* What is there when all is still, so that a round ends in one state. */
static void look_at_all(struct node *n)
{
	if (shared.model == &names_model) {
		for (unsigned i = 0; i < SLOTS; i++)
			perform(n, (struct action){.kind = NAME_LOOKUP, .at = i});
	} else if (shared.model == &file_model) {
		for (unsigned i = 0; i < BLOCKS; i++)
			perform(n, (struct action){.kind = FILE_READ, .at = i});
		perform(n, (struct action){.kind = FILE_SIZE});
	} else {
		unsigned i = (unsigned)shared.state.log.records;
		uint64_t bytes;

		perform(n, (struct action){.kind = LOG_SIZE});
		bytes = shared.action[shared.count - 1].value;
		for (; i * VALUE_BYTES < bytes; i++)
			perform(n, (struct action){.kind = LOG_READ, .at = i});
	}
}

/* ---- rounds ------------------------------------------------------------------------------ */

static void print_history(uint64_t deepest)
{
	for (unsigned i = 0; i < shared.count; i++) {
		const struct action *a = &shared.action[i];

		print_message("%s%3" PRIu64 "-%-3" PRIu64
			      " node %u: %-11s at %u to %u flags "
			      "%u ino %" PRIu64 " value %" PRIu64 ": %d\n",
			deepest >> i & 1 ? "  " : "? ", shared.op[i].began,
			shared.op[i].ended, a->node, kind_names[a->kind], a->at, a->to,
			a->flags, a->ino, a->value, a->result);
	}
}

static void judge(void)
{
	uint64_t deepest;

	if (!linear_check(
		    shared.model, shared.op, shared.count, &shared.state, &deepest)) {
		print_message("no order explains these (?: not in the longest that there "
			      "is):\n");
		print_history(deepest);
		abort();
	}
	shared.count = 0;
}

static void round_main(void *arg)
{
	struct node *n = (struct node *)arg;

	for (unsigned i = 0; i < OPS; i++) {
		struct action a = {0};

		shared.choose(&a);
		perform(n, a);
		if (!pick(3))
			rt_sleep_ns(pick(50000));
	}
}

static void things_make(struct node *n)
{
	shared.directory[0] = mk_dir(n->fs, DISK_INO_ROOT, "one");
	shared.directory[1] = mk_dir(n->fs, DISK_INO_ROOT, "two");
	shared.file = mk_file(n->fs, DISK_INO_ROOT, "file");
	shared.log = mk_file(n->fs, DISK_INO_ROOT, "log");
}

/* What a round does must fit a map of 64, and be looked through. */
static unsigned tasks_of(unsigned nodes)
{
	return nodes > 3 ? 1 : nodes > 2 ? TASKS - 1 : TASKS;
}

static void rounds_work(struct node *n)
{
	unsigned tasks = tasks_of(n->w->nodes);
	struct rt_task *task[TASKS];

	if (n->id == 1)
		things_make(n);
	barrier(n);
	for (unsigned round = 0; round < n->w->steps; round++) {
		for (unsigned i = 0; i < tasks; i++)
			OK(rt_task_spawn(&task[i], "work", round_main, n));
		for (unsigned i = 0; i < tasks; i++)
			rt_task_join(task[i]);
		barrier(n);
		if (n->id == 1 + round % n->w->nodes) {
			look_at_all(n);
			judge();
		}
		barrier(n);
	}
}

/* The same is there when every node looks, also after opening again. */
static void rounds_check(struct node *n)
{
	rt_mutex_lock(&n->w->turn);
	look_at_all(n);
	judge();
	rt_mutex_unlock(&n->w->turn);
}

/* ---- the runner -------------------------------------------------------------------------- */

static bool few; /* a tenth of the seeds */

static void run_seeds(unsigned nodes, const struct linear_model *model,
	void (*choose)(struct action *a))
{
	struct world *w = (struct world *)calloc(1, sizeof(*w));
	uint64_t seeds = seeds_count(few ? MAX(SEEDS / 10, 1) : SEEDS);
	struct rt_sim_options o = {.time_limit_ns = 600ull * 1000000000};
	uint64_t overlapped = 0;

	assert_non_null(w);
	for (uint64_t seed = seeds_first(); seeds--; seed++) {
		memset(w, 0, sizeof(*w));
		memset(&shared, 0, sizeof(shared));
		w->nodes = seeds_nodes(nodes, seed);
		w->steps = model == &log_model ? 3 : model == &names_model ? 4 : ROUNDS;
		if (w->nodes > 5) /* as many operations in all */
			w->steps = MAX(w->steps / 2, 2u);
		w->work = rounds_work;
		w->check = rounds_check;
		shared.model = model;
		shared.choose = choose;
		assert_int_equal(rt_sim_run(seed, &o, run_world, w), 0);
		overlapped += shared.overlapped;
	}
	print_message("%" PRIu64 " operations overlapped others\n", overlapped);
	assert_true(overlapped > 0);
	free(w);
}

static void names_of_two_nodes(void **state)
{
	run_seeds(2, &names_model, choose_name);
}

static void names_of_three_nodes(void **state)
{
	run_seeds(3, &names_model, choose_name);
}

static void a_file_of_two_nodes(void **state)
{
	run_seeds(2, &file_model, choose_file);
}

static void a_file_of_three_nodes(void **state)
{
	run_seeds(3, &file_model, choose_file);
}

static void appends_of_two_nodes(void **state)
{
	run_seeds(2, &log_model, choose_log);
}

static void appends_of_three_nodes(void **state)
{
	run_seeds(3, &log_model, choose_log);
}

static void names_and_files_of_five_and_eight_nodes(void **state)
{
	few = true;
	for (unsigned nodes = 5; nodes <= 8; nodes += 3) {
		run_seeds(nodes, &names_model, choose_name);
		run_seeds(nodes, &file_model, choose_file);
		run_seeds(nodes, &log_model, choose_log);
	}
	few = false;
}

/* The judge itself: what could not be is found out. */
static void the_check_refuses_what_cannot_be(void **state)
{
	struct action write = {.kind = FILE_WRITE, .value = 5, .result = VALUE_BYTES};
	struct action early = {.kind = FILE_READ, .value = 5, .result = VALUE_BYTES};
	struct action late = {.kind = FILE_READ};
	struct linear_op ops[] = {{1, 4, &write}, {2, 3, &early}, {5, 6, &late}};
	struct file_state s = {0};
	uint64_t deepest;

	/* seen while it was written, and gone when it was */
	assert_false(linear_check(&file_model, ops, 3, &s, &deepest));
	assert_int_equal(__builtin_popcountll(deepest), 2);
	late = early;
	assert_true(linear_check(&file_model, ops, 3, &s, &deepest));
	assert_int_equal(s.value[0], 5);
	/* not seen any more, though it was before */
	s = (struct file_state){0};
	early.result = 0;
	ops[1] = (struct linear_op){5, 6, &early};
	ops[2] = (struct linear_op){2, 3, &late};
	assert_false(linear_check(&file_model, ops, 3, &s, &deepest));
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_check_refuses_what_cannot_be),
		cmocka_unit_test(names_of_two_nodes),
		cmocka_unit_test(names_of_three_nodes),
		cmocka_unit_test(a_file_of_two_nodes),
		cmocka_unit_test(a_file_of_three_nodes),
		cmocka_unit_test(appends_of_two_nodes),
		cmocka_unit_test(appends_of_three_nodes),
		cmocka_unit_test(names_and_files_of_five_and_eight_nodes),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
