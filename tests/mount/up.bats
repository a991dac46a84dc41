#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# `make up` and `make down`, also twice and over what a dead daemon left.

load common

setup() {
	need
	DIR=$(mktemp -d "${WEFT_TMP:-/tmp}/weft-test.XXXXXX")
	STORE=$DIR/sub/store
	MNT=$DIR/mnt
}
teardown() {
	[[ ! -e $DIR/stores && $(ip netns list) != *weft-up-$$* ]] || nodes_up down >/dev/null 2>&1 || true
	! mountpoint -q "$DIR/small" || umount -l "$DIR/small"
	teardown_store
}

up() {
	local rc=0
	NODES=${NODES-1} STORES=$DIR/stores BIN=$BIN STORE=$STORE DIR=$MNT SIZE=64M "$ROOT/packaging/up" "$@" || rc=$?
	DAEMON=$(weft status "$MNT" --json 2>/dev/null | sed -n 's/^  "pid": \([0-9]*\),*$/\1/p')
	[ -z "$DAEMON" ] || echo "$DAEMON" >>"$DIR/pids"
	return $rc
}

# As after a crash of the daemon: the mount is there and answers nothing.
leave_dead_mount() {
	kill -9 "$DAEMON"
	wait_until 10 gone "$DAEMON"
	mounted "$MNT" fuse.weft
}

mounts() { grep -c " $MNT fuse.weft " /proc/mounts || true; }

@test "up makes and mounts a volume; doing it again changes nothing" {
	up up
	echo x >"$MNT/f"
	run up up
	[ "$status" -eq 0 ]
	[[ $output == *"Already up"* ]]
	[ "$(mounts)" = 1 ]
	[ "$(cat "$MNT/f")" = x ]
}

@test "down unmounts and keeps the volume; doing it again is harmless; PURGE removes it" {
	up up
	echo x >"$MNT/f"
	up down
	[ "$(mounts)" = 0 ]
	up down
	up up
	[ "$(cat "$MNT/f")" = x ]
	PURGE=1 up down
	[ ! -e "$STORE" ]
	PURGE=1 up down
}

# Three nodes, in namespaces of this test's own.
nodes_up() {
	local rc=0 n
	NODES=3 NET="weft-up-$$" SUBNET=10.94.75 CACHE=32M BIN=$BIN STORES=${STORES:-$DIR/stores} DIR=$DIR/nodes \
		SIZE=${SIZE:-64M} "$ROOT/packaging/up" "$@" 3>&- || rc=$?
	for n in 1 2 3; do
		weft status "$DIR/stores/$n.store" --json 2>/dev/null |
			sed -n 's/^  "pid": \([0-9]*\),*$/\1/p' >>"$DIR/pids"
	done
	return $rc
}

@test "down without NODES takes down what is up, and the last line of up says how" {
	run up up
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"sudo make down DIR=$MNT STORE=$STORE STORES=$DIR/stores "* ]]
	NODES=3 run up up
	[ "$status" -eq 1 ]
	[[ $output == *"make down first"* ]]
	[ ! -e "$MNT/1" ]
	NODES='' run up down
	echo "$output"
	[[ $output == *"Unmounted $MNT."* ]]
	[ "$(mounts)" = 0 ]
	PURGE=1 NODES='' up down
	[ ! -e "$STORE" ]
}

@test "three nodes: up, up again, over a crash of one, and of all; down takes away everything" {
	local n pids=() guardian again
	command -v ip >/dev/null || skip "needs ip"
	ip netns add "weft-up-$$-try" && ip netns del "weft-up-$$-try" || skip "needs network namespaces"
	chmod 755 "$DIR"
	SUDO_UID=12345 SUDO_GID=12346 run nodes_up up
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"cat $DIR/nodes/3/hello"*"written on node 1 at "* ]]
	# what README says comes next; and again after another up, also where root wrote the file
	setpriv --reuid 12345 --regid 12346 --clear-groups sh -c "echo mine >$DIR/nodes/1/hello"
	[ "$(cat "$DIR/nodes/3/hello")" = mine ]
	rm "$DIR/nodes/1/hello"
	echo roots >"$DIR/nodes/2/hello"
	SUDO_UID=12345 SUDO_GID=12346 nodes_up up
	setpriv --reuid 12345 --regid 12346 --clear-groups sh -c "echo mine >$DIR/nodes/1/hello"
	DIR=$DIR/nodes NODES=1 STORE=$DIR/one STORES=$DIR/stores run "$ROOT/packaging/up" up
	[ "$status" -eq 1 ]
	[[ $output == *"make down first"* ]]
	echo kept >"$DIR/nodes/2/f"
	run nodes_up up
	[[ $output == *"Already up"* ]]
	weft sync "$DIR/nodes/2"
	kill -9 "$(weft status "$DIR/nodes/2" --json | sed -n 's/^  "pid": \([0-9]*\),*$/\1/p')"
	nodes_up up
	[ "$(cat "$DIR/nodes/2/hello")" = "$(cat "$DIR/nodes/3/hello")" ]
	[ "$(cat "$DIR/nodes/3/f")" = kept ]
	for n in 1 2 3; do
		pids+=("$(weft status "$DIR/nodes/$n" --json | sed -n 's/^  "pid": \([0-9]*\),*$/\1/p')")
	done
	guardian=$(pgrep -P "${pids[0]}" -x weft-guardian)
	kill -9 $(pgrep -P "${pids[1]}" -x weft-guardian) $(pgrep -P "${pids[2]}" -x weft-guardian)
	kill -9 "${pids[@]}"
	# one is started again, and waits for the others. Killed again and again it is not there to be found for
	# some seconds, but will be
	for n in 1 2 3; do
		wait_until 20 pgrep -P "$guardian" >/dev/null
		again=$(pgrep -P "$guardian")
		kill -9 "$again"
		wait_until 10 gone "$again"
	done
	nodes_up down
	run grep "$DIR/nodes" /proc/mounts
	[ "$status" -ne 0 ]
	[[ $(ip netns list) != *weft-up-$$* ]]
	# also those that were just being started again, and who would start them
	run pgrep -f "weftd .*$DIR/stores/demo.cluster"
	echo "$output"
	[ "$status" -eq 1 ]
	wait_until 10 gone "$guardian"
	nodes_up down
	nodes_up up
	[ "$(cat "$DIR/nodes/1/f")" = kept ]
	PURGE=1 nodes_up down
	[ ! -e "$DIR/stores" ]
	[[ $(ip netns list) != *weft-up-$$* ]]
}

@test "a volume of which one store does not fit is not made at all" {
	mkdir "$DIR/small"
	mount -t tmpfs -o size=64M none "$DIR/small"
	STORES=$DIR/small/stores SIZE=1G run nodes_up up # 45 MiB each
	echo "$output"
	[ "$status" -eq 1 ]
	[[ $output == *"/2.store: "*"needs "*"room for "* ]]
	[ -z "$(ls -A "$DIR/small")" ]
	[[ $(ip netns list) != *weft-up-$$* ]]
}

@test "a final slash, and a name that is a pattern, are the same directory" {
	MNT=$DIR/m.t
	mkdir "$DIR/mxt"
	up up
	leave_dead_mount
	MNT=$MNT/ up up
	[ "$(mounts)" = 1 ]
	MNT=$DIR/mxt
	run up down
	[[ $output == *"Nothing is mounted"* ]]
	MNT=$DIR/m.t
	[ "$(mounts)" = 1 ]
}

@test "up says which volume is there; a store in use, or a device, is not purged" {
	up up
	store=$STORE
	STORE=$DIR/another
	run up up
	[[ $output == *"Already up"*"the volume is in $store"* ]]
	[ ! -e "$STORE" ]
	STORE=$store
	dir=$MNT
	MNT=$DIR/nowhere
	PURGE=1 run up down
	[ "$status" -eq 1 ]
	[[ $output == *"mounted elsewhere"* ]]
	[ -e "$store" ]
	STORE=$DIR/node
	mknod "$STORE" c 1 3
	PURGE=1 run up down
	[ "$status" -eq 1 ]
	[ -c "$STORE" ]
	MNT=$dir STORE=$store
	run "$ROOT/packaging/up" nonsense
	[ "$status" -eq 2 ]
}

@test "up goes over what a dead daemon left" {
	up up
	echo x >"$MNT/f"
	weft sync "$MNT"
	leave_dead_mount
	up up
	[ "$(mounts)" = 1 ]
	[ "$(cat "$MNT/f")" = x ]
}

@test "down takes away what a dead daemon left" {
	up up
	leave_dead_mount
	up down
	[ "$(mounts)" = 0 ]
}

@test "a mount over what a dead daemon left is refused and says what to do; weft umount does it" {
	up up
	ls "$MNT"
	leave_dead_mount
	[[ $(weft status) == *"$MNT is mounted, but no weftd answers for it"* ]]
	run weft mount "$STORE" "$MNT"
	[ "$status" -eq 32 ]
	[[ $output == *"weft umount $MNT"* ]]
	[ "$(mounts)" = 1 ]
	weft umount "$MNT"
	[ "$(mounts)" = 0 ]
	mount_store
}

@test "a new volume belongs to whom sudo was called by, an old one to whom it did" {
	SUDO_UID=12345 SUDO_GID=12346 up up
	[ "$(stat -c %u:%g "$MNT")" = 12345:12346 ]
	chmod 755 "$DIR"
	setpriv --reuid 12345 --regid 12346 --clear-groups mkdir "$MNT/mine"
	up down
	SUDO_UID=12347 SUDO_GID=12347 up up
	[ "$(stat -c %u:%g "$MNT")" = 12345:12346 ]
}

@test "who has mounted nothing is told that root may have" {
	up up
	install -m 755 "$BIN/weft" "$DIR" # the tree may be in a home that nobody else enters
	chmod 755 "$DIR"
	run setpriv --reuid 12345 --regid 12346 --clear-groups "$DIR/weft" status "$MNT"
	[ "$status" -ne 0 ]
	[[ $output == *"sudo weft status"* ]]
}
