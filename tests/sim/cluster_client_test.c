/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Two storage nodes and a client, put together by engine/node/join.c as the daemon does
 * it. All make, write and read files; the client comes and goes, and is killed, and so is
 * its host. What was fsynced, and what a node has written that has not crashed since, is
 * there for all; so is everything of a client that has left in good order, at once. In the
 * end fsck, which redoes the client's log with the others, finds nothing. And a storage node
 * whose disk fails is unmounted, and comes back, while the other goes on; and the client fsyncs
 * more files at once that its host has written, too, than that serves at a time.
 *
 *   WEFT_SIM_SEED=7 build/tests/sim/cluster_client_test    one seed
 *   WEFT_SIM_SEEDS=1000                                    so many
 */
/* Recovery needs a frame for each page of others that the log has. */
#define FRAMES    1280
#define LOG_BYTES (16ull << 20)
#include <unistd.h>

#include "tests/sim/cluster_files.h"

#include "engine/node/client_logs.h"
#include "engine/node/node.h"

#define NODES        3u
#define CLIENT       3u
#define STORES       2u
#define AREA_BYTES   (7ull << 20)
#define EVENTS       5u
#define CLIENT_SEEDS 6u
#define FLIP_EVERY   (64u << 10) /* bytes */

static const char cluster_text[] = "[volume]\n"
				   "name = v\n"
				   "uuid = 11111111-1111-4111-9111-111111111111\n"
				   "key = v.key\n"
				   "[node 1]\n"
				   "address = node1:7000\n"
				   "store = /disk1\n"
				   "[node 2]\n"
				   "address = node2:7000\n"
				   "store = /disk2\n"
				   "[node 3]\n"
				   "role = client\n"
				   "address = node3:7000\n";

static char folder[] = "/tmp/weft-clients.XXXXXX";
static char cluster_name_of[sizeof(folder) + 16], key_name_of[sizeof(folder) + 16];

struct life {
	struct cluster *cluster;
	struct local_node *node;
};

static struct life lives[NODES + 1];
static _Atomic bool leaves; /* the client is to go, for a while */
static _Atomic bool client_works;
static unsigned ended, visits, redone;
static uint64_t flip_every, flips; /* what the links do to bits */

/* ---- a node that opens and closes as the daemon does -------------------------------------- */

static int disk_of(struct node *n, struct rt_disk **out, struct weft_error *err)
{
	const struct remote_log_options r = {.cluster = lives[n->id].cluster,
		.node = n->id,
		.transport = "sim",
		.format = {.checksum_kind = DISK_CHECKSUM_GMAC}};
	struct remote_log_options with_uuid = r;

	if (n->id != CLIENT)
		return rt_disk_open(out, n->disk, 0, err);
	memcpy(with_uuid.format.volume_uuid, world_uuid, sizeof(world_uuid));
	return remote_log_open(out, &with_uuid, err);
}

static void life_begin(struct node *n)
{
	struct life *l = &lives[n->id];
	struct node_options mo = {.node = n->id, .transport = "sim"};
	struct ops_options oo = {.atime = OPS_RELATIME};
	struct weft_error err = {0};
	struct volume_options vo = {
		.background = true,
		.cache = {.cache_bytes = FRAMES * PAGE_SIZE, .dirty_age_ms = 40},
		.learned_bytes = LEARNED_BYTES,
		.node = (uint16_t)n->id,
	};
	struct rt_disk *disk;
	int rc = cluster_open(&l->cluster, cluster_name_of, 0, &err);

	if (!rc) {
		mo.cluster = l->cluster;
		vo.volume_uuid = world_uuid;
		vo.shard = cluster_member(l->cluster, n->id)->shard;
		rc = node_open(&l->node, &mo, &err);
	}
	if (!rc) {
		vo.peers = look_peers(n->id, node_volume_peers(l->node));
		rc = disk_of(n, &disk, &err);
	}
	if (!rc)
		rc = volume_open(&n->v, disk, &vo, &err);
	if (!rc)
		rc = fs_open(&n->fs, n->v, &oo, &err);
	if (rc) {
		print_message("node %u: %s\n", n->id, err.text);
		abort();
	}
	node_serving(l->node);
	redone += n->id == CLIENT && n->v->recovery.pages > 0;
}

static int life_close(struct node *n)
{
	struct life *l = &lives[n->id];
	int rc;

	node_leave(l->node);
	fs_close(n->fs);
	rc = volume_close(n->v);
	node_close(l->node);
	cluster_close(l->cluster);
	*l = (struct life){0};
	return rc;
}

static void life_end(struct node *n)
{
	OK(life_close(n));
}

/* ---- what they do -------------------------------------------------------------------------- */

static void work(void *arg)
{
	work_on((struct node *)arg, &over);
}

static void visit(void *arg)
{
	work_on((struct node *)arg, &leaves);
}

static void run_tasks(struct node *n, void (*fn)(void *))
{
	struct rt_task *task[TASKS];

	for (unsigned i = 0; i < TASKS; i++)
		OK(rt_task_spawn(&task[i], "work", fn, n));
	for (unsigned i = 0; i < TASKS; i++)
		rt_task_join(task[i]);
}

static void use(struct node *n, unsigned i, bool writes)
{
	while (!enter(n, i, writes)) /* others may be writing, or reading */
		rt_sleep_ns(100000);
	if (writes)
		write_file(n, i);
	else
		read_file(n, i);
	leave(n, i);
}

static void read_all(struct node *n)
{
	for (unsigned i = 0; i < FILES; i++)
		use(n, i, false);
}

static void storage_life(void *arg)
{
	struct node *n = (struct node *)arg;

	life_begin(n);
	run_tasks(n, work);
	read_all(n);
	life_end(n);
	ended++;
}

/* It has left: what it has written is persisted. */
static void note_left(const struct node *n)
{
	for (unsigned i = 0; i < FILES; i++) {
		struct file_model *m = &files[i];

		m->durable = MAX(m->durable, m->by[n->id]);
		m->by[n->id] = 0;
	}
}

static void client_life(void *arg)
{
	struct node *n = (struct node *)arg;

	while (!atomic_load(&over)) {
		atomic_store(&leaves, false);
		life_begin(n);
		atomic_store(&client_works, true);
		run_tasks(n, visit);
		atomic_store(&client_works, false);
		read_all(n);
		life_end(n);
		note_left(n);
		visits++;
		rt_sleep_ns(rt_random() % 50000000);
	}
	ended++;
}

static void spawn(struct node *n)
{
	n->sim = rt_sim_node_new(n->disk);
	OK(rt_sim_spawn_on(
		n->sim, "node", n->id == CLIENT ? client_life : storage_life, n));
}

static void crash(struct node *n)
{
	rt_sim_node_kill(n->sim);
	lives[n->id] = (struct life){0};
	files_crashed(n);
}

/* Once the client leaves and comes back; else some nodes crash, it among them or not. */
static void event(struct world *w)
{
	unsigned who = pick(8);

	if (!who) {
		atomic_store(&leaves, true);
		return;
	}
	for (unsigned i = 0; i < NODES; i++)
		if (who >> i & 1)
			crash(&w->node[i]);
	if (pick(3))
		rt_sleep_ns(rt_random() % 100000000);
	for (unsigned i = 0; i < NODES; i++)
		if (who >> i & 1)
			spawn(&w->node[i]);
}

static void store_format(struct node *n)
{
	struct store_format format = {.checksum_kind = DISK_CHECKSUM_GMAC,
		.log_bytes = LOG_BYTES,
		.node = (uint16_t)n->id,
		.shard = (uint16_t)(n->id - 1),
		.area_count = n->id == 1,
		.area_bytes = n->id == 1 ? AREA_BYTES : 0};
	struct weft_error err = {0};
	struct rt_disk *disk;

	memcpy(format.volume_uuid, world_uuid, sizeof(world_uuid));
	n->sim_disk = rt_sim_disk_create(n->disk, DISK_BYTES, NULL);
	OK(rt_disk_open(&disk, n->disk, 0, &err));
	OK(volume_format(disk, &format, 0, 0, &err));
	rt_disk_close(disk);
}

static void world_begin(struct world *w)
{
	look_begin(LOOK_EVERY);
	for (unsigned i = 0; i < NODES; i++) {
		struct node *n = &w->node[i];

		n->w = w;
		n->id = i + 1;
		snprintf(n->disk, sizeof(n->disk), "disk%u", n->id);
		if (n->id != CLIENT)
			store_format(n);
	}
}

static void world_check(const struct world *w)
{
	const char *names[STORES] = {w->node[0].disk, w->node[1].disk};

	for (unsigned i = 0; i < STORES; i++)
		sim_check_store_alone(names[i]);
	sim_check_stores(names, STORES);
}

static int run_visits(void *arg)
{
	struct world *w = (struct world *)arg;

	world_begin(w);
	for (unsigned i = 0; i < NODES; i++)
		spawn(&w->node[i]);
	rt_sleep_ns(300000000);
	for (unsigned i = 0; i < EVENTS; i++) {
		rt_sleep_ns(rt_random() % 300000000);
		event(w);
	}
	rt_sleep_ns(200000000);
	atomic_store(&over, true);
	atomic_store(&leaves, true);
	/* one that comes just now goes at once */
	while (ended < NODES) {
		atomic_store(&leaves, true);
		rt_sleep_ns(10000000);
	}
	for (unsigned i = 0; i < NODES; i++)
		HOLDS(!rt_sim_node_wait(w->node[i].sim));
	world_check(w);
	return 0;
}

/* All lose their power in the midst of it: what the client has fsynced is in its log only. */
static int run_cut(void *arg)
{
	struct world *w = (struct world *)arg;

	world_begin(w);
	rt_sim_net_flip(flip_every);
	for (unsigned i = 0; i < NODES; i++)
		spawn(&w->node[i]);
	rt_sleep_ns(400000000 + rt_random() % 400000000);
	for (unsigned i = 0; i < NODES; i++)
		crash(&w->node[i]);
	atomic_store(&client_works, false);
	world_check(w);
	if (pick(2)) { /* fsck.weft redoes it, or the nodes do */
		const char *names[STORES] = {w->node[0].disk, w->node[1].disk};

		look_forget();
		HOLDS(sim_recover_stores(names, STORES));
		HOLDS(!sim_check_stores(names, STORES));
	}
	for (unsigned i = 0; i < NODES; i++)
		spawn(&w->node[i]);
	rt_sleep_ns(200000000);
	rt_sim_net_flip(0);
	flips += rt_sim_net_flips();
	while (flip_every && !atomic_load(&client_works))
		rt_sleep_ns(1000000); /* a greeting that was changed delays its start */
	atomic_store(&over, true);
	while (ended < NODES) {
		atomic_store(&leaves, true);
		rt_sleep_ns(10000000);
	}
	for (unsigned i = 0; i < NODES; i++)
		HOLDS(!rt_sim_node_wait(w->node[i].sim));
	world_check(w);
	return 0;
}

/* ---- a disk that fails --------------------------------------------------------------------- */

static _Atomic bool written, shared;

/* For good, or one flush: nobody knows what that has dropped. */
static void disk_fails(const struct node *n)
{
	bool once = pick(2);
	const struct rt_sim_fail fail = {
		.ops = RT_SIM_FAIL_FLUSH | (once ? 0 : RT_SIM_FAIL_WRITE),
		.n = 1,
		.sticky = !once};

	look_fails(n->id);
	rt_sim_disk_fail(n->sim_disk, &fail);
}

static void await(const _Atomic bool *what)
{
	while (!atomic_load(what))
		rt_sleep_ns(1000000);
}

static void write_durably(struct node *n, unsigned i)
{
	do
		write_file(n, i);
	while (files[i].durable != files[i].last);
}

/* Until its log has failed, which it finds when it has something to write there. The flush that
 * fails may be that of a client's log, which takes longer than some of its own. */
static void make_in_vain(struct node *n)
{
	char name[16];
	int rc = 0;

	for (unsigned i = 0; !rc; i++) {
		HOLDS(i < 1000);
		snprintf(name, sizeof(name), "lost%u", i);
		rc = try_file(n->fs, DISK_INO_ROOT, name);
		if (!rc)
			rc = ops_fsync(n->fs, DISK_INO_ROOT, false);
	}
	HOLDS(rc == -EIO || rc == -EROFS);
}

/* It is unmounted at once, waits for nobody, and is as after a crash when it is back. */
static void failing_life(void *arg)
{
	struct node *n = (struct node *)arg;
	uint64_t from;

	life_begin(n);
	for (unsigned i = 0; i < 4; i++)
		write_durably(n, i);
	atomic_store(&written, true);
	await(&shared);
	disk_fails(n);
	make_in_vain(n);
	rt_sleep_ns(pick(3) * 300000000ull);
	from = rt_now_ns();
	HOLDS(life_close(n) < 0);
	HOLDS(rt_now_ns() - from < 1000000000);
	files_crashed(n);
	rt_sim_disk_fail(n->sim_disk, &(struct rt_sim_fail){0});
	rt_sleep_ns(pick(3) * 1000000000ull);
	life_begin(n);
	read_all(n);
	atomic_store(&over, true);
	life_end(n);
	ended++;
}

/* Has changed what has its home there, and goes on with it. */
static void other_life(void *arg)
{
	struct node *n = (struct node *)arg;

	life_begin(n);
	await(&written);
	for (unsigned i = 0; i < 2; i++)
		write_file(n, i);
	atomic_store(&shared, true);
	while (!atomic_load(&over)) {
		use(n, pick(2), true);
		use(n, pick(4), false);
		rt_sleep_ns(1 + pick(10000000));
	}
	life_end(n);
	ended++;
}

static void idle_life(void *arg)
{
	struct node *n = (struct node *)arg;

	life_begin(n);
	await(&over);
	life_end(n);
	ended++;
}

static void nodes_live(struct world *w, void (*const life[])(void *), unsigned count)
{
	world_begin(w);
	atomic_store(&written, false);
	atomic_store(&shared, false);
	for (unsigned i = 0; i < count; i++) {
		struct node *n = &w->node[i];

		n->sim = rt_sim_node_new(n->disk);
		OK(rt_sim_spawn_on(n->sim, "node", life[i], n));
	}
	for (unsigned i = 0; i < count; i++)
		HOLDS(!rt_sim_node_wait(w->node[i].sim));
	HOLDS(ended == count);
	world_check(w);
}

static int run_failing(void *arg)
{
	static void (*const life[])(void *) = {other_life, failing_life};

	nodes_live((struct world *)arg, life, ARRAY_SIZE(life));
	return 0;
}

static int run_failing_host(void *arg)
{
	static void (*const life[])(void *) = {failing_life, idle_life, other_life};

	nodes_live((struct world *)arg, life, ARRAY_SIZE(life));
	return 0;
}

/* ---- fsyncs of what its host has written, too ------------------------------------------------ */

#define SYNCED 24u /* files; more than a node serves at once of any kind */

static _Atomic unsigned synced;
struct syncing {
	struct node *n;
	unsigned i;
};

static struct syncing syncing[SYNCED];

static void append_page(struct node *n, unsigned i, uint64_t page)
{
	struct ops_file *f = file_open(n, i, true);
	uint8_t bytes[PAGE_SIZE];

	memset(bytes, (int)(1 + i), sizeof(bytes));
	EQ(ops_write(n->fs, f, &root_user, page * PAGE_SIZE, bytes, sizeof(bytes), false),
		sizeof(bytes));
	ops_close(n->fs, f);
}

static void fsync_main(void *arg)
{
	const struct syncing *s = (const struct syncing *)arg;
	char name[16];

	name_of(name, s->i);
	OK(ops_fsync(s->n->fs, ino_of(s->n->fs, DISK_INO_ROOT, name), false));
	atomic_fetch_add(&synced, 1);
}

static void host_life(void *arg)
{
	struct node *n = (struct node *)arg;

	life_begin(n);
	for (unsigned i = 0; i < SYNCED; i++)
		append_page(n, i, 0);
	atomic_store(&written, true);
	await(&over);
	life_end(n);
	ended++;
}

/*
 * What it has changed together with other pages is in no log yet; to map the files its host needs
 * it, so while the host serves the fsyncs it must write the client's log, too.
 */
static void syncing_life(void *arg)
{
	struct node *n = (struct node *)arg;
	struct rt_task *task[SYNCED];

	life_begin(n);
	await(&written);
	for (unsigned i = 0; i < SYNCED; i++)
		append_page(n, i, 1);
	for (unsigned i = 0; i < SYNCED; i++) {
		syncing[i] = (struct syncing){n, i};
		OK(rt_task_spawn(&task[i], "fsync", fsync_main, &syncing[i]));
	}
	for (unsigned i = 0; i < SYNCED; i++)
		rt_task_join(task[i]);
	EQ(atomic_load(&synced), SYNCED);
	atomic_store(&over, true);
	life_end(n);
	ended++;
}

static int run_syncing(void *arg)
{
	static void (*const life[])(void *) = {host_life, idle_life, syncing_life};

	atomic_store(&synced, 0);
	nodes_live((struct world *)arg, life, ARRAY_SIZE(life));
	return 0;
}

/* ---- who asks for what is not its own ------------------------------------------------------ */

static struct {
	struct net *net;
	struct net_calls *calls;
	_Atomic uint32_t up;
} stranger;

static void stranger_event(
	void *owner, struct net_peer *peer, const struct net_event *event)
{
	net_calls_event(stranger.calls, peer, event);
	if (event->kind != NET_LINK_REFUSED)
		atomic_store(&stranger.up, event->kind == NET_LINK_UP);
}

static void stranger_open(struct node *n, uint16_t id)
{
	struct net_peer_options po = {.node = 1, .address = "node1:7000"};
	struct net_options o = {.transport = "sim",
		.self = {.incarnation = (uint64_t)rt_wall_ns(),
			.node = id,
			.role = NET_ROLE_CLIENT},
		.handlers = {.event = stranger_event}};
	struct cluster *c;
	struct net_peer *peer;

	OK(cluster_open(&c, cluster_name_of, 0, NULL));
	memcpy(o.key, cluster_key(c), sizeof(o.key));
	memcpy(o.self.volume_uuid, world_uuid, sizeof(world_uuid));
	memset(o.self.node_uuid, 0x77, sizeof(o.self.node_uuid));
	cluster_close(c);
	atomic_store(&stranger.up, 0);
	OK(net_open(&stranger.net, &o, NULL));
	OK(net_calls_open(&stranger.calls, stranger.net));
	OK(net_peer_add(&peer, stranger.net, &po, NULL));
	OK(net_start(stranger.net, NULL));
	while (!atomic_load(&stranger.up))
		rt_sleep_ns(10000000);
}

static void stranger_close(void)
{
	net_calls_stop(stranger.calls);
	net_close(stranger.net);
	net_calls_close(stranger.calls);
}

static int asked(
	enum net_call_kind kind, uint64_t a, uint64_t b, uint64_t c, uint64_t *out)
{
	const uint64_t ask[NET_CALL_WORDS] = {a, b, c};
	uint64_t answer[NET_CALL_WORDS] = {0};
	int rc = net_call(stranger.calls, 1, kind, ask, answer);

	if (out)
		memcpy(out, answer, sizeof(answer));
	return rc;
}

static void stranger_life(void *arg)
{
	struct node *n = (struct node *)arg;
	uint64_t got[NET_CALL_WORDS], first, bytes;
	int rc;

	stranger_open(n, LOG_PEER(CLIENT));
	EQ(asked(NET_CALL_LOG_READ, 0, 0, 512, NULL), -ESTALE); /* not attached */
	EQ(asked(NET_CALL_LOG_READ, 1, 0, 512, NULL), -ESTALE);
	while ((rc = asked(NET_CALL_LOG_ATTACH, 42, 0, 0, got)) == -EAGAIN)
		rt_sleep_ns(10000000); /* others are asked whether they know the client */
	OK(rc);
	first = got[0];
	bytes = got[2];
	EQ(bytes, AREA_BYTES);
	OK(asked(NET_CALL_LOG_READ, first, bytes - 512, 512, NULL));
	EQ(asked(NET_CALL_LOG_READ, first, bytes, 512, NULL), -EINVAL);
	EQ(asked(NET_CALL_LOG_WRITE, first, bytes - 512, 1024, NULL), -EINVAL);
	EQ(asked(NET_CALL_LOG_WRITE, first, UINT64_MAX - 511, 1024, NULL), -EINVAL);
	EQ(asked(NET_CALL_LOG_WRITE, first, 0, 0, NULL), -EINVAL);
	EQ(asked(NET_CALL_LOG_WRITE, first, 0, 100, NULL), -EINVAL);
	EQ(asked(NET_CALL_LOG_WRITE, first, 1, 512, NULL), -EINVAL);
	EQ(asked(NET_CALL_LOG_WRITE, first, 0, 2 * LOG_SLOT_BYTES, NULL), -EINVAL);
	OK(asked(NET_CALL_LOG_ATTACH, 43, 0, 0,
		got)); /* a later start: the first is over */
	EQ(asked(NET_CALL_LOG_WRITE, first, 0, 512, NULL), -ESTALE);
	OK(asked(NET_CALL_LOG_READ, got[0], 0, 512, NULL));
	/* not the checksum of what is in the slot */
	EQ(asked(NET_CALL_LOG_WRITE, got[0], 0, 512, NULL), -EBADMSG);
	EQ(asked(NET_CALL_LOG_STATE, 1, 0, 0, NULL), -EINVAL); /* no client */
	EQ(asked(NET_CALL_LOG_STATE, UINT64_MAX, 0, 0, NULL), -EINVAL);
	OK(asked(NET_CALL_LOG_STATE, CLIENT, 0, 0, got));
	EQ(got[0], LOG_STATE_VACANT); /* never used */
	stranger_close();
	stranger_open(n, LOG_PEER(CLIENT)); /* a handle is of one link */
	EQ(asked(NET_CALL_LOG_READ, got[0], 0, 512, NULL), -ESTALE);
	stranger_close();
	atomic_store(&over, true);
	ended++;
}

static int run_stranger(void *arg)
{
	struct world *w = (struct world *)arg;

	world_begin(w);
	for (unsigned i = 0; i < STORES; i++)
		spawn(&w->node[i]);
	w->node[CLIENT - 1].sim = rt_sim_node_new("stranger");
	OK(rt_sim_spawn_on(w->node[CLIENT - 1].sim, "stranger", stranger_life,
		&w->node[CLIENT - 1]));
	for (unsigned i = 0; i < NODES; i++)
		HOLDS(!rt_sim_node_wait(w->node[i].sim));
	HOLDS(ended == NODES);
	world_check(w);
	return 0;
}

/* ---- runs ------------------------------------------------------------------------------------ */

static void run_seeds(int (*fn)(void *), uint64_t least)
{
	struct rt_sim_options o = {.time_limit_ns = 200ull * 1000000000};

	for (uint64_t seed = seeds_first(), seeds = seeds_count(least); seeds--; seed++) {
		struct world *w = (struct world *)calloc(1, sizeof(*w));

		assert_non_null(w);
		w->nodes = NODES;
		memset(files, 0, sizeof(files));
		memset(lives, 0, sizeof(lives));
		atomic_store(&over, false);
		atomic_store(&leaves, false);
		ended = 0;
		assert_int_equal(rt_sim_run(seed, &o, fn, w), 0);
		free(w);
	}
}

static void a_client_comes_and_goes_and_crashes_like_any_node(void **state)
{
	visits = redone = 0;
	run_seeds(run_visits, CLIENT_SEEDS);
	assert_true(visits > 0);
	assert_true(redone > 0 || getenv("WEFT_SIM_SEED"));
}

static void what_a_client_fsynced_outlives_a_cut_of_all(void **state)
{
	run_seeds(run_cut, CLIENT_SEEDS);
}

/* Neither in the log as it is written, nor as it is read again, nor in pages. */
static void what_a_client_fsynced_outlives_links_that_change_bits(void **state)
{
	flip_every = FLIP_EVERY;
	flips = 0;
	run_seeds(run_cut, CLIENT_SEEDS);
	flip_every = 0;
	print_message("%" PRIu64 " bits were flipped\n", flips);
	assert_true(flips > 0);
}

static void what_is_not_ones_log_is_not_to_be_had(void **state)
{
	run_seeds(run_stranger, 2);
}

static void a_node_whose_log_has_failed_leaves_as_if_it_had_crashed(void **state)
{
	run_seeds(run_failing, CLIENT_SEEDS);
}

static void a_client_waits_for_a_host_whose_disk_has_failed(void **state)
{
	run_seeds(run_failing_host, CLIENT_SEEDS);
}

static void fsyncs_of_a_client_do_not_keep_its_host_from_its_log(void **state)
{
	run_seeds(run_syncing, CLIENT_SEEDS);
}

static void file_make(const char *name, const char *text, mode_t mode)
{
	FILE *f = fopen(name, "w");

	assert_non_null(f);
	assert_true(fputs(text, f) >= 0);
	assert_int_equal(fclose(f), 0);
	assert_int_equal(chmod(name, mode), 0);
}

static int setup(void **state)
{
	char key[2 * CLUSTER_KEY_BYTES + 2];

	assert_non_null(mkdtemp(folder));
	snprintf(cluster_name_of, sizeof(cluster_name_of), "%s/v.cluster", folder);
	snprintf(key_name_of, sizeof(key_name_of), "%s/v.key", folder);
	memset(key, 'a', sizeof(key));
	strcpy(key + 2 * CLUSTER_KEY_BYTES, "\n");
	file_make(cluster_name_of, cluster_text, 0644);
	file_make(key_name_of, key, 0600);
	return 0;
}

static int teardown(void **state)
{
	unlink(cluster_name_of);
	unlink(key_name_of);
	rmdir(folder);
	return 0;
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_not_ones_log_is_not_to_be_had),
		cmocka_unit_test(a_client_comes_and_goes_and_crashes_like_any_node),
		cmocka_unit_test(what_a_client_fsynced_outlives_a_cut_of_all),
		cmocka_unit_test(what_a_client_fsynced_outlives_links_that_change_bits),
		cmocka_unit_test(a_node_whose_log_has_failed_leaves_as_if_it_had_crashed),
		cmocka_unit_test(a_client_waits_for_a_host_whose_disk_has_failed),
		cmocka_unit_test(fsyncs_of_a_client_do_not_keep_its_host_from_its_log),
	};

	if (argc > 1)
		cmocka_set_test_filter(argv[1]);
	return cmocka_run_group_tests(tests, setup, teardown);
}
