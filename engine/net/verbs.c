/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The verbs transport: RDMA, over reliable connections (docs/transports.md, "verbs").
 *
 * A link is a queue pair, and the tcp connection that proved the peer's identity. The end of either
 * is the link's end. Links end on the progress task. Other tasks set cut_code and shut the socket.
 */
#include "engine/net/verbs_internal.h"

#include <errno.h>
#include <string.h>

/* Sends the reason if the other end could not know it. The other end reads it before the end of the
 * stream. */
static void say_bye(struct verbs_peer *peer, uint32_t reason)
{
	struct wire_last frame = wire_last_make(reason);
	struct iovec iov = {&frame, sizeof(frame)};

	net_stream_send(&peer->stream, &iov, 1);
}

void verbs_cut_locked(struct connect_peer *line, int code)
{
	struct verbs_peer *peer = verbs_peer_of(&line->base);
	int none = 0;

	if (!line->base.up ||
		!atomic_compare_exchange_strong(&line->cut_code, &none, code))
		return;
	if (code == -EACCES || code == -ESHUTDOWN)
		say_bye(peer, code == -EACCES ? EACCES : 0);
	rt_socket_shutdown(peer->stream.socket);
}

void verbs_cut(struct net_peer *base, int code)
{
	struct connect_peer *line = connect_peer_of(base);

	rt_mutex_lock(&line->send_lock);
	verbs_cut_locked(line, code);
	rt_mutex_unlock(&line->send_lock);
}

/* ---- links ------------------------------------------------------------------------------- */

static int watch_events(struct verbs_peer *peer)
{
	struct rt_poller *poller = connect_net_of(peer->line.base.net)->poller;
	int rc = rt_poller_add(
		poller, peer->stream.socket, RT_READABLE, &peer->line.source);

	if (rc)
		return rc;
	rc = rt_poller_add(poller, peer->pair->bell, RT_READABLE, &peer->bell_source);
	if (rc)
		rt_poller_remove(poller, peer->stream.socket);
	return rc;
}

static void verbs_peer_release(struct verbs_peer *peer)
{
	verbs_pair_free(peer->pair);
	peer->pair = NULL;
	net_stream_close(&peer->stream);
}

static int verbs_link_up(struct connect_peer *line, struct net_connection *c)
{
	struct verbs_peer *peer = verbs_peer_of(&line->base);
	int rc;

	WEFT_ASSERT(!line->base.up);
	rt_mutex_lock(&line->event_lock);
	rt_mutex_lock(&line->send_lock);
	peer->stream = c->stream;
	peer->pair = c->offer;
	c->offer = NULL;
	peer->pair->connection = NULL;
	peer->pair->peer = peer;
	verbs_send_begin(peer);
	peer->armed = false;
	peer->bye_bytes = 0;
	atomic_store(&peer->taken, 0);
	atomic_store(&peer->told, 0);
	atomic_store(&peer->heard, true);
	atomic_store(&peer->spoke, true);
	peer->silent_ticks = peer->stuck_ticks = 0;
	atomic_store(&line->cut_code, 0);
	rt_mutex_unlock(&line->send_lock);
	rc = watch_events(peer);
	if (rc) {
		verbs_peer_release(peer);
	} else {
		connect_link_began(line);
		atomic_store(&line->closing, 0);
		atomic_store(&line->base.up, 1);
		if (peer->pair->theirs.no_atomics)
			weft_log(4,
				"node %u: its RDMA device has no atomics: CAS and FAA "
				"are "
				"refused",
				line->base.node);
		net_tell_up(&line->base);
	}
	rt_mutex_unlock(&line->event_lock);
	if (!rc)
		verbs_serve(peer); /* no task has looked for earlier completions */
	return rc;
}

/* Under send_lock, and no task uses the pair without it. */
static bool is_used(struct connect_peer *line)
{
	return false;
}

static void verbs_link_down(struct connect_peer *line, int code)
{
	struct verbs_peer *peer = verbs_peer_of(&line->base);
	struct rt_poller *poller = connect_net_of(line->base.net)->poller;
	struct net_op *ops;

	if (!line->base.up)
		return;
	verbs_cut(&line->base, code); /* an earlier code stays */
	code = atomic_load(&line->cut_code);
	net_lead_leave(line);
	rt_mutex_lock(&line->event_lock);
	net_queue_close(line, is_used);
	rt_mutex_lock(&line->send_lock);
	verbs_pair_stop(peer->pair);
	ops = verbs_send_reset(peer);
	rt_mutex_unlock(&line->send_lock);
	net_lead_gone(line);
	rt_poller_remove(poller, peer->stream.socket);
	rt_poller_remove(poller, peer->pair->bell);
	verbs_peer_release(peer);
	net_ops_end(line->base.net, ops, -ECONNRESET);
	net_tell_down(&line->base, code);
	rt_mutex_unlock(&line->event_lock);
	connect_link_ended(line);
}

/* The socket carries only BYE. Returns 0 if more bytes must come, else the reason for the link's
 * end. */
static int read_bye(struct verbs_peer *peer)
{
	struct wire_last last;
	ssize_t n;

	do {
		struct iovec iov = {
			peer->bye + peer->bye_bytes, sizeof(peer->bye) - peer->bye_bytes};

		if (iov.iov_len == 0)
			return -EPROTO;
		n = net_stream_recv(&peer->stream, &iov, 1);
		if (n == -EAGAIN)
			return 0;
		if (n <= 0)
			return -ECONNRESET;
		peer->bye_bytes += (unsigned)n;
	} while (peer->bye_bytes < sizeof(peer->bye));
	memcpy(&last, peer->bye, sizeof(last));
	if (!wire_head_whole(&last.head) ||
		!wire_fixed_whole(&last.head, &last.bye, sizeof(last.bye))) {
		net_checksum_error(&peer->line.base, "a message");
		return -EBADMSG;
	}
	if (last.head.type != WIRE_BYE || !wire_frame_check(&last.head))
		return -EPROTO;
	return last.bye.reason == EACCES ? -EACCES : -ESHUTDOWN;
}

static void verbs_link_ready(struct connect_peer *line, unsigned events)
{
	struct verbs_peer *peer = verbs_peer_of(&line->base);
	int code;

	if (!line->base.up)
		return; /* ended earlier in this round */
	code = read_bye(peer);
	if (!code && !atomic_load(&line->cut_code))
		return;
	verbs_serve(peer); /* takes the messages that the other end sent before it ended */
	verbs_link_down(line, code ? code : -ECONNRESET);
}

static void verbs_device_ready(struct connect_net *lines, struct connect_source *source)
{
	struct verbs_net *net = verbs_net_of(&lines->base);

	if (source == &net->manager_source) {
		verbs_manager_event(net);
		return;
	}
	for (unsigned i = 0; i < VERBS_DEVICES_MAX; i++)
		if (source == &net->devices[i].source) {
			verbs_device_event(net, &net->devices[i]);
			return;
		}
	verbs_serve(container_of(source, struct verbs_peer, bell_source));
}

static void verbs_link_tick(struct connect_peer *line)
{
	struct verbs_peer *peer = verbs_peer_of(&line->base);
	struct verbs_send *s = &peer->send;
	bool stuck;

	peer->silent_ticks =
		atomic_exchange(&peer->heard, false) ? 0 : peer->silent_ticks + 1;
	rt_mutex_lock(&line->send_lock);
	stuck = line->queued && !line->held && !s->moved;
	s->moved = false;
	rt_mutex_unlock(&line->send_lock);
	peer->stuck_ticks = stuck ? peer->stuck_ticks + 1 : 0;
	if (peer->silent_ticks >= CONNECT_SILENT_TICKS ||
		peer->stuck_ticks >= CONNECT_SILENT_TICKS)
		verbs_link_down(line, -ETIMEDOUT);
	else if (!atomic_exchange(&peer->spoke, false))
		verbs_push(peer, true);
}

static void verbs_link_bye(struct connect_peer *line)
{
	verbs_cut(&line->base, -ESHUTDOWN);
}

static void verbs_kick(struct connect_peer *line)
{
	rt_socket_kick(verbs_peer_of(&line->base)->pair->bell);
}

static void verbs_call_done_soon(struct connect_net *net)
{
	rt_poller_kick(net->poller);
}

static const struct connect_ops verbs_links = {
	.listen = verbs_manager_listen,
	.link_up = verbs_link_up,
	.link_down = verbs_link_down,
	.link_ready = verbs_link_ready,
	.link_tick = verbs_link_tick,
	.link_bye = verbs_link_bye,
	.cut_locked = verbs_cut_locked,
	.flush = verbs_flush,
	.call_done_soon = verbs_call_done_soon,
	.kick = verbs_kick,
	.round = net_queue_call_all,
	.leave = verbs_leave,
	.offer = verbs_offer,
	.offered = verbs_offered,
	.keys = verbs_keys,
	.device_ready = verbs_device_ready,
};

/* ---- the table --------------------------------------------------------------------------- */

static int verbs_open(struct net *base, struct weft_error *err)
{
	struct verbs_net *net = verbs_net_of(base);
	int rc;

	if (base->options.tls)
		return weft_error(
			err, -EINVAL, "verbs has no TLS: RDMA is not encrypted");
	rc = connect_open(&net->lines, &verbs_links, err);
	if (rc)
		return rc;
	rc = verbs_manager_open(net, err);
	if (rc) {
		verbs_manager_close(net);
		connect_close(&net->lines);
	}
	return rc;
}

static int verbs_start(struct net *base, struct weft_error *err)
{
	return connect_start(connect_net_of(base), err);
}

static void verbs_close(struct net *base)
{
	struct verbs_net *net = verbs_net_of(base);

	connect_stop(&net->lines);
	verbs_manager_close(net);
	verbs_devices_close(net);
	for (unsigned i = 0; i < NET_REGIONS_MAX; i++)
		if (base->regions[i].base)
			rt_free_pages(base->regions[i].base, base->regions[i].bytes);
	connect_close(&net->lines);
}

static int verbs_peer_add(struct net_peer *base, struct weft_error *err)
{
	struct verbs_peer *peer = verbs_peer_of(base);
	int rc = connect_peer_add(&peer->line, err);

	if (rc)
		return rc;
	peer->bell_source.kind = CONNECT_DEVICE;
	peer->send.queue = rt_alloc(NET_QUEUE_MAX * sizeof(struct verbs_entry));
	if (peer->send.queue)
		return 0;
	return weft_error(err, -ENOMEM, "no memory for node %u", base->node);
}

static void verbs_peer_free(struct net_peer *base)
{
	rt_free(verbs_peer_of(base)->send.queue);
}

static int verbs_region_create(
	struct net *net, uint32_t id, size_t size, unsigned rights, void **base)
{
	*base = rt_alloc_pages(size);
	return *base ? 0 : -ENOMEM;
}

const struct net_ops net_verbs_ops = {
	.name = "verbs",
	.open = verbs_open,
	.start = verbs_start,
	.address = connect_address,
	.shutdown = connect_shutdown,
	.close = verbs_close,
	.peer_add = verbs_peer_add,
	.peer_added = connect_peer_added,
	.peer_free = verbs_peer_free,
	.region_create = verbs_region_create,
	.send = verbs_send,
	.post = verbs_post,
	.flush = net_queue_flush,
	.has_room = net_queue_has_room,
	.wait_room = net_queue_wait,
	.wait = verbs_wait,
	.wake = net_lead_wake,
	.cut = verbs_cut,
	.net_bytes = sizeof(struct verbs_net),
	.peer_bytes = sizeof(struct verbs_peer),
	.wire = WIRE_VERBS,
};
