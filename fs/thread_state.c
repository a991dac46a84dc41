/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Decides whether a thread has taken in its answer.
 *
 * A thread that was given the answer for which it slept continues in the kernel and takes the
 * answer in. Meanwhile it sleeps only for memory, and for an inode that is just being forgotten. No
 * signal ends that sleep (state D). So the thread is past that if it is seen in another sleep,
 * stopped, or to have spent time in its program. It is also past that if it sleeps in state D for a
 * lock that Linux takes before a request or after the answer. The thread with that lock may be
 * waiting for weft.
 */
#include "fs/thread_state.h"

#include "engine/rt/rt.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/capability.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <unistd.h>

#define LOCK_NS 1000000000ull

/* Length, or -errno. */
static ssize_t proc_read(uint32_t thread, const char *what, char *text, size_t room)
{
	char path[64];
	ssize_t got;
	int fd;

	snprintf(path, sizeof(path), "/proc/%u/task/%u/%s", thread, thread, what);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return -errno;
	got = read(fd, text, room - 1);
	if (got < 0)
		got = -errno;
	close(fd);
	text[got < 0 ? 0 : got] = 0;
	return got;
}

/*
 * Returns true if the thread is off the processor's queue, so asleep: Linux then names the
 * function. It does not for a thread that is about to sleep, or was woken and has not run yet. The
 * state of such a thread may still be a sleep.
 */
static bool sleeps_in(uint32_t thread, char *place, size_t room)
{
	return proc_read(thread, "wchan", place, room) > 0 && *place != '0';
}

static bool is_asleep(uint32_t thread)
{
	char place[128];

	return sleeps_in(thread, place, sizeof(place));
}

/* Returns true if /proc uses the same numbers of threads. */
static bool has_proc(void)
{
	char self[32];
	ssize_t got = readlink("/proc/self", self, sizeof(self) - 1);

	if (got < 0)
		return false;
	self[got] = 0;
	return strtol(self, NULL, 10) == getpid();
}

/* Returns true if /proc shows stacks, of all threads. */
static bool may_look(void)
{
	return has_proc() && geteuid() == 0 &&
	       prctl(PR_CAPBSET_READ, CAP_SYS_PTRACE, 0, 0, 0) == 1 &&
	       access("/proc/self/stack", R_OK) == 0;
}

uint32_t thread_uid(uint32_t thread)
{
	uint32_t real, effective, saved, uid;
	char text[4096];
	const char *at;

	if (!thread || !has_proc() ||
		proc_read(thread, "status", text, sizeof(text)) <= 0)
		return UINT32_MAX;
	at = strstr(text, "\nUid:");
	return at && sscanf(at, "\nUid: %u %u %u %u", &real, &effective, &saved, &uid) ==
				       4
		       ? uid
		       : UINT32_MAX;
}

/* The stack of a running thread is empty. A thread that has ended has none. Neither means that the
 * state of threads cannot be read. */
int thread_seen(uint32_t thread)
{
	char stack[256];
	ssize_t got;

	if (!may_look())
		return -1;
	got = proc_read(thread, "stack", stack, sizeof(stack));
	if (got == -EACCES || got == -EPERM)
		return -1;
	return got > 0 && is_asleep(thread);
}

/* The functions of Linux (6.18) that sleep for the lock of a directory or an inode, or for another
 * answer. The function that takes in the answer to LOOKUP is none of them, but they may call it. */
static bool is_lock(const char *place)
{
	static const char *const locks[] = {"chmod_common", "chown_common",
		"do_renameat2", "do_rmdir", "do_truncate", "do_unlinkat",
		"filename_create", "filename_rmdir", "filename_unlinkat",
		"fuse_cache_write_iter", "fuse_file_write_iter", "fuse_flush",
		"fuse_lock_inode", "iterate_dir", "lock_rename", "lock_two_directories",
		"lock_two_nondirectories", "lookup_one_qstr_excl", "lookup_slow",
		"open_last_lookups", "path_openat", "request_wait_answer", "start_dirop",
		"vfs_link", "vfs_removexattr", "vfs_rename", "vfs_rmdir", "vfs_setxattr",
		"vfs_unlink", "vfs_utimes", "walk_component"};

	for (size_t i = 0; i < ARRAY_SIZE(locks); i++)
		if (strcmp(place, locks[i]) == 0)
			return true;
	return false;
}

/* Returns how often the thread has gone to sleep. 0: not known, so always the same. */
static uint64_t times_slept(uint32_t thread)
{
	static const char word[] = "\nvoluntary_ctxt_switches:";
	char text[4096];
	const char *at;

	if (proc_read(thread, "status", text, sizeof(text)) <= 0)
		return 0;
	at = strstr(text, word);
	return at ? strtoull(at + strlen(word), NULL, 10) : 0;
}

/* For state D. Sleeps for memory are short. A sleep of LOCK_NS at a place not known above is also
 * for a lock. */
static bool sleeps_for_lock(uint32_t thread, struct kcache_seen *seen)
{
	uint64_t slept, now = rt_now_ns();
	char place[128];

	if (!sleeps_in(thread, place, sizeof(place)))
		return false;
	if (is_lock(place))
		return true;
	slept = times_slept(thread);
	if (!seen->since_ns || slept != seen->slept) {
		seen->slept = slept;
		seen->since_ns = now;
		return false;
	}
	return now - seen->since_ns >= LOCK_NS;
}

/* Reads the third word of /proc/[pid]/stat, the state, to the fourteenth, the time spent in the
 * program. */
static bool has_run(const char *state, struct kcache_seen *seen)
{
	const char *at = state;
	uint64_t user;
	bool more;

	for (unsigned i = 3; i < 14 && at; i++) {
		at = strchr(at, ' ');
		at = at ? at + 1 : NULL;
	}
	if (!at)
		return false;
	user = strtoull(at, NULL, 10) + 1;
	more = seen->ran && user > seen->ran;
	if (!seen->ran)
		seen->ran = user;
	return more;
}

bool thread_returned(uint32_t thread, struct kcache_seen *seen)
{
	char text[512];
	ssize_t got = proc_read(thread, "stat", text, sizeof(text));
	const char *state;

	if (got < 0)
		return got == -ENOENT || got == -ESRCH;
	state = strrchr(text, ')'); /* behind the thread's name */
	if (!state || strlen(state) < 3)
		return false;
	state += 2;
	if (*state == 'D' || *state == 'R')
		return has_run(state, seen) ||
		       (*state == 'D' && sleeps_for_lock(thread, seen));
	return *state != 'S' || is_asleep(thread);
}

/* Returns true if one of the functions is on the stack, by its name. A compiler may have added a
 * suffix. */
static bool is_within(const char *stack, const char *const *function, size_t count)
{
	for (size_t i = 0; i < count; i++) {
		size_t len = strlen(function[i]);

		for (const char *at = stack; (at = strstr(at, function[i])); at += len)
			if (at > stack && at[-1] == ' ' &&
				(at[len] == '+' || at[len] == '.'))
				return true;
	}
	return false;
}

/* The functions of Linux (6.18) that check a directory's permission. The first group then looks up
 * a name in the directory without a lock. The second has the directory locked, or looks up no name.
 */
enum kcache_walk thread_walks(uint32_t thread)
{
	static const char *const into[] = {"link_path_walk", "lookup_one_unlocked",
		"lookup_one_positive_unlocked", "lookup_noperm_unlocked",
		"start_creating", "start_removing", "start_renaming"};
	static const char *const none[] = {"lookup_one", "vfs_statx", "vfs_fstat",
		"vfs_getattr", "vfs_create", "vfs_mkdir", "vfs_mknod", "vfs_symlink",
		"vfs_link", "vfs_unlink", "vfs_rmdir", "vfs_rename", "vfs_tmpfile",
		"path_openat", "lookup_open", "open_last_lookups", "notify_change",
		"vfs_setxattr", "vfs_getxattr", "vfs_removexattr", "vfs_set_acl",
		"vfs_remove_acl", "do_faccessat", "iterate_dir", "__do_sys_chdir",
		"__do_sys_fchdir"};
	char stack[4096];

	if (proc_read(thread, "stack", stack, sizeof(stack)) <= 0)
		return KCACHE_WALK_UNKNOWN;
	if (is_within(stack, into, ARRAY_SIZE(into)))
		return KCACHE_WALK_INTO;
	return is_within(stack, none, ARRAY_SIZE(none)) ? KCACHE_WALK_NONE
							: KCACHE_WALK_UNKNOWN;
}
