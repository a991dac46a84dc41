/* SPDX-License-Identifier: Apache-2.0 */
/* Free space on whole volumes: against a model, under concurrency, on full, ragged and
 * damaged ones. */
#include "engine/cache/cache_internal.h"
#include "engine/space/space_internal.h"
#include "tests/unit/volume_fixture.h"

#define KEPT 64u

static struct volume *volume_new(uint64_t bytes, bool background)
{
	rt_sim_disk_create("d", bytes, NULL);
	volume_make("d", 2 * MIB);
	return volume_must("d", (struct open_how){.background = background});
}

/* ---- concurrent tasks against a model -------------------------------------------- */

#define SLOTS_MAX 100000u
#define TASKS     4u
#define RUNS_MAX  24u

enum slot_state { SLOT_FREE, SLOT_RESERVED, SLOT_USED, SLOT_FREED };

static struct {
	uint8_t state;
	lsn_t freed; /* end of the record that freed it */
	uint64_t incarnation;
} slots[SLOTS_MAX];

static void model_reserved(struct volume *v, const struct space_run *run)
{
	CHECK(run->length &&
		space_group_of(v->space, run->pid) ==
			space_group_of(v->space, run->pid + run->length - 1));
	for (uint32_t i = 0; i < run->length; i++) {
		uint64_t slot = pid_slot(run->pid) + i;

		CHECK(slots[slot].state == SLOT_FREE || slots[slot].state == SLOT_FREED);
		if (slots[slot].state == SLOT_FREED)
			CHECK(log_durable(v->log) >= slots[slot].freed);
		CHECK(run->incarnation > slots[slot].incarnation);
		slots[slot].state = SLOT_RESERVED;
		slots[slot].incarnation = run->incarnation;
	}
}

static void model_set(
	const struct space_run *run, enum slot_state from, enum slot_state to)
{
	for (uint32_t i = 0; i < run->length; i++) {
		CHECK(slots[pid_slot(run->pid) + i].state == from);
		slots[pid_slot(run->pid) + i].state = to;
	}
}

static void run_free(struct volume *v, struct space_run *run)
{
	struct log_position pos;

	model_set(run, SLOT_USED, SLOT_FREED);
	for (uint32_t i = 0; i < run->length; i++)
		slots[pid_slot(run->pid) + i].freed = LSN_MAX;
	pos = pages_free_commit(v, run->pid, run->length);
	for (uint32_t i = 0; i < run->length; i++)
		slots[pid_slot(run->pid) + i].freed = pos.end;
	space_committed(v->space, run->pid, run->length, true, pos.end);
	run->length = 0;
}

/* Takes a part of a reservation and gives the rest back. */
static void run_take(struct volume *v, struct space_run *run)
{
	struct space_run rest = *run;

	run->length = 1 + (uint32_t)pick(run->length);
	rest.pid += run->length;
	rest.length -= run->length;
	model_set(run, SLOT_RESERVED, SLOT_USED);
	runs_take(v, run, 1);
	model_set(&rest, SLOT_RESERVED, SLOT_FREE);
	space_unreserve(v->space, &rest);
}

struct churn {
	struct volume *v;
	unsigned tasks, steps;
	uint32_t want_max;
	bool wild; /* goals all over the volume */
};

static page_id churn_goal(
	const struct churn *c, const struct space_run *used, unsigned count)
{
	if (c->wild)
		return pick(store_superblock(c->v->store)->page_count);
	return count && pick(2) ? used[pick(count)].pid + pick(40) : PID_NONE;
}

static void churn_main(void *arg)
{
	const struct churn *c = arg;
	struct volume *v = c->v;
	struct space_run used[RUNS_MAX];
	unsigned count = 0;

	for (unsigned step = 0; step < c->steps; step++) {
		struct space_run run;
		page_id goal = churn_goal(c, used, count);
		unsigned flags =
			(pick(4) ? 0 : SPACE_METADATA) | (pick(8) ? 0 : SPACE_PRIVILEGED);
		int rc;

		if (count == RUNS_MAX || (count && pick(3) == 0)) {
			unsigned i = (unsigned)pick(count);

			run_free(v, &used[i]);
			used[i] = used[--count];
			continue;
		}
		rc = space_reserve(
			v->space, goal, 1 + (uint32_t)pick(c->want_max), flags, &run);
		if (rc) {
			CHECK(rc == -ENOSPC);
			continue;
		}
		model_reserved(v, &run);
		rt_yield();
		if (pick(4)) {
			run_take(v, &run);
			used[count++] = run;
		} else {
			model_set(&run, SLOT_RESERVED, SLOT_FREE);
			space_unreserve(v->space, &run);
		}
	}
	while (count)
		run_free(v, &used[--count]);
}

/* Every free page can be had. Reservations are left: they are memory only. */
static void all_is_found(struct volume *v)
{
	uint64_t left = free_pages(v);
	struct space_run run;

	while (left) {
		OK(space_reserve(v->space, PID_NONE, 5000, SPACE_PRIVILEGED, &run));
		CHECK(run.length && run.length <= left);
		left -= run.length;
	}
	CHECK(space_reserve(v->space, PID_NONE, 1, SPACE_PRIVILEGED, &run) == -ENOSPC);
}

static void churn(struct churn c)
{
	struct rt_task *tasks[TASKS];
	struct volume *v = c.v;
	uint64_t before = free_pages(v);

	CHECK(store_superblock(v->store)->page_count <= SLOTS_MAX);
	memset(slots, 0, sizeof(slots));
	for (unsigned i = 0; i < c.tasks; i++)
		OK(rt_task_spawn(&tasks[i], "churn", churn_main, &c));
	for (unsigned i = 0; i < c.tasks; i++)
		rt_task_join(tasks[i]);
	CHECK(free_pages(v) == before);
	all_is_found(v);
	OK(volume_close(v));
	v = volume_must("d", (struct open_how){.background = false});
	CHECK(free_pages(v) == before);
	OK(volume_close(v));
}

static int test_nothing_is_handed_out_twice_or_early(void *arg)
{
	churn((struct churn){.v = volume_new(16 * MIB, true),
		.tasks = TASKS,
		.steps = 600,
		.want_max = 40});
	return 0;
}

static int test_the_same_on_a_nearly_full_volume(void *arg)
{
	struct volume *v = volume_new(8 * MIB, true);
	struct space_run run;

	/* leave little more than what is kept back */
	while (free_pages(v) > KEPT + 150) {
		OK(space_reserve(v->space, PID_NONE, 50, 0, &run));
		runs_take(v, &run, 1);
	}
	churn((struct churn){.v = v, .tasks = TASKS, .steps = 600, .want_max = 60});
	return 0;
}

static int test_the_same_when_overlays_come_and_go(void *arg)
{
	struct volume *v = volume_new((3ull * DISK_GROUP_PAGES - 5000) * PAGE_SIZE, true);

	CHECK(v->space->group_count == 3);
	v->space->overlays_soft_max = 1;
	churn((struct churn){
		.v = v, .tasks = 3, .steps = 1000, .want_max = 3000, .wild = true});
	return 0;
}

/* ---- full volumes ---------------------------------------------------------------- */

static void fill_up(struct volume *v, unsigned flags, uint32_t want)
{
	struct space_run run;
	int rc;

	while ((rc = space_reserve(v->space, PID_NONE, want, flags, &run)) == 0)
		runs_take(v, &run, 1);
	CHECK(rc == -ENOSPC);
}

static int test_last_pages_are_kept_for_the_privileged(void *arg)
{
	struct volume *v = volume_new(8 * MIB, false);
	uint32_t pressure = space_pressure(v->space);
	struct space_run run;

	fill_up(v, 0, 100);
	CHECK(free_pages(v) == KEPT);
	CHECK(space_pressure(v->space) != pressure);
	CHECK(space_reserve(v->space, PID_NONE, 1, SPACE_METADATA, &run) == -ENOSPC);
	CHECK(run.length == 0);
	fill_up(v, SPACE_PRIVILEGED, 7);
	CHECK(free_pages(v) == 0);
	OK(volume_close(v));
	return 0;
}

static int test_reserved_pages_are_not_given_to_others(void *arg)
{
	struct volume *v = volume_new(8 * MIB, false);
	struct space_run runs[256], extra;
	unsigned n = 0;

	while (space_reserve(v->space, PID_NONE, 1000, SPACE_PRIVILEGED, &runs[n]) == 0)
		CHECK(++n < ARRAY_SIZE(runs));
	CHECK(free_pages(v) > 0); /* reservations count as free */
	CHECK(space_reserve(v->space, PID_NONE, 1, SPACE_PRIVILEGED, &extra) == -ENOSPC);
	while (n)
		space_unreserve(v->space, &runs[--n]);
	OK(space_reserve(v->space, PID_NONE, 1, 0, &extra));
	space_unreserve(v->space, &extra);
	OK(volume_close(v));
	return 0;
}

static int test_freed_pages_come_back_by_a_flush_before_enospc(void *arg)
{
	struct volume *v = volume_new(8 * MIB, false);
	struct log_position pos;
	struct space_run all, run;

	fill_up(v, SPACE_PRIVILEGED, 20);
	all.pid = pid_make(0, 3);
	pos = pages_free(v, all.pid, 10);
	CHECK(log_durable(v->log) < pos.end);
	OK(space_reserve(v->space, PID_NONE, 10, SPACE_PRIVILEGED, &run));
	CHECK(log_durable(v->log) >= pos.end);
	CHECK(run.pid == all.pid && run.length == 10);
	space_unreserve(v->space, &run);
	OK(volume_close(v));
	return 0;
}

static int test_failed_log_is_reported_instead_of_early_reuse(void *arg)
{
	struct rt_sim_fail fail = {.ops = RT_SIM_FAIL_WRITE, .n = 1, .sticky = true};
	struct rt_sim_disk *d = rt_sim_disk_create("d", 8 * MIB, NULL);
	struct space_run run;
	struct volume *v;

	volume_make("d", 2 * MIB);
	v = volume_must("d", (struct open_how){.background = false});
	fill_up(v, SPACE_PRIVILEGED, 20);
	pages_free(v, pid_make(0, 3), 10);
	rt_sim_disk_fail(d, &fail);
	CHECK(space_reserve(v->space, PID_NONE, 1, SPACE_PRIVILEGED, &run) == -EIO);
	CHECK(volume_failed(v));
	CHECK(volume_close(v) != 0);
	return 0;
}

static int test_ragged_space_is_handed_out_to_the_last_page(void *arg)
{
	struct volume *v = volume_new(8 * MIB, false);
	unsigned freed = 0, got = 0;
	struct space_run run;

	fill_up(v, SPACE_PRIVILEGED, 300);
	for (uint64_t slot = 3; slot + 2 < store_superblock(v->store)->page_count;
		slot += 2) {
		pages_free(v, pid_make(0, slot), 1);
		freed++;
	}
	while (space_reserve(v->space, PID_NONE, 8, SPACE_PRIVILEGED, &run) == 0) {
		CHECK(run.length == 1);
		got++;
	}
	CHECK(got == freed);
	OK(volume_close(v)); /* reservations are memory only */
	v = volume_must("d", (struct open_how){.background = false});
	CHECK(free_pages(v) == freed);
	OK(volume_close(v));
	return 0;
}

/* ---- groups that cannot be read -------------------------------------------------- */

/* The next look at the group's page meets a device that fails, now and later. */
static void group_lose(struct rt_sim_disk *d, struct volume *v, uint64_t group)
{
	page_id pid = group_pid(v->space, group);
	struct frame *f = table_find(v->cache, pid);
	struct rt_sim_fail fail = {.ops = RT_SIM_FAIL_READ, .n = 1, .sticky = true};

	if (f) {
		struct page_ref ref = {.pid = pid, .incarnation = f->incarnation};

		cache_discard(v->cache, &ref, 1);
	}
	fail.offset =
		store_superblock(v->store)->pages_offset + pid_slot(pid) * PAGE_SIZE;
	fail.length = PAGE_SIZE;
	rt_sim_disk_fail(d, &fail);
}

static int test_space_that_cannot_be_read_is_no_full_volume(void *arg)
{
	struct rt_sim_disk *d = rt_sim_disk_create("d", 8 * MIB, NULL);
	struct space_run run;
	struct volume *v;

	volume_make("d", 2 * MIB);
	v = volume_must("d", (struct open_how){.background = false});
	group_lose(d, v, 0);
	for (unsigned i = 0; i < 3; i++) {
		int rc = space_reserve(v->space, PID_NONE, 1 + 20 * i, 0, &run);

		CHECK(rc == -EIO && run.length == 0);
		CHECK(space_exhausted(v->space, rc));
	}
	OK(volume_close(v));
	return 0;
}

static int test_other_groups_give_all_they_have_first(void *arg)
{
	uint64_t bytes = (2ull * DISK_GROUP_PAGES - 5000) * PAGE_SIZE;
	struct rt_sim_disk *d = rt_sim_disk_create("d", bytes, NULL);
	struct space_run run, freed = {0};
	struct volume *v;
	int rc;

	volume_make("d", 2 * MIB);
	v = volume_must("d", (struct open_how){.background = false});
	CHECK(v->space->group_count == 2);
	group_lose(d, v, 1);
	while ((rc = space_reserve(v->space, PID_NONE, 900, 0, &run)) == 0) {
		CHECK(space_group_of(v->space, run.pid) == group_pid(v->space, 0));
		runs_take(v, &run, 1);
		freed = run;
	}
	CHECK(rc == -EIO);
	/* what is freed meanwhile is found, though its record is not durable yet */
	pages_free(v, freed.pid, freed.length);
	OK(space_reserve(v->space, PID_NONE, freed.length, 0, &run));
	CHECK(run.pid == freed.pid && run.length == freed.length);
	CHECK(space_reserve(v->space, PID_NONE, 1, 0, &run) == -EIO);
	OK(volume_close(v));
	return 0;
}

/* ---- where ----------------------------------------------------------------------- */

static int test_appended_runs_are_contiguous(void *arg)
{
	struct volume *v = volume_new(64 * MIB, false);
	struct space_run a, b, next;

	OK(space_reserve(v->space, PID_NONE, 32, 0, &a));
	OK(space_reserve(v->space, PID_NONE, 32, 0, &b));
	CHECK(a.length == 32 && b.length == 32);
	for (unsigned i = 0; i < 20; i++) {
		OK(space_reserve(v->space, b.pid + b.length, 32, 0, &next));
		CHECK(next.pid == b.pid + b.length && next.length == 32);
		b.length += next.length;
	}
	/* a's goal is taken: a whole run elsewhere */
	OK(space_reserve(v->space, a.pid + a.length, 64, 0, &next));
	CHECK(next.length == 64);
	OK(volume_close(v));
	return 0;
}

static int test_small_files_lie_side_by_side(void *arg)
{
	struct volume *v = volume_new(64 * MIB, false);
	page_id last = PID_NONE;

	for (unsigned i = 0; i < 100; i++) {
		struct space_run run, rest;

		OK(space_reserve(v->space, PID_NONE, 16, 0, &run));
		CHECK(i == 0 || run.pid == last + 1);
		rest = run;
		run.length = 1;
		rest.pid++;
		rest.length--;
		runs_take(v, &run, 1);
		space_unreserve(v->space, &rest);
		last = run.pid;
	}
	OK(volume_close(v));
	return 0;
}

static int test_tree_pages_come_from_the_other_end(void *arg)
{
	struct volume *v = volume_new(64 * MIB, false);
	page_id end = pid_make(0, store_superblock(v->store)->page_count);
	struct space_run run;

	for (unsigned i = 1; i <= 50; i++) {
		OK(space_reserve(v->space, PID_NONE, 1, SPACE_METADATA, &run));
		CHECK(run.pid == end - i);
		OK(space_reserve(v->space, PID_NONE, 4, 0, &run));
		CHECK(run.pid + 1000 < end - 50);
	}
	OK(volume_close(v));
	return 0;
}

static int test_goals_out_of_bounds_are_only_hints(void *arg)
{
	static const uint64_t goals[] = {0, 1, 1ull << 40, 1ull << 50, UINT64_MAX - 1};
	struct volume *v = volume_new(8 * MIB, false);
	struct space_run run;

	for (unsigned i = 0; i < ARRAY_SIZE(goals); i++)
		OK(space_reserve(v->space, goals[i], 3, 0, &run));
	OK(space_reserve(v->space, store_superblock(v->store)->page_count, 3, 0, &run));
	OK(volume_close(v));
	return 0;
}

/* ---- runs that are not what they should be --------------------------------------- */

static int test_wrong_runs_change_nothing(void *arg)
{
	struct volume *v = volume_new(8 * MIB, false);
	uint64_t count = store_superblock(v->store)->page_count;
	const struct {
		page_id pid;
		uint32_t length;
	} wrong[] = {
		{0, 1}, /* the catalog */
		{1, 1}, /* a group's page */
		{3, 1}, /* free already */
		{2, 2}, /* partly free */
		{2, 0},
		{2, UINT32_MAX},
		{count - 1, 2}, /* past the end */
		{count, 1},
		{1ull << 48 | 2, 1}, /* of another shard */
		{PID_NONE, 1},
	};
	struct mtr *m = rt_alloc(sizeof(*m));
	uint64_t before = free_pages(v);

	CHECK(space_group_of(v->space, 0) == PID_NONE);
	CHECK(space_group_of(v->space, 1) == PID_NONE);
	CHECK(space_group_of(v->space, 2) == 1);
	for (unsigned i = 0; i < ARRAY_SIZE(wrong); i++) {
		OK(mtr_begin(m, v->cache, 2));
		CHECK(space_check(v->space, m, wrong[i].pid, wrong[i].length, true) ==
			-EUCLEAN);
		CHECK(space_free(v->space, m, wrong[i].pid, wrong[i].length) == -EUCLEAN);
		mtr_abort(m); /* asserts that nothing was changed */
	}
	OK(mtr_begin(m, v->cache, 2));
	OK(space_check(v->space, m, 2, 1, true));
	CHECK(space_check(v->space, m, 2, 1, false) == -EUCLEAN);
	OK(space_check(v->space, m, 3, 1, false));
	mtr_abort(m);
	rt_free(m);
	CHECK(free_pages(v) == before);
	OK(volume_close(v));
	return 0;
}

/* Tasks switch far more often than usual. */
static const struct rt_sim_options restless = {.switch_one_in = 2};

#define SIM(name, seeds)                                                                 \
	static void sim_##name(void **state)                                             \
	{                                                                                \
		for (uint64_t seed = 1; seed <= (seeds); seed++) {                       \
			pick_seed(seed);                                                 \
			assert_int_equal(rt_sim_run(seed, seed % 2 ? &restless : NULL,   \
						 name, NULL),                            \
				0);                                                      \
		}                                                                        \
	}
SIM(test_nothing_is_handed_out_twice_or_early, 10)
SIM(test_the_same_on_a_nearly_full_volume, 10)
SIM(test_the_same_when_overlays_come_and_go, 20)
SIM(test_last_pages_are_kept_for_the_privileged, 1)
SIM(test_reserved_pages_are_not_given_to_others, 1)
SIM(test_freed_pages_come_back_by_a_flush_before_enospc, 1)
SIM(test_failed_log_is_reported_instead_of_early_reuse, 1)
SIM(test_ragged_space_is_handed_out_to_the_last_page, 1)
SIM(test_space_that_cannot_be_read_is_no_full_volume, 1)
SIM(test_other_groups_give_all_they_have_first, 3)
SIM(test_appended_runs_are_contiguous, 1)
SIM(test_small_files_lie_side_by_side, 1)
SIM(test_tree_pages_come_from_the_other_end, 1)
SIM(test_goals_out_of_bounds_are_only_hints, 1)
SIM(test_wrong_runs_change_nothing, 1)

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sim_test_nothing_is_handed_out_twice_or_early),
		cmocka_unit_test(sim_test_the_same_on_a_nearly_full_volume),
		cmocka_unit_test(sim_test_the_same_when_overlays_come_and_go),
		cmocka_unit_test(sim_test_last_pages_are_kept_for_the_privileged),
		cmocka_unit_test(sim_test_reserved_pages_are_not_given_to_others),
		cmocka_unit_test(sim_test_freed_pages_come_back_by_a_flush_before_enospc),
		cmocka_unit_test(sim_test_failed_log_is_reported_instead_of_early_reuse),
		cmocka_unit_test(sim_test_ragged_space_is_handed_out_to_the_last_page),
		cmocka_unit_test(sim_test_space_that_cannot_be_read_is_no_full_volume),
		cmocka_unit_test(sim_test_other_groups_give_all_they_have_first),
		cmocka_unit_test(sim_test_appended_runs_are_contiguous),
		cmocka_unit_test(sim_test_small_files_lie_side_by_side),
		cmocka_unit_test(sim_test_tree_pages_come_from_the_other_end),
		cmocka_unit_test(sim_test_goals_out_of_bounds_are_only_hints),
		cmocka_unit_test(sim_test_wrong_runs_change_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
