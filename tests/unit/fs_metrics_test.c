/* SPDX-License-Identifier: Apache-2.0 */
/* Places of the metrics server: which connection a new one displaces. */
#include "fs/metrics.h"

#include <arpa/inet.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <sys/socket.h>
#include <unistd.h>

#include <cmocka.h>

/* A connection from 10.0.0.LAST, or of IPv6 from fd00::LAST, on a socket of the test's. */
static void take_place(struct metrics_connections *c, unsigned place, int family, unsigned last)
{
	struct metrics_connection *one = &c->of[place];
	struct sockaddr_in *v4 = (struct sockaddr_in *)&one->from;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)&one->from;
	int ends[2];

	assert_int_equal(socketpair(AF_UNIX, SOCK_STREAM, 0, ends), 0);
	close(ends[1]);
	*one = (struct metrics_connection){.fd = ends[0], .number = c->arrived++};
	one->from.ss_family = (sa_family_t)family;
	if (family == AF_INET) {
		v4->sin_addr.s_addr = htonl(0x0a000000 + last);
		v4->sin_port = htons((uint16_t)(1000 + place));
	} else {
		v6->sin6_addr.s6_addr[0] = 0xfd;
		v6->sin6_addr.s6_addr[15] = (uint8_t)last;
		v6->sin6_port = htons((uint16_t)(1000 + place));
	}
}

static void open_places(struct metrics_connections *c)
{
	*c = (struct metrics_connections){.listener = -1};
	for (unsigned i = 0; i < METRICS_CONNECTIONS_MAX; i++)
		c->of[i].fd = -1;
}

static void close_places(struct metrics_connections *c)
{
	for (unsigned i = 0; i < METRICS_CONNECTIONS_MAX; i++)
		if (c->of[i].fd >= 0)
			close(c->of[i].fd);
}

/* The next connection that is displaced, which must be the one in this place. */
static void displaces(struct metrics_connections *c, unsigned place)
{
	assert_false(c->of[place].ends);
	metrics_connections_displace(c);
	assert_true(c->of[place].ends);
}

static void the_address_with_the_most_loses_its_oldest(void **state)
{
	for (unsigned family = AF_INET; family <= AF_INET6; family += AF_INET6 - AF_INET) {
		struct metrics_connections c;

		open_places(&c);
		/* 1 and 3 are of one address with two, all but 0 of another with thirteen */
		for (unsigned i = 0; i < METRICS_CONNECTIONS_MAX; i++)
			take_place(&c, i, (int)family, i == 0 ? 9 : i == 1 || i == 3 ? 7 : 8);
		assert_null(metrics_connections_place(&c));
		displaces(&c, 2);
		displaces(&c, 4);
		/* a place that was taken anew is of the youngest */
		close(c.of[2].fd);
		c.of[2].fd = -1;
		assert_ptr_equal(metrics_connections_place(&c), &c.of[2]);
		take_place(&c, 2, (int)family, 8);
		displaces(&c, 5);
		for (unsigned i = 6; i < METRICS_CONNECTIONS_MAX - 1; i++)
			displaces(&c, i);
		/* two addresses with two each: the older one */
		displaces(&c, 1);
		close_places(&c);
	}
}

static void none_is_displaced_twice(void **state)
{
	struct metrics_connections c;

	open_places(&c);
	for (unsigned i = 0; i < 3; i++)
		take_place(&c, i, AF_INET, i);
	for (unsigned i = 0; i < 3; i++)
		displaces(&c, i);
	metrics_connections_displace(&c);
	close_places(&c);
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(the_address_with_the_most_loses_its_oldest),
		cmocka_unit_test(none_is_displaced_twice),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
