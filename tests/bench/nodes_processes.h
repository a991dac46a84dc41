/* SPDX-License-Identifier: Apache-2.0 */
/* For benchmarks of several nodes: each is a process; they share what the parent has
 * allocated here. */
#ifndef WEFT_BENCH_NODES_PROCESSES_H
#define WEFT_BENCH_NODES_PROCESSES_H

#include <inttypes.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/world/expect.h"
#include "tests/world/world.h"

/* Zeros, at the same place in all processes. */
static inline void *nodes_share(size_t bytes)
{
	void *p = mmap(
		NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

	WEFT_ASSERT(p != MAP_FAILED);
	return p;
}

static inline void print_value(const char *name, double value)
{
	printf("%s=%.6g\n", name, value);
}

/* Processor time of this process, all threads. */
static inline double processor_ns(void)
{
	struct rusage u;

	getrusage(RUSAGE_SELF, &u);
	return ((double)u.ru_utime.tv_sec + (double)u.ru_stime.tv_sec) * 1e9 +
	       ((double)u.ru_utime.tv_usec + (double)u.ru_stime.tv_usec) * 1e3;
}

/* Over all links of the node. */
static inline struct net_counters node_traffic(const struct node *n)
{
	struct net_counters sum = {0}, c;

	for (unsigned id = 1; id <= n->w->nodes; id++) {
		if (id == n->id)
			continue;
		net_counters(net_peer_find(n->net, (uint16_t)id), &c);
		sum.messages_out += c.messages_out;
		sum.messages_in += c.messages_in;
		sum.bytes_out += c.bytes_out;
		sum.bytes_in += c.bytes_in;
		sum.calls_out += c.calls_out;
		sum.calls_in += c.calls_in;
	}
	return sum;
}

/* Runs each node in a process, on the real runtime. 0, or 1: one has failed. */
static inline int nodes_processes(struct world *w, void (*run)(struct node *n))
{
	pid_t child[NODES_MAX];
	int failed = 0;

	fflush(stdout);
	for (unsigned i = 0; i < w->nodes; i++) {
		child[i] = fork();
		if (child[i])
			continue;
		alarm(WORLD_SECONDS);
		rt_real_start();
		run(&w->node[i]);
		fflush(stdout);
		_exit(0);
	}
	for (unsigned i = 0; i < w->nodes; i++) {
		int status;

		wait(&status);
		for (unsigned k = 0; status && !failed && k < w->nodes; k++)
			kill(child[k], SIGTERM); /* they would wait for it for ever */
		failed |= status != 0;
	}
	return failed;
}

#endif
