/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The -o options: what they mean, their bounds, and what is said about a wrong one.
 *
 * Nothing from the command line or fstab is used unchecked (invariant 9).
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

#define CACHE_MIN_BYTES         (1ull << 20)
#define CACHE_DEFAULT_MAX_BYTES (1ull << 30)
#define LOG_INTERVAL_MAX_S      3600
#define TIMEOUT_MAX_S           86400

/* A word without a value that sets or clears mount(2) flags. */
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

/* Words of mount(8), fstab(5) and FUSE that ask for nothing here, or for what is so
 * anyway. */
static const char *const ignored_words[] = {
	"defaults",
	"_netdev",
	"auto",
	"noauto",
	"nofail",
	"user",
	"nouser",
	"users",
	"owner",
	"group",
	"default_permissions",
	"noiversion",
	"nolazytime",
	"nomand",
};

static const char *const ignored_prefixes[] = {
	"x-",
	"X-",
	"comment=",
	"context=",
	"fscontext=",
	"defcontext=",
	"rootcontext=",
	"uhelper=",
	"helper=",
	"subtype=",
	/*
	 * what the kernel shows of a FUSE mount, and mount(8) gives back with a remount
	 */
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
	if (strlen(value) >= sizeof(o->metrics) || !metrics_address_valid(value))
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

static bool parse_atime(struct mount_options *o, const char *word)
{
	if (strcmp(word, "noatime") == 0)
		o->atime = OPS_NOATIME;
	else if (strcmp(word, "relatime") == 0 || strcmp(word, "atime") == 0)
		o->atime = OPS_RELATIME;
	else if (strcmp(word, "strictatime") == 0)
		o->atime = OPS_STRICTATIME;
	else
		return false;
	o->atime_given = true;
	return true;
}

static bool parse_simple(struct mount_options *o, const char *word)
{
	for (size_t i = 0; i < ARRAY_SIZE(flag_words); i++) {
		if (strcmp(word, flag_words[i].word) == 0) {
			o->flags = (o->flags & ~flag_words[i].clear) | flag_words[i].set;
			return true;
		}
	}
	if (strcmp(word, "ro") == 0)
		o->read_only = true;
	else if (strcmp(word, "rw") == 0)
		o->read_only = false;
	else if (strcmp(word, "soft") == 0)
		o->soft = true;
	else if (strcmp(word, "hard") == 0)
		o->soft = false;
	else if (strcmp(word, "restart") == 0)
		o->restart = true;
	else if (strcmp(word, "norestart") == 0)
		o->restart = false;
	else if (strcmp(word, "allow_other") == 0)
		o->allow_other = true;
	else if (strcmp(word, "noallow_other") == 0)
		o->allow_other = false;
	else
		return parse_atime(o, word) || is_ignored(word);
	return true;
}

static int parse_word(struct mount_options *o, const char *word, struct weft_error *err)
{
	if (!*word || parse_simple(o, word))
		return 0;
	if (strncmp(word, "cache=", 6) == 0)
		return parse_cache(o, word + 6, err);
	if (strncmp(word, "log_interval=", 13) == 0)
		return parse_log_interval(o, word + 13, err);
	if (strncmp(word, "timeout=", 8) == 0)
		return parse_timeout(o, word + 8, err);
	if (strncmp(word, "node=", 5) == 0)
		return parse_node(o, word + 5, err);
	if (strncmp(word, "uring=", 6) == 0)
		return parse_uring(o, word + 6, err);
	if (strncmp(word, "metrics=", 8) == 0)
		return parse_metrics(o, word + 8, err);
	if (strncmp(word, "mmap=", 5) == 0)
		return parse_mmap(o, word + 5, err);
	if (strncmp(word, "fsname=", 7) == 0)
		return parse_source(o, word + 7, err);
	return weft_error(err, -EINVAL,
		"option \"%s\" is unknown; `weftd --help` lists the options", word);
}

int mount_options_parse(struct mount_options *o, const char *list, struct weft_error *err)
{
	char *copy = strdup(list);
	char *rest = copy;
	char *word;
	int ret = 0;

	if (!copy)
		return weft_error(err, -ENOMEM, "no memory for the options");
	while (ret == 0 && (word = strsep(&rest, ",")))
		ret = parse_word(o, word, err);
	free(copy);
	return ret;
}

void mount_options_print(const struct mount_options *o, char *buf, size_t cap)
{
	static const char *const atime[] = {"relatime", "noatime", "strictatime"};
	static const char *const uring[] = {"", ",uring=on", ",uring=off"};
	static const char *const maps[] = {",mmap=off", "", ",mmap=local"};

	char node[24] = "", soft[48] = "", metrics[METRICS_ADDRESS_MAX + 16] = "";

	if (o->node)
		snprintf(node, sizeof(node), ",node=%u", o->node);
	if (o->soft)
		snprintf(soft, sizeof(soft), ",soft,timeout=%" PRIu64,
			o->timeout_ms / 1000);
	if (*o->metrics)
		snprintf(metrics, sizeof(metrics), ",metrics=%s", o->metrics);
	snprintf(buf, cap,
		"%s,%s,cache=%" PRIu64 "M,log_interval=%g%s%s%s%s%s%s%s%s%s%s%s%s%s%s",
		o->read_only ? "ro" : "rw", atime[o->atime], o->cache_bytes >> 20,
		(double)o->log_interval_ms / 1000, node, soft, uring[o->uring], metrics,
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
