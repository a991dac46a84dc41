/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FUSE over io_uring (Linux 6.14 and later): requests come to the processor that asks.
 *
 * The kernel has a queue for each processor that there can be, and gives a request to an
 * entry of the queue of the processor on which it was made, by waking the thread that
 * submitted the entry. An entry is memory for one request and its reply. FORGET,
 * INTERRUPT and what the daemon tells the kernel still go through the device, so the
 * receive loop of session.c stays.
 *
 * Entries that no request has come to yet belong to one thread, `home`. The first request
 * of an entry makes a thread for it, to which the entry belongs from then on, and home
 * gives the queue another spare entry. So there are as many threads as requests of one
 * processor have been in work at a time; a request that waits never holds up another one;
 * and the kernel, which takes the entry last used, finds the warmest thread.
 *
 * This is the one place outside engine/rt/ that uses a ring: it is the FUSE device's,
 * which belongs to fs/, and the simulator has none.
 */
#ifndef WEFT_FS_URING_H
#define WEFT_FS_URING_H

#include <sys/uio.h>

#include "engine/common/base.h"

/* INIT flag, protocol 7.42. */
#define WIRE_OVER_IO_URING (1ull << 41)

enum uring_mode { URING_AUTO = 0, URING_ON, URING_OFF };

struct session;
struct uring;

/* 0, or -EOPNOTSUPP and what to do about it, when this kernel does not offer it. */
int uring_check(struct weft_error *err);
/* Gets ready all that can fail. Before INIT is answered with WIRE_OVER_IO_URING. */
int uring_open(struct uring **out, struct session *s);
/*
 * The kernel has the answer to INIT: from here on requests come through the ring. False:
 * it has not, and there will be no requests.
 */
void uring_start(struct uring *u, bool has_answer);
/* True once that has worked. */
bool uring_active(struct uring *u);
/* Entries that the kernel has, for the statistics. */
uint64_t uring_entries(struct uring *u);
/*
 * A reply on its way to the kernel: iov[0] is the struct fuse_out_header. False: it is
 * not for the request that the calling thread has from the ring.
 */
bool uring_take_reply(uint64_t unique, const struct iovec *iov, int count);
/* The calling thread serves a request of the ring, whose answer only its entry takes. */
bool uring_serves(void);
/*
 * May it wait for another request, of any queue? False: the queue has no other entry whose request waits for
 * none. True: uring_wait_end follows.
 */
bool uring_wait_begin(void);
void uring_wait_end(void);
/* Waits for all threads, which end when the connection has. Frees all. */
void uring_close(struct uring *u);

#endif
