/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keeper: a task for work that waits. Handlers of the network leave it to the keeper, since
 * they must not wait. It makes durable which nodes were met (peers_on_disk.c). It tells the other
 * nodes which nodes are dead (declare_dead.c). It checks whether a later start of this node is in
 * its store. If something fails the keeper tries again once a second.
 */
#include "engine/node/node_internal.h"

#define KEEP_PAUSE_NS 1000000000ull

void node_doubted(struct local_node *self)
{
	atomic_store(&self->doubted, true);
	node_keeper_wake(self);
}

/* A word of a peer that may not have proven its identity is a hint. The store tells if it is true:
 * every start is written there first. */
static void doubt_look(struct local_node *self)
{
	uint64_t mine = cluster_incarnation(self->o.cluster, self->o.node), there;

	if (!atomic_exchange(&self->doubted, false) || !self->o.superseded)
		return;
	if (store_incarnation_read(self->volume->store, &there) || there <= mine)
		return;
	self->o.superseded(self->o.owner, "a later start of this node has been there: it was "
				    "fenced, or started elsewhere");
}

static void keeper_main(void *arg)
{
	struct local_node *self = arg;
	uint32_t word;

	while ((word = atomic_load(&self->keeping)) != KEEP_END) {
		bool well = node_note_met(self);

		doubt_look(self);
		well &= node_dead_tell(self);
		rt_wait(&self->keeping, word,
			well ? RT_FOREVER : rt_now_ns() + KEEP_PAUSE_NS);
	}
}

int node_keeper_start(struct local_node *self)
{
	atomic_store(&self->keeping, 0);
	return rt_task_spawn(&self->keeper, "returns", keeper_main, self);
}

void node_keeper_end(struct local_node *self)
{
	atomic_store(&self->keeping, KEEP_END);
	rt_wake(&self->keeping, 1);
	if (self->keeper)
		rt_task_join(self->keeper);
	self->keeper = NULL;
}
