/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Devices and queue pairs: this file makes them, and frees each pair with its link. All on the
 * progress task. It stops a link's pair only after the link's receiving and sending have ended.
 *
 * A region is registered once for each device, without rights for a peer. A peer gets a memory
 * window of its own queue pair. So its keys are of no use to other peers, and end with the pair. If
 * a device has no windows, the region is registered once more for each peer.
 */
#include "engine/net/verbs_internal.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>

#define BIND_PATIENCE_NS 2000000000ull

/* ---- errors ---------------------------------------------------------------------------- */

int verbs_status(enum ibv_wc_status status)
{
	switch (status) {
	case IBV_WC_SUCCESS:
		return 0;
	case IBV_WC_REM_ACCESS_ERR:
	case IBV_WC_REM_INV_REQ_ERR:
		return -EACCES;
	case IBV_WC_RETRY_EXC_ERR:
	case IBV_WC_RNR_RETRY_EXC_ERR:
	case IBV_WC_RESP_TIMEOUT_ERR:
		return -ETIMEDOUT;
	case IBV_WC_WR_FLUSH_ERR:
	case IBV_WC_REM_ABORT_ERR:
		return -ECONNRESET;
	default:
		return -EIO;
	}
}

int verbs_nonblocking(int fd)
{
	int flags = fcntl(fd, F_GETFL);

	return flags < 0 || fcntl(fd, F_SETFL, flags | O_NONBLOCK) ? -errno : 0;
}

/* ---- devices ----------------------------------------------------------------------------- */

static int mr_rights(unsigned rights)
{
	return IBV_ACCESS_LOCAL_WRITE |
	       (rights & NET_REMOTE_READ ? IBV_ACCESS_REMOTE_READ : 0) |
	       (rights & NET_REMOTE_WRITE ? IBV_ACCESS_REMOTE_WRITE : 0) |
	       (rights & NET_REMOTE_ATOMIC ? IBV_ACCESS_REMOTE_ATOMIC : 0);
}

static int regions_register(
	const struct net *net, struct verbs_device *d, struct weft_error *why)
{
	int access = IBV_ACCESS_LOCAL_WRITE | (d->windows ? IBV_ACCESS_MW_BIND : 0);

	for (unsigned i = 0; i < NET_REGIONS_MAX; i++) {
		const struct net_region *r = &net->regions[i];

		if (!r->base)
			continue;
		d->region[i] = verbs_register(d, r->base, r->bytes, access, why);
		if (!d->region[i])
			return why->code;
	}
	return 0;
}

static void device_close(struct verbs_net *net, struct verbs_device *d)
{
	if (!d->context)
		return;
	for (unsigned i = 0; i < NET_REGIONS_MAX; i++)
		if (d->region[i])
			ibv_dereg_mr(d->region[i]);
	if (d->events) {
		rt_poller_remove(net->lines.poller, d->events);
		rt_socket_close(d->events);
	}
	if (d->pd)
		ibv_dealloc_pd(d->pd);
	*d = (struct verbs_device){0};
}

static int device_watch(struct verbs_net *net, struct verbs_device *d)
{
	int rc = verbs_nonblocking(d->context->async_fd);

	if (!rc)
		rc = rt_socket_watch(&d->events, d->context->async_fd);
	if (rc)
		return rc;
	d->source.kind = CONNECT_DEVICE;
	rc = rt_poller_add(net->lines.poller, d->events, RT_READABLE, &d->source);
	if (rc) {
		rt_socket_close(d->events);
		d->events = NULL;
	}
	return rc;
}

static int device_open(struct verbs_net *net, struct verbs_device *d,
	struct ibv_context *context, struct weft_error *why)
{
	const char *name = ibv_get_device_name(context->device);
	int rc;

	*d = (struct verbs_device){.context = context};
	rc = ibv_query_device(context, &d->limits);
	if (rc)
		return weft_error(why, -rc, "device %s does not tell its limits: %s", name,
			strerrordesc_np(rc));
	d->windows =
		d->limits.max_mw > 0 &&
		(d->limits.device_cap_flags &
			(IBV_DEVICE_MEM_WINDOW_TYPE_2A | IBV_DEVICE_MEM_WINDOW_TYPE_2B));
	d->pd = ibv_alloc_pd(context);
	if (!d->pd)
		return weft_error(why, -errno, "device %s gives no protection domain: %s",
			name, strerrordesc_np(errno));
	rc = verbs_limits_device(d, why);
	if (!rc)
		rc = regions_register(&net->lines.base, d, why);
	if (rc)
		return rc;
	rc = device_watch(net, d);
	if (rc)
		return weft_error(why, rc, "device %s cannot be watched", name);
	weft_log(6,
		"verbs: device %s: %d work requests a queue, %d reads in flight, %s%s",
		name, d->limits.max_qp_wr,
		MIN(d->limits.max_qp_rd_atom, d->limits.max_qp_init_rd_atom),
		d->windows ? "memory windows" : "no memory windows",
		d->limits.atomic_cap == IBV_ATOMIC_NONE ? ", no atomics" : "");
	return 0;
}

struct verbs_device *verbs_device_get(
	struct verbs_net *net, struct ibv_context *context, struct weft_error *why)
{
	struct verbs_device *unused = NULL;

	for (unsigned i = 0; i < VERBS_DEVICES_MAX; i++) {
		struct verbs_device *d = &net->devices[i];

		if (d->context == context) {
			if (!d->gone)
				return d;
			weft_error(why, -ENODEV, "device %s was removed",
				ibv_get_device_name(context->device));
			return NULL;
		}
		if (!d->context && !unused)
			unused = d;
	}
	if (!unused) {
		weft_error(why, -EMFILE, "more than %u RDMA devices in use",
			VERBS_DEVICES_MAX);
		return NULL;
	}
	if (device_open(net, unused, context, why) == 0)
		return unused;
	device_close(net, unused);
	return NULL;
}

static void device_lost(struct verbs_net *net, struct verbs_device *d)
{
	d->gone = true;
	weft_log(3, "verbs: device %s has failed or was removed",
		ibv_get_device_name(d->context->device));
	for (unsigned i = 0; i < net_peer_count(&net->lines.base); i++) {
		struct verbs_peer *peer = verbs_peer_of(net->lines.base.list[i]);

		if (peer->pair && peer->pair->device == d)
			verbs_cut(&peer->line.base, -ENODEV);
	}
}

void verbs_device_event(struct verbs_net *net, struct verbs_device *d)
{
	struct ibv_async_event event;
	struct verbs_pair *pair;

	if (ibv_get_async_event(d->context, &event))
		return;
	switch (event.event_type) {
	case IBV_EVENT_QP_FATAL:
	case IBV_EVENT_QP_REQ_ERR:
	case IBV_EVENT_QP_ACCESS_ERR:
		pair = event.element.qp->qp_context;
		if (pair && pair->peer)
			verbs_cut(&pair->peer->line.base,
				event.event_type == IBV_EVENT_QP_FATAL ? -EIO : -EACCES);
		break;
	case IBV_EVENT_CQ_ERR:
		pair = event.element.cq->cq_context;
		if (pair && pair->peer)
			verbs_cut(&pair->peer->line.base, -EIO);
		break;
	case IBV_EVENT_DEVICE_FATAL:
		device_lost(net, d);
		break;
	default: /* a port comes or goes: the queue pairs report it themselves */
		break;
	}
	ibv_ack_async_event(&event);
}

void verbs_devices_close(struct verbs_net *net)
{
	for (unsigned i = 0; i < VERBS_DEVICES_MAX; i++)
		device_close(net, &net->devices[i]);
}

struct ibv_mr *verbs_region_key(const struct net *net, const struct verbs_device *device,
	const void *at, size_t bytes)
{
	for (unsigned i = 0; i < NET_REGIONS_MAX; i++) {
		const struct net_region *r = &net->regions[i];

		if (r->base && (const uint8_t *)at >= r->base &&
			(const uint8_t *)at + bytes <= r->base + r->bytes)
			return device->region[i];
	}
	return NULL;
}

/* ---- pairs ------------------------------------------------------------------------------- */

static int completions_make(struct verbs_pair *p, struct weft_error *why)
{
	struct ibv_context *context = p->device->context;
	int rc;

	p->channel = ibv_create_comp_channel(context);
	if (!p->channel)
		return weft_error(
			why, -errno, "no completion channel: %s", strerrordesc_np(errno));
	rc = verbs_nonblocking(p->channel->fd);
	if (!rc)
		rc = rt_socket_watch(&p->bell, p->channel->fd);
	if (rc)
		return weft_error(
			why, rc, "no completion channel: %s", strerrordesc_np(-rc));
	p->cq = ibv_create_cq(context, (int)(p->depth + p->receives), p, p->channel, 0);
	if (!p->cq)
		return verbs_queue_error(p, why, errno, "completion queue");
	return 0;
}

static int queues_make(struct verbs_pair *p, struct weft_error *why)
{
	struct ibv_qp_init_attr attr = {
		.qp_context = p,
		.send_cq = p->cq,
		.recv_cq = p->cq,
		.qp_type = IBV_QPT_RC,
		.cap = {.max_send_wr = p->depth,
			.max_recv_wr = p->receives,
			.max_send_sge = 1,
			.max_recv_sge = 1,
			.max_inline_data = WIRE_PACKED_MAX},
	};
	int rc = rdma_create_qp(p->id, p->device->pd, &attr);

	if (rc && errno == EINVAL) { /* the device may not send inline */
		attr.cap.max_inline_data = 0;
		rc = rdma_create_qp(p->id, p->device->pd, &attr);
	}
	if (rc)
		return verbs_queue_error(p, why, errno, "queue pair");
	p->device->pairs++;
	p->inline_bytes = attr.cap.max_inline_data;
	return 0;
}

static int memory_make(struct verbs_pair *p, struct weft_error *why)
{
	p->memory_bytes =
		(p->receives + p->depth) * VERBS_SLOT_BYTES + p->depth * sizeof(uint64_t);
	p->memory = rt_alloc_pages(p->memory_bytes);
	if (!p->memory)
		return weft_error(why, -ENOMEM, "no memory for a link");
	p->memory_key = verbs_register(
		p->device, p->memory, p->memory_bytes, IBV_ACCESS_LOCAL_WRITE, why);
	return p->memory_key ? 0 : why->code;
}

static int receives_fill(struct verbs_pair *p)
{
	int rc = 0;

	for (unsigned i = 0; i < p->receives && !rc; i++) {
		uint16_t slot = (uint16_t)i;

		rc = verbs_receives_post(p, &slot, 1);
	}
	return rc;
}

int verbs_pair_make(struct verbs_net *net, struct verbs_pair *p, struct weft_error *why)
{
	int rc;

	p->device = verbs_device_get(net, p->id->verbs, why);
	if (!p->device)
		return why->code;
	rc = verbs_limits_pair(p, why);
	if (rc)
		return rc;
	rc = completions_make(p, why);
	if (!rc)
		rc = memory_make(p, why);
	if (!rc)
		rc = queues_make(p, why);
	if (!rc && receives_fill(p))
		rc = weft_error(why, -EIO, "no receives can be posted");
	return rc;
}

/* The queue pair itself binds the windows. Waits a moment for the last of them. */
static int windows_bound(struct verbs_pair *p, unsigned count)
{
	uint64_t until = rt_now_ns() + BIND_PATIENCE_NS;
	unsigned spins = 0;
	struct ibv_wc wc;

	while (count) {
		int n = ibv_poll_cq(p->cq, 1, &wc);

		if (n < 0)
			return -EIO;
		if (n == 0) {
			if (rt_now_ns() > until)
				return -ETIMEDOUT;
			rt_spin(&spins);
			continue;
		}
		if (wc.status != IBV_WC_SUCCESS)
			return verbs_status(wc.status);
		count--;
	}
	return 0;
}

static int window_bind(const struct net_region *r, struct verbs_pair *p, unsigned i,
	struct weft_error *why)
{
	struct ibv_send_wr *bad, wr = {
					 .opcode = IBV_WR_BIND_MW,
					 .send_flags = IBV_SEND_SIGNALED,
				 };

	p->window[i] = ibv_alloc_mw(p->device->pd, IBV_MW_TYPE_2);
	if (!p->window[i])
		return verbs_window_error(p->device, why, errno);
	p->key[i] = ibv_inc_rkey(p->window[i]->rkey);
	wr.bind_mw.mw = p->window[i];
	wr.bind_mw.rkey = p->key[i];
	wr.bind_mw.bind_info = (struct ibv_mw_bind_info){
		.mr = p->device->region[i],
		.addr = (uintptr_t)r->base,
		.length = r->bytes,
		.mw_access_flags = (unsigned)mr_rights(r->rights) &
				   ~(unsigned)IBV_ACCESS_LOCAL_WRITE,
	};
	return -ibv_post_send(p->id->qp, &wr, &bad);
}

static int own_key(const struct net_region *r, struct verbs_pair *p, unsigned i,
	struct weft_error *why)
{
	p->own[i] =
		verbs_register(p->device, r->base, r->bytes, mr_rights(r->rights), why);
	if (!p->own[i])
		return why->code;
	p->key[i] = p->own[i]->rkey;
	return 0;
}

int verbs_pair_open(struct verbs_net *net, struct verbs_pair *p, struct weft_error *why)
{
	unsigned bound = 0;
	int rc = 0;

	for (unsigned i = 0; i < NET_REGIONS_MAX && !rc; i++) {
		const struct net_region *region = &net->lines.base.regions[i];

		if (!region->base)
			continue;
		if (!p->device->windows) {
			rc = own_key(region, p, i, why);
			continue;
		}
		rc = window_bind(region, p, i, why);
		bound += !rc;
	}
	if (!rc && bound)
		rc = windows_bound(p, bound);
	if (rc && !why->code)
		weft_error(
			why, rc, "no memory window can be bound: %s", strerrordesc_np(-rc));
	return rc;
}

/* Windows go first: Soft-RoCE waits a minute for those of a pair that is destroyed. */
void verbs_pair_stop(struct verbs_pair *p)
{
	if (p->id && p->id->qp)
		rdma_disconnect(p->id);
	for (unsigned i = 0; i < NET_REGIONS_MAX; i++) {
		if (p->window[i])
			ibv_dealloc_mw(p->window[i]);
		p->window[i] = NULL;
	}
	if (p->id && p->id->qp) {
		rdma_destroy_qp(p->id);
		p->device->pairs--;
	}
}

void verbs_pair_free(struct verbs_pair *p)
{
	if (!p)
		return;
	verbs_pair_stop(p);
	for (unsigned i = 0; i < NET_REGIONS_MAX; i++)
		if (p->own[i])
			ibv_dereg_mr(p->own[i]);
	if (p->memory_key)
		ibv_dereg_mr(p->memory_key);
	if (p->memory)
		rt_free_pages(p->memory, p->memory_bytes);
	if (p->cq)
		ibv_destroy_cq(p->cq);
	rt_socket_close(p->bell);
	if (p->channel)
		ibv_destroy_comp_channel(p->channel);
	if (p->id)
		rdma_destroy_id(p->id);
	rt_free(p);
}
