/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Log lines about strangers: incoming connections that were refused, and had not proven the
 * cluster's key. Any program that reaches the port can make many of them, with any contents. So the
 * number of lines is bounded for each cause, even if the contents alternate. A line names the
 * address of the connection, since no other fact about it is certain.
 *
 * A cause has a minute from its first line on. In this minute it gets STRANGERS_SAID lines. At the
 * end one more line has the number of the other connections. All on the progress task.
 */
#include "engine/net/connect.h"

#include <stdio.h>

#define STRANGERS_SAID 3u
#define MINUTE_NS      60000000000ull

/* The minute is over. */
static void say_rest(struct connect_cause *k)
{
	if (k->more)
		weft_log(4,
			"%u more connections were refused in the last minute, the last "
			"one: %s",
			k->more, k->last);
	*k = (struct connect_cause){0};
}

void connect_stranger(
	struct connect_net *net, enum connect_cause_kind cause, const char *line)
{
	struct connect_cause *k = &net->cause[cause];
	uint64_t now = rt_now_ns();

	if (k->until && now >= k->until)
		say_rest(k);
	if (!k->until)
		k->until = now + MINUTE_NS;
	if (k->said < STRANGERS_SAID) {
		k->said++;
		weft_log(4, "%s", line);
		return;
	}
	k->more++;
	snprintf(k->last, sizeof(k->last), "%s", line);
	connect_due(net, k->until);
}

uint64_t connect_strangers_due(struct connect_net *net, uint64_t now)
{
	uint64_t next = RT_FOREVER;

	for (unsigned i = 0; i < CONNECT_CAUSES; i++) {
		struct connect_cause *k = &net->cause[i];

		if (k->more && now >= k->until)
			say_rest(k);
		else if (k->more)
			next = MIN(next, k->until);
	}
	return next;
}
