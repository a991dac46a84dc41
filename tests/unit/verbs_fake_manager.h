/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection manager of the device that is not there (verbs_fake.h, which includes this):
 * ids that find each other by a port within the process, and queue pairs made for them.
 */
#ifndef WEFT_TESTS_VERBS_FAKE_MANAGER_H
#define WEFT_TESTS_VERBS_FAKE_MANAGER_H

#include "tests/unit/verbs_fake.h"

struct rdma_event_channel *rdma_create_event_channel(void)
{
	struct fake_manager *m = calloc(1, sizeof(*m));

	m->channel.fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
	return &m->channel;
}

void rdma_destroy_event_channel(struct rdma_event_channel *channel)
{
	struct fake_manager *m = (struct fake_manager *)channel;

	while (m->count)
		free(m->events[--m->count]);
	close(channel->fd);
	free(m);
}

/* With the lock. */
static void fake_tell(struct fake_id *id, enum rdma_cm_event_type type, int status,
	const struct rdma_conn_param *param)
{
	struct fake_manager *m = (struct fake_manager *)id->id.channel;
	struct fake_event *e = calloc(1, sizeof(*e));

	e->event.id = &id->id;
	e->event.event = type;
	e->event.status = status;
	if (param && param->private_data_len) {
		memcpy(e->private_data, param->private_data, param->private_data_len);
		e->event.param.conn.private_data = e->private_data;
		e->event.param.conn.private_data_len = param->private_data_len;
		e->event.param.conn.responder_resources = param->responder_resources;
		e->event.param.conn.initiator_depth = param->initiator_depth;
	}
	if (m->count == FAKE_EVENTS)
		abort();
	m->events[m->count++] = e;
	fake_ring(m->channel.fd);
}

int rdma_get_cm_event(struct rdma_event_channel *channel, struct rdma_cm_event **event)
{
	struct fake_manager *m = (struct fake_manager *)channel;
	int r = -1;

	if (!fake_unring(channel->fd))
		return -1;
	pthread_mutex_lock(&fake_lock);
	if (m->count) {
		*event = &m->events[0]->event;
		memmove(m->events, m->events + 1, --m->count * sizeof(m->events[0]));
		r = 0;
	}
	pthread_mutex_unlock(&fake_lock);
	return r;
}

int rdma_ack_cm_event(struct rdma_cm_event *event)
{
	free(event);
	return 0;
}

const char *rdma_event_str(enum rdma_cm_event_type event)
{
	return "an event of the fake";
}

static struct fake_id *fake_id_new(struct rdma_event_channel *channel, void *context)
{
	struct fake_id *id = calloc(1, sizeof(*id));

	id->id.channel = channel;
	id->id.context = context;
	id->next = fake_ids;
	fake_ids = id;
	atomic_fetch_add(&fake.ids, 1);
	return id;
}

int rdma_create_id(struct rdma_event_channel *channel, struct rdma_cm_id **out,
	void *context, enum rdma_port_space ps)
{
	pthread_mutex_lock(&fake_lock);
	*out = &fake_id_new(channel, context)->id;
	pthread_mutex_unlock(&fake_lock);
	return 0;
}

/* Its events that nobody has taken go with it. */
static void fake_forget_events(struct fake_id *id)
{
	struct fake_manager *m = (struct fake_manager *)id->id.channel;
	unsigned kept = 0;

	for (unsigned i = 0; i < m->count; i++) {
		if (m->events[i]->event.id == &id->id)
			free(m->events[i]);
		else
			m->events[kept++] = m->events[i];
	}
	m->count = kept;
}

int rdma_destroy_id(struct rdma_cm_id *base)
{
	struct fake_id *id = (struct fake_id *)base, **at = &fake_ids;

	pthread_mutex_lock(&fake_lock);
	if (base->qp)
		abort(); /* pairs go first */
	while (*at != id)
		at = &(*at)->next;
	*at = id->next;
	if (id->other)
		id->other->other = NULL;
	fake_forget_events(id);
	pthread_mutex_unlock(&fake_lock);
	atomic_fetch_sub(&fake.ids, 1);
	free(id);
	return 0;
}

int rdma_set_option(struct rdma_cm_id *id, int level, int name, void *value, size_t bytes)
{
	return 0;
}

int rdma_bind_addr(struct rdma_cm_id *id, struct sockaddr *at)
{
	if (atomic_load(&fake.no_route)) {
		errno = ENODEV;
		return -1;
	}
	pthread_mutex_lock(&fake_lock);
	((struct fake_id *)id)->port = ++fake_port;
	pthread_mutex_unlock(&fake_lock);
	return 0;
}

int rdma_listen(struct rdma_cm_id *id, int backlog)
{
	pthread_mutex_lock(&fake_lock);
	((struct fake_id *)id)->listens = true;
	pthread_mutex_unlock(&fake_lock);
	return 0;
}

__be16 rdma_get_src_port(struct rdma_cm_id *id)
{
	return htons(((struct fake_id *)id)->port);
}

int rdma_resolve_addr(struct rdma_cm_id *base, struct sockaddr *from, struct sockaddr *to,
	int timeout_ms)
{
	struct fake_id *id = (struct fake_id *)base;

	pthread_mutex_lock(&fake_lock);
	id->port = ntohs(((struct sockaddr_in *)to)->sin_port);
	if (atomic_load(&fake.no_route)) {
		fake_tell(id, RDMA_CM_EVENT_ADDR_ERROR, -ENODEV, NULL);
	} else {
		base->verbs = fake_context_get();
		fake_tell(id, RDMA_CM_EVENT_ADDR_RESOLVED, 0, NULL);
	}
	pthread_mutex_unlock(&fake_lock);
	return 0;
}

int rdma_resolve_route(struct rdma_cm_id *id, int timeout_ms)
{
	pthread_mutex_lock(&fake_lock);
	fake_tell((struct fake_id *)id, RDMA_CM_EVENT_ROUTE_RESOLVED, 0, NULL);
	pthread_mutex_unlock(&fake_lock);
	return 0;
}

/* The caller holds the lock. */
static void fake_reads(struct fake_id *id, const struct rdma_conn_param *param)
{
	id->asks = param->initiator_depth;
	id->serves = param->responder_resources;
	if (id->asks > fake.max_init_rd_atom || id->serves > fake.max_rd_atom)
		abort(); /* beyond what the device said */
	fake.asks = id->asks;
	fake.serves = id->serves;
}

int rdma_connect(struct rdma_cm_id *base, struct rdma_conn_param *param)
{
	struct fake_id *id = (struct fake_id *)base, *to;
	struct rdma_conn_param copy = *param;
	uint8_t token[64];

	pthread_mutex_lock(&fake_lock);
	fake_reads(id, param);
	to = fake_ids;
	while (to && !(to->listens && to->port == id->port))
		to = to->next;
	memcpy(token, param->private_data, param->private_data_len);
	copy.private_data = token;
	if (atomic_load(&fake.tokens_wrong)) {
		atomic_fetch_sub(&fake.tokens_wrong, 1);
		token[3] ^= 1;
	}
	if (!to) {
		fake_tell(id, RDMA_CM_EVENT_REJECTED, ECONNREFUSED, NULL);
	} else if (!atomic_load(&fake.lose_requests)) {
		struct fake_id *new = fake_id_new(to->id.channel, NULL);

		new->id.verbs = fake_context_get();
		new->other = id;
		id->other = new;
		copy.responder_resources = param->initiator_depth; /* seen from there */
		copy.initiator_depth = param->responder_resources;
		fake_tell(new, RDMA_CM_EVENT_CONNECT_REQUEST, 0, &copy);
	}
	pthread_mutex_unlock(&fake_lock);
	return 0;
}

int rdma_accept(struct rdma_cm_id *base, struct rdma_conn_param *param)
{
	struct fake_id *id = (struct fake_id *)base;
	struct fake_qp *ours = (struct fake_qp *)base->qp, *theirs;

	pthread_mutex_lock(&fake_lock);
	fake_reads(id, param);
	if (id->other && (id->asks > id->other->serves || id->serves > id->other->asks))
		abort(); /* a card would break the other's queue pair */
	if (id->other && id->other->id.qp) {
		theirs = (struct fake_qp *)id->other->id.qp;
		ours->peer = theirs;
		theirs->peer = ours;
		fake_tell(id, RDMA_CM_EVENT_ESTABLISHED, 0, NULL);
		fake_tell(id->other, RDMA_CM_EVENT_ESTABLISHED, 0, NULL);
	}
	pthread_mutex_unlock(&fake_lock);
	return 0;
}

int rdma_reject(struct rdma_cm_id *base, const void *data, uint8_t bytes)
{
	struct fake_id *id = (struct fake_id *)base;

	pthread_mutex_lock(&fake_lock);
	if (id->other)
		fake_tell(id->other, RDMA_CM_EVENT_REJECTED, 28, NULL);
	pthread_mutex_unlock(&fake_lock);
	return 0;
}

int rdma_disconnect(struct rdma_cm_id *base)
{
	struct fake_id *id = (struct fake_id *)base;
	struct fake_qp *qp = (struct fake_qp *)base->qp;

	pthread_mutex_lock(&fake_lock);
	if (qp && qp->peer) {
		fake_break(qp->peer);
		fake_break(qp);
		if (id->other)
			fake_tell(id->other, RDMA_CM_EVENT_DISCONNECTED, 0, NULL);
	}
	pthread_mutex_unlock(&fake_lock);
	return 0;
}

int rdma_create_qp(
	struct rdma_cm_id *id, struct ibv_pd *pd, struct ibv_qp_init_attr *attr)
{
	static _Atomic uint32_t number;
	struct fake_qp *qp;

	if ((int)attr->cap.max_inline_data > fake.max_inline) {
		errno = EINVAL;
		return -1;
	}
	if (fake_happens(&fake.qp_fails) || (int)fake.pairs >= fake.max_qp) {
		errno = ENOMEM;
		return -1;
	}
	if ((int)attr->cap.max_send_wr > fake.max_qp_wr ||
		(int)attr->cap.max_recv_wr > fake.max_qp_wr)
		abort(); /* beyond what the device said */
	qp = calloc(1, sizeof(*qp));
	qp->qp.context = id->verbs;
	qp->qp.qp_context = attr->qp_context;
	qp->qp.pd = pd;
	qp->qp.send_cq = attr->send_cq;
	qp->qp.recv_cq = attr->recv_cq;
	qp->qp.qp_num = atomic_fetch_add(&number, 1);
	qp->room = attr->cap.max_recv_wr;
	qp->send_room = attr->cap.max_send_wr;
	qp->inline_bytes = attr->cap.max_inline_data;
	qp->receives = calloc(qp->room, sizeof(*qp->receives));
	qp->sges = calloc(qp->room, sizeof(*qp->sges));
	id->qp = &qp->qp;
	atomic_fetch_add(&fake.pairs, 1);
	return 0;
}

void rdma_destroy_qp(struct rdma_cm_id *id)
{
	struct fake_qp *qp = (struct fake_qp *)id->qp;

	pthread_mutex_lock(&fake_lock);
	for (unsigned i = 0; i < FAKE_KEYS; i++)
		if (fake_keys[i].used && fake_keys[i].only == &qp->qp)
			abort(); /* Soft-RoCE waits a minute for windows */
	if (qp->peer)
		qp->peer->peer = NULL;
	id->qp = NULL;
	pthread_mutex_unlock(&fake_lock);
	atomic_fetch_sub(&fake.pairs, 1);
	free(qp->receives);
	free(qp->sges);
	free(qp);
}

/* Whatever uses the device is told that it goes. */
static inline void fake_remove_device(void)
{
	pthread_mutex_lock(&fake_lock);
	for (struct fake_id *id = fake_ids; id; id = id->next)
		fake_tell(id, RDMA_CM_EVENT_DEVICE_REMOVAL, 0, NULL);
	pthread_mutex_unlock(&fake_lock);
}

#endif
