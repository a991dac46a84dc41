/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The receiving half of a verbs link: it takes the completions of received messages and of sent
 * requests. The progress task does so when the channel has an event. A task that waits for an
 * answer does so for its link (lead.c). Such a task polls while that pays, and then sleeps.
 *
 * A task that stops polling asks for an event first, and polls once more. So no completion stays
 * behind.
 */
#include "engine/net/verbs_internal.h"

#include <errno.h>
#include <string.h>

#define RECEIVED   (1ull << 63) /* a work request's number: a slot of this node */
#define SPIN_NS    20000u
#define SPIN_LOOKS 32u /* between readings of the clock */
#define LUCK_MAX   16u
#define TRY_ONE_IN 64u /* without luck */

/* ---- receives ---------------------------------------------------------------------------- */

int verbs_receives_post(struct verbs_pair *p, const uint16_t *slots, unsigned count)
{
	struct ibv_recv_wr wr[VERBS_POLL], *bad;
	struct ibv_sge sge[VERBS_POLL];

	WEFT_ASSERT(count > 0 && count <= VERBS_POLL);
	for (unsigned i = 0; i < count; i++) {
		size_t at = slots[i] * (size_t)VERBS_SLOT_BYTES;

		sge[i] = (struct ibv_sge){.addr = (uintptr_t)(p->memory + at),
			.length = VERBS_SLOT_BYTES,
			.lkey = p->memory_key->lkey};
		wr[i] = (struct ibv_recv_wr){.wr_id = RECEIVED | slots[i],
			.next = i + 1 < count ? &wr[i + 1] : NULL,
			.sg_list = &sge[i],
			.num_sge = 1};
	}
	return -ibv_post_recv(p->id->qp, wr, &bad);
}

/* ---- completions ------------------------------------------------------------------------- */

/* The results of one round of completions. */
struct round {
	uint16_t slots[VERBS_POLL];
	unsigned slot_count;
	unsigned sends; /* those with messages */
	uint64_t sequence; /* of the last that has ended; UINT64_MAX: none */
	bool counted;      /* the peer has sent how many it has taken */
	uint32_t taken;
};

/* Delivers the messages of one send. */
static void take_messages(struct verbs_peer *peer, const uint8_t *packed, uint32_t bytes)
{
	struct net_message m = {0};

	net_count(&peer->line.base.counters.sends_in, 1);
	for (uint32_t at = 0; at < bytes && !atomic_load(&peer->line.cut_code);) {
		unsigned took = wire_unpack(packed + at, bytes - at, &m);

		if (!took || !wire_message_check(&m, peer->line.base.node)) {
			verbs_cut(&peer->line.base, -EPROTO);
			return;
		}
		at += took;
		net_deliver(&peer->line.base, &m);
	}
}

static void on_received(struct verbs_peer *peer, const struct ibv_wc *wc, struct round *r)
{
	struct verbs_pair *p = peer->pair;
	uint16_t slot = (uint16_t)(wc->wr_id & UINT16_MAX);
	uint32_t word = ntohl(wc->imm_data);
	bool plain = wc->opcode == IBV_WC_RECV;

	if (!(wc->wc_flags & IBV_WC_WITH_IMM) ||
		word >> 24 != (plain ? VERBS_MESSAGE : VERBS_CONTROL) ||
		(plain && (!wc->byte_len || wc->byte_len > VERBS_SLOT_BYTES))) {
		verbs_cut(&peer->line.base, -EPROTO);
		return;
	}
	r->counted = true;
	r->taken = word & VERBS_COUNT_MASK;
	r->slots[r->slot_count++] = slot;
	if (!plain)
		return;
	r->sends++;
	take_messages(peer, p->memory + slot * (size_t)VERBS_SLOT_BYTES, wc->byte_len);
}

static void on_completion(struct verbs_peer *peer, const struct ibv_wc *wc, struct round *r)
{
	if (wc->status != IBV_WC_SUCCESS)
		verbs_cut(&peer->line.base, verbs_status(wc->status));
	else if (wc->wr_id & RECEIVED)
		on_received(peer, wc, r);
	else
		r->sequence = wc->wr_id;
}

/* The slots are posted again before the peer learns that it may send more. */
static void return_credits(struct verbs_peer *peer, const struct round *r)
{
	uint32_t owed;

	if (r->slot_count && verbs_receives_post(peer->pair, r->slots, r->slot_count)) {
		verbs_cut(&peer->line.base, -EIO);
		return;
	}
	owed = atomic_fetch_add(&peer->taken, r->sends) + r->sends -
	       atomic_load(&peer->told);
	if (owed >= (peer->pair->receives - VERBS_SPARE) / 4)
		verbs_push(peer, true);
}

bool verbs_receive(struct verbs_peer *peer)
{
	struct round r = {.sequence = UINT64_MAX};
	struct ibv_wc wc[VERBS_POLL];
	int n;

	if (!peer->line.base.up || atomic_load(&peer->line.cut_code))
		return false;
	n = ibv_poll_cq(peer->pair->cq, VERBS_POLL, wc);
	if (n < 0)
		verbs_cut(&peer->line.base, -EIO);
	if (n <= 0)
		return false;
	net_after_receive(&peer->line.base);
	atomic_store_explicit(&peer->heard, true, memory_order_relaxed);
	net_count(&peer->line.base.counters.calls_in, 1);
	net_count(&peer->line.base.counters.completions, (uint64_t)n);
	for (int i = 0; i < n && !atomic_load(&peer->line.cut_code); i++)
		on_completion(peer, &wc[i], &r);
	if (atomic_load(&peer->line.cut_code))
		return false;
	if (r.sequence != UINT64_MAX || r.counted)
		verbs_progress(peer, r.sequence, r.counted, r.taken);
	return_credits(peer, &r);
	/* Messages that handlers held back go out with the last answer. */
	net_queue_flush(peer->line.base.net, NET_URGENT);
	return true;
}

/* ---- events ------------------------------------------------------------------------------ */

/* Under event_lock. */
static void take_events(struct verbs_peer *peer)
{
	struct ibv_cq *cq;
	void *context;

	while (ibv_get_cq_event(peer->pair->channel, &cq, &context) == 0) {
		ibv_ack_cq_events(cq, 1);
		peer->armed = false;
	}
}

/* Under event_lock. Returns true if completions have arrived meanwhile. The next one makes an
 * event. */
static bool arm_events(struct verbs_peer *peer)
{
	if (!peer->line.base.up)
		return false;
	if (!peer->armed) {
		if (ibv_req_notify_cq(peer->pair->cq, 0))
			verbs_cut(&peer->line.base, -EIO);
		peer->armed = true;
	}
	return verbs_receive(peer);
}

void verbs_serve(struct verbs_peer *peer)
{
	rt_mutex_lock(&peer->line.event_lock);
	if (peer->line.base.up)
		take_events(peer);
	while (arm_events(peer))
		;
	rt_mutex_unlock(&peer->line.event_lock);
}

/* ---- a task that waits ------------------------------------------------------------------- */

static bool receive_locked(struct verbs_peer *peer)
{
	bool any;

	rt_mutex_lock(&peer->line.event_lock);
	any = verbs_receive(peer);
	rt_mutex_unlock(&peer->line.event_lock);
	return any;
}

static bool spin_pays(struct verbs_peer *peer)
{
	return peer->luck || ++peer->tries % TRY_ONE_IN == 0;
}

static bool spin_for_answer(
	struct verbs_peer *peer, const _Atomic uint32_t *word, uint32_t expected)
{
	uint64_t until = rt_now_ns() + SPIN_NS;
	bool found = false;

	do {
		for (unsigned i = 0; i < SPIN_LOOKS; i++)
			cpu_pause();
		found = receive_locked(peer) ||
			atomic_load_explicit(word, memory_order_relaxed) != expected;
	} while (!found && rt_now_ns() < until);
	if (found)
		peer->luck = MIN(peer->luck + 2, LUCK_MAX);
	else if (peer->luck)
		peer->luck--;
	return found;
}

static int sleep_for_answer(struct verbs_peer *peer, _Atomic uint32_t *word,
	uint32_t expected, uint64_t deadline_ns)
{
	bool any;
	int rc = 0;

	rt_mutex_lock(&peer->line.event_lock);
	any = arm_events(peer);
	rt_mutex_unlock(&peer->line.event_lock);
	if (any)
		return 0;
	atomic_store(&peer->line.leads_for, word);
	if (atomic_load(word) == expected && !net_lead_over(&peer->line))
		rc = rt_socket_wait(peer->pair->bell, deadline_ns);
	atomic_store(&peer->line.leads_for, NULL);
	rt_mutex_lock(&peer->line.event_lock);
	take_events(peer);
	rt_mutex_unlock(&peer->line.event_lock);
	return rc;
}

int verbs_wait(struct net *base, struct net_peer *likely, _Atomic uint32_t *word,
	uint32_t expected, uint64_t deadline_ns)
{
	struct verbs_peer *peer = likely ? verbs_peer_of(likely) : NULL;
	int rc = 0;

	if (atomic_load_explicit(word, memory_order_acquire) != expected)
		return 0;
	if (!peer || !likely->up || !net_lead_begin(&peer->line))
		return net_lead_sleep(connect_net_of(base), word, expected, deadline_ns);
	while (rc == 0 && atomic_load(word) == expected && !net_lead_over(&peer->line)) {
		if (receive_locked(peer))
			continue;
		if (spin_pays(peer) && spin_for_answer(peer, word, expected))
			continue;
		rc = sleep_for_answer(peer, word, expected, deadline_ns);
	}
	verbs_serve(peer); /* from here on the progress task gets the events */
	net_lead_end(&peer->line);
	return rc;
}
