#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# What the kernels of several nodes keep of one volume is never behind, and costs no request
# while nothing changes.

load common

setup() { setup_nodes 3; }
teardown() { teardown_nodes; }

kept() { "$BIN/tests/mount/kept" "$1" "${WEFT_KEPT_SECONDS:-4}" "${@:2}"; }

# How many requests of node $1's kernel so far, of those that looking makes.
asked() {
	weft status "${M[$1]}" --json | python3 -c 'import json, sys
asked = json.load(sys.stdin)["requests"]
print(sum(asked.get(n, {"count": 0})["count"] for n in ("read", "getattr", "lookup", "statx")))'
}

@test "readers spin on two nodes while two write the same file: no page is behind" {
	mount_nodes
	kept pages "${M[1]}" "${M[2]}" "${M[2]}" "${M[3]}"
	umount_nodes 1 2 3
}

@test "mappings to read are never behind" {
	mount_nodes
	kept mapped "${M[1]}" "${M[2]}" "${M[2]}" "${M[3]}"
	umount_nodes 3 2 1
}

# Stores through one make no request.
@test "with mmap=off a shared mapping to write is refused" {
	mount_nodes -o mmap=off
	head -c 8192 /dev/zero >"${M[1]}/f"
	run python3 -c 'import mmap, os, sys
mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 8192)' "${M[2]}/f"
	[ "$status" -ne 0 ]
	[[ $output == *"No such device"* ]]
	python3 -c 'import mmap, os, sys
m = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 8192, flags=mmap.MAP_PRIVATE)
m[0] = 1
assert m[1] == 0' "${M[2]}/f"
	umount_nodes 3 2 1
}

@test "two nodes exchange one page under readers of all: none is behind, and both go on" {
	mount_nodes
	kept exchange "${M[1]}" "${M[2]}" "${M[2]}" "${M[3]}" "${M[1]}"
	umount_nodes 1 2 3
}

@test "names of one directory are made, moved and removed by all nodes: none is behind" {
	mount_nodes
	timeout -s KILL 600 "$BIN/tests/mount/hot" "${WEFT_KEPT_SECONDS:-4}" \
		"${WEFT_SEED:-$RANDOM}" "${M[@]}"
	umount_nodes 2 1 3
	run fsck.weft -f -n "$FILE"
	echo "$output"
	[ "$status" -eq 0 ]
}

@test "a file is cut and grown: no size is behind" {
	mount_nodes
	kept sizes "${M[1]}" "${M[2]}" "${M[3]}"
	umount_nodes 2 1 3
}

@test "files are made, found for the first time and grow meanwhile: no size is behind" {
	mount_nodes
	kept found "${M[1]}" "${M[2]}" "${M[2]}" "${M[3]}" "${M[3]}"
	umount_nodes 1 2 3
}

@test "files are made, and changed by another node as soon as they are there: no size is behind" {
	mount_nodes
	kept made "${M[1]}" "${M[2]}"
	umount_nodes 1 2 3
}

@test "to make a file costs no look at it: LOOKUP, that it is not there, and GETATTR of the directory" {
	local try before after
	mount_nodes
	for try in 1 2 3 4 5; do
		mkdir "${M[1]}/$try"
		before=$(asked 1)
		python3 -c 'import os, sys
for n in range(300):
    os.close(os.open("%s/%d" % (sys.argv[1], n), os.O_WRONLY | os.O_CREAT | os.O_EXCL))' "${M[1]}/$try"
		after=$(asked 1)
		echo "$before, $after"
		[ $((after - before)) -ge 630 ] || break
	done
	[ $((after - before)) -ge 590 ]
	[ $((after - before)) -lt 630 ]
	umount_nodes 1 2 3
}

@test "the first look at a file costs a node LOOKUP alone" {
	local try n before after
	mount_nodes
	# what node 2 has still to settle may be told meanwhile: then once more, with others
	for try in 1 2 3 4 5; do
		mkdir "${M[2]}/$try"
		for n in $(seq 300); do
			echo "$n" >"${M[2]}/$try/$n"
		done
		sleep "$try"
		before=$(asked 1)
		find "${M[1]}/$try" -size +1
		after=$(asked 1)
		echo "$before, $after"
		[ $((after - before)) -ge 330 ] || break
	done
	[ $((after - before)) -ge 300 ]
	[ $((after - before)) -lt 330 ]
	umount_nodes 1 2 3
}

@test "a file is renamed, another made anew: no name is behind" {
	mount_nodes
	kept names "${M[1]}" "${M[2]}" "${M[3]}"
	umount_nodes 3 1 2
}

@test "while nothing changes nothing is asked, on no node" {
	local n before after
	mount_nodes
	kept pages "${M[1]}" "${M[2]}" "${M[3]}"
	for n in 1 2 3; do
		kept still "${M[1]}" "${M[n]}"
		before=$(asked "$n")
		kept still "${M[1]}" "${M[n]}"
		after=$(asked "$n")
		echo "node $n: $before, $after"
		# a new process opens the file; its way there may be looked up again
		[ $((after - before)) -lt 20 ]
	done
	umount_nodes 1 2 3
}

@test "what one process was told of many files the next ones need not ask" {
	local n before after
	mount_nodes
	mkdir "${M[2]}/d"
	for n in $(seq 300); do
		echo "$n" >"${M[2]}/d/$n"
	done
	# what node 2 has still to settle may be told meanwhile: then once more
	for n in 1 2 3 4 5; do
		find "${M[1]}/d" -size +1 # each file once, by a process that then ends
		before=$(asked 1)
		find "${M[1]}/d" -size +1
		find "${M[1]}/d" -size +1
		after=$(asked 1)
		echo "$before, $after"
		[ $((after - before)) -ge 20 ] || break
		sleep 1
	done
	[ $((after - before)) -lt 20 ]
	for n in $(seq 300); do
		echo more >>"${M[2]}/d/$n"
	done
	[ "$(cat "${M[1]}"/d/* | wc -l)" -eq 600 ]
	umount_nodes 1 2 3
}

# How many requests of that kind ($2) node $1's kernel has made.
asked_for() {
	weft status "${M[$1]}" --json | python3 -c 'import json, sys
print(json.load(sys.stdin)["requests"].get(sys.argv[1], {"count": 0})["count"])' "$2"
}

@test "a kernel that cannot expire names keeps none, all else as ever: nothing is behind" {
	local lookups reads
	LD_PRELOAD=$BIN/tests/mount/preload/no_expire.so mount_nodes
	mkdir "${M[1]}/d"
	head -c 65536 /dev/urandom >"${M[1]}/d/f"
	cmp "${M[1]}/d/f" "${M[2]}/d/f"
	lookups=$(asked_for 2 lookup)
	reads=$(asked_for 2 read)
	# 100 looks at a path of two names that are there, and 100 at one that is not
	python3 -c 'import os, sys
fd = os.open(sys.argv[1] + "/d/f", os.O_RDONLY)
for n in range(100):
    os.stat(sys.argv[1] + "/d/f")
    assert not os.path.exists(sys.argv[1] + "/absent")
    assert len(os.pread(fd, 65536, 0)) == 65536' "${M[2]}"
	lookups=$(($(asked_for 2 lookup) - lookups))
	reads=$(($(asked_for 2 read) - reads))
	echo "$lookups lookups, $reads reads"
	[ "$lookups" -ge 300 ]
	[ "$reads" -le 2 ]
	timeout -s KILL 600 "$BIN/tests/mount/elsewhere" 2000 "${WEFT_SEED:-$RANDOM}" "${M[@]}"
	timeout -s KILL 600 "$BIN/tests/mount/hot" "${WEFT_KEPT_SECONDS:-4}" \
		"${WEFT_SEED:-$RANDOM}" "${M[@]}"
	kept names "${M[1]}" "${M[2]}" "${M[3]}"
	kept found "${M[1]}" "${M[2]}" "${M[2]}" "${M[3]}" "${M[3]}"
	kept made "${M[1]}" "${M[2]}"
	umount_nodes 1 2 3
	run fsck.weft -f -n "$FILE"
	echo "$output"
	[ "$status" -eq 0 ]
}
