/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page protocol explored: 2 to 4 nodes run its functions in the world of
 * tests/model/world.h, links and operations interleaved by a seed, crashes included. After
 * every step the invariants hold; when nothing new begins, everything ends.
 *
 * A run is a function of its seed, which a failure prints:
 *   WEFT_SIM_SEED=7 build/tests/unit/coherence_explore_test
 * WEFT_SIM_SEEDS= says how many there are, WEFT_SIM_TRACE=1 shows the messages.
 */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>
#include <errno.h>
#include <stdlib.h>

#include "tests/model/world.h"

#define SEEDS     4000
#define RUN_STEPS 600
#define STEPS_MAX 512

struct random {
	uint64_t state;
};

static uint32_t draw(struct random *r, uint32_t below)
{
	uint64_t z = r->state += 0x9e3779b97f4a7c15ull;

	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return (uint32_t)((z ^ (z >> 31)) >> 32) % below;
}

/* ---- a change of the cluster's epoch -------------------------------------------------- */

/* One shipment of each page is just being written: that ends in the new epoch. */
static void void_all(struct world *w, struct random *r)
{
	memset(w->link, 0, sizeof(w->link));
	for (unsigned p = 0; p < w->pages; p++) {
		struct world_page *pg = &w->page[p];

		pg->persists = pg->persists ? draw(r, 2) : 0;
		memset(pg->persist + pg->persists, 0,
			sizeof(pg->persist) - pg->persists * sizeof(pg->persist[0]));
		if (pg->persists)
			pg->persist[0].m.flags |= PAGE_OWED;
		pg->pulling = false;
		pg->pull_from = 0;
		for (unsigned n = 0; n < w->nodes; n++) {
			struct page_at at = world_at(w, n, p);
			struct page_actions out = {0};

			memset(&pg->at[n].deferred, 0, sizeof(pg->at[n].deferred));
			page_void(&pg->at[n].hold, &at, &out);
			perform(w, n, p, &out);
		}
	}
}

static void report(struct world *w, unsigned p, unsigned n, struct home_rebuild *r,
	const struct page_actions *out)
{
	for (unsigned i = 0; i < out->count; i++) {
		if (out->list[i].kind == PAGE_TAKE_OWED) {
			w->page[p].at[n].frame.image = w->page[p].at[n].owed;
			continue;
		}
		HOLDS(out->list[i].m.type == PAGE_REPORT, "not a report");
		HOLDS(!rebuild_on_report(r, &out->list[i].m),
			"node %u reports what contradicts the others", n);
	}
}

static void begin_rebuild(
	struct world *w, unsigned p, struct home_rebuild *r, struct random *random)
{
	struct world_page *pg = &w->page[p];

	if (pg->persists && draw(random, 2))
		world_persisted(w, p);
	rebuild_begin(&pg->entry, r);
	for (unsigned n = 0; n < w->nodes; n++) {
		struct page_at at = world_at(w, n, p);
		struct page_actions reports = {0};

		page_report(&pg->at[n].hold, &at, &reports);
		report(w, p, n, r, &reports);
	}
	/* the home waits for that: what it has persisted stands still while it rebuilds */
	if (pg->persists)
		world_persisted(w, p);
}

static void end_rebuild(struct world *w, unsigned p, struct home_rebuild *r)
{
	struct world_page *pg = &w->page[p];
	struct page_at home = world_at(w, world_home(w, p), p);
	struct page_actions out = {0};
	int e = rebuild_end(&pg->entry, r, &home, 0, &out);

	if (e == -EAGAIN) {
		struct page_actions reports = {0};
		unsigned n = (unsigned)__builtin_ctzll(out.list[0].nodes);
		struct page_at at = world_at(w, n, p);

		e = holder_on_reinstate(&pg->at[n].hold, &at, &out.list[0].m, &reports);
		HOLDS(!e, "node %u cannot be reinstated", n);
		report(w, p, n, r, &reports);
		frame_arrived(w, n, p, PHASE_QUIET);
		out.count = 0;
		e = rebuild_end(&pg->entry, r, &home, 0, &out);
	}
	HOLDS(!e, "page %u cannot be rebuilt: %d", p, e);
	perform(w, world_home(w, p), p, &out);
}

/* The newest that is left is the newest now. */
static void settle_newest(struct world *w, unsigned p)
{
	struct world_page *pg = &w->page[p];
	struct image left = pg->store;

	for (unsigned n = 0; n < w->nodes; n++) {
		const struct page_hold *h = &pg->at[n].hold;

		if (image_order(pg->at[n].owed, left) > 0)
			left = pg->at[n].owed;
		if (h->hold != RIGHT_NONE && !pg->at[n].frame.hollow &&
			image_order(pg->at[n].frame.image, left) > 0)
			left = pg->at[n].frame.image;
	}
	pg->newest.version =
		left.incarnation == pg->newest.incarnation ? left.version : 0;
}

static void step_do(struct world *w, struct step s)
{
	if (tracing)
		fprintf(stderr, "%s %u %u\n", step_names[s.kind], s.a, s.b);
	world_do(w, s);
	world_check(w);
}

/* Operations go on while the homes rebuild; no shared copy is dropped. */
static void meanwhile(struct world *w, struct random *r)
{
	static const uint8_t kinds[] = {STEP_DELIVER, STEP_DELIVER, STEP_READ,
		STEP_CHANGE, STEP_OVERWRITE, STEP_TOUCH, STEP_EVICT, STEP_DOWNGRADE,
		STEP_SHIP, STEP_KERNEL};

	for (unsigned i = draw(r, 30); i && !failure[0]; i--) {
		struct step s = {
			kinds[draw(r, ARRAY_SIZE(kinds))], (uint8_t)draw(r, w->nodes), 0};

		s.b = (uint8_t)draw(r, s.kind == STEP_DELIVER ? w->nodes : w->pages);
		if (!world_can(w, s))
			continue;
		if (s.kind == STEP_EVICT &&
			w->page[s.b].at[s.a].hold.hold == RIGHT_SHARED)
			continue;
		step_do(w, s);
	}
}

/* Node `crashed` loses all that it had in memory; w->nodes: none does, a link was cut. */
static void change_epoch(struct world *w, unsigned crashed, struct random *random)
{
	struct home_rebuild r[WORLD_PAGES];

	if (tracing)
		fprintf(stderr, "  epoch changes, node %u crashes\n", crashed);
	for (unsigned p = 0; p < w->pages && crashed < w->nodes; p++)
		memset(&w->page[p].at[crashed], 0, sizeof(w->page[p].at[crashed]));
	void_all(w, random);
	for (unsigned p = 0; p < w->pages; p++) {
		begin_rebuild(w, p, &r[p], random);
		settle_newest(w, p);
	}
	meanwhile(w, random);
	for (unsigned p = 0; p < w->pages; p++)
		end_rebuild(w, p, &r[p]);
	world_check(w);
}

/* ---- a run ------------------------------------------------------------------------------- */

/* How likely each kind of step is in this run: 0 never. */
struct profile {
	uint8_t weight[STEP_KINDS];
	unsigned crash; /* one in so many steps; 0: never */
	bool apart;     /* some do not hear some others */
};

static void profile_draw(struct profile *pr, struct random *r)
{
	static const uint8_t some[] = {0, 1, 1, 4, 10};

	for (unsigned k = 0; k < STEP_KINDS; k++)
		pr->weight[k] = some[draw(r, ARRAY_SIZE(some))];
	/* these must go on, slow or fast */
	pr->weight[STEP_DELIVER] = (uint8_t)(1 + draw(r, 12));
	pr->weight[STEP_USE] = (uint8_t)(1 + draw(r, 5));
	pr->weight[STEP_PERSISTED] = (uint8_t)(1 + draw(r, 5));
	pr->weight[STEP_PULLED] = (uint8_t)(1 + draw(r, 5));
	pr->weight[STEP_KERNEL] = (uint8_t)(1 + draw(r, 5));
	pr->crash = draw(r, 3) ? 0 : 20 + draw(r, 100);
	pr->apart = !draw(r, 4);
}

static bool goes_on(unsigned kind)
{
	return kind == STEP_DELIVER || kind == STEP_USE || kind == STEP_PERSISTED ||
	       kind == STEP_PULLED || kind == STEP_KERNEL;
}

/* Links have room for what is bounded; shipments and reports of persisting come without. */
static bool crowded(const struct world *w)
{
	unsigned most = 0;

	for (unsigned p = 0; p < w->pages; p++)
		most = MAX(most, w->page[p].persists);
	for (unsigned a = 0; a < w->nodes; a++)
		for (unsigned b = 0; b < w->nodes; b++)
			most = MAX(most, w->link[a][b].count);
	return most > 4;
}

/* One of the steps that can be taken; with `drain`, of those that begin nothing new. */
static bool pick(const struct world *w, const struct profile *pr, bool drain,
	struct random *r, struct step *out)
{
	struct step list[STEPS_MAX];
	unsigned weight[STEPS_MAX], count = 0, total = 0, at;
	bool full = crowded(w);

	for (unsigned kind = 0; kind < STEP_KINDS; kind++) {
		unsigned bs = kind == STEP_DELIVER ? w->nodes : w->pages;

		if (drain ? !goes_on(kind) : !pr->weight[kind])
			continue;
		if (full && (kind == STEP_SHIP || kind == STEP_SHIP_OWED || kind == STEP_FREE))
			continue;
		for (unsigned a = 0; a < w->nodes; a++)
			for (unsigned b = 0; b < bs; b++) {
				struct step s = {(uint8_t)kind, (uint8_t)a, (uint8_t)b};

				if ((a && (kind == STEP_PERSISTED ||
						  kind == STEP_PULLED ||
						  kind == STEP_ALONE)) ||
					!world_can(w, s))
					continue;
				list[count] = s;
				weight[count++] = drain ? 1 : pr->weight[kind];
			}
	}
	for (unsigned i = 0; i < count; i++)
		total += weight[i];
	if (!count)
		return false;
	at = draw(r, total);
	for (unsigned i = 0;; at -= weight[i++])
		if (at < weight[i]) {
			*out = list[i];
			return true;
		}
}

/* Everything that is under way comes to its end. */
static void drain(struct world *w, struct random *r)
{
	struct step s;

	for (unsigned i = 0; i < 10000 && !failure[0]; i++) {
		if (!pick(w, NULL, true, r, &s)) {
			world_check_still(w);
			return;
		}
		step_do(w, s);
	}
	FAIL("it never ends");
}

static void want_and_use(struct world *w, unsigned node, unsigned page, unsigned kind)
{
	struct step s = {(uint8_t)kind, (uint8_t)node, (uint8_t)page};
	struct random r = {1};

	if (world_can(w, s))
		step_do(w, s);
	drain(w, &r);
}

/* When all that is dirty has been persisted, nobody owes anything any more (10). */
static void persist_all(struct world *w, struct random *r)
{
	for (unsigned p = 0; p < w->pages; p++)
		for (unsigned n = 0; n < w->nodes && !failure[0]; n++) {
			struct step s = {STEP_SHIP, (uint8_t)n, (uint8_t)p};

			if (world_can(w, s))
				step_do(w, s);
			drain(w, r);
		}
	for (unsigned p = 0; p < w->pages; p++)
		for (unsigned n = 0; n < w->nodes; n++) {
			const struct page_hold *h = &w->page[p].at[n].hold;
			const struct image newest = w->page[p].newest;

			HOLDS(h->owed_incarnation != newest.incarnation,
				"node %u owes v%u of page %u for ever", n,
				(unsigned)h->owed_version, p);
			HOLDS(!w->page[p].at[n].frame.dirty ||
					w->page[p].at[n].frame.image.incarnation <
						newest.incarnation,
				"node %u is dirty for ever", n);
		}
}

static unsigned long steps_taken, crashes;

static void explore(uint64_t seed)
{
	static struct world w;
	struct random r = {seed * 0x1000003};
	struct profile pr;
	struct step s;
	unsigned nodes = 2 + draw(&r, WORLD_NODES - 1);

	failure[0] = '\0';
	world_init(&w, nodes, 1 + draw(&r, WORLD_PAGES));
	profile_draw(&pr, &r);
	for (unsigned i = 0; i < RUN_STEPS && !failure[0]; i++) {
		if (pr.crash && !draw(&r, pr.crash)) {
			change_epoch(&w, draw(&r, nodes + 1), &r);
			crashes++;
		}
		if (pr.apart && !draw(&r, 8)) {
			unsigned n = draw(&r, nodes);

			w.unconnected[n] = draw(&r, 1u << nodes) & ~(1u << n);
		}
		if (!pick(&w, &pr, false, &r, &s))
			break;
		step_do(&w, s);
		steps_taken++;
	}
	if (!failure[0])
		drain(&w, &r);
	memset(w.unconnected, 0, sizeof(w.unconnected));
	for (unsigned p = 0; p < w.pages; p++)
		for (unsigned n = 0; n < nodes && !failure[0]; n++)
			want_and_use(&w, n, p, draw(&r, 2) ? STEP_READ : STEP_CHANGE);
	persist_all(&w, &r);
}

static unsigned long setting(const char *name, unsigned long otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoul(text, NULL, 10) : otherwise;
}

static void invariants_hold_in_every_interleaving(void **state)
{
	unsigned long first = setting("WEFT_SIM_SEED", 1);
	unsigned long seeds =
		getenv("WEFT_SIM_SEED") ? 1 : setting("WEFT_SIM_SEEDS", SEEDS);

	tracing = setting("WEFT_SIM_TRACE", 0);
	for (unsigned long seed = first; seed < first + seeds; seed++) {
		explore(seed);
		if (failure[0])
			fail_msg("%s\nrepeat: WEFT_SIM_SEED=%lu "
				 "build/tests/unit/coherence_explore_test",
				failure, seed);
	}
	tracing = false;
	if (seeds > 1) { /* it did explore */
		assert_true(steps_taken > seeds * RUN_STEPS / 2);
		assert_true(crashes > seeds / 10);
		/* what comes after is not about a page */
		for (unsigned i = 0; i < PAGE_EPOCH - PAGE_MESSAGE_FIRST; i++)
			if (i != PAGE_REPORT - PAGE_MESSAGE_FIRST &&
				i != PAGE_REINSTATE - PAGE_MESSAGE_FIRST)
				assert_true(sent[i] > seeds / 10);
		assert_true(spared > seeds / 10 && refetched > seeds / 50);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(invariants_hold_in_every_interleaving),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
