#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Three nodes with two networks between them, and an address of each in both: a network that dies costs a
# while, and nothing else; one address that works is enough for a mount.

load common
load nodes_loads

setup() {
	local n
	need nft python3
	setup_nodes 3 "${STORE_BYTES:-256M}"
	ip -n "$NET" link add br1 type bridge
	ip -n "$NET" link set br1 up
	for n in 1 2 3; do
		ip -n "$NET-$n" link add eth1 type veth peer name "second$n" netns "$NET"
		ip -n "$NET" link set "second$n" master br1 up
		ip -n "$NET-$n" addr add "10.78.0.$n/24" dev eth1
		ip -n "$NET-$n" link set eth1 up
	done
	sed -i -E 's/^address = 10\.77\.0\.([0-9])$/address = 10.77.0.\1, 10.78.0.\1/' "$FILE"
	[ "$(grep -c 10.78 "$FILE")" -eq 3 ]
	LOADS=()
}

teardown() {
	end_loads
	teardown_nodes
}

# All of node $1's links that are up, as "PEER ADDRESS DIALED", one a line.
links() {
	weft status "${M[$1]}" --json | python3 -c '
import json, sys
for n in json.load(sys.stdin)["cluster"]["nodes"]:
    if n.get("up"):
        print(n["id"], n["by"], n["dialed"])'
}

# Every link goes by its listener's address in that network.
all_by() { # 10.77.0
	local n
	for n in 1 2 3; do
		case $n in
		1) printf '%s\n' "2 $1.1:9338 False" "3 $1.1:9338 False" ;;
		2) printf '%s\n' "1 $1.1:9338 True" "3 $1.2:9338 False" ;;
		3) printf '%s\n' "1 $1.1:9338 True" "2 $1.2:9338 True" ;;
		esac >"$DIR/expected"
		links "$n" | cmp -s - "$DIR/expected" || return 1
	done
}

is_mounted() { mounted "${M[$1]}" fuse.weft; }

@test "a network dies under load, and later the other: all go on each time, nothing is lost" {
	mount_nodes
	all_by 10.77.0
	start_loads
	all_grow
	ip -n "$NET" link set br0 down
	wait_until 60 all_by 10.78.0
	all_grow
	weft status "${M[3]}" | grep "up for .* by 10.78.0.1:9338; "
	weft status "${M[1]}" | grep "up for .* by 10.78.0.1:9338 here; "
	ip -n "$NET" link set br0 up
	all_grow
	all_by 10.78.0 # they stay where they are
	ip -n "$NET" link set br1 down
	wait_until 60 all_by 10.77.0
	all_grow
	ip -n "$NET" link set br1 up
	check_all
}

@test "one node's interface goes down, one's packets are dropped: both are reached by the other network" {
	mount_nodes
	start_loads
	all_grow
	ip -n "$NET-1" link set eth0 down
	wait_until 60 eval '[[ $(links 1) == "2 10.78.0.1:9338 False"*"3 10.78.0.1:9338 False" ]]'
	all_grow
	[[ $(links 2) == *"3 10.77.0.2:9338 False" ]]
	deaf 3 2
	wait_until 60 eval '[[ $(links 3) == *"2 10.78.0.2:9338 True" ]]'
	all_grow
	heal
	ip -n "$NET-1" link set eth0 up
	check_all
}

@test "a first address that nobody has: all mount by the second, and it is used when it is there" {
	local n
	# of node 1 nobody's, of node 2 a name that nothing has (RFC 6761)
	sed -i 's/10\.77\.0\.1,/10.77.0.101,/; s/10\.77\.0\.2,/weft.invalid,/' "$FILE"
	for n in 1 2 3; do start_node "$n"; done
	for n in 1 2 3; do wait_until 60 is_mounted "$n"; done
	grep -q "warning: node 1, address 10.77.0.101:9338: cannot listen at 10.77.0.101:9338: Cannot assign" "$DIR/log1"
	grep -q "warning: node 2: weft.invalid:9338 cannot be looked up: " "$DIR/log2"
	grep -q "warning: node 2: weft.invalid:9338 cannot be looked up: " "$DIR/log3"
	grep -q "warning: node 1 is reached at 10.78.0.1:9338, not at 10.77.0.101:9338: " "$DIR/log2"
	grep -q "warning: node 1 is reached at 10.78.0.1:9338, not at 10.77.0.101:9338: " "$DIR/log3"
	[ "$(links 2)" = "1 10.78.0.1:9338 True"$'\n'"3 10.77.0.3:9338 True" ] ||
		[ "$(links 2)" = "1 10.78.0.1:9338 True"$'\n'"3 10.78.0.2:9338 False" ]
	echo one >"${M[1]}/f"
	[ "$(cat "${M[3]}/f")" = one ]

	ip -n "$NET-1" addr add 10.77.0.101/24 dev eth0
	wait_until 30 grep -q "node 1 listens at its address 10.77.0.101:9338 now, too" "$DIR/log1"
	ip -n "$NET" link set br1 down
	wait_until 60 eval '[[ $(links 1) == "2 10.77.0.101:9338 False"* ]]'
	ip -n "$NET" link set br1 up
	wait_until 60 eval '[ $(links 3 | wc -l) = 2 ]'
	echo two >"${M[2]}/f"
	[ "$(cat "${M[1]}/f")" = two ]
	umount_nodes 1 2 3
}

@test "who has none of its addresses says so; who reaches no address names each" {
	local pid
	sed -i 's/10\.77\.0\.1, 10\.78\.0\.1/10.77.0.101, 10.78.0.101/' "$FILE"
	run on 1 timeout 240 weftd "$FILE" "${M[1]}" -o node=1
	[ "$status" -ne 0 ]
	[[ $output == *"$FILE:"*": node 1: cannot listen at 10.77.0.101:9338: Cannot assign requested address; cannot listen at 10.78.0.101:9338: Cannot assign requested address; an address of it must be one of this machine's"* ]]
	start_node 2
	wait_until 30 grep -q "waiting for node 1 (10.77.0.101:9338, 10.78.0.101:9338), node 3 (10.77.0.3:9338, 10.78.0.3:9338)" "$DIR/log2"
	kill "$STARTED"
	wait_until 30 gone "$STARTED"
	sed -i 's/10\.77\.0\.101, 10\.78\.0\.101/10.77.0.1, 10.78.0.1/' "$FILE"
	: >"$DIR/pids"
	mount_nodes
	pid=$(node_pid 1)
	kill -9 "$pid"
	umount -l "${M[1]}"
	wait_until 10 gone "$pid"
	wait_until 30 eval 'weft status "${M[3]}" | grep -q "cannot connect with node 1: 10.77.0.1:9338: Connection refused; 10.78.0.1:9338: Connection refused$"'
	mount_node 1
	umount_nodes 1 2 3
}

@test "weft cluster check and weft net check look at every address" {
	run on 2 weft cluster check "$FILE"
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"node 1 is at 10.77.0.1 port 9338, 10.78.0.1 port 9338: tried in this order"* ]]
	[[ $output != *"none of this machine's addresses"* ]]
	run on 2 weft net check "$FILE"
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"node 1, 10.77.0.1:9338, address 1 of 2"*"node 1, 10.78.0.1:9338, address 2 of 2"* ]]
	[[ $output == *"node 2, 10.78.0.2:9338, address 2 of 2, which this is"* ]]
	[[ $output == *"10.78.0.3 goes from 10.78.0.2 on eth1"* ]]

	ip -n "$NET-2" link set eth1 down
	ip -n "$NET-2" addr del 10.78.0.2/24 dev eth1
	sed -i 's/^address = 10\.77\.0\.1, /address = weft.invalid, /' "$FILE"
	run on 2 weft cluster check "$FILE"
	echo "$output"
	[ "$status" -eq 2 ]
	[[ $output == *"WRONG $FILE:"*"[node 1] address: \"weft.invalid\" does not resolve"* ]]
	[[ $output == *"node 1 is at 10.78.0.1 port 9338"* ]]
	[[ $output == *"this machine is node 2"* ]]
	[[ $output == *"10.78.0.2 is none of this machine's addresses: node 2 is not reached there"* ]]
	run on 2 weft net check "$FILE"
	[ "$status" -eq 2 ]
	[[ $output == *"fail  tcp.listen     cannot listen at 10.78.0.2"* ]]
	[[ $output == *"fail  tcp.route      no way to 10.78.0.3"* ]]
}
