/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Nodes on the real runtime, over tcp, shm or verbs: in one process, each with tasks of its own, or
 * (benchmarks) each a process. A store is a file without a name. The test opens what is above store
 * and log.
 */
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/coherence/driver/driver.h"
#include "engine/rt/rt.h"
#include "tests/world/expect.h"
#include "tests/world/world.h"

static struct world *running;

/* The test hangs, or has failed: prints what each node waits for. */
static void on_signal(int signal_number)
{
	/* NOLINTBEGIN(bugprone-signal-handler): the test has failed */
	for (unsigned i = 0; running && i < running->nodes; i++)
		if (running->node[i].coherence)
			coherence_dump(running->node[i].coherence);
	/* NOLINTEND(bugprone-signal-handler) */
	signal(SIGABRT, SIG_DFL);
	raise(SIGABRT);
}

void world_make_real(struct world *w, const char *transport, unsigned nodes,
	const char *folder, uint64_t disk_bytes)
{
	const char *tmp = folder ? folder : getenv("WEFT_TMP");

	memset(w, 0, sizeof(*w));
	w->transport = transport;
	w->nodes = nodes;
	snprintf(
		w->folder, sizeof(w->folder), "%s/weft-nodes-XXXXXX", tmp ? tmp : "/tmp");
	if (!mkdtemp(w->folder)) {
		perror(w->folder);
		abort();
	}
	for (unsigned i = 0; i < nodes; i++) {
		w->node[i].w = w;
		w->node[i].id = i + 1;
		test_file_make(&w->node[i].file, folder, disk_bytes);
	}
}

void world_drop_real(struct world *w)
{
	for (unsigned i = 0; i < w->nodes; i++)
		test_file_drop(&w->node[i].file);
	rmdir(w->folder); /* each node has removed its socket */
}

void world_run_real(struct world *w, void (*run)(void *node))
{
	running = w;
	signal(SIGABRT, on_signal);
	signal(SIGALRM, on_signal);
	alarm(WORLD_SECONDS * (getenv("WEFT_LONGER") ? 4 : 1));
	for (unsigned i = 0; i < w->nodes; i++)
		OK(rt_task_spawn(&w->node[i].task, "node", run, &w->node[i]));
	for (unsigned i = 0; i < w->nodes; i++)
		rt_task_join(w->node[i].task);
	alarm(0);
	running = NULL;
}

struct coherence *node_provide(struct node *n, struct store *store, struct log *log)
{
	struct coherence_options co = node_network(n, store, log, 1);

	OK(page_driver_open(&n->coherence, &co));
	return n->coherence;
}

void node_part_all(struct node *n)
{
	barrier(n);
	coherence_stop(n->coherence);
	barrier(n);
	net_close(n->net);
	n->coherence = NULL;
	n->net = NULL;
}
