#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Locks of one volume on three nodes.

load common

setup() {
	setup_nodes 3
	need python3
	mount_nodes
}

teardown() { teardown_nodes; }

# Nothing is left of what a test has locked; all stores are closed.
locks() {
	python3 "$BATS_TEST_DIRNAME/nodes_locks.py" "$@"
	umount_nodes 2 1 3
	for n in 1 2 3; do
		[ "$(weft dump "$DIR/$n.weft" tree --keys 2>/dev/null | grep -c ' lock ')" -eq 0 ]
	done
}

@test "ranges exclude each other across nodes; getlk tells them; part of one is handed over" {
	locks ranges "${M[1]}" "${M[2]}"
}

@test "a lock is handed over, wakes who waits, and goes with a process that is killed" {
	locks hand_over "${M[1]}" "${M[3]}"
}

@test "flock(1) on two nodes" {
	need flock
	flock "${M[1]}/f" sh -c "! flock -n '${M[2]}/f' true && flock -n '${M[2]}/g' true"
	# the kernel tells of a last close a moment later
	wait_until 5 flock -n "${M[2]}/f" true
	flock -s "${M[1]}/f" flock -s -n "${M[2]}/f" true
	locks hand_over "${M[2]}" "${M[3]}"
}

@test "closing a file frees locks: fcntl's with any close, others with the last" {
	locks closing "${M[1]}" "${M[2]}"
}

@test "a blocked request is ended by a signal, also by SIGKILL" {
	locks interrupts "${M[2]}" "${M[1]}"
}

@test "a deadlock of two nodes is found" {
	locks deadlock "${M[1]}" "${M[2]}"
}

@test "hundreds of blocked requests keep no other from being served" {
	locks many "${M[@]}"
}

@test "three nodes count under locks, and lose nothing" {
	locks counting "${M[@]}"
}

@test "an sqlite database is written from three nodes at once" {
	locks sqlite "${M[@]}"
}

@test "what a killed node had locked is free once it is there again, and wakes who waits" {
	local holder waiter
	python3 "$BATS_TEST_DIRNAME/nodes_locks.py" hold "${M[1]}" 3>&- &
	holder=$!
	wait_until 10 test -e "${M[2]}/held"
	python3 "$BATS_TEST_DIRNAME/nodes_locks.py" wait_long "${M[2]}" "$DIR/waits" 3>&- &
	waiter=$!
	wait_until 10 test -e "$DIR/waits"
	kill -9 "$(node_pid 1)"
	kill -9 "$holder"
	umount -l "${M[1]}"
	kill -0 "$waiter"
	mount_node 1
	wait "$waiter"
	locks hand_over "${M[1]}" "${M[2]}"
}

@test "a volume of several nodes is not served through io_uring" {
	umount_nodes 1 2 3
	run on 1 weftd "$FILE" "${M[1]}" -o uring=perhaps
	[ "$status" -eq 1 ]
	for n in 2 3; do start_node "$n"; done
	run on 1 weftd "$FILE" "${M[1]}" -o uring=on
	echo "$output"
	[ "$status" -eq 32 ]
	[[ $output == *"option uring=on: requests of a volume of several nodes wait for each other"* ]]
}

# It closes its files at its end, which nothing interrupts; the locks go when that node is back.
@test "a program that is killed with a lock ends, though the node that keeps it is stopped" {
	local pid home
	touch "${M[2]}/f"
	home=$(node_pid 2)
	python3 -c 'import fcntl, os, sys, time
fd = os.open(sys.argv[1], os.O_RDWR)
fcntl.lockf(fd, fcntl.LOCK_EX)
open(sys.argv[2] + "/locked", "w")
time.sleep(600)' "${M[1]}/f" "$DIR" &
	pid=$!
	wait_until 30 test -e "$DIR/locked"
	# another node wants it: to give it back is to ask
	python3 -c 'import fcntl, os, sys
fd = os.open(sys.argv[1], os.O_RDWR)
try:
    fcntl.lockf(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
except OSError:
    sys.exit(0)
sys.exit(1)' "${M[2]}/f"
	kill -STOP "$home"
	kill -9 "$pid"
	wait_until 20 gone "$pid" || { kill -CONT "$home"; return 1; }
	kill -CONT "$home"
	timeout 120 python3 -c 'import fcntl, os, sys
fcntl.lockf(os.open(sys.argv[1], os.O_RDWR), fcntl.LOCK_EX)' "${M[3]}/f"
	umount_nodes 1 2 3
}
