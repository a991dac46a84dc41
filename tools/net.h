/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft net check: what a report is made of, and who fills it. Nothing that is looked at is
 * changed. Internal to tools/.
 */
#ifndef WEFT_TOOLS_NET_H
#define WEFT_TOOLS_NET_H

#include <jansson.h>
#include <sys/socket.h>

#include "engine/cluster/cluster.h"

enum net_result { NET_IS_OK, NET_IS_NOTE, NET_IS_WARN, NET_IS_FAIL };

#define NET_SEEN_MAX 16u

/* What is wanted, and what came out so far. */
struct net_check {
	/* "tcp", "verbs", or NULL: not known; then a lack of RDMA is no problem by itself */
	const char *transport;
	struct cluster *cluster; /* NULL: a host alone was named */
	uint64_t cache_bytes;
	bool json;
	json_t *list;
	unsigned warnings, failures;
	const char *about; /* what the lines from now on are about */
	/* RDMA ports that were described already */
	struct net_seen {
		char device[64];
		unsigned port;
	} seen[NET_SEEN_MAX];
	unsigned seen_count;
	unsigned devices; /* RDMA devices of this machine */
};

#define NET_TARGETS_MAX 4u /* of a name; engine/net takes as many */

/* A place that this machine has to reach. */
struct net_target {
	char host[CLUSTER_VALUE_BYTES];
	uint16_t port;
	unsigned node; /* 0: not known */
	struct sockaddr_storage address;
	socklen_t address_bytes; /* 0: it has none */
	char text[80];           /* the address, for people */
	bool answers;            /* somebody listens there */
};

/* ---- net.c ------------------------------------------------------------------------- */

/* What the lines from now on are about. */
void net_about(struct net_check *k, const char *about);
/* One line. `remedy`: what to do about it; NULL: nothing. */
void net_say(struct net_check *k, enum net_result result, const char *name,
	const char *remedy, const char *fmt, ...) __attribute__((format(printf, 5, 6)));
/* How bad a problem of RDMA is, by what is wanted. */
enum net_result net_rdma_problem(const struct net_check *k);

/* ---- net_host.c -------------------------------------------------------------------- */

/* This machine's memory, and its limits. */
void net_check_memory(struct net_check *k);
/* Looks up t->host: as many as it stands for, the first in t itself; 0: it has no address. */
unsigned net_check_name(struct net_check *k, struct net_target t[NET_TARGETS_MAX]);
/* The way there, and who answers at the port. */
void net_check_tcp(struct net_check *k, struct net_target *t);
/* Can this node listen at its own address? */
void net_check_own(struct net_check *k, struct net_target *t);
/* May this process lock more memory than its limit says? */
bool net_may_lock_all(void);

/* ---- net_rdma.c -------------------------------------------------------------------- */

/* Devices; with `all`, what each of their ports can do. */
void net_check_devices(struct net_check *k, bool all);
/* Which device leads there, what it can do, and does the other end answer by RDMA? */
void net_check_rdma(struct net_check *k, const struct net_target *t);
/* Which device has this node's own address? */
void net_check_rdma_own(struct net_check *k, const struct net_target *t);

#endif
