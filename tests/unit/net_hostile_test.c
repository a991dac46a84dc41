/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Peers that do not keep to docs/protocol.md: a program that speaks bytes instead of an
 * endpoint. Whatever it says or keeps to itself, it is cut off, nothing of it takes effect,
 * and the link with an honest node stays. On tcp, and on sim from a few seeds.
 */
#include "engine/net/wire.h"
#include "engine/rt/rt_sim.h"
#include "engine/rt/rt_socket.h"
#include "tests/unit/net_fixture.h"

#define SEEDS 8u

static const char *test_listen_address(void)
{
	return rt_simulated ? "sim:0" : "127.0.0.1:0";
}

struct scene {
	struct end *victim, *honest;
	struct net_peer *raw_peer; /* node 2, as the victim knows it */
	struct end *raw_end;       /* what the victim's handlers saw of it */
};

/* ---- a program that speaks bytes -------------------------------------------------------- */

struct raw {
	struct rt_socket *socket;
	struct net_options me;
	struct wire_hello ours, theirs;
	uint8_t instance[NET_UUID_BYTES];
};

static void raw_connect(struct raw *r, const struct end *victim)
{
	struct rt_address at;
	int rc;

	memset(r, 0, sizeof(*r));
	options_default(&r->me, test_transport, 2, NULL);
	CHECK(rt_address_resolve(&at, victim->address, NULL) == 0);
	CHECK(rt_socket_connect(&r->socket, &at) == 0);
	while ((rc = rt_socket_connected(r->socket)) == -EINPROGRESS)
		rt_sleep_ns(MS / 10);
	CHECK(rc == 0);
}

/* false: the connection is no more. */
static bool raw_send(struct raw *r, const void *what, size_t bytes)
{
	const uint8_t *p = what;
	uint64_t until = rt_now_ns() + PATIENCE_NS;

	while (bytes) {
		struct iovec iov = {(void *)p, bytes};
		ssize_t n = rt_socket_send(r->socket, &iov, 1);

		if (n == -EAGAIN) {
			CHECK(rt_now_ns() < until);
			rt_sleep_ns(MS / 10);
			continue;
		}
		if (n < 0)
			return false;
		p += n;
		bytes -= (size_t)n;
	}
	return true;
}

static bool raw_recv(struct raw *r, void *to, size_t bytes)
{
	uint8_t *p = to;
	uint64_t until = rt_now_ns() + PATIENCE_NS;

	while (bytes) {
		struct iovec iov = {p, bytes};
		ssize_t n = rt_socket_recv(r->socket, &iov, 1);

		if (n == -EAGAIN) {
			CHECK(rt_now_ns() < until);
			rt_socket_wait(r->socket, rt_now_ns() + MS);
			continue;
		}
		if (n <= 0)
			return false;
		p += n;
		bytes -= (size_t)n;
	}
	return true;
}

/* Reads until the other end closes, which it must. */
static void raw_expect_end(struct raw *r)
{
	uint8_t byte;

	while (raw_recv(r, &byte, 1))
		;
	rt_socket_close(r->socket);
}

static void raw_expect_refusal(struct raw *r, uint32_t reason)
{
	struct wire_refuse refuse;

	CHECK(raw_recv(r, &refuse, sizeof(refuse)));
	CHECK(!memcmp(refuse.magic, WIRE_REFUSE, sizeof(refuse.magic)));
	CHECK(refuse.reason == reason);
	raw_expect_end(r);
}

static void raw_hello_make(struct raw *r)
{
	wire_hello_make(&r->ours, &r->me.self, r->instance, 1, WIRE_TCP);
}

/* As an honest dialer does, with what stands in r->ours. */
static bool raw_say_hello(struct raw *r)
{
	wire_hello_seal(&r->ours);
	return raw_send(r, &r->ours, sizeof(r->ours)) &&
	       raw_recv(r, &r->theirs, sizeof(r->theirs));
}

static void raw_say_proof(struct raw *r, bool as_dialer)
{
	struct wire_proof proof;

	CHECK(wire_proof_make(&proof, r->me.key, as_dialer, &r->ours, &r->theirs));
	CHECK(raw_send(r, &proof, sizeof(proof)));
}

static void raw_greet(struct raw *r, struct scene *s)
{
	uint32_t ups = s->raw_end->ups;
	struct wire_proof proof;

	raw_connect(r, s->victim);
	raw_hello_make(r);
	CHECK(raw_say_hello(r));
	raw_say_proof(r, true);
	CHECK(raw_recv(r, &proof, sizeof(proof)));
	CHECK(wire_proof_check(&proof, r->me.key, false, &r->ours, &r->theirs));
	wait_for(s->raw_end, &s->raw_end->ups, ups + 1);
}

/* Of what follows a frame, what its checksum is of. */
static uint32_t sealed_bytes(uint8_t type, const void *fixed, uint32_t bytes)
{
	uint32_t sealed = wire_fixed_bytes(type);
	struct wire_run run;

	if (type == WIRE_RUN && bytes >= sizeof(run)) {
		memcpy(&run, fixed, sizeof(run));
		if (run.count <= WIRE_RUN_MAX && run.packed <= run.count * WIRE_PACKED_MAX)
			sealed += wire_run_head(&run);
	}
	return MIN(sealed, bytes);
}

/* With the checksums that it must have: it is what it says that is wrong. */
static bool raw_frame(
	struct raw *r, uint8_t type, uint16_t credits, const void *fixed, uint32_t bytes)
{
	struct wire_frame f = {.type = type, .credits = credits, .bytes = bytes};

	wire_frame_seal(&f, fixed, sealed_bytes(type, fixed, bytes));
	return raw_send(r, &f, sizeof(f)) && raw_send(r, fixed, bytes);
}

/* ---- runs ----------------------------------------------------------------------------------- */

/* A run as it travels. */
struct raw_run {
	struct wire_run run;
	uint8_t rest[64 * (8 + WIRE_PACKED_MAX + 64)]; /* offsets, messages, bytes */
	uint32_t bytes;                                /* of all that follows the head of the frame */
};

/* `offsets` is not used if `length` is 0. The bytes to be written are `fill`. */
static struct raw_run *raw_run_make(struct raw_run *x, uint32_t region, uint32_t length, unsigned count,
	const uint64_t *offsets, const struct net_message *messages, uint8_t fill)
{
	struct net_message last = {0};
	uint32_t at = length ? count * 8 : 0;

	x->run = (struct wire_run){.count = count, .region = region, .length = length};
	if (length)
		memcpy(x->rest, offsets, count * 8);
	for (unsigned i = 0; i < count; i++)
		at += wire_pack(x->rest + at, &last, &messages[i]);
	x->run.packed = at - (length ? count * 8 : 0);
	memset(x->rest + at, fill, count * length);
	x->bytes = (uint32_t)sizeof(x->run) + at + count * length;
	return x;
}

/* ---- the victim and an honest node ---------------------------------------------------------- */

static void route_message(void *owner, struct net_peer *peer, const struct net_message *m)
{
	end_message(net_peer_owner(peer), peer, m);
}

static void route_event(void *owner, struct net_peer *peer, const struct net_event *event)
{
	end_event(net_peer_owner(peer), peer, event);
}

static struct scene scene_new(uint64_t stall_ns)
{
	struct scene s = {.victim = end_new(1), .honest = end_new(3)};
	struct net_peer_options o = {.node = 2};

	s.raw_end = calloc(1, sizeof(*s.raw_end));
	CHECK(s.raw_end);
	s.victim->options.handlers =
		(struct net_handlers){s.victim, route_message, route_event};
	s.victim->options.stall_ns = s.victim->options.handshake_ns = stall_ns;
	s.honest->options.stall_ns = stall_ns;
	end_open(s.victim);
	end_open(s.honest);
	end_add_peer(s.victim, 3, NULL);
	s.raw_end->net = s.victim->net;
	o.owner = s.raw_end;
	CHECK(net_peer_add(&s.raw_peer, s.victim->net, &o, NULL) == 0);
	s.raw_end->peer = s.raw_peer;
	end_start(s.victim);
	end_add_peer(s.honest, 1, s.victim->address);
	end_start(s.honest);
	wait_for(s.victim, &s.victim->ups, 1);
	wait_for(s.honest, &s.honest->ups, 1);
	return s;
}

static void answer_plainly(
	struct end *e, struct net_peer *peer, const struct net_message *m)
{
	int r = net_send(peer, m, NET_URGENT);

	CHECK(r == 0 || r == -ENOTCONN);
}

/* The honest node is served as ever. */
static void scene_check(struct scene *s)
{
	struct net_message m = {.type = MESSAGE_PLAIN};
	uint32_t before = s->honest->messages;

	s->victim->on_message = answer_plainly;
	CHECK(net_send(s->honest->peer, &m, 0) == 0);
	wait_for(s->honest, &s->honest->messages, before + 1);
	CHECK(s->victim->downs == 0 && s->honest->downs == 0);
}

static void scene_end(struct scene *s)
{
	end_free(s->honest);
	end_free(s->victim);
	free(s->raw_end);
}

#define CALM (10000 * MS)

/* ---- before the proof -------------------------------------------------------------------------- */

static int garbage_instead_of_a_hello(void *arg)
{
	struct scene s = scene_new(CALM);
	uint8_t bytes[512];

	for (unsigned round = 0; round < 40; round++) {
		size_t length = 8 + rt_random() % (sizeof(bytes) - 8);
		struct raw r;

		raw_connect(&r, &s.victim[0]);
		rt_random_bytes(bytes, sizeof(bytes));
		bytes[0] = 'X';
		raw_send(&r, bytes, length);
		raw_expect_end(&r);
	}
	CHECK(s.raw_end->ups == 0);
	scene_check(&s);
	scene_end(&s);
	return 0;
}

/* Any byte of a HELLO that is wrong: refused, or the proof does not fit what was said. */
static int a_hello_with_a_wrong_byte(void *arg)
{
	struct scene s = scene_new(CALM);

	for (size_t at = 0; at < sizeof(struct wire_hello); at++) {
		struct raw r;

		raw_connect(&r, s.victim);
		raw_hello_make(&r);
		((uint8_t *)&r.ours)[at] ^= 0x40;
		if (raw_say_hello(&r) &&
			!memcmp(r.theirs.magic, WIRE_HELLO, sizeof(r.theirs.magic))) {
			((uint8_t *)&r.ours)[at] ^= 0x40;
			raw_say_proof(&r, true);
		}
		raw_expect_end(&r);
	}
	CHECK(s.raw_end->ups == 0);
	scene_check(&s);
	scene_end(&s);
	return 0;
}

/* An accident: nothing that it says is taken for true, be it that the key is another. */
static int a_greeting_that_was_changed_on_the_way(void *arg)
{
	struct scene s = scene_new(CALM);
	struct wire_proof proof;
	uint8_t hello[sizeof(struct wire_hello)], byte;
	struct raw r;

	/* behind what all versions have at the same place */
	for (size_t at = 16; at < sizeof(hello); at++) {
		raw_connect(&r, s.victim);
		raw_hello_make(&r);
		memcpy(hello, &r.ours, sizeof(hello));
		hello[at] ^= (uint8_t)(1u << rt_random() % 8);
		CHECK(raw_send(&r, hello, sizeof(hello)));
		CHECK(!raw_recv(&r, &byte, 1));
		rt_socket_close(r.socket);
	}
	for (size_t at = 8; at < sizeof(proof); at++) {
		raw_connect(&r, s.victim);
		raw_hello_make(&r);
		CHECK(raw_say_hello(&r));
		CHECK(wire_proof_make(&proof, r.me.key, true, &r.ours, &r.theirs));
		((uint8_t *)&proof)[at] ^= (uint8_t)(1u << rt_random() % 8);
		CHECK(raw_send(&r, &proof, sizeof(proof)));
		CHECK(!raw_recv(&r, &byte, 1));
		rt_socket_close(r.socket);
	}
	CHECK(s.raw_end->ups == 0 && s.raw_end->refusals == 0);
	scene_check(&s);
	scene_end(&s);
	return 0;
}

static int each_refusal_says_why(void *arg)
{
	struct scene s = scene_new(CALM);
	struct raw r;

	for (unsigned i = 0; i < 7; i++) {
		static const uint32_t reasons[] = {WIRE_OTHER_VERSION, WIRE_OTHER_VOLUME,
			WIRE_OTHER_CLUSTER, WIRE_UNKNOWN_NODE, WIRE_OTHER_NODE,
			WIRE_OTHER_TRANSPORT, WIRE_MALFORMED};

		raw_connect(&r, s.victim);
		raw_hello_make(&r);
		switch (reasons[i]) {
		case WIRE_OTHER_VERSION:
			r.ours.version = WIRE_VERSION + 1;
			break;
		case WIRE_OTHER_VOLUME:
			r.ours.volume_uuid[3] ^= 1;
			break;
		case WIRE_OTHER_CLUSTER:
			r.ours.cluster_uuid[3] ^= 1;
			break;
		case WIRE_UNKNOWN_NODE:
			r.ours.node = 77;
			break;
		case WIRE_OTHER_NODE:
			r.ours.to_node = 7;
			break;
		case WIRE_OTHER_TRANSPORT:
			r.ours.transport = WIRE_VERBS;
			break;
		default:
			r.ours.window = 0;
		}
		wire_hello_seal(&r.ours);
		CHECK(raw_send(&r, &r.ours, sizeof(r.ours)));
		raw_expect_refusal(&r, reasons[i]);
	}
	/* A HELLO of another version need not be as long as ours. */
	raw_connect(&r, s.victim);
	raw_hello_make(&r);
	r.ours.version = WIRE_VERSION + 2;
	CHECK(raw_send(&r, &r.ours, 16));
	raw_expect_refusal(&r, WIRE_OTHER_VERSION);
	/* Clocks are compared once the key is proven. */
	for (int sign = -1; sign <= 1; sign += 2) {
		raw_connect(&r, s.victim);
		raw_hello_make(&r);
		r.ours.wall_ns += sign * 100 * 1000 * (int64_t)MS;
		CHECK(raw_say_hello(&r));
		raw_say_proof(&r, true);
		raw_expect_refusal(&r, WIRE_CLOCKS);
	}
	CHECK(s.raw_end->ups == 0 && s.raw_end->refusals > 0);
	CHECK(strstr(s.raw_end->refusal, "clock"));
	scene_check(&s);
	scene_end(&s);
	return 0;
}

/* ---- what the log is told of them ---------------------------------------------------------------- */

#define FORGED 8u /* kinds of greetings */
#define ROUNDS 25u

static struct {
	_Atomic unsigned lines, more; /* of one connection; of the others of a minute */
	_Atomic unsigned left_out;    /* what the latter say */
	_Atomic unsigned right[FORGED], nameless;
} told;

/* By what the log knows each kind. */
static const char *const forged_texts[FORGED] = {
	" is refused: it does not speak weft's protocol",
	" is refused: it speaks version 1000 of the protocol",
	", which says it is node 2, is refused: it belongs to another volume",
	", which says it is node 2, is refused: it belongs to another cluster",
	" is refused: no node of that id is in the cluster file",
	", which says it is node 2, is refused: it does not have this cluster's key",
	" is refused: its greeting arrived damaged",
	", which says it is node 2, is refused: it uses another transport",
};

static void count_lines(int level, const char *line)
{
	unsigned n;

	if (sscanf(line, "%u more connections", &n) == 1) {
		told.more++;
		told.left_out += n;
		return;
	}
	if (strncmp(line, "a connection from ", 18) != 0)
		return;
	told.lines++;
	told.nameless +=
		!strstr(line, "from 127.0.0.1:") && !strstr(line, "from simulated node ");
	for (unsigned i = 0; i < FORGED; i++)
		told.right[i] += strstr(line, forged_texts[i]) != NULL;
}

static void forge(struct scene *s, unsigned kind, unsigned round)
{
	struct wire_proof proof;
	struct raw r;

	raw_connect(&r, s->victim);
	raw_hello_make(&r);
	switch (kind) {
	case 0:
		memset(&r.ours, 'x', sizeof(r.ours));
		break;
	case 1:
		r.ours.version = 1000;
		break;
	case 2:
		r.ours.volume_uuid[round % 16] ^= 1;
		break;
	case 3:
		r.ours.cluster_uuid[round % 16] ^= 1;
		break;
	case 4:
		r.ours.node = (uint16_t)(50 + round);
		break;
	case 7:
		r.ours.transport = WIRE_VERBS;
		break;
	default:
		break;
	}
	wire_hello_seal(&r.ours);
	r.ours.wall_ns ^= kind == 6;
	CHECK(raw_send(&r, &r.ours, sizeof(r.ours)));
	if (kind == 5) {
		CHECK(raw_recv(&r, &r.theirs, sizeof(r.theirs)));
		CHECK(wire_proof_make(&proof, r.me.key, false, &r.ours, &r.theirs));
		CHECK(raw_send(&r, &proof, sizeof(proof)));
	}
	raw_expect_end(&r);
}

/* Whatever alternates in them, lines are bounded; each names the address, and what is wrong. */
static int forged_greetings_do_not_fill_the_log(void *arg)
{
	void (*sink)(int, const char *) = weft_log_sink;
	struct scene s;

	memset(&told, 0, sizeof(told));
	weft_log_sink = count_lines;
	s = scene_new(CALM);
	for (unsigned round = 0; round < ROUNDS; round++)
		for (unsigned kind = 0; kind < FORGED; kind++)
			forge(&s, kind, round);
	CHECK(told.more == 0 && told.nameless == 0);
	CHECK(told.lines == 3 * FORGED);
	for (unsigned i = 0; i < FORGED; i++)
		CHECK(told.right[i] == 3);
	if (rt_simulated) { /* the minute ends: those that were left out are counted */
		rt_sleep_ns(70000 * MS);
		CHECK(told.lines == 3 * FORGED && told.more == FORGED);
		CHECK(told.lines + told.left_out == ROUNDS * FORGED);
		forge(&s, 0, 0);
		CHECK(told.lines == 3 * FORGED + 1);
	}
	CHECK(s.raw_end->ups == 0);
	scene_check(&s);
	scene_end(&s);
	weft_log_sink = sink;
	return 0;
}

/* Right key, wrong direction; an earlier session's proof; the victim's own words. */
static int a_proof_is_good_for_one_thing_only(void *arg)
{
	struct scene s = scene_new(CALM);
	struct wire_hello hello;
	struct wire_proof proof;
	struct raw r;

	raw_connect(&r, s.victim);
	raw_hello_make(&r);
	CHECK(raw_say_hello(&r));
	raw_say_proof(&r, false);
	raw_expect_refusal(&r, WIRE_WRONG_KEY);

	raw_greet(&r, &s);
	hello = r.ours;
	CHECK(wire_proof_make(&proof, r.me.key, true, &r.ours, &r.theirs));
	rt_socket_close(r.socket);
	wait_for(s.raw_end, &s.raw_end->downs, 1);
	raw_connect(&r, s.victim);
	r.ours = hello;
	CHECK(raw_say_hello(&r));
	CHECK(memcmp(r.theirs.nonce, hello.nonce, sizeof(hello.nonce)));
	CHECK(raw_send(&r, &proof, sizeof(proof)));
	raw_expect_refusal(&r, WIRE_WRONG_KEY);

	/* Its own HELLO sent back is that of another who says it is node 1. */
	raw_connect(&r, s.victim);
	raw_hello_make(&r);
	CHECK(raw_say_hello(&r));
	hello = r.theirs;
	hello.to_node = 1;
	rt_socket_close(r.socket);
	raw_connect(&r, s.victim);
	r.ours = hello;
	wire_hello_seal(&r.ours);
	CHECK(raw_send(&r, &r.ours, sizeof(r.ours)));
	raw_expect_refusal(&r, WIRE_NODE_TAKEN);
	CHECK(s.raw_end->ups == 1);
	scene_check(&s);
	scene_end(&s);
	return 0;
}

/* ---- after it ------------------------------------------------------------------------------------ */

/* The link ends with that code, having changed nothing. */
static void expect_cut(struct scene *s, struct raw *r, int code)
{
	uint32_t downs = s->raw_end->ups;

	wait_for(s->raw_end, &s->raw_end->downs, downs);
	CHECK(code == 0 || s->raw_end->down_code == code);
	raw_expect_end(r);
}

static int frames_that_are_none(void *arg)
{
	struct scene s = scene_new(CALM);
	struct net_message no_type = {.sender = 2}, other = {.type = 1, .sender = 3};
	struct wire_write write = {.pad = 1}, write_ok = {0};
	struct wire_read read0 = {.length = 0}, read_op = {.op = 256, .length = 1},
			 read_long = {.length = NET_TRANSFER_MAX + 1};
	struct wire_read_reply reply = {0}, strange = {.status = 5};
	struct wire_atomic atomic = {.kind = 3}, faa = {.kind = WIRE_FAA, .compare = 1};
	struct wire_atomic_reply areply = {.op = 3};
	struct wire_bye bye = {.reason = 99};
	struct wire_run run1 = {.count = 1, .length = 8, .packed = 9},
			run65 = {.count = 65, .length = 8, .packed = 65 * 9},
			run_long = {.count = 2, .length = WIRE_RUN_BYTES_MAX + 1, .packed = 18},
			run_short = {.count = 2, .packed = 1},
			run_packed = {.count = 2, .packed = 2 * WIRE_PACKED_MAX + 1},
			run_region = {.count = 2, .region = 1, .packed = 18},
			run_ok = {.count = 2, .length = 8, .packed = 18},
			run_bare = {.count = 2, .packed = 2},
			run_huge = {.count = UINT32_MAX, .length = UINT32_MAX, .packed = UINT32_MAX};
	uint8_t zeros[64] = {0}, bytes[6000];
	const struct {
		uint8_t type;
		uint16_t credits;
		const void *fixed;
		uint32_t bytes;
	} wrong[] = {
		{0, 0, NULL, 0},
		{WIRE_TYPES, 0, NULL, 0},
		{255, 0, zeros, 64},
		{WIRE_MESSAGE, 0, zeros, 63},
		{WIRE_MESSAGE, 0, zeros, 65},
		{WIRE_MESSAGE, 0, &no_type, 64},
		{WIRE_MESSAGE, 0, &other, 64},
		{WIRE_WRITE, 0, &write, 17},
		{WIRE_WRITE, 0, &write_ok, 16},
		{WIRE_WRITE, 0, &write_ok, UINT32_MAX},
		{WIRE_READ, 0, &read0, 24},
		{WIRE_READ, 0, &read_op, 24},
		{WIRE_READ, 0, &read_long, 24},
		{WIRE_READ_REPLY, 0, &reply, 8},
		{WIRE_READ_REPLY, 0, zeros, 16},
		{WIRE_READ_REPLY, 0, &strange, 8},
		{WIRE_ATOMIC, 0, &atomic, 40},
		{WIRE_ATOMIC, 0, &faa, 40},
		{WIRE_ATOMIC_REPLY, 0, &areply, 16},
		{WIRE_PING, 0, zeros, 1},
		{WIRE_PING, 1, NULL, 0},
		{WIRE_PING, 65535, NULL, 0},
		{WIRE_BYE, 0, &bye, 4},
		{WIRE_RUN, 0, zeros, 16},
		{WIRE_RUN, 0, &run1, 16 + 8 + 9 + 8},
		{WIRE_RUN, 0, &run65, 16 + 65 * (8 + 9 + 8)},
		{WIRE_RUN, 0, &run_long, 16 + 2 * (8 + 9 + WIRE_RUN_BYTES_MAX + 1)},
		{WIRE_RUN, 0, &run_short, 16 + 1},
		{WIRE_RUN, 0, &run_packed, 16 + 2 * WIRE_PACKED_MAX + 1},
		{WIRE_RUN, 0, &run_region, 16 + 18},
		{WIRE_RUN, 0, &run_ok, 16 + 2 * (8 + 9 + 8) + 1},
		{WIRE_RUN, 0, &run_ok, 16 + 2 * (8 + 9 + 8)}, /* more bytes than two messages */
		{WIRE_RUN, 0, &run_bare, 16 + 2},             /* its messages are none */
		{WIRE_RUN, 0, &run_huge, UINT32_MAX},
	};

	for (unsigned i = 0; i < ARRAY_SIZE(wrong); i++) {
		struct raw r;
		struct wire_frame f = {.type = wrong[i].type,
			.credits = wrong[i].credits,
			.bytes = wrong[i].bytes};

		raw_greet(&r, &s);
		/* The fixed part of the type, and a byte more where it says so. */
		memset(bytes, 0, sizeof(bytes));
		if (wrong[i].fixed)
			memcpy(bytes, wrong[i].fixed, wire_fixed_bytes(f.type));
		wire_frame_seal(&f, bytes, sealed_bytes(f.type, bytes, f.bytes));
		raw_send(&r, &f, sizeof(f));
		raw_send(&r, bytes, MIN(f.bytes, (uint32_t)sizeof(bytes)));
		expect_cut(&s, &r, -EPROTO);
	}
	CHECK(s.raw_end->messages == 0);
	scene_check(&s);
	scene_end(&s);
	return 0;
}

/* What the victim may not do for a frame that has a wrong bit. */
static void changed_frame(struct scene *s, uint8_t type, const void *fixed,
	uint32_t bytes, size_t at, uint32_t *errors)
{
	struct wire_frame f = {.type = type, .bytes = bytes};
	uint8_t all[sizeof(f) + 512];
	struct net_counters c;
	struct raw r;

	CHECK(sizeof(f) + bytes <= sizeof(all));
	wire_frame_seal(&f, fixed, sealed_bytes(type, fixed, bytes));
	memcpy(all, &f, sizeof(f));
	memcpy(all + sizeof(f), fixed, bytes);
	all[at] ^= (uint8_t)(1u << rt_random() % 8);
	raw_greet(&r, s);
	raw_send(&r, all, sizeof(f) + bytes);
	expect_cut(s, &r, -EBADMSG);
	CHECK(strstr(s->raw_end->down_text, "checksum"));
	net_counters(s->raw_peer, &c);
	CHECK(c.checksum_errors == ++*errors);
}

static void frames_of_each_type(struct scene *s, size_t first, size_t step)
{
	struct net_message m = {.type = MESSAGE_PLAIN, .sender = 2};
	struct {
		struct wire_write write;
		uint8_t data[8];
	} write = {.write = {.region = REGION_ALL, .offset = 64}, .data = "changed"};
	struct wire_read read = {.region = REGION_ALL, .length = 8};
	struct wire_read_reply reply = {.op = 1, .status = EACCES};
	struct wire_atomic atomic = {
		.region = REGION_ALL, .kind = WIRE_FAA, .operand = 1};
	struct wire_atomic_reply atomic_reply = {.op = 1};
	struct wire_bye bye = {0};
	static const uint64_t offsets[2] = {64, 128};
	const struct net_message both[2] = {m, m};
	struct raw_run run, bare;
	const struct {
		uint8_t type;
		const void *fixed;
		uint32_t bytes;
	} frames[] = {
		{WIRE_MESSAGE, &m, sizeof(m)},
		{WIRE_WRITE, &write, sizeof(write)},
		{WIRE_READ, &read, sizeof(read)},
		{WIRE_READ_REPLY, &reply, sizeof(reply)},
		{WIRE_ATOMIC, &atomic, sizeof(atomic)},
		{WIRE_ATOMIC_REPLY, &atomic_reply, sizeof(atomic_reply)},
		{WIRE_PING, &m, 0},
		{WIRE_BYE, &bye, sizeof(bye)},
		{WIRE_RUN, raw_run_make(&run, REGION_ALL, 64, 2, offsets, both, 'c'), run.bytes},
		{WIRE_RUN, raw_run_make(&bare, 0, 0, 2, NULL, both, 0), bare.bytes},
	};
	uint32_t errors = 0;

	for (unsigned i = 0; i < ARRAY_SIZE(frames); i++) {
		size_t sealed =
			sizeof(struct wire_frame) +
			sealed_bytes(frames[i].type, frames[i].fixed, frames[i].bytes);

		for (size_t at = first; at < sealed; at += step)
			changed_frame(s, frames[i].type, frames[i].fixed, frames[i].bytes,
				at, &errors);
	}
	CHECK(errors > 0);
}

/* Any byte of a frame's head, or of a message: the link ends, and nothing of it is done. */
static int frames_that_were_changed_on_the_way(void *arg)
{
	struct scene s = scene_new(CALM);

	if (rt_simulated)
		frames_of_each_type(&s, rt_random() % 13, 13);
	else
		frames_of_each_type(&s, 0, 1);
	CHECK(s.raw_end->messages == 0);
	for (unsigned i = 0; i < REGION_BYTES; i++)
		CHECK(s.victim->memory[i] == 0);
	scene_check(&s);
	scene_end(&s);
	return 0;
}

/* Runs with a wrong place or message, or that end too early: what was not allowed is not done. */
static int runs_that_go_wrong(void *arg)
{
	struct scene s = scene_new(CALM);
	struct raw_run x;
	const struct {
		unsigned region, entry, type, sender;
		uint64_t offset;
		int code;
	} wrong[] = {
		{REGION_ALL, 1, 0, 2, 64, -EPROTO},
		{REGION_ALL, 2, MESSAGE_PLAIN, 3, 64, -EPROTO},
		{REGION_ALL, 0, MESSAGE_PLAIN, 2, REGION_BYTES - 7, -EACCES},
		{REGION_ALL, 2, MESSAGE_PLAIN, 2, UINT64_MAX - 3, -EACCES},
		{REGION_READ, 1, MESSAGE_PLAIN, 2, 64, -EACCES},
		{NET_REGIONS_MAX, 1, MESSAGE_PLAIN, 2, 64, -EACCES},
		{UINT32_MAX, 1, MESSAGE_PLAIN, 2, 64, -EACCES},
	};
	struct net_message m[3];
	uint64_t offsets[3];
	struct wire_frame f;
	struct raw r;

	for (unsigned i = 0; i < ARRAY_SIZE(wrong); i++) {
		for (unsigned k = 0; k < 3; k++) {
			offsets[k] = 64;
			m[k] = (struct net_message){.type = MESSAGE_PLAIN, .sender = 2};
		}
		offsets[wrong[i].entry] = wrong[i].offset;
		m[wrong[i].entry].type = (uint16_t)wrong[i].type;
		m[wrong[i].entry].sender = (uint16_t)wrong[i].sender;
		raw_run_make(&x, wrong[i].region, 8, 3, offsets, m, 0xee);
		raw_greet(&r, &s);
		raw_frame(&r, WIRE_RUN, 0, &x, x.bytes);
		expect_cut(&s, &r, wrong[i].code);
		CHECK(s.victim->memory[64] == 0); /* all of it is looked at first */
	}
	/* the last message is cut short, or bytes follow it */
	for (int off = -1; off <= 1; off += 2) {
		m[2] = (struct net_message){.type = MESSAGE_PLAIN, .sender = 2, .words = {5, 6, 7}};
		raw_run_make(&x, 0, 0, 3, NULL, m, 0);
		x.run.packed += (uint32_t)off;
		raw_greet(&r, &s);
		raw_frame(&r, WIRE_RUN, 0, &x, x.bytes + (uint32_t)off);
		expect_cut(&s, &r, -EPROTO);
	}
	CHECK(s.raw_end->messages == 0);
	/* the first is whole, the second is not: it ends there */
	for (unsigned k = 0; k < 3; k++) {
		offsets[k] = 64 + 8 * k;
		m[k] = (struct net_message){.type = MESSAGE_PLAIN, .sender = 2};
	}
	raw_run_make(&x, REGION_ALL, 8, 3, offsets, m, 0xee);
	raw_greet(&r, &s);
	f = (struct wire_frame){.type = WIRE_RUN, .bytes = x.bytes};
	wire_frame_seal(&f, &x, sealed_bytes(f.type, &x, x.bytes));
	CHECK(raw_send(&r, &f, sizeof(f)));
	CHECK(raw_send(&r, &x, x.bytes - 12));
	wait_for(s.raw_end, &s.raw_end->messages, 1);
	rt_socket_shutdown(r.socket);
	expect_cut(&s, &r, -ECONNRESET);
	CHECK(s.raw_end->messages == 1);
	CHECK(s.victim->memory[71] == 0xee && s.victim->memory[76] == 0);
	memset(s.victim->memory, 0, 128);
	scene_check(&s);
	scene_end(&s);
	return 0;
}

/* A message of a run takes a credit like another, with or without a write. */
static int runs_without_credits(void *arg)
{
	struct net_message m[64];
	uint64_t offsets[64] = {0};
	struct raw_run x;

	for (unsigned k = 0; k < 64; k++)
		m[k] = (struct net_message){.type = MESSAGE_ASK, .sender = 2};
	for (unsigned length = 0; length <= 1; length++) {
		struct scene s = scene_new(CALM);
		struct raw r;

		raw_run_make(&x, 0, length, 64, offsets, m, 0);
		s.raw_end->on_message = answer_plainly;
		raw_greet(&r, &s);
		for (unsigned i = 0; raw_frame(&r, WIRE_RUN, 0, &x, x.bytes); i++)
			CHECK(i < 20000);
		wait_for(s.raw_end, &s.raw_end->downs, 1);
		CHECK(s.raw_end->down_code == -ETIMEDOUT || s.raw_end->down_code == -ENOBUFS);
		rt_socket_close(r.socket);
		scene_check(&s);
		scene_end(&s);
	}
	return 0;
}

static int random_bytes_after_the_proof(void *arg)
{
	struct scene s = scene_new(CALM);
	uint8_t bytes[2048];

	for (unsigned round = 0; round < 60; round++) {
		struct raw r;

		raw_greet(&r, &s);
		rt_random_bytes(bytes, sizeof(bytes));
		/* Sometimes near to the truth. */
		if (round % 2) {
			struct wire_frame f = {
				.type = (uint8_t)(1 + round / 2 % (WIRE_TYPES - 1))};

			f.bytes = wire_fixed_bytes(f.type);
			wire_frame_seal(&f, bytes + sizeof(f), f.bytes);
			memcpy(bytes, &f, sizeof(f));
		}
		raw_send(&r, bytes, sizeof(bytes));
		rt_socket_shutdown(r.socket);
		wait_for(s.raw_end, &s.raw_end->downs, round + 1);
		rt_socket_close(r.socket);
	}
	scene_check(&s);
	for (unsigned i = 0; i < REGION_BYTES; i++)
		CHECK(s.victim->memory_read[i] == 0);
	scene_end(&s);
	return 0;
}

/* 257 reads of a megabyte, none of them taken. */
static int a_flood_of_reads(void *arg)
{
	struct scene s = scene_new(CALM);
	struct raw r;

	raw_greet(&r, &s);
	for (uint32_t i = 0; i < 2 * NET_OPS_MAX; i++) {
		struct wire_read read = {
			.op = i % NET_OPS_MAX, .length = NET_TRANSFER_MAX};

		if (!raw_frame(&r, WIRE_READ, 0, &read, sizeof(read)))
			break;
	}
	wait_for(s.raw_end, &s.raw_end->downs, 1);
	CHECK(s.raw_end->down_code == -ENOBUFS);
	rt_socket_close(r.socket);
	scene_check(&s);
	scene_end(&s);
	return 0;
}

/* Questions without end, no answer taken: memory is bounded, and at last it is cut. */
static int a_flood_of_messages(void *arg)
{
	struct scene s = scene_new(CALM);
	struct net_message m = {.type = MESSAGE_ASK, .sender = 2};
	struct raw r;
	uint32_t sent = 0;

	s.raw_end->on_message = answer_plainly;
	raw_greet(&r, &s);
	while (raw_frame(&r, WIRE_MESSAGE, 0, &m, sizeof(m)))
		CHECK(++sent < 1000000);
	wait_for(s.raw_end, &s.raw_end->downs, 1);
	CHECK(s.raw_end->down_code == -ETIMEDOUT || s.raw_end->down_code == -ENOBUFS);
	rt_socket_close(r.socket);
	scene_check(&s);
	scene_end(&s);
	return 0;
}

/* More connections than are kept, all silent: a node that is one gets in all the same. */
static int a_flood_of_connections(void *arg)
{
	struct scene s = scene_new(CALM);
	struct raw silent[100], r;

	for (unsigned i = 0; i < ARRAY_SIZE(silent); i++)
		raw_connect(&silent[i], s.victim);
	raw_greet(&r, &s);
	wait_for(s.raw_end, &s.raw_end->ups, 1);
	for (unsigned i = 0; i < ARRAY_SIZE(silent); i++)
		rt_socket_close(silent[i].socket);
	CHECK(raw_frame(&r, WIRE_BYE, 0, &(struct wire_bye){0}, sizeof(struct wire_bye)));
	expect_cut(&s, &r, -ESHUTDOWN);
	scene_check(&s);
	scene_end(&s);
	return 0;
}

/* ---- silence -------------------------------------------------------------------------------------- */

#define SHORT (2000 * MS) /* nothing keeps a task from its work for so long */

static int silence_is_cut_off(void *arg)
{
	struct scene s = scene_new(SHORT);
	uint64_t began = rt_now_ns();
	struct raw before, within, after;

	raw_connect(&before, s.victim);
	raw_connect(&within, s.victim);
	raw_hello_make(&within);
	raw_send(&within, &within.ours, 100);
	raw_expect_end(&before);
	raw_expect_end(&within);
	CHECK(rt_now_ns() - began >= SHORT);
	/* Pings keep a link up ... */
	raw_greet(&after, &s);
	for (unsigned i = 0; i < 20; i++) {
		CHECK(raw_frame(&after, WIRE_PING, 0, NULL, 0));
		rt_sleep_ns(SHORT / 10);
	}
	CHECK(s.raw_end->downs == 0);
	/* ... silence, within a frame too, does not. */
	raw_send(&after, "\1\0\0", 3);
	expect_cut(&s, &after, -ETIMEDOUT);
	scene_end(&s);
	return 0;
}

/* It says that it lives, and takes nothing. */
static int a_peer_that_takes_nothing_is_cut_off(void *arg)
{
	struct scene s = scene_new(SHORT);
	struct raw r;

	raw_greet(&r, &s);
	for (uint32_t i = 0; i < 100; i++) {
		struct wire_read read = {.op = i, .length = NET_TRANSFER_MAX};

		raw_frame(&r, WIRE_READ, 0, &read, sizeof(read));
	}
	while (s.raw_end->downs == 0) {
		raw_frame(&r, WIRE_PING, 0, NULL, 0);
		rt_sleep_ns(SHORT / 10);
	}
	CHECK(s.raw_end->down_code == -ETIMEDOUT);
	rt_socket_close(r.socket);
	scene_end(&s);
	return 0;
}

/* ---- running --------------------------------------------------------------------------------------- */

static int (*const hostile[])(void *) = {garbage_instead_of_a_hello,
	a_hello_with_a_wrong_byte, a_greeting_that_was_changed_on_the_way,
	each_refusal_says_why, forged_greetings_do_not_fill_the_log,
	a_proof_is_good_for_one_thing_only, frames_that_are_none,
	frames_that_were_changed_on_the_way, runs_that_go_wrong, runs_without_credits,
	random_bytes_after_the_proof, a_flood_of_reads, a_flood_of_messages,
	a_flood_of_connections, silence_is_cut_off, a_peer_that_takes_nothing_is_cut_off};

static void on_tcp(void **state)
{
	test_transport = "tcp";
	assert_int_equal((*(int (*const *)(void *)) * state)(NULL), 0);
}

static void on_sim(void **state)
{
	test_transport = "sim";
	for (uint64_t seed = 0; seed < SEEDS && !getenv("WEFT_NO_SIM"); seed++)
		assert_int_equal(
			rt_sim_run(seed, NULL, *(int (*const *)(void *)) * state, NULL),
			0);
}

static void quiet(int level, const char *line)
{
	if (level < 4)
		fprintf(stderr, "%s\n", line);
}

int main(int argc, char **argv)
{
	static const char *const names[] = {"garbage_instead_of_a_hello",
		"a_hello_with_a_wrong_byte", "a_greeting_that_was_changed_on_the_way",
		"each_refusal_says_why", "forged_greetings_do_not_fill_the_log",
		"a_proof_is_good_for_one_thing_only", "frames_that_are_none",
		"frames_that_were_changed_on_the_way", "runs_that_go_wrong",
		"runs_without_credits", "random_bytes_after_the_proof",
		"a_flood_of_reads", "a_flood_of_messages", "a_flood_of_connections",
		"silence_is_cut_off", "a_peer_that_takes_nothing_is_cut_off"};
	struct CMUnitTest tests[2 * ARRAY_SIZE(hostile)] = {0};
	char text[2 * ARRAY_SIZE(hostile)][80];
	unsigned n = 0;

	rt_real_start();
	weft_log_sink = quiet;
	for (unsigned i = 0; i < 2 * ARRAY_SIZE(hostile); i++) {
		snprintf(text[n], sizeof(text[n]), "%s: %s", i % 2 ? "sim" : "tcp",
			names[i / 2]);
		if (argc > 1 && !strstr(text[n], argv[1]))
			continue;
		tests[n] = (struct CMUnitTest){.name = text[n],
			.test_func = i % 2 ? on_sim : on_tcp,
			.initial_state = (void *)&hostile[i / 2]};
		n++;
	}
	return _cmocka_run_group_tests("hostile peers", tests, n, NULL, NULL);
}
