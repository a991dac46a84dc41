/* SPDX-License-Identifier: Apache-2.0 */
/* Scrub: a task that reads this node's store for damage while the volume is in use (docs/fsck.md,
 * "Scrub"). */
#ifndef WEFT_SCRUB_H
#define WEFT_SCRUB_H

#include "engine/volume/volume.h"

struct scrub;

#define SCRUB_RATE_DEFAULT (64ull << 20) /* bytes a second */
#define SCRUB_RATE_MIN     (1ull << 16)
#define SCRUB_FINDINGS_MAX 64u /* that are kept as text; more are counted */
#define SCRUB_TEXT_MAX     1024u

struct scrub_status {
	struct disk_scrub progress; /* `next` and `pages` of this moment */
	uint64_t page_count;        /* slots of the store */
	uint64_t healed; /* damaged images that a newer one in memory was written over */
	unsigned findings; /* number of texts: scrub_finding */
	bool halted;       /* scrub_halt was called */
};

/* Makes the task. It goes on with a scrub that ran when the store was closed, or the node crashed.
 * Returns 0 or a negative errno. */
int scrub_open(struct scrub **out, struct volume *v);
/* Notes how far a scrub is, and ends the task: before the node leaves, or the volume is closed. The
 * status can still be read. NULL is allowed. Waits. */
void scrub_halt(struct scrub *s);
/* Does scrub_halt, and frees it. NULL is allowed. */
void scrub_close(struct scrub *s);
/* Begins a scrub, or goes on with a stopped one. `rate_bytes`: at most so many a second; 0: as the
 * last one. `anew`: begins from the start. Has no effect but on the rate if one runs. Returns 0,
 * or -ESHUTDOWN after scrub_halt. Never waits. */
int scrub_start(struct scrub *s, uint64_t rate_bytes, bool anew);
/* Stops it where it is. Never waits. */
void scrub_stop(struct scrub *s);
void scrub_status(struct scrub *s, struct scrub_status *out);
/* Copies the text of a finding, in the order of their places. Returns false if there is none. */
bool scrub_finding(struct scrub *s, unsigned index, char out[SCRUB_TEXT_MAX]);

#endif
