/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The HTTP server of -o metrics: libmicrohttpd, one thread, GET and HEAD of /metrics only. Any
 * client that reaches the address may send any bytes. The number of connections, the memory of each
 * and its time of silence are bounded (invariants 9, 10). One address gets only its share of them.
 */
#include <errno.h>
#include <netinet/in.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <microhttpd.h>

#include "engine/rt/rt.h"
#include "fs/metrics.h"

#define CONNECTIONS_MAX    16u
#define OF_ONE_ADDRESS_MAX 8u
#define CONNECTION_BYTES   (16u << 10)
#define SILENT_SECONDS     5u
#define CONTENT_TYPE       "text/plain; version=0.0.4; charset=utf-8"

struct metrics_server {
	struct MHD_Daemon *http;
	json_t *(*status)(void *arg);
	void *arg;
};

/* ---- answers ----------------------------------------------------------------------------- */

/* The caller frees the result. NULL: no memory. */
static char *metrics_text(struct metrics_server *s, size_t *bytes)
{
	json_t *status = s->status(s->arg), *statuses = json_array();
	char *text = NULL;
	FILE *to = open_memstream(&text, bytes);

	if (status && statuses && to && json_array_append(statuses, status) == 0)
		metrics_print(to, statuses);
	if (!to || fclose(to) != 0 || !*bytes) {
		free(text);
		text = NULL;
	}
	json_decref(status);
	json_decref(statuses);
	return text;
}

static enum MHD_Result answer_text(
	struct MHD_Connection *connection, unsigned code, const char *text)
{
	struct MHD_Response *r = MHD_create_response_from_buffer(
		strlen(text), (void *)text, MHD_RESPMEM_PERSISTENT);
	enum MHD_Result rc;

	if (!r)
		return MHD_NO;
	if (code == MHD_HTTP_METHOD_NOT_ALLOWED)
		(void)MHD_add_response_header(r, "Allow", "GET, HEAD");
	rc = MHD_queue_response(connection, code, r);
	MHD_destroy_response(r);
	return rc;
}

static enum MHD_Result answer_metrics(
	struct metrics_server *s, struct MHD_Connection *connection)
{
	struct MHD_Response *r;
	enum MHD_Result rc;
	size_t bytes = 0;
	char *text = metrics_text(s, &bytes);

	if (!text)
		return answer_text(
			connection, MHD_HTTP_SERVICE_UNAVAILABLE, "no memory\n");
	r = MHD_create_response_from_buffer(bytes, text, MHD_RESPMEM_MUST_FREE);
	if (!r) {
		free(text);
		return MHD_NO;
	}
	(void)MHD_add_response_header(r, MHD_HTTP_HEADER_CONTENT_TYPE, CONTENT_TYPE);
	rc = MHD_queue_response(connection, MHD_HTTP_OK, r);
	MHD_destroy_response(r);
	return rc;
}

/* Called when the header is complete, and again at the end of the body, which must be empty. */
static enum MHD_Result on_request(void *arg, struct MHD_Connection *connection,
	const char *path, const char *method, const char *version, const char *body,
	size_t *body_bytes, void **state)
{
	static char seen;

	if (strcmp(method, "GET") != 0 && strcmp(method, "HEAD") != 0)
		return answer_text(
			connection, MHD_HTTP_METHOD_NOT_ALLOWED, "GET /metrics\n");
	if (*body_bytes)
		return MHD_NO;
	if (!*state) {
		*state = &seen;
		return MHD_YES;
	}
	if (strcmp(path, "/metrics") != 0)
		return answer_text(connection, MHD_HTTP_NOT_FOUND, "GET /metrics\n");
	return answer_metrics(arg, connection);
}

/* Errors of clients are not logged. */
static void on_log(void *arg, const char *format, va_list list)
{
}

/* ---- start and end ------------------------------------------------------------------------ */

int metrics_server_open(struct metrics_server **out, const char *address,
	json_t *(*status)(void *arg), void *arg, struct weft_error *err)
{
	struct metrics_server *s = rt_alloc(sizeof(*s));
	struct sockaddr_storage at;
	unsigned flags = MHD_USE_INTERNAL_POLLING_THREAD | MHD_USE_ERROR_LOG;

	*out = NULL;
	if (!s)
		return weft_error(err, -ENOMEM, "no memory for the metrics' listener");
	WEFT_ASSERT(metrics_address_parse(address, &at));
	s->status = status;
	s->arg = arg;
	if (at.ss_family == AF_INET6)
		flags |= MHD_USE_IPv6;
	errno = 0;
	s->http = MHD_start_daemon(flags, 0, NULL, NULL, on_request, s,
		MHD_OPTION_EXTERNAL_LOGGER, on_log, NULL, MHD_OPTION_SOCK_ADDR, &at,
		MHD_OPTION_CONNECTION_LIMIT, CONNECTIONS_MAX,
		MHD_OPTION_PER_IP_CONNECTION_LIMIT, OF_ONE_ADDRESS_MAX,
		MHD_OPTION_CONNECTION_MEMORY_LIMIT, (size_t)CONNECTION_BYTES,
		MHD_OPTION_CONNECTION_TIMEOUT, SILENT_SECONDS, MHD_OPTION_END);
	if (!s->http) {
		int code = errno ? -errno : -EADDRINUSE;

		rt_free(s);
		return weft_error(err, code,
			"option metrics=%s: cannot listen there: %s; the address must be "
			"this "
			"machine's, and the port free",
			address, strerror(-code));
	}
	*out = s;
	return 0;
}

void metrics_server_close(struct metrics_server *s)
{
	if (!s)
		return;
	MHD_stop_daemon(s->http);
	rt_free(s);
}
