#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# A daemon of several nodes is killed: it is started again for the others, without its mount, so that they wait for
# what it held no longer than that takes. WEFT_CRASH_ROUNDS says how many kills under load.

load common
load nodes_loads

RESTART=restart

setup() { LOADS=(); }

teardown() {
	end_loads
	end_restarted
	teardown_nodes
}

check_nodes() {
	run fsck.weft -n -f "$FILE"
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output != *"not unmounted cleanly"* ]]
}

# Each has looked at each folder, and so shares what a change of it changes.
look_everywhere() {
	local n
	for n in $(seq "$NODES"); do mkdir -p "${M[n]}/own$n"; done
	for n in $(seq "$NODES"); do ls -lR "${M[n]}" >/dev/null; done
}

# On node $1: changes of what all have looked at, of which none needs more than the others' daemons.
changes() {
	local n
	timeout 120 mkdir "${M[$1]}/new$1.$2"
	for n in $(seq "$NODES"); do timeout 120 sh -c "echo $2 >'${M[$1]}/own$n/of$1'"; done
	timeout 120 ls -lR "${M[$1]}" >/dev/null
}

# The daemon of node $1 is killed: $KILLED.
kill_daemon() {
	KILLED=$(node_pid "$1")
	kill -9 "$KILLED"
}

# The mount of node $1 is taken away, and its daemon, which serves on, is killed.
kill_unmounted() {
	local pid
	pid=$(node_pid "$1")
	weft umount "${M[$1]}"
	kill -9 "$pid"
}

mount_is_dead() {
	run timeout 10 stat -f "${M[$1]}"
	[[ $output == *"not connected"* ]]
}

is_unmounted() { [[ $(weft status "${M[1]}") == *"node $1 "*"unmounted"* ]]; }

# The store's daemon answers, and has no mount; it serves the others a moment before it can be asked.
has_no_mount() {
	[ "$(weft status "$DIR/$1.weft" --json | sed -n 's/^  "mount_point": "\(.*\)",*$/\1/p')" = - ]
}

some_restarted() { [ "$(restarted | wc -l)" -eq "$1" ]; }

@test "a daemon is killed: the others change what it had looked at, and read what it had synced" {
	local n
	setup_nodes 3
	mount_nodes
	look_everywhere
	head -c 3M /dev/urandom >"$DIR/data"
	dd if="$DIR/data" of="${M[3]}/own3/data" conv=fsync status=none
	kill_daemon 3
	for n in 1 2; do
		changes "$n" a
		timeout 120 cmp "$DIR/data" "${M[n]}/own3/data"
	done
	mount_is_dead 3
	# without a mount: it is there for the others, and says so
	some_restarted 1
	wait_until 20 has_no_mount 3
	is_unmounted 3
	weft status "$DIR/3.weft" >/dev/null
	# and gives way to a mount
	weft umount "${M[3]}"
	mount_node 3
	some_restarted 0
	cmp "$DIR/data" "${M[3]}/own3/data"
	changes 3 b
	for n in 1 2; do [ "$(cat "${M[n]}/own1/of3")" = b ]; done
	umount_nodes 1 2 3
	some_restarted 0
	check_nodes
}

# A program has files of node 2's mount open: what it sees is asked by `look`.
hold_files() {
	echo old >"${M[1]}/f"
	mkdir "${M[1]}/d"
	echo e >"${M[1]}/d/e"
	coproc HOLD { exec python3 "$BATS_TEST_DIRNAME/held.py" "${M[2]}" 3>&-; }
	read -r -t 30 line <&"${HOLD[0]}"
	[ "$line" = held ]
}

look() {
	echo look >&"${HOLD[1]}"
	read -r -t 30 line <&"${HOLD[0]}"
	echo "$line"
	[ "$line" = "$1" ]
}

change_files() {
	timeout 120 sh -c "echo newer >'${M[1]}/f' && rm '${M[1]}/d/e'"
}

let_go() {
	kill "$HOLD_PID"
	wait "$HOLD_PID" || true
}

@test "a daemon is killed: programs that have files of it open get errors, and not what was there before" {
	setup_nodes 2
	mount_nodes
	hold_files
	look "old 4 4 2 o"
	kill_daemon 2
	change_files
	look "ENOTCONN ENOTCONN ENOTCONN ENOTCONN SIGBUS"
	let_go
	weft umount "${M[2]}"
	mount_node 2
	[ "$(cat "${M[2]}/f")" = newer ]
	umount_nodes 1 2
	check_nodes
}

@test "a mount that is in use is taken away by a signal: its programs get errors after that" {
	local pid
	setup_nodes 2
	mount_nodes
	hold_files
	pid=$(node_pid 2)
	kill -TERM "$pid"
	wait_until 30 is_unmounted 2 # it serves on, for some seconds
	change_files
	[ -d "/proc/$pid" ]
	look "ENOTCONN ENOTCONN ENOENT ENOTCONN SIGBUS"
	wait_until 60 gone "$pid"
	look "ENOTCONN ENOTCONN ENOENT ENOTCONN SIGBUS"
	let_go
	mount_node 2
	umount_nodes 1 2
	check_nodes
}

@test "what was started instead is killed, too, and again" {
	local i
	setup_nodes 3
	mount_nodes
	look_everywhere
	kill_daemon 3
	for i in 1 2 3; do
		changes 1 "$i"
		wait_until 30 some_restarted 1
		kill -9 "$(restarted)"
		changes 2 "$i"
	done
	# it ends when the others do
	umount_nodes 1 2
	wait_until 60 some_restarted 0
	weft umount "${M[3]}"
	check_nodes
}

@test "all daemons are killed at once: they meet, and end; nothing that was synced is lost" {
	local n pids guardians=()
	setup_nodes 3
	mount_nodes
	look_everywhere
	for n in 1 2 3; do dd if=/dev/urandom of="${M[n]}/own$n/f" bs=64k count=20 conv=fsync status=none; done
	for n in 1 2 3; do md5sum <"${M[n]}/own$n/f" >"$DIR/sum$n"; done
	pids=($(node_pid 1) $(node_pid 2) $(node_pid 3))
	for n in 0 1 2; do guardians+=($(pgrep -P "${pids[n]}" -x weft-guardian)); done
	[ ${#guardians[@]} -eq 3 ]
	kill -9 "${pids[@]}"
	# each starts one, and stays until that has ended; that all three have met and ended says fsck
	for n in 0 1 2; do wait_until 90 gone "${guardians[n]}"; done
	some_restarted 0
	for n in 1 2 3; do mount_is_dead "$n"; weft umount "${M[n]}"; done
	check_nodes
	mount_nodes
	for n in 1 2 3; do [ "$(md5sum <"${M[1 + n % 3]}/own$n/f")" = "$(cat "$DIR/sum$n")" ]; done
	umount_nodes 1 2 3
}

@test "a client's daemon is killed: in a moment nothing of it is left, and nobody waits for it" {
	CLIENTS=1
	setup_nodes 3
	mount_nodes
	look_everywhere
	dd if=/dev/urandom of="${M[3]}/own3/f" bs=64k count=20 conv=fsync status=none
	cp "${M[3]}/own3/f" "$DIR/f"
	exec 7<"${M[3]}/own3/f"
	flock 7
	run flock -n "${M[1]}/own3/f" true
	[ "$status" -eq 1 ]
	kill_daemon 3
	changes 1 a
	changes 2 a
	timeout 120 flock "${M[1]}/own3/f" true # its locks went with it
	exec 7<&-
	cmp "$DIR/f" "${M[2]}/own3/f"
	wait_until 30 some_restarted 0
	weft umount "${M[3]}"
	mount_node 3
	changes 3 b
	umount_nodes 3 1 2
	check_nodes
}

@test "one that was told to end, or not to be started again, is not" {
	local pid
	setup_nodes 3
	mount_nodes
	look_everywhere
	pid=$(node_pid 1)
	kill -TERM "$pid" # the others have 10 s
	# what has a mount no more, and serves on, is as needed as before
	kill_unmounted 3
	changes 2 a
	some_restarted 1
	kill -TERM "$(restarted)"
	wait_until 60 some_restarted 0
	wait_until 60 gone "$pid"
	sleep 1
	some_restarted 0
	mount_node 1 & # which has not heard that node 3 has left
	RESTART=norestart mount_node 3
	wait $!
	kill_daemon 3
	wait_until 30 gone "$KILLED"
	sleep 1
	some_restarted 0
	weft umount "${M[3]}"
	mount_node 3
	umount_nodes 1 2 3
	some_restarted 0
	check_nodes
}

@test "weftd --unmounted by hand: gives way to a mount while it still waits for the others" {
	local unmounted
	setup_nodes 2
	mount_nodes
	echo x >"${M[2]}/f"
	umount_nodes 1 2
	nsenter --net="/run/netns/$NET-2" weftd --unmounted "$FILE" -f 2>"$DIR/unmounted" 3>&- &
	unmounted=$!
	wait_until 20 grep -q "waiting for node 1" "$DIR/unmounted"
	run weft status
	[ "$status" -eq 0 ]
	mount_nodes
	wait "$unmounted" || [ $? -eq 32 ]
	[ "$(cat "${M[1]}/f")" = x ]
	run on 2 weftd --unmounted "$FILE"
	[ "$status" -eq 32 ]
	[[ $output == *"is in use"* ]]
	[ "$(cat "${M[1]}/f")" = x ]
	umount_nodes 1 2
	check_nodes
	run weftd --unmounted "$FILE" "${M[1]}"
	[ "$status" -eq 1 ]
	[[ $output == *"expected FILE"* ]]
	run weftd -u "$DIR/1.weft"
	[ "$status" -eq 32 ]
	[[ $output == *"names no other node"* ]]
}

@test "daemons are killed while all work: the others go on without the mount, nothing synced is lost" {
	local n round next
	setup_nodes 3 512M
	mount_nodes
	start_loads
	for ((round = 0; round < ${WEFT_CRASH_ROUNDS:-4}; round++)); do
		n=$((1 + round % 3))
		next=$((1 + n % 3))
		all_grow
		kill_daemon "$n"
		wait "${LOADS[n]}" || true
		for other in 1 2 3; do
			[ "$other" -ne "$n" ] || continue
			wait_until 30 grows "$other" "$(synced "$other")"
		done
		mount_is_dead "$n"
		check_load "$n" "$next"
		weft umount "${M[n]}"
		mount_node "$n"
		check_load "$n" "$n"
		start_load "$n"
	done
	all_grow
	check_all
	some_restarted 0
}
