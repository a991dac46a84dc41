#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Versions that do not match: of the protocol between nodes, where another weft answers (node 1; the one with
# the higher id calls) or calls (node 2), and of the disk format. Whoever mounts is told which node or store it is,
# and both versions; nothing else comes of it.

load common

setup() {
	need python3
	setup_nodes 2 96M
	OURS=$(sed -n 's/^#define WIRE_VERSION *\([0-9]*\)u$/\1/p' "$ROOT/engine/net/wire.h")
	OTHER=$((OURS + 1))
	DISK=$(sed -n 's/^#define DISK_VERSION *\([0-9]*\)u\?$/\1/p' "$ROOT/engine/common/format.h")
	[ -n "$OURS" ] && [ -n "$DISK" ]
	SPEAKS="it speaks version $OTHER of the protocol, this node version $OURS: run the same weft on all nodes"
}

teardown() {
	stop_other
	teardown_nodes
}

# A weft of the other version in node 1's network, as far as it goes: $1 is what it says to who calls.
# refuse: it has seen the version; hello: it has not looked yet, and says its own.
start_other() {
	nsenter --net="/run/netns/$NET-1" python3 - "$1" "$OTHER" 3>&- <<-'END' &
		import socket, struct, sys
		version = int(sys.argv[2])
		said = struct.pack("<8sII", b"WEFTNOPE", 1, version)
		if sys.argv[1] == "hello":
		    said = struct.pack("<8sII", b"WEFTHELO", version, 400) + b"x" * 384
		s = socket.socket()
		s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
		s.bind(("10.77.0.1", 9338))
		s.listen(8)
		while True:
		    c = s.accept()[0]
		    try:
		        if c.recv(160, socket.MSG_WAITALL):
		            c.sendall(said)
		            c.shutdown(socket.SHUT_WR)
		            c.recv(4096)
		    except OSError:  # it has gone
		        pass
		    c.close()
	END
	LISTENER=$!
	wait_until 20 on 2 bash -c 'exec 4<>/dev/tcp/10.77.0.1/9338' 2>/dev/null
}

stop_other() {
	[ -z "${LISTENER:-}" ] || { kill "$LISTENER" && wait "$LISTENER"; } 2>/dev/null || true
	LISTENER=
}

# Such a weft calls node 1 from node 2's network; it must be told the version here.
call_as_other() {
	on 2 python3 - "$OTHER" "$OURS" <<-'END'
		import socket, struct, sys
		other, ours = int(sys.argv[1]), int(sys.argv[2])
		for length in 16, 160, 400:
		    s = socket.create_connection(("10.77.0.1", 9338), 20)
		    s.sendall(struct.pack("<8sII", b"WEFTHELO", other, length) + b"\2" * (length - 16))
		    said = s.recv(16, socket.MSG_WAITALL)
		    assert said == struct.pack("<8sII", b"WEFTNOPE", 1, ours), said
	END
}

# It, and what is no weft at all, each many times, one after the other.
call_in_turns() {
	on 2 python3 - "$OTHER" <<-'END'
		import socket, struct, sys
		for said in (struct.pack("<8sII", b"WEFTHELO", int(sys.argv[1]), 16), b"GET / HT") * 20:
		    s = socket.create_connection(("10.77.0.1", 9338), 20)
		    s.sendall(said)
		    while s.recv(4096):
		        pass
	END
}

# Both copies of the superblock have that number at that byte, with a checksum that fits, or not.
set_super() { # STORE BYTE NUMBER whole|torn
	python3 - "$@" <<-'END'
		import hashlib, struct, sys
		with open(sys.argv[1], "r+b") as f:
		    for at in 0, f.seek(0, 2) - 4096:
		        f.seek(at)
		        page = bytearray(f.read(4096))
		        assert page[:8] == b"WEFTSUPR"
		        struct.pack_into("<I", page, int(sys.argv[2]), int(sys.argv[3]))
		        if sys.argv[4] == "whole":
		            page[4088:] = hashlib.sha256(page[:4088]).digest()[:8]
		        f.seek(at)
		        f.write(page)
	END
}

# The mount of node $1 ends with that text, and nothing is left of it.
mount_refused() { # NODE TEXT
	run timeout 240 nsenter --net="/run/netns/$NET-$1" weftd "$FILE" "${M[$1]}" -o cache=64M
	echo "$output"
	[ "$status" -eq 32 ]
	[[ $output == *"$2"* ]]
	run mountpoint -q "${M[$1]}"
	[ "$status" -ne 0 ]
}

works() {
	echo "$1" >"${M[1]}/f"
	[ "$(cat "${M[2]}/f")" = "$1" ]
}

@test "a mount is told which node speaks another version, and both versions" {
	for said in refuse hello; do
		start_other $said
		mount_refused 2 "cannot connect with node 1 (10.77.0.1:9338): $SPEAKS"
		stop_other
	done
	start_other refuse
	run on 2 weft net check "$FILE"
	echo "$output"
	[ "$status" -eq 2 ]
	[[ $output == *"a weftd of another version answers"*"run the same weft on all nodes"* ]]
	stop_other
	mount_nodes # and nothing is the worse for it
	works one
	umount_nodes 1 2
}

@test "a node that another version calls says so, and goes on waiting for the right one" {
	start_node 1
	wait_until 20 grep -q 'waiting for node 2 (10.77.0.2:9338)' "$DIR/log1"
	call_as_other
	wait_until 20 grep -q "a connection from 10.77.0.2:[0-9]* is refused: $SPEAKS" "$DIR/log1"
	call_in_turns # three lines a minute for each of both causes
	[ "$(grep -c "a connection from 10.77.0.2:[0-9]* is refused" "$DIR/log1")" -lt 20 ]
	kill -0 "$STARTED"
	mount_node 2
	wait_until 20 mountpoint -q "${M[1]}"
	works one
	call_as_other
	works two
	umount_nodes 1 2
}

@test "weft status says of a node that is away that another version answers there" {
	mount_nodes
	works one
	kill -9 "$(node_pid 1)"
	umount -l "${M[1]}"
	start_other refuse
	says() { weft status "${M[2]}" | grep -F "cannot connect with node 1 (10.77.0.1:9338): $SPEAKS"; }
	wait_until 30 says
	stop_other
	mount_node 1
	works two
	umount_nodes 1 2
}

@test "another version of the disk format is told with the store, by all that open it" {
	local how before
	cp "$DIR/2.weft" "$DIR/good"
	for how in whole torn; do
		set_super "$DIR/2.weft" 8 $((DISK + 1)) $how
		before=$(sha256sum <"$DIR/2.weft")
		mount_refused 2 "$DIR/2.weft: unknown version $((DISK + 1)) of the disk format: this weft knows version $DISK"
		run on 2 weft cluster check "$FILE"
		echo "$output"
		[ "$status" -eq 2 ]
		[[ $output == *"WRONG $DIR/2.weft: unknown version $((DISK + 1)) of the disk format"* ]]
		run fsck.weft -f -y "$FILE"
		echo "$output"
		[ "$status" -eq 8 ]
		[[ $output == *"$DIR/2.weft: unknown version $((DISK + 1)) of the disk format: this weft knows version $DISK"* ]]
		run fsck.weft -f -y "$DIR/2.weft"
		echo "$output"
		[ "$status" -eq 8 ]
		[[ $output == *"$DIR/2.weft: unknown version $((DISK + 1)) of the disk format"* ]]
		[ "$before" = "$(sha256sum <"$DIR/2.weft")" ]
	done
	cp "$DIR/good" "$DIR/2.weft"
	set_super "$DIR/2.weft" 52 $((1 << 30)) whole # a feature that a reader must know
	mount_refused 2 "$DIR/2.weft: the store uses features that this weft does not know (flags 0x40000000)"
	cp "$DIR/good" "$DIR/2.weft"
	mount_nodes
	works one
	umount_nodes 1 2
}
