/* SPDX-License-Identifier: Apache-2.0 */
/*
 * POSIX operations on a volume. Each operation is one short transaction on the tree.
 *
 * There are no FUSE types here: the FUSE glue, the simulator and the tests of fsck call the same
 * functions. The caller's kernel checks permission bits (default_permissions) and sticky
 * directories. Other checks that need the inode's content are made here.
 *
 * Unless a comment says otherwise, a function returns 0 or a negative errno value: the one that a
 * local filesystem returns in the same case. Functions wait, unless their comment says "Never
 * waits".
 */
#ifndef WEFT_OPS_H
#define WEFT_OPS_H

#include <sys/statvfs.h>

#include "fs/kcache/attr.h"

struct fs;

#define ORPHANS_AWAITED_MAX (1u << 17)

/* The stores through shared mappings that programs may make if other nodes use the volume. */
enum ops_mmap {
	OPS_MMAP_OFF,    /* none: the kernel refuses such mappings */
	OPS_MMAP_SHARED, /* the next read on any node sees each store */
	OPS_MMAP_LOCAL,  /* other nodes see a store after its write-back */
};

struct ops_options {
	enum { OPS_RELATIME = 0, OPS_NOATIME, OPS_STRICTATIME } atime;
	bool nodiratime;         /* reads do not change the atime of directories */
	bool names_sync;         /* an operation that changes names is durable when it returns */
	enum ops_mmap mmap;      /* used if the volume has other nodes */
	unsigned open_files_max; /* number of inodes; 0: 1,048,576 */
	/*
	 * The caller keeps references to inodes, and calls ops_forget when it has dropped one. An
	 * unlinked inode lives until then. At most ORPHANS_AWAITED_MAX inodes wait for their
	 * forget. Any further unlinked inode is freed with its last close.
	 */
	bool caller_forgets;
};

/* Opens the operations on a volume. Unless it is read-only, finishes intents and reclaims orphans.
 * Returns 0 or -errno, with *err set. Waits. */
int fs_open(struct fs **out, struct volume *v, const struct ops_options *o,
	struct weft_error *err);
/* Notes that this node leaves the volume. From here on a sync fails if it needs a node that is
 * away. */
void fs_leave(struct fs *fs);
/* Notes that nodes have been added to the volume since fs_open: they are told of locks, too. One
 * caller at a time, before fs_close. Returns 0 or -errno. */
int fs_nodes_added(struct fs *fs);
/* Closes the files that are still open, and reclaims all unlinked inodes. The volume stays open.
 * Waits. */
void fs_close(struct fs *fs);
struct volume *fs_volume(struct fs *fs);
/* Takes over atime, nodiratime and names_sync of *o. Operations under way may still use the old
 * values. */
void fs_reconfigure(struct fs *fs, const struct ops_options *o);
/* Returns true with OPS_STRICTATIME. */
bool fs_sets_each_atime(struct fs *fs);
/*
 * With caller_forgets: notes that the caller has dropped its last reference to the inode. Is cheap
 * for inodes with links. Frees an inode without links that is not open, or has it freed soon. If
 * the kernel caches answers, call it for any inode: the kernel may still have another reference,
 * and is asked then. Waits.
 */
void ops_forget(struct fs *fs, uint64_t ino);
/*
 * Waits until all unlinked inodes are forgotten, at most 200 ms from the last unlink. ops_statfs
 * then counts the space that they free. For a caller whose forgets may arrive after its next
 * request.
 */
void ops_settle(struct fs *fs);

/* The caller of an operation: the owner of new inodes, and the subject of checks. */
struct ops_caller {
	uint32_t uid;
	uint32_t gid;
	uint32_t umask;   /* applied if there is no default ACL */
	bool keeps_setid; /* CAP_FSETID: writing keeps setuid and setgid bits, chmod
			     setgid */
	bool in_group; /* caller is in the file's group (for the setgid rule of chmod) */
	bool stored;   /* the bytes come from a mapping, and were stored while that was allowed */
};

/*
 * Sets the flags of DISK_INODE_BY_USERS, all at once. ops_getattr returns them. An immutable inode
 * does not change. An append-only file changes only behind its end, and an append-only directory
 * only gets names. Other changes fail with -EPERM, for root, too. Bytes that a program has stored
 * through a mapping before are still written. The caller checks the right to set flags. Returns
 * -EOPNOTSUPP for other flags. Waits.
 */
int ops_setflags(struct fs *fs, uint64_t ino, uint32_t flags);

/* ---- names ------------------------------------------------------------------------- */

/* Names longer than 255 bytes fail with -ENAMETOOLONG, empty names with -EINVAL. */

/* Reads the attributes of an inode. Returns -ENOENT if there is none. Waits. */
int ops_getattr(struct fs *fs, uint64_t ino, struct ops_attr *out);
/* Looks up a name. Also serves ".." of a directory, and "." of an inode of any type. "." fails with
 * -ENOENT if the inode has no links, is open on no node, and its forget is not awaited. */
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
/* with SIZE: clear setuid, and clear setgid if the file is group-executable */
#define OPS_KILL_SETID (1u << 9)
/*
 * chown(2) with uid and gid both -1. Must be the only flag. For non-directories, clears setuid,
 * setgid and capabilities, as any chown does. Updates the ctime. Returns -EPERM if there are such
 * bits and the caller is neither the owner nor root. Exception: if the file is, or may be, open for
 * writing on this node, it returns 0 and the file stays as it is. The kernel sends the same request
 * before a write.
 */
#define OPS_CHOWN_NO_ONE (1u << 10)
struct ops_setattr {
	unsigned set;  /* OPS_SET_* */
	uint32_t mode; /* permission bits, 07777 */
	uint32_t uid, gid;
	uint64_t size;
	int64_t atime_ns, mtime_ns, ctime_ns;
};
/* Changes the attributes in set->set. *out: the result. Waits. */
int ops_setattr(struct fs *fs, uint64_t ino, const struct ops_caller *c,
	const struct ops_setattr *set, struct ops_attr *out);

/* Creates a regular file, fifo, socket or device (rdev_*). `mode` includes the type. */
int ops_mknod(struct fs *fs, uint64_t dir, struct ops_name name,
	const struct ops_caller *c, uint32_t mode, uint32_t rdev_major,
	uint32_t rdev_minor, struct ops_attr *out);
/* Creates a directory. *out: its attributes. Waits. */
int ops_mkdir(struct fs *fs, uint64_t dir, struct ops_name name,
	const struct ops_caller *c, uint32_t mode, struct ops_attr *out);
/* Creates a symlink to `target`. *out: its attributes. Waits. */
int ops_symlink(struct fs *fs, uint64_t dir, struct ops_name name,
	const struct ops_caller *c, const char *target, struct ops_attr *out);
/* Reads at most `cap` bytes of a symlink's target into `buf`, without a NUL. Returns the length or
 * -errno. */
int ops_readlink(struct fs *fs, uint64_t ino, char *buf, size_t cap);
/* Gives the inode a further name. *out: its attributes. Waits. */
int ops_link(struct fs *fs, uint64_t ino, uint64_t dir, struct ops_name name,
	struct ops_attr *out);
/* Removes a name that is not a directory's. Waits. */
int ops_unlink(struct fs *fs, uint64_t dir, struct ops_name name);
/* Removes an empty directory. Waits. */
int ops_rmdir(struct fs *fs, uint64_t dir, struct ops_name name);
/* Renames. `flags`: 0, RENAME_NOREPLACE or RENAME_EXCHANGE. */
int ops_rename(struct fs *fs, uint64_t dir, struct ops_name name, uint64_t new_dir,
	struct ops_name new_name, unsigned flags);
/* Renames. `flags` may also contain RENAME_WHITEOUT, but not with RENAME_EXCHANGE. The whiteout's
 * owner is the caller. */
int ops_rename_as(struct fs *fs, uint64_t dir, struct ops_name name, uint64_t new_dir,
	struct ops_name new_name, const struct ops_caller *c, unsigned flags);

/* ---- directories ------------------------------------------------------------------- */

/* Cookies are stable across changes (key order: hashes). 0 starts; "." has cookie 1, ".." 2. */
struct ops_dirent {
	uint64_t ino;
	uint64_t cookie;  /* pass it to continue behind this entry */
	uint32_t type;    /* DT_* */
	const char *name; /* valid during the call */
	size_t name_len;
	const struct ops_attr *attr; /* with OPS_READDIR_PLUS, else NULL; also NULL for "." and
				      * "..", and if the inode cannot be read */
};
/* Gets one entry. Returns non-zero to refuse the entry and stop. An error of ops_readdir may follow
 * entries that were taken. */
typedef int (*ops_dirent_fn)(void *arg, const struct ops_dirent *entry);
#define OPS_READDIR_PLUS (1u << 0)
/* Calls `fn` for the entries behind `cookie`. Waits. */
int ops_readdir(struct fs *fs, uint64_t dir, uint64_t cookie, unsigned flags,
	ops_dirent_fn fn, void *arg);

/* ---- open files -------------------------------------------------------------------- */

/*
 * One open of a regular file. The last close of an unlinked file frees it. Opening an inode without
 * links returns -ENOENT, except in three cases:
 *
 * - the inode is open on this node
 * - its forget is awaited (caller_forgets)
 * - another node has removed the last name, and no node has begun to free the inode
 */
struct ops_file;

/* A flag beside O_*: each write of the file is an append with an explicit OPS_APPEND. The file is
 * opened without O_APPEND. */
#define OPS_OPEN_APPENDS (1 << 30)
int ops_open(struct fs *fs, uint64_t ino, const struct ops_caller *c, int flags, /* O_* */
	struct ops_file **out, struct ops_attr *attr);
/* Creates a file and opens it. If the name exists: with O_EXCL returns -EEXIST, else opens the
 * existing regular file. */
int ops_create(struct fs *fs, uint64_t dir, struct ops_name name,
	const struct ops_caller *c, uint32_t mode, int flags, struct ops_file **out,
	struct ops_attr *attr);
/* Opens a file without a name (O_TMPFILE), with nlink 0. ops_link may give it a name unless O_EXCL
 * was set. */
int ops_tmpfile(struct fs *fs, uint64_t dir, const struct ops_caller *c, uint32_t mode,
	int flags, struct ops_file **out, struct ops_attr *attr);
/* Closes an open file. Waits. */
void ops_close(struct fs *fs, struct ops_file *file);
/* Returns the inode number of an open file. Never waits. */
uint64_t ops_file_ino(struct ops_file *file);
/* Returns true if the open has moved the inode's atime: an open for reading counts as an access. */
bool ops_file_accessed(struct ops_file *file);
/* Returns true if the call that opened the file created it. */
bool ops_file_made(struct ops_file *file);

/*
 * Reads up to `len` bytes. Calls `sink` once with the bytes, as iovecs that point into frames. At
 * the end of the file `total` is 0. The frames stay latched during the call, so `sink` must not
 * wait for this filesystem. Gives at most cache_batch_max pages: if the cache is very small, the
 * read is short, and the caller loops. Returns the value of `sink`, or -errno.
 */
typedef int (*ops_sink)(
	void *arg, const struct iovec *iov, unsigned iov_count, size_t total);
int ops_read(struct fs *fs, struct ops_file *file, uint64_t offset, size_t len,
	ops_sink sink, void *arg);
/*
 * Writes. With O_APPEND or OPS_APPEND, writes at the end of the file. Returns the number of bytes,
 * or -errno. The number is less than `len` if -ENOSPC or -EIO has stopped the write.
 * OPS_APPEND_MORE: the caller may append more of the same record at once. Appends of other nodes
 * wait for it for some milliseconds (nodes/semantics.md, "Operations").
 */
#define OPS_APPEND      1u
#define OPS_APPEND_MORE 2u /* together with OPS_APPEND */
int64_t ops_write(struct fs *fs, struct ops_file *file, const struct ops_caller *c,
	uint64_t offset, const void *buf, size_t len, unsigned append);
int ops_fsync(struct fs *fs, uint64_t ino, bool data_only); /* files and directories */
/* Makes all changes of the volume durable. Waits. */
int ops_syncfs(struct fs *fs);
/* Allocates or frees blocks. `mode` (FALLOC_FL_*): 0, KEEP_SIZE, PUNCH_HOLE|KEEP_SIZE,
 * ZERO_RANGE[|KEEP_SIZE]. Returns -EOPNOTSUPP for others. */
int ops_fallocate(struct fs *fs, struct ops_file *file, const struct ops_caller *c,
	int mode, uint64_t offset, uint64_t len);
/*
 * On a volume of one node: has the kernel write back, by ops_write, the stores of mappings in file
 * blocks [first, end). `end` UINT64_MAX: to the end. Returns 0, or the error that the operation
 * returns. NULL: there are no mappings.
 */
typedef int (*ops_fetch)(void *owner, uint64_t ino, uint64_t first, uint64_t end);
/* Finds data or a hole. `whence`: SEEK_DATA or SEEK_HOLE. Returns the offset, or -ENXIO. Stores of
 * programs on this node through mappings count as data: `fetch` brings them first. Waits. */
int64_t ops_lseek(struct fs *fs, struct ops_file *file, uint64_t offset, int whence,
	ops_fetch fetch, void *owner);
/*
 * Returns true if the attributes show no blocks and a mapping may hold data. Programs consider a
 * file without blocks to have no data. The caller must not keep these attributes, and must call
 * ops_fetched before it answers with them.
 */
bool ops_blocks_hidden(struct fs *fs, const struct ops_attr *attr);
/* Brings the stores of programs on this node through mappings into the file. Waits, as
 * ops_lseek. */
int ops_fetched(struct fs *fs, uint64_t ino, ops_fetch fetch, void *owner);
/*
 * Track whether the kernel of a volume's only node has pages of the file. Call ops_file_paged
 * before a call that gives the kernel pages. Call ops_file_has_pages after a call that changed
 * bytes without the kernel's pages: it returns true if the kernel may have pages. `alone`: it is
 * worth while to drop all pages, since no program uses them, as far as known. If all pages have
 * been dropped since, pass `given` to ops_pages_gone.
 */
void ops_file_paged(struct ops_file *file);
bool ops_file_has_pages(struct ops_file *file, uint64_t *given, bool *alone);
void ops_pages_gone(struct fs *fs, uint64_t ino, uint64_t given);
/* Copies up to `len` bytes between files. Returns the number of bytes, 0 at the end of `in`, or
 * -errno. -EBADF if a handle does not allow it, or `out` has O_APPEND. Waits. */
int64_t ops_copy_range(struct fs *fs, struct ops_file *in, uint64_t offset_in,
	struct ops_file *out, uint64_t offset_out, size_t len,
	const struct ops_caller *c);

/*
 * Hidden opens, for volumes of one node with caller_forgets: the caller does not tell which files
 * it has open. It borrows a handle of the inode for each request, and gives it back. The handle can
 * read and write. The caller checks that the open file allows the request.
 *
 * - Any file may be open, and mapped for stores.
 * - An inode without links lives until its forget. The caller passes a forget only if it has no
 *   reference any more. If 129,024 inodes wait for their forget, operations that may remove a last
 *   link wait a second for one, then return -ENFILE.
 *
 * A read that the caller's kernel answers by itself moves no atime. So a task looks at each file
 * that no request has used for a moment. If a read would move its atime, it calls `drop_first`: the
 * kernel drops the first page of the file. `drop_first` may wait for other requests, but not for
 * ever.
 *
 * fs_hide_opens: call it once, before the first request. Returns 0 or -errno. fs_opens_end ends
 * the task: call it after the last request. Waits.
 */
typedef void (*ops_drop_first)(void *owner, uint64_t ino);
int fs_hide_opens(struct fs *fs, ops_drop_first drop_first, void *owner);
void fs_opens_end(struct fs *fs);
bool fs_opens_hidden(struct fs *fs);
/* Borrows a handle. Returns 0, -ENOENT or another error. Waits. */
int ops_borrow(struct fs *fs, uint64_t ino, struct ops_file **out);
/* Gives a borrowed handle back. Waits. */
void ops_give_back(struct fs *fs, uint64_t ino, struct ops_file *file);
/* Has the task look at the file, as after a request. Waits. */
void ops_touch(struct fs *fs, uint64_t ino);
/* Hands over a handle of ops_tmpfile, for ops_borrow. The caller must not use it after that.
 * Waits. */
void ops_hand_over(struct fs *fs, uint64_t ino, struct ops_file *file);
/* As ops_read, for a borrowed handle. `accesses`: the read may move the atime. */
int ops_read_borrowed(struct fs *fs, struct ops_file *file, uint64_t offset, size_t len,
	bool accesses, ops_sink sink, void *arg);
/* Returns true if the inode has no links and waits for its forget. Never waits. */
bool ops_awaits_forget(struct fs *fs, uint64_t ino);

/* ---- locks ------------------------------------------------------------------------- */

/*
 * flock and fcntl locks that all nodes see, for volumes of several nodes. An owner is a number that
 * the caller chooses. The same number on another node is another owner.
 *
 * -ENOLCK: the volume cannot be written, or a limit is reached. The limits are for the records of a
 * file, for owners, and for waiting requests.
 */
enum ops_lock_kind { OPS_LOCK_POSIX = 1, OPS_LOCK_FLOCK = 2 };
enum ops_lock_type { OPS_LOCK_NONE, OPS_LOCK_SHARED, OPS_LOCK_EXCLUSIVE };
#define OPS_LOCK_END ((uint64_t)INT64_MAX)

struct ops_lock {
	enum ops_lock_kind kind;
	enum ops_lock_type type; /* NONE: unlock */
	uint64_t owner;
	uint64_t first, last; /* bytes; `last` OPS_LOCK_END: to the end. Ignored for flock */
	uint32_t pid;         /* for ops_lock_test on the same node */
};

/* Returns true if the caller must pass its locks to these functions, because other nodes must see
 * them. */
bool ops_locks_shared(struct fs *fs);
/* Looks for a lock that conflicts with *want and stores it in *found; if there is none, its type is
 * NONE. If another node has the lock, its pid is 0 and its owner is undefined. */
int ops_lock_test(struct fs *fs, struct ops_file *file, const struct ops_lock *want,
	struct ops_lock *found);
/* Locks, changes the owner's locks in the range, or unlocks, as fcntl(2) and flock(2) do. Does not
 * wait for other owners: returns -EAGAIN. */
int ops_lock(struct fs *fs, struct ops_file *file, const struct ops_lock *lock);

/* The locks in the way of a request. */
struct ops_lock_held {
	unsigned count;       /* number of them; 0: it waits for an earlier request */
	unsigned node;        /* node of the first */
	struct ops_lock lock; /* the first; `pid` is of that node */
	uint64_t looked_ns;   /* time of the look (rt_now_ns); 0: none yet */
};

/*
 * A lock request that may wait. The caller owns it, and must not move it until ops_lock_start
 * returns anything but -EINPROGRESS. If it returns -EINPROGRESS, the request stays until `done` is
 * called. Another task calls `done`, perhaps before ops_lock_start returns. `done` may free the
 * request, and must not wait long. The file must stay open as long.
 */
struct ops_lock_wait {
	struct ops_lock lock;
	void (*done)(void *arg, int result);
	void *arg;
	/* private to fs/ops; zeros at first */
	struct {
		struct fs *fs;
		struct lock_owner *owner;
		uint64_t ino, ticket, passes_ns;
		uint64_t began_ns;
		int state, cancelled;
		bool recorded, woken;
		struct ops_lock_held held; /* as of the last look */
		struct ops_lock_wait *next, *next_ready;
	} own;
};
/*
 * Starts a request. Returns:
 * - 0: the owner has the lock
 * - -EINPROGRESS: the request waits
 * - -EDEADLK (fcntl): it would wait for owners that wait for it
 * - -EINTR: it was cancelled
 * - -ENOTCONN: after ops_locks_end
 * - other errors as above
 */
int ops_lock_start(struct fs *fs, struct ops_file *file, struct ops_lock_wait *wait);
/*
 * Cancels a request. Unless it has the lock by then, it ends soon with -EINTR. Also allowed before
 * ops_lock_start. Must not be called after `done` has returned, or after ops_lock_start has
 * returned anything but -EINPROGRESS. Never waits.
 */
void ops_lock_cancel(struct fs *fs, struct ops_lock_wait *wait);
/* A request that waits, for people. */
struct ops_lock_waiter {
	uint64_t ino, ticket;
	uint64_t began_ns; /* rt_now_ns */
	struct ops_lock lock;
	struct ops_lock_held held;
};
/* Lists the waiting requests of this node, oldest first, up to `max` of them. Returns the number of
 * all. Never waits. */
unsigned ops_lock_waiters(struct fs *fs, struct ops_lock_waiter *out, unsigned max);
/* Looks up the locks in the way of the OPS_LOCK_LOOKS oldest requests: a request learns of a change
 * itself only when it may go on. Waits; a task with rt_task_serves can end it. */
#define OPS_LOCK_LOOKS 64u
void ops_lock_waiters_look(struct fs *fs);
/* Notes that the owner has closed a descriptor of the file: frees its POSIX locks. */
int ops_flush(struct fs *fs, struct ops_file *file, uint64_t owner);
/* Ends the locks of this node. Waiting requests end with -ENOTCONN, and so does each later request
 * that would wait. When it returns, all locks of this node are free. Waits. */
void ops_locks_end(struct fs *fs);
/*
 * Notes that the node has started with this incarnation: locks of its earlier incarnations are
 * void. Nodes tell each other when they open. Call this if the caller knows it otherwise; for a
 * fenced node, pass its last incarnation plus one. Never waits.
 */
void ops_locks_heard(struct fs *fs, unsigned node, uint64_t incarnation);

/* ---- extended attributes and ACLs --------------------------------------------------- */

/*
 * Names are full ("user.x"). system.posix_acl_access and system.posix_acl_default are kept with the
 * mode bits and inherited, as in acl(5). An ACL has up to 63 entries. The names of an inode's
 * attributes have up to 64 KiB together (the limit of listxattr(2)). Past that: -ENOSPC.
 */
int ops_setxattr(struct fs *fs, uint64_t ino, const struct ops_caller *c,
	const char *name, const void *value, size_t len,
	int flags); /* XATTR_CREATE, XATTR_REPLACE */
/* Reads a value. `len` 0: returns its size. Returns the length, -ERANGE or -ENODATA. */
int ops_getxattr(struct fs *fs, uint64_t ino, const char *name, void *buf, size_t len);
/* Lists names, each with its NUL. Returns the length; with `len` 0 it only returns that. Waits. */
int ops_listxattr(struct fs *fs, uint64_t ino, char *buf, size_t len);
/* Removes an extended attribute. Returns -ENODATA if there is none. Waits. */
int ops_removexattr(struct fs *fs, uint64_t ino, const char *name);

/* Reads the numbers of the filesystem. Waits. */
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
	/* entries of listings whose inodes were read ahead, and lookups of such entries */
	_Atomic uint64_t listed_ahead, listed_ahead_used;
};
struct ops_counters *ops_counters(struct fs *fs);

#endif
