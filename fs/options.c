/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The -o options: their meaning, their limits, and messages about wrong ones.
 *
 * All input from the command line and fstab is checked (invariant 9).
 */
#include "fs/options.h"

#include <errno.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mount.h>
#include <unistd.h>

#include "engine/common/text.h"

#define LEARNED_MIN_BYTES       (64ull << 10)
#define LEARNED_DEFAULT_MIN     (256ull << 10)
#define LEARNED_DEFAULT_PART    64u /* of the cache */
#define CACHE_MIN_BYTES         (1ull << 20)
#define CACHE_DEFAULT_MAX_BYTES (1ull << 30)
#define LOG_INTERVAL_MAX_S      3600
#define TIMEOUT_MAX_S           86400

/* An option without a value that sets or clears mount(2) flags. */
struct flag_word {
	const char *word;
	unsigned long set;
	unsigned long clear;
};

static const struct flag_word flag_words[] = {
	{"nodev", MS_NODEV, 0},
	{"dev", 0, MS_NODEV},
	{"nosuid", MS_NOSUID, 0},
	{"suid", 0, MS_NOSUID},
	{"noexec", MS_NOEXEC, 0},
	{"exec", 0, MS_NOEXEC},
	{"sync", MS_SYNCHRONOUS, 0},
	{"async", 0, MS_SYNCHRONOUS},
	{"dirsync", MS_DIRSYNC, 0},
	{"nosymfollow", MS_NOSYMFOLLOW, 0},
	{"symfollow", 0, MS_NOSYMFOLLOW},
	{"nodiratime", MS_NODIRATIME, 0},
	{"diratime", 0, MS_NODIRATIME},
	{"silent", MS_SILENT, 0},
	{"loud", 0, MS_SILENT},
};

/* An option without a value that sets a field. */
struct bool_word {
	const char *word;
	size_t field; /* a bool of struct mount_options */
	bool value;
};

#define FIELD(name) offsetof(struct mount_options, name)
static const struct bool_word bool_words[] = {
	{"ro", FIELD(read_only), true},
	{"rw", FIELD(read_only), false},
	{"soft", FIELD(soft), true},
	{"hard", FIELD(soft), false},
	{"restart", FIELD(restart), true},
	{"norestart", FIELD(restart), false},
	{"allow_other", FIELD(allow_other), true},
	{"noallow_other", FIELD(allow_other), false},
};

/* Options without an effect here, of mount(8) for every filesystem, or of FUSE. Either mount(8) has
 * applied them, or they are always in force, or they are hints. */
static const char *const ignored_words[] = {
	"defaults", "_netdev", "auto", "noauto", "nofail", "user", "nouser", "users",
	"nousers", "owner", "noowner", "group", "nogroup", "default_permissions",
	"acl", /* always */
	"user_xattr", "lazytime", "nolazytime", "iversion", "noiversion",
	"mand",                             /* Linux has no mandatory locks any more */
	"nomand", "norelatime",             /* Linux uses relatime all the same */
	"discard", "nodiscard", "seclabel", /* shown by the kernel */
};

static const char *const ignored_prefixes[] = {
	"x-",
	"X-",
	"comment=",
	"user=",
	"context=",
	"fscontext=",
	"defcontext=",
	"rootcontext=",
	"uhelper=",
	"helper=",
	"subtype=",
	/* The kernel shows these for a FUSE mount, and mount(8) repeats them in a remount. */
	"fd=",
	"rootmode=",
	"user_id=",
	"group_id=",
	"max_read=",
	"blksize=",
};

void mount_options_default(struct mount_options *o)
{
	uint64_t ram =
		(uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

	*o = (struct mount_options){
		.log_interval_ms = 5000,
		.timeout_ms = 60000,
		.restart = true,
		.mmap = OPS_MMAP_SHARED,
		.allow_other = geteuid() == 0,
		.atime = OPS_RELATIME,
	};
	o->cache_bytes =
		MIN(CACHE_DEFAULT_MAX_BYTES, ram / 4) & ~(uint64_t)(PAGE_SIZE - 1);
	o->cache_bytes = MAX(o->cache_bytes, CACHE_MIN_BYTES);
	if (geteuid() != 0)
		o->flags = MS_NOSUID | MS_NODEV;
}

static int parse_cache(struct mount_options *o, const char *value, struct weft_error *err)
{
	uint64_t bytes;
	uint64_t ram =
		(uint64_t)sysconf(_SC_PHYS_PAGES) * (uint64_t)sysconf(_SC_PAGESIZE);

	if (size_parse(value, &bytes) < 0)
		return weft_error(err, -EINVAL,
			"option cache=%s: not a size; write it like cache=512M", value);
	if (bytes < CACHE_MIN_BYTES || bytes > ram)
		return weft_error(err, -EINVAL,
			"option cache=%s: must be between 1M and this machine's memory, "
			"%" PRIu64 "M",
			value, ram >> 20);
	o->cache_bytes = bytes & ~(uint64_t)(PAGE_SIZE - 1);
	o->cache_given = true;
	return 0;
}

static int parse_learned(
	struct mount_options *o, const char *value, struct weft_error *err)
{
	uint64_t bytes;

	if (size_parse(value, &bytes) < 0)
		return weft_error(err, -EINVAL,
			"option learned=%s: not a size; write it like learned=1M, or 0",
			value);
	if (bytes && (bytes < LEARNED_MIN_BYTES || bytes > CACHE_DEFAULT_MAX_BYTES))
		return weft_error(err, -EINVAL,
			"option learned=%s: must be 0, or between 64K and %" PRIu64 "M",
			value, (uint64_t)CACHE_DEFAULT_MAX_BYTES >> 20);
	o->learned_bytes = bytes;
	o->learned_given = true;
	return 0;
}

static int parse_log_interval(
	struct mount_options *o, const char *value, struct weft_error *err)
{
	char *end;
	double seconds;

	errno = 0;
	seconds = strtod(value, &end);
	if (errno || end == value || *end ||
		!(seconds >= 0.01 && seconds <= LOG_INTERVAL_MAX_S))
		return weft_error(err, -EINVAL,
			"option log_interval=%s: must be seconds, 0.01 to %d", value,
			LOG_INTERVAL_MAX_S);
	o->log_interval_ms = (uint64_t)(seconds * 1000);
	return 0;
}

static int parse_timeout(
	struct mount_options *o, const char *value, struct weft_error *err)
{
	uint64_t seconds;

	if (number_parse(value, &seconds) < 0 || !seconds || seconds > TIMEOUT_MAX_S)
		return weft_error(err, -EINVAL,
			"option timeout=%s: must be seconds, 1 to %d", value,
			TIMEOUT_MAX_S);
	o->timeout_ms = seconds * 1000;
	return 0;
}

static int parse_node(struct mount_options *o, const char *value, struct weft_error *err)
{
	uint64_t node;

	if (number_parse(value, &node) < 0 || !node || node > DISK_NODE_MAX)
		return weft_error(err, -EINVAL,
			"option node=%s: must be a node of the cluster file, 1 to %u",
			value, DISK_NODE_MAX);
	o->node = (unsigned)node;
	return 0;
}

static int parse_uring(struct mount_options *o, const char *value, struct weft_error *err)
{
	if (strcmp(value, "auto") == 0)
		o->uring = URING_AUTO;
	else if (strcmp(value, "on") == 0)
		o->uring = URING_ON;
	else if (strcmp(value, "off") == 0)
		o->uring = URING_OFF;
	else
		return weft_error(
			err, -EINVAL, "option uring=%s: must be auto, on or off", value);
	return 0;
}

static int parse_metrics(
	struct mount_options *o, const char *value, struct weft_error *err)
{
	struct sockaddr_storage unused;

	if (strlen(value) >= sizeof(o->metrics) || !metrics_address_parse(value, &unused))
		return weft_error(err, -EINVAL,
			"option metrics=%s: must be an IP address and a port, like "
			"127.0.0.1:9339 or [::1]:9339",
			value);
	strcpy(o->metrics, value);
	return 0;
}

static int parse_mmap(struct mount_options *o, const char *value, struct weft_error *err)
{
	if (strcmp(value, "shared") == 0)
		o->mmap = OPS_MMAP_SHARED;
	else if (strcmp(value, "local") == 0)
		o->mmap = OPS_MMAP_LOCAL;
	else if (strcmp(value, "off") == 0)
		o->mmap = OPS_MMAP_OFF;
	else
		return weft_error(err, -EINVAL,
			"option mmap=%s: must be shared, local or off", value);
	return 0;
}

static int parse_source(
	struct mount_options *o, const char *value, struct weft_error *err)
{
	if (!*value || strlen(value) >= sizeof(o->source))
		return weft_error(err, -EINVAL,
			"option fsname=: must be 1 to %zu bytes long",
			sizeof(o->source) - 1);
	strcpy(o->source, value);
	return 0;
}

static bool is_ignored(const char *word)
{
	for (size_t i = 0; i < ARRAY_SIZE(ignored_words); i++)
		if (strcmp(word, ignored_words[i]) == 0)
			return true;
	for (size_t i = 0; i < ARRAY_SIZE(ignored_prefixes); i++)
		if (strncmp(word, ignored_prefixes[i], strlen(ignored_prefixes[i])) == 0)
			return true;
	return false;
}

/* ---- options ------------------------------------------------------------------------ */

static const char *const atime_words[] = {
	[OPS_RELATIME] = "relatime",
	[OPS_NOATIME] = "noatime",
	[OPS_STRICTATIME] = "strictatime",
};

static bool parse_atime(struct mount_options *o, const char *word)
{
	if (strcmp(word, "nostrictatime") == 0) {
		if (o->atime == OPS_STRICTATIME)
			o->atime = OPS_RELATIME;
		return true;
	}
	if (strcmp(word, "atime") == 0)
		word = "relatime";
	for (unsigned i = 0; i < ARRAY_SIZE(atime_words); i++) {
		if (strcmp(word, atime_words[i]) == 0) {
			o->atime = i;
			o->atime_given = true;
			return true;
		}
	}
	return false;
}

static bool parse_simple(struct mount_options *o, const char *word)
{
	for (size_t i = 0; i < ARRAY_SIZE(flag_words); i++) {
		if (strcmp(word, flag_words[i].word) == 0) {
			o->flags = (o->flags & ~flag_words[i].clear) | flag_words[i].set;
			return true;
		}
	}
	for (size_t i = 0; i < ARRAY_SIZE(bool_words); i++) {
		if (strcmp(word, bool_words[i].word) == 0) {
			*(bool *)((char *)o + bool_words[i].field) = bool_words[i].value;
			return true;
		}
	}
	return parse_atime(o, word) || is_ignored(word);
}

/* An option with a value. */
static const struct value_word {
	const char *word;
	int (*parse)(struct mount_options *o, const char *value, struct weft_error *err);
} value_words[] = {
	{"cache=", parse_cache},
	{"learned=", parse_learned},
	{"log_interval=", parse_log_interval},
	{"timeout=", parse_timeout},
	{"node=", parse_node},
	{"uring=", parse_uring},
	{"metrics=", parse_metrics},
	{"mmap=", parse_mmap},
	{"fsname=", parse_source},
};

static int refuse_word(const char *word, struct weft_error *err)
{
	struct text_nearest near = {.word = word, .bytes = strcspn(word, "=")};
	char hint[64] = "";

	near.bytes += word[near.bytes] == '=';
	for (size_t i = 0; i < ARRAY_SIZE(value_words); i++)
		text_nearest_try(&near, value_words[i].word);
	for (size_t i = 0; i < ARRAY_SIZE(flag_words); i++)
		text_nearest_try(&near, flag_words[i].word);
	for (size_t i = 0; i < ARRAY_SIZE(bool_words); i++)
		text_nearest_try(&near, bool_words[i].word);
	for (size_t i = 0; i < ARRAY_SIZE(atime_words); i++)
		text_nearest_try(&near, atime_words[i]);
	for (size_t i = 0; i < ARRAY_SIZE(ignored_words); i++)
		text_nearest_try(&near, ignored_words[i]);
	if (near.best)
		snprintf(hint, sizeof(hint), "did you mean \"%s\"? ", near.best);
	return weft_error(err, -EINVAL,
		"option \"%s\" is unknown; %s`weftd --help` lists the options", word,
		hint);
}

static int parse_word(struct mount_options *o, const char *word, struct weft_error *err)
{
	if (!*word || parse_simple(o, word))
		return 0;
	for (size_t i = 0; i < ARRAY_SIZE(value_words); i++) {
		size_t len = strlen(value_words[i].word);

		if (strncmp(word, value_words[i].word, len) == 0)
			return value_words[i].parse(o, word + len, err);
	}
	return refuse_word(word, err);
}

int mount_options_parse(struct mount_options *o, const char *list, struct weft_error *err)
{
	char *copy = strdup(list);
	char *rest = copy;
	char *word;
	int rc = 0;

	if (!copy)
		return weft_error(err, -ENOMEM, "no memory for the options");
	while (rc == 0 && (word = strsep(&rest, ",")))
		rc = parse_word(o, word, err);
	free(copy);
	return rc;
}

uint64_t mount_options_learned(const struct mount_options *o)
{
	if (o->learned_given)
		return o->learned_bytes;
	return MAX(o->cache_bytes / LEARNED_DEFAULT_PART, LEARNED_DEFAULT_MIN);
}

void mount_options_print(const struct mount_options *o, char *buf, size_t cap)
{
	static const char *const uring[] = {"", ",uring=on", ",uring=off"};
	static const char *const maps[] = {",mmap=off", "", ",mmap=local"};

	char learned[40] = "", node[24] = "", soft[48] = "",
	     metrics[METRICS_ADDRESS_MAX + 16] = "";

	if (o->learned_given)
		snprintf(learned, sizeof(learned), ",learned=%" PRIu64 "K",
			o->learned_bytes >> 10);
	if (o->node)
		snprintf(node, sizeof(node), ",node=%u", o->node);
	if (o->soft)
		snprintf(soft, sizeof(soft), ",soft,timeout=%" PRIu64,
			o->timeout_ms / 1000);
	if (*o->metrics)
		snprintf(metrics, sizeof(metrics), ",metrics=%s", o->metrics);
	snprintf(buf, cap,
		"%s,%s,cache=%" PRIu64 "M%s,log_interval=%g%s%s%s%s%s%s%s%s%s%s%s%s%s%s",
		o->read_only ? "ro" : "rw", atime_words[o->atime], o->cache_bytes >> 20,
		learned, (double)o->log_interval_ms / 1000, node, soft, uring[o->uring], metrics,
		o->restart ? "" : ",norestart", maps[o->mmap],
		o->allow_other ? ",allow_other" : "", o->flags & MS_NODEV ? ",nodev" : "",
		o->flags & MS_NOSUID ? ",nosuid" : "",
		o->flags & MS_NOEXEC ? ",noexec" : "",
		o->flags & MS_NOSYMFOLLOW ? ",nosymfollow" : "",
		o->flags & MS_NODIRATIME ? ",nodiratime" : "",
		o->flags & MS_SYNCHRONOUS ? ",sync" : "",
		o->flags & MS_DIRSYNC ? ",dirsync" : "");
}

void mount_options_free(struct mount_options *o)
{
	free(o->store);
	free(o->directory);
	free(o->cluster_file);
	o->store = o->directory = o->cluster_file = NULL;
}
