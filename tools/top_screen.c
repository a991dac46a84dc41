/* SPDX-License-Identifier: Apache-2.0 */
/* The screen of weft top, by ncurses. The text is made in memory, as for a pipe, and then drawn. */
#include <curses.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <wchar.h>

#include "fs/daemonize.h"
#include "tools/table.h"
#include "tools/top.h"

/* The first byte of a line that is a title. No answer has control characters. */
#define MARK          "\1"
#define INTERVAL_MIN  0.25
#define INTERVAL_MAX  64.0
#define LINE_MAX_WIDE 1024
#define CTRL_L        0x0c

static const char help[] =
	MARK "Keys\n"
	"q       end\n"
	"h, ?    this text, and back\n"
	"s       order of the requests: by rate, busy, p99, name\n"
	"+, -    twice, or half the delay\n"
	"space   ask at once; ^L paints all anew\n"
	"\n"
	MARK "Columns\n"
	"FOR      since when the link is up, or down; how long a request waits\n"
	"OUT, IN  messages and bytes of data, each second\n"
	"CACHED   pages of that node's shard in this node's cache\n"
	"WAIT     requests here that wait for that node, which is away\n"
	"BUSY     mean number of such requests under way\n"
	"CHANGED  of a contended file: pages that another node took, and that requests here took\n"
	"         back to change them; READ: to read them\n"
	"\n"
	"`weft waits` names the remedy for waits. weft(8) has more.\n";

/* Draws a line, cut at the end of the screen. */
static void draw_line(int row, const char *text, size_t length)
{
	bool title = length && *text == *MARK;
	wchar_t wide[LINE_MAX_WIDE];
	mbstate_t state = {0};
	int count = 0, columns = 0;

	text += title;
	length -= title;
	while (length > 0 && count < LINE_MAX_WIDE) {
		size_t n = mbrtowc(&wide[count], text, length, &state);
		int width;

		if (n == 0 || n > length) { /* a byte of no character */
			state = (mbstate_t){0};
			wide[count] = L'?';
			n = 1;
		}
		width = wcwidth(wide[count]);
		if (width < 0) {
			wide[count] = L'?';
			width = 1;
		}
		if (columns + width > COLS)
			break;
		columns += width;
		count++;
		text += n;
		length -= n;
	}
	if (title)
		attron(A_BOLD);
	mvaddnwstr(row, 0, wide, count);
	if (title)
		attroff(A_BOLD);
}

static void draw_text(const char *text)
{
	erase();
	for (int row = 0; *text && row < LINES; row++) {
		size_t length = strcspn(text, "\n");

		draw_line(row, text, length);
		text += length + (text[length] == '\n');
	}
	refresh();
}

/* Makes the text in memory, because functions of other files print on stdout. */
static void draw_top(const struct top *t)
{
	FILE *out = stdout, *memory;
	char *text = NULL;
	size_t length = 0;

	memory = open_memstream(&text, &length);
	if (!memory)
		return;
	table_set_width((unsigned)COLS);
	stdout = memory;
	top_print(t, MARK);
	fclose(memory);
	stdout = out;
	if (text)
		draw_text(text);
	free(text);
}

/* Asks the daemon. Other daemons that do not answer must not be told on the screen. */
static int ask_quietly(struct top *t)
{
	FILE *errors = stderr, *quiet = fopen("/dev/null", "we");
	int code;

	if (quiet)
		stderr = quiet;
	code = top_ask(t);
	stderr = errors;
	if (quiet)
		fclose(quiet);
	return code;
}

static double clock_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

enum next { NEXT_ROUND, NEXT_END };

/* Handles keys until the time of the next round. */
static enum next keys_until(struct top *t, double until)
{
	bool helps = false;
	double left;

	while ((left = until - clock_s()) > 0 || helps) {
		int key;

		timeout(helps ? 3600000 : (int)(left * 1000) + 1);
		key = getch();
		if (key == 'q' || key == 'Q')
			return NEXT_END;
		if (key == ' ' && !helps)
			return NEXT_ROUND;
		if (key == KEY_RESIZE || key == CTRL_L)
			clearok(curscr, TRUE); /* paint all anew */
		if (key == 's')
			t->sort = (enum top_sort)((t->sort + 1) % TOP_SORTS);
		else if (key == '+')
			t->interval_s = MIN(2 * t->interval_s, INTERVAL_MAX);
		else if (key == '-')
			t->interval_s = MAX(t->interval_s / 2, INTERVAL_MIN);
		else if (key == 'h' || key == '?')
			helps = !helps;
		else if (helps && key != KEY_RESIZE && key != CTRL_L && key != ERR)
			helps = false;
		if (helps)
			draw_text(help);
		else if (key != ERR)
			draw_top(t);
	}
	return NEXT_ROUND;
}

static int screen_begin(SCREEN **out)
{
	const char *term = getenv("TERM");

	*out = newterm(NULL, stdout, stdin);
	if (!*out)
		return weft_wrong("weft top",
			"the terminal \"%s\" is not known, or cannot move its cursor; use -b",
			term ? term : "");
	set_term(*out);
	cbreak();
	noecho();
	keypad(stdscr, TRUE);
	curs_set(0);
	return 0;
}

int top_screen(struct top *t, unsigned rounds)
{
	SCREEN *screen;
	int code = top_ask(t); /* before the screen is cleared, so that its errors are seen */

	if (code) {
		fprintf(stderr, "weft top: %s: %s\n", t->title, t->error.text);
		return code;
	}
	code = screen_begin(&screen);
	if (code)
		return code;
	for (unsigned i = 1;; i++) {
		double until = clock_s() + t->interval_s;

		draw_top(t);
		if (i == rounds || keys_until(t, until) == NEXT_END)
			break;
		(void)ask_quietly(t); /* an error is shown with the last numbers */
	}
	endwin();
	delscreen(screen);
	return 0;
}
