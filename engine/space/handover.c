/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Room of other nodes: groups that they hand over, and what all of them have
 * (docs/many-nodes.md, "Space").
 *
 * Keeps: no page is handed out by two nodes. A group is given away under X, by a
 * mini-transaction that names its next owner, when memory knows of no reservation in it and
 * no free under way; what memory knows of it ends under that latch. Incarnations go on above
 * all that were reserved here.
 *
 * Who serves asks nobody, and waits a bounded time for what is reserved: two nodes may each
 * hold pages of a group that the other waits for.
 */
#include "engine/space/space_internal.h"

/* Who is asked waits so long for the reservations of a group to end. */
#define GIVE_TRIES 10u
#define GIVE_NS    500000ull
/* Who asks, and hears that room is on its way, asks again so often. */
#define ASK_ROUNDS 40u
#define ASK_NS     5000000ull
/* Who leaves waits so long for the settling of what was freed. */
#define LEAVE_TRIES 1000u
/* For statfs a node looks at its groups at most so often. */
#define LOOK_NS 500000000ull

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

/* False: some of it is spoken for, by who has not found its pages yet. */
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

/* With the group's page latched exclusively, and looked at. 0: this node does not own it.
 * `empty`: also if it has no room. */
static int group_disown(
	struct space *sp, struct group *g, bool empty, uint64_t *next_incarnation)
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
	g->changes++; /* who copies its page at the moment starts over */
	g->owned = false;
	g->quarantined = 0;
	g->loadable = 0;
	g->passed_until = rt_now_ns() + GROUP_PASSED_NS;
out_unlock:
	rt_mutex_unlock(&g->lock);
	rt_mutex_unlock(&sp->overlay_lock);
	return rc;
}

/* 0; -EAGAIN: perhaps in a moment; -ENOSPC. Waits for the group's page. */
static int group_give(struct space *sp, uint64_t group, uint16_t to, struct mtr *m)
{
	struct page_ref ref = {.pid = group_pid(sp, group)};
	struct mtr_page *p;
	uint64_t next = 0;
	int rc = cache_fetch_exclusive(sp->cache, &ref, 1);

	if (!rc)
		rc = mtr_begin(m, sp->cache, 1);
	if (rc)
		return rc;
	p = mtr_latch(m, ref.pid, 0, &rc);
	if (p) {
		const struct disk_group *d = (const struct disk_group *)p->guard.image;

		rc = group_look(sp, group, d, p->guard.frame->version);
		if (!rc)
			rc = group_disown(
				sp, group_at(sp, group), to == DISK_OWNER_NOBODY, &next);
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
 * one with reservations. `shards`: bits of those that the asker knows. */
static uint64_t group_spare(struct space *sp, uint64_t shards, bool *later)
{
	uint64_t best = GROUP_NONE;
	uint32_t most = 0;

	*later = false;
	for (uint64_t group = 0; group < groups_known(sp); group++) {
		struct group *g = group_at(sp, group);
		bool busy, fits;

		if (!(shards >> group_span(sp, group)->shard & 1))
			continue;
		rt_mutex_lock(&g->lock);
		busy = g->reserved || g->freeing;
		fits = g->owned && !g->broken &&
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
			rc = group_give(sp, *given, (uint16_t)to, m);
		else if (!later)
			rc = -ENOSPC;
	}
	rt_free(m);
	return rc;
}

/* The asker has seen that the page names this node, which may not have looked there since
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

/* Words: bits of the shards that the asker knows; a group's page that names the asked, or
 * PID_NONE, and how many slots its shard has. Back: PID of the group's page or
 * PID_NONE, and 1 if there may be more in a moment. */
static int serve_give(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	struct space *sp = owner;
	bool coming = false;
	uint64_t group;
	int rc;

	if (from > DISK_NODE_MAX)
		return -EINVAL;
	group_named(sp, ask[1], ask[2]);
	rc = give_one(sp, from, ask[0], &group);
	if (rc) {
		rt_mutex_lock(&sp->hook_lock);
		if (sp->give_back)
			coming = sp->give_back(sp->give_back_owner);
		rt_mutex_unlock(&sp->hook_lock);
		groups_look(sp); /* what others have freed in them */
		coming |= rc == -EAGAIN;
		rc = give_one(sp, from, ask[0], &group);
	}
	answer[0] = rc ? PID_NONE : group_pid(sp, group);
	answer[1] = coming || rc == -EAGAIN;
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

/* What is free in groups of this shard that other nodes own, or nobody. */
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

	rt_mutex_lock(&sp->look_lock); /* who comes meanwhile has the same look */
	now = rt_now_ns();
	if (!sp->looked_ns || now - sp->looked_ns >= MIN(age_ns, LOOK_NS)) {
		groups_recount(sp);
		groups_look(sp);
		sp->looked_ns = now;
	}
	rt_mutex_unlock(&sp->look_lock);
}

/* Words: how old the answer may be, ns. Back: pages in all, and free, of this node's shard; which it is, and how many slots
 * it has; zeros: it is a client, and has none. */
static int serve_stat(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	struct space *sp = owner;
	struct space_stat stat;

	if (!sp->span[0].count) /* a client has no shard */
		return 0;
	stat_look(sp, ask[0]);
	space_stat(sp, &stat);
	answer[0] = stat.total_pages;
	answer[1] = stat.free_pages;
	answer[2] = sp->span[0].shard;
	answer[3] = sp->span[0].page_count;
	return 0;
}

static uint64_t others_of(const struct space *sp)
{
	return sp->calls ? atomic_load(sp->nodes) & ~(1ull << sp->node) : 0;
}

/* One that is away has what it had. With told_lock. */
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
	if (answer[2] >= SHARDS_MAX ||
		cache_shards_learn(sp->cache, (uint16_t)answer[2], answer[3])) {
		weft_log(3,
			"node %u says that its store has shard %llu, of %llu pages, "
			"which "
			"cannot be",
			node, (unsigned long long)answer[2],
			(unsigned long long)answer[3]);
		return;
	}
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

/* What a look at the groups' pages has found of a node. */
struct owner_seen {
	uint64_t group; /* that has most free pages */
	uint32_t free_pages;
};

static void owners_see(struct space *sp, struct owner_seen seen[DISK_NODE_MAX + 1])
{
	for (uint64_t group = 0; group < groups_known(sp); group++) {
		const struct disk_group *d;
		struct guard guard;
		bool owned;

		rt_mutex_lock(&group_at(sp, group)->lock);
		owned = group_at(sp, group)->owned;
		rt_mutex_unlock(&group_at(sp, group)->lock);
		if (owned || guard_shared(sp->cache, group_pid(sp, group), 0, &guard))
			continue;
		d = (const struct disk_group *)guard.image;
		if (!group_check(sp, group, d, NULL) &&
			d->free_pages > seen[d->owner].free_pages)
			seen[d->owner] = (struct owner_seen){group, d->free_pages};
		guard_release(sp->cache, &guard);
	}
}

/* True: a group was handed over. */
static bool ask_node(
	struct space *sp, unsigned node, const struct owner_seen *seen, bool *coming)
{
	const uint64_t ask[NET_CALL_WORDS] = {shards_known(sp),
		seen->free_pages ? group_pid(sp, seen->group) : PID_NONE,
		seen->free_pages ? group_span(sp, seen->group)->page_count : 0};
	uint64_t answer[NET_CALL_WORDS], group;
	uint32_t index;

	if (net_call(sp->calls, node, NET_CALL_SPACE_GIVE, ask, answer))
		return false; /* it is away, and what it has is not to be had */
	*coming |= answer[1];
	return answer[0] != PID_NONE &&
	       space_locate(sp, answer[0] + 1, 1, &group, &index) &&
	       group != GROUP_NONE && group_had(sp, group) == 0;
}

/* All others once, beginning behind this node. */
static int ask_all(struct space *sp)
{
	struct owner_seen seen[DISK_NODE_MAX + 1] = {{0}};
	uint64_t others = others_of(sp);
	bool coming = false;

	owners_see(sp, seen);
	for (unsigned i = 1; i <= DISK_NODE_MAX; i++) {
		unsigned node = (sp->node + i) % (DISK_NODE_MAX + 1);

		if ((others >> node & 1) && ask_node(sp, node, &seen[node], &coming))
			return 0;
	}
	return coming ? -EAGAIN : -ENOSPC;
}

/* Groups of a store whose size is not known cannot be used. */
static void learn_sizes(struct space *sp)
{
	uint64_t others = others_of(sp);

	rt_mutex_lock(&sp->told_lock);
	for (unsigned node = 0; node <= DISK_NODE_MAX; node++)
		if ((others >> node & 1) && !sp->told[node].at_ns)
			stat_ask(sp, node, LOOK_NS);
	rt_mutex_unlock(&sp->told_lock);
	spans_grow(sp);
}

int space_ask(struct space *sp)
{
	uint64_t had = atomic_load_explicit(&sp->budget, memory_order_relaxed);
	int rc = -ENOSPC;

	if (!others_of(sp))
		return rc;
	rt_mutex_lock(&sp->ask_lock);
	learn_sizes(sp);
	for (unsigned round = 0; round < ASK_ROUNDS; round++) {
		/* another task was faster, or pages were freed */
		if (atomic_load_explicit(&sp->budget, memory_order_relaxed) > had)
			rc = 0;
		else
			rc = ask_all(sp);
		if (rc != -EAGAIN)
			break;
		rt_sleep_ns(ASK_NS);
		groups_look(sp);
	}
	rt_mutex_unlock(&sp->ask_lock);
	return rc == -EAGAIN ? -ENOSPC : rc;
}

/* ---- leaving --------------------------------------------------------------------------- */

/* An earlier life, which ended otherwise, may have left groups that name this node. */
static void group_find(struct space *sp, uint64_t group)
{
	struct guard guard;
	bool named;

	if (guard_shared(sp->cache, group_pid(sp, group), 0, &guard))
		return;
	named = ((const struct disk_group *)guard.image)->owner == sp->node;
	guard_release(sp->cache, &guard);
	if (named)
		(void)group_had(sp, group);
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

static int group_leave(struct space *sp, uint64_t group, struct mtr *m)
{
	int rc = -EAGAIN;

	for (unsigned tries = 0; rc == -EAGAIN && tries < LEAVE_TRIES; tries++) {
		if (tries)
			rt_sleep_ns(ASK_NS);
		rc = group_give(sp, group, DISK_OWNER_NOBODY, m);
	}
	return rc;
}

int space_leave(struct space *sp, bool look)
{
	struct mtr *m = rt_alloc(sizeof(*m));
	int rc = m ? 0 : -ENOMEM;

	if (look)
		learn_sizes(sp);
	for (uint64_t group = 0; group < groups_known(sp) && !rc; group++) {
		if (look && !group_is_owned(sp, group))
			group_find(sp, group);
		if (group_is_owned(sp, group))
			rc = group_leave(sp, group, m);
	}
	rt_free(m);
	return rc;
}

void space_connect(
	struct space *sp, struct net_calls *calls, const _Atomic uint64_t *nodes)
{
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
