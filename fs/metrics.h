/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's status (status.c) for Prometheus: text of the exposition format, and a server for it
 * over HTTP. The server also has a page for browsers, which shows the same and its last hour.
 *
 * Names, types and units are stable: docs/operations.md, "Metrics".
 */
#ifndef WEFT_FS_METRICS_H
#define WEFT_FS_METRICS_H

#include <stdio.h>
#include <sys/socket.h>

#include <jansson.h>

#include "engine/common/base.h"

/* Prints the metrics of `statuses`, an array of values of status_build. Prints each family once,
 * with a sample for each status that has it. */
void metrics_print(FILE *to, const json_t *statuses);

/* Sets *out to the metric's value in a status; to the sum, if it has one for each other node. Not
 * for those with a label of another kind. Returns false if the status has no value of it. */
bool metrics_value(const json_t *status, const char *name, double *out);

#define METRICS_ADDRESS_MAX 64 /* number of bytes of "[IPV6]:PORT", with the NUL */

/* Returns true if the address is IPV4:PORT or [IPV6]:PORT, and sets *out. Accepts numbers only, so
 * no name service is used. */
bool metrics_address_parse(const char *address, struct sockaddr_storage *out);

/* ---- connections --------------------------------------------------------------------------- */

#define METRICS_CONNECTIONS_MAX 16u

/* The connections of the server, and the socket that it listens on. */
struct metrics_connections {
	int listener; /* -1: none */
	struct metrics_connection {
		int fd; /* -1: none */
		bool ends;
		struct sockaddr_storage from;
		uint64_t number; /* in the order of arrival */
	} of[METRICS_CONNECTIONS_MAX];
	uint64_t arrived;
};

/* Listens at an address of metrics_address_parse. Returns 0 or -errno. */
int metrics_connections_open(struct metrics_connections *c, const struct sockaddr_storage *at);
void metrics_connections_close(struct metrics_connections *c);
/* Returns a place without a connection, or NULL. */
struct metrics_connection *metrics_connections_place(struct metrics_connections *c);
/* Ends a connection to make room for a new one: of the address with the most, the oldest. Its
 * place becomes free when its user closes it. */
void metrics_connections_displace(struct metrics_connections *c);
/* Fills the place with a connection that has arrived. Returns 0 or -errno. Never waits. */
int metrics_connections_accept(struct metrics_connections *c, struct metrics_connection *place);

/* ---- the server ------------------------------------------------------------------------------ */

/* A file of the page. The browser may use no others (docs/operations.md, "The page"). */
struct page_file {
	const char *path, *type;
	const char *begin, *end;
};
/* Returns NULL if there is no such file. */
const struct page_file *page_file_find(const char *path);

/* Functions for the server, with their argument. They return a new reference, or NULL. */
struct metrics_source {
	json_t *(*status)(void *arg);   /* status_build */
	json_t *(*counters)(void *arg); /* status_counters: costs little, for the history */
	void *arg;
};

struct metrics_server;
/*
 * Serves the page, its history, and /metrics at this address, on a task of its own. Connections,
 * memory and time of each are bounded. Close the server before the objects that the source uses.
 */
int metrics_server_open(struct metrics_server **out, const char *address,
	const struct metrics_source *source, struct weft_error *err);
/* Waits for the answer under way. NULL is allowed. */
void metrics_server_close(struct metrics_server *s);

#endif
