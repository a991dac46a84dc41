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
	weftd $D/c.cluster $D/m$1 -o node=$1,cache=64M 2>>$D/log$1
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

check "two mounts over RDMA see each other's changes" begin
check "what is changed on one is never stale on the other" elsewhere 400 300 7 m1 m2
check "what a kernel keeps is never behind" kept pages 3 m1 m2
check "locks keep nodes apart" locks
check "appends of two nodes are not torn" appends
check "a node that is killed comes back with what it had synced" crash
check "unmounted, and fsck of all stores finds nothing" end
for n in 1 2; do sed "s/^/# node $n: /" log$n; done | tail -n 30 >>"$OUT"
true
