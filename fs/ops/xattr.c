/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Extended attributes. Small values are kept in the item. Larger ones have pages of their own,
 * which are filled, allocated and named in one transaction.
 *
 * An item's discriminator is the hash of the full name, or one of the next few if names collide.
 * Flags of the inode tell that certain attributes are absent, so a request for an absent ACL or
 * capability reads the inode only. A large value is read without a transaction. After its pages,
 * the item is read again. A run's (pid, incarnation) never names two contents.
 *
 * Keeps: a value is read whole or not at all. Pages are freed in the same record that no longer
 * names them.
 */
#include <errno.h>
#include <limits.h>
#include <sys/xattr.h>

#include "fs/ops/ops_internal.h"

#define XATTR_PROBES     8u
#define XATTR_PAGES_MAX  (DISK_XATTR_VALUE_MAX / PAGE_SIZE)
#define XATTR_READ_TRIES 1000u
#define CAPS_NAME        "security.capability"

_Static_assert(sizeof(struct disk_xattr) + DISK_NAME_MAX + DISK_XATTR_INLINE_MAX <=
		       DISK_VALUE_MAX,
	"an inline value fits an item");
_Static_assert(sizeof(struct disk_xattr) + DISK_NAME_MAX +
			       XATTR_PAGES_MAX * sizeof(struct disk_extent) <=
		       DISK_VALUE_MAX,
	"the runs of the longest value fit an item");

/* ---- names ------------------------------------------------------------------------ */

enum xattr_space {
	XATTR_SPACE_USER,
	XATTR_SPACE_TRUSTED,
	XATTR_SPACE_SECURITY,
	XATTR_SPACE_ACL_ACCESS,
	XATTR_SPACE_ACL_DEFAULT,
};

static bool name_is_acl(enum xattr_space space)
{
	return space == XATTR_SPACE_ACL_ACCESS || space == XATTR_SPACE_ACL_DEFAULT;
}

/* Returns 0; -ERANGE, -EOPNOTSUPP or -EINVAL as setxattr(2). */
static int name_space(const char *name, enum xattr_space *out)
{
	static const struct {
		const char *prefix;
		enum xattr_space space;
	} spaces[] = {
		{"user.", XATTR_SPACE_USER},
		{"trusted.", XATTR_SPACE_TRUSTED},
		{"security.", XATTR_SPACE_SECURITY},
	};
	size_t len = strnlen(name, DISK_NAME_MAX + 1);

	if (len == 0 || len > DISK_NAME_MAX)
		return -ERANGE;
	if (strcmp(name, ACL_ACCESS_NAME) == 0) {
		*out = XATTR_SPACE_ACL_ACCESS;
		return 0;
	}
	if (strcmp(name, ACL_DEFAULT_NAME) == 0) {
		*out = XATTR_SPACE_ACL_DEFAULT;
		return 0;
	}
	for (size_t i = 0; i < ARRAY_SIZE(spaces); i++) {
		size_t prefix = strlen(spaces[i].prefix);

		if (strncmp(name, spaces[i].prefix, prefix) != 0)
			continue;
		*out = spaces[i].space;
		return len > prefix ? 0 : -EINVAL;
	}
	return -EOPNOTSUPP;
}

/* Returns the flags of an inode that has this name. */
static uint32_t name_flags(const char *name)
{
	if (strcmp(name, ACL_ACCESS_NAME) == 0)
		return DISK_INODE_HAS_XATTR | DISK_INODE_HAS_ACL;
	if (strcmp(name, ACL_DEFAULT_NAME) == 0)
		return DISK_INODE_HAS_XATTR | DISK_INODE_HAS_DEFAULT_ACL;
	if (strcmp(name, CAPS_NAME) == 0)
		return DISK_INODE_HAS_XATTR | DISK_INODE_HAS_CAPS;
	return DISK_INODE_HAS_XATTR;
}

static bool may_have(const struct disk_inode *inode, const char *name)
{
	uint32_t flags = name_flags(name);

	return (inode->flags & flags) == flags;
}

/* ---- items ------------------------------------------------------------------------ */

static struct disk_extent view_run(const struct xattr_view *v, unsigned i)
{
	struct disk_extent run;

	memcpy(&run, v->runs + i * sizeof(run), sizeof(run));
	return run;
}

static bool runs_valid(const struct xattr_view *v)
{
	uint64_t pages = 0;

	for (unsigned i = 0; i < v->head.run_count; i++) {
		struct disk_extent run = view_run(v, i);

		if (run.length == 0 || run.length > XATTR_PAGES_MAX ||
			run.incarnation == 0)
			return false;
		pages += run.length;
	}
	return pages == DIV_UP(v->head.value_bytes, PAGE_SIZE);
}

int xattr_parse(const void *value, size_t len, struct xattr_view *out)
{
	const uint8_t *bytes = value;
	size_t rest;

	if (len < sizeof(out->head))
		return -EUCLEAN;
	memcpy(&out->head, bytes, sizeof(out->head));
	rest = len - sizeof(out->head);
	if (out->head.name_bytes == 0 || out->head.name_bytes > rest)
		return -EUCLEAN;
	out->name = (const char *)bytes + sizeof(out->head);
	rest -= out->head.name_bytes;
	out->inline_value = NULL;
	out->runs = NULL;
	if (out->head.run_count == 0) {
		out->inline_value = (const uint8_t *)out->name + out->head.name_bytes;
		if (out->head.value_bytes != rest || rest > DISK_XATTR_INLINE_MAX)
			return -EUCLEAN;
		return 0;
	}
	out->runs = (const uint8_t *)out->name + out->head.name_bytes;
	if (out->head.run_count > XATTR_PAGES_MAX ||
		out->head.run_count * sizeof(struct disk_extent) != rest ||
		out->head.value_bytes > DISK_XATTR_VALUE_MAX || !runs_valid(out))
		return -EUCLEAN;
	return 0;
}

/* A name's item, or a free place for it. */
struct xattr_slot {
	struct disk_key key;
	bool found, full; /* full: not found, and no free place */
	unsigned len;
	struct xattr_view view; /* of value */
	uint8_t value[DISK_VALUE_MAX];
};

/* Finds a name. x NULL: without a transaction. Returns 0 also if there is no such item. */
static int slot_find(struct fs *fs, struct txn *x, uint64_t ino, const char *name,
	struct xattr_slot *slot)
{
	struct ops_name n = {name, strlen(name)};
	uint64_t hash = name_hash(fs, n);
	struct disk_key from = disk_key(ino, DISK_ITEM_XATTR, hash), at = from;
	struct disk_key to = disk_key(ino, DISK_ITEM_XATTR, hash + XATTR_PROBES), found;
	uint64_t place = hash; /* lowest unused discriminator */

	slot->found = slot->full = false;
	for (unsigned i = 0; i < XATTR_PROBES && at.low < to.low; i++) {
		int rc = x ? txn_next(x, at, to, &found, slot->value, sizeof(slot->value))
			   : tree_next(fs->tree, at, to, &found, slot->value,
				     sizeof(slot->value));

		if (rc == -ENOENT)
			break;
		if (rc < 0)
			return rc;
		slot->len = (unsigned)rc;
		rc = xattr_parse(slot->value, slot->len, &slot->view);
		if (rc)
			return rc;
		if (slot->view.head.name_bytes == n.len &&
			memcmp(slot->view.name, name, n.len) == 0) {
			slot->key = found;
			slot->found = true;
			return 0;
		}
		if (found.low == place)
			place++;
		at.low = found.low + 1;
	}
	slot->full = place == hash + XATTR_PROBES;
	slot->key = disk_key(ino, DISK_ITEM_XATTR, place);
	return 0;
}

/* Frees the pages of a found slot's value. */
static int slot_free_runs(
	struct txn *x, const struct xattr_slot *slot, struct disk_inode *inode)
{
	for (unsigned i = 0; i < slot->view.head.run_count; i++) {
		struct disk_extent run = view_run(&slot->view, i);
		int rc = txn_free(x, run.pid, run.length, run.incarnation);

		if (rc)
			return rc;
		inode->blocks -= MIN(inode->blocks, run.length);
	}
	return 0;
}

/* `tail`: the inline value, or the runs. */
static int slot_write(struct txn *x, const struct xattr_slot *slot,
	struct disk_inode *inode, const char *name, size_t value_bytes,
	unsigned run_count, const void *tail, size_t tail_bytes)
{
	uint8_t value[DISK_VALUE_MAX];
	struct disk_xattr head = {
		.value_bytes = (uint32_t)value_bytes,
		.name_bytes = (uint8_t)strlen(name),
		.run_count = (uint8_t)run_count,
	};
	size_t len = sizeof(head) + head.name_bytes;

	WEFT_ASSERT(len + tail_bytes <= sizeof(value));
	memcpy(value, &head, sizeof(head));
	memcpy(value + sizeof(head), name, head.name_bytes);
	if (tail_bytes > 0)
		memcpy(value + len, tail, tail_bytes);
	inode->flags |= name_flags(name);
	return txn_write(x, slot->key, value, len + tail_bytes);
}

static int slot_remove(struct txn *x, const struct xattr_slot *slot, uint64_t ino,
	struct disk_inode *inode, const char *name)
{
	struct disk_key found;
	uint8_t value[DISK_VALUE_MAX];
	int rc;

	rc = slot_free_runs(x, slot, inode);
	if (rc)
		return rc;
	rc = txn_delete(x, slot->key);
	if (rc)
		return rc;
	inode->flags &= ~(name_flags(name) & ~DISK_INODE_HAS_XATTR);
	rc = txn_next(x, disk_key(ino, DISK_ITEM_XATTR, 0),
		disk_key(ino, DISK_ITEM_ENTRY, 0), &found, value, sizeof(value));
	if (rc == -ENOENT)
		inode->flags &= ~DISK_INODE_HAS_XATTR;
	return rc == -ENOENT || rc >= 0 ? 0 : rc;
}

/* ---- for ACLs and capabilities, in others' transactions --------------------------- */

int xattr_read_txn(struct fs *fs, struct txn *x, uint64_t ino, const char *name,
	void *buf, size_t cap)
{
	struct xattr_slot slot;
	int rc;

	rc = slot_find(fs, x, ino, name, &slot);
	if (rc)
		return rc;
	if (!slot.found)
		return -ENODATA;
	if (!slot.view.inline_value || slot.view.head.value_bytes > cap)
		return -ERANGE;
	memcpy(buf, slot.view.inline_value, slot.view.head.value_bytes);
	return (int)slot.view.head.value_bytes;
}

int xattr_write_txn(struct fs *fs, struct txn *x, uint64_t ino, struct disk_inode *inode,
	const char *name, const void *value, size_t len)
{
	struct xattr_slot slot;
	int rc;

	WEFT_ASSERT(len <= DISK_XATTR_INLINE_MAX);
	rc = slot_find(fs, x, ino, name, &slot);
	if (rc)
		return rc;
	if (slot.full)
		return -ENOSPC;
	if (slot.found) {
		rc = slot_free_runs(x, &slot, inode);
		if (rc)
			return rc;
	}
	return slot_write(x, &slot, inode, name, len, 0, value, len);
}

int xattr_remove_txn(struct fs *fs, struct txn *x, uint64_t ino, struct disk_inode *inode,
	const char *name)
{
	struct xattr_slot slot;
	int rc;

	if (!may_have(inode, name))
		return 0;
	rc = slot_find(fs, x, ino, name, &slot);
	if (rc || !slot.found)
		return rc;
	return slot_remove(x, &slot, ino, inode, name);
}

int xattr_drop_caps(struct fs *fs, struct txn *x, uint64_t ino, struct disk_inode *inode)
{
	return xattr_remove_txn(fs, x, ino, inode, CAPS_NAME);
}

/* ---- setting ---------------------------------------------------------------------- */

struct set_arg {
	struct fs *fs;
	uint64_t ino;
	const struct ops_caller *c;
	const char *name;
	enum xattr_space space;
	const uint8_t *value;
	size_t len;
	int flags;
	int64_t now;
	/* Pages for a value too long for the item. taken: number of the runs that x has. */
	struct space_run run[XATTR_PAGES_MAX];
	unsigned run_count, taken;
};

/* Allows user.* only if the mode has the usual permission bits (xattr(7)). */
static bool space_allowed(enum xattr_space space, uint32_t mode)
{
	return space != XATTR_SPACE_USER || S_ISREG(mode) || S_ISDIR(mode);
}

/* Takes the reserved pages, fills them, and lists them in the stored format. */
static int set_pages(struct txn *x, struct set_arg *a, struct disk_extent *runs)
{
	size_t at = 0;

	for (unsigned i = 0; i < a->run_count; i++) {
		const struct space_run *run = &a->run[i];
		int rc = txn_take(x, run);

		if (rc)
			return rc;
		a->taken++;
		for (uint32_t p = 0; p < run->length; p++) {
			size_t part = MIN(a->len - at, PAGE_SIZE);

			rc = txn_page(x, run->pid + p, run->incarnation, 0, a->value + at,
				(unsigned)part, true);
			if (rc)
				return rc;
			at += part;
		}
		runs[i] = (struct disk_extent){.pid = run->pid,
			.length = run->length,
			.incarnation = run->incarnation};
	}
	WEFT_ASSERT(at == a->len);
	return 0;
}

static int set_plain(struct txn *x, struct set_arg *a, struct disk_inode *inode)
{
	struct disk_extent runs[XATTR_PAGES_MAX];
	struct xattr_slot slot;
	int rc;

	rc = slot_find(a->fs, x, a->ino, a->name, &slot);
	if (rc)
		return rc;
	if (slot.found && (a->flags & XATTR_CREATE))
		return OPS_VERDICT(-EEXIST);
	if (!slot.found && (a->flags & XATTR_REPLACE))
		return OPS_VERDICT(-ENODATA);
	if (slot.full)
		return OPS_VERDICT(-ENOSPC);
	if (slot.found) {
		rc = slot_free_runs(x, &slot, inode);
		if (rc)
			return rc;
	}
	if (a->run_count == 0)
		return slot_write(x, &slot, inode, a->name, a->len, 0, a->value, a->len);
	rc = set_pages(x, a, runs);
	if (rc)
		return rc;
	inode->blocks += DIV_UP(a->len, PAGE_SIZE);
	return slot_write(x, &slot, inode, a->name, a->len, a->run_count, runs,
		a->run_count * sizeof(runs[0]));
}

/* Another node's kernel may have got the name before the last one was removed. */
static bool may_set_on_orphan(struct fs *fs, uint64_t ino, const struct disk_inode *inode)
{
	if (fs->elsewhere)
		return inode->generation != DISK_GENERATION_FREED;
	return file_is_open(fs, ino) || orphan_is_awaited(fs, ino);
}

static int set_body(struct txn *x, void *p)
{
	struct set_arg *a = p;
	struct disk_inode inode;
	int rc;

	a->taken = 0;
	rc = inode_read(x, a->ino, &inode);
	if (rc)
		return rc;
	if (inode.nlink == 0 && !may_set_on_orphan(a->fs, a->ino, &inode))
		return -ENOENT;
	if (!space_allowed(a->space, inode.mode) || inode_is_fixed(&inode))
		return -EPERM;
	if (name_is_acl(a->space))
		rc = acl_set_txn(a->fs, x, a->ino, &inode, a->c,
			a->space == XATTR_SPACE_ACL_DEFAULT, a->value, a->len);
	else
		rc = set_plain(x, a, &inode);
	if (rc)
		return rc;
	inode.ctime_ns = a->now;
	return inode_write(x, a->ino, &inode);
}

static int set_reserve(struct set_arg *a)
{
	uint32_t want = (uint32_t)DIV_UP(a->len, PAGE_SIZE);
	page_id goal = PID_NONE;

	while (want > 0) {
		struct space_run *run = &a->run[a->run_count];
		int rc = run_reserve(a->fs, goal, want, run);

		if (rc)
			return rc;
		WEFT_ASSERT(run->length > 0 && run->length <= want);
		want -= run->length;
		goal = run->pid + run->length;
		a->run_count++;
	}
	return 0;
}

static int count_names(void *arg, struct disk_key key, const void *value, size_t len)
{
	size_t *total = arg;
	struct xattr_view view;
	int rc;

	rc = xattr_parse(value, len, &view);
	if (rc)
		return rc;
	*total += view.head.name_bytes + 1u;
	return 0;
}

/* Checks that all names of an inode fit in one listxattr(2) of 64 KiB. The kernel runs one setxattr
 * at a time on an inode, so the count before the transaction stays valid. */
static int check_room(struct fs *fs, uint64_t ino, const char *name)
{
	struct disk_inode inode;
	struct xattr_slot slot;
	size_t total = strlen(name) + 1;
	int rc;

	rc = inode_get(fs, ino, &inode);
	if (rc || !(inode.flags & DISK_INODE_HAS_XATTR))
		return rc;
	rc = slot_find(fs, NULL, ino, name, &slot);
	if (rc || slot.found)
		return rc;
	rc = tree_scan(fs->tree, disk_key(ino, DISK_ITEM_XATTR, 0),
		disk_key(ino, DISK_ITEM_ENTRY, 0), false, count_names, &total);
	if (rc)
		return rc;
	return total > XATTR_LIST_MAX ? -ENOSPC : 0;
}

/* Reserves pages for a large value, and sets it. */
static int set_once(struct set_arg *a)
{
	int rc = 0;

	a->run_count = a->taken = 0;
	a->now = rt_wall_ns();
	if (a->len > DISK_XATTR_INLINE_MAX && !name_is_acl(a->space))
		rc = set_reserve(a);
	if (rc == 0)
		rc = ops_run(a->fs, 0, set_body, a, NULL);
	for (unsigned i = a->taken; rc && i < a->run_count; i++)
		space_unreserve(a->fs->volume->space, &a->run[i]);
	return rc;
}

int ops_setxattr(struct fs *fs, uint64_t ino, const struct ops_caller *c,
	const char *name, const void *value, size_t len, int flags)
{
	struct set_arg a = {
		.fs = fs,
		.ino = ino,
		.c = c,
		.name = name,
		.value = value,
		.len = len,
		.flags = flags,
	};
	int rc;

	ops_count(fs, OPS_CALL_SETXATTR);
	if (flags & ~(XATTR_CREATE | XATTR_REPLACE))
		return -EINVAL;
	rc = name_space(name, &a.space);
	if (rc)
		return rc;
	if (len > DISK_XATTR_VALUE_MAX)
		return -E2BIG;
	rc = fs_check_writable(fs);
	if (rc)
		return rc;
	rc = check_room(fs, ino, name);
	if (rc)
		return rc;
	rc = set_once(&a);
	if (space_exhausted(fs->volume->space, rc) && orphans_settle(fs, true))
		rc = set_once(&a);
	return rc;
}

/* ---- removing --------------------------------------------------------------------- */

static int remove_body(struct txn *x, void *p)
{
	struct set_arg *a = p;
	struct xattr_slot slot = {.found = false};
	struct disk_inode inode;
	int rc;

	rc = inode_read(x, a->ino, &inode);
	if (rc)
		return rc;
	if (!space_allowed(a->space, inode.mode) || inode_is_fixed(&inode))
		return -EPERM;
	if (may_have(&inode, a->name)) {
		rc = slot_find(a->fs, x, a->ino, a->name, &slot);
		if (rc)
			return rc;
	}
	/* removing an absent ACL succeeds */
	if (!slot.found)
		return name_is_acl(a->space) ? 0 : OPS_VERDICT(-ENODATA);
	rc = slot_remove(x, &slot, a->ino, &inode, a->name);
	if (rc)
		return rc;
	inode.ctime_ns = a->now;
	return inode_write(x, a->ino, &inode);
}

int ops_removexattr(struct fs *fs, uint64_t ino, const char *name)
{
	struct set_arg a = {.fs = fs, .ino = ino, .name = name};
	int rc;

	ops_count(fs, OPS_CALL_REMOVEXATTR);
	rc = name_space(name, &a.space);
	if (rc)
		return rc;
	a.now = rt_wall_ns();
	return ops_run(fs, OPS_RUN_PRIVILEGED, remove_body, &a, NULL);
}

/* ---- getting ---------------------------------------------------------------------- */

/* Copies the value's pages, in batches that the cache allows to hold. */
static int get_pages(struct fs *fs, const struct xattr_view *view, uint8_t *buf)
{
	struct cache *cache = fs->volume->cache;
	struct page_ref refs[XATTR_PAGES_MAX];
	struct guard guards[XATTR_PAGES_MAX];
	unsigned count = 0, batch = MIN(cache_batch_max(cache), XATTR_PAGES_MAX);
	size_t left = view->head.value_bytes;

	for (unsigned i = 0; i < view->head.run_count; i++) {
		struct disk_extent run = view_run(view, i);

		for (uint32_t p = 0; p < run.length; p++)
			refs[count++] = (struct page_ref){run.pid + p, run.incarnation};
	}
	for (unsigned at = 0; at < count;) {
		unsigned part = MIN(batch, count - at);
		int rc = guard_shared_batch(cache, refs + at, part, false, guards);

		if (rc)
			return rc;
		for (unsigned i = 0; i < part; i++) {
			size_t bytes = MIN(left, PAGE_SIZE);

			page_copy_out(buf, guards[i].image, bytes);
			guard_release(cache, &guards[i]);
			buf += bytes;
			left -= bytes;
		}
		at += part;
	}
	return 0;
}

/* Copies the value to buf. -EAGAIN: it changed meanwhile. */
static int get_large(struct fs *fs, const struct xattr_slot *slot, uint8_t *buf)
{
	uint8_t again[DISK_VALUE_MAX];
	int rc, len;

	rc = get_pages(fs, &slot->view, buf);
	len = tree_read(fs->tree, slot->key, again, sizeof(again));
	if (len == -ENOENT)
		return -EAGAIN;
	if (len < 0)
		return len;
	if ((unsigned)len != slot->len || memcmp(again, slot->value, slot->len) != 0)
		return -EAGAIN;
	return rc == -ESTALE ? -EUCLEAN : rc;
}

static int get_value(struct fs *fs, uint64_t ino, const char *name, void *buf, size_t len)
{
	struct xattr_slot slot;
	int rc;

	for (unsigned tries = 0; tries < XATTR_READ_TRIES; tries++) {
		rc = slot_find(fs, NULL, ino, name, &slot);
		if (rc)
			return rc;
		if (!slot.found)
			return -ENODATA;
		if (len == 0)
			return (int)slot.view.head.value_bytes;
		if (len < slot.view.head.value_bytes)
			return -ERANGE;
		if (slot.view.inline_value) {
			memcpy(buf, slot.view.inline_value, slot.view.head.value_bytes);
			return (int)slot.view.head.value_bytes;
		}
		rc = get_large(fs, &slot, buf);
		if (rc != -EAGAIN)
			return rc ? rc : (int)slot.view.head.value_bytes;
	}
	return -EIO;
}

int ops_getxattr(struct fs *fs, uint64_t ino, const char *name, void *buf, size_t len)
{
	struct disk_inode inode;
	enum xattr_space space;
	int rc;

	ops_count(fs, OPS_CALL_GETXATTR);
	rc = name_space(name, &space);
	if (rc)
		return rc;
	rc = inode_get(fs, ino, &inode);
	if (rc)
		return rc;
	if (name_is_acl(space) && S_ISLNK(inode.mode))
		return -EOPNOTSUPP;
	if (!may_have(&inode, name))
		return -ENODATA;
	return get_value(fs, ino, name, buf, len);
}

/* ---- listing ---------------------------------------------------------------------- */

struct list_arg {
	char *buf; /* NULL: only count */
	size_t cap, at;
};

static int list_visit(void *arg, struct disk_key key, const void *value, size_t len)
{
	struct list_arg *l = arg;
	struct xattr_view view;
	int rc;

	rc = xattr_parse(value, len, &view);
	if (rc)
		return rc;
	if (l->buf) {
		if (l->cap - l->at < view.head.name_bytes + 1u)
			return -ERANGE;
		memcpy(l->buf + l->at, view.name, view.head.name_bytes);
		l->buf[l->at + view.head.name_bytes] = '\0';
	}
	l->at += view.head.name_bytes + 1u;
	return l->at > XATTR_LIST_MAX ? -E2BIG : 0;
}

int ops_listxattr(struct fs *fs, uint64_t ino, char *buf, size_t len)
{
	struct list_arg l = {.buf = len > 0 ? buf : NULL, .cap = len};
	struct disk_inode inode;
	int rc;

	ops_count(fs, OPS_CALL_LISTXATTR);
	rc = inode_get(fs, ino, &inode);
	if (rc)
		return rc;
	if (!(inode.flags & DISK_INODE_HAS_XATTR))
		return 0;
	rc = tree_scan(fs->tree, disk_key(ino, DISK_ITEM_XATTR, 0),
		disk_key(ino, DISK_ITEM_ENTRY, 0), false, list_visit, &l);
	return rc ? rc : (int)l.at;
}
