#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# File handles: a number and a generation are enough to find an inode, on each node.

load common

teardown() {
	if [ -n "${NET:-}" ]; then teardown_nodes; else teardown_store; fi
}

handles() { python3 "$BATS_TEST_DIRNAME/handles.py" "$@"; }

@test "handles open after a remount, until their files are removed" {
	setup_store
	mount_store
	handles make "$MNT/made" "$DIR/handles"
	remount_store
	handles open "$MNT" "$DIR/handles"
	handles wrong "$MNT" "$DIR/handles"
	rm -r "$MNT/made"
	handles gone "$MNT" "$DIR/handles"
	handles make "$MNT/made" "$DIR/again" # numbers are not used again
	handles gone "$MNT" "$DIR/handles"
	umount_store
	check_store
}

@test "handles of one node open on another, moved and unlinked files too" {
	setup_nodes 2
	mount_nodes
	handles make "${M[1]}/made" "$DIR/handles"
	handles open "${M[2]}" "$DIR/handles"
	mv "${M[1]}/made/dir" "${M[1]}/dir"
	handles open "${M[2]}" "$DIR/handles"
	handles wrong "${M[2]}" "$DIR/handles"
	handles held "${M[1]}" "${M[2]}"
	rm -r "${M[1]}/made" "${M[1]}/dir"
	handles gone "${M[2]}" "$DIR/handles"
	umount_nodes 1 2
}
