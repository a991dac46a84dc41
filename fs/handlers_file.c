/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Handlers for open files. fi->fh is the struct ops_file.
 *
 * O_APPEND is left out of the open and taken from each write: fcntl can change it, and a
 * dirty page of a mapping, written back through such a file, has its own place.
 *
 * O_DIRECT needs nothing here: the kernel then reads and writes past its cache and keeps
 * the two coherent itself, which FOPEN_DIRECT_IO did not before Linux 6.6. That one is for
 * volumes that other nodes have too: the shim lets such writes run side by side.
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

/*
 * One copy_file_range request; the caller asks again for the rest and can be interrupted.
 */
#define COPY_MAX (64u << 20)

static struct ops_file *file_of(const struct fuse_file_info *fi)
{
	return (struct ops_file *)(uintptr_t)fi->fh;
}

/*
 * On a volume of several nodes. What is read through a handle that cannot write is cached, but
 * beside one that may be mapped to store into: the pages would have to be this node's alone,
 * and no holes.
 */
static bool may_cache(
	struct session *s, const struct fuse_file_info *fi, struct ops_file *file)
{
	if (!session_keeps(s))
		return false;
	return (fi->flags & O_ACCMODE) == O_RDONLY &&
	       !(fs_maps_alone(session_fs(s)) && ops_file_mappable(file));
}

/*
 * The kernel caches what it reads and writes through any handle, and close() asks nothing.
 * Where other nodes have the volume it caches what may_cache says, and close() frees locks.
 */
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
 * The kernel does not notice that a write cleared setuid or setgid bits, and could go by
 * the old ones in an exec; nor that opening counts as an access. Drops its attributes;
 * never blocks.
 */
static void forget_attributes(fuse_req_t req, fuse_ino_t ino)
{
	struct session *s = fuse_req_userdata(req);

	fuse_lowlevel_notify_inval_inode(session_fuse(s), ino, -1, 0);
}

/* Whether a write appends is said with the write. */
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
	int ret = 0;

	caller.keeps_setid = !shim_request_kills_setid();
	if (changes)
		ret = request_may_change(req);
	if (ret == 0)
		ret = ops_open(fs, ino, &caller, opened_flags(fi->flags), &file, &attr);
	if (ret < 0) {
		fuse_reply_err(req, -gone_is_stale(ret));
		return;
	}
	file_reply_flags(req, fi, file);
	if (ops_file_accessed(file) || ops_blocks_hidden(fs, &attr))
		forget_attributes(req, ino);
	ops_kernel_opened(fs, file, (uint32_t)fuse_req_ctx(req)->pid);
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
	struct ops_named named;
	struct ops_attr attr;
	double name_timeout;
	bool kept, taken;
	int ret;

	caller.keeps_setid = !shim_request_kills_setid();
	ret = request_may_change(req);
	if (ret == 0)
		ret = ops_create(fs, dir, name_of(name), &caller, mode,
			opened_flags(fi->flags), &file, &attr);
	if (ret < 0) {
		fuse_reply_err(req, -ret);
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
	ops_kernel_opened(fs, file, (uint32_t)fuse_req_ctx(req)->pid);
	taken = fuse_reply_create(req, &entry, fi) == 0;
	if (kept)
		ops_kernel_named_told(fs, &named, taken);
	else if (!taken)
		ops_kernel_resized(fs, attr.ino);
	if (!taken)
		ops_close(fs, file);
}

void handle_release(fuse_req_t req, fuse_ino_t ino, struct fuse_file_info *fi)
{
	ops_close(request_fs(req), file_of(fi));
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

/* Runs with the frames latched: the reply leaves straight from them. Never waits for
 * weft. */
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

/*
 * A short reply would mean the end of the file to the kernel, so the parts are collected,
 * and one that fails fails them all.
 */
static void read_in_parts(fuse_req_t req, struct ops_file *file, uint64_t offset,
	size_t size, size_t part_max)
{
	struct fs *fs = request_fs(req);
	char *buf = rt_alloc_pages(ALIGN_UP(size, (size_t)PAGE_SIZE));
	size_t done = 0;
	int ret = 0;

	if (!buf) {
		fuse_reply_err(req, ENOMEM);
		return;
	}
	while (done < size) {
		size_t in_page = (offset + done) % PAGE_SIZE;
		size_t part = MIN(size - done, part_max - in_page);
		struct read_copy c = {.to = buf + done};

		ret = ops_read(fs, file, offset + done, part, read_collect, &c);
		if (ret <= 0)
			break;
		done += (size_t)ret;
	}
	count_read(fuse_req_userdata(req), done);
	if (ret < 0)
		fuse_reply_err(req, -ret);
	else
		fuse_reply_buf(req, buf, done);
	rt_free_pages(buf, ALIGN_UP(size, (size_t)PAGE_SIZE));
}

void handle_read(fuse_req_t req, fuse_ino_t ino, size_t size, off_t offset,
	struct fuse_file_info *fi)
{
	struct session *s = fuse_req_userdata(req);
	struct fs *fs = session_fs(s);
	size_t part_max = (size_t)cache_batch_max(fs_volume(fs)->cache) * PAGE_SIZE;
	struct read_reply reply = {.req = req};
	bool kept = session_keeps(s) && !shim_request_is_direct();
	int ret;

	if (!session_shared(s) && !shim_request_is_direct())
		ops_file_paged(file_of(fi));
	if (offset % PAGE_SIZE + size > part_max) {
		read_in_parts(req, file_of(fi), (uint64_t)offset, size, part_max);
		return;
	}
	ret = (kept ? ops_read_kept : ops_read)(
		fs, file_of(fi), (uint64_t)offset, size, read_send, &reply);
	if (ret > 0)
		count_read(s, (size_t)ret);
	if (!reply.sent)
		fuse_reply_err(req, ret < 0 ? -ret : EIO);
}

/* ---- writing --------------------------------------------------------------------- */

static bool has_setid_bits(struct fs *fs, uint64_t ino)
{
	struct ops_attr attr;

	return ops_getattr(fs, ino, &attr) == 0 &&
	       (attr.inode.mode & (S_ISUID | S_ISGID));
}

/* The WRITE that is being served, to be answered by another task before it has ended. */
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
 * What a mapping holds comes back, perhaps since another node wants it: then it is answered before
 * another node is waited for. Bytes that the file has no place for are let go. (The kernel refuses
 * the answer to one that has been answered.)
 */
static void write_stores(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size,
	off_t offset, struct fuse_file_info *fi)
{
	struct session *s = fuse_req_userdata(req);
	struct fs *fs = session_fs(s);
	struct write_answer early = {s, shim_request_unique(), size};
	int64_t ret = request_may_change(req);

	if (ret == 0 && fs_maps_alone(fs))
		ret = ops_store(fs, file_of(fi), (uint64_t)offset, buf, size);
	else if (ret == 0)
		ret = ops_store_local(fs, file_of(fi), (uint64_t)offset, buf, size,
			write_answer, &early);
	if (ret < 0) {
		fuse_reply_err(req, (int)-ret);
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
	struct ops_file *file;
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
		ops_file_pages_gone(j->file, j->given);
	if (j->req)
		fuse_reply_write(j->req, j->done);
	rt_free(j);
}

/*
 * Bytes were written past the kernel's pages. It has dropped those of the range when it sent the request,
 * and does so again when a synchronous one has been answered; for an asynchronous one it does not. What it
 * has read, or written, in between is dropped before the answer. Where all handles are for direct I/O, all
 * of the file is, once. A request of the ring that may not wait is answered first.
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
		.file = file,
		.given = given,
		.all = alone,
		.ino = ino,
		.first = (uint64_t)offset / PAGE_SIZE,
		.end = DIV_UP((uint64_t)offset + done, (uint64_t)PAGE_SIZE),
		.done = done};
	if (aside_run(s, &j->job))
		return true;
	j->req = NULL;
	j->all = false; /* the file may be closed by then */
	if (!aside_queue(s, &j->job))
		rt_free(j);
	return false;
}

/* As large as a request can be: write(2) may have more. One from memory that begins within a page has so much
 * less. */
static bool write_is_full(size_t size)
{
	return size > FUSE_IO_MAX - PAGE_SIZE;
}

void handle_write(fuse_req_t req, fuse_ino_t ino, const char *buf, size_t size,
	off_t offset, struct fuse_file_info *fi)
{
	struct session *s = fuse_req_userdata(req);
	struct fs *fs = session_fs(s);
	struct ops_caller caller = request_caller(req);
	bool kills = shim_request_kills_setid();
	bool appends = (fi->flags & O_APPEND) && !shim_request_is_writeback();
	unsigned append = 0;
	bool direct = shim_request_is_direct();
	int64_t ret = request_may_change(req);
	bool had_bits;

	if (session_keeps(s) && shim_request_is_writeback()) {
		write_stores(req, ino, buf, size, offset, fi);
		return;
	}
	if (ret < 0) {
		fuse_reply_err(req, (int)-ret);
		return;
	}
	if (!session_shared(s) && !direct)
		ops_file_paged(file_of(fi));
	caller.keeps_setid = !kills;
	caller.stored = shim_request_is_writeback();
	had_bits = kills && has_setid_bits(fs, ino);
	if (appends)
		append = OPS_APPEND | (write_is_full(size) ? OPS_APPEND_MORE : 0);
	if (fi->flags & O_DIRECT)
		ops_passes_pages(fs, file_of(fi));
	ret = ops_write(fs, file_of(fi), &caller, (uint64_t)offset, buf, size, append);
	if (had_bits)
		forget_attributes(req, ino);
	if (ret < 0) {
		fuse_reply_err(req, (int)-ret);
		return;
	}
	atomic_fetch_add_explicit(
		&session_counters(s)->bytes_written, (uint64_t)ret, memory_order_relaxed);
	if (!direct || !write_aside(s, req, ino, file_of(fi), offset, (size_t)ret))
		fuse_reply_write(req, (size_t)ret);
}

/* Files and directories. */
void handle_fsync(
	fuse_req_t req, fuse_ino_t ino, int data_only, struct fuse_file_info *fi)
{
	reply_status(req, ops_fsync(request_fs(req), ino, data_only != 0));
}

/*
 * FALLOCATE and COPY_FILE_RANGE carry no word on setuid: only root's capability keeps it.
 */
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
	struct fs *fs = request_fs(req);
	struct ops_caller caller = caller_by_uid(req, ino);
	int ret = request_may_change(req);
	bool had_bits;

	if (ret == 0 && (offset < 0 || length <= 0))
		ret = -EINVAL;
	if (ret < 0) {
		reply_status(req, ret);
		return;
	}
	had_bits = !caller.keeps_setid;
	ret = ops_fallocate(
		fs, file_of(fi), &caller, mode, (uint64_t)offset, (uint64_t)length);
	if (had_bits)
		forget_attributes(req, ino);
	reply_status(req, ret);
}

void handle_copy_file_range(fuse_req_t req, fuse_ino_t ino_in, off_t offset_in,
	struct fuse_file_info *fi_in, fuse_ino_t ino_out, off_t offset_out,
	struct fuse_file_info *fi_out, size_t length, int flags)
{
	struct fs *fs = request_fs(req);
	struct ops_caller caller = caller_by_uid(req, ino_out);
	int64_t ret = request_may_change(req);
	bool had_bits;

	if (ret == 0 && (flags != 0 || offset_in < 0 || offset_out < 0))
		ret = -EINVAL;
	if (ret < 0) {
		fuse_reply_err(req, (int)-ret);
		return;
	}
	had_bits = !caller.keeps_setid;
	ops_passes_pages(fs, file_of(fi_out));
	ret = ops_copy_range(fs, file_of(fi_in), (uint64_t)offset_in, file_of(fi_out),
		(uint64_t)offset_out, MIN(length, COPY_MAX), &caller);
	if (had_bits)
		forget_attributes(req, ino_out);
	if (ret < 0)
		fuse_reply_err(req, (int)-ret);
	else
		fuse_reply_write(req, (size_t)ret);
}

static void reply_lseek(fuse_req_t req, int64_t ret)
{
	if (ret < 0)
		fuse_reply_err(req, (int)-ret);
	else
		fuse_reply_lseek(req, ret);
}

struct lseek_job {
	struct aside_job job;
	fuse_req_t req;
	struct ops_file *file; /* open until the answer */
	uint64_t offset;
	int whence;
};

static void lseek_run(struct session *s, struct aside_job *job)
{
	struct lseek_job *j = (struct lseek_job *)job;

	reply_lseek(j->req,
		ops_lseek(session_fs(s), j->file, j->offset, j->whence, aside_fetch, s));
	rt_free(j);
}

static int fetch_later(void *owner, uint64_t ino, uint64_t first, uint64_t end)
{
	return -EAGAIN;
}

/* What may always be said of a file: that it has no holes. */
static void lseek_all_data(fuse_req_t req, fuse_ino_t ino, off_t offset, int whence)
{
	struct ops_attr attr;
	int64_t ret = ops_getattr(request_fs(req), ino, &attr);

	if (ret == 0 && (uint64_t)offset >= attr.inode.size)
		ret = -ENXIO;
	else if (ret == 0)
		ret = whence == SEEK_DATA ? offset : (int64_t)attr.inode.size;
	reply_lseek(req, ret);
}

void handle_lseek(fuse_req_t req, fuse_ino_t ino, off_t offset, int whence,
	struct fuse_file_info *fi)
{
	struct lseek_job *j;
	int64_t ret;

	if (offset < 0)
		ret = -ENXIO;
	else if (whence != SEEK_DATA && whence != SEEK_HOLE)
		ret = -EINVAL;
	else
		ret = ops_lseek(request_fs(req), file_of(fi), (uint64_t)offset, whence,
			fetch_later, NULL);
	if (ret != -EAGAIN) {
		reply_lseek(req, ret);
		return;
	}
	j = rt_alloc(sizeof(*j));
	if (j)
		*j = (struct lseek_job){.job.run = lseek_run,
			.req = req,
			.file = file_of(fi),
			.offset = (uint64_t)offset,
			.whence = whence};
	if (j && aside_run(fuse_req_userdata(req), &j->job))
		return;
	rt_free(j);
	lseek_all_data(req, ino, offset, whence);
}
