/* SPDX-License-Identifier: Apache-2.0 */
/* weft mount and the helper of mount(8). weftd mounts; this finds and starts it. Remounting is done
 * here, because it only changes flags of the kernel. */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "fs/daemonize.h"
#include "fs/options.h"
#include "tools/tools.h"

/* ---- starting the daemon --------------------------------------------------- */

/* Looks beside this program, in the sbin beside its folder, and along the PATH. */
_Noreturn void exec_weftd(char **argv)
{
	static const char *const places[] = {"", "/../sbin"};
	char self[PATH_MAX];
	char path[PATH_MAX + 32];
	char name[] = "weftd";
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *slash;

	argv[0] = name;
	self[n > 0 ? n : 0] = '\0';
	slash = strrchr(self, '/');
	for (size_t i = 0; slash && i < ARRAY_SIZE(places); i++) {
		*slash = '\0';
		snprintf(path, sizeof(path), "%s%s/weftd", self, places[i]);
		if (access(path, X_OK) == 0)
			execv(path, argv);
	}
	execvp(name, argv);
	fprintf(stderr, "weft: cannot run weftd: %s\n", strerror(errno));
	exit(EXIT_MOUNT);
}

int weft_mount(int argc, char **argv)
{
	static const char usage[] =
		"Usage: weft mount STORE|FILE DIR [-o OPTION,...] [-f]\n"
		"\n"
		"Mounts the volume in STORE, or this node's of the cluster file FILE, on "
		"DIR;\n"
		"`weftd --help` lists the options.\n"
		"\n"
		"Examples:\n"
		"  weft mount /srv/data.weft /mnt/weft -o cache=2G\n"
		"  weft mount /etc/weft/scratch.cluster /mnt/scratch\n"
		"\n"
		"Exit codes: 0 mounted, 1 wrong usage, 32 the mount failed.\n";
	bool help = argc == 2 &&
		    (strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0);

	if (argc < 2 || help)
		return weft_usage(usage, help);
	exec_weftd(argv);
}

/* ---- remounting ------------------------------------------------------------------ */

/* Returns true if a comma-separated list has the word. A word that ends in = stands for all with
 * this beginning. */
static bool has_word(const char *list, const char *word)
{
	size_t len = strlen(word);

	for (const char *p = list; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
		if (strncmp(p, word, len) == 0 &&
			(word[len - 1] == '=' || p[len] == ',' || p[len] == '\0'))
			return true;
	return false;
}

/* Returns the list without "remount", which mount_options_parse does not know. */
static char *without_remount(const char *list)
{
	char *copy = strdup(list);
	char *out = calloc(1, strlen(list) + 2);
	char *rest = copy;
	char *word;

	while (copy && out && (word = strsep(&rest, ",")))
		if (strcmp(word, "remount") != 0)
			sprintf(out + strlen(out), "%s%s", *out ? "," : "", word);
	free(copy);
	return out;
}

/*
 * Returns a requested option that only a new mount can change, because weftd was started with it or
 * the kernel keeps it. NULL: there is none. mount(8) also repeats the options of fstab and those in
 * force.
 */
static const char *fixed_option(const char *list, const struct mount_options *wanted,
	const struct mount_options *now)
{
	if (has_word(list, "cache=") &&
		wanted->cache_bytes >> 20 != now->cache_bytes >> 20)
		return "cache=";
	if (has_word(list, "learned=") &&
		mount_options_learned(wanted) != mount_options_learned(now))
		return "learned=";
	if (has_word(list, "log_interval=") &&
		wanted->log_interval_ms != now->log_interval_ms)
		return "log_interval=";
	if (has_word(list, "node=") && wanted->node != now->node)
		return "node=";
	if (has_word(list, "uring=") && wanted->uring != now->uring)
		return "uring=";
	if (has_word(list, "mmap=") && wanted->mmap != now->mmap)
		return "mmap=";
	if (has_word(list, "restart") && !now->restart)
		return "restart";
	if (has_word(list, "norestart") && now->restart)
		return "norestart";
	if (has_word(list, "soft") && !now->soft)
		return "soft";
	if (has_word(list, "hard") && now->soft)
		return "hard";
	if (has_word(list, "timeout=") && wanted->timeout_ms != now->timeout_ms)
		return "timeout=";
	if (now->allow_other && has_word(list, "noallow_other"))
		return "noallow_other";
	if (!now->allow_other && has_word(list, "allow_other"))
		return "allow_other";
	return wanted->flags & ~now->flags & MS_DIRSYNC ? "dirsync" : NULL;
}

/*
 * The kernel's own flags can change while mounted, and the daemon follows them. Options from the
 * opening cannot: a volume opened read-only has replayed its log in memory only. *now: the options
 * in force.
 */
static int remount_check(const char *directory, const struct mount_options *wanted,
	const char *list, struct mount_options *now, struct weft_error *err)
{
	json_t *identity = NULL, *status;
	const char *fixed;
	int fd = client_find(directory, &identity, err);
	int rc = 0;

	if (fd < 0)
		return fd;
	status = client_ask(fd, "status", err);
	close(fd);
	json_decref(identity);
	if (!status)
		return err->code;
	mount_options_default(now);
	now->allow_other = false;
	rc = mount_options_parse(now, client_text(status, "options"), err);
	fixed = rc == 0 ? fixed_option(list, wanted, now) : NULL;
	if (fixed)
		rc = weft_error(err, -EINVAL,
			"%s cannot change while mounted; umount it and mount it again",
			fixed);
	else if (!wanted->read_only && json_is_true(json_object_get(status, "read_only")))
		rc = weft_error(err, -EROFS,
			"it was opened read-only; umount it and mount it again");
	json_decref(status);
	return rc;
}

/* Returns the flags for mount(2). Without flags about access times the kernel keeps them. */
static unsigned long remount_flags(
	const char *list, const struct mount_options *o, const struct mount_options *now)
{
	static const unsigned long atime[] = {MS_RELATIME, MS_NOATIME, MS_STRICTATIME};
	unsigned long flags = MS_REMOUNT | (o->flags & ~(unsigned long)MS_NODIRATIME) |
			      (o->read_only ? MS_RDONLY : 0);

	if (!o->atime_given && !has_word(list, "nodiratime") &&
		!has_word(list, "diratime"))
		return flags;
	return flags | atime[o->atime_given ? o->atime : now->atime] |
	       (o->flags & MS_NODIRATIME);
}

static int remount_volume(const char *source, const char *directory, const char *list)
{
	struct weft_error err = {0};
	struct mount_options o, now;
	char *rest = without_remount(list);

	mount_options_default(&o);
	if (!rest || mount_options_parse(&o, rest, &err) < 0) {
		fprintf(stderr, "mount.weft: %s\n", rest ? err.text : "no memory");
		free(rest);
		return EXIT_USAGE;
	}
	if (remount_check(directory, &o, rest, &now, &err) == 0 &&
		mount(source, directory, "fuse.weft", remount_flags(rest, &o, &now),
			NULL) < 0)
		weft_error(&err, -errno, "%s", strerror(errno));
	free(rest);
	if (err.code == 0)
		return 0;
	fprintf(stderr, "mount.weft: cannot remount %s: %s\n", directory, err.text);
	return EXIT_MOUNT;
}

/* ---- mount(8)'s helper ----------------------------------------------------------- */

/* Adds an -o to the earlier ones. In the list, later words win. Returns false without memory. */
static bool add_options(char **list, const char *more)
{
	char *longer;

	if (asprintf(&longer, "%s,%s", *list, more) < 0)
		return false;
	free(*list);
	*list = longer;
	return true;
}

static int mount_fake(const char *list)
{
	struct weft_error err = {0};
	struct mount_options o;
	char *rest = without_remount(list);
	int rc;

	mount_options_default(&o);
	rc = rest ? mount_options_parse(&o, rest, &err) : -ENOMEM;
	if (rc < 0)
		fprintf(stderr, "mount.weft: %s\n", rest ? err.text : "no memory");
	free(rest);
	return rc < 0 ? EXIT_USAGE : 0;
}

static int mount_or_remount(char *source, char *directory, char *list, bool fake)
{
	char option[] = "-o", end[] = "--";
	char *args[] = {NULL, option, list, end, source, directory, NULL};

	if (fake)
		return mount_fake(list);
	if (has_word(list, "remount"))
		return remount_volume(source, directory, list);
	exec_weftd(args);
}

int mount_helper(int argc, char **argv)
{
	static const char usage[] =
		"Usage: mount.weft STORE|FILE DIR [-sfnv] [-o OPTION,...]\n"
		"This is what `mount -t weft` runs; `weftd --help` lists the options.\n";
	/* mount(8) removes suid and dev, which are the defaults of other filesystems than FUSE. */
	char *list = strdup("suid,dev");
	bool fake = false;
	int c = -1;
	int rc;

	while (list && (c = getopt(argc, argv, "sfnvN:o:t:h")) != -1) {
		if (c == 'o' && !add_options(&list, optarg))
			break;
		if (c == 'f')
			fake = true;
		if (c == 'N' || c == 'h' || c == '?') {
			free(list);
			return weft_usage(usage, c == 'h');
		}
	}
	if (!list || c != -1) {
		fputs("mount.weft: no memory\n", stderr);
		rc = EXIT_MOUNT;
	} else if (argc - optind != 2) {
		fprintf(stderr,
			"mount.weft: expected STORE and DIR%s%s%s; try `mount.weft -h`\n",
			argc - optind > 2 ? ", and \"" : "",
			argc - optind > 2 ? argv[optind + 2] : "",
			argc - optind > 2 ? "\" is one word too many" : "");
		rc = EXIT_USAGE;
	} else {
		rc = mount_or_remount(argv[optind], argv[optind + 1], list, fake);
	}
	free(list);
	return rc;
}
