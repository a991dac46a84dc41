/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The world of nodes_test.c: nodes that share pages, a model of what was written last, and
 * what the tasks of a node do to the pages.
 */
#ifndef WEFT_TEST_NODES_WORLD_H
#define WEFT_TEST_NODES_WORLD_H

#include "tests/sim/seeds.h"
#include "tests/world/world.h"
#include "tests/unit/cache_fixture.h"

#include <inttypes.h>

#include "engine/coherence/peers.h"
#include "engine/coherence/protocol/protocol.h"
#include "engine/volume/volume.h"
#include "engine/rt/rt_sim.h"

#define PAGES_MAX    256
#define FRAMES       64
#define TASKS        3
#define SEEDS        20
#define BASE_SLOT    10
#define VERSIONS_MAX 2000

struct page {
	bool known;
	uint64_t incarnation, stamp, version;
	unsigned users; /* operations on it; one that allocates it anew is alone */
	bool renewed;
	unsigned renewer;
	/*
	 * Of this incarnation: the stamp of each version, and the last version that each
	 * node has changed. What a node that crashed changed last may be lost, down to what
	 * a live one did (invariant 2) or what is durable. `doubt`: so it is, till somebody
	 * looks.
	 */
	uint64_t stamp_of[VERSIONS_MAX], last_stamp;
	uint64_t changed[NODES_MAX + 1], durable;
	bool doubt;
	uint64_t
		completed[NODES_MAX + 1]; /* by node: its last change that has returned */
};

/* One thing after the other: what a node does, and how many messages that costs. */
struct turn {
	unsigned node;
	enum { READS, WRITES, PERSISTS } does;
	unsigned page, messages;
};

/* A world whose nodes share pages. */
struct sharing {
	struct world w; /* the first: sharing_of() */
	unsigned pages;
	const struct turn *turns; /* instead of the tasks' steps */
	unsigned turn_count;
	_Atomic uint32_t turn; /* whose it is */
	unsigned changes; /* of page 0 by each node, and nothing else: as fast as it can, */
	bool alternate;   /* or in turns */
	unsigned looks;   /* before that: at so many pages, each once */
	uint64_t messages;
	unsigned cuts;            /* links are cut so often meanwhile, */
	_Atomic uint32_t weather; /* until this is 2: it is over */
	unsigned crashes;         /* so often a node loses power, in between */
	uint64_t flip_every; /* bytes: a bit of one in so many changes on its way; 0: none */
	bool declares;       /* some are declared dead then: so late they come back */
	_Atomic uint64_t heard_epoch; /* a hostile node: of its victim */
	struct page page[PAGES_MAX];
	unsigned uses[NODES_MAX + 1][PAGES_MAX]; /* a node's part of page.users */
};

static inline struct sharing *sharing_of(const struct node *n)
{
	return (struct sharing *)n->w;
}

static page_id pid_of(const struct sharing *w, unsigned i)
{
	return pid_make((uint16_t)(i % w->w.nodes), BASE_SLOT + i);
}

/* What nobody can have lost. */
static uint64_t safe_version(const struct sharing *w, const struct page *p)
{
	uint64_t safe = p->durable;

	for (unsigned id = 1; id <= w->w.nodes; id++)
		safe = MAX(safe, p->changed[id]);
	return safe;
}

/* Allocated anew and not written since: zeros, wherever, whatever has crashed (8). */
static void expect_zeros(const struct node *n, unsigned i, const uint8_t *image)
{
	for (unsigned at = 0; at < PAGE_SIZE; at += 8)
		if (page_load_u64(image + at)) {
			print_message("node %u finds %" PRIx64 " in page %x, incarnation "
				      "%" PRIu64 ", which nobody has written\n",
				n->id, page_load_u64(image + at), i,
				sharing_of(n)->page[i].incarnation);
			abort();
		}
}

/* A node has crashed that changed it: what is there now is what is left. */
static void settle_doubt(const struct node *n, unsigned i, struct page *p,
	const uint8_t *image, uint64_t version)
{
	if (!p->doubt)
		return;
	if (version < safe_version(sharing_of(n), p) || version > p->version) {
		print_message("node %u finds page %x at version %" PRIu64
			      "; it cannot be before %" PRIu64 ", nor after %" PRIu64
			      "\n",
			n->id, i, version, safe_version(sharing_of(n), p), p->version);
		print_message("  durable is %" PRIu64 "; changed by nodes:", p->durable);
		for (unsigned id = 1; id <= n->w->nodes; id++)
			print_message(" %" PRIu64, p->changed[id]);
		print_message("\n");
		abort();
	}
	/* a shared copy of what only a node that crashed had changed: seen, and yet it can go */
	p->doubt = version > safe_version(sharing_of(n), p);
	p->version = version;
	p->stamp = p->stamp_of[version];
	if (!version)
		p->known = false; /* zeros: it was not written */
	if (!version && image)
		expect_zeros(n, i, image);
}

static void note_write(struct node *n, struct page *p)
{
	p->known = true;
	p->version++;
	p->stamp = ++p->last_stamp;
	HOLDS(p->version < VERSIONS_MAX);
	p->stamp_of[p->version] = p->stamp;
	p->changed[n->id] = p->version;
}

static void note_completed(struct node *n, struct page *p, uint64_t version)
{
	p->completed[n->id] = MAX(p->completed[n->id], version);
}

static void note_renewed(struct node *n, struct page *p)
{
	p->renewed = true;
	p->renewer = n->id;
	p->incarnation++;
	p->version = p->durable = 0;
	p->known = p->doubt = false;
	memset(p->changed, 0, sizeof(p->changed));
	memset(p->completed, 0, sizeof(p->completed));
}

/* The node has lost power. */
static void note_crash(struct node *n)
{
	for (unsigned i = 0; i < sharing_of(n)->pages; i++) {
		struct page *p = &sharing_of(n)->page[i];

		p->users -= sharing_of(n)->uses[n->id][i];
		sharing_of(n)->uses[n->id][i] = 0;
		if (p->renewed && p->renewer == n->id)
			p->renewed = false;
		p->changed[n->id] = p->completed[n->id] = 0;
		p->doubt |= p->known && safe_version(sharing_of(n), p) < p->version;
	}
}

/* The image is that version, with that stamp. */
static void expect_image(const struct node *n, unsigned i, uint64_t version,
	uint64_t stamp, const uint8_t *image, uint64_t found)
{
	page_id pid = pid_of(sharing_of(n), i);

	if (found == version && filled(image, pid, stamp))
		return;
	print_message("node %u finds page %u:%" PRIu64 " at version %" PRIu64
		      "; it was last written as version %" PRIu64 "\n",
		n->id, pid_shard(pid), (uint64_t)pid_slot(pid), found, version);
	for (uint64_t s = 0; s <= sharing_of(n)->page[i].last_stamp; s++)
		if (filled(image, pid, s))
			print_message("  its bytes are those of stamp %" PRIu64
				      ", not %" PRIu64 "\n",
				s, stamp);
	print_message("  it begins with %" PRIx64 "\n", page_load_u64(image));
	abort();
}

/* It is what was written last, wherever that was. */
static void expect(const struct node *n, unsigned i, struct page *p, const uint8_t *image,
	uint64_t version)
{
	settle_doubt(n, i, p, image, version);
	if (p->known)
		expect_image(n, i, p->version, p->stamp, image, version);
	else
		expect_zeros(n, i, image);
}

static bool enter(struct node *n, unsigned i)
{
	struct page *p = &sharing_of(n)->page[i];

	p->users += !p->renewed;
	sharing_of(n)->uses[n->id][i] += !p->renewed;
	return !p->renewed;
}

static void leave(struct node *n, unsigned i)
{
	sharing_of(n)->page[i].users--;
	sharing_of(n)->uses[n->id][i]--;
}

/* ---- what tasks do ------------------------------------------------------------------------ */

static void write_data(struct node *n, unsigned i, bool blind)
{
	struct page *p = &sharing_of(n)->page[i];
	page_id pid = pid_of(sharing_of(n), i);
	uint64_t version;
	struct guard g;

	if (blind && p->known && !p->doubt) {
		OK(guard_overwrite(n->v->cache, pid, p->incarnation, &g));
		if (rt_random() % 8 == 0) { /* changes its mind */
			guard_release(n->v->cache, &g);
			return;
		}
	} else {
		OK(guard_exclusive(n->v->cache, pid, p->incarnation, &g));
		expect(n, i, p, g.image, g.frame->version);
	}
	if (blind && p->doubt) { /* the image is not to be had any more */
		settle_doubt(n, i, p, NULL, g.frame->version);
	}
	HOLDS(g.frame->version == p->version && g.frame->incarnation == p->incarnation);
	note_write(n, p);
	version = p->version;
	fill(g.image, pid, p->stamp);
	rt_sched_point();
	guard_release_dirty(n->v->cache, &g, false);
	note_completed(n, p, version);
}

/* Two pages together, or one. */
static void write_metadata(struct node *n, unsigned i)
{
	struct mtr *m = rt_alloc(sizeof(*m));
	struct sharing *w = sharing_of(n);
	unsigned pages[2] = {
		i, (unsigned)(i + 1 + rt_random() % (w->pages - 1)) % w->pages};
	unsigned count = rt_random() % 3 ? 2 : 1;
	struct page_ref refs[2];
	struct mtr_page *held[2];
	uint64_t versions[2];
	int e = -EAGAIN;

	if (count == 2 && !enter(n, pages[1]))
		count = 1;
	for (unsigned k = 0; k < count; k++)
		refs[k] = (struct page_ref){
			pid_of(w, pages[k]), w->page[pages[k]].incarnation};
	while (e == -EAGAIN) {
		OK(cache_fetch_exclusive(n->v->cache, refs, count));
		OK(mtr_begin(m, n->v->cache, count));
		for (unsigned k = 0; k < count; k++) {
			held[k] = mtr_latch(m, refs[k].pid, refs[k].incarnation, &e);
			if (!held[k])
				break;
		}
		if (e)
			mtr_abort(m);
		if (e == -EAGAIN)
			rt_sleep_ns(rt_random() % 200000);
	}
	OK(e);
	for (unsigned k = 0; k < count; k++) {
		struct page *p = &w->page[pages[k]];
		uint8_t image[PAGE_SIZE];

		expect(n, pages[k], p, held[k]->guard.image,
			held[k]->guard.frame->version);
		note_write(n, p);
		versions[k] = p->version;
		fill(image, refs[k].pid, p->stamp);
		mtr_write(held[k], 0, image, PAGE_SIZE);
	}
	mtr_commit(m);
	for (unsigned k = 0; k < count; k++)
		note_completed(n, &w->page[pages[k]], versions[k]);
	rt_free(m);
	if (count == 2)
		leave(n, pages[1]);
}

static void read_latched(struct node *n, unsigned i)
{
	struct guard g;

	OK(guard_shared(n->v->cache, pid_of(sharing_of(n), i), sharing_of(n)->page[i].incarnation, &g));
	expect(n, i, &sharing_of(n)->page[i], g.image, g.frame->version);
	guard_release(n->v->cache, &g);
}

static void read_optimistic(struct node *n, unsigned i)
{
	const struct page *p = &sharing_of(n)->page[i];
	uint64_t version, then_version, then_stamp;
	bool then_known;
	page_id pid = pid_of(sharing_of(n), i);
	uint8_t copy[PAGE_SIZE];
	struct guard g;

	do {
		if (p->doubt || !p->known) {
			read_latched(n, i);
			return;
		}
		OK(guard_optimistic(n->v->cache, pid, NULL, &g));
		page_copy_out(copy, g.image, PAGE_SIZE);
		version = g.frame->version;
		then_version = p->version; /* at the same moment */
		then_stamp = p->stamp;
		then_known = p->known && !p->doubt;
	} while (!guard_valid(&g) || !then_known);
	expect_image(n, i, then_version, then_stamp, copy, version);
	guard_used(n->v->cache, &g);
}

/* Several at once; or, ahead, without waiting. */
static void read_many(struct node *n, unsigned first)
{
	struct page_ref refs[6];
	unsigned at[6], count = 0;
	struct guard g[6];

	for (unsigned k = 0; k < 6; k++) {
		unsigned i = (first + k) % sharing_of(n)->pages;

		if (k >= sharing_of(n)->pages || !sharing_of(n)->page[i].known || !enter(n, i))
			continue;
		at[count] = i;
		refs[count++] =
			(struct page_ref){pid_of(sharing_of(n), i), sharing_of(n)->page[i].incarnation};
	}
	if (rt_random() % 2) {
		cache_prefetch(n->v->cache, refs, count, rt_random() % 2);
	} else {
		OK(guard_shared_batch(n->v->cache, refs, count, false, g));
		for (unsigned k = 0; k < count; k++) {
			expect(n, at[k], &sharing_of(n)->page[at[k]], g[k].image,
				g[k].frame->version);
			guard_release(n->v->cache, &g[k]);
		}
	}
	for (unsigned k = 0; k < count; k++)
		leave(n, at[k]);
}

/* The page was freed, and is allocated again: here, whoever has what of it. */
static void renew(struct node *n, unsigned i, bool writes)
{
	struct page *p = &sharing_of(n)->page[i];
	page_id pid = pid_of(sharing_of(n), i);
	bool fills = rt_random() % 2;
	struct guard g;

	if (p->users || p->renewed)
		return;
	note_renewed(n, p);
	if (fills)
		OK(guard_fill(n->v->cache, pid, p->incarnation, &g));
	else
		OK(guard_fresh(n->v->cache, pid, p->incarnation, &g));
	HOLDS(g.frame->incarnation == p->incarnation && g.frame->version == 0);
	if (!writes) { /* changes its mind */
		guard_release(n->v->cache, &g);
	} else {
		note_write(n, p);
		fill(g.image, pid, p->stamp);
		guard_release_dirty(n->v->cache, &g, false);
		note_completed(n, p, 1);
	}
	p->renewed = false;
}

/* Other nodes are told that it was freed: in this incarnation, an earlier one, or one to come. It need
 * not be true. They may drop what they share, and nothing else. */
static void tell_freed(struct node *n, unsigned i)
{
	cache_freed(n->v->cache, pid_of(sharing_of(n), i),
		sharing_of(n)->page[i].incarnation + rt_random() % 3 - 1,
		1 + (unsigned)(rt_random() % 8));
}

static void sync_one(struct node *n, unsigned i)
{
	struct page *p = &sharing_of(n)->page[i];
	struct page_ref ref = {pid_of(sharing_of(n), i), p->incarnation};
	uint64_t mine = p->completed[n->id];
	const struct frame *f;

	if (!p->known)
		return;
	OK(cache_sync(n->v->cache, &ref, 1, 0));
	/* what this node had changed before the call, if nobody has taken it away */
	f = table_find(n->v->cache, ref.pid);
	if (f && f->incarnation == ref.incarnation && f->version >= mine &&
		p->incarnation == ref.incarnation && p->changed[n->id] >= mine &&
		f->version == p->changed[n->id])
		p->durable = MAX(p->durable, mine);
}

static void operate(struct node *n, unsigned i)
{
	const struct page *p = &sharing_of(n)->page[i];

	switch (rt_random() % 13) {
	case 0 ... 2:
		write_data(n, i, false);
		break;
	case 3:
		write_data(n, i, true);
		break;
	case 4 ... 5:
		write_metadata(n, i);
		break;
	case 6:
		sync_one(n, i);
		break;
	case 7 ... 9:
		read_latched(n, i);
		break;
	case 10:
		read_many(n, i);
		break;
	default:
		if (p->known)
			read_optimistic(n, i);
	}
}

static inline void task_main(void *arg)
{
	struct node *n = arg;

	for (unsigned step = 0; step < n->w->steps / (1 + n->life); step++) {
		unsigned i = (unsigned)(rt_random() % sharing_of(n)->pages);

		/* some pages are everybody's */
		if (rt_random() % 3 == 0)
			i %= 6;
		if (rt_random() % 8 == 0)
			tell_freed(n, i);
		if (rt_random() % 16 == 0) {
			renew(n, i, rt_random() % 8);
		} else if (enter(n, i)) {
			operate(n, i);
			look_page(pid_of(sharing_of(n), i));
			leave(n, i);
		}
	}
}

#endif
