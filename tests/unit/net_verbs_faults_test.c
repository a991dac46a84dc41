/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a card can do wrong, and Soft-RoCE does not: devices without this and that, queues that
 * are small, requests that fail, a device that goes. And what each thing costs, in work
 * requests, doorbells and completions.
 */
#include "tests/unit/verbs_fake.h"

#include <sys/resource.h>
#include <sys/syscall.h>

#include "engine/net/verbs_internal.h"
#include "tests/unit/net_fixture.h"

static const char *test_listen_address(void)
{
	return "127.0.0.1:0";
}

static int setup(void **state)
{
	test_transport = "verbs";
	fake_usual();
	return 0;
}

/* Nothing is left of any link. */
static int teardown(void **state)
{
	assert_int_equal(fake.pairs, 0);
	assert_int_equal(fake.keys_used, 0);
	assert_int_equal(fake.windows_used, 0);
	assert_int_equal(fake.completion_queues, 0);
	assert_int_equal(fake.ids, 0);
	return 0;
}

/* ---- what is logged ------------------------------------------------------------------------- */

static char heard[8192]; /* what was logged */
static pthread_mutex_t heard_lock = PTHREAD_MUTEX_INITIALIZER;

static void hear(int level, const char *line)
{
	size_t at;

	pthread_mutex_lock(&heard_lock);
	at = strlen(heard);
	snprintf(heard + at, sizeof(heard) - at, "%s\n", line);
	pthread_mutex_unlock(&heard_lock);
}

static bool was_heard(const char *words)
{
	bool found;

	pthread_mutex_lock(&heard_lock);
	found = strstr(heard, words) != NULL;
	pthread_mutex_unlock(&heard_lock);
	return found;
}

/* ---- use ------------------------------------------------------------------------------------- */

static void expect_next(struct end *e, struct net_peer *peer, const struct net_message *m)
{
	CHECK(m->words[0] == e->next_sequence++);
}

/* Messages both ways, and every operation: as much as goes around the queues a few times. */
static void use(struct pair *p, unsigned rounds)
{
	uint32_t before_a = p->a->messages, before_b = p->b->messages;

	p->a->on_message = p->b->on_message = expect_next;
	p->a->next_sequence = p->b->next_sequence = 0;
	for (uint64_t i = 0; i < rounds; i++) {
		struct net_message m = {.type = MESSAGE_PLAIN, .words = {i}};

		CHECK(send_waiting(p->a->peer, &m, i % 9 ? NET_MORE : 0) == 0);
		CHECK(send_waiting(p->b->peer, &m, i % 7 ? NET_MORE : 0) == 0);
	}
	net_flush(p->a->net);
	net_flush(p->b->net);
	wait_for(p->a, &p->a->messages, before_a + rounds);
	wait_for(p->b, &p->b->messages, before_b + rounds);
	for (unsigned i = 0; i < rounds / 8; i++) {
		uint64_t here[16] = {i, ~(uint64_t)i}, back[16] = {0};
		struct net_op write = {.kind = NET_WRITE,
			.offset = i % 64 * 128,
			.local = here,
			.length = sizeof(here)};
		struct net_op read = {.kind = NET_READ,
			.offset = i % 64 * 128,
			.local = back,
			.length = sizeof(back)};

		CHECK(run_op(p->a->peer, &write) == 0);
		CHECK(run_op(p->a->peer, &read) == 0);
		CHECK(memcmp(here, back, sizeof(here)) == 0);
	}
}

static void add_one(struct pair *p, uint64_t expected)
{
	struct net_op op = {.kind = NET_FAA, .offset = 65536, .operand = 1};

	CHECK(run_op(p->a->peer, &op) == 0);
	CHECK(op.value == expected);
}

static void a_device_without_memory_windows(void **state)
{
	struct pair p;

	fake.no_windows = true;
	p = pair_up();
	use(&p, 3000);
	add_one(&p, 0);
	assert_int_equal(fake.windows_used, 0);
	pair_down(&p);
}

static void a_device_that_has_nothing_inline(void **state)
{
	struct pair p;

	fake.max_inline = 0;
	p = pair_up();
	use(&p, 3000);
	pair_down(&p);
}

static void a_device_with_small_queues(void **state)
{
	struct pair p;

	fake.max_qp_wr = 80; /* a window of 64 */
	p = pair_up();
	use(&p, 3000);
	add_one(&p, 0);
	pair_down(&p);
}

static void a_device_without_atomics(void **state)
{
	struct net_op op = {.kind = NET_FAA, .offset = 64, .operand = 1};
	struct net_op cas = {.kind = NET_CAS, .offset = 64, .operand = 1};
	void (*sink)(int, const char *) = weft_log_sink;
	uint64_t until = rt_now_ns() + PATIENCE_NS;
	struct pair p;

	heard[0] = 0;
	weft_log_sink = hear;
	fake.no_atomics = true;
	p = pair_up();
	while (!was_heard("node 1: its RDMA device has no atomics: CAS and FAA are "
			  "refused") ||
		!was_heard("node 2: its RDMA device has no atomics: CAS and FAA are "
			   "refused")) {
		CHECK(rt_now_ns() < until);
		rt_sleep_ns(MS);
	}
	CHECK(run_op(p.a->peer, &op) == -EOPNOTSUPP);
	CHECK(run_op(p.b->peer, &cas) == -EOPNOTSUPP);
	use(&p, 200);
	CHECK(p.a->downs == 0 && p.b->downs == 0);
	pair_down(&p);
	weft_log_sink = sink;
}

/* ---- links that do not come about at first ---------------------------------------------------- */

/* The dialer is told why, in words; the next attempt, or the one after, succeeds. */
static void comes_about_after(_Atomic int *fault, int times, const char *words)
{
	struct pair p = {end_new(1), end_new(2)};

	atomic_store(fault, times);
	pair_start(&p);
	wait_for(p.a, &p.a->ups, 1);
	wait_for(p.b, &p.b->ups, 1);
	CHECK(p.b->refusals > 0);
	if (words && !strstr(p.b->refusal, words)) {
		printf("told: %s\n", p.b->refusal);
		abort();
	}
	use(&p, 100);
	pair_down(&p);
}

static void what_cannot_be_made_is_told_and_tried_again(void **state)
{
	comes_about_after(&fake.qp_fails, 1, "no queue pair");
	comes_about_after(&fake.cq_fails, 1, "no completion queue");
	comes_about_after(&fake.reg_fails, 1, "registered");
	comes_about_after(&fake.bind_fails, 3, NULL);
}

/* ---- limits ------------------------------------------------------------------------------------- */

/*
 * No link comes about, and one of the two says that, in these words: the dialer is told, the
 * listener logs it. With what there usually is it does.
 */
static void is_refused_with(const char *words)
{
	void (*sink)(int, const char *) = weft_log_sink;
	struct pair p = {end_new(1), end_new(2)};
	uint64_t until = rt_now_ns() + PATIENCE_NS;

	heard[0] = 0;
	weft_log_sink = p.b->on_refused = hear;
	pair_start(&p);
	while (!was_heard(words)) {
		if (rt_now_ns() > until) {
			printf("not \"%s\", but: %s\n", words, heard);
			abort();
		}
		rt_sleep_ns(MS);
	}
	CHECK(p.b->refusal_ups == 0); /* the next try may be up by now */
	pair_down(&p);
	weft_log_sink = sink;
	fake_usual();
}

static void each_limit_of_the_device_is_named(void **state)
{
	fake.max_qp_wr = 60;
	is_refused_with("(max_qp_wr)");
	fake.max_cqe = 180;
	is_refused_with("(max_cqe)");
	fake.max_rd_atom = 0;
	is_refused_with("max_qp_rd_atom");
	fake.max_init_rd_atom = 0;
	is_refused_with("max_qp_init_rd_atom");
	fake.max_mr_size = REGION_BYTES - 1;
	is_refused_with("(max_mr_size); take a smaller cache");
	fake_device.transport_type = IBV_TRANSPORT_IWARP;
	is_refused_with("is iWARP");
	fake_device.transport_type = IBV_TRANSPORT_IB;
	fake.mw_fails = INT32_MAX;
	is_refused_with("(max_mw)");
	fake.mw_fails = 0;
}

static rlim_t lockable = RLIM_INFINITY;

/*
 * The C library's is of no use here: not everybody may raise what may be locked. The
 * sanitizers call it, too, before they are ready for calls of theirs.
 */
__attribute__((no_sanitize("thread", "address", "undefined"))) int getrlimit(
	__rlimit_resource_t resource, struct rlimit *limit)
{
	if (resource != RLIMIT_MEMLOCK)
		return (int)syscall(SYS_prlimit64, 0, resource, NULL, limit);
	*limit = (struct rlimit){lockable, lockable};
	return 0;
}

/* Where the device is not what lacks, it is what the process may lock. */
static void what_lacks_is_told_by_what_may_be_locked(void **state)
{
	fake.max_qp = 1;
	is_refused_with("(max_qp)");
	fake.reg_fails = INT32_MAX;
	is_refused_with("(max_mr)");
	fake.cq_fails = INT32_MAX;
	fake.reg_fails = 0;
	is_refused_with("(max_cq)");
	lockable = 64 << 20;
	is_refused_with(
		"may lock 65536 KiB of memory: raise it with `ulimit -l unlimited`");
	fake.cq_fails = 0;
	fake.reg_fails = INT32_MAX;
	is_refused_with(
		"may lock 65536 KiB of memory; raise it with `ulimit -l unlimited`");
	fake.reg_fails = 0;
	lockable = RLIM_INFINITY;
}

/* Of the mapping that has that byte: is the flag among those that smaps tells? */
static bool mapping_has(const void *at, const char *flag)
{
	FILE *f = fopen("/proc/self/smaps", "re");
	unsigned long first, end;
	bool here = false, has = false;
	char line[512];

	CHECK(f);
	while (fgets(line, sizeof(line), f)) {
		if (sscanf(line, "%lx-%lx ", &first, &end) == 2)
			here = first <= (uintptr_t)at && (uintptr_t)at < end;
		else if (here && !strncmp(line, "VmFlags:", 8))
			has = strstr(line, flag) != NULL;
	}
	fclose(f);
	return has;
}

/* Fewer pages for the card to know: the kernel is asked for huge ones, and they fit. */
static void what_is_registered_may_be_huge_pages(void **state)
{
	struct pair p;

	if (access("/sys/kernel/mm/transparent_hugepage/enabled", F_OK)) {
		print_message("this kernel has no huge pages\n");
		skip();
	}
	p = pair_up();
	CHECK((uintptr_t)p.a->memory % (2u << 20) == 0);
	CHECK(mapping_has(p.a->memory, " hg"));
	CHECK(!mapping_has(&p, " hg"));
	pair_down(&p);
}

/* One for each peer; how many there are is known before the card is asked. */
static void a_node_that_has_all_queue_pairs_asks_for_no_more(void **state)
{
	struct verbs_device d = {
		.limits = {.max_qp = 3, .max_qp_wr = 4096, .max_cqe = 16384},
		.context = fake_context_get(),
		.pairs = 2};
	struct verbs_pair p = {.device = &d};
	struct weft_error why = {0};

	CHECK(verbs_limits_pair(&p, &why) == 0);
	CHECK(p.depth == VERBS_DEPTH && p.receives == VERBS_WINDOW + VERBS_SPARE);
	d.pairs = 3;
	CHECK(verbs_limits_pair(&p, &why) == -ENOSPC && strstr(why.text, "(max_qp)"));
}

/* An end never has more reads under way than the other serves, and says so in the handshake. */
static void reads_under_way_are_what_both_can_do(void **state)
{
	struct pair p;

	fake.max_init_rd_atom = 16;
	fake.max_rd_atom = 3;
	p = pair_up();
	CHECK(fake.asks == 3 && fake.serves == 3);
	use(&p, 400);
	pair_down(&p);
	fake.max_init_rd_atom = 2;
	fake.max_rd_atom = 128;
	p = pair_up();
	CHECK(fake.asks == 2 && fake.serves == 2);
	use(&p, 400);
	pair_down(&p);
}

static void no_device_leads_there(void **state)
{
	struct pair p = {end_new(1), end_new(2)};

	end_open(p.a);
	end_open(p.b);
	end_add_peer(p.a, 2, NULL);
	end_start(p.a);
	end_add_peer(p.b, 1, p.a->address);
	atomic_store(&fake.no_route, true);
	end_start(p.b);
	wait_for(p.b, &p.b->refusals, 1);
	CHECK(p.b->refusal_code == -ENODEV);
	CHECK(strstr(p.b->refusal, "no RDMA device of this machine leads there"));
	atomic_store(&fake.no_route, false);
	wait_for(p.b, &p.b->ups, 1);
	pair_down(&p);
}

static void who_has_no_device_does_not_listen(void **state)
{
	struct weft_error err = {0};
	struct end *e = end_new(1);

	end_open(e);
	atomic_store(&fake.no_route, true);
	CHECK(net_start(e->net, &err) == -ENODEV);
	CHECK(strstr(err.text, "must be an address of an RDMA device"));
	atomic_store(&fake.no_route, false);
	end_free(e);
}

/* A queue pair is made at the address that the greeting came by. */
static void each_address_leads_to_a_queue_pair(void **state)
{
	struct pair p = {end_new(1), end_new(2)};
	uint8_t bytes[64] = {1, 2, 3};
	struct net_op op = {.kind = NET_WRITE, .local = bytes, .length = sizeof(bytes)};
	char list[NET_ADDRESS_BYTES + 32], *second;

	p.a->options.listen = "127.0.0.1:0, 127.0.0.2:0";
	end_open(p.a);
	end_open(p.b);
	end_add_peer(p.a, 2, NULL);
	end_start(p.a);
	second = strchr(p.a->address, ',');
	CHECK(second && fake.ids == 2);
	snprintf(list, sizeof(list), "127.0.0.1:1%s", second); /* where nobody listens */
	end_add_peer(p.b, 1, list);
	end_start(p.b);
	wait_for(p.a, &p.a->ups, 1);
	wait_for(p.b, &p.b->ups, 1);
	CHECK(run_op(p.b->peer, &op) == 0);
	op.kind = NET_READ;
	memset(bytes, 0, sizeof(bytes));
	CHECK(run_op(p.b->peer, &op) == 0 && bytes[2] == 3);
	pair_down(&p);
}

/* Nobody gets a queue pair who does not bring what was said to who has proven the key. */
static void another_token_is_refused(void **state)
{
	struct pair p = {end_new(1), end_new(2)};

	atomic_store(&fake.tokens_wrong, 1);
	pair_start(&p);
	wait_for(p.b, &p.b->refusals, 1);
	CHECK(p.b->refusal_ups == 0); /* the next try may be up by now */
	wait_for(p.a, &p.a->ups, 1);
	wait_for(p.b, &p.b->ups, 1);
	pair_down(&p);
}

static void a_request_that_is_lost_times_out(void **state)
{
	struct pair p = {end_new(1), end_new(2)};

	p.a->options.handshake_ns = p.b->options.handshake_ns = 200 * MS;
	atomic_store(&fake.lose_requests, true);
	pair_start(&p);
	wait_for(p.b, &p.b->refusals, 1);
	CHECK(p.b->refusal_code == -ETIMEDOUT || p.b->refusal_code == -ECONNRESET);
	atomic_store(&fake.lose_requests, false);
	wait_for(p.b, &p.b->ups, 1);
	pair_down(&p);
}

/* ---- links that break --------------------------------------------------------------------------- */

#define OPS 40u

static _Atomic uint32_t ended;

static void count_end(struct net_op *op)
{
	CHECK(op->result == 0 || op->result == -ECONNRESET);
	CHECK(op->owner == &ended);
	op->owner = NULL; /* once */
	atomic_fetch_add(&ended, 1);
	rt_wake(&ended, INT32_MAX);
}

/* The n-th request fails with that status: all operations end, once, and the link comes back. */
static void breaks_with(struct pair *p, enum ibv_wc_status status, int code, int n)
{
	static struct net_op ops[OPS];
	static uint8_t bytes[OPS][512];
	uint32_t downs = p->a->downs, ups = p->a->ups, ups_b = p->b->ups, started = 0;

	atomic_store(&ended, 0);
	fake.wrong = status;
	atomic_store(&fake.wrong_from, n);
	for (unsigned i = 0; i < OPS; i++) {
		ops[i] = (struct net_op){.kind = i % 3 == 0   ? NET_WRITE
						 : i % 3 == 1 ? NET_READ
							      : NET_FAA,
			.offset = i * 512,
			.local = bytes[i],
			.length = 512,
			.done = count_end,
			.owner = (void *)&ended};
		if (net_post(p->a->peer, &ops[i], i % 4 ? NET_MORE : 0) == 0)
			started++;
	}
	net_flush(p->a->net);
	wait_for(p->a, &p->a->downs, downs + 1);
	CHECK(p->a->down_code == code);
	CHECK(atomic_load(&ended) == started);
	atomic_store(&fake.wrong_from, 0);
	wait_for(p->a, &p->a->ups, ups + 1);
	wait_for(p->b, &p->b->ups, ups_b + 1);
}

static void requests_that_fail_end_the_link(void **state)
{
	static const struct {
		enum ibv_wc_status status;
		int code;
	} kinds[] = {
		{IBV_WC_RETRY_EXC_ERR, -ETIMEDOUT},
		{IBV_WC_RNR_RETRY_EXC_ERR, -ETIMEDOUT},
		{IBV_WC_REM_ACCESS_ERR, -EACCES},
		{IBV_WC_WR_FLUSH_ERR, -ECONNRESET},
		{IBV_WC_LOC_PROT_ERR, -EIO},
		{IBV_WC_GENERAL_ERR, -EIO},
	};
	struct pair p = pair_up();

	for (unsigned i = 0; i < ARRAY_SIZE(kinds); i++)
		for (int n = 1; n < (int)OPS; n += 13)
			breaks_with(&p, kinds[i].status, kinds[i].code, n);
	use(&p, 100);
	pair_down(&p);
}

static void what_cannot_be_posted_ends_the_link(void **state)
{
	struct net_message m = {.type = MESSAGE_PLAIN};
	struct pair p = pair_up();

	atomic_store(&fake.post_fails, 1);
	CHECK(net_send(p.a->peer, &m, 0) == 0);
	wait_for(p.a, &p.a->downs, 1);
	CHECK(p.a->down_code == -EIO);
	wait_for(p.a, &p.a->ups, 2);
	wait_for(p.b, &p.b->ups, 2);
	use(&p, 100);
	pair_down(&p);
}

/* What lies in no region is registered for its operation, or the link ends. */
static void local_memory_that_cannot_be_registered(void **state)
{
	static uint8_t bytes[4096];
	struct net_op op = {.kind = NET_READ, .local = bytes, .length = sizeof(bytes)};
	struct pair p = pair_up();

	atomic_store(&fake.reg_fails, 1);
	CHECK(run_op(p.a->peer, &op) == -ECONNRESET);
	wait_for(p.a, &p.a->downs, 1);
	CHECK(p.a->down_code == -ENOMEM);
	wait_for(p.a, &p.a->ups, 2);
	CHECK(run_op(p.a->peer, &op) == 0);
	pair_down(&p);
}

static void a_device_that_is_gone(void **state)
{
	struct ibv_async_event event = {.event_type = IBV_EVENT_DEVICE_FATAL};
	struct pair p = pair_up();
	uint64_t until = rt_now_ns() + PATIENCE_NS;

	/* there is but one, and one of the two endpoints is told */
	fake_async_event(&event);
	while (p.a->downs == 0 || p.b->downs == 0) {
		CHECK(rt_now_ns() < until);
		rt_sleep_ns(MS);
	}
	CHECK(p.a->down_code == -ENODEV || p.b->down_code == -ENODEV);
	while (p.a->refusals == 0 && p.b->refusals == 0) {
		CHECK(rt_now_ns() < until);
		rt_sleep_ns(MS);
	}
	CHECK(p.a->ups == 1 && p.b->ups == 1);
	pair_down(&p);
}

/* All that use it let go of it, so that it can go: links, and who listens. */
static void a_device_that_is_pulled_out(void **state)
{
	struct pair p = pair_up();
	uint64_t until = rt_now_ns() + PATIENCE_NS;

	fake_remove_device();
	wait_for(p.a, &p.a->downs, 1);
	wait_for(p.b, &p.b->downs, 1);
	CHECK(p.a->down_code == -ENODEV || p.b->down_code == -ENODEV);
	while (fake.ids > 0 || fake.pairs > 0) { /* attempts to connect come and go */
		CHECK(rt_now_ns() < until);
		rt_sleep_ns(MS);
	}
	CHECK(p.a->ups == 1 && p.b->ups == 1);
	pair_down(&p);
}

/* ---- a peer that does not keep to the protocol --------------------------------------------------- */

/* Posts what this end would never send, on the queue pair of its link. */
static void post_wrong(
	struct end *e, enum ibv_wr_opcode opcode, uint32_t word, uint32_t bytes)
{
	struct verbs_peer *peer = verbs_peer_of(e->peer);
	static struct net_message m = {.type = MESSAGE_PLAIN, .sender = 1};
	struct ibv_sge sge = {.addr = (uintptr_t)&m, .length = bytes};
	struct ibv_send_wr *bad, wr = {
					 .opcode = opcode,
					 .send_flags = IBV_SEND_INLINE,
					 .imm_data = htonl(word),
					 .sg_list = bytes ? &sge : NULL,
					 .num_sge = bytes ? 1 : 0,
				 };

	rt_mutex_lock(&peer->line.send_lock);
	CHECK(ibv_post_send(peer->pair->id->qp, &wr, &bad) == 0);
	rt_mutex_unlock(&peer->line.send_lock);
}

static void what_is_malformed_ends_the_link(void **state)
{
	static const struct {
		enum ibv_wr_opcode opcode;
		uint32_t word, bytes;
	} wrong[] = {
		{IBV_WR_SEND_WITH_IMM, VERBS_CONTROL << 24, 64}, /* a kind of the other */
		{IBV_WR_SEND_WITH_IMM, 7u << 24, 64},            /* of none */
		{IBV_WR_SEND_WITH_IMM, VERBS_MESSAGE << 24, 40}, /* too short */
		{IBV_WR_SEND_WITH_IMM, VERBS_MESSAGE << 24 | 999999,
			64}, /* taken, never sent */
		{IBV_WR_RDMA_WRITE_WITH_IMM, VERBS_MESSAGE << 24, 0},
		{IBV_WR_RDMA_WRITE_WITH_IMM, VERBS_CONTROL << 24 | 5, 0},
	};
	struct pair p = pair_up();

	for (uint32_t i = 0; i < ARRAY_SIZE(wrong); i++) {
		post_wrong(p.a, wrong[i].opcode, wrong[i].word, wrong[i].bytes);
		wait_for(p.b, &p.b->downs, i + 1);
		CHECK(p.b->down_code == -EPROTO);
		wait_for(p.a, &p.a->ups, i + 2);
		wait_for(p.b, &p.b->ups, i + 2);
	}
	use(&p, 100);
	pair_down(&p);
}

/* ---- costs ---------------------------------------------------------------------------------------- */

struct cost {
	uint64_t requests, doorbells, signalled;
};

static struct cost cost_since(const struct end *e, struct cost before)
{
	struct net_counters c;

	net_counters(e->peer, &c);
	return (struct cost){c.requests - before.requests, c.calls_out - before.doorbells,
		c.signalled - before.signalled};
}

static void expect_cost(const struct end *e, struct cost before, uint64_t requests,
	uint64_t doorbells, uint64_t signalled)
{
	struct cost c = cost_since(e, before);

	assert_int_equal(c.requests, requests);
	assert_int_equal(c.doorbells, doorbells);
	assert_int_equal(c.signalled, signalled);
}

static void each_thing_costs_what_is_written(void **state)
{
	struct pair p = pair_up();
	struct cost none = {0}, before = cost_since(p.a, none);
	struct net_op ops[16], *all = ops;

	/* a message: one request, no completion */
	CHECK(net_send(p.a->peer, &(struct net_message){.type = MESSAGE_PLAIN}, 0) == 0);
	expect_cost(p.a, before, 1, 1, 0);
	/* a page and its message: two behind one doorbell, one completion */
	before = cost_since(p.a, none);
	ops[0] = (struct net_op){.kind = NET_WRITE,
		.local = p.a->memory,
		.length = PAGE_SIZE,
		.message = {.type = MESSAGE_WRITTEN}};
	CHECK(net_post(p.a->peer, &ops[0], 0) == 0);
	CHECK(net_op_wait(p.a->peer, &ops[0]) == 0);
	expect_cost(p.a, before, 2, 1, 1);
	/* a batch of 16 pages: a chain, whose messages leave with one send */
	before = cost_since(p.a, none);
	for (unsigned i = 0; i < 16; i++) {
		ops[i] = ops[0];
		ops[i].offset = i * PAGE_SIZE;
		CHECK(net_post(p.a->peer, &all[i], i < 15 ? NET_MORE : 0) == 0);
	}
	for (unsigned i = 0; i < 16; i++)
		CHECK(net_op_wait(p.a->peer, &ops[i]) == 0);
	expect_cost(p.a, before, 17, 1, 1);
	/* 32 messages, as an eviction batch sends them */
	before = cost_since(p.a, none);
	for (unsigned i = 0; i < 32; i++)
		CHECK(net_send(p.a->peer, &(struct net_message){.type = MESSAGE_PLAIN},
			      i < 31 ? NET_MORE : 0) == 0);
	expect_cost(p.a, before, 1, 1, 0);
	/* a region's memory is registered once and for all */
	{
		struct net_counters c;

		net_counters(p.a->peer, &c);
		assert_int_equal(c.registered, 0);
	}
	pair_down(&p);
}

int main(int argc, char **argv)
{
#define TEST(name) cmocka_unit_test_setup_teardown(name, setup, teardown)
	const struct CMUnitTest tests[] = {
		TEST(a_device_without_memory_windows),
		TEST(a_device_that_has_nothing_inline),
		TEST(a_device_with_small_queues),
		TEST(a_device_without_atomics),
		TEST(what_cannot_be_made_is_told_and_tried_again),
		TEST(each_limit_of_the_device_is_named),
		TEST(what_lacks_is_told_by_what_may_be_locked),
		TEST(what_is_registered_may_be_huge_pages),
		TEST(a_node_that_has_all_queue_pairs_asks_for_no_more),
		TEST(reads_under_way_are_what_both_can_do),
		TEST(no_device_leads_there),
		TEST(who_has_no_device_does_not_listen),
		TEST(each_address_leads_to_a_queue_pair),
		TEST(another_token_is_refused),
		TEST(a_request_that_is_lost_times_out),
		TEST(requests_that_fail_end_the_link),
		TEST(what_cannot_be_posted_ends_the_link),
		TEST(local_memory_that_cannot_be_registered),
		TEST(a_device_that_is_gone),
		TEST(a_device_that_is_pulled_out),
		TEST(what_is_malformed_ends_the_link),
		TEST(each_thing_costs_what_is_written),
	};
#undef TEST

	rt_real_start();
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
