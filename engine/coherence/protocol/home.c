/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The home's side of the page protocol (docs/protocol.md, "The home's table"). It orders all grants
 * of a page by updating its entry before it answers (ScaleStore §3.4.3, immediate metadata
 * updates). It tells each requester its predecessors (anticipatory chaining). It lets no node leave
 * that must still give (owner stability, by conflict epoch).
 *
 * The home's own hold is like any other. An image that it can give at once goes with the GRANT.
 */
#include "engine/coherence/protocol/protocol.h"

#include <errno.h>

void home_entry_init(struct home_entry *e, uint32_t epoch, uint64_t stored_incarnation,
	uint64_t stored_version)
{
	*e = (struct home_entry){
		.mode = HOME_NONE,
		.source = NODE_NONE,
		.current = true,
		.epoch = epoch,
		.incarnation = stored_incarnation,
		.stored_incarnation = stored_incarnation,
		.stored_version = stored_version,
	};
}

void home_opened_alone(struct home_entry *e, struct page_hold *local,
	const struct page_at *at, uint32_t epoch, const struct frame_image *image)
{
	local->hold = RIGHT_EXCLUSIVE;
	local->epoch = epoch;
	local->flags = 0;
	holder_observe(local, image);
	e->mode = HOME_EXCLUSIVE;
	e->current = false;
	e->holders = e->owing = node_bit(at->self);
	home_renewed(e, image->incarnation);
}

void home_renewed(struct home_entry *e, uint64_t incarnation)
{
	e->incarnation = MAX(e->incarnation, incarnation);
}

void home_owed_by(struct home_entry *e, unsigned node)
{
	e->owing |= node_bit(node);
}

void home_not_owed_by(struct home_entry *e, unsigned node)
{
	e->owing &= ~node_bit(node);
}

bool home_entry_idle(const struct home_entry *e)
{
	return e->mode == HOME_NONE && !e->owing;
}

static void entry_empty(struct home_entry *e)
{
	e->mode = HOME_NONE;
	e->holders = 0;
	e->source = NODE_NONE;
	e->copies = 0;
	e->current = true;
}

/* ---- requests ------------------------------------------------------------------------ */

/* Where the requester gets the image from. */
enum provider {
	FROM_SELF,   /* it has it */
	FROM_HOME,   /* the persisted image, or a frame of the home's that equals it */
	FROM_LOCAL,  /* the home's own hold, which has an image that the store has not */
	FROM_SOURCE, /* the source or owner, which the requester asks */
	FROM_SHARER, /* a sharer of the persisted image, which the requester asks */
};

/* The plan for a request: decided from the entry, before it changes. */
struct plan {
	enum page_mode mode;
	enum provider provider;
	node_map ask;
	uint16_t source;
	uint16_t copies;
	bool dirty;
};

/* The home's own hold is of the sharers' epoch and has their image. */
static bool local_shares(const struct home_entry *e, const struct page_hold *local,
	const struct page_at *at)
{
	return e->mode == HOME_SHARED && (e->holders & node_bit(at->self)) &&
	       local->epoch == e->epoch &&
	       (local->hold == RIGHT_SHARED || local->hold == RIGHT_SOURCE);
}

/* Joins the sharers: the conflict epoch stays. */
static void plan_join(struct home_entry *e, node_map r, bool shares, struct plan *p)
{
	if (e->holders & r) {
		p->provider = FROM_SELF;
		return;
	}
	p->provider = FROM_HOME;
	if (!e->current && shares) {
		p->provider = FROM_LOCAL;
	} else if (!e->current) {
		p->provider = FROM_SOURCE;
		p->ask = node_bit(e->source);
		p->source = e->source;
		e->copies = copies_next(e->copies);
		p->copies = e->copies;
	}
	e->holders |= r;
}

/* Shared after an exclusive holder, which becomes the source; or after no holder. */
static void plan_shared(struct home_entry *e, node_map r, struct plan *p)
{
	e->epoch = epoch_next(e->epoch);
	p->provider = FROM_HOME;
	e->copies = 0;
	e->source = NODE_NONE;
	if (e->mode == HOME_EXCLUSIVE) {
		p->provider = FROM_SOURCE;
		p->ask = e->holders;
		p->source = e->source = (uint16_t)__builtin_ctzll(e->holders);
		p->copies = e->copies = 1;
	}
	e->current = e->mode == HOME_NONE;
	e->mode = HOME_SHARED;
	e->holders |= r;
}

static void plan_exclusive(struct home_entry *e, node_map r, bool shares, struct plan *p)
{
	p->ask = e->holders & ~r;
	p->source = e->source;
	p->copies = e->copies;
	if (e->mode == HOME_EXCLUSIVE)
		p->source = (uint16_t)__builtin_ctzll(e->holders);
	if (e->mode == HOME_EXCLUSIVE)
		p->provider = FROM_SOURCE;
	else if (e->holders & r)
		p->provider = FROM_SELF;
	else if (e->current)
		p->provider = FROM_HOME;
	else if (shares)
		p->provider = FROM_LOCAL;
	else
		p->provider = FROM_SOURCE;
	/* from the source it comes with its own flag; else the home has to say it */
	p->dirty = e->mode == HOME_SHARED && !e->current;
	e->epoch = epoch_next(e->epoch);
	e->mode = HOME_EXCLUSIVE;
	e->holders = r;
	e->owing |= r;
	e->source = NODE_NONE;
	e->copies = 0;
	e->current = false;
}

/*
 * Chooses the sharer that gives the persisted image in place of the home's store (ScaleStore §3.3).
 * The home's own frame is nearer. Its own request is served by its own device. Sharers take turns:
 * the next one after the requester gives it. A source is preferred, since it cannot have left.
 * Returns NODE_NONE if the requester hears no sharer, or needs no image.
 */
static unsigned sharer_of(const struct home_entry *e, bool shares, const struct page_at *at,
	const struct page_message *m, enum page_mode mode)
{
	node_map r = node_bit(m->sender);
	node_map sharers = e->holders & ~node_bit(at->self) & ~m->version;
	node_map after = sharers & ~(r | (r - 1));

	if (e->mode != HOME_SHARED || !e->current || shares || m->sender == at->self ||
		(e->holders & r) || e->stored_incarnation != e->incarnation ||
		((m->flags & PAGE_HOLLOW) && mode == PAGE_EXCLUSIVE))
		return NODE_NONE;
	if (e->source != NODE_NONE)
		return sharers & node_bit(e->source) ? e->source : NODE_NONE;
	if (!sharers)
		return NODE_NONE;
	return (unsigned)__builtin_ctzll(after ? after : sharers);
}

/* The persisted image, or zeros if it is of an older incarnation (invariant 8). */
static void grant_home_image(const struct home_entry *e, bool shares,
	const struct page_at *at, const struct page_message *m, struct page_action *grant)
{
	struct page_message *g = &grant->m;

	g->incarnation = e->incarnation;
	g->version = 0;
	if (e->stored_incarnation != e->incarnation) {
		g->flags |= PAGE_ZEROS;
		return;
	}
	g->version = e->stored_version;
	if ((m->flags & PAGE_HOLLOW) && g->mode == PAGE_EXCLUSIVE) {
		g->flags |= PAGE_HOLLOW;
	} else if (m->sender == at->self) {
		g->flags |= PAGE_STORE;
	} else {
		g->flags |= PAGE_IMAGE;
		grant->image = shares ? IMAGE_FRAME : IMAGE_STORE;
	}
}

/*
 * Asks the home's own hold by a call. An image that it gives at once goes with the grant. (The
 * image leaves before the actions behind the grant drop the frame.) Otherwise, or if its frame is
 * not `ready`, it answers later.
 */
static int ask_local(struct page_hold *local, const struct page_at *at,
	const struct page_message *m, const struct plan *p, bool ready,
	struct page_actions *out)
{
	struct page_action *grant = &out->list[0];
	struct page_actions tmp;
	struct page_message ask = *m;
	int error;

	tmp.count = 0;
	ask.type = PAGE_INVALIDATE;
	if (p->provider == FROM_LOCAL ||
		(p->provider == FROM_SOURCE && p->source == at->self))
		ask.type = p->mode == PAGE_EXCLUSIVE ? PAGE_MOVE : PAGE_COPY;
	ask.epoch = grant->m.epoch;
	ask.copies = p->source == at->self ? p->copies : 0;
	ask.flags = 0;
	if (!ready) {
		page_act(out, PAGE_DEFER)->m = ask;
		return 0;
	}
	error = holder_on_ask(local, at, &ask, &tmp);
	if (error)
		return error;
	for (unsigned i = 0; i < tmp.count; i++) {
		struct page_action *a = &tmp.list[i];

		if (a->kind == PAGE_SEND && a->m.type == PAGE_GIVEN) {
			grant->m.place &= ~node_bit(at->self);
			if (!a->image)
				continue;
			grant->image = a->image;
			grant->m.flags |= a->m.flags;
			grant->m.incarnation = a->m.incarnation;
			grant->m.version = a->m.version;
		} else {
			*page_act(out, a->kind) = *a;
		}
	}
	return 0;
}

void home_refuse(const struct page_at *at, const struct page_message *m, int error,
	node_map nodes, struct page_actions *out)
{
	struct page_message *g = page_send(out, at, node_bit(m->sender), PAGE_GRANT);

	g->request = m->request;
	g->status = (int16_t)error;
	g->place = nodes;
}

static bool request_makes_sense(const struct home_entry *e, const struct page_message *m)
{
	if (m->sender >= PAGE_NODES_MAX)
		return false;
	if (m->mode != PAGE_SHARED && m->mode != PAGE_EXCLUSIVE)
		return false;
	return e->mode != HOME_EXCLUSIVE || !(e->holders & node_bit(m->sender));
}

/* Changes the entry for the request, and plans the messages to other nodes. */
static struct plan plan_request(struct home_entry *e, const struct page_hold *local,
	const struct page_at *at, const struct page_message *m)
{
	struct plan p = {.mode = (enum page_mode)m->mode, .source = NODE_NONE};
	bool newer = m->incarnation > e->incarnation;
	bool shares = local_shares(e, local, at);
	node_map r = node_bit(m->sender);
	unsigned sharer;

	/*
	 * Freed and allocated again since this home has last heard. A holder of the old incarnation
	 * must give it up. The holder may be the node that allocated it. So the image that comes,
	 * not the home, says whether it is too old.
	 */
	if (newer || ((m->flags & PAGE_ALONE) && !(e->holders & ~r)))
		p.mode = PAGE_EXCLUSIVE;
	e->incarnation = MAX(e->incarnation, m->incarnation);
	sharer = sharer_of(e, shares, at, m, p.mode);
	if (p.mode == PAGE_EXCLUSIVE)
		plan_exclusive(e, r, shares, &p);
	else if (e->mode == HOME_SHARED)
		plan_join(e, r, shares, &p);
	else
		plan_shared(e, r, &p);
	if (sharer != NODE_NONE) {
		p.provider = FROM_SHARER;
		p.source = (uint16_t)sharer;
		p.ask |= node_bit(sharer);
	}
	return p;
}

int home_on_request(struct home_entry *e, struct page_hold *local, const struct page_at *at,
	const struct page_message *m, bool ready, struct page_actions *out)
{
	bool shares = local_shares(e, local, at);
	struct home_entry next = *e;
	struct page_action *grant;
	struct plan p;
	int error = 0;

	if (e->mode == HOME_REBUILDING) {
		page_act(out, PAGE_DEFER)->m = *m;
		return 0;
	}
	if (!request_makes_sense(e, m))
		return -EPROTO;
	if (m->incarnation && m->incarnation < e->incarnation) {
		home_refuse(at, m, -ESTALE, 0, out);
		return 0;
	}
	p = plan_request(&next, local, at, m);
	/* the requester does not hear which node must give: others must not wait behind it */
	if (p.ask & ~node_bit(at->self) & m->version) {
		home_refuse(at, m, -EHOSTUNREACH,
			p.ask & ~node_bit(at->self) & m->version, out);
		return 0;
	}
	*e = next;
	page_send(out, at, node_bit(m->sender), PAGE_GRANT);
	grant = &out->list[out->count - 1];
	grant->m.request = m->request;
	grant->m.mode = (uint8_t)p.mode;
	grant->m.epoch = e->epoch;
	grant->m.place = p.ask;
	grant->m.source = p.source;
	grant->m.copies = p.copies;
	grant->m.incarnation = e->incarnation;
	grant->m.flags = p.provider == FROM_SELF ? PAGE_HELD : 0;
	if (p.provider == FROM_HOME)
		grant_home_image(e, shares, at, m, grant);
	else if (p.provider == FROM_SOURCE)
		grant->m.flags |= PAGE_ASK_SOURCE;
	else if (p.provider == FROM_SHARER)
		grant->m.flags |= PAGE_ASK_SOURCE | PAGE_CURRENT;
	if (p.dirty && p.provider != FROM_SOURCE)
		grant->m.flags |= PAGE_DIRTY;
	if (p.provider == FROM_LOCAL && p.mode == PAGE_SHARED) {
		grant->m.flags |= PAGE_IMAGE; /* a reader more: nothing to ask */
		grant->image = IMAGE_FRAME;
		grant->m.version = local->version;
		grant->m.incarnation = local->incarnation;
	}
	if (p.ask & node_bit(at->self))
		error = ask_local(local, at, m, &p, ready, out);
	WEFT_ASSERT(!error); /* the home knows its own hold */
	return 0;
}

/* ---- leaving ---------------------------------------------------------------------------- */

static void tell_persisted(const struct page_at *at, node_map nodes, uint64_t incarnation,
	uint64_t version, struct page_actions *out)
{
	struct page_message *m;

	if (!nodes)
		return;
	m = page_send(out, at, nodes, PAGE_PERSISTED);
	m->incarnation = incarnation;
	m->version = version;
}

/* The persisted image is the newest. */
static void sharers_are_current(
	struct home_entry *e, const struct page_at *at, struct page_actions *out)
{
	tell_persisted(at, e->owing, e->stored_incarnation, e->stored_version, out);
	e->current = true;
	e->owing = 0;
}

int home_on_drop(struct home_entry *e, const struct page_at *at,
	const struct page_message *m, struct page_actions *out)
{
	if (e->mode == HOME_REBUILDING) {
		page_act(out, PAGE_DEFER)->m = *m;
		return 0;
	}
	if (m->sender >= PAGE_NODES_MAX)
		return -EPROTO;
	if (!(e->holders & node_bit(m->sender)))
		return 0; /* it crossed the request that invalidates it */
	if (e->mode != HOME_SHARED || e->source == m->sender)
		return -EPROTO;
	if (!e->current && e->holders == node_bit(m->sender))
		return -EPROTO;
	if (!e->current && e->stored_incarnation == e->incarnation &&
		page_order(m->incarnation, m->version, e->stored_incarnation,
			e->stored_version) == 0)
		/* All sharers have this image, so the source never changed it. */
		sharers_are_current(e, at, out);
	e->holders &= ~node_bit(m->sender);
	if (!e->holders)
		entry_empty(e);
	return 0;
}

bool home_shared_nothing(struct home_entry *e, const struct page_at *at, unsigned node)
{
	struct page_message drop = {.type = PAGE_DROP,
		.sender = (uint16_t)node,
		.pid = at->pid,
		.version = UINT64_MAX}; /* of no image */
	struct page_actions none = {0};

	return e->mode == HOME_REBUILDING || home_on_drop(e, at, &drop, &none) == 0;
}

/* A node that owes an image is told when that is persisted, so the entry must stay until then. */
bool home_is_alone(const struct home_entry *e, const struct page_hold *local,
	const struct page_at *at)
{
	node_map self = node_bit(at->self);

	return e->mode == HOME_SHARED && e->holders == self && !(e->owing & ~self) &&
	       local_shares(e, local, at) && local->phase == PHASE_QUIET &&
	       local->incarnation == e->incarnation &&
	       (local->hold == RIGHT_SOURCE || e->current) &&
	       !(local->flags & (HOLD_HOLLOW | HOLD_DAMAGED));
}

void home_alone(struct home_entry *e, struct page_hold *local)
{
	struct plan unused = {0};

	plan_exclusive(e, e->holders, true, &unused);
	local->hold = RIGHT_EXCLUSIVE;
	local->epoch = e->epoch;
	local->served = 0;
}

static void send_evicted(const struct page_at *at, unsigned to, uint32_t request,
	unsigned flags, struct page_actions *out)
{
	struct page_message *m = page_send(out, at, node_bit(to), PAGE_EVICTED);

	m->request = request;
	m->flags = (uint16_t)flags;
}

/* Nobody has been granted anything that the leaving node must still give (§4.2). */
static bool may_leave(const struct home_entry *e, const struct page_message *m)
{
	if (!(e->holders & node_bit(m->sender)) || m->epoch != e->epoch)
		return false;
	return e->mode == HOME_EXCLUSIVE || e->source != m->sender ||
	       m->copies == e->copies;
}

/* The home becomes the holder in place of the node that leaves, dirty as the page is. */
static bool take_over(struct home_entry *e, struct page_hold *local,
	const struct page_at *at, const struct page_message *m, bool room, bool adopt,
	struct page_actions *out)
{
	node_map from = node_bit(m->sender);
	struct page_action *pull;

	if (m->sender == at->self || local->phase != PHASE_QUIET)
		return false;
	if (local->hold == RIGHT_SHARED && e->mode == HOME_SHARED) {
		if (!adopt)
			return false;
		local->hold = RIGHT_SOURCE;
		local->served = 0;
		local->flags |= HOLD_DIRTY;
		e->holders &= ~from;
		e->source = at->self;
		e->copies = 0;
		e->owing |= node_bit(at->self);
		send_evicted(at, m->sender, m->request, PAGE_ACCEPTED | PAGE_DIRTY, out);
		return true;
	}
	if (!room || local->hold != RIGHT_NONE)
		return false;
	if (e->mode == HOME_EXCLUSIVE)
		e->epoch = epoch_next(e->epoch);
	else
		e->source = at->self;
	e->copies = 0;
	e->holders = (e->holders & ~from) | node_bit(at->self);
	e->owing |= node_bit(at->self); /* dirty: it will owe it */
	local->phase = PHASE_GATHERING;
	local->granted = e->mode == HOME_EXCLUSIVE ? RIGHT_EXCLUSIVE : RIGHT_SOURCE;
	local->grant_epoch = e->epoch;
	local->need = from;
	local->request = m->request;
	local->flags |= HOLD_NEED_IMAGE;
	local->next_incarnation = m->incarnation;
	local->next_version = m->version;
	pull = page_act(out, PAGE_PULL);
	pull->nodes = from;
	pull->m = *m;
	return true;
}

/* The owner is a sharer from now on, of the persisted image. Its conflict epoch stays: nobody was
 * granted anything since. */
static bool take_downgrade(struct home_entry *e, const struct page_message *m)
{
	if (e->mode != HOME_EXCLUSIVE || !may_leave(e, m) ||
		m->incarnation < e->incarnation ||
		page_order(m->incarnation, m->version, e->stored_incarnation,
			e->stored_version))
		return false;
	e->incarnation = m->incarnation;
	e->mode = HOME_SHARED;
	e->owing = 0; /* it was reported when it was persisted */
	e->source = NODE_NONE;
	e->copies = 0;
	e->current = true;
	return true;
}

/* The image is later than the persisted one of the home. */
static bool is_unsaved(const struct home_entry *e, const struct page_message *m)
{
	return (m->flags & PAGE_DIRTY) &&
	       page_order(m->incarnation, m->version, e->stored_incarnation,
		       e->stored_version) > 0;
}

bool home_adopts(const struct home_entry *e, const struct page_hold *local,
	const struct page_at *at, const struct page_message *m)
{
	return e->mode == HOME_SHARED && m->sender < PAGE_NODES_MAX &&
	       m->sender != at->self && !(m->flags & PAGE_HELD) && may_leave(e, m) &&
	       is_unsaved(e, m) && local->phase == PHASE_QUIET &&
	       local->hold == RIGHT_SHARED;
}

/* No node has an image any more that the home lacks. So the owed images end. The image was reported
 * when it was persisted, perhaps while it was between two nodes. */
static void owed_ends(struct home_entry *e, const struct page_at *at,
	const struct page_message *m, struct page_actions *out)
{
	if (m->flags & PAGE_DIRTY)
		tell_persisted(
			at, e->owing, e->stored_incarnation, e->stored_version, out);
	else if (m->incarnation > e->stored_incarnation)
		/* Zeros: the owed images are of an incarnation that is past. Only these nodes know
		 * of it, so the entry keeps their names. One may be away. */
		tell_persisted(at, e->owing, m->incarnation, 0, out);
	if (m->incarnation <= e->stored_incarnation)
		e->owing = 0;
}

int home_on_evict(struct home_entry *e, struct page_hold *local, const struct page_at *at,
	const struct page_message *m, bool room, bool adopt, struct page_actions *out)
{
	if (e->mode == HOME_REBUILDING) {
		page_act(out, PAGE_DEFER)->m = *m;
		return 0;
	}
	if (m->sender >= PAGE_NODES_MAX)
		return -EPROTO;
	if (m->flags & PAGE_HELD) {
		if (m->flags != PAGE_HELD)
			return -EPROTO;
		send_evicted(at, m->sender, m->request,
			take_downgrade(e, m) ? PAGE_ACCEPTED | PAGE_HELD : 0, out);
		return 0;
	}
	if (!may_leave(e, m)) {
		send_evicted(at, m->sender, m->request, 0, out);
		return 0;
	}
	if (is_unsaved(e, m)) {
		if (!take_over(e, local, at, m, room, adopt, out))
			send_evicted(at, m->sender, m->request, 0, out);
		return 0;
	}
	/*
	 * Clean: the node has the persisted image, or zeros that nobody changed. Or it has an
	 * incarnation that was past when it was to be persisted. The request that made it past was
	 * forgotten by a change of the cluster epoch.
	 */
	e->incarnation = MAX(e->incarnation, m->incarnation);
	e->holders &= ~node_bit(m->sender);
	send_evicted(at, m->sender, m->request, PAGE_ACCEPTED, out);
	if (e->holders && e->source != m->sender)
		return 0;
	owed_ends(e, at, m, out);
	e->source = NODE_NONE;
	e->copies = 0;
	e->current = true;
	if (!e->holders)
		entry_empty(e);
	return 0;
}

int home_on_rebuilding(const struct home_entry *e, const struct page_at *at,
	const struct page_message *m, struct page_actions *out)
{
	struct page_hold none = {0};
	struct home_entry stored;

	home_entry_init(&stored, 0, e->stored_incarnation, e->stored_version);
	if (m->type == PAGE_EVICT)
		return home_on_evict(&stored, &none, at, m, false, false, out);
	return home_on_ship(&stored, at, m, out);
}

int home_pulled(struct home_entry *e, struct page_hold *local, const struct page_at *at,
	unsigned from, struct page_actions *out)
{
	struct page_message given = {
		.type = PAGE_GIVEN,
		.sender = (uint16_t)from,
		.epoch = local->grant_epoch,
		.incarnation = local->next_incarnation,
		.version = local->next_version,
		.flags = PAGE_IMAGE,
	};
	uint32_t request = local->request;
	int error;

	/* a shipment of it may have been persisted meanwhile */
	if (page_order(given.incarnation, given.version, e->stored_incarnation,
		    e->stored_version) > 0)
		given.flags |= PAGE_DIRTY;
	error = requester_on_given(local, at, &given, out);
	if (!error)
		send_evicted(at, from, request, PAGE_ACCEPTED | (given.flags & PAGE_DIRTY),
			out);
	return error;
}

/* ---- images ----------------------------------------------------------------------------- */

int home_on_fetch(struct home_entry *e, const struct page_at *at,
	const struct page_message *m, struct page_actions *out)
{
	struct page_message *g;

	if (e->mode == HOME_REBUILDING) {
		page_act(out, PAGE_DEFER)->m = *m;
		return 0;
	}
	if (m->sender >= PAGE_NODES_MAX)
		return -EPROTO;
	g = page_send(out, at, node_bit(m->sender), PAGE_GIVEN);
	out->list[out->count - 1].image = IMAGE_STORE;
	g->epoch = m->epoch;
	g->request = m->request;
	g->place = m->place;
	g->incarnation = e->stored_incarnation;
	g->version = e->stored_version;
	g->flags = PAGE_IMAGE | (m->sender == at->self ? PAGE_STORE : 0);
	return 0;
}

int home_on_ship(struct home_entry *e, const struct page_at *at,
	const struct page_message *m, struct page_actions *out)
{
	if (e->mode == HOME_REBUILDING) {
		page_act(out, PAGE_DEFER)->m = *m;
		return 0;
	}
	if (m->sender >= PAGE_NODES_MAX)
		return -EPROTO;
	if (m->incarnation < e->incarnation) /* freed since */
		tell_persisted(at, node_bit(m->sender), m->incarnation, UINT64_MAX, out);
	else if (page_order(e->stored_incarnation, e->stored_version, m->incarnation,
			 m->version) >= 0)
		/* told before, perhaps while the image was between two nodes */
		return home_persisted(e, at, m, out);
	else
		page_act(out, PAGE_PERSIST)->m = *m;
	return 0;
}

/* `newest`: nobody has a later image. */
static void note_persisted(struct home_entry *e, const struct page_at *at, unsigned from,
	uint64_t incarnation, uint64_t version, bool newest, struct page_actions *out)
{
	node_map nodes = e->owing | node_bit(from);

	if (page_order(e->stored_incarnation, e->stored_version, incarnation, version) < 0) {
		e->stored_incarnation = incarnation;
		e->stored_version = version;
		e->incarnation = MAX(e->incarnation, incarnation);
	}
	if (e->mode == HOME_SHARED && newest) {
		e->current = true;
		e->owing = 0;
	} else if (e->mode == HOME_EXCLUSIVE && newest) {
		e->owing &= e->holders;
	} else if (e->mode == HOME_NONE) {
		e->owing = 0;
	}
	tell_persisted(at, nodes, e->stored_incarnation, e->stored_version, out);
}

int home_persisted(struct home_entry *e, const struct page_at *at,
	const struct page_message *m, struct page_actions *out)
{
	note_persisted(e, at, m->sender, m->incarnation, m->version,
		!(m->flags & PAGE_OWED) && m->epoch == e->epoch, out);
	return 0;
}

void home_wrote(struct home_entry *e, const struct page_hold *local,
	const struct page_at *at, uint64_t incarnation, uint64_t version,
	struct page_actions *out)
{
	note_persisted(e, at, at->self, incarnation, version,
		holder_newest(local, incarnation, version) && local->epoch == e->epoch,
		out);
}
