/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Messages and images between nodes. Sends them, and checks incoming messages as far as possible
 * before the page is known (invariant 9). The functions of the protocol check the rest.
 *
 * A place, an address in registered memory, is a region (16 bits, high) and an offset in it. The
 * network detects a wrong place of a peer, and cuts the link.
 */
#include "engine/coherence/driver/driver_internal.h"

#include "engine/common/crc32c.h"

uint64_t place_of(const struct page_driver *d, const void *memory)
{
	const uint8_t *at = memory;

	for (unsigned i = 0; i < d->areas; i++)
		if (at >= d->area[i].base && at < d->area[i].base + d->area[i].size)
			return (uint64_t)i << PID_SLOT_BITS |
			       (uint64_t)(at - d->area[i].base);
	WEFT_ASSERT(!"memory that peers can reach");
	return 0;
}

void *place_memory(const struct page_driver *d, uint64_t place)
{
	uint32_t region = place_region(place);
	uint64_t offset = place_offset(place);

	if (region >= d->areas || offset % PAGE_SIZE ||
		offset + PAGE_SIZE > d->area[region].size)
		return NULL;
	return d->area[region].base + offset;
}

void wire_cut(struct page_driver *d, unsigned node, int error, const char *why,
	const struct page_message *m)
{
	struct net_peer *peer = net_peer_find(d->o.net, (uint16_t)node);

	weft_log(3,
		"node %u: the link is cut: %s %s of page %u:%llu (epoch %u, copies %u, "
		"flags %x): %s",
		node, why, page_message_name(m->type), pid_shard(m->pid),
		(unsigned long long)pid_slot(m->pid), m->epoch, m->copies, m->flags,
		strerrordesc_np(-error));
	WEFT_ASSERT(node != d->o.self); /* this node does not break the protocol */
	if (error == -EPROTO)
		DCOUNT(d, impossible);
	if (peer)
		net_cut(peer, error);
}

/* ---- out ------------------------------------------------------------------------------- */

/* `image`: the image that the message announces, or NULL. Its memory does not change until it has
 * been taken. */
static struct net_message as_net(
	struct page_driver *d, const struct page_message *m, const void *image)
{
	struct page_message sealed = *m;
	struct net_message out;

	sealed.sum = image ? crc32c(image, PAGE_SIZE) : 0;
	memcpy(&out, &sealed, sizeof(out));
	out.epoch = view_epoch(d);
	return out;
}

/* The home reads it when it has the message. */
static const void *image_offered(const struct page_driver *d, const struct page_message *m)
{
	if (m->type == PAGE_SHIP || (m->type == PAGE_EVICT && (m->flags & PAGE_DIRTY)))
		return place_memory(d, m->place);
	return NULL;
}

void wire_send(struct page_driver *d, unsigned node, const struct page_message *m)
{
	struct net_peer *peer = net_peer_find(d->o.net, (uint16_t)node);
	struct net_message out = as_net(d, m, image_offered(d, m));

	DCOUNT(d, sent[m->type - PAGE_MESSAGE_FIRST]);
	/*
	 * Tasks have waited for room before they took the lock. Not urgent: those calls may end
	 * other operations, whose `done` needs the lock that is held here. Without a link: its end
	 * tells it to all waiting tasks.
	 */
	if (!peer || !view_connected(d, node)) {
		if (m->type == PAGE_COPY || m->type == PAGE_MOVE || m->type == PAGE_INVALIDATE)
			view_unasked(d, node);
	} else if (net_send(peer, &out, NET_MORE | NET_ANSWER) == -EAGAIN) {
		wire_cut(d, node, -ENOBUFS, "its queue has no room for", m);
	}
}

static void image_done(struct net_op *op)
{
	struct image_op *x = op->owner;
	struct page_driver *d = x->d;
	page_id pid = x->p->at.pid;
	struct page_record *p = page_lock(d, pid);

	WEFT_ASSERT(p == x->p);
	if (x->buffer) {
		home_image_put(d, x->buffer);
		p->refs--;
	} else {
		p->ops--;
		page_frame_free(d, p);
	}
	image_op_put(x);
	page_unlock(d, pid, p);
}

static struct image_op *image_op_new(struct page_driver *d, struct page_record *p, unsigned node,
	const struct page_message *m, uint64_t place, void *buffer)
{
	struct image_op *x = image_op_take(d, p);

	if (!x)
		return NULL;
	x->buffer = buffer;
	x->op.kind = NET_WRITE;
	x->op.region = place_region(place);
	x->op.offset = place_offset(place);
	x->op.local = buffer ? buffer : place_memory(d, p->hold.place);
	x->op.length = PAGE_SIZE;
	x->op.message = as_net(d, m, x->op.local);
	x->op.done = image_done;
	x->op.owner = x;
	return x;
}

void wire_send_image(struct page_driver *d, struct page_record *p, unsigned node,
	const struct page_message *m, uint64_t place, void *buffer)
{
	struct net_peer *peer = net_peer_find(d->o.net, (uint16_t)node);
	struct image_op *x = image_op_new(d, p, node, m, place, buffer);
	int rc = x ? -ENOTCONN : -ENOMEM;

	DCOUNT(d, sent[m->type - PAGE_MESSAGE_FIRST]);
	if (buffer)
		p->refs++;
	else
		p->ops++;
	if (x && peer && view_connected(d, node))
		rc = net_post(peer, &x->op, NET_MORE | NET_ANSWER | NET_AT_ONCE);
	if (!rc)
		return;
	/* it has ended already, or never began */
	if (buffer)
		p->refs--;
	else
		p->ops--;
	if (buffer)
		home_image_put(d, buffer);
	if (x)
		image_op_put(x);
	if (rc < 0 && rc != -ENOTCONN)
		wire_cut(d, node, rc, "cannot send", m);
}

/* ---- in ---------------------------------------------------------------------------------- */

bool wire_read_whole(struct page_driver *d, unsigned node, const void *image, uint32_t sum)
{
	struct net_peer *peer = net_peer_find(d->o.net, (uint16_t)node);

	if (crc32c(image, PAGE_SIZE) == sum)
		return true;
	if (peer)
		net_checksum_error(peer, "a page");
	return false;
}

void wire_image_cut(struct page_driver *d, unsigned node)
{
	struct net_peer *peer = net_peer_find(d->o.net, (uint16_t)node);

	if (peer)
		net_cut(peer, -EBADMSG);
}

bool wire_image_whole(
	struct page_driver *d, const struct page_record *p, const struct page_message *m)
{
	const void *image = NULL;

	if ((m->type != PAGE_GRANT && m->type != PAGE_GIVEN) ||
		!(m->flags & PAGE_IMAGE) || (m->flags & PAGE_DAMAGED) ||
		m->sender == d->o.self)
		return true;
	/* in other phases none is awaited: the protocol refuses it */
	if (p->hold.phase == PHASE_ASKED || p->hold.phase == PHASE_GATHERING)
		image = place_memory(d, p->hold.place);
	if (!image || wire_read_whole(d, m->sender, image, m->sum))
		return true;
	wire_image_cut(d, m->sender);
	return false;
}

static bool message_makes_sense(const struct page_driver *d, const struct page_message *m)
{
	unsigned home = d->o.home(d->o.owner, pid_shard(m->pid));
	bool to_home;

	if (m->type < PAGE_MESSAGE_FIRST || m->type >= PAGE_MESSAGE_END ||
		m->sender >= PAGE_NODES_MAX || m->sender == d->o.self ||
		home >= PAGE_NODES_MAX || m->type >= PAGE_EPOCH)
		return false;
	to_home = m->type == PAGE_REQUEST || m->type == PAGE_DROP ||
		  m->type == PAGE_EVICT || m->type == PAGE_FETCH ||
		  m->type == PAGE_SHIP || m->type == PAGE_REPORT;
	if (m->type == PAGE_COPY || m->type == PAGE_MOVE || m->type == PAGE_INVALIDATE)
		return home != d->o.self; /* a home asks its own hold itself */
	return !to_home || home == d->o.self;
}

/* Finds the record of the page that the message is about. NULL with 0: the message says nothing. */
static int message_page(struct page_driver *d, const struct page_message *m, struct page_record **p)
{
	if (*p && ((*p)->has_entry || (*p)->work == WORK_OPENING ||
			  (*p)->at.home != d->o.self))
		return 0;
	if (m->type == PAGE_DROP) /* also by a node that had been asked to give it up */
		return 0;
	if (!*p)
		*p = page_new(d, m->pid);
	if (!*p)
		return -ENOMEM;
	if ((*p)->at.home != d->o.self)
		return 0;
	/* a report belongs to the entry from its beginning */
	return m->type == PAGE_REPORT ? page_open_later(d, *p) : page_open(d, *p, m);
}

void driver_message(
	struct coherence *c, struct net_peer *peer, const struct net_message *in)
{
	struct page_driver *d = driver_of(c);
	struct page_message m;
	struct page_record *p;
	int rc;

	memcpy(&m, in, sizeof(m));
	m.sender = net_peer_node(peer);
	if (m.type >= PAGE_EPOCH && m.type <= PAGE_READY && m.sender < PAGE_NODES_MAX) {
		view_message(d, m.sender, &m);
		return;
	}
	if (m.type == PAGE_DISCARD && m.sender < PAGE_NODES_MAX) {
		discard_message(d, &m);
		return;
	}
	if (!message_makes_sense(d, &m)) {
		wire_cut(d, m.sender, -EPROTO, "it sent an impossible", &m);
		return;
	}
	p = page_lock(d, m.pid);
	if (m.cluster_epoch != view_epoch(d) || !view_connected(d, m.sender)) {
		page_unlock(d, m.pid, p); /* its request or eviction is void */
		return;
	}
	rc = message_page(d, &m, &p);
	if (rc)
		wire_cut(d, m.sender, rc, "no memory for", &m);
	else if (p &&
		 (p->has_entry || p->work == WORK_OPENING || p->at.home != d->o.self))
		page_deliver(d, p, &m);
	page_unlock_more(d, m.pid, p);
}
