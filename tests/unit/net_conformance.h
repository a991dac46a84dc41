/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every transport must do (docs/transports.md, "Promises"). Included by a test file per
 * transport, which says how the functions are run.
 */
#ifndef WEFT_TESTS_NET_CONFORMANCE_H
#define WEFT_TESTS_NET_CONFORMANCE_H

#include "tests/unit/net_conformance_links.h"

/* ---- order ------------------------------------------------------------------------------ */

#define ORDER_TASKS 3u

struct sequence {
	struct end *end;
	uint32_t stream, count;
};

static void expect_sequence(
	struct end *e, struct net_peer *peer, const struct net_message *m)
{
	uint64_t *next = e->owner;

	CHECK(m->type == MESSAGE_PLAIN && m->epoch == 77 && m->request < ORDER_TASKS);
	CHECK(m->words[0] == next[m->request]++);
	CHECK(m->words[5] == ~m->words[0]);
}

static void send_sequence(void *arg)
{
	struct sequence *s = arg;

	for (uint64_t i = 0; i < s->count; i++) {
		struct net_message m = {.type = MESSAGE_PLAIN,
			.request = s->stream,
			.epoch = 77,
			.words = {i, 0, 0, 0, 0, ~i}};

		CHECK(send_waiting(s->end->peer, &m, i % 5 ? NET_MORE : 0) == 0);
	}
	net_flush(s->end->net);
}

static int messages_arrive_in_order(void *arg)
{
	struct pair p = pair_up();
	struct end *ends[2] = {p.a, p.b};
	uint64_t next[2][ORDER_TASKS] = {0};
	struct sequence s[2][ORDER_TASKS];
	struct rt_task *tasks[2][ORDER_TASKS];
	uint32_t count = 20000 / test_scale;

	for (unsigned i = 0; i < 2; i++) {
		ends[i]->owner = next[i];
		ends[i]->on_message = expect_sequence;
	}
	for (unsigned i = 0; i < 2 * ORDER_TASKS; i++) {
		s[i % 2][i / 2] = (struct sequence){ends[i % 2], i / 2, count};
		CHECK(rt_task_spawn(&tasks[i % 2][i / 2], "sender", send_sequence,
			      &s[i % 2][i / 2]) == 0);
	}
	for (unsigned i = 0; i < 2 * ORDER_TASKS; i++)
		rt_task_join(tasks[i % 2][i / 2]);
	wait_for(p.a, &p.a->messages, ORDER_TASKS * count);
	wait_for(p.b, &p.b->messages, ORDER_TASKS * count);
	CHECK(p.a->messages == ORDER_TASKS * count && p.a->downs == 0);
	CHECK(p.b->messages == ORDER_TASKS * count && p.b->downs == 0);
	pair_down(&p);
	return 0;
}

/* ---- questions and answers ---------------------------------------------------------------- */

#define ASKERS 4u

static _Atomic uint32_t asked[ASKERS];

static void answer(struct end *e, struct net_peer *peer, const struct net_message *m)
{
	struct net_message reply = *m;

	if (m->type == MESSAGE_ASK) {
		reply.type = MESSAGE_ANSWER;
		reply.words[0]++;
		CHECK(net_send(peer, &reply, NET_URGENT) == 0);
	} else {
		CHECK(m->type == MESSAGE_ANSWER && m->request < ASKERS);
		atomic_store(&asked[m->request], (uint32_t)m->words[0]);
		net_wake(e->net, &asked[m->request], INT32_MAX);
	}
}

static void ask_many(void *arg)
{
	struct sequence *s = arg;

	for (uint32_t i = 1; i <= s->count; i++) {
		struct net_message m = {
			.type = MESSAGE_ASK, .request = s->stream, .words = {2 * i}};
		uint64_t until = rt_now_ns() + PATIENCE_NS;

		atomic_store(&asked[s->stream], 0);
		CHECK(send_waiting(s->end->peer, &m, 0) == 0);
		while (atomic_load(&asked[s->stream]) == 0)
			CHECK(net_wait(s->end->net, i % 7 ? s->end->peer : NULL,
				      &asked[s->stream], 0, until) == 0);
		CHECK(asked[s->stream] == 2 * i + 1);
	}
}

static int answers_reach_who_waits(void *arg)
{
	struct pair p = pair_up();
	struct sequence s[ASKERS];
	struct rt_task *tasks[ASKERS];

	p.a->on_message = p.b->on_message = answer;
	for (uint32_t i = 0; i < ASKERS; i++) {
		s[i] = (struct sequence){i % 2 ? p.a : p.b, i, 3000 / test_scale};
		CHECK(rt_task_spawn(&tasks[i], "asker", ask_many, &s[i]) == 0);
	}
	for (unsigned i = 0; i < ASKERS; i++)
		rt_task_join(tasks[i]);
	pair_down(&p);
	return 0;
}

static void wake_by_another(void *arg)
{
	struct sequence *s = arg;

	for (uint32_t i = 1; i <= s->count; i++) {
		atomic_store(&asked[s->stream], i);
		net_wake(s->end->net, &asked[s->stream], INT32_MAX);
		while (atomic_load(&asked[s->stream]) == i)
			net_wait(s->end->net, NULL, &asked[s->stream], i, RT_FOREVER);
	}
}

/* The word is changed by a task of this node, while the waiting one serves a silent link. */
static int a_wait_ends_whoever_changes_the_word(void *arg)
{
	struct pair p = pair_up();
	struct sequence s = {p.a, 0, 300 / test_scale + 1};
	struct rt_task *task;

	atomic_store(&asked[0], 0);
	CHECK(rt_task_spawn(&task, "waker", wake_by_another, &s) == 0);
	for (uint32_t i = 1; i <= s.count; i++) {
		while (atomic_load(&asked[0]) != i)
			net_wait(p.a->net, p.a->peer, &asked[0], 0, RT_FOREVER);
		atomic_store(&asked[0], 0);
		net_wake(p.a->net, &asked[0], INT32_MAX);
	}
	rt_task_join(task);
	CHECK(net_wait(p.a->net, p.a->peer, &asked[0], 0, rt_now_ns() + 5 * MS) ==
			-ETIMEDOUT ||
		net_wait(p.a->net, p.a->peer, &asked[0], 0, rt_now_ns() + 5 * MS) ==
			-ETIMEDOUT);
	pair_down(&p);
	return 0;
}

#define FOLLOWERS 48u

/* The answer first, then more than one look at the link takes in. */
static void answer_and_more(
	struct end *e, struct net_peer *peer, const struct net_message *m)
{
	struct net_op *ops = e->owner;
	struct net_message reply = {.type = MESSAGE_ANSWER, .request = 0, .words = {1}};

	CHECK(m->type == MESSAGE_ASK);
	CHECK(net_send(peer, &reply, NET_URGENT | NET_MORE) == 0);
	for (unsigned i = 0; i < FOLLOWERS; i++) {
		ops[i] = (struct net_op){.kind = NET_WRITE,
			.local = e->memory,
			.length = PAGE_SIZE,
			.message = {.type = MESSAGE_WRITTEN}};
		CHECK(net_post(peer, &ops[i],
			      NET_URGENT | (i + 1 < FOLLOWERS ? NET_MORE : 0)) == 0);
	}
}

static void note_answer(struct end *e, struct net_peer *peer, const struct net_message *m)
{
	if (m->type == MESSAGE_ANSWER) {
		atomic_store(&asked[0], 1);
		net_wake(e->net, &asked[0], INT32_MAX);
	}
}

/* Who has his answer goes; the rest is taken by others, though nothing more comes. */
static int what_follows_an_answer_is_not_forgotten(void *arg)
{
	struct pair p = pair_up();
	struct net_op *ops = calloc(FOLLOWERS, sizeof(*ops));
	uint32_t rounds = 300 / test_scale + 1;

	CHECK(ops);
	p.a->owner = ops;
	p.a->on_message = answer_and_more;
	p.b->on_message = note_answer;
	for (uint32_t i = 1; i <= rounds; i++) {
		struct net_message m = {.type = MESSAGE_ASK};
		uint64_t until = rt_now_ns() + PATIENCE_NS;

		atomic_store(&asked[0], 0);
		CHECK(net_send(p.b->peer, &m, 0) == 0);
		while (atomic_load(&asked[0]) == 0)
			net_wait(p.b->net, p.b->peer, &asked[0], 0, until);
		while (atomic_load(&p.b->messages) < i * (FOLLOWERS + 1)) {
			CHECK(rt_now_ns() < until);
			rt_sleep_ns(MS / 20);
		}
		for (unsigned n = 0; n < FOLLOWERS; n++)
			CHECK(net_op_wait(p.a->peer, &ops[n]) == 0);
	}
	free(ops);
	pair_down(&p);
	return 0;
}

/* ---- one-sided operations ------------------------------------------------------------------- */

static uint8_t pattern(uint64_t round, uint64_t i)
{
	return (uint8_t)((round * 131 + i * 7) ^ (i >> 8));
}

/* The bytes are there when the message is. */
static void expect_written(
	struct end *e, struct net_peer *peer, const struct net_message *m)
{
	const uint8_t *at = e->memory + m->words[1];

	CHECK(m->type == MESSAGE_WRITTEN);
	CHECK(m->words[0] == e->next_sequence++);
	for (uint64_t i = 0; i < m->words[2]; i++)
		CHECK(at[i] == pattern(m->words[0], i));
}

static uint32_t some_length(uint64_t round)
{
	switch (rt_random() % 4) {
	case 0:
		return round % 64 == 1 ? NET_TRANSFER_MAX : PAGE_SIZE;
	case 1:
		return 1 + (uint32_t)(rt_random() % 200000);
	default:
		return 1 + (uint32_t)(rt_random() % 5000);
	}
}

/* Writes may overlap: each is checked before the next can be started. */
static int a_message_comes_after_its_write(void *arg)
{
	struct pair p = pair_up();
	uint8_t *from = rt_alloc_pages(NET_TRANSFER_MAX);
	uint64_t rounds = 600 / test_scale;

	CHECK(from);
	p.a->on_message = expect_written;
	for (uint64_t round = 0; round < rounds; round++) {
		uint32_t length = some_length(round);
		uint64_t offset = rt_random() % (REGION_BYTES - length + 1);
		struct net_op op = {.kind = NET_WRITE,
			.region = REGION_ALL,
			.offset = offset,
			.local = from,
			.length = length,
			.message = {.type = MESSAGE_WRITTEN,
				.words = {round, offset, length}}};

		for (uint64_t i = 0; i < length; i++)
			from[i] = pattern(round, i);
		CHECK(run_op(p.b->peer, &op) == 0);
		memset(from, 0xee, length); /* it is ours again */
		wait_for(p.a, &p.a->messages, (uint32_t)round + 1);
	}
	CHECK(p.a->downs == 0);
	rt_free_pages(from, NET_TRANSFER_MAX);
	pair_down(&p);
	return 0;
}

static void count_down(struct net_op *op)
{
	_Atomic uint32_t *left = op->owner;

	CHECK(op->result == 0);
	atomic_fetch_sub(left, 1);
	rt_wake(left, INT32_MAX);
}

/* Many writes of pages at once, messages between them, `done` called for each that is not done
 * within its call. */
static int batches_keep_their_order(void *arg)
{
	struct pair p = pair_up();
	uint8_t *from = rt_alloc_pages(DEEP * PAGE_SIZE);
	struct net_op *ops = calloc(DEEP, sizeof(*ops));
	uint64_t rounds = 40 / MIN(test_scale, 10u);

	CHECK(from && ops);
	p.a->on_message = expect_written;
	for (uint64_t round = 0; round < rounds; round++) {
		_Atomic uint32_t left = DEEP;

		for (uint64_t i = 0; i < DEEP; i++) {
			uint64_t n = round * DEEP + i, at = i * PAGE_SIZE;
			int e;

			for (uint64_t b = 0; b < PAGE_SIZE; b++)
				from[at + b] = pattern(n, b);
			ops[i] = (struct net_op){.kind = NET_WRITE,
				.offset = at,
				.local = from + at,
				.length = PAGE_SIZE,
				.message = {.type = MESSAGE_WRITTEN,
					.words = {n, at, PAGE_SIZE}},
				.done = count_down,
				.owner = (void *)&left};
			e = post_waiting(p.b->peer, &ops[i],
				(i + 1 < DEEP ? NET_MORE : 0) |
					(i % 3 ? NET_AT_ONCE : 0));
			CHECK(e == 0 || (e == 1 && i % 3));
			if (e) { /* not told: it is ours again */
				memset(from + at, 0xee, PAGE_SIZE);
				atomic_fetch_sub(&left, 1);
			}
		}
		for (uint32_t v; (v = atomic_load(&left)) != 0;)
			rt_wait(&left, v, RT_FOREVER);
		wait_for(p.a, &p.a->messages, (uint32_t)(round + 1) * DEEP);
	}
	CHECK(p.a->downs == 0);
	rt_free_pages(from, DEEP * PAGE_SIZE);
	free(ops);
	pair_down(&p);
	return 0;
}

/*
 * Of all lengths, with messages of their own between them: some can leave together. What lies
 * behind the one before it here lies so there, too, or there before it.
 */
static int writes_of_many_kinds_keep_their_order(void *arg)
{
	struct pair p = pair_up();
	uint8_t *from = rt_alloc_pages(DEEP * PAGE_SIZE);
	struct net_op *ops = calloc(DEEP, sizeof(*ops));
	struct net_counters here, there;
	uint64_t rounds = 40 / MIN(test_scale, 10u), n = 0;

	CHECK(from && ops);
	p.a->on_message = expect_written;
	for (uint64_t round = 0; round < rounds; round++) {
		_Atomic uint32_t left = DEEP;
		uint32_t length = PAGE_SIZE;

		for (uint64_t i = 0; i < DEEP; i++, n++) {
			uint64_t at = i * PAGE_SIZE;
			uint64_t to = round % 2 ? (DEEP - 1 - i) * PAGE_SIZE : at;

			if (rt_random() % 8 == 0)
				length = 1 + (uint32_t)(rt_random() % PAGE_SIZE);
			for (uint64_t b = 0; b < length; b++)
				from[at + b] = pattern(n, b);
			ops[i] = (struct net_op){.kind = NET_WRITE,
				.offset = to,
				.local = from + at,
				.length = length,
				.message = {.type = MESSAGE_WRITTEN,
					.words = {n, to, length}},
				.done = count_down,
				.owner = (void *)&left};
			if (rt_random() % 8 == 0) /* what it tells comes by itself */
				ops[i].message.type = 0;
			CHECK(post_waiting(p.b->peer, &ops[i],
				      rt_random() % 32 ? NET_MORE : 0) == 0);
			if (ops[i].message.type)
				continue;
			ops[i].message.type = MESSAGE_WRITTEN;
			CHECK(net_send(p.b->peer, &ops[i].message, NET_MORE) == 0);
		}
		net_flush(p.b->net);
		for (uint32_t v; (v = atomic_load(&left)) != 0;)
			rt_wait(&left, v, RT_FOREVER);
		wait_for(p.a, &p.a->messages, (uint32_t)n);
	}
	net_counters(p.b->peer, &here);
	net_counters(p.a->peer, &there);
	CHECK(there.sends_in == here.sends_out && there.messages_in == n);
	/* several messages are sent at once, but in shared memory there is nothing to gain */
	CHECK((here.sends_out < n / 2) == (strcmp(test_transport, "shm") != 0));
	CHECK(p.a->downs == 0);
	rt_free_pages(from, DEEP * PAGE_SIZE);
	free(ops);
	pair_down(&p);
	return 0;
}

static int a_read_sees_what_is_there(void *arg)
{
	struct pair p = pair_up();
	uint8_t *to = rt_alloc_pages(NET_TRANSFER_MAX);
	uint64_t rounds = 400 / test_scale;

	CHECK(to);
	for (uint64_t i = 0; i < REGION_BYTES; i++)
		p.b->memory_read[i] = pattern(i >> 12, i);
	for (uint64_t round = 0; round < rounds; round++) {
		uint32_t length = some_length(round);
		struct net_op op = {.kind = NET_READ,
			.region = REGION_READ,
			.offset = rt_random() % (REGION_BYTES - length + 1),
			.local = to,
			.length = length};

		CHECK(run_op(p.a->peer, &op) == 0);
		CHECK(memcmp(to, p.b->memory_read + op.offset, length) == 0);
	}
	rt_free_pages(to, NET_TRANSFER_MAX);
	pair_down(&p);
	return 0;
}

/* Reads and atomics at once, more than may be in flight. */
static int a_read_sees_the_writes_before_it(void *arg)
{
	struct pair p = pair_up();
	uint64_t rounds = 2000 / test_scale;

	for (uint64_t round = 1; round <= rounds; round++) {
		uint64_t value = round * 3, seen = 0, before = rt_random() % 512 * 8;
		struct net_op write = {.kind = NET_WRITE,
			.offset = before,
			.local = &value,
			.length = 8};
		struct net_op read = {
			.kind = NET_READ, .offset = before, .local = &seen, .length = 8};

		CHECK(post_waiting(p.a->peer, &write, NET_MORE) == 0);
		CHECK(post_waiting(p.a->peer, &read, 0) == 0);
		CHECK(net_op_wait(p.a->peer, &read) == 0 && seen == value);
		CHECK(net_op_wait(p.a->peer, &write) == 0);
	}
	pair_down(&p);
	return 0;
}

#define COUNTER_OFFSET 4096u
#define LOCK_OFFSET    8192u

static void add_remotely(void *arg)
{
	struct sequence *s = arg;

	for (uint32_t i = 0; i < s->count; i++) {
		struct net_op op = {
			.kind = NET_FAA, .offset = COUNTER_OFFSET, .operand = s->stream};

		CHECK(run_op(s->end->peer, &op) == 0);
	}
}

/* A lock word taken by CAS protects an unprotected counter, read and written remotely. */
static void add_under_lock(void *arg)
{
	struct sequence *s = arg;

	for (uint32_t i = 0; i < s->count; i++) {
		struct net_op take = {.kind = NET_CAS,
			.offset = LOCK_OFFSET,
			.compare = 0,
			.operand = s->stream};
		struct net_op drop = {.kind = NET_CAS,
			.offset = LOCK_OFFSET,
			.compare = s->stream,
			.operand = 0};
		uint64_t value = 0;
		struct net_op read = {.kind = NET_READ,
			.offset = LOCK_OFFSET + 64,
			.local = &value,
			.length = 8};
		struct net_op write = {.kind = NET_WRITE,
			.offset = LOCK_OFFSET + 64,
			.local = &value,
			.length = 8};

		do {
			take.value = 99;
			CHECK(run_op(s->end->peer, &take) == 0);
			if (take.value)
				rt_yield();
		} while (take.value != 0);
		CHECK(run_op(s->end->peer, &read) == 0);
		value++;
		CHECK(run_op(s->end->peer, &write) == 0);
		CHECK(run_op(s->end->peer, &drop) == 0 && drop.value == s->stream);
	}
}

#define ADDERS 3u

/* A device promises nothing between its atomics and the owner's own (docs/transports.md, rule 5).
 * Soft-RoCE reads and writes the word in two steps. */
static bool owner_adds = true;

static int atomics_are_atomic(void *arg)
{
	struct pair p = pair_up();
	uint32_t count = 1500 / test_scale;
	struct sequence s[ADDERS];
	struct rt_task *tasks[ADDERS];
	uint64_t *counter = (uint64_t *)(p.b->memory + COUNTER_OFFSET), sum = 0;
	uint64_t *guarded = (uint64_t *)(p.b->memory + LOCK_OFFSET + 64);

	for (uint32_t i = 0; i < ADDERS; i++) {
		s[i] = (struct sequence){p.a, i + 1, count};
		sum += (i + 1) * count;
		CHECK(rt_task_spawn(&tasks[i], "adder", add_remotely, &s[i]) == 0);
	}
	for (uint32_t i = 0; owner_adds && i < count; i++) {
		__atomic_fetch_add(counter, 5, __ATOMIC_SEQ_CST);
		sum += 5;
	}
	for (unsigned i = 0; i < ADDERS; i++)
		rt_task_join(tasks[i]);
	CHECK(__atomic_load_n(counter, __ATOMIC_SEQ_CST) == sum);
	for (uint32_t i = 0; i < ADDERS; i++) {
		s[i].count = count / 10 + 1;
		CHECK(rt_task_spawn(&tasks[i], "locker", add_under_lock, &s[i]) == 0);
	}
	for (unsigned i = 0; i < ADDERS; i++)
		rt_task_join(tasks[i]);
	CHECK(__atomic_load_n(guarded, __ATOMIC_SEQ_CST) == ADDERS * (count / 10 + 1));
	pair_down(&p);
	return 0;
}

/* ---- bounds --------------------------------------------------------------------------------------- */

static void send_until_full(struct end *e, uint32_t *sent)
{
	struct net_message m = {.type = MESSAGE_PLAIN};
	int r;

	while ((r = net_send(e->peer, &m, NET_MORE)) == 0)
		(*sent)++;
	CHECK(r == -EAGAIN);
}

static _Atomic uint32_t gate;

/* A handler must not wait; here it does, to see what a slow peer does to the other end. */
static void wait_at_gate(
	struct end *e, struct net_peer *peer, const struct net_message *m)
{
	while (atomic_load(&gate) == 0)
		rt_wait(&gate, 0, RT_FOREVER);
}

static int a_full_queue_is_told_and_empties(void *arg)
{
	struct pair p = pair_up();
	uint32_t sent = 0;

	atomic_store(&gate, 0);
	p.a->on_message = wait_at_gate;
	send_until_full(p.b, &sent);
	CHECK(sent >= NET_QUEUE_MAX / 2);
	CHECK(net_wait_room(p.b->peer, rt_now_ns() + 5 * MS) == -ETIMEDOUT ||
		net_send(p.b->peer, &(struct net_message){.type = 1}, 0) == 0);
	atomic_store(&gate, 1);
	rt_wake(&gate, INT32_MAX);
	CHECK(net_wait_room(p.b->peer, rt_now_ns() + PATIENCE_NS) == 0);
	net_flush(p.b->net);
	wait_for(p.a, &p.a->messages, sent);
	CHECK(p.a->downs == 0 && p.b->downs == 0);
	pair_down(&p);
	return 0;
}

static uint64_t processor_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &t);
	return (uint64_t)t.tv_sec * 1000 * MS + (uint64_t)t.tv_nsec;
}

/*
 * Two endpoints that have nothing to say sleep, but for a ping now and then. What connecting leaves
 * behind, and what the machine does besides, may disturb a try.
 */
static int an_idle_endpoint_uses_no_processor(void *arg)
{
	struct pair p = pair_up();
	uint64_t spent = UINT64_MAX;

	for (unsigned try = 0; try < 5 && spent >= 10 * MS; try++) {
		uint64_t before;

		rt_sleep_ns(50 * MS);
		before = processor_ns();
		rt_sleep_ns(1000 * MS);
		spent = rt_simulated ? 0 : processor_ns() - before;
	}
	CHECK(spent < 10 * MS);
	CHECK(p.a->downs == 0 && p.b->downs == 0);
	pair_down(&p);
	return 0;
}

static const struct {
	const char *name;
	int (*run)(void *);
} conformance[] = {
#define CONFORMS(test)                                                                   \
	{                                                                                \
#test, test                                                              \
	}
	CONFORMS(messages_arrive_in_order),
	CONFORMS(answers_reach_who_waits),
	CONFORMS(a_wait_ends_whoever_changes_the_word),
	CONFORMS(what_follows_an_answer_is_not_forgotten),
	CONFORMS(a_message_comes_after_its_write),
	CONFORMS(batches_keep_their_order),
	CONFORMS(writes_of_many_kinds_keep_their_order),
	CONFORMS(a_read_sees_what_is_there),
	CONFORMS(a_read_sees_the_writes_before_it),
	CONFORMS(atomics_are_atomic),
	CONFORMS(impossible_calls_are_refused_at_once),
	CONFORMS(accesses_out_of_bounds_are_refused),
	CONFORMS(a_wrong_key_is_refused),
	CONFORMS(another_volume_is_refused),
	CONFORMS(another_node_is_refused),
	CONFORMS(a_clashing_node_is_refused),
	CONFORMS(an_earlier_start_than_the_owner_knows_of_is_refused),
	CONFORMS(a_cut_ends_all_and_the_link_comes_back),
	CONFORMS(after_down_nothing_is_written),
	CONFORMS(without_a_link_nothing_is_sent),
	CONFORMS(a_node_that_closes_and_comes_back),
	CONFORMS(a_shutdown_ends_links_for_good),
	CONFORMS(a_full_queue_is_told_and_empties),
	CONFORMS(an_idle_endpoint_uses_no_processor),
#undef CONFORMS
};

/* One cmocka test for each, run by `run_one`. */
static inline int conformance_main(CMUnitTestFunction run_one, const char *only)
{
	struct CMUnitTest tests[ARRAY_SIZE(conformance)] = {0};
	unsigned n = 0;

	for (unsigned i = 0; i < ARRAY_SIZE(conformance); i++) {
		if (only && !strstr(conformance[i].name, only))
			continue;
		tests[n++] = (struct CMUnitTest){.name = conformance[i].name,
			.test_func = run_one,
			.initial_state = (void *)&conformance[i].run};
	}
	return _cmocka_run_group_tests(test_transport, tests, n, NULL, NULL);
}

#endif
