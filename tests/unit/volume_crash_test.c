/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Power cuts at every disk request of a random workload of mini-transactions on pages,
 * and in the recovery after it. What is found must be the state behind some operation,
 * none half done, and none of those lost that a flush had made durable.
 *
 * The model is the list of operations in the log's order. One task makes them, so at a
 * cut at most the last one is in doubt.
 */
#include "tests/unit/volume_fixture.h"

#define OPS_MAX     400u
#define CHANGES_MAX 6u
#define LIVE_MAX    160u

enum op_kind { OP_ALLOCATE, OP_CHANGE, OP_FREE };

struct change {
	page_id pid;
	uint64_t incarnation;
	uint16_t offset, length;
	uint8_t fill;
};

struct op {
	enum op_kind kind;
	unsigned count;
	struct change change[CHANGES_MAX];
	lsn_t end; /* 0: its commit has not returned */
};

struct live {
	page_id pid;
	uint64_t incarnation, version;
	uint8_t image[PAGE_SIZE];
};

/* Outlives nodes: the harness's. */
static struct op ops[OPS_MAX];
static unsigned op_count;
static lsn_t durable;
static struct live live[LIVE_MAX], replay[LIVE_MAX];
static unsigned live_count, replay_count;
static uint64_t total_free; /* of the empty volume */

/* ---- the model ------------------------------------------------------------------- */

static struct live *state_find(struct live *state, unsigned n, page_id pid)
{
	for (unsigned i = 0; i < n; i++)
		if (state[i].pid == pid)
			return &state[i];
	return NULL;
}

static void state_apply(struct live *state, unsigned *n, const struct op *op)
{
	for (unsigned i = 0; i < op->count; i++) {
		const struct change *c = &op->change[i];
		struct live *l = state_find(state, *n, c->pid);

		if (op->kind == OP_FREE) {
			CHECK(l && l->incarnation == c->incarnation);
			*l = state[--*n];
			continue;
		}
		if (op->kind == OP_ALLOCATE) {
			CHECK(!l && *n < LIVE_MAX); /* nothing is handed out twice */
			l = &state[(*n)++];
			memset(l, 0, sizeof(*l));
			l->pid = c->pid;
			l->incarnation = c->incarnation;
		}
		CHECK(l && l->incarnation == c->incarnation);
		memset(l->image + c->offset, c->fill, c->length);
		l->version++;
	}
}

/* ---- the workload ---------------------------------------------------------------- */

static struct change change_make(page_id pid, uint64_t incarnation)
{
	struct change c = {
		.pid = pid, .incarnation = incarnation, .fill = (uint8_t)pick(256)};

	c.length = (uint16_t)(1 + pick(pick(4) ? 40 : 3000));
	c.offset = (uint16_t)pick(PAGE_SIZE - c.length + 1);
	return c;
}

/* Latches all pages and groups of the operation. False: everything is let go. */
static bool op_latch(struct volume *v, struct mtr *m, const struct op *op)
{
	for (unsigned i = 0; i < op->count; i++) {
		const struct change *c = &op->change[i];
		int rc;

		if (op->kind != OP_CHANGE &&
			!mtr_need(m, space_group_of(v->space, c->pid), 0))
			return false;
		if (op->kind == OP_ALLOCATE) {
			if (mtr_fresh(m, c->pid, c->incarnation, &rc))
				continue;
			CHECK(rc == -EAGAIN);
			mtr_abort(m);
			OK(mtr_prepare_fresh(v->cache, c->pid, c->incarnation));
			return false;
		}
		if (op->kind == OP_CHANGE && !mtr_need(m, c->pid, c->incarnation))
			return false;
	}
	return true;
}

static void op_do(struct volume *v, struct op *op, const struct space_run *run)
{
	struct mtr *m = rt_alloc(sizeof(*m));
	struct log_position pos;

	if (op->kind == OP_ALLOCATE)
		for (unsigned i = 0; i < op->count; i++)
			OK(mtr_prepare_fresh(
				v->cache, op->change[i].pid, run->incarnation));
	do
		OK(mtr_begin(m, v->cache, CHANGES_MAX * 2));
	while (!op_latch(v, m, op));
	if (op->kind == OP_ALLOCATE)
		OK(space_take(v->space, m, run));
	for (unsigned i = 0; i < op->count; i++) {
		const struct change *c = &op->change[i];
		uint8_t bytes[PAGE_SIZE];
		int rc;

		if (op->kind == OP_FREE) {
			OK(space_free(v->space, m, c->pid, 1));
			continue;
		}
		memset(bytes, c->fill, c->length);
		mtr_write(mtr_latch(m, c->pid, c->incarnation, &rc), c->offset, bytes,
			c->length);
	}
	state_apply(live, &live_count, op);
	op_count++; /* from here on a cut may find it in the log */
	pos = mtr_commit(m);
	op->end = pos.end;
	rt_free(m);
	for (unsigned i = 0; i < op->count; i++) {
		struct page_ref ref = {op->change[i].pid, op->change[i].incarnation};

		if (op->kind != OP_FREE)
			continue;
		space_committed(v->space, ref.pid, 1, true, pos.end);
		cache_discard(v->cache, &ref, 1);
	}
	if (op->kind == OP_ALLOCATE)
		space_committed(v->space, run->pid, run->length, false, pos.end);
}

static void op_random(struct volume *v)
{
	struct op *op = &ops[op_count];
	struct space_run run = {0};
	unsigned want = 1 + (unsigned)pick(CHANGES_MAX - 1);

	*op = (struct op){.kind = OP_CHANGE};
	if (live_count < 20 || (live_count + CHANGES_MAX < LIVE_MAX && pick(4) == 0))
		op->kind = OP_ALLOCATE;
	else if (pick(5) == 0)
		op->kind = OP_FREE;
	if (op->kind == OP_ALLOCATE) {
		page_id goal =
			live_count && pick(2) ? live[pick(live_count)].pid + 1 : PID_NONE;

		OK(space_reserve(
			v->space, goal, want, pick(3) ? 0 : SPACE_METADATA, &run));
		for (; op->count < run.length; op->count++)
			op->change[op->count] =
				change_make(run.pid + op->count, run.incarnation);
	}
	while (op->kind != OP_ALLOCATE && op->count < want) {
		const struct live *l = &live[pick(live_count)];
		bool twice = false;

		for (unsigned i = 0; i < op->count; i++)
			twice |= op->change[i].pid == l->pid;
		if (!twice)
			op->change[op->count++] = change_make(l->pid, l->incarnation);
	}
	op_do(v, op, &run);
}

struct work {
	unsigned frames;
	bool background;
	unsigned ops;
};

static void work_main(void *arg)
{
	const struct work *w = arg;
	struct volume *v = volume_must(
		"d", (struct open_how){.background = w->background, .frames = w->frames});

	while (op_count < w->ops) {
		op_random(v);
		if (pick(10) == 0) {
			lsn_t end = ops[op_count - 1].end;

			OK(log_flush(v->log, end));
			durable = end;
		}
		if (pick(40) == 0)
			OK(volume_sync(v));
		if (pick(20) == 0)
			rt_sleep_ns(pick(2000) * 1000);
	}
	OK(volume_close(v));
	durable = LSN_MAX;
}

/* ---- what is found --------------------------------------------------------------- */

/* Are exactly the state's pages in use? The counter fits, so it is enough that they are.
 */
static bool bits_stand(struct volume *v)
{
	if (free_pages(v) != total_free - replay_count)
		return false;
	for (unsigned i = 0; i < replay_count; i++) {
		page_id pid = space_group_of(v->space, replay[i].pid);
		uint64_t index = replay[i].pid - pid - 1;
		const struct disk_group *d;
		struct guard g;
		bool set;

		OK(guard_shared(v->cache, pid, 0, &g));
		d = (const struct disk_group *)g.image;
		set = (d->bitmap[index / 8] >> index % 8 & 1) &&
		      d->next_incarnation > replay[i].incarnation;
		guard_release(v->cache, &g);
		if (!set)
			return false;
	}
	return true;
}

static bool state_stands(struct volume *v)
{
	for (unsigned i = 0; i < replay_count; i++) {
		const struct live *l = &replay[i];
		struct guard g;
		bool same;

		/* -ESTALE: of a newer incarnation than this state has */
		if (guard_shared(v->cache, l->pid, l->incarnation, &g))
			return false;
		same = g.frame->version == l->version &&
		       memcmp(g.image, l->image, PAGE_SIZE) == 0;
		guard_release(v->cache, &g);
		if (!same)
			return false;
	}
	return bits_stand(v);
}

/* The volume is in the state behind one of the operations; those known durable are in it.
 */
static void verify(struct volume *v)
{
	unsigned done = 0;

	replay_count = 0;
	while (done < op_count && ops[done].end && ops[done].end <= durable)
		state_apply(replay, &replay_count, &ops[done++]);
	while (!state_stands(v)) {
		if (done == op_count) {
			fprintf(stderr, "no state fits: %u operations, durable to %llu\n",
				op_count, (unsigned long long)durable);
			abort();
		}
		state_apply(replay, &replay_count, &ops[done++]);
	}
}

static void verify_main(void *arg)
{
	const struct open_how *how = arg;
	struct volume *v = volume_must("d", *how);

	verify(v);
	OK(volume_close(v));
}

static uint64_t disk_sum(struct rt_sim_disk *d, uint64_t bytes)
{
	static uint64_t piece[(1u << 20) / 8];
	uint64_t sum = 0;

	for (uint64_t at = 0; at < bytes; at += sizeof(piece)) {
		rt_sim_disk_peek(d, at, piece, sizeof(piece));
		for (unsigned i = 0; i < ARRAY_SIZE(piece); i++)
			sum = (sum ^ piece[i]) * 0x100000001b3ull + at;
	}
	return sum;
}

/* ---- the runs -------------------------------------------------------------------- */

#define DISK_BYTES (12 * MIB)

static void model_reset(void)
{
	op_count = 0;
	durable = 0;
	live_count = 0;
}

static struct rt_sim_disk *make_empty(uint32_t atomic_bytes)
{
	struct rt_sim_disk_options o = {.atomic_write_bytes = atomic_bytes};
	struct rt_sim_disk *d = rt_sim_disk_create("empty", DISK_BYTES, &o);
	struct volume *v;

	volume_make("empty", 2 * MIB);
	v = volume_must("empty", (struct open_how){.background = false});
	total_free = free_pages(v);
	OK(volume_close(v));
	return d;
}

/* One cut at the n-th request of the workload. False: it ran to its end. */
static bool cut_run(
	struct rt_sim_disk *empty, struct work *w, uint64_t n, bool recovery_cut)
{
	struct open_how again = {.frames = w->frames, .background = w->background};
	struct rt_sim_disk *d = rt_sim_disk_copy("d", empty);
	bool cut;

	model_reset();
	pick_seed(7);
	rt_sim_disk_cut_after(d, n);
	cut = node_run(work_main, w);
	rt_sim_disk_cut_after(d, 0);
	for (unsigned more = 0; recovery_cut && more < 3; more++) {
		rt_sim_disk_cut_after(d, 1 + pick(60));
		node_run(verify_main, &again);
		rt_sim_disk_cut_after(d, 0);
	}
	CHECK(!node_run(verify_main, &again));
	CHECK(!node_run(verify_main, &again)); /* and nothing is lost by a clean end */
	rt_sim_disk_destroy(d);
	return cut;
}

struct plan {
	struct work work;
	uint32_t atomic_bytes;
	unsigned step; /* cuts are so far apart, at most */
	bool (*run)(struct rt_sim_disk *empty, struct plan *plan, uint64_t n);
	/* state */
	uint64_t n;
	unsigned cuts, refused;
	bool finished;
};

static bool run_cut(struct rt_sim_disk *empty, struct plan *p, uint64_t n)
{
	return cut_run(empty, &p->work, n, false);
}

static bool run_cut_and_cut_again(struct rt_sim_disk *empty, struct plan *p, uint64_t n)
{
	return cut_run(empty, &p->work, n, true);
}

static bool run_cut_then_read_only(struct rt_sim_disk *empty, struct plan *p, uint64_t n)
{
	struct open_how how = {.read_only = true, .frames = 2048};
	struct rt_sim_disk *d = rt_sim_disk_copy("d", empty);
	uint64_t before;
	bool cut;

	model_reset();
	pick_seed(7);
	rt_sim_disk_cut_after(d, n);
	cut = node_run(work_main, &p->work);
	rt_sim_disk_cut_after(d, 0);
	before = disk_sum(d, DISK_BYTES);
	CHECK(!node_run(verify_main, &how));
	CHECK(before == disk_sum(d, DISK_BYTES));
	how.read_only = false;
	CHECK(!node_run(verify_main, &how));
	rt_sim_disk_destroy(d);
	return cut;
}

static bool run_cut_then_small_read_only(
	struct rt_sim_disk *empty, struct plan *p, uint64_t n)
{
	struct open_how how = {.read_only = true, .frames = 64};
	struct rt_sim_disk *d = rt_sim_disk_copy("d", empty);
	struct weft_error err = {0};
	struct volume *v;
	uint64_t before;
	bool cut;
	int rc;

	model_reset();
	pick_seed(7);
	rt_sim_disk_cut_after(d, n);
	cut = node_run(work_main, &p->work);
	rt_sim_disk_cut_after(d, 0);
	before = disk_sum(d, DISK_BYTES);
	rc = volume_try(&v, "d", how, &err);
	if (rc) {
		CHECK(rc == -ENOMEM && strstr(err.text, "read-write once"));
		p->refused++;
	} else {
		/* what is left of the cache may be too little to look at everything */
		OK(volume_close(v));
	}
	CHECK(before == disk_sum(d, DISK_BYTES));
	rt_sim_disk_destroy(d);
	return cut;
}

/* As many cuts as one simulated run has nodes for. WEFT_CUT_STEP=4 leaves some out where a test has
 * all. */
static int plan_part(void *arg)
{
	struct plan *p = arg;
	const char *wider = getenv("WEFT_CUT_STEP");
	unsigned step = p->step == 1 && wider ? (unsigned)MAX(atoi(wider), 1) : p->step;
	struct rt_sim_disk *empty = make_empty(p->atomic_bytes);

	for (unsigned i = 0; i < 150 && !p->finished; i++) {
		p->n += 1 + (p->n * 2654435761u >> 7) % step;
		if (p->run(empty, p, p->n))
			p->cuts++;
		else
			p->finished = true;
	}
	return 0;
}

static void plan_run(struct plan plan)
{
	for (uint64_t seed = 1; !plan.finished; seed++)
		assert_int_equal(rt_sim_run(seed, NULL, plan_part, &plan), 0);
	printf("             %u cuts\n", plan.cuts);
	assert_true(plan.cuts > 20);
	if (plan.run == run_cut_then_small_read_only)
		assert_true(plan.refused > 0);
}

static void test_every_cut_leaves_a_whole_state(void **state)
{
	plan_run((struct plan){.run = run_cut,
		.step = 1,
		.atomic_bytes = 4096,
		.work = {.frames = 64, .background = false, .ops = 150}});
}

static void test_every_cut_on_a_tearing_device(void **state)
{
	plan_run((struct plan){.run = run_cut,
		.step = 1,
		.atomic_bytes = 512,
		.work = {.frames = 64, .background = true, .ops = 150}});
}

static void test_cuts_in_recovery_on_a_tearing_device(void **state)
{
	plan_run((struct plan){.run = run_cut_and_cut_again,
		.step = 15,
		.atomic_bytes = 512,
		.work = {.frames = 64, .background = true, .ops = 300}});
}

static void test_cuts_in_recovery_without_tasks(void **state)
{
	plan_run((struct plan){.run = run_cut_and_cut_again,
		.step = 15,
		.atomic_bytes = 4096,
		.work = {.frames = 64, .background = false, .ops = 300}});
}

static void test_large_cache_recovers_from_the_log_alone(void **state)
{
	plan_run((struct plan){.run = run_cut,
		.step = 9,
		.atomic_bytes = 512,
		.work = {.frames = 1024, .background = true, .ops = 300}});
}

static void test_read_only_open_replays_and_writes_nothing(void **state)
{
	plan_run((struct plan){.run = run_cut_then_read_only,
		.step = 20,
		.atomic_bytes = 512,
		.work = {.frames = 64, .background = true, .ops = 200}});
}

static void test_read_only_open_says_when_its_cache_is_too_small(void **state)
{
	plan_run((struct plan){.run = run_cut_then_small_read_only,
		.step = 5,
		.atomic_bytes = 512,
		.work = {.frames = 1024, .ops = 400}});
}

/* A cut is no damage: whatever it left half written is made good without alarm. */
static void sink_without_damage(int level, const char *line)
{
	fprintf(stderr, "weft: %s\n", line);
	WEFT_ASSERT(!strstr(line, "run fsck.weft"));
}

/* An argument picks tests by name ("*read_only*"). */
int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(test_every_cut_leaves_a_whole_state),
		cmocka_unit_test(test_every_cut_on_a_tearing_device),
		cmocka_unit_test(test_cuts_in_recovery_on_a_tearing_device),
		cmocka_unit_test(test_cuts_in_recovery_without_tasks),
		cmocka_unit_test(test_large_cache_recovers_from_the_log_alone),
		cmocka_unit_test(test_read_only_open_replays_and_writes_nothing),
		cmocka_unit_test(test_read_only_open_says_when_its_cache_is_too_small),
	};

	weft_log_sink = sink_without_damage;
	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
