/* SPDX-License-Identifier: Apache-2.0 */
/* A filesystem on a disk of the simulator, and short words for what tests do to it. */
#ifndef WEFT_TEST_OPS_FIXTURE_H
#define WEFT_TEST_OPS_FIXTURE_H

#include <setjmp.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <cmocka.h>
#include <errno.h>
#include <fcntl.h>

#include "engine/rt/rt_sim.h"
#include "fs/ops/ops_internal.h"
#include "tests/world/test_file.h"
#include "tests/world/expect.h"

struct fs_test {
	const char *disk_name;
	uint64_t disk_bytes, cache_bytes;
	void (*fn)(struct fs *);
};

static inline struct fs *test_fs_open(const struct fs_test *t)
{
	struct volume_options vo = {
		.background = true, .cache.cache_bytes = t->cache_bytes};
	struct ops_options oo = {.atime = OPS_RELATIME};
	struct weft_error err = {0};
	struct rt_disk *disk;
	struct volume *v;
	struct fs *fs;

	OK(rt_disk_open(&disk, t->disk_name, 0, &err));
	if (volume_open(&v, disk, &vo, &err) || fs_open(&fs, v, &oo, &err)) {
		fprintf(stderr, "open: %s\n", err.text);
		abort();
	}
	return fs;
}

static inline void test_fs_close(struct fs *fs)
{
	struct volume *v = fs_volume(fs);

	fs_close(fs);
	OK(volume_close(v));
}

/* An empty volume on the disk of that name; log_bytes 0: as mkfs would have it. */
static inline void test_fs_format(const char *disk_name, uint64_t log_bytes)
{
	struct store_format format = {
		.checksum_kind = DISK_CHECKSUM_GMAC, .log_bytes = log_bytes};
	struct weft_error err = {0};
	struct rt_disk *disk;

	OK(rt_disk_open(&disk, disk_name, 0, &err));
	if (volume_format(disk, &format, 0, 0, &err)) {
		fprintf(stderr, "format: %s\n", err.text);
		abort();
	}
	rt_disk_close(disk);
}

/* The same on a new disk of the simulator. */
static inline struct rt_sim_disk *test_sim_disk(
	const char *name, uint64_t bytes, uint64_t log_bytes)
{
	struct rt_sim_disk *disk = rt_sim_disk_create(name, bytes, NULL);

	HOLDS(disk);
	test_fs_format(name, log_bytes);
	return disk;
}

/* Starts the real runtime and runs fn with an empty volume in a file. */
static inline void with_real_disk(struct fs_test t, void (*fn)(const struct fs_test *))
{
	struct test_file file;

	test_file_make(&file, NULL, t.disk_bytes);
	t.disk_name = file.path;
	OK(rt_real_start());
	test_fs_format(file.path, 0);
	fn(&t);
	test_file_drop(&file);
}

static inline int test_fs_main(void *arg)
{
	const struct fs_test *t = (const struct fs_test *)arg;
	struct fs *fs;

	test_sim_disk(t->disk_name, t->disk_bytes, 0);
	fs = test_fs_open(t);
	t->fn(fs);
	test_fs_close(fs);
	return 0;
}

/* Runs fn on a fresh filesystem, in a world made from the seed. */
static inline void with_fs_sized(
	uint64_t seed, uint64_t disk_mib, uint64_t cache_mib, void (*fn)(struct fs *))
{
	struct fs_test t = {"disk", disk_mib << 20, cache_mib << 20, fn};

	OK(rt_sim_run(seed, NULL, test_fs_main, &t));
}

static inline void with_fs(void (*fn)(struct fs *))
{
	with_fs_sized(1, 256, 16, fn);
}

/* ---- words ------------------------------------------------------------------------ */

static const struct ops_caller root_user = {.keeps_setid = true, .in_group = true};
static const struct ops_caller plain_user = {.uid = 1000, .gid = 1000, .umask = 022};

static inline struct ops_name nm(const char *s)
{
	return (struct ops_name){s, strlen(s)};
}

static inline struct disk_inode attr_of(struct fs *fs, uint64_t ino)
{
	struct ops_attr a;

	OK(ops_getattr(fs, ino, &a));
	EQ(a.ino, ino);
	return a.inode;
}

static inline int try_lookup(struct fs *fs, uint64_t dir, const char *name)
{
	struct ops_attr a;

	return ops_lookup(fs, dir, nm(name), &a);
}

static inline uint64_t ino_of(struct fs *fs, uint64_t dir, const char *name)
{
	struct ops_attr a;

	OK(ops_lookup(fs, dir, nm(name), &a));
	return a.ino;
}

static inline int try_mkdir(struct fs *fs, uint64_t dir, const char *name)
{
	struct ops_attr a;

	return ops_mkdir(fs, dir, nm(name), &root_user, 0755, &a);
}

static inline uint64_t mk_dir(struct fs *fs, uint64_t dir, const char *name)
{
	OK(try_mkdir(fs, dir, name));
	return ino_of(fs, dir, name);
}

static inline int try_file(struct fs *fs, uint64_t dir, const char *name)
{
	struct ops_attr a;

	return ops_mknod(fs, dir, nm(name), &root_user, S_IFREG | 0644, 0, 0, &a);
}

static inline uint64_t mk_file(struct fs *fs, uint64_t dir, const char *name)
{
	OK(try_file(fs, dir, name));
	return ino_of(fs, dir, name);
}

static inline int try_link(struct fs *fs, uint64_t ino, uint64_t dir, const char *name)
{
	struct ops_attr a;

	return ops_link(fs, ino, dir, nm(name), &a);
}

static inline int try_symlink(
	struct fs *fs, uint64_t dir, const char *name, const char *target)
{
	struct ops_attr a;

	return ops_symlink(fs, dir, nm(name), &root_user, target, &a);
}

static inline int try_rename(struct fs *fs, uint64_t dir, const char *name,
	uint64_t new_dir, const char *new_name, unsigned flags)
{
	return ops_rename(fs, dir, nm(name), new_dir, nm(new_name), flags);
}

/* Calls fn(fs, n) in `count` tasks and waits for all. */
struct crew_member {
	struct fs *fs;
	unsigned n;
	void (*fn)(struct fs *, unsigned);
	struct rt_task *task;
};

static inline void crew_main(void *arg)
{
	struct crew_member *m = (struct crew_member *)arg;

	m->fn(m->fs, m->n);
}

static inline void crew(struct fs *fs, unsigned count, void (*fn)(struct fs *, unsigned))
{
	struct crew_member m[32];

	HOLDS(count <= ARRAY_SIZE(m));
	for (unsigned i = 0; i < count; i++) {
		m[i] = (struct crew_member){.fs = fs, .n = i, .fn = fn};
		OK(rt_task_spawn(&m[i].task, "crew", crew_main, &m[i]));
	}
	for (unsigned i = 0; i < count; i++)
		rt_task_join(m[i].task);
}

#endif
