/* SPDX-License-Identifier: Apache-2.0 */
/* Follows remounts, which the kernel does not report to a FUSE filesystem. */
#ifndef WEFT_FS_REMOUNT_H
#define WEFT_FS_REMOUNT_H

#include "fs/options.h"

struct remount {
	int table; /* descriptor of the kernel's mount table: poll(2) returns POLLPRI when it has
		    * changed; -1: remounts are not followed */
	uint64_t mount_id; /* 0: unknown to the kernel */
	/* As read from the table the last time. */
	bool read_only;
	unsigned atime;      /* of struct ops_options */
	unsigned long flags; /* of struct mount_options */
};

/* Begins to follow the mount on `directory`. Its mount point must answer. */
void remount_watch(struct remount *r, const char *directory);
/*
 * Copies the options that have changed in the table since the last look into *o, and no others. A
 * user's mount may have options of weftd that the table does not show. Returns true if an option
 * has changed.
 */
bool remount_look(struct remount *r, struct mount_options *o);
/* Returns false if `directory` leads to another mount or to none. Returns true also if that cannot
 * be found out. */
bool remount_is_there(const struct remount *r, const char *directory);

#endif
