/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How nodes leave a volume: together, stage by stage (docs/nodes/lifecycle.md, "Leaving"). A node
 * enters a stage when all others are in the one before it, or away. So a node serves its store for
 * as long as another needs it. A task (the watcher) ends these waits when patience has ended, and
 * when a store that is needed at the end stays away.
 *
 * A call that reports a stage may be made twice: a stage only rises within one start of a node.
 */
#include "engine/cache/cache.h"
#include "engine/node/node_internal.h"

#define BUSY_TIMES 10u

/* ---- telling ------------------------------------------------------------------------------- */

/* Words: the sender's stage and incarnation, both ways. */
int node_serve_stage(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	struct local_node *self = owner;
	struct other *other = &self->other[from];

	if (from > CLUSTER_NODE_MAX || ask[0] > STAGE_END)
		return -EINVAL;
	rt_mutex_lock(&self->lock);
	if (ask[1] == other->link.incarnation)
		other->stage = MAX(other->stage, (enum node_stage)ask[0]);
	answer[0] = self->stage;
	answer[1] = cluster_incarnation(self->o.cluster, self->o.node);
	rt_mutex_unlock(&self->lock);
	node_changed(self);
	return 0;
}

static void send_stage(struct local_node *self, unsigned node)
{
	struct other *other = &self->other[node];
	uint64_t words[NET_CALL_WORDS] = {
		self->stage, cluster_incarnation(self->o.cluster, self->o.node)};
	uint64_t answer[NET_CALL_WORDS];
	int rc = net_call(self->calls, node, NET_CALL_STAGE, words, answer);

	rt_mutex_lock(&self->lock);
	if (!rc && answer[1] == other->link.incarnation && answer[0] <= STAGE_END) {
		other->told = (enum node_stage)words[0];
		other->stage = MAX(other->stage, (enum node_stage)answer[0]);
	}
	rt_mutex_unlock(&self->lock);
}

static bool wants_telling(struct local_node *self, unsigned node)
{
	const struct other *other = &self->other[node];
	bool wants;

	rt_mutex_lock(&self->lock);
	wants = other->link.connected && other->told < self->stage;
	rt_mutex_unlock(&self->lock);
	return wants;
}

static void send_stage_all(struct local_node *self)
{
	const struct cluster_member *c = NULL;

	while ((c = node_next_other(self, c)))
		if (wants_telling(self, c->id))
			send_stage(self, c->id);
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* Returns true if this node waits for the other one. */
static bool is_behind(const struct local_node *self, unsigned node)
{
	const struct other *other = &self->other[node];

	/* a client is waited for only while it uses the stores of others */
	if (!other->link.connected && cluster_member(self->o.cluster, node)->role == CLUSTER_CLIENT)
		return false;
	if (other->stage >= self->stage || other->said_goodbye)
		return false;
	return other->link.connected || rt_now_ns() - other->link.since_ns < AWAY_NS;
}

static bool is_behind_here(const struct local_node *self, unsigned node)
{
	return is_behind(self, node) && self->other[node].link.connected;
}

/* A node that waits long logs the names of the nodes that it waits for. */
static void say_waits(struct local_node *self, enum node_stage stage, const char *who)
{
	char here[400];

	if (stage != STAGE_LEAVES) {
		weft_log(6, "closing: waiting for %s", who);
	} else if (node_list_others(self, is_behind_here, here, sizeof(here))) {
		weft_log(6, "unmounted: this node goes on serving its store to %s", who);
		if (self->o.serves_on)
			self->o.serves_on(self->o.owner, who);
	} else {
		weft_log(6, "unmounted: waiting for %s, whose link has just ended", who);
	}
}

/* Enters the stage and waits until the others have, too. */
static void reach_stage(struct local_node *self, enum node_stage stage)
{
	uint64_t say_at = rt_now_ns() + FIRST_WORD_NS;
	char who[400];

	rt_mutex_lock(&self->lock);
	self->stage = stage;
	rt_mutex_unlock(&self->lock);
	/* no node waits for a node without a log, and that one waits for none */
	while (!atomic_load(&self->alone) && !volume_failed(self->volume)) {
		uint32_t word = atomic_load(&self->changed);
		uint64_t now = rt_now_ns();

		send_stage_all(self);
		if (!node_list_others(self, is_behind, who, sizeof(who)))
			return;
		if (node_patience(self) != NODE_WAITS) {
			weft_log(4, "leaving without waiting for %s", who);
			node_alone(self);
			return;
		}
		if (now >= say_at) {
			say_waits(self, stage, who);
			say_at = now + NEXT_WORD_NS;
		}
		net_wait(self->net, NULL, &self->changed, word, now + PATIENCE_NS);
	}
}

/* ---- impatience ------------------------------------------------------------------------------ */

/* Tasks wait for other nodes in many places. The page protocol ends all these waits. The cache ends
 * those for images that others were to persist. */
static void stop_waiting(struct local_node *self)
{
	atomic_store(&self->cut, true);
	node_alone(self);
	coherence_give_up(self->coherence);
	cache_give_up(self->volume->cache);
}

/* Returns true if the node is away and its store may not have all images that belong there. */
static bool store_is_away(const struct local_node *self, unsigned node)
{
	const struct other *other = &self->other[node];

	return cluster_member(self->o.cluster, node)->role == CLUSTER_STORAGE &&
	       !other->link.connected && other->stage < STAGE_END;
}

static void say_store_away(struct local_node *self, const char *who, unsigned seconds)
{
	if (seconds)
		weft_log(4,
			"away: %s. This node waits up to %u s; after that, changes to "
			"pages of that store stay in this node's log",
			who, seconds);
	else
		weft_log(4,
			"away: %s. Changes to pages of that store do not fit in this "
			"node's log; start the node, or end this weftd by SIGTERM, "
			"which loses changes that were not synced",
			who);
	if (self->o.awaits)
		self->o.awaits(self->o.owner, who, seconds);
}

/*
 * All nodes have been unmounted, and a store that is away is missing to persist the rest. The
 * unmount must end, and nothing must be lost. So after a while all changes that are not in the log
 * yet go there, and nothing is waited for any more. Changes that do not fit are waited for.
 */
static void store_away_check(struct local_node *self)
{
	const uint64_t now = rt_now_ns();
	char who[400];
	int rc;

	if (!node_list_others(self, store_is_away, who, sizeof(who))) {
		self->store_away_ns = 0;
		return;
	}
	if (!self->store_away_ns)
		self->store_away_ns = now;
	if (!self->store_away_said && now - self->store_away_ns >= STORE_AWAY_WORD_NS) {
		self->store_away_said = 1;
		say_store_away(self, who, (STORE_AWAY_NS - STORE_AWAY_WORD_NS) / 1000000000u);
	}
	if (now - self->store_away_ns < STORE_AWAY_NS)
		return;
	rc = cache_log_dirty(self->volume->cache);
	if (rc == -EBUSY)
		return;
	if (rc == -ENOBUFS) {
		if (self->store_away_said < 2)
			say_store_away(self, who, 0);
		self->store_away_said = 2;
		self->store_away_ns = now - STORE_AWAY_NS / 2; /* there may be room then */
		return;
	}
	weft_log(4, "no longer waiting for %s", who);
	stop_waiting(self);
}

/* Logs all changes that can be logged. Pages that are just being requested from others may come, or
 * not. */
static bool log_all(struct local_node *self)
{
	int rc = cache_log_dirty(self->volume->cache);

	for (unsigned i = 0; i < BUSY_TIMES && rc == -EBUSY; i++) {
		rt_sleep_ns(PATIENCE_NS);
		rc = cache_log_dirty(self->volume->cache);
	}
	return !rc;
}

static void watcher_main(void *arg)
{
	struct local_node *self = arg;
	uint32_t watching;

	while ((watching = atomic_load(&self->watching)) != WATCH_END) {
		rt_wait(&self->watching, watching,
			watching == WATCH ? rt_now_ns() + PATIENCE_NS : RT_FOREVER);
		if (watching != WATCH || atomic_load(&self->cut))
			continue;
		if (node_patience(self) == NODE_CUT) {
			weft_log(4, "no longer waiting for other nodes");
			if (atomic_load(&self->met) && !log_all(self))
				weft_log(4, "changes that were not synced may be lost: "
					"they do not fit in the log");
			stop_waiting(self);
		} else if (atomic_load(&self->unused)) {
			store_away_check(self);
		}
	}
}

static void watch_set(struct local_node *self, uint32_t watching)
{
	atomic_store(&self->watching, watching);
	rt_wake(&self->watching, 1);
}

int node_watcher_start(struct local_node *self)
{
	atomic_store(&self->watching, WATCH);
	return self->o.patience ? rt_task_spawn(&self->watcher, "patience", watcher_main, self) : 0;
}

void node_watcher_end(struct local_node *self)
{
	watch_set(self, WATCH_END);
	if (self->watcher)
		rt_task_join(self->watcher);
	self->watcher = NULL;
}

void node_serving(struct local_node *self)
{
	watch_set(self, WATCH_NOT);
}

void node_watch(struct local_node *self)
{
	watch_set(self, WATCH);
}

/* ---- leaving --------------------------------------------------------------------------------- */

void node_leave(struct local_node *self)
{
	node_watch(self);
	if (self->net && atomic_load(&self->met) && !node_is_client(self)) {
		reach_stage(self, STAGE_LEAVES);
		atomic_store(&self->unused, true);
	}
}

void node_alone(struct local_node *self)
{
	atomic_store(&self->alone, true);
}

/* The store of this node will be away. Other nodes keep the pages that lead to their own files,
 * while they can still have them. */
static void lend_pages(struct local_node *self)
{
	const uint64_t ask[NET_CALL_WORDS] = {0};
	const struct cluster_member *c = NULL;
	uint64_t answer[NET_CALL_WORDS];

	coherence_lend(self->coherence);
	while ((c = node_next_other(self, c)) && !atomic_load(&self->cut))
		(void)net_call(self->calls, c->id, NET_CALL_TREE_NEAR, ask, answer);
}

/*
 * A page that is persisted in one round may be dirty still if it was taken over meanwhile. It may
 * be owed still if its node was not told of it. In the rounds that follow nobody changes anything
 * any more. As long as other nodes may need this node's store, their shipped images are logged. The
 * checkpointer makes room for that.
 */
int node_settle(void *arg, struct volume *v)
{
	struct local_node *self = arg;
	int rc = 0;

	node_watch(self);
	if (node_is_client(self))
		return node_client_settle(self, v);
	reach_stage(self, STAGE_CLOSED);
	for (unsigned stage = STAGE_SETTLED; stage <= STAGE_END; stage++) {
		rc = volume_sync(v);
		reach_stage(self, (enum node_stage)stage);
	}
	if (atomic_load(&self->alone) && !atomic_load(&self->cut)) {
		lend_pages(self);
		node_give_back(self, v, rc == 0);
	}
	cache_stop(v->cache);
	coherence_stop(self->coherence);
	return rc;
}
