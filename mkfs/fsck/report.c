/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Reports findings, asks about repairs, and counts both.
 *
 * A finding that was left is reported once, though later rounds meet it again. For this, hashes of
 * the texts are kept, more than a user would read. Keeps: without permission no repair is made.
 * With several stores, the current one (f->at) is named first.
 */
#include <stdarg.h>
#include <stdio.h>

#include "engine/common/siphash.h"
#include "mkfs/fsck/fsck_internal.h"

static void write_finding(
	struct fsck *f, unsigned code, const char *text, enum fsck_outcome outcome)
{
	if (f->o->finding)
		f->o->finding(f->o->arg, code, text, outcome);
}

static uint64_t text_hash(unsigned code, const char *text)
{
	const uint64_t key[2] = {code, 0};

	return siphash_2_4(key, text, strlen(text)) | 1;
}

/* Returns true if it was reported in an earlier round. Otherwise notes it. */
static bool told_before(struct fsck *f, unsigned code, const char *text)
{
	uint64_t hash = text_hash(code, text);
	uint32_t at = (uint32_t)hash % (2 * DECLINED_MAX);

	while (f->declined[at] && f->declined[at] != hash)
		at = (at + 1) % (2 * DECLINED_MAX);
	if (f->declined[at])
		return true;
	if (f->declined_count < DECLINED_MAX) {
		f->declined[at] = hash;
		f->declined_count++;
	}
	return false;
}

static bool is_declined(const struct fsck *f, unsigned code, const char *text)
{
	uint64_t hash = text_hash(code, text);
	uint32_t at = (uint32_t)hash % (2 * DECLINED_MAX);

	while (f->declined[at] && f->declined[at] != hash)
		at = (at + 1) % (2 * DECLINED_MAX);
	return f->declined[at] != 0;
}

static void leave_finding(struct fsck *f, unsigned code, const char *text)
{
	if (told_before(f, code, text))
		return;
	f->out->found++;
	f->out->left++;
	write_finding(f, code, text, FSCK_LEFT);
}

static bool may_repair(struct fsck *f, unsigned code, const char *text)
{
	if (!f->o->repair || !f->writable || f->keep)
		return false;
	if (f->o->preen)
		return fsck_code_safe(code);
	return !f->o->ask || f->o->ask(f->o->arg, code, text);
}

static void text_make(
	const struct fsck *f, char *text, size_t cap, const char *fmt, va_list ap)
{
	size_t used = 0;

	if (f->at && f->store_count > 1)
		used = (size_t)snprintf(text, cap, "%.*s: ", STORE_NAME, f->at->in.name);
	vsnprintf(text + used, cap - used, fmt, ap);
}

bool fsck_found(struct fsck *f, unsigned code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	text_make(f, f->text, sizeof(f->text), fmt, ap);
	va_end(ap);
	f->code = code;
	if (is_declined(f, code, f->text))
		return false;
	if (may_repair(f, code, f->text))
		return true;
	leave_finding(f, code, f->text);
	return false;
}

int fsck_repaired(struct fsck *f, int rc)
{
	if (rc == 0) {
		f->out->found++;
		f->out->fixed++;
		f->changed = true;
		write_finding(f, f->code, f->text, FSCK_FIXED);
		return 0;
	}
	leave_finding(f, f->code, f->text);
	fsck_note(f, f->code, "this could not be repaired: %s", strerrordesc_np(-rc));
	/* Other damage on the way is left to the next round. Without disk or memory there is
	 * none. */
	return rc == -EUCLEAN || rc == -ENOSPC || rc == -ENOENT || rc == -ERANGE ? 0 : rc;
}

void fsck_left(struct fsck *f, unsigned code, const char *fmt, ...)
{
	va_list ap;

	va_start(ap, fmt);
	text_make(f, f->text, sizeof(f->text), fmt, ap);
	va_end(ap);
	leave_finding(f, code, f->text);
}

void fsck_note(struct fsck *f, unsigned code, const char *fmt, ...)
{
	char text[sizeof(f->text)];
	va_list ap;

	va_start(ap, fmt);
	text_make(f, text, sizeof(text), fmt, ap);
	va_end(ap);
	if (!told_before(f, code, text))
		write_finding(f, code, text, FSCK_NOTE);
}

void fsck_progress(struct fsck *f, unsigned pass, uint64_t done, uint64_t total)
{
	if (f->o->progress)
		f->o->progress(f->o->arg, pass, done, total);
}
