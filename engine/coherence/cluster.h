/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The provider of coherence.h for a volume of several nodes: it runs the functions of
 * protocol.h over the network (docs/many-nodes.md, "The driver").
 *
 * To be put together in this order: net_open, whose handlers call the two below;
 * coherence_cluster_open; cache_open; coherence_cluster_start; net_peer_add and net_start.
 * And taken apart: cache_stop; coherence_cluster_stop; net_close; cache_close; close.
 * The cache's images are memory of the network's, and gone after net_close.
 */
#ifndef WEFT_COHERENCE_CLUSTER_H
#define WEFT_COHERENCE_CLUSTER_H

#include "engine/coherence/protocol.h"
#include "engine/log/log.h"
#include "engine/net/net.h"

struct coherence_cluster_options {
	uint8_t self;   /* node id, below PAGE_NODES_MAX */
	uint32_t shard; /* or COHERENCE_NO_SHARD */
	/* The node that is home of the shard's pages; NODE_NONE: there is no such shard. */
	unsigned (*home)(void *owner, uint16_t shard);
	void *owner;
	struct net *net;
	struct store *store;
	struct log *log;
	struct shards *shards;  /* as in struct coherence; the caller's */
	uint64_t cluster_epoch; /* to begin with; see cluster_view.c */
	/* Nodes that may have pages of the volume; 0: all that are home of a shard. */
	node_map members;
	/* Those of them that have left, and have nothing of this shard; and that are dead (both below). */
	node_map left, dead;
};

int coherence_cluster_open(
	struct coherence **out, const struct coherence_cluster_options *o);
/* Starts tasks. 0 or -errno. */
int coherence_cluster_start(struct coherence *c);
/*
 * Nothing that needs other nodes waits any longer: it ends with -EIO, now and later. The
 * links are cut. For who must close while nodes are away; and a node whose log has failed does
 * it by itself, for good: it ends the network, too. Never waits.
 */
void coherence_cluster_give_up(struct coherence *c);
/*
 * The node is away, and has left nothing: no page, no image, nothing in its log. What it
 * may have held is nobody's, until it is connected again. Not while there is a link. Never
 * waits.
 */
void coherence_cluster_vacant(struct coherence *c, unsigned node);
/* Ends them; nobody asks for a page any more here. Waits. */
void coherence_cluster_stop(struct coherence *c);

/*
 * The node, which is connected, says that it has nothing of this shard's pages any more, and
 * asks for none until its link is made anew: nobody waits for what it may have. -EBUSY: what
 * this node knows of it says otherwise, yet. Never waits.
 */
int coherence_cluster_left(struct coherence *c, unsigned node);

/*
 * This home leaves: from now on it grants its pages to other nodes to read alone, so that what these share
 * stays with them. Never waits.
 */
void coherence_cluster_lend(struct coherence *c);

/*
 * The node is away, and the start of it that was met last does not run any more, as do none before. What
 * it shared with others, or as it is persisted, it has no more; what it may have changed waits for
 * its log. Until it is connected again. Not while there is a link. Never waits.
 */
void coherence_cluster_dead(struct coherence *c, unsigned node);

/* From the network's handlers. */
void coherence_cluster_message(
	struct coherence *c, struct net_peer *peer, const struct net_message *m);
void coherence_cluster_event(
	struct coherence *c, struct net_peer *peer, const struct net_event *event);

/* For people: what is under way, to the log. Takes no lock: when all stands still. */
void coherence_cluster_dump(struct coherence *c);

struct coherence_cluster_counters {
	/* sent to other nodes, by type less PAGE_MESSAGE_FIRST */
	_Atomic uint64_t sent[PAGE_MESSAGE_END - PAGE_MESSAGE_FIRST];
	_Atomic uint64_t deferred, gives_tried_again, forced, given_back, taken_over,
		alone_again, declined, downgrades;
	/* looks at asks that wait for this node's kernel since 10 ms; of these, what was done by
	 * then, and nobody had said so: none */
	_Atomic uint64_t ease_looks, eased_unheard;
	_Atomic uint64_t
		impossible; /* what by the protocol cannot happen; links cut for it */
};
/* Of pages that the frames alone do not tell of (many-nodes.md, "The driver"), at present. */
struct coherence_records {
	uint64_t pages;
	uint64_t awake; /* of these: something goes on with them */
	uint64_t bytes; /* their memory */
};
/* Looks at each partition, under its lock. */
void coherence_cluster_records(struct coherence *c, struct coherence_records *out);
/* For tests: what this node, the home of the page, knows of who has it. */
struct coherence_directory {
	bool entry;     /* there is one; else nobody else has anything of it */
	bool exclusive; /* the holder may change it */
	bool settled;   /* nothing is under way with it, and it need not be rebuilt */
	node_map holders, owing;
};
/* Never waits, changes nothing. False: it is just being changed. */
bool coherence_cluster_directory(
	struct coherence *c, page_id pid, struct coherence_directory *out);
/*
 * For people: the last change of the cluster's epoch, from the first one since all went on.
 * Durations are 0 while they last.
 */
struct coherence_change {
	uint64_t epoch;
	uint64_t began_ns;   /* rt_now_ns; 0: there was none yet */
	uint64_t served_ns;  /* until this node's shard was served again */
	uint64_t resumed_ns; /* until all homes that are connected served theirs */
	/* in the last epoch: pages reported to others and by others, entries made of that */
	uint64_t reported, heard, rebuilt;
};
void coherence_cluster_change(struct coherence *c, struct coherence_change *out);
/* For people: the cluster's epoch, and whether this node's shard is served in it. */
uint64_t coherence_cluster_epoch(struct coherence *c, bool *served);
const struct coherence_cluster_counters *coherence_cluster_counters(struct coherence *c);

#endif
