/* SPDX-License-Identifier: Apache-2.0 */
/* What the files of scrub share. Nobody else includes it. */
#ifndef WEFT_SCRUB_INTERNAL_H
#define WEFT_SCRUB_INTERNAL_H

#include "engine/volume/scrub.h"

enum suspect_user {
	SUSPECT_UNUSED, /* no page of the tree, and nothing in the tree names it */
	SUSPECT_CATALOG,
	SUSPECT_GROUP,
	SUSPECT_TREE,
	SUSPECT_FILE,
	SUSPECT_XATTR,
};

/* A page that does not read well. */
struct suspect {
	page_id pid;
	int why;                   /* -EIO, -EUCLEAN */
	uint64_t incarnation;      /* of its descriptor; 0: that is lost */
	enum suspect_user user;
	uint64_t ino;              /* of SUSPECT_FILE and SUSPECT_XATTR */
	uint64_t block;            /* of SUSPECT_FILE: in the file */
	uint64_t user_incarnation; /* that the extent names */
};

/*
 * Finds the users of the pages, which are in the order of their ids, by walks over the whole tree.
 * *unread: the number of pages of the tree that could not be read; users that they name are not
 * found. Returns 0 or a negative errno. Waits.
 */
int scrub_find_users(
	struct volume *v, struct suspect *list, unsigned count, unsigned *unread);
/* Finds a name of each file among the suspects, by one walk over all names. Free *out with rt_free.
 * Returns 0 or -ENOMEM. Waits. */
struct scrub_names;
int scrub_names_find(struct volume *v, const struct suspect *list, unsigned count,
	struct scrub_names **out);
/* Writes the path of an inode, "/a/b" with "?" for control characters. Writes "inode N" if a name
 * is missing, or `names` is NULL. Waits. */
void scrub_path_print(struct volume *v, const struct scrub_names *names, uint64_t ino,
	char *out, size_t cap);

#endif
