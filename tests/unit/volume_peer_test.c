/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Space, tree and volume where a second node has a shard of its own, frees and hands out
 * pages: none is handed out twice, none before what freed it is durable, what the other
 * node frees is found again, and pages of the tree lie in both shards.
 */
#include "engine/space/space_internal.h"
#include "tests/unit/peer_fixture.h"

#define PEER_SHARD 1u
#define DISK_BYTES (8 * MIB)
#define SECOND     1000000000ull

static struct peer the_peer;

static struct volume *open_with_peer(uint64_t peer_pages_count)
{
	fixture_error = (struct weft_error){0};
	OK(peer_volume_open(
		&the_peer, "d", 1, 0, PEER_SHARD, peer_pages_count, 0, &fixture_error));
	return the_peer.v;
}

static struct volume *fresh_with_peer(
	uint64_t peer_pages_count, uint16_t owner, uint32_t room)
{
	peer_forget();
	rt_sim_disk_create("d", DISK_BYTES, NULL);
	peer_volume_make("d", 1, 0);
	peer_format(PEER_SHARD, peer_pages_count, owner, room);
	return open_with_peer(peer_pages_count);
}

static void close_with_peer(struct volume *v)
{
	peer_leave(&the_peer);
	OK(volume_close(v));
}

static int reserve(struct volume *v, uint32_t want, struct space_run *run)
{
	return space_reserve(v->space, PID_NONE, want, SPACE_PRIVILEGED, run);
}

/* Takes all that there is: the number of runs. */
static unsigned take_all(struct volume *v, struct space_run *runs, unsigned max)
{
	unsigned n = 0;

	while (reserve(v, 100, &runs[n]) == 0) {
		runs_take(v, &runs[n], 1);
		CHECK(++n < max);
	}
	return n;
}

/* ---- one after the other --------------------------------------------------------- */

static struct space_run runs[2000];

static int frees_elsewhere(void *arg)
{
	struct volume *v = fresh_with_peer(600, PEER_NODE, 598);
	unsigned n = take_all(v, runs, ARRAY_SIZE(runs));
	struct space_run got;
	struct log_position own;

	CHECK(n > 10 && free_pages(v) == 0);
	CHECK(reserve(v, 1, &got) == -ENOSPC);
	peer_free(&the_peer, runs[3].pid, runs[3].length);
	OK(reserve(v, 1000, &got));
	CHECK(got.pid == runs[3].pid && got.length == runs[3].length);
	CHECK(got.incarnation > runs[3].incarnation);
	CHECK(free_pages(v) == got.length); /* reservations count as free */
	runs_take(v, &got, 1);
	CHECK(reserve(v, 1, &got) == -ENOSPC);

	/* this node's own frees at the same time: those wait for the log */
	own = pages_free_commit(v, runs[5].pid, runs[5].length);
	peer_free(&the_peer, runs[7].pid, runs[7].length);
	/* Which of the free bits are its own frees' it cannot tell before they are
	 * settled. */
	CHECK(reserve(v, 1000, &got) == -ENOSPC);
	space_committed(v->space, runs[5].pid, runs[5].length, true, own.end);
	for (unsigned i = 0; i < 2; i++) {
		OK(reserve(v, 1000, &got));
		CHECK(got.pid == runs[5].pid || got.pid == runs[7].pid);
		CHECK(got.pid != runs[5].pid || log_durable(v->log) >= own.end);
		CHECK(got.length == runs[5].length);
		runs_take(v, &got, 1);
	}
	CHECK(reserve(v, 1, &got) == -ENOSPC && free_pages(v) == 0);
	close_with_peer(v);
	return 0;
}

static int groups_of_others(void *arg)
{
	const page_id group = pid_make(PEER_SHARD, disk_group_slot(0));
	struct volume *v = fresh_with_peer(600, PEER_NODE, 598);
	struct disk_group *d = (struct disk_group *)peer_page(group)->image;
	struct space_run got;
	struct peer_page *p;

	take_all(v, runs, ARRAY_SIZE(runs));
	/* the other node's: nothing of it */
	CHECK(reserve(v, 1, &got) == -ENOSPC);
	/* it has handed some out, and this node frees them: still nothing */
	p = peer_hold(&the_peer, group);
	peer_mark(p, group + 1, 50, true);
	peer_done(&the_peer, p, true);
	pages_free(v, group + 11, 10);
	CHECK(free_pages(v) == 0);
	rt_sleep_ns(2 * SECOND);
	CHECK(reserve(v, 1, &got) == -ENOSPC);
	p = peer_hold(&the_peer, group);
	CHECK(d->free_pages == 598 - 40 && d->owner == PEER_NODE);
	peer_done(&the_peer, p, false);
	/* nobody's: this node's for the asking, once it looks again */
	peer_set_owner(&the_peer, group, DISK_OWNER_NOBODY);
	CHECK(reserve(v, 1, &got) == -ENOSPC);
	rt_sleep_ns(2 * SECOND);
	OK(reserve(v, 598, &got));
	CHECK(peer_group_of(got.pid) == group && got.length == 598 - 50);
	CHECK(free_pages(v) == 0); /* which is of this node's shard */
	CHECK(v->space->budget == 50 - 40);
	p = peer_hold(&the_peer, group);
	CHECK(d->owner == 1 && d->free_pages == 598 - 40);
	peer_done(&the_peer, p, false);
	runs_take(v, &got, 1);
	close_with_peer(v);
	CHECK(d->free_pages == 10);

	/* in its next life it has not forgotten: what is left there is still its own */
	v = open_with_peer(600);
	OK(reserve(v, 598, &got));
	CHECK(peer_group_of(got.pid) == group && got.length == 10);
	space_unreserve(v->space, &got);
	close_with_peer(v);
	return 0;
}

/* Freed in nobody's group, then taken over: not before the free is durable. */
static int freed_then_taken_over(void *arg)
{
	const page_id group = pid_make(PEER_SHARD, disk_group_slot(0));
	struct volume *v = fresh_with_peer(600, DISK_OWNER_NOBODY, 598);
	struct log_position freed;
	struct space_run got;
	struct peer_page *p;

	p = peer_hold(&the_peer, group);
	peer_mark(p, group + 1, 598, true);
	peer_done(&the_peer, p, true);
	take_all(v, runs, ARRAY_SIZE(runs));
	rt_sleep_ns(2 * SECOND);
	freed = pages_free_commit(v, group + 100, 7);
	/* while it is not settled the group is not taken */
	CHECK(reserve(v, 10, &got) == -ENOSPC);
	CHECK(!group_at(v->space, 1)->owned);
	space_committed(v->space, group + 100, 7, true, freed.end);
	rt_sleep_ns(2 * SECOND);
	freed = pages_free(v, group + 200, 7);
	OK(reserve(v, 10, &got));
	CHECK(group_at(v->space, 1)->owned && peer_group_of(got.pid) == group);
	CHECK(got.length == 7 && log_durable(v->log) >= freed.end);
	space_unreserve(v->space, &got);
	close_with_peer(v);
	return 0;
}

static struct volume *open_alone(void)
{
	struct volume_options o = {.cache.cache_bytes = 512 * PAGE_SIZE, .node = 1};
	struct volume *v;

	OK(volume_open(&v, disk_open("d", 0), &o, &fixture_error));
	return v;
}

static void own_group_set(struct volume *v, uint16_t owner)
{
	struct mtr *m = rt_alloc(sizeof(*m));
	struct mtr_page *p;

	do {
		OK(mtr_begin(m, v->cache, 1));
		p = mtr_need(m, group_pid(v->space, 0), 0);
	} while (!p);
	mtr_write(p, offsetof(struct disk_group, owner), &owner, sizeof(owner));
	mtr_commit(m);
	rt_free(m);
}

/* The same for a node that has no others to ask. */
static int owners_of_one_node(void *arg)
{
	const struct disk_group *d;
	struct space_run run;
	struct volume *v;
	struct guard g;
	uint64_t had;
	page_id taken;
	struct mtr *m;

	rt_sim_disk_create("d", DISK_BYTES, NULL);
	peer_volume_make("d", 1, 0);
	v = open_alone();
	CHECK(group_at(v->space, 0)->owned && !v->space->unowned);
	had = free_pages(v);
	own_group_set(v, DISK_OWNER_NOBODY);
	OK(volume_close(v));

	v = open_alone();
	CHECK(!group_at(v->space, 0)->owned && free_pages(v) == had);
	OK(reserve(v, 10, &run));
	runs_take(v, &run, 1);
	taken = run.pid;
	CHECK(group_at(v->space, 0)->owned && free_pages(v) == had - 10);
	OK(guard_shared(v->cache, group_pid(v->space, 0), 0, &g));
	d = (const struct disk_group *)g.image;
	CHECK(d->owner == 1 && d->free_pages == had - 10);
	guard_release(v->cache, &g);
	/* a picture that the page does not bear out: said, and nothing is changed */
	OK(reserve(v, 1, &run));
	own_group_set(v, 7);
	m = rt_alloc(sizeof(*m));
	OK(mtr_begin(m, v->cache, 1));
	CHECK(space_check(v->space, m, run.pid, 1, false) == -EUCLEAN);
	mtr_abort(m);
	rt_free(m);
	space_unreserve(v->space, &run);
	OK(volume_close(v));

	v = open_alone();
	CHECK(free_pages(v) == 0 && reserve(v, 1, &run) == -ENOSPC);
	pages_free(v, taken, 1);
	CHECK(free_pages(v) == 0);
	OK(volume_close(v));
	return 0;
}

/* ---- all at once -------------------------------------------------------------------- */

#define MODEL_SLOTS 72000u
#define ROOM        300u /* of each group of the peer's */
#define TASKS       3u
#define PEERS       2u
#define STEPS       250u
#define SEEDS       60u
#define LIVE_MAX    64u

enum slot_state { FREE, RESERVED, USED, FREED, NOT_YET };

static struct slot {
	uint8_t state;
	lsn_t freed; /* end of the record, LSN_MAX: not known yet */
	uint64_t incarnation;
} slots[2][MODEL_SLOTS];

static struct space_run live[LIVE_MAX]; /* in use, by either */
static unsigned live_count;
static _Atomic uint32_t running, stopping;

static struct slot *slot_of(page_id pid)
{
	return &slots[pid_shard(pid)][pid_slot(pid)];
}

static void model_hand_out(struct volume *v, const struct space_run *run, uint8_t to)
{
	for (uint32_t i = 0; i < run->length; i++) {
		struct slot *s = slot_of(run->pid + i);

		CHECK(s->state == FREE || s->state == FREED);
		if (s->state == FREED && s->freed != LSN_MAX)
			CHECK(log_durable(v->log) >= s->freed);
		CHECK(run->incarnation > s->incarnation);
		s->state = to;
		s->incarnation = run->incarnation;
	}
}

static void model_set(const struct space_run *run, uint8_t from, uint8_t to)
{
	for (uint32_t i = 0; i < run->length; i++) {
		CHECK(slot_of(run->pid + i)->state == from);
		slot_of(run->pid + i)->state = to;
	}
}

static bool live_pick(struct space_run *out)
{
	unsigned at;

	if (!live_count)
		return false;
	at = (unsigned)pick(live_count);
	*out = live[at];
	live[at] = live[--live_count];
	return true;
}

static void live_add(const struct space_run *run)
{
	CHECK(live_count < LIVE_MAX);
	live[live_count++] = *run;
}

/* Frees the run together with a change of what named it: here, the catalog. */
static struct log_position free_named(struct volume *v, const struct space_run *run)
{
	const page_id catalog = pid_make(0, DISK_CATALOG_SLOT);
	struct mtr *m = rt_alloc(sizeof(*m));
	struct log_position pos;
	struct mtr_page *p;

	for (;;) {
		OK(mtr_begin(m, v->cache, 2));
		if (!mtr_need(m, space_group_of(v->space, run->pid), 0))
			continue;
		p = mtr_need(m, catalog, 0);
		if (!p)
			continue;
		OK(space_free(v->space, m, run->pid, run->length));
		mtr_write_u64(p, offsetof(struct disk_catalog, rename_token), run->pid);
		pos = mtr_commit(m);
		break;
	}
	rt_free(m);
	return pos;
}

static void here_free(struct volume *v, const struct space_run *run)
{
	struct log_position pos;

	for (uint32_t i = 0; i < run->length; i++)
		slot_of(run->pid + i)->freed = LSN_MAX;
	model_set(run, USED, FREED);
	pos = free_named(v, run);
	for (uint32_t i = 0; i < run->length; i++)
		if (slot_of(run->pid + i)->state == FREED)
			slot_of(run->pid + i)->freed = pos.end;
	rt_yield();
	space_committed(v->space, run->pid, run->length, true, pos.end);
}

static void here_main(void *arg)
{
	struct volume *v = the_peer.v;

	for (unsigned step = 0; step < STEPS; step++) {
		struct space_run run, rest;
		int rc;

		if (live_count > LIVE_MAX - TASKS - PEERS || pick(3) == 0) {
			if (live_pick(&run))
				here_free(v, &run);
			continue;
		}
		rc = space_reserve(v->space, PID_NONE, 1 + (uint32_t)pick(90), 0, &run);
		if (rc) {
			CHECK(rc == -ENOSPC);
			continue;
		}
		model_hand_out(v, &run, RESERVED);
		rest = run;
		run.length = 1 + (uint32_t)pick(run.length);
		rest.pid += run.length;
		rest.length -= run.length;
		rt_yield();
		model_set(&run, RESERVED, USED);
		runs_take(v, &run, 1);
		model_set(&rest, RESERVED, FREE);
		space_unreserve(v->space, &rest);
		live_add(&run);
	}
	atomic_fetch_sub(&running, 1);
	rt_wake(&running, INT32_MAX);
}

/* The other node frees what somebody uses. */
static void there_free(void)
{
	struct space_run run;
	struct peer_page *p;

	if (!live_pick(&run))
		return;
	p = peer_hold(&the_peer, peer_group_of(run.pid));
	model_set(&run, USED, FREE);
	peer_mark(p, run.pid, run.length, false);
	peer_done(&the_peer, p, true);
}

/* It makes itself the owner of a group of its shard, or hands pages of one out. */
static void there_take(struct volume *v)
{
	page_id group = pid_make(PEER_SHARD, disk_group_slot(pick(2)));
	struct peer_page *p = peer_hold(&the_peer, group);
	struct disk_group *d = (struct disk_group *)p->image;
	struct space_run run = {.incarnation = d->next_incarnation};
	bool changed = false;

	if (d->owner == DISK_OWNER_NOBODY && pick(4) == 0) {
		d->owner = PEER_NODE;
		changed = true;
	}
	for (uint32_t i = 0; d->owner == PEER_NODE && i < ROOM && run.length < 20; i++) {
		if (!(d->bitmap[i / 8] >> i % 8 & 1)) {
			run.pid = run.length ? run.pid : group + 1 + i;
			run.length++;
		} else if (run.length) {
			break;
		}
	}
	if (run.length && live_count < LIVE_MAX - TASKS - PEERS) {
		model_hand_out(v, &run, USED);
		d->next_incarnation++;
		peer_mark(p, run.pid, run.length, true);
		live_add(&run);
		changed = true;
	}
	peer_done(&the_peer, p, changed);
}

static void there_main(void *arg)
{
	while (!atomic_load(&stopping)) {
		if (pick(2))
			there_free();
		else
			there_take(the_peer.v);
		rt_sleep_ns(1 + rt_random() % 100000);
	}
}

/* Nothing is reserved: what memory knows of this node's groups is what the page says. */
static void picture_compare(struct group *g, const struct disk_group *d)
{
	uint64_t map[GROUP_WORDS];

	CHECK(!g->reserved && !g->freeing && !g->stale);
	CHECK(g->page_free == d->free_pages && g->room == d->free_pages);
	CHECK(d->owner == 1);
	if (!g->overlay)
		return;
	group_settle(g, LSN_MAX);
	memcpy(map, d->bitmap, sizeof(map));
	CHECK(memcmp(map, g->overlay->busy, sizeof(map)) == 0);
}

/* The pages say what the model does. */
static void model_compare(struct volume *v)
{
	uint64_t owned_free = 0;

	groups_look(v->space);
	for (uint64_t n = 0; n < v->space->group_count; n++) {
		page_id pid = group_pid(v->space, n);
		const struct disk_group *d;
		struct guard g;

		OK(guard_shared(v->cache, pid, 0, &g));
		d = (const struct disk_group *)g.image;
		OK(group_check(v->space, n, d, &fixture_error));
		for (uint32_t i = 0; i < group_at(v->space, n)->pages; i++) {
			uint8_t state = slot_of(pid + 1 + i)->state;
			bool used = d->bitmap[i / 8] >> i % 8 & 1;

			CHECK(used == (state == USED || state == NOT_YET));
		}
		if (group_at(v->space, n)->owned) {
			picture_compare(group_at(v->space, n), d);
			owned_free += d->free_pages;
		}
		guard_release(v->cache, &g);
	}
	CHECK(v->space->budget == owned_free);
}

static void model_begin(struct volume *v)
{
	memset(slots, 0, sizeof(slots));
	live_count = 0;
	for (uint64_t n = 1; n < v->space->group_count; n++)
		for (uint32_t i = ROOM; i < DISK_GROUP_PAGES; i++)
			if (pid_slot(group_pid(v->space, n) + 1 + i) < MODEL_SLOTS)
				slot_of(group_pid(v->space, n) + 1 + i)->state = NOT_YET;
	slots[0][2].state = NOT_YET; /* the tree's root */
}

static int all_at_once(void *arg)
{
	struct rt_task *task[TASKS + PEERS];
	struct volume *v;
	uint32_t left;

	pick_seed(*(uint64_t *)arg);
	v = fresh_with_peer(66000, DISK_OWNER_NOBODY, ROOM);
	CHECK(v->space->span_count == 2 && v->space->span[1].count == 3);
	v->space->overlays_soft_max = 1; /* they come and go */
	model_begin(v);
	/* fill this node's shard, so that others' matter */
	for (unsigned i = 0; i < 12; i++) {
		OK(space_reserve(v->space, PID_NONE, 95, 0, &runs[i]));
		model_hand_out(v, &runs[i], RESERVED);
		model_set(&runs[i], RESERVED, USED);
		runs_take(v, &runs[i], 1);
	}
	atomic_store(&running, TASKS);
	atomic_store(&stopping, 0);
	for (unsigned i = 0; i < TASKS + PEERS; i++)
		OK(rt_task_spawn(
			&task[i], "t", i < TASKS ? here_main : there_main, NULL));
	while ((left = atomic_load(&running)) != 0)
		rt_wait(&running, left, RT_FOREVER);
	atomic_store(&stopping, 1);
	for (unsigned i = 0; i < TASKS + PEERS; i++)
		rt_task_join(task[i]);
	model_compare(v);
	close_with_peer(v);
	return 0;
}

/* ---- the tree in two shards ------------------------------------------------------------ */

#define ITEMS 2000u

static void items_write(struct volume *v, unsigned from, unsigned to)
{
	uint8_t value[200];

	for (unsigned i = from; i < to;) {
		struct txn *x;
		int rc;

		OK(txn_begin(v->tree, false, &x));
		do {
			rc = 0;
			for (unsigned k = i; k < MIN(to, i + 40) && rc == 0; k++) {
				memset(value, (int)k, sizeof(value));
				rc = txn_write(x,
					disk_key(100 + (k * 7919) % ITEMS, DISK_ITEM_LINK,
						0),
					value, sizeof(value));
			}
			OK(rc);
			rc = txn_commit(x, NULL);
			if (rc == -EAGAIN)
				txn_restart(x);
		} while (rc == -EAGAIN);
		OK(rc);
		txn_end(x);
		i = MIN(to, i + 40);
	}
}

static void items_check(struct volume *v, unsigned to)
{
	uint8_t value[200];

	for (unsigned i = 0; i < to; i++) {
		CHECK(tree_read(v->tree,
			      disk_key(100 + (i * 7919) % ITEMS, DISK_ITEM_LINK, 0),
			      value, sizeof(value)) == sizeof(value));
		CHECK(value[0] == (uint8_t)i && value[199] == (uint8_t)i);
	}
}

/* Children of the root in each shard. */
static void root_children(struct volume *v, unsigned count[2])
{
	const struct disk_inner *n;
	struct guard g;

	count[0] = count[1] = 0;
	OK(guard_shared(v->cache, v->catalog.root_pid, 0, &g));
	n = (const struct disk_inner *)g.image;
	CHECK(n->node.level > 0);
	for (unsigned i = 0; i < n->node.count; i++)
		count[pid_shard(n->child[i])]++;
	guard_release(v->cache, &g);
}

/* All but so many of this node's pages are in use. */
static void leave_free(struct volume *v, uint32_t left)
{
	struct space_run run;

	while (free_pages(v) > left) {
		OK(reserve(v, (uint32_t)MIN(free_pages(v) - left, (uint64_t)100), &run));
		runs_take(v, &run, 1);
	}
}

static int tree_in_two_shards(void *arg)
{
	struct volume *v = fresh_with_peer(2000, DISK_OWNER_NOBODY, 1998);
	unsigned count[2];

	leave_free(v, 90);
	items_write(v, 0, ITEMS);
	root_children(v, count);
	CHECK(count[0] > 0 && count[1] > 0);
	for (unsigned i = 0; i < PEER_PAGES; i++) /* whatever goes at the moment */
		if (peer_pages[i].used && i % 3 == 0)
			peer_pull(&the_peer, &peer_pages[i]);
	items_check(v, ITEMS);
	close_with_peer(v);

	v = open_with_peer(2000);
	items_check(v, ITEMS);
	items_write(v, 0, ITEMS);
	close_with_peer(v);
	return 0;
}

/* ---- where the catalog is another node's ------------------------------------------- */

/* The peer gets shard 0, with all that a store has. */
static void peer_becomes_store(const char *name)
{
	struct volume_options o = {
		.cache.cache_bytes = MIB, .node = 1, .read_only = true};
	struct volume *v;

	fixture_error = (struct weft_error){0};
	OK(volume_open(&v, disk_open(name, RT_DISK_READ_ONLY), &o, &fixture_error));
	for (uint64_t slot = 0; slot < 3; slot++) {
		struct peer_page *p = peer_page(pid_make(0, slot));
		struct guard g;

		OK(guard_shared(v->cache, p->pid, 0, &g));
		memcpy(p->image, g.image, PAGE_SIZE);
		p->incarnation = g.frame->incarnation;
		p->version = g.frame->version;
		guard_release(v->cache, &g);
	}
	OK(volume_close(v));
}

/* How large the other shard is is not known yet. */
static int open_second(int refuses, struct weft_error *err)
{
	return peer_volume_open(&the_peer, "e", 2, 1, 0, 0, refuses, err);
}

static void second_dies(void *arg)
{
	uint64_t ino;

	OK(open_second(0, &fixture_error));
	items_write(the_peer.v, 0, 100);
	OK(volume_inode_number(the_peer.v, &ino)); /* of the catalog */
	OK(log_flush(the_peer.v->log, log_end(the_peer.v->log)));
	rt_sim_node_kill(rt_sim_node());
}

static int catalog_elsewhere(void *arg)
{
	struct weft_error err = {0};
	struct disk_superblock sb;
	struct disk_catalog *catalog;
	struct rt_sim_disk *disk;
	struct volume *v;
	unsigned count[2];
	uint64_t range;
	int no = -ESTALE;

	peer_forget();
	rt_sim_disk_create("d", DISK_BYTES, NULL);
	disk = rt_sim_disk_create("e", DISK_BYTES, NULL);
	peer_volume_make("d", 1, 0);
	peer_volume_make("e", 2, 1);
	peer_becomes_store("d");
	catalog = (struct disk_catalog *)peer_page(0)->image;
	/* mkfs in the cluster gives both the same UUID; here the catalog gets the store's */
	CHECK(open_second(0, &err) == -EUCLEAN && strstr(err.text, "another volume"));
	rt_sim_disk_peek(disk, 0, &sb, sizeof(sb));
	memcpy(catalog->volume_uuid, sb.volume_uuid, sizeof(sb.volume_uuid));
	err = (struct weft_error){0};
	CHECK(open_second(no, &err) == no && strcmp(err.text, "no") == 0);
	CHECK(the_peer.started && the_peer.stopped);
	OK(open_second(0, &fixture_error));
	v = the_peer.v;
	items_write(v, 0, ITEMS);
	items_check(v, ITEMS);
	root_children(v, count);
	CHECK(count[0] == 0 && count[1] > 10);
	peer_leave(&the_peer);
	OK(volume_close(v));
	OK(open_second(0, &fixture_error));
	items_check(the_peer.v, ITEMS);
	OK(volume_close(the_peer.v));

	/* a crash leaves changes of the other shard's pages in this log: their home gets
	 * them */
	range = catalog->next_inode_range;
	CHECK(node_run(second_dies, NULL));
	CHECK(catalog->next_inode_range == range);
	err = (struct weft_error){0};
	CHECK(open_second(no, &err) == no && strcmp(err.text, "no") == 0);
	CHECK(the_peer.started && the_peer.stopped);
	CHECK(catalog->next_inode_range == range + 1);
	return 0;
}

/* ---- the runner ---------------------------------------------------------------------- */

static void what_others_free_is_found_again(void **state)
{
	for (uint64_t seed = 1; seed <= 10; seed++)
		OK(rt_sim_run(seed, NULL, frees_elsewhere, NULL));
}

static void pages_of_others_groups_are_not_handed_out(void **state)
{
	for (uint64_t seed = 1; seed <= 10; seed++)
		OK(rt_sim_run(seed, NULL, groups_of_others, NULL));
}

static void a_group_is_used_when_what_was_freed_in_it_is_durable(void **state)
{
	OK(rt_sim_run(1, NULL, freed_then_taken_over, NULL));
}

static void a_node_alone_takes_what_nobody_owns(void **state)
{
	OK(rt_sim_run(1, NULL, owners_of_one_node, NULL));
}

static void no_page_is_handed_out_twice_by_two_nodes(void **state)
{
	for (uint64_t seed = 1; seed <= SEEDS; seed++)
		OK(rt_sim_run(seed, NULL, all_at_once, &seed));
}

static void a_tree_has_pages_in_two_shards(void **state)
{
	OK(rt_sim_run(1, NULL, tree_in_two_shards, NULL));
}

static int unknown_provider(void *arg)
{
	struct weft_error err = {0};

	peer_forget();
	rt_sim_disk_create("d", DISK_BYTES, NULL);
	peer_volume_make("d", 1, 0);
	peer_named = "directories";
	CHECK(peer_volume_open(&the_peer, "d", 1, 0, PEER_SHARD, 0, 0, &err) ==
		-EOPNOTSUPP);
	CHECK(strstr(err.text, "\"directories\""));
	CHECK(!the_peer.started && the_peer.stopped);
	peer_named = NULL;
	return 0;
}

static void a_provider_of_an_unknown_name_is_refused(void **state)
{
	OK(rt_sim_run(1, NULL, unknown_provider, NULL));
}

static void the_catalog_may_be_in_another_nodes_shard(void **state)
{
	OK(rt_sim_run(1, NULL, catalog_elsewhere, NULL));
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_others_free_is_found_again),
		cmocka_unit_test(pages_of_others_groups_are_not_handed_out),
		cmocka_unit_test(a_group_is_used_when_what_was_freed_in_it_is_durable),
		cmocka_unit_test(a_node_alone_takes_what_nobody_owns),
		cmocka_unit_test(no_page_is_handed_out_twice_by_two_nodes),
		cmocka_unit_test(a_tree_has_pages_in_two_shards),
		cmocka_unit_test(the_catalog_may_be_in_another_nodes_shard),
		cmocka_unit_test(a_provider_of_an_unknown_name_is_refused),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
