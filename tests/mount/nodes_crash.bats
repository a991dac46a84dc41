#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Three nodes work, one of them is killed, and mounted again: the others go on, and what was
# synced is there, on every node. WEFT_CRASH_ROUNDS says how many kills.

load common
load nodes_loads

setup() {
	setup_nodes 3 512M
	LOADS=()
}

teardown() {
	[ -z "${stopped:-}" ] || kill -CONT "$stopped" || true
	end_loads
	teardown_nodes
}

# Kills the nodes named at once and mounts them again.
kill_and_mount() {
	local n p=() pid
	for n in "$@"; do
		pid=$(node_pid "$n")
		kill -9 "$pid"
		p+=("$pid")
	done
	for n in "$@"; do umount -l "${M[n]}"; done
	for pid in "${p[@]}"; do wait_until 10 gone "$pid"; done
	p=()
	for n in "$@"; do
		wait "${LOADS[n]}" || true
		mount_node "$n" &
		p+=($!)
	done
	for pid in "${p[@]}"; do wait "$pid"; done
}

@test "a node is killed while all work, and comes back: the others go on, nothing synced is lost" {
	local n round
	mount_nodes
	start_loads
	for ((round = 0; round < ${WEFT_CRASH_ROUNDS:-6}; round++)); do
		n=$((1 + round % 3))
		all_grow
		kill_and_mount "$n"
		check_load "$n" $((1 + n % 3))
		check_load "$n" "$n"
		start_load "$n"
	done
	all_grow
	check_all
}

# Makes files in folder $1 for ever, unlinks each third; how many is in file $2.
make_files() {
	setsid python3 - "$1" "$2" 2>/dev/null 3>&- <<-'END' &
		import os, sys
		n = 0
		with open(sys.argv[2], "w") as said:
		    while True:
		        path = "%s/%d" % (sys.argv[1], n)
		        with open(path, "wb") as f:
		            f.write(b"x" * 3000)
		        if n % 3 == 0:
		            os.unlink(path)
		        n += 1
		        said.seek(0)
		        said.write(str(n))
		        said.flush()
	END
	MADE=$!
}

made_more() { [ "$(cat "$DIR/made$1")" -ge $(($2 + ${WEFT_CRASH_FILES:-20000})) ]; }

@test "a node is killed, and stays away: those that work in their own folders go on, through splits of the tree" {
	local n before=()
	mount_nodes
	for n in 1 2 3; do
		mkdir "${M[n]}/own$n"
		make_files "${M[n]}/own$n" "$DIR/made$n"
		LOADS[n]=$MADE
	done
	for n in 1 2 3; do wait_until 60 [ -s "$DIR/made$n" ]; done
	sleep 2
	n=$(node_pid 3)
	kill -9 "$n"
	for n in 1 2; do before[n]=$(cat "$DIR/made$n"); done
	for n in 1 2; do wait_until 120 made_more "$n" "${before[n]}"; done
	umount -l "${M[3]}"
	end_loads
	mount_node 3
	for n in 1 2; do [ "$(ls "${M[3]}/own$n" | wc -l)" -ge "${before[n]}" ]; done
	umount_nodes 1 2 3
	run fsck.weft -f -n "$FILE"
	echo "$output"
	[ "$status" -eq 0 ]
}

@test "two nodes are killed at once, and come back" {
	local n round
	mount_nodes
	start_loads
	for ((round = 0; round < ${WEFT_CRASH_ROUNDS:-3}; round++)); do
		n=$((1 + round % 3))
		all_grow
		kill_and_mount "$n" $((1 + n % 3))
		for n in "$n" $((1 + n % 3)); do
			check_load "$n" "$n"
			start_load "$n"
		done
	done
	all_grow
	check_all
}

@test "a node stands still, another's network is cut, for longer than links live: all go on after it" {
	mount_nodes
	start_loads
	all_grow
	stopped=$(node_pid 3)
	kill -STOP "$stopped"
	sleep 12 # a link that says nothing for 10 s ends
	kill -CONT "$stopped"
	stopped=
	all_grow
	ip -n "$NET" link set node2 down
	sleep 12
	ip -n "$NET" link set node2 up
	all_grow
	check_all
}

# Those that node 1 has alone, all but a few of its frames. The node that is lost has the root of the tree.
@test "a cache is full of the files of a node that is killed: what is elsewhere is read as before" {
	local pid
	mount_nodes
	head -c 100M /dev/zero >"${M[2]}/own"
	head -c 100M /dev/urandom >"${M[1]}/f"
	sync "${M[2]}/own" "${M[1]}/f"
	head -c 60M /dev/urandom >"$DIR/f"
	dd if="$DIR/f" of="${M[2]}/f" bs=1M conv=notrunc,fsync status=none
	# Frames are still made free behind the writes, and pages of the tree that were not used lately may
	# be among them. A node that has not got one when its home goes finds nothing below it (docs/limits.md).
	sleep 1
	getfattr -d "${M[2]}/own"
	pid=$(node_pid 1)
	kill -9 "$pid"
	umount -l "${M[1]}"
	wait_until 10 gone "$pid"
	timeout 240 cmp -n 100M "${M[2]}/own" /dev/zero
	timeout 240 cmp -n 100M "${M[2]}/own" /dev/zero
	[ "$(timeout 120 stat -c %s "${M[2]}/f")" = "$((100 << 20))" ]
	mount_node 1
	cmp -n 60M "$DIR/f" "${M[2]}/f"
	cmp -n 60M "$DIR/f" "${M[3]}/f"
	umount_nodes 1 2 3
}
