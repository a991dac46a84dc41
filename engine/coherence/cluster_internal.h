/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's insides: shared by the cluster_*.c of this folder only.
 *
 * What happens to a page happens under the lock of its partition: a message or a call
 * changes its record (page_deliver, page_perform), what follows is queued to the links,
 * page_unlock does what has become possible by it. Nothing waits under the lock but for
 * the latch of a frame that is LEAVING, which nobody keeps. A frame's latch may be held by
 * who takes the lock; under the lock latches are tried only.
 */
#ifndef WEFT_COHERENCE_CLUSTER_INTERNAL_H
#define WEFT_COHERENCE_CLUSTER_INTERNAL_H

#include "engine/coherence/cluster.h"
#include "engine/common/racy.h"

#include <errno.h>
#include <string.h>

#define PAGE_PARTITIONS 64u
#define PAGE_BUCKETS    1024u /* of a partition */
#define DEFERRED_MAX    256u /* of a page: an ask, a shipment and a request of each node */
#define HOME_TASKS      4u
#define PERSIST_TASKS   2u
#define GIVER_TASKS     2u
#define AREAS_MAX       8u
#define GIVE_POLL_NS    20000ull
#define ARRIVED_NS      1000000ull /* so long a page waits for its first use */

/* A call that waits for several pages. On its stack: who ends it does so under a lock that
 * it takes before it returns. */
struct batch {
	_Atomic uint32_t left;
	unsigned count;
};

/* A request of this node's own; the page's frame is latched by it. */
struct wish {
	struct coherence_request *request;
	struct batch *batch;
	bool asked;
	bool done;
	int result;
};

struct ship_wait {
	struct ship_wait *next;
	struct coherence_ship *ship;
	struct batch *batch;
	bool done;
};

struct deferred {
	struct deferred *next;
	struct page_message m;
};

/* Where an image comes from that was granted. */
enum got { GOT_HELD, GOT_PEER, GOT_STORE, GOT_ZEROS };

/* What this node knows of a page: as one that may have it, and as its home. */
struct dpage {
	struct dpage *next; /* of its bucket */
	struct dpage *giver_next;
	struct page_at at;
	struct page_hold hold;
	struct home_entry entry;
	bool has_entry;
	bool opening; /* of this shard: whose it is is being found out */
	/* then: what the store has */
	uint64_t stored_incarnation, stored_version;
	struct deferred *deferred, **deferred_end;
	unsigned deferred_count;
	struct wish *wish;
	struct ship_wait *ships;
	struct batch *evicting; /* an eviction is under way */
	bool asked_evict;       /* and its EVICT is out */
	unsigned refs;          /* jobs and the giver's list */
	unsigned ops;           /* under way that read this page's frame */
	bool replay;
	bool giver;              /* in the giver's list */
	bool leaving;            /* the frame was made INVALID for somebody who asks */
	bool releasing;          /* its cache frees the frame itself */
	bool no_frame;           /* there should be one: the image is lost */
	bool keep_owed;          /* of the hold that ends */
	bool vacate, vacate_owe; /* when no operation reads the frame any more */
	bool persisting;         /* by frames->persist: nobody here may become a writer */
	uint8_t got;             /* enum got: of what was granted last */
	uint64_t flush_to;
	uint64_t arrived_ns;
};

struct partition {
	struct rt_mutex lock;
	struct dpage **bucket;
};

/* Work that waits for the store or a peer. */
enum job_kind { JOB_OPEN, JOB_STORE, JOB_PERSIST };
struct job {
	struct job *next;
	enum job_kind kind;
	struct dpage *p;
	unsigned node;  /* JOB_STORE: to whom */
	uint64_t place; /* and where to */
	struct page_message m;
};

struct job_queue {
	struct rt_mutex lock; /* a leaf */
	_Atomic uint32_t word;
	struct job *first, **end;
};

struct giver_list {
	struct rt_mutex lock; /* a leaf */
	_Atomic uint32_t word;
	struct dpage *first, **end;
};

/* A one-sided operation for a page. */
struct image_op {
	struct net_op op;
	struct cluster *d;
	struct dpage *p;
	void *buffer; /* the image, where it is not in a frame */
	unsigned from;
};

struct cluster {
	struct coherence base;
	struct coherence_cluster_options o;
	struct partition partition[PAGE_PARTITIONS];
	struct {
		uint8_t *base;
		size_t size;
	} area[AREAS_MAX];
	unsigned areas;
	_Atomic uint32_t epoch_floor; /* no forgotten entry's was higher */
	_Atomic uint32_t next_request;
	_Atomic bool stopping;
	_Atomic bool failed; /* a link went down: what needs others fails */
	struct job_queue home_jobs, persist_jobs;
	struct giver_list givers;
	struct rt_task *task[HOME_TASKS + PERSIST_TASKS + GIVER_TASKS];
	unsigned tasks;
	struct coherence_cluster_counters counters;
};

#define DCOUNT(d, field)                                                                 \
	atomic_fetch_add_explicit(&(d)->counters.field, 1, memory_order_relaxed)

static inline struct cluster *cluster_of(struct coherence *c)
{
	return container_of(c, struct cluster, base);
}

/* coherence.h, `memory`. (cluster.c) */
int cluster_memory(struct coherence *c, unsigned area, size_t size_bytes, void **out);
/* What is known of the page, to the log. (cluster.c) */
void page_dump(const struct cluster *d, const struct dpage *p);

/* ---- cluster_page.c: records ----------------------------------------------------------- */

int page_table_open(struct cluster *d);
void page_table_close(struct cluster *d);
/* Locks the page's partition; its record, or NULL. */
struct dpage *page_lock(struct cluster *d, page_id pid);
/* Makes one, under the lock. NULL: no memory, or no such shard. */
struct dpage *page_new(struct cluster *d, page_id pid);
/* Does what has become possible, forgets a record that says nothing, unlocks. */
void page_unlock(struct cluster *d, page_id pid, struct dpage *p);
void page_defer(struct cluster *d, struct dpage *p, const struct page_message *m);
/* Finds out whose a page of this shard is; what comes meanwhile is deferred. */
int page_open_later(struct cluster *d, struct dpage *p);
void page_opened(struct cluster *d, struct dpage *p, const struct coherence_image *image);

/* ---- cluster_event.c: what happens to a page ------------------------------------------- */

/* A message for the page, from `m->sender`, which may be this node. */
void page_deliver(struct cluster *d, struct dpage *p, const struct page_message *m);
/* Performs actions that came of a message (NULL: of a call). */
void page_perform(struct cluster *d, struct dpage *p, const struct page_message *cause,
	const struct page_actions *out);
/* The frame's image is not needed by operations any more. */
void page_frame_free(struct cluster *d, struct dpage *p);
/* Has a giver look after the page's deferred asks. */
void page_give_later(struct cluster *d, struct dpage *p);
void giver_main(void *arg);

/* ---- cluster_request.c: what the cache asks -------------------------------------------- */

extern const struct coherence_ops cluster_ops;
/* Begins the page's wish, if it may. */
void wish_start(struct cluster *d, struct dpage *p);
void wish_done(struct cluster *d, struct dpage *p, int result);
void batch_one_done(struct cluster *d, struct batch *b);
/* The home has answered an eviction; the hold has taken it in. */
void evict_answered(struct cluster *d, struct dpage *p, bool accepted);
void ships_persisted(struct cluster *d, struct dpage *p, uint64_t incarnation,
	uint64_t version, int result);

/* ---- cluster_home.c: the home's work ------------------------------------------------------ */

int home_evict(struct cluster *d, struct dpage *p, const struct page_message *m,
	struct page_actions *out);
void home_pull(struct cluster *d, struct dpage *p, const struct page_action *a);
/* Is this version of the page the newest there is, as far as this node's hold tells? */
bool home_newest(const struct dpage *p, uint64_t incarnation, uint64_t version);
int job_later(struct cluster *d, struct dpage *p, enum job_kind kind, unsigned node,
	uint64_t place, const struct page_message *m);
void home_main(void *arg);
void persist_main(void *arg);

/* ---- cluster_wire.c: messages and images -------------------------------------------------- */

uint64_t place_of(const struct cluster *d, const void *memory);
/* NULL: no page lies there. */
void *place_memory(const struct cluster *d, uint64_t place);
static inline uint32_t place_region(uint64_t place)
{
	return (uint32_t)(place >> PID_SLOT_BITS);
}
static inline uint64_t place_offset(uint64_t place)
{
	return place & PID_SLOT_MASK;
}
void wire_send(struct cluster *d, unsigned node, const struct page_message *m);
/* The image first: of the page's frame, or of `buffer`, which is freed at the end. */
void wire_send_image(struct cluster *d, struct dpage *p, unsigned node,
	const struct page_message *m, uint64_t place, void *buffer);
void wire_cut(struct cluster *d, unsigned node, int error, const char *why,
	const struct page_message *m);

#endif
