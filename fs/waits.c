/* SPDX-License-Identifier: Apache-2.0 */
/* Checks requests that are being served. A worker stores its request, the thread and the start in
 * words of its own. The task reads them, and reads the thread's state from /proc. */
#include "fs/waits.h"

#define FUSE_USE_VERSION 314
#include <fuse_lowlevel.h>

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "fs/session_internal.h"

#define LOOK_NS     200000000ull  /* interval for interrupted requests */
#define LOOK_END_NS 1000000000ull /* interval for requests of ending programs */
#define RELEASE_NS  5000000ull    /* interval for a request that keeps a handle */
#define TELL_NS     5000000000ull /* time that a request waits before the message about the node */
#define OVER_LOOKS  2u /* number of looks without a waiting request until the wait is over */

#define PF_EXITING 0x4ul /* of the flags in /proc/PID/stat */

/* Reads a file of the thread in /proc. Returns false if the thread has ended or cannot be seen. */
static bool thread_read(uint32_t thread, const char *what, char *text, size_t cap)
{
	char path[32];
	ssize_t length;
	int fd;

	snprintf(path, sizeof(path), "/proc/%u/%s", thread, what);
	fd = open(path, O_RDONLY | O_CLOEXEC);
	if (fd < 0)
		return false;
	length = read(fd, text, cap - 1);
	close(fd);
	text[MAX(length, 0)] = '\0';
	return true;
}

static bool thread_is_killed(uint32_t thread)
{
	char status[4096];
	const char *pending;

	if (!thread_read(thread, "status", status, sizeof(status)))
		return false;
	pending = strstr(status, "\nSigPnd:");
	/* After any fatal signal, each thread of a process that ends has SIGKILL. */
	return pending && (strtoull(pending + 8, NULL, 16) >> (SIGKILL - 1) & 1);
}

/* Returns true for a thread at the end of exit(2), or one that was killed: files are closed
 * there. */
static bool thread_is_exiting(uint32_t thread)
{
	char stat[1024];
	const char *fields;
	unsigned long flags;

	if (!thread_read(thread, "stat", stat, sizeof(stat)))
		return false;
	fields = strrchr(stat, ')'); /* behind the name, which may have anything in it */
	return fields &&
	       sscanf(fields + 1, " %*c %*d %*d %*d %*d %*d %lu", &flags) == 1 &&
	       (flags & PF_EXITING);
}

uint32_t waits_process(uint32_t thread, char command[WAITS_COMMAND])
{
	char status[4096];
	const char *process = NULL;

	*command = '\0';
	if (!thread || !thread_read(thread, "comm", command, WAITS_COMMAND))
		return 0;
	command[strcspn(command, "\n")] = '\0';
	if (thread_read(thread, "status", status, sizeof(status)))
		process = strstr(status, "\nTgid:");
	return process ? (uint32_t)strtoul(process + 6, NULL, 10) : 0;
}

/* Answers for a worker. If it has gone on to its next request, the number is over, and the kernel
 * refuses the answer. */
static bool answer_early(struct session *s, struct worker *w, uint64_t unique, int error)
{
	if (atomic_load(&w->serving) != unique)
		return false;
	atomic_store(&w->early, unique);
	shim_reply(s, unique, error, NULL, 0);
	return true;
}

/* Returns false if the worker has no request to check. */
static bool look_interrupted(struct session *s, struct worker *w)
{
	uint64_t unique = atomic_load(&w->interrupted);

	if (!unique)
		return false;
	if (atomic_load(&w->serving) == unique) {
		if (!thread_is_killed(atomic_load(&w->thread)))
			return true;
		if (answer_early(s, w, unique, -EINTR))
			atomic_store(&w->unwanted, unique);
	}
	atomic_compare_exchange_strong(&w->interrupted, &unique, 0);
	return false;
}

static void look_soft(struct session *s, struct worker *w, uint64_t now)
{
	uint64_t unique = atomic_load(&w->serving), since = atomic_load(&w->since_ns);

	if (!unique || now < since + s->soft_ns || atomic_load(&w->answered) == unique ||
		atomic_load(&w->opcode) == FUSE_SETLKW)
		return;
	atomic_store(&w->answered, unique);
	weft_log(5, "a request (opcode %u) has waited for %llu s: it ends with EIO",
		atomic_load(&w->opcode),
		(unsigned long long)((now - since) / 1000000000));
	if (answer_early(s, w, unique, -EIO))
		atomic_store(&w->unwanted, unique);
}

/* The work of the close is still done. */
static void look_ending(struct session *s, struct worker *w, uint64_t now)
{
	uint64_t unique = atomic_load(&w->serving);

	if (unique && atomic_load(&w->opcode) == FUSE_FLUSH &&
		now >= atomic_load(&w->since_ns) + LOOK_END_NS &&
		atomic_load(&w->early) != unique &&
		thread_is_exiting(atomic_load(&w->thread)))
		(void)answer_early(s, w, unique, 0);
}

void waits_count(struct session *s, struct waits_for out[WAITS_NODES])
{
	memset(out, 0, WAITS_NODES * sizeof(*out));
	for (unsigned i = 0; i < atomic_load(&s->slots); i++) {
		struct worker *w = &s->workers[i];
		uint64_t nodes = atomic_load(&w->shown.nodes);
		uint64_t since = atomic_load(&w->since_ns);

		for (; nodes; nodes &= nodes - 1) {
			struct waits_for *f = &out[__builtin_ctzll(nodes)];

			if (!f->requests || since < f->since_ns)
				f->since_ns = since;
			f->requests++;
		}
	}
}

/* Returns false if the worker has gone on to another request meanwhile. */
static bool request_read(struct session *s, struct worker *w, uint64_t unique,
	struct waits_request *out)
{
	out->since_ns = atomic_load_explicit(&w->since_ns, memory_order_relaxed);
	out->ino = atomic_load(&w->node[0]);
	out->opcode = atomic_load_explicit(&w->opcode, memory_order_relaxed);
	out->thread = atomic_load_explicit(&w->thread, memory_order_relaxed);
	out->away = atomic_load_explicit(&w->shown.nodes, memory_order_relaxed);
	out->need = rt_shown_need(&w->shown, &out->which);
	rt_mutex_lock(&s->lock);
	out->name[0] = '\0';
	if (w->named == unique)
		memcpy(out->name, w->name, sizeof(out->name));
	rt_mutex_unlock(&s->lock);
	return atomic_load(&w->serving) == unique;
}

/* Puts it in its place by age, if it is one of the `max` oldest. */
static void request_insert(struct waits_request *list, unsigned count, unsigned max,
	const struct waits_request *r)
{
	unsigned at = MIN(count, max);

	while (at > 0 && list[at - 1].since_ns > r->since_ns)
		at--;
	if (at == max)
		return;
	memmove(&list[at + 1], &list[at], (MIN(count, max - 1) - at) * sizeof(*list));
	list[at] = *r;
}

unsigned waits_list(
	struct session *s, uint64_t longer_ns, struct waits_request *out, unsigned max)
{
	uint64_t now = rt_now_ns();
	unsigned count = 0;

	for (unsigned i = 0; i < atomic_load(&s->slots); i++) {
		struct worker *w = &s->workers[i];
		uint64_t unique = atomic_load(&w->serving);
		uint64_t since = atomic_load_explicit(&w->since_ns, memory_order_relaxed);
		struct waits_request r;

		if (!unique || now < since + longer_ns ||
			atomic_load(&w->early) == unique || !request_read(s, w, unique, &r))
			continue;
		request_insert(out, count, max, &r);
		count++;
	}
	return count;
}

/* Reports nodes that requests wait for. `told`: bits of the nodes that were reported. A look may
 * meet requests just as they retry, so the wait is over only when several looks in a row find none.
 */
static void look_away(struct session *s, uint64_t *told, uint8_t none[WAITS_NODES])
{
	struct waits_for waits[WAITS_NODES];
	uint64_t now = rt_now_ns();

	waits_count(s, waits);
	for (unsigned n = 0; n < WAITS_NODES; n++) {
		const struct waits_for *f = &waits[n];
		uint64_t bit = 1ull << n;
		uint64_t for_ns =
			f->requests && now > f->since_ns ? now - f->since_ns : 0;

		none[n] = f->requests ? 0 : (uint8_t)MIN(none[n] + 1u, OVER_LOOKS);
		if (!(*told & bit) && for_ns >= TELL_NS) {
			*told |= bit;
			s->waits_told(s->waits_owner, n, f->requests, for_ns);
		} else if ((*told & bit) && none[n] == OVER_LOOKS) {
			*told &= ~bit;
			s->waits_told(s->waits_owner, n, 0, 0);
		}
	}
}

static void waits_main(void *arg)
{
	struct session *s = arg;
	uint8_t none[WAITS_NODES] = {0};
	uint64_t told = 0, look_at = 0;

	while (!atomic_load(&s->waits_stopping)) {
		uint32_t seen = atomic_load(&s->interrupts);
		uint64_t now = rt_now_ns();
		uint64_t until = now + LOOK_END_NS;

		for (unsigned i = 0; i < atomic_load(&s->slots); i++) {
			if (look_interrupted(s, &s->workers[i]))
				until = now + LOOK_NS;
			look_ending(s, &s->workers[i], now);
			if (s->soft_ns)
				look_soft(s, &s->workers[i], now);
		}
		if (s->waits_told && now >= look_at) {
			look_away(s, &told, none);
			look_at = now + LOOK_END_NS;
		}
		if (!atomic_load(&s->waits_stopping))
			rt_wait(&s->interrupts, seen, until);
	}
}

static void waits_wake(struct session *s)
{
	atomic_fetch_add(&s->interrupts, 1);
	rt_wake(&s->interrupts, INT_MAX);
}

void waits_interrupt(struct session *s, uint64_t unique)
{
	if (!s->waits)
		return;
	for (unsigned i = 0; i < atomic_load(&s->slots); i++)
		if (atomic_load(&s->workers[i].serving) == unique)
			atomic_store(&s->workers[i].interrupted, unique);
	waits_wake(s);
}

void waits_note_nodes(_Atomic uint64_t node[2], const struct fuse_in_header *in)
{
	const struct fuse_copy_file_range_in *copy = (const void *)(in + 1);
	bool copies = in->opcode == FUSE_COPY_FILE_RANGE &&
		      in->len >= sizeof(*in) + sizeof(*copy);

	atomic_store(&node[0], in->nodeid);
	atomic_store(&node[1], copies ? copy->nodeid_out : 0);
}

static bool still_uses(struct worker *w, uint64_t node)
{
	uint64_t unique = atomic_load(&w->early);

	return unique && atomic_load(&w->serving) == unique &&
	       (atomic_load(&w->node[0]) == node || atomic_load(&w->node[1]) == node);
}

void waits_before_release(struct session *s, uint64_t node)
{
	for (unsigned i = 0; s->waits && i < atomic_load(&s->slots); i++)
		while (still_uses(&s->workers[i], node))
			rt_sleep_ns(RELEASE_NS);
}

int waits_start(struct session *s, uint64_t soft_ns)
{
	s->soft_ns = soft_ns;
	return rt_task_spawn(&s->waits, "weft-waits", waits_main, s);
}

void waits_stop(struct session *s)
{
	if (!s->waits)
		return;
	atomic_store(&s->waits_stopping, true);
	waits_wake(s);
	rt_task_join(s->waits);
	s->waits = NULL;
}
