/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handlers for open files. fi->fh is the struct ops_file. If opens are hidden (docs/design.md,
 * "Hidden opens") it is 0, and each request borrows a handle of the inode.
 *
 * The open ignores O_APPEND, and each write names it, because fcntl can change it. A dirty page of
 * a mapping, written back through such a file, has its own offset.
 *
 * O_DIRECT needs no code here. The kernel then reads and writes past its cache and keeps the two
 * coherent itself. FOPEN_DIRECT_IO did not do that before Linux 6.6. It is used on volumes of
 * several nodes: the shim lets such writes run side by side.
 */
#include <errno.h>
#include <fcntl.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "fs/aside.h"
#include "fs/handlers.h"
#include "fs/mount.h"
#include "fs/shim.h"

/* Limit of one copy_file_range request. The caller continues with the next one and can be
 * interrupted. */
#define COPY_MAX (64u << 20)

/* Gets the handle of a request. If opens are hidden, requests have none: it borrows one. Call
 * file_done after the answer. Returns 0 or a negative errno. */
static int file_for(struct session *s, fuse_ino_t ino, const struct fuse_file_info *fi,
	struct ops_file **out)
{
	*out = (struct ops_file *)(uintptr_t)fi->fh;
	if (*out)
		return 0;
	if (!fs_opens_hidden(session_fs(s)))
		return -EBADF;
	return gone_is_stale(ops_borrow(session_fs(s), ino, out));
}

static void file_done(struct session *s, fuse_ino_t ino, const struct fuse_file_info *fi,
	struct ops_file *file)
{
	if (!fi->fh)
		ops_give_back(session_fs(s), ino, file);
}

/* ---- opening --------------------------------------------------------------------- */

/* For volumes of several nodes. Reads through a handle that cannot write are cached, unless the
 * file may also be mapped for stores. Those pages would have to be exclusive, and no holes. */
static bool may_cache(
	struct session *s, const struct fuse_file_info *fi, struct ops_file *file)
{
	if (!session_keeps(s))
		return false;
	return (fi->flags & O_ACCMODE) == O_RDONLY &&
	       !(fs_maps_alone(session_fs(s)) && ops_file_mappable(file));
}

/* On one node the kernel caches reads and writes of any handle, and close() makes no request. On
 * several nodes it caches if may_cache allows it, and close() frees locks. */
static void file_reply_flags(
	fuse_req_t req, struct fuse_file_info *fi, struct ops_file *file)
{
	struct session *s = fuse_req_userdata(req);
	bool caches = !session_shared(s) || may_cache(s, fi, file);

	fi->fh = (uintptr_t)file;
	fi->keep_cache = caches;
	fi->direct_io = !caches;
	fi->noflush = !ops_locks_shared(session_fs(s));
}

/*
 * Drops the kernel's attributes. The kernel does not notice that a write cleared setuid or setgid
 * bits, and could use the old ones in an exec. Nor does it notice that opening counts as an access.
 * Never blocks.
 */
static void forget_attributes(fuse_req_t req, fuse_ino_t ino)
{
	struct session *s = fuse_req_userdata(req);

	fuse_lowlevel_notify_inval_inode(session_fuse(s), ino, -1, 0);
}

/* Each write names whether it appends. */
static int opened_flags(int flags)
{
	return (flags & ~O_APPEND) | (flags & O_APPEND ? OPS_OPEN_APPENDS : 0);
}

void handle_open(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	struct fs *fs = request_fs(req);
	struct ops_caller caller = request_caller(req);
	bool changes = (fi->flags & O_TRUNC) || (fi->flags & O_ACCMODE) != O_RDONLY;
	struct ops_file *file;
	struct ops_attr attr;
	int rc = 0;

	if (fs_opens_hidden(fs)) { /* the kernel sends no more opens, and no releases */
		fuse_reply_err(req, ENOSYS);
		return;
	}
	caller.keeps_setid = !shim_request_kills_setid();
	if (changes)
		rc = request_may_change(req);
	if (rc == 0)
		rc = ops_open(fs, ino, &caller, opened_flags(fi->flags), &file, &attr);
	if (rc < 0) {
		fuse_reply_err(req, -gone_is_stale(rc));
		return;
	}
	file_reply_flags(req, fi, file);
	if (ops_file_accessed(file) || ops_blocks_hidden(fs, &attr))
		forget_attributes(req, ino);
	ops_opened_kept(fs, file, (uint32_t)fuse_req_ctx(req)->pid);
	if (fuse_reply_open(req, fi) < 0)
		ops_close(fs, file);
}

void handle_create(fuse_req_t req, fuse_ino_t dir, const char *name, mode_t mode,
	struct fuse_file_info *fi)
{
	struct fs *fs = request_fs(req);
	struct ops_caller caller = request_caller(req);
	struct fuse_entry_param entry;
	struct ops_file *file;
	struct kcache_named named;
	struct ops_attr attr;
	double name_timeout;
	bool kept, taken;
	int rc;

	if (fs_opens_hidden(fs)) { /* no release would follow: the kernel uses MKNOD */
		fuse_reply_err(req, ENOSYS);
		return;
	}
	caller.keeps_setid = !shim_request_kills_setid();
	rc = request_may_change(req);
	if (rc == 0)
		rc = ops_create(fs, dir, name_of(name), &caller, mode,
			opened_flags(fi->flags), &file, &attr);
	if (rc < 0) {
		fuse_reply_err(req, -rc);
		return;
	}
	name_timeout = new_name_timeout_s(fuse_req_userdata(req), dir, name, attr.ino);
	file_reply_flags(req, fi, file);
	kept = ops_file_made(file) && made_attributes_kept(req, &attr, &named);
	attr_to_entry(req, &attr, &entry);
	entry.entry_timeout = name_timeout;
	if (kept)
		entry.attr_timeout = KEPT_S;
	else
		told_in_passing(req, &attr);
	ops_opened_kept(fs, file, (uint32_t)fuse_req_ctx(req)->pid);
	taken = fuse_reply_create(req, &entry, fi) == 0;
	if (kept)
		kcache_named_told(fs_kcache(fs), &named, taken);
	else if (!taken)
		kcache_resized(fs_kcache(fs), attr.ino);
	if (!taken)
		ops_close(fs, file);
}

void handle_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	if (fi->fh)
		ops_close(request_fs(req), (struct ops_file *)(uintptr_t)fi->fh);
	fuse_reply_err(req, 0);
}

/* ---- reading --------------------------------------------------------------------- */

static void count_read(struct session *s, size_t bytes)
{
	atomic_fetch_add_explicit(
		&session_counters(s)->bytes_read, bytes, memory_order_relaxed);
}

struct read_reply {
	fuse_req_t req;
	bool sent;
};

/* Runs with the frames latched: the reply leaves straight from them. Never waits for weft. */
static int read_send(void *arg, const struct iovec *iov, unsigned iov_count, size_t total)
{
	struct read_reply *r = arg;

	r->sent = true;
	fuse_reply_iov(r->req, iov, (int)iov_count);
	return (int)total;
}

struct read_copy {
	char *to;
};

static int read_collect(
	void *arg, const struct iovec *iov, unsigned iov_count, size_t total)
{
	struct read_copy *c = arg;

	for (unsigned i = 0; i < iov_count; i++) {
		memcpy(c->to, iov[i].iov_base, iov[i].iov_len);
		c->to += iov[i].iov_len;
	}
	return (int)total;
}

/* Collects the parts, because the kernel takes a short reply for the end of the file. If one part
 * fails, all fail. */
static void read_in_parts(fuse_req_t req, struct ops_file *file, uint64_t offset,
	size_t size, size_t part_max, bool accesses)
{
	struct fs *fs = request_fs(req);
	char *buf = rt_alloc_pages(ALIGN_UP(size, (size_t)PAGE_SIZE));
	size_t done = 0;
	int rc = 0;

	if (!buf) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	while (done < size) {
		size_t in_page = (offset + done) % PAGE_SIZE;
		size_t part = MIN(size - done, part_max - in_page);
		struct read_copy c = {.to = buf + done};

		rc = ops_read_borrowed(
			fs, file, offset + done, part, accesses, read_collect, &c);
		if (rc <= 0)
			break;
		done += (size_t)rc;
	}
	count_read(fuse_req_userdata(req), done);
	if (rc < 0)
		fuse_reply_err(req, -rc);
	else
		fuse_reply_buf(req, buf, done);
	rt_free_pages(buf, ALIGN_UP(size, (size_t)PAGE_SIZE));
}

static void read_from(fuse_req_t req, struct ops_file *file, size_t size, off_t offset,
	const struct fuse_file_info *fi)
{
	struct session *s = fuse_req_userdata(req);
	struct fs *fs = session_fs(s);
	size_t part_max = (size_t)cache_batch_max(fs_volume(fs)->cache) * PAGE_SIZE;
	struct read_reply reply = {.req = req};
	bool kept = session_keeps(s) && !shim_request_is_direct();
	bool accesses = !(fi->flags & O_NOATIME);
	int rc;

	if (!session_shared(s) && !shim_request_is_direct())
		ops_file_paged(file);
	if (offset % PAGE_SIZE + size > part_max) {
		read_in_parts(req, file, (uint64_t)offset, size, part_max, accesses);
		return;
	}
	if (kept)
		rc = ops_read_kept(fs, file, (uint64_t)offset, size, read_send, &reply);
	else
		rc = ops_read_borrowed(
			fs, file, (uint64_t)offset, size, accesses, read_send, &reply);
	if (rc > 0)
		count_read(s, (size_t)rc);
	if (!reply.sent)
		fuse_reply_err(req, rc < 0 ? -rc : EIO);
}

void handle_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
	struct fuse_file_info *fi)
{
	struct session *s = fuse_req_userdata(req);
	struct ops_file *file;
	int rc = file_for(s, ino, fi, &file);

	if (rc < 0) {
		fuse_reply_err(req, -rc);
		return;
	}
	read_from(req, file, size, offset, fi);
	file_done(s, ino, fi, file);
}

/* ---- writing --------------------------------------------------------------------- */

static bool has_setid_bits(struct fs *fs, uint64_t ino)
{
	struct ops_attr attr;

	return ops_getattr(fs, ino, &attr) == 0 &&
	       (attr.inode.mode & (S_ISUID | S_ISGID));
}

/* The WRITE that is being served. Another task may answer it before its end. */
struct write_answer {
	struct session *s;
	uint64_t unique;
	size_t size;
};

static void write_answer(void *arg)
{
	const struct write_answer *a = arg;
	struct fuse_write_out out = {.size = (uint32_t)a->size};

	shim_reply(a->s, a->unique, 0, &out, sizeof(out));
}

/*
 * Takes stores of a mapping from the kernel, perhaps because another node wants the page. The WRITE
 * is then answered before another node is waited for. Bytes without a page in the file are dropped.
 * (The kernel refuses a second answer.)
 */
static void write_stores(fuse_req_t req, fuse_ino_t ino, struct ops_file *file,
	const char *buf, size_t size, off_t offset)
{
	struct session *s = fuse_req_userdata(req);
	struct fs *fs = session_fs(s);
	struct write_answer early = {s, shim_request_unique(), size};
	int64_t rc;

	if (fs_maps_alone(fs))
		rc = ops_store(fs, file, (uint64_t)offset, buf, size);
	else
		rc = ops_store_local(
			fs, file, (uint64_t)offset, buf, size, write_answer, &early);
	if (rc < 0) {
		fuse_reply_err(req, (int)-rc);
		return;
	}
	atomic_fetch_add_explicit(
		&session_counters(s)->bytes_written, size, memory_order_relaxed);
	fuse_reply_write(req, size);
	ops_stored(fs, ino);
}

struct write_job {
	struct aside_job job;
	fuse_req_t req; /* NULL: answered */
	uint64_t ino, first, end;
	uint64_t given;
	bool all;
	size_t done;
};

static void write_run(struct session *s, struct aside_job *job)
{
	struct write_job *j = (struct write_job *)job;

	if (j->all)
		(void)aside_fetch(s, j->ino, 0, UINT64_MAX);
	else
		(void)aside_fetch(s, j->ino, j->first, j->end);
	if (j->all)
		ops_pages_gone(session_fs(s), j->ino, j->given);
	if (j->req)
		fuse_reply_write(j->req, j->done);
	rt_free(j);
}

/*
 * Called after bytes were written past the kernel's pages. The kernel dropped those of the range
 * when it sent the request. For a synchronous request it does so again after the answer, for an
 * asynchronous one it does not. Pages that it has read or written in between are dropped before the
 * answer. If all handles are for direct I/O, as far as known, all pages of the file are dropped,
 * once. A request of the ring that may not wait is answered first.
 */
static bool write_aside(struct session *s, fuse_req_t req, fuse_ino_t ino,
	struct ops_file *file, off_t offset, size_t done)
{
	struct write_job *j;
	uint64_t given;
	bool alone;

	if (session_shared(s) || done == 0 || !ops_file_has_pages(file, &given, &alone))
		return false;
	j = rt_alloc(sizeof(*j));
	if (!j)
		return false;
	*j = (struct write_job){.job.run = write_run,
		.req = req,
		.given = given,
		.all = alone,
		.ino = ino,
		.first = (uint64_t)offset / PAGE_SIZE,
		.end = DIV_UP((uint64_t)offset + done, (uint64_t)PAGE_SIZE),
		.done = done};
	if (aside_run(s, &j->job))
		return true;
	j->req = NULL;
	if (!aside_queue(s, &j->job))
		rt_free(j);
	return false;
}

/* Returns true if the request has the largest size: write(2) may have more bytes. A request from
 * memory that begins within a page is shorter by that. */
static bool write_is_full(size_t size)
{
	return size > FUSE_IO_MAX - PAGE_SIZE;
}

/*
 * Returns true if the bytes were stored through a mapping while that was allowed. They are then
 * written although a flag of the file now forbids it. If opens are hidden, no open after the flag
 * was refused. But bytes from before were fetched before the flag was set (handlers_flags.c).
 */
static bool may_be_older_than_flags(struct session *s)
{
	return shim_request_is_writeback() && !fs_opens_hidden(session_fs(s));
}

static void write_to(fuse_req_t req, fuse_ino_t ino, struct ops_file *file,
	const char *buf, size_t size, off_t offset, const struct fuse_file_info *fi)
{
	struct session *s = fuse_req_userdata(req);
	struct fs *fs = session_fs(s);
	struct ops_caller caller = request_caller(req);
	bool kills = shim_request_kills_setid();
	bool appends = (fi->flags & O_APPEND) && !shim_request_is_writeback();
	unsigned append = 0;
	bool direct = shim_request_is_direct();
	bool had_bits;
	int64_t rc;

	if (!session_shared(s) && !direct)
		ops_file_paged(file);
	caller.keeps_setid = !kills;
	caller.stored = may_be_older_than_flags(s);
	had_bits = kills && has_setid_bits(fs, ino);
	if (appends)
		append = OPS_APPEND | (write_is_full(size) ? OPS_APPEND_MORE : 0);
	if (fi->flags & O_DIRECT)
		ops_passes_pages(fs, file);
	rc = ops_write(fs, file, &caller, (uint64_t)offset, buf, size, append);
	if (had_bits)
		forget_attributes(req, ino);
	if (rc < 0) {
		fuse_reply_err(req, (int)-rc);
		return;
	}
	atomic_fetch_add_explicit(
		&session_counters(s)->bytes_written, (uint64_t)rc, memory_order_relaxed);
	if (!direct || !write_aside(s, req, ino, file, offset, (size_t)rc))
		fuse_reply_write(req, (size_t)rc);
}

void handle_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size,
	off_t offset, struct fuse_file_info *fi)
{
	struct session *s = fuse_req_userdata(req);
	struct ops_file *file;
	int rc = request_may_change(req);

	if (rc == 0)
		rc = file_for(s, ino, fi, &file);
	if (rc < 0) {
		fuse_reply_err(req, -rc);
		return;
	}
	if (session_keeps(s) && shim_request_is_writeback())
		write_stores(req, ino, file, buf, size, offset);
	else
		write_to(req, ino, file, buf, size, offset, fi);
	file_done(s, ino, fi, file);
}

/* For files and directories. */
void handle_fsync(
	fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *fi)
{
	reply_status(req, ops_fsync(request_fs(req), ino, data_only != 0));
}

/* FALLOCATE and COPY_FILE_RANGE have no flag for setuid: only root's capability keeps it. */
static struct ops_caller caller_by_uid(fuse_req_t req, fuse_ino_t ino)
{
	struct ops_caller caller = request_caller(req);

	caller.keeps_setid =
		!has_setid_bits(request_fs(req), ino) || request_uid(req) == 0;
	return caller;
}

void handle_fallocate(fuse_req_t req, fuse_ino_t ino, int mode, off_t offset,
	off_t length, struct fuse_file_info *fi)
{
	struct session *s = fuse_req_userdata(req);
	struct ops_caller caller = caller_by_uid(req, ino);
	int rc = request_may_change(req);
	struct ops_file *file;
	bool had_bits;

	if (rc == 0 && (offset < 0 || length <= 0))
		rc = -EINVAL;
	if (rc == 0)
		rc = file_for(s, ino, fi, &file);
	if (rc < 0) {
		reply_status(req, rc);
		return;
	}
	had_bits = !caller.keeps_setid;
	rc = ops_fallocate(
		session_fs(s), file, &caller, mode, (uint64_t)offset, (uint64_t)length);
	if (had_bits)
		forget_attributes(req, ino);
	reply_status(req, rc);
	file_done(s, ino, fi, file);
}

static int64_t copy_between(struct session *s, const struct ops_caller *caller,
	struct ops_file *in, off_t offset_in, struct ops_file *out, off_t offset_out,
	size_t length)
{
	ops_passes_pages(session_fs(s), out);
	return ops_copy_range(session_fs(s), in, (uint64_t)offset_in, out,
		(uint64_t)offset_out, MIN(length, COPY_MAX), caller);
}

void handle_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t offset_in,
	struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t offset_out,
	struct fuse_file_info *fi_out, size_t length, int flags)
{
	struct session *s = fuse_req_userdata(req);
	struct ops_caller caller = caller_by_uid(req, ino_out);
	int64_t rc = request_may_change(req);
	struct ops_file *in, *out;
	bool had_bits;

	if (rc == 0 && (flags != 0 || offset_in < 0 || offset_out < 0))
		rc = -EINVAL;
	if (rc == 0)
		rc = file_for(s, ino_in, fi_in, &in);
	if (rc < 0) {
		fuse_reply_err(req, (int)-rc);
		return;
	}
	had_bits = !caller.keeps_setid;
	rc = file_for(s, ino_out, fi_out, &out);
	if (rc == 0) {
		rc = copy_between(s, &caller, in, offset_in, out, offset_out, length);
		file_done(s, ino_out, fi_out, out);
	}
	file_done(s, ino_in, fi_in, in);
	if (had_bits)
		forget_attributes(req, ino_out);
	if (rc < 0)
		fuse_reply_err(req, (int)-rc);
	else
		fuse_reply_write(req, (size_t)rc);
}

static void reply_lseek(fuse_req_t req, int64_t rc)
{
	if (rc < 0)
		fuse_reply_err(req, (int)-rc);
	else
		fuse_reply_lseek(req, rc);
}

struct lseek_job {
	struct aside_job job;
	fuse_req_t req;
	struct fuse_file_info fi; /* the file is open until the answer */
	fuse_ino_t ino;
	uint64_t offset;
	int whence;
};

static int64_t seek_with(struct session *s, fuse_ino_t ino,
	const struct fuse_file_info *fi, uint64_t offset, int whence, ops_fetch fetch)
{
	struct ops_file *file;
	int64_t rc = file_for(s, ino, fi, &file);

	if (rc < 0)
		return rc;
	rc = ops_lseek(session_fs(s), file, offset, whence, fetch, s);
	file_done(s, ino, fi, file);
	return rc;
}

static void lseek_run(struct session *s, struct aside_job *job)
{
	struct lseek_job *j = (struct lseek_job *)job;

	reply_lseek(
		j->req, seek_with(s, j->ino, &j->fi, j->offset, j->whence, aside_fetch));
	rt_free(j);
}

static int fetch_later(void *owner, uint64_t ino, uint64_t first, uint64_t end)
{
	return -EAGAIN;
}

/* Answers that the file has no holes, which is always allowed. */
static void lseek_all_data(fuse_req_t req, fuse_ino_t ino, off_t offset, int whence)
{
	struct ops_attr attr;
	int64_t rc = ops_getattr(request_fs(req), ino, &attr);

	if (rc == 0 && (uint64_t)offset >= attr.inode.size)
		rc = -ENXIO;
	else if (rc == 0)
		rc = whence == SEEK_DATA ? offset : (int64_t)attr.inode.size;
	reply_lseek(req, rc);
}

void handle_lseek(fuse_req_t req, fuse_ino_t ino, off_t offset, int whence,
	struct fuse_file_info *fi)
{
	struct session *s = fuse_req_userdata(req);
	struct lseek_job *j;
	int64_t rc;

	if (offset < 0)
		rc = -ENXIO;
	else if (whence != SEEK_DATA && whence != SEEK_HOLE)
		rc = -EINVAL;
	else
		rc = seek_with(s, ino, fi, (uint64_t)offset, whence, fetch_later);
	if (rc != -EAGAIN) {
		reply_lseek(req, rc);
		return;
	}
	j = rt_alloc(sizeof(*j));
	if (j)
		*j = (struct lseek_job){.job.run = lseek_run,
			.req = req,
			.fi = *fi,
			.ino = ino,
			.offset = (uint64_t)offset,
			.whence = whence};
	if (j && aside_run(s, &j->job))
		return;
	rt_free(j);
	lseek_all_data(req, ino, offset, whence);
}
