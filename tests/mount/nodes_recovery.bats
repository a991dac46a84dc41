#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# What it takes until all go on when a node is killed and comes back, with a cache full of pages
# between them. WEFT_RECOVERY_MIB=900 is a cache of 1 GiB: a few seconds, most of them for the
# pages to get there first.

load common

setup() { MIB=${WEFT_RECOVERY_MIB:-96}; setup_nodes 3 $((2 * MIB + 256))M; }
teardown() { teardown_nodes; }

# Node $1's status, by a path of keys.
status_of() {
	weft status "${M[$1]}" --json | python3 -c 'import functools, json, sys
print(functools.reduce(lambda o, k: o[int(k) if isinstance(o, list) else k], sys.argv[1:], json.load(sys.stdin)))' "${@:2}"
}

# Messages, and calls of the system that carried them, from node $1 to node $2.
sent_to() {
	echo "$(status_of "$1" cluster nodes $(($2 - 1)) traffic messages_out) \
$(status_of "$1" cluster nodes $(($2 - 1)) traffic calls_out)"
}

all_went_on() { [ "$(status_of "$1" cluster coherence change ended)" = True ]; }
is_away() { [ "$(status_of "$1" cluster nodes $(($2 - 1)) up)" = False ]; }

# In the foreground, so that what they say is in $DIR/logN; waits for none of them.
run_nodes() {
	local n
	for n in "$@"; do
		nsenter --net="/run/netns/$NET-$n" weftd "$FILE" "${M[n]}" -f \
			-o "cache=$((MIB + MIB / 8 + 16))M,norestart" \
			2>>"$DIR/log$n" 3>&- &
		echo $! >>"$DIR/pids"
	done
	for n in "$@"; do
		wait_until 120 mountpoint -q "${M[n]}"
	done
}

kill_node() {
	kill -9 "$(node_pid "$1")"
	umount -l "${M[$1]}"
}

@test "a node whose pages another has cached is killed, and one that has them: each page is reported once" {
	local pages=$((MIB * 256)) before after
	run_nodes 1 2 3
	dd if=/dev/urandom of="${M[1]}/big" bs=1M count="$MIB" conv=fsync status=none
	timeout 300 dd if="${M[2]}/big" of=/dev/null bs=1M status=none
	[ "$(status_of 2 cluster coherence pages)" -ge "$pages" ]

	# the home is killed: the other one tells it what it has, many pages in a call
	read -r -a before < <(sent_to 2 1)
	kill_node 1
	wait_until 60 is_away 2 1
	run_nodes 1
	wait_until 60 all_went_on 1
	wait_until 60 all_went_on 2
	read -r -a after < <(sent_to 2 1)
	grep 'service resumed' "$DIR"/log*
	grep 'recovered from its log' "$DIR/log1"
	[ "$(status_of 1 cluster coherence change entries_rebuilt)" -ge "$pages" ]
	[ "$(status_of 2 cluster coherence change pages_reported)" -ge "$pages" ]
	[ "$(status_of 2 cluster coherence change pages_reported)" -lt $((pages + 1000)) ]
	[ "$(status_of 1 recovery pages)" -gt 0 ]
	# for the change of the epoch that each of the returned node's two links makes, at most
	echo "messages $((after[0] - before[0])), calls $((after[1] - before[1]))"
	[ $((after[0] - before[0])) -lt $((2 * pages + 2000)) ]
	[ $((after[1] - before[1])) -lt $(((after[0] - before[0]) / 4)) ]
	weft status "${M[1]}" | grep -E 'changed .* service resumed after'
	weft status "${M[1]}" | grep -E 'recovery .* of log'
	cmp "${M[1]}/big" "${M[3]}/big"

	# the one that had them is killed: it has nothing any more to report
	timeout 300 dd if="${M[2]}/big" of=/dev/null bs=1M status=none
	kill_node 2
	wait_until 60 is_away 1 2
	run_nodes 2
	wait_until 60 all_went_on 1
	[ "$(status_of 2 cluster coherence change pages_reported)" -lt 1000 ]
	echo x >>"${M[2]}/big"
	[ "$(tail -c 2 "${M[1]}/big")" = "$(tail -c 2 "${M[3]}/big")" ]
	umount_nodes 1 2 3
}
