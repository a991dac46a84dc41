/* SPDX-License-Identifier: Apache-2.0 */
/*
 * mkfs.weft: makes a volume on a file or block device, or one node's store of a cluster's volume.
 *
 * A thin main over volume_format. Its own work is to protect existing data. It locks the store,
 * asks libblkid for its content, and reads regular files. It changes nothing before all checks and
 * the layout are right. If it fails, it removes the files that it made, unless another process uses
 * them by then.
 */
#include <errno.h>
#include <fcntl.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <blkid/blkid.h>

#include "engine/cluster/cluster.h"
#include "engine/common/text.h"
#include "engine/volume/volume.h"

#define CLIENTS_SPARE 8u /* clients that no cluster file has yet */

enum { EXIT_OK = 0, EXIT_FAILED = 1, EXIT_USAGE = 2 };

struct request {
	const char *path;         /* of the store */
	const char *cluster_path; /* of the cluster file; NULL: a volume without one */
	unsigned node;            /* its node; 0: found by this machine's addresses */
	bool node_said;
	bool clients_said; /* their number was given */
	struct cluster *cluster;
	struct store_format format;
	bool force;
	bool dry_run;
	bool quiet;
};

/* The way to the store, and the steps to undo after a failure. */
struct target {
	int fd; /* of the store; with --dry-run of a stand-in for a file that would be made or
		 * grown */
	char name[64]; /* for rt_disk_open, if it is a stand-in */
	bool stand_in;
	bool is_device;
	bool created;
	uint64_t old_bytes;       /* of a regular file */
	uint64_t allocated_bytes; /* of it, at first */
};

static const char usage_text[] =
	"Usage: mkfs.weft [options] STORE\n"
	"       mkfs.weft [options] -c FILE [--node N]\n"
	"Make a weft volume on STORE, a block device or a regular file; or make the store\n"
	"that the cluster file FILE names for this node.\n"
	"\n"
	"  -c, --cluster FILE      cluster file; weft cluster new writes one\n"
	"  -N, --node N            number of this node in it; default: found by the\n"
	"                          addresses of this machine\n"
	"  -s, --size N[KMGT]      size of the store; makes or enlarges a regular file\n"
	"  -L, --label LABEL       label of the volume, up to 63 bytes\n"
	"  -k, --checksum gmac|sha256|blake2b\n"
	"                          checksum of pages and log records; default: gmac\n"
	"  -l, --log-size N[KMGT]  size of the log; default 1/32 of the store, 4M to 1G\n"
	"  -C, --clients N         room for the logs of N clients; default: the clients\n"
	"                          of this node in the cluster file, and up to 8 more\n"
	"  -S, --client-log N[KMGT]  size of each; default that of the log, 5M to 64M\n"
	"  -f, --force             overwrite whatever STORE contains\n"
	"  -n, --dry-run           print the result, write nothing\n"
	"  -q, --quiet             print errors only\n"
	"  -h, --help              print this text\n"
	"  -V, --version           version of weft and of its disk format\n"
	"\n"
	"Examples:\n"
	"  mkfs.weft /dev/nvme0n1p4\n"
	"  mkfs.weft --size 10G --label scratch /srv/scratch.weft\n"
	"  mkfs.weft --dry-run /dev/nvme0n1p4\n"
	"  mkfs.weft -c /etc/weft/scratch.cluster --node 2\n"
	"\n"
	"Exit status: 0 made, 1 failed, 2 wrong usage.\n";

static int mkfs_error(const char *path, const char *what)
{
	fprintf(stderr, "mkfs.weft: %s: %s\n", path, what);
	return EXIT_FAILED;
}

static int fail_errno(const char *path, const char *what)
{
	fprintf(stderr, "mkfs.weft: %s: %s: %s\n", path, what, strerror(errno));
	return EXIT_FAILED;
}

static int usage_error(const char *what, const char *value)
{
	fprintf(stderr, "mkfs.weft: %s%s%s\nTry 'mkfs.weft --help'.\n", what,
		value ? ": " : "", value ? value : "");
	return EXIT_USAGE;
}

/* ---- the command line ------------------------------------------------------------ */

/* A size that a store or log can have: not 0. */
static bool parse_size(const char *text, uint64_t *out)
{
	return size_parse(text, out) == 0 && *out > 0;
}

static bool parse_checksum(const char *text, enum disk_checksum *out)
{
	static const struct {
		const char *name;
		enum disk_checksum kind;
	} kinds[] = {{"gmac", DISK_CHECKSUM_GMAC}, {"sha256", DISK_CHECKSUM_SHA256},
		{"blake2b", DISK_CHECKSUM_BLAKE2B}};

	for (size_t i = 0; i < ARRAY_SIZE(kinds); i++) {
		if (strcmp(text, kinds[i].name) == 0) {
			*out = kinds[i].kind;
			return true;
		}
	}
	return false;
}

/* Returns the number of bytes of the UTF-8 character at p, or 0 if there is none or it cannot be
 * printed. */
static size_t utf8_length(const unsigned char *p)
{
	size_t len = p[0] < 0x80 ? 1 : p[0] >= 0xf0 ? 4 : p[0] >= 0xe0 ? 3 : 2;

	if (p[0] < 0x20 || p[0] == 0x7f || (p[0] >= 0x80 && p[0] < 0xc2) || p[0] > 0xf4)
		return 0;
	for (size_t i = 1; i < len; i++)
		if ((p[i] & 0xc0) != 0x80)
			return 0;
	/* Control characters, overlong forms, surrogates, and numbers behind the last one. */
	if ((p[0] == 0xc2 && p[1] < 0xa0) || (p[0] == 0xe0 && p[1] < 0xa0) ||
		(p[0] == 0xed && p[1] >= 0xa0) || (p[0] == 0xf0 && p[1] < 0x90) ||
		(p[0] == 0xf4 && p[1] >= 0x90))
		return 0;
	return len;
}

static bool parse_label(const char *text, char label[64])
{
	if (strlen(text) > 63)
		return false;
	for (const unsigned char *p = (const unsigned char *)text; *p;) {
		size_t len = utf8_length(p);

		if (!len)
			return false;
		p += len;
	}
	strcpy(label, text);
	return true;
}

static bool parse_node(const char *text, struct request *r)
{
	uint64_t node;

	if (number_parse(text, &node) < 0 || !node || node > CLUSTER_NODE_MAX)
		return false;
	r->node = (unsigned)node;
	r->node_said = true;
	return true;
}

static bool parse_clients(const char *text, struct request *r)
{
	uint64_t count;

	if (number_parse(text, &count) < 0 || count > CLUSTER_NODE_MAX)
		return false;
	r->format.area_count = (uint32_t)count;
	r->clients_said = true;
	return true;
}

/* Reads the rest of the command line: a store, or a cluster file that names it. */
static int parse_store(int argc, char **argv, struct request *r)
{
	int left = argc - optind;

	if (r->node && !r->cluster_path)
		return usage_error("--node is for cluster files: give one with -c", NULL);
	if ((r->clients_said || r->format.area_bytes) && !r->cluster_path)
		return usage_error("clients need a cluster file: give one with -c", NULL);
	if (r->cluster_path && left)
		return usage_error("the cluster file names the store", argv[optind]);
	if (r->cluster_path && r->format.label[0])
		return usage_error("the cluster file names the volume: no --label", NULL);
	if (!r->cluster_path && left != 1)
		return usage_error(
			left ? "more than one STORE is given" : "no STORE is given",
			left ? argv[optind + 1] : NULL);
	r->path = r->cluster_path ? r->cluster_path : argv[optind];
	return -1;
}

static void print_version(void)
{
	printf("mkfs.weft %s, disk format %u\n", WEFT_VERSION, DISK_VERSION);
}

/* Returns -1 to continue, or the exit status. */
static int mkfs_parse_options(int argc, char **argv, struct request *r)
{
	static const struct option options[] = {
		{"size", required_argument, NULL, 's'},
		{"label", required_argument, NULL, 'L'},
		{"cluster", required_argument, NULL, 'c'},
		{"node", required_argument, NULL, 'N'},
		{"checksum", required_argument, NULL, 'k'},
		{"log-size", required_argument, NULL, 'l'},
		{"clients", required_argument, NULL, 'C'},
		{"client-log", required_argument, NULL, 'S'},
		{"force", no_argument, NULL, 'f'},
		{"dry-run", no_argument, NULL, 'n'},
		{"quiet", no_argument, NULL, 'q'},
		{"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'V'},
		{NULL, 0, NULL, 0},
	};
	int c;

	while ((c = getopt_long(argc, argv, "s:L:c:N:k:l:C:S:fnqhV", options, NULL)) !=
		-1) {
		switch (c) {
		case 's':
			if (!parse_size(optarg, &r->format.store_bytes))
				return usage_error(
					"not a size (a number with K, M, G or T)",
					optarg);
			break;
		case 'L':
			if (!parse_label(optarg, r->format.label))
				return usage_error(
					"not a label (up to 63 bytes of printable UTF-8)",
					optarg);
			break;
		case 'c':
			r->cluster_path = optarg;
			break;
		case 'N':
			if (!parse_node(optarg, r))
				return usage_error("not a node (1 to 63)", optarg);
			break;
		case 'k':
			if (!parse_checksum(optarg, &r->format.checksum_kind))
				return usage_error(
					"not a checksum (gmac, sha256, blake2b)", optarg);
			break;
		case 'l':
			if (!parse_size(optarg, &r->format.log_bytes))
				return usage_error(
					"not a size (a number with K, M, G or T)",
					optarg);
			break;
		case 'C':
			if (!parse_clients(optarg, r))
				return usage_error(
					"not a number of clients (0 to 63)", optarg);
			break;
		case 'S':
			if (!parse_size(optarg, &r->format.area_bytes))
				return usage_error(
					"not a size (a number with K, M, G or T)",
					optarg);
			break;
		case 'f':
			r->force = true;
			break;
		case 'n':
			r->dry_run = true;
			break;
		case 'q':
			r->quiet = true;
			break;
		case 'h':
			fputs(usage_text, stdout);
			return EXIT_OK;
		case 'V':
			print_version();
			return EXIT_OK;
		default:
			fputs("Try 'mkfs.weft --help'.\n", stderr);
			return EXIT_USAGE;
		}
	}
	return parse_store(argc, argv, r);
}

/* ---- the cluster's ---------------------------------------------------------------- */

/* Sets the node's store, with the volume's name, UUID and key. */
static int cluster_apply(struct request *r)
{
	const struct cluster_member *m;
	struct weft_error err = {0};
	int rc;

	rc = cluster_open(&r->cluster, r->cluster_path, 0, &err);
	if (!rc)
		rc = cluster_self(r->cluster, r->node, "--node N", &err);
	if (rc > 0) {
		r->node = (unsigned)rc;
		rc = cluster_volume_key(r->cluster, r->format.key);
		if (rc)
			weft_error(&err, rc, "cannot make the volume's key: %s",
				strerror(-rc));
	}
	if (rc) {
		fprintf(stderr, "mkfs.weft: %s\n", err.text);
		return EXIT_FAILED;
	}
	m = cluster_member(r->cluster, r->node);
	if (m->role == CLUSTER_CLIENT)
		return mkfs_error(r->cluster_path,
			"this node is a client: it has no store, and needs no mkfs.weft");
	strcpy(r->format.label, cluster_name(r->cluster));
	memcpy(r->format.volume_uuid, cluster_volume_uuid(r->cluster), UUID_BYTES);
	r->format.node = (uint16_t)r->node;
	r->format.shard = m->shard;
	if (!r->clients_said) {
		r->format.area_count = cluster_clients_of(r->cluster, r->node);
		r->format.area_spare = CLIENTS_SPARE;
	}
	r->path = cluster_store_here(r->cluster, r->node);
	return EXIT_OK;
}

/* ---- existing content ------------------------------------------------------------ */

static int refuse_content(const char *path, const char *what)
{
	fprintf(stderr,
		"mkfs.weft: %s: %s\n"
		"Nothing was written. If it is not needed any more, use --force.\n",
		path, what);
	return EXIT_FAILED;
}

static int refuse_weft(const char *path, const struct disk_superblock *sb)
{
	char text[160], node[32] = "";

	if (sb->node)
		snprintf(node, sizeof(node), " of node %u", sb->node);
	snprintf(text, sizeof(text), "contains a weft store%s%s%.63s%s", node,
		sb->label[0] ? " labelled '" : "", sb->label, sb->label[0] ? "'" : "");
	return refuse_content(path, text);
}

/* Looks for weft's own superblock at either end: libblkid may not know it. */
static int check_weft(const char *path, int fd, uint64_t size)
{
	const off_t places[2] = {0, (off_t)(size - size % PAGE_SIZE) - (off_t)PAGE_SIZE};
	struct disk_superblock sb;

	for (unsigned i = 0; i < 2; i++) {
		if (places[i] < 0)
			continue;
		if (pread(fd, &sb, sizeof(sb), places[i]) == (ssize_t)sizeof(sb) &&
			sb.magic == DISK_MAGIC_SUPER)
			return refuse_weft(path, &sb);
	}
	return EXIT_OK;
}

static int describe_signature(const char *path, blkid_probe probe)
{
	const char *type = NULL, *label = NULL, *table = NULL, *use = NULL;
	char text[300];

	blkid_probe_lookup_value(probe, "TYPE", &type, NULL);
	blkid_probe_lookup_value(probe, "USAGE", &use, NULL);
	blkid_probe_lookup_value(probe, "LABEL", &label, NULL);
	blkid_probe_lookup_value(probe, "PTTYPE", &table, NULL);
	if (type)
		snprintf(text, sizeof(text), "contains %s %s %s%s%s%s",
			strchr("aeiou", type[0]) ? "an" : "a", type,
			use && strcmp(use, "filesystem") == 0 ? "filesystem"
							      : "signature",
			label ? " labelled '" : "", label ? label : "", label ? "'" : "");
	else
		snprintf(text, sizeof(text), "contains a partition table (%s)",
			table ? table : "of unknown kind");
	return refuse_content(path, text);
}

static int check_signatures(const char *path, int fd)
{
	blkid_probe probe = blkid_new_probe();
	int rc = EXIT_OK;

	if (!probe || blkid_probe_set_device(probe, fd, 0, 0) != 0) {
		blkid_free_probe(probe);
		return mkfs_error(path, "libblkid cannot inspect it; --force skips this check");
	}
	blkid_probe_enable_superblocks(probe, 1);
	blkid_probe_set_superblocks_flags(
		probe, BLKID_SUBLKS_TYPE | BLKID_SUBLKS_LABEL | BLKID_SUBLKS_USAGE);
	blkid_probe_enable_partitions(probe, 1);
	switch (blkid_do_safeprobe(probe)) {
	case 0:
		rc = describe_signature(path, probe);
		break;
	case 1:
		break;
	case -2:
		rc = refuse_content(
			path, "contains signatures of more than one filesystem");
		break;
	default:
		rc = mkfs_error(path, "libblkid cannot read it; --force skips this check");
	}
	blkid_free_probe(probe);
	return rc;
}

/* Refuses a regular file that has bytes other than zeros. Skips holes. */
static int check_zeros(const char *path, int fd)
{
	const size_t buffer_bytes = 1u << 20;
	unsigned char *buffer = malloc(buffer_bytes);
	off_t at = 0;
	int rc = EXIT_OK;

	if (!buffer)
		return mkfs_error(path, "out of memory");
	while (rc == EXIT_OK) {
		off_t data = lseek(fd, at, SEEK_DATA);
		ssize_t got;

		if (data < 0 && errno == ENXIO)
			break;
		if (data < 0)
			data = at; /* a filesystem without holes */
		got = pread(fd, buffer, buffer_bytes, data);
		if (got < 0)
			rc = fail_errno(path, "reading");
		else if (got == 0)
			break;
		else if (!bytes_are_zero(buffer, (size_t)got))
			rc = refuse_content(path, "is a file that contains data");
		at = data + got;
	}
	free(buffer);
	return rc;
}

static int check_content(const struct request *r, const struct target *t)
{
	off_t size = lseek(t->fd, 0, SEEK_END);
	int rc;

	if (r->force || t->created || t->stand_in)
		return EXIT_OK;
	if (size < 0)
		return fail_errno(r->path, "finding its size");
	if (size == 0)
		return EXIT_OK;
	rc = check_weft(r->path, t->fd, (uint64_t)size);
	if (rc == EXIT_OK)
		rc = check_signatures(r->path, t->fd);
	if (rc == EXIT_OK && !t->is_device)
		rc = check_zeros(r->path, t->fd);
	return rc;
}

/* ---- the file or device ---------------------------------------------------------- */

/* Opens a file of the wanted size beside the store, without a name, which vanishes at exit. So
 * --dry-run can plan for a file that is missing or too small. */
static int stand_in_open(const struct request *r, struct target *t)
{
	const char *slash = strrchr(r->path, '/');
	char *folder =
		slash ? strndup(r->path, MAX((size_t)(slash - r->path), 1)) : strdup(".");
	int fd;

	if (!folder)
		return mkfs_error(r->path, "out of memory");
	fd = open(folder, O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
	free(folder);
	if (fd < 0 || ftruncate(fd, (off_t)r->format.store_bytes) != 0) {
		fail_errno(r->path, "trying the size without making the file");
		if (fd >= 0)
			close(fd);
		return EXIT_FAILED;
	}
	if (t->fd >= 0)
		close(t->fd);
	t->fd = fd;
	t->stand_in = true;
	snprintf(t->name, sizeof(t->name), "/proc/self/fd/%d", fd);
	return EXIT_OK;
}

static int target_create(const struct request *r, struct target *t)
{
	if (!r->format.store_bytes)
		return mkfs_error(r->path, "does not exist; give --size to make a file");
	if (r->dry_run)
		return stand_in_open(r, t);
	t->fd = open(r->path, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
	if (t->fd < 0)
		return fail_errno(r->path, "making the file");
	t->created = true;
	return EXIT_OK;
}

static int target_open(const struct request *r, struct target *t)
{
	struct stat st;

	if (r->format.store_bytes > INT64_MAX)
		return mkfs_error(r->path, "no file is that large: use a smaller --size");
	if (stat(r->path, &st) != 0) {
		if (errno != ENOENT)
			return fail_errno(r->path, "looking at it");
		return target_create(r, t);
	}
	if (!S_ISBLK(st.st_mode) && !S_ISREG(st.st_mode))
		return mkfs_error(r->path, "is neither a block device nor a regular file");
	t->is_device = S_ISBLK(st.st_mode);
	t->old_bytes = (uint64_t)st.st_size;
	t->allocated_bytes = (uint64_t)st.st_blocks * 512;
	t->fd = open(r->path, (r->dry_run ? O_RDONLY : O_RDWR) | O_CLOEXEC);
	if (t->fd < 0)
		return fail_errno(r->path, "opening");
	if (!t->is_device && !t->old_bytes && !r->format.store_bytes)
		return mkfs_error(r->path, "is empty; give --size to enlarge it");
	return EXIT_OK;
}

/* Refuses a store in use: mounted, swap, part of another device, or open in a weft program.
 * Otherwise locks it until the engine locks it, so that no other process makes a volume meanwhile.
 */
static int check_unused(const struct request *r, const struct target *t)
{
	bool busy;
	int fd = -1;

	if (t->stand_in)
		return EXIT_OK;
	if (t->is_device) {
		fd = open(r->path, O_RDONLY | O_CLOEXEC | O_EXCL);
		if (fd < 0 && errno != EBUSY)
			return fail_errno(r->path, "opening");
	}
	busy = (t->is_device && fd < 0) ||
	       (flock(t->fd, LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK);
	if (fd >= 0)
		close(fd);
	return busy ? mkfs_error(r->path, "is in use (mounted, or held by another program): "
				    "unmount it first")
		    : EXIT_OK;
}

/* Grows a regular file to the requested size. A larger file keeps its own size. */
static int target_grow(const struct request *r, struct target *t)
{
	if (t->is_device || t->stand_in || r->format.store_bytes <= t->old_bytes)
		return EXIT_OK;
	if (r->dry_run)
		return stand_in_open(r, t);
	if (ftruncate(t->fd, (off_t)r->format.store_bytes) != 0)
		return fail_errno(r->path, "enlarging the file");
	return EXIT_OK;
}

static bool is_weft(int fd)
{
	struct disk_superblock sb;

	return pread(fd, &sb, sizeof(sb), 0) == (ssize_t)sizeof(sb) &&
	       sb.magic == DISK_MAGIC_SUPER;
}

/* After a failure removes files made for this, unless another process uses them by now. */
static void target_undo(const struct request *r, const struct target *t)
{
	bool grown = !t->is_device && !r->dry_run && r->format.store_bytes > t->old_bytes;

	if (t->stand_in || t->fd < 0 || !(t->created || grown) ||
		flock(t->fd, LOCK_EX | LOCK_NB) != 0 || is_weft(t->fd))
		return;
	if (t->created)
		unlink(r->path);
	else if (ftruncate(t->fd, (off_t)t->old_bytes) != 0)
		fail_errno(r->path, "giving the file its old size back");
}

/* ---- the report ------------------------------------------------------------------ */

static void print_bytes(const char *name, uint64_t bytes)
{
	char text[SIZE_TEXT];

	size_print(bytes, text);
	printf("  %-12s %s (%" PRIu64 " bytes)\n", name, text, bytes);
}

static const char *checksum_text(uint32_t kind)
{
	return kind == DISK_CHECKSUM_GMAC     ? "AES-128-GMAC"
	       : kind == DISK_CHECKSUM_SHA256 ? "SHA-256"
					      : "BLAKE2b";
}

static void print_store(const struct request *r, const struct disk_superblock *sb)
{
	char uuid[37];

	uuid_print(sb->volume_uuid, uuid);
	printf("%s %s on %s\n", r->dry_run ? "Would make" : "Made",
		r->cluster ? "a weft store" : "a weft volume", r->path);
	if (r->cluster)
		printf("  %-12s %u of %s, with shard %u%s\n", "node", sb->node,
			r->cluster_path, sb->shard,
			sb->shard == DISK_CATALOG_SHARD ? " and the root directory" : "");
	printf("  %-12s %s\n", "UUID", uuid);
	printf("  %-12s %s\n", "label", sb->label[0] ? sb->label : "(none)");
	print_bytes("size", sb->store_bytes);
	printf("  %-12s %" PRIu64 " of %u bytes\n", "pages", sb->page_count, PAGE_SIZE);
	print_bytes("log", sb->log_bytes);
	print_bytes("table", sb->table_bytes);
	if (sb->area_count) {
		printf("  %-12s logs of %u\n", "clients", sb->area_count);
		print_bytes("  each", sb->area_bytes);
	}
	printf("  %-12s %s\n", "checksum", checksum_text(sb->checksum_kind));
	if (sb->atomic_write_bytes >= PAGE_SIZE)
		printf("  %-12s by the device (writes of %u bytes are atomic)\n",
			"torn writes", sb->atomic_write_bytes);
	else
		printf("  %-12s by the log (the device promises %u bytes only: "
		       "overwritten pages "
		       "are logged first)\n",
			"torn writes", sb->atomic_write_bytes);
	if (r->dry_run)
		return;
	printf("Mount it with: weft mount %s DIRECTORY",
		r->cluster ? r->cluster_path : r->path);
	if (r->node_said)
		printf(" -o node=%u", r->node);
	putchar('\n');
}

/* Warns that a sparse file may outgrow its filesystem: it takes room only as it is used. */
static void warn_outgrows(
	const struct request *r, const struct disk_superblock *sb, uint64_t room)
{
	char size[SIZE_TEXT], has[SIZE_TEXT];

	if (!room || sb->store_bytes <= room)
		return;
	size_print(sb->store_bytes, size);
	size_print(room, has);
	fprintf(stderr,
		"mkfs.weft: warning: %s: the store can grow to %s, but its filesystem "
		"has "
		"room for %s; writes fail once that is used up\n",
		r->path, size, has);
}

/* ---- together -------------------------------------------------------------------- */

static int format_disk(struct request *r, const struct target *t)
{
	unsigned flags =
		RT_DISK_EXCLUSIVE | (r->dry_run && !t->stand_in ? RT_DISK_READ_ONLY : 0);
	struct weft_error err = {0};
	struct disk_superblock sb;
	struct rt_disk_info info;
	struct rt_disk *disk;
	int rc;

	flock(t->fd, LOCK_UN); /* the engine takes it */
	rc = rt_disk_open(&disk, t->stand_in ? t->name : r->path, flags, &err);
	if (rc)
		return mkfs_error(r->path, err.code ? err.text : strerror(-rc));
	if (!r->force && !t->stand_in && is_weft(t->fd)) {
		rt_disk_close(disk);
		return refuse_content(
			r->path, "another mkfs.weft has just made a volume there");
	}
	r->format.allocated_bytes = t->stand_in ? t->allocated_bytes : 0;
	rc = volume_format_plan(disk, &r->format, &sb, &err);
	if (!rc && !r->dry_run) {
		memcpy(r->format.volume_uuid, sb.volume_uuid, sizeof(sb.volume_uuid));
		rc = volume_format(disk, &r->format, getuid(), getgid(), &err);
	}
	rt_disk_info(disk, &info);
	rt_disk_close(disk);
	if (rc)
		return mkfs_error(r->path, err.code ? err.text : strerror(-rc));
	if (r->quiet)
		return EXIT_OK;
	print_store(r, &sb);
	warn_outgrows(r, &sb, info.room_bytes + r->format.allocated_bytes);
	return EXIT_OK;
}

int main(int argc, char **argv)
{
	struct request r = {0};
	struct target t = {.fd = -1};
	int rc = rt_stdio_open();
	int status = mkfs_parse_options(argc, argv, &r);

	if (status >= 0)
		return status;
	if (rc == 0)
		rc = rt_real_start();
	if (rc)
		return mkfs_error(r.path, strerror(-rc));
	status = r.cluster_path ? cluster_apply(&r) : EXIT_OK;
	if (status != EXIT_OK)
		goto out_cluster;
	status = target_open(&r, &t);
	if (status == EXIT_OK)
		status = check_unused(&r, &t);
	if (status == EXIT_OK)
		status = check_content(&r, &t);
	if (status == EXIT_OK)
		status = target_grow(&r, &t);
	if (status == EXIT_OK)
		status = format_disk(&r, &t);
	if (status != EXIT_OK)
		target_undo(&r, &t);
	if (t.fd >= 0)
		close(t.fd);
	if (fflush(stdout) != 0)
		status = fail_errno(r.path, "printing what was made");
out_cluster:
	cluster_close(r.cluster);
	return status;
}
