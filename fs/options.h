/* SPDX-License-Identifier: Apache-2.0 */
/* What a mount was asked to be: the -o options of weftd and mount.weft. */
#ifndef WEFT_FS_OPTIONS_H
#define WEFT_FS_OPTIONS_H

#include "fs/metrics.h"
#include "fs/ops/ops.h"
#include "fs/uring.h"

#ifndef MS_NOSYMFOLLOW
#define MS_NOSYMFOLLOW 256
#endif

struct mount_options {
	char *store; /* absolute path of the store; of the cluster file until source_open */
	char *cluster_file; /* its absolute path; NULL: a store by itself */
	unsigned node;      /* this one's id in it; 0: not said */
	char *directory;    /* absolute path of the mount point */
	uint64_t cache_bytes;
	uint64_t log_interval_ms;
	bool read_only;
	bool allow_other;
	bool atime_given; /* by a word, so not only by default */
	bool soft;        /* what waits for other nodes longer than timeout_ms fails */
	uint64_t timeout_ms;
	bool restart; /* with other nodes: a daemon that is killed is started again, for them */
	unsigned mmap; /* enum ops_mmap */
	enum uring_mode uring;
	char metrics[METRICS_ADDRESS_MAX]; /* where to listen; empty: nowhere */
	unsigned atime;                    /* of struct ops_options */
	unsigned long flags; /* MS_* for mount(2), without MS_RDONLY and the atime ones */
	char source[256];    /* what mount(8) and df show; empty: what was named */
};

/* Fills in what holds when no option is given. */
void mount_options_default(struct mount_options *o);
/*
 * Reads a comma-separated list into *o. Later words win. Unknown words are an error with
 * a text that names the word. 0 or -EINVAL.
 */
int mount_options_parse(
	struct mount_options *o, const char *list, struct weft_error *err);
/* The options as they are in force, as a list again. */
void mount_options_print(const struct mount_options *o, char *buf, size_t cap);
void mount_options_free(struct mount_options *o);

#endif
