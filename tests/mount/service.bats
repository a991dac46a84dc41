#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# weftd as a service. `manager.py` is a service manager that writes down all that weftd sends it.

load common

setup() {
	DIR=$(mktemp -d "${WEFT_TMP:-/tmp}/weft-test.XXXXXX")
	LOG=$DIR/words
}

teardown() {
	local n
	[ -z "${MANAGER:-}" ] || kill "$MANAGER" 2>/dev/null || true
	for n in "$DIR/mnt" "$DIR/m1" "$DIR/m2"; do
		! mounted "$n" || umount -l "$n" || true
	done
	end_daemons 10
	[ -n "${BATS_TEST_COMPLETED:-}" ] || cat "$LOG" "$DIR"/said* 2>/dev/null || true
	[ -z "${NET:-}" ] || teardown_nodes
	rm -rf "$DIR"
}

# Starts weftd as a service with these arguments. Sets $MANAGER and $SERVICE, the pids.
manage() {
	: >"$LOG"
	"$BATS_TEST_DIRNAME/manager.py" "$LOG" "${SOCKET:-$DIR/notify}" $WATCHDOG -- ${WEFTD:-weftd} -f "$@" 2>"$DIR/said" 3>&- &
	MANAGER=$!
	wait_until 5 grep -q ^pid "$LOG"
	SERVICE=$(sed -n 's/^pid //p' "$LOG")
	echo "$SERVICE" >>"$DIR/pids"
}

# The same in the network of node $1.
manage_node() {
	local n=$1
	shift
	WEFTD="nsenter --net=/run/netns/$NET-$n weftd" manage "$@"
}

told() { grep -qE "^$SERVICE $1" "$LOG"; }
words() { grep -cE "^$SERVICE $1" "$LOG" || true; }

# Waits for the end of the service, and checks its exit code.
ends_with() {
	local rc=0
	wait_until 30 grep -q ^ended "$LOG"
	wait "$MANAGER" || rc=$?
	MANAGER=
	echo "exit code $rc, expected $1"
	[ "$rc" -eq "$1" ]
}

one_store() {
	need
	STORE=$DIR/store
	MNT=$DIR/mnt
	mkdir "$MNT"
	mkfs.weft -q --size 64M "$STORE"
}

@test "READY comes when the mount answers, STOPPING before it ends, and each from the daemon alone" {
	one_store
	manage "$STORE" "$MNT" -o cache=16M
	wait_until 10 told READY=1
	mounted "$MNT" fuse.weft
	told "STATUS=$STORE is mounted on $MNT"
	! told STOPPING || false
	kill "$MANAGER"
	ends_with 0
	told STOPPING=1
	[ "$(words READY=1)" = 1 ]
	[ "$(words WATCHDOG)" = 0 ]
	! grep -vE "^(pid|ended|$SERVICE) " "$LOG" || false
	grep -qE "^<6>.* mounted on $MNT" "$DIR/said" # with the level, for the journal
	fsck.weft -n "$STORE"
}

@test "a socket in the abstract namespace; a daemon in the background is no service" {
	one_store
	SOCKET=@weft-test-$$
	manage "$STORE" "$MNT" -o cache=16M
	wait_until 10 told READY=1
	umount "$MNT" # by hand, too, it ends
	ends_with 0
	told STOPPING=1
	NOTIFY_SOCKET=$DIR/nobody weftd "$STORE" "$MNT" -o cache=16M 2>"$DIR/said"
	daemon_of "$MNT" >>"$DIR/pids"
	[ ! -s "$DIR/said" ]
	weft umount "$MNT"
}

@test "a start that fails says why, also as the status" {
	mkdir "$DIR/mnt"
	manage "$DIR/typo.cluster" "$DIR/mnt"
	ends_with 32
	told "STATUS=store $DIR/typo.cluster: No such file or directory"
	grep -qxF "<3>store $DIR/typo.cluster: No such file or directory" "$DIR/said"
	! told READY || false
	manage -o nonsense "$DIR/typo.cluster" "$DIR/mnt"
	ends_with 1
	told 'STATUS=option "nonsense" is unknown'
}

# Takes a lock of the daemon's, as a task would that never lets it go; or lets it go.
take_lock() { debug "set var $OPTIONS_LOCK.state = 2"; }
let_lock_go() { debug "set var $OPTIONS_LOCK.state = 0"; } # the debugger's stop wakes all that wait
OPTIONS_LOCK="((struct daemon *)'fs/service.c'::watchdog.arg)->options_lock"
debug() { gdb -q -batch -p "$SERVICE" -ex "$1" >"$DIR/said-gdb" 2>&1; }

@test "the watchdog hears of a daemon that works, and nothing of one whose tasks cannot go on" {
	local before
	one_store
	need gdb
	WATCHDOG=0.8
	manage "$STORE" "$MNT" -o cache=16M
	wait_until 10 told READY=1
	wait_until 5 more_words_than 5
	take_lock
	before=$(words WATCHDOG=1)
	sleep 1.2
	echo "$before words, then $(words WATCHDOG=1)"
	[ "$(words WATCHDOG=1)" -le $((before + 1)) ]
	let_lock_go
	wait_until 5 more_words_than $((before + 3))
	kill "$MANAGER"
	ends_with 0
}

more_words_than() { [ "$(words WATCHDOG=1)" -gt "$1" ]; }

@test "a dead mount is taken away by a service, which is started again at its place, and by no other" {
	one_store
	manage "$STORE" "$MNT" -o cache=16M
	wait_until 10 told READY=1
	echo kept >"$MNT/f"
	weft sync "$MNT"
	kill -9 "$SERVICE"
	ends_with 137
	run weftd "$STORE" "$MNT"
	[ "$status" -eq 32 ]
	[[ $output == *"weft umount $MNT"* ]]
	manage "$STORE" "$MNT" -o cache=16M
	wait_until 10 told READY=1
	[ "$(cat "$MNT/f")" = kept ]
	[ "$(grep -c " $MNT " /proc/mounts)" = 1 ]
	kill "$MANAGER"
	ends_with 0
}

@test "a node without a mount says for whom it waits, can be stopped then, and stays when others leave" {
	rm -rf "$DIR"
	setup_nodes 2 64M
	LOG=$DIR/words
	manage_node 2 -u "$FILE"
	wait_until 10 told "STATUS=Waiting for node 1 \(10.77.0.1:9338\)"
	kill "$MANAGER"
	ends_with 0
	! told READY || false
	manage_node 2 -u "$FILE"
	mount_node 1
	wait_until 10 told READY=1
	weft umount "${M[1]}"
	ends_with 75 # systemd starts it again
	manage_node 2 "$FILE" "${M[2]}" -o cache=16M
	mount_node 1
	wait_until 10 told READY=1
	umount "${M[2]}"
	wait_until 10 told "STATUS=Unmounted; serves the store to node 1 \(10.77.0.1:9338\)"
	weft umount "${M[1]}"
	ends_with 0 # it was mounted, and an operator has unmounted it
}
