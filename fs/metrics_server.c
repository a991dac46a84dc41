/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The HTTP server of -o metrics: libmicrohttpd on one task, GET and HEAD of the page's files,
 * /history and /metrics only. Any client that reaches the address may send any bytes. The number of
 * connections, the memory of each and its time of silence are bounded (invariants 9, 10). The same
 * task takes the samples of the history.
 */
#include <errno.h>
#include <netinet/in.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <microhttpd.h>

#include "engine/common/text.h"
#include "engine/rt/rt.h"
#include "fs/history.h"
#include "fs/metrics.h"

#define CONNECTION_BYTES (16u << 10)
#define SILENT_SECONDS   5u
/* Pause before the next try if there is no descriptor for a new connection. */
#define ACCEPT_PAUSE_NS  100000000ull

/* A browser takes nothing from elsewhere into the page, and no other page takes it into a frame. */
#define PAGE_POLICY                                                                           \
	"default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "         \
	"img-src data:; base-uri 'none'; form-action 'none'; frame-ancestors 'none'"

struct metrics_server {
	struct MHD_Daemon *http;
	struct metrics_source source;
	struct history *history;
	struct metrics_connections connections;
	struct rt_task *task;
	_Atomic bool stop;
	int wake; /* eventfd: `stop` is set */
	int events; /* of libmicrohttpd */
};

/* ---- answers ----------------------------------------------------------------------------- */

static enum MHD_Result answer_by(
	struct MHD_Connection *connection, unsigned code, struct MHD_Response *r)
{
	enum MHD_Result rc = MHD_queue_response(connection, code, r);

	MHD_destroy_response(r);
	return rc;
}

static enum MHD_Result answer_text(
	struct MHD_Connection *connection, unsigned code, const char *text)
{
	struct MHD_Response *r = MHD_create_response_from_buffer(
		strlen(text), (void *)text, MHD_RESPMEM_PERSISTENT);

	if (!r)
		return MHD_NO;
	if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
		(void)MHD_add_response_header(r, "Allow", "GET, HEAD");
	return answer_by(connection, code, r);
}

static enum MHD_Result answer_file(
	struct MHD_Connection *connection, const struct page_file *file)
{
	struct MHD_Response *r = MHD_create_response_from_buffer(
		(size_t)(file->end - file->begin), (void *)file->begin, MHD_RESPMEM_PERSISTENT);

	if (!r)
		return MHD_NO;
	(void)MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, file->type);
	(void)MHD_add_response_header(r, "Content-Security-Policy", PAGE_POLICY);
	(void)MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
	(void)MHD_add_response_header(r, "Referrer-Policy", "no-referrer");
	/* the daemon may be of another version tomorrow */
	(void)MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-cache");
	return answer_by(connection, MHD_HTTP_OK, r);
}

/* A text that is made for one answer. */
struct made {
	FILE *to; /* NULL: no memory */
	char *text;
	size_t bytes;
};

static void open_made(struct made *m)
{
	*m = (struct made){0};
	m->to = open_memstream(&m->text, &m->bytes);
}

/* Without a text there was no memory for it. */
static enum MHD_Result answer_made(
	struct MHD_Connection *connection, struct made *m, const char *type)
{
	struct MHD_Response *r;

	if (!m->to || fclose(m->to) != 0 || !m->bytes) {
		free(m->text);
		return answer_text(
			connection, MHD_HTTP_SERVICE_UNAVAILABLE, "no memory\n");
	}
	r = MHD_create_response_from_buffer(m->bytes, m->text, MHD_RESPMEM_MUST_FREE);
	if (!r) {
		free(m->text);
		return MHD_NO;
	}
	(void)MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, type);
	(void)MHD_add_response_header(r, "X-Content-Type-Options", "nosniff");
	(void)MHD_add_response_header(r, MHD_HTTP_HEADER_CACHE_CONTROL, "no-store");
	return answer_by(connection, MHD_HTTP_OK, r);
}

static enum MHD_Result answer_metrics(
	struct metrics_server *s, struct MHD_Connection *connection)
{
	json_t *status = s->source.status(s->source.arg), *statuses = json_array();
	struct made made;

	open_made(&made);
	if (status && statuses && made.to && json_array_append(statuses, status) == 0)
		metrics_print(made.to, statuses);
	json_decref(status);
	json_decref(statuses);
	return answer_made(
		connection, &made, "text/plain; version=0.0.4; charset=utf-8");
}

static int64_t now_ms(void)
{
	return rt_wall_ns() / 1000000;
}

/* Of the query ?after=MS. All samples, if there is no number. */
static int64_t samples_after(struct MHD_Connection *connection)
{
	const char *text =
		MHD_lookup_connection_value(connection, MHD_GET_ARGUMENT_KIND, "after");
	uint64_t ms;

	return text && number_parse(text, &ms) == 0 && ms <= INT64_MAX ? (int64_t)ms : 0;
}

static enum MHD_Result answer_history(
	struct metrics_server *s, struct MHD_Connection *connection)
{
	json_t *status = s->source.counters(s->source.arg);
	struct made made;

	open_made(&made);
	if (status && made.to)
		history_print(
			made.to, s->history, samples_after(connection), now_ms(), status);
	json_decref(status);
	return answer_made(connection, &made, "application/json");
}

/* Called when the header is complete, and again at the end of the body, which must be empty. */
static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection,
	const char *path, const char *method, const char *version, const char *body,
	size_t *body_bytes, void **state)
{
	static char seen;
	const struct page_file *file;

	if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
		return answer_text(
			connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET /metrics\n");
	if (*body_bytes)
		return MHD_NO;
	if (!*state) {
		*state = &seen;
		return MHD_YES;
	}
	if (strcmp(path, "/metrics") == 0)
		return answer_metrics(arg, connection);
	if (strcmp(path, "/history") == 0)
		return answer_history(arg, connection);
	file = page_file_find(path);
	if (file)
		return answer_file(connection, file);
	return answer_text(connection, MHD_HTTP_NOT_FOUND, "GET / or /metrics\n");
}

/* Errors of clients are not logged. */
static void on_log(void *arg, const char *format, va_list list)
{
}

/* ---- the task ---------------------------------------------------------------------------- */

static int fd_of(struct MHD_Connection *connection)
{
	return MHD_get_connection_info(connection, MHD_CONNECTION_INFO_CONNECTION_FD)
		->connect_fd;
}

static void on_connection(void *arg, struct MHD_Connection *connection, void **context,
	enum MHD_ConnectionNotificationCode code)
{
	struct metrics_server *s = arg;
	int fd = fd_of(connection);

	if (code != MHD_CONNECTION_NOTIFY_CLOSED)
		return;
	for (unsigned i = 0; i < METRICS_CONNECTIONS_MAX; i++)
		if (s->connections.of[i].fd == fd)
			s->connections.of[i].fd = -1;
}

/* Takes one of the connections that have arrived. */
static void take_connection(struct metrics_server *s)
{
	struct metrics_connection *place = metrics_connections_place(&s->connections);
	int rc;

	if (!place) {
		metrics_connections_displace(&s->connections);
		(void)MHD_run(s->http);
		place = metrics_connections_place(&s->connections);
	}
	if (!place)
		return;
	rc = metrics_connections_accept(&s->connections, place);
	if (rc == -EMFILE || rc == -ENFILE || rc == -ENOMEM || rc == -ENOBUFS)
		rt_sleep_ns(ACCEPT_PAUSE_NS);
	if (rc == 0 && MHD_add_connection(s->http, place->fd, (struct sockaddr *)&place->from,
			       sizeof(place->from)) != MHD_YES)
		place->fd = -1; /* it is closed */
}

/* The next sample is due a step after the one before. */
static void take_sample(struct metrics_server *s, uint64_t *due_ns)
{
	const uint64_t step_ns = HISTORY_STEP_MS * 1000000ull;
	uint64_t now = rt_now_ns();
	json_t *status;

	if (now < *due_ns)
		return;
	*due_ns += step_ns;
	if (*due_ns <= now)
		*due_ns = now + step_ns;
	status = s->source.counters(s->source.arg);
	if (status)
		history_add(s->history, now_ms(), status);
	json_decref(status);
}

/* Milliseconds until there is work without an event. */
static int time_to_wait(struct metrics_server *s, uint64_t due_ns)
{
	uint64_t now = rt_now_ns();
	uint64_t ms = now < due_ns ? (due_ns - now) / 1000000 + 1 : 0;
	MHD_UNSIGNED_LONG_LONG of_connections;

	if (MHD_get_timeout(s->http, &of_connections) == MHD_YES)
		ms = MIN(ms, (uint64_t)of_connections);
	return (int)ms;
}

static void server_main(void *arg)
{
	struct metrics_server *s = arg;
	struct pollfd fds[] = {
		{.fd = s->wake, .events = POLLIN},
		{.fd = s->connections.listener, .events = POLLIN},
		{.fd = s->events, .events = POLLIN},
	};
	uint64_t due_ns = rt_now_ns();

	while (!atomic_load(&s->stop)) {
		take_sample(s, &due_ns);
		fds[1].revents = 0;
		(void)poll(fds, ARRAY_SIZE(fds), time_to_wait(s, due_ns));
		if (fds[1].revents)
			take_connection(s);
		(void)MHD_run(s->http);
	}
}

/* ---- start and end ------------------------------------------------------------------------ */

static int start_http(struct metrics_server *s)
{
	const union MHD_DaemonInfo *info;

	s->http = MHD_start_daemon(MHD_USE_EPOLL | MHD_USE_NO_LISTEN_SOCKET | MHD_USE_ERROR_LOG, 0,
		NULL, NULL, on_request, s, MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL,
		MHD_OPTION_NOTIFY_CONNECTION, on_connection, s, MHD_OPTION_CONNECTION_LIMIT,
		METRICS_CONNECTIONS_MAX + 1, MHD_OPTION_CONNECTION_MEMORY_LIMIT,
		(size_t)CONNECTION_BYTES, MHD_OPTION_CONNECTION_TIMEOUT, SILENT_SECONDS,
		MHD_OPTION_END);
	info = s->http ? MHD_get_daemon_info(s->http, MHD_DAEMON_INFO_EPOLL_FD) : NULL;
	if (!info)
		return -ENOMEM;
	s->events = info->epoll_fd;
	return 0;
}

static int start_serving(struct metrics_server *s)
{
	int rc;

	s->history = history_open();
	s->wake = eventfd(0, EFD_CLOEXEC);
	if (!s->history || s->wake < 0)
		return s->history ? -errno : -ENOMEM;
	rc = start_http(s);
	return rc < 0 ? rc : rt_task_spawn(&s->task, "weft-metrics", server_main, s);
}

int metrics_server_open(struct metrics_server **out, const char *address,
	const struct metrics_source *source, struct weft_error *err)
{
	struct metrics_server *s = rt_alloc(sizeof(*s));
	struct sockaddr_storage at;
	int rc;

	*out = NULL;
	if (!s)
		return weft_error(err, -ENOMEM, "no memory for the metrics' listener");
	WEFT_ASSERT(metrics_address_parse(address, &at));
	s->source = *source;
	s->wake = -1;
	rc = metrics_connections_open(&s->connections, &at);
	if (rc < 0) {
		weft_error(err, rc,
			"option metrics=%s: cannot listen there: %s; the address must be "
			"this "
			"machine's, and the port free",
			address, strerror(-rc));
	} else {
		rc = start_serving(s);
		if (rc < 0)
			weft_error(err, rc, "option metrics=%s: cannot serve: %s", address,
				strerror(-rc));
	}
	if (rc < 0) {
		metrics_server_close(s);
		return rc;
	}
	*out = s;
	return 0;
}

void metrics_server_close(struct metrics_server *s)
{
	const uint64_t one = 1;

	if (!s)
		return;
	atomic_store(&s->stop, true);
	if (s->task) {
		(void)!write(s->wake, &one, sizeof(one));
		rt_task_join(s->task);
	}
	if (s->http)
		MHD_stop_daemon(s->http);
	metrics_connections_close(&s->connections);
	history_close(s->history);
	if (s->wake >= 0)
		close(s->wake);
	rt_free(s);
}
