/* SPDX-License-Identifier: Apache-2.0 */
/* What the kernel of a volume's only node holds of a file in mappings and in its cache. */
#include "tests/unit/ops_account.h"
#include "tests/unit/ops_data_crews.h"

/* A kernel that has one page of a mapping to write back. */
struct mapped {
	struct fs *fs;
	struct ops_file *file;
	uint64_t block;
	bool written;
	unsigned calls;
};

static int write_back(void *owner, uint64_t ino, uint64_t first, uint64_t end)
{
	struct mapped *m = owner;
	uint8_t page[PAGE_SIZE] = {1};

	m->calls++;
	if (!m->written && first <= m->block && m->block < end) {
		m->written = true;
		write_at(m->fs, m->file, m->block * PAGE_SIZE, page, sizeof(page));
	}
	return 0;
}

static int refuse(void *owner, uint64_t ino, uint64_t first, uint64_t end)
{
	return -EAGAIN;
}

static void do_seek_fetches(struct fs *fs)
{
	const uint64_t page = PAGE_SIZE;
	uint8_t one[PAGE_SIZE] = {1};
	uint64_t ino;
	struct ops_file *f = make_file(fs, "a", &ino), *reader;
	struct ops_attr attr = {.ino = ino};
	struct mapped m = {.fs = fs, .file = f, .block = 6};

	OK(ops_fallocate(fs, f, &root_user, 0, 4 * page, page)); /* 4 unwritten of 9 */
	write_at(fs, f, 2 * page, one, page);
	write_at(fs, f, 8 * page, one, page);
	EQ(ops_lseek(fs, f, 0, SEEK_DATA, write_back, &m), 2 * page);
	EQ(m.calls, 1);
	EQ(ops_lseek(fs, f, 2 * page, SEEK_DATA, refuse, NULL), 2 * page);
	EQ(ops_lseek(fs, f, 2 * page, SEEK_HOLE, refuse, NULL), -EAGAIN);
	EQ(ops_lseek(fs, f, 3 * page, SEEK_DATA, write_back, &m), 6 * page);
	EQ(m.calls, 2);
	EQ(ops_lseek(fs, f, 6 * page, SEEK_HOLE, write_back, &m), 7 * page);
	m = (struct mapped){.fs = fs, .file = f, .block = 7};
	EQ(ops_lseek(fs, f, 6 * page, SEEK_HOLE, write_back, &m), 9 * page);
	EQ(m.calls, 1);
	EQ(ops_lseek(fs, f, 3 * page + 5, SEEK_HOLE, write_back, &m), 3 * page + 5);
	attr.inode = attr_of(fs, ino);
	HOLDS(!ops_blocks_hidden(fs, &attr));
	attr.inode.blocks = 0;
	HOLDS(ops_blocks_hidden(fs, &attr));
	/* nobody can store into what is open to read */
	ops_close(fs, f);
	HOLDS(!ops_blocks_hidden(fs, &attr));
	OK(ops_open(fs, ino, &root_user, O_RDONLY, &reader, NULL));
	EQ(ops_lseek(fs, reader, 3 * page, SEEK_DATA, refuse, NULL), 6 * page);
	ops_close(fs, reader);
}

static void what_mappings_hold_is_data(void **state)
{
	with_fs(do_seek_fetches);
}

static void do_pages_given(struct fs *fs)
{
	uint64_t ino, given, later;
	struct ops_file *f, *direct;
	struct ops_attr attr;
	bool alone;

	OK(ops_create(fs, DISK_INO_ROOT, nm("a"), &root_user, 0644, O_RDWR, &f, &attr));
	ino = attr.ino;
	HOLDS(!ops_file_has_pages(f, &given, &alone)); /* it was just made */
	ops_file_paged(f);
	HOLDS(ops_file_has_pages(f, &given, &alone) && !alone);
	OK(ops_open(fs, ino, &root_user, O_RDWR | O_DIRECT, &direct, NULL));
	ops_close(fs, f);
	HOLDS(ops_file_has_pages(direct, &given, &alone) && alone);
	ops_file_paged(direct); /* while they are dropped */
	ops_pages_gone(fs, ino, given);
	HOLDS(ops_file_has_pages(direct, &later, &alone) && later != given);
	ops_pages_gone(fs, ino, later);
	HOLDS(!ops_file_has_pages(direct, &given, &alone));
	ops_close(fs, direct);
}

static void pages_of_the_kernel_are_known(void **state)
{
	with_fs(do_pages_given);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_mappings_hold_is_data),
		cmocka_unit_test(pages_of_the_kernel_are_known),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
