/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft node fence --without-store: a running daemon of another node is told that the node does not run any
 * more, and tells all with whom it has a link (engine/volume/member_dead.c).
 */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/cluster/cluster.h"
#include "tools/tools.h"

struct look {
	char volume_uuid[UUID_TEXT];
	unsigned node;
	struct client client; /* fd -1: none was found */
};

/* Any other node of the volume. */
static bool look_visit(void *arg, struct client *c)
{
	struct look *l = arg;
	struct weft_error err = {0};
	json_t *status;
	json_int_t node;

	if (strcmp(client_text(c->identity, "volume_uuid"), l->volume_uuid) != 0)
		return false;
	status = client_ask(c->fd, "status", &err);
	node = json_integer_value(json_object_get(status, "node"));
	json_decref(status);
	if (!node || node == l->node)
		return false;
	l->client = (struct client){c->fd, json_incref(c->identity)};
	c->fd = -1;
	return true;
}

static int confirm(const char *file, unsigned node, bool yes, struct weft_error *err)
{
	char line[16];

	if (yes)
		return 0;
	if (!isatty(STDIN_FILENO))
		return weft_error(
			err, -EINVAL, "without a terminal to ask at, say --yes");
	printf("Node %u of %s must not run any more: no weftd, and no machine that was "
	       "only\n"
	       "cut off or put to sleep, and still has its mount. Has it been stopped? "
	       "[yes/no] ",
		node, file);
	fflush(stdout);
	if (fgets(line, sizeof(line), stdin) && strcmp(line, "yes\n") == 0)
		return 0;
	return weft_error(err, -ECANCELED, "nothing was done");
}

static void report(unsigned node, const json_t *answer)
{
	const json_t *untold = json_object_get(answer, "untold"), *one;
	size_t i;

	json_array_foreach(untold, i, one) fprintf(stderr,
		"weft node fence: node %lld could not be told, and goes on waiting for "
		"node %u until it has a link with "
		"one that was\n",
		(long long)json_integer_value(one), node);
	printf("Node %u is dead: others may change what it only shared with them, and "
	       "its locks are "
	       "free.\nWhat it may have changed itself, and what lies in its store, "
	       "waits for that.\n",
		node);
}

static int find(const struct cluster *c, struct look *l, struct weft_error *err)
{
	uuid_print(cluster_volume_uuid(c), l->volume_uuid);
	client_each(look_visit, l);
	if (l->client.fd >= 0)
		return 0;
	return weft_error(err, -ENOENT,
		"no weftd of another node of %s answers on this machine: run this where "
		"one is mounted",
		cluster_path(c));
}

int node_dead(const char *file, unsigned node, bool yes, struct weft_error *err)
{
	struct look l = {.node = node, .client = {.fd = -1}};
	struct cluster *c;
	json_t *answer = NULL;
	int ret = cluster_open(&c, file, 0, err);

	if (ret < 0)
		return ret;
	if (!cluster_member(c, node))
		ret = weft_error(err, -EINVAL, "%s names no node %u", file, node);
	if (ret == 0)
		ret = find(c, &l, err);
	if (ret == 0)
		ret = confirm(file, node, yes, err);
	if (ret == 0) {
		client_be_patient(l.client.fd); /* all others are asked */
		answer = client_ask_of(l.client.fd, "dead", node, err);
		ret = answer ? 0 : err->code;
	}
	if (ret == 0)
		report(node, answer);
	json_decref(answer);
	json_decref(l.client.identity);
	if (l.client.fd >= 0)
		close(l.client.fd);
	cluster_close(c);
	return ret;
}
