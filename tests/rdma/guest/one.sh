# SPDX-License-Identifier: Apache-2.0
# In one guest, both ends on its Soft-RoCE device: what every transport must do, several engines, and
# two mounts of one volume.
. /mnt/common.sh
export WEFT_TEST_SCALE=20 CMOCKA_MESSAGE_OUTPUT=stdout WEFT_TMP=/tmp
suite verbs_test
suite cache_nodes_test
suite volume_nodes_test

D=/tmp/d
mkdir -p $D/m1 $D/m2
cd $D

mount_node() {
	weftd $D/c.cluster $D/m$1 -o node=$1,cache=64M,norestart 2>>$D/log$1
}

begin() {
	weft cluster new -d $D c $WEFT_RDMA_ADDRESS:9401:$D/1.weft $WEFT_RDMA_ADDRESS:9402:$D/2.weft
	sed -i 's/^key .*/&\ntransport = verbs/' c.cluster
	cat c.cluster
	for n in 1 2; do mkfs.weft -c c.cluster --node $n --size 96M; done
	mount_node 1 &
	mount_node 2
	wait
	echo one >m1/f
	[ "$(cat m2/f)" = one ]
	echo two >m2/f
	[ "$(cat m1/f)" = two ]
	weft status m1 --json | grep -q '"transport": *"verbs"'
}

# has FILE LINE...: each is in it
has() {
	in=$1
	cat $in
	shift
	for line in "$@"; do grep -qF "$line" $in; done
}

looked_at() {
	weft net check >said
	has said "ok    rdma.port      rxe0 port 1 is active, RoCE" "ok    rdma.windows" "0 failed"
	weft net check $WEFT_RDMA_ADDRESS -t verbs >said
	has said "ok    rdma.address   rxe0 port 1 leads there" "RoCE v2" "a page travels in one packet" \
		"ok    rdma.atomics" "a queue pair of 512 and 1040 can be had, 64 bytes inline" \
		"ok    rdma.connect   $WEFT_RDMA_ADDRESS answers by RDMA" "0 failed"
}

found_wrong() {
	weft net check 10.77.0.99 -t verbs >said && return 1
	has said "ok    rdma.address" "fail  rdma.connect   10.77.0.99 does not answer by RDMA" "UDP port 4791"
	ip addr add 10.78.0.1/24 dev lo
	weft net check 10.78.0.1 -t verbs >said && return 1
	has said "fail  rdma.address   no RDMA device of this machine leads to 10.78.0.1" "rdma link show"
	weft net check 127.0.0.1 -t verbs >said && return 1
	has said "fail  rdma.address   no RDMA device has the address 127.0.0.1"
	ip addr del 10.78.0.1/24 dev lo
	ip link set dummy0 mtu 1500
	weft net check $WEFT_RDMA_ADDRESS >said
	ip link set dummy0 mtu 4500
	has said "warn  rdma.mtu       a page travels in 4 packets of 1024 bytes"
}

mounted_nodes_looked_at() {
	weft net check c.cluster -o node=1,cache=64M >said
	has said "ok    rdma.address   rxe0 port 1 has this address" \
		"ok    weft           a weftd of this volume answers, as node 1" \
		"ok    weft           a weftd of this volume answers, as node 2" "ok    rdma.connect" "0 failed"
	weft net check other.cluster -o node=1 >said && return 1
	has said "fail  weft           a weftd of another volume answers"
}

# Beside perftest; the key of another cluster gets nothing.
measured() {
	weft bench net -c c.cluster --listen 2>served &
	server=$!
	weft bench net -c other.cluster $WEFT_RDMA_ADDRESS -w 60 2>said && return 1
	has said "has another key"
	weft bench net -c c.cluster $WEFT_RDMA_ADDRESS -n 100 -w 60 >said
	kill $server
	has said "verbs, with $WEFT_RDMA_ADDRESS:9337"
	measured_right said 1
}

locked() {
	i=0
	while [ $i -lt 25 ]; do
		flock m$1/lock sh -c "v=\$(cat m$1/count); echo \$((v + 1)) >m$1/count"
		i=$((i + 1))
	done
}

locks() {
	echo 0 >m1/count
	locked 1 &
	locked 2
	wait
	cat m1/count
	[ "$(cat m1/count)" = 50 ] && [ "$(cat m2/count)" = 50 ]
}

appends() {
	for n in 1 2; do
		(i=0; while [ $i -lt 100 ]; do
			echo "$n $i a record of some length" >>m$n/appended
			i=$((i + 1))
		done) &
	done
	wait
	[ "$(wc -l <m1/appended)" = 200 ]
	[ "$(sort -u m2/appended | grep -c '^[12] [0-9]* a record of some length$')" = 200 ]
}

pid_of() { weft status m$1 --json | sed -n 's/.*"pid": *\([0-9]*\).*/\1/p' | head -n 1; }

# Node 2 is killed while it writes and syncs; what it had synced is there when it is back.
crash() {
	pid=$(pid_of 2)
	[ -n "$pid" ]
	mkdir m2/mine
	(i=0; while echo $i >m2/mine/$i && sync m2/mine/$i && echo $i >$D/synced; do
		i=$((i + 1))
	done) 2>/dev/null &
	until_ok 60 test -s $D/synced
	sleep 2
	kill -9 $pid
	wait
	umount -l m2
	mount_node 2
	i=0 last=$(cat $D/synced)
	while [ $i -le $last ]; do
		[ "$(cat m1/mine/$i)" = $i ]
		i=$((i + 1))
	done
	echo after >m1/after
	[ "$(cat m2/after)" = after ]
}

end() {
	umount m1 &
	umount m2
	wait
	until_ok 60 sh -c "! ps | grep -q '[w]eftd'"
	fsck.weft -n -f -c c.cluster
}

weft cluster new -d $D other $WEFT_RDMA_ADDRESS:9401:$D/1.weft $WEFT_RDMA_ADDRESS:9402:$D/2.weft >/dev/null
sed -i 's/^key .*/&\ntransport = verbs/' other.cluster
check "weft net check tells device, port, GID, limits, and that the other end answers" looked_at
check "weft net check tells what is wrong, and what to do" found_wrong
check "two mounts over RDMA see each other's changes" begin
check "weft net check knows the nodes of a volume that is mounted" mounted_nodes_looked_at
check "weft bench net measures, counts what the card is asked for, and runs perftest beside" measured
check "what is changed on one is never stale on the other" elsewhere 400 7 m1 m2
check "what a kernel keeps is never behind" kept pages 3 m1 m2
check "locks keep nodes apart" locks
check "appends of two nodes are not torn" appends
check "a node that is killed comes back with what it had synced" crash
check "unmounted, and fsck of all stores finds nothing" end
for n in 1 2; do sed "s/^/# node $n: /" log$n; done | tail -n 30 >>"$OUT"
true
