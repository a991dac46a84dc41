/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The findings' codes. A code never changes its meaning; docs/fsck.md says the same at
 * length.
 *
 * Safe: the repair follows from what else is known and loses nothing, so -p makes it
 * unasked.
 */
#include <stdlib.h>

#include "mkfs/fsck/fsck_internal.h"

struct code {
	unsigned code;
	bool safe;
	const char *text;
};

static const struct code codes[] = {
	{1, true, "a copy of the superblock is damaged"},
	{2, false, "both copies of the superblock are damaged"},
	{3, false, "the copies of the superblock belong to different stores"},
	{4, false, "the copies of the superblock contradict each other"},
	{5, false, "the store is shorter than its superblock says"},
	{10, true, "a head of the log is damaged"},
	{11, false, "both heads of the log are damaged"},
	{12, false, "the log is damaged before its end"},
	{13, false, "the log does not fit the store"},
	{20, false, "a block of the descriptor table is damaged in both copies"},
	{21, true, "a copy of a block of the descriptor table is damaged"},
	{30, false, "the catalog is damaged"},
	{31, true, "the catalog would hand out inode numbers that are in use"},
	{101, false, "a tree page cannot be read"},
	{102, false, "a tree page's checksum is wrong, its content is sound"},
	{103, false, "a tree page's content is not sound"},
	{104, false, "a tree page is not the one its parent means"},
	{110, true, "items are lost with damaged tree pages"},
	{111, true, "items were found in pages that had lost their parents"},
	{201, false, "an item of an unknown kind"},
	{202, false, "an inode is not valid"},
	{203, false, "items without their inode"},
	{205, true, "an inode's count of pages is wrong"},
	{206, true, "an inode's flags do not match its attributes"},
	{207, true, "a directory's count of entries is wrong"},
	{208, true, "a directory's link count is wrong"},
	{209, false, "a symbolic link's target is incomplete"},
	{210, false, "items that do not go with the inode's type"},
	{211, false, "an extent is not valid"},
	{212, false, "extents overlap"},
	{213, false, "pages behind the end of a file"},
	{220, false, "an item of entries is malformed"},
	{221, false, "a name that no file can have"},
	{222, true, "an entry is not where its name's hash belongs"},
	{223, false, "a name occurs twice in a directory"},
	{230, false, "an extended attribute is malformed"},
	{231, true, "an extended attribute is not where its name's hash belongs"},
	{240, true, "an orphan's item is malformed"},
	{241, true, "an intent is malformed or has no inode"},
	{242, true, "an item of nodes that open files is malformed"},
	{242, true, "a list of locks is malformed or has no inode"},
	{250, false, "the root directory is missing"},
	{302, false, "an entry names an inode that does not exist"},
	{303, true, "an entry's type is not its inode's"},
	{304, false, "a directory has more than one name"},
	{305, true, "a directory's parent is not the directory that names it"},
	{306, false, "an inode has no name"},
	{307, true, "a link count is wrong"},
	{308, true, "an inode without links is not listed as an orphan"},
	{309, true, "an orphan's item without an orphan"},
	{310, false, "directories form a loop"},
	{401, false, "a page of an allocation group is damaged"},
	{402, true, "pages in use are marked free"},
	{403, true, "pages past the end of the store are marked free"},
	{404, true, "a group's count of free pages is wrong"},
	{405, true, "a group would hand out incarnations that are in use"},
	{406, true, "pages without a user are marked as in use"},
	{407, false, "a page is used twice"},
	{408, true, "a group's owner is none of the volume's nodes"},
	{410, false, "pages in use are damaged"},
	{501, false, "file data is damaged"},
	{502, false, "file data cannot be read"},
	{503, false, "an extent names pages that were allocated anew"},
	{504, false, "file data lost its descriptors"},
};

static int code_compare(const void *a, const void *b)
{
	const struct code *x = a, *y = b;

	return x->code < y->code ? -1 : x->code > y->code;
}

static const struct code *code_find(unsigned code)
{
	struct code key = {.code = code};

	return bsearch(&key, codes, ARRAY_SIZE(codes), sizeof(codes[0]), code_compare);
}

const char *fsck_code_text(unsigned code)
{
	const struct code *c = code_find(code);

	return c ? c->text : NULL;
}

bool fsck_code_safe(unsigned code)
{
	const struct code *c = code_find(code);

	WEFT_ASSERT(c);
	return c->safe;
}
