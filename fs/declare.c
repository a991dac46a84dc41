/* SPDX-License-Identifier: Apache-2.0 */
/* weft node fence --without-store: somebody says that a node does not run any more. */
#include <errno.h>
#include <string.h>

#include "fs/daemon.h"

json_t *declare_dead(void *arg, unsigned node)
{
	struct daemon *d = arg;
	struct weft_error err = {0};
	uint64_t untold = 0;
	json_t *ids;
	int rc;

	if (d->node)
		rc = node_declare_dead(d->node, node, &untold, &err);
	else
		rc = weft_error(&err, -EINVAL, "%s has no other node", d->options.store);
	if (rc < 0)
		return json_pack("{s:o}", "error",
			json_string(err.text)
				?: json_string("the reason is not valid UTF-8"));
	ids = json_array();
	for (unsigned other = 1; other <= CLUSTER_NODE_MAX; other++)
		if (untold >> other & 1)
			json_array_append_new(ids, json_integer(other));
	return json_pack("{s:i,s:o}", "node", (int)d->source.node, "untold", ids);
}
