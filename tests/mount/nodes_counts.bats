#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# What nodes say to each other is counted, and is no more than the protocol asks for
# (docs/protocol.md, "How many messages"; docs/benchmarks.md, `mounts`).

load common

setup() { setup_nodes 3; }
teardown() { teardown_nodes; }

# Node 1 overwrites a file of node $1, node 2 reads it: $COSTS, for each of 500 times. On a slow
# machine what goes on in the background adds a part of a message to each; a limit is less than one
# message above what the protocol asks for.
alternate() {
	head -c 4096 /dev/zero >"${M[$1]}/held"
	COSTS=$(timeout 120 python3 "$ROOT/tests/mount/nodes_counts.py" alternate "${M[1]}/held" "${M[2]}/held" 500 "${M[@]}")
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
	# the task that drops a page or a leaf calls the kernel itself, if no other drop is before it
	costs notifiers 0 1
	costs messages 7.5 8.8
	costs flushes 0 0.5
	# the home's kernel has to drop what it has first: two messages more
	alternate 2
	costs messages 9.5 10.8
	alternate 3
	costs messages 15.5 16.8
	# a WRITE, a READ, and the GETATTR by which the reader's kernel learns the size
	costs requests 2.5 3.5
	costs flushes 0 0.5
	umount_nodes 1 2 3
}

@test "that reads move the access time costs no request while the file is in use" {
	mount_nodes
	# it is written when the file is at rest; six round trips would be 12 messages
	alternate 1
	costs messages 7.9 10
	costs flushes 0 0.5
	umount_nodes 1 2 3
}

# What node $1 does ($2: write or read) with 32 MiB: $COSTS, for each MiB.
stream() {
	COSTS=$(timeout 120 python3 "$ROOT/tests/mount/nodes_counts.py" "$2" "${M[$1]}/file" 32 "${M[@]}")
	echo "node $1, $2: $COSTS"
}

# The messages of a type that node $1 has sent.
sent() {
	weft status "${M[$1]}" --json |
		python3 -c 'import json, sys; print(json.load(sys.stdin)["cluster"]["coherence"]["sent"].get(sys.argv[1], 0))' "$2"
}

# Node 2 has dropped nearly all pages of the removed file.
has_dropped() { [ $(($(sent 2 DROP) - $1)) -gt 8000 ]; }

# A page each, it would be 512 sends for a MiB: as many as messages.
@test "pages in a row are asked for, given and taken together" {
	local turn drops
	mount_nodes -o cache=192M # more than a store has
	stream 1 write
	stream 2 read
	costs messages 500 600
	costs sends 0 60
	costs reads 0 1
	stream 1 write # what node 2 has read
	costs messages 400 600
	costs sends 0 60
	# more than a store has: pages are used again, which node 2 had read, and has dropped since
	for turn in {1..5}; do
		stream 2 read
		drops=$(sent 2 DROP)
		rm "${M[1]}/file"
		stat -f "${M[1]}" >"$DIR/statfs" # frees them
		wait_until 10 has_dropped "$drops"
		stream 1 write
		costs messages 0 20
		costs sends 0 20
	done
	umount_nodes 1 2 3
}

@test "a home reads for another node as it does for itself" {
	mount_nodes
	stream 1 write
	umount_nodes 1 2 3
	mount_nodes
	stream 2 read
	costs messages 500 600
	costs sends 0 60
	costs reads 0 20 # a page each, it would be 256
	umount_nodes 1 2 3
}

@test "looks for absent names do not get slower with their number" {
	CACHE=512M mount_nodes # the kernel may keep some 100,000 of them
	mkdir "${M[1]}/d"
	python3 - "${M[1]}/d" <<-'P'
		import os, statistics, sys, time
		def look(first, count):
		    began = time.monotonic()
		    for i in range(first, first + count):
		        assert not os.path.exists(f"{sys.argv[1]}/{i}")
		    return (time.monotonic() - began) / count
		few = statistics.median(look(1000 * i, 1000) for i in range(7))
		look(10000, 130000)
		many = statistics.median(look(200000 + 1000 * i, 1000) for i in range(9))
		print(f"{few * 1e6:.0f} us each, and with many {many * 1e6:.0f} us")
		assert many < 5 * few
	P
	umount_nodes 1 2 3
}

# Makes $2 files in a new directory $1. Sets $slept: how often the daemon's threads slept meanwhile.
count_sleeps() {
	local before
	mkdir "$1"
	before=$(python3 "$ROOT/tests/mount/nodes_counts.py" slept "$(node_pid 1)" weft-fuse)
	python3 -c 'import os, sys
for i in range(int(sys.argv[2])):
	os.close(os.open(f"{sys.argv[1]}/{i}", os.O_CREAT | os.O_WRONLY))' "$1" "$2"
	slept=$(($(python3 "$ROOT/tests/mount/nodes_counts.py" slept "$(node_pid 1)" weft-fuse) - before))
	echo "$2 files: threads slept $slept times"
}

# On a machine with much else to do they sleep more, so one of several tries counts.
@test "a program that makes one request after the other wakes few threads" {
	local files=3000 slept
	mount_nodes
	for try in {1..10}; do
		count_sleeps "${M[1]}/$try" $files
		[ $slept -ge $((2 * files)) ] || break
		sleep 1
	done
	# LOOKUP, CREATE, GETATTR, FLUSH, RELEASE: each would wake a thread
	[ "$(nproc)" -eq 1 ] || [ $slept -lt $((2 * files)) ]
	umount_nodes 1 2 3
}
