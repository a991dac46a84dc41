/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Packed messages (engine/net/wire.h): what is unpacked is what was packed; messages of pages in a
 * row take few bytes; bytes that are cut short are refused.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <cmocka.h>

#include "engine/coherence/protocol/protocol.h"
#include "engine/net/wire.h"
#include "engine/rt/rt.h"

#define COUNT 64u

static unsigned pack_all(uint8_t *out, const struct net_message *m, unsigned count)
{
	struct net_message last = {0};
	unsigned at = 0;

	for (unsigned i = 0; i < count; i++)
		at += wire_pack(out + at, &last, &m[i]);
	return at;
}

static void unpacks_to(const uint8_t *packed, unsigned bytes, const struct net_message *m, unsigned count)
{
	struct net_message last = {0};
	unsigned at = 0;

	for (unsigned i = 0; i < count; i++) {
		unsigned took = wire_unpack(packed + at, bytes - at, &last);

		assert_true(took > 0 && took <= WIRE_PACKED_MAX);
		assert_memory_equal(&last, &m[i], sizeof(last));
		at += took;
	}
	assert_int_equal(at, bytes);
}

static void any_messages(void **state)
{
	struct net_message m[COUNT];
	uint8_t packed[COUNT * WIRE_PACKED_MAX];

	for (unsigned round = 0; round < 2000; round++) {
		rt_random_bytes(m, sizeof(m));
		for (unsigned i = 1; i < COUNT; i++) /* some have words of the one before */
			for (unsigned w = 0; w < NET_BODY_BYTES / 8; w++)
				if (rt_random() % 4)
					m[i].words[w] = m[i - 1].words[w];
		unpacks_to(packed, pack_all(packed, m, COUNT), m, COUNT);
	}
}

/* The bytes of a pack of messages about pages in a row, as the driver sends them. */
static unsigned run_bytes(enum page_message_type type, bool image, bool place)
{
	uint8_t packed[COUNT * WIRE_PACKED_MAX];
	struct net_message net[COUNT];
	unsigned bytes;

	for (unsigned i = 0; i < COUNT; i++) {
		struct page_message m = {.type = (uint16_t)type, .sender = 3,
			.request = 1000 + i, .cluster_epoch = 12, .pid = pid_make(1, 5000 + i),
			.incarnation = 77, .epoch = 4, .source = NODE_NONE, .mode = PAGE_SHARED};

		if (place)
			m.place = 4096 * (rt_random() % 100000);
		if (image) {
			m.version = 9000 + rt_random() % 500;
			m.sum = (uint32_t)rt_random();
			m.flags = PAGE_IMAGE;
		}
		memcpy(&net[i], &m, sizeof(m));
	}
	bytes = pack_all(packed, net, COUNT);
	unpacks_to(packed, bytes, net, COUNT);
	return bytes;
}

static void pages_in_a_row_take_few_bytes(void **state)
{
	unsigned first = WIRE_PACKED_MAX;

	assert_true(run_bytes(PAGE_REQUEST, false, true) <= first + (COUNT - 1) * 9);
	assert_true(run_bytes(PAGE_GRANT, true, false) <= first + (COUNT - 1) * 17);
	assert_true(run_bytes(PAGE_INVALIDATE, false, false) <= first + (COUNT - 1) * 1);
	assert_true(run_bytes(PAGE_SHIP, true, true) <= first + (COUNT - 1) * 25);
}

static void bytes_that_are_cut_short(void **state)
{
	struct net_message m, last;
	uint8_t packed[WIRE_PACKED_MAX];

	memset(&m, 0x5a, sizeof(m));
	last = (struct net_message){0};
	assert_int_equal(wire_pack(packed, &last, &m), WIRE_PACKED_MAX);
	for (unsigned bytes = 0; bytes < WIRE_PACKED_MAX; bytes++) {
		last = (struct net_message){0};
		assert_int_equal(wire_unpack(packed, bytes, &last), 0);
		assert_int_equal(last.type, 0);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(any_messages),
		cmocka_unit_test(pages_in_a_row_take_few_bytes),
		cmocka_unit_test(bytes_that_are_cut_short),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
