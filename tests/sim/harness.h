/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What simulated tests share: formatted disks, lives of a node on them, child processes
 * so that one failing seed is one failing test, and the command that repeats a failure.
 *
 * WEFT_SIM_SEED=n runs one seed only, WEFT_SIM_CUT=n one point of it; WEFT_SIM_SEEDS and
 * WEFT_SIM_CUTS say how many of each; WEFT_SIM_FIRST where seeds begin.
 */
#ifndef WEFT_TESTS_SIM_HARNESS_H
#define WEFT_TESTS_SIM_HARNESS_H

#include "engine/rt/rt_sim.h"
#include "tests/sim/workload.h"

#define OK(expr)                                                                         \
	do {                                                                             \
		long long ok_ = (long long)(expr);                                       \
		if (ok_)                                                                 \
			workload_die(                                                    \
				"%s:%d: %s is %lld", __FILE__, __LINE__, #expr, ok_);    \
	} while (0)

/* Task switches of a run, past which it lives and gets nowhere. Most take 50,000. */
#define SIM_STEP_LIMIT 2000000u

/* The shape of a run, from its seed. */
struct sim_shape {
	uint64_t seed;
	uint64_t disk_bytes, log_bytes;
	uint32_t atomic_bytes;
	unsigned frames, tasks, ops;
	bool filled; /* some hundred files are there already: the tree is larger than the
			cache */
};

struct sim_shape sim_shape_of(uint64_t seed);

/* Outside of runs, once per shape: formats, and makes the tasks' directories. */
void sim_prepare(struct sim_shape *shape);
/* In a run: a disk like that. */
struct rt_sim_disk *sim_disk_formatted(const char *name, const struct sim_shape *shape);

/* A fresh node runs fn(arg). True: it lost its power. */
bool sim_node_run(void (*fn)(void *), void *arg);

/* On a node: opens the volume and the operations. The errno of what failed. */
int sim_open(const char *disk, const struct sim_shape *shape, struct fs **out,
	struct weft_error *err);
/* fs_close and volume_close. */
int sim_close(struct fs *fs);

/* Every page in use is the tree's, an extent's or an xattr's, and no other's; counts fit.
 */
void sim_check_space(struct fs *fs);
/* fsck finds nothing on a copy of the disk, be it before the recovery from a cut. */
void sim_check_fsck(struct rt_sim_disk *disk);

/* ---- lives of a node with a workload ----------------------------------------------- */

/* Opens, and judges what a recovery has left by the model. */
struct fs *sim_life_begin(const struct sim_shape *shape, struct model *m);
/* Runs the workload, counts what it did. */
void sim_life_work(struct workload *work);
/* Looks at all that the tasks have made. */
void sim_life_audit(struct workload *work);

/* ---- the process ----------------------------------------------------------------- */

/* Counters that all children add to. */
struct sim_totals {
	_Atomic uint64_t runs, lives, cuts, recovery_cuts, faults, syncs, operations,
		fscks;
};
extern struct sim_totals *sim_totals;

uint64_t sim_env(const char *name, uint64_t otherwise);
/* A number that looks like chance, from one that does not. */
uint64_t sim_mix(uint64_t z);
/* One run of the world. */
void sim_run(const struct sim_shape *shape, int (*fn)(void *));
/*
 * Calls run(n) for so many n as WEFT_SIM_CUTS says, spread over 1 .. total, each anywhere
 * in its part.
 */
void sim_each_point(uint64_t seed, uint64_t total, void (*run)(uint64_t n));
/* What the command printed after a failure says beside the seed: "WEFT_SIM_CUT=7". */
void sim_repeat_note(const char *fmt, ...) __attribute__((format(printf, 1, 2)));
/* To be called first thing in a run: prints the command when it aborts or crashes. */
void sim_watch(void);
/* Runs fn(seed) in a child per seed, two at a time, within `seconds` each. The number of
 * failures. */
unsigned sim_each_seed(const char *test, uint64_t first, uint64_t count, unsigned seconds,
	void (*fn)(uint64_t seed));

#endif
