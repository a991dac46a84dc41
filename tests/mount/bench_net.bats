#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# weft bench net over tcp and shm (over verbs: tests/rdma): between processes and between hosts, and
# what it says of each mistake. No time is looked at, only that there is one.

load common

setup() {
	need python3
	setup_nodes 2 96M
}

teardown() {
	[ -z "${SERVER:-}" ] || kill "$SERVER" 2>/dev/null || true
	[ -z "${CLIENT:-}" ] || kill -9 "$CLIENT" 2>/dev/null || true
	teardown_nodes
}

# What it printed as JSON is whole, and what was counted is possible.
complete() { # TRANSPORT
	python3 - "$1" "$output" <<-'END'
		import json, sys
		o = json.loads(sys.argv[2])
		assert o["transport"] == sys.argv[1], o["transport"]
		names = [m["name"] for m in o["measures"]]
		assert names == ["message", "fetch", "read", "cas", "write_pages", "write_large"], names
		for m in o["measures"]:
		    assert m["per_second"] > 0 and m["count"] > 0, m
		    if "bytes_per_second" in m:
		        page = 4096 if m["name"] == "write_pages" else 1 << 20
		        assert abs(m["bytes_per_second"] / m["per_second"] / page - 1) < 1e-6, m
		    else:
		        assert 0 < m["p50_ns"] <= m["p99_ns"], m
		    # a batch of 32 pages needs no call for each
		    if m["name"] == "write_pages":
		        assert m["client"]["calls_out"] < 1, m
		    # nobody asks a card for anything
		    assert m["client"]["requests"] == m["server"]["requests"] == 0, m
		if sys.argv[1] == "tcp":
		    for m in o["measures"]:
		        assert m["client"]["calls_out"] > 0 and m["server"]["calls_in"] > 0, m
	END
}

# Serves as node 2, from its network; the rest are options. Its words are in $DIR/server.
serve() {
	rm -f "$DIR/server" # what an earlier one has said
	nsenter --net="/run/netns/$NET-2" weft bench net "$@" >"$DIR/server" 2>&1 3>&- &
	SERVER=$!
	wait_until 60 grep -q listening "$DIR/server"
}

refused() { # STATUS TEXT COMMAND...
	local want=$1 text=$2
	shift 2
	run "$@"
	echo "$output"
	[ "$status" -eq "$want" ]
	[[ $output == *"$text"* ]]
}

@test "two processes of one machine, over tcp and shm, and nothing is left of them" {
	run weft bench net -n 50 -w 60 --json
	echo "$output"
	[ "$status" -eq 0 ]
	complete tcp
	run weft bench net -n 50 -t shm --json
	echo "$output"
	[ "$status" -eq 0 ]
	complete shm
	path=$(sed -n 's/^  "address": "\(.*\)",/\1/p' <<<"$output")
	[ "${path##*/}" = socket ]
	[ ! -e "${path%/*}" ]
	run weft bench net -n 50
	[ "$status" -eq 0 ]
	[[ $output == *"median us"*"message of 64 bytes"*"MiB/s"*"at the other end"* ]]
}

@test "two hosts, one client after the other, with TLS where the file says so" {
	serve -c "$FILE" --listen 10.77.0.2
	for i in 1 2; do
		run on 1 weft bench net -c "$FILE" 10.77.0.2 -n 50 -w 60 --json
		echo "$output"
		[ "$status" -eq 0 ]
		complete tcp
	done
	kill "$SERVER"
	wait "$SERVER" || true # until then it has the port
	sed -i 's/^key = .*/&\ntls = yes/' "$FILE"
	serve -c "$FILE" --listen --once
	run on 1 weft bench net -c "$FILE" 10.77.0.2:9337 -n 50 -w 60 --json
	echo "$output"
	[ "$status" -eq 0 ]
	complete tcp
	[[ $output == *'"tls": true'* ]]
	wait_until 60 gone "$SERVER"
}

@test "over shm at a path" {
	serve -c "$FILE" -t shm --listen "$DIR/shm/socket" --once
	run weft bench net -c "$FILE" -t shm "$DIR/shm/socket" -n 50 -w 60 --json
	echo "$output"
	[ "$status" -eq 0 ]
	complete shm
	wait_until 60 gone "$SERVER"
}

@test "who comes without the key, or with another transport, is refused, and the next is served" {
	serve -c "$FILE" --listen
	mkdir "$DIR/other"
	new_cluster "$DIR/other"
	refused 2 "has another key" on 1 weft bench net -c "$DIR/other/c.cluster" 10.77.0.2 -n 50 -w 60
	sed 's/^key = .*/key = c.key\ntls = yes/' "$FILE" >"$DIR/tls.cluster"
	refused 2 "another transport, or TLS" on 1 weft bench net -c "$DIR/tls.cluster" 10.77.0.2 -n 50 -w 60
	run on 1 weft bench net -c "$FILE" 10.77.0.2 -n 50 -w 60 --json
	[ "$status" -eq 0 ]
	complete tcp
	grep -q "refused" "$DIR/server"
}

# One that goes on until it is stopped. It is served when more has come than who it is.
start_client() {
	nsenter --net="/run/netns/$NET-1" weft bench net -c "$FILE" 10.77.0.2 -n 10000000 >"$DIR/said" 2>&1 3>&- &
	CLIENT=$!
	wait_until 60 bash -c "ip netns exec $NET-2 ss -Htni state established sport = :9337 | grep -qE 'bytes_received:[0-9]{5}'"
}

@test "one client at a time; one that dies leaves the server to the next; a server that dies ends it" {
	serve -c "$FILE" --listen
	start_client
	refused 2 "serves another client" on 1 weft bench net -c "$FILE" 10.77.0.2 -n 50 -w 1
	kill -0 "$CLIENT" # which was not disturbed
	kill -9 "$CLIENT"
	run on 1 weft bench net -c "$FILE" 10.77.0.2 -n 50 -w 60 --json
	echo "$output"
	[ "$status" -eq 0 ]
	complete tcp
	start_client
	kill -9 "$SERVER"
	code=0
	wait "$CLIENT" || code=$?
	cat "$DIR/said"
	[ "$code" -eq 2 ]
	CLIENT=
}

@test "what is not there, or is something else, is said" {
	refused 2 "no program listens at 10.77.0.2:9337; start" on 1 weft bench net -c "$FILE" 10.77.0.2 -w 0
	refused 2 "no-such-host.invalid" on 1 weft bench net -c "$FILE" no-such-host.invalid -w 0
	refused 2 "cannot read $DIR/none" weft bench net -c "$DIR/none" 10.77.0.2
	refused 2 "cannot listen at" on 2 weft bench net -c "$FILE" --listen 10.77.0.9
	refused 2 "/none/socket" weft bench net -c "$FILE" -t shm "$DIR/none/socket" -w 0
	chmod 644 "$DIR/c.key"
	refused 2 "may be read by others" weft bench net -c "$FILE" 10.77.0.2
	chmod 600 "$DIR/c.key"
	if [ -z "$(ls /sys/class/infiniband 2>/dev/null)" ]; then
		refused 2 "rdma_ucm" weft bench net -c "$FILE" -t verbs --listen 10.77.0.2
	fi
	mount_nodes
	refused 2 "another program than \`weft bench net --listen\` listens at 10.77.0.2:9338" on 1 weft bench net -c "$FILE" 10.77.0.2:9338 -w 60
	umount_nodes 1 2
}

@test "what is written wrong is said, with 1" {
	refused 1 "must be tcp, verbs or shm" weft bench net -t ib
	refused 1 "must be 10 to" weft bench net -n 9
	refused 1 "must be 10 to" weft bench net -n many
	refused 1 "--wait" weft bench net -w -1
	refused 1 "-c FILE is missing" weft bench net --listen
	refused 1 "-c FILE is missing" weft bench net 10.77.0.2
	refused 1 "is no host" weft bench net -c "$FILE" 10.77.0.2:0
	refused 1 "is no host" weft bench net -c "$FILE" 10.77.0.2:port
	refused 1 "is no host" weft bench net -c "$FILE" ::1
	refused 1 "is no host" weft bench net -c "$FILE" "[::1"
	refused 1 "is no host" weft bench net -c "$FILE" "[]:9337"
	refused 1 "path of a socket" weft bench net -c "$FILE" -t shm beta
	refused 1 "path of a socket" weft bench net -c "$FILE" -t shm --listen
	refused 1 "name the HOST" weft bench net -t verbs
	refused 1 "one word too many" weft bench net a b
	refused 1 "nonsense" weft bench net --nonsense
	run weft bench net --help
	[ "$status" -eq 0 ]
	[[ $output == Usage:* ]]
}
