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
	[ $EUID = 0 ] || skip "needs root to mount"
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

# The pid of the daemon that serves mount $1; nothing if none does. (New processes take most of a
# test's time, so this starts few of them, as do the functions below.)
daemon_of() {
	local status
	status=$(weft status "$1" --json) || true
	! [[ $status =~ $'\n  "pid": '([0-9]+) ]] || echo "${BASH_REMATCH[1]}"
}

# Mounts $STORE on $MNT; arguments go to weftd. Sets $DAEMON, the daemon's pid.
mount_store() {
	weftd "$STORE" "$MNT" -o "cache=${CACHE:-64M}" "$@"
	DAEMON=$(daemon_of "$MNT")
	[ -n "$DAEMON" ]
	echo "$DAEMON" >>"$DIR/pids"
}

# Unmounts and waits until the store is free.
# If the mount is busy, says with what, and tries once more: other tests may look at all mounts.
umount_store() {
	weft umount "$MNT" && return
	fuser -vm "$MNT" 2>&1 | grep -v 'Cannot stat' || true
	sleep 2
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

# Waits until the rest of the line succeeds, for $1 seconds, and PATIENCE times as long on a machine that is
# busy with other things: the limit is for what never comes.
PATIENCE=5
wait_until() {
	local end=$((SECONDS + PATIENCE * $1))
	shift
	until "$@"; do
		[ $SECONDS -lt $end ] || return 1
		sleep 0.05
	done
}

# For $1 seconds the daemon uses a hundredth of a second at most; one of a few tries may be disturbed by
# what the machine does besides, and by where the two counts of it, of a hundredth each, are cut off.
idles() {
	local try before after
	for try in 1 2 3 4 5; do
		before=$(awk '{print $14 + $15}' "/proc/$DAEMON/stat")
		sleep "$1"
		after=$(awk '{print $14 + $15}' "/proc/$DAEMON/stat")
		echo "try $try: $((after - before)) hundredths"
		[ $((after - before)) -gt 1 ] || return 0
	done
	return 1
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
	local stat threads
	[ -d "/proc/$1" ] || return 0
	read -r stat 2>/dev/null <"/proc/$1/stat" || return 1
	[[ $stat == *") Z "* ]] || return 1
	threads=("/proc/$1/task"/*)
	[ ${#threads[@]} -le 1 ]
}

# A port that was free a moment ago.
free_port() { python3 -c 'import socket
s = socket.socket()
s.bind(("127.0.0.1", 0))
print(s.getsockname()[1])'; }

# Something is mounted on $1; with $2, this.
mounted() {
	local mounts
	IFS= read -rd '' mounts </proc/mounts || true
	[[ $mounts == *" $1 ${2:-}"* ]]
}

# Ends the daemons of $DIR/pids; each gets $1 seconds to end by itself.
end_daemons() {
	local pid comm
	[ -f "$DIR/pids" ] || return 0
	while read -r pid; do
		{ read -r comm <"/proc/$pid/comm"; } 2>/dev/null && [ "$comm" = weftd ] || continue
		wait_until "$1" gone "$pid" || kill -9 "$pid" || true
	done <"$DIR/pids"
}

teardown_store() {
	cd /
	[ -n "${DIR:-}" ] || return 0
	! mounted "$MNT" || umount -l "$MNT" || true
	end_daemons 10
	rm -rf "$DIR"
}

# ---- several nodes -------------------------------------------------------------------------
# Each in a network namespace of its own, joined by a bridge in another: nothing of the
# machine's own network is touched. Node N's store is $DIR/N.weft, its mount $DIR/mN.

# A cluster of $1 nodes with stores of size $2: $FILE, $NODES, ${M[N]}. Not mounted yet. The last
# $CLIENTS of them have no store.
setup_nodes() {
	local n
	need ip nsenter
	NODES=$1
	DIR=$(mktemp -d "${WEFT_TMP:-/tmp}/weft-test.XXXXXX")
	chmod 755 "$DIR"
	NET=weft-${DIR##*.}
	ip netns add "$NET" 2>"$DIR/netns" || skip "needs network namespaces: $(cat "$DIR/netns")"
	make_networks
	M=()
	for ((n = 1; n <= NODES; n++)); do M[n]=$DIR/m$n; done
	mkdir "${M[@]}"
	FILE=$DIR/c.cluster
	new_cluster "$DIR"
	for ((n = 1; n <= NODES - ${CLIENTS:-0}; n++)); do
		on "$n" mkfs.weft -c "$FILE" --size "${2:-128M}" >>"$DIR/mkfs.log"
	done
}

# A namespace for each node, joined to the bridge in $NET.
make_networks() {
	local n
	for ((n = 1; n <= NODES; n++)); do echo "netns add $NET-$n"; done | ip -batch -
	{
		echo "link add br0 type bridge"
		echo "link set br0 up"
		for ((n = 1; n <= NODES; n++)); do
			echo "link add node$n type veth peer name eth0 netns $NET-$n"
			echo "link set node$n master br0 up"
		done
	} | ip -n "$NET" -batch -
	for ((n = 1; n <= NODES; n++)); do
		ip -n "$NET-$n" -batch - <<-END
			link set lo up
			addr add 10.77.0.$n/24 dev eth0
			link set eth0 up
		END
	done
}

# The cluster file of these nodes, c.cluster in folder $1, with a fresh UUID and key.
new_cluster() {
	local n nodes=()
	for ((n = 1; n <= NODES; n++)); do
		if [ "$n" -gt $((NODES - ${CLIENTS:-0})) ]; then
			nodes+=(--client "10.77.0.$n")
		else
			nodes+=("10.77.0.$n:$1/$n.weft")
		fi
	done
	weft cluster new -d "$1" c "${nodes[@]}" >/dev/null
}

# Runs a command in node $1's network.
on() {
	local n=$1
	shift
	nsenter --net="/run/netns/$NET-$n" "$@"
}

node_pid() { daemon_of "${M[$1]}"; }

# Mounts node $1; waits for the others. The rest goes to weftd. A daemon that a test kills stays away, as its machine
# would, unless the test says RESTART=restart.
mount_node() {
	local n=$1
	shift
	on "$n" weftd "$FILE" "${M[n]}" -o "cache=${CACHE:-64M},${RESTART:-norestart}" "$@" 2>>"$DIR/log$n"
	node_pid "$n" >>"$DIR/pids"
}

# Starts node $1 in the foreground, to wait for the others; what it says is in $DIR/logN. Sets
# $STARTED, its pid.
start_node() {
	local n=$1
	shift
	nsenter --net="/run/netns/$NET-$n" weftd "$FILE" "${M[n]}" -f -o "${RESTART:-norestart}" "$@" 2>"$DIR/log$n" 3>&- &
	STARTED=$!
	echo "$STARTED" >>"$DIR/pids"
}

# All of them.
mount_nodes() {
	local n p=()
	for ((n = 1; n <= NODES; n++)); do
		mount_node "$n" "$@" &
		p+=($!)
	done
	for n in "${p[@]}"; do
		wait "$n" || { cat "$DIR"/log*; return 1; }
	done
}

# Unmounts the nodes in this order, and waits until all their daemons have gone.
umount_nodes() {
	local n pid
	for n in "$@"; do
		weft umount "${M[n]}" 2>>"$DIR/log$n" || {
			tail -n 3 "$DIR/log$n"
			fuser -vm "${M[n]}" 2>&1 | grep -v 'Cannot stat'
			return 1
		}
	done
	while read -r pid; do
		wait_until 30 gone "$pid"
	done <"$DIR/pids"
	: >"$DIR/pids"
}

take_mounts_away() {
	local n
	for ((n = 1; n <= ${NODES:-0}; n++)); do
		! mounted "$DIR/m$n" fuse.weft || umount -l "$DIR/m$n" || true
	done
}

# After a failed test: the status of each node, the end of its log, and the places where it waits.
tell_nodes() {
	local n pid
	[ ! -f "$DIR/pids" ] || while read -r pid; do
		gone "$pid" || { echo "--- process $pid"; "$ROOT/tests/threads" "$pid" || true; }
	done <"$DIR/pids"
	for ((n = 1; n <= ${NODES:-0}; n++)); do
		echo "--- node $n"
		timeout 10 weft status "${M[n]}" 2>&1 || true
		tail -n 20 "$DIR/log$n" 2>/dev/null || true
	done
}

teardown_nodes() {
	local n
	cd /
	[ -n "${DIR:-}" ] || return 0
	[ -n "${BATS_TEST_COMPLETED:-}" ] || tell_nodes
	take_mounts_away
	end_daemons 2
	end_restarted
	take_mounts_away # of a daemon that was just mounting
	[ -z "${NET:-}" ] || {
		for ((n = 1; n <= ${NODES:-0}; n++)); do echo "netns del $NET-$n"; done
		echo "netns del $NET"
	} | ip -force -batch - 2>/dev/null || true
	rm -rf "$DIR"
}

# The daemons of these nodes that took the place of killed ones.
restarted() { pgrep -f "^weftd -u -f .* $FILE\$"; }

end_restarted() {
	local pid
	for pid in $(restarted); do
		kill "$pid" 2>/dev/null || true
		wait_until 30 gone "$pid" || kill -9 "$pid" || true
	done
}

# Node $1 hears nothing (or $3 of a hundred packets less) of node $2; $2 hears all of $1.
deaf() {
	on "$1" nft -f - <<-END
		add table inet weft
		add chain inet weft in { type filter hook input priority 0; }
		add rule inet weft in ip saddr 10.77.0.$2 ${3:+numgen random mod 100 < $3} drop
	END
}

# All hear all again.
heal() {
	local n
	for ((n = 1; n <= NODES; n++)); do
		on "$n" nft delete table inet weft 2>/dev/null || true
	done
}
