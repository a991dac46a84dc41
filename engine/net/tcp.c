/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The tcp transport: its progress task, which listens, connects, ends links, and receives
 * for whoever does not wait himself. Also the simulator's transport, over its streams.
 *
 * The progress task sleeps in the poller. It alone begins and ends links and tells the
 * owner of it; other tasks say by cut_code that a link is to end, and shut its socket.
 */
#include "engine/net/tcp_internal.h"

#include <errno.h>
#include <string.h>

#define READY_MAX        64u
#define BACKOFF_FIRST_NS 10000000ull
#define SETTLED_NS       1000000000ull /* a link that lived as long has no backoff */
#define SILENT_TICKS     4u

void tcp_due(struct tcp_net *net, uint64_t at)
{
	net->next_due = MIN(net->next_due, at);
}

static struct tcp_peer *peer_at(struct tcp_net *net, unsigned i)
{
	return tcp_peer_of(net->base.list[i]);
}

/* ---- what the poller looks at -------------------------------------------------------- */

/* Under send_lock. */
void tcp_watch(struct tcp_peer *peer, bool want_write)
{
	struct tcp_net *net = tcp_net_of(peer->base.net);

	peer->want_write = want_write;
	rt_poller_change(net->poller, peer->stream.socket,
		RT_READABLE | (want_write ? RT_WRITABLE : 0u), &peer->source);
}

/* ---- links ------------------------------------------------------------------------------ */

void tcp_cut_locked(struct tcp_peer *peer, int code)
{
	int none = 0;

	if (peer->base.up && atomic_compare_exchange_strong(&peer->cut_code, &none, code))
		rt_socket_shutdown(peer->stream.socket);
}

void tcp_cut(struct net_peer *base, int code)
{
	struct tcp_peer *peer = tcp_peer_of(base);

	rt_mutex_lock(&peer->send.lock);
	tcp_cut_locked(peer, code);
	rt_mutex_unlock(&peer->send.lock);
}

void tcp_link_up(struct tcp_peer *peer, struct tcp_stream stream, uint32_t window)
{
	struct tcp_net *net = tcp_net_of(peer->base.net);
	struct tcp_receive *rx = &peer->receive;
	int r;

	WEFT_ASSERT(!peer->base.up);
	rt_mutex_lock(&rx->lock);
	rt_mutex_lock(&peer->send.lock);
	peer->stream = stream;
	rx->first = rx->end = 0;
	rx->data_left = 0;
	rx->op = NULL;
	WEFT_ASSERT(!tcp_send_reset(peer, window));
	atomic_store(&peer->owed, 0);
	atomic_store(&peer->allowed, WIRE_WINDOW);
	atomic_store(&peer->cut_code, 0);
	atomic_store(&peer->heard, true);
	atomic_store(&peer->spoke, true);
	peer->silent_ticks = peer->stuck_ticks = 0;
	peer->up_since = rt_now_ns();
	peer->want_write = false;
	rt_mutex_unlock(&peer->send.lock);
	r = rt_poller_add(net->poller, stream.socket, RT_READABLE, &peer->source);
	if (r) {
		tcp_stream_close(&peer->stream);
		rt_mutex_unlock(&rx->lock);
		net_tell_failed(&peer->base, r);
		return;
	}
	if (net->next_tick == RT_FOREVER) {
		net->next_tick =
			peer->up_since + net->base.options.stall_ns / SILENT_TICKS;
		tcp_due(net, net->next_tick);
	}
	atomic_store(&peer->closing, 0);
	atomic_store(&peer->base.up, 1);
	net_tell_up(&peer->base);
	rt_mutex_unlock(&rx->lock);
}

/* With recv_lock held: nobody sends any more; what was not sent, or answered, in a list. */
static struct net_op *stop_sending(struct tcp_peer *peer)
{
	struct tcp_send *s = &peer->send;
	struct net_op *ops, *done;
	unsigned spins = 0;

	rt_mutex_lock(&s->lock);
	atomic_store(&peer->base.up, 0);
	while (s->sending || s->calling) {
		rt_mutex_unlock(&s->lock);
		rt_spin(&spins);
		rt_mutex_lock(&s->lock);
	}
	done = s->ended; /* these were sent */
	s->ended = NULL;
	ops = tcp_send_reset(peer, 0);
	rt_mutex_unlock(&s->lock);
	while (done) {
		struct net_op *op = done;

		done = op->next;
		net_op_end(peer->base.net, op, 0);
	}
	return ops;
}

static void dial_again(struct tcp_peer *peer)
{
	struct tcp_net *net = tcp_net_of(peer->base.net);
	uint64_t now = rt_now_ns();

	if (!net_peer_dials(&peer->base) || atomic_load(&net->stopping))
		return;
	if (now - peer->up_since > SETTLED_NS)
		peer->backoff_ns = 0;
	peer->dial_at = now + peer->backoff_ns;
	tcp_due(net, peer->dial_at);
}

void tcp_link_down(struct tcp_peer *peer, int code)
{
	struct net_op *ops;

	if (!peer->base.up)
		return;
	tcp_cut(&peer->base, code); /* a code that is there stays */
	code = atomic_load(&peer->cut_code);
	tcp_leaders_leave(peer);
	rt_mutex_lock(&peer->receive.lock);
	ops = stop_sending(peer);
	rt_mutex_lock(&peer->kick_lock); /* nobody kicks it any more */
	rt_mutex_unlock(&peer->kick_lock);
	rt_poller_remove(tcp_net_of(peer->base.net)->poller, peer->stream.socket);
	if (peer->receive.op) {
		peer->receive.op->next = ops;
		ops = peer->receive.op;
		peer->receive.op = NULL;
	}
	peer->receive.data_left = 0;
	tcp_stream_close(&peer->stream);
	while (ops) {
		struct net_op *op = ops;

		ops = op->next;
		net_op_end(peer->base.net, op, -ECONNRESET);
	}
	net_tell_down(&peer->base, code);
	rt_mutex_unlock(&peer->receive.lock);
	dial_again(peer);
}

static void link_ready(struct tcp_peer *peer, unsigned events)
{
	if (!peer->base.up)
		return; /* ended earlier in this round */
	if (events & RT_WRITABLE)
		tcp_push(peer, false);
	/* A link that hung up may have last words. */
	if (events & (RT_READABLE | RT_HANGUP))
		tcp_receive_some(peer);
	if (atomic_load(&peer->cut_code) || (events & RT_HANGUP))
		tcp_link_down(peer, -ECONNRESET);
}

/* ---- time ---------------------------------------------------------------------------------- */

static void link_tick(struct tcp_peer *peer)
{
	struct tcp_send *s = &peer->send;
	bool stuck;

	if (atomic_exchange(&peer->heard, false))
		peer->silent_ticks = 0;
	else
		peer->silent_ticks++;
	rt_mutex_lock(&s->lock);
	stuck = s->blocked && !s->moved;
	s->moved = false;
	rt_mutex_unlock(&s->lock);
	peer->stuck_ticks = stuck ? peer->stuck_ticks + 1 : 0;
	if (peer->silent_ticks >= SILENT_TICKS || peer->stuck_ticks >= SILENT_TICKS)
		tcp_link_down(peer, -ETIMEDOUT);
	else if (!atomic_exchange(&peer->spoke, false))
		tcp_push(peer, true);
}

/* A tick goes on only while there is a link. */
static void tick(struct tcp_net *net, uint64_t now)
{
	bool any = false;

	for (unsigned i = 0; i < net_peer_count(&net->base); i++) {
		struct tcp_peer *peer = peer_at(net, i);

		if (peer->base.up)
			link_tick(peer);
		any |= peer->base.up;
	}
	net->next_tick =
		any ? now + net->base.options.stall_ns / SILENT_TICKS : RT_FOREVER;
}

static void dial_due(struct tcp_net *net, uint64_t now)
{
	for (unsigned i = 0; i < net_peer_count(&net->base); i++) {
		struct tcp_peer *peer = peer_at(net, i);
		uint64_t backoff = peer->backoff_ns;

		if (peer->base.up || peer->dialing || !net_peer_dials(&peer->base))
			continue;
		if (peer->dial_at <= now) {
			backoff = MAX(2 * backoff, BACKOFF_FIRST_NS);
			peer->backoff_ns = MIN(backoff, net->base.options.retry_ns);
			/* For the attempt after this one. */
			peer->dial_at = now + peer->backoff_ns / 2 +
					rt_random() % peer->backoff_ns;
			tcp_dial(peer);
		}
		if (!peer->dialing)
			tcp_due(net, peer->dial_at);
	}
}

static void what_is_due(struct tcp_net *net)
{
	uint64_t now = rt_now_ns();

	if (now < net->next_due)
		return;
	net->next_due = RT_FOREVER;
	if (now >= net->next_tick)
		tick(net, now);
	if (net->deaf_until && now >= net->deaf_until) {
		net->deaf_until = 0;
		rt_poller_change(
			net->poller, net->listener, RT_READABLE, &net->listener_source);
	}
	if (net->deaf_until)
		tcp_due(net, net->deaf_until);
	tcp_due(net, net->next_tick);
	tcp_due(net, tcp_connections_expire(net, now));
	dial_due(net, now);
}

/* ---- the progress task ------------------------------------------------------------------------ */

static void source_ready(struct tcp_net *net, const struct rt_ready *ready)
{
	struct tcp_source *source = ready->tag;

	switch (source->kind) {
	case TCP_LISTENER:
		tcp_accept_all(net);
		break;
	case TCP_CONNECTION:
		tcp_connection_ready(
			net, container_of(source, struct tcp_connection, source));
		break;
	case TCP_LINK:
		link_ready(container_of(source, struct tcp_peer, source), ready->events);
		break;
	}
}

static void progress(void *arg)
{
	struct tcp_net *net = arg;
	struct rt_ready ready[READY_MAX];

	while (!atomic_load(&net->stopping)) {
		unsigned n = rt_poller_wait(net->poller, ready, READY_MAX, net->next_due);

		for (unsigned i = 0; i < n; i++)
			source_ready(net, &ready[i]);
		if (atomic_load_explicit(&net->ended, memory_order_relaxed) &&
			atomic_exchange(&net->ended, false))
			for (unsigned i = 0; i < net_peer_count(&net->base); i++)
				tcp_call_done(peer_at(net, i));
		if (atomic_exchange(&net->peers_changed, false))
			net->next_due = 0;
		what_is_due(net);
		tcp_connections_bury(net, false);
	}
	for (unsigned i = 0; i < net_peer_count(&net->base); i++) {
		tcp_bye(peer_at(net, i), 0);
		tcp_link_down(peer_at(net, i), -ESHUTDOWN);
	}
	tcp_connections_bury(net, true);
}

/* ---- the table ---------------------------------------------------------------------------------- */

static int tcp_open(struct net *base, struct weft_error *err)
{
	struct tcp_net *net = tcp_net_of(base);
	int r;

	net->next_tick = net->next_due = RT_FOREVER;
	r = rt_poller_open(&net->poller);
	if (r)
		return weft_error(
			err, r, "no poller for the network: %s", strerrordesc_np(-r));
	if (base->options.tls) {
		r = tcp_tls_open(net, err);
		if (r)
			rt_poller_close(net->poller);
	}
	return r;
}

static int listen_at(struct tcp_net *net, struct weft_error *err)
{
	struct rt_address at;
	int r;

	r = rt_address_resolve(&at, net->base.listen, err);
	if (!r)
		r = rt_socket_listen(&net->listener, &at, err);
	if (r)
		return r;
	net->listener_source.kind = TCP_LISTENER;
	r = rt_poller_add(net->poller, net->listener, RT_READABLE, &net->listener_source);
	if (r) {
		rt_socket_close(net->listener);
		net->listener = NULL;
		return weft_error(err, r, "cannot watch the network");
	}
	return 0;
}

static void close_listener(struct tcp_net *net)
{
	if (!net->listener)
		return;
	rt_poller_remove(net->poller, net->listener);
	rt_socket_close(net->listener);
	net->listener = NULL;
}

static int tcp_start(struct net *base, struct weft_error *err)
{
	struct tcp_net *net = tcp_net_of(base);
	int r = 0;

	if (base->listen[0])
		r = listen_at(net, err);
	if (r)
		return r;
	net->next_due = 0;
	r = rt_task_spawn(&net->progress, "net", progress, net);
	if (r) {
		close_listener(net);
		return weft_error(err, r, "no task for the network");
	}
	return 0;
}

static void tcp_address(struct net *base, char out[NET_ADDRESS_BYTES])
{
	struct tcp_net *net = tcp_net_of(base);

	out[0] = 0;
	if (net->listener)
		rt_socket_name(net->listener, out, NET_ADDRESS_BYTES);
}

static void tcp_close(struct net *base)
{
	struct tcp_net *net = tcp_net_of(base);

	atomic_store(&net->stopping, true);
	if (net->progress) {
		rt_poller_kick(net->poller);
		rt_task_join(net->progress);
	}
	close_listener(net);
	for (unsigned i = 0; i < NET_REGIONS_MAX; i++)
		if (base->regions[i].ours)
			rt_free_pages(base->regions[i].base, base->regions[i].bytes);
	rt_poller_close(net->poller);
	tcp_tls_close(net);
}

static int tcp_peer_add(struct net_peer *base, struct weft_error *err)
{
	struct tcp_peer *peer = tcp_peer_of(base);
	int r;

	peer->source.kind = TCP_LINK;
	if (base->address[0]) {
		r = rt_address_resolve(&peer->address, base->address, err);
		if (r)
			return r;
	}
	peer->receive.buffer = rt_alloc(TCP_RECEIVE_BYTES);
	peer->send.frames = rt_alloc(NET_QUEUE_MAX * sizeof(struct tcp_frame));
	if (peer->receive.buffer && peer->send.frames)
		return 0;
	rt_free(peer->receive.buffer);
	rt_free(peer->send.frames);
	return weft_error(err, -ENOMEM, "no memory for node %u", base->node);
}

static void tcp_peer_added(struct net_peer *base)
{
	struct tcp_net *net = tcp_net_of(base->net);

	atomic_store(&net->peers_changed, true);
	rt_poller_kick(net->poller);
}

static void tcp_peer_free(struct net_peer *base)
{
	struct tcp_peer *peer = tcp_peer_of(base);

	rt_free(peer->receive.buffer);
	rt_free(peer->send.frames);
}

static int tcp_region_create(struct net *net, uint32_t id, size_t size, void **base)
{
	*base = rt_alloc_pages(size);
	return *base ? 0 : -ENOMEM;
}

static int tcp_region_adopt(struct net *net, uint32_t id, void *base, size_t size)
{
	return 0;
}

const struct net_ops net_tcp_ops = {
	.name = "tcp",
	.open = tcp_open,
	.start = tcp_start,
	.address = tcp_address,
	.close = tcp_close,
	.peer_add = tcp_peer_add,
	.peer_added = tcp_peer_added,
	.peer_free = tcp_peer_free,
	.region_create = tcp_region_create,
	.region_adopt = tcp_region_adopt,
	.send = tcp_send,
	.post = tcp_post,
	.flush = tcp_flush,
	.wait_room = tcp_wait_room,
	.wait = tcp_wait,
	.wake = tcp_wake,
	.cut = tcp_cut,
	.net_bytes = sizeof(struct tcp_net),
	.peer_bytes = sizeof(struct tcp_peer),
	.wire = WIRE_TCP,
};
