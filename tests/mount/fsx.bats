#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Random work on files and names (tests/mount/fsx), with a cache that is too small; fsck finds
# nothing afterwards. A failure prints the seed that repeats it.

load common

setup_file() {
	[ -x "$BIN/tests/mount/fsx/run" ] || make -s -C "$ROOT" build/tests/mount/fsx/run
}

setup() { setup_store 512M; }
teardown() { teardown_store; }

random_work() {
	"$BIN/tests/mount/fsx/run" "$@"
}

# The work, then again after a remount, then fsck.
data_work() {
	CACHE=16M mount_store
	random_work data "$MNT" "$@"
	CACHE=16M remount_store
	random_work data "$MNT" "$@"
	umount_store
	check_store
}

@test "reads, writes and mappings of one file see each other" { data_work -n 6000 -m; }
@test "direct and cached access see each other" { data_work -n 6000 -d; }
@test "direct, cached and mapped access see each other" { data_work -n 4000 -d -m -r; }
@test "small files" { data_work -n 6000 -m -d -r -l 65536; }
@test "files in parallel, larger than the cache together" {
	data_work -n 1500 -m -p 6 -l 8388608
}

@test "many processes in one tree of names leave it in order" {
	CACHE=16M mount_store
	mkdir "$MNT/names"
	random_work names "$MNT/names" -n 6000 -p 6
	CACHE=16M remount_store
	random_work names "$MNT/names" -n 3000 -p 3
	umount_store
	check_store
}

@test "names and data at once" {
	CACHE=16M mount_store
	mkdir "$MNT/names"
	random_work names "$MNT/names" -n 4000 -p 3 >"$DIR/names.log" 2>&1 &
	random_work data "$MNT" -n 1500 -m -p 3 -l 4194304
	wait $! || { cat "$DIR/names.log"; false; }
	umount_store
	check_store
}

@test "a name that is replaced is always there" {
	mount_store
	random_work replace "$MNT" -n 4000 -p 4
}
