/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the kernel has of the inodes in the table, and what it may be told of them for long: attributes,
 * sizes, names (docs/many-nodes.md, "Sizes").
 */
#include "fs/ops/kernel_internal.h"

/* ---- who has taken in what (under the lock) ---------------------------------------------- */

/* Has the thread asked something since, so taken in what it was told? */
static bool heard_since(struct kernel *k, uint32_t thread, uint32_t told_at)
{
	uint64_t heard =
		atomic_load_explicit(&k->heard[thread % HEARD_MAX], memory_order_relaxed);

	return thread && heard >> 32 == thread &&
	       (int32_t)((uint32_t)heard - told_at) > 0;
}

static bool looker_heard(struct kernel *k, struct known *n)
{
	if (heard_since(k, n->looker, n->looked_at))
		n->looker = 0;
	return !n->looker;
}

bool looker_done(struct kernel *k, struct known *n)
{
	if (!looker_heard(k, n) && n->answered &&
		k->ops->gone_on(k->owner, n->looker, &n->seen))
		n->looker = 0;
	return !n->looker;
}

bool names_taken_in(struct kernel *k, uint64_t ino, bool *made)
{
	struct known *n = known_find(k, ino);

	*made = n && n->made;
	return !n || looker_done(k, n);
}

/* ---- pages and attributes (under the lock) ------------------------------------------------ */

bool pages_note(struct kernel *k, uint64_t ino)
{
	struct known *n = known_note(k, ino);

	if (!n)
		return false;
	n->pages = true;
	n->stamp = known_moment(k);
	return true;
}

bool pages_known(struct kernel *k, uint64_t ino)
{
	const struct known *n = known_find(k, ino);

	return n && n->pages;
}

bool known_drop(struct kernel *k, uint64_t ino, bool *attributes, uint32_t *stamp)
{
	struct known *n = known_find(k, ino);

	*attributes = n && n->attributes;
	*stamp = n ? n->stamp : 0;
	if (n && !n->sure) /* what it was told may be overtaken, so not taken in */
		n->told &= !n->attributes && !n->pages;
	if (n)
		n->attributes = false;
	return pages_known(k, ino);
}

bool attributes_forget(struct kernel *k, uint64_t ino)
{
	struct known *n = known_find(k, ino);
	bool had = n && n->attributes;

	if (had)
		n->attributes = false;
	return had;
}

void pages_forget(struct kernel *k, uint64_t ino, uint32_t stamp)
{
	struct known *n = known_find(k, ino);

	if (!n || n->stamp != stamp)
		return;
	n->pages = false;
}

void pages_stay(struct kernel *k, uint64_t ino)
{
	struct known *n = known_find(k, ino);

	if (n)
		n->stamp = known_moment(k);
}

/* ---- what the kernel may be told for long ---------------------------------------------------- */

static bool size_taken_in(
	struct kernel *k, const struct known *n, uint32_t asker, uint64_t size)
{
	return n->told && n->size == size &&
	       (n->sure || (asker && n->asker == asker) ||
		       heard_since(k, n->asker, n->told_at));
}

bool size_is_had(struct kernel *k, uint32_t asker, const struct ops_attr *attr)
{
	const struct known *n;
	bool had;

	rt_mutex_lock(&k->lock);
	n = known_find(k, attr->ino);
	had = n && size_taken_in(k, n, asker, attr->inode.size);
	rt_mutex_unlock(&k->lock);
	return had;
}

/* Has the kernel this size already? Else it is told now. */
static bool size_sure(
	struct kernel *k, struct known *n, uint32_t asker, const struct ops_attr *attr)
{
	uint64_t size = attr->inode.size;

	if (!S_ISREG(attr->inode.mode))
		return true;
	n->sure = size_taken_in(k, n, asker, size);
	n->told = true;
	n->size = size;
	n->asker = asker;
	n->told_at = atomic_load_explicit(&k->questions, memory_order_relaxed);
	return n->sure;
}

/* That size may be what attributes have told it: then it learns nothing. */
void size_ended(struct kernel *k, uint64_t ino, uint64_t end)
{
	struct known *n = known_find(k, ino);

	if (n && n->size != end)
		n->told = n->sure = false;
}

void ops_kernel_heard(struct fs *fs, uint32_t thread)
{
	struct kernel *k = fs->kernel;
	uint32_t number;

	if (!k)
		return;
	number = atomic_fetch_add_explicit(&k->questions, 1, memory_order_relaxed) + 1;
	atomic_store_explicit(&k->heard[thread % HEARD_MAX],
		(uint64_t)thread << 32 | number, memory_order_relaxed);
}

void ops_kernel_told(struct fs *fs, uint32_t asker, const struct ops_attr *attr)
{
	struct kernel *k = fs->kernel;
	struct known *n;

	if (!k || !S_ISREG(attr->inode.mode))
		return;
	rt_mutex_lock(&k->lock);
	n = known_note(k, attr->ino);
	if (n)
		(void)size_sure(k, n, asker, attr);
	rt_mutex_unlock(&k->lock);
}

/* Noted before it is asked whether the leaf stands: a drop that begins later finds it. */
static bool attributes_note(
	struct kernel *k, uint64_t ino, uint32_t asker, const struct ops_attr *attr)
{
	bool keeps = false;
	struct known *n;

	rt_mutex_lock(&k->lock);
	n = known_note(k, ino);
	if (n)
		keeps = (!attr || size_sure(k, n, asker, attr)) &&
			!kernel_changing(k, ino, 0, UINT64_MAX) &&
			!kernel_gated(k, ino) && !kernel_dir_doubted(k, ino);
	if (keeps)
		n->attributes = true;
	rt_mutex_unlock(&k->lock);
	return keeps;
}

void ops_kernel_resized(struct fs *fs, uint64_t ino)
{
	struct kernel *k = fs->kernel;
	struct known *n;

	if (!k)
		return;
	rt_mutex_lock(&k->lock);
	n = known_find(k, ino);
	if (n)
		n->told = n->sure = false;
	rt_mutex_unlock(&k->lock);
}

int ops_getattr_kept(
	struct fs *fs, uint64_t ino, uint32_t asker, struct ops_attr *out, bool *keeps)
{
	struct tree_exposure e = {.kinds = EXPOSE_ATTRIBUTES};
	int rc = 0;

	ops_count(fs, OPS_CALL_GETATTR);
	*keeps = false;
	if (fs->kernel)
		rc = kernel_gate_pass(fs->kernel, ino, asker);
	if (rc)
		return rc;
	if (fs->kernel)
		kernel_dir_verify(fs->kernel, ino, asker);
	rc = inode_attr_exposed(fs, fs->kernel ? &e : NULL, ino, out);
	if (!rc && fs->kernel && S_ISDIR(out->inode.mode))
		kernel_dir_follow(fs, out, asker);
	*keeps = !rc && e.exposed && attributes_note(fs->kernel, ino, asker, out) &&
		 cache_exposure_stands(fs->volume->cache, &e.leaf);
	return rc;
}

/*
 * Of the threads that may not have taken in their answer one is noted, so only one is given a name or attributes
 * to be kept. The size may be news to the kernel: a reader asks for the attributes, should these be
 * dropped on their way. *named says what is exposed, then what may be kept.
 */
static bool named_note(struct kernel *k, uint32_t asker, const struct ops_attr *attr,
	bool made, struct ops_named *named)
{
	bool keeps = false;
	struct known *n;

	rt_mutex_lock(&k->lock);
	n = known_note(k, attr->ino);
	named->attributes &= !kernel_changing(k, attr->ino, 0, UINT64_MAX) &&
			     !kernel_gated(k, attr->ino) &&
			     !kernel_dir_doubted(k, attr->ino);
	if (n)
		keeps = (named->name || named->attributes) && looker_done(k, n);
	if (keeps) {
		(void)size_sure(k, n, asker, attr);
		n->attributes |= named->attributes;
		n->looker = asker;
		n->made = made;
		n->looked_at = atomic_load_explicit(&k->questions, memory_order_relaxed);
		n->look = ++k->looks;
		n->answered = false;
		n->seen = (struct ops_seen){0};
		named->ino = attr->ino;
		named->look = n->look;
	}
	rt_mutex_unlock(&k->lock);
	return keeps;
}

void ops_kernel_named_told(struct fs *fs, const struct ops_named *named, bool taken)
{
	struct kernel *k = fs->kernel;
	struct known *n;

	rt_mutex_lock(&k->lock);
	n = known_find(k, named->ino);
	if (n && n->looker && n->look == named->look) {
		n->answered = true;
		if (!taken) {
			n->told = n->sure = false;
			n->looker = 0;
		}
	}
	rt_mutex_unlock(&k->lock);
}

/* Noted before it is asked whether the leaves stand: a drop that begins later finds it. */
static bool named_stands(struct fs *fs, const struct cache_exposure *names,
	const struct cache_exposure *leaf, struct ops_named *named)
{
	named->name = named->name && cache_exposure_stands(fs->volume->cache, names);
	named->attributes =
		named->attributes && cache_exposure_stands(fs->volume->cache, leaf);
	if (named->name || named->attributes)
		return true;
	ops_kernel_named_told(fs, named, false);
	return false;
}

bool ops_kernel_named(struct fs *fs, uint64_t dir, uint32_t asker,
	const struct ops_attr *attr, const struct ops_looked *looked,
	struct ops_named *named)
{
	*named =
		(struct ops_named){.name = looked->name && !kernel_gated(fs->kernel, dir),
			.attributes = looked->attributes};
	return asker && named_note(fs->kernel, asker, attr, false, named) &&
	       named_stands(fs, &looked->names, &looked->leaf, named);
}

bool ops_kernel_made(
	struct fs *fs, uint32_t asker, struct ops_attr *attr, struct ops_named *named)
{
	struct tree_exposure e = {.kinds = EXPOSE_ATTRIBUTES};
	struct ops_attr now;

	*named = (struct ops_named){.attributes = true};
	if (!asker || inode_attr_exposed(fs, &e, attr->ino, &now) || !e.exposed ||
		!named_note(fs->kernel, asker, &now, true, named) ||
		!named_stands(fs, NULL, &e.leaf, named))
		return false;
	*attr = now;
	return true;
}

bool ops_expose_acl(struct fs *fs, uint64_t ino)
{
	struct disk_key key = disk_key(ino, DISK_ITEM_INODE, 0);
	struct cache_exposure leaf;

	return fs->kernel &&
	       tree_expose(fs->tree, key, key, EXPOSE_ATTRIBUTES, &leaf, 1) == 1 &&
	       attributes_note(fs->kernel, ino, 0, NULL) &&
	       cache_exposure_stands(fs->volume->cache, &leaf);
}

bool ops_expose_renamed(struct fs *fs, uint64_t dir, struct ops_name name, uint64_t ino)
{
	struct tree_exposure e = {.kinds = EXPOSE_NAMES};
	struct entry found;

	return fs->kernel && !name_check(name) &&
	       entry_get_exposed(fs, &e, dir, name, &found) == 0 && e.exposed &&
	       found.ino == ino;
}
