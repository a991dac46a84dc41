/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A depth-first search over what may come next: an operation that began before any other
 * that is left had ended. A set of operations done, with the state that they led to, is
 * looked at once.
 */
#include <stdlib.h>
#include <string.h>

#include "engine/common/base.h"
#include "tests/sim/linear.h"

struct tried {
	uint64_t done, hash; /* done 0: a free place */
};

struct search {
	const struct linear_model *model;
	const struct linear_op *ops;
	unsigned count;
	uint64_t deepest;
	struct tried *tried;
	size_t places, used; /* places: a power of two */
	uint8_t *next;       /* states, by depth */
};

static uint64_t hash_bytes(const void *bytes, size_t length)
{
	const uint64_t *words = (const uint64_t *)bytes;
	uint64_t h = 0xcbf29ce484222325ull;

	for (size_t i = 0; i < length / 8; i++)
		h = ((h ^ words[i]) * 0x9e3779b97f4a7c15ull) ^ h >> 29;
	return h ^ h >> 32;
}

static struct tried *tried_place(struct search *s, uint64_t done, uint64_t hash)
{
	size_t at = (done * 0x9e3779b97f4a7c15ull ^ hash) & (s->places - 1);

	while (s->tried[at].done &&
		(s->tried[at].done != done || s->tried[at].hash != hash))
		at = (at + 1) & (s->places - 1);
	return &s->tried[at];
}

static void tried_grow(struct search *s)
{
	struct tried *old = s->tried;
	size_t places = s->places;

	s->places = places ? 2 * places : 1024;
	s->tried = (struct tried *)calloc(s->places, sizeof(*s->tried));
	WEFT_ASSERT(s->tried);
	for (size_t i = 0; i < places; i++)
		if (old[i].done)
			*tried_place(s, old[i].done, old[i].hash) = old[i];
	free(old);
}

/* Was it tried? It is, from now on. */
static bool tried_before(struct search *s, uint64_t done, const void *state)
{
	uint64_t hash = hash_bytes(state, s->model->state_bytes);
	struct tried *place;

	if (2 * s->used >= s->places)
		tried_grow(s);
	place = tried_place(s, done, hash);
	if (place->done)
		return true;
	*place = (struct tried){done, hash};
	s->used++;
	return false;
}

/* The time at which the first of what is left had ended. */
static uint64_t first_end(const struct search *s, uint64_t done)
{
	uint64_t first = UINT64_MAX;

	for (unsigned i = 0; i < s->count; i++)
		if (!(done >> i & 1) && !s->ops[i].lost)
			first = MIN(first, s->ops[i].ended);
	return first;
}

/* Too late for what was lost before something that was done began. */
static bool is_past(const struct search *s, uint64_t done, const struct linear_op *op)
{
	for (unsigned i = 0; op->lost && i < s->count; i++)
		if (done >> i & 1 && s->ops[i].began > op->ended)
			return true;
	return false;
}

static bool search_from(struct search *s, uint64_t done, void *state);

/* All that follows from doing this one next, in each way. */
static bool search_with(struct search *s, uint64_t done, unsigned i, void *state)
{
	const struct linear_model *m = s->model;
	const struct linear_op *op = &s->ops[i];
	uint64_t with = done | 1ull << i;
	unsigned ways = m->ways ? m->ways(op->op, state) : 1;
	uint8_t *next = s->next + __builtin_popcountll(done) * m->state_bytes;

	for (unsigned way = 0; way < ways; way++) {
		memcpy(next, state, m->state_bytes);
		if (!m->step(op->op, way, next) || tried_before(s, with, next) ||
			!search_from(s, with, next))
			continue;
		memcpy(state, next, m->state_bytes);
		return true;
	}
	return false;
}

static bool search_from(struct search *s, uint64_t done, void *state)
{
	uint64_t first = first_end(s, done);

	if (first == UINT64_MAX)
		return true;
	if (__builtin_popcountll(done) > __builtin_popcountll(s->deepest))
		s->deepest = done;
	for (unsigned i = 0; i < s->count; i++)
		if (!(done >> i & 1) && s->ops[i].began <= first &&
			!is_past(s, done, &s->ops[i]) && search_with(s, done, i, state))
			return true;
	return false;
}

bool linear_check(const struct linear_model *m, const struct linear_op *ops,
	unsigned count, void *state, uint64_t *deepest)
{
	struct search s = {.model = m, .ops = ops, .count = count};
	bool found;

	WEFT_ASSERT(count <= LINEAR_OPS_MAX && m->state_bytes <= LINEAR_STATE_MAX &&
		    m->state_bytes % 8 == 0);
	s.next = (uint8_t *)calloc(count + 1, m->state_bytes);
	WEFT_ASSERT(s.next);
	found = search_from(&s, 0, state);
	free(s.next);
	free(s.tried);
	*deepest = s.deepest;
	return found;
}
