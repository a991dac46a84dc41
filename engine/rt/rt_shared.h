/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Memory that processes of one host share, passed over unix sockets, and waits on words in it. It
 * has no name, and ends with the last process that has it. For the real runtime only; the simulated
 * one returns -EOPNOTSUPP.
 */
#ifndef WEFT_RT_SHARED_H
#define WEFT_RT_SHARED_H

#include "engine/rt/rt_socket.h"

struct rt_shared;

#define RT_SHARED_MAX 24u /* most that are sent at once over a socket */

/* Makes zeroed pages of a fixed size. Others may write them only if `others_write`. Returns 0,
 * -ENOMEM or -EOPNOTSUPP. */
int rt_shared_create(struct rt_shared **out, size_t size_bytes, bool others_write);
/* Ends this process's mapping; others keep theirs. NULL is allowed. */
void rt_shared_free(struct rt_shared *s);
void *rt_shared_base(struct rt_shared *s);
size_t rt_shared_bytes(const struct rt_shared *s);
bool rt_shared_writable(const struct rt_shared *s);

/* Sends bytes and shared memory over a unix socket, as rt_socket_send does, all or nothing. */
int rt_socket_send_shared(struct rt_socket *s, const void *what, size_t bytes,
	struct rt_shared *const *shared, unsigned count);
/* Takes and maps, in order, up to `max` pieces of memory that came with received bytes. Returns
 * their number. Returns -EPERM and takes none if others could shrink one. */
int rt_socket_take_shared(struct rt_socket *s, struct rt_shared **out, unsigned max);
/* Returns false if the process at the other end of a unix socket is gone. */
bool rt_socket_process_lives(struct rt_socket *s);

/* Work as rt_wait and rt_wake, across processes. */
int rt_shared_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t deadline_ns);
void rt_shared_wake(_Atomic uint32_t *word, int count);

#endif
