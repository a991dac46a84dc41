/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may hold a page how (ScaleStore §3.1: modes; §3.2: directory at the home).
 *
 * The cache asks here for every page that it holds in too weak a mode, and for leave to
 * give one up. Behind the table stands one provider per volume: on one node
 * `coherence_single`, whose directory always grants; the distributed protocol fills the
 * same table. That one in turn takes pages out of this node's frames for others: by
 * `struct coherence_frames`, which the cache fills (engine/cache/give.c).
 */
#ifndef WEFT_COHERENCE_H
#define WEFT_COHERENCE_H

#include "engine/store/shards.h"

enum page_mode {
	PAGE_INVALID = 0,   /* no right, no copy */
	PAGE_SHARED = 1,    /* may read */
	PAGE_EXCLUSIVE = 2, /* only holder: may read and change */
};

/* Where the image of a granted page comes from. */
enum page_source {
	PAGE_FROM_HELD = 0, /* the frame's own image stays valid (upgrade) */
	PAGE_FROM_STORE,    /* the home's store, which is this node's */
	PAGE_FROM_PEER,     /* it has arrived in the frame; none with `hollow` */
	PAGE_FROM_ZEROS,    /* there is none of this incarnation */
};

struct coherence_request {
	page_id pid;
	uint64_t incarnation; /* wanted; 0: any. The home refuses an older one: -ESTALE */
	enum page_mode wanted;
	enum page_mode held;
	bool alone; /* wants S, takes X if nobody else has the page */
	bool ahead; /* nobody waits for it: what is granted to be read need not stay for its use */
	/*
	 * Wants no image: fills all of it, or frees the page. Cleared if one came all the
	 * same: a dirty one is never left behind.
	 */
	bool hollow;
	bool held_hollow; /* X is held without image, which is now wanted: that of these */
	bool held_dirty;
	uint64_t held_incarnation, held_version;
	uint64_t held_flush_to; /* the log must be durable to here before the image leaves */
	uint32_t frame; /* the requester's: its index and */
	void *image;      /* its memory */
	/* out */
	int result;
	enum page_source source;
	/* May be SHARED though more is wanted: this node's own image was reinstated meanwhile, and
	 * who else has it is away. */
	enum page_mode granted;
	bool arrived;           /* stays until `used` is called: others wait for it */
	bool dirty; /* now this node's to persist; with PAGE_FROM_PEER and _HELD */
	bool lost;  /* with an error: what was held is another's by now */
	uint64_t away; /* with -EHOSTUNREACH: bits of the nodes that the page waits for */
	/* with PAGE_FROM_PEER */
	uint64_t found_incarnation, version;
};

/* A dirty image for the home's store; the page is not given up by it. */
struct coherence_ship {
	page_id pid;
	uint64_t incarnation, version;
	void *image; /* in memory that peers may read; unchanged until the call returns */
	int result;
	bool for_other; /* `persist`: another node has shipped it */
};

struct coherence;
struct coherence_ops {
	/*
	 * Asks for all pages at once and waits for them. The caller holds no latch but
	 * those of the requests' frames, exclusively. -EAGAIN, of several: it was granted,
	 * and given away again while others of the call were waited for; look again. With
	 * several a page may be granted in less than was wanted for the same reason.
	 */
	void (*acquire)(
		struct coherence *c, struct coherence_request *requests, unsigned count);
	/* A page that arrived was used once, or will not be. Never waits. */
	void (*used)(struct coherence *c, page_id pid);
	/*
	 * May the node drop its clean copy at once? The frame is latched exclusively.
	 * `incarnation`: of what it has; of one later than the persisted image's it is zeros
	 * that nobody has changed. `spare`: it is an image, and may go though its home is away and
	 * cannot give it again. False: the home must be asked (evict), or another node is already on
	 * its way for it. Never waits.
	 */
	bool (*release)(struct coherence *c, page_id pid, enum page_mode held,
		uint64_t incarnation, bool spare);
	/*
	 * Asks homes to let go of pages, dirty ones too. Those that they agree to are
	 * taken out of their frames. Waits; hold nothing.
	 */
	void (*evict)(struct coherence *c, const page_id *pids, unsigned count);
	/*
	 * Gives the exclusive right to clean pages of other homes back, and goes on to share them:
	 * the frames are SHARED from now on. Each home answers later, and may decline, which needs
	 * nobody's attention. Passes over what is in use otherwise: come again. NULL: no other node
	 * has pages here. Never waits; hold nothing.
	 */
	void (*downgrade)(struct coherence *c, const page_id *pids, unsigned count);
	/*
	 * Has homes elsewhere persist images. -EHOSTDOWN: the home is away, or has been:
	 * to be tried again. Waits; hold nothing.
	 */
	void (*ship)(struct coherence *c, struct coherence_ship *ships, unsigned count);
	/*
	 * This node, the home, has persisted this version of the page. `more`: others follow
	 * at once, and are told with the last. Never waits.
	 */
	void (*persisted)(struct coherence *c, page_id pid, uint64_t incarnation,
		uint64_t version, bool more);
	/*
	 * What this node's kernel had of the page is dropped: what was refused of it with
	 * -EBUSY is done here and now, if it can be. Comes after each such refusal. NULL: nobody
	 * tries again. Never waits; hold nothing.
	 */
	void (*eased)(struct coherence *c, page_id pid);
	/*
	 * Memory for images, zeroed, which peers read, and in area 0 write: the network's, as
	 * long as that is open. Before anything is asked for. 0 or -errno. NULL instead of the
	 * function: the cache takes memory of its own, which no peer reaches.
	 */
	int (*memory)(struct coherence *c, unsigned area, size_t size_bytes, void **out);
	/* Has another node a part in the page, as far as is known here? NULL instead of the function: there
	 * are no other nodes. Never waits. */
	bool (*has_others)(struct coherence *c, page_id pid);
	/* The node that is home of the page's shard; COHERENCE_NO_NODE: none is known. NULL instead of
	 * the function: there are no other nodes. Never waits. */
	unsigned (*home)(const struct coherence *c, page_id pid);
	void (*close)(struct coherence *c);
};

/* ---- what a provider does with this node's frames ---------------------------------- */

/* An image that is to leave: nobody here changes it any more. */
struct coherence_image {
	uint32_t frame;
	void *image;
	uint64_t incarnation, version;
	bool dirty;
	bool hollow;
	uint64_t flush_to; /* the log must be durable to here first (invariant 3) */
	uint64_t stays_until_ns; /* -ETIME of weaken(): not before then, by rt_now_ns() */
};

/*
 * The page of each call is one that the provider has granted to this node, and it makes
 * one call for a page at a time.
 */
struct coherence_frames {
	/*
	 * The right becomes weaker: SHARED, nobody here changes the image any more;
	 * INVALID, nobody uses it, and who wants to waits until it is vacated. -EAGAIN:
	 * the frame is latched, or its image is just being written; nothing has changed.
	 * It may be latched by a request of its own, so look whether the page is still to
	 * be given before trying again. -EBUSY: this node's kernel has something of it,
	 * which is being dropped (invariant 5); nothing has changed, `eased` says when it
	 * may. -ETIME: it has come just now, and is in use; nothing has changed,
	 * out->stays_until_ns says when to try again. -ENOBUFS: a dirty page shall become
	 * INVALID, and too much is owed: nothing has changed; some of it is then on its way
	 * to be persisted. Never waits.
	 */
	int (*weaken)(
		void *cache, page_id pid, enum page_mode to, struct coherence_image *out);
	/*
	 * Of a frame that a request under way has latched, whose page is to become INVALID:
	 * has this node's kernel nothing of it (invariant 5)? weaken() asks that itself. If
	 * it has, that is dropped: ask again. Never waits.
	 */
	bool (*unexposed)(void *cache, page_id pid);
	/* INVALID was too much: the page stays after all. Never waits. */
	void (*restore)(void *cache, page_id pid, enum page_mode mode);
	/*
	 * A page that is SHARED becomes EXCLUSIVE: of this shard, and nobody else has it any more; or it
	 * was weakened, and is not given. 0; -EAGAIN: the frame is latched, or there is none like that.
	 * Never waits.
	 */
	int (*strengthen)(void *cache, page_id pid);
	/*
	 * The dirty image of a frame whose request is under way (an upgrade, which latches
	 * it) is kept as owed in another frame; the first is free to be filled. 0; -EAGAIN:
	 * no frame is free, -ENOBUFS: too much is owed. Never waits.
	 */
	int (*owe_copy)(void *cache, page_id pid);
	/*
	 * After INVALID: the image has left. The frame is free, or, with `owe`, keeps the
	 * image out of reach until persisted() (invariant 2). Never waits.
	 */
	void (*vacate)(void *cache, page_id pid, bool owe);
	/*
	 * The home, elsewhere, has persisted this version or a later one: what is owed up
	 * to it is free, and a frame of that very version is clean. Never waits.
	 */
	void (*persisted)(
		void *cache, page_id pid, uint64_t incarnation, uint64_t version);
	/*
	 * This node, the home, takes over a dirty page: an empty frame for it, latched.
	 * Never waits: -EAGAIN when no frame is free, -EEXIST when the page has one. Ends
	 * with placed(), which gives it that right; PAGE_INVALID: the image did not come.
	 */
	int (*place)(void *cache, page_id pid, uint32_t *frame, void **image);
	void (*placed)(void *cache, page_id pid, uint64_t incarnation, uint64_t version,
		enum page_mode mode);
	/*
	 * What this node has of a page of its own shard: 0; -ENOENT, nothing; -EAGAIN, the
	 * frame is latched. Never waits.
	 */
	int (*look)(void *cache, page_id pid, struct coherence_image *out);
	/*
	 * This node has a shared copy of a page whose dirty image another gives up, or has
	 * lost: it is this node's to persist now. `latched`: by a request of its own that is
	 * under way. 0; -EAGAIN: latched. Never waits.
	 */
	int (*adopt)(void *cache, page_id pid, bool latched);
	/* The newest image owed of the page; NULL: there is none. Stays until persisted(). */
	const void *(*owed)(
		void *cache, page_id pid, uint64_t *incarnation, uint64_t *version);
	/* All that is owed, one after the other, while nothing changes it. -ENOENT: past. */
	int (*owed_at)(
		void *cache, unsigned at, page_id *pid, struct coherence_image *out);
	/*
	 * What is owed becomes the page's frame again: SHARED, dirty. 0 with its image;
	 * -EAGAIN: the page has another frame yet, or the image is being shipped. Never
	 * waits.
	 */
	int (*reown)(void *cache, page_id pid, uint64_t incarnation, uint64_t version,
		void **image);
	/* The image of a hollow frame that was made INVALID has come. Never waits. */
	void (*filled)(void *cache, page_id pid, uint64_t incarnation, uint64_t version);
	/* Writes this node's own image back, if it is dirty. 0 or -errno. Waits. */
	int (*write_back)(void *cache, page_id pid);
	/*
	 * This node, the home, persists images that others shipped. One of a page at a
	 * time; this node has no dirty image of it, and does not get the right to make one
	 * before the call returns: so two writes of a page never race to the device. 0 or
	 * -errno. Waits; hold nothing.
	 */
	int (*persist)(void *cache, const struct coherence_ship *ships, unsigned count);
};

#define COHERENCE_NO_SHARD UINT32_MAX
#define COHERENCE_NO_NODE  255u

struct coherence {
	const struct coherence_ops *ops;
	uint32_t shard; /* this node's, or COHERENCE_NO_SHARD */
	/*
	 * The volume's shards, where other nodes have pages of it too: the provider's own,
	 * listed before cache_open, which says how large this node's is. NULL: this node
	 * is alone, and its store's shard the only one.
	 */
	struct shards *shards;
	/* set by cache_open, before any task of the cache or the provider runs */
	const struct coherence_frames *frames;
	void *cache;
};

/* Is this node the page's home? */
static inline bool coherence_home_here(const struct coherence *c, page_id pid)
{
	return pid_shard(pid) == c->shard;
}

/* The provider for a volume of one node: grants X from the store, at once. */
int coherence_single_open(struct coherence **out, uint32_t shard);

struct store;
struct log;
struct coherence_store {
	struct store *store;
	struct coherence
		*home; /* of a cache of that store, which has no page of it; NULL:
				   nothing is written */
};
/*
 * For tools that have all stores of a volume: `shard` and `log` are the cache's own,
 * `others` the rest, which stay open until after the cache is closed. (stores.c)
 */
int coherence_stores_open(struct coherence **out, uint32_t shard, struct log *log,
	const struct coherence_store *others, unsigned count);

#endif
