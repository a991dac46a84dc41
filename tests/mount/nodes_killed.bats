#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# A daemon that is killed ends, and its mount with it, also where one of its threads waits in the
# kernel for a page that only the daemon could have unlocked.

load common

setup() { setup_nodes 2; }

teardown() {
	[ -z "${DEAF:-}" ] || kill "$DEAF" 2>/dev/null || true
	teardown_nodes
}

guardian_of() { pgrep -P "$1" -x weft-guardian; }

says() { grep -q "$1" "$DIR/deaf"; }

# A thread of process $1 is in the kernel to drop pages, and goes on being there.
drops() { grep -q "invalidate_inode_pages2_range" "/proc/$1/task"/*/stack; }

# Node 1 is asked by node 2, whose process is $OTHER, for what it cannot drop from its kernel ($1: as
# deaf.py says), since nothing that the kernel asks is answered any more. Its daemon is $KILLED.
stand_still() {
	mount_nodes
	head -c 8M /dev/zero >"${M[1]}/f"
	KILLED=$(node_pid 1)
	GUARDIAN=$(guardian_of "$KILLED")
	mkfifo "$DIR/input"
	python3 "$BATS_TEST_DIRNAME/deaf.py" "$1" "$KILLED" "${M[1]}/f" <>"$DIR/input" >"$DIR/deaf" 3>&- &
	DEAF=$!
	wait_until 30 says deaf
	if [ "$1" = read ]; then
		timeout 120 truncate -s 4M "${M[2]}/f" 3>&- &
	else
		timeout 120 head -c 1 "${M[2]}/f" >/dev/null 3>&- &
	fi
	OTHER=$!
	wait_until 30 drops "$KILLED"
	sleep 0.5
	drops "$KILLED"
}

# The killed daemon's thread that was stopped stays as long as who has stopped it.
tracer_ends() {
	kill "$DEAF"
	wait "$DEAF" || true
	DEAF=
}

# Node 1 is back, and node 2 gets what it waited for.
starts_again() {
	weft umount "${M[1]}"
	mount_node 1
	wait "$OTHER"
	umount_nodes 1 2
}

mount_is_dead() {
	run timeout 10 stat -f "${M[1]}"
	[[ $output == *"not connected"* ]]
}

@test "a daemon is killed while it drops what a read has locked: the mount ends, the reader is told" {
	stand_still read
	kill -9 "$KILLED"
	wait_until 30 says "not connected"
	mount_is_dead
	tracer_ends
	wait_until 30 gone "$KILLED"
	wait_until 30 gone "$GUARDIAN"
	starts_again
}

@test "a daemon is killed while it drops a page with stores: the mount ends" {
	stand_still map
	kill -9 "$KILLED"
	tracer_ends
	wait_until 30 gone "$KILLED"
	mount_is_dead
	starts_again
}

@test "who stops a service, and then kills it, does not stop the guardian first" {
	stand_still map
	kill -TERM "$KILLED" "$GUARDIAN"
	sleep 1
	kill -0 "$GUARDIAN"
	drops "$KILLED"
	kill -9 "$KILLED"
	tracer_ends
	wait_until 30 gone "$KILLED"
	wait_until 30 gone "$GUARDIAN"
	starts_again
}

@test "the guardian is killed, too: who mounts or unmounts next ends the mount" {
	stand_still read
	kill -9 "$GUARDIAN" "$KILLED"
	run on 1 timeout -k 5 240 weftd "$FILE" "${M[1]}"
	echo "$output"
	[ "$status" -eq 32 ]
	[[ $output == *"still mounted from a daemon that has died"* ]]
	tracer_ends
	wait_until 30 gone "$KILLED"
	starts_again
}

@test "weft umount ends such a mount by itself" {
	stand_still map
	kill -9 "$GUARDIAN" "$KILLED"
	timeout -k 5 240 weft umount -l "${M[1]}"
	tracer_ends
	wait_until 30 gone "$KILLED"
	mount_node 1
	wait "$OTHER"
	umount_nodes 1 2
}

@test "the guardian goes with its daemon, however that ends, and is no second daemon" {
	local guardian daemon
	mount_nodes
	daemon=$(node_pid 1)
	guardian=$(guardian_of "$daemon")
	[ "$(tr -d '\0' <"/proc/$guardian/cmdline")" = weft-guardian ]
	[ "$(readlink "/proc/$guardian/cwd")" = / ]
	[ "$(awk '/^Pss_Anon:/ { print $2 }' "/proc/$guardian/smaps_rollup")" -lt 16384 ]
	kill -9 "$daemon"
	wait_until 10 gone "$guardian"
	weft umount "${M[1]}"
	mount_node 1
	daemon=$(node_pid 1)
	guardian=$(guardian_of "$daemon")
	umount_nodes 1 2
	wait_until 10 gone "$guardian"
}
