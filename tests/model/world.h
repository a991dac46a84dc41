/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A small world for the page protocol's functions: nodes, pages, FIFO links, a store per
 * home, images that are just (incarnation, version). It performs the functions' actions as
 * a driver would, one step at a time, and judges every state:
 *
 *   invariant 1   who is exclusive is alone
 *   invariant 2   what a node changed is in its frame, owed by it, or persisted
 *   invariant 4   each use meets the newest version; each change adds one to it
 *   invariant 5   a frame that the kernel has something of gives nothing up
 *   the image in a frame is the one its hold claims, or a later one of an owner's, and
 *   nothing happens that cannot
 *
 * Operations and the kernel use the frames alone, as they do in the cache; holds observe what
 * a frame has when it is revoked (engine/coherence/protocol/frame.c).
 *
 * Who chooses the steps: tests/unit/coherence_explore_test.c by seeds, tests/model/page.pml
 * all of them. A failure is a text in `failure`, so that both can tell how they got there.
 */
#ifndef WEFT_TESTS_MODEL_WORLD_H
#define WEFT_TESTS_MODEL_WORLD_H

#include <stdio.h>
#include <string.h>

#include "engine/coherence/protocol/protocol.h"

#ifndef WORLD_NODES
#define WORLD_NODES 4
#define WORLD_PAGES 2
#define WORLD_LINK  48 /* messages on a link, at most */
#endif
#ifndef WORLD_DEFERRED
#define WORLD_DEFERRED (16 * WORLD_NODES)
#endif
#ifndef WORLD_PERSISTS
#define WORLD_PERSISTS (6 * WORLD_NODES)
#endif

struct image {
	uint64_t incarnation, version;
};

struct parcel { /* a message and the page that it brings */
	struct page_message m;
	struct image image;
};

struct link {
	unsigned count;
	struct parcel parcel[WORLD_LINK];
};

/* What the kernel of a node has of a page. */
enum kernel_has { KERNEL_NOTHING, KERNEL_READS, KERNEL_WRITES };

/* A node's frame, as its operations and its kernel use it. */
struct frame {
	struct image image;
	bool dirty, hollow;
	bool dropping;  /* the kernel is told to drop the page; what waits for that is deferred */
	uint8_t kernel; /* enum kernel_has */
};

struct deferred {
	unsigned count;
	struct parcel parcel[WORLD_DEFERRED];
};

struct world_page {
	struct home_entry entry;
	struct image newest, store;
	unsigned persists; /* SHIPs that the home has taken and not yet written */
	struct parcel persist[WORLD_PERSISTS];
	bool pulling; /* the home reads the image of an evicting node */
	uint8_t pull_from;
	struct {
		struct page_hold hold;
		struct frame frame;
		struct image owed, wrote;
		struct deferred deferred;
	} at[WORLD_NODES];
};

struct world {
	unsigned nodes, pages;
	struct world_page page[WORLD_PAGES];
	node_map unconnected[WORLD_NODES]; /* whom the node says not to hear; it does */
	struct link link[WORLD_NODES][WORLD_NODES]; /* from, to */
};

/* Not part of the state. */
static char failure[256];
static unsigned long sent[PAGE_MESSAGE_END - PAGE_MESSAGE_FIRST];
static unsigned long stored;    /* images that were read from a store */
static unsigned long spared;    /* asks of sharers for an image that the home has persisted */
static unsigned long refetched; /* of these: the sharer had none any more */
static bool tracing;

#define FAIL(...)                                                                        \
	do {                                                                             \
		if (!failure[0])                                                         \
			snprintf(failure, sizeof(failure), __VA_ARGS__);                 \
	} while (0)
#define HOLDS(what, ...)                                                                 \
	do {                                                                             \
		if (!(what))                                                             \
			FAIL(__VA_ARGS__);                                               \
	} while (0)

static inline int image_order(struct image a, struct image b)
{
	return page_order(a.incarnation, a.version, b.incarnation, b.version);
}

static inline unsigned world_home(const struct world *w, unsigned page)
{
	return page % w->nodes;
}

static void world_init(struct world *w, unsigned nodes, unsigned pages)
{
	memset(w, 0, sizeof(*w));
	w->nodes = nodes;
	w->pages = pages;
	for (unsigned p = 0; p < pages; p++) {
		w->page[p].newest = w->page[p].store = (struct image){1, 1};
		home_entry_init(&w->page[p].entry, 0, 1, 1);
	}
}

static unsigned page_number(const struct world *w, const struct page_message *m)
{
	return (unsigned)m->pid;
}

static void trace(
	const char *what, unsigned from, unsigned to, const struct page_message *m)
{
	if (tracing)
		fprintf(stderr,
			"  %s %u>%u p%u %s i%u v%u e%u k%u src%u mode%u flags%x place%x "
			"st%d\n",
			what, from, to, (unsigned)m->pid, page_message_name(m->type),
			(unsigned)m->incarnation, (unsigned)m->version, m->epoch,
			m->copies, m->source, m->mode, m->flags, (unsigned)m->place,
			m->status);
}

/* ---- performing actions --------------------------------------------------------------- */

static void world_deliver(struct world *w, unsigned to, const struct parcel *p);

static void perform_send(
	struct world *w, unsigned self, unsigned page, const struct page_action *a)
{
	struct world_page *pg = &w->page[page];
	struct parcel p = {.m = a->m};

	stored += a->image == IMAGE_STORE || (a->m.flags & PAGE_STORE);
	spared += (a->m.type == PAGE_COPY || a->m.type == PAGE_MOVE) &&
		  (a->m.flags & PAGE_CURRENT);
	refetched += a->m.type == PAGE_FETCH && pg->at[self].hold.hold == RIGHT_NONE;
	if (a->image == IMAGE_FRAME || a->m.type == PAGE_SHIP)
		p.image = pg->at[self].frame.image;
	else if (a->image == IMAGE_STORE)
		p.image = pg->store;
	if (a->m.type == PAGE_SHIP && a->m.incarnation == pg->at[self].owed.incarnation &&
		a->m.version == pg->at[self].owed.version)
		p.image = pg->at[self].owed;
	if (a->m.flags & PAGE_IMAGE || a->m.type == PAGE_SHIP)
		HOLDS(p.image.incarnation == a->m.incarnation &&
				p.image.version == a->m.version,
			"%s of node %u carries another image than it says",
			page_message_name(a->m.type), self);
	for (unsigned to = 0; to < w->nodes; to++) {
		struct link *l = &w->link[self][to];

		if (!(a->nodes & node_bit(to)))
			continue;
		trace("send", self, to, &p.m);
		if (to == self) {
			world_deliver(w, self, &p);
			continue;
		}
		sent[p.m.type - PAGE_MESSAGE_FIRST]++;
		if (l->count == WORLD_LINK) {
			FAIL("the link %u>%u is full", self, to);
			return;
		}
		l->parcel[l->count++] = p;
	}
	HOLDS(!(a->nodes >> w->nodes), "a message to a node that is none");
}

static void world_replay(struct world *w, unsigned self, unsigned page)
{
	struct deferred *d = &w->page[page].at[self].deferred;
	struct deferred old = *d;

	memset(d, 0, sizeof(*d));
	for (unsigned i = 0; i < old.count; i++)
		world_deliver(w, self, &old.parcel[i]);
}

static void perform_defer(
	struct world *w, unsigned self, unsigned page, const struct page_action *a)
{
	struct world_page *pg = &w->page[page];
	struct deferred *d = &pg->at[self].deferred;
	unsigned i = d->count;

	/* an ask of each peer at most; they have no order */
	if (pg->entry.mode == HOME_REBUILDING ? i == WORLD_DEFERRED : i == w->nodes - 1) {
		FAIL("node %u defers too much", self);
		return;
	}
	d->count++;
	for (; i && d->parcel[i - 1].m.sender > a->m.sender; i--)
		d->parcel[i] = d->parcel[i - 1];
	d->parcel[i] = (struct parcel){.m = a->m};
	trace("defer", a->m.sender, self, &a->m);
}

static void perform(
	struct world *w, unsigned self, unsigned page, const struct page_actions *acts)
{
	struct world_page *pg = &w->page[page];
	struct page_hold *h = &pg->at[self].hold;
	bool replay = false;

	for (unsigned i = 0; i < acts->count && !failure[0]; i++) {
		const struct page_action *a = &acts->list[i];

		switch (a->kind) {
		case PAGE_SEND:
			perform_send(w, self, page, a);
			break;
		case PAGE_DEFER:
			perform_defer(w, self, page, a);
			break;
		case PAGE_REPLAY:
			replay = true;
			break;
		case PAGE_WAKE:
			break;
		case PAGE_ZERO:
			pg->at[self].frame.image = (struct image){h->incarnation, 0};
			break;
		case PAGE_DROP_FRAME:
			HOLDS(!pg->at[self].frame.kernel,
				"the kernel of node %u keeps what the node gave up", self);
			pg->at[self].frame = (struct frame){.kernel = KERNEL_NOTHING};
			break;
		case PAGE_KEEP_OWED:
			pg->at[self].owed = pg->at[self].frame.image;
			HOLDS(pg->at[self].owed.incarnation == a->m.incarnation &&
					pg->at[self].owed.version == a->m.version,
				"node %u owes another image than its frame's", self);
			break;
		case PAGE_RELEASE_OWED:
			pg->at[self].owed = (struct image){0, 0};
			break;
		case PAGE_TAKE_OWED:
			pg->at[self].frame.image = pg->at[self].owed;
			break;
		case PAGE_PULL:
			HOLDS(!pg->pulling, "two images pulled for one page");
			pg->pulling = true;
			pg->pull_from = (uint8_t)a->m.sender;
			break;
		case PAGE_PERSIST:
			if (pg->persists == WORLD_PERSISTS) {
				FAIL("too many shipments");
				break;
			}
			pg->persist[pg->persists].m = a->m;
			/* its image was copied when it was sent */
			pg->persist[pg->persists].image =
				(struct image){a->m.incarnation, a->m.version};
			pg->persists++;
			break;
		}
	}
	if (replay && !failure[0])
		world_replay(w, self, page);
}

static struct page_at world_at(const struct world *w, unsigned self, unsigned page)
{
	return (struct page_at){
		.pid = page, .self = (uint16_t)self, .home = (uint16_t)world_home(w, page)};
}

/* ---- frames ------------------------------------------------------------------------------ */

static bool frame_may_read(const struct world *w, unsigned node, unsigned page)
{
	const struct page_hold *h = &w->page[page].at[node].hold;

	return h->hold != RIGHT_NONE && !w->page[page].at[node].frame.hollow &&
	       (h->phase == PHASE_QUIET || h->phase == PHASE_ARRIVED ||
		       (h->phase == PHASE_LEAVING && (h->flags & HOLD_STAYS)));
}

static bool frame_may_change(const struct world *w, unsigned node, unsigned page)
{
	const struct page_hold *h = &w->page[page].at[node].hold;

	return h->hold == RIGHT_EXCLUSIVE &&
	       (h->phase == PHASE_QUIET || h->phase == PHASE_ARRIVED);
}

/* The hold is told what the frame has. False: the kernel has more than `to` leaves it, and is told
 * to drop it. */
static bool frame_revoke(struct world *w, unsigned node, unsigned page, enum page_mode to)
{
	struct page_hold *h = &w->page[page].at[node].hold;
	struct frame *f = &w->page[page].at[node].frame;
	struct frame_image image = {.incarnation = f->image.incarnation,
		.version = f->image.version,
		.dirty = f->dirty,
		.hollow = f->hollow};

	if (f->hollow && to == PAGE_SHARED)
		to = PAGE_INVALID; /* its image must come first */
	if (f->kernel > (to == PAGE_SHARED ? KERNEL_READS : KERNEL_NOTHING)) {
		f->dropping = true;
		return false;
	}
	if (h->phase == PHASE_QUIET || h->phase == PHASE_ARRIVED)
		holder_observe(h, &image);
	return true;
}

/* What was granted is here; or what is shared has become this node's to persist. */
static void frame_arrived(struct world *w, unsigned node, unsigned page, unsigned phase)
{
	const struct page_hold *h = &w->page[page].at[node].hold;
	struct frame *f = &w->page[page].at[node].frame;
	bool came = phase == PHASE_GATHERING || phase == PHASE_ASKED;

	if (h->hold == RIGHT_NONE ||
		!(came ? h->phase == PHASE_ARRIVED || h->phase == PHASE_QUIET
		       : h->hold != RIGHT_EXCLUSIVE))
		return;
	f->dirty = h->flags & HOLD_DIRTY;
	f->hollow = h->flags & HOLD_HOLLOW;
	if (f->hollow)
		f->image = (struct image){h->incarnation, h->version};
}

/* Delivers a message that may take something from the node's frame, as the driver does. */
static int deliver_taking(struct world *w, unsigned to, const struct page_message *m,
	struct page_actions *out)
{
	struct world_page *pg = &w->page[page_number(w, m)];
	struct page_at at = world_at(w, to, page_number(w, m));
	struct page_hold *h = &pg->at[to].hold;
	enum page_mode takes = page_takes(&pg->entry, h, &at, m);

	if (takes != PAGE_EXCLUSIVE && !frame_revoke(w, to, page_number(w, m), takes))
		return page_decline(&pg->entry, h, &at, m, out);
	return page_on_message(&pg->entry, h, &at, m, out);
}

static bool may_take(const struct page_message *m)
{
	return m->type == PAGE_REQUEST || m->type == PAGE_COPY || m->type == PAGE_MOVE ||
	       m->type == PAGE_INVALIDATE;
}

static void world_deliver(struct world *w, unsigned to, const struct parcel *p)
{
	unsigned page = page_number(w, &p->m);
	struct world_page *pg = &w->page[page];
	struct page_at at = world_at(w, to, page);
	struct page_actions out = {0};
	struct page_hold *h = &pg->at[to].hold;
	bool image = (p->m.type == PAGE_GRANT || p->m.type == PAGE_GIVEN);
	struct frame *f = &pg->at[to].frame;
	unsigned phase = h->phase;
	int error;

	if (failure[0])
		return;
	trace("recv", p->m.sender, to, &p->m);
	/* the page was written to the frame before */
	if (image && (p->m.flags & PAGE_STORE))
		f->image = pg->store;
	else if (image && (p->m.flags & PAGE_IMAGE))
		f->image = p->image;
	if (p->m.type == PAGE_PERSISTED && f->image.incarnation == p->m.incarnation &&
		f->image.version == p->m.version)
		f->dirty = false;
	if (p->m.type == PAGE_EVICT)
		error = home_on_evict(
			&pg->entry, h, &at, &p->m, !pg->pulling, true, &out);
	else if (may_take(&p->m))
		error = deliver_taking(w, to, &p->m, &out);
	else
		error = page_on_message(&pg->entry, h, &at, &p->m, &out);
	HOLDS(!error, "%s from node %u cannot happen at node %u: %s %s, home %s",
		page_message_name(p->m.type), p->m.sender, to, page_right_name(h->hold),
		page_phase_name(h->phase), home_mode_name(pg->entry.mode));
	frame_arrived(w, to, page, phase);
	perform(w, to, page, &out);
}

/* ---- steps --------------------------------------------------------------------------------- */

enum step_kind {
	STEP_DELIVER,   /* a, b: link */
	STEP_READ,      /* a: node, b: page: an operation wants it shared */
	STEP_CHANGE,    /* the same, exclusive */
	STEP_OVERWRITE, /* the same, without the home's image */
	STEP_USE,       /* what has arrived is used as it was wanted for */
	STEP_LET_GO,    /* or not */
	STEP_TOUCH,     /* changed by the local hot path */
	STEP_EVICT,
	STEP_DOWNGRADE, /* exclusive to shared */
	STEP_ALONE,     /* b: page: its home shares it with nobody any more */
	STEP_SHIP,
	STEP_SHIP_OWED,
	STEP_PERSISTED, /* b: page: the oldest shipment is written */
	STEP_PULLED,    /* b: page */
	STEP_KCACHE,    /* to the kernel */
	STEP_KERNEL,    /* the kernel's pages are dropped */
	STEP_FREE,      /* the page is freed; the next incarnation is somebody's */
	STEP_FRESH,     /* a holder of the incarnation before takes it for the next */
	STEP_FILL,      /* the same, to be filled, and may change its mind */
	STEP_STALE,     /* wants what was freed, by a mapping that is past */
	STEP_KINDS
};

struct step {
	uint8_t kind, a, b;
};

static const char *const step_names[] = {"deliver", "read", "change", "overwrite", "use",
	"let go", "touch", "evict", "downgrade", "alone", "ship", "ship owed",
	"persisted", "pulled", "kcache", "kernel", "free", "fresh", "fill", "stale"};

static bool world_alone(const struct world *w, unsigned page)
{
	unsigned home = world_home(w, page);
	struct page_at at = world_at(w, home, page);

	return home_is_alone(&w->page[page].entry, &w->page[page].at[home].hold, &at);
}

static bool world_can(const struct world *w, struct step s)
{
	const struct world_page *pg = &w->page[s.b % WORLD_PAGES];
	const struct page_hold *h = &pg->at[s.a % WORLD_NODES].hold;
	const struct frame *f = &pg->at[s.a % WORLD_NODES].frame;
	bool fresh = f->image.incarnation == pg->newest.incarnation;

	switch (s.kind) {
	case STEP_DELIVER:
		return w->link[s.a][s.b].count > 0;
	case STEP_READ:
		return h->phase == PHASE_QUIET && h->hold == RIGHT_NONE;
	case STEP_CHANGE:
		return h->phase == PHASE_QUIET && h->hold != RIGHT_EXCLUSIVE;
	case STEP_OVERWRITE:
		return h->phase == PHASE_QUIET && h->hold == RIGHT_NONE;
	case STEP_USE:
	case STEP_LET_GO:
		return h->phase == PHASE_ARRIVED;
	case STEP_TOUCH:
		return h->phase == PHASE_QUIET && frame_may_change(w, s.a, s.b) && fresh &&
		       !f->hollow;
	case STEP_EVICT:
		if (s.a == world_home(w, s.b) && f->dirty)
			return false; /* the home persists it first */
		return h->phase == PHASE_QUIET && h->hold != RIGHT_NONE && !f->dropping;
	case STEP_DOWNGRADE:
		return h->phase == PHASE_QUIET && h->hold == RIGHT_EXCLUSIVE && !f->dirty &&
		       !f->hollow && !f->dropping;
	case STEP_ALONE:
		return world_alone(w, s.b);
	case STEP_SHIP:
		return h->hold != RIGHT_NONE && h->phase != PHASE_GATHERING && f->dirty;
	case STEP_SHIP_OWED:
		return h->owed_incarnation != 0;
	case STEP_PERSISTED:
		return pg->persists > 0;
	case STEP_PULLED:
		return pg->pulling;
	case STEP_KCACHE:
		return frame_may_read(w, s.a, s.b) && !f->kernel && !f->dropping;
	case STEP_KERNEL:
		return f->dropping;
	case STEP_FREE:
		return h->phase == PHASE_QUIET && h->hold == RIGHT_EXCLUSIVE && fresh &&
		       !f->kernel;
	case STEP_FRESH:
	case STEP_FILL:
		return frame_may_change(w, s.a, s.b) &&
		       f->image.incarnation < pg->newest.incarnation && !f->kernel;
	case STEP_STALE:
		return h->phase == PHASE_QUIET && h->hold == RIGHT_NONE &&
		       pg->newest.incarnation > 1;
	}
	return false;
}

/* It asks to have nothing, and uses nothing meanwhile. */
static bool leaves(const struct page_hold *h)
{
	return h->phase == PHASE_LEAVING && !(h->flags & HOLD_STAYS);
}

/* An operation uses the page. One that finds another incarnation starts over (ESTALE). */
static void use(struct world *w, unsigned node, unsigned page, bool change)
{
	struct world_page *pg = &w->page[page];
	struct frame *f = &pg->at[node].frame;

	if (f->image.incarnation != pg->newest.incarnation)
		return;
	if (!f->hollow)
		HOLDS(f->image.version == pg->newest.version,
			"node %u uses version %u, the newest is %u", node,
			(unsigned)f->image.version, (unsigned)pg->newest.version);
	if (!change)
		return;
	HOLDS(f->image.version == pg->newest.version, "node %u changes an old version", node);
	pg->newest.version++;
	f->image = pg->at[node].wrote = pg->newest;
	f->dirty = true;
	f->hollow = false;
	/* one writer, also in what is on its way */
	for (unsigned n = 0; n < w->nodes; n++) {
		const struct page_hold *o = &pg->at[n].hold;

		HOLDS(n == node || o->hold == RIGHT_NONE || leaves(o) ||
				o->incarnation != f->image.incarnation,
			"node %u changes what node %u has", node, n);
	}
}

static void world_persisted(struct world *w, unsigned page)
{
	struct world_page *pg = &w->page[page];
	unsigned home = world_home(w, page);
	struct page_at at = world_at(w, home, page);
	struct page_actions out = {0};
	struct parcel p = pg->persist[0];

	pg->persists--;
	memmove(pg->persist, pg->persist + 1, pg->persists * sizeof(p));
	memset(&pg->persist[pg->persists], 0, sizeof(p));
	if (image_order(p.image, pg->store) > 0)
		pg->store = p.image;
	home_persisted(&pg->entry, &at, &p.m, &out);
	perform(w, home, page, &out);
}

static void world_pulled(struct world *w, unsigned page)
{
	struct world_page *pg = &w->page[page];
	unsigned home = world_home(w, page);
	struct page_at at = world_at(w, home, page);
	struct page_actions out = {0};

	pg->pulling = false;
	pg->at[home].frame.image = pg->at[pg->pull_from].frame.image;
	HOLDS(!home_pulled(&pg->entry, &pg->at[home].hold, &at, pg->pull_from, &out),
		"an image pulled for nobody");
	pg->pull_from = 0;
	frame_arrived(w, home, page, PHASE_GATHERING);
	perform(w, home, page, &out);
}

static void world_want(struct world *w, struct step s)
{
	struct world_page *pg = &w->page[s.b];
	struct page_at at = world_at(w, s.a, s.b);
	struct page_actions out = {0};

	HOLDS(!requester_want(&pg->at[s.a].hold, &at,
		      s.kind == STEP_READ ? PAGE_SHARED : PAGE_EXCLUSIVE,
		      pg->newest.incarnation - (s.kind == STEP_STALE),
		      s.kind == STEP_OVERWRITE ? PAGE_HOLLOW : 0, 0, w->unconnected[s.a], 0,
		      &out),
		"busy");
	perform(w, s.a, s.b, &out);
}

static void world_link(struct world *w, unsigned from, unsigned to)
{
	struct link *l = &w->link[from][to];
	struct parcel p = l->parcel[0];

	l->count--;
	memmove(l->parcel, l->parcel + 1, l->count * sizeof(p));
	memset(&l->parcel[l->count], 0, sizeof(p));
	world_deliver(w, to, &p);
}

/* The node writes its dirty frame back: to its own store, or to its home's. */
static void world_ship(struct world *w, unsigned node, unsigned page)
{
	struct world_page *pg = &w->page[page];
	struct page_at at = world_at(w, node, page);
	struct page_actions out = {0};
	struct image image = pg->at[node].frame.image;

	if (node != world_home(w, page)) {
		holder_ship(&pg->at[node].hold, &at, image.incarnation, image.version, 0, 0,
			&out);
	} else {
		pg->store = image_order(image, pg->store) > 0 ? image : pg->store;
		home_wrote(&pg->entry, &pg->at[node].hold, &at, image.incarnation,
			image.version, &out);
	}
	perform(w, node, page, &out);
}

static void world_do(struct world *w, struct step s)
{
	struct world_page *pg = &w->page[s.b % WORLD_PAGES];
	struct page_hold *h = &pg->at[s.a % WORLD_NODES].hold;
	struct frame *f = &pg->at[s.a % WORLD_NODES].frame;
	struct page_at at = world_at(w, s.a, s.b);
	struct page_actions out = {0};

	switch (s.kind) {
	case STEP_DELIVER:
		world_link(w, s.a, s.b);
		return;
	case STEP_READ:
	case STEP_CHANGE:
	case STEP_OVERWRITE:
	case STEP_STALE:
		world_want(w, s);
		return;
	case STEP_USE:
		use(w, s.a, s.b, h->hold == RIGHT_EXCLUSIVE);
		requester_used(h, &at, &out);
		break;
	case STEP_LET_GO:
		use(w, s.a, s.b, false);
		requester_used(h, &at, &out);
		break;
	case STEP_TOUCH:
		use(w, s.a, s.b, true);
		return;
	case STEP_EVICT:
		if (frame_revoke(w, s.a, s.b, PAGE_INVALID))
			holder_evict(h, &at, 0, 0, &out);
		break;
	case STEP_DOWNGRADE:
		if (frame_revoke(w, s.a, s.b, PAGE_SHARED))
			HOLDS(!holder_downgrade(h, &at, 0, &out), "not to be downgraded");
		break;
	case STEP_ALONE:
		home_alone(&pg->entry, &pg->at[world_home(w, s.b)].hold);
		return;
	case STEP_SHIP:
		world_ship(w, s.a, s.b);
		return;
	case STEP_SHIP_OWED:
		holder_ship(h, &at, h->owed_incarnation, h->owed_version, 0, 0, &out);
		break;
	case STEP_PERSISTED:
		world_persisted(w, s.b);
		return;
	case STEP_PULLED:
		world_pulled(w, s.b);
		return;
	case STEP_KCACHE:
		f->kernel = frame_may_change(w, s.a, s.b) ? KERNEL_WRITES : KERNEL_READS;
		return;
	case STEP_KERNEL:
		f->dropping = false;
		f->kernel = KERNEL_NOTHING;
		world_replay(w, s.a, s.b);
		return;
	case STEP_FREE:
		pg->newest = (struct image){pg->newest.incarnation + 1, 0};
		return;
	case STEP_FRESH:
	case STEP_FILL: /* whatever is in the frame */
		HOLDS(!pg->newest.version, "what was allocated anew is zeros no more");
		*f = (struct frame){.image = pg->newest, .hollow = s.kind == STEP_FILL};
		return;
	}
	perform(w, s.a, s.b, &out);
}

/* ---- judging -------------------------------------------------------------------------------- */

static void check_page(const struct world *w, const struct world_page *pg)
{
	for (unsigned n = 0; n < w->nodes; n++) {
		const struct page_hold *h = &pg->at[n].hold;
		const struct frame *f = &pg->at[n].frame;
		struct image held = {h->incarnation, h->version};
		struct image wrote = pg->at[n].wrote;

		if (h->hold == RIGHT_EXCLUSIVE && h->phase != PHASE_LEAVING)
			for (unsigned o = 0; o < w->nodes; o++)
				HOLDS(o == n || pg->at[o].hold.hold == RIGHT_NONE ||
						leaves(&pg->at[o].hold),
					"node %u is exclusive, node %u holds too", n, o);
		if (h->hold != RIGHT_NONE && !f->hollow && h->phase != PHASE_GATHERING)
			HOLDS(h->hold == RIGHT_EXCLUSIVE
					? image_order(f->image, held) >= 0
					: image_order(f->image, held) == 0,
				"node %u has another image than it holds", n);
		HOLDS(h->hold != RIGHT_NONE || !f->kernel,
			"the kernel of node %u keeps what the node gave up", n);
		HOLDS(h->hold == RIGHT_EXCLUSIVE || f->kernel != KERNEL_WRITES ||
				h->phase == PHASE_LEAVING,
			"the kernel of node %u may write what the node shares", n);
		if (wrote.incarnation < pg->newest.incarnation)
			continue; /* freed */
		HOLDS(image_order(pg->store, wrote) >= 0 ||
				image_order(pg->at[n].owed, wrote) >= 0 ||
				(h->hold != RIGHT_NONE &&
					image_order(f->image, wrote) >= 0),
			"what node %u changed is lost if the others crash", n);
	}
	HOLDS(!image_order(pg->store, (struct image){pg->entry.stored_incarnation,
					      pg->entry.stored_version}),
		"the home does not know what it has persisted");
}

static void world_check(const struct world *w)
{
	for (unsigned p = 0; p < w->pages; p++)
		check_page(w, &w->page[p]);
}

/* Nothing is under way any more: nobody waits, nothing was forgotten. */
static void world_check_still(const struct world *w)
{
	for (unsigned p = 0; p < w->pages; p++)
		for (unsigned n = 0; n < w->nodes; n++) {
			const struct page_hold *h = &w->page[p].at[n].hold;

			HOLDS(h->phase == PHASE_QUIET,
				"node %u waits for ever for page %u, %s", n, p,
				page_phase_name(h->phase));
			HOLDS(!w->page[p].at[n].deferred.count,
				"node %u has deferred for ever", n);
			HOLDS((h->hold != RIGHT_NONE) ==
					!!(w->page[p].entry.holders & node_bit(n)),
				"the home is wrong about node %u", n);
			HOLDS((h->hold == RIGHT_EXCLUSIVE) ==
					(w->page[p].entry.mode == HOME_EXCLUSIVE &&
						w->page[p].entry.holders == node_bit(n)),
				"the home is wrong about the right of node %u", n);
		}
}

#endif
