/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests whose nodes have files: a world (tests/world/world.h) whose nodes open the volume with
 * the operations. A test may define FRAMES, LOG_BYTES and LOOK_EVERY before it includes this.
 */
#ifndef WEFT_TEST_CLUSTER_WORLD_H
#define WEFT_TEST_CLUSTER_WORLD_H

#include <inttypes.h>

#include "engine/coherence/peers.h"
#include "engine/coherence/protocol/protocol.h"
#include "tests/sim/check_fsck.h"
#include "tests/unit/ops_fixture.h"
#include "tests/world/world.h"

#ifndef LOG_BYTES
#define LOG_BYTES (4ull << 20)
#endif
#ifndef FRAMES
#define FRAMES 160
#endif
#ifndef LOOK_EVERY
#define LOOK_EVERY 1
#endif
#define SEEDS 10

/* Makes the nodes and their stores, of the test's sizes if `w` says nothing else. */
static inline void cluster_format(struct world *w)
{
	w->frames = w->frames ? w->frames : FRAMES;
	w->log_bytes = w->log_bytes ? w->log_bytes : LOG_BYTES;
	w->look_every = w->look_every ? w->look_every : LOOK_EVERY;
	world_format(w);
}

static inline int run_world(void *arg)
{
	struct world *w = (struct world *)arg;

	cluster_format(w);
	return world_run(w);
}

/* Where the bytes of a read go. */
struct bytes {
	uint8_t *to;
	size_t len;
};

static inline int take_bytes(
	void *arg, const struct iovec *iov, unsigned count, size_t total)
{
	struct bytes *b = (struct bytes *)arg;

	for (unsigned i = 0; i < count; i++) {
		memcpy(b->to + b->len, iov[i].iov_base, iov[i].iov_len);
		b->len += iov[i].iov_len;
	}
	return (int)total;
}

#endif
