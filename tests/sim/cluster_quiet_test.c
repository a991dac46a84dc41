/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A node that works in its own directories, on its own files, sends nothing: three nodes of
 * one volume, each in directories that it has made, create, write, append, read, copy, cut,
 * punch, rename, exchange, link and unlink files, make symlinks and directories, change
 * modes, times and extended attributes, lock, and fsync, while write-back, checkpoints and
 * reclaiming go on. After a while, in which each gets what it needs, messages are counted,
 * by the counters of the links. (To sync the whole volume, and to ask how full it is, asks the
 * others, and is left out.)
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/cluster_quiet_test     one seed
 *   WEFT_SIM_SEEDS=1000                                    so many
 */
#define FRAMES 1500 /* all that a node uses stays */
#include <sys/xattr.h>

#include "tests/sim/cluster_world.h"

#define DIRECTORIES 3
#define FILES       12 /* in each */
#define QUIET_SEEDS 10
/* For what goes on in the background: written in some tens of milliseconds, freed in a second. */
#define PAUSE_NS     200000000u
#define PAUSE_ONE_IN 20
#define REST_NS      3000000000u

struct quiet_file {
	uint64_t ino;
	uint32_t size;
};

static struct quiet_place {
	uint64_t dir[DIRECTORIES];
	struct quiet_file file[DIRECTORIES][FILES];
	/* beside each file: another name of one, a symlink, a directory */
	uint64_t link[DIRECTORIES][FILES];
	uint64_t symlink[DIRECTORIES][FILES];
	uint64_t inner[DIRECTORIES][FILES];
} places[NODES_MAX];

static uint64_t steady_messages, steady_steps;
static bool steady;

static int drop_bytes(void *arg, const struct iovec *iov, unsigned count, size_t total)
{
	return (int)total;
}

/* `kind`: f is a file, l another name of one, s a symlink, d a directory. */
static struct ops_name name_as(char out[8], char kind, unsigned i)
{
	snprintf(out, 8, "%c%u", kind, i);
	return nm(out);
}

static struct ops_name file_name(char out[8], unsigned i)
{
	return name_as(out, 'f', i);
}

static struct ops_file *open_one(struct node *n, uint64_t ino, int flags)
{
	struct ops_file *open;
	struct ops_attr a;

	OK(ops_open(n->fs, ino, &root_user, flags, &open, &a));
	return open;
}

static void create(struct node *n, uint64_t dir, unsigned i, struct quiet_file *f)
{
	struct ops_file *open;
	struct ops_attr a;
	char text[8];

	OK(ops_create(n->fs, dir, file_name(text, i), &root_user, 0644, O_RDWR | O_EXCL,
		&open, &a));
	ops_close(n->fs, open);
	*f = (struct quiet_file){.ino = a.ino};
}

/* ---- what is done to a file, or beside it ------------------------------------------------- */

static void write_one(struct node *n, struct quiet_place *q, unsigned d, unsigned i)
{
	struct quiet_file *f = &q->file[d][i];
	uint32_t at = pick(f->size + 1), len = 1 + pick(pick(4) ? 300 : 30000);
	uint8_t *bytes = rt_alloc(len);
	struct ops_file *open = open_one(n, f->ino, O_RDWR);

	EQ(ops_write(n->fs, open, &root_user, at, bytes, len, pick(3) == 0), len);
	ops_close(n->fs, open);
	rt_free(bytes);
	f->size = attr_of(n->fs, f->ino).size;
	if (pick(4) == 0)
		OK(ops_fsync(n->fs, f->ino, pick(2)));
}

static void append_one(struct node *n, struct quiet_place *q, unsigned d, unsigned i)
{
	struct quiet_file *f = &q->file[d][i];
	struct ops_file *open = open_one(n, f->ino, O_WRONLY | O_APPEND);
	uint8_t bytes[700] = {0};
	uint32_t was = f->size;

	EQ(ops_write(n->fs, open, &root_user, 0, bytes, sizeof(bytes), false),
		sizeof(bytes));
	ops_close(n->fs, open);
	f->size = attr_of(n->fs, f->ino).size;
	EQ(f->size, was + sizeof(bytes));
}

static void read_one(struct node *n, struct quiet_place *q, unsigned d, unsigned i)
{
	struct ops_file *open = open_one(n, q->file[d][i].ino, O_RDONLY);

	HOLDS(ops_read(n->fs, open, 0, 1 << 16, drop_bytes, NULL) >= 0);
	ops_close(n->fs, open);
}

static void copy_one(struct node *n, struct quiet_place *q, unsigned d, unsigned i)
{
	struct quiet_file *f = &q->file[d][i], *to = &q->file[d][pick(FILES)];
	struct ops_file *in, *out;

	if (!to->ino || to == f)
		return;
	in = open_one(n, f->ino, O_RDONLY);
	out = open_one(n, to->ino, O_RDWR);
	EQ(ops_copy_range(n->fs, in, 0, out, 0, f->size, &root_user), f->size);
	ops_close(n->fs, out);
	ops_close(n->fs, in);
	to->size = attr_of(n->fs, to->ino).size;
}

static void size_one(struct node *n, struct quiet_place *q, unsigned d, unsigned i)
{
	struct quiet_file *f = &q->file[d][i];
	struct ops_setattr set = {
		.set = OPS_SET_SIZE, .size = pick(f->size + 1) + (pick(3) ? 0 : 5000)};
	struct ops_attr a;

	OK(ops_setattr(n->fs, f->ino, &root_user, &set, &a));
	f->size = (uint32_t)set.size;
}

/* Space ahead of what is written, holes, and where they are. */
static void space_one(struct node *n, struct quiet_place *q, unsigned d, unsigned i)
{
	struct quiet_file *f = &q->file[d][i];
	struct ops_file *open = open_one(n, f->ino, O_RDWR);
	int mode = pick(2) ? FALLOC_FL_KEEP_SIZE
			   : FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE;

	OK(ops_fallocate(
		n->fs, open, &root_user, mode, pick(f->size + 1), 1 + pick(20000)));
	if (f->size)
		HOLDS(ops_lseek(n->fs, open, 0, SEEK_HOLE, NULL, NULL) >= 0);
	ops_close(n->fs, open);
}

static void lookup_one(struct node *n, struct quiet_place *q, unsigned d, unsigned i)
{
	char text[8];

	EQ(ino_of(n->fs, q->dir[d], file_name(text, i).bytes), q->file[d][i].ino);
}

static int count_entry(void *arg, const struct ops_dirent *entry)
{
	++*(unsigned *)arg;
	return 0;
}

static void list_one(struct node *n, struct quiet_place *q, unsigned d, unsigned i)
{
	unsigned entries = 0;

	OK(ops_readdir(n->fs, q->dir[d], 0, pick(2) ? OPS_READDIR_PLUS : 0, count_entry,
		&entries));
	HOLDS(entries > 2);
}

/* Mode, owner and times of a file or of the directory. */
static void attributes_one(struct node *n, struct quiet_place *q, unsigned d, unsigned i)
{
	struct ops_setattr set = {.mode = 0600 + pick(0200),
		.uid = pick(5),
		.gid = pick(5),
		.atime_ns = 1 + pick(1000),
		.mtime_ns = 1 + pick(1000)};
	uint64_t ino = pick(4) ? q->file[d][i].ino : q->dir[d];
	struct ops_attr a;

	set.set = OPS_SET_MODE | (pick(2) ? OPS_SET_UID | OPS_SET_GID : 0) |
		  (pick(2) ? OPS_SET_ATIME : OPS_SET_ATIME_NOW) |
		  (pick(2) ? OPS_SET_MTIME : OPS_SET_MTIME_NOW);
	OK(ops_setattr(n->fs, ino, &root_user, &set, &a));
	EQ(attr_of(n->fs, ino).mode & 07777, set.mode);
}

static void xattr_one(struct node *n, struct quiet_place *q, unsigned d, unsigned i)
{
	uint64_t ino = pick(4) ? q->file[d][i].ino : q->dir[d];
	uint8_t value[3000] = {0};
	char name[16], list[512];
	size_t len = pick(pick(4) ? 100 : sizeof(value));

	snprintf(name, sizeof(name), "user.%u", pick(5));
	OK(ops_setxattr(n->fs, ino, &root_user, name, value, len, 0));
	EQ(ops_getxattr(n->fs, ino, name, value, sizeof(value)), len);
	HOLDS(ops_listxattr(n->fs, ino, list, sizeof(list)) > 0);
	if (pick(2))
		OK(ops_removexattr(n->fs, ino, name));
}

/* A second name of the file; what has it already loses it, and may have been the last. */
static void link_one(struct node *n, struct quiet_place *q, unsigned d, unsigned i)
{
	uint64_t *link = &q->link[d][i];
	char text[8];

	name_as(text, 'l', i);
	if (*link) {
		EQ(ino_of(n->fs, q->dir[d], text), *link);
		OK(ops_unlink(n->fs, q->dir[d], nm(text)));
		*link = 0;
		return;
	}
	OK(try_link(n->fs, q->file[d][i].ino, q->dir[d], text));
	*link = q->file[d][i].ino;
	HOLDS(attr_of(n->fs, *link).nlink >= 2);
}

static void symlink_one(struct node *n, struct quiet_place *q, unsigned d, unsigned i)
{
	uint64_t *symlink = &q->symlink[d][i];
	char text[8], target[8];

	name_as(text, 's', i);
	if (*symlink) {
		OK(ops_unlink(n->fs, q->dir[d], nm(text)));
		*symlink = 0;
		return;
	}
	OK(try_symlink(n->fs, q->dir[d], text, "target"));
	*symlink = ino_of(n->fs, q->dir[d], text);
	EQ(ops_readlink(n->fs, *symlink, target, sizeof(target)), 6);
	HOLDS(!memcmp(target, "target", 6));
}

/* A directory with a name in it, and without. */
static void inner_one(struct node *n, struct quiet_place *q, unsigned d, unsigned i)
{
	uint64_t *inner = &q->inner[d][i];
	char text[8];

	name_as(text, 'd', i);
	if (*inner) {
		OK(ops_unlink(n->fs, *inner, nm("x")));
		OK(ops_rmdir(n->fs, q->dir[d], nm(text)));
		*inner = 0;
		return;
	}
	*inner = mk_dir(n->fs, q->dir[d], text);
	mk_file(n->fs, *inner, "x");
}

static void fsync_one(struct node *n, struct quiet_place *q, unsigned d, unsigned i)
{
	OK(ops_fsync(n->fs, q->file[d][i].ino, pick(2)));
	OK(ops_fsync(n->fs, q->dir[d], false));
}

/* flock, or a range by fcntl: taken, looked at by another owner, let go, by closing, too. */
static void lock_one(struct node *n, struct quiet_place *q, unsigned d, unsigned i)
{
	struct ops_file *open = open_one(n, q->file[d][i].ino, O_RDWR);
	struct ops_lock lock = {.kind = pick(2) ? OPS_LOCK_POSIX : OPS_LOCK_FLOCK,
		.type = pick(2) ? OPS_LOCK_SHARED : OPS_LOCK_EXCLUSIVE,
		.owner = 1,
		.first = pick(100),
		.last = OPS_LOCK_END,
		.pid = 1};
	struct ops_lock want = lock, found;

	OK(ops_lock(n->fs, open, &lock));
	want.owner = 2;
	want.type = OPS_LOCK_EXCLUSIVE;
	EQ(ops_lock(n->fs, open, &want), -EAGAIN);
	if (lock.kind == OPS_LOCK_POSIX) {
		OK(ops_lock_test(n->fs, open, &want, &found));
		EQ(found.type, lock.type);
	}
	lock.type = OPS_LOCK_NONE;
	if (pick(2))
		OK(ops_lock(n->fs, open, &lock));
	OK(ops_flush(n->fs, open, 1));
	ops_close(n->fs, open);
}

/* To another name, also of another directory; what was there goes, or changes places. */
static void rename_one(struct node *n, struct quiet_place *q, unsigned d, unsigned i)
{
	unsigned to_d = pick(DIRECTORIES), to = pick(FILES);
	struct quiet_file moved = q->file[d][i], *there = &q->file[to_d][to];
	bool exchange = there->ino && pick(3) == 0;
	char a[8], b[8];

	OK(ops_rename(n->fs, q->dir[d], file_name(a, i), q->dir[to_d], file_name(b, to),
		exchange ? RENAME_EXCHANGE : 0));
	if (d == to_d && i == to)
		return;
	q->file[d][i] = exchange ? *there : (struct quiet_file){0};
	*there = moved;
}

/* At times it is still open when its name goes. */
static void unlink_one(struct node *n, struct quiet_place *q, unsigned d, unsigned i)
{
	struct quiet_file *f = &q->file[d][i];
	struct ops_file *open = pick(3) ? NULL : open_one(n, f->ino, O_RDONLY);
	char text[8];

	OK(ops_unlink(n->fs, q->dir[d], file_name(text, i)));
	if (open) {
		HOLDS(ops_read(n->fs, open, 0, 1 << 16, drop_bytes, NULL) >= 0);
		ops_close(n->fs, open);
	}
	*f = (struct quiet_file){0};
}

/* A file that never has a name. */
static void tmpfile_one(struct node *n, struct quiet_place *q, unsigned d, unsigned i)
{
	struct ops_file *open;
	struct ops_attr a;

	OK(ops_tmpfile(n->fs, q->dir[d], &root_user, 0600, O_RDWR, &open, &a));
	EQ(ops_write(n->fs, open, &root_user, 0, "bytes", 5, false), 5);
	ops_close(n->fs, open);
}

#define STEP(often, what)                                                                \
	{                                                                                \
#what, what##_one, often, 0, 0                                           \
	}

static struct step {
	const char *name;
	void (*one)(struct node *n, struct quiet_place *q, unsigned d, unsigned i);
	unsigned often;
	uint64_t done, messages; /* once all is steady; messages may be another one's */
} kinds[] = {
	STEP(4, write),
	STEP(2, append),
	STEP(4, read),
	STEP(1, copy),
	STEP(2, size),
	STEP(1, space),
	STEP(2, lookup),
	STEP(2, list),
	STEP(2, attributes),
	STEP(2, xattr),
	STEP(2, link),
	STEP(2, symlink),
	STEP(1, inner),
	STEP(1, fsync),
	STEP(2, lock),
	STEP(2, rename),
	STEP(2, unlink),
	STEP(1, tmpfile),
};

static struct step *any_kind(void)
{
	unsigned all = 0, at;

	for (unsigned k = 0; k < ARRAY_SIZE(kinds); k++)
		all += kinds[k].often;
	at = pick(all);
	for (unsigned k = 0;; k++) {
		if (at < kinds[k].often)
			return &kinds[k];
		at -= kinds[k].often;
	}
}

/* Of the page protocol, and all others. */
static uint64_t sent_by(const struct node *n)
{
	struct net_counters c;
	uint64_t sum = 0;

	for (unsigned id = 1; id <= n->w->nodes; id++)
		if (id != n->id) {
			net_counters(net_peer_find(n->net, (uint16_t)id), &c);
			sum += c.messages_out + c.reads_out + c.writes_out +
			       c.atomics_out;
		}
	return sum;
}

static void work_step(struct node *n, struct quiet_place *q)
{
	unsigned d = pick(DIRECTORIES), i = pick(FILES);
	struct quiet_file *f = &q->file[d][i];
	struct step *s = any_kind();
	uint64_t before = sent_by(n);

	if (!f->ino)
		create(n, q->dir[d], i, f);
	s->one(n, q, d, i);
	if (pick(PAUSE_ONE_IN) == 0)
		rt_sleep_ns(pick(PAUSE_NS));
	if (!steady)
		return;
	s->done++;
	s->messages += sent_by(n) - before;
}

static void quiet_work(struct node *n)
{
	struct quiet_place *q = &places[n->id - 1];
	char text[16];
	uint64_t before, written;

	memset(q, 0, sizeof(*q));
	steady = false;
	for (unsigned d = 0; d < DIRECTORIES; d++) {
		snprintf(text, sizeof(text), "own%u.%u", n->id, d);
		q->dir[d] = mk_dir(n->fs, DISK_INO_ROOT, text);
	}
	barrier(n);
	for (unsigned i = 0; i < n->w->steps; i++)
		work_step(n, q);
	barrier(n);
	world_settle(n);
	rt_sleep_ns(50000000); /* what nobody waits for arrives, too */
	barrier(n);
	steady = true;
	before = sent_by(n);
	written = atomic_load(&cache_counters(n->v->cache)->pages_written);
	for (unsigned i = 0; i < n->w->steps; i++)
		work_step(n, q);
	do /* what is dirty is written, what was unlinked is freed */
		rt_sleep_ns(REST_NS);
	while (orphans_hurry(n->fs));
	HOLDS(atomic_load(&cache_counters(n->v->cache)->pages_written) > written);
	steady_messages += sent_by(n) - before;
	steady_steps += n->w->steps;
	barrier(n);
}

static void quiet_check(struct node *n)
{
}

static void nodes_work_in_their_own_directories(void **state)
{
	struct world *w = (struct world *)calloc(1, sizeof(*w));
	uint64_t seeds = seeds_count(QUIET_SEEDS);
	struct rt_sim_options o = {.time_limit_ns = 600ull * 1000000000};

	assert_non_null(w);
	for (uint64_t seed = seeds_first(); seeds--; seed++) {
		memset(w, 0, sizeof(*w));
		w->nodes = 3;
		w->steps = 300 * (unsigned)setting("WEFT_SIM_LONGER", 1);
		w->work = quiet_work;
		w->check = quiet_check;
		assert_int_equal(rt_sim_run(seed, &o, run_world, w), 0);
	}
	print_message("%" PRIu64 " messages in %" PRIu64 " steps\n", steady_messages,
		steady_steps);
	for (unsigned k = 0; k < ARRAY_SIZE(kinds); k++) {
		if (kinds[k].messages)
			print_message("%" PRIu64 " of them during %" PRIu64 " of %s\n",
				kinds[k].messages, kinds[k].done, kinds[k].name);
		assert_true(kinds[k].done > 0);
	}
	assert_int_equal(steady_messages, 0);
	free(w);
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(nodes_work_in_their_own_directories),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, NULL, NULL);
}
