/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes, numbers and UUIDs as text. What is read is not trusted (invariant 9). */
#include "engine/common/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* strtoull takes blanks and signs too: -1 would be a very large number. */
static int digits_parse(const char *text, int base, uint64_t *out, const char **end)
{
	unsigned long long value;
	char *stop;

	if (*text < '0' || *text > '9')
		return -EINVAL;
	errno = 0;
	value = strtoull(text, &stop, base);
	if (errno)
		return -EINVAL;
	*out = value;
	*end = stop;
	return 0;
}

int size_parse(const char *text, uint64_t *out)
{
	static const char units[] = "KMGTP";
	const char *unit, *end;
	uint64_t value;
	unsigned shift;

	if (digits_parse(text, 10, &value, &end) < 0)
		return -EINVAL;
	if (*end && *end != 'B') {
		unit = strchr(units, *end >= 'a' ? *end - 'a' + 'A' : *end);
		if (!unit)
			return -EINVAL;
		shift = 10 * (unsigned)(unit - units + 1);
		if (value > UINT64_MAX >> shift)
			return -EINVAL;
		value <<= shift;
		end += end[1] == 'i' ? 2 : 1;
	}
	if (*end == 'B')
		end++;
	if (*end)
		return -EINVAL;
	*out = value;
	return 0;
}

int number_parse(const char *text, uint64_t *out)
{
	bool hex = text[0] == '0' && (text[1] == 'x' || text[1] == 'X');
	const char *end;
	uint64_t value;

	if (digits_parse(text, hex ? 16 : 10, &value, &end) < 0 || *end)
		return -EINVAL;
	*out = value;
	return 0;
}

void uuid_print(const uint8_t uuid[16], char out[37])
{
	char *p = out;

	for (unsigned i = 0; i < 16; i++) {
		if (i == 4 || i == 6 || i == 8 || i == 10)
			*p++ = '-';
		p += sprintf(p, "%02x", uuid[i]);
	}
}
