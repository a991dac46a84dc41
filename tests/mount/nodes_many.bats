#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# One volume on five and on eight nodes: what one has done the next call on each other sees,
# locks exclude, and a node that is killed comes back.

load common

setup() { need python3; }
teardown() { teardown_nodes; }

checked_end() {
	umount_nodes "$@"
	run fsck.weft -f -n "$FILE"
	echo "$output"
	[ "$status" -eq 0 ]
}

@test "five nodes: changes, names, pages and locks; one is killed and comes back" {
	local pid
	setup_nodes 5 96M
	export CACHE=32M
	mount_nodes
	timeout -s KILL 3600 "$BIN/tests/mount/elsewhere" "${WEFT_LOOKS:-2000}" "${WEFT_SEED:-$RANDOM}" "${M[@]}"
	timeout -s KILL 120 "$BIN/tests/mount/hot" 4 "${WEFT_SEED:-$RANDOM}" "${M[@]}"
	timeout -s KILL 120 "$BIN/tests/mount/kept" exchange 4 "${M[@]}"
	python3 "$BATS_TEST_DIRNAME/nodes_locks.py" counting "${M[@]}"
	pid=$(node_pid 4)
	kill -9 "$pid"
	umount -l "${M[4]}"
	wait_until 10 gone "$pid"
	mount_node 4
	rm -r "${M[4]}/hot"
	timeout -s KILL 120 "$BIN/tests/mount/hot" 3 "${WEFT_SEED:-$RANDOM}" "${M[@]}"
	checked_end 3 1 5 2 4
}

@test "eight nodes: changes and names are seen by all, and all go" {
	setup_nodes 8 64M
	export CACHE=16M
	mount_nodes
	timeout -s KILL 3600 "$BIN/tests/mount/elsewhere" "${WEFT_LOOKS:-2000}" "${WEFT_SEED:-$RANDOM}" "${M[@]}"
	timeout -s KILL 120 "$BIN/tests/mount/hot" 4 "${WEFT_SEED:-$RANDOM}" "${M[@]}"
	timeout -s KILL 120 "$BIN/tests/mount/kept" pages 4 "${M[@]}"
	checked_end 8 1 2 7 3 6 4 5
}
