/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft umount, and the helper of umount(8). Unmounting waits until the daemon has closed the
 * volume, so that the store is free when the command returns.
 *
 * Unmounts only weft's mounts, and only of the volume that was named.
 *
 * If other nodes still have the volume mounted, the daemon goes on serving its store to them. When
 * systemd shuts the machine down, nothing would end it before the network goes down. So the helper
 * asks it to end then.
 */
#include <errno.h>
#include <getopt.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <sys/pidfd.h>
#include <sys/stat.h>
#include <unistd.h>

#include "engine/common/text.h"
#include "fs/daemonize.h"
#include "fs/guardian.h"
#include "fs/mount.h"
#include "tools/tools.h"

#define LOOK_MS        500
#define SAY_AFTER_MS   10000
#define BUSY_FOR_MS    1000 /* by then programs that visit all mounts have left */
#define BUSY_RETRY_MS  20
#define LEAVE_MS       60000 /* a daemon needs half of it at most, and writes its cache */
#define EXIT_UNWRITTEN 2

struct unmount {
	const char *who; /* prefix of messages */
	bool lazy, force;
	bool top;       /* unmount any mount of weft on top there, as umount(8) does */
	bool unwritten; /* the daemon could not write all data */
	bool serves_on; /* the daemon serves its store to other nodes */
};

static const char usage[] =
	"Usage: weft umount [-l] [-f] DIR|STORE|FILE|LABEL|UUID\n"
	"\n"
	"Unmounts and waits until the store is closed.\n"
	"  -l, --lazy   detach now, close when no program uses it; does not wait\n"
	"  -f, --force  end the requests of its users with errors\n"
	"\n"
	"Example:\n"
	"  weft umount /mnt/weft\n"
	"\n"
	"Exit codes: 0, 1 wrong usage, 2 unmounted, but some changes were not\n"
	"written (the message says which wait in the log and which are lost), 32 not "
	"unmounted.\n";

/* The mounts on a directory, the last one on top. */
struct top {
	const char *directory;
	char type[64]; /* "" if there is none */
	bool ours;
	uid_t user;
};

static bool top_visit(void *arg, const struct weft_mount *m)
{
	struct top *top = arg;

	if (strcmp(m->directory, top->directory) != 0)
		return false;
	snprintf(top->type, sizeof(top->type), "%s", m->type);
	top->ours = m->ours;
	top->user = m->user;
	return false;
}

static int check_user(const char *directory, uid_t user, struct weft_error *err)
{
	char name[MOUNT_USER];

	if (geteuid() == 0 || geteuid() == user)
		return 0;
	mount_user(user, name);
	if (user == 0)
		return weft_error(err, -EPERM,
			"not permitted: root has mounted it; use `sudo weft umount %s`",
			directory);
	return weft_error(err, -EPERM,
		"not permitted: user %s has mounted it; that user can unmount it, and "
		"`sudo weft umount %s`",
		name, directory);
}

/* Checks that the mount on top is weft's, and the found daemon's, if there is one. */
static int check_mount(
	const char *directory, const json_t *identity, struct weft_error *err)
{
	struct top top = {.directory = directory};
	char device[CLIENT_DEVICE];

	mounts_each(top_visit, &top);
	if (!*top.type)
		return weft_error(err, -EINVAL, "not mounted%s",
			geteuid()
				? " by this user; `sudo weft status` lists what root has "
				  "mounted"
				: "");
	if (!top.ours)
		return weft_error(err, -EINVAL,
			"not a weft mount: %s has a filesystem of type %s; use "
			"umount(8)",
			directory, top.type);
	if (check_user(directory, top.user, err) < 0)
		return err->code;
	if (!identity || !client_device(directory, device))
		return 0;
	if (strcmp(device, client_text(identity, "device_number")) != 0)
		return weft_error(err, -EBUSY,
			"another volume is mounted over it on %s; unmount that one "
			"first",
			directory);
	return 0;
}

/* Unmounts. Waits for programs that use the mount for a moment, as df and monitors do. */
static int take_away(
	const struct unmount *u, const char *directory, struct weft_error *err)
{
	int rc;

	if (u->force && geteuid() == 0 &&
		umount2(directory, MNT_FORCE | UMOUNT_NOFOLLOW) == 0)
		return 0;
	rc = fuse_mount_close(directory, u->lazy);
	for (int ms = 0; rc == -EBUSY && ms < BUSY_FOR_MS; ms += BUSY_RETRY_MS) {
		usleep(BUSY_RETRY_MS * 1000);
		rc = fuse_mount_close(directory, u->lazy);
	}
	return rc < 0 ? weft_error(err, rc, "%s%s", strerror(-rc),
				 rc == -EBUSY ? "; `fuser -vm` shows its users" : "")
		       : 0;
}

/* Reports that the daemon continues for other nodes. */
static void say_serves_on(struct unmount *u, const json_t *word, long long pid)
{
	u->serves_on = true;
	printf("%s: unmounted; weftd (process %lld) goes on serving node %lld's store "
	       "to %s,\n"
	       "until the volume is unmounted there too\n",
		u->who, pid,
		(long long)json_integer_value(json_object_get(word, "serves_on_as")),
		client_text(word, "to"));
}

static void say_awaits(const struct unmount *u, const json_t *word, long long pid)
{
	long long seconds = json_integer_value(json_object_get(word, "seconds"));
	long long node = json_integer_value(json_object_get(word, "node"));

	printf("%s: unmounted; away: %s.\n", u->who, client_text(word, "awaits"));
	if (seconds)
		printf("weftd (process %lld) waits up to %lld s. After that, changes "
		       "to pages of that store\n"
		       "stay in the log of node %lld until all nodes are mounted "
		       "again: nothing is lost\n",
			pid, seconds, node);
	else
		printf("weftd (process %lld) waits until that node is started: changes "
		       "to pages of its store do\n"
		       "not fit in the log of node %lld. `kill %lld` ends weftd, and "
		       "loses changes that were not synced\n",
			pid, node, pid);
}

static void say_unwritten(struct unmount *u, const json_t *word)
{
	long long lost = json_integer_value(json_object_get(word, "lost_pages"));
	long long kept = json_integer_value(json_object_get(word, "kept_pages"));

	u->unwritten = true;
	fprintf(stderr, "%s: unmounted, but not all could be written back: %s\n", u->who,
		client_text(word, "unwritten"));
	if (lost)
		fprintf(stderr,
			"up to %lld pages (%.1f MiB) that were not synced are LOST\n", lost,
			pages_mib((uint64_t)lost));
	fprintf(stderr,
		"%lld pages (%.1f MiB) wait in the store's log; the next mount writes "
		"them, when "
		"the\nstore can be written again\n",
		kept, pages_mib((uint64_t)kept));
}

/* Prints the whole lines in `lines`, and removes them. Messages of a successful unmount go to
 * standard output. Returns true if there was a line. */
static bool say_words(struct unmount *u, char *lines, const json_t *identity)
{
	long long pid = json_integer_value(json_object_get(identity, "pid"));
	bool said = false;
	char *end;

	while ((end = strchr(lines, '\n'))) {
		json_t *word = json_loadb(lines, (size_t)(end - lines), 0, NULL);

		if (*client_text(word, "to"))
			say_serves_on(u, word, pid);
		else if (*client_text(word, "awaits"))
			say_awaits(u, word, pid);
		else if (*client_text(word, "unwritten"))
			say_unwritten(u, word);
		fflush(stdout); /* the next step may take long */
		json_decref(word);
		memmove(lines, end + 1, strlen(end + 1) + 1);
		said = true;
	}
	return said;
}

static void wait_closed(struct unmount *u, int fd, const json_t *identity)
{
	char lines[CLIENT_LAST_BYTES] = "";
	bool said = false;

	for (int waited_ms = LOOK_MS; !client_wait_end(fd, LOOK_MS, lines);
		waited_ms += LOOK_MS) {
		said |= say_words(u, lines, identity);
		if (said || waited_ms < SAY_AFTER_MS)
			continue;
		printf("%s: waiting for weftd (process %lld) to write everything back; "
		       "it "
		       "also "
		       "goes on\nwhile another mount namespace has the volume mounted\n",
			u->who,
			(long long)json_integer_value(json_object_get(identity, "pid")));
		fflush(stdout);
		said = true;
	}
	say_words(u, lines, identity);
}

/* Returns true if systemd is shutting this machine down. */
static bool machine_stops(void)
{
	char state[32] = "";
	FILE *f;

	if (access("/run/systemd/system", F_OK) < 0)
		return false;
	f = popen("/bin/systemctl is-system-running 2>/dev/null", "re");
	if (f && !fgets(state, sizeof(state), f))
		state[0] = '\0';
	if (f)
		pclose(f);
	return strcmp(state, "stopping\n") == 0;
}

/* Ends the daemon as `kill` does: it leaves the other nodes in order, while there is a network. */
static void end_daemon(const struct unmount *u, pid_t pid)
{
	int daemon = pidfd_open(pid, 0);
	struct pollfd end = {.fd = daemon, .events = POLLIN};

	printf("%s: the machine stops: weftd (process %d) leaves the other nodes\n", u->who, pid);
	fflush(stdout);
	if (daemon < 0 || pidfd_send_signal(daemon, SIGTERM, NULL, 0) < 0 ||
		poll(&end, 1, LEAVE_MS) <= 0)
		fprintf(stderr, "%s: weftd (process %d) has not ended\n", u->who, pid);
	if (daemon >= 0)
		close(daemon);
}

static int unmount_volume(struct unmount *u, const char *name)
{
	struct weft_error err = {0}, none = {0};
	json_t *identity = NULL;
	char *directory;
	int fd, ret = 0;

	guardian_sweep();
	fd = client_find(name, &identity, &none);
	directory = identity ? strdup(client_text(identity, "mount_point"))
			     : client_path(name);
	if (!directory)
		ret = weft_error(&err, -ENOMEM, "no memory");
	else if (fd == -ENOTUNIQ && !u->top)
		ret = weft_error(&err, fd, "%s", none.text);
	if (ret == 0)
		ret = check_mount(directory, identity, &err);
	if (ret == 0)
		ret = take_away(u, directory, &err);
	if (ret < 0)
		fprintf(stderr, "%s: %s: %s\n", u->who, name, err.text);
	else if (fd >= 0 && !u->lazy)
		wait_closed(u, fd, identity);
	if (u->serves_on && u->top && machine_stops())
		end_daemon(u, (pid_t)json_integer_value(json_object_get(identity, "pid")));
	if (fd >= 0)
		close(fd);
	json_decref(identity);
	free(directory);
	return ret < 0 ? EXIT_MOUNT : u->unwritten ? EXIT_UNWRITTEN : 0;
}

int weft_umount(int argc, char **argv)
{
	static const struct option words[] = {{"lazy", no_argument, NULL, 'l'},
		{"force", no_argument, NULL, 'f'}, {"help", no_argument, NULL, 'h'}, {0}};
	struct unmount u = {.who = "weft umount"};
	int c;

	while ((c = getopt_long(argc, argv, "lfh", words, NULL)) != -1) {
		if (c == 'l')
			u.lazy = true;
		else if (c == 'f')
			u.force = true;
		else
			return weft_option(usage, c, argv, words);
	}
	if (weft_operands(usage, argc, argv, 1, 1, "DIR|STORE|FILE|LABEL|UUID"))
		return EXIT_USAGE;
	return unmount_volume(&u, argv[optind]);
}

int umount_helper(int argc, char **argv)
{
	struct unmount u = {.who = "umount", .top = true};
	int c;

	while ((c = getopt(argc, argv, "fnlrvN:t:")) != -1) {
		if (c == 'l')
			u.lazy = true;
		else if (c == 'f')
			u.force = true;
		else if (c == 'N' || c == '?')
			return EXIT_USAGE;
	}
	if (argc - optind != 1)
		return weft_usage("Usage: umount.fuse.weft [-fnlrv] DIR\n", false);
	return unmount_volume(&u, argv[optind]);
}
