/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For simulations of several nodes: what must hold of a page at any moment, on all nodes at
 * once.
 *
 * What has become of each page is known from the changes themselves (cache_watch): no test needs
 * to know what it has changed. All of a page is looked at as it is at one moment (rt_sim_look): it
 * may be another node's task that looks, and if others ran meanwhile this one could lose its
 * power, with its memory. What somebody is just changing under a lock cannot be looked at, and is
 * taken as right.
 *
 *   1  who may change a page is alone;
 *   2  what a node has changed it has, or owes, or has had persisted;
 *   3  what has left a node is in its log, if it was changed together with other pages, or was
 *      to be named by an extent first;
 *   4  a change adds one to the last version that there is, and only who may change the page makes
 *      one; what a record adds to is in the same log; whoever may read a page has the last
 *      version, and of one version there is one image;
 *   8  what was never changed is zeros.
 *
 * And at the end, when nothing is under way any more (look_directory):
 *
 *   7  each home knows just who has its pages, be it that all were told to it again after a
 *      change of the cluster's epoch.
 */
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>

#include "engine/cache/cache_internal.h"
#include "engine/coherence/peers.h"
#include "engine/coherence/protocol/protocol.h"
#include "engine/rt/rt_sim.h"
#include "engine/store/store_internal.h"
#include "engine/volume/volume.h"
#include "tests/sim/seeds.h"
#include "tests/world/check.h"

#define LOOK_NODES (SIM_NODES_MAX + 1) /* they count from 1 */

/* What a node has done to a page. */
struct look_part {
	uint64_t incarnation, version; /* changed last */
	uint64_t before, until; /* up to this version: not to leave before this lsn */
	uint64_t logged;        /* the version of its last record; not of a life before */
	unsigned life;
};

struct look_page {
	page_id pid;
	bool known;
	uint64_t incarnation, version; /* changed last, by whomever */
	uint64_t asked; /* the last incarnation that anybody has asked for */
	uint64_t sum;   /* of the image of that version, if `summed` */
	bool summed;
	/* who had changed it last has crashed: it may be an earlier version again */
	bool doubt;
	struct look_part part[LOOK_NODES];
};

struct look_node {
	struct coherence *coherence; /* NULL: it is not to be looked at */
	const struct coherence_ops *real;
	struct coherence_ops ops;
	unsigned life;
};

static struct {
	struct look_node node[LOOK_NODES];
	struct look_page **page; /* by a hash of the PID; a power of two of places */
	uint64_t room, pages;
	uint64_t epoch;       /* the highest of the cluster's that was seen */
	uint64_t every, next; /* of so many messages one is looked at; 0: of none */
} lookout;

struct look_sums look_sums;

/* ---- pages --------------------------------------------------------------------------------- */

static uint64_t look_hash(page_id pid)
{
	return (pid * 0x9e3779b97f4a7c15ull) >> 20;
}

static struct look_page **look_place(page_id pid)
{
	uint64_t at = look_hash(pid) & (lookout.room - 1);

	while (lookout.page[at] && lookout.page[at]->pid != pid)
		at = (at + 1) & (lookout.room - 1);
	return &lookout.page[at];
}

static void look_grow(void)
{
	struct look_page **old = lookout.page;
	uint64_t room = lookout.room;

	lookout.room = room ? 2 * room : 4096;
	lookout.page = (struct look_page **)calloc(lookout.room, sizeof(*lookout.page));
	WEFT_ASSERT(lookout.page);
	for (uint64_t i = 0; i < room; i++)
		if (old[i])
			*look_place(old[i]->pid) = old[i];
	free(old);
}

static struct look_page *look_get(page_id pid)
{
	struct look_page **at, *p = lookout.room ? *look_place(pid) : NULL;

	if (p)
		return p;
	if (2 * lookout.pages >= lookout.room)
		look_grow();
	p = (struct look_page *)calloc(1, sizeof(*p));
	WEFT_ASSERT(p);
	p->pid = pid;
	at = look_place(pid);
	*at = p;
	lookout.pages++;
	return p;
}

/* Of its present life. A log that was there before has what it has. */
static struct look_part *look_part(struct look_page *p, unsigned id)
{
	struct look_part *a = &p->part[id];
	unsigned life = lookout.node[id].life;

	if (a->life != life)
		*a = (struct look_part){
			.life = life, .logged = life > 1 ? UINT64_MAX : 0};
	return a;
}

/* Forgets all pages: tools have changed stores, or the run has ended. */
void look_forget(void)
{
	for (uint64_t i = 0; i < lookout.room; i++)
		free(lookout.page[i]);
	free(lookout.page);
	lookout.page = NULL;
	lookout.room = lookout.pages = 0;
}

static struct cache *look_cache(unsigned id)
{
	return lookout.node[id].coherence
		       ? (struct cache *)lookout.node[id].coherence->cache
		       : NULL;
}

static __attribute__((noreturn)) void look_failed(const struct look_page *p)
{
	fprintf(stderr,
		"page %" PRIx64 ": changed last to %" PRIu64 ".%" PRIu64
		"%s, asked for as %" PRIu64 "\n",
		p->pid, p->incarnation, p->version, p->doubt ? ", which may be lost" : "",
		p->asked);
	for (unsigned id = 1; id < LOOK_NODES; id++) {
		const struct look_part *a = &p->part[id];
		struct cache *c = look_cache(id);
		struct frame *f = c ? table_find(c, p->pid) : NULL;

		if (a->incarnation)
			fprintf(stderr,
				"  node %u changed %" PRIu64 ".%" PRIu64 "; %" PRIu64
				" until its log is at %" PRIu64 "\n",
				id, a->incarnation, a->version, a->before, a->until);
		if (f)
			fprintf(stderr,
				"  node %u has %" PRIu64 ".%" PRIu64
				", mode %u, flags %x, latch %" PRIx64 "\n",
				id, f->incarnation, f->version,
				(unsigned)atomic_load(&f->mode), frame_flags(f),
				atomic_load(&f->latch));
	}
	abort();
}

/* ---- what is looked for --------------------------------------------------------------------- */

/* What the store of the page's home has. -EAGAIN: it cannot be looked at now. */
static int look_stored(page_id pid, struct page_descriptor *out)
{
	unsigned home = pid_shard(pid) + 1u;
	struct cache *c = home < LOOK_NODES ? look_cache(home) : NULL;
	int e = -EAGAIN;

	/* a home that has just lost its power has its store all the same: not looked at */
	if (c && rt_mutex_trylock(&c->store->table.lock)) {
		rt_mutex_unlock(&c->store->table.lock);
		e = store_descriptor_try(c->store, pid, out);
	}
	look_sums.stored++;
	look_sums.blind += e != 0;
	return e;
}

/* Has the home's store that image, or a later one? `blind`: if that cannot be told. */
static bool look_persisted(page_id pid, uint64_t in, uint64_t version, bool blind)
{
	struct page_descriptor stored;

	if (look_stored(pid, &stored))
		return blind;
	return page_order(stored.incarnation, stored.version, in, version) >= 0;
}

static bool look_reaches(const struct frame *f, uint64_t in, uint64_t version)
{
	return page_order(f->incarnation, f->version, in, version) >= 0;
}

static bool look_listed(const struct cache *c, uint32_t frame)
{
	for (uint32_t i = 0; i < c->revoke.owed_count; i++)
		if (c->revoke.owed[i].frame == frame)
			return true;
	return false;
}

/*
 * Does the node owe that image, or a later one? Or is what was owed just becoming the page again
 * (give_reown)? It is off the list then, its place there is kept, and it is not in the table yet:
 * its frame says that it is owed, and not of which page.
 */
static bool look_owes(struct cache *c, page_id pid, uint64_t in, uint64_t version)
{
	bool found = false;

	if (!rt_mutex_trylock(&c->revoke.lock))
		return true; /* it is just being changed */
	for (uint32_t i = 0; i < c->revoke.owed_count; i++)
		found |= c->revoke.owed[i].pid == pid &&
			 look_reaches(&c->frames.frame[c->revoke.owed[i].frame], in, version);
	for (uint32_t k = 0; k < c->frames.count && c->revoke.reserved && !found; k++) {
		const struct frame *f = &c->frames.frame[k];

		found = (frame_flags(f) & FRAME_OWED) && f->incarnation == in &&
			f->version >= version && !look_listed(c, k);
	}
	rt_mutex_unlock(&c->revoke.lock);
	return found;
}

/* Somebody changes it; not so where it is waited for. */
static bool look_latched(const struct frame *f)
{
	return (atomic_load(&f->latch) & LATCH_EXCLUSIVE) &&
	       !(frame_flags(f) & FRAME_LOADING);
}

/* (2) Of a page that was freed and allocated anew an earlier incarnation is nobody's. */
static void look_at_change(unsigned id, struct look_page *p)
{
	const struct look_part *a = look_part(p, id);
	struct cache *c = look_cache(id);
	const struct frame *f = table_find(c, p->pid);

	if (!a->incarnation || p->asked > a->incarnation)
		return;
	if (f && (look_latched(f) || look_reaches(f, a->incarnation, a->version)))
		return;
	if (look_owes(c, p->pid, a->incarnation, a->version) ||
		look_persisted(p->pid, a->incarnation, a->version, true))
		return;
	fprintf(stderr, "node %u has changed page %" PRIx64 ", which is nowhere\n", id,
		p->pid);
	look_failed(p);
}

/* (3) Is it with another node, or in its home's store, and not in the log yet? */
static void look_at_log(unsigned id, struct look_page *p)
{
	const struct look_part *a = look_part(p, id);
	struct cache *c = look_cache(id);
	bool left = false;

	if (!a->before || p->asked > a->incarnation || log_durable(c->log) >= a->until)
		return;
	for (unsigned k = 1; k < LOOK_NODES; k++) {
		struct frame *f = k != id && look_cache(k)
					  ? table_find(look_cache(k), p->pid)
					  : NULL;

		left |= f && !(frame_flags(f) & FRAME_ASKING) &&
			look_reaches(f, a->incarnation, a->before);
	}
	if (!left && !look_persisted(p->pid, a->incarnation, a->before, false))
		return;
	fprintf(stderr,
		"page %" PRIx64 " has left node %u at version %" PRIu64
		", or a later one; its log is durable to %" PRIu64
		", and should be so to %" PRIu64 " first\n",
		p->pid, id, a->before, (uint64_t)log_durable(c->log), a->until);
	look_failed(p);
}

static uint64_t look_sum(const uint8_t *image)
{
	uint64_t sum = 0;

	for (unsigned at = 0; at < PAGE_SIZE; at += 8)
		sum = (sum ^ page_load_u64(image + at)) * 0x9e3779b97f4a7c15ull;
	return sum;
}

/* (8) and (4), of a frame that guards here may read, and nobody is changing. */
static void look_at_image(unsigned id, struct look_page *p, struct frame *f)
{
	const uint8_t *image = frame_image(look_cache(id), f);
	const char *wrong = NULL;
	uint64_t sum;

	if (f->version == 0) {
		for (unsigned at = 0; at < PAGE_SIZE; at += 8)
			if (page_load_u64(image + at))
				wrong = "was never changed, and is no zeros";
	}
	/* of one that was freed meanwhile what is left may be anything */
	if (!wrong && (!p->known || p->doubt || p->asked > p->incarnation))
		return;
	if (!wrong && page_order(f->incarnation, f->version, p->incarnation, p->version))
		wrong = "is not the last version";
	sum = look_sum(image);
	if (!wrong && p->summed && sum != p->sum)
		wrong = "is not the image that there was of this version";
	p->summed = true;
	p->sum = sum;
	if (!wrong)
		return;
	fprintf(stderr, "what node %u reads of page %" PRIx64 " %s\n", id, p->pid, wrong);
	look_failed(p);
}

static void look_over(struct look_page *p)
{
	uint64_t holders = 0, writers = 0;

	for (unsigned id = 1; id < LOOK_NODES; id++) {
		struct cache *c = look_cache(id);
		struct frame *f = c ? table_find(c, p->pid) : NULL;

		/* latched by a request: it is used by nobody, and says what was */
		if (f && (frame_flags(f) & FRAME_ASKING))
			f = NULL;
		if (f && mode_allows(f, PAGE_SHARED)) {
			holders |= 1ull << id;
			if (mode_allows(f, PAGE_EXCLUSIVE))
				writers |= 1ull << id;
			if (!(atomic_load(&f->latch) & LATCH_EXCLUSIVE) &&
				!(frame_flags(f) & FRAME_HOLLOW))
				look_at_image(id, p, f);
		}
		if (c) {
			look_at_change(id, p);
			look_at_log(id, p);
		}
	}
	if (writers && (writers & (writers - 1) || holders != writers)) {
		fprintf(stderr,
			"nodes %" PRIx64 " may change the page, nodes %" PRIx64
			" read it\n",
			writers, holders);
		look_failed(p);
	}
	look_sums.looks++;
}

/* ---- when it is looked at ------------------------------------------------------------------- */

void look_page(page_id pid)
{
	rt_sim_look(true);
	look_over(look_get(pid));
	rt_sim_look(false);
}

void look_pages(void)
{
	rt_sim_look(true);
	for (uint64_t i = 0; i < lookout.room; i++)
		if (lookout.page[i])
			look_over(lookout.page[i]);
	rt_sim_look(false);
}

/* A node has heard, and done, that: its page is looked at, or all of them, in a new epoch. */
void look_message(const struct net_message *m)
{
	struct page_message said;

	memcpy(&said, m, sizeof(said));
	if (!lookout.every || said.type < PAGE_MESSAGE_FIRST ||
		said.type >= PAGE_MESSAGE_END)
		return;
	if (said.cluster_epoch > lookout.epoch) {
		lookout.epoch = said.cluster_epoch;
		look_pages();
	} else if (said.type < PAGE_EPOCH && ++lookout.next >= lookout.every) {
		lookout.next = 0;
		look_page(said.pid);
	}
}

/* ---- what becomes of pages ------------------------------------------------------------------- */

static unsigned look_node_of(const struct coherence *c)
{
	for (unsigned id = 1; id < LOOK_NODES; id++)
		if (lookout.node[id].coherence == c)
			return id;
	return 0;
}

/* Whoever asks for a later incarnation knows that earlier ones were freed. */
static void look_acquire(
	struct coherence *c, struct coherence_request *requests, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		if (requests[i].incarnation) {
			struct look_page *p = look_get(requests[i].pid);

			p->asked = MAX(p->asked, requests[i].incarnation);
		}
	lookout.node[look_node_of(c)].real->acquire(c, requests, count);
}

/* The last change that cannot be lost: who made it lives. */
static int look_order_of_safe(struct look_page *p, uint64_t in, uint64_t version)
{
	int order = 1;

	for (unsigned id = 1; id < LOOK_NODES; id++) {
		const struct look_part *a = look_cache(id) ? look_part(p, id) : NULL;

		if (a && a->incarnation)
			order = MIN(order,
				page_order(in, version, a->incarnation, a->version));
	}
	return order;
}

/* (4) The latched frame has just got its version. */
static void look_at_version(unsigned id, struct look_page *p, const struct frame *f,
	const struct look_part *a, enum cache_change what)
{
	const char *wrong = NULL;

	if (!mode_allows(f, PAGE_EXCLUSIVE) ||
		!(atomic_load(&f->latch) & LATCH_EXCLUSIVE))
		wrong = "has no right to it";
	else if (p->known && !p->doubt && f->incarnation == p->incarnation &&
		 f->version != p->version + 1)
		wrong = "adds to another version than the last";
	else if (p->known && !p->doubt && f->incarnation > p->incarnation &&
		 f->version != 1)
		wrong = "begins a new incarnation with another version than 1";
	else if (p->known && !p->doubt && f->incarnation < p->incarnation)
		wrong = "changes an incarnation that is over";
	else if (look_order_of_safe(p, f->incarnation, f->version) <= 0)
		wrong = "adds to a version before the last that cannot be lost";
	else if (what == CACHE_LOGGED && a->logged != UINT64_MAX &&
		 (a->incarnation != f->incarnation || a->logged != f->version - 1))
		wrong = "adds a record to what is not in its log";
	if (!wrong)
		return;
	fprintf(stderr,
		"node %u changes page %" PRIx64 " to %" PRIu64 ".%" PRIu64
		", and %s (in its log: %" PRIu64 ")\n",
		id, p->pid, f->incarnation, f->version, wrong, a->logged);
	look_failed(p);
}

static void look_changed(
	struct cache *c, struct frame *f, enum cache_change what, lsn_t until)
{
	unsigned id = look_node_of(c->coherence);
	struct look_page *p = look_get(atomic_load(&f->pid));
	struct look_part *a = look_part(p, id);

	look_sums.changes++;
	if (!id) { /* not one of the cluster's: yet, any more, or at all */
		p->known = p->summed = false;
		return;
	}
	if (what == CACHE_PUBLISHED) {
		if (a->incarnation == f->incarnation) {
			a->before = MAX(a->before, 1u);
			a->until = until;
		}
		return;
	}
	if (what == CACHE_UNMADE) {
		*a = (struct look_part){.life = a->life};
		if (p->incarnation == f->incarnation)
			p->version = 0;
		p->summed = false;
		return;
	}
	rt_sim_look(true);
	look_at_version(id, p, f, a, what);
	if (a->incarnation != f->incarnation)
		*a = (struct look_part){.life = a->life};
	a->incarnation = f->incarnation;
	a->version = f->version;
	a->logged = what == CACHE_CHANGED ? 0 : f->version;
	if (until != LSN_NONE) {
		a->before = f->version;
		a->until = until;
	}
	p->incarnation = f->incarnation;
	p->version = f->version;
	p->asked = MAX(p->asked, p->incarnation);
	p->known = true;
	p->doubt = p->summed = false;
	look_over(p);
	rt_sim_look(false);
}

/* ---- nodes ----------------------------------------------------------------------------------- */

static void look_lost(void *arg);

/* The calling task's node has recovered, and is about to meet the others. */
void look_up(unsigned id, struct coherence *c)
{
	struct look_node *n = &lookout.node[id];

	if (!c->cache)
		return;
	n->life++;
	n->coherence = c;
	n->real = c->ops;
	n->ops = *c->ops;
	n->ops.acquire = look_acquire;
	c->ops = &n->ops;
	rt_on_crash(look_lost, n);
}

static void look_gone(struct look_node *n, bool lost)
{
	unsigned id = (unsigned)(n - lookout.node);

	if (!n->coherence)
		return;
	n->coherence = NULL;
	for (uint64_t i = 0; i < lookout.room && lost; i++) {
		struct look_page *p = lookout.page[i];

		if (p && p->known && p->part[id].life == n->life)
			p->doubt |= look_order_of_safe(p, p->incarnation, p->version) > 0;
	}
}

/* Its power is gone. */
static void look_lost(void *arg)
{
	look_gone((struct look_node *)arg, true);
}

static void look_ends(unsigned id, bool lost)
{
	struct look_node *n = &lookout.node[id];

	if (!n->coherence)
		return;
	n->coherence->ops = n->real;
	rt_on_crash_forget(look_lost, n);
	look_gone(n, lost);
}

/* It leaves; whatever it had is persisted, or with others. The calling task is of that node. */
void look_down(unsigned id)
{
	look_ends(id, false);
}

/* Likewise, but its log is about to fail: what is not durable may be lost. */
void look_fails(unsigned id)
{
	look_ends(id, true);
}

/*
 * The peers of a node that is opened as the daemon does it, so that it is looked at from when it
 * may be met until it goes. Its messages are not; what they change is.
 */
static struct look_peers {
	struct volume_peers real, ops;
} look_members[LOOK_NODES];

static int look_open(
	void *arg, struct volume *v, struct coherence_options *out, struct weft_error *err)
{
	struct look_peers *p = (struct look_peers *)arg;

	return p->real.open(p->real.arg, v, out, err);
}

static int look_start(void *arg, struct volume *v, struct weft_error *err)
{
	struct look_peers *p = (struct look_peers *)arg;

	look_up((unsigned)(p - look_members), v->coherence);
	return p->real.start(p->real.arg, v, err);
}

static void look_stop(void *arg, struct volume *v)
{
	struct look_peers *p = (struct look_peers *)arg;

	look_down((unsigned)(p - look_members));
	p->real.stop(p->real.arg, v);
}

static int look_settle(void *arg, struct volume *v)
{
	struct look_peers *p = (struct look_peers *)arg;

	return p->real.settle(p->real.arg, v);
}

static bool look_vacant(void *arg, unsigned node)
{
	struct look_peers *p = (struct look_peers *)arg;

	return p->real.vacant(p->real.arg, node);
}

const struct volume_peers *look_peers(
	unsigned id, const struct volume_peers *real)
{
	struct look_peers *p = &look_members[id];

	p->real = *real;
	p->ops = (struct volume_peers){
		look_open, look_start, look_stop, p, look_settle, look_vacant};
	return &p->ops;
}

/* ---- the directory ---------------------------------------------------------------------------- */

#define LOOK_DIRECTORY_TRIES 1200u /* a DROP waits for what follows on its link, or for a tick of that */
#define LOOK_DIRECTORY_NS    5000000ull

/* Who has the page, by the frames. */
static uint64_t look_holders(page_id pid, uint64_t *writers)
{
	uint64_t holders = 0;

	*writers = 0;
	for (unsigned id = 1; id < LOOK_NODES; id++) {
		struct cache *c = look_cache(id);
		struct frame *f = c ? table_find(c, pid) : NULL;

		if (!f || (frame_flags(f) & FRAME_LOADING) || !frame_right(f))
			continue;
		holders |= 1ull << id;
		if (frame_right(f) == PAGE_EXCLUSIVE)
			*writers |= 1ull << id;
	}
	return holders;
}

static uint64_t look_owing(page_id pid)
{
	uint64_t owing = 0;

	for (unsigned id = 1; id < LOOK_NODES; id++)
		if (look_cache(id) && look_owes(look_cache(id), pid, 0, 0))
			owing |= 1ull << id;
	return owing;
}

/* (7) False: the home knows something else than is so, or something is under way. */
static bool look_home(page_id pid, bool says)
{
	unsigned home = pid_shard(pid) + 1u;
	uint64_t self = 1ull << home, writers, holders = look_holders(pid, &writers);
	struct coherence_directory d;
	bool right;

	if (home >= LOOK_NODES || !look_cache(home))
		return true;
	if (!coherence_directory(lookout.node[home].coherence, pid, &d))
		return false;
	/* what only the home has needs no entry */
	right = d.settled && (holders & ~self) == (d.holders & ~self) &&
		!(look_owing(pid) & ~self & ~d.owing);
	if (holders & ~self)
		/* a frame may be weaker than its home knows: it was not given in the end */
		right &= holders == d.holders && (!writers || d.exclusive);
	if (!right && says)
		fprintf(stderr,
			"page %" PRIx64 ": nodes %" PRIx64 " have it, %" PRIx64
			" may change it, %" PRIx64 " owe it; its home knows of %" PRIx64
			", %" PRIx64 "%s%s\n",
			pid, holders, writers, look_owing(pid), d.holders, d.owing,
			d.exclusive ? ", exclusive" : "",
			d.settled ? "" : "; something is under way");
	return right;
}

static uint64_t look_homes_wrong(bool says)
{
	uint64_t wrong = 0;

	rt_sim_look(true);
	for (uint64_t i = 0; i < lookout.room; i++)
		wrong += lookout.page[i] && !look_home(lookout.page[i]->pid, says);
	rt_sim_look(false);
	return wrong;
}

/*
 * While no node changes anything, and `nodes` of them are there. What is still under way ends
 * soon; what stays wrong is wrong. (Less would be asked of each moment: a message may be late.)
 */
void look_directory(unsigned nodes)
{
	unsigned tries = 0;

	for (unsigned id = 1; id <= nodes; id++)
		if (!look_cache(id))
			return;
	while (lookout.every && look_homes_wrong(tries == LOOK_DIRECTORY_TRIES)) {
		if (tries++ == LOOK_DIRECTORY_TRIES)
			abort();
		rt_sleep_ns(LOOK_DIRECTORY_NS);
	}
	look_sums.directories++;
}

/*
 * A run begins. Of `every` messages one is looked at, by the seed; 0: nothing is, as a node is
 * none, and nothing need hold.
 */
void look_begin(unsigned every)
{
	uint64_t chosen;

	look_forget();
	memset(&lookout, 0, sizeof(lookout));
	lookout.every = every;
	chosen = every ? rt_random() : 0;
	lookout.next = every ? chosen % every : 0;
	cache_watch = every ? look_changed : NULL;
	if (chosen >> 32 & 1) /* each lock costs more then */
		rt_sim_watch_waits();
}
