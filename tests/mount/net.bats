#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# weft net check, where there is no RDMA device (tests/rdma has those): what it says of this machine,
# of other hosts, of who answers there, and of each mistake.

load common

setup() {
	need python3 nft
	setup_nodes 2 96M
}

teardown() {
	[ -z "${LISTENER:-}" ] || kill "$LISTENER" 2>/dev/null || true
	teardown_nodes
}

no_device() { [ -z "$(ls /sys/class/infiniband 2>/dev/null)" ] || skip "this machine has an RDMA device"; }

# Runs it as node 1: exit status $1, and a line of its output that has $2.
checked() {
	local want=$1 text=$2
	shift 2
	run on 1 weft net check "$@"
	echo "$output"
	[ "$status" -eq "$want" ]
	[[ $output == *"$text"* ]]
}

# Who listens in node 2's network and answers with $1.
listen_with() {
	nsenter --net="/run/netns/$NET-2" python3 - "$1" 3>&- <<-'END' &
		import socket, sys
		s = socket.socket()
		s.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
		s.bind(("10.77.0.2", 9338))
		s.listen(8)
		while True:
		    c = s.accept()[0]
		    try:
		        c.sendall(sys.argv[1].encode())
		        c.recv(4096)
		    except OSError:  # it has gone
		        pass
	END
	LISTENER=$! # itself: on would be a shell that it outlives
	wait_until 20 on 1 bash -c 'exec 4<>/dev/tcp/10.77.0.2/9338' 2>/dev/null
}

@test "a machine without RDMA is told so, and that tcp needs none" {
	no_device
	checked 0 "note  rdma.device    this machine has no RDMA device"
	[[ $output == *"0 failed, 0 warnings"* ]]
	checked 2 "fail  rdma.device    this machine has no RDMA device" -t verbs
	[[ $output == *"transport = tcp"* ]]
	checked 0 "memory.huge" -t tcp
	[[ $output != *rdma.* ]]
}

@test "a limit of locked memory below the cache is said where RDMA is wanted" {
	run on 1 setpriv --bounding-set -ipc_lock --inh-caps -ipc_lock \
		bash -c 'ulimit -l 64; weft net check -t verbs -o cache=64M'
	echo "$output"
	[ "$status" -eq 2 ]
	[[ $output == *"fail  memory.locked  64 KiB may be locked only, less than the cache of 64 MiB"* ]]
	[[ $output == *"ulimit -l unlimited"* ]]
}

@test "what is written wrong is said, with 1" {
	checked 1 "must be tcp or verbs" -t shm
	checked 1 "nonsense" --nonsense
	checked 1 "is no host" 10.77.0.2:0
	checked 1 "is no host" 10.77.0.2:65536
	checked 1 "is no host" "[::1"
	checked 1 "unknown" -o nonsense=1 10.77.0.2
	checked 1 "option node=x" -o node=x "$FILE"
	checked 1 "one word too many" 10.77.0.2 10.77.0.1
	checked 2 "cannot read $DIR/none" "$DIR/none"
	checked 2 "names no node 7" "$FILE" -o node=7
	run weft net
	[ "$status" -eq 1 ]
	run weft net check --help
	[ "$status" -eq 0 ]
	[[ $output == Usage:* ]]
}

@test "hosts that are not there, and ports where nobody listens" {
	checked 2 "fail  name           \"no-such-host.invalid\" does not resolve" no-such-host.invalid
	checked 2 "fail  tcp.route      no way to 198.51.100.7" 198.51.100.7
	checked 2 "fail  tcp.connect    port 9338: " 10.77.0.77
	checked 0 "warn  tcp.connect    the host is there, but no program listens at port 9338" 10.77.0.2
	[[ $output == *"10.77.0.2 goes from 10.77.0.1 on eth0, MTU 1500"* ]]
	checked 2 "no program listens at port 77" --strict 10.77.0.2:77
	deaf 1 2
	checked 2 "fail  tcp.connect    port 9338: Connection timed out" 10.77.0.2
}

@test "every check is in the JSON, with what to do" {
	run on 1 weft net check --json no-such-host.invalid -t verbs
	[ "$status" -eq 2 ]
	python3 - "$output" <<-'END'
		import json, sys
		o = json.loads(sys.argv[1])
		checks = {(c["about"], c["name"]): c for c in o["checks"]}
		assert checks["no-such-host.invalid", "name"]["result"] == "fail"
		assert "/etc/hosts" in checks["no-such-host.invalid", "name"]["remedy"]
		assert checks["this machine", "memory.cache"]["text"]
		assert o["failures"] == sum(c["result"] == "fail" for c in o["checks"]) > 0
		assert o["warnings"] == sum(c["result"] == "warn" for c in o["checks"])
		assert all(c["remedy"] for c in o["checks"] if c["result"] in ("warn", "fail"))
	END
}

@test "who answers: a node of the volume, of another one, another version of the file, no weftd" {
	checked 0 "ok    key" "$FILE"
	[[ $output == *"node 1, 10.77.0.1:9338, which this is"* ]]
	[[ $output == *"ok    tcp.listen     port 9338 is free"* ]]
	[[ $output == *"no program listens at port 9338"* ]]
	mount_nodes
	checked 0 "a weftd of this volume answers, as node 2" "$FILE"
	[[ $output == *"port 9338 is taken"* ]]
	[[ $output == *"a weftd of this volume answers, as node 1"* ]]
	checked 0 "weft answers; name the cluster file" 10.77.0.2
	mkdir "$DIR/other"
	new_cluster "$DIR/other"
	checked 2 "a weftd of another volume answers" "$DIR/other/c.cluster"
	sed 's/^key = .*/key = c.key\ntls = yes/' "$FILE" >"$DIR/tls.cluster"
	checked 2 "uses another transport, or TLS on one end only" "$DIR/tls.cluster"
	sed 's/10\.77\.0\.2/10.77.0.3/; s/10\.77\.0\.1/10.77.0.2/' "$FILE" >"$DIR/swapped.cluster"
	checked 2 "another node than 1 answers" "$DIR/swapped.cluster" -o node=2
	# and the volume is none the worse for it
	echo one >"${M[1]}/f"
	[ "$(cat "${M[2]}/f")" = one ]
	umount_nodes 1 2
	listen_with "SSH-2.0-other"$'\n'"and more than a greeting has"
	checked 2 "the program that answers is not weftd" "$FILE"
	[[ $output == *"ss -tlnp"* ]]
	checked 0 "the program that answers is not weftd" 10.77.0.2
}

@test "with tls a key that differs is noticed; without a key the rest is looked at" {
	sed -i 's/^key = .*/key = c.key\ntls = yes/' "$FILE"
	mount_nodes
	checked 0 "a weftd of this volume answers, as node 2" "$FILE"
	mkdir "$DIR/other"
	cp "$FILE" "$DIR/other/"
	head -c 32 /dev/urandom | od -An -tx1 | tr -d ' \n' >"$DIR/other/c.key"
	echo >>"$DIR/other/c.key"
	chmod 600 "$DIR/other/c.key"
	checked 2 "its key is not the one that is here" "$DIR/other/c.cluster"
	rm "$DIR/other/c.key"
	checked 2 "cannot read $DIR/other/c.key" "$DIR/other/c.cluster"
	[[ $output == *"ok    tcp.connect"* ]]
	umount_nodes 1 2
}
