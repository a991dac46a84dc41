/* SPDX-License-Identifier: Apache-2.0 */
/* The files of the page, taken in from fs/page/. This object depends on them in the Makefile. */
#include <string.h>

#include "fs/metrics.h"

#define INCLUDE_FILE(symbol, file)                                                            \
	__asm__(".pushsection .rodata\n" #symbol ":\n.incbin \"" file "\"\n" #symbol            \
		"_end:\n.popsection\n");                                                        \
	extern const char symbol[] __attribute__((visibility("hidden")));                       \
	extern const char symbol##_end[] __attribute__((visibility("hidden")))

INCLUDE_FILE(page_html, "fs/page/page.html");
INCLUDE_FILE(page_css, "fs/page/page.css");
INCLUDE_FILE(page_js, "fs/page/page.js");

static const struct page_file files[] = {
	{"/", "text/html; charset=utf-8", page_html, page_html_end},
	{"/page.css", "text/css; charset=utf-8", page_css, page_css_end},
	{"/page.js", "text/javascript; charset=utf-8", page_js, page_js_end},
};

const struct page_file *page_file_find(const char *path)
{
	for (unsigned i = 0; i < ARRAY_SIZE(files); i++)
		if (strcmp(files[i].path, path) == 0)
			return &files[i];
	return NULL;
}
