/* SPDX-License-Identifier: Apache-2.0 */
/* weft bench net: the measurements. They check the received data. A page that was fetched or read
 * must be the server's. A word that was swapped must be the number of swaps. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/rt/rt.h"
#include "tools/bench_net.h"

#define LARGE   NET_TRANSFER_MAX
#define WORD_AT (BENCH_REGION_BYTES - PAGE_SIZE) /* behind the bytes that are written */

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
	int rc = bench_ask(e, &ask);

	memcpy(out->server, e->answer.words, sizeof(out->server));
	net_counters(e->peer, &c);
	out->client[BENCH_REQUESTS] = c.requests;
	out->client[BENCH_CALLS_OUT] = c.calls_out;
	out->client[BENCH_SIGNALLED] = c.signalled;
	out->client[BENCH_COMPLETIONS] = c.completions;
	out->client[BENCH_CALLS_IN] = c.calls_in;
	return rc;
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
	int rc;

	memset(&first, 1, sizeof(first));
	rc = one_op(e, (struct net_op){.kind = NET_CAS,
			      .offset = WORD_AT,
			      .compare = first + number,
			      .operand = first + number + 1});
	return rc ? rc : e->ops[0].value == first + number ? 0 : -EUCLEAN;
}

static int by_size(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void summarise_times(struct bench_measure *m, uint64_t *ns)
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

/* Measures times. A tenth more operations come first, and are not counted. */
static int measure_times(struct bench_end *e, struct bench_measure *m,
	int (*one)(struct bench_end *e, unsigned number))
{
	uint64_t *ns = rt_alloc(e->how->count * sizeof(*ns));
	struct counts before, after;
	unsigned n = 0;
	int rc = ns ? 0 : -ENOMEM;

	m->count = e->how->count;
	for (; n < m->count / 10 + 1 && !rc; n++)
		rc = one(e, n);
	if (!rc)
		rc = take_counts(e, &before);
	for (unsigned i = 0; i < m->count && !rc; i++) {
		uint64_t began = rt_now_ns();

		rc = one(e, n + i);
		ns[i] = rt_now_ns() - began;
	}
	if (!rc)
		rc = take_counts(e, &after);
	if (!rc) {
		summarise_times(m, ns);
		per_operation(m, &before, &after);
	}
	rt_free(ns);
	return rc;
}

/* ---- rates --------------------------------------------------------------------------- */

/* A message follows the last one, and is answered. */
static int post_batch(struct bench_end *e, struct net_op *ops, unsigned count,
	uint64_t at, uint32_t bytes)
{
	int rc = 0;

	for (unsigned i = 0; i < count && !rc; i++) {
		bool last = i + 1 == count;

		ops[i] = (struct net_op){.kind = NET_WRITE,
			.offset = at + (uint64_t)i * bytes,
			.local = e->memory + at + (uint64_t)i * bytes,
			.length = bytes,
			.message = {.type = last ? BENCH_PING : 0}};
		do
			rc = net_post(e->peer, &ops[i], last ? 0 : NET_MORE);
		while (rc == -EAGAIN && !net_wait_room(e->peer, RT_FOREVER));
		if (rc)
			atomic_store(&ops[i].state, NET_OP_DONE);
	}
	return rc;
}

static int write_batches(
	struct bench_end *e, unsigned batches, unsigned batch, uint32_t bytes)
{
	uint32_t before = atomic_load(&e->answers);
	int rc = 0;

	for (unsigned b = 0; b < batches && !rc; b++) {
		unsigned place = b % BENCH_DEPTH;
		struct net_op *ops = &e->ops[place * batch];

		if (b >= BENCH_DEPTH)
			rc = bench_await_answers(e, before + b - BENCH_DEPTH + 1);
		for (unsigned i = 0; i < batch && !rc; i++)
			rc = net_op_wait(e->peer, &ops[i]);
		if (!rc)
			rc = post_batch(
				e, ops, batch, (uint64_t)place * batch * bytes, bytes);
	}
	return rc ? rc : bench_await_answers(e, before + batches);
}

static int measure_writes(
	struct bench_end *e, struct bench_measure *m, unsigned batch, uint32_t bytes)
{
	unsigned batches =
		MAX(e->how->count / (bytes == LARGE ? 20 : 2), 2 * BENCH_DEPTH);
	struct counts before, after;
	uint64_t began, ns;
	int rc = write_batches(e, BENCH_DEPTH, batch, bytes);

	m->count = batches * batch;
	if (!rc)
		rc = take_counts(e, &before);
	began = rt_now_ns();
	if (!rc)
		rc = write_batches(e, batches, batch, bytes);
	ns = MAX(rt_now_ns() - began, 1u);
	if (!rc)
		rc = take_counts(e, &after);
	if (rc)
		return rc;
	per_operation(m, &before, &after);
	m->per_second = (double)m->count * 1e9 / (double)ns;
	m->bytes_per_second = m->per_second * bytes;
	return 0;
}

/* ---- all of them --------------------------------------------------------------------- */

/* Returns true if the page is filled with the one number of the end that it comes from. */
static bool is_page_of(const uint8_t *page, uint8_t end)
{
	for (unsigned i = 0; i < PAGE_SIZE; i++)
		if (page[i] != end)
			return false;
	return true;
}

/* Checks that fetched and read pages came from the server, and that written ones arrived there. */
static int look_at_pages(struct bench_end *e, uint8_t expected)
{
	int rc = one_read(e, 0);

	if (rc)
		return rc;
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
	int rc;

	for (unsigned i = 0; i < BENCH_KINDS; i++)
		m[i] = (struct bench_measure){.name = measures[i].name,
			.what = measures[i].what,
			.rate = i >= BENCH_WRITE_PAGES};
	rc = measure_times(e, &m[BENCH_MESSAGE], one_message);
	if (!rc)
		rc = measure_times(e, &m[BENCH_READ], one_read);
	if (!rc)
		rc = look_at_pages(e, 1);
	if (!rc) {
		m[BENCH_CAS].error = measure_times(e, &m[BENCH_CAS], one_swap);
		rc = m[BENCH_CAS].error == -EOPNOTSUPP ? 0 : m[BENCH_CAS].error;
	}
	if (!rc)
		rc = measure_writes(e, &m[BENCH_WRITE_PAGES], BENCH_BATCH, PAGE_SIZE);
	if (!rc)
		rc = measure_writes(e, &m[BENCH_WRITE_LARGE], 1, LARGE);
	if (!rc)
		rc = look_at_pages(e, 2);
	/* Fetching the page back shows that it was written to the server. */
	if (!rc)
		memset(e->memory, 0, PAGE_SIZE);
	if (!rc)
		rc = measure_times(e, &m[BENCH_FETCH], one_page);
	if (!rc)
		rc = one_page(e, 0);
	return rc ? rc : is_page_of(e->memory, 2) ? 0 : -EUCLEAN;
}
