/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Damage that has right checksums: what a fault of the software would leave. Made through
 * the engine's own transactions, below the operations that would refuse it.
 */
#include <dirent.h>

#include "engine/common/siphash.h"
#include "tests/images/image.h"

/* ---- words ----------------------------------------------------------------------- */

static void put(struct image *i, struct disk_key key, const void *value, size_t len)
{
	struct txn *x;

	MUST(txn_begin(i->v->tree, true, &x));
	MUST(txn_write(x, key, value, len));
	MUST(txn_commit(x, NULL));
	txn_end(x);
}

static void drop(struct image *i, struct disk_key key)
{
	struct txn *x;

	MUST(txn_begin(i->v->tree, true, &x));
	MUST(txn_delete(x, key));
	MUST(txn_commit(x, NULL));
	txn_end(x);
}

static struct disk_inode inode_of(struct image *i, uint64_t ino)
{
	struct disk_inode inode;

	MUST(tree_read(
		i->v->tree, disk_key(ino, DISK_ITEM_INODE, 0), &inode, sizeof(inode)));
	return inode;
}

static void inode_put(struct image *i, uint64_t ino, const struct disk_inode *inode)
{
	put(i, disk_key(ino, DISK_ITEM_INODE, 0), inode, sizeof(*inode));
}

static struct disk_key entry_key(
	struct image *i, uint64_t dir, const char *name, size_t len)
{
	uint64_t hash = siphash_2_4(i->v->catalog.hash_key, name, len) & NAME_HASH_MASK;

	return disk_key(
		dir, DISK_ITEM_ENTRY, hash < NAME_HASH_MIN ? NAME_HASH_MIN : hash);
}

/* An item of one entry; its length. */
static size_t entry_make(
	uint8_t *value, uint64_t ino, uint8_t type, const char *name, size_t len)
{
	struct disk_entry head = {.ino = ino, .type = type, .name_bytes = (uint8_t)len};

	memcpy(value, &head, sizeof(head));
	memcpy(value + sizeof(head), name, len);
	return sizeof(head) + len;
}

/* Adds an entry and the directory's counts of it. */
static void entry_add(struct image *i, uint64_t dir, struct disk_key key, uint64_t ino,
	uint8_t type, const char *name, size_t len)
{
	struct disk_inode inode = inode_of(i, dir);
	uint8_t value[DISK_VALUE_MAX];

	inode.size++;
	inode.nlink += type == DT_DIR;
	put(i, key, value, entry_make(value, ino, type, name, len));
	inode_put(i, dir, &inode);
}

static void entry_remove(struct image *i, uint64_t dir, const char *name, bool is_dir)
{
	struct disk_inode inode = inode_of(i, dir);

	inode.size--;
	inode.nlink -= is_dir;
	drop(i, entry_key(i, dir, name, strlen(name)));
	inode_put(i, dir, &inode);
}

/* The first extent of a file. */
static struct disk_extent extent_of(struct image *i, uint64_t ino, struct disk_key *key)
{
	struct disk_extent e;

	MUST(tree_next(i->v->tree, disk_key(ino, DISK_ITEM_EXTENT, 0),
		disk_key(ino, DISK_ITEM_EXTENT + 1, 0), key, &e, sizeof(e)));
	return e;
}

/* Changes bytes of a page as one record. */
static void page_change(
	struct image *i, page_id pid, unsigned offset, const void *src, unsigned len)
{
	struct page_ref ref = {.pid = pid};
	struct mtr_page *p = NULL;
	struct mtr *m = rt_alloc(sizeof(*m));
	int rc;

	while (!p) {
		MUST(cache_fetch(i->v->cache, &ref, 1));
		MUST(mtr_begin(m, i->v->cache, 1));
		p = mtr_latch(m, pid, 0, &rc);
		if (!p)
			mtr_abort(m);
	}
	mtr_write(p, offset, src, len);
	mtr_commit(m);
	rt_free(m);
}

static void page_get(struct image *i, page_id pid, void *image)
{
	struct guard g;

	MUST(guard_shared(i->v->cache, pid, 0, &g));
	memcpy(image, g.image, PAGE_SIZE);
	guard_release(i->v->cache, &g);
}

/* The page of a level that covers the key. */
static page_id page_over(
	struct image *i, struct disk_key key, unsigned level, struct disk_inner *n)
{
	page_id pid = i->v->catalog.root_pid;

	for (;;) {
		unsigned at = 0;

		page_get(i, pid, n);
		if (n->node.level <= level)
			return pid;
		while (at + 1u < n->node.count &&
			disk_key_compare(n->key[at + 1], key) <= 0)
			at++;
		pid = n->child[at];
	}
}

static page_id middle_leaf(struct image *i, struct disk_leaf *leaf)
{
	return page_over(i, disk_key(i->c.many + 1500, DISK_ITEM_INODE, 0), 0,
		(struct disk_inner *)leaf);
}

/* ---- the tree -------------------------------------------------------------------- */

static void leaf_order(struct image *i)
{
	struct disk_leaf leaf;
	page_id pid = middle_leaf(i, &leaf);
	struct disk_leaf_slot two[2] = {leaf.slot[4], leaf.slot[3]};

	page_change(
		i, pid, (unsigned)offsetof(struct disk_leaf, slot[3]), two, sizeof(two));
}

static void leaf_fence(struct image *i)
{
	struct disk_leaf leaf;
	page_id pid = middle_leaf(i, &leaf);
	struct disk_key low = leaf.node.low_fence;

	low.high--;
	page_change(i, pid, (unsigned)offsetof(struct disk_node, low_fence), &low,
		sizeof(low));
}

static void inner_children(struct image *i)
{
	struct disk_inner n;
	page_id pid = page_over(i, disk_key(i->c.many + 1500, DISK_ITEM_INODE, 0), 2, &n);
	uint64_t two[2] = {n.child[6], n.child[5]};

	page_change(i, pid, (unsigned)offsetof(struct disk_inner, child[5]), two,
		sizeof(two));
}

static void inner_outside(struct image *i)
{
	struct disk_inner n;
	page_id pid = page_over(i, disk_key(i->c.many + 1500, DISK_ITEM_INODE, 0), 2, &n);
	uint64_t nowhere = 1ull << 40;

	page_change(i, pid, (unsigned)offsetof(struct disk_inner, child[5]), &nowhere, 8);
}

/* ---- catalog and groups ---------------------------------------------------------- */

static void catalog_numbers(struct image *i)
{
	uint64_t zero = 0;

	page_change(i, DISK_CATALOG_SLOT, offsetof(struct disk_catalog, next_inode_range),
		&zero, 8);
}

static void group_count(struct image *i)
{
	uint32_t wrong = 17;

	page_change(i, disk_group_slot(0), offsetof(struct disk_group, free_pages),
		&wrong, 4);
}

static void group_incarnation(struct image *i)
{
	uint64_t wrong = 2;

	page_change(i, disk_group_slot(0), offsetof(struct disk_group, next_incarnation),
		&wrong, 8);
}

/* Sets or clears the bits of eight pages and counts them. */
static void group_owner(struct image *i)
{
	uint16_t owner = DISK_NODE_MAX + 1;

	page_change(i, disk_group_slot(0), offsetof(struct disk_group, owner), &owner,
		sizeof(owner));
}

static void group_bits(struct image *i, uint64_t index, uint8_t bits)
{
	struct disk_group g;

	page_get(i, disk_group_slot(0), &g);
	g.free_pages += (uint32_t)__builtin_popcount(g.bitmap[index / 8]);
	g.free_pages -= (uint32_t)__builtin_popcount(bits);
	page_change(i, disk_group_slot(0),
		(unsigned)(offsetof(struct disk_group, bitmap) + index / 8), &bits, 1);
	page_change(i, disk_group_slot(0), offsetof(struct disk_group, free_pages),
		&g.free_pages, 4);
}

static void pages_leaked(struct image *i)
{
	group_bits(i, 12000, 0xff);
}

static void pages_freed(struct image *i)
{
	struct disk_key key;
	struct disk_extent e = extent_of(i, i->c.file, &key);

	group_bits(i, pid_slot(e.pid) - 2 + 8, 0);
}

static void pages_shared(struct image *i)
{
	struct disk_key key, other_key;
	struct disk_extent e = extent_of(i, i->c.file, &key);
	struct disk_extent other = extent_of(i, i->c.other, &other_key);

	other.pid = e.pid;
	put(i, other_key, &other, sizeof(other));
}

static void tree_page_shared(struct image *i)
{
	struct disk_leaf leaf;
	struct disk_key key;
	struct disk_extent e = extent_of(i, i->c.linked, &key);

	e.pid = middle_leaf(i, &leaf);
	put(i, key, &e, sizeof(e));
}

/* ---- inodes ---------------------------------------------------------------------- */

static void entry_without_inode(struct image *i)
{
	drop(i, disk_key(i->c.many + 7, DISK_ITEM_INODE, 0));
}

static void file_without_entry(struct image *i)
{
	entry_remove(i, i->c.dir_a, "file", false);
}

static void directory_without_entry(struct image *i)
{
	entry_remove(i, i->c.dir_a, "b", true);
}

static void inode_lost(struct image *i)
{
	drop(i, disk_key(i->c.file, DISK_ITEM_INODE, 0));
	drop(i, disk_key(i->c.dir_b, DISK_ITEM_INODE, 0));
}

static void link_count(struct image *i)
{
	struct disk_inode inode = inode_of(i, i->c.linked);

	inode.nlink = 7;
	inode_put(i, i->c.linked, &inode);
}

static void directory_counts(struct image *i)
{
	struct disk_inode inode = inode_of(i, i->c.dir_a);

	inode.nlink = 9;
	inode.size = 1000;
	inode_put(i, i->c.dir_a, &inode);
}

static void blocks_count(struct image *i)
{
	struct disk_inode inode = inode_of(i, i->c.file);

	inode.blocks = 3;
	inode_put(i, i->c.file, &inode);
}

static void inode_type(struct image *i)
{
	struct disk_inode inode = inode_of(i, i->c.file);

	inode.mode = 0170644;
	inode_put(i, i->c.file, &inode);
}

static void inode_size(struct image *i)
{
	struct disk_inode inode = inode_of(i, i->c.file);

	inode.size = 1ull << 63;
	inode_put(i, i->c.file, &inode);
}

static void inode_length(struct image *i)
{
	put(i, disk_key(i->c.file, DISK_ITEM_INODE, 0), "short", 5);
}

static void root_lost(struct image *i)
{
	drop(i, disk_key(DISK_INO_ROOT, DISK_ITEM_INODE, 0));
}

static void not_an_orphan(struct image *i)
{
	struct disk_inode inode = inode_of(i, i->c.many + 9);

	entry_remove(i, i->c.many, "file-number-8", false);
	inode.nlink = 0;
	inode_put(i, i->c.many + 9, &inode);
}

static void orphan_stale(struct image *i)
{
	put(i, disk_key(DISK_INO_SYSTEM, DISK_ITEM_ORPHAN, i->c.file), "", 0);
	put(i, disk_key(DISK_INO_SYSTEM, DISK_ITEM_ORPHAN, 999999), "", 0);
}

static void intent_malformed(struct image *i)
{
	put(i, disk_key(DISK_INO_SYSTEM, DISK_ITEM_INTENT, i->c.file), "what", 4);
}

static struct disk_lock lock_of(unsigned node, uint64_t first)
{
	return (struct disk_lock){.incarnation = 9,
		.owner = 1,
		.first = first,
		.last = first + 5,
		.node = (uint16_t)node,
		.kind = DISK_LOCK_POSIX,
		.type = DISK_LOCK_EXCLUSIVE};
}

/* Of a node that has gone: nobody's, and nothing wrong. */
static void locks_left(struct image *i)
{
	struct disk_lock locks[2] = {lock_of(1, 0), lock_of(2, 10)};

	locks[1].type |= DISK_LOCK_WAITS;
	locks[1].last = INT64_MAX;
	put(i, disk_key(i->c.file, DISK_ITEM_LOCK, 0), locks, sizeof(locks));
}

/* In bytes, in fields, behind a list's end, of no inode. */
static void locks_malformed(struct image *i)
{
	struct disk_lock good = lock_of(1, 0), bad = good;

	bad.first = bad.last + 1;
	put(i, disk_key(i->c.dir_c, DISK_ITEM_LOCK, 0), &good, sizeof(good) - 1);
	put(i, disk_key(i->c.file, DISK_ITEM_LOCK, 0), &good, sizeof(good));
	put(i, disk_key(i->c.file, DISK_ITEM_LOCK, 1), &good, sizeof(good));
	put(i, disk_key(i->c.target, DISK_ITEM_LOCK, 0), &bad, sizeof(bad));
	put(i, disk_key(i->c.file + 5000, DISK_ITEM_LOCK, 0), &good, sizeof(good));
}

static void item_unknown(struct image *i)
{
	put(i, disk_key(i->c.file, 99, 5), "what", 4);
}

static void items_strange(struct image *i)
{
	struct disk_extent e = {.pid = 2, .length = 1, .incarnation = 1};

	put(i, disk_key(i->c.dir_c, DISK_ITEM_EXTENT, 0), &e, sizeof(e));
	put(i, disk_key(i->c.file, DISK_ITEM_LINK, 0), "target", 6);
}

static void link_target(struct image *i)
{
	put(i, disk_key(i->c.target, DISK_ITEM_LINK, 0), "b", 1);
}

/* ---- extents --------------------------------------------------------------------- */

static void extent_outside(struct image *i)
{
	struct disk_key key;
	struct disk_extent e = extent_of(i, i->c.file, &key);

	e.pid = pid_make(0, 1ull << 40);
	put(i, key, &e, sizeof(e));
}

static void extent_overlaps(struct image *i)
{
	struct disk_key key;
	struct disk_extent e = extent_of(i, i->c.file, &key);

	e.pid += 5;
	e.length = 2;
	key.low += 3;
	put(i, key, &e, sizeof(e));
}

static void extent_behind_end(struct image *i)
{
	struct disk_inode inode = inode_of(i, i->c.file);

	inode.size = 5000;
	inode_put(i, i->c.file, &inode);
}

/* The end lies within the extent's first page: split it so that a whole extent is behind.
 */
static void extents_behind_end(struct image *i)
{
	struct disk_key key;
	struct disk_extent e = extent_of(i, i->c.file, &key), right = e;

	e.length = 4;
	right.pid += 4;
	right.length -= 4;
	put(i, key, &e, sizeof(e));
	key.low += 4;
	put(i, key, &right, sizeof(right));
	extent_behind_end(i);
}

/* ---- names ----------------------------------------------------------------------- */

static void directory_loop(struct image *i)
{
	struct disk_inode b = inode_of(i, i->c.dir_b);

	entry_remove(i, i->c.dir_a, "b", true);
	b.parent = i->c.dir_c;
	inode_put(i, i->c.dir_b, &b);
	entry_add(i, i->c.dir_c, entry_key(i, i->c.dir_c, "b", 1), i->c.dir_b, DT_DIR,
		"b", 1);
}

static void directory_named_twice(struct image *i)
{
	entry_add(i, DISK_INO_ROOT, entry_key(i, DISK_INO_ROOT, "again", 5), i->c.dir_c,
		DT_DIR, "again", 5);
}

static void directory_parent(struct image *i)
{
	struct disk_inode c = inode_of(i, i->c.dir_c);

	c.parent = i->c.dir_a;
	inode_put(i, i->c.dir_c, &c);
}

static void name_slash(struct image *i)
{
	entry_remove(i, i->c.dir_a, "other", false);
	entry_add(i, i->c.dir_a, entry_key(i, i->c.dir_a, "o/er", 4), i->c.other, DT_REG,
		"o/er", 4);
}

static void name_hash_wrong(struct image *i)
{
	struct disk_key key = entry_key(i, i->c.dir_a, "other", 5);

	entry_remove(i, i->c.dir_a, "other", false);
	key.low ^= 0x1000;
	entry_add(i, i->c.dir_a, key, i->c.other, DT_REG, "other", 5);
}

static void name_twice(struct image *i)
{
	struct disk_key key = entry_key(i, i->c.dir_a, "other", 5);
	uint8_t value[DISK_VALUE_MAX];
	size_t len = entry_make(value, i->c.other, DT_REG, "other", 5);

	len += entry_make(value + len, i->c.linked, DT_REG, "other", 5);
	put(i, key, value, len);
}

static void entries_malformed(struct image *i)
{
	struct disk_key key = entry_key(i, i->c.dir_a, "other", 5);
	uint8_t value[DISK_VALUE_MAX];
	size_t len = entry_make(value, i->c.other, DT_REG, "other", 5);

	len += entry_make(value + len, i->c.file, DT_REG, "cut", 3);
	put(i, key, value, len - 2);
}

static void entry_type(struct image *i)
{
	uint8_t value[DISK_VALUE_MAX];

	put(i, entry_key(i, i->c.dir_a, "other", 5), value,
		entry_make(value, i->c.other, DT_FIFO, "other", 5));
}

/* ---- extended attributes --------------------------------------------------------- */

static void xattr_malformed(struct image *i)
{
	struct disk_key key = disk_key(i->c.attributes, DISK_ITEM_XATTR, 0);
	struct disk_xattr head = {.run_count = 1};
	uint8_t value[DISK_VALUE_MAX];
	int len = 0;

	while (head.run_count) { /* the small one */
		key.low++;
		len = tree_next(i->v->tree, key,
			disk_key(i->c.attributes, DISK_ITEM_XATTR + 1, 0), &key, value,
			sizeof(value));
		MUST(len);
		memcpy(&head, value, sizeof(head));
	}
	value[offsetof(struct disk_xattr, name_bytes)] = 250;
	put(i, key, value, (size_t)len);
}

static void xattr_flag(struct image *i)
{
	struct disk_inode inode = inode_of(i, i->c.attributes);

	inode.flags = DISK_INODE_HAS_ACL;
	inode_put(i, i->c.attributes, &inode);
}

/* ---- all of them ----------------------------------------------------------------- */

const struct damage_case damage_cases[] = {
	{"none", false, NULL, NULL},
	{"none-crashed", true, NULL, NULL},
	{"super-first", false, NULL, super_first},
	{"super-second", false, NULL, super_second},
	{"super-first-crashed", true, NULL, super_first},
	{"super-second-crashed", true, NULL, super_second},
	{"super-half-written", false, NULL, super_half_written},
	{"super-both", false, NULL, super_both},
	{"super-contradiction", false, NULL, super_contradiction},
	{"super-stranger", false, NULL, super_stranger},
	{"store-cut", false, NULL, store_cut},
	{"store-zeroed", false, NULL, everything_zeroed},
	{"log-head-older", false, NULL, log_head_older},
	{"log-head-newer", false, NULL, log_head_newer},
	{"log-head-older-crashed", true, NULL, log_head_older},
	{"log-head-half-written", false, NULL, log_head_half_written},
	{"log-heads", false, NULL, log_heads},
	{"log-heads-crashed", true, NULL, log_heads},
	{"log-first-chunk", true, NULL, log_first_chunk},
	{"log-middle", true, NULL, log_middle},
	{"log-last-chunk", true, NULL, log_last_chunk},
	{"log-record", true, NULL, log_record},
	{"table-copy", false, NULL, table_copy},
	{"table-block", false, NULL, table_block},
	{"catalog-flipped", false, NULL, catalog_flipped},
	{"catalog-zeroed", false, NULL, catalog_zeroed},
	{"catalog-numbers", false, catalog_numbers, NULL},
	{"group-zeroed", false, NULL, group_zeroed},
	{"group-count", false, group_count, NULL},
	{"group-incarnation", false, group_incarnation, NULL},
	{"group-owner", false, group_owner, NULL},
	{"pages-leaked", false, pages_leaked, NULL},
	{"pages-freed", false, pages_freed, NULL},
	{"pages-shared", false, pages_shared, NULL},
	{"tree-page-shared", false, tree_page_shared, NULL},
	{"leaf-flipped", false, NULL, leaf_flipped},
	{"leaf-zeroed", false, NULL, leaf_zeroed},
	{"leaf-order", false, leaf_order, NULL},
	{"leaf-fence", false, leaf_fence, NULL},
	{"inner-zeroed", false, NULL, inner_zeroed},
	{"inner-children", false, inner_children, NULL},
	{"inner-outside", false, inner_outside, NULL},
	{"root-flipped", false, NULL, root_flipped},
	{"root-zeroed", false, NULL, root_zeroed},
	{"entry-without-inode", false, entry_without_inode, NULL},
	{"file-without-entry", false, file_without_entry, NULL},
	{"directory-without-entry", false, directory_without_entry, NULL},
	{"inode-lost", false, inode_lost, NULL},
	{"link-count", false, link_count, NULL},
	{"directory-counts", false, directory_counts, NULL},
	{"blocks-count", false, blocks_count, NULL},
	{"inode-type", false, inode_type, NULL},
	{"inode-size", false, inode_size, NULL},
	{"inode-length", false, inode_length, NULL},
	{"root-lost", false, root_lost, NULL},
	{"orphan-unlisted", false, not_an_orphan, NULL},
	{"orphan-stale", false, orphan_stale, NULL},
	{"intent-malformed", false, intent_malformed, NULL},
	{"locks-left", false, locks_left, NULL},
	{"locks-malformed", false, locks_malformed, NULL},
	{"item-unknown", false, item_unknown, NULL},
	{"items-strange", false, items_strange, NULL},
	{"link-target", false, link_target, NULL},
	{"extent-outside", false, extent_outside, NULL},
	{"extent-overlaps", false, extent_overlaps, NULL},
	{"extent-behind-end", false, extents_behind_end, NULL},
	{"directory-loop", false, directory_loop, NULL},
	{"directory-named-twice", false, directory_named_twice, NULL},
	{"directory-parent", false, directory_parent, NULL},
	{"name-slash", false, name_slash, NULL},
	{"name-hash", false, name_hash_wrong, NULL},
	{"name-twice", false, name_twice, NULL},
	{"entries-malformed", false, entries_malformed, NULL},
	{"entry-type", false, entry_type, NULL},
	{"xattr-malformed", false, xattr_malformed, NULL},
	{"xattr-flag", false, xattr_flag, NULL},
	{"data-flipped", false, NULL, data_flipped},
};
const unsigned damage_case_count = ARRAY_SIZE(damage_cases);
