/* SPDX-License-Identifier: Apache-2.0 */
/* Sets of dirty blocks against a bitmap: they never lose a block, and their memory is
 * bounded. */
#include "tests/unit/ops_fixture.h"

#include "fs/ops/data_internal.h"

#define BLOCKS 4000u

struct model {
	struct dirty_set set;
	bool dirty[BLOCKS];
};

static unsigned model_check(const struct model *m)
{
	const struct dirty_range *r = dirty_ranges(&m->set);
	unsigned extra = 0, i = 0;

	for (unsigned n = 1; n < m->set.count; n++)
		HOLDS(r[n - 1].end < r[n].first);
	for (unsigned b = 0; b < BLOCKS; b++) {
		bool in;

		while (i < m->set.count && r[i].end <= b)
			i++;
		in = i < m->set.count && r[i].first <= b;
		HOLDS(in || !m->dirty[b]);
		extra += in && !m->dirty[b];
	}
	return extra;
}

static void model_add(struct model *m, unsigned first, unsigned end)
{
	dirty_add(&m->set, first, end);
	for (unsigned b = first; b < end; b++)
		m->dirty[b] = true;
}

static int do_random(void *arg)
{
	_Atomic uint32_t heap = 0;
	struct model *m = calloc(1, sizeof(*m)), *other = calloc(1, sizeof(*m));

	m->set.heap = other->set.heap = &heap;
	for (unsigned i = 0; i < 3000; i++) {
		struct model *one = rt_random() % 2 ? m : other;
		unsigned first = (unsigned)(rt_random() % BLOCKS);
		unsigned end =
			first + 1 + (unsigned)(rt_random() % MIN(8u, BLOCKS - first));

		model_add(one, first, MIN(end, BLOCKS));
		if (rt_random() % 100 == 0) {
			dirty_cut(&one->set, first);
			memset(one->dirty + first, 0, (BLOCKS - first) * sizeof(bool));
		}
		if (rt_random() % 300 == 0) {
			dirty_merge(&m->set, &other->set);
			for (unsigned b = 0; b < BLOCKS; b++)
				m->dirty[b] |= other->dirty[b];
			memset(other->dirty, 0, sizeof(other->dirty));
		}
		/* below the bound a set is exact */
		EQ(model_check(m), 0);
		EQ(model_check(other), 0);
	}
	dirty_clear(&m->set);
	dirty_clear(&other->set);
	EQ(heap, 0);
	free(m);
	free(other);
	return 0;
}

static void sets_are_exact_below_their_bound(void **state)
{
	for (unsigned seed = 1; seed <= 10; seed++)
		OK(rt_sim_run(seed, NULL, do_random, NULL));
}

static int do_overflow(void *arg)
{
	_Atomic uint32_t heap = 0;
	struct model *m = calloc(1, sizeof(*m));

	m->set.heap = &heap;
	for (unsigned b = 0; b < BLOCKS; b += 3) {
		model_add(m, b, b + 1);
		HOLDS(m->set.count <= DIRTY_MAX && heap <= DIRTY_MAX);
		model_check(m);
	}
	dirty_clear(&m->set);
	memset(m->dirty, 0, sizeof(m->dirty));
	heap = DIRTY_HEAP_MAX; /* used up by others */
	for (unsigned b = 0; b < BLOCKS; b += 3) {
		model_add(m, b, b + 1);
		HOLDS(m->set.count <= DIRTY_INLINE);
		model_check(m);
	}
	EQ(heap, DIRTY_HEAP_MAX);
	dirty_clear(&m->set);
	memset(m->dirty, 0, sizeof(m->dirty));
	for (unsigned b = 0; b < 3 * DIRTY_INLINE; b += 3)
		model_add(m, b, b + 1);
	HOLDS(!dirty_add_exact(&m->set, 300, 301));
	EQ(model_check(m), 0);
	HOLDS(dirty_add_exact(&m->set, 1, 2)); /* needs no room */
	m->dirty[1] = true;
	EQ(model_check(m), 0);
	dirty_clear(&m->set);
	free(m);
	return 0;
}

static void sets_past_their_bound_cover_more_but_lose_nothing(void **state)
{
	OK(rt_sim_run(1, NULL, do_overflow, NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(sets_are_exact_below_their_bound),
		cmocka_unit_test(sets_past_their_bound_cover_more_but_lose_nothing),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
