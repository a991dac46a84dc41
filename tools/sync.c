/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft sync: what sync(2) would do, if the kernel passed it on. First the kernel gives
 * the dirty pages of mappings to the daemon, then the daemon makes everything durable.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "tools/tools.h"

static int flush_mappings(const char *directory)
{
	int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
	int ret = fd < 0 ? -errno : 0;

	if (ret == 0 && syncfs(fd) < 0)
		ret = -errno;
	if (fd >= 0)
		close(fd);
	return ret;
}

int weft_sync(int argc, char **argv)
{
	json_t *identity = NULL, *answer;
	const char *directory;
	int fd;
	int ret;

	if (argc != 2 || argv[1][0] == '-') {
		fputs("Usage: weft sync DIR|STORE|LABEL|UUID\n"
		      "\n"
		      "Makes everything done in the volume so far durable; returns when "
		      "it is.\n"
		      "\n"
		      "Example:\n"
		      "  weft sync /mnt/weft\n",
			argc == 2 && strcmp(argv[1], "--help") == 0 ? stdout : stderr);
		return argc == 2 && strcmp(argv[1], "--help") == 0 ? 0 : 1;
	}
	fd = client_find(argv[1], &identity);
	if (fd < 0) {
		fprintf(stderr,
			"weft sync: %s: no running weftd of this user serves it\n",
			argv[1]);
		return 2;
	}
	directory = json_string_value(json_object_get(identity, "mount_point"));
	ret = directory ? flush_mappings(directory) : -EPROTO;
	client_be_patient(fd);
	answer = ret == 0 ? client_ask(fd, "sync") : NULL;
	if (!answer)
		fprintf(stderr, "weft sync: %s: %s\n", argv[1],
			ret < 0 ? strerror(-ret)
				: "could not be made durable; see weftd's messages");
	ret = answer ? 0 : 1;
	json_decref(answer);
	json_decref(identity);
	close(fd);
	return ret;
}
