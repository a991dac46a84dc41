#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# A volume exported by nfs-ganesha on one of two nodes: seen by a client in user space, and mounted by the
# kernel of a guest (tests/guest), which builds a part of weft there.

load common

teardown() {
	end_server
	teardown_nodes
}

# In node 1's network: exports its mount as /weft.
start_server() {
	mkdir "$DIR/recovery"
	cat >"$DIR/ganesha.conf" <<-END
		NFS_CORE_PARAM { Protocols = 4; Enable_NLM = false; Enable_RQUOTA = false; Plugins_Dir = $(dirname "$(dpkg -L nfs-ganesha-vfs | grep libfsalvfs.so)"); }
		NFSv4 { Only_Numeric_Owners = true; Graceless = true; RecoveryBackend = fs; RecoveryRoot = $DIR/recovery; }
		EXPORT {
			Export_Id = 1; Path = ${M[1]}; Pseudo = /weft; Protocols = 4;
			Access_Type = RW; Attr_Expiration_Time = 0; Squash = No_Root_Squash; SecType = sys;
			FSAL { Name = VFS; }
		}
	END
	nsenter --net="/run/netns/$NET-1" ganesha.nfsd -F -f "$DIR/ganesha.conf" -L "$DIR/ganesha.log" \
		-p "$DIR/ganesha.pid" >/dev/null 2>&1 3>&- &
	SERVER=$!
	wait_until 30 grep -qs "NFS SERVER INITIALIZED" "$DIR/ganesha.log" || { tail "$DIR/ganesha.log"; return 1; }
}

end_server() {
	[ -n "${SERVER:-}" ] || return 0
	kill "$SERVER" 2>/dev/null || true
	wait "$SERVER" || true
	SERVER=
}

# nfs PROGRAM [ARGUMENT]... PATH: one of libnfs' programs, in node 2's network.
nfs() {
	local program=$1
	shift
	on 2 timeout 30 "nfs-$program" "${@:1:$#-1}" "nfs://10.77.0.1/weft/${!#}?version=4"
}

@test "an NFS server on one node: files of all nodes, also when its kernel has forgotten them" {
	need ganesha.nfsd nfs-cat dpkg
	setup_nodes 2
	mount_nodes
	mkdir "${M[2]}/d"
	echo one >"${M[2]}/d/file"
	start_server
	nfs ls -R "" | grep -q ' d/file$'
	[ "$(nfs cat d/file)" = one ]
	# the server remembers the handle; node 1's kernel forgets the file with the directory's name
	mv "${M[2]}/d" "${M[2]}/e"
	[ ! -e "${M[1]}/d" ]
	mv "${M[2]}/e" "${M[2]}/d"
	[ "$(nfs cat d/file)" = one ]
	echo "two, which is longer" >"${M[2]}/d/file"
	head -c 3000 /dev/urandom >"$DIR/data"
	nfs cp "$DIR/data" d/data
	cmp "$DIR/data" "${M[2]}/d/data"
	nfs cat d/data | cmp - "$DIR/data"
	rm "${M[2]}/d/data"
	run nfs cat d/data
	[ "$status" -ne 0 ]
	end_server
	umount_nodes 1 2
}

@test "a build on an NFS mount; both nodes have what it made, and the same times" {
	need ganesha.nfsd qemu-system-x86_64 make gcc
	setup_nodes 2
	mount_nodes
	start_server
	mkdir -p "$DIR/share" "${M[2]}/weft"
	cp -r Makefile engine fs mkfs tools "${M[2]}/weft/"
	cp tests/guest/nfs.sh "$DIR/share/guest.sh"
	tests/guest/make "$DIR/initrd" nfs
	on 2 tests/guest/boot "$DIR/initrd" NFS 900 "$DIR/share" \
		-netdev user,id=n0 -device virtio-net-pci,netdev=n0,romfile= \
		-virtfs local,path=/,mount_tag=root,security_model=none,id=root,readonly=on,multidevs=remap \
		>"$DIR/console"
	cat "$DIR/share/said"
	[ "$(cat "$DIR/share/code.NFS")" = 0 ]
	for n in 1 2; do make -q -C "${M[n]}/weft" "$(cat "$DIR/share/target")"; done
	diff -r "${M[1]}/weft" "${M[2]}/weft"
	end_server
	umount_nodes 1 2
}
