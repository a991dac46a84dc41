/* SPDX-License-Identifier: Apache-2.0 */
/* weft top: the work of a node, as it changes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "fs/daemonize.h"
#include "tools/top.h"
#include "tools/waits.h"
#include "tools/watch.h"

#define ASK_SECONDS  3u  /* for an answer; the screen shows the last numbers meanwhile */
#define LOOK_SECONDS 5.0 /* from one look of the daemon at locks and directories to the next */
#define LATE_SECONDS 60.0
#define SEARCH_SHARE 20.0 /* a search for open files may take that part of the time */
#define INODES_MAX   64u

static const char usage[] =
	"Usage: weft top [OPTION...] [DIR|STORE|FILE|LABEL|UUID]\n"
	"\n"
	"Shows a mounted volume's nodes and links, requests by kind with rates and latencies, the\n"
	"cache, files and directories that nodes contend for, and what waits. Needs a name only\n"
	"if several are mounted.\n"
	"\n"
	"  -b, --batch             print text, for a pipe or a file\n"
	"  -n, --rounds N          end after N rounds\n"
	"  -d, --delay SECONDS     from one round to the next (default: 2)\n"
	"  -s, --sort KEY          order of the requests: rate (default), busy, p99, name\n"
	"\n"
	"Keys: q ends, h helps, s sorts, + and - change the delay, space asks at once.\n"
	"\n"
	"Exit codes: 0; 1 wrong usage; 2 nothing of that name is mounted, or its daemon does\n"
	"not answer.\n";

static double clock_s(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

/* ---- asking --------------------------------------------------------------------------------- */

/* A connection on which an answer is missing cannot be used again. */
static json_t *ask_limited(struct top *t, const char *cmd, struct weft_error *err)
{
	json_t *identity = NULL, *answer;

	*err = (struct weft_error){0};
	if (t->fd < 0) {
		t->fd = client_find_inside(t->name, &identity, err);
		json_decref(identity);
	}
	if (t->fd < 0)
		return NULL;
	client_limit(t->fd, ASK_SECONDS);
	answer = client_ask(t->fd, cmd, err);
	if (!answer && err->code != -EREMOTEIO) {
		close(t->fd);
		t->fd = -1;
	}
	if (answer)
		client_clean(answer);
	return answer;
}

static const json_t *contended_inodes(const struct top *t)
{
	return json_object_get(json_object_get(t->now, "contended"), "inodes");
}

/* Returns true if the daemon is to look: at locks, or at the path of an inode. */
static bool look_is_wanted(const struct top *t)
{
	json_t *one;
	size_t i;

	if (json_array_size(json_object_get(t->waits, "locks")))
		return true;
	json_array_foreach(contended_inodes(t), i, one)
		if (!inode_path(t->paths,
			    json_integer_value(json_object_get(one, "inode"))))
			return true;
	return false;
}

static void look_now(struct top *t)
{
	struct weft_error err;
	json_t *looked = ask_limited(t, "look", &err);

	inode_paths_add(t->paths, client_text(t->now, "mount_point"),
		json_object_get(looked, "paths"));
	t->look_s = clock_s() + (looked ? LOOK_SECONDS : LATE_SECONDS);
	json_decref(looked);
}

static void search_paths(struct top *t)
{
	double begin = clock_s();
	json_int_t inodes[INODES_MAX];
	unsigned count = 0;
	json_t *one;
	size_t i;

	json_array_foreach(contended_inodes(t), i, one)
		if (count < INODES_MAX)
			inodes[count++] = json_integer_value(json_object_get(one, "inode"));
	inode_paths_find(t->paths, client_text(t->now, "mount_point"),
		client_text(t->now, "device_number"), inodes, count);
	waits_paths(t->waits, t->paths);
	client_clean(t->paths);
	t->search_s = clock_s() + SEARCH_SHARE * (clock_s() - begin);
}

/* Another daemon has the volume now: its counters begin anew. */
static bool is_other_start(const json_t *a, const json_t *b)
{
	return client_number(a, "pid") != client_number(b, "pid") ||
	       client_number(a, "uptime_s") > client_number(b, "uptime_s");
}

int top_ask(struct top *t)
{
	json_t *status = ask_limited(t, "status", &t->error), *waits = NULL;
	struct weft_error err;

	if (!status)
		return EXIT_FAILED;
	json_decref(t->before);
	t->before = t->now;
	t->before_s = t->now_s;
	t->now = status;
	t->now_s = clock_s();
	if (t->before && is_other_start(t->before, t->now)) {
		json_decref(t->before);
		t->before = NULL;
		json_object_clear(t->paths);
	}
	if (json_object_size(t->paths) > 16 * INODES_MAX) /* of files that may be gone */
		json_object_clear(t->paths);
	waits = ask_limited(t, "waits", &err);
	json_decref(t->waits);
	t->waits = waits;
	if (t->now_s >= t->search_s)
		search_paths(t);
	if (t->now_s >= t->look_s && look_is_wanted(t))
		look_now(t);
	return 0;
}

/* ---- the command ---------------------------------------------------------------------------- */

static int run_batch(struct top *t, unsigned rounds)
{
	int code = 0;

	for (unsigned i = 0; !rounds || i < rounds; i++) {
		if (i)
			usleep((useconds_t)(t->interval_s * 1e6));
		code = top_ask(t);
		if (code)
			fprintf(stderr, "weft top: %s: %s\n", t->title, t->error.text);
		if (code && !t->now)
			break;
		if (!code) {
			if (i)
				putchar('\n');
			top_print(t, "");
		}
		if (fflush(stdout) != 0)
			break; /* main() tells it */
	}
	return code;
}

struct only {
	unsigned count;
	char uuid[64]; /* of the first one's store */
	char mount_point[PATH_MAX];
};

static bool note_only(void *arg, struct client *c)
{
	struct only *o = arg;

	if (o->count++)
		return false;
	snprintf(o->uuid, sizeof(o->uuid), "%s", client_text(c->identity, "store_uuid"));
	snprintf(o->mount_point, sizeof(o->mount_point), "%s",
		client_text(c->identity, "mount_point"));
	return false;
}

/* Finds the volume if none is named. */
static int find_only(struct only *o)
{
	client_each(note_only, o);
	if (o->count == 1)
		return 0;
	if (o->count == 0) {
		fprintf(stderr, "weft top: no running weftd of this user%s\n",
			geteuid() ? "; use `sudo weft top` for those of root" : "");
		return EXIT_FAILED;
	}
	return weft_wrong("weft top",
		"%u volumes are mounted: name one (`weft status` lists them)", o->count);
}

static int parse_rounds(const char *text, unsigned *rounds)
{
	unsigned long n;
	char *end;

	errno = 0;
	n = strtoul(text, &end, 10);
	if (*text < '0' || *text > '9' || *end || errno || n == 0 || n > 1000000000)
		return weft_wrong("weft top",
			"-n: \"%s\" is no number of rounds; write 1 to 1000000000", text);
	*rounds = (unsigned)n;
	return 0;
}

static int parse_sort(const char *text, enum top_sort *sort)
{
	const char *known[TOP_SORTS + 1] = {NULL};

	for (unsigned i = 0; i < TOP_SORTS; i++)
		known[i] = top_sort_name((enum top_sort)i);
	*sort = top_sort_of(text);
	return *sort == TOP_SORTS ? weft_wrong_word("weft top", "order", text, known) : 0;
}

static void top_free(struct top *t)
{
	if (t->fd >= 0)
		close(t->fd);
	json_decref(t->before);
	json_decref(t->now);
	json_decref(t->waits);
	json_decref(t->paths);
}

int weft_top(int argc, char **argv)
{
	static const struct option words[] = {{"batch", no_argument, NULL, 'b'},
		{"rounds", required_argument, NULL, 'n'},
		{"delay", required_argument, NULL, 'd'},
		{"sort", required_argument, NULL, 's'}, {"help", no_argument, NULL, 'h'},
		{0}};
	struct top t = {.fd = -1, .interval_s = WATCH_SECONDS};
	struct only only = {0};
	unsigned rounds = 0;
	bool batch = false;
	int code = 0, c;

	while (!code && (c = getopt_long(argc, argv, "bn:d:s:h", words, NULL)) != -1) {
		if (c == 'b')
			batch = true;
		else if (c == 'n')
			code = parse_rounds(optarg, &rounds);
		else if (c == 'd')
			code = watch_interval(argv[0], "-d", optarg, &t.interval_s);
		else if (c == 's')
			code = parse_sort(optarg, &t.sort);
		else
			return weft_option(usage, c, argv, words);
	}
	if (code || weft_operands(usage, argc, argv, 0, 1, "DIR|STORE|FILE|LABEL|UUID"))
		return EXIT_USAGE;
	if (!batch && !(isatty(STDOUT_FILENO) && isatty(STDIN_FILENO)))
		return weft_wrong(argv[0], "input or output is no terminal; use -b");
	if (argc == optind)
		code = find_only(&only);
	if (code)
		return code;
	t.name = argc > optind ? argv[optind] : only.uuid;
	t.title = argc > optind ? argv[optind] : only.mount_point;
	t.paths = json_object();
	code = batch ? run_batch(&t, rounds) : top_screen(&t, rounds);
	top_free(&t);
	return code;
}
