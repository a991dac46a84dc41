/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft dump: prints a store's structures as text, to find errors in them.
 *
 * Opens the store read-only, in any state, from the lowest layer up. Reads the superblocks from the
 * disk, and the log's heads by the superblocks. Reads everything else through the engine, with the
 * log replayed in memory. Reports unreadable parts and skips them. Trusts no byte of the store
 * (invariant 9): damaged structures are printed and never followed out of bounds.
 */
#include <errno.h>
#include <getopt.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "engine/common/text.h"
#include "fs/daemonize.h"
#include "tools/dump.h"
#include "tools/tools.h"

#define LEVELS_MAX 16
#define INO_MAX    ((1ull << 56) - 2) /* this number and the next one have keys */

/* The layers to open before printing; from DEPTH_VOLUME on, several stores together. */
enum depth { DEPTH_DISK, DEPTH_SUPER, DEPTH_STORE, DEPTH_VOLUME };
enum argument { ARGUMENT_NONE, ARGUMENT_NUMBER, ARGUMENT_TEXT };

struct view {
	const char *name;
	enum argument argument;
	enum depth depth;
	void (*show)(struct dump *d);
};

static const char dump_usage[] =
	"Usage: weft dump STORE|FILE [super | log | groups | table | tree [--keys] |\n"
	"                 inode N | path P | page PID | files]\n"
	"\n"
	"Shows the structures of a store as text. Writes nothing: a log that was not\n"
	"closed cleanly is replayed in memory. If the store is in use, parts of the\n"
	"output may be of different moments.\n"
	"\n"
	"With a cluster FILE, all of its stores must be reachable from this machine.\n"
	"super, log, table and groups are shown for each store, the rest for the volume.\n"
	"\n"
	"  super       both superblocks (default)\n"
	"  log         the log: heads and records\n"
	"  table       the descriptor table: blocks and their copies\n"
	"  groups      the catalog and the allocation groups\n"
	"  tree        the pages of the tree, with --keys also every item\n"
	"  inode N     an inode and all its items\n"
	"  path P      the same for a file, by its path from the volume's root\n"
	"  page PID    a page: its descriptor and kind\n"
	"  files       every name, with inode number, type and size\n"
	"\n"
	"Examples:\n"
	"  weft dump /srv/data.weft super\n"
	"  weft dump /srv/data.weft path /home/me/notes\n"
	"  weft dump /etc/weft/scratch.cluster files\n"
	"\n"
	"Exit codes: 0 shown, 1 wrong usage, 2 something could not be read.\n";

/* ---- words ----------------------------------------------------------------------- */

void dump_unreadable(struct dump *d, const char *what, int rc)
{
	fflush(stdout);
	fprintf(stderr, "weft dump: %s: %s: %s\n", d->path, what, strerror(-rc));
	d->failed = true;
}

/* ---- superblocks and log --------------------------------------------------------- */

static void print_super(const struct disk_superblock *sb, uint64_t at)
{
	printf("superblock at byte %" PRIu64 ": %s\n", at,
		store_superblock_whole(sb)      ? "whole"
		: sb->magic == DISK_MAGIC_SUPER ? "DAMAGED"
						: "NOT THERE");
	if (sb->magic != DISK_MAGIC_SUPER)
		return;
	print_u64("disk version", sb->disk_version);
	printf("  %-16s ", "label");
	print_text(sb->label, strnlen(sb->label, sizeof(sb->label)));
	putchar('\n');
	print_uuid("volume", sb->volume_uuid);
	print_uuid("store", sb->store_uuid);
	print_u64("shard", sb->shard);
	print_u64("node", sb->node);
	printf("  %-16s %u (1 GMAC, 2 SHA-256, 3 BLAKE2b)\n", "checksum kind",
		sb->checksum_kind);
	printf("  %-16s %#x\n", "flags", sb->flags);
	print_u64("store bytes", sb->store_bytes);
	printf("  %-16s %" PRIu64 " at %" PRIu64 "\n", "log bytes", sb->log_bytes,
		sb->log_offset);
	printf("  %-16s %" PRIu64 " at %" PRIu64 "\n", "table bytes", sb->table_bytes,
		sb->table_offset);
	printf("  %-16s %" PRIu64 " at %" PRIu64 "\n", "pages", sb->page_count,
		sb->pages_offset);
	print_u64("incarnation", sb->incarnation);
	print_u64("generation", sb->generation);
	print_u64("atomic write", sb->atomic_write_bytes);
	printf("  %-16s", "known nodes");
	for (unsigned node = 1; node <= DISK_NODE_MAX; node++)
		if (sb->known >> node & 1)
			printf(" %u", node);
	puts(sb->known ? "" : " none");
	if (sb->scrub.state)
		printf("  %-16s state %u (1 runs, 2 stopped, 3 ended), next slot %" PRIu64
		       ", %" PRIu64 " damaged\n",
			"scrub", sb->scrub.state, sb->scrub.next, sb->scrub.damaged);
	print_time("created", sb->created_ns);
}

/* Reads the second copy at the place in the first, or else at the device's end. Keeps the whole one
 * in d->sb. */
static int dump_super(struct dump *d, bool print)
{
	struct disk_superblock *sb = rt_alloc_pages(2 * PAGE_SIZE);
	struct rt_disk_info info;
	uint64_t at[2] = {0, 0};
	int best = -1;

	if (!sb)
		return -ENOMEM;
	rt_disk_info(d->disk, &info);
	for (unsigned i = 0; i < 2; i++) {
		int rc;

		if (i)
			at[1] = best == 0 && sb[0].store_bytes <= info.size_bytes
					? sb[0].store_bytes - PAGE_SIZE
					: info.size_bytes / PAGE_SIZE * PAGE_SIZE -
						  PAGE_SIZE;
		rc = info.size_bytes < 2 * PAGE_SIZE
			     ? -EIO
			     : rt_disk_read(d->disk, at[i], &sb[i], PAGE_SIZE);
		if (rc) {
			dump_unreadable(d, i ? "second superblock" : "first superblock", rc);
			continue;
		}
		if (print)
			print_super(&sb[i], at[i]);
		if (store_superblock_whole(&sb[i]) &&
			(best < 0 || sb[i].generation > sb[best].generation))
			best = (int)i;
	}
	if (best >= 0)
		memcpy(&d->sb, &sb[best], sizeof(d->sb));
	rt_free_pages(sb, 2 * PAGE_SIZE);
	return best < 0 ? -EUCLEAN : 0;
}

static void print_head(const struct disk_log_head *h, unsigned i)
{
	printf("log head %u: %s\n", i, h->magic == DISK_MAGIC_LOGHEAD ? "" : "NOT THERE");
	if (h->magic != DISK_MAGIC_LOGHEAD)
		return;
	print_u64("generation", h->generation);
	print_u64("tail LSN", h->tail_lsn);
	print_u64("clean", h->clean);
	print_u64("epoch", h->epoch);
}

static void print_change(const struct disk_log_record *r)
{
	const struct disk_log_page *part = (const struct disk_log_page *)(r + 1);

	for (unsigned i = 0; i < r->count; i++) {
		printf("    page %#" PRIx64 " becomes %" PRIu64 ".%" PRIu64 ", %s",
			part->pid, part->incarnation, part->version,
			part->kind == DISK_LOG_FULL ? "in full" : "ranges:");
		for (unsigned k = 0;
			part->kind == DISK_LOG_RANGES && k < part->range_count; k++) {
			const struct disk_log_range *range =
				(const struct disk_log_range *)(part + 1) + k;

			printf(" %u+%u", range->offset, range->length);
		}
		putchar('\n');
		part = (const struct disk_log_page *)((const uint8_t *)part +
						      part->part_bytes);
	}
}

static int print_record(void *arg, const struct log_entry *e)
{
	const struct disk_log_record *r = e->record;
	const uint64_t *word = (const uint64_t *)(r + 1);

	printf("  LSN %" PRIu64 ": ", e->end);
	switch (r->type) {
	case DISK_LOG_CHANGE:
		printf("change of %u pages, %u bytes\n", r->count, r->record_bytes);
		print_change(r);
		break;
	case DISK_LOG_DESCRIPTORS:
		printf("batch %#" PRIx64 ": %u pages about to be written\n", word[0],
			r->count);
		break;
	default:
		printf("persisted:");
		for (unsigned i = 0; i < r->count; i++)
			printf(" %#" PRIx64, word[i]);
		putchar('\n');
	}
	return 0;
}

static void dump_log(struct dump *d)
{
	struct disk_log_head *h = rt_alloc_pages(DISK_LOG_HEADS_BYTES);
	struct store_options o = {.read_only = true, .any_node = true};
	struct weft_error err = {0};
	struct log *log = NULL;
	struct store *s = NULL;
	bool clean;
	int rc = h ? rt_disk_read(d->disk, d->sb.log_offset, h, DISK_LOG_HEADS_BYTES)
		   : -ENOMEM;

	if (rc == 0) {
		print_head(&h[0], 0);
		print_head(&h[1], 1);
	}
	if (h)
		rt_free_pages(h, DISK_LOG_HEADS_BYTES);
	if (rc == 0)
		rc = store_open(&s, d->disk, &o, &err);
	if (rc == 0)
		rc = log_open(&log, s, NULL, &clean, &err);
	if (rc == 0) {
		printf("log: %s, LSN %" PRIu64 " to %" PRIu64 "\n",
			clean ? "closed cleanly" : "not closed cleanly", log_tail(log),
			log_durable(log));
		rc = log_scan(log, print_record, d);
	}
	if (rc)
		dump_unreadable(d, err.text[0] ? err.text : "log", rc);
	if (log)
		log_close(log);
	if (s)
		store_close(s);
}

/* ---- descriptor table ------------------------------------------------------------ */

static void print_block(
	struct store *s, struct disk_table_block *b, uint64_t block, unsigned copy)
{
	unsigned used = 0;

	if (b->magic == 0)
		return;
	for (unsigned i = 0; i < DISK_TABLE_SLOTS; i++)
		used += b->slot[i].incarnation != 0;
	printf("block %" PRIu64 " copy %u: generation %" PRIu64 ", %u pages%s\n", block,
		copy, b->generation, used,
		b->magic == DISK_MAGIC_TABLE && b->block == block &&
				b->checksum == store_table_checksum(s, b)
			? ""
			: ", DAMAGED");
}

static void dump_table(struct dump *d)
{
	struct disk_table_block *b = rt_alloc_pages(2 * PAGE_SIZE);
	uint64_t blocks = DIV_UP(d->sb.page_count, (uint64_t)DISK_TABLE_SLOTS);
	struct store_options o = {.read_only = true, .any_node = true};
	struct weft_error err = {0};
	struct store *s = NULL;
	int rc = b ? store_open(&s, d->disk, &o, &err) : -ENOMEM;

	for (uint64_t i = 0; i < blocks && rc == 0; i++) {
		rc = rt_disk_read(d->disk, d->sb.table_offset + 2 * i * PAGE_SIZE, b,
			2 * PAGE_SIZE);
		if (rc == 0) {
			print_block(s, &b[0], i, 0);
			print_block(s, &b[1], i, 1);
		}
	}
	if (rc)
		dump_unreadable(d, err.text[0] ? err.text : "descriptor table", rc);
	if (s)
		store_close(s);
	if (b)
		rt_free_pages(b, 2 * PAGE_SIZE);
}

/* ---- pages ----------------------------------------------------------------------- */

static bool page_known(const struct dump *d, page_id pid)
{
	return shards_have(d->v->shards, pid, 1);
}

/* Reads its image in the store, with any checksum. */
static int page_raw(const struct dump *d, page_id pid, void *image)
{
	const struct disk_superblock *sb = &d->sb;
	struct rt_disk *disk = d->disk;

	for (unsigned i = 0; i < d->store_count; i++)
		if (d->store[i].sb.shard == pid_shard(pid)) {
			sb = &d->store[i].sb;
			disk = d->store[i].disk;
		}
	return rt_disk_read(
		disk, sb->pages_offset + pid_slot(pid) * PAGE_SIZE, image, PAGE_SIZE);
}

static int page_get(struct dump *d, page_id pid, void *image, uint64_t *incarnation,
	uint64_t *version)
{
	struct guard g;
	int rc = page_known(d, pid) ? guard_shared(d->v->cache, pid, 0, &g) : -ERANGE;

	if (rc)
		return rc;
	memcpy(image, g.image, PAGE_SIZE);
	*incarnation = g.frame->incarnation;
	*version = g.frame->version;
	guard_release(d->v->cache, &g);
	return 0;
}

static void dump_groups(struct dump *d)
{
	struct disk_group *g = rt_alloc_pages(PAGE_SIZE);
	const struct disk_catalog *c = (const struct disk_catalog *)g;
	uint64_t incarnation, version;
	int rc = g ? page_get(d, pid_make(d->sb.shard, DISK_CATALOG_SLOT), g,
			     &incarnation, &version)
		   : -ENOMEM;

	if (d->sb.shard != DISK_CATALOG_SHARD) {
		printf("catalog: in shard %u, not here\n", DISK_CATALOG_SHARD);
	} else if (rc) {
		dump_unreadable(d, "catalog", rc);
	} else {
		printf("catalog: %s\n", c->magic == DISK_MAGIC_CATALOG ? "" : "NOT ONE");
		printf("  %-16s %#" PRIx64 "\n", "root", c->root_pid);
		print_u64(
			"next inodes from", c->next_inode_range << DISK_INODE_RANGE_BITS);
	}
	for (uint64_t i = 0; g && i < space_layout_groups(d->sb.page_count); i++) {
		struct weft_error err = {0};

		rc = page_get(d, pid_make(d->sb.shard, disk_group_slot(i)), g,
			&incarnation, &version);
		if (rc) {
			printf("group %" PRIu64 ": unreadable (%s)\n", i, strerror(-rc));
			d->failed = true;
			continue;
		}
		rc = space_check_page(g, d->sb.page_count, i, &err);
		printf("group %" PRIu64 ": pages from %#" PRIx64
		       ", %u of %u free, next incarnation %" PRIu64 ", owner %u%s%s\n",
			i, pid_make(d->sb.shard, disk_group_slot(i)) + 1, g->free_pages,
			space_layout_pages(d->sb.page_count, i), g->next_incarnation,
			g->owner, rc ? ", DAMAGED: " : "", rc ? err.text : "");
	}
	if (g)
		rt_free_pages(g, PAGE_SIZE);
}

/* ---- the tree -------------------------------------------------------------------- */

static void dump_node(struct dump *d, page_id pid, unsigned level_max, unsigned depth)
{
	struct disk_inner *n = rt_alloc_pages(PAGE_SIZE);
	uint64_t incarnation, version;
	struct weft_error err = {0};
	int rc = n ? page_get(d, pid, n, &incarnation, &version) : -ENOMEM;

	printf("%*s%#" PRIx64 ": ", (int)(2 * depth), "", pid);
	if (rc == -ERANGE && shards_elsewhere(&d->sb, pid))
		weft_error(&err, rc, "it is in the store with shard %u", pid_shard(pid));
	if (rc == 0)
		rc = tree_check_page(n, pid, &err);
	if (rc == 0 && n->node.level > level_max)
		rc = -EUCLEAN;
	if (rc) {
		printf("UNREADABLE: %s\n", err.text[0] ? err.text : strerror(-rc));
		d->failed = true;
	} else {
		print_node(&n->node);
	}
	for (unsigned i = 0; rc == 0 && n->node.level && i < n->node.count; i++)
		dump_node(d, n->child[i], n->node.level - 1u, depth + 1);
	if (rc == 0 && !n->node.level && d->keys)
		print_leaf((const struct disk_leaf *)n);
	if (n)
		rt_free_pages(n, PAGE_SIZE);
}

static int catalog_get(struct dump *d, struct disk_catalog *c)
{
	uint64_t incarnation, version;
	int rc;

	if (d->sb.shard != DISK_CATALOG_SHARD) {
		dump_unreadable(d, "the catalog is in the store with shard 0", -EREMOTE);
		return -EREMOTE;
	}
	rc = page_get(
		d, pid_make(d->sb.shard, DISK_CATALOG_SLOT), c, &incarnation, &version);
	if (rc == 0 && c->magic != DISK_MAGIC_CATALOG)
		rc = -EUCLEAN;
	if (rc)
		dump_unreadable(d, "catalog", rc);
	return rc;
}

static void dump_tree(struct dump *d)
{
	struct disk_catalog c;

	if (catalog_get(d, &c) == 0)
		dump_node(d, c.root_pid, LEVELS_MAX - 1, 0);
}

static void dump_page(struct dump *d)
{
	page_id pid = d->number;
	struct disk_leaf *image = rt_alloc_pages(PAGE_SIZE);
	uint64_t incarnation = 0, version = 0;
	int rc = image ? page_get(d, pid, image, &incarnation, &version) : -ENOMEM;

	printf("page %#" PRIx64 " (shard %u, slot %" PRIu64 "): ", pid, pid_shard(pid),
		pid_slot(pid));
	if (rc) {
		puts("UNREADABLE");
		dump_unreadable(d, "page", rc);
		if (image && page_known(d, pid) && page_raw(d, pid, image) == 0)
			print_hex((const uint8_t *)image, PAGE_SIZE);
	} else {
		printf("incarnation %" PRIu64 ", version %" PRIu64 "\n", incarnation,
			version);
		if (tree_check_page(image, pid, NULL) == 0) {
			print_node(&image->node);
			if (!image->node.level)
				print_leaf(image);
		} else {
			print_hex((const uint8_t *)image, PAGE_SIZE);
		}
	}
	if (image)
		rt_free_pages(image, PAGE_SIZE);
}

/* ---- inodes ---------------------------------------------------------------------- */

int tree_get(struct dump *d)
{
	struct weft_error err = {0};
	int rc = catalog_get(d, &d->v->catalog);

	if (rc || d->v->tree)
		return rc;
	rc = page_known(d, d->v->catalog.root_pid)
		     ? tree_open(&d->v->tree, d->v->cache, NULL, d->v->catalog.root_pid,
			       &err)
		     : -EUCLEAN;
	if (rc)
		dump_unreadable(d, err.text[0] ? err.text : "tree", rc);
	return rc;
}

static int visit_item(void *arg, struct disk_key key, const void *value, size_t len)
{
	uint64_t *count = arg;

	print_item(key, value, len);
	++*count;
	return 0;
}

void show_inode(struct dump *d, uint64_t ino)
{
	uint64_t count = 0;
	int rc = ino <= INO_MAX
			 ? tree_scan(d->v->tree, disk_key(ino, 0, 0),
				   disk_key(ino + 1, 0, 0), false, visit_item, &count)
			 : 0;

	if (rc == 0 && count == 0)
		rc = -ENOENT;
	if (rc)
		dump_unreadable(d, "inode", rc);
}

static void dump_inode(struct dump *d)
{
	if (tree_get(d) == 0)
		show_inode(d, d->number);
}

/* ---- the command ----------------------------------------------------------------- */

static void show_super(struct dump *d)
{
	int rc = dump_super(d, true);

	if (rc)
		dump_unreadable(d, "no superblock that is whole", rc);
}

static const struct view views[] = {
	{"super", ARGUMENT_NONE, DEPTH_DISK, show_super},
	{"log", ARGUMENT_NONE, DEPTH_SUPER, dump_log},
	{"table", ARGUMENT_NONE, DEPTH_SUPER, dump_table},
	{"groups", ARGUMENT_NONE, DEPTH_STORE, dump_groups},
	{"tree", ARGUMENT_NONE, DEPTH_VOLUME, dump_tree},
	{"inode", ARGUMENT_NUMBER, DEPTH_VOLUME, dump_inode},
	{"path", ARGUMENT_TEXT, DEPTH_VOLUME, dump_path},
	{"page", ARGUMENT_NUMBER, DEPTH_VOLUME, dump_page},
	{"files", ARGUMENT_NONE, DEPTH_VOLUME, dump_files},
};

static int view_unknown(const char *who, const char *name)
{
	const char *known[ARRAY_SIZE(views) + 1] = {NULL};

	for (size_t i = 0; i < ARRAY_SIZE(views); i++)
		known[i] = views[i].name;
	return weft_wrong_word(who, "structure", name, known);
}

/* Reads the store and the part to print. Returns 0, or EXIT_USAGE. */
static int parse_words(struct dump *d, int argc, char **argv)
{
	const char *name = optind + 1 < argc ? argv[optind + 1] : views[0].name;

	for (size_t i = 0; i < ARRAY_SIZE(views); i++)
		if (strcmp(name, views[i].name) == 0)
			d->view = &views[i];
	if (!d->view)
		return view_unknown(argv[0], name);
	if (d->view->argument == ARGUMENT_NONE)
		return weft_operands(
			dump_usage, argc, argv, 1, 2, "STORE|FILE super|log|...");
	if (weft_operands(
		    dump_usage, argc, argv, 3, 3, "STORE|FILE inode|path|page WHICH"))
		return EXIT_USAGE;
	d->word = argv[optind + 2];
	if (d->view->argument == ARGUMENT_NUMBER && number_parse(d->word, &d->number))
		return weft_wrong(argv[0], "\"%s\" is no number of %s %s", d->word,
			strchr("aeiou", *name) ? "an" : "a", name);
	return 0;
}

static void show_view(struct dump *d)
{
	int rc = d->view->depth == DEPTH_DISK ? 0 : dump_super(d, false);

	if (rc)
		dump_unreadable(d, "no superblock that is whole", rc);
	else if (d->view->depth < DEPTH_STORE || dump_volume_get(d, false) == 0)
		d->view->show(d);
	dump_volumes_close(d);
}

static void store_take(struct dump *d, const struct dump_store *s)
{
	d->path = s->path;
	d->disk = s->disk;
	d->sb = s->sb;
}

/* Prints the parts of the store with the catalog, or above. */
static void show_volume(struct dump *d)
{
	const struct dump_store *first = NULL;

	for (unsigned i = 0; i < d->store_count; i++) {
		struct dump_store *s = &d->store[i];
		int rc;

		store_take(d, s);
		rc = dump_super(d, false);
		s->sb = d->sb;
		if (rc) {
			dump_unreadable(d, "no superblock that is whole", rc);
			return;
		}
		if (s->sb.node != s->node) {
			dump_unreadable(d, "it is another node's store", -EXDEV);
			return;
		}
		if (s->sb.shard == DISK_CATALOG_SHARD)
			first = s;
	}
	if (!first) {
		dump_unreadable(d, "no store has the catalog", -ENOENT);
		return;
	}
	store_take(d, first);
	if (dump_volume_get(d, true) == 0)
		d->view->show(d);
	dump_volumes_close(d);
}

static void show_each(struct dump *d)
{
	for (unsigned i = 0; i < d->store_count; i++) {
		printf("%snode %u: %s\n", i ? "\n" : "", d->store[i].node,
			d->store[i].path);
		store_take(d, &d->store[i]);
		show_view(d);
	}
}

static void no_log(int level, const char *line)
{
}

int weft_dump(int argc, char **argv)
{
	static const struct option options[] = {{"keys", no_argument, NULL, 'k'},
		{"help", no_argument, NULL, 'h'}, {NULL, 0, NULL, 0}};
	struct weft_error err = {0};
	struct dump d = {0};
	int c, rc;

	while ((c = getopt_long(argc, argv, "h", options, NULL)) != -1) {
		if (c != 'k')
			return weft_option(dump_usage, c, argv, options);
		d.keys = true;
	}
	rc = parse_words(&d, argc, argv);
	if (rc)
		return rc;
	d.path = argv[optind];
	weft_log_sink = no_log;
	rc = rt_real_start();
	if (rc == 0)
		rc = cluster_file_is(d.path) ? dump_cluster_open(&d, &err)
					     : dump_disk_open(d.path, &d.disk, &err);
	if (rc) {
		fprintf(stderr, "weft dump: %s: %s\n", d.path,
			err.text[0] ? err.text : strerror(-rc));
		d.failed = true;
	} else if (!d.cluster) {
		show_view(&d);
	} else if (d.view->depth == DEPTH_VOLUME) {
		show_volume(&d);
	} else {
		show_each(&d);
	}
	dump_disks_close(&d);
	return d.failed ? EXIT_FAILED : 0;
}
