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
