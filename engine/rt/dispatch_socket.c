/* SPDX-License-Identifier: Apache-2.0 */
/* The functions of rt_socket.h, passed on to the selected runtime. */
#include "engine/rt/real.h"
#include "engine/rt/rt_shared.h"

#include <errno.h>

static const struct rt_socket_ops *socket_ops(void)
{
	return rt_selected()->sockets;
}

int rt_address_resolve(struct rt_address *out, const char *text, struct weft_error *err)
{
	int n = rt_address_resolve_all(out, 1, text, err);

	return MIN(n, 0);
}

int rt_address_resolve_all(
	struct rt_address *out, unsigned max, const char *text, struct weft_error *err)
{
	rt_about_to_wait();
	return socket_ops()->resolve(out, max, text, err);
}

void rt_address_print(const struct rt_address *address, char *out, size_t size)
{
	socket_ops()->print(address, out, size);
}

int rt_socket_listen(
	struct rt_socket **out, const struct rt_address *at, struct weft_error *err)
{
	return socket_ops()->listen(out, at, err);
}

void rt_socket_name(struct rt_socket *listener, char *out, size_t size)
{
	socket_ops()->name(listener, out, size);
}

void rt_socket_peer_name(struct rt_socket *s, char *out, size_t size)
{
	socket_ops()->peer_name(s, out, size);
}

int rt_socket_accept(struct rt_socket **out, struct rt_socket *listener)
{
	return socket_ops()->accept(out, listener);
}

int rt_socket_connect(struct rt_socket **out, const struct rt_address *to)
{
	return socket_ops()->connect(out, to);
}

int rt_socket_connected(struct rt_socket *s)
{
	return socket_ops()->connected(s);
}

ssize_t rt_socket_send(struct rt_socket *s, const struct iovec *iov, unsigned count)
{
	return socket_ops()->send(s, iov, count);
}

ssize_t rt_socket_recv(struct rt_socket *s, const struct iovec *iov, unsigned count)
{
	return socket_ops()->recv(s, iov, count);
}

void rt_socket_shutdown(struct rt_socket *s)
{
	socket_ops()->shutdown(s);
}

void rt_socket_close(struct rt_socket *s)
{
	if (s)
		socket_ops()->close(s);
}

int rt_socket_wait(struct rt_socket *s, uint64_t deadline_ns)
{
	rt_about_to_wait();
	return socket_ops()->wait(s, deadline_ns);
}

void rt_socket_kick(struct rt_socket *s)
{
	socket_ops()->kick(s);
}

int rt_poller_open(struct rt_poller **out)
{
	return socket_ops()->poller_open(out);
}

void rt_poller_close(struct rt_poller *p)
{
	if (p)
		socket_ops()->poller_close(p);
}

int rt_poller_add(struct rt_poller *p, struct rt_socket *s, unsigned events, void *tag)
{
	return socket_ops()->poller_add(p, s, events, tag);
}

void rt_poller_change(
	struct rt_poller *p, struct rt_socket *s, unsigned events, void *tag)
{
	socket_ops()->poller_change(p, s, events, tag);
}

void rt_poller_remove(struct rt_poller *p, struct rt_socket *s)
{
	socket_ops()->poller_remove(p, s);
}

unsigned rt_poller_wait(
	struct rt_poller *p, struct rt_ready *out, unsigned max, uint64_t deadline_ns)
{
	rt_about_to_wait();
	return socket_ops()->poller_wait(p, out, max, deadline_ns);
}

void rt_poller_kick(struct rt_poller *p)
{
	socket_ops()->poller_kick(p);
}

/* The simulated runtime has no descriptors, and no memory to share. The following functions are not
 * called there. */
int rt_socket_watch(struct rt_socket **out, int fd)
{
	return rt_simulated ? -EOPNOTSUPP : real_socket_watch(out, fd);
}

int rt_shared_create(struct rt_shared **out, size_t size_bytes, bool others_write)
{
	return rt_simulated ? -EOPNOTSUPP
			    : real_shared_create(out, size_bytes, others_write);
}
