/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The connections of the metrics server. Any client that reaches the address may keep one open and
 * send nothing, or a byte now and then. So the server never refuses a connection because of others:
 * when all places are taken, the new one displaces an old one. That is one of the address that has
 * the most, so that a client which takes all places loses its own.
 */
#include <errno.h>
#include <netinet/in.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "fs/metrics.h"

#define BACKLOG 64

int metrics_connections_open(struct metrics_connections *c, const struct sockaddr_storage *at)
{
	const int yes = 1;
	int fd = socket(at->ss_family, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0);

	*c = (struct metrics_connections){.listener = fd};
	for (unsigned i = 0; i < METRICS_CONNECTIONS_MAX; i++)
		c->of[i].fd = -1;
	if (fd < 0)
		return -errno;
	if (setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &yes, sizeof(yes)) < 0 ||
		(at->ss_family == AF_INET6 &&
			setsockopt(fd, IPPROTO_IPV6, IPV6_V6ONLY, &yes, sizeof(yes)) < 0) ||
		bind(fd, (const struct sockaddr *)at,
			at->ss_family == AF_INET6 ? sizeof(struct sockaddr_in6)
						  : sizeof(struct sockaddr_in)) < 0 ||
		listen(fd, BACKLOG) < 0) {
		int rc = -errno;

		metrics_connections_close(c);
		return rc;
	}
	return 0;
}

void metrics_connections_close(struct metrics_connections *c)
{
	if (c->listener >= 0)
		close(c->listener);
	c->listener = -1;
}

struct metrics_connection *metrics_connections_place(struct metrics_connections *c)
{
	for (unsigned i = 0; i < METRICS_CONNECTIONS_MAX; i++)
		if (c->of[i].fd < 0)
			return &c->of[i];
	return NULL;
}

static bool from_one_address(const struct metrics_connection *a, const struct metrics_connection *b)
{
	const struct sockaddr_in *a4 = (const void *)&a->from, *b4 = (const void *)&b->from;
	const struct sockaddr_in6 *a6 = (const void *)&a->from, *b6 = (const void *)&b->from;

	if (a->from.ss_family == AF_INET6)
		return memcmp(&a6->sin6_addr, &b6->sin6_addr, sizeof(a6->sin6_addr)) == 0;
	return a4->sin_addr.s_addr == b4->sin_addr.s_addr;
}

static unsigned count_of_address(
	const struct metrics_connections *c, const struct metrics_connection *one)
{
	unsigned count = 0;

	for (unsigned i = 0; i < METRICS_CONNECTIONS_MAX; i++)
		count += c->of[i].fd >= 0 && !c->of[i].ends && from_one_address(&c->of[i], one);
	return count;
}

void metrics_connections_displace(struct metrics_connections *c)
{
	struct metrics_connection *victim = NULL;
	unsigned most = 0;

	for (unsigned i = 0; i < METRICS_CONNECTIONS_MAX; i++) {
		struct metrics_connection *one = &c->of[i];
		unsigned count;

		if (one->fd < 0 || one->ends)
			continue;
		count = count_of_address(c, one);
		if (count > most || (count == most && one->number < victim->number)) {
			victim = one;
			most = count;
		}
	}
	if (!victim)
		return;
	victim->ends = true;
	(void)shutdown(victim->fd, SHUT_RDWR);
}

int metrics_connections_accept(struct metrics_connections *c, struct metrics_connection *place)
{
	struct sockaddr_storage from = {0};
	socklen_t bytes = sizeof(from);
	int fd = accept4(c->listener, (struct sockaddr *)&from, &bytes,
		SOCK_CLOEXEC | SOCK_NONBLOCK);

	if (fd < 0)
		return -errno;
	*place = (struct metrics_connection){.fd = fd, .from = from, .number = c->arrived++};
	return 0;
}
