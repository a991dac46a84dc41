/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams between simulated nodes. Bytes arrive after a delay, in pieces of any size: in order
 * within a stream, and in any order between streams. A blocked direction holds its bytes until it
 * is open again. A lost address holds both directions of the streams that were made by it. A cut
 * resets the streams between two nodes. If a node loses its power, its streams are reset or, as
 * often, just fall silent.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "engine/rt/sim.h"

#define DELAY_MIN_NS 5000u
#define DELAY_MAX_NS 100000u
#define SLOW_ONE_IN  64u
#define SLOW_FACTOR  20u
#define ROOM_BYTES   (256u << 10) /* sent and not yet received */
#define BACKLOG      128u
#define SHORT_ONE_IN 8u
#define FLIP_FROM    16u /* bytes of a stream */
#define NEVER        UINT64_MAX

enum socket_kind { LISTENING, CONNECTING, STREAM };

/* Bytes, or the end of the stream, on their way to a socket, or there. */
struct piece {
	struct sim_timer timer; /* not set: held by a blocked direction, or arrived */
	struct rt_socket *to;
	struct piece *next;
	bool arrived;
	int end; /* 0: bytes; 1: the sender closed; -errno */
	size_t length, taken;
	uint8_t data[];
};

struct rt_socket {
	enum socket_kind kind;
	unsigned node, other_node;
	char name[RT_TASK_NAME_BYTES *
		  8];            /* of the listener: its own, or the one that was dialed */
	int error;               /* -errno: reset, or the failure to connect */
	struct rt_socket *other; /* of a stream; NULL when that is closed */
	struct sim_timer timer;  /* of connecting */
	/* A listener's: streams that are not accepted yet. */
	struct rt_socket *accept_first, **accept_end, *accept_next;
	unsigned accept_count;
	/* Incoming pieces in order. */
	struct piece *in, **in_end;
	size_t in_bytes; /* not received yet, those on their way included */
	uint64_t sent;   /* to it, in all */
	uint64_t last_arrival;
	bool end_sent;
	_Atomic uint32_t changed; /* for rt_socket_wait */
	bool kicked;
	struct rt_poller *poller;
	unsigned interest;
	void *tag;
	struct rt_socket *next, **link; /* all of the run */
};

struct rt_poller {
	unsigned node;
	_Atomic uint32_t changed;
	bool kicked;
	struct rt_poller *next, **link;
};

/* A direction that holds its bytes. */
struct blocked {
	unsigned from, to;
	struct blocked *next;
};

/* A listener that no dialer reaches. The streams that were made by it are held, too. */
struct lost {
	struct lost *next;
	char name[RT_TASK_NAME_BYTES * 8];
};

struct sim_net {
	struct rt_socket *sockets;
	struct rt_poller *pollers;
	struct blocked *blocked;
	struct lost *lost;
	struct sim_rng rng;
	uint64_t delay_min_ns, delay_max_ns;
	uint64_t flip_every; /* bytes; 0: none is changed */
	uint64_t flip_after; /* bytes from here to the next that is changed */
	uint64_t flips;
	unsigned last_port;
};

static struct sim_net *get_net(void)
{
	if (!sim->net) {
		sim->net = sim_own_alloc(sizeof(*sim->net));
		sim->net->rng.state = sim->seed ^ 0x9fb21c651e98df25ull;
		sim->net->delay_min_ns = DELAY_MIN_NS;
		sim->net->delay_max_ns = DELAY_MAX_NS;
	}
	return sim->net;
}

static uint64_t draw_delay(void)
{
	uint64_t range = get_net()->delay_max_ns - get_net()->delay_min_ns;
	uint64_t ns = get_net()->delay_min_ns + sim_rng_below(&get_net()->rng, range + 1);

	if (sim_rng_below(&get_net()->rng, SLOW_ONE_IN) == 0)
		ns *= SLOW_FACTOR;
	return ns;
}

static bool is_blocked(unsigned from, unsigned to)
{
	for (const struct blocked *b = get_net()->blocked; b; b = b->next)
		if (b->from == from && b->to == to)
			return true;
	return false;
}

static bool is_lost(const char *name)
{
	for (const struct lost *l = get_net()->lost; l; l = l->next)
		if (!strcmp(l->name, name))
			return true;
	return false;
}

/* Whether bytes on this way are held. */
static bool is_held(unsigned from, unsigned to, const char *name)
{
	return is_blocked(from, to) || is_lost(name);
}

/* ---- readiness ---------------------------------------------------------------------- */

static bool is_readable(const struct rt_socket *s)
{
	if (s->kind == LISTENING)
		return s->accept_first != NULL;
	return s->error || (s->in && s->in->arrived);
}

static bool is_writable(const struct rt_socket *s)
{
	return s->kind == STREAM &&
	       (s->error || !s->other || s->other->in_bytes < ROOM_BYTES);
}

static unsigned ready_events(const struct rt_socket *s)
{
	unsigned events = 0;

	if (is_readable(s))
		events |= RT_READABLE;
	if (is_writable(s) || s->error)
		events |= RT_WRITABLE;
	events &= s->interest;
	return s->error ? events | RT_HANGUP : events;
}

static void notify_changed(struct rt_socket *s)
{
	atomic_fetch_add(&s->changed, 1);
	sim_wake_quietly(&s->changed, INT32_MAX);
	if (s->poller && ready_events(s)) {
		atomic_fetch_add(&s->poller->changed, 1);
		sim_wake_quietly(&s->poller->changed, INT32_MAX);
	}
}

/* ---- sockets ------------------------------------------------------------------------- */

static struct rt_socket *socket_new(enum socket_kind kind, unsigned node)
{
	struct rt_socket *s = sim_own_alloc(sizeof(*s));

	s->kind = kind;
	s->node = node;
	s->in_end = &s->in;
	s->accept_end = &s->accept_first;
	s->next = get_net()->sockets;
	s->link = &get_net()->sockets;
	if (s->next)
		s->next->link = &s->next;
	get_net()->sockets = s;
	return s;
}

static void drop_pieces(struct rt_socket *s)
{
	while (s->in) {
		struct piece *p = s->in;

		s->in = p->next;
		sim_timer_cancel(&p->timer);
		free(p);
	}
	s->in_end = &s->in;
	s->in_bytes = 0;
}

static void socket_free(struct rt_socket *s)
{
	drop_pieces(s);
	sim_timer_cancel(&s->timer);
	*s->link = s->next;
	if (s->next)
		s->next->link = s->link;
	free(s);
}

static void socket_reset(struct rt_socket *s, int error)
{
	if (s->error)
		return;
	s->error = error;
	drop_pieces(s);
	sim_timer_cancel(&s->timer);
	notify_changed(s);
}

static void piece_arrives(struct sim_timer *timer)
{
	struct piece *p = container_of(timer, struct piece, timer);
	struct rt_socket *s = p->to;

	p->arrived = true;
	if (p->end < 0)
		socket_reset(s, p->end);
	else
		notify_changed(s);
}

static void piece_start(struct piece *p)
{
	uint64_t at = MAX(p->to->last_arrival, sim->now + draw_delay());

	p->to->last_arrival = at;
	sim_timer_set(&p->timer, at, piece_arrives);
}

static uint64_t flip_draw(void)
{
	return sim_rng_below(&get_net()->rng, 2 * get_net()->flip_every);
}

/* Changes bits as bad memory or a bad device does. A checksum of the network alone does not find
 * it. */
static void flip_bits(uint8_t *data, uint64_t length)
{
	uint64_t at = 0;

	if (!get_net()->flip_every)
		return;
	while (get_net()->flip_after < length - at) {
		at += get_net()->flip_after;
		data[at++] ^= (uint8_t)(1u << sim_rng_below(&get_net()->rng, 8));
		get_net()->flips++;
		get_net()->flip_after = flip_draw();
	}
	get_net()->flip_after -= length - at;
}

static void piece_put(struct rt_socket *to, unsigned from_node, const uint8_t *data,
	size_t length, int end)
{
	struct piece *p = sim_own_alloc(sizeof(*p) + length);

	p->to = to;
	p->length = length;
	p->end = end;
	if (length)
		memcpy(p->data, data, length);
	if (to->sent >= FLIP_FROM)
		flip_bits(p->data, length);
	to->sent += length;
	*to->in_end = p;
	to->in_end = &p->next;
	to->in_bytes += length;
	if (!is_held(from_node, to->node, to->name))
		piece_start(p);
}

/* ---- addresses, connecting -------------------------------------------------------------- */

static int sim_resolve(
	struct rt_address *out, unsigned max, const char *text, struct weft_error *err)
{
	*out = (struct rt_address){0};
	if (!strchr(text, ':') || strlen(text) >= sizeof(out->bytes))
		return weft_error(
			err, -EINVAL, "%s is no address: write host:port", text);
	out->length = (uint32_t)strlen(text);
	memcpy(out->bytes, text, out->length);
	return 1;
}

static void sim_print(const struct rt_address *a, char *out, size_t size)
{
	snprintf(out, size, "%s", (const char *)a->bytes);
}

static struct rt_socket *listener_at(const char *name)
{
	struct rt_socket *s = get_net()->sockets;

	while (s && (s->kind != LISTENING || strcmp(s->name, name)))
		s = s->next;
	return s;
}

static int sim_listen(
	struct rt_socket **out, const struct rt_address *at, struct weft_error *err)
{
	const char *name = (const char *)at->bytes;
	struct rt_socket *s;

	if (listener_at(name))
		return weft_error(err, -EADDRINUSE,
			"cannot listen at %s: Address already in use", name);
	s = socket_new(LISTENING, sim_current_node());
	snprintf(s->name, sizeof(s->name), "%s", name);
	if (!strcmp(strrchr(name, ':'), ":0"))
		snprintf(s->name, sizeof(s->name), "%.*s:%u",
			(int)(strrchr(name, ':') - name), name,
			40000 + ++get_net()->last_port);
	*out = s;
	return 0;
}

static void sim_name(struct rt_socket *s, char *out, size_t size)
{
	snprintf(out, size, "%s", s->name);
}

static void sim_peer_name(struct rt_socket *s, char *out, size_t size)
{
	snprintf(out, size, "simulated node %u", s->other_node);
}

static int sim_accept(struct rt_socket **out, struct rt_socket *listener)
{
	struct rt_socket *s = listener->accept_first;

	rt_sched_point();
	if (!s)
		return -EAGAIN;
	listener->accept_first = s->accept_next;
	if (!s->accept_next)
		listener->accept_end = &listener->accept_first;
	listener->accept_count--;
	*out = s;
	return 0;
}

static void became_stream(struct sim_timer *timer)
{
	struct rt_socket *s = container_of(timer, struct rt_socket, timer);

	s->kind = STREAM;
	notify_changed(s);
}

/* The dialer's first packet arrives at the listener of that name. */
static void reaches_listener(struct sim_timer *timer)
{
	struct rt_socket *s = container_of(timer, struct rt_socket, timer);
	struct rt_socket *listener = listener_at(s->name), *other;

	if (is_lost(s->name) ||
		(listener && (is_blocked(s->node, listener->node) ||
				     is_blocked(listener->node, s->node)))) {
		sim_timer_set(&s->timer, sim->now + 1000000, reaches_listener);
		return;
	}
	if (!listener || listener->accept_count == BACKLOG) {
		socket_reset(s, -ECONNREFUSED);
		return;
	}
	other = socket_new(STREAM, listener->node);
	other->other = s;
	other->other_node = s->node;
	memcpy(other->name, s->name, sizeof(other->name));
	s->other = other;
	s->other_node = listener->node;
	*listener->accept_end = other;
	listener->accept_end = &other->accept_next;
	listener->accept_count++;
	notify_changed(listener);
	sim_timer_set(&s->timer, sim->now + draw_delay(), became_stream);
}

static int sim_connect(struct rt_socket **out, const struct rt_address *to)
{
	struct rt_socket *s = socket_new(CONNECTING, sim_current_node());

	snprintf(s->name, sizeof(s->name), "%s", (const char *)to->bytes);
	sim_timer_set(&s->timer, sim->now + draw_delay(), reaches_listener);
	*out = s;
	return 0;
}

static int sim_connected(struct rt_socket *s)
{
	if (s->error)
		return s->error;
	return s->kind == STREAM ? 0 : -EINPROGRESS;
}

/* ---- bytes ---------------------------------------------------------------------------- */

static size_t some_of(size_t n)
{
	if (n > 1 && sim_rng_below(&get_net()->rng, SHORT_ONE_IN) == 0)
		return 1 + (size_t)sim_rng_below(&get_net()->rng, n);
	return n;
}

static ssize_t sim_send(struct rt_socket *s, const struct iovec *iov, unsigned count)
{
	size_t length = 0, room;
	uint8_t *data, *to;

	rt_sched_point();
	if (s->error)
		return s->error == -ECONNRESET ? -EPIPE : s->error;
	if (s->kind != STREAM)
		return -ENOTCONN;
	if (!s->other || s->end_sent)
		return -EPIPE;
	for (unsigned i = 0; i < count; i++)
		length += iov[i].iov_len;
	if (s->other->in_bytes >= ROOM_BYTES)
		return -EAGAIN;
	room = ROOM_BYTES - s->other->in_bytes;
	data = to = sim_own_alloc(length + 1);
	for (unsigned i = 0; i < count; i++) {
		memcpy(to, iov[i].iov_base, iov[i].iov_len);
		to += iov[i].iov_len;
	}
	length = some_of(MIN(length, room));
	piece_put(s->other, s->node, data, length, 0);
	free(data);
	return (ssize_t)length;
}

/* Fills one iovec, from the first pieces. */
static size_t take_bytes(struct rt_socket *s, uint8_t *to, size_t length)
{
	size_t done = 0;

	while (done < length && s->in && s->in->arrived && !s->in->end) {
		struct piece *p = s->in;
		size_t n = MIN(length - done, p->length - p->taken);

		memcpy(to + done, p->data + p->taken, n);
		p->taken += n;
		done += n;
		s->in_bytes -= n;
		if (p->taken == p->length) {
			s->in = p->next;
			if (!s->in)
				s->in_end = &s->in;
			free(p);
		}
	}
	return done;
}

static ssize_t sim_recv(struct rt_socket *s, const struct iovec *iov, unsigned count)
{
	size_t total = 0, limit = 0;

	rt_sched_point();
	if (s->error)
		return s->error;
	if (s->kind != STREAM)
		return -ENOTCONN;
	if (!s->in || !s->in->arrived)
		return -EAGAIN;
	if (s->in->end)
		return 0;
	for (unsigned i = 0; i < count; i++)
		limit += iov[i].iov_len;
	limit = some_of(limit);
	for (unsigned i = 0; i < count && total < limit; i++) {
		size_t want = MIN(iov[i].iov_len, limit - total);
		size_t n = take_bytes(s, iov[i].iov_base, want);

		total += n;
		if (n < want)
			break;
	}
	if (s->other)
		notify_changed(s->other); /* there is room */
	return (ssize_t)total;
}

static void end_stream(struct rt_socket *s)
{
	if (s->other && !s->end_sent)
		piece_put(s->other, s->node, NULL, 0, 1);
	s->end_sent = true;
}

static void sim_shutdown(struct rt_socket *s)
{
	end_stream(s);
	socket_reset(s, -ESHUTDOWN);
}

static void detach_other(struct rt_socket *s)
{
	if (s->other) {
		s->other->other = NULL;
		s->other = NULL;
	}
}

static void sim_close(struct rt_socket *s)
{
	while (s->accept_first) {
		struct rt_socket *waiting = s->accept_first;

		s->accept_first = waiting->accept_next;
		sim_close(waiting);
	}
	end_stream(s);
	detach_other(s);
	socket_free(s);
}

static int sim_socket_wait(struct rt_socket *s, uint64_t deadline_ns)
{
	uint32_t seen = atomic_load(&s->changed);
	int rc = 0;

	if (!is_readable(s) && !s->kicked)
		rc = sim_wait(&s->changed, seen, deadline_ns);
	s->kicked = false;
	return rc;
}

static void sim_kick(struct rt_socket *s)
{
	s->kicked = true;
	atomic_fetch_add(&s->changed, 1);
	sim_wake_quietly(&s->changed, INT32_MAX);
}

/* ---- pollers ---------------------------------------------------------------------------- */

static int sim_poller_open(struct rt_poller **out)
{
	struct rt_poller *p = sim_own_alloc(sizeof(*p));

	p->node = sim_current_node();
	p->next = get_net()->pollers;
	p->link = &get_net()->pollers;
	if (p->next)
		p->next->link = &p->next;
	get_net()->pollers = p;
	*out = p;
	return 0;
}

static void sim_poller_close(struct rt_poller *p)
{
	for (struct rt_socket *s = get_net()->sockets; s; s = s->next)
		WEFT_ASSERT(s->poller != p);
	*p->link = p->next;
	if (p->next)
		p->next->link = p->link;
	free(p);
}

static void sim_poller_change(
	struct rt_poller *p, struct rt_socket *s, unsigned events, void *tag)
{
	WEFT_ASSERT(s->poller == p && tag);
	s->interest = events;
	s->tag = tag;
	notify_changed(s);
}

static int sim_poller_add(
	struct rt_poller *p, struct rt_socket *s, unsigned events, void *tag)
{
	WEFT_ASSERT(!s->poller);
	s->poller = p;
	sim_poller_change(p, s, events, tag);
	return 0;
}

static void sim_poller_remove(struct rt_poller *p, struct rt_socket *s)
{
	WEFT_ASSERT(s->poller == p);
	s->poller = NULL;
}

static unsigned sim_poller_wait(
	struct rt_poller *p, struct rt_ready *out, unsigned max, uint64_t deadline_ns)
{
	for (;;) {
		uint32_t seen = atomic_load(&p->changed);
		unsigned found = 0;

		for (struct rt_socket *s = get_net()->sockets; s && found < max;
			s = s->next) {
			unsigned events = s->poller == p ? ready_events(s) : 0;

			if (events)
				out[found++] = (struct rt_ready){s->tag, events};
		}
		if (found || p->kicked) {
			p->kicked = false;
			return found;
		}
		if (sim_wait(&p->changed, seen, deadline_ns) == -ETIMEDOUT)
			return 0;
	}
}

static void sim_poller_kick(struct rt_poller *p)
{
	p->kicked = true;
	atomic_fetch_add(&p->changed, 1);
	sim_wake_quietly(&p->changed, INT32_MAX);
}

/* ---- the harness's hands ----------------------------------------------------------------- */

void rt_sim_net_delay(uint64_t min_ns, uint64_t max_ns)
{
	WEFT_ASSERT(min_ns <= max_ns);
	get_net()->delay_min_ns = min_ns;
	get_net()->delay_max_ns = max_ns;
}

void rt_sim_net_flip(uint64_t every_bytes)
{
	get_net()->flip_every = every_bytes;
	get_net()->flip_after = every_bytes ? flip_draw() : 0;
}

uint64_t rt_sim_net_flips(void)
{
	return get_net()->flips;
}

/* Pieces that are held no more start now, in order. */
static void release_held(void)
{
	for (struct rt_socket *s = get_net()->sockets; s; s = s->next) {
		if (s->kind != STREAM || is_held(s->other_node, s->node, s->name))
			continue;
		for (struct piece *p = s->in; p; p = p->next)
			if (!p->arrived && !p->timer.slot)
				piece_start(p);
	}
}

void rt_sim_net_block(unsigned from, unsigned to, bool on)
{
	struct blocked **link = &get_net()->blocked;

	if (is_blocked(from, to) == on)
		return;
	if (on) {
		struct blocked *b = sim_own_alloc(sizeof(*b));

		*b = (struct blocked){from, to, get_net()->blocked};
		get_net()->blocked = b;
		return;
	}
	while ((*link)->from != from || (*link)->to != to)
		link = &(*link)->next;
	{
		struct blocked *gone = *link;

		*link = gone->next;
		free(gone);
	}
	release_held();
}

void rt_sim_net_lose(const char *address, bool on)
{
	struct lost **link = &get_net()->lost, *l;

	if (is_lost(address) == on)
		return;
	if (on) {
		l = sim_own_alloc(sizeof(*l));
		snprintf(l->name, sizeof(l->name), "%s", address);
		l->next = get_net()->lost;
		get_net()->lost = l;
		return;
	}
	while (strcmp((*link)->name, address))
		link = &(*link)->next;
	l = *link;
	*link = l->next;
	free(l);
	release_held();
}

void rt_sim_net_cut(unsigned a, unsigned b)
{
	for (struct rt_socket *s = get_net()->sockets; s; s = s->next) {
		if (s->kind == LISTENING || !s->other)
			continue;
		if ((s->node == a && s->other_node == b) ||
			(s->node == b && s->other_node == a)) {
			socket_reset(s, -ECONNRESET);
			socket_reset(s->other, -ECONNRESET);
			detach_other(s);
		}
	}
}

/* A node's sockets vanish with it. Each other end is told at once or never. */
void sim_sockets_power_cut(unsigned node)
{
	struct rt_socket *s;

	if (!sim->net)
		return;
	for (s = get_net()->sockets; s; s = s->next) {
		if (s->node != node || !s->other)
			continue;
		if (sim_rng_below(&get_net()->rng, 2)) {
			drop_pieces(s->other);
			piece_put(s->other, node, NULL, 0, -ECONNRESET);
		}
		detach_other(s);
	}
	do {
		for (s = get_net()->sockets; s && s->node != node;)
			s = s->next;
		if (s)
			socket_free(s);
	} while (s);
	for (struct rt_poller *p = get_net()->pollers, *next; p; p = next) {
		next = p->next;
		if (p->node == node)
			sim_poller_close(p);
	}
}

void sim_net_free(void)
{
	if (!sim->net)
		return;
	while (get_net()->sockets) {
		detach_other(get_net()->sockets);
		socket_free(get_net()->sockets);
	}
	while (get_net()->pollers)
		sim_poller_close(get_net()->pollers);
	while (get_net()->blocked) {
		struct blocked *b = get_net()->blocked;

		get_net()->blocked = b->next;
		free(b);
	}
	while (get_net()->lost) {
		struct lost *l = get_net()->lost;

		get_net()->lost = l->next;
		free(l);
	}
	free(sim->net);
	sim->net = NULL;
}

const struct rt_socket_ops rt_sim_socket_ops = {
	.resolve = sim_resolve,
	.print = sim_print,
	.listen = sim_listen,
	.name = sim_name,
	.peer_name = sim_peer_name,
	.accept = sim_accept,
	.connect = sim_connect,
	.connected = sim_connected,
	.send = sim_send,
	.recv = sim_recv,
	.shutdown = sim_shutdown,
	.close = sim_close,
	.wait = sim_socket_wait,
	.kick = sim_kick,
	.poller_open = sim_poller_open,
	.poller_close = sim_poller_close,
	.poller_add = sim_poller_add,
	.poller_change = sim_poller_change,
	.poller_remove = sim_poller_remove,
	.poller_wait = sim_poller_wait,
	.poller_kick = sim_poller_kick,
};
