/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The dispatcher of incoming messages: each goes to the handler that has its type. The users of an
 * endpoint (calls, a coherence provider) register their own types, so no layer above passes
 * messages on. The transports call net_deliver() for each message that has arrived.
 *
 * Handlers are fixed once the endpoint is started, and need no lock. They never wait, because later
 * messages of the peer are behind them. The simulator checks that.
 */
#include "engine/net/net_internal.h"

#include <errno.h>

int net_handle(struct net *net, uint16_t first, uint16_t end, net_message_handler handle,
	void *owner)
{
	WEFT_ASSERT(!net->started);
	if (!first || end <= first)
		return -EINVAL;
	for (unsigned i = 0; i < net->range_count; i++)
		if (first < net->range[i].end && net->range[i].first < end)
			return -EEXIST;
	if (net->range_count == NET_RANGES_MAX)
		return -ENOSPC;
	net->range[net->range_count++] = (struct net_range){first, end, handle, owner};
	return 0;
}

void net_peer_ignore(struct net_peer *peer)
{
	peer->ignored = true;
}

/* No range has the type. */
static void deliver_other(struct net_peer *peer, const struct net_message *m)
{
	const struct net_handlers *h = &peer->net->options.handlers;

	if (h->message) {
		h->message(h->owner, peer, m);
		return;
	}
	weft_log(3, "node %u: it sends a message of the unknown type %#x; the link is "
		"cut",
		peer->node, m->type);
	net_cut(peer, -EPROTO);
}

void net_deliver(struct net_peer *peer, const struct net_message *m)
{
	const struct net *net = peer->net;

	net_count(&peer->counters.messages_in, 1);
	if (peer->ignored)
		return;
	for (unsigned i = 0; i < net->range_count; i++) {
		const struct net_range *r = &net->range[i];

		if (m->type < r->first || m->type >= r->end)
			continue;
		rt_holds(peer, rt_never);
		r->handle(r->owner, peer, m);
		rt_lets_go(peer);
		return;
	}
	deliver_other(peer, m);
}
