/* SPDX-License-Identifier: Apache-2.0 */
/* Handlers for names: lookup, creation, links, renames, directories. */
#include <dirent.h>
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/sysmacros.h>

#include "fs/handlers.h"
#include "fs/notify.h"

/* A READDIR reply. The kernel requests a page, newer ones more. */
#define DIRECTORY_REPLY_MAX (128u << 10)

void handle_lookup(fuse_req_t req, fuse_ino_t dir, const char *name)
{
	struct session *s = fuse_req_userdata(req);
	struct fuse_entry_param absent = {0};
	struct kcache_looked looked;
	struct ops_attr attr;
	int rc = ops_lookup_kept(session_fs(s), dir, name_of(name), &attr, &looked);

	if (rc != -ENOENT) {
		reply_found(req, rc, dir, name, &attr, &looked);
		return;
	}
	/* Inode 0 tells the kernel to remember that there is no such name. */
	absent.entry_timeout = absent_name_timeout_s(s, dir, name_of(name), &looked);
	fuse_reply_entry(req, &absent);
}

/* Replies with the inode that the name has now, unless another node has changed it since. `made`:
 * the request made the inode. */
static void reply_new(fuse_req_t req, int rc, fuse_ino_t dir, const char *name,
	struct ops_attr *attr, bool made)
{
	struct kcache_named named;
	double timeout = 0;

	if (rc == 0)
		timeout =
			new_name_timeout_s(fuse_req_userdata(req), dir, name, attr->ino);
	note_directory(fuse_req_userdata(req), rc, dir, name, attr, false, timeout > 0);
	if (rc == 0 && made && made_attributes_kept(req, attr, &named))
		reply_named(req, attr, timeout, &named);
	else
		reply_entry(req, rc, attr, timeout);
}

void handle_mknod(
	fuse_req_t req, fuse_ino_t dir, const char *name, mode_t mode, dev_t rdev)
{
	struct ops_caller caller = request_caller(req);
	struct ops_attr attr;
	int rc = request_may_change(req);

	if (rc == 0)
		rc = ops_mknod(request_fs(req), dir, name_of(name), &caller, mode,
			major(rdev), minor(rdev), &attr);
	reply_new(req, rc, dir, name, &attr, true);
}

void handle_mkdir(fuse_req_t req, fuse_ino_t dir, const char *name, mode_t mode)
{
	struct ops_caller caller = request_caller(req);
	struct ops_attr attr;
	int rc = request_may_change(req);

	if (rc == 0)
		rc = ops_mkdir(
			request_fs(req), dir, name_of(name), &caller, mode, &attr);
	reply_new(req, rc, dir, name, &attr, true);
}

void handle_symlink(fuse_req_t req, const char *target, fuse_ino_t dir, const char *name)
{
	struct ops_caller caller = request_caller(req);
	struct ops_attr attr;
	int rc = request_may_change(req);

	if (rc == 0)
		rc = ops_symlink(
			request_fs(req), dir, name_of(name), &caller, target, &attr);
	reply_new(req, rc, dir, name, &attr, true);
}

void handle_readlink(fuse_req_t req, fuse_ino_t ino)
{
	char target[PAGE_SIZE + 1];
	int rc = ops_readlink(request_fs(req), ino, target, PAGE_SIZE);

	if (rc < 0) {
		fuse_reply_err(req, -gone_is_stale(rc));
		return;
	}
	target[rc] = '\0';
	fuse_reply_readlink(req, target);
}

void handle_link(fuse_req_t req, fuse_ino_t ino, fuse_ino_t dir, const char *name)
{
	struct ops_attr attr;
	int rc = request_may_change(req);

	if (rc == 0)
		rc = ops_link(request_fs(req), ino, dir, name_of(name), &attr);
	reply_new(req, rc, dir, name, &attr, false);
}

void handle_unlink(fuse_req_t req, fuse_ino_t dir, const char *name)
{
	int rc = request_may_change(req);

	if (rc == 0)
		rc = ops_unlink(request_fs(req), dir, name_of(name));
	reply_status(req, rc);
}

void handle_rmdir(fuse_req_t req, fuse_ino_t dir, const char *name)
{
	int rc = request_may_change(req);

	if (rc == 0)
		rc = ops_rmdir(request_fs(req), dir, name_of(name));
	reply_status(req, rc);
}

/* A name that this kernel moves, with the time for which it may use the old one. */
struct moved_name {
	fuse_ino_t from, dir;
	const char *name;
	struct ops_attr attr; /* all 0: not known */
	struct kcache_gate gate;
};

/* Returns true if the name must expire after the answer. Waits. */
static bool moved_gate(struct session *s, struct moved_name *m)
{
	uint64_t ino = m->attr.ino;

	if (ino && !kcache_names_gated(fs_kcache(session_fs(s)), m->from) &&
		ops_renamed_kept(session_fs(s), m->dir, name_of(m->name), ino))
		return false;
	kcache_names_gate(fs_kcache(session_fs(s)), m->dir, &m->gate);
	return true;
}

static void reply_renamed(
	fuse_req_t req, struct session *s, struct moved_name *moved, unsigned count)
{
	bool gated[2] = {false, false};

	for (unsigned i = 0; i < count; i++) {
		gated[i] = moved_gate(s, &moved[i]);
		if (!gated[i]) /* otherwise it is unknown which one the kernel moves */
			note_directory(s, 0, moved[i].dir, moved[i].name, &moved[i].attr,
				true, true);
	}
	reply_status(req, 0);
	for (unsigned i = 0; i < count; i++)
		if (gated[i])
			kcache_names_expire(fs_kcache(session_fs(s)), &moved[i].gate,
				name_of(moved[i].name), moved[i].attr.ino);
}

void handle_rename(fuse_req_t req, fuse_ino_t dir, const char *name, fuse_ino_t new_dir,
	const char *new_name, unsigned flags)
{
	struct moved_name moved[] = {{.from = dir, .dir = new_dir, .name = new_name},
		{.from = new_dir, .dir = dir, .name = name}};
	struct ops_caller caller = request_caller(req);
	struct session *s = fuse_req_userdata(req);
	bool exchanges = flags & RENAME_EXCHANGE;
	int rc = request_may_change(req);

	if (rc == 0 && session_keeps(s)) {
		(void)ops_lookup(session_fs(s), dir, name_of(name), &moved[0].attr);
		if (exchanges)
			(void)ops_lookup(session_fs(s), new_dir, name_of(new_name),
				&moved[1].attr);
	}
	if (rc == 0)
		rc = ops_rename_as(request_fs(req), dir, name_of(name), new_dir,
			name_of(new_name), &caller, flags);
	if (rc == 0 && session_keeps(s))
		reply_renamed(req, s, moved, exchanges ? 2 : 1);
	else
		reply_status(req, rc);
}

/* ---- directories ----------------------------------------------------------- */

/*
 * Directories have no open state here. ENOSYS makes the kernel stop sending opens and cache their
 * listings. It drops a listing on a local change (it compares the directory's change counter). On a
 * volume of several nodes it caches none.
 */
void handle_opendir(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	if (!session_shared(fuse_req_userdata(req)))
		fuse_reply_err(req, ENOSYS);
	else
		fuse_reply_open(req, fi);
}

struct listing {
	fuse_req_t req;
	char *buf;
	size_t used;
	size_t cap;
	bool plus;
};

static int listing_add(void *arg, const struct ops_dirent *d)
{
	struct listing *l = arg;
	char name[DISK_NAME_MAX + 1];
	struct fuse_entry_param entry = {
		.attr.st_ino = d->ino,
		.attr.st_mode = (mode_t)DTTOIF(d->type),
	};
	size_t need;

	WEFT_ASSERT(d->name_len <= DISK_NAME_MAX);
	memcpy(name, d->name, d->name_len);
	name[d->name_len] = '\0';
	/* Without attributes (".", "..") entry.ino stays 0: the kernel looks no name up. */
	if (d->attr)
		attr_to_entry(l->req, d->attr, &entry);
	if (l->plus)
		need = fuse_add_direntry_plus(l->req, l->buf + l->used, l->cap - l->used,
			name, &entry, (off_t)d->cookie);
	else
		need = fuse_add_direntry(l->req, l->buf + l->used, l->cap - l->used, name,
			&entry.attr, (off_t)d->cookie);
	if (need > l->cap - l->used)
		return 1;
	l->used += need;
	return 0;
}

static void reply_listing(
	fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset, bool plus)
{
	struct listing l = {
		.req = req, .cap = MIN(size, DIRECTORY_REPLY_MAX), .plus = plus};
	int rc;

	l.buf = rt_alloc(l.cap);
	if (!l.buf) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	rc = ops_readdir(request_fs(req), ino, (uint64_t)offset,
		plus ? OPS_READDIR_PLUS : 0, listing_add, &l);
	if (rc < 0 && l.used == 0)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_buf(req, l.buf, l.used);
	rt_free(l.buf);
}

void handle_readdir(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
	struct fuse_file_info *fi)
{
	reply_listing(req, ino, size, offset, false);
}

void handle_readdirplus(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
	struct fuse_file_info *fi)
{
	reply_listing(req, ino, size, offset, true);
}
