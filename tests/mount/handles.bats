#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# File handles: a number and a generation are enough to find an inode, on each node. And an NFS
# server that finds files so.

load common

teardown() {
	if [ -n "${SERVER:-}" ]; then
		kill "$SERVER" 2>/dev/null || true
		wait "$SERVER" || true
	fi
	if [ -n "${NET:-}" ]; then teardown_nodes; else teardown_store; fi
}

handles() { python3 "$BATS_TEST_DIRNAME/handles.py" "$@"; }

@test "handles open after a remount, until their files are removed" {
	setup_store
	mount_store
	handles make "$MNT/made" "$DIR/handles"
	remount_store
	handles open "$MNT" "$DIR/handles"
	handles wrong "$MNT" "$DIR/handles"
	rm -r "$MNT/made"
	handles gone "$MNT" "$DIR/handles"
	handles make "$MNT/made" "$DIR/again" # numbers are not used again
	handles gone "$MNT" "$DIR/handles"
	umount_store
	check_store
}

@test "handles of one node open on another, moved and unlinked files too" {
	setup_nodes 2
	mount_nodes
	handles make "${M[1]}/made" "$DIR/handles"
	handles open "${M[2]}" "$DIR/handles"
	mv "${M[1]}/made/dir" "${M[1]}/dir"
	handles open "${M[2]}" "$DIR/handles"
	handles wrong "${M[2]}" "$DIR/handles"
	handles held "${M[1]}" "${M[2]}"
	rm -r "${M[1]}/made" "${M[1]}/dir"
	handles gone "${M[2]}" "$DIR/handles"
	umount_nodes 1 2
}

# In node 1's network: exports its mount as /weft.
start_server() {
	mkdir "$DIR/recovery"
	cat >"$DIR/ganesha.conf" <<-END
		NFS_CORE_PARAM { Protocols = 4; Enable_NLM = false; Enable_RQUOTA = false; Plugins_Dir = $(dirname "$(dpkg -L nfs-ganesha-vfs | grep libfsalvfs.so)"); }
		NFSv4 { Graceless = true; RecoveryBackend = fs; RecoveryRoot = $DIR/recovery; }
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
	kill "$SERVER"
	wait "$SERVER" || true
	SERVER=
	umount_nodes 1 2
}
