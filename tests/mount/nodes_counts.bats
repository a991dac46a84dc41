#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# What nodes say to each other is counted, and is no more than the protocol asks for
# (docs/protocol.md, "How many messages"; docs/benchmarks.md, `mounts`).

load common

setup() { setup_nodes 3; }
teardown() { teardown_nodes; }

# Node 1 overwrites a file of node $1, node 2 reads it: $COSTS, for each of 500 times. What goes
# on in the background may add some.
alternate() {
	head -c 4096 /dev/zero >"${M[$1]}/held"
	COSTS=$(timeout 120 python3 "$ROOT/tests/mount/nodes_counts.py" "${M[1]}/held" "${M[2]}/held" 500 "${M[@]}")
	echo "home $1: $COSTS"
	rm "${M[$1]}/held"
}

# $COSTS has $1 between $2 and $3.
costs() {
	local value=${COSTS#*"$1"=}
	awk -v value="${value%% *}" -v least="$2" -v most="$3" 'BEGIN { exit !(value >= least && value <= most) }'
}

@test "what one node overwrites and another reads costs two requests on each, and no flush" {
	mount_nodes -o noatime
	# inode and page, each way; two messages a request, four where the home is a third node
	alternate 1
	costs messages 7.9 8.2
	costs flushes 0 0.2
	# the home's kernel has to drop what it has first: two messages more
	alternate 2
	costs messages 9.9 10.2
	alternate 3
	costs messages 15.9 16.2
	# a WRITE, a READ, and the GETATTR by which the reader's kernel learns the size
	costs requests 2.9 3.2
	costs flushes 0 0.2
	umount_nodes 1 2 3
}

@test "that reads move the access time costs no request while the file is in use" {
	mount_nodes
	# it is written when the file is at rest; six round trips would be 12 messages
	alternate 1
	costs messages 7.9 10
	costs flushes 0 0.2
	umount_nodes 1 2 3
}
