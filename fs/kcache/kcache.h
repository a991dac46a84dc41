/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The caller's kernel as a sharer. It caches pages, attributes, names and sizes, and drops them
 * before another node may change them (docs/nodes/kernel-cache.md). For a volume of one node see
 * docs/design.md, "The kernel's cache".
 *
 * This layer lies below the operations (fs/ops). They give it a `kcache_source` to look up
 * attributes and open files, and tell it of READs and changes (pending.h).
 *
 * Functions that take a `struct kcache *` accept NULL where this header says so: no kernel caches
 * anything then.
 */
#ifndef WEFT_KCACHE_H
#define WEFT_KCACHE_H

#include "fs/kcache/attr.h"

struct kcache;
struct kcache_file; /* pending.h: its part of an open file's state */

/* ---- sizes that a kernel goes by without asking (sizes.c) ------------------------------ */

#define KCACHE_SIZE_PLACES 8u
#define KCACHE_SIZE_CUTS   64u

/*
 * The sizes that are being told to the kernel. A volume of one node has this, too. Each place
 * keeps one of the caller's workers, and may wait until the kernel is answered something else.
 */
struct kcache_sizes {
	const struct kcache_source *source;
	void *owner;
	bool shared; /* other nodes may set sizes, too */
	struct rt_mutex lock;
	struct rt_cond changed;
	struct kcache_file *place[KCACHE_SIZE_PLACES]; /* with a reference; NULL: free */
	_Atomic uint32_t
		cuts[KCACHE_SIZE_CUTS]; /* by inode: files that were cut so far */
};

/* A size that the kernel is to be told. */
struct kcache_size {
	uint64_t ino, size;
	uint32_t cuts;
	unsigned place;
	bool drops; /* drop its pages from `drop_from` on first: they may be from before the
		       file grew */
	uint64_t drop_from; /* a file block */
};

/* Call it before the look-up of the attributes that say the size. Never waits. */
struct kcache_size kcache_size_look(struct kcache_sizes *s, uint64_t ino);
/*
 * The attributes said size->size. Returns true if the kernel may not have that size: the caller
 * tells it now, before it answers with the attributes, and calls kcache_size_end. No cut of the
 * file ends meanwhile. Waits.
 */
bool kcache_size_begin(struct kcache_sizes *s, struct kcache_size *size);
void kcache_size_end(struct kcache_sizes *s, const struct kcache_size *size);

/* ---- the kernel ------------------------------------------------------------------------ */

/* A thread's activity as last seen: its time on a processor, its sleeps, and since when
 * (rt_now_ns) it has been in this one. */
struct kcache_seen {
	uint64_t ran, slept, since_ns;
};

/* The purpose for which a thread asks for the attributes of a directory. */
enum kcache_walk {
	KCACHE_WALK_UNKNOWN,
	KCACHE_WALK_INTO, /* a path walk, which has locked no directory */
	KCACHE_WALK_NONE, /* it uses no name of it after this, or has it locked */
};

/* Notifications to the kernel, and questions about its threads. */
struct kcache_ops {
	/*
	 * Drops pages of the file blocks [first, end) (UINT64_MAX: all), and the
	 * attributes. May wait for READs of these pages that are not answered. `by`, 0 at
	 * first, is for drop_waits.
	 */
	void (*drop_pages)(void *owner, uint64_t ino, uint64_t first, uint64_t end,
		_Atomic uint32_t *by);
	/* Returns true if drop_pages is under way and waits for a READ. At this moment all
	 * processors know of the pages that it has unmapped. */
	bool (*drop_waits)(void *owner, const _Atomic uint32_t *by);
	/* Raises the kernel's size to `size`. May wait for READs that are not answered. */
	void (*tell_size)(void *owner, uint64_t ino, uint64_t size);
	/* Drops the attributes, also of answers on their way. Returns false if the kernel has not
	 * got the inode. Never waits. */
	bool (*drop_attributes)(void *owner, uint64_t ino);
	/* Makes the kernel look the name up before it uses it again. The dentry stays until then.
	 * May wait for calls that have the directory locked. */
	void (*expire_name)(void *owner, uint64_t dir, struct ops_name name);
	/* The purpose of the thread, which waits for the answer to a GETATTR of a directory. Never
	 * waits. */
	enum kcache_walk (*walks)(void *owner, uint32_t thread);
	/*
	 * Looks the name up in the directory as a program does. The kernel then moves the dentry of
	 * the directory that has this name there. Returns 0; -ESTALE: not now; or another -errno.
	 * Waits for answers to the requests that this makes.
	 */
	int (*look)(void *owner, const struct ops_attr *dir, struct ops_name name);
	/* Returns true if the thread is one that runs `look`. */
	bool (*is_own)(void *owner, uint32_t thread);
	/*
	 * Returns true if the thread, which was given an answer, has done something else since: it
	 * has taken the answer in. *seen, all 0 at first, is kept between calls. Returns false if
	 * that is not known. Never waits.
	 */
	bool (*returned)(void *owner, uint32_t thread, struct kcache_seen *seen);
};

/* Look-ups that the operations do for this layer. */
struct kcache_source {
	/* The attributes. *e says which leaf is kernel-cached for them (NULL: none). Waits. */
	int (*attr)(
		void *owner, struct tree_kcopy *e, uint64_t ino, struct ops_attr *out);
	/*
	 * Finds the directory: its parent, and its name there (DISK_NAME_MAX bytes at most).
	 * Returns 0; -ENOENT: it was removed; -EAGAIN: it moves just now; or another -errno. Waits.
	 */
	int (*locate)(void *owner, uint64_t ino, struct ops_attr *parent, char *name,
		size_t *len);
	uint64_t (*name_hash)(void *owner, struct ops_name name);
	/* The inode's file state, with a reference that `put` gives back; NULL: there is none. */
	struct kcache_file *(*find)(void *owner, uint64_t ino);
	void (*put)(void *owner, struct kcache_file *file);
	/* The state if the inode is open, else NULL. It stays so until the caller unlocks *lock,
	 * which is locked in both cases. */
	struct kcache_file *(*peek)(void *owner, uint64_t ino, struct rt_mutex **lock);
};

/* Of how many inodes at a time the kernel is given something to keep; `pages` of the cache. */
static inline uint32_t kcache_inodes(uint64_t pages)
{
	return (uint32_t)MIN(MAX(pages / 2, 1u << 15), 1u << 22);
}

/*
 * Memory for the numbers of the inodes of which the kernel may have attributes or pages, 0 at first
 * and in free places. Another process that shares it drops them after this one was killed.
 */
struct kcache_noted {
	_Atomic uint64_t *ino;
	uint32_t count;
};

struct kcache_config {
	struct cache *cache;
	struct tree *tree;
	const struct kcache_ops *ops;
	void *ops_owner;
	const struct kcache_source *source;
	void *source_owner;
	struct kcache_sizes *sizes;
	/* The kernel is given something to keep of kcache_inodes, and at most noted->count, inodes
	 * at a time; NULL: no process reads the numbers. */
	const struct kcache_noted *noted;
	bool maps_alone; /* mappings take stores, to pages that only this node has */
	bool maps_local; /* mappings take stores that are merged when the kernel writes back */
};

/*
 * Call it before the first question. *out is set as soon as drops may come. From here on the kernel
 * drops a kernel-cached page before another node may change it. For a new inode, if the table is
 * full, the oldest is dropped. 0 or -errno, and *out is NULL then.
 */
int kcache_start(struct kcache **out, const struct kcache_config *config);
/* The kernel has gone, or asks nothing any more. *k may be NULL, and is NULL afterwards. */
void kcache_stop(struct kcache **k);

/* ---- attributes and names that it is told ----------------------------------------------- */

/* An answer to a look-up whose attributes may be kept. */
struct kcache_named {
	uint64_t ino;
	uint32_t look;
	bool name, attributes; /* which may be kept */
};

/* Which parts of a look-up are kernel-cached, so that the kernel may keep them. */
struct kcache_looked {
	bool name; /* or that there is none */
	bool attributes;
	struct cache_kcopy names; /* the leaf of the name */
	struct cache_kcopy leaf;  /* of the inode */
};

/*
 * The attributes, and whether the kernel may keep them. It may not keep a size that is news: it
 * must have taken that in before it can be told to drop it. `thread`: a thread that asks its next
 * question only after it has taken in the answer; 0: not known. 0 or -errno. Waits.
 */
int kcache_getattr(struct kcache *k, uint64_t ino, uint32_t thread, struct ops_attr *out,
	bool *keeps);
/* The thread asks something: so it has taken in the answers to its earlier questions. `k` may be
 * NULL. */
void kcache_heard(struct kcache *k, uint32_t thread);
/* The answer is about to tell attributes in passing, with a name, not to be kept. `k` may be
 * NULL. */
void kcache_told(struct kcache *k, uint32_t thread, const struct ops_attr *attr);
/*
 * kcache_told for a name of `dir` that was looked up just before. Returns true if the name or
 * the attributes may be kept, as *named says; then the answer follows without a wait, and
 * kcache_named_told behind it. Returns false if neither may; then nothing was told.
 */
bool kcache_named(struct kcache *k, uint64_t dir, uint32_t thread,
	const struct ops_attr *attr, const struct kcache_looked *looked,
	struct kcache_named *named);
/* The name was looked up just before, and is absent. Returns true if the kernel may keep that. */
bool kcache_absent(struct kcache *k, uint64_t dir, struct ops_name name,
	const struct kcache_looked *looked);
/*
 * The same for an inode that the thread has just made, and the kernel has not got: of CREATE,
 * MKDIR, MKNOD and SYMLINK. Reads the attributes once more. Waits.
 */
bool kcache_made(struct kcache *k, uint32_t thread, struct ops_attr *attr,
	struct kcache_named *named);
/* `taken`: the kernel has taken the answer, so the thread will take it in. */
void kcache_named_told(struct kcache *k, const struct kcache_named *named, bool taken);
/* The kernel has taken another size from elsewhere (its own change, a short READ), or has not
 * taken in the one that it was told. `k` may be NULL. */
void kcache_resized(struct kcache *k, uint64_t ino);
/*
 * Behind an open, before it is answered: from here on the kernel is told each size of the file that
 * another node sets. `thread`: the thread that opens it, as above. `k` may be NULL. Waits.
 */
void kcache_opened(struct kcache *k, uint64_t ino, uint32_t thread);
/* Returns when the kernel has all sizes of open files that were set elsewhere before this call.
 * If a node does not answer, it returns after a second. `k` may be NULL. Waits. */
void kcache_sizes_await(struct kcache *k);
/* Goes down from the file's block *block to the next that no READ is pending for. Returns false if
 * there is none. */
bool kcache_unread(struct kcache *k, uint64_t ino, uint64_t *block);
/* Returns true if the kernel may keep the inode's ACLs that are read from here on. False: it may
 * be told them, not keep them. `k` may be NULL. Waits. */
bool kcache_acl(struct kcache *k, uint64_t ino);

/* ---- directories that move, names that are expired --------------------------------------- */

/*
 * Before the answer: the kernel will have the directory under that name. If `moved`, this node's
 * own call has moved it there; otherwise a place that is known already stays. `keeps`: the kernel
 * keeps the name.
 */
void kcache_dir_placed(struct kcache *k, uint64_t ino, uint64_t dir, struct ops_name name,
	bool moved, bool keeps);
/*
 * A call here changes a name in a way that the kernel cannot be told to keep. The caller calls
 * kcache_names_gate before its answer, and kcache_names_expire behind it. In between no walk that
 * begins uses names of the directory. The second one waits for calls that have the directory
 * locked.
 */
struct kcache_gate {
	struct kcache_gate *next; /* own to fs/kcache, as all here */
	uint64_t dir, number;
};
void kcache_names_gate(struct kcache *k, uint64_t dir, struct kcache_gate *gate);
/* `ino`: the inode that the kernel may have under the name. */
void kcache_names_expire(
	struct kcache *k, struct kcache_gate *gate, struct ops_name name, uint64_t ino);
/* Returns true if names of the directory are being expired. The kernel's may be outdated then, and
 * its attributes are not to be kept. */
bool kcache_names_gated(struct kcache *k, uint64_t dir);

#endif
