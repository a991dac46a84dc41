/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How nodes leave a volume: together, stage by stage (docs/many-nodes.md, "Leaving"). A
 * node is in no stage before all others are in the one before it, or away; so nobody
 * stops serving while another still needs its store.
 *
 * What is told by calls may be told twice: a stage only rises within one start of a node.
 */
#include "engine/volume/member_internal.h"

/* ---- telling ------------------------------------------------------------------------------- */

/* Words: the sender's stage and incarnation, both ways. */
int member_serve_stage(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	struct member *m = owner;
	struct other *other = &m->other[from];

	if (from > CLUSTER_NODE_MAX || ask[0] > STAGE_END)
		return -EINVAL;
	rt_mutex_lock(&m->lock);
	if (ask[1] == other->link.incarnation)
		other->stage = MAX(other->stage, (enum member_stage)ask[0]);
	answer[0] = m->stage;
	answer[1] = cluster_incarnation(m->o.cluster, m->o.node);
	rt_mutex_unlock(&m->lock);
	member_changed(m);
	return 0;
}

static void tell(struct member *m, unsigned node)
{
	struct other *other = &m->other[node];
	uint64_t words[NET_CALL_WORDS] = {
		m->stage, cluster_incarnation(m->o.cluster, m->o.node)};
	uint64_t answer[NET_CALL_WORDS];
	int rc = net_call(m->calls, node, NET_CALL_STAGE, words, answer);

	rt_mutex_lock(&m->lock);
	if (!rc && answer[1] == other->link.incarnation && answer[0] <= STAGE_END) {
		other->told = (enum member_stage)words[0];
		other->stage = MAX(other->stage, (enum member_stage)answer[0]);
	}
	rt_mutex_unlock(&m->lock);
}

static bool wants_telling(struct member *m, unsigned node)
{
	const struct other *other = &m->other[node];
	bool wants;

	rt_mutex_lock(&m->lock);
	wants = other->link.up && other->told < m->stage;
	rt_mutex_unlock(&m->lock);
	return wants;
}

static void tell_all(struct member *m)
{
	const struct cluster_member *c = NULL;

	while ((c = member_next_other(m, c)))
		if (wants_telling(m, c->id))
			tell(m, c->id);
}

/* ---- waiting --------------------------------------------------------------------------------- */

/* Is to be waited for. */
static bool is_behind(const struct member *m, unsigned node)
{
	const struct other *other = &m->other[node];

	/* who has no store is waited for only while it uses those of others */
	if (!other->link.up && cluster_member(m->o.cluster, node)->role == CLUSTER_CLIENT)
		return false;
	if (other->stage >= m->stage || other->gone)
		return false;
	return other->link.up || rt_now_ns() - other->link.since_ns < AWAY_NS;
}

/* Enters the stage and waits until the others have, too. */
static void reach(struct member *m, enum member_stage stage)
{
	uint64_t say_at = rt_now_ns() + FIRST_WORD_NS;
	char who[400];

	rt_mutex_lock(&m->lock);
	m->stage = stage;
	rt_mutex_unlock(&m->lock);
	while (!atomic_load(&m->alone)) {
		uint32_t word = atomic_load(&m->changed);
		uint64_t now = rt_now_ns();

		tell_all(m);
		if (!member_who(m, is_behind, who, sizeof(who)))
			return;
		if (member_patience(m) != MEMBER_WAITS) {
			weft_log(4, "leaving without waiting for %s", who);
			member_alone(m);
			return;
		}
		if (now >= say_at) {
			weft_log(6, "%s %s",
				stage == STAGE_LEAVES
					? "unmounted; serving this node's store on to"
					: "closing; waiting for",
				who);
			if (stage == STAGE_LEAVES && m->o.serves_on && say_at)
				m->o.serves_on(m->o.owner, who);
			say_at = now + NEXT_WORD_NS;
		}
		net_wait(m->net, NULL, &m->changed, word, now + PATIENCE_NS);
	}
}

/* ---- impatience ------------------------------------------------------------------------------ */

/* What waits for other nodes is in many places; the page protocol ends it in all of them. */
static void watch(void *arg)
{
	struct member *m = arg;
	uint32_t watching;

	while ((watching = atomic_load(&m->watching)) != WATCH_END) {
		rt_wait(&m->watching, watching,
			watching == WATCH ? rt_now_ns() + PATIENCE_NS : RT_FOREVER);
		if (watching != WATCH || atomic_load(&m->cut) ||
			member_patience(m) != MEMBER_CUT)
			continue;
		atomic_store(&m->cut, true);
		weft_log(4, "other nodes are not waited for any more");
		member_alone(m);
		coherence_cluster_give_up(m->coherence);
	}
}

static void watch_set(struct member *m, uint32_t watching)
{
	atomic_store(&m->watching, watching);
	rt_wake(&m->watching, 1);
}

int member_watcher_start(struct member *m)
{
	atomic_store(&m->watching, WATCH);
	return m->o.patience ? rt_task_spawn(&m->watcher, "patience", watch, m) : 0;
}

void member_watcher_end(struct member *m)
{
	watch_set(m, WATCH_END);
	if (m->watcher)
		rt_task_join(m->watcher);
	m->watcher = NULL;
}

void member_serving(struct member *m)
{
	watch_set(m, WATCH_NOT);
}

void member_watch(struct member *m)
{
	watch_set(m, WATCH);
}

/* ---- leaving ----------------------------------------------------------------------------------- */

void member_leave(struct member *m)
{
	member_watch(m);
	if (m->net && atomic_load(&m->met) && !member_is_client(m))
		reach(m, STAGE_LEAVES);
}

void member_alone(struct member *m)
{
	atomic_store(&m->alone, true);
}

/*
 * Of what is persisted in one round, something may be dirty still where it was taken over
 * meanwhile, and something owed where it was not told of; in the rounds that follow nobody
 * changes anything any more.
 */
int member_settle(void *arg, struct volume *v)
{
	struct member *m = arg;
	int rc = 0;

	member_watch(m);
	if (member_is_client(m))
		return member_client_settle(m, v);
	reach(m, STAGE_CLOSED);
	for (unsigned stage = STAGE_SETTLED; stage <= STAGE_END; stage++) {
		rc = volume_sync(v);
		reach(m, (enum member_stage)stage);
	}
	if (atomic_load(&m->alone) && !atomic_load(&m->cut))
		member_give_back(m, v, rc == 0);
	coherence_cluster_stop(m->coherence);
	return rc;
}
