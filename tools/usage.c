/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a wrong command line is told: the word that is wrong, the word that may have been meant,
 * and where to read on. The whole usage is for those who ask for it or say nothing.
 */
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "engine/common/text.h"
#include "fs/daemonize.h"
#include "tools/tools.h"

int weft_usage(const char *text, bool asked_for)
{
	fputs(text, asked_for ? stdout : stderr);
	return asked_for ? 0 : EXIT_USAGE;
}

int weft_wrong(const char *who, const char *fmt, ...)
{
	va_list args;

	fprintf(stderr, "%s: ", who);
	va_start(args, fmt);
	vfprintf(stderr, fmt, args);
	va_end(args);
	fprintf(stderr, "; try `%s --help`\n", who);
	return EXIT_USAGE;
}

int weft_wrong_word(
	const char *who, const char *what, const char *word, const char *const *known)
{
	struct text_nearest near = {.word = word, .bytes = strlen(word)};

	for (const char *const *k = known; *k; k++)
		text_nearest_try(&near, *k);
	fprintf(stderr, "%s: unknown %s \"%s\"; ", who, what, word);
	if (near.best)
		fprintf(stderr, "did you mean \"%s\"? ", near.best);
	fprintf(stderr, "`%s --help` lists them\n", who);
	return EXIT_USAGE;
}

int weft_option(const char *usage, int c, char **argv, const struct option *words)
{
	const char *wrong = optind > 0 ? argv[optind - 1] : "";
	struct text_nearest near = {0};

	if (c == 'h')
		return weft_usage(usage, true);
	/* getopt_long(3) has named the word */
	if (strncmp(wrong, "--", 2) == 0) {
		near.word = wrong + 2;
		near.bytes = strcspn(near.word, "=");
		for (; words->name; words++)
			text_nearest_try(&near, words->name);
	}
	if (near.best && near.distance)
		fprintf(stderr, "%s: did you mean --%s? Try `%s --help`\n", argv[0],
			near.best, argv[0]);
	else
		fprintf(stderr, "Try `%s --help`\n", argv[0]);
	return EXIT_USAGE;
}

int weft_operands(const char *usage, int argc, char **argv, int least, int most,
	const char *expected)
{
	int count = argc - optind;

	if (count > most)
		return weft_wrong(argv[0], "\"%s\" is one word too many: expected %s",
			argv[optind + most], expected);
	if (count >= least)
		return 0;
	return argc > 1 ? weft_wrong(argv[0], "expected %s", expected)
			: weft_usage(usage, false);
}
