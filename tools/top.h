/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft top, in three parts: the command, which asks the daemon (top.c), the text that it shows
 * (top_print.c), and the screen of a terminal (top_screen.c).
 */
#ifndef WEFT_TOOLS_TOP_H
#define WEFT_TOOLS_TOP_H

#include "tools/tools.h"

enum top_sort { TOP_BY_RATE, TOP_BY_BUSY, TOP_BY_P99, TOP_BY_NAME, TOP_SORTS };

struct top {
	const char *name, *title; /* of the volume: as client_find knows it, and for people */
	int fd;                  /* connection with its daemon; -1: none */
	json_t *before, *now;    /* answers to "status"; `before` NULL: none yet */
	double before_s, now_s;  /* their times (CLOCK_MONOTONIC) */
	json_t *waits;           /* answer to "waits", or NULL */
	json_t *paths;           /* inode_path.c */
	double look_s, search_s; /* no look by the daemon, no search for open files before that */
	double interval_s;
	enum top_sort sort;
	struct weft_error error; /* of the last question; code 0: none */
};

/* Asks the daemon for the present numbers. If that fails, keeps the last ones, and sets the error.
 * Returns 0 or EXIT_FAILED. Waits, for some seconds at most. */
int top_ask(struct top *t);

/* The word for a sort, and back; TOP_SORTS: none has that name. */
const char *top_sort_name(enum top_sort sort);
enum top_sort top_sort_of(const char *name);
/* Prints what was asked last on stdout. Lines of titles begin with `mark`. */
void top_print(const struct top *t, const char *mark);

/* Shows it on the terminal until the user ends it. `rounds`: number of times; 0: no limit. Returns
 * an exit code. */
int top_screen(struct top *t, unsigned rounds);

#endif
