/* SPDX-License-Identifier: Apache-2.0 */
/* Reads the cluster file again while the volume is mounted, and adds new nodes. If the file is
 * wrong, or differs in a part that cannot change, this only reports it. */
#include <errno.h>
#include <string.h>

#include "fs/daemon.h"

/* Without other nodes at the mount there is no network. */
static int compare_alone(
	struct daemon *d, const struct cluster *newer, struct weft_error *err)
{
	uint64_t added;
	int rc = cluster_compare(d->source.cluster, newer, &added, err);

	if (rc == 0 && added)
		rc = weft_error(err, -EOPNOTSUPP,
			"%s: the volume was mounted as one of a single node, which "
			"listens to no other: unmount it and mount it again with this "
			"file",
			cluster_path(newer));
	return rc;
}

static int reload_file(struct daemon *d, uint64_t *added, struct weft_error *err)
{
	struct cluster *newer;
	int rc;

	if (!d->source.cluster)
		return weft_error(err, -EINVAL,
			"%s was mounted without a cluster file, and cannot have other "
			"nodes",
			d->options.store);
	rc = cluster_open(&newer, cluster_path(d->source.cluster), 0, err);
	if (rc < 0)
		return rc;
	rt_mutex_lock(&d->reload_lock);
	rc = d->node ? node_reload(d->node, newer, added, err)
		     : compare_alone(d, newer, err);
	if (rc == 0) {
		rc = fs_nodes_added(d->fs);
		if (rc < 0)
			weft_error(err, rc, "cannot start a task: %s", strerror(-rc));
	}
	if (rc == 0 && d->node)
		node_reloaded(d->node);
	rt_mutex_unlock(&d->reload_lock);
	cluster_close(newer);
	return rc;
}

json_t *reload_cluster(void *arg)
{
	struct daemon *d = arg;
	struct weft_error err = {0};
	uint64_t added = 0;
	json_t *ids, *text;

	if (reload_file(d, &added, &err) < 0) {
		weft_log(4, "the cluster file was not reloaded: %s", err.text);
		/* The file's text need not be UTF-8, which jansson requires. */
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
