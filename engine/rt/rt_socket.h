/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte streams between processes: sockets, and a poller for many sockets. In the simulator they are
 * streams between nodes, with delays, cuts and stalls (rt_sim.h).
 *
 * Only the calls that say so wait. A socket may be used by one sending and one receiving task at a
 * time. Any task may call shutdown and kick.
 */
#ifndef WEFT_RT_SOCKET_H
#define WEFT_RT_SOCKET_H

#include <sys/types.h>
#include <sys/uio.h>

#include "engine/rt/rt.h"

struct rt_socket;
struct rt_poller;

/* An address to connect to or listen at. */
struct rt_address {
	uint32_t length;
	uint8_t bytes[128];
};

/* Resolves "host:port" ([host]:port for IPv6), or the path of a unix socket, which has a slash.
 * Looks names up. Returns 0 or a negative errno. Waits. */
int rt_address_resolve(struct rt_address *out, const char *text, struct weft_error *err);
/* Resolves all addresses of a name, best first, without duplicates. Returns their number, at most
 * `max`, or a negative errno. Waits. */
int rt_address_resolve_all(
	struct rt_address *out, unsigned max, const char *text, struct weft_error *err);
/* Prints the address in numbers, as rt_address_resolve takes it. */
void rt_address_print(const struct rt_address *address, char *out, size_t size);

/*
 * Listens at an address. For a path: makes the directory if it is missing; it must belong to this
 * user. Replaces a path without a listener. rt_socket_close removes the path. Returns 0 or a
 * negative errno.
 */
int rt_socket_listen(
	struct rt_socket **out, const struct rt_address *at, struct weft_error *err);
/* Prints the listener's address, with the real port instead of 0. */
void rt_socket_name(struct rt_socket *listener, char *out, size_t size);
/* Prints the other end of an accepted socket: an address, or the data that is known of a process of
 * this machine. */
void rt_socket_peer_name(struct rt_socket *s, char *out, size_t size);
/* Accepts a connection. Returns 0, -EAGAIN if there is none, or another negative errno. */
int rt_socket_accept(struct rt_socket **out, struct rt_socket *listener);
/* Begins to connect. That has ended when the socket is writable. */
int rt_socket_connect(struct rt_socket **out, const struct rt_address *to);
/* Returns 0 if connected, -EINPROGRESS, or the error. */
int rt_socket_connected(struct rt_socket *s);
/* Returns the number of bytes sent, or a negative errno; -EAGAIN: no room. */
ssize_t rt_socket_send(struct rt_socket *s, const struct iovec *iov, unsigned count);
/* Returns the number of bytes received, 0 at the end, or a negative errno; -EAGAIN: there are
 * none. */
ssize_t rt_socket_recv(struct rt_socket *s, const struct iovec *iov, unsigned count);
/* Ends both directions for both ends, and wakes their waits. */
void rt_socket_shutdown(struct rt_socket *s);
/* Makes a socket of a library's descriptor that becomes readable. It can only be waited for and
 * watched. The descriptor stays the library's. Not in the simulator. */
int rt_socket_watch(struct rt_socket **out, int fd);
/* Closes a socket that no task uses or watches any more. NULL is allowed. */
void rt_socket_close(struct rt_socket *s);
/*
 * Waits until the socket is readable or has ended, or rt_socket_kick. May return early. One task at
 * a time. Meanwhile a poller may miss bytes that arrive: after the return, receive until -EAGAIN.
 * Returns 0 or -ETIMEDOUT.
 */
int rt_socket_wait(struct rt_socket *s, uint64_t deadline_ns);
/* Ends the present or next rt_socket_wait. */
void rt_socket_kick(struct rt_socket *s);

/* ---- many sockets ---------------------------------------------------------------- */

#define RT_READABLE (1u << 0)
#define RT_WRITABLE (1u << 1)
#define RT_HANGUP   (1u << 2) /* it has ended; always reported */

struct rt_ready {
	void *tag;
	unsigned events;
};

int rt_poller_open(struct rt_poller **out);
void rt_poller_close(struct rt_poller *p);
/* Watches a socket. At most one poller watches it. Returns 0 or a negative errno. */
int rt_poller_add(struct rt_poller *p, struct rt_socket *s, unsigned events, void *tag);
/* Changes the watched events. Any task may call it. */
void rt_poller_change(
	struct rt_poller *p, struct rt_socket *s, unsigned events, void *tag);
void rt_poller_remove(struct rt_poller *p, struct rt_socket *s);
/* Waits until a watched socket has a wanted event, or rt_poller_kick. Returns the number of entries
 * in `out`: 0 after a kick or at the deadline. One task at a time. */
unsigned rt_poller_wait(
	struct rt_poller *p, struct rt_ready *out, unsigned max, uint64_t deadline_ns);
void rt_poller_kick(struct rt_poller *p);

#endif
