#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# A client that was in nobody's cluster file is added while the others work: they take it in
# (`weft cluster reload`), it is mounted, works, is killed, comes back and leaves.

load common

setup() {
	local size=512M # room for the logs of more than one client
	[[ $BATS_TEST_DESCRIPTION != *"no room"* ]] || size=128M
	setup_nodes 4 "$size"
}
teardown() { teardown_nodes; }

# Nodes 1 and 2 have stores, 3 is a client; 4 is in no file yet.
new_cluster() {
	weft cluster new -d "$1" c "10.77.0.1:$1/1.weft" "10.77.0.2:$1/2.weft" \
		--client 10.77.0.3 >/dev/null
	CLIENTS=2
}

# Each node has a file of its own, as on machines of their own: $DIR/fN/c.cluster.
spread() { # NODE...
	local n
	for n in "$@"; do
		mkdir -p "$DIR/f$n"
		cp -p "$DIR/c.key" "$DIR/f$n/"
		cp "$FILE" "$DIR/f$n/"
	done
}

mount_one() {
	FILE=$DIR/f$1/c.cluster mount_node "$1"
}

mount_three() {
	local p=()
	spread 1 2 3
	for n in 1 2 3; do
		mount_one "$n" &
		p+=($!)
	done
	for n in "${p[@]}"; do wait "$n" || { cat "$DIR"/log*; return 1; }; done
}

add_client() {
	run weft cluster add "$FILE" --client 10.77.0.4
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"Added client 4 to $FILE."* ]]
}

reload() { # NODE...
	local n
	for n in "$@"; do
		run weft cluster reload "${M[n]}"
		echo "$output"
		[ "$status" -eq 0 ]
	done
}

# Each of the three writes files and reads what the others wrote, until $DIR/stop is there. A
# file that is not what its writer said ends it with an error.
load_on() {
	local n=$1 i=0 other
	while [ ! -e "$DIR/stop" ]; do
		i=$((i + 1))
		echo "$n $i" >"${M[n]}/d/new.$n"
		mv "${M[n]}/d/new.$n" "${M[n]}/d/of.$n"
		for other in 1 2 3; do
			[[ $(cat "${M[n]}/d/of.$other") =~ ^$other\ [0-9]+$ ]] || exit 1
		done
		flock "${M[n]}/d/lock" sh -c "echo \$((\$(cat ${M[n]}/d/count) + 1)) >${M[n]}/d/count" || exit 1
		echo "$i" >"$DIR/does.$n"
		mv "$DIR/does.$n" "$DIR/did.$n"
	done
}

start_load() {
	local n
	mkdir "${M[1]}/d"
	echo 0 >"${M[1]}/d/count"
	for n in 1 2 3; do
		echo "$n 0" >"${M[1]}/d/of.$n"
		echo 0 >"$DIR/did.$n"
	done
	LOADS=()
	for n in 1 2 3; do
		load_on "$n" 3>&- &
		LOADS+=($!)
	done
}

# Each of them has done something more since.
load_goes_on() {
	local n before=()
	for n in 1 2 3; do before[n]=$(cat "$DIR/did.$n"); done
	for n in 1 2 3; do
		wait_until 120 eval "[ \"\$(cat $DIR/did.$n)\" -gt ${before[n]} ]"
	done
}

end_load() {
	local p n sum=0
	touch "$DIR/stop"
	for p in "${LOADS[@]}"; do wait "$p"; done
	for n in 1 2 3; do sum=$((sum + $(cat "$DIR/did.$n"))); done
	[ "$(cat "${M[2]}/d/count")" = $((sum + ${1:-0})) ]
}

kill_node() {
	local pid
	pid=$(node_pid "$1")
	kill -9 "$pid"
	wait_until 10 gone "$pid"
	umount -l "${M[$1]}"
}

check_nodes() {
	run fsck.weft -n -f "$FILE"
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"no damage found"* ]]
}

@test "a client is added while three nodes work; it is killed, comes back and leaves" {
	mount_three
	start_load
	load_goes_on
	add_client
	spread 1 2 3 4
	for n in 1 2 3; do
		run weft cluster reload "${M[n]}"
		echo "$output"
		[ "$status" -eq 0 ]
		[ "$output" = "node $n (${M[n]}): added node 4" ]
	done
	reload 1 # once more: it is known
	[ "$output" = "node 1 (${M[1]}): nothing was added" ]
	load_goes_on
	mount_one 4
	for n in 1 2 3; do
		run weft status "${M[n]}"
		[[ $output == *"node 4   client"*"up for"* ]]
	done
	for n in 1 2 3; do
		[[ $(cat "${M[4]}/d/of.$n") =~ ^$n\ [0-9]+$ ]]
	done
	for i in $(seq 20); do
		flock "${M[4]}/d/lock" sh -c "echo \$((\$(cat ${M[4]}/d/count) + 1)) >${M[4]}/d/count"
		dd if=/dev/urandom of="${M[4]}/d/f$i" bs=30k count=1 conv=fsync status=none
		cp "${M[4]}/d/f$i" "$DIR/copy$i"
	done
	sync "${M[4]}/d/count"
	cmp "$DIR/copy1" "${M[3]}/d/f1"
	load_goes_on
	flock "${M[4]}/d/mine" sleep 60 3>&- &
	wait_until 10 eval '! flock -n "${M[1]}/d/mine" true'
	kill_node 4
	mount_one 4
	load_goes_on
	for i in $(seq 20); do
		timeout 240 cmp "$DIR/copy$i" "${M[4]}/d/f$i"
		timeout 240 cmp "$DIR/copy$i" "${M[2]}/d/f$i"
	done
	timeout 240 flock "${M[2]}/d/mine" true
	end_load 20
	pid=$(node_pid 4)
	umount "${M[4]}" # it leaves, and nobody waits for it
	wait_until 30 gone "$pid"
	timeout 240 sh -c "echo more >>${M[1]}/d/f1"
	umount_nodes 3 1 2
	check_nodes
	spread 1 2
	mount_one 1 & # what was added is added
	mount_one 2
	wait $!
	mount_one 4
	[ "$(tail -c5 "${M[4]}/d/f1")" = more ]
	umount_nodes 4 2 1
}

@test "a node that has not reloaded keeps the newcomer out, by name, until it has" {
	mount_three
	start_load
	add_client
	spread 4
	run on 4 timeout 120 weftd "$DIR/f4/c.cluster" "${M[4]}"
	echo "$output"
	[ "$status" -eq 32 ]
	[[ $output == *"node 1"*"it does not know this node: copy this cluster file there, and run \`weft cluster reload\`"* ]]
	load_goes_on
	for n in 1 2; do # its host, then the other store, know it; who does not is named
		spread "$n"
		reload "$n"
		run on 4 timeout 120 weftd "$DIR/f4/c.cluster" "${M[4]}"
		echo "$output"
		[ "$status" -eq 32 ]
		[[ $output == *"node $((n + 1)) does not know node 4 yet: copy this cluster file there, and run \`weft cluster reload\`"* ]]
		load_goes_on
	done
	spread 3
	reload 3
	mount_one 4
	[[ $(cat "${M[4]}/d/of.2") =~ ^2\ [0-9]+$ ]]
	echo of4 >"${M[4]}/d/four"
	[ "$(cat "${M[3]}/d/four")" = of4 ]
	load_goes_on
	end_load
	umount_nodes 4 3 2 1
	check_nodes
}

@test "who starts with an old file while the newcomer is known to others is told so" {
	mount_three
	add_client
	spread 1 2 4
	pid=$(node_pid 3)
	umount "${M[3]}"
	wait_until 30 gone "$pid"
	reload 1 2
	mount_one 4
	echo a >"${M[4]}/a"
	run on 3 timeout 120 weftd "$DIR/f3/c.cluster" "${M[3]}"
	echo "$output"
	[ "$status" -eq 32 ]
	[[ $output == *"node 1 knows node 4, which $DIR/f3/c.cluster does not name: copy the cluster file from there"* ]]
	spread 3
	mount_one 3
	[ "$(cat "${M[3]}/a")" = a ]
	umount_nodes 3 4 1 2
	check_nodes
}

@test "a file that is damaged, or says what cannot change, changes nothing" {
	mount_three
	start_load
	refused() { # TEXT: what node 1 says of its file, which is $DIR/f1/c.cluster
		run weft cluster reload "${M[1]}"
		echo "$output"
		[ "$status" -eq 2 ]
		[[ $output == *"$1"* ]]
		run weft status "${M[1]}"
		[[ $output == *"node 1 of 3"* ]]
		[[ $output != *"node 4"* ]]
	}
	echo garbage >>"$DIR/f1/c.cluster"
	refused "c.cluster:19: is neither [SECTION] nor KEY = VALUE"
	cp "$FILE" "$DIR/f1/c.cluster"
	sed -i 's/^address = 10.77.0.2/&:99/' "$DIR/f1/c.cluster"
	refused "[node 2] address: addresses cannot change while the volume is in use"
	sed '/node 3/,$d' "$FILE" >"$DIR/f1/c.cluster"
	refused "[node 3]: is not there any more: a node cannot be removed"
	sed "s/^uuid = ./uuid = $(sed -n 's/^uuid = 0.*/1/p;s/^uuid = [^0].*/0/p' "$FILE")/" "$FILE" >"$DIR/f1/c.cluster"
	refused "[volume] uuid: it is the file of another volume"
	cp "$FILE" "$DIR/f1/c.cluster"
	printf '\n[node 4]\naddress = 10.77.0.4\nstore = /srv/4\n' >>"$DIR/f1/c.cluster"
	refused "[node 4]: only a client can be added while the volume is in use"
	cp "$FILE" "$DIR/f1/c.cluster"
	printf '\n[node 4]\nrole = client\naddress = nowhere.invalid\n' >>"$DIR/f1/c.cluster"
	refused "[node 4] address: \"nowhere.invalid\" does not resolve"
	rm "$DIR/f1/c.cluster"
	refused "cannot read $DIR/f1/c.cluster"
	cp "$FILE" "$DIR/f1/c.cluster"
	reload 1
	[[ $output == *"nothing was added" ]]
	load_goes_on
	end_load
	umount_nodes 3 2 1
	check_nodes
}

@test "a store that has no room for another log says so, and nothing is added" {
	rm "$DIR/2.weft"
	on 2 mkfs.weft -c "$FILE" --size 128M --clients 1 >>"$DIR/mkfs.log"
	mount_three
	add_client
	spread 1 2
	run weft cluster reload "${M[1]}"
	echo "$output"
	[ "$status" -eq 2 ]
	[[ $output == *"[node 4]: the store of node 1, its host, has no room for the log of another client"* ]]
	run weft status "${M[1]}"
	[[ $output != *"node 4"* ]]
	echo "host = 2" >>"$FILE"
	spread 1 2 3 4
	run weft cluster reload "${M[1]}" # its host is the first
	[ "$status" -eq 2 ]
	[[ $output == *"[node 4]: node 2, its host, does not know it yet: run \`weft cluster reload\` there first"* ]]
	run weft status "${M[1]}"
	[[ $output != *"node 4"* ]]
	reload 2 3 1
	mount_one 4
	echo a >"${M[4]}/a"
	[ "$(cat "${M[3]}/a")" = a ]
	umount_nodes 4 3 2 1
	check_nodes
}

@test "a storage node whose file names fewer nodes than before does not start, until it does" {
	mount_three
	add_client
	spread 2 3 4
	cp "$FILE" "$DIR/f1/c.cluster"
	reload 1 2 3
	mount_one 4
	mkdir "${M[4]}/d"
	for i in $(seq 50); do # the newest of these pages is with node 4, and in its log
		echo "$i" >"${M[1]}/d/$i"
		sync "${M[1]}/d/$i"
		echo "new $i" >"${M[4]}/d/$i"
		sync "${M[4]}/d/$i"
	done
	sed '/node 4/,$d' "$FILE" >"$DIR/f1/c.cluster"
	kill_node 4
	kill_node 1
	weft dump "$DIR/1.weft" super >"$DIR/before"
	grep "known nodes *2 3 4$" "$DIR/before"
	refused() {
		echo "$output"
		[[ $output == *"$DIR/1.weft: the store has worked with node 4, which $DIR/f1/c.cluster does not name"* ]]
		[[ $output == *"copy the cluster file from a node that has it with [node 4]"* ]]
	}
	run on 1 timeout 120 weftd "$DIR/f1/c.cluster" "${M[1]}"
	[ "$status" -eq 32 ]
	refused
	run on 1 weft cluster check "$DIR/f1/c.cluster"
	[ "$status" -eq 2 ]
	refused
	[[ $output == *"WRONG"* ]]
	run on 3 timeout 120 weft node fence "$DIR/f1/c.cluster" 1 --yes
	[ "$status" -ne 0 ]
	[[ $output == *"has worked with node 4, which $DIR/f1/c.cluster does not name"* ]]
	weft dump "$DIR/1.weft" super | diff "$DIR/before" - # nothing was changed
	cp "$FILE" "$DIR/f1/c.cluster"
	run on 1 weft cluster check "$DIR/f1/c.cluster"
	[[ $output != *"WRONG"* ]]
	mount_one 1 & # with the right one it waits for what node 4 has
	mount_one 4
	wait $!
	for i in $(seq 50); do
		[ "$(timeout -s KILL 240 cat "${M[1]}/d/$i")" = "new $i" ]
	done
	pid=$(node_pid 1)
	# one that serves on without a mount is not asked to go for a start that would be refused
	weft umount "${M[1]}"
	sed '/node 4/,$d' "$FILE" >"$DIR/f1/c.cluster"
	run on 1 timeout 120 weftd "$DIR/f1/c.cluster" "${M[1]}"
	[ "$status" -eq 32 ]
	refused
	[ "$(timeout -s KILL 10 cat "${M[2]}/d/50")" = "new 50" ]
	umount_nodes 4 3 2
	wait_until 30 gone "$pid"
	sed '/node 4/,$d' "$FILE" >"$DIR/less.cluster"
	run fsck.weft -n -f "$DIR/less.cluster"
	echo "$output"
	[ "$status" -eq 8 ]
	[[ $output == *"has worked with node 4, which $DIR/less.cluster does not name"* ]]
	check_nodes
}
