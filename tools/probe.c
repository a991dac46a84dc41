/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft probe: says which volume a device or file has a store of, as blkid(8) does for
 * filesystems that libblkid knows; for udev(7) too. Reads two pages, locks nothing.
 *
 * What the superblock says is not trusted: a label goes through libblkid's encoding, so that it
 * cannot add variables of its own.
 */
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <blkid/blkid.h>

#include "engine/common/text.h"
#include "engine/store/store.h"
#include "fs/daemonize.h"
#include "tools/tools.h"

static const char usage[] =
	"Usage: weft probe [--udev] STORE...\n"
	"\n"
	"Prints the label, the UUID of the volume and that of the store, for each device\n"
	"or file that is the store of a weft volume, and nothing for others.\n"
	"\n"
	"  --udev     as variables for udev(7): ID_FS_TYPE=weft, ID_FS_UUID=, "
	"ID_FS_LABEL=\n"
	"\n"
	"Examples:\n"
	"  weft probe /dev/nvme0n1p4 /srv/data.weft\n"
	"\n"
	"Exit codes: 0, 1 wrong usage, 2 one of them has no store, or cannot be read.\n";

static bool read_superblock(int fd, off_t at, struct disk_superblock *sb)
{
	return at >= 0 && pread(fd, sb, sizeof(*sb), at) == (ssize_t)sizeof(*sb) &&
	       store_superblock_whole(sb);
}

/* The first copy, or that at the end. 0; -ENODATA: none is whole; or why it cannot be read. */
static int find_superblock(const char *path, struct disk_superblock *sb)
{
	struct stat st;
	off_t bytes;
	int rc = -ENODATA;
	int fd;

	/* before open(2), which would wait on a FIFO */
	if (stat(path, &st) < 0)
		return -errno;
	if (!S_ISBLK(st.st_mode) && !S_ISREG(st.st_mode))
		return -ENOTBLK;
	fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
	if (fd < 0)
		return -errno;
	bytes = lseek(fd, 0, SEEK_END);
	if (read_superblock(fd, 0, sb) ||
		read_superblock(
			fd, bytes - bytes % (off_t)PAGE_SIZE - (off_t)PAGE_SIZE, sb))
		rc = 0;
	close(fd);
	return rc;
}

/* ID_FS_NAME as is but for blanks, and ID_FS_NAME_ENC for names of links. */
static void print_variable(const char *name, const char *value)
{
	char safe[256], encoded[512];

	if (!*value || blkid_safe_string(value, safe, sizeof(safe)) ||
		blkid_encode_string(value, encoded, sizeof(encoded)))
		return;
	printf("ID_FS_%s=%s\nID_FS_%s_ENC=%s\n", name, safe, name, encoded);
}

static void print_udev(const char *label, const char *volume, const char *store,
	const struct disk_superblock *sb)
{
	printf("ID_FS_TYPE=weft\nID_FS_USAGE=filesystem\nID_FS_VERSION=%u\n",
		sb->disk_version);
	print_variable("LABEL", label);
	print_variable("UUID", volume);
	print_variable("UUID_SUB", store);
}

static void print_line(
	const char *path, const char *label, const char *volume, const char *store)
{
	char safe[256];

	printf("%s:", path);
	if (*label && blkid_safe_string(label, safe, sizeof(safe)) == 0)
		printf(" LABEL=\"%s\"", safe);
	printf(" UUID=\"%s\" UUID_SUB=\"%s\" TYPE=\"weft\"\n", volume, store);
}

static int probe_store(const char *path, bool udev)
{
	char volume[UUID_TEXT], store[UUID_TEXT],
		label[sizeof((struct disk_superblock){0}.label) + 1];
	struct disk_superblock sb;
	int rc = find_superblock(path, &sb);

	if (rc == -ENODATA)
		return EXIT_FAILED;
	if (rc < 0) {
		fprintf(stderr, "weft probe: %s: %s\n", path,
			rc == -ENOTBLK ? "is neither a block device nor a regular file"
					: strerror(-rc));
		return EXIT_FAILED;
	}
	snprintf(label, sizeof(label), "%.*s", (int)sizeof(sb.label), sb.label);
	uuid_print(sb.volume_uuid, volume);
	uuid_print(sb.store_uuid, store);
	if (udev)
		print_udev(label, volume, store, &sb);
	else
		print_line(path, label, volume, store);
	return 0;
}

int weft_probe(int argc, char **argv)
{
	static const struct option words[] = {
		{"udev", no_argument, NULL, 'u'}, {"help", no_argument, NULL, 'h'}, {0}};
	bool udev = false;
	int c, code = 0;

	while ((c = getopt_long(argc, argv, "h", words, NULL)) != -1) {
		if (c != 'u')
			return weft_option(usage, c, argv, words);
		udev = true;
	}
	if (weft_operands(usage, argc, argv, 1, udev ? 1 : argc, "STORE"))
		return EXIT_USAGE;
	for (; optind < argc; optind++)
		code = probe_store(argv[optind], udev) ? EXIT_FAILED : code;
	return code;
}
