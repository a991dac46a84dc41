/* SPDX-License-Identifier: Apache-2.0 */
/* Sizes, numbers and UUIDs as text. The text that is parsed is not trusted (invariant 9). */
#include "engine/common/text.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* strtoull accepts blanks and signs, too: -1 would be a very large number. */
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

void size_print(uint64_t bytes, char out[SIZE_TEXT])
{
	static const char *const units[] = {"bytes", "KiB", "MiB", "GiB", "TiB", "PiB"};
	double value = (double)bytes;
	unsigned unit = 0;

	while (value >= 1024 && unit + 1 < ARRAY_SIZE(units)) {
		value /= 1024;
		unit++;
	}
	snprintf(out, SIZE_TEXT, "%.*f %s", unit ? 1 : 0, value, units[unit]);
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

/* ---- the nearest word ------------------------------------------------------------- */

#define NEAREST_BYTES 32u /* in a longer word no slip is found */

/* The number of changes that make a into b. A change is one byte more, less or other, or a swap of
 * two neighbours. */
static unsigned text_distance(const char *a, size_t an, const char *b, size_t bn)
{
	unsigned row[3][NEAREST_BYTES + 1]; /* of a's first i bytes, i - 1 and i - 2 */

	for (unsigned j = 0; j <= bn; j++)
		row[0][j] = j;
	for (unsigned i = 1; i <= an; i++) {
		unsigned *now = row[i % 3], *last = row[(i + 2) % 3],
			 *before = row[(i + 1) % 3];

		now[0] = i;
		for (unsigned j = 1; j <= bn; j++) {
			now[j] = last[j - 1] + (a[i - 1] != b[j - 1]);
			now[j] = MIN(now[j], MIN(last[j], now[j - 1]) + 1);
			if (i > 1 && j > 1 && a[i - 1] == b[j - 2] &&
				a[i - 2] == b[j - 1])
				now[j] = MIN(now[j], before[j - 2] + 1);
		}
	}
	return row[an % 3][bn];
}

void text_nearest_try(struct text_nearest *n, const char *candidate)
{
	size_t bytes = strlen(candidate);
	unsigned distance;

	if (n->bytes > NEAREST_BYTES || bytes > NEAREST_BYTES)
		return;
	distance = text_distance(n->word, n->bytes, candidate, bytes);
	if (distance > MAX(MIN(n->bytes, bytes) / 3, (size_t)1) ||
		(n->best && distance >= n->distance))
		return;
	n->best = candidate;
	n->distance = distance;
}

static int digit_value(char c)
{
	if (c >= '0' && c <= '9')
		return c - '0';
	if (c >= 'a' && c <= 'f')
		return c - 'a' + 10;
	if (c >= 'A' && c <= 'F')
		return c - 'A' + 10;
	return -1;
}

bool hex_parse(const char *text, uint8_t *out, size_t bytes)
{
	for (size_t i = 0; i < 2 * bytes; i++)
		if (digit_value(text[i]) < 0) /* the NUL is no digit */
			return false;
	for (size_t i = 0; i < bytes; i++)
		out[i] = (uint8_t)(digit_value(text[2 * i]) << 4 |
				   digit_value(text[2 * i + 1]));
	return true;
}

void hex_print(const uint8_t *in, size_t bytes, char *out)
{
	static const char digits[] = "0123456789abcdef";

	for (size_t i = 0; i < bytes; i++) {
		*out++ = digits[in[i] >> 4];
		*out++ = digits[in[i] & 15];
	}
	*out = '\0';
}

/* Bytes before each dash, and after the last. */
static const uint8_t pieces[] = {4, 2, 2, 2, 6};

void uuid_print(const uint8_t uuid[UUID_BYTES], char out[UUID_TEXT])
{
	for (size_t i = 0; i < sizeof(pieces); i++) {
		if (i)
			*out++ = '-';
		hex_print(uuid, pieces[i], out);
		uuid += pieces[i];
		out += 2 * (size_t)pieces[i];
	}
}

void uuid_of_random(uint8_t bytes[UUID_BYTES])
{
	bytes[6] = (uint8_t)((bytes[6] & 0x0f) | 0x40);
	bytes[8] = (uint8_t)((bytes[8] & 0x3f) | 0x80);
}

bool uuid_parse(const char *text, uint8_t out[UUID_BYTES])
{
	uint8_t bytes[UUID_BYTES], *next = bytes;

	for (size_t i = 0; i < sizeof(pieces); i++) {
		if (i && *text++ != '-')
			return false;
		if (!hex_parse(text, next, pieces[i]))
			return false;
		text += 2 * (size_t)pieces[i];
		next += pieces[i];
	}
	if (*text)
		return false;
	memcpy(out, bytes, sizeof(bytes));
	return true;
}
