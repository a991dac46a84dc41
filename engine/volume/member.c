/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The nodes of a cluster meet: whom to connect with comes from engine/cluster, what goes
 * to and fro is engine/net's, what it means engine/coherence's. Here is who waits for whom.
 *
 * A node that cannot be reached is waited for: it may come. One that is reached, and does
 * not fit, is an error, as long as it was this node that connected: then it is what the
 * cluster's address leads to. What strangers say who connect to this node is told, and no
 * more.
 */
#include "engine/cache/cache.h"
#include "engine/volume/member_internal.h"

/* ---- who the others are ------------------------------------------------------------------ */

/* The next node that is not this one. */
const struct cluster_member *member_next_other(
	const struct member *m, const struct cluster_member *after)
{
	do {
		after = cluster_next(m->o.cluster, after);
	} while (after && after->id == m->o.node);
	return after;
}

static void address_of(const struct member *m, unsigned node, char out[NET_ADDRESS_BYTES])
{
	const struct cluster_member *c = cluster_member(m->o.cluster, node);

	if (m->o.address)
		m->o.address(m->o.owner, node, out);
	else
		cluster_addresses_print(c, out, NET_ADDRESS_BYTES);
}

static unsigned home_of(void *owner, uint16_t shard)
{
	const struct member *m = owner;
	unsigned node = cluster_home(m->o.cluster, shard);

	return node == CLUSTER_NODE_NONE ? NODE_NONE : node;
}

void member_changed(struct member *m)
{
	atomic_fetch_add(&m->changed, 1);
	net_wake(m->net, &m->changed, INT32_MAX);
}

enum member_patience member_patience(struct member *m)
{
	return m->o.patience ? m->o.patience(m->o.owner) : MEMBER_WAITS;
}

unsigned member_who(struct member *m, bool (*is)(const struct member *, unsigned node),
	char *out, size_t cap)
{
	const struct cluster_member *c = NULL;
	unsigned count = 0;
	size_t used = 0;

	out[0] = '\0';
	rt_mutex_lock(&m->lock);
	while ((c = member_next_other(m, c))) {
		char address[NET_ADDRESS_BYTES];

		if (!is(m, c->id))
			continue;
		address_of(m, c->id, address);
		if (used < cap)
			used += (size_t)snprintf(out + used, cap - used,
				"%snode %u (%.100s)", count ? ", " : "", c->id, address);
		count++;
	}
	rt_mutex_unlock(&m->lock);
	return count;
}

/* ---- what the network says ----------------------------------------------------------------- */

static void on_message(
	void *owner, struct net_peer *peer, const struct net_message *message)
{
	struct member *m = owner;

	if (net_peer_node(peer) > CLUSTER_NODE_MAX) { /* it is here for its log */
		if (!net_calls_message(m->calls, peer, message))
			net_cut(peer, -EPROTO);
		return;
	}
	/* it changes in events, which come between messages */
	if (m->other[net_peer_node(peer)].barred)
		return;
	if (!net_calls_message(m->calls, peer, message))
		coherence_cluster_message(m->coherence, peer, message);
}

/* Whatever the other end says, it may be another a moment later: not an error. */
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

static void link_refused(struct member *m, unsigned node, const struct net_event *event)
{
	struct member_link *l = &m->other[node].link;

	rt_mutex_lock(&m->lock);
	if (event->dialed || event->proven || !l->up)
		snprintf(l->text, sizeof(l->text), "%s", event->text);
	if (event->dialed && !may_pass(event->code))
		weft_error(&m->refusal, event->code, "%s", event->text);
	rt_mutex_unlock(&m->lock);
	if (event->code == -ESTALE)
		member_doubted(m);
	/* who is waited for is told anyway (wait_for_others), and why by weft status */
	if (event->dialed || event->proven)
		weft_log(may_pass(event->code) ? 7 : 4, "%s", event->text);
}

static void link_changed(struct member *m, unsigned node, const struct net_event *event)
{
	struct other *other = &m->other[node];
	struct member_link *l = &other->link;
	bool up = event->kind == NET_LINK_UP, leaving;

	rt_mutex_lock(&m->lock);
	other->vacant = false;
	leaving = other->stage >= STAGE_CLOSED;
	if (l->incarnation != event->incarnation)
		other->stage = STAGE_WORKS;
	other->told = STAGE_WORKS; /* it is told again */
	other->told_dead = 0;
	other->gone = !up && event->code == -ESHUTDOWN;
	l->up = up;
	l->since_ns = rt_now_ns();
	l->incarnation = event->incarnation;
	l->dialed = event->dialed;
	snprintf(l->text, sizeof(l->text), "%s", up ? "" : event->text);
	snprintf(l->address, sizeof(l->address), "%s", up ? event->address : "");
	rt_mutex_unlock(&m->lock);
	cluster_heard(m->o.cluster, node, event->incarnation);
	/* when this node's log has failed it is this node that went away, which was said */
	if (atomic_load(&m->met) && !leaving && (up || !volume_failed(m->volume)))
		weft_log(5, "node %u is %s%s%s", node,
			up ? "there" : "away: ", up ? "" : event->text,
			up ? " again" : "");
}

static void on_event(void *owner, struct net_peer *peer, const struct net_event *event)
{
	struct member *m = owner;

	if (net_peer_node(peer) > CLUSTER_NODE_MAX) {
		clients_event(m->clients, peer, event);
		net_calls_event(m->calls, peer, event);
		return;
	}
	if (member_barred(m, peer, event))
		return;
	if (event->kind == NET_LINK_REFUSED)
		link_refused(m, net_peer_node(peer), event);
	else
		link_changed(m, net_peer_node(peer), event);
	coherence_cluster_event(m->coherence, peer, event);
	net_calls_event(m->calls, peer, event);
	member_changed(m);
	/* it tells by calls, which can be made from here on */
	if (atomic_load(&m->volume->dead))
		member_keeper_wake(m);
}

/* ---- opening ------------------------------------------------------------------------------- */

static int shards_list(struct member *m, struct weft_error *err)
{
	const struct cluster_member *c = NULL;
	int rc = 0;

	m->shards.count = 0;
	while (!rc && (c = cluster_next(m->o.cluster, c)))
		if (c->role == CLUSTER_STORAGE)
			rc = shards_set(
				&m->shards, c->shard, 0); /* how large: not known */
	return rc ? weft_error(err, rc, "there are too many storage nodes") : 0;
}

static int network_open(struct member *m, struct volume *v, struct weft_error *err)
{
	const struct disk_superblock *sb = store_superblock(v->store);
	const uint8_t *key = cluster_key(m->o.cluster);
	char address[NET_ADDRESS_BYTES];
	struct net_options o = {
		.transport =
			m->o.transport ? m->o.transport : cluster_transport(m->o.cluster),
		.self = {.incarnation = sb->incarnation,
			.node = (uint16_t)m->o.node,
			.role = member_is_client(m) ? NET_ROLE_CLIENT : NET_ROLE_STORAGE},
		.listen = m->o.dials_only ? NULL : address,
		.tls = cluster_tls(m->o.cluster),
		.handlers = {m, on_message, on_event},
	};
	int rc;

	if (!key)
		return weft_error(err, -ENOKEY, "the cluster's key was not read");
	memcpy(o.key, key, sizeof(o.key));
	memcpy(o.self.volume_uuid, sb->volume_uuid, NET_UUID_BYTES);
	memcpy(o.self.node_uuid, sb->store_uuid, NET_UUID_BYTES);
	address_of(m, m->o.node, address);
	rc = net_open(&m->net, &o, err);
	explicit_bzero(o.key, sizeof(o.key));
	return rc;
}

static bool is_connected(void *owner, unsigned node)
{
	struct member *m = owner;
	bool up;

	rt_mutex_lock(&m->lock);
	up = m->other[node].link.up;
	rt_mutex_unlock(&m->lock);
	return up;
}

static int host_open(struct member *m, struct volume *v, struct weft_error *err)
{
	const struct clients_options o = {.cluster = m->o.cluster,
		.node = m->o.node,
		.store = v->store,
		.log = v->log,
		.net = m->net,
		.calls = m->calls,
		.connected = is_connected,
		.admits = member_admits,
		.owner = m};

	return member_is_client(m) ? 0 : clients_open(&m->clients, &o, err);
}

/* Nothing is asked, and no server runs, any more. */
static void network_close(struct member *m)
{
	net_close(m->net);
	if (m->calls)
		net_calls_close(m->calls);
	clients_close(m->clients);
	m->clients = NULL;
	m->net = NULL;
	m->calls = NULL;
}

static int member_provide(
	void *arg, struct volume *v, struct coherence **out, struct weft_error *err)
{
	struct member *m = arg;
	struct coherence_cluster_options o;
	int rc;

	m->volume = v;
	member_left_read(m);
	o = (struct coherence_cluster_options){
		.self = (uint8_t)m->o.node,
		.shard = store_superblock(v->store)->shard,
		.home = home_of,
		.owner = m,
		.store = v->store,
		.log = v->log,
		.shards = &m->shards,
		.left = atomic_load(&v->left),
		.dead = atomic_load(&v->dead),
		.cluster_epoch = 1,
		.members = cluster_node_bits(m->o.cluster),
	};
	rc = shards_list(m, err);
	if (!rc)
		rc = network_open(m, v, err);
	if (rc)
		return rc;
	rc = net_calls_open(&m->calls, m->net);
	if (rc)
		goto out_net;
	rc = host_open(m, v, err);
	if (rc)
		goto out_calls;
	o.net = m->net;
	rc = coherence_cluster_open(&m->coherence, &o);
	if (rc)
		goto out_calls;
	net_calls_serve(m->calls, NET_CALL_STAGE, member_serve_stage, m);
	net_calls_serve(m->calls, NET_CALL_LEFT, member_serve_left, m);
	net_calls_serve(m->calls, NET_CALL_NODES, member_serve_nodes, m);
	net_calls_serve(m->calls, NET_CALL_DEAD, member_serve_dead, m);
	v->calls = m->calls;
	atomic_store(&v->nodes, o.members);
	atomic_store(&m->known, o.members);
	cluster_heard(m->o.cluster, m->o.node, store_superblock(v->store)->incarnation);
	*out = m->coherence;
	return 0;
out_calls:
	net_calls_stop(m->calls);
out_net:
	network_close(m);
	return weft_error(
		err, rc, "cannot run the page protocol: %s", strerrordesc_np(-rc));
}

int member_peers_add(struct member *m, struct weft_error *err)
{
	const struct cluster_member *c = NULL;
	char address[NET_ADDRESS_BYTES];
	int rc = 0;

	while (!rc && (c = member_next_other(m, c))) {
		struct net_peer_options o = {.node = (uint16_t)c->id,
			.incarnation = MAX(store_left(m->volume->store, c->id),
				m->other[c->id].dead ? m->other[c->id].dead + 1 : 0),
			.address = address};
		struct weft_error why = {0};
		struct net_peer *peer;

		if (net_peer_find(m->net, (uint16_t)c->id))
			continue;
		address_of(m, c->id, address);
		m->other[c->id].link.since_ns = rt_now_ns();
		rc = net_peer_add(&peer, m->net, &o, &why);
		if (rc && m->o.address)
			weft_error(err, rc, "node %u: %s", c->id, why.text);
		else if (rc)
			weft_error(err, rc,
				"%s:%u: node %u's address: %s; mend the name service or "
				"/etc/hosts, or write its IP address",
				cluster_path(m->o.cluster), c->address_line, c->id,
				why.text);
	}
	return rc;
}

static int network_start(struct member *m, struct weft_error *err)
{
	const struct cluster_member *self = cluster_member(m->o.cluster, m->o.node);
	struct weft_error why = {0};
	int rc = net_start(m->net, &why);

	if (!rc)
		return 0;
	return weft_error(err, rc,
		"%s:%u: node %u: %s; an address of it must be one of this machine's, and "
		"the port free",
		cluster_path(m->o.cluster), self->address_line, m->o.node, why.text);
}

/* Clients come when they like. */
static bool is_away(const struct member *m, unsigned node)
{
	const struct other *other = &m->other[node];

	return !other->link.up && !other->left && !other->dead &&
	       cluster_member(m->o.cluster, node)->role == CLUSTER_STORAGE;
}

static int refusal_of(struct member *m, struct weft_error *err)
{
	int rc;

	rt_mutex_lock(&m->lock);
	rc = m->refusal.code;
	if (rc)
		weft_error(err, rc, "%s", m->refusal.text);
	rt_mutex_unlock(&m->lock);
	return rc;
}

static int wait_for_others(struct member *m, struct weft_error *err)
{
	uint64_t say_at = rt_now_ns() + FIRST_WORD_NS;
	unsigned said = 0;
	char who[400];

	for (;;) {
		uint32_t word = atomic_load(&m->changed);
		unsigned away = member_who(m, is_away, who, sizeof(who));
		uint64_t now = rt_now_ns();
		int rc = refusal_of(m, err);

		if (rc || !away)
			return rc;
		if (member_patience(m) == MEMBER_CUT)
			return weft_error(
				err, -EINTR, "interrupted while waiting for %s", who);
		if (volume_failed(m->volume))
			return weft_error(err, -EIO,
				"the log failed while this node waited for %s", who);
		if (now >= say_at || (said && away != said)) {
			weft_log(6, "waiting for %s", who);
			said = away;
			say_at = now + NEXT_WORD_NS;
		}
		net_wait(m->net, NULL, &m->changed, word, MIN(now + PATIENCE_NS, say_at));
	}
}

/* The volume is opened without them; it may take them all the same. */
static void say_dead(const struct member *m)
{
	const struct cluster_member *c = NULL;

	while ((c = member_next_other(m, c)))
		if (m->other[c->id].dead)
			weft_log(5,
				"node %u is dead: what it may have changed waits for it",
				c->id);
}

/* All are there, and agree who all are. */
static int meet(struct member *m, struct weft_error *err)
{
	int rc;

	say_dead(m);
	rc = wait_for_others(m, err);
	while (!rc) {
		rc = member_same_nodes(m, err);
		if (rc != -EAGAIN)
			return rc;
		if (member_patience(m) == MEMBER_CUT)
			return weft_error(err, -EINTR,
				"interrupted while waiting for the other nodes");
		rt_sleep_ns(AGAIN_NS);
		rc = wait_for_others(m, err);
	}
	return rc;
}

static int member_start(void *arg, struct volume *v, struct weft_error *err)
{
	struct member *m = arg;
	int rc = coherence_cluster_start(m->coherence);

	if (rc)
		return weft_error(err, rc, "cannot start the page protocol: %s",
			strerrordesc_np(-rc));
	/* others may ship to a home from here on, for as long as it waits to meet all */
	rc = member_is_client(m) ? 0 : cache_start_checkpoints(v->cache);
	if (!rc)
		rc = member_watcher_start(m);
	if (!rc)
		rc = member_keeper_start(m);
	if (rc)
		return weft_error(
			err, rc, "cannot start a task: %s", strerrordesc_np(-rc));
	rc = member_peers_add(m, err);
	if (!rc)
		rc = network_start(m, err);
	if (!rc) {
		rc = member_vacancies_start(m);
		if (rc)
			weft_error(
				err, rc, "cannot start a task: %s", strerrordesc_np(-rc));
	}
	if (!rc)
		rc = meet(m, err);
	if (!rc)
		atomic_store(&m->met, true);
	return rc;
}

/* ---- closing --------------------------------------------------------------------------------- */

static void member_stop(void *arg, struct volume *v)
{
	struct member *m = arg;

	member_watcher_end(m);
	member_keeper_end(m);
	member_vacancies_end(m);
	net_calls_stop(m->calls);
	if (m->vacancies)
		rt_task_join(m->vacancies);
	m->vacancies = NULL;
	coherence_cluster_stop(m->coherence);
	network_close(m);
	v->calls = NULL;
	m->coherence = NULL; /* the volume closes it */
}

int member_open(
	struct member **out, const struct member_options *o, struct weft_error *err)
{
	const struct cluster_member *self = cluster_member(o->cluster, o->node);
	struct member *m;

	*out = NULL;
	if (!self)
		return weft_error(err, -EINVAL, "there is no node %u", o->node);
	m = rt_alloc(sizeof(*m));
	if (!m)
		return weft_error(err, -ENOMEM, "no memory for a member");
	m->o = *o;
	m->peers = (struct volume_peers){member_provide, member_start, member_stop, m,
		member_settle, member_vacant};
	*out = m;
	return 0;
}

const struct volume_peers *member_peers(struct member *m)
{
	return &m->peers;
}

void member_close(struct member *m)
{
	rt_free(m);
}

/* ---- for people ------------------------------------------------------------------------------ */

int member_link(struct member *m, unsigned node, struct member_link *out)
{
	struct net_peer *peer = m->net ? net_peer_find(m->net, (uint16_t)node) : NULL;

	if (!peer)
		return -ENOENT;
	rt_mutex_lock(&m->lock);
	*out = m->other[node].link;
	out->leaving = m->other[node].stage != STAGE_WORKS;
	out->left = m->other[node].left;
	out->dead = m->other[node].dead;
	rt_mutex_unlock(&m->lock);
	net_counters(peer, &out->traffic);
	return 0;
}

const struct coherence_cluster_counters *member_counters(struct member *m)
{
	return m->coherence ? coherence_cluster_counters(m->coherence) : NULL;
}
