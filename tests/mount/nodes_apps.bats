#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# One SQLite database and one git repository are written from three nodes at once, while nodes are
# killed, stand still, and are cut off: what was committed is there on all nodes, both are in order,
# and all go on. WEFT_CRASH_ROUNDS says how many kills.

load common

setup() {
	need git python3
	export GIT_CONFIG_GLOBAL=/dev/null GIT_CONFIG_SYSTEM=/dev/null HOME=/nonexistent
	setup_nodes 3 256M
	declare -gA LOADS=()
}

teardown() {
	local name
	[ -z "${stopped:-}" ] || kill -CONT "$stopped" || true
	for name in "${!LOADS[@]}"; do end_load "$name"; done
	teardown_nodes
}

apps() { python3 "$BATS_TEST_DIRNAME/nodes_apps.py" "$@"; }

start_load() { # sql|git NODE
	setsid python3 "$BATS_TEST_DIRNAME/nodes_apps.py" "$1" "${M[$2]}" "$2" "$DIR/proofs/$1$2" \
		>>"$DIR/$1$2.log" 2>&1 3>&- &
	LOADS[$1$2]=$!
}

end_load() {
	kill -9 -- "-${LOADS[$1]}" 2>/dev/null || true
	wait "${LOADS[$1]}" 2>/dev/null || true
	unset "LOADS[$1]"
}

committed() { cat "$DIR/proofs/$1" 2>/dev/null | wc -l; }
grows() { [ "$(committed "$1")" -gt "$2" ]; }

# Each goes on.
all_grow() {
	local name before
	for name in "${!LOADS[@]}"; do
		before=$(committed "$name")
		wait_until 60 grows "$name" "$before" || {
			echo "$name does not go on"
			cat "$DIR/$name.log"
			return 1
		}
	done
}

kill_and_mount() {
	local pid what
	pid=$(node_pid "$1")
	kill -9 "$pid"
	umount -l "${M[$1]}"
	wait_until 10 gone "$pid"
	# what works there ends with its mount, and has nothing else to complain of
	for what in sql git; do
		wait "${LOADS[$what$1]}" || { cat "$DIR/$what$1.log"; return 1; }
	done
	mount_node "$1"
	start_load sql "$1"
	start_load git "$1"
}

@test "a database and a repository of all nodes, which are killed, stand still, are cut off" {
	local n round name
	mkdir "$DIR/proofs"
	mount_nodes
	apps init "${M[1]}"
	weft sync "${M[1]}" # git has not synced where its worktrees are
	for n in 1 2 3; do
		start_load sql "$n"
		start_load git "$n"
	done
	all_grow
	n=$RANDOM
	for ((round = 0; round < ${WEFT_CRASH_ROUNDS:-1}; round++)); do
		n=$((1 + (n + 1) % 3))
		echo "node $n is killed"
		kill_and_mount "$n"
		all_grow
	done
	stopped=$(node_pid 2)
	kill -STOP "$stopped"
	sleep 12 # a link that says nothing for 10 s ends
	kill -CONT "$stopped"
	stopped=
	all_grow
	ip -n "$NET" link set node3 down
	sleep 12
	ip -n "$NET" link set node3 up
	all_grow
	for name in "${!LOADS[@]}"; do end_load "$name"; done
	for n in 1 2 3; do apps check "${M[n]}" "$DIR/proofs"; done
	umount_nodes 3 1 2
	run fsck.weft -f -n "$FILE"
	echo "$output"
	[ "$status" -eq 0 ]
}
