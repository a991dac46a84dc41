/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Room of other nodes: groups that they hand over, and the sum of their space
 * (docs/nodes/space.md).
 *
 * Keeps: no page is handed out by two nodes. A group is given away under X, by a mini-transaction
 * that names its next owner. At that time memory has no reservation in it and no free under way.
 * The overlay of the group ends under that latch. Incarnations go on above all that were reserved
 * here.
 *
 * A server asks no other node, and waits a bounded time for reserved pages. Otherwise two nodes
 * could each hold pages of a group that the other waits for.
 */
#include "engine/space/space_internal.h"

/* A node that is asked waits so long for the reservations of a group to end. */
#define GIVE_TRIES 10u
#define GIVE_NS    500000ull
/* Rounds of a node that asks: if it hears that room is on its way, and that a node is just being
 * opened. */
#define ASK_ROUNDS  40u
#define OPEN_ROUNDS 1000u
#define ASK_NS      5000000ull
/* A node that leaves waits so long until freed pages are settled. */
#define LEAVE_TRIES 1000u
/* For statfs a node looks at its groups at most so often. */
#define LOOK_NS 500000000ull
/* The age of an answer to SPACE-STAT that no look at groups is made for. */
#define AGE_ANY UINT64_MAX

/* ---- giving -------------------------------------------------------------------------- */

static uint32_t room_of(const struct group *g)
{
	return atomic_load_explicit(&g->room, memory_order_relaxed);
}

/* Its overlay is no longer needed. With overlay_lock and the group's. */
static void overlay_end(struct space *sp, struct group *g)
{
	struct overlay *ov = g->overlay;

	g->overlay = NULL;
	for (uint64_t i = 0; ov && i < sp->overlay_count; i++) {
		if (sp->overlays[i] != ov)
			continue;
		sp->overlays[i] = sp->overlays[--sp->overlay_count];
		break;
	}
	if (sp->overlay_hand >= sp->overlay_count)
		sp->overlay_hand = 0;
	rt_free(ov);
}

/* Returns false if a part of it is promised to tasks that have not found their pages yet. */
static bool budget_give(struct space *sp, uint64_t room)
{
	uint64_t has = atomic_load_explicit(&sp->budget, memory_order_relaxed);

	do {
		if (has < room)
			return false;
	} while (!atomic_compare_exchange_weak_explicit(&sp->budget, &has, has - room,
		memory_order_relaxed, memory_order_relaxed));
	return true;
}

/* With the group's page latched exclusively, and looked at. 0: this node does not own it, but `to`.
 * `empty`: also if it has no room. */
static int group_disown(struct space *sp, struct group *g, uint16_t to, bool empty,
	uint64_t *next_incarnation)
{
	int rc = 0;

	rt_mutex_lock(&sp->overlay_lock);
	rt_mutex_lock(&g->lock);
	if (!g->owned || g->broken || (!room_of(g) && !empty))
		rc = -ENOSPC;
	else if (g->reserved || g->freeing || g->stale || !budget_give(sp, room_of(g)))
		rc = -EAGAIN;
	if (rc)
		goto out_unlock;
	overlay_end(sp, g);
	atomic_fetch_add_explicit(&sp->unowned, 1, memory_order_relaxed);
	atomic_store_explicit(&g->room, 0, memory_order_relaxed);
	atomic_store_explicit(&g->longest, 0, memory_order_relaxed);
	*next_incarnation = g->next_incarnation;
	g->changes++; /* a task that copies its page at the moment starts over */
	g->owned = false;
	g->owner = to;
	g->quarantined = 0;
	g->loadable = 0;
	g->passed_until = rt_now_ns() + GROUP_PASSED_NS;
out_unlock:
	rt_mutex_unlock(&g->lock);
	rt_mutex_unlock(&sp->overlay_lock);
	return rc;
}

/* 0; -EAGAIN: perhaps in a moment, or another group; -ENOSPC. Waits for the group's page; if this
 * node leaves, also for nodes that are away. */
static int group_give(
	struct space *sp, uint64_t group, uint16_t to, bool leaves, struct mtr *m)
{
	struct page_ref ref = {.pid = group_pid(sp, group)};
	struct mtr_page *p;
	uint64_t next = 0;
	int rc = leaves ? cache_fetch_exclusive(sp->cache, &ref, 1)
			: cache_fetch_reached(sp->cache, &ref, 1);

	if (rc == -EHOSTUNREACH) {
		group_pass(sp, group);
		return -EAGAIN;
	}
	if (!rc)
		rc = mtr_begin(m, sp->cache, 1);
	if (rc)
		return rc;
	p = mtr_latch(m, ref.pid, 0, &rc);
	if (p) {
		const struct disk_group *d = (const struct disk_group *)p->guard.image;

		rc = group_look(sp, group, d, p->guard.frame->version);
		if (!rc)
			rc = group_disown(sp, group_at(sp, group), to, leaves, &next);
		next = MAX(next, d->next_incarnation);
	}
	if (rc) {
		mtr_abort(m);
		return rc;
	}
	mtr_write(p, offsetof(struct disk_group, owner), &to, sizeof(to));
	mtr_write(p, offsetof(struct disk_group, next_incarnation), &next, sizeof(next));
	mtr_commit(m);
	return 0;
}

/* The group with most room that is free of reservations, or GROUP_NONE; *later: there is
 * one with reservations. `shards`: bits of those that the caller knows. */
static uint64_t group_spare(struct space *sp, uint64_t shards, bool *later)
{
	uint64_t best = GROUP_NONE, now = rt_now_ns();
	uint32_t most = 0;

	*later = false;
	for (uint64_t group = 0; group < groups_known(sp); group++) {
		struct group *g = group_at(sp, group);
		bool busy, fits;

		if (!(shards >> group_span(sp, group)->shard & 1))
			continue;
		rt_mutex_lock(&g->lock);
		busy = g->reserved || g->freeing;
		fits = g->owned && !g->broken && now >= g->passed_until &&
		       (room_of(g) > most || (busy && g->reserved));
		rt_mutex_unlock(&g->lock);
		if (fits && busy) {
			*later = true;
		} else if (fits) {
			best = group;
			most = room_of(g);
		}
	}
	return best;
}

/* 0: *given; -EAGAIN: there may be one later; -ENOSPC. */
static int give_one(struct space *sp, unsigned to, uint64_t shards, uint64_t *given)
{
	struct mtr *m = rt_alloc(sizeof(*m));
	bool later = false;
	int rc = m ? -EAGAIN : -ENOMEM;

	for (unsigned tries = 0; rc == -EAGAIN && tries < GIVE_TRIES; tries++) {
		if (tries)
			rt_sleep_ns(GIVE_NS);
		*given = group_spare(sp, shards, &later);
		if (*given != GROUP_NONE)
			rc = group_give(sp, *given, (uint16_t)to, false, m);
		else if (!later)
			rc = -ENOSPC;
	}
	rt_free(m);
	return rc;
}

/* The caller has seen that the page names this node, which may not have looked there since
 * it was started. */
static void group_named(struct space *sp, page_id page, uint64_t shard_pages)
{
	uint64_t group;
	uint32_t index;

	if (page == PID_NONE || pid_shard(page) >= SHARDS_MAX ||
		cache_shards_learn(sp->cache, pid_shard(page), shard_pages))
		return;
	spans_grow(sp);
	if (space_locate(sp, page + 1, 1, &group, &index) && group != GROUP_NONE)
		(void)group_had(sp, group);
}

/* Finds the first group of this shard, from this place on (counted from 1), that named the other
 * node when it was last seen here. Returns GROUP_NONE if there is none. *next: the place behind it,
 * or 0. */
static uint64_t group_of(struct space *sp, unsigned owner, uint64_t from, uint64_t *next)
{
	*next = 0;
	for (uint64_t group = from - 1; from && group < sp->span[0].count; group++) {
		struct group *g = group_at(sp, group);
		bool named;

		rt_mutex_lock(&g->lock);
		named = !g->owned && g->owner == owner;
		rt_mutex_unlock(&g->lock);
		if (named) {
			*next = group + 2;
			return group;
		}
	}
	return GROUP_NONE;
}

/* Hands over a group, if need be after a look for more room. 0: *group; -EAGAIN: perhaps in a
 * moment. */
static int give_any(struct space *sp, unsigned to, uint64_t shards, uint64_t *group)
{
	bool coming = false;
	int rc = give_one(sp, to, shards, group);

	if (!rc)
		return 0;
	rt_mutex_lock(&sp->hook_lock);
	if (sp->give_back)
		coming = sp->give_back(sp->give_back_owner);
	rt_mutex_unlock(&sp->hook_lock);
	groups_look(sp); /* takes over pages that other nodes have freed in them */
	(void)groups_take(sp, false);
	coming |= rc == -EAGAIN;
	rc = give_one(sp, to, shards, group);
	return rc && coming ? -EAGAIN : rc;
}

/*
 * Words:
 *
 * - bits of the shards that the caller knows; 0: it wants no new group;
 * - a group's page that names the asked node, or PID_NONE;
 * - the slots of its shard;
 * - the place from which on groups of this shard may name the caller without its knowledge, or 0.
 *
 * Back: PID of the group's page or PID_NONE; 1 if there may be more in a moment; home_word(); the
 * next place, or 0.
 */
static int serve_give(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	struct space *sp = owner;
	uint64_t group;
	int rc = 0;

	if (from > DISK_NODE_MAX)
		return -EINVAL;
	group_named(sp, ask[1], ask[2]);
	group = group_of(sp, from, ask[3], &answer[3]);
	if (group == GROUP_NONE && ask[0]) {
		rc = give_any(sp, from, ask[0], &group);
		if (rc)
			group = GROUP_NONE;
	}
	answer[0] = group == GROUP_NONE ? PID_NONE : group_pid(sp, group);
	answer[1] = rc == -EAGAIN;
	answer[2] = home_word(sp);
	return 0;
}

void space_give_back(struct space *sp, bool (*give_back)(void *owner), void *owner)
{
	rt_mutex_lock(&sp->hook_lock);
	sp->give_back = give_back;
	sp->give_back_owner = owner;
	rt_mutex_unlock(&sp->hook_lock);
}

/* ---- what all have ------------------------------------------------------------------- */

/* Counts the free pages in groups of this shard that other nodes own, or no node. */
static void groups_recount(struct space *sp)
{
	for (uint64_t group = 0; group < sp->span[0].count; group++) {
		struct group *g = group_at(sp, group);
		const struct disk_group *d;
		struct guard guard;
		bool owned;

		rt_mutex_lock(&g->lock);
		owned = g->owned;
		rt_mutex_unlock(&g->lock);
		if (owned || guard_shared(sp->cache, group_pid(sp, group), 0, &guard))
			continue;
		d = (const struct disk_group *)guard.image;
		rt_mutex_lock(&g->lock);
		if (!g->owned && !group_check(sp, group, d, NULL)) {
			g->owner = d->owner;
			count_free(sp, g, (uint64_t)d->free_pages - g->page_free);
			g->page_free = d->free_pages;
		}
		rt_mutex_unlock(&g->lock);
		guard_release(sp->cache, &guard);
	}
}

/* As others have left this node's groups; not at each call, since it reads all of them. */
static void stat_look(struct space *sp, uint64_t age_ns)
{
	uint64_t now;

	rt_mutex_lock(&sp->look_lock); /* a task that comes meanwhile has the same look */
	now = rt_now_ns();
	if (!sp->looked_ns || now - sp->looked_ns >= MIN(age_ns, LOOK_NS)) {
		groups_recount(sp);
		groups_look(sp);
		sp->looked_ns = now;
	}
	rt_mutex_unlock(&sp->look_lock);
}

/* Words: how old the answer may be, ns, or AGE_ANY. Back: pages in all, and free, of this node's
 * shard; the shard, and how many slots it has; home_word(). Zeros: it is a client, and has no
 * shard. */
static int serve_stat(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	struct space *sp = owner;
	struct space_stat stat;

	if (!sp->span[0].count) /* a client has no shard */
		return 0;
	if (ask[0] != AGE_ANY)
		stat_look(sp, ask[0]);
	space_stat(sp, &stat);
	answer[0] = stat.total_pages;
	answer[1] = stat.free_pages;
	answer[2] = sp->span[0].shard;
	answer[3] = sp->span[0].page_count;
	answer[4] = home_word(sp);
	return 0;
}

/* Notes the size of the shard that an answer to SPACE-STAT names. */
static bool size_learn(
	struct space *sp, unsigned node, const uint64_t answer[NET_CALL_WORDS])
{
	if (answer[2] < SHARDS_MAX &&
		!cache_shards_learn(sp->cache, (uint16_t)answer[2], answer[3]))
		return true;
	weft_log(3,
		"node %u says that its store has shard %llu, of %llu pages, which cannot "
		"be",
		node, (unsigned long long)answer[2], (unsigned long long)answer[3]);
	return false;
}

/* For a node that is away the last answer stands. With told_lock. */
static void stat_ask(struct space *sp, unsigned node, uint64_t age_ns)
{
	const uint64_t ask[NET_CALL_WORDS] = {age_ns};
	uint64_t answer[NET_CALL_WORDS];

	if (net_call(sp->calls, node, NET_CALL_SPACE_STAT, ask, answer))
		return;
	if (!answer[3]) {
		sp->told[node] = (struct space_told){.at_ns = rt_now_ns()};
		return;
	}
	if (!size_learn(sp, node, answer))
		return;
	sp->told[node] = (struct space_told){
		.total_pages = answer[0], .free_pages = answer[1], .at_ns = rt_now_ns()};
}

void space_stat_all(struct space *sp, uint64_t age_ns, struct space_stat *out)
{
	uint64_t others = others_of(sp);

	if (others)
		stat_look(sp, age_ns);
	space_stat(sp, out);
	if (!others)
		return;
	rt_mutex_lock(&sp->told_lock);
	for (unsigned node = 0; node <= DISK_NODE_MAX; node++) {
		struct space_told *told = &sp->told[node];

		if (!(others >> node & 1))
			continue;
		if (!told->at_ns || rt_now_ns() - told->at_ns >= age_ns)
			stat_ask(sp, node, age_ns);
		out->total_pages += told->total_pages;
		out->free_pages += told->free_pages;
	}
	rt_mutex_unlock(&sp->told_lock);
	out->available_pages =
		out->free_pages > sp->kept_pages ? out->free_pages - sp->kept_pages : 0;
}

/* ---- asking -------------------------------------------------------------------------- */

static uint64_t shards_known(const struct space *sp)
{
	uint64_t bits = 0;

	for (unsigned i = 0; i < sp->span_count; i++)
		if (sp->span[i].shard < SHARDS_MAX)
			bits |= 1ull << sp->span[i].shard;
	return bits;
}

static bool group_is_owned(struct space *sp, uint64_t group)
{
	struct group *g = group_at(sp, group);
	bool owned;

	rt_mutex_lock(&g->lock);
	owned = g->owned;
	rt_mutex_unlock(&g->lock);
	return owned;
}

/* The groups' pages of one node, as one look has found them. */
struct owner_seen {
	uint64_t group; /* that has most free pages */
	uint32_t free_pages;
};

static void owners_see(struct space *sp, struct owner_seen seen[DISK_NODE_MAX + 1])
{
	for (uint64_t group = 0; group < groups_known(sp); group++) {
		const struct disk_group *d;
		struct guard guard;

		if (group_is_owned(sp, group) || group_near(sp, group, &guard))
			continue;
		d = (const struct disk_group *)guard.image;
		if (!group_check(sp, group, d, NULL) &&
			d->free_pages > seen[d->owner].free_pages)
			seen[d->owner] = (struct owner_seen){group, d->free_pages};
		guard_release(sp->cache, &guard);
	}
}

void home_ask(struct space *sp, unsigned node)
{
	const uint64_t ask[NET_CALL_WORDS] = {AGE_ANY};
	uint64_t answer[NET_CALL_WORDS];

	if (net_call(sp->calls, node, NET_CALL_SPACE_STAT, ask, answer) || !answer[3] ||
		!size_learn(sp, node, answer))
		home_silent(sp, node);
	else
		home_says(sp, node, answer[4]);
}

/* Takes the group that an answer names. Returns true if it has brought room. */
static bool group_answered(struct space *sp, page_id page)
{
	struct group *g;
	uint64_t group;
	uint32_t index;
	bool free_pages;

	if (page == PID_NONE || !space_locate(sp, page + 1, 1, &group, &index) ||
		group == GROUP_NONE || group_is_owned(sp, group) || group_had(sp, group))
		return false;
	g = group_at(sp, group);
	rt_mutex_lock(&g->lock);
	free_pages = g->page_free > 0; /* other tasks may have reserved some already */
	rt_mutex_unlock(&g->lock);
	return free_pages;
}

/*
 * Returns true if a group was handed over. It may be one that named this node before. `seen`: NULL,
 * or a group that names the asked node. `shards`: 0, no new group is wanted. *rounds: is raised if
 * the node is to be asked again.
 */
static bool ask_node(struct space *sp, unsigned node, uint64_t shards,
	const struct owner_seen *seen, unsigned *rounds)
{
	struct home_told *home = &sp->home[node];
	uint64_t answer[NET_CALL_WORDS], from;
	bool got;
	int rc;

	do {
		const uint64_t ask[NET_CALL_WORDS] = {shards,
			seen ? group_pid(sp, seen->group) : PID_NONE,
			seen ? group_span(sp, seen->group)->page_count : 0,
			home->unknown_from};

		rc = net_call(sp->calls, node, NET_CALL_SPACE_GIVE, ask, answer);
		if (rc) {
			if (rc == -EAGAIN)
				*rounds = OPEN_ROUNDS;
			else if (rc != -ENOTCONN) /* it may be served yet */
				home->unknown_from = 1;
			home_silent(sp, node);
			return false;
		}
		from = home->unknown_from;
		home->unknown_from = answer[3];
		got = group_answered(sp, answer[0]);
	} while (!got && from && home->unknown_from > from);
	if (!got && answer[0] != PID_NONE && !answer[3])
		home->unknown_from = 1; /* it was handed over, and could not be reached */
	if (answer[1])
		*rounds = MAX(*rounds, ASK_ROUNDS);
	home_says(sp, node, answer[2]);
	return got;
}

/* One home after the other, in the order of their words. */
static int ask_homes(struct space *sp, unsigned *rounds)
{
	uint64_t asked = 0;
	unsigned node;

	homes_learn(sp);
	while ((node = home_choose(sp, asked)) != 0) {
		asked |= 1ull << node;
		if (ask_node(sp, node, shards_known(sp), NULL, rounds))
			return 0;
	}
	return -ENOSPC;
}

/* All others once, beginning behind this node. */
static int ask_owners(struct space *sp, unsigned *rounds)
{
	struct owner_seen seen[DISK_NODE_MAX + 1] = {{0}};
	uint64_t others = others_of(sp);

	owners_see(sp, seen);
	for (unsigned i = 1; i <= DISK_NODE_MAX; i++) {
		unsigned node = (sp->node + i) % (DISK_NODE_MAX + 1);

		if ((others >> node & 1) &&
			ask_node(sp, node, shards_known(sp),
				seen[node].free_pages ? &seen[node] : NULL, rounds))
			return 0;
	}
	return -ENOSPC;
}

/* *rounds: how often this is worth while. */
static int ask_all(struct space *sp, unsigned *rounds)
{
	int rc = ask_homes(sp, rounds);

	if (rc)
		rc = groups_take(sp, true);
	return rc ? ask_owners(sp, rounds) : 0;
}

int space_ask(struct space *sp)
{
	uint64_t had = atomic_load_explicit(&sp->budget, memory_order_relaxed);
	unsigned rounds = 1;
	int rc = -ENOSPC;

	if (!others_of(sp))
		return groups_take(sp, true);
	rt_mutex_lock(&sp->ask_lock);
	for (unsigned round = 0; rc && round < rounds; round++) {
		if (round) {
			rt_sleep_ns(ASK_NS);
			groups_look(sp);
		}
		rounds = 1;
		/* another task was faster, or pages were freed */
		if (atomic_load_explicit(&sp->budget, memory_order_relaxed) > had)
			rc = 0;
		else
			rc = ask_all(sp, &rounds);
	}
	rt_mutex_unlock(&sp->ask_lock);
	return rc;
}

/* ---- leaving --------------------------------------------------------------------------- */

/* Earlier lives, which ended otherwise, or answers that were lost, may have left groups that name
 * this node. Homes that are away are passed over. */
static void groups_find(struct space *sp, bool all)
{
	uint64_t homes = homes_of(sp);
	unsigned rounds = 0;

	rt_mutex_lock(&sp->ask_lock);
	for (unsigned node = 0; node <= DISK_NODE_MAX; node++) {
		if (!(homes >> node & 1))
			continue;
		if (all)
			sp->home[node].unknown_from = 1;
		if (sp->home[node].unknown_from)
			homes_learn(
				sp); /* no group is found in a shard of unknown size */
		while (sp->home[node].unknown_from &&
			ask_node(sp, node, 0, NULL, &rounds))
			;
	}
	rt_mutex_unlock(&sp->ask_lock);
}

/* Tells the home that its page names it as the owner. If that fails, it finds out later. */
static void home_tell(struct space *sp, unsigned home, uint64_t group)
{
	const uint64_t ask[NET_CALL_WORDS] = {
		0, group_pid(sp, group), group_span(sp, group)->page_count};
	uint64_t answer[NET_CALL_WORDS];

	if (sp->calls)
		(void)net_call(sp->calls, home, NET_CALL_SPACE_GIVE, ask, answer);
}

/* Back to its home, if one is known. */
static int group_leave(struct space *sp, uint64_t group, struct mtr *m)
{
	unsigned home = cache_home(sp->cache, group_pid(sp, group));
	bool known = home && home <= DISK_NODE_MAX;
	int rc = -EAGAIN;

	for (unsigned tries = 0; rc == -EAGAIN && tries < LEAVE_TRIES; tries++) {
		if (tries)
			rt_sleep_ns(ASK_NS);
		rc = group_give(
			sp, group, known ? (uint16_t)home : DISK_OWNER_NOBODY, true, m);
	}
	if (!rc && known)
		home_tell(sp, home, group);
	return rc;
}

int space_leave(struct space *sp, bool look)
{
	struct mtr *m = rt_alloc(sizeof(*m));
	int rc = m ? 0 : -ENOMEM;

	groups_find(sp, look);
	for (uint64_t group = 0; group < groups_known(sp) && !rc; group++)
		if (group_is_owned(sp, group))
			rc = group_leave(sp, group, m);
	rt_free(m);
	return rc;
}

void space_connect(struct space *sp, struct net_calls *calls,
	const _Atomic uint64_t *nodes, bool owns_none)
{
	for (unsigned node = 0; node <= DISK_NODE_MAX; node++)
		sp->home[node].unknown_from = !owns_none;
	sp->nodes = nodes;
	sp->calls = calls;
	net_calls_serve(calls, NET_CALL_SPACE_GIVE, serve_give, sp);
	net_calls_serve(calls, NET_CALL_SPACE_STAT, serve_stat, sp);
}

void space_disconnect(struct space *sp)
{
	if (!sp->calls)
		return;
	net_calls_serve(sp->calls, NET_CALL_SPACE_GIVE, NULL, NULL);
	net_calls_serve(sp->calls, NET_CALL_SPACE_STAT, NULL, NULL);
}
