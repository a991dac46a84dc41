/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The home takes dirty pages over from evicting nodes. It reads the image from the node's memory
 * into a frame of its own, or its shared copy becomes the dirty one.
 */
#include "engine/coherence/driver/driver_internal.h"

int home_evict(struct page_driver *d, struct page_record *p, const struct page_message *m,
	struct page_actions *out)
{
	const struct coherence_frames *frames = d->base.frames;
	bool adopt = !home_adopts(&p->entry, &p->hold, &p->at, m) ||
		     frames->adopt(d->base.cache, p->at.pid, false) == 0;
	bool wanted = (m->flags & PAGE_DIRTY) && p->hold.hold == RIGHT_NONE &&
		      p->hold.phase == PHASE_QUIET && m->sender != d->o.self &&
		      !p->pending;
	void *image = NULL;
	uint32_t frame;
	bool room = wanted && !frames->place(d->base.cache, p->at.pid, &frame, &image);
	bool pulls = false;
	int rc = home_on_evict(&p->entry, &p->hold, &p->at, m, room, adopt, out);

	for (unsigned i = 0; i < out->count; i++)
		pulls |= out->list[i].kind == PAGE_PULL;
	if (pulls)
		holder_placed(&p->hold, place_of(d, image));
	else if (room)
		frames->placed(d->base.cache, p->at.pid, 0, 0, PAGE_INVALID);
	return rc;
}

static void pull_end(
	struct page_driver *d, struct page_record *p, unsigned from, int result)
{
	struct page_actions out = {0};
	const struct page_hold *h = &p->hold;
	enum page_mode mode =
		h->granted == RIGHT_EXCLUSIVE ? PAGE_EXCLUSIVE : PAGE_SHARED;

	d->base.frames->placed(d->base.cache, p->at.pid, h->next_incarnation,
		h->next_version, result ? PAGE_INVALID : mode);
	if (result) /* the link or the epoch has gone: work under way ends with it */
		return;
	DCOUNT(d, taken_over);
	WEFT_ASSERT(!home_pulled(&p->entry, &p->hold, &p->at, from, &out));
	page_perform(d, p, NULL, &out);
}

/* The bytes that were read are not the evicting node's image. Returns true if they are being read
 * once more. */
static bool pull_again(struct page_driver *d, struct image_op *x)
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
	struct page_driver *d = x->d;
	page_id pid = x->p->at.pid;
	struct page_record *p = page_lock(d, pid);
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

void home_pull(struct page_driver *d, struct page_record *p, const struct page_action *a)
{
	struct image_op *x = image_op_take(d, p);
	struct net_peer *peer = net_peer_find(d->o.net, a->m.sender);
	int rc = -ENOMEM;

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
		rc = view_connected(d, a->m.sender) ? net_post(peer, &x->op, NET_MORE)
						    : -ENOTCONN;
	}
	if (!rc) {
		p->refs++;
		return;
	}
	if (x)
		image_op_put(x);
	pull_end(d, p, a->m.sender, rc);
	if (rc != -ENOTCONN)
		wire_cut(d, a->m.sender, rc, "cannot read the image of", &a->m);
}
