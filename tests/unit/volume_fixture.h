/* SPDX-License-Identifier: Apache-2.0 */
/* Volumes on simulated disks, for tests of engine/space and engine/volume. */
#ifndef WEFT_TESTS_VOLUME_FIXTURE_H
#define WEFT_TESTS_VOLUME_FIXTURE_H

#include <errno.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "engine/rt/rt_sim.h"
#include "engine/volume/volume.h"

#define MIB (1ull << 20)

/* In a simulated run a failure aborts, so that the seed is printed. */
#define CHECK(expr) WEFT_ASSERT(expr)
#define OK(expr)                                                                         \
	do {                                                                             \
		int ok_ = (expr);                                                        \
		if (ok_) {                                                               \
			fprintf(stderr, "%s:%d: %s is %d %s\n", __FILE__, __LINE__,      \
				#expr, ok_, fixture_error.text);                         \
			abort();                                                         \
		}                                                                        \
	} while (0)

static struct weft_error fixture_error;

/* The tests' own numbers: they do not come from the runtime, whose state a cut changes.
 */
static uint64_t fixture_random_state = 1;

static inline uint64_t pick(uint64_t below)
{
	fixture_random_state ^= fixture_random_state << 13;
	fixture_random_state ^= fixture_random_state >> 7;
	fixture_random_state ^= fixture_random_state << 17;
	return fixture_random_state % below;
}

static inline void pick_seed(uint64_t seed)
{
	fixture_random_state = seed * 0x9e3779b97f4a7c15ull + 1;
}

static inline struct rt_disk *disk_open(const char *name, unsigned flags)
{
	struct rt_disk *disk;

	OK(rt_disk_open(&disk, name, flags, &fixture_error));
	return disk;
}

static inline void volume_make(const char *name, uint64_t log_bytes)
{
	struct store_format f = {
		.log_bytes = log_bytes, .checksum_kind = DISK_CHECKSUM_GMAC};
	struct rt_disk *disk = disk_open(name, 0);

	OK(volume_format(disk, &f, 1000, 100, &fixture_error));
	rt_disk_close(disk);
}

struct open_how {
	bool read_only;
	bool background;
	unsigned frames; /* 0: 256 */
};

static inline int volume_try(
	struct volume **v, const char *name, struct open_how how, struct weft_error *err)
{
	struct volume_options o = {
		.read_only = how.read_only,
		.background = how.background,
		.cache = {.cache_bytes =
				  (how.frames ? how.frames : 256) * (uint64_t)PAGE_SIZE},
	};

	return volume_open(
		v, disk_open(name, how.read_only ? RT_DISK_READ_ONLY : 0), &o, err);
}

static inline struct volume *volume_must(const char *name, struct open_how how)
{
	struct volume *v;

	fixture_error = (struct weft_error){0};
	OK(volume_try(&v, name, how, &fixture_error));
	return v;
}

/* Runs fn(arg) as a node of its own. True: it lost its power. */
static inline bool node_run(void (*fn)(void *), void *arg)
{
	unsigned node = rt_sim_node_new("n");
	bool dead;

	OK(rt_sim_spawn_on(node, "main", fn, arg));
	dead = rt_sim_node_wait(node);
	if (!dead)
		CHECK(rt_sim_node_memory(node) == 0);
	rt_sim_node_kill(node);
	return dead;
}

/* ---- mini-transactions on pages -------------------------------------------------- */

/* Latches a page, waiting for it (with everything given up) where it must. False: start
 * over. */
static inline struct mtr_page *mtr_need(struct mtr *m, page_id pid, uint64_t incarnation)
{
	struct page_ref ref = {.pid = pid, .incarnation = incarnation};
	struct cache *cache = m->cache;
	int rc;
	struct mtr_page *p = mtr_latch(m, pid, incarnation, &rc);

	if (p)
		return p;
	CHECK(rc == -EAGAIN);
	mtr_abort(m);
	OK(cache_fetch(cache, &ref, 1));
	rt_yield();
	return NULL;
}

/* Takes runs in one mtr. */
static inline struct log_position runs_take(
	struct volume *v, const struct space_run *runs, unsigned count)
{
	struct mtr *m = rt_alloc(sizeof(*m));
	struct log_position pos;

	for (;;) {
		unsigned i;

		OK(mtr_begin(m, v->cache, 8));
		for (i = 0; i < count; i++)
			if (!mtr_need(m, space_group_of(v->space, runs[i].pid), 0))
				break;
		if (i < count)
			continue;
		for (i = 0; i < count; i++)
			OK(space_check(v->space, m, runs[i].pid, runs[i].length, false));
		for (i = 0; i < count; i++)
			OK(space_take(v->space, m, &runs[i]));
		pos = mtr_commit(m);
		break;
	}
	rt_free(m);
	for (unsigned i = 0; i < count; i++)
		space_committed(v->space, runs[i].pid, runs[i].length, false, pos.end);
	return pos;
}

/* space_committed is left to the caller. */
static inline struct log_position pages_free_commit(
	struct volume *v, page_id pid, uint32_t length)
{
	struct mtr *m = rt_alloc(sizeof(*m));
	struct log_position pos;

	for (;;) {
		OK(mtr_begin(m, v->cache, 1));
		if (!mtr_need(m, space_group_of(v->space, pid), 0))
			continue;
		OK(space_free(v->space, m, pid, length));
		pos = mtr_commit(m);
		break;
	}
	rt_free(m);
	return pos;
}

static inline struct log_position pages_free(
	struct volume *v, page_id pid, uint32_t length)
{
	struct log_position pos = pages_free_commit(v, pid, length);

	space_committed(v->space, pid, length, true, pos.end);
	return pos;
}

static inline uint64_t free_pages(struct volume *v)
{
	struct space_stat st;

	space_stat(v->space, &st);
	return st.free_pages;
}

#endif
