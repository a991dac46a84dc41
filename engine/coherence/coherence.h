/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who may hold a page how (ScaleStore §3.1: modes; §3.2: directory at the home).
 *
 * The cache asks here for every page that it holds in too weak a mode, and tells
 * here what it gives up. Behind the table stands one provider per volume: on one
 * node `coherence_single`, whose directory always grants; the distributed protocol
 * fills the same table.
 */
#ifndef WEFT_COHERENCE_H
#define WEFT_COHERENCE_H

#include "engine/common/base.h"

enum page_mode {
	PAGE_INVALID = 0,   /* no right, no copy */
	PAGE_SHARED = 1,    /* may read */
	PAGE_EXCLUSIVE = 2, /* only holder: may read and change */
};

/* Where the image of a granted page comes from. */
enum page_source {
	PAGE_FROM_HELD = 0, /* the frame's own image stays valid (upgrade) */
	PAGE_FROM_STORE,    /* the home's store, which is this node's */
	PAGE_FROM_PEER,     /* arrives in the frame by the protocol */
};

struct coherence_request {
	page_id pid;
	uint64_t incarnation; /* wanted; 0: any. The home refuses an older one: -ESTALE */
	enum page_mode wanted;
	enum page_mode held;
	void *image; /* the requester's frame, for PAGE_FROM_PEER */
	/* out */
	int result;
	enum page_source source;
	enum page_mode granted; /* at least `wanted`; a lone reader may be given X */
	uint64_t version;       /* with PAGE_FROM_PEER */
};

struct coherence;
struct coherence_ops {
	/* Asks for all pages at once. May wait; the caller holds no latch but those of
	 * the frames being filled. */
	void (*acquire)(
		struct coherence *c, struct coherence_request *requests, unsigned count);
	/* The node dropped its copy. Never waits. */
	void (*release)(struct coherence *c, page_id pid, enum page_mode held);
	void (*close)(struct coherence *c);
};

struct coherence {
	const struct coherence_ops *ops;
};

/* The provider for a volume of one node: grants X from the store, at once. */
int coherence_single_open(struct coherence **out);

#endif
