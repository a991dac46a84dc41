#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# weft node fence: a node has crashed and is not started again; what others wait for of it is
# given to them, from its store.

load common

setup() { setup_nodes 3; }
teardown() {
	[ -z "${stopped:-}" ] || kill -CONT "$stopped" 2>/dev/null || true
	teardown_nodes
	for device in ${loops:-}; do losetup -d "$device" || true; done
}

check_nodes() {
	run fsck.weft -n -f -c "$FILE"
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output != *"not unmounted cleanly"* ]]
}

kill_node() {
	local pid
	pid=$(node_pid "$1")
	kill -9 "$pid"
	wait_until 10 gone "$pid"
	umount -l "${M[$1]}"
}

# Files of nodes 1 and 2, which node 3 has changed: $1 is what it wrote.
write_others() {
	local d i
	for d in d e; do
		for i in 1 2 3 4 5 6; do
			printf '%-9s' "$1 $i" |
				dd of="${M[3]}/$d/$i" bs=1000 seek=20 conv=notrunc status=none
		done
	done
}

look() { # NODE WHAT
	local d i
	for d in d e; do
		for i in 1 2 3 4 5 6; do
			[ "$(timeout -s KILL 240 dd if="${M[$1]}/$d/$i" bs=1 skip=20000 count=9 \
				status=none)" = "$(printf '%-9s' "$2 $i")" ]
		done
	done
}

make_files() {
	mkdir "${M[1]}/d" "${M[2]}/e"
	for i in 1 2 3 4 5 6; do
		head -c 50000 /dev/zero >"${M[1]}/d/$i"
		head -c 50000 /dev/zero >"${M[2]}/e/$i"
	done
}

@test "a node is killed and fenced: what it made durable is there, its locks are free, nobody waits" {
	mount_nodes
	make_files
	touch "${M[1]}/d/lock"
	write_others synced
	sync "${M[3]}"/d/* "${M[3]}"/e/*
	exec 7>"${M[3]}/d/lock"
	flock -n 7
	run flock -n "${M[1]}/d/lock" true
	[ "$status" -eq 1 ]

	# not while it runs
	run on 1 weft node fence "$FILE" 3 --yes
	echo "$output"
	[ "$status" -eq 2 ]
	[[ $output == *"node 3 is up"* ]]
	kill_node 3
	exec 7>&-
	run timeout -s KILL 2 cat "${M[1]}/d/1"
	[ "$status" -ne 0 ]

	# nor unasked, nor without its store
	run on 1 weft node fence "$FILE" 3 </dev/null
	[ "$status" -eq 2 ]
	[[ $output == *"say --yes"* ]]
	mv "$DIR/3.weft" "$DIR/elsewhere"
	run on 1 weft node fence "$FILE" 3 --yes
	[ "$status" -eq 2 ]
	[[ $output == *"node 3's store"*"No such file"* ]]
	run on 1 weft node fence "$FILE" 3 --yes --store "$DIR/2.weft"
	[ "$status" -eq 2 ]

	run on 1 timeout -s KILL 120 weft node fence "$FILE" 3 --yes --store "$DIR/elsewhere"
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"Node 3 is fenced"* ]]
	for n in 1 2; do
		look "$n" synced
		timeout -s KILL 240 sync "${M[n]}"/d/* "${M[n]}"/e/*
		timeout -s KILL 240 flock -n "${M[n]}/d/lock" true
		timeout -s KILL 240 touch "${M[n]}"/d/* "${M[n]}"/e/*
		timeout -s KILL 240 weft sync "${M[n]}"
	done
	weft status "${M[2]}" | grep -q "left, AWAY"

	# the others are killed, and start without it
	kill_node 1
	kill_node 2
	mount_node 1 &
	mount_node 2
	wait $!
	look 1 synced
	look 2 synced
	echo "written while 3 is away" >"${M[1]}/d/1"

	mv "$DIR/elsewhere" "$DIR/3.weft"
	mount_node 3
	[ "$(cat "${M[3]}/d/1")" = "written while 3 is away" ]
	write_others again
	look 1 again
	umount_nodes 1 2 3
	check_nodes
}

touch_all() { # NODE: as one process, so that it is killed as a whole
	timeout -s KILL "${2:-60}" touch "${M[$1]}"/d/{1,2,3,4,5,6} "${M[$1]}"/e/{1,2,3,4,5,6}
}

@test "a node is killed and its store is lost: others change what it only shared, its locks are free" {
	local n waiting asks
	start_node 2
	mount_node 1 &
	mount_node 3
	wait $!
	wait_until 10 mountpoint -q "${M[2]}"
	make_files
	mkdir "${M[3]}/own3"
	touch "${M[1]}/d/lock"
	cat "${M[3]}"/d/* "${M[3]}"/e/* >/dev/null
	exec 7>"${M[3]}/d/lock"
	flock -n 7
	for n in 1 2; do
		run flock -n "${M[n]}/d/lock" true
		[ "$status" -eq 1 ]
	done
	sleep 3 # access times follow
	for n in 1 2; do
		touch_all "$n"
		mkdir "${M[n]}/d/before$n"
	done
	# it has all of it, and has changed none of it since
	stat "${M[3]}"/d "${M[3]}"/d/{1,2,3,4,5,6,lock,before1,before2} "${M[3]}"/e/{1,2,3,4,5,6} >/dev/null
	echo "changed there" >"${M[3]}/own3/late"
	sync "${M[3]}/own3/late"

	# not while it runs
	run on 2 weft node fence "$FILE" 3 --without-store --yes
	echo "$output"
	[ "$status" -eq 2 ]
	[[ $output == *"node 3 is up"* ]]
	kill_node 3
	exec 7>&-
	mv "$DIR/3.weft" "$DIR/elsewhere"
	for n in 1 2; do
		timeout -s KILL 20 ls "${M[n]}/d" >"$DIR/listed" # its access time is not waited for
		grep -q before2 "$DIR/listed"
		run timeout -s KILL 3 touch "${M[n]}/d/1"
		[ "$status" -ne 0 ]
	done
	timeout -s KILL 120 flock "${M[2]}/d/lock" touch "$DIR/locked" 3>&- &
	waiting=$!
	timeout -s KILL 120 touch "${M[2]}/d/2" 3>&- &
	asks=$!
	wait_until 20 waits_for 2 3
	weft status "${M[2]}" | grep -qE "[12] requests? of this mount waits? for it, the first for"
	weft status "${M[2]}" | grep -q "then: weft node fence $FILE 3, or.* weft node fence $FILE 3 --without-store"
	weft status "${M[2]}" --prometheus | grep -q '^weft_peer_waiting_requests{.*peer="3"} [12]$'

	# nor unasked, nor one that there is not
	run on 1 weft node fence "$FILE" 3 --without-store </dev/null
	[ "$status" -eq 2 ]
	[[ $output == *"say --yes"* ]]
	run on 1 weft node fence "$FILE" 3 --without-store --store "$DIR/elsewhere"
	[ "$status" -eq 1 ]
	run on 1 weft node fence "$FILE" 7 --without-store --yes
	[ "$status" -eq 2 ]
	[[ $output == *"names no node 7"* ]]
	run on 1 weft node fence "$FILE" 1 --without-store --yes
	[ "$status" -eq 2 ]
	[[ $output == *"node 1 is up"* ]]
	[ ! -e "$DIR/locked" ]
	wait_until 20 grep -qE "[12] requests? of this mount waits? for node 3 .*weft node fence $FILE 3" "$DIR/log2"

	run on 1 weft node fence "$FILE" 3 --without-store --yes
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"Node 3 is dead"* ]]
	[[ $output != *"was not reached"* ]]
	wait "$waiting" "$asks"
	wait_until 20 fails waits_for 2 3
	wait_until 20 grep -q "no request of this mount waits for node 3" "$DIR/log2"
	[ "$(grep -c "of this mount wait" "$DIR/log2")" -eq 2 ] # each is said once
	for n in 1 2; do
		touch_all "$n"
		timeout -s KILL 240 mkdir "${M[n]}/d/new$n"
		timeout -s KILL 240 dd if=/dev/zero of="${M[n]}/d/$n" bs=1000 count=3 conv=notrunc,fsync status=none
		weft status "${M[n]}" | grep -q "dead, AWAY"
	done
	# what it changed itself is not guessed
	run timeout -s KILL 3 cat "${M[1]}/own3/late"
	[ "$status" -ne 0 ]
	# said again it is as true
	on 2 timeout -s KILL 240 weft node fence "$FILE" 3 --without-store --yes

	mv "$DIR/elsewhere" "$DIR/3.weft"
	mount_node 3
	[ "$(timeout -s KILL 240 cat "${M[1]}/own3/late")" = "changed there" ]
	[ -d "${M[3]}/d/new1" ]
	run weft status "${M[1]}"
	[[ $output != *dead* ]]
	for n in 1 2 3; do touch_all "$n"; done
	umount_nodes 1 2 3
	check_nodes
}

@test "a node is dead, and another was away then: that one waits for it, and nobody else does" {
	local n waits
	mount_nodes
	make_files
	for n in 1 2 3; do stat "${M[n]}"/d "${M[n]}"/d/{1,2,3,4,5,6} >/dev/null; done
	sync "${M[1]}"/d/*
	kill_node 3
	mv "$DIR/3.weft" "$DIR/elsewhere"
	kill_node 2
	run on 1 timeout -s KILL 240 weft node fence "$FILE" 3 --without-store --yes
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"node 2 was not reached"* ]]
	mount_node 2 &
	waits=$!
	wait_until 20 grep -q "waiting for node 3" "$DIR/log2"
	# its frames went with it: node 1 is the only one left that has them
	timeout -s KILL 240 touch "${M[1]}"/d/{1,2,3,4,5,6}
	[ -d "/proc/$waits" ]
	mv "$DIR/elsewhere" "$DIR/3.weft"
	mount_node 3
	wait "$waits"
	for n in 1 2 3; do touch_all "$n"; done
	umount_nodes 1 2 3
	check_nodes
}

@test "the node with the root of the tree is fenced: others list, read and overwrite what is theirs" {
	local n waiting=()
	mount_nodes
	for n in 2 3; do
		mkdir "${M[n]}/own$n"
		head -c 20000 /dev/zero >"${M[n]}/own$n/f"
	done
	kill_node 1
	for n in 2 3; do # these take the root directory from each other while node 1 is fenced
		touch "${M[n]}/top$n" 3>&- &
		waiting+=($!)
	done
	on 2 timeout -s KILL 120 weft node fence "$FILE" 1 --yes
	for n in 2 3; do
		timeout -s KILL 20 ls "${M[n]}" >"$DIR/listed"
		grep -q "own$n" "$DIR/listed"
		timeout -s KILL 20 cat "${M[n]}/own$n/f" >"$DIR/read"
		[ "$(stat -c %s "$DIR/read")" -eq 20000 ]
		timeout -s KILL 20 dd if=/dev/urandom of="${M[n]}/own$n/f" bs=4k count=4 conv=notrunc,fsync status=none
		timeout -s KILL 20 mkdir "${M[n]}/own$n/new"
	done
	mount_node 1
	wait "${waiting[@]}"
	[ -d "${M[1]}/own3/new" ]
	umount_nodes 2 3 1
	check_nodes
}

@test "a node has listed and read what is another node's, and is lost: its owner reads on" {
	mount_nodes
	mkdir "${M[1]}/d"
	echo text >"${M[1]}/d/f"
	ls "${M[3]}/d" >/dev/null
	cat "${M[3]}/d/f" >/dev/null
	weft sync "${M[3]}" # brings access times into the tree
	wait_until 20 rested
	kill_node 3
	timeout -s KILL 20 ls "${M[1]}/d" >/dev/null
	[ "$(timeout -s KILL 20 cat "${M[1]}/d/f")" = text ]
	mount_node 3
	umount_nodes 1 2 3
	check_nodes
}

# Node 3 has changed pages of node 1, and has given the right to change them back.
rested() {
	weft status "${M[3]}" --json | python3 -c 'import json, sys
c = json.load(sys.stdin)["cluster"]
sys.exit(c["coherence"]["downgrades"] == 0 or c["nodes"][0]["cached"]["exclusive"] != 0)'
}

@test "nodes work, one is killed and fenced while they do, and comes back; again and again" {
	local n i writers=()
	mount_nodes
	for n in 1 2 3; do mkdir "${M[n]}/w$n"; done
	make_files
	for n in 1 2; do
		(
			i=0
			while [ ! -e "$DIR/over" ]; do
				i=$((i + 1))
				echo "$n $i" >"${M[n]}/w$n/$((i % 50))"
				cat "${M[n]}/w$((3 - n))"/* >/dev/null 2>&1 || true
				[ $((i % 20)) -ne 0 ] || sync "${M[n]}/w$n"
				echo "$i" >"$DIR/done$n"
			done
		) 3>&- &
		writers+=($!)
	done
	for i in 1 2 3; do
		write_others "turn$i"
		sync "${M[3]}"/d/* "${M[3]}"/e/*
		write_others "lost$i" # or not: it is not durable
		rm -f "${M[3]}"/w3/* "${M[3]}/w1/1"
		kill_node 3
		on 2 timeout -s KILL 120 weft node fence "$FILE" 3 --yes
		run timeout -s KILL 240 dd if="${M[1]}/d/2" bs=1 skip=20000 count=9 status=none
		[[ $output == "turn$i 2"* || $output == "lost$i 2"* ]]
		cp "$DIR/done1" "$DIR/before"
		wait_until 20 differs "$DIR/done1" "$DIR/before"
		mount_node 3
		touch "${M[3]}/w3/$i"
	done
	touch "$DIR/over"
	wait "${writers[@]}"
	umount_nodes 2 3 1
	check_nodes
}

differs() { ! cmp -s "$1" "$2"; }

@test "all crash, and one is not started again: it is fenced while the others wait for it to start" {
	mount_nodes
	make_files
	write_others synced
	sync "${M[3]}"/d/* "${M[3]}"/e/*
	for n in 1 2 3; do kill_node "$n"; done
	start_node 1
	start_node 2
	wait_until 10 grep -q "waiting for node 3" "$DIR/log1"
	on 3 timeout -s KILL 120 weft node fence "$FILE" 3 --yes
	for n in 1 2; do
		wait_until 10 mountpoint -q "${M[n]}"
		look "$n" synced
	done
	mount_node 3
	look 3 synced
	umount_nodes 1 2 3
	check_nodes
}

# Two devices of one store, as of two machines that reach it: no lock says that it is in use.
@test "one that was fenced and still runs is refused, finds it out, and ends; nothing of it is heard" {
	local pid
	need losetup
	loops=$(losetup -f --show "$DIR/3.weft") || skip "needs loop devices"
	sed -i "s|^store *= *$DIR/3.weft|store = $loops|" "$FILE"
	grep -q "$loops" "$FILE"
	mount_nodes
	make_files
	write_others synced
	sync "${M[3]}"/d/* "${M[3]}"/e/*
	stopped=$(node_pid 3)
	pid=$stopped
	kill -STOP "$pid"
	wait_until 30 away_on 1
	wait_until 30 away_on 2
	loops="$loops $(losetup -f --show "$DIR/3.weft")"
	run on 1 timeout -s KILL 120 weft node fence "$FILE" 3 --yes --store "${loops#* }"
	echo "$output"
	[ "$status" -eq 0 ]
	look 1 synced
	look 2 synced
	echo new >"${M[1]}/d/1"
	kill -CONT "$pid"
	stopped=
	wait_until 20 gone "$pid"
	run timeout -s KILL 5 cat "${M[3]}/d/1"
	[ "$status" -eq 1 ]
	[[ $output == *"not connected"* ]]
	umount -l "${M[3]}"
	[ "$(cat "${M[2]}/d/1")" = new ]
	losetup -d "${loops#* }"
	loops=${loops% *}
	mount_node 3
	[ "$(cat "${M[3]}/d/1")" = new ]
	umount_nodes 1 2 3
}

@test "one with stores in mappings is fenced and still runs: what was synced is there, its programs end" {
	local pid program
	need losetup
	loops=$(losetup -f --show "$DIR/3.weft") || skip "needs loop devices"
	sed -i "s|^store *= *$DIR/3.weft|store = $loops|" "$FILE"
	mount_nodes
	head -c 65536 /dev/zero >"${M[1]}/f"
	python3 -c 'import mmap, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
m = mmap.mmap(fd, 65536)
for v in (5, 6):               # one is made durable, the other is the kernel of node 3 alone to know
    for i in range(0, 65536, 4096):
        m[i] = v
    if v == 5:
        m.flush()
print("stored", flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.1)
try:
    m.flush()
except OSError as e:
    print(os.strerror(e.errno), flush=True)' "${M[3]}/f" "$DIR/fenced" >"$DIR/said" 2>&1 3>&- &
	program=$!
	wait_until 30 grep -q stored "$DIR/said"
	stopped=$(node_pid 3)
	pid=$stopped
	kill -STOP "$pid"
	wait_until 30 away_on 1
	wait_until 30 away_on 2
	loops="$loops $(losetup -f --show "$DIR/3.weft")"
	run on 1 timeout -s KILL 120 weft node fence "$FILE" 3 --yes --store "${loops#* }"
	echo "$output"
	[ "$status" -eq 0 ]
	timeout 240 python3 -c 'import sys
data = open(sys.argv[1], "rb").read()
assert len(data) == 65536 and all(data[i] in (5, 6) for i in range(0, 65536, 4096)), data[::4096]' "${M[2]}/f"
	echo new >"${M[1]}/f"
	kill -CONT "$pid"
	stopped=
	wait_until 20 gone "$pid"
	touch "$DIR/fenced"
	wait_until 20 gone "$program"
	cat "$DIR/said"
	[ "$(wc -l <"$DIR/said")" -ge 2 ]
	umount -l "${M[3]}"
	[ "$(cat "${M[2]}/f")" = new ]
	losetup -d "${loops#* }"
	loops=${loops% *}
	mount_node 3
	[ "$(cat "${M[3]}/f")" = new ]
	umount_nodes 1 2 3
}

# On node $1 requests wait for node $2.
waits_for() {
	weft status "${M[$1]}" --json | python3 -c 'import json, sys
node = [n for n in json.load(sys.stdin)["cluster"]["nodes"] if n["id"] == int(sys.argv[1])][0]
sys.exit(not (node["waiting_requests"] and node["waiting_s"] > 0 and node["remedy"]))' "$2"
}

fails() { ! "$@"; }

away_on() { weft status "${M[$1]}" | grep -q AWAY; } # each finds it out by itself
