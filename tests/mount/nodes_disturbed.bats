#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Three nodes stand still, are cut off and are killed while all lock, append, and make and move names, while one
# file is read, written, cut, punched and mapped through all of them, and while all look at what others change. What
# a node that is killed has not synced may be lost; nothing else ever is, nothing is seen that was not, nothing is
# behind, and all go on. WEFT_DISTURBED_ROUNDS says how many kills, and how much longer the rest.

load common
load nodes_disturbed

setup() {
	setup_nodes 3 256M
	LOADS=()
	ROUNDS=${WEFT_DISTURBED_ROUNDS:-1}
	AWHILE=$((4 * ROUNDS + ROUNDS / 4 * 12)) # longer than the disturbances of so many rounds
	SEED=${WEFT_SEED:-$RANDOM}
	RANDOM=$SEED
	echo "seed $SEED"
}

teardown() { disturbed_end; }

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

# Alone: what changes beside `shapes` in the tree may have a read go by an earlier size.
@test "stops and cuts while one file is read, written, cut, grown and punched through all nodes" {
	CACHE=16M mount_nodes
	mkdir "${M[1]}/d"
	disturbed_program disturb_quietly fsx/run data "${M[1]}/d" "${M[2]}/d" "${M[3]}/d" \
		-n $((700 * ROUNDS)) -r -s "$SEED"
	disturbed_program disturb_quietly shapes read "$AWHILE" "$SEED" "${M[@]}"
	disturbed_program disturb_quietly shapes mapped "$AWHILE" "$SEED" "${M[@]}"
	check_disturbed
}

# The programs that look at what others change, in the folders $2 (`kept` in $3): with one round every
# other one of them, from the first or the second on.
disturbed_programs() {
	local how=$1 folders=$2 kept=$3 program i=$((SEED % 2))
	for program in "elsewhere $((1000 * ROUNDS)) $SEED $folders" "hot $AWHILE $SEED $folders" \
		"kept exchange $AWHILE $kept" "kept stores $AWHILE $kept" "kept turns $AWHILE $kept" \
		"shaken holes $AWHILE $SEED $folders" "shaken cuts $AWHILE $SEED $folders"; do
		i=$((i + 1))
		# shellcheck disable=SC2086
		[ $ROUNDS -eq 1 ] && [ $((i % 2)) -eq 0 ] || disturbed_program "$how" $program
	done
}

@test "stops and cuts while all look at what the others change: files, names, pages, mappings" {
	mount_nodes
	disturbed_programs disturb_quietly "${M[*]}" "${M[*]}"
	check_disturbed
}

# It is the home of the folder, and of the pages that `kept` uses.
@test "kills of one while two others look at what they change: files, names, pages, mappings" {
	local d=("${M[1]}/d" "${M[2]}/d")
	mount_nodes
	mkdir "${M[3]}/d"
	head -c 32768 /dev/zero >"${M[3]}/d/pages"
	weft sync "${M[3]}"
	disturbed_programs disturb_by_kill "${d[*]}" "${d[*]} ${d[*]}"
	check_disturbed
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
