/* SPDX-License-Identifier: Apache-2.0 */
/* A connection's bytes: plain, straight from and to the socket. */
#include "engine/net/tcp_internal.h"

#include <errno.h>

ssize_t tcp_stream_send(struct tcp_stream *s, const struct iovec *iov, unsigned count)
{
	return rt_socket_send(s->socket, iov, count);
}

ssize_t tcp_stream_recv(struct tcp_stream *s, const struct iovec *iov, unsigned count)
{
	return rt_socket_recv(s->socket, iov, count);
}

void tcp_stream_close(struct tcp_stream *s)
{
	rt_socket_close(s->socket);
	*s = (struct tcp_stream){0};
}

int tcp_tls_open(struct tcp_net *net, struct weft_error *err)
{
	return weft_error(err, -EOPNOTSUPP, "TLS is not supported");
}

void tcp_tls_close(struct tcp_net *net)
{
}

int tcp_tls_begin(struct tcp_net *net, struct tcp_stream *s, bool dialer)
{
	return -EOPNOTSUPP;
}

int tcp_tls_shake(struct tcp_stream *s, unsigned *wanted)
{
	return -EOPNOTSUPP;
}
