#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The daemon's control socket: what it takes, what it refuses, who waits for whom, its life.
#
# A volume whose store is on another volume stands still while that one's daemon is stopped: so
# these tests hold a daemon in the middle of a sync or of its end for as long as they like.

load common

setup() { setup_store 128M; }
teardown() {
	[ -z "${OUTER:-}" ] || kill -CONT "$OUTER" || true
	[ -z "${CROWD:-}" ] || kill "$CROWD" 2>/dev/null || true
	for mount in inner copy; do
		umount -l "$DIR/$mount" 2>/dev/null || true
	done
	teardown_store
}

pid_of() { weft status "$1" --json | sed -n 's/^  "pid": \([0-9]*\),*$/\1/p'; }
socket_of() {
	echo "/run/weft/$(weft status "$1" --json | sed -n 's/^  "store_uuid": "\(.*\)",*$/\1/p').sock"
}

# Mounts a volume on $DIR/inner whose store is on $MNT; sets $OUTER, $INNER and $SOCKET.
mount_inner() {
	mount_store
	OUTER=$DAEMON
	mkfs.weft --size 32M "$MNT/store" >/dev/null
	mkdir "$DIR/inner"
	weftd "$MNT/store" "$DIR/inner" -o cache=8M,log_interval=3600
	INNER=$(pid_of "$DIR/inner")
	echo "$INNER" >>"$DIR/pids"
	SOCKET=$(socket_of "$DIR/inner")
	[ -S "$SOCKET" ]
}

@test "lines are answered in turn; what is no command gets an error, what is no line an end" {
	need python3
	mount_store
	python3 - "$(socket_of "$MNT")" <<-'P'
		import json, socket, sys
		def connect():
		    s = socket.socket(socket.AF_UNIX)
		    s.settimeout(10)
		    s.connect(sys.argv[1])
		    return s, s.makefile("rb")
		s, f = connect()
		for bad in [b"nonsense", b"{}", b"[]", b"{\"cmd\":7}", b"", b"\xff\xfe", b"[" * 1000]:
		    s.sendall(bad + b"\n")
		    assert "expected" in json.loads(f.readline())["error"], bad
		s.sendall(b'{"cmd":"explode"}\n')
		assert json.loads(f.readline())["error"] == "unknown cmd"
		# in pieces, and several at once
		for byte in b'{"cmd":"identify"}\n':
		    s.sendall(bytes([byte]))
		assert "pid" in json.loads(f.readline())
		s.sendall(b'{"cmd":"sync"}\n{"cmd":"identify"}\n{"cmd":"sync"}\n{"cmd":"status"}\n')
		for key in "durable", "pid", "durable", "cache":
		    assert key in json.loads(f.readline()), key
		s.sendall(b"x" * 1024)
		assert f.read() == b""
		# as many as there may be, idle: one more is sent away, and finds room when they go
		idle = [connect() for _ in range(32)]
		for i, g in idle:
		    i.sendall(b'{"cmd":"identify"}\n')
		    g.readline()
		assert connect()[1].read() == b""
		for i, g in idle:
		    g.close()
		    i.close()
		while True:
		    s, f = connect()
		    try:
		        s.sendall(b'{"cmd":"identify"}\n')
		        if f.readline():
		            break
		    except (BrokenPipeError, ConnectionResetError):
		        pass
	P
	weft status "$MNT" >/dev/null
}

@test "a sync that takes its time keeps no other connection waiting" {
	need python3
	mount_inner
	echo x >"$DIR/inner/f"
	python3 - "$SOCKET" "$OUTER" <<-'P'
		import json, os, select, signal, socket, sys
		def connect():
		    s = socket.socket(socket.AF_UNIX)
		    s.settimeout(20)
		    s.connect(sys.argv[1])
		    return s, s.makefile("rb")
		s, f = connect()
		t, g = connect()
		gone, _ = connect()
		os.kill(int(sys.argv[2]), signal.SIGSTOP)
		try:
		    s.sendall(b'{"cmd":"sync"}\n{"cmd":"identify"}\n')
		    gone.sendall(b'{"cmd":"sync"}\n')
		    gone.close()
		    for _ in range(100):
		        t.sendall(b'{"cmd":"status"}\n')
		        assert "cache" in json.loads(g.readline())
		    assert select.select([s], [], [], 0)[0] == []
		finally:
		    os.kill(int(sys.argv[2]), signal.SIGCONT)
		assert "durable" in json.loads(f.readline())
		assert "pid" in json.loads(f.readline())
	P
	weft umount "$DIR/inner"
	wait_until 10 umount_store
}

@test "the socket goes before the store is free, what waits on it learns of that after" {
	mount_inner
	echo x >"$DIR/inner/f"
	weft umount "$DIR/inner"
	weftd "$MNT/store" "$DIR/inner" -o cache=8M,log_interval=3600
	INNER=$(pid_of "$DIR/inner")
	echo "$INNER" >>"$DIR/pids"
	echo y >"$DIR/inner/f"
	kill -STOP "$OUTER"
	umount "$DIR/inner"
	wait_until 10 [ ! -e "$SOCKET" ]
	[ -d "/proc/$INNER" ]
	kill -CONT "$OUTER"
	wait_until 10 gone "$INNER"
	fsck.weft -n "$MNT/store"
	wait_until 10 umount_store
}

@test "a copy of a store is mounted beside it, and either is found" {
	mount_store
	echo x >"$MNT/f"
	wait_until 10 umount_store
	cp "$STORE" "$DIR/copy.store"
	mkdir "$DIR/copy"
	mount_store
	weftd "$DIR/copy.store" "$DIR/copy" -o cache=8M
	pid_of "$DIR/copy" >>"$DIR/pids"
	[ "$(pid_of "$MNT")" = "$DAEMON" ]
	[ "$(pid_of "$DIR/copy")" != "$DAEMON" ]
	[ -n "$(pid_of "$DIR/copy")" ]
	[ "$(cat "$DIR/copy/f")" = x ]
	wait_until 10 umount_store
	[ -n "$(pid_of "$DIR/copy")" ]
	mount_store
	weft umount "$DIR/copy"
	[ "$(pid_of "$MNT")" = "$DAEMON" ]
}

# Which of the two would be asked first is not known: each of them is stopped once.
@test "a daemon that is stopped holds up nobody who asks for another one's mount" {
	local first second
	mount_store
	first=$DAEMON
	mkfs.weft --size 64M "$DIR/other" >"$DIR/mkfs2.log"
	mkdir "$DIR/copy"
	weftd "$DIR/other" "$DIR/copy"
	second=$(weft status "$DIR/copy" --json | sed -n 's/^  "pid": \([0-9]*\),*$/\1/p')
	echo "$second" >>"$DIR/pids"
	kill -STOP "$first"
	run weft status "$DIR/copy"
	kill -CONT "$first"
	[[ $output == *"pid $second"* && $output != *"has not answered"* ]]
	kill -STOP "$second"
	run weft status "$MNT"
	kill -CONT "$second"
	[[ $output == *"pid $first"* && $output != *"has not answered"* ]]
	weft umount "$DIR/copy"
	umount_store
}

# Connects to daemon $1's socket until it takes no more, and holds that until killed.
crowd() {
	python3 -c 'import glob, os, socket, struct, sys, time
held = []
for path in glob.glob("/run/weft/*.sock"):
    while True:
        s = socket.socket(socket.AF_UNIX)
        s.setblocking(False)
        try:
            s.connect(path)
        except OSError:
            break
        if struct.unpack("3i", s.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12))[0] != int(sys.argv[1]):
            break
        held.append(s)
open(sys.argv[2], "w").write("%d" % len(held))
time.sleep(600)' "$1" "$DIR/crowd" 3>&- &
	CROWD=$!
	wait_until 30 test -s "$DIR/crowd"
	[ "$(cat "$DIR/crowd")" -gt 1 ]
}

@test "a daemon that hangs holds up nobody, however many wait for it" {
	mount_store
	first=$DAEMON
	mkfs.weft --size 64M "$DIR/other" >"$DIR/mkfs2.log"
	mkdir "$DIR/copy"
	weftd "$DIR/other" "$DIR/copy"
	second=$(weft status "$DIR/copy" --json | sed -n 's/^  "pid": \([0-9]*\),*$/\1/p')
	echo "$second" >>"$DIR/pids"
	kill -STOP "$first"
	crowd "$first"
	# a connect(2) that waits does so for 10 s
	run timeout 9 weft status "$DIR/copy"
	echo "$output"
	[[ $status -eq 0 && $output == *"pid $second"* ]]
	run weft status # all of them: one says nothing
	echo "$output"
	[[ $output == *"$DIR/copy"* && $output == *"has taken no connection for 10 s"* ]]
	kill "$CROWD"
	kill -CONT "$first"
	weft umount "$DIR/copy"
	umount_store
}
