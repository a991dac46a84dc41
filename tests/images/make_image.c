/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Makes an image of a populated volume and damages it in one chosen way.
 *
 *	make_image list		the names of the ways
 *	make_image make CASE IMAGE
 *	make_image probe IMAGE	opens it as a mount would, reads all, changes a little: no
 * damage may crash or hang that, whatever errors it meets
 */
#include <fcntl.h>
#include <unistd.h>

#include "tests/images/image.h"

static const struct ops_caller root_user = {
	.keeps_setid = true, .in_group = true, .umask = 022};

static struct ops_name nm(const char *s)
{
	return (struct ops_name){s, strlen(s)};
}

static uint64_t mkdir_at(struct fs *fs, uint64_t dir, const char *name)
{
	struct ops_attr a;

	MUST(ops_mkdir(fs, dir, nm(name), &root_user, 0755, &a));
	return a.ino;
}

/* A file with so many pages of its own pattern. */
static uint64_t file_at(struct fs *fs, uint64_t dir, const char *name, unsigned pages)
{
	static uint8_t page[PAGE_SIZE];
	struct ops_file *file;
	struct ops_attr a;

	MUST(ops_create(fs, dir, nm(name), &root_user, 0644, O_RDWR, &file, &a));
	for (unsigned i = 0; i < pages; i++) {
		memset(page, (int)(a.ino + i), sizeof(page));
		MUST(ops_write(fs, file, &root_user, (uint64_t)i * PAGE_SIZE, page,
			sizeof(page), false));
	}
	ops_close(fs, file);
	return a.ino;
}

static void attributes_fill(struct fs *fs, uint64_t ino)
{
	static uint8_t value[20000];

	memset(value, 'x', sizeof(value));
	MUST(ops_setxattr(fs, ino, &root_user, "user.small", "value", 5, 0));
	MUST(ops_setxattr(fs, ino, &root_user, "user.large", value, sizeof(value), 0));
}

/* A hole, pages allocated ahead, an end within a page. */
static void sparse_file(struct fs *fs, uint64_t dir)
{
	struct ops_file *file;
	struct ops_attr a;

	MUST(ops_create(fs, dir, nm("sparse"), &root_user, 0644, O_RDWR, &file, &a));
	MUST(ops_write(fs, file, &root_user, 10 * PAGE_SIZE, "end", 3, false));
	MUST(ops_fallocate(fs, file, &root_user, FALLOC_FL_KEEP_SIZE, 64 * PAGE_SIZE,
		16 * PAGE_SIZE));
	ops_close(fs, file);
}

static void populate(struct fs *fs, struct content *c)
{
	struct ops_attr a;
	char name[32];

	c->dir_a = mkdir_at(fs, DISK_INO_ROOT, "a");
	c->dir_b = mkdir_at(fs, c->dir_a, "b");
	c->dir_c = mkdir_at(fs, c->dir_b, "c");
	c->file = file_at(fs, c->dir_a, "file", 40);
	c->other = file_at(fs, c->dir_a, "other", 40);
	c->linked = file_at(fs, c->dir_a, "linked", 1);
	MUST(ops_link(fs, c->linked, c->dir_b, nm("linked"), &a));
	MUST(ops_symlink(fs, c->dir_a, nm("symlink"), &root_user, "b/c", &a));
	c->target = a.ino;
	c->attributes = file_at(fs, c->dir_a, "attributes", 1);
	attributes_fill(fs, c->attributes);
	sparse_file(fs, c->dir_a);
	MUST(ops_mknod(fs, c->dir_a, nm("fifo"), &root_user, S_IFIFO | 0600, 0, 0, &a));
	c->many = mkdir_at(fs, DISK_INO_ROOT, "many");
	for (unsigned i = 0; i < 4000; i++) {
		snprintf(name, sizeof(name), "file-number-%u", i);
		MUST(ops_mknod(
			fs, c->many, nm(name), &root_user, S_IFREG | 0644, 0, 0, &a));
	}
}

/* ---- the image ------------------------------------------------------------------- */

static void format(const char *path)
{
	struct store_format f = {
		.log_bytes = IMAGE_LOG, .checksum_kind = DISK_CHECKSUM_GMAC};
	struct weft_error err = {0};
	struct rt_disk *disk;
	int fd = open(path, O_RDWR | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);

	MUST(fd);
	MUST(ftruncate(fd, IMAGE_BYTES));
	close(fd);
	MUST(rt_disk_open(&disk, path, RT_DISK_EXCLUSIVE, &err));
	if (volume_format(disk, &f, 0, 0, &err)) {
		fprintf(stderr, "%s\n", err.text);
		exit(2);
	}
	rt_disk_close(disk);
}

static struct volume *volume_at(const char *path)
{
	struct volume_options o = {.background = true, .cache.cache_bytes = 32 << 20};
	struct weft_error err = {0};
	struct rt_disk *disk;
	struct volume *v;

	MUST(rt_disk_open(&disk, path, 0, &err));
	if (volume_open(&v, disk, &o, &err)) {
		fprintf(stderr, "%s\n", err.text);
		exit(2);
	}
	return v;
}

/* What a power cut would leave now, everything so far being durable. */
static void copy_image(const char *from, const char *to)
{
	static uint8_t buf[1 << 20];
	int in = open(from, O_RDONLY | O_CLOEXEC);
	int out = open(to, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, 0644);
	ssize_t n;

	MUST(in);
	MUST(out);
	while ((n = read(in, buf, sizeof(buf))) > 0)
		if (write(out, buf, (size_t)n) != n)
			exit(2);
	MUST(n);
	close(in);
	close(out);
}

/* Changes after the last checkpoint, in several chunks of the log. */
static void work_on(struct fs *fs, struct volume *v, const struct content *c)
{
	struct ops_attr a;
	char name[32];

	for (unsigned i = 0; i < 12; i++) {
		snprintf(name, sizeof(name), "late-%u", i);
		MUST(ops_mknod(
			fs, c->dir_c, nm(name), &root_user, S_IFREG | 0600, 0, 0, &a));
		MUST(log_flush(v->log, log_end(v->log)));
	}
}

static void make(const struct damage_case *d, const char *path)
{
	struct image i = {.path = path};
	struct ops_options o = {.atime = OPS_NOATIME};
	struct weft_error err = {0};
	char building[4096];
	struct fs *fs;

	snprintf(building, sizeof(building), "%s.building", path);
	format(building);
	i.v = volume_at(building);
	MUST(fs_open(&fs, i.v, &o, &err));
	populate(fs, &i.c);
	MUST(volume_sync(i.v));
	if (d->crashed) {
		work_on(fs, i.v, &i.c);
		copy_image(building, path);
	}
	fs_close(fs);
	if (d->logical)
		d->logical(&i);
	MUST(volume_close(i.v));
	if (!d->crashed)
		MUST(rename(building, path));
	else
		MUST(unlink(building));
	if (d->raw)
		d->raw(&i);
}

int main(int argc, char **argv)
{
	MUST(rt_real_start());
	if (argc == 2 && strcmp(argv[1], "list") == 0) {
		for (unsigned n = 0; n < damage_case_count; n++)
			puts(damage_cases[n].name);
		return 0;
	}
	if (argc == 3 && strcmp(argv[1], "probe") == 0)
		return probe(argv[2]);
	for (unsigned n = 0; argc == 4 && n < damage_case_count; n++) {
		if (strcmp(damage_cases[n].name, argv[2]) == 0) {
			make(&damage_cases[n], argv[3]);
			return 0;
		}
	}
	fprintf(stderr, "usage: make_image list | make CASE IMAGE | probe IMAGE\n");
	return 2;
}
