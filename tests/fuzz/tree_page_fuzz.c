/* SPDX-License-Identifier: Apache-2.0 */
/*
 * libFuzzer: a page from outside. What tree_check_page accepts must be safe to search,
 * read, change, split and join, and sound afterwards. Inputs are page images; shorter ones
 * are padded with zeros.
 *
 *	clang -std=gnu17 -D_GNU_SOURCE -I. -g -fsanitize=fuzzer,address,undefined \
 *		tests/fuzz/tree_page_fuzz.c engine/tree/page.c engine/tree/check.c \
 *		engine/common/base.c -o tree_page_fuzz
 */
#include "engine/tree/tree_internal.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size);

static void must(int r)
{
	if (r)
		__builtin_trap();
}

/* Edits of an unshared image do not come here. */
void mtr_write(struct mtr_page *p, unsigned offset, const void *src, unsigned len)
{
	__builtin_trap();
}

void mtr_move(struct mtr_page *p, unsigned to, unsigned from, unsigned len)
{
	__builtin_trap();
}

static void use_leaf(uint8_t *image, page_id pid)
{
	struct node_edit e = {.image = image};
	struct node_counts c = node_counts_load(image);
	uint8_t value[DISK_VALUE_MAX] = {0}, right[PAGE_SIZE];
	tree_key low = tree_key_load(image + NODE_LOW);
	tree_key middle;

	for (unsigned i = 0; i < c.count; i++) {
		struct leaf_place place = leaf_place_load(image, i);

		must(leaf_search(image, c.count, leaf_key_load(image, i)) != i);
		memcpy(value, image + place.offset, place.length);
	}
	if (c.count == 0)
		return;
	middle = leaf_key_load(image, c.count / 2u);
	leaf_remove(&e, middle);
	must(tree_check_page(image, pid, NULL));
	c = node_counts_load(image);
	if (leaf_used(c) + LEAF_SLOT_BYTES <= LEAF_CAPACITY)
		leaf_set(&e, middle, value,
			MIN(LEAF_CAPACITY - LEAF_SLOT_BYTES - leaf_used(c),
				DISK_VALUE_MAX));
	must(tree_check_page(image, pid, NULL));
	if (middle == low)
		return;
	leaf_split(&e, right, pid, middle);
	must(tree_check_page(image, pid, NULL));
	must(tree_check_page(right, pid, NULL));
	leaf_join(image, right);
	must(tree_check_page(image, pid, NULL));
}

static void use_inner(uint8_t *image, page_id pid)
{
	struct node_edit e = {.image = image};
	unsigned count = node_counts_load(image).count;
	uint8_t right[PAGE_SIZE];

	for (unsigned i = 0; i < count; i++)
		must(inner_search(image, count, tree_key_load(image + INNER_KEY(i))) !=
			i);
	if (count < 2)
		return;
	inner_split(&e, right, pid, count / 2);
	must(tree_check_page(image, pid, NULL));
	must(tree_check_page(right, pid, NULL));
	inner_join(image, right);
	inner_remove(&e, count - 1);
	must(tree_check_page(image, pid, NULL));
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t size)
{
	static _Alignas(64) uint8_t image[PAGE_SIZE];
	uint64_t magic = DISK_MAGIC_NODE;
	page_id pid;

	memset(image, 0, sizeof(image));
	memcpy(image, data, MIN(size, sizeof(image)));
	memcpy(image + NODE_MAGIC, &magic, sizeof(magic));
	memcpy(&pid, image + NODE_PID, sizeof(pid));
	if (tree_check_page(image, pid, NULL))
		return 0;
	if (node_counts_load(image).level == 0)
		use_leaf(image, pid);
	else
		use_inner(image, pid);
	return 0;
}
