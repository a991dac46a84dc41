/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checking and repairing a volume: everything of fsck.weft but its command line.
 *
 * Works on any disk of the runtime, so the simulator can ask for "nothing found" after a
 * cut. The codes of findings are stable; docs/fsck.md says what each means and how it is
 * repaired.
 */
#ifndef WEFT_FSCK_H
#define WEFT_FSCK_H

#include "engine/volume/volume.h"

/* How a finding was dealt with. */
enum fsck_outcome {
	FSCK_LEFT = 0, /* not repaired: not allowed, not agreed to, or not possible */
	FSCK_FIXED = 1,
	FSCK_NOTE = 2, /* no damage: something worth saying; not counted */
};

struct fsck_options {
	bool repair;     /* false: not a byte is written (-n) */
	bool preen;      /* repair only what loses nothing (-p); else exit code 4 */
	bool force;      /* check a cleanly unmounted volume in full as well (-f) */
	bool check_data; /* read every page of file data and verify its checksum (-c) */
	bool all_stores; /* the volume has no others than those given: its cluster file
			    says so */
	const uint8_t *volume_uuid; /* 16 bytes; NULL: any */
	const char *file; /* the cluster file, which names these nodes (bits); NULL: none */
	uint64_t nodes;
	uint64_t memory_bytes; /* for tables, beside bitmaps and cache; 0: 256 MiB, at
				  least 64 KiB */
	uint64_t cache_bytes;  /* 0: 64 MiB */
	void *arg;             /* passed to the functions, each of which may be NULL */
	/* May this be repaired? NULL: yes, if `repair` is set (-y). Not asked with preen.
	 */
	bool (*ask)(void *arg, unsigned code, const char *text);
	/* A finding, and what became of it. `code` 101 is printed as F0101. */
	void (*finding)(
		void *arg, unsigned code, const char *text, enum fsck_outcome outcome);
	/* `done` of `total` units of a pass; total 0: unknown. */
	void (*progress)(void *arg, unsigned pass, uint64_t done, uint64_t total);
};

/* Exit codes of fsck(8), combined by or. */
#define FSCK_EXIT_FIXED 1 /* findings were repaired */
#define FSCK_EXIT_LEFT  4 /* findings were left */
/* could not check: no store, I/O errors, no memory, in use */
#define FSCK_EXIT_OPERATIONAL 8
#define FSCK_EXIT_USAGE       16

struct fsck_result {
	uint64_t found; /* findings, notes apart */
	uint64_t fixed;
	uint64_t left;
	bool skipped; /* cleanly unmounted, and force was not set: not checked in full */
	bool was_clean; /* the log was closed cleanly */
	bool replayed;  /* it was not, and was replayed (in memory only without repair) */
	bool alone;     /* one of several stores: the volume was not checked */
	uint64_t log_records;
	uint64_t inodes, directories, data_pages, tree_pages;
	uint64_t total_pages, used_pages;
	char label[64];
	int exit_code;
};

struct fsck_input {
	struct rt_disk *disk;
	const char *name; /* to tell the stores apart */
	unsigned node;    /* whose store it has to be; 0: any */
};

/*
 * Checks the volume on the disk, and repairs it if allowed. Takes the disk: it is closed
 * in any case. 0 when the check was carried out, whatever it found (see *out); a negative
 * errno with a text when it could not be (exit_code is then 8 as well). Waits.
 */
int fsck_run(struct rt_disk *disk, const struct fsck_options *o, struct fsck_result *out,
	struct weft_error *err);
/*
 * The same for a volume of several stores, all given, in any order. One of several given
 * alone is checked as far as it goes without the others (out->alone), and only its own
 * structures are repaired.
 */
int fsck_run_stores(const struct fsck_input *stores, unsigned count,
	const struct fsck_options *o, struct fsck_result *out, struct weft_error *err);

/* The one line that docs/fsck.md has for a code; NULL for an unknown one. */
const char *fsck_code_text(unsigned code);

#endif
