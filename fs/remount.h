/* SPDX-License-Identifier: Apache-2.0 */
/* Following remounts, of which the kernel tells a FUSE filesystem nothing. */
#ifndef WEFT_FS_REMOUNT_H
#define WEFT_FS_REMOUNT_H

#include "fs/options.h"

struct remount {
	int table; /* the kernel's mount table: poll(2) says POLLPRI when it has changed; -1:
		      remounts are not followed */
	uint64_t mount_id; /* 0: the kernel does not say */
	/* What the table said at the last look. */
	bool read_only;
	unsigned atime;      /* of struct ops_options */
	unsigned long flags; /* of struct mount_options */
};

/* Begins to follow the mount on `directory`, whose mount point must answer. */
void remount_watch(struct remount *r, const char *directory);
/*
 * Takes over into *o what the table says otherwise than at the last look, and nothing else:
 * an ordinary user's mount may have options of weftd's that the table has not. True:
 * something has changed.
 */
bool remount_look(struct remount *r, struct mount_options *o);
/* False: `directory` leads to another mount, or none. True also where it cannot be known. */
bool remount_is_there(const struct remount *r, const char *directory);

#endif
