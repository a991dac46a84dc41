# SPDX-License-Identifier: Apache-2.0
# In a guest of the kind nfs: mounts the export of node 1, and builds a part of weft there, with the host's
# compiler (the host's root, which cannot be written, is the 9p folder "root"). What it says is in said; the
# target is in target. Run by tests/mount/nfs.bats.
exec >/mnt/said 2>&1
set -ex
target=build/lib/libengine-common.a
root=/tmp/root
mkdir $root
mount -t 9p -o trans=virtio,version=9p2000.L,msize=262144,ro,cache=loose root $root
mount -t tmpfs tmpfs $root/tmp
mount -t devtmpfs dev $root/dev
mount -t proc proc $root/proc
mkdir $root/tmp/nfs
chroot $root mount -i -t nfs4 -o vers=4.2,addr=10.77.0.1,clientaddr=10.0.2.15 10.77.0.1:/weft /tmp/nfs
cat $root/proc/mounts
in_weft() { chroot $root /usr/bin/env PATH=/usr/bin:/bin make -C /tmp/nfs/weft "$@"; }

in_weft -j2 $target
in_weft -q $target # by the times that the server says, nothing is left to do
echo "/* changed */" >>$root/tmp/nfs/weft/engine/common/base.h
if in_weft -q $target; then exit 1; fi
in_weft -j2 $target
in_weft -q $target
umount $root/tmp/nfs
echo $target >/mnt/target
