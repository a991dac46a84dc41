/* SPDX-License-Identifier: Apache-2.0 */
/*
 * weft: one command for a person. Its subcommands are in files of their own; under the
 * names mount.weft, mount.fuse.weft and umount.fuse.weft it is the helper of mount(8) and
 * umount(8).
 */
#include <errno.h>
#include <locale.h>
#include <stdio.h>
#include <string.h>

#include "engine/common/text.h"
#include "fs/daemonize.h"
#include "tools/tools.h"

struct subcommand {
	const char *name;
	int (*run)(int argc, char **argv);
	const char *summary;
};

static int print_help(int argc, char **argv);

static int print_version(int argc, char **argv)
{
	puts("weft " WEFT_VERSION);
	return 0;
}

static const struct subcommand subcommands[] = {
	{"mount", weft_mount, "mount a volume: weft mount STORE DIR [-o OPTION,...]"},
	{"umount", weft_umount, "unmount it and wait until the store is closed"},
	{"sync", weft_sync, "make everything done in a volume durable: weft sync DIR"},
	{"status", weft_status, "what is mounted, and what it is doing"},
	{"top", weft_top, "nodes, requests, cache, contended files, as they change"},
	{"waits", weft_waits, "what waits, for which node, since when, and what to do"},
	{"scrub", weft_scrub, "read a mounted store for damage: weft scrub DIR"},
	{"cluster", weft_cluster, "write, show, check or extend a cluster file"},
	{"net", weft_net, "can this machine be a node, does it reach the others?"},
	{"node", weft_node,
		"start a node on this machine, or fence one that does not come back"},
	{"probe", weft_probe, "which volume has a store on a device?"},
	{"dump", weft_dump, "show a store's structures as text"},
	{"bench", weft_bench, "measure the engine on this machine"},
	{"version", print_version, "print the version"},
	{"help", print_help, "print this"},
};

static int print_help(int argc, char **argv)
{
	puts("Usage: weft COMMAND [...]      (weft COMMAND --help tells more)\n");
	for (size_t i = 0; i < ARRAY_SIZE(subcommands); i++)
		printf("  %-8s  %s\n", subcommands[i].name, subcommands[i].summary);
	puts("\nExamples:\n"
	     "  mkfs.weft --size 10G /srv/data.weft\n"
	     "  weft mount /srv/data.weft /mnt/weft\n"
	     "  weft status /mnt/weft\n"
	     "  weft umount /mnt/weft\n"
	     "\n"
	     "See also mkfs.weft(8), fsck.weft(8), weftd(8), mount.weft(8).");
	return 0;
}

static int run_subcommand(int argc, char **argv)
{
	const char *known[ARRAY_SIZE(subcommands) + 1] = {NULL};
	char self[32]; /* what getopt(3) begins its messages with */

	for (size_t i = 0; i < ARRAY_SIZE(subcommands); i++) {
		known[i] = subcommands[i].name;
		if (strcmp(argv[0], subcommands[i].name) != 0)
			continue;
		snprintf(self, sizeof(self), "weft %s", subcommands[i].name);
		argv[0] = self;
		return subcommands[i].run(argc, argv);
	}
	return weft_wrong_word("weft", "command", argv[0], known);
}

static int run_command(int argc, char **argv)
{
	if (argc < 2)
		return weft_usage(
			"weft: which command? `weft --help` lists them\n", false);
	if (strcmp(argv[1], "--help") == 0 || strcmp(argv[1], "-h") == 0)
		return print_help(argc, argv);
	if (strcmp(argv[1], "--version") == 0 || strcmp(argv[1], "-V") == 0)
		return print_version(argc, argv);
	return run_subcommand(argc - 1, argv + 1);
}

int main(int argc, char **argv)
{
	const char *slash = argc > 0 ? strrchr(argv[0], '/') : NULL;
	const char *self = slash ? slash + 1 : argc > 0 ? argv[0] : "weft";
	int code;

	setlocale(LC_CTYPE, ""); /* names of files are printed by their characters */
	if (strcmp(self, "mount.weft") == 0 || strcmp(self, "mount.fuse.weft") == 0)
		return mount_helper(argc, argv);
	if (strcmp(self, "umount.weft") == 0 || strcmp(self, "umount.fuse.weft") == 0)
		return umount_helper(argc, argv);
	code = run_command(argc, argv);
	if (fflush(stdout) != 0 || ferror(stdout)) {
		fprintf(stderr, "weft: cannot write the output: %s\n", strerror(errno));
		return code ? code : EXIT_FAILED;
	}
	return code;
}
