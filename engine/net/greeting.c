/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks of a peer's HELLO and PROOF against the known facts about the peer, and the events that
 * its owner gets. The transport carries the bytes.
 *
 * A peer's incarnation never goes back, and one incarnation has one instance.
 */
#include "engine/net/net_internal.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

/* Compares the claims of a HELLO with the facts that earlier links have proven. */
static int against_known(const struct net_peer *peer, const struct wire_hello *h)
{
	const struct net_known *k = &peer->known;

	if (h->incarnation < atomic_load(&peer->least_incarnation))
		return WIRE_STALE;
	if ((k->any || peer->uuid_given) &&
		memcmp(h->node_uuid, k->node_uuid, NET_UUID_BYTES))
		return WIRE_NODE_TAKEN;
	if (!k->any)
		return 0;
	if (h->incarnation < k->incarnation)
		return WIRE_STALE;
	if (h->incarnation == k->incarnation &&
		memcmp(h->instance, k->instance, NET_UUID_BYTES))
		return WIRE_NODE_TAKEN;
	return 0;
}

int net_greeting_hello(struct net *net, struct net_greeting *g, uint32_t *detail)
{
	const struct wire_hello *h = &g->theirs;
	int refusal = wire_hello_check(h, &net->options.self, net->ops.wire, detail);
	struct net_peer *peer;

	if (refusal == WIRE_MALFORMED || refusal == WIRE_OTHER_VERSION)
		return refusal;
	peer = h->node < NET_NODES_MAX ? net_peer_find(net, h->node) : NULL;
	if (g->dialer && peer != g->peer) {
		*detail = h->node;
		return refusal ? refusal : WIRE_OTHER_NODE;
	}
	g->peer = peer;
	if (refusal)
		return refusal;
	return peer ? against_known(peer, h) : WIRE_UNKNOWN_NODE;
}

static uint64_t abs_difference(int64_t a, int64_t b)
{
	return a > b ? (uint64_t)a - (uint64_t)b : (uint64_t)b - (uint64_t)a;
}

int net_greeting_proof(struct net *net, struct net_greeting *g,
	const struct wire_proof *proof, uint32_t *detail)
{
	const struct wire_hello *dialer = g->dialer ? &g->ours : &g->theirs;
	const struct wire_hello *listener = g->dialer ? &g->theirs : &g->ours;
	struct net_known *k = &g->peer->known;
	uint64_t skew = abs_difference(g->ours.wall_ns, g->theirs.wall_ns);
	int refusal;

	*detail = 0;
	if (!wire_proof_check(proof, net->key, !g->dialer, dialer, listener))
		return WIRE_WRONG_KEY;
	g->proven = true;
	if (skew > net->options.clock_skew_ns) {
		*detail = (uint32_t)MIN(skew / 1000000000u, UINT32_MAX);
		return WIRE_CLOCKS;
	}
	refusal = against_known(g->peer, &g->theirs); /* another link may have been made first */
	if (refusal)
		return refusal;
	k->any = true;
	k->incarnation = g->theirs.incarnation;
	k->role = g->theirs.role;
	memcpy(k->node_uuid, g->theirs.node_uuid, NET_UUID_BYTES);
	memcpy(k->instance, g->theirs.instance, NET_UUID_BYTES);
	return 0;
}

void net_refuse_make(struct wire_refuse *r, uint32_t reason, uint32_t detail)
{
	memcpy(r->magic, WIRE_REFUSE, sizeof(r->magic));
	r->reason = reason;
	r->detail = detail;
}

/* ---- what the owner is told ----------------------------------------------------------- */

static void report_event(struct net_peer *peer, const struct net_event *event)
{
	const struct net_handlers *h = &peer->net->options.handlers;

	h->event(h->owner, peer, event);
}

void net_tell_up(struct net_peer *peer)
{
	struct net_event e = {
		.kind = NET_LINK_UP,
		.session = ++peer->session,
		.incarnation = peer->known.incarnation,
		.role = peer->known.role,
		.dialed = peer->dialed,
		.address = peer->reached,
		.text = "connected",
	};

	memset(peer->refused, 0, sizeof(peer->refused));
	peer->ignored = false;
	net_count(&peer->counters.links, 1);
	report_event(peer, &e);
}

static const char *cut_text(int code)
{
	switch (code) {
	case -ECONNRESET:
		return "the connection broke";
	case -ETIMEDOUT:
		return "it has stopped to send or to receive";
	case -EPROTO:
		return "it sends a malformed message";
	case -EBADMSG:
		return "a message from it arrived damaged: wrong checksum";
	case -ENOBUFS:
		return "it sends more than it may";
	case -EACCES:
		return "a request named memory that is not registered or not allowed";
	case -ESHUTDOWN:
		return "it has closed";
	default:
		return strerrordesc_np(-code);
	}
}

void net_tell_down(struct net_peer *peer, int code)
{
	struct net_event e = {
		.kind = NET_LINK_DOWN,
		.code = code,
		.session = peer->session,
		.incarnation = peer->known.incarnation,
		.role = peer->known.role,
		.dialed = peer->dialed,
		.text = cut_text(code),
	};

	net_count(&peer->counters.cuts, 1);
	report_event(peer, &e);
}

static void tell_once(struct net_peer *peer, const struct net_event *e, uint32_t reason)
{
	enum net_refused_kind kind = e->dialed   ? NET_REFUSED_DIALED
				     : e->proven ? NET_REFUSED_PROVEN
						 : NET_REFUSED_STRANGER;
	struct net_refused *last = &peer->refused[kind];

	if (last->code == e->code && last->reason == reason)
		return;
	*last = (struct net_refused){e->code, reason};
	report_event(peer, e);
}

void net_tell_refused(
	struct net_peer *peer, uint32_t reason, bool proven, const char *text)
{
	struct net_event e = {
		.kind = NET_LINK_REFUSED,
		.code = wire_refusal_code(reason),
		.proven = proven,
		.session = peer->session,
		.text = text,
	};

	tell_once(peer, &e, reason);
}

void net_tell_failed(struct net_peer *peer, int code, uint32_t mark, const char *why)
{
	char text[NET_ADDRESS_BYTES + NET_WHY_BYTES + 64];
	struct net_event e = {
		.kind = NET_LINK_REFUSED,
		.code = code,
		.dialed = true,
		.session = peer->session,
		.text = text,
	};

	/* If there are several addresses, `why` names each with its outcome. */
	if (!peer->address[0] || strchr(peer->address, ','))
		snprintf(text, sizeof(text), "cannot connect with node %u: %s",
			peer->node, why);
	else
		snprintf(text, sizeof(text), "cannot connect with node %u (%.255s): %s",
			peer->node, peer->address, why);
	tell_once(peer, &e, mark);
}
