/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opening and closing a store: its two superblocks.
 *
 * The valid copy with the higher generation counts. A start that may write raises the node's
 * incarnation. It writes the copies one after the other with a flush between, the bad or older one
 * first. So at every moment one of them is whole. All fields are checked before use (invariant 9),
 * and each way in which one can be wrong has its own message.
 */
#include "engine/store/store_internal.h"

#include <errno.h>
#include <openssl/crypto.h>

#include "engine/common/text.h"

enum copy_state {
	COPY_ABSENT,     /* no magic */
	COPY_UNREADABLE, /* the device fails */
	COPY_DAMAGED,    /* magic, but a wrong checksum */
	COPY_WHOLE,
};

struct copies {
	struct disk_superblock *sb[2]; /* page-aligned memory */
	enum copy_state state[2];
	uint64_t place[2];
};

static enum copy_state copy_read(
	struct rt_disk *disk, uint64_t place, struct disk_superblock *sb)
{
	if (rt_disk_read(disk, place, sb, sizeof(*sb)))
		return COPY_UNREADABLE;
	if (sb->magic != DISK_MAGIC_SUPER)
		return COPY_ABSENT;
	return sb->checksum == superblock_sum(sb) ? COPY_WHOLE : COPY_DAMAGED;
}

/* The second copy is where the first says; without a first, at the end of the device. */
static void copies_read(struct copies *c, struct rt_disk *disk, uint64_t size_bytes)
{
	uint64_t device_end = size_bytes - size_bytes % PAGE_SIZE;

	c->place[0] = 0;
	c->place[1] = device_end - PAGE_SIZE;
	c->state[0] = copy_read(disk, c->place[0], c->sb[0]);
	if (c->state[0] == COPY_WHOLE && c->sb[0]->store_bytes >= 2 * PAGE_SIZE &&
		c->sb[0]->store_bytes % PAGE_SIZE == 0 &&
		c->sb[0]->store_bytes <= size_bytes)
		c->place[1] = c->sb[0]->store_bytes - PAGE_SIZE;
	c->state[1] = copy_read(disk, c->place[1], c->sb[1]);
}

static int none_is_whole(const struct copies *c, struct weft_error *err)
{
	bool damaged[2];

	for (unsigned i = 0; i < 2; i++)
		damaged[i] = c->state[i] == COPY_DAMAGED;
	if (c->state[0] == COPY_UNREADABLE ||
		(c->state[1] == COPY_UNREADABLE && !damaged[0]))
		return weft_error(err, -EIO,
			"the superblock cannot be read: the device reports an "
			"input/output error");
	if (!damaged[0] && !damaged[1])
		return weft_error(err, -EMEDIUMTYPE,
			"not a weft store: no superblock at its beginning nor at its "
			"end; "
			"mkfs.weft makes one");
	/* Another version may compute its checksum otherwise. */
	if (damaged[0] && damaged[1] &&
		c->sb[0]->disk_version == c->sb[1]->disk_version &&
		c->sb[0]->disk_version != DISK_VERSION)
		return weft_error(err, -EPROTONOSUPPORT,
			"unknown version %u of the disk format: this weft knows version "
			"%u",
			c->sb[0]->disk_version, DISK_VERSION);
	return weft_error(err, -EUCLEAN,
		"both copies of the superblock are damaged: restore the store from a "
		"backup");
}

/* Which copy counts: its index, or the error that it is. */
static int copies_choose(const struct copies *c, struct weft_error *err)
{
	const struct disk_superblock *a = c->sb[0], *b = c->sb[1];

	if (c->state[0] != COPY_WHOLE && c->state[1] != COPY_WHOLE)
		return none_is_whole(c, err);
	if (c->state[1] != COPY_WHOLE)
		return 0;
	if (c->state[0] != COPY_WHOLE)
		return 1;
	if (memcmp(a->store_uuid, b->store_uuid, sizeof(a->store_uuid)) != 0)
		return weft_error(err, -EUCLEAN,
			"the two copies of the superblock belong to different stores: "
			"part of this "
			"device was overwritten with another one; restore it from a "
			"backup");
	if (a->generation == b->generation && memcmp(a, b, sizeof(*a)) != 0)
		return weft_error(err, -EUCLEAN,
			"the two copies of the superblock contradict each other: two "
			"nodes have "
			"opened this store at once; check it with fsck.weft on a copy");
	return a->generation >= b->generation ? 0 : 1;
}

/* Checks the owner that the store names against the expected one. */
static int owner_check(const struct disk_superblock *sb, const struct store_options *o,
	struct weft_error *err)
{
	char uuid[UUID_TEXT];

	if (o->volume_uuid &&
		memcmp(sb->volume_uuid, o->volume_uuid, sizeof(sb->volume_uuid)) != 0) {
		uuid_print(sb->volume_uuid, uuid);
		return weft_error(
			err, -EXDEV, "the store belongs to another volume, %s", uuid);
	}
	if (o->any_node)
		return 0;
	if (sb->node && !o->node)
		return weft_error(err, -EXDEV,
			"it is the store of node %u of a cluster: name the cluster file "
			"instead of the store",
			sb->node);
	if (!sb->node && o->node)
		return weft_error(err, -EXDEV,
			"it is the store of no cluster: mount it by its own path, or "
			"make node %u's with mkfs.weft -c",
			o->node);
	if (sb->node != o->node)
		return weft_error(err, -EXDEV,
			"it is the store of node %u, not of node %u: compare the "
			"stores in the cluster file, and the node that was given",
			sb->node, o->node);
	if (o->node && sb->shard != o->shard)
		return weft_error(err, -EXDEV,
			"the store holds shard %u; the cluster file says that node %u "
			"has shard %u",
			sb->shard, o->node, o->shard);
	if (o->key && CRYPTO_memcmp(sb->key, o->key, sizeof(sb->key)) != 0)
		return weft_error(err, -EKEYREJECTED,
			"the store was made with another cluster key: copy the key file "
			"that the other nodes have");
	return o->file ? store_nodes_check(sb, o->file, o->nodes, err) : 0;
}

/* A node that is not named would not be waited for, and may have the newest image of any page. */
int store_nodes_check(const struct disk_superblock *sb, const char *file, uint64_t nodes,
	struct weft_error *err)
{
	uint64_t missing = sb->known & ~nodes;

	if (!missing)
		return 0;
	return weft_error(err, -EXDEV,
		"the store has worked with node %d, which %s does not name and which may "
		"have pages of it: the file is older than one that was used before, or "
		"was cut; copy the cluster file from a node that has it with [node %d]",
		__builtin_ctzll(missing), file, __builtin_ctzll(missing));
}

static int superblock_check(const struct disk_superblock *sb, uint64_t place_second,
	uint64_t size_bytes, const struct store_options *o, struct weft_error *err)
{
	int rc;

	if (sb->disk_version != DISK_VERSION)
		return weft_error(err, -EPROTONOSUPPORT,
			"unknown version %u of the disk format: this weft knows version "
			"%u",
			sb->disk_version, DISK_VERSION);
	rc = layout_check(sb, err);
	if (!rc)
		rc = owner_check(sb, o, err);
	if (rc)
		return rc;
	if (sb->store_bytes > size_bytes)
		return weft_error(err, -EUCLEAN,
			"the store says that it has %llu bytes, the device has %llu: it "
			"was cut off; "
			"enlarge the device or restore the store from a backup",
			(unsigned long long)sb->store_bytes,
			(unsigned long long)size_bytes);
	if (layout_second_superblock(sb) != place_second)
		return weft_error(err, -EUCLEAN,
			"the superblock at byte %llu says that its place is %llu: the "
			"store was "
			"moved or its first copy is lost; restore it from a backup",
			(unsigned long long)place_second,
			(unsigned long long)layout_second_superblock(sb));
	return 0;
}

int superblock_write(
	struct rt_disk *disk, uint64_t place, const struct disk_superblock *sb)
{
	void *page = rt_alloc_pages(PAGE_SIZE);
	int rc;

	if (!page)
		return -ENOMEM;
	memcpy(page, sb, PAGE_SIZE);
	rc = rt_disk_write(disk, place, page, PAGE_SIZE);
	if (!rc)
		rc = rt_disk_flush(disk);
	rt_free_pages(page, PAGE_SIZE);
	return rc;
}

/* Incarnations of machine M are M - 1 above a multiple of STORE_ELSEWHERE. So starts on two
 * machines differ, even if they have seen different stores (copies of one that have parted). */
static uint64_t incarnation_after(uint64_t last, unsigned machine)
{
	uint64_t next = (last / STORE_ELSEWHERE + 1) * STORE_ELSEWHERE;

	return machine ? next + machine - 1 : last + 1;
}

/* A new incarnation of the node, in both copies; the one that does not count goes first.
 */
static int incarnation_raise(struct rt_disk *disk, const struct copies *c,
	unsigned chosen, unsigned machine, struct disk_superblock *sb, struct weft_error *err)
{
	int rc;

	if (c->state[!chosen] != COPY_WHOLE)
		weft_log(4,
			"store: the %s superblock is bad; it is written anew from the %s "
			"one",
			chosen ? "first" : "second", chosen ? "second" : "first");
	sb->incarnation = incarnation_after(sb->incarnation, machine);
	sb->generation++;
	sb->checksum = superblock_sum(sb);
	rc = superblock_write(disk, c->place[!chosen], sb);
	if (!rc)
		rc = superblock_write(disk, c->place[chosen], sb);
	if (rc)
		return weft_error(
			err, rc, "writing the superblock: %s", strerrordesc_np(-rc));
	return 0;
}

/* Reads, checks, and raises the incarnation if writing is allowed. *sb counts from now on. */
static int superblock_load(struct rt_disk *disk, const struct store_options *o,
	struct disk_superblock *sb, struct weft_error *err)
{
	struct rt_disk_info info;
	struct copies c;
	uint8_t *memory;
	int chosen, rc;

	rt_disk_info(disk, &info);
	if (info.size_bytes < 2 * PAGE_SIZE)
		return weft_error(err, -EMEDIUMTYPE,
			"not a weft store: it has only %llu bytes",
			(unsigned long long)info.size_bytes);
	if (!o->read_only && info.read_only)
		return weft_error(
			err, -EROFS, "the device is read-only: mount with -o ro");
	memory = rt_alloc_pages(2 * PAGE_SIZE);
	if (!memory)
		return weft_error(err, -ENOMEM, "opening the store: out of memory");
	for (unsigned i = 0; i < 2; i++)
		c.sb[i] = (struct disk_superblock *)(memory + i * PAGE_SIZE);
	copies_read(&c, disk, info.size_bytes);
	chosen = copies_choose(&c, err);
	rc = chosen < 0 ? chosen
			: superblock_check(
				  c.sb[chosen], c.place[1], info.size_bytes, o, err);
	if (!rc) {
		memcpy(sb, c.sb[chosen], sizeof(*sb));
		if (!o->read_only)
			rc = incarnation_raise(disk, &c, (unsigned)chosen, o->machine, sb, err);
	}
	rt_free_pages(memory, 2 * PAGE_SIZE);
	return rc;
}

int store_assemble(struct store **out, struct rt_disk *disk,
	const struct disk_superblock *sb, const struct store_options *o,
	struct weft_error *err)
{
	struct store *s = rt_alloc(sizeof(*s));
	struct rt_disk_info info;
	int rc;

	if (!s)
		return weft_error(err, -ENOMEM, "opening the store: out of memory");
	rt_disk_info(disk, &info);
	s->disk = disk;
	s->sb = *sb;
	s->read_only = o->read_only;
	s->tears = MIN(info.atomic_write_bytes, sb->atomic_write_bytes) < PAGE_SIZE;
	rc = checksummer_open(&s->checksums, sb->checksum_kind, sb->key);
	if (rc) {
		weft_error(err, rc, "the cryptographic library cannot compute %s: %s",
			checksum_name(sb->checksum_kind), strerrordesc_np(-rc));
		goto fail;
	}
	rc = table_init(s, o->table_cache_bytes);
	if (rc) {
		weft_error(err, rc, "opening the store: out of memory");
		goto fail;
	}
	*out = s;
	return 0;
fail:
	store_close(s);
	return rc;
}

int store_open(struct store **out, struct rt_disk *disk, const struct store_options *o,
	struct weft_error *err)
{
	struct disk_superblock sb;
	int rc = superblock_load(disk, o, &sb, err);

	return rc ? rc : store_assemble(out, disk, &sb, o, err);
}

void store_close(struct store *s)
{
	if (!s)
		return;
	table_destroy(s);
	checksummer_close(s->checksums);
	rt_free(s);
}

bool store_superblock_whole(const struct disk_superblock *sb)
{
	return sb->magic == DISK_MAGIC_SUPER && sb->checksum == superblock_sum(sb) &&
	       sb->disk_version == DISK_VERSION && layout_check(sb, NULL) == 0;
}

void store_superblock_seal(struct disk_superblock *sb)
{
	sb->checksum = superblock_sum(sb);
}

const struct disk_superblock *store_superblock(struct store *s)
{
	return &s->sb;
}

/* The second copy first, as at a start: one of them is whole at every moment. */
static int copies_write(struct store *s, struct disk_superblock *sb)
{
	int rc;

	sb->checksum = superblock_sum(sb);
	rc = superblock_write(s->disk, layout_second_superblock(sb), sb);
	return rc ? rc : superblock_write(s->disk, 0, sb);
}

/* Notes the state of a node. */
static int node_note(struct store *s, unsigned node, uint64_t left, uint64_t known)
{
	struct disk_superblock *sb;
	int rc = 0;

	WEFT_ASSERT(!s->read_only && node <= DISK_NODE_MAX);
	rt_mutex_lock(&s->sb_lock);
	sb = rt_alloc(sizeof(*sb));
	if (!sb)
		rc = -ENOMEM;
	known |= s->sb.known;
	if (rc || (s->sb.left[node] == left && s->sb.known == known))
		goto out_unlock;
	s->sb.generation++; /* where a write fails, too: no two copies of one differ */
	*sb = s->sb;
	sb->left[node] = left;
	sb->known = known;
	rc = copies_write(s, sb);
	if (!rc) {
		s->sb.left[node] = left;
		s->sb.known = known;
	}
out_unlock:
	rt_mutex_unlock(&s->sb_lock);
	rt_free(sb);
	return rc;
}

void store_scrub_get(struct store *s, struct disk_scrub *out)
{
	rt_mutex_lock(&s->sb_lock);
	*out = s->sb.scrub;
	rt_mutex_unlock(&s->sb_lock);
	if (out->state > DISK_SCRUB_ENDED || out->next > s->sb.page_count)
		*out = (struct disk_scrub){0};
}

int store_scrub_set(struct store *s, const struct disk_scrub *scrub)
{
	struct disk_superblock *sb;
	uint64_t incarnation;
	int rc;

	if (s->read_only)
		return -EROFS;
	rc = store_incarnation_read(s, &incarnation);
	if (!rc && incarnation > s->sb.incarnation)
		rc = -ESTALE;
	if (rc)
		return rc;
	sb = rt_alloc(sizeof(*sb));
	if (!sb)
		return -ENOMEM;
	rt_mutex_lock(&s->sb_lock);
	s->sb.generation++; /* where a write fails, too: no two copies of one differ */
	*sb = s->sb;
	sb->scrub = *scrub;
	rc = copies_write(s, sb);
	if (!rc)
		s->sb.scrub = *scrub;
	rt_mutex_unlock(&s->sb_lock);
	rt_free(sb);
	return rc;
}

int store_left_set(struct store *s, unsigned node, uint64_t incarnation)
{
	return node_note(s, node, incarnation, 0);
}

int store_dead_set(struct store *s, unsigned node, uint64_t incarnation)
{
	return node_note(s, node, incarnation | DISK_LEFT_DEAD, 0);
}

/* A client is the home of no page. */
int store_node_met(struct store *s, unsigned node)
{
	return node_note(s, node, 0, disk_shard_client(s->sb.shard) ? 0 : 1ull << node);
}

bool store_node_known(struct store *s, unsigned node)
{
	bool known;

	rt_mutex_lock(&s->sb_lock);
	known = disk_shard_client(s->sb.shard) || s->sb.known >> node & 1;
	rt_mutex_unlock(&s->sb_lock);
	return known;
}

static uint64_t left_read(struct store *s, unsigned node)
{
	uint64_t left;

	rt_mutex_lock(&s->sb_lock);
	left = s->sb.left[node];
	rt_mutex_unlock(&s->sb_lock);
	return left;
}

uint64_t store_left(struct store *s, unsigned node)
{
	uint64_t left = left_read(s, node);

	return left & DISK_LEFT_DEAD ? 0 : left;
}

uint64_t store_dead(struct store *s, unsigned node)
{
	uint64_t left = left_read(s, node);

	return left & DISK_LEFT_DEAD ? left & ~DISK_LEFT_DEAD : 0;
}

int store_incarnation_read(struct store *s, uint64_t *incarnation)
{
	const uint64_t place[2] = {0, layout_second_superblock(&s->sb)};
	struct disk_superblock *sb = rt_alloc_pages(sizeof(*sb));
	int rc = -ENOMEM;

	*incarnation = 0;
	for (unsigned i = 0; sb && i < 2; i++) {
		if (copy_read(s->disk, place[i], sb) != COPY_WHOLE ||
			memcmp(sb->store_uuid, s->sb.store_uuid,
				sizeof(sb->store_uuid)) != 0)
			continue;
		*incarnation = MAX(*incarnation, sb->incarnation);
	}
	if (sb)
		rc = *incarnation ? 0 : -EIO;
	if (sb)
		rt_free_pages(sb, sizeof(*sb));
	return rc;
}

struct rt_disk *store_disk(struct store *s)
{
	return s->disk;
}

bool store_writes_tear(struct store *s)
{
	return s->tears;
}

struct store_counters *store_counters(struct store *s)
{
	return &s->counters;
}
