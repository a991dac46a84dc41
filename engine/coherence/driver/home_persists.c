/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The home persists images that other nodes shipped. A task reads all that wait from the nodes'
 * memories, and writes them in one batch of the cache.
 *
 * Invariant 2: PERSISTED is sent only for images that frames->persist or the write-back has made
 * durable. While a shipped image is written, this node does not become a writer of the page, so its
 * slot is never written twice at once. If it already is a writer, it writes its own, later image
 * instead.
 */
#include "engine/coherence/driver/driver_internal.h"

#define RETRY_NS      1000000ull    /* a job that could not be done is tried again */
#define GIVE_UP_NS    5000000000ull /* for so long, where the device refuses it */
#define PERSIST_READS 16u           /* operations of a task at once */

/* Jobs that are done together: one record in the log, one flush, for all their images. */
struct persisting {
	unsigned count;
	struct job *job[PERSIST_BATCH];
	struct net_op op[PERSIST_BATCH];
	unsigned run[PERSIST_BATCH]; /* images that the operation reads */
	bool read[PERSIST_BATCH], needed[PERSIST_BATCH], changed[PERSIST_BATCH];
	struct coherence_ship ship[PERSIST_BATCH];
	uint8_t *images;
};

static void *persist_buffer(const struct persisting *b, unsigned i)
{
	return b->images + (size_t)i * PAGE_SIZE;
}

/* Returns the number of images from the i-th on that lie one behind the other at one node. */
static unsigned persist_run(const struct persisting *b, unsigned i)
{
	const struct page_message *first = &b->job[i]->m;
	unsigned n = 1;

	while (i + n < b->count && b->job[i + n]->m.sender == first->sender &&
		b->job[i + n]->m.place == first->place + n * PAGE_SIZE)
		n++;
	return n;
}

/* Begins to read images that lie one behind the other. Images of this node are copied. */
static bool persist_read(
	struct page_driver *d, struct persisting *b, unsigned i, unsigned pages)
{
	const struct page_message *m = &b->job[i]->m;
	struct net_peer *peer = net_peer_find(d->o.net, m->sender);
	struct net_op *op = &b->op[i];
	int rc;

	*op = (struct net_op){
		.kind = NET_READ,
		.region = place_region(m->place),
		.offset = place_offset(m->place),
		.local = persist_buffer(b, i),
		.length = pages * PAGE_SIZE,
		.state = NET_OP_DONE,
	};
	if (m->sender == d->o.self) {
		for (unsigned k = 0; k < pages; k++)
			memcpy(persist_buffer(b, i + k),
				place_memory(d, b->job[i + k]->m.place), PAGE_SIZE);
		return true;
	}
	op->state = NET_OP_PENDING;
	while ((rc = net_post(peer, op, NET_MORE)) == -EAGAIN)
		if (net_wait_room(peer, RT_FOREVER))
			break;
	return !rc;
}

/* Reads images from the i-th on, with a few operations at once: an eviction needs some of those
 * that a link can have. Returns the index behind the last. */
static unsigned persist_read_some(struct page_driver *d, struct persisting *b, unsigned i)
{
	unsigned first = i, pages;

	for (unsigned n = 0; n < PERSIST_READS && i < b->count; n++, i += pages) {
		pages = persist_run(b, i);
		b->read[i] = persist_read(d, b, i, pages);
		b->run[i] = pages;
	}
	net_flush(d->o.net);
	for (unsigned k = first; k < i; k += pages) {
		const struct page_message *m = &b->job[k]->m;

		pages = b->run[k];
		if (b->read[k] && m->sender != d->o.self)
			b->read[k] = !net_op_wait(
				net_peer_find(d->o.net, m->sender), &b->op[k]);
		for (unsigned n = 1; n < pages; n++)
			b->read[k + n] = b->read[k];
	}
	return i;
}

static bool persisted_already(const struct page_record *p, const struct page_message *m)
{
	return page_order(p->entry.stored_incarnation, p->entry.stored_version,
		       m->incarnation, m->version) >= 0;
}

/* Returns true if the image is still newer than the persisted one. If not, or in another epoch, the
 * sender may have been told so. Then it may have used its memory for something else. */
static bool persist_needed(struct page_driver *d, struct job *j)
{
	struct page_record *p = job_page(d, j);
	bool needed = j->epoch == view_epoch(d) && !persisted_already(p, &j->m);

	p->work = needed ? WORK_STORING : WORK_PERSISTING;
	page_unlock_more(d, p->at.pid, p);
	return needed;
}

/* Ends a shipment of another epoch without an answer: the sender ships it again. */
static bool persist_void(struct page_driver *d, struct job *j, struct page_record *p)
{
	if (j->epoch == view_epoch(d))
		return false;
	p->refs--;
	return true;
}

/* `done`: its image is persisted, or need not be. Returns false if it must be tried once more. */
static bool persist_end(
	struct page_driver *d, struct job *j, bool read, bool needed, bool done)
{
	struct page_actions out = {0};
	struct page_record *p = job_page(d, j);

	p->work = WORK_NONE;
	p->replay = true;
	if (done && (needed || j->epoch == view_epoch(d))) {
		if (j->epoch != view_epoch(d))
			j->m.flags |=
				PAGE_OWED; /* its conflict epoch means nothing now */
		p->refs--;
		WEFT_ASSERT(!home_persisted(&p->entry, &p->at, &j->m, &out));
		page_note_may(p);
		page_perform(d, p, &j->m, &out);
	} else if (!read || j->epoch != view_epoch(d)) {
		p->refs--; /* it is shipped again when the link is back */
		done = true;
	}
	page_rebuild(d, p); /* if that has waited for this */
	page_unlock_more(d, p->at.pid, p);
	return done;
}

static void job_done(struct page_driver *d, struct job *j, bool done, bool *again)
{
	if (done) {
		rt_free(j);
		return;
	}
	*again = true;
	job_put(&d->persist_jobs, j);
}

/* The sender of the image waits for this node alone. If the device refuses the write for long, the
 * log ends, and this node leaves with it. */
static void persist_failed(struct page_driver *d, struct job *j, int rc)
{
	uint64_t now = rt_now_ns();

	if (!rc)
		j->failing_ns = 0;
	if (!rc || rc == -EAGAIN || rc == -ENOBUFS || rc == -ENOSPC || rc == -ENOMEM)
		return;
	if (!j->failing_ns)
		j->failing_ns = now;
	else if (now - j->failing_ns >= GIVE_UP_NS)
		log_give_up(d->o.log, rc);
}

/* Checks that the bytes that were read are the shipped image. If not, the job is done once more, or
 * the link is cut. Only an image that is still needed tells: other memory may have been used again.
 */
static bool persist_changed(struct page_driver *d, struct job *j, const void *image)
{
	if (j->m.sender == d->o.self ||
		wire_read_whole(d, j->m.sender, image, j->m.sum)) {
		j->failures = 0;
		return false;
	}
	if (++j->failures % NET_CHECKSUM_TRIES == 0)
		wire_image_cut(d, j->m.sender);
	return true;
}

/* Those of other nodes, or this node's own: of the former the cache may want none now. */
static int persist_ships(struct page_driver *d, struct persisting *b, bool for_other)
{
	unsigned count = 0;

	for (unsigned i = 0; i < b->count; i++) {
		const struct job *j = b->job[i];

		if (b->needed[i] && (j->m.sender != d->o.self) == for_other)
			b->ship[count++] = (struct coherence_ship){.pid = j->p->at.pid,
				.incarnation = j->m.incarnation,
				.version = j->m.version,
				.image = persist_buffer(b, i),
				.for_other = for_other};
	}
	return count ? d->base.frames->persist(d->base.cache, b->ship, count) : 0;
}

static void persist_images(struct page_driver *d, struct persisting *b, bool *again)
{
	int own, others;

	for (unsigned i = 0; i < b->count;)
		i = persist_read_some(d, b, i);
	for (unsigned i = 0; i < b->count; i++) {
		b->needed[i] = b->read[i] && persist_needed(d, b->job[i]);
		b->changed[i] = b->needed[i] &&
				persist_changed(d, b->job[i], persist_buffer(b, i));
		b->needed[i] &= !b->changed[i];
	}
	net_flush(d->o.net); /* the device may take long */
	own = persist_ships(d, b, false);
	others = persist_ships(d, b, true);
	for (unsigned i = 0; i < b->count; i++) {
		struct job *j = b->job[i];
		int rc = j->m.sender == d->o.self ? own : others;

		if (b->needed[i])
			persist_failed(d, j, rc);
		job_done(d, j,
			persist_end(d, j, b->read[i], b->needed[i],
				b->needed[i] ? !rc : b->read[i] && !b->changed[i]),
			again);
	}
	b->count = 0;
}

/*
 * Returns true if this node has the page, and its image is no later version of the shipped one.
 * Then the page was allocated anew. A node that let go of it unwritten may have done that, and
 * nobody remembers it. The shipped image is void.
 */
static bool renewed_since(
	struct page_driver *d, struct page_record *p, const struct page_message *m)
{
	struct coherence_image image;
	uint64_t incarnation;

	if (d->base.frames->look(d->base.cache, p->at.pid, &image))
		return false;
	if (image.incarnation > m->incarnation)
		incarnation = image.incarnation;
	else if (!image.hollow && page_order(image.incarnation, image.version,
					  m->incarnation, m->version) < 0)
		incarnation = m->incarnation + 1;
	else
		return false;
	home_renewed(&p->entry, incarnation);
	return true;
}

/* This node may change the page: its own image is the later one. */
static bool persist_own(struct page_driver *d, struct job *j)
{
	page_id pid = j->p->at.pid;
	int rc = d->base.frames->write_back(d->base.cache, pid);
	struct page_record *p;
	bool done;

	persist_failed(d, j, rc);
	p = job_page(d, j);
	if (persist_void(d, j, p)) {
		page_unlock_more(d, pid, p);
		return true;
	}
	done = !rc && (persisted_already(p, &j->m) || renewed_since(d, p, &j->m));
	if (done) {
		p->refs--;
		page_deliver(d, p, &j->m); /* tells the sender */
	}
	page_unlock_more(d, pid, p);
	return done;
}

/* Ends the job, or prepares its part of the batch. */
static void run_persist(
	struct page_driver *d, struct job *j, struct persisting *b, bool *again)
{
	struct page_record *p = job_page(d, j);
	/* A request's frame is latched until the request ends, and that is after this job. The
	 * request may wait for this image. */
	bool writer = !p->pending &&
		      (p->hold.hold == RIGHT_EXCLUSIVE || p->hold.hold == RIGHT_SOURCE);
	/* or one that is being taken over, which is dirty when it is here */
	bool busy =
		record_persists(p) || (p->hold.phase == PHASE_GATHERING && !p->pending);

	if (persist_void(d, j, p)) {
		page_unlock_more(d, p->at.pid, p);
		rt_free(j);
		return;
	}
	if (!writer && !busy)
		p->work = WORK_PERSISTING;
	page_unlock_more(d, p->at.pid, p);
	if (busy)
		job_done(d, j, false, again);
	else if (writer)
		job_done(d, j, persist_own(d, j), again);
	else
		b->job[b->count++] = j;
}

/* As many as there were at the beginning, and may be done together. */
static bool run_persists(struct page_driver *d, struct persisting *b, bool *again)
{
	struct job *j[PERSIST_BATCH];
	unsigned count = jobs_take(&d->persist_jobs, j, PERSIST_BATCH);

	for (unsigned i = 0; i < count; i++)
		run_persist(d, j[i], b, again);
	if (b->count)
		persist_images(d, b, again);
	net_flush(d->o.net); /* all nodes that shipped are told together */
	return count;
}

void persist_main(void *arg)
{
	struct page_driver *d = arg;
	struct job_queue *q = &d->persist_jobs;
	struct persisting *b = rt_alloc(sizeof(*b));
	uint32_t word;

	if (b)
		b->images = home_images_take_batch(d);
	while (b && b->images && rt_goes_on(&d->stopping, &q->word, &word)) {
		bool again = false;

		if (!run_persists(d, b, &again))
			jobs_wait(q, word);
		else if (again)
			rt_sleep_ns(RETRY_NS);
	}
	rt_free(b);
}
