/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel as a sharer of pages on a volume of several nodes: how it is told to drop what it
 * has (docs/many-nodes.md, "The kernel"). Internal to fs/. */
#ifndef WEFT_FS_SHARER_H
#define WEFT_FS_SHARER_H

#include <linux/fuse.h>

#include "fs/session.h"

/* Of protocol 7.38, which Debian's header does not have. */
#define WIRE_HAS_EXPIRE_ONLY (1ull << 35)
#define WIRE_EXPIRE_ONLY     (1u << 0)
struct wire_notify_inval_entry {
	uint64_t parent;
	uint32_t namelen, flags;
};

/*
 * The kernel may keep what it is told, from the first request on. Without memory, or with a
 * cache too small for the largest READ, it keeps nothing (session_keeps says so).
 */
void sharer_start(struct session *s);
void sharer_stop(struct session *s);
/* A request has come: the thread that waits for its answer has taken in those before. */
void sharer_heard(struct session *s, const struct fuse_in_header *in);
/* Can threads be looked at, as far as is known? `thread` waits for an answer at this moment. */
bool sharer_looks_at(struct session *s, uint32_t thread);
/* May the kernel keep names? */
bool sharer_keeps_names(struct session *s);
/* May it keep attributes that come with them? */
bool sharer_keeps_named(struct session *s);
/*
 * Before an answer with attributes, to be kept or not; `size` was looked at before them. Where programs go by the file's size, the kernel
 * takes it over from here on, unless it has a larger one, or READs are pending for all of it. It may not
 * take in the answer itself, as attributes or pages are dropped meanwhile.
 */
void sharer_told(struct session *s, struct ops_size *size, const struct ops_attr *attr,
	bool keeps);

#endif
