#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# kill -9 of the real daemon under real load: what was synced is there, and fsck finds nothing.
# A failure prints the seed of its round; WEFT_CRASH_SEED repeats it as far as a real machine
# can, WEFT_CRASH_ROUNDS says how many kills.

load common
load crash

setup() {
	need python3 git sqlite3 fio tar setsid
	[ -x "$BIN/tests/mount/fsync_log" ] || skip "needs make tests"
	setup_store "${BATS_TEST_DESCRIPTION:+$(size_of "$BATS_TEST_DESCRIPTION")}"
	PROOF=$DIR/proof
	mkdir "$PROOF"
	make_tarball
	SYNCED=0
}

size_of() {
	case $1 in
	*full*) echo 64M ;;
	*) echo 1G ;;
	esac
}

teardown() {
	end_loads
	teardown_store
}

# One round: load, kill, fsck of the replayed store, recovery, check.
round() {
	local seed
	seed=$(new_seed)
	echo "round $1: WEFT_CRASH_SEED=$seed, loads: ${*:2}"
	kill_under_load "$seed" "${@:2}"
	check_store
	recover_and_check
}

@test "a dozen kills in a row lose nothing that was synced" {
	mount_store
	rounds=${WEFT_CRASH_ROUNDS:-12}
	for ((i = 0; i < rounds; i++)); do
		# the log of fsyncs in each, the others in turn
		round "$i" fsync "${LOADS[1 + i % (${#LOADS[@]} - 1)]}"
	done
	echo "$SYNCED"
	[ "$SYNCED" -gt "$rounds" ]
	umount_store
	check_store
}

@test "kills with a cache of 16 MiB lose nothing that was synced" {
	CACHE=16M
	mount_store
	for ((i = 0; i < 6; i++)); do round "$i" "${LOADS[@]}"; done
	[ "$SYNCED" -gt 6 ]
	umount_store
	check_store
}

fill_volume() {
	local i
	mkdir -p "$MNT/full"
	for i in $(seq 1 40); do
		head -c 4000000 /dev/urandom >"$MNT/full/$1.$i" || break
	done 2>/dev/null
	: >"$MNT/full/$1.last" && head -c 100000 /dev/zero >"$MNT/full/$1.last" || true
} 2>/dev/null

@test "kills of a full volume lose nothing that was synced" {
	mount_store
	for ((i = 0; i < 6; i++)); do
		fill_volume "$i"
		[ "$(df --output=avail -k "$MNT" | tail -1)" -lt 2048 ]
		# space comes and goes
		rm -f "$MNT/full/$i.1"
		LOADS=(fsync)
		round "$i" fsync
	done
	[ "$SYNCED" -gt 6 ]
	rm -rf "$MNT"/full "$MNT"/fsync*
	umount_store
	check_store
}

# Starts the daemon in the foreground and kills it after $1 milliseconds, recovered or not.
kill_in_recovery() {
	local pid
	weftd "$STORE" "$MNT" -o cache=64M -f >>"$DIR/recovery.log" 2>&1 3>&- &
	pid=$!
	echo $pid >>"$DIR/pids"
	sleep "$(printf '0.%03d' "$1")"
	mounted "$MNT" fuse.weft && mounted=$((mounted + 1))
	kill -9 $pid
	wait $pid 2>/dev/null || true
	! mounted "$MNT" fuse.weft || umount -l "$MNT"
}

@test "kills in the middle of recoveries lose nothing that was synced" {
	mounted=0 kills=0
	mount_store -o log_interval=60
	for ((i = 0; i < 4; i++)); do
		kill_under_load "$(new_seed)" fsync untar sqlite_wal
		# from before its first read to after the mount
		for ms in 2 5 8 12 16 20 30 40 60 80; do
			kill_in_recovery $((ms + RANDOM % 4))
			kills=$((kills + 1))
		done
		check_store
		recover_and_check
	done
	echo "$mounted of $kills were mounted already"
	[ "$mounted" -lt "$kills" ]
	[ "$SYNCED" -gt 4 ]
	umount_store
	check_store
}
