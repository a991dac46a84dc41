/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The limits of a device, and of this process. They are read from the device, and no more than that
 * is asked for. If a limit is too low, the error's text names it, and the way to raise it
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

/* Of locked memory; RLIM_INFINITY: no limit. */
static rlim_t lockable_bytes(void)
{
	struct rlimit limit = {.rlim_cur = RLIM_INFINITY};

	getrlimit(RLIMIT_MEMLOCK, &limit);
	return limit.rlim_cur;
}

static bool is_shortage(int rc)
{
	return rc == ENOMEM || rc == EAGAIN || rc == ENOSPC;
}

/* ---- reads and atomics under way --------------------------------------------------------- */

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

/* An end that asks for more than the other end serves breaks its queue pair. */
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

/* ---- queues ------------------------------------------------------------------------------ */

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
	p->receives = MIN(most, VERBS_WINDOW + VERBS_SPARE);
	return 0;
}

int verbs_queue_error(
	const struct verbs_pair *p, struct weft_error *why, int rc, const char *what)
{
	const struct ibv_device_attr *l = &p->device->limits;

	if (is_shortage(rc) && lockable_bytes() != RLIM_INFINITY)
		return weft_error(why, -rc,
			"no %s of %u and %u: %s; this process may lock %llu KiB of "
			"memory: raise it with `ulimit -l unlimited`, or "
			"LimitMEMLOCK=infinity in its systemd unit",
			what, p->depth, p->receives, strerrordesc_np(rc),
			(unsigned long long)lockable_bytes() >> 10);
	if (is_shortage(rc))
		return weft_error(why, -rc,
			"no %s of %u and %u: %s; device %s has %d queue pairs (max_qp) "
			"and %d completion queues (max_cq) for all programs: see who has "
			"them with `rdma resource show`, and rdma.max of this process's "
			"cgroup",
			what, p->depth, p->receives, strerrordesc_np(rc),
			name_of(p->device), l->max_qp, l->max_cq);
	return weft_error(why, -rc, "no %s of %u and %u: %s", what, p->depth, p->receives,
		strerrordesc_np(rc));
}

/* ---- memory ------------------------------------------------------------------------------ */

static int register_error(
	const struct verbs_device *d, struct weft_error *why, int rc, size_t bytes)
{
	if (is_shortage(rc) && lockable_bytes() != RLIM_INFINITY)
		return weft_error(why, -rc,
			"%zu MiB cannot be registered: this process may lock %llu KiB of "
			"memory; raise it with `ulimit -l unlimited`, or "
			"LimitMEMLOCK=infinity in its systemd unit",
			bytes >> 20, (unsigned long long)lockable_bytes() >> 10);
	if (is_shortage(rc))
		return weft_error(why, -rc,
			"%zu MiB cannot be registered: %s; device %s has %d "
			"registrations "
			"(max_mr) for all programs: see who has them with `rdma resource "
			"show mr`, or take a smaller cache (`-o cache=`)",
			bytes >> 20, strerrordesc_np(rc), name_of(d), d->limits.max_mr);
	return weft_error(why, -rc, "%zu MiB cannot be registered: %s", bytes >> 20,
		strerrordesc_np(rc));
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

int verbs_window_error(const struct verbs_device *d, struct weft_error *why, int rc)
{
	return weft_error(why, -rc,
		"no memory window: %s; device %s has %d (max_mw) for all programs, and a "
		"link needs up to %u",
		strerrordesc_np(rc), name_of(d), d->limits.max_mw, NET_REGIONS_MAX);
}
