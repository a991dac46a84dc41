/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Uses an image as a mounted volume is used: everything is listed and read, something is
 * made and removed. Errors are expected; what must not happen is a crash, a hang, or an
 * endless listing.
 */
#include <dirent.h>
#include <fcntl.h>

#include "tests/images/image.h"

#define DEPTH_MAX 32
/* of all directories: a listing that does not end is a failure */
#define ENTRIES_MAX 100000

struct visit {
	struct fs *fs;
	unsigned depth;
	uint64_t *entries, *errors;
};

static const struct ops_caller user = {.keeps_setid = true, .in_group = true};

static int sink(void *arg, const struct iovec *iov, unsigned count, size_t total)
{
	uint8_t *sum = arg;

	for (unsigned i = 0; i < count; i++)
		for (size_t at = 0; at < iov[i].iov_len; at++)
			*sum ^= ((const uint8_t *)iov[i].iov_base)[at];
	return (int)total;
}

static void read_file(struct visit *v, uint64_t ino, uint64_t size)
{
	struct ops_file *file;
	struct ops_attr a;
	uint8_t sum = 0;

	if (ops_open(v->fs, ino, &user, O_RDWR, &file, &a)) {
		++*v->errors;
		return;
	}
	for (uint64_t at = 0; at < size && at < 64 << 20; at += 128 << 10)
		if (ops_read(v->fs, file, at, 128 << 10, sink, &sum) < 0)
			++*v->errors;
	if (ops_write(v->fs, file, &user, size / 2, "probe", 5, false) < 0)
		++*v->errors;
	ops_close(v->fs, file);
}

static void read_attributes(struct visit *v, uint64_t ino)
{
	static char names[65536], value[65536];
	int len = ops_listxattr(v->fs, ino, names, sizeof(names));

	*v->errors += len < 0;
	for (int at = 0; at < len; at += (int)strlen(names + at) + 1)
		*v->errors +=
			ops_getxattr(v->fs, ino, names + at, value, sizeof(value)) < 0;
}

static int list(struct visit *v, uint64_t dir);

static int entry(void *arg, const struct ops_dirent *e)
{
	struct visit *v = arg;
	char target[4096];
	struct ops_attr a;

	if (++*v->entries > ENTRIES_MAX) {
		fprintf(stderr, "probe: the listing does not end\n");
		exit(1);
	}
	if (e->cookie < 16)
		return 0;
	*v->errors += ops_lookup(v->fs, DISK_INO_ROOT,
			      (struct ops_name){e->name, e->name_len}, &a) == -EUCLEAN;
	if (ops_getattr(v->fs, e->ino, &a)) {
		++*v->errors;
		return 0;
	}
	read_attributes(v, e->ino);
	if (S_ISREG(a.inode.mode))
		read_file(v, e->ino, a.inode.size);
	else if (S_ISLNK(a.inode.mode))
		*v->errors += ops_readlink(v->fs, e->ino, target, sizeof(target)) < 0;
	else if (S_ISDIR(a.inode.mode) && v->depth < DEPTH_MAX)
		list(v, e->ino);
	return 0;
}

static int list(struct visit *v, uint64_t dir)
{
	struct visit below = *v;
	int rc;

	below.depth++;
	rc = ops_readdir(v->fs, dir, 0, OPS_READDIR_PLUS, entry, &below);
	*v->errors += rc < 0;
	return rc;
}

static void change(struct visit *v)
{
	struct ops_name made = {"probe-dir", 9}, moved = {"probe-moved", 11};
	struct ops_attr a;

	*v->errors += ops_mkdir(v->fs, DISK_INO_ROOT, made, &user, 0755, &a) < 0;
	*v->errors += ops_rename(v->fs, DISK_INO_ROOT, made, DISK_INO_ROOT, moved, 0) < 0;
	*v->errors += ops_rmdir(v->fs, DISK_INO_ROOT, moved) < 0;
	*v->errors += ops_syncfs(v->fs) < 0;
}

static void no_log(int level, const char *line)
{
}

int probe(const char *path)
{
	struct volume_options vo = {.background = true, .cache.cache_bytes = 8 << 20};
	struct ops_options oo = {.atime = OPS_NOATIME};
	uint64_t entries = 0, errors = 0;
	struct visit v = {.entries = &entries, .errors = &errors};
	struct weft_error err = {0};
	struct volume *volume;
	struct rt_disk *disk;
	int rc;

	weft_log_sink = no_log;
	MUST(rt_disk_open(&disk, path, RT_DISK_EXCLUSIVE, &err));
	if (volume_open(&volume, disk, &vo, &err)) {
		printf("refused: %s\n", err.text);
		return err.text[0] ? 0 : 1;
	}
	rc = fs_open(&v.fs, volume, &oo, &err);
	if (rc) {
		printf("refused: %s\n", err.text);
	} else {
		list(&v, DISK_INO_ROOT);
		change(&v);
		fs_close(v.fs);
		printf("%" PRIu64 " entries, %" PRIu64 " errors\n", entries, errors);
	}
	rc = volume_close(volume);
	if (rc)
		printf("closing: %s\n", strerror(-rc));
	return 0;
}
