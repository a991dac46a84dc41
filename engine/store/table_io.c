/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reading and writing blocks of the descriptor table.
 *
 * Each block has two copies, and a write goes to the one that is not the newest. So a write that a
 * power cut tears leaves the newest as it was, and the log still has the descriptors of the torn
 * one. The log is let go (store_table_oldest) only once the flush has ended well.
 *
 * Recovery may find a copy that no flush has made durable (store_redo). Until it is durable, a
 * power cut would leave only the other copy, which must not be written. So the copy that is found
 * is written again, as it is. If it is durable already, that changes no byte, so nothing of it can
 * be torn. If not, the log still has its descriptors.
 */
#include "engine/store/store_internal.h"

#include <errno.h>

#define BLOCK_BYTES sizeof(struct disk_table_block)

uint64_t table_block_place(const struct store *s, uint64_t block, unsigned copy)
{
	return s->sb.table_offset + (2 * block + copy) * BLOCK_BYTES;
}

/* ---- reading --------------------------------------------------------------------- */

enum table_copy table_copy_check(
	struct store *s, const struct disk_table_block *b, uint64_t block)
{
	const uint64_t *words = (const uint64_t *)b;

	if (b->magic == DISK_MAGIC_TABLE && b->block == block &&
		b->generation <= STORE_COUNTER_MAX &&
		b->checksum == checksummer_sum_table(s->checksums, b))
		return TABLE_COPY_WHOLE;
	for (size_t i = 0; i < BLOCK_BYTES / sizeof(*words); i++)
		if (words[i])
			return TABLE_COPY_DAMAGED;
	return TABLE_COPY_EMPTY;
}

/* The newest of the two copies becomes the entry's image. The entry is LOADING: ours. */
static enum table_state block_choose(
	struct store *s, struct table_entry *e, struct disk_table_block *second)
{
	enum table_copy first_state = table_copy_check(s, e->image, e->block);
	enum table_copy second_state = table_copy_check(s, second, e->block);
	uint64_t first_page = e->block * DISK_TABLE_SLOTS;

	if (first_state != TABLE_COPY_WHOLE && second_state != TABLE_COPY_WHOLE) {
		counter_add(&s->counters.checksum_failures, 1);
		weft_log(3,
			"store: block %llu of the descriptor table is damaged in both "
			"copies: "
			"slots %llu to %llu cannot be read; run fsck.weft",
			(unsigned long long)e->block, (unsigned long long)first_page,
			(unsigned long long)MIN(
				first_page + DISK_TABLE_SLOTS, s->sb.page_count) -
				1);
		return TABLE_DAMAGED;
	}
	e->copy =
		first_state != TABLE_COPY_WHOLE ||
		(second_state == TABLE_COPY_WHOLE && second->generation > e->image->generation);
	e->suspect = first_state == TABLE_COPY_DAMAGED || second_state == TABLE_COPY_DAMAGED;
	if (e->suspect)
		weft_log(4,
			"store: the %s copy of block %llu of the descriptor table is "
			"damaged; "
			"the other one is used",
			e->copy ? "first" : "second", (unsigned long long)e->block);
	if (e->copy)
		memcpy(e->image, second, BLOCK_BYTES);
	e->generation = e->image->generation;
	return TABLE_VALID;
}

/* Writes the copies again that were found. */
static void found_write(
	struct store *s, struct table_load *l, const enum table_state *state)
{
	const struct table *t = &s->table;
	unsigned of[TABLE_LOAD_MAX];
	unsigned count = 0;

	for (unsigned i = 0; i < l->count; i++) {
		const struct table_entry *e = &t->entries[l->entry[i]];

		if (l->result[i] || state[i] != TABLE_VALID)
			continue;
		l->io[count] = (struct rt_io){.op = RT_IO_WRITE,
			.offset = table_block_place(s, e->block, e->copy),
			.iov = l->iov[i],
			.iov_count = 1};
		of[count++] = i;
	}
	if (!count)
		return;
	store_run(s->disk, l->io, count);
	counter_add(&s->counters.table_writes, count);
	counter_add(&s->counters.write_requests, count);
	for (unsigned n = 0; n < count; n++)
		l->result[of[n]] = l->io[n].result;
}

/* A request for block i of the load alone. */
static struct rt_io load_request(const struct store *s, struct table_load *l, unsigned i)
{
	return (struct rt_io){.op = RT_IO_READ,
		.offset = table_block_place(s, s->table.entries[l->entry[i]].block, 0),
		.iov = l->iov[i],
		.iov_count = 2};
}

/* The result of block i, whose request has ended. A bad sector must not take the other blocks of
 * the request along. */
static int load_result(
	struct store *s, struct table_load *l, const struct rt_io *io, unsigned i)
{
	struct rt_io alone = load_request(s, l, i);

	if (!io->result || io->iov_count == alone.iov_count)
		return io->result;
	rt_disk_run(s->disk, &alone, 1);
	return alone.result;
}

/* Reads both copies of each block, adjacent blocks with one request. */
static void load_read(struct store *s, struct table_load *l)
{
	const struct table_entry *entries = s->table.entries;
	unsigned count = 0, i = 0;

	for (unsigned k = 0; k < l->count; k++) {
		const struct table_entry *e = &entries[l->entry[k]];

		l->iov[k][0] = (struct iovec){e->image, BLOCK_BYTES};
		l->iov[k][1] = (struct iovec){l->second + k * BLOCK_BYTES, BLOCK_BYTES};
		if (k && e->block == entries[l->entry[k - 1]].block + 1)
			l->io[count - 1].iov_count += 2;
		else
			l->io[count++] = load_request(s, l, k);
	}
	store_run(s->disk, l->io, count);
	for (unsigned n = 0; n < count; n++)
		for (unsigned k = 0; k < l->io[n].iov_count; k += 2, i++)
			l->result[i] = load_result(s, l, &l->io[n], i);
	counter_add(&s->counters.table_reads, l->count);
	counter_add(&s->counters.read_requests, count);
}

void table_load_run(struct store *s, struct table_load *l)
{
	struct table *t = &s->table;
	enum table_state state[TABLE_LOAD_MAX] = {TABLE_FREE};
	bool again = !s->read_only &&
		     (t->redo == STORE_REDO_DESCRIPTORS || t->redo == STORE_REDO_RUNNING);

	rt_mutex_unlock(&t->lock);
	load_read(s, l);
	for (unsigned i = 0; i < l->count; i++) {
		/* One copy alone would do only if the other, unreadable now, were not
		 * newer. */
		if (!l->result[i])
			state[i] = block_choose(s, &t->entries[l->entry[i]],
				(void *)(l->second + i * BLOCK_BYTES));
	}
	if (again)
		found_write(s, l, state);
	rt_mutex_lock(&t->lock);
	t->written_again |= again;
	for (unsigned i = 0; i < l->count; i++) {
		struct table_entry *e = &t->entries[l->entry[i]];

		if (l->result[i])
			continue; /* the caller forgets it */
		e->state = (uint8_t)state[i];
		t->loading--;
	}
}

/* ---- writing --------------------------------------------------------------------- */

/* Makes the copies that were written again durable. 0 or -errno. */
static int found_flush(struct store *s)
{
	struct table *t = &s->table;
	bool due;
	int rc;

	rt_mutex_lock(&t->lock);
	due = t->written_again;
	t->written_again = false;
	rt_mutex_unlock(&t->lock);
	rc = due ? store_flush(s) : 0;
	if (rc) {
		rt_mutex_lock(&t->lock);
		t->written_again = true;
		rt_mutex_unlock(&t->lock);
	}
	return rc;
}

/* Copies blocks that are due, under the lock: installs may go on while they are written. Returns
 * false if found_flush must come first. */
static bool batch_pick(struct store *s, struct table_batch *w, lsn_t upto)
{
	struct table *t = &s->table;
	bool durable;

	w->count = 0;
	rt_mutex_lock(&t->lock);
	durable = !t->written_again;
	for (struct table_entry *e = table_dirty_first(t);
		durable && e && w->count < TABLE_WRITE_MAX; e = table_dirty_after(t, e)) {
		struct disk_table_block *b =
			(void *)(t->write_memory + (size_t)w->count * BLOCK_BYTES);

		if (e->write != TABLE_IDLE || e->lsn == LSN_MAX || e->lsn >= upto)
			continue;
		memcpy(b, e->image, BLOCK_BYTES);
		b->generation = e->generation + 1;
		e->write = TABLE_WRITING;
		e->writing_lsn = e->lsn;
		e->lsn = LSN_MAX;
		w->image[w->count] = b;
		w->entry[w->count] = (uint32_t)(e - t->entries);
		w->order[w->count] = (struct store_order){
			.place = table_block_place(s, e->block, !e->copy), .index = w->count};
		w->count++;
	}
	rt_mutex_unlock(&t->lock);
	return durable;
}

/* Sorts by place and merges neighbours: the second copy of one block, the first of the next. */
static void batch_submit(struct store *s, struct table_batch *w)
{
	w->io_count = 0;
	store_sort(w->order, w->count);
	for (unsigned i = 0; i < w->count; i++) {
		struct disk_table_block *b = w->image[w->order[i].index];

		b->checksum = checksummer_sum_table(s->checksums, b);
		w->iov[i] = (struct iovec){b, BLOCK_BYTES};
		if (i && w->order[i - 1].place + BLOCK_BYTES == w->order[i].place) {
			w->ios[w->io_count - 1].iov_count++;
			continue;
		}
		w->ios[w->io_count++] = (struct rt_io){.op = RT_IO_WRITE,
			.offset = w->order[i].place,
			.iov = &w->iov[i],
			.iov_count = 1};
	}
	store_run(s->disk, w->ios, w->io_count);
	counter_add(&s->counters.table_writes, w->count);
	counter_add(&s->counters.write_requests, w->io_count);
}

/* Notes for each block how its write went. 0, or the first error. */
static int batch_end(struct store *s, struct table_batch *w)
{
	struct table *t = &s->table;
	unsigned next = 0;
	int rc = 0;

	rt_mutex_lock(&t->lock);
	for (unsigned i = 0; i < w->io_count; i++) {
		const struct rt_io *io = &w->ios[i];

		if (io->result && !rc)
			rc = io->result;
		for (unsigned k = 0; k < io->iov_count; k++, next++) {
			struct table_entry *e =
				&t->entries[w->entry[w->order[next].index]];

			e->write = io->result ? TABLE_WRITE_FAILED : TABLE_WRITTEN;
		}
	}
	rt_mutex_unlock(&t->lock);
	return rc;
}

/* After the flush: the written blocks are on disk, or, if it failed, none is. */
static void writes_settle(struct store *s, bool flushed)
{
	struct table *t = &s->table;
	struct table_entry *next;

	rt_mutex_lock(&t->lock);
	for (struct table_entry *e = table_dirty_first(t); e; e = next) {
		next = table_dirty_after(t, e);
		if (e->write == TABLE_IDLE)
			continue;
		if (e->write == TABLE_WRITTEN && flushed) {
			e->generation++;
			e->copy = !e->copy;
			e->suspect = false;
		} else {
			e->lsn = MIN(e->lsn, e->writing_lsn);
		}
		e->write = TABLE_IDLE;
		e->writing_lsn = LSN_MAX;
		if (e->lsn == LSN_MAX)
			table_unmark_dirty(t, e);
	}
	table_trim(t);
	rt_mutex_unlock(&t->lock);
	rt_cond_broadcast(&t->change);
}

int store_table_write(struct store *s, lsn_t upto)
{
	struct table *t = &s->table;
	struct table_batch *w = t->write_batch;
	bool any = false;
	int rc = 0, failed;

	if (s->read_only)
		return 0;
	rt_mutex_lock(&t->write_lock);
	for (;;) {
		do {
			failed = found_flush(s);
		} while (!failed && !batch_pick(s, w, upto));
		rc = rc ? rc : failed;
		if (failed || !w->count)
			break;
		any = true;
		batch_submit(s, w);
		failed = batch_end(s, w);
		rc = rc ? rc : failed;
	}
	if (any) {
		failed = store_flush(s);
		rc = rc ? rc : failed;
		writes_settle(s, failed == 0);
	}
	rt_mutex_unlock(&t->write_lock);
	return rc;
}
