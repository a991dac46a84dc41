/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Coherence between the nodes of a volume: the part of a provider that exists for other nodes. The
 * node (engine/node) has the network. It reports here which nodes are connected, have left or are
 * dead. Status and metrics read the provider's counters here.
 *
 * A provider for one node has no such part. The functions below then do nothing, and read zeros.
 *
 * Order of opening: net_open; the volume opens the provider; cache_open; coherence_listen;
 * coherence_start; net_peer_add and net_start. Order of closing: cache_stop; coherence_stop;
 * net_close; cache_close; `close` of the provider. The images of the cache are memory of the
 * network, so net_close ends them.
 */
#ifndef WEFT_COHERENCE_PEERS_H
#define WEFT_COHERENCE_PEERS_H

#include "engine/coherence/coherence.h"
#include "engine/net/net.h"

/* ---- opening ---------------------------------------------------------------------------- */

struct coherence_options;

/* A provider for several nodes. */
struct coherence_provider {
	const char *name;
	/* Opens a provider. Returns 0 or a negative errno. `close` of its table closes it. */
	int (*open)(struct coherence **out, const struct coherence_options *o);
};

/* Options of a provider for several nodes. Node maps have one bit per node id. */
struct coherence_options {
	/* the provider's name, the same on all nodes of a volume. NULL: the default */
	const char *provider;
	/* for tests: a provider of the caller's own instead of a named one; or NULL */
	const struct coherence_provider *own;
	uint16_t self;  /* the id of this node, less than 64 */
	uint32_t shard; /* this node's shard, or COHERENCE_NO_SHARD */
	/* Returns the home of the shard's pages, or COHERENCE_NO_NODE if there is no such shard. */
	unsigned (*home)(void *owner, uint16_t shard);
	void *owner;
	struct net *net;
	struct store *store;
	struct log *log;
	struct shards *shards;  /* as in struct coherence; they belong to the caller */
	uint64_t cluster_epoch; /* the cluster epoch to begin with */
	/* nodes that may have pages of the volume; 0: all homes */
	uint64_t members;
	/* of these: nodes that have left, with nothing of this shard; nodes that are dead */
	uint64_t left, dead;
};

/* ---- what it reports -------------------------------------------------------------------- */

#define COHERENCE_MESSAGES_MAX 64u /* most message types of a provider */

/* Counters of a provider since it was opened. */
struct coherence_counters {
	/* messages sent to other nodes, by type minus `message_first` */
	_Atomic uint64_t sent[COHERENCE_MESSAGES_MAX];
	_Atomic uint64_t deferred, gives_tried_again, forced, given_back, taken_over,
		alone_again, declined, downgrades;
	/* Checks of messages that have waited 10 ms for this node's kernel. Of these: pages that
	 * the kernel had dropped by then without a notification, which should never happen. */
	_Atomic uint64_t ease_looks, eased_unheard;
	/* events that the protocol makes impossible; links that were cut because of them */
	_Atomic uint64_t impossible;
};

/* Present counts of page records (docs/nodes/driver.md). */
struct coherence_records {
	uint64_t pages;
	uint64_t expanded; /* of these: pages with work under way */
	uint64_t bytes;    /* memory of all records */
};

/* For tests: the directory entry of a page, at its home. */
struct coherence_directory {
	bool entry;     /* an entry exists; if not, no other node has anything of the page */
	bool exclusive; /* the holder may change the page */
	bool settled;   /* no work is under way for it, and it need not be rebuilt */
	uint64_t holders, owing; /* node maps */
};

/* The last change of the cluster epoch, from the first change until all homes served again. A
 * duration is 0 until its step has ended. */
struct coherence_change {
	uint64_t epoch;
	uint64_t began_ns;   /* rt_now_ns; 0: there was no change yet */
	uint64_t served_ns;  /* until this node's shard was served again */
	uint64_t resumed_ns; /* until all homes that are connected served theirs */
	/* in the last epoch: pages reported to other nodes, pages reported by them, entries
	 * rebuilt */
	uint64_t reported, received, rebuilt;
};

/* ---- the table -------------------------------------------------------------------------- */

struct coherence_peers_ops {
	/* the message types of the provider: from the first up to, without, the end. They have
	 * names */
	uint16_t message_first, message_end;
	const char *(*message_name)(unsigned type);
	/* Handle a message and an event of the network, called from its handlers (net.h). Never
	 * wait. */
	void (*message)(
		struct coherence *c, struct net_peer *peer, const struct net_message *m);
	void (*event)(struct coherence *c, struct net_peer *peer,
		const struct net_event *event);

	/* ---- this node ---- */

	/* Starts tasks. From now on other nodes may have this node's pages. Returns 0 or a negative
	 * errno. */
	int (*start)(struct coherence *c);
	/* Ends these tasks, also without start. No task of this node requests a page any more.
	 * Waits. */
	void (*stop)(struct coherence *c);
	/*
	 * Makes all waits for other nodes end with -EIO, now and later, and cuts the links. If a
	 * node's log fails, the provider does this itself, for good: it also ends the network.
	 * Never waits.
	 */
	void (*give_up)(struct coherence *c);
	/* Makes this home, which leaves, grant its pages to other nodes only to be read. The
	 * sharers can then keep them. Never waits. */
	void (*lend)(struct coherence *c);

	/* ---- another node ---- */

	/*
	 * Notes that the node has left: it is connected, has nothing of this shard, and requests
	 * nothing until its link is made anew. No node waits for it any more. Returns 0, or -EBUSY
	 * if this node's state still says otherwise. Never waits.
	 */
	int (*left)(struct coherence *c, unsigned node);
	/*
	 * Notes that the node is vacant: away, without a page, an image or a record in its log. It
	 * holds nothing until it is connected again. Call it only while there is no link. Never
	 * waits.
	 */
	void (*vacant)(struct coherence *c, unsigned node);
	/*
	 * Notes that the node is dead: away, and no start of it up to the last known one still
	 * runs. It holds no more the pages that it shared, or had as persisted. Pages that it may
	 * have changed wait for its log. This holds until it is connected again. Call it only while
	 * there is no link. Never waits.
	 */
	void (*dead)(struct coherence *c, unsigned node);

	/* ---- reports; all of them never wait ---- */

	/* Returns the cluster epoch. *served: this node's shard is served in it. */
	uint64_t (*epoch)(struct coherence *c, bool *served);
	void (*change)(struct coherence *c, struct coherence_change *out);
	/* Counts all records, one part at a time under a lock. */
	void (*records)(struct coherence *c, struct coherence_records *out);
	const struct coherence_counters *(*counters)(struct coherence *c);
	/* Reads a page's directory entry. Returns false if the page is being changed. Changes
	 * nothing. */
	bool (*directory)(
		struct coherence *c, page_id pid, struct coherence_directory *out);
	/* Returns a map of the nodes that a request for the page waits for. That is its home until
	 * the page is granted. Then it is each node that has not given it. 0: not known. */
	uint64_t (*awaited)(struct coherence *c, page_id pid);
	/* Logs all work under way. Takes no lock, so that it works in a node that hangs. */
	void (*dump)(struct coherence *c);
};

/* ---- its functions, for any provider ------------------------------------------------------ */

static inline void coherence_message(
	struct coherence *c, struct net_peer *peer, const struct net_message *m)
{
	if (c->ops->peers)
		c->ops->peers->message(c, peer, m);
}

/* The handler for coherence_listen. `owner`: the provider. */
static inline void coherence_on_message(
	void *owner, struct net_peer *peer, const struct net_message *m)
{
	coherence_message((struct coherence *)owner, peer, m);
}

/* Registers the provider's message handler (net_handle). Call it before net_start. Returns 0 or a
 * negative errno. */
static inline int coherence_listen(struct coherence *c, struct net *net)
{
	const struct coherence_peers_ops *p = c->ops->peers;

	return p ? net_handle(net, p->message_first, p->message_end, coherence_on_message, c)
		 : 0;
}

static inline void coherence_event(
	struct coherence *c, struct net_peer *peer, const struct net_event *event)
{
	if (c->ops->peers)
		c->ops->peers->event(c, peer, event);
}

static inline int coherence_start(struct coherence *c)
{
	return c->ops->peers ? c->ops->peers->start(c) : 0;
}

static inline void coherence_stop(struct coherence *c)
{
	if (c->ops->peers)
		c->ops->peers->stop(c);
}

static inline void coherence_give_up(struct coherence *c)
{
	if (c->ops->peers)
		c->ops->peers->give_up(c);
}

static inline void coherence_lend(struct coherence *c)
{
	if (c->ops->peers)
		c->ops->peers->lend(c);
}

static inline int coherence_left(struct coherence *c, unsigned node)
{
	return c->ops->peers ? c->ops->peers->left(c, node) : 0;
}

static inline void coherence_vacant(struct coherence *c, unsigned node)
{
	if (c->ops->peers)
		c->ops->peers->vacant(c, node);
}

static inline void coherence_dead(struct coherence *c, unsigned node)
{
	if (c->ops->peers)
		c->ops->peers->dead(c, node);
}

static inline uint64_t coherence_epoch(struct coherence *c, bool *served)
{
	*served = true;
	return c->ops->peers ? c->ops->peers->epoch(c, served) : 0;
}

static inline void coherence_change(struct coherence *c, struct coherence_change *out)
{
	*out = (struct coherence_change){0};
	if (c->ops->peers)
		c->ops->peers->change(c, out);
}

static inline void coherence_records(struct coherence *c, struct coherence_records *out)
{
	*out = (struct coherence_records){0};
	if (c->ops->peers)
		c->ops->peers->records(c, out);
}

static inline const struct coherence_counters *coherence_counters(struct coherence *c)
{
	static const struct coherence_counters none;

	return c->ops->peers ? c->ops->peers->counters(c) : &none;
}

/* Returns the name of the messages that sent[at] counts, or NULL if there are none. */
static inline const char *coherence_sent_name(const struct coherence *c, unsigned at)
{
	const struct coherence_peers_ops *p = c->ops->peers;

	return p && at < (unsigned)(p->message_end - p->message_first)
		       ? p->message_name(p->message_first + at)
		       : NULL;
}

static inline uint64_t coherence_awaited(struct coherence *c, page_id pid)
{
	return c->ops->peers ? c->ops->peers->awaited(c, pid) : 0;
}

static inline bool coherence_directory(
	struct coherence *c, page_id pid, struct coherence_directory *out)
{
	*out = (struct coherence_directory){.settled = true};
	return !c->ops->peers || c->ops->peers->directory(c, pid, out);
}

static inline void coherence_dump(struct coherence *c)
{
	if (c->ops->peers)
		c->ops->peers->dump(c);
}

#endif
