#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The network between three nodes fails while all work, in part, one way, or now and then; a node
# is killed or stands still under readers of the others. What kernels keep is never behind,
# no store is lost, nothing that was synced is missing, and all go on.

load common
load nodes_loads

setup() {
	need nft
	setup_nodes 3 512M
	LOADS=()
	KEPT=()
}

teardown() {
	local pid
	[ -z "${stopped:-}" ] || kill -CONT "$stopped" || true
	end_loads
	for pid in "${KEPT[@]}"; do kill -9 -- "-$pid" 2>/dev/null || true; done
	teardown_nodes
}

# Readers that spin, on the mounts of nodes $3..., while those of $2 and $3 write: in the
# background, for $1 seconds.
start_kept() { # WHAT SECONDS NODE NODE...
	local what=$1 seconds=$2 n dirs=()
	shift 2
	for n in "$@"; do
		mkdir -p "${M[n]}/$what$1"
		dirs+=("${M[n]}/$what$1")
	done
	setsid timeout -s KILL $((seconds + 120)) "$BIN/tests/mount/kept" "$what" "$seconds" \
		"${dirs[@]}" >>"$DIR/kept.log" 2>&1 3>&- &
	KEPT+=($!)
}

# They have ended, and found nothing wrong.
end_kept() {
	local pid
	for pid in "${KEPT[@]}"; do wait "$pid" || { cat "$DIR/kept.log"; return 1; }; done
	cat "$DIR/kept.log"
	KEPT=()
}

AWHILE=12 # longer than a link that says nothing lives

@test "one hears nothing of another, which hears it: all go on after it, nothing is behind" {
	mount_nodes
	start_loads
	start_kept pages 14 1 2 3
	start_kept mapped 14 2 3 1
	all_grow
	deaf 1 2
	sleep $AWHILE
	heal
	all_grow
	end_kept
	check_all
}

@test "two do not reach each other, and both reach the third" {
	mount_nodes
	start_loads
	start_kept exchange 14 1 2 3
	start_kept sizes 14 3 1 2
	all_grow
	deaf 1 2
	deaf 2 1
	sleep $AWHILE
	heal
	all_grow
	end_kept
	check_all
}

# On the mount of node $1: changes the first bytes of files that others change, too, looks at them
# and at names beside them, again and again; a line for each time in "$DIR/uses$1".
start_uses() { # NODE FILE...
	local n=$1
	shift
	setsid python3 - "$DIR/uses$n" "$n" "${@/#/${M[n]}/}" >>"$DIR/kept.log" 2>&1 3>&- <<-'END' &
		import os, sys
		said = open(sys.argv[1], "w", buffering=1)
		node, files = int(sys.argv[2]), sys.argv[3:]
		opened = [os.open(f, os.O_RDWR) for f in files]
		while True:
		    for name, fd in zip(files, opened):
		        os.pwrite(fd, b"%08d" % node, 8 * node)
		        assert os.pread(fd, 8, 8 * node) == b"%08d" % node
		        os.close(os.open(f"{name}.{node}", os.O_RDWR | os.O_CREAT))
		        os.unlink(f"{name}.{node}")
		    said.write("once\n")
	END
	KEPT+=($!)
}

uses() { wc -l <"$DIR/uses$1"; }
has_used() { [ "$(uses "$1")" -gt "$2" ]; }

end_uses() {
	local pid
	for pid in "${KEPT[@]}"; do
		kill -0 "$pid" || { cat "$DIR/kept.log"; return 1; }
		kill -9 -- "-$pid"
		wait "$pid" || true
	done
	KEPT=()
}

not_connected() { weft status "${M[$1]}" --json | grep -q '"up": false'; }

@test "while two do not reach each other the third goes on with what all three change" {
	local n before files=()
	mount_nodes
	for n in 1 2 3; do
		mkdir "${M[n]}/of$n"
		truncate -s 4096 "${M[n]}/of$n/f"
		files+=("of$n/f")
	done
	for n in 1 2 3; do start_uses "$n" "${files[@]}"; done
	for n in 1 2 3; do wait_until 60 has_used "$n" 20; done
	deaf 2 3
	deaf 3 2
	wait_until 60 not_connected 2
	wait_until 60 not_connected 3
	for n in $(seq 5); do
		before=$(uses 1)
		wait_until 30 has_used 1 $((before + 2))
		not_connected 2
	done
	heal
	for n in 1 2 3; do
		before=$(uses "$n")
		wait_until 60 has_used "$n" $((before + 5))
	done
	end_uses
	umount_nodes 1 2 3
	run fsck.weft -f -n "$FILE"
	echo "$output"
	[ "$status" -eq 0 ]
}

@test "of all packets some get lost: all go on all the time" {
	local a b
	mount_nodes
	start_loads
	start_kept pages 10 1 2 3
	start_kept names 10 2 3 1
	for a in 1 2 3; do
		for b in 1 2 3; do deaf "$a" "$b" 3; done
	done
	all_grow
	all_grow
	heal
	end_kept
	check_all
}

@test "readers and mappings of two nodes while the third is killed, stands still, is cut off" {
	local pid
	mount_nodes
	start_kept mapped 24 1 2 2 1
	start_kept exchange 24 2 1 1 2
	start_kept names 24 1 2
	pid=$(node_pid 3)
	kill -9 "$pid"
	umount -l "${M[3]}"
	wait_until 10 gone "$pid"
	mount_node 3
	[ "$(ls "${M[3]}")" = "$(ls "${M[1]}")" ]
	stopped=$(node_pid 3)
	kill -STOP "$stopped"
	sleep 3
	kill -CONT "$stopped"
	stopped=
	ip -n "$NET" link set node3 down
	sleep $AWHILE
	ip -n "$NET" link set node3 up
	wait_until 60 timeout 20 ls "${M[3]}"
	end_kept
	umount_nodes 1 2 3
	run fsck.weft -f -n "$FILE"
	echo "$output"
	[ "$status" -eq 0 ]
}
