/* SPDX-License-Identifier: Apache-2.0 */
/*
 * POSIX semantics: each operation is one short transaction on the tree.
 *
 * No FUSE types here: the same functions serve the FUSE glue, the simulator and fsck's
 * tests. Permission bits are checked by the caller's kernel (default_permissions); what
 * needs the file's content to decide (sticky directories apart, which the kernel checks)
 * is decided here. Errors are negative errno values, those of a local filesystem in the
 * same case. All wait.
 */
#ifndef WEFT_OPS_H
#define WEFT_OPS_H

#include <sys/statvfs.h>

#include "engine/volume/volume.h"

struct fs;

#define ORPHANS_AWAITED_MAX (1u << 17)

/* What programs may store through shared mappings, where other nodes have the volume too. */
enum ops_mmap {
	OPS_MMAP_OFF,    /* nothing: such mappings are refused */
	OPS_MMAP_SHARED, /* each store is seen by the next look on any node */
	OPS_MMAP_LOCAL,  /* on other nodes once it was written back */
};

struct ops_options {
	enum { OPS_RELATIME = 0, OPS_NOATIME, OPS_STRICTATIME } atime;
	bool nodiratime;         /* directories keep their atime */
	bool names_sync;         /* what changes names is durable when it returns */
	enum ops_mmap mmap;      /* with other nodes */
	unsigned open_files_max; /* 0: 1,048,576 */
	/*
	 * The caller refers to inodes and tells by ops_forget when it no longer does:
	 * what it unlinks lives until then. At most ORPHANS_AWAITED_MAX at a time; what
	 * is unlinked beyond that goes with its last close.
	 */
	bool caller_forgets;
};

/* Opens the operations on a volume: finishes intents, reclaims orphans (unless
 * read-only). */
int fs_open(struct fs **out, struct volume *v, const struct ops_options *o,
	struct weft_error *err);
/* This node leaves the volume: a sync that waits for a node that is away fails from here on. */
void fs_leave(struct fs *fs);
/*
 * The volume has other nodes than when the operations were opened: those that are new are told
 * of locks, too. One caller at a time, before fs_close. 0 or -errno.
 */
int fs_nodes_added(struct fs *fs);
/* Files still open are closed; all that is unlinked is reclaimed. The volume stays open.
 */
void fs_close(struct fs *fs);
struct volume *fs_volume(struct fs *fs);
/*
 * Goes by atime, nodiratime and names_sync of *o from now on; what is under way may still go
 * by the old ones.
 */
void fs_reconfigure(struct fs *fs, const struct ops_options *o);
/*
 * With caller_forgets: the caller's last reference to the inode has gone. Costs next to
 * nothing for inodes that have links. Frees, or has freed soon, what has none and is not
 * open. For a kernel that keeps what it is told, of any inode: it may still have it by another reference,
 * and is asked then. Waits.
 */
void ops_forget(struct fs *fs, uint64_t ino);
/*
 * For a caller whose forgets may come after what it asks later: waits a moment (200 ms
 * from the last unlink at most) until all that was unlinked is forgotten. ops_statfs then
 * counts what that frees.
 */
void ops_settle(struct fs *fs);

/* Who asks: owner of what is created, and for the rules that depend on it. */
struct ops_caller {
	uint32_t uid;
	uint32_t gid;
	uint32_t umask;   /* applied where there is no default ACL */
	bool keeps_setid; /* CAP_FSETID: writing keeps setuid and setgid bits, chmod
			     setgid */
	bool in_group;    /* caller is in the file's group (for chmod's setgid rule) */
	bool stored;      /* bytes that a mapping took when it was allowed to */
};

struct ops_attr {
	uint64_t ino;
	struct disk_inode inode;
};

/*
 * The flags that users set (DISK_INODE_BY_USERS), all at once; ops_getattr tells them. An immutable inode changes
 * in nothing, one to append to only in bytes behind its end, or, of a directory, in names that are added: -EPERM for
 * root, too. Bytes that a program stored through a mapping before are still taken. Who may set which is the caller's
 * to check. -EOPNOTSUPP for others. Waits.
 */
int ops_setflags(struct fs *fs, uint64_t ino, uint32_t flags);

/* ---- names ---------------------------------------------------------------------------
 * name: `len` bytes, no slash, no NUL. -ENAMETOOLONG past 255, -EINVAL when empty.
 */
struct ops_name {
	const char *bytes;
	size_t len;
};

int ops_getattr(struct fs *fs, uint64_t ino, struct ops_attr *out);
/*
 * Also ".." of a directory, and "." of an inode of any type. "." is -ENOENT for an inode
 * without links that is neither open on any node nor yet to be forgotten.
 */
int ops_lookup(struct fs *fs, uint64_t dir, struct ops_name name, struct ops_attr *out);

#define OPS_SET_MODE      (1u << 0)
#define OPS_SET_UID       (1u << 1)
#define OPS_SET_GID       (1u << 2)
#define OPS_SET_SIZE      (1u << 3)
#define OPS_SET_ATIME     (1u << 4)
#define OPS_SET_MTIME     (1u << 5)
#define OPS_SET_ATIME_NOW (1u << 6)
#define OPS_SET_MTIME_NOW (1u << 7)
#define OPS_SET_CTIME     (1u << 8)
/* with SIZE: clear setuid, and setgid if group-executable */
#define OPS_KILL_SETID (1u << 9)
/*
 * Alone: chown(2) that names neither owner nor group. Of what is no directory it takes the bits
 * and capabilities that one to somebody takes; the ctime moves. -EPERM: there are bits, and the
 * caller is neither the owner nor root. But then the file stays as it is, and that is no error,
 * while it is open to write here: before a write the kernel says no more than this.
 */
#define OPS_CHOWN_NO_ONE (1u << 10)
struct ops_setattr {
	unsigned set;  /* OPS_SET_* */
	uint32_t mode; /* permission bits, 07777 */
	uint32_t uid, gid;
	uint64_t size;
	int64_t atime_ns, mtime_ns, ctime_ns;
};
int ops_setattr(struct fs *fs, uint64_t ino, const struct ops_caller *c,
	const struct ops_setattr *set, struct ops_attr *out);

/* mode has the type. Regular files, fifos, sockets, devices (rdev_*). */
int ops_mknod(struct fs *fs, uint64_t dir, struct ops_name name,
	const struct ops_caller *c, uint32_t mode, uint32_t rdev_major,
	uint32_t rdev_minor, struct ops_attr *out);
int ops_mkdir(struct fs *fs, uint64_t dir, struct ops_name name,
	const struct ops_caller *c, uint32_t mode, struct ops_attr *out);
int ops_symlink(struct fs *fs, uint64_t dir, struct ops_name name,
	const struct ops_caller *c, const char *target, struct ops_attr *out);
/* buf takes up to cap bytes, no NUL is added; returns the length. */
int ops_readlink(struct fs *fs, uint64_t ino, char *buf, size_t cap);
int ops_link(struct fs *fs, uint64_t ino, uint64_t dir, struct ops_name name,
	struct ops_attr *out);
int ops_unlink(struct fs *fs, uint64_t dir, struct ops_name name);
int ops_rmdir(struct fs *fs, uint64_t dir, struct ops_name name);
/* flags: 0, RENAME_NOREPLACE or RENAME_EXCHANGE. */
int ops_rename(struct fs *fs, uint64_t dir, struct ops_name name, uint64_t new_dir,
	struct ops_name new_name, unsigned flags);
/* Also with RENAME_WHITEOUT, but not along with RENAME_EXCHANGE: the whiteout is the
 * caller's. */
int ops_rename_as(struct fs *fs, uint64_t dir, struct ops_name name, uint64_t new_dir,
	struct ops_name new_name, const struct ops_caller *c, unsigned flags);

/* ---- directories
 * -------------------------------------------------------------------------- Cookies are
 * stable across changes (key order: hashes). 0 starts; "." has cookie 1, ".." 2.
 */
struct ops_dirent {
	uint64_t ino;
	uint64_t cookie;  /* pass to continue behind this entry */
	uint32_t type;    /* DT_* */
	const char *name; /* valid during the call */
	size_t name_len;
	const struct ops_attr *attr; /* with OPS_READDIR_PLUS, else NULL; NULL for "." and
				      * ".." and where the inode cannot be read */
};
/* Non-zero: the entry was not taken; stop. An error may come after some entries were
 * taken. */
typedef int (*ops_dirent_fn)(void *arg, const struct ops_dirent *entry);
#define OPS_READDIR_PLUS (1u << 0)
int ops_readdir(struct fs *fs, uint64_t dir, uint64_t cookie, unsigned flags,
	ops_dirent_fn fn, void *arg);

/* ---- open files
 * ----------------------------------------------------------------------------- One per
 * open of a regular file. Opening an inode with no links left is -ENOENT, unless it is
 * open here already or yet to be forgotten (caller_forgets), or another node has taken the
 * last name and no node has begun to free it. The last close of an unlinked file frees it.
 */
struct ops_file;

/* With O_* flags: each write of the file is an append, and says where, so it is opened without O_APPEND. */
#define OPS_OPEN_APPENDS (1 << 30)
int ops_open(struct fs *fs, uint64_t ino, const struct ops_caller *c, int flags, /* O_* */
	struct ops_file **out, struct ops_attr *attr);
/* Creates and opens; with O_EXCL -EEXIST; without, an existing regular file is opened. */
int ops_create(struct fs *fs, uint64_t dir, struct ops_name name,
	const struct ops_caller *c, uint32_t mode, int flags, struct ops_file **out,
	struct ops_attr *attr);
/* O_TMPFILE: nlink 0; ops_link on it may name it (unless O_EXCL was given). */
int ops_tmpfile(struct fs *fs, uint64_t dir, const struct ops_caller *c, uint32_t mode,
	int flags, struct ops_file **out, struct ops_attr *attr);
void ops_close(struct fs *fs, struct ops_file *file);
uint64_t ops_file_ino(struct ops_file *file);
/* Opening it has moved the inode's atime: an open to read counts as an access. */
bool ops_file_accessed(struct ops_file *file);
/* It was made by the call that opened it. */
bool ops_file_made(struct ops_file *file);

/*
 * Reads up to len bytes; calls sink once (also at the end of the file, with none) with
 * the bytes as iovecs straight from the frames, which stay latched during the call: sink
 * must not wait for this filesystem. At most cache_batch_max pages are given; the sink
 * sees a short read then only when the cache is very small: callers loop. Returns the
 * sink's value, or an error.
 */
typedef int (*ops_sink)(
	void *arg, const struct iovec *iov, unsigned iov_count, size_t total);
int ops_read(struct fs *fs, struct ops_file *file, uint64_t offset, size_t len,
	ops_sink sink, void *arg);
/*
 * The same for pages that the caller's kernel keeps (fs_kernel_start). It must not have
 * readable copies of the range, and get none before the answer; len is at most
 * cache_batch_max pages, and offset + len the end of one.
 */
int ops_read_kept(struct fs *fs, struct ops_file *file, uint64_t offset, size_t len,
	ops_sink sink, void *arg);
/*
 * Bytes written (all, or up to where -ENOSPC or -EIO stopped it), or an error. O_APPEND
 * of the open or OPS_APPEND writes at the true end. OPS_APPEND_MORE: the caller may have more of the same
 * record at once; other nodes' appends wait for that, some milliseconds (many-nodes.md, "Operations").
 */
#define OPS_APPEND      1u
#define OPS_APPEND_MORE 2u /* with the first */
int64_t ops_write(struct fs *fs, struct ops_file *file, const struct ops_caller *c,
	uint64_t offset, const void *buf, size_t len, unsigned append);
int ops_fsync(struct fs *fs, uint64_t ino, bool data_only); /* files and directories */
int ops_syncfs(struct fs *fs);
/* mode: FALLOC_FL_* : 0, KEEP_SIZE, PUNCH_HOLE|KEEP_SIZE, ZERO_RANGE[|KEEP_SIZE]; else
 * -EOPNOTSUPP */
int ops_fallocate(struct fs *fs, struct ops_file *file, const struct ops_caller *c,
	int mode, uint64_t offset, uint64_t len);
/*
 * On a volume of one node: its kernel writes back what mappings hold of file blocks [first, end)
 * (UINT64_MAX: to the end), by ops_write. 0, or an error for the caller of the operation. NULL: there
 * are no mappings.
 */
typedef int (*ops_fetch)(void *owner, uint64_t ino, uint64_t first, uint64_t end);
/*
 * whence SEEK_DATA or SEEK_HOLE: the offset, or -ENXIO. What programs here have stored through mappings
 * counts as data: it is fetched first. Waits.
 */
int64_t ops_lseek(struct fs *fs, struct ops_file *file, uint64_t offset, int whence,
	ops_fetch fetch, void *owner);
/*
 * Programs take a file without blocks for one without data. True: these attributes say so, and a mapping may
 * hold data. They must not be kept, and before they are told ops_fetched has to follow.
 */
bool ops_blocks_hidden(struct fs *fs, const struct ops_attr *attr);
/* What programs here have stored into the file through mappings is in the file. Waits, as ops_lseek. */
int ops_fetched(struct fs *fs, uint64_t ino, ops_fetch fetch, void *owner);
/*
 * Pages that the kernel of a volume's only node has of the file. ops_file_paged comes before a call that
 * gives it some, ops_file_has_pages after one that changed bytes past them: may it have any? `alone`: all
 * handles are for direct I/O. `given` is for ops_file_pages_gone, when all were dropped since.
 */
void ops_file_paged(struct ops_file *file);
bool ops_file_has_pages(struct ops_file *file, uint64_t *given, bool *alone);
void ops_file_pages_gone(struct ops_file *file, uint64_t given);
int64_t ops_copy_range(struct fs *fs, struct ops_file *in, uint64_t offset_in,
	struct ops_file *out, uint64_t offset_out, size_t len,
	const struct ops_caller *c);

/* ---- locks -------------------------------------------------------------------------
 * For volumes of several nodes: flock and fcntl locks that all nodes see. An owner is a
 * number of the caller's, the same owner of another node is another one. -ENOLCK: too many
 * (records of a file, owners, requests that wait), or the volume cannot be written.
 */
enum ops_lock_kind { OPS_LOCK_POSIX = 1, OPS_LOCK_FLOCK = 2 };
enum ops_lock_type { OPS_LOCK_NONE, OPS_LOCK_SHARED, OPS_LOCK_EXCLUSIVE };
#define OPS_LOCK_END ((uint64_t)INT64_MAX)

struct ops_lock {
	enum ops_lock_kind kind;
	enum ops_lock_type type; /* NONE: unlock */
	uint64_t owner;
	uint64_t first, last; /* bytes; OPS_LOCK_END: to the end. Ignored for flock */
	uint32_t pid;         /* for ops_lock_test on the same node */
};

/* Do the caller's locks come here, or need they not be seen by anyone else? */
bool ops_locks_shared(struct fs *fs);
/*
 * *found: a lock that is in the way of *want, or type NONE. Its pid is 0, and its owner
 * means nothing, if another node has it.
 */
int ops_lock_test(struct fs *fs, struct ops_file *file, const struct ops_lock *want,
	struct ops_lock *found);
/*
 * Locks, changes what the owner has in the range, or unlocks; does not wait for other
 * owners: -EAGAIN. As in fcntl(2) and flock(2).
 */
int ops_lock(struct fs *fs, struct ops_file *file, const struct ops_lock *lock);

/*
 * The same for who waits. The request is the caller's, and stays where it is from
 * ops_lock_start until that returns anything but -EINPROGRESS, or else until `done` is
 * called, by another task, perhaps before ops_lock_start returns. `done` may free it, and
 * must not wait long. The file stays open as long.
 */
struct ops_lock_wait {
	struct ops_lock lock;
	void (*done)(void *arg, int result);
	void *arg;
	/* fs/ops' own; zeros at first */
	struct {
		struct fs *fs;
		struct lock_owner *owner;
		uint64_t ino, ticket, passes_ns;
		int state, cancelled;
		bool recorded, woken;
		struct ops_lock_wait *next, *next_ready;
	} own;
};
/*
 * 0: it has the lock. -EINPROGRESS: it waits. -EDEADLK (fcntl): it would wait for owners
 * that wait for it. -EINTR: it was cancelled. -ENOTCONN: ops_locks_end. Others as above.
 */
int ops_lock_start(struct fs *fs, struct ops_file *file, struct ops_lock_wait *wait);
/*
 * It shall wait no longer: ends soon, with -EINTR, unless it has the lock by then. Also
 * before ops_lock_start; never after `done` has returned, or ops_lock_start without
 * -EINPROGRESS. Never waits.
 */
void ops_lock_cancel(struct fs *fs, struct ops_lock_wait *wait);
/* The owner has closed a descriptor of the file: its POSIX locks are gone. */
int ops_flush(struct fs *fs, struct ops_file *file, uint64_t owner);
/*
 * Nobody here needs locks any more: requests that wait end with -ENOTCONN, and so does every
 * later one that would; what is locked is free when it returns. Waits.
 */
void ops_locks_end(struct fs *fs);
/*
 * The node has started anew with that incarnation: what earlier ones have locked is void.
 * Nodes tell each other when they open; this is for who knows it otherwise (a node that
 * was fenced: one more than its last). Never waits.
 */
void ops_locks_heard(struct fs *fs, unsigned node, uint64_t incarnation);

/* ---- extended attributes and ACLs
 * ------------------------------------------------------------ Full names ("user.x").
 * system.posix_acl_access/default are kept with the mode bits and inherited as acl(5)
 * says; an ACL has up to 63 entries, the names of an inode's attributes up to 64 KiB
 * together (what listxattr(2) can say): -ENOSPC past that.
 */
int ops_setxattr(struct fs *fs, uint64_t ino, const struct ops_caller *c,
	const char *name, const void *value, size_t len,
	int flags); /* XATTR_CREATE, XATTR_REPLACE */
/* len 0: the size. -ERANGE, -ENODATA. */
int ops_getxattr(struct fs *fs, uint64_t ino, const char *name, void *buf, size_t len);
int ops_listxattr(struct fs *fs, uint64_t ino, char *buf, size_t len);
int ops_removexattr(struct fs *fs, uint64_t ino, const char *name);

/* ---- sizes that a kernel goes by without asking (kernel_sizes.c) ---------------------- */

/* A size that the caller's kernel is to be told. */
struct ops_size {
	uint64_t ino, size;
	uint32_t cuts;
	unsigned place;
	bool drops; /* its pages from here on first, which may be from before the file grew: */
	uint64_t drop_from;
};

/* Before the attributes are looked at that say the size. */
struct ops_size ops_size_look(struct fs *fs, uint64_t ino);
/*
 * size->size is what they said. True: the kernel may not have it, and is told now, before they are answered;
 * then ops_size_end follows. No cut of the file ends meanwhile. Waits.
 */
bool ops_size_begin(struct fs *fs, struct ops_size *size);
void ops_size_end(struct fs *fs, const struct ops_size *size);
/* A change of the file is about to pass the pages that the caller's kernel has of it. */
void ops_passes_pages(struct fs *fs, struct ops_file *file);

/* ---- a kernel that keeps what it is told, on a volume of several nodes --------------- */

/* What a thread was seen to have done: time in its program, sleeps, and since when (rt_now_ns) it has been seen in
 * this one. */
struct ops_seen {
	uint64_t ran, slept, since_ns;
};

/* What a thread that asks for the attributes of a directory does with them. */
enum ops_walk {
	OPS_WALK_UNKNOWN,
	OPS_WALK_INTO, /* a path walk, which has locked no directory */
	OPS_WALK_NONE, /* it uses no name of it after this, or has it locked */
};

struct ops_kernel {
	/*
	 * Drops pages of the file blocks [first, end) (UINT64_MAX: all), and the
	 * attributes. May wait for READs of these pages that are not answered. `by`, 0 at
	 * first, is for drop_waits.
	 */
	void (*drop_pages)(void *owner, uint64_t ino, uint64_t first, uint64_t end,
		_Atomic uint32_t *by);
	/* drop_pages is under way, and waits for a READ: all processors know at this
	 * moment of what it has unmapped. */
	bool (*drop_waits)(void *owner, const _Atomic uint32_t *by);
	/* Takes over the size, unless it has a larger one. May wait for READs that are not answered. */
	void (*tell_size)(void *owner, uint64_t ino, uint64_t size);
	/* These must not wait. Answers to questions asked before are not kept. False: the
	 * kernel has not got the inode. */
	bool (*drop_attributes)(void *owner, uint64_t ino);
	/* The kernel asks for the name, if it has it, before it is used again; it stays what it is until then.
	 * May wait for calls that have the directory locked. */
	void (*expire_name)(void *owner, uint64_t dir, struct ops_name name);
	/* What the thread does, which waits for the answer to a GETATTR of a directory. Does not wait. */
	enum ops_walk (*walks)(void *owner, uint32_t thread);
	/*
	 * Looks the name up in the directory as a program does, so that the kernel moves the dentry of the
	 * directory that has this name to it. 0; -ESTALE: not now; or another -errno. Waits for answers to
	 * the requests that this makes.
	 */
	int (*look)(void *owner, const struct ops_attr *dir, struct ops_name name);
	/* Does the thread look so? */
	bool (*is_own)(void *owner, uint32_t thread);
	/* A thread that was given an answer has done something else since, so has taken it in.
	 * *seen, all 0 at first, is for later looks. False: not known. Does not wait. */
	bool (*gone_on)(void *owner, uint32_t thread, struct ops_seen *seen);
};

/* Of how many inodes at a time the kernel is given something to keep, by the pages of the cache. */
static inline uint32_t ops_kernel_inodes(uint64_t pages)
{
	return (uint32_t)MIN(MAX(pages / 2, 1u << 15), 1u << 22);
}

/* Memory for the numbers of the inodes of which the kernel may have attributes or pages, 0 at first and where
 * there is none; for another process that has it as well, when this one was killed. */
struct ops_noted {
	_Atomic uint64_t *ino;
	uint32_t count;
};

/* An answer to a look-up whose attributes may be kept. */
struct ops_named {
	uint64_t ino;
	uint32_t look;
	bool name, attributes; /* which may be kept */
};

/* What of a look-up is exposed, so that it may be kept. */
struct ops_looked {
	bool name; /* or that there is none */
	bool attributes;
	struct cache_exposure names; /* the leaf of the name */
	struct cache_exposure leaf;  /* of the inode */
};

/*
 * Before the first question. From here on what is exposed is dropped before other nodes
 * may change it. The kernel is given something to keep of ops_kernel_inodes at a time, of no more than `noted` has
 * numbers; NULL: nobody asks for these. For a new one the oldest is dropped. The caller says what it has let go of
 * (ops_forget).
 */
int fs_kernel_start(struct fs *fs, const struct ops_kernel *ops, void *owner,
	const struct ops_noted *noted);
/* The kernel has gone, or asks nothing any more. Before fs_close. */
void fs_kernel_stop(struct fs *fs);
/*
 * ops_getattr, and whether it may be kept. Of a size that is news it may not: the kernel must
 * have taken it in before it can be told to drop it. `asker`: a thread, which asks something
 * else only after that; 0: not known. Waits.
 */
int ops_getattr_kept(
	struct fs *fs, uint64_t ino, uint32_t asker, struct ops_attr *out, bool *keeps);
/* The thread asks, and waits for the answer: so it has taken in those to what it asked before. */
void ops_kernel_heard(struct fs *fs, uint32_t thread);
/* Attributes that it is told in passing, with a name, not to be kept. Before the answer. */
void ops_kernel_told(struct fs *fs, uint32_t asker, const struct ops_attr *attr);
/* ops_lookup, and what of its answer may be kept, as far as the tree goes. Waits. */
int ops_lookup_kept(struct fs *fs, uint64_t dir, struct ops_name name,
	struct ops_attr *out, struct ops_looked *looked);
/*
 * ops_kernel_told for a name of `dir` that was looked up just before. Returns true if the name or the attributes
 * may be kept, as *named says; then the answer follows without a wait, and ops_kernel_named_told behind
 * it. Returns false if neither may; then nothing was told.
 */
bool ops_kernel_named(struct fs *fs, uint64_t dir, uint32_t asker,
	const struct ops_attr *attr, const struct ops_looked *looked,
	struct ops_named *named);
/* The name was looked up just before, and is absent. Returns true if the kernel may keep that. */
bool ops_kernel_absent(struct fs *fs, uint64_t dir, struct ops_name name,
	const struct ops_looked *looked);
/*
 * The same for what the asker has just made, and the kernel has not got: of CREATE, MKDIR, MKNOD and
 * SYMLINK. The attributes are read once more. Waits.
 */
bool ops_kernel_made(
	struct fs *fs, uint32_t asker, struct ops_attr *attr, struct ops_named *named);
/* `taken`: the kernel has taken the answer, so the thread will take it in. */
void ops_kernel_named_told(struct fs *fs, const struct ops_named *named, bool taken);
/* The kernel has taken another size from elsewhere: its own change, a short READ; or not
 * taken in what it was told. */
void ops_kernel_resized(struct fs *fs, uint64_t ino);
/*
 * Behind an open, before it is answered: from here on the kernel is told each size of the file that
 * another node sets. `asker`: the thread that opens it, as above. Waits.
 */
void ops_kernel_opened(struct fs *fs, struct ops_file *file, uint32_t asker);
/* The kernel has all sizes of open files that were set elsewhere before this is called, unless a node
 * does not answer within a second. Waits. */
void ops_sizes_await(struct fs *fs);
/* Goes down from the file's block *block to the next that no READ is pending for. False: none. */
bool ops_kernel_unread(struct fs *fs, uint64_t ino, uint64_t *block);
/* True: what is read of the inode's ACLs from here on may be kept. False: not now; it may be told,
 * not kept. Waits. */
bool ops_expose_acl(struct fs *fs, uint64_t ino);
/* The kernel will keep that the name is the inode's. False: it is not so any more, or not
 * to be kept. */
bool ops_expose_renamed(struct fs *fs, uint64_t dir, struct ops_name name, uint64_t ino);
/*
 * Before the answer: the kernel will have the directory under that name, if it is not known where it has it; or
 * (`moved`) since this node's own call has moved it. `keeps`: the kernel keeps the name.
 */
void ops_dir_placed(struct fs *fs, uint64_t ino, uint64_t dir, struct ops_name name,
	bool moved, bool keeps);
/*
 * A call here changes what a name is in this kernel, in a way that the kernel cannot be told to keep:
 * ops_names_gate before its answer, ops_names_expire behind it. In between no walk that begins uses names of the
 * directory. The second one waits for calls that have the directory locked.
 */
struct ops_gate {
	struct ops_gate *next; /* own to fs/ops, as all here */
	uint64_t dir, number;
};
void ops_names_gate(struct fs *fs, uint64_t dir, struct ops_gate *gate);
/* `ino`: the inode that the kernel may have under the name. */
void ops_names_expire(
	struct fs *fs, struct ops_gate *gate, struct ops_name name, uint64_t ino);
/* Are names of the directory being expired? Then what the kernel has of them may be otherwise by now. */
bool ops_names_gated(struct fs *fs, uint64_t dir);
/*
 * What programs store through mappings, whole pages of it, as the kernel writes it back:
 * goes to pages that the kernel has for it (ops_read_kept), waits for no other node, and
 * never makes the file longer. len, or -errno.
 */
int64_t ops_store(struct fs *fs, struct ops_file *file, uint64_t offset, const void *buf,
	size_t len);
/*
 * The same with OPS_MMAP_LOCAL: what differs from the pages that the kernel was given is brought into the
 * file, for which other nodes may be waited for. `answer` is called, by another task, once this has taken
 * long, or somebody waits for the kernel to be rid of the pages; then the handle may be closed meanwhile,
 * and an error is told to who calls ops_fsync or ops_flush next. Waits.
 */
int64_t ops_store_local(struct fs *fs, struct ops_file *file, uint64_t offset,
	const void *buf, size_t len, void (*answer)(void *arg), void *arg);
/* Behind the answer to that: the mtime, once a second. Waits. */
void ops_stored(struct fs *fs, uint64_t ino);
/* Programs may store into the file through mappings here, and nobody would be told (the kernel gets
 * its pages exclusively; but with OPS_MMAP_LOCAL). */
bool ops_file_mappable(struct ops_file *file);
/* Such mappings are offered; pages of theirs are this node's alone. */
bool fs_maps_shared(const struct fs *fs);
bool fs_maps_alone(const struct fs *fs);
/*
 * May a program here go by the size that the kernel has of the file, after an answer with attributes that
 * the kernel may not take in? Whoever has it open may read or map it. `keeps`: the answer is to be kept, so
 * the kernel had the size before, unless pages that may be stored into were dropped meanwhile.
 */
bool ops_goes_by_size(struct fs *fs, uint64_t ino, bool keeps);

int ops_statfs(struct fs *fs, struct statvfs *out);

enum ops_call {
	OPS_CALL_GETATTR,
	OPS_CALL_LOOKUP,
	OPS_CALL_SETATTR,
	OPS_CALL_MKNOD,
	OPS_CALL_MKDIR,
	OPS_CALL_SYMLINK,
	OPS_CALL_READLINK,
	OPS_CALL_LINK,
	OPS_CALL_UNLINK,
	OPS_CALL_RMDIR,
	OPS_CALL_RENAME,
	OPS_CALL_READDIR,
	OPS_CALL_OPEN,
	OPS_CALL_CREATE,
	OPS_CALL_TMPFILE,
	OPS_CALL_CLOSE,
	OPS_CALL_READ,
	OPS_CALL_WRITE,
	OPS_CALL_FSYNC,
	OPS_CALL_SYNCFS,
	OPS_CALL_FALLOCATE,
	OPS_CALL_LSEEK,
	OPS_CALL_COPY_RANGE,
	OPS_CALL_SETXATTR,
	OPS_CALL_GETXATTR,
	OPS_CALL_LISTXATTR,
	OPS_CALL_REMOVEXATTR,
	OPS_CALL_STATFS,
	OPS_CALL_LOCK,
	OPS_CALL_COUNT
};
struct ops_counters {
	_Atomic uint64_t calls[32]; /* by enum ops_call */
	_Atomic uint64_t restarts;
};
struct ops_counters *ops_counters(struct fs *fs);

#endif
