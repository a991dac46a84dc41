/* SPDX-License-Identifier: Apache-2.0 */
/* Names of directory entries. */
#include <dirent.h>
#include <stdio.h>

#include "engine/common/siphash.h"
#include "mkfs/fsck/fsck_internal.h"

const char *name_fault(const char *name, unsigned len)
{
	if (memchr(name, '/', len))
		return "it has a slash";
	if (memchr(name, 0, len))
		return "it has a NUL";
	if ((len == 1 && name[0] == '.') ||
		(len == 2 && name[0] == '.' && name[1] == '.'))
		return "it is reserved";
	return NULL;
}

uint64_t name_place(const struct fsck *f, const char *name, unsigned len)
{
	uint64_t hash = siphash_2_4(f->catalog.hash_key, name, len) & NAME_HASH_MASK;

	return MAX(hash, (uint64_t)NAME_HASH_MIN);
}

const char *name_text(char buf[NAME_TEXT], const char *name, unsigned len)
{
	size_t at = 0;

	for (unsigned i = 0; i < len; i++) {
		unsigned char c = (unsigned char)name[i];

		if (at + 8 > NAME_TEXT) {
			memcpy(buf + at, "...", 4);
			return buf;
		}
		if (c < 0x20 || c == 0x7f || c == '\\')
			at += (size_t)snprintf(buf + at, NAME_TEXT - at, "\\x%02x", c);
		else
			buf[at++] = (char)c;
	}
	buf[at] = 0;
	return buf;
}

uint8_t mode_dt(uint32_t mode)
{
	switch (mode & S_IFMT) {
	case S_IFREG:
	case S_IFDIR:
	case S_IFLNK:
	case S_IFCHR:
	case S_IFBLK:
	case S_IFIFO:
	case S_IFSOCK:
		return (uint8_t)IFTODT(mode);
	default:
		return DT_UNKNOWN;
	}
}
