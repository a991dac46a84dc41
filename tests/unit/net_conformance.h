/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What every transport must do (docs/protocol.md, "Promises"). Included by a test file per
 * transport, which says how the functions are run.
 */
#ifndef WEFT_TESTS_NET_CONFORMANCE_H
#define WEFT_TESTS_NET_CONFORMANCE_H

#include "tests/unit/net_fixture.h"

static unsigned test_scale = 1; /* how much is done is divided by it */

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

#define DEEP 64u

static void count_down(struct net_op *op)
{
	_Atomic uint32_t *left = op->owner;

	CHECK(op->result == 0);
	atomic_fetch_sub(left, 1);
	rt_wake(left, INT32_MAX);
}

/* Many writes of pages at once, messages between them, `done` called for each. */
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
			CHECK(post_waiting(p.b->peer, &ops[i],
				      i + 1 < DEEP ? NET_MORE : 0) == 0);
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
	for (uint32_t i = 0; i < count; i++) /* the owner's own */
		__atomic_fetch_add(counter, 5, __ATOMIC_SEQ_CST);
	for (unsigned i = 0; i < ADDERS; i++)
		rt_task_join(tasks[i]);
	CHECK(__atomic_load_n(counter, __ATOMIC_SEQ_CST) == sum + 5 * count);
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

/* ---- what is refused -------------------------------------------------------------------------- */

static int impossible_calls_are_refused_at_once(void *arg)
{
	struct pair p = pair_up();
	uint64_t word = 0;
	struct net_op none = {.kind = NET_READ, .local = &word, .length = 0};
	struct net_op large = {
		.kind = NET_WRITE, .local = &word, .length = NET_TRANSFER_MAX + 1};
	struct net_op strange = {.kind = (enum net_op_kind)9, .length = 1};
	struct net_peer_options again = {.node = 2, .owner = p.a};
	struct net_peer_options self = {.node = 1, .owner = p.a};
	struct net_peer *peer;
	void *base;

	CHECK(net_post(p.a->peer, &none, 0) == -EINVAL);
	CHECK(net_post(p.a->peer, &large, 0) == -EINVAL);
	CHECK(net_post(p.a->peer, &strange, 0) == -EINVAL);
	CHECK(net_peer_add(&peer, p.a->net, &again, NULL) == -EEXIST);
	CHECK(net_peer_add(&peer, p.a->net, &self, NULL) == -EINVAL);
	CHECK(net_region_create(p.a->net, 7, PAGE_SIZE, NET_REMOTE_READ, &base) ==
		-EINVAL);
	CHECK(net_peer_find(p.a->net, 2) == p.a->peer);
	CHECK(net_peer_find(p.a->net, 3) == NULL);
	CHECK(net_peer_up(p.a->peer) && net_of(p.a->peer) == p.a->net);
	pair_down(&p);
	return 0;
}

/* Each ends the link, changes nothing, and the link comes back. */
static int accesses_out_of_bounds_are_refused(void *arg)
{
	struct pair p = pair_up();
	uint8_t bytes[64] = {1, 2, 3};
	const struct net_op wrong[] = {
		{.kind = NET_READ, .region = 2, .local = bytes, .length = 8},
		{.kind = NET_READ,
			.region = NET_REGIONS_MAX,
			.local = bytes,
			.length = 8},
		{.kind = NET_READ, .region = UINT32_MAX, .local = bytes, .length = 8},
		{.kind = NET_READ, .offset = REGION_BYTES, .local = bytes, .length = 1},
		{.kind = NET_READ,
			.offset = REGION_BYTES - 7,
			.local = bytes,
			.length = 8},
		{.kind = NET_READ, .offset = UINT64_MAX - 3, .local = bytes, .length = 8},
		{.kind = NET_WRITE, .region = 3, .local = bytes, .length = 8},
		{.kind = NET_WRITE, .region = REGION_READ, .local = bytes, .length = 8},
		{.kind = NET_WRITE,
			.offset = REGION_BYTES - 7,
			.local = bytes,
			.length = 8},
		{.kind = NET_WRITE,
			.offset = UINT64_MAX - 7,
			.local = bytes,
			.length = 8},
		{.kind = NET_FAA, .region = REGION_READ, .operand = 1},
		{.kind = NET_FAA, .offset = REGION_BYTES, .operand = 1},
		{.kind = NET_FAA, .offset = 12, .operand = 1},
		{.kind = NET_CAS, .offset = REGION_BYTES - 4, .operand = 1},
		{.kind = NET_CAS, .offset = UINT64_MAX - 7, .operand = 1},
	};

	for (uint32_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		struct net_op op = wrong[i];
		int r = run_op(p.a->peer, &op);

		CHECK(r == -EACCES || (op.kind == NET_WRITE && r == 0));
		wait_for(p.a, &p.a->downs, i + 1);
		wait_for(p.b, &p.b->downs, i + 1);
		CHECK(p.a->down_code == -EACCES || p.a->down_code == -ECONNRESET);
		CHECK(p.b->down_code == -EACCES || p.b->down_code == -ECONNRESET);
		wait_for(p.a, &p.a->ups, i + 2);
		wait_for(p.b, &p.b->ups, i + 2);
	}
	for (unsigned i = 0; i < REGION_BYTES; i++)
		CHECK(p.b->memory[i] == 0 && p.b->memory_read[i] == 0);
	pair_down(&p);
	return 0;
}

/* A pair that cannot come together: the codes that each end is told, 0 for nothing. */
static void expect_refusal(struct pair *p, int code_a, int code_b)
{
	pair_start(p);
	if (code_b) {
		wait_for(p->b, &p->b->refusals, 1);
		CHECK(p->b->refusal_code == code_b);
	}
	if (code_a) {
		wait_for(p->a, &p->a->refusals, 1);
		CHECK(p->a->refusal_code == code_a);
	}
	rt_sleep_ns(20 * MS);
	CHECK(p->a->ups == 0 && p->b->ups == 0);
	CHECK(p->a->refusals <= 2 &&
		p->b->refusals <= 2); /* told once, not at each try */
	pair_down(p);
}

static int a_wrong_key_is_refused(void *arg)
{
	struct pair p = {end_new(1), end_new(2)};

	p.b->options.key[31] ^= 1;
	/* With TLS the listener does not know whom it refuses. */
	expect_refusal(&p, test_tls ? 0 : -EKEYREJECTED, -EKEYREJECTED);
	return 0;
}

static int another_volume_is_refused(void *arg)
{
	struct pair p = {end_new(1), end_new(2)};

	p.b->options.self.volume_uuid[0] ^= 1;
	expect_refusal(&p, -EXDEV, -EXDEV);
	p = (struct pair){end_new(1), end_new(2)};
	p.a->options.self.cluster_uuid[15] ^= 1;
	expect_refusal(&p, -EXDEV, -EXDEV);
	return 0;
}

static int another_node_is_refused(void *arg)
{
	struct pair p = {end_new(1), end_new(2)};

	/* Node 3 is where node 1 should be. */
	p.a->options.self.node = 3;
	memset(p.a->options.self.node_uuid, 0x33, NET_UUID_BYTES);
	expect_refusal(&p, -EADDRNOTAVAIL, -EADDRNOTAVAIL);
	/* Node 4 is not known there. */
	p = (struct pair){end_new(1), end_new(4)};
	expect_refusal(&p, 0, -ENOENT);
	return 0;
}

static void connect_again(struct end *e, struct end *with)
{
	end_open(e);
	end_add_peer(e, 1, with->address);
	end_start(e);
}

/* The same id with another UUID, another instance, an earlier incarnation. */
static int a_clashing_node_is_refused(void *arg)
{
	struct pair p = {end_new(1), end_new(2)};
	struct end *other;

	p.b->options.self.incarnation = 5;
	pair_start(&p);
	wait_for(p.a, &p.a->ups, 1);
	for (unsigned i = 0; i < 3; i++) {
		other = end_new(2);
		other->options.self.incarnation = i == 0 ? 9 : i == 1 ? 5 : 4;
		if (i == 0)
			other->options.self.node_uuid[0] ^= 1;
		connect_again(other, p.a);
		wait_for(other, &other->refusals, 1);
		CHECK(other->refusal_code == (i == 2 ? -ESTALE : -EADDRINUSE));
		CHECK(other->ups == 0);
		end_free(other);
	}
	CHECK(p.a->downs == 0 && p.b->downs == 0);
	/* A later start takes the place of the one before. */
	other = end_new(2);
	other->options.self.incarnation = 6;
	connect_again(other, p.a);
	wait_for(other, &other->ups, 1);
	wait_for(p.b, &p.b->downs, 1);
	wait_for(p.a, &p.a->ups, 2);
	wait_for(p.b, &p.b->refusals, 1);
	CHECK(p.b->refusal_code == -ESTALE);
	end_free(other);
	pair_down(&p);
	return 0;
}

/* ---- cuts ------------------------------------------------------------------------------------ */

static void ended_either_way(struct net_op *op)
{
	struct end *e = op->owner;

	CHECK(op->result == 0 || op->result == -ECONNRESET);
	raise_counter(e, &e->answers);
}

/* Each time: down, all ops ended before, up again with a later session. */
static int a_cut_ends_all_and_the_link_comes_back(void *arg)
{
	struct pair p = pair_up();
	uint8_t *local = rt_alloc_pages(DEEP * PAGE_SIZE);
	struct net_op *ops = calloc(DEEP, sizeof(*ops));
	uint32_t rounds = 60 / MIN(test_scale, 10u);

	CHECK(local && ops);
	for (uint32_t round = 1; round <= rounds; round++) {
		uint32_t before = p.a->answers, started = 0;

		for (uint32_t i = 0; i < DEEP; i++) {
			ops[i] = (struct net_op){.kind = i % 4 == 0   ? NET_FAA
							 : i % 4 == 1 ? NET_WRITE
								      : NET_READ,
				.offset = i * PAGE_SIZE,
				.local = local + i * PAGE_SIZE,
				.length = PAGE_SIZE,
				.done = ended_either_way,
				.owner = p.a};
			if (net_post(p.a->peer, &ops[i], i % 3 ? NET_MORE : 0) == 0)
				started++;
			if (i == rt_random() % DEEP)
				net_cut(round % 2 ? p.a->peer : p.b->peer, -ECONNABORTED);
		}
		net_cut(round % 3 ? p.a->peer : p.b->peer, -ECONNABORTED);
		wait_for(p.a, &p.a->answers, before + started);
		wait_for(p.a, &p.a->downs, round);
		wait_for(p.b, &p.b->downs, round);
		CHECK(p.a->answers == before + started);
		wait_for(p.a, &p.a->ups, p.a->downs + 1);
		wait_for(p.b, &p.b->ups, p.b->downs + 1);
	}
	rt_free_pages(local, DEEP * PAGE_SIZE);
	free(ops);
	pair_down(&p);
	return 0;
}

static int without_a_link_nothing_is_sent(void *arg)
{
	struct end *e = end_new(1);
	struct net_message m = {.type = MESSAGE_PLAIN};
	uint64_t word;
	struct net_op op = {.kind = NET_READ, .local = &word, .length = 8};

	end_open(e);
	end_add_peer(e, 2, NULL);
	end_start(e);
	CHECK(!net_peer_up(e->peer));
	CHECK(net_send(e->peer, &m, 0) == -ENOTCONN);
	CHECK(net_send(e->peer, &m, NET_URGENT) == -ENOTCONN);
	CHECK(net_post(e->peer, &op, 0) == -ENOTCONN);
	CHECK(net_wait_room(e->peer, RT_FOREVER) == -ENOTCONN);
	net_cut(e->peer, -EIO);
	net_flush(e->net);
	end_free(e);
	return 0;
}

static int a_node_that_closes_and_comes_back(void *arg)
{
	struct pair p = pair_up();
	uint32_t rounds = 10 / MIN(test_scale, 5u);

	for (uint32_t i = 1; i <= rounds; i++) {
		struct end *again = end_new(2);

		end_free(p.b);
		wait_for(p.a, &p.a->downs, i);
		CHECK(p.a->down_code == -ESHUTDOWN || p.a->down_code == -ECONNRESET);
		again->options.self.incarnation = 1 + i;
		connect_again(again, p.a);
		wait_for(again, &again->ups, 1);
		wait_for(p.a, &p.a->ups, i + 1);
		p.b = again;
	}
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

/* Two endpoints that have nothing to say sleep, but for a ping now and then. */
static int an_idle_endpoint_uses_no_processor(void *arg)
{
	struct pair p = pair_up();
	struct timespec before, after;

	rt_sleep_ns(50 * MS); /* what connecting leaves behind */
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &before);
	rt_sleep_ns(1000 * MS);
	clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &after);
	CHECK(rt_simulated || (uint64_t)(after.tv_sec - before.tv_sec) * 1000 * MS +
					      (uint64_t)after.tv_nsec -
					      (uint64_t)before.tv_nsec <
				      10 * MS);
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
	CONFORMS(a_message_comes_after_its_write),
	CONFORMS(batches_keep_their_order),
	CONFORMS(a_read_sees_what_is_there),
	CONFORMS(a_read_sees_the_writes_before_it),
	CONFORMS(atomics_are_atomic),
	CONFORMS(impossible_calls_are_refused_at_once),
	CONFORMS(accesses_out_of_bounds_are_refused),
	CONFORMS(a_wrong_key_is_refused),
	CONFORMS(another_volume_is_refused),
	CONFORMS(another_node_is_refused),
	CONFORMS(a_clashing_node_is_refused),
	CONFORMS(a_cut_ends_all_and_the_link_comes_back),
	CONFORMS(without_a_link_nothing_is_sent),
	CONFORMS(a_node_that_closes_and_comes_back),
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
