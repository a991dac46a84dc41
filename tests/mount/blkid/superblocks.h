/* SPDX-License-Identifier: Apache-2.0 */
/* As much of libblkid's superblocks.h as a probe needs, for a test of packaging/libblkid. */
#include <endian.h>
#include <errno.h>
#include <stdint.h>
#include <stdio.h>

#define le32_to_cpu le32toh
#define le64_to_cpu le64toh
#define BLKID_PROBE_OK         0
#define BLKID_PROBE_NONE       1
#define BLKID_USAGE_FILESYSTEM 2
#define blkid_probe_get_sb(pr, mag, type) ((type *)(pr))

typedef void *blkid_probe;

struct blkid_idmag {
	const char *magic;
	unsigned len;
};

struct blkid_idinfo {
	const char *name;
	int usage;
	int (*probefunc)(blkid_probe pr, const struct blkid_idmag *mag);
	struct blkid_idmag magics[2];
};

void blkid_probe_set_label(blkid_probe pr, const unsigned char *label, size_t len);
void blkid_probe_set_uuid(blkid_probe pr, const unsigned char *uuid);
void blkid_probe_set_uuid_as(blkid_probe pr, const unsigned char *uuid, const char *name);
void blkid_probe_sprintf_version(blkid_probe pr, const char *format, unsigned version);
void blkid_probe_set_block_size(blkid_probe pr, unsigned bytes);
