/* SPDX-License-Identifier: Apache-2.0 */
/* What member.c and member_leave.c share. Nobody else includes it. */
#ifndef WEFT_MEMBER_INTERNAL_H
#define WEFT_MEMBER_INTERNAL_H

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "engine/volume/clients.h"
#include "engine/volume/member.h"

#define PATIENCE_NS   100000000ull
#define FIRST_WORD_NS 500000000ull /* nodes that start or end together wait in silence */
#define NEXT_WORD_NS  60000000000ull /* and who waits long says so again */
#define AGAIN_NS      10000000ull
#define AWAY_NS       10000000000ull /* so long a leaving node waits for a link */

#define ABSENT_WORD_NS 2000000000ull  /* nodes that end together are not absent */
#define ABSENT_NS      20000000000ull /* so long, at the end, a store that is away */

enum { WATCH_NOT, WATCH, WATCH_END };
#define KEEP_END UINT32_MAX

/* How far a node is with leaving (docs/many-nodes.md, "Leaving"). Travels in calls. */
enum member_stage {
	STAGE_WORKS,
	STAGE_LEAVES,  /* nobody uses the mount any more */
	STAGE_CLOSED,  /* no operation runs */
	STAGE_SETTLED, /* what was dirty before is persisted; and two rounds more */
	STAGE_END = STAGE_SETTLED + 2,
};

/* Another node, as far as it is known. */
struct other {
	struct member_link link; /* without traffic */
	enum member_stage stage; /* of the start that was met last */
	enum member_stage told;  /* what it has answered to */
	bool gone;               /* it has said goodbye, and did not come back */
	bool known; /* the store says so, too: it may ever have had something */
	bool left;  /* the store says so, too: it has nothing that is waited for */
	/* the store says so, too: the last incarnation that is dead; 0: none, or it was met */
	uint64_t dead;
	uint64_t told_dead; /* bits: dead nodes that it was told of over this link */
	bool barred;        /* its link is not used before the store says otherwise */
	bool returns;       /* the store is to say that it was met */
	bool vacant;        /* a client that is away, and has left nothing: so told */
	/* a client of this host, which was never here: do all others know it? */
	bool asked;         /* it is to be found out */
	bool known_to_all;  /* they do */
	unsigned known_not; /* this one does not */
	unsigned awaited;   /* and this one cannot be asked now */
};

struct member {
	struct member_options o;
	struct volume_peers peers;
	struct volume *volume;
	struct net *net;
	struct net_calls *calls;
	struct coherence *coherence;
	struct shards shards;
	struct clients *clients; /* whose logs are here; NULL: this node is one itself */
	struct rt_task *vacancies;
	_Atomic bool stopping;
	_Atomic uint64_t known; /* bits: nodes that all that runs here knows */
	/* the three below; held briefly, outside of the page protocol's */
	struct rt_mutex lock;
	struct rt_mutex
		noting; /* of the store's notes, and with them `left` and `dead` of others; before `lock` */
	struct other other[CLUSTER_NODE_MAX + 1]; /* by id */
	struct weft_error refusal; /* of an attempt of this node's; code 0: none */
	enum member_stage stage;   /* this node's */
	_Atomic uint32_t changed;  /* counts changes of these */
	_Atomic bool met;          /* all others were there: the volume may be used */
	_Atomic bool alone;        /* does not wait for others to leave any more */
	_Atomic bool cut;          /* nothing waits for others any more */
	_Atomic bool doubted; /* another says that a later start of this node was there */
	uint64_t told_left;   /* bits: nodes that were told that this one has left */
	struct rt_task *keeper;   /* notes in the store that nodes were met */
	_Atomic uint32_t keeping; /* changes when one is there again; KEEP_END: it ends */
	_Atomic bool unused;      /* nobody uses the volume any more, on any node */
	uint64_t absent_at;   /* the watcher's: since when stores are away; 0: none is */
	unsigned absent_said; /* and what was said of it */
	struct rt_task *watcher;   /* NULL: nobody is impatient */
	_Atomic uint32_t watching; /* it asks for patience; WATCH_END: it ends */
};

static inline bool member_is_client(const struct member *m)
{
	return cluster_member(m->o.cluster, m->o.node)->role == CLUSTER_CLIENT;
}

/* The next node that is not this one. */
const struct cluster_member *member_next_other(
	const struct member *m, const struct cluster_member *after);
/*
 * "node 2 (beta:9338), node 3 (gamma:9338)": those others for which `is` holds, under the
 * lock. How many.
 */
unsigned member_who(struct member *m, bool (*is)(const struct member *, unsigned node),
	char *out, size_t cap);
/* After a change of what `lock` guards, without it. */
void member_changed(struct member *m);
enum member_patience member_patience(struct member *m);

/* ---- member_client.c: clients that come and go ---- */

/* Starts to look whether clients that are away have left anything. 0 or -errno. */
int member_vacancies_start(struct member *m);
void member_vacancies_end(struct member *m);
/* volume_peers.vacant */
bool member_vacant(void *arg, unsigned node);
/* A client leaves, by itself: member_settle's part. */
int member_client_settle(struct member *m, struct volume *v);

/* ---- member_reload.c: nodes that are added ---- */

/* clients_options.admits */
int member_admits(void *owner, unsigned client, unsigned *by);
/* Finds out what member_admits was asked. False: not all could be asked. */
bool member_admit(struct member *m, unsigned client);
/*
 * Does this node know all whom those know that it has met? 0; -EXDEV with a text; -EAGAIN: not
 * all could be asked, meet them again.
 */
int member_same_nodes(struct member *m, struct weft_error *err);
int member_serve_nodes(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS]);

/* ---- member.c ---- */

/* Connects with all that are not connected with yet. 0, or -errno with a text. */
int member_peers_add(struct member *m, struct weft_error *err);

/* ---- member_leave.c ---- */

int member_watcher_start(struct member *m);
void member_watcher_end(struct member *m);

int member_serve_stage(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS]);
/* volume_peers.settle */
int member_settle(void *arg, struct volume *v);

/* ---- member_left.c ---- */

/* What the store says of nodes that have left, before anything is asked of it. */
void member_left_read(struct member *m);
int member_serve_left(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS]);
/*
 * After leaving alone: gives back what this node has of others' pages, and tells those
 * nodes that have all of theirs. `durable`: nothing that this node has changed is to be
 * persisted by others, or owed.
 */
void member_give_back(struct member *m, struct volume *v, bool durable);
/*
 * In a handler: true, the link is one of a node that has left, or that the store does not know,
 * and is not to be used.
 */
bool member_barred(
	struct member *m, struct net_peer *peer, const struct net_event *event);
/* In a handler: another node has refused this one as an earlier start. */
void member_doubted(struct member *m);
int member_keeper_start(struct member *m);
void member_keeper_end(struct member *m);
/* There is something for it to do. Never waits. */
void member_keeper_wake(struct member *m);
/* Under `lock`. 0: it lives, as far as is known. */
void member_dead_set(struct member *m, unsigned node, uint64_t incarnation);

/* ---- member_dead.c ---- */

int member_serve_dead(void *owner, unsigned from, const uint64_t ask[NET_CALL_WORDS],
	uint64_t answer[NET_CALL_WORDS]);
/* By the keeper: tells those who are there what they have not been told. False: not all. Waits. */
bool member_dead_tell(struct member *m);

#endif
