/* SPDX-License-Identifier: Apache-2.0 */
/*
 * On-disk structures, and nothing else. docs/disk-format.md explains them.
 *
 * Little-endian, fixed offsets, explicit padding (written as zeros), a magic in
 * every structure, sizes asserted. weft runs on little-endian machines only.
 */
#ifndef WEFT_COMMON_FORMAT_H
#define WEFT_COMMON_FORMAT_H

#include "engine/common/base.h"

_Static_assert(
	__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "weft needs a little-endian machine");

#define DISK_VERSION 1u

#define DISK_MAGIC(a, b, c, d, e, f, g, h)                                               \
	((uint64_t)(a) | (uint64_t)(b) << 8 | (uint64_t)(c) << 16 |                      \
		(uint64_t)(d) << 24 | (uint64_t)(e) << 32 | (uint64_t)(f) << 40 |        \
		(uint64_t)(g) << 48 | (uint64_t)(h) << 56)
#define DISK_MAGIC_SUPER   DISK_MAGIC('W', 'E', 'F', 'T', 'S', 'U', 'P', 'R')
#define DISK_MAGIC_LOGHEAD DISK_MAGIC('W', 'E', 'F', 'T', 'L', 'O', 'G', 'H')
#define DISK_MAGIC_CHUNK   DISK_MAGIC('W', 'E', 'F', 'T', 'C', 'H', 'N', 'K')
#define DISK_MAGIC_TABLE   DISK_MAGIC('W', 'E', 'F', 'T', 'T', 'A', 'B', 'L')
#define DISK_MAGIC_CATALOG DISK_MAGIC('W', 'E', 'F', 'T', 'C', 'A', 'T', 'A')
#define DISK_MAGIC_GROUP   DISK_MAGIC('W', 'E', 'F', 'T', 'G', 'R', 'U', 'P')
#define DISK_MAGIC_NODE    DISK_MAGIC('W', 'E', 'F', 'T', 'N', 'O', 'D', 'E')

/* ---- superblock: at offset 0 and in the last 4096 bytes of the store ------- */

enum disk_checksum {
	/* AES-128-GMAC, key = first 16 bytes of the volume's key */
	DISK_CHECKSUM_GMAC = 1,
	DISK_CHECKSUM_SHA256 = 2, /* over place, version, then image; first 64 bits */
	DISK_CHECKSUM_BLAKE2B = 3,
};

enum disk_super_flags {
	DISK_SUPER_AREAS = 1, /* it has room for logs of clients */
	/* levels of the tree may be left out (docs/disk-format.md, "Tree pages") */
	DISK_SUPER_LEVELS = 2,
};

/* From a page of the tree down to its children, unless one of them has grown where it is. */
static inline unsigned disk_level_step(uint32_t super_flags)
{
	return super_flags & DISK_SUPER_LEVELS ? 2 : 1;
}

/* Highest id of a node: disk_inode.writers has a bit for each. */
#define DISK_NODE_MAX 63u
/* In a client's store: its shard has no allocation group, and no page is ever there. */
#define DISK_SHARD_CLIENT(node) ((uint16_t)(0x8000u + (node)))

static inline bool disk_shard_client(uint16_t shard)
{
	return shard >= DISK_SHARD_CLIENT(0);
}

#define DISK_LEFT_DEAD (1ull << 63)

/*
 * In the superblock: how far the last scrub of this store is. All zeros: there was none. It is only
 * a note. Impossible values count as zeros.
 */
enum disk_scrub_state {
	DISK_SCRUB_NONE = 0,
	DISK_SCRUB_RUNNING = 1, /* goes on at the next start of the node, too */
	DISK_SCRUB_STOPPED = 2, /* goes on when it is asked to */
	DISK_SCRUB_ENDED = 3,   /* every page was looked at */
};

struct disk_scrub {
	uint32_t state; /* enum disk_scrub_state */
	uint32_t pad;
	uint64_t next;       /* slot: those before it were looked at */
	uint64_t rate_bytes; /* most bytes a second */
	int64_t began_ns;    /* since 1970 */
	int64_t ended_ns;    /* since 1970; 0: it has not ended */
	uint64_t pages;      /* images that were read and checked */
	uint64_t damaged;    /* pages, and blocks of the descriptor table */
	uint64_t pad1;
};
_Static_assert(sizeof(struct disk_scrub) == 64, "scrub size");

struct disk_superblock {
	uint64_t magic;
	uint32_t disk_version;
	uint32_t checksum_kind; /* enum disk_checksum */
	uint8_t volume_uuid[16];
	uint8_t store_uuid[16];
	uint16_t shard;
	uint16_t node;         /* its id in the cluster file; 0: of no cluster */
	uint32_t flags;        /* enum disk_super_flags */
	uint64_t store_bytes;  /* the superblocks included */
	uint64_t log_offset;   /* two heads, then the ring */
	uint64_t log_bytes;    /* heads included */
	uint64_t table_offset; /* descriptor table */
	uint64_t table_bytes;
	uint64_t pages_offset; /* page slots */
	uint64_t page_count;   /* slots */
	uint64_t incarnation;  /* the node's; raised at every start that may write */
	uint64_t generation; /* of this structure; the valid copy with the higher one wins
			      */
	int64_t created_ns;          /* since 1970 */
	uint8_t key[32];             /* the volume's checksum key */
	char label[64];              /* NUL-terminated UTF-8 */
	uint32_t atomic_write_bytes; /* that the device promised mkfs; 512 at least */
	/* of clients' logs: below */
	uint32_t area_count;
	/*
	 * for each node: the incarnation of it that left this volume, and was not met since. It has
	 * nothing of this shard's pages, and nothing undurable. 0: it may have something. With
	 * DISK_LEFT_DEAD this incarnation and all before it do not run any more. The contents of
	 * their log are not known
	 */
	uint64_t left[DISK_NODE_MAX + 1];
	/*
	 * Room for the logs of clients, between the page slots and the second superblock. The areas
	 * have equal size. Each is zeros at both ends, or a client's store with its log and hardly
	 * any page. With DISK_SUPER_AREAS; else 0.
	 */
	uint64_t areas_offset;
	uint64_t area_bytes; /* of one */
	/* bits: ids of the other nodes that this one ever had a link with, as the home of its
	 * shard. They may have pages of it, for ever. 0 in a client's store */
	uint64_t known;
	uint8_t pad1[3072 - 776];
	struct disk_scrub scrub; /* of this store's pages; a note */
	uint8_t pad2[4096 - 3136 - 8];
	uint64_t checksum; /* first 64 bits of SHA-256 of the bytes before it */
};
_Static_assert(offsetof(struct disk_superblock, node) == 50, "superblock layout");
_Static_assert(offsetof(struct disk_superblock, left) == 240, "superblock layout");
_Static_assert(offsetof(struct disk_superblock, known) == 768, "superblock layout");
_Static_assert(offsetof(struct disk_superblock, pad1) == 776, "superblock layout");
_Static_assert(offsetof(struct disk_superblock, scrub) == 3072, "superblock layout");
_Static_assert(sizeof(struct disk_superblock) == 4096, "superblock size");

/* ---- log -------------------------------------------------------------------
 * log_offset + 0 and + 4096: two heads, written in turn. From + 8192: the ring.
 * An LSN is a byte position in the endless log; its place in the ring is
 * LSN % ring_bytes. The first one is ring_bytes: the ring's start, and never 0.
 * The log is a sequence of chunks. Each is one device write. Its place and its length
 * are multiples of 4096. A chunk never wraps: if it would not fit before the ring's
 * end, the LSN skips to the start.
 * An empty log begins at LSN ring_bytes (the ring's first byte; LSN 0 is none).
 */
struct disk_log_head {
	uint64_t magic;
	uint64_t generation; /* the valid head with the higher one wins */
	uint64_t tail_lsn;   /* recovery starts here */
	uint64_t clean;      /* 1: everything is persisted, the log from tail_lsn is empty */
	uint64_t epoch;      /* chunks from tail_lsn on bear this epoch or a later one */
	uint8_t pad[4096 - 48];
	uint64_t checksum; /* place (DISK_PLACE_LOG_HEAD, generation, 0), of the bytes
			      before */
};
_Static_assert(sizeof(struct disk_log_head) == 4096, "log head size");

#define DISK_LOG_HEADS_BYTES 8192u
#define DISK_CHUNK_MAX_BYTES (1u << 20)

struct disk_log_chunk {
	uint64_t magic;
	uint64_t lsn; /* of this header */
	uint64_t
		epoch;          /* node incarnation that wrote it; never decreases along the log */
	uint64_t durable_lsn;   /* everything below was durable when this was written */
	uint32_t chunk_bytes;   /* header and padding included; multiple of 4096 */
	uint32_t payload_bytes; /* records, right behind the header */
	uint16_t shard;
	uint16_t pad0;
	uint32_t pad1;
	uint64_t follows_lsn; /* end of the chunk before it: lsn, or where the skip began
			       */
	uint64_t checksum; /* place (DISK_PLACE_LOG, lsn, epoch); over the chunk with this
			    * field 0, up to the end of the payload */
};
_Static_assert(sizeof(struct disk_log_chunk) == 64, "chunk header size");

enum disk_log_type {
	/* one transaction: `count` disk_log_page, each with its bytes */
	DISK_LOG_CHANGE = 1,
	DISK_LOG_DESCRIPTORS = 2, /* u64 batch, then `count` disk_log_descriptor: images
				   * about to be written in place */
	/* `count` u64 batches whose images are durable in place */
	DISK_LOG_PERSISTED = 3,
};

struct disk_log_record {
	uint32_t record_bytes; /* header included; multiple of 8 */
	uint16_t type;         /* enum disk_log_type */
	uint16_t count;
};
_Static_assert(sizeof(struct disk_log_record) == 8, "record size");

enum disk_log_page_kind {
	DISK_LOG_FULL = 1, /* 4096 bytes follow */
	/* move_count disk_log_move; range_count disk_log_range, padded to 8; the ranges'
	 * bytes one behind the other, padded to 8 */
	DISK_LOG_RANGES = 2,
};

/*
 * A page's after-image in a transaction. `version` is the resulting one. Redo of RANGES
 * on the image before: first the moves, in order, then the ranges' bytes.
 */
struct disk_log_page {
	uint64_t pid;
	uint64_t incarnation;
	uint64_t version;
	uint8_t kind; /* enum disk_log_page_kind */
	uint8_t move_count;
	uint16_t range_count;
	uint32_t
		part_bytes; /* of this page's part, this header included; multiple of 8 */
};
_Static_assert(sizeof(struct disk_log_page) == 32, "log page size");

/* Bytes moved within the page, as by memmove; ends within the page. */
struct disk_log_move {
	uint16_t to;
	uint16_t from;
	uint16_t length; /* 1..4096 */
	uint16_t pad;
};

struct disk_log_range {
	uint16_t offset;
	uint16_t length; /* 1..4096 */
};

/* The pieces of a RANGES part whose bounds are checked (log_check_records). */
static inline const struct disk_log_move *disk_log_moves(const struct disk_log_page *part)
{
	return (const struct disk_log_move *)(part + 1);
}

static inline const struct disk_log_range *disk_log_ranges(
	const struct disk_log_page *part)
{
	return (const struct disk_log_range *)(disk_log_moves(part) + part->move_count);
}

static inline const uint8_t *disk_log_bytes(const struct disk_log_page *part)
{
	return (const uint8_t *)disk_log_ranges(part) +
	       ALIGN_UP(part->range_count * sizeof(struct disk_log_range), 8);
}

struct disk_log_descriptor {
	uint64_t pid;
	uint64_t incarnation;
	uint64_t version;
	uint64_t checksum;
};

/* ---- descriptor table --------------------------------------------------------
 * Block b describes slots [168 b, 168 b + 168) and has two copies, at
 * table_offset + 8192 b and + 4096 more. They are written in turn, and the valid one
 * with the higher generation wins. mkfs writes the first copy of every block; a copy of
 * zeros was never written.
 */
#define DISK_TABLE_SLOTS 168u

struct disk_descriptor {
	uint64_t incarnation;
	uint64_t version;
	uint64_t checksum;
};

struct disk_table_block {
	uint64_t magic;
	uint64_t block;
	uint64_t generation;
	uint8_t pad[32];
	uint64_t checksum; /* place (TABLE_PLACE + block, generation, 0), of header (this
			      field 0) and slots */
	struct disk_descriptor slot[DISK_TABLE_SLOTS];
};
_Static_assert(sizeof(struct disk_table_block) == 4096, "table block size");

/* First word of a checksum's place for things that are not pages (no PID has bit 63 and
 * 62 set). */
#define DISK_PLACE_LOG_HEAD (3ull << 62)
#define DISK_PLACE_LOG      (3ull << 62 | 1ull << 60)
#define DISK_PLACE_TABLE    (3ull << 62 | 1ull << 61)

/* ---- catalog: the page at slot 0 of shard 0 ---------------------------------- */

struct disk_catalog {
	uint64_t magic;
	uint32_t disk_version;
	uint32_t pad0;
	uint8_t volume_uuid[16];
	uint64_t root_pid; /* of the tree; only fsck changes it, for a lost root */
	uint64_t next_inode_range; /* next number to hand out is this <<
				      DISK_INODE_RANGE_BITS */
	uint64_t hash_key[2];  /* SipHash-2-4 key for names */
	uint64_t rename_token; /* changed under X by renames of directories */
	uint8_t pad1[4096 - 72];
};
_Static_assert(sizeof(struct disk_catalog) == 4096, "catalog size");

#define DISK_CATALOG_SHARD 0u
#define DISK_CATALOG_SLOT  0ull
/* inode numbers are handed to nodes in ranges of 65,536 */
#define DISK_INODE_RANGE_BITS 16

/* ---- allocation groups ---------------------------------------------------------
 * Group g's page is at slot 1 + g * (1 + DISK_GROUP_PAGES) and describes the
 * DISK_GROUP_PAGES slots that follow it. Bits past the last slot are set.
 */
#define DISK_GROUP_PAGES 32256u
/* the id of the node of a volume without a cluster, too: it owns all groups without an owner */
#define DISK_OWNER_NOBODY 0u

struct disk_group {
	uint64_t magic;
	uint32_t group;
	uint32_t free_pages;
	uint64_t next_incarnation; /* above every incarnation handed out here; starts at 1
				    */
	uint16_t owner; /* the node that may reserve pages here; DISK_OWNER_NOBODY */
	uint8_t pad[38];
	uint8_t bitmap[DISK_GROUP_PAGES / 8]; /* bit set: in use */
};
_Static_assert(sizeof(struct disk_group) == 4096, "group size");

static inline uint64_t disk_group_slot(uint64_t group)
{
	return 1 + group * (1 + DISK_GROUP_PAGES);
}

/* Returns 0 for the page of a group, n + 1 for the n-th page that it describes. Not for slot 0. */
static inline uint64_t disk_slot_in_group(uint64_t slot)
{
	return (slot - 1) % (1 + DISK_GROUP_PAGES);
}

/* ---- tree pages ------------------------------------------------------------------
 * Keys are 128-bit integers. Node covers [low_fence, high_fence); a high fence of
 * all ones is "no upper bound". Inner: key[i] is the lowest key of child[i]
 * (key[0] == low_fence), count children. Leaf: count slots sorted by key, values
 * allocated downwards from the end of the page.
 */
struct disk_key {
	uint64_t low;  /* discriminator */
	uint64_t high; /* inode << 8 | item type */
};

struct disk_node {
	uint64_t magic;
	uint16_t level; /* 0: leaf */
	uint16_t count;
	uint16_t heap_begin; /* leaf: lowest offset that values use; 4096 when none */
	uint16_t heap_dead;  /* leaf: bytes between heap_begin and 4096 that no value uses
			      */
	uint64_t pid;        /* its own */
	struct disk_key low_fence;
	struct disk_key high_fence;
	uint64_t pad;
};
_Static_assert(sizeof(struct disk_node) == 64, "node header size");

struct disk_leaf_slot {
	struct disk_key key;
	uint16_t offset;
	uint16_t length;
	uint32_t pad;
};
_Static_assert(sizeof(struct disk_leaf_slot) == 24, "leaf slot size");

#define DISK_INNER_CHILDREN 168u
struct disk_inner {
	struct disk_node node;
	struct disk_key key[DISK_INNER_CHILDREN];
	uint64_t child[DISK_INNER_CHILDREN]; /* PIDs */
};
_Static_assert(sizeof(struct disk_inner) == 4096, "inner size");

struct disk_leaf {
	struct disk_node node;
	struct disk_leaf_slot
		slot[168]; /* count of them; the heap may use the space behind */
};
_Static_assert(sizeof(struct disk_leaf) == 4096, "leaf size");

#define DISK_VALUE_MAX 1024u /* longest value of an item, bytes */

/* ---- items --------------------------------------------------------------------- */

enum disk_item_type {
	DISK_ITEM_INODE = 1,  /* disc 0: struct disk_inode */
	DISK_ITEM_LINK = 2,   /* disc n: n-th piece of a symlink's target, DISK_LINK_PIECE
				 bytes each */
	DISK_ITEM_XATTR = 3,  /* disc hash of the name: struct disk_xattr */
	DISK_ITEM_ENTRY = 4,  /* disc hash of the name: struct disk_entry, one or more */
	DISK_ITEM_EXTENT = 5, /* disc first file block: struct disk_extent */
	DISK_ITEM_LOCK = 6,   /* disc n: n-th piece of the file's lock list:
				 struct disk_lock, DISK_LOCKS_AN_ITEM but in the last */
	DISK_ITEM_ORPHAN = 7, /* inode DISK_INO_SYSTEM, disc the orphan's inode number:
				 empty value */
	/* inode DISK_INO_SYSTEM, disc the inode number: struct disk_intent */
	DISK_ITEM_INTENT = 8,
	/* inode DISK_INO_SYSTEM, disc the first inode number of a range: struct
	 * disk_openers */
	DISK_ITEM_OPENERS = 9,
};

#define DISK_INO_SYSTEM 0ull
#define DISK_INO_ROOT   1ull
#define DISK_INO_MAX    ((1ull << 56) - 1)
#define DISK_LINK_PIECE 1000u
#define DISK_NAME_MAX   255u
#define DISK_LINK_MAX   65000u /* nlink of a file; directories are not limited by it */

static inline struct disk_key disk_key(
	uint64_t ino, enum disk_item_type type, uint64_t disc)
{
	return (struct disk_key){.low = disc, .high = ino << 8 | (uint64_t)type};
}

/* Whether the items of a range of inode numbers may begin, or end, at this key. */
static inline bool disk_key_divides(struct disk_key k)
{
	const uint64_t within = (1ull << DISK_INODE_RANGE_BITS) - 1;
	uint64_t ino = k.high >> 8, type = k.high & 0xff;

	if (ino == DISK_INO_SYSTEM)
		return (type == DISK_ITEM_ORPHAN || type == DISK_ITEM_INTENT ||
			       type == DISK_ITEM_OPENERS) &&
		       ((k.low & within) == 0 || (k.low & within) == within);
	return !type && !k.low && !(ino & within);
}

struct disk_inode {
	uint32_t mode; /* type and permissions as in st_mode */
	uint32_t uid;
	uint32_t gid;
	uint32_t nlink;  /* directories: 2 + subdirectories */
	uint64_t size;   /* bytes; a directory's: number of entries */
	uint64_t blocks; /* pages that extents and big xattrs hold */
	int64_t atime_ns;
	int64_t mtime_ns;
	int64_t ctime_ns;
	int64_t btime_ns;
	uint64_t parent; /* a directory's; else 0 */
	uint32_t rdev_major;
	uint32_t rdev_minor;
	uint32_t flags;      /* DISK_INODE_* */
	uint32_t generation; /* DISK_GENERATION_* */
	uint64_t writers;    /* bit n: node n changed it since it was last clean */
	uint64_t changes;    /* counts changes to the inode */
	uint8_t pad[24];
};
_Static_assert(sizeof(struct disk_inode) == 128, "inode size");

#define DISK_GENERATION_LIVE  1u /* numbers are never used again */
#define DISK_GENERATION_FREED 2u /* an orphan that was freed in part: it must not be opened */

#define DISK_INODE_HAS_XATTR       (1u << 0) /* may have xattr items */
#define DISK_INODE_HAS_ACL         (1u << 1) /* has system.posix_acl_access */
#define DISK_INODE_HAS_DEFAULT_ACL (1u << 2) /* has system.posix_acl_default */
#define DISK_INODE_HAS_CAPS        (1u << 3) /* has security.capability */
#define DISK_INODE_HAS_INTENT      (1u << 4) /* has an intent: DISK_ITEM_INTENT */
/* Set by users (chattr(1)). */
#define DISK_INODE_IMMUTABLE   (1u << 8)
#define DISK_INODE_APPEND_ONLY (1u << 9)
#define DISK_INODE_NODUMP      (1u << 10) /* kept for backup programs */
#define DISK_INODE_NOATIME     (1u << 11)
#define DISK_INODE_BY_USERS                                                              \
	(DISK_INODE_IMMUTABLE | DISK_INODE_APPEND_ONLY | DISK_INODE_NODUMP |             \
		DISK_INODE_NOATIME)
/* Of these, a new inode takes the following from its directory. */
#define DISK_INODE_INHERITED (DISK_INODE_NODUMP | DISK_INODE_NOATIME)

/*
 * An entry item's value: entries one behind the other, unpadded. The discriminator is the name's
 * hash with bit 63 and the low 4 bits cleared, at least 16. A readdir cookie is discriminator +
 * index in the item (0..15).
 */
struct disk_entry {
	uint64_t ino;
	uint8_t type; /* DT_* of dirent.h */
	uint8_t name_bytes;
	char name[]; /* no NUL */
} __attribute__((packed));

/* Steps through an item's value of `len` bytes: *at starts at 0. Returns false at the end, with
 * *error 0, or -EUCLEAN for a value that is no list of entries. */
bool disk_entry_step(const void *value, size_t len, size_t *at,
	const struct disk_entry **out, int *error);

struct disk_extent {
	uint64_t pid;    /* first */
	uint32_t length; /* pages; 1 .. DISK_EXTENT_MAX */
	uint32_t flags;  /* DISK_EXTENT_* */
	uint64_t incarnation;
};
_Static_assert(sizeof(struct disk_extent) == 24, "extent size");
#define DISK_EXTENT_UNWRITTEN (1u << 0) /* reads as zeros; space is held (fallocate) */
#define DISK_EXTENT_MAX       DISK_GROUP_PAGES

/* name_bytes of name follow; then, inline, value_bytes of value; or, when
 * run_count > 0, run_count disk_extent whose pages hold the value. */
struct disk_xattr {
	uint32_t value_bytes;
	uint8_t name_bytes; /* full name, with its prefix ("user.") */
	uint8_t run_count;
	uint16_t pad;
};
#define DISK_XATTR_INLINE_MAX 512u
#define DISK_XATTR_VALUE_MAX  65536u

enum disk_lock_kind { DISK_LOCK_POSIX = 1, DISK_LOCK_FLOCK = 2 };
enum disk_lock_type { DISK_LOCK_SHARED = 1, DISK_LOCK_EXCLUSIVE = 2 };
#define DISK_LOCK_WAITS 128u /* in `type`: it is waited for, not held */

struct disk_lock {
	uint64_t incarnation; /* of the node; void once it has a higher one */
	uint64_t owner;       /* as the node's kernel calls it */
	uint64_t first, last; /* bytes; last: at most INT64_MAX */
	uint64_t ticket;      /* of a waiter: its number on its node; else 0 */
	uint64_t order;       /* of a waiter: lower ones come first; else 0 */
	uint32_t pid;
	uint16_t node;
	uint8_t kind; /* enum disk_lock_kind */
	uint8_t type; /* enum disk_lock_type, and DISK_LOCK_WAITS */
};
_Static_assert(sizeof(struct disk_lock) == 56, "lock size");
#define DISK_LOCKS_AN_ITEM 18u
#define DISK_LOCK_ITEMS    128u /* of a file, at most */

static inline bool disk_lock_valid(const struct disk_lock *l)
{
	unsigned type = l->type & ~DISK_LOCK_WAITS;

	return (l->kind == DISK_LOCK_POSIX || l->kind == DISK_LOCK_FLOCK) &&
	       (type == DISK_LOCK_SHARED || type == DISK_LOCK_EXCLUSIVE) &&
	       l->first <= l->last && l->last <= INT64_MAX && l->node <= DISK_NODE_MAX;
}

/* Which nodes may have files of a range of inode numbers open. */
struct disk_openers {
	uint64_t nodes; /* bits: their ids */
};

enum disk_intent_kind {
	DISK_INTENT_TRUNCATE = 1, /* free every extent at or past `from` */
	DISK_INTENT_RECLAIM = 2,  /* free everything of an unlinked inode, itself last */
};
struct disk_intent {
	uint32_t kind;
	uint32_t pad;
	uint64_t from; /* file block */
};

#endif
