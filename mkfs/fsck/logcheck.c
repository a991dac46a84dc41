/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Pass 0: the log, before it is replayed. Assumes sound superblocks.
 *
 * Checks heads and chunks as engine/log does when it opens. If it refuses the log, there are two
 * cases.
 *
 * Both heads are lost. Recovery may begin at any chunk that is not too late, because redo skips
 * changes that are already in place. So the longest unbroken chain of chunks that ends with the
 * newest is used.
 *
 * A chunk is missing before the end. The chunks behind it cannot be redone in order. They are given
 * up: their headers are wiped, last ones first. Changes of them that are already in place stay
 * there. The other passes repair the inconsistencies.
 */
#include "engine/log/log.h"
#include "mkfs/fsck/fsck_internal.h"

#define BLOCK        4096u
#define HEAD_REBUILT (1ull << 20) /* generation of a new head */

/* A whole chunk in the ring. */
struct found_chunk {
	lsn_t lsn, follows;
	uint64_t epoch;
	uint32_t bytes;
};

struct ring {
	struct fsck *f;
	struct store *s;
	uint64_t offset, bytes;
	uint8_t *window;           /* twice DISK_CHUNK_MAX_BYTES */
	struct found_chunk *chunk; /* in the order of the ring */
	size_t count;
};

static uint64_t ring_place(const struct ring *r, lsn_t lsn)
{
	return r->offset + lsn % r->bytes;
}

static bool chunk_plausible(
	const struct ring *r, const struct disk_log_chunk *c, uint64_t at)
{
	return c->magic == DISK_MAGIC_CHUNK && c->lsn % r->bytes == at &&
	       c->lsn < 1ull << 60 && c->lsn >= r->bytes && c->chunk_bytes % BLOCK == 0 &&
	       c->chunk_bytes >= BLOCK && c->chunk_bytes <= DISK_CHUNK_MAX_BYTES &&
	       c->chunk_bytes <= r->bytes - at &&
	       c->payload_bytes <= c->chunk_bytes - sizeof(*c) &&
	       c->follows_lsn <= c->lsn;
}

static bool chunk_whole(const struct ring *r, const struct disk_log_chunk *c)
{
	struct disk_log_chunk head = *c;
	struct iovec iov[2] = {
		{&head, sizeof(head)}, {(void *)(c + 1), c->payload_bytes}};

	head.checksum = 0;
	return store_checksum(r->s, DISK_PLACE_LOG, c->lsn, c->epoch, iov, 2) ==
	       c->checksum;
}

/* Returns the chunk at a place of the ring, or NULL. */
static const struct disk_log_chunk *chunk_at(struct ring *r, uint64_t at)
{
	struct disk_log_chunk *c = (struct disk_log_chunk *)r->window;

	if (rt_disk_read(r->f->at->in.disk, r->offset + at, c, BLOCK) ||
		!chunk_plausible(r, c, at))
		return NULL;
	if (c->chunk_bytes > BLOCK &&
		rt_disk_read(r->f->at->in.disk, r->offset + at, c, c->chunk_bytes))
		return NULL;
	return chunk_plausible(r, c, at) && chunk_whole(r, c) ? c : NULL;
}

static void ring_scan(struct ring *r)
{
	for (uint64_t at = 0; at < r->bytes;) {
		const struct disk_log_chunk *c = chunk_at(r, at);

		if (at / BLOCK % 256 == 0)
			fsck_progress(r->f, 0, at, r->bytes);
		if (!c) {
			at += BLOCK;
			continue;
		}
		r->chunk[r->count++] = (struct found_chunk){.lsn = c->lsn,
			.follows = c->follows_lsn,
			.epoch = c->epoch,
			.bytes = c->chunk_bytes};
		at += c->chunk_bytes;
	}
}

static int ring_open(struct ring *r, struct fsck *f, struct store *s)
{
	*r = (struct ring){.f = f,
		.s = s,
		.offset = f->at->sb.log_offset + DISK_LOG_HEADS_BYTES,
		.bytes = f->at->sb.log_bytes - DISK_LOG_HEADS_BYTES};
	r->window = rt_alloc_pages(DISK_CHUNK_MAX_BYTES);
	r->chunk = rt_alloc(r->bytes / BLOCK * sizeof(*r->chunk));
	if (!r->window || !r->chunk)
		return -ENOMEM;
	ring_scan(r);
	return 0;
}

static void ring_close(struct ring *r)
{
	if (r->window)
		rt_free_pages(r->window, DISK_CHUNK_MAX_BYTES);
	rt_free(r->chunk);
}

/* ---- heads ----------------------------------------------------------------------- */

static uint64_t head_sum(struct store *s, const struct disk_log_head *h)
{
	struct iovec iov = {(void *)h, offsetof(struct disk_log_head, checksum)};

	return store_checksum(s, DISK_PLACE_LOG_HEAD, h->generation, 0, &iov, 1);
}

static bool head_whole(struct store *s, const struct disk_log_head *h)
{
	return h->magic == DISK_MAGIC_LOGHEAD && h->checksum == head_sum(s, h);
}

/* Returns the index of the chunk that ends where `c` begins; -1: none. */
static ssize_t chunk_before(const struct ring *r, const struct found_chunk *c)
{
	for (size_t i = 0; i < r->count; i++)
		if (r->chunk[i].lsn + r->chunk[i].bytes == c->follows &&
			r->chunk[i].epoch <= c->epoch)
			return (ssize_t)i;
	return -1;
}

/* Returns the first chunk of the longest chain that ends with the newest one; NULL: there is no
 * chunk. */
static const struct found_chunk *chain_begin(const struct ring *r)
{
	const struct found_chunk *newest = NULL, *first;
	ssize_t before;

	for (size_t i = 0; i < r->count; i++)
		if (!newest || r->chunk[i].epoch > newest->epoch ||
			(r->chunk[i].epoch == newest->epoch &&
				r->chunk[i].lsn > newest->lsn))
			newest = &r->chunk[i];
	first = newest;
	while (first && (before = chunk_before(r, first)) >= 0 &&
		newest->lsn + newest->bytes - r->chunk[before].lsn <= r->bytes)
		first = &r->chunk[before];
	return first;
}

static int heads_write(struct fsck *f, struct store *s, const struct found_chunk *first)
{
	struct disk_log_head *h = rt_alloc_pages(DISK_LOG_HEADS_BYTES);
	int rc = h ? 0 : -ENOMEM;

	for (unsigned i = 0; i < 2 && rc == 0; i++) {
		h[i] = (struct disk_log_head){
			.magic = DISK_MAGIC_LOGHEAD,
			.generation = HEAD_REBUILT + !i,
			.tail_lsn = first ? first->lsn
					  : f->at->sb.log_bytes - DISK_LOG_HEADS_BYTES,
			.clean = first == NULL,
			.epoch = first ? first->epoch : f->at->sb.incarnation,
		};
		h[i].checksum = head_sum(s, &h[i]);
	}
	if (rc == 0)
		rc = rt_disk_write(
			f->at->in.disk, f->at->sb.log_offset, h, DISK_LOG_HEADS_BYTES);
	if (rc == 0)
		rc = rt_disk_flush(f->at->in.disk);
	if (h)
		rt_free_pages(h, DISK_LOG_HEADS_BYTES);
	return rc;
}

static int heads_rebuild(struct fsck *f, struct store *s, bool *stop)
{
	const struct found_chunk *first;
	struct ring r;
	int rc = ring_open(&r, f, s);

	if (rc == 0) {
		first = chain_begin(&r);
		if (fsck_found(f, 11, "both heads of the log are damaged; %s",
			    first ? "it can be replayed from its oldest chunk on"
				  : "there is nothing in it"))
			rc = fsck_repaired(f, heads_write(f, s, first));
		else
			*stop = true;
	}
	ring_close(&r);
	return rc;
}

/* ---- a hole ---------------------------------------------------------------------- */

/* Returns the end of the chain from `tail`. */
static lsn_t chain_end(const struct ring *r, lsn_t tail)
{
	lsn_t end = tail;
	bool more = true;

	while (more) {
		more = false;
		for (size_t i = 0; i < r->count && !more; i++) {
			const struct found_chunk *c = &r->chunk[i];

			if ((c->lsn == end || (c->follows == end && c->lsn > end)) &&
				c->lsn >= tail && c->lsn + c->bytes <= tail + r->bytes) {
				end = c->lsn + c->bytes;
				more = true;
			}
		}
	}
	return end;
}

static int chunks_wipe(struct fsck *f, const struct ring *r, lsn_t end, lsn_t limit)
{
	void *zeros = rt_alloc_pages(BLOCK);
	lsn_t wiped = limit;
	int rc = zeros ? 0 : -ENOMEM;

	for (;;) {
		const struct found_chunk *last = NULL;

		for (size_t i = 0; i < r->count; i++)
			if (r->chunk[i].lsn >= end && r->chunk[i].lsn < wiped &&
				(!last || r->chunk[i].lsn > last->lsn))
				last = &r->chunk[i];
		if (!last || rc)
			break;
		rc = rt_disk_write(
			f->at->in.disk, ring_place(r, last->lsn), zeros, BLOCK);
		wiped = last->lsn;
	}
	if (rc == 0)
		rc = rt_disk_flush(f->at->in.disk);
	if (zeros)
		rt_free_pages(zeros, BLOCK);
	return rc;
}

static int hole_close(struct fsck *f, struct store *s, lsn_t tail, bool *stop)
{
	uint64_t lost = 0;
	struct ring r;
	lsn_t end;
	int rc = ring_open(&r, f, s);

	if (rc == 0) {
		end = chain_end(&r, tail);
		for (size_t i = 0; i < r.count; i++)
			if (r.chunk[i].lsn >= end && r.chunk[i].lsn < tail + r.bytes)
				lost += r.chunk[i].bytes;
		if (fsck_found(f, 12,
			    "the log is damaged at LSN %" PRIu64 ": %" PRIu64
			    " bytes of it behind that place cannot be replayed",
			    end, lost))
			rc = fsck_repaired(f, chunks_wipe(f, &r, end, tail + r.bytes));
		else
			*stop = true;
	}
	ring_close(&r);
	return rc;
}

/* ---- the log --------------------------------------------------------------------- */

/* Copies the whole head to the other's place. */
static int head_copy(
	struct fsck *f, struct store *s, struct disk_log_head *h, unsigned good)
{
	int rc;

	h[!good] = h[good];
	h[!good].generation++;
	h[!good].checksum = head_sum(s, &h[!good]);
	rc = rt_disk_write(f->at->in.disk, f->at->sb.log_offset + !good * sizeof(*h),
		&h[!good], sizeof(*h));
	return rc ? rc : rt_disk_flush(f->at->in.disk);
}

/* Handles a log with one damaged head; `good` is the whole one. */
static int check_head(
	struct fsck *f, struct store *s, struct disk_log_head *h, unsigned good)
{
	const char *which = good ? "first" : "second";

	if (f->at->interrupted) {
		fsck_note(f, 10,
			"the %s head of the log is not whole, as a crash may leave it; "
			"the next start writes it anew",
			which);
		return 0;
	}
	if (!fsck_found(f, 10, "the %s head of the log is damaged", which))
		return 0;
	/* Opening it for writing writes it anew. One of several stores is not opened for
	 * writing. */
	return fsck_repaired(f, f->alone ? head_copy(f, s, h, good) : 0);
}

/* `opened`: the log could be opened. A head is written after the superblocks. So a clean head of an
 * earlier start than theirs shows that the last start did not get so far. */
static int check_heads(struct fsck *f, struct store *s, bool opened, bool clean,
	lsn_t *tail, unsigned *whole)
{
	static const struct disk_log_head never;
	struct disk_log_head *h = rt_alloc_pages(DISK_LOG_HEADS_BYTES);
	unsigned newest;
	bool good[2];
	int rc = h ? rt_disk_read(f->at->in.disk, f->at->sb.log_offset, h,
			     DISK_LOG_HEADS_BYTES)
		   : -ENOMEM;

	if (rc == 0) {
		for (unsigned i = 0; i < 2; i++)
			good[i] = head_whole(s, &h[i]);
		*whole = good[0] + good[1];
		newest = !good[0] || (good[1] && h[1].generation > h[0].generation);
		*tail = h[newest].tail_lsn;
		f->at->interrupted =
			opened && (!clean || h[newest].epoch < f->at->sb.incarnation);
		if (*whole == 1 && opened &&
			!(h[newest].generation == 1 &&
				memcmp(&h[!newest], &never, sizeof(never)) == 0))
			rc = check_head(f, s, h, newest);
	}
	if (h)
		rt_free_pages(h, DISK_LOG_HEADS_BYTES);
	return rc;
}

static int log_try(struct fsck *f, struct store *s, bool *stop)
{
	struct weft_error why = {0};
	unsigned whole = 2;
	struct log *log = NULL;
	bool clean = false;
	lsn_t tail = 0;
	int rc = log_open(&log, s, NULL, &clean, &why), heads;

	if (rc == 0) {
		f->at->was_clean = clean;
		log_close(log);
	} else if (rc != -EUCLEAN) {
		return weft_error(f->err, rc, "%s", why.text);
	}
	heads = check_heads(f, s, rc == 0, clean, &tail, &whole);
	if (heads || rc == 0)
		return heads;
	return whole == 0 ? heads_rebuild(f, s, stop) : hole_close(f, s, tail, stop);
}

int log_check(struct fsck *f, bool *stop)
{
	struct store_options o = {.read_only = true, .any_node = true};
	struct store *s;
	int rc = store_open(&s, f->at->in.disk, &o, f->err);

	if (rc)
		return rc;
	rc = log_try(f, s, stop);
	store_close(s);
	return rc;
}
