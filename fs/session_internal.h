/* SPDX-License-Identifier: Apache-2.0 */
/* Declarations that session.c and shim.c share. */
#ifndef WEFT_FS_SESSION_INTERNAL_H
#define WEFT_FS_SESSION_INTERNAL_H

#include <limits.h>

#include "fs/contended.h"
#include "fs/mount.h"
#include "fs/session.h"
#include "fs/shim.h"
#include "fs/uring.h"

/*
 * Most workers. On a volume of several nodes many workers may wait for a node that is away, and
 * others must still be free. Each worker has a stack and a buffer, of which it uses some pages, and
 * perhaps a transaction.
 */
#define SESSION_WORKERS_MAX   2048
#define SESSION_WORKERS_ALONE 256
/* More parked workers than this end. */
#define SESSION_PARKED_MAX 8
/* A request read within this time of the one before was waiting already. */
#define SESSION_BACKLOG_NS 2000
/* A worker looks for the next request for LOOK if the last one came within SOON of the one before.
 * After looks in vain it passes over up to SKIP_MAX of them. If another thread had the processor
 * for SLICE meanwhile, it does not look for CROWDED. */
#define SESSION_SOON_NS    100000
#define SESSION_LOOK_NS    50000
#define SESSION_SKIP_MAX   63u
#define SESSION_SLICE_NS   500000
#define SESSION_CROWDED_NS 200000000ull
/* Pause before the next try if there is no memory to read a request into. */
#define SESSION_MEMORY_PAUSE_NS 10000000ull
/* With a ring: time after a FORGET in which the device is not read. */
#define SESSION_GATHER_NS 2000000
/* A message of this length makes its buffer "fat": resident beyond its first pages. */
#define SESSION_FAT_BYTES (64u << 10)
/* If this many fat buffers are in use, no worker is added, and later requests wait for one of them.
 * The limit is higher if requests may wait for a node that is away while others need not. */
#define SESSION_FAT_BUSY_MAX    6
#define SESSION_FAT_BUSY_SHARED 48
/* Number of fat buffers that may stay resident while idle. */
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
	uint8_t *buffer;         /* SESSION_BUFFER_BYTES; used by this worker alone */
	bool fat;                /* resident beyond SESSION_FAT_BYTES; while parked under ->lock */
	bool has_turn;           /* used by this worker alone */
	bool soon;               /* its last request came soon after the one before */
	unsigned looks_skip;     /* looks that the next one in vain makes it pass over */
	unsigned looks_skipped;  /* looks to pass over now */
	uint64_t look_from_ns;   /* no look before */
	uint64_t served_ns;      /* end of its last request */
	_Atomic uint32_t woken;  /* while parked: 1 once the turn may be free */
	/* For waits.h; from `interrupted` on if requests may wait for other nodes: */
	_Atomic uint64_t serving;       /* number of its request; 0: none */
	_Atomic uint64_t since_ns;      /* start of the request */
	_Atomic uint32_t thread, opcode; /* its thread; its opcode */
	_Atomic uint64_t interrupted;   /* number of a request that the kernel has interrupted */
	_Atomic uint64_t answered;      /* number of a request that was answered with EIO */
	_Atomic uint64_t early; /* number of a request that was answered before its end */
	_Atomic uint64_t unwanted; /* number of a request whose answer is not needed any more */
	_Atomic uint64_t node[2];  /* inodes whose handles it uses */
	struct rt_shown shown;     /* the thing and the nodes that it waits for */
	/* of `shown`, when its last request ended; used by this worker alone */
	uint32_t retaken_changed, retaken_read;
	/* Under session->lock; kept when the worker passes the turn: */
	uint64_t named;          /* number of the request */
	char name[NAME_MAX + 1]; /* its name; "": it has none */
	struct worker *below;      /* next in the stack of parked workers; under session->lock */
};

struct session {
	struct fuse_session *fuse;
	struct fs *fs;
	int device;
	int ended_fd;
	long processors;
	struct shim shim;
	enum uring_mode uring_mode;
	bool shared; /* the volume has several nodes */
	bool keeps;  /* shared, and the kernel may keep answers (notify.c) */
	const struct kcache_noted
		*noted; /* notes the inodes that the kernel keeps (fs_kernel_start); NULL: not
			 * noted */
	const char *at; /* the mount point, once it has answered; outlives the session */
	dev_t at_device;
	_Atomic int looks; /* the state of threads can be read: 1; cannot: -1; not known yet: 0 */
	/* Set once, while INIT is answered. NULL: not used. */
	struct uring *_Atomic uring;
	struct rt_mutex
		lock;    /* protects worker slots and the three below; innermost, held briefly */
	bool turn_taken; /* a worker reads the device */
	unsigned parked; /* number of workers that wait for the turn */
	struct worker *parked_last; /* top of the stack: the worker with the warmest cache is
				     * woken first */
	_Atomic uint32_t busy; /* number of requests being served; session_quiesce waits on it */
	_Atomic uint32_t fat_busy; /* number of fat buffers with a request */
	_Atomic uint32_t fat_idle; /* number of fat buffers without one */
	_Atomic bool closed;       /* refuse requests */
	_Atomic bool ended;        /* the device returned ENODEV */
	struct aside *aside;       /* NULL: several nodes (aside.h) */
	struct rt_task *waits;     /* NULL: waiting requests are not watched (waits.h) */
	uint64_t soft_ns;
	void (*waits_told)(void *owner, unsigned node, unsigned requests, uint64_t for_ns);
	void *waits_owner;
	_Atomic uint32_t interrupts;
	_Atomic bool waits_stopping;
	struct session_counters counters;
	struct contended contended;
	_Atomic uint32_t
		slots; /* number of worker slots that have been used; only rises */
	struct worker workers[SESSION_WORKERS_MAX];
};

/* Serves or refuses a request. The shim sends the reply to the device, or into the calling thread's
 * entry of the ring. Returns the time of the end, by rt_now_ns. */
uint64_t session_serve(
	struct session *s, struct fuse_in_header *in, size_t length, uint64_t begin);
/* Changes the count of threads that serve. */
void session_note_workers(struct session *s, int change);

#endif
