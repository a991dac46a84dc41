/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Directory entries as items. The hash of a name is the item's key. Names with the same hash share
 * an item.
 *
 * Keeps: an item is removed with its last entry. Reading an item with any bytes stays within them
 * (invariant 9).
 */
#include <errno.h>

#include "engine/common/siphash.h"
#include "fs/ops/ops_internal.h"

#define ENTRIES_PER_ITEM 16u /* limited by the low 4 bits of a cookie */

uint64_t name_hash(struct fs *fs, struct ops_name name)
{
	uint64_t hash = siphash_2_4(fs->volume->catalog.hash_key, name.bytes, name.len);

	hash &= NAME_HASH_MASK & fs->hash_mask;
	return MAX(hash, NAME_HASH_MIN);
}

int name_check(struct ops_name name)
{
	if (name.len == 0)
		return -EINVAL;
	if (name.len > DISK_NAME_MAX)
		return -ENAMETOOLONG;
	if (memchr(name.bytes, '/', name.len) || memchr(name.bytes, '\0', name.len))
		return -EINVAL;
	if (name_dots(name))
		return -EINVAL;
	return 0;
}

unsigned name_dots(struct ops_name name)
{
	if (name.len == 1 && name.bytes[0] == '.')
		return 1;
	if (name.len == 2 && name.bytes[0] == '.' && name.bytes[1] == '.')
		return 2;
	return 0;
}

/* ---- an item's value -------------------------------------------------------------- */

/* Looks for the name in slot->value. Sets all fields except key, len and value. */
static int slot_search(struct entry_slot *slot, struct ops_name name)
{
	const struct disk_entry *e;
	size_t at = 0;
	int error;

	slot->found = false;
	slot->count = 0;
	for (size_t begin = 0; disk_entry_step(slot->value, slot->len, &at, &e, &error);
		begin = at) {
		slot->count++;
		if (slot->found || e->name_bytes != name.len ||
			memcmp(e->name, name.bytes, name.len) != 0)
			continue;
		slot->found = true;
		slot->offset = (unsigned)begin;
		slot->entry = (struct entry){.ino = e->ino, .type = e->type};
	}
	return error;
}

int entry_get_kcached(struct fs *fs, struct tree_kcopy *e, uint64_t dir,
	struct ops_name name, struct entry *out)
{
	struct entry_slot slot;
	int rc;

	slot.key = disk_key(dir, DISK_ITEM_ENTRY, name_hash(fs, name));
	rc = e ? tree_read_kcached(fs->tree, e, slot.key, slot.value, sizeof(slot.value))
	       : tree_read(fs->tree, slot.key, slot.value, sizeof(slot.value));
	if (rc < 0)
		return rc;
	slot.len = (unsigned)rc;
	rc = slot_search(&slot, name);
	if (rc)
		return rc;
	if (!slot.found)
		return -ENOENT;
	*out = slot.entry;
	return 0;
}

int entry_get(struct fs *fs, uint64_t dir, struct ops_name name, struct entry *out)
{
	return entry_get_kcached(fs, NULL, dir, name, out);
}

int entry_find(struct fs *fs, struct txn *x, uint64_t dir, struct ops_name name,
	struct entry_slot *slot)
{
	int rc;

	slot->key = disk_key(dir, DISK_ITEM_ENTRY, name_hash(fs, name));
	rc = txn_read(x, slot->key, slot->value, sizeof(slot->value));
	if (rc < 0 && rc != -ENOENT)
		return rc;
	slot->len = rc < 0 ? 0 : (unsigned)rc;
	return slot_search(slot, name);
}

int entry_insert(
	struct txn *x, struct entry_slot *slot, struct ops_name name, struct entry entry)
{
	struct disk_entry head = {
		.ino = entry.ino,
		.type = entry.type,
		.name_bytes = (uint8_t)name.len,
	};
	size_t bytes = sizeof(head) + name.len;

	WEFT_ASSERT(!slot->found && name.len > 0 && name.len <= DISK_NAME_MAX);
	if (slot->count == ENTRIES_PER_ITEM || slot->len + bytes > sizeof(slot->value))
		return -ENOSPC;
	memcpy(slot->value + slot->len, &head, sizeof(head));
	memcpy(slot->value + slot->len + sizeof(head), name.bytes, name.len);
	slot->found = true;
	slot->entry = entry;
	slot->offset = slot->len;
	slot->len += (unsigned)bytes;
	slot->count++;
	return txn_write(x, slot->key, slot->value, slot->len);
}

int entry_remove(struct txn *x, struct entry_slot *slot)
{
	const struct disk_entry *e =
		(const struct disk_entry *)(slot->value + slot->offset);
	unsigned bytes = (unsigned)sizeof(*e) + e->name_bytes;
	unsigned behind = slot->offset + bytes;

	WEFT_ASSERT(slot->found && behind <= slot->len);
	memmove(slot->value + slot->offset, slot->value + behind, slot->len - behind);
	slot->found = false;
	slot->len -= bytes;
	slot->count--;
	if (slot->len == 0)
		return txn_delete(x, slot->key);
	return txn_write(x, slot->key, slot->value, slot->len);
}

int entry_replace(struct txn *x, struct entry_slot *slot, struct entry entry)
{
	struct disk_entry head;

	WEFT_ASSERT(slot->found);
	memcpy(&head, slot->value + slot->offset, sizeof(head));
	head.ino = entry.ino;
	head.type = entry.type;
	memcpy(slot->value + slot->offset, &head, sizeof(head));
	slot->entry = entry;
	return txn_write(x, slot->key, slot->value, slot->len);
}
