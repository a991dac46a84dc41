/* SPDX-License-Identifier: Apache-2.0 */
/* weft bench net: two ends, both over engine/net as in the daemon. The client measures, the server
 * serves its requests. Internal to tools/. */
#ifndef WEFT_TOOLS_BENCH_NET_H
#define WEFT_TOOLS_BENCH_NET_H

#include <jansson.h>
#include <sys/types.h>

#include "engine/net/net.h"

#define BENCH_NET_PORT     9337u
#define BENCH_REGION_BYTES (16u << 20)
#define BENCH_OPS          256u
#define BENCH_BATCH        32u /* number of pages written at once */
#define BENCH_DEPTH        4u  /* number of batches, or large writes, under way */

/* Requests of one end to the other. All except the last two are answered by BENCH_ANSWER. */
enum bench_type {
	BENCH_PING = 1, /* also behind writes */
	BENCH_PAGE,     /* write a page into the thread's memory, at the given place */
	BENCH_COUNTS,   /* answer with the server's counts */
	BENCH_PERFTEST, /* start the other end of a program of perftest; answers an errno */
	BENCH_STOP,     /* end the server */
	BENCH_ANSWER,
};

/* The options of the command line. */
struct bench_how {
	const char *transport; /* as in net_options */
	bool tls;
	uint8_t key[NET_KEY_BYTES];
	char address[NET_ADDRESS_BYTES]; /* address of the server */
	char host[NET_ADDRESS_BYTES];    /* the same without a port, for perftest */
	unsigned count;                  /* number of operations that are timed */
	unsigned wait_s;                 /* seconds to wait for a server */
	bool once, json, perftest;
};

/* One end. */
struct bench_end {
	const struct bench_how *how;
	struct net *net;
	struct net_peer *peer;
	uint8_t *memory; /* BENCH_REGION_BYTES, accessible to the other end */
	struct net_op ops[BENCH_OPS];
	/* Handlers change these and wake the threads that wait for `changes`. */
	_Atomic uint32_t changes;
	_Atomic bool up, down;
	_Atomic uint32_t answers;  /* to the client */
	struct net_message answer; /* the last one; read after `answers` has risen */
	int refused;               /* reason for the missing link, so far */
	char why[320];
	/* At the server: the job of its task. 0: none. */
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

/* The result of perftest for the same. */
struct bench_beside {
	const char *program; /* NULL: no result */
	double value;        /* ns, or bytes a second */
	double ours;         /* weft's result to compare, in the same unit */
};

struct bench_measure {
	const char *name, *what; /* for programs, for people */
	bool rate;               /* counts bytes; else the time of each */
	unsigned pages;          /* number of pages that each operation of a rate moves */
	int error;               /* it failed */
	unsigned count;
	uint64_t p50_ns, p99_ns, mean_ns;
	double per_second, bytes_per_second;
	double client[BENCH_COUNT_KINDS], server[BENCH_COUNT_KINDS]; /* counts for each operation */
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

/* Listens, or connects. Returns 0 or -errno with a text. */
int bench_end_open(struct bench_end *e, const struct bench_how *how, bool listens,
	struct weft_error *err);
void bench_end_close(struct bench_end *e);
/* The server: serves one client. `tell`: descriptor to which its address is written; -1: none. */
int bench_serve_one(const struct bench_how *how, int tell, struct weft_error *err);
/* The client: connects to the server. Returns 0, or -errno with a text. */
int bench_connect(struct bench_end *e, struct weft_error *err);
/* Waits until there is a change since `seen`, or the time is over. */
void bench_await(struct bench_end *e, uint32_t seen, uint64_t deadline_ns);
/* The client: sends a request and waits for the answer. Returns 0 or -errno. */
int bench_ask(struct bench_end *e, const struct net_message *m);
/* Waits until this number of answers has come. */
int bench_await_answers(struct bench_end *e, uint32_t wanted);

/* ---- bench_net_measure.c ------------------------------------------------------------- */

/* Fills all of `m`. Returns 0, or -errno: the link is gone, or the received data are wrong. */
int bench_measure_all(struct bench_end *e, struct bench_measure m[BENCH_KINDS]);

/* ---- bench_net_perftest.c ------------------------------------------------------------ */

/* The server: starts its end of program `words[0]`. Returns 0 or an errno. */
int bench_perftest_serve(struct bench_end *e, const uint64_t words[3]);
void bench_perftest_stop(struct bench_end *e);
/* The client: runs the program for each of `m` and stores its result there. `remark`: a remark
 * about it; empty: none. */
void bench_perftest_all(struct bench_end *e, struct bench_measure m[BENCH_KINDS],
	char *remark, size_t size);

#endif
