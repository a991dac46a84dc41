/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The internal header of the driver: for the files of this folder only.
 *
 * A page's record changes under the lock of the page's partition. A message or a call changes it
 * (page_deliver, page_perform) and queues the messages that follow to the links. Then page_unlock
 * does all work that has become possible. Under the lock nothing waits, with two exceptions. One is
 * the latch of a frame that is LEAVING, which no task keeps. The other is memory for expanding a
 * record. A task may hold a frame's latch when it takes the lock. Under the lock latches are only
 * tried.
 *
 * The cluster epoch changes with all partitions locked, so it is constant under the lock of one.
 * The view's lock comes before those of partitions.
 */
#ifndef WEFT_DRIVER_INTERNAL_H
#define WEFT_DRIVER_INTERNAL_H

#include "engine/coherence/driver/driver.h"
#include "engine/coherence/protocol/protocol.h"
#include "engine/common/racy.h"
#include "engine/log/log.h"

#include <errno.h>
#include <string.h>

_Static_assert(COHERENCE_NO_NODE == NODE_NONE, "no node");
_Static_assert(PAGE_MESSAGE_END - PAGE_MESSAGE_FIRST <= COHERENCE_MESSAGES_MAX, "counters");

#define PAGE_PARTITIONS 64u
#define PAGE_BUCKETS    16u  /* of a partition, at least */
#define PAGE_RUN        16u  /* pages in a row that share a row of the table */
#define PAGE_CHUNK      32u  /* records that are allocated together */
#define CHUNKS_IDLE     4u   /* empty chunks that are kept, for each kind and partition */
#define ROWS_SPARE      16u  /* spare rows of a partition, at most */
#define DEFERRED_MAX    256u /* for each page: an ask, a shipment and a request of each node */
#define HOME_TASKS      4u
#define PERSIST_TASKS   2u
#define JOBS_PER_TASK   64u /* if more wait, another task is woken */
#define PERSIST_BATCH   256u /* images that a persist task writes together */
#define REVOKER_TASKS   2u
#define ROOM_LOOK_EVERY 16u /* requests of a call between two checks */
#define DISCARD_RUNS    256u /* runs of freed pages that wait to be told */
#define AREAS_MAX       8u
#define HOME_REGION     8u  /* id of the network's memory for images on their way (image_pool) */
#define HOME_IMAGES_PER 32u /* it has one image for so many frames, and between */
#define HOME_IMAGES_MIN 64u
#define HOME_IMAGES_MAX 1024u
#define REVOKE_POLL_NS  20000ull
#define INVALIDATION_CHECK_NS                                                            \
	10000000ull /* interval of the checks for a lost `kernel_invalidated` */
#define INVALIDATION_CHECK_MAX   32u
#define ARRIVED_NS      1000000ull    /* a page waits so long for its first use */
#define UNUSED_NS       1000000000ull /* a page is not evicted before its first use for so long */
#define LOST_NS         500000000ull  /* a link may be down so long before a new epoch */

/* A call that waits for several pages. It lies on the caller's stack. The task that ends it does so
 * under a lock, which the caller takes before it returns. */
struct batch {
	_Atomic uint32_t left;
	unsigned count;
	unsigned likely; /* the node that will probably answer; NODE_NONE: any */
};

/* A request of this node for a page. It has the page's frame latched. */
struct pending_request {
	struct coherence_request *request;
	struct batch *batch;
	bool asked;
	bool done;
	bool filled; /* the frame has the reinstated image, to be shared */
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

/* The source of a granted image. */
enum got { GOT_HELD, GOT_PEER, GOT_STORE, GOT_ZEROS };

/* The first part of a record of any kind. */
struct record {
	struct record_chunk *chunk;
	struct record *next; /* next free record of its chunk */
};

/* The home's work on a page of this shard. One at a time. */
enum record_work {
	WORK_NONE,
	WORK_OPENING,    /* the entry is being made from the store and the frame */
	WORK_PERSISTING, /* by frames->persist: this node may not become a writer */
	WORK_STORING,    /* the same, and a new epoch does not end it any more */
};

/* States of the page's frame. Several may hold at once. */
#define RECORD_LEAVING    (1u << 0) /* it was made INVALID for a node that requested the page */
#define RECORD_RELEASING  (1u << 1) /* the cache frees it itself */
#define RECORD_LOST       (1u << 2) /* there should be one: the image is lost */
#define RECORD_KEEP_OWED  (1u << 3) /* the image stays owed when the hold ends */
#define RECORD_VACATE     (1u << 4) /* it is vacated when no operation reads it any more */
#define RECORD_VACATE_OWE (1u << 5) /* with VACATE: its image is kept as owed */

/* The state of a page at this node, as a possible holder and as the page's home. */
struct page_record {
	/* the first lines of memory: fields that each event reads */
	_Alignas(64) struct record record;
	struct page_at at;
	struct pending_request *pending;
	struct deferred *deferred;
	uint16_t deferred_count;
	uint16_t reinstating; /* the node that was asked to reinstate; NODE_NONE */
	uint8_t got;      /* enum got: source of the last granted image */
	uint8_t work;     /* enum record_work */
	uint8_t frame;    /* RECORD_* */
	bool asked_evict; /* the EVICT of `evicting` has been sent */
	bool has_entry;
	bool replay;
	bool revoking;              /* in the revoker's list */
	/* in the list of pages that await `kernel_invalidated` */
	bool awaiting_invalidation;
	bool unsettled; /* nodes not yet in the epoch may still write its frame */
	bool reported; /* other nodes reported it in this epoch, in `rebuild` */
	bool awaited;  /* counted in view.awaited */
	bool readied; /* its frame was revoked for the message delivered next */
	bool unmade; /* no entry is known to exist since this node's start */
	/* the second line */
	struct batch *evicting; /* the eviction under way */
	struct ship_wait *ships;
	unsigned refs; /* references by jobs and the revoker's list */
	unsigned ops;  /* operations under way that read the page's frame */
	uint64_t arrived_ns;
	_Atomic uint64_t revoke_ns; /* in the revoker's list: do not try before this time */
	struct page_hold hold;
	struct home_entry entry;
	/* nodes that were granted the page and may still have something of it; never too few. For
	 * pages of this shard, kept over changes of the epoch. */
	node_map may;
	/* of `may`: nodes that may have changed the page since it was last persisted, or have the
	 * image of such a node; never too few */
	node_map changed;
	/* nodes that reported the page shared in this epoch and are away since: their reports are
	 * void */
	node_map report_void;
	/* while it is opening: the state in the store */
	uint64_t stored_incarnation, stored_version;
	uint64_t flush_to;
	/* the remaining fields are seldom read */
	struct deferred **deferred_end;
	struct page_record *revoker_next;
	struct page_record *awaiting_next, **awaiting_link;
	uint64_t awaiting_ns; /* start of the wait */
	struct page_row *row;
	struct home_rebuild rebuild;
};

static inline void record_set(struct page_record *p, unsigned frame)
{
	p->frame |= (uint8_t)frame;
}

static inline void record_clear(struct page_record *p, unsigned frame)
{
	p->frame &= (uint8_t)~frame;
}

/* Returns true if an image of the page is being persisted here. */
static inline bool record_persists(const struct page_record *p)
{
	return p->work >= WORK_PERSISTING;
}

/* The state of a page without work under way: one line of memory, instead of the seven of struct
 * page_record. The fields are copied from the page's hold and record. */
struct page_compact {
	_Alignas(64) struct record record;
	uint64_t place, incarnation, version, flush_to;
	uint32_t epoch, request;
	uint16_t served, flags;
	uint16_t home;
	uint8_t got;
	uint8_t hold : 2;
	bool has_entry : 1, unmade : 1;
	uint8_t mode : 2; /* this and the next are copied from the entry */
	bool current : 1;
};
_Static_assert(sizeof(struct page_compact) == CACHE_LINE, "a line");

/* The same for a page of this shard. The other fields are copied from its entry and record. */
struct page_compact_home {
	struct page_compact compact;
	node_map holders, owing, may, changed;
	uint64_t incarnation, stored_incarnation, stored_version;
	uint32_t epoch;
	uint16_t copies;
	uint16_t source;
};
_Static_assert(sizeof(struct page_compact_home) == 2 * CACHE_LINE, "two lines");

enum record_kind { RECORD_EXPANDED, RECORD_COMPACT, RECORD_COMPACT_HOME, RECORD_KINDS };

/* Records of one kind and partition. Records of neighbouring pages lie side by side. */
struct record_pool {
	struct record_chunk *chunks; /* chunks with a free record */
	unsigned idle;               /* of these: chunks without a used one */
	unsigned all;                /* all chunks */
	uint32_t used;               /* used records */
};

struct partition {
	_Alignas(64) struct rt_mutex lock;
	struct page_row **bucket;
	struct page_row *rows; /* spare rows */
	unsigned rows_spare, rows_all;
	struct record_pool pool[RECORD_KINDS];
	struct image_op *spare; /* at most the number that was under way at once */
};

/* Work that waits for the store or for a peer. */
enum job_kind { JOB_OPEN, JOB_STORE, JOB_PERSIST };
struct job {
	struct job *next;
	enum job_kind kind;
	struct page_record *p;
	unsigned node;       /* JOB_STORE: the receiver */
	uint64_t place;      /* JOB_STORE: the place there */
	uint64_t epoch;      /* the cluster epoch that it belongs to */
	uint64_t failing_ns; /* JOB_PERSIST: time since the device refuses it; 0: it does not */
	unsigned failures;   /* JOB_PERSIST: consecutive reads with a wrong checksum */
	struct page_message m;
};

/* Jobs, and the tasks that do them. While a task works, jobs gather for its next batch. */
struct job_queue {
	struct rt_mutex lock; /* a leaf lock */
	_Atomic uint32_t word;
	struct job *first, **end;
	unsigned count, tasks;
	_Atomic uint32_t asleep; /* tasks that wait for jobs */
	bool woken;              /* a task was woken, and has taken no jobs yet */
};

/* Memory for images on their way between this home's store and other nodes. The first `pages` are
 * taken and given back one by one. Behind them each persist task has a batch. */
struct image_pool {
	struct rt_mutex lock;  /* a leaf lock */
	uint8_t *base;         /* NULL: this node is no home */
	uint32_t pages, count; /* in all; spare */
	uint32_t *spare;       /* indices */
	_Atomic uint32_t batches; /* those taken */
};

struct revoker_list {
	struct rt_mutex lock; /* a leaf lock */
	_Atomic uint32_t word;
	_Atomic uint32_t invalidated; /* changes when a failed try may succeed */
	_Atomic uint32_t polling;     /* revokers that wait for it */
	struct page_record *first, **end;
	/* pages deferred until the kernel has dropped something, and the time of the next check.
	 * RT_FOREVER: there were none for a while */
	struct page_record *awaiting_invalidation;
	uint64_t look_ns;
	bool awaited_lately; /* the list was not empty since the last check */
};

/* Pages in a row that were freed, in one incarnation. */
struct discard_run {
	page_id pid;
	uint64_t incarnation;
	unsigned count;
};

/* Freed pages that other nodes are to be told of: a ring. */
struct discard_list {
	struct rt_mutex lock; /* a leaf lock */
	_Atomic uint32_t word; /* changes when the list is empty no more */
	unsigned first, count;
	struct discard_run run[DISCARD_RUNS];
};

/* A one-sided operation for a page. */
struct image_op {
	struct net_op op;
	struct image_op *next; /* in the list of spare ones */
	struct page_driver *d;
	struct page_record *p;
	void *buffer; /* the image, if it is not in a frame */
	/* of an image that is read: the node that has it, its checksum, and the failed reads */
	unsigned from;
	uint32_t sum;
	unsigned failures;
	uint64_t epoch; /* the cluster epoch that it belongs to */
};

/* ---- the cluster epoch (epoch.c) --------------------------------------------------- */

/* GREETING: the node has not sent its epoch over this link yet. */
enum link { LINK_AWAY, LINK_GREETING, LINK_CONNECTED };

struct member {
	uint8_t link;           /* enum link */
	bool epoch_due;         /* its link was lost, and no epoch has begun since */
	bool had_left;          /* GREETING: it had left before this link came up */
	uint64_t entered_epoch; /* the last epoch that the node said it is in */
	uint64_t reported_epoch; /* the last epoch in which it has reported all pages to this
				  * home */
};

struct view {
	struct rt_mutex lock;   /* for fields that are not atomic, and for all changes */
	_Atomic uint32_t word;  /* changes when the view's task may have work */
	_Atomic uint64_t epoch; /* changes with all partitions locked, too */
	/* the last epoch in which this node has done each step */
	uint64_t closed_epoch, reported_epoch, rebuilt_epoch, ready_epoch;
	struct member member[PAGE_NODES_MAX];
	bool rebuild_anew; /* pages wait for a node that has turned out to have nothing */
	node_map homes;    /* nodes with a shard; constant */
	/* the states of other nodes: docs/glossary.md has the table */
	_Atomic node_map connected;  /* both ends of the link are in this epoch, or will be */
	_Atomic node_map in_epoch;   /* this node, and nodes connected at any time in this epoch */
	_Atomic node_map reported;   /* nodes that have reported to this one in this epoch */
	_Atomic node_map ready;      /* homes that have rebuilt their entries in this epoch */
	_Atomic node_map unreported; /* members that never reported to this start of this node */
	_Atomic node_map left;       /* left, vacant, or no members: have nothing of this shard */
	_Atomic node_map dead;       /* nodes without frames; their logs' contents are not known */
	_Atomic node_map resumed;    /* of `ready`: this node has sent them all that waited */
	/* nodes without a link that a page of this node waits for: they were to be asked for it */
	_Atomic node_map unasked;
	/* all connected nodes have reported in this epoch: pages are rebuilt */
	_Atomic bool rebuilding;
	/* pages of this shard that READY waits for: they are being opened, or reinstated */
	_Atomic uint32_t awaited;
	/* next check for lost links; RT_FOREVER: there are none */
	_Atomic uint64_t look_ns;
	/* for people: durations are under the view's lock; the counts of pages are atomic */
	uint64_t began_ns, served_ns, resumed_ns;
	_Atomic uint64_t pages_reported, pages_received, pages_rebuilt;
};

#define TAKEN_PAGES 1024u

struct page_driver {
	struct coherence base;
	struct coherence_options o;
	struct partition partition[PAGE_PARTITIONS];
	uint32_t buckets; /* of each partition; a power of two */
	struct {
		uint8_t *base;
		size_t size;
	} area[AREAS_MAX];
	unsigned areas;
	_Atomic uint32_t epoch_floor; /* at least the epoch of each forgotten entry */
	_Atomic uint32_t next_request;
	_Atomic bool started; /* other nodes may have pages: not before recovery has ended */
	_Atomic bool stopping;
	_Atomic bool failed; /* given up: all that needs other nodes fails */
	_Atomic bool lends;  /* this home leaves: other nodes may only read its pages */
	struct view view;
	struct job_queue home_jobs, persist_jobs;
	struct image_pool images;
	struct revoker_list revokers;
	/* by a hash, pages that other nodes have taken from this one's frames, and that this node
	 * has not changed, or read, since; 0: none. Of two pages in one place one is forgotten */
	struct taken {
		_Atomic page_id to_change, to_read;
	} taken[TAKEN_PAGES];
	struct discard_list discards;
	struct rt_task *task[HOME_TASKS + PERSIST_TASKS + REVOKER_TASKS + 2];
	unsigned tasks;
	struct coherence_counters counters;
};

#define DCOUNT(d, field)                                                                 \
	atomic_fetch_add_explicit(&(d)->counters.field, 1, memory_order_relaxed)

static inline struct page_driver *driver_of(struct coherence *c)
{
	return container_of(c, struct page_driver, base);
}

static inline struct taken *taken_place(struct page_driver *d, page_id pid)
{
	return &d->taken[(pid * 0x9e3779b97f4a7c15ull >> 32) % TAKEN_PAGES];
}

/* Notes that another node takes a right to the page from this node. */
static inline void taken_note(struct page_driver *d, page_id pid)
{
	struct taken *t = taken_place(d, pid);

	atomic_store_explicit(&t->to_change, pid, memory_order_relaxed);
	atomic_store_explicit(&t->to_read, pid, memory_order_relaxed);
}

/* The calling task requests the page. Counts it for the task if another node had taken it. */
static inline void taken_back(struct page_driver *d, page_id pid, bool to_change)
{
	struct taken *t = taken_place(d, pid);
	_Atomic page_id *place = to_change ? &t->to_change : &t->to_read;

	if (atomic_load_explicit(place, memory_order_relaxed) != pid)
		return;
	atomic_store_explicit(place, 0, memory_order_relaxed);
	rt_task_retakes(to_change);
}

/* ---- functions of other files in its tables (coherence.h, peers.h) ---------------------- */

extern const struct coherence_peers_ops driver_peers_ops;                      /* driver.c */
int driver_memory(struct coherence *c, unsigned area, size_t size_bytes, void **out);
void driver_message(
	struct coherence *c, struct net_peer *peer, const struct net_message *in); /* wire.c */
void driver_change(struct coherence *c, struct coherence_change *out);             /* epoch.c */
/* record_table.c */
void driver_records(struct coherence *c, struct coherence_records *out);
bool driver_directory(struct coherence *c, page_id pid, struct coherence_directory *out);
uint64_t driver_awaited(struct coherence *c, page_id pid);

/* Logs the state of the page. (driver.c) */
void page_dump(const struct page_driver *d, const struct page_record *p);

/* ---- record_table.c: the table of records --------------------------------------------- */

/* Open the table with `buckets` (a power of two) in each partition, and close it. */
int page_table_open(struct page_driver *d, uint32_t buckets);
void page_table_close(struct page_driver *d);
/* Locks the page's partition. Returns the page's record, expanded, or NULL. */
struct page_record *page_lock(struct page_driver *d, page_id pid);
/* Locks the partition of a record again. Its `refs` is not 0. */
void page_relock(struct page_driver *d, struct page_record *p);
/* Waits until the task that now has the partition locked has unlocked it. Settles the page. */
void page_await_unlock(struct page_driver *d, page_id pid);
/* Makes a record, under the lock. Returns NULL if there is no memory, or no such shard. */
struct page_record *page_new(struct page_driver *d, page_id pid);
/* Removes a record without content from the table, and frees it. */
void page_forget(struct page_driver *d, struct page_record *p);
/* Makes the record compact if that is possible. The page is not busy. The caller has the page
 * locked, and must not use the record afterwards. */
void page_compact(struct page_driver *d, struct page_record *p);
void page_partition_unlock(struct page_driver *d, page_id pid);
/* Calls fn for each record with its partition locked, and settles it afterwards. */
void page_each(struct page_driver *d,
	void (*fn)(struct page_driver *d, struct page_record *p, void *arg), void *arg);
/* Works as page_each, but only for expanded records. */
void page_each_busy(struct page_driver *d,
	void (*fn)(struct page_driver *d, struct page_record *p, void *arg), void *arg);
/* Returns true if this node has, owes or requests a page of the home. */
bool page_any_of(struct page_driver *d, unsigned home);
/* Works as page_each, but with all partitions locked. Settles nothing. */
void page_each_locked(
	struct page_driver *d, void (*fn)(struct page_driver *d, struct page_record *p));
/* Works as page_each_locked, but only for expanded records. */
void page_each_expanded(
	struct page_driver *d, void (*fn)(struct page_driver *d, struct page_record *p));
void page_all_lock(struct page_driver *d);
void page_all_unlock(struct page_driver *d);

/* ---- record_compact.c: compact records ----------------------------------------------------- */

/* Returns true if a compact record can hold the state of this one. The page is not busy. */
bool may_compact(const struct page_record *p);
/* Copy one form into the other, but not the `record` at its start. `p` is zeros before. */
void compact_from(struct page_compact *r, const struct page_record *p);
void compact_into(struct page_record *p, const struct page_compact *r);

/* ---- record.c: records ----------------------------------------------------------- */

/* Returns true if work under way refers to the record, or will look it up. */
bool page_busy(const struct page_record *p);
/* Does all work that has become possible, and forgets a record without content. The record may be
 * freed or compact afterwards. */
void page_settle(struct page_driver *d, struct page_record *p);
/* Settles the page, unlocks it, and sends the queued messages. */
void page_unlock(struct page_driver *d, page_id pid, struct page_record *p);
/* Works as page_unlock, but sends later: when page_unlock or net_flush follows. After a handler of
 * the network no such call is needed. */
void page_unlock_more(struct page_driver *d, page_id pid, struct page_record *p);
/* Drops all deferred messages of the page. */
void page_forget_deferred(struct page_record *p);
void page_defer(struct page_driver *d, struct page_record *p, const struct page_message *m);
/* Refuses the deferred requests of a page without an entry. Other messages stay deferred. */
void page_refuse_requests(struct page_driver *d, struct page_record *p, int error);
/* Finds the state of a page of this shard: at once (`has_entry`) or soon (`opening`). Messages that
 * come meanwhile are deferred. `m`: the message to deliver next, or NULL. Returns 0 or -ENOMEM. */
int page_open(struct page_driver *d, struct page_record *p, const struct page_message *m);
/* Works as page_open, but always soon. */
int page_open_later(struct page_driver *d, struct page_record *p);
void page_opened(struct page_driver *d, struct page_record *p, const struct coherence_image *image);

/* ---- deliver.c: events of a page -------------------------------------------------- */

/* Delivers a message for the page. m->sender may be this node. */
void page_deliver(struct page_driver *d, struct page_record *p, const struct page_message *m);
/* Revokes the right that the message takes from the frame. Returns true if that is done: the frame
 * is then out of use. *busy: the kernel must drop the page first. */
bool page_revoke_ready(
	struct page_driver *d, struct page_record *p, const struct page_message *m, bool *busy);
/* Returns the state of the frame's image, in the protocol's terms. */
struct frame_image page_frame_image(
	const struct page_driver *d, const struct coherence_image *image);
/* Takes the state of the frame's image into the hold. */
void page_take_image(
	struct page_driver *d, struct page_record *p, const struct coherence_image *image);
/* Performs the actions that follow a message, or a call if `cause` is NULL. */
void page_perform(struct page_driver *d, struct page_record *p, const struct page_message *cause,
	const struct page_actions *out);
/* Vacates the frame if that is due and no operation reads it. */
void page_frame_free(struct page_driver *d, struct page_record *p);
/* Gives a frame its right back. It was made INVALID for a requester, but its page stays. */
void frame_stays(struct page_driver *d, struct page_record *p);
/* Drops the frame, because the hold has ended. */
void frame_dropped(struct page_driver *d, struct page_record *p);

/* ---- revoker.c: revocations that are done later ---------------------------------------- */

/* Makes a revoker try the page's deferred messages again. Never waits. */
void page_revoke_later(struct page_driver *d, struct page_record *p);
/* Begin and end the page's wait for `kernel_invalidated`. Its deferred messages are delivered at
 * the end. Never wait. */
void page_await_invalidation(struct page_driver *d, struct page_record *p);
void page_invalidation_end(struct page_driver *d, struct page_record *p);
/* Makes pausing revokers try again now. Never waits. */
void revokers_retry(struct page_driver *d);
void revoker_main(void *arg);

/* ---- acquire.c: requests of the cache ------------------------------------------ */

extern const struct coherence_ops driver_ops;
/* Counts an arrived page as used, so that other nodes may have it. Does nothing for others. */
void page_used(struct page_driver *d, struct page_record *p);
/* Begins the page's pending request, if that is allowed now. */
void pending_start(struct page_driver *d, struct page_record *p);
void pending_done(struct page_driver *d, struct page_record *p, int result);
void batch_one_done(struct page_driver *d, struct batch *b);
/* The page's home says that the page was freed in this incarnation. Drops a shared copy of this or
 * an earlier one, unless something is under way with the page. */
void page_drop_freed(struct page_driver *d, struct page_record *p, uint64_t incarnation);
/* Ends an eviction: the home has answered it, and the hold has taken the answer in. */
void evict_answered(struct page_driver *d, struct page_record *p, bool accepted);
void ships_persisted(struct page_driver *d, struct page_record *p, uint64_t incarnation,
	uint64_t version, int result);

/* ---- home_jobs.c: jobs of the home, and memory for their images --------------------------- */

/* Queues work on the page. Returns 0 or -ENOMEM. */
int job_later(struct page_driver *d, struct page_record *p, enum job_kind kind, unsigned node,
	uint64_t place, const struct page_message *m);
void job_put(struct job_queue *q, struct job *j);
/* Takes the first jobs, `max` at most. Returns their number. */
unsigned jobs_take(struct job_queue *q, struct job **jobs, unsigned max);
/* Waits for jobs. `word`: q->word before jobs_take found none. */
void jobs_wait(struct job_queue *q, uint32_t word);
/* Locks the page of a job, and returns its record. */
struct page_record *job_page(struct page_driver *d, struct job *j);
/* Make and free the memory. `frames`: those of the cache. Returns 0 or a negative errno. */
int home_images_open(struct page_driver *d, uint32_t frames);
void home_images_close(struct page_driver *d);
/* Takes memory for an image; NULL: there is none. home_image_put gives it back. */
void *home_image_take(struct page_driver *d);
void home_image_put(struct page_driver *d, void *image);
/* Returns memory for PERSIST_BATCH images in a row, for a persist task. NULL: this node is no
 * home. */
void *home_images_take_batch(struct page_driver *d);

/* ---- home_reads.c, home_persists.c: tasks that do the jobs --------------------------------- */

void home_main(void *arg);
void persist_main(void *arg);

/* ---- home_evict.c: pages that the home takes over ------------------------------------------ */

int home_evict(struct page_driver *d, struct page_record *p, const struct page_message *m,
	struct page_actions *out);
void home_pull(struct page_driver *d, struct page_record *p, const struct page_action *a);

/* ---- discard.c: freed pages ------------------------------------------------------------------ */

/* The function of coherence.h. */
void driver_freed(struct coherence *c, page_id pid, uint64_t incarnation, unsigned count);
/* Handles DISCARD. Never waits. */
void discard_message(struct page_driver *d, const struct page_message *m);
void discard_main(void *arg);

/* ---- epoch.c: the cluster epoch --------------------------------------------------- */

void view_open(struct page_driver *d);
void view_main(void *arg);
/* Gives up if the log has failed. Called by the view's task, which is woken for it. */
void driver_log_check(struct page_driver *d);
void view_message(struct page_driver *d, unsigned node, const struct page_message *m);
void view_link(struct page_driver *d, unsigned node, bool up);
int view_left(struct page_driver *d, unsigned node);
void view_vacant(struct page_driver *d, unsigned node);
void view_dead(struct page_driver *d, unsigned node);
void view_wake(struct page_driver *d);
/* Notes that a page waits for a node, without a link, that could not be asked for it. Called under
 * the page's lock. */
void view_unasked(struct page_driver *d, unsigned node);
/* Returns the cluster epoch. It is constant under a page's lock. */
static inline uint64_t view_epoch(const struct page_driver *d)
{
	return atomic_load_explicit(&d->view.epoch, memory_order_relaxed);
}
/* Returns true if the node receives messages that are sent to it in this epoch. */
static inline bool view_connected(const struct page_driver *d, unsigned node)
{
	return atomic_load_explicit(&d->view.connected, memory_order_acquire) &
	       node_bit(node);
}
/* Returns true if the node was connected in this epoch. If not, no entry made in it names it. */
static inline bool view_in_epoch(const struct page_driver *d, unsigned node)
{
	return atomic_load_explicit(&d->view.in_epoch, memory_order_acquire) &
	       node_bit(node);
}
/* Returns the nodes that are not connected, and all ids that this node does not know. */
static inline node_map view_unconnected(const struct page_driver *d)
{
	return ~node_bit(d->o.self) &
	       ~atomic_load_explicit(&d->view.connected, memory_order_acquire);
}
/* Returns true if the home has rebuilt its entries. Before that, send it only reports. */
static inline bool view_ready(const struct page_driver *d, unsigned home)
{
	return atomic_load_explicit(&d->view.ready, memory_order_acquire) &
	       node_bit(home);
}
/* Returns true if a link was lost and the epoch for that has not begun: for LOST_NS at most. */
static inline bool view_epoch_due(const struct page_driver *d)
{
	return atomic_load_explicit(&d->view.look_ns, memory_order_relaxed) != RT_FOREVER;
}
/* Returns true if every member has left, or has reported its pages of this shard. */
static inline bool view_all_reported(const struct page_driver *d)
{
	return !atomic_load_explicit(&d->started, memory_order_relaxed) ||
	       !atomic_load_explicit(&d->view.unreported, memory_order_acquire);
}

/* ---- epoch_rebuild.c: reports and entries, in a new epoch --------------------------------- */

/* Voids the work under way in this record. All partitions are locked. */
void page_enter(struct page_driver *d, struct page_record *p);
/* Ends the entering of an epoch for the page: all connected nodes are in it. Frames may be used
 * again. */
void page_close(struct page_driver *d, struct page_record *p);
/* Reports the pages of other homes that this node has, to the connected ones. Returns 0, or -EAGAIN
 * if the epoch has changed. Waits. */
int report_all(struct page_driver *d, uint64_t epoch);
/* The reports of a bucket's pages. `list` moves when it grows. */
struct report_list {
	unsigned count, room;
	struct page_message *m;
	uint8_t *to;
};
/* Adds the reports of all pages in bucket `at` (below PAGE_PARTITIONS * d->buckets). 0,
 * -ENOMEM (none was added), -EAGAIN (another epoch). (record_table.c) */
int page_bucket_reports(
	struct page_driver *d, unsigned at, uint64_t epoch, struct report_list *list);
/* Makes room for two more reports. */
int report_list_grow(struct report_list *list);
void report_page(const struct page_record *p, struct report_list *list);
/* Handles REPORT at the home, and REINSTATE at the node that has the image. */
int rebuild_report(struct page_driver *d, struct page_record *p, const struct page_message *m);
int rebuild_reinstate(struct page_driver *d, struct page_record *p, const struct page_message *m,
	struct page_actions *out);
/* Makes the page's entry, if that is possible. All reports have come. */
void page_rebuild(struct page_driver *d, struct page_record *p);
/* Returns the nodes that are away and without which the page's entry cannot be made. Returns 0 if
 * the entry exists, or will soon. */
node_map rebuild_awaits(const struct page_driver *d, const struct page_record *p);
/* Begins rebuilding a page that was opened and needs reports. */
void page_rebuild_opened(struct page_driver *d, struct page_record *p);
/* Ends the wait for a node, which is away, to reinstate the page. */
void rebuild_without(struct page_driver *d, struct page_record *p, unsigned node);
/* Updates the page's `may` and `changed` after an event has changed the entry. */
void page_note_may(struct page_record *p);

/* ---- wire.c: messages and images -------------------------------------------------- */

uint64_t place_of(const struct page_driver *d, const void *memory);
/* Returns NULL if no page lies at this place. */
void *place_memory(const struct page_driver *d, uint64_t place);
static inline uint32_t place_region(uint64_t place)
{
	return (uint32_t)(place >> PID_SLOT_BITS);
}
static inline uint64_t place_offset(uint64_t place)
{
	return place & PID_SLOT_MASK;
}
void wire_send(struct page_driver *d, unsigned node, const struct page_message *m);
/* Writes the image to the node, then sends the message. The image is that of the page's frame, or
 * `buffer`, which home_image_put takes at the end. */
void wire_send_image(struct page_driver *d, struct page_record *p, unsigned node,
	const struct page_message *m, uint64_t place, void *buffer);
/* Returns true if the message announces no image, or if the image has the announced checksum. If
 * not, the link is cut, and the message counts as lost: the caller must not act on it. */
bool wire_image_whole(
	struct page_driver *d, const struct page_record *p, const struct page_message *m);
/* Returns true if the image read from the node has the checksum `sum`. If not, counts that. */
bool wire_read_whole(struct page_driver *d, unsigned node, const void *image, uint32_t sum);
/* Cuts the link of a node from which images are read with a wrong checksum each time. */
void wire_image_cut(struct page_driver *d, unsigned node);
/* Returns an image operation, or NULL if there is no memory. Call it under the page's lock.
 * (record_table.c) */
struct image_op *image_op_take(struct page_driver *d, struct page_record *p);
void image_op_put(struct image_op *x);
void wire_cut(struct page_driver *d, unsigned node, int error, const char *why,
	const struct page_message *m);

#endif
