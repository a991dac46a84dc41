/* SPDX-License-Identifier: Apache-2.0 */
/* weft waits: the requests of a mount that wait, and for which nodes. */
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/daemonize.h"
#include "tools/table.h"
#include "tools/tools.h"
#include "tools/waits.h"

/* The daemon looks at locks for a second; it answers later if a node holds it up. */
#define LOOK_SECONDS 3u

static const char usage[] =
	"Usage: weft waits [DIR|STORE|FILE|LABEL|UUID] [--json]\n"
	"\n"
	"Lists the requests that have waited for more than a second: the process, the file, the\n"
	"node that it waits for, and what to do. Without a name, for all mounts of this user.\n"
	"\n"
	"  --json  one JSON object (a list of them without a name)\n"
	"\n"
	"Examples:\n"
	"  weft waits /mnt/weft\n"
	"  sudo weft waits\n"
	"\n"
	"Exit codes: 0; 1 wrong usage; 2 nothing of that name is mounted, or its daemon does\n"
	"not answer.\n";

/* ---- texts ---------------------------------------------------------------------------------- */

/* "cat[1234]" */
static const char *print_process(const json_t *o, char *out, size_t cap)
{
	const char *command = client_text(o, "command");
	double process = client_number(o, "process") ?: client_number(o, "thread");

	if (process == 0)
		snprintf(out, cap, "-"); /* of the kernel, or another namespace */
	else
		snprintf(out, cap, "%s[%.0f]", *command ? command : "?", process);
	return out;
}

/* The path, if it is known; else the number of the inode. */
static const char *print_file(const json_t *paths, const json_t *o, char *out, size_t cap)
{
	json_int_t ino = json_integer_value(json_object_get(o, "inode"));
	const char *name = client_text(o, "name"), *path = inode_path(paths, ino);

	if (!ino)
		snprintf(out, cap, "-");
	else if (path && *name)
		snprintf(out, cap, "%s/%s", path, name);
	else if (path)
		snprintf(out, cap, "%s", path);
	else if (*name)
		snprintf(out, cap, "%s in inode %" JSON_INTEGER_FORMAT, name, ino);
	else
		snprintf(out, cap, "inode %" JSON_INTEGER_FORMAT, ino);
	return out;
}

static const json_t *node_of(const json_t *answer, double id)
{
	const json_t *nodes = json_object_get(answer, "nodes");
	json_t *one;
	size_t i;

	json_array_foreach((json_t *)nodes, i, one)
		if (client_number(one, "id") == id)
			return one;
	return NULL;
}

/* Adds ", node 3 (away), node 2" to the text. */
static void add_nodes(const json_t *answer, const json_t *nodes, char *out, size_t cap)
{
	json_t *id;
	size_t i;

	json_array_foreach((json_t *)nodes, i, id)
	{
		const json_t *node = node_of(answer, json_number_value(id));
		const char *state =
			json_is_true(json_object_get(node, "here"))	   ? ", this one"
			: json_is_false(json_object_get(node, "up")) ? ", which is away"
								   : "";
		size_t used = strlen(out);

		snprintf(out + used, cap - used, "%snode %.0f%s", i ? "; " : " of ",
			json_number_value(id), state);
	}
}

static bool is_page(const char *need)
{
	return strcmp(need, "page") == 0 || strcmp(need, "file page") == 0;
}

static const char *print_need(const json_t *answer, const json_t *r, char *out, size_t cap)
{
	static const struct {
		const char *need, *text;
	} texts[] = {
		{"page", "a page of metadata"},
		{"file page", "a page of the file"},
		{"answer", "an answer"},
		{"log room", "room in the log"},
		{"log", "a write to the log"},
	};
	const char *need = client_text(r, "for"), *text = "weftd at work";

	for (unsigned i = 0; i < ARRAY_SIZE(texts); i++)
		if (strcmp(need, texts[i].need) == 0)
			text = texts[i].text;
	snprintf(out, cap, "%s%s", text,
		json_object_get(answer, "node") || !is_page(need) ? "" : " from the store");
	add_nodes(answer, json_object_get(r, "nodes"), out, cap);
	return out;
}

/* "write lock of process 77 on node 1, and 2 more" */
static const char *print_holder(const json_t *lock, char *out, size_t cap)
{
	const json_t *held = json_object_get(lock, "held");
	double count = client_number(lock, "in_the_way"), looked = client_number(lock, "looked_s");
	size_t used;

	if (!held) {
		snprintf(out, cap, "its turn behind earlier requests");
		return out;
	}
	used = (size_t)snprintf(out, cap, "%s lock of process %.0f on node %.0f",
		client_text(held, "type"), client_number(held, "process"),
		client_number(held, "node"));
	if (count > 1 && used < cap)
		used += (size_t)snprintf(out + used, cap - used, ", and %.0f more", count - 1);
	if (looked >= LOOK_SECONDS + 1 && used < cap)
		snprintf(out + used, cap - used, " (seen %.0f s ago)", looked);
	return out;
}

/* ---- one mount ------------------------------------------------------------------------------ */

void waits_paths(const json_t *answer, json_t *paths)
{
	static const char *const lists[] = {"requests", "locks"};
	json_int_t inodes[256];
	unsigned count = 0;
	json_t *one;
	size_t i;

	for (unsigned l = 0; l < ARRAY_SIZE(lists); l++)
		json_array_foreach(json_object_get(answer, lists[l]), i, one)
			if (count < ARRAY_SIZE(inodes) && json_object_get(one, "inode"))
				inodes[count++] =
					json_integer_value(json_object_get(one, "inode"));
	inode_paths_find(paths, client_text(answer, "mount_point"),
		client_text(answer, "device_number"), inodes, count);
}

static void print_row(struct table *t, const json_t *one, const json_t *paths)
{
	char process[96], file[2 * PATH_MAX + 300], time[16];

	table_row(t);
	table_cell(t, "%s", print_process(one, process, sizeof(process)));
	if (json_object_get(one, "request"))
		table_cell(t, "%s", client_text(one, "request"));
	else
		table_cell(t, "%s %s lock", client_text(one, "kind"),
			client_text(one, "type"));
	table_cell(t, "%s", format_duration(time, 1e9 * client_number(one, "waits_s")));
	table_cell(t, "%s", print_file(paths, one, file, sizeof(file)));
}

void waits_table(const json_t *answer, const json_t *paths, unsigned max)
{
	struct table *t = table_new();
	char need[400];
	json_t *one;
	size_t i;

	table_column(t, "PROCESS", TABLE_TEXT);
	table_column(t, "REQUEST", TABLE_TEXT);
	table_column(t, "FOR", TABLE_NUMBER);
	table_column(t, "FILE", TABLE_LONG);
	table_column(t, "WAITS FOR", TABLE_LONG);
	json_array_foreach(json_object_get(answer, "requests"), i, one)
	{
		if (max == 0)
			break;
		max--;
		print_row(t, one, paths);
		table_cell(t, "%s", print_need(answer, one, need, sizeof(need)));
	}
	json_array_foreach(json_object_get(answer, "locks"), i, one)
	{
		if (max == 0)
			break;
		max--;
		print_row(t, one, paths);
		table_cell(t, "%s", print_holder(one, need, sizeof(need)));
	}
	table_print(t, 0, stdout);
	table_free(t);
}

/* Prints the state of a node that requests wait for, and the remedy. */
static void print_node(const json_t *node)
{
	const char *remedy = client_text(node, "remedy");
	double id = client_number(node, "id");
	char time[16];

	printf("node %.0f (%s) ", id, client_text(node, "addresses"));
	if (json_is_true(json_object_get(node, "here"))) {
		puts("is this one: `weft status DIR` shows its store and log, dmesg its device");
	} else if (!json_is_false(json_object_get(node, "up"))) {
		puts("is connected: `weft waits` there says what holds it up");
	} else {
		printf("is away for %s",
			format_duration(time, 1e9 * client_number(node, "away_s")));
		if (*client_text(node, "why"))
			printf(" (%s)", client_text(node, "why"));
		if (*remedy)
			printf(". Start it again; if that is impossible, stop its machine, "
			       "then: %s\n",
				remedy);
		else
			puts(". Start it again; nothing else helps, since the data is in "
			     "its store");
	}
}

static void print_answer(const json_t *answer, const json_t *paths)
{
	double requests = client_number(answer, "requests_all");
	double locks = client_number(answer, "locks_all");
	const json_t *nodes = json_object_get(answer, "nodes");
	size_t listed = json_array_size(json_object_get(answer, "requests")) +
			json_array_size(json_object_get(answer, "locks"));
	json_t *one;
	size_t i;

	printf("%s", client_text(answer, "mount_point"));
	if (json_object_get(answer, "node"))
		printf(", node %.0f", client_number(answer, "node"));
	if (requests + locks == 0) {
		puts(": nothing waits");
		return;
	}
	printf(": %s%s%s %s", requests ? format_count(requests, "request") : "",
		requests && locks ? " and " : "",
		locks ? format_count(locks, "lock request") : "",
		requests + locks == 1 ? "waits" : "wait");
	if ((double)listed < requests + locks)
		printf("; the %zu oldest", listed);
	puts("");
	waits_table(answer, paths, UINT_MAX);
	json_array_foreach((json_t *)nodes, i, one)
		print_node(one);
}

/* Has the daemon look at locks and directories first. If that takes long, the answer to the second
 * question is of an earlier look. It comes at once, over another connection. */
static json_t *ask_waits(const char *name, json_t **looked, struct weft_error *err)
{
	json_t *identity = NULL, *answer = NULL;
	int fd = client_find_inside(name, &identity, err);

	json_decref(identity);
	if (fd < 0)
		return NULL;
	client_limit(fd, LOOK_SECONDS);
	*looked = client_ask(fd, "look", err);
	if (!*looked && err->code != -EREMOTEIO) { /* the rest of an answer may be on its way */
		close(fd);
		fd = client_find_inside(name, &identity, err);
		json_decref(identity);
		if (fd < 0)
			return NULL;
	}
	client_limit(fd, CLIENT_SECONDS);
	answer = client_ask(fd, "waits", err);
	close(fd);
	return answer;
}

/* ---- all mounts ----------------------------------------------------------------------------- */

/* Adds the daemon's identity to the list. */
static bool note_daemon(void *list, struct client *c)
{
	json_array_append(list, c->identity);
	return false;
}

/* `name`: for client_find; `title`: for people. With `list`, adds the answer to it instead of
 * printing it. */
static int waits_of(const char *name, const char *title, bool json, json_t *list)
{
	struct weft_error err = {0};
	json_t *looked = NULL, *answer = ask_waits(name, &looked, &err);
	json_t *paths = json_object();

	if (!answer) {
		fprintf(stderr, "weft waits: %s: %s\n", title, err.text);
	} else if (list) {
		json_array_append(list, answer);
	} else if (json) {
		json_dumpf(answer, stdout, JSON_INDENT(2));
		putchar('\n');
	} else {
		inode_paths_add(paths, client_text(answer, "mount_point"),
			json_object_get(looked, "paths"));
		waits_paths(answer, paths);
		client_clean(paths);
		client_clean(answer);
		print_answer(answer, paths);
	}
	json_decref(paths);
	json_decref(looked);
	json_decref(answer);
	return answer ? 0 : EXIT_FAILED;
}

static int waits_of_all(bool json)
{
	json_t *daemons = json_array(), *answers = json_array(), *one;
	int code = 0;
	size_t i;

	client_each(note_daemon, daemons);
	json_array_foreach(daemons, i, one)
		if (waits_of(client_text(one, "store_uuid"), client_text(one, "mount_point"),
			    json, json ? answers : NULL))
			code = EXIT_FAILED;
	if (json) {
		json_dumpf(answers, stdout, JSON_INDENT(2));
		putchar('\n');
	} else if (!json_array_size(daemons)) {
		printf("No weft volume of this user is mounted%s.\n",
			geteuid() ? "; use `sudo weft waits` for those of root" : "");
	}
	json_decref(answers);
	json_decref(daemons);
	return code;
}

int weft_waits(int argc, char **argv)
{
	static const struct option words[] = {
		{"json", no_argument, NULL, 'j'}, {"help", no_argument, NULL, 'h'}, {0}};
	bool json = false;
	int c;

	while ((c = getopt_long(argc, argv, "jh", words, NULL)) != -1) {
		if (c != 'j')
			return weft_option(usage, c, argv, words);
		json = true;
	}
	if (weft_operands(usage, argc, argv, 0, 1, "DIR|STORE|FILE|LABEL|UUID"))
		return EXIT_USAGE;
	return argc > optind ? waits_of(argv[optind], argv[optind], json, NULL)
			     : waits_of_all(json);
}
