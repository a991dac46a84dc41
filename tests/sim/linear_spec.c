/* SPDX-License-Identifier: Apache-2.0 */
#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/common/base.h"
#include "tests/sim/linear_spec.h"

/* What came back; nobody knows it of what was lost. */
static bool answers(const struct action *a, int result)
{
	return a->lost || a->result == result;
}

/* ---- names ------------------------------------------------------------------------------- */

static struct {
	uint64_t ino[UNKNOWN_MAX];
	unsigned count;
} unknown;

static uint8_t *links_of(struct names_state *s, uint64_t ino)
{
	for (unsigned i = 0; i < s->inodes; i++)
		if (s->ino[i] == ino)
			return &s->links[i];
	return NULL;
}

static void links_new(struct names_state *s, uint64_t ino)
{
	unsigned i = (unsigned)s->inodes++;

	WEFT_ASSERT(i < INODES_MAX);
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
		return answers(a, -ENOENT);
	if (a->flags == RENAME_NOREPLACE && to)
		return answers(a, -EEXIST);
	if (!answers(a, 0))
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
	uint8_t *links = links_of(s, a->ino);

	if (!links || !*links)
		return answers(a, -ENOENT) || (s->slot[a->to] && answers(a, -EEXIST));
	if (s->slot[a->to])
		return answers(a, -EEXIST);
	if (!answers(a, 0))
		return false;
	s->slot[a->to] = a->ino;
	++*links;
	return true;
}

/* Of a lost one nobody knows the inode: one that was seen, or one that was not. */
static uint64_t created(const struct action *a, unsigned way)
{
	if (!a->lost || a->ino)
		return a->ino;
	return way < unknown.count ? unknown.ino[way]
				   : UINT64_MAX - a->node * SPEC_TASKS - a->task;
}

static bool step_create(const struct action *a, unsigned way, struct names_state *s)
{
	uint64_t ino = created(a, way);

	if (s->slot[a->at])
		return answers(a, -EEXIST);
	if (!answers(a, 0) || links_of(s, ino))
		return false;
	s->slot[a->at] = ino;
	links_new(s, ino);
	return true;
}

static bool names_step(const void *op, unsigned way, void *state)
{
	const struct action *a = (const struct action *)op;
	struct names_state *s = (struct names_state *)state;
	const uint8_t *links;

	switch (a->kind) {
	case NAME_LOOKUP:
		if (!s->slot[a->at])
			return a->result == -ENOENT;
		return !a->result && a->ino == s->slot[a->at];
	case NAME_CREATE:
		return step_create(a, way, s);
	case NAME_UNLINK:
		if (!s->slot[a->at])
			return answers(a, -ENOENT);
		slot_clear(s, a->at);
		return answers(a, 0);
	case NAME_LINK:
		return step_link(a, s);
	case NAME_RENAME:
		return step_rename(a, s);
	case NAME_LINKS:
		links = links_of(s, a->ino);
		if ((!links || !*links) && a->result == -ENOENT)
			return true; /* reclaimed, or soon */
		/* one that a lost operation has made may have been unlinked, or not made */
		return !a->result && a->value == (links ? *links : 0);
	default:
		return false;
	}
}

static unsigned names_ways(const void *op, const void *state)
{
	const struct action *a = (const struct action *)op;

	return a->kind == NAME_CREATE && a->lost && !a->ino ? unknown.count + 1 : 1;
}

const struct linear_model names_model = {
	sizeof(struct names_state), names_step, names_ways};

/* ---- bytes --------------------------------------------------------------------------------- */

static bool step_cut(const struct action *a, struct file_state *s)
{
	s->size = (uint64_t)a->at * BLOCK_BYTES;
	for (unsigned i = a->at; i < BLOCKS; i++)
		s->value[i] = 0;
	return answers(a, 0);
}

static bool file_step(const void *op, unsigned way, void *state)
{
	const struct action *a = (const struct action *)op;
	struct file_state *s = (struct file_state *)state;
	uint64_t at = (uint64_t)a->at * BLOCK_BYTES;

	switch (a->kind) {
	case FILE_READ:
		if (s->size <= at)
			return a->result == 0;
		return a->result == VALUE_BYTES && a->value == s->value[a->at];
	case FILE_WRITE:
		s->size = MAX(s->size, at + VALUE_BYTES);
		s->value[a->at] = a->value;
		return answers(a, VALUE_BYTES);
	case FILE_CUT:
		return step_cut(a, s);
	case FILE_SIZE:
		return !a->result && a->value == s->size;
	default:
		return false;
	}
}

const struct linear_model file_model = {sizeof(struct file_state), file_step, NULL};

static bool log_step(const void *op, unsigned way, void *state)
{
	const struct action *a = (const struct action *)op;
	struct log_state *s = (struct log_state *)state;

	switch (a->kind) {
	case LOG_APPEND:
		WEFT_ASSERT(s->records < RECORDS);
		s->value[s->records++] = a->value;
		return answers(a, VALUE_BYTES);
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

const struct linear_model log_model = {sizeof(struct log_state), log_step, NULL};

/* ---- locks --------------------------------------------------------------------------------- */

static unsigned owner_of(unsigned node, unsigned task)
{
	return (node - 1) * SPEC_TASKS + task;
}

static bool in_the_way(unsigned held, unsigned wanted)
{
	return held && wanted && (held == LOCK_ALONE || wanted == LOCK_ALONE);
}

/* In the places that *a names, for it. */
static bool held_against(
	const struct locks_state *s, const struct action *a, unsigned owner)
{
	for (unsigned i = a->at; i <= a->to; i++)
		if (in_the_way(s->range[owner][i], a->flags))
			return true;
	return false;
}

static bool range_conflicts(const struct locks_state *s, const struct action *a)
{
	unsigned self = owner_of(a->node, a->task);

	for (unsigned i = 0; i < OWNERS; i++)
		if (i != self && held_against(s, a, i))
			return true;
	return false;
}

static bool whole_conflicts(const struct locks_state *s, const struct action *a)
{
	unsigned self = owner_of(a->node, a->task);

	for (unsigned i = 0; i < OWNERS; i++)
		if (i != self && in_the_way(s->whole[i], a->flags))
			return true;
	return false;
}

/* What a node had that has just returned may be in the way still, of others than itself. */
static bool may_be_refused(
	const struct locks_state *s, const struct action *a, bool conflict)
{
	return conflict || (s->returned & ~(1ull << a->node));
}

static bool step_lock(const struct action *a, struct locks_state *s)
{
	bool conflict = range_conflicts(s, a);

	if (a->lost && conflict)
		return true;
	switch (a->lost ? 0 : a->result) {
	case 0:
		memset(&s->range[owner_of(a->node, a->task)][a->at], (int)a->flags,
			a->to + 1 - a->at);
		return !conflict;
	case -EAGAIN:
		return a->kind == LOCK_TRY && may_be_refused(s, a, conflict);
	case -EDEADLK:
		return a->kind == LOCK_WAIT && may_be_refused(s, a, conflict);
	case -EINTR: /* the test has told it so */
		return a->kind == LOCK_WAIT;
	default:
		return false;
	}
}

/* One of another type goes first, also when it then fails (flock(2)). */
static bool step_flock(const struct action *a, struct locks_state *s)
{
	bool conflict = whole_conflicts(s, a);
	uint8_t *own = &s->whole[owner_of(a->node, a->task)];

	if (*own != a->flags)
		*own = LOCK_FREE;
	if (a->lost && conflict)
		return true;
	switch (a->lost ? 0 : a->result) {
	case 0:
		*own = (uint8_t)a->flags;
		return !conflict;
	case -EAGAIN:
		return a->kind == LOCK_FLOCK && may_be_refused(s, a, conflict);
	case -EINTR:
		return a->kind == LOCK_FLOCK_WAIT;
	default:
		return false;
	}
}

/* Does the owner have what was found? */
static bool is_found(const struct locks_state *s, const struct action *a, unsigned owner)
{
	if (owner == owner_of(a->node, a->task) || !held_against(s, a, owner) ||
		a->found_at > a->to || a->found_to < a->at)
		return false;
	/* said of this node's own alone */
	if (a->found_by !=
		(owner / SPEC_TASKS + 1 == a->node ? owner % SPEC_TASKS + 1 : 0))
		return false;
	for (unsigned i = a->found_at; i <= a->found_to; i++)
		if (s->range[owner][i] != a->found)
			return false;
	return true;
}

static bool step_test(const struct action *a, const struct locks_state *s)
{
	if (a->result)
		return false;
	if (a->found == LOCK_FREE)
		return !range_conflicts(s, a);
	for (unsigned i = 0; i < OWNERS; i++)
		if (is_found(s, a, i))
			return true;
	return !a->found_by && may_be_refused(s, a, false);
}

static void locks_forget(struct locks_state *s, unsigned node)
{
	for (unsigned i = 0; i < SPEC_TASKS; i++) {
		memset(s->range[owner_of(node, i)], LOCK_FREE, LOCK_PLACES);
		s->whole[owner_of(node, i)] = LOCK_FREE;
	}
}

static bool locks_step(const void *op, unsigned way, void *state)
{
	const struct action *a = (const struct action *)op;
	struct locks_state *s = (struct locks_state *)state;

	switch (a->kind) {
	case LOCK_TRY:
	case LOCK_WAIT:
		return step_lock(a, s);
	case LOCK_FLOCK:
	case LOCK_FLOCK_WAIT:
		return step_flock(a, s);
	case LOCK_TEST:
		return step_test(a, s);
	case LOCK_CLOSE:
		memset(s->range[owner_of(a->node, a->task)], LOCK_FREE, LOCK_PLACES);
		return answers(a, 0);
	case NODE_CRASH: /* what it had is nobody else's until it is known to be over */
		return true;
	case NODE_RETURN:
		for (unsigned node = 1; node <= SPEC_NODES; node++)
			if (a->nodes >> node & 1)
				locks_forget(s, node);
		s->returned |= a->nodes;
		return true;
	case NODE_HEARD:
		s->returned = 0;
		return true;
	default:
		return false;
	}
}

const struct linear_model locks_model = {sizeof(struct locks_state), locks_step, NULL};

/* ---- actions ------------------------------------------------------------------------------- */

bool action_changes(enum kind kind)
{
	switch (kind) {
	case NAME_LOOKUP:
	case NAME_LINKS:
	case FILE_READ:
	case FILE_SIZE:
	case LOG_READ:
	case LOG_SIZE:
	case LOCK_TEST:
		return false;
	default:
		return true;
	}
}

/* Of the directories that it changes: bits. */
static unsigned directories(const struct action *a)
{
	unsigned at = 1u << a->at % 2, to = 1u << a->to % 2;

	return a->kind == NAME_RENAME ? at | to : a->kind == NAME_LINK ? to : at;
}

bool action_covered(const struct action *a, const struct action *by)
{
	return a->kind > NAME_KINDS || !(directories(a) & ~directories(by));
}

void action_print(const struct action *a)
{
	static const char *const names[] = {"look up", "create", "unlink", "link",
		"rename", "links", "", "read", "write", "cut", "size", "", "append",
		"read record", "records", "", "lock", "lock, wait", "test lock", "flock",
		"flock, wait", "close", "", "CRASH", "RETURN", "HEARD"};

	_Static_assert(ARRAY_SIZE(names) == NODE_HEARD + 1, "a name for each");
	if (a->kind > LOCK_KINDS) {
		fprintf(stderr, "%s:", names[a->kind]);
		for (unsigned node = 1; node <= SPEC_NODES; node++)
			if (a->nodes >> node & 1)
				fprintf(stderr, " node %u", node);
		fprintf(stderr, "\n");
		return;
	}
	fprintf(stderr,
		"node %u.%u: %-11s at %u to %u flags %u ino %" PRIu64 " value %" PRIu64,
		a->node, a->task, names[a->kind], a->at, a->to, a->flags, a->ino,
		a->value);
	if (a->kind == LOCK_TEST && a->found)
		fprintf(stderr, " found %u at %u to %u by %u", a->found, a->found_at,
			a->found_to, a->found_by);
	if (a->lost)
		fprintf(stderr, ": lost\n");
	else
		fprintf(stderr, ": %d%s\n", a->result, a->risked ? ", not durable" : "");
}

/* ---- crashes --------------------------------------------------------------------------- */

/* Now, then what it may be after the crash: in order, each one once. */
struct lossy_state {
	uint64_t count;
	uint8_t state[];
};

static const struct linear_model *inner;

static uint8_t *state_at(struct lossy_state *s, uint64_t i)
{
	return s->state + i * inner->state_bytes;
}

static void after_add(struct lossy_state *s, const void *state)
{
	size_t bytes = inner->state_bytes;
	uint64_t i = 1;

	while (i <= s->count && memcmp(state_at(s, i), state, bytes) < 0)
		i++;
	if (i <= s->count && !memcmp(state_at(s, i), state, bytes))
		return;
	WEFT_ASSERT(s->count < AFTER_MAX);
	memmove(state_at(s, i + 1), state_at(s, i), (s->count + 1 - i) * bytes);
	memcpy(state_at(s, i), state, bytes);
	s->count++;
}

/*
 * Bytes in new pages go to the disk by themselves: all that is left may be the size. An append
 * to a page that the file has is whole, or nothing.
 */
static void after_half(struct lossy_state *s, const struct action *a, const void *old)
{
	union {
		struct file_state file;
		struct log_state log;
	} half;

	if (a->kind != FILE_WRITE && a->kind != LOG_APPEND)
		return;
	memcpy(&half, old, inner->state_bytes);
	if (a->kind == FILE_WRITE)
		half.file.size =
			MAX(half.file.size, (uint64_t)a->at * BLOCK_BYTES + VALUE_BYTES);
	else if (!half.log.records)
		half.log.records = 1;
	after_add(s, &half);
}

/* Each of the states that there were, with the operation done to it; or without, too. */
static void after_each(struct lossy_state *s, const struct action *a, unsigned way)
{
	static uint64_t old[AFTER_MAX][LINEAR_STATE_MAX / 8 / AFTER_MAX];
	uint64_t count = s->count;

	for (uint64_t i = 1; i <= count; i++)
		memcpy(old[i - 1], state_at(s, i), inner->state_bytes);
	memset(state_at(s, 1), 0, count * inner->state_bytes);
	s->count = 0;
	for (uint64_t i = 0; i < count; i++) {
		if (a->lost || a->risked) {
			after_add(s, old[i]);
			after_half(s, a, old[i]);
		}
		if (inner->step(a, way, old[i]))
			after_add(s, old[i]);
	}
}

static bool lossy_crash(struct lossy_state *s, unsigned way)
{
	if (s->count)
		memcpy(state_at(s, 0), state_at(s, way + 1), inner->state_bytes);
	memset(state_at(s, 1), 0, s->count * inner->state_bytes);
	s->count = 0;
	return true;
}

static bool lossy_step(const void *op, unsigned way, void *state)
{
	const struct action *a = (const struct action *)op;
	struct lossy_state *s = (struct lossy_state *)state;
	uint64_t before[LINEAR_STATE_MAX / 8 / AFTER_MAX];

	if (a->kind == NODE_CRASH)
		return lossy_crash(s, way);
	if (a->kind > NODE_CRASH)
		return true;
	memcpy(before, state_at(s, 0), inner->state_bytes);
	if (!inner->step(a, way, state_at(s, 0)))
		return false;
	if (!memcmp(before, state_at(s, 0), inner->state_bytes))
		return true;
	if ((a->lost || a->risked) && !s->count)
		after_add(s, before);
	after_each(s, a, way);
	return true;
}

static unsigned lossy_ways(const void *op, const void *state)
{
	const struct lossy_state *s = (const struct lossy_state *)state;

	if (((const struct action *)op)->kind == NODE_CRASH)
		return s->count ? (unsigned)s->count : 1;
	return inner->ways ? inner->ways(op, s->state) : 1;
}

struct linear_model lossy_model(const struct linear_model *of)
{
	inner = of;
	return (struct linear_model){
		sizeof(struct lossy_state) + (1 + AFTER_MAX) * of->state_bytes,
		lossy_step, lossy_ways};
}

void lossy_begin(const struct linear_model *of, const void *state, void *lossy)
{
	memset(lossy, 0, LINEAR_STATE_MAX);
	memcpy(((struct lossy_state *)lossy)->state, state, of->state_bytes);
}

void lossy_end(const struct linear_model *of, const void *lossy, void *state)
{
	memcpy(state, ((const struct lossy_state *)lossy)->state, of->state_bytes);
}

void lossy_unknown(const uint64_t *inos, unsigned count)
{
	WEFT_ASSERT(count <= UNKNOWN_MAX);
	memcpy(unknown.ino, inos, count * sizeof(*inos));
	unknown.count = count;
}
