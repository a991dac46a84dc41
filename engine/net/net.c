/* SPDX-License-Identifier: Apache-2.0 */
/* The face of the network. It checks arguments, and calls the transport's functions. A function
 * that the transport lacks has a default. */
#include "engine/net/net_internal.h"

#include <errno.h>
#include <string.h>

#include "engine/rt/secret.h"

#define SECOND          1000000000ull
#define CHECKSUM_LOG_NS (10 * SECOND)

#if defined(__SANITIZE_THREAD__)
_Atomic uint32_t net_order[NET_NODES_MAX];
#endif

/* ---- defaults ------------------------------------------------------------------------ */

static int no_open(struct net *net, struct weft_error *err)
{
	return weft_error(err, -EOPNOTSUPP, "this transport cannot be used here");
}

static void plain_address(struct net *net, char out[NET_ADDRESS_BYTES])
{
	memcpy(out, net->listen, NET_ADDRESS_BYTES);
}

static void no_close(struct net *net)
{
}

static void no_shutdown(struct net *net)
{
}

static int no_peer_add(struct net_peer *peer, struct weft_error *err)
{
	return weft_error(err, -EOPNOTSUPP, "this transport has no peers");
}

static void no_peer_free(struct net_peer *peer)
{
}

static int no_region_create(
	struct net *net, uint32_t id, size_t size, unsigned rights, void **base)
{
	return -EOPNOTSUPP;
}

static int no_send(struct net_peer *peer, const struct net_message *m, unsigned flags)
{
	return -EOPNOTSUPP;
}

static int no_post(struct net_peer *peer, struct net_op *op, unsigned flags)
{
	return -EOPNOTSUPP;
}

static void no_flush(struct net *net, unsigned flags)
{
}

static bool no_has_room(struct net_peer *peer)
{
	return false;
}

static int no_wait_room(struct net_peer *peer, uint64_t deadline_ns)
{
	return -EOPNOTSUPP;
}

static int plain_wait(struct net *net, struct net_peer *likely, _Atomic uint32_t *word,
	uint32_t expected, uint64_t deadline_ns)
{
	return rt_wait(word, expected, deadline_ns);
}

static void plain_wake(struct net *net, _Atomic uint32_t *word, int count)
{
	rt_wake(word, count);
}

static void no_cut(struct net_peer *peer, int code)
{
}

static const struct net_ops default_ops = {
	.name = "none",
	.open = no_open,
	.start = no_open,
	.address = plain_address,
	.shutdown = no_shutdown,
	.close = no_close,
	.peer_add = no_peer_add,
	.peer_added = no_peer_free,
	.peer_free = no_peer_free,
	.region_create = no_region_create,
	.send = no_send,
	.post = no_post,
	.flush = no_flush,
	.has_room = no_has_room,
	.wait_room = no_wait_room,
	.wait = plain_wait,
	.wake = plain_wake,
	.cut = no_cut,
	.net_bytes = sizeof(struct net),
	.peer_bytes = sizeof(struct net_peer),
};

#define OVERLAY(to, from, member)                                                        \
	do {                                                                             \
		if ((from)->member)                                                      \
			(to)->member = (from)->member;                                   \
	} while (0)

static void ops_overlay(struct net_ops *to, const struct net_ops *from)
{
	*to = default_ops;
	OVERLAY(to, from, name);
	OVERLAY(to, from, open);
	OVERLAY(to, from, start);
	OVERLAY(to, from, address);
	OVERLAY(to, from, shutdown);
	OVERLAY(to, from, close);
	OVERLAY(to, from, peer_add);
	OVERLAY(to, from, peer_added);
	OVERLAY(to, from, peer_free);
	OVERLAY(to, from, region_create);
	OVERLAY(to, from, send);
	OVERLAY(to, from, post);
	OVERLAY(to, from, flush);
	OVERLAY(to, from, has_room);
	OVERLAY(to, from, wait_room);
	OVERLAY(to, from, wait);
	OVERLAY(to, from, wake);
	OVERLAY(to, from, cut);
	OVERLAY(to, from, net_bytes);
	OVERLAY(to, from, peer_bytes);
	OVERLAY(to, from, wire);
}

/* ---- the endpoint -------------------------------------------------------------------- */

static const struct net_ops *transport_of(const char *name)
{
	if (!strcmp(name, "tcp") || (!strcmp(name, "sim") && rt_simulated))
		return &net_tcp_ops;
	if (!strcmp(name, "shm") && !rt_simulated)
		return &net_shm_ops;
	if (!strcmp(name, "verbs") && !rt_simulated)
		return &net_verbs_ops;
	return NULL;
}

static int options_check(const struct net_options *o, struct weft_error *err)
{
	if (o->self.node >= NET_NODES_MAX)
		return weft_error(err, -EINVAL, "node id %u is too high: below %u",
			o->self.node, NET_NODES_MAX);
	if (bytes_are_zero(o->self.node_uuid, NET_UUID_BYTES))
		return weft_error(err, -EINVAL, "this node has no UUID");
	if (o->self.role != NET_ROLE_STORAGE && o->self.role != NET_ROLE_CLIENT)
		return weft_error(err, -EINVAL, "this node has no role");
	if (!o->handlers.event)
		return weft_error(err, -EINVAL, "the handler of events is missing");
	if (o->listen && strlen(o->listen) >= NET_ADDRESS_BYTES)
		return weft_error(err, -EINVAL, "the address %s is too long", o->listen);
	return 0;
}

static void fill_defaults(struct net_options *o)
{
	if (!o->clock_skew_ns)
		o->clock_skew_ns = 60 * SECOND;
	if (!o->handshake_ns)
		o->handshake_ns = 5 * SECOND;
	if (!o->stall_ns)
		o->stall_ns = 10 * SECOND;
	if (!o->retry_ns)
		o->retry_ns = SECOND;
}

int net_open(struct net **out, const struct net_options *o, struct weft_error *err)
{
	const struct net_ops *transport = transport_of(o->transport);
	struct net_ops ops;
	struct net *net;
	int rc;

	if (!transport)
		return weft_error(
			err, -EINVAL, "there is no transport \"%s\"", o->transport);
	rc = options_check(o, err);
	if (rc)
		return rc;
	ops_overlay(&ops, transport);
	net = rt_alloc(ops.net_bytes);
	if (!net)
		return weft_error(err, -ENOMEM, "no memory for the network");
	net->key = secret_alloc(NET_KEY_BYTES);
	if (!net->key) {
		rt_free(net);
		return weft_error(err, -ENOMEM, "no memory for the network's key");
	}
	memcpy(net->key, o->key, NET_KEY_BYTES);
	net->ops = ops;
	net->options = *o;
	explicit_bzero(net->options.key, sizeof(net->options.key));
	if (o->listen)
		strcpy(net->listen, o->listen);
	net->options.listen = NULL; /* the caller's string */
	fill_defaults(&net->options);
	rt_random_bytes(net->instance, sizeof(net->instance));
	rc = net->ops.open(net, err);
	if (rc) {
		secret_free(net->key, NET_KEY_BYTES);
		rt_free(net);
		return rc;
	}
	*out = net;
	return 0;
}

int net_start(struct net *net, struct weft_error *err)
{
	WEFT_ASSERT(!net->started);
	net->started = true;
	return net->ops.start(net, err);
}

void net_address(struct net *net, char out[NET_ADDRESS_BYTES])
{
	net->ops.address(net, out);
}

void net_shutdown(struct net *net)
{
	net->ops.shutdown(net);
}

void net_close(struct net *net)
{
	if (!net)
		return;
	net->ops.close(net);
	for (unsigned i = 0; i < net_peer_count(net); i++) {
		net->ops.peer_free(net->list[i]);
		rt_free(net->list[i]);
	}
	secret_free(net->key, NET_KEY_BYTES);
	rt_free(net);
}

/* ---- peers ------------------------------------------------------------------------------ */

static int peer_check(
	struct net *net, const struct net_peer_options *o, struct weft_error *err)
{
	if (o->node >= NET_NODES_MAX || o->node == net->options.self.node)
		return weft_error(err, -EINVAL,
			"node id %u cannot be a peer's: another than this node's, below "
			"%u",
			o->node, NET_NODES_MAX);
	if (o->address && strlen(o->address) >= NET_ADDRESS_BYTES)
		return weft_error(err, -EINVAL, "the address %s is too long", o->address);
	if (!o->address && !net->listen[0])
		return weft_error(err, -EINVAL,
			"node %u has no address, and this node does not listen", o->node);
	return 0;
}

int net_peer_add(struct net_peer **out, struct net *net, const struct net_peer_options *o,
	struct weft_error *err)
{
	struct net_peer *peer;
	int rc = peer_check(net, o, err);

	if (rc)
		return rc;
	peer = rt_alloc(net->ops.peer_bytes);
	if (!peer)
		return weft_error(err, -ENOMEM, "no memory for node %u", o->node);
	peer->net = net;
	peer->node = o->node;
	peer->owner = o->owner;
	atomic_store(&peer->least_incarnation, o->incarnation);
	if (o->address)
		strcpy(peer->address, o->address);
	if (!bytes_are_zero(o->node_uuid, NET_UUID_BYTES)) {
		memcpy(peer->known.node_uuid, o->node_uuid, NET_UUID_BYTES);
		peer->uuid_given = true;
	}
	rt_mutex_lock(&net->peers_lock);
	rc = atomic_load(&net->peers[o->node])
		    ? weft_error(err, -EEXIST, "node %u is there twice", o->node)
		    : net->ops.peer_add(peer, err);
	if (!rc) {
		unsigned n = net_peer_count(net);

		net->list[n] = peer;
		atomic_store(&net->list_count, n + 1);
		atomic_store(&net->peers[o->node], peer);
	}
	rt_mutex_unlock(&net->peers_lock);
	if (rc) {
		rt_free(peer);
		return rc;
	}
	net->ops.peer_added(peer);
	*out = peer;
	return 0;
}

struct net_peer *net_peer_find(struct net *net, uint16_t node)
{
	return node < NET_NODES_MAX ? atomic_load(&net->peers[node]) : NULL;
}

uint16_t net_peer_node(const struct net_peer *peer)
{
	return peer->node;
}

void net_peer_over(struct net_peer *peer, uint64_t incarnation)
{
	uint64_t least = atomic_load(&peer->least_incarnation);

	while (least <= incarnation &&
		!atomic_compare_exchange_weak(
			&peer->least_incarnation, &least, incarnation + 1))
		;
}

void *net_peer_owner(const struct net_peer *peer)
{
	return peer->owner;
}

struct net *net_of(const struct net_peer *peer)
{
	return peer->net;
}

bool net_peer_up(const struct net_peer *peer)
{
	return atomic_load(&peer->up);
}

void net_cut(struct net_peer *peer, int code)
{
	WEFT_ASSERT(code < 0);
	peer->net->ops.cut(peer, code);
}

/* ---- memory ------------------------------------------------------------------------------ */

static int region_check(
	const struct net *net, uint32_t id, size_t size_bytes, unsigned rights)
{
	if (net->started || id >= NET_REGIONS_MAX || !size_bytes || !rights ||
		(rights & ~(NET_REMOTE_READ | NET_REMOTE_WRITE | NET_REMOTE_ATOMIC)))
		return -EINVAL;
	return net->regions[id].base ? -EEXIST : 0;
}

int net_region_create(
	struct net *net, uint32_t id, size_t size_bytes, unsigned rights, void **base)
{
	int rc = region_check(net, id, size_bytes, rights);

	if (!rc)
		rc = net->ops.region_create(net, id, size_bytes, rights, base);
	if (!rc)
		net->regions[id] = (struct net_region){*base, size_bytes, rights};
	return rc;
}

/* ---- messages and operations ---------------------------------------------------------------- */

int net_send(struct net_peer *peer, const struct net_message *m, unsigned flags)
{
	WEFT_ASSERT(m->type != 0);
	return peer->net->ops.send(peer, m, flags);
}

void net_flush(struct net *net)
{
	net->ops.flush(net, 0);
}

bool net_has_room(struct net_peer *peer)
{
	return peer->net->ops.has_room(peer);
}

int net_wait_room(struct net_peer *peer, uint64_t deadline_ns)
{
	return peer->net->ops.wait_room(peer, deadline_ns);
}

static bool op_possible(const struct net_op *op)
{
	switch (op->kind) {
	case NET_WRITE:
	case NET_READ:
		return op->length > 0 && op->length <= NET_TRANSFER_MAX && op->local;
	case NET_CAS:
		return true;
	case NET_FAA:
		return op->compare == 0;
	default:
		return false;
	}
}

int net_post(struct net_peer *peer, struct net_op *op, unsigned flags)
{
	if (!op_possible(op))
		return -EINVAL;
	atomic_store_explicit(&op->state, NET_OP_PENDING, memory_order_relaxed);
	return peer->net->ops.post(peer, op, flags);
}

int net_op_wait(struct net_peer *peer, struct net_op *op)
{
	WEFT_ASSERT(!op->done);
	while (atomic_load_explicit(&op->state, memory_order_acquire) == NET_OP_PENDING)
		net_wait(peer->net, peer, &op->state, NET_OP_PENDING, RT_FOREVER);
	return op->result;
}

/* After the exchange the op belongs to its owner again: only its address is used. */
void net_op_end(struct net *net, struct net_op *op, int result)
{
	op->result = result;
	if (op->done) {
		op->done(op);
		return;
	}
	atomic_store(&op->state, NET_OP_DONE);
	net_wake(net, &op->state, INT32_MAX);
}

void net_ops_end(struct net *net, struct net_op *list, int result)
{
	while (list) {
		struct net_op *op = list;

		list = op->next;
		net_op_end(net, op, result);
	}
}

int net_wait(struct net *net, struct net_peer *likely, _Atomic uint32_t *word,
	uint32_t expected, uint64_t deadline_ns)
{
	return net->ops.wait(net, likely, word, expected, deadline_ns);
}

void net_wake(struct net *net, _Atomic uint32_t *word, int count)
{
	net->ops.wake(net, word, count);
}

void net_counters(const struct net_peer *peer, struct net_counters *out)
{
	const struct net_peer_counters *c = &peer->counters;

	*out = (struct net_counters){
		.messages_out = c->messages_out,
		.messages_in = c->messages_in,
		.writes_out = c->writes_out,
		.writes_in = c->writes_in,
		.reads_out = c->reads_out,
		.reads_in = c->reads_in,
		.atomics_out = c->atomics_out,
		.atomics_in = c->atomics_in,
		.bytes_out = c->bytes_out,
		.bytes_in = c->bytes_in,
		.calls_out = c->calls_out,
		.calls_in = c->calls_in,
		.sends_out = c->sends_out,
		.sends_in = c->sends_in,
		.requests = c->requests,
		.signalled = c->signalled,
		.completions = c->completions,
		.registered = c->registered,
		.links = c->links,
		.cuts = c->cuts,
		.checksum_errors = c->checksum_errors,
	};
}

void net_checksum_error(struct net_peer *peer, const char *what)
{
	uint64_t now = rt_now_ns(), next = atomic_load(&peer->checksum_log_ns);

	net_count(&peer->counters.checksum_errors, 1);
	if (now < next || !atomic_compare_exchange_strong(
				  &peer->checksum_log_ns, &next, now + CHECKSUM_LOG_NS))
		return;
	weft_log(3,
		"node %u: the checksum of %s from it is wrong, %llu checksum errors so "
		"far: "
		"a network device or memory changes bytes; check the hardware of both "
		"nodes",
		peer->node, what, (unsigned long long)peer->counters.checksum_errors);
}
