#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Idmapped mounts of a volume: what they do is what they do on ext4, on one node and on several.

load common

setup() {
	need python3 mkfs.ext4
	[[ $(uname -r) =~ ^([0-9]+)\.([0-9]+) ]]
	[ $((BASH_REMATCH[1] * 100 + BASH_REMATCH[2])) -ge 612 ] || skip "Linux before 6.12 has none for FUSE"
}

teardown() {
	umount "$DIR/mapped" 2>/dev/null || true
	mountpoint -q "$DIR/ext4" && umount "$DIR/ext4"
	if [ -n "${NET:-}" ]; then teardown_nodes; else teardown_store; fi
}

# What is said of a folder on $1 is what is said of one on ext4.
as_on_ext4() {
	mkdir -p "$DIR/ext4" "$DIR/mapped" "$1/t"
	truncate -s 32M "$DIR/image"
	mkfs.ext4 -q -F "$DIR/image"
	mount -o loop "$DIR/image" "$DIR/ext4"
	mkdir "$DIR/ext4/t"
	python3 "$BATS_TEST_DIRNAME/idmap.py" "$DIR/ext4/t" "$DIR/mapped" >"$DIR/said.ext4"
	python3 "$BATS_TEST_DIRNAME/idmap.py" "$1/t" "$DIR/mapped" >"$DIR/said"
	diff "$DIR/said.ext4" "$DIR/said"
	grep -q "^dir/in 7:5 is 100007:100005 behind the mount, -rw-r--r--$" "$DIR/said"
}

@test "an idmapped mount shifts owners, and does all else as on ext4" {
	setup_store
	mount_store -o strictatime # with hidden opens a chown to no one is not refused (docs/limits.md)
	as_on_ext4 "$MNT"
	umount_store
	check_store
}

@test "an idmapped mount of a volume of two nodes does, too; the other node sees the owners that are stored" {
	setup_nodes 2
	mount_nodes
	as_on_ext4 "${M[2]}"
	[ "$(stat -c %u:%g "${M[1]}/t/dir/in")" = 7:5 ]
	umount_nodes 1 2
}
