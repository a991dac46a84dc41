/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The command line of weftd. Nothing of it is used unchecked (invariant 9).
 */
#include "fs/arguments.h"

#include <errno.h>
#include <getopt.h>
#include <mntent.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <sys/statvfs.h>

#include "fs/daemonize.h"
#include "fs/guardian.h"
#include "fs/service.h"

static const char usage[] =
	"Usage: weftd STORE|FILE DIR [-o OPTION,...] [-f]\n"
	"       weftd --unmounted|--serve FILE [-o OPTION,...] [-f]\n"
	"\n"
	"Mounts a weft volume on DIR. STORE is a file or block device made by mkfs.weft.\n"
	"FILE is a cluster file, which names the store of this node. weftd goes to the\n"
	"background when the mount answers. umount DIR, SIGTERM and SIGINT end it.\n"
	"\n"
	"  -o OPTION,...  mount options, see below; may be given more than once\n"
	"  -u, --unmounted\n"
	"                 serve this node's store to the other nodes of FILE, without a\n"
	"                 mount, until the node is mounted or the others are unmounted\n"
	"      --serve    the same, until a signal: what `weft node start` runs\n"
	"  -f             stay in the foreground; messages go to standard error\n"
	"  -h, --help     print this text\n"
	"  -V, --version  print the version\n"
	"\n"
	"Options:\n"
	"  cache=SIZE         size of the page cache, such as 512M or 4G (default: a\n"
	"                     quarter of the memory, at most 1G)\n"
	"  learned=SIZE       memory for the places of the leaves of the metadata tree, on a\n"
	"                     volume of several nodes; 0: none (default: a 64th of the\n"
	"                     cache, at least 256K)\n"
	"  log_interval=SECS  longest time that a change without fsync stays in memory\n"
	"                     only (default: 5)\n"
	"  ro, rw             read-only, read-write (default)\n"
	"  relatime, noatime, strictatime\n"
	"                     when reads set access times (default: relatime)\n"
	"  allow_other, noallow_other\n"
	"                     whether users other than the one who mounts can access the\n"
	"                     mount (default for root: allow_other)\n"
	"  nodev, nosuid, noexec, sync, dirsync, nodiratime, and their opposites\n"
	"  uring=auto|on|off  take requests through io_uring: if the kernel offers it\n"
	"                     (auto, the default), always, never\n"
	"  node=N             number of this node in the cluster file (default: found by\n"
	"                     the addresses of this machine)\n"
	"  mmap=shared|local|off\n"
	"                     with other nodes: all nodes see a store through a mapping\n"
	"                     at once (shared, the default), or after it was written\n"
	"                     back (local); off refuses shared mappings of files that\n"
	"                     are opened to write\n"
	"  soft, hard         if a request waits for another node: it fails with EIO\n"
	"                     after timeout= (soft), or goes on waiting (hard, the\n"
	"                     default); a failed change may still be made later\n"
	"  timeout=SECS       of soft (default: 60)\n"
	"  restart, norestart\n"
	"                     with other nodes: start a killed daemon again, without the\n"
	"                     mount, to serve them (default: restart)\n"
	"  metrics=ADDR:PORT  serve metrics for Prometheus there: GET /metrics; and a page\n"
	"                     for browsers: GET / (default: none)\n"
	"  fsname=NAME        source that df and mount show (default: STORE or FILE)\n"
	"\n"
	"Examples:\n"
	"  mkfs.weft --size 10G /srv/data.weft\n"
	"  weftd /srv/data.weft /mnt/weft -o cache=2G,noatime\n"
	"  mount -t weft /dev/nvme0n1p3 /mnt/weft\n"
	"\n"
	"Exit codes: 0 mounted, 1 wrong usage, 32 the mount failed.\n";

static char *absolute_path(const char *path, const char *what, struct weft_error *err)
{
	char *real = realpath(path, NULL);

	if (!real)
		weft_error(err, -errno, "%s %s: %s", what, path, strerror(errno));
	return real;
}

/* Returns true if the uppermost mount there is of weft. Makes no request. */
static bool is_weft_mount(const char *path)
{
	FILE *table = setmntent("/proc/self/mounts", "re");
	struct mntent *m;
	bool found = false;

	while (table && (m = getmntent(table)))
		if (strcmp(m->mnt_dir, path) == 0)
			found = strcmp(m->mnt_type, "fuse.weft") == 0;
	if (table)
		endmntent(table);
	return found;
}

/* Returns the path without links and final slashes, as the mount table has it; NULL: there is none.
 * With a final slash, realpath(3) would ask the mount itself. The caller frees it. */
static char *path_in_table(const char *path)
{
	char *plain = strdup(path), *real;

	for (size_t len = plain ? strlen(plain) : 0; len > 1 && plain[len - 1] == '/'; len--)
		plain[len - 1] = '\0';
	real = plain ? realpath(plain, NULL) : NULL;
	free(plain);
	return real;
}

/* A service manager starts a killed daemon again, at the same place. */
static bool take_dead_mount_away(const char *path)
{
	char *place = service_managed() ? path_in_table(path) : NULL;
	bool taken = place && is_weft_mount(place) &&
		     umount2(place, MNT_DETACH | UMOUNT_NOFOLLOW) == 0;

	if (taken)
		weft_log(4, "%s was still mounted from a daemon that has died: taken away",
			place);
	free(place);
	return taken;
}

static int check_directory(const char *path, struct weft_error *err)
{
	struct statvfs fs;
	struct stat st;

	/* The kernel's cache may still answer stat(2) for a mount whose daemon has ended. */
	if (stat(path, &st) < 0 || (statvfs(path, &fs) < 0 && errno == ENOTCONN)) {
		int why = errno;

		if (why == ENOTCONN && take_dead_mount_away(path))
			return check_directory(path, err);
		if (why == ENOTCONN)
			return weft_error(err, -why,
				"%s is still mounted from a daemon that has died; take "
				"that away first: weft umount %s",
				path, path);
		return weft_error(
			err, -why, "mount point %s: %s", path, strerror(why));
	}
	if (!S_ISDIR(st.st_mode))
		return weft_error(
			err, -ENOTDIR, "mount point %s is not a directory", path);
	return 0;
}

/* Reads the arguments behind the options. Returns 0, or -errno with a text. */
static int take_places(
	struct mount_options *o, bool unmounted, char **places, struct weft_error *err)
{
	guardian_sweep();
	o->store = absolute_path(places[0], "store", err);
	if (!o->store)
		return err->code;
	if (!unmounted && check_directory(places[1], err) < 0)
		return err->code;
	o->directory =
		unmounted ? strdup("-") : absolute_path(places[1], "mount point", err);
	if (!o->directory && unmounted)
		weft_error(err, -ENOMEM, "no memory for the arguments");
	return o->directory ? 0 : err->code;
}

int arguments_parse(struct arguments *a, struct mount_options *o, int argc, char **argv,
	int *code, struct weft_error *err)
{
	static const struct option words[] = {{"unmounted", no_argument, NULL, 'u'},
		{"serve", no_argument, NULL, 'S'},
		{"help", no_argument, NULL, 'h'}, {"version", no_argument, NULL, 'V'},
		{0}};
	int c, expected;

	*a = (struct arguments){0};
	*code = EXIT_USAGE;
	while ((c = getopt_long(argc, argv, "o:ufhV", words, NULL)) != -1) {
		switch (c) {
		case 'o':
			if (mount_options_parse(o, optarg, err) < 0)
				return err->code;
			break;
		case 'u':
			a->unmounted = true;
			break;
		case 'S':
			a->unmounted = a->stays = true;
			break;
		case 'f':
			a->foreground = true;
			service_begin();
			break;
		case 'h':
			fputs(usage, stdout);
			*code = 0;
			return -ECANCELED;
		case 'V':
			puts("weftd " WEFT_VERSION);
			*code = 0;
			return -ECANCELED;
		default:
			fputs("Try `weftd --help`.\n", stderr);
			return -ECANCELED;
		}
	}
	expected = a->unmounted ? 1 : 2;
	if (argc - optind > expected)
		return weft_error(err, -EINVAL,
			"\"%s\" is one word too many: expected %s; try `weftd --help`",
			argv[optind + expected], a->unmounted ? "FILE" : "STORE and DIR");
	if (argc - optind < expected)
		return weft_error(err, -EINVAL, "expected %s; try `weftd --help`",
			a->unmounted ? "FILE" : "STORE and DIR");
	*code = EXIT_MOUNT;
	return take_places(o, a->unmounted, argv + optind, err);
}

char **arguments_unmounted(const struct mount_options *o)
{
	char options[512], *again[] = {(char *)"weftd", (char *)"-u", (char *)"-f",
				   (char *)"-o", options, o->store, NULL};
	size_t bytes = sizeof(again);
	char **out, *text;

	mount_options_print(o, options, sizeof(options));
	for (unsigned i = 0; again[i]; i++)
		bytes += strlen(again[i]) + 1;
	out = malloc(bytes);
	if (!out)
		return NULL;
	text = (char *)(out + ARRAY_SIZE(again));
	for (unsigned i = 0; again[i]; i++) {
		out[i] = text;
		text = stpcpy(text, again[i]) + 1;
	}
	out[ARRAY_SIZE(again) - 1] = NULL;
	return out;
}
