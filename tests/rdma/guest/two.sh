# SPDX-License-Identifier: Apache-2.0
# In each of two guests, a node of one volume; a wire between them.
. /mnt/common.sh
D=/tmp/d
mkdir -p $D/m
cd $D
[ $WEFT_RDMA_ROLE = A ] && node=1 other=2 || node=2 other=1

# Both are at this point, which is told by files of the host.
meet() {
	touch /mnt/$1.$node
	until_ok 120 test -e /mnt/$1.$other
}

begin() {
	if [ $node = 1 ]; then
		weft cluster new -d /mnt c 10.77.0.1:9401:$D/1.weft 10.77.0.2:9401:$D/2.weft
		sed -i 's/^key .*/&\ntransport = verbs/' /mnt/c.cluster
	fi
	meet made
	cp /mnt/c.cluster /mnt/c.key $D/
	chmod 600 c.key
	mkfs.weft -c c.cluster --node $node --size 96M
	weftd c.cluster m -o node=$node,cache=64M
	weft status m --json | grep -q '"transport": *"verbs"'
}

# Each writes a number that the other reads before it writes the next.
turns() {
	i=1
	[ $node = 2 ] || echo 0 >m/from1
	while [ $i -le 30 ]; do
		if [ $node = 1 ]; then
			echo $i >m/from1
			until_ok 60 grep -qx $i m/from2
		else
			until_ok 60 grep -qx $i m/from1
			echo $i >m/from2
		fi
		i=$((i + 1))
	done
}

# A file of the other's, byte for byte, from its memory.
bulk() {
	dd if=/dev/urandom of=m/big$node bs=1M count=8 2>/dev/null
	md5sum <m/big$node >m/sum$node
	meet written
	md5sum <m/big$other | cmp - m/sum$other
}

reached() {
	weft net check c.cluster -o node=$node,cache=64M >said
	cat said
	grep -qF "ok    rdma.connect   10.77.0.$other answers by RDMA" said
	grep -qF "a weftd of this volume answers, as node $other" said
	meet checked
}

# Beside perftest. The other guest only listens.
measured() {
	if [ $node = 1 ]; then
		timeout 600 weft bench net -c c.cluster --listen 10.77.0.1 --once
	else
		weft bench net -c c.cluster 10.77.0.1 -n 100 -w 100 >said
		cat said
		measured_right said 0
	fi
}

end() {
	meet ending
	umount m
	until_ok 60 sh -c "! ps | grep -q '[w]eftd'"
	meet ended
	fsck.weft -n -f $node.weft
}

check "node $node mounts" begin
check "node $node takes turns with the other" turns
check "node $node reads what the other has written" bulk
check "node $node reaches the other, says weft net check" reached
check "node $node measures the wire with the other, and perftest beside" measured
check "node $node is unmounted, and fsck of its store finds nothing" end
true
