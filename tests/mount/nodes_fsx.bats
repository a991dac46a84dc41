#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Random work (tests/mount/fsx) by three nodes at a time: on one file each byte of which is
# compared with a copy in memory, whichever node it is read or written on, and in one tree of
# names. A failure prints the seed that repeats its choices.

load common

setup() { setup_nodes 3 256M; }
teardown() { teardown_nodes; }

random_work() { # KIND NAME ARGUMENT...
	local kind=$1 name=$2
	shift 2
	[ -d "${M[1]}/$name" ] || mkdir "${M[1]}/$name"
	timeout -s KILL "${WEFT_PATIENCE:-300}" "$BIN/tests/mount/fsx/run" "$kind" \
		"${M[1]}/$name" "${M[2]}/$name" "${M[3]}/$name" "$@"
}

@test "one file is read, written, cut and punched on three nodes in turn" {
	CACHE=16M mount_nodes
	random_work data one -n 3000 -m
	umount_nodes 1 2 3
	CACHE=16M mount_nodes
	random_work data one -n 1000 -d -m
	umount_nodes 3 1 2
}

@test "files larger than the caches, on three nodes at once" {
	CACHE=16M mount_nodes
	random_work data large -n 400 -p 6 -l 8388608 -m
	umount_nodes 2 3 1
}

@test "processes of three nodes in one tree of names leave it in order" {
	CACHE=16M mount_nodes
	random_work names names -n 1500 -p 6
	umount_nodes 1 2 3
	mount_nodes
	random_work names names -n 500 -p 3
	umount_nodes 3 2 1
}

@test "a name that one node replaces is always there on the others" {
	mount_nodes
	random_work replace names -n 1500 -p 3
	umount_nodes 1 2 3
}
