/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The logs of clients, at their host: areas at the end of its store. An area's superblock names its
 * client. The host serves bytes and knows nothing of records. But it can tell from an area whether
 * its client has left anything.
 *
 * Keeps: bytes of an answered write are durable. A start of the client that has attached is alone.
 * Requests of an earlier start, or of an earlier link, are done before it attaches, or never.
 * Nothing outside of the area is touched (9). If the device fails the host leaves with its own log.
 * Then the client waits for it as for a host that has crashed.
 */
#include "engine/node/client_logs.h"

#include <errno.h>
#include <string.h>

#include "engine/common/crc32c.h"
#include "engine/log/log.h"
#include "engine/volume/volume.h"

struct area {
	struct rt_mutex lock; /* held while its bytes are read or written */
	unsigned client;      /* the client that has it; 0: none yet */
	bool damaged;         /* the client cannot be told */
	_Atomic bool fresh;   /* nobody has ever written to it */
	uint64_t handle;      /* of the start that has attached; 0: none, or its link is gone */
	uint64_t instance;    /* the start that attached last */
	bool state_known;     /* the two below; until it is written again */
	enum log_state state;
	uint64_t incarnation;
};

struct clients {
	struct clients_options o;
	struct rt_disk *disk;
	uint64_t offset, bytes;
	uint8_t *slots;
	struct rt_mutex lock; /* the owners of areas, and handles; taken within an area's lock */
	uint64_t handles;     /* given out so far */
	unsigned count;
	struct area area[];
};

/* ---- whose they are ------------------------------------------------------------------- */

static uint64_t area_offset(const struct clients *c, unsigned i)
{
	return c->offset + i * c->bytes;
}

static int area_look(struct clients *c, unsigned i, uint8_t *page)
{
	const uint64_t places[2] = {
		area_offset(c, i), area_offset(c, i) + c->bytes - PAGE_SIZE};
	struct area *a = &c->area[i];

	for (unsigned n = 0; n < 2; n++) {
		const struct disk_superblock *sb = (const struct disk_superblock *)page;
		int rc = rt_disk_read(c->disk, places[n], page, PAGE_SIZE);

		if (rc)
			return rc;
		if (store_superblock_whole(sb) && disk_shard_client(sb->shard))
			a->client = sb->node;
		else if (!bytes_are_zero(page, PAGE_SIZE))
			a->damaged = true;
	}
	if (a->client)
		a->damaged = false; /* the other copy is made good by its start */
	if (a->damaged)
		weft_log(4,
			"the store's area %u for the log of a client is damaged; "
			"run fsck.weft",
			i);
	return 0;
}

static int areas_look(struct clients *c)
{
	uint8_t *page = rt_alloc_pages(PAGE_SIZE);
	int rc = page ? 0 : -ENOMEM;

	for (unsigned i = 0; i < c->count && !rc; i++)
		rc = area_look(c, i, page);
	rt_free_pages(page, PAGE_SIZE);
	return rc;
}

/* Under the lock. */
static struct area *area_of(struct clients *c, unsigned client)
{
	for (unsigned i = 0; i < c->count; i++)
		if (c->area[i].client == client)
			return &c->area[i];
	return NULL;
}

/* Under the lock. Returns NULL if no area is left. */
static struct area *area_find(struct clients *c, unsigned client)
{
	struct area *a = area_of(c, client);

	for (unsigned i = 0; i < c->count && !a; i++)
		if (!c->area[i].client && !c->area[i].damaged)
			a = &c->area[i];
	if (a && !a->client) {
		a->client = client;
		atomic_store(&a->fresh, true);
	}
	return a;
}

/* ---- attaching ------------------------------------------------------------------------ */

/* The client whose log the peer may use; 0: none. */
static unsigned client_of(const struct clients *c, unsigned peer)
{
	const struct cluster_member *m;

	if (peer < LOG_PEER(0))
		return 0;
	m = cluster_member(c->o.cluster, peer - LOG_PEER(0));
	return m && m->role == CLUSTER_CLIENT && m->host == c->o.node ? m->id : 0;
}

/* Words: which start of the client, as a random number. Back: the handle, the slot, and how
 * many bytes the area has; of -EUNATCH and -EAGAIN, the node that it is about. */
static int serve_attach(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	struct clients *c = owner;
	unsigned client = client_of(c, from);
	struct area *a;

	if (!client)
		return -EPERM;
	rt_mutex_lock(&c->lock);
	a = area_find(c, client);
	rt_mutex_unlock(&c->lock);
	if (!a)
		return -ENOSPC;
	if (c->o.admits && atomic_load(&a->fresh)) {
		unsigned by = 0;
		int rc = c->o.admits(c->o.owner, client, &by);

		answer[0] = by;
		if (rc)
			return rc;
	}
	rt_mutex_lock(&a->lock); /* a transfer under way ends first */
	if (a->instance && a->instance != ask[0] && c->o.connected(c->o.owner, client)) {
		rt_mutex_unlock(&a->lock);
		return -EBUSY;
	}
	rt_mutex_lock(&c->lock);
	a->instance = ask[0];
	a->handle = ++c->handles;
	answer[0] = a->handle;
	answer[1] = (uint64_t)(a - c->area);
	answer[2] = c->bytes;
	rt_mutex_unlock(&c->lock);
	a->state_known = false;
	rt_mutex_unlock(&a->lock);
	return 0;
}

void clients_event(
	struct clients *c, struct net_peer *peer, const struct net_event *event)
{
	unsigned client = client_of(c, net_peer_node(peer));
	struct area *a;

	if (event->kind != NET_LINK_DOWN || !client)
		return;
	rt_mutex_lock(&c->lock);
	a = area_of(c, client);
	if (a)
		a->handle = 0;
	rt_mutex_unlock(&c->lock);
}

/* ---- bytes ---------------------------------------------------------------------------- */

/* Words: handle, offset, bytes. The area, locked; NULL with *error. */
static struct area *area_enter(
	struct clients *c, unsigned from, const uint64_t ask[NET_CALL_WORDS], int *error)
{
	unsigned client = client_of(c, from);
	struct area *a = NULL;
	bool current;

	*error = -EPERM;
	if (!client)
		return NULL;
	*error = -EINVAL;
	if (!ask[2] || ask[2] > LOG_SLOT_BYTES || (ask[1] | ask[2]) % 512 ||
		ask[1] > c->bytes || ask[2] > c->bytes - ask[1])
		return NULL;
	rt_mutex_lock(&c->lock);
	a = area_of(c, client);
	rt_mutex_unlock(&c->lock);
	*error = -ESTALE;
	if (!a)
		return NULL;
	rt_mutex_lock(&a->lock);
	rt_mutex_lock(&c->lock);
	current = ask[0] && a->handle == ask[0];
	rt_mutex_unlock(&c->lock);
	if (current)
		return a;
	rt_mutex_unlock(&a->lock);
	return NULL;
}

static uint8_t *slot_of(const struct clients *c, const struct area *a)
{
	return c->slots + (size_t)(a - c->area) * LOG_SLOT_BYTES;
}

static int area_move(
	struct clients *c, const struct area *a, bool write, uint64_t at, uint64_t bytes)
{
	uint64_t i = (uint64_t)(a - c->area);
	struct rt_io ios[2];

	rt_io_set(&ios[0], write ? RT_IO_WRITE : RT_IO_READ,
		area_offset(c, (unsigned)i) + at, slot_of(c, a), bytes);
	rt_io_set(&ios[1], RT_IO_FLUSH, 0, NULL, 0);
	ios[1].after_previous = true;
	rt_disk_run(c->disk, ios, write ? 2 : 1);
	if (!write)
		return ios[0].result;
	/* it may have dropped bytes that the host has written; and one of the host's, these
	 * bytes */
	if (ios[1].result)
		store_flush_lost(c->o.store);
	if (ios[0].result || ios[1].result)
		return ios[0].result ? ios[0].result : ios[1].result;
	return store_flush_failed(c->o.store) ? -EIO : 0;
}

/* By the name that people know: not by that of the log's link. */
static void say_changed(struct clients *c, unsigned client)
{
	struct net_peer *peer = net_peer_find(c->o.net, (uint16_t)client);

	if (peer)
		net_checksum_error(peer, "a part of its log");
}

static int serve_move(struct clients *c, unsigned from,
	const uint64_t ask[NET_CALL_WORDS], uint64_t answer[NET_CALL_WORDS], bool write)
{
	struct area *a;
	int rc;

	a = area_enter(c, from, ask, &rc);
	if (!a)
		return rc;
	if (write && crc32c(slot_of(c, a), ask[2]) != ask[3]) {
		rt_mutex_unlock(&a->lock);
		say_changed(c, client_of(c, from));
		return -EBADMSG;
	}
	if (write) {
		a->state_known = false;
		atomic_store(&a->fresh, false);
	}
	rc = area_move(c, a, write, ask[1], ask[2]);
	if (!rc && !write)
		answer[0] = crc32c(slot_of(c, a), ask[2]);
	rt_mutex_unlock(&a->lock);
	if (!rc || !write)
		return rc ? -EIO : 0;
	weft_log(3, "the log of client %u cannot be written: %s", client_of(c, from),
		strerrordesc_np(-rc));
	log_give_up(c->o.log, -EIO); /* with which the links end */
	return -EAGAIN;
}

/* The bytes are, or will be, in the area's slot. Words: handle, offset, how many, and the checksum
 * of a write's bytes. Back: the checksum of the bytes that were read. */
static int serve_read(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	return serve_move(owner, from, ask, answer, false);
}

static int serve_write(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	return serve_move(owner, from, ask, answer, true);
}

/* ---- what a client has left ------------------------------------------------------------- */

/*
 * Reads the state from the area. A start that has used its log since says that it is not clean,
 * before anything else. One that has left says that it is, after everything else. An attached
 * client makes no difference.
 */
static int area_state(struct clients *c, struct area *a)
{
	const struct store_options o = {.read_only = true, .any_node = true};
	struct weft_error why = {0};
	struct rt_disk *disk = NULL;
	struct store *s = NULL;
	struct log *log = NULL;
	bool clean = false;
	int rc;

	rc = rt_disk_part(
		&disk, c->disk, area_offset(c, (unsigned)(a - c->area)), c->bytes);
	if (!rc)
		rc = store_open(&s, disk, &o, &why);
	if (rc == -EMEDIUMTYPE) { /* it was never used */
		a->state = LOG_STATE_VACANT;
		a->incarnation = 0;
		a->state_known = true;
		rc = 0;
		goto out;
	}
	if (!rc)
		rc = log_open(&log, s, NULL, &clean, &why);
	if (rc) {
		weft_log(4, "the log of client %u: %s", a->client,
			why.code ? why.text : strerrordesc_np(-rc));
		goto out;
	}
	a->state = clean ? LOG_STATE_VACANT : LOG_STATE_USED;
	a->incarnation = store_superblock(s)->incarnation;
	a->state_known = true;
out:
	log_close(log);
	store_close(s);
	rt_disk_close(disk);
	return rc;
}

int clients_state(
	struct clients *c, unsigned client, enum log_state *state, uint64_t *incarnation)
{
	struct area *a;
	int rc = 0;

	rt_mutex_lock(&c->lock);
	a = area_of(c, client);
	rt_mutex_unlock(&c->lock);
	*state = LOG_STATE_VACANT;
	*incarnation = 0;
	if (!a) {
		for (unsigned i = 0; i < c->count; i++)
			if (c->area[i].damaged)
				return -EUCLEAN; /* it may be this one's */
		return 0;
	}
	rt_mutex_lock(&a->lock);
	if (!a->state_known)
		rc = area_state(c, a);
	*state = a->state;
	*incarnation = a->incarnation;
	rt_mutex_unlock(&a->lock);
	return rc;
}

/* Words: the client. Back: enum log_state, the incarnation of its last start. */
static int serve_state(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS])
{
	struct clients *c = owner;
	const struct cluster_member *m =
		ask[0] <= CLUSTER_NODE_MAX
			? cluster_member(c->o.cluster, (unsigned)ask[0])
			: NULL;
	enum log_state state;
	int rc;

	if (!m || m->role != CLUSTER_CLIENT || m->host != c->o.node)
		return -EINVAL;
	rc = clients_state(c, m->id, &state, &answer[1]);
	answer[0] = state;
	return rc;
}

/* ---- clients that are added ----------------------------------------------------------------- */

/* Under the lock: of those areas that nobody has yet. */
static unsigned areas_free(const struct clients *c)
{
	unsigned count = 0;

	for (unsigned i = 0; i < c->count; i++)
		count += !c->area[i].client && !c->area[i].damaged;
	return count;
}

static int room_check(
	struct clients *c, const struct cluster *newer, struct weft_error *err)
{
	const struct cluster_member *m = NULL, *last = NULL;
	unsigned need = 0, room;

	rt_mutex_lock(&c->lock);
	room = areas_free(c);
	while ((m = cluster_next(newer, m))) {
		if (m->role != CLUSTER_CLIENT || m->host != c->o.node ||
			area_of(c, m->id))
			continue;
		need++;
		last = m;
	}
	rt_mutex_unlock(&c->lock);
	if (need <= room)
		return 0;
	return weft_error(err, -ENOSPC,
		"%s:%u: [node %u]: the store of node %u, its host, has no room for the "
		"log of another client: name another `host`",
		cluster_path(newer), last->line, last->id, c->o.node);
}

/* A client that was taken out of the file, and had crashed: nobody waits for its pages now. */
static int state_check(struct clients *c, const struct cluster *newer,
	const struct cluster_member *m, struct weft_error *err)
{
	enum log_state state;
	uint64_t incarnation;
	int rc = clients_state(c, m->id, &state, &incarnation);

	if (!rc && state == LOG_STATE_VACANT)
		return 0;
	return weft_error(err, rc ? rc : -EBUSY,
		"%s:%u: [node %u]: the log of an earlier node of this id %s: give it "
		"another id, or unmount on all nodes and mount with this file",
		cluster_path(newer), m->line, m->id,
		rc ? "cannot be read" : "has changes that were not recovered");
}

int clients_room(struct clients *c, const struct cluster *newer, uint64_t added,
	struct weft_error *err)
{
	const struct cluster_member *m = NULL;
	int rc = room_check(c, newer, err);

	while (!rc && (m = cluster_next(newer, m)))
		if (added >> m->id & 1 && m->host == c->o.node)
			rc = state_check(c, newer, m, err);
	return rc;
}

/* ---- opening and closing ------------------------------------------------------------------ */

int clients_peers_add(struct clients *c, struct weft_error *err)
{
	const struct cluster_member *m = NULL;
	int rc = 0;

	while (!rc && (m = cluster_next(c->o.cluster, m))) {
		const struct net_peer_options o = {.node = LOG_PEER(m->id)};
		struct net_peer *peer;

		if (m->role == CLUSTER_CLIENT && m->host == c->o.node &&
			!net_peer_find(c->o.net, o.node))
			rc = net_peer_add(&peer, c->o.net, &o, err);
	}
	return rc;
}

int clients_open(
	struct clients **out, const struct clients_options *o, struct weft_error *err)
{
	const struct disk_superblock *sb = store_superblock(o->store);
	struct clients *c = rt_alloc(sizeof(*c) + sb->area_count * sizeof(c->area[0]));
	int rc = c ? 0 : -ENOMEM;
	void *slots = NULL;

	*out = NULL;
	if (rc)
		return weft_error(err, rc, "no memory for the logs of clients");
	c->o = *o;
	c->disk = store_disk(o->store);
	c->count = sb->area_count;
	c->offset = sb->areas_offset;
	c->bytes = sb->area_bytes;
	if (c->count)
		rc = net_region_create(o->net, LOG_REGION,
			(size_t)c->count * LOG_SLOT_BYTES,
			NET_REMOTE_READ | NET_REMOTE_WRITE, &slots);
	c->slots = slots;
	if (!rc)
		rc = areas_look(c);
	if (rc)
		weft_error(err, rc, "the logs of clients: %s", strerrordesc_np(-rc));
	if (!rc)
		rc = clients_peers_add(c, err);
	if (rc) {
		rt_free(c);
		return rc;
	}
	net_calls_serve(o->calls, NET_CALL_LOG_ATTACH, serve_attach, c);
	net_calls_serve(o->calls, NET_CALL_LOG_READ, serve_read, c);
	net_calls_serve(o->calls, NET_CALL_LOG_WRITE, serve_write, c);
	net_calls_serve(o->calls, NET_CALL_LOG_STATE, serve_state, c);
	*out = c;
	return 0;
}

void clients_close(struct clients *c)
{
	rt_free(c);
}
