/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tcp transport: it turns a connection into a link. It is also the simulator's transport, over
 * the simulator's streams.
 *
 * Links begin and end on the progress task (connect.c). Other tasks set cut_code to end a link, and
 * shut its socket.
 */
#include "engine/net/tcp_internal.h"

#include <errno.h>
#include <string.h>

/* Under send_lock. */
void tcp_watch(struct tcp_peer *peer, bool want_write)
{
	peer->want_write = want_write;
	rt_poller_change(connect_net_of(peer->line.base.net)->poller, peer->stream.socket,
		RT_READABLE | (want_write ? RT_WRITABLE : 0u), &peer->line.source);
}

void tcp_cut_locked(struct connect_peer *line, int code)
{
	int none = 0;

	if (line->base.up && atomic_compare_exchange_strong(&line->cut_code, &none, code))
		rt_socket_shutdown(tcp_peer_of(&line->base)->stream.socket);
}

void tcp_cut(struct net_peer *base, int code)
{
	struct connect_peer *line = connect_peer_of(base);

	rt_mutex_lock(&line->send_lock);
	tcp_cut_locked(line, code);
	rt_mutex_unlock(&line->send_lock);
}

/* ---- links ------------------------------------------------------------------------------ */

static void reset_window(struct tcp_peer *peer, uint32_t window)
{
	struct tcp_receive *rx = &peer->receive;

	rx->first = rx->end = 0;
	rx->data_left = rx->run_count = 0;
	rx->op = NULL;
	rx->long_ones = false;
	WEFT_ASSERT(!tcp_send_reset(peer, window));
	atomic_store(&peer->owed, 0);
	atomic_store(&peer->allowed, WIRE_WINDOW);
	atomic_store(&peer->line.cut_code, 0);
	atomic_store(&peer->heard, true);
	atomic_store(&peer->spoke, true);
	peer->silent_ticks = peer->stuck_ticks = 0;
	peer->want_write = false;
}

static int tcp_link_up(struct connect_peer *line, struct net_connection *c)
{
	struct tcp_peer *peer = tcp_peer_of(&line->base);
	int rc;

	WEFT_ASSERT(!line->base.up);
	rt_mutex_lock(&line->event_lock);
	rt_mutex_lock(&line->send_lock);
	peer->stream = c->stream;
	reset_window(peer, c->greeting.theirs.window);
	rt_mutex_unlock(&line->send_lock);
	rc = rt_poller_add(connect_net_of(line->base.net)->poller, peer->stream.socket,
		RT_READABLE, &line->source);
	if (rc) {
		net_stream_close(&peer->stream);
	} else {
		connect_link_began(line);
		atomic_store(&line->closing, 0);
		atomic_store(&line->base.up, 1);
		net_tell_up(&line->base);
		/* TLS may have read bytes that arrived together with the proof. */
		while (peer->stream.tls && tcp_receive(peer))
			;
	}
	rt_mutex_unlock(&line->event_lock);
	return rc;
}

/* Under send_lock. */
static bool is_sending(struct connect_peer *line)
{
	return tcp_peer_of(&line->base)->send.sending;
}

static void tcp_link_down(struct connect_peer *line, int code)
{
	struct tcp_peer *peer = tcp_peer_of(&line->base);
	struct net_op *ops;

	if (!line->base.up)
		return;
	tcp_cut(&line->base, code); /* an earlier code stays */
	code = atomic_load(&peer->line.cut_code);
	net_lead_leave(line);
	rt_mutex_lock(&line->event_lock);
	net_queue_close(line, is_sending);
	rt_mutex_lock(&line->send_lock);
	ops = tcp_send_reset(peer, 0);
	rt_mutex_unlock(&line->send_lock);
	net_lead_gone(line);
	rt_poller_remove(connect_net_of(line->base.net)->poller, peer->stream.socket);
	if (peer->receive.op) {
		peer->receive.op->next = ops;
		ops = peer->receive.op;
		peer->receive.op = NULL;
	}
	peer->receive.data_left = peer->receive.run_count = 0;
	net_stream_close(&peer->stream);
	net_ops_end(line->base.net, ops, -ECONNRESET);
	net_tell_down(&line->base, code);
	rt_mutex_unlock(&line->event_lock);
	connect_link_ended(line);
}

static void tcp_link_ready(struct connect_peer *line, unsigned events)
{
	struct tcp_peer *peer = tcp_peer_of(&line->base);

	if (!line->base.up)
		return; /* ended earlier in this round */
	if (events & RT_WRITABLE)
		tcp_push(peer, false);
	/* A link that hung up may have sent bytes before. */
	if (events & (RT_READABLE | RT_HANGUP))
		tcp_receive_some(peer);
	if (atomic_load(&peer->line.cut_code) || (events & RT_HANGUP))
		tcp_link_down(line, -ECONNRESET);
}

static void tcp_link_tick(struct connect_peer *line)
{
	struct tcp_peer *peer = tcp_peer_of(&line->base);
	struct tcp_send *s = &peer->send;
	bool stuck;

	if (atomic_exchange(&peer->heard, false))
		peer->silent_ticks = 0;
	else
		peer->silent_ticks++;
	rt_mutex_lock(&line->send_lock);
	stuck = s->blocked && !s->moved;
	s->moved = false;
	rt_mutex_unlock(&line->send_lock);
	peer->stuck_ticks = stuck ? peer->stuck_ticks + 1 : 0;
	if (peer->silent_ticks >= CONNECT_SILENT_TICKS ||
		peer->stuck_ticks >= CONNECT_SILENT_TICKS)
		tcp_link_down(line, -ETIMEDOUT);
	else if (!atomic_exchange(&peer->spoke, false))
		tcp_push(peer, true);
}

static void tcp_link_bye(struct connect_peer *line)
{
	tcp_bye(tcp_peer_of(&line->base), 0);
}

static void tcp_kick(struct connect_peer *line)
{
	rt_socket_kick(tcp_peer_of(&line->base)->stream.socket);
}

static void tcp_call_done_soon(struct connect_net *net)
{
	rt_poller_kick(net->poller);
}

static const struct connect_ops tcp_links = {
	.link_up = tcp_link_up,
	.link_down = tcp_link_down,
	.link_ready = tcp_link_ready,
	.link_tick = tcp_link_tick,
	.link_bye = tcp_link_bye,
	.kick = tcp_kick,
	.cut_locked = tcp_cut_locked,
	.flush = tcp_flush,
	.call_done_soon = tcp_call_done_soon,
	.round = net_queue_call_all,
};

/* ---- the table -------------------------------------------------------------------------- */

static int tcp_open(struct net *base, struct weft_error *err)
{
	return connect_open(connect_net_of(base), &tcp_links, err);
}

static int tcp_start(struct net *base, struct weft_error *err)
{
	return connect_start(connect_net_of(base), err);
}

static void tcp_close(struct net *base)
{
	connect_stop(connect_net_of(base));
	for (unsigned i = 0; i < NET_REGIONS_MAX; i++)
		if (base->regions[i].base)
			rt_free_pages(base->regions[i].base, base->regions[i].bytes);
	connect_close(connect_net_of(base));
}

static int tcp_peer_add(struct net_peer *base, struct weft_error *err)
{
	struct tcp_peer *peer = tcp_peer_of(base);
	int rc = connect_peer_add(&peer->line, err);

	if (rc)
		return rc;
	peer->receive.buffer = rt_alloc(TCP_RECEIVE_BYTES);
	peer->send.frames = rt_alloc(NET_QUEUE_MAX * sizeof(struct tcp_frame));
	if (peer->receive.buffer && peer->send.frames)
		return 0;
	rt_free(peer->receive.buffer);
	rt_free(peer->send.frames);
	return weft_error(err, -ENOMEM, "no memory for node %u", base->node);
}

static void tcp_peer_free(struct net_peer *base)
{
	struct tcp_peer *peer = tcp_peer_of(base);

	rt_free(peer->receive.buffer);
	rt_free(peer->send.frames);
}

static int tcp_region_create(
	struct net *net, uint32_t id, size_t size, unsigned rights, void **base)
{
	*base = rt_alloc_pages(size);
	return *base ? 0 : -ENOMEM;
}

const struct net_ops net_tcp_ops = {
	.name = "tcp",
	.open = tcp_open,
	.start = tcp_start,
	.address = connect_address,
	.shutdown = connect_shutdown,
	.close = tcp_close,
	.peer_add = tcp_peer_add,
	.peer_added = connect_peer_added,
	.peer_free = tcp_peer_free,
	.region_create = tcp_region_create,
	.send = tcp_send,
	.post = tcp_post,
	.flush = net_queue_flush,
	.has_room = net_queue_has_room,
	.wait_room = net_queue_wait,
	.wait = tcp_wait,
	.wake = net_lead_wake,
	.cut = tcp_cut,
	.net_bytes = sizeof(struct connect_net),
	.peer_bytes = sizeof(struct tcp_peer),
	.wire = WIRE_TCP,
};
