/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What happens to a page: messages are handed to the protocol's functions, actions are
 * performed, and the frame is made ready before anything of it is promised.
 *
 * An event that takes something from this node's frame is tried on a copy of the state
 * first, which tells what it would take. Then the frame is weakened to that and says what
 * its image really is (the local hot path changes pages without the driver), and the log
 * must be durable as far as the image needs (invariant 3). Where that cannot be had at
 * once the ask is deferred, as if the page had just arrived, and a giver tries again.
 *
 * A frame that is latched by a request of this node's own (a wish) is not weakened: an
 * upgrade's image does not change, and is copied if it must be owed; a page that was
 * granted to a call which still waits for others is given away before it was used, once it
 * has been kept back for a while, so that two such calls never wait for each other.
 */
#include "engine/coherence/cluster_internal.h"

/* ---- what is taken from the frame --------------------------------------------------------- */

void page_take_image(
	struct cluster *d, struct dpage *p, const struct coherence_image *image)
{
	struct page_hold *h = &p->hold;

	h->place = place_of(d, image->image);
	h->incarnation = image->incarnation;
	h->version = image->version;
	h->flags &= (uint16_t) ~(HOLD_DIRTY | HOLD_HOLLOW);
	h->flags |= (image->dirty ? HOLD_DIRTY : 0) | (image->hollow ? HOLD_HOLLOW : 0);
}

/* Granted to a call that still waits for others, and not used. */
static bool unused_ready(struct cluster *d, struct dpage *p, enum page_mode to)
{
	const struct wish *w = p->wish;

	if (w->result || !atomic_load_explicit(&w->batch->left, memory_order_relaxed))
		return false; /* the call is about to return */
	/* an upgrade's image may have been changed here before */
	if (to == PAGE_INVALID && (p->hold.flags & HOLD_DIRTY) &&
		d->base.frames->owe_copy(d->base.cache, p->at.pid))
		return false;
	DCOUNT(d, given_back);
	if (p->got == GOT_STORE)
		p->hold.flags |= HOLD_HOLLOW; /* it is to be fetched first */
	if (p->got == GOT_ZEROS) {
		racy_clear(w->request->image, PAGE_SIZE);
		p->got = GOT_PEER;
	}
	return true;
}

static bool latched_ready(struct cluster *d, struct dpage *p, enum page_mode to)
{
	if (to == PAGE_INVALID && !d->base.frames->unexposed(d->base.cache, p->at.pid))
		return false;
	/* it was weakened, and not given yet, before the request latched it */
	if (log_durable(d->o.log) < p->flush_to)
		return false;
	if (p->wish->done)
		return unused_ready(d, p, to);
	if (to == PAGE_SHARED)
		return true;
	return !(p->hold.flags & HOLD_DIRTY) ||
	       d->base.frames->owe_copy(d->base.cache, p->at.pid) == 0;
}

/* *busy: `eased` will say when to try again. */
static bool frame_ready(struct cluster *d, struct dpage *p, enum page_mode to, bool *busy)
{
	const struct coherence_frames *frames = d->base.frames;
	struct coherence_image image;
	int e;

	if (p->no_frame)
		return true;
	if (p->wish)
		return latched_ready(d, p, to);
	e = frames->weaken(d->base.cache, p->at.pid, to, &image);
	if (!e && image.hollow && to == PAGE_SHARED) {
		to = PAGE_INVALID; /* its image must come first */
		e = frames->weaken(d->base.cache, p->at.pid, to, &image);
	}
	if (e == -ENOENT) {
		p->no_frame = true;
		p->hold.flags |= HOLD_DAMAGED;
		p->hold.flags &= (uint16_t) ~(HOLD_DIRTY | HOLD_HOLLOW);
		return true;
	}
	*busy = e == -EBUSY;
	if (e == -ETIME)
		atomic_store_explicit(
			&p->give_ns, image.stays_until_ns, memory_order_relaxed);
	if (e)
		return false;
	if (to == PAGE_INVALID)
		p->leaving = true;
	page_take_image(d, p, &image);
	p->flush_to = image.flush_to;
	return log_durable(d->o.log) >= p->flush_to;
}

/* Tries the event on a copy: what it would take from the frame must be ready. */
bool page_give_ready(
	struct cluster *d, struct dpage *p, const struct page_message *m, bool *busy)
{
	struct page_hold h = p->hold;
	struct home_entry e = p->entry;
	struct page_actions out;

	if (h.hold == RIGHT_NONE)
		return true;
	out.count = 0;
	if (h.phase == PHASE_QUIET || h.phase == PHASE_LEAVING)
		h.flags &= (uint16_t)~HOLD_HOLLOW; /* the frame knows better */
	if (page_on_message(&e, &h, &p->at, m, &out))
		return true; /* to be refused */
	if (h.hold == RIGHT_NONE)
		return frame_ready(d, p, PAGE_INVALID, busy);
	if (h.hold == RIGHT_SOURCE && p->hold.hold == RIGHT_EXCLUSIVE)
		return frame_ready(d, p, PAGE_SHARED, busy);
	return true;
}

static bool is_ask(const struct page_message *m)
{
	return m->type == PAGE_COPY || m->type == PAGE_MOVE || m->type == PAGE_INVALIDATE;
}

/* REQUEST, COPY, MOVE, INVALIDATE. */
static int deliver_taking(struct cluster *d, struct dpage *p,
	const struct page_message *m, struct page_actions *out)
{
	uint8_t phase = p->hold.phase;
	bool busy = false;
	int e;

	if ((p->readied && p->hold.hold == RIGHT_EXCLUSIVE) ||
		page_give_ready(d, p, m, &busy))
		return page_on_message(&p->entry, &p->hold, &p->at, m, out);
	if (busy)
		page_ease_later(d, p);
	else
		page_give_later(d, p);
	if (is_ask(m)) {
		page_act(out, PAGE_DEFER)->m = *m;
		return 0;
	}
	/* the home answers at once; its own hold gives later */
	p->hold.phase = PHASE_ARRIVED;
	e = page_on_message(&p->entry, &p->hold, &p->at, m, out);
	p->hold.phase = phase;
	return e;
}

/* ---- messages ------------------------------------------------------------------------------ */

/* Not now, whatever it says: delivered again when that is over. */
static bool must_wait(const struct dpage *p, const struct page_message *m)
{
	if (p->opening)
		return m->type != PAGE_REPORT;
	/* a grant whose image is being read from the store: what the home's own hold had to
	 * give has overtaken it */
	if (m->type == PAGE_GIVEN && p->hold.phase == PHASE_ASKED &&
		m->sender == p->at.home && m->request == p->hold.request)
		return true;
	return p->persisting && (m->type == PAGE_GIVEN || m->type == PAGE_GRANT ||
					m->type == PAGE_EVICT || m->type == PAGE_SHIP);
}

static bool is_for_the_home(const struct page_message *m)
{
	return m->type == PAGE_REQUEST || m->type == PAGE_DROP || m->type == PAGE_EVICT ||
	       m->type == PAGE_FETCH || m->type == PAGE_SHIP;
}

static enum page_mode hold_mode(const struct page_hold *h)
{
	return h->hold == RIGHT_EXCLUSIVE ? PAGE_EXCLUSIVE
	       : h->hold == RIGHT_NONE    ? PAGE_INVALID
					  : PAGE_SHARED;
}

void frame_stays(struct cluster *d, struct dpage *p)
{
	if (!p->leaving || p->no_frame || p->hold.hold == RIGHT_NONE)
		return;
	p->leaving = false;
	d->base.frames->restore(d->base.cache, p->at.pid, hold_mode(&p->hold));
}

static void note_grant(struct dpage *p, const struct page_message *m)
{
	if (m->status && p->wish)
		p->wish->away = m->place;
	if (m->flags & PAGE_HELD)
		p->got = GOT_HELD;
	else if (m->flags & PAGE_STORE)
		p->got = GOT_STORE;
	else
		p->got = GOT_PEER;
}

/* An image that a hollow hold lacked has come: what it holds, or an older incarnation's,
 * which is zeros then (invariant 8). */
static void image_came(struct cluster *d, struct dpage *p, const struct page_message *m)
{
	p->got = GOT_PEER;
	if (m->incarnation < p->hold.incarnation)
		racy_clear(place_memory(d, p->hold.place), PAGE_SIZE);
	if (!p->wish && p->leaving)
		d->base.frames->filled(
			d->base.cache, p->at.pid, p->hold.incarnation, p->hold.version);
}

/*
 * A page that waits for a node that is away: who wants to be rid of it keeps it, and what is
 * shipped is persisted, since of two images the later one wins, whoever has it.
 */
static int deliver_rebuilding(
	struct dpage *p, const struct page_message *m, struct page_actions *out)
{
	struct page_hold none = {0};
	struct home_entry e;

	home_entry_init(&e, 0, p->entry.stored_incarnation, p->entry.stored_version);
	if (m->type == PAGE_EVICT)
		return home_on_evict(&e, &none, &p->at, m, false, out);
	return home_on_ship(&e, &p->at, m, out);
}

static int deliver_reinstate(struct cluster *d, struct dpage *p,
	const struct page_message *m, struct page_actions *out)
{
	int e = rebuild_reinstate(d, p, m, out);

	if (e != -EAGAIN)
		return e;
	page_act(out, PAGE_DEFER)->m = *m;
	page_give_later(d, p);
	return 0;
}

/* A home that leaves: a request of another node to read is granted as such, any other is refused. */
static int deliver_lent(struct cluster *d, struct dpage *p, const struct page_message *m,
	struct page_actions *out)
{
	struct page_message reads = *m;

	if (m->mode != PAGE_SHARED || m->incarnation > p->entry.incarnation) {
		home_refuse(&p->at, m, -EHOSTUNREACH, node_bit(d->o.self), out);
		return 0;
	}
	reads.flags &= (uint16_t)~PAGE_ALONE;
	return deliver_taking(d, p, &reads, out);
}

static int deliver(struct cluster *d, struct dpage *p, const struct page_message *m,
	struct page_actions *out)
{
	bool hollow = m->type == PAGE_GIVEN && p->hold.hold == RIGHT_EXCLUSIVE;
	int e;

	if (is_for_the_home(m) && !p->has_entry)
		return -EPROTO;
	if (is_for_the_home(m) && p->entry.mode == HOME_REBUILDING &&
		(m->type == PAGE_EVICT || m->type == PAGE_SHIP))
		return deliver_rebuilding(p, m, out);
	if (m->type == PAGE_REQUEST && rebuild_awaits(d, p)) {
		home_refuse(&p->at, m, -EHOSTUNREACH, rebuild_awaits(d, p), out);
		return 0;
	}
	if (m->type == PAGE_REPORT)
		return rebuild_report(d, p, m);
	if (m->type == PAGE_REINSTATE)
		return deliver_reinstate(d, p, m, out);
	if (m->type == PAGE_EVICT)
		return home_evict(d, p, m, out);
	if (m->type == PAGE_REQUEST && m->sender != d->o.self &&
		atomic_load_explicit(&d->lends, memory_order_relaxed))
		return deliver_lent(d, p, m, out);
	if (m->type == PAGE_REQUEST || is_ask(m))
		return deliver_taking(d, p, m, out);
	e = page_on_message(&p->entry, &p->hold, &p->at, m, out);
	if (!e && m->type == PAGE_GRANT)
		note_grant(p, m);
	if (!e && hollow)
		image_came(d, p, m);
	return e;
}

void page_deliver(struct cluster *d, struct dpage *p, const struct page_message *m)
{
	struct page_actions out;
	uint8_t was = p->hold.hold;
	int e;

	if (must_wait(p, m)) {
		page_defer(d, p, m);
		return;
	}
	if (!wire_image_whole(d, p, m))
		return;
	out.count = 0;
	e = deliver(d, p, m, &out);
	p->readied = false;
	if (e) {
		page_dump(d, p);
		wire_cut(d, m->sender, e, "cannot send", m);
		return;
	}
	if (m->type == PAGE_PERSISTED)
		d->base.frames->persisted(
			d->base.cache, p->at.pid, m->incarnation, m->version);
	page_note_may(p);
	page_perform(d, p, m, &out);
	if (m->type == PAGE_PERSISTED)
		ships_persisted(d, p, m->incarnation, m->version, 0);
	if (m->type == PAGE_EVICTED)
		evict_answered(d, p, m->flags & PAGE_ACCEPTED);
	else if (was == RIGHT_EXCLUSIVE && p->hold.hold == RIGHT_SOURCE && !p->evicting)
		frame_stays(d, p);
}

/* ---- actions -------------------------------------------------------------------------------- */

void page_frame_free(struct cluster *d, struct dpage *p)
{
	if (!p->vacate || p->ops)
		return;
	p->vacate = false;
	d->base.frames->vacate(d->base.cache, p->at.pid, p->vacate_owe);
}

void frame_dropped(struct cluster *d, struct dpage *p)
{
	bool owe = p->keep_owed;

	p->keep_owed = p->leaving = false;
	if (p->wish)
		p->wish->filled = false;
	if (p->evicting && !p->asked_evict) /* somebody was faster: it is gone */
		evict_answered(d, p, true);
	if (p->wish || p->releasing || p->no_frame) {
		p->no_frame = false;
		return;
	}
	p->vacate = true;
	p->vacate_owe = owe;
	page_frame_free(d, p);
}

/* The home's frame may still be on its way from the store: then it is read once more. */
static bool frame_has_image(
	struct cluster *d, const struct dpage *p, const struct page_message *m)
{
	struct coherence_image image;

	if (page_order(m->incarnation, m->version, p->entry.stored_incarnation,
		    p->entry.stored_version) != 0)
		return true;
	return d->base.frames->look(d->base.cache, p->at.pid, &image) == 0 &&
	       !image.hollow && image.incarnation == m->incarnation &&
	       image.version == m->version;
}

/* The frame is lost: the receiver takes nothing of its own for the image. */
static void send_without(struct cluster *d, unsigned node, const struct page_message *m)
{
	struct page_message without = *m;

	without.flags |= PAGE_DAMAGED;
	wire_send(d, node, &without);
}

static void send_to(struct cluster *d, struct dpage *p, unsigned node,
	const struct page_message *cause, const struct page_action *a)
{
	/* a GRANT's place is the map of who must give */
	uint64_t place = a->m.type == PAGE_GRANT ? cause->place : a->m.place;
	enum page_image image = a->image;

	if (image == IMAGE_FRAME && a->m.type == PAGE_GRANT &&
		!frame_has_image(d, p, &a->m))
		image = IMAGE_STORE;
	if (image == IMAGE_STORE && job_later(d, p, JOB_STORE, node, place, &a->m))
		wire_cut(d, node, -ENOMEM, "no memory to answer", cause);
	else if (image == IMAGE_FRAME && p->no_frame)
		send_without(d, node, &a->m);
	else if (image == IMAGE_FRAME)
		wire_send_image(d, p, node, &a->m, place, NULL);
	else if (image != IMAGE_STORE)
		wire_send(d, node, &a->m);
}

static void perform_send(struct cluster *d, struct dpage *p,
	const struct page_message *cause, const struct page_action *a)
{
	for (node_map left = a->nodes; left; left &= left - 1) {
		unsigned node = (unsigned)__builtin_ctzll(left);

		if (node != d->o.self || a->image == IMAGE_STORE)
			send_to(d, p, node, cause, a);
		else
			page_deliver(d, p, &a->m);
	}
}

void page_perform(struct cluster *d, struct dpage *p, const struct page_message *cause,
	const struct page_actions *out)
{
	for (unsigned i = 0; i < out->count; i++) {
		const struct page_action *a = &out->list[i];

		switch (a->kind) {
		case PAGE_SEND:
			perform_send(d, p, cause, a);
			break;
		case PAGE_DEFER:
			page_defer(d, p, &a->m);
			if (p->hold.phase == PHASE_ARRIVED)
				page_give_later(d, p);
			break;
		case PAGE_REPLAY:
			p->replay = true;
			break;
		case PAGE_WAKE:
			wish_done(d, p, a->m.status);
			break;
		case PAGE_ZERO:
			p->got = GOT_ZEROS;
			break;
		case PAGE_KEEP_OWED:
			p->keep_owed = true;
			break;
		case PAGE_DROP_FRAME:
			frame_dropped(d, p);
			break;
		case PAGE_PULL:
			home_pull(d, p, a);
			break;
		case PAGE_PERSIST:
			if (job_later(d, p, JOB_PERSIST, 0, 0, &a->m))
				wire_cut(d, a->m.sender, -ENOMEM, "no memory for", &a->m);
			break;
		case PAGE_RELEASE_OWED: /* the cache has been told */
		case PAGE_TAKE_OWED:    /* it has a frame by now */
			break;
		case PAGE_DROP_KERNEL:
			WEFT_ASSERT(!"an action of a later step");
		}
	}
}

/* ---- givers ----------------------------------------------------------------------------------- */

void page_give_later(struct cluster *d, struct dpage *p)
{
	struct giver_list *g = &d->givers;

	if (p->giver)
		return;
	p->giver = true;
	p->refs++;
	p->giver_next = NULL;
	rt_mutex_lock(&g->lock);
	*g->end = p;
	g->end = &p->giver_next;
	rt_mutex_unlock(&g->lock);
	atomic_fetch_add_explicit(&g->word, 1, memory_order_release);
	rt_wake(&g->word, 1);
}

/* Takes the first whose time has come. NULL: none; *next_ns: when that of one comes. */
static struct dpage *giver_pick(struct giver_list *g, uint64_t *next_ns)
{
	struct dpage **at = &g->first, *p;
	uint64_t now = 0;

	*next_ns = RT_FOREVER;
	for (; (p = *at); at = &p->giver_next) {
		uint64_t ns = atomic_load_explicit(&p->give_ns, memory_order_relaxed);

		if (ns && !now)
			now = rt_now_ns();
		if (ns <= now)
			break;
		*next_ns = MIN(*next_ns, ns);
	}
	if (!p)
		return NULL;
	*at = p->giver_next;
	if (g->end == &p->giver_next)
		g->end = at;
	return p;
}

/* NULL: none; *next_ns: take again then; *look_ns: look at what is being eased then. */
static struct dpage *giver_take(
	struct giver_list *g, uint64_t *next_ns, uint64_t *look_ns)
{
	struct dpage *p;

	rt_mutex_lock(&g->lock);
	*look_ns = g->look_ns;
	p = giver_pick(g, next_ns);
	rt_mutex_unlock(&g->lock);
	return p;
}

/* Nobody has used what arrived, and others wait for it. */
static void use_by_force(struct cluster *d, struct dpage *p)
{
	if (p->hold.phase != PHASE_ARRIVED)
		return;
	if (rt_now_ns() < p->arrived_ns + ARRIVED_NS) {
		page_give_later(d, p);
		return;
	}
	DCOUNT(d, forced);
	page_used(d, p);
}

/* One try. False: it was in vain. */
static bool give_again(struct cluster *d, struct dpage *p)
{
	page_id pid = p->at.pid;
	uint64_t flush_to = 0;
	bool again;

	WEFT_ASSERT(page_lock(d, pid) == p);
	p->giver = false;
	atomic_store_explicit(&p->give_ns, 0, memory_order_relaxed);
	p->refs--;
	DCOUNT(d, gives_tried_again);
	if (p->deferred) {
		use_by_force(d, p);
		p->replay = true;
	}
	if (p->reinstating == d->o.self)
		page_rebuild(d, p);
	p->refs++;
	page_unlock(d, pid, p); /* delivers what was deferred */
	WEFT_ASSERT(page_lock(d, pid) == p);
	p->refs--;
	/* who has a time of its own waits for that, and no other does */
	again = p->giver && !atomic_load_explicit(&p->give_ns, memory_order_relaxed);
	flush_to = p->flush_to;
	page_unlock(d, pid, p);
	if (again && log_durable(d->o.log) < flush_to)
		(void)log_flush(d->o.log, flush_to); /* an error: the log is at its end */
	return !again;
}

/* A latch is let go of soon; a write to the device, or a request, takes much longer. */
static uint64_t give_pause_ns(unsigned in_vain)
{
	return GIVE_POLL_NS << MIN(in_vain / 16, 4u);
}

/* ---- what `eased` is awaited for ----------------------------------------------------------------- */

void page_ease_later(struct cluster *d, struct dpage *p)
{
	struct giver_list *g = &d->givers;
	bool watched;

	if (p->easing)
		return;
	p->easing = true;
	p->easing_ns = rt_now_ns();
	p->easing_link = &g->easing;
	rt_mutex_lock(&g->lock);
	p->easing_next = g->easing;
	if (p->easing_next)
		p->easing_next->easing_link = &p->easing_next;
	g->easing = p;
	g->eases = true;
	watched = g->look_ns != RT_FOREVER;
	if (!watched)
		g->look_ns = p->easing_ns + EASE_LOOK_NS;
	rt_mutex_unlock(&g->lock);
	if (watched)
		return;
	atomic_fetch_add_explicit(&g->word, 1, memory_order_release);
	rt_wake(&g->word, 1);
}

void page_ease_end(struct cluster *d, struct dpage *p)
{
	struct giver_list *g = &d->givers;

	if (!p->easing)
		return;
	p->easing = false;
	rt_mutex_lock(&g->lock);
	*p->easing_link = p->easing_next;
	if (p->easing_next)
		p->easing_next->easing_link = p->easing_link;
	rt_mutex_unlock(&g->lock);
}

/* Those that have been waited for long, if it is time to look. */
static unsigned easing_list(struct giver_list *g, page_id *pids)
{
	unsigned count = 0;
	uint64_t now;

	rt_mutex_lock(&g->lock);
	now = rt_now_ns();
	if (now >= g->look_ns) {
		g->look_ns = g->eases ? now + EASE_LOOK_NS : RT_FOREVER;
		g->eases = g->easing;
		for (const struct dpage *p = g->easing; p && count < EASE_LOOK_MAX;
			p = p->easing_next)
			if (p->easing_ns + EASE_LOOK_NS <= now)
				pids[count++] = p->at.pid;
	}
	rt_mutex_unlock(&g->lock);
	return count;
}

/* Was it forgotten? It is delivered, then. */
static void easing_look(struct cluster *d, page_id pid)
{
	struct dpage *p = page_lock(d, pid);

	if (!p || !p->easing) {
		page_unlock(d, pid, p);
		return;
	}
	DCOUNT(d, ease_looks);
	page_ease_end(d, p);
	p->replay = true;
	p->refs++;
	page_settle(d, p);
	p->refs--;
	if (!p->easing && !p->giver) /* else it was refused again */
		DCOUNT(d, eased_unheard);
	page_unlock(d, pid, p);
}

/* The kernel has dropped what was waited for, if all goes well; nobody waits for ever if not. */
static void easing_look_at_all(struct cluster *d)
{
	page_id pids[EASE_LOOK_MAX];
	unsigned count = easing_list(&d->givers, pids);

	for (unsigned i = 0; i < count; i++)
		easing_look(d, pids[i]);
}

static void give_pause(struct giver_list *g, uint32_t eased, uint64_t ns)
{
	atomic_fetch_add(&g->polling, 1);
	rt_wait(&g->eased, eased, rt_now_ns() + ns);
	atomic_fetch_sub(&g->polling, 1);
}

void giver_main(void *arg)
{
	struct cluster *d = arg;
	unsigned in_vain = 0; /* tries since the last that was not */
	uint32_t word;

	while (rt_goes_on(&d->stopping, &d->givers.word, &word)) {
		uint32_t eased =
			atomic_load_explicit(&d->givers.eased, memory_order_acquire);
		uint64_t next_ns, look_ns;
		struct dpage *p = giver_take(&d->givers, &next_ns, &look_ns);

		if (!p)
			rt_wait(&d->givers.word, word, MIN(next_ns, look_ns));
		else if (give_again(d, p))
			in_vain = 0;
		else
			give_pause(&d->givers, eased, give_pause_ns(in_vain++));
		if (look_ns != RT_FOREVER)
			easing_look_at_all(d);
	}
}
