/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The keeper: a task for work that waits. Handlers of the network leave it to the keeper, since
 * they must not wait. It makes durable which nodes were met (peers_on_disk.c). It tells the other
 * nodes which nodes are dead (declare_dead.c). It checks whether a later start of this node is in
 * its store when another node refuses this one. If several machines may run this node, it checks
 * that once a second. If something fails the keeper tries again once a second.
 */
#include "engine/node/node_internal.h"

#define KEEP_PAUSE_NS 1000000000ull

/* A start on another machine may come at any time, and may be met by nobody for a while. */
static bool may_run_elsewhere(const struct local_node *self)
{
	return self->o.superseded && !node_is_client(self) &&
	       cluster_machines(cluster_member(self->o.cluster, self->o.node)) > 1;
}

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
	bool elsewhere = may_run_elsewhere(self), doubted;
	int rc;

	/* Where the store may be taken away, the doubt stays until it is. */
	doubted = elsewhere ? atomic_load(&self->doubted)
			    : atomic_exchange(&self->doubted, false);
	if (!self->o.superseded || (!doubted && !elsewhere))
		return;
	rc = store_incarnation_read(self->volume->store, &there);
	if (rc && elsewhere && doubted)
		self->o.superseded(self->o.owner,
			"another node has met a later start of this node, and this machine cannot "
			"read the store any more: it was started elsewhere");
	if (rc || there <= mine)
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
			well && !may_run_elsewhere(self) ? RT_FOREVER
							 : rt_now_ns() + KEEP_PAUSE_NS);
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
