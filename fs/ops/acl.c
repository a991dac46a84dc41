/* SPDX-License-Identifier: Apache-2.0 */
/*
 * POSIX ACLs (acl(5)): checks, storage with the mode bits, inheritance. The kernel enforces them.
 *
 * An ACL is stored as its xattr, in format version 2: a u32 version, then entries sorted by tag.
 * Keeps: an access ACL is stored only if the mode cannot express it. The mode's group bits are its
 * mask.
 */
#include <errno.h>

#include "fs/ops/ops_internal.h"

#define ACL_VERSION 2u

enum acl_tag {
	ACL_USER_OBJ = 0x01,
	ACL_USER = 0x02,
	ACL_GROUP_OBJ = 0x04,
	ACL_GROUP = 0x08,
	ACL_MASK = 0x10,
	ACL_OTHER = 0x20,
};

struct acl_entry {
	uint16_t tag;
	uint16_t perm;
	uint32_t id; /* of ACL_USER and ACL_GROUP */
};

#define ACL_ENTRIES_MAX                                                                  \
	((DISK_XATTR_INLINE_MAX - sizeof(uint32_t)) / sizeof(struct acl_entry))

/* The format in an xattr. */
struct acl {
	uint32_t version;
	struct acl_entry entry[ACL_ENTRIES_MAX];
	unsigned count; /* not stored */
};
_Static_assert(offsetof(struct acl, entry) == 4, "ACL layout");

static size_t acl_bytes(const struct acl *acl)
{
	return sizeof(acl->version) + acl->count * sizeof(acl->entry[0]);
}

/* Checks the rules of the kernel's posix_acl_valid. Tags are in order. USER_OBJ, GROUP_OBJ and
 * OTHER occur once each. MASK occurs if there is a USER or GROUP. */
static bool acl_valid(const struct acl *acl)
{
	unsigned seen = 0;

	for (unsigned i = 0; i < acl->count; i++) {
		const struct acl_entry *e = &acl->entry[i];
		bool named = e->tag == ACL_USER || e->tag == ACL_GROUP;

		if (e->perm > 7 || (named && e->id == UINT32_MAX))
			return false;
		/* Exactly one bit, not below an earlier one, and repeated only for named
		 * entries. */
		if (e->tag == 0 || e->tag > ACL_OTHER || (e->tag & (e->tag - 1)) ||
			seen >= 2u * e->tag || (!named && (seen & e->tag)))
			return false;
		seen |= e->tag;
	}
	if ((seen & (ACL_USER_OBJ | ACL_GROUP_OBJ | ACL_OTHER)) !=
		(ACL_USER_OBJ | ACL_GROUP_OBJ | ACL_OTHER))
		return false;
	return !(seen & (ACL_USER | ACL_GROUP)) || (seen & ACL_MASK);
}

/* Returns 0; -EINVAL; -EOPNOTSUPP: another version; -ENOSPC: too many entries. count may be 0. */
static int acl_decode(const void *value, size_t len, struct acl *out)
{
	if (len < sizeof(out->version))
		return -EINVAL;
	memcpy(&out->version, value, sizeof(out->version));
	if (out->version != ACL_VERSION)
		return -EOPNOTSUPP;
	len -= sizeof(out->version);
	if (len % sizeof(out->entry[0]))
		return -EINVAL;
	if (len > sizeof(out->entry))
		return -ENOSPC;
	out->count = (unsigned)(len / sizeof(out->entry[0]));
	memcpy(out->entry, (const uint8_t *)value + sizeof(out->version), len);
	if (out->count > 0 && !acl_valid(out))
		return -EINVAL;
	return 0;
}

/* Returns the entry of the mode's group bits: the mask, or the owning group if there is no mask. */
static struct acl_entry *acl_group_class(struct acl *acl)
{
	struct acl_entry *group = NULL;

	for (unsigned i = 0; i < acl->count; i++) {
		if (acl->entry[i].tag == ACL_MASK)
			return &acl->entry[i];
		if (acl->entry[i].tag == ACL_GROUP_OBJ)
			group = &acl->entry[i];
	}
	return group;
}

static struct acl_entry *acl_entry_of(struct acl *acl, enum acl_tag tag)
{
	for (unsigned i = 0; i < acl->count; i++)
		if (acl->entry[i].tag == tag)
			return &acl->entry[i];
	return NULL;
}

/* Returns true if the nine bits of a mode cannot express the ACL. */
static bool acl_extended(const struct acl *acl)
{
	return acl->count > 3;
}

static uint32_t acl_mode(struct acl *acl)
{
	return (uint32_t)acl_entry_of(acl, ACL_USER_OBJ)->perm << 6 |
	       (uint32_t)acl_group_class(acl)->perm << 3 |
	       acl_entry_of(acl, ACL_OTHER)->perm;
}

static void acl_set_mode(struct acl *acl, uint32_t mode)
{
	acl_entry_of(acl, ACL_USER_OBJ)->perm = mode >> 6 & 7;
	acl_group_class(acl)->perm = mode >> 3 & 7;
	acl_entry_of(acl, ACL_OTHER)->perm = mode & 7;
}

/* ---- as xattrs, in transactions --------------------------------------------------- */

/* Returns -ENODATA if there is none. A stored ACL that is not valid is damage. */
static int acl_read_txn(
	struct fs *fs, struct txn *x, uint64_t ino, const char *name, struct acl *out)
{
	uint8_t value[DISK_XATTR_INLINE_MAX];
	int rc;

	rc = xattr_read_txn(fs, x, ino, name, value, sizeof(value));
	if (rc < 0)
		return rc == -ERANGE ? -EUCLEAN : rc;
	if (acl_decode(value, (size_t)rc, out) || out->count == 0)
		return -EUCLEAN;
	return 0;
}

static int acl_write_txn(struct fs *fs, struct txn *x, uint64_t ino,
	struct disk_inode *inode, const char *name, const struct acl *acl)
{
	return xattr_write_txn(fs, x, ino, inode, name, acl, acl_bytes(acl));
}

int acl_chmod_txn(
	struct fs *fs, struct txn *x, uint64_t ino, const struct disk_inode *inode)
{
	struct disk_inode copy = *inode;
	struct acl acl;
	int rc;

	if (!(inode->flags & DISK_INODE_HAS_ACL))
		return 0;
	rc = acl_read_txn(fs, x, ino, ACL_ACCESS_NAME, &acl);
	if (rc == -ENODATA)
		return 0;
	if (rc)
		return rc;
	acl_set_mode(&acl, inode->mode);
	return acl_write_txn(fs, x, ino, &copy, ACL_ACCESS_NAME, &acl);
}

/* acl(5), "Object creation and default ACLs". The new access ACL is the default ACL of the
 * directory, its classes reduced to the bits of the mode. The umask is not applied. */
int acl_inherit_txn(struct fs *fs, struct txn *x, uint64_t dir,
	const struct disk_inode *parent, uint32_t umask, uint64_t ino,
	struct disk_inode *inode)
{
	struct acl acl;
	int rc = -ENODATA;

	if (parent->flags & DISK_INODE_HAS_DEFAULT_ACL)
		rc = acl_read_txn(fs, x, dir, ACL_DEFAULT_NAME, &acl);
	if (rc == -ENODATA) {
		inode->mode &= ~(umask & 0777);
		return 0;
	}
	if (rc)
		return rc;
	if (S_ISDIR(inode->mode)) {
		rc = acl_write_txn(fs, x, ino, inode, ACL_DEFAULT_NAME, &acl);
		if (rc)
			return rc;
	}
	inode->mode = (inode->mode & ~0777u) | (inode->mode & acl_mode(&acl));
	acl_set_mode(&acl, inode->mode);
	if (!acl_extended(&acl))
		return 0;
	return acl_write_txn(fs, x, ino, inode, ACL_ACCESS_NAME, &acl);
}

static int acl_set_access(struct fs *fs, struct txn *x, uint64_t ino,
	struct disk_inode *inode, const struct ops_caller *c, struct acl *acl)
{
	inode->mode = (inode->mode & ~0777u) | acl_mode(acl);
	if (!c->in_group && !c->keeps_setid)
		inode->mode &= ~(uint32_t)S_ISGID;
	if (!acl_extended(acl))
		return xattr_remove_txn(fs, x, ino, inode, ACL_ACCESS_NAME);
	return acl_write_txn(fs, x, ino, inode, ACL_ACCESS_NAME, acl);
}

int acl_set_txn(struct fs *fs, struct txn *x, uint64_t ino, struct disk_inode *inode,
	const struct ops_caller *c, bool is_default, const void *value, size_t len)
{
	const char *name = is_default ? ACL_DEFAULT_NAME : ACL_ACCESS_NAME;
	struct acl acl = {.count = 0};
	int rc;

	if (S_ISLNK(inode->mode))
		return -EOPNOTSUPP;
	if (len > 0) {
		rc = acl_decode(value, len, &acl);
		if (rc)
			return rc;
	}
	if (acl.count == 0)
		return xattr_remove_txn(fs, x, ino, inode, name);
	if (!is_default)
		return acl_set_access(fs, x, ino, inode, c, &acl);
	if (!S_ISDIR(inode->mode))
		return -EACCES;
	return acl_write_txn(fs, x, ino, inode, name, &acl);
}
