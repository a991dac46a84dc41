/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Locks on one node: ranges against a model of bytes, flock, requests that wait, are woken
 * in order, cancelled, found in a deadlock; what ends with an owner, a file and a node.
 *
 *   WEFT_SIM_SEED=7 build/tests/unit/ops_locks_test     the model with one seed
 */
#include "tests/unit/locks_fixture.h"

#define OWNERS 4
#define BYTES  40
#define SEEDS  6

static const uint64_t END = OPS_LOCK_END;

/* ---- a model of bytes -------------------------------------------------------------------- */

/* The last byte stands for all from BYTES - 1 on. */
struct model {
	enum ops_lock_type of[OWNERS][BYTES];
};

static bool model_free(const struct model *m, const struct ops_lock *l)
{
	for (unsigned o = 0; o < OWNERS; o++)
		for (uint64_t b = l->first; b < BYTES && b <= l->last; b++) {
			enum ops_lock_type t = m->of[o][b];

			if (o != l->owner && t != OPS_LOCK_NONE &&
				(t == OPS_LOCK_EXCLUSIVE ||
					l->type == OPS_LOCK_EXCLUSIVE))
				return false;
		}
	return true;
}

static void model_set(struct model *m, const struct ops_lock *l)
{
	for (uint64_t b = l->first; b < BYTES && b <= l->last; b++)
		m->of[l->owner][b] = l->type;
}

/* Runs of one type are one record each. */
static unsigned model_records(const struct model *m)
{
	unsigned count = 0;

	for (unsigned o = 0; o < OWNERS; o++)
		for (unsigned b = 0; b < BYTES; b++)
			count += m->of[o][b] != OPS_LOCK_NONE &&
				 (b == 0 || m->of[o][b - 1] != m->of[o][b]);
	return count;
}

static struct ops_lock random_lock(void)
{
	uint64_t a = rt_random() % BYTES, b = rt_random() % BYTES;
	struct ops_lock l = posix(rt_random() % OWNERS,
		(enum ops_lock_type)(rt_random() % 3), MIN(a, b), MAX(a, b));

	if (l.last == BYTES - 1)
		l.last = END;
	return l;
}

/* The first byte of the runs of another owner that are in the way. */
static uint64_t model_first(const struct model *m, const struct ops_lock *want)
{
	uint64_t first = END;

	for (unsigned o = 0; o < OWNERS; o++)
		for (uint64_t b = want->first; b < BYTES && b <= want->last; b++) {
			enum ops_lock_type t = m->of[o][b];
			uint64_t at = b;

			if (o == want->owner || t == OPS_LOCK_NONE ||
				(t == OPS_LOCK_SHARED && want->type == OPS_LOCK_SHARED))
				continue;
			while (at > 0 && m->of[o][at - 1] == t)
				at--;
			first = MIN(first, at);
		}
	return first;
}

/* What it found is in the way, as the model has it, and nothing that is begins before it. */
static void check_found(
	const struct model *m, const struct ops_lock *want, const struct ops_lock *found)
{
	EQ(found->type == OPS_LOCK_NONE, model_free(m, want));
	if (found->type == OPS_LOCK_NONE)
		return;
	HOLDS(found->owner != want->owner && found->owner < OWNERS);
	EQ(found->pid, found->owner);
	EQ(found->first, model_first(m, want));
	HOLDS(found->first <= want->last && want->first <= found->last);
	for (uint64_t b = found->first; b < BYTES && b <= found->last; b++)
		EQ(m->of[found->owner][b], found->type);
}

static void model_test(struct fs *fs)
{
	struct ops_file *f = open_file(fs, mk_file(fs, DISK_INO_ROOT, "f"));
	struct model m = {0};

	for (unsigned step = 0; step < 1500; step++) {
		struct ops_lock l = random_lock(), found;
		bool free = l.type == OPS_LOCK_NONE || model_free(&m, &l);

		if (l.type != OPS_LOCK_NONE) {
			OK(ops_lock_test(fs, f, &l, &found));
			check_found(&m, &l, &found);
		}
		EQ(set(fs, f, l), free ? 0 : -EAGAIN);
		if (free)
			model_set(&m, &l);
		EQ(records(fs, ops_file_ino(f)), model_records(&m));
		if (rt_random() % 50 == 0) {
			l.owner = rt_random() % OWNERS;
			OK(ops_flush(fs, f, l.owner));
			l.type = OPS_LOCK_NONE;
			l.first = 0;
			l.last = END;
			model_set(&m, &l);
		}
	}
	for (uint64_t o = 0; o < OWNERS; o++)
		OK(ops_flush(fs, f, o));
	EQ(records(fs, ops_file_ino(f)), 0);
	ops_close(fs, f);
}

static void ranges_are_as_a_model_of_bytes_has_them(void **state)
{
	const char *one = getenv("WEFT_SIM_SEED");

	for (uint64_t seed = 1; seed <= SEEDS; seed++)
		with_fs_sized(one ? strtoull(one, NULL, 0) : seed, 64, 4, model_test);
}

/* ---- bounds --------------------------------------------------------------------------------- */

static void many_ranges(struct fs *fs)
{
	struct ops_file *f = open_file(fs, mk_file(fs, DISK_INO_ROOT, "f"));
	unsigned n;
	int rc = 0;

	for (n = 0; rc == 0; n += rc == 0)
		rc = set(fs, f, posix(n % 7, OPS_LOCK_SHARED, n * 3ull, n * 3ull));
	EQ(rc, -ENOLCK);
	EQ(n, LOCKS_A_FILE_MAX);
	EQ(records(fs, ops_file_ino(f)), LOCKS_A_FILE_MAX);
	/* a hole would need another record */
	EQ(set(fs, f, posix(0, OPS_LOCK_NONE, 0, 0)), 0);
	EQ(set(fs, f, posix(1, OPS_LOCK_SHARED, 3, 5)), 0);
	EQ(set(fs, f, posix(0, OPS_LOCK_SHARED, 0, 0)), 0);
	EQ(set(fs, f, posix(1, OPS_LOCK_NONE, 4, 4)), -ENOLCK);
	EQ(records(fs, ops_file_ino(f)), LOCKS_A_FILE_MAX);
	for (uint64_t o = 1; o < 7; o++)
		EQ(set(fs, f, posix(o, OPS_LOCK_NONE, 0, END)), 0);
	EQ(set(fs, f, posix(0, OPS_LOCK_EXCLUSIVE, 0, END)), 0);
	EQ(records(fs, ops_file_ino(f)), 1);
	ops_close(fs, f);
}

static void a_list_is_bounded(void **state)
{
	with_fs(many_ranges);
}

/* More of one owner, between those of another, than a transaction has room to change. */
static void many_of_one(struct fs *fs)
{
	struct ops_file *f = open_file(fs, mk_file(fs, DISK_INO_ROOT, "f"));
	struct ops_lock found, other = posix(3, OPS_LOCK_SHARED, 0, END);

	for (unsigned n = 0; n < 800; n++)
		OK(set(fs, f, posix(n % 2, OPS_LOCK_SHARED, n * 3ull, n * 3ull)));
	EQ(set(fs, f, posix(0, OPS_LOCK_EXCLUSIVE, 0, END)), -EAGAIN);
	OK(set(fs, f, posix(1, OPS_LOCK_NONE, 3, 1197)));
	OK(ops_lock_test(fs, f, &other, &found));
	EQ(found.type, OPS_LOCK_NONE);
	EQ(records(fs, ops_file_ino(f)), 600);
	/* all owners' but one's, at once; and one for many */
	OK(ops_flush(fs, f, 1));
	EQ(records(fs, ops_file_ino(f)), 400);
	OK(set(fs, f, posix(0, OPS_LOCK_EXCLUSIVE, 0, END)));
	EQ(records(fs, ops_file_ino(f)), 1);
	OK(ops_lock_test(fs, f, &other, &found));
	EQ(found.type, OPS_LOCK_EXCLUSIVE);
	OK(set(fs, f, posix(0, OPS_LOCK_SHARED, 9, 9)));
	EQ(records(fs, ops_file_ino(f)), 3);
	OK(ops_flush(fs, f, 0));
	EQ(records(fs, ops_file_ino(f)), 0);
	ops_close(fs, f);
}

static void many_records_change_in_several_transactions(void **state)
{
	with_fs(many_of_one);
}

static void bad_requests(struct fs *fs)
{
	struct ops_file *f = open_file(fs, mk_file(fs, DISK_INO_ROOT, "f"));

	EQ(set(fs, f, posix(1, OPS_LOCK_SHARED, 5, 4)), -EINVAL);
	EQ(set(fs, f, posix(1, OPS_LOCK_SHARED, 5, END + 1)), -EINVAL);
	EQ(set(fs, f, (struct ops_lock){.kind = 3, .type = OPS_LOCK_SHARED}), -EINVAL);
	EQ(set(fs, f, posix(1, (enum ops_lock_type)3, 5, 5)), -EINVAL);
	EQ(records(fs, ops_file_ino(f)), 0);
	ops_close(fs, f);
}

static void nonsense_is_refused(void **state)
{
	with_fs(bad_requests);
}

/* ---- flock ------------------------------------------------------------------------------------ */

static void flock_rules(struct fs *fs)
{
	struct ops_file *f = open_file(fs, mk_file(fs, DISK_INO_ROOT, "f"));

	OK(set(fs, f, whole(1, OPS_LOCK_SHARED)));
	OK(set(fs, f, whole(2, OPS_LOCK_SHARED)));
	EQ(set(fs, f, whole(3, OPS_LOCK_EXCLUSIVE)), -EAGAIN);
	/* fcntl's are others */
	OK(set(fs, f, posix(3, OPS_LOCK_EXCLUSIVE, 0, END)));
	/* the old one is gone when the change fails */
	EQ(set(fs, f, whole(1, OPS_LOCK_EXCLUSIVE)), -EAGAIN);
	OK(set(fs, f, whole(2, OPS_LOCK_EXCLUSIVE)));
	EQ(set(fs, f, whole(1, OPS_LOCK_SHARED)), -EAGAIN);
	OK(set(fs, f, whole(2, OPS_LOCK_SHARED)));
	OK(set(fs, f, whole(1, OPS_LOCK_SHARED)));
	OK(set(fs, f, whole(1, OPS_LOCK_SHARED)));
	EQ(records(fs, ops_file_ino(f)), 3);
	OK(set(fs, f, whole(1, OPS_LOCK_NONE)));
	OK(set(fs, f, whole(2, OPS_LOCK_NONE)));
	OK(set(fs, f, whole(3, OPS_LOCK_EXCLUSIVE)));
	OK(ops_flush(fs, f, 3)); /* fcntl's alone */
	EQ(records(fs, ops_file_ino(f)), 1);
	ops_close(fs, f);
}

static void flock_is_of_the_whole_file(void **state)
{
	with_fs(flock_rules);
}

/* ---- waiting ------------------------------------------------------------------------------------ */

static void waiting(struct fs *fs)
{
	struct ops_file *f = open_file(fs, mk_file(fs, DISK_INO_ROOT, "f"));
	struct waiter a, b, c;

	OK(set(fs, f, posix(1, OPS_LOCK_EXCLUSIVE, 0, 9)));
	EQ(start(fs, f, &a, posix(2, OPS_LOCK_EXCLUSIVE, 5, 5)), -EINPROGRESS);
	EQ(start(fs, f, &b, posix(3, OPS_LOCK_SHARED, 5, 20)), -EINPROGRESS);
	EQ(start(fs, f, &c, posix(4, OPS_LOCK_SHARED, 8, 8)), -EINPROGRESS);
	HOLDS(!is_over(&a, 300000000));
	/* c's byte, then the rest */
	OK(set(fs, f, posix(1, OPS_LOCK_NONE, 8, 9)));
	OK(finish(&c));
	HOLDS(!is_over(&a, 10000000) && !is_over(&b, 10000000));
	OK(set(fs, f, posix(1, OPS_LOCK_NONE, 0, END)));
	OK(finish(&a));
	HOLDS(!is_over(&b, 300000000));
	OK(ops_flush(fs, f, 2));
	OK(finish(&b));
	HOLDS(c.place < a.place && a.place < b.place);
	ops_close(fs, f);
}

static void who_waits_is_woken(void **state)
{
	with_fs(waiting);
}

#define QUEUE 700
static void queueing(struct fs *fs)
{
	struct ops_file *f = open_file(fs, mk_file(fs, DISK_INO_ROOT, "f"));
	struct waiter *w = (struct waiter *)calloc(QUEUE, sizeof(*w));

	OK(set(fs, f, whole(QUEUE, OPS_LOCK_EXCLUSIVE)));
	for (unsigned n = 0; n < QUEUE; n++)
		EQ(start(fs, f, &w[n], whole(n, OPS_LOCK_EXCLUSIVE)), -EINPROGRESS);
	EQ(records(fs, ops_file_ino(f)), QUEUE + 1);
	OK(set(fs, f, whole(QUEUE, OPS_LOCK_NONE)));
	for (unsigned n = 0; n < QUEUE; n++) {
		OK(finish(&w[n]));
		HOLDS(n == 0 || w[n].place > w[n - 1].place);
		OK(set(fs, f, whole(n, OPS_LOCK_NONE)));
	}
	EQ(records(fs, ops_file_ino(f)), 0);
	free(w);
	ops_close(fs, f);
}

static void hundreds_wait_and_get_their_turn(void **state)
{
	with_fs(queueing);
}

static void cancelling(struct fs *fs)
{
	struct ops_file *f = open_file(fs, mk_file(fs, DISK_INO_ROOT, "f"));
	struct waiter a, b, early = {.wait = {.lock = posix(9, OPS_LOCK_SHARED, 3, 3)}};

	OK(set(fs, f, posix(1, OPS_LOCK_SHARED, 0, 9)));
	EQ(start(fs, f, &a, posix(2, OPS_LOCK_EXCLUSIVE, 5, 5)), -EINPROGRESS);
	EQ(records(fs, ops_file_ino(f)), 2);
	/* behind a; when a goes it has nothing to wait for */
	EQ(start(fs, f, &b, posix(3, OPS_LOCK_SHARED, 5, 5)), -EINPROGRESS);
	ops_lock_cancel(fs, &a.wait);
	EQ(finish(&a), -EINTR);
	OK(finish(&b));
	EQ(records(fs, ops_file_ino(f)), 2);
	ops_lock_cancel(fs, &early.wait);
	EQ(ops_lock_start(fs, f, &early.wait), -EINTR);
	EQ(records(fs, ops_file_ino(f)), 2);
	/* one that has ended its waiting is not cancelled by the end of all */
	EQ(start(fs, f, &a, posix(2, OPS_LOCK_EXCLUSIVE, 5, 5)), -EINPROGRESS);
	ops_locks_end(fs);
	EQ(finish(&a), -ENOTCONN);
	EQ(start(fs, f, &a, posix(2, OPS_LOCK_EXCLUSIVE, 50, 50)), -ENOTCONN);
	EQ(records(fs, ops_file_ino(f)), 0);
	ops_close(fs, f);
}

static void who_waits_can_be_cancelled(void **state)
{
	with_fs(cancelling);
}

static void order(struct fs *fs)
{
	struct ops_file *f = open_file(fs, mk_file(fs, DISK_INO_ROOT, "f"));
	struct waiter writer, reader, again;
	uint64_t began;

	OK(set(fs, f, posix(1, OPS_LOCK_SHARED, 0, END)));
	EQ(start(fs, f, &writer, posix(2, OPS_LOCK_EXCLUSIVE, 0, END)), -EINPROGRESS);
	/* a try does not mind who waits, nor does who has a lock already */
	OK(set(fs, f, posix(3, OPS_LOCK_SHARED, 0, 0)));
	OK(start(fs, f, &again, posix(3, OPS_LOCK_SHARED, 4, 4)));
	OK(ops_flush(fs, f, 3));
	/* the reader lets the writer go first */
	EQ(start(fs, f, &reader, posix(4, OPS_LOCK_SHARED, 0, 0)), -EINPROGRESS);
	OK(ops_flush(fs, f, 1));
	OK(finish(&writer));
	HOLDS(!is_over(&reader, 2 * LOCK_PATIENCE_NS));
	OK(ops_flush(fs, f, 2));
	OK(finish(&reader));
	OK(ops_flush(fs, f, 4));
	/* but not for ever */
	OK(set(fs, f, posix(1, OPS_LOCK_SHARED, 0, END)));
	EQ(start(fs, f, &writer, posix(2, OPS_LOCK_EXCLUSIVE, 0, END)), -EINPROGRESS);
	began = rt_now_ns();
	EQ(start(fs, f, &reader, posix(4, OPS_LOCK_SHARED, 0, 0)), -EINPROGRESS);
	OK(finish(&reader));
	HOLDS(rt_now_ns() - began >= LOCK_PATIENCE_NS);
	ops_lock_cancel(fs, &writer.wait);
	EQ(finish(&writer), -EINTR);
	ops_close(fs, f);
}

static void readers_do_not_starve_a_writer(void **state)
{
	with_fs(order);
}

/* ---- deadlocks ------------------------------------------------------------------------------------ */

static void deadlocks(struct fs *fs)
{
	struct ops_file *f = open_file(fs, mk_file(fs, DISK_INO_ROOT, "f"));
	struct ops_file *g = open_file(fs, mk_file(fs, DISK_INO_ROOT, "g"));
	struct waiter a, b, c;

	/* upgrades of two readers */
	OK(set(fs, f, posix(1, OPS_LOCK_SHARED, 0, 9)));
	OK(set(fs, f, posix(2, OPS_LOCK_SHARED, 0, 9)));
	EQ(start(fs, f, &a, posix(1, OPS_LOCK_EXCLUSIVE, 0, 9)), -EINPROGRESS);
	EQ(start(fs, f, &b, posix(2, OPS_LOCK_EXCLUSIVE, 0, 9)), -EDEADLK);
	HOLDS(!is_over(&a, 300000000));
	OK(ops_flush(fs, f, 2));
	OK(finish(&a));
	/* three, in two files */
	OK(set(fs, g, posix(2, OPS_LOCK_EXCLUSIVE, 0, 0)));
	OK(set(fs, g, posix(3, OPS_LOCK_SHARED, 1, 1)));
	EQ(start(fs, g, &a, posix(1, OPS_LOCK_SHARED, 0, 0)), -EINPROGRESS);
	EQ(start(fs, g, &b, posix(2, OPS_LOCK_EXCLUSIVE, 1, 1)), -EINPROGRESS);
	EQ(start(fs, f, &c, posix(4, OPS_LOCK_SHARED, 0, 0)), -EINPROGRESS);
	ops_lock_cancel(fs, &c.wait);
	EQ(finish(&c), -EINTR);
	EQ(start(fs, f, &c, posix(3, OPS_LOCK_SHARED, 0, 0)), -EDEADLK);
	EQ(records(fs, ops_file_ino(f)), 1);
	OK(ops_flush(fs, g, 3));
	OK(finish(&b));
	OK(ops_flush(fs, g, 2));
	OK(finish(&a));
	/* flock is not looked at */
	OK(set(fs, f, whole(1, OPS_LOCK_EXCLUSIVE)));
	OK(set(fs, g, whole(2, OPS_LOCK_EXCLUSIVE)));
	EQ(start(fs, g, &a, whole(1, OPS_LOCK_EXCLUSIVE)), -EINPROGRESS);
	EQ(start(fs, f, &b, whole(2, OPS_LOCK_EXCLUSIVE)), -EINPROGRESS);
	OK(set(fs, f, whole(1, OPS_LOCK_NONE)));
	OK(finish(&b));
	OK(set(fs, g, whole(2, OPS_LOCK_NONE)));
	OK(finish(&a));
	ops_close(fs, f);
	ops_close(fs, g);
}

static void a_deadlock_is_found(void **state)
{
	with_fs(deadlocks);
}

/* ---- the end of owners and nodes --------------------------------------------------------------------- */

static void closing(struct fs *fs)
{
	uint64_t ino = mk_file(fs, DISK_INO_ROOT, "f");
	struct ops_file *f = open_file(fs, ino), *g = open_file(fs, ino),
			*h = open_file(fs, ino);

	/* of open files: with the last close of theirs, not with a close by a process */
	OK(set(fs, f, whole(10, OPS_LOCK_SHARED)));
	OK(set(fs, f, posix(11, OPS_LOCK_SHARED, 0, 5)));
	OK(set(fs, g, whole(20, OPS_LOCK_SHARED)));
	/* of a process: with any close, and then with the file that it was not closed by */
	OK(set(fs, f, posix(1, OPS_LOCK_SHARED, 10, 20)));
	OK(set(fs, g, posix(1, OPS_LOCK_SHARED, 15, 30)));
	EQ(records(fs, ops_file_ino(h)), 4);
	OK(ops_flush(fs, g, 1));
	EQ(records(fs, ops_file_ino(h)), 3);
	OK(set(fs, g, posix(1, OPS_LOCK_SHARED, 15, 30)));
	OK(ops_flush(fs, f, 7));
	ops_close(fs, f);
	EQ(records(fs, ops_file_ino(h)), 2);
	ops_close(fs, g);
	EQ(records(fs, ops_file_ino(h)), 0);
	ops_close(fs, h);
	EQ(fs->locks->owners, 0);
}

static void locks_end_with_their_owner(void **state)
{
	with_fs(closing);
}

/* Of an earlier start, and of a node that is no member. */
static int leave_records(struct txn *x, void *arg)
{
	struct ops_file *f = (struct ops_file *)arg;
	struct lock_list l = {0};
	struct ops_lock lock = posix(1, OPS_LOCK_EXCLUSIVE, 0, 9);
	struct disk_lock r = lock_record(f->fs->locks, &lock, 0);
	int rc = lock_list_read(x, ops_file_ino(f), &l);

	r.incarnation--;
	OK(rc ? 0 : lock_list_add(&l, &r));
	r.incarnation += 7;
	r.node = 5;
	r.type |= DISK_LOCK_WAITS;
	for (unsigned i = 0; i < 300 && !rc; i++)
		OK(lock_list_add(&l, &r));
	if (!rc)
		rc = lock_list_write(x, ops_file_ino(f), &l);
	lock_list_free(&l);
	return rc;
}

static void of_the_dead(struct fs *fs)
{
	struct ops_file *f = open_file(fs, mk_file(fs, DISK_INO_ROOT, "f"));
	struct ops_lock found, all = posix(2, OPS_LOCK_EXCLUSIVE, 0, END);
	uint8_t value[DISK_VALUE_MAX];
	struct disk_key found_key;
	uint64_t ino;

	/* more than one transaction removes */
	OK(ops_run(fs, 0, leave_records, f, NULL));
	OK(ops_run(fs, 0, leave_records, f, NULL));
	EQ(records(fs, ops_file_ino(f)), 602);
	OK(ops_lock_test(fs, f, &all, &found));
	EQ(found.type, OPS_LOCK_NONE);
	OK(set(fs, f, all));
	EQ(records(fs, ops_file_ino(f)), 1);
	ops_close(fs, f);
	/* a list goes with its file */
	ino = mk_file(fs, DISK_INO_ROOT, "g");
	f = open_file(fs, ino);
	OK(ops_run(fs, 0, leave_records, f, NULL));
	OK(ops_unlink(fs, DISK_INO_ROOT, nm("g")));
	ops_close(fs, f);
	(void)orphans_settle(fs, true);
	EQ(tree_next(fs->tree, disk_key(ino, 0, 0), disk_key(ino + 1, 0, 0), &found_key,
		   value, sizeof(value)),
		-ENOENT);
}

static void locks_of_the_dead_are_void(void **state)
{
	with_fs(of_the_dead);
}

/* ---- many ---------------------------------------------------------------------------------------------- */

#define CREW   8
#define ROUNDS 60
static struct ops_file *crowded;
static int inside;

/* Each locks, waiting, what all want; sometimes it gives up before. */
static void crowd_member(struct fs *fs, unsigned n)
{
	for (unsigned i = 0; i < ROUNDS; i++) {
		bool alone = rt_random() % 3 == 0;
		struct ops_lock l = posix(n, alone ? OPS_LOCK_EXCLUSIVE : OPS_LOCK_SHARED,
			rt_random() % 4, 8);
		struct waiter w;
		int rc = start(fs, crowded, &w, l);

		if (rc == -EINPROGRESS && rt_random() % 4 == 0)
			ops_lock_cancel(fs, &w.wait);
		if (rc == -EINPROGRESS)
			rc = finish(&w);
		if (rc == -EINTR)
			continue;
		OK(rc);
		HOLDS(alone ? inside == 0 : inside >= 0);
		inside = alone ? -1 : inside + 1;
		rt_sleep_ns(rt_random() % 100000);
		inside = alone ? 0 : inside - 1;
		l.type = OPS_LOCK_NONE;
		OK(set(fs, crowded, l));
	}
}

static void crowd(struct fs *fs)
{
	crowded = open_file(fs, mk_file(fs, DISK_INO_ROOT, "f"));
	inside = 0;
	crew(fs, CREW, crowd_member);
	EQ(records(fs, ops_file_ino(crowded)), 0);
	ops_close(fs, crowded);
}

static void many_wait_and_all_get_their_turn(void **state)
{
	const char *one = getenv("WEFT_SIM_SEED");

	for (uint64_t seed = 1; seed <= SEEDS; seed++)
		with_fs_sized(one ? strtoull(one, NULL, 0) : seed, 64, 4, crowd);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(ranges_are_as_a_model_of_bytes_has_them),
		cmocka_unit_test(a_list_is_bounded),
		cmocka_unit_test(many_records_change_in_several_transactions),
		cmocka_unit_test(nonsense_is_refused),
		cmocka_unit_test(flock_is_of_the_whole_file),
		cmocka_unit_test(who_waits_is_woken),
		cmocka_unit_test(hundreds_wait_and_get_their_turn),
		cmocka_unit_test(who_waits_can_be_cancelled),
		cmocka_unit_test(readers_do_not_starve_a_writer),
		cmocka_unit_test(a_deadlock_is_found),
		cmocka_unit_test(locks_end_with_their_owner),
		cmocka_unit_test(locks_of_the_dead_are_void),
		cmocka_unit_test(many_wait_and_all_get_their_turn),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
