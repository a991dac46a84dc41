/* SPDX-License-Identifier: Apache-2.0 */
/* Formatting, opening, and every way in which a superblock can be wrong. */
#include <stdio.h>

#include "tests/unit/store_test.h"

#define SIM_SEEDS  2
#define DISK_BYTES (16 * MIB)

static struct rt_sim_disk *disk;
static struct disk_superblock made;

static void make(const char *name)
{
	const struct store_format f = {.label = "test"};

	disk = rt_sim_disk_create(name, DISK_BYTES, NULL);
	store_make(name, &f, &made);
}

static uint64_t second(void)
{
	return made.store_bytes - PAGE_SIZE;
}

static void poke_sum(uint64_t place, struct disk_superblock *sb)
{
	sb->checksum = superblock_sum(sb);
	rt_sim_disk_poke(disk, place, sb, sizeof(*sb));
}

static struct disk_superblock peek(uint64_t place)
{
	struct disk_superblock sb;

	rt_sim_disk_peek(disk, place, &sb, sizeof(sb));
	return sb;
}

static void expect_refusal_with(
	const char *name, const struct store_options *o, int code, const char *text)
{
	struct rt_disk *d = disk_open(name, 0);
	struct weft_error err = {0};
	struct store *s = NULL;
	int rc = store_open(&s, d, o, &err);

	if (rc != code || !strstr(err.text, text))
		print_error("got %d '%s', wanted %d '%s'\n", rc, err.text, code, text);
	CHECK(rc == code && err.code == code && strstr(err.text, text));
	rt_disk_close(d);
}

static void expect_refusal(const char *name, int code, const char *text)
{
	const struct store_options any_volume = {0};

	expect_refusal_with(name, &any_volume, code, text);
}

SIM_TEST(what_is_formatted_opens_with_the_same_layout)
{
	make("d");
	for (unsigned i = 1; i <= 3; i++) {
		struct store *s = store_open_named("d", 0);
		const struct disk_superblock *sb = store_superblock(s);

		CHECK(memcmp(sb->store_uuid, made.store_uuid, 16) == 0);
		CHECK(strcmp(sb->label, "test") == 0 &&
			sb->page_count == made.page_count);
		CHECK(sb->incarnation == made.incarnation + i);
		store_close_disk(s);
		struct disk_superblock a = peek(0), b = peek(second());
		CHECK(memcmp(&a, &b, sizeof(a)) == 0);
		CHECK(rt_sim_disk_volatile_bytes(disk) == 0);
	}
	return 0;
}

/* Copies of one store that have parted, each opened on a machine of its own. */
SIM_TEST(no_two_machines_give_one_incarnation_whatever_each_has_seen)
{
	uint64_t seen[3 * 6], last = 0;
	const char *names[] = {"d", "e", "f"};
	const unsigned machines[] = {1, 2, STORE_ELSEWHERE};
	unsigned count = 0;

	for (unsigned i = 0; i < 3; i++) {
		make(names[i]);
		last = made.incarnation;
		for (unsigned k = 0; k < 6; k++) {
			const struct store_options o = {.machine = machines[i]};
			struct weft_error why = {0};
			struct rt_disk *opened;
			struct store *s;

			CHECK(rt_disk_open(&opened, names[i], 0, &why) == 0);
			CHECK(store_open(&s, opened, &o, &why) == 0);
			seen[count] = store_superblock(s)->incarnation;
			CHECK(seen[count] > last && seen[count] <= last + 2 * STORE_ELSEWHERE);
			last = seen[count++];
			store_close(s);
			rt_disk_close(opened);
		}
	}
	for (unsigned i = 0; i < count; i++)
		for (unsigned k = 0; k < i; k++)
			CHECK(seen[i] != seen[k]);
	return 0;
}

SIM_TEST(a_new_log_is_clean_at_the_rings_start)
{
	struct disk_log_head head[2];

	make("d");
	rt_sim_disk_peek(disk, made.log_offset, head, sizeof(head));
	CHECK(head[0].magic == DISK_MAGIC_LOGHEAD && head[0].clean == 1);
	CHECK(head[0].tail_lsn == made.log_bytes - DISK_LOG_HEADS_BYTES);
	CHECK(image_is_zeros(&head[1]));
	struct store *s = store_open_named("d", 0);
	const struct iovec iov = {&head[0], offsetof(struct disk_log_head, checksum)};
	CHECK(head[0].checksum ==
		store_checksum(s, DISK_PLACE_LOG_HEAD, head[0].generation, 0, &iov, 1));
	store_close_disk(s);
	return 0;
}

SIM_TEST(every_size_has_a_layout_that_passes_its_own_check_or_a_reason)
{
	struct rt_sim_disk *big = rt_sim_disk_create("big", 1ull << 50, NULL);
	struct rt_disk *d = disk_open("big", 0);
	unsigned made_ok = 0, with_areas = 0;

	CHECK(big);
	for (unsigned i = 0; i < 3000; i++) {
		struct store_format f = {
			.store_bytes = (rt_random() >> (14 + rt_random() % 40)) + 1,
			.log_bytes = rt_random() % 2
					     ? 0
					     : rt_random() >> (20 + rt_random() % 40),
			.area_count = rt_random() % 4,
			.area_bytes = rt_random() % 2
					      ? 0
					      : rt_random() >> (20 + rt_random() % 40),
			.area_spare = rt_random() % 9};
		struct disk_superblock sb;
		struct weft_error err = {0};
		int rc = store_format_plan(d, &f, &sb, &err);

		CHECK(rc == 0 || (rc == -EINVAL && err.text[0]));
		if (rc)
			continue;
		made_ok++;
		CHECK(layout_check(&sb, NULL) == 0);
		CHECK(sb.store_bytes <= f.store_bytes);
		/* No room for two more table blocks and their pages is given away. */
		CHECK(sb.pages_offset + sb.page_count * PAGE_SIZE + 3 * MIB +
				sb.area_count * sb.area_bytes >
			sb.store_bytes);
		CHECK(sb.area_count >= f.area_count);
		CHECK(sb.area_count <= f.area_count + f.area_spare);
		CHECK((sb.area_count - f.area_count) * sb.area_bytes <=
			sb.store_bytes / 32);
		with_areas += sb.area_count > f.area_count;
	}
	CHECK(made_ok > 500 && with_areas > 100);
	rt_disk_close(d);
	return 0;
}

SIM_TEST(a_plan_that_cannot_be_is_refused)
{
	struct rt_disk *d;
	struct disk_superblock sb;
	struct weft_error err;

	rt_sim_disk_create("d", DISK_BYTES, NULL);
	d = disk_open("d", 0);
	const struct store_format bad[] = {
		{.store_bytes = DISK_BYTES + 1},
		{.store_bytes = MIB},
		{.log_bytes = 4096},
		{.log_bytes = DISK_BYTES},
		{.log_bytes = UINT64_MAX},
		{.checksum_kind = 9},
		{.shard = 0xffff},
		{.area_count = 64},
		{.area_count = 1, .area_bytes = MIB},
		{.area_count = 1, .area_bytes = DISK_BYTES},
		{.area_count = 1, .area_bytes = UINT64_MAX},
		{.area_spare = 8, .area_bytes = UINT64_MAX},
		{.area_count = 63, .area_bytes = 5 * MIB},
	};
	for (size_t i = 0; i < ARRAY_SIZE(bad); i++) {
		err = (struct weft_error){0};
		CHECK(store_format_plan(d, &bad[i], &sb, &err) < 0 && err.text[0]);
	}
	rt_disk_close(d);
	return 0;
}

SIM_TEST(one_bad_copy_is_repaired_whichever)
{
	static const uint8_t garbage[PAGE_SIZE] = {1, 2, 3};

	make("d");
	for (unsigned i = 0; i < 6; i++) {
		uint64_t place = i % 2 ? second() : 0;
		struct disk_superblock sb = peek(place);

		if (i / 2 == 0)
			rt_sim_disk_poke(disk, place, garbage, PAGE_SIZE);
		else if (i / 2 == 1)
			rt_sim_disk_poke(disk, place + 100, garbage, 4);
		else { /* an older one, whole */
			sb.generation -= 1;
			poke_sum(place, &sb);
		}
		store_close_disk(store_open_named("d", 0));
		struct disk_superblock a = peek(0), b = peek(second());
		CHECK(memcmp(&a, &b, sizeof(a)) == 0);
		CHECK(a.incarnation == made.incarnation + 1 + i);
	}
	return 0;
}

SIM_TEST(each_failure_has_its_own_words)
{
	static const uint8_t other_uuid[16] = {9};
	static const uint8_t garbage[8] = {1};
	struct disk_superblock sb;

	disk = rt_sim_disk_create("empty", DISK_BYTES, NULL);
	expect_refusal("empty", -EMEDIUMTYPE, "not a weft store");
	disk = rt_sim_disk_create("tiny", 4096, NULL);
	expect_refusal("tiny", -EMEDIUMTYPE, "not a weft store");

	make("version");
	sb = made;
	sb.disk_version = 7;
	poke_sum(0, &sb);
	poke_sum(second(), &sb);
	expect_refusal("version", -EPROTONOSUPPORT, "unknown version 7");

	make("both");
	rt_sim_disk_poke(disk, 64, garbage, 8);
	rt_sim_disk_poke(disk, second() + 64, garbage, 8);
	expect_refusal("both", -EUCLEAN, "both copies");

	make("stores");
	sb = made;
	sb.store_uuid[3] ^= 1;
	poke_sum(second(), &sb);
	expect_refusal("stores", -EUCLEAN, "different stores");

	make("disagree");
	sb = made;
	sb.incarnation++;
	poke_sum(second(), &sb);
	expect_refusal("disagree", -EUCLEAN, "contradict");

	make("volume");
	expect_refusal_with("volume", &(struct store_options){.volume_uuid = other_uuid},
		-EXDEV, "another volume");

	make("short");
	sb = made;
	sb.store_bytes += 1 * MIB;
	poke_sum(0, &sb);
	rt_sim_disk_poke(disk, second(), garbage, 8); /* what was there is cut off */
	expect_refusal("short", -EUCLEAN, "the device has 16777216");

	make("flags");
	sb = made;
	sb.flags = 4;
	poke_sum(0, &sb);
	poke_sum(second(), &sb);
	expect_refusal("flags", -EPROTONOSUPPORT, "features");
	return 0;
}

SIM_TEST(geometry_that_makes_no_sense_is_refused)
{
	static const uint64_t values[] = {0, 1, 4095, 4097, 1ull << 40, 1ull << 48,
		1ull << 60, 1ull << 62, 1ull << 63, UINT64_MAX, UINT64_MAX - 4095};
	const size_t fields[] = {offsetof(struct disk_superblock, store_bytes),
		offsetof(struct disk_superblock, log_offset),
		offsetof(struct disk_superblock, log_bytes),
		offsetof(struct disk_superblock, table_offset),
		offsetof(struct disk_superblock, table_bytes),
		offsetof(struct disk_superblock, pages_offset),
		offsetof(struct disk_superblock, page_count)};

	make("d");
	for (size_t f = 0; f < ARRAY_SIZE(fields); f++) {
		for (size_t v = 0; v < ARRAY_SIZE(values); v++) {
			struct disk_superblock sb = made;
			const struct store_options o = {.read_only = true};
			struct rt_disk *d = disk_open("d", 0);
			struct weft_error err = {0};
			struct store *s = NULL;

			memcpy((uint8_t *)&sb + fields[f], &values[v], 8);
			poke_sum(0, &sb);
			poke_sum(second(), &sb);
			CHECK(store_open(&s, d, &o, &err) < 0 && err.text[0]);
			rt_disk_close(d);
		}
	}
	return 0;
}

SIM_TEST(layouts_that_pass_the_check_are_within_bounds)
{
	make("d");
	for (unsigned i = 0; i < 20000; i++) {
		struct disk_superblock sb = made;
		uint64_t *fields = &sb.store_bytes;

		for (unsigned k = 0; k <= rt_random() % 3; k++)
			fields[rt_random() % 7] =
				rt_random() >> (rt_random() % 64) & ~4095ull;
		if (layout_check(&sb, NULL))
			continue;
		CHECK(sb.log_offset >= PAGE_SIZE);
		CHECK(sb.log_offset + sb.log_bytes <= sb.table_offset);
		CHECK(sb.table_offset + layout_table_blocks(&sb) * 8192 <=
			sb.pages_offset);
		CHECK(sb.pages_offset + sb.page_count * PAGE_SIZE <=
			sb.store_bytes - PAGE_SIZE);
	}
	return 0;
}

SIM_TEST(a_read_only_open_writes_nothing)
{
	static const uint8_t garbage[8] = {1};
	const struct store_options ro = {.read_only = true}, rw = {0};
	struct disk_superblock before;
	struct weft_error err = {0};
	struct store *s;
	struct rt_disk *d;

	make("d");
	rt_sim_disk_poke(disk, 64, garbage, 8);
	before = peek(0);
	d = disk_open("d", RT_DISK_READ_ONLY);
	CHECK(store_open(&s, d, &rw, &err) == -EROFS && strstr(err.text, "read-only"));
	CHECK(store_open(&s, d, &ro, NULL) == 0);
	CHECK(store_superblock(s)->incarnation == made.incarnation);
	CHECK(page_install(s, 5, 1, 1, 100) == 0);
	CHECK(store_table_write(s, LSN_MAX) == 0 && store_table_dirty(s) == 0);
	store_close_disk(s);
	struct disk_superblock after = peek(0);
	CHECK(memcmp(&before, &after, sizeof(before)) == 0);
	CHECK(rt_sim_disk_volatile_bytes(disk) == 0);
	return 0;
}

/* ---- power cuts and failures ----------------------------------------------------- */

static void open_task(void *arg)
{
	store_close_disk(store_open_named("d", 0));
}

SIM_TEST(a_cut_at_any_moment_of_an_open_leaves_a_store_that_opens)
{
	uint64_t incarnation;

	make("d");
	incarnation = made.incarnation;
	for (unsigned n = 1; n <= 12; n++) {
		unsigned node = rt_sim_node_new("n");

		rt_sim_disk_cut_after(disk, n);
		CHECK(rt_sim_spawn_on(node, "open", open_task, NULL) == 0);
		rt_sim_node_wait(node);
		rt_sim_disk_cut_after(disk, 0);
		struct store *s = store_open_named("d", 0);
		CHECK(store_superblock(s)->incarnation > incarnation);
		incarnation = store_superblock(s)->incarnation;
		store_close_disk(s);
	}
	return 0;
}

/* Node 1's changes from its incarnation n - 1 to n; others stay. */
static void left_task(void *arg)
{
	struct store *s = store_open_named("d", 0);

	CHECK(store_left_set(s, 1, *(const uint64_t *)arg) == 0);
	store_close_disk(s);
}

SIM_TEST(a_cut_at_any_moment_leaves_which_nodes_have_left_as_it_was_or_as_it_shall_be)
{
	struct store *s;
	uint64_t was = 0, now;

	make("d");
	s = store_open_named("d", 0);
	CHECK(store_left(s, 1) == 0 && store_left_set(s, 63, 99) == 0);
	store_close_disk(s);
	for (uint64_t n = 1; n <= 24; n++) {
		unsigned node = rt_sim_node_new("n");

		rt_sim_disk_cut_after(disk, 1 + (unsigned)n % 12);
		CHECK(rt_sim_spawn_on(node, "left", left_task, &n) == 0);
		rt_sim_node_wait(node);
		rt_sim_disk_cut_after(disk, 0);
		s = store_open_named("d", 0);
		now = store_left(s, 1);
		CHECK((now == n || now == was) && store_left(s, 63) == 99);
		CHECK(now == n || n % 12 < 11);
		was = now;
		CHECK(store_left_set(s, 2, n) == 0 && store_left(s, 2) == n);
		CHECK(store_incarnation_read(s, &now) == 0 &&
			now == store_superblock(s)->incarnation);
		store_close_disk(s);
		struct disk_superblock a = peek(0), b = peek(second());
		CHECK(memcmp(&a, &b, sizeof(a)) == 0 && a.left[2] == n);
	}
	/* who is dead has not left, until it was met; then it is neither */
	s = store_open_named("d", 0);
	CHECK(store_dead_set(s, 2, 30) == 0);
	CHECK(store_dead(s, 2) == 30 && store_left(s, 2) == 0 && store_dead(s, 1) == 0);
	store_close_disk(s);
	s = store_open_named("d", 0);
	CHECK(store_dead(s, 2) == 30 && store_node_met(s, 2) == 0);
	CHECK(store_dead(s, 2) == 0 && store_left(s, 2) == 0);
	store_close_disk(s);
	/* nobody's incarnation */
	for (unsigned i = 0; i < 3; i++) {
		const uint64_t bad[] = {
			UINT64_MAX, DISK_LEFT_DEAD, DISK_LEFT_DEAD | 1ull << 62 | 1};

		made = peek(0);
		made.left[5] = bad[i];
		made.generation++;
		poke_sum(0, &made);
		poke_sum(second(), &made);
		expect_refusal("d", -EUCLEAN, "incarnation that left");
	}
	return 0;
}

/* ---- stores of a cluster ---------------------------------------------------------- */

static const uint8_t cluster_uuid[16] = {1, 2, 3}, cluster_key[32] = {4, 5, 6};

static void make_member(const char *name)
{
	struct store_format f = {.label = "member", .node = 2, .shard = 1};

	memcpy(f.volume_uuid, cluster_uuid, sizeof(f.volume_uuid));
	memcpy(f.key, cluster_key, sizeof(f.key));
	disk = rt_sim_disk_create(name, DISK_BYTES, NULL);
	store_make(name, &f, &made);
}

static struct store_options member_options(void)
{
	return (struct store_options){
		.volume_uuid = cluster_uuid, .node = 2, .shard = 1, .key = cluster_key};
}

SIM_TEST(a_clusters_store_bears_what_the_cluster_gave_it)
{
	const struct store_options o = member_options();
	const struct store_options tool = {.read_only = true, .any_node = true};
	struct weft_error err = {0};
	struct store *s;

	make_member("d");
	CHECK(store_open(&s, disk_open("d", 0), &o, &err) == 0);
	CHECK(store_superblock(s)->node == 2 && store_superblock(s)->shard == 1);
	CHECK(memcmp(store_superblock(s)->volume_uuid, cluster_uuid, 16) == 0);
	CHECK(memcmp(store_superblock(s)->key, cluster_key, 32) == 0);
	CHECK(store_superblock(s)->incarnation == made.incarnation + 1);
	store_close_disk(s);
	CHECK(store_open(&s, disk_open("d", 0), &tool, &err) == 0);
	store_close_disk(s);
	return 0;
}

SIM_TEST(a_store_that_is_not_the_nodes_is_refused_and_left_alone)
{
	static const uint8_t other_key[32] = {4, 5, 7};
	struct store_options o = member_options();
	struct disk_superblock before, after;

	make_member("d");
	before = peek(0);
	expect_refusal("d", -EXDEV, "it is the store of node 2 of a cluster");
	o.node = 3;
	expect_refusal_with("d", &o, -EXDEV, "store of node 2, not of node 3");
	o = member_options();
	o.shard = 0;
	expect_refusal_with("d", &o, -EXDEV, "holds shard 1; the cluster file says");
	o = member_options();
	o.key = other_key;
	expect_refusal_with("d", &o, -EKEYREJECTED, "another cluster key");
	o = member_options();
	o.volume_uuid = other_key;
	expect_refusal_with(
		"d", &o, -EXDEV, "another volume, 01020300-0000-0000-0000-000000000000");
	after = peek(0);
	CHECK(memcmp(&before, &after, sizeof(before)) == 0);
	o = member_options();
	o.volume_uuid = NULL;
	make("single");
	expect_refusal_with("single", &o, -EXDEV, "it is the store of no cluster");
	return 0;
}

/* What the store holds of it, in both copies; whoever is not named is refused, and no other. */
static void expect_known(uint64_t known)
{
	const uint64_t all = UINT64_MAX << 1;
	struct store_options o = member_options();
	struct disk_superblock a = peek(0), b = peek(second());
	struct store *s;
	struct rt_disk *d;

	CHECK(memcmp(&a, &b, sizeof(a)) == 0 && a.known == known);
	o.file = "old.cluster";
	for (unsigned node = 1; node <= DISK_NODE_MAX; node++) {
		char text[120];

		if (!(known >> node & 1))
			continue;
		snprintf(text, sizeof(text),
			"worked with node %u, which old.cluster does not name", node);
		o.nodes = all & ~(1ull << node);
		expect_refusal_with("d", &o, -EXDEV, text);
	}
	b = peek(0);
	CHECK(memcmp(&a, &b, sizeof(a)) == 0); /* not a byte, nor an incarnation */
	o.nodes = known | 1ull << 2;
	d = disk_open("d", 0);
	CHECK(store_open(&s, d, &o, NULL) == 0);
	store_close_disk(s);
}

static void met_task(void *arg)
{
	const struct store_options o = member_options();
	struct store *s;

	CHECK(store_open(&s, disk_open("d", 0), &o, NULL) == 0);
	CHECK(store_node_met(s, *(const unsigned *)arg) == 0);
	store_close_disk(s);
}

SIM_TEST(whom_a_store_has_known_its_file_must_name_for_ever)
{
	const struct store_options any = member_options();
	struct store *s;
	uint64_t known = 0;

	make_member("d");
	expect_known(0); /* mkfs.weft, and wefts that knew nothing of it, write 0 */
	for (unsigned met = 3; met <= DISK_NODE_MAX; met += 12) {
		for (unsigned cut = 1; cut <= 12; cut++) {
			unsigned node = rt_sim_node_new("n");
			bool is_known;

			rt_sim_disk_cut_after(disk, cut);
			CHECK(rt_sim_spawn_on(node, "met", met_task, &met) == 0);
			rt_sim_node_wait(node);
			rt_sim_disk_cut_after(disk, 0);
			CHECK(store_open(&s, disk_open("d", 0), &any, NULL) == 0);
			is_known = store_node_known(s, met);
			CHECK(is_known || (!(known >> met & 1) && cut < 11));
			known |= (uint64_t)is_known << met;
			CHECK(store_left_set(s, met, 7) == 0);
			store_close_disk(s);
			expect_known(known); /* to have left changes nothing in it */
		}
		CHECK(known >> met & 1);
	}
	CHECK(store_open(&s, disk_open("d", 0), &any, NULL) == 0);
	CHECK(store_node_met(s, 3) == 0 && store_left(s, 3) == 0);
	store_close_disk(s);
	return 0;
}

SIM_TEST(who_a_store_cannot_know_is_refused)
{
	const struct {
		uint16_t node;
		uint64_t known;
	} bad[] = {{2, 1}, {2, 1ull << 2}, {0, 1ull << 3}};
	struct disk_superblock sb;

	make_member("d");
	for (unsigned i = 0; i < ARRAY_SIZE(bad); i++) {
		sb = made;
		sb.node = bad[i].node;
		sb.known = bad[i].known;
		poke_sum(0, &sb);
		poke_sum(second(), &sb);
		expect_refusal("d", -EUCLEAN, "nodes that it knows");
	}
	return 0;
}

SIM_TEST(a_node_that_cannot_be_is_refused)
{
	struct disk_superblock sb;

	make_member("d");
	sb = made;
	sb.node = DISK_NODE_MAX + 1;
	poke_sum(0, &sb);
	poke_sum(second(), &sb);
	expect_refusal("d", -EUCLEAN, "node");
	return 0;
}

static void format_task(void *arg)
{
	const struct store_format f = {.label = "new", .store_bytes = 8 * MIB};

	store_make("d", &f, NULL);
}

SIM_TEST(a_format_cut_short_leaves_the_old_store_the_new_one_or_none)
{
	unsigned old = 0, none = 0, new = 0;

	for (unsigned n = 1; n <= 32; n++) {
		const struct store_options o = {0};
		unsigned node = rt_sim_node_new("n");
		struct weft_error err = {0};
		struct store *s;
		struct rt_disk *d;

		make("d");
		rt_sim_disk_cut_after(disk, n);
		CHECK(rt_sim_spawn_on(node, "format", format_task, NULL) == 0);
		rt_sim_node_wait(node);
		rt_sim_disk_cut_after(disk, 0);
		d = disk_open("d", 0);
		int rc = store_open(&s, d, &o, &err);
		if (rc) {
			CHECK(rc == -EMEDIUMTYPE || rc == -EUCLEAN);
			none++;
		} else {
			bool is_new = strcmp(store_superblock(s)->label, "new") == 0;

			if (is_new)
				new ++;
			else
				old++;
			/* Whichever it is, its table is. */
			CHECK(page_get(s, 100, 1).result == STORE_ZEROS);
			store_close(s);
		}
		rt_disk_close(d);
		rt_sim_disk_destroy(disk);
	}
	CHECK(old > 0 && none > 0 && new > 0);
	return 0;
}

static int open_failing(void *arg)
{
	const struct store_options o = {0};
	struct weft_error err = {0};
	struct rt_disk *d = NULL;
	struct store *s = NULL;
	int rc = rt_disk_open(&d, "d", 0, &err);

	if (rc)
		return rc;
	rc = store_open(&s, d, &o, &err);
	CHECK(rc == 0 || err.text[0]);
	store_close(s);
	rt_disk_close(d);
	return rc;
}

static int open_result;

static void open_failing_task(void *arg)
{
	open_result = open_failing(NULL);
	CHECK(rt_sim_node_memory(rt_sim_node()) == 0);
}

SIM_TEST(opening_without_memory_fails_cleanly)
{
	unsigned failures = 0;

	make("d");
	for (unsigned n = 1; n <= 40; n++) {
		unsigned node = rt_sim_node_new("n");

		rt_sim_alloc_fail(n);
		CHECK(rt_sim_spawn_on(node, "open", open_failing_task, NULL) == 0);
		rt_sim_node_wait(node);
		CHECK(open_result == 0 || open_result == -ENOMEM);
		failures += open_result != 0;
	}
	rt_sim_alloc_fail(0);
	CHECK(failures > 5);
	return 0;
}

SIM_TEST(a_device_that_fails_is_reported_as_such)
{
	make("d");
	for (unsigned op = 0; op < 3; op++) {
		for (unsigned n = 1; n <= 2; n++) {
			const struct rt_sim_fail fail = {
				.ops = 1u << op, .n = n, .sticky = true};
			int rc;

			rt_sim_disk_fail(disk, &fail);
			rc = open_failing(NULL);
			CHECK(rc == -EIO || (op == RT_IO_READ && n == 2 && rc == 0));
			rt_sim_disk_fail(disk, &(struct rt_sim_fail){0});
			CHECK(open_failing(NULL) == 0);
		}
	}
	return 0;
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(what_is_formatted_opens_with_the_same_layout),
		cmocka_unit_test(no_two_machines_give_one_incarnation_whatever_each_has_seen),
		cmocka_unit_test(a_new_log_is_clean_at_the_rings_start),
		cmocka_unit_test(
			every_size_has_a_layout_that_passes_its_own_check_or_a_reason),
		cmocka_unit_test(a_plan_that_cannot_be_is_refused),
		cmocka_unit_test(one_bad_copy_is_repaired_whichever),
		cmocka_unit_test(each_failure_has_its_own_words),
		cmocka_unit_test(a_clusters_store_bears_what_the_cluster_gave_it),
		cmocka_unit_test(a_store_that_is_not_the_nodes_is_refused_and_left_alone),
		cmocka_unit_test(a_node_that_cannot_be_is_refused),
		cmocka_unit_test(whom_a_store_has_known_its_file_must_name_for_ever),
		cmocka_unit_test(who_a_store_cannot_know_is_refused),
		cmocka_unit_test(geometry_that_makes_no_sense_is_refused),
		cmocka_unit_test(layouts_that_pass_the_check_are_within_bounds),
		cmocka_unit_test(a_read_only_open_writes_nothing),
		cmocka_unit_test(
			a_cut_at_any_moment_of_an_open_leaves_a_store_that_opens),
		cmocka_unit_test(
			a_format_cut_short_leaves_the_old_store_the_new_one_or_none),
		cmocka_unit_test(
			a_cut_at_any_moment_leaves_which_nodes_have_left_as_it_was_or_as_it_shall_be),
		cmocka_unit_test(opening_without_memory_fails_cleanly),
		cmocka_unit_test(a_device_that_fails_is_reported_as_such),
	};

	weft_log_sink = quiet_log;
	return cmocka_run_group_tests(tests, NULL, NULL);
}
