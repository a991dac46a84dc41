/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How nodes leave a volume: together, stage by stage (docs/many-nodes.md, "Leaving"). A
 * node is in no stage before all others are in the one before it, or away; so nobody
 * stops serving while another still needs its store.
 *
 * What is told by calls may be told twice: a stage only rises within one start of a node.
 */
#include "engine/cache/cache.h"
#include "engine/volume/member_internal.h"

#define BUSY_TIMES 10u

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

static bool is_behind_here(const struct member *m, unsigned node)
{
	return is_behind(m, node) && m->other[node].link.up;
}

/* Who waits long says for whom. */
static void say_waits(struct member *m, enum member_stage stage, const char *who)
{
	char here[400];

	if (stage != STAGE_LEAVES) {
		weft_log(6, "closing; waiting for %s", who);
	} else if (member_who(m, is_behind_here, here, sizeof(here))) {
		weft_log(6, "unmounted; serving this node's store on to %s", who);
		if (m->o.serves_on)
			m->o.serves_on(m->o.owner, who);
	} else {
		weft_log(6, "unmounted; waiting for %s, away since a moment ago", who);
	}
}

/* Enters the stage and waits until the others have, too. */
static void reach(struct member *m, enum member_stage stage)
{
	uint64_t say_at = rt_now_ns() + FIRST_WORD_NS;
	char who[400];

	rt_mutex_lock(&m->lock);
	m->stage = stage;
	rt_mutex_unlock(&m->lock);
	/* who has no log any more is nobody's to wait for, nor has it anything to wait for */
	while (!atomic_load(&m->alone) && !volume_failed(m->volume)) {
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
			say_waits(m, stage, who);
			say_at = now + NEXT_WORD_NS;
		}
		net_wait(m->net, NULL, &m->changed, word, now + PATIENCE_NS);
	}
}

/* ---- impatience ------------------------------------------------------------------------------ */

/*
 * What waits for other nodes is in many places; the page protocol ends it in all of them, and the cache
 * what waits for what others were to persist.
 */
static void cut(struct member *m)
{
	atomic_store(&m->cut, true);
	member_alone(m);
	coherence_cluster_give_up(m->coherence);
	cache_give_up(m->volume->cache);
}

/* It has a store, and may not have all that belongs there. */
static bool is_absent(const struct member *m, unsigned node)
{
	const struct other *other = &m->other[node];

	return cluster_member(m->o.cluster, node)->role == CLUSTER_STORAGE &&
	       !other->link.up && other->stage < STAGE_END;
}

static void say_absent(struct member *m, const char *who, unsigned seconds)
{
	if (seconds)
		weft_log(4,
			"away: %s. It is waited for, up to %u s; what is changed of its "
			"pages "
			"then stays in this node's log",
			who, seconds);
	else
		weft_log(4,
			"away: %s. What is changed of its pages does not fit in this "
			"node's "
			"log: this weftd waits until it is started, or is killed "
			"(SIGTERM), and what "
			"was not synced is lost",
			who);
	if (m->o.awaits)
		m->o.awaits(m->o.owner, who, seconds);
}

/*
 * All have been unmounted, and a store that is away is missing to persist what is left: whoever
 * unmounts wants this to end, and nothing to be lost. So after a while all goes into the log that
 * is not there yet, and nothing is waited for any more. Where it does not fit it is waited for.
 */
static void absent_look(struct member *m)
{
	const uint64_t now = rt_now_ns();
	char who[400];
	int rc;

	if (!member_who(m, is_absent, who, sizeof(who))) {
		m->absent_at = 0;
		return;
	}
	if (!m->absent_at)
		m->absent_at = now;
	if (!m->absent_said && now - m->absent_at >= ABSENT_WORD_NS) {
		m->absent_said = 1;
		say_absent(m, who, (ABSENT_NS - ABSENT_WORD_NS) / 1000000000u);
	}
	if (now - m->absent_at < ABSENT_NS)
		return;
	rc = cache_log_dirty(m->volume->cache);
	if (rc == -EBUSY)
		return;
	if (rc == -ENOBUFS) {
		if (m->absent_said < 2)
			say_absent(m, who, 0);
		m->absent_said = 2;
		m->absent_at = now - ABSENT_NS / 2; /* there may be room then */
		return;
	}
	weft_log(4, "not waiting for %s any more", who);
	cut(m);
}

/* What can be logged is; pages that are just being asked for of others may come, or not. */
static bool log_all(struct member *m)
{
	int rc = cache_log_dirty(m->volume->cache);

	for (unsigned i = 0; i < BUSY_TIMES && rc == -EBUSY; i++) {
		rt_sleep_ns(PATIENCE_NS);
		rc = cache_log_dirty(m->volume->cache);
	}
	return !rc;
}

static void watch(void *arg)
{
	struct member *m = arg;
	uint32_t watching;

	while ((watching = atomic_load(&m->watching)) != WATCH_END) {
		rt_wait(&m->watching, watching,
			watching == WATCH ? rt_now_ns() + PATIENCE_NS : RT_FOREVER);
		if (watching != WATCH || atomic_load(&m->cut))
			continue;
		if (member_patience(m) == MEMBER_CUT) {
			weft_log(4, "other nodes are not waited for any more");
			if (atomic_load(&m->met) && !log_all(m))
				weft_log(4, "what was not synced may be lost");
			cut(m);
		} else if (atomic_load(&m->unused)) {
			absent_look(m);
		}
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
	if (m->net && atomic_load(&m->met) && !member_is_client(m)) {
		reach(m, STAGE_LEAVES);
		atomic_store(&m->unused, true);
	}
}

void member_alone(struct member *m)
{
	atomic_store(&m->alone, true);
}

/*
 * The store of this node will be away: others keep what leads to their own files, while they can still
 * have it.
 */
static void lend(struct member *m)
{
	const uint64_t ask[NET_CALL_WORDS] = {0};
	const struct cluster_member *c = NULL;
	uint64_t answer[NET_CALL_WORDS];

	coherence_cluster_lend(m->coherence);
	while ((c = member_next_other(m, c)) && !atomic_load(&m->cut))
		(void)net_call(m->calls, c->id, NET_CALL_TREE_NEAR, ask, answer);
}

/*
 * Of what is persisted in one round, something may be dirty still where it was taken over
 * meanwhile, and something owed where it was not told of; in the rounds that follow nobody
 * changes anything any more. As long as others may need this node's store, what they ship is logged, and
 * the checkpointer makes room for that.
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
	if (atomic_load(&m->alone) && !atomic_load(&m->cut)) {
		lend(m);
		member_give_back(m, v, rc == 0);
	}
	cache_stop(v->cache);
	coherence_cluster_stop(m->coherence);
	return rc;
}
