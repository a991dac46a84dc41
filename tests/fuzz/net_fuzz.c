/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Bytes from a peer: a node must take them, or cut the link, and nothing else.
 *
 * The first byte says how far the other end keeps to the protocol: 0: not at all; 1: it
 * says HELLO, with the rest laid over it at the offset in the next byte; 2: it says HELLO
 * properly and the rest instead of the proof; others: it proves the key, and the rest is
 * frames, sent in pieces of the next byte. Each head has its first 8 bytes there, and gets the
 * checksums that it should have; 3: it has none, and is sent as it is. The node has a read and a CAS under way then, so
 * that replies have something to answer.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/net/wire.h"
#include "engine/rt/rt_sim.h"
#include "engine/rt/rt_socket.h"

#define REGION_BYTES (64u << 10)
#define READ_BYTES   512u
#define HEAD_BYTES   2u
#define SHORT_HEAD   8u /* of a frame: without checksums */
#define MS           1000000ull
#define PATIENCE_NS  (100 * MS) /* the node's, with silence */

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
	const uint8_t *data;
	size_t size;
};

static struct {
	_Atomic uint32_t ups, downs, ended;
	bool up;
} seen;

static void quiet(int level, const char *line)
{
}

static void on_message(void *owner, struct net_peer *peer, const struct net_message *m)
{
	struct net_message answer = *m;

	WEFT_ASSERT(seen.up && m->sender == 2 && m->type);
	net_send(peer, &answer, NET_URGENT);
}

static void on_event(void *owner, struct net_peer *peer, const struct net_event *e)
{
	if (e->kind == NET_LINK_UP) {
		WEFT_ASSERT(!seen.up);
		seen.up = true;
		atomic_fetch_add(&seen.ups, 1);
	} else if (e->kind == NET_LINK_DOWN) {
		WEFT_ASSERT(seen.up && e->code < 0);
		seen.up = false;
		atomic_fetch_add(&seen.downs, 1);
	}
}

static void op_ended(struct net_op *op)
{
	WEFT_ASSERT(
		op->result == 0 || op->result == -ECONNRESET || op->result == -EACCES);
	atomic_fetch_add(&seen.ended, 1);
}

static bool transfer(struct rt_socket *s, void *bytes, size_t size, bool send)
{
	uint8_t *p = bytes;
	uint64_t until = rt_now_ns() + 2 * PATIENCE_NS;

	while (size && rt_now_ns() < until) {
		struct iovec iov = {p, size};
		ssize_t n =
			send ? rt_socket_send(s, &iov, 1) : rt_socket_recv(s, &iov, 1);

		if (n == -EAGAIN) {
			rt_sleep_ns(MS);
			continue;
		}
		if (n <= 0)
			return false;
		p += n;
		size -= (size_t)n;
	}
	return size == 0;
}

static void identity(struct net_identity *id, uint16_t node)
{
	*id = (struct net_identity){
		.incarnation = 1, .node = node, .role = NET_ROLE_STORAGE};
	memset(id->node_uuid, node, NET_UUID_BYTES);
}

/* Of what follows a head, what its checksum is of. */
static size_t sealed_bytes(const struct wire_frame *f, const uint8_t *fixed, size_t there)
{
	size_t sealed = wire_fixed_bytes(f->type);
	struct wire_run run;

	if (f->type == WIRE_RUN && there >= sizeof(run)) {
		memcpy(&run, fixed, sizeof(run));
		if (run.count <= WIRE_RUN_MAX && run.packed <= run.count * WIRE_PACKED_MAX)
			sealed += wire_run_head(&run);
	}
	return MIN(sealed, there);
}

/* The frames with their checksums. `out` has room for three times as much. */
static size_t seal_frames(const uint8_t *data, size_t size, uint8_t *out)
{
	size_t at = 0, done = 0;

	while (size - at >= SHORT_HEAD) {
		struct wire_frame f = {0};
		size_t there;

		memcpy(&f, data + at, SHORT_HEAD);
		at += SHORT_HEAD;
		there = MIN(f.bytes, size - at);
		wire_frame_seal(
			&f, data + at, (uint32_t)sealed_bytes(&f, data + at, there));
		memcpy(out + done, &f, sizeof(f));
		memcpy(out + done + sizeof(f), data + at, there);
		done += sizeof(f) + there;
		at += there;
	}
	memcpy(out + done, data + at, size - at);
	return done + size - at;
}

static void say(struct rt_socket *s, const struct input *in)
{
	size_t size = in->size - HEAD_BYTES, piece;
	uint8_t *bytes = malloc(3 * size + 1);

	WEFT_ASSERT(bytes);
	if (in->data[0] > 3)
		size = seal_frames(in->data + HEAD_BYTES, size, bytes);
	else
		memcpy(bytes, in->data + HEAD_BYTES, size);
	piece = in->data[0] > 2 && in->data[1] ? in->data[1] : MAX(size, 1u);
	for (size_t at = 0; at < size; at += piece)
		if (!transfer(s, bytes + at, MIN(piece, size - at), true))
			break;
	free(bytes);
}

/* As far as the first byte says. */
static void be_the_peer(struct rt_socket *s, const struct input *in, const uint8_t *key)
{
	struct wire_hello ours, theirs;
	struct wire_proof proof;
	struct net_identity me;
	uint8_t instance[NET_UUID_BYTES] = {0};

	identity(&me, 2);
	wire_hello_make(&ours, &me, instance, 1, WIRE_TCP);
	if (in->data[0] == 1) {
		size_t at = in->data[1] % sizeof(ours);

		memcpy((uint8_t *)&ours + at, in->data + HEAD_BYTES,
			MIN(in->size - HEAD_BYTES, sizeof(ours) - at));
		wire_hello_seal(&ours);
	}
	if (in->data[0] && (!transfer(s, &ours, sizeof(ours), true) ||
				   !transfer(s, &theirs, sizeof(theirs), false)))
		return;
	if (in->data[0] == 1 || in->data[0] > 2) {
		WEFT_ASSERT(wire_proof_make(&proof, key, true, &ours, &theirs));
		if (!transfer(s, &proof, sizeof(proof), true) ||
			!transfer(s, &proof, sizeof(proof), false))
			return;
	}
	if (in->data[0] != 1)
		say(s, in);
}

static int run(void *arg)
{
	const struct input *in = arg;
	struct net_options o = {.transport = "sim",
		.listen = "node:1",
		.handlers = {NULL, on_message, on_event},
		.stall_ns = PATIENCE_NS,
		.handshake_ns = PATIENCE_NS};
	struct net_peer_options p = {.node = 2};
	uint8_t local[READ_BYTES + 8], *open, *closed;
	struct net_op read = {
		.kind = NET_READ, .local = local, .length = READ_BYTES, .done = op_ended};
	struct net_op cas = {.kind = NET_CAS, .done = op_ended};
	struct rt_address at;
	struct rt_socket *s;
	struct net_peer *peer;
	struct net *net;
	unsigned posted = 0;
	void *base;

	memset(&seen, 0, sizeof(seen));
	memset(local, 0xaa, sizeof(local));
	identity(&o.self, 1);
	WEFT_ASSERT(net_open(&net, &o, NULL) == 0);
	WEFT_ASSERT(net_region_create(net, 0, REGION_BYTES,
			    NET_REMOTE_READ | NET_REMOTE_WRITE | NET_REMOTE_ATOMIC,
			    &base) == 0);
	open = base;
	WEFT_ASSERT(net_region_create(net, 1, REGION_BYTES, NET_REMOTE_READ, &base) == 0);
	closed = base;
	WEFT_ASSERT(net_peer_add(&peer, net, &p, NULL) == 0 && net_start(net, NULL) == 0);
	WEFT_ASSERT(rt_address_resolve(&at, "node:1", NULL) == 0 &&
		    rt_socket_connect(&s, &at) == 0);
	while (rt_socket_connected(s) == -EINPROGRESS)
		rt_sleep_ns(MS);
	if (in->data[0] > 2) {
		/* The ops are on their way before the frames that may answer them. */
		struct input nothing = {in->data, HEAD_BYTES};

		be_the_peer(s, &nothing, o.key);
		rt_sleep_ns(5 * MS);
		posted += net_post(peer, &read, 0) == 0;
		posted += net_post(peer, &cas, 0) == 0;
		say(s, in);
	} else {
		be_the_peer(s, in, o.key);
	}
	rt_sleep_ns(5 * MS);
	rt_socket_shutdown(s);
	rt_sleep_ns(3 * PATIENCE_NS);
	/* Whatever it was: the link is no more, all has ended, nothing else has changed. */
	WEFT_ASSERT(!seen.up && seen.ups == seen.downs && seen.ended == posted);
	for (unsigned i = 0; i < 8; i++)
		WEFT_ASSERT(local[READ_BYTES + i] == 0xaa);
	for (unsigned i = 0; i < REGION_BYTES; i++)
		WEFT_ASSERT(closed[i] == 0 && (seen.ups || open[i] == 0));
	rt_socket_close(s);
	net_close(net);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {.data = data, .size = size};

	if (size < HEAD_BYTES)
		return 0;
	weft_log_sink = quiet;
	WEFT_ASSERT(rt_sim_run(1, NULL, run, &in) == 0);
	return 0;
}
