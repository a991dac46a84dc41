/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page protocol of many nodes: states, messages, actions (docs/protocol.md, "The page
 * protocol"; ScaleStore §3 and §4.2).
 *
 * Pure functions, (state, event) to (state, actions), for the three sides of a page: its
 * home (home.c), a node that has it (holder.c), a node that wants it (requester.c); and
 * for what follows a change of the cluster's epoch (rebuild.c). They do no I/O, take no
 * lock and allocate nothing. A driver calls them with the page's state locked, one event
 * at a time, and performs the actions in their order. Messages to itself it delivers at
 * once, by a call.
 *
 * Invariants: 1 (a grant is used only when all before it have given), 2 (KEEP_OWED until
 * PERSISTED), 5 (DROP_KERNEL before GIVEN), 7 (rebuild.c), 8 (ZEROS).
 * Log before ship (3) is the driver's, before it performs an action that has an image.
 *
 * All return 0, or -EPROTO with state and actions untouched: by the protocol this event
 * cannot happen in this state. A peer is not trusted (invariant 9): the driver cuts the
 * link.
 */
#ifndef WEFT_COHERENCE_PROTOCOL_H
#define WEFT_COHERENCE_PROTOCOL_H

#include "engine/coherence/coherence.h"
#include "engine/net/message.h"

/* Sets of nodes are maps of 64 bits: so many nodes a volume can have. */
#define PAGE_NODES_MAX 64u
#define NODE_NONE      255u
typedef uint64_t node_map;
static inline node_map node_bit(unsigned node)
{
	return 1ull << node;
}

/* ---- conflict epochs --------------------------------------------------------------- */

/*
 * Epochs and copies wrap. At most one request of each node is under way for a page, so
 * values that are compared are never further apart than there are nodes; the model runs
 * these functions with fewer bits.
 */
#ifndef PAGE_EPOCH_BITS
#define PAGE_EPOCH_BITS  32
#define PAGE_COPIES_BITS 16
#endif
static inline uint32_t epoch_next(uint32_t e)
{
	return (e + 1) & (UINT32_MAX >> (32 - PAGE_EPOCH_BITS));
}
/* How far epoch a is after b; negative: before. */
static inline int32_t epoch_after(uint32_t a, uint32_t b)
{
	return (int32_t)((a - b) << (32 - PAGE_EPOCH_BITS)) >> (32 - PAGE_EPOCH_BITS);
}
static inline uint16_t copies_next(uint16_t n)
{
	return (uint16_t)((n + 1u) & (UINT32_MAX >> (32 - PAGE_COPIES_BITS)));
}

/* ---- messages ------------------------------------------------------------------------ */

/* clang-format off */
#define PAGE_MESSAGES(X)                                                                 \
	X(REQUEST) X(GRANT) X(COPY) X(MOVE) X(INVALIDATE) X(GIVEN) X(DROP) X(EVICT)      \
	X(EVICTED) X(FETCH) X(SHIP) X(PERSISTED) X(REPORT) X(REINSTATE)                  \
	X(EPOCH) X(REPORTED) X(READY)
/* clang-format on */
#define PAGE_MESSAGE_FIRST 0x100
enum page_message_type {
	PAGE_MESSAGE_BEFORE = PAGE_MESSAGE_FIRST - 1,
#define X(name) PAGE_##name,
	PAGE_MESSAGES(X)
#undef X
		PAGE_MESSAGE_END
};

#define PAGE_IMAGE      (1u << 0)  /* the page has been written to the receiver's place */
#define PAGE_HELD       (1u << 1)  /* the requester's own copy is good, or stays (EVICT) */
#define PAGE_ZEROS      (1u << 2)  /* of this incarnation there is no image: zeros */
#define PAGE_STORE      (1u << 3)  /* the receiver is the home: read the store */
#define PAGE_HOLLOW     (1u << 4)  /* wants no image of the home's; has none */
#define PAGE_DIRTY      (1u << 5)  /* newer than the home's persisted image */
#define PAGE_ASK_SOURCE (1u << 6)  /* the image is to be had from `source` */
#define PAGE_ALONE      (1u << 7)  /* exclusive will do if nobody else holds it */
#define PAGE_FREED      (1u << 8)  /* the page's free is committed */
#define PAGE_DAMAGED    (1u << 9)  /* the image cannot be read */
#define PAGE_OWED       (1u << 10) /* speaks of an owed image */
#define PAGE_ACCEPTED   (1u << 11)
#define PAGE_LOGGED     (1u << 12) /* REPORT: owed since a start before, whose log had it */

/* On the wire, 64 bytes; the first 16 are the network's (struct net_message). */
struct page_message {
	uint16_t type; /* enum page_message_type */
	uint16_t sender;
	uint32_t request;
	uint64_t cluster_epoch;
	uint64_t pid;
	uint64_t incarnation;
	uint64_t version;
	uint64_t place; /* an address in registered memory, or a map */
	uint32_t epoch; /* conflict epoch */
	uint16_t copies;
	uint8_t source;
	uint8_t mode; /* enum page_mode; REPORT: enum page_right */
	uint16_t flags;
	int16_t status; /* 0 or negative errno */
	uint32_t sum;   /* CRC32C of the image it announces, the driver's; 0: none */
};
_Static_assert(sizeof(struct page_message) == NET_MESSAGE_BYTES, "message size");
_Static_assert(offsetof(struct page_message, pid) == offsetof(struct net_message, body),
	"the network's part of the message");
_Static_assert(offsetof(struct page_message, epoch) == 48, "message layout");
_Static_assert(offsetof(struct page_message, sum) == 60, "message layout");

/* ---- states --------------------------------------------------------------------------- */

#define PAGE_RIGHTS(X) X(NONE) X(SHARED) X(SOURCE) X(EXCLUSIVE)
enum page_right {
#define X(name) RIGHT_##name,
	PAGE_RIGHTS(X)
#undef X
};

#define PAGE_PHASES(X) X(QUIET) X(ASKED) X(GATHERING) X(ARRIVED) X(LEAVING)
enum page_phase {
#define X(name) PHASE_##name,
	PAGE_PHASES(X)
#undef X
};

/* What this node's kernel has of the page (invariant 5). */
enum page_exposure { EXPOSED_NOT, EXPOSED_READABLE, EXPOSED_WRITABLE };

#define HOLD_DIRTY      (1u << 0)
#define HOLD_HOLLOW     (1u << 1) /* exclusive without an image */
#define HOLD_DAMAGED    (1u << 2) /* the image could not be read */
#define HOLD_DROPPING   (1u << 3) /* DROP_KERNEL is under way: expose nothing */
#define HOLD_WANTED     (1u << 4) /* an operation here waits for the grant */
#define HOLD_NEED_IMAGE (1u << 5) /* GATHERING: the image is not here */
/* of what the grant brings, until it takes the place of what is held */
#define HOLD_NEXT_DIRTY   (1u << 6)
#define HOLD_NEXT_HOLLOW  (1u << 7)
#define HOLD_NEXT_DAMAGED (1u << 8)
#define HOLD_NEXT_ZEROS   (1u << 9)
#define HOLD_NEXT_HELD    (1u << 10)
#define HOLD_NEXT_MASK    (HOLD_NEED_IMAGE | 0x7c0u)
#define HOLD_STAYS        (1u << 11) /* LEAVING: it asks to be a sharer, no more */

/* A page as one of its nodes has it: holder's and requester's state. Zeros: nothing. */
struct page_hold {
	uint8_t hold;    /* enum page_right */
	uint8_t phase;   /* enum page_phase */
	uint8_t wanted;  /* ASKED: enum page_mode */
	uint8_t granted; /* GATHERING: enum page_right */
	uint8_t exposed; /* enum page_exposure */
	uint8_t logged;  /* what is owed is what the log of an earlier start had */
	uint16_t flags;  /* HOLD_* */
	uint16_t served; /* SOURCE: copies given in this epoch */
	uint16_t pad2;
	uint32_t epoch;       /* of the hold */
	uint32_t grant_epoch; /* GATHERING: of the grant */
	uint32_t request;     /* number of the request, or of the eviction, under way */
	node_map need;        /* GATHERING: who has not given yet */
	uint64_t place;       /* where the image shall be written */
	uint64_t incarnation, version; /* of the image held */
	uint64_t wanted_incarnation; /* an older image that arrives is nobody's: zeros */
	uint64_t next_incarnation, next_version;
	uint64_t owed_incarnation, owed_version; /* 0, 0: owes nothing */
};

#define PAGE_HOMES(X) X(NONE) X(SHARED) X(EXCLUSIVE) X(REBUILDING)
enum home_mode {
#define X(name) HOME_##name,
	PAGE_HOMES(X)
#undef X
};

/* The directory entry: immediate metadata (ScaleStore §3.4.3). Soft state (7). */
struct home_entry {
	uint8_t mode;    /* enum home_mode */
	uint8_t source;  /* SHARED: who has what the home has not; or NODE_NONE */
	bool current;    /* the persisted image is the newest; NONE: always */
	uint16_t copies; /* SHARED: sent to the source in this epoch */
	uint32_t epoch;
	node_map holders;
	node_map owing; /* who may owe an image; never too few */
	uint64_t incarnation;
	uint64_t stored_incarnation, stored_version; /* persisted */
};

/* ---- actions --------------------------------------------------------------------------- */

enum page_action_kind {
	/* m to all of `nodes`; first the image to m.place there, from `image` */
	PAGE_SEND,
	PAGE_DEFER,      /* keep m for this page until REPLAY */
	PAGE_REPLAY,     /* deliver what was deferred for this page again, each once */
	PAGE_WAKE,       /* the operation here that waits: m.status */
	PAGE_ZERO,       /* fill the frame with zeros */
	PAGE_DROP_FRAME, /* the frame's image is no longer held */
	PAGE_KEEP_OWED, /* keep the frame's image, m.incarnation and m.version, as owed */
	PAGE_RELEASE_OWED, /* the owed image may go */
	PAGE_TAKE_OWED,    /* the owed image becomes the frame's; it stays owed */
	PAGE_DROP_KERNEL,  /* drop it from the kernel, then holder_kernel_dropped */
	PAGE_PULL,         /* read the image at m.place of `nodes`, then home_pulled */
	PAGE_PERSIST,      /* read m's image, at m.place of m.sender, persist it, then
			      home_persisted */
};

enum page_image { IMAGE_NONE, IMAGE_FRAME, IMAGE_STORE };

struct page_action {
	enum page_action_kind kind;
	enum page_image image;
	node_map nodes;
	struct page_message m;
};

#define PAGE_ACTIONS_MAX 10u
struct page_actions {
	unsigned count; /* what is behind need not be zero */
	struct page_action list[PAGE_ACTIONS_MAX];
};

/* Which page, seen from which node. */
struct page_at {
	page_id pid;
	uint8_t self, home;
};

/* ---- requester (requester.c) --------------------- */

/*
 * An operation wants the page in more than it is held; phase QUIET. `flags`: PAGE_HOLLOW,
 * PAGE_ALONE. `place`: where peers write the image. WAKE ends it. -EBUSY: another phase.
 */
int requester_want(struct page_hold *h, const struct page_at *at, enum page_mode wanted,
	uint64_t incarnation, unsigned flags, uint64_t place, uint32_t request,
	struct page_actions *out);
int requester_on_grant(struct page_hold *h, const struct page_at *at,
	const struct page_message *m, struct page_actions *out);
int requester_on_given(struct page_hold *h, const struct page_at *at,
	const struct page_message *m, struct page_actions *out);
/* An operation wants the image that an exclusive hold is without. WAKE ends it. -EBUSY. */
int requester_fetch(struct page_hold *h, const struct page_at *at, uint64_t place,
	uint32_t request, struct page_actions *out);
/* The operation has used what arrived, or lets it go. */
int requester_used(
	struct page_hold *h, const struct page_at *at, struct page_actions *out);

/* ---- holder (holder.c) --------------------- */

/* COPY, MOVE, INVALIDATE. */
int holder_on_ask(struct page_hold *h, const struct page_at *at,
	const struct page_message *m, struct page_actions *out);
/*
 * Gives the page up unasked: a DROP at once, or an EVICT that the home answers. `place`:
 * where the home may read the image. `freed`: the page's free is committed. -EBUSY: not
 * QUIET, or not held; the kernel's pages go first (an action).
 */
int holder_evict(struct page_hold *h, const struct page_at *at, bool freed,
	uint64_t place, uint32_t request, struct page_actions *out);
/*
 * Gives up what is as its home has persisted it, or shared, and tells nobody: the home is not in this
 * epoch, and makes its entry from what is reported in the next one with it. -EBUSY: not QUIET, not
 * held, dirty, or hollow; the kernel's pages go first (an action).
 */
int holder_forget(struct page_hold *h, struct page_actions *out);
/*
 * Gives the exclusive right up unasked, and goes on to share the page: an EVICT with HELD, which
 * the home answers. The image is what the home has persisted, and nobody here changes it from now
 * on. -EBUSY: not QUIET, not exclusive, dirty, hollow, or the kernel may write to it.
 */
int holder_downgrade(struct page_hold *h, const struct page_at *at, uint32_t request,
	struct page_actions *out);
int holder_on_evicted(struct page_hold *h, const struct page_at *at,
	const struct page_message *m, struct page_actions *out);
/* Sends the dirty image, or the owed one, to be persisted. -ENOENT: there is none; -EBUSY:
 * the page is LEAVING. */
int holder_ship(struct page_hold *h, const struct page_at *at, bool owed, uint64_t place,
	uint32_t request, struct page_actions *out);
int holder_on_persisted(struct page_hold *h, const struct page_at *at,
	const struct page_message *m, struct page_actions *out);
int holder_on_reinstate(struct page_hold *h, const struct page_at *at,
	const struct page_message *m, struct page_actions *out);
/* May the image be read, or changed, here and now? The local hot path (§3.2). */
bool holder_may_read(const struct page_hold *h);
bool holder_may_change(const struct page_hold *h);
/* The image was changed, or filled when it was hollow. holder_may_change holds. */
void holder_changed(struct page_hold *h);
/* The page was allocated anew by this node, which has it exclusively: zeros. */
void holder_fresh(struct page_hold *h, uint64_t incarnation);
/* The kernel gets the page. False: not now. */
bool holder_expose(struct page_hold *h, enum page_exposure level);
int holder_kernel_dropped(
	struct page_hold *h, const struct page_at *at, struct page_actions *out);

/* ---- home (home.c) --------------------- */

/* `local`: the home's own hold of the page (zeros if it has none); may change too. */
void home_entry_init(struct home_entry *e, uint32_t epoch, uint64_t stored_incarnation,
	uint64_t stored_version);
/* Nothing to remember: it may be forgotten (its epoch must not be used again). */
bool home_entry_idle(const struct home_entry *e);
int home_on_request(struct home_entry *e, struct page_hold *local,
	const struct page_at *at, const struct page_message *m, struct page_actions *out);
/* Answers the request with an error. `nodes`: those that would have to be waited for. */
void home_refuse(const struct page_at *at, const struct page_message *m, int error,
	node_map nodes, struct page_actions *out);
int home_on_drop(struct home_entry *e, const struct page_at *at,
	const struct page_message *m, struct page_actions *out);
/*
 * Only the home itself shares the page, with nothing under way. Then home_alone makes that
 * exclusive, as an upgrade of its own would that has nobody to ask: there is nothing to remember.
 */
bool home_is_alone(const struct home_entry *e, const struct page_hold *local,
	const struct page_at *at);
void home_alone(struct home_entry *e, struct page_hold *local);
/* `room`: there is a frame or buffer for a dirty image, at `place`. */
int home_on_evict(struct home_entry *e, struct page_hold *local, const struct page_at *at,
	const struct page_message *m, bool room, struct page_actions *out);
/* A PULL's image is here. `from`: the evicting node. */
int home_pulled(struct home_entry *e, struct page_hold *local, const struct page_at *at,
	unsigned from, struct page_actions *out);
int home_on_fetch(struct home_entry *e, const struct page_at *at,
	const struct page_message *m, struct page_actions *out);
int home_on_ship(struct home_entry *e, const struct page_at *at,
	const struct page_message *m, struct page_actions *out);
/* The image that m (a SHIP) spoke of, or a later one, is persisted (invariant 2). */
int home_persisted(struct home_entry *e, const struct page_at *at,
	const struct page_message *m, struct page_actions *out);

/* ---- after a change of the cluster's epoch (rebuild.c) --------------------- */

struct home_rebuild {
	node_map sharers; /* of the newest image shared */
	node_map owing;   /* all that owe something */
	node_map sources; /* of the sharers */
	bool owed_logged; /* the newest owed: since a start before */
	bool redone; /* what is persisted may be of the home's own log, since it started */
	uint8_t owner, source, owed_by;
	uint64_t incarnation, version;           /* newest held */
	uint64_t owed_incarnation, owed_version; /* newest owed */
};

/* Every node, every page: what was under way is void. Before anything is reported. */
void page_void(struct page_hold *h, const struct page_at *at, struct page_actions *out);
/* REPORTs of what this node holds and owes: none, one or two. */
void page_report(
	const struct page_hold *h, const struct page_at *at, struct page_actions *out);
void rebuild_begin(struct home_entry *e, struct home_rebuild *r);
int rebuild_on_report(struct home_rebuild *r, const struct page_message *m);
/*
 * All have reported. 0: the entry is rebuilt (perform the actions); -EAGAIN: a REINSTATE
 * was sent (with FREED: who is to let go), come again when its REPORT is in. -EPROTO: the
 * reports contradict each other.
 * `absent`: who has not reported and may have the page. Where others have it shared these
 * have nothing else (invariant 1), and count as sharers. Where nobody has it, or owes the
 * newest image, the caller waits for them, unless it knows that none can have changed the
 * page: then they are sharers, too.
 */
int rebuild_end(struct home_entry *e, struct home_rebuild *r, const struct page_at *at,
	node_map absent, struct page_actions *out);

/* ---- all --------------------- */

/* Hands a message to the function that it is for. Not for EVICT and REPORT. */
int page_on_message(struct home_entry *e, struct page_hold *h, const struct page_at *at,
	const struct page_message *m, struct page_actions *out);

const char *page_message_name(unsigned type);
const char *page_right_name(unsigned right);
const char *page_phase_name(unsigned phase);
const char *home_mode_name(unsigned mode);

/* Adds an action; for the files of this folder. */
static inline struct page_action *page_act(
	struct page_actions *out, enum page_action_kind kind)
{
	struct page_action *a = &out->list[out->count++];

	WEFT_ASSERT(out->count <= PAGE_ACTIONS_MAX);
	*a = (struct page_action){.kind = kind};
	return a;
}

/* What is held is owed from now on (invariant 2), in place of what was: it has that, too. */
static inline void page_owe(struct page_hold *h, struct page_actions *out)
{
	struct page_action *a = page_act(out, PAGE_KEEP_OWED);

	a->m.incarnation = h->owed_incarnation = h->incarnation;
	a->m.version = h->owed_version = h->version;
	h->logged = false;
}

/* A message of that type about the page, to be filled. */
static inline struct page_message *page_send(struct page_actions *out,
	const struct page_at *at, node_map nodes, enum page_message_type type)
{
	struct page_action *a = page_act(out, PAGE_SEND);

	a->nodes = nodes;
	a->m.type = (uint16_t)type;
	a->m.sender = at->self;
	a->m.pid = at->pid;
	a->m.source = NODE_NONE;
	return &a->m;
}

#endif
