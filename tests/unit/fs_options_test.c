/* SPDX-License-Identifier: Apache-2.0 */
/* Mount options: what every filesystem may be given is taken, later words win, slips are named. */
#include "fs/options.h"

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>
#include <sys/mount.h>

#include <cmocka.h>

static struct mount_options parsed(const char *list)
{
	struct weft_error err = {0};
	struct mount_options o;

	mount_options_default(&o);
	if (mount_options_parse(&o, list, &err) < 0)
		fail_msg("\"%s\": %s", list, err.text);
	return o;
}

static void refused(const char *list, const char *text)
{
	struct weft_error err = {0};
	struct mount_options o;

	mount_options_default(&o);
	assert_int_equal(mount_options_parse(&o, list, &err), -EINVAL);
	if (!strstr(err.text, text))
		fail_msg("\"%s\": said \"%s\", not \"%s\"", list, err.text, text);
}

/* mount(8), FILESYSTEM-INDEPENDENT MOUNT OPTIONS, all but remount, which mount.weft takes. */
static void words_of_every_filesystem_are_taken(void **state)
{
	static const char *const words[] = {"async", "atime", "noatime", "auto", "noauto",
		"context=system_u:object_r:removable_t", "fscontext=a", "defcontext=a",
		"rootcontext=a", "defaults", "dev", "nodev", "diratime", "nodiratime",
		"dirsync", "exec", "noexec", "group", "iversion", "noiversion", "mand",
		"nomand", "_netdev", "nofail", "relatime", "norelatime", "strictatime",
		"nostrictatime", "lazytime", "nolazytime", "suid", "nosuid", "silent",
		"loud", "owner", "ro", "rw", "sync", "user", "user=joe", "nouser",
		"users", "X-mount.mkdir", "x-systemd.automount",
		"x-systemd.requires=/srv", "nosymfollow", "comment=a word", "acl",
		"user_xattr", "discard", "nodiscard"};

	for (size_t i = 0; i < ARRAY_SIZE(words); i++)
		(void)parsed(words[i]);
}

static void later_words_win(void **state)
{
	assert_int_equal(parsed("noatime,relatime").atime, OPS_RELATIME);
	assert_int_equal(parsed("relatime,strictatime").atime, OPS_STRICTATIME);
	assert_int_equal(parsed("strictatime,nostrictatime").atime, OPS_RELATIME);
	assert_int_equal(parsed("noatime,nostrictatime,norelatime").atime, OPS_NOATIME);
	assert_true(parsed("rw,ro").read_only);
	assert_false(parsed("ro,rw").read_only);
	assert_true(parsed("hard,soft").soft);
	assert_false(parsed("restart,norestart").restart);
	assert_false(parsed("allow_other,noallow_other").allow_other);
	assert_true(parsed("suid,nosuid").flags & MS_NOSUID);
	assert_false(parsed("nosuid,suid").flags & MS_NOSUID);
	assert_int_equal(parsed("cache=8M,cache=16M").cache_bytes, 16 << 20);
	assert_int_equal(parsed("learned=1M,learned=0").learned_bytes, 0);
}

/* A table of a few leaves is of no use. The default follows the size of the cache. */
static void the_table_of_leaves_has_a_size(void **state)
{
	struct mount_options o = parsed("cache=64M"), none = parsed("learned=0"),
			     small = parsed("learned=64K");

	assert_int_equal(mount_options_learned(&o), 1 << 20);
	o = parsed("cache=1M");
	assert_int_equal(mount_options_learned(&o), 256 << 10);
	assert_int_equal(mount_options_learned(&none), 0);
	assert_int_equal(mount_options_learned(&small), 64 << 10);
	refused("learned=63K", "learned=63K: must be 0, or between 64K and");
	refused("learned=much", "learned=much: not a size");
}

static void slips_are_named_with_what_was_meant(void **state)
{
	refused("cahce=2G", "\"cahce=2G\" is unknown; did you mean \"cache=\"?");
	refused("cache", "did you mean \"cache=\"?");
	refused("rw,noatme", "\"noatme\" is unknown; did you mean \"noatime\"?");
	refused("nosiud", "did you mean \"nosuid\"?");
	refused("log_intervall=2", "did you mean \"log_interval=\"?");
	refused("norestrat", "did you mean \"norestart\"?");
	refused("lazy_time", "did you mean \"lazytime\"?");
	refused("usrquota", "\"usrquota\" is unknown; `weftd --help`");
	refused("noacl", "\"noacl\" is unknown");
	refused("remount", "\"remount\" is unknown");
	refused("ro=1", "\"ro=1\" is unknown");
	refused("an_option_that_is_longer_than_any_that_there_is_or_will_be=1",
		"is unknown; `weftd --help`");
}

/* What status shows is what a remount and a daemon in its place are given. */
static void what_is_printed_says_the_same(void **state)
{
	static const char *const lists[] = {"ro,noatime,cache=8M",
		"strictatime,soft,timeout=7", "mmap=local,norestart,nodev,noexec,dirsync",
		"uring=off,node=3,nodiratime,sync", "learned=0", "cache=64M,learned=128K"};
	char text[512], again[512];

	for (size_t i = 0; i < ARRAY_SIZE(lists); i++) {
		struct mount_options o = parsed(lists[i]);

		mount_options_print(&o, text, sizeof(text));
		o = parsed(text);
		mount_options_print(&o, again, sizeof(again));
		assert_string_equal(text, again);
	}
}

int main(void)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(words_of_every_filesystem_are_taken),
		cmocka_unit_test(later_words_win),
		cmocka_unit_test(the_table_of_leaves_has_a_size),
		cmocka_unit_test(slips_are_named_with_what_was_meant),
		cmocka_unit_test(what_is_printed_says_the_same),
	};

	return cmocka_run_group_tests(tests, NULL, NULL);
}
