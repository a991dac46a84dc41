/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft scrub: has the daemon of a mounted store read all of it for damage.
 *
 * The daemon does the work. This starts it and watches it, so an interrupt ends the watch alone.
 */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "engine/common/text.h"
#include "fs/daemonize.h"
#include "tools/tools.h"

#define WATCH_NS    200000000 /* between two looks */
#define EXIT_DAMAGE 4         /* as fsck's */

static const char usage[] =
	"Usage: weft scrub [--background | --status | --stop] [OPTION...] "
	"DIR|STORE|LABEL|UUID\n"
	"\n"
	"Reads every page in use and every descriptor of a mounted store, and names the files of\n"
	"those that are damaged. Shows the progress until the end; an interrupt ends only the\n"
	"display. A scrub that was stopped goes on where it was, as after a restart of weftd.\n"
	"Of a volume of several nodes, this node's store is read: run it on each of them.\n"
	"\n"
	"  --background  start it and return\n"
	"  --status      show how far it is, or how the last one ended\n"
	"  --stop        stop it; it can go on later\n"
	"  --rate SIZE   read at most so much a second (64M; at least 64K); also of one that runs\n"
	"  --restart     begin from the start\n"
	"  --json        print the state as JSON, once at the end\n"
	"\n"
	"Examples:\n"
	"  weft scrub /mnt/weft\n"
	"  weft scrub --background --rate=20M /mnt/weft\n"
	"  weft scrub --status /mnt/weft\n"
	"\n"
	"Exit codes: 0 no damage so far; 1 wrong usage; 2 it failed: nothing of that name is\n"
	"mounted, or the node has no store; 4 damage was found.\n";

enum mode { MODE_WATCH, MODE_BACKGROUND, MODE_STATUS, MODE_STOP };

struct request {
	enum mode mode;
	uint64_t rate_bytes;
	bool anew, json;
};

static volatile sig_atomic_t interrupted;

static void note_interrupt(int number)
{
	(void)number;
	interrupted = 1;
}

static bool is_running(const json_t *scrub)
{
	return strcmp(client_text(scrub, "state"), "running") == 0;
}

/* Of the space in use: free space takes no time. That changes meanwhile, so 100 is for the end. */
static double percent_done(const json_t *scrub)
{
	double used = client_number(scrub, "used_bytes");
	double done = client_number(scrub, "pages") * PAGE_SIZE;

	if (strcmp(client_text(scrub, "state"), "ended") == 0)
		return 100;
	return used > 0 && done < 0.99 * used ? 100 * done / used : 99;
}

/* ---- output ---------------------------------------------------------------------- */

static void print_progress(const json_t *scrub, const char *end)
{
	char read[SIZE_TEXT], rate[SIZE_TEXT];

	size_print((uint64_t)(client_number(scrub, "pages") * PAGE_SIZE), read);
	size_print((uint64_t)client_number(scrub, "rate_bytes"), rate);
	printf("%5.1f%%, %s read, at most %s a second, %.0f damaged%s", percent_done(scrub),
		read, rate, client_number(scrub, "damaged"), end);
	fflush(stdout);
}

static void print_when(const char *what, double when_s)
{
	time_t at = (time_t)when_s;
	char text[40] = "";

	if (when_s > 0 && strftime(text, sizeof(text), "%F %T", localtime(&at)))
		printf("%s %s\n", what, text);
}

static void print_state(const json_t *scrub)
{
	const json_t *findings = json_object_get(scrub, "findings"), *one;
	double damaged = client_number(scrub, "damaged");
	size_t i;

	if (strcmp(client_text(scrub, "state"), "none") == 0) {
		puts("the store has not been scrubbed");
		return;
	}
	printf("%-8s ", client_text(scrub, "state"));
	print_progress(scrub, "\n");
	print_when("began   ", client_number(scrub, "began_s"));
	print_when("ended   ", client_number(scrub, "ended_s"));
	if (client_number(scrub, "healed") != 0)
		printf("%.0f damaged images were written again from memory\n",
			client_number(scrub, "healed"));
	json_array_foreach((json_t *)findings, i, one)
		printf("DAMAGED  %s\n", json_string_value(one));
	if (damaged > (double)json_array_size(findings))
		printf("The log of weftd names %s%.0f that are damaged.\n",
			json_array_size(findings) ? "all of the " : "the ", damaged);
}

/* ---- the command ----------------------------------------------------------------- */

/* Returns the member `scrub` of the status, as a new reference, or NULL with a text. */
static json_t *scrub_status(int fd, struct weft_error *err)
{
	json_t *status = client_ask(fd, "status", err);
	json_t *scrub = json_incref(json_object_get(status, "scrub"));

	if (status && !scrub)
		weft_error(err, -ENOENT,
			"this node has no store; run it on the nodes that have one");
	json_decref(status);
	return scrub;
}

/* Shows the progress until the end, or an interrupt. */
static json_t *watch_scrub(int fd, json_t *scrub, bool quiet, struct weft_error *err)
{
	const struct timespec pause = {.tv_nsec = WATCH_NS};
	bool shows = !quiet && isatty(STDOUT_FILENO);

	signal(SIGINT, note_interrupt);
	while (scrub && is_running(scrub) && !interrupted) {
		if (shows)
			print_progress(scrub, "   \r");
		nanosleep(&pause, NULL);
		json_decref(scrub);
		scrub = scrub_status(fd, err);
	}
	if (shows)
		printf("%*s\r", 78, "");
	return scrub;
}

static json_t *perform_request(int fd, const struct request *r, struct weft_error *err)
{
	char line[128];
	json_t *scrub;

	if (r->mode == MODE_STATUS)
		return scrub_status(fd, err);
	snprintf(line, sizeof(line),
		"{\"cmd\":\"scrub\",\"rate\":%llu,\"anew\":%s,\"stop\":%s}\n",
		(unsigned long long)r->rate_bytes, r->anew ? "true" : "false",
		r->mode == MODE_STOP ? "true" : "false");
	scrub = client_ask_line(fd, line, err);
	return r->mode == MODE_WATCH ? watch_scrub(fd, scrub, r->json, err) : scrub;
}

static int report_scrub(const struct request *r, const json_t *scrub)
{
	if (r->json) {
		json_dumpf(scrub, stdout, JSON_INDENT(2));
		putchar('\n');
	} else {
		print_state(scrub);
	}
	if (r->mode == MODE_WATCH && is_running(scrub))
		fprintf(stderr, "weft scrub: it goes on in the background; --stop stops it\n");
	return client_number(scrub, "damaged") != 0 ? EXIT_DAMAGE : 0;
}

static int parse_request(struct request *r, int argc, char **argv)
{
	static const struct option words[] = {{"help", no_argument, NULL, 'h'},
		{"background", no_argument, NULL, 'b'}, {"status", no_argument, NULL, 's'},
		{"stop", no_argument, NULL, 'x'}, {"rate", required_argument, NULL, 'r'},
		{"restart", no_argument, NULL, 'a'}, {"json", no_argument, NULL, 'j'}, {0}};
	unsigned modes = 0;
	int c;

	while ((c = getopt_long(argc, argv, "h", words, NULL)) != -1) {
		if (c == 'r' && (size_parse(optarg, &r->rate_bytes) < 0 ||
					r->rate_bytes < 64 << 10 || r->rate_bytes > 1ull << 50))
			return weft_wrong(argv[0],
				"--rate %s is not a size from 64K to 1P", optarg);
		else if (c == 'a')
			r->anew = true;
		else if (c == 'j')
			r->json = true;
		else if (c == 'b' || c == 's' || c == 'x') {
			r->mode = c == 'b'   ? MODE_BACKGROUND
				  : c == 's' ? MODE_STATUS
					     : MODE_STOP;
			modes++;
		} else if (c != 'r')
			return weft_option(usage, c, argv, words) ? EXIT_USAGE : -1;
	}
	if (modes > 1)
		return weft_wrong(
			argv[0], "only one of --background, --status and --stop is possible");
	if (r->mode >= MODE_STATUS && (r->anew || r->rate_bytes))
		return weft_wrong(argv[0], "--rate and --restart are for a start");
	return weft_operands(usage, argc, argv, 1, 1, "DIR|STORE|FILE|LABEL|UUID");
}

int weft_scrub(int argc, char **argv)
{
	struct weft_error err = {0};
	struct request r = {0};
	json_t *identity = NULL, *scrub = NULL;
	int code = parse_request(&r, argc, argv);
	int fd;

	if (code)
		return code < 0 ? 0 : code;
	fd = client_find(argv[optind], &identity, &err);
	if (fd >= 0)
		scrub = perform_request(fd, &r, &err);
	if (scrub)
		code = report_scrub(&r, scrub);
	else
		fprintf(stderr, "weft scrub: %s: %s\n", argv[optind], err.text);
	if (fd >= 0)
		close(fd);
	json_decref(identity);
	json_decref(scrub);
	return scrub ? code : EXIT_FAILED;
}
