/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pass 0: the superblocks. Assumes nothing.
 *
 * Checks: both copies are whole, of one store, and do not contradict each other; the device is as
 * long as they say. A crash between their two writes leaves copies of different generations. A
 * crash in one of the writes leaves a copy that is not whole, which the next start repairs. Neither
 * is damage, if the log shows that there was a crash, or the copy shows one in the first of the two
 * writes.
 *
 * If the copies are of two stores, the one whose key fits the log's heads is right.
 */
#include "mkfs/fsck/fsck_internal.h"

struct copies {
	struct disk_superblock *sb[2]; /* pages */
	uint64_t place[2];
	bool whole[2], read[2], magic[2];
	uint64_t size;
};

static void copy_read(struct fsck *f, struct copies *c, unsigned i)
{
	c->read[i] = rt_disk_read(f->at->in.disk, c->place[i], c->sb[i], PAGE_SIZE) == 0;
	c->magic[i] = c->read[i] && c->sb[i]->magic == DISK_MAGIC_SUPER;
	c->whole[i] = c->magic[i] && store_superblock_whole(c->sb[i]);
}

static void copies_read(struct fsck *f, struct copies *c)
{
	c->place[0] = 0;
	c->place[1] = c->size - c->size % PAGE_SIZE - PAGE_SIZE;
	copy_read(f, c, 0);
	if (c->whole[0] && c->sb[0]->store_bytes <= c->size)
		c->place[1] = c->sb[0]->store_bytes - PAGE_SIZE;
	copy_read(f, c, 1);
}

static int copy_write(struct fsck *f, const struct copies *c, unsigned i)
{
	int rc = rt_disk_write(f->at->in.disk, c->place[i], c->sb[i], PAGE_SIZE);

	return rc ? rc : rt_disk_flush(f->at->in.disk);
}

/* Returns true if this is the superblock of the bytes between the two copies. */
static bool log_witnesses(struct fsck *f, const struct disk_superblock *sb)
{
	struct disk_log_head *head = rt_alloc_pages(DISK_LOG_HEADS_BYTES);
	struct store *s = NULL;
	bool fits = false;

	if (head && sb->store_bytes <= f->at->sb.store_bytes &&
		store_format_open(&s, f->at->in.disk, sb, NULL) == 0 &&
		rt_disk_read(f->at->in.disk, sb->log_offset, head,
			DISK_LOG_HEADS_BYTES) == 0) {
		for (unsigned i = 0; i < 2; i++) {
			struct iovec iov = {
				&head[i], offsetof(struct disk_log_head, checksum)};

			fits |= head[i].magic == DISK_MAGIC_LOGHEAD &&
				head[i].checksum == store_checksum(s, DISK_PLACE_LOG_HEAD,
							    head[i].generation, 0, &iov,
							    1);
		}
	}
	if (s)
		store_close(s);
	if (head)
		rt_free_pages(head, DISK_LOG_HEADS_BYTES);
	return fits;
}

/* Copies this one over the other. */
static int copy_mend(struct fsck *f, struct copies *c, unsigned good)
{
	memcpy(c->sb[!good], c->sb[good], PAGE_SIZE);
	c->place[!good] = good ? 0 : c->sb[good]->store_bytes - PAGE_SIZE;
	return copy_write(f, c, !good);
}

#define SECTOR 512u /* the unit that a device writes whole */

/* Returns true if each sector of the other copy is as in this one, or as the next start would write
 * it. The first of its two writes does not change whether the log is clean. */
static bool half_written(struct fsck *f, const struct copies *c, unsigned good)
{
	const uint8_t *now = (const uint8_t *)c->sb[good];
	const uint8_t *torn = (const uint8_t *)c->sb[!good];
	struct disk_superblock *next = rt_alloc(sizeof(*next));
	bool is_so = next != NULL;

	if (next) {
		memcpy(next, now, sizeof(*next));
		next->incarnation++;
		next->generation++;
		store_superblock_seal(next);
	}
	for (unsigned at = 0; is_so && at < PAGE_SIZE; at += SECTOR)
		is_so = memcmp(torn + at, now + at, SECTOR) == 0 ||
			memcmp(torn + at, (const uint8_t *)next + at, SECTOR) == 0;
	rt_free(next);
	return is_so;
}

static int check_one(struct fsck *f, struct copies *c)
{
	unsigned good = c->whole[0] ? 0 : 1;
	const char *which = good ? "first" : "second";

	if (c->read[!good] && (f->at->interrupted || half_written(f, c, good))) {
		fsck_note(f, 1,
			"the %s superblock (byte %" PRIu64
			") is not whole, as a crash may leave it; %s",
			which, c->place[!good],
			f->o->repair ? "it is written anew"
				     : "the next mount writes it anew");
		return f->o->repair ? copy_mend(f, c, good) : 0;
	}
	if (fsck_found(f, 1, "the %s superblock (byte %" PRIu64 ") %s", which,
		    c->place[!good], c->read[!good] ? "is damaged" : "cannot be read"))
		return fsck_repaired(f, copy_mend(f, c, good));
	return 0;
}

static int check_strangers(struct fsck *f, struct copies *c, bool *stop)
{
	bool first, second;

	f->at->sb.store_bytes = c->size;
	first = log_witnesses(f, c->sb[0]);
	second = log_witnesses(f, c->sb[1]);
	memcpy(&f->at->sb, c->sb[second && !first], sizeof(f->at->sb));
	if (first == second) {
		fsck_left(f, 3,
			"the superblocks at byte 0 and byte %" PRIu64
			" belong to different stores, and the log tells neither",
			c->place[1]);
		*stop = true;
		return 0;
	}
	if (fsck_found(f, 3,
		    "the superblocks at byte 0 and byte %" PRIu64
		    " belong to different stores; the log is the %s one's",
		    c->place[1], first ? "first" : "second"))
		return fsck_repaired(f, copy_mend(f, c, second));
	*stop = true;
	return 0;
}

static int check_contradiction(struct fsck *f, struct copies *c, bool *stop)
{
	unsigned keep = c->sb[1]->incarnation > c->sb[0]->incarnation;
	int rc;

	memcpy(&f->at->sb, c->sb[keep], sizeof(f->at->sb));
	if (!fsck_found(f, 4,
		    "the superblocks have the same generation, %" PRIu64 ", and differ",
		    c->sb[0]->generation)) {
		*stop = true;
		return 0;
	}
	c->sb[keep]->incarnation = MAX(c->sb[0]->incarnation, c->sb[1]->incarnation);
	c->sb[keep]->generation++;
	store_superblock_seal(c->sb[keep]);
	rc = copy_mend(f, c, keep);
	if (rc == 0)
		rc = copy_write(f, c, keep);
	return fsck_repaired(f, rc);
}

static int check_copies(struct fsck *f, struct copies *c, bool *stop)
{
	if (!c->whole[0] && !c->whole[1]) {
		*stop = true;
		/* No trace of a store, or another version: a repair is not possible. */
		if ((!c->magic[0] && !c->magic[1]) ||
			(c->magic[0] && c->sb[0]->disk_version != DISK_VERSION)) {
			struct store_options o = {.read_only = true, .any_node = true};
			struct store *s;
			int rc = store_open(&s, f->at->in.disk, &o, f->err);

			if (rc == 0)
				store_close(s);
			return rc ? rc : -EUCLEAN;
		}
		fsck_left(f, 2,
			"both superblocks are damaged; the key of the checksums was in "
			"them: "
			"restore the store from a backup");
		return 0;
	}
	if (!c->whole[0] || !c->whole[1]) {
		memcpy(&f->at->sb, c->sb[!c->whole[0]], sizeof(f->at->sb));
		f->at->one_superblock = true;
		return 0;
	}
	if (memcmp(c->sb[0]->store_uuid, c->sb[1]->store_uuid, 16) != 0)
		return check_strangers(f, c, stop);
	if (c->sb[0]->generation == c->sb[1]->generation &&
		memcmp(c->sb[0], c->sb[1], PAGE_SIZE) != 0)
		return check_contradiction(f, c, stop);
	memcpy(&f->at->sb, c->sb[c->sb[1]->generation > c->sb[0]->generation],
		sizeof(f->at->sb));
	return 0;
}

static int copies_open(struct fsck *f, struct copies *c)
{
	struct rt_disk_info info;
	uint8_t *memory;

	rt_disk_info(f->at->in.disk, &info);
	*c = (struct copies){.size = info.size_bytes};
	if (c->size < 2 * PAGE_SIZE)
		return weft_error(f->err, -EMEDIUMTYPE,
			"not a weft store: it has only %llu bytes",
			(unsigned long long)c->size);
	memory = rt_alloc_pages(2 * PAGE_SIZE);
	if (!memory)
		return -ENOMEM;
	c->sb[0] = (struct disk_superblock *)memory;
	c->sb[1] = (struct disk_superblock *)(memory + PAGE_SIZE);
	copies_read(f, c);
	return 0;
}

static void copies_close(struct copies *c)
{
	rt_free_pages(c->sb[0], 2 * PAGE_SIZE);
}

int super_check(struct fsck *f, bool *stop)
{
	struct copies c;
	int rc = copies_open(f, &c);

	if (rc)
		return rc;
	rc = check_copies(f, &c, stop);
	copies_close(&c);
	if (rc == 0 && !*stop && f->at->sb.store_bytes > c.size) {
		fsck_left(f, 5,
			"the store has %" PRIu64 " bytes, its superblock says %" PRIu64
			": it was cut off; enlarge the device or restore it from a "
			"backup",
			c.size, f->at->sb.store_bytes);
		*stop = true;
	}
	return rc;
}

int super_check_one(struct fsck *f)
{
	struct copies c;
	int rc;

	if (!f->at->one_superblock)
		return 0;
	rc = copies_open(f, &c);
	if (rc)
		return rc;
	rc = check_one(f, &c);
	copies_close(&c);
	return rc;
}
