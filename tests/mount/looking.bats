#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# What weft shows people: tables on terminals of any width, status again and again, a daemon at the
# other end that does not answer as it should.

load common

setup() {
	setup_store 64M
	need python3
}

teardown() {
	[ -z "${OUTER:-}" ] || kill -CONT "$OUTER" || true
	! mounted "$DIR/inner" || umount -l "$DIR/inner" || true
	[ -z "${FAKE:-}" ] || kill "$FAKE" 2>/dev/null || true
	[ -z "${FAKE_SOCKET:-}" ] || rm -f "$FAKE_SOCKET"
	teardown_store
}

terminal() { TERM=${TERMINAL:-xterm} timeout 60 python3 "$BATS_TEST_DIRNAME/terminal.py" "$@"; }

@test "a long path is on one line in a pipe, and in full on a narrow terminal" {
	local long line
	long=$DIR/$(printf 'long%.0s' {1..40})
	mkdir "$long"
	MNT=$long
	mount_store
	weft status | grep -qE "^$long +$STORE +- +[0-9]+\$"
	terminal 40 60 -- weft status >"$DIR/out"
	cat "$DIR/out"
	while IFS= read -r line; do [ ${#line} -le 60 ]; done <"$DIR/out"
	python3 - "$long" "$DIR/out" <<-'P'
		import sys
		lines = open(sys.argv[2]).read().split("\n")
		start = lines[0].index("STORE")
		found = "".join(line[:start].rstrip() for line in lines[1:])
		assert sys.argv[1] in found, found
	P
}

@test "status again and again: in a pipe, on a dumb terminal, on a screen; q and ^C end it" {
	mount_store
	weft status "$MNT" --watch=0.1 2>"$DIR/errors" | head -n 90 >"$DIR/out"
	[ "$(grep -c '^volume ' "$DIR/out")" -ge 3 ]
	! grep -q $'\e' "$DIR/out"
	TERMINAL=dumb terminal 24 80 see:volume see:volume 'key:\x03' -- weft status "$MNT" --watch=0.1 >"$DIR/out" ||
		[ $? = $((128 + 2)) ]
	! grep -q $'\e' "$DIR/out"
	terminal 24 80 see:volume see:volume stop see:volume size:10:40 see:volume key:q -- weft status "$MNT" --watch=0.1 >"$DIR/out"
	grep -q $'\e\[H' "$DIR/out"
	run terminal 24 80 see:volume 'key:\x03' -- weft status "$MNT" --watch=60
	[ "$status" -eq $((128 + 2)) ]
	run terminal 24 80 see:MOUNT key:q -- weft status --watch=60
	[ "$status" -eq 0 ]
}

@test "no interval, and a mount that is not there, are told at once" {
	local interval
	for interval in 0 0.01 -1 nan inf 1e9 2s '' ' ' 3601; do
		run weft status "$MNT" --watch="$interval"
		[ "$status" -eq 1 ]
		[[ $output == *"--watch: \"$interval\" is no interval; write seconds from 0.1 to 3600"* ]]
	done
	run weft status --watch --json
	[ "$status" -eq 1 ]
	run timeout 20 weft status "$MNT" --watch
	[ "$status" -eq 2 ]
	[[ $output == *"no running weftd"* ]]
}

# A volume whose store is on another volume, which stands still.
@test "on a volume of one node, a process that waits for the device is listed with its file" {
	local waiting
	mount_store
	OUTER=$DAEMON
	mkfs.weft --size 32M "$MNT/store" >/dev/null
	mkdir "$DIR/inner"
	weftd "$MNT/store" "$DIR/inner" -o cache=8M
	mkdir "$DIR/inner/d"
	echo text >"$DIR/inner/d/f"
	weft umount "$DIR/inner"
	weftd "$MNT/store" "$DIR/inner" -o cache=8M,uring=off
	daemon_of "$DIR/inner" >>"$DIR/pids"
	kill -STOP "$OUTER"
	stopped() { ! grep -L "^State:.T" /proc/"$OUTER"/task/*/status | grep -q .; }
	wait_until 5 stopped
	cat "$DIR/inner/d/f" >"$DIR/out" 3>&- &
	waiting=$!
	waits_told() { weft waits "$DIR/inner" | tee "$DIR/told" | grep -qE "^cat\[[0-9]+\] +[a-z]+ .* a page of .* from the store\$"; }
	wait_until 5 waits_told
	cat "$DIR/told"
	grep -q "^$DIR/inner: 1 request waits" "$DIR/told"
	kill -CONT "$OUTER"
	wait "$waiting"
	[ "$(<"$DIR/out")" = text ]
	# the store's path, within the outer mount, is the inner volume's name
	weft waits "$MNT/store" | grep -q "^$DIR/inner: "
	weft waits "$MNT/other" | grep -q "^$MNT: "
	weft umount "$DIR/inner"
}

# A daemon that says who it is, and then behaves as $1 says.
fake_daemon() {
	FAKE_SOCKET=/run/weft/${DIR##*.}.sock
	mkdir -p -m 700 /run/weft
	python3 - "$FAKE_SOCKET" "$1" 3>&- <<-'P' &
		import json, socket, sys, threading, time
		def serve(c):
		    f = c.makefile("rb")
		    for line in f:
		        if json.loads(line)["cmd"] == "identify":
		            c.sendall(b'{"mount_point":"/fake","store":"/fake","label":"fake","pid":1}\n')
		            continue
		        while sys.argv[2] == "drips":
		            c.sendall(b" ")
		            time.sleep(1)
		        if sys.argv[2] == "floods":
		            c.sendall(b" " * (2 << 20))
		        elif sys.argv[2] == "colours":
		            c.sendall(json.dumps({"mount_point": "\x1b[31m", "options": "\u009b31m", "requests_all": 1,
		                "requests": [{"command": "\x1b]0;x\x07", "process": 1, "name": "\n\x1b[2J"}]}).encode() + b"\n")
		        else:
		            c.sendall(b'{"requests":"none","locks":7,"cluster":[{}],"session":3,"nodes":{}}\n')
		s = socket.socket(socket.AF_UNIX)
		s.bind(sys.argv[1])
		s.listen(8)
		while True:
		    threading.Thread(target=serve, args=s.accept()[:1], daemon=True).start()
	P
	FAKE=$!
	wait_until 10 test -S "$FAKE_SOCKET"
	chmod 600 "$FAKE_SOCKET"
}

@test "a daemon that answers one byte a second is given up after ten" {
	fake_daemon drips
	run timeout 14 weft status fake
	echo "$output"
	[ "$status" -eq 2 ]
	[[ $output == *"has not answered for 10 s"* ]]
}

@test "a daemon that answers too much, nonsense, or commands of a terminal, does no harm" {
	fake_daemon floods
	run timeout 9 weft status fake
	[ "$status" -eq 2 ]
	kill "$FAKE"
	rm "$FAKE_SOCKET"
	fake_daemon nonsense
	timeout 9 weft status fake
	timeout 9 weft waits fake
	kill "$FAKE"
	rm "$FAKE_SOCKET"
	fake_daemon colours
	timeout 9 weft status fake >"$DIR/out"
	timeout 9 weft waits fake >>"$DIR/out"
	cat -v "$DIR/out"
	! grep -qP '\x1b|\x07|\xc2\x9b' "$DIR/out"
}
