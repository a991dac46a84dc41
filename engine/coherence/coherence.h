/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The contract between the cache and the coherence protocol: rights to pages (ScaleStore §3.1:
 * modes; §3.2: directory at the home).
 *
 * The cache asks the provider for a page that it holds in too weak a mode, and for leave to give a
 * page up. A volume has one provider. For one node it is `coherence_single`, whose directory always
 * grants. The distributed protocol fills the same table. That provider takes pages out of this
 * node's frames for other nodes through `struct coherence_frames`, which the cache fills
 * (engine/cache/revoke.c).
 */
#ifndef WEFT_COHERENCE_H
#define WEFT_COHERENCE_H

#include "engine/store/shards.h"

enum page_mode {
	PAGE_INVALID = 0,   /* no right and no copy */
	PAGE_SHARED = 1,    /* may be read */
	PAGE_EXCLUSIVE = 2, /* this node is the only holder: may be read and changed */
};

/* The place where the image of a granted page is. */
enum page_source {
	PAGE_FROM_HELD = 0, /* the image of the frame stays valid (upgrade) */
	PAGE_FROM_STORE,    /* the home's store, which is this node's */
	PAGE_FROM_PEER,     /* it has arrived in the frame; with `hollow` there is none */
	PAGE_FROM_ZEROS,    /* there is no image of this incarnation */
};

struct coherence_request {
	page_id pid;
	uint64_t incarnation; /* expected incarnation; 0: any. The home refuses an older one:
			       * -ESTALE */
	enum page_mode wanted;
	enum page_mode held;
	bool alone; /* asks for S; takes X if no other node has the page */
	bool ahead; /* no task waits for it: a read grant need not stay until its use */
	/* The caller needs no image: it fills the whole page, or frees it. Cleared if an image came
	 * nevertheless. A dirty image is never left behind. */
	bool hollow;
	bool held_hollow; /* X is held without an image, and the caller needs the image of these
			   * versions */
	bool held_dirty;
	uint64_t held_incarnation, held_version;
	uint64_t held_flush_to; /* the log must be durable to this LSN before the image leaves */
	uint32_t frame;         /* the requester's frame: its index and */
	void *image;            /* its memory */
	/* out */
	int result;
	enum page_source source;
	/* May be SHARED although more was requested: this node's own image was reinstated
	 * meanwhile, and the other holders are away. */
	enum page_mode granted;
	bool arrived;  /* it stays until `used` is called, and other nodes wait for that */
	bool dirty;    /* this node must persist it; with PAGE_FROM_PEER and PAGE_FROM_HELD */
	bool lost;     /* with an error: another node has the page that was held */
	uint64_t away; /* with -EHOSTUNREACH: node map of the nodes that the page waits for */
	/* with PAGE_FROM_PEER */
	uint64_t found_incarnation, version;
};

/* A dirty image for the home's store. This node keeps the page. */
struct coherence_ship {
	page_id pid;
	uint64_t incarnation, version;
	void *image; /* in memory that peers may read; unchanged until the call returns */
	int result;
	bool for_other; /* for `persist`: another node has shipped it */
};

struct coherence;
struct coherence_peers_ops;
struct coherence_ops {
	/*
	 * Requests all pages at once and waits for them. The caller holds no latch but the
	 * exclusive ones of the requests' frames. Each request has a `result`. -EAGAIN with several
	 * requests: the page was granted, and given away while the call waited for others; try
	 * again. For the same reason a page may be granted in a weaker mode than requested. Waits.
	 */
	void (*acquire)(
		struct coherence *c, struct coherence_request *requests, unsigned count);
	/* Tells that a page that arrived was used once, or will not be used. Never waits. */
	void (*used)(struct coherence *c, page_id pid);
	/*
	 * Tries to drop a clean copy without asking the home. Returns false if the home must be
	 * asked first (evict), or if another node has already requested the page. The frame must be
	 * latched exclusively. `incarnation`: that of the copy. If it is later than the persisted
	 * image's, the copy is zeros that no node has changed. `spare`: the copy is an image, and
	 * is dropped even if the home is away and cannot give it again. Never waits.
	 */
	bool (*release)(struct coherence *c, page_id pid, enum page_mode held,
		uint64_t incarnation, bool spare);
	/*
	 * Tells that this node has freed pages in a row, in this incarnation. Nodes that share them
	 * drop them soon, so that the next user of the pages need not ask these nodes. They may
	 * miss it. The pages may be in use again by then. NULL: there are no other nodes. Never
	 * waits.
	 */
	void (*freed)(
		struct coherence *c, page_id pid, uint64_t incarnation, unsigned count);
	/* Asks homes for leave to give pages up, dirty ones too. A page that its home agrees to is
	 * taken out of its frame. Waits; call it with nothing held. */
	void (*evict)(struct coherence *c, const page_id *pids, unsigned count);
	/*
	 * Gives the exclusive right to clean pages of other homes back and keeps sharing them. The
	 * frames are SHARED from now on. Each home answers later and may decline; the caller need
	 * not act on that. Skips pages in other use: call again later. NULL: no other node has
	 * pages here. Never waits; call it with nothing held.
	 */
	void (*downgrade)(struct coherence *c, const page_id *pids, unsigned count);
	/* Has other homes persist images. Sets -EHOSTDOWN if the home is or was away: try again.
	 * Waits; call it with nothing held. */
	void (*ship)(struct coherence *c, struct coherence_ship *ships, unsigned count);
	/* Tells that this node, the home, has persisted this version of the page. `more`: other
	 * calls follow at once. The nodes are notified with the last. Never waits. */
	void (*persisted)(struct coherence *c, page_id pid, uint64_t incarnation,
		uint64_t version, bool more);
	/*
	 * Tells that this node's kernel has dropped the page. A revocation that was refused with
	 * -EBUSY is now done, if possible. One call follows each such refusal. NULL: the provider
	 * does not try again. Never waits; call it with nothing held.
	 */
	void (*kernel_invalidated)(struct coherence *c, page_id pid);
	/*
	 * Gives zeroed memory for images that peers can read, and also write in area 0. It belongs
	 * to the network and ends with it. Call it before any request. Returns 0 or a negative
	 * errno. NULL instead of the function: the cache takes memory of its own, which no peer
	 * reaches.
	 */
	int (*memory)(struct coherence *c, unsigned area, size_t size_bytes, void **out);
	/* Returns true if another node may have a part in the page. NULL instead of the function:
	 * there are no other nodes. Never waits. */
	bool (*has_others)(struct coherence *c, page_id pid);
	/* Returns the home of the page's shard, or COHERENCE_NO_NODE if none is known. NULL instead
	 * of the function: there are no other nodes. Never waits. */
	unsigned (*home)(const struct coherence *c, page_id pid);
	void (*close)(struct coherence *c);
	/* functions that exist for other nodes (peers.h). NULL: there are no other nodes */
	const struct coherence_peers_ops *peers;
};

/* ---- what a provider does with this node's frames ---------------------------------- */

/* An image that is to leave. No task of this node changes it any more. */
struct coherence_image {
	uint32_t frame;
	void *image;
	uint64_t incarnation, version;
	bool dirty;
	bool hollow;
	uint64_t flush_to; /* the log must be durable to this LSN first (invariant 3) */
	uint64_t min_hold_until_ns; /* with -ETIME of revoke(): do not try again before this
				     * rt_now_ns() */
};

/* Functions by which a provider acts on this node's frames. Each page was granted to this node by
 * the provider. The provider makes one call for a page at a time. */
struct coherence_frames {
	/*
	 * Weakens the right of a frame. With SHARED, no task of this node changes the image any
	 * more. With INVALID, no task uses it, and tasks that need the page wait until it is
	 * vacated. Never waits. Returns 0, or an error, and then nothing has changed:
	 *
	 * - -EAGAIN: the frame is latched, or its image is being written. A request of its own may
	 *   have latched it, so check that the page is still to be given before another try.
	 * - -EBUSY: this node's kernel caches the page, and is told to drop it (invariant 5).
	 *   `kernel_invalidated` says when to try again.
	 * - -ETIME: the page has just arrived and is in use. out->min_hold_until_ns says when to
	 *   try again.
	 * - -ENOBUFS: a dirty page should become INVALID, and too many images are owed. Some of
	 *   them are then on their way to be persisted.
	 */
	int (*revoke)(
		void *cache, page_id pid, enum page_mode to, struct coherence_image *out);
	/*
	 * Returns true if this node's kernel has nothing of the page (invariant 5). The frame is
	 * latched by a request under way, and is to become INVALID; revoke() checks this itself. If
	 * it returns false, the kernel is told to drop the page: ask again. Never waits.
	 */
	bool (*not_kcached)(void *cache, page_id pid);
	/* Undoes INVALID: the page stays. Never waits. */
	void (*restore)(void *cache, page_id pid, enum page_mode mode);
	/*
	 * Makes a SHARED page EXCLUSIVE. The page is of this shard and no other node has it any
	 * more, or it was revoked and is not given. Returns 0, or -EAGAIN if the frame is latched
	 * or is in no such state. Never waits.
	 */
	int (*strengthen)(void *cache, page_id pid);
	/*
	 * Keeps the dirty image of a frame as owed in another frame, so that the first can be
	 * filled. An upgrade under way latches the frame. Returns 0, -EAGAIN if no frame is free,
	 * or -ENOBUFS if too many images are owed. Never waits.
	 */
	int (*owe_copy)(void *cache, page_id pid);
	/* Ends INVALID: the image has left. The frame becomes free. With `owe` it keeps the image,
	 * out of reach, until persisted() (invariant 2). Never waits. */
	void (*vacate)(void *cache, page_id pid, bool owe);
	/* Tells that another node, the home, has persisted this version or a later one. Owed images
	 * up to it are freed. A frame of exactly this version is clean. Never waits. */
	void (*persisted)(
		void *cache, page_id pid, uint64_t incarnation, uint64_t version);
	/*
	 * Gives an empty, latched frame for a dirty page that this node, the home, takes over.
	 * Returns 0, -EAGAIN if no frame is free, or -EEXIST if the page has one. Ends with
	 * placed(), which gives the frame its right; PAGE_INVALID: the image did not come. Never
	 * waits.
	 */
	int (*place)(void *cache, page_id pid, uint32_t *frame, void **image);
	void (*placed)(void *cache, page_id pid, uint64_t incarnation, uint64_t version,
		enum page_mode mode);
	/* Reads the state of a page of this node's own shard. Returns 0, -ENOENT if this node has
	 * nothing of it, or -EAGAIN if the frame is latched. Never waits. */
	int (*look)(void *cache, page_id pid, struct coherence_image *out);
	/*
	 * Makes a shared copy dirty, because another node gives up the dirty image, or has lost it.
	 * This node must persist it now. `latched`: by a request of this node that is under way.
	 * Returns 0, or -EAGAIN if latched. Never waits.
	 */
	int (*adopt)(void *cache, page_id pid, bool latched);
	/* Returns the newest owed image of the page, or NULL if there is none. It stays until
	 * persisted(). */
	const void *(*owed)(
		void *cache, page_id pid, uint64_t *incarnation, uint64_t *version);
	/* Lists all owed images one by one, while nothing changes them. Returns 0, or -ENOENT after
	 * the last. */
	int (*owed_at)(
		void *cache, unsigned at, page_id *pid, struct coherence_image *out);
	/*
	 * Makes an owed image the page's frame again: SHARED and dirty. Returns 0 and its image.
	 * Returns -EAGAIN if the page still has another frame, or the image is being shipped. Never
	 * waits.
	 */
	int (*reown)(void *cache, page_id pid, uint64_t incarnation, uint64_t version,
		void **image);
	/* Tells that the image of a hollow frame has come, after the frame was made INVALID. Never
	 * waits. */
	void (*filled)(void *cache, page_id pid, uint64_t incarnation, uint64_t version);
	/* Writes this node's own image back if it is dirty. Returns 0 or a negative errno.
	 * Waits. */
	int (*write_back)(void *cache, page_id pid);
	/*
	 * Persists images that other nodes shipped to this node, the home. At most one image of a
	 * page at a time. This node has no dirty image of the page, and gets no right to make one
	 * before the call returns. So two writes of a page never race to the device. Returns 0 or a
	 * negative errno. Waits; call it with nothing held.
	 */
	int (*persist)(void *cache, const struct coherence_ship *ships, unsigned count);
};

#define COHERENCE_NO_SHARD UINT32_MAX
#define COHERENCE_NO_NODE  0xffffu

struct coherence {
	const struct coherence_ops *ops;
	uint32_t shard; /* this node's, or COHERENCE_NO_SHARD */
	/*
	 * The volume's shards, if other nodes have pages of it. They are the provider's, listed
	 * before cache_open, which sets the size of this node's own. NULL: the volume has one node,
	 * and its store's shard is the only one.
	 */
	struct shards *shards;
	/* set by cache_open, before a task of the cache or the provider runs */
	const struct coherence_frames *frames;
	void *cache;
};

/* Returns true if this node is the page's home. */
static inline bool coherence_home_here(const struct coherence *c, page_id pid)
{
	return pid_shard(pid) == c->shard;
}

/* Opens the provider for a volume of one node, which grants X from the store at once. Returns 0 or
 * a negative errno. */
int coherence_single_open(struct coherence **out, uint32_t shard);

struct store;
struct log;
struct coherence_store {
	struct store *store;
	struct coherence
		*home; /* cache of that store, without the page; NULL: nothing is written */
};
/*
 * Opens a provider for tools that have all stores of a volume. `shard` and `log` are the cache's
 * own. `others` are the other stores, which stay open until the cache is closed. Returns 0 or a
 * negative errno. (stores.c)
 */
int coherence_stores_open(struct coherence **out, uint32_t shard, struct log *log,
	const struct coherence_store *others, unsigned count);

#endif
