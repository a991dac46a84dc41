/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tables of text for people. On a terminal, long texts go on in further lines of their column. In a
 * pipe or file, each row is one line. Bytes that a terminal would take for commands are shown as
 * \xNN.
 */
#ifndef WEFT_TOOLS_TABLE_H
#define WEFT_TOOLS_TABLE_H

#include <stdbool.h>
#include <stdio.h>

struct table;

enum table_kind {
	TABLE_TEXT,   /* a short text, or a number with a unit, at the left */
	TABLE_NUMBER, /* at the right */
	TABLE_LONG,   /* a text of any length: the first to become narrower */
};

/* Returns NULL without memory. The functions below accept NULL, and then do nothing. */
struct table *table_new(void);
void table_column(struct table *t, const char *title, enum table_kind kind);
/* Adds a row. Its first cell is the next one. */
void table_row(struct table *t);
/* Sets the next cell of the last row. */
void table_cell(struct table *t, const char *fmt, ...)
	__attribute__((format(printf, 2, 3)));
/* Prints the table, behind `indent` blanks in each line. Nothing without rows. */
void table_print(struct table *t, unsigned indent, FILE *to);
void table_free(struct table *t);
/* Sets the width of all tables, whatever they are printed to. */
void table_set_width(unsigned columns);

#endif
