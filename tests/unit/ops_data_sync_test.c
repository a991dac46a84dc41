/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tasks that write and sync the same file: who has been answered that his bytes are
 * durable finds them so, whoever else synced meanwhile.
 */
#include "engine/cache/cache_internal.h"
#include "tests/unit/ops_data_crews.h"
#include "fs/ops/data_internal.h"

/* File data, all of which is either clean or in the log. */
static bool all_is_synced(struct fs *fs, uint64_t ino, uint64_t first, uint64_t count)
{
	struct cache *cache = fs->volume->cache;
	struct map map;
	struct guard g;

	for (; count; first++, count--) {
		uint32_t flags;

		OK(map_lookup(fs, ino, first, 1, &map));
		EQ(map.segment[0].kind, MAP_WRITTEN);
		if (guard_try_shared(
			    cache, map.segment[0].pid, map.segment[0].incarnation, &g))
			continue; /* missing or on its way */
		flags = atomic_load(&g.frame->flags);
		guard_release(cache, &g);
		if ((flags & (FRAME_DIRTY | FRAME_LOGGED)) == FRAME_DIRTY)
			return false;
	}
	return true;
}

#define APPENDS      40u
#define APPEND_PAGES 5u

static void append_and_sync(struct fs *fs, unsigned n)
{
	uint64_t ino = ino_of(fs, DISK_INO_ROOT, "log");
	struct ops_file *f = open_ino(fs, ino, O_RDWR);
	static uint8_t bytes[APPEND_PAGES * PAGE_SIZE];

	memset(bytes, 'x', sizeof(bytes));
	for (unsigned i = 0; i < APPENDS; i++) {
		if (n == 0)
			write_at(fs, f, i * sizeof(bytes), bytes, sizeof(bytes));
		OK(ops_fsync(fs, ino, false));
		if (n == 0)
			HOLDS(all_is_synced(fs, ino, i * APPEND_PAGES, APPEND_PAGES));
		rt_yield();
	}
	ops_close(fs, f);
}

static void do_sync_beside(struct fs *fs)
{
	mk_file(fs, DISK_INO_ROOT, "log");
	crew(fs, 4, append_and_sync);
}

static void fsync_covers_what_was_being_written_during_another_fsync(void **state)
{
	for (unsigned seed = 1; seed <= 20; seed++)
		with_fs_sized(seed, 64, 4, do_sync_beside);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(
			fsync_covers_what_was_being_written_during_another_fsync),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
