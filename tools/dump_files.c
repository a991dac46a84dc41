/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft dump path and files: from names to inodes. Entries are not trusted (invariant 9):
 * a directory that is above itself, or deeper than DEPTH_MAX, is said and not followed.
 */
#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/common/siphash.h"
#include "tools/dump.h"

#define DEPTH_MAX 256

/* A name in a directory: its inode number. */
static int entry_lookup(
	struct dump *d, uint64_t dir, const char *name, size_t len, uint64_t *ino)
{
	uint64_t hash = siphash_2_4(d->v->catalog.hash_key, name, len) & NAME_HASH_MASK;
	uint8_t value[DISK_VALUE_MAX];
	struct disk_entry head;
	int has = tree_read(d->v->tree,
		disk_key(dir, DISK_ITEM_ENTRY, MAX(hash, NAME_HASH_MIN)), value,
		sizeof(value));

	for (size_t at = 0; has > 0 && at + sizeof(head) <= (size_t)has;
		at += sizeof(head) + head.name_bytes) {
		memcpy(&head, value + at, sizeof(head));
		if (head.name_bytes > (size_t)has - at - sizeof(head))
			return -EUCLEAN;
		if (head.name_bytes == len &&
			memcmp(value + at + sizeof(head), name, len) == 0) {
			*ino = head.ino;
			return 0;
		}
	}
	return has < 0 ? has : -ENOENT;
}

void dump_path(struct dump *d)
{
	const char *path = d->word;
	uint64_t ino = DISK_INO_ROOT;

	if (tree_get(d))
		return;
	while (*path) {
		size_t len = strcspn(path, "/");

		if (len) {
			int rc = entry_lookup(d, ino, path, len, &ino);

			if (rc) {
				dump_unreadable(d, path, rc);
				return;
			}
		}
		path += len + (path[len] == '/');
	}
	show_inode(d, ino);
}

struct listing {
	struct dump *d;
	unsigned depth;
	uint64_t parent[DEPTH_MAX]; /* so that loops end */
	size_t prefix_len;
	char prefix[8192];
};

static void list_directory(struct listing *l, uint64_t dir);

/* Why the directory that is listed next cannot be followed; NULL: it can. */
static const char *list_obstacle(const struct listing *l, uint64_t dir, size_t len)
{
	if (l->depth + 1 >= DEPTH_MAX || len > sizeof(l->prefix))
		return "  TOO DEEP to follow";
	for (unsigned i = 0; i <= l->depth; i++)
		if (l->parent[i] == dir)
			return "  IS ABOVE ITSELF";
	return NULL;
}

static void list_below(
	struct listing *l, const struct disk_entry *head, const uint8_t *name)
{
	size_t len = l->prefix_len;

	memcpy(l->prefix + len, name, head->name_bytes);
	l->prefix[len + head->name_bytes] = '/';
	l->prefix_len = len + head->name_bytes + 1;
	l->parent[++l->depth] = head->ino;
	list_directory(l, head->ino);
	l->depth--;
	l->prefix_len = len;
}

static void list_entry(
	struct listing *l, const struct disk_entry *head, const uint8_t *name)
{
	struct disk_inode inode = {0};
	int rc = tree_read(l->d->v->tree, disk_key(head->ino, DISK_ITEM_INODE, 0), &inode,
		sizeof(inode));
	const char *wrong = NULL;

	if (rc != (int)sizeof(inode))
		wrong = "  INODE UNREADABLE";
	else if (S_ISDIR(inode.mode))
		wrong = list_obstacle(l, head->ino, l->prefix_len + head->name_bytes + 1);
	printf("%10" PRIu64 " %06o %12" PRIu64 " ", head->ino, inode.mode, inode.size);
	print_text(l->prefix, l->prefix_len);
	print_text(name, head->name_bytes);
	puts(wrong ? wrong : "");
	if (wrong)
		l->d->failed = true;
	else if (S_ISDIR(inode.mode))
		list_below(l, head, name);
}

static int list_item(void *arg, struct disk_key key, const void *value, size_t len)
{
	struct listing *l = arg;
	struct disk_entry head;

	for (size_t at = 0; at < len; at += sizeof(head) + head.name_bytes) {
		if (len - at < sizeof(head))
			goto malformed;
		memcpy(&head, (const uint8_t *)value + at, sizeof(head));
		if (!head.name_bytes || head.name_bytes > len - at - sizeof(head))
			goto malformed;
		list_entry(l, &head, (const uint8_t *)value + at + sizeof(head));
	}
	return 0;

malformed:
	print_text(l->prefix, l->prefix_len);
	puts(": MALFORMED ENTRY");
	l->d->failed = true;
	return 0;
}

static void list_directory(struct listing *l, uint64_t dir)
{
	int rc = tree_scan(l->d->v->tree, disk_key(dir, DISK_ITEM_ENTRY, 0),
		disk_key(dir, DISK_ITEM_ENTRY + 1, 0), false, list_item, l);

	if (rc)
		dump_unreadable(l->d, "directory", rc);
}

void dump_files(struct dump *d)
{
	struct listing *l = calloc(1, sizeof(*l));

	if (!l || tree_get(d)) {
		free(l);
		return;
	}
	l->d = d;
	l->prefix[0] = '/';
	l->prefix_len = 1;
	l->parent[0] = DISK_INO_ROOT;
	list_directory(l, DISK_INO_ROOT);
	free(l);
}
