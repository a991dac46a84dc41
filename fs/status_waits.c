/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The requests that wait, as JSON: their processes, files, and the nodes that they wait for.
 *
 * Reads memory and /proc alone, so that it answers while all else waits. A node's data are told
 * once, for all requests that wait for it.
 */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "fs/contended.h"
#include "fs/daemon.h"
#include "fs/waits.h"

#define LONGER_NS 1000000000ull /* requests that have been under way for less are left out */
#define LOOK_NS   1000000000ull /* time for a look at locks */
#define LIST_MAX  64u           /* most requests, and most lock requests, in an answer */

static void put_seconds(json_t *o, const char *key, uint64_t since_ns, uint64_t now)
{
	json_object_set_new(
		o, key, json_real((double)(now > since_ns ? now - since_ns : 0) / 1e9));
}

static void put_integer(json_t *o, const char *key, uint64_t value)
{
	json_object_set_new(o, key, json_integer((json_int_t)value));
}

/* Names are bytes. JSON needs UTF-8: in a name that is none, such bytes become \xNN. */
static json_t *name_json(const char *name)
{
	char text[4 * PATH_MAX], *to = text;
	json_t *out = json_string(name);

	if (out)
		return out;
	for (unsigned i = 0; name[i] && i < PATH_MAX - 1; i++) {
		if ((unsigned char)name[i] < 0x80)
			*to++ = name[i];
		else
			to += sprintf(to, "\\x%02x", (unsigned char)name[i]);
	}
	*to = '\0';
	return json_string(text);
}

static json_t *nodes_json(uint64_t nodes)
{
	json_t *list = json_array();

	for (; nodes; nodes &= nodes - 1)
		json_array_append_new(
			list, json_integer((json_int_t)__builtin_ctzll(nodes)));
	return list;
}

static void put_process(json_t *o, uint32_t thread)
{
	char command[WAITS_COMMAND];
	uint32_t process = waits_process(thread, command);

	put_integer(o, "thread", thread);
	if (process)
		put_integer(o, "process", process);
	json_object_set_new(o, "command", name_json(command));
}

/* ---- requests ------------------------------------------------------------------------------- */

/* The node whose disk has this node's log. */
static unsigned log_node(const struct daemon *d)
{
	const struct cluster_member *c =
		d->source.cluster ? cluster_member(d->source.cluster, d->source.node)
				  : NULL;

	return c && c->role == CLUSTER_CLIENT ? c->host : d->source.node;
}

/* The nodes that have not given the page yet; else its home, which reads it from its store. */
static uint64_t page_nodes(struct daemon *d, page_id pid)
{
	struct coherence *c = d->volume->coherence;
	uint64_t nodes = coherence_awaited(c, pid);
	unsigned home = c->ops->home ? c->ops->home(c, pid) : COHERENCE_NO_NODE;

	return nodes || home >= WAITS_NODES ? nodes : 1ull << home;
}

/* Puts the thing that the request waits for, and the nodes. Returns the map of the nodes. */
static uint64_t put_need(json_t *o, struct daemon *d, const struct waits_request *r)
{
	static const char *const needs[] = {
		[RT_NEEDS_NOTHING] = "nothing",
		[RT_NEEDS_PAGE] = "page",
		[RT_NEEDS_FILE_PAGE] = "file page",
		[RT_NEEDS_ANSWER] = "answer",
		[RT_NEEDS_LOG_ROOM] = "log room",
		[RT_NEEDS_LOG_FLUSH] = "log",
	};
	uint64_t nodes = r->away;
	char page[48];

	json_object_set_new(o, "for", json_string(needs[r->need]));
	if (r->need == RT_NEEDS_PAGE || r->need == RT_NEEDS_FILE_PAGE) {
		snprintf(page, sizeof(page), "%u.%llu", pid_shard(r->which),
			(unsigned long long)pid_slot(r->which));
		json_object_set_new(o, "page", json_string(page));
		nodes = nodes ?: page_nodes(d, r->which);
	} else if (r->need == RT_NEEDS_ANSWER && r->which < WAITS_NODES) {
		nodes |= 1ull << r->which;
	} else if (r->need == RT_NEEDS_LOG_ROOM || r->need == RT_NEEDS_LOG_FLUSH) {
		nodes |= 1ull << log_node(d);
	}
	json_object_set_new(o, "nodes", nodes_json(d->source.cluster ? nodes : 0));
	return nodes;
}

static json_t *request_json(
	struct daemon *d, const struct waits_request *r, uint64_t now, uint64_t *nodes)
{
	const char *name = status_request_name(r->opcode);
	json_t *o = json_object();
	char number[16];

	snprintf(number, sizeof(number), "opcode%u", r->opcode);
	json_object_set_new(o, "request", json_string(name ?: number));
	put_process(o, r->thread);
	if (r->ino)
		put_integer(o, "inode", r->ino);
	if (*r->name)
		json_object_set_new(o, "name", name_json(r->name));
	put_seconds(o, "waits_s", r->since_ns, now);
	*nodes |= put_need(o, d, r);
	return o;
}

static json_t *requests_json(
	struct daemon *d, uint64_t now, uint64_t *nodes, unsigned *count)
{
	struct waits_request *r = calloc(LIST_MAX, sizeof(*r));
	json_t *list = json_array();

	*count = r && d->session ? waits_list(d->session, LONGER_NS, r, LIST_MAX) : 0;
	for (unsigned i = 0; i < MIN(*count, LIST_MAX); i++)
		json_array_append_new(list, request_json(d, &r[i], now, nodes));
	free(r);
	return list;
}

/* ---- locks ---------------------------------------------------------------------------------- */

static json_t *lock_json(const struct ops_lock *l)
{
	json_t *o = json_object();

	json_object_set_new(
		o, "kind", json_string(l->kind == OPS_LOCK_FLOCK ? "flock" : "fcntl"));
	json_object_set_new(o, "type",
		json_string(l->type == OPS_LOCK_SHARED ? "read" : "write"));
	if (l->kind == OPS_LOCK_POSIX) {
		put_integer(o, "first", l->first);
		if (l->last != OPS_LOCK_END)
			put_integer(o, "last", l->last);
	}
	return o;
}

/* Returns true if the node has no link, so that it is to be told with its remedy. */
static bool node_is_away(const struct daemon *d, unsigned node)
{
	struct node_link l;

	return node < WAITS_NODES && d->node && node_link(d->node, node, &l) == 0 &&
	       !l.connected;
}

static json_t *waiter_json(struct daemon *d, const struct ops_lock_waiter *w,
	uint64_t now, uint64_t *nodes)
{
	json_t *o = lock_json(&w->lock), *held;

	put_process(o, w->lock.pid);
	put_integer(o, "inode", w->ino);
	put_seconds(o, "waits_s", w->began_ns, now);
	put_seconds(o, "looked_s", w->held.looked_ns, now);
	put_integer(o, "in_the_way", w->held.count);
	if (w->held.count) {
		held = lock_json(&w->held.lock);
		put_integer(held, "node", w->held.node);
		put_integer(held, "process", w->held.lock.pid);
		json_object_set_new(o, "held", held);
		if (node_is_away(d, w->held.node))
			*nodes |= 1ull << w->held.node;
	}
	return o;
}

static json_t *locks_json(
	struct daemon *d, uint64_t now, uint64_t *nodes, unsigned *count)
{
	struct ops_lock_waiter *w = calloc(LIST_MAX, sizeof(*w));
	json_t *list = json_array();

	*count = w && ops_locks_shared(d->fs) ? ops_lock_waiters(d->fs, w, LIST_MAX) : 0;
	for (unsigned i = 0; i < MIN(*count, LIST_MAX); i++)
		json_array_append_new(list, waiter_json(d, &w[i], now, nodes));
	free(w);
	return list;
}

/* True once the time for a look is over. */
static bool look_ended(void *arg)
{
	const uint64_t *until = arg;

	return rt_now_ns() >= *until;
}

/* Puts the path of the inode, if it is a directory of which the list has none yet. */
static void put_path(struct daemon *d, json_t *paths, uint64_t ino)
{
	char path[PATH_MAX], key[24];

	snprintf(key, sizeof(key), "%llu", (unsigned long long)ino);
	if (ino && !json_object_get(paths, key) && !rt_task_unwanted() &&
		status_path(d->fs, ino, path))
		json_object_set_new(paths, key, name_json(path));
}

/* The paths of directories that requests wait in, or that nodes contend for, by their inodes. */
static json_t *paths_json(struct daemon *d)
{
	struct contended_inode list[CONTENDED_LISTED];
	struct waits_request *r = calloc(LIST_MAX, sizeof(*r));
	json_t *paths = json_object();
	unsigned count = 0;
	uint64_t since;

	if (d->session && d->source.cluster)
		count = contended_list(session_contended(d->session), rt_now_ns(), list,
			CONTENDED_LISTED, &since);
	for (unsigned i = 0; i < count; i++)
		put_path(d, paths, list[i].ino);
	count = r && d->session ? waits_list(d->session, LONGER_NS, r, LIST_MAX) : 0;
	for (unsigned i = 0; i < MIN(count, LIST_MAX); i++)
		put_path(d, paths, r[i].ino);
	free(r);
	return paths;
}

json_t *status_look(void *arg)
{
	struct daemon *d = arg;
	uint64_t until = rt_now_ns() + LOOK_NS;
	json_t *o = json_object();

	rt_task_serves(look_ended, &until);
	if (ops_locks_shared(d->fs))
		ops_lock_waiters_look(d->fs);
	json_object_set_new(o, "paths", paths_json(d));
	rt_task_serves(NULL, NULL);
	return o;
}

/* ---- nodes ---------------------------------------------------------------------------------- */

static json_t *node_json(struct daemon *d, unsigned node, uint64_t now)
{
	const struct cluster_member *c = cluster_member(d->source.cluster, node);
	char addresses[NET_ADDRESS_BYTES] = "?", remedy[AWAY_REMEDY_BYTES];
	json_t *o = json_object();
	struct node_link l;

	put_integer(o, "id", node);
	if (c)
		cluster_addresses_print(c, 0, addresses, sizeof(addresses));
	json_object_set_new(o, "addresses", json_string(addresses) ?: json_string("?"));
	json_object_set_new(o, "here", json_boolean(node == d->source.node));
	if (!d->node || node_link(d->node, node, &l) != 0)
		return o;
	json_object_set_new(o, "up", json_boolean(l.connected));
	put_seconds(o, l.connected ? "up_s" : "away_s", l.since_ns, now);
	json_object_set_new(o, "dead", json_boolean(l.dead));
	if (l.text[0])
		json_object_set_new(o, "why", json_string(l.text) ?: json_string("?"));
	if (away_remedy(d, node, &l, remedy))
		json_object_set_new(o, "remedy", json_string(remedy) ?: json_string("?"));
	return o;
}

json_t *status_waiting(struct daemon *d)
{
	struct ops_lock_waiter lock = {0};
	struct waits_request request = {0};
	uint64_t now = rt_now_ns(), oldest = now;
	unsigned requests = 0, locks = 0;
	json_t *o = json_object();

	if (d->session)
		requests = waits_list(d->session, LONGER_NS, &request, 1);
	if (ops_locks_shared(d->fs))
		locks = ops_lock_waiters(d->fs, &lock, 1);
	if (requests)
		oldest = request.since_ns;
	if (locks)
		oldest = MIN(oldest, lock.began_ns);
	put_integer(o, "requests", requests);
	put_integer(o, "locks", locks);
	put_seconds(o, "longest_s", oldest, now);
	return o;
}

json_t *status_waits(void *arg)
{
	struct daemon *d = arg;
	uint64_t now = rt_now_ns(), nodes = 0;
	unsigned requests, locks;
	json_t *o = status_identify(arg), *list = json_array();

	if (d->source.cluster)
		put_integer(o, "node", d->source.node);
	json_object_set_new(o, "requests", requests_json(d, now, &nodes, &requests));
	json_object_set_new(o, "locks", locks_json(d, now, &nodes, &locks));
	put_integer(o, "requests_all", requests);
	put_integer(o, "locks_all", locks);
	put_integer(o, "longer_s", LONGER_NS / 1000000000);
	for (; nodes && d->source.cluster; nodes &= nodes - 1)
		json_array_append_new(
			list, node_json(d, (unsigned)__builtin_ctzll(nodes), now));
	json_object_set_new(o, "nodes", list);
	return o;
}
