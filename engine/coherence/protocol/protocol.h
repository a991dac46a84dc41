/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The page protocol of many nodes: states, messages, actions (docs/protocol.md; ScaleStore §3 and
 * §4.2).
 *
 * Pure functions, (state, event) to (state, actions). A page has three sides: its home (home.c), a
 * holder (holder.c) and a requester (requester.c). A fourth file handles a change of the cluster
 * epoch (rebuild.c). The functions do no I/O, take no lock and allocate nothing. The driver calls
 * them with the page's state locked, one event at a time. It performs the actions in their order.
 * It delivers messages to its own node at once, by a call.
 *
 * Invariants:
 *
 * - 1: a grant is used only when all nodes before it have given.
 * - 2: KEEP_OWED until PERSISTED.
 * - 5: the frame is revoked before GIVEN.
 * - 7: rebuild.c.
 * - 8: ZEROS.
 *
 * The driver keeps invariant 3 (log before ship) before it performs an action with an image.
 *
 * All functions return 0, or -EPROTO with state and actions unchanged: the protocol does not allow
 * the event in this state. A peer is not trusted (invariant 9): the driver then cuts the link.
 */
#ifndef WEFT_COHERENCE_PROTOCOL_H
#define WEFT_COHERENCE_PROTOCOL_H

#include "engine/coherence/coherence.h"
#include "engine/net/message.h"

/* Most nodes of a volume: sets of nodes are maps of 64 bits. */
#define PAGE_NODES_MAX 64u
#define NODE_NONE      0xffffu
typedef uint64_t node_map;
static inline node_map node_bit(unsigned node)
{
	return 1ull << node;
}

/* ---- conflict epochs --------------------------------------------------------------- */

/* Epochs and copies wrap. Each node has at most one request for a page under way. So compared
 * values differ by at most the number of nodes. The model runs these functions with fewer bits. */
#ifndef PAGE_EPOCH_BITS
#define PAGE_EPOCH_BITS  32
#define PAGE_COPIES_BITS 16
#endif
static inline uint32_t epoch_next(uint32_t e)
{
	return (e + 1) & (UINT32_MAX >> (32 - PAGE_EPOCH_BITS));
}
/* Returns the distance of epoch a after b; negative: before. */
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
	X(EPOCH) X(REPORTED) X(READY) X(DISCARD)
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
#define PAGE_HELD       (1u << 1)  /* the requester's own copy is valid, or stays (EVICT) */
#define PAGE_ZEROS      (1u << 2)  /* this incarnation has no image: zeros */
#define PAGE_STORE      (1u << 3)  /* the receiver is the home: read the store */
#define PAGE_HOLLOW     (1u << 4)  /* needs no image of the home; has none */
#define PAGE_DIRTY      (1u << 5)  /* newer than the home's persisted image */
#define PAGE_ASK_SOURCE (1u << 6)  /* the image comes from `source` */
#define PAGE_ALONE      (1u << 7)  /* exclusive is accepted if no other node holds the page */
#define PAGE_FREED      (1u << 8)  /* the page's free is committed */
#define PAGE_DAMAGED    (1u << 9)  /* the image cannot be read */
#define PAGE_OWED       (1u << 10) /* about an owed image */
#define PAGE_ACCEPTED   (1u << 11)
#define PAGE_LOGGED     (1u << 12) /* REPORT: owed since an earlier start, whose log had it */
#define PAGE_CURRENT    (1u << 13) /* the home has persisted the image: an answer needs none */

/* A message on the wire, 64 bytes. The first 16 are the network's (struct net_message). */
struct page_message {
	uint16_t type; /* enum page_message_type */
	uint16_t sender;
	uint32_t request;
	uint64_t cluster_epoch;
	uint64_t pid;
	uint64_t incarnation;
	uint64_t version;
	uint64_t place; /* an address in registered memory, or a node map */
	uint32_t epoch; /* conflict epoch */
	uint16_t copies;
	uint16_t source;
	uint16_t flags : 14;
	uint16_t mode : 2; /* enum page_mode; REPORT: enum page_right */
	int16_t status;    /* 0 or negative errno */
	uint32_t sum;   /* CRC32C of the announced image, set by the driver; 0: none */
};
_Static_assert(sizeof(struct page_message) == NET_MESSAGE_BYTES, "message size");
_Static_assert(offsetof(struct page_message, pid) == offsetof(struct net_message, body),
	"the network's part of the message");
_Static_assert(offsetof(struct page_message, epoch) == 48, "message layout");
_Static_assert(offsetof(struct page_message, source) == 54, "message layout");
_Static_assert(offsetof(struct page_message, status) == 58, "message layout");

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

#define HOLD_DIRTY      (1u << 0)
#define HOLD_HOLLOW     (1u << 1) /* exclusive without an image */
#define HOLD_DAMAGED    (1u << 2) /* the image could not be read */
#define HOLD_WANTED     (1u << 3) /* an operation of this node waits for the grant */
#define HOLD_NEED_IMAGE (1u << 4) /* GATHERING: the image is not here */
/* About the granted image, until it replaces the held one. */
#define HOLD_NEXT_DIRTY   (1u << 5)
#define HOLD_NEXT_HOLLOW  (1u << 6)
#define HOLD_NEXT_DAMAGED (1u << 7)
#define HOLD_NEXT_ZEROS   (1u << 8)
#define HOLD_NEXT_HELD    (1u << 9)
#define HOLD_NEXT_CURRENT (1u << 11) /* if no node gives the image, the home does */
#define HOLD_NEXT_MASK    (HOLD_NEED_IMAGE | 0xbe0u)
#define HOLD_STAYS        (1u << 10) /* LEAVING: it asks only to become a sharer */

/* The state of a page at a holder or requester. Zeros: nothing. */
struct page_hold {
	uint8_t hold;    /* enum page_right */
	uint8_t phase;   /* enum page_phase */
	uint8_t wanted;  /* ASKED: enum page_mode */
	uint8_t granted; /* GATHERING: enum page_right */
	uint8_t logged;  /* the owed image was in the log of an earlier start */
	uint8_t pad1;
	uint16_t flags;  /* HOLD_* */
	uint16_t served; /* SOURCE: copies given in this epoch */
	uint16_t pad2;
	uint32_t epoch;                /* of the hold */
	uint32_t grant_epoch;          /* GATHERING: of the grant */
	uint32_t request;              /* number of the request, or of the eviction, under way */
	node_map need;                 /* GATHERING: nodes that have not given yet */
	uint64_t place;                /* place to which the image is written */
	uint64_t incarnation, version; /* of the held image */
	uint64_t wanted_incarnation;   /* an older image that arrives counts as zeros */
	uint64_t next_incarnation, next_version;
	uint64_t owed_incarnation, owed_version; /* 0, 0: the node owes nothing */
};

#define PAGE_HOMES(X) X(NONE) X(SHARED) X(EXCLUSIVE) X(REBUILDING)
enum home_mode {
#define X(name) HOME_##name,
	PAGE_HOMES(X)
#undef X
};

/* The directory entry: immediate metadata (ScaleStore §3.4.3). Soft state (invariant 7). */
struct home_entry {
	uint8_t mode;    /* enum home_mode */
	bool current;    /* the persisted image is the newest; always with NONE */
	uint16_t source; /* SHARED: the node with an image that the home lacks; or NODE_NONE */
	uint16_t copies; /* SHARED: requests sent to the source in this epoch */
	uint32_t epoch;
	node_map holders;
	node_map owing; /* nodes that may owe an image; never too few */
	uint64_t incarnation;
	uint64_t stored_incarnation, stored_version; /* persisted */
};

/* ---- actions --------------------------------------------------------------------------- */

enum page_action_kind {
	/* send m to all of `nodes`; write the image first, from `image` to m.place there */
	PAGE_SEND,
	PAGE_DEFER,        /* keep m for this page until PAGE_REPLAY */
	PAGE_REPLAY,       /* deliver the deferred messages of this page again, each once */
	PAGE_WAKE,         /* wake the operation of this node that waits: m.status */
	PAGE_ZERO,         /* fill the frame with zeros */
	PAGE_DROP_FRAME,   /* the hold of the frame's image has ended */
	PAGE_KEEP_OWED,    /* keep the frame's image, m.incarnation and m.version, as owed */
	PAGE_RELEASE_OWED, /* the owed image may be freed */
	PAGE_TAKE_OWED,    /* the owed image becomes the frame's, and stays owed */
	PAGE_PULL,         /* read the image at m.place of `nodes`, then call home_pulled */
	PAGE_PERSIST,      /* read m's image, at m.place of m.sender, persist it, then call
			    * home_persisted */
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
	unsigned count; /* entries after these may have any content */
	struct page_action list[PAGE_ACTIONS_MAX];
};

/* The page, and the node that looks at it. */
struct page_at {
	page_id pid;
	uint16_t self, home;
};

/* ---- requester (requester.c) --------------------- */

/*
 * Requests a stronger right to a page from the home, for an operation. `flags`: PAGE_HOLLOW,
 * PAGE_ALONE. `place`: where peers write the image. `unconnected`: nodes without a link to this
 * node. The home refuses a grant for which these would have to give. PAGE_WAKE ends the request.
 * Returns 0, or -EBUSY in any phase but QUIET.
 */
int requester_want(struct page_hold *h, const struct page_at *at, enum page_mode wanted,
	uint64_t incarnation, unsigned flags, uint64_t place, node_map unconnected,
	uint32_t request, struct page_actions *out);
int requester_on_grant(struct page_hold *h, const struct page_at *at,
	const struct page_message *m, struct page_actions *out);
int requester_on_given(struct page_hold *h, const struct page_at *at,
	const struct page_message *m, struct page_actions *out);
/* Requests the image of an exclusive hold that lacks it, for an operation. PAGE_WAKE ends it.
 * Returns 0 or -EBUSY. */
int requester_fetch(struct page_hold *h, const struct page_at *at, uint64_t place,
	uint32_t request, struct page_actions *out);
/* Tells that the operation has used the granted page, or does not need it. */
int requester_used(
	struct page_hold *h, const struct page_at *at, struct page_actions *out);

/* ---- holder (holder.c) --------------------- */

/* Handles COPY, MOVE and INVALIDATE. */
int holder_on_ask(struct page_hold *h, const struct page_at *at,
	const struct page_message *m, struct page_actions *out);
/*
 * Gives the page up unasked. Sends a DROP, which ends the hold, or an EVICT, which the home
 * answers. The frame must be revoked to INVALID. `place`: where the home may read the image.
 * Returns 0, or -EBUSY if the phase is not QUIET or nothing is held.
 */
int holder_evict(struct page_hold *h, const struct page_at *at, uint64_t place,
	uint32_t request, struct page_actions *out);
/*
 * Gives a page up without a message. The home is not in this epoch: it makes its entry from the
 * reports of the next one. The frame must be revoked to INVALID. Returns 0, or -EBUSY if the phase
 * is not QUIET, or the page is not held, dirty, or hollow.
 */
int holder_forget(struct page_hold *h, struct page_actions *out);
/*
 * Gives the exclusive right up unasked and keeps sharing the page. Sends an EVICT with HELD, which
 * the home answers. The image equals the persisted one. The frame must be revoked to SHARED.
 * Returns 0. Returns -EBUSY if the phase is not QUIET, or the page is not exclusive, dirty, hollow,
 * or damaged.
 */
int holder_downgrade(struct page_hold *h, const struct page_at *at, uint32_t request,
	struct page_actions *out);
int holder_on_evicted(struct page_hold *h, const struct page_at *at,
	const struct page_message *m, struct page_actions *out);
/* Sends this version of the page to its home to be persisted: the frame's, or an owed one. Marks it
 * OWED, unless the hold proves that it is the newest. */
void holder_ship(const struct page_hold *h, const struct page_at *at, uint64_t incarnation,
	uint64_t version, uint64_t place, uint32_t request, struct page_actions *out);
/* Returns true if no node has a later image than this version, which this node has or had. */
bool holder_newest(const struct page_hold *h, uint64_t incarnation, uint64_t version);
int holder_on_persisted(struct page_hold *h, const struct page_at *at,
	const struct page_message *m, struct page_actions *out);
int holder_on_reinstate(struct page_hold *h, const struct page_at *at,
	const struct page_message *m, struct page_actions *out);

/* ---- the frame behind a hold (frame.c) --------------------- */

/*
 * The image in the frame of a hold. Operations use and change it without the protocol (ScaleStore
 * §3.2), and so does this node's kernel. If a message takes a right from the hold, the frame is
 * first *revoked* to the right that remains. The hold then observes the frame's image.
 */
struct frame_image {
	uint64_t place; /* where peers read and write it */
	uint64_t incarnation, version;
	bool dirty, hollow;
};

/* Returns the mode to which the frame must be revoked before the message may be delivered.
 * PAGE_EXCLUSIVE: it takes nothing. For REQUEST, COPY, MOVE, INVALIDATE and REINSTATE. */
enum page_mode page_takes(const struct home_entry *e, const struct page_hold *h,
	const struct page_at *at, const struct page_message *m);
/* Delivers a message that takes a right from a frame that cannot be revoked yet. An ask is
 * deferred. A REQUEST is granted, and the part that this node's own hold must give is deferred. */
int page_decline(struct home_entry *e, struct page_hold *h, const struct page_at *at,
	const struct page_message *m, struct page_actions *out);
/* Notes that the frame has this image. */
void holder_observe(struct page_hold *h, const struct frame_image *image);
/* Notes that the frame has no image of an exclusive hold: the home must give it first. */
void holder_observe_hollow(
	struct page_hold *h, uint64_t place, uint64_t incarnation, uint64_t version);
/* Notes that the frame has an image, and that it is persisted. */
void holder_observe_clean(struct page_hold *h);
/* Notes that there is no frame any more: the image is lost. */
void holder_lost(struct page_hold *h);
/* Notes that the image is, or will be, at that place. */
void holder_placed(struct page_hold *h, uint64_t place);
/* Notes that the node owes this image of the page; 0, 0: none. `logged`: the log of an earlier
 * start had it. */
void holder_owes(struct page_hold *h, uint64_t incarnation, uint64_t version, bool logged);

/* ---- home (home.c) --------------------- */

/* In all functions of the home, `local` is the home's own hold of the page (zeros if it has none).
 * It may change too. */
void home_entry_init(struct home_entry *e, uint32_t epoch, uint64_t stored_incarnation,
	uint64_t stored_version);
/* Returns true if the entry has nothing to remember. It may be forgotten, but its epoch must not be
 * used again. */
bool home_entry_idle(const struct home_entry *e);
/* Sets the entry of a page that only the home has, with this image. */
void home_opened_alone(struct home_entry *e, struct page_hold *local,
	const struct page_at *at, uint32_t epoch, const struct frame_image *image);
/* Notes that the page was allocated anew: images of earlier incarnations are void. */
void home_renewed(struct home_entry *e, uint64_t incarnation);
/* Notes that a node owes an image of the page, or, having left, owes none any more. */
void home_owed_by(struct home_entry *e, unsigned node);
void home_not_owed_by(struct home_entry *e, unsigned node);
/* Handles a REQUEST. `ready`: the frame of the home's own hold is revoked as the request needs. */
int home_on_request(struct home_entry *e, struct page_hold *local, const struct page_at *at,
	const struct page_message *m, bool ready, struct page_actions *out);
/* Answers the request with an error. `nodes`: those that it would have to wait for. */
void home_refuse(const struct page_at *at, const struct page_message *m, int error,
	node_map nodes, struct page_actions *out);
int home_on_drop(struct home_entry *e, const struct page_at *at,
	const struct page_message *m, struct page_actions *out);
/* The node was taken for a possible sharer, and has nothing: as if it had dropped the page. Returns
 * false, with the entry unchanged, if the entry says that the node must have something. */
bool home_shared_nothing(struct home_entry *e, const struct page_at *at, unsigned node);
/* Returns true if only the home shares the page, with nothing under way. Then home_alone makes that
 * exclusive, like an upgrade of the home's that needs no answers. Nothing must be remembered. */
bool home_is_alone(const struct home_entry *e, const struct page_hold *local,
	const struct page_at *at);
void home_alone(struct home_entry *e, struct page_hold *local);
/* Handles an EVICT. `room`: there is a frame or buffer for a dirty image, at `place`. `adopt`: the
 * home's shared copy can become the dirty one (home_adopts). */
int home_on_evict(struct home_entry *e, struct page_hold *local, const struct page_at *at,
	const struct page_message *m, bool room, bool adopt, struct page_actions *out);
/* Returns true if the EVICT would make the home's shared copy dirty: the home must persist it
 * then. */
bool home_adopts(const struct home_entry *e, const struct page_hold *local,
	const struct page_at *at, const struct page_message *m);
/* Handles an EVICT or SHIP while the entry is being rebuilt. The evicting node keeps the page. A
 * shipped image is persisted, since the later one of two images wins. */
int home_on_rebuilding(const struct home_entry *e, const struct page_at *at,
	const struct page_message *m, struct page_actions *out);
/* Handles the arrival of a PULL's image. `from`: the evicting node. */
int home_pulled(struct home_entry *e, struct page_hold *local, const struct page_at *at,
	unsigned from, struct page_actions *out);
int home_on_fetch(struct home_entry *e, const struct page_at *at,
	const struct page_message *m, struct page_actions *out);
int home_on_ship(struct home_entry *e, const struct page_at *at,
	const struct page_message *m, struct page_actions *out);
/* Notes that the image that m (a SHIP) announced, or a later one, is persisted (invariant 2). */
int home_persisted(struct home_entry *e, const struct page_at *at,
	const struct page_message *m, struct page_actions *out);
/* Notes that the home has persisted this version of its own frame, or of an image that it owed. */
void home_wrote(struct home_entry *e, const struct page_hold *local,
	const struct page_at *at, uint64_t incarnation, uint64_t version,
	struct page_actions *out);

/* ---- after a change of the cluster epoch (rebuild.c) --------------------- */

struct home_rebuild {
	node_map sharers; /* of the newest shared image */
	node_map owing;   /* all that owe an image */
	node_map sources; /* of the sharers */
	bool owed_logged; /* the newest owed image was in the log of an earlier start */
	bool redone;      /* the persisted image may be from the home's own log, since its start */
	uint16_t owner, source, owed_by;
	uint64_t incarnation, version;           /* newest held image */
	uint64_t owed_incarnation, owed_version; /* newest owed image */
};

/* Voids the work under way for a page, on each node and before any report. */
void page_void(struct page_hold *h, const struct page_at *at, struct page_actions *out);
/* Makes the REPORTs of the images that this node holds and owes: none, one or two. */
void page_report(
	const struct page_hold *h, const struct page_at *at, struct page_actions *out);
void rebuild_begin(struct home_entry *e, struct home_rebuild *r);
int rebuild_on_report(struct home_rebuild *r, const struct page_message *m);
/*
 * Makes the entry when all nodes have reported.
 *
 * `unreported`: the nodes that may have the page and have not reported. If other nodes have it
 * shared, these have it at most shared (invariant 1), and count as sharers. If no node holds the
 * page, or owes the newest image, the caller waits for them. If it knows that none of them can have
 * changed the page, they also count as sharers.
 *
 * Returns:
 *
 * - 0: the entry is rebuilt; perform the actions;
 * - -EAGAIN: a REINSTATE was sent, with FREED to a node that must release an image. Call again when
 *   its REPORT has come;
 * - -EPROTO: the reports contradict each other.
 */
int rebuild_end(struct home_entry *e, struct home_rebuild *r, const struct page_at *at,
	node_map unreported, struct page_actions *out);

/* ---- all --------------------- */

/* Hands a message to its function. Not for EVICT and REPORT. */
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

/* Makes the held image owed (invariant 2). It replaces the owed one, and contains its changes. */
static inline void page_owe(struct page_hold *h, struct page_actions *out)
{
	struct page_action *a = page_act(out, PAGE_KEEP_OWED);

	a->m.incarnation = h->owed_incarnation = h->incarnation;
	a->m.version = h->owed_version = h->version;
	h->logged = false;
}

/* Adds a message of that type about the page, to be filled in. */
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
