/* SPDX-License-Identifier: Apache-2.0 */
/* fsck.weft: checks and repairs a volume. The command line of mkfs/fsck: the options of other fsck
 * programs, so that fsck(8) can call it, questions, and progress on a terminal. */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "engine/cluster/cluster.h"
#include "engine/common/text.h"
#include "mkfs/fsck/fsck.h"

struct session {
	const char *path;
	char several[256];
	bool progress; /* on standard error, which is a terminal */
	bool line;     /* it is on the terminal's current line */
	unsigned pass;
	unsigned permille;
	bool verbose;
};

static const char usage_text[] =
	"Usage: fsck.weft [options] STORE...\n"
	"       fsck.weft [options] FILE\n"
	"Check a weft volume and repair it. STORE is a block device or a regular file.\n"
	"To check a volume of several storage nodes as a whole, give all of its stores,\n"
	"or its cluster file FILE, which names them. One of its stores alone is checked\n"
	"as far as that is possible without the others.\n"
	"\n"
	"  -n            write nothing; answer no to every question\n"
	"  -y            repair everything without asking\n"
	"  -p, -a        make repairs that lose nothing; stop at any other damage\n"
	"  -f            check the volume even if it was unmounted cleanly\n"
	"  -c            read all file data and compare it with its checksums\n"
	"  -m N[KMGT]    memory for tables (default 256M; bitmaps take 64M per TiB more)\n"
	"  -C            show progress even if standard error is not a terminal\n"
	"  -v            print more\n"
	"  -h, --help    print this text\n"
	"  -V, --version\n"
	"                print the version of weft, and of the disk format\n"
	"\n"
	"Examples:\n"
	"  fsck.weft -n /srv/data.weft        check, and repair nothing\n"
	"  fsck.weft -f -c /dev/nvme0n1p4     check everything, ask before each repair\n"
	"  fsck.weft -y /srv/data.weft        repair all\n"
	"  fsck.weft -n /etc/weft/scratch.cluster   a volume of several storage nodes\n"
	"\n"
	"Exit status, added up: 0 clean, 1 repaired, 4 damage is left, 8 not checked,\n"
	"16 wrong usage. docs/fsck.md and fsck.weft(8) explain the codes of findings.\n";

static void line_end(struct session *s)
{
	if (s->line)
		fputs("\r\033[K", stderr);
	s->line = false;
}

static void on_finding(
	void *arg, unsigned code, const char *text, enum fsck_outcome outcome)
{
	static const char *const words[] = {[FSCK_LEFT] = "", [FSCK_FIXED] = " FIXED"};
	struct session *s = arg;

	line_end(s);
	if (outcome == FSCK_NOTE)
		printf("       %s\n", text);
	else
		printf("F%04u  %s.%s\n", code, text, words[outcome]);
	fflush(stdout);
}

/* The end of input answers no. The rest of the line answers no other question. */
static bool on_ask(void *arg, unsigned code, const char *text)
{
	struct session *s = arg;
	int first, c;

	line_end(s);
	printf("F%04u  %s. Repair? [y/N] ", code, text);
	fflush(stdout);
	first = c = getchar();
	while (c != '\n' && c != EOF)
		c = getchar();
	if (c == EOF)
		putchar('\n');
	return first == 'y' || first == 'Y';
}

static void on_progress(void *arg, unsigned pass, uint64_t done, uint64_t total)
{
	static const char *const names[] = {
		"reading the table", "tree", "items", "names", "pages", "data"};
	struct session *s = arg;
	unsigned permille =
		total ? (unsigned)(done / (total / 1000 + 1)) : (unsigned)(done / 4096);

	if (!s->progress || (s->line && pass == s->pass && permille == s->permille))
		return;
	s->pass = pass;
	s->permille = permille;
	s->line = true;
	if (total)
		fprintf(stderr, "\r\033[K%s: pass %u (%s) %u.%u %%", s->path, pass,
			names[pass % 6], permille / 10 > 100 ? 100 : permille / 10,
			permille % 10);
	else
		fprintf(stderr, "\r\033[K%s: pass %u (%s) %" PRIu64, s->path, pass,
			names[pass % 6], done);
}

static int usage_error(const char *what)
{
	fprintf(stderr, "fsck.weft: %s\nTry 'fsck.weft --help'.\n", what);
	return FSCK_EXIT_USAGE;
}

static int usage_value(const char *what, const char *value)
{
	fprintf(stderr, "fsck.weft: %s, not \"%s\"\nTry 'fsck.weft --help'.\n", what,
		value);
	return FSCK_EXIT_USAGE;
}

struct request {
	struct fsck_options o;
	char **paths; /* stores, or one cluster file */
	unsigned count;
	struct cluster *cluster;
	bool no, yes, verbose, progress;
};

/* 0; or 1 + the exit code. */
static int fsck_parse_options(int argc, char **argv, struct request *r)
{
	static const struct option options[] = {{"help", no_argument, NULL, 'h'},
		{"version", no_argument, NULL, 'V'}, {NULL, 0, NULL, 0}};
	int c;

	while ((c = getopt_long(argc, argv, "nypafcm:CvhV", options, NULL)) != -1) {
		switch (c) {
		case 'n':
			r->no = true;
			break;
		case 'y':
			r->yes = true;
			break;
		case 'p':
		case 'a':
			r->o.preen = true;
			break;
		case 'f':
			r->o.force = true;
			break;
		case 'c':
			r->o.check_data = r->o.force = true;
			break;
		case 'C':
			r->progress = true;
			break;
		case 'v':
			r->verbose = true;
			break;
		case 'm':
			if (size_parse(optarg, &r->o.memory_bytes) < 0 ||
				!r->o.memory_bytes)
				return 1 +
				       usage_value("-m wants a number of bytes", optarg);
			break;
		case 'h':
			fputs(usage_text, stdout);
			return 1;
		case 'V':
			printf("fsck.weft %s, disk format %u\n", WEFT_VERSION,
				DISK_VERSION);
			return 1;
		default:
			fputs("Try 'fsck.weft --help'.\n", stderr);
			return 1 + FSCK_EXIT_USAGE;
		}
	}
	if (r->no + r->yes + r->o.preen > 1)
		return 1 + usage_error("only one of -n, -y and -p makes sense");
	if (optind == argc)
		return 1 + usage_error("which store?");
	r->paths = argv + optind;
	r->count = (unsigned)(argc - optind);
	if (r->count > SHARDS_MAX)
		return 1 + usage_error("a volume has not so many stores");
	r->o.repair = !r->no;
	if (r->o.repair && !r->yes && !r->o.preen)
		r->o.ask = on_ask;
	return 0;
}

static void print_summary(const struct session *s, const struct fsck_result *r)
{
	if (r->skipped) {
		printf("%s: clean (-f checks it all the same)\n", s->path);
		return;
	}
	if (r->replayed)
		printf("%s: it was not unmounted cleanly; the log has %" PRIu64
		       " records\n",
			s->path, r->log_records);
	if (s->verbose)
		printf("%s: %" PRIu64 " inodes, %" PRIu64 " of them directories; %" PRIu64
		       " of %" PRIu64 " pages in use, %" PRIu64 " by the tree\n",
			s->path, r->inodes, r->directories, r->used_pages, r->total_pages,
			r->tree_pages);
	if (!r->found)
		printf("%s: no damage found%s\n", s->path,
			r->alone ? " in this store; the volume was not checked" : "");
	else
		printf("%s: %" PRIu64 " findings, %" PRIu64 " repaired, %" PRIu64
		       " left\n",
			s->path, r->found, r->fixed, r->left);
}

/* Drops the engine's own messages, which repeat the findings. */
static void no_log(int level, const char *line)
{
}

/* If the findings cannot be printed, the check has failed for its user. */
static int output_end(int code)
{
	if (fflush(stdout) == 0 && !ferror(stdout))
		return code;
	fprintf(stderr, "fsck.weft: cannot write the findings: %s\n", strerror(errno));
	return code | FSCK_EXIT_OPERATIONAL;
}

/* Finds the stores that the cluster file names. All must be reachable from here. */
static unsigned cluster_inputs(struct request *r, struct fsck_input *in)
{
	const struct cluster_member *m = NULL;
	unsigned count = 0;

	while ((m = cluster_next(r->cluster, m)))
		if (m->role == CLUSTER_STORAGE)
			in[count++] = (struct fsck_input){
				.name = cluster_store_here(r->cluster, m->id), .node = m->id};
	r->o.all_stores = true;
	r->o.volume_uuid = cluster_volume_uuid(r->cluster);
	r->o.file = cluster_path(r->cluster);
	r->o.nodes = cluster_node_bits(r->cluster);
	return count;
}

static unsigned path_inputs(const struct request *r, struct fsck_input *in)
{
	for (unsigned i = 0; i < r->count; i++)
		in[i] = (struct fsck_input){.name = r->paths[i]};
	return r->count;
}

static int inputs_open(const struct request *r, struct fsck_input *in, unsigned count)
{
	unsigned flags = RT_DISK_EXCLUSIVE | (r->o.repair ? 0 : RT_DISK_READ_ONLY);
	struct weft_error err = {0};
	int rc = 0;

	for (unsigned i = 0; i < count && rc == 0; i++) {
		rc = rt_disk_open(&in[i].disk, in[i].name, flags, &err);
		if (rc == 0)
			continue;
		fprintf(stderr, "fsck.weft: %s\n", err.text);
		if (r->cluster)
			fprintf(stderr,
				"fsck.weft: %s: it is node %u's store. All stores of the "
				"volume have to be reachable from this machine at a "
				"time; "
				"where they have other paths here, give these instead of "
				"the cluster file\n",
				r->paths[0], in[i].node);
		while (i > 0)
			rt_disk_close(in[--i].disk);
	}
	return rc;
}

static int check_volume(struct request *r, struct session *s)
{
	struct fsck_input in[SHARDS_MAX];
	struct fsck_result result;
	struct weft_error err = {0};
	unsigned count;
	int rc = rt_stdio_open();

	if (rc == 0)
		rc = rt_real_start();
	if (rc) {
		fprintf(stderr, "fsck.weft: cannot start: %s\n", strerror(-rc));
		return FSCK_EXIT_OPERATIONAL;
	}
	if (r->count == 1 && cluster_file_is(r->paths[0])) {
		rc = cluster_open(&r->cluster, r->paths[0], CLUSTER_WITHOUT_KEY, &err);
		if (rc) {
			fprintf(stderr, "fsck.weft: %s\n", err.text);
			return FSCK_EXIT_OPERATIONAL;
		}
	}
	count = r->cluster ? cluster_inputs(r, in) : path_inputs(r, in);
	if (inputs_open(r, in, count))
		return FSCK_EXIT_OPERATIONAL;
	rc = fsck_run_stores(in, count, &r->o, &result, &err);
	line_end(s);
	fflush(stdout);
	if (rc)
		fprintf(stderr, "fsck.weft: %s: %s\n", s->path,
			err.text[0] ? err.text : strerror(-rc));
	else
		print_summary(s, &result);
	return output_end(result.exit_code);
}

int main(int argc, char **argv)
{
	struct request r = {0};
	struct session s = {0};
	int rc = fsck_parse_options(argc, argv, &r);

	if (rc)
		return output_end(rc - 1);
	s.path = r.paths[0];
	if (r.count > 1) {
		snprintf(s.several, sizeof(s.several), "%.200s and %u more", r.paths[0],
			r.count - 1);
		s.path = s.several;
	}
	s.verbose = r.verbose;
	s.progress = r.progress || isatty(STDERR_FILENO);
	if (!s.verbose)
		weft_log_sink = no_log;
	r.o.arg = &s;
	r.o.finding = on_finding;
	r.o.progress = on_progress;
	rc = check_volume(&r, &s);
	cluster_close(r.cluster);
	return rc;
}
