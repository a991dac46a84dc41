/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pass 1: the tree's structure, and the users of pages.
 *
 * Checks each page, from the root down: it can be read, fits its checksum, and is sound by itself.
 * Its level and range of keys are those that its parent gives. Notes each page that the tree uses.
 * Also notes each page that an extent names, if the extent is sound by itself.
 *
 * Assumes only that superblock, log, descriptor table and catalog have passed.
 *
 * rebuild.c repairs the damage later. Repairs take new pages, so groups.c first ensures that no
 * page in use can be allocated.
 */
#include <stdio.h>

#include "mkfs/fsck/fsck_internal.h"

/* ---- users of pages ------------------------------------------------------------- */

void pages_claim(struct fsck *f, page_id pid, uint32_t length, uint64_t incarnation)
{
	struct fsck_store *s = store_of(f, pid);
	uint64_t *high = &s->group_high[page_group(pid)];

	for (uint64_t slot = pid_slot(pid), n = 0; n < length; n++) {
		if (bit_test(s->claimed, slot + n)) {
			bit_set(s->twice, slot + n);
			f->any_twice = true;
		}
		bit_set(s->claimed, slot + n);
	}
	*high = MAX(*high, incarnation);
	f->out->used_pages += length;
}

static void claim_xattr(struct fsck *f, const void *value, size_t len)
{
	struct xattr_item x;

	if (!xattr_valid(f, value, len, &x))
		return;
	for (unsigned i = 0; i < x.head.run_count; i++) {
		struct disk_extent run;

		memcpy(&run, x.runs + i * sizeof(run), sizeof(run));
		pages_claim(f, run.pid, run.length, run.incarnation);
	}
}

static void claim_items(struct fsck *f, const struct disk_leaf *leaf)
{
	for (unsigned i = 0; i < leaf->node.count; i++) {
		const struct disk_leaf_slot *s = &leaf->slot[i];
		const uint8_t *value = (const uint8_t *)leaf + s->offset;
		struct disk_extent e;

		f->highest_ino = MAX(f->highest_ino, key_ino(s->key));
		if (key_type(s->key) == DISK_ITEM_EXTENT &&
			extent_valid(f, s->key, value, s->length, &e)) {
			pages_claim(f, e.pid, e.length, e.incarnation);
			f->out->data_pages += e.length;
		} else if (key_type(s->key) == DISK_ITEM_XATTR) {
			claim_xattr(f, value, s->length);
		}
	}
}

static void tree_page(struct fsck *f, page_id pid, unsigned level, uint64_t incarnation)
{
	f->out->tree_pages++;
	pages_claim(f, pid, 1, incarnation);
	if (f->out->tree_pages % 64 == 0)
		fsck_progress(f, 1, f->out->tree_pages, 0);
}

/* ---- damage --------------------------------------------------------------------- */

static unsigned damage_code(const struct damage *d, int error)
{
	if (d->sound)
		return 102;
	return error == -EBADMSG ? 103 : error == -ESTALE ? 104 : 101;
}

/* Below a page that will be replaced, repairs wait for the next round. */
static bool parent_damaged(const struct fsck *f, page_id parent)
{
	for (unsigned i = 0; i < f->damage_count; i++)
		if (f->damage[i].pid == parent)
			return true;
	return false;
}

void damage_text(const struct damage *d, char *buf, size_t cap)
{
	char where[64] = "the root";

	if (d->parent != PID_NONE)
		snprintf(where, sizeof(where), "level %u, below page %#" PRIx64, d->level,
			d->parent);
	snprintf(buf, cap,
		"tree page %#" PRIx64 " (%s; inodes %" PRIu64 " to %" PRIu64 "): %s",
		d->pid, where, (uint64_t)(d->low >> 72), (uint64_t)((d->high - 1) >> 72),
		d->why);
}

/* The finding counts as repaired once rebuild.c has repaired it. */
static void tree_damage(
	struct fsck *f, const struct damage *found, int error, const char *why)
{
	struct damage d = *found;
	char text[300];

	if (f->o->repair && f->writable && parent_damaged(f, d.parent)) {
		f->damage_more = true;
		return;
	}
	d.code = damage_code(&d, error);
	snprintf(d.why, sizeof(d.why), "%s", why);
	damage_text(&d, text, sizeof(text));
	if (!fsck_found(f, d.code, "%s", text)) {
		f->tree_left += !d.sound;
		return;
	}
	if (f->damage_count == DAMAGE_MAX)
		f->damage_more = true;
	else
		f->damage[f->damage_count++] = d;
}

int fsck_pass1(struct fsck *f)
{
	struct walk *w = walk_open(f, (struct disk_key){0, 0});
	int rc;

	if (!w)
		return -ENOMEM;
	w->page = tree_page;
	w->damage = tree_damage;
	while ((rc = walk_leaf(w)) > 0) {
		claim_items(f, &w->leaf);
		rc = elsewhere_check(f);
		if (rc)
			break;
	}
	walk_close(w);
	fsck_progress(f, 1, f->out->tree_pages, f->out->tree_pages);
	return rc;
}
