/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a device can do, and this process may: read from the device, asked for no more than
 * that, and, where it is not enough, said in words that name the limit and what raises it
 * (docs/operations.md, "RDMA"). The names in brackets are those of `ibv_devinfo -v`.
 */
#include "engine/net/verbs_internal.h"

#include <errno.h>
#include <string.h>
#include <sys/resource.h>

#define LEAST_DEPTH VERBS_DEPTH_MIN

static const char *name_of(const struct verbs_device *d)
{
	return ibv_get_device_name(d->context->device);
}

static unsigned at_least_0(int limit)
{
	return (unsigned)MAX(limit, 0);
}

/* Of locked memory; RLIM_INFINITY: as much as there is. */
static rlim_t lockable(void)
{
	struct rlimit limit = {.rlim_cur = RLIM_INFINITY};

	getrlimit(RLIMIT_MEMLOCK, &limit);
	return limit.rlim_cur;
}

static bool is_shortage(int e)
{
	return e == ENOMEM || e == EAGAIN || e == ENOSPC;
}

/* ---- reads and atomics under way --------------------------------------------------------------- */

int verbs_limits_device(const struct verbs_device *d, struct weft_error *why)
{
	if (d->context->device->transport_type == IBV_TRANSPORT_IWARP)
		return weft_error(why, -EOPNOTSUPP,
			"device %s is iWARP, which has no SEND with immediate data, and "
			"weft's messages are such: use a device of InfiniBand or RoCE",
			name_of(d));
	if (d->limits.max_qp_rd_atom < 1 || d->limits.max_qp_init_rd_atom < 1)
		return weft_error(why, -EOPNOTSUPP,
			"device %s serves %d reads at a time and asks for %d "
			"(max_qp_rd_atom, max_qp_init_rd_atom): weft needs one of each; "
			"use "
			"another device",
			name_of(d), d->limits.max_qp_rd_atom,
			d->limits.max_qp_init_rd_atom);
	return 0;
}

/* Whoever asks for more than the other end serves has its queue pair broken by it. */
struct verbs_reads verbs_limits_reads(
	const struct verbs_device *d, const struct verbs_reads *theirs)
{
	struct verbs_reads r = {
		.asked = (uint8_t)MIN(at_least_0(d->limits.max_qp_init_rd_atom),
			(unsigned)RDMA_MAX_INIT_DEPTH - 1),
		.served = (uint8_t)MIN(at_least_0(d->limits.max_qp_rd_atom),
			(unsigned)RDMA_MAX_RESP_RES - 1),
	};

	if (theirs) {
		r.asked = MIN(r.asked, theirs->served);
		r.served = MIN(r.served, theirs->asked);
	}
	return r;
}

/* ---- queues -------------------------------------------------------------------------------------- */

int verbs_limits_pair(struct verbs_pair *p, struct weft_error *why)
{
	const struct ibv_device_attr *l = &p->device->limits;
	unsigned most = MIN(at_least_0(l->max_qp_wr), at_least_0(l->max_cqe) / 3);

	if (most < LEAST_DEPTH)
		return weft_error(why, -ENOSPC,
			"device %s takes %d work requests a queue (max_qp_wr) and %d "
			"completions (max_cqe); a link needs %u and %u: use another "
			"device",
			name_of(p->device), l->max_qp_wr, l->max_cqe, LEAST_DEPTH,
			3 * LEAST_DEPTH);
	if (l->max_qp > 0 && p->device->pairs >= (unsigned)l->max_qp)
		return weft_error(why, -ENOSPC,
			"device %s gives %d queue pairs (max_qp), and this node has as "
			"many; each other node needs one: use a device that has more",
			name_of(p->device), l->max_qp);
	p->depth = MIN(most, VERBS_DEPTH);
	p->receives = MIN(most, WIRE_WINDOW + VERBS_SPARE);
	return 0;
}

int verbs_queue_error(
	const struct verbs_pair *p, struct weft_error *why, int e, const char *what)
{
	const struct ibv_device_attr *l = &p->device->limits;

	if (is_shortage(e) && lockable() != RLIM_INFINITY)
		return weft_error(why, -e,
			"no %s of %u and %u: %s; this process may lock %llu KiB of "
			"memory: raise it with `ulimit -l unlimited`, or "
			"LimitMEMLOCK=infinity in its systemd unit",
			what, p->depth, p->receives, strerrordesc_np(e),
			(unsigned long long)lockable() >> 10);
	if (is_shortage(e))
		return weft_error(why, -e,
			"no %s of %u and %u: %s; device %s has %d queue pairs (max_qp) "
			"and %d completion queues (max_cq) for all programs: see who has "
			"them with `rdma resource show`, and rdma.max of this process's "
			"cgroup",
			what, p->depth, p->receives, strerrordesc_np(e),
			name_of(p->device), l->max_qp, l->max_cq);
	return weft_error(why, -e, "no %s of %u and %u: %s", what, p->depth, p->receives,
		strerrordesc_np(e));
}

/* ---- memory --------------------------------------------------------------------------------------- */

static int register_error(
	const struct verbs_device *d, struct weft_error *why, int e, size_t bytes)
{
	if (is_shortage(e) && lockable() != RLIM_INFINITY)
		return weft_error(why, -e,
			"%zu MiB cannot be registered: this process may lock %llu KiB of "
			"memory; raise it with `ulimit -l unlimited`, or "
			"LimitMEMLOCK=infinity in its systemd unit",
			bytes >> 20, (unsigned long long)lockable() >> 10);
	if (is_shortage(e))
		return weft_error(why, -e,
			"%zu MiB cannot be registered: %s; device %s has %d "
			"registrations "
			"(max_mr) for all programs: see who has them with `rdma resource "
			"show mr`, or take a smaller cache (`-o cache=`)",
			bytes >> 20, strerrordesc_np(e), name_of(d), d->limits.max_mr);
	return weft_error(why, -e, "%zu MiB cannot be registered: %s", bytes >> 20,
		strerrordesc_np(e));
}

struct ibv_mr *verbs_register(const struct verbs_device *d, void *at, size_t bytes,
	int access, struct weft_error *why)
{
	struct ibv_mr *key;

	if (d->limits.max_mr_size && bytes > d->limits.max_mr_size) {
		weft_error(why, -E2BIG,
			"%zu MiB cannot be registered: device %s takes %llu MiB at a "
			"time "
			"(max_mr_size); take a smaller cache (`-o cache=`)",
			bytes >> 20, name_of(d),
			(unsigned long long)d->limits.max_mr_size >> 20);
		return NULL;
	}
	key = ibv_reg_mr(d->pd, at, bytes, access);
	if (!key)
		register_error(d, why, errno, bytes);
	return key;
}

int verbs_window_error(const struct verbs_device *d, struct weft_error *why, int e)
{
	return weft_error(why, -e,
		"no memory window: %s; device %s has %d (max_mw) for all programs, and a "
		"link needs up to %u",
		strerrordesc_np(e), name_of(d), d->limits.max_mw, NET_REGIONS_MAX);
}
