/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connection of one mount with the kernel: the receive loop and its workers.
 *
 * One worker at a time has the turn. It reads the FUSE device and serves the requests, as long as
 * they are short. It passes the turn to another worker before it waits (rt_task_before_wait),
 * before a long request, and when requests pile up. So a request that waits for a disk never delays
 * others. A lone client is served by one thread with a warm cache, not by all in rotation. The
 * number of workers is bounded, and so is the memory of their buffers (invariant 10).
 *
 * If the kernel offers io_uring, most requests come through it instead (uring.h).
 */
#ifndef WEFT_FS_SESSION_H
#define WEFT_FS_SESSION_H

#include "fs/latency.h"
#include "fs/ops/kept.h"
#include "fs/uring.h"

/* Number of FUSE opcodes in the statistics. Index 0: all others. */
#define SESSION_OPCODES 64

struct contended;
struct session;
struct fuse_session;

struct session_counters {
	struct latency latency[SESSION_OPCODES]; /* by opcode, from receipt to reply */
	_Atomic uint64_t requests;
	_Atomic uint64_t workers;        /* now */
	_Atomic uint64_t workers_most;   /* highest number so far */
	_Atomic uint64_t uring_requests; /* of these, through io_uring */
	_Atomic uint64_t bytes_read;
	_Atomic uint64_t bytes_written;
};

struct session_options {
	int ended_fd; /* an eventfd, written when the kernel has ended the connection */
	enum uring_mode uring;
	/* Longest time that a request may wait for other nodes before it ends with EIO; 0: no
	 * limit. If it is not 0 and there are other nodes, io_uring is not used. */
	uint64_t soft_ns;
	const struct kcache_noted *noted; /* as in fs_kernel_start; or NULL */
	/* Called when `requests` wait for a node that is away, the first of them for `for_ns`.
	 * Called with 0 when none waits any more. May wait. NULL: not called. */
	void (*waits)(void *owner, unsigned node, unsigned requests, uint64_t for_ns);
	void *owner;
};

/* Serves `fs` over the device. Takes the device over, also if it fails. The mount answers from then
 * on. */
int session_start(struct session **out, struct fs *fs, int device,
	const struct session_options *o, struct weft_error *err);
/* Notes that the mount on `directory` answers. The string must outlive the session. */
void session_answers(struct session *s, const char *directory, dev_t device);
/* Returns true once the kernel has ended the connection. */
bool session_ended(struct session *s);
/* Answers all further requests with ENOTCONN. Returns when the last request under way is answered
 * and all locks are free. The session no longer calls `fs` then. Waits. */
void session_quiesce(struct session *s);
/* Frees all memory if the connection has ended. The kernel may still block workers, which cannot be
 * woken. The session then stays, inactive, until the process ends. */
void session_free(struct session *s);

/* Keeps the session serving until session_release, for a request whose handler has returned before
 * the answer. The caller serves a request. */
void session_hold(struct session *s);
void session_release(struct session *s);

struct fs *session_fs(struct session *s);
/* Returns true if other nodes use the volume. They may then change the kernel's cached data at any
 * moment. All decisions about the kernel's cache use this function. */
bool session_shared(struct session *s);
/* Returns true if other nodes use the volume and the kernel may keep answers (notify.h). */
bool session_keeps(struct session *s);
struct fuse_session *session_fuse(struct session *s);
struct session_counters *session_counters(struct session *s);
struct contended *session_contended(struct session *s);
/* Returns the flags agreed with the kernel at INIT (64 bits: flags2 above). */
uint64_t session_init_flags(struct session *s);
/* Returns true if requests come through io_uring (uring.h). Known once the mount has answered. */
bool session_uses_uring(struct session *s);
uint64_t session_uring_entries(struct session *s);

#endif
