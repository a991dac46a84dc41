/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pass 2: items, inode by inode. The order of the tree brings all items of an inode together. So
 * one scan suffices, with one inode's sums in memory.
 *
 * Checks:
 *
 * - The kind of an item is known, it is valid by itself, and it fits its inode's type.
 * - Names are allowed, and lie at their hashes.
 * - Extents lie within groups and do not overlap.
 * - Written extents end within their file, unless an intent shows that it is being cut.
 * - The inode exists, its fields are within limits, and its counts are the sums of its items.
 *
 * A directory's link count comes from the types in its entries, which pass 3 compares with the
 * inodes.
 *
 * Assumes pass 1: each readable item is visited. Pass 3 checks that names and inodes belong
 * together, pass 4 that pages do.
 */
#include <dirent.h>

#include "mkfs/fsck/fsck_internal.h"

/* The sums of an inode's items. */
struct sums {
	uint64_t ino;
	bool any;   /* an item of the inode was seen */
	bool have;  /* the inode item was seen */
	bool valid; /* as far as its items' sums are meaningful */
	struct disk_inode inode;
	uint64_t blocks;
	uint64_t extent_end, written_end; /* file blocks */
	uint64_t cut_block; /* first written extent behind the end; UINT64_MAX: none */
	uint64_t extents, pieces, link_bytes, entries, subdirs, xattrs;
	bool pieces_bad;
	uint64_t lock_items; /* of the list, in order */
	bool lock_end;       /* later items are not of the list */
	uint32_t flags;
};

static struct disk_key inode_key(uint64_t ino)
{
	return disk_key(ino, DISK_ITEM_INODE, 0);
}

/* ---- finishing an inode ---------------------------------------------------------- */

static int inode_put(struct fsck *f, const struct sums *s)
{
	return fsck_repaired(
		f, repair_write(f, inode_key(s->ino), &s->inode, sizeof(s->inode)));
}

static int drop_items(struct fsck *f, struct sums *s, unsigned type)
{
	return repair_delete_range(
		f, disk_key(s->ino, type, 0), disk_key(s->ino, type + 1, 0));
}

/* Returns the type that the items show; 0: none. */
static uint32_t guess_type(const struct sums *s)
{
	if (s->ino == DISK_INO_ROOT || s->entries)
		return S_IFDIR;
	if (s->pieces)
		return S_IFLNK;
	return s->extents ? S_IFREG : 0;
}

/* Makes an inode from its items. Its owner is root, because the real one is unknown. */
static void inode_guess(struct fsck *f, struct sums *s, uint32_t type)
{
	int64_t now = rt_wall_ns();

	s->inode = (struct disk_inode){
		.mode = type | (type == S_IFDIR          ? 0700
				       : type == S_IFLNK ? 0777
							 : 0600),
		.nlink = type == S_IFDIR ? 2 + (uint32_t)s->subdirs : 1,
		.size = type == S_IFDIR   ? s->entries
			: type == S_IFLNK ? s->link_bytes
					  : s->written_end << PAGE_SHIFT,
		.blocks = s->blocks,
		.atime_ns = now,
		.mtime_ns = now,
		.ctime_ns = now,
		.btime_ns = now,
		.parent = type == S_IFDIR ? DISK_INO_ROOT : 0,
		.flags = s->flags,
		.generation = 1,
		.changes = 1,
	};
}

static int finish_missing(struct fsck *f, struct sums *s)
{
	uint32_t type = guess_type(s);

	if (!fsck_found(f, 203, "inode %" PRIu64 " is missing, but %s", s->ino,
		    type == S_IFDIR   ? "there are entries of it"
		    : type == S_IFLNK ? "there is a link's target of it"
		    : type            ? "there are extents of it"
				      : "there are extended attributes of it"))
		return 0;
	if (!type)
		return fsck_repaired(f, repair_delete_range(f, disk_key(s->ino, 0, 0),
						disk_key(s->ino + 1, 0, 0)));
	inode_guess(f, s, type);
	return inode_put(f, s);
}

static const char *inode_fault(const struct disk_inode *i)
{
	switch (i->mode & S_IFMT) {
	case S_IFDIR:
		return i->parent == 0 || i->parent > DISK_INO_MAX
			       ? "its parent is no inode"
			       : NULL;
	case S_IFREG:
		return i->size > INT64_MAX ? "its size is out of bounds" : NULL;
	case S_IFLNK:
		return i->size == 0 || i->size >= 4096 ? "its size is out of bounds"
						       : NULL;
	case S_IFCHR:
	case S_IFBLK:
	case S_IFIFO:
	case S_IFSOCK:
		return NULL;
	default:
		return "its type is none";
	}
}

static int finish_invalid(struct fsck *f, struct sums *s, const char *fault)
{
	uint32_t type = s->inode.mode & S_IFMT;
	uint32_t guess = guess_type(s);

	if (!fsck_found(f, 202, "inode %" PRIu64 ": %s", s->ino, fault))
		return 0;
	if (mode_dt(type) == DT_UNKNOWN || (type == S_IFLNK && !s->pieces)) {
		if (!guess)
			return fsck_repaired(
				f, repair_delete_range(f, disk_key(s->ino, 0, 0),
					   disk_key(s->ino + 1, 0, 0)));
		inode_guess(f, s, guess);
		return inode_put(f, s);
	}
	if (type == S_IFDIR)
		s->inode.parent = DISK_INO_ROOT; /* pass 3 finds the right one */
	else if (type == S_IFREG)
		s->inode.size = s->written_end << PAGE_SHIFT;
	else
		s->inode.size = MIN(s->link_bytes, 4095u);
	return inode_put(f, s);
}

/* Handles items that do not fit their inode's type. */
static int finish_strange(struct fsck *f, struct sums *s)
{
	uint32_t type = s->inode.mode & S_IFMT;
	const struct {
		uint64_t count;
		uint32_t owner;
		unsigned item;
		const char *what;
	} kinds[] = {
		{s->entries, S_IFDIR, DISK_ITEM_ENTRY, "entries"},
		{s->pieces, S_IFLNK, DISK_ITEM_LINK, "a link's target"},
		{s->extents, S_IFREG, DISK_ITEM_EXTENT, "extents"},
	};

	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
		int rc;

		if (!kinds[i].count || type == kinds[i].owner)
			continue;
		s->valid = false;
		if (!fsck_found(f, 210, "inode %" PRIu64 " has %s, but is of type %06o",
			    s->ino, kinds[i].what, type))
			continue;
		rc = fsck_repaired(f, drop_items(f, s, kinds[i].item));
		if (rc)
			return rc;
	}
	return 0;
}

static int finish_link(struct fsck *f, struct sums *s)
{
	if (!S_ISLNK(s->inode.mode) || (!s->pieces_bad && s->link_bytes == s->inode.size))
		return 0;
	if (!fsck_found(f, 209,
		    "inode %" PRIu64 ": the target of the symbolic link has %" PRIu64
		    " bytes in order, not %" PRIu64,
		    s->ino, s->link_bytes, s->inode.size))
		return 0;
	if (!s->link_bytes)
		return fsck_repaired(f, repair_delete_range(f, disk_key(s->ino, 0, 0),
						disk_key(s->ino + 1, 0, 0)));
	s->inode.size = s->link_bytes;
	return inode_put(f, s);
}

static int finish_directory(struct fsck *f, struct sums *s)
{
	uint32_t links = 2 + (uint32_t)s->subdirs;
	int rc = 0;

	if (s->inode.size != s->entries && fsck_found(f, 207,
						   "directory %" PRIu64 " counts %" PRIu64
						   " entries, it has %" PRIu64,
						   s->ino, s->inode.size, s->entries)) {
		s->inode.size = s->entries;
		rc = inode_put(f, s);
	}
	if (rc || s->inode.nlink == 0 || s->inode.nlink == links)
		return rc;
	if (fsck_found(f, 208, "directory %" PRIu64 " has a link count of %u, not %u",
		    s->ino, s->inode.nlink, links)) {
		s->inode.nlink = links;
		rc = inode_put(f, s);
	}
	return rc;
}

/* Returns true if an intent shows that the file is being cut. */
static bool being_cut(struct fsck *f, uint64_t ino)
{
	struct disk_intent intent;

	return item_get(f, disk_key(DISK_INO_SYSTEM, DISK_ITEM_INTENT, ino), &intent,
		       sizeof(intent)) >= 0;
}

static int finish_end(struct fsck *f, struct sums *s)
{
	if (s->cut_block == UINT64_MAX || s->inode.nlink == 0 || being_cut(f, s->ino))
		return 0;
	s->valid = false;
	if (!fsck_found(f, 213,
		    "inode %" PRIu64 " has pages from file block %" PRIu64
		    " on, behind its end at byte %" PRIu64,
		    s->ino, s->cut_block, s->inode.size))
		return 0;
	return fsck_repaired(f,
		repair_delete_range(f, disk_key(s->ino, DISK_ITEM_EXTENT, s->cut_block),
			disk_key(s->ino, DISK_ITEM_EXTENT + 1, 0)));
}

static int finish_counts(struct fsck *f, struct sums *s)
{
	uint32_t mask = DISK_INODE_HAS_ACL | DISK_INODE_HAS_DEFAULT_ACL |
			DISK_INODE_HAS_CAPS | DISK_INODE_HAS_INTENT;
	const uint32_t kept = DISK_INODE_HAS_XATTR | DISK_INODE_BY_USERS;
	uint32_t flags = (s->inode.flags & kept) | s->flags;
	int rc = 0;

	if (f->intents && being_cut(f, s->ino))
		flags |= DISK_INODE_HAS_INTENT;
	if (s->inode.blocks != s->blocks &&
		fsck_found(f, 205,
			"inode %" PRIu64 " counts %" PRIu64 " pages, it has %" PRIu64,
			s->ino, s->inode.blocks, s->blocks)) {
		s->inode.blocks = s->blocks;
		rc = inode_put(f, s);
	}
	if (rc || s->inode.nlink == 0 ||
		((s->inode.flags & mask) == (flags & mask) &&
			(s->inode.flags & flags) == flags &&
			!(s->inode.flags & ~(mask | kept))))
		return rc;
	if (fsck_found(f, 206,
		    "inode %" PRIu64 " has flags %#x, its items make it %#x", s->ino,
		    s->inode.flags, flags)) {
		s->inode.flags = flags;
		rc = inode_put(f, s);
	}
	return rc;
}

static int finish_inode(struct fsck *f, struct sums *s)
{
	const char *fault;
	int rc;

	if (!s->any || s->ino == DISK_INO_SYSTEM)
		return 0;
	if (!s->have)
		return finish_missing(f, s);
	f->out->inodes++;
	f->out->directories += S_ISDIR(s->inode.mode);
	fault = inode_fault(&s->inode);
	if (fault)
		return finish_invalid(f, s, fault);
	rc = finish_strange(f, s);
	if (rc == 0)
		rc = finish_link(f, s);
	if (rc == 0 && S_ISDIR(s->inode.mode) && s->valid)
		rc = finish_directory(f, s);
	if (rc == 0 && S_ISREG(s->inode.mode))
		rc = finish_end(f, s);
	if (rc == 0 && s->valid)
		rc = finish_counts(f, s);
	return rc;
}

/* ---- one item -------------------------------------------------------------------- */

static int item_drop(struct fsck *f, struct sums *s, struct disk_key key)
{
	s->valid = false;
	return fsck_repaired(f, repair_delete(f, key));
}

static int visit_inode(struct fsck *f, struct sums *s, struct disk_key key,
	const void *value, size_t len)
{
	if (len != sizeof(s->inode) || key.low != 0) {
		s->valid = false;
		if (fsck_found(f, 202,
			    "inode %" PRIu64 ": its item is malformed (%zu bytes)",
			    s->ino, len))
			return item_drop(f, s, key);
		s->any = false; /* there is nothing to compare with */
		return 0;
	}
	s->have = true;
	memcpy(&s->inode, value, len);
	return 0;
}

/* The node of a lock, and whether it runs, cannot be known here. Void locks are harmless. They are
 * removed when nodes next use the list. */
static int visit_lock(struct fsck *f, struct sums *s, struct disk_key key,
	const void *value, size_t len)
{
	size_t count = len / sizeof(struct disk_lock);
	bool good = s->have && !s->lock_end && key.low == s->lock_items &&
		    key.low < DISK_LOCK_ITEMS && count > 0 &&
		    count <= DISK_LOCKS_AN_ITEM && len % sizeof(struct disk_lock) == 0;

	for (size_t i = 0; good && i < count; i++) {
		struct disk_lock lock;

		memcpy(&lock, (const uint8_t *)value + i * sizeof(lock), sizeof(lock));
		good = disk_lock_valid(&lock);
	}
	s->lock_items++;
	s->lock_end |= !good || count < DISK_LOCKS_AN_ITEM;
	if (good || !fsck_found(f, 242,
			    "the list of locks of inode %" PRIu64
			    " is malformed or has no inode",
			    s->ino))
		return 0;
	return fsck_repaired(f, repair_delete(f, key));
}

static int visit_link(struct fsck *f, struct sums *s, struct disk_key key, size_t len)
{
	if (key.low != s->pieces || len == 0 || len > DISK_LINK_PIECE ||
		s->link_bytes != s->pieces * DISK_LINK_PIECE)
		s->pieces_bad = true;
	else
		s->link_bytes += len;
	s->pieces++;
	return 0;
}

static int visit_extent(struct fsck *f, struct sums *s, struct disk_key key,
	const void *value, size_t len)
{
	uint64_t end_block = DIV_UP(s->inode.size, (uint64_t)PAGE_SIZE);
	struct disk_extent e;

	s->extents++;
	if (!extent_valid(f, key, value, len, &e)) {
		if (fsck_found(f, 211,
			    "inode %" PRIu64 ": the extent at file block %" PRIu64
			    " is not valid",
			    s->ino, key.low))
			return item_drop(f, s, key);
		s->valid = false;
		return 0;
	}
	if (key.low < s->extent_end) {
		if (fsck_found(f, 212,
			    "inode %" PRIu64 ": the extent at file block %" PRIu64
			    " overlaps the one before it",
			    s->ino, key.low))
			return item_drop(f, s, key);
		s->valid = false;
		return 0;
	}
	s->blocks += e.length;
	s->extent_end = key.low + e.length;
	if (e.flags & DISK_EXTENT_UNWRITTEN)
		return 0;
	s->written_end = s->extent_end;
	if (s->have && key.low >= end_block && s->cut_block == UINT64_MAX)
		s->cut_block = key.low;
	return 0;
}

static int xattr_replace(struct fsck *f, struct sums *s, struct disk_key key,
	uint64_t place, const void *value, size_t len)
{
	s->valid = false;
	for (uint64_t at = place; at < place + 8; at++) {
		struct disk_key to = disk_key(s->ino, DISK_ITEM_XATTR, at);
		uint8_t there[DISK_VALUE_MAX];

		if (item_get(f, to, there, sizeof(there)) == -ENOENT)
			return fsck_repaired(f, repair_move(f, key, to, value, len));
	}
	return fsck_repaired(f, repair_delete(f, key));
}

static int visit_xattr(struct fsck *f, struct sums *s, struct disk_key key,
	const void *value, size_t len)
{
	char text[NAME_TEXT];
	struct xattr_item x;
	uint64_t place;

	s->xattrs++;
	if (!xattr_valid(f, value, len, &x)) {
		if (fsck_found(f, 230,
			    "inode %" PRIu64 ": an extended attribute is malformed",
			    s->ino))
			return item_drop(f, s, key);
		s->valid = false;
		return 0;
	}
	s->flags |= xattr_flags(&x);
	s->blocks += x.pages;
	place = name_place(f, x.name, x.head.name_bytes);
	if ((key.low < place || key.low >= place + 8) &&
		fsck_found(f, 231,
			"inode %" PRIu64 ": extended attribute \"%s\" is not where its "
			"name's hash belongs",
			s->ino, name_text(text, x.name, x.head.name_bytes)))
		return xattr_replace(f, s, key, place, value, len);
	return 0;
}

/* ---- entries --------------------------------------------------------------------- */

/* The new entries of an item. */
struct entries {
	uint8_t value[DISK_VALUE_MAX];
	size_t len;
	unsigned count;
};

static bool entries_have(const struct entries *es, const struct disk_entry *e)
{
	const struct disk_entry *other;
	size_t at = 0;
	int error;

	while (disk_entry_step(es->value, es->len, &at, &other, &error))
		if (other->name_bytes == e->name_bytes &&
			memcmp(other->name, e->name, e->name_bytes) == 0)
			return true;
	return false;
}

static bool entries_add(struct entries *es, const struct disk_entry *e)
{
	size_t bytes = sizeof(*e) + e->name_bytes;

	if (es->len + bytes > sizeof(es->value) || es->count == 16)
		return false;
	memcpy(es->value + es->len, e, bytes);
	es->len += bytes;
	es->count++;
	return true;
}

struct entry_move {
	struct disk_key to;
	const struct disk_entry *e;
	struct disk_key from;
	const struct entries *rest;
};

/* Writes the entries that stay. An entry that moves joins its right item, unless its name is
 * there. */
static int entry_move_body(struct fsck *f, struct txn *x, void *arg)
{
	const struct entry_move *m = arg;
	struct entries there = {0};
	int rc = 0;

	if (m->rest->len)
		rc = txn_write(x, m->from, m->rest->value, m->rest->len);
	else
		rc = txn_delete(x, m->from);
	if (rc)
		return rc;
	rc = txn_read(x, m->to, there.value, sizeof(there.value));
	if (rc < 0 && rc != -ENOENT)
		return rc;
	there.len = rc < 0 ? 0 : (size_t)rc;
	if (entries_have(&there, m->e) || !entries_add(&there, m->e))
		return 0;
	return txn_write(x, m->to, there.value, there.len);
}

/* Moves the first of the item's entries that is in a wrong place. */
static int entry_rehash(struct fsck *f, struct sums *s, struct disk_key key,
	const void *value, size_t len, const struct disk_entry *wrong, uint64_t place)
{
	struct entries rest = {0};
	struct entry_move m = {.to = disk_key(s->ino, DISK_ITEM_ENTRY, place),
		.e = wrong,
		.from = key,
		.rest = &rest};
	const struct disk_entry *e;
	size_t at = 0;
	int error;

	while (disk_entry_step(value, len, &at, &e, &error))
		if (e->name != wrong->name)
			entries_add(&rest, e);
	s->valid = false;
	return fsck_repaired(f, repair_run(f, entry_move_body, &m));
}

/* Returns true if the entry stays. */
static bool entry_check(struct fsck *f, struct sums *s, const struct disk_entry *e,
	const struct entries *kept, bool *changed)
{
	const char *fault = name_fault(e->name, e->name_bytes);
	char text[NAME_TEXT];
	bool drop = false;

	name_text(text, e->name, e->name_bytes);
	if (fault)
		drop = fsck_found(f, 221,
			"directory %" PRIu64 ": the name \"%s\" of inode %" PRIu64 ": %s",
			s->ino, text, e->ino, fault);
	else if (entries_have(kept, e))
		drop = fsck_found(f, 223,
			"directory %" PRIu64 ": the name \"%s\" occurs twice", s->ino,
			text);
	*changed |= drop;
	if (drop)
		fsck_repaired(f, 0);
	return !drop;
}

static int visit_entry(struct fsck *f, struct sums *s, struct disk_key key,
	const void *value, size_t len)
{
	struct entries kept = {0};
	const struct disk_entry *e;
	bool bad = false, changed = false;
	int error;
	char text[NAME_TEXT];
	size_t at = 0;

	while (disk_entry_step(value, len, &at, &e, &error)) {
		uint64_t place = name_place(f, e->name, e->name_bytes);

		s->entries++;
		s->subdirs += e->type == DT_DIR;
		if (!entry_check(f, s, e, &kept, &changed))
			continue;
		if (place != key.low && !name_fault(e->name, e->name_bytes) && !changed &&
			fsck_found(f, 222,
				"directory %" PRIu64
				": the name \"%s\" is not where its hash belongs",
				s->ino, name_text(text, e->name, e->name_bytes)))
			return entry_rehash(f, s, key, value, len, e, place);
		if (!entries_add(&kept, e))
			bad = true;
	}
	if ((bad || error || len == 0) &&
		fsck_found(f, 220,
			"directory %" PRIu64 ": an item of entries is malformed",
			s->ino)) {
		fsck_repaired(f, 0);
		changed = true;
	}
	if (bad || changed)
		s->valid = false;
	if (!changed)
		return 0;
	return kept.len ? repair_write(f, key, kept.value, kept.len)
			: repair_delete(f, key);
}

/* ---- items of the system --------------------------------------------------------- */

static int visit_system(struct fsck *f, struct sums *s, struct disk_key key,
	const void *value, size_t len)
{
	struct disk_inode inode;
	struct disk_intent intent;

	switch (key_type(key)) {
	case DISK_ITEM_ORPHAN:
		if (len == 0 && key.low != 0 && key.low <= DISK_INO_MAX)
			return 0;
		if (fsck_found(f, 240,
			    "the orphan item of inode %" PRIu64 " is malformed", key.low))
			return item_drop(f, s, key);
		return 0;
	case DISK_ITEM_OPENERS:
		if (len == sizeof(struct disk_openers) && key.low <= DISK_INO_MAX &&
			key.low % (1u << DISK_INODE_RANGE_BITS) == 0)
			return 0;
		if (fsck_found(f, 242,
			    "the item of the nodes that open files from inode %" PRIu64
			    " on is malformed",
			    key.low))
			return item_drop(f, s, key);
		return 0;
	case DISK_ITEM_INTENT:
		if (len == sizeof(intent)) {
			memcpy(&intent, value, len);
			if ((intent.kind == DISK_INTENT_TRUNCATE ||
				    intent.kind == DISK_INTENT_RECLAIM) &&
				intent.from < FILE_BLOCK_END && key.low <= DISK_INO_MAX &&
				item_get(f, inode_key(key.low), &inode, sizeof(inode)) >=
					0) {
				f->intents = true;
				return 0;
			}
		}
		if (fsck_found(f, 241,
			    "the intent of inode %" PRIu64
			    " is malformed or has no inode",
			    key.low))
			return item_drop(f, s, key);
		return 0;
	default:
		if (fsck_found(f, 201, "an item of kind %u that belongs to no inode",
			    key_type(key)))
			return item_drop(f, s, key);
		return 0;
	}
}

static int visit_item(
	struct fsck *f, void *arg, struct disk_key key, const void *value, size_t len)
{
	struct sums *s = arg;
	int rc;

	if (s->ino != key_ino(key)) {
		rc = finish_inode(f, s);
		if (rc)
			return rc;
		*s = (struct sums){
			.ino = key_ino(key), .valid = true, .cut_block = UINT64_MAX};
	}
	/* Locks alone do not show that there is an inode. */
	s->any |= key_type(key) != DISK_ITEM_LOCK;
	if (s->ino == DISK_INO_SYSTEM)
		return visit_system(f, s, key, value, len);
	switch (key_type(key)) {
	case DISK_ITEM_INODE:
		return visit_inode(f, s, key, value, len);
	case DISK_ITEM_LINK:
		return visit_link(f, s, key, len);
	case DISK_ITEM_XATTR:
		return visit_xattr(f, s, key, value, len);
	case DISK_ITEM_ENTRY:
		return visit_entry(f, s, key, value, len);
	case DISK_ITEM_EXTENT:
		return visit_extent(f, s, key, value, len);
	case DISK_ITEM_LOCK:
		return visit_lock(f, s, key, value, len);
	default:
		if (fsck_found(f, 201, "inode %" PRIu64 ": an item of unknown kind %u",
			    s->ino, key_type(key)))
			return item_drop(f, s, key);
		return 0;
	}
}

/* Without the root directory no file can be reached. */
static int check_root(struct fsck *f)
{
	struct sums s = {.ino = DISK_INO_ROOT};
	int rc = item_get(f, inode_key(DISK_INO_ROOT), &s.inode, sizeof(s.inode));

	if (rc == (int)sizeof(s.inode) && S_ISDIR(s.inode.mode) && s.inode.nlink >= 2 &&
		s.inode.parent == DISK_INO_ROOT)
		return 0;
	if (rc < 0 && rc != -ENOENT)
		return rc;
	if (!fsck_found(f, 250, "the root directory %s",
		    rc == -ENOENT ? "is missing" : "is none"))
		return 0;
	if (rc != (int)sizeof(s.inode) || !S_ISDIR(s.inode.mode)) {
		inode_guess(f, &s, S_IFDIR);
		s.inode.mode = S_IFDIR | 0755;
	}
	s.inode.nlink = MAX(s.inode.nlink, 2u);
	s.inode.parent = DISK_INO_ROOT;
	return inode_put(f, &s);
}

int fsck_pass2(struct fsck *f)
{
	struct sums *s = rt_alloc(sizeof(*s));
	int rc = s ? 0 : -ENOMEM;

	if (rc == 0)
		rc = check_root(f);
	if (rc == 0)
		rc = items_scan(f, (struct disk_key){0, 0}, key_narrow(KEY_MAX), 2,
			visit_item, s);
	if (rc == 0)
		rc = finish_inode(f, s);
	rt_free(s);
	return rc;
}
