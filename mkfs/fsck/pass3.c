/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pass 3: names and inodes belong together.
 *
 * Checks:
 *
 * - Each entry names an inode that exists, with its type.
 * - Each directory has one name, in its parent.
 * - Parents lead to the root (no loops).
 * - Each inode has as many names as its link count.
 * - An inode without a name is listed as an orphan.
 *
 * Assumes pass 2: entries are sound, and each directory's own counts follow from its entries.
 *
 * Bounded memory: the inodes are taken in windows, as many at once as fit, in the order of their
 * numbers. For each window all entries are read once, and those that name an inode of the window
 * are counted. With 256 MiB a window has six million inodes.
 */
#include <dirent.h>

#include "mkfs/fsck/fsck_internal.h"

struct row {
	uint64_t ino;
	uint64_t parent;    /* a directory's */
	uint64_t first_dir; /* directory that names it */
	uint32_t mode;
	uint32_t nlink;
	uint32_t names;
	bool by_parent; /* its parent names it */
	bool orphan;    /* listed as an orphan */
	bool reached;   /* from the root */
	bool extra;     /* too many names: all except one of keep_dir are removed */
	bool kept;
};

struct window {
	struct row *row;
	size_t count, max;
	uint64_t from, to; /* inode numbers; to: behind the last */
	bool last;
	bool extra; /* a row has extra names */
	bool changed;
};

static struct row *row_find(struct window *w, uint64_t ino)
{
	size_t low = 0, high = w->count;

	while (low < high) {
		size_t middle = low + (high - low) / 2;

		if (w->row[middle].ino < ino)
			low = middle + 1;
		else
			high = middle;
	}
	return low < w->count && w->row[low].ino == ino ? &w->row[low] : NULL;
}

static int fill_visit(
	struct fsck *f, void *arg, struct disk_key key, const void *value, size_t len)
{
	struct window *w = arg;
	struct disk_inode inode;

	if (key_type(key) != DISK_ITEM_INODE || key.low != 0 ||
		key_ino(key) == DISK_INO_SYSTEM)
		return 0;
	if (w->count == w->max) {
		w->to = key_ino(key);
		w->last = false;
		return 1;
	}
	/* An inode that pass 2 left damaged still exists. */
	inode = (struct disk_inode){0};
	memcpy(&inode, value, len == sizeof(inode) ? len : 0);
	w->row[w->count++] = (struct row){
		.ino = key_ino(key),
		.parent = inode.parent,
		.mode = inode.mode,
		.nlink = inode.nlink,
	};
	return 0;
}

static int window_fill(struct fsck *f, struct window *w)
{
	int rc;

	w->count = 0;
	w->to = DISK_INO_MAX + 1;
	w->last = true;
	w->extra = false;
	rc = items_scan(f, disk_key(MAX(w->from, 1u), 0, 0), key_narrow(KEY_MAX), 3,
		fill_visit, w);
	return MIN(rc, 0);
}

/* ---- names ----------------------------------------------------------------------- */

static int entry_count(
	struct fsck *f, struct window *w, uint64_t dir, const struct disk_entry *e)
{
	struct row *r = row_find(w, e->ino);
	char text[NAME_TEXT];

	name_text(text, e->name, e->name_bytes);
	if (!r) {
		if (fsck_found(f, 302,
			    "directory %" PRIu64 ": \"%s\" is inode %" PRIu64
			    ", which does not exist",
			    dir, text, e->ino))
			return fsck_repaired(f, entry_drop(f, dir, e));
		return 0;
	}
	r->names++;
	if (r->names == 1)
		r->first_dir = dir;
	r->by_parent |= S_ISDIR(r->mode) && dir == r->parent;
	if (mode_dt(r->mode) != DT_UNKNOWN && e->type != mode_dt(r->mode) &&
		fsck_found(f, 303,
			"directory %" PRIu64 ": \"%s\" has type %u where inode %" PRIu64
			" has %u",
			dir, text, e->type, e->ino, mode_dt(r->mode)))
		return fsck_repaired(f, entry_set_type(f, dir, e, mode_dt(r->mode)));
	return 0;
}

/* After a change of the tree the current item is an old copy. Its other entries are visited in the
 * next round, which is needed anyway. */
static int count_visit(
	struct fsck *f, void *arg, struct disk_key key, const void *value, size_t len)
{
	struct window *w = arg;
	uint64_t edits = f->edits;
	const struct disk_entry *e;
	size_t at = 0;
	int error;

	if (key_type(key) != DISK_ITEM_ENTRY)
		return 0;
	while (disk_entry_step(value, len, &at, &e, &error)) {
		int rc;

		if (e->ino < w->from || e->ino >= w->to)
			continue;
		rc = entry_count(f, w, key_ino(key), e);
		if (rc)
			return rc;
		if (edits != f->edits) {
			edits = f->edits;
			w->changed = true;
		}
	}
	return 0;
}

/* Removes the extra names of directories. */
static int extra_visit(
	struct fsck *f, void *arg, struct disk_key key, const void *value, size_t len)
{
	struct window *w = arg;
	uint64_t dir = key_ino(key);
	const struct disk_entry *e;
	size_t at = 0;
	int error;

	if (key_type(key) != DISK_ITEM_ENTRY)
		return 0;
	while (disk_entry_step(value, len, &at, &e, &error)) {
		struct row *r =
			e->ino < w->from || e->ino >= w->to ? NULL : row_find(w, e->ino);
		char text[NAME_TEXT];
		bool keep;
		int rc;

		if (!r || !r->extra)
			continue;
		keep = !r->kept && r->ino != DISK_INO_ROOT &&
		       dir == (r->by_parent ? r->parent : r->first_dir);
		if (keep) {
			r->kept = true;
			continue;
		}
		if (!fsck_found(f, 304,
			    "directory %" PRIu64
			    " has another name, \"%s\" in directory %" PRIu64,
			    r->ino, name_text(text, e->name, e->name_bytes), dir))
			continue;
		r->names--;
		rc = fsck_repaired(f, entry_drop(f, dir, e));
		if (rc)
			return rc;
		w->changed = true;
	}
	return 0;
}

/* ---- orphans --------------------------------------------------------------------- */

static int orphan_visit(
	struct fsck *f, void *arg, struct disk_key key, const void *value, size_t len)
{
	struct window *w = arg;
	struct row *r;

	if (key.low < w->from || key.low >= w->to)
		return 0;
	r = row_find(w, key.low);
	if (r) {
		r->orphan = true;
		return 0;
	}
	if (fsck_found(f, 309,
		    "an orphan is listed, inode %" PRIu64 ", that does not exist",
		    key.low))
		return fsck_repaired(f, repair_delete(f, key));
	return 0;
}

static int orphans_scan(struct fsck *f, struct window *w)
{
	return items_scan(f, disk_key(DISK_INO_SYSTEM, DISK_ITEM_ORPHAN, 0),
		disk_key(DISK_INO_SYSTEM, DISK_ITEM_ORPHAN + 1, 0), 0, orphan_visit, w);
}

/* ---- each inode ------------------------------------------------------------------ */

struct fix {
	uint64_t ino;
	bool set_nlink, set_parent;
	uint32_t nlink;
	uint64_t parent;
	bool orphan; /* listed after the repair */
};

static int fix_body(struct fsck *f, struct txn *x, void *arg)
{
	const struct fix *fix = arg;
	struct disk_key key = disk_key(fix->ino, DISK_ITEM_INODE, 0);
	struct disk_key orphan = disk_key(DISK_INO_SYSTEM, DISK_ITEM_ORPHAN, fix->ino);
	struct disk_inode inode;
	int rc = txn_read(x, key, &inode, sizeof(inode));

	if (rc < 0)
		return rc;
	if (fix->set_nlink)
		inode.nlink = fix->nlink;
	if (fix->set_parent)
		inode.parent = fix->parent;
	inode.changes++;
	rc = txn_write(x, key, &inode, sizeof(inode));
	if (rc)
		return rc;
	return fix->orphan ? txn_write(x, orphan, "", 0) : txn_delete(x, orphan);
}

static int row_fix(struct fsck *f, struct row *r, const struct fix *fix)
{
	int rc = repair_run(f, fix_body, (void *)fix);

	if (fix->set_parent)
		r->parent = fix->parent;
	return fsck_repaired(f, rc);
}

/* Repairs an inode without a name. */
static int check_nameless(struct fsck *f, struct row *r)
{
	struct fix fix = {.ino = r->ino, .orphan = true};
	int rc;

	if (r->nlink == 0) {
		if (!r->orphan && fsck_found(f, 308,
					  "inode %" PRIu64
					  " has no links and is not listed as an orphan",
					  r->ino))
			return row_fix(f, r, &fix);
		return 0;
	}
	if (!fsck_found(f, 306, "inode %" PRIu64 " (%s) has no name", r->ino,
		    S_ISDIR(r->mode) ? "a directory" : "a file"))
		return 0;
	rc = attach_lost(f, r->ino);
	r->parent = 0; /* not followed: it is new */
	r->reached = rc == 0;
	return fsck_repaired(f, rc);
}

static int check_directory(struct fsck *f, struct row *r)
{
	struct fix fix = {.ino = r->ino, .set_parent = true, .parent = r->first_dir};

	if (r->by_parent)
		return 0;
	if (fsck_found(f, 305,
		    "directory %" PRIu64 " has %" PRIu64
		    " as its parent, but directory %" PRIu64 " names it",
		    r->ino, r->parent, r->first_dir))
		return row_fix(f, r, &fix);
	return 0;
}

static int check_row(struct fsck *f, struct row *r)
{
	struct fix fix = {.ino = r->ino, .set_nlink = true, .nlink = r->names};
	int rc = 0;

	if (mode_dt(r->mode) == DT_UNKNOWN || r->ino == DISK_INO_ROOT)
		return 0;
	if (r->names == 0)
		return check_nameless(f, r);
	if (S_ISDIR(r->mode)) {
		rc = check_directory(f, r);
		fix.set_nlink = r->nlink == 0;
		fix.nlink = 2; /* plus its subdirectories: pass 2 of the next round */
		if (r->nlink != 0 && !r->orphan)
			return rc;
	} else if (r->nlink == r->names && !r->orphan) {
		return 0;
	}
	if (rc == 0 && r->nlink != 0 && r->orphan &&
		(S_ISDIR(r->mode) || r->nlink == r->names)) {
		fix.set_nlink = false;
		if (fsck_found(f, 309,
			    "inode %" PRIu64 " is listed as an orphan, but has names",
			    r->ino))
			return row_fix(f, r, &fix);
		return 0;
	}
	if (rc == 0 && fsck_found(f, 307,
			       "inode %" PRIu64 " has a link count of %u and %u names",
			       r->ino, r->nlink, r->names))
		return row_fix(f, r, &fix);
	return rc;
}

/* ---- connections ----------------------------------------------------------------- */

/* Returns the parent of a directory, in the window or not. 0: it has none, or is no directory. */
static int parent_of(struct fsck *f, struct window *w, uint64_t ino, uint64_t *parent)
{
	struct row *r = row_find(w, ino);
	struct disk_inode inode;
	int rc;

	*parent = 0;
	if (r) {
		if (S_ISDIR(r->mode) && r->nlink)
			*parent = r->parent;
		return 0;
	}
	if (ino >= w->from && ino < w->to)
		return 0;
	rc = item_get(f, disk_key(ino, DISK_ITEM_INODE, 0), &inode, sizeof(inode));
	if (rc == (int)sizeof(inode) && S_ISDIR(inode.mode) && inode.nlink)
		*parent = inode.parent;
	return rc == -ENOENT || rc == -ERANGE ? 0 : MIN(rc, 0);
}

/* Follows parents from r. Returns 1 for a loop (Brent, 1980: memory for two places only). Returns 0
 * if they lead to the root, or to a place that other findings report. */
static int follow_parents(struct fsck *f, struct window *w, struct row *r)
{
	uint64_t at = r->ino, mark = at, steps = 0, limit = 2;

	for (;;) {
		struct row *here = row_find(w, at);
		uint64_t parent;
		int rc;

		if (at == DISK_INO_ROOT || (here && here->reached))
			return 0;
		rc = parent_of(f, w, at, &parent);
		if (rc || parent == 0)
			return rc;
		at = parent;
		if (at == mark)
			return 1;
		if (++steps == limit) {
			mark = at;
			limit *= 2;
			steps = 0;
		}
	}
}

static void mark_reached(struct window *w, struct row *r)
{
	while (r && !r->reached) {
		r->reached = true;
		r = row_find(w, r->parent);
	}
}

static int check_loop(struct fsck *f, struct window *w, struct row *r)
{
	int rc;

	if (!S_ISDIR(r->mode) || r->ino == DISK_INO_ROOT || r->nlink == 0 ||
		r->names == 0)
		return 0;
	rc = follow_parents(f, w, r);
	if (rc == 0)
		mark_reached(w, r);
	if (rc <= 0)
		return rc;
	/* r may be in the loop, or below it. Only a directory in the loop must move. */
	for (uint64_t at = r->parent, steps = 0; at != r->ino; steps++) {
		rc = parent_of(f, w, at, &at);
		if (rc)
			return rc;
		if (at == 0 || steps > 1000000)
			return 0;
		if (row_find(w, at) && row_find(w, at)->reached)
			return 0;
		if (steps > f->out->directories)
			return 0; /* below it: another directory moves */
	}
	if (!fsck_found(f, 310, "directory %" PRIu64 " is one of a loop of directories",
		    r->ino))
		return 0;
	rc = entry_drop_ino(f, r->parent, r->ino);
	if (rc == 0)
		rc = attach_lost(f, r->ino);
	r->reached = rc == 0;
	return fsck_repaired(f, rc);
}

/* ---- a window -------------------------------------------------------------------- */

static void mark_extra(struct window *w)
{
	for (size_t i = 0; i < w->count; i++) {
		struct row *r = &w->row[i];

		r->extra =
			S_ISDIR(r->mode) && r->names > (r->ino == DISK_INO_ROOT ? 0 : 1);
		w->extra |= r->extra;
	}
}

static int window_check(struct fsck *f, struct window *w)
{
	const struct disk_key first = disk_key(1, 0, 0), end = key_narrow(KEY_MAX);
	int rc = items_scan(f, first, end, 3, count_visit, w);

	if (rc == 0)
		rc = orphans_scan(f, w);
	if (rc == 0)
		mark_extra(w);
	if (rc == 0 && w->extra)
		rc = items_scan(f, first, end, 3, extra_visit, w);
	for (size_t i = 0; i < w->count && rc == 0; i++)
		rc = check_row(f, &w->row[i]);
	for (size_t i = 0; i < w->count && rc == 0; i++)
		rc = check_loop(f, w, &w->row[i]);
	return rc;
}

int fsck_pass3(struct fsck *f)
{
	struct window w = {.from = 1};
	int rc = 0;

	w.max = MAX(f->memory_bytes / sizeof(struct row), 64u);
	w.max = MIN(w.max, f->out->inodes + 1024);
	w.row = rt_alloc(w.max * sizeof(*w.row));
	if (!w.row)
		return -ENOMEM;
	do {
		rc = window_fill(f, &w);
		if (rc == 0)
			rc = window_check(f, &w);
		w.from = w.to;
	} while (rc == 0 && !w.last);
	rt_free(w.row);
	return rc;
}
