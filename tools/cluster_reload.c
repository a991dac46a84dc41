/* SPDX-License-Identifier: Apache-2.0 */
/* weft cluster reload: running daemons read their cluster files again (fs/reload.c). */
#include <errno.h>
#include <getopt.h>
#include <stdio.h>
#include <unistd.h>

#include "fs/daemonize.h"
#include "tools/tools.h"

#define DAEMONS_MAX 256

struct found {
	unsigned count;
	struct client client[DAEMONS_MAX];
};

/* Those that have a cluster file; each is asked when all have been found. */
static bool keep_client(void *arg, struct client *c)
{
	struct found *f = arg;

	if (!*client_text(c->identity, "cluster_file") || f->count == DAEMONS_MAX)
		return false;
	f->client[f->count++] = (struct client){c->fd, json_incref(c->identity)};
	c->fd = -1;
	return false;
}

static void print_answer(const struct client *c, const json_t *answer)
{
	const json_t *added = json_object_get(answer, "added");

	printf("node %lld (%s): ",
		(long long)json_integer_value(json_object_get(answer, "node")),
		client_text(c->identity, "mount_point"));
	for (size_t i = 0; i < json_array_size(added); i++)
		printf("%s%lld", i ? ", " : "added node ",
			(long long)json_integer_value(json_array_get(added, i)));
	puts(json_array_size(added) ? "" : "nothing was added");
}

static int reload_client(struct client *c)
{
	struct weft_error err = {0};
	json_t *answer;

	client_limit(c->fd, 0); /* names are looked up */
	answer = client_ask(c->fd, "reload", &err);
	if (answer)
		print_answer(c, answer);
	else
		fprintf(stderr, "weft cluster reload: %s: %s\n",
			client_text(c->identity, "mount_point"), err.text);
	json_decref(answer);
	close(c->fd);
	json_decref(c->identity);
	return answer ? 0 : EXIT_FAILED;
}

static int reload_one(const char *name)
{
	struct weft_error err = {0};
	struct client c = {0};

	c.fd = client_find(name, &c.identity, &err);
	if (c.fd >= 0)
		return reload_client(&c);
	fprintf(stderr, "weft cluster reload: %s: %s\n", name, err.text);
	return EXIT_FAILED;
}

static int reload_all(void)
{
	struct found f = {0};
	int code = 0;

	client_each(keep_client, &f);
	for (unsigned i = 0; i < f.count; i++)
		code = reload_client(&f.client[i]) ? EXIT_FAILED : code;
	if (f.count)
		return code;
	fprintf(stderr,
		"weft cluster reload: no weftd of this user serves a volume that has a "
		"cluster file%s\n",
		geteuid() ? "; `sudo weft cluster reload` asks those of root" : "");
	return EXIT_FAILED;
}

int cluster_reload(int argc, char **argv)
{
	static const struct option words[] = {{"help", no_argument, NULL, 'h'}, {0}};
	int c = getopt_long(argc, argv, "h", words, NULL), code = 0;

	if (c != -1)
		return weft_option(cluster_usage, c, argv, words);
	if (optind == argc)
		return reload_all();
	for (; optind < argc; optind++)
		code = reload_one(argv[optind]) ? EXIT_FAILED : code;
	return code;
}
