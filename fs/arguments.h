/* SPDX-License-Identifier: Apache-2.0 */
/* The command line of weftd. */
#ifndef WEFT_FS_ARGUMENTS_H
#define WEFT_FS_ARGUMENTS_H

#include "engine/common/text.h"
#include "fs/options.h"

struct arguments {
	bool foreground;
	bool unmounted; /* no mount: the store is only served to the other nodes */
	bool stays;     /* unmounted: until it is told to end */
};

/*
 * Reads the command line into *a and *o. *o has the defaults before. Without a mount, o->directory
 * is "-". Returns 0, or -errno: the process must then exit with *code. *err has a text unless the
 * message has been printed already.
 */
int arguments_parse(struct arguments *a, struct mount_options *o, int argc, char **argv,
	int *code, struct weft_error *err);
/* Returns the arguments of a weftd that serves the same store without a mount, in the foreground.
 * Call it before source_open. The caller frees the result, which is one block. NULL: no memory. */
char **arguments_unmounted(const struct mount_options *o);

#endif
