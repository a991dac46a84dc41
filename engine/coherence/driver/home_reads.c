/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The home reads its store for other nodes: descriptors of pages without an entry, and images that
 * no frame has. A task reads all that waits in one call of the store, so pages in a row cost one
 * request of the device.
 */
#include "engine/coherence/driver/driver_internal.h"

#define HOME_BATCH 256u   /* jobs that a task takes at once */
#define LOOK_NS    10000u /* between two tries of jobs that had to wait */

/* ---- what a page is ------------------------------------------------------------------------ */

/* Returns true if the call has the page, and has waited for others for long. */
static bool waits_long(const struct page_record *p)
{
	return atomic_load_explicit(&p->pending->batch->left, memory_order_relaxed) &&
	       rt_now_ns() >= p->arrived_ns + ARRIVED_NS;
}

/*
 * Returns true if a request of this node has the frame latched, has not used it, and may last. The
 * frame is still blank, or as it was at the request. Either the page was granted to a call that has
 * waited for others for long. Or the request waits for this very look: the node may read the page,
 * and asks for the right to change it.
 */
static bool latched_unused(struct page_record *p, struct coherence_image *image)
{
	const struct pending_request *w = p->pending;
	bool has = w && w->request->held != PAGE_INVALID && !w->request->held_hollow;

	if (!w || !(w->done ? waits_long(p) : has))
		return false;
	*image = (struct coherence_image){
		.image = w->request->image,
		.incarnation = p->stored_incarnation,
		.version = p->stored_version,
	};
	if (has) {
		image->incarnation = w->request->held_incarnation;
		image->version = w->request->held_version;
		image->dirty = w->request->held_dirty;
		p->flush_to = w->request->held_flush_to;
	}
	return true;
}

/* The descriptor cannot be read: requests for the page are refused. Returns false if other work
 * needs the entry; that waits for the next try. */
static bool open_failed(struct page_driver *d, struct page_record *p, int error)
{
	page_refuse_requests(d, p, error);
	pending_done(d, p, error);
	if (p->deferred || p->reported || p->awaited)
		return false;
	p->work = WORK_NONE;
	return true;
}

/* Finds out from the frame if this node has the page, or no node. Returns false if that is not
 * known yet. */
static bool run_open(struct page_driver *d, struct job *j)
{
	page_id pid = j->p->at.pid;
	struct page_descriptor stored;
	struct coherence_image image;
	int rc = store_descriptor_get(d->o.store, pid, &stored), look;
	struct page_record *p = job_page(d, j);
	bool done = false;

	if (!rc && page_order(p->stored_incarnation, p->stored_version,
			   stored.incarnation, stored.version) < 0) {
		p->stored_incarnation = stored.incarnation;
		p->stored_version = stored.version;
	}
	look = d->base.frames->look(d->base.cache, pid, &image);
	if (look == -EAGAIN && latched_unused(p, &image))
		look = 0;
	else if (look == -EAGAIN && p->pending && !p->pending->done &&
		 p->pending->request->held == PAGE_INVALID)
		look = -ENOENT; /* blank until the result of this job is known */
	if (rc == -EIO || rc == -EUCLEAN)
		done = open_failed(d, p, rc);
	if (rc || look == -EAGAIN) {
		p->refs -= done;
		page_unlock_more(d, pid, p);
		return done;
	}
	page_opened(d, p, look ? NULL : &image);
	p->refs--;
	page_unlock_more(d, pid, p);
	return true;
}

/* ---- images for other nodes ---------------------------------------------------------------- */

/* Images that are read together. */
struct home_reads {
	struct job *taken[HOME_BATCH];
	unsigned count;
	struct job *job[HOME_BATCH];
	struct store_read read[HOME_BATCH];
	/* the version that the entry named before the read */
	uint64_t incarnation[HOME_BATCH], version[HOME_BATCH];
};

/* Ends a job of an earlier epoch: nobody waits for it any more. Unlocks the page. */
static bool read_void(struct page_driver *d, struct job *j, struct page_record *p)
{
	if (j->epoch == view_epoch(d))
		return false;
	p->refs--;
	page_unlock_more(d, p->at.pid, p);
	rt_free(j);
	return true;
}

/* Makes the image part of the batch. Returns false if the job must be tried later. */
static bool read_begin(struct page_driver *d, struct home_reads *b, struct job *j)
{
	struct page_record *p = job_page(d, j);
	page_id pid = p->at.pid;
	bool persists = record_persists(p);
	void *image;

	if (read_void(d, j, p))
		return true;
	b->incarnation[b->count] = p->entry.stored_incarnation;
	b->version[b->count] = p->entry.stored_version;
	page_unlock_more(d, pid, p);
	image = persists ? NULL : home_image_take(d);
	if (!image)
		return false;
	b->job[b->count] = j;
	b->read[b->count++] = (struct store_read){.pid = pid, .image = image};
	return true;
}

/* An image of the store's for a message: to another node, or into a frame of this one. */
static void read_send(struct page_driver *d, struct job *j, struct page_record *p,
	const struct store_read *r)
{
	if (r->result < 0 || page_order(r->found_incarnation, r->version,
				     j->m.incarnation, j->m.version) < 0)
		j->m.flags |= PAGE_DAMAGED;
	if (!(j->m.flags & PAGE_DAMAGED)) { /* persisted since it was said */
		j->m.incarnation = r->found_incarnation;
		j->m.version = r->version;
	}
	if (j->node != d->o.self) {
		wire_send_image(d, p, j->node, &j->m, j->place, r->image);
		return;
	}
	racy_copy(place_memory(d, j->place), r->image, PAGE_SIZE);
	home_image_put(d, r->image);
	page_deliver(d, p, &j->m);
}

/*
 * Sends the image that was read. The node that owes an older one may have it persisted meanwhile.
 * (A page that was allocated anew and never written is fetched so.) Then the image is read again.
 * Returns false if the job must be tried later.
 */
static bool read_end(struct page_driver *d, struct home_reads *b, unsigned i)
{
	struct job *j = b->job[i];
	struct store_read *r = &b->read[i];
	struct page_record *p = job_page(d, j);
	bool stands = !record_persists(p) &&
		      p->entry.stored_incarnation == b->incarnation[i] &&
		      p->entry.stored_version == b->version[i];

	if (j->epoch != view_epoch(d) || !stands)
		home_image_put(d, r->image);
	if (read_void(d, j, p))
		return true;
	if (stands) {
		p->refs--;
		read_send(d, j, p, r);
	}
	page_unlock_more(d, r->pid, p);
	if (stands)
		rt_free(j);
	return stands;
}

static void job_again(struct page_driver *d, struct job *j, bool *again)
{
	job_put(&d->home_jobs, j);
	*again = true;
}

/* Does the jobs that wait. Returns false if there are none. */
static bool run_jobs(struct page_driver *d, struct home_reads *b, bool *again)
{
	unsigned taken = jobs_take(&d->home_jobs, b->taken, HOME_BATCH);

	b->count = 0;
	for (unsigned i = 0; i < taken; i++) {
		struct job *j = b->taken[i];
		bool opens = j->kind == JOB_OPEN;

		if (!(opens ? run_open(d, j) : read_begin(d, b, j)))
			job_again(d, j, again);
		else if (opens)
			rt_free(j);
	}
	net_flush(d->o.net);
	if (b->count)
		store_read_pages(d->o.store, b->read, b->count);
	for (unsigned i = 0; i < b->count; i++)
		if (!read_end(d, b, i))
			job_again(d, b->job[i], again);
	net_flush(d->o.net);
	return taken;
}

void home_main(void *arg)
{
	struct page_driver *d = arg;
	struct job_queue *q = &d->home_jobs;
	struct home_reads *b = rt_alloc(sizeof(*b));
	uint32_t word;

	while (b && rt_goes_on(&d->stopping, &q->word, &word)) {
		bool again = false;

		if (!run_jobs(d, b, &again))
			jobs_wait(q, word);
		else if (again)
			rt_sleep_ns(LOOK_NS);
	}
	rt_free(b);
}
