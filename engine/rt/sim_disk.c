/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Simulated disks. Requests take virtual time, and end in any order. A volatile cache keeps writes
 * until a flush. A power cut leaves any subset of the writes that were not flushed. Requests can be
 * made to fail.
 *
 * A disk has two images: the view that reads see, and the durable one. Between them are the
 * completed writes, in the order of completion. So writes to the same unit become durable in that
 * order, and a flushed write is never undone. A request in flight has no effect until it completes
 * or the power goes.
 */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/rt/sim.h"

#define SECTOR_BYTES   512u
#define LATENCY_MIN_NS 20000u
#define LATENCY_MAX_NS 400000u
/* One in so many requests takes much longer. */
#define SLOW_ONE_IN  64u
#define SLOW_FACTOR  20u
#define FLUSH_FACTOR 4u

/* A write that has completed and is not durable. */
struct sim_write {
	struct sim_write *next;
	uint64_t order; /* of completion */
	unsigned node;  /* that wrote it */
	uint64_t offset;
	size_t len;
	const uint8_t *data; /* the bytes, or NULL if all of them are zero */
	uint8_t bytes[];
};

struct sim_handle;

struct sim_request {
	struct sim_timer timer;
	struct rt_io *io;
	struct sim_handle *handle;
	struct sim_request *chained; /* starts when this one has succeeded */
	uint64_t covers;             /* a flush: writes with an order up to this */
	bool started, faulty;
	struct sim_request *next, **link; /* all of the disk */
};

struct sim_handle {
	struct rt_disk base;
	struct rt_sim_disk *disk;
	unsigned node, flags;
	struct sim_handle *next;
};

struct rt_sim_disk {
	char *name;
	struct rt_sim_disk_options options;
	struct sim_image view, durable;
	struct sim_write *writes, **writes_end;
	uint64_t last_order, volatile_bytes;
	bool view_ahead; /* a failed flush dropped writes that only the view has */
	struct sim_request *requests;
	struct sim_handle *handles;
	uint64_t ops, cut_at;
	struct rt_sim_fail fail;
	uint64_t fail_matches;
	struct rt_sim_disk *next;
};

/* ---- disks ------------------------------------------------------------------------ */

static struct rt_sim_disk *disk_find(const char *name)
{
	struct rt_sim_disk *d = sim->disks;

	while (d && strcmp(d->name, name))
		d = d->next;
	return d;
}

struct rt_sim_disk *rt_sim_disk_create(
	const char *name, uint64_t size_bytes, const struct rt_sim_disk_options *options)
{
	struct rt_sim_disk *disk = sim_own_alloc(sizeof(*disk));

	WEFT_ASSERT(!disk_find(name) && size_bytes % SECTOR_BYTES == 0);
	if (options)
		disk->options = *options;
	if (!disk->options.atomic_write_bytes)
		disk->options.atomic_write_bytes = SECTOR_BYTES;
	WEFT_ASSERT(disk->options.atomic_write_bytes % SECTOR_BYTES == 0);
	if (!disk->options.latency_max_ns) {
		disk->options.latency_min_ns = LATENCY_MIN_NS;
		disk->options.latency_max_ns = LATENCY_MAX_NS;
	}
	disk->name = strdup(name);
	WEFT_ASSERT(disk->name && sim_image_make(&disk->view, size_bytes) == 0 &&
		    sim_image_make(&disk->durable, size_bytes) == 0);
	disk->writes_end = &disk->writes;
	disk->next = sim->disks;
	sim->disks = disk;
	return disk;
}

struct rt_sim_disk *rt_sim_disk_copy(const char *name, struct rt_sim_disk *from)
{
	struct rt_sim_disk *disk =
		rt_sim_disk_create(name, from->view.size, &from->options);

	sim_image_copy(&disk->view, &from->view);
	sim_image_copy(&disk->durable, &from->view);
	return disk;
}

static void drop_writes(struct rt_sim_disk *disk)
{
	while (disk->writes) {
		struct sim_write *w = disk->writes;

		disk->writes = w->next;
		free(w);
	}
	disk->writes_end = &disk->writes;
	disk->volatile_bytes = 0;
}

static void disk_free(struct rt_sim_disk *disk)
{
	while (disk->handles) {
		struct sim_handle *h = disk->handles;

		disk->handles = h->next;
		free(h);
	}
	while (disk->requests) {
		struct sim_request *r = disk->requests;

		disk->requests = r->next;
		free(r);
	}
	drop_writes(disk);
	sim_image_free(&disk->view);
	sim_image_free(&disk->durable);
	free(disk->name);
	free(disk);
}

void rt_sim_disk_destroy(struct rt_sim_disk *disk)
{
	struct rt_sim_disk **link = &sim->disks;

	WEFT_ASSERT(!disk->handles && !disk->requests);
	while (*link != disk)
		link = &(*link)->next;
	*link = disk->next;
	disk_free(disk);
}

/* At the end of a run: the timers have ended already. */
void sim_disks_free(void)
{
	while (sim->disks) {
		struct rt_sim_disk *disk = sim->disks;

		sim->disks = disk->next;
		disk_free(disk);
	}
}

/* ---- handles --------------------------------------------------------------------- */

int sim_disk_open(
	struct rt_disk **out, const char *path, unsigned flags, struct weft_error *err)
{
	struct rt_sim_disk *disk = disk_find(path);
	struct sim_handle *handle;

	if (!disk)
		return weft_error(err, -ENOENT, "%s does not exist", path);
	if (disk->options.read_only && !(flags & RT_DISK_READ_ONLY))
		return weft_error(
			err, -EROFS, "%s is read-only: open it read-only", path);
	for (struct sim_handle *h = disk->handles; h; h = h->next)
		if (h->flags & flags & RT_DISK_EXCLUSIVE)
			return weft_error(err, -EBUSY,
				"%s is in use: it is mounted, or another weft program "
				"has it open",
				path);
	handle = sim_own_alloc(sizeof(*handle));
	handle->base.info = (struct rt_disk_info){
		.size_bytes = disk->view.size,
		.atomic_write_bytes = disk->options.atomic_write_bytes,
		.is_block_device = true,
		.read_only = flags & RT_DISK_READ_ONLY,
	};
	handle->disk = disk;
	handle->node = sim_current_node();
	handle->flags = flags;
	handle->next = disk->handles;
	disk->handles = handle;
	*out = &handle->base;
	return 0;
}

static void handle_free(struct sim_handle *handle)
{
	struct sim_handle **link = &handle->disk->handles;

	while (*link != handle)
		link = &(*link)->next;
	*link = handle->next;
	free(handle);
}

void sim_disk_close(struct rt_disk *base)
{
	struct sim_handle *handle = container_of(base, struct sim_handle, base);

	for (struct sim_request *r = handle->disk->requests; r; r = r->next)
		WEFT_ASSERT(r->handle != handle); /* its memory may go any time */
	handle_free(handle);
}

void sim_disk_register(struct rt_disk *base, void *memory, size_t size)
{
}

/* ---- the effect of a write ------------------------------------------------------------ */

enum fate { FATE_LOST, FATE_KEPT, FATE_TORN, FATES };

/* The bytes from `at` on. */
static const uint8_t *write_data(const struct sim_write *w, size_t at)
{
	return w->data ? w->data + at : NULL;
}

/* Puts all, none or any subset of the units into the image. */
static void apply_fate(struct sim_image *image, uint32_t unit, enum fate fate,
	const struct sim_write *w)
{
	if (fate == FATE_KEPT)
		sim_image_write(image, w->offset, w->data, w->len);
	if (fate != FATE_TORN)
		return;
	for (size_t at = 0, n; at < w->len; at += n) {
		n = MIN(w->len - at, (size_t)(unit - (w->offset + at) % unit));
		if (sim_rng_next(&sim->disk_rng) & 1)
			sim_image_write(image, w->offset + at, write_data(w, at), n);
	}
}

static enum fate any_fate(void)
{
	return (enum fate)sim_rng_below(&sim->disk_rng, FATES);
}

static struct sim_write *write_make(uint64_t offset, size_t len, bool zeros)
{
	struct sim_write *w = malloc(sizeof(*w) + (zeros ? 0 : len));

	WEFT_ASSERT(w); /* as in sim_own_alloc */
	*w = (struct sim_write){
		.offset = offset, .len = len, .data = zeros ? NULL : w->bytes};
	return w;
}

/* Formatting writes many zeros. */
static bool iov_is_zero(const struct rt_io *io)
{
	const struct iovec *iov = rt_io_iov(io);
	unsigned i = 0;

	while (i < io->iov_count && bytes_are_zero(iov[i].iov_base, iov[i].iov_len))
		i++;
	return i == io->iov_count;
}

static struct sim_write *write_of(const struct rt_io *io)
{
	const struct iovec *iov = rt_io_iov(io);
	struct sim_write *w =
		write_make(io->offset, (size_t)rt_io_bytes(io), iov_is_zero(io));
	uint8_t *to = w->bytes;

	for (unsigned i = 0; w->data && i < io->iov_count; i++) {
		memcpy(to, iov[i].iov_base, iov[i].iov_len);
		to += iov[i].iov_len;
	}
	return w;
}

/* The device's cache has it from now on. */
static void remember_write(struct sim_handle *handle, struct sim_write *w)
{
	struct rt_sim_disk *disk = handle->disk;

	w->order = ++disk->last_order;
	w->node = handle->node;
	*disk->writes_end = w;
	disk->writes_end = &w->next;
	disk->volatile_bytes += w->len;
	sim_image_write(&disk->view, w->offset, w->data, w->len);
}

/* The device reports an error. Any part of the write may have been done. */
static void remember_part(struct sim_handle *handle, const struct sim_write *w)
{
	uint32_t unit = handle->disk->options.atomic_write_bytes;

	for (size_t at = 0, n; at < w->len; at += n) {
		struct sim_write *part;

		n = MIN(w->len - at, (size_t)(unit - (w->offset + at) % unit));
		if (!(sim_rng_next(&sim->disk_rng) & 1))
			continue;
		part = write_make(w->offset + at, n, !w->data);
		if (w->data)
			memcpy(part->bytes, w->data + at, n);
		remember_write(handle, part);
	}
}

/* Writes up to that order leave the cache, to the medium. If the flush fails, each gets any fate.
 * No later flush covers them. */
static void empty_cache(struct rt_sim_disk *disk, uint64_t upto, bool failed)
{
	while (disk->writes && disk->writes->order <= upto) {
		struct sim_write *w = disk->writes;

		apply_fate(&disk->durable, disk->options.atomic_write_bytes,
			failed ? any_fate() : FATE_KEPT, w);
		disk->volatile_bytes -= w->len;
		disk->writes = w->next;
		free(w);
	}
	if (!disk->writes)
		disk->writes_end = &disk->writes;
	disk->view_ahead |= failed;
}

/* Flushes under way should make the same writes durable. So they must fail, too. */
static void fail_other_flushes(struct rt_sim_disk *disk)
{
	for (struct sim_request *r = disk->requests; r; r = r->next)
		r->faulty |= r->started && r->io->op == RT_IO_FLUSH;
}

static void show_durable(struct rt_sim_disk *disk, uint64_t offset, size_t len)
{
	uint8_t part[PAGE_SIZE];

	while (len) {
		size_t n = MIN(len, sizeof(part));

		sim_image_read(&disk->durable, offset, part, n);
		sim_image_write(&disk->view, offset, part, n);
		offset += n;
		len -= n;
	}
}

/* Completed writes that were not flushed get their fate first. A later write may still be in
 * flight. */
static void settle_completed(struct rt_sim_disk *disk)
{
	uint32_t unit = disk->options.atomic_write_bytes;

	for (struct sim_write *w = disk->writes; w; w = w->next)
		apply_fate(&disk->durable, unit, any_fate(), w);
	for (struct sim_write *w = disk->writes; w; w = w->next)
		show_durable(disk, w->offset, w->len);
	drop_writes(disk);
}

static void settle_in_flight(struct rt_sim_disk *disk, const struct rt_io *io)
{
	struct sim_write *w = write_of(io);

	apply_fate(&disk->durable, disk->options.atomic_write_bytes, any_fate(), w);
	show_durable(disk, w->offset, w->len);
	free(w);
}

/* ---- requests -------------------------------------------------------------------- */

static void request_free(struct sim_request *r)
{
	sim_timer_cancel(&r->timer);
	*r->link = r->next;
	if (r->next)
		r->next->link = r->link;
	free(r);
}

/* The checks that the kernel makes before a request gets to the device. */
static int request_check(const struct sim_handle *handle, const struct rt_io *io)
{
	const struct iovec *iov = rt_io_iov(io);
	uint64_t len = rt_io_bytes(io), size = handle->disk->view.size;

	if (io->op == RT_IO_FLUSH)
		return 0;
	if (io->op == RT_IO_WRITE && handle->base.info.read_only)
		return -EBADF;
	if (io->iov_count > RT_IOV_MAX || io->offset % SECTOR_BYTES)
		return -EINVAL;
	for (unsigned i = 0; i < io->iov_count; i++)
		if (((uintptr_t)iov[i].iov_base | iov[i].iov_len) % SECTOR_BYTES)
			return -EINVAL;
	if (io->offset > size || len > size - io->offset)
		return io->op == RT_IO_READ ? -EIO : -ENOSPC;
	return 0;
}

static uint64_t draw_latency(const struct rt_sim_disk *disk, enum rt_io_op op)
{
	const struct rt_sim_disk_options *o = &disk->options;
	uint64_t range = o->latency_max_ns - MIN(o->latency_min_ns, o->latency_max_ns);
	uint64_t ns = o->latency_min_ns + sim_rng_below(&sim->disk_rng, range + 1);

	if (op == RT_IO_FLUSH)
		ns *= FLUSH_FACTOR;
	if (sim_rng_below(&sim->disk_rng, SLOW_ONE_IN) == 0)
		ns *= SLOW_FACTOR;
	return ns;
}

static void request_due(struct sim_timer *timer);

static void request_start(struct sim_request *r)
{
	struct rt_sim_disk *disk = r->handle->disk;

	r->started = true;
	r->covers = disk->last_order;
	sim_timer_set(&r->timer, sim->now + draw_latency(disk, r->io->op), request_due);
}

static void perform_read(const struct rt_sim_disk *disk, const struct rt_io *io)
{
	const struct iovec *iov = rt_io_iov(io);
	uint64_t offset = io->offset;

	for (unsigned i = 0; i < io->iov_count; i++) {
		sim_image_read(&disk->view, offset, iov[i].iov_base, iov[i].iov_len);
		offset += iov[i].iov_len;
	}
}

static int request_perform(struct sim_request *r)
{
	struct rt_sim_disk *disk = r->handle->disk;
	struct rt_io *io = r->io;
	int result = request_check(r->handle, io);

	if (result)
		return result;
	if (io->op == RT_IO_FLUSH) {
		if (r->faulty)
			fail_other_flushes(disk);
		empty_cache(disk, r->covers, r->faulty);
	} else if (io->op == RT_IO_WRITE) {
		struct sim_write *w = write_of(io);

		if (r->faulty) {
			remember_part(r->handle, w);
			free(w);
		} else {
			remember_write(r->handle, w);
		}
	} else if (!r->faulty) {
		perform_read(disk, io);
	}
	if (!r->faulty)
		return 0;
	return disk->fail.error ? disk->fail.error : -EIO;
}

/* Ends the request. If it failed, ends those that are chained to it. */
static void request_end(struct sim_request *r, int result)
{
	while (r) {
		struct sim_request *chained = r->chained;
		struct rt_io *io = r->io;

		request_free(r);
		io->result = result;
		atomic_store(&io->done, 1);
		sim_wake_quietly(&io->done, INT32_MAX);
		if (result == 0) {
			if (chained)
				request_start(chained);
			return;
		}
		r = chained;
		result = -ECANCELED;
	}
}

static void request_due(struct sim_timer *timer)
{
	struct sim_request *r = container_of(timer, struct sim_request, timer);

	request_end(r, request_perform(r));
}

static bool fault_hits(struct rt_sim_disk *disk, const struct rt_io *io)
{
	const struct rt_sim_fail *f = &disk->fail;

	if (!(f->ops & (1u << io->op)))
		return false;
	if (f->length && io->op != RT_IO_FLUSH &&
		(io->offset >= f->offset + f->length ||
			f->offset >= io->offset + rt_io_bytes(io)))
		return false;
	disk->fail_matches++;
	return f->sticky ? disk->fail_matches >= f->n : disk->fail_matches == f->n;
}

static struct sim_request *request_new(struct sim_handle *handle, struct rt_io *io)
{
	struct rt_sim_disk *disk = handle->disk;
	struct sim_request *r = sim_own_alloc(sizeof(*r));

	r->io = io;
	r->handle = handle;
	r->faulty = fault_hits(disk, io);
	r->next = disk->requests;
	r->link = &disk->requests;
	if (r->next)
		r->next->link = &r->next;
	disk->requests = r;
	return r;
}

void sim_disk_submit(struct rt_disk *base, struct rt_io *ios, unsigned count)
{
	struct sim_handle *handle = container_of(base, struct sim_handle, base);
	struct rt_sim_disk *disk = handle->disk;
	struct sim_request *previous = NULL;

	rt_sched_point();
	for (unsigned i = 0; i < count; i++) {
		struct sim_request *r;

		if (i == 0 || !ios[i].after_previous)
			(void)rt_io_chain(&ios[i], count - i); /* checks its length */
		atomic_store(&ios[i].done, 0);
		r = request_new(handle, &ios[i]);
		if (i && ios[i].after_previous)
			previous->chained = r;
		else
			request_start(r);
		previous = r;
		if (++disk->ops == disk->cut_at) {
			rt_sim_node_kill(handle->node);
			return; /* the caller belongs to another node, and has no disk any more */
		}
	}
}

void sim_disk_wait(struct rt_disk *base, struct rt_io *ios, unsigned count)
{
	for (unsigned i = 0; i < count; i++)
		while (!atomic_load(&ios[i].done))
			sim_wait(&ios[i].done, 0, RT_FOREVER);
}

void sim_disk_run(struct rt_disk *base, struct rt_io *ios, unsigned count)
{
	sim_disk_submit(base, ios, count);
	sim_disk_wait(base, ios, count);
}

/* ---- power cuts ------------------------------------------------------------------ */

static bool disk_used_by(const struct rt_sim_disk *disk, unsigned node)
{
	for (const struct sim_handle *h = disk->handles; h; h = h->next)
		if (h->node == node)
			return true;
	for (const struct sim_write *w = disk->writes; w; w = w->next)
		if (w->node == node)
			return true;
	return false;
}

/* A random one of the node's requests; NULL: it has none. */
static struct sim_request *any_request(const struct rt_sim_disk *disk, unsigned node)
{
	struct sim_request *found = NULL;
	uint64_t seen = 0;

	for (struct sim_request *r = disk->requests; r; r = r->next)
		if (r->handle->node == node && sim_rng_below(&sim->disk_rng, ++seen) == 0)
			found = r;
	return found;
}

static void disk_power_cut(struct rt_sim_disk *disk, unsigned node)
{
	struct sim_request *r;

	settle_completed(disk);
	if (disk->view_ahead) {
		sim_image_copy(&disk->view, &disk->durable);
		disk->view_ahead = false;
	}
	while ((r = any_request(disk, node))) {
		if (r->io->op == RT_IO_WRITE && r->started &&
			request_check(r->handle, r->io) == 0)
			settle_in_flight(disk, r->io);
		request_free(r);
	}
	for (struct sim_handle *h = disk->handles, *next; h; h = next) {
		next = h->next;
		if (h->node == node)
			handle_free(h);
	}
}

void sim_disks_power_cut(unsigned node)
{
	for (struct rt_sim_disk *d = sim->disks; d; d = d->next)
		if (disk_used_by(d, node))
			disk_power_cut(d, node);
}

/* ---- the harness's hands --------------------------------------------------------- */

uint64_t rt_sim_disk_ops(struct rt_sim_disk *disk)
{
	return disk->ops;
}

void rt_sim_disk_cut_after(struct rt_sim_disk *disk, uint64_t n)
{
	disk->cut_at = n ? disk->ops + n : 0;
}

void rt_sim_disk_fail(struct rt_sim_disk *disk, const struct rt_sim_fail *fail)
{
	disk->fail = *fail;
	disk->fail_matches = 0;
}

void rt_sim_disk_peek(
	struct rt_sim_disk *disk, uint64_t offset, void *buf, size_t len_bytes)
{
	sim_image_read(&disk->view, offset, buf, len_bytes);
}

void rt_sim_disk_poke(
	struct rt_sim_disk *disk, uint64_t offset, const void *buf, size_t len_bytes)
{
	sim_image_write(&disk->view, offset, buf, len_bytes);
	sim_image_write(&disk->durable, offset, buf, len_bytes);
}

uint64_t rt_sim_disk_volatile_bytes(struct rt_sim_disk *disk)
{
	return disk->volatile_bytes;
}
