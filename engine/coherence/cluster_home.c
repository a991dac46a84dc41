/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The home's work beside its directory: images for others from its store, images of others
 * for its store, dirty pages taken over from who evicts them.
 *
 * Invariant 2: PERSISTED is said of what frames->persist or the write-back has made durable.
 * While an image that was shipped is written, nobody here becomes a writer of the page, so
 * its slot is never written twice at once; where this node is one already, it writes its
 * own image instead, which is a later one.
 */
#include "engine/coherence/cluster_internal.h"

#define RETRY_NS   1000000ull    /* what could not be written now is tried again */
#define GIVE_UP_NS 5000000000ull /* for so long, where the device refuses it */
#define LOOK_NS    10000ull

bool home_newest(const struct dpage *p, uint64_t incarnation, uint64_t version)
{
	const struct page_hold *h = &p->hold;
	int order = page_order(incarnation, version, h->incarnation, h->version);

	/* an owner's version may be past what the hold says; a source's is exact */
	return h->hold == RIGHT_EXCLUSIVE ? order >= 0
	       : h->hold == RIGHT_SOURCE  ? order == 0
					  : false;
}

/* ---- taking over ---------------------------------------------------------------------------- */

/* The home's shared copy would become what is to be persisted: can it? */
static bool can_adopt(
	struct cluster *d, const struct dpage *p, const struct page_message *m)
{
	struct page_hold h = p->hold;
	struct home_entry e = p->entry;
	struct page_actions out = {0};

	if (h.hold != RIGHT_SHARED || home_on_evict(&e, &h, &p->at, m, false, &out) ||
		h.hold != RIGHT_SOURCE)
		return true;
	return d->base.frames->adopt(d->base.cache, p->at.pid, false) == 0;
}

int home_evict(struct cluster *d, struct dpage *p, const struct page_message *m,
	struct page_actions *out)
{
	struct page_hold declines = p->hold;
	const struct coherence_frames *frames = d->base.frames;
	bool wanted = (m->flags & PAGE_DIRTY) && !(m->flags & PAGE_FREED) &&
		      p->hold.hold == RIGHT_NONE && p->hold.phase == PHASE_QUIET &&
		      m->sender != d->o.self && !p->wish;
	void *image = NULL;
	uint32_t frame;
	bool room = wanted && !frames->place(d->base.cache, p->at.pid, &frame, &image);
	bool pulls = false;
	int e;

	declines.phase = PHASE_ARRIVED;
	e = home_on_evict(&p->entry, can_adopt(d, p, m) ? &p->hold : &declines, &p->at, m,
		room, out);

	for (unsigned i = 0; i < out->count; i++)
		pulls |= out->list[i].kind == PAGE_PULL;
	if (pulls)
		p->hold.place = place_of(d, image);
	else if (room)
		frames->placed(d->base.cache, p->at.pid, 0, 0, PAGE_INVALID);
	return e;
}

static void pull_end(struct cluster *d, struct dpage *p, unsigned from, int result)
{
	struct page_actions out = {0};
	struct page_hold *h = &p->hold;
	enum page_mode mode =
		h->granted == RIGHT_EXCLUSIVE ? PAGE_EXCLUSIVE : PAGE_SHARED;

	d->base.frames->placed(d->base.cache, p->at.pid, h->next_incarnation,
		h->next_version, result ? PAGE_INVALID : mode);
	if (result) /* the link has gone, or the epoch: what was under way ends with it */
		return;
	DCOUNT(d, taken_over);
	WEFT_ASSERT(!home_pulled(&p->entry, h, &p->at, from, &out));
	page_perform(d, p, NULL, &out);
}

/* What was read is not what the evicting node has. True: it is being read once more. */
static bool pull_again(struct cluster *d, struct image_op *x)
{
	if (++x->failures < NET_CHECKSUM_TRIES &&
		!net_post(net_peer_find(d->o.net, (uint16_t)x->from), &x->op, NET_MORE))
		return true;
	wire_image_cut(d, x->from);
	return false;
}

static void pull_done(struct net_op *op)
{
	struct image_op *x = op->owner;
	struct cluster *d = x->d;
	page_id pid = x->p->at.pid;
	struct dpage *p = page_lock(d, pid);
	int result = op->result;

	WEFT_ASSERT(p == x->p);
	if (!result && x->epoch == view_epoch(d) &&
		!wire_read_whole(d, x->from, op->local, x->sum)) {
		if (pull_again(d, x)) {
			page_unlock(d, pid, p);
			return;
		}
		result = -EBADMSG;
	}
	p->refs--;
	pull_end(d, p, x->from, x->epoch == view_epoch(d) ? result : -ECANCELED);
	image_op_put(x);
	page_unlock_more(d, pid, p);
	if (result) /* else the network does, behind the last of a batch */
		net_flush(d->o.net);
}

void home_pull(struct cluster *d, struct dpage *p, const struct page_action *a)
{
	struct image_op *x = image_op_take(d, p);
	struct net_peer *peer = net_peer_find(d->o.net, a->m.sender);
	int e = -ENOMEM;

	if (x) {
		x->from = a->m.sender;
		x->sum = a->m.sum;
		x->op.kind = NET_READ;
		x->op.region = place_region(a->m.place);
		x->op.offset = place_offset(a->m.place);
		x->op.local = place_memory(d, p->hold.place);
		x->op.length = PAGE_SIZE;
		x->op.done = pull_done;
		x->op.owner = x;
		/* with those of the batch: one doorbell (ScaleStore §4.3) */
		e = view_joined(d, a->m.sender) ? net_post(peer, &x->op, NET_MORE)
						: -ENOTCONN;
	}
	if (!e) {
		p->refs++;
		return;
	}
	if (x)
		image_op_put(x);
	pull_end(d, p, a->m.sender, e);
	if (e != -ENOTCONN)
		wire_cut(d, a->m.sender, e, "cannot read the image of", &a->m);
}

/* ---- jobs -------------------------------------------------------------------------------------- */

static void job_put(struct job_queue *q, struct job *j)
{
	j->next = NULL;
	rt_mutex_lock(&q->lock);
	*q->end = j;
	q->end = &j->next;
	rt_mutex_unlock(&q->lock);
	atomic_fetch_add_explicit(&q->word, 1, memory_order_release);
	rt_wake(&q->word, 1);
}

static struct job *job_take(struct job_queue *q)
{
	struct job *j;

	rt_mutex_lock(&q->lock);
	j = q->first;
	if (j)
		q->first = j->next;
	if (!q->first)
		q->end = &q->first;
	rt_mutex_unlock(&q->lock);
	return j;
}

int job_later(struct cluster *d, struct dpage *p, enum job_kind kind, unsigned node,
	uint64_t place, const struct page_message *m)
{
	struct job *j = rt_alloc(sizeof(*j));

	if (!j)
		return -ENOMEM;
	j->kind = kind;
	j->p = p;
	j->node = node;
	j->place = place;
	j->epoch = view_epoch(d);
	if (m)
		j->m = *m;
	p->refs++;
	job_put(kind == JOB_PERSIST ? &d->persist_jobs : &d->home_jobs, j);
	return 0;
}

/* The page's record, locked, at a job's end. */
static struct dpage *job_page(struct cluster *d, struct job *j)
{
	WEFT_ASSERT(page_lock(d, j->p->at.pid) == j->p);
	return j->p;
}

/* Granted to a call of this node's that has waited for others for long: it was not used,
 * and its frame is still blank, or what it was when it was asked for. */
static bool granted_unused(struct dpage *p, struct coherence_image *image)
{
	const struct wish *w = p->wish;

	if (!w || !w->done ||
		!atomic_load_explicit(&w->batch->left, memory_order_relaxed) ||
		rt_now_ns() < p->arrived_ns + ARRIVED_NS)
		return false;
	*image = (struct coherence_image){
		.image = w->request->image,
		.incarnation = p->stored_incarnation,
		.version = p->stored_version,
	};
	if (w->request->held != PAGE_INVALID && !w->request->held_hollow) {
		image->incarnation = w->request->held_incarnation;
		image->version = w->request->held_version;
		image->dirty = w->request->held_dirty;
		p->flush_to = w->request->held_flush_to;
	}
	return true;
}

/* Whose the page is: nobody's, or this node's, as its frame says. False: not known yet. */
static bool run_open(struct cluster *d, struct job *j)
{
	page_id pid = j->p->at.pid;
	struct page_descriptor stored;
	struct coherence_image image;
	int e = store_descriptor_get(d->o.store, pid, &stored), look;
	struct dpage *p = job_page(d, j);

	if (!e && page_order(p->stored_incarnation, p->stored_version, stored.incarnation,
			  stored.version) < 0) {
		p->stored_incarnation = stored.incarnation;
		p->stored_version = stored.version;
	}
	look = d->base.frames->look(d->base.cache, pid, &image);
	if (look == -EAGAIN && granted_unused(p, &image))
		look = 0;
	else if (look == -EAGAIN && p->wish && !p->wish->done &&
		 p->wish->request->held == PAGE_INVALID)
		look = -ENOENT; /* blank, till what is found out here is known */
	if (e || look == -EAGAIN) {
		page_unlock(d, pid, p);
		return false;
	}
	page_opened(d, p, look ? NULL : &image);
	p->refs--;
	page_unlock(d, pid, p);
	return true;
}

/*
 * Reads the image. Who owes an older one may have it persisted meanwhile (a page that was
 * allocated anew and never written is fetched so): then it is read again. The record is
 * locked at the end. NULL: later.
 */
static struct dpage *read_stored(struct cluster *d, struct job *j, struct store_read *r)
{
	struct dpage *p = job_page(d, j);
	uint64_t incarnation = p->entry.stored_incarnation;
	uint64_t version = p->entry.stored_version;
	bool quiet = !p->persisting || j->epoch != view_epoch(d);

	page_unlock(d, r->pid, p);
	if (quiet)
		store_read_pages(d->o.store, r, 1);
	p = job_page(d, j);
	if (j->epoch != view_epoch(d) ||
		(quiet && !p->persisting && p->entry.stored_incarnation == incarnation &&
			p->entry.stored_version == version))
		return p;
	page_unlock(d, r->pid, p);
	return NULL;
}

/* An image of the store's for a message: to another node, or into a frame of this one. */
static bool run_store(struct cluster *d, struct job *j)
{
	page_id pid = j->p->at.pid;
	void *buffer = rt_alloc_pages(PAGE_SIZE);
	struct store_read r = {.pid = pid, .image = buffer};
	struct dpage *p = buffer ? read_stored(d, j, &r) : NULL;

	if (!p) {
		if (buffer)
			rt_free_pages(buffer, PAGE_SIZE);
		return false;
	}
	p->refs--;
	if (j->epoch != view_epoch(d)) { /* nobody waits for it any more */
		rt_free_pages(buffer, PAGE_SIZE);
		page_unlock(d, pid, p);
		return true;
	}
	if (r.result < 0 || page_order(r.found_incarnation, r.version, j->m.incarnation,
				    j->m.version) < 0)
		j->m.flags |= PAGE_DAMAGED;
	if (!(j->m.flags & PAGE_DAMAGED)) { /* persisted since it was said */
		j->m.incarnation = r.found_incarnation;
		j->m.version = r.version;
	}
	if (j->node != d->o.self) {
		wire_send_image(d, p, j->node, &j->m, j->place, buffer);
	} else {
		racy_copy(place_memory(d, j->place), buffer, PAGE_SIZE);
		rt_free_pages(buffer, PAGE_SIZE);
		page_deliver(d, p, &j->m);
	}
	page_unlock(d, pid, p);
	return true;
}

void home_main(void *arg)
{
	struct cluster *d = arg;
	struct job_queue *q = &d->home_jobs;
	uint32_t word;

	while (rt_goes_on(&d->stopping, &q->word, &word)) {
		struct job *j = job_take(q);
		bool done;

		if (!j) {
			rt_wait(&q->word, word, RT_FOREVER);
			continue;
		}
		done = j->kind == JOB_OPEN ? run_open(d, j) : run_store(d, j);
		if (done) {
			rt_free(j);
		} else {
			rt_sleep_ns(LOOK_NS);
			job_put(q, j);
		}
	}
}

/* ---- shipped images ------------------------------------------------------------------------------ */

/* Jobs that are done together: one record in the log, one flush, for all their images. */
struct persisting {
	unsigned count;
	struct job *job[PERSIST_BATCH];
	struct net_op op[PERSIST_BATCH];
	bool read[PERSIST_BATCH], needed[PERSIST_BATCH], changed[PERSIST_BATCH];
	struct coherence_ship ship[PERSIST_BATCH];
	uint8_t *images;
};

static void *persist_buffer(const struct persisting *b, unsigned i)
{
	return b->images + (size_t)i * PAGE_SIZE;
}

/* Begins it; or has it, where the image is here. */
static void persist_read(struct cluster *d, struct persisting *b, unsigned i)
{
	const struct job *j = b->job[i];
	struct net_peer *peer = net_peer_find(d->o.net, j->m.sender);
	struct net_op *op = &b->op[i];
	int e;

	b->read[i] = true;
	*op = (struct net_op){
		.kind = NET_READ,
		.region = place_region(j->m.place),
		.offset = place_offset(j->m.place),
		.local = persist_buffer(b, i),
		.length = PAGE_SIZE,
		.state = NET_OP_DONE,
	};
	if (j->m.sender == d->o.self) {
		memcpy(op->local, place_memory(d, j->m.place), PAGE_SIZE);
		return;
	}
	op->state = NET_OP_PENDING;
	while ((e = net_post(peer, op, NET_MORE)) == -EAGAIN)
		if (net_wait_room(peer, RT_FOREVER))
			break;
	b->read[i] = !e;
}

static void persist_reads(struct cluster *d, struct persisting *b)
{
	for (unsigned i = 0; i < b->count; i++)
		persist_read(d, b, i);
	net_flush(d->o.net);
	for (unsigned i = 0; i < b->count; i++) {
		const struct job *j = b->job[i];

		if (b->read[i] && j->m.sender != d->o.self)
			b->read[i] = !net_op_wait(
				net_peer_find(d->o.net, j->m.sender), &b->op[i]);
	}
}

static bool persisted_already(const struct dpage *p, const struct page_message *m)
{
	return page_order(p->entry.stored_incarnation, p->entry.stored_version,
		       m->incarnation, m->version) >= 0;
}

/* Still newer than what is persisted? Else who shipped it may have been told, and has
 * used its memory for something else; as it may in another epoch. */
static bool persist_needed(struct cluster *d, struct job *j)
{
	struct dpage *p = job_page(d, j);
	bool needed = j->epoch == view_epoch(d) && !persisted_already(p, &j->m);

	p->storing = needed;
	page_unlock(d, p->at.pid, p);
	return needed;
}

/* A shipment of another epoch is not answered: who shipped it does so again. Its end. */
static bool persist_void(struct cluster *d, struct job *j, struct dpage *p)
{
	if (j->epoch == view_epoch(d))
		return false;
	p->refs--;
	return true;
}

/* `done`: its image is persisted, or need not be. False: once more. */
static bool persist_end(
	struct cluster *d, struct job *j, bool read, bool needed, bool done)
{
	struct page_actions out = {0};
	struct dpage *p = job_page(d, j);

	p->persisting = p->storing = false;
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

static void job_done(struct cluster *d, struct job *j, bool done, bool *again)
{
	if (done) {
		rt_free(j);
		return;
	}
	*again = true;
	job_put(&d->persist_jobs, j);
}

/*
 * Who has shipped it waits for this node alone: where the device refuses it for long the log
 * ends, with which this node leaves.
 */
static void persist_failed(struct cluster *d, struct job *j, int e)
{
	uint64_t now = rt_now_ns();

	if (!e)
		j->failing_ns = 0;
	if (!e || e == -EAGAIN || e == -ENOBUFS || e == -ENOSPC || e == -ENOMEM)
		return;
	if (!j->failing_ns)
		j->failing_ns = now;
	else if (now - j->failing_ns >= GIVE_UP_NS)
		log_give_up(d->o.log, e);
}

/*
 * Is what was read the image that was shipped? If not, the job is done once more, or the link is
 * cut. Only an image that is still needed tells: other memory may have been used again.
 */
static bool persist_changed(struct cluster *d, struct job *j, const void *image)
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
static int persist_ships(struct cluster *d, struct persisting *b, bool for_other)
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

static void persist_images(struct cluster *d, struct persisting *b, bool *again)
{
	int own, others;

	persist_reads(d, b);
	for (unsigned i = 0; i < b->count; i++) {
		b->needed[i] = b->read[i] && persist_needed(d, b->job[i]);
		b->changed[i] = b->needed[i] &&
				persist_changed(d, b->job[i], persist_buffer(b, i));
		b->needed[i] &= !b->changed[i];
	}
	own = persist_ships(d, b, false);
	others = persist_ships(d, b, true);
	for (unsigned i = 0; i < b->count; i++) {
		struct job *j = b->job[i];
		int e = j->m.sender == d->o.self ? own : others;

		if (b->needed[i])
			persist_failed(d, j, e);
		job_done(d, j,
			persist_end(d, j, b->read[i], b->needed[i],
				b->needed[i] ? !e : b->read[i] && !b->changed[i]),
			again);
	}
	net_flush(d->o.net); /* all who shipped are told together */
	b->count = 0;
}

/*
 * This node has the page, and what it has is no later version of the image: the page was
 * allocated anew, perhaps by a node that let go of it unwritten, which nobody remembers
 * then. The image is nobody's.
 */
static bool renewed_since(
	struct cluster *d, struct dpage *p, const struct page_message *m)
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
	p->entry.incarnation = MAX(p->entry.incarnation, incarnation);
	return true;
}

/* This node may change the page: its own image is the later one. */
static bool persist_own(struct cluster *d, struct job *j)
{
	page_id pid = j->p->at.pid;
	int e = d->base.frames->write_back(d->base.cache, pid);
	struct dpage *p;
	bool done;

	persist_failed(d, j, e);
	p = job_page(d, j);
	if (persist_void(d, j, p)) {
		page_unlock(d, pid, p);
		return true;
	}
	done = !e && (persisted_already(p, &j->m) || renewed_since(d, p, &j->m));
	if (done) {
		p->refs--;
		page_deliver(d, p, &j->m); /* tells who shipped it */
	}
	page_unlock(d, pid, p);
	return done;
}

/* Its end, or its part in what is done together. */
static void run_persist(
	struct cluster *d, struct job *j, struct persisting *b, bool *again)
{
	struct dpage *p = job_page(d, j);
	/* a request's frame is latched until it ends, and it ends after this: what the
	 * request waits for may wait for this image */
	bool writer = !p->wish &&
		      (p->hold.hold == RIGHT_EXCLUSIVE || p->hold.hold == RIGHT_SOURCE);
	/* or one that is being taken over, which is dirty when it is here */
	bool busy = p->persisting || (p->hold.phase == PHASE_GATHERING && !p->wish);

	if (persist_void(d, j, p)) {
		page_unlock(d, p->at.pid, p);
		rt_free(j);
		return;
	}
	if (!writer && !busy)
		p->persisting = true;
	page_unlock(d, p->at.pid, p);
	if (busy)
		job_done(d, j, false, again);
	else if (writer)
		job_done(d, j, persist_own(d, j), again);
	else
		b->job[b->count++] = j;
}

/* As many as there were at the beginning, and may be done together. */
static bool run_persists(struct cluster *d, struct persisting *b, bool *again)
{
	struct job *j[PERSIST_BATCH];
	unsigned count = 0;

	while (count < PERSIST_BATCH && (j[count] = job_take(&d->persist_jobs)))
		count++;
	for (unsigned i = 0; i < count; i++)
		run_persist(d, j[i], b, again);
	if (b->count)
		persist_images(d, b, again);
	return count;
}

void persist_main(void *arg)
{
	struct cluster *d = arg;
	struct job_queue *q = &d->persist_jobs;
	struct persisting *b = rt_alloc(sizeof(*b));
	uint32_t word;

	if (b)
		b->images = rt_alloc_pages(PERSIST_BATCH * PAGE_SIZE);
	while (b && b->images && rt_goes_on(&d->stopping, &q->word, &word)) {
		bool again = false;

		if (!run_persists(d, b, &again))
			rt_wait(&q->word, word, RT_FOREVER);
		else if (again)
			rt_sleep_ns(RETRY_NS);
	}
	if (b && b->images)
		rt_free_pages(b->images, PERSIST_BATCH * PAGE_SIZE);
	rt_free(b);
}
