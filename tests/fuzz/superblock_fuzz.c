/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Superblocks from outside: opening a store must fail with a text or give one that works.
 *
 * The first byte says what is done with the rest, which is laid over a whole superblock
 * at the offset in the next two: bit 0 mends the checksum, bits 1 and 2 say at which
 * copies it goes, bit 3 opens for reading only. A store that opens is then read and,
 * where allowed, given descriptors at its ends.
 */
#include <errno.h>

#include "engine/rt/rt_sim.h"
#include "engine/store/store_internal.h"

#define DISK_BYTES (8u << 20)
#define HEAD_BYTES 3u

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

struct input {
	const uint8_t *data;
	size_t size;
};

static void quiet(int level, const char *line)
{
}

/* A whole superblock of the disk, the same in every run. */
static void base_make(struct rt_disk *disk, struct disk_superblock *sb)
{
	const struct store_format f = {.label = "fuzz"};

	WEFT_ASSERT(store_format_plan(disk, &f, sb, NULL) == 0);
}

static void superblock_poke(
	struct rt_sim_disk *sim, struct rt_disk *disk, const struct input *in)
{
	struct disk_superblock base, sb;
	uint8_t how = in->data[0];
	size_t offset = (in->data[1] | (size_t)in->data[2] << 8) % sizeof(sb);

	base_make(disk, &base);
	sb = base;
	memcpy((uint8_t *)&sb + offset, in->data + HEAD_BYTES,
		MIN(in->size - HEAD_BYTES, sizeof(sb) - offset));
	if (how & 1)
		sb.checksum = superblock_sum(&sb);
	rt_sim_disk_poke(sim, 0, how & 2 ? &sb : &base, sizeof(sb));
	rt_sim_disk_poke(sim, DISK_BYTES - PAGE_SIZE, how & 4 ? &sb : &base, sizeof(sb));
}

/* Every place that a layout allows must be one of the disk. */
static void store_use(struct store *s)
{
	const struct disk_superblock *sb = store_superblock(s);
	struct store_read r = {.incarnation = 1, .image = rt_alloc_pages(PAGE_SIZE)};
	const page_id pids[] = {pid_make(sb->shard, 0),
		pid_make(sb->shard, sb->page_count - 1),
		pid_make(sb->shard, sb->page_count)};
	struct page_descriptor d = {.incarnation = 1, .version = 1, .checksum = 1};

	WEFT_ASSERT(r.image);
	for (size_t i = 0; i < ARRAY_SIZE(pids); i++) {
		r.pid = pids[i];
		store_read_pages(s, &r, 1);
		WEFT_ASSERT(r.result != -EINVAL && r.result != -EIO);
		WEFT_ASSERT(store_descriptor_install(s, pids[i], &d, 1) != -EIO);
	}
	rt_free_pages(r.image, PAGE_SIZE);
}

static int run(void *arg)
{
	const struct input *in = arg;
	const struct store_options o = {.read_only = in->data[0] & 8, .any_node = true};
	struct rt_sim_disk *sim = rt_sim_disk_create("d", DISK_BYTES, NULL);
	struct weft_error err = {0};
	struct rt_disk *disk;
	struct store *s;
	int rc;

	WEFT_ASSERT(rt_disk_open(&disk, "d", 0, &err) == 0);
	superblock_poke(sim, disk, in);
	rc = store_open(&s, disk, &o, &err);
	if (rc) {
		WEFT_ASSERT(err.code == rc && err.text[0]);
	} else {
		store_use(s);
		store_close(s);
	}
	rt_disk_close(disk);
	return 0;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	struct input in = {.data = data, .size = size};

	if (size <= HEAD_BYTES)
		return 0;
	weft_log_sink = quiet;
	WEFT_ASSERT(rt_sim_run(1, NULL, run, &in) == 0);
	return 0;
}
