/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page protocol's price, in messages between nodes (docs/protocol.md, "How many
 * messages"); what a peer must not say; and the states that only a certain order of events
 * leads to.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>

#define WORLD_NODES 8
#define WORLD_PAGES 2
#define WORLD_LINK  16
#include "tests/model/world.h"

static struct world w;

static unsigned total(void)
{
	unsigned n = 0;

	for (unsigned i = 0; i < ARRAY_SIZE(sent); i++)
		n += (unsigned)sent[i];
	return n;
}

static void begin(unsigned nodes)
{
	failure[0] = '\0';
	world_init(&w, nodes, 2);
	memset(sent, 0, sizeof(sent));
	stored = 0;
}

static void step(unsigned kind, unsigned a, unsigned b)
{
	struct step s = {(uint8_t)kind, (uint8_t)a, (uint8_t)b};

	assert_true(world_can(&w, s));
	world_do(&w, s);
	world_check(&w);
	if (failure[0])
		fail_msg("%s", failure);
}

/* Delivers until nothing is on its way; what arrives is used. */
static void settle(void)
{
	bool more = true;

	while (more) {
		more = false;
		for (unsigned a = 0; a < w.nodes; a++) {
			for (unsigned b = 0; b < w.nodes; b++)
				while (w.link[a][b].count) {
					step(STEP_DELIVER, a, b);
					more = true;
				}
			for (unsigned p = 0; p < w.pages; p++)
				if (w.page[p].at[a].hold.phase == PHASE_ARRIVED) {
					step(STEP_USE, a, p);
					more = true;
				}
		}
		for (unsigned p = 0; p < w.pages; p++)
			if (w.page[p].pulling) {
				step(STEP_PULLED, 0, p);
				more = true;
			}
	}
	world_check_still(&w);
	assert_string_equal(failure, "");
}

/* Messages that this costs when nothing else is under way. */
static unsigned price(unsigned kind, unsigned node, unsigned page)
{
	unsigned before = total();

	step(kind, node, page);
	settle();
	return total() - before;
}

static void a_miss_costs_a_request_and_a_grant(void **state)
{
	begin(4);
	assert_int_equal(price(STEP_READ, 1, 0), 2);
	assert_int_equal(price(STEP_CHANGE, 2, 1), 2);
}

static void a_miss_at_home_costs_nothing(void **state)
{
	begin(4);
	assert_int_equal(price(STEP_READ, 0, 0), 0);
	assert_int_equal(price(STEP_CHANGE, 0, 0), 0);
	assert_int_equal(price(STEP_CHANGE, 1, 1), 0);
}

static void what_is_owned_costs_nothing(void **state)
{
	begin(3);
	assert_int_equal(price(STEP_CHANGE, 2, 0), 2);
	assert_int_equal(price(STEP_TOUCH, 2, 0), 0);
	assert_int_equal(price(STEP_TOUCH, 2, 0), 0);
	assert_true(frame_may_read(&w, 2, 0));
}

static void an_exclusive_conflict_costs_four(void **state)
{
	begin(4);
	assert_int_equal(price(STEP_CHANGE, 1, 0), 2);
	assert_int_equal(price(STEP_CHANGE, 2, 0), 4);
	assert_int_equal(price(STEP_READ, 3, 0), 4);
	assert_int_equal(
		price(STEP_READ, 1, 0), 4); /* the home has no image: the source */
	assert_int_equal(w.page[0].at[2].hold.hold, RIGHT_SOURCE);
}

static void a_conflict_with_the_home_costs_two(void **state)
{
	begin(4);
	assert_int_equal(price(STEP_CHANGE, 0, 0), 0);
	assert_int_equal(price(STEP_CHANGE, 1, 0), 2);
	assert_int_equal(price(STEP_CHANGE, 0, 0), 2);
	assert_int_equal(price(STEP_READ, 2, 0), 2);
	assert_int_equal(price(STEP_READ, 3, 0), 2);
}

static void k_sharers_cost_two_each(void **state)
{
	for (unsigned k = 1; k < WORLD_NODES - 1; k++) {
		begin(WORLD_NODES);
		for (unsigned n = 1; n <= k; n++)
			price(STEP_READ, n, 0);
		assert_int_equal(price(STEP_CHANGE, k + 1, 0), 2 + 2 * k);

		begin(WORLD_NODES);
		for (unsigned n = 1; n <= k + 1; n++)
			price(STEP_READ, n, 0);
		assert_int_equal(price(STEP_CHANGE, 1, 0), 2 + 2 * k); /* an upgrade */

		begin(WORLD_NODES); /* dirty: the image comes from one of them */
		price(STEP_CHANGE, 1, 0);
		for (unsigned n = 2; n <= k; n++)
			price(STEP_READ, n, 0);
		assert_int_equal(price(STEP_CHANGE, k + 1, 0), 2 + 2 * k);

		begin(WORLD_NODES); /* the home among them, then the home against them */
		price(STEP_READ, 0, 0);
		for (unsigned n = 1; n <= k; n++)
			price(STEP_READ, n, 0);
		assert_int_equal(price(STEP_CHANGE, k + 1, 0), 2 + 2 * k);
		for (unsigned n = 1; n <= k; n++)
			price(STEP_READ, n, 0);
		assert_int_equal(price(STEP_CHANGE, 0, 0), 2 * (k + 1));
	}
}

static void leaving_costs_one_or_two(void **state)
{
	begin(4);
	price(STEP_READ, 1, 0);
	assert_int_equal(price(STEP_EVICT, 1, 0), 1);
	price(STEP_CHANGE, 2, 0);
	assert_int_equal(price(STEP_EVICT, 2, 0), 2);
	assert_int_equal(w.page[0].at[0].hold.hold, RIGHT_EXCLUSIVE); /* taken over */
	assert_int_equal(w.page[0].at[2].owed.version, 2);
	assert_int_equal(price(STEP_READ, 3, 0), 2);
}

/* Its image is dirty, or the store's. Not while one that has read it, or owes it, may come for more. */
static void what_others_let_go_of_is_its_homes_alone(void **state)
{
	for (unsigned dirty = 0; dirty < 2; dirty++) {
		const struct step alone = {STEP_ALONE, 0, 0};

		begin(4);
		price(dirty ? STEP_CHANGE : STEP_READ, 0, 0);
		price(STEP_READ, 1, 0);
		price(STEP_READ, 2, 0);
		price(STEP_EVICT, 1, 0);
		assert_false(world_can(&w, alone));
		price(STEP_EVICT, 2, 0);
		assert_int_equal(price(STEP_ALONE, 0, 0), 0);
		assert_int_equal(w.page[0].at[0].hold.hold, RIGHT_EXCLUSIVE);
		assert_int_equal(price(STEP_TOUCH, 0, 0), 0);
		assert_int_equal(price(STEP_READ, 3, 0), 2);
		assert_int_equal(w.page[0].at[3].hold.version, 2 + dirty);
	}
	begin(3); /* what node 1 has changed it owes, though the home has changed it since */
	price(STEP_CHANGE, 1, 0);
	price(STEP_READ, 0, 0);
	price(STEP_CHANGE, 0, 0);
	price(STEP_READ, 2, 0);
	price(STEP_EVICT, 2, 0);
	assert_false(world_can(&w, (struct step){STEP_ALONE, 0, 0}));
}

/* Who gives only the right to change it back reads on, and others have it from the home. */
static void a_downgrade_costs_two(void **state)
{
	begin(4);
	price(STEP_CHANGE, 1, 0);
	step(STEP_SHIP, 1, 0);
	settle();
	step(STEP_PERSISTED, 0, 0);
	settle();
	assert_int_equal(price(STEP_DOWNGRADE, 1, 0), 2);
	assert_int_equal(w.page[0].at[1].hold.hold, RIGHT_SHARED);
	assert_int_equal(w.page[0].at[1].hold.version, 2);
	assert_int_equal(w.page[0].entry.mode, HOME_SHARED);
	assert_true(w.page[0].entry.current && !w.page[0].entry.owing);
	assert_int_equal(price(STEP_READ, 2, 0), 4); /* node 1 gives it, and stays a sharer */
	assert_int_equal(w.page[0].at[1].hold.hold, RIGHT_SHARED);
	assert_int_equal(price(STEP_CHANGE, 1, 0), 2 + 2);
}

/* Another was granted the page meanwhile: it stays exclusive until that one comes for it. */
static void a_downgrade_that_crosses_a_request_is_declined(void **state)
{
	begin(3);
	price(STEP_CHANGE, 1, 0);
	step(STEP_SHIP, 1, 0);
	settle();
	step(STEP_PERSISTED, 0, 0);
	settle();
	step(STEP_CHANGE, 2, 0);
	step(STEP_DELIVER, 2, 0); /* the grant is on its way */
	step(STEP_DOWNGRADE, 1, 0);
	settle();
	assert_int_equal(w.page[0].at[1].hold.hold, RIGHT_NONE);
	assert_int_equal(w.page[0].at[2].hold.hold, RIGHT_EXCLUSIVE);
}

/* All sharers of a page have the same image. So none may be lost with the node that had it alone. */
static void who_drops_the_persisted_image_proves_it_the_newest(void **state)
{
	for (unsigned reader = 0; reader < 3; reader += 2) { /* the home, and a third node */
		begin(3);
		price(STEP_CHANGE, 1, 0);
		step(STEP_SHIP, 1, 0);
		settle();
		step(STEP_PERSISTED, 0, 0);
		settle();
		price(STEP_READ, reader, 0);
		assert_false(w.page[0].entry.current);
		price(STEP_EVICT, reader, 0);
		assert_true(w.page[0].entry.current && !w.page[0].entry.owing);
		assert_true(w.page[0].entry.holders == node_bit(1));
		assert_int_equal(price(STEP_READ, reader, 0), reader ? 4 : 0);
	}
	begin(3); /* changed since */
	price(STEP_CHANGE, 1, 0);
	step(STEP_SHIP, 1, 0);
	settle();
	step(STEP_PERSISTED, 0, 0);
	settle();
	price(STEP_TOUCH, 1, 0);
	price(STEP_READ, 2, 0);
	price(STEP_EVICT, 2, 0);
	assert_false(w.page[0].entry.current);
}

/* ---- from a sharer's memory ------------------------------------------------------------- */

static unsigned long asked(enum page_message_type type)
{
	return sent[type - PAGE_MESSAGE_FIRST];
}

/* Each image is read from the store once, until no node has it. */
static void a_sharer_gives_an_image_that_its_home_has_only_stored(void **state)
{
	begin(4);
	assert_int_equal(price(STEP_READ, 1, 0), 2);
	assert_int_equal(price(STEP_READ, 2, 0), 4);
	assert_int_equal(price(STEP_READ, 3, 0), 4);
	assert_int_equal(w.page[0].at[3].hold.version, 1);
	assert_int_equal(asked(PAGE_COPY), 2);
	assert_int_equal(stored, 1);
	assert_int_equal(price(STEP_EVICT, 1, 0), 1); /* a DROP, as before */
	assert_int_equal(price(STEP_READ, 1, 0), 4);
	assert_int_equal(stored, 1);
	for (unsigned n = 1; n < 4; n++)
		price(STEP_EVICT, n, 0);
	assert_int_equal(price(STEP_READ, 2, 0), 2);
	assert_int_equal(stored, 2);
}

/* The next one after the requester, so that no sharer gives all. */
static void sharers_take_turns(void **state)
{
	begin(5);
	for (unsigned n = 1; n < 4; n++)
		price(STEP_READ, n, 0);
	step(STEP_READ, 4, 0);
	step(STEP_DELIVER, 4, 0);
	step(STEP_DELIVER, 0, 4);
	assert_int_equal(w.link[4][1].count, 1);
	settle();
	price(STEP_EVICT, 2, 0);
	step(STEP_READ, 2, 0);
	step(STEP_DELIVER, 2, 0);
	step(STEP_DELIVER, 0, 2);
	assert_int_equal(w.link[2][3].count, 1);
	settle();
	assert_int_equal(stored, 1);
}

/* The home's own frame is nearer. Its own request is its device's. */
static void a_home_that_has_the_image_gives_it(void **state)
{
	begin(4);
	price(STEP_READ, 1, 0);
	assert_int_equal(price(STEP_READ, 0, 0), 0);
	assert_int_equal(stored, 2);
	assert_int_equal(price(STEP_READ, 2, 0), 2);
	assert_int_equal(price(STEP_CHANGE, 3, 0), 2 + 2 * 2);
	assert_int_equal(stored, 2);
	assert_int_equal(asked(PAGE_COPY) + asked(PAGE_MOVE), 0);
}

/* It must tell the sharers anyway: the image comes without another message. */
static void a_writer_takes_the_image_from_a_sharer(void **state)
{
	begin(5);
	for (unsigned n = 1; n < 4; n++)
		price(STEP_READ, n, 0);
	assert_int_equal(price(STEP_CHANGE, 4, 0), 2 + 2 * 3);
	assert_int_equal(asked(PAGE_MOVE), 1);
	assert_int_equal(asked(PAGE_INVALIDATE), 2);
	assert_int_equal(stored, 1);
	begin(3);
	price(STEP_READ, 1, 0);
	assert_int_equal(price(STEP_OVERWRITE, 2, 0), 2 + 2); /* it needs no image */
	assert_int_equal(asked(PAGE_MOVE), 0);
}

/* Two messages more, and the store: the home has the image as long as the requester waits. */
static void a_sharer_may_drop_the_page_while_it_is_asked(void **state)
{
	static const uint8_t kinds[] = {STEP_READ, STEP_CHANGE};

	for (unsigned i = 0; i < ARRAY_SIZE(kinds); i++) {
		begin(3);
		price(STEP_READ, 1, 0);
		memset(sent, 0, sizeof(sent));
		step(kinds[i], 2, 0);
		step(STEP_DELIVER, 2, 0);
		step(STEP_EVICT, 1, 0);
		settle();
		assert_int_equal(asked(PAGE_DROP), 1);
		assert_int_equal(asked(PAGE_FETCH), 1);
		assert_int_equal(total(), 6 + 1);
		assert_int_equal(stored, 2);
		assert_int_equal(w.page[0].at[2].frame.image.version, 1 + i);
	}
}

/* Its request is older, and waits for the home alone. */
static void a_reader_waits_for_the_grant_of_a_reader_before_it(void **state)
{
	begin(3);
	step(STEP_READ, 1, 0);
	step(STEP_DELIVER, 1, 0); /* the image is read, and on its way */
	step(STEP_READ, 2, 0);
	step(STEP_DELIVER, 2, 0);
	step(STEP_DELIVER, 0, 2);
	step(STEP_DELIVER, 2, 1);
	assert_int_equal(w.page[0].at[1].deferred.count, 1);
	settle();
	assert_int_equal(total(), 2 + 4);
	assert_int_equal(stored, 1);
}

/* One dropped the page and came back while the other was on its way to it. */
static void two_sharers_that_are_sent_to_each_other_do_not_wait(void **state)
{
	begin(3);
	price(STEP_READ, 1, 0);
	step(STEP_READ, 2, 0);
	step(STEP_DELIVER, 2, 0);
	step(STEP_DELIVER, 0, 2); /* its COPY is under way to node 1 */
	step(STEP_EVICT, 1, 0);
	step(STEP_READ, 1, 0);
	step(STEP_DELIVER, 1, 0);
	step(STEP_DELIVER, 1, 0);
	step(STEP_DELIVER, 0, 1); /* and that of node 1 to node 2 */
	assert_int_equal(w.page[0].at[1].hold.need, node_bit(2));
	assert_int_equal(w.page[0].at[2].hold.need, node_bit(1));
	settle();
	assert_int_equal(w.page[0].at[1].hold.hold, RIGHT_SHARED);
	assert_int_equal(w.page[0].at[2].hold.hold, RIGHT_SHARED);
}

/* A sharer that is lost, or not heard, is not needed: the store has the image. */
static void a_sharer_that_the_reader_does_not_hear_is_not_asked(void **state)
{
	begin(4);
	price(STEP_READ, 1, 0);
	w.unconnected[2] = node_bit(1);
	assert_int_equal(price(STEP_READ, 2, 0), 2);
	assert_int_equal(stored, 2);
	w.unconnected[3] = node_bit(1);
	assert_int_equal(price(STEP_READ, 3, 0), 4);
	assert_int_equal(stored, 2);
}

/* A source stays until it may leave. A copy of the persisted image is not counted. */
static void a_source_gives_what_is_persisted_too(void **state)
{
	begin(5);
	price(STEP_CHANGE, 1, 0);
	price(STEP_READ, 2, 0);
	step(STEP_SHIP, 1, 0);
	settle();
	step(STEP_PERSISTED, 0, 0);
	settle();
	assert_true(w.page[0].entry.current);
	assert_int_equal(price(STEP_READ, 3, 0), 4);
	assert_int_equal(w.page[0].entry.copies, 1);
	assert_int_equal(w.page[0].at[1].hold.served, 1);
	assert_int_equal(price(STEP_CHANGE, 4, 0), 2 + 2 * 3);
	assert_int_equal(w.page[0].at[4].hold.version, 2);
	assert_int_equal(stored, 1); /* when node 1 got it */
}

/* The home has accepted the downgrade, and named the node as a sharer before it knows. */
static void an_ask_overtakes_the_answer_to_a_downgrade(void **state)
{
	begin(3);
	price(STEP_CHANGE, 1, 0);
	step(STEP_SHIP, 1, 0);
	settle();
	step(STEP_PERSISTED, 0, 0);
	settle();
	step(STEP_DOWNGRADE, 1, 0);
	step(STEP_DELIVER, 1, 0);
	step(STEP_READ, 2, 0);
	step(STEP_DELIVER, 2, 0);
	step(STEP_DELIVER, 0, 2);
	step(STEP_DELIVER, 2, 1);
	assert_int_equal(w.page[0].at[1].deferred.count, 1);
	settle();
	assert_int_equal(w.page[0].at[2].hold.version, 2);
	assert_int_equal(stored, 1); /* when node 1 got it */
}

static void a_sharer_that_could_not_read_the_image_gives_none(void **state)
{
	struct page_at at = {.pid = 0, .self = 1, .home = 0};
	static const struct {
		enum page_message_type type;
		uint32_t epoch;
	} asks[] = {{PAGE_COPY, 5}, {PAGE_MOVE, 6}};

	for (unsigned i = 0; i < ARRAY_SIZE(asks); i++) {
		struct page_hold h = {
			.hold = RIGHT_SHARED, .epoch = 5, .flags = HOLD_DAMAGED};
		struct page_message ask = {.type = (uint16_t)asks[i].type,
			.sender = 2,
			.epoch = asks[i].epoch,
			.flags = PAGE_CURRENT};
		struct page_actions out = {0};

		assert_int_equal(holder_on_ask(&h, &at, &ask, &out), 0);
		assert_int_equal(out.list[0].m.type, PAGE_GIVEN);
		assert_int_equal(out.list[0].m.flags, 0);
		assert_int_equal(out.list[0].image, IMAGE_NONE);
	}
}

/* Only where the home has said that it has the image, and once. */
static void an_image_may_be_missing_once(void **state)
{
	struct page_at at = {.pid = 0, .self = 1, .home = 0};
	struct page_message grant = {.type = PAGE_GRANT,
		.mode = PAGE_SHARED,
		.flags = PAGE_ASK_SOURCE,
		.source = 2,
		.place = node_bit(2),
		.epoch = 5};
	struct page_message given = {.type = PAGE_GIVEN, .sender = 2, .epoch = 5};

	for (unsigned current = 0; current < 2; current++) {
		struct page_hold h = {0};
		struct page_actions out = {0};

		grant.flags |= current ? PAGE_CURRENT : 0;
		given.sender = 2;
		assert_int_equal(
			requester_want(&h, &at, PAGE_SHARED, 0, 0, 0, 0, 0, &out), 0);
		assert_int_equal(requester_on_grant(&h, &at, &grant, &out), 0);
		out.count = 0;
		assert_int_equal(requester_on_given(&h, &at, &given, &out),
			current ? 0 : -EPROTO);
		if (!current)
			continue;
		assert_int_equal(out.count, 1);
		assert_int_equal(out.list[0].m.type, PAGE_FETCH);
		assert_int_equal(h.need, node_bit(0));
		given.sender = 0;
		assert_int_equal(requester_on_given(&h, &at, &given, &out), -EPROTO);
		given.flags = PAGE_IMAGE | PAGE_DAMAGED;
		assert_int_equal(requester_on_given(&h, &at, &given, &out), 0);
		assert_int_equal(h.hold, RIGHT_SHARED);
		assert_true(h.flags & HOLD_DAMAGED);
		given.flags = 0;
	}
}

/* ---- owed images, incarnations, the kernel ------------------------------------------------ */

/* An owed image is kept until the home reports it persisted. */
static void what_is_given_up_dirty_is_owed_until_persisted(void **state)
{
	begin(4);
	price(STEP_CHANGE, 1, 0);
	price(STEP_CHANGE, 2, 0);
	price(STEP_CHANGE, 3, 0);
	assert_int_equal(w.page[0].at[1].owed.version, 2);
	assert_int_equal(w.page[0].at[2].owed.version, 3);
	step(STEP_SHIP_OWED, 1, 0);
	settle();
	step(STEP_PERSISTED, 0, 0);
	settle();
	assert_int_equal(w.page[0].at[1].owed.version, 0);
	assert_int_equal(w.page[0].at[2].owed.version, 3);
	step(STEP_SHIP, 3, 0);
	settle();
	step(STEP_PERSISTED, 0, 0);
	settle();
	assert_int_equal(w.page[0].at[2].owed.version, 0);
	assert_false(w.page[0].at[3].frame.dirty);
	assert_int_equal(price(STEP_EVICT, 3, 0), 2);
	assert_true(home_entry_idle(&w.page[0].entry));
}

/* An operation that comes with a past mapping is refused; the directory stays. */
static void an_older_incarnation_is_refused(void **state)
{
	begin(3);
	price(STEP_CHANGE, 1, 0);
	step(STEP_FREE, 1, 0);
	price(STEP_READ, 2, 0); /* the new one: zeros, granted alone, and changed */
	assert_int_equal(w.page[0].at[2].frame.image.incarnation, 2);
	assert_int_equal(w.page[0].at[2].frame.image.version, 1);
	assert_int_equal(price(STEP_STALE, 1, 0), 2);
	assert_int_equal(w.page[0].at[1].hold.hold, RIGHT_NONE);
	assert_int_equal(w.page[0].entry.mode, HOME_EXCLUSIVE);
	assert_true(w.page[0].entry.holders == node_bit(2));
}

static void an_operation_may_ask_for_more_when_alone(void **state)
{
	struct page_at at = {.pid = 0, .self = 1, .home = 0};
	struct page_actions out = {0};

	begin(3);
	assert_int_equal(requester_want(&w.page[0].at[1].hold, &at, PAGE_SHARED, 1,
				 PAGE_ALONE, 0, 0, 0, &out),
		0);
	perform(&w, 1, 0, &out);
	settle();
	assert_int_equal(w.page[0].at[1].hold.hold, RIGHT_EXCLUSIVE);
	assert_int_equal(price(STEP_READ, 2, 0), 4);
}

/* The kernel's pages go before the page does (invariant 5). */
static void the_kernel_is_asked_first(void **state)
{
	begin(3);
	price(STEP_CHANGE, 1, 0);
	step(STEP_KCACHE, 1, 0);
	step(STEP_READ, 2, 0);
	for (unsigned i = 0; i < 4; i++)
		for (unsigned a = 0; a < 3; a++)
			for (unsigned b = 0; b < 3; b++)
				if (w.link[a][b].count)
					step(STEP_DELIVER, a, b);
	assert_int_equal(w.page[0].at[2].hold.phase, PHASE_GATHERING);
	assert_true(w.page[0].at[1].frame.dropping);
	assert_int_equal(w.page[0].at[1].hold.hold, RIGHT_EXCLUSIVE);
	step(STEP_KERNEL, 1, 0);
	settle();
	assert_int_equal(w.page[0].at[2].hold.hold, RIGHT_SHARED);
}

/* A GRANT whose image must be read may be overtaken by what the home's own hold gives. */
static void a_grant_may_come_after_what_the_home_gives(void **state)
{
	struct page_hold h = {0};
	struct page_at at = {.pid = 0, .self = 1, .home = 0};
	struct page_actions out = {0};
	struct page_message given = {.type = PAGE_GIVEN, .epoch = 5};
	struct page_message grant = {.type = PAGE_GRANT,
		.mode = PAGE_EXCLUSIVE,
		.flags = PAGE_IMAGE,
		.source = NODE_NONE,
		.place = node_bit(0),
		.epoch = 5};

	assert_int_equal(requester_want(&h, &at, PAGE_EXCLUSIVE, 0, 0, 0, 0, 0, &out), 0);
	out.count = 0;
	assert_int_equal(requester_on_given(&h, &at, &given, &out), 0);
	assert_int_equal(out.count, 1);
	assert_int_equal(out.list[0].kind, PAGE_DEFER);
	given = out.list[0].m;
	out.count = 0;
	assert_int_equal(requester_on_grant(&h, &at, &grant, &out), 0);
	assert_int_equal(out.list[out.count - 1].kind, PAGE_REPLAY);
	assert_int_equal(requester_on_given(&h, &at, &given, &out), 0);
	assert_int_equal(h.hold, RIGHT_EXCLUSIVE);
	assert_int_equal(h.phase, PHASE_ARRIVED);
}

static void an_unreadable_image_is_granted_as_such(void **state)
{
	struct page_hold h = {0};
	struct page_at at = {.pid = 0, .self = 1, .home = 0};
	struct page_actions out = {0};
	struct page_message grant = {.type = PAGE_GRANT,
		.mode = PAGE_SHARED,
		.flags = PAGE_IMAGE | PAGE_DAMAGED,
		.source = NODE_NONE};

	assert_int_equal(requester_want(&h, &at, PAGE_SHARED, 0, 0, 0, 0, 0, &out), 0);
	out.count = 0;
	assert_int_equal(requester_on_grant(&h, &at, &grant, &out), 0);
	assert_int_equal(out.list[0].kind, PAGE_WAKE);
	assert_int_equal(out.list[0].m.status, -EIO);
	assert_true(h.flags & HOLD_DAMAGED);
}

/* ---- what a peer must not say ------------------------------------------------------------ */

static uint64_t dice_state;
static unsigned dice(unsigned below)
{
	dice_state = dice_state * 6364136223846793005ull + 1442695040888963407ull;
	return (unsigned)(dice_state >> 33) % below;
}

static struct page_message nonsense(void)
{
	struct page_message m = {
		.type = (uint16_t)(PAGE_MESSAGE_FIRST +
				   dice(PAGE_MESSAGE_END + 1 - PAGE_MESSAGE_FIRST)),
		.sender = (uint16_t)(dice(20) ? dice(4) : dice(1000)),
		.request = dice(4) ? 0 : dice(9),
		.incarnation = dice(4),
		.version = dice(4),
		.place = dice(2) ? dice(16) : (uint64_t)dice(1u << 30) << dice(33),
		.epoch = dice(10) ? dice(6) : dice(1u << 31),
		.copies = (uint16_t)dice(3),
		.source = (uint16_t)(dice(2) ? dice(4) : dice(65536)),
		.mode = (uint8_t)dice(5),
		.flags = (uint16_t)dice(1u << 16),
		.status = dice(4) ? 0 : -(int)dice(200),
	};

	return m;
}

static unsigned long refused, taken;

static void say(unsigned node, unsigned page, const struct page_message *m)
{
	struct world_page before = w.page[page];
	struct world_page *pg = &w.page[page];
	struct page_hold *h = &pg->at[node].hold;
	struct page_at at = world_at(&w, node, page);
	struct page_actions out = {0};
	int e = m->type == PAGE_EVICT ? home_on_evict(&pg->entry, h, &at, m, true, true, &out)
				      : page_on_message(&pg->entry, h, &at, m, &out);

	assert_true(e == 0 || e == -EPROTO);
	if (e) {
		assert_memory_equal(&before, pg, sizeof(before));
		assert_int_equal(out.count, 0);
		refused++;
	} else {
		taken++;
	}
	*pg = before;
}

static void nonsense_is_refused_and_changes_nothing(void **state)
{
	static const uint8_t kinds[] = {STEP_DELIVER, STEP_DELIVER, STEP_DELIVER,
		STEP_READ, STEP_CHANGE, STEP_OVERWRITE, STEP_USE, STEP_EVICT,
		STEP_DOWNGRADE, STEP_PULLED};

	dice_state = 42;
	for (unsigned run = 0; run < 300; run++) {
		begin(2 + dice(3));
		for (unsigned i = 0; i < 100; i++) {
			struct step s = {kinds[dice(ARRAY_SIZE(kinds))],
				(uint8_t)dice(w.nodes), (uint8_t)dice(2)};

			if (world_can(&w, s))
				step(s.kind, s.a, s.b);
			for (unsigned n = 0; n < 10; n++) {
				struct page_message m = nonsense();
				unsigned page = dice(2), node = dice(w.nodes);

				m.pid = page;
				/* a home's own messages come from itself, and make sense */
				if (m.sender != node)
					say(node, page, &m);
			}
		}
	}
	assert_true(refused > 50000 && taken > 5000);
}

static void names_are_those_of_the_tables(void **state)
{
	assert_string_equal(page_message_name(PAGE_REQUEST), "REQUEST");
	assert_string_equal(page_message_name(PAGE_REINSTATE), "REINSTATE");
	assert_string_equal(page_message_name(PAGE_MESSAGE_END), "?");
	assert_string_equal(page_right_name(RIGHT_SOURCE), "SOURCE");
	assert_string_equal(page_phase_name(PHASE_LEAVING), "LEAVING");
	assert_string_equal(home_mode_name(HOME_REBUILDING), "REBUILDING");
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_miss_costs_a_request_and_a_grant),
		cmocka_unit_test(a_miss_at_home_costs_nothing),
		cmocka_unit_test(what_is_owned_costs_nothing),
		cmocka_unit_test(an_exclusive_conflict_costs_four),
		cmocka_unit_test(a_conflict_with_the_home_costs_two),
		cmocka_unit_test(k_sharers_cost_two_each),
		cmocka_unit_test(leaving_costs_one_or_two),
		cmocka_unit_test(what_others_let_go_of_is_its_homes_alone),
		cmocka_unit_test(a_downgrade_costs_two),
		cmocka_unit_test(a_downgrade_that_crosses_a_request_is_declined),
		cmocka_unit_test(who_drops_the_persisted_image_proves_it_the_newest),
		cmocka_unit_test(a_sharer_gives_an_image_that_its_home_has_only_stored),
		cmocka_unit_test(sharers_take_turns),
		cmocka_unit_test(a_home_that_has_the_image_gives_it),
		cmocka_unit_test(a_writer_takes_the_image_from_a_sharer),
		cmocka_unit_test(a_sharer_may_drop_the_page_while_it_is_asked),
		cmocka_unit_test(a_reader_waits_for_the_grant_of_a_reader_before_it),
		cmocka_unit_test(two_sharers_that_are_sent_to_each_other_do_not_wait),
		cmocka_unit_test(a_sharer_that_the_reader_does_not_hear_is_not_asked),
		cmocka_unit_test(a_source_gives_what_is_persisted_too),
		cmocka_unit_test(an_ask_overtakes_the_answer_to_a_downgrade),
		cmocka_unit_test(a_sharer_that_could_not_read_the_image_gives_none),
		cmocka_unit_test(an_image_may_be_missing_once),
		cmocka_unit_test(what_is_given_up_dirty_is_owed_until_persisted),
		cmocka_unit_test(an_older_incarnation_is_refused),
		cmocka_unit_test(an_operation_may_ask_for_more_when_alone),
		cmocka_unit_test(the_kernel_is_asked_first),
		cmocka_unit_test(a_grant_may_come_after_what_the_home_gives),
		cmocka_unit_test(an_unreadable_image_is_granted_as_such),
		cmocka_unit_test(nonsense_is_refused_and_changes_nothing),
		cmocka_unit_test(names_are_those_of_the_tables),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
