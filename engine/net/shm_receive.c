/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiving half of shm. The node's task polls all rings. A task that waits for an answer polls
 * the ring of its link (lead.c). If a ring is empty, either task polls on for a while, as long as
 * that has paid of late. Then it notes which task must be woken, and sleeps on a futex in shared
 * memory.
 */
#include "engine/net/shm_internal.h"

#include <errno.h>
#include <string.h>

#define SPIN_NS     20000u
#define SPIN_LOOKS  32u /* between readings of the clock */
#define LUCK_MAX    16u
#define TRY_ONE_IN  64u /* without luck */
#define HEADS_EVERY 64u /* messages taken before the writer learns of it */

/* ---- a ring ---------------------------------------------------------------------------- */

static bool something_is_there(const struct shm_peer *peer)
{
	return atomic_load(&peer->in->tail) != peer->in_head;
}

static bool take_message(struct shm_peer *peer)
{
	struct net_message m = peer->in->messages[peer->in_head % SHM_SLOTS];

	if (m.type == 0 || m.sender != peer->line.base.node) {
		shm_cut(&peer->line.base, -EPROTO);
		return false;
	}
	peer->in_head++;
	net_count(&peer->line.base.counters.sends_in, 1);
	net_deliver(&peer->line.base, &m);
	return true;
}

/* The writer may be waiting for room. It sets `full` before it reads the head again. */
static void give_room(struct shm_peer *peer)
{
	atomic_store(&peer->in->head, peer->in_head);
	if (atomic_load(&peer->in->full) && atomic_exchange(&peer->in->full, 0))
		shm_ring_node(peer->node, &peer->rung);
}

bool shm_receive(struct shm_peer *peer)
{
	uint64_t tail, begin = peer->in_head;

	if (!peer->line.base.up || atomic_load(&peer->line.cut_code))
		return false;
	tail = atomic_load_explicit(&peer->in->tail, memory_order_acquire);
	if (tail - peer->in_head > SHM_SLOTS) {
		shm_cut(&peer->line.base, -EPROTO);
		return false;
	}
	if (tail == begin)
		return false;
	net_after_receive(&peer->line.base);
	net_count(&peer->line.base.counters.calls_in, 1);
	while (peer->in_head != tail &&
		!atomic_load_explicit(&peer->line.cut_code, memory_order_relaxed)) {
		if (!take_message(peer))
			return false;
		if ((peer->in_head - begin) % HEADS_EVERY == 0)
			give_room(peer);
	}
	give_room(peer);
	net_queue_flush(peer->line.base.net, NET_URGENT);
	return true;
}

/* ---- spinning ----------------------------------------------------------------------------- */

static bool spin_pays(struct shm_spin *s)
{
	return s->luck || ++s->tries % TRY_ONE_IN == 0;
}

static void spin_ended(struct shm_spin *s, bool found)
{
	if (found && s->luck < LUCK_MAX)
		s->luck += 2;
	else if (!found && s->luck)
		s->luck--;
}

/* ---- a task that waits ----------------------------------------------------------------------- */

static bool spin_for_answer(
	struct shm_peer *peer, const _Atomic uint32_t *word, uint32_t expected)
{
	uint64_t until = rt_now_ns() + SPIN_NS;
	bool found = false;

	do {
		for (unsigned i = 0; i < SPIN_LOOKS && !found; i++) {
			cpu_pause();
			found = something_is_there(peer) ||
				atomic_load_explicit(word, memory_order_relaxed) !=
					expected;
		}
	} while (!found && rt_now_ns() < until);
	spin_ended(&peer->spin, found);
	return found;
}

static int sleep_for_answer(struct shm_peer *peer, _Atomic uint32_t *word,
	uint32_t expected, uint64_t deadline_ns)
{
	uint32_t bell = atomic_load(&peer->in->bell);
	int rc = 0;

	atomic_store(&peer->line.leads_for, word);
	atomic_store(&peer->in->reader, SHM_ASLEEP);
	if (!something_is_there(peer) && atomic_load(word) == expected &&
		!net_lead_over(&peer->line))
		rc = rt_shared_wait(&peer->in->bell, bell, deadline_ns);
	atomic_store(&peer->in->reader, SHM_AWAKE);
	atomic_store(&peer->line.leads_for, NULL);
	return rc;
}

static bool receive_locked(struct shm_peer *peer)
{
	bool any;

	rt_mutex_lock(&peer->line.event_lock);
	any = shm_receive(peer);
	rt_mutex_unlock(&peer->line.event_lock);
	return any;
}

int shm_wait(struct net *base, struct net_peer *likely, _Atomic uint32_t *word,
	uint32_t expected, uint64_t deadline_ns)
{
	struct shm_peer *peer = likely ? shm_peer_of(likely) : NULL;
	int rc = 0;

	if (atomic_load_explicit(word, memory_order_acquire) != expected)
		return 0;
	if (!peer || !likely->up || !net_lead_begin(&peer->line))
		return net_lead_sleep(connect_net_of(base), word, expected, deadline_ns);
	atomic_store(&peer->in->reader, SHM_AWAKE);
	while (rc == 0 && atomic_load(word) == expected && !net_lead_over(&peer->line)) {
		if (receive_locked(peer))
			continue;
		if (spin_pays(&peer->spin) && spin_for_answer(peer, word, expected))
			continue;
		rc = sleep_for_answer(peer, word, expected, deadline_ns);
	}
	/* From here on a writer wakes the node's task. But this task skips a link that has a
	 * leader. So the leader takes the earlier messages here, after it has given up the lead. */
	atomic_store(&peer->in->reader, SHM_TASK);
	net_lead_end(&peer->line);
	receive_locked(peer);
	return rc;
}

/* ---- the node's task ----------------------------------------------------------------------- */

/* A link with a leader is left to it. The leader takes the messages that are there before it
 * ends. */
static bool serve_peer(struct shm_peer *peer)
{
	bool any = false;

	if (!atomic_load(&peer->line.leader)) {
		rt_mutex_lock(&peer->line.event_lock);
		any = shm_receive(peer);
		rt_mutex_unlock(&peer->line.event_lock);
	}
	if (atomic_load(&peer->send.waiting))
		shm_drain(peer);
	return any;
}

static bool serve_all(struct shm_net *net)
{
	bool any = false;

	for (unsigned i = 0; i < net_peer_count(&net->lines.base); i++)
		any |= serve_peer(shm_peer_of(net->lines.base.list[i]));
	net_queue_call_all(&net->lines);
	return any;
}

static bool spin_for_work(struct shm_net *net)
{
	uint64_t until = rt_now_ns() + SPIN_NS;
	bool found = false;

	do {
		for (unsigned i = 0; i < SPIN_LOOKS && !found; i++) {
			cpu_pause();
			found = serve_all(net);
		}
	} while (!found && rt_now_ns() < until);
	spin_ended(&net->spin, found);
	return found;
}

void shm_task(void *arg)
{
	struct shm_net *net = arg;
	uint64_t sleep = 0;

	while (!atomic_load(&net->stopping)) {
		uint32_t bell;

		if (serve_all(net) || (spin_pays(&net->spin) && spin_for_work(net)))
			continue;
		bell = atomic_load(&net->node->bell);
		atomic_store(&net->node->sleeps, ++sleep);
		/* From here on every writer rings. */
		if (!serve_all(net) && !atomic_load(&net->stopping))
			rt_shared_wait(&net->node->bell, bell, RT_FOREVER);
		atomic_store(&net->node->sleeps, ++sleep);
	}
}
