/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Output that is printed again and again.
 *
 * An output is collected in memory and then written at once, so that the screen does not flicker.
 * Signals end the process in their handler, because it may be waiting for a daemon.
 */
#include "tools/watch.h"

#include <errno.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <termios.h>
#include <time.h>
#include <unistd.h>
#include <wchar.h>

#include "fs/daemonize.h"
#include "tools/table.h"
#include "tools/tools.h"

#define SECONDS_LEAST 0.1
#define SECONDS_MOST  3600.0

int watch_interval(const char *who, const char *option, const char *text, double *seconds)
{
	char *end;

	errno = 0;
	*seconds = strtod(text, &end);
	if (!*text || *end || errno || !isfinite(*seconds) || *seconds < SECONDS_LEAST ||
		*seconds > SECONDS_MOST)
		return weft_wrong(who,
			"%s: \"%s\" is no interval; write seconds from 0.1 to 3600, like 2 or "
			"0.5",
			option, text);
	return 0;
}

/* ---- the terminal --------------------------------------------------------------------------- */

static struct termios before; /* the terminal's settings */
static volatile sig_atomic_t keys_on, resumed;

/* Makes keys readable one by one, without an echo. */
static void keys_begin(void)
{
	struct termios now;

	if (!isatty(STDIN_FILENO) || tcgetattr(STDIN_FILENO, &now) < 0)
		return;
	if (!keys_on)
		before = now;
	now = before;
	now.c_lflag &= ~(tcflag_t)(ICANON | ECHO);
	now.c_cc[VMIN] = 1;
	now.c_cc[VTIME] = 0;
	keys_on = tcsetattr(STDIN_FILENO, TCSANOW, &now) == 0;
}

static void keys_end(void)
{
	if (keys_on)
		tcsetattr(STDIN_FILENO, TCSANOW, &before);
	keys_on = 0;
}

static void end_by_signal(int signal_number)
{
	keys_end();
	signal(signal_number, SIG_DFL);
	raise(signal_number);
}

static void note_resumed(int signal_number)
{
	resumed = 1;
}

static void signals_take(void)
{
	static const int ends[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT};
	struct sigaction end = {.sa_handler = end_by_signal};
	struct sigaction goes_on = {.sa_handler = note_resumed};

	for (unsigned i = 0; i < ARRAY_SIZE(ends); i++)
		sigaction(ends[i], &end, NULL);
	sigaction(SIGCONT, &goes_on, NULL);
}

/* Returns the rows and columns; false: stdout is no terminal that can be painted on. */
static bool screen_size(unsigned *rows, unsigned *columns)
{
	const char *term = getenv("TERM");
	struct winsize size = {0};

	if (!isatty(STDOUT_FILENO) || !term || !*term || strcmp(term, "dumb") == 0)
		return false;
	if (ioctl(STDOUT_FILENO, TIOCGWINSZ, &size) < 0 || !size.ws_row || !size.ws_col)
		size = (struct winsize){.ws_row = 24, .ws_col = 80};
	*rows = size.ws_row;
	*columns = size.ws_col;
	return true;
}

/* ---- painting ------------------------------------------------------------------------------- */

/* Returns the number of columns that a line of text takes. */
static unsigned text_columns(const char *text, size_t length)
{
	mbstate_t state = {0};
	unsigned columns = 0;

	while (length > 0) {
		wchar_t c;
		size_t n = mbrtowc(&c, text, length, &state);
		int width;

		if (n == 0 || n > length) { /* a byte of no character */
			state = (mbstate_t){0};
			n = 1;
			c = L'?';
		}
		width = wcwidth(c);
		columns += width > 0 ? (unsigned)width : 0;
		text += n;
		length -= n;
	}
	return columns;
}

/* Paints the lines that the screen has room for. */
static void screen_paint(const char *text, unsigned rows, unsigned columns)
{
	unsigned used = 0;

	fputs("\033[H", stdout);
	while (*text) {
		size_t length = strcspn(text, "\n");
		unsigned width = text_columns(text, length);

		used += MAX((width + columns - 1) / columns, 1u);
		if (used >= rows)
			break;
		fprintf(stdout, "%.*s\033[K\n", (int)length, text);
		text += length + (text[length] == '\n');
	}
	fputs("\033[J", stdout);
}

static void print_time(const char *note)
{
	time_t now = time(NULL);
	struct tm local;
	char text[32] = "";

	if (localtime_r(&now, &local))
		strftime(text, sizeof(text), "%F %T", &local);
	printf("%s%s\n", text, note);
}

static int show_on_screen(
	int (*show)(void *arg), void *arg, unsigned rows, unsigned columns)
{
	FILE *out = stdout, *errors = stderr, *memory;
	char *text = NULL;
	size_t length = 0;
	int code;

	memory = open_memstream(&text, &length);
	if (!memory)
		return show(arg);
	stdout = stderr = memory;
	table_set_width(columns);
	print_time("  (q ends)");
	code = show(arg);
	fclose(memory);
	stdout = out;
	stderr = errors;
	if (text)
		screen_paint(text, rows, columns);
	free(text);
	return code;
}

static int show_once(int (*show)(void *arg), void *arg)
{
	unsigned rows, columns;
	int code;

	if (screen_size(&rows, &columns))
		return show_on_screen(show, arg, rows, columns);
	print_time("");
	code = show(arg);
	putchar('\n');
	return code;
}

/* ---- waiting -------------------------------------------------------------------------------- */

static int64_t clock_ms(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (int64_t)t.tv_sec * 1000 + t.tv_nsec / 1000000;
}

/* Returns false if the user has ended it. */
static bool wait_next(int64_t until)
{
	struct pollfd keys = {.fd = keys_on ? STDIN_FILENO : -1, .events = POLLIN};
	int64_t left;
	char key;

	while ((left = until - clock_ms()) > 0) {
		if (resumed) { /* the shell has set the terminal to its own liking */
			resumed = 0;
			keys_begin();
			return true;
		}
		if (poll(&keys, 1, (int)left) <= 0)
			continue;
		if (read(STDIN_FILENO, &key, 1) != 1)
			keys.fd = -1; /* its terminal has gone */
		else if (key == 'q' || key == 'Q')
			return false;
	}
	return true;
}

int watch_run(double seconds, int (*show)(void *arg), void *arg)
{
	unsigned rows, columns;
	bool screen = screen_size(&rows, &columns);
	int64_t next = clock_ms();
	int code = 0;

	signals_take();
	if (screen) {
		keys_begin();
		fputs("\033[H\033[J", stdout);
	}
	for (bool first = true;; first = false) {
		int shown = show_once(show, arg);

		if (fflush(stdout) != 0 || ferror(stdout))
			break; /* main() tells it */
		if (first && shown) {
			code = shown;
			break;
		}
		next = MAX(next + (int64_t)(seconds * 1000), clock_ms());
		if (!wait_next(next))
			break;
	}
	keys_end();
	return code;
}
