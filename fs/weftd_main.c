/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weftd STORE DIR [-o OPTIONS] [-f]: serves one volume at one mount point. With --unmounted it
 * serves only other nodes.
 *
 * Opens the layers from below (store, volume, operations, mount, session, control socket). Waits
 * for a signal or the end of the mount. Then closes from above. The store is free when the process
 * has ended.
 */
#include <errno.h>
#include <malloc.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/signalfd.h>
#include <sys/mount.h>
#include <sys/stat.h>
#include <fcntl.h>
#include <unistd.h>

#include "engine/node/client_logs.h"
#include "fs/arguments.h"
#include "fs/daemon.h"
#include "fs/daemonize.h"
#include "fs/mount.h"
#include "fs/rights.h"
#include "fs/service.h"
#include "fs/takeover.h"

#ifndef PR_SET_IO_FLUSHER
#define PR_SET_IO_FLUSHER 57
#endif

/* After a signal to a busy mount: time that programs with open files may go on. */
#define DRAIN_MS 5000
/* Least time between two looks at the mount table, which may be long. */
#define REMOUNT_REST_MS 1000
/* After a signal: time that this node waits for others that still use its store. */
#define LEAVE_MS 10000
/* And the time that it waits for data that only other nodes have. */
#define CUT_MS 20000
/* Without a mount: time that this node waits for others to serve. */
#define NOBODY_MS 60000
/* Time that a killed daemon may still have the store. */
#define DYING_MS      6000
#define DYING_LOOK_NS 20000000ull

static int report_error(const struct weft_error *err, int code)
{
	if (service_managed())
		weft_log(3, "%s", err->text);
	else
		fprintf(stderr, "weftd: %s\n", err->text);
	service_tell_status("%s", err->text);
	return code;
}

/* ---- start ----------------------------------------------------------------- */

static void process_prepare(void)
{
	struct rlimit files;

	if (getrlimit(RLIMIT_NOFILE, &files) == 0) {
		files.rlim_cur = files.rlim_max;
		setrlimit(RLIMIT_NOFILE, &files);
	}
	signal(SIGPIPE, SIG_IGN);
	prctl(PR_SET_NAME, "weftd"); /* independent of the path of its program */
	/* libfuse allocates a little on each worker. An arena per thread would cost megabytes. */
	mallopt(M_ARENA_MAX, 2);
	/* When the kernel reclaims memory through this process, it must not wait for it (prctl(2)).
	 * A hint. */
	prctl(PR_SET_IO_FLUSHER, 1, 0, 0, 0);
}

/* Before any thread exists, so that all of them have the signals blocked. */
static int signals_prepare(struct daemon *d, struct weft_error *err)
{
	sigset_t set;

	sigemptyset(&set);
	sigaddset(&set, SIGTERM);
	sigaddset(&set, SIGINT);
	sigaddset(&set, SIGHUP);
	if (sigprocmask(SIG_BLOCK, &set, NULL) < 0)
		return weft_error(err, -errno, "sigprocmask: %s", strerror(errno));
	d->signal_fd = signalfd(-1, &set, SFD_CLOEXEC);
	d->ended_fd = eventfd(0, EFD_CLOEXEC);
	if (d->signal_fd < 0 || d->ended_fd < 0)
		return weft_error(err, -errno, "signalfd, eventfd: %s", strerror(errno));
	return 0;
}

/* If the volume cannot be written, reading sets no times either. */
static struct ops_options ops_options_of(const struct mount_options *o)
{
	return (struct ops_options){
		.atime = o->read_only ? OPS_NOATIME : o->atime,
		.nodiratime = o->flags & MS_NODIRATIME,
		.names_sync = o->flags & (MS_SYNCHRONOUS | MS_DIRSYNC),
		.mmap = o->mmap,
		.caller_forgets = true,
	};
}

/* Returns true if this daemon only serves other nodes, and finds none. As a service it waits for
 * them. */
static bool is_for_nobody(const struct daemon *d)
{
	const struct cluster_member *m = NULL;
	struct node_link l;

	if (!d->unmounted || d->stays || service_managed() ||
		rt_now_ns() - d->started_ns < NOBODY_MS * 1000000ull)
		return false;
	while ((m = cluster_next(d->source.cluster, m)))
		if (d->node && node_link(d->node, m->id, &l) == 0 && l.connected)
			return false;
	return true;
}

/* Waiting for other nodes ends after a signal. The signal is left for the main wait. While the
 * volume is opened waiting ends at once, later it continues for some time. */
static enum node_patience signal_patience(void *arg)
{
	struct daemon *d = arg;
	struct pollfd p = {.fd = d->signal_fd, .events = POLLIN};
	uint64_t none = 0, now = rt_now_ns();

	if (!atomic_load(&d->served) && (atomic_load(&d->dismissed) || is_for_nobody(d)))
		return NODE_CUT;
	if (poll(&p, 1, 0) <= 0)
		return NODE_WAITS;
	if (!atomic_load(&d->served))
		return NODE_CUT;
	if (!atomic_compare_exchange_strong(&d->signal_at, &none, now) &&
		now - none >= LEAVE_MS * 1000000ull)
		return now - none >= CUT_MS * 1000000ull ? NODE_CUT : NODE_ALONE;
	return NODE_WAITS;
}

/*
 * Ends the process as in a crash: another process has used the store meanwhile. Its changes must
 * not be overwritten, and the pages of this process must not be used. The mount answers with
 * ENOTCONN.
 */
static void end_superseded(void *arg, const char *text)
{
	struct daemon *d = arg;

	weft_log(2, "%s: %s; this weftd ends", d->options.store, text);
	service_tell_status("%s", text);
	guardian_restarts(&d->guardian, false);
	_exit(EXIT_MOUNT);
}

/* The dead node's locks are void. Requests that wait for them go on. */
static void node_dead(void *arg, unsigned node, uint64_t incarnation)
{
	struct daemon *d = arg;

	rt_mutex_lock(&d->fs_lock);
	if (d->fs_open)
		ops_locks_heard(d->fs, node, incarnation + 1);
	rt_mutex_unlock(&d->fs_lock);
}

static void fs_lend(struct daemon *d, bool open)
{
	rt_mutex_lock(&d->fs_lock);
	d->fs_open = open;
	rt_mutex_unlock(&d->fs_lock);
}

static int node_start(
	struct daemon *d, struct volume_options *options, struct weft_error *err)
{
	const struct node_options o = {
		.cluster = d->source.cluster,
		.node = d->source.node,
		.machine = d->source.machine,
		.patience = signal_patience,
		.serves_on = report_serves_on,
		.awaits = report_awaited,
		.waits = report_waits,
		.superseded = end_superseded,
		.dead = node_dead,
		.owner = d,
	};
	int rc;

	if (!source_shared(&d->source))
		return 0;
	rc = node_open(&d->node, &o, err);
	if (rc == 0)
		options->peers = node_volume_peers(d->node);
	return rc;
}

/* Checks that the store would be opened, so that no daemon is asked to leave for a start that
 * fails. */
static int store_look(const struct daemon *d, struct weft_error *err)
{
	struct volume_options expected = {0};
	struct weft_error why = {0}; /* without the path */
	struct rt_disk *disk;
	struct store *s;
	int rc = rt_disk_open(&disk, d->options.store, RT_DISK_READ_ONLY, err);

	if (rc < 0)
		return rc;
	source_expect(&d->source, &expected);
	rc = store_open(&s, disk,
		&(struct store_options){.read_only = true,
			.volume_uuid = expected.volume_uuid,
			.node = expected.node,
			.shard = expected.shard,
			.key = expected.key,
			.file = expected.file,
			.nodes = expected.nodes},
		&why);
	if (rc == 0)
		store_close(s);
	else
		weft_error(err, rc, "%s: %s", d->options.store, why.text);
	rt_disk_close(disk);
	return rc;
}

/* Checks whether the store is used by an unmounted daemon of this node, which still serves it to
 * other nodes. */
static int store_ask(struct daemon *d, struct weft_error *err)
{
	struct weft_error why = {0};
	int rc = store_look(d, &why);

	if (rc == 0)
		rc = takeover_wait(d->options.store, &why);
	if (why.code)
		*err = why;
	return rc;
}

/* Takes the store. A killed daemon may release it in a moment, or a daemon that takes its place can
 * be asked. */
static int store_take(
	struct daemon *d, unsigned flags, struct rt_disk **disk, struct weft_error *err)
{
	uint64_t until = rt_now_ns() + DYING_MS * 1000000ull;
	int rc;

	for (;;) {
		*err = (struct weft_error){0};
		rc = rt_disk_open(disk, d->options.store, flags, err);
		if (rc != -EBUSY || !source_shared(&d->source))
			return rc;
		rc = d->unmounted && !d->stays ? -EBUSY : store_ask(d, err);
		if (rc == -ESRCH && rt_now_ns() >= until)
			rc = -EBUSY;
		if (rc < 0 && rc != -ESRCH)
			return rc;
		if (rc < 0)
			rt_sleep_ns(DYING_LOOK_NS);
	}
}

static bool waits_for_host(void *arg)
{
	return signal_patience(arg) != NODE_CUT;
}

/* Opens the node's store. A client has its log at another node. */
static int disk_open(
	struct daemon *d, struct rt_disk **out, bool read_only, struct weft_error *err)
{
	struct remote_log_options r = {.cluster = d->source.cluster,
		.node = d->source.node,
		.waits = waits_for_host,
		.owner = d};
	int rc;

	if (!source_is_client(&d->source)) {
		rc = store_take(d,
			RT_DISK_EXCLUSIVE | (read_only ? RT_DISK_READ_ONLY : 0), out,
			err);
		return rc < 0 ? weft_error(err, rc, "cannot open %s: %s",
					 d->options.store, strerror(-rc))
			       : 0;
	}
	source_format(&d->source, &r.format);
	rc = remote_log_open(out, &r, err);
	explicit_bzero(r.format.key, sizeof(r.format.key));
	return rc;
}

/* Called once the store is taken. From here on a new mount can ask for it. */
static int control_start(
	struct daemon *d, const uint8_t store_uuid[16], struct weft_error *err)
{
	const struct control_source source = {
		.status = status_build,
		.waits = status_waits,
		.look = status_look,
		.identify = status_identify,
		.leave = status_leave,
		.sync = status_sync,
		.reload = reload_cluster,
		.dead = declare_dead,
		.scrub = scrub_command,
		.arg = d,
	};

	return control_open(&d->control, store_uuid, &source, err);
}

/* A store served without a mount must yield to a mount as soon as it is taken. Recovery may end
 * long after that. */
static int store_announce(struct daemon *d, struct rt_disk *disk, struct weft_error *err)
{
	uint8_t uuid[16];
	int rc;

	if (!d->unmounted || d->stays || source_is_client(&d->source))
		return 0;
	rc = takeover_store_uuid(d->options.store, uuid);
	if (rc < 0)
		weft_error(err, rc, "%s: not a weft store", d->options.store);
	else
		rc = control_start(d, uuid, err);
	if (rc < 0)
		rt_disk_close(disk);
	return rc;
}

static int volume_start(struct daemon *d, struct weft_error *err)
{
	const struct mount_options *o = &d->options;
	/* If other nodes use the store, it is written for them, even if this mount is read-only. */
	const bool read_only = o->read_only && !source_shared(&d->source);
	struct volume_options options = {
		.read_only = read_only,
		.background = true,
		.cache = {.cache_bytes = o->cache_bytes, .read_only = read_only},
		.learned_bytes = mount_options_learned(o),
		.log = {.flush_interval_ms = o->log_interval_ms},
	};
	struct ops_options ops = ops_options_of(o);
	struct weft_error why = {0}; /* without the path, which only this function knows */
	struct rt_disk *disk;
	int rc;

	source_expect(&d->source, &options);
	rc = node_start(d, &options, err);
	if (rc < 0)
		return rc;
	ops.caller_forgets = !d->unmounted;
	rc = disk_open(d, &disk, read_only, err);
	if (rc == 0)
		rc = store_announce(d, disk, err);
	if (rc < 0)
		return rc;
	rc = volume_open(&d->volume, disk, &options, &why);
	if (rc < 0)
		return weft_error(err, rc, "%s: %s", o->store,
			why.code ? why.text : strerror(-rc));
	if (d->source.cluster)
		cluster_heard(d->source.cluster, d->source.node,
			store_superblock(d->volume->store)->incarnation);
	rc = fs_open(&d->fs, d->volume, &ops, &why);
	if (rc < 0) {
		weft_error(err, rc, "%s: %s", o->store,
			why.code ? why.text : strerror(-rc));
		if (d->node)
			node_alone(d->node);
		volume_close(d->volume);
	} else {
		fs_lend(d, true);
	}
	return rc;
}

static int volume_stop(struct daemon *d)
{
	struct volume_rest rest;
	int rc;

	service_tell("STOPPING=1");
	service_tell_status("Closing %s.", d->options.store);
	fs_lend(d, false);
	fs_close(d->fs);
	rc = volume_close_rest(d->volume, &rest);
	if (rc == -EHOSTDOWN && !rest.lost)
		weft_log(4, "closing %s: %s; the next mount will recover it",
			d->options.store, strerror(-rc));
	else if (rc < 0)
		report_unwritten(d, rc, &rest);
	return rc;
}

/* Sends the first request through the kernel. When it returns, the mount is up. */
static int mount_answers(struct daemon *d, struct weft_error *err)
{
	struct stat st;

	if (stat(d->options.directory, &st) < 0)
		return weft_error(err, -errno, "the mount on %s does not answer: %s",
			d->options.directory, strerror(errno));
	d->device = st.st_dev;
	session_answers(d->session, d->options.directory, st.st_dev);
	fuse_mount_tune(&d->options);
	remount_watch(&d->remount, d->options.directory);
	return 0;
}

/*
 * Chooses whether to use io_uring. A request in a ring stays with its entry until it is answered.
 * Requests that have queued up meanwhile do not move to new entries. So requests that wait for
 * others of the same mount (locks of several nodes) could wait for ever.
 */
static int uring_choose(
	const struct daemon *d, enum uring_mode *mode, struct weft_error *err)
{
	*mode = d->options.uring;
	if (!ops_locks_shared(d->fs))
		return *mode == URING_ON ? uring_check(err) : 0;
	if (*mode == URING_ON)
		return weft_error(err, -EOPNOTSUPP,
			"option uring=on: requests of a volume of several nodes wait for "
			"each other, which the kernel's rings do not allow for");
	*mode = URING_OFF;
	return 0;
}

static int mount_start(struct daemon *d, struct weft_error *err)
{
	const struct mount_options *o = &d->options;
	enum uring_mode uring;
	int device, ret;

	ret = uring_choose(d, &uring, err);
	if (ret < 0)
		return ret;
	device = fuse_mount_open(o, o->cluster_file ? o->cluster_file : o->store, err);
	if (device < 0)
		return device;
	d->unguarded = guardian_connection(&d->guardian, o->directory, device);
	ret = session_start(&d->session, d->fs, device,
		&(struct session_options){.ended_fd = d->ended_fd,
			.uring = uring,
			.soft_ns = o->soft ? o->timeout_ms * 1000000ull : 0,
			.noted = guardian_noted(&d->guardian),
			.waits = away_told,
			.owner = d},
		err);
	if (ret == 0)
		ret = mount_answers(d, err);
	if (ret == 0 && uring == URING_ON && !session_uses_uring(d->session))
		ret = weft_error(err, -EOPNOTSUPP,
			"option uring=on: io_uring cannot be used here (is it allowed? "
			"see "
			"/proc/sys/kernel/io_uring_disabled); uring=auto does without");
	if (ret < 0)
		fuse_mount_close(d->options.directory, true);
	return ret;
}

/* ---- remounts ---------------------------------------------------------------------- */

/* The options in the status show the rules in force, so they change last. After a change to
 * read-only, the user may expect that all data are written. */
static void follow_remount(struct daemon *d)
{
	struct mount_options next = d->options;
	struct ops_options ops;
	char text[512];

	if (!remount_look(&d->remount, &next))
		return;
	ops = ops_options_of(&next);
	fs_reconfigure(d->fs, &ops);
	if (next.read_only && !d->options.read_only) {
		int rc = ops_syncfs(d->fs);

		if (rc < 0)
			weft_log(3, "%s is read-only now, but not durable: %s",
				next.directory, strerror(-rc));
	}
	if (next.atime == OPS_STRICTATIME && fs_opens_hidden(d->fs))
		weft_log(5,
			"%s: reads that the kernel answers alone move no access time "
			"before the next mount",
			next.directory);
	rt_mutex_lock(&d->options_lock);
	d->options.read_only = next.read_only;
	d->options.atime = next.atime;
	d->options.flags = next.flags;
	rt_mutex_unlock(&d->options_lock);
	mount_options_print(&next, text, sizeof(text));
	weft_log(6, "%s remounted: %s", next.directory, text);
}

/* ---- end ------------------------------------------------------------------------- */

/* Waits until the kernel has ended the connection, or a signal has come. */
static void wait_for_end_or_signal(struct daemon *d)
{
	struct pollfd fds[] = {
		{.fd = d->ended_fd, .events = POLLIN},
		{.fd = d->signal_fd, .events = POLLIN},
		{.events = POLLPRI},
	};
	uint64_t rests_until = 0;
	bool rests = false;

	do {
		if (fds[2].revents) {
			follow_remount(d);
			rests_until = rt_now_ns() + REMOUNT_REST_MS * 1000000ull;
		}
		rests = rt_now_ns() < rests_until;
		fds[2].fd = rests ? -1 : d->remount.table;
		fds[2].revents = 0;
		if (poll(fds, ARRAY_SIZE(fds), rests ? REMOUNT_REST_MS : -1) < 0 &&
			errno != EINTR)
			break;
	} while (!fds[0].revents && !fds[1].revents);
}

/* After a signal: lets programs with open files go on for a while. */
static void wait_for_drain(struct daemon *d)
{
	struct pollfd end = {.fd = d->ended_fd, .events = POLLIN};

	while (poll(&end, 1, DRAIN_MS) < 0)
		if (errno != EINTR)
			break;
}

/*
 * Fetches stores of mappings from the kernel while the daemon still serves it. Unmounting does so
 * only if there is no other user of the filesystem: an open file, a bind mount, or another mount
 * namespace.
 */
static void fetch_mapped_pages(const char *directory)
{
	int fd = open(directory, O_RDONLY | O_DIRECTORY | O_CLOEXEC);

	if (fd < 0)
		return;
	if (syncfs(fd) < 0)
		weft_log(4, "syncfs on %s: %s", directory, strerror(errno));
	close(fd);
}

static void unmount_by_signal(struct daemon *d)
{
	const char *directory = d->options.directory;
	int rc = -EINVAL;

	if (remount_is_there(&d->remount, directory)) {
		fetch_mapped_pages(directory);
		rc = fuse_mount_close(directory, false);
	}
	if (rc == -EBUSY) {
		weft_log(4, "%s is in use: detached; programs that use it have %d s",
			directory, DRAIN_MS / 1000);
		rc = fuse_mount_close(directory, true);
	}
	if (rc == -EINVAL)
		weft_log(4,
			"%s no longer leads to this weftd's mount; programs that use "
			"it have %d s",
			directory, DRAIN_MS / 1000);
	else if (rc < 0)
		weft_log(3, "cannot unmount %s: %s", directory, strerror(-rc));
	wait_for_drain(d);
}

static void serve_until_unmount(struct daemon *d)
{
	if (d->node)
		node_serving(d->node);
	wait_for_end_or_signal(d);
	if (d->node)
		node_watch(d->node);
	if (!session_ended(d->session)) {
		guardian_restarts(&d->guardian, false); /* the signal asks for an end */
		service_tell("STOPPING=1");
		service_tell_status("Unmounting %s.", d->options.directory);
		unmount_by_signal(d);
	}
	if (!d->node)
		control_detach(d->control);
	/* Otherwise the requests of programs on a busy mount might never end. */
	fs_leave(d->fs);
	session_quiesce(d->session);
	weft_log(6, "%s unmounted from %s", d->options.store, d->options.directory);
}

/* Called when the mount is gone and other nodes still use the store. */
static void leave_nodes(struct daemon *d)
{
	atomic_store(&d->leaving, true);
	scrub_halt(d->scrub);
	node_leave(d->node);
	fs_leave(d->fs); /* otherwise requests of the control socket might never end */
	control_detach(d->control);
}

/* Without a mount, for other nodes, as long as somebody wants this node to run here. */
static void serve_until_signal(struct daemon *d)
{
	struct pollfd p = {.fd = d->signal_fd, .events = POLLIN};

	node_serving(d->node);
	while (poll(&p, 1, -1) < 0)
		if (errno != EINTR)
			break;
	node_watch(d->node);
}

/* Starts the guardian. If the daemon is killed, nodes that need its data then wait only for its
 * restart. */
static void start_guardian(struct daemon *d, int argc, char **argv)
{
	int rc;

	if (d->unmounted) /* most likely by a guardian, which also watches it */
		return;
	d->again = arguments_unmounted(&d->options);
	rc = d->again ? guardian_start(&d->guardian, argc, argv, d->again,
				kcache_inodes(d->options.cache_bytes / PAGE_SIZE))
		      : -ENOMEM;
	if (rc < 0)
		weft_log(4, "cannot start a guardian: %s", strerror(-rc));
}

static int engine_start(struct daemon *d, int argc, char **argv, struct weft_error *err)
{
	int rc = rt_real_start();

	if (rc < 0)
		return weft_error(
			err, rc, "cannot start the runtime: %s", strerror(-rc));
	source_cache(&d->options); /* the guardian is told of it */
	start_guardian(d, argc, argv);
	d->started_ns = rt_now_ns();
	rc = source_open(&d->source, &d->options, err);
	if (rc == 0 && d->unmounted && !source_shared(&d->source))
		rc = weft_error(err, -EINVAL,
			"%s names no other node that could be served without a mount",
			d->options.store);
	return rc < 0 ? rc : volume_start(d, err);
}

/* For the service manager's watchdog: takes the locks of all layers, and waits for no device and no
 * other node. */
static void describe_itself(void *arg)
{
	json_decref(status_build(arg));
}

static int start_metrics(struct daemon *d, struct weft_error *err)
{
	const struct metrics_source source = {
		.status = status_build,
		.counters = status_counters,
		.arg = d,
	};

	return *d->options.metrics ? metrics_server_open(&d->metrics, d->options.metrics,
					     &source, err)
				   : 0;
}

/* From here on the daemon answers requests. */
static int start_answering(struct daemon *d, struct weft_error *err)
{
	int rc = d->control
			  ? 0
			  : control_start(d,
				    store_superblock(d->volume->store)->store_uuid, err);

	if (rc == 0)
		rc = scrub_attach(d, err);
	if (rc == 0)
		rc = start_metrics(d, err);
	if (rc == 0) {
		rc = service_watchdog_start(describe_itself, d);
		if (rc < 0)
			weft_error(err, rc, "cannot start the watchdog: %s", strerror(-rc));
	}
	if (rc < 0)
		return rc;
	control_attach(d->control);
	daemonize_ready();
	report_mounted(d);
	service_tell("READY=1");
	atomic_store(&d->served, true);
	guardian_restarts(&d->guardian, d->node && d->options.restart);
	return 0;
}

static int daemon_run(struct daemon *d, int argc, char **argv, struct weft_error *err)
{
	int rc;

	process_prepare();
	rights_drop();
	rc = signals_prepare(d, err);
	if (rc == 0)
		rc = engine_start(d, argc, argv, err);
	if (rc < 0)
		goto out_control;
	if (!d->unmounted)
		rc = mount_start(d, err);
	if (rc < 0)
		goto out_volume;
	rc = start_answering(d, err);
	if (rc < 0) {
		if (!d->unmounted)
			fuse_mount_close(d->options.directory, true);
		goto out_volume;
	}
	if (!d->unmounted)
		serve_until_unmount(d);
	else if (d->stays)
		serve_until_signal(d);
	else if (atomic_load(&d->dismissed))
		node_alone(d->node);
	if (d->node)
		leave_nodes(d);
out_volume:
	metrics_server_close(d->metrics);
	service_watchdog_stop(); /* as the metrics, it looks at all that is closed below */
	if (d->node && rc < 0)
		node_alone(d->node); /* it was never used here */
	if (d->session)
		session_quiesce(d->session);
	if (rc < 0 && d->control)
		control_detach(d->control);
	scrub_close(d->scrub);
	if (volume_stop(d) < 0 && rc == 0)
		rc = weft_error(err, -EIO, "the volume was not closed cleanly");
	if (d->session)
		session_free(d->session);
out_control:
	if (d->control)
		control_detach(d->control);
	control_close(d->control); /* last: its end shows that the store is free */
	return rc;
}

/* A service that was stopped while it waited for other nodes has not failed. */
static int report_end(const struct weft_error *err, bool unheard)
{
	if (service_managed() && err->code == -EINTR)
		return report_error(err, 0);
	if (unheard)
		weft_log(3, "%s", err->text);
	return report_error(err, EXIT_MOUNT);
}

/* Returns true if this is a service without a mount, and ends because all other nodes have left. */
static bool stays_at_service(struct daemon *d)
{
	return d->unmounted && service_managed() && !source_is_client(&d->source) &&
	       !atomic_load(&d->dismissed) && !atomic_load(&d->signal_at);
}

int main(int argc, char **argv)
{
	struct daemon d = {0};
	struct weft_error err = {0};
	struct arguments arguments;
	bool unheard = fcntl(STDERR_FILENO, F_GETFD) < 0;
	int code;

	if (rt_stdio_open() < 0) {
		fprintf(stderr, "weftd: cannot open /dev/null: %s\n", strerror(errno));
		return EXIT_MOUNT;
	}
	service_open();
	mount_options_default(&d.options);
	if (arguments_parse(&arguments, &d.options, argc, argv, &code, &err) < 0)
		return err.code ? report_error(&err, code) : code;
	d.unmounted = arguments.unmounted;
	d.stays = arguments.stays;
	atomic_store(&d.leaving, d.unmounted && !d.stays);
	if (unheard)
		daemonize_unheard();
	code = arguments.foreground ? 0 : daemonize_begin();
	if (code < 0) {
		fprintf(stderr, "weftd: cannot go to the background: %s\n",
			strerror(-code));
		return EXIT_MOUNT;
	}
	if (daemon_run(&d, argc, argv, &err) < 0)
		code = report_end(&err, unheard);
	else
		code = stays_at_service(&d) ? EXIT_AGAIN : 0;
	guardian_stop(&d.guardian);
	free(d.again);
	node_close(d.node);
	source_close(&d.source);
	mount_options_free(&d.options);
	return code;
}
