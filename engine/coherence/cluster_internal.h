/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver's insides: shared by the cluster_*.c of this folder only.
 *
 * What happens to a page happens under the lock of its partition: a message or a call
 * changes its record (page_deliver, page_perform), what follows is queued to the links,
 * page_unlock does what has become possible by it. Nothing waits under the lock but for
 * the latch of a frame that is LEAVING, which nobody keeps, and for memory, where a record
 * must wake and there is none. A frame's latch may be held by who takes the lock; under the
 * lock latches are tried only.
 *
 * The cluster's epoch changes with all partitions locked, so it stands still under the lock
 * of one. The view's lock comes before those of partitions.
 */
#ifndef WEFT_COHERENCE_CLUSTER_INTERNAL_H
#define WEFT_COHERENCE_CLUSTER_INTERNAL_H

#include "engine/coherence/cluster.h"
#include "engine/common/racy.h"

#include <errno.h>
#include <string.h>

_Static_assert(COHERENCE_NO_NODE == NODE_NONE, "no node");

#define PAGE_PARTITIONS 64u
#define PAGE_BUCKETS    16u   /* of a partition, at least */
#define PAGE_RUN        16u   /* pages in a row that are found together */
#define PAGE_CHUNK      32u   /* records that are allocated together */
#define CHUNKS_IDLE     4u    /* of a kind and partition that are kept without a record */
#define ROWS_SPARE      16u   /* of a partition, at most */
#define DEFERRED_MAX    256u /* of a page: an ask, a shipment and a request of each node */
#define HOME_TASKS      4u
#define PERSIST_TASKS   2u
#define PERSIST_BATCH   32u /* images that one of these writes together */
#define GIVER_TASKS     2u
#define ROOM_LOOK_EVERY 16u /* requests of a call */
#define AREAS_MAX       8u
#define GIVE_POLL_NS    20000ull
#define EASE_LOOK_NS    10000000ull /* so often is looked whether an `eased` got lost */
#define EASE_LOOK_MAX   32u
#define ARRIVED_NS      1000000ull    /* so long a page waits for its first use */
#define UNUSED_NS       1000000000ull /* so long it is not evicted without one */
#define LOST_NS         500000000ull /* so long a link may be down without an epoch for that */

/* A call that waits for several pages. On its stack: who ends it does so under a lock that
 * it takes before it returns. */
struct batch {
	_Atomic uint32_t left;
	unsigned count;
	unsigned likely; /* the node that will answer; NODE_NONE: any */
};

/* A request of this node's own; the page's frame is latched by it. */
struct wish {
	struct coherence_request *request;
	struct batch *batch;
	bool asked;
	bool done;
	bool filled; /* the frame has the image that was reinstated, to be shared */
	int result;
	node_map away; /* with -EHOSTUNREACH: the nodes that the page waits for */
};

struct ship_wait {
	struct ship_wait *next;
	struct coherence_ship *ship;
	struct batch *batch;
};

struct deferred {
	struct deferred *next;
	struct page_message m;
};

/* Where an image comes from that was granted. */
enum got { GOT_HELD, GOT_PEER, GOT_STORE, GOT_ZEROS };

/* What records begin with, of whatever kind. */
struct record {
	struct record_chunk *chunk;
	struct record *next; /* of the free of its chunk */
};

/* What this node knows of a page: as one that may have it, and as its home. */
struct dpage {
	/* what each event looks at comes first, in as few lines of memory as it fits */
	_Alignas(64) struct record record;
	struct page_at at;
	struct wish *wish;
	struct deferred *deferred;
	uint16_t deferred_count;
	uint8_t got;      /* enum got: of what was granted last */
	bool asked_evict; /* `evicting`, and its EVICT is out */
	bool has_entry;
	bool opening; /* of this shard: whose it is is being found out */
	bool replay;
	bool giver;              /* in the giver's list */
	bool easing;             /* in the list of those that `eased` is awaited for */
	bool leaving;            /* the frame was made INVALID for somebody who asks */
	bool releasing;          /* its cache frees the frame itself */
	bool no_frame;           /* there should be one: the image is lost */
	bool keep_owed;          /* of the hold that ends */
	bool vacate, vacate_owe; /* when no operation reads the frame any more */
	bool persisting;         /* by frames->persist: nobody here may become a writer */
	bool storing; /* and past the point where another epoch would end that */
	bool unsettled; /* its frame may still be written by who has not heard of the epoch */
	bool reported; /* in this epoch, by others: `rebuild` says what */
	bool awaited;  /* counted in view.awaited */
	bool readied; /* its frame was weakened for the message that is about to be delivered */
	bool unmade; /* there was no entry yet since this node started, as far as is known */
	uint8_t reinstating; /* who has been asked to; NODE_NONE */
	/* the second line */
	struct batch *evicting; /* an eviction is under way */
	struct ship_wait *ships;
	unsigned refs; /* jobs and the giver's list */
	unsigned ops;  /* under way that read this page's frame */
	uint64_t arrived_ns;
	_Atomic uint64_t give_ns; /* in the giver's list: not to be tried before */
	struct page_hold hold;
	struct home_entry entry;
	/* who may have something of this page, of those who were granted it; never too few.
	 * Of pages of this shard, kept over changes of the epoch. */
	node_map may;
	/* of them: who may have changed it since it was last persisted, or have what one of
	 * these has; never too few */
	node_map changed;
	/* who has reported it shared in this epoch, and is away since: as if it had not */
	node_map gone;
	/* while it is opening: what the store has */
	uint64_t stored_incarnation, stored_version;
	uint64_t flush_to;
	/* the rest is seldom looked at */
	struct deferred **deferred_end;
	struct dpage *giver_next;
	struct dpage *easing_next, **easing_link;
	uint64_t easing_ns; /* since when */
	struct page_row *row;
	struct home_rebuild rebuild;
};

/*
 * What is kept of a page while nothing goes on with it: one line of memory, in place of the seven
 * of struct dpage. Fields are those of its hold, and its own.
 */
struct page_rest {
	_Alignas(64) struct record record;
	uint64_t place, incarnation, version, flush_to;
	uint32_t epoch, request;
	uint16_t served, flags;
	uint8_t hold, home, got;
	bool has_entry : 1, unmade : 1;
	bool current : 1; /* of the entry */
};
_Static_assert(sizeof(struct page_rest) == CACHE_LINE, "a line");

/* Of a page of this shard. The rest of the fields are its entry's, and its own. */
struct page_rest_home {
	struct page_rest rest;
	node_map holders, owing, may, changed;
	uint64_t incarnation, stored_incarnation, stored_version;
	uint32_t epoch;
	uint16_t copies;
	uint8_t mode, source;
};
_Static_assert(sizeof(struct page_rest_home) == 2 * CACHE_LINE, "two lines");

enum record_kind { RECORD_AWAKE, RECORD_REST, RECORD_REST_HOME, RECORD_KINDS };

/* Records of one kind and partition, so that those of pages in a row lie side by side. */
struct record_pool {
	struct record_chunk *chunks; /* that have a free record */
	unsigned idle;               /* of these: have none in use */
	unsigned all;                /* chunks, with or without */
	uint32_t used;               /* records */
};

struct partition {
	_Alignas(64) struct rt_mutex lock;
	struct page_row **bucket;
	struct page_row *rows; /* spare ones */
	unsigned rows_spare, rows_all;
	struct record_pool pool[RECORD_KINDS];
	struct image_op *spare; /* as many as were under way at once */
};

/* Work that waits for the store or a peer. */
enum job_kind { JOB_OPEN, JOB_STORE, JOB_PERSIST };
struct job {
	struct job *next;
	enum job_kind kind;
	struct dpage *p;
	unsigned node;  /* JOB_STORE: to whom */
	uint64_t place; /* and where to */
	uint64_t epoch; /* of the cluster, that it belongs to */
	uint64_t failing_ns; /* JOB_PERSIST: refused by the device since; or 0 */
	unsigned failures;   /* JOB_PERSIST: reads in a row with a wrong checksum */
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
	_Atomic uint32_t eased;   /* changes when a try may succeed that was in vain */
	_Atomic uint32_t polling; /* givers that wait for it */
	struct dpage *first, **end;
	/* deferred until the kernel has dropped something; when to look at these. RT_FOREVER:
	 * there were none for a while */
	struct dpage *easing;
	uint64_t look_ns;
	bool eases; /* there were some since the last look */
};

/* A one-sided operation for a page. */
struct image_op {
	struct net_op op;
	struct image_op *next; /* of the spare ones */
	struct cluster *d;
	struct dpage *p;
	void *buffer; /* the image, where it is not in a frame */
	/* of one that is read: who has it, its checksum, and how often it came otherwise */
	unsigned from;
	uint32_t sum;
	unsigned failures;
	uint64_t epoch; /* of the cluster, that it belongs to */
};

/* ---- the cluster's epoch (cluster_view.c) ------------------------------------------------ */

enum link { LINK_DOWN, LINK_NEW, LINK_JOINED }; /* NEW: has not said its epoch yet */

struct member {
	uint8_t link;      /* enum link */
	bool lost;         /* was JOINED, and no epoch has begun since then */
	uint64_t entered;  /* the last epoch that it said it is in */
	uint64_t reported; /* the last in which it has reported all to this home */
};

struct view {
	struct rt_mutex lock;   /* of what is not atomic, and of changes */
	_Atomic uint32_t word;  /* changes when there may be something to do */
	_Atomic uint64_t epoch; /* changes with all partitions locked, too */
	/* the last epoch in which this node has done that */
	uint64_t closed, reported, rebuilt, readied;
	struct member member[PAGE_NODES_MAX];
	_Atomic node_map joined;  /* who hears of this epoch what is sent in it */
	_Atomic node_map within;  /* who has, be its link lost since; and this node */
	_Atomic node_map heard;   /* who has reported to this node in this epoch */
	_Atomic node_map ready;   /* homes that have rebuilt in this epoch */
	_Atomic node_map unheard; /* who never reported to this node since it started */
	_Atomic node_map left; /* who has nothing, and has had no link since it said so */
	_Atomic node_map
		dead; /* whose frames are gone, and has had no link since; its log is not known */
	_Atomic node_map resumed; /* homes of `ready` for which what waited has gone on */
	/* all that are joined have reported in this epoch: pages are rebuilt */
	_Atomic bool rebuilding;
	/* pages of this shard that READY waits for: they are being opened, or reinstated */
	_Atomic uint32_t awaited;
	uint64_t look_ns; /* for links that were lost; RT_FOREVER: there is none */
	/* for people: durations are under the lock, pages are counted by whoever has one */
	uint64_t began_ns, served_ns, resumed_ns;
	_Atomic uint64_t pages_reported, pages_heard, pages_rebuilt;
};

struct cluster {
	struct coherence base;
	struct coherence_cluster_options o;
	struct partition partition[PAGE_PARTITIONS];
	uint32_t buckets; /* of each; a power of two */
	struct {
		uint8_t *base;
		size_t size;
	} area[AREAS_MAX];
	unsigned areas;
	_Atomic uint32_t epoch_floor; /* no forgotten entry's was higher */
	_Atomic uint32_t next_request;
	_Atomic bool started; /* others may have pages: not before recovery has ended */
	_Atomic bool stopping;
	_Atomic bool failed; /* given up: what needs others fails */
	_Atomic bool lends;  /* this home leaves: others may only read its pages */
	struct view view;
	struct job_queue home_jobs, persist_jobs;
	struct giver_list givers;
	struct rt_task *task[HOME_TASKS + PERSIST_TASKS + GIVER_TASKS + 1];
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

/* ---- cluster_record.c: their table ------------------------------------------------------ */

/* `buckets` of each partition, a power of two. */
int page_table_open(struct cluster *d, uint32_t buckets);
void page_table_close(struct cluster *d);
/* Locks the page's partition; its record, awake, or NULL. */
struct dpage *page_lock(struct cluster *d, page_id pid);
/* Makes one, under the lock. NULL: no memory, or no such shard. */
struct dpage *page_new(struct cluster *d, page_id pid);
/* Takes one that says nothing out, and frees it. */
void page_forget(struct cluster *d, struct dpage *p);
/* Puts the record of a page that is not busy to rest, if it may: whoever has it locked must not
 * look at it any more. */
void page_rest(struct cluster *d, struct dpage *p);
void page_partition_unlock(struct cluster *d, page_id pid);
/* Calls fn for each record, its partition locked, and settles it after. */
void page_each(struct cluster *d,
	void (*fn)(struct cluster *d, struct dpage *p, void *arg), void *arg);
/* The same with all partitions locked; settles nothing. */
void page_each_locked(struct cluster *d, void (*fn)(struct cluster *d, struct dpage *p));
/* The same, of pages with which something goes on: not those that are at rest. */
void page_each_awake(struct cluster *d, void (*fn)(struct cluster *d, struct dpage *p));
void page_all_lock(struct cluster *d);
void page_all_unlock(struct cluster *d);

/* ---- cluster_rest.c: records at rest ----------------------------------------------------- */

/* Does what is kept at rest say all that the record says? Of a page that is not busy. */
bool rest_may(const struct dpage *p);
/* From the one into the other; neither changes the `record` it begins with. `p`: zeros before. */
void rest_from(struct page_rest *r, const struct dpage *p);
void rest_into(struct dpage *p, const struct page_rest *r);

/* ---- cluster_page.c: records ----------------------------------------------------------- */

/* Is something under way that has, or will look for, the record? */
bool page_busy(const struct dpage *p);
/* Does what has become possible, forgets a record that says nothing. It may be gone then, or at
 * rest. */
void page_settle(struct cluster *d, struct dpage *p);
/* The same, and unlocks; what was sent goes out. */
void page_unlock(struct cluster *d, page_id pid, struct dpage *p);
/* The same, and more follows, page_unlock or net_flush at the end. From the network's
 * handlers: it does that by itself. */
void page_unlock_more(struct cluster *d, page_id pid, struct dpage *p);
/* What was deferred is forgotten. */
void page_forget_deferred(struct dpage *p);
void page_defer(struct cluster *d, struct dpage *p, const struct page_message *m);
/* Finds out whose a page of this shard is, at once (`has_entry`) or soon (`opening`: what
 * comes meanwhile is deferred). 0 or -ENOMEM. `m`: to be delivered next, or NULL. */
int page_open(struct cluster *d, struct dpage *p, const struct page_message *m);
/* Always soon. */
int page_open_later(struct cluster *d, struct dpage *p);
void page_opened(struct cluster *d, struct dpage *p, const struct coherence_image *image);

/* ---- cluster_event.c: what happens to a page ------------------------------------------- */

/* A message for the page, from `m->sender`, which may be this node. */
void page_deliver(struct cluster *d, struct dpage *p, const struct page_message *m);
/* Can what the message takes from the frame be taken now? Then it is out of use. *busy: the
 * kernel is to drop it first. */
bool page_give_ready(
	struct cluster *d, struct dpage *p, const struct page_message *m, bool *busy);
/* What the frame says of its image, for the hold. */
void page_take_image(
	struct cluster *d, struct dpage *p, const struct coherence_image *image);
/* Performs actions that came of a message (NULL: of a call). */
void page_perform(struct cluster *d, struct dpage *p, const struct page_message *cause,
	const struct page_actions *out);
/* The frame's image is not needed by operations any more. */
void page_frame_free(struct cluster *d, struct dpage *p);
/* Has a giver look after the page's deferred asks. */
void page_give_later(struct cluster *d, struct dpage *p);
/* What is deferred is delivered when the kernel has dropped what it has of the page: `eased`. */
void page_ease_later(struct cluster *d, struct dpage *p);
void page_ease_end(struct cluster *d, struct dpage *p);
/* A frame that was made INVALID for somebody, but stays. */
void frame_stays(struct cluster *d, struct dpage *p);
/* The hold has ended: so does the frame. */
void frame_dropped(struct cluster *d, struct dpage *p);
void giver_main(void *arg);

/* ---- cluster_request.c: what the cache asks -------------------------------------------- */

extern const struct coherence_ops cluster_ops;
/* What arrived counts as used, if something did: others may have it. */
void page_used(struct cluster *d, struct dpage *p);
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

/* ---- cluster_view.c: the cluster's epoch ------------------------------------------------- */

void view_open(struct cluster *d);
void view_main(void *arg);
/* By the view's task, which is woken for it: has the log failed? Then gives up. */
void cluster_log_look(struct cluster *d);
void view_message(struct cluster *d, unsigned node, const struct page_message *m);
void view_link(struct cluster *d, unsigned node, bool up);
int view_left(struct cluster *d, unsigned node);
void view_vacant(struct cluster *d, unsigned node);
void view_dead(struct cluster *d, unsigned node);
void view_wake(struct cluster *d);
/* Under the page's lock it stands still. */
static inline uint64_t view_epoch(const struct cluster *d)
{
	return atomic_load_explicit(&d->view.epoch, memory_order_relaxed);
}
/* Does the node hear what is sent to it in this epoch? */
static inline bool view_joined(const struct cluster *d, unsigned node)
{
	return atomic_load_explicit(&d->view.joined, memory_order_acquire) &
	       node_bit(node);
}
/* Has the node heard nothing of this epoch? What others do here does not name it, then. */
static inline bool view_without(const struct cluster *d, unsigned node)
{
	return !(atomic_load_explicit(&d->view.within, memory_order_acquire) &
		 node_bit(node));
}
/* Who does not hear what is sent to them now: also nodes that this one does not know yet. */
static inline node_map view_unheard(const struct cluster *d)
{
	return ~node_bit(d->o.self) &
	       ~atomic_load_explicit(&d->view.joined, memory_order_acquire);
}
/* Has the home rebuilt its entries: may anything but reports be sent to it? */
static inline bool view_ready(const struct cluster *d, unsigned home)
{
	return atomic_load_explicit(&d->view.ready, memory_order_acquire) &
	       node_bit(home);
}
/* Does this node know of all members what they have of its shard? */
static inline bool view_all_heard(const struct cluster *d)
{
	return !atomic_load_explicit(&d->started, memory_order_relaxed) ||
	       !atomic_load_explicit(&d->view.unheard, memory_order_acquire);
}

/* ---- cluster_rebuild.c: reports and entries, in a new epoch --------------------------------- */

/* What this record says of things under way is void; under all partitions' locks. */
void page_enter(struct cluster *d, struct dpage *p);
/* All have heard of the epoch: frames may be used again. */
void page_close(struct cluster *d, struct dpage *p);
/* Reports of what this node has of pages of others, to those of them that are joined. 0;
 * -EAGAIN: the epoch has changed. Waits. */
int report_all(struct cluster *d, uint64_t epoch);
/* What a bucket's pages are, to be reported: adds to *list, which may move. */
struct report_list {
	unsigned count, room;
	struct page_message *m;
	uint8_t *to;
};
/* Adds the reports of all pages in bucket `at` (below PAGE_PARTITIONS * d->buckets). 0,
 * -ENOMEM (none was added), -EAGAIN (another epoch). (cluster_record.c) */
int page_bucket_reports(
	struct cluster *d, unsigned at, uint64_t epoch, struct report_list *list);
/* Room for two more. */
int report_list_grow(struct report_list *list);
void report_page(const struct dpage *p, struct report_list *list);
/* REPORT, at the home; REINSTATE, at who has the image. */
int rebuild_report(struct cluster *d, struct dpage *p, const struct page_message *m);
int rebuild_reinstate(struct cluster *d, struct dpage *p, const struct page_message *m,
	struct page_actions *out);
/* All reports are in: makes the page's entry, if that can be. */
void page_rebuild(struct cluster *d, struct dpage *p);
/*
 * Returns the nodes that are away and without which the page's entry cannot be made; 0: the
 * entry is there, or will be soon.
 */
node_map rebuild_awaits(const struct cluster *d, const struct dpage *p);
/* The page has been opened, and cannot do without reports. */
void page_rebuild_opened(struct cluster *d, struct dpage *p);
/* The node is away: what it was asked to reinstate is not waited for. */
void rebuild_without(struct cluster *d, struct dpage *p, unsigned node);
/* An event has changed the entry: who may have the page? */
void page_note_may(struct dpage *p);

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
/* Returns true if the message announces no image, or the one that its sender had. If not, the
 * link is cut: the message counts as lost with it, and nothing may be done that it says. */
bool wire_image_whole(
	struct cluster *d, const struct dpage *p, const struct page_message *m);
/* Returns true if what was read of the node is what it had; else that is counted. */
bool wire_read_whole(struct cluster *d, unsigned node, const void *image, uint32_t sum);
/* What is read of the node is never what it had. */
void wire_image_cut(struct cluster *d, unsigned node);
/* Under the page's lock. NULL: no memory. (cluster_record.c) */
struct image_op *image_op_take(struct cluster *d, struct dpage *p);
void image_op_put(struct image_op *x);
void wire_cut(struct cluster *d, unsigned node, int error, const char *why,
	const struct page_message *m);

#endif
