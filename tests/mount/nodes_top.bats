#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# `weft top`: nodes and links, rates of requests, the files that nodes contend for.

load common

setup() {
	setup_nodes 2
	need python3
	mount_nodes
}

teardown() {
	[ -z "${BUSY:-}" ] || kill $BUSY 2>/dev/null || true
	teardown_nodes
}

terminal() { TERM=${TERMINAL:-xterm} timeout 60 python3 "$BATS_TEST_DIRNAME/terminal.py" "$@"; }

# The nodes write file $1 in turns, $2 times, and files of their own much more often.
fight() {
	python3 - "$1" "$2" "${M[@]}" <<-'P'
		import os, sys
		name, times, *mounts = sys.argv[1:]
		fds = [os.open(f"{m}/{name}", os.O_RDWR) for m in mounts]
		for n, m in enumerate(mounts):
		    os.mkdir(f"{m}/own{n}")
		for i in range(int(times)):
		    for n, m in enumerate(mounts):
		        os.pwrite(fds[n], b"%d" % i, 0)
		        with open(f"{m}/own{n}/{i}", "wb") as f:
		            f.write(b"x" * 5000)
	P
}

# The first inode of node $1's list, and the number of its pages.
most_contended() {
	weft status "${M[$1]}" --json | python3 -c 'import json, sys
one = json.load(sys.stdin)["contended"]["inodes"][0]
print(one["inode"], one["pages_changed"])'
}

@test "a file that two nodes write in turns is the most contended one, by its path" {
	local inode pages n
	echo >"${M[1]}/fought over"
	fight "fought over" 100
	for n in 1 2; do
		read -r inode pages < <(most_contended "$n")
		[ "$inode" = "$(stat -c %i "${M[1]}/fought over")" ]
		[ "$pages" -ge 50 ]
	done
	# its path is that of a process which has it open
	sleep 100 <"${M[2]}/fought over" 3>&- &
	BUSY=$!
	weft top -b -n 1 "${M[2]}" >"$DIR/out"
	cat "$DIR/out"
	grep -A 2 '^Contended' "$DIR/out" | grep -qE "^ *[0-9]+ +[0-9]+ +[0-9]+ .*${M[2]}/fought over\$"
}

@test "a directory in which two nodes make files in turns is contended, by its path in the tree" {
	mkdir -p "${M[1]}/a/b c"
	for i in {1..60}; do
		: >"${M[1]}/a/b c/one$i"
		: >"${M[2]}/a/b c/two$i"
	done
	weft top -b -n 1 "${M[1]}" >"$DIR/out"
	cat "$DIR/out"
	grep -A 2 '^Contended' "$DIR/out" | grep -qE "^ *[0-9]+ +[0-9]+ +[0-9]+ .*${M[1]}/a/b c\$"
}

@test "files that each node uses alone are not contended" {
	mkdir "${M[1]}/one" "${M[2]}/two"
	for i in {1..50}; do
		echo x >"${M[1]}/one/$i"
		echo x >"${M[2]}/two/$i"
	done
	weft status "${M[1]}" --json | python3 -c 'import json, os, sys
inodes = json.load(sys.stdin)["contended"]["inodes"]
own = [os.stat(f"{sys.argv[1]}/one/{i}").st_ino for i in range(1, 51)]
pages = sum(i["pages_changed"] + i["pages_read"] for i in inodes if i["inode"] in own)
assert pages < 10, inodes' "${M[1]}"
}

@test "rates are those of the time between two rounds; sorted as asked; the nodes are listed" {
	(while :; do stat -f "${M[1]}" >/dev/null; sleep 0.02; done) 3>&- &
	BUSY=$!
	weft top -b -n 3 -d 1 -s name "${M[1]}" >"$DIR/out"
	cat "$DIR/out"
	[ "$(grep -c '^weft top - ' "$DIR/out")" -eq 3 ]
	[ "$(grep -c 'since the round before, by name' "$DIR/out")" -eq 2 ]
	grep -qE '^ +1 storage here ' "$DIR/out"
	grep -qE '^ +2 storage up +[0-9.]+m?s ' "$DIR/out"
	# at most 50 a second can be made; those of the start are not in the rate
	awk '/^statfs/ { rate = $2 } END { exit !(rate > 2 && rate <= 60) }' "$DIR/out"
	kill "$BUSY"
	wait "$BUSY" || true
	kill -9 "$(node_pid 2)"
	top_says() { weft top -b -n 1 "${M[1]}" | grep -qE '^ +2 storage AWAY '; }
	wait_until 20 top_says
	kill -9 "$(node_pid 1)" # it would wait for node 2
}

@test "on a terminal: keys, sizes, a node that stops to answer, a terminal that cannot" {
	# a screen sends what has changed; with ^L (\x0c) and a new size all is sent
	terminal 24 80 see:Requests key:s 'key:\x0c' 'see:by busy' key:h 'key:\x0c' see:Columns key:h 'key:\x0c' see:weft \
		size:10:30 see:weft size:50:200 see:Requests key:+ 'key: ' key:- 'key:\x0c' see:weft key:q -- weft top "${M[1]}" -d 0.5 >"$DIR/out"
	terminal 24 80 -- weft top "${M[1]}" -n 2 -d 0.2 >"$DIR/out"
	run terminal 24 80 see:Requests 'key:\x03' -- weft top "${M[1]}"
	[ "$status" -ne 98 ] # the terminal is as before
	run env TERMINAL=nothing bash -c "$(declare -f terminal); BATS_TEST_DIRNAME='$BATS_TEST_DIRNAME'; terminal 24 80 -- weft top '${M[1]}'"
	[ "$status" -eq 1 ]
	[[ $output == *'the terminal "nothing" is not known'*"use -b"* ]]
	run bash -c "weft top '${M[1]}' </dev/null | cat; exit \${PIPESTATUS[0]}"
	[ "$status" -eq 1 ]
	for bad in "-n 0" "-n x" "-d 0" "-d x" "-s size"; do
		# shellcheck disable=SC2086
		run weft top -b $bad "${M[1]}"
		[ "$status" -eq 1 ]
	done
	STOPPED=$(node_pid 1)
	(sleep 1; kill -STOP "$STOPPED"; sleep 5; kill -CONT "$STOPPED") 3>&- &
	terminal 24 120 see:Requests "see:NO ANSWER" 'key:\x0c' see:Requests key:q -- weft top "${M[1]}" -d 0.5 >"$DIR/out"
	wait
}
