/* SPDX-License-Identifier: Apache-2.0 */
/* Assertions, errors as text, and the log line sink. */
#include "engine/common/base.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static void sink_stderr(int level, const char *line)
{
	static const char *const names[] = {"emergency", "alert", "critical", "error",
		"warning", "notice", "info", "debug"};

	if (level <= 6)
		fprintf(stderr, "weft: %s: %s\n", names[level & 7], line);
}

void (*weft_log_sink)(int level, const char *line) = sink_stderr;

void weft_assert_fail(const char *expr, const char *file, int line)
{
	char text[400];

	snprintf(text, sizeof(text), "%s:%d: this must hold: %s", file, line, expr);
	weft_log_sink(2, text);
	abort();
}

int weft_error(struct weft_error *err, int code, const char *fmt, ...)
{
	va_list ap;

	if (!err || err->code)
		return code;
	err->code = code;
	va_start(ap, fmt);
	vsnprintf(err->text, sizeof(err->text), fmt, ap);
	va_end(ap);
	return code;
}

void weft_log(int level, const char *fmt, ...)
{
	char text[1024];
	va_list ap;

	va_start(ap, fmt);
	vsnprintf(text, sizeof(text), fmt, ap);
	va_end(ap);
	weft_log_sink(level, text);
}
