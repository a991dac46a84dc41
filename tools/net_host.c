/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft net check without RDMA: this machine's memory, names, the way to another host, and the
 * listener there. A weftd is greeted as a node that no cluster has. It refuses that, and the kind
 * of refusal identifies it.
 */
#include <arpa/inet.h>
#include <errno.h>
#include <ifaddrs.h>
#include <net/if.h>
#include <netdb.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/resource.h>
#include <unistd.h>

#include "engine/net/net.h"
#include "engine/rt/rt.h"
#include "tools/net.h"

#define CONNECT_MS   5000 /* longer than finding out that no host has the address */
#define GREETING_NS  12000000000ull
#define HANDSHAKE_NS 10000000000ull
#define CAP_IPC_LOCK 14                  /* linux/capability.h */
#define NOBODY       (NET_NODES_MAX - 1) /* greater than all ids of cluster files */

/* ---- memory -------------------------------------------------------------------------- */

/* Returns the number behind `key` in a file of /proc; UINT64_MAX: it is not there. */
static uint64_t proc_number(const char *path, const char *key, int base)
{
	FILE *f = fopen(path, "re");
	uint64_t value = UINT64_MAX;
	char line[256];

	while (f && fgets(line, sizeof(line), f))
		if (strncmp(line, key, strlen(key)) == 0)
			value = strtoull(line + strlen(key), NULL, base);
	if (f)
		fclose(f);
	return value;
}

bool net_may_lock_all(void)
{
	uint64_t effective = proc_number("/proc/self/status", "CapEff:", 16);

	return effective != UINT64_MAX && (effective >> CAP_IPC_LOCK & 1);
}

static void check_locked(struct net_check *k)
{
	const char *remedy = "ulimit -l unlimited, or LimitMEMLOCK=infinity in weftd's "
			     "systemd unit: with RDMA the whole cache is locked";
	bool tcp = k->transport && strcmp(k->transport, "tcp") == 0;
	struct rlimit limit = {0};

	if (tcp) /* no memory is locked */
		return;
	getrlimit(RLIMIT_MEMLOCK, &limit);
	if (limit.rlim_cur == RLIM_INFINITY || net_may_lock_all())
		net_say(k, NET_IS_OK, "memory.locked", NULL,
			"this process may lock as much memory as there is");
	else if (limit.rlim_cur > k->cache_bytes + k->cache_bytes / 16)
		net_say(k, NET_IS_OK, "memory.locked", NULL,
			"%llu MiB may be locked, for a cache of %llu MiB",
			(unsigned long long)limit.rlim_cur >> 20,
			(unsigned long long)k->cache_bytes >> 20);
	else
		net_say(k, net_rdma_problem(k), "memory.locked", remedy,
			"%llu KiB may be locked only, less than the cache of %llu MiB",
			(unsigned long long)limit.rlim_cur >> 10,
			(unsigned long long)k->cache_bytes >> 20);
}

static void check_room(struct net_check *k)
{
	uint64_t kib = proc_number("/proc/meminfo", "MemAvailable:", 10);
	uint64_t cache = k->cache_bytes >> 20;

	if (kib == UINT64_MAX)
		return;
	if (kib >> 10 < cache)
		net_say(k, NET_IS_WARN, "memory.cache",
			"a smaller cache, -o cache=SIZE, unless a weftd that runs has "
			"it already",
			"%llu MiB are free, less than the cache of %llu MiB",
			(unsigned long long)kib >> 10, (unsigned long long)cache);
	else
		net_say(k, NET_IS_OK, "memory.cache", NULL,
			"%llu MiB are free, for a cache of %llu MiB",
			(unsigned long long)kib >> 10, (unsigned long long)cache);
}

/* The cache requests huge pages by madvise, so `always` and `madvise` are equally good. */
static void check_huge(struct net_check *k)
{
	static const char path[] = "/sys/kernel/mm/transparent_hugepage/enabled";
	FILE *f = fopen(path, "re");
	char line[128] = "";

	if (f && fgets(line, sizeof(line), f) && !strstr(line, "[never]"))
		net_say(k, NET_IS_OK, "memory.huge", NULL,
			"the cache gets huge pages where there are some");
	else
		net_say(k, NET_IS_WARN, "memory.huge",
			"echo madvise > /sys/kernel/mm/transparent_hugepage/enabled",
			"transparent huge pages are off: more time goes into looking up "
			"addresses, here and in an RDMA card");
	if (f)
		fclose(f);
}

void net_check_memory(struct net_check *k)
{
	check_room(k);
	check_huge(k);
	check_locked(k);
}

/* ---- names --------------------------------------------------------------------------- */

static void address_text(const struct net_target *t, char *out, size_t cap)
{
	char host[64] = "?";

	getnameinfo((const struct sockaddr *)&t->address, t->address_bytes, host,
		sizeof(host), NULL, 0, NI_NUMERICHOST);
	snprintf(out, cap, "%.*s", (int)cap - 1, host);
}

unsigned net_check_name(struct net_check *k, struct net_target t[NET_TARGETS_MAX])
{
	const struct addrinfo hints = {
		.ai_family = AF_UNSPEC,
		.ai_socktype = SOCK_STREAM,
		.ai_flags = AI_NUMERICSERV,
	};
	struct addrinfo *found;
	char port[8], order[NET_TARGETS_MAX * sizeof(t->text)];
	unsigned count = 0;
	size_t used = 0;
	int rc;

	snprintf(port, sizeof(port), "%u", t->port);
	rc = getaddrinfo(t->host, port, &hints, &found);
	if (rc) {
		net_say(k, NET_IS_FAIL, "name",
			"mend the name service or /etc/hosts, or write the IP address",
			"\"%s\" does not resolve: %s", t->host,
			rc == EAI_SYSTEM ? strerror(errno) : gai_strerror(rc));
		return 0;
	}
	for (struct addrinfo *a = found; a && count < NET_TARGETS_MAX; a = a->ai_next) {
		t[count] = t[0];
		memset(&t[count].address, 0, sizeof(t->address));
		memcpy(&t[count].address, a->ai_addr, a->ai_addrlen);
		t[count].address_bytes = a->ai_addrlen;
		address_text(&t[count], t[count].text, sizeof(t->text));
		if (count && !strcmp(t[count].text, t[count - 1].text))
			continue;
		used += (size_t)snprintf(order + used, sizeof(order) - used, "%s%s",
			count ? ", " : "", t[count].text);
		count++;
	}
	freeaddrinfo(found);
	net_say(k, NET_IS_OK, "name", NULL, "%s%s", order,
		count > 1 ? ": tried in this order" : "");
	return count;
}

/* ---- the way ------------------------------------------------------------------------- */

static bool same_address(const struct sockaddr *a, const struct sockaddr *b)
{
	const struct sockaddr_in *a4 = (const void *)a, *b4 = (const void *)b;
	const struct sockaddr_in6 *a6 = (const void *)a, *b6 = (const void *)b;

	if (!a || a->sa_family != b->sa_family)
		return false;
	if (a->sa_family == AF_INET)
		return a4->sin_addr.s_addr == b4->sin_addr.s_addr;
	return a->sa_family == AF_INET6 &&
	       !memcmp(&a6->sin6_addr, &b6->sin6_addr, sizeof(a6->sin6_addr));
}

/* Finds the interface with the address, and its MTU. */
static void interface_of(const struct sockaddr *at, struct ifreq *out)
{
	struct ifaddrs *all = NULL;
	int fd;

	*out = (struct ifreq){0};
	if (getifaddrs(&all))
		return;
	for (struct ifaddrs *a = all; a; a = a->ifa_next)
		if (same_address(a->ifa_addr, at))
			snprintf(out->ifr_name, sizeof(out->ifr_name), "%s", a->ifa_name);
	freeifaddrs(all);
	fd = socket(AF_INET, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	if (fd >= 0) {
		ioctl(fd, SIOCGIFMTU, out);
		close(fd);
	}
}

/* Finds the source address of packets to the target. Sends none. */
static bool check_route(struct net_check *k, const struct net_target *t)
{
	struct net_target from = {.address_bytes = sizeof(from.address)};
	int fd = socket(t->address.ss_family, SOCK_DGRAM | SOCK_CLOEXEC, 0);
	struct ifreq interface;
	int error = 0;

	if (fd < 0 || connect(fd, (const void *)&t->address, t->address_bytes) ||
		getsockname(fd, (void *)&from.address, &from.address_bytes))
		error = errno;
	if (fd >= 0)
		close(fd);
	if (error) {
		net_say(k, NET_IS_FAIL, "tcp.route",
			"see `ip route get` with the address; give this machine an "
			"address in that network",
			"no way to %s: %s", t->text, strerror(error));
		return false;
	}
	address_text(&from, from.text, sizeof(from.text));
	interface_of((const struct sockaddr *)&from.address, &interface);
	net_say(k, NET_IS_OK, "tcp.route", NULL, "%s goes from %s on %s, MTU %d", t->text,
		from.text, interface.ifr_name[0] ? interface.ifr_name : "?",
		interface.ifr_mtu);
	return true;
}

int net_try_connect(const struct sockaddr_storage *at, int timeout_ms)
{
	int fd = socket(at->ss_family, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	struct pollfd p = {.fd = fd, .events = POLLOUT};
	socklen_t length = sizeof(int);
	int error = 0, n;

	if (fd < 0)
		return errno;
	if (connect(fd, (const void *)at, sizeof(*at)))
		error = errno;
	if (error == EINPROGRESS) {
		do
			n = poll(&p, 1, timeout_ms);
		while (n < 0 && errno == EINTR);
		error = ETIMEDOUT;
		if (n > 0 && getsockopt(fd, SOL_SOCKET, SO_ERROR, &error, &length))
			error = errno;
	}
	close(fd);
	return error;
}

static void check_connect(struct net_check *k, struct net_target *t)
{
	int error = net_try_connect(&t->address, CONNECT_MS);

	t->answers = !error;
	if (!error)
		net_say(k, NET_IS_OK, "tcp.connect", NULL, "port %u answers", t->port);
	else if (error == ECONNREFUSED)
		net_say(k, NET_IS_WARN, "tcp.connect",
			"mount the volume there; if it is mounted, look at the port "
			"and for a firewall that rejects",
			"the host is there, but no program listens at port %u", t->port);
	else
		net_say(k, NET_IS_FAIL, "tcp.connect",
			error == ETIMEDOUT
				? "is the machine up, the address right? Or a firewall "
				  "drops what comes for this port"
				: "see `ip route get` with the address, and whether the "
				  "machine is up",
			"port %u: %s", t->port, strerror(error));
}

/* ---- the listener ----------------------------------------------------------------------- */

struct greeting {
	struct net *net;
	_Atomic uint32_t heard;
	int code;
};

static void on_message(void *owner, struct net_peer *peer, const struct net_message *m)
{
}

static void on_event(void *owner, struct net_peer *peer, const struct net_event *e)
{
	struct greeting *g = owner;

	if (atomic_load(&g->heard))
		return;
	g->code = e->kind == NET_LINK_UP ? 0 : e->code;
	atomic_store(&g->heard, 1);
	net_wake(g->net, &g->heard, 1);
}

int net_greet(const struct cluster *c, unsigned node, const char *address,
	struct weft_error *err)
{
	struct greeting g = {0};
	struct net_options o = {
		.transport = c ? cluster_transport(c) : "tcp",
		.self = {.incarnation = 1, .node = NOBODY, .role = NET_ROLE_CLIENT},
		.handlers = {&g, on_message, on_event},
		.tls = c && cluster_tls(c),
		.handshake_ns = HANDSHAKE_NS,
	};
	struct net_peer_options p = {
		.node = (uint16_t)(node ? node : 1), .address = address};
	struct net_peer *peer;
	uint64_t until = rt_now_ns() + GREETING_NS;
	int rc;

	rt_random_bytes(o.self.node_uuid, sizeof(o.self.node_uuid));
	if (c)
		memcpy(o.self.volume_uuid, cluster_volume_uuid(c), NET_UUID_BYTES);
	if (c && cluster_key(c))
		memcpy(o.key, cluster_key(c), NET_KEY_BYTES);
	else
		rt_random_bytes(o.key, sizeof(o.key));
	rc = net_open(&g.net, &o, err);
	explicit_bzero(o.key, sizeof(o.key));
	if (rc)
		return rc;
	rc = net_peer_add(&peer, g.net, &p, err);
	if (!rc)
		rc = net_start(g.net, err);
	while (!rc && !atomic_load(&g.heard))
		rc = net_wait(g.net, NULL, &g.heard, 0, until);
	net_close(g.net);
	return rc ? rc : g.code;
}

/* For a cluster file's node. */
static void say_node(struct net_check *k, const struct net_target *t, int code)
{
	switch (code) {
	case -ENOENT: /* it knows the volume, and no such node */
		net_say(k, NET_IS_OK, "weft", NULL,
			"a weftd of this volume answers, as node %u", t->node);
		break;
	case -EXDEV:
		net_say(k, NET_IS_FAIL, "weft",
			"look at its address, and at the cluster file there",
			"a weftd of another volume answers");
		break;
	case -EADDRNOTAVAIL:
		net_say(k, NET_IS_FAIL, "weft",
			"look at the addresses in the cluster file: has another node "
			"this one?",
			"another node than %u answers", t->node);
		break;
	case -EPROTOTYPE:
		net_say(k, NET_IS_FAIL, "weft",
			"the cluster file must say the same transport and tls there, and "
			"be mounted anew when it has changed",
			"a weftd answers that uses another transport, or TLS on one end "
			"only");
		break;
	case -EKEYREJECTED:
		net_say(k, NET_IS_FAIL, "weft", "copy the cluster's key to both nodes",
			"its key is not the one that is here");
		break;
	default:
		net_say(k, NET_IS_FAIL, "weft",
			"what listens there? See `ss -tlnp` on that machine",
			"the program that answers is not weftd (%s)", strerror(-code));
	}
}

static void check_weft(struct net_check *k, const struct net_target *t)
{
	char address[NET_ADDRESS_BYTES];
	struct weft_error err = {0};
	int code;

	if (k->cluster && cluster_tls(k->cluster) && !cluster_key(k->cluster))
		return; /* reported already */
	snprintf(address, sizeof(address), strchr(t->text, ':') ? "[%s]:%u" : "%s:%u",
		t->text, t->port);
	code = net_greet(k->cluster, t->node, address, &err);
	if (err.code) { /* reported below, in the checks of RDMA */
		net_say(k, NET_IS_NOTE, "weft", NULL, "not asked who answers: %s",
			err.text);
	} else if (code == -EPROTONOSUPPORT) {
		net_say(k, NET_IS_FAIL, "weft", "run the same weft on all nodes",
			"a weftd of another version answers");
	} else if (k->cluster) {
		say_node(k, t, code);
	} else if (code == -ENOENT || code == -EXDEV || code == -EADDRNOTAVAIL ||
		   code == -EPROTOTYPE) {
		net_say(k, NET_IS_OK, "weft", NULL,
			"weft answers; name the cluster file to learn whether it is "
			"the right one");
	} else {
		net_say(k, NET_IS_WARN, "weft",
			"what listens there? See `ss -tlnp` on that machine",
			"the program that answers is not weftd, or wants TLS (%s)",
			strerror(-code));
	}
}

void net_check_tcp(struct net_check *k, struct net_target *t)
{
	if (!check_route(k, t))
		return;
	check_connect(k, t);
	if (t->answers)
		check_weft(k, t);
}

/* A port in use is most likely used by the weftd of this node. */
void net_check_own(struct net_check *k, struct net_target *t)
{
	int fd = socket(t->address.ss_family, SOCK_STREAM | SOCK_CLOEXEC, 0);
	int one = 1, error = 0;

	if (fd >= 0)
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (fd < 0 || bind(fd, (const void *)&t->address, t->address_bytes) ||
		listen(fd, 1))
		error = errno;
	if (fd >= 0)
		close(fd);
	if (!error)
		net_say(k, NET_IS_OK, "tcp.listen", NULL, "port %u is free", t->port);
	else if (error == EADDRINUSE)
		net_say(k, NET_IS_NOTE, "tcp.listen", NULL,
			"port %u is taken: is the volume mounted?", t->port);
	else
		net_say(k, NET_IS_FAIL, "tcp.listen",
			"the node's address in the cluster file must be this machine's: "
			"see `ip address`",
			"cannot listen at %s: %s", t->text, strerror(error));
	if (error != EADDRINUSE)
		return;
	check_connect(k, t);
	if (t->answers)
		check_weft(k, t);
}
