/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cluster file is read again while the volume is mounted: nodes that were added to it
 * are taken in. Where anything is wrong with it, or differs in what cannot change, nothing
 * happens but that it is said.
 */
#include <errno.h>
#include <string.h>

#include "fs/daemon.h"

/* Where there was no other node at the mount there is no network either. */
static int alone(struct daemon *d, const struct cluster *newer, struct weft_error *err)
{
	uint64_t added;
	int ret = cluster_compare(d->source.cluster, newer, &added, err);

	if (ret == 0 && added)
		ret = weft_error(err, -EOPNOTSUPP,
			"%s: the volume was mounted as one of a single node, which "
			"listens to no other: unmount it and mount it again with this "
			"file",
			cluster_path(newer));
	return ret;
}

static int reload(struct daemon *d, uint64_t *added, struct weft_error *err)
{
	struct cluster *newer;
	int ret;

	if (!d->source.cluster)
		return weft_error(err, -EINVAL,
			"%s was mounted without a cluster file, and cannot have other "
			"nodes",
			d->options.store);
	ret = cluster_open(&newer, cluster_path(d->source.cluster), 0, err);
	if (ret < 0)
		return ret;
	rt_mutex_lock(&d->reload_lock);
	ret = d->member ? member_reload(d->member, newer, added, err)
			: alone(d, newer, err);
	if (ret == 0) {
		ret = fs_nodes_added(d->fs);
		if (ret < 0)
			weft_error(err, ret, "cannot start a task: %s", strerror(-ret));
	}
	if (ret == 0 && d->member)
		member_reloaded(d->member);
	rt_mutex_unlock(&d->reload_lock);
	cluster_close(newer);
	return ret;
}

json_t *reload_cluster(void *arg)
{
	struct daemon *d = arg;
	struct weft_error err = {0};
	uint64_t added = 0;
	json_t *ids, *text;

	if (reload(d, &added, &err) < 0) {
		weft_log(4, "the cluster file was not taken in: %s", err.text);
		/* what the file says need not be UTF-8; jansson refuses what is not */
		text = json_string(err.text)
			       ?: json_string("the cluster file is wrong; the log of "
					      "weftd says where");
		return json_pack("{s:o}", "error", text);
	}
	ids = json_array();
	for (unsigned node = 1; node <= CLUSTER_NODE_MAX; node++)
		if (added >> node & 1)
			json_array_append_new(ids, json_integer(node));
	return json_pack("{s:i,s:o}", "node", (int)d->source.node, "added", ids);
}
