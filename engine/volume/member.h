/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This node as one of several that have a volume: the network between the nodes that the
 * cluster names, and the page protocol over it, put together for volume.h.
 *
 * Order: member_open; volume_open with member_peers; ...; member_leave; volume_close;
 * member_close.
 */
#ifndef WEFT_MEMBER_H
#define WEFT_MEMBER_H

#include "engine/cluster/cluster.h"
#include "engine/coherence/cluster.h"
#include "engine/volume/volume.h"

struct member;

/* Each is less than the one before. */
enum member_patience {
	MEMBER_WAITS,
	MEMBER_ALONE, /* leaves without waiting for others to leave */
	MEMBER_CUT,   /* nothing that needs another node waits: it fails with EIO */
};

struct member_options {
	struct cluster *cluster; /* the caller's; stays open for longer. With its key */
	unsigned node;           /* this one */
	const char *transport;   /* NULL: the cluster file's */
	bool dials_only; /* nobody can connect to it: its address is not where it runs */
	/*
	 * Where a node listens, as net.h has its list; NULL: what the cluster says. For "shm",
	 * whose nodes are at paths.
	 */
	void (*address)(void *owner, unsigned node, char out[NET_ADDRESS_BYTES]);
	/*
	 * How long this node waits for others: asked a few times a second, by any task,
	 * while it opens or leaves, and from member_watch on. NULL: for ever.
	 */
	enum member_patience (*patience)(void *owner);
	/*
	 * A later start of this node is in its store: this one is over, and must end at once,
	 * without writing anything (its store is another's). May be NULL.
	 */
	void (*superseded)(void *owner, const char *text);
	/*
	 * That incarnation of the node, and those before, do not run any more: what they have
	 * locked is void. By any task. May be NULL.
	 */
	void (*dead)(void *owner, unsigned node, uint64_t incarnation);
	/* member_leave waits for those, who still use this node's store. May be NULL. */
	void (*serves_on)(void *owner, const char *who);
	/*
	 * Nobody uses the volume any more, and `who`, whose stores are needed to persist what is
	 * left, are away: they are waited for, for so long; 0: until they are there, since what is
	 * theirs does not fit in the log. May be NULL.
	 */
	void (*awaits)(void *owner, const char *who, unsigned seconds);
	void *owner;
};

int member_open(
	struct member **out, const struct member_options *o, struct weft_error *err);
/*
 * For volume_options.peers; a client's volume is on the disk of remote_log_open (clients.h).
 * The volume is open when all other storage nodes have been met, but those that have left
 * alone (member_left.c);
 * who is waited for goes to the log. Fails with a text that says what to do where the
 * nodes do not fit each other: another key, volume, id, version; clocks far apart.
 */
const struct volume_peers *member_peers(struct member *m);
/* The volume is open: from here on all waits, and patience is not asked. */
void member_serving(struct member *m);
/* It is asked again, whatever else is going on. */
void member_watch(struct member *m);
/*
 * Nobody uses the volume on this node any more, but operations still run. Waits until the
 * same is so on all other nodes, which need this one's store until then; or they are away,
 * or patience is at its end. Then close the volume. Need not be called: volume_close waits, too.
 */
void member_leave(struct member *m);
/* From here on this node waits for no other to leave. */
void member_alone(struct member *m);
/* The volume is closed. NULL is fine. */
void member_close(struct member *m);

/*
 * Bits: the nodes that were told that this one has left with nothing undurable, so that they
 * do not wait for it. After volume_close.
 */
uint64_t member_told_left(const struct member *m);

/*
 * The cluster file was read anew: takes in the nodes that are new in it. 0, with their ids (bits)
 * in *added; -errno with a text: what may not change has changed, or it cannot be now,
 * and nothing was taken in. (-EHOSTUNREACH and -ENOMEM may come late: try again.) While the
 * volume is open, one caller at a time. Waits.
 */
int member_reload(struct member *m, const struct cluster *newer, uint64_t *added,
	struct weft_error *err);
/* After that: all that uses the volume here knows them, too, so they may begin. */
void member_reloaded(struct member *m);

/*
 * Whoever looks after the cluster says that the node does not run any more, and its store is not to be had:
 * what it shared nobody waits for any more, here and on all nodes that are connected; its log is
 * waited for. Durable. 0, with the storage nodes that could not be told (bits) in *untold, who are when they have a
 * link with one that was;
 * -errno with a text, and nothing was done: -EBUSY, one of them has a link with it; -ENODATA: nobody
 * has met it. While the volume is open. Waits.
 */
int member_dead(
	struct member *m, unsigned node, uint64_t *untold, struct weft_error *err);

/* ---- for people ---------------------------------------------------------------------- */

struct member_link {
	bool up;
	bool leaving; /* it is unmounted there */
	bool left;    /* it has gone, and nobody waits for it but who needs its shard */
	bool dead;    /* it does not run any more, and its log is waited for */
	uint64_t since_ns;    /* rt_now_ns: when it was met, lost, or first looked for */
	uint64_t incarnation; /* of the last that was met; 0: none was */
	char text[800]; /* why the last attempt came to nothing; empty: it did not */
	/* While up: by which of its addresses the end was reached that listens: the other's, if
	 * this node dialed. */
	char address[NET_ADDRESS_BYTES];
	bool dialed;
	struct net_counters traffic;
};

/* What is known of another node. -ENOENT: there is none. */
int member_link(struct member *m, unsigned node, struct member_link *out);
/* NULL: the volume is not open. */
const struct coherence_cluster_counters *member_counters(struct member *m);

#endif
