/* SPDX-License-Identifier: Apache-2.0 */
/* The bytes of a simulated disk: blocks in a two-level table, made when they are written. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "engine/rt/sim.h"

#define BLOCK_BYTES ((uint64_t)64 << 10)
#define LEAF_BLOCKS 1024u
#define LEAF_BYTES  (LEAF_BLOCKS * BLOCK_BYTES)

static size_t leaf_count(const struct sim_image *image)
{
	return (size_t)DIV_UP(image->size, LEAF_BYTES);
}

int sim_image_make(struct sim_image *image, uint64_t size)
{
	image->size = size;
	image->leaves = calloc(leaf_count(image) + 1, sizeof(*image->leaves));
	return image->leaves ? 0 : -ENOMEM;
}

void sim_image_free(struct sim_image *image)
{
	for (size_t i = 0; i < leaf_count(image); i++) {
		for (unsigned k = 0; image->leaves[i] && k < LEAF_BLOCKS; k++)
			free(image->leaves[i][k]);
		free(image->leaves[i]);
	}
	free(image->leaves);
}

static uint8_t *block_find(const struct sim_image *image, uint64_t offset)
{
	uint8_t **leaf = image->leaves[offset / LEAF_BYTES];

	return leaf ? leaf[offset % LEAF_BYTES / BLOCK_BYTES] : NULL;
}

static uint8_t *block_make(struct sim_image *image, uint64_t offset)
{
	uint8_t ***leaf = &image->leaves[offset / LEAF_BYTES];
	uint8_t **block;

	if (!*leaf)
		*leaf = sim_own_alloc(LEAF_BLOCKS * sizeof(**leaf));
	block = &(*leaf)[offset % LEAF_BYTES / BLOCK_BYTES];
	if (!*block)
		*block = sim_own_alloc(BLOCK_BYTES);
	return *block;
}

void sim_image_read(const struct sim_image *image, uint64_t offset, void *buf, size_t len)
{
	uint8_t *to = buf;

	WEFT_ASSERT(offset <= image->size && len <= image->size - offset);
	while (len) {
		size_t in_block = (size_t)(offset % BLOCK_BYTES);
		size_t n = MIN(len, (size_t)BLOCK_BYTES - in_block);
		const uint8_t *block = block_find(image, offset);

		if (block)
			memcpy(to, block + in_block, n);
		else
			memset(to, 0, n);
		to += n;
		offset += n;
		len -= n;
	}
}

void sim_image_write(
	struct sim_image *image, uint64_t offset, const void *buf, size_t len)
{
	const uint8_t *from = buf;

	WEFT_ASSERT(offset <= image->size && len <= image->size - offset);
	while (len) {
		size_t in_block = (size_t)(offset % BLOCK_BYTES);
		size_t n = MIN(len, (size_t)BLOCK_BYTES - in_block);

		uint8_t *block = block_find(image, offset);

		/* Zeros make no block, because formatting writes many of them. */
		if (!block && from && !bytes_are_zero(from, n))
			block = block_make(image, offset);
		if (block && from)
			memcpy(block + in_block, from, n);
		else if (block)
			memset(block + in_block, 0, n);
		from = from ? from + n : NULL;
		offset += n;
		len -= n;
	}
}

void sim_image_copy(struct sim_image *to, const struct sim_image *from)
{
	WEFT_ASSERT(to->size == from->size);
	for (uint64_t offset = 0; offset < from->size; offset += BLOCK_BYTES) {
		const uint8_t *block;

		if (!from->leaves[offset / LEAF_BYTES] &&
			!to->leaves[offset / LEAF_BYTES]) {
			offset += LEAF_BYTES - BLOCK_BYTES;
			continue;
		}
		block = block_find(from, offset);
		if (block)
			memcpy(block_make(to, offset), block, BLOCK_BYTES);
		else if (block_find(to, offset))
			memset(block_make(to, offset), 0, BLOCK_BYTES);
	}
}
