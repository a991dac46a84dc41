/* SPDX-License-Identifier: Apache-2.0 */
/* What weftd is started with. */
#ifndef WEFT_FS_ARGUMENTS_H
#define WEFT_FS_ARGUMENTS_H

#include "engine/common/text.h"
#include "fs/options.h"

struct arguments {
	bool foreground;
	bool unmounted; /* no mount: the store is served to the other nodes */
};

/*
 * Into *a and *o, which has the defaults; o->directory is "-" without a mount. 0, or -errno: to exit
 * with *code, and a text if there is something to say that has not been said.
 */
int arguments_parse(struct arguments *a, struct mount_options *o, int argc, char **argv,
	int *code, struct weft_error *err);
/*
 * The arguments of a weftd that serves the same store without a mount, in the foreground; before
 * source_open. The caller frees what is returned, which is one piece; NULL: no memory.
 */
char **arguments_unmounted(const struct mount_options *o);

#endif
