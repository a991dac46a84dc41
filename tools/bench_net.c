/* SPDX-License-Identifier: Apache-2.0 */
/* weft bench net: measures a link of a transport, between two machines or two processes of this
 * one. The command line, and the report. */
#include <errno.h>
#include <getopt.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/random.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/cluster/cluster.h"
#include "engine/rt/rt.h"
#include "fs/daemonize.h"
#include "tools/bench_net.h"
#include "tools/tools.h"

#define COUNT_DEFAULT 10000u
#define COUNT_MAX     10000000u
#define WAIT_DEFAULT  10u
#define WAIT_MAX      3600u

static const char usage[] =
	"Usage: weft bench net [OPTION...]\n"
	"       weft bench net -c FILE [OPTION...] --listen [ADDRESS[:PORT]]\n"
	"       weft bench net -c FILE [OPTION...] HOST[:PORT]\n"
	"\n"
	"Measures a link between two nodes. Run it with --listen on one machine, and with\n"
	"HOST on another. With neither, it measures between two processes of this machine.\n"
	"\n"
	"  -c, --cluster FILE  cluster file, the same on both machines. Its key proves the\n"
	"                      right to measure; its transport and tls are used\n"
	"  -t, --transport tcp|verbs|shm\n"
	"                      use this transport instead, the same on both machines\n"
	"  -l, --listen        be the server, at ADDRESS (default 0.0.0.0) and PORT (default\n"
	"                      9337). For shm, ADDRESS is the path of a socket\n"
	"  -1, --once          end with the first client\n"
	"  -n, --count N       time N operations of each kind (default 10000)\n"
	"  -w, --wait SECONDS  wait so long for the server (default 10)\n"
	"  -P, --no-perftest   do not run the programs of perftest (verbs only)\n"
	"  -j, --json          print JSON\n"
	"  -h, --help          print this text\n"
	"\n"
	"Examples:\n"
	"  weft bench net -t shm\n"
	"  weft bench net -c scratch.cluster --listen 10.1.0.1      on one machine\n"
	"  weft bench net -c scratch.cluster 10.1.0.1               on another\n"
	"\n"
	"Exit codes: 0 done, 1 wrong usage, 2 failed.\n";

struct arguments {
	struct bench_how how;
	const char *file, *where;
	bool listen, transport_said;
};

static int bench_net_error(const struct weft_error *err)
{
	fprintf(stderr, "weft bench net: %s\n", err->text);
	return EXIT_FAILED;
}

/* ---- the report ---------------------------------------------------------------------- */

static const char *const count_names[BENCH_COUNT_KINDS] = {
	[BENCH_REQUESTS] = "requests",
	[BENCH_CALLS_OUT] = "calls_out",
	[BENCH_SIGNALLED] = "signalled",
	[BENCH_COMPLETIONS] = "completions",
	[BENCH_CALLS_IN] = "calls_in",
};

static json_t *counts_json(const double counts[BENCH_COUNT_KINDS])
{
	json_t *o = json_object();

	for (unsigned i = 0; i < BENCH_COUNT_KINDS; i++)
		json_object_set_new(o, count_names[i], json_real(counts[i]));
	return o;
}

static json_t *measure_json(const struct bench_measure *m)
{
	json_t *o = json_pack("{s:s, s:s}", "name", m->name, "what", m->what);

	if (m->error) {
		json_object_set_new(o, "error", json_string(strerror(-m->error)));
		return o;
	}
	json_object_set_new(o, "count", json_integer(m->count));
	if (m->rate) {
		json_object_set_new(
			o, "bytes_per_second", json_real(m->bytes_per_second));
	} else {
		json_object_set_new(o, "p50_ns", json_integer((json_int_t)m->p50_ns));
		json_object_set_new(o, "p99_ns", json_integer((json_int_t)m->p99_ns));
		json_object_set_new(o, "mean_ns", json_integer((json_int_t)m->mean_ns));
	}
	json_object_set_new(o, "per_second", json_real(m->per_second));
	json_object_set_new(o, "client", counts_json(m->client));
	json_object_set_new(o, "server", counts_json(m->server));
	if (m->beside.program)
		json_object_set_new(o, "perftest",
			json_pack("{s:s, s:s, s:f, s:f, s:f}", "program",
				m->beside.program, "unit",
				m->rate ? "bytes_per_second" : "ns", "value",
				m->beside.value, "weft", m->beside.ours, "ratio",
				m->beside.ours / m->beside.value));
	return o;
}

static void print_json(const struct bench_how *how,
	const struct bench_measure m[BENCH_KINDS], const char *remark)
{
	json_t *list = json_array();
	json_t *o;

	for (unsigned i = 0; i < BENCH_KINDS; i++)
		json_array_append_new(list, measure_json(&m[i]));
	o = json_pack("{s:s, s:s, s:b, s:o}", "transport", how->transport, "address",
		how->address, "tls", how->tls, "measures", list);
	if (*remark)
		json_object_set_new(o, "remark", json_string(remark));
	json_dumpf(o, stdout, JSON_INDENT(2));
	putchar('\n');
	json_decref(o);
}

static void print_times(const struct bench_measure m[BENCH_KINDS])
{
	printf("%-42s %10s %10s %10s\n", "", "median us", "99% us", "mean us");
	for (unsigned i = 0; i < BENCH_WRITE_PAGES; i++)
		if (m[i].error)
			printf("%-42s %s\n", m[i].what,
				"the other end's device has none");
		else
			printf("%-42s %10.2f %10.2f %10.2f\n", m[i].what,
				(double)m[i].p50_ns / 1e3, (double)m[i].p99_ns / 1e3,
				(double)m[i].mean_ns / 1e3);
	printf("\n%-42s %10s %10s\n", "", "MiB/s", "a second");
	for (unsigned i = BENCH_WRITE_PAGES; i < BENCH_KINDS; i++)
		printf("%-42s %10.1f %10.0f\n", m[i].what,
			m[i].bytes_per_second / (1 << 20), m[i].per_second);
}

/* Prints the number of calls: for verbs, requests to the card; else system calls, or uses of a
 * ring. */
static void print_counts(const struct bench_how *how, const struct bench_measure *m)
{
	bool card = strcmp(how->transport, "verbs") == 0;

	printf("\n%-13s %-32s %s\n", "an operation:", "here", "at the other end");
	printf("%-13s", "");
	for (unsigned side = 0; side < 2; side++)
		if (card)
			printf(" %7s %7s %7s %7s", "request", "bell", "asked", "done");
		else
			printf(" %15s %15s", how->transport[0] == 't' ? "sends" : "rings",
				how->transport[0] == 't' ? "receives" : "looks");
	putchar('\n');
	for (unsigned i = 0; i < BENCH_KINDS; i++) {
		const double *c = m[i].client, *s = m[i].server;

		if (m[i].error)
			continue;
		printf("%-13s", m[i].name);
		if (card)
			printf(" %7.2f %7.2f %7.2f %7.2f %7.2f %7.2f %7.2f %7.2f\n",
				c[BENCH_REQUESTS], c[BENCH_CALLS_OUT], c[BENCH_SIGNALLED],
				c[BENCH_COMPLETIONS], s[BENCH_REQUESTS],
				s[BENCH_CALLS_OUT], s[BENCH_SIGNALLED],
				s[BENCH_COMPLETIONS]);
		else
			printf(" %15.2f %15.2f %15.2f %15.2f\n", c[BENCH_CALLS_OUT],
				c[BENCH_CALLS_IN], s[BENCH_CALLS_OUT], s[BENCH_CALLS_IN]);
	}
	if (card)
		puts("request: work requests; bell: doorbells; asked: requests that ask "
		     "for a "
		     "completion;\ndone: completions taken, of receives, too");
}

static void print_beside(const struct bench_measure m[BENCH_KINDS], const char *remark)
{
	bool any = false;

	for (unsigned i = 0; i < BENCH_KINDS; i++) {
		const struct bench_beside *b = &m[i].beside;
		double unit = m[i].rate ? 1 << 20 : 1e3;

		if (!b->program)
			continue;
		if (!any)
			printf("\n%-13s %12s %12s %9s\n", "perftest", "weft", "perftest",
				"ratio");
		any = true;
		printf("%-13s %12.2f %12.2f %9.2f  %s, %s\n", m[i].name, b->ours / unit,
			b->value / unit, b->ours / b->value, b->program,
			m[i].rate ? "MiB/s" : "us");
	}
	if (any)
		puts("message: half of a round trip; fetch: without the message that "
		     "requests it");
	if (*remark)
		printf("\n%s\n", remark);
}

/* ---- two ends ------------------------------------------------------------------------ */

static int run_client(const struct bench_how *how)
{
	struct bench_end *e = calloc(1, sizeof(*e));
	struct bench_measure m[BENCH_KINDS];
	char remark[600] = "";
	struct weft_error err = {0};
	int rc = e ? bench_end_open(e, how, false, &err) : -ENOMEM;

	if (!rc)
		rc = bench_connect(e, &err);
	if (!rc) {
		rc = bench_measure_all(e, m);
		if (rc)
			weft_error(&err, rc, "measuring: %s",
				rc == -EUCLEAN ? "the bytes that came are wrong"
				: *e->why     ? e->why
					      : strerror(-rc));
	}
	if (!rc && how->perftest)
		bench_perftest_all(e, m, remark, sizeof(remark));
	if (e)
		bench_end_close(e);
	free(e);
	if (rc)
		return bench_net_error(&err);
	if (how->json) {
		print_json(how, m, remark);
		return 0;
	}
	printf("%s%s, with %s\n", how->transport, how->tls ? " with TLS" : "",
		how->address);
	print_times(m);
	print_counts(how, m);
	print_beside(m, remark);
	return 0;
}

static int run_server(const struct bench_how *how)
{
	struct weft_error err = {0};
	int rc;

	do
		rc = bench_serve_one(how, -1, &err);
	while (!rc && !how->once);
	return rc ? bench_net_error(&err) : 0;
}

/* Runs in the child, which ends with its parent. */
static int be_server(struct bench_how *how, int tell)
{
	struct weft_error err = {0};

	prctl(PR_SET_PDEATHSIG, SIGKILL);
	if (rt_real_start() || bench_serve_one(how, tell, &err))
		return err.code ? bench_net_error(&err) : EXIT_FAILED;
	return 0;
}

/* Runs both ends here, with a key of their own. */
static int run_both(struct bench_how *how)
{
	char folder[] = "/tmp/weft-bench.XXXXXX";
	bool shm = strcmp(how->transport, "shm") == 0;
	int tell[2], code = EXIT_FAILED;
	pid_t child;

	if (getrandom(how->key, sizeof(how->key), 0) != sizeof(how->key) || pipe(tell) ||
		(shm && !mkdtemp(folder))) {
		perror("weft bench net");
		return EXIT_FAILED;
	}
	snprintf(how->host, sizeof(how->host), "127.0.0.1");
	snprintf(how->address, sizeof(how->address), "%s%s", shm ? folder : "127.0.0.1",
		shm ? "/socket" : ":0");
	child = fork();
	if (child == 0)
		_exit(be_server(how, tell[1]));
	close(tell[1]);
	if (child > 0 &&
		read(tell[0], how->address, sizeof(how->address)) ==
			(ssize_t)sizeof(how->address) &&
		rt_real_start() == 0)
		code = run_client(how);
	close(tell[0]);
	if (child > 0) {
		kill(child, SIGKILL);
		waitpid(child, NULL, 0);
	}
	if (shm) {
		unlink(how->address);
		rmdir(folder);
	}
	return code;
}

/* ---- the command --------------------------------------------------------------------- */

/* HOST, HOST:PORT, [IPV6]:PORT; a path for shm. */
static bool parse_where(struct bench_how *how, const char *where)
{
	bool path = strcmp(how->transport, "shm") == 0;
	const char *colon = strrchr(where, ':');
	const char *bracket = strchr(where, ']');
	size_t length;
	uint64_t port;

	if (path || strchr(where, '/'))
		return path && strchr(where, '/') &&
		       (size_t)snprintf(how->address, sizeof(how->address), "%s", where) <
			       sizeof(how->address);
	if (colon && colon != strchr(where, ':') && !bracket)
		return false; /* an IPv6 address needs brackets */
	if (bracket ? *where != '[' || bracket == where + 1 ||
				(bracket[1] && bracket + 1 != colon)
		    : strchr(where, '[') != NULL)
		return false;
	if (bracket && !bracket[1])
		colon = NULL;
	if (colon && (number_parse(colon + 1, &port) || !port || port > UINT16_MAX))
		return false;
	length = colon ? (size_t)(colon - where) : strlen(where);
	if (length < 1 || length > sizeof(how->host) - 8)
		return false;
	snprintf(how->address, sizeof(how->address), "%.*s:%u", (int)length, where,
		colon ? (unsigned)port : BENCH_NET_PORT);
	snprintf(how->host, sizeof(how->host), "%.*s",
		(int)(bracket ? length - 2 : length), where + !!bracket);
	return true;
}

static int read_file(struct arguments *a)
{
	struct weft_error err = {0};
	struct cluster *c;

	if (!a->file)
		return 0;
	if (cluster_open(&c, a->file, 0, &err))
		return bench_net_error(&err);
	if (!a->transport_said)
		a->how.transport = cluster_transport(c);
	a->how.tls = cluster_tls(c) && strcmp(a->how.transport, "tcp") == 0;
	memcpy(a->how.key, cluster_key(c), sizeof(a->how.key));
	cluster_close(c);
	return 0;
}

static bool set_number(
	const char *name, const char *text, uint64_t least, uint64_t most, unsigned *out)
{
	uint64_t number;

	if (number_parse(text, &number) || number < least || number > most) {
		fprintf(stderr, "weft bench net: --%s %s: must be %llu to %llu\n", name,
			text, (unsigned long long)least, (unsigned long long)most);
		return false;
	}
	*out = (unsigned)number;
	return true;
}

static bool set_transport(struct arguments *a, const char *name)
{
	a->how.transport = name;
	a->transport_said = true;
	if (!strcmp(name, "tcp") || !strcmp(name, "verbs") || !strcmp(name, "shm"))
		return true;
	fprintf(stderr, "weft bench net: --transport %s: must be tcp, verbs or shm\n",
		name);
	return false;
}

static bool set_option(struct arguments *a, int c)
{
	switch (c) {
	case 'c':
		a->file = optarg;
		return true;
	case 't':
		return set_transport(a, optarg);
	case 'l':
		return a->listen = true;
	case '1':
		return a->how.once = true;
	case 'n':
		return set_number("count", optarg, 10, COUNT_MAX, &a->how.count);
	case 'w':
		return set_number("wait", optarg, 0, WAIT_MAX, &a->how.wait_s);
	case 'P':
		a->how.perftest = false;
		return true;
	case 'j':
		return a->how.json = true;
	default:
		return false;
	}
}

/* Returns 0, or 1 + the exit code. */
static int bench_net_parse_options(int argc, char **argv, struct arguments *a)
{
	static const struct option words[] = {{"cluster", required_argument, NULL, 'c'},
		{"transport", required_argument, NULL, 't'},
		{"listen", no_argument, NULL, 'l'}, {"once", no_argument, NULL, '1'},
		{"count", required_argument, NULL, 'n'},
		{"wait", required_argument, NULL, 'w'},
		{"no-perftest", no_argument, NULL, 'P'}, {"json", no_argument, NULL, 'j'},
		{"help", no_argument, NULL, 'h'}, {0}};
	int c;

	while ((c = getopt_long(argc, argv, "c:t:l1n:w:Pjh", words, NULL)) != -1)
		if (!set_option(a, c))
			return 1 + (c == 'h' || c == '?'
						   ? weft_option(usage, c, argv, words)
						   : EXIT_USAGE);
	if (weft_operands(usage, argc, argv, 0, 1, "HOST|ADDRESS"))
		return 1 + EXIT_USAGE;
	a->where = argv[optind];
	return 0;
}

/* Returns the message about options that exclude each other; NULL: there are none. */
static const char *find_mistake(struct arguments *a)
{
	bool alone = !a->listen && !a->where;
	bool shm = strcmp(a->how.transport, "shm") == 0;

	if (alone)
		return strcmp(a->how.transport, "verbs")
			       ? NULL
			       : "with verbs name the HOST, or --listen ADDRESS: the "
				 "address of an "
				 "RDMA device; both may be on this machine";
	if (!a->file)
		return "-c FILE is missing: its key proves who may measure; `weft "
		       "cluster "
		       "new` writes one";
	if (shm && !a->where)
		return "for shm say where to listen: the path of a socket";
	if (!parse_where(&a->how, a->where ? a->where : "0.0.0.0"))
		return shm ? "for shm say the path of a socket, with a slash"
			   : "this is no host: write HOST, HOST:PORT or [IPV6]:PORT";
	return NULL;
}

static void no_log(int level, const char *line)
{
}

int bench_net(int argc, char **argv)
{
	struct arguments a = {.how = {.transport = "tcp",
				      .count = COUNT_DEFAULT,
				      .wait_s = WAIT_DEFAULT,
				      .perftest = true}};
	static char self[] = "weft bench net"; /* for messages of getopt(3) */
	const char *wrong;
	int rc;

	argv[0] = self;
	rc = bench_net_parse_options(argc, argv, &a);
	if (rc)
		return rc - 1;
	wrong = find_mistake(&a);
	if (!wrong && a.file) {
		rc = read_file(&a);
		wrong = rc ? NULL : find_mistake(&a);
	}
	if (wrong) {
		fprintf(stderr, "weft bench net: %s\n", wrong);
		return EXIT_USAGE;
	}
	a.how.perftest = a.how.perftest && strcmp(a.how.transport, "verbs") == 0;
	weft_log_sink = no_log;
	if (!rc && !a.listen && !a.where)
		return run_both(&a.how);
	if (!rc && rt_real_start())
		rc = EXIT_FAILED;
	if (!rc)
		rc = a.listen ? run_server(&a.how) : run_client(&a.how);
	explicit_bzero(a.how.key, sizeof(a.how.key));
	return rc;
}
