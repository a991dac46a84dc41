/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The progress task of a transport over sockets: it listens, dials, and keeps time. It hands the
 * poller's events of a link to the transport. It alone begins and ends links, and tells the owner
 * of that.
 */
#include "engine/net/connect.h"

#include <errno.h>
#include <string.h>

#define READY_MAX        64u
#define BACKOFF_FIRST_NS 10000000ull
#define SETTLED_NS       1000000000ull /* a link that lived as long has no backoff */

void connect_due(struct connect_net *net, uint64_t at)
{
	net->next_due = MIN(net->next_due, at);
}

static struct connect_peer *peer_at(struct connect_net *net, unsigned i)
{
	return connect_peer_of(net->base.list[i]);
}

/* ---- links ------------------------------------------------------------------------------ */

static uint64_t tick_ns(const struct connect_net *net)
{
	return net->base.options.stall_ns / CONNECT_SILENT_TICKS;
}

void connect_link_began(struct connect_peer *peer)
{
	struct connect_net *net = connect_net_of(peer->base.net);

	peer->up_since = rt_now_ns();
	if (net->next_tick == RT_FOREVER) {
		net->next_tick = peer->up_since + tick_ns(net);
		connect_due(net, net->next_tick);
	}
}

void connect_link_ended(struct connect_peer *peer)
{
	struct connect_net *net = connect_net_of(peer->base.net);
	uint64_t now = rt_now_ns();

	if (!net_peer_dials(&peer->base) || atomic_load(&net->stopping))
		return;
	if (now - peer->up_since > SETTLED_NS)
		peer->backoff_ns = 0;
	peer->dial_at = now + peer->backoff_ns;
	connect_due(net, peer->dial_at);
}

/* ---- time ------------------------------------------------------------------------------- */

/* Ticks go on only while there is a link. */
static void tick_links(struct connect_net *net, uint64_t now)
{
	bool any = false;

	for (unsigned i = 0; i < net_peer_count(&net->base); i++) {
		struct connect_peer *peer = peer_at(net, i);

		if (peer->base.up)
			net->links->link_tick(peer);
		any |= peer->base.up;
	}
	net->next_tick = any ? now + tick_ns(net) : RT_FOREVER;
}

static void dial_due(struct connect_net *net, uint64_t now)
{
	for (unsigned i = 0; i < net_peer_count(&net->base); i++) {
		struct connect_peer *peer = peer_at(net, i);
		uint64_t backoff = peer->backoff_ns;

		if (peer->base.up || peer->dialing || !net_peer_dials(&peer->base))
			continue;
		if (peer->dial_at <= now) {
			backoff = MAX(2 * backoff, BACKOFF_FIRST_NS);
			peer->backoff_ns = MIN(backoff, net->base.options.retry_ns);
			/* For the attempt after this one. */
			peer->dial_at = now + peer->backoff_ns / 2 +
					rt_random() % peer->backoff_ns;
			connect_dial(peer);
		}
		if (!peer->dialing)
			connect_due(net, peer->dial_at);
	}
}

static void what_is_due(struct connect_net *net)
{
	uint64_t now = rt_now_ns();

	if (now < net->next_due)
		return;
	net->next_due = RT_FOREVER;
	if (now >= net->next_tick)
		tick_links(net, now);
	if (net->deaf_until && now >= net->deaf_until) {
		net->deaf_until = 0;
		connect_hear(net, true);
	}
	if (now >= net->listen_at)
		connect_listen_again(net);
	if (net->deaf_until)
		connect_due(net, net->deaf_until);
	connect_due(net, net->listen_at);
	connect_due(net, net->next_tick);
	connect_due(net, connect_expire(net, now));
	connect_due(net, connect_strangers_due(net, now));
	dial_due(net, now);
}

/* ---- the progress task --------------------------------------------------------------------- */

static void source_ready(struct connect_net *net, const struct rt_ready *ready)
{
	struct connect_source *source = ready->tag;

	switch (source->kind) {
	case CONNECT_LISTENER:
		connect_accept_all(
			net, container_of(source, struct connect_listener, source));
		break;
	case CONNECT_CONNECTION:
		connect_ready(net, container_of(source, struct net_connection, source));
		break;
	case CONNECT_LINK:
		net->links->link_ready(
			container_of(source, struct connect_peer, source), ready->events);
		break;
	case CONNECT_DEVICE:
		net->links->device_ready(net, source);
		break;
	}
}

static void progress_main(void *arg)
{
	struct connect_net *net = arg;
	struct rt_ready ready[READY_MAX];

	while (!atomic_load(&net->stopping)) {
		unsigned n = rt_poller_wait(net->poller, ready, READY_MAX, net->next_due);

		for (unsigned i = 0; i < n; i++)
			source_ready(net, &ready[i]);
		if (atomic_exchange(&net->peers_changed, false))
			net->next_due = 0;
		what_is_due(net);
		if (net->links->round)
			net->links->round(net);
		connect_bury(net, false);
	}
	for (unsigned i = 0; i < net_peer_count(&net->base); i++) {
		net->links->link_bye(peer_at(net, i));
		net->links->link_down(peer_at(net, i), -ESHUTDOWN);
	}
	connect_bury(net, true);
	connect_listen_end(net);
}

/* ---- beginning and end -------------------------------------------------------------------- */

int connect_open(
	struct connect_net *net, const struct connect_ops *links, struct weft_error *err)
{
	int rc;

	net->links = links;
	net->next_tick = net->next_due = net->listen_at = RT_FOREVER;
	rc = rt_poller_open(&net->poller);
	if (rc)
		return weft_error(
			err, rc, "no poller for the network: %s", strerrordesc_np(-rc));
	if (net->base.options.tls) {
		rc = net_tls_open(net, err);
		if (rc)
			rt_poller_close(net->poller);
	}
	return rc;
}

int connect_start(struct connect_net *net, struct weft_error *err)
{
	int rc = 0;

	if (net->base.listen[0])
		rc = connect_listen(net, err);
	if (rc)
		return rc;
	net->next_due = 0;
	rc = rt_task_spawn(&net->progress, "net", progress_main, net);
	if (rc) {
		connect_listen_end(net);
		return weft_error(err, rc, "no task for the network");
	}
	return 0;
}

void connect_shutdown(struct net *base)
{
	struct connect_net *net = connect_net_of(base);

	atomic_store(&net->stopping, true);
	rt_poller_kick(net->poller);
}

void connect_stop(struct connect_net *net)
{
	connect_shutdown(&net->base);
	if (net->progress)
		rt_task_join(net->progress);
}

void connect_close(struct connect_net *net)
{
	rt_poller_close(net->poller);
	net_tls_close(net);
}

int connect_peer_add(struct connect_peer *peer, struct weft_error *err)
{
	peer->source.kind = CONNECT_LINK;
	if (!peer->base.address[0])
		return 0;
	return connect_places_find(
		&peer->there, peer->base.address, peer->base.node, err);
}

void connect_peer_added(struct net_peer *base)
{
	struct connect_net *net = connect_net_of(base->net);

	atomic_store(&net->peers_changed, true);
	rt_poller_kick(net->poller);
}
