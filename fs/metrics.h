/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The daemon's status (status.c) for Prometheus: text of the exposition format, and a server for it
 * over HTTP.
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

struct metrics_server;
/*
 * Serves GET /metrics at this address from the current result of `status` (a control_fn), on a task
 * of its own. Connections, memory and time of each are bounded. Close the server before the objects
 * that `status` uses.
 */
int metrics_server_open(struct metrics_server **out, const char *address,
	json_t *(*status)(void *arg), void *arg, struct weft_error *err);
/* Waits for the answer under way. NULL is allowed. */
void metrics_server_close(struct metrics_server *s);

#endif
