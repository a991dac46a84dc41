/* SPDX-License-Identifier: Apache-2.0 */
/* The state of reading a cluster file's text, for file.c and pairs.c. */
#ifndef WEFT_CLUSTER_PARSE_INTERNAL_H
#define WEFT_CLUSTER_PARSE_INTERNAL_H

#include "engine/cluster/cluster_internal.h"

#define SECTION_BYTES 32u

enum section { SECTION_NONE, SECTION_VOLUME, SECTION_NODE, SECTION_MACHINE };

struct parse {
	struct cluster *c;
	struct weft_error *err;
	int rc;              /* the first error's, or 0 */
	unsigned wrong_line; /* and its line */
	const char *next, *end;
	unsigned line; /* the number of the line that libinih has */
	enum section section;
	char section_name[SECTION_BYTES]; /* without brackets */
	unsigned section_line;
	struct cluster_member *member; /* with SECTION_NODE and SECTION_MACHINE */
	unsigned machine;              /* of the member; 1 with SECTION_NODE */
};

/* The first error of the file counts. All others may follow from it. */
#define WRONG_AT(p, at, key, ...)                                                        \
	((p)->rc ? (p)->rc                                                               \
		 : ((p)->wrong_line = (at),                                              \
			   (p)->rc = cluster_file_error((p)->err, (p)->c->path, (at),    \
				   (p)->section == SECTION_NONE ? NULL                   \
								: (p)->section_name,     \
				   (key), __VA_ARGS__)))
#define WRONG(p, key, ...) WRONG_AT(p, (p)->line, key, __VA_ARGS__)

/* Checks the values that no two nodes, and no two machines of a node, may share. An error names the
 * later line, since that one was added. */
void cluster_pairs_check(struct parse *p);

#endif
