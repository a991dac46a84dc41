/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checks and repairs a volume: all of fsck.weft except its command line.
 *
 * Works on any disk of the runtime, so the simulator can check that there are no findings after a
 * cut. The codes of findings are stable. docs/fsck.md has their meanings and repairs.
 */
#ifndef WEFT_FSCK_H
#define WEFT_FSCK_H

#include "engine/volume/volume.h"

/* The outcome of a finding. */
enum fsck_outcome {
	FSCK_LEFT = 0, /* not repaired: not allowed, declined, or not possible */
	FSCK_FIXED = 1,
	FSCK_NOTE = 2, /* no damage, only a remark; not counted */
};

struct fsck_options {
	bool repair;     /* false: writes no byte (-n) */
	bool preen;      /* makes only repairs that lose no data (-p); for others exit code 4 */
	bool force;      /* check a cleanly unmounted volume in full as well (-f) */
	bool check_data; /* read every page of file data and verify its checksum (-c) */
	bool all_stores; /* by the cluster file, the volume has only the given stores */
	const uint8_t *volume_uuid; /* 16 bytes; NULL: any */
	const char *file; /* the cluster file that names these nodes (bits); NULL: none */
	uint64_t nodes;
	uint64_t memory_bytes; /* for tables, beside bitmaps and cache; 0: 256 MiB, at
				  least 64 KiB */
	uint64_t cache_bytes; /* 0: 64 MiB */
	void *arg;            /* passed to the functions, each of which may be NULL */
	/* Returns true if this may be repaired. NULL: yes, if `repair` is set (-y). Not called with
	 * preen. */
	bool (*ask)(void *arg, unsigned code, const char *text);
	/* Reports a finding and its outcome. `code` 101 is printed as F0101. */
	void (*finding)(
		void *arg, unsigned code, const char *text, enum fsck_outcome outcome);
	/* Reports progress: `done` of `total` units of a pass; total 0: unknown. */
	void (*progress)(void *arg, unsigned pass, uint64_t done, uint64_t total);
};

/* Exit codes of fsck(8), combined by or. */
#define FSCK_EXIT_FIXED 1 /* findings were repaired */
#define FSCK_EXIT_LEFT  4 /* findings were left */
/* the check failed: no store, I/O errors, no memory, in use */
#define FSCK_EXIT_OPERATIONAL 8
#define FSCK_EXIT_USAGE       16

struct fsck_result {
	uint64_t found; /* number of findings, without notes */
	uint64_t fixed;
	uint64_t left;
	bool skipped;   /* cleanly unmounted, and force was not set: not checked in full */
	bool was_clean; /* the log was closed cleanly */
	bool replayed;  /* it was not, and was replayed (without `repair` in memory only) */
	bool alone;     /* one of several stores: the volume was not checked */
	uint64_t log_records;
	uint64_t inodes, directories, data_pages, tree_pages;
	uint64_t total_pages, used_pages;
	char label[64];
	int exit_code;
};

struct fsck_input {
	struct rt_disk *disk;
	const char *name; /* distinguishes the stores */
	unsigned node;    /* node of the store; 0: any */
};

/*
 * Checks the volume on the disk, and repairs it if allowed. Always closes the disk. Returns 0 if
 * the check was carried out, with findings or without (see *out). Returns -errno with a text if it
 * could not be; exit_code is then 8. Waits.
 */
int fsck_run(struct rt_disk *disk, const struct fsck_options *o, struct fsck_result *out,
	struct weft_error *err);
/*
 * As fsck_run, for a volume of several stores, all given, in any order. If one of several is given
 * alone, it is checked as far as possible without the others (out->alone). Only its own structures
 * are then repaired. Waits.
 */
int fsck_run_stores(const struct fsck_input *stores, unsigned count,
	const struct fsck_options *o, struct fsck_result *out, struct weft_error *err);

/* Returns the line of docs/fsck.md for a code; NULL: unknown code. */
const char *fsck_code_text(unsigned code);

#endif
