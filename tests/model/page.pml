/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page protocol under the model checker (docs/protocol.md): every interleaving of 3
 * nodes, node 0 the home of page 0.
 *
 * The transitions are engine/coherence's own functions, run in the world of world.h: the
 * model cannot differ from what the daemon does. What is modelled here is who acts when:
 * each link delivers, each node begins operations and ends them, the home's disk works.
 * Operations begin without end; versions and epochs are finite because states that behave
 * alike are one (state.h), with the real functions compiled for short, wrapping epochs.
 *
 *   safety        after each step world_check: one writer, no page lost, only the newest
 *                 version is used, nothing happens that cannot; and no deadlock: where
 *                 nothing is on its way and nobody has work, nobody waits
 *   starvation    whoever asks is granted, if links, nodes and the disk go on (weak
 *                 fairness of processes)
 *
 * tests/model/run says with which of these it is checked:
 *   UPGRADE  operations read and change     OVERWRITE  and overwrite without the image
 *   EVICT    pages, or the right to change  SHIP       dirty images are persisted
 *            them, are given up
 *   KERNEL   pages are shown to the kernel  BUDGET=n   only n operations begin in all
 */
c_decl {
	\#include "tests/model/state.h"
	static struct world W;
	static uint8_t known[STATE_BYTES];
	static bool loaded;
}
c_state "unsigned char state[STATE_BYTES]" "Global"

byte asks;      /* map of nodes that wait for a grant of page 0 */
bool failed;
#ifdef BUDGET
byte budget = BUDGET;
#endif

c_code {
	/* The world of the state that is being looked at. */
	static struct world *world_now(void)
	{
		if (!loaded || memcmp(known, now.state, STATE_BYTES)) {
			world_unpack(now.state, &W);
			memcpy(known, now.state, STATE_BYTES);
			loaded = true;
		}
		return &W;
	}

	static struct step step_of(unsigned kind, unsigned a, unsigned b)
	{
		struct step s = {(uint8_t)kind, (uint8_t)a, (uint8_t)b};

		return s;
	}

	static bool can(unsigned kind, unsigned a, unsigned b)
	{
		return world_can(world_now(), step_of(kind, a, b));
	}

	/* Few shipments and reports of them at a time: more of them say nothing new. */
	static bool can_ship(unsigned kind, unsigned node, unsigned page)
	{
		struct world *w = world_now();
		unsigned busy = w->page[page].persists;

		for (unsigned a = 0; a < WORLD_NODES; a++)
			for (unsigned b = 0; b < WORLD_NODES; b++)
				for (unsigned i = 0; i < w->link[a][b].count; i++) {
					unsigned type = w->link[a][b].parcel[i].m.type;

					busy += type == PAGE_SHIP || type == PAGE_PERSISTED;
				}
		return !busy && can(kind, node, page);
	}

	static bool still(struct world *w)
	{
		for (unsigned a = 0; a < WORLD_NODES; a++)
			for (unsigned b = 0; b < WORLD_NODES; b++)
				if (w->link[a][b].count ||
					(b < WORLD_PAGES && (can(STEP_USE, a, b) ||
						can(STEP_KERNEL, a, b) || can(STEP_PULLED, 0, b) ||
						can(STEP_PERSISTED, 0, b))))
					return false;
		return true;
	}

	static void act(unsigned kind, unsigned a, unsigned b)
	{
		struct world *w = world_now();

		failure[0] = 0;
		if (tracing)
			fprintf(stderr, "step %s %u %u\n", step_names[kind], a, b);
		world_do(w, step_of(kind, a, b));
		world_check(w);
		if (!failure[0] && still(w))
			world_check_still(w);
		if (!failure[0])
			world_pack(w, now.state);
		memcpy(known, now.state, STATE_BYTES);
		now.asks = 0;
		for (unsigned n = 0; n < WORLD_NODES; n++)
			if (w->page[0].at[n].hold.flags & HOLD_WANTED &&
				w->page[0].at[n].hold.phase != PHASE_ARRIVED)
				now.asks |= 1 << n;
		if (failure[0]) {
			now.failed = 1;
			loaded = false;
			printf("failed: %s\n", failure);
		}
	}
};

#define STEP(kind, a, b) \
	atomic { c_expr { (can(kind, a, b)) } -> c_code { act(kind, a, b); }; assert(!failed) }
#ifdef BUDGET
#define BEGIN(kind, a, b) \
	atomic { c_expr { (now.budget > 0 && can(kind, a, b)) } -> budget--; \
		c_code { act(kind, a, b); }; assert(!failed) }
#else
#define BEGIN(kind, a, b) STEP(kind, a, b)
#endif

proctype link(byte from; byte to)
{
end:	do
	:: STEP(STEP_DELIVER, Plink->from, Plink->to)
	od
}

/* What has arrived is used, what the kernel has is dropped when it must be. */
proctype worker(byte node)
{
end:	do
	:: STEP(STEP_USE, Pworker->node, 0)
#ifdef KERNEL
	:: STEP(STEP_KERNEL, Pworker->node, 0)
#endif
#if WORLD_PAGES > 1
	:: STEP(STEP_USE, Pworker->node, 1)
#endif
	od
}

proctype disk(byte page)
{
end:	do
#ifdef EVICT
	:: STEP(STEP_PULLED, 0, Pdisk->page)
#endif
#ifdef SHIP
	:: STEP(STEP_PERSISTED, 0, Pdisk->page)
#endif
	:: false
	od
}

#ifdef OVERWRITE
#define OVERWRITES(n, p) :: BEGIN(STEP_OVERWRITE, n, p)
#else
#define OVERWRITES(n, p)
#endif
#ifdef EVICT
#define EVICTS(n, p) :: BEGIN(STEP_EVICT, n, p) :: BEGIN(STEP_DOWNGRADE, n, p)
#define ALONE(p) :: BEGIN(STEP_ALONE, 0, p)
#else
#define EVICTS(n, p)
#define ALONE(p)
#endif
#ifdef KERNEL
#define KCACHES(n, p) :: BEGIN(STEP_KCACHE, n, p)
#else
#define KCACHES(n, p)
#endif
#ifdef SHIP
#define SHIPS(n, p) \
	:: atomic { c_expr { (can_ship(STEP_SHIP, n, p)) } -> \
		c_code { act(STEP_SHIP, n, p); }; assert(!failed) } \
	:: atomic { c_expr { (can_ship(STEP_SHIP_OWED, n, p)) } -> \
		c_code { act(STEP_SHIP_OWED, n, p); }; assert(!failed) }
#else
#define SHIPS(n, p)
#endif
#define OPERATIONS(n, p) \
	:: BEGIN(STEP_READ, n, p) \
	:: BEGIN(STEP_CHANGE, n, p) \
	OVERWRITES(n, p) EVICTS(n, p) KCACHES(n, p) SHIPS(n, p)

/* Begins operations, any number or none. */
proctype user()
{
end:	do
	OPERATIONS(0, 0)
	OPERATIONS(1, 0)
	OPERATIONS(2, 0)
	ALONE(0)
#if WORLD_PAGES > 1
	OPERATIONS(0, 1)
	OPERATIONS(1, 1)
	OPERATIONS(2, 1)
	ALONE(1)
#endif
#ifdef STARVATION
	:: true -> true /* rests: fairness must not make operations begin */
#endif
	od
}

init {
	atomic {
		c_code {
			world_init(&W, WORLD_NODES, WORLD_PAGES);
			tracing = getenv("TRACE") != NULL;
			failure[0] = 0;
			world_pack(&W, now.state);
			loaded = false;
			now.failed = failure[0] != 0;
		};
		assert(!failed);
		run link(0, 1); run link(0, 2); run link(1, 0);
		run link(1, 2); run link(2, 0); run link(2, 1);
		run worker(0); run worker(1); run worker(2);
#if defined(EVICT) || defined(SHIP)
		run disk(0);
#if WORLD_PAGES > 1
		run disk(1);
#endif
#endif
		run user();
	}
}

#ifdef STARVATION
ltl granted { [] ((asks & (1 << STARVATION)) -> <> !(asks & (1 << STARVATION))) }
#endif
