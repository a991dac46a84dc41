/* SPDX-License-Identifier: Apache-2.0 */
/* The -o options of weftd and mount.weft. */
#ifndef WEFT_FS_OPTIONS_H
#define WEFT_FS_OPTIONS_H

#include "fs/metrics.h"
#include "fs/ops/ops.h"
#include "fs/uring.h"

#ifndef MS_NOSYMFOLLOW
#define MS_NOSYMFOLLOW 256
#endif

struct mount_options {
	char *store; /* absolute path of the store; before source_open, of the store or cluster
		      * file */
	char *cluster_file; /* absolute path of the cluster file; NULL: a single store */
	unsigned node;      /* id of this node in it; 0: not given */
	char *directory;    /* absolute path of the mount point */
	uint64_t cache_bytes;
	bool cache_given; /* by an option, or by the cluster file */
	bool learned_given; /* if not, learned_bytes follows from cache_bytes */
	uint64_t learned_bytes;
	uint64_t log_interval_ms;
	bool read_only;
	bool allow_other;
	bool atime_given; /* set by an option, not by default */
	bool soft;        /* a request that waits for other nodes longer than timeout_ms fails */
	uint64_t timeout_ms;
	bool restart;  /* with other nodes: a killed daemon is restarted for them */
	unsigned mmap; /* enum ops_mmap */
	enum uring_mode uring;
	char metrics[METRICS_ADDRESS_MAX]; /* address to listen on; empty: none */
	unsigned atime;                    /* of struct ops_options */
	unsigned long flags; /* MS_* for mount(2), without MS_RDONLY and the atime flags */
	char source[256];    /* source that mount(8) and df show; empty: the path given */
};

/* Sets the defaults. */
void mount_options_default(struct mount_options *o);
/* Reads a comma-separated list into *o. Later words win. Returns 0, or -EINVAL with a text that
 * names an unknown word. */
int mount_options_parse(
	struct mount_options *o, const char *list, struct weft_error *err);
/* Returns the size of the table of places of leaves; 0: none. */
uint64_t mount_options_learned(const struct mount_options *o);
/* Prints the current options as such a list. */
void mount_options_print(const struct mount_options *o, char *buf, size_t cap);
void mount_options_free(struct mount_options *o);

#endif
