/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft bench net: perftest's programs for comparison, on the same pair of machines. The client
 * makes the server start the other end of each program. It then runs its own end and reads the
 * output.
 *
 * They connect by librdmacm (-R), as the transport does, so both use the same device, port and GID.
 */
#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <poll.h>
#include <signal.h>
#include <spawn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/rt/rt.h"
#include "tools/bench_net.h"

#define PORT         "18515" /* perftest's own */
#define RUN_MS       60000
#define START_NS     60000000000ull /* by then a server that was started listens */
#define AGAIN_NS     300000000ull
#define TEXT_BYTES   8192
#define COUNT_MAX    100000u /* limit of both columns in the list */
#define ARGUMENTS    24
#define TYPICAL      4 /* columns of the output: latency's median in us, */
#define RATE_AVERAGE 3 /* and MiB a second */

static const struct {
	enum bench_kind kind;
	const char *program;
	const char *arguments[4];
	int column;
} programs[] = {
	{BENCH_MESSAGE, "ib_send_lat", {"-s", "64"}, TYPICAL},
	{BENCH_FETCH, "ib_write_lat", {"-s", "4096"}, TYPICAL},
	{BENCH_READ, "ib_read_lat", {"-s", "4096"}, TYPICAL},
	{BENCH_CAS, "ib_atomic_lat", {"-A", "CMP_AND_SWAP"}, TYPICAL},
	{BENCH_WRITE_PAGES, "ib_write_bw", {"-s", "4096"}, RATE_AVERAGE},
	{BENCH_WRITE_LARGE, "ib_write_bw", {"-s", "1048576"}, RATE_AVERAGE},
};

/* ---- running them -------------------------------------------------------------------- */

/* Starts one. Its output goes to `out`; -1: it is dropped. Returns 0 or an errno. */
static int start_program(
	unsigned which, unsigned count, const char *host, int out, pid_t *child)
{
	char *arguments[ARGUMENTS], number[16];
	posix_spawn_file_actions_t files;
	unsigned n = 0;
	int rc;

	snprintf(number, sizeof(number), "%u", MIN(MAX(count, 5u), COUNT_MAX));
	arguments[n++] = (char *)programs[which].program;
	for (unsigned i = 0; i < 4 && programs[which].arguments[i]; i++)
		arguments[n++] = (char *)programs[which].arguments[i];
	arguments[n++] = (char *)"-R";
	arguments[n++] = (char *)"-F";
	arguments[n++] = (char *)"-p";
	arguments[n++] = (char *)PORT;
	arguments[n++] = (char *)"-n";
	arguments[n++] = number;
	if (host)
		arguments[n++] = (char *)host;
	arguments[n] = NULL;
	posix_spawn_file_actions_init(&files);
	posix_spawn_file_actions_addopen(&files, 0, "/dev/null", O_RDONLY, 0);
	if (out >= 0)
		posix_spawn_file_actions_adddup2(&files, out, 1);
	else
		posix_spawn_file_actions_addopen(&files, 1, "/dev/null", O_WRONLY, 0);
	posix_spawn_file_actions_adddup2(&files, 1, 2);
	rc = posix_spawnp(child, arguments[0], &files, NULL, arguments, environ);
	posix_spawn_file_actions_destroy(&files);
	return rc;
}

void bench_perftest_stop(struct bench_end *e)
{
	if (!e->child)
		return;
	kill(e->child, SIGKILL);
	waitpid(e->child, NULL, 0);
	e->child = 0;
}

int bench_perftest_serve(struct bench_end *e, const uint64_t words[3])
{
	if (words[0] >= ARRAY_SIZE(programs))
		return EINVAL;
	if (!e->how->perftest)
		return EPERM;
	return start_program((unsigned)words[0], (unsigned)MIN(words[1], COUNT_MAX), NULL,
		-1, &e->child);
}

/* Reads all its output, until it ends or its time is over. */
static void read_all(int fd, char *text, size_t size)
{
	uint64_t until = rt_now_ns() + RUN_MS * 1000000ull;
	size_t used = 0;
	ssize_t got = 1;

	while (got > 0 && used + 1 < size && rt_now_ns() < until) {
		struct pollfd p = {.fd = fd, .events = POLLIN};

		got = poll(&p, 1, RUN_MS);
		if (got > 0)
			got = read(fd, text + used, size - 1 - used);
		used += got > 0 ? (size_t)got : 0;
	}
	text[used] = '\0';
}

/* Returns the column of the one line of numbers; 0: there is none. ("inf" means that the program
 * could not find the processor's clock rate.) */
static double number_of(const char *text, int column)
{
	double value = 0;

	for (const char *line = text; line; line = strchr(line, '\n')) {
		char *end;
		int i = 0;

		line += *line == '\n';
		for (const char *at = line; i <= column; i++, at = end) {
			double d = strtod(at, &end);

			if (end == at)
				break;
			if (i == column && value == 0 && isfinite(d))
				value = d;
		}
	}
	return value;
}

/* Runs the program's end at this side. Returns 0 with *code, or an errno. */
static int run_program(
	const struct bench_end *e, unsigned which, char *text, size_t size, int *code)
{
	pid_t child;
	int ends[2], r, status = 0;

	if (pipe2(ends, O_CLOEXEC))
		return errno;
	r = start_program(which, e->how->count, e->how->host, ends[1], &child);
	close(ends[1]);
	*text = '\0';
	if (!r) {
		read_all(ends[0], text, size);
		kill(child, SIGKILL); /* if its time was over */
		waitpid(child, &status, 0);
		*code = status;
	}
	close(ends[0]);
	return r;
}

/* ---- comparison ---------------------------------------------------------------------- */

/* Returns 0, or an errno with a remark. */
static int start_other(struct bench_end *e, unsigned which, char *remark, size_t size)
{
	const struct net_message ask = {
		.type = BENCH_PERFTEST, .words = {which, e->how->count}};
	int rc = bench_ask(e, &ask);

	if (rc) {
		snprintf(remark, size, "perftest: the link broke: %s", strerror(-rc));
		return -rc;
	}
	rc = (int)e->answer.words[0];
	if (rc == EPERM)
		snprintf(remark, size, "the other end was started with --no-perftest");
	else if (rc)
		snprintf(remark, size,
			"%s cannot be started at the other end (%s): there, too, `apt "
			"install perftest`",
			programs[which].program, strerror(rc));
	return rc;
}

/* Until the other end listens, the program here fails at once, and is run again. If it has run
 * without a result, it is run again with a new other end. Returns the result, or 0. */
static double try_until_measured(
	struct bench_end *e, unsigned which, char *remark, size_t size)
{
	uint64_t until = rt_now_ns() + START_NS;
	char text[TEXT_BYTES];
	double value = 0;
	int code = 0, r = start_other(e, which, remark, size);

	if (r)
		return 0;
	while (!r && rt_now_ns() < until) {
		rt_sleep_ns(AGAIN_NS);
		r = run_program(e, which, text, sizeof(text), &code);
		value = r ? 0 : number_of(text, programs[which].column);
		if (value > 0)
			return value;
		if (!r && code == 0 && start_other(e, which, remark, size))
			return 0;
	}
	if (r == ENOENT)
		snprintf(remark, size,
			"perftest's programs are not installed here: `apt install "
			"perftest`, here and at the other end, and they are run beside");
	else
		snprintf(remark, size, "%s measured nothing: %.400s",
			programs[which].program,
			r       ? strerror(r)
			: *text ? text
				: "it ended, or hung, without a word");
	return 0;
}

static bool measure_program(struct bench_end *e, unsigned which, struct bench_beside *out,
	char *remark, size_t size)
{
	const struct net_message stop = {.type = BENCH_STOP};
	double value = try_until_measured(e, which, remark, size);

	bench_ask(e, &stop);
	if (value == 0)
		return false;
	out->program = programs[which].program;
	out->value = value * (programs[which].column == TYPICAL ? 1e3 : 1 << 20);
	return true;
}

/* perftest's figures of messages and writes are for one way. A fetch is one message and one
 * write. */
static double ours_of(const struct bench_measure m[BENCH_KINDS], enum bench_kind kind)
{
	switch (kind) {
	case BENCH_MESSAGE:
		return (double)m[kind].p50_ns / 2;
	case BENCH_FETCH:
		return MAX(
			(double)m[kind].p50_ns - (double)m[BENCH_MESSAGE].p50_ns / 2, 0);
	default:
		return m[kind].rate ? m[kind].bytes_per_second : (double)m[kind].p50_ns;
	}
}

void bench_perftest_all(struct bench_end *e, struct bench_measure m[BENCH_KINDS],
	char *remark, size_t size)
{
	*remark = '\0';
	for (unsigned i = 0; i < ARRAY_SIZE(programs); i++) {
		struct bench_measure *of = &m[programs[i].kind];

		if (of->error)
			continue;
		if (!measure_program(e, i, &of->beside, remark, size))
			break;
		of->beside.ours = ours_of(m, programs[i].kind);
	}
}
