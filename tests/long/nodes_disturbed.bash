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
