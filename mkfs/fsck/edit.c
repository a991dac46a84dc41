/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Transactions that repair. They are the tree's own, so after a crash each repair is whole or
 * absent.
 *
 * No repair frees pages. The pages of a removed item are leaked. The next round's pass 4, which
 * knows all users, frees them. So a page that two items named is never freed while one of them has
 * it.
 */
#include "mkfs/fsck/fsck_internal.h"

#define RESTARTS_MAX 10000u
#define DELETE_BATCH 64u

int repair_run(struct fsck *f, repair_body body, void *arg)
{
	struct txn *x;
	int rc = txn_begin(f->v->tree, true, &x);

	if (rc)
		return rc;
	for (unsigned restarts = 0;; restarts++) {
		rc = body(f, x, arg);
		if (rc == 0)
			rc = txn_commit(x, NULL);
		if (rc != -EAGAIN)
			break;
		if (restarts == RESTARTS_MAX) {
			rc = -EIO;
			break;
		}
		txn_restart(x);
	}
	txn_end(x);
	f->edits++;
	return rc;
}

struct one {
	struct disk_key key, from;
	const void *value;
	size_t len;
	bool deletes, moves;
};

static int one_body(struct fsck *f, struct txn *x, void *arg)
{
	const struct one *e = arg;
	int rc = 0;

	if (e->moves)
		rc = txn_delete(x, e->from);
	if (rc)
		return rc;
	return e->deletes ? txn_delete(x, e->key)
			  : txn_write(x, e->key, e->value, e->len);
}

int repair_write(struct fsck *f, struct disk_key key, const void *value, size_t len)
{
	struct one e = {.key = key, .value = value, .len = len};

	return repair_run(f, one_body, &e);
}

int repair_delete(struct fsck *f, struct disk_key key)
{
	struct one e = {.key = key, .deletes = true};

	return repair_run(f, one_body, &e);
}

int repair_move(struct fsck *f, struct disk_key from, struct disk_key to,
	const void *value, size_t len)
{
	struct one e = {
		.key = to, .from = from, .value = value, .len = len, .moves = true};

	return repair_run(f, one_body, &e);
}

struct range {
	struct disk_key from, to;
	unsigned deleted;
};

static int range_body(struct fsck *f, struct txn *x, void *arg)
{
	struct range *r = arg;
	struct disk_key at = r->from, found;
	uint8_t value[DISK_VALUE_MAX];

	for (r->deleted = 0; r->deleted < DELETE_BATCH; r->deleted++) {
		int rc = txn_next(x, at, r->to, &found, value, sizeof(value));

		if (rc == -ENOENT)
			break;
		if (rc >= 0)
			rc = txn_delete(x, found);
		if (rc < 0)
			return rc;
		at = found;
	}
	return 0;
}

int repair_delete_range(struct fsck *f, struct disk_key from, struct disk_key to)
{
	struct range r = {.from = from, .to = to};
	int rc;

	do {
		rc = repair_run(f, range_body, &r);
	} while (rc == 0 && r.deleted == DELETE_BATCH);
	return rc;
}

struct cut {
	struct disk_key key;
	struct disk_extent e;
	uint32_t first, count;
};

/* The part before the cut keeps the key, the part behind it gets its own. */
static int cut_body(struct fsck *f, struct txn *x, void *arg)
{
	const struct cut *c = arg;
	struct disk_extent left = c->e, right = c->e;
	struct disk_key key = c->key;
	int rc;

	left.length = c->first;
	right.pid += c->first + c->count;
	right.length = c->e.length - c->first - c->count;
	if (left.length)
		rc = txn_write(x, key, &left, sizeof(left));
	else
		rc = txn_delete(x, key);
	key.low += c->first + c->count;
	if (rc == 0 && right.length)
		rc = txn_write(x, key, &right, sizeof(right));
	return rc;
}

int repair_cut_extent(struct fsck *f, struct disk_key key, const struct disk_extent *e,
	uint32_t first, uint32_t count)
{
	struct cut c = {.key = key, .e = *e, .first = first, .count = count};

	WEFT_ASSERT(count > 0 && first + count <= e->length);
	return repair_run(f, cut_body, &c);
}
