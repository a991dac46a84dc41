/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two ways for a message of 64 bytes to reach a node over RDMA (docs/benchmarks.md, "SEND or
 * mailboxes"), in plain verbs, without weft: SEND into posted receives, found by looking at a
 * completion queue for each peer; and WRITE into a mailbox, found by looking at its last word
 * (ScaleStore §3.5). Each question is answered the same way. Both are inline and signalled
 * every 64th time; a mailbox is a ring of as many places as questions may be under way.
 *
 *     ways_bench ADDRESS [ROUNDS [LOOKS]]
 *
 * ADDRESS is one of an RDMA device's of this machine; who has looked LOOKS times in vain lets
 * others run, of which Soft-RoCE's device is one.
 *
 * Rounds take turns, so that a machine that is slow for a while is so for all; what is
 * printed are medians. Both ends are here, each a thread that looks without a pause, or
 * (the last) one that sleeps until there is something, which a mailbox does not allow.
 */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <sched.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define PEERS      8u
#define DEPTH      16u /* questions under way to a peer, at most */
#define BYTES      64u
#define QUEUE      256u
#define SIGNAL     64u
#define PORT       "9477"
#define ROUND      1500u
#define ROUNDS_MAX 99u

enum way { SEND, MAILBOX, ASLEEP, WAYS };

static const char *const way_names[WAYS] = {"send", "mailbox", "send, asleep"};

/* What there is to count, of both ends. */
struct counts {
	_Atomic uint64_t requests, completions, receives, looks;
};

/* One end of a connection. */
struct end {
	struct rdma_cm_id *id;
	struct ibv_cq *cq;
	struct ibv_mr *key;
	uint8_t in[2 * DEPTH][BYTES]
		__attribute__((aligned(64))); /* receives, or mailboxes */
	uint8_t out[DEPTH][BYTES] __attribute__((aligned(64)));
	struct {
		uint64_t at;
		uint32_t key;
	} theirs;
	uint64_t sent, got, posted;
};

/* Who asks, or who answers: one connection to each of the other's. */
struct side {
	struct ibv_comp_channel *channel;
	struct end end[PEERS];
};

static struct side asker, answerer;
static struct counts counts;
static _Atomic bool over;
static enum way way;
static unsigned peers;    /* that are looked at */
static unsigned patience; /* LOOKS */

static void ok(bool true_, const char *what)
{
	if (true_)
		return;
	fprintf(stderr, "ways_bench: %s: %s\n", what, strerror(errno));
	exit(1);
}
#define OK(expr) ok(expr, #expr)

static void count(_Atomic uint64_t *of, uint64_t n)
{
	atomic_fetch_add_explicit(of, n, memory_order_relaxed);
}

static double now(clockid_t clock)
{
	struct timespec t;

	clock_gettime(clock, &t);
	return (double)t.tv_sec + (double)t.tv_nsec * 1e-9;
}

/* ---- connecting --------------------------------------------------------------------------- */

static void receive_post(struct end *e, uint64_t slot)
{
	struct ibv_sge sge = {
		.addr = (uintptr_t)e->in[slot], .length = BYTES, .lkey = e->key->lkey};
	struct ibv_recv_wr *bad, wr = {.wr_id = slot, .sg_list = &sge, .num_sge = 1};

	OK(ibv_post_recv(e->id->qp, &wr, &bad) == 0);
	count(&counts.receives, 1);
}

static void end_make(struct side *side, struct end *e, struct rdma_cm_id *id)
{
	struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = QUEUE,
			.max_recv_wr = 2 * DEPTH,
			.max_send_sge = 1,
			.max_recv_sge = 1,
			.max_inline_data = BYTES}};

	e->id = id;
	if (!side->channel)
		OK((side->channel = ibv_create_comp_channel(id->verbs)) != NULL);
	e->cq = ibv_create_cq(id->verbs, QUEUE + 2 * DEPTH, NULL, side->channel, 0);
	OK(e->cq != NULL);
	attr.send_cq = attr.recv_cq = e->cq;
	OK(rdma_create_qp(id, NULL, &attr) == 0);
	OK((e->key = ibv_reg_mr(id->pd, e->in, sizeof(e->in),
		    IBV_ACCESS_LOCAL_WRITE | IBV_ACCESS_REMOTE_WRITE)) != NULL);
	for (uint64_t i = 0; i < 2 * DEPTH; i++)
		receive_post(e, i);
}

static struct rdma_addrinfo *resolve(const char *address, bool listen)
{
	struct rdma_addrinfo hints = {
		.ai_port_space = RDMA_PS_TCP, .ai_flags = listen ? RAI_PASSIVE : 0};
	struct rdma_addrinfo *found;

	OK(rdma_getaddrinfo(address, PORT, &hints, &found) == 0);
	return found;
}

static void *accept_all(void *listener)
{
	for (unsigned i = 0; i < PEERS; i++) {
		struct rdma_conn_param param = {.rnr_retry_count = 7, .retry_count = 7};
		struct rdma_cm_id *id;

		OK(rdma_get_request(listener, &id) == 0);
		end_make(&answerer, &answerer.end[i], id);
		OK(rdma_accept(id, &param) == 0);
	}
	return NULL;
}

static void tell_keys(struct end *a, const struct end *b)
{
	a->theirs.at = (uintptr_t)b->in;
	a->theirs.key = b->key->rkey;
}

static void connect_all(const char *address)
{
	struct rdma_addrinfo *at = resolve(address, true), *to = resolve(address, false);
	struct rdma_conn_param param = {.rnr_retry_count = 7, .retry_count = 7};
	struct rdma_cm_id *listener;
	pthread_t thread;

	OK(rdma_create_ep(&listener, at, NULL, NULL) == 0);
	OK(rdma_listen(listener, PEERS) == 0);
	OK(pthread_create(&thread, NULL, accept_all, listener) == 0);
	for (unsigned i = 0; i < PEERS; i++) {
		struct rdma_cm_id *id;

		OK(rdma_create_ep(&id, to, NULL, NULL) == 0);
		end_make(&asker, &asker.end[i], id);
		OK(rdma_connect(id, &param) == 0);
	}
	OK(pthread_join(thread, NULL) == 0);
	for (unsigned i = 0; i < PEERS; i++) {
		tell_keys(&asker.end[i], &answerer.end[i]);
		tell_keys(&answerer.end[i], &asker.end[i]);
	}
}

/* ---- messages ------------------------------------------------------------------------------- */

/* The last word says which it is; nothing else is in it that matters. */
static void say(struct end *e)
{
	uint64_t n = ++e->sent, slot = n % DEPTH;
	struct ibv_sge sge = {.addr = (uintptr_t)e->out[slot], .length = BYTES};
	struct ibv_send_wr *bad, wr = {.sg_list = &sge,
					 .num_sge = 1,
					 .send_flags = IBV_SEND_INLINE,
					 .wr_id = UINT64_MAX};

	memcpy(e->out[slot] + BYTES - sizeof(n), &n, sizeof(n));
	if (++e->posted % SIGNAL == 0)
		wr.send_flags |= IBV_SEND_SIGNALED;
	if (way == MAILBOX) {
		wr.opcode = IBV_WR_RDMA_WRITE;
		wr.wr.rdma.remote_addr = e->theirs.at + slot * BYTES;
		wr.wr.rdma.rkey = e->theirs.key;
	} else {
		wr.opcode = IBV_WR_SEND;
	}
	OK(ibv_post_send(e->id->qp, &wr, &bad) == 0);
	count(&counts.requests, 1);
}

/* How many completions were messages. */
static unsigned look_at_queue(struct end *e)
{
	struct ibv_wc wc[DEPTH];
	int n = ibv_poll_cq(e->cq, DEPTH, wc);
	unsigned found = 0;

	OK(n >= 0);
	count(&counts.completions, (uint64_t)n);
	for (int i = 0; i < n; i++) {
		if (wc[i].status != IBV_WC_SUCCESS) {
			fprintf(stderr, "ways_bench: %s\n",
				ibv_wc_status_str(wc[i].status));
			exit(1);
		}
		if (wc[i].opcode != IBV_WC_RECV)
			continue;
		receive_post(e, wc[i].wr_id);
		found++;
	}
	return found;
}

static unsigned look_at_mailbox(struct end *e)
{
	unsigned found = 0;

	for (; found < DEPTH; found++) {
		uint64_t next = e->got + found + 1;
		_Atomic uint64_t *word =
			(_Atomic uint64_t *)(e->in[next % DEPTH] + BYTES - 8);

		if (atomic_load_explicit(word, memory_order_acquire) != next)
			break;
	}
	/* what says that requests have ended, once in a while */
	if (found && (e->posted - found) / SIGNAL != e->posted / SIGNAL)
		look_at_queue(e);
	return found;
}

static unsigned look(struct end *e)
{
	unsigned found = way == MAILBOX ? look_at_mailbox(e) : look_at_queue(e);

	count(&counts.looks, 1);
	e->got += found;
	return found;
}

/* ---- the two ends ---------------------------------------------------------------------------- */

/* Of all that are looked at, by one of the two ends. */
static unsigned look_at_all(
	struct side *side, void (*then)(struct end *e, unsigned found))
{
	unsigned found = 0;

	for (unsigned i = 0; i < peers; i++) {
		unsigned n = look(&side->end[i]);

		if (n)
			then(&side->end[i], n);
		found += n;
	}
	return found;
}

static void answer(struct end *e, unsigned found)
{
	while (found--)
		say(e);
}

static void answered(struct end *e, unsigned found)
{
}

static void take_events(struct side *side)
{
	struct pollfd fd = {side->channel->fd, POLLIN, 0};
	struct ibv_cq *cq;
	void *context;

	if (poll(&fd, 1, 50) <= 0)
		return;
	OK(ibv_get_cq_event(side->channel, &cq, &context) == 0);
	ibv_ack_cq_events(cq, 1);
}

/* Nothing was found. */
static void wait_a_bit(
	struct side *side, unsigned *looks, void (*then)(struct end *e, unsigned found))
{
	if (way != ASLEEP) {
		if (++*looks % patience == 0)
			sched_yield();
		return;
	}
	for (unsigned i = 0; i < peers; i++)
		OK(ibv_req_notify_cq(side->end[i].cq, 0) == 0);
	if (!look_at_all(side, then))
		take_events(side);
}

static void *serve(void *none)
{
	unsigned looks = 0;

	while (!atomic_load_explicit(&over, memory_order_relaxed))
		if (!look_at_all(&answerer, answer))
			wait_a_bit(&answerer, &looks, answer);
	return NULL;
}

/* `each` questions to each of the first `active`, `depth` of them under way. */
static void ask(unsigned active, unsigned depth, uint64_t each)
{
	uint64_t until[PEERS];
	unsigned looks = 0, left = active;

	for (unsigned i = 0; i < active; i++)
		until[i] = asker.end[i].sent + each;
	while (left) {
		left = 0;
		for (unsigned i = 0; i < active; i++) {
			struct end *e = &asker.end[i];

			while (e->sent < until[i] && e->sent - e->got < depth)
				say(e);
			left += e->got < until[i];
		}
		if (left && !look_at_all(&asker, answered))
			wait_a_bit(&asker, &looks, answered);
	}
}

/* ---- measuring --------------------------------------------------------------------------------- */

struct result {
	double us, cpu_us; /* of a question and its answer; processor time of both ends */
	double requests, completions, receives, looks;
};

static struct result round_of(
	enum way w, unsigned count_peers, unsigned active, unsigned depth)
{
	uint64_t each = ROUND / active, all = each * active;
	double wall, cpu, messages = 2.0 * (double)all;
	pthread_t thread;

	way = w;
	peers = count_peers;
	atomic_store(&over, false);
	OK(pthread_create(&thread, NULL, serve, NULL) == 0);
	ask(active, depth, 4); /* both are awake */
	memset(&counts, 0, sizeof(counts));
	wall = now(CLOCK_MONOTONIC);
	cpu = now(CLOCK_PROCESS_CPUTIME_ID);
	ask(active, depth, each);
	wall = now(CLOCK_MONOTONIC) - wall;
	cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	atomic_store(&over, true);
	OK(pthread_join(thread, NULL) == 0);
	return (struct result){
		.us = wall / (double)all * 1e6,
		.cpu_us = cpu / (double)all * 1e6,
		.requests = (double)counts.requests / messages,
		.completions = (double)counts.completions / messages,
		.receives = (double)counts.receives / messages,
		.looks = (double)counts.looks / messages,
	};
}

/* Processor time of who waits for questions that do not come, by wall time. */
static double idle_of(enum way w)
{
	double wall = now(CLOCK_MONOTONIC), cpu;
	pthread_t thread;

	way = w;
	peers = PEERS;
	atomic_store(&over, false);
	cpu = now(CLOCK_PROCESS_CPUTIME_ID);
	OK(pthread_create(&thread, NULL, serve, NULL) == 0);
	nanosleep(&(struct timespec){.tv_sec = 1}, NULL);
	atomic_store(&over, true);
	OK(pthread_join(thread, NULL) == 0);
	cpu = now(CLOCK_PROCESS_CPUTIME_ID) - cpu;
	return cpu / (now(CLOCK_MONOTONIC) - wall);
}

static int by_value(const void *a, const void *b)
{
	double x = *(const double *)a, y = *(const double *)b;

	return (x > y) - (x < y);
}

/* Of one number of all rounds. */
static double median(const struct result *r, unsigned rounds, size_t offset)
{
	double v[ROUNDS_MAX];

	for (unsigned i = 0; i < rounds; i++)
		memcpy(&v[i], (const uint8_t *)&r[i] + offset, sizeof(v[i]));
	qsort(v, rounds, sizeof(v[0]), by_value);
	return v[rounds / 2];
}
#define MEDIAN(r, rounds, of) median(r, rounds, offsetof(struct result, of))

static const struct {
	unsigned peers, active, depth;
	const char *what;
} cases[] = {
	{1, 1, 1, "one at a time, 1 peer"},
	{PEERS, 1, 1, "one at a time, 8 peers, 1 of them asks"},
	{PEERS, PEERS, 1, "8 peers ask, each one at a time"},
	{PEERS, PEERS, DEPTH, "8 peers ask, each 16 at a time"},
};

int main(int argc, char **argv)
{
	unsigned rounds = argc > 2 ? (unsigned)atoi(argv[2]) : 9;
	static struct result r[WAYS][ROUNDS_MAX];

	patience = argc > 3 ? (unsigned)atoi(argv[3]) : 16;
	if (argc < 2 || rounds < 1 || rounds > ROUNDS_MAX || patience < 1) {
		fprintf(stderr,
			"ways_bench ADDRESS [ROUNDS [LOOKS]]: an RDMA device's; 1 to %u; "
			"1 or more\n",
			ROUNDS_MAX);
		return 2;
	}
	connect_all(argv[1]);
	for (unsigned c = 0; c < sizeof(cases) / sizeof(cases[0]); c++) {
		for (unsigned i = 0; i < rounds; i++)
			for (unsigned w = 0; w < WAYS; w++)
				r[w][i] = round_of((enum way)w, cases[c].peers,
					cases[c].active, cases[c].depth);
		printf("%s\n", cases[c].what);
		for (unsigned w = 0; w < WAYS; w++)
			printf("  %-13s %8.1f us  ratio %.2f  cpu %8.1f us  a message: "
			       "%.2f requests %.2f completions %.2f receives %.1f "
			       "looks\n",
				way_names[w], MEDIAN(r[w], rounds, us),
				MEDIAN(r[w], rounds, us) / MEDIAN(r[MAILBOX], rounds, us),
				MEDIAN(r[w], rounds, cpu_us),
				MEDIAN(r[w], rounds, requests),
				MEDIAN(r[w], rounds, completions),
				MEDIAN(r[w], rounds, receives),
				MEDIAN(r[w], rounds, looks));
	}
	printf("nothing asked, 8 peers: of a processor\n");
	for (unsigned w = 0; w < WAYS; w++)
		printf("  %-13s %.2f\n", way_names[w], idle_of((enum way)w));
	return 0;
}
