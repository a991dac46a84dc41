/* SPDX-License-Identifier: Apache-2.0 */
/* Damage to the bytes of a closed image. */
#include <fcntl.h>
#include <unistd.h>

#include "tests/images/image.h"

static uint8_t zeros[8 * PAGE_SIZE];

void raw_read(const struct image *i, uint64_t offset, void *buf, size_t len)
{
	int fd = open(i->path, O_RDONLY | O_CLOEXEC);

	MUST(fd);
	MUST(pread(fd, buf, len, (off_t)offset) == (ssize_t)len ? 0 : -EIO);
	close(fd);
}

void raw_write(const struct image *i, uint64_t offset, const void *buf, size_t len)
{
	int fd = open(i->path, O_WRONLY | O_CLOEXEC);

	MUST(fd);
	MUST(pwrite(fd, buf, len, (off_t)offset) == (ssize_t)len ? 0 : -EIO);
	close(fd);
}

/* The copy that counts: the first, while it is whole. */
void raw_super(const struct image *i, struct disk_superblock *sb)
{
	raw_read(i, 0, sb, sizeof(*sb));
	if (!store_superblock_whole(sb))
		raw_read(i, IMAGE_BYTES - PAGE_SIZE, sb, sizeof(*sb));
}

static void flip(const struct image *i, uint64_t offset)
{
	uint8_t byte;

	raw_read(i, offset, &byte, 1);
	byte ^= 0x40;
	raw_write(i, offset, &byte, 1);
}

/* ---- superblocks ----------------------------------------------------------------- */

void super_first(struct image *i)
{
	raw_write(i, 0, zeros, PAGE_SIZE);
}

void super_second(struct image *i)
{
	flip(i, IMAGE_BYTES - PAGE_SIZE + 100);
}

/* Of the superblock that a start writes: raised, sealed. */
static void super_next(struct image *i, struct disk_superblock *sb)
{
	raw_super(i, sb);
	sb->incarnation++;
	sb->generation++;
	store_superblock_seal(sb);
}

/* A start that was cut in the midst of its first write. */
void super_half_written(struct image *i)
{
	struct disk_superblock sb;

	super_next(i, &sb);
	raw_write(i, IMAGE_BYTES - PAGE_SIZE, &sb, 512);
}

void super_both(struct image *i)
{
	flip(i, 140);
	flip(i, IMAGE_BYTES - PAGE_SIZE + 140);
}

void super_contradiction(struct image *i)
{
	struct disk_superblock sb;

	raw_super(i, &sb);
	sb.incarnation += 3;
	store_superblock_seal(&sb);
	raw_write(i, IMAGE_BYTES - PAGE_SIZE, &sb, sizeof(sb));
}

void super_stranger(struct image *i)
{
	struct disk_superblock sb;

	raw_super(i, &sb);
	memset(sb.store_uuid, 0xab, sizeof(sb.store_uuid));
	memset(sb.key, 0xcd, sizeof(sb.key));
	sb.generation += 10;
	store_superblock_seal(&sb);
	raw_write(i, 0, &sb, sizeof(sb));
}

void store_cut(struct image *i)
{
	MUST(truncate(i->path, IMAGE_BYTES / 2));
}

void everything_zeroed(struct image *i)
{
	for (uint64_t at = 0; at < IMAGE_BYTES; at += sizeof(zeros))
		raw_write(i, at, zeros, sizeof(zeros));
}

/* ---- the log --------------------------------------------------------------------- */

static uint64_t head_place(struct image *i, bool newer)
{
	struct disk_superblock sb;
	struct disk_log_head h[2];

	raw_super(i, &sb);
	raw_read(i, sb.log_offset, h, sizeof(h));
	return sb.log_offset +
	       ((h[1].generation > h[0].generation) == newer ? PAGE_SIZE : 0);
}

void log_head_older(struct image *i)
{
	flip(i, head_place(i, false) + 1000);
}

void log_head_newer(struct image *i)
{
	flip(i, head_place(i, true) + 1000);
}

/* A start that was cut when it had raised the incarnation and wrote its first head. */
void log_head_half_written(struct image *i)
{
	struct disk_superblock sb;

	super_next(i, &sb);
	raw_write(i, 0, &sb, sizeof(sb));
	raw_write(i, IMAGE_BYTES - PAGE_SIZE, &sb, sizeof(sb));
	flip(i, head_place(i, false) + 1000);
}

void log_heads(struct image *i)
{
	log_head_older(i);
	flip(i, head_place(i, true) + 16);
}

/* The chunks from the tail to the end, by their places; how many. */
static unsigned chunks_find(struct image *i, uint64_t *place, unsigned max)
{
	struct disk_superblock sb;
	struct disk_log_head h;
	struct disk_log_chunk c;
	uint64_t ring, lsn;
	unsigned n = 0;

	raw_super(i, &sb);
	raw_read(i, head_place(i, true), &h, sizeof(h));
	ring = sb.log_bytes - DISK_LOG_HEADS_BYTES;
	for (lsn = h.tail_lsn; n < max; lsn += c.chunk_bytes) {
		place[n] = sb.log_offset + DISK_LOG_HEADS_BYTES + lsn % ring;
		raw_read(i, place[n], &c, sizeof(c));
		if (c.magic != DISK_MAGIC_CHUNK || c.lsn != lsn)
			break;
		n++;
	}
	MUST(n >= 8 ? 0 : -EIO);
	return n;
}

void log_first_chunk(struct image *i)
{
	uint64_t place[64];

	chunks_find(i, place, 64);
	flip(i, place[0] + 80);
}

void log_middle(struct image *i)
{
	uint64_t place[64];
	unsigned n = chunks_find(i, place, 64);

	flip(i, place[n / 2] + 80);
}

void log_last_chunk(struct image *i)
{
	uint64_t place[64];
	unsigned n = chunks_find(i, place, 64);

	flip(i, place[n - 1] + 80);
}

/* A whole chunk whose record makes no sense. */
void log_record(struct image *i)
{
	static uint8_t chunk[DISK_CHUNK_MAX_BYTES];
	struct disk_log_chunk *c = (struct disk_log_chunk *)chunk;
	struct store_options o = {.read_only = true};
	struct weft_error err = {0};
	struct rt_disk *disk;
	struct store *s;
	uint64_t place[64];
	unsigned n = chunks_find(i, place, 64);
	struct iovec iov = {chunk, 0};

	raw_read(i, place[n / 2], c, sizeof(*c));
	raw_read(i, place[n / 2], chunk, c->chunk_bytes);
	((struct disk_log_record *)(c + 1))->type = 77;
	MUST(rt_disk_open(&disk, i->path, RT_DISK_READ_ONLY, &err));
	MUST(store_open(&s, disk, &o, &err));
	c->checksum = 0;
	iov.iov_len = sizeof(*c) + c->payload_bytes;
	c->checksum = store_checksum(s, DISK_PLACE_LOG, c->lsn, c->epoch, &iov, 1);
	store_close(s);
	rt_disk_close(disk);
	raw_write(i, place[n / 2], chunk, c->chunk_bytes);
}

/* ---- the descriptor table -------------------------------------------------------- */

static void table_copy_at(struct image *i, uint64_t block, unsigned copy)
{
	struct disk_superblock sb;

	raw_super(i, &sb);
	flip(i, sb.table_offset + (2 * block + copy) * PAGE_SIZE + 64 + 30);
}

void table_copy(struct image *i)
{
	struct disk_superblock sb;
	struct disk_table_block b[2];

	raw_super(i, &sb);
	raw_read(i, sb.table_offset, b, sizeof(b));
	table_copy_at(i, 0,
		b[1].magic == DISK_MAGIC_TABLE && b[1].generation < b[0].generation);
}

void table_block(struct image *i)
{
	table_copy_at(i, 0, 0);
	table_copy_at(i, 0, 1);
}

/* ---- pages ----------------------------------------------------------------------- */

static uint64_t page_place(struct image *i, page_id pid)
{
	struct disk_superblock sb;

	raw_super(i, &sb);
	return sb.pages_offset + pid_slot(pid) * PAGE_SIZE;
}

static void page_get(struct image *i, page_id pid, void *image)
{
	raw_read(i, page_place(i, pid), image, PAGE_SIZE);
}

static page_id root_page(struct image *i)
{
	struct disk_catalog c;

	page_get(i, DISK_CATALOG_SLOT, &c);
	return c.root_pid;
}

/* The page of a level that covers the key. */
static page_id page_over(struct image *i, struct disk_key key, unsigned level)
{
	page_id pid = root_page(i);
	struct disk_inner n;

	for (;;) {
		unsigned at = 0;

		page_get(i, pid, &n);
		MUST(n.node.magic == DISK_MAGIC_NODE ? 0 : -EIO);
		if (n.node.level <= level)
			return pid;
		while (at + 1u < n.node.count &&
			disk_key_compare(n.key[at + 1], key) <= 0)
			at++;
		pid = n.child[at];
	}
}

static struct disk_key middle_key(struct image *i)
{
	return disk_key(i->c.many + 1500, DISK_ITEM_INODE, 0);
}

void catalog_flipped(struct image *i)
{
	flip(i, page_place(i, DISK_CATALOG_SLOT) + 2000);
}

void catalog_zeroed(struct image *i)
{
	raw_write(i, page_place(i, DISK_CATALOG_SLOT), zeros, PAGE_SIZE);
}

void group_zeroed(struct image *i)
{
	raw_write(i, page_place(i, disk_group_slot(0)), zeros, PAGE_SIZE);
}

/* A bit of the change counter of an inode: the page stays sound. */
void leaf_flipped(struct image *i)
{
	page_id pid = page_over(i, middle_key(i), 0);
	struct disk_leaf leaf;

	page_get(i, pid, &leaf);
	flip(i, page_place(i, pid) + leaf.slot[3].offset +
			offsetof(struct disk_inode, changes) + 5);
}

void leaf_zeroed(struct image *i)
{
	raw_write(i, page_place(i, page_over(i, middle_key(i), 0)), zeros, PAGE_SIZE);
}

void inner_zeroed(struct image *i)
{
	page_id pid = page_over(i, middle_key(i), 2);

	MUST(pid != root_page(i) ? 0 : -EIO);
	raw_write(i, page_place(i, pid), zeros, PAGE_SIZE);
}

void root_flipped(struct image *i)
{
	flip(i, page_place(i, root_page(i)) + 4000);
}

void root_zeroed(struct image *i)
{
	raw_write(i, page_place(i, root_page(i)), zeros, PAGE_SIZE);
}

void data_flipped(struct image *i)
{
	static uint8_t page[PAGE_SIZE];
	struct disk_superblock sb;

	raw_super(i, &sb);
	for (uint64_t slot = 2; slot < sb.page_count; slot++) {
		page_get(i, slot, page);
		/* the third page of /a/file, by its pattern; the last byte tells it from
		 * others */
		if (page[0] == (uint8_t)(i->c.file + 3) &&
			page[PAGE_SIZE - 1] == page[0] && page[2000] == page[0]) {
			flip(i, page_place(i, slot) + 77);
			return;
		}
	}
	MUST(-ENOENT);
}
