/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The invariants of pages, checked on all nodes of a simulation at one moment; check.c lists them.
 * Nodes count from 1.
 */
#ifndef WEFT_TESTS_WORLD_CHECK_H
#define WEFT_TESTS_WORLD_CHECK_H

#include "engine/coherence/coherence.h"
#include "engine/net/net.h"
#include "engine/volume/volume.h"

/* Totals of all runs: how often pages were checked, and how often that was impossible. */
struct look_sums {
	uint64_t looks, changes, stored, blind, directories;
};
extern struct look_sums look_sums;

/*
 * Begins a run. Checks the page of one in `every` messages, chosen by the seed. 0: checks nothing,
 * because a node of the run is hostile and nothing need hold.
 */
void look_begin(unsigned every);
/* Forgets all pages: a tool has changed the stores, or the run has ended. */
void look_forget(void);

/* Adds the calling task's node, which has recovered and is about to connect to the others. */
void look_up(unsigned id, struct coherence *c);
/* Removes the calling task's node, which leaves: all its changes are persisted, or shipped. */
void look_down(unsigned id);
/* Removes the calling task's node, whose log is about to fail: changes that are not durable may be lost. */
void look_fails(unsigned id);
/*
 * Wraps the peers of a node that is opened as weftd opens it: adds the node when it starts, and
 * removes it when it stops. Its messages are not checked; the changes that they make are.
 */
const struct volume_peers *look_peers(unsigned id, const struct volume_peers *real);

/* Checks one page, or all. Never waits. */
void look_page(page_id pid);
void look_pages(void);
/* Checks the page of a message that a node has handled, or all pages in a new epoch. Never waits. */
void look_message(const struct net_message *m);
/*
 * Checks invariant 7 while no node changes anything. Does nothing unless `nodes` nodes are up.
 * Waits for messages that are under way, a few seconds at most.
 */
void look_directory(unsigned nodes);

#endif
