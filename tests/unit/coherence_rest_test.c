/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Records at rest (engine/coherence/cluster_rest.c): one that may rest wakes as it was, byte for
 * byte, but for what is named here as meaning nothing then. So a field that is added to the record
 * fails here until it is kept, or keeps the record awake, or is named; but for one that the compiler
 * puts where there was padding, which is not looked at.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

#include "engine/coherence/cluster_internal.h"

struct range {
	size_t at, bytes;
};

#define FIELD(f)                                                                         \
	{                                                                                \
		offsetof(struct dpage, f), sizeof(((struct dpage *)0)->f)                \
	}
#define HOLD(f)  FIELD(hold.f)
#define AFTER(f) (offsetof(struct dpage, f) + sizeof(((struct dpage *)0)->f))
#define BETWEEN(f, g)                                                                    \
	{                                                                                \
		AFTER(f), offsetof(struct dpage, g) - AFTER(f)                           \
	}
#define FROM_TO_END_OF(f)                                                                \
	{                                                                                \
		AFTER(f), sizeof(struct dpage) - AFTER(f)                                \
	}

/* Whose they are: the table's. What else they are is lost, and means nothing. */
static const struct range nothing[] = {
	FIELD(record),
	FIELD(row),
	FIELD(at.pid),
	FIELD(at.self),
	BETWEEN(at.home, wish),
	BETWEEN(reinstating, evicting),
	BETWEEN(entry.current, entry.copies),
	BETWEEN(entry.copies, entry.epoch),
	BETWEEN(entry.epoch, entry.holders),
	/* of a request or grant, of what is owed */
	HOLD(wanted),
	HOLD(granted),
	HOLD(pad2),
	HOLD(grant_epoch),
	HOLD(next_incarnation),
	HOLD(next_version),
	HOLD(logged),
	/* of the opening, of lists that it is not in, of times */
	FIELD(deferred_count),
	FIELD(stored_incarnation),
	FIELD(stored_version),
	FIELD(deferred_end),
	FIELD(giver_next),
	FIELD(easing_next),
	FIELD(easing_link),
	FIELD(easing_ns),
	FIELD(arrived_ns),
	/* go with what keeps it awake: refs, vacate, evicting */
	FIELD(giver),
	FIELD(vacate_owe),
	FIELD(asked_evict),
	/* nothing was reported */
	FIELD(rebuild),
	FROM_TO_END_OF(rebuild),
};

static bool within(const struct range *r, size_t at)
{
	return at >= r->at && at < r->at + r->bytes;
}

static bool means_nothing(const struct dpage *p, size_t at)
{
	static const struct range gone = FIELD(gone);
	static const struct range entry = FIELD(entry);

	for (unsigned i = 0; i < ARRAY_SIZE(nothing); i++)
		if (within(&nothing[i], at))
			return true;
	if (!p->has_entry)
		return within(&entry, at) || within(&gone, at);
	return p->entry.mode != HOME_REBUILDING && within(&gone, at);
}

static bool may(const struct dpage *p)
{
	return !page_busy(p) && rest_may(p);
}

static uint64_t some(void)
{
	return (uint64_t)(unsigned)rand() << 32 ^ (unsigned)rand();
}

/* Nothing goes on with it; in all else as it may be. */
static void record_make(struct dpage *p, bool has_entry)
{
	memset(p, 0, sizeof(*p));
	p->deferred_end = &p->deferred;
	p->reinstating = NODE_NONE;
	p->at.home = (uint8_t)(some() % PAGE_NODES_MAX);
	p->got = (uint8_t)(some() % 4);
	p->unmade = some() & 1;
	p->flush_to = some();
	p->hold.hold = (uint8_t)(some() % (RIGHT_EXCLUSIVE + 1));
	p->hold.flags = (uint16_t)some();
	p->hold.served = (uint16_t)some();
	p->hold.epoch = (uint32_t)some();
	p->hold.request = (uint32_t)some();
	p->hold.place = some();
	p->hold.incarnation = some();
	p->hold.version = some();
	p->has_entry = has_entry;
	if (!has_entry)
		return;
	p->may = some();
	p->changed = some();
	p->entry.mode = (uint8_t)(some() % (HOME_REBUILDING + 1));
	p->entry.source = (uint8_t)some();
	p->entry.current = some() & 1;
	p->entry.copies = (uint16_t)some();
	p->entry.epoch = (uint32_t)some();
	p->entry.holders = some();
	p->entry.owing = some();
	p->entry.incarnation = some();
	p->entry.stored_incarnation = some();
	p->entry.stored_version = some();
}

static void check_as_it_was(const struct dpage *was, const struct dpage *is)
{
	for (size_t at = 0; at < sizeof(*was); at++)
		if (((const uint8_t *)was)[at] != ((const uint8_t *)is)[at] &&
			!means_nothing(was, at))
			fail_msg("byte %zu of the record is lost", at);
}

/* To rest, and awake again. */
static void check_rest(const struct dpage *p)
{
	struct page_rest_home r = {0};
	struct dpage woken = {0};

	rest_from(&r.rest, p);
	rest_into(&woken, &r.rest);
	check_as_it_was(p, &woken);
}

static void what_rests_wakes_as_it_was(void **state)
{
	struct dpage p;

	(void)state;
	for (unsigned i = 0; i < 4000; i++) {
		record_make(&p, i & 1);
		assert_true(may(&p));
		check_rest(&p);
	}
}

/* Each byte of the record, changed: either it is kept, or the record stays awake. */
static void what_is_not_kept_keeps_it_awake(void **state)
{
	unsigned awake = 0, rests = 0;
	struct dpage p;

	(void)state;
	for (size_t at = 0; at < sizeof(p); at++) {
		for (unsigned i = 0; i < 40; i++) {
			record_make(&p, i & 1);
			if (means_nothing(&p, at))
				continue;
			((uint8_t *)&p)[at] ^= 1;
			if (!may(&p)) {
				awake++;
				continue;
			}
			rests++;
			check_rest(&p);
		}
	}
	assert_true(awake > 40 * 40 && rests > 40 * 40);
}

/* Of an entry that waits for reports nothing is known yet: as rebuild_begin leaves it. */
static void what_is_being_rebuilt_wakes_as_it_begins(void **state)
{
	struct page_rest_home r = {0};
	struct home_rebuild fresh;
	struct home_entry unused = {0};
	struct dpage p, woken = {0};

	(void)state;
	record_make(&p, true);
	rebuild_begin(&p.entry, &p.rebuild);
	assert_true(may(&p));
	rest_from(&r.rest, &p);
	rest_into(&woken, &r.rest);
	rebuild_begin(&unused, &fresh);
	assert_memory_equal(&woken.rebuild, &fresh, sizeof(fresh));
	p.reported = true;
	assert_false(may(&p));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_rests_wakes_as_it_was),
		cmocka_unit_test(what_is_not_kept_keeps_it_awake),
		cmocka_unit_test(what_is_being_rebuilt_wakes_as_it_begins),
	};

	srand(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
