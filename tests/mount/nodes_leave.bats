#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Nodes that leave a volume that others go on using: nobody waits for what they had, and they
# come back.

load common

setup() { setup_nodes 3; }
teardown() { teardown_nodes; }

check_nodes() {
	run fsck.weft -n -f -c "$FILE"
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output != *"not unmounted cleanly"* ]]
}

# Node 3 has pages of others, changed, and has said so in inodes; what it made itself is its own.
use_others() {
	mkdir "${M[1]}/d" "${M[2]}/e"
	for i in 1 2 3 4 5 6 7 8; do
		head -c 50000 /dev/zero >"${M[1]}/d/$i"
		head -c 50000 /dev/zero >"${M[2]}/e/$i"
	done
	for i in 1 2 3 4 5 6 7 8; do
		printf 'of 3: %s' "$i" | dd of="${M[3]}/d/$i" bs=1000 seek=20 conv=notrunc status=none
		printf 'of 3: %s' "$i" | dd of="${M[3]}/e/$i" bs=1000 seek=20 conv=notrunc status=none
	done
}

# On node $1: what node 3 wrote is there, and can be made durable.
look_at_others() {
	local n=$1 d
	for d in d e; do
		for i in 1 2 3 4 5 6 7 8; do
			[ "$(timeout -s KILL 10 dd if="${M[n]}/$d/$i" bs=1 skip=20000 count=7 \
				status=none)" = "of 3: $i" ]
		done
	done
	timeout -s KILL 10 sync "${M[n]}"/d/* "${M[n]}"/e/*
	timeout -s KILL 10 touch "${M[n]}"/d/* "${M[n]}"/e/*
}

@test "a node that leaves alone gives back what it has: the others wait for nothing of it" {
	mount_nodes
	use_others
	pid=$(node_pid 3)
	kill "$pid"
	wait_until 40 gone "$pid"
	for n in 1 2; do
		look_at_others "$n"
		timeout -s KILL 240 weft sync "${M[n]}"
	done
	weft status "${M[1]}" --json >"$DIR/json"
	python3 - "$DIR/json" <<-'END'
		import json, sys
		nodes = {n["id"]: n for n in json.load(open(sys.argv[1]))["cluster"]["nodes"]}
		assert nodes[3]["left"] and not nodes[3]["up"] and not nodes[2]["left"]
	END
	# nor does one that was killed, and starts
	pid=$(node_pid 2)
	kill -9 "$pid"
	wait_until 10 gone "$pid"
	umount -l "${M[2]}"
	mount_node 2
	look_at_others 2
	look_at_others 1
	# it comes back, crashes, and is waited for again: it may have something
	mount_node 3
	look_at_others 3
	echo 3 >"${M[3]}/d/9"
	echo more >>"${M[3]}/d/1"
	pid=$(node_pid 3)
	kill -9 "$pid"
	wait_until 10 gone "$pid"
	umount -l "${M[3]}"
	run timeout -s KILL 2 cat "${M[1]}/d/1"
	[ "$status" -ne 0 ]
	mount_node 3
	look_at_others 1
	umount_nodes 1 2 3
	check_nodes
}

@test "a node that was unmounted, and serves on, is mounted again" {
	mount_nodes
	use_others
	for round in 1 2 3; do
		weft umount "${M[3]}" >"$DIR/said" 2>"$DIR/complained"
		grep -q "goes on serving node 3's store to node 1" "$DIR/said"
		[ ! -s "$DIR/complained" ]
		look_at_others 1
		[ "$round" -ne 2 ] || weft umount "${M[2]}" 2>>"$DIR/log2"
		SECONDS=0
		on 3 timeout -s KILL 240 weftd "$FILE" "${M[3]}" -o cache=64M 2>>"$DIR/log3"
		node_pid 3 >>"$DIR/pids"
		[ "$round" -ne 2 ] || mount_node 2
		echo "mounted again after $SECONDS s"
		look_at_others 3
		echo "$round" >"${M[3]}/d/again"
		[ "$(timeout -s KILL 10 cat "${M[1]}/d/again")" = "$round" ]
		[ "$(timeout -s KILL 10 cat "${M[2]}/d/again")" = "$round" ]
	done
	# one that is mounted is not
	run on 3 weftd "$FILE" "${M[3]}"
	[ "$status" -eq 32 ]
	[[ $output == *"is in use"* ]]
	umount_nodes 3 2 1
	check_nodes
}

# Unmounts node $1 in the background; what is said is in $DIR/umountN.
unmount_behind() {
	timeout -s KILL 120 weft umount "${M[$1]}" >"$DIR/umount$1" 2>&1 3>&- &
	UNMOUNTS+=($!)
}

@test "all are unmounted while a node that was killed is away: it is said, they end, nothing is lost" {
	local pids=() UNMOUNTS=() n i code
	mount_nodes
	for i in 1 2; do # in the store of node 3
		mkdir "${M[3]}/d$i"
		for n in $(seq 12); do head -c 20000 /dev/zero >"${M[3]}/d$i/$n"; done
	done
	weft sync "${M[3]}"
	for i in 1 2; do
		pids[i]=$(node_pid "$i")
		head -c 240000 /dev/urandom >"$DIR/bytes$i"
		for n in $(seq 12); do # the newest is with node i, and in no log
			dd if="$DIR/bytes$i" of="${M[i]}/d$i/$n" bs=20000 skip=$((n - 1)) count=1 \
				conv=notrunc status=none
		done
	done
	pids[3]=$(node_pid 3)
	kill -9 "${pids[3]}"
	wait_until 10 gone "${pids[3]}"
	umount -l "${M[3]}"
	unmount_behind 1
	unmount_behind 2
	for i in 1 2; do
		wait_until 60 gone "${pids[i]}"
		code=0
		wait "${UNMOUNTS[i - 1]}" || code=$?
		[ "$code" -eq 2 ] # what waits in the log is not in its store
		cat "$DIR/umount$i"
	done
	grep -q "unmounted; away: node 3 (10.77.0.3:9338)" "$DIR/umount1"
	grep -q "waits up to 18 s" "$DIR/umount1"
	grep -q "stay in the log of node 1 until all nodes are mounted again: nothing is lost" "$DIR/umount1"
	mount_nodes
	for i in 1 2; do
		for n in 1 2 3; do
			timeout -s KILL 240 cat $(seq -f "${M[n]}/d$i/%g" 12) | cmp - "$DIR/bytes$i"
		done
	done
	umount_nodes 3 2 1
	check_nodes
}

# Makes files on node 1 until one has to wait.
fill_log() {
	local i
	for i in $(seq 20000); do
		echo "$i" >"${M[1]}/own/$i" || return 0
		echo "$i" >"$DIR/filled"
	done
}

stands_still() {
	local before
	before=$(cat "$DIR/filled")
	sleep 2
	[ "$before" = "$(cat "$DIR/filled")" ]
}

@test "SIGTERM ends a node whose log is full of what a node that was killed has to persist; what was synced is there" {
	local n pid filler
	start_node 1 -o cache=64M # its log is to be read
	mount_node 2 &
	mount_node 3
	wait $!
	wait_until 10 mountpoint -q "${M[1]}"
	mkdir "${M[3]}/d" "${M[1]}/own"
	for n in $(seq 12); do head -c 20000 /dev/zero >"${M[3]}/d/$n"; done
	weft sync "${M[3]}"
	for n in $(seq 12); do # node 1 changes them, then node 3: node 1 owes what its log has
		echo "one $n" | dd of="${M[1]}/d/$n" conv=notrunc,fsync status=none
	done
	for n in $(seq 12); do
		echo three | dd of="${M[3]}/d/$n" bs=1000 seek=10 conv=notrunc status=none
	done
	pid=$(node_pid 3)
	kill -9 "$pid"
	wait_until 10 gone "$pid"
	umount -l "${M[3]}"
	echo 0 >"$DIR/filled"
	fill_log 2>/dev/null 3>&- &
	filler=$!
	wait_until 60 stands_still
	echo "it stands still after $(cat "$DIR/filled") files"
	pid=$STARTED
	SECONDS=0
	kill "$pid"
	wait_until 60 gone "$pid"
	echo "it has ended after $SECONDS s"
	wait "$filler" || true
	cat "$DIR/log1"
	grep -q "stay in this node's log" "$DIR/log1"
	mount_node 3 &
	mount_node 1
	wait $!
	for n in $(seq 12); do
		[ "$(timeout -s KILL 30 head -n 1 "${M[2]}/d/$n" | tr -d '\0')" = "one $n" ]
	done
	umount_nodes 3 2 1
	check_nodes
}

@test "SIGTERM ends a node while a program waits there to sync what a node has changed that was killed" {
	local pid waits
	start_node 1 -o cache=64M
	mount_node 2 &
	mount_node 3
	wait $!
	wait_until 10 mountpoint -q "${M[1]}"
	echo one >"${M[1]}/f"
	echo three >>"${M[3]}/f"
	[ "$(wc -l <"${M[1]}/f")" -eq 2 ]
	pid=$(node_pid 3)
	kill -9 "$pid"
	wait_until 10 gone "$pid"
	umount -l "${M[3]}"
	sync "${M[1]}/f" 2>"$DIR/sync" 3>&- &
	waits=$!
	sleep 2
	! gone "$waits"
	SECONDS=0
	kill "$STARTED"
	wait_until 40 gone "$STARTED"
	echo "it has ended after $SECONDS s"
	run wait "$waits"
	[ "$status" -ne 0 ]
}

@test "a node that is started while another one is away finds what is its own" {
	mount_nodes
	for n in 3 2 1; do # node 3 is the first to make files
		mkdir "${M[n]}/own$n"
		(cd "${M[n]}/own$n" && for i in $(seq 300); do echo "of $n" >"$i"; done)
	done
	pid=$(node_pid 3)
	kill "$pid"
	wait_until 40 gone "$pid"
	pid=$(node_pid 2)
	kill -9 "$pid"
	wait_until 10 gone "$pid"
	umount -l "${M[2]}" || true
	timeout -s KILL 40 nsenter --net="/run/netns/$NET-2" weftd "$FILE" "${M[2]}" \
		-o cache=64M,norestart 2>>"$DIR/log2"
	node_pid 2 >>"$DIR/pids"
	timeout -s KILL 20 ls "${M[2]}" >/dev/null
	[ "$(timeout -s KILL 20 cat "${M[2]}/own2"/* | wc -c)" -eq 1500 ]
	timeout -s KILL 20 rm "${M[2]}/own2/300"
	echo more | timeout -s KILL 20 tee "${M[2]}/own2/300" >/dev/null
	mount_node 3
	[ "$(cat "${M[1]}"/own3/* | wc -c)" -eq 1500 ]
	umount_nodes 1 2 3
	check_nodes
}
