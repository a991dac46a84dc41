/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Byte streams between processes: sockets, and a poller that tells which of many have
 * something. In the simulator they are streams between nodes, with delays, cuts and
 * stalls (rt_sim.h).
 *
 * No call here waits but those that say so. A socket may be used by one sending and one
 * receiving task at a time; shutdown and kick by any.
 */
#ifndef WEFT_RT_SOCKET_H
#define WEFT_RT_SOCKET_H

#include <sys/types.h>
#include <sys/uio.h>

#include "engine/rt/rt.h"

struct rt_socket;
struct rt_poller;

/* Where to connect or listen. */
struct rt_address {
	uint32_t length;
	uint8_t bytes[128];
};

/*
 * "host:port" ([host]:port for IPv6), or the path of a unix socket, which has a slash. Names
 * are looked up: waits. 0 or -errno.
 */
int rt_address_resolve(struct rt_address *out, const char *text, struct weft_error *err);
/* All that a name stands for, best first, none twice: how many, `max` at most, or -errno. */
int rt_address_resolve_all(
	struct rt_address *out, unsigned max, const char *text, struct weft_error *err);
/* In numbers, as rt_address_resolve takes it. */
void rt_address_print(const struct rt_address *address, char *out, size_t size);

/*
 * The directory of a path is made if it is not there, and must be this user's own. A path
 * that nobody listens at any more is replaced; rt_socket_close removes it.
 */
int rt_socket_listen(
	struct rt_socket **out, const struct rt_address *at, struct weft_error *err);
/* Where it listens: port 0 has become a real one. */
void rt_socket_name(struct rt_socket *listener, char *out, size_t size);
/* Who is at the other end of one that was accepted: an address, or what is known of a process of
 * this machine. */
void rt_socket_peer_name(struct rt_socket *s, char *out, size_t size);
/* -EAGAIN: nobody is there. */
int rt_socket_accept(struct rt_socket **out, struct rt_socket *listener);
/* Begins to connect; it has ended when the socket is writable. */
int rt_socket_connect(struct rt_socket **out, const struct rt_address *to);
/* 0: connected; -EINPROGRESS; or why not. */
int rt_socket_connected(struct rt_socket *s);
/* Bytes taken, or -errno: -EAGAIN when there is no room. */
ssize_t rt_socket_send(struct rt_socket *s, const struct iovec *iov, unsigned count);
/* Bytes, 0 at the end, or -errno: -EAGAIN when nothing is there. */
ssize_t rt_socket_recv(struct rt_socket *s, const struct iovec *iov, unsigned count);
/* Both directions, for both ends; whoever waits for it sees that. */
void rt_socket_shutdown(struct rt_socket *s);
/*
 * For a descriptor of a library's, which becomes readable: it can be waited for and watched
 * as a socket, no more. It stays the library's. Not in the simulator.
 */
int rt_socket_watch(struct rt_socket **out, int fd);
/* Nobody uses or watches it any more. NULL is fine. */
void rt_socket_close(struct rt_socket *s);
/*
 * Waits until it is readable or has ended, or rt_socket_kick. May return early. One task
 * at a time. While it waits, a poller need not be told of what arrives: when it returns,
 * receive until nothing is there. 0 or -ETIMEDOUT.
 */
int rt_socket_wait(struct rt_socket *s, uint64_t deadline_ns);
/* Ends the wait of whoever waits in rt_socket_wait, now or next. */
void rt_socket_kick(struct rt_socket *s);

/* ---- many sockets ---------------------------------------------------------------- */

#define RT_READABLE (1u << 0)
#define RT_WRITABLE (1u << 1)
#define RT_HANGUP   (1u << 2) /* it has ended; always told */

struct rt_ready {
	void *tag;
	unsigned events;
};

int rt_poller_open(struct rt_poller **out);
void rt_poller_close(struct rt_poller *p);
/* A socket is watched by one poller at most. */
int rt_poller_add(struct rt_poller *p, struct rt_socket *s, unsigned events, void *tag);
/* By any task. */
void rt_poller_change(
	struct rt_poller *p, struct rt_socket *s, unsigned events, void *tag);
void rt_poller_remove(struct rt_poller *p, struct rt_socket *s);
/*
 * Waits until a watched socket is as wanted, or rt_poller_kick. Returns how many of `out`
 * it filled: 0 after a kick or at the deadline. One task at a time.
 */
unsigned rt_poller_wait(
	struct rt_poller *p, struct rt_ready *out, unsigned max, uint64_t deadline_ns);
void rt_poller_kick(struct rt_poller *p);

#endif
