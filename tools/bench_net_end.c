/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft bench net: either end. The server answers in its handlers, as a home does. Only for programs
 * of perftest it uses its task. It serves one client and then ends: an endpoint knows the starts of
 * its clients, and the next client may have another clock.
 */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "engine/rt/rt.h"
#include "tools/bench_net.h"

#define SERVER       1u
#define CLIENT       2u
#define ANSWER_NS    60000000000ull /* after this time a server counts as ended */
#define FIRST_NS     5000000000ull  /* of the first attempt to connect */
#define BENCH_REGION 0u

/* So that a weftd does not take it for a node, nor the other way round. */
static const uint8_t bench_uuid[NET_UUID_BYTES] = "weft bench net";

/* ---- handlers ------------------------------------------------------------------------ */

static void note_change(struct bench_end *e)
{
	atomic_fetch_add(&e->changes, 1);
	net_wake(e->net, &e->changes, 1);
}

/* Answers. A client with too many requests is cut, because there is no queue of answers. */
static void send_answer(struct bench_end *e, const struct net_message *m)
{
	if (net_send(e->peer, m, NET_URGENT) == -EAGAIN)
		net_cut(e->peer, -ENOBUFS);
}

static void say_counts(struct bench_end *e)
{
	struct net_message m = {.type = BENCH_ANSWER};
	struct net_counters c;

	net_counters(e->peer, &c);
	m.words[BENCH_REQUESTS] = c.requests;
	m.words[BENCH_CALLS_OUT] = c.calls_out;
	m.words[BENCH_SIGNALLED] = c.signalled;
	m.words[BENCH_COMPLETIONS] = c.completions;
	m.words[BENCH_CALLS_IN] = c.calls_in;
	send_answer(e, &m);
}

/* An op may still be under way when the thread has its result. The next op is used then. */
static struct net_op *free_op(struct bench_end *e)
{
	for (unsigned i = 0; i < BENCH_OPS; i++) {
		struct net_op *op = &e->ops[e->next_op++ % BENCH_OPS];

		if (atomic_load(&op->state) == NET_OP_DONE)
			return op;
	}
	return NULL;
}

static void write_page(struct bench_end *e, uint64_t at)
{
	struct net_op *op = free_op(e);

	if (!op || at > BENCH_REGION_BYTES - PAGE_SIZE) {
		net_cut(e->peer, -EPROTO);
		return;
	}
	*op = (struct net_op){.kind = NET_WRITE,
		.region = BENCH_REGION,
		.offset = at,
		.local = e->memory + at / PAGE_SIZE * PAGE_SIZE,
		.length = PAGE_SIZE,
		.message = {.type = BENCH_ANSWER}};
	if (net_post(e->peer, op, NET_URGENT)) {
		atomic_store(&op->state, NET_OP_DONE);
		net_cut(e->peer, -ENOBUFS);
	}
}

static void on_message(void *owner, struct net_peer *peer, const struct net_message *m)
{
	static const struct net_message answer = {.type = BENCH_ANSWER};
	struct bench_end *e = owner;

	switch (m->type) {
	case BENCH_PING:
		send_answer(e, &answer);
		break;
	case BENCH_PAGE:
		write_page(e, m->words[0]);
		break;
	case BENCH_COUNTS:
		say_counts(e);
		break;
	case BENCH_PERFTEST:
	case BENCH_STOP:
		if (atomic_load(&e->job)) { /* one at a time */
			net_cut(peer, -EPROTO);
			break;
		}
		memcpy(e->job_words, m->words, sizeof(e->job_words));
		atomic_store(&e->job, m->type);
		note_change(e);
		break;
	case BENCH_ANSWER:
		e->answer = *m;
		atomic_fetch_add(&e->answers, 1);
		note_change(e);
		break;
	default:
		net_cut(peer, -EPROTO);
	}
}

static void on_event(void *owner, struct net_peer *peer, const struct net_event *event)
{
	struct bench_end *e = owner;
	const char *why = strstr(event->text, "): ");

	if (!why && event->kind == NET_LINK_REFUSED) /* a listener knows no address */
		why = strstr(event->text, ": ") ? strstr(event->text, ": ") - 1 : NULL;
	if (event->kind == NET_LINK_UP) {
		atomic_store(&e->up, true);
	} else {
		e->refused = event->code;
		snprintf(e->why, sizeof(e->why), "%s", why ? why + 3 : event->text);
		if (event->kind == NET_LINK_DOWN)
			atomic_store(&e->down, true);
	}
	note_change(e);
}

/* ---- ends ---------------------------------------------------------------------------- */

int bench_end_open(struct bench_end *e, const struct bench_how *how, bool listens,
	struct weft_error *err)
{
	struct net_options o = {
		.transport = how->transport,
		.self = {.incarnation = (uint64_t)rt_wall_ns(),
			.node = listens ? SERVER : CLIENT,
			.role = NET_ROLE_CLIENT},
		.listen = listens ? how->address : NULL,
		.tls = how->tls,
		.handlers = {e, on_message, on_event},
	};
	struct net_peer_options p = {.node = listens ? CLIENT : SERVER,
		.address = listens ? NULL : how->address};
	void *base;
	int rc;

	*e = (struct bench_end){.how = how};
	for (unsigned i = 0; i < BENCH_OPS; i++)
		atomic_store(&e->ops[i].state, NET_OP_DONE);
	memcpy(o.key, how->key, sizeof(o.key));
	memcpy(o.self.cluster_uuid, bench_uuid, sizeof(bench_uuid));
	rt_random_bytes(o.self.node_uuid, sizeof(o.self.node_uuid));
	rc = net_open(&e->net, &o, err);
	explicit_bzero(o.key, sizeof(o.key));
	if (rc)
		return rc;
	rc = net_region_create(e->net, BENCH_REGION, BENCH_REGION_BYTES,
		NET_REMOTE_READ | NET_REMOTE_WRITE | NET_REMOTE_ATOMIC, &base);
	if (rc)
		return weft_error(err, rc, "no memory to be measured with");
	e->memory = base;
	memset(e->memory, listens ? SERVER : CLIENT, BENCH_REGION_BYTES);
	rc = net_peer_add(&e->peer, e->net, &p, err);
	return rc ? rc : net_start(e->net, err);
}

void bench_end_close(struct bench_end *e)
{
	bench_perftest_stop(e);
	if (e->net)
		net_close(e->net);
	e->net = NULL;
}

void bench_await(struct bench_end *e, uint32_t seen, uint64_t deadline_ns)
{
	net_wait(e->net, e->peer, &e->changes, seen, deadline_ns);
}

/* ---- the server ---------------------------------------------------------------------- */

static void do_job(struct bench_end *e)
{
	struct net_message answer = {.type = BENCH_ANSWER};
	uint32_t job = atomic_load(&e->job);

	bench_perftest_stop(e);
	if (job == BENCH_PERFTEST)
		answer.words[0] = (uint64_t)bench_perftest_serve(e, e->job_words);
	atomic_store(&e->job, 0);
	net_send(e->peer, &answer, 0);
}

static void serve_to_end(struct bench_end *e)
{
	uint32_t seen;

	while (seen = atomic_load(&e->changes), !atomic_load(&e->down)) {
		if (atomic_load(&e->job))
			do_job(e);
		else
			bench_await(e, seen, RT_FOREVER);
	}
}

/* Waits for the client. Reports strangers, and goes on waiting. */
static void await_client(struct bench_end *e)
{
	int told = 0;
	uint32_t seen;

	while (seen = atomic_load(&e->changes), !atomic_load(&e->up)) {
		if (e->refused && e->refused != told)
			fprintf(stderr,
				"weft bench net: a connection is refused: %s\n",
				e->why);
		told = e->refused;
		bench_await(e, seen, RT_FOREVER);
	}
}

int bench_serve_one(const struct bench_how *how, int tell, struct weft_error *err)
{
	struct bench_end *e = rt_alloc(sizeof(*e));
	char address[NET_ADDRESS_BYTES];
	int rc;

	if (!e)
		return weft_error(err, -ENOMEM, "no memory");
	rc = bench_end_open(e, how, true, err);
	if (!rc) {
		net_address(e->net, address);
		if (tell < 0)
			fprintf(stderr, "weft bench net: %s, listening at %s\n",
				how->transport, address);
		else
			rc = write(tell, address, sizeof(address)) == sizeof(address)
				    ? 0
				    : -EPIPE;
	}
	if (!rc) {
		await_client(e);
		serve_to_end(e);
	}
	bench_end_close(e);
	rt_free(e);
	return rc;
}

/* ---- the client ---------------------------------------------------------------------- */

/* Returns true for errors that a further try would not change. */
static bool is_final(int code)
{
	return code == -EKEYREJECTED || code == -EXDEV || code == -EPROTOTYPE ||
	       code == -EPROTONOSUPPORT || code == -ETIME || code == -EPROTO ||
	       code == -ENODEV;
}

static int say_refused(const struct bench_end *e, struct weft_error *err)
{
	const char *at = e->how->address;
	int code = e->refused;

	/* Over RDMA it may be refused for other reasons, which it has sent. */
	if (code == -ECONNREFUSED && strcmp(e->why, strerrordesc_np(ECONNREFUSED)) != 0)
		code = -EIO;
	switch (code) {
	case 0:
		return weft_error(err, -ETIMEDOUT, "%s does not answer", at);
	case -ENOENT:
	case -ECONNREFUSED:
		return weft_error(err, e->refused,
			"no program listens at %s; start `weft bench net --listen` "
			"there",
			at);
	case -EXDEV:
	case -EPROTO:
		return weft_error(err, e->refused,
			"another program than `weft bench net --listen` listens at %s", at);
	case -EPROTOTYPE:
		return weft_error(err, e->refused,
			"%s measures another transport, or TLS on one end only: say the "
			"same --transport and cluster file on both",
			at);
	case -EADDRINUSE:
		return weft_error(
			err, e->refused, "%s serves another client: one at a time", at);
	case -EKEYREJECTED:
		return weft_error(err, e->refused,
			"%s has another key: name the same cluster file on both", at);
	default:
		return weft_error(
			err, e->refused, "cannot connect with %s: %s", at, e->why);
	}
}

int bench_connect(struct bench_end *e, struct weft_error *err)
{
	uint64_t began = rt_now_ns();
	uint64_t until = began + e->how->wait_s * 1000000000ull;
	uint64_t first = MAX(until, began + FIRST_NS); /* one try is made in any case */
	uint32_t seen;

	while (seen = atomic_load(&e->changes),
		!atomic_load(&e->up) && !is_final(e->refused) &&
			rt_now_ns() < (e->refused ? until : first))
		bench_await(e, seen, e->refused ? until : first);
	return atomic_load(&e->up) ? 0 : say_refused(e, err);
}

int bench_await_answers(struct bench_end *e, uint32_t wanted)
{
	uint64_t until = 0;
	uint32_t seen;

	while (seen = atomic_load(&e->changes),
		(int32_t)(atomic_load(&e->answers) - wanted) < 0) {
		uint64_t now = rt_now_ns();

		until = until ? until : now + ANSWER_NS;
		if (atomic_load(&e->down))
			return -ECONNRESET;
		if (now >= until)
			return -ETIMEDOUT;
		bench_await(e, seen, until);
	}
	return 0;
}

int bench_ask(struct bench_end *e, const struct net_message *m)
{
	uint32_t wanted = atomic_load(&e->answers) + 1;
	int rc = net_send(e->peer, m, 0);

	return rc ? rc : bench_await_answers(e, wanted);
}
