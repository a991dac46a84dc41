/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One mount's conversation with the kernel: the receive loop and its workers.
 *
 * One worker at a time has the turn: it reads the FUSE device, and goes on doing so while
 * the requests it takes are short. It passes the turn to another one before it waits for
 * anything (rt_task_before_wait), before a long request, and when requests pile up; so a
 * request that waits for a disk never keeps others from being served, and a lone client
 * is served by one thread with a warm cache instead of by all in rotation. Workers are
 * bounded, and so is the memory that their buffers keep (invariant 10).
 *
 * Where the kernel offers io_uring most requests come that way instead (uring.h).
 */
#ifndef WEFT_FS_SESSION_H
#define WEFT_FS_SESSION_H

#include "fs/latency.h"
#include "fs/ops/ops.h"
#include "fs/uring.h"

/* FUSE opcodes told apart in the statistics; 0: all others. */
#define SESSION_OPCODES 64

struct session;
struct fuse_session;

struct session_counters {
	struct latency latency[SESSION_OPCODES]; /* by opcode, from receipt to reply */
	_Atomic uint64_t requests;
	_Atomic uint64_t workers;        /* now */
	_Atomic uint64_t workers_most;   /* ever */
	_Atomic uint64_t uring_requests; /* of these, through io_uring */
	_Atomic uint64_t bytes_read;
	_Atomic uint64_t bytes_written;
};

struct session_options {
	int ended_fd; /* an eventfd, which is written when the kernel has ended the connection */
	enum uring_mode uring;
	/* How long a request may wait for other nodes before it ends with EIO; 0: for ever. Not 0, and
	 * where there are others: without io_uring. */
	uint64_t soft_ns;
	const struct ops_noted *noted; /* of fs_kernel_start; or NULL */
	/*
	 * Called when `requests` have begun to wait for a node that is away, the first of them since
	 * `for_ns`; and with 0 when none waits any more. NULL: nobody is told. May wait.
	 */
	void (*waits)(void *owner, unsigned node, unsigned requests, uint64_t for_ns);
	void *owner;
};

/*
 * Serves `fs` over the device, which it takes over (also when it fails). The mount
 * answers from then on.
 */
int session_start(struct session **out, struct fs *fs, int device,
	const struct session_options *o, struct weft_error *err);
/* The mount answers on `directory`, which stays as long as the session. */
void session_answers(struct session *s, const char *directory, dev_t device);
/* True once the kernel has ended the connection. */
bool session_ended(struct session *s);
/*
 * From here on requests are answered with ENOTCONN; returns when the last one under way
 * has been answered, and what was locked is free. Nothing calls `fs` any more then. Waits.
 */
void session_quiesce(struct session *s);
/*
 * Frees everything, if the connection has ended. Workers that the kernel still keeps
 * cannot be woken: then the session stays, quiescent, until the process ends.
 */
void session_free(struct session *s);

/* The session, with all that serves, stays until this is taken back: for a request whose handler has
 * returned, and which is not answered. The caller serves one. */
void session_hold(struct session *s);
void session_release(struct session *s);

struct fs *session_fs(struct session *s);
int session_device(struct session *s);
/*
 * Other nodes have the volume too: what this kernel keeps of it may be another's to change
 * at any moment. The one question that all go by who let the kernel keep something.
 */
bool session_shared(struct session *s);
/* Other nodes have it, and the kernel may keep what it is told to (sharer.h). */
bool session_keeps(struct session *s);
struct fuse_session *session_fuse(struct session *s);
struct session_counters *session_counters(struct session *s);
/* The flags agreed upon with the kernel at INIT (64 bits: flags2 above). */
uint64_t session_init_flags(struct session *s);
/* Requests come through io_uring (uring.h). Known once the mount has answered. */
bool session_uses_uring(struct session *s);
uint64_t session_uring_entries(struct session *s);

#endif
