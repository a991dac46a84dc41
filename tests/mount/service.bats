#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# weftd as a service. `manager.py` is a service manager that writes down all that weftd sends it. Then
# the real one: systemd starts as the first process of a container over this machine's root.

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
	ln -s "$MNT" "$DIR/link"
	manage "$STORE" "$DIR/link/" -o cache=16M
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

# What systemd does with the unit, and with lines of fstab.
SCRIPT='
	exec 2>&1
	is() { [ "$(systemctl is-active "$1")" = "$2" ]; }
	becomes() { for try in {1..600}; do ! is "$1" "$2" || return 0; sleep 0.05; done; systemctl status "$1"; false; }
	ended() { ! systemctl --quiet is-failed "$1"; }
	mkdir -p /etc/weft /mnt/one /mnt/file /mnt/auto
	cd /etc/weft

	echo "---- a name without a file"
	! systemctl start weft@typo
	systemctl status weft@typo | grep "Status: .store /etc/weft/typo.cluster: No such file or directory"
	systemctl reset-failed

	echo "---- a node with a mount, and one without"
	weft cluster new one 127.0.0.1:/var/tmp/1.store 127.0.0.1:/var/tmp/2.store >/dev/null
	sed -i "s/^key /tls = yes\n&/" one.cluster # so that the unit keeps weftd from nothing of that
	grep -q "^tls" one.cluster
	cp one.cluster two.cluster
	printf "OPTIONS=node=1,cache=16M\nDIRECTORY=/mnt/one\n" >one.env
	echo OPTIONS=node=2,cache=16M >two.env
	for n in 1 2; do mkfs.weft -q -c one.cluster --node $n --size 64M; done
	systemctl start --no-block weft@two
	systemctl start weft@one
	becomes weft@two active
	systemctl status weft@one | grep "Status: ./var/tmp/1.store is mounted on /mnt/one"
	echo kept >/mnt/one/f
	weft sync /mnt/one

	echo "---- killed, it is started again with its mount"
	kill -9 "$(systemctl show --property MainPID --value weft@one)"
	becomes weft@one active
	for try in {1..300}; do [ ! -e /mnt/one/f ] || break; sleep 0.1; done
	[ "$(cat /mnt/one/f)" = kept ]

	echo "---- stopped, and the one without a mount waits for its return"
	systemctl stop weft@one
	ended weft@one
	becomes weft@two activating
	systemctl start weft@one
	becomes weft@two active
	[ "$(cat /mnt/one/f)" = kept ]
	systemctl stop weft@one weft@two
	ended weft@one
	ended weft@two

	echo "---- in fstab"
	for n in file auto; do mkfs.weft -q --size 64M /var/tmp/$n.store; done
	cat >/etc/fstab <<-END
		/var/tmp/file.store    /mnt/file weft defaults,nofail,cache=16M                         0 0
		/var/tmp/auto.store    /mnt/auto weft defaults,noauto,x-systemd.automount,cache=16M     0 0
		/etc/weft/one.cluster  /mnt/one  weft defaults,nofail,_netdev,node=1,cache=16M          0 0
	END
	systemctl daemon-reload
	systemctl show --property After mnt-one.mount | grep network-online.target
	systemctl start --no-block weft@two
	systemctl start mnt-file.mount mnt-auto.automount mnt-one.mount
	is mnt-auto.mount inactive
	[ "$(cat /mnt/one/f)" = kept ]
	ls /mnt/auto
	is mnt-auto.mount active
	grep " fuse.weft " /proc/mounts
	systemctl stop mnt-file.mount
	fsck.weft -n /var/tmp/file.store # is free: umount has waited
	systemctl start mnt-file.mount
	for n in one file auto; do echo last >/mnt/$n/last; done

	echo "---- another node has the volume mounted until the first has left"
	systemctl stop weft@two
	printf "OPTIONS=node=2,cache=16M\nDIRECTORY=/mnt/two\n" >two.env
	# it is asked to stop when the first one has left, and then ends as with a crash
	mkdir -p /mnt/two /run/systemd/system/weft@two.service.d
	printf "[Unit]\nBefore=mnt-one.mount\n[Service]\nExecStop=-/bin/sh -c \"weft status >/var/tmp/stayed\"\nKillSignal=SIGKILL\n" \
		>/run/systemd/system/weft@two.service.d/test.conf
	systemctl daemon-reload
	systemctl start weft@two
	[ "$(cat /mnt/two/last)" = last ]
	echo "---- all that is mounted goes with the machine"
	date +%s
'

@test "under systemd: the unit starts, fails, stops and is started again; fstab's mounts; shutdown in time" {
	local store took
	need unshare setfattr
	[ -x /lib/systemd/systemd ] || skip "needs systemd"
	mkdir "$DIR/up"
	env -u MAKEFLAGS -u MAKELEVEL make -s -C "$ROOT" DESTDIR="$DIR/up" PREFIX=/usr install
	timeout -k 5 120 "$BATS_TEST_DIRNAME/container" "$DIR" "$SCRIPT" 3>&-
	took=$(($(date +%s) - $(tail -n 1 "$DIR/out")))
	cat "$DIR/out" "$DIR/log"
	journalctl -D "$DIR/up/var/log/journal" --no-pager | tail -n 100
	echo "down after $took s"
	[ "$took" -le 25 ]
	grep -q /var/tmp/2.store "$DIR/up/var/tmp/stayed"
	! grep -q /var/tmp/1.store "$DIR/up/var/tmp/stayed" || false
	for store in 1 file auto; do
		run fsck.weft -n "$DIR/up/var/tmp/$store.store"
		echo "$output"
		[[ $output == *": clean "* ]]
	done
}

@test "systemd finds nothing to complain about in the unit" {
	command -v systemd-analyze >/dev/null || skip "needs systemd"
	sed "s|@SBIN@|$BIN|" "$ROOT/packaging/systemd/weft@.service.in" >"$DIR/weft@.service"
	run systemd-analyze verify --man=no "$DIR/weft@.service"
	echo "$output"
	[ "$status" -eq 0 ]
	[ -z "$output" ]
}
