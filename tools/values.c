/* SPDX-License-Identifier: Apache-2.0 */
/* Values of a daemon's answer, as people read them. */
#include <stdio.h>
#include <string.h>

#include "tools/tools.h"

double client_number(const json_t *o, const char *key)
{
	return json_number_value(json_object_get(o, key));
}

const char *format_bytes(char buf[16], double n)
{
	static const char units[] = "BKMGTP";
	unsigned u = 0;

	while (n >= 1024 && u < 5) {
		n /= 1024;
		u++;
	}
	snprintf(buf, 16, u == 0 || n >= 100 ? "%.0f%c" : "%.1f%c", n, units[u]);
	return buf;
}

const char *format_duration(char buf[16], double ns)
{
	if (ns < 1e3)
		snprintf(buf, 16, "%.0fns", ns);
	else if (ns < 1e6)
		snprintf(buf, 16, "%.1fus", ns / 1e3);
	else if (ns < 1e9)
		snprintf(buf, 16, "%.1fms", ns / 1e6);
	else
		snprintf(buf, 16, "%.1fs", ns / 1e9);
	return buf;
}

const char *format_count(double n, const char *noun)
{
	static char texts[8][64];
	static unsigned next;
	char *text = texts[next++ % 8];
	size_t len = strlen(noun);
	const char *plural = noun[len - 1] == 'h' ? "es" : "s"; /* batches, flushes */

	snprintf(text, sizeof(texts[0]), "%.0f %s%s", n, noun, n == 1 ? "" : plural);
	return text;
}
