#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Three nodes stand still, are cut off and are killed while one file is read, written, cut and
# punched through all of them, and while all lock, append, and make and move names. What a node
# that is killed has not synced may be lost; nothing else ever is, nothing is seen that was not, and all
# go on. WEFT_DISTURBED_ROUNDS says how many kills, and how much longer the rest.

load ../mount/common
load nodes_disturbed

setup() {
	setup_nodes 3 256M
	LOADS=()
	ROUNDS=${WEFT_DISTURBED_ROUNDS:-1}
	SEED=${WEFT_SEED:-$RANDOM}
	RANDOM=$SEED
	echo "seed $SEED"
}

teardown() { disturbed_end; }

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

@test "stops and cuts while all lock, append, make and move names: nothing is lost" {
	CACHE=16M mount_nodes
	prepare_work
	start_work 1 2 3
	for ((i = 0; i < ROUNDS; i++)); do
		work_goes_on 1 2 3
		disturb_quietly $((i % 4 == 3 ? 12 : 1))
	done
	work_goes_on 1 2 3
	check_work
}

# A program that looks for itself, meanwhile.
disturbed_program() {
	local program=$BIN/tests/mount/$1
	shift
	timeout -s KILL $((600 * ROUNDS)) "$program" "$@" >"$DIR/program.log" 2>&1 3>&- &
	LOADS[0]=$!
	for ((i = 0; i < ROUNDS; i++)); do
		disturb_quietly $((i % 4 == 3 ? 12 : 1))
	done
	wait "${LOADS[0]}" || { cat "$DIR/program.log"; return 1; }
	LOADS=()
	check_disturbed
}

@test "stops and cuts while one file is read, written, cut and punched through all nodes" {
	CACHE=16M mount_nodes
	mkdir "${M[1]}/d"
	disturbed_program fsx/run data "${M[1]}/d" "${M[2]}/d" "${M[3]}/d" \
		-n $((1500 * ROUNDS)) -r -s "$SEED"
}

# Alone: what changes beside it in the tree may have a read go by an earlier size.
@test "stops and cuts while holes are filled, and a file is cut and grown, under readers of all" {
	mount_nodes
	disturbed_program shapes read $((4 * ROUNDS)) "$SEED" "${M[@]}"
}

@test "kills of one, two, all while all lock, append, make and move names" {
	local victims
	CACHE=16M mount_nodes
	prepare_work
	start_work 1 2 3
	for ((i = 0; i < 3 * ROUNDS; i++)); do
		work_goes_on 1 2 3
		mapfile -t victims < <(shuf -n $((1 + i % 3)) -e 1 2 3)
		echo "kills ${victims[*]}"
		disturbed doom "${M[1]}" "$DIR/state" "${victims[@]}"
		work_goes_on 1 2 3
		kill_nodes "${victims[@]}"
		await_work "${victims[@]}"
		CACHE=16M mount_together "${victims[@]}"
		disturbed back "${M[2]}" "$DIR/state"
		start_work "${victims[@]}"
	done
	work_goes_on 1 2 3
	check_work
}

# Killed together, or in turn, while one that was killed before recovers.
@test "kills while one file is used through all nodes: no byte but what the killed may have lost" {
	local work what victims
	CACHE=16M mount_nodes
	mkdir "${M[1]}/d"
	coproc WORK { exec timeout -s KILL $((600 * ROUNDS)) "$BIN/tests/mount/fsx/run" killed \
		"${M[1]}/d" "${M[2]}/d" "${M[3]}/d" -k $((6 * ROUNDS)) -n 100 -s "$SEED" \
		2>"$DIR/fsx.log" 3>&-; }
	work=$WORK_PID
	exec 7>&"${WORK[1]}" 8<&"${WORK[0]}"
	while read -r what victims <&8; do
		echo "$what $victims"
		sleep "0.$((RANDOM % 2))"
		if ((RANDOM % 2)); then
			# shellcheck disable=SC2086
			kill_nodes $victims
			# shellcheck disable=SC2086
			CACHE=16M mount_together $victims
		else
			# shellcheck disable=SC2086
			CACHE=16M kill_in_turn $victims
		fi
		echo back >&7 || break
	done
	exec 7>&- 8<&-
	wait "$work" || { cat "$DIR/fsx.log"; return 1; }
	cat "$DIR/fsx.log"
	check_disturbed
}
