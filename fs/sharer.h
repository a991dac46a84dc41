/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel as a sharer of pages on a volume of several nodes: how it is told to drop what it
 * has (docs/many-nodes.md, "The kernel"). Internal to fs/. */
#ifndef WEFT_FS_SHARER_H
#define WEFT_FS_SHARER_H

#include <linux/fuse.h>

#include "fs/session.h"

#define WIRE_NOTIFY_INC_EPOCH 8 /* protocol 7.44 */

/*
 * The kernel may keep what it is told, from the first request on. Without memory, or with a
 * cache too small for the largest READ, it keeps nothing (session_keeps says so).
 */
void sharer_start(struct session *s);
void sharer_stop(struct session *s);
/* A request has come: the thread that waits for its answer has taken in those before. */
void sharer_heard(struct session *s, const struct fuse_in_header *in);
/* Seconds that the kernel may believe a name, if its leaf was exposed. */
double sharer_name_timeout_s(struct session *s, bool exposed);
/* May attributes be kept that the thread, which waits for it, is told with a name? */
bool sharer_keeps_named(struct session *s, uint32_t thread);
/* All names are asked for again. Never blocks. */
void sharer_drop_names(struct session *s);
/*
 * Before an answer with attributes, to be kept or not; `size` was looked at before them. Where programs go by the file's size, the kernel
 * takes it over from here on, unless it has a larger one, or READs are pending for all of it. It may not
 * take in the answer itself, as attributes or pages are dropped meanwhile.
 */
void sharer_told(struct session *s, struct ops_size *size, const struct ops_attr *attr,
	bool keeps);

#endif
