/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Opens and closes the operations on a volume, and runs their transactions.
 *
 * Keeps: an error of an operation is a conclusion from a state that stood (OPS_VERDICT). Restarts
 * are counted and bounded. No transaction begins on a volume that must not be written.
 */
#include <errno.h>

#include "fs/ops/ops_internal.h"

/* A transaction that has started over a few times takes its leaves in order and succeeds. This
 * limit is therefore reached only if the engine is broken. */
#define RESTARTS_MAX (1u << 24)

int fs_check_writable(struct fs *fs)
{
	if (fs->volume->read_only || volume_failed(fs->volume))
		return -EROFS;
	return 0;
}

int ops_run(
	struct fs *fs, unsigned flags, ops_body body, void *arg, struct log_position *pos)
{
	struct txn *x;
	int rc;

	rc = fs_check_writable(fs);
	if (rc)
		return rc;
	rc = txn_begin(fs->tree, flags & OPS_RUN_PRIVILEGED, &x);
	if (rc)
		return rc;
	if (flags & OPS_RUN_LETS_GO)
		txn_lets_go(x);
	if (flags & OPS_RUN_REACHED)
		txn_only_reached(x);
	for (unsigned restarts = 0;; restarts++) {
		int said = body(x, arg);

		rc = said;
		if (said >= 0) {
			rc = txn_commit(x, pos);
			if (rc == 0)
				rc = -said;
		}
		if (rc != -EAGAIN)
			break;
		if (restarts == RESTARTS_MAX) {
			weft_log(3, "a transaction was started over %u times; given up",
				restarts);
			rc = -EIO;
			break;
		}
		atomic_fetch_add_explicit(
			&fs->counters.restarts, 1, memory_order_relaxed);
		txn_restart(x);
	}
	txn_end(x);
	return rc;
}

int ops_run_names(struct fs *fs, unsigned flags, ops_body body, void *arg)
{
	int rc = ops_run(fs, flags, body, arg, NULL);

	if (space_exhausted(fs->volume->space, rc) && orphans_settle(fs, true))
		rc = ops_run(fs, flags, body, arg, NULL);
	if (rc == 0 && atomic_load_explicit(&fs->names_sync, memory_order_relaxed))
		rc = log_flush(fs->volume->log, log_end(fs->volume->log));
	return rc;
}

void fs_reconfigure(struct fs *fs, const struct ops_options *o)
{
	atomic_store_explicit(&fs->atime, o->atime, memory_order_relaxed);
	atomic_store_explicit(&fs->nodiratime, o->nodiratime, memory_order_relaxed);
	atomic_store_explicit(&fs->names_sync, o->names_sync, memory_order_relaxed);
}

/* Called when other nodes are short of room. */
static bool give_back(void *owner)
{
	struct fs *fs = owner;

	ahead_release_all(fs);
	return orphans_hurry(fs);
}

int fs_open(struct fs **out, struct volume *v, const struct ops_options *o,
	struct weft_error *err)
{
	struct fs *fs;
	int rc;

	fs = rt_alloc(sizeof(*fs));
	if (!fs)
		return weft_error(err, -ENOMEM, "opening the filesystem: out of memory");
	fs->volume = v;
	fs->tree = v->tree;
	fs->options = *o;
	fs_reconfigure(fs, o);
	if (fs->options.open_files_max == 0)
		fs->options.open_files_max = 1u << 20;
	fs->hash_mask = UINT64_MAX;
	kept_open(fs);

	rc = file_table_open(fs);
	if (rc) {
		weft_error(err, rc, "opening the filesystem: no memory for %u open files",
			fs->options.open_files_max);
		goto out_free;
	}
	rc = orphans_open(fs);
	if (rc == 0)
		rc = elsewhere_open(fs);
	if (rc) {
		weft_error(
			err, rc, "opening the filesystem: no memory for unlinked files");
		goto out_orphans;
	}
	if (!v->read_only && !fs->elsewhere) {
		rc = reclaim_recover(fs, err);
		if (rc)
			goto out_orphans;
	}
	rc = locks_open(fs);
	if (rc) {
		weft_error(err, rc, "opening the filesystem: no memory for locks");
		goto out_orphans;
	}
	rc = sync_open(fs);
	if (rc) {
		weft_error(err, rc, "opening the filesystem: cannot start a task");
		goto out_locks;
	}
	rc = atimes_open(fs);
	if (rc) {
		weft_error(err, rc, "opening the filesystem: no memory for access times");
		goto out_sync;
	}
	space_give_back(v->space, give_back, fs);
	if (fs->elsewhere)
		orphans_recover(fs);
	*out = fs;
	return 0;

out_sync:
	sync_close(fs);
out_locks:
	locks_close(fs);
out_orphans:
	orphans_stop(fs);
	elsewhere_serve(fs, false);
	file_table_close(fs);
	elsewhere_close(fs);
	orphans_close(fs);
out_free:
	rt_free(fs);
	return rc;
}

void fs_close(struct fs *fs)
{
	space_give_back(fs->volume->space, NULL, NULL);
	atimes_close(fs);
	locks_close(fs);
	sync_close(fs);
	borrowed_close(fs);
	orphans_stop(fs);
	elsewhere_serve(fs, false);
	file_table_close(fs);
	elsewhere_close(fs);
	orphans_close(fs);
	rt_free(fs);
}

bool fs_sets_each_atime(struct fs *fs)
{
	return atomic_load_explicit(&fs->atime, memory_order_relaxed) == OPS_STRICTATIME;
}

bool fs_opens_hidden(struct fs *fs)
{
	return fs_borrowed(fs) != NULL;
}

struct volume *fs_volume(struct fs *fs)
{
	return fs->volume;
}

struct ops_counters *ops_counters(struct fs *fs)
{
	return &fs->counters;
}

/* Time for which answers of other nodes about their room are used. */
#define STATFS_AGE_NS 1000000000ull

/* An inode and one name of it take 200 to 256 bytes of the tree. */
#define INODES_A_PAGE (PAGE_SIZE / 256)

/* The volume has no table of inodes, and no count of them. The number for which all of its pages
 * suffice is f_files. The number for which the free pages suffice is f_ffree. */
int ops_statfs(struct fs *fs, struct statvfs *out)
{
	struct space_stat stat;
	uint64_t fsid;

	ops_count(fs, OPS_CALL_STATFS);
	borrowed_settle(fs);
	(void)orphans_settle(fs, false);
	space_stat_all(fs->volume->space, STATFS_AGE_NS, &stat);
	memcpy(&fsid, fs->volume->catalog.volume_uuid, sizeof(fsid));
	*out = (struct statvfs){
		.f_bsize = PAGE_SIZE,
		.f_frsize = PAGE_SIZE,
		.f_blocks = stat.total_pages,
		.f_bfree = stat.free_pages,
		.f_bavail = stat.available_pages,
		.f_files = stat.total_pages * INODES_A_PAGE,
		.f_ffree = stat.available_pages * INODES_A_PAGE,
		.f_favail = stat.available_pages * INODES_A_PAGE,
		.f_fsid = fsid,
		.f_flag = fs_check_writable(fs) ? ST_RDONLY : 0,
		.f_namemax = DISK_NAME_MAX,
	};
	return 0;
}
