/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft bench net: what is measured, and how. What comes is looked at: a page that was
 * fetched or read is the server's, a word that was swapped is the number of swaps.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/rt/rt.h"
#include "tools/bench_net.h"

#define LARGE   NET_TRANSFER_MAX
#define WORD_AT (BENCH_REGION_BYTES - PAGE_SIZE) /* beyond what is written */

_Static_assert(BENCH_BATCH *BENCH_DEPTH <= BENCH_OPS, "an op for each page");
_Static_assert(BENCH_DEPTH *LARGE < WORD_AT, "room for what is written");

/* ---- counts -------------------------------------------------------------------------- */

struct counts {
	uint64_t client[BENCH_COUNT_KINDS], server[BENCH_COUNT_KINDS];
};

static int take_counts(struct bench_end *e, struct counts *out)
{
	const struct net_message ask = {.type = BENCH_COUNTS};
	struct net_counters c;
	int r = bench_ask(e, &ask);

	memcpy(out->server, e->answer.words, sizeof(out->server));
	net_counters(e->peer, &c);
	out->client[BENCH_REQUESTS] = c.requests;
	out->client[BENCH_CALLS_OUT] = c.calls_out;
	out->client[BENCH_SIGNALLED] = c.signalled;
	out->client[BENCH_COMPLETIONS] = c.completions;
	out->client[BENCH_CALLS_IN] = c.calls_in;
	return r;
}

static void per_operation(
	struct bench_measure *m, const struct counts *before, const struct counts *after)
{
	for (unsigned i = 0; i < BENCH_COUNT_KINDS; i++) {
		m->client[i] = (double)(after->client[i] - before->client[i]) / m->count;
		m->server[i] = (double)(after->server[i] - before->server[i]) / m->count;
	}
}

/* ---- times --------------------------------------------------------------------------- */

static int one_message(struct bench_end *e, unsigned number)
{
	const struct net_message m = {.type = BENCH_PING};

	return bench_ask(e, &m);
}

static int one_page(struct bench_end *e, unsigned number)
{
	struct net_message m = {.type = BENCH_PAGE};

	m.words[0] = (uint64_t)(number % 1024) * PAGE_SIZE;
	return bench_ask(e, &m);
}

static int one_op(struct bench_end *e, struct net_op op)
{
	e->ops[0] = op;
	return net_post(e->peer, &e->ops[0], 0) ?: net_op_wait(e->peer, &e->ops[0]);
}

static int one_read(struct bench_end *e, unsigned number)
{
	return one_op(e, (struct net_op){.kind = NET_READ,
				 .offset = (uint64_t)(number % 1024) * PAGE_SIZE,
				 .local = e->memory + WORD_AT,
				 .length = PAGE_SIZE});
}

/* The word's first value is the server's pattern. */
static int one_swap(struct bench_end *e, unsigned number)
{
	uint64_t first;
	int r;

	memset(&first, 1, sizeof(first));
	r = one_op(e, (struct net_op){.kind = NET_CAS,
			      .offset = WORD_AT,
			      .compare = first + number,
			      .operand = first + number + 1});
	return r ? r : e->ops[0].value == first + number ? 0 : -EUCLEAN;
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void summarise(struct bench_measure *m, uint64_t *ns)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < m->count; i++)
		sum += ns[i];
	qsort(ns, m->count, sizeof(*ns), by_size);
	m->p50_ns = ns[m->count / 2];
	m->p99_ns = ns[(uint64_t)m->count * 99 / 100];
	m->mean_ns = sum / m->count;
	m->per_second = 1e9 / (double)MAX(m->mean_ns, 1u);
}

/* A tenth more is done first, and not counted. */
static int measure_times(struct bench_end *e, struct bench_measure *m,
	int (*one)(struct bench_end *e, unsigned number))
{
	uint64_t *ns = rt_alloc(e->how->count * sizeof(*ns));
	struct counts before, after;
	unsigned n = 0;
	int r = ns ? 0 : -ENOMEM;

	m->count = e->how->count;
	for (; n < m->count / 10 + 1 && !r; n++)
		r = one(e, n);
	if (!r)
		r = take_counts(e, &before);
	for (unsigned i = 0; i < m->count && !r; i++) {
		uint64_t began = rt_now_ns();

		r = one(e, n + i);
		ns[i] = rt_now_ns() - began;
	}
	if (!r)
		r = take_counts(e, &after);
	if (!r) {
		summarise(m, ns);
		per_operation(m, &before, &after);
	}
	rt_free(ns);
	return r;
}

/* ---- rates --------------------------------------------------------------------------- */

/* The last one has a message behind it, which is answered. */
static int post_batch(struct bench_end *e, struct net_op *ops, unsigned count,
	uint64_t at, uint32_t bytes)
{
	int r = 0;

	for (unsigned i = 0; i < count && !r; i++) {
		bool last = i + 1 == count;

		ops[i] = (struct net_op){.kind = NET_WRITE,
			.offset = at + (uint64_t)i * bytes,
			.local = e->memory + at + (uint64_t)i * bytes,
			.length = bytes,
			.message = {.type = last ? BENCH_PING : 0}};
		do
			r = net_post(e->peer, &ops[i], last ? 0 : NET_MORE);
		while (r == -EAGAIN && !net_wait_room(e->peer, RT_FOREVER));
		if (r)
			atomic_store(&ops[i].state, NET_OP_DONE);
	}
	return r;
}

static int write_batches(
	struct bench_end *e, unsigned batches, unsigned batch, uint32_t bytes)
{
	uint32_t before = atomic_load(&e->answers);
	int r = 0;

	for (unsigned b = 0; b < batches && !r; b++) {
		unsigned place = b % BENCH_DEPTH;
		struct net_op *ops = &e->ops[place * batch];

		if (b >= BENCH_DEPTH)
			r = bench_await_answers(e, before + b - BENCH_DEPTH + 1);
		for (unsigned i = 0; i < batch && !r; i++)
			r = net_op_wait(e->peer, &ops[i]);
		if (!r)
			r = post_batch(
				e, ops, batch, (uint64_t)place * batch * bytes, bytes);
	}
	return r ? r : bench_await_answers(e, before + batches);
}

static int measure_writes(
	struct bench_end *e, struct bench_measure *m, unsigned batch, uint32_t bytes)
{
	unsigned batches =
		MAX(e->how->count / (bytes == LARGE ? 20 : 2), 2 * BENCH_DEPTH);
	struct counts before, after;
	uint64_t began, ns;
	int r = write_batches(e, BENCH_DEPTH, batch, bytes);

	m->count = batches * batch;
	if (!r)
		r = take_counts(e, &before);
	began = rt_now_ns();
	if (!r)
		r = write_batches(e, batches, batch, bytes);
	ns = MAX(rt_now_ns() - began, 1u);
	if (!r)
		r = take_counts(e, &after);
	if (r)
		return r;
	per_operation(m, &before, &after);
	m->per_second = (double)m->count * 1e9 / (double)ns;
	m->bytes_per_second = m->per_second * bytes;
	return 0;
}

/* ---- all of them --------------------------------------------------------------------- */

/* A page of ours is filled with the one number of the end that it comes from. */
static bool is_page_of(const uint8_t *page, uint8_t end)
{
	for (unsigned i = 0; i < PAGE_SIZE; i++)
		if (page[i] != end)
			return false;
	return true;
}

/* What was fetched and read came from the server; what was written went there. */
static int look_at_pages(struct bench_end *e, uint8_t expected)
{
	int r = one_read(e, 0);

	if (r)
		return r;
	return is_page_of(e->memory + WORD_AT, expected) ? 0 : -EUCLEAN;
}

static const struct {
	const char *name, *what;
} measures[BENCH_KINDS] = {
	[BENCH_MESSAGE] = {"message", "message of 64 bytes, there and back"},
	[BENCH_FETCH] = {"fetch", "page of 4 KiB, asked for and written here"},
	[BENCH_READ] = {"read", "page of 4 KiB, read (one-sided)"},
	[BENCH_CAS] = {"cas", "compare-and-swap (one-sided)"},
	[BENCH_WRITE_PAGES] = {"write_pages", "pages of 4 KiB, written 32 at once"},
	[BENCH_WRITE_LARGE] = {"write_large", "1 MiB, written"},
};

int bench_measure_all(struct bench_end *e, struct bench_measure m[BENCH_KINDS])
{
	int r;

	for (unsigned i = 0; i < BENCH_KINDS; i++)
		m[i] = (struct bench_measure){.name = measures[i].name,
			.what = measures[i].what,
			.rate = i >= BENCH_WRITE_PAGES};
	r = measure_times(e, &m[BENCH_MESSAGE], one_message);
	if (!r)
		r = measure_times(e, &m[BENCH_READ], one_read);
	if (!r)
		r = look_at_pages(e, 1);
	if (!r) {
		m[BENCH_CAS].error = measure_times(e, &m[BENCH_CAS], one_swap);
		r = m[BENCH_CAS].error == -EOPNOTSUPP ? 0 : m[BENCH_CAS].error;
	}
	if (!r)
		r = measure_writes(e, &m[BENCH_WRITE_PAGES], BENCH_BATCH, PAGE_SIZE);
	if (!r)
		r = measure_writes(e, &m[BENCH_WRITE_LARGE], 1, LARGE);
	if (!r)
		r = look_at_pages(e, 2);
	/* what is fetched comes back: the server was written to */
	if (!r)
		memset(e->memory, 0, PAGE_SIZE);
	if (!r)
		r = measure_times(e, &m[BENCH_FETCH], one_page);
	if (!r)
		r = one_page(e, 0);
	return r ? r : is_page_of(e->memory, 2) ? 0 : -EUCLEAN;
}
