/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Unlinked inodes that other nodes have open (docs/nodes/semantics.md, "Unlinked and open").
 *
 * A node that opens a file is one of the *openers* of the file's range of inode numbers. It notes
 * that in the tree, once for each range. So does a node that unlinks a file to which its caller
 * refers. The note stands before the node reads the inode's link count, or comes with the
 * transaction that removes the last name. A node that wants to free an inode without links reads
 * the openers after the count has become 0. So either it finds the other node among them and asks
 * it, or the other node finds no links and opens nothing. If only one node opens files of the
 * range, no message is sent.
 *
 * A node that is asked answers whether it has the inode open, or still waits for its caller's
 * forget. If so, that node must free the inode, or ask again, with its last close. A node that is
 * away may have it open.
 */
#include "fs/ops/data_internal.h"

#define NOTED_RANGES 256u /* number of ranges remembered as noted; others are looked up */
#define MAP_WORDS    (NET_CALL_WORDS - 1)
#define MAP_BITS     (MAP_WORDS * 64u) /* number of inodes in one call */
#define ASK_LISTED   (1ull << 63)      /* the asking node has them from the list of orphans */

struct elsewhere {
	_Atomic uint64_t noted[NOTED_RANGES]; /* 1 + range */
	/* Number of calls that remove a last name, or have done so and have further steps to do. */
	_Atomic uint32_t unlinking;
};

static uint64_t range_of(uint64_t ino)
{
	return ino >> DISK_INODE_RANGE_BITS;
}

static struct disk_key openers_key(uint64_t range)
{
	return disk_key(
		DISK_INO_SYSTEM, DISK_ITEM_OPENERS, range << DISK_INODE_RANGE_BITS);
}

static uint64_t node_bit(const struct fs *fs)
{
	return 1ull << volume_node(fs->volume);
}

/* Returns the nodes that the item names. */
static int openers_value(int len, const struct disk_openers *value, uint64_t *nodes)
{
	*nodes = 0;
	if (len == -ENOENT)
		return 0;
	if (len < 0)
		return len == -ERANGE ? -EUCLEAN : len;
	if (len != sizeof(*value))
		return -EUCLEAN;
	*nodes = value->nodes;
	return 0;
}

/* ---- noting that files are opened here ------------------------------------------------ */

struct note {
	struct disk_key key;
	uint64_t set, clear;
};

static int note_body(struct txn *x, void *arg)
{
	const struct note *n = arg;
	struct disk_openers value;
	uint64_t nodes, want;
	int rc =
		openers_value(txn_read(x, n->key, &value, sizeof(value)), &value, &nodes);

	want = (nodes | n->set) & ~n->clear;
	if (rc < 0 || want == nodes)
		return rc;
	value.nodes = want;
	return want ? txn_write(x, n->key, &value, sizeof(value)) : txn_delete(x, n->key);
}

static bool is_noted(struct fs *fs, uint64_t range)
{
	return atomic_load_explicit(&fs->elsewhere->noted[range % NOTED_RANGES],
		       memory_order_acquire) == range + 1;
}

int elsewhere_note_txn(struct fs *fs, struct txn *x, uint64_t ino)
{
	struct note n = {.key = openers_key(range_of(ino)), .set = node_bit(fs)};

	return fs->elsewhere && !is_noted(fs, range_of(ino)) ? note_body(x, &n) : 0;
}

int elsewhere_note(struct fs *fs, uint64_t ino)
{
	struct note n = {.key = openers_key(range_of(ino)), .set = node_bit(fs)};
	int rc;

	if (!fs->elsewhere || is_noted(fs, range_of(ino)))
		return 0;
	rc = ops_run(fs, OPS_RUN_PRIVILEGED, note_body, &n, NULL);
	if (rc == -EROFS)
		return 0; /* this node writes no more; a read may return ENOENT */
	tree_downgrade_soon(fs->tree,
		n.key); /* other openers of the range note it there, too */
	if (rc == 0)
		atomic_store_explicit(&fs->elsewhere->noted[range_of(ino) % NOTED_RANGES],
			range_of(ino) + 1, memory_order_release);
	return rc;
}

/* Removes this node from the openers: no file is open here any more. After an error other nodes ask
 * in vain. */
static void openers_clear(struct fs *fs)
{
	struct disk_key at = openers_key(0), end = openers_key(0), found;
	struct disk_openers value;
	uint64_t nodes;

	end.high++;
	for (;;) {
		int len = tree_next(fs->tree, at, end, &found, &value, sizeof(value));
		struct note n = {.key = found, .clear = node_bit(fs)};

		if (openers_value(len, &value, &nodes) || len < 0)
			return;
		if ((nodes & n.clear) &&
			ops_run(fs, OPS_RUN_PRIVILEGED, note_body, &n, NULL) < 0)
			return;
		at = found;
		at.low++;
	}
}

/* ---- answering other nodes ------------------------------------------------------------ */

void elsewhere_unlinking(struct fs *fs, bool begins)
{
	if (!fs->elsewhere)
		return;
	if (begins)
		atomic_fetch_add_explicit(
			&fs->elsewhere->unlinking, 1, memory_order_seq_cst);
	else
		atomic_fetch_sub_explicit(
			&fs->elsewhere->unlinking, 1, memory_order_seq_cst);
}

bool elsewhere_busy(struct fs *fs)
{
	return fs->elsewhere &&
	       atomic_load_explicit(&fs->elsewhere->unlinking, memory_order_seq_cst) > 0;
}

/* ask: the first number, and a map of the inodes from it on. answer: the map of those in use. */
static int serve_open(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	struct fs *fs = owner;
	uint64_t first = ask[0] & ~ASK_LISTED;

	if (first > DISK_INO_MAX - MAP_BITS)
		return -EINVAL;
	if ((ask[0] & ASK_LISTED) && elsewhere_busy(fs))
		return -EBUSY;
	for (unsigned i = 0; i < MAP_BITS; i++) {
		uint64_t bit = 1ull << i % 64;

		if ((ask[1 + i / 64] & bit) && orphan_is_used(fs, first + i))
			answer[1 + i / 64] |= bit;
	}
	return 0;
}

bool elsewhere_near(struct fs *fs, uint64_t ino)
{
	return !fs->elsewhere ||
	       (tree_is_near(fs->tree, openers_key(range_of(ino))) &&
		       tree_is_near(fs->tree, disk_key(ino, DISK_ITEM_INODE, 0)));
}

/* ---- asking other nodes --------------------------------------------------------------- */

/* Inodes by number, and sets of them: a bit for each. */
struct asking {
	struct fs *fs;
	const uint64_t *ino;
	unsigned count;
	bool listed;
	uint64_t nodes[32]; /* to ask about each inode */
	uint32_t used, unknown;
};

/* Returns true on a client. A node that returns does not wait for clients: a client may be the last
 * to learn of it. */
static bool is_client(const struct fs *fs)
{
	return disk_shard_client(store_superblock(fs->volume->store)->shard);
}

/* Asks a node about inodes of `left` near the lowest one, and removes them from `left`. */
static void ask_some(struct asking *a, unsigned node, uint32_t *left)
{
	uint64_t ask[NET_CALL_WORDS] = {0}, answer[NET_CALL_WORDS] = {0};
	uint64_t first = UINT64_MAX;
	uint32_t asked = 0;
	int rc;

	for (unsigned i = 0; i < a->count; i++)
		if (*left & 1u << i)
			first = MIN(first, a->ino[i]);
	first = MIN(first, DISK_INO_MAX - MAP_BITS);
	ask[0] = first | (a->listed ? ASK_LISTED : 0);
	for (unsigned i = 0; i < a->count; i++) {
		uint64_t at = a->ino[i] - first;

		if (!(*left & 1u << i) || at >= MAP_BITS)
			continue;
		ask[1 + at / 64] |= 1ull << at % 64;
		asked |= 1u << i;
	}
	rc = net_call(a->fs->volume->calls, node, NET_CALL_OPEN, ask, answer);
	if (rc && (volume_left(a->fs->volume, node) ||
			  (volume_dead(a->fs->volume, node) && !is_client(a->fs))))
		rc = 0; /* no file is open there */
	for (unsigned i = 0; i < a->count; i++) {
		uint64_t at = a->ino[i] - first;

		if (!(asked & 1u << i))
			continue;
		if (rc)
			a->unknown |= 1u << i;
		else if (answer[1 + at / 64] & 1ull << at % 64)
			a->used |= 1u << i;
	}
	*left = asked ? *left & ~asked : 0;
}

/* Finds the nodes to ask about each inode. */
static void find_nodes(struct asking *a)
{
	uint64_t others = volume_others(a->fs->volume);

	for (unsigned i = 0; i < a->count; i++) {
		struct disk_openers value;
		int rc;

		if (i > 0 && range_of(a->ino[i]) == range_of(a->ino[i - 1])) {
			a->nodes[i] = a->nodes[i - 1];
			a->unknown |= (a->unknown & 1u << (i - 1)) << 1;
			continue;
		}
		rc = tree_read(a->fs->tree, openers_key(range_of(a->ino[i])), &value,
			sizeof(value));
		if (openers_value(rc, &value, &a->nodes[i]) < 0)
			a->unknown |= 1u << i;
		a->nodes[i] &= others;
	}
}

uint32_t elsewhere_used(struct fs *fs, const uint64_t *ino, unsigned count, bool listed,
	uint32_t *unknown)
{
	struct asking a = {.fs = fs, .ino = ino, .count = count, .listed = listed};
	uint64_t nodes = 0;

	*unknown = 0;
	if (!fs->elsewhere)
		return 0;
	WEFT_ASSERT(count <= ARRAY_SIZE(a.nodes));
	find_nodes(&a);
	for (unsigned i = 0; i < count; i++)
		nodes |= a.nodes[i];
	for (unsigned node = 0; nodes >> node; node++) {
		uint32_t left = 0;

		for (unsigned i = 0; i < count; i++)
			if (a.nodes[i] >> node & 1)
				left |= 1u << i;
		left &= ~(a.used | a.unknown);
		while (left)
			ask_some(&a, node, &left);
		if (node == 63)
			break;
	}
	*unknown = a.unknown & ~a.used;
	return a.used;
}

/* ---- opening and closing -------------------------------------------------------------- */

int elsewhere_open(struct fs *fs)
{
	if (!fs_has_peers(fs) || fs->volume->read_only || !fs->volume->calls)
		return 0;
	fs->elsewhere = rt_alloc(sizeof(*fs->elsewhere));
	if (!fs->elsewhere)
		return -ENOMEM;
	elsewhere_serve(fs, true);
	return 0;
}

void elsewhere_serve(struct fs *fs, bool serve)
{
	if (fs->elsewhere)
		net_calls_serve(
			fs->volume->calls, NET_CALL_OPEN, serve ? serve_open : NULL, fs);
}

void elsewhere_close(struct fs *fs)
{
	if (!fs->elsewhere)
		return;
	openers_clear(fs);
	rt_free(fs->elsewhere);
	fs->elsewhere = NULL;
}
