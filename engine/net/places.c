/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The places where nodes listen: a node's addresses, best first, with the addresses that their
 * names resolve to. Names are looked up here, once, when a peer is added or the endpoint starts.
 * The progress task tries again to listen at an address that was not there at first.
 */
#include "engine/net/connect.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#define OF_A_NAME_MAX   4u
#define LISTEN_AGAIN_NS 5000000000ull

_Static_assert(
	CONNECT_PLACES_MAX >= NET_ADDRESSES_MAX * OF_A_NAME_MAX, "room for all of them");

/* ---- looking up -------------------------------------------------------------------------- */

/* The next address of the list, without blanks around it. NULL: no more. */
static const char *next_address(const char *list, char out[NET_ADDRESS_BYTES])
{
	size_t length = strcspn(list, ",");
	const char *next = list[length] ? list + length + 1 : NULL;

	while (length && *list == ' ') {
		list++;
		length--;
	}
	while (length && list[length - 1] == ' ')
		length--;
	memcpy(out, list, length);
	out[length] = '\0';
	return next;
}

/* Adds the places of one address. Returns 0 or -errno. */
static int place_find(struct connect_places *out, const char *text, unsigned written,
	struct weft_error *err)
{
	struct rt_address at[OF_A_NAME_MAX];
	int n = rt_address_resolve_all(at, OF_A_NAME_MAX, text, err);

	for (int i = 0; i < n; i++) {
		struct connect_place *p = &out->place[out->count];
		bool known = false;

		for (unsigned k = 0; k < out->count; k++)
			known |= !memcmp(&out->place[k].at, &at[i], sizeof(at[i]));
		if (known)
			continue;
		p->at = at[i];
		p->written = written;
		if (n == 1)
			snprintf(p->text, sizeof(p->text), "%s", text);
		else
			rt_address_print(&at[i], p->text, sizeof(p->text));
		out->count++;
	}
	return MIN(n, 0);
}

int connect_places_find(struct connect_places *out, const char *list, unsigned node,
	struct weft_error *err)
{
	char text[NET_ADDRESS_BYTES], unknown[NET_WHY_BYTES] = "";
	size_t used = 0;
	int code = 0;

	out->count = 0;
	for (unsigned written = 0; list; written++) {
		struct weft_error why = {0};
		int rc;

		if (written == NET_ADDRESSES_MAX)
			return weft_error(err, -EINVAL,
				"node %u has more than %u addresses", node,
				NET_ADDRESSES_MAX);
		list = next_address(list, text);
		rc = place_find(out, text, written, &why);
		if (rc && rc != -EHOSTUNREACH)
			return weft_error(err, rc, "%s", why.text);
		if (rc && used < sizeof(unknown))
			used += (size_t)snprintf(unknown + used, sizeof(unknown) - used,
				"%s%s", used ? "; " : "", why.text);
		code = code ? code : rc;
	}
	if (!out->count)
		return weft_error(err, code, "%s", unknown);
	if (code)
		weft_log(4, "node %u: %s; this node uses its other addresses alone", node,
			unknown);
	return 0;
}

/* ---- listening --------------------------------------------------------------------------- */

static int listen_at(struct connect_net *net, unsigned i, struct weft_error *err)
{
	struct connect_place *place = &net->here.place[i];
	struct connect_listener *l = &net->listener[i];
	size_t length = strlen(place->text);
	int rc = net->links->listen ? net->links->listen(net, i, err) : 0;

	if (!rc)
		rc = rt_socket_listen(&l->socket, &place->at, err);
	if (rc)
		return rc;
	l->source.kind = CONNECT_LISTENER;
	rc = rt_poller_add(
		net->poller, l->socket, net->deaf_until ? 0u : RT_READABLE, &l->source);
	if (rc) {
		rt_socket_close(l->socket);
		l->socket = NULL;
		return weft_error(err, rc, "cannot watch the network");
	}
	if (length > 2 && !strcmp(place->text + length - 2, ":0"))
		rt_socket_name(l->socket, place->text, sizeof(place->text));
	return 0;
}

/* A name may resolve to several addresses. One of them that is this machine's is enough. */
static bool listens_there(const struct connect_net *net, unsigned written)
{
	for (unsigned i = 0; i < net->here.count; i++)
		if (net->listener[i].socket && net->here.place[i].written == written)
			return true;
	return false;
}

/* Tries all places where it does not listen. Returns the number of those that are left. */
static unsigned listen_where_not(struct connect_net *net, struct weft_error why[])
{
	unsigned left = 0;

	for (unsigned i = 0; i < net->here.count; i++) {
		why[i] = (struct weft_error){0};
		if (!net->listener[i].socket && listen_at(net, i, &why[i]))
			left++;
	}
	net->listen_at = left ? rt_now_ns() + LISTEN_AGAIN_NS : RT_FOREVER;
	connect_due(net, net->listen_at);
	return left;
}

int connect_listen(struct connect_net *net, struct weft_error *err)
{
	unsigned node = net->base.options.self.node;
	struct weft_error why[CONNECT_PLACES_MAX];
	int rc = connect_places_find(&net->here, net->base.listen, node, err);
	char all[NET_WHY_BYTES];
	size_t used = 0;

	if (rc)
		return rc;
	if (listen_where_not(net, why) < net->here.count) {
		for (unsigned i = 0; i < net->here.count; i++)
			if (!net->listener[i].socket)
				weft_log(listens_there(net, net->here.place[i].written)
						 ? 7
						 : 4,
					"node %u, address %s: %s; others reach it at its "
					"other addresses, and this one is tried again",
					node, net->here.place[i].text, why[i].text);
		return 0;
	}
	for (unsigned i = 0; i < net->here.count && used < sizeof(all); i++)
		used += (size_t)snprintf(all + used, sizeof(all) - used, "%s%s",
			i ? "; " : "", why[i].text);
	return weft_error(err, why[0].code, "%s", all);
}

void connect_listen_again(struct connect_net *net)
{
	bool before[CONNECT_PLACES_MAX];
	struct weft_error why[CONNECT_PLACES_MAX];

	for (unsigned i = 0; i < net->here.count; i++)
		before[i] = net->listener[i].socket;
	listen_where_not(net, why);
	for (unsigned i = 0; i < net->here.count; i++)
		if (!before[i] && net->listener[i].socket)
			weft_log(5, "node %u listens at its address %s now, too",
				net->base.options.self.node, net->here.place[i].text);
}

void connect_hear(struct connect_net *net, bool on)
{
	for (unsigned i = 0; i < net->here.count; i++)
		if (net->listener[i].socket)
			rt_poller_change(net->poller, net->listener[i].socket,
				on ? RT_READABLE : 0u, &net->listener[i].source);
}

void connect_listen_end(struct connect_net *net)
{
	for (unsigned i = 0; i < net->here.count; i++) {
		struct connect_listener *l = &net->listener[i];

		if (!l->socket)
			continue;
		rt_poller_remove(net->poller, l->socket);
		rt_socket_close(l->socket);
		l->socket = NULL;
	}
}

void connect_address(struct net *base, char out[NET_ADDRESS_BYTES])
{
	struct connect_net *net = connect_net_of(base);
	char name[NET_ADDRESS_BYTES];
	size_t used = 0;

	out[0] = 0;
	for (unsigned i = 0; i < net->here.count; i++) {
		if (!net->listener[i].socket)
			continue;
		rt_socket_name(net->listener[i].socket, name, sizeof(name));
		if (used + 1 + strlen(name) < NET_ADDRESS_BYTES)
			used += (size_t)snprintf(out + used, NET_ADDRESS_BYTES - used,
				"%s%s", used ? "," : "", name);
	}
}
