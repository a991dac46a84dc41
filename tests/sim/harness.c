/* SPDX-License-Identifier: Apache-2.0 */
/* Disks, lives and child processes of simulated tests. */
#include <errno.h>
#include <signal.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "tests/sim/harness.h"

#define MIB    (1ull << 20)
#define PIECE  65536u
#define FILLED 250u

static const struct ops_caller caller = {.keeps_setid = true, .in_group = true};

/* ---- shapes ---------------------------------------------------------------------- */

struct sim_shape sim_shape_of(uint64_t seed)
{
	static const unsigned frames[] = {64, 64, 96, 128, 256};
	uint64_t x = seed * 0x9e3779b97f4a7c15ull >> 20;

	return (struct sim_shape){
		.seed = seed,
		.disk_bytes = (24 + x % 3 * 12) * MIB,
		.log_bytes = 4 * MIB,
		.atomic_bytes = seed % 2 ? 512 : 4096,
		.frames = frames[x / 3 % ARRAY_SIZE(frames)],
		.tasks = 1 + (unsigned)(x / 15 % MODEL_TASKS),
		.ops = 40 + (unsigned)(x / 60 % 60),
		.filled = x / 3600 % 3 == 0,
	};
}

/* ---- formatting ------------------------------------------------------------------ */

static void fill(struct fs *fs)
{
	struct ops_attr dir, a;
	char name[128], value[400];

	OK(ops_mkdir(
		fs, DISK_INO_ROOT, (struct ops_name){"fill", 4}, &caller, 0755, &dir));
	memset(value, 'f', sizeof(value));
	for (unsigned i = 0; i < FILLED; i++) {
		int len = snprintf(name, sizeof(name), "file%080u", i);

		OK(ops_mknod(fs, dir.ino, (struct ops_name){name, (size_t)len}, &caller,
			S_IFREG | 0644, 0, 0, &a));
		OK(ops_setxattr(
			fs, a.ino, &caller, "user.fill", value, sizeof(value), 0));
	}
}

struct format_call {
	const char *name;
	const struct sim_shape *shape;
};

static void format_main(void *arg)
{
	const struct format_call *call = arg;
	struct store_format format = {
		.checksum_kind = DISK_CHECKSUM_GMAC, .log_bytes = call->shape->log_bytes};
	struct weft_error err = {0};
	struct rt_disk *disk;
	struct ops_attr a;
	struct fs *fs;

	OK(rt_disk_open(&disk, call->name, 0, &err));
	if (volume_format(disk, &format, 0, 0, &err))
		workload_die("format: %s", err.text);
	rt_disk_close(disk);
	if (sim_open(call->name, call->shape, &fs, &err))
		workload_die("open: %s", err.text);
	OK(ops_mkdir(
		fs, DISK_INO_ROOT, (struct ops_name){"shared", 6}, &caller, 0755, &a));
	for (unsigned i = 0; i < MODEL_TASKS; i++) {
		char name[] = {'d', 'i', 'r', (char)('a' + i), '\0'};

		OK(ops_mkdir(fs, DISK_INO_ROOT, (struct ops_name){name, 4}, &caller, 0755,
			&a));
	}
	if (call->shape->filled)
		fill(fs);
	OK(sim_close(fs));
}

/* Formatted disks, kept in the process for the runs to come. */
static struct saved {
	uint64_t bytes, log_bytes;
	uint32_t atomic;
	bool filled, used;
	uint8_t **piece; /* NULL: zeros */
} saved[12];

static void save(struct saved *s, struct rt_sim_disk *disk)
{
	static uint8_t buf[PIECE];

	s->piece = calloc(s->bytes / PIECE, sizeof(*s->piece));
	WEFT_ASSERT(s->piece);
	for (uint64_t i = 0; i < s->bytes / PIECE; i++) {
		rt_sim_disk_peek(disk, i * PIECE, buf, PIECE);
		if (buf[0] == 0 && memcmp(buf, buf + 1, PIECE - 1) == 0)
			continue;
		s->piece[i] = malloc(PIECE);
		WEFT_ASSERT(s->piece[i]);
		memcpy(s->piece[i], buf, PIECE);
	}
}

static struct saved *saved_of(const struct sim_shape *shape)
{
	struct saved *s = saved;

	while (s->used &&
		(s->bytes != shape->disk_bytes || s->log_bytes != shape->log_bytes ||
			s->atomic != shape->atomic_bytes || s->filled != shape->filled))
		s++;
	WEFT_ASSERT(s < saved + ARRAY_SIZE(saved) - 1);
	return s;
}

static int prepare_main(void *arg)
{
	const struct sim_shape *shape = arg;
	const struct rt_sim_disk_options options = {
		.atomic_write_bytes = shape->atomic_bytes};
	struct rt_sim_disk *disk =
		rt_sim_disk_create("format", shape->disk_bytes, &options);
	struct format_call call = {"format", shape};
	struct saved *s = saved_of(shape);

	sim_watch();
	WEFT_ASSERT(!sim_node_run(format_main, &call));
	*s = (struct saved){shape->disk_bytes, shape->log_bytes, shape->atomic_bytes,
		shape->filled, true, NULL};
	save(s, disk);
	return 0;
}

void sim_prepare(struct sim_shape *shape)
{
	if (!saved_of(shape)->used)
		OK(rt_sim_run(1, NULL, prepare_main, shape));
}

struct rt_sim_disk *sim_disk_formatted(const char *name, const struct sim_shape *shape)
{
	const struct rt_sim_disk_options options = {
		.atomic_write_bytes = shape->atomic_bytes};
	struct rt_sim_disk *disk = rt_sim_disk_create(name, shape->disk_bytes, &options);
	const struct saved *s = saved_of(shape);

	WEFT_ASSERT(s->used);
	for (uint64_t i = 0; i < s->bytes / PIECE; i++)
		if (s->piece[i])
			rt_sim_disk_poke(disk, i * PIECE, s->piece[i], PIECE);
	return disk;
}

/* ---- nodes ----------------------------------------------------------------------- */

bool sim_node_run(void (*fn)(void *), void *arg)
{
	unsigned node = rt_sim_node_new("node");
	bool dead;

	OK(rt_sim_spawn_on(node, "main", fn, arg));
	dead = rt_sim_node_wait(node);
	rt_sim_node_kill(node);
	return dead;
}

int sim_open(const char *name, const struct sim_shape *shape, struct fs **out,
	struct weft_error *err)
{
	struct volume_options vo = {
		.background = true,
		.cache.cache_bytes = (uint64_t)shape->frames * PAGE_SIZE,
		.log.buffer_bytes = MIB,
	};
	struct ops_options oo = {.atime = OPS_RELATIME};
	struct rt_disk *disk;
	struct volume *v;
	int rc = rt_disk_open(&disk, name, RT_DISK_EXCLUSIVE, err);

	if (rc == 0)
		rc = volume_open(&v, disk, &vo, err);
	if (rc)
		return rc;
	rc = fs_open(out, v, &oo, err);
	if (rc)
		(void)volume_close(v);
	return rc;
}

int sim_close(struct fs *fs)
{
	struct volume *v = fs_volume(fs);

	fs_close(fs);
	return volume_close(v);
}

static void check_recovered(struct model *m, struct fs *fs)
{
	static struct model_seen seen[MODEL_TASKS];

	for (unsigned i = 0; i < m->tasks; i++) {
		int rc = model_look(m, i, fs, &seen[i]);

		if (rc)
			workload_die("recovered: %s", rc > 0 ? m->why : strerror(-rc));
	}
	if (!model_recovered(m, seen))
		workload_die("recovered: %s", m->why);
}

struct fs *sim_life_begin(const struct sim_shape *shape, struct model *m)
{
	struct weft_error err = {0};
	struct fs *fs;

	if (sim_open("disk", shape, &fs, &err))
		workload_die("open: %s", err.text);
	sim_check_space(fs);
	check_recovered(m, fs);
	return fs;
}

void sim_life_work(struct workload *work)
{
	workload_run(work);
	atomic_fetch_add(&sim_totals->syncs, work->syncs);
	atomic_fetch_add(&sim_totals->faults, work->failed);
	for (unsigned i = 0; i < work->tasks; i++)
		atomic_fetch_add(&sim_totals->operations, work->model->task[i].ops);
}

void sim_life_audit(struct workload *work)
{
	for (unsigned i = 0; i < work->tasks && !work->choked; i++)
		workload_audit(work, i);
}

/* ---- children -------------------------------------------------------------------- */

struct sim_totals *sim_totals;
static char repeat_command[256], repeat_note[128];

uint64_t sim_env(const char *name, uint64_t otherwise)
{
	const char *text = getenv(name);

	return text && *text ? strtoull(text, NULL, 10) : otherwise;
}

uint64_t sim_mix(uint64_t z)
{
	z += 0x9e3779b97f4a7c15ull;
	z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9ull;
	z = (z ^ (z >> 27)) * 0x94d049bb133111ebull;
	return z ^ (z >> 31);
}

void sim_run(const struct sim_shape *shape, int (*fn)(void *))
{
	const struct rt_sim_options options = {.step_limit = SIM_STEP_LIMIT};

	OK(rt_sim_run(shape->seed, &options, fn, NULL));
	atomic_fetch_add(&sim_totals->runs, 1);
}

void sim_each_point(uint64_t seed, uint64_t total, void (*run)(uint64_t n))
{
	uint64_t points = sim_env("WEFT_SIM_CUTS", 40);

	for (uint64_t i = 0; i < points; i++) {
		uint64_t n = 1 + (total * i + sim_mix(seed + i) % MAX(total, 1)) / points;

		run(MIN(n, total));
	}
}

void sim_repeat_note(const char *fmt, ...)
{
	va_list args;

	va_start(args, fmt);
	vsnprintf(repeat_note, sizeof(repeat_note), fmt, args);
	va_end(args);
}

static void on_crash(int number)
{
	char text[512];
	int len = snprintf(text, sizeof(text), "%s; repeat: %s %s\n", strsignal(number),
		repeat_note, repeat_command);

	if (len > 0 && write(STDERR_FILENO, text, (size_t)len) < 0)
		_exit(1);
	signal(number, SIG_DFL);
	raise(number);
}

void sim_watch(void)
{
	static uint8_t stack[65536];
	const stack_t alternate = {.ss_sp = stack, .ss_size = sizeof(stack)};
	struct sigaction action = {.sa_handler = on_crash, .sa_flags = SA_ONSTACK};
	static const int signals[] = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE, SIGALRM, SIGTERM};

	WEFT_ASSERT(sigaltstack(&alternate, NULL) == 0);
	for (unsigned i = 0; i < ARRAY_SIZE(signals); i++)
		sigaction(signals[i], &action, NULL);
}

/* Cuts and faults make the engine complain, as it should. */
static void no_log(int level, const char *line)
{
}

static void child(const char *test, uint64_t seed, unsigned seconds, void (*fn)(uint64_t))
{
	char self[128] = "";
	ssize_t len = readlink("/proc/self/exe", self, sizeof(self) - 1);
	const char *from = len > 0 ? strstr(self, "build/") : NULL;

	snprintf(repeat_command, sizeof(repeat_command), "WEFT_SIM_SEED=%llu %s %s",
		(unsigned long long)seed, from ? from : self, test);
	model_trace = sim_env("WEFT_SIM_TRACE", 0);
	if (!model_trace)
		weft_log_sink = no_log;
	alarm(seconds);
	fn(seed);
	exit(0);
}

unsigned sim_each_seed(const char *test, uint64_t first, uint64_t count, unsigned seconds,
	void (*fn)(uint64_t seed))
{
	unsigned running = 0, failed = 0, jobs = (unsigned)sim_env("WEFT_SIM_JOBS", 2);
	uint64_t only = sim_env("WEFT_SIM_SEED", 0), next = 0;
	int status;

	if (!sim_totals)
		sim_totals = mmap(NULL, sizeof(*sim_totals), PROT_READ | PROT_WRITE,
			MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	WEFT_ASSERT(sim_totals != MAP_FAILED);
	memset(sim_totals, 0, sizeof(*sim_totals));
	if (only) {
		first = only;
		count = 1;
	}
	fflush(NULL);
	while (next < count || running) {
		if (next < count && running < jobs && failed < 10) {
			pid_t pid = fork();

			WEFT_ASSERT(pid >= 0);
			if (pid == 0)
				child(test, first + next, seconds, fn);
			next++;
			running++;
			continue;
		}
		if (!running)
			break;
		if (wait(&status) > 0) {
			running--;
			failed += status != 0;
		}
	}
	return failed;
}
