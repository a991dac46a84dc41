/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Write-back of dirty images to the store (docs/design.md, "Writing a page back").
 *
 * Keeps invariant 3 (log before ship) and the order that recovery relies on. First the descriptors
 * are durable in the log, then the images are written. Images of new pages of files go first
 * instead, and one flush makes both durable (write_new). The table takes the descriptors only after
 * the images are durable. The log keeps them until the table's block is durable (the region's pin,
 * then the table's own). Images go through bounce buffers. So no latch is held over I/O, and the
 * checksummed bytes are the written ones.
 *
 * Persisting never waits for persisting: only the checkpointer (WB_URGENT) uses the log's urgent
 * room. It writes pages that pin the log. Each has a full image in the ring, 129 times as large as
 * its descriptor. So the sixteenth of the ring that is kept for it suffices. All other tasks
 * reserve their room before they take a region, so a task with a region can go on. Images that
 * other nodes ship have a region of their own, and the urgent room.
 *
 * FRAME_WRITING marks a frame whose image is being written. It is neither evicted nor written again
 * until that write has ended, so two writes of a page never race to the device.
 */
#include "engine/cache/cache_internal.h"

#include <errno.h>
#include <stdlib.h>

/* Pages of one record of images logged against torn overwrites. */
#define TEAR_RECORD_MAX 16
/* Such pages of one batch, at most: they go to the device twice. */
#define TEAR_BATCH_MAX  128
#define PERSISTED_BYTES (sizeof(struct disk_log_record) + sizeof(uint64_t))

int writeback_open(struct cache *c)
{
	uint32_t page =
		sizeof(struct disk_log_page) + PAGE_SIZE + sizeof(struct disk_log_record);
	uint32_t room = MIN(log_room_max(c->log, true), log_room_max(c->log, false));

	/* the records of a batch must fit any log's room */
	WEFT_ASSERT(room > 4 * page);
	c->writeback.pages = MIN(MAX(8u, c->frames.count / 8), (uint32_t)WB_PAGES_MAX);
	c->writeback.pages = MIN(c->writeback.pages,
		room / 4 / (uint32_t)sizeof(struct disk_log_descriptor));
	c->writeback.tear_pages = MIN((uint32_t)TEAR_BATCH_MAX, room / 2 / page);
	c->writeback.tear_pages = MIN(c->writeback.tear_pages, c->writeback.pages);
	for (unsigned i = 0; i < WB_ALL; i++) {
		struct wb_region *r = &c->writeback.region[i];

		atomic_store_explicit(&r->pin, LSN_MAX, memory_order_relaxed);
		r->pages = i < WB_REGIONS ? c->writeback.pages
					  : MIN(c->writeback.pages, (uint32_t)WB_SHIPPED_PAGES);
		/* other homes read the images that this node ships to them */
		r->images = i < WB_REGIONS
				    ? images_alloc(c, i + 1, (size_t)r->pages * PAGE_SIZE)
				    : rt_alloc_pages((size_t)r->pages * PAGE_SIZE);
		r->page = rt_alloc(r->pages * sizeof(*r->page));
		r->write = rt_alloc(r->pages * sizeof(*r->write));
		r->ship = rt_alloc(r->pages * sizeof(*r->ship));
		r->descriptor = rt_alloc(r->pages * sizeof(*r->descriptor));
		if (!r->images || !r->page || !r->write || !r->ship || !r->descriptor)
			return -ENOMEM;
	}
	c->writeback.batch_number = store_superblock(c->store)->incarnation << 32;
	return 0;
}

void writeback_close(struct cache *c)
{
	for (unsigned i = 0; i < WB_ALL; i++) {
		struct wb_region *r = &c->writeback.region[i];

		if (i < WB_REGIONS)
			images_free(c, r->images, (size_t)r->pages * PAGE_SIZE);
		else if (r->images)
			rt_free_pages(r->images, (size_t)r->pages * PAGE_SIZE);
		rt_free(r->page);
		rt_free(r->write);
		rt_free(r->ship);
		rt_free(r->descriptor);
		memset(r, 0, sizeof(*r));
	}
}

/*
 * In the order of requests. Streams that write batch after batch would otherwise keep the
 * checkpointer waiting, and with it all tasks that wait for room in the log.
 *
 * Images that other nodes shipped have regions of their own. These nodes may have taken the other
 * regions here, by waiting until this node persists something. Two nodes must not wait for each
 * other so.
 */
static struct wb_region *region_take(struct cache *c, bool shipped)
{
	struct wb_region *first = &c->writeback.region[shipped ? WB_REGIONS : 0];
	unsigned spins = 0;

	rt_gate_enter(shipped ? &c->writeback.shipped_gate : &c->writeback.region_gate, WB_REGIONS);
	/* one is free for each task inside, perhaps not where this has looked already */
	for (;; rt_spin(&spins)) {
		for (struct wb_region *r = first; r < first + WB_REGIONS; r++) {
			if (!rt_mutex_trylock(&r->lock))
				continue;
			atomic_fetch_add_explicit(&r->turn, 1, memory_order_seq_cst);
			/* Not earlier: this makes the memory resident. Often one is enough. */
			if (!r->registered)
				rt_disk_register(store_disk(c->store), r->images,
					(size_t)r->pages * PAGE_SIZE);
			r->registered = true;
			return r;
		}
	}
}

static void region_give(struct cache *c, struct wb_region *r)
{
	bool shipped = r >= &c->writeback.region[WB_REGIONS];

	atomic_fetch_add_explicit(&r->turn, 1, memory_order_release);
	rt_mutex_unlock(&r->lock);
	rt_gate_leave(shipped ? &c->writeback.shipped_gate : &c->writeback.region_gate, WB_REGIONS);
	rt_wake(&r->turn, INT32_MAX);
}

/* ---- step 1: copy what is dirty ---------------------------------------------------- */

/* The contents of a batch, and the room that is left in it. */
struct wb_batch {
	unsigned count;
	unsigned tear_room; /* pages whose image may still go into the log as well */
	bool tears;         /* the device may tear overwrites */
	bool urgent;
	bool sealed; /* images get their checksum with the copy; a ship's home does that */
	bool fresh;  /* has a page that the store has no image of, as far as is known */
	bool all_new; /* has only new pages of files: the store has no image of the incarnation */
	lsn_t flush_to;
};

/* A latch is held for a moment only. The exception is a request, which may wait for an image to be
 * persisted. */
bool latch_for_copy(struct cache *c, struct frame *f, page_id pid)
{
	unsigned spins = 0;

	while (!latch_try_shared(f)) {
		if (frame_flags(f) & FRAME_ASKING)
			return false;
		rt_spin(&spins);
	}
	if (atomic_load_explicit(&f->pid, memory_order_relaxed) == pid)
		return true;
	latch_release_shared(c, f);
	return false;
}

/* While the copy is in the processor's cache: it is read once, not twice. */
static void image_seal(struct cache *c, struct store_write *w)
{
	w->descriptor.checksum = store_page_checksum(c->store, w->pid,
		w->descriptor.incarnation, w->descriptor.version, w->image);
}

/* Returns false if the page must wait for the next batch. */
static bool copy_page(
	struct cache *c, struct wb_region *r, page_id pid, struct wb_batch *b)
{
	unsigned at = b->count;
	struct frame *f = table_find(c, pid);
	struct store_write *w = &r->write[at];
	uint32_t flags;
	bool tear;

	if (!f || !(frame_flags(f) & FRAME_DIRTY) || !latch_for_copy(c, f, pid))
		return true;
	flags = frame_flags(f);
	/* with a rec_lsn the log has a full image that a torn page can be rebuilt from */
	tear = b->tears && (flags & FRAME_PERSISTED) &&
	       atomic_load_explicit(&f->rec_lsn, memory_order_relaxed) == LSN_NONE;
	if (tear && !b->tear_room) {
		latch_release_shared(c, f);
		return b->urgent; /* it pins nothing: not the checkpointer's business */
	}
	if (!(flags & FRAME_DIRTY) ||
		(flags & (FRAME_UNPUBLISHED | FRAME_LOADING | FRAME_LEAVING)) ||
		(atomic_fetch_or_explicit(
			 &f->flags, FRAME_WRITING, memory_order_acquire) &
			FRAME_WRITING)) {
		latch_release_shared(c, f);
		return true;
	}
	memcpy(r->images + (size_t)at * PAGE_SIZE, frame_image(c, f), PAGE_SIZE);
	w->pid = pid;
	w->image = r->images + (size_t)at * PAGE_SIZE;
	w->descriptor.incarnation = f->incarnation;
	w->descriptor.version = f->version;
	r->page[at].pid = pid;
	r->page[at].rec_lsn = atomic_load_explicit(&f->rec_lsn, memory_order_relaxed);
	r->page[at].log_image = tear;
	b->tear_room -= tear;
	b->fresh |= !(flags & FRAME_PERSISTED);
	b->all_new &= (flags & (FRAME_DATA | FRAME_PERSISTED)) == FRAME_DATA;
	b->flush_to = MAX(
		b->flush_to, atomic_load_explicit(&f->page_lsn, memory_order_relaxed));
	/* Until the write has ended a torn page may need the log from the present rec_lsn on. So it
	 * does if a newer full image, not durable yet, has moved rec_lsn. */
	if (r->page[at].rec_lsn &&
		r->page[at].rec_lsn < atomic_load_explicit(&r->pin, memory_order_relaxed))
		atomic_store_explicit(&r->pin, r->page[at].rec_lsn, memory_order_seq_cst);
	latch_release_shared(c, f);
	if (b->sealed)
		image_seal(c, w);
	b->count++;
	return true;
}

/* Adds an image that another node shipped. It may overwrite one that is in the store. Returns false
 * if it must wait for the next batch. */
static bool image_add(struct cache *c, struct wb_region *r,
	const struct coherence_ship *s, struct wb_batch *b)
{
	struct store_write *w = &r->write[b->count];
	void *image = r->images + (size_t)b->count * PAGE_SIZE;

	if (b->tears && !b->tear_room)
		return false;
	b->tear_room -= b->tears;
	memcpy(image, s->image, PAGE_SIZE);
	w->pid = s->pid;
	w->image = image;
	w->descriptor.incarnation = s->incarnation;
	w->descriptor.version = s->version;
	r->page[b->count].pid = s->pid;
	r->page[b->count].rec_lsn = LSN_NONE;
	r->page[b->count].log_image = b->tears;
	b->fresh = true;
	image_seal(c, w);
	b->count++;
	return true;
}

/* ---- step 2: descriptors (and images that could tear) into the log --------------- */

static void log_descriptors(struct cache *c, struct wb_region *r, struct wb_batch *b,
	uint64_t number, struct log_room *room)
{
	unsigned count = b->count;
	struct {
		struct disk_log_record record;
		uint64_t batch;
	} head = {
		.record = {.record_bytes = (uint32_t)(sizeof(head) +
						      count * sizeof(*r->descriptor)),
			.type = DISK_LOG_DESCRIPTORS,
			.count = (uint16_t)count},
		.batch = number,
	};
	struct iovec iov[2] = {
		{.iov_base = &head, .iov_len = sizeof(head)},
		{.iov_base = r->descriptor, .iov_len = count * sizeof(*r->descriptor)},
	};
	struct log_position pos;

	for (unsigned i = 0; i < count; i++) {
		const struct store_write *w = &r->write[i];

		r->descriptor[i] = (struct disk_log_descriptor){
			.pid = w->pid,
			.incarnation = w->descriptor.incarnation,
			.version = w->descriptor.version,
			.checksum = w->descriptor.checksum,
		};
	}
	/* a lower bound of the record's start, set before it exists (checkpoint.c) */
	r->record_lsn = log_durable(c->log);
	if (r->record_lsn < atomic_load_explicit(&r->pin, memory_order_relaxed))
		atomic_store_explicit(&r->pin, r->record_lsn, memory_order_seq_cst);
	pos = log_append(c->log, room, iov, 2);
	b->flush_to = MAX(b->flush_to, pos.end);
}

static void log_tear_record(struct cache *c, struct wb_region *r, const unsigned *at,
	unsigned n, struct wb_batch *b, struct log_room *room)
{
	struct disk_log_page head[TEAR_RECORD_MAX];
	struct iovec iov[1 + 2 * TEAR_RECORD_MAX];
	struct disk_log_record record = {
		.record_bytes =
			(uint32_t)(sizeof(record) + n * (sizeof(head[0]) + PAGE_SIZE)),
		.type = DISK_LOG_CHANGE,
		.count = (uint16_t)n,
	};
	struct log_position pos;

	iov[0] = (struct iovec){.iov_base = &record, .iov_len = sizeof(record)};
	for (unsigned i = 0; i < n; i++) {
		const struct store_write *w = &r->write[at[i]];

		head[i] = (struct disk_log_page){
			.pid = w->pid,
			.incarnation = w->descriptor.incarnation,
			.version = w->descriptor.version,
			.kind = DISK_LOG_FULL,
			.part_bytes = sizeof(head[0]) + PAGE_SIZE,
		};
		iov[1 + 2 * i] =
			(struct iovec){.iov_base = &head[i], .iov_len = sizeof(head[0])};
		iov[2 + 2 * i] = (struct iovec){
			.iov_base = (void *)w->image, .iov_len = PAGE_SIZE};
	}
	pos = log_append(c->log, room, iov, 1 + 2 * n);
	b->flush_to = MAX(b->flush_to, pos.end);
}

/* The batch's pin covers these records: it was set before, to the log's durable end. */
static void log_tearable(
	struct cache *c, struct wb_region *r, struct wb_batch *b, struct log_room *room)
{
	unsigned at[TEAR_RECORD_MAX], n = 0;

	for (unsigned i = 0; i < b->count; i++) {
		if (r->page[i].log_image)
			at[n++] = i;
		if (n == TEAR_RECORD_MAX || (n && i + 1 == b->count)) {
			log_tear_record(c, r, at, n, b, room);
			n = 0;
		}
	}
}

/* ---- steps 4 to 6 ---------------------------------------------------------------- */

static int install_descriptors(struct cache *c, struct wb_region *r, unsigned count,
	uint64_t number, struct log_room *room)
{
	struct {
		struct disk_log_record record;
		uint64_t batch;
	} done = {
		.record = {.record_bytes = sizeof(done),
			.type = DISK_LOG_PERSISTED,
			.count = 1},
		.batch = number,
	};
	struct iovec iov = {.iov_base = &done, .iov_len = sizeof(done)};

	store_descriptors_load(c->store, r->write, count);
	for (unsigned i = 0; i < count; i++) {
		int rc = store_descriptor_install(c->store, r->write[i].pid,
			&r->write[i].descriptor, r->record_lsn);

		if (rc)
			return rc;
	}
	log_append(c->log, room, &iov, 1);
	if (store_table_crowded(c->store)) {
		atomic_fetch_add_explicit(
			log_pressure_word(c->log), 1, memory_order_release);
		rt_wake(log_pressure_word(c->log), 1);
	}
	return 0;
}

/*
 * A write failed. The slot may hold any image of the batch now, or half of one. Until it is written
 * well the log must keep the batch's descriptors and images. These tell the images apart and mend
 * them.
 */
static void pin_failed(struct frame *f, lsn_t record_lsn)
{
	uint64_t rec = atomic_load_explicit(&f->rec_lsn, memory_order_relaxed);

	while ((rec == LSN_NONE || rec > record_lsn) && (frame_flags(f) & FRAME_DIRTY))
		if (atomic_compare_exchange_weak_explicit(&f->rec_lsn, &rec, record_lsn,
			    memory_order_seq_cst, memory_order_relaxed))
			break;
}

/* The page's image of this version is durable (`ok`), or its write failed. */
static void settle_page(struct cache *c, const struct wb_region *r, unsigned at, bool ok)
{
	const struct store_write *w = &r->write[at];
	const struct wb_page *p = &r->page[at];
	struct frame *f = table_find(c, p->pid);
	uint64_t rec = p->rec_lsn;

	/* WRITING keeps the frame in the table under its PID */
	while (!f || !latch_shared(c, f, p->pid))
		f = table_find(c, p->pid);
	if (ok && f->incarnation == w->descriptor.incarnation) {
		frame_set(f, FRAME_PERSISTED | FRAME_NEED_FULL);
		if (f->version == w->descriptor.version) {
			frame_mark_clean(c, f);
			atomic_store_explicit(
				&f->rec_lsn, LSN_NONE, memory_order_relaxed);
		} else if (frame_flags(f) & FRAME_DATA) {
			/* a logged image no newer than the one persisted is needed no
			 * more */
			atomic_compare_exchange_strong_explicit(&f->rec_lsn, &rec,
				LSN_NONE, memory_order_relaxed, memory_order_relaxed);
		}
	} else if (!ok && !c->recovery.redo && r->record_lsn != LSN_NONE &&
		   f->incarnation == w->descriptor.incarnation) {
		pin_failed(f, r->record_lsn);
	}
	atomic_fetch_and_explicit(
		&f->flags, (uint16_t)~FRAME_WRITING, memory_order_release);
	latch_release_shared(c, f);
}

/* This node's store has these versions. Tells it to all nodes that have a part in the pages. */
static void tell_persisted(struct cache *c, const struct wb_region *r, unsigned count)
{
	for (unsigned i = 0; i < count; i++) {
		const struct store_write *w = &r->write[i];

		c->coherence->ops->persisted(c->coherence, w->pid,
			w->descriptor.incarnation, w->descriptor.version, i + 1 < count);
	}
}

/* During redo nothing is appended: the tail stands still. A page whose image is lost half written
 * is mended by its full image in the log (invariant 4). The descriptors do not matter for that. */
static int write_batch_redo(struct cache *c, struct wb_region *r, unsigned count)
{
	int rc = store_write_pages(c->store, r->write, count);
	if (!rc)
		rc = store_flush(c->store);
	store_descriptors_load(c->store, r->write, count);
	for (unsigned i = 0; i < count && !rc; i++)
		rc = store_descriptor_install(c->store, r->write[i].pid,
			&r->write[i].descriptor, log_tail(c->log));
	if (!rc && store_table_crowded(c->store))
		rc = store_table_write(c->store, LSN_MAX);
	return rc;
}

static int store_persist(struct cache *c, struct wb_region *r, const struct wb_batch *b)
{
	int rc = store_write_pages(c->store, r->write, b->count);

	if (!rc)
		rc = store_flush(c->store);
	store_took(c, rc, b->fresh);
	return rc;
}

/*
 * Writes a batch of new pages of files. Until its descriptor is durable, such a page reads as zeros
 * (invariant 8): the image in its slot does not matter. So the images go first. The flush that
 * makes the descriptors durable begins after the images are written, and makes these durable, too.
 * It covers the records that allocated the pages, which come before the descriptors. A power cut in
 * between leaves images that no descriptor names.
 */
static int write_new(struct cache *c, struct wb_region *r, struct wb_batch *b,
	uint64_t number, struct log_room *room)
{
	int rc = store_write_pages(c->store, r->write, b->count);

	r->record_lsn = LSN_NONE;
	store_took(c, rc, b->fresh);
	if (rc)
		return rc;
	log_descriptors(c, r, b, number, room);
	return log_flush(c->log, b->flush_to);
}

static int write_over(struct cache *c, struct wb_region *r, struct wb_batch *b,
	uint64_t number, struct log_room *room)
{
	int rc;

	log_descriptors(c, r, b, number, room);
	log_tearable(c, r, b, room);
	rc = log_flush(c->log, b->flush_to);
	return rc ? rc : store_persist(c, r, b);
}

static int write_batch(
	struct cache *c, struct wb_region *r, struct wb_batch *b, struct log_room *room)
{
	uint64_t number = atomic_fetch_add_explicit(
		&c->writeback.batch_number, 1, memory_order_relaxed);
	int rc = b->all_new ? write_new(c, r, b, number, room)
			    : write_over(c, r, b, number, room);

	if (store_flush_failed(c->store)) {
		rc = -EIO;
		log_give_up(c->log, rc);
	}
	if (!rc)
		rc = install_descriptors(c, r, b->count, number, room);
	return rc;
}

static int compare_refs(const void *a, const void *b)
{
	page_id x = ((const struct page_ref *)a)->pid,
		y = ((const struct page_ref *)b)->pid;

	return x < y ? -1 : x > y;
}

/* Room for the records of one batch. Waits; holds nothing. */
static int batch_reserve(struct cache *c, bool urgent, unsigned count, struct wb_batch *b,
	struct log_room *room)
{
	uint32_t page =
		sizeof(struct disk_log_page) + PAGE_SIZE + sizeof(struct disk_log_record);
	uint32_t bytes = (uint32_t)(MIN(count, c->writeback.pages) *
					    sizeof(struct disk_log_descriptor) +
				    2 * PERSISTED_BYTES);

	*b = (struct wb_batch){.tears = store_writes_tear(c->store),
		.urgent = urgent,
		.sealed = true,
		.all_new = !cache_has_peers(c)};
	*room = (struct log_room){0};
	if (c->recovery.redo) {
		b->tears = false;
		return 0;
	}
	if (store_rests(c))
		return -ENOSPC;
	if (b->tears && !urgent) {
		b->tear_room = MIN(count, c->writeback.tear_pages);
		bytes += b->tear_room * page;
	}
	return log_reserve(c->log, bytes, urgent, room);
}

/* The same for images that other nodes shipped. They take from the reserve, too: the senders may
 * have shipped them to free their logs. This node's tail may wait for one of theirs. */
static int batch_reserve_shipped(
	struct cache *c, unsigned count, struct wb_batch *b, struct log_room *room)
{
	uint32_t page =
		sizeof(struct disk_log_page) + PAGE_SIZE + sizeof(struct disk_log_record);
	uint32_t bytes = 2 * PERSISTED_BYTES;

	count = MIN(count, c->writeback.region[WB_REGIONS].pages);
	*b = (struct wb_batch){.tears = store_writes_tear(c->store), .sealed = true};
	*room = (struct log_room){0};
	if (c->recovery.redo) { /* of a tool's other store: its log is among those being redone */
		b->tears = false;
		return 0;
	}
	if (store_rests(c))
		return -ENOSPC;
	bytes += count * (uint32_t)sizeof(struct disk_log_descriptor);
	if (b->tears) {
		b->tear_room = MIN(count, log_room_max(c->log, true) / 2 / WB_REGIONS / page);
		bytes += b->tear_room * page;
	}
	return log_reserve(c->log, bytes, true, room);
}

/* The common end of all batches: counters, and the pins that the region had. */
static void batch_end(struct cache *c, struct wb_region *r, unsigned count, int rc)
{
	atomic_store_explicit(&r->pin, LSN_MAX, memory_order_release);
	if (rc) {
		atomic_fetch_add_explicit(
			&c->writeback.failures, 1, memory_order_release);
		if (rc != -EHOSTDOWN)
			COUNT(c, write_failures, 1);
	} else {
		COUNT(c, pages_written, count);
		COUNT(c, write_batches, 1);
	}
}

/* ---- pages whose home is elsewhere ------------------------------------------------- */

/*
 * Invariant 3 holds for a store of another node as for this one's: the log goes first.
 * Nothing of this goes into this node's log.
 */
static int ship_batch(struct cache *c, struct wb_region *r, struct wb_batch *b)
{
	int rc = log_flush(c->log, b->flush_to);

	for (unsigned i = 0; i < b->count; i++) {
		const struct store_write *w = &r->write[i];

		r->ship[i] = (struct coherence_ship){.pid = w->pid,
			.incarnation = w->descriptor.incarnation,
			.version = w->descriptor.version,
			.image = (void *)w->image,
			.result = rc};
	}
	if (!rc)
		c->coherence->ops->ship(c->coherence, r->ship, b->count);
	for (unsigned i = 0; i < b->count; i++) {
		const struct coherence_ship *s = &r->ship[i];

		settle_page(c, r, i, !s->result);
		if (!s->result) /* the page's owed image is persisted, too */
			c->coherence->frames->persisted(
				c, s->pid, s->incarnation, s->version);
		rc = rc ? rc : s->result;
	}
	return rc;
}

static bool is_here(const struct cache *c, const struct page_ref *ref)
{
	return coherence_home_here(c->coherence, ref->pid);
}

static int ship_some(struct cache *c, const struct page_ref *refs, unsigned count,
	unsigned *taken, unsigned *written)
{
	struct wb_batch b = {0};
	struct wb_region *r = region_take(c, false);
	int rc = 0;

	r->record_lsn = LSN_NONE;
	*taken = 0;
	while (*taken < count && b.count < c->writeback.pages &&
		!is_here(c, &refs[*taken])) {
		copy_page(c, r, refs[*taken].pid, &b);
		++*taken;
	}
	if (b.count) {
		rc = ship_batch(c, r, &b);
		batch_end(c, r, b.count, rc);
		*written += rc ? 0 : b.count;
	}
	region_give(c, r);
	return rc;
}

/*
 * Images that other nodes shipped to this node's store. If they are logged, half of the log's
 * reserve is not theirs: pages that pin this node's own tail are persisted from that. Returns
 * -EAGAIN if they do not fit now. They come again, and nobody here waits for them.
 */
static int write_shipped(struct cache *c, const struct coherence_ship *ships,
	unsigned count, unsigned *taken)
{
	struct log_room room;
	struct wb_region *r;
	struct wb_batch b;
	int rc;

	*taken = 0;
	if (ships->for_other && !c->recovery.redo && store_writes_tear(c->store) &&
		log_reserve_short(c->log))
		return -EAGAIN;
	rc = batch_reserve_shipped(c, count, &b, &room);
	if (rc)
		return rc;
	r = region_take(c, true);
	while (*taken < count && b.count < r->pages &&
		image_add(c, r, &ships[*taken], &b))
		++*taken;
	rc = c->recovery.redo ? write_batch_redo(c, r, b.count)
			      : write_batch(c, r, &b, &room);
	if (!rc &&
		c->recovery
			.redo) /* no log has the descriptors; the sender ends its own next */
		rc = store_table_write(c->store, LSN_MAX);
	if (!rc)
		tell_persisted(c, r, b.count);
	batch_end(c, r, b.count, rc);
	region_give(c, r);
	log_release(c->log, &room);
	return rc;
}

int writeback_shipped(void *cache, const struct coherence_ship *ships, unsigned count)
{
	struct cache *c = cache;
	unsigned taken;
	int rc = 0;

	while (count && !rc) {
		rc = write_shipped(c, ships, count, &taken);
		ships += taken;
		count -= taken;
	}
	return rc;
}

/* One page of this node's, written back because others wait for it. */
int writeback_own(struct cache *c, page_id pid)
{
	struct log_room room;
	struct wb_batch b;
	struct wb_region *r;
	int rc = batch_reserve_shipped(c, 1, &b, &room);

	if (rc)
		return rc;
	r = region_take(c, true);
	copy_page(c, r, pid, &b);
	if (b.count) {
		rc = write_batch(c, r, &b, &room);
		settle_page(c, r, 0, !rc);
		if (!rc)
			tell_persisted(c, r, b.count);
		batch_end(c, r, b.count, rc);
	}
	region_give(c, r);
	log_release(c->log, &room);
	return rc;
}

/* ---- pages whose home is here -------------------------------------------------------- */

/* One batch of the first pages; *taken says how many it has dealt with. */
static int write_some(struct cache *c, const struct page_ref *refs, unsigned count,
	bool urgent, unsigned *taken, unsigned *written)
{
	struct wb_region *r;
	struct log_room room;
	struct wb_batch b;
	int rc;

	if (!is_here(c, refs))
		return ship_some(c, refs, count, taken, written);
	rc = batch_reserve(c, urgent, count, &b, &room);
	*taken = 0;
	if (rc)
		return rc;
	r = region_take(c, false);
	while (*taken < count && b.count < c->writeback.pages &&
		is_here(c, &refs[*taken]) && copy_page(c, r, refs[*taken].pid, &b))
		++*taken;
	if (b.count) {
		rc = c->recovery.redo ? write_batch_redo(c, r, b.count)
				      : write_batch(c, r, &b, &room);
		for (unsigned i = 0; i < b.count; i++)
			settle_page(c, r, i, !rc);
		if (!rc)
			tell_persisted(c, r, b.count);
		batch_end(c, r, b.count, rc);
		*written += rc ? 0 : b.count;
	}
	region_give(c, r);
	log_release(c->log, &room);
	return rc;
}

int writeback_pages(struct cache *c, struct page_ref *refs, unsigned count, bool urgent,
	unsigned *written)
{
	unsigned taken, sum = 0;
	int rc = 0, away = 0;

	qsort(refs, count, sizeof(*refs), compare_refs);
	while (count && !rc) {
		rc = write_some(c, refs, count, urgent, &taken, &sum);
		if (rc == -EHOSTDOWN) { /* those of that home; others go on */
			away = rc;
			rc = 0;
		}
		refs += taken;
		count -= taken;
	}
	if (written)
		*written = sum;
	return rc ? rc : away;
}

/* ---- writing behind a stream ----------------------------------------------------- */

void cache_write_behind(struct cache *c, const struct page_ref *refs, unsigned count)
{
	if (!c->started || c->options.read_only)
		return;
	while (count) {
		unsigned n = MIN(count, (unsigned)FETCH_MAX);

		if (!queue_put(&c->writeback.behind, refs, n, false))
			return; /* the flusher and the provider will get to them */
		refs += n;
		count -= n;
	}
}

void behind_main(void *arg)
{
	struct cache *c = arg;
	unsigned max = MAX(c->writeback.pages, (uint32_t)FETCH_MAX), n;
	struct prefetch_slot *slot = rt_alloc(sizeof(*slot));
	struct page_ref *refs = rt_alloc((max + FETCH_MAX) * sizeof(*refs));
	uint32_t word;

	while (slot && refs &&
		rt_goes_on(&c->stopping, &c->writeback.behind.word, &word)) {
		for (n = 0; n < max && queue_take(&c->writeback.behind, slot);
			n += slot->count)
			memcpy(refs + n, slot->ref, slot->count * sizeof(*refs));
		if (n)
			writeback_pages(c, refs, n, false, NULL);
		else
			rt_wait(&c->writeback.behind.word, word, RT_FOREVER);
	}
	rt_free(refs);
	rt_free(slot);
}
