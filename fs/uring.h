/* SPDX-License-Identifier: Apache-2.0 */
/*
 * FUSE over io_uring (Linux 6.14 and later): requests come to the processor that makes them.
 *
 * The kernel has a queue for each possible processor. A request goes to the queue of the processor
 * on which it was made. The kernel gives it to an entry there, and wakes the thread that submitted
 * the entry. An entry is memory for one request and its reply. FORGET, INTERRUPT and notifications
 * still go through the device, so the receive loop of session.c stays.
 *
 * Entries without a request so far belong to one thread, `home`. The first request of an entry
 * makes a thread for it. The entry belongs to that thread from then on, and home gives the queue
 * another spare entry. So there are as many threads as requests of one processor have been in work
 * at a time. A request that waits never delays another one. The kernel takes the entry used last,
 * and so finds the warmest thread.
 *
 * Only this file and engine/rt/ use a ring. This ring is the FUSE device's, which belongs to fs/,
 * and the simulator has none.
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

/* Returns 0, or -EOPNOTSUPP with a remedy if this kernel does not offer it. */
int uring_check(struct weft_error *err);
/* Prepares all that can fail. Call it before INIT is answered with WIRE_OVER_IO_URING. */
int uring_open(struct uring **out, struct session *s);
/* Notes that the kernel has the answer to INIT: requests come through the ring from here on.
 * `has_answer` false: it does not have it, and there will be no requests. */
void uring_start(struct uring *u, bool has_answer);
/* Returns true once uring_start has worked. */
bool uring_active(struct uring *u);
/* Returns the number of entries that the kernel has, for the statistics. */
uint64_t uring_entries(struct uring *u);
/* Sends a reply to the kernel. iov[0] is the struct fuse_out_header. Returns false if it does not
 * answer the calling thread's request of the ring. */
bool uring_take_reply(uint64_t unique, const struct iovec *iov, int count);
/* Returns true if the calling thread serves a request of the ring. Only its entry can take the
 * answer. */
bool uring_serves(void);
/* Returns true if the thread may wait for another request, of any queue; uring_wait_end must
 * follow. Returns false if all other entries of the queue have requests that wait for others. */
bool uring_wait_begin(void);
void uring_wait_end(void);
/* Waits for all threads and frees all memory. The threads end after the connection. */
void uring_close(struct uring *u);

#endif
