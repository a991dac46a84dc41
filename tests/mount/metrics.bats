#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Metrics: read by Prometheus's own parser, from `weft status --prometheus` and over HTTP.

load common

setup() {
	need curl
	/usr/bin/python3 -c 'import prometheus_client.parser' || skip "needs python3-prometheus-client"
}
teardown() {
	[ -z "${NET:-}" ] || teardown_nodes
	[ -n "${NET:-}" ] || teardown_store
}

check() { /usr/bin/python3 "$ROOT/tests/mount/metrics_check.py" "$@"; }

@test "metrics of a mount are what Prometheus reads, from weft status and over HTTP" {
	local url port
	setup_store
	port=$(free_port)
	mount_store -o "metrics=127.0.0.1:$port"
	url=http://127.0.0.1:$port/metrics
	for n in 1 2 3; do echo x >"$MNT/$n"; done
	sync "$MNT/1"
	weft status "$MNT" --prometheus |
		check 'weft_request_duration_seconds_count{request=mknod}>=2' 'weft_log_flushes_total>=1' \
			'weft_info{version=0.1.0}>=1' 'weft_cache_bytes>=67108864'
	curl -sS --max-time 10 -D "$DIR/head" "$url" >"$DIR/text"
	grep -qi '^content-type: text/plain; version=0.0.4' "$DIR/head"
	check 'weft_request_duration_seconds_count{request=mknod}>=2' 'weft_tree_commits_total>=3' <"$DIR/text"
	# what is asked for again has not fewer
	curl -sS --max-time 10 "$url" | check "weft_session_requests_total>=$(
		sed -n 's/^weft_session_requests_total{.*} //p' "$DIR/text")"
	# nothing else is there, and nothing else may be done
	[ "$(curl -sS --max-time 10 -o "$DIR/out" -w '%{http_code}' "${url%metrics}status")" = 404 ]
	[ "$(curl -sS --max-time 10 -o "$DIR/out" -w '%{http_code}' -d x=1 "$url")" = 405 ]
	[ "$(curl -sS --max-time 10 -o "$DIR/out" -w '%{http_code}' -I "$url")" = 200 ]
	weft status "$MNT" | grep -q "metrics=127.0.0.1:$port"
	umount_store
	! curl -sS --max-time 5 "$url" 2>/dev/null
}

@test "clients that send garbage, or nothing, or never read, keep nobody from the metrics, nor the end" {
	local port
	setup_store
	port=$(free_port)
	mount_store -o "metrics=127.0.0.1:$port"
	python3 - "$port" "$DIR/connected" <<-'END' 3>&- &
		import os, socket, sys, time
		idle = []
		for i in range(40):
		    s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
		    s.settimeout(0.2)
		    try:
		        s.sendall([b"", b"GET /metr", os.urandom(4096), b"GET /metrics HTTP/1.1\r\nHost: x\r\n\r\n" * 50,
		                   b"POST /metrics HTTP/1.1\r\nHost: x\r\nContent-Length: 1000000000\r\n\r\n" + bytes(65536),
		                   b"GET /" + b"a" * 100000][i % 6])
		    except OSError:
		        pass
		    idle.append(s)
		open(sys.argv[2], "w").close()
		time.sleep(60)
	END
	local clients=$!
	wait_until 60 [ -e "$DIR/connected" ]
	# within the time that a silent one is kept
	wait_until 30 bash -c "curl -sS --max-time 3 http://127.0.0.1:$port/metrics 2>/dev/null |
		/usr/bin/python3 '$ROOT/tests/mount/metrics_check.py' 'weft_uptime_seconds>=0'"
	[ "$(ls "/proc/$DAEMON/fd" | wc -l)" -lt 100 ]
	umount_store
	kill "$clients" || true
	wait "$clients" || true
}

@test "clients that send a byte now and then, more than there are places for, keep none of their address out" {
	local port
	setup_store
	port=$(free_port)
	mount_store -o "metrics=127.0.0.1:$port"
	python3 - "$port" "$DIR/connected" <<-'END' 3>&- &
		import select, socket, sys, time
		def connect():
		    s = socket.create_connection(("127.0.0.1", int(sys.argv[1])))
		    s.sendall(b"GET /metrics HTTP/1.1\r\n")
		    return s
		slow = [connect() for i in range(40)]
		open(sys.argv[2], "w").close()
		while True: # one that was cut comes again
		    time.sleep(0.5)
		    for i, s in enumerate(slow):
		        try:
		            s.sendall(b"x")
		        except OSError:
		            slow[i] = connect()
	END
	local clients=$!
	wait_until 60 [ -e "$DIR/connected" ]
	# longer than a silent one is kept, and never refused
	for n in {1..14}; do
		curl -sS --max-time 5 "http://127.0.0.1:$port/metrics" | check 'weft_uptime_seconds>=0'
		sleep 0.5
	done
	[ "$(ls "/proc/$DAEMON/fd" | wc -l)" -lt 100 ]
	kill "$clients"
	wait "$clients" || true
	umount_store
}

@test "an address for metrics that is none, is not ours, or is taken, is an error; nothing stays mounted" {
	local port
	setup_store
	for address in 127.0.0.1 127.0.0.1:0 127.0.0.1:70000 localhost:9339 ::1:9339 '[::1:9339' "$(printf '1%.0s' {1..300}):1"; do
		run weftd "$STORE" "$MNT" -o "metrics=$address"
		[ "$status" -eq 1 ]
		[[ $output == *"must be an IP address and a port"* ]]
	done
	run weftd "$STORE" "$MNT" -o metrics=203.0.113.7:9339
	[ "$status" -eq 32 ]
	[[ $output == *"cannot listen there"* ]]
	port=$(free_port)
	python3 -c 'import socket, sys, time
s = socket.create_server(("127.0.0.1", int(sys.argv[1])))
time.sleep(60)' "$port" 3>&- &
	local taken=$!
	wait_until 10 bash -c "true 2>/dev/null </dev/tcp/127.0.0.1/$port"
	run weftd "$STORE" "$MNT" -o "metrics=127.0.0.1:$port"
	kill "$taken"
	wait "$taken" || true
	[ "$status" -eq 32 ]
	[[ $output == *"Address already in use"* ]]
	! mountpoint -q "$MNT"
	mount_store
	umount_store
}

@test "metrics of several nodes, and of all that is mounted here, are one text" {
	setup_nodes 2
	mount_nodes -o metrics=127.0.0.1:9339
	echo x >"${M[1]}/f"
	cat "${M[2]}/f" >/dev/null
	on 2 curl -sS --max-time 10 http://127.0.0.1:9339/metrics |
		check 'weft_peer_up{peer=1,node=2}>=1' 'weft_peer_messages_sent_total{peer=1}>=1' \
			'weft_coherence_messages_sent_total{type=REQUEST,node=2}>=1' 'weft_cluster_epoch>=1' \
			'weft_cluster_shard_served>=1' 'weft_cache_kernel_inodes>=1' 'weft_cached_pages{home=1,node=2}>=1' 'weft_cached_exclusive_pages{home=2,node=2}>=1'
	# whatever else is mounted here
	weft status --prometheus |
		check 'weft_peer_up{peer=1,node=2}>=1' 'weft_peer_up{peer=2,node=1}>=1'
	umount_nodes 1 2
}
