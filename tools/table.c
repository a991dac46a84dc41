/* SPDX-License-Identifier: Apache-2.0 */
/* Tables, by libsmartcols of util-linux. */
#include "tools/table.h"

#include <libsmartcols/libsmartcols.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include "engine/common/base.h"

#define WIDTH_DEFAULT 80u /* of a terminal that does not say its own */
#define WIDTH_LEAST   40u

struct table {
	struct libscols_table *scols;
	struct libscols_line *line;
	unsigned cell;
};

struct table *table_new(void)
{
	struct table *t = calloc(1, sizeof(*t));

	if (t)
		t->scols = scols_new_table();
	if (!t || t->scols)
		return t;
	free(t);
	return NULL;
}

void table_column(struct table *t, const char *title, enum table_kind kind)
{
	if (!t)
		return;
	scols_table_new_column(t->scols, title, 0,
		kind == TABLE_NUMBER ? SCOLS_FL_RIGHT
		: kind == TABLE_LONG ? SCOLS_FL_WRAP
				     : 0);
}

void table_row(struct table *t)
{
	if (!t)
		return;
	t->line = scols_table_new_line(t->scols, NULL);
	t->cell = 0;
}

void table_cell(struct table *t, const char *fmt, ...)
{
	char *text = NULL;
	va_list ap;

	if (!t || !t->line)
		return;
	va_start(ap, fmt);
	if (vasprintf(&text, fmt, ap) < 0)
		text = NULL;
	va_end(ap);
	if (!text || scols_line_refer_data(t->line, t->cell, text) < 0)
		free(text);
	t->cell++;
}

static unsigned width_set; /* 0: that of the terminal */

void table_set_width(unsigned columns)
{
	width_set = MAX(columns, WIDTH_LEAST);
}

/* Returns the width of the terminal; 0: it is none, and lines may have any length. */
static unsigned width_of(FILE *to)
{
	struct winsize size = {0};

	if (width_set)
		return width_set;
	if (!isatty(fileno(to)))
		return 0;
	if (ioctl(fileno(to), TIOCGWINSZ, &size) < 0 || !size.ws_col)
		return WIDTH_DEFAULT;
	return MAX(size.ws_col, WIDTH_LEAST);
}

/* The library pads the last column of a terminal with blanks. */
static void print_lines(const char *text, unsigned indent, FILE *to)
{
	while (*text) {
		size_t length = strcspn(text, "\n"), used = length;

		while (used && text[used - 1] == ' ')
			used--;
		fprintf(to, "%*s%.*s\n", used ? (int)indent : 0, "", (int)used, text);
		text += length + (text[length] == '\n');
	}
}

void table_print(struct table *t, unsigned indent, FILE *to)
{
	unsigned width = width_of(to);
	char *text = NULL;

	if (!t || scols_table_is_empty(t->scols))
		return;
	scols_table_set_termforce(
		t->scols, width ? SCOLS_TERMFORCE_ALWAYS : SCOLS_TERMFORCE_NEVER);
	if (width)
		scols_table_set_termwidth(t->scols, width - indent);
	if (scols_print_table_to_string(t->scols, &text) == 0 && text)
		print_lines(text, indent, to);
	free(text);
}

void table_free(struct table *t)
{
	if (!t)
		return;
	scols_unref_table(t->scols);
	free(t);
}
