/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Clients come and go while others work (docs/many-nodes.md, "Clients"). One that goes in
 * good order takes nothing with it: what it has changed is persisted, its groups are
 * nobody's, and its log says so at last. Others find that out from its host when their link
 * with it is down; until then, and if it is not so, what it may have waits for it.
 */
#include "engine/volume/member_internal.h"

#include "engine/cache/cache.h"

#define LOOK_NS      1000000000ull /* so often a client's log is asked about */
#define SETTLE_TRIES 1000u
#define SETTLE_NS    5000000ull

/* ---- what they have left ---------------------------------------------------------------- */

/* Of a client that is not connected. 0: `*incarnation` and all before it have left nothing. */
static int state_of(struct member *m, unsigned node, uint64_t *incarnation)
{
	const struct cluster_member *c = cluster_member(m->o.cluster, node);
	const uint64_t ask[NET_CALL_WORDS] = {node};
	uint64_t answer[NET_CALL_WORDS] = {0};
	enum log_state state;
	int rc;

	if (m->clients && c->host == m->o.node) {
		rc = clients_state(m->clients, node, &state, incarnation);
	} else {
		rc = net_call(m->calls, c->host, NET_CALL_LOG_STATE, ask, answer);
		state = (enum log_state)answer[0];
		*incarnation = answer[1];
	}
	return rc ? rc : state == LOG_STATE_VACANT ? 0 : -EBUSY;
}

static bool is_absent(struct member *m, unsigned node)
{
	bool absent;

	rt_mutex_lock(&m->lock);
	absent = !m->other[node].link.up;
	rt_mutex_unlock(&m->lock);
	return absent;
}

bool member_vacant(void *arg, unsigned node)
{
	struct member *m = arg;
	const struct cluster_member *c = cluster_member(m->o.cluster, node);
	uint64_t incarnation;

	/* the host itself says so: what the client has done since, it has attached for */
	return c && c->role == CLUSTER_CLIENT && is_absent(m, node) &&
	       state_of(m, node, &incarnation) == 0;
}

/* A start that was heard of later than what the log tells of has not been heard out. */
static void look_at(struct member *m, unsigned node)
{
	struct other *other = &m->other[node];
	uint64_t incarnation;

	if (state_of(m, node, &incarnation) ||
		incarnation < cluster_incarnation(m->o.cluster, node))
		return;
	rt_mutex_lock(&m->lock);
	if (!other->link.up) {
		other->vacant = true;
		/* under the lock: a link that comes up is told after it */
		coherence_cluster_vacant(m->coherence, node);
	}
	rt_mutex_unlock(&m->lock);
}

static bool is_unknown(struct member *m, unsigned node)
{
	bool unknown;

	rt_mutex_lock(&m->lock);
	unknown = !m->other[node].link.up && !m->other[node].vacant;
	rt_mutex_unlock(&m->lock);
	return unknown;
}

static void vacancies_main(void *arg)
{
	struct member *m = arg;
	uint32_t word;

	while (rt_goes_on(&m->stopping, &m->changed, &word)) {
		const struct cluster_member *c = NULL;
		bool unknown = false;

		while ((c = member_next_other(m, c))) {
			if (c->role != CLUSTER_CLIENT)
				continue;
			unknown |= !member_admit(m, c->id);
			if (!is_unknown(m, c->id))
				continue;
			look_at(m, c->id);
			unknown |= is_unknown(m, c->id);
		}
		net_wait(m->net, NULL, &m->changed, word,
			unknown ? rt_now_ns() + LOOK_NS : RT_FOREVER);
	}
}

int member_vacancies_start(struct member *m)
{
	const struct cluster_member *c = NULL;
	bool any = false;

	while ((c = member_next_other(m, c)))
		any |= c->role == CLUSTER_CLIENT;
	if (!any || m->vacancies || member_is_client(m)) /* what others have homes ask */
		return 0;
	return rt_task_spawn(&m->vacancies, "vacancies", vacancies_main, m);
}

void member_vacancies_end(struct member *m)
{
	atomic_store(&m->stopping, true);
	if (m->net)
		member_changed(m);
}

/* ---- leaving ---------------------------------------------------------------------------- */

/*
 * No operation runs. Homes persist what this node has dirty or owes, whoever has the pages
 * by now; when nothing is left the links are cut, so that nothing can come back, and what is
 * clean here is no longer anybody's.
 */
int member_client_settle(struct member *m, struct volume *v)
{
	int rc = space_leave(v->space, !v->recovery.was_clean);

	for (unsigned tries = 0; !rc && tries < SETTLE_TRIES; tries++) {
		if (tries)
			rt_sleep_ns(SETTLE_NS);
		rc = volume_sync(v);
		if (!cache_keeps(v->cache) || atomic_load(&m->cut))
			break;
	}
	coherence_cluster_give_up(m->coherence);
	cache_stop(v->cache);
	coherence_cluster_stop(m->coherence);
	return rc ? rc : cache_keeps(v->cache) ? -EBUSY : 0;
}
