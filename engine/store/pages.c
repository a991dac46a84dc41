/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Page images: reading many at once, checked; writing many at once.
 *
 * A batch is sorted by slot and adjacent slots become one request, so that a megabyte of
 * a file that lies together costs one. Invariant 8: an image whose descriptor is older
 * than wanted is not read at all, it is zeros. Invariant 9: an image that does not match
 * its descriptor never leaves this file as if it were one.
 */
#include "engine/store/store_internal.h"

#include <errno.h>

#define BATCH_PAGES   512u /* most pages in flight for one call */
#define BATCH_SMALL   8u   /* these need no memory but the stack */
#define REQUEST_PAGES 256u /* iovecs of one request */

struct page_job {
	void *image;
	uint32_t read; /* index of the caller's */
	int result;
};

/* Arrays for `capacity` pages. */
struct batch {
	unsigned capacity, count;
	struct store_order *order; /* by slot; index of the job */
	struct page_job *jobs;
	struct rt_io *ios;
	struct iovec *iov;
	struct table_request *requests;
};

#define BATCH_BYTES_EACH                                                                 \
	(sizeof(struct store_order) + sizeof(struct page_job) + sizeof(struct rt_io) +   \
		sizeof(struct iovec) + sizeof(struct table_request))

struct batch_small {
	struct store_order order[BATCH_SMALL];
	struct page_job jobs[BATCH_SMALL];
	struct rt_io ios[BATCH_SMALL];
	struct iovec iov[BATCH_SMALL];
	struct table_request requests[BATCH_SMALL];
};

bool page_id_valid(const struct store *s, page_id pid)
{
	return pid_shard(pid) == s->sb.shard && pid_slot(pid) < s->sb.page_count;
}

/* Memory for a batch of `count` pages; on the stack when there is none: more, smaller
 * ones. */
static void *batch_init(struct batch *b, struct batch_small *small, unsigned n)
{
	unsigned capacity = MIN(n, BATCH_PAGES);
	uint8_t *memory = NULL;

	if (capacity > BATCH_SMALL)
		memory = rt_alloc(capacity * BATCH_BYTES_EACH);
	if (!memory) {
		*b = (struct batch){.capacity = BATCH_SMALL,
			.order = small->order,
			.jobs = small->jobs,
			.ios = small->ios,
			.iov = small->iov,
			.requests = small->requests};
		return NULL;
	}
	b->capacity = capacity;
	b->count = 0;
	b->ios = (void *)memory;
	b->requests = (void *)(b->ios + capacity);
	b->order = (void *)(b->requests + capacity);
	b->iov = (void *)(b->order + capacity);
	b->jobs = (void *)(b->iov + capacity);
	return memory;
}

static void batch_add(struct batch *b, uint64_t slot, const void *image, uint32_t read)
{
	b->order[b->count] = (struct store_order){.place = slot, .index = b->count};
	b->jobs[b->count] = (struct page_job){.image = (void *)image, .read = read};
	b->count++;
}

/* A bad sector must not take the pages beside it along: those of a failed request, one by
 * one. */
static void retry_singly(struct store *s, struct batch *b, unsigned io_count)
{
	unsigned first = 0;

	for (unsigned i = 0; i < io_count; first += b->ios[i].iov_count, i++) {
		if (!b->ios[i].result || b->ios[i].iov_count == 1)
			continue;
		for (unsigned k = first; k < first + b->ios[i].iov_count; k++) {
			struct page_job *job = &b->jobs[b->order[k].index];

			job->result = rt_disk_read(s->disk,
				s->sb.pages_offset + b->order[k].place * PAGE_SIZE,
				job->image, PAGE_SIZE);
		}
	}
}

/* Sorts, merges, and runs the requests; results are in the jobs. */
static void batch_run(struct store *s, struct batch *b, enum rt_io_op op)
{
	unsigned io_count = 0, pages = 0, done = 0;

	store_sort(b->order, b->count);
	for (unsigned i = 0; i < b->count; i++) {
		struct rt_io *io = &b->ios[io_count ? io_count - 1 : 0];

		b->iov[i] = (struct iovec){b->jobs[b->order[i].index].image, PAGE_SIZE};
		if (i && b->order[i].place == b->order[i - 1].place + 1 &&
			io->iov_count < REQUEST_PAGES) {
			io->iov_count++;
			continue;
		}
		b->ios[io_count++] = (struct rt_io){.op = op,
			.offset = s->sb.pages_offset + b->order[i].place * PAGE_SIZE,
			.iov = &b->iov[i],
			.iov_count = 1};
	}
	store_run(s->disk, b->ios, io_count);
	for (unsigned i = 0; i < io_count; i++) {
		for (pages = 0; pages < b->ios[i].iov_count; pages++, done++)
			b->jobs[b->order[done].index].result = b->ios[i].result;
	}
	if (op == RT_IO_READ)
		retry_singly(s, b, io_count);
	counter_add(op == RT_IO_READ ? &s->counters.read_requests
				     : &s->counters.write_requests,
		io_count);
	counter_add(
		op == RT_IO_READ ? &s->counters.pages_read : &s->counters.pages_written,
		b->count);
}

/* ---- reading --------------------------------------------------------------------- */

static void log_damage(struct store *s, const struct store_read *r, const char *what)
{
	weft_log(3,
		"store: page %u:%llu (incarnation %llu, version %llu) %s; run fsck.weft",
		pid_shard(r->pid), (unsigned long long)pid_slot(r->pid),
		(unsigned long long)r->found_incarnation, (unsigned long long)r->version,
		what);
}

static void answer_read(struct store_read *r, const struct page_descriptor *d)
{
	r->result = 0;
	r->found_incarnation = d->incarnation;
	r->version = d->version;
	if (d->incarnation == 0 || d->incarnation < r->incarnation) {
		r->result = STORE_ZEROS;
		r->version = 0;
		if (r->image)
			memset(r->image, 0, PAGE_SIZE);
	}
}

/* The image is damaged. With `quiet` it is neither logged nor counted (enum pages_for). */
static void answer_damaged(
	struct store *s, struct store_read *r, const char *what, bool quiet)
{
	r->result = -EUCLEAN;
	if (quiet)
		return;
	counter_add(&s->counters.checksum_failures, 1);
	log_damage(s, r, what);
}

/* Settles the read from the descriptor alone, if it can. Returns true if the image is to be
 * read. */
static bool read_needs_image(
	struct store *s, struct store_read *r, const struct table_request *q, bool quiet)
{
	if (q->result) {
		r->result = q->result;
		if (q->result == -EUCLEAN && !quiet)
			log_damage(s, r,
				page_id_valid(s, r->pid) ? "has lost its descriptor"
							 : "does not exist here");
		return false;
	}
	if (q->undecided)
		return true;
	answer_read(r, &q->d);
	if (r->result == STORE_ZEROS && q->suspect) {
		answer_damaged(s, r, "may have lost its descriptor", quiet);
		return false;
	}
	return r->image && r->result == 0;
}

/* The image is there. Checks that it is that of the descriptor. */
static void read_verify(struct store *s, struct store_read *r,
	const struct table_request *q, const void *image, bool quiet)
{
	struct page_descriptor found = q->d;
	int rc;

	if (q->undecided) {
		rc = resolve_image(s, r->pid, &q->d, image, &found);
		answer_read(r, &found);
		if (rc == STORE_ZEROS &&
			(!r->incarnation || r->incarnation > found.incarnation)) {
			r->result = STORE_ZEROS;
			r->version = 0;
			if (r->image)
				memset(r->image, 0, PAGE_SIZE);
		} else if (rc == STORE_ZEROS || rc == -EUCLEAN) {
			answer_damaged(
				s, r, "has an image that no descriptor fits", quiet);
		} else if (rc) {
			r->result = rc;
		}
		return;
	}
	if (store_page_checksum(s, r->pid, found.incarnation, found.version, image) !=
		found.checksum)
		answer_damaged(
			s, r, "has an image that does not fit its descriptor", quiet);
}

/* A page of which only the descriptor is wanted, but its image must tell which. */
static void read_aside(
	struct store *s, struct store_read *r, const struct table_request *q, bool quiet)
{
	void *image = rt_alloc_pages(PAGE_SIZE);
	int rc;

	if (!image) {
		r->result = -ENOMEM;
		return;
	}
	rc = rt_disk_read(s->disk, s->sb.pages_offset + pid_slot(r->pid) * PAGE_SIZE,
		image, PAGE_SIZE);
	counter_add(&s->counters.read_requests, 1);
	counter_add(&s->counters.pages_read, 1);
	if (rc)
		r->result = rc;
	else
		read_verify(s, r, q, image, quiet);
	rt_free_pages(image, PAGE_SIZE);
}

static void read_batch(struct store *s, struct batch *b, struct store_read *reads,
	unsigned n, enum pages_for how)
{
	bool quiet = how != PAGES_FOR_USE;

	b->count = 0;
	for (unsigned i = 0; i < n; i++) {
		b->requests[i] = (struct table_request){
			.pid = reads[i].pid, .scan = how == PAGES_FOR_SCRUB};
		reads[i].version = 0;
		reads[i].found_incarnation = 0;
	}
	table_run(s, b->requests, n);
	for (unsigned i = 0; i < n; i++) {
		if (!read_needs_image(s, &reads[i], &b->requests[i], quiet))
			continue;
		if (reads[i].image)
			batch_add(b, pid_slot(reads[i].pid), reads[i].image, i);
		else
			read_aside(s, &reads[i], &b->requests[i], quiet);
	}
	if (!b->count)
		return;
	batch_run(s, b, RT_IO_READ);
	for (unsigned i = 0; i < b->count; i++) {
		struct store_read *r = &reads[b->jobs[i].read];

		if (b->jobs[i].result)
			r->result = -EIO;
		else
			read_verify(s, r, &b->requests[b->jobs[i].read], b->jobs[i].image,
				quiet);
	}
}

void pages_read(
	struct store *s, struct store_read *reads, unsigned n, enum pages_for how)
{
	struct batch_small small;
	struct batch b;
	void *memory = batch_init(&b, &small, n);

	for (unsigned done = 0; done < n; done += b.capacity)
		read_batch(s, &b, reads + done, MIN(n - done, b.capacity), how);
	rt_free(memory);
}

void store_read_pages(struct store *s, struct store_read *reads, unsigned n)
{
	pages_read(s, reads, n,
		s->table.redo == STORE_REDO_RUNNING ? PAGES_FOR_RECOVERY : PAGES_FOR_USE);
}

int store_descriptor_get(struct store *s, page_id pid, struct page_descriptor *out)
{
	struct table_request q = {.pid = pid};
	struct store_read r = {.pid = pid};

	table_run(s, &q, 1);
	if (!q.result && q.undecided) {
		read_aside(s, &r, &q, false);
		if (r.result < 0)
			return r.result;
		table_run(s, &q, 1);
	}
	*out = q.d;
	return q.result;
}

int store_descriptor_try(struct store *s, page_id pid, struct page_descriptor *out)
{
	struct table_request q = {.pid = pid};

	if (!page_id_valid(s, pid))
		return -EUCLEAN;
	if (!table_try(s, &q) || q.undecided)
		return -EAGAIN;
	*out = q.d;
	return q.result;
}

/* ---- writing --------------------------------------------------------------------- */

int store_write_pages(struct store *s, const struct store_write *writes, unsigned n)
{
	struct batch_small small;
	struct batch b;
	void *memory;
	int rc = 0;

	WEFT_ASSERT(!s->read_only);
	for (unsigned i = 0; i < n; i++)
		if (!page_id_valid(s, writes[i].pid))
			return -EUCLEAN;
	memory = batch_init(&b, &small, n);
	for (unsigned done = 0; done < n; done += b.count) {
		b.count = 0;
		for (unsigned i = done; i < n && b.count < b.capacity; i++)
			batch_add(&b, pid_slot(writes[i].pid), writes[i].image, i);
		batch_run(s, &b, RT_IO_WRITE);
		for (unsigned i = 0; i < b.count && !rc; i++)
			rc = b.jobs[i].result;
	}
	rt_free(memory);
	return rc;
}

int store_flush(struct store *s)
{
	int rc = rt_disk_flush(s->disk);

	counter_add(&s->counters.flushes, 1);
	if (rc)
		store_flush_lost(s);
	return rc;
}

void store_flush_lost(struct store *s)
{
	atomic_store_explicit(&s->flush_failed, true, memory_order_release);
}

bool store_flush_failed(struct store *s)
{
	return atomic_load_explicit(&s->flush_failed, memory_order_acquire);
}
