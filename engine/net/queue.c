/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The part that the sending halves of all links have in common. It bounds the queue, and lets tasks
 * wait for room. It keeps the messages that NET_MORE holds back, and operations that have ended.
 *
 * Tasks may fill half of the queue, handlers all of it, so that answers have room while tasks wait
 * (docs/transports.md, "Bounds").
 */
#include "engine/net/connect.h"

#include <errno.h>

#define QUEUE_TASKS (NET_QUEUE_MAX / 2)

/* ---- room ------------------------------------------------------------------------------- */

int net_queue_reserve(struct connect_peer *peer, unsigned n, unsigned flags)
{
	unsigned limit = flags & (NET_URGENT | NET_ANSWER) ? NET_QUEUE_MAX : QUEUE_TASKS;
	int rc = 0;

	if (!peer->base.up || atomic_load(&peer->cut_code)) {
		rc = -ENOTCONN;
	} else if (peer->queued + n > limit) {
		rc = -EAGAIN;
		if (flags & NET_URGENT) { /* the peer takes no messages */
			connect_net_of(peer->base.net)
				->links->cut_locked(peer, -ETIMEDOUT);
			rc = -ENOTCONN;
		}
	}
	if (rc)
		rt_mutex_unlock(&peer->send_lock);
	return rc;
}

void net_queue_left(struct connect_peer *peer)
{
	if (--peer->queued == NET_QUEUE_SHORT)
		rt_cond_broadcast(&peer->room);
}

void net_queue_reset(struct connect_peer *peer)
{
	peer->queued = 0;
	peer->held = false;
	rt_cond_broadcast(&peer->room);
}

bool net_queue_has_room(struct net_peer *base)
{
	struct connect_peer *peer = connect_peer_of(base);
	bool room;

	rt_mutex_lock(&peer->send_lock);
	room = peer->queued < QUEUE_TASKS;
	rt_mutex_unlock(&peer->send_lock);
	return room;
}

int net_queue_wait(struct net_peer *base, uint64_t deadline_ns)
{
	struct connect_peer *peer = connect_peer_of(base);
	int rc = 0;

	rt_mutex_lock(&peer->send_lock);
	while (base->up && peer->queued >= QUEUE_TASKS && rc == 0) {
		if (peer->held) {
			connect_net_of(base->net)->links->flush(peer, 0);
			rt_mutex_lock(&peer->send_lock);
		} else {
			rc = rt_cond_wait(&peer->room, &peer->send_lock, deadline_ns);
		}
	}
	if (!base->up)
		rc = -ENOTCONN;
	else if (peer->queued < QUEUE_TASKS)
		rc = 0;
	rt_mutex_unlock(&peer->send_lock);
	return rc;
}

/* ---- what was held back ------------------------------------------------------------------- */

void net_queue_hold(struct connect_peer *peer)
{
	if (peer->held) /* net->held is set, or the task that cleared it will check this peer */
		return;
	peer->held = true;
	atomic_store(&connect_net_of(peer->base.net)->held, true);
}

void net_queue_flush(struct net *base, unsigned flags)
{
	struct connect_net *net = connect_net_of(base);

	if (!atomic_load_explicit(&net->held, memory_order_relaxed) ||
		!atomic_exchange(&net->held, false))
		return;
	for (unsigned i = 0; i < net_peer_count(base); i++) {
		struct connect_peer *peer = connect_peer_of(base->list[i]);

		rt_mutex_lock(&peer->send_lock);
		if (peer->held && peer->base.up)
			net->links->flush(peer, flags);
		else
			rt_mutex_unlock(&peer->send_lock);
	}
}

/* ---- operations that have ended -------------------------------------------------------------- */

/* A task that waits for the op is woken here. `done` is called later, without a lock. */
void net_queue_ended(struct connect_peer *peer, struct net_op *op, int result)
{
	if (!op->done) {
		net_op_end(peer->base.net, op, result);
		return;
	}
	op->result = result;
	op->next = peer->ended;
	peer->ended = op;
}

/* Sends the messages that they hold back, after all `done` functions have run. */
static void call_done(struct net *net, struct net_op *list)
{
	while (list) {
		struct net_op *op = list;

		list = op->next;
		net_op_end(net, op, op->result);
	}
	net_queue_flush(net, 0);
}

void net_queue_call_done(struct connect_peer *peer)
{
	struct net_op *list;

	rt_mutex_lock(&peer->send_lock);
	list = peer->ended;
	peer->ended = NULL;
	if (list)
		peer->calling++;
	rt_mutex_unlock(&peer->send_lock);
	if (!list)
		return;
	call_done(peer->base.net, list);
	rt_mutex_lock(&peer->send_lock);
	peer->calling--;
	rt_mutex_unlock(&peer->send_lock);
}

void net_queue_unlock(struct connect_peer *peer, unsigned flags)
{
	struct connect_net *net = connect_net_of(peer->base.net);
	bool ended = peer->ended != NULL;

	rt_mutex_unlock(&peer->send_lock);
	if (!ended)
		return;
	if (flags & NET_URGENT) {
		net_queue_call_done(peer);
	} else { /* the caller may hold a lock of `done` */
		atomic_store(&net->ended, true);
		net->links->call_done_soon(net);
	}
}

void net_queue_call_all(struct connect_net *net)
{
	if (!atomic_load_explicit(&net->ended, memory_order_relaxed) ||
		!atomic_exchange(&net->ended, false))
		return;
	for (unsigned i = 0; i < net_peer_count(&net->base); i++)
		net_queue_call_done(connect_peer_of(net->base.list[i]));
}

void net_queue_close(struct connect_peer *peer, bool (*in_use)(struct connect_peer *))
{
	struct net_op *list;
	unsigned spins = 0;

	rt_mutex_lock(&peer->send_lock);
	atomic_store(&peer->base.up, 0);
	while (peer->calling || in_use(peer)) {
		rt_mutex_unlock(&peer->send_lock);
		rt_spin(&spins);
		rt_mutex_lock(&peer->send_lock);
	}
	list = peer->ended;
	peer->ended = NULL;
	rt_mutex_unlock(&peer->send_lock);
	call_done(peer->base.net, list);
}
