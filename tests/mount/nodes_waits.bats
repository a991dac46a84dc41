#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# `weft waits`: which process waits, with which request, for which node and for what, since when,
# and what to do.

load common

setup() {
	setup_nodes 3
	need python3 flock
	mount_nodes
}

teardown() {
	[ -z "${STOPPED:-}" ] || kill -CONT "$STOPPED" 2>/dev/null || true
	# shellcheck disable=SC2086
	[ -z "${LOCKED:-}" ] || kill $LOCKED 2>/dev/null || true
	teardown_nodes
}

# Prints a value of the waits on node $1; the rest is a Python expression of `a`, the answer.
waits_tell() {
	weft waits "${M[$1]}" --json | python3 -c 'import json, sys
a = json.load(sys.stdin)
print(eval(sys.argv[1]))' "$2"
}

# Python's $2 is true of the waits on node $1.
waits_are() { [ "$(waits_tell "$1" "bool($2)")" = True ]; }

@test "a process that waits for a node that is away is listed, with its request, file, node and remedy" {
	local waiting
	mkdir "${M[3]}/three"
	echo three >"${M[3]}/three/f"
	sync "${M[3]}/three/f"
	run weft waits "${M[1]}"
	[ "$output" = "${M[1]}, node 1: nothing waits" ]
	run weft waits # other tests may have mounts, too
	[[ $output == *"${M[2]}, node 2: nothing waits"* ]]
	weft waits --json | python3 -c 'import json, sys
assert sys.argv[1] in [a["mount_point"] for a in json.load(sys.stdin)]' "${M[3]}"
	cd "${M[1]}/three"
	kill -9 "$(node_pid 3)"
	timeout -s KILL 60 cat "${M[1]}/three/f" >"$DIR/out" 3>&- &
	waiting=$!
	wait_until 20 waits_are 1 'a["requests"] and a["requests"][0]["waits_s"] > 1 and a["nodes"][0]["up"] is False'
	[ "$(waits_tell 1 'a["requests"][0]["command"]')" = cat ]
	[ "$(waits_tell 1 'a["requests"][0]["nodes"]')" = "[3]" ]
	[[ $(waits_tell 1 'a["requests"][0]["for"]') = *page ]]
	waits_tell 1 'a["requests"][0]["process"]' >"$DIR/process"
	grep -qx cat "/proc/$(<"$DIR/process")/comm"
	run timeout -s KILL 8 weft waits "${M[1]}/" # the slash asks the mount nothing
	echo "$output"
	[[ ${lines[0]} == "${M[1]}, node 1: 1 request waits" ]]
	[[ ${lines[2]} == cat\[$(<"$DIR/process")\]*page*"of node 3, which is away" ]]
	[[ ${lines[3]} == "node 3 (10.77.0.3:9338) is away for "*"Start it again; "*"weft node fence $FILE 3"* ]]
	weft status "${M[1]}" | grep -q "^waiting    1 request, 0 lock requests, the longest for .*weft waits"
	# any path in the mount names it, and is not asked for: this shell stands in a directory of node 3
	for path in . .. ./f "${M[1]}/three/none/../f" "${M[1]}//"; do
		run timeout -s KILL 8 weft waits "$path"
		[[ ${lines[0]} == "${M[1]}, node 1: 1 request waits" ]]
	done
	cd /
	mount_again 3
	wait "$waiting"
	[ "$(<"$DIR/out")" = three ]
	wait_until 20 waits_are 1 'not a["requests_all"]'
}

mount_again() {
	umount -l "${M[$1]}"
	mount_node "$1"
}

@test "a node that is connected and does not answer is named; the answer comes at once" {
	local waiting
	mkdir "${M[3]}/three"
	echo three >"${M[3]}/three/f"
	STOPPED=$(node_pid 3)
	kill -STOP "$STOPPED"
	timeout -s KILL 60 cat "${M[1]}/three/f" >"$DIR/out" 3>&- &
	waiting=$!
	wait_until 1 waits_are 1 'a["requests"] and a["requests"][0]["nodes"] == [3]'
	waits_are 1 'a["nodes"][0]["id"] == 3 and a["nodes"][0]["up"]' # its link is dead after 10 s
	kill -CONT "$STOPPED"
	wait "$waiting"
	[ "$(<"$DIR/out")" = three ]
}

# A process that holds a shared lock of file $1. Its id is in $HOLDER when it does.
hold_shared() {
	(exec 9<"$1" && flock -s 9 && touch "$DIR/held" && exec sleep 100) 3>&- &
	HOLDER=$!
	LOCKED="${LOCKED:-} $HOLDER"
	wait_until 10 rm "$DIR/held" 2>/dev/null
}

@test "who waits for a lock is listed with the node that holds it, also when that changes" {
	local waiting first second
	touch "${M[1]}/f"
	hold_shared "${M[1]}/f"
	first=$HOLDER
	hold_shared "${M[3]}/f"
	second=$HOLDER
	flock "${M[2]}/f" true 3>&- &
	waiting=$!
	wait_until 20 waits_are 2 'a["locks"] and a["locks"][0]["in_the_way"] == 2'
	[ "$(waits_tell 2 'a["locks"][0]["process"]')" = "$waiting" ]
	[ "$(waits_tell 2 'a["locks"][0]["type"]')" = write ]
	run weft waits "${M[2]}"
	echo "$output"
	[[ ${lines[2]} == flock\[$waiting\]*"flock write lock"*"${M[2]}/f"*"read lock of process "*" on node "[13]", and 1 more" ]]
	# the waiter itself learns of neither change, since it may not go on
	kill "$first"
	wait_until 20 waits_are 2 'a["locks"][0]["in_the_way"] == 1 and a["locks"][0]["held"]["node"] == 3'
	kill -0 "$waiting"
	kill "$second"
	wait "$waiting"
	wait_until 20 waits_are 2 'not a["locks_all"]'
}
