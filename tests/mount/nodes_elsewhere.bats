#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# A node that several machines may run: it is killed, stopped or cut off on one, and started on
# another that reaches its store. Machines are network namespaces 1 to 4; node 1 may run on 1, 4
# (machine 2 in the file) and 2 (machine 3).

load common

setup() {
	CLIENTS=2 setup_nodes 4 # the last is nobody's but node 1's
	mkdir -p /run/weft
}

teardown() {
	[ -z "${stopped:-}" ] || kill -CONT "$stopped" 2>/dev/null || true
	teardown_nodes
	for device in ${loops:-}; do losetup -d "$device" || true; done
}

new_cluster() {
	weft cluster new -d "$1" c "10.77.0.1:$1/1.weft" "10.77.0.2:$1/2.weft" --client 10.77.0.3 >/dev/null
	cat >>"$FILE" <<-END

		[node 1 machine 2]
		address = 10.77.0.4
		cache = 48M

		[node 1 machine 3]
		address = 10.77.0.2:9339
		cache = 40M
	END
}

# Prefixes of a command that leave its process id what it is: machine $1. Machine 4 has control
# sockets of its own, so that nothing but the network and the store leads from it to the others. It
# holds none of their mounts.
at() {
	AT=(nsenter "--net=/run/netns/$NET-$1")
	# shellcheck disable=SC2016
	[ "$1" != 4 ] || AT+=(unshare -m sh -c 'umount -i -a -l -t fuse.weft; mount -t tmpfs -o mode=700 none /run/weft && exec "$@"' -)
}

machine4() {
	at 4
	"${AT[@]}" "$@"
}

# Starts node 1 on machine $1, in the foreground. Sets $SERVER. The rest goes to weft node start.
serve() {
	at "$1"
	shift
	"${AT[@]}" weft node start 1 -c "$FILE" -f "$@" 2>>"$DIR/log1" 3>&- &
	SERVER=$!
	echo "$SERVER" >>"$DIR/pids"
}

served_by() { # node 2 dials
	! gone "$SERVER" && weft status "${M[2]}" | grep -q " by $1"
}

all_up() {
	serve 1
	mount_node 2 &
	mount_node 3
	wait $!
}

@test "a node is killed and started on another machine, beside another node too: the others go on" {
	all_up
	mkdir "${M[2]}/d"
	echo old >"${M[3]}/d/f"
	sync "${M[3]}/d/f"
	exec 7>>"${M[3]}/d/f"

	# not twice
	run on 1 weft node start 1 -c "$FILE"
	echo "$output"
	[ "$status" -eq 2 ]
	[[ $output == *"node 1 runs on this machine already: process $SERVER, without a mount"* ]]
	run machine4 weft node start 1 -c "$FILE"
	echo "$output"
	[ "$status" -eq 2 ]
	[[ $output == *"node 1 runs on its machine 1 already: its weftd answers at 10.77.0.1:9338"* ]]
	run machine4 weft node start 1 -c "$FILE" --yes # one machine in truth: the store's lock is seen
	echo "$output"
	[ "$status" -eq 32 ]
	[[ $output == *"1.weft"*"use"* ]]

	kill -9 "$SERVER"
	wait_until 10 gone "$SERVER"
	serve 4
	wait_until 20 served_by 10.77.0.4:9338
	[ "$(timeout -s KILL 60 cat "${M[2]}/d/f")" = old ]
	echo more >&7
	timeout -s KILL 60 sync "${M[3]}/d/f"
	[ "$(cat "${M[2]}/d/f")" = $'old\nmore' ]
	exec 7>&-

	# two daemons on one machine: each with its port, store and cache
	kill -9 "$SERVER"
	wait_until 10 gone "$SERVER"
	serve 2
	wait_until 20 served_by 10.77.0.2:9339
	timeout -s KILL 60 touch "${M[3]}/d/g"
	[ "$(timeout -s KILL 60 cat "${M[2]}/d/f")" = $'old\nmore' ]
	weft status --json | grep -q '"options": "[^"]*cache=40M'

	# and back, by an end and not by a kill
	kill "$SERVER"
	wait_until 30 gone "$SERVER"
	serve 1
	wait_until 20 served_by 10.77.0.1:9338
	[ -e "${M[3]}/d/g" ]
	weft umount "${M[3]}"
	kill "$SERVER"
	umount_nodes 2
	check_volume
}

check_volume() {
	run fsck.weft -n -f -c "$FILE"
	echo "$output"
	[ "$status" -eq 0 ]
}

# Two devices of one store, as of two machines that reach it: no lock says that it is in use.
two_devices() {
	need losetup
	loops=$(losetup -f --show "$DIR/1.weft") || skip "needs loop devices"
	loops="$loops $(losetup -f --show "$DIR/1.weft")"
	sed -i "s|^store *= *$DIR/1.weft|store = ${loops% *}|; s|^cache = 48M|&\nstore = ${loops#* }|" "$FILE"
	grep -q "^store = ${loops#* }" "$FILE"
}

@test "one that is cut off and was started elsewhere finds a later start in its store, and ends" {
	local old
	two_devices
	all_up
	echo old >"${M[3]}/f"
	sync "${M[3]}/f"
	old=$SERVER
	ip -n "$NET-1" link set eth0 down
	serve 4 # nothing answers on the other machine: that is the operator's to know
	wait_until 20 gone "$old"
	grep -q "a later start of this node has been there: it was fenced, or started elsewhere; this weftd ends" "$DIR/log1"
	wait_until 20 served_by 10.77.0.4:9338
	[ "$(timeout -s KILL 60 cat "${M[2]}/f")" = old ]
	timeout -s KILL 60 sh -c "echo new >'${M[3]}/f'; sync '${M[3]}/f'"
	[ "$(cat "${M[2]}/f")" = new ]
	weft umount "${M[3]}"
	kill "$SERVER"
	umount_nodes 2
}

@test "one that was stopped, with a mount, and comes back: it ends, fsync and close fail, synced data is there" {
	local old program
	two_devices
	start_node 1
	old=$STARTED
	mount_node 2 &
	mount_node 3
	wait $!
	wait_until 10 mountpoint -q "${M[1]}"
	mkdir "${M[1]}/d"
	python3 -c 'import errno, os, sys, time
fd = os.open(sys.argv[1] + "/f", os.O_CREAT | os.O_RDWR)
os.write(fd, b"synced")
os.fsync(fd)
os.write(fd, b" and not")
read = os.open(sys.argv[1] + "/f", os.O_RDONLY)
print("written", flush=True)
while not os.path.exists(sys.argv[2]):
    time.sleep(0.05)
for name, call in (("fsync", lambda: os.fsync(fd)), ("read", lambda: os.read(read, 6)), ("close", lambda: os.close(fd))):
    try:
        call()
        print(name, "succeeded", flush=True)
    except OSError as e:
        print(name, errno.errorcode[e.errno], flush=True)' "${M[1]}/d" "$DIR/ended" >"$DIR/said" 2>&1 3>&- &
	program=$!
	wait_until 30 grep -q written "$DIR/said"
	stopped=$old
	kill -STOP "$old"
	run machine4 weft node start 1 -c "$FILE" # it cannot be told from one that hangs and goes on
	echo "$output"
	[ "$status" -eq 2 ]
	[[ $output == *"a program listens at 10.77.0.1:9338, an address of machine 1 of node 1, and does not answer"* ]]
	serve 4 --yes
	wait_until 30 served_by 10.77.0.4:9338
	[[ $(timeout -s KILL 60 cat "${M[3]}/d/f") == synced* ]]
	timeout -s KILL 60 sh -c "echo new >'${M[3]}/d/f'; sync '${M[3]}/d/f'"
	kill -CONT "$old"
	stopped=
	wait_until 20 gone "$old"
	grep -q "a later start of this node has been there" "$DIR/log1"
	touch "$DIR/ended"
	wait_until 20 gone "$program"
	cat "$DIR/said"
	grep -qE "^fsync E(IO|NOTCONN)$" "$DIR/said"
	grep -qE "^read E(IO|NOTCONN)$" "$DIR/said"
	grep -qE "^close E(IO|NOTCONN)$" "$DIR/said"
	umount -l "${M[1]}"
	[ "$(cat "${M[2]}/d/f")" = new ]
	weft umount "${M[3]}"
	kill "$SERVER"
	umount_nodes 2
}

@test "a start that cannot be is refused with its reason" {
	run on 3 weft node start 1 -c "$FILE"
	echo "$output"
	[ "$status" -eq 2 ]
	[[ $output == *"c.cluster:"*": node 1: no address of its 3 machines is one of this machine's"* ]]
	run on 3 weft node start 3 -c "$FILE"
	[ "$status" -eq 2 ]
	[[ $output == *"node 3 is a client"* ]]
	run on 3 weft node start 9 -c "$FILE"
	[ "$status" -eq 2 ]
	[[ $output == *"names no node 9"* ]]
	run weft node start 64 -c "$FILE"
	[ "$status" -eq 1 ]
	run on 1 weft node start 1 -c "$DIR/none"
	[ "$status" -eq 2 ]
	[[ $output == *"none: No such file"* ]]
	mv "$DIR/1.weft" "$DIR/away"
	run on 4 weft node start 1 -c "$FILE"
	echo "$output"
	[ "$status" -eq 2 ]
	[[ $output == *"node 1's store $DIR/1.weft: No such file"* ]]
	cp "$DIR/2.weft" "$DIR/1.weft"
	run on 4 weft node start 1 -c "$FILE"
	echo "$output"
	[ "$status" -eq 32 ]
	mv "$DIR/away" "$DIR/1.weft"
	cp "$FILE" "$DIR/good"
	sed -i 's/^cache = 48M/cache = 4000000G/' "$FILE"
	run on 4 weft node start 1 -c "$FILE"
	echo "$output"
	[ "$status" -eq 32 ]
	[[ $output == *"c.cluster:$(grep -n ^cache "$FILE" | head -1 | cut -d: -f1): node 1's cache: this machine has"* ]]
	mv "$DIR/good" "$FILE"

	run on 2 weft cluster check "$FILE"
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"this machine is node 2"*"this machine is machine 3 of node 1"* ]]
	run weft cluster show "$FILE"
	[[ $output == *"machine 2   $DIR/1.weft, 10.77.0.4:9338, cache 48"*"machine 3   $DIR/1.weft, 10.77.0.2:9339"* ]]
	printf '\n[node 2 machine 2]\naddress = 10.77.0.2:1\n' >>"$FILE"
	run on 2 weft cluster check "$FILE"
	echo "$output"
	[ "$status" -eq 2 ]
	[[ $output == *"c.cluster:"*"[node 2 machine 2] address: names a host of machine 1"* ]]
}
