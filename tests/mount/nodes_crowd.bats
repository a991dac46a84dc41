#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# More requests of a mount than most programs ever have wait for a node that is away: what needs nobody goes on
# beside them, and what waits can end.

load common

CROWD=600 # more than the workers that a mount needs for anything else

setup() {
	setup_nodes 3
	crowds=()
}

teardown() {
	local pid
	[ -z "${stopped:-}" ] || kill -CONT "$stopped" 2>/dev/null || true
	for pid in "${crowds[@]}"; do kill -9 "$pid" 2>/dev/null || true; done
	teardown_nodes
}

# Three nodes, of which the third has files, and the first works, too.
mount_crowd() {
	mount_nodes "$@"
	mkdir -p "${M[3]}/read" "${M[3]}/write" "${M[1]}/one"
	"$BATS_TEST_DIRNAME/crowd.py" "${M[3]}/read" "$CROWD" make
	"$BATS_TEST_DIRNAME/crowd.py" "${M[3]}/write" "$CROWD" make
	echo old >"${M[1]}/one/old"
	weft sync "${M[3]}"
	[ "$(cat "${M[1]}/one/old")" = old ]
}

# Node $1 opens the files of node 3, to $2 ("read", "write") them all at once later; what it says is in $DIR/$2.
crowd_opens() {
	mkdir "$DIR/$2"
	"$BATS_TEST_DIRNAME/crowd.py" "${M[$1]}/$2" "$CROWD" "$2" "$DIR/$2" >"$DIR/$2/out" 2>&1 3>&- &
	crowds+=($!)
	wait_until 120 test -e "$DIR/$2/open"
}

crowd_waits() { # WHAT
	touch "$DIR/$1/go"
	wait_until 120 all_have_begun "$1"
}

crowd_gone() { ! pgrep -f "crowd.py ${M[1]}/$1 " >/dev/null; }
all_have_begun() { [ "$(cat "$DIR/$1/begun" 2>/dev/null)" = "$CROWD" ]; }
all_have_ended() { [ "$(cat "$DIR/$1/ended" 2>/dev/null)" = "$CROWD" ]; }

# What node 1 does in a folder of its own needs nobody.
works() { # NAME
	timeout -s KILL 240 sh -c 'cd "$1" && echo "$2" >"$2" && [ "$(cat "$2")" = "$2" ] && mv "$2" new && stat new >/dev/null &&
		ls >/dev/null && [ "$(cat old)" = old ] && rm new' sh "${M[1]}/one" "$1"
}

workers() { weft status "${M[1]}" --prometheus | sed -n 's/^weft_session_workers{.*} \([0-9.]*\)$/\1/p'; }
few_workers() { [ "$(workers)" -lt 40 ]; }

# Node 3 has the leaves of its files alone, and is killed.
kill_three() {
	local i pid
	for i in $(seq 0 25 "$CROWD"); do touch -c "${M[3]}/read/$i" "${M[3]}/write/$i"; done
	pid=$(node_pid 3)
	kill -9 "$pid"
	wait_until 30 gone "$pid"
	umount -l "${M[3]}"
}

# All ended like this.
ended() { # WHAT HOW
	wait_until 120 all_have_ended "$1"
	wait_until 30 crowd_gone "$1"
	cat "$DIR/$1/out"
	[ "$(cat "$DIR/$1/out")" = "$2 $CROWD" ]
}

all_right() { # NODE WHAT
	[ "$("$BATS_TEST_DIRNAME/crowd.py" "${M[$1]}/$2" "$CROWD" check)" = "right $CROWD" ]
}

@test "many wait for a node that was killed: others go on beside them, and all is right when it is back" {
	mount_crowd
	crowd_opens 1 read
	kill_three
	crowd_waits read
	works a
	works b
	[ "$(cat "$DIR/read/ended" 2>/dev/null || echo 0)" -lt "$CROWD" ]
	mount_node 3
	ended read right
	works c
	umount_nodes 1 2 3
}

@test "many that want to change what a killed node has: others go on, and all is changed when it is back" {
	mount_crowd
	crowd_opens 1 write
	kill_three
	crowd_waits write
	works a
	works b
	mount_node 3
	ended write right
	all_right 2 write
	umount_nodes 1 2 3
}

@test "with soft many that wait for a node that was killed fail, and keep nothing of the mount" {
	mount_crowd -o soft,timeout=2
	crowd_opens 1 read
	crowd_opens 1 write
	kill_three
	crowd_waits read
	crowd_waits write
	ended read EIO
	ended write EIO
	wait_until 60 few_workers
	works a
	mount_node 3 -o soft,timeout=2
	all_right 1 read
	all_right 1 write
	umount_nodes 1 2 3
}

@test "with soft many that wait for a node that stands still fail, and others go on" {
	mount_crowd -o soft,timeout=2
	crowd_opens 1 read
	stopped=$(node_pid 3)
	kill -STOP "$stopped"
	crowd_waits read
	works a
	ended read EIO
	works b
	kill -CONT "$stopped"
	stopped=
	wait_until 60 few_workers
	all_right 1 read
	umount_nodes 1 2 3
}

@test "many that wait for a node that is away can be killed, and the mount can be taken away" {
	mount_crowd
	crowd_opens 1 read
	crowd_opens 1 write
	kill_three
	crowd_waits read
	crowd_waits write
	kill -9 "${crowds[0]}"
	wait_until 60 gone "${crowds[0]}"
	works a
	kill -9 "${crowds[1]}"
	wait_until 60 gone "${crowds[1]}"
	works b
	pid=$(node_pid 1)
	weft umount "${M[1]}"
	kill "$pid" # or it serves its store on, and waits for node 3 with what belongs there
	wait_until 120 gone "$pid"
}
