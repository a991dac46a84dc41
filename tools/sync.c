/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft sync: what sync(2) would do, if the kernel passed it on. First the kernel gives
 * the dirty pages of mappings to the daemon, then the daemon makes everything durable.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "fs/daemonize.h"
#include "tools/tools.h"

static int flush_mappings(const char *directory)
{
	int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int rc = fd < 0 ? -errno : 0;

	if (rc == 0 && syncfs(fd) < 0)
		rc = -errno;
	if (fd >= 0)
		close(fd);
	return rc;
}

static const char usage[] =
	"Usage: weft sync DIR|STORE|LABEL|UUID\n"
	"\n"
	"Makes everything done in the volume so far durable; returns when it is.\n"
	"\n"
	"Example:\n"
	"  weft sync /mnt/weft\n"
	"\n"
	"Exit codes: 0, 1 wrong usage, 2 it is not durable: nothing of that name is "
	"mounted, "
	"or it\n"
	"failed.\n";

static int sync_volume(int fd, const json_t *identity, struct weft_error *err)
{
	int rc = flush_mappings(client_text(identity, "mount_point"));
	json_t *answer;

	if (rc < 0)
		return weft_error(err, rc, "stores through mappings were not written: %s",
			strerror(-rc));
	client_limit(fd, 0);
	answer = client_ask(fd, "sync", err);
	json_decref(answer);
	return answer ? 0 : -EIO;
}

int weft_sync(int argc, char **argv)
{
	static const struct option words[] = {{"help", no_argument, NULL, 'h'}, {0}};
	struct weft_error err = {0};
	json_t *identity = NULL;
	int c = getopt_long(argc, argv, "h", words, NULL);
	int fd;
	int rc;

	if (c != -1)
		return weft_option(usage, c, argv, words);
	if (weft_operands(usage, argc, argv, 1, 1, "DIR|STORE|FILE|LABEL|UUID"))
		return EXIT_USAGE;
	fd = client_find(argv[optind], &identity, &err);
	rc = fd < 0 ? fd : sync_volume(fd, identity, &err);
	if (rc < 0)
		fprintf(stderr, "weft sync: %s: %s\n", argv[optind], err.text);
	if (fd >= 0)
		close(fd);
	json_decref(identity);
	return rc < 0 ? EXIT_FAILED : 0;
}
