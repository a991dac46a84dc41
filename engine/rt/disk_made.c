/* SPDX-License-Identifier: Apache-2.0 */
/* Disks that are made of functions: a part of another disk, or a disk behind a network. They run on
 * the task that submits. A request has ended when rt_disk_submit returns. */
#include <errno.h>

#include "engine/rt/rt_internal.h"

int rt_disk_make(struct rt_disk **out, const struct rt_disk_info *info,
	const struct rt_disk_functions *functions, void *owner)
{
	struct rt_disk *disk = rt_alloc(sizeof(*disk));

	*out = disk;
	if (!disk)
		return -ENOMEM;
	disk->info = *info;
	disk->functions = functions;
	disk->owner = owner;
	return 0;
}

/* Runs one request after the other, which keeps the order of a chain. */
void rt_made_run(struct rt_disk *disk, struct rt_io *ios, unsigned count)
{
	bool failed = false;

	for (unsigned i = 0; i < count; i++) {
		struct rt_io *io = &ios[i];

		failed = failed && io->after_previous;
		if (failed) {
			io->result = -ECANCELED;
			continue;
		}
		if (io->op == RT_IO_WRITE && disk->info.read_only)
			io->result = -EROFS;
		else if (io->op != RT_IO_FLUSH &&
			 (io->offset > disk->info.size_bytes ||
				 rt_io_bytes(io) > disk->info.size_bytes - io->offset))
			io->result = -EINVAL;
		else
			io->result = disk->functions->run(disk->owner, io->op, io->offset,
				rt_io_iov(io), io->iov_count);
		failed = io->result != 0;
	}
}

void rt_made_close(struct rt_disk *disk)
{
	disk->functions->close(disk->owner);
	rt_free(disk);
}

/* ---- a part of another disk ------------------------------------------------------------ */

struct disk_part {
	struct rt_disk *whole;
	uint64_t offset;
};

static int part_run(void *owner, enum rt_io_op op, uint64_t offset,
	const struct iovec *iov, unsigned count)
{
	const struct disk_part *p = owner;
	struct rt_io io = {.op = op,
		.offset = p->offset + offset,
		.iov = (struct iovec *)iov,
		.iov_count = count};

	rt_disk_run(p->whole, &io, 1);
	return io.result;
}

static void part_close(void *owner)
{
	rt_free(owner);
}

int rt_disk_part(
	struct rt_disk **out, struct rt_disk *whole, uint64_t offset, uint64_t size_bytes)
{
	static const struct rt_disk_functions functions = {part_run, part_close};
	struct disk_part *p = rt_alloc(sizeof(*p));
	struct rt_disk_info info = whole->info;
	int rc;

	*out = NULL;
	if (!p)
		return -ENOMEM;
	if (offset > info.size_bytes || size_bytes > info.size_bytes - offset) {
		rt_free(p);
		return -EINVAL;
	}
	p->whole = whole;
	p->offset = offset;
	info.size_bytes = size_bytes;
	info.room_bytes = 0;
	rc = rt_disk_make(out, &info, &functions, p);
	if (rc)
		rt_free(p);
	return rc;
}
