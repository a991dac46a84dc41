/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scrub: the user of a page, and the name of an inode. Neither says it by itself. So both are
 * looked for in the whole tree, by ordinary reads. That is dear, and done only for damage.
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "engine/volume/scrub_internal.h"

#define PATH_DEPTH_MAX 256u

/* ---- the user of a page ---------------------------------------------------------- */

struct users {
	struct suspect *list;
	unsigned count;
	unsigned unread;
};

/* Returns the index of the first suspect at or behind the page. */
static unsigned suspect_search(const struct users *u, page_id pid)
{
	unsigned low = 0, high = u->count;

	while (low < high) {
		unsigned middle = (low + high) / 2;

		if (u->list[middle].pid < pid)
			low = middle + 1;
		else
			high = middle;
	}
	return low;
}

static int note_tree_page(void *arg, page_id pid)
{
	struct users *u = arg;
	unsigned at = suspect_search(u, pid);

	if (at < u->count && u->list[at].pid == pid)
		u->list[at].user = SUSPECT_TREE;
	return 0;
}

static int note_unread_page(void *arg, page_id pid, int why)
{
	struct users *u = arg;

	(void)why;
	u->unread++;
	return note_tree_page(arg, pid);
}

static void note_extent(struct users *u, enum suspect_user user, uint64_t ino,
	uint64_t block, const struct disk_extent *e)
{
	for (unsigned at = suspect_search(u, e->pid);
		at < u->count && u->list[at].pid < e->pid + e->length; at++) {
		struct suspect *s = &u->list[at];

		/* an extent of an older incarnation does not read this page */
		if (s->user == SUSPECT_TREE || e->incarnation < s->incarnation)
			continue;
		s->user = user;
		s->ino = ino;
		s->block = block + (s->pid - e->pid);
		s->user_incarnation = e->incarnation;
	}
}

static void note_xattr(struct users *u, uint64_t ino, const uint8_t *value, size_t len)
{
	struct disk_xattr head;
	size_t at;

	if (len < sizeof(head))
		return;
	memcpy(&head, value, sizeof(head));
	at = sizeof(head) + head.name_bytes;
	for (unsigned i = 0; i < head.run_count; i++, at += sizeof(struct disk_extent)) {
		struct disk_extent run;

		if (at + sizeof(run) > len)
			return;
		memcpy(&run, value + at, sizeof(run));
		note_extent(u, SUSPECT_XATTR, ino, 0, &run);
	}
}

static int note_item(void *arg, struct disk_key key, const void *value, size_t len)
{
	struct disk_extent e;

	switch (key.high & 0xff) {
	case DISK_ITEM_EXTENT:
		if (len != sizeof(e))
			return 0;
		memcpy(&e, value, sizeof(e));
		if (!(e.flags & DISK_EXTENT_UNWRITTEN))
			note_extent(arg, SUSPECT_FILE, key.high >> 8, key.low, &e);
		return 0;
	case DISK_ITEM_XATTR:
		note_xattr(arg, key.high >> 8, value, len);
		return 0;
	}
	return 0;
}

/* The pages whose use their place tells. */
static void note_places(struct suspect *list, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		uint64_t slot = pid_slot(list[i].pid);

		if (slot == 0)
			list[i].user = SUSPECT_CATALOG;
		else if (disk_slot_in_group(slot) == 0)
			list[i].user = SUSPECT_GROUP;
	}
}

int scrub_find_users(
	struct volume *v, struct suspect *list, unsigned count, unsigned *unread)
{
	struct users u = {.list = list, .count = count};
	struct tree_walker to = {.page = note_tree_page,
		.unread = note_unread_page,
		.item = note_item,
		.arg = &u};
	int rc = 0;

	note_places(list, count);
	/* pages above the leaves that cannot be read were met on the way to the leaves */
	for (unsigned level = 0; !rc && level < TREE_WALK_LEVELS; level++) {
		rc = tree_walk(v->tree, level, &to);
		to.unread = NULL;
	}
	*unread = u.unread;
	return rc;
}

/* ---- the names of inodes --------------------------------------------------------- */

struct found_name {
	uint64_t ino;
	uint64_t dir; /* the directory */
	unsigned len; /* of the name; 0: not found */
	char name[256];
};

struct scrub_names {
	unsigned count, missing;
	struct found_name list[]; /* in the order of inode numbers */
};

static int compare_names(const void *a, const void *b)
{
	uint64_t x = ((const struct found_name *)a)->ino,
		 y = ((const struct found_name *)b)->ino;

	return (x > y) - (x < y);
}

static void note_name(
	struct scrub_names *n, uint64_t dir, const struct disk_entry *head, const void *name)
{
	const struct found_name key = {.ino = head->ino};
	struct found_name *f =
		bsearch(&key, n->list, n->count, sizeof(*n->list), compare_names);

	if (!f || f->len)
		return;
	f->dir = dir;
	f->len = head->name_bytes;
	memcpy(f->name, name, head->name_bytes);
	n->missing--;
}

/* Returns 1 when all are found. */
static int match_names(void *arg, struct disk_key key, const void *value, size_t len)
{
	struct scrub_names *n = arg;
	const uint8_t *bytes = value;
	struct disk_entry head;

	if ((key.high & 0xff) != DISK_ITEM_ENTRY)
		return 0;
	for (size_t at = 0; at + sizeof(head) <= len; at += sizeof(head) + head.name_bytes) {
		memcpy(&head, bytes + at, sizeof(head));
		if (!head.name_bytes || head.name_bytes > len - at - sizeof(head))
			return 0;
		note_name(n, key.high >> 8, &head, bytes + at + sizeof(head));
	}
	return n->missing == 0;
}

int scrub_names_find(struct volume *v, const struct suspect *list, unsigned count,
	struct scrub_names **out)
{
	struct scrub_names *n = rt_alloc(sizeof(*n) + count * sizeof(n->list[0]));
	const struct tree_walker to = {.item = match_names, .arg = n};
	unsigned kept = 0;

	*out = n;
	if (!n)
		return -ENOMEM;
	for (unsigned i = 0; i < count; i++)
		if (list[i].user == SUSPECT_FILE || list[i].user == SUSPECT_XATTR)
			n->list[n->count++].ino = list[i].ino;
	qsort(n->list, n->count, sizeof(n->list[0]), compare_names);
	for (unsigned i = 0; i < n->count; i++)
		if (i == 0 || n->list[i].ino != n->list[kept - 1].ino)
			n->list[kept++].ino = n->list[i].ino;
	n->count = n->missing = kept;
	if (kept)
		tree_walk(v->tree, 0, &to); /* names in pages that are lost stay unknown */
	return 0;
}

/* Finds the name of a directory in its parent, which it names. */
static bool search_parent(struct volume *v, struct scrub_names *one, uint64_t ino)
{
	struct disk_inode inode;
	int rc = tree_read(
		v->tree, disk_key(ino, DISK_ITEM_INODE, 0), &inode, sizeof(inode));

	if (rc != (int)sizeof(inode) || !S_ISDIR(inode.mode))
		return false;
	one->count = one->missing = 1;
	one->list[0] = (struct found_name){.ino = ino};
	tree_scan(v->tree, disk_key(inode.parent, DISK_ITEM_ENTRY, 0),
		disk_key(inode.parent, DISK_ITEM_ENTRY + 1, 0), true, match_names, one);
	return one->list[0].len != 0;
}

/* Puts the path together from its end, in out[begin, cap). Returns its begin, or 0 if a name is
 * not found, or there is no room. */
static size_t build_path(struct volume *v, const struct found_name *f,
	struct scrub_names *one, char *out, size_t cap)
{
	size_t begin = cap - 1;

	out[begin] = '\0';
	for (unsigned depth = 0; depth < PATH_DEPTH_MAX; depth++) {
		if (!f || !f->len || f->len + 2 > begin)
			return 0;
		begin -= f->len + 1;
		out[begin] = '/';
		memcpy(out + begin + 1, f->name, f->len);
		if (f->dir == DISK_INO_ROOT)
			return begin;
		f = search_parent(v, one, f->dir) ? &one->list[0] : NULL;
	}
	return 0;
}

void scrub_path_print(struct volume *v, const struct scrub_names *names, uint64_t ino,
	char *out, size_t cap)
{
	const struct found_name key = {.ino = ino};
	struct scrub_names *one = rt_alloc(sizeof(*one) + sizeof(one->list[0]));
	size_t begin = 0;

	if (names && one)
		begin = build_path(v,
			bsearch(&key, names->list, names->count, sizeof(key), compare_names),
			one, out, cap);
	rt_free(one);
	if (ino == DISK_INO_ROOT) {
		snprintf(out, cap, "/");
		return;
	}
	if (!begin) {
		snprintf(out, cap, "inode %llu", (unsigned long long)ino);
		return;
	}
	memmove(out, out + begin, cap - begin);
	for (; *out; out++) /* it goes into lines of text */
		if ((unsigned char)*out < ' ' || *out == 0x7f)
			*out = '?';
}
