#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The conformance tests of tests/mount/posix on a weft mount, and on ext4 as the control: what fails
# there is no rule. Then what needs mounts of its own: read-only, atime modes, a full volume.

load common

setup_file() {
	need
	[ -x "$BIN/tests/mount/posix/run" ] || make -s -C "$ROOT" build/tests/mount/posix/run
	export POSIX_DIR POSIX_CONTROL
	POSIX_DIR=$(mktemp -d "${WEFT_TMP:-/tmp}/weft-posix.XXXXXX")
	chmod 755 "$POSIX_DIR"
	mkdir "$POSIX_DIR/mnt" "$POSIX_DIR/control"
	mkfs.weft --size 1G "$POSIX_DIR/store" >/dev/null
	weftd "$POSIX_DIR/store" "$POSIX_DIR/mnt" -o cache=64M
	mkdir "$POSIX_DIR/mnt/t"
	# of its own: some tests look at the space that is left
	if truncate -s 1G "$POSIX_DIR/ext4" && mkfs.ext4 -q -F "$POSIX_DIR/ext4" &&
		mount -o loop "$POSIX_DIR/ext4" "$POSIX_DIR/control"; then
		POSIX_CONTROL=$POSIX_DIR/control
	fi
}

teardown_file() {
	[ -n "${POSIX_DIR:-}" ] || return 0
	weft umount "$POSIX_DIR/mnt" || umount -l "$POSIX_DIR/mnt" || true
	! mountpoint -q "$POSIX_DIR/control" || umount -l "$POSIX_DIR/control"
	if command -v fsck.weft >/dev/null; then fsck.weft -n "$POSIX_DIR/store" >&2; fi
	rm -rf "$POSIX_DIR"
}

teardown() {
	[ -z "${DIR:-}" ] || teardown_store
}

# Both run each topic.
topic() {
	[ -n "$POSIX_CONTROL" ] || echo "no ext4 to compare with" >&3
	[ -z "$POSIX_CONTROL" ] || "$BIN/tests/mount/posix/run" "$POSIX_CONTROL" ext4 "$1"
	"$BIN/tests/mount/posix/run" "$POSIX_DIR/mnt/t" weft "$1"
}

@test "names" { topic names; }
@test "rename" { topic rename; }
@test "permissions" { topic permissions; }
@test "times" { topic times; }
@test "data" { topic data; }
@test "space" { topic space; }
@test "mappings" { topic mappings; }
@test "locks" { topic locks; }
@test "flags" { topic flags; }
@test "xattrs" { topic xattrs; }
@test "acls" { topic acls; }
@test "directories" { topic directories; }
@test "unlinked files" { topic unlinked; }

# Every way to change something; each must say "Read-only file system".
assert_read_only() {
	local change
	while read -r change; do
		run bash -c "cd '$MNT' && $change"
		echo "$change: $output"
		[ "$status" -ne 0 ]
		[[ $output == *"Read-only file system"* ]]
	done <<-'CHANGES'
		: >new
		echo x >file
		echo x >>file
		truncate -s 0 file
		rm -f file
		mkdir new
		rmdir dir
		ln -s x new
		ln file new
		mv file new
		mv -T dir new
		mkfifo new
		mknod new c 1 3
		chmod 600 file
		chown 1 file
		touch file
		setfattr -n user.x -v 1 file
		setfattr -x user.a file
		setfacl -m u:1:r file
		fallocate -l 10 file
	CHANGES
	[ "$(cat "$MNT/file")" = content ]
	[ "$(getfattr -n user.a --only-values --absolute-names "$MNT/file")" = 1 ]
}

fill_a_little() {
	echo content >"$MNT/file"
	setfattr -n user.a -v 1 "$MNT/file"
	mkdir "$MNT/dir"
}

@test "a read-only mount takes no change" {
	need setfattr setfacl
	setup_store 64M
	mount_store
	fill_a_little
	remount_store -o ro
	assert_read_only
	umount_store
	check_store
}

@test "a mount goes read-only and back while it is used" {
	need setfattr setfacl
	setup_store 64M
	mount_store
	fill_a_little
	exec 7>"$MNT/open"
	run mount -i -o remount,ro "$MNT"
	[ "$status" -ne 0 ]
	[[ $output == *busy* ]]
	exec 7>&-
	mount -i -o remount,ro "$MNT"
	assert_read_only
	mount -i -o remount,rw "$MNT"
	echo more >>"$MNT/file"
	[ "$(tail -1 "$MNT/file")" = more ]
}

# The access time of $MNT/f: set long ago, then read twice.
atimes() {
	touch -a -d 2001-01-01 "$MNT/f"
	cat "$MNT/f" >/dev/null
	first=$(stat -c %X "$MNT/f")
	sleep 1.1
	cat "$MNT/f" >/dev/null
	second=$(stat -c %X "$MNT/f")
	old=$(date -d 2001-01-01 +%s)
}

@test "noatime, relatime and strictatime are what mount(8) says" {
	setup_store 64M
	mount_store -o noatime
	echo x >"$MNT/f"
	atimes
	[ "$first" = "$old" ] && [ "$second" = "$old" ]
	remount_store -o relatime
	atimes
	[ "$first" -gt "$old" ] && [ "$second" = "$first" ]
	remount_store -o strictatime
	atimes
	[ "$first" -gt "$old" ] && [ "$second" -gt "$first" ]
	remount_store -o nodiratime
	mkdir "$MNT/d"
	touch -a -d 2001-01-01 "$MNT/d"
	ls "$MNT/d"
	[ "$(stat -c %X "$MNT/d")" = "$old" ]
}

@test "dirsync and sync make names durable before the call returns" {
	setup_store 64M
	for option in dirsync sync; do
		mount_store -o "$option,log_interval=600"
		mkdir "$MNT/$option"
		: >"$MNT/$option/file"
		mv "$MNT/$option/file" "$MNT/$option/moved"
		ln -s target "$MNT/$option/link"
		crash_store
	done
	mount_store
	for option in dirsync sync; do
		[ -f "$MNT/$option/moved" ]
		[ "$(readlink "$MNT/$option/link")" = target ]
	done
}

@test "synchronous writes are flushed before they return" {
	setup_store 64M
	mount_store
	for flag in sync dsync; do
		dd if=/dev/zero of="$MNT/$flag" bs=4k count=4 oflag=$flag status=none
	done
	printf durable | dd of="$MNT/one" oflag=sync conv=notrunc status=none
	crash_store
	mount_store
	[ "$(cat "$MNT/one")" = durable ]
	[ "$(stat -c %s "$MNT/dsync")" = 16384 ]
}

@test "a full volume says ENOSPC to everyone and recovers" {
	need xfs_io
	setup_store 64M
	mount_store
	: >"$MNT/small"
	run dd if=/dev/zero of="$MNT/fill" bs=64k status=none
	[[ $output == *"No space left"* ]]
	run xfs_io -f -c "falloc 0 100m" "$MNT/big"
	[[ $output == *"No space left"* ]]
	[ "$(stat -c %b "$MNT/big")" -lt 100 ]
	run bash -c "for i in \$(seq 1 100000); do : >'$MNT'/name-\$i || exit 1; done"
	[[ $output == *"No space left"* ]]
	cat "$MNT/fill" | cmp -n 1000000 - /dev/zero
	truncate -s 0 "$MNT/fill"
	head -c 1M /dev/urandom >"$MNT/again"
	rm -f "$MNT"/name-* "$MNT/fill"
	umount_store
	check_store
}
