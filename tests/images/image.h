/* SPDX-License-Identifier: Apache-2.0 */
/* Damaged images for fsck's tests: what the parts of make_image share. */
#ifndef WEFT_TESTS_IMAGE_H
#define WEFT_TESTS_IMAGE_H

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "fs/ops/ops.h"

#define MUST(expr)                                                                       \
	do {                                                                             \
		long long must_ = (long long)(expr);                                     \
		if (must_ < 0) {                                                         \
			fprintf(stderr, "%s:%d: %s: %lld\n", __FILE__, __LINE__, #expr,  \
				must_);                                                  \
			exit(2);                                                         \
		}                                                                        \
	} while (0)

#define IMAGE_BYTES (64ull << 20)
#define IMAGE_LOG   (4ull << 20)

/* What every image contains; numbers of its inodes. */
struct content {
	uint64_t dir_a, dir_b, dir_c; /* /a, /a/b, /a/b/c */
	uint64_t file;                /* /a/file: 40 pages */
	uint64_t other;               /* /a/other: 40 pages */
	uint64_t linked;              /* /a/linked and /a/b/linked */
	uint64_t target;              /* /a/symlink */
	uint64_t attributes; /* /a/attributes: extended attributes, small and large */
	uint64_t many;       /* /many: 4,000 files */
};

struct image {
	const char *path;
	struct volume *v; /* while a logical damage is done */
	struct content c;
};

/* How a case is made. */
struct damage_case {
	const char *name;
	bool crashed; /* the image is taken while the volume is open */
	void (*logical)(
		struct image *i);     /* through the engine: checksums will be right */
	void (*raw)(struct image *i); /* on the bytes of the closed image */
};

extern const struct damage_case damage_cases[];
extern const unsigned damage_case_count;

/* raw.c */
void raw_read(const struct image *i, uint64_t offset, void *buf, size_t len);
void raw_write(const struct image *i, uint64_t offset, const void *buf, size_t len);
void raw_super(const struct image *i, struct disk_superblock *sb);

#define DECLARE(name) void name(struct image *i)
DECLARE(super_first);
DECLARE(super_second);
DECLARE(super_half_written);
DECLARE(super_both);
DECLARE(super_contradiction);
DECLARE(super_stranger);
DECLARE(store_cut);
DECLARE(log_head_older);
DECLARE(log_head_newer);
DECLARE(log_head_half_written);
DECLARE(log_heads);
DECLARE(log_first_chunk);
DECLARE(log_middle);
DECLARE(log_last_chunk);
DECLARE(log_record);
DECLARE(table_copy);
DECLARE(table_block);
DECLARE(catalog_flipped);
DECLARE(catalog_zeroed);
DECLARE(group_zeroed);
DECLARE(leaf_flipped);
DECLARE(leaf_zeroed);
DECLARE(inner_zeroed);
DECLARE(root_flipped);
DECLARE(root_zeroed);
DECLARE(data_flipped);
DECLARE(everything_zeroed);
#undef DECLARE

/* probe.c: opens the image for writing, looks at everything, changes something. */
int probe(const char *path);

#endif
