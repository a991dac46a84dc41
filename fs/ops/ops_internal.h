/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Declarations that the files of fs/ops share: the filesystem's state, the transaction loop,
 * inodes, entries, and the boundary between two halves. One half is names and attributes (fs.c,
 * inode.c, entry.c, namei.c, link.c, rename.c, dir.c, xattr.c, acl.c). The other is file data
 * (file.c, borrow.c, times.c, dirty.c, extent.c, data_*.c, append.c, truncate.c, falloc.c, sync.c,
 * orphan.c, reclaim.c, lock*.c).
 */
#ifndef WEFT_OPS_INTERNAL_H
#define WEFT_OPS_INTERNAL_H

#include <sys/stat.h>

#include "fs/kcache/pending.h"
#include "fs/ops/kept.h"

struct file_table; /* file.c */
struct borrowed;   /* borrow.c */
struct orphans;    /* orphan.c */
struct elsewhere;  /* elsewhere.c */
struct locks;      /* lock.c */

/* A directory in which names are looked up one after the other (listing.c). */
struct lookup_run {
	struct rt_mutex lock;
	_Atomic uint64_t dir;
	uint64_t hash, ino;       /* of the last lookup */
	unsigned listed;          /* lookups in the listing's order that had to wait */
	unsigned by_inode;        /* lookups in the order of inodes */
	unsigned window;          /* entries that are requested at a time */
	unsigned window_max;
	unsigned requested;       /* entries of the last request */
	unsigned due, looked;     /* entries up to the next request, and lookups of them so far */
	uint64_t asked, half;     /* hashes: requested up to there; the next request is due there */
	uint64_t ino_half;        /* the next request by inode is due there */
};
#define LOOKUP_RUNS 64u /* a power of two */

struct fs {
	struct volume *volume;
	struct tree *tree;          /* the volume's */
	struct ops_options options; /* except the ones that fs_reconfigure changes: */
	_Atomic unsigned atime;
	_Atomic bool nodiratime;
	_Atomic bool names_sync;
	struct ops_counters counters;
	struct file_table *files;
	struct borrowed *_Atomic borrowed; /* NULL: the caller opens and closes files */
	struct orphans *
		orphans; /* NULL: the volume has no other nodes, and the caller does not forget */
	struct elsewhere *elsewhere; /* NULL: the volume has no other nodes */
	struct atimes *atimes;       /* NULL: no other nodes, or read-only */
	struct locks *locks;
	struct rt_task *sync_task; /* after a crash: asks other nodes to persist pages; or NULL */
	_Atomic bool sync_closing;
	_Atomic bool sync_leaving; /* a sync no longer waits for a node that is away */
	struct kcache_sizes sizes;
	struct kcache *kcache; /* of the kernel that caches answers; or NULL */
	/*
	 * Held across renames of directories, so that no two of them can make a loop. A rename
	 * takes it first, before its transaction begins. Nothing else waits for it. It does not
	 * exclude renames on other nodes. If there are any, the rename's transaction also reads the
	 * way up from the new parent (check_ways in rename.c).
	 */
	struct rt_mutex rename_lock;
	struct lookup_run lookup_runs[LOOKUP_RUNS]; /* by a hash of the directory */
	uint64_t hash_mask; /* bits of a name's hash in use; tests reduce them to cause
			     * collisions */
};

/* Returns true if other nodes may use the volume as well. Memory then keeps nothing of a file that
 * the tree does not have. */
static inline bool fs_has_peers(const struct fs *fs)
{
	return cache_has_peers(fs->volume->cache);
}

static inline struct borrowed *fs_borrowed(struct fs *fs)
{
	return atomic_load_explicit(&fs->borrowed, memory_order_acquire);
}

static inline void ops_count(struct fs *fs, enum ops_call call)
{
	atomic_fetch_add_explicit(&fs->counters.calls[call], 1, memory_order_relaxed);
}

/* ---- reading ahead for listings (listing.c) ----------------------------------------- */

/* Tells of a lookup that has found a name, before its inode is read. Never waits. */
void listing_looked(struct fs *fs, uint64_t dir, struct ops_name name, uint64_t ino);

/* ---- transactions (fs.c) ------------------------------------------------------------ */

/*
 * Runs body(x, arg) in a transaction and commits it. Starts over on conflicts, so the body may run
 * many times: it sets all its results in *arg anew each time. The body returns:
 *
 * - 0: commit
 * - -EAGAIN: start over (the body passes on the value of txn_*)
 * - -errno: give up at once; nothing is committed
 * - +errno, as OPS_VERDICT(-errno): if all reads still stand, give up with this error, else start
 *   over. For conclusions from several leaves ("the entry names no inode"). The body must not have
 *   written anything.
 *
 * Runs that the body has passed to txn_take are released if the transaction fails. The other runs
 * stay with the caller. Returns 0 or -errno; -EROFS if the volume must not be written. Waits, so
 * the caller must hold nothing.
 */
typedef int (*ops_body)(struct txn *x, void *arg);
#define OPS_VERDICT(error) (-(error))
#define OPS_RUN_PRIVILEGED (1u << 0) /* frees space, so it may use the last pages */
#define OPS_RUN_LETS_GO (1u << 1)    /* txn_lets_go */
#define OPS_RUN_REACHED (1u << 2)    /* txn_only_reached */
int ops_run(struct fs *fs, unsigned flags, ops_body body, void *arg,
	struct log_position *pos);
/* As ops_run, for a body that changes names and takes no runs. Frees unlinked files before it
 * returns -ENOSPC. If the mount asks for it, the change is durable on return. */
int ops_run_names(struct fs *fs, unsigned flags, ops_body body, void *arg);
/* Returns 0, or -EROFS if the volume was opened read-only or has failed since. */
int fs_check_writable(struct fs *fs);

/* kept.c. Initializes fs->sizes. */
void kept_open(struct fs *fs);

/* ---- inodes (inode.c) ------------------------------------------------------------- */

/* Reads an inode in a transaction. Returns 0, -ENOENT, -EAGAIN, -EUCLEAN (not a valid inode),
 * ... */
int inode_read(struct txn *x, uint64_t ino, struct disk_inode *out);
/* Adds one to `changes` of *inode, adds this node to its writers, and writes it. */
int inode_write(struct txn *x, uint64_t ino, struct disk_inode *inode);
/* As inode_write, but this node does not become one of the writers. For a change that fsync of
 * another node does not need: of the atime, or of `changes` alone. */
int inode_write_atime(struct txn *x, uint64_t ino, struct disk_inode *inode);
/* Reads an inode without a transaction and without file_overlay. Returns -ENOENT also for inode
 * 0. */
int inode_get(struct fs *fs, uint64_t ino, struct disk_inode *out);
/* As inode_get, for a result that depends on `seen` (tree.h; NULL: nothing). -ESTALE: look all up
 * again. */
int inode_get_seen(
	struct fs *fs, struct tree_seen *seen, uint64_t ino, struct disk_inode *out);
/* Call this if a transaction will change the inode's item soon. If other nodes have its leaf, gets
 * it in one request (tree_claim). Waits. */
static inline void inode_claim(struct fs *fs, uint64_t ino)
{
	if (fs_has_peers(fs))
		tree_claim(fs->tree, disk_key(ino, DISK_ITEM_INODE, 0));
}
/* inode_get and file_overlay: the attributes for the kernel. `e`: the kernel copies that the answer
 * makes (tree.h), or NULL. */
int inode_attr(struct fs *fs, uint64_t ino, struct ops_attr *out);
int inode_attr_kcached(struct fs *fs, struct tree_kcopy *e, uint64_t ino,
	struct ops_attr *out);

/*
 * Clears setuid, and clears setgid if the file is group-executable, unless the caller keeps them.
 * For writes, truncation and fallocate on a regular file. Returns true if the mode changed. Does
 * not change times.
 */
bool ops_kill_setid(struct disk_inode *inode, const struct ops_caller *c);

/*
 * Does all of ops_setattr except the size, in a transaction that then calls inode_write. Changes
 * *inode in memory: mode with ACL, owner, times, OPS_KILL_SETID, OPS_CHOWN_NO_ONE, capabilities.
 * The ctime, and with SIZE the mtime, are `now` unless given. Writes the xattrs that change to x.
 * For ops_setattr and ops_truncate. Returns -EPERM for OPS_CHOWN_NO_ONE.
 */
int setattr_apply(struct fs *fs, struct txn *x, uint64_t ino, struct disk_inode *inode,
	const struct ops_caller *c, const struct ops_setattr *set, int64_t now);

/* Returns true if a read at `now` must write the atime, by the mount's rule. For regular files and
 * directories. Returns false on a read-only volume. */
bool atime_due(struct fs *fs, const struct disk_inode *inode, int64_t now);

/*
 * Makes a new inode in directory `dir` (*parent as read in x): owner, setgid inheritance, umask or
 * default ACL, times. Writes the inode and its inherited ACLs to x. The caller sets the entry and
 * the parent. `size`: the length of a symlink. *out: the inode as written.
 */
struct inode_new {
	uint64_t ino;
	uint64_t parent_ino; /* recorded in directories */
	uint32_t mode;       /* with type */
	uint32_t nlink;
	uint32_t rdev_major, rdev_minor;
	uint64_t size;
	int64_t now;
};
int inode_create_txn(struct fs *fs, struct txn *x, uint64_t dir,
	const struct disk_inode *parent, const struct ops_caller *c,
	const struct inode_new *what, struct disk_inode *out);

/* Returns true if a user has made the inode immutable or append-only. */
static inline bool inode_is_fixed(const struct disk_inode *inode)
{
	return inode->flags & (DISK_INODE_IMMUTABLE | DISK_INODE_APPEND_ONLY);
}

/* namei.c. Reads a directory that still has a name. Returns -ENOTDIR or -ENOENT otherwise. */
int dir_read(struct txn *x, uint64_t ino, struct disk_inode *out);
/* Checks that names may be added to the directory, or removed from it. Returns 0 or
 * OPS_VERDICT(-EPERM). */
int dir_allows(const struct disk_inode *dir, bool removes);
/* Subtracts one subdirectory from nlink, but not below 2. A damaged count therefore does not make a
 * directory with a name look removed. */
void dir_lose_subdir(struct disk_inode *dir);
/* DT_* of a mode. */
uint8_t mode_type(uint32_t mode);
/*
 * In a transaction that has removed a name of the inode (link.c): subtracts a link, or all of a
 * directory. An inode without links is freed in the transaction or becomes an orphan. *orphan: call
 * orphan_drop after the commit.
 */
int inode_unlink_txn(struct fs *fs, struct txn *x, uint64_t ino, struct disk_inode *inode,
	int64_t now, bool *orphan);

/* ---- entries (entry.c) ------------------------------------------------------------ */

struct entry {
	uint64_t ino;
	uint8_t type; /* DT_* */
};

/* Returns 0; -EINVAL or -ENAMETOOLONG if this cannot be a name. "." and ".." are -EINVAL. */
int name_check(struct ops_name name);
/* 1 for ".", 2 for "..", else 0. */
unsigned name_dots(struct ops_name name);
/* Returns the discriminator of a name's item. */
uint64_t name_hash(struct fs *fs, struct ops_name name);

/* Looks a name up without a transaction. Returns 0 or -ENOENT. `e`: the kernel copies that the
 * answer makes (tree.h), or NULL. */
int entry_get(struct fs *fs, uint64_t dir, struct ops_name name, struct entry *out);
int entry_get_kcached(struct fs *fs, struct tree_kcopy *e, uint64_t dir,
	struct ops_name name, struct entry *out);
/*
 * A name's item, and the place of the name in it, in a transaction. entry_find returns 0 also if
 * there is no such name. The slot is valid until another write under the same key. The functions
 * that change entries do not change the directory's inode.
 */
struct entry_slot {
	struct disk_key key;
	bool found;
	struct entry entry;     /* if found */
	unsigned offset, count; /* of the entry in the value; entries in it */
	unsigned len;           /* of the value; 0: no item */
	uint8_t value[DISK_VALUE_MAX];
};
int entry_find(struct fs *fs, struct txn *x, uint64_t dir, struct ops_name name,
	struct entry_slot *slot);
int entry_insert(struct txn *x, struct entry_slot *slot, struct ops_name name,
	struct entry entry); /* -ENOSPC: too many names of one hash */
int entry_remove(struct txn *x, struct entry_slot *slot);
int entry_replace(struct txn *x, struct entry_slot *slot, struct entry entry);

/*
 * A name and its directory, in a transaction that adds or removes the name (namei.c). place_find
 * reads both. It returns -ENOTDIR, or -ENOENT if the directory has been removed. It returns 0 also
 * if there is no such name. The other functions change the entry and the directory's counts and
 * times.
 */
struct place {
	uint64_t dir;
	struct ops_name name;
	struct disk_inode parent;
	struct entry_slot slot;
};
int place_find(struct fs *fs, struct txn *x, uint64_t dir, struct ops_name name,
	struct place *out);
/* As place_find, for a new name. Returns -EEXIST if it exists. */
int place_find_free(struct fs *fs, struct txn *x, uint64_t dir, struct ops_name name,
	struct place *out);
int place_add(struct txn *x, struct place *p, struct entry entry, int64_t now);
int place_remove(struct txn *x, struct place *p, bool directory, int64_t now);

/* ---- xattr items (xattr.c) -------------------------------------------------------- */

/* The parts of an item, within the value that was parsed. xattr_parse returns 0 or -EUCLEAN.
 * Reclaiming frees `runs`. */
struct xattr_view {
	struct disk_xattr head;
	const char *name;
	const uint8_t *inline_value; /* if head.run_count == 0 */
	const uint8_t *runs;         /* head.run_count unaligned struct disk_extent */
};
int xattr_parse(const void *value, size_t len, struct xattr_view *out);
/* Reads a value that is kept in the item (ACLs), in a transaction. Returns the length, -ENODATA or
 * -ERANGE. */
int xattr_read_txn(struct fs *fs, struct txn *x, uint64_t ino, const char *name,
	void *buf, size_t cap);
/* Both change flags and blocks of *inode in memory. The caller writes it. len <=
 * DISK_XATTR_INLINE_MAX. Removing an absent xattr succeeds. */
int xattr_write_txn(struct fs *fs, struct txn *x, uint64_t ino, struct disk_inode *inode,
	const char *name, const void *value, size_t len);
int xattr_remove_txn(struct fs *fs, struct txn *x, uint64_t ino, struct disk_inode *inode,
	const char *name);
/* Removes security.capability. Each write to a regular file must do this. Costs nothing if there is
 * none. The caller writes the inode. For truncation and chown, setattr_apply calls it. */
int xattr_drop_caps(struct fs *fs, struct txn *x, uint64_t ino, struct disk_inode *inode);

/* ---- ACLs (acl.c) ----------------------------------------------------------------- */

#define ACL_ACCESS_NAME  "system.posix_acl_access"
#define ACL_DEFAULT_NAME "system.posix_acl_default"

/* Changes the access ACL to match the new mode of *inode. */
int acl_chmod_txn(
	struct fs *fs, struct txn *x, uint64_t ino, const struct disk_inode *inode);
/* Sets a new inode's mode and ACLs by the default ACL of its directory, or else by the umask. */
int acl_inherit_txn(struct fs *fs, struct txn *x, uint64_t dir,
	const struct disk_inode *parent, uint32_t umask, uint64_t ino,
	struct disk_inode *inode);
/* Sets (len > 0) or removes an ACL given as its xattr. An access ACL also changes the mode of
 * *inode. */
int acl_set_txn(struct fs *fs, struct txn *x, uint64_t ino, struct disk_inode *inode,
	const struct ops_caller *c, bool is_default, const void *value, size_t len);

/* ---- the file data half, as the names half uses it -------------------------------- */

/* file.c: the table of open files. For fs_open and fs_close. */
int file_table_open(struct fs *fs);
void file_table_close(struct fs *fs); /* closes the files that are still open */

/*
 * borrow.c. These do nothing unless opens are hidden (fs_hide_opens). They wait.
 *
 * - borrowed_forget closes the handle of an inode of which the kernel has nothing. If a request
 *   uses it, it is closed when it is given back.
 * - borrowed_settle frees the pages that idle files have reserved ahead.
 * - borrowed_close closes all handles. Call it before orphans_stop.
 */
void borrowed_close(struct fs *fs);
void borrowed_forget(struct fs *fs, uint64_t ino);
void borrowed_settle(struct fs *fs);

/* Returns true if the inode has a handle on this node. */
bool file_is_open(struct fs *fs, uint64_t ino);
/*
 * Makes a handle on an inode before the transaction that makes the inode, so that no unlink can
 * come between. flags: O_*. With O_TMPFILE and without O_EXCL the file may be linked. If the
 * transaction fails, call file_abandon, never ops_close.
 */
int file_open_new(struct fs *fs, uint64_t ino, int flags, struct ops_file **out);
void file_abandon(struct fs *fs, struct ops_file *file);
/*
 * Call these around a transaction that gives a link to an inode without links. file_naming returns
 * true if the file may get a name. It must be open here by a handle of file_open_new with O_TMPFILE
 * and without O_EXCL, and never have had a name. From then on its state is treated as any file's,
 * whether or not the transaction commits. Call file_named after the commit.
 */
bool file_naming(struct fs *fs, uint64_t ino);
void file_named(struct fs *fs, uint64_t ino);
/*
 * file_overlay changes *inode to the times that open files here have and the tree does not have
 * yet. file_settle writes them to the tree. Call it before a setattr, so that explicit times win.
 * Both cost a table look-up if the file is not open.
 */
void file_overlay(struct fs *fs, uint64_t ino, struct disk_inode *inode);
int file_settle(struct fs *fs, uint64_t ino);
/* Returns true if a handle on this node may write the file. Always true if opens are hidden. */
bool file_open_to_write(struct fs *fs, uint64_t ino);
/* For volumes of several nodes. atimes_open starts the task that later writes the noted atimes of
 * reads to the tree. atimes_close writes the remaining ones. */
int atimes_open(struct fs *fs);
void atimes_close(struct fs *fs);

/* reclaim.c. Call orphan_mark in the transaction in which nlink becomes 0 (or a tmpfile is made).
 * Call orphan_unmark in the one in which a tmpfile gets its first link. */
int orphan_mark(struct txn *x, uint64_t ino);
int orphan_unmark(struct txn *x, uint64_t ino);
/*
 * The caller has counted and noted a handle on the inode (elsewhere_note). From then on this node
 * frees the orphan, with the last close. Returns -ENOENT if it is gone, or was freed in part.
 * Waits.
 */
int orphan_take(struct fs *fs, uint64_t ino);
/* Finishes intents and reclaims orphans, at open on a volume without other nodes. */
int reclaim_recover(struct fs *fs, struct weft_error *err);

/* As space_reserve. Before it returns an error for lack of room, it releases reservations ahead and
 * frees unlinked files. Waits. */
int run_reserve(struct fs *fs, page_id goal, uint32_t want, struct space_run *out);

/*
 * sync.c. For fs_open and fs_close. Between them this node serves the sync requests of other nodes.
 * After a crash it also has other nodes persist pages. sync_open returns 0 or -errno. sync_close
 * does not wait for a node that is away.
 */
int sync_open(struct fs *fs);
void sync_close(struct fs *fs);

/*
 * For fs_open and fs_close, in this order:
 *
 * - orphans_open starts reclaiming.
 * - orphans_stop stops it and reclaims all inodes that are not open. The table of files is closed
 *   after that.
 * - orphans_close frees the memory.
 */
int orphans_open(struct fs *fs);
void orphans_stop(struct fs *fs);
/* On a volume of several nodes, starts a task that works the tree's lists of orphans and intents
 * off. Opening therefore does not wait for a node that is away. */
void orphans_recover(struct fs *fs);
void orphans_close(struct fs *fs);
/*
 * Call this after the transaction that has removed the last link. The inode is reclaimed once it is
 * not open and the caller has forgotten it. For every type, also directories and symlinks. Errors
 * are logged; the orphan item stays.
 */
void orphan_drop(struct fs *fs, uint64_t ino);
/* Notes that the caller refers to the inode. Returns false if there is no forget to wait for, or no
 * room. */
bool orphan_await(struct fs *fs, uint64_t ino);
bool orphan_is_awaited(struct fs *fs, uint64_t ino);
/* Call this before an operation that may make an inode without links. If opens are hidden and too
 * many inodes are awaited already, waits for some to be forgotten. Returns 0 or -ENFILE. */
int orphans_room(struct fs *fs);
/* Returns true if the inode is open here or its forget is awaited. It is then reclaimed with the
 * last close or forget here, or other nodes are asked again. */
bool orphan_is_used(struct fs *fs, uint64_t ino);
/* Returns true if this node or another one uses the orphan, or if a node that may use it does
 * not answer. Waits. */
bool orphan_lives(struct fs *fs, uint64_t ino);
/*
 * Reclaims the inodes that no other node uses. `listed`: they come from the tree's list of orphans,
 * so inodes in use on this node are skipped, too. If a node does not answer, the inode stays on the
 * list and is tried again later. count <= 32. Waits.
 */
void orphans_reclaim(struct fs *fs, const uint64_t *ino, unsigned count, bool listed);
/*
 * reclaim.c. reclaim_listed calls orphans_reclaim for the whole list; reclaim_intents finishes
 * intents. Both skip an inode that needs a node that is away, and then return -EHOSTUNREACH. They
 * return 0 or the error that ended them. Wait.
 */
int reclaim_listed(struct fs *fs);
int reclaim_intents(struct fs *fs);

/* elsewhere.c. All of these do nothing if the volume has no other nodes. */
/* For fs_open and fs_close. elsewhere_serve(false) stops answering other nodes before the table of
 * files is closed. Call elsewhere_close once the table is empty. */
int elsewhere_open(struct fs *fs);
void elsewhere_serve(struct fs *fs, bool serve);
void elsewhere_close(struct fs *fs);
/* Call this after the handle is counted and before the inode's links are read. Returns 0 or an
 * error. Waits. */
int elsewhere_note(struct fs *fs, uint64_t ino);
/* As elsewhere_note, in the transaction that removes the last link of an inode whose forget will be
 * awaited. */
int elsewhere_note_txn(struct fs *fs, struct txn *x, uint64_t ino);
/* Call this around an operation that removes a last name, until orphan_drop. Meanwhile (busy) the
 * list may have an inode that will be awaited and is not yet. */
void elsewhere_unlinking(struct fs *fs, bool begins);
bool elsewhere_busy(struct fs *fs);
/* Returns true if the inode and the list of its openers can be read without waiting for a node that
 * is away. */
bool elsewhere_near(struct fs *fs, uint64_t ino);
/* Asks other nodes which of the inodes, which have no links, they use. Returns a bit for each.
 * *unknown: bits of the inodes for which a node did not answer. count <= 32. Waits. */
uint32_t elsewhere_used(struct fs *fs, const uint64_t *ino, unsigned count, bool listed,
	uint32_t *unknown);
/*
 * Reclaims all inodes that are ready now. `patient`: first gives a caller that has just unlinked a
 * moment to forget, and waits for the orphans from before this node was opened. Returns false if
 * there were none. Waits. A task that reclaims must not call it.
 */
bool orphans_settle(struct fs *fs, bool patient);
/* Hurries reclaiming, because an operation needs room. Returns true if an inode is being reclaimed,
 * or will be in a moment. Never waits. */
bool orphans_hurry(struct fs *fs);
/* file.c. Releases the pages that all files have reserved ahead of their ends. */
void ahead_release_all(struct fs *fs);
/* lock.c. locks_open is last in fs_open. locks_close is first in fs_close: it frees all locks of
 * this node. */
int locks_open(struct fs *fs);
void locks_close(struct fs *fs);
/* truncate.c. For ops_setattr with OPS_SET_SIZE on a regular file: size, setattr_apply and
 * inode_write in one transaction. Large cuts use an intent. *out: the result. */
int ops_truncate(struct fs *fs, uint64_t ino, const struct ops_caller *c,
	const struct ops_setattr *set, struct ops_attr *out);

#endif
