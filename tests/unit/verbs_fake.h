/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A device that is not there: the functions of libibverbs and librdmacm that engine/net
 * uses, for queue pairs within one process. A test that includes this file gets these
 * instead of the libraries'. Work requests are carried out when they are posted, keys and
 * bounds are checked as a card does; what a card can do wrong is asked for in `fake`.
 */
#ifndef WEFT_TESTS_VERBS_FAKE_H
#define WEFT_TESTS_VERBS_FAKE_H

#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <pthread.h>
#include <rdma/rdma_cma.h>
#include <stdatomic.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#define FAKE_KEYS   1024u
#define FAKE_EVENTS 256u

/* What goes wrong. Counters go down with each use: at 0 nothing does. */
static struct {
	/* What the device says of itself; who asks for more ends the test, or gets ENOMEM. */
	int max_qp_wr, max_cqe, max_qp, max_rd_atom, max_init_rd_atom, max_inline;
	uint64_t max_mr_size;
	bool no_windows, no_atomics;
	_Atomic int reg_fails, qp_fails, cq_fails, mw_fails,
		bind_fails;     /* the next so many */
	_Atomic int post_fails; /* ibv_post_send returns ENOMEM */
	_Atomic int wrong_from; /* this many work requests on, one completes with: */
	enum ibv_wc_status wrong;
	_Atomic bool lose_requests, no_route, deaf;
	/* What was asked for, and is there. */
	_Atomic unsigned pairs, keys_used, windows_used, completion_queues, ids;
	_Atomic uint64_t requests, doorbells, signalled;
	_Atomic uint8_t asks,
		serves; /* reads under way, by who connected or accepted last */
	_Atomic unsigned tokens_wrong; /* connect with another token than was given */
} fake;

/* A device like others. */
static inline void fake_usual(void)
{
	fake.max_qp_wr = 4096;
	fake.max_cqe = 16384;
	fake.max_qp = 1000;
	fake.max_rd_atom = fake.max_init_rd_atom = 16;
	fake.max_inline = 256;
	fake.max_mr_size = 1ull << 40;
	fake.no_windows = fake.no_atomics = false;
}

struct fake_key {
	bool used;
	uint32_t key;
	uint64_t base, bytes;
	int access;
	struct ibv_qp *only; /* a window: the pair that may use it */
};

struct fake_cq {
	struct ibv_cq cq;
	struct ibv_wc *wc;
	unsigned first, count, room;
	bool armed;
};

struct fake_channel {
	struct ibv_comp_channel channel;
	struct fake_cq *ready[FAKE_EVENTS];
	unsigned count;
};

struct fake_qp {
	struct ibv_qp qp;
	struct fake_qp *peer; /* NULL: not connected, or any more */
	bool broken;
	struct ibv_recv_wr *receives; /* with their only sge behind */
	struct ibv_sge *sges;
	unsigned first, count, room, inline_bytes, send_room, unsignalled;
};

struct fake_id {
	struct rdma_cm_id id;
	struct fake_id *next, *other; /* all; the other end */
	uint16_t port;
	bool listens;
	uint8_t asks, serves; /* reads under way */
};

struct fake_event {
	struct rdma_cm_event event;
	uint8_t private_data[64];
};

struct fake_manager {
	struct rdma_event_channel channel;
	struct fake_event *events[FAKE_EVENTS];
	unsigned count;
};

static pthread_mutex_t fake_lock = PTHREAD_MUTEX_INITIALIZER;
static struct fake_key fake_keys[FAKE_KEYS];
static struct fake_id *fake_ids;
static uint16_t fake_port = 1000;
static struct ibv_device fake_device = {.name = "fake0"};
static struct ibv_context fake_context;
static struct ibv_async_event fake_async;
static unsigned fake_generation;

static inline bool fake_happens(_Atomic int *counter)
{
	int n = atomic_load(counter);

	while (n > 0)
		if (atomic_compare_exchange_weak(counter, &n, n - 1))
			return true;
	return false;
}

static void fake_ring(int fd)
{
	uint64_t one = 1;

	if (write(fd, &one, sizeof(one)) < 0)
		abort();
}

static bool fake_unring(int fd)
{
	uint64_t count;

	return read(fd, &count, sizeof(count)) == sizeof(count);
}

/* ---- keys ------------------------------------------------------------------------------------ */

static struct fake_key *fake_key_new(uint64_t base, uint64_t bytes, int access)
{
	for (unsigned i = 1; i < FAKE_KEYS; i++) {
		struct fake_key *k = &fake_keys[i];

		if (k->used)
			continue;
		*k = (struct fake_key){.used = true,
			.key = i << 8 | (++fake_generation & 0xff),
			.base = base,
			.bytes = bytes,
			.access = access};
		return k;
	}
	abort();
}

static struct fake_key *fake_key_of(uint32_t key)
{
	struct fake_key *k = key >> 8 < FAKE_KEYS ? &fake_keys[key >> 8] : NULL;

	return k && k->used && k->key == key ? k : NULL;
}

static bool fake_covers(const struct fake_key *k, uint64_t at, uint64_t bytes, int access)
{
	return k && (k->access & access) == access && at >= k->base && at + bytes >= at &&
	       at + bytes <= k->base + k->bytes;
}

struct ibv_mr *ibv_reg_mr_iova2(
	struct ibv_pd *pd, void *addr, size_t length, uint64_t iova, unsigned int access)
{
	struct ibv_mr *mr = calloc(1, sizeof(*mr));
	struct fake_key *k;

	if (length > fake.max_mr_size)
		abort(); /* beyond what the device said */
	if (fake_happens(&fake.reg_fails)) {
		free(mr);
		errno = ENOMEM;
		return NULL;
	}
	pthread_mutex_lock(&fake_lock);
	k = fake_key_new((uintptr_t)addr, length, (int)access);
	pthread_mutex_unlock(&fake_lock);
	atomic_fetch_add(&fake.keys_used, 1);
	mr->context = pd->context;
	mr->pd = pd;
	mr->addr = addr;
	mr->length = length;
	mr->lkey = mr->rkey = k->key;
	return mr;
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *addr, size_t length, int access)
{
	return ibv_reg_mr_iova2(pd, addr, length, (uintptr_t)addr, (unsigned)access);
}

int ibv_dereg_mr(struct ibv_mr *mr)
{
	pthread_mutex_lock(&fake_lock);
	fake_key_of(mr->lkey)->used = false;
	pthread_mutex_unlock(&fake_lock);
	atomic_fetch_sub(&fake.keys_used, 1);
	free(mr);
	return 0;
}

static struct ibv_mw *fake_alloc_mw(struct ibv_pd *pd, enum ibv_mw_type type)
{
	struct ibv_mw *mw = calloc(1, sizeof(*mw));

	if (fake_happens(&fake.mw_fails)) {
		free(mw);
		errno = ENOMEM;
		return NULL;
	}
	mw->context = pd->context;
	mw->pd = pd;
	pthread_mutex_lock(&fake_lock);
	mw->rkey = fake_key_new(0, 0, 0)->key;
	pthread_mutex_unlock(&fake_lock);
	mw->type = type;
	atomic_fetch_add(&fake.windows_used, 1);
	return mw;
}

static int fake_dealloc_mw(struct ibv_mw *mw)
{
	pthread_mutex_lock(&fake_lock);
	fake_keys[mw->rkey >> 8].used = false;
	pthread_mutex_unlock(&fake_lock);
	atomic_fetch_sub(&fake.windows_used, 1);
	free(mw);
	return 0;
}

/* ---- completions ------------------------------------------------------------------------------- */

static void fake_complete(struct ibv_cq *base, const struct ibv_wc *wc)
{
	struct fake_cq *cq = (struct fake_cq *)base;
	struct fake_channel *channel = (struct fake_channel *)base->channel;

	if (cq->count == cq->room)
		abort(); /* an overrun: the user's mistake */
	cq->wc[(cq->first + cq->count++) % cq->room] = *wc;
	if (!cq->armed || atomic_load(&fake.deaf))
		return;
	cq->armed = false;
	if (channel->count == FAKE_EVENTS)
		abort();
	channel->ready[channel->count++] = cq;
	fake_ring(channel->channel.fd);
}

static int fake_poll_cq(struct ibv_cq *base, int n, struct ibv_wc *wc)
{
	struct fake_cq *cq = (struct fake_cq *)base;
	int got = 0;

	pthread_mutex_lock(&fake_lock);
	for (; got < n && cq->count; cq->count--) {
		wc[got++] = cq->wc[cq->first];
		cq->first = (cq->first + 1) % cq->room;
	}
	pthread_mutex_unlock(&fake_lock);
	return got;
}

static int fake_req_notify(struct ibv_cq *base, int solicited)
{
	pthread_mutex_lock(&fake_lock);
	((struct fake_cq *)base)->armed = true;
	pthread_mutex_unlock(&fake_lock);
	return 0;
}

struct ibv_comp_channel *ibv_create_comp_channel(struct ibv_context *context)
{
	struct fake_channel *c = calloc(1, sizeof(*c));

	c->channel.context = context;
	c->channel.fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
	return &c->channel;
}

int ibv_destroy_comp_channel(struct ibv_comp_channel *channel)
{
	close(channel->fd);
	free(channel);
	return 0;
}

int ibv_get_cq_event(struct ibv_comp_channel *base, struct ibv_cq **cq, void **context)
{
	struct fake_channel *c = (struct fake_channel *)base;
	int r = -1;

	if (!fake_unring(base->fd))
		return -1;
	pthread_mutex_lock(&fake_lock);
	if (c->count) {
		*cq = &c->ready[0]->cq;
		*context = (*cq)->cq_context;
		memmove(c->ready, c->ready + 1, --c->count * sizeof(c->ready[0]));
		r = 0;
	}
	pthread_mutex_unlock(&fake_lock);
	return r;
}

void ibv_ack_cq_events(struct ibv_cq *cq, unsigned int n)
{
}

struct ibv_cq *ibv_create_cq(struct ibv_context *context, int cqe, void *cq_context,
	struct ibv_comp_channel *channel, int vector)
{
	struct fake_cq *cq;

	if (fake_happens(&fake.cq_fails)) {
		errno = ENOMEM;
		return NULL;
	}
	if (cqe > fake.max_cqe)
		abort(); /* beyond what the device said */
	cq = calloc(1, sizeof(*cq));
	cq->cq.context = context;
	cq->cq.channel = channel;
	cq->cq.cq_context = cq_context;
	cq->room = (unsigned)cqe;
	cq->wc = calloc(cq->room, sizeof(*cq->wc));
	atomic_fetch_add(&fake.completion_queues, 1);
	return &cq->cq;
}

int ibv_destroy_cq(struct ibv_cq *base)
{
	free(((struct fake_cq *)base)->wc);
	free(base);
	atomic_fetch_sub(&fake.completion_queues, 1);
	return 0;
}

/* ---- work requests --------------------------------------------------------------------------------- */

static enum ibv_wc_opcode fake_opcode(enum ibv_wr_opcode o)
{
	switch (o) {
	case IBV_WR_RDMA_READ:
		return IBV_WC_RDMA_READ;
	case IBV_WR_ATOMIC_CMP_AND_SWP:
		return IBV_WC_COMP_SWAP;
	case IBV_WR_ATOMIC_FETCH_AND_ADD:
		return IBV_WC_FETCH_ADD;
	case IBV_WR_BIND_MW:
		return IBV_WC_BIND_MW;
	case IBV_WR_SEND_WITH_IMM:
		return IBV_WC_SEND;
	default:
		return IBV_WC_RDMA_WRITE;
	}
}

/* Both ends' receives are flushed, as the cards do. */
static void fake_break(struct fake_qp *qp)
{
	if (qp->broken)
		return;
	qp->broken = true;
	for (; qp->count; qp->count--) {
		struct ibv_wc wc = {.wr_id = qp->receives[qp->first].wr_id,
			.status = IBV_WC_WR_FLUSH_ERR,
			.qp_num = qp->qp.qp_num};

		qp->first = (qp->first + 1) % qp->room;
		fake_complete(qp->qp.recv_cq, &wc);
	}
}

/* A receive is used up; with data, it goes there. */
static enum ibv_wc_status fake_receive(struct fake_qp *to, const struct ibv_send_wr *wr)
{
	bool plain = wr->opcode == IBV_WR_SEND_WITH_IMM;
	struct ibv_wc wc = {.opcode = plain ? IBV_WC_RECV : IBV_WC_RECV_RDMA_WITH_IMM,
		.wc_flags = IBV_WC_WITH_IMM,
		.imm_data = wr->imm_data,
		.byte_len = plain ? wr->sg_list->length : 0};
	struct ibv_sge *sge;

	if (to->count == 0)
		return IBV_WC_RNR_RETRY_EXC_ERR;
	wc.wr_id = to->receives[to->first].wr_id;
	sge = &to->sges[to->first];
	if (plain && wr->sg_list->length > sge->length)
		return IBV_WC_REM_INV_REQ_ERR;
	if (plain)
		memcpy((void *)(uintptr_t)sge->addr, (void *)(uintptr_t)wr->sg_list->addr,
			wr->sg_list->length);
	to->first = (to->first + 1) % to->room;
	to->count--;
	fake_complete(to->qp.recv_cq, &wc);
	return IBV_WC_SUCCESS;
}

static void *fake_remote(
	struct fake_qp *qp, uint32_t rkey, uint64_t at, uint64_t bytes, int access)
{
	struct fake_key *k = fake_key_of(rkey);

	if (!fake_covers(k, at, bytes, access) || (k->only && k->only != &qp->peer->qp))
		return NULL;
	return (void *)(uintptr_t)at;
}

static enum ibv_wc_status fake_move(struct fake_qp *qp, const struct ibv_send_wr *wr)
{
	bool read = wr->opcode == IBV_WR_RDMA_READ;
	void *local = (void *)(uintptr_t)wr->sg_list->addr;
	uint32_t bytes = wr->sg_list->length;
	void *at = fake_remote(qp, wr->wr.rdma.rkey, wr->wr.rdma.remote_addr, bytes,
		read ? IBV_ACCESS_REMOTE_READ : IBV_ACCESS_REMOTE_WRITE);

	if (!(wr->send_flags & IBV_SEND_INLINE) &&
		!fake_covers(fake_key_of(wr->sg_list->lkey), wr->sg_list->addr, bytes,
			read ? IBV_ACCESS_LOCAL_WRITE : 0))
		return IBV_WC_LOC_PROT_ERR;
	if (!at)
		return IBV_WC_REM_ACCESS_ERR;
	if (read)
		memcpy(local, at, bytes);
	else
		memcpy(at, local, bytes);
	return IBV_WC_SUCCESS;
}

static enum ibv_wc_status fake_atomic(struct fake_qp *qp, const struct ibv_send_wr *wr)
{
	uint64_t *to = (uint64_t *)(uintptr_t)wr->sg_list->addr;
	uint64_t *at = fake_remote(qp, wr->wr.atomic.rkey, wr->wr.atomic.remote_addr, 8,
		IBV_ACCESS_REMOTE_ATOMIC);

	if (!at || (uintptr_t)at % 8)
		return IBV_WC_REM_ACCESS_ERR;
	if (wr->opcode == IBV_WR_ATOMIC_FETCH_AND_ADD) {
		*to = __atomic_fetch_add(at, wr->wr.atomic.compare_add, __ATOMIC_SEQ_CST);
		return IBV_WC_SUCCESS;
	}
	*to = wr->wr.atomic.compare_add;
	__atomic_compare_exchange_n(
		at, to, wr->wr.atomic.swap, false, __ATOMIC_SEQ_CST, __ATOMIC_SEQ_CST);
	return IBV_WC_SUCCESS;
}

static enum ibv_wc_status fake_bind(struct fake_qp *qp, const struct ibv_send_wr *wr)
{
	const struct ibv_mw_bind_info *b = &wr->bind_mw.bind_info;
	struct fake_key *k = fake_key_of(wr->bind_mw.mw->rkey);

	if (fake_happens(&fake.bind_fails) || !k ||
		!fake_covers(
			fake_key_of(b->mr->lkey), b->addr, b->length, IBV_ACCESS_MW_BIND))
		return IBV_WC_MW_BIND_ERR;
	k->key = wr->bind_mw.rkey;
	k->base = b->addr;
	k->bytes = b->length;
	k->access = (int)b->mw_access_flags;
	k->only = &qp->qp;
	return IBV_WC_SUCCESS;
}

static enum ibv_wc_status fake_do(struct fake_qp *qp, const struct ibv_send_wr *wr)
{
	if (atomic_load(&fake.wrong_from) > 0 && wr->opcode != IBV_WR_BIND_MW &&
		atomic_fetch_sub(&fake.wrong_from, 1) == 1)
		return fake.wrong;
	if (wr->opcode == IBV_WR_BIND_MW)
		return fake_bind(qp, wr);
	if (!qp->peer || qp->peer->broken)
		return IBV_WC_RETRY_EXC_ERR;
	switch (wr->opcode) {
	case IBV_WR_SEND_WITH_IMM:
	case IBV_WR_RDMA_WRITE_WITH_IMM:
		return fake_receive(qp->peer, wr);
	case IBV_WR_RDMA_WRITE:
	case IBV_WR_RDMA_READ:
		return fake_move(qp, wr);
	default:
		return fake_atomic(qp, wr);
	}
}

static int fake_post_send(
	struct ibv_qp *base, struct ibv_send_wr *wr, struct ibv_send_wr **bad)
{
	struct fake_qp *qp = (struct fake_qp *)base;

	if (fake_happens(&fake.post_fails)) {
		*bad = wr;
		return ENOMEM;
	}
	pthread_mutex_lock(&fake_lock);
	atomic_fetch_add(&fake.doorbells, 1);
	for (; wr; wr = wr->next) {
		struct ibv_wc wc = {.wr_id = wr->wr_id,
			.opcode = fake_opcode(wr->opcode),
			.qp_num = base->qp_num};
		bool says = wr->send_flags & IBV_SEND_SIGNALED;

		if ((wr->send_flags & IBV_SEND_INLINE) && wr->num_sge &&
			wr->sg_list->length > qp->inline_bytes)
			abort(); /* beyond what was agreed */
		atomic_fetch_add(&fake.requests, 1);
		atomic_fetch_add(&fake.signalled, says);
		/* slots that nothing says the end of are not free */
		qp->unsignalled = says ? 0 : qp->unsignalled + 1;
		if (qp->unsignalled >= qp->send_room)
			abort();
		wc.status = qp->broken ? IBV_WC_WR_FLUSH_ERR : fake_do(qp, wr);
		if (wc.status != IBV_WC_SUCCESS) {
			fake_complete(base->send_cq, &wc);
			fake_break(qp);
			if (qp->peer && wc.status == IBV_WC_REM_ACCESS_ERR)
				fake_break(qp->peer);
		} else if (says) {
			fake_complete(base->send_cq, &wc);
		}
	}
	pthread_mutex_unlock(&fake_lock);
	return 0;
}

static int fake_post_recv(
	struct ibv_qp *base, struct ibv_recv_wr *wr, struct ibv_recv_wr **bad)
{
	struct fake_qp *qp = (struct fake_qp *)base;

	pthread_mutex_lock(&fake_lock);
	for (; wr; wr = wr->next) {
		unsigned at = (qp->first + qp->count) % qp->room;

		if (qp->count == qp->room)
			abort(); /* more than were asked for */
		if (qp->broken) {
			struct ibv_wc wc = {
				.wr_id = wr->wr_id, .status = IBV_WC_WR_FLUSH_ERR};

			fake_complete(base->recv_cq, &wc);
			continue;
		}
		qp->receives[at] = *wr;
		qp->sges[at] = *wr->sg_list;
		qp->count++;
	}
	pthread_mutex_unlock(&fake_lock);
	return 0;
}

/* ---- the device -------------------------------------------------------------------------------------- */

static struct ibv_context *fake_context_get(void)
{
	static pthread_once_t once = PTHREAD_ONCE_INIT;
	void fake_context_make(void);

	pthread_once(&once, fake_context_make);
	return &fake_context;
}

void fake_context_make(void);
void fake_context_make(void)
{
	fake_context.device = &fake_device;
	fake_context.async_fd = eventfd(0, EFD_SEMAPHORE | EFD_CLOEXEC);
	fake_context.ops.alloc_mw = fake_alloc_mw;
	fake_context.ops.dealloc_mw = fake_dealloc_mw;
	fake_context.ops.poll_cq = fake_poll_cq;
	fake_context.ops.req_notify_cq = fake_req_notify;
	fake_context.ops.post_send = fake_post_send;
	fake_context.ops.post_recv = fake_post_recv;
}

const char *ibv_get_device_name(struct ibv_device *device)
{
	return device->name;
}

int ibv_query_device(struct ibv_context *context, struct ibv_device_attr *attr)
{
	*attr = (struct ibv_device_attr){
		.max_qp_wr = fake.max_qp_wr,
		.max_cqe = fake.max_cqe,
		.max_qp = fake.max_qp,
		.max_cq = fake.max_qp,
		.max_mr = FAKE_KEYS,
		.max_mr_size = fake.max_mr_size,
		.max_mw = fake.no_windows ? 0 : 1000,
		.device_cap_flags = IBV_DEVICE_MEM_WINDOW_TYPE_2B,
		.max_qp_rd_atom = fake.max_rd_atom,
		.max_qp_init_rd_atom = fake.max_init_rd_atom,
		.atomic_cap = fake.no_atomics ? IBV_ATOMIC_NONE : IBV_ATOMIC_HCA,
	};
	return 0;
}

struct ibv_pd *ibv_alloc_pd(struct ibv_context *context)
{
	struct ibv_pd *pd = calloc(1, sizeof(*pd));

	pd->context = context;
	return pd;
}

int ibv_dealloc_pd(struct ibv_pd *pd)
{
	free(pd);
	return 0;
}

int ibv_get_async_event(struct ibv_context *context, struct ibv_async_event *event)
{
	if (!fake_unring(context->async_fd))
		return -1;
	pthread_mutex_lock(&fake_lock);
	*event = fake_async;
	pthread_mutex_unlock(&fake_lock);
	return 0;
}

void ibv_ack_async_event(struct ibv_async_event *event)
{
}

static inline void fake_async_event(const struct ibv_async_event *event)
{
	pthread_mutex_lock(&fake_lock);
	fake_async = *event;
	pthread_mutex_unlock(&fake_lock);
	fake_ring(fake_context_get()->async_fd);
}

#include "tests/unit/verbs_fake_manager.h"

#endif
