/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Mini-transactions: byte ranges collected under exclusive latches become one log record.
 *
 * Keeps invariant 4: versions go up by one per record. A page's first record after its last
 * persisted version (FRAME_NEED_FULL) carries the full image, as file data always does. Keeps the
 * tail safe: rec_lsn is set, to a lower bound, before the record is appended. So a checkpoint which
 * does not see the record yet sees the pin (checkpoint.c).
 */
#include "engine/cache/mtr.h"
#include "engine/cache/cache_internal.h"

/* ranges closer than this become one: a range costs 4 bytes itself */
#define NEAR_BYTES  8
#define FULL_BYTES  2048 /* a page with more changed bytes is logged in full */
#define SCRATCH_MAX 8192

static uint32_t room_for(unsigned pages)
{
	return sizeof(struct disk_log_record) +
	       pages * (uint32_t)(sizeof(struct disk_log_page) + PAGE_SIZE);
}

int mtr_begin(struct mtr *m, struct cache *c, unsigned pages)
{
	WEFT_ASSERT(pages <= MTR_PAGES_MAX);
	m->cache = c;
	m->page_count = 0;
	if (c->options.read_only)
		return -EROFS;
	return log_reserve(c->log, room_for(pages), false, &m->room);
}

static struct mtr_page *page_add(struct mtr *m, const struct guard *g)
{
	struct mtr_page *p;

	WEFT_ASSERT(m->page_count < MTR_PAGES_MAX &&
		    room_for(m->page_count + 1) <= m->room.bytes);
	p = &m->page[m->page_count++];
	p->guard = *g;
	p->full = false;
	p->changed = false;
	p->move_count = 0;
	p->range_count = 0;
	return p;
}

static struct mtr_page *page_held(struct mtr *m, page_id pid)
{
	for (unsigned i = 0; i < m->page_count; i++)
		if (atomic_load_explicit(
			    &m->page[i].guard.frame->pid, memory_order_relaxed) == pid)
			return &m->page[i];
	return NULL;
}

struct mtr_page *mtr_latch(struct mtr *m, page_id pid, uint64_t incarnation, int *error)
{
	struct mtr_page *p = page_held(m, pid);
	struct guard g;

	if (p) {
		*error = incarnation && p->guard.frame->incarnation != incarnation
				 ? -EAGAIN
				 : 0;
		return *error ? NULL : p;
	}
	*error = guard_try_exclusive(m->cache, pid, incarnation, &g);
	return *error ? NULL : page_add(m, &g);
}

struct mtr_page *mtr_upgrade(struct mtr *m, struct guard *g, int *error)
{
	for (unsigned i = 0; i < m->page_count; i++) {
		struct mtr_page *p = &m->page[i];

		if (p->guard.frame != g->frame)
			continue;
		/* held since before or after the optimistic look; the word taken then
		 * decides */
		*error = ((p->guard.latch ^ g->latch) & LATCH_VERSION_MASK) ? -EAGAIN : 0;
		g->kind = GUARD_NONE;
		return *error ? NULL : p;
	}
	*error = guard_try_upgrade(m->cache, g);
	return *error ? NULL : page_add(m, g);
}

int mtr_prepare_fresh(struct cache *c, page_id pid, uint64_t incarnation)
{
	struct guard g;
	int rc = guard_fresh(c, pid, incarnation, &g);

	guard_release(c, &g);
	return rc;
}

struct mtr_page *mtr_fresh(struct mtr *m, page_id pid, uint64_t incarnation, int *error)
{
	struct mtr_page *p = mtr_latch(m, pid, incarnation, error);

	if (p)
		p->full = true;
	return p;
}

/* ---- ranges ---------------------------------------------------------------------- */

/* Joins the two neighbours with the smallest gap; makes room for one more. */
static void join_nearest(struct mtr_page *p)
{
	unsigned best = 0, best_gap = UINT32_MAX;

	for (unsigned i = 0; i + 1 < p->range_count; i++) {
		unsigned gap = p->range[i + 1].offset -
			       (p->range[i].offset + p->range[i].length);

		if (gap < best_gap) {
			best_gap = gap;
			best = i;
		}
	}
	p->range[best].length =
		(uint16_t)(p->range[best + 1].offset + p->range[best + 1].length -
			   p->range[best].offset);
	memmove(&p->range[best + 1], &p->range[best + 2],
		(p->range_count - best - 2) * sizeof(p->range[0]));
	p->range_count--;
}

static void add_range(struct mtr_page *p, unsigned offset, unsigned len)
{
	unsigned at = 0, last, end = offset + len;

	WEFT_ASSERT(len > 0 && end <= PAGE_SIZE && p->guard.kind == GUARD_EXCLUSIVE);
	p->changed = true;
	if (p->full)
		return;
	while (at < p->range_count &&
		(unsigned)p->range[at].offset + p->range[at].length + NEAR_BYTES < offset)
		at++;
	/* ranges at .. last - 1 touch or nearly touch the new one */
	last = at;
	while (last < p->range_count && p->range[last].offset <= end + NEAR_BYTES) {
		offset = MIN(offset, (unsigned)p->range[last].offset);
		end = MAX(end, (unsigned)p->range[last].offset + p->range[last].length);
		last++;
	}
	if (last == at) {
		if (p->range_count == MTR_RANGES_MAX) {
			join_nearest(p);
			add_range(p, offset, end - offset);
			return;
		}
		memmove(&p->range[at + 1], &p->range[at],
			(p->range_count - at) * sizeof(p->range[0]));
		p->range_count++;
	} else {
		memmove(&p->range[at + 1], &p->range[last],
			(p->range_count - last) * sizeof(p->range[0]));
		p->range_count -= last - at - 1;
	}
	p->range[at] =
		(struct disk_log_range){(uint16_t)offset, (uint16_t)(end - offset)};
}

/*
 * A move can be logged as such if redo finds the same source bytes: none of them is in a range
 * collected before. By induction redo's image, before its ranges are applied, then differs from
 * this one in bytes of ranges only. Those carry the final bytes.
 */
static bool add_move(struct mtr_page *p, unsigned to, unsigned from, unsigned len)
{
	if (p->move_count == MTR_MOVES_MAX || len <= sizeof(struct disk_log_move))
		return false;
	for (unsigned i = 0; i < p->range_count; i++)
		if (p->range[i].offset < from + len &&
			p->range[i].offset + p->range[i].length > (int)from)
			return false;
	p->changed = true;
	p->move[p->move_count++] = (struct disk_log_move){
		.to = (uint16_t)to, .from = (uint16_t)from, .length = (uint16_t)len};
	return true;
}

void mtr_write(struct mtr_page *p, unsigned offset, const void *src, unsigned len)
{
	if (!len)
		return;
	add_range(p, offset, len);
	page_store(p->guard.image + offset, src, len);
}

void mtr_zero(struct mtr_page *p, unsigned offset, unsigned len)
{
	static const uint8_t zeros[PAGE_SIZE];

	mtr_write(p, offset, zeros, len);
}

void mtr_move(struct mtr_page *p, unsigned to, unsigned from, unsigned len)
{
	if (!len || to == from)
		return;
	WEFT_ASSERT(from + len <= PAGE_SIZE);
	if (!add_move(p, to, from, len))
		add_range(p, to, len);
	page_move(p->guard.image + to, p->guard.image + from, len);
}

/* ---- commit ---------------------------------------------------------------------- */

/* A record under construction: headers and ranges in scratch, full images by reference.
 */
struct record {
	struct iovec iov[2 * MTR_PAGES_MAX + 2];
	unsigned iov_count;
	uint32_t bytes;
	uint32_t used; /* of scratch */
	uint32_t open; /* where the last piece in scratch began */
	uint8_t scratch[SCRATCH_MAX] __attribute__((aligned(8)));
};

static void record_close_piece(struct record *r)
{
	if (r->used == r->open)
		return;
	r->iov[r->iov_count++] = (struct iovec){
		.iov_base = r->scratch + r->open, .iov_len = r->used - r->open};
	r->open = r->used;
}

static unsigned ranges_bytes(const struct mtr_page *p)
{
	unsigned sum = 0;

	for (unsigned i = 0; i < p->range_count; i++)
		sum += p->range[i].length;
	return sum;
}

static bool wants_full(const struct mtr_page *p)
{
	return p->full ||
	       (frame_flags(p->guard.frame) & (FRAME_NEED_FULL | FRAME_DATA)) ||
	       ranges_bytes(p) > FULL_BYTES;
}

static void record_page(struct record *r, struct mtr_page *p)
{
	struct frame *f = p->guard.frame;
	unsigned moves = p->move_count * (unsigned)sizeof(p->move[0]);
	unsigned table = ALIGN_UP(p->range_count * (unsigned)sizeof(p->range[0]), 8u);
	unsigned bytes = ALIGN_UP(ranges_bytes(p), 8u);
	struct disk_log_page *h = (struct disk_log_page *)(r->scratch + r->used);
	uint8_t *to;

	*h = (struct disk_log_page){
		.pid = atomic_load_explicit(&f->pid, memory_order_relaxed),
		.incarnation = f->incarnation,
		.version = f->version,
	};
	p->full = wants_full(p) ||
		  r->used + sizeof(*h) * MTR_PAGES_MAX + moves + table + bytes >
			  SCRATCH_MAX;
	r->used += sizeof(*h);
	if (p->full) {
		h->kind = DISK_LOG_FULL;
		h->part_bytes = sizeof(*h) + PAGE_SIZE;
		record_close_piece(r);
		r->iov[r->iov_count++] =
			(struct iovec){.iov_base = p->guard.image, .iov_len = PAGE_SIZE};
	} else {
		h->kind = DISK_LOG_RANGES;
		h->move_count = p->move_count;
		h->range_count = p->range_count;
		h->part_bytes = (uint32_t)sizeof(*h) + moves + table + bytes;
		to = r->scratch + r->used;
		memcpy(to, p->move, moves);
		to += moves;
		memset(to + table - MIN(table, 8u), 0, MIN(table, 8u));
		memcpy(to, p->range, p->range_count * sizeof(p->range[0]));
		to += table;
		for (unsigned i = 0; i < p->range_count; i++) {
			memcpy(to, p->guard.image + p->range[i].offset,
				p->range[i].length);
			to += p->range[i].length;
		}
		memset(to, 0, r->scratch + r->used + moves + table + bytes - to);
		r->used += moves + table + bytes;
	}
	r->bytes += h->part_bytes;
}

/* Under the exclusive latch: brings the frame into the state that the commit gives it. */
static void page_committed(
	struct cache *c, struct mtr_page *p, struct log_position pos, bool alone)
{
	struct frame *f = p->guard.frame;

	if (p->full) {
		/* behind the append: a task that sees it finds the record below log_end
		 * (advance_tail) */
		atomic_store_explicit(&f->rec_lsn, pos.start, memory_order_release);
		frame_clear(f, FRAME_NEED_FULL);
	}
	atomic_store_explicit(&f->page_lsn, pos.end, memory_order_relaxed);
	if (!alone)
		atomic_store_explicit(&c->revoke.ship_lsn[f - c->frames.frame], pos.end,
			memory_order_relaxed);
	frame_clear(f, FRAME_LOGGED | FRAME_UNPUBLISHED | FRAME_AGED);
	if (frame_flags(f) & FRAME_DATA)
		frame_set(f, FRAME_LOGGED);
	cache_watched(c, f, p->full ? CACHE_LOGGED_FULL : CACHE_LOGGED,
		alone ? LSN_NONE : pos.end);
}

/* Before the record exists: dirty, and pinned to a lower bound of where it will be. */
static void page_pin(struct cache *c, struct frame *f, lsn_t floor)
{
	uint64_t none = LSN_NONE;

	if (!(frame_flags(f) & FRAME_DIRTY))
		atomic_store_explicit(&f->rec_lsn, LSN_NONE, memory_order_relaxed);
	atomic_compare_exchange_strong_explicit(
		&f->rec_lsn, &none, floor, memory_order_seq_cst, memory_order_relaxed);
	frame_mark_dirty(c, f, 0);
}

struct log_position mtr_commit(struct mtr *m)
{
	struct cache *c = m->cache;
	struct log_position pos = {0, 0};
	struct disk_log_record *h;
	struct record r;
	unsigned changed = 0;
	lsn_t floor = log_durable(c->log);

	r.iov_count = 0;
	r.open = 0;
	r.used = sizeof(*h);
	r.bytes = sizeof(*h);
	for (unsigned i = 0; i < m->page_count; i++) {
		struct mtr_page *p = &m->page[i];

		if (!p->changed)
			continue;
		p->guard.frame->version++;
		page_pin(c, p->guard.frame, floor);
		record_page(&r, p);
		changed++;
	}
	if (changed) {
		record_close_piece(&r);
		h = (struct disk_log_record *)r.scratch;
		*h = (struct disk_log_record){.record_bytes = r.bytes,
			.type = DISK_LOG_CHANGE,
			.count = (uint16_t)changed};
		pos = log_append(c->log, &m->room, r.iov, r.iov_count);
	}
	for (unsigned i = 0; i < m->page_count; i++) {
		struct mtr_page *p = &m->page[i];

		if (p->changed)
			page_committed(c, p, pos, changed == 1);
		frame_used(c, p->guard.frame);
		latch_release_exclusive(c, p->guard.frame, p->changed);
		p->guard.kind = GUARD_NONE;
	}
	m->page_count = 0;
	log_release(c->log, &m->room);
	return pos;
}

void mtr_abort(struct mtr *m)
{
	for (unsigned i = 0; i < m->page_count; i++) {
		WEFT_ASSERT(!m->page[i].changed);
		frame_used(m->cache, m->page[i].guard.frame);
		latch_release_exclusive(m->cache, m->page[i].guard.frame, false);
	}
	m->page_count = 0;
	log_release(m->cache->log, &m->room);
}
