/* SPDX-License-Identifier: Apache-2.0 */
/* fsck on a copy of a disk, on a node of its own: an unclean one's log is replayed in
 * memory. */
#include <stdio.h>

#include "mkfs/fsck/fsck.h"
#include "tests/sim/check_fsck.h"
#include "tests/sim/harness.h"

#define FSCK_CACHE  (1ull << 20)
#define FSCK_MEMORY (1ull << 20)

struct fsck_check {
	const char *const *names;
	unsigned count;
	bool repair, alone, replayed;
	char said[1024];
	size_t length;
	bool done;
};

static void note_finding(
	void *arg, unsigned code, const char *text, enum fsck_outcome outcome)
{
	struct fsck_check *check = arg;
	size_t room = sizeof(check->said) - check->length;
	int len;

	if (outcome == FSCK_NOTE)
		return;
	len = snprintf(check->said + check->length, room, " [F%04u: %s]", code, text);
	check->length += len > 0 ? MIN((size_t)len, room - 1) : 0;
}

static void fsck_main(void *arg)
{
	struct fsck_check *check = arg;
	const struct fsck_options options = {.force = true,
		.repair = check->repair,
		.cache_bytes = FSCK_CACHE,
		.memory_bytes = FSCK_MEMORY,
		.check_data = true,
		.arg = check,
		.finding = note_finding};
	struct fsck_input in[SHARDS_MAX] = {0};
	struct fsck_result result = {0};
	struct weft_error err = {0};
	int rc;

	for (unsigned i = 0; i < check->count; i++) {
		in[i].name = check->names[i];
		OK(rt_disk_open(&in[i].disk, in[i].name,
			check->repair ? 0 : RT_DISK_READ_ONLY, &err));
	}
	rc = fsck_run_stores(in, check->count, &options, &result, &err);
	if (rc)
		workload_die("fsck could not check: %s", err.text);
	if (result.found || result.exit_code)
		workload_die("fsck: exit code %d, %llu findings:%s", result.exit_code,
			(unsigned long long)result.found, check->said);
	WEFT_ASSERT(result.alone == check->alone);
	check->replayed = result.replayed;
	check->done = true;
}

void sim_check_store_alone(const char *name)
{
	struct fsck_check check = {.names = &name, .count = 1, .alone = true};

	WEFT_ASSERT(!sim_node_run(fsck_main, &check) && check.done);
}

bool sim_recover_stores(const char *const *names, unsigned count)
{
	struct fsck_check check = {.names = names, .count = count, .repair = true};

	return sim_node_run(fsck_main, &check) ? false : check.done;
}

bool sim_check_stores(const char *const *names, unsigned count)
{
	struct fsck_check check = {.names = names, .count = count};

	WEFT_ASSERT(!sim_node_run(fsck_main, &check) && check.done);
	return check.replayed;
}

void sim_check_fsck(struct rt_sim_disk *disk)
{
	struct rt_sim_disk *copy = rt_sim_disk_copy("fsck", disk);
	static const char *const name = "fsck";

	sim_check_stores(&name, 1);
	rt_sim_disk_destroy(copy);
	atomic_fetch_add(&sim_totals->fscks, 1);
}
