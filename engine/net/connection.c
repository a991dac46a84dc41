/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Connections that are being made: the greetings HELLO and PROOF, and their order. A connection
 * that has proven itself becomes its peer's link. Any other ends: with a refusal that gives the
 * reason, or in silence if its bytes are no greeting. All on the progress task.
 *
 * At most CONNECT_INCOMING_MAX incoming connections are kept, each for a limited time and with a
 * buffer of one greeting (invariant 10).
 */
#include "engine/net/connect.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define DEAF_NS          100000000ull
#define REACH_NS         2000000000ull /* for each place but the last */
#define GREETING_CHANGED "its greeting arrived damaged: wrong checksum"
#define NO_GREETING                                                                      \
	"it does not speak weft's protocol: another program calls, or looks for open "   \
	"ports"

static struct net_connection *connection_new(
	struct connect_net *net, struct rt_socket *socket, bool dialer, unsigned events)
{
	struct net_connection *c = rt_alloc(sizeof(*c));

	if (!c)
		return NULL;
	c->source.kind = CONNECT_CONNECTION;
	c->stream.socket = socket;
	c->greeting.dialer = dialer;
	c->deadline = rt_now_ns() + net->base.options.handshake_ns;
	if (rt_poller_add(net->poller, socket, events, &c->source)) {
		rt_free(c);
		return NULL;
	}
	c->next = net->connections;
	net->connections = c;
	net->incoming += !dialer;
	connect_due(net, c->deadline);
	return c;
}

/* The stream is closed here, or has become a link. */
static void connection_leave(struct connect_net *net, struct net_connection *c)
{
	struct connect_peer *peer =
		c->greeting.peer ? connect_peer_of(c->greeting.peer) : NULL;

	c->gone = true;
	net->incoming -= !c->greeting.dialer;
	if (c->greeting.dialer && peer->dialing == c) {
		peer->dialing = NULL;
		connect_due(net, peer->dial_at);
	}
}

static void connection_end(struct connect_net *net, struct net_connection *c)
{
	if (c->gone)
		return;
	rt_poller_remove(net->poller, c->stream.socket);
	net_stream_close(&c->stream);
	if (net->links->leave)
		net->links->leave(c);
	connection_leave(net, c);
}

void connect_bury(struct connect_net *net, bool all)
{
	struct net_connection **link = &net->connections;

	while (*link) {
		struct net_connection *c = *link;

		if (all)
			connection_end(net, c);
		if (c->gone) {
			*link = c->next;
			rt_free(c);
		} else {
			link = &c->next;
		}
	}
}

/* ---- refusing ------------------------------------------------------------------------- */

/* Greetings are short. A socket that does not take one at once belongs to no peer. */
bool connect_say(struct net_connection *c, const void *what, size_t bytes)
{
	struct iovec iov = {(void *)what, bytes};
	unsigned tries = 0;

	while (iov.iov_len) {
		ssize_t n = net_stream_send(&c->stream, &iov, 1);

		if (n <= 0 || ++tries > bytes)
			return false;
		iov.iov_base = (uint8_t *)iov.iov_base + n;
		iov.iov_len -= (size_t)n;
	}
	return !net_stream_pending(&c->stream);
}

/* Writes the text about an incoming connection: its address, the node that it claims to be, and the
 * reason of the refusal. */
static void stranger_text(const struct net_connection *c, bool says_who, const char *why,
	char out[CONNECT_LINE_BYTES])
{
	if (!says_who)
		snprintf(out, CONNECT_LINE_BYTES, "a connection from %s is refused: %s",
			c->from, why);
	else if (c->greeting.proven)
		snprintf(out, CONNECT_LINE_BYTES,
			"a connection from %s, of node %u, is refused: %s", c->from,
			c->greeting.theirs.node, why);
	else
		snprintf(out, CONNECT_LINE_BYTES,
			"a connection from %s, which says it is node %u, is refused: %s",
			c->from, c->greeting.theirs.node, why);
}

/* The lock of the events keeps this event apart from the messages of a link that may exist. */
static void tell_refused(struct connect_net *net, const struct net_connection *c,
	uint32_t reason, uint32_t detail, bool theirs)
{
	const struct net_greeting *g = &c->greeting;
	/* the rest of another version's HELLO has an unknown form */
	bool says_who = g->theirs.bytes && reason != WIRE_OTHER_VERSION;
	char why[160], text[CONNECT_LINE_BYTES];

	wire_refusal_text(why, sizeof(why), reason, detail, theirs);
	stranger_text(c, says_who, why, text);
	if (!g->proven)
		connect_stranger(net,
			reason < WIRE_REFUSALS ? (enum connect_cause_kind)reason
					       : CONNECT_GARBAGE,
			text);
	if (!g->peer)
		return;
	rt_mutex_lock(&connect_peer_of(g->peer)->event_lock);
	net_tell_refused(g->peer, reason, g->proven, text);
	rt_mutex_unlock(&connect_peer_of(g->peer)->event_lock);
}

/* The bytes are not those of a node, or not as they were sent. A connection that breaks, or is
 * silent, is not logged. */
static void tell_malformed(
	struct connect_net *net, const struct net_connection *c, int code)
{
	bool hello = c->greeting.theirs.bytes, changed = code == -EBADMSG;
	char text[CONNECT_LINE_BYTES];

	if (code != -EPROTO && !changed)
		return;
	stranger_text(c, hello && !changed,
		changed ? GREETING_CHANGED
		: hello ? "the message behind its HELLO is malformed"
			: NO_GREETING,
		text);
	connect_stranger(net, changed ? CONNECT_CHANGED : CONNECT_GARBAGE, text);
}

static void tell_failed(struct net_peer *peer, int code, uint32_t mark, const char *why)
{
	rt_mutex_lock(&connect_peer_of(peer)->event_lock);
	net_tell_failed(peer, code, mark, why);
	rt_mutex_unlock(&connect_peer_of(peer)->event_lock);
}

/* ---- attempts: the places of a peer, one after the other ---------------------------------- */

/* Notes the outcome of one place. `reason`: of a refusal, else 0. */
static void attempt_note(struct connect_peer *peer, unsigned place, int code,
	uint32_t reason, const char *why)
{
	struct connect_attempt *a = &peer->attempt;
	bool one = peer->there.count == 1 && !strchr(peer->base.address, ',');
	size_t used = strlen(a->text);

	if (!reason && code == -EADDRNOTAVAIL) /* that code is a refusal's */
		code = -EHOSTUNREACH;
	if (!a->code || (reason && !a->refused))
		a->code = code;
	a->refused |= reason != 0;
	a->nobody |= code == -ECONNREFUSED;
	a->mark = a->mark * 31 + (uint32_t)-code + (reason << 16);
	snprintf(a->text + used, sizeof(a->text) - used, "%s%s%s%s", used ? "; " : "",
		one ? "" : peer->there.place[place].text, one ? "" : ": ", why);
}

/* This node dials again at the slowest pace. */
static void slow_down(struct connect_net *net, struct connect_peer *peer)
{
	peer->backoff_ns = net->base.options.retry_ns;
	peer->dial_at =
		rt_now_ns() + peer->backoff_ns / 2 + rt_random() % peer->backoff_ns;
	connect_due(net, peer->dial_at);
}

/* Returns 0 when the connection is on its way. */
static int dial_place(struct connect_net *net, struct connect_peer *peer, unsigned place)
{
	struct rt_socket *socket;
	struct net_connection *c;
	int rc = rt_socket_connect(&socket, &peer->there.place[place].at);

	if (rc)
		return rc;
	c = connection_new(net, socket, true, RT_WRITABLE);
	if (!c) {
		rt_socket_close(socket);
		return -ENOMEM;
	}
	c->greeting.peer = &peer->base;
	c->place = place;
	peer->dialing = c;
	if (place + 1 < peer->there.count) {
		c->deadline = MIN(c->deadline, rt_now_ns() + REACH_NS);
		connect_due(net, c->deadline);
	}
	return 0;
}

/* Dials the places from that one on. */
static void dial_from(struct connect_net *net, struct connect_peer *peer, unsigned place)
{
	const struct connect_attempt *a = &peer->attempt;

	for (; place < peer->there.count; place++) {
		int rc = dial_place(net, peer, place);

		if (!rc)
			return;
		attempt_note(peer, place, rc, 0, strerrordesc_np(-rc));
	}
	tell_failed(&peer->base, a->code, a->mark, a->text);
	if (a->refused)
		slow_down(net, peer);
}

void connect_dial(struct connect_peer *peer)
{
	peer->attempt = (struct connect_attempt){0};
	dial_from(connect_net_of(peer->base.net), peer, 0);
}

/* A connection that this node dialed has failed. */
static void dialed_in_vain(struct connect_net *net, struct net_connection *c, int code,
	uint32_t reason, const char *why)
{
	struct connect_peer *peer = connect_peer_of(c->greeting.peer);

	attempt_note(peer, c->place, code, reason, why);
	connection_end(net, c);
	dial_from(net, peer, c->place + 1);
}

/* Logs that the node is not reached at its first address. An operator who reads the cluster file
 * expects that one. */
static void say_where(const struct connect_peer *peer, unsigned place)
{
	const struct connect_places *there = &peer->there;

	if (there->place[place].written != there->place[0].written)
		weft_log(4, "node %u is reached at %s, not at %s", peer->base.node,
			there->place[place].text, peer->attempt.text);
}

/* ---- ends ---------------------------------------------------------------------------------- */

static void was_refused(struct connect_net *net, struct net_connection *c, uint32_t reason,
	uint32_t detail, bool theirs)
{
	char why[160];

	if (c->greeting.dialer) {
		wire_refusal_text(why, sizeof(why), reason, detail, theirs);
		dialed_in_vain(net, c, wire_refusal_code(reason), reason, why);
		return;
	}
	tell_refused(net, c, reason, detail, theirs);
	connection_end(net, c);
}

static void refuse_peer(struct connect_net *net, struct net_connection *c, uint32_t reason,
	uint32_t detail)
{
	struct wire_refuse r;

	net_refuse_make(&r, reason, detail);
	connect_say(c, &r, sizeof(r));
	if (reason == WIRE_OTHER_VERSION) /* each end logs the other end's version */
		detail = c->greeting.theirs.version;
	was_refused(net, c, reason, detail, false);
}

void connect_failed(struct connect_net *net, struct net_connection *c, int code)
{
	if (c->gone)
		return;
	if (c->greeting.dialer) {
		dialed_in_vain(
			net, c, code, 0, c->why[0] ? c->why : strerrordesc_np(-code));
		return;
	}
	if (!c->greeting.proven)
		tell_malformed(net, c, code);
	connection_end(net, c);
}

/* ---- steps -------------------------------------------------------------------------------- */

static bool say_hello(struct connect_net *net, struct net_connection *c, uint16_t to)
{
	wire_hello_make(&c->greeting.ours, &net->base.options.self, net->base.instance,
		to, net->base.ops.wire);
	return connect_say(c, &c->greeting.ours, sizeof(c->greeting.ours));
}

static bool say_proof(struct connect_net *net, struct net_connection *c)
{
	const struct net_greeting *g = &c->greeting;
	struct wire_proof p;

	if (!wire_proof_make(&p, net->base.key, g->dialer,
		    g->dialer ? &g->ours : &g->theirs, g->dialer ? &g->theirs : &g->ours))
		return false;
	/* A dialer shares nothing before it has seen a proof. */
	if (net->links->share && !g->dialer)
		return net->links->share(net, c, &p, sizeof(p));
	return connect_say(c, &p, sizeof(p));
}

/* The greeting may have any contents. Its key may be the part that is wrong. */
static void greeting_changed(struct connect_net *net, struct net_connection *c)
{
	snprintf(c->why, sizeof(c->why), GREETING_CHANGED);
	connect_failed(net, c, -EBADMSG);
}

static void hello_came(struct connect_net *net, struct net_connection *c)
{
	struct net_greeting *g = &c->greeting;
	struct net_peer *dialed = g->dialer ? g->peer : NULL;
	uint32_t detail;
	int refusal;

	memcpy(&g->theirs, c->in, sizeof(g->theirs));
	/* another version has another form */
	if (g->theirs.version == WIRE_VERSION && !wire_hello_whole(&g->theirs)) {
		greeting_changed(net, c);
		return;
	}
	refusal = net_greeting_hello(&net->base, g, &detail);
	if (dialed)
		g->peer = dialed;
	if (refusal) {
		refuse_peer(net, c, (uint32_t)refusal, detail);
		return;
	}
	c->stage = CONNECT_PROOF;
	if (g->dialer ? !say_proof(net, c) : !say_hello(net, c, g->theirs.node))
		connect_failed(net, c, -ECONNRESET);
}

/* The greetings are over: the connection is the peer's link. */
void connect_made(struct connect_net *net, struct net_connection *c)
{
	struct connect_peer *peer = connect_peer_of(c->greeting.peer);
	bool dialed = c->greeting.dialer;
	const struct connect_places *places = dialed ? &peer->there : &net->here;
	int rc;

	/* The peer knows that an earlier link has ended. */
	net->links->link_down(peer, -ECONNRESET);
	rt_poller_remove(net->poller, c->stream.socket);
	connection_leave(net, c);
	peer->base.dialed = dialed;
	strcpy(peer->base.reached, places->place[c->place].text);
	if (dialed)
		say_where(peer, c->place);
	rc = net->links->link_up(peer, c);
	if (!rc)
		return;
	if (!dialed) {
		tell_failed(&peer->base, rc, 0, strerrordesc_np(-rc));
		return;
	}
	attempt_note(peer, c->place, rc, 0, strerrordesc_np(-rc));
	dial_from(net, peer, c->place + 1);
}

/* The link is made beside this connection. */
static void proof_is_right(struct connect_net *net, struct net_connection *c)
{
	c->stage = c->greeting.dialer ? CONNECT_OFFER : CONNECT_KEYS;
	if (!c->greeting.dialer && !net->links->offer(net, c))
		connect_failed(net, c, -ECONNRESET);
}

static void offer_came(struct connect_net *net, struct net_connection *c)
{
	struct wire_offer offer;
	int rc;

	memcpy(&offer, c->in, sizeof(offer));
	c->stage = CONNECT_KEYS;
	rc = wire_offer_check(&offer) ? net->links->offered(net, c, &offer) : -EPROTO;
	if (rc)
		connect_failed(net, c, rc);
}

static void keys_came(struct connect_net *net, struct net_connection *c)
{
	struct wire_keys keys;
	int rc;

	memcpy(&keys, c->in, sizeof(keys));
	rc = wire_keys_check(&keys) ? net->links->keys(net, c, &keys) : -EPROTO;
	if (rc)
		connect_failed(net, c, rc);
}

static void proof_came(struct connect_net *net, struct net_connection *c)
{
	struct net_greeting *g = &c->greeting;
	static const struct wire_memory memory = {WIRE_MEMORY, {0}};
	struct wire_proof proof;
	uint32_t detail;
	int refusal;

	memcpy(&proof, c->in, sizeof(proof));
	if (!wire_proof_whole(&proof)) {
		greeting_changed(net, c);
		return;
	}
	refusal = net_greeting_proof(&net->base, g, &proof, &detail);
	if (refusal)
		refuse_peer(net, c, (uint32_t)refusal, detail);
	else if (!g->dialer && !say_proof(net, c))
		connect_failed(net, c, -ECONNRESET);
	else if (net->links->offer)
		proof_is_right(net, c);
	else if (!net->links->share)
		connect_made(net, c);
	else if (!g->dialer)
		c->stage = CONNECT_MEMORY;
	else if (net->links->share(net, c, &memory, sizeof(memory)))
		connect_made(net, c);
	else
		connect_failed(net, c, -ENOMEM);
}

static void refusal_came(struct connect_net *net, struct net_connection *c)
{
	struct wire_refuse r;

	memcpy(&r, c->in, sizeof(r));
	was_refused(net, c, r.reason, r.detail, true);
}

/* ---- bytes --------------------------------------------------------------------------------- */

/* The length of the greeting that arrives; 0: it is none that may arrive now. */
static unsigned greeting_bytes(const struct net_connection *c)
{
	if (c->in_bytes < WIRE_MAGIC_BYTES)
		return WIRE_MAGIC_BYTES;
	if (c->stage == CONNECT_HELLO && !memcmp(c->in, WIRE_HELLO, WIRE_MAGIC_BYTES))
		return sizeof(struct wire_hello);
	if (c->stage == CONNECT_PROOF && !memcmp(c->in, WIRE_PROOF, WIRE_MAGIC_BYTES))
		return sizeof(struct wire_proof);
	if (c->stage == CONNECT_MEMORY && !memcmp(c->in, WIRE_MEMORY, WIRE_MAGIC_BYTES))
		return sizeof(struct wire_memory);
	if (c->stage == CONNECT_OFFER && !memcmp(c->in, WIRE_OFFER, WIRE_MAGIC_BYTES))
		return sizeof(struct wire_offer);
	if (c->stage == CONNECT_KEYS && !memcmp(c->in, WIRE_MEMORY, WIRE_MAGIC_BYTES))
		return sizeof(struct wire_keys);
	if ((c->greeting.dialer || c->stage != CONNECT_HELLO) &&
		!memcmp(c->in, WIRE_REFUSE, WIRE_MAGIC_BYTES))
		return sizeof(struct wire_refuse);
	return 0;
}

static void greeting_came(struct connect_net *net, struct net_connection *c)
{
	c->in_bytes = 0;
	if (!memcmp(c->in, WIRE_REFUSE, WIRE_MAGIC_BYTES))
		refusal_came(net, c);
	else if (c->stage == CONNECT_HELLO)
		hello_came(net, c);
	else if (c->stage == CONNECT_PROOF)
		proof_came(net, c);
	else if (c->stage == CONNECT_OFFER)
		offer_came(net, c);
	else if (c->stage == CONNECT_KEYS)
		keys_came(net, c);
	else
		connect_made(net, c);
}

/* Another version's HELLO may be shorter than this one's. Its first 16 bytes are enough. */
static bool other_version(struct connect_net *net, struct net_connection *c)
{
	struct wire_hello *h = &c->greeting.theirs;

	if (c->stage != CONNECT_HELLO || c->in_bytes < 16 ||
		memcmp(c->in, WIRE_HELLO, WIRE_MAGIC_BYTES))
		return false;
	memcpy(h, c->in, 16);
	if (h->version == WIRE_VERSION)
		return false;
	refuse_peer(net, c, WIRE_OTHER_VERSION, WIRE_VERSION);
	return true;
}

/* The first record of a TLS handshake, although this node has no TLS. */
static bool is_tls(const struct net_connection *c)
{
	return c->stage == CONNECT_HELLO && c->in[0] == 22 && c->in[1] == 3;
}

/* Reads no byte beyond the greeting: the bytes after it are the link's. */
static void read_greeting(struct connect_net *net, struct net_connection *c)
{
	while (!c->gone) {
		unsigned wanted = greeting_bytes(c);
		struct iovec iov = {c->in + c->in_bytes, wanted - c->in_bytes};
		ssize_t n;

		if (wanted == 0) {
			if (is_tls(c))
				refuse_peer(net, c, WIRE_OTHER_TRANSPORT, 0);
			else
				connect_failed(net, c, -EPROTO);
			return;
		}
		n = net_stream_recv(&c->stream, &iov, 1);
		if (n == -EAGAIN)
			return;
		if (n <= 0) {
			connect_failed(net, c, n ? (int)n : -ECONNRESET);
			return;
		}
		c->in_bytes += (unsigned)n;
		if (c->in_bytes == wanted && wanted > WIRE_MAGIC_BYTES)
			greeting_came(net, c);
		else if (other_version(net, c))
			return;
	}
}

static void begin_greeting(struct connect_net *net, struct net_connection *c)
{
	c->stage = CONNECT_HELLO;
	rt_poller_change(net->poller, c->stream.socket, RT_READABLE, &c->source);
	if (c->greeting.dialer && !say_hello(net, c, c->greeting.peer->node))
		connect_failed(net, c, -ECONNRESET);
}

static void begin_tls(struct connect_net *net, struct net_connection *c)
{
	int rc;

	if (!net->base.options.tls) {
		begin_greeting(net, c);
		return;
	}
	c->stage = CONNECT_TLS;
	rc = net_tls_begin(net, &c->stream, c->greeting.dialer);
	if (rc)
		connect_failed(net, c, rc);
}

static void shake_hands(struct connect_net *net, struct net_connection *c)
{
	unsigned wanted = RT_READABLE;
	int rc = net_tls_shake(&c->stream, &wanted);

	if (rc == -EAGAIN) {
		rt_poller_change(net->poller, c->stream.socket, wanted, &c->source);
	} else if (rc == -EPROTOTYPE) { /* no TLS at the other end */
		net_tls_drop(&c->stream);
		refuse_peer(net, c, WIRE_OTHER_TRANSPORT, 0);
	} else if (rc == -EKEYREJECTED) {
		was_refused(net, c, WIRE_WRONG_KEY, 0, false);
	} else if (rc) {
		connect_failed(net, c, rc);
	} else {
		begin_greeting(net, c);
		if (!c->gone)
			read_greeting(net, c); /* TLS may have read it already */
	}
}

/*
 * A node that starts listens at its first address first. If no process listened at an earlier
 * place, one may do so by now. A link over a worse address would stay as long as it lives. So this
 * node dials all places once more.
 */
static bool looks_again(struct connect_net *net, struct net_connection *c)
{
	struct connect_peer *peer = connect_peer_of(c->greeting.peer);

	if (!peer->attempt.nobody || peer->attempt.again)
		return false;
	connection_end(net, c);
	peer->attempt = (struct connect_attempt){.again = true};
	dial_from(net, peer, 0);
	return true;
}

static void on_connected(struct connect_net *net, struct net_connection *c)
{
	int rc = rt_socket_connected(c->stream.socket);

	if (rc == -EINPROGRESS)
		return;
	if (rc) {
		connect_failed(net, c, rc);
		return;
	}
	if (looks_again(net, c))
		return;
	if (c->place + 1 < connect_peer_of(c->greeting.peer)->there.count)
		c->deadline = rt_now_ns() + net->base.options.handshake_ns;
	begin_tls(net, c);
	if (!c->gone && c->stage == CONNECT_TLS)
		shake_hands(net, c);
}

void connect_ready(struct connect_net *net, struct net_connection *c)
{
	if (c->gone)
		return;
	if (c->stage == CONNECT_DIALING)
		on_connected(net, c);
	else if (c->stage == CONNECT_TLS)
		shake_hands(net, c);
	else
		read_greeting(net, c);
}

/* ---- beginnings --------------------------------------------------------------------------- */

/* The oldest incoming connection that has not proven itself makes room. */
static void make_room(struct connect_net *net)
{
	struct net_connection *oldest = NULL;

	for (struct net_connection *c = net->connections; c; c = c->next)
		if (!c->gone && !c->greeting.dialer)
			oldest = c;
	if (oldest)
		connection_end(net, oldest);
}

void connect_accept_all(struct connect_net *net, struct connect_listener *listener)
{
	for (unsigned i = 0; i < CONNECT_INCOMING_MAX; i++) {
		struct rt_socket *socket;
		struct net_connection *c;

		int rc = rt_socket_accept(&socket, listener->socket);

		if (rc == -EAGAIN)
			return;
		if (rc) { /* out of sockets or memory: no accept for a while */
			net->deaf_until = rt_now_ns() + DEAF_NS;
			connect_due(net, net->deaf_until);
			connect_hear(net, false);
			return;
		}
		if (net->incoming == CONNECT_INCOMING_MAX)
			make_room(net);
		c = connection_new(net, socket, false, RT_READABLE);
		if (!c) {
			rt_socket_close(socket);
			continue;
		}
		c->place = (unsigned)(listener - net->listener);
		/* now: after the other end has closed, its address is not known */
		rt_socket_peer_name(socket, c->from, sizeof(c->from));
		begin_tls(net, c);
	}
}

uint64_t connect_expire(struct connect_net *net, uint64_t now)
{
	uint64_t next = RT_FOREVER;

	for (struct net_connection *c = net->connections; c; c = c->next) {
		if (c->gone)
			continue;
		if (c->deadline <= now)
			connect_failed(net, c, -ETIMEDOUT);
		else
			next = MIN(next, c->deadline);
	}
	return next;
}
