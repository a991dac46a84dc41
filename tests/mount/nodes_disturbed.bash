# SPDX-License-Identifier: Apache-2.0
# Three nodes under loads that know what may be lost (nodes_disturbed.py, fsx/killed.c), and what
# disturbs them. setup: LOADS=(); teardown: disturbed_end.

# Kills the nodes named, and waits for their ends.
kill_nodes() {
	local n pid pids=()
	for n in "$@"; do
		pid=$(node_pid "$n")
		kill -9 "$pid"
		pids+=("$pid")
	done
	for n in "$@"; do umount -l "${M[n]}"; done
	for pid in "${pids[@]}"; do wait_until 20 gone "$pid"; done
}

mount_together() {
	local n pids=()
	for n in "$@"; do
		mount_node "$n" &
		pids+=($!)
	done
	for n in "${pids[@]}"; do wait "$n"; done
}

# One after the other, each while the one before it recovers.
kill_in_turn() {
	local n pids=()
	for n in "$@"; do
		kill_nodes "$n"
		mount_node "$n" &
		pids+=($!)
		sleep "0.$((RANDOM % 4))"
	done
	for n in "${pids[@]}"; do wait "$n"; done
}

disturbed() { timeout -s KILL 120 python3 "$BATS_TEST_DIRNAME/nodes_disturbed.py" "$@"; }

prepare_work() {
	mkdir "$DIR/state"
	disturbed prepare "${M[1]}" "$DIR/state"
}

# All kinds of work on these nodes.
start_work() {
	local n kind
	for n in "$@"; do
		for kind in locks appends names; do
			setsid timeout -s KILL $((600 * ROUNDS)) python3 "$BATS_TEST_DIRNAME/nodes_disturbed.py" work \
				"$kind" "${M[n]}" "$n" "$DIR/state" "$RANDOM" \
				>>"$DIR/work.log" 2>&1 3>&- &
			LOADS[$n]="${LOADS[$n]:-} $!"
		done
	done
}

# Stops, deafens and cuts off a node each; one of the three for $1 seconds, be it longer than links live.
disturb_quietly() {
	local n=$((1 + RANDOM % 3)) seconds=(0.3 0.3 0.3)
	seconds[RANDOM % 3]=$1
	stopped=$(node_pid "$n")
	kill -STOP "$stopped"
	sleep "${seconds[0]}"
	kill -CONT "$stopped"
	stopped=
	n=$((1 + n % 3))
	deaf "$n" $((1 + n % 3))
	sleep "${seconds[1]}"
	heal
	ip -n "$NET" link set "node$n" down
	sleep "${seconds[2]}"
	ip -n "$NET" link set "node$n" up
}

# Kills node 3, and mounts it again.
disturb_by_kill() {
	kill_nodes 3
	mount_node 3
}

# A program that looks for itself; what $1 names disturbs it, ROUNDS times.
disturbed_program() { # HOW PROGRAM ARGUMENT...
	local how=$1 program=$BIN/tests/mount/$2 i
	shift 2
	setsid timeout -s KILL $((600 * ROUNDS)) "$program" "$@" >"$DIR/program.log" 2>&1 3>&- &
	LOADS[0]=$!
	for ((i = 0; i < ROUNDS; i++)); do
		"$how" $((i % 4 == 3 ? 12 : 1))
	done
	wait "${LOADS[0]}" || { echo "$program $*"; cat "$DIR/program.log"; return 1; }
	cat "$DIR/program.log"
	LOADS=()
}

# It has ended there, by the mount's death or the end of all, and has found nothing wrong.
await_work() {
	local n pid
	for n in "$@"; do
		for pid in ${LOADS[$n]}; do
			wait "$pid" || { cat "$DIR/work.log"; return 1; }
		done
		LOADS[$n]=
	done
}

# What has been done so far on node $1, of each kind: all of it grows.
work_done() {
	python3 - "$DIR/state" "$1" <<-'END'
		import os, struct, sys
		with open(sys.argv[1] + "/numbers", "rb") as f:
		    numbers = struct.unpack("512q", f.read(4096))
		print(*numbers[256 + int(sys.argv[2]) * 3 :][:3])
	END
}

more_done() { # NODE BEFORE...
	local node=$1 i now
	shift
	read -r -a now < <(work_done "$node")
	for i in 0 1 2; do
		[ "${now[i]}" -gt $((${*:i+1:1} + 3)) ] || return 1
	done
}

# All kinds of work go on, on these nodes.
work_goes_on() {
	local n before
	for n in "$@"; do
		before=$(work_done "$n")
		# shellcheck disable=SC2086
		wait_until 60 more_done "$n" $before || { cat "$DIR/work.log"; return 1; }
	done
}

# All has ended, all nodes see the same, and it is what may be; fsck finds nothing.
check_work() {
	local n
	touch "$DIR/state/stop"
	await_work 1 2 3
	for n in 1 2 3; do disturbed check "${M[n]}" "$DIR/state"; done
	check_disturbed
}

check_disturbed() {
	umount_nodes 2 3 1
	run fsck.weft -f -n "$FILE"
	echo "$output"
	[ "$status" -eq 0 ]
}

disturbed_end() {
	local pid
	[ -z "${stopped:-}" ] || kill -CONT "$stopped" 2>/dev/null || true
	for pid in ${LOADS[*]}; do
		kill -9 -- "-$pid" 2>/dev/null || kill -9 "$pid" 2>/dev/null || true
	done
	teardown_nodes
}
