/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft bench net: two ends, of which the client measures and the server does what it is
 * told, both over engine/net as the daemon has it. Internal to tools/.
 */
#ifndef WEFT_TOOLS_BENCH_NET_H
#define WEFT_TOOLS_BENCH_NET_H

#include <jansson.h>
#include <sys/types.h>

#include "engine/net/net.h"

#define BENCH_NET_PORT     9337u
#define BENCH_REGION_BYTES (16u << 20)
#define BENCH_OPS          256u
#define BENCH_BATCH        32u /* pages written at once */
#define BENCH_DEPTH        4u  /* batches, or large writes, under way */

/* What one end asks the other; the answer to all but the last two is BENCH_ANSWER. */
enum bench_type {
	BENCH_PING = 1, /* also behind writes */
	BENCH_PAGE,   /* a page is to be written into the asker's memory, where it says */
	BENCH_COUNTS, /* what the server has counted: in the answer */
	BENCH_PERFTEST, /* starts the other end of a program of perftest: a errno */
	BENCH_STOP,     /* ends it */
	BENCH_ANSWER,
};

/* How it is to be done, from the command line. */
struct bench_how {
	const char *transport; /* as net_options has it */
	bool tls;
	uint8_t key[NET_KEY_BYTES];
	char address[NET_ADDRESS_BYTES]; /* where the server listens */
	char host[NET_ADDRESS_BYTES];    /* the same without a port, for perftest */
	unsigned count;                  /* of operations whose time is taken */
	unsigned wait_s;                 /* how long to wait for a server */
	bool once, json, perftest;
};

/* One end of it. */
struct bench_end {
	const struct bench_how *how;
	struct net *net;
	struct net_peer *peer;
	uint8_t *memory; /* BENCH_REGION_BYTES, which the other end reaches */
	struct net_op ops[BENCH_OPS];
	/* Handlers change these and wake who waits for `changes`. */
	_Atomic uint32_t changes;
	_Atomic bool up, down;
	_Atomic uint32_t answers;  /* to the client */
	struct net_message answer; /* the last one; read when `answers` has risen */
	int refused;               /* why there is no link, so far */
	char why[320];
	/* The server's: what its task is asked to do. 0: nothing. */
	_Atomic uint32_t job;
	uint64_t job_words[3];
	unsigned next_op;
	pid_t child; /* a program of perftest; 0: none */
};

enum bench_count { /* of struct net_counters */
	BENCH_REQUESTS,
	BENCH_CALLS_OUT,
	BENCH_SIGNALLED,
	BENCH_COMPLETIONS,
	BENCH_CALLS_IN,
	BENCH_COUNT_KINDS
};

/* What perftest measures of the same. */
struct bench_beside {
	const char *program; /* NULL: nothing was measured */
	double value;        /* ns, or bytes a second */
	double ours;         /* what of weft's stands beside it, in the same unit */
};

struct bench_measure {
	const char *name, *what; /* for programs, for people */
	bool rate;               /* bytes are counted; else the time of each */
	unsigned pages;          /* that each operation moves, of a rate */
	int error;               /* it could not be done */
	unsigned count;
	uint64_t p50_ns, p99_ns, mean_ns;
	double per_second, bytes_per_second;
	double client[BENCH_COUNT_KINDS], server[BENCH_COUNT_KINDS]; /* an operation */
	struct bench_beside beside;
};

enum bench_kind {
	BENCH_MESSAGE,
	BENCH_FETCH,
	BENCH_READ,
	BENCH_CAS,
	BENCH_WRITE_PAGES,
	BENCH_WRITE_LARGE,
	BENCH_KINDS
};

/* ---- bench_net_end.c: either end ---------------------------------------------------- */

/* Listens, or connects. 0 or -errno with a text. */
int bench_end_open(struct bench_end *e, const struct bench_how *how, bool listens,
	struct weft_error *err);
void bench_end_close(struct bench_end *e);
/* The server: serves one client. `tell`: where its address is written; -1: nowhere. */
int bench_serve_one(const struct bench_how *how, int tell, struct weft_error *err);
/* The client: the server is there, or why not. */
int bench_connect(struct bench_end *e, struct weft_error *err);
/* Waits until something has changed since `seen`, or the time is over. */
void bench_await(struct bench_end *e, uint32_t seen, uint64_t deadline_ns);
/* The client: asks, and waits for the answer. 0 or -errno. */
int bench_ask(struct bench_end *e, const struct net_message *m);
/* Waits until so many answers have come. */
int bench_await_answers(struct bench_end *e, uint32_t wanted);

/* ---- bench_net_measure.c ------------------------------------------------------------- */

/* Fills all of `m`. 0, or -errno: the link is gone, or what came is wrong. */
int bench_measure_all(struct bench_end *e, struct bench_measure m[BENCH_KINDS]);

/* ---- bench_net_perftest.c ------------------------------------------------------------ */

/* The server: starts its end of program `words[0]`. 0 or an errno. */
int bench_perftest_serve(struct bench_end *e, const uint64_t words[3]);
void bench_perftest_stop(struct bench_end *e);
/*
 * The client: runs what belongs to each of `m` and puts it beside. In `remark` what is to
 * be said about it; empty: nothing.
 */
void bench_perftest_all(struct bench_end *e, struct bench_measure m[BENCH_KINDS],
	char *remark, size_t size);

#endif
