/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft cluster add: a section for a new client at the end of a cluster file.
 *
 * What is there stays as it is, byte for byte. The new text is read as all cluster files are,
 * and compared as running daemons do, before it takes the old one's place, at once.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/cluster/cluster.h"
#include "engine/rt/rt.h"
#include "fs/daemonize.h"
#include "tools/tools.h"

struct add {
	const char *client; /* HOST[:PORT] */
	unsigned host;      /* of its log; 0: not said */
	char path[PATH_MAX];
	struct stat st; /* of the file */
	char *text;     /* as it is */
	size_t length;
	struct cluster *now;
	unsigned id;     /* the new node's */
	unsigned log_at; /* and its host's */
};

/* ---- what is there --------------------------------------------------------------------- */

static int text_read(struct add *a, struct weft_error *err)
{
	FILE *f = fopen(a->path, "re");
	int rc = f && fstat(fileno(f), &a->st) == 0 ? 0 : -errno;

	a->text = malloc(CLUSTER_FILE_BYTES + 1);
	if (!rc && !a->text)
		rc = -ENOMEM;
	if (!rc) {
		a->length = fread(a->text, 1, CLUSTER_FILE_BYTES + 1, f);
		rc = ferror(f) ? -EIO : 0;
	}
	if (f)
		fclose(f);
	if (rc)
		return weft_error(err, rc, "reading %s: %s", a->path, strerror(-rc));
	return cluster_parse(&a->now, a->text, a->length, a->path, err);
}

/* Ids are never used again: one above all that are there. */
static int id_choose(struct add *a, struct weft_error *err)
{
	const struct cluster_member *m = NULL;

	while ((m = cluster_next(a->now, m)))
		a->id = m->id;
	a->id++;
	if (a->id <= CLUSTER_NODE_MAX)
		return 0;
	return weft_error(err, -ENOSPC,
		"%s: the id %u is taken, which is the highest: write the section by "
		"hand, with an id that no node ever had",
		a->path, CLUSTER_NODE_MAX);
}

/* ---- the section ----------------------------------------------------------------------- */

static bool has_port(const char *host)
{
	const char *colon = strchr(host, ':');

	if (*host == '[')
		return strstr(host, "]:") != NULL;
	return colon && !strchr(colon + 1, ':');
}

/* Where others of the host are, the lowest that is free behind the default. */
static unsigned port_choose(const struct add *a, const char *host)
{
	const struct cluster_member *m = NULL;
	unsigned port = CLUSTER_PORT_DEFAULT;

	while ((m = cluster_next(a->now, m)))
		for (unsigned i = 0; i < m->address_count; i++)
			if (strcasecmp(m->address[i].host, host) == 0 &&
				m->address[i].port >= port)
				port = m->address[i].port + 1u;
	return port;
}

static void print_address(FILE *f, const struct add *a)
{
	struct cluster_address address = {0};
	size_t length = strlen(a->client);
	char text[CLUSTER_VALUE_BYTES + 16];

	if (has_port(a->client)) {
		fprintf(f, "address = %s\n", a->client);
		return;
	}
	if (*a->client == '[' && length > 2)
		snprintf(address.host, sizeof(address.host), "%.*s", (int)length - 2,
			a->client + 1);
	else
		snprintf(address.host, sizeof(address.host), "%s", a->client);
	address.port = (uint16_t)port_choose(a, address.host);
	if (address.port == CLUSTER_PORT_DEFAULT)
		snprintf(text, sizeof(text), "%s", a->client);
	else
		cluster_address_print(&address, text, sizeof(text));
	fprintf(f, "address = %s\n", text);
}

/* The whole new text, checked; the caller frees it. NULL with an error. */
static char *text_make(struct add *a, struct weft_error *err)
{
	struct cluster *then = NULL;
	uint64_t added;
	char *text = NULL;
	size_t length = 0;
	FILE *f = open_memstream(&text, &length);

	if (!f) {
		weft_error(err, -ENOMEM, "no memory");
		return NULL;
	}
	fwrite(a->text, 1, a->length, f);
	fprintf(f, "%s\n[node %u]\nrole = client\n",
		a->text[a->length - 1] == '\n' ? "" : "\n", a->id);
	print_address(f, a);
	if (a->host)
		fprintf(f, "host = %u\n", a->host);
	if (fclose(f) != 0)
		weft_error(err, -ENOMEM, "no memory");
	else if (cluster_parse(&then, text, length, a->path, err) == 0)
		(void)cluster_compare(a->now, then, &added, err);
	if (!err->code)
		a->log_at = cluster_member(then, a->id)->host;
	cluster_close(then);
	if (!err->code)
		return text;
	free(text);
	return NULL;
}

/* ---- the file -------------------------------------------------------------------------- */

/* All of it or nothing takes the old one's place, also when the machine stops. */
static int file_replace(const struct add *a, const char *text, struct weft_error *err)
{
	size_t length = strlen(text);
	char path[PATH_MAX + 8];
	int fd, rc = 0;

	snprintf(path, sizeof(path), "%s.XXXXXX", a->path);
	fd = mkostemp(path, O_CLOEXEC);
	if (fd < 0)
		return weft_error(err, -errno, "making a file beside %s: %s", a->path,
			strerror(errno));
	if (write(fd, text, length) != (ssize_t)length ||
		fchown(fd, a->st.st_uid, a->st.st_gid) < 0 ||
		fchmod(fd, a->st.st_mode & 07777) < 0 || fsync(fd) < 0 ||
		rename(path, a->path) < 0)
		rc = errno ? -errno : -EIO;
	close(fd);
	if (!rc)
		return 0;
	unlink(path);
	return weft_error(err, rc, "writing %s: %s", a->path, strerror(-rc));
}

static void say_next(const struct add *a)
{
	printf("Added client %u to %s.\n"
	       "\n"
	       "Next:\n"
	       "  1. Copy it to all nodes, and with the key to the new one.\n"
	       "  2. On each that is mounted: weft cluster reload\n"
	       "     On node %u first, which will have its log.\n"
	       "  3. On the new one: weft cluster check %s\n"
	       "                     weft mount %s DIRECTORY\n",
		a->id, a->path, a->log_at, a->path, a->path);
}

static int add_client(struct add *a, struct weft_error *err)
{
	char *text;
	int rc = text_read(a, err);

	if (!rc)
		rc = id_choose(a, err);
	if (rc)
		return rc;
	text = text_make(a, err);
	if (!text)
		return err->code;
	rc = file_replace(a, text, err);
	free(text);
	return rc;
}

/* ---- the command ----------------------------------------------------------------------- */

/* 0, or 1 + the exit code. */
static int cluster_add_parse_options(int argc, char **argv, struct add *a)
{
	static const struct option words[] = {{"client", required_argument, NULL, 'c'},
		{"host", required_argument, NULL, 'o'}, {"help", no_argument, NULL, 'h'},
		{0}};
	uint64_t number;
	int c;

	while ((c = getopt_long(argc, argv, "c:h", words, NULL)) != -1) {
		if (c == 'c' && !a->client)
			a->client = optarg;
		else if (c == 'o' && number_parse(optarg, &number) == 0 && number >= 1 &&
			 number <= CLUSTER_NODE_MAX)
			a->host = (unsigned)number;
		else if (c == 'c')
			return 1 + weft_wrong(argv[0],
					   "--client %s: one client at a time", optarg);
		else if (c == 'o')
			return 1 + weft_wrong(argv[0], "--host %s: must be 1 to %u",
					   optarg, CLUSTER_NODE_MAX);
		else
			return 1 + weft_option(cluster_usage, c, argv, words);
	}
	if (weft_operands(cluster_usage, argc, argv, 1, 1, "FILE"))
		return 1 + EXIT_USAGE;
	if (!a->client || !*a->client)
		return 1 + weft_wrong(argv[0], "--client HOST is missing");
	return 0;
}

int cluster_add_node(int argc, char **argv)
{
	struct weft_error err = {0};
	struct add a = {0};
	int rc = cluster_add_parse_options(argc, argv, &a);

	if (rc)
		return rc - 1;
	if (!realpath(argv[optind], a.path))
		rc = weft_error(&err, -errno, "%s: %s", argv[optind], strerror(errno));
	else
		rc = add_client(&a, &err);
	cluster_close(a.now);
	free(a.text);
	if (rc)
		fprintf(stderr, "weft cluster add: %s\n", err.text);
	else
		say_next(&a);
	return rc ? EXIT_FAILED : 0;
}
