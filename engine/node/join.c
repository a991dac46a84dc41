/* SPDX-License-Identifier: Apache-2.0 */
/*
 * This node joins the others: opens the network, connects with all nodes that the cluster names,
 * and waits until it has met them. At the end it closes the network. Events of links in between
 * come in here, and go to coherence and to calls.
 *
 * A node that cannot be reached is waited for: it may come. One that is reached, and does not fit,
 * is an error if this node has dialed, since the cluster's address leads there. If the other end
 * has dialed it may be a stranger: then the error is logged, and no more.
 */
#include "engine/cache/cache.h"
#include "engine/node/node_internal.h"

static unsigned home_of(void *owner, uint16_t shard)
{
	const struct local_node *self = owner;
	unsigned node = cluster_home(self->o.cluster, shard);

	return node == CLUSTER_NODE_NONE ? COHERENCE_NO_NODE : node;
}

/* ---- what the network says ----------------------------------------------------------------- */

/* The other end may say something else a moment later: not an error. */
static bool may_pass(int code)
{
	switch (code) {
	case -EKEYREJECTED:
	case -EXDEV:
	case -EPROTONOSUPPORT:
	case -EPROTOTYPE:
	case -EADDRINUSE:
	case -EADDRNOTAVAIL:
	case -ESTALE:
	case -ETIME:
	case -ENOENT:
		return false;
	default:
		return true;
	}
}

static void link_refused(struct local_node *self, unsigned node, const struct net_event *event)
{
	struct node_link *l = &self->other[node].link;

	rt_mutex_lock(&self->lock);
	if (event->dialed || event->proven || !l->connected)
		snprintf(l->text, sizeof(l->text), "%s", event->text);
	if (event->dialed && !may_pass(event->code))
		weft_error(&self->refusal, event->code, "%s", event->text);
	rt_mutex_unlock(&self->lock);
	if (event->code == -ESTALE)
		node_doubted(self);
	/* the wait for other nodes is reported anyway (wait_for_others), and its cause by weft
	 * status */
	if (event->dialed || event->proven)
		weft_log(may_pass(event->code) ? 7 : 4, "%s", event->text);
}

static void link_changed(struct local_node *self, unsigned node, const struct net_event *event)
{
	struct other *other = &self->other[node];
	struct node_link *l = &other->link;
	bool up = event->kind == NET_LINK_UP, leaving;

	rt_mutex_lock(&self->lock);
	other->vacant = false;
	leaving = other->stage >= STAGE_CLOSED;
	if (l->incarnation != event->incarnation)
		other->stage = STAGE_WORKS;
	other->told = STAGE_WORKS; /* it is told again */
	other->told_dead = 0;
	other->said_goodbye = !up && event->code == -ESHUTDOWN;
	l->connected = up;
	l->since_ns = rt_now_ns();
	l->incarnation = event->incarnation;
	l->dialed = event->dialed;
	snprintf(l->text, sizeof(l->text), "%s", up ? "" : event->text);
	snprintf(l->address, sizeof(l->address), "%s", up ? event->address : "");
	rt_mutex_unlock(&self->lock);
	cluster_heard(self->o.cluster, node, event->incarnation);
	/* when this node's log has failed it is this node that went away, which was said */
	if (atomic_load(&self->met) && !leaving && (up || !volume_failed(self->volume)))
		weft_log(5, "node %u is %s%s%s", node,
			up ? "there" : "away: ", up ? "" : event->text,
			up ? " again" : "");
}

static void on_link_event(void *owner, struct net_peer *peer, const struct net_event *event)
{
	struct local_node *self = owner;

	if (net_peer_node(peer) > CLUSTER_NODE_MAX) {
		clients_event(self->clients, peer, event);
		net_calls_event(self->calls, peer, event);
		return;
	}
	if (node_refuses_link(self, peer, event))
		return;
	if (event->kind == NET_LINK_REFUSED)
		link_refused(self, net_peer_node(peer), event);
	else
		link_changed(self, net_peer_node(peer), event);
	coherence_event(self->coherence, peer, event);
	net_calls_event(self->calls, peer, event);
	node_changed(self);
	/* it tells by calls, which can be made from here on */
	if (atomic_load(&self->volume->dead))
		node_keeper_wake(self);
}

/* ---- opening ------------------------------------------------------------------------------- */

static int shards_list(struct local_node *self, struct weft_error *err)
{
	const struct cluster_member *c = NULL;
	int rc = 0;

	self->shards.count = 0;
	while (!rc && (c = cluster_next(self->o.cluster, c)))
		if (c->role == CLUSTER_STORAGE)
			rc = shards_set(
				&self->shards, c->shard, 0); /* how large: not known */
	return rc ? weft_error(err, rc, "there are too many storage nodes") : 0;
}

static int network_open(struct local_node *self, struct volume *v, struct weft_error *err)
{
	const struct disk_superblock *sb = store_superblock(v->store);
	const uint8_t *key = cluster_key(self->o.cluster);
	char address[NET_ADDRESS_BYTES];
	struct net_options o = {
		.transport =
			self->o.transport ? self->o.transport : cluster_transport(self->o.cluster),
		.self = {.incarnation = sb->incarnation,
			.node = (uint16_t)self->o.node,
			.role = node_is_client(self) ? NET_ROLE_CLIENT : NET_ROLE_STORAGE},
		.listen = self->o.dials_only ? NULL : address,
		.tls = cluster_tls(self->o.cluster),
		.handlers = {.owner = self, .event = on_link_event},
	};
	int rc;

	if (!key)
		return weft_error(err, -ENOKEY, "the cluster's key was not read");
	memcpy(o.key, key, sizeof(o.key));
	memcpy(o.self.volume_uuid, sb->volume_uuid, NET_UUID_BYTES);
	memcpy(o.self.node_uuid, sb->store_uuid, NET_UUID_BYTES);
	node_address(self, self->o.node, address);
	rc = net_open(&self->net, &o, err);
	explicit_bzero(o.key, sizeof(o.key));
	return rc;
}

static int host_open(struct local_node *self, struct volume *v, struct weft_error *err)
{
	const struct clients_options o = {.cluster = self->o.cluster,
		.node = self->o.node,
		.store = v->store,
		.log = v->log,
		.net = self->net,
		.calls = self->calls,
		.connected = node_connected,
		.admits = node_admits,
		.owner = self};

	return node_is_client(self) ? 0 : clients_open(&self->clients, &o, err);
}

/* Nothing is asked, and no server runs, any more. */
static void network_close(struct local_node *self)
{
	net_close(self->net);
	if (self->calls)
		net_calls_close(self->calls);
	clients_close(self->clients);
	self->clients = NULL;
	self->net = NULL;
	self->calls = NULL;
}

static int node_provide(void *arg, struct volume *v, struct coherence_options *out,
	struct weft_error *err)
{
	struct local_node *self = arg;
	int rc;

	self->volume = v;
	node_left_read(self);
	*out = (struct coherence_options){
		.provider = self->o.coherence,
		.self = (uint8_t)self->o.node,
		.shard = store_superblock(v->store)->shard,
		.home = home_of,
		.owner = self,
		.store = v->store,
		.log = v->log,
		.shards = &self->shards,
		.left = atomic_load(&v->left),
		.dead = atomic_load(&v->dead),
		.cluster_epoch = 1,
		.members = cluster_node_bits(self->o.cluster),
	};
	rc = shards_list(self, err);
	if (!rc)
		rc = network_open(self, v, err);
	if (rc)
		return rc;
	rc = net_calls_open(&self->calls, self->net);
	if (rc)
		goto out_net;
	rc = host_open(self, v, err);
	if (rc)
		goto out_calls;
	out->net = self->net;
	net_calls_serve(self->calls, NET_CALL_STAGE, node_serve_stage, self);
	net_calls_serve(self->calls, NET_CALL_LEFT, node_serve_left, self);
	net_calls_serve(self->calls, NET_CALL_NODES, node_serve_nodes, self);
	net_calls_serve(self->calls, NET_CALL_DEAD, node_serve_dead, self);
	v->calls = self->calls;
	atomic_store(&v->nodes, out->members);
	atomic_store(&self->known, out->members);
	cluster_heard(self->o.cluster, self->o.node, store_superblock(v->store)->incarnation);
	return 0;
out_calls:
	net_calls_stop(self->calls);
out_net:
	network_close(self);
	return weft_error(
		err, rc, "cannot run the page protocol: %s", strerrordesc_np(-rc));
}

static int network_start(struct local_node *self, struct weft_error *err)
{
	const struct cluster_member *entry = cluster_member(self->o.cluster, self->o.node);
	struct weft_error why = {0};
	int rc = net_start(self->net, &why);

	if (!rc)
		return 0;
	return weft_error(err, rc,
		"%s:%u: node %u: %s; an address of it must be one of this machine's, and "
		"the port free",
		cluster_path(self->o.cluster), entry->address_line, self->o.node, why.text);
}

/* Clients come when they like. */
static bool is_away(const struct local_node *self, unsigned node)
{
	const struct other *other = &self->other[node];

	return !other->link.connected && !other->left && !other->dead &&
	       cluster_member(self->o.cluster, node)->role == CLUSTER_STORAGE;
}

static int refusal_of(struct local_node *self, struct weft_error *err)
{
	int rc;

	rt_mutex_lock(&self->lock);
	rc = self->refusal.code;
	if (rc)
		weft_error(err, rc, "%s", self->refusal.text);
	rt_mutex_unlock(&self->lock);
	return rc;
}

static int wait_for_others(struct local_node *self, struct weft_error *err)
{
	uint64_t say_at = rt_now_ns() + FIRST_WORD_NS;
	unsigned said = 0;
	char who[400];

	for (;;) {
		uint32_t word = atomic_load(&self->changed);
		unsigned away = node_list_others(self, is_away, who, sizeof(who));
		uint64_t now = rt_now_ns();
		int rc = refusal_of(self, err);

		if (rc || !away)
			return rc;
		if (node_patience(self) == NODE_CUT)
			return weft_error(
				err, -EINTR, "interrupted while waiting for %s", who);
		if (volume_failed(self->volume))
			return weft_error(err, -EIO,
				"the log failed while this node waited for %s", who);
		if (now >= say_at || (said && away != said)) {
			weft_log(6, "waiting for %s", who);
			if (self->o.waits)
				self->o.waits(self->o.owner, who);
			said = away;
			say_at = now + NEXT_WORD_NS;
		}
		net_wait(self->net, NULL, &self->changed, word, MIN(now + PATIENCE_NS, say_at));
	}
}

/* The volume is opened without them; it may take them all the same. */
static void say_dead(const struct local_node *self)
{
	const struct cluster_member *c = NULL;

	while ((c = node_next_other(self, c)))
		if (self->other[c->id].dead)
			weft_log(5,
				"node %u is dead: requests for pages that it may have "
				"changed wait for it",
				c->id);
}

/* Waits until all nodes are there, and agree on the list of nodes. */
static int meet_others(struct local_node *self, struct weft_error *err)
{
	int rc;

	say_dead(self);
	rc = wait_for_others(self, err);
	while (!rc) {
		rc = node_same_nodes(self, err);
		if (rc != -EAGAIN)
			return rc;
		if (node_patience(self) == NODE_CUT)
			return weft_error(err, -EINTR,
				"interrupted while waiting for the other nodes");
		rt_sleep_ns(AGAIN_NS);
		rc = wait_for_others(self, err);
	}
	return rc;
}

static int node_start(void *arg, struct volume *v, struct weft_error *err)
{
	struct local_node *self = arg;
	int rc;

	self->coherence = v->coherence;
	rc = coherence_listen(self->coherence, self->net);
	if (!rc)
		rc = coherence_start(self->coherence);
	if (rc)
		return weft_error(err, rc, "cannot start the page protocol: %s",
			strerrordesc_np(-rc));
	/* others may ship to a home from here on, for as long as it waits to meet all */
	rc = node_is_client(self) ? 0 : cache_start_checkpoints(v->cache);
	if (!rc)
		rc = node_watcher_start(self);
	if (!rc)
		rc = node_keeper_start(self);
	if (rc)
		return weft_error(
			err, rc, "cannot start a task: %s", strerrordesc_np(-rc));
	rc = node_peers_add(self, err);
	if (!rc)
		rc = network_start(self, err);
	if (!rc) {
		rc = node_vacancies_start(self);
		if (rc)
			weft_error(
				err, rc, "cannot start a task: %s", strerrordesc_np(-rc));
	}
	if (!rc)
		rc = meet_others(self, err);
	if (!rc)
		atomic_store(&self->met, true);
	return rc;
}

/* ---- closing --------------------------------------------------------------------------------- */

static void node_stop(void *arg, struct volume *v)
{
	struct local_node *self = arg;

	node_watcher_end(self);
	node_keeper_end(self);
	node_vacancies_end(self);
	net_calls_stop(self->calls);
	if (self->vacancies)
		rt_task_join(self->vacancies);
	self->vacancies = NULL;
	if (v->coherence)
		coherence_stop(v->coherence);
	network_close(self);
	v->calls = NULL;
	self->coherence = NULL; /* the volume closes it */
}

int node_open(
	struct local_node **out, const struct node_options *o, struct weft_error *err)
{
	const struct cluster_member *entry = cluster_member(o->cluster, o->node);
	struct local_node *self;

	*out = NULL;
	if (!entry)
		return weft_error(err, -EINVAL, "there is no node %u", o->node);
	self = rt_alloc(sizeof(*self));
	if (!self)
		return weft_error(err, -ENOMEM, "no memory for a member");
	self->o = *o;
	self->peers = (struct volume_peers){node_provide, node_start, node_stop, self,
		node_settle, node_vacant};
	*out = self;
	return 0;
}

const struct volume_peers *node_volume_peers(struct local_node *self)
{
	return &self->peers;
}

void node_close(struct local_node *self)
{
	rt_free(self);
}

/* ---- for people ------------------------------------------------------------------------------ */

int node_link(struct local_node *self, unsigned node, struct node_link *out)
{
	struct net_peer *peer = self->net ? net_peer_find(self->net, (uint16_t)node) : NULL;

	if (!peer)
		return -ENOENT;
	rt_mutex_lock(&self->lock);
	*out = self->other[node].link;
	out->leaving = self->other[node].stage != STAGE_WORKS;
	out->left = self->other[node].left;
	out->dead = self->other[node].dead;
	rt_mutex_unlock(&self->lock);
	net_counters(peer, &out->traffic);
	return 0;
}
