/* SPDX-License-Identifier: Apache-2.0 */
/* The kernel as a sharer of pages on a volume of several nodes: notifications that make it drop its
 * copies (docs/nodes/kernel-cache.md). Internal to fs/. */
#ifndef WEFT_FS_NOTIFY_H
#define WEFT_FS_NOTIFY_H

#include <linux/fuse.h>

#include "fs/session.h"

/* Of protocol 7.38, which Debian's header does not have. */
#define WIRE_HAS_EXPIRE_ONLY (1ull << 35)
#define WIRE_EXPIRE_ONLY     (1u << 0)
struct wire_notify_inval_entry {
	uint64_t parent;
	uint32_t namelen, flags;
};

/* Allows the kernel to keep answers, from the first request on. If memory is short, or the cache is
 * too small for the largest READ, the kernel keeps nothing (session_keeps returns false). */
void notify_start(struct session *s);
void notify_stop(struct session *s);
/* Notes a request: its thread has taken in its earlier answers. */
void notify_heard(struct session *s, const struct fuse_in_header *in);
/*
 * Returns true if the state of threads can be read, as far as is known. `thread` waits for an
 * answer at this moment. Returns false for 0, a thread of another pid namespace: the kernel gives
 * no number for it here.
 */
bool notify_looks_at(struct session *s, uint32_t thread);
/* Returns true if the kernel may keep names. */
bool notify_keeps_names(struct session *s);
/* Returns true if the kernel may keep attributes that come with names. */
bool notify_keeps_named(struct session *s);
/*
 * Call this before an answer with attributes, kept or not. `size` was looked up before them. If
 * programs use the kernel's file size, the kernel takes over the size in the answer. Exceptions:
 * its own size is larger, or READs of the whole file are pending. The kernel may ignore the answer,
 * because attributes or pages are dropped meanwhile.
 */
void notify_told(struct session *s, struct kcache_size *size, const struct ops_attr *attr,
	bool keeps);

#endif
