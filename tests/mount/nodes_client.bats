#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# A node without a store, among others: it does all that they do, comes and goes while they
# work, and is killed, as is the node that has its log.

load common

setup() {
	CLIENTS=1
	setup_nodes 3
}
teardown() { teardown_nodes; }

check_nodes() {
	run fsck.weft -n -f "$FILE"
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"no damage found"* ]]
}

# Node $1 dies, as by a power cut.
kill_node() {
	local pid
	pid=$(node_pid "$1")
	kill -9 "$pid"
	wait_until 10 gone "$pid"
	umount -l "${M[$1]}"
}

# It ends, and that is all there is to wait for: the others have the volume on.
umount_client() {
	local pid
	pid=$(node_pid 3)
	umount "${M[3]}"
	wait_until 20 gone "$pid"
}

@test "a node is dead, without its store: a client that comes learns of it; who is killed comes back" {
	local n
	mount_nodes
	mkdir "${M[1]}/d"
	echo a >"${M[1]}/d/f"
	for n in 2 3; do stat "${M[n]}/d" "${M[n]}/d/f" >/dev/null; done
	umount_client
	kill_node 2
	mv "$DIR/2.weft" "$DIR/elsewhere"
	run on 1 timeout -s KILL 240 weft node fence "$FILE" 2 --without-store --yes
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"Node 2 is dead"* ]]
	timeout -s KILL 240 touch "${M[1]}/d/f"
	# With more to run than there are processors: who is told of a link's coming second may be late.
	local busy=()
	for n in 1 2 3; do
		timeout 60 sha256sum /dev/zero >/dev/null 3>&- &
		busy+=($!)
	done
	mount_node 3
	kill "${busy[@]}"
	weft status "${M[3]}" | grep -q "dead, AWAY"
	echo b >"${M[3]}/d/g"
	sync "${M[3]}/d/g"
	cat "${M[3]}/d/f"
	# What is known to be so is so after a start, for what somebody has. (Of the rest the home, just
	# started, cannot know whether node 2 had changed it.)
	kill_node 1
	mount_node 1
	weft status "${M[1]}" | grep -q "dead, AWAY"
	[ "$(timeout -s KILL 240 cat "${M[1]}/d/f" "${M[1]}/d/g")" = $'a\nb' ]
	timeout -s KILL 240 touch "${M[3]}/d/f"
	mv "$DIR/elsewhere" "$DIR/2.weft"
	mount_node 2
	[ "$(timeout -s KILL 240 cat "${M[2]}/d/f" "${M[2]}/d/g")" = $'a\nb' ]
	run weft status "${M[3]}"
	[[ $output != *dead* ]]
	umount_client
	umount_nodes 1 2
	check_nodes
}

@test "a client comes and goes while others work" {
	mount_node 1 &
	mount_node 2 # without the client
	wait $!
	mount_node 3
	echo "of 1" >"${M[1]}/a"
	[ "$(cat "${M[3]}/a")" = "of 1" ]
	mkdir "${M[3]}/d"
	for i in $(seq 50); do echo "$i" >"${M[3]}/d/$i"; done
	head -c 20M /dev/urandom >"${M[3]}/large"
	cmp "${M[3]}/large" "${M[2]}/large"
	[ "$(ls "${M[2]}/d" | wc -l)" = 50 ]
	run weft status "${M[1]}"
	[[ $output == *"node 3   client"*"up for"* ]]
	umount_client
	# what it had, all have at once, and may change
	for i in $(seq 50); do timeout 120 sh -c "echo more >>${M[1]}/d/$i"; done
	timeout 120 cmp "${M[1]}/large" "${M[2]}/large"
	timeout 120 rm "${M[2]}/large"
	timeout 120 sync "${M[1]}/d/50"
	mount_node 3
	[ "$(tail -n1 "${M[3]}/d/50")" = more ]
	[ ! -e "${M[3]}/large" ]
	umount_client
	umount_nodes 1 2
	check_nodes
	mount_node 1 & # and a start does not wait for it
	mount_node 2
	wait $!
	[ "$(ls "${M[2]}/d" | wc -l)" = 50 ]
	umount_nodes 1 2
}

@test "what a client has fsynced is there after it was killed" {
	mount_nodes
	mkdir "${M[1]}/d"
	for i in $(seq 20); do
		dd if=/dev/urandom of="${M[3]}/d/$i" bs=30k count=1 conv=fsync status=none
		cp "${M[3]}/d/$i" "$DIR/copy$i"
	done
	flock "${M[3]}/d/1" sleep 10 3>&- 4>&- &
	wait_until 10 eval '! flock -n "${M[1]}/d/1" true'
	kill_node 3
	mount_node 3
	for i in $(seq 20); do
		timeout 120 cmp "$DIR/copy$i" "${M[1]}/d/$i"
		timeout 120 cmp "$DIR/copy$i" "${M[3]}/d/$i"
	done
	timeout 120 flock "${M[2]}/d/1" true
	echo again >"${M[3]}/d/again"
	[ "$(cat "${M[2]}/d/again")" = again ]
	umount_nodes 3 2 1
	check_nodes
}

@test "a client that was killed is fenced: what it had fsynced is there, its locks are free, nobody waits" {
	mount_nodes
	mkdir "${M[1]}/d"
	for i in $(seq 20); do
		dd if=/dev/urandom of="${M[3]}/d/$i" bs=30k count=1 conv=fsync status=none
		cp "${M[3]}/d/$i" "$DIR/copy$i"
	done
	flock "${M[3]}/d/1" sleep 10 3>&- 4>&- &
	wait_until 10 eval '! flock -n "${M[1]}/d/1" true'
	kill_node 3
	run timeout -s KILL 2 cmp "$DIR/copy1" "${M[1]}/d/1"
	[ "$status" -ne 0 ]
	run on 2 timeout -s KILL 120 weft node fence "$FILE" 3 --yes
	echo "$output"
	[ "$status" -eq 0 ]
	for i in $(seq 20); do
		timeout 240 cmp "$DIR/copy$i" "${M[1]}/d/$i"
		timeout 240 touch "${M[2]}/d/$i"
	done
	timeout 240 flock "${M[2]}/d/1" true
	timeout 240 sync "${M[1]}"/d/*
	mount_node 3
	echo again >"${M[3]}/d/again"
	[ "$(cat "${M[2]}/d/again")" = again ]
	umount_nodes 3 2 1
	check_nodes
}

@test "fsck.weft redoes the log of a client that was killed" {
	mount_nodes
	head -c 300k /dev/urandom >"${M[3]}/f"
	sync "${M[3]}/f"
	while read -r pid; do
		kill -9 "$pid"
	done <"$DIR/pids"
	for n in 1 2 3; do umount -l "${M[n]}"; done
	while read -r pid; do
		wait_until 10 gone "$pid"
	done <"$DIR/pids"
	: >"$DIR/pids"
	run fsck.weft -y "$FILE"
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"not unmounted cleanly"*"no damage found"* ]]
	check_nodes
	mount_node 1 & # the client's log has nothing more: nobody waits for it
	mount_node 2
	wait $!
	[ "$(timeout 120 stat -c %s "${M[2]}/f")" = 307200 ]
	umount_nodes 1 2
}

@test "a client waits for the node that has its log, and loses nothing" {
	mount_nodes
	(
		for i in $(seq 150); do
			echo "$i" >>"${M[3]}/lines"
			sync "${M[3]}/lines"
			echo "$i" >"$DIR/said"
		done
	) 3>&- &
	local writer=$!
	wait_until 20 test -s "$DIR/said"
	kill_node 1
	mount_node 1
	wait "$writer"
	[ "$(wc -l <"${M[1]}/lines")" = 150 ]
	[ "$(wc -l <"${M[2]}/lines")" = 150 ]
	umount_nodes 3 1 2
	check_nodes
}

@test "a second client with the same id is refused, and does no harm" {
	mount_nodes
	mkdir "$DIR/twin"
	echo a >"${M[3]}/a"
	run on 3 timeout 240 weftd "$FILE" "$DIR/twin" -f -o node=3
	echo "$output"
	[ "$status" -eq 32 ]
	[[ $output == *"node 3 is at work already"* ]]
	echo b >"${M[3]}/b"
	timeout 120 sync "${M[3]}/b"
	[ "$(cat "${M[1]}/b")" = b ]
	umount_nodes 3 2 1
	check_nodes
}
