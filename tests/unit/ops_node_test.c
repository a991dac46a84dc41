/* SPDX-License-Identifier: Apache-2.0 */
/* What a file remembers of the node that wrote it, for nodes of a cluster and without one. */
#include "tests/unit/ops_fixture.h"

#define DISK_BYTES (64ull << 20)

/* A volume whose only store is the node's, open; 0: a volume without a cluster. */
static struct fs *open_as(uint16_t node)
{
	const struct store_format format = {.node = node};
	const struct volume_options vo = {
		.node = node, .background = true, .cache.cache_bytes = 8 << 20};
	const struct ops_options oo = {.atime = OPS_RELATIME};
	struct weft_error err = {0};
	struct rt_disk *disk;
	struct volume *v;
	struct fs *fs;

	HOLDS(rt_sim_disk_create("disk", DISK_BYTES, NULL));
	OK(rt_disk_open(&disk, "disk", 0, &err));
	OK(volume_format(disk, &format, 0, 0, &err));
	OK(volume_open(&v, disk, &vo, &err));
	OK(fs_open(&fs, v, &oo, &err));
	return fs;
}

static uint64_t writers_of(struct fs *fs, uint64_t ino)
{
	return attr_of(fs, ino).writers;
}

static int changes_bear_the_nodes_bit(void *arg)
{
	uint16_t node = *(const uint16_t *)arg;
	uint64_t bit = 1ull << node;
	struct fs *fs = open_as(node);
	uint64_t written = mk_file(fs, DISK_INO_ROOT, "written");
	uint64_t cut = mk_file(fs, DISK_INO_ROOT, "cut");
	uint64_t held = mk_file(fs, DISK_INO_ROOT, "held");
	const struct ops_setattr size = {.set = OPS_SET_SIZE, .size = 5000};
	struct ops_file *f;
	struct ops_attr a;

	EQ(writers_of(fs, written), bit);
	EQ(writers_of(fs, DISK_INO_ROOT), bit);
	OK(ops_open(fs, written, &root_user, O_RDWR, &f, &a));
	EQ(ops_write(fs, f, &root_user, 0, "x", 1, false), 1);
	EQ(writers_of(fs, written), bit);
	ops_close(fs, f);
	OK(ops_setattr(fs, cut, &root_user, &size, &a));
	EQ(writers_of(fs, cut), bit);
	OK(ops_open(fs, held, &root_user, O_RDWR, &f, &a));
	OK(ops_fallocate(fs, f, &root_user, 0, 0, 10000));
	EQ(writers_of(fs, held), bit);
	ops_close(fs, f);
	test_fs_close(fs);
	return 0;
}

static void a_file_names_the_node_that_changed_it(void **state)
{
	static uint16_t nodes[] = {0, 1, 2, DISK_NODE_MAX};

	for (size_t i = 0; i < ARRAY_SIZE(nodes); i++)
		OK(rt_sim_run(1, NULL, changes_bear_the_nodes_bit, &nodes[i]));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_file_names_the_node_that_changed_it),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
