/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft cluster new: writes a cluster file and a key.
 *
 * The reader of all cluster files reads the text back before any file is written. So the text is
 * right, and messages about wrong arguments are the reader's. No file is overwritten. If the second
 * file fails, the first is removed.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/cluster/cluster.h"
#include "engine/rt/rt.h"
#include "fs/daemonize.h"
#include "tools/tools.h"

struct node {
	char host[CLUSTER_VALUE_BYTES]; /* with its port, if one was given */
	const char *store;              /* NULL: a client */
};

struct request {
	const char *folder;
	const char *name;
	struct node nodes[CLUSTER_NODE_MAX];
	unsigned count;
	char file[PATH_MAX], key[PATH_MAX];
};

static int wrong_argument(const char *what, const char *argument)
{
	fprintf(stderr, "weft cluster new: %s: %s; `weft cluster --help` tells more\n",
		argument, what);
	return EXIT_USAGE;
}

/* ---- the command line -------------------------------------------------------------- */

/* Adds a node. The host is the first `length` bytes of `text`. Returns 0 or the exit code. */
static int add_node(struct request *r, const char *text, size_t length, const char *store)
{
	struct node *n = &r->nodes[r->count];

	if (r->count == CLUSTER_NODE_MAX)
		return wrong_argument("is one node too many: 63 at most", text);
	if (!length || length >= sizeof(n->host))
		return wrong_argument("has no host, or one that is too long", text);
	snprintf(n->host, sizeof(n->host), "%.*s", (int)length, text);
	n->store = store;
	r->count++;
	return 0;
}

/* HOST:STORE. The store's path begins with the first slash behind a colon. */
static int add_storage(struct request *r, const char *text)
{
	const char *store = strstr(text, ":/");

	if (!store)
		return wrong_argument(
			"is not HOST:STORE, like alpha:/dev/nvme0n1p4", text);
	return add_node(r, text, (size_t)(store - text), store + 1);
}

/* Returns 0, or 1 + the exit code. */
static int cluster_new_parse_options(int argc, char **argv, struct request *r)
{
	static const struct option words[] = {{"directory", required_argument, NULL, 'd'},
		{"client", required_argument, NULL, 'c'},
		{"help", no_argument, NULL, 'h'}, {0}};
	const char *clients[CLUSTER_NODE_MAX];
	unsigned client_count = 0;
	int c, rc = 0;

	r->folder = ".";
	while ((c = getopt_long(argc, argv, "d:c:h", words, NULL)) != -1) {
		if (c == 'd')
			r->folder = optarg;
		else if (c == 'c' && client_count < ARRAY_SIZE(clients))
			clients[client_count++] = optarg;
		else if (c == 'c')
			return 1 +
			       wrong_argument("is one node too many: 63 at most", optarg);
		else
			return 1 + weft_option(cluster_usage, c, argv, words);
	}
	if (weft_operands(cluster_usage, argc, argv, 2, argc, "NAME HOST:STORE..."))
		return 1 + EXIT_USAGE;
	r->name = argv[optind++];
	while (!rc && optind < argc)
		rc = add_storage(r, argv[optind++]);
	for (unsigned i = 0; !rc && i < client_count; i++)
		rc = add_node(r, clients[i], strlen(clients[i]), NULL);
	return rc ? 1 + rc : 0;
}

/* ---- the text ---------------------------------------------------------------------- */

static bool has_port(const char *host)
{
	const char *colon = strchr(host, ':');

	if (*host == '[')
		return strstr(host, "]:") != NULL;
	return colon && !strchr(colon + 1, ':');
}

/* Of several nodes on one host, each except the first needs a port of its own. */
static void print_address(FILE *f, const struct request *r, unsigned index)
{
	const char *host = r->nodes[index].host;
	bool bare_v6 = *host != '[' && strchr(host, ':');
	unsigned before = 0;

	for (unsigned i = 0; i < index; i++)
		before += strcasecmp(r->nodes[i].host, host) == 0;
	if (has_port(host) || !before)
		fprintf(f, "address = %s\n", host);
	else
		fprintf(f, "address = %s%s%s:%u\n", bare_v6 ? "[" : "", host,
			bare_v6 ? "]" : "", CLUSTER_PORT_DEFAULT + before);
}

static void print_file(FILE *f, const struct request *r)
{
	uint8_t uuid[UUID_BYTES];
	char text[UUID_TEXT];

	rt_random_bytes(uuid, sizeof(uuid));
	uuid_of_random(uuid);
	uuid_print(uuid, text);
	fprintf(f,
		"; A cluster of weft: the same file on every node, with the key beside "
		"it.\n"
		"; docs/operations.md and weft-cluster(8) say what may be written here.\n"
		"[volume]\n"
		"name = %s\n"
		"uuid = %s\n"
		"key = %s.key\n",
		r->name, text, r->name);
	for (unsigned i = 0; i < r->count; i++) {
		fprintf(f, "\n[node %u]\n", i + 1);
		if (!r->nodes[i].store)
			fputs("role = client\n", f);
		print_address(f, r, i);
		if (r->nodes[i].store)
			fprintf(f, "store = %s\n", r->nodes[i].store);
	}
}

/* Returns the file's text, checked; the caller frees it. NULL after a message. */
static char *text_make(const struct request *r)
{
	struct weft_error err = {0};
	struct cluster *c = NULL;
	char *text = NULL;
	size_t length = 0;
	FILE *f = open_memstream(&text, &length);

	if (f)
		print_file(f, r);
	if (!f || fclose(f) != 0)
		weft_error(&err, -ENOMEM, "no memory");
	else
		cluster_parse(&c, text, length, r->file, &err);
	cluster_close(c);
	if (!err.code)
		return text;
	fprintf(stderr, "weft cluster new: it would not be a cluster file: %s\n",
		err.text);
	free(text);
	return NULL;
}

/* ---- the files --------------------------------------------------------------------- */

static int fail_errno(const char *path, const char *what)
{
	fprintf(stderr, "weft cluster new: %s: %s: %s\n", path, what, strerror(errno));
	return EXIT_FAILED;
}

/* Makes a file, durably. Fails if it exists. */
static int file_write(const char *path, const char *text, mode_t mode)
{
	size_t length = strlen(text);
	int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, mode);

	if (fd < 0)
		return fail_errno(
			path, errno == EEXIST ? "nothing is overwritten" : "making it");
	if (write(fd, text, length) == (ssize_t)length && fsync(fd) == 0) {
		close(fd);
		return 0;
	}
	fail_errno(path, "writing it");
	close(fd);
	unlink(path);
	return EXIT_FAILED;
}

static int key_write(const struct request *r)
{
	uint8_t key[CLUSTER_KEY_BYTES];
	char text[2 * CLUSTER_KEY_BYTES + 2];
	int rc;

	rt_random_bytes(key, sizeof(key));
	hex_print(key, sizeof(key), text);
	strcat(text, "\n");
	rc = file_write(r->key, text, 0600);
	explicit_bzero(key, sizeof(key));
	explicit_bzero(text, sizeof(text));
	return rc;
}

static void say_next(const struct request *r)
{
	printf("Wrote %s, and the key %s: keep that secret.\n"
	       "\n"
	       "Next:\n"
	       "  1. Copy both into one folder on each node, say /etc/weft.\n"
	       "  2. On each with a store: mkfs.weft -c /etc/weft/%s.cluster\n"
	       "  3. On each: weft cluster check /etc/weft/%s.cluster\n"
	       "              weft mount /etc/weft/%s.cluster DIRECTORY\n",
		r->file, r->key, r->name, r->name, r->name);
}

int cluster_new(int argc, char **argv)
{
	struct request r = {0};
	char *text;
	int rc = cluster_new_parse_options(argc, argv, &r);

	if (rc)
		return rc - 1;
	if (snprintf(r.file, sizeof(r.file), "%s/%s.cluster", r.folder, r.name) >=
			(int)sizeof(r.file) ||
		snprintf(r.key, sizeof(r.key), "%s/%s.key", r.folder, r.name) >=
			(int)sizeof(r.key))
		return wrong_argument("is too long", r.folder);
	text = text_make(&r);
	if (!text)
		return EXIT_USAGE;
	rc = key_write(&r);
	if (!rc) {
		rc = file_write(r.file, text, 0644);
		if (rc)
			unlink(r.key);
	}
	free(text);
	if (!rc)
		say_next(&r);
	return rc;
}
