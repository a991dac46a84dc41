/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Scrub: a task that reads the pages and the descriptor table of this node's store for damage.
 *
 * It reads with memory of its own and takes no frames. It looks at steps of some blocks of the
 * table and the pages that these describe, in the order of slots. A page that does not fit its
 * descriptor is a *suspect*. It may also be a page that is being written, or one whose image does
 * not matter (docs/fsck.md, "Scrub").
 *
 * The task alone reads and changes the suspects and the buffers. The lock guards the rest. It is
 * held for moments.
 */
#include "engine/volume/scrub.h"

#include <errno.h>
#include <stdio.h>
#include <string.h>

#include "engine/common/text.h"
#include "engine/volume/scrub_internal.h"

#define STEP_PAGES    (STORE_SCRUB_BLOCKS * DISK_TABLE_SLOTS)
#define STEP_BYTES    ((size_t)STEP_PAGES * PAGE_SIZE)
#define TABLE_BYTES   ((size_t)STORE_SCRUB_BLOCKS * 2 * PAGE_SIZE)
#define SUSPECTS_MAX  1024u
#define CONFIRM_TRIES 16u
/* Between two notes of the position. */
#define NOTE_EVERY_NS 30000000000ull
/* While others use the device a step is followed by a rest of so many times its length. */
#define REST_FACTOR 3u

struct scrub {
	struct volume *v;
	struct rt_task *task;
	_Atomic bool stopping;
	_Atomic uint32_t word; /* changes with each request */
	struct rt_mutex lock;  /* a leaf: the six below */
	struct disk_scrub now;
	bool unnoted; /* `now` has a new state, which the store is to know */
	bool anew;    /* the suspects are of an earlier scrub */
	uint64_t healed;
	unsigned findings;
	char (*text)[SCRUB_TEXT_MAX];

	/* the task's own */
	uint64_t noted_at_ns;
	uint64_t used; /* device_use at the end of the last step */
	struct suspect *suspects;
	unsigned suspect_count;
	uint64_t suspects_over; /* further ones, which are not looked into */
	struct store_read *reads;
	uint8_t *images; /* STEP_BYTES, and TABLE_BYTES behind them */
	struct disk_group *group;
	uint64_t group_slot; /* of the group that was looked for last; 0: none */
	bool group_here;     /* *group is its page */
};

static bool scrub_stopping(void *scrub)
{
	struct scrub *s = scrub;

	return atomic_load_explicit(&s->stopping, memory_order_acquire);
}

/* ---- findings -------------------------------------------------------------------- */

/* `count`: the number of pages, or blocks of the table. */
static void finding_add(struct scrub *s, unsigned count, const char *text)
{
	weft_log(3, "scrub: %s", text);
	rt_mutex_lock(&s->lock);
	s->now.damaged += s->anew ? 0 : count;
	if (!s->anew && s->findings < SCRUB_FINDINGS_MAX)
		snprintf(s->text[s->findings++], SCRUB_TEXT_MAX, "%s", text);
	rt_mutex_unlock(&s->lock);
}

static const char *suspect_why(const struct suspect *p)
{
	return p->why == -EIO	? "the device does not give it"
	       : p->incarnation ? "it does not fit its checksum"
				: "its descriptor is lost";
}

/* The use of `count` pages. */
static void suspect_use(struct scrub *s, const struct scrub_names *names,
	const struct suspect *p, unsigned count, char text[SCRUB_TEXT_MAX])
{
	unsigned long long at = p->block * PAGE_SIZE;
	char path[SCRUB_TEXT_MAX - 256];

	switch (p->user) {
	case SUSPECT_CATALOG:
		snprintf(text, SCRUB_TEXT_MAX, "the catalog");
		break;
	case SUSPECT_GROUP:
		snprintf(text, SCRUB_TEXT_MAX, "an allocation group");
		break;
	case SUSPECT_TREE:
		snprintf(text, SCRUB_TEXT_MAX, "the metadata tree");
		break;
	case SUSPECT_FILE:
		scrub_path_print(s->v, names, p->ino, path, sizeof(path));
		snprintf(text, SCRUB_TEXT_MAX, "%s, bytes %llu to %llu", path, at,
			at + (uint64_t)count * PAGE_SIZE - 1);
		break;
	case SUSPECT_XATTR:
		scrub_path_print(s->v, names, p->ino, path, sizeof(path));
		snprintf(text, SCRUB_TEXT_MAX, "%s, an extended attribute", path);
		break;
	case SUSPECT_UNUSED:
		snprintf(text, SCRUB_TEXT_MAX, "a file or a page of the tree that cannot be found");
		break;
	}
}

/* `count` pages of one file that follow each other, or one page. */
static void suspects_report(struct scrub *s, const struct scrub_names *names,
	const struct suspect *p, unsigned count)
{
	char text[SCRUB_TEXT_MAX], last[32] = "";
	size_t len;

	suspect_use(s, names, p, count, text);
	if (count > 1)
		snprintf(last, sizeof(last), " to %llu",
			(unsigned long long)pid_slot(p->pid) + count - 1);
	len = strlen(text);
	snprintf(text + len, sizeof(text) - len, ", page %u:%llu%s: %s", pid_shard(p->pid),
		(unsigned long long)pid_slot(p->pid), last, suspect_why(p));
	finding_add(s, count, text);
}

/* ---- is it damage? --------------------------------------------------------------- */

/*
 * Looks at a page again that did not read well, until it does, or no write of it is under way.
 * (A write that began before the page was read has ended, and has left the descriptor that was
 * read.) Returns the result of the read, or 0 if the page is written over and over.
 */
static int page_settle(struct scrub *s, struct store_read *r)
{
	for (unsigned tries = 0; r->result < 0; tries++) {
		struct page_descriptor d;
		int rc;

		if (tries == CONFIRM_TRIES)
			return 0;
		cache_batches_await(s->v->cache);
		rc = store_descriptor_get(s->v->store, r->pid, &d);
		if (rc || (d.incarnation == r->found_incarnation &&
				  (d.version == r->version)))
			return r->result;
		store_scrub_pages(s->v->store, r, 1);
	}
	return 0;
}

/* A newer image in memory is written over the damaged one. */
static bool page_heals(struct scrub *s, struct store_read *r)
{
	if (cache_page_persist(s->v->cache, r->pid))
		return false;
	store_scrub_pages(s->v->store, r, 1);
	if (page_settle(s, r) < 0)
		return false;
	rt_mutex_lock(&s->lock);
	s->healed++;
	rt_mutex_unlock(&s->lock);
	return true;
}

static void suspect_add(struct scrub *s, struct store_read *r)
{
	if (!page_settle(s, r) || page_heals(s, r))
		return;
	if (s->suspect_count == SUSPECTS_MAX) {
		s->suspects_over++;
		return;
	}
	s->suspects[s->suspect_count++] = (struct suspect){
		.pid = r->pid, .why = r->result, .incarnation = r->found_incarnation};
}

/* Takes out those that have been written, or freed and allocated anew, since. */
static void suspects_again(struct scrub *s)
{
	unsigned kept = 0;

	for (unsigned i = 0; i < s->suspect_count; i++) {
		struct suspect *p = &s->suspects[i];
		struct store_read r = {.pid = p->pid, .image = s->images};

		store_scrub_pages(s->v->store, &r, 1);
		if (!page_settle(s, &r) || page_heals(s, &r))
			continue;
		p->why = r.result;
		p->incarnation = r.found_incarnation;
		s->suspects[kept++] = *p;
	}
	s->suspect_count = kept;
}

/* An image of an older incarnation than its extent's is not read: the page is zeros. An image that
 * nothing names is read by nobody; but if the tree has lost pages, these may name it. */
static bool suspect_matters(const struct suspect *p, unsigned unread)
{
	if (p->user == SUSPECT_UNUSED)
		return unread != 0;
	return p->why != -EUCLEAN || !p->incarnation || p->user < SUSPECT_FILE ||
	       p->user_incarnation == p->incarnation;
}

/* Returns true if b is of the same file as a, `distance` pages behind it. */
static bool suspects_adjoin(
	const struct suspect *a, const struct suspect *b, unsigned distance)
{
	return a->user == SUSPECT_FILE && b->user == SUSPECT_FILE && a->ino == b->ino &&
	       a->why == b->why && !a->incarnation == !b->incarnation &&
	       b->pid == a->pid + distance && b->block == a->block + distance;
}

static void suspects_name(struct scrub *s, unsigned unread)
{
	struct scrub_names *names = NULL;
	unsigned kept = 0, n;

	for (unsigned i = 0; i < s->suspect_count; i++)
		if (suspect_matters(&s->suspects[i], unread))
			s->suspects[kept++] = s->suspects[i];
	if (kept && scrub_names_find(s->v, s->suspects, kept, &names))
		weft_log(4, "scrub: no memory for the names of damaged files");
	for (unsigned i = 0; i < kept; i += n) {
		for (n = 1; i + n < kept &&
			    suspects_adjoin(&s->suspects[i], &s->suspects[i + n], n);
			n++)
			;
		suspects_report(s, names, &s->suspects[i], n);
	}
	rt_free(names);
}

/* If the task is to end, the suspects remain, and the position that is noted is before them. */
static void suspects_decide(struct scrub *s)
{
	unsigned unread = 0;
	int rc;

	suspects_again(s);
	if (!s->suspect_count)
		return;
	rc = scrub_find_users(s->v, s->suspects, s->suspect_count, &unread);
	if (scrub_stopping(s))
		return;
	if (rc) {
		weft_log(3, "scrub: the metadata tree cannot be read: %s; run fsck.weft",
			strerrordesc_np(-rc));
		unread++;
	}
	suspects_name(s, unread);
	if (s->suspects_over)
		weft_log(3,
			"scrub: %llu more pages do not read well; they are too many to look into",
			(unsigned long long)s->suspects_over);
	rt_mutex_lock(&s->lock);
	s->now.damaged += s->suspects_over;
	s->unnoted = true;
	rt_mutex_unlock(&s->lock);
	s->suspect_count = 0;
	s->suspects_over = 0;
}

/* ---- one step -------------------------------------------------------------------- */

/* Copies the page of a group, if it is in the cache: it is not fetched for this. */
static void group_load(struct scrub *s, uint64_t slot)
{
	struct guard g;

	s->group_slot = slot;
	s->group_here = !guard_try_shared(s->v->cache,
		pid_make(store_superblock(s->v->store)->shard, slot), 0, &g);
	if (!s->group_here)
		return;
	page_copy_out(s->group, g.image, PAGE_SIZE);
	guard_release(s->v->cache, &g);
}

/* Returns false if the slot is known to be free. */
static bool slot_in_use(struct scrub *s, uint64_t slot)
{
	uint64_t within = slot ? disk_slot_in_group(slot) : 0;

	if (within == 0)
		return true;
	if (slot - within != s->group_slot)
		group_load(s, slot - within);
	return !s->group_here || s->group->bitmap[(within - 1) / 8] >> (within - 1) % 8 & 1;
}

/* Returns the number of images that were read. */
static unsigned step_pages(struct scrub *s, uint64_t first, unsigned count)
{
	uint16_t shard = store_superblock(s->v->store)->shard;
	unsigned n = 0, checked = 0;

	s->group_slot = 0; /* it may have changed since the last step */
	for (unsigned i = 0; i < count; i++) {
		if (!slot_in_use(s, first + i))
			continue;
		s->reads[n] = (struct store_read){.pid = pid_make(shard, first + i),
			.image = s->images + (size_t)n * PAGE_SIZE};
		n++;
	}
	store_scrub_pages(s->v->store, s->reads, n);
	for (unsigned i = 0; i < n; i++) {
		checked += s->reads[i].result != STORE_ZEROS;
		if (s->reads[i].result < 0)
			suspect_add(s, &s->reads[i]);
	}
	rt_mutex_lock(&s->lock);
	s->now.pages += s->anew ? 0 : checked; /* else they are the earlier scrub's */
	rt_mutex_unlock(&s->lock);
	return checked;
}

static void step_table(struct scrub *s, uint64_t first, unsigned count)
{
	uint8_t bad[STORE_SCRUB_BLOCKS] = {0};

	store_scrub_table(s->v->store, first, count, s->images + STEP_BYTES, bad);
	for (unsigned i = 0; i < count; i++) {
		unsigned long long slot = (first + i) * DISK_TABLE_SLOTS;
		char text[256];

		if (!bad[i])
			continue;
		snprintf(text, sizeof(text),
			"the descriptors of pages %u:%llu to %llu (block %llu of the table): %s",
			store_superblock(s->v->store)->shard, slot,
			slot + DISK_TABLE_SLOTS - 1, (unsigned long long)(first + i),
			bad[i] > 3    ? "the device does not give them"
			: bad[i] == 3 ? "both copies are damaged"
			: bad[i] == 1 ? "the first copy is damaged, the second is used"
				      : "the second copy is damaged, the first is used");
		finding_add(s, 1, text);
	}
}

/* Returns the number of images that were read. */
static unsigned scrub_step(struct scrub *s, uint64_t slot)
{
	const uint64_t page_count = store_superblock(s->v->store)->page_count;
	uint64_t block = slot / DISK_TABLE_SLOTS;
	uint64_t blocks = MIN(store_table_blocks(s->v->store) - block, STORE_SCRUB_BLOCKS);
	uint64_t pages = MIN(page_count - slot, STEP_PAGES);
	unsigned checked;

	step_table(s, block, (unsigned)blocks);
	checked = step_pages(s, slot, (unsigned)pages);
	if (s->suspect_count > SUSPECTS_MAX / 2)
		suspects_decide(s);
	rt_mutex_lock(&s->lock);
	if (s->now.next == slot) /* not begun anew meanwhile */
		s->now.next = slot + pages;
	rt_mutex_unlock(&s->lock);
	return checked;
}

/* ---- the task -------------------------------------------------------------------- */

/* Notes the position in the superblock: soon after a request, and now and then. */
static void position_note(struct scrub *s)
{
	struct disk_scrub note;
	bool now;
	int rc;

	rt_mutex_lock(&s->lock);
	now = s->unnoted;
	s->unnoted = false;
	note = s->now;
	rt_mutex_unlock(&s->lock);
	if (s->suspect_count)
		note.next = MIN(note.next, pid_slot(s->suspects[0].pid));
	if (s->v->read_only || (!now && rt_now_ns() < s->noted_at_ns + NOTE_EVERY_NS))
		return;
	s->noted_at_ns = rt_now_ns();
	rc = store_scrub_set(s->v->store, &note);
	if (rc)
		weft_log(4, "scrub: its position was not noted: %s", strerrordesc_np(-rc));
}

/* Pages and chunks of the log that were read or written so far, by all. */
static uint64_t device_use(struct scrub *s)
{
	struct store_counters *c = store_counters(s->v->store);

	return atomic_load_explicit(&c->pages_read, memory_order_relaxed) +
	       atomic_load_explicit(&c->pages_written, memory_order_relaxed) +
	       atomic_load_explicit(&log_counters(s->v->log)->chunks, memory_order_relaxed);
}

/* Waits until the next step may begin, or a request has come. */
static void scrub_pace(struct scrub *s, uint32_t seen, uint64_t began_ns, uint64_t bytes,
	bool others)
{
	uint64_t took_ns = rt_now_ns() - began_ns, rate;
	uint64_t until;

	rt_mutex_lock(&s->lock);
	rate = s->now.rate_bytes;
	rt_mutex_unlock(&s->lock);
	until = began_ns + bytes * 1000000000ull / rate;
	if (others)
		until = MAX(until, began_ns + took_ns * (1 + REST_FACTOR));
	while (atomic_load_explicit(&s->word, memory_order_acquire) == seen &&
		rt_now_ns() < until)
		rt_wait(&s->word, seen, until);
}

static void scrub_end(struct scrub *s)
{
	struct disk_scrub now;
	char bytes[SIZE_TEXT];

	suspects_decide(s);
	if (s->suspect_count)
		return;
	rt_mutex_lock(&s->lock);
	s->now.state = DISK_SCRUB_ENDED;
	s->now.ended_ns = rt_wall_ns();
	s->unnoted = true;
	now = s->now;
	rt_mutex_unlock(&s->lock);
	size_print(now.pages * PAGE_SIZE, bytes);
	weft_log(now.damaged ? 3 : 6, "scrub: ended: %llu pages (%s) were read, %llu damaged",
		(unsigned long long)now.pages, bytes, (unsigned long long)now.damaged);
}

/* One step of a scrub that runs. */
static void scrub_advance(struct scrub *s, uint32_t seen, uint64_t slot)
{
	uint64_t began_ns = rt_now_ns(), used = s->used, images;

	if (slot >= store_superblock(s->v->store)->page_count) {
		scrub_end(s);
		return;
	}
	images = scrub_step(s, slot);
	s->used = device_use(s);
	scrub_pace(s, seen, began_ns, (images + 2 * STORE_SCRUB_BLOCKS) * PAGE_SIZE,
		s->used - used > images);
}

static void scrub_main(void *arg)
{
	struct scrub *s = arg;
	uint32_t seen;

	if (!rt_simulated)
		rt_task_serves(scrub_stopping, s);
	while (rt_goes_on(&s->stopping, &s->word, &seen)) {
		struct disk_scrub now;

		rt_mutex_lock(&s->lock);
		now = s->now;
		if (s->anew)
			s->suspect_count = 0;
		s->anew = false;
		rt_mutex_unlock(&s->lock);
		position_note(s);
		if (now.state == DISK_SCRUB_RUNNING) {
			scrub_advance(s, seen, now.next);
			continue;
		}
		suspects_decide(s); /* of a scrub that was stopped */
		position_note(s);
		rt_wait(&s->word, seen, RT_FOREVER);
	}
	rt_mutex_lock(&s->lock);
	s->unnoted |= s->now.state == DISK_SCRUB_RUNNING;
	rt_mutex_unlock(&s->lock);
	position_note(s);
}

static void scrub_wake(struct scrub *s)
{
	atomic_fetch_add_explicit(&s->word, 1, memory_order_release);
	rt_wake(&s->word, 1);
}

int scrub_start(struct scrub *s, uint64_t rate_bytes, bool anew)
{
	bool goes_on;

	if (scrub_stopping(s))
		return -ESHUTDOWN;
	rt_mutex_lock(&s->lock);
	goes_on = s->now.state == DISK_SCRUB_RUNNING;
	if (anew || (!goes_on && s->now.state != DISK_SCRUB_STOPPED)) {
		s->now = (struct disk_scrub){.rate_bytes = s->now.rate_bytes,
			.began_ns = rt_wall_ns()};
		s->findings = 0;
		s->healed = 0;
		s->anew = true;
		goes_on = false;
	}
	s->now.state = DISK_SCRUB_RUNNING;
	if (rate_bytes)
		s->now.rate_bytes = MAX(rate_bytes, SCRUB_RATE_MIN);
	s->unnoted = true;
	rt_mutex_unlock(&s->lock);
	if (!goes_on)
		weft_log(6, "scrub: started");
	scrub_wake(s);
	return 0;
}

void scrub_stop(struct scrub *s)
{
	bool ran;

	rt_mutex_lock(&s->lock);
	ran = s->now.state == DISK_SCRUB_RUNNING;
	if (ran)
		s->now.state = DISK_SCRUB_STOPPED;
	s->unnoted |= ran;
	rt_mutex_unlock(&s->lock);
	if (!ran)
		return;
	weft_log(6, "scrub: stopped");
	scrub_wake(s);
}

void scrub_status(struct scrub *s, struct scrub_status *out)
{
	rt_mutex_lock(&s->lock);
	*out = (struct scrub_status){.progress = s->now,
		.page_count = store_superblock(s->v->store)->page_count,
		.healed = s->healed,
		.findings = s->findings,
		.halted = scrub_stopping(s)};
	rt_mutex_unlock(&s->lock);
}

bool scrub_finding(struct scrub *s, unsigned index, char out[SCRUB_TEXT_MAX])
{
	bool found;

	rt_mutex_lock(&s->lock);
	found = index < s->findings;
	if (found)
		memcpy(out, s->text[index], SCRUB_TEXT_MAX);
	rt_mutex_unlock(&s->lock);
	return found;
}

/* ---- open and close -------------------------------------------------------------- */

static void scrub_free(struct scrub *s)
{
	if (s->images)
		rt_free_pages(s->images, STEP_BYTES + TABLE_BYTES);
	rt_free(s->group);
	rt_free(s->reads);
	rt_free(s->suspects);
	rt_free(s->text);
	rt_free(s);
}

int scrub_open(struct scrub **out, struct volume *v)
{
	struct scrub *s = rt_alloc(sizeof(*s));
	int rc = -ENOMEM;

	if (!s)
		return rc;
	s->v = v;
	s->noted_at_ns = rt_now_ns();
	s->text = rt_alloc(SCRUB_FINDINGS_MAX * sizeof(*s->text));
	s->suspects = rt_alloc(SUSPECTS_MAX * sizeof(*s->suspects));
	s->reads = rt_alloc(STEP_PAGES * sizeof(*s->reads));
	s->group = rt_alloc(sizeof(*s->group));
	s->images = rt_alloc_pages(STEP_BYTES + TABLE_BYTES);
	if (!s->text || !s->suspects || !s->reads || !s->group || !s->images)
		goto out_free;
	store_scrub_get(v->store, &s->now);
	s->now.next -= s->now.next % STEP_PAGES;
	if (s->now.rate_bytes < SCRUB_RATE_MIN)
		s->now.rate_bytes = SCRUB_RATE_DEFAULT;
	if (s->now.state == DISK_SCRUB_RUNNING)
		weft_log(6, "scrub: goes on where it was");
	rc = rt_task_spawn(&s->task, "weft-scrub", scrub_main, s);
	if (rc == 0) {
		*out = s;
		return 0;
	}
out_free:
	scrub_free(s);
	return rc;
}

void scrub_halt(struct scrub *s)
{
	if (!s || !s->task)
		return;
	atomic_store_explicit(&s->stopping, true, memory_order_release);
	scrub_wake(s);
	rt_task_join(s->task);
	s->task = NULL;
}

void scrub_close(struct scrub *s)
{
	scrub_halt(s);
	if (s)
		scrub_free(s);
}
