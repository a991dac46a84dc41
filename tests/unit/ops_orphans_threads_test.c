/* SPDX-License-Identifier: Apache-2.0 */
/* Unlinks, closes and forgets of the same files at the same time, on real threads. */
#include "tests/unit/ops_account.h"

#define ROOT   DISK_INO_ROOT
#define TEAMS  3u
#define ROUNDS 1500u

/* One file of a team: three tasks unlink, close and forget it; the last makes the next.
 */
struct team {
	_Atomic uint32_t round;    /* the file of this round is there */
	_Atomic uint32_t finished; /* of three, in this round */
	uint64_t ino;
	struct ops_file *file;
	_Atomic bool unlinked;
};

static struct team team[TEAMS];

static void make_file(struct fs *fs, unsigned n)
{
	struct team *t = &team[n];
	struct ops_attr a;
	char name[16];

	sprintf(name, "t%u", n);
	OK(ops_create(fs, ROOT, nm(name), &root_user, 0600, O_RDWR, &t->file, &a));
	if (atomic_load(&t->round) % 2)
		EQ(ops_write(fs, t->file, &root_user, 0, "abc", 3, false), 3);
	t->ino = a.ino;
	atomic_store(&t->unlinked, false);
	atomic_store(&t->finished, 0);
	atomic_fetch_add(&t->round, 1);
}

/* The kernel forgets nothing before its unlink has been answered. */
static void do_part(struct fs *fs, struct team *t, unsigned n, unsigned part)
{
	unsigned spins = 0;
	char name[16];

	if (part == 0) {
		sprintf(name, "t%u", n);
		OK(ops_unlink(fs, ROOT, nm(name)));
		atomic_store(&t->unlinked, true);
	} else if (part == 1) {
		ops_close(fs, t->file);
	} else {
		while (!atomic_load(&t->unlinked))
			rt_spin(&spins);
		ops_forget(fs, t->ino);
	}
}

static void member(struct fs *fs, unsigned who)
{
	unsigned n = who / 3, part = who % 3;
	struct team *t = &team[n];

	for (uint32_t round = 1; round <= ROUNDS; round++) {
		unsigned spins = 0;

		while (atomic_load(&t->round) < round)
			rt_spin(&spins);
		do_part(fs, t, n, part);
		if (atomic_fetch_add(&t->finished, 1) == 2 && round < ROUNDS)
			make_file(fs, n);
	}
}

static void run(const struct fs_test *disk)
{
	struct ops_options o = {.atime = OPS_NOATIME, .caller_forgets = true};
	struct fs *plain = test_fs_open(disk), *fs;
	struct weft_error err = {0};

	OK(fs_open(&fs, fs_volume(plain), &o, &err));
	for (unsigned n = 0; n < TEAMS; n++)
		make_file(fs, n);
	crew(fs, 3 * TEAMS, member);
	(void)orphans_settle(fs, false);
	EQ(pages_over(fs), 0); /* no orphan item is left, before anything is closed */
	EQ(attr_of(fs, ROOT).size, 0);
	fs_close(fs);
	test_fs_close(plain);
}

static void the_last_of_unlink_close_and_forget_frees(void **state)
{
	with_real_disk(
		(struct fs_test){.disk_bytes = 256 << 20, .cache_bytes = 8 << 20}, run);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_last_of_unlink_close_and_forget_frees),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
