/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The shm transport, for nodes of one host. A link begins as a connection over a unix socket
 * (connect.c). When both ends have proven the key, they share memory. The link ends with the
 * socket. When a process ends, the kernel closes its sockets: the other end sees its death at once.
 * The last process that maps the shared memory frees it.
 *
 * A link's end waits until the other process has left this node's memory (promise 4).
 */
#include "engine/net/shm_internal.h"

#include <errno.h>
#include <string.h>

#define BUSY_SLEEP_NS 50000u

void shm_cut_locked(struct connect_peer *line, int code)
{
	struct shm_peer *peer = shm_peer_of(&line->base);
	int none = 0;

	if (!line->base.up ||
		!atomic_compare_exchange_strong(&line->cut_code, &none, code))
		return;
	if (code == -EACCES || code == -ESHUTDOWN)
		atomic_store(&peer->out->bye, (uint32_t)-code);
	rt_socket_shutdown(peer->socket);
}

void shm_cut(struct net_peer *base, int code)
{
	struct connect_peer *line = connect_peer_of(base);

	rt_mutex_lock(&line->send_lock);
	shm_cut_locked(line, code);
	rt_mutex_unlock(&line->send_lock);
}

/* ---- sharing ------------------------------------------------------------------------------ */

/* Makes the ring that the other end will write to. */
static struct rt_shared *ring_new(const struct net *net)
{
	struct rt_shared *shared;
	struct shm_link *ring;

	if (rt_shared_create(&shared, sizeof(struct shm_link), true))
		return NULL;
	ring = rt_shared_base(shared);
	memcpy(ring->magic, SHM_LINK, sizeof(ring->magic));
	ring->version = SHM_VERSION;
	ring->slots = SHM_SLOTS;
	ring->open = 1;
	for (unsigned i = 0; i < NET_REGIONS_MAX; i++)
		if (net->regions[i].base)
			ring->regions[i] =
				(struct shm_region){.bytes = net->regions[i].bytes,
					.rights = net->regions[i].rights};
	return shared;
}

static bool shm_share(struct connect_net *lines, struct net_connection *c,
	const void *what, size_t bytes)
{
	struct shm_net *net = shm_net_of(&lines->base);
	struct rt_shared *all[RT_SHARED_MAX];
	unsigned n = 0;

	c->offer = ring_new(&lines->base);
	if (!c->offer)
		return false;
	all[n++] = net->node_shared;
	all[n++] = c->offer;
	for (unsigned i = 0; i < NET_REGIONS_MAX; i++)
		if (net->region_shared[i])
			all[n++] = net->region_shared[i];
	return rt_socket_send_shared(c->stream.socket, what, bytes, all, n) == 0;
}

static void shm_leave(struct net_connection *c)
{
	rt_shared_free(c->offer);
	c->offer = NULL;
}

static bool node_fits(struct rt_shared *shared)
{
	const struct shm_node *node = rt_shared_base(shared);

	return rt_shared_bytes(shared) >= sizeof(*node) &&
	       !memcmp(node->magic, SHM_NODE, sizeof(node->magic)) &&
	       node->version == SHM_VERSION;
}

static bool link_fits(struct rt_shared *shared)
{
	const struct shm_link *link = rt_shared_base(shared);

	return rt_shared_bytes(shared) >= sizeof(*link) &&
	       !memcmp(link->magic, SHM_LINK, sizeof(link->magic)) &&
	       link->version == SHM_VERSION && link->slots == SHM_SLOTS;
}

/* The ring's table tells which region each of the other descriptors is. It is read once. */
static bool regions_fit(struct shm_peer *peer, struct rt_shared **rest, unsigned count)
{
	const struct shm_link *link = rt_shared_base(peer->out_shared);
	unsigned used = 0;

	for (unsigned i = 0; i < NET_REGIONS_MAX; i++) {
		struct shm_region r = link->regions[i];

		peer->remote[i] = (struct net_region){0};
		if (!r.bytes)
			continue;
		if (used == count || r.bytes > rt_shared_bytes(rest[used]))
			return false;
		peer->remote[i] = (struct net_region){
			.base = rt_shared_base(rest[used]),
			.bytes = r.bytes,
			.rights = rt_shared_writable(rest[used])
					  ? r.rights
					  : r.rights & NET_REMOTE_READ,
		};
		used++;
	}
	return used == count;
}

static void shm_peer_release(struct shm_peer *peer)
{
	rt_shared_free(peer->in_shared);
	rt_shared_free(peer->out_shared);
	rt_shared_free(peer->node_shared);
	for (unsigned i = 0; i < NET_REGIONS_MAX; i++) {
		rt_shared_free(peer->region_shared[i]);
		peer->region_shared[i] = NULL;
	}
	peer->in_shared = peer->out_shared = peer->node_shared = NULL;
	peer->in = peer->out = NULL;
	peer->node = NULL;
	rt_socket_close(peer->socket);
	peer->socket = NULL;
}

/* When it returns 0, both ends' memory is mapped. */
static int take_shared(struct shm_peer *peer, struct net_connection *c)
{
	struct rt_shared *all[2 + NET_REGIONS_MAX];
	int n = rt_socket_take_shared(c->stream.socket, all, ARRAY_SIZE(all));

	if (n < 0)
		return n;
	for (int i = 2; i < n; i++)
		peer->region_shared[i - 2] = all[i];
	if (n > 0)
		peer->node_shared = all[0];
	if (n > 1)
		peer->out_shared = all[1];
	if (n < 2 || !node_fits(all[0]) || !link_fits(all[1]) ||
		!rt_shared_writable(all[0]) || !rt_shared_writable(all[1]) ||
		!regions_fit(peer, peer->region_shared, (unsigned)n - 2))
		return -EPROTO;
	peer->in = rt_shared_base(peer->in_shared);
	peer->out = rt_shared_base(peer->out_shared);
	peer->node = rt_shared_base(peer->node_shared);
	return 0;
}

/* ---- links ------------------------------------------------------------------------------- */

static int shm_link_up(struct connect_peer *line, struct net_connection *c)
{
	struct shm_peer *peer = shm_peer_of(&line->base);
	struct shm_net *net = shm_net_of(line->base.net);
	int rc;

	WEFT_ASSERT(!line->base.up);
	rt_mutex_lock(&line->event_lock);
	rt_mutex_lock(&line->send_lock);
	peer->socket = c->stream.socket;
	peer->in_shared = c->offer;
	c->offer = NULL;
	shm_send_reset(peer);
	atomic_store(&peer->rung, 0); /* its sleeps are counted anew */
	peer->in_head = 0;
	peer->beats_seen = peer->head_seen = 0;
	peer->silent_ticks = peer->stuck_ticks = 0;
	atomic_store(&line->cut_code, 0);
	rc = take_shared(peer, c);
	rt_mutex_unlock(&line->send_lock);
	if (!rc)
		rc = rt_poller_add(connect_net_of(line->base.net)->poller, peer->socket,
			RT_READABLE, &line->source);
	if (rc) {
		shm_peer_release(peer);
	} else {
		connect_link_began(line);
		atomic_store(&line->closing, 0);
		atomic_store(&line->base.up, 1);
		net_tell_up(&line->base);
	}
	rt_mutex_unlock(&line->event_lock);
	/* No task has looked for earlier messages. */
	shm_ring_node(net->node, &net->rung);
	return rc;
}

/* Under send_lock. */
static bool is_used(struct connect_peer *line)
{
	return atomic_load(&shm_peer_of(&line->base)->users) > 0;
}

/* When it returns, no access to this node's memory is under way, and none begins. A process that is
 * stopped within an access delays this until it continues or ends. */
static void close_memory(struct shm_peer *peer)
{
	atomic_store(&peer->in->open, 0);
	while (atomic_load(&peer->in->busy) && rt_socket_process_lives(peer->socket))
		rt_sleep_ns(BUSY_SLEEP_NS);
}

static void shm_link_down(struct connect_peer *line, int code)
{
	struct shm_peer *peer = shm_peer_of(&line->base);
	if (!line->base.up)
		return;
	shm_cut(&line->base, code); /* an earlier code stays */
	code = atomic_load(&line->cut_code);
	net_lead_leave(line);
	rt_mutex_lock(&line->event_lock);
	net_queue_close(line, is_used);
	rt_mutex_lock(&line->send_lock);
	shm_send_reset(peer);
	rt_mutex_unlock(&line->send_lock);
	net_lead_gone(line);
	rt_poller_remove(connect_net_of(line->base.net)->poller, peer->socket);
	close_memory(peer);
	shm_peer_release(peer);
	net_tell_down(&line->base, code);
	rt_mutex_unlock(&line->event_lock);
	connect_link_ended(line);
}

/* The socket carries no bytes. It has ended, or the other end breaks the rules. */
static void shm_link_ready(struct connect_peer *line, unsigned events)
{
	struct shm_peer *peer = shm_peer_of(&line->base);
	uint8_t byte;
	struct iovec iov = {&byte, 1};
	uint32_t bye;
	ssize_t n;

	if (!line->base.up)
		return; /* ended earlier in this round */
	n = rt_socket_recv(peer->socket, &iov, 1);
	if (n == -EAGAIN && !atomic_load(&line->cut_code))
		return;
	/* Takes the messages that the other end sent before it ended. */
	rt_mutex_lock(&line->event_lock);
	shm_receive(peer);
	rt_mutex_unlock(&line->event_lock);
	bye = atomic_load(&peer->in->bye);
	if (n > 0)
		shm_link_down(line, -EPROTO);
	else if (bye == EACCES || bye == ESHUTDOWN)
		shm_link_down(line, -(int)bye);
	else
		shm_link_down(line, -ECONNRESET);
}

static void shm_link_tick(struct connect_peer *line)
{
	struct shm_peer *peer = shm_peer_of(&line->base);
	uint64_t beats = atomic_load(&peer->node->beats);
	uint64_t head = atomic_load(&peer->out->head);
	bool waits = atomic_load(&peer->send.waiting);

	atomic_fetch_add(&shm_net_of(line->base.net)->node->beats, 1);
	peer->silent_ticks = beats == peer->beats_seen ? peer->silent_ticks + 1 : 0;
	peer->stuck_ticks = waits && head == peer->head_seen ? peer->stuck_ticks + 1 : 0;
	peer->beats_seen = beats;
	peer->head_seen = head;
	if (peer->silent_ticks >= CONNECT_SILENT_TICKS ||
		peer->stuck_ticks >= CONNECT_SILENT_TICKS)
		shm_link_down(line, -ETIMEDOUT);
}

static void shm_link_bye(struct connect_peer *line)
{
	shm_cut(&line->base, -ESHUTDOWN);
}

static void shm_kick(struct connect_peer *line)
{
	struct shm_peer *peer = shm_peer_of(&line->base);

	atomic_fetch_add(&peer->in->bell, 1);
	rt_shared_wake(&peer->in->bell, INT32_MAX);
}

static void shm_call_done_soon(struct connect_net *net)
{
	struct shm_net *shm = shm_net_of(&net->base);

	shm_ring_node(shm->node, &shm->rung);
}

static const struct connect_ops shm_links = {
	.link_up = shm_link_up,
	.link_down = shm_link_down,
	.link_ready = shm_link_ready,
	.link_tick = shm_link_tick,
	.link_bye = shm_link_bye,
	.cut_locked = shm_cut_locked,
	.flush = shm_flush,
	.call_done_soon = shm_call_done_soon,
	.kick = shm_kick,
	.share = shm_share,
	.leave = shm_leave,
};

/* ---- the table --------------------------------------------------------------------------- */

static int shm_open_net(struct net *base, struct weft_error *err)
{
	struct shm_net *net = shm_net_of(base);
	int rc;

	if (base->options.tls)
		return weft_error(
			err, -EINVAL, "shm has no TLS: it does not leave the host");
	rc = rt_shared_create(&net->node_shared, sizeof(*net->node), true);
	if (rc)
		return weft_error(err, rc, "no shared memory: %s", strerrordesc_np(-rc));
	net->node = rt_shared_base(net->node_shared);
	memcpy(net->node->magic, SHM_NODE, sizeof(net->node->magic));
	net->node->version = SHM_VERSION;
	rc = connect_open(&net->lines, &shm_links, err);
	if (rc)
		rt_shared_free(net->node_shared);
	return rc;
}

static void stop_task(struct shm_net *net)
{
	atomic_store(&net->stopping, true);
	shm_ring_node(net->node, &net->rung);
	if (net->task)
		rt_task_join(net->task);
	net->task = NULL;
}

static int shm_start(struct net *base, struct weft_error *err)
{
	struct shm_net *net = shm_net_of(base);
	int rc = rt_task_spawn(&net->task, "net-shm", shm_task, net);

	if (rc)
		return weft_error(err, rc, "no task for the network");
	rc = connect_start(&net->lines, err);
	if (rc)
		stop_task(net);
	return rc;
}

static void shm_close(struct net *base)
{
	struct shm_net *net = shm_net_of(base);

	connect_stop(&net->lines);
	stop_task(net);
	connect_close(&net->lines);
	for (unsigned i = 0; i < NET_REGIONS_MAX; i++)
		rt_shared_free(net->region_shared[i]);
	rt_shared_free(net->node_shared);
}

static int shm_peer_add(struct net_peer *base, struct weft_error *err)
{
	struct shm_peer *peer = shm_peer_of(base);
	int rc = connect_peer_add(&peer->line, err);

	if (rc)
		return rc;
	peer->send.queue = rt_alloc(NET_QUEUE_MAX * sizeof(struct net_message));
	if (peer->send.queue)
		return 0;
	return weft_error(err, -ENOMEM, "no memory for node %u", base->node);
}

static void shm_peer_free(struct net_peer *base)
{
	rt_free(shm_peer_of(base)->send.queue);
}

static int shm_region_create(
	struct net *base, uint32_t id, size_t size, unsigned rights, void **memory)
{
	struct shm_net *net = shm_net_of(base);
	int rc = rt_shared_create(&net->region_shared[id], size,
		rights & (NET_REMOTE_WRITE | NET_REMOTE_ATOMIC));

	if (!rc)
		*memory = rt_shared_base(net->region_shared[id]);
	return rc;
}

const struct net_ops net_shm_ops = {
	.name = "shm",
	.open = shm_open_net,
	.start = shm_start,
	.address = connect_address,
	.shutdown = connect_shutdown,
	.close = shm_close,
	.peer_add = shm_peer_add,
	.peer_added = connect_peer_added,
	.peer_free = shm_peer_free,
	.region_create = shm_region_create,
	.send = shm_send,
	.post = shm_post,
	.flush = net_queue_flush,
	.has_room = net_queue_has_room,
	.wait_room = net_queue_wait,
	.wait = shm_wait,
	.wake = net_lead_wake,
	.cut = shm_cut,
	.net_bytes = sizeof(struct shm_net),
	.peer_bytes = sizeof(struct shm_peer),
	.wire = WIRE_SHM,
};
