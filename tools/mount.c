/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft mount, weft umount, and the helpers of mount(8) and umount(8).
 *
 * Mounting is weftd's; here it is only found and started. Unmounting waits until the
 * daemon has closed the volume, so that the store is free when the command returns.
 */
#include <errno.h>
#include <getopt.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "fs/daemonize.h"
#include "fs/mount.h"
#include "tools/tools.h"

/* ---- starting the daemon --------------------------------------------------- */

/* Beside this program, in the sbin beside its folder, or along the PATH. */
static _Noreturn void exec_weftd(char **argv)
{
	static const char *const places[] = {"%s/weftd", "%s/../sbin/weftd"};
	char self[PATH_MAX];
	char path[PATH_MAX + 32];
	char name[] = "weftd";
	ssize_t n = readlink("/proc/self/exe", self, sizeof(self) - 1);
	char *slash;

	argv[0] = name;
	if (n > 0) {
		self[n] = '\0';
		slash = strrchr(self, '/');
		if (slash)
			*slash = '\0';
		for (size_t i = 0; i < ARRAY_SIZE(places); i++) {
			snprintf(
				path, sizeof(path), i == 0 ? places[0] : places[1], self);
			if (access(path, X_OK) == 0)
				execv(path, argv);
		}
	}
	execvp(name, argv);
	fprintf(stderr, "weft: cannot run weftd: %s\n", strerror(errno));
	exit(EXIT_MOUNT);
}

int weft_mount(int argc, char **argv)
{
	if (argc < 2 || strcmp(argv[1], "-h") == 0 || strcmp(argv[1], "--help") == 0) {
		puts("Usage: weft mount STORE DIR [-o OPTION,...] [-f]\n"
		     "\n"
		     "Mounts the volume in STORE on DIR; `weftd --help` lists the "
		     "options.\n"
		     "\n"
		     "Example:\n"
		     "  weft mount /srv/data.weft /mnt/weft -o cache=2G");
		return argc < 2 ? EXIT_USAGE : 0;
	}
	exec_weftd(argv);
}

/* ---- remounting ------------------------------------------------------------------ */

static bool has_word(const char *list, const char *word)
{
	size_t len = strlen(word);

	for (const char *p = list; p; p = strchr(p, ',') ? strchr(p, ',') + 1 : NULL)
		if (strncmp(p, word, len) == 0 && (p[len] == ',' || p[len] == '\0'))
			return true;
	return false;
}

/* mount_options_parse knows no "remount": the list without that word. */
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
 * The kernel's own flags can change while mounted. What the daemon was opened with
 * cannot: a volume opened read-only has replayed its log in memory only.
 */
static int remount_check(
	const char *directory, const struct mount_options *o, const char *list)
{
	static const char *const atime[] = {"relatime", "noatime", "strictatime"};
	json_t *identity, *status;
	const char *in_force;
	int ret = 0;
	int fd = client_find(directory, &identity);

	if (fd < 0) {
		fprintf(stderr, "mount.weft: no running weftd serves %s\n", directory);
		return EXIT_MOUNT;
	}
	status = client_ask(fd, "status");
	close(fd);
	json_decref(identity);
	in_force = json_string_value(json_object_get(status, "options"));
	if (!in_force) {
		fprintf(stderr, "mount.weft: the weftd of %s does not answer\n",
			directory);
		ret = EXIT_MOUNT;
	} else if (!o->read_only && json_is_true(json_object_get(status, "read_only"))) {
		fprintf(stderr,
			"mount.weft: %s was opened read-only; umount it and mount it "
			"again\n",
			directory);
		ret = EXIT_MOUNT;
	} else if (has_word(list, atime[o->atime]) &&
		   !has_word(in_force, atime[o->atime])) {
		fprintf(stderr,
			"mount.weft: %s cannot change while mounted; umount %s and mount "
			"it again\n",
			atime[o->atime], directory);
		ret = EXIT_MOUNT;
	}
	json_decref(status);
	return ret;
}

static int remount(const char *source, const char *directory, const char *list)
{
	static const unsigned long atime[] = {MS_RELATIME, MS_NOATIME, MS_STRICTATIME};
	struct weft_error err = {0};
	struct mount_options o;
	char *rest = without_remount(list);
	int ret;

	mount_options_default(&o);
	if (!rest || mount_options_parse(&o, rest, &err) < 0) {
		fprintf(stderr, "mount.weft: %s\n", err.text);
		free(rest);
		return EXIT_USAGE;
	}
	ret = remount_check(directory, &o, rest);
	free(rest);
	if (ret)
		return ret;
	if (mount(source, directory, "fuse.weft",
		    MS_REMOUNT | o.flags | atime[o.atime] | (o.read_only ? MS_RDONLY : 0),
		    NULL) < 0) {
		fprintf(stderr, "mount.weft: cannot remount %s: %s\n", directory,
			strerror(errno));
		return EXIT_MOUNT;
	}
	return 0;
}

/* ---- mount(8)'s helper ----------------------------------------------------------- */

int mount_helper(int argc, char **argv)
{
	char option_o[] = "-o";
	const char *given = "";
	char *options;
	char *args[6];
	bool fake = false;
	int c;
	int ret;

	while ((c = getopt(argc, argv, "sfnvN:o:t:h")) != -1) {
		if (c == 'o')
			given = optarg;
		else if (c == 'f')
			fake = true;
		else if (c == 'N' || c == 'h' || c == '?') {
			fputs("Usage: mount.weft STORE DIR [-sfnv] [-o OPTION,...]\n"
			      "This is what `mount -t weft` runs; `weftd --help` lists "
			      "the options.\n",
				c == 'h' ? stdout : stderr);
			return c == 'h' ? 0 : EXIT_USAGE;
		}
	}
	if (argc - optind != 2) {
		fputs("mount.weft: expected STORE and DIR\n", stderr);
		return EXIT_USAGE;
	}
	if (has_word(given, "remount"))
		return fake ? 0 : remount(argv[optind], argv[optind + 1], given);
	if (fake)
		return 0;
	/* mount(8) swallows suid and dev, which are the default for others than FUSE. */
	if (asprintf(&options, "suid,dev,%s", given) < 0)
		return EXIT_MOUNT;
	args[1] = argv[optind];
	args[2] = argv[optind + 1];
	args[3] = option_o;
	args[4] = options;
	args[5] = NULL;
	ret = access(args[1], F_OK);
	if (ret < 0) {
		fprintf(stderr, "mount.weft: %s: %s\n", args[1], strerror(errno));
		return EXIT_MOUNT;
	}
	exec_weftd(args);
}

/* ---- unmounting ------------------------------------------------------------------ */

/* A daemon that serves `directory`, if it answers: its connection, else negative. */
static int unmount_and_wait(const char *who, const char *name, bool lazy, bool force)
{
	json_t *identity = NULL;
	int fd = client_find(name, &identity);
	const char *found = json_string_value(json_object_get(identity, "mount_point"));
	char *directory = strdup(found ? found : name);
	int ret = directory ? 0 : -ENOMEM;

	json_decref(identity);
	if (ret == 0 && force && geteuid() == 0 && umount2(directory, MNT_FORCE) == 0)
		goto out_wait;
	if (ret == 0)
		ret = fuse_mount_close(directory, lazy);
	if (ret < 0) {
		fprintf(stderr, "%s: %s: %s%s\n", who, directory ? directory : name,
			ret == -EINVAL ? "not mounted" : strerror(-ret),
			ret == -EBUSY ? "; `fuser -vm` shows who uses it" : "");
		if (fd >= 0)
			close(fd);
		free(directory);
		return EXIT_MOUNT;
	}
out_wait:
	if (fd >= 0) {
		if (!lazy)
			client_wait_end(fd);
		close(fd);
	}
	free(directory);
	return 0;
}

int weft_umount(int argc, char **argv)
{
	bool lazy = false, force = false;
	int c;

	while ((c = getopt(argc, argv, "lfh")) != -1) {
		if (c == 'l')
			lazy = true;
		else if (c == 'f')
			force = true;
		else
			break;
	}
	if (c != -1 || argc - optind != 1) {
		fputs("Usage: weft umount [-l] [-f] DIR\n"
		      "\n"
		      "Unmounts and waits until the store is closed. DIR may also be the "
		      "store, the\n"
		      "volume's label or its UUID.\n"
		      "  -l  detach now, close when nobody uses it any more; does not "
		      "wait\n"
		      "  -f  end the requests of those who use it with errors\n"
		      "\n"
		      "Example:\n"
		      "  weft umount /mnt/weft\n",
			c == 'h' ? stdout : stderr);
		return c == 'h' ? 0 : EXIT_USAGE;
	}
	return unmount_and_wait("weft umount", argv[optind], lazy, force);
}

int umount_helper(int argc, char **argv)
{
	bool lazy = false, force = false;
	int c;

	while ((c = getopt(argc, argv, "fnlrvN:t:")) != -1) {
		if (c == 'l')
			lazy = true;
		else if (c == 'f')
			force = true;
		else if (c == 'N' || c == '?')
			return EXIT_USAGE;
	}
	if (argc - optind != 1) {
		fputs("Usage: umount.fuse.weft [-fnlrv] DIR\n", stderr);
		return EXIT_USAGE;
	}
	return unmount_and_wait("umount", argv[optind], lazy, force);
}
