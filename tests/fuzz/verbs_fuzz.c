/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a peer says before there is a queue pair (OFFER, MEMORY), by itself: the first byte says
 * which of the two it is, the rest is laid over one that is well formed, from the offset in
 * the next two bytes. What is taken must be safe to use: each access that its table allows
 * lies within what it says is there.
 */
#include <string.h>

#include "engine/net/wire.h"

#define HEAD_BYTES 3u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void lay_over(void *what, size_t bytes, const uint8_t *data, size_t size)
{
	size_t at = (data[1] | data[2] << 8) % bytes;

	memcpy((uint8_t *)what + at, data + HEAD_BYTES,
		MIN(size - HEAD_BYTES, bytes - at));
}

static void offer(const uint8_t *data, size_t size)
{
	struct wire_offer o = {.port = 4791}, as_it_was;

	memcpy(o.magic, WIRE_OFFER, sizeof(o.magic));
	WEFT_ASSERT(wire_offer_check(&o));
	lay_over(&o, sizeof(o), data, size);
	as_it_was = o;
	if (wire_offer_check(&o))
		WEFT_ASSERT(o.port && !memcmp(o.magic, WIRE_OFFER, sizeof(o.magic)));
	WEFT_ASSERT(!memcmp(&o, &as_it_was, sizeof(o)));
}

/* As verbs_send.c does it, at the edges of what there is. */
static void access_all(const struct wire_key *r)
{
	static const uint64_t lengths[] = {1, 8, 4096, NET_TRANSFER_MAX};
	static const unsigned rights[] = {
		NET_REMOTE_READ, NET_REMOTE_WRITE, NET_REMOTE_ATOMIC};

	for (unsigned i = 0; i < ARRAY_SIZE(lengths); i++)
		for (unsigned k = 0; k < ARRAY_SIZE(rights); k++) {
			uint64_t offsets[] = {0, 1, r->bytes - lengths[i],
				r->bytes - lengths[i] + 1, r->bytes, UINT64_MAX};

			for (unsigned n = 0; n < ARRAY_SIZE(offsets); n++) {
				uint64_t at = r->base + offsets[n];

				if (!wire_access_check(r->bytes, r->rights, rights[k],
					    offsets[n], lengths[i]))
					continue;
				WEFT_ASSERT(r->rights & rights[k]);
				WEFT_ASSERT(at >= r->base && at + lengths[i] >= at);
				WEFT_ASSERT(at + lengths[i] <= r->base + r->bytes);
				WEFT_ASSERT(
					rights[k] != NET_REMOTE_ATOMIC || at % 8 == 0);
			}
		}
}

static void keys(const uint8_t *data, size_t size)
{
	struct wire_keys k = {.window = WIRE_WINDOW}, as_it_was;

	memcpy(k.magic, WIRE_MEMORY, sizeof(k.magic));
	k.region[0] = (struct wire_key){.base = 1u << 30,
		.bytes = 1u << 26,
		.key = 7,
		.rights = NET_REMOTE_READ | NET_REMOTE_WRITE | NET_REMOTE_ATOMIC};
	WEFT_ASSERT(wire_keys_check(&k));
	lay_over(&k, sizeof(k), data, size);
	as_it_was = k;
	if (wire_keys_check(&k)) {
		WEFT_ASSERT(k.window > 0 && k.window <= UINT16_MAX && k.no_atomics <= 1);
		for (unsigned i = 0; i < NET_REGIONS_MAX; i++)
			access_all(&k.region[i]);
	}
	WEFT_ASSERT(!memcmp(&k, &as_it_was, sizeof(k)));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	if (size < HEAD_BYTES)
		return 0;
	if (data[0] % 2)
		keys(data, size);
	else
		offer(data, size);
	return 0;
}
