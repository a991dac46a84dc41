/* SPDX-License-Identifier: Apache-2.0 */
/*
 * `run data|names|replace|killed DIRECTORY... [-s SEED] [-n OPERATIONS] [-p PROCESSES]
 * [-l BYTES] [-k KILLS] [-d] [-m] [-r]`
 *
 * data: one file per process, each byte compared with a copy in memory (in the manner of
 * fsx). names: all processes in one tree of names (fsstress). replace: a name that is
 * replaced is always there. killed: nodes die meanwhile (killed.c). More than one DIRECTORY: the
 * same folder by several mounts of one volume, as other nodes have it; files are used through
 * all of them in turn.
 */
#include "tests/mount/fsx/fsx.h"

#include <stdlib.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

typedef int (*work)(const struct options *o, unsigned process);

static int processes_run(const struct options *o, work w)
{
	int failed = 0, status;

	fflush(NULL);
	for (unsigned i = 0; i < o->processes; i++) {
		pid_t child = fork();

		if (child < 0) {
			perror("fork");
			return 1;
		}
		if (child == 0) {
			int ret = w(o, i);

			fflush(NULL);
			_exit(ret);
		}
	}
	for (unsigned i = 0; i < o->processes; i++) {
		if (wait(&status) < 0 || status != 0)
			failed = 1;
	}
	return failed;
}

static int usage(void)
{
	fprintf(stderr, "usage: run data|names|replace|killed DIRECTORY... [-s SEED]\n"
			"           [-n OPERATIONS] [-p PROCESSES] [-l BYTES] [-k KILLS] "
			"[-d] [-m] [-r]\n");
	return 2;
}

int main(int argc, char *argv[])
{
	struct options o = {.operations = 1000, .processes = 1, .size = 256 << 10};
	struct timespec now;
	int c, failed = 0;

	clock_gettime(CLOCK_REALTIME, &now);
	o.seed = (uint64_t)now.tv_nsec ^ (uint64_t)now.tv_sec << 20;
	while ((c = getopt(argc, argv, "s:n:p:l:k:dmr")) != -1) {
		switch (c) {
		case 's':
			o.seed = strtoull(optarg, NULL, 0);
			break;
		case 'n':
			o.operations = (unsigned)strtoul(optarg, NULL, 0);
			break;
		case 'p':
			o.processes = (unsigned)strtoul(optarg, NULL, 0);
			break;
		case 'l':
			o.size = strtoul(optarg, NULL, 0);
			break;
		case 'k':
			o.kills = (unsigned)strtoul(optarg, NULL, 0);
			break;
		case 'd':
			o.direct = true;
			break;
		case 'm':
			o.mappings = true;
			break;
		case 'r':
			o.readers = true;
			break;
		default:
			return usage();
		}
	}
	for (int i = optind + 1; i < argc && o.directories < VIEWS_MAX; i++)
		o.directory[o.directories++] = argv[i];
	if (optind + 1 + (int)o.directories != argc || !o.directories || o.size < 65536)
		return usage();
	if (strcmp(argv[optind], "killed") == 0)
		return killed_run(&o);
	printf("%s: seed 0x%llx\n", argv[optind], (unsigned long long)o.seed);
	if (strcmp(argv[optind], "data") == 0)
		return processes_run(&o, data_run);
	if (strcmp(argv[optind], "replace") == 0)
		return processes_run(&o, replace_run);
	if (strcmp(argv[optind], "names") != 0)
		return usage();
	failed = processes_run(&o, names_run);
	for (unsigned i = 0; i < o.directories; i++)
		failed |= names_check(o.directory[i]);
	return failed;
}
