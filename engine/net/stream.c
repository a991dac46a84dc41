/* SPDX-License-Identifier: Apache-2.0 */
/* A connection's bytes: plain, straight from and to the socket. */
#include "engine/net/connect.h"

#include <errno.h>

ssize_t net_stream_send(struct net_stream *s, const struct iovec *iov, unsigned count)
{
	return rt_socket_send(s->socket, iov, count);
}

ssize_t net_stream_recv(struct net_stream *s, const struct iovec *iov, unsigned count)
{
	return rt_socket_recv(s->socket, iov, count);
}

void net_stream_close(struct net_stream *s)
{
	rt_socket_close(s->socket);
	*s = (struct net_stream){0};
}

int net_tls_open(struct connect_net *net, struct weft_error *err)
{
	return weft_error(err, -EOPNOTSUPP, "TLS is not supported");
}

void net_tls_close(struct connect_net *net)
{
}

int net_tls_begin(struct connect_net *net, struct net_stream *s, bool dialer)
{
	return -EOPNOTSUPP;
}

int net_tls_shake(struct net_stream *s, unsigned *wanted)
{
	return -EOPNOTSUPP;
}
