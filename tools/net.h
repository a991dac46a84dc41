/* SPDX-License-Identifier: Apache-2.0 */
/* weft net check: the report, and the files that fill it. No check changes anything. Internal to
 * tools/. */
#ifndef WEFT_TOOLS_NET_H
#define WEFT_TOOLS_NET_H

#include <jansson.h>
#include <sys/socket.h>

#include "engine/cluster/cluster.h"

enum net_result { NET_IS_OK, NET_IS_NOTE, NET_IS_WARN, NET_IS_FAIL };

#define NET_SEEN_MAX 16u

/* The request, and the result so far. */
struct net_check {
	/* "tcp", "verbs", or NULL: not known. Then missing RDMA alone is no problem. */
	const char *transport;
	struct cluster *cluster; /* NULL: only a host was named */
	uint64_t cache_bytes;
	bool json;
	json_t *list;
	unsigned warnings, failures;
	const char *about; /* subject of the next lines */
	/* RDMA ports that were described already */
	struct net_seen {
		char device[64];
		unsigned port;
	} seen[NET_SEEN_MAX];
	unsigned seen_count;
	unsigned devices; /* number of RDMA devices of this machine */
};

#define NET_TARGETS_MAX 4u /* of a name; the same limit as in engine/net */

/* A place that this machine must reach. */
struct net_target {
	char host[CLUSTER_VALUE_BYTES];
	uint16_t port;
	unsigned node; /* 0: not known */
	struct sockaddr_storage address;
	socklen_t address_bytes; /* 0: it has none */
	char text[80];           /* the address, printable */
	bool answers;            /* it has a listener */
};

/* ---- net.c ------------------------------------------------------------------------- */

/* Sets the subject of the next lines. */
void net_about(struct net_check *k, const char *about);
/* Prints one line. `remedy`: the remedy; NULL: none. */
void net_say(struct net_check *k, enum net_result result, const char *name,
	const char *remedy, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* Returns the severity of a problem of RDMA, by the transport. */
enum net_result net_rdma_problem(const struct net_check *k);

/* ---- net_host.c -------------------------------------------------------------------- */

/* Checks this machine's memory and its limits. */
void net_check_memory(struct net_check *k);
/* Looks up t->host. Returns the number of its addresses, the first in t itself; 0: it has none. */
unsigned net_check_name(struct net_check *k, struct net_target t[NET_TARGETS_MAX]);
/* Checks the way there, and the listener at the port. */
void net_check_tcp(struct net_check *k, struct net_target *t);
/* Checks that this node can listen at its own address. */
void net_check_own(struct net_check *k, struct net_target *t);
/* Returns true if this process may lock more memory than its limit. */
bool net_may_lock_all(void);
/* Connects by tcp. Returns 0 or the errno of the attempt. Waits. */
#define NET_START_CONNECT_MS 2000
int net_try_connect(const struct sockaddr_storage *at, int timeout_ms);
/*
 * Greets the listener at an address as a node that no cluster has, and asks for `node` of the
 * cluster (NULL: any). Waits. Returns the -errno of its answer. With a text: this machine cannot
 * ask.
 *
 * - -ENOENT: it is this node;
 * - -EADDRNOTAVAIL: it is another node;
 * - -EXDEV: it belongs to another volume;
 * - -ETIMEDOUT: it says nothing.
 */
int net_greet(const struct cluster *c, unsigned node, const char *address,
	struct weft_error *err);

/* ---- net_rdma.c -------------------------------------------------------------------- */

/* Checks devices; with `all`, also the abilities of each of their ports. */
void net_check_devices(struct net_check *k, bool all);
/* Checks the device that leads there, and that the other end answers by RDMA. */
void net_check_rdma(struct net_check *k, const struct net_target *t);
/* Checks the device of this node's own address. */
void net_check_rdma_own(struct net_check *k, const struct net_target *t);

#endif
