/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Operations for a kernel that caches their answers (fs/kcache). POSIX semantics are in ops.h.
 */
#ifndef WEFT_OPS_KEPT_H
#define WEFT_OPS_KEPT_H

#include "fs/kcache/kcache.h"
#include "fs/ops/ops.h"

/*
 * kcache_start for the filesystem, which has other nodes: before the first question. The caller
 * says which inodes it has let go of (ops_forget). 0 or -errno.
 */
int fs_kernel_start(struct fs *fs, const struct kcache_ops *ops, void *owner,
	const struct kcache_noted *noted);
/* Before fs_close. */
void fs_kernel_stop(struct fs *fs);
/* NULL: between fs_kernel_stop and fs_kernel_start. */
struct kcache *fs_kcache(const struct fs *fs);
struct kcache_sizes *fs_sizes(struct fs *fs);

/*
 * ops_read for pages that the caller's kernel keeps (fs_kernel_start). It must have no readable
 * copies of the range, and get none before the answer. `len` is at most cache_batch_max pages;
 * offset + len is the end of a page.
 */
int ops_read_kept(struct fs *fs, struct ops_file *file, uint64_t offset, size_t len,
	ops_sink sink, void *arg);
/* ops_getattr, and whether the kernel may keep the answer (kcache_getattr). Waits. */
int ops_getattr_kept(
	struct fs *fs, uint64_t ino, uint32_t thread, struct ops_attr *out, bool *keeps);
/* ops_lookup, and the parts of its answer that may be kept, as far as the tree goes. Waits. */
int ops_lookup_kept(struct fs *fs, uint64_t dir, struct ops_name name,
	struct ops_attr *out, struct kcache_looked *looked);
/* The kernel will keep that the name is the inode's. Returns false if it is not so any more, or is
 * not to be kept. Waits. */
bool ops_renamed_kept(struct fs *fs, uint64_t dir, struct ops_name name, uint64_t ino);
/* kcache_opened for the handle's file. Waits. */
void ops_opened_kept(struct fs *fs, struct ops_file *file, uint32_t thread);
/* A change of the file is about to pass the pages that the caller's kernel has of it. */
void ops_passes_pages(struct fs *fs, struct ops_file *file);
/*
 * The kernel writes back pages with programs' stores through mappings. They go to the pages that
 * the kernel has for that (ops_read_kept). No other node is waited for, and the file never grows.
 * Returns len, or -errno.
 */
int64_t ops_store(struct fs *fs, struct ops_file *file, uint64_t offset, const void *buf,
	size_t len);
/*
 * The same with OPS_MMAP_LOCAL. Bytes that differ from the pages that the kernel was given go into
 * the file; other nodes may be waited for. Another task calls `answer` if this takes long, or if a
 * drop of the pages waits for it. Then the handle may be closed meanwhile, and the next ops_fsync
 * or ops_flush reports an error. Waits.
 */
int64_t ops_store_local(struct fs *fs, struct ops_file *file, uint64_t offset,
	const void *buf, size_t len, void (*answer)(void *arg), void *arg);
/* Behind the answer to that: the mtime, once a second. Waits. */
void ops_stored(struct fs *fs, uint64_t ino);
/* Returns true if programs may store into the file through mappings here without a request: the
 * kernel gets its pages exclusively, except with OPS_MMAP_LOCAL. */
bool ops_file_mappable(struct ops_file *file);
/* Such mappings are offered; pages of theirs are this node's alone. */
bool fs_maps_shared(const struct fs *fs);
bool fs_maps_alone(const struct fs *fs);
/*
 * Call it before an answer with attributes that the kernel may not take in. Returns true if a
 * program here may go by the kernel's size of the file, which it has open. `keeps`: the answer is
 * to be kept, so the kernel had the size before, unless pages that may be stored into were dropped
 * meanwhile.
 */
bool ops_goes_by_size(struct fs *fs, uint64_t ino, bool keeps);

#endif
