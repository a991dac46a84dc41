/* SPDX-License-Identifier: Apache-2.0 */
/* Items of extents and extended attributes: are they valid by themselves? */
#include "mkfs/fsck/fsck_internal.h"

#define XATTR_PAGES_MAX (DISK_XATTR_VALUE_MAX / PAGE_SIZE)

static bool run_valid(struct fsck *f, const struct disk_extent *e)
{
	return run_usable(f, e->pid, e->length) && e->incarnation != 0 &&
	       (e->flags & ~DISK_EXTENT_UNWRITTEN) == 0;
}

bool extent_valid(struct fsck *f, struct disk_key key, const void *value, size_t len,
	struct disk_extent *out)
{
	if (len != sizeof(*out))
		return false;
	memcpy(out, value, sizeof(*out));
	return run_valid(f, out) && key.low < FILE_BLOCK_END - out->length;
}

static bool runs_valid(struct fsck *f, struct xattr_item *x)
{
	for (unsigned i = 0; i < x->head.run_count; i++) {
		struct disk_extent run;

		memcpy(&run, x->runs + i * sizeof(run), sizeof(run));
		if (!run_valid(f, &run) || run.length > XATTR_PAGES_MAX)
			return false;
		x->pages += run.length;
	}
	return x->pages == DIV_UP(x->head.value_bytes, PAGE_SIZE);
}

bool xattr_valid(struct fsck *f, const void *value, size_t len, struct xattr_item *out)
{
	const uint8_t *bytes = value;
	size_t rest;

	if (len < sizeof(out->head))
		return false;
	memcpy(&out->head, bytes, sizeof(out->head));
	out->name = (const char *)bytes + sizeof(out->head);
	out->pages = 0;
	rest = len - sizeof(out->head);
	if (out->head.name_bytes == 0 || out->head.name_bytes > rest ||
		memchr(out->name, 0, out->head.name_bytes))
		return false;
	rest -= out->head.name_bytes;
	out->runs = (const uint8_t *)out->name + out->head.name_bytes;
	if (out->head.run_count == 0)
		return out->head.value_bytes == rest && rest <= DISK_XATTR_INLINE_MAX;
	return out->head.run_count <= XATTR_PAGES_MAX &&
	       out->head.run_count * sizeof(struct disk_extent) == rest &&
	       out->head.value_bytes <= DISK_XATTR_VALUE_MAX && runs_valid(f, out);
}

uint32_t xattr_flags(const struct xattr_item *x)
{
	static const struct {
		const char *name;
		uint32_t flag;
	} names[] = {
		{"system.posix_acl_access", DISK_INODE_HAS_ACL},
		{"system.posix_acl_default", DISK_INODE_HAS_DEFAULT_ACL},
		{"security.capability", DISK_INODE_HAS_CAPS},
	};

	for (size_t i = 0; i < ARRAY_SIZE(names); i++)
		if (strlen(names[i].name) == x->head.name_bytes &&
			memcmp(names[i].name, x->name, x->head.name_bytes) == 0)
			return DISK_INODE_HAS_XATTR | names[i].flag;
	return DISK_INODE_HAS_XATTR;
}
