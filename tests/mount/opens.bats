#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The kernel of a volume of one node opens files without a request (docs/design.md, "Hidden opens").
# What programs rely on holds all the same.

load common

setup() {
	setup_store
	need python3 setfacl
}
teardown() { teardown_store; }

# Runs a part of opens.py on the mount.
opens() { timeout 120 python3 "$ROOT/tests/mount/opens.py" "$1" "$MNT" "$BIN/weft"; }

@test "small cached files are read again without any request" {
	mount_store
	opens cached
}

@test "with strictatime each open is told" {
	mount_store -o strictatime
	opens told
}

@test "truncation by open, appends and direct I/O are right without opens" {
	mount_store
	opens writes
	remount_store
	opens written
}

@test "files are made with the right owner and mode, and once" {
	mount_store
	opens makes
}

@test "an unlinked file that is open keeps its bytes, then frees them" {
	mount_store
	opens unlinked
	umount_store
	check_store
}

@test "a file without a name may be given one as long as it is open" {
	mount_store
	opens tmpfile
	umount_store
	check_store
}

@test "mappings and fsync work without opens" {
	mount_store
	opens maps
	crash_store
	mount_store
	opens mapped
}

@test "a crash with open, unlinked files leaves nothing of them" {
	mount_store
	before=$(stat -f -c %f "$MNT")
	timeout 60 python3 "$ROOT/tests/mount/opens.py" hold "$MNT" "$BIN/weft" "$DIR/held" &
	holder=$!
	wait_until 20 [ -e "$DIR/held" ]
	crash_store
	kill "$holder"
	wait "$holder" || true
	mount_store
	after=$(stat -f -c %f "$MNT")
	echo "$before $after"
	[ $((before - after)) -lt 64 ]
	umount_store
	check_store
}

@test "files that are open when the mount is detached are read and written to the end" {
	mount_store
	exec 7<>"$MNT/f"
	echo first >&7
	umount -l "$MNT"
	echo second >&7
	exec 7>&-
	wait_until 20 gone "$DAEMON"
	mount_store
	[ "$(cat "$MNT/f")" = "$(printf 'first\nsecond')" ]
}

@test "reading a cached file moves an access time that is due" {
	mount_store
	opens atime
}

@test "a file that is not to change is not changed through an open or a mapping" {
	need chattr
	mount_store
	opens fixed
}
