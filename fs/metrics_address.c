/* SPDX-License-Identifier: Apache-2.0 */
/* The address of -o metrics. It is apart from the server, so that programs which only check it do
 * without the server's libraries. */
#include <arpa/inet.h>
#include <netinet/in.h>
#include <string.h>

#include "engine/common/text.h"
#include "fs/metrics.h"

static bool parse_port(const char *text, in_port_t *out)
{
	uint64_t port;

	if (number_parse(text, &port) < 0 || !port || port > UINT16_MAX)
		return false;
	*out = htons((uint16_t)port);
	return true;
}

bool metrics_address_parse(const char *address, struct sockaddr_storage *out)
{
	struct sockaddr_in *v4 = (struct sockaddr_in *)out;
	struct sockaddr_in6 *v6 = (struct sockaddr_in6 *)out;
	char host[METRICS_ADDRESS_MAX];
	const char *colon = strrchr(address, ':');
	size_t len = colon ? (size_t)(colon - address) : 0;

	*out = (struct sockaddr_storage){0};
	if (!len || len >= sizeof(host))
		return false;
	memcpy(host, address, len);
	host[len] = '\0';
	if (host[0] == '[' && host[len - 1] == ']') {
		host[len - 1] = '\0';
		v6->sin6_family = AF_INET6;
		return inet_pton(AF_INET6, host + 1, &v6->sin6_addr) == 1 &&
		       parse_port(colon + 1, &v6->sin6_port);
	}
	v4->sin_family = AF_INET;
	return inet_pton(AF_INET, host, &v4->sin_addr) == 1 &&
	       parse_port(colon + 1, &v4->sin_port);
}
