/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The operations as the source of fs/kcache: attributes, files and places of directories. And the
 * calls whose answers the kernel keeps.
 */
#include "fs/ops/data_internal.h"

/* ---- what fs/kcache looks up -------------------------------------------------------------- */

static int source_attr(
	void *owner, struct tree_kcopy *e, uint64_t ino, struct ops_attr *out)
{
	return inode_attr_kcached(owner, e, ino, out);
}

/* The name under which a directory has another one. */
struct sought {
	uint64_t ino;
	char *name;
	size_t len;
};

static int sought_name(void *arg, const struct ops_dirent *e)
{
	struct sought *s = (struct sought *)arg;

	if (e->ino != s->ino || e->name_len > DISK_NAME_MAX)
		return 0;
	s->len = e->name_len;
	memcpy(s->name, e->name, e->name_len);
	return 1;
}

static int source_locate(
	void *owner, uint64_t ino, struct ops_attr *parent, char *name, size_t *len)
{
	struct sought s = {.ino = ino, .name = name};
	struct fs *fs = owner;
	struct ops_attr attr;
	int rc = inode_attr(fs, ino, &attr);

	if (rc)
		return rc;
	if (attr.inode.nlink == 0 || !S_ISDIR(attr.inode.mode))
		return -ENOENT;
	rc = inode_attr(fs, attr.inode.parent, parent);
	if (rc)
		return rc;
	rc = ops_readdir(fs, parent->ino, 2 /* behind ".." */, 0, sought_name, &s);
	*len = s.len;
	return rc ? rc : s.len ? 0 : -EAGAIN;
}

static uint64_t source_name_hash(void *owner, struct ops_name name)
{
	return name_hash(owner, name);
}

static struct kcache_file *file_of(struct inode_state *st)
{
	return st ? &st->kcache : NULL;
}

static struct kcache_file *source_find(void *owner, uint64_t ino)
{
	return file_of(state_find(owner, ino));
}

static void source_put(void *owner, struct kcache_file *file)
{
	state_put(owner, (struct inode_state *)((char *)file -
						offsetof(struct inode_state, kcache)));
}

static struct kcache_file *source_peek(void *owner, uint64_t ino, struct rt_mutex **lock)
{
	return file_of(state_open_peek(owner, ino, lock));
}

static const struct kcache_source source = {
	.attr = source_attr,
	.locate = source_locate,
	.name_hash = source_name_hash,
	.find = source_find,
	.put = source_put,
	.peek = source_peek,
};

/* ---- the kernel comes and goes ------------------------------------------------------------ */

void kept_open(struct fs *fs)
{
	fs->sizes.source = &source;
	fs->sizes.owner = fs;
	fs->sizes.shared = fs_has_peers(fs);
}

int fs_kernel_start(struct fs *fs, const struct kcache_ops *ops, void *owner,
	const struct kcache_noted *noted)
{
	const struct kcache_config config = {
		.cache = fs->volume->cache,
		.tree = fs->tree,
		.ops = ops,
		.ops_owner = owner,
		.source = &source,
		.source_owner = fs,
		.sizes = &fs->sizes,
		.noted = noted,
		.maps_alone = fs_maps_alone(fs),
		.maps_local = fs->options.mmap == OPS_MMAP_LOCAL,
	};

	WEFT_ASSERT(fs_has_peers(fs));
	return kcache_start(&fs->kcache, &config);
}

void fs_kernel_stop(struct fs *fs)
{
	kcache_stop(&fs->kcache);
}

struct kcache *fs_kcache(const struct fs *fs)
{
	return fs->kcache;
}

struct kcache_sizes *fs_sizes(struct fs *fs)
{
	return &fs->sizes;
}

/* ---- calls whose answers the kernel keeps ------------------------------------------------- */

int ops_getattr_kept(
	struct fs *fs, uint64_t ino, uint32_t thread, struct ops_attr *out, bool *keeps)
{
	ops_count(fs, OPS_CALL_GETATTR);
	*keeps = false;
	return fs->kcache ? kcache_getattr(fs->kcache, ino, thread, out, keeps)
			  : inode_attr(fs, ino, out);
}

bool ops_renamed_kept(struct fs *fs, uint64_t dir, struct ops_name name, uint64_t ino)
{
	struct tree_kcopy e = {.kinds = KCACHE_NAMES};
	struct entry found;

	return fs->kcache && !name_check(name) &&
	       entry_get_kcached(fs, &e, dir, name, &found) == 0 && e.kcached &&
	       found.ino == ino;
}

void ops_opened_kept(struct fs *fs, struct ops_file *file, uint32_t thread)
{
	kcache_opened(fs->kcache, file->state->ino, thread);
}

void ops_passes_pages(struct fs *fs, struct ops_file *file)
{
	kcache_sizes_pass(&fs->sizes, &file->state->kcache);
}
