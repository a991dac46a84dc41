/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tasks that wait for an answer. On each link one task leads: it waits for the link's messages, and
 * serves them by functions of the transport. All others sleep on their word.
 *
 * A task that changes a word and a task that waits for it both write first, and read then. All this
 * is in one total order, so at least one of them sees the other's write.
 */
#include "engine/net/connect.h"

#define LEAVE_NS 1000000u

int net_lead_sleep(struct connect_net *net, _Atomic uint32_t *word, uint32_t expected,
	uint64_t deadline_ns)
{
	int rc;

	atomic_fetch_add(&net->sleepers, 1);
	rc = rt_wait(word, expected, deadline_ns);
	atomic_fetch_sub(&net->sleepers, 1);
	return rc;
}

bool net_lead_begin(struct connect_peer *peer)
{
	uint32_t nobody = 0;

	if (atomic_load_explicit(&peer->leader, memory_order_relaxed) ||
		!atomic_compare_exchange_strong(&peer->leader, &nobody, 1))
		return false;
	/* The progress task announces the link's end first, and then waits for the leaders that
	 * missed it. */
	if (peer->base.up && !net_lead_over(peer)) {
		atomic_fetch_add(&connect_net_of(peer->base.net)->leaders, 1);
		return true;
	}
	atomic_store(&peer->leader, 0);
	rt_wake(&peer->leader, INT32_MAX);
	return false;
}

void net_lead_end(struct connect_peer *peer)
{
	atomic_fetch_sub(&connect_net_of(peer->base.net)->leaders, 1);
	atomic_store(&peer->leader, 0);
	if (atomic_load(&peer->closing))
		rt_wake(&peer->leader, INT32_MAX);
}

/* The link stays while it is kicked, because its end takes kick_lock. */
static void kick_leader(struct connect_peer *peer, const _Atomic uint32_t *word)
{
	rt_mutex_lock(&peer->kick_lock);
	if (peer->base.up && (!word || atomic_load(&peer->leads_for) == word))
		connect_net_of(peer->base.net)->links->kick(peer);
	rt_mutex_unlock(&peer->kick_lock);
}

void net_lead_wake(struct net *base, _Atomic uint32_t *word, int count)
{
	struct connect_net *net = connect_net_of(base);

	if (atomic_load(&net->sleepers))
		rt_wake(word, count);
	if (atomic_load(&net->leaders) == 0)
		return;
	for (unsigned i = 0; i < net_peer_count(base); i++) {
		struct connect_peer *peer = connect_peer_of(base->list[i]);

		if (atomic_load(&peer->leads_for) == word)
			kick_leader(peer, word);
	}
}

void net_lead_leave(struct connect_peer *peer)
{
	atomic_store(&peer->closing, 1);
	while (atomic_load(&peer->leader)) {
		kick_leader(peer, NULL);
		rt_wait(&peer->leader, 1, rt_now_ns() + LEAVE_NS);
	}
}

void net_lead_gone(struct connect_peer *peer)
{
	rt_mutex_lock(&peer->kick_lock);
	rt_mutex_unlock(&peer->kick_lock);
}
