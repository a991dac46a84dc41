#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# A file is cut, grown, punched and filled on three nodes in turn, under readers on each whose
# kernels keep it: no byte, size or end is behind. WEFT_SHAPES_SECONDS says how long each.

load common

setup() {
	setup_nodes 3
	mount_nodes
}

teardown() { teardown_nodes; }

shapes() {
	timeout -s KILL 600 "$BIN/tests/mount/shapes" "$1" "${WEFT_SHAPES_SECONDS:-6}" \
		"${WEFT_SEED:-$RANDOM}" "${M[@]}"
	umount_nodes 1 2 3
	run fsck.weft -n -f "$FILE"
	echo "$output"
	[ "$status" -eq 0 ]
}

@test "read(2) of holes that are filled, ends that move, pages that are punched" { shapes read; }

# Those that ask for nothing find it a moment after the change on another node, and at once behind a lock.
@test "a file whose end moves: calls that go by the size that the kernel has, stat" {
	local check
	for check in moved locked; do
		timeout 240 python3 "$BATS_TEST_DIRNAME/sizes.py" "$check" "${M[1]}" "${M[2]}"
	done
	shapes stat
}

@test "mappings of holes that are filled, ends that move, pages that are punched" { shapes mapped; }
