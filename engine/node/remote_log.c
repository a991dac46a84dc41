/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A client's log, as a disk whose bytes are in its host's store (client_logs.h).
 *
 * Keeps: one request at a time, in order, until it is done. If the link ends meanwhile, the log is
 * attached again and the same bytes are sent to the same place. A write that has ended is durable,
 * so a flush has nothing to do. Bytes travel ahead of the call that names them. The host refuses
 * the call if it comes by another link than the bytes.
 */
#include "engine/node/client_logs.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "engine/common/crc32c.h"
#include "engine/volume/volume.h"

#define LOOK_NS 100000000ull   /* so often it is asked whether to go on waiting */
#define SAY_NS  500000000ull   /* nodes that start together wait in silence */
#define BUSY_NS 15000000000ull /* so long a start that has ended may seem to be there */

struct remote {
	struct remote_log_options o;
	unsigned host;
	struct net *net;
	struct net_calls *calls;
	struct net_peer *peer;
	_Atomic uint32_t changed; /* counts changes of the link */
	_Atomic bool up;
	_Atomic bool stale;   /* another start of this client has connected meanwhile */
	struct rt_mutex lock; /* all below, held while a request is under way */
	uint64_t instance;    /* of this start */
	bool attached;
	uint64_t handle, slot, bytes;
	unsigned awaited;             /* the node that has to say that it knows this one; 0: none */
	int failed;                   /* for good */
	uint8_t *bounce;              /* LOG_SLOT_BYTES */
	struct rt_mutex refusal_lock; /* a leaf: the one below */
	struct weft_error refusal;    /* of an attempt to connect; code 0: none */
};

/* ---- the link ------------------------------------------------------------------------- */

/* Returns true for errors that no wait mends. */
static bool is_final(int code)
{
	return code == -ENOENT || code == -EKEYREJECTED || code == -EXDEV ||
	       code == -EPROTONOSUPPORT || code == -EPROTOTYPE || code == -ETIME;
}

static void on_log_link_event(void *owner, struct net_peer *peer, const struct net_event *event)
{
	struct remote *r = owner;

	if (event->kind == NET_LINK_REFUSED && is_final(event->code)) {
		rt_mutex_lock(&r->refusal_lock);
		weft_error(&r->refusal, event->code, "%s", event->text);
		rt_mutex_unlock(&r->refusal_lock);
	}
	if (event->kind == NET_LINK_REFUSED && event->code == -ESTALE)
		atomic_store(&r->stale, true);
	net_calls_event(r->calls, peer, event);
	if (event->kind != NET_LINK_REFUSED)
		atomic_store(&r->up, event->kind == NET_LINK_UP);
	atomic_fetch_add(&r->changed, 1);
	net_wake(r->net, &r->changed, INT32_MAX);
}

static void address_of(const struct remote *r, char out[NET_ADDRESS_BYTES])
{
	if (r->o.address)
		r->o.address(r->o.owner, r->host, out);
	else
		cluster_addresses_print(cluster_member(r->o.cluster, r->host), 0, out,
			NET_ADDRESS_BYTES);
}

/* The same for each start, and no node's. */
static void uuid_of(const struct remote *r, uint8_t out[NET_UUID_BYTES])
{
	memcpy(out, cluster_volume_uuid(r->o.cluster), NET_UUID_BYTES);
	out[0] ^= 'L';
	out[1] ^= (uint8_t)r->o.node;
}

static int network_open(struct remote *r, struct weft_error *err)
{
	const uint8_t *key = cluster_key(r->o.cluster);
	char address[NET_ADDRESS_BYTES];
	struct net_options o = {
		.transport = r->o.transport ? r->o.transport : "tcp",
		/* counts links, not starts: a later one takes an earlier one's place */
		.self = {.incarnation = (uint64_t)rt_wall_ns(),
			.node = LOG_PEER(r->o.node),
			.role = NET_ROLE_CLIENT},
		.tls = cluster_tls(r->o.cluster),
		.handlers = {.owner = r, .event = on_log_link_event},
	};
	struct net_peer_options po = {.node = (uint16_t)r->host, .address = address};
	int rc;

	if (!key)
		return weft_error(err, -ENOKEY, "the cluster's key was not read");
	memcpy(o.key, key, sizeof(o.key));
	memcpy(o.self.volume_uuid, cluster_volume_uuid(r->o.cluster), NET_UUID_BYTES);
	uuid_of(r, o.self.node_uuid);
	address_of(r, address);
	rc = net_open(&r->net, &o, err);
	explicit_bzero(o.key, sizeof(o.key));
	if (rc)
		return rc;
	rc = net_calls_open(&r->calls, r->net);
	if (rc)
		return weft_error(err, rc, "no memory to reach for the log");
	rc = net_peer_add(&r->peer, r->net, &po, err);
	return rc ? rc : net_start(r->net, err);
}

static void network_close(struct remote *r)
{
	if (r->calls)
		net_calls_stop(r->calls);
	if (r->net)
		net_close(r->net);
	if (r->calls)
		net_calls_close(r->calls);
	r->net = NULL;
	r->calls = NULL;
}

/* ---- attaching ------------------------------------------------------------------------ */

static int refusal_of(struct remote *r, struct weft_error *err)
{
	int rc;

	rt_mutex_lock(&r->refusal_lock);
	/* a host that has an old file, after a start of its own: it is given the new one */
	if (r->refusal.code == -ENOENT && r->bytes)
		r->refusal.code = 0;
	rc = r->refusal.code;
	if (rc)
		weft_error(err, rc, "%s", r->refusal.text);
	rt_mutex_unlock(&r->refusal_lock);
	return rc;
}

static int why_not(const struct remote *r, int rc, unsigned by, struct weft_error *err)
{
	switch (rc) {
	case -EUNATCH:
		return weft_error(err, rc,
			"node %u does not know node %u yet: copy this cluster file "
			"there, "
			"and run `weft cluster reload`",
			by, r->o.node);
	case -EPERM:
		return weft_error(err, rc,
			"node %u says that it does not have the log of node %u: compare "
			"the cluster files, `host` of [node %u]",
			r->host, r->o.node, r->o.node);
	case -ENOSPC:
		return weft_error(err, rc,
			"the store of node %u has no room for the log of another client: "
			"name another `host`, or make a store with room for more "
			"(mkfs.weft --clients)",
			r->host);
	case -EBUSY:
		return weft_error(err, rc,
			"node %u is at work already: each client has an id of its own",
			r->o.node);
	case -EAGAIN:
	case -ENOTCONN:
	case -ECONNRESET:
		return rc;
	default:
		return weft_error(err, rc, "node %u does not give the log of node %u: %s",
			r->host, r->o.node, strerrordesc_np(-rc));
	}
}

static int attach_now(struct remote *r, struct weft_error *err)
{
	const uint64_t ask[NET_CALL_WORDS] = {r->instance};
	uint64_t answer[NET_CALL_WORDS] = {0};
	int rc = net_call(r->calls, r->host, NET_CALL_LOG_ATTACH, ask, answer);

	r->awaited = rc == -EAGAIN ? (unsigned)answer[0] : 0;
	if (rc)
		return why_not(r, rc, (unsigned)answer[0], err);
	if ((r->bytes && answer[2] != r->bytes) || answer[1] >= CLUSTER_NODE_MAX ||
		answer[2] > INT64_MAX)
		return weft_error(
			err, -EPROTO, "node %u gives another log than before", r->host);
	r->handle = answer[0];
	r->slot = answer[1];
	r->bytes = answer[2];
	r->attached = true;
	return 0;
}

/* Until it is. With the lock. */
static int attach_log(struct remote *r, struct weft_error *err)
{
	uint64_t began = rt_now_ns(), say_at = began + SAY_NS;
	char address[NET_ADDRESS_BYTES];

	while (!r->attached) {
		uint32_t word = atomic_load(&r->changed);
		uint64_t now = rt_now_ns();
		int rc = -ENOTCONN;

		if (atomic_load(&r->up))
			rc = attach_now(r, err);
		/* the host has not noticed yet that the start before this one is over */
		if (rc == -EBUSY && now - began < BUSY_NS && err)
			err->code = 0;
		else if (rc && rc != -ENOTCONN && rc != -EAGAIN && rc != -ECONNRESET)
			return rc;
		rc = rc ? refusal_of(r, err) : 0;
		if (!rc && atomic_exchange(&r->stale, false)) {
			/* it will not get the log while this one is at work */
			network_close(r);
			atomic_store(&r->up, false);
			rc = network_open(r, err);
			word = atomic_load(&r->changed);
		}
		if (rc || r->attached)
			return rc;
		if (r->o.waits && !r->o.waits(r->o.owner)) {
			address_of(r, address);
			return weft_error(err, -EINTR,
				"interrupted while waiting for node %u (%.100s), which "
				"has the log",
				r->host, address);
		}
		if (now >= say_at) {
			if (r->awaited)
				weft_log(6,
					"waiting for node %u, which may not know this "
					"one: mount it there, or fence it",
					r->awaited);
			else
				weft_log(6,
					"waiting for node %u, which has the log of this "
					"one",
					r->host);
			say_at = now + 60 * 1000000000ull;
		}
		if (atomic_load(&r->up))
			rt_sleep_ns(LOOK_NS);
		else
			net_wait(r->net, NULL, &r->changed, word, now + LOOK_NS);
	}
	return 0;
}

/* ---- requests ------------------------------------------------------------------------- */

/* Between the bounce buffer and the host's slot. */
static int transfer_slot(struct remote *r, enum net_op_kind kind, size_t bytes)
{
	struct net_op op = {.kind = kind,
		.region = LOG_REGION,
		.offset = r->slot * LOG_SLOT_BYTES,
		.local = r->bounce,
		.length = (uint32_t)bytes};
	int rc;

	while ((rc = net_post(r->peer, &op, 0)) == -EAGAIN) {
		rc = net_wait_room(r->peer, RT_FOREVER);
		if (rc)
			return rc;
	}
	return rc ? rc : net_op_wait(r->peer, &op);
}

static int move_once(struct remote *r, bool write, uint64_t offset, size_t bytes)
{
	const uint64_t ask[NET_CALL_WORDS] = {
		r->handle, offset, bytes, write ? crc32c(r->bounce, bytes) : 0};
	uint64_t answer[NET_CALL_WORDS];
	int rc = write ? transfer_slot(r, NET_WRITE, bytes) : 0;

	if (!rc)
		rc = net_call(r->calls, r->host,
			write ? NET_CALL_LOG_WRITE : NET_CALL_LOG_READ, ask, answer);
	if (!rc && !write)
		rc = transfer_slot(r, NET_READ, bytes);
	if (!rc && !write && crc32c(r->bounce, bytes) != answer[0]) {
		net_checksum_error(r->peer, "a part of the log");
		rc = -EBADMSG;
	}
	return rc;
}

/* The bytes at one end differ from those that the other sent. Tries once more, over another link in
 * the end. */
static bool move_again(struct remote *r, int rc, unsigned *failures)
{
	if (rc != -EBADMSG)
		return false;
	if (++*failures % NET_CHECKSUM_TRIES == 0)
		net_cut(r->peer, -EBADMSG);
	return true;
}

/* With the lock. */
static int move_range(struct remote *r, bool write, uint64_t offset, size_t bytes)
{
	struct weft_error why = {0};
	unsigned failures = 0;
	int rc = r->failed;

	while (!rc) {
		rc = attach_log(r, &why);
		if (rc)
			break;
		rc = move_once(r, write, offset, bytes);
		if (move_again(r, rc, &failures)) {
			rc = 0;
			continue;
		}
		if (rc != -ENOTCONN && rc != -ECONNRESET && rc != -ESTALE &&
			rc != -EAGAIN)
			break;
		r->attached = false;
		rc = 0;
	}
	if (rc && !r->failed) {
		weft_log(3, "the log at node %u: %s", r->host,
			why.code ? why.text : strerrordesc_np(-rc));
		r->failed = rc;
	}
	return rc;
}

/* Copies bytes [at, at + bytes) of the vector to the slot, or back. */
static void bounce_copy(
	struct remote *r, const struct iovec *iov, size_t at, size_t bytes, bool write)
{
	size_t done = 0;

	for (; at >= iov->iov_len; iov++)
		at -= iov->iov_len;
	for (; done < bytes; iov++, at = 0) {
		size_t n = MIN(iov->iov_len - at, bytes - done);
		uint8_t *there = (uint8_t *)iov->iov_base + at;

		if (write)
			memcpy(r->bounce + done, there, n);
		else
			memcpy(there, r->bounce + done, n);
		done += n;
	}
}

static int remote_run(void *owner, enum rt_io_op op, uint64_t offset,
	const struct iovec *iov, unsigned count)
{
	struct remote *r = owner;
	bool write = op == RT_IO_WRITE;
	size_t total = 0;
	int rc = 0;

	if (op == RT_IO_FLUSH)
		return 0;
	for (unsigned i = 0; i < count; i++)
		total += iov[i].iov_len;
	rt_mutex_lock(&r->lock);
	for (size_t at = 0; at < total && !rc; at += LOG_SLOT_BYTES) {
		size_t bytes = MIN(total - at, (size_t)LOG_SLOT_BYTES);

		if (write)
			bounce_copy(r, iov, at, bytes, true);
		rc = move_range(r, write, offset + at, bytes);
		if (!rc && !write)
			bounce_copy(r, iov, at, bytes, false);
	}
	rt_mutex_unlock(&r->lock);
	return rc ? -EIO : 0;
}

/* ---- opening and closing -------------------------------------------------------------- */

static void remote_free(struct remote *r)
{
	network_close(r);
	if (r->bounce)
		rt_free_pages(r->bounce, LOG_SLOT_BYTES);
	rt_free(r);
}

static void remote_close(void *owner)
{
	remote_free(owner);
}

/* An area that nobody has used gets the client's store, which is its log. */
static int format_once(
	struct rt_disk *disk, const struct remote_log_options *o, struct weft_error *err)
{
	struct rt_disk_info info;
	struct store_format f = o->format;
	uint8_t *page = rt_alloc_pages(PAGE_SIZE);
	bool used = false;
	int rc = page ? 0 : -ENOMEM;

	rt_disk_info(disk, &info);
	for (unsigned i = 0; i < 2 && !rc; i++) {
		rc = rt_disk_read(
			disk, i ? info.size_bytes - PAGE_SIZE : 0, page, PAGE_SIZE);
		for (unsigned n = 0; n < PAGE_SIZE && !rc; n++)
			used |= page[n];
	}
	if (page)
		rt_free_pages(page, PAGE_SIZE);
	if (rc)
		return weft_error(
			err, rc, "reading the log's area: %s", strerrordesc_np(-rc));
	if (used)
		return 0;
	f.store_bytes = info.size_bytes;
	f.log_bytes = info.size_bytes - STORE_CLIENT_BYTES;
	f.node = (uint16_t)o->node;
	f.shard = DISK_SHARD_CLIENT(o->node);
	return volume_format(disk, &f, 0, 0, err);
}

int remote_log_open(
	struct rt_disk **out, const struct remote_log_options *o, struct weft_error *err)
{
	static const struct rt_disk_functions functions = {remote_run, remote_close};
	struct rt_disk_info info = {.atomic_write_bytes = 512};
	struct remote *r = rt_alloc(sizeof(*r));
	int rc;

	*out = NULL;
	if (!r)
		return weft_error(err, -ENOMEM, "no memory to reach for the log");
	r->o = *o;
	r->host = cluster_member(o->cluster, o->node)->host;
	r->instance = rt_random() | 1;
	r->bounce = rt_alloc_pages(LOG_SLOT_BYTES);
	rc = r->bounce ? network_open(r, err) : -ENOMEM;
	if (!rc) {
		rt_mutex_lock(&r->lock);
		rc = attach_log(r, err);
		rt_mutex_unlock(&r->lock);
	}
	info.size_bytes = r->bytes;
	if (!rc)
		rc = rt_disk_make(out, &info, &functions, r);
	if (rc) {
		remote_free(r);
		return weft_error(
			err, rc, "cannot reach for the log: %s", strerrordesc_np(-rc));
	}
	rc = format_once(*out, o, err);
	if (rc) {
		rt_disk_close(*out);
		*out = NULL;
	}
	return rc;
}
