/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that processes of one host share, passed over unix sockets, and waiting on words
 * in it. It has no name: when the last process is gone, so is the memory. The real runtime
 * only; the simulated one answers -EOPNOTSUPP.
 */
#ifndef WEFT_RT_SHARED_H
#define WEFT_RT_SHARED_H

#include "engine/rt/rt_socket.h"

struct rt_shared;

#define RT_SHARED_MAX 24u /* at once over a socket */

/*
 * Zeroed pages that never change their size. Others may write them only if
 * `others_write`. 0, -ENOMEM, -EOPNOTSUPP.
 */
int rt_shared_create(struct rt_shared **out, size_t size_bytes, bool others_write);
/* This process's mapping ends; others keep theirs. NULL is fine. */
void rt_shared_free(struct rt_shared *s);
void *rt_shared_base(struct rt_shared *s);
size_t rt_shared_bytes(const struct rt_shared *s);
bool rt_shared_writable(const struct rt_shared *s);

/* As rt_socket_send, all or nothing, on a unix socket: the other end gets the memory. */
int rt_socket_send_shared(struct rt_socket *s, const void *what, size_t bytes,
	struct rt_shared *const *shared, unsigned count);
/*
 * Memory that has come with bytes that were received, in order, and maps it: up to `max`.
 * What others could still shrink is not taken (-EPERM, and none is). Else how many.
 */
int rt_socket_take_shared(struct rt_socket *s, struct rt_shared **out, unsigned max);
/* false: the process at the other end of a unix socket is gone. */
bool rt_socket_process_lives(struct rt_socket *s);

/* As rt_wait and rt_wake, across processes. */
int rt_shared_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t deadline_ns);
void rt_shared_wake(_Atomic uint32_t *word, int count);

#endif
