/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compact records (engine/coherence/driver/record_compact.c). A record that may be compact is the
 * same after it is expanded, byte for byte. The exceptions mean nothing then, and are named here. So
 * a field that is added to the record fails here until it is kept, or keeps the record expanded, or
 * is named. A field that the compiler puts into padding is not tested.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <stdlib.h>

#include "engine/coherence/driver/driver_internal.h"

struct range {
	size_t at, bytes;
};

#define FIELD(f)                                                                         \
	{                                                                                \
		offsetof(struct page_record, f), sizeof(((struct page_record *)0)->f)                \
	}
#define HOLD(f)  FIELD(hold.f)
#define AFTER(f) (offsetof(struct page_record, f) + sizeof(((struct page_record *)0)->f))
#define BETWEEN(f, g)                                                                    \
	{                                                                                \
		AFTER(f), offsetof(struct page_record, g) - AFTER(f)                           \
	}
#define FROM_TO_END_OF(f)                                                                \
	{                                                                                \
		AFTER(f), sizeof(struct page_record) - AFTER(f)                                \
	}

/* Whose they are: the table's. What else they are is lost, and means nothing. */
static const struct range nothing[] = {
	FIELD(record),
	FIELD(row),
	FIELD(at.pid),
	FIELD(at.self),
	BETWEEN(at.home, pending),
	BETWEEN(reinstating, evicting),
	BETWEEN(entry.current, entry.copies),
	BETWEEN(entry.copies, entry.epoch),
	BETWEEN(entry.epoch, entry.holders),
	/* of a request or grant, of what is owed */
	HOLD(wanted),
	HOLD(granted),
	HOLD(pad1),
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
	FIELD(revoker_next),
	FIELD(awaiting_next),
	FIELD(awaiting_link),
	FIELD(awaiting_ns),
	FIELD(arrived_ns),
	/* go with fields that keep it expanded: refs, evicting */
	FIELD(revoking),
	FIELD(asked_evict),
	/* nothing was reported */
	FIELD(rebuild),
	FROM_TO_END_OF(rebuild),
};

static bool within(const struct range *r, size_t at)
{
	return at >= r->at && at < r->at + r->bytes;
}

static bool means_nothing(const struct page_record *p, size_t at)
{
	static const struct range report_void = FIELD(report_void);
	static const struct range entry = FIELD(entry);

	for (unsigned i = 0; i < ARRAY_SIZE(nothing); i++)
		if (within(&nothing[i], at))
			return true;
	if (!p->has_entry)
		return within(&entry, at) || within(&report_void, at);
	return p->entry.mode != HOME_REBUILDING && within(&report_void, at);
}

static bool may(const struct page_record *p)
{
	return !page_busy(p) && may_compact(p);
}

static uint64_t some(void)
{
	return (uint64_t)(unsigned)rand() << 32 ^ (unsigned)rand();
}

/* Nothing goes on with it; in all else as it may be. */
static void record_make(struct page_record *p, bool has_entry)
{
	memset(p, 0, sizeof(*p));
	p->deferred_end = &p->deferred;
	p->reinstating = NODE_NONE;
	p->at.home = (uint16_t)(some() % PAGE_NODES_MAX);
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
	p->entry.source = (uint16_t)some();
	p->entry.current = some() & 1;
	p->entry.copies = (uint16_t)some();
	p->entry.epoch = (uint32_t)some();
	p->entry.holders = some();
	p->entry.owing = some();
	p->entry.incarnation = some();
	p->entry.stored_incarnation = some();
	p->entry.stored_version = some();
}

static void check_as_it_was(const struct page_record *was, const struct page_record *is)
{
	for (size_t at = 0; at < sizeof(*was); at++)
		if (((const uint8_t *)was)[at] != ((const uint8_t *)is)[at] &&
			!means_nothing(was, at))
			fail_msg("byte %zu of the record is lost", at);
}

/* Makes it compact, and expands it again. */
static void check_compact(const struct page_record *p)
{
	struct page_compact_home r = {0};
	struct page_record expanded = {0};

	compact_from(&r.compact, p);
	compact_into(&expanded, &r.compact);
	check_as_it_was(p, &expanded);
}

static void a_compact_record_expands_as_it_was(void **state)
{
	struct page_record p;

	(void)state;
	for (unsigned i = 0; i < 4000; i++) {
		record_make(&p, i & 1);
		assert_true(may(&p));
		check_compact(&p);
	}
}

/* Each byte of the record, changed: either it is kept, or the record stays expanded. */
static void a_field_that_is_not_kept_keeps_it_expanded(void **state)
{
	unsigned expanded = 0, compact = 0;
	struct page_record p;

	(void)state;
	for (size_t at = 0; at < sizeof(p); at++) {
		for (unsigned i = 0; i < 40; i++) {
			record_make(&p, i & 1);
			if (means_nothing(&p, at))
				continue;
			((uint8_t *)&p)[at] ^= 1;
			if (!may(&p)) {
				expanded++;
				continue;
			}
			compact++;
			check_compact(&p);
		}
	}
	assert_true(expanded > 40 * 40 && compact > 40 * 40);
}

/* Of an entry that waits for reports nothing is known yet: as rebuild_begin leaves it. */
static void an_entry_being_rebuilt_expands_as_it_begins(void **state)
{
	struct page_compact_home r = {0};
	struct home_rebuild fresh;
	struct home_entry unused = {0};
	struct page_record p, expanded = {0};

	(void)state;
	record_make(&p, true);
	rebuild_begin(&p.entry, &p.rebuild);
	assert_true(may(&p));
	compact_from(&r.compact, &p);
	compact_into(&expanded, &r.compact);
	rebuild_begin(&unused, &fresh);
	assert_memory_equal(&expanded.rebuild, &fresh, sizeof(fresh));
	p.reported = true;
	assert_false(may(&p));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_compact_record_expands_as_it_was),
		cmocka_unit_test(a_field_that_is_not_kept_keeps_it_expanded),
		cmocka_unit_test(an_entry_being_rebuilt_expands_as_it_begins),
	};

	srand(1);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
