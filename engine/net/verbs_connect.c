/* SPDX-License-Identifier: Apache-2.0 */
/*
 * librdmacm connects queue pairs, beside a connection that has proven the cluster's key. It finds
 * device, port and GID from the address. All on the progress task, which also gets the manager's
 * events.
 *
 * A request for a queue pair must bring the token that was sent on such a connection. A token is
 * good for one request.
 */
#include "engine/net/verbs_internal.h"

#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <string.h>

#define RESOLVE_MS  2000
#define RETRIES     7  /* of the card; then the link ends */
#define RNR_RETRIES 7  /* for ever; there always is a receive */
#define ACK_TIMEOUT 17 /* 4.096 us * 2^17 = 0.5 s a retry */

#define NO_DEVICE                                                                        \
	"no RDMA device of this machine leads there (%s); see `rdma link show` and `ip " \
	"route get`"

static struct connect_net *lines_of(struct net_connection *c)
{
	return connect_net_of(c->greeting.peer->net);
}

/* Ends the connection, and the pair with it, with an error text of its own. */
static void give_up(struct net_connection *c, const struct weft_error *why)
{
	snprintf(c->why, sizeof(c->why), "%.*s", (int)sizeof(c->why) - 1, why->text);
	if (!c->greeting.dialer)
		weft_log(4, "verbs: no link with node %u: %s", c->greeting.peer->node,
			why->text);
	connect_failed(lines_of(c), c, why->code);
}

static void *port_of(struct rt_address *a)
{
	struct sockaddr *sa = (struct sockaddr *)a->bytes;

	switch (sa->sa_family) {
	case AF_INET:
		return &((struct sockaddr_in *)sa)->sin_port;
	case AF_INET6:
		return &((struct sockaddr_in6 *)sa)->sin6_port;
	default:
		return NULL;
	}
}

/* ---- the manager ------------------------------------------------------------------------- */

int verbs_manager_open(struct verbs_net *net, struct weft_error *err)
{
	int rc;

	net->manager = rdma_create_event_channel();
	if (!net->manager)
		return weft_error(err, -errno,
			"verbs: no connection manager: %s; is the module rdma_ucm "
			"loaded, "
			"and an RDMA device there (ibv_devices)?",
			strerrordesc_np(errno));
	rc = verbs_nonblocking(net->manager->fd);
	if (!rc)
		rc = rt_socket_watch(&net->manager_events, net->manager->fd);
	if (rc)
		return weft_error(
			err, rc, "verbs: the connection manager cannot be watched");
	net->manager_source.kind = CONNECT_DEVICE;
	rc = rt_poller_add(net->lines.poller, net->manager_events, RT_READABLE,
		&net->manager_source);
	if (rc) {
		rt_socket_close(net->manager_events);
		net->manager_events = NULL;
		return weft_error(
			err, rc, "verbs: the connection manager cannot be watched");
	}
	return 0;
}

static void stop_listening(struct verbs_net *net, unsigned place)
{
	if (net->listener[place])
		rdma_destroy_id(net->listener[place]);
	net->listener[place] = NULL;
}

int verbs_manager_listen(struct connect_net *lines, unsigned i, struct weft_error *err)
{
	static const uint16_t any;
	struct verbs_net *net = verbs_net_of(&lines->base);
	const struct connect_place *place = &lines->here.place[i];
	struct rt_address at = place->at;
	void *port = port_of(&at);
	int rc;

	if (net->listener[i])
		return 0;
	if (!port)
		return weft_error(err, -EINVAL, "verbs listens at host:port, not at %s",
			place->text);
	memcpy(port, &any, sizeof(any));
	if (!rdma_create_id(net->manager, &net->listener[i], NULL, RDMA_PS_TCP) &&
		!rdma_bind_addr(net->listener[i], (struct sockaddr *)at.bytes) &&
		!rdma_listen(net->listener[i], CONNECT_INCOMING_MAX))
		return 0;
	rc = weft_error(err, -errno,
		"verbs: cannot listen at %s: %s; it must be an address of an RDMA device "
		"(`rdma link show`, `ibv_devinfo`)",
		place->text, strerrordesc_np(errno));
	stop_listening(net, i);
	return rc;
}

void verbs_manager_close(struct verbs_net *net)
{
	for (unsigned i = 0; i < CONNECT_PLACES_MAX; i++)
		stop_listening(net, i);
	if (net->manager_events) {
		rt_poller_remove(net->lines.poller, net->manager_events);
		rt_socket_close(net->manager_events);
	}
	if (net->manager)
		rdma_destroy_event_channel(net->manager);
	net->manager_events = NULL;
	net->manager = NULL;
}

/* ---- both ends --------------------------------------------------------------------------- */

void verbs_leave(struct net_connection *c)
{
	verbs_pair_free(c->offer);
	c->offer = NULL;
}

/* `theirs`: the dialer's parameters; NULL: this end is the dialer. */
static struct rdma_conn_param connection_parameters(
	const struct verbs_pair *p, const struct verbs_reads *theirs)
{
	struct verbs_reads reads = verbs_limits_reads(p->device, theirs);

	return (struct rdma_conn_param){
		.responder_resources = reads.served,
		.initiator_depth = reads.asked,
		.retry_count = RETRIES,
		.rnr_retry_count = RNR_RETRIES,
	};
}

/* Sends the other end the keys of the regions that it may reach. */
static int say_keys(struct connect_net *net, struct verbs_pair *p)
{
	struct wire_keys k = {
		.window = p->receives - VERBS_SPARE,
		.no_atomics = p->device->limits.atomic_cap == IBV_ATOMIC_NONE,
	};

	memcpy(k.magic, WIRE_MEMORY, sizeof(k.magic));
	for (unsigned i = 0; i < NET_REGIONS_MAX; i++) {
		const struct net_region *r = &net->base.regions[i];

		if (r->base)
			k.region[i] = (struct wire_key){
				.base = (uintptr_t)r->base,
				.bytes = r->bytes,
				.key = p->key[i],
				.rights = r->rights,
			};
	}
	return connect_say(p->connection, &k, sizeof(k)) ? 0 : -ECONNRESET;
}

static void made_if_all_is_here(struct verbs_pair *p)
{
	if (p->connected && p->heard)
		connect_made(lines_of(p->connection), p->connection);
}

int verbs_keys(
	struct connect_net *net, struct net_connection *c, const struct wire_keys *keys)
{
	struct verbs_pair *p = c->offer;

	if (!p || p->heard)
		return -EPROTO;
	p->theirs = *keys;
	p->heard = true;
	made_if_all_is_here(p);
	return 0;
}

static void on_established(struct verbs_pair *p)
{
	struct net_connection *c = p->connection;
	struct weft_error why = {0};
	int rc;

	if (!c) /* the pair is a link's: nothing new */
		return;
	rc = verbs_pair_open(verbs_net_of(&lines_of(c)->base), p, &why);
	if (!rc && say_keys(lines_of(c), p))
		weft_error(&why, -ECONNRESET, "the connection broke");
	if (why.code) {
		give_up(c, &why);
		return;
	}
	p->connected = true;
	made_if_all_is_here(p);
}

/* ---- the dialer -------------------------------------------------------------------------- */

int verbs_offered(
	struct connect_net *net, struct net_connection *c, const struct wire_offer *offer)
{
	struct connect_peer *peer = connect_peer_of(c->greeting.peer);
	struct verbs_pair *p = rt_alloc(sizeof(*p));
	struct rt_address to = peer->there.place[c->place].at;
	void *port = port_of(&to);

	if (!p)
		return -ENOMEM;
	c->offer = p;
	p->connection = c;
	memcpy(p->token, offer->token, sizeof(p->token));
	if (!port)
		return -EAFNOSUPPORT;
	memcpy(port, &offer->port, sizeof(offer->port));
	if (!rdma_create_id(verbs_net_of(&net->base)->manager, &p->id, p, RDMA_PS_TCP) &&
		!rdma_resolve_addr(p->id, NULL, (struct sockaddr *)to.bytes, RESOLVE_MS))
		return 0;
	snprintf(c->why, sizeof(c->why), NO_DEVICE, strerrordesc_np(errno));
	return -errno;
}

static void address_resolved(struct verbs_pair *p)
{
	struct net_connection *c = p->connection;
	struct weft_error why = {0};
	uint8_t timeout = ACK_TIMEOUT;

	rdma_set_option(p->id, RDMA_OPTION_ID, RDMA_OPTION_ID_ACK_TIMEOUT, &timeout,
		sizeof(timeout)); /* some kernels refuse it: then the system's */
	if (!verbs_pair_make(verbs_net_of(&lines_of(c)->base), p, &why) &&
		rdma_resolve_route(p->id, RESOLVE_MS))
		weft_error(&why, -errno, "no RDMA route: %s", strerrordesc_np(errno));
	if (why.code)
		give_up(c, &why);
}

static void route_resolved(struct verbs_pair *p)
{
	struct rdma_conn_param param = connection_parameters(p, NULL);
	struct weft_error why = {0};

	param.private_data = p->token;
	param.private_data_len = sizeof(p->token);
	if (!rdma_connect(p->id, &param))
		return;
	weft_error(
		&why, -errno, "cannot connect queue pairs: %s", strerrordesc_np(errno));
	give_up(p->connection, &why);
}

/* ---- the listener ------------------------------------------------------------------------ */

bool verbs_offer(struct connect_net *lines, struct net_connection *c)
{
	struct verbs_net *net = verbs_net_of(&lines->base);
	struct wire_offer offer = {0};
	struct verbs_pair *p;

	if (!net->listener[c->place])
		return false;
	p = rt_alloc(sizeof(*p));
	if (!p)
		return false;
	offer.port = rdma_get_src_port(net->listener[c->place]);
	c->offer = p;
	p->connection = c;
	rt_random_bytes(p->token, sizeof(p->token));
	memcpy(offer.magic, WIRE_OFFER, sizeof(offer.magic));
	memcpy(offer.token, p->token, sizeof(offer.token));
	return connect_say(c, &offer, sizeof(offer));
}

/* Compares all bytes, even after a difference. */
static bool same_token(const uint8_t *a, const uint8_t *b)
{
	uint8_t differ = 0;

	for (unsigned i = 0; i < WIRE_TOKEN_BYTES; i++)
		differ |= a[i] ^ b[i];
	return !differ;
}

static struct verbs_pair *pair_of_token(struct verbs_net *net, const uint8_t *token)
{
	for (struct net_connection *c = net->lines.connections; c; c = c->next) {
		struct verbs_pair *p = c->offer;

		if (!c->gone && !c->greeting.dialer && c->stage == CONNECT_KEYS && p &&
			!p->id && same_token(p->token, token))
			return p;
	}
	return NULL;
}

/* The private data of a request for a queue pair. */
struct request {
	uint8_t token[WIRE_TOKEN_BYTES];
	struct verbs_reads theirs;
};

static void on_requested(
	struct verbs_net *net, struct rdma_cm_id *id, const struct request *request)
{
	struct verbs_pair *p = pair_of_token(net, request->token);
	struct weft_error why = {0};
	struct rdma_conn_param param;

	if (!p) {
		weft_log(4,
			"verbs: a connection is refused: it brings no token of this "
			"node");
		rdma_reject(id, NULL, 0);
		rdma_destroy_id(id);
		return;
	}
	p->id = id;
	id->context = p;
	if (!verbs_pair_make(net, p, &why)) {
		param = connection_parameters(p, &request->theirs);
		if (rdma_accept(id, &param))
			weft_error(&why, -errno, "cannot connect queue pairs: %s",
				strerrordesc_np(errno));
	}
	if (why.code) {
		rdma_reject(id, NULL, 0);
		give_up(p->connection, &why);
	}
}

/* ---- events ------------------------------------------------------------------------------ */

static void on_failed(struct verbs_pair *p, enum rdma_cm_event_type type, int status)
{
	struct weft_error why = {0};
	int code = status < 0 ? status : -ECONNREFUSED;

	if (!p->connection) {
		verbs_cut(&p->peer->line.base, -ECONNRESET);
		return;
	}
	if (type == RDMA_CM_EVENT_ADDR_ERROR)
		weft_error(&why, code, NO_DEVICE, strerrordesc_np(-code));
	else
		weft_error(&why, code, "cannot connect queue pairs: %s (%s)",
			rdma_event_str(type), strerrordesc_np(-code));
	give_up(p->connection, &why);
}

static void on_removed(struct verbs_net *net, struct verbs_pair *p)
{
	struct weft_error why = {0};

	if (p->device)
		p->device->gone = true;
	if (!p->connection) {
		verbs_cut(&p->peer->line.base, -ENODEV);
		return;
	}
	weft_error(&why, -ENODEV, "the RDMA device was removed");
	give_up(p->connection, &why);
}

/* The place of that listener; CONNECT_PLACES_MAX: it is none. */
static unsigned place_of(const struct verbs_net *net, const struct rdma_cm_id *id)
{
	unsigned i = 0;

	while (i < CONNECT_PLACES_MAX && net->listener[i] != id)
		i++;
	return i;
}

/* The kernel removes a device when none of its objects is in use any more. */
static void device_removed(struct verbs_net *net, unsigned place)
{
	weft_log(3,
		"verbs: the RDMA device of %s was removed: no other node can connect "
		"with this one there; mount again when there is one",
		net->lines.here.place[place].text);
	stop_listening(net, place);
}

/* The event gives the numbers from this end's side. The other end asks for as many as this end
 * serves. */
static struct request request_of(const struct rdma_conn_param *param)
{
	struct request r = {.theirs = {.asked = param->responder_resources,
				    .served = param->initiator_depth}};

	if (param->private_data_len >= sizeof(r.token))
		memcpy(r.token, param->private_data, sizeof(r.token));
	return r;
}

void verbs_manager_event(struct verbs_net *net)
{
	struct request request = {0};
	enum rdma_cm_event_type type;
	struct rdma_cm_event *event;
	struct rdma_cm_id *id;
	struct verbs_pair *p;
	unsigned place;
	int status;

	if (rdma_get_cm_event(net->manager, &event))
		return;
	type = event->event;
	status = event->status;
	id = event->id;
	/* The listener's own events have no pair. */
	place = place_of(net, id);
	p = place < CONNECT_PLACES_MAX || event->listen_id ? NULL : id->context;
	if (type == RDMA_CM_EVENT_CONNECT_REQUEST)
		request = request_of(&event->param.conn);
	/* An id can go only when its events are acknowledged. */
	rdma_ack_cm_event(event);
	if (type == RDMA_CM_EVENT_CONNECT_REQUEST) {
		on_requested(net, id, &request);
		return;
	}
	if (type == RDMA_CM_EVENT_DEVICE_REMOVAL && place < CONNECT_PLACES_MAX)
		device_removed(net, place);
	if (!p)
		return;
	switch (type) {
	case RDMA_CM_EVENT_ADDR_RESOLVED:
		address_resolved(p);
		break;
	case RDMA_CM_EVENT_ROUTE_RESOLVED:
		route_resolved(p);
		break;
	case RDMA_CM_EVENT_ESTABLISHED:
		on_established(p);
		break;
	case RDMA_CM_EVENT_DEVICE_REMOVAL:
		on_removed(net, p);
		break;
	case RDMA_CM_EVENT_TIMEWAIT_EXIT:
	case RDMA_CM_EVENT_ADDR_CHANGE:
		break;
	default: /* an error of any step, or the other end has gone */
		on_failed(p, type, status);
		break;
	}
}
