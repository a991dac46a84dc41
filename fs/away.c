/* SPDX-License-Identifier: Apache-2.0 */
/* Messages about a node that is away. They name the node, the time, the number of requests that
 * wait for it, and the remedy (docs/operations.md, "When a node is away"). */
#include <stdio.h>
#include <string.h>

#include "fs/daemon.h"

bool away_remedy(const struct daemon *d, unsigned node, const struct node_link *l,
	char out[AWAY_REMEDY_BYTES])
{
	const struct cluster_member *c = cluster_member(d->source.cluster, node);
	const char *file = d->options.cluster_file;

	if (!c || !file || l->connected || l->left)
		return false;
	if (c->role == CLUSTER_CLIENT)
		snprintf(out, AWAY_REMEDY_BYTES, "weft node fence %s %u", file, node);
	else if (l->dead)
		snprintf(out, AWAY_REMEDY_BYTES, "weft node fence %s %u --store PATH",
			file, node);
	else
		snprintf(out, AWAY_REMEDY_BYTES,
			"weft node fence %s %u, or, if its store is lost or cannot be "
			"reached, weft node "
			"fence %s %u --without-store",
			file, node, file, node);
	return true;
}

/* "node 3 (10.0.0.3:9338)" */
static void name_of(const struct daemon *d, unsigned node, char *out, size_t cap)
{
	const struct cluster_member *c = cluster_member(d->source.cluster, node);
	char addresses[NET_ADDRESS_BYTES] = "?";

	if (c)
		cluster_addresses_print(c, 0, addresses, sizeof(addresses));
	snprintf(out, cap, "node %u (%s)", node, addresses);
}

void away_told(void *owner, unsigned node, unsigned requests, uint64_t for_ns)
{
	struct daemon *d = owner;
	char name[NET_ADDRESS_BYTES + 20], remedy[AWAY_REMEDY_BYTES];
	char help[AWAY_REMEDY_BYTES + 96];
	struct node_link l;
	bool several = requests != 1;

	name_of(d, node, name, sizeof(name));
	if (!requests) {
		weft_log(5, "no request of this mount waits for %s any more", name);
		return;
	}
	if (!d->node || node_link(d->node, node, &l) != 0)
		return;
	if (l.connected) { /* it has just come back, or another node has no link to it */
		weft_log(4,
			"%u request%s of this mount wait%s for %s, for %.0f s: another "
			"node has no link with it; check the network between them",
			requests, several ? "s" : "", several ? "" : "s", name,
			(double)for_ns / 1e9);
		return;
	}
	if (away_remedy(d, node, &l, remedy))
		snprintf(help, sizeof(help),
			"Start it again; if that cannot be, stop its "
			"machine, then run: %s",
			remedy);
	else
		snprintf(help, sizeof(help),
			"Start it again; nothing else helps, since the "
			"data is in its store");
	weft_log(4,
		"%u request%s of this mount wait%s for %s, which is away for %.0f s. %s",
		requests, several ? "s" : "", several ? "" : "s", name,
		(double)(rt_now_ns() - l.since_ns) / 1e9, help);
}
