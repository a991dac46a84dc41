/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel's copies of inodes in the table, and the parts of an answer that the kernel may keep:
 * attributes, sizes, names (docs/nodes/sizes.md, "Sizes"). */
#include "fs/kcache/kcache_internal.h"

/* ---- which thread has taken in which answer (under the lock) ----------------------------- */

/* Returns true if the thread has made a request since. It has then taken in its earlier answer. */
static bool heard_since(struct kcache *k, uint32_t thread, uint32_t told_at)
{
	uint64_t heard =
		atomic_load_explicit(&k->heard[thread % HEARD_MAX], memory_order_relaxed);

	return thread && heard >> 32 == thread &&
	       (int32_t)((uint32_t)heard - told_at) > 0;
}

static bool looker_heard(struct kcache *k, struct known *n)
{
	if (heard_since(k, n->looker, n->looked_at))
		n->looker = 0;
	return !n->looker;
}

bool known_looker_done(struct kcache *k, struct known *n)
{
	if (!looker_heard(k, n) && n->answered &&
		k->ops->returned(k->owner, n->looker, &n->seen))
		n->looker = 0;
	return !n->looker;
}

bool known_taken_in(struct kcache *k, uint64_t ino, bool *made)
{
	struct known *n = known_find(k, ino);

	*made = n && n->made;
	return !n || known_looker_done(k, n);
}

/* ---- pages and attributes (under the lock) ------------------------------------------------ */

bool known_note_pages(struct kcache *k, uint64_t ino)
{
	struct known *n = known_note(k, ino);

	if (!n)
		return false;
	n->pages = true;
	n->stamp = known_moment(k);
	return true;
}

bool known_has_pages(struct kcache *k, uint64_t ino)
{
	const struct known *n = known_find(k, ino);

	return n && n->pages;
}

bool known_drop(struct kcache *k, uint64_t ino, bool *attributes, uint32_t *stamp)
{
	struct known *n = known_find(k, ino);

	*attributes = n && n->attributes;
	*stamp = n ? n->stamp : 0;
	if (n && !n->sure) /* the answer may be outdated, and not taken in */
		n->told &= !n->attributes && !n->pages;
	if (n)
		n->attributes = false;
	return known_has_pages(k, ino);
}

bool known_forget_attributes(struct kcache *k, uint64_t ino)
{
	struct known *n = known_find(k, ino);
	bool had = n && n->attributes;

	if (had)
		n->attributes = false;
	return had;
}

void known_forget_pages(struct kcache *k, uint64_t ino, uint32_t stamp)
{
	struct known *n = known_find(k, ino);

	if (!n || n->stamp != stamp)
		return;
	n->pages = false;
}

void known_keep_pages(struct kcache *k, uint64_t ino)
{
	struct known *n = known_find(k, ino);

	if (n)
		n->stamp = known_moment(k);
}

/* ---- answers that the kernel may keep --------------------------------------------------- */

static bool size_taken_in(
	struct kcache *k, const struct known *n, uint32_t thread, uint64_t size)
{
	return n->told && n->size == size &&
	       (n->sure || (thread && n->thread == thread) ||
		       heard_since(k, n->thread, n->told_at));
}

bool known_has_size(struct kcache *k, uint32_t thread, const struct ops_attr *attr)
{
	const struct known *n;
	bool had;

	rt_mutex_lock(&k->lock);
	n = known_find(k, attr->ino);
	had = n && size_taken_in(k, n, thread, attr->inode.size);
	rt_mutex_unlock(&k->lock);
	return had;
}

/* Returns true if the kernel has this size already. If not, the caller's answer gives it. */
static bool size_sure(
	struct kcache *k, struct known *n, uint32_t thread, const struct ops_attr *attr)
{
	uint64_t size = attr->inode.size;

	if (!S_ISREG(attr->inode.mode))
		return true;
	n->sure = size_taken_in(k, n, thread, size);
	n->told = true;
	n->size = size;
	n->thread = thread;
	n->told_at = atomic_load_explicit(&k->questions, memory_order_relaxed);
	return n->sure;
}

/* The size may be the one in the last attributes. The kernel then learns nothing new. */
void known_end_size(struct kcache *k, uint64_t ino, uint64_t end)
{
	struct known *n = known_find(k, ino);

	if (n && n->size != end)
		n->told = n->sure = false;
}

void kcache_heard(struct kcache *k, uint32_t thread)
{
	uint32_t number;

	if (!k)
		return;
	number = atomic_fetch_add_explicit(&k->questions, 1, memory_order_relaxed) + 1;
	atomic_store_explicit(&k->heard[thread % HEARD_MAX],
		(uint64_t)thread << 32 | number, memory_order_relaxed);
}

void kcache_told(struct kcache *k, uint32_t thread, const struct ops_attr *attr)
{
	struct known *n;

	if (!k || !S_ISREG(attr->inode.mode))
		return;
	rt_mutex_lock(&k->lock);
	n = known_note(k, attr->ino);
	if (n)
		(void)size_sure(k, n, thread, attr);
	rt_mutex_unlock(&k->lock);
}

/* Note first, then check that the leaf stands: a later drop finds the note. */
static bool attributes_note(
	struct kcache *k, uint64_t ino, uint32_t thread, const struct ops_attr *attr)
{
	bool keeps = false;
	struct known *n;

	rt_mutex_lock(&k->lock);
	n = known_note(k, ino);
	if (n)
		keeps = (!attr || size_sure(k, n, thread, attr)) &&
			!kcache_changing(k, ino, 0, UINT64_MAX) &&
			!kcache_names_gated(k, ino) && !kcache_dir_doubted(k, ino);
	if (keeps)
		n->attributes = true;
	rt_mutex_unlock(&k->lock);
	return keeps;
}

void kcache_resized(struct kcache *k, uint64_t ino)
{
	struct known *n;

	if (!k)
		return;
	rt_mutex_lock(&k->lock);
	n = known_find(k, ino);
	if (n)
		n->told = n->sure = false;
	rt_mutex_unlock(&k->lock);
}

int kcache_getattr(struct kcache *k, uint64_t ino, uint32_t thread, struct ops_attr *out,
	bool *keeps)
{
	struct tree_kcopy e = {.kinds = KCACHE_ATTRIBUTES};
	int rc = kcache_gate_pass(k, ino, thread);

	*keeps = false;
	if (rc)
		return rc;
	kcache_dir_verify(k, ino, thread);
	rc = k->source->attr(k->source_owner, &e, ino, out);
	if (!rc && S_ISDIR(out->inode.mode))
		kcache_dir_follow(k, out, thread);
	*keeps = !rc && e.kcached && attributes_note(k, ino, thread, out) &&
		 cache_kcopy_stands(k->cache, &e.leaf);
	return rc;
}

/*
 * Notes a name and attributes for a thread. Of the threads that may not have taken in their answer,
 * one is noted. So only one gets a name or attributes to keep. The size may be new to the kernel: a
 * reader requests the attributes if they are dropped on their way. *named: in, the parts that are
 * kernel-cached; out, the parts that may be kept.
 */
static bool named_note(struct kcache *k, uint32_t thread, const struct ops_attr *attr,
	bool made, struct kcache_named *named)
{
	bool keeps = false;
	struct known *n;

	rt_mutex_lock(&k->lock);
	n = known_note(k, attr->ino);
	named->attributes &= !kcache_changing(k, attr->ino, 0, UINT64_MAX) &&
			     !kcache_names_gated(k, attr->ino) &&
			     !kcache_dir_doubted(k, attr->ino);
	if (n)
		keeps = (named->name || named->attributes) && known_looker_done(k, n);
	if (keeps) {
		(void)size_sure(k, n, thread, attr);
		n->attributes |= named->attributes;
		n->looker = thread;
		n->made = made;
		n->looked_at = atomic_load_explicit(&k->questions, memory_order_relaxed);
		n->look = ++k->looks;
		n->answered = false;
		n->seen = (struct kcache_seen){0};
		named->ino = attr->ino;
		named->look = n->look;
	}
	rt_mutex_unlock(&k->lock);
	return keeps;
}

void kcache_named_told(struct kcache *k, const struct kcache_named *named, bool taken)
{
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

/* Note first, then check that the leaves stand: a later drop finds the note. */
static bool named_stands(struct kcache *k, const struct cache_kcopy *names,
	const struct cache_kcopy *leaf, struct kcache_named *named)
{
	named->name = named->name && cache_kcopy_stands(k->cache, names);
	named->attributes = named->attributes && cache_kcopy_stands(k->cache, leaf);
	if (named->name || named->attributes)
		return true;
	kcache_named_told(k, named, false);
	return false;
}

bool kcache_named(struct kcache *k, uint64_t dir, uint32_t thread,
	const struct ops_attr *attr, const struct kcache_looked *looked,
	struct kcache_named *named)
{
	*named =
		(struct kcache_named){.name = looked->name && !kcache_names_gated(k, dir),
			.attributes = looked->attributes};
	return thread && named_note(k, thread, attr, false, named) &&
	       named_stands(k, &looked->names, &looked->leaf, named);
}

bool kcache_made(struct kcache *k, uint32_t thread, struct ops_attr *attr,
	struct kcache_named *named)
{
	struct tree_kcopy e = {.kinds = KCACHE_ATTRIBUTES};
	struct ops_attr now;

	*named = (struct kcache_named){.attributes = true};
	if (!thread || k->source->attr(k->source_owner, &e, attr->ino, &now) ||
		!e.kcached || !named_note(k, thread, &now, true, named) ||
		!named_stands(k, NULL, &e.leaf, named))
		return false;
	*attr = now;
	return true;
}

bool kcache_acl(struct kcache *k, uint64_t ino)
{
	struct disk_key key = disk_key(ino, DISK_ITEM_INODE, 0);
	struct cache_kcopy leaf;

	return k && tree_kcache(k->tree, key, key, KCACHE_ATTRIBUTES, &leaf, 1) == 1 &&
	       attributes_note(k, ino, 0, NULL) && cache_kcopy_stands(k->cache, &leaf);
}
