/* SPDX-License-Identifier: Apache-2.0 */
/* Prints what libblkid's probe for weft (packaging/libblkid) finds in a file, as `weft probe` does. */
#include <string.h>

#include "superblocks.h"

extern const struct blkid_idinfo weft_idinfo;

static const char *path;

static void print_uuid(const char *name, const unsigned char *uuid)
{
	printf(" %s=\"", name);
	for (unsigned i = 0; i < 16; i++)
		printf("%s%02x", i == 4 || i == 6 || i == 8 || i == 10 ? "-" : "", uuid[i]);
	printf("\"");
}

void blkid_probe_set_label(blkid_probe pr, const unsigned char *label, size_t len)
{
	printf("%s: LABEL=\"%.*s\"", path, (int)len, (const char *)label);
}

void blkid_probe_set_uuid(blkid_probe pr, const unsigned char *uuid)
{
	print_uuid("UUID", uuid);
}

void blkid_probe_set_uuid_as(blkid_probe pr, const unsigned char *uuid, const char *name)
{
	print_uuid(name, uuid);
}

void blkid_probe_sprintf_version(blkid_probe pr, const char *format, unsigned version)
{
}

void blkid_probe_set_block_size(blkid_probe pr, unsigned bytes)
{
	printf(" TYPE=\"%s\"\n", weft_idinfo.name);
}

int main(int argc, char **argv)
{
	const struct blkid_idmag *magic = &weft_idinfo.magics[0];
	static char superblock[4096];
	FILE *f = fopen(path = argv[1], "r");

	if (!f || fread(superblock, 1, sizeof(superblock), f) != sizeof(superblock))
		return 2;
	if (memcmp(superblock, magic->magic, magic->len) != 0)
		return 1;
	return weft_idinfo.probefunc(superblock, magic);
}
