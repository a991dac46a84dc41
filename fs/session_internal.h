/* SPDX-License-Identifier: Apache-2.0 */
/* What session.c and shim.c share. */
#ifndef WEFT_FS_SESSION_INTERNAL_H
#define WEFT_FS_SESSION_INTERNAL_H

#include "fs/mount.h"
#include "fs/session.h"
#include "fs/shim.h"
#include "fs/uring.h"

/*
 * Where other nodes have the volume, too, a worker may wait for one that is away: as many as
 * would otherwise do may then find none left. Each has a stack and a buffer, of which it
 * uses some pages, and beside that maybe a transaction.
 */
#define SESSION_WORKERS_MAX   2048
#define SESSION_WORKERS_ALONE 256
/* Parked workers beyond so many end. */
#define SESSION_PARKED_MAX 8
/* A request read within this of the one before had been there already. */
#define SESSION_BACKLOG_NS 2000
/* Without memory to read a request into: so long until the next try. */
#define SESSION_MEMORY_PAUSE_NS 10000000ull
/* Beside a ring: so long after a FORGET the device is not read. */
#define SESSION_GATHER_NS 2000000
/* A message this long makes its buffer "fat": resident beyond its first pages. */
#define SESSION_FAT_BYTES (64u << 10)
/* With so many fat buffers in use no worker is added: later requests wait for one of
 * them. More where they may wait for a node that is away, and others need not. */
#define SESSION_FAT_BUSY_MAX    6
#define SESSION_FAT_BUSY_SHARED 48
/* So many fat buffers may stay resident while idle. */
#define SESSION_FAT_IDLE_MAX 8
/*
 * The kernel wants room for the largest WRITE and its headers; libfuse asks for a page.
 */
#define SESSION_BUFFER_BYTES (FUSE_IO_MAX + 2 * PAGE_SIZE)

enum worker_state { WORKER_NONE = 0, WORKER_RUNNING, WORKER_RETIRED };

struct worker {
	struct session *session;
	struct rt_task *task;
	enum worker_state state; /* under session->lock */
	uint8_t *buffer;         /* SESSION_BUFFER_BYTES, the worker's own */
	bool fat;      /* buffer is resident beyond SESSION_FAT_BYTES; while parked under
			  ->lock */
	bool has_turn; /* the worker's own */
	uint64_t served_ns;     /* when its last request was done */
	_Atomic uint32_t woken; /* while parked: 1 once the turn may be free */
	/* where other nodes may be waited for (waits.h): */
	_Atomic uint64_t serving;       /* the request's number; 0: none */
	_Atomic uint64_t since_ns;      /* begun then */
	_Atomic uint32_t asker, opcode; /* its thread; what it asked */
	_Atomic uint64_t interrupted;   /* a number: look at that one */
	_Atomic uint64_t answered;      /* a number: that one was told EIO */
	_Atomic uint64_t early; /* a number: that one is answered before it has ended */
	_Atomic uint64_t unwanted; /* a number: nobody waits for that one any more */
	_Atomic uint64_t node[2];  /* whose handles it uses */
	_Atomic uint64_t awaits;   /* bits: nodes that are away, which it waits for */
	struct worker *below;      /* in the stack of parked ones; under session->lock */
};

struct session {
	struct fuse_session *fuse;
	struct fs *fs;
	int device;
	int ended_fd;
	struct shim shim;
	enum uring_mode uring_mode;
	bool shared; /* the volume has several nodes */
	bool keeps;  /* shared, and the kernel may keep what it is told (sharer.c) */
	const struct ops_noted *noted; /* of what (fs_kernel_start); NULL: nobody asks */
	const char *at; /* the mount point, once it has answered; it outlives the session */
	dev_t at_device;
	_Atomic int looks; /* threads can be looked at: 1; not: -1; 0: not known yet */
	/* set once, while INIT is answered; NULL: not used */
	struct uring *_Atomic uring;
	struct rt_mutex
		forgets_lock; /* beside a ring: whoever reads the device and serves
					 what it gives; before all locks of ops */
	struct fuse_in_header *forgets; /* what it is read to, under forgets_lock */
	struct rt_mutex
		lock;    /* worker slots and the three below; innermost, held briefly */
	bool turn_taken; /* a worker has the device */
	unsigned parked; /* workers that wait for the turn */
	struct worker *parked_last; /* the one with the warmest cache is woken first */
	_Atomic uint32_t busy; /* requests being served; session_quiesce waits on it */
	_Atomic uint32_t fat_busy; /* fat buffers with a request */
	_Atomic uint32_t fat_idle; /* fat buffers without */
	_Atomic bool closed;       /* refuse requests */
	_Atomic bool ended;        /* the device gave ENODEV */
	struct aside *aside;       /* NULL: several nodes (aside.h) */
	struct rt_task *waits;     /* NULL: nobody looks who waits (waits.h) */
	uint64_t soft_ns;
	void (*waits_told)(void *owner, unsigned node, unsigned requests, uint64_t for_ns);
	void *waits_owner;
	_Atomic uint32_t interrupts;
	_Atomic bool waits_stopping;
	struct session_counters counters;
	_Atomic uint32_t
		slots; /* of workers: the first so many have been used; only rises */
	struct worker workers[SESSION_WORKERS_MAX];
};

/*
 * Serves or refuses a request, whose reply goes where the shim sends it: to the device,
 * or into the calling thread's entry of the ring. Returns when that was done, rt_now_ns.
 */
uint64_t session_serve(
	struct session *s, struct fuse_in_header *in, size_t length, uint64_t begin);
/* Counts threads that serve. */
void session_note_workers(struct session *s, int change);

#endif
