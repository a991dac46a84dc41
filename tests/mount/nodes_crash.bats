#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Three nodes work, one of them is killed, and mounted again: the others go on, and what was
# synced is there, on every node. WEFT_CRASH_ROUNDS says how many kills.

load common

setup() {
	setup_nodes 3 512M
	LOADS=()
}

teardown() {
	[ -z "${stopped:-}" ] || kill -CONT "$stopped" || true
	end_loads
	teardown_nodes
}

# One of the loads that fsync_log makes; it ends with its mount.
start_load() { # NODE
	setsid "$BIN/tests/mount/fsync_log" write "${M[$1]}/load$1" "$DIR/proof$1" "$RANDOM" \
		>>"$DIR/load$1.log" 2>&1 3>&- &
	LOADS[$1]=$!
}

end_loads() {
	local n
	for n in "${!LOADS[@]}"; do
		kill -9 -- "-${LOADS[n]}" 2>/dev/null || true
		wait "${LOADS[n]}" 2>/dev/null || true
		unset "LOADS[$n]"
	done
}

synced() { grep -c '^S' "$DIR/proof$1"; }
grows() { [ "$(synced "$1")" -gt "$2" ]; }

# What load $1 has synced is there, by the mount of node $2. Exit status 3: it has synced nothing.
check_load() {
	"$BIN/tests/mount/fsync_log" check "${M[$2]}/load$1" "$DIR/proof$1" || {
		echo "load $1, looked at on node $2"
		return 1
	}
}

start_loads() {
	local n
	for n in 1 2 3; do
		mkdir "${M[n]}/load$n"
		start_load "$n"
	done
}

# Each load goes on.
all_grow() {
	local n before
	for n in 1 2 3; do
		before=$(synced "$n" || true)
		wait_until 60 grows "$n" "$before"
		kill -0 "${LOADS[n]}"
	done
}

# Ends the loads; what they have synced is there on all nodes, and fsck finds nothing.
check_all() {
	local n i
	end_loads
	for n in 1 2 3; do
		for i in 1 2 3; do check_load "$i" "$n"; done
	done
	umount_nodes 2 3 1
	run fsck.weft -f -n "$FILE"
	echo "$output"
	[ "$status" -eq 0 ]
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
