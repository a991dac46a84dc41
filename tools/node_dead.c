/* SPDX-License-Identifier: Apache-2.0 */
/* weft node fence --without-store: tells a running daemon of another node that the node has ended.
 * That daemon tells all nodes with a link to it (engine/node/declare_dead.c). */
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

/* Finds a daemon of any other node of the volume. */
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

static int confirm_dead(const char *file, unsigned node, bool yes, struct weft_error *err)
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

static void report_dead(unsigned node, const json_t *answer)
{
	const json_t *untold = json_object_get(answer, "untold"), *one;
	size_t i;

	json_array_foreach(untold, i, one) fprintf(stderr,
		"weft node fence: node %lld was not reached; it waits for node %u "
		"until it has a link with a node that was reached\n",
		(long long)json_integer_value(one), node);
	printf("Node %u is dead: other nodes may change pages that it only shared, and "
	       "its locks are free.\n"
	       "Requests for pages that it may have changed, and for its store, wait "
	       "until it is started.\n",
		node);
}

static int find_daemon(const struct cluster *c, struct look *l, struct weft_error *err)
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
	int rc = cluster_open(&c, file, 0, err);

	if (rc < 0)
		return rc;
	if (!cluster_member(c, node))
		rc = weft_error(err, -EINVAL, "%s names no node %u", file, node);
	if (rc == 0)
		rc = find_daemon(c, &l, err);
	if (rc == 0)
		rc = confirm_dead(file, node, yes, err);
	if (rc == 0) {
		client_limit(l.client.fd, 0); /* it asks all other nodes */
		answer = client_ask_of(l.client.fd, "dead", node, err);
		rc = answer ? 0 : err->code;
	}
	if (rc == 0)
		report_dead(node, answer);
	json_decref(answer);
	json_decref(l.client.identity);
	if (l.client.fd >= 0)
		close(l.client.fd);
	cluster_close(c);
	return rc;
}
