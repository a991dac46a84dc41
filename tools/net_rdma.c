/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft net check of RDMA: devices and their ports, and for an address the result of librdmacm, as
 * the verbs transport uses it. Abilities of a device are tried, not only read: a queue pair of the
 * transport's depth, and registered memory.
 *
 * The other end's kernel shows whether that end answers by RDMA. This tries a connection to a port
 * without a listener. The refusal proves the way in both directions. weftd does not notice it.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <infiniband/verbs.h>
#include <poll.h>
#include <rdma/rdma_cma.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/net/verbs_limits.h"
#include "engine/net/wire.h"
#include "engine/rt/rt.h"
#include "tools/net.h"

#define RESOLVE_MS  2000
#define CONNECT_MS  15000 /* the kernel tries for some time */
#define TRIED_BYTES (1u << 20)
#define JUMBO       4200 /* MTU of an interface, for RDMA packets of 4096 bytes */

#define SEE_LINKS                                                                        \
	"`rdma link show` and `ibv_devinfo` tell which device belongs to which "         \
	"interface; `ip route get` which interface leads there"

/* ---- abilities of a port ------------------------------------------------------------- */

static const char *link_name(const struct ibv_context *context, uint8_t layer)
{
	if (context->device->transport_type == IBV_TRANSPORT_IWARP)
		return "iWARP";
	return layer == IBV_LINK_LAYER_ETHERNET     ? "RoCE"
	       : layer == IBV_LINK_LAYER_INFINIBAND ? "InfiniBand"
						    : "unknown link layer";
}

static unsigned mtu_bytes(enum ibv_mtu mtu)
{
	return mtu >= IBV_MTU_256 && mtu <= IBV_MTU_4096 ? 128u << mtu : 0;
}

static void say_port(struct net_check *k, struct ibv_context *context, unsigned port)
{
	const char *device = ibv_get_device_name(context->device);
	struct ibv_port_attr p = {0};
	int rc = ibv_query_port(context, (uint8_t)port, &p);
	unsigned active = mtu_bytes(p.active_mtu);

	if (rc) {
		net_say(k, net_rdma_problem(k), "rdma.port",
			"see the kernel's log (dmesg)", "cannot query %s port %u: %s",
			device, port, strerror(rc));
		return;
	}
	if (context->device->transport_type == IBV_TRANSPORT_IWARP)
		net_say(k, net_rdma_problem(k), "rdma.port",
			"a card of InfiniBand or RoCE, or transport = tcp",
			"%s is iWARP, which cannot carry weft's messages", device);
	else if (p.state == IBV_PORT_ACTIVE)
		net_say(k, NET_IS_OK, "rdma.port", NULL, "%s port %u is active, %s",
			device, port, link_name(context, p.link_layer));
	else
		net_say(k, net_rdma_problem(k), "rdma.port",
			p.link_layer == IBV_LINK_LAYER_INFINIBAND
				? "look at cable and switch; on InfiniBand a subnet "
				  "manager "
				  "(opensm) must run somewhere"
				: "look at cable and switch; `ip link set DEV up` its "
				  "interface",
			"%s port %u is %s, not active, %s", device, port,
			ibv_port_state_str(p.state), link_name(context, p.link_layer));
	if (active >= PAGE_SIZE)
		net_say(k, NET_IS_OK, "rdma.mtu", NULL, "a page travels in one packet");
	else if (active)
		net_say(k, NET_IS_WARN, "rdma.mtu",
			p.link_layer == IBV_LINK_LAYER_ETHERNET
				? "`ip link set DEV mtu 4200`, or more, on all nodes and "
				  "switches"
				: "4096 in the subnet manager and its partitions",
			"a page travels in %u packets of %u bytes", PAGE_SIZE / active,
			active);
}

/* Local atomics are enough in this version. */
static void say_atomics(struct net_check *k, const struct ibv_device_attr *a)
{
	if (a->atomic_cap == IBV_ATOMIC_NONE)
		net_say(k, NET_IS_NOTE, "rdma.atomics", NULL,
			"none: nothing of this version needs them, but other programs "
			"may");
	else
		net_say(k, NET_IS_OK, "rdma.atomics", NULL,
			"compare-and-swap, fetch-and-add%s; %d under way at once",
			a->atomic_cap == IBV_ATOMIC_GLOB ? ", also among devices" : "",
			a->max_qp_init_rd_atom);
}

/* As in the transport: a third of the completions is for work requests. */
static unsigned depth_of(const struct ibv_device_attr *a)
{
	unsigned most = (unsigned)MAX(a->max_qp_wr, 0);

	return MIN(most, (unsigned)MAX(a->max_cqe, 0) / 3);
}

static void say_limits(struct net_check *k, const struct ibv_device_attr *a)
{
	unsigned depth = depth_of(a);
	bool windows = a->max_mw > 0 &&
		       (a->device_cap_flags & (IBV_DEVICE_MEM_WINDOW_TYPE_2A |
						      IBV_DEVICE_MEM_WINDOW_TYPE_2B));

	if (depth < VERBS_DEPTH_MIN)
		net_say(k, net_rdma_problem(k), "rdma.depth", "another card",
			"queues of %u only; a link needs %u", depth, VERBS_DEPTH_MIN);
	else
		net_say(k, depth < VERBS_DEPTH ? NET_IS_NOTE : NET_IS_OK, "rdma.depth",
			NULL, "%d work requests a queue, %d completions; a link takes %u",
			a->max_qp_wr, a->max_cqe, MIN(depth, VERBS_DEPTH));
	if (a->max_qp_rd_atom < 1 || a->max_qp_init_rd_atom < 1)
		net_say(k, net_rdma_problem(k), "rdma.reads", "another card",
			"serves %d reads at a time and asks for %d; a link needs one of "
			"each",
			a->max_qp_rd_atom, a->max_qp_init_rd_atom);
	else
		net_say(k, NET_IS_OK, "rdma.reads", NULL,
			"%d reads and atomics under way at once; queue pairs: %d, one "
			"for each "
			"other node",
			a->max_qp_init_rd_atom, a->max_qp);
	if (a->max_mr_size && a->max_mr_size < k->cache_bytes)
		net_say(k, net_rdma_problem(k), "rdma.region",
			"a smaller cache, -o cache=SIZE",
			"memory is registered in pieces of up to %llu MiB, the cache has "
			"%llu",
			(unsigned long long)a->max_mr_size >> 20,
			(unsigned long long)k->cache_bytes >> 20);
	net_say(k, windows ? NET_IS_OK : NET_IS_NOTE, "rdma.windows", NULL,
		windows ? "memory windows: each peer gets a key of its own in no time"
			: "no memory windows: the cache is registered once for each "
			  "peer");
}

static bool seen_before(struct net_check *k, const char *device, unsigned port)
{
	struct net_seen *s;

	for (unsigned i = 0; i < k->seen_count; i++)
		if (k->seen[i].port == port && !strcmp(k->seen[i].device, device))
			return true;
	if (k->seen_count == NET_SEEN_MAX)
		return false;
	s = &k->seen[k->seen_count++];
	snprintf(s->device, sizeof(s->device), "%s", device);
	s->port = port;
	return false;
}

static void say_all(struct net_check *k, struct ibv_context *context, unsigned port)
{
	struct ibv_device_attr a;
	int rc;

	if (seen_before(k, ibv_get_device_name(context->device), port))
		return;
	say_port(k, context, port);
	rc = ibv_query_device(context, &a);
	if (rc) {
		net_say(k, net_rdma_problem(k), "rdma.depth",
			"see the kernel's log (dmesg)", "%s does not tell its limits: %s",
			ibv_get_device_name(context->device), strerror(rc));
		return;
	}
	say_atomics(k, &a);
	say_limits(k, &a);
}

/* ---- devices ------------------------------------------------------------------------- */

static void check_device(struct net_check *k, struct ibv_device *device)
{
	struct ibv_context *context = ibv_open_device(device);
	struct ibv_device_attr a = {0};

	if (!context) {
		net_say(k, net_rdma_problem(k), "rdma.device",
			"is the package ibverbs-providers installed, and may this user "
			"open /dev/infiniband/uverbs*?",
			"%s cannot be opened: %s", ibv_get_device_name(device),
			strerror(errno));
		return;
	}
	ibv_query_device(context, &a);
	for (unsigned port = 1; port <= a.phys_port_cnt; port++)
		say_all(k, context, port);
	ibv_close_device(context);
}

static void check_manager(struct net_check *k)
{
	if (access("/dev/infiniband/rdma_cm", R_OK | W_OK) == 0)
		net_say(k, NET_IS_OK, "rdma.manager", NULL,
			"librdmacm's module is there");
	else
		net_say(k, net_rdma_problem(k), "rdma.manager", "modprobe rdma_ucm",
			"/dev/infiniband/rdma_cm cannot be used: %s", strerror(errno));
}

void net_check_devices(struct net_check *k, bool all)
{
	struct ibv_device **devices;
	char names[200] = "";
	int count = 0;

	devices = ibv_get_device_list(&count);
	k->devices = devices && count > 0 ? (unsigned)count : 0;
	for (int i = 0; devices && i < count; i++) {
		size_t used = strlen(names);

		snprintf(names + used, sizeof(names) - used, "%s%s", i ? ", " : "",
			ibv_get_device_name(devices[i]));
	}
	if (!k->devices) {
		net_say(k, net_rdma_problem(k), "rdma.device",
			k->transport
				? "a card; the packages rdma-core and "
				  "ibverbs-providers, and the card's module (`lsmod`, "
				  "`rdma link show`); or transport = tcp"
				: NULL,
			"this machine has no RDMA device that libibverbs knows%s",
			k->transport ? "" : ": it can be a node with transport = tcp");
	} else {
		net_say(k, NET_IS_OK, "rdma.device", NULL, "%s", names);
		check_manager(k);
	}
	for (int i = 0; devices && i < count && all; i++)
		check_device(k, devices[i]);
	if (devices)
		ibv_free_device_list(devices);
}

/* ---- an address ---------------------------------------------------------------------- */

struct probe {
	struct rdma_event_channel *channel;
	struct rdma_cm_id *id;
	struct ibv_pd *pd;
	struct ibv_cq *cq;
};

static void probe_end(struct probe *p)
{
	if (p->id && p->id->qp)
		rdma_destroy_qp(p->id);
	if (p->id)
		rdma_destroy_id(p->id);
	if (p->cq)
		ibv_destroy_cq(p->cq);
	if (p->pd)
		ibv_dealloc_pd(p->pd);
	if (p->channel)
		rdma_destroy_event_channel(p->channel);
}

static bool probe_begin(struct net_check *k, struct probe *p)
{
	p->channel = rdma_create_event_channel();
	if (p->channel && !rdma_create_id(p->channel, &p->id, NULL, RDMA_PS_TCP))
		return true;
	net_say(k, net_rdma_problem(k), "rdma.address", "modprobe rdma_ucm",
		"no connection manager: %s", strerror(errno));
	return false;
}

/* Returns the next event: its type and status; -errno. */
static int next_event(struct probe *p, int timeout_ms, int *status)
{
	struct pollfd poll_for = {.fd = p->channel->fd, .events = POLLIN};
	struct rdma_cm_event *event;
	int n, type;

	do
		n = poll(&poll_for, 1, timeout_ms);
	while (n < 0 && errno == EINTR);
	if (n <= 0)
		return n ? -errno : -ETIMEDOUT;
	if (rdma_get_cm_event(p->channel, &event))
		return -errno;
	type = (int)event->event;
	*status = event->status;
	rdma_ack_cm_event(event);
	return type;
}

/* Describes the error for an unexpected event. */
static const char *event_text(int event, int status, char *out, size_t cap)
{
	if (event < 0)
		snprintf(out, cap, "%s", strerror(-event));
	else if (status < 0)
		snprintf(out, cap, "%s", strerror(-status));
	else
		snprintf(out, cap, "%s", rdma_event_str((enum rdma_cm_event_type)event));
	return out;
}

static const char *gid_kind(uint32_t type)
{
	return type == IBV_GID_TYPE_ROCE_V2   ? "RoCE v2"
	       : type == IBV_GID_TYPE_ROCE_V1 ? "RoCE v1"
					      : "";
}

/* Finds the place in the port's table of the GID that librdmacm has chosen. */
static void say_gid(struct net_check *k, struct rdma_cm_id *id)
{
	const union ibv_gid *gid = &id->route.addr.addr.ibaddr.sgid;
	struct ibv_port_attr port = {0};
	struct ibv_gid_entry e, found = {0};
	char text[48];
	int at = -1;

	ibv_query_port(id->verbs, id->port_num, &port);
	for (int i = 0; i < port.gid_tbl_len; i++)
		if (!ibv_query_gid_ex(id->verbs, id->port_num, (uint32_t)i, &e, 0) &&
			!memcmp(&e.gid, gid, sizeof(*gid)) &&
			(at < 0 || e.gid_type == IBV_GID_TYPE_ROCE_V2)) {
			at = i;
			found = e;
		}
	for (unsigned i = 0; i < 16; i += 2)
		snprintf(text + i / 2 * 5, sizeof(text) - i / 2 * 5, "%02x%02x%s",
			gid->raw[i], gid->raw[i + 1], i < 14 ? ":" : "");
	if (at < 0)
		net_say(k, NET_IS_WARN, "rdma.gid",
			"see `ibv_devinfo -v`; an address that was just added may take "
			"a moment",
			"%s is in no place of the port's table", text);
	else if (found.gid_type == IBV_GID_TYPE_ROCE_V1)
		net_say(k, NET_IS_WARN, "rdma.gid",
			"cma_roce_mode -d DEVICE -p PORT -m 2 (package rdma-core)",
			"%s, number %d, is of RoCE v1 only, which routers do not pass on",
			text, at);
	else
		net_say(k, NET_IS_OK, "rdma.gid", NULL, "%s, number %d%s%s", text, at,
			*gid_kind(found.gid_type) ? ", " : "", gid_kind(found.gid_type));
}

static void try_memory(struct net_check *k, struct probe *p)
{
	void *memory = rt_alloc_pages(TRIED_BYTES);
	struct ibv_mr *mr = NULL;

	if (memory)
		mr = ibv_reg_mr(p->pd, memory, TRIED_BYTES, IBV_ACCESS_LOCAL_WRITE);
	if (!mr)
		net_say(k, net_rdma_problem(k), "rdma.register", "see memory.locked",
			"no memory can be registered: %s", strerror(errno));
	else
		ibv_dereg_mr(mr);
	if (memory)
		rt_free_pages(memory, TRIED_BYTES);
}

/* Makes a queue pair as a link does. */
static bool try_queues(struct net_check *k, struct probe *p)
{
	struct ibv_qp_init_attr attr = {.qp_type = IBV_QPT_RC};
	struct ibv_device_attr a = {0};
	unsigned depth, receives;

	ibv_query_device(p->id->verbs, &a);
	depth = MIN(depth_of(&a), VERBS_DEPTH);
	receives = MIN(depth_of(&a), WIRE_WINDOW + VERBS_SPARE);
	attr.cap = (struct ibv_qp_cap){.max_send_wr = depth,
		.max_recv_wr = receives,
		.max_send_sge = 1,
		.max_recv_sge = 1,
		.max_inline_data = NET_MESSAGE_BYTES};
	p->pd = ibv_alloc_pd(p->id->verbs);
	if (p->pd)
		p->cq = ibv_create_cq(
			p->id->verbs, (int)(depth + receives), NULL, NULL, 0);
	attr.send_cq = attr.recv_cq = p->cq;
	if (p->cq && rdma_create_qp(p->id, p->pd, &attr) && errno == EINVAL) {
		attr.cap.max_inline_data = 0;
		rdma_create_qp(p->id, p->pd, &attr);
	}
	if (!p->id->qp) {
		net_say(k, net_rdma_problem(k), "rdma.queues",
			"other programs may have used up what the card has: "
			"`rdma resource show`; or too little memory may be locked",
			"no queue pair of %u and %u: %s", depth, receives,
			strerror(errno));
		return false;
	}
	if (attr.cap.max_inline_data >= NET_MESSAGE_BYTES)
		net_say(k, NET_IS_OK, "rdma.queues", NULL,
			"a queue pair of %u and %u can be had, %u bytes inline", depth,
			receives, attr.cap.max_inline_data);
	else
		net_say(k, NET_IS_NOTE, "rdma.queues", NULL,
			"a queue pair of %u and %u can be had; messages are not inline",
			depth, receives);
	try_memory(k, p);
	return true;
}

/* Reports the device for that address, which is known. */
static bool say_found(struct net_check *k, struct probe *p, const char *what)
{
	net_say(k, NET_IS_OK, "rdma.address", NULL, "%s port %u %s",
		ibv_get_device_name(p->id->verbs->device), p->id->port_num, what);
	say_gid(k, p->id);
	say_all(k, p->id->verbs, p->id->port_num);
	return try_queues(k, p);
}

/* There is no listener: a refusal is the expected answer. */
static void try_connect(struct net_check *k, struct probe *p, const struct net_target *t)
{
	struct rdma_conn_param param = {.retry_count = 3, .rnr_retry_count = 3};
	char why[96];
	int status = 0, event;

	event = rdma_resolve_route(p->id, RESOLVE_MS)
			? -errno
			: next_event(p, 2 * RESOLVE_MS, &status);
	if (event != RDMA_CM_EVENT_ROUTE_RESOLVED) {
		net_say(k, net_rdma_problem(k), "rdma.route",
			"on InfiniBand: does a subnet manager run, are both ports in "
			"its network?",
			"no RDMA route to %s: %s", t->text,
			event_text(event, status, why, sizeof(why)));
		return;
	}
	event = rdma_connect(p->id, &param) ? -errno : next_event(p, CONNECT_MS, &status);
	if (event == RDMA_CM_EVENT_REJECTED || event == RDMA_CM_EVENT_ESTABLISHED)
		net_say(k, NET_IS_OK, "rdma.connect", NULL, "%s answers by RDMA",
			t->text);
	else
		net_say(k, net_rdma_problem(k), "rdma.connect",
			"has it an RDMA device at this address (`rdma link show` there)? "
			"A firewall must let UDP port 4791 through in both directions "
			"(RoCE v2); VLAN and MTU must be the same",
			"%s does not answer by RDMA: %s", t->text,
			event_text(event, status, why, sizeof(why)));
	if (event == RDMA_CM_EVENT_ESTABLISHED)
		rdma_disconnect(p->id);
}

static bool is_loopback(const struct sockaddr_storage *a)
{
	const struct sockaddr_in *in = (const struct sockaddr_in *)a;
	const struct sockaddr_in6 *in6 = (const struct sockaddr_in6 *)a;

	if (a->ss_family == AF_INET6)
		return IN6_IS_ADDR_LOOPBACK(&in6->sin6_addr);
	return ntohl(in->sin_addr.s_addr) >> 24 == IN_LOOPBACKNET;
}

void net_check_rdma(struct net_check *k, const struct net_target *t)
{
	struct sockaddr_storage to = t->address;
	struct probe p = {0};
	char why[96];
	int status = 0, event;

	if (is_loopback(&to)) {
		net_say(k, net_rdma_problem(k), "rdma.address",
			"name this machine by the address of its RDMA device",
			"no RDMA device has the address %s", t->text);
		return;
	}
	if (probe_begin(k, &p)) {
		event = rdma_resolve_addr(p.id, NULL, (struct sockaddr *)&to, RESOLVE_MS)
				? -errno
				: next_event(&p, 2 * RESOLVE_MS, &status);
		if (event != RDMA_CM_EVENT_ADDR_RESOLVED)
			net_say(k, net_rdma_problem(k), "rdma.address", SEE_LINKS,
				"no RDMA device of this machine leads to %s: %s", t->text,
				event_text(event, status, why, sizeof(why)));
		else if (say_found(k, &p, "leads there"))
			try_connect(k, &p, t);
	}
	probe_end(&p);
}

void net_check_rdma_own(struct net_check *k, const struct net_target *t)
{
	struct sockaddr_storage at = t->address;
	struct sockaddr_in6 *in6 = (struct sockaddr_in6 *)&at;
	struct probe p = {0};

	if (!probe_begin(k, &p)) {
		probe_end(&p);
		return;
	}
	/* Any port: the one in the file may be in use. */
	if (at.ss_family == AF_INET6)
		in6->sin6_port = 0;
	else
		((struct sockaddr_in *)&at)->sin_port = 0;
	if (rdma_bind_addr(p.id, (struct sockaddr *)&at) || !p.id->verbs)
		net_say(k, net_rdma_problem(k), "rdma.address", SEE_LINKS,
			"no RDMA device of this machine has the address %s: %s", t->text,
			strerror(p.id->verbs ? errno : ENODEV));
	else
		say_found(k, &p, "has this address");
	probe_end(&p);
}
