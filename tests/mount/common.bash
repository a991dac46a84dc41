# SPDX-License-Identifier: Apache-2.0
# Helpers of the mount tests. Each test has a folder of its own with a store and a mount point,
# and leaves nothing mounted or running, whether it passes or not.

ROOT=$(cd "${BATS_TEST_DIRNAME:-$(dirname "${BASH_SOURCE[0]}")}/../.." && pwd)
BIN=${WEFT_BIN:-$ROOT/build}
PATH=$BIN:$PATH:/usr/sbin:/sbin
export LC_ALL=C.UTF-8 # tests read what programs say
umask 022             # and let other users in

# Skips what cannot run here, with the reason.
need() {
	local tool
	[ "$(id -u)" = 0 ] || skip "needs root to mount"
	[ -c /dev/fuse ] || skip "needs /dev/fuse"
	for tool in "$@"; do
		command -v "$tool" >/dev/null || skip "needs $tool"
	done
}

# A folder for the test: $DIR, with $STORE and the mount point $MNT. Not mounted yet.
setup_store() {
	need
	DIR=$(mktemp -d "${WEFT_TMP:-/tmp}/weft-test.XXXXXX")
	STORE=$DIR/store
	MNT=$DIR/mnt
	chmod 755 "$DIR" # for the other users of some tests
	mkdir "$MNT"
	mkfs.weft --size "${1:-256M}" "$STORE" >"$DIR/mkfs.log"
}

# Mounts $STORE on $MNT; arguments go to weftd. Sets $DAEMON, the daemon's pid.
mount_store() {
	weftd "$STORE" "$MNT" -o "cache=${CACHE:-64M}" "$@"
	DAEMON=$(weft status "$MNT" --json | sed -n 's/^  "pid": \([0-9]*\),*$/\1/p')
	[ -n "$DAEMON" ]
	echo "$DAEMON" >>"$DIR/pids"
}

# Unmounts and waits until the store is free.
umount_store() {
	weft umount "$MNT"
}

remount_store() {
	umount_store
	mount_store "$@"
}

# Ends the daemon as a crash does, and takes the dead mount away.
crash_store() {
	kill -9 "$DAEMON"
	umount -l "$MNT"
}

# Waits up to $1 seconds until the rest of the line succeeds.
wait_until() {
	local end=$((SECONDS + $1))
	shift
	until "$@"; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.05
	done
}

# fsck must find nothing.
check_store() {
	command -v fsck.weft >/dev/null || return 0
	run fsck.weft -n "$STORE"
	echo "$output"
	[ "$status" -eq 0 ]
}

# The process has ended, all its threads have (one that nobody has waited for yet has, too).
gone() {
	local threads
	[ -d "/proc/$1" ] || return 0
	grep -q '^State:.Z' "/proc/$1/status" 2>/dev/null || return 1
	threads=("/proc/$1/task"/*)
	[ ${#threads[@]} -le 1 ]
}

teardown_store() {
	local pid
	cd /
	[ -n "${DIR:-}" ] || return 0
	if mountpoint -q "$MNT" 2>/dev/null || grep -q " $MNT fuse.weft " /proc/mounts; then
		umount -l "$MNT" || true
	fi
	if [ -f "$DIR/pids" ]; then
		while read -r pid; do
			[ "$(cat "/proc/$pid/comm" 2>/dev/null)" = weftd ] || continue
			wait_until 10 gone "$pid" || kill -9 "$pid" || true
		done <"$DIR/pids"
	fi
	rm -rf "$DIR"
}
