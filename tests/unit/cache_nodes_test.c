/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes that share pages, on real threads, over tcp and over shm, or over the
 * RDMA device that has the address WEFT_RDMA_ADDRESS. Run it under
 * ThreadSanitizer. (The same on the simulated runtime, with every order of events that a
 * seed may choose: tests/sim/nodes_test.c.)
 *
 * Each page has a counter, and bytes that follow from it. Tasks of all nodes count up, some
 * in two pages together, and look; no count is lost, nobody reads less than was counted
 * before it looked, nobody sees half a change. In the end each store has the last count.
 *
 *   WEFT_LONGER=20 build/tests/unit/cache_nodes_test
 */
#include "tests/unit/cache_fixture.h"
#include <inttypes.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/coherence/protocol/protocol.h"
#include "tests/world/expect.h"
#include "tests/world/world.h"

#define PAGES     200
#define PAGES_MAX 514
#define TASKS     3
#define STEPS     800
#define BASE_SLOT 10

struct page_model {
	_Atomic uint64_t begun, committed;
};

static struct world world;
static struct engine engines[NODES_MAX];
static struct page_model model[PAGES_MAX];
static unsigned pages, frames, steps, dirty_age_ms;

static page_id pid_of(unsigned i)
{
	return pid_make((uint16_t)(i % world.nodes), BASE_SLOT + i);
}

static void page_make(uint8_t *image, page_id pid, uint64_t count)
{
	if (count)
		fill(image, pid, count);
	else
		memset(image, 0, PAGE_SIZE);
}

/* The page's count; its bytes are all of that count. */
static uint64_t count_of(page_id pid, const uint8_t *image)
{
	uint64_t first = page_load_u64(image);
	uint8_t want[PAGE_SIZE];

	page_make(want, pid, first ? (first - pid * 1000003) / 31 : 0);
	if (memcmp(want, image, PAGE_SIZE)) {
		fprintf(stderr, "page %u:%" PRIu64 " is half changed\n", pid_shard(pid),
			(uint64_t)pid_slot(pid));
		abort();
	}
	return first ? (first - pid * 1000003) / 31 : 0;
}

static void expect(unsigned i, uint64_t least, const uint8_t *image)
{
	uint64_t count = count_of(pid_of(i), image), most = atomic_load(&model[i].begun);

	if (count >= least && count <= most)
		return;
	fprintf(stderr, "page %u has count %" PRIu64 ", not %" PRIu64 "..%" PRIu64 "\n",
		i, count, least, most);
	abort();
}

/* ---- what tasks do ------------------------------------------------------------------------ */

static void count_data(struct engine *e, unsigned i)
{
	page_id pid = pid_of(i);
	struct guard g;

	atomic_fetch_add(&model[i].begun, 1);
	OK(guard_exclusive(e->cache, pid, 1, &g));
	fill(g.image, pid, count_of(pid, g.image) + 1);
	guard_release_dirty(e->cache, &g, false);
	atomic_fetch_add(&model[i].committed, 1);
}

static int latch_two(
	struct mtr *m, const struct page_ref refs[2], struct mtr_page *held[2])
{
	int e = 0;

	for (unsigned k = 0; k < 2 && !e; k++)
		held[k] = mtr_latch(m, refs[k].pid, refs[k].incarnation, &e);
	return e;
}

static void count_together(struct engine *e, unsigned a, unsigned b)
{
	struct page_ref refs[2] = {{pid_of(a), 1}, {pid_of(b), 1}};
	struct mtr *m = rt_alloc(sizeof(*m));
	struct mtr_page *held[2];
	uint8_t image[PAGE_SIZE];
	int rc = -EAGAIN;

	atomic_fetch_add(&model[a].begun, 1);
	atomic_fetch_add(&model[b].begun, 1);
	while (rc == -EAGAIN) {
		OK(cache_fetch_exclusive(e->cache, refs, 2));
		OK(mtr_begin(m, e->cache, 2));
		rc = latch_two(m, refs, held);
		if (rc)
			mtr_abort(m);
		if (rc == -EAGAIN)
			rt_sleep_ns(rt_random() % 100000);
	}
	OK(rc);
	for (unsigned k = 0; k < 2; k++) {
		fill(image, refs[k].pid, count_of(refs[k].pid, held[k]->guard.image) + 1);
		mtr_write(held[k], 0, image, PAGE_SIZE);
	}
	mtr_commit(m);
	rt_free(m);
	atomic_fetch_add(&model[a].committed, 1);
	atomic_fetch_add(&model[b].committed, 1);
}

static void look(struct engine *e, unsigned i)
{
	uint64_t least = atomic_load(&model[i].committed);
	struct guard g;

	OK(guard_shared(e->cache, pid_of(i), 1, &g));
	expect(i, least, g.image);
	guard_release(e->cache, &g);
}

static void look_optimistic(struct engine *e, unsigned i)
{
	uint64_t least = atomic_load(&model[i].committed);
	uint8_t copy[PAGE_SIZE];
	struct guard g;

	do {
		OK(guard_optimistic(e->cache, pid_of(i), NULL, &g));
		page_copy_out(copy, g.image, PAGE_SIZE);
	} while (!guard_valid(&g));
	expect(i, least, copy);
	guard_used(e->cache, &g);
}

static void look_at_many(struct engine *e, unsigned first)
{
	struct page_ref refs[6];
	struct guard g[6];
	uint64_t least[6];
	unsigned count = MIN(6u, pages);

	for (unsigned k = 0; k < count; k++) {
		refs[k] = (struct page_ref){pid_of((first + k) % pages), 1};
		least[k] = atomic_load(&model[(first + k) % pages].committed);
	}
	if (rt_random() % 2) {
		cache_prefetch(e->cache, refs, count, rt_random() % 2);
		return;
	}
	OK(guard_shared_batch(e->cache, refs, count, false, g));
	for (unsigned k = 0; k < count; k++) {
		expect((first + k) % pages, least[k], g[k].image);
		guard_release(e->cache, &g[k]);
	}
}

static void step(struct engine *e, unsigned i)
{
	struct page_ref ref = {pid_of(i), 1};

	switch (rt_random() % 12) {
	case 0 ... 3:
		count_data(e, i);
		break;
	case 4 ... 5:
		count_together(
			e, i, (unsigned)(i + 1 + rt_random() % (pages - 1)) % pages);
		break;
	case 6:
		OK(cache_sync(e->cache, &ref, 1, 0));
		break;
	case 7 ... 8:
		look(e, i);
		break;
	case 9:
		look_at_many(e, i);
		break;
	default:
		look_optimistic(e, i);
	}
}

static void worker_main(void *arg)
{
	struct engine *e = arg;

	for (unsigned n = 0; n < steps; n++) {
		unsigned i = (unsigned)(rt_random() % pages);

		step(e, rt_random() % 3 ? i : i % 6); /* some pages are everybody's */
	}
}

/* ---- a node ------------------------------------------------------------------------------- */

static void engine_begin(struct node *n, struct engine *e)
{
	struct cache_options co = {
		.cache_bytes = frames * PAGE_SIZE, .dirty_age_ms = dirty_age_ms};

	engine_open_log(e, n->file.path);
	e->coherence = node_provide(n, e->store, e->log);
	OK(cache_open(&e->cache, e->store, e->log, e->coherence, &co));
	node_join(n);
	OK(cache_start(e->cache));
}

/* What is dirty anywhere is persisted at its home, and told to who owes it. */
static void engine_settle(struct node *n, struct engine *e)
{
	for (unsigned round = 0; round < 3; round++) {
		OK(cache_checkpoint(e->cache));
		owed_ship(e->cache, LSN_MAX, false);
		barrier(n);
	}
	HOLDS(cache_dirty_pages(e->cache) == 0 && e->cache->revoke.owed_count == 0);
}

static void engine_check(struct node *n, struct engine *e)
{
	uint8_t *image = rt_alloc_pages(PAGE_SIZE);

	for (unsigned i = 0; i < pages; i++) {
		struct store_read r = {.pid = pid_of(i), .image = image};

		HOLDS(model[i].begun == model[i].committed);
		if (i % n->w->nodes != n->id - 1 || !model[i].committed)
			continue;
		store_read_pages(e->store, &r, 1);
		HOLDS(r.result == 0);
		expect(i, model[i].committed, image);
	}
	rt_free_pages(image, PAGE_SIZE);
}

static void node_main(void *arg)
{
	struct node *n = arg;
	struct engine *e = &engines[n->id - 1];
	struct rt_task *task[TASKS];

	engine_begin(n, e);
	for (unsigned i = 0; i < TASKS; i++)
		OK(rt_task_spawn(&task[i], "worker", worker_main, e));
	for (unsigned i = 0; i < TASKS; i++)
		rt_task_join(task[i]);
	barrier(n);
	engine_settle(n, e);
	cache_stop(e->cache);
	engine_check(n, e);
	HOLDS(node_sent(n) > 0);
	node_part_all(n);
	engine_close(e);
}

#define AHEAD 8

/* Node 1 changes what node 2 has read ahead and not used: nobody waits for that use. */
static void ahead_main(void *arg)
{
	struct node *n = arg;
	struct engine *e = &engines[n->id - 1];
	struct page_ref refs[AHEAD];

	engine_begin(n, e);
	for (unsigned i = 0; i < AHEAD; i++)
		refs[i] = (struct page_ref){pid_of(i * n->w->nodes), 1}; /* node 1's */
	for (unsigned i = 0; n->id == 1 && i < AHEAD; i++)
		count_data(e, i * n->w->nodes);
	barrier(n);
	if (n->id == 2) {
		cache_prefetch(e->cache, refs, AHEAD, true);
		while (cache_counters(e->cache)->prefetches < AHEAD)
			rt_sleep_ns(100000);
	}
	barrier(n);
	for (unsigned i = 0; n->id == 1 && i < AHEAD; i++)
		count_data(e, i * n->w->nodes);
	barrier(n);
	HOLDS(coherence_counters(n->coherence)->forced == 0);
	for (unsigned i = 0; i < AHEAD; i++)
		look(e, i * n->w->nodes);
	barrier(n);
	engine_settle(n, e);
	cache_stop(e->cache);
	node_part_all(n);
	engine_close(e);
}

/* ---- 1 MiB of another node's memory ------------------------------------------------------- */

#define BATCH        256
#define BATCH_FRAMES (BATCH * 8 + 64)
#define BATCH_CALLS  16 /* in which the requests leave */
/* Grants whose image comes a moment later, with a message of its own: its frame was in use. */
#define BATCH_LATER 16

/* What node 1 has heard of node 2's requests, and answers only when it has heard all. */
static struct {
	_Atomic bool on;
	_Atomic uint32_t count;
	struct net_message m[BATCH];
} heard;

static bool takes_requests(
	struct node *n, struct net_peer *peer, const struct net_message *m)
{
	uint32_t count = atomic_load(&heard.count);

	if (n->id != 1 || m->type != PAGE_REQUEST || !atomic_load(&heard.on))
		return false;
	HOLDS(count < BATCH);
	heard.m[count++] = *m;
	for (uint32_t i = 0; count == BATCH && i < BATCH; i++)
		coherence_message(n->coherence, peer, &heard.m[i]);
	atomic_store(&heard.count, count);
	return true;
}

static void batch_read(struct node *n, struct engine *e)
{
	struct net_peer *peer = net_peer_find(n->net, 1);
	uint64_t fetches = atomic_load(&cache_counters(e->cache)->fetch_requests);
	uint64_t before = node_sent(n);
	struct net_counters was, now;
	struct page_ref refs[BATCH];
	struct guard g[BATCH];

	HOLDS(cache_batch_max(e->cache) == BATCH);
	for (unsigned i = 0; i < BATCH; i++)
		refs[i] = (struct page_ref){pid_of(i * 2), 1}; /* node 1's */
	net_counters(peer, &was);
	OK(guard_shared_batch(e->cache, refs, BATCH, false, g));
	net_counters(peer, &now);
	for (unsigned i = 0; i < BATCH; i++) {
		expect(i * 2, 1, g[i].image);
		guard_release(e->cache, &g[i]);
	}
	HOLDS(node_sent(n) - before == BATCH);
	HOLDS(now.messages_out - was.messages_out == BATCH);
	HOLDS(now.messages_in - was.messages_in >= BATCH);
	HOLDS(now.messages_in - was.messages_in <= BATCH + BATCH_LATER);
	HOLDS(cache_counters(e->cache)->fetch_requests - fetches == 1);
	HOLDS(now.calls_out - was.calls_out <= BATCH_CALLS);
}

/* Requests that are not all under way before the first answer is here never are. */
static void batch_await(void)
{
	for (unsigned i = 0; i < 60000 && atomic_load(&heard.count) < BATCH; i++)
		rt_sleep_ns(1000000);
	if (atomic_load(&heard.count) == BATCH)
		return;
	fprintf(stderr, "%u requests of %u have come without an answer\n",
		atomic_load(&heard.count), BATCH);
	abort();
}

/* Each has had a page of the other's: so all that was to be said about the links was said. */
static void batch_greet(struct node *n, struct engine *e)
{
	unsigned own = 2 * BATCH + n->id - 1, others = 2 * BATCH + 2 - n->id;

	count_data(e, own);
	barrier(n);
	look(e, others);
	barrier(n);
}

static void batch_main(void *arg)
{
	struct node *n = arg;
	struct engine *e = &engines[n->id - 1];
	struct net_counters was, now;

	engine_begin(n, e);
	for (unsigned i = 0; n->id == 1 && i < BATCH; i++)
		count_data(e, i * 2);
	batch_greet(n, e);
	net_counters(net_peer_find(n->net, (uint16_t)(3 - n->id)), &was);
	atomic_store(&heard.on, true);
	barrier(n);
	if (n->id == 2)
		batch_read(n, e);
	else
		batch_await();
	barrier(n);
	atomic_store(&heard.on, false);
	net_counters(net_peer_find(n->net, (uint16_t)(3 - n->id)), &now);
	HOLDS(now.writes_out - was.writes_out == (n->id == 1 ? BATCH : 0));
	HOLDS(now.reads_out == was.reads_out);
	barrier(n);
	engine_settle(n, e);
	cache_stop(e->cache);
	node_part_all(n);
	engine_close(e);
}

static void share_by(const char *transport, unsigned nodes, unsigned with_pages,
	unsigned with_frames, void (*fn)(void *arg))
{
	const char *longer = getenv("WEFT_LONGER");

	world_make_real(&world, transport, nodes, NULL, 64 << 20);
	world.takes = fn == batch_main ? takes_requests : NULL;
	dirty_age_ms = fn == batch_main ? 3600000 : 40;
	memset(&heard, 0, sizeof(heard));
	pages = with_pages;
	frames = with_frames;
	steps = STEPS * (longer ? (unsigned)atoi(longer) : 1);
	memset(model, 0, sizeof(model));
	for (unsigned i = 0; i < nodes; i++)
		engine_format_shard(world.node[i].file.path, 4 << 20, (uint16_t)i);
	world_run_real(&world, fn);
	world_drop_real(&world);
}

static void share(
	const char *transport, unsigned nodes, unsigned with_pages, unsigned with_frames)
{
	share_by(transport, nodes, with_pages, with_frames, node_main);
}

static void nodes_share_pages_that_fit_their_caches(void **state)
{
	share(*state, 3, 40, 160);
}

static void nodes_share_pages_that_do_not_fit_their_caches(void **state)
{
	share(*state, 2, PAGES, 64);
}

static void nodes_want_the_same_few_pages(void **state)
{
	share(*state, 3, 4, 64);
}

static void what_was_read_ahead_is_given_at_once(void **state)
{
	share_by(*state, 2, 40, 160, ahead_main);
}

static void a_mebibyte_is_one_round_of_messages(void **state)
{
	share_by(*state, 2, PAGES_MAX, BATCH_FRAMES, batch_main);
}

static char tcp[] = "tcp", shm[] = "shm", verbs[] = "verbs";

#define OVER(transport, test)                                                            \
	{                                                                                \
		.name = #test ", " #transport, .test_func = (test),                      \
		.initial_state = (transport)                                             \
	}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		OVER(tcp, nodes_share_pages_that_fit_their_caches),
		OVER(shm, nodes_share_pages_that_fit_their_caches),
		OVER(tcp, nodes_share_pages_that_do_not_fit_their_caches),
		OVER(shm, nodes_share_pages_that_do_not_fit_their_caches),
		OVER(tcp, nodes_want_the_same_few_pages),
		OVER(shm, nodes_want_the_same_few_pages),
		OVER(tcp, what_was_read_ahead_is_given_at_once),
		OVER(shm, what_was_read_ahead_is_given_at_once),
		OVER(tcp, a_mebibyte_is_one_round_of_messages),
		OVER(shm, a_mebibyte_is_one_round_of_messages),
	};
	const struct CMUnitTest rdma[] = {
		OVER(verbs, nodes_share_pages_that_fit_their_caches),
		OVER(verbs, nodes_share_pages_that_do_not_fit_their_caches),
		OVER(verbs, nodes_want_the_same_few_pages),
		OVER(verbs, a_mebibyte_is_one_round_of_messages),
	};

	rt_real_start();
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	if (getenv("WEFT_RDMA_ADDRESS"))
		return cmocka_run_group_tests(rdma, NULL, NULL);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
