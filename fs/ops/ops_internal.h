/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the files of fs/ops share: the filesystem's state, the transaction loop, inodes,
 * entries, and the boundary between its two halves: names and attributes (fs.c, inode.c,
 * entry.c, namei.c, link.c, rename.c, dir.c, xattr.c, acl.c) and file data (file.c,
 * times.c, dirty.c, extent.c, data_*.c, append.c, truncate.c, falloc.c, sync.c, orphan.c,
 * reclaim.c, lock*.c).
 */
#ifndef WEFT_OPS_INTERNAL_H
#define WEFT_OPS_INTERNAL_H

#include <sys/stat.h>

#include "fs/ops/ops.h"

struct file_table; /* file.c */
struct orphans;    /* orphan.c */
struct elsewhere;  /* elsewhere.c */
struct locks;      /* lock.c */
struct kernel;     /* kernel.c */

/*
 * Who tells the caller's kernel a size (kernel_sizes.c). Each keeps a worker of the caller's, and may
 * wait until the kernel is answered something else.
 */
#define SIZE_PLACES 8u
#define SIZE_CUTS   64u

struct fs_sizes {
	struct rt_mutex lock;
	struct rt_cond changed;
	struct inode_state *place[SIZE_PLACES]; /* with a reference; NULL: free */
	_Atomic uint32_t cuts[SIZE_CUTS];       /* by inode: files that were cut so far */
};

struct fs {
	struct volume *volume;
	struct tree *tree;          /* the volume's */
	struct ops_options options; /* but for what fs_reconfigure changes: */
	_Atomic unsigned atime;
	_Atomic bool nodiratime;
	_Atomic bool names_sync;
	struct ops_counters counters;
	struct file_table *files;
	struct orphans
		*orphans; /* NULL: no other nodes, and the caller does not forget */
	struct elsewhere *elsewhere; /* NULL: no other nodes */
	struct atimes *atimes;       /* NULL: no other nodes, or read-only */
	struct locks *locks;
	struct rt_task *sync_task; /* has others persist what a crash has left; or NULL */
	_Atomic bool sync_closing;
	_Atomic bool sync_leaving; /* nobody that is away is waited for any more */
	struct fs_sizes sizes;
	struct kernel *kernel; /* the caller's, which keeps what it is told; or NULL */
	/*
	 * Held across renames of directories, so that no two of them can make a loop. The
	 * first lock of a rename, taken before its transaction begins; nothing else waits
	 * for it. (With many nodes it is the catalog's rename token.)
	 */
	struct rt_mutex rename_lock;
	uint64_t hash_mask; /* bits of a name's hash in use; tests narrow it to get
			       collisions */
};

/* May other nodes use the volume as well? Then nothing of a file is kept in memory that the
 * tree does not say. */
static inline bool fs_has_peers(const struct fs *fs)
{
	return cache_has_peers(fs->volume->cache);
}

static inline void ops_count(struct fs *fs, enum ops_call call)
{
	atomic_fetch_add_explicit(&fs->counters.calls[call], 1, memory_order_relaxed);
}

/* ---- transactions (fs.c) ----------------------------------------------------------
 *
 * Runs body(x, arg) in a transaction and commits it; starts over on conflicts. The body
 * may run many times: it sets everything it leaves in *arg anew each time. It returns
 *   0		commit;
 *   -EAGAIN	start over (pass on what txn_* said);
 *   -errno	give up at once; nothing is committed;
 *   +errno	OPS_VERDICT(-errno): give up with this error if all that was read stands,
 * start over if not. For conclusions from more than one leaf ("the entry names no inode").
 *		Nothing may have been written by the body.
 * Runs the body handed to txn_take go back when the transaction fails; those it did not
 * get to hand over are the caller's. 0, a negative errno; -EROFS on a volume that must not
 * be written. Waits; hold nothing.
 */
typedef int (*ops_body)(struct txn *x, void *arg);
#define OPS_VERDICT(error) (-(error))
#define OPS_RUN_PRIVILEGED (1u << 0) /* frees space: may use the last pages */
#define OPS_RUN_LETS_GO (1u << 1) /* txn_lets_go */
#define OPS_RUN_REACHED (1u << 2) /* txn_only_reached */
int ops_run(struct fs *fs, unsigned flags, ops_body body, void *arg,
	struct log_position *pos);
/* The same for what changes names and takes no runs: before it says -ENOSPC, what is
 * unlinked is freed; durable when it returns, if the mount asks for it. */
int ops_run_names(struct fs *fs, unsigned flags, ops_body body, void *arg);
/* 0, or -EROFS: opened read-only, or failed at run time. */
int fs_check_writable(struct fs *fs);

/* ---- inodes (inode.c) ------------------------------------------------------------- */

/* In a transaction. 0, -ENOENT, -EAGAIN, -EUCLEAN (not a valid inode), ... */
int inode_read(struct txn *x, uint64_t ino, struct disk_inode *out);
/* Adds one to `changes` of *inode and this node to its writers, and writes it. */
int inode_write(struct txn *x, uint64_t ino, struct disk_inode *inode);
/* After a change that no fsync of another node is about: this node does not become one of its
 * writers. Of its atime alone, or of nothing but `changes`. */
int inode_write_atime(struct txn *x, uint64_t ino, struct disk_inode *inode);
/* Without a transaction; -ENOENT also for inode 0. Does not ask file_overlay. */
int inode_get(struct fs *fs, uint64_t ino, struct disk_inode *out);
/* The same, for what is derived from it (tree.h; NULL: nothing): -ESTALE, look at all again. */
int inode_get_seen(
	struct fs *fs, struct tree_seen *seen, uint64_t ino, struct disk_inode *out);
/*
 * A transaction will change the inode's item soon: where other nodes have its leaf, it is had
 * in one request (tree_claim). Waits.
 */
static inline void inode_claim(struct fs *fs, uint64_t ino)
{
	if (fs_has_peers(fs))
		tree_claim(fs->tree, disk_key(ino, DISK_ITEM_INODE, 0));
}
/* inode_get and file_overlay: what the kernel is told. e: what is exposed with it (tree.h), or NULL. */
int inode_attr(struct fs *fs, uint64_t ino, struct ops_attr *out);
int inode_attr_exposed(struct fs *fs, struct tree_exposure *e, uint64_t ino,
	struct ops_attr *out);

/* Clears setuid, and setgid of what is group-executable, unless the caller keeps them:
 * for writes, truncation, fallocate on a regular file. True: the mode changed. Does not
 * touch times. */
bool ops_kill_setid(struct disk_inode *inode, const struct ops_caller *c);

/*
 * All of ops_setattr but the size itself, in a transaction that goes on to inode_write:
 * mode with ACL, owner, times (ctime, and with SIZE mtime, are `now` unless given),
 * OPS_KILL_SETID, OPS_CHOWN_NO_ONE, capabilities. *inode is changed in memory; xattrs that
 * follow are written to x. For ops_setattr and for ops_truncate. -EPERM: of OPS_CHOWN_NO_ONE.
 */
int setattr_apply(struct fs *fs, struct txn *x, uint64_t ino, struct disk_inode *inode,
	const struct ops_caller *c, const struct ops_setattr *set, int64_t now);

/* Does a read at `now` have to write the atime, by the mount's rule? (regular files and
 * directories; false on a read-only volume) */
bool atime_due(struct fs *fs, const struct disk_inode *inode, int64_t now);

/*
 * A new inode in directory `dir` (*parent as read in x): owner, setgid inheritance, umask
 * or default ACL, times. Writes the inode and its inherited ACLs to x; the caller sets
 * the entry and the parent. `size`: a symlink's length. *out is the inode as written.
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

/* Users have set that it may not be changed, or be appended to only. */
static inline bool inode_is_fixed(const struct disk_inode *inode)
{
	return inode->flags & (DISK_INODE_IMMUTABLE | DISK_INODE_APPEND_ONLY);
}

/* A directory that still has a name: -ENOTDIR, -ENOENT. (namei.c) */
int dir_read(struct txn *x, uint64_t ino, struct disk_inode *out);
/* May names be added to it; may they be removed? 0 or OPS_VERDICT(-EPERM). */
int dir_allows(const struct disk_inode *dir, bool removes);
/* One subdirectory less. A count that was damaged does not make a directory that has a name
 * look like one that was removed. */
void dir_lose_subdir(struct disk_inode *dir);
/* DT_* of a mode. */
uint8_t mode_type(uint32_t mode);
/*
 * In a transaction that has taken a name of the inode away (link.c): one link less, or
 * for a directory none. What is left without links goes with the transaction or becomes
 * an orphan (true in *orphan: call orphan_drop after the commit).
 */
int inode_unlink_txn(struct fs *fs, struct txn *x, uint64_t ino, struct disk_inode *inode,
	int64_t now, bool *orphan);

/* ---- entries (entry.c) ------------------------------------------------------------ */

struct entry {
	uint64_t ino;
	uint8_t type; /* DT_* */
};

/* -EINVAL, -ENAMETOOLONG for what cannot be a name; "." and ".." are -EINVAL here. */
int name_check(struct ops_name name);
/* 1 for ".", 2 for "..", else 0. */
unsigned name_dots(struct ops_name name);
/* Discriminator of a name's item. */
uint64_t name_hash(struct fs *fs, struct ops_name name);

/* Without a transaction: 0 or -ENOENT. e: what is exposed with it (tree.h), or NULL. */
int entry_get(struct fs *fs, uint64_t dir, struct ops_name name, struct entry *out);
int entry_get_exposed(struct fs *fs, struct tree_exposure *e, uint64_t dir,
	struct ops_name name, struct entry *out);
/*
 * In a transaction: a name's item, and the place of the name in it. entry_find returns 0
 * also when there is none. The slot stands until something else is written under the same
 * key. The functions that change do not touch the directory's inode.
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
/* Steps through an item's value: *at starts at 0; false at the end. -EUCLEAN in *error
 * for a value that is no list of entries. */
bool entry_step(const void *value, size_t len, size_t *at, const struct disk_entry **out,
	int *error);

/*
 * A name and its directory, in a transaction that adds or removes it (namei.c). place_find
 * reads both: -ENOTDIR, -ENOENT (the directory has been removed); 0 also when there is no
 * such name. The others change the entry and the directory: its counts and times.
 */
struct place {
	uint64_t dir;
	struct ops_name name;
	struct disk_inode parent;
	struct entry_slot slot;
};
int place_find(struct fs *fs, struct txn *x, uint64_t dir, struct ops_name name,
	struct place *out);
/* The same for a name to be given: -EEXIST when there is one. */
int place_find_free(struct fs *fs, struct txn *x, uint64_t dir, struct ops_name name,
	struct place *out);
int place_add(struct txn *x, struct place *p, struct entry entry, int64_t now);
int place_remove(struct txn *x, struct place *p, bool directory, int64_t now);

/* ---- xattr items (xattr.c) -------------------------------------------------------- */

/* An item's parts, within the value it was parsed from. 0 or -EUCLEAN. Reclaiming frees
 * `runs`. */
struct xattr_view {
	struct disk_xattr head;
	const char *name;
	const uint8_t *inline_value; /* when head.run_count == 0 */
	const uint8_t *runs;         /* head.run_count unaligned struct disk_extent */
};
int xattr_parse(const void *value, size_t len, struct xattr_view *out);
/* Values kept in the item (ACLs), in a transaction: the length; -ENODATA; -ERANGE. */
int xattr_read_txn(struct fs *fs, struct txn *x, uint64_t ino, const char *name,
	void *buf, size_t cap);
/* Both change flags and blocks of *inode in memory; the caller writes it. len is at most
 * DISK_XATTR_INLINE_MAX. Removing what is absent is fine. */
int xattr_write_txn(struct fs *fs, struct txn *x, uint64_t ino, struct disk_inode *inode,
	const char *name, const void *value, size_t len);
int xattr_remove_txn(struct fs *fs, struct txn *x, uint64_t ino, struct disk_inode *inode,
	const char *name);
/* Removes security.capability, as every write to a regular file must; costs nothing where
 * there is none. The caller writes the inode. setattr_apply does it for truncation and
 * chown. */
int xattr_drop_caps(struct fs *fs, struct txn *x, uint64_t ino, struct disk_inode *inode);

/* ---- ACLs (acl.c) ----------------------------------------------------------------- */

#define ACL_ACCESS_NAME  "system.posix_acl_access"
#define ACL_DEFAULT_NAME "system.posix_acl_default"

/* *inode's mode was changed: the access ACL follows it. */
int acl_chmod_txn(
	struct fs *fs, struct txn *x, uint64_t ino, const struct disk_inode *inode);
/* A new inode's mode and ACLs from its directory: the default ACL, or else the umask. */
int acl_inherit_txn(struct fs *fs, struct txn *x, uint64_t dir,
	const struct disk_inode *parent, uint32_t umask, uint64_t ino,
	struct disk_inode *inode);
/* Sets (len > 0) or removes an ACL given as its xattr; *inode's mode follows an access
 * ACL. */
int acl_set_txn(struct fs *fs, struct txn *x, uint64_t ino, struct disk_inode *inode,
	const struct ops_caller *c, bool is_default, const void *value, size_t len);

/* ---- the file data half, as the names half uses it -------------------------------- */

/* file.c: the table of open files. fs_open and fs_close call these. */
int file_table_open(struct fs *fs);
void file_table_close(struct fs *fs); /* closes what is still open */

/* Any handle here? */
bool file_is_open(struct fs *fs, uint64_t ino);
/*
 * A handle on an inode that the caller is about to make, before the transaction that
 * makes it, so that no unlink can come between. flags: O_*; with O_TMPFILE and without
 * O_EXCL the file may be linked. If the transaction fails: file_abandon, never ops_close.
 */
int file_open_new(struct fs *fs, uint64_t ino, int flags, struct ops_file **out);
void file_abandon(struct fs *fs, struct ops_file *file);
/*
 * Around the transaction that gives an inode without links one. file_naming: it is open
 * here by a handle from file_open_new with O_TMPFILE and no O_EXCL and never had a name;
 * what is kept of it is from now on that of any file, whether or not the transaction
 * commits. file_named: it has committed.
 */
bool file_naming(struct fs *fs, uint64_t ino);
void file_named(struct fs *fs, uint64_t ino);
/*
 * Lays what open files here know and the tree does not have yet (times) over *inode.
 * file_settle brings it into the tree: called before a setattr, so that explicit times
 * win. Both cost a table look-up when the file is not open.
 */
void file_overlay(struct fs *fs, uint64_t ino, struct disk_inode *inode);
int file_settle(struct fs *fs, uint64_t ino);
/* Has somebody a handle here that may write it? */
bool file_open_to_write(struct fs *fs, uint64_t ino);
/* With other nodes: brings what reads have noted into the tree, a moment later, and at the
 * end what is left. */
int atimes_open(struct fs *fs);
void atimes_close(struct fs *fs);

/* reclaim.c. In the transaction in which nlink drops to 0 (or a tmpfile is made), and in
 * that in which a tmpfile gets its first link. */
int orphan_mark(struct txn *x, uint64_t ino);
int orphan_unmark(struct txn *x, uint64_t ino);
/*
 * A handle on the inode is counted here, and noted (elsewhere_note): the orphan is this node's
 * to free from now on, with the last close. -ENOENT: it is gone, or was freed in part. Waits.
 */
int orphan_take(struct fs *fs, uint64_t ino);
/* At open, where there are no other nodes: finishes intents, reclaims orphans. */
int reclaim_recover(struct fs *fs, struct weft_error *err);

/* space_reserve which, before it says that there is no room, takes back what files hold
 * ahead and frees what is unlinked. Waits. */
int run_reserve(struct fs *fs, page_id goal, uint32_t want, struct space_run *out);

/* sync.c. From fs_open to fs_close: what other nodes ask of this one, and after a crash this
 * one of others. sync_open: 0 or -errno. sync_close waits for nobody who is away. */
int sync_open(struct fs *fs);
void sync_close(struct fs *fs);

/* orphan.c. fs_open and fs_close call the first three: open; stop and reclaim all that is
 * not open (before the table of files is closed); free (after it). */
int orphans_open(struct fs *fs);
void orphans_stop(struct fs *fs);
/* Where there are other nodes: what the tree has listed of orphans and intents is gone through from now
 * on, by a task, so that an open waits for nobody who is away. */
void orphans_recover(struct fs *fs);
void orphans_close(struct fs *fs);
/* After the transaction that has left no link: the inode is reclaimed once it is not open
 * and the caller has forgotten it. For every type, directories and symlinks too. Errors
 * are logged: the orphan item stays. */
void orphan_drop(struct fs *fs, uint64_t ino);
/* The caller refers to it from now on. False: there is nothing to wait for, or no room.
 */
bool orphan_await(struct fs *fs, uint64_t ino);
bool orphan_is_awaited(struct fs *fs, uint64_t ino);
/* Somebody here has it open, or it is awaited: then it is reclaimed with the last close or
 * forget here, or others are asked again. */
bool orphan_is_used(struct fs *fs, uint64_t ino);
/* Returns true if this node or another one uses the orphan, or if a node that may use it does
 * not answer. Waits. */
bool orphan_lives(struct fs *fs, uint64_t ino);
/*
 * Reclaims those that no other node uses; count <= 32. `listed`: found in the tree's list of
 * orphans, so that those are left out, too, that somebody here uses. What some node did not
 * answer for stays on the list, and is tried again later. Waits.
 */
void orphans_reclaim(struct fs *fs, const uint64_t *ino, unsigned count, bool listed);
/*
 * reclaim.c. orphans_reclaim for the whole list; finishes intents. What would wait for a node that is
 * away is passed over: -EHOSTUNREACH. 0 or the error that ended it. Wait.
 */
int reclaim_listed(struct fs *fs);
int reclaim_intents(struct fs *fs);

/* elsewhere.c. Where there are no other nodes all of these do nothing. */
/* fs_open; fs_close: nobody is answered any more, before the table of files goes; and once
 * that is empty. */
int elsewhere_open(struct fs *fs);
void elsewhere_serve(struct fs *fs, bool serve);
void elsewhere_close(struct fs *fs);
/* A handle on the inode is counted, and its links were not looked at. 0 or an error. Waits. */
int elsewhere_note(struct fs *fs, uint64_t ino);
/* The same in the transaction that takes the last link, of what will be awaited. */
int elsewhere_note_txn(struct fs *fs, struct txn *x, uint64_t ino);
/* Around what takes a last name, until orphan_drop. In between (busy) an inode may be listed
 * that will be awaited and is not yet. */
void elsewhere_unlinking(struct fs *fs, bool begins);
bool elsewhere_busy(struct fs *fs);
/* Are the inode, and who may have it open, to be read without waiting for a node that is away? */
bool elsewhere_near(struct fs *fs, uint64_t ino);
/* Which of the inodes, which have no links, other nodes use, a bit for each; *unknown: and
 * those for which somebody did not answer. count <= 32. Waits. */
uint32_t elsewhere_used(struct fs *fs, const uint64_t *ino, unsigned count, bool listed,
	uint32_t *unknown);
/*
 * Finishes what is ready to be reclaimed at this moment, and if `patient` first gives a
 * caller that has just unlinked a moment to forget, and waits for what was unlinked before
 * this node was opened. False: there was nothing. Waits; not for those who reclaim
 * themselves.
 */
bool orphans_settle(struct fs *fs, bool patient);
/*
 * Somebody needs the room: true, something is being reclaimed, or will be in a moment. Never
 * waits.
 */
bool orphans_hurry(struct fs *fs);
/* file.c. Gives back what files hold ahead of their ends. */
void ahead_release_all(struct fs *fs);
/* lock.c. Last in fs_open, first in fs_close: then all that was locked here is free. */
int locks_open(struct fs *fs);
void locks_close(struct fs *fs);
/* truncate.c. For ops_setattr with OPS_SET_SIZE on a regular file: size, setattr_apply
 * and inode_write in one transaction (large cuts: with an intent). *out: the result. */
int ops_truncate(struct fs *fs, uint64_t ino, const struct ops_caller *c,
	const struct ops_setattr *set, struct ops_attr *out);

#endif
