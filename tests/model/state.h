/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The world (world.h) as few bits, for the model checker: `world_pack` and `world_unpack`.
 *
 * States that behave alike become one: epochs count from the home's, versions are replaced
 * by their rank, a change that has been persisted is forgotten. Images that travel or are owed
 * are not stored: each is what its message or hold says, which world.h has checked when it was
 * made.
 * `world_pack` proves that nothing else was lost: unpacked, it is the same again.
 */
#ifndef WEFT_TESTS_MODEL_STATE_H
#define WEFT_TESTS_MODEL_STATE_H

#include "tests/model/world.h"

#ifndef STATE_BYTES
#define STATE_BYTES 80
#endif
#define VERSION_BITS 4
#define NODE_BITS    2

/* Reads or writes a value of so many bits; 8 bytes beyond the last are touched. */
struct bits {
	uint8_t *byte;
	unsigned at, size;
	bool reading;
};

static uint64_t bits(struct bits *b, uint64_t value, unsigned count)
{
	uint64_t word, shift = b->at & 7;

	if (b->at + count > 8 * b->size) {
		FAIL("the state needs more than %u bytes", b->size);
		return value;
	}
	memcpy(&word, b->byte + b->at / 8, sizeof(word));
	if (b->reading) {
		value = word >> shift & ((1ull << count) - 1);
	} else {
		HOLDS(!(value >> count), "a value needs more than %u bits", count);
		word |= value << shift;
		memcpy(b->byte + b->at / 8, &word, sizeof(word));
	}
	b->at += count;
	return value;
}
#define FIELD(b, field, count)                                                           \
	((field) = bits(b, (uint64_t)(field), count))

static void code_message(struct bits *b, struct page_message *m)
{
	m->type -= b->reading ? 0 : PAGE_MESSAGE_FIRST;
	FIELD(b, m->type, 4);
	m->type += PAGE_MESSAGE_FIRST;
	FIELD(b, m->pid, WORLD_PAGES - 1);
	FIELD(b, m->sender, NODE_BITS);
	FIELD(b, m->incarnation, 1);
	FIELD(b, m->version, VERSION_BITS);
	FIELD(b, m->place, WORLD_NODES);
	FIELD(b, m->epoch, PAGE_EPOCH_BITS);
	FIELD(b, m->copies, PAGE_COPIES_BITS);
	m->source = m->source == NODE_NONE ? WORLD_NODES : m->source;
	FIELD(b, m->source, NODE_BITS);
	m->source = m->source == WORLD_NODES ? NODE_NONE : m->source;
	FIELD(b, m->mode, 2);
	FIELD(b, m->flags, 14);
}

static void code_parcels(
	struct bits *b, unsigned *count, unsigned count_bits, struct parcel *parcel)
{
	FIELD(b, *count, count_bits);
	for (unsigned i = 0; i < *count; i++) {
		struct page_message *m = &parcel[i].m;

		code_message(b, m);
		if ((m->flags & PAGE_IMAGE) || m->type == PAGE_SHIP)
			parcel[i].image = (struct image){m->incarnation, m->version};
	}
}

static void code_hold(struct bits *b, struct page_hold *h)
{
	FIELD(b, h->hold, 2);
	FIELD(b, h->phase, 3);
	FIELD(b, h->wanted, 2);
	FIELD(b, h->granted, 2);
	FIELD(b, h->flags, 12);
	FIELD(b, h->served, PAGE_COPIES_BITS);
	FIELD(b, h->epoch, PAGE_EPOCH_BITS);
	FIELD(b, h->grant_epoch, PAGE_EPOCH_BITS);
	FIELD(b, h->need, WORLD_NODES);
	FIELD(b, h->incarnation, 1);
	FIELD(b, h->version, VERSION_BITS);
	FIELD(b, h->wanted_incarnation, 1);
	FIELD(b, h->next_incarnation, 1);
	FIELD(b, h->next_version, VERSION_BITS);
	FIELD(b, h->owed_incarnation, 1);
	FIELD(b, h->owed_version, VERSION_BITS);
}

static void code_frame(struct bits *b, struct frame *f)
{
	FIELD(b, f->image.incarnation, 1);
	FIELD(b, f->image.version, VERSION_BITS);
	FIELD(b, f->dirty, 1);
	FIELD(b, f->hollow, 1);
	FIELD(b, f->dropping, 1);
	FIELD(b, f->kernel, 2);
}

static void code_page(struct bits *b, struct world *w, struct world_page *pg)
{
	struct home_entry *e = &pg->entry;

	FIELD(b, e->mode, 2);
	e->source = e->source == NODE_NONE ? WORLD_NODES : e->source;
	FIELD(b, e->source, NODE_BITS);
	e->source = e->source == WORLD_NODES ? NODE_NONE : e->source;
	FIELD(b, e->current, 1);
	FIELD(b, e->copies, PAGE_COPIES_BITS);
	FIELD(b, e->epoch, PAGE_EPOCH_BITS);
	FIELD(b, e->holders, WORLD_NODES);
	FIELD(b, e->owing, WORLD_NODES);
	FIELD(b, e->incarnation, 1);
	FIELD(b, e->stored_incarnation, 1);
	FIELD(b, e->stored_version, VERSION_BITS);
	FIELD(b, pg->newest.incarnation, 1);
	FIELD(b, pg->newest.version, VERSION_BITS);
	FIELD(b, pg->pulling, 1);
	FIELD(b, pg->pull_from, NODE_BITS);
	pg->store = (struct image){e->stored_incarnation, e->stored_version};
	code_parcels(b, &pg->persists, 3, pg->persist);
	for (unsigned n = 0; n < w->nodes; n++) {
		struct page_hold *h = &pg->at[n].hold;

		code_hold(b, h);
		FIELD(b, pg->at[n].wrote.incarnation, 1);
		FIELD(b, pg->at[n].wrote.version, VERSION_BITS);
		code_parcels(b, &pg->at[n].deferred.count, 2, pg->at[n].deferred.parcel);
		pg->at[n].owed = (struct image){h->owed_incarnation, h->owed_version};
		code_frame(b, &pg->at[n].frame);
	}
}

static void code_world(struct bits *b, struct world *w)
{
	for (unsigned p = 0; p < w->pages; p++)
		code_page(b, w, &w->page[p]);
	for (unsigned from = 0; from < w->nodes; from++)
		for (unsigned to = 0; to < w->nodes; to++)
			if (from != to)
				code_parcels(b, &w->link[from][to].count, 3,
					w->link[from][to].parcel);
}

/* ---- what behaves alike ---------------------------------------------------------------- */

typedef void each_version(uint64_t *version, void *arg);

static void versions_of_message(struct page_message *m, each_version *f, void *arg)
{
	f(&m->version, arg);
}

static void versions_of_page(struct world *w, unsigned p, each_version *f, void *arg)
{
	struct world_page *pg = &w->page[p];

	f(&pg->newest.version, arg);
	f(&pg->entry.stored_version, arg);
	for (unsigned i = 0; i < pg->persists; i++)
		versions_of_message(&pg->persist[i].m, f, arg);
	for (unsigned n = 0; n < w->nodes; n++) {
		struct page_hold *h = &pg->at[n].hold;

		f(&h->version, arg);
		f(&h->next_version, arg);
		f(&h->owed_version, arg);
		f(&pg->at[n].frame.image.version, arg);
		f(&pg->at[n].wrote.version, arg);
		for (unsigned i = 0; i < pg->at[n].deferred.count; i++)
			versions_of_message(&pg->at[n].deferred.parcel[i].m, f, arg);
		for (unsigned to = 0; to < w->nodes; to++)
			for (unsigned i = 0; i < w->link[n][to].count; i++)
				if (w->link[n][to].parcel[i].m.pid == p)
					versions_of_message(
						&w->link[n][to].parcel[i].m, f, arg);
	}
}

struct ranks {
	unsigned count;
	uint64_t version[64];
};

static void rank_add(uint64_t *version, void *arg)
{
	struct ranks *r = arg;
	unsigned i = 0;

	while (i < r->count && r->version[i] < *version)
		i++;
	if (!*version || (i < r->count && r->version[i] == *version))
		return;
	memmove(r->version + i + 1, r->version + i,
		(r->count - i) * sizeof(r->version[0]));
	r->version[i] = *version;
	r->count++;
}

static void rank_set(uint64_t *version, void *arg)
{
	const struct ranks *r = arg;

	for (unsigned i = 0; i < r->count; i++)
		if (r->version[i] == *version) {
			*version = i + 1;
			return;
		}
}

static void shift(uint32_t *epoch, uint32_t by)
{
	*epoch = (*epoch - by) & (UINT32_MAX >> (32 - PAGE_EPOCH_BITS));
}

static void shift_message(struct page_message *m, uint32_t by)
{
	switch (m->type) {
	case PAGE_SHIP:
		/* of an epoch that is past, which says as much as one that is owed: it
		 * must not be taken for the present one when the short epochs wrap */
		if ((m->flags & PAGE_OWED) || m->epoch != by) {
			m->flags |= PAGE_OWED;
			m->epoch = 0;
			return;
		}
		break;
	case PAGE_GRANT:
	case PAGE_COPY:
	case PAGE_MOVE:
	case PAGE_INVALIDATE:
	case PAGE_GIVEN:
	case PAGE_EVICT:
	case PAGE_FETCH:
		break;
	default:
		return;
	}
	shift(&m->epoch, by);
}

/* Only differences of epochs count: the home's becomes 0. */
static void shift_page(struct world *w, unsigned p)
{
	struct world_page *pg = &w->page[p];
	uint32_t by = pg->entry.epoch;

	shift(&pg->entry.epoch, by);
	for (unsigned i = 0; i < pg->persists; i++)
		shift_message(&pg->persist[i].m, by);
	for (unsigned n = 0; n < w->nodes; n++) {
		struct page_hold *h = &pg->at[n].hold;

		if (h->hold != RIGHT_NONE)
			shift(&h->epoch, by);
		if (h->phase == PHASE_GATHERING)
			shift(&h->grant_epoch, by);
		for (unsigned i = 0; i < pg->at[n].deferred.count; i++)
			shift_message(&pg->at[n].deferred.parcel[i].m, by);
		for (unsigned to = 0; to < w->nodes; to++)
			for (unsigned i = 0; i < w->link[n][to].count; i++)
				if (w->link[n][to].parcel[i].m.pid == p)
					shift_message(&w->link[n][to].parcel[i].m, by);
	}
}

static void world_canonical(struct world *w)
{
	for (unsigned p = 0; p < w->pages; p++) {
		struct world_page *pg = &w->page[p];
		struct ranks r = {0};

		for (unsigned n = 0; n < w->nodes; n++)
			if (image_order(pg->at[n].wrote, pg->store) <= 0)
				pg->at[n].wrote = (struct image){0, 0};
		versions_of_page(w, p, rank_add, &r);
		versions_of_page(w, p, rank_set, &r);
		shift_page(w, p);
	}
}

/* ---- packing ------------------------------------------------------------------------------- */

static void world_unpack(const uint8_t *state, struct world *w)
{
	uint8_t room[STATE_BYTES + 8];
	struct bits b = {.byte = room, .size = STATE_BYTES, .reading = true};

	memcpy(room, state, STATE_BYTES);
	memset(w, 0, sizeof(*w));
	w->nodes = WORLD_NODES;
	w->pages = WORLD_PAGES;
	code_world(&b, w);
}

/* Changes w to its canonical form. */
static void world_pack(struct world *w, uint8_t *state)
{
	uint8_t room[STATE_BYTES + 8];
	struct bits b = {.byte = room, .size = STATE_BYTES};

	world_canonical(w);
	memset(room, 0, sizeof(room));
	code_world(&b, w);
	memcpy(state, room, STATE_BYTES);
#ifdef PROVE_PACKING
	static struct world again;

	world_unpack(state, &again);
	HOLDS(!memcmp(w, &again, sizeof(again)),
		"the state does not hold all of the world");
#endif
}

#endif
