#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Cluster files: written, checked, formatted from, mounted; and what is said about each mistake.

load common

setup() {
	need
	DIR=$(mktemp -d "${WEFT_TMP:-/tmp}/weft-test.XXXXXX")
	MNT=$DIR/mnt
	STORE=$DIR/one.weft
	FILE=$DIR/c.cluster
	mkdir "$MNT"
}

teardown() { teardown_store; }

# A cluster of this machine alone, with its store.
make_cluster() {
	weft cluster new -d "$DIR" c "127.0.0.1:$STORE"
	mkfs.weft -c "$FILE" --size 64M
}

mount_cluster() { # [OPTION]: sets $DAEMON
	weft mount "$FILE" "$MNT" -o "cache=32M${1:+,$1}"
	DAEMON=$(weft status "$MNT" --json | sed -n 's/^  "pid": \([0-9]*\),*$/\1/p')
	[ -n "$DAEMON" ]
	echo "$DAEMON" >>"$DIR/pids"
}

# The exit status and the text; the store and the mount point stay as they are.
refused() { # STATUS TEXT COMMAND...
	local want=$1 text=$2 before after
	shift 2
	before=$(sha256sum <"$STORE")
	run "$@"
	echo "$output"
	[ "$status" -eq "$want" ]
	[[ $output == *"$text"* ]]
	after=$(sha256sum <"$STORE")
	[ "$before" = "$after" ]
	run mountpoint -q "$MNT"
	[ "$status" -ne 0 ]
}

@test "from nothing to a mount in three commands, and data stays" {
	weft cluster new -d "$DIR" c "127.0.0.1:$STORE"
	mkfs.weft -c "$FILE" --size 64M
	mount_cluster
	echo hello >"$MNT/f"
	[ "$(findmnt -no SOURCE "$MNT")" = "$FILE" ]
	weft umount "$FILE" # the file names the mount as well
	mount_cluster
	[ "$(cat "$MNT/f")" = hello ]
	weft umount "$MNT"
	run fsck.weft -f -n "$FILE"
	[ "$status" -eq 0 ]
}

@test "mount.weft takes a cluster file and node= from fstab's options" {
	make_cluster
	ln -s "$BIN/weft" "$DIR/mount.weft"
	"$DIR/mount.weft" "$FILE" "$MNT" -o rw,_netdev,nofail,node=1,cache=32M
	weft status "$MNT" --json | sed -n 's/^  "pid": \([0-9]*\),*$/\1/p' >>"$DIR/pids"
	touch "$MNT/x"
	run "$DIR/mount.weft" "$FILE" "$MNT" -o remount,node=2
	[ "$status" -eq 32 ]
	[[ $output == *"node= cannot change while mounted"* ]]
	"$DIR/mount.weft" "$FILE" "$MNT" -o remount,ro,node=1
	run touch "$MNT/y"
	[ "$status" -ne 0 ]
}

@test "status shows the cluster, and every start has a number of its own" {
	make_cluster
	mount_cluster
	run weft status "$MNT"
	[[ $output == *"cluster    c ($FILE), node 1 of 1"* ]]
	[[ $output == *"node 1   storage of shard 0, $STORE, 127.0.0.1:9338, start 2"* ]]
	weft umount "$MNT"
	mount_cluster node=1
	[[ $(weft status "$MNT") == *", start 3"* ]]
	kill -9 "$DAEMON"
	umount -l "$MNT"
	mount_cluster
	[[ $(weft status "$FILE" --json | tr -d ' \n') == *'"incarnation":4'* ]]
}

@test "a one-node cluster survives a crash of its daemon" {
	make_cluster
	mount_cluster
	echo kept >"$MNT/f"
	sync "$MNT/f"
	kill -9 "$DAEMON"
	umount -l "$MNT"
	mount_cluster
	[ "$(cat "$MNT/f")" = kept ]
}

@test "new overwrites nothing, and keeps the key from others" {
	weft cluster new -d "$DIR" c "127.0.0.1:$STORE"
	[ "$(stat -c %a "$DIR/c.key")" = 600 ]
	[ "$(tr -d '\n' <"$DIR/c.key" | wc -c)" = 64 ]
	before=$(cat "$FILE" "$DIR/c.key")
	run weft cluster new -d "$DIR" c "127.0.0.1:$STORE"
	[ "$status" -eq 2 ]
	[[ $output == *"nothing is overwritten"* ]]
	rm "$DIR/c.key"
	run weft cluster new -d "$DIR" c "127.0.0.1:$STORE"
	[ "$status" -eq 2 ]
	[ ! -e "$DIR/c.key" ]
	[[ $before == "$(cat "$FILE")"* ]]
}

@test "two clusters have different UUIDs and keys" {
	weft cluster new -d "$DIR" a "127.0.0.1:/a"
	weft cluster new -d "$DIR" b "127.0.0.1:/a"
	[ "$(grep uuid "$DIR/a.cluster")" != "$(grep uuid "$DIR/b.cluster")" ]
	[ "$(cat "$DIR/a.key")" != "$(cat "$DIR/b.key")" ]
}

@test "new takes ports, IPv6, several nodes of one host, and clients" {
	weft cluster new -d "$DIR" c "127.0.0.1:/a" "127.0.0.1:/b" "alpha:77:/c" "::1:/d" \
		"[::1]:99:/e" "::1:/f" --client gamma --client delta:5
	run weft cluster show "$FILE"
	[ "$status" -eq 0 ]
	[[ $output == *"node 1   storage, shard 0, /a, 127.0.0.1:9338"* ]]
	[[ $output == *"node 2   storage, shard 1, /b, 127.0.0.1:9339"* ]]
	[[ $output == *"node 3   storage, shard 2, /c, alpha:77"* ]]
	[[ $output == *"node 4   storage, shard 3, /d, [::1]:9338"* ]]
	[[ $output == *"node 5   storage, shard 4, /e, [::1]:99"* ]]
	[[ $output == *"node 6   storage, shard 5, /f, [::1]:9339"* ]]
	[[ $output == *"node 7   client, its log at node 1, gamma:9338"* ]]
	[[ $output == *"node 8   client, its log at node 1, delta:5"* ]]
	rm "$DIR/c.key" # show needs none
	weft cluster show "$FILE" --json | python3 -c '
import json, sys
o = json.load(sys.stdin)
assert o["name"] == "c" and len(o["nodes"]) == 8
assert o["nodes"][4] == {"id": 5, "role": "storage", "shard": 4, "store": "/e", "addresses": ["[::1]:99"]}
assert o["nodes"][7] == {"id": 8, "role": "client", "host": 1, "addresses": ["delta:5"]}'
}

@test "wrong words of new are told, and nothing is written" {
	for words in "" "c" "c alpha" "c :/x" "c/d 127.0.0.1:/x" "c a_b/c:/x" "c 127.0.0.1:/" \
		"c a:0:/x" "c a:/x a:/x" "--client a c"; do
		run weft cluster new -d "$DIR" $words
		echo "$words: $output"
		[ "$status" -eq 1 ]
		[ -n "$output" ]
		[ "$(ls "$DIR")" = mnt ]
	done
	run weft cluster
	[ "$status" -eq 1 ]
	run weft cluster --help
	[ "$status" -eq 0 ]
	run weft cluster show
	[ "$status" -eq 1 ]
	run weft cluster check "$FILE" --node 64
	[ "$status" -eq 1 ]
}

@test "add writes a section for a client behind what is there, and nothing where that cannot be" {
	weft cluster new -d "$DIR" c "alpha:$STORE" "beta:$STORE" --client gamma
	printf '; the last line has no end' >>"$FILE"
	chmod 640 "$FILE"
	cp "$FILE" "$DIR/before"
	run weft cluster add "$FILE" --client delta
	echo "$output"
	[ "$status" -eq 0 ]
	[[ $output == *"Added client 4 to $FILE."*"weft cluster reload"* ]]
	cmp -n "$(stat -c %s "$DIR/before")" "$FILE" "$DIR/before"
	[ "$(stat -c %a "$FILE")" = 640 ]
	weft cluster add "$FILE" --client beta --host 2
	weft cluster add "$FILE" --client beta
	weft cluster add "$FILE" --client '[::1]:77'
	run weft cluster show "$FILE"
	echo "$output"
	[[ $output == *"node 4   client, its log at node 1, delta:9338"* ]]
	[[ $output == *"node 5   client, its log at node 2, beta:9339"* ]]
	[[ $output == *"node 6   client, its log at node 1, beta:9340"* ]]
	[[ $output == *"node 7   client, its log at node 1, [::1]:77"* ]]
	cp "$FILE" "$DIR/before"
	run weft cluster add "$FILE" --client 'no!host'
	[ "$status" -eq 2 ]
	run weft cluster add "$FILE" --client delta:9338
	[ "$status" -eq 2 ]
	[[ $output == *"[node 8] address: delta port 9338 is also node 4's"* ]]
	run weft cluster add "$FILE" --client epsilon --host 3
	[ "$status" -eq 2 ]
	[[ $output == *"[node 8] host: node 3 is a client"* ]]
	run weft cluster add "$FILE"
	[ "$status" -eq 1 ]
	run weft cluster add "$DIR/none" --client delta
	[ "$status" -eq 2 ]
	printf '\n[node 63]\nrole = client\naddress = last\n' >>"$FILE"
	cp "$FILE" "$DIR/before"
	run weft cluster add "$FILE" --client epsilon
	[ "$status" -eq 2 ]
	[[ $output == *"the id 63 is taken"* ]]
	cmp "$FILE" "$DIR/before"
	[ "$(ls "$DIR" | grep -c 'c.cluster')" = 1 ]
}

@test "reload says that a node which was alone cannot be given others, and asks nobody else" {
	run weft cluster reload "$MNT"
	[ "$status" -eq 2 ]
	[[ $output == *"no running weftd of this user serves it"* ]]
	make_cluster
	mount_cluster
	run weft cluster reload "$MNT"
	[ "$status" -eq 0 ]
	[ "$output" = "node 1 ($MNT): nothing was added" ]
	weft cluster add "$FILE" --client 127.0.0.1
	run weft cluster reload "$MNT"
	echo "$output"
	[ "$status" -eq 2 ]
	[[ $output == *"the volume was mounted as one of a single node"* ]]
	touch "$MNT/x"
	weft umount "$MNT"
}

@test "check says what is well and what is not" {
	weft cluster new -d "$DIR" c "127.0.0.1:$STORE"
	run weft cluster check "$FILE"
	[ "$status" -eq 2 ]
	[[ $output == *"ok    key $DIR/c.key"* ]]
	[[ $output == *"this machine is node 1"* ]]
	[[ $output == *"WRONG store of node 1: $STORE does not exist"* ]]
	mkfs.weft -c "$FILE" --size 64M
	weft cluster check "$FILE"
	mount_cluster
	weft cluster check "$FILE" # also while it is mounted
	weft umount "$MNT"
	printf '[node 2]\nrole = client\naddress = weft.invalid\n' >>"$FILE"
	run weft cluster check "$FILE"
	[ "$status" -eq 2 ]
	[[ $output == *"WRONG $FILE:"*"[node 2] address: \"weft.invalid\" does not resolve"* ]]
	refused 2 "names no node 3" weft cluster check "$FILE" --node 3
}

@test "a key that others may read is refused by everything that needs it" {
	make_cluster
	chmod 640 "$DIR/c.key"
	refused 32 "may be read by others (mode 0640)" weft mount "$FILE" "$MNT"
	refused 2 "may be read by others" weft cluster check "$FILE"
	refused 1 "may be read by others" mkfs.weft -c "$FILE" --force
	chmod 600 "$DIR/c.key"
	mount_cluster
}

@test "another key is told" {
	make_cluster
	weft cluster new -d "$DIR" d "127.0.0.1:/x"
	cp "$DIR/d.key" "$DIR/c.key"
	refused 32 "made with another cluster key" weft mount "$FILE" "$MNT"
	refused 2 "made with another cluster key" weft cluster check "$FILE"
}

@test "another volume's store is told" {
	make_cluster
	weft cluster new -d "$DIR" d "127.0.0.1:$STORE"
	refused 32 "the store belongs to another volume" weft mount "$DIR/d.cluster" "$MNT"
}

@test "a store of another node is told, and one of no cluster" {
	make_cluster
	sed -i 's/\[node 1\]/[node 2]\nshard = 0/' "$FILE"
	refused 32 "it is the store of node 1, not of node 2" weft mount "$FILE" "$MNT"
	refused 32 "it is the store of node 1 of a cluster: name the cluster file" \
		weft mount "$STORE" "$MNT"
	mkfs.weft --force "$STORE"
	sed -i "s/^uuid.*/uuid = $(weft dump "$STORE" super | awk '/volume/ {print $2; exit}')/" "$FILE"
	refused 32 "it is the store of no cluster" weft mount "$FILE" "$MNT"
}

@test "mistakes in the file are told with line, section and key" {
	make_cluster
	cp "$FILE" "$DIR/good"
	line=$(grep -n '^store' "$FILE" | cut -d: -f1)
	sed -i 's/^store = /store = x/' "$FILE"
	refused 32 "weftd: $FILE:$line: [node 1] store: \"x$STORE\" is not an absolute path" \
		weft mount "$FILE" "$MNT"
	refused 1 "mkfs.weft: $FILE:$line: [node 1] store:" mkfs.weft -c "$FILE"
	refused 2 "$FILE:$line: [node 1] store:" weft cluster show "$FILE"
	cp "$DIR/good" "$FILE"
	echo "colour = blue" >>"$FILE"
	refused 32 "[node 1] colour: is unknown" weft mount "$FILE" "$MNT"
	{ cat "$DIR/good"; printf '[node 1]\naddress = 127.0.0.1\nstore = /x\n'; } >"$FILE"
	refused 32 "[node 1] is there twice" weft mount "$FILE" "$MNT"
	{ cat "$DIR/good"; printf '[node 2]\naddress = 127.0.0.1\nstore = /x\n'; } >"$FILE"
	refused 32 "[node 2] address: 127.0.0.1 port 9338 is also node 1's" weft mount "$FILE" "$MNT"
	sed "s|^store = .*|store = $DIR/none|" "$DIR/good" >"$FILE"
	refused 32 "$FILE:$line: node 1's store $DIR/none: No such file" weft mount "$FILE" "$MNT"
	echo "hello" >"$FILE"
	refused 32 "nor a cluster file" weft mount "$FILE" "$MNT"
}

@test "a node that cannot be found is told, and can be said" {
	make_cluster
	sed -i 's/127.0.0.1/192.0.2.1/' "$FILE"
	refused 32 "none of this machine's addresses is a node's" weft mount "$FILE" "$MNT"
	refused 32 "-o node=N" weft mount "$FILE" "$MNT"
	refused 1 "--node N" mkfs.weft -c "$FILE" --force
	refused 32 "names no node 7" weft mount "$FILE" "$MNT" -o node=7
	refused 1 "node=0" weft mount "$FILE" "$MNT" -o node=0
	mount_cluster node=1
	weft umount "$MNT"
	refused 32 "option node=1 is for cluster files" weft mount "$STORE" "$MNT" -o node=1
}

@test "several storage nodes: formatted alike, checked, and each says whose it is" {
	weft cluster new -d "$DIR" c "127.0.0.1:$STORE" "127.0.0.1:$DIR/two.weft"
	run mkfs.weft -c "$FILE" --size 64M
	[ "$status" -eq 1 ]
	[[ $output == *"nodes 1 and 2 are all on this machine"*"--node N"* ]]
	run mkfs.weft -c "$FILE" --node 1 --size 64M
	[[ $output == *"with shard 0 and the root directory"* ]]
	run mkfs.weft -c "$FILE" --node 2 --size 64M
	[ "$status" -eq 0 ]
	[[ $output == *"with shard 1"* && $output != *"root directory"* ]]
	weft cluster check "$FILE" --node 1
	weft cluster check "$FILE" --node 2
	for n in one two; do weft dump "$DIR/$n.weft" super >"$DIR/$n"; done
	[ "$(grep volume "$DIR/one")" = "$(grep volume "$DIR/two")" ]
	# the checksum key, which no tool shows
	[ "$(dd if="$STORE" bs=1 skip=136 count=32 status=none | sha256sum)" = \
		"$(dd if="$DIR/two.weft" bs=1 skip=136 count=32 status=none | sha256sum)" ]
	run fsck.weft -f -y "$DIR/two.weft"
	[ "$status" -eq 0 ]
	[[ $output == *"node 2's store (shard 1) of a volume of several"*"give all stores"* ]]
	[[ $output == *"no damage found in this store; the volume was not checked"* ]]
	run fsck.weft -f -n "$FILE"
	[ "$status" -eq 0 ]
	[[ $output == *"$FILE: no damage found" ]]
	run fsck.weft -f -n "$DIR/two.weft" "$STORE"
	[ "$status" -eq 0 ]
	[[ $output == *"two.weft and 1 more: no damage found" ]]
	run fsck.weft -f -n "$DIR/two.weft" "$DIR/two.weft"
	[ "$status" -eq 8 ]
	run fsck.weft -f -y "$FILE"
	[ "$status" -eq 0 ]
	mv "$DIR/two.weft" "$DIR/moved.weft"
	run fsck.weft -f -n "$FILE"
	[ "$status" -eq 8 ]
	[[ $output == *"two.weft"*"it is node 2's store"* ]]
	mv "$DIR/moved.weft" "$DIR/two.weft"
	run weft dump "$DIR/two.weft" groups
	[ "$status" -eq 0 ]
	run weft dump "$DIR/two.weft" tree
	[ "$status" -eq 2 ]
	[[ $output == *"the catalog is in the store with shard 0"* ]]
	run weft dump "$FILE" super
	[ "$status" -eq 0 ]
	[[ $output == *"node 1: $STORE"*"node 2: $DIR/two.weft"* ]]
	run weft dump "$FILE" inode 1
	[ "$status" -eq 0 ]
	run mkfs.weft -c "$FILE" --node 2
	[ "$status" -eq 1 ]
	[[ $output == *"contains a weft store of node 2"* ]]
}

@test "a client has no store to format, but needs room for its log" {
	make_cluster
	printf '[node 2]\nrole = client\naddress = 127.0.0.1:1\n' >>"$FILE"
	refused 1 "needs no mkfs.weft" mkfs.weft -c "$FILE" --node 2
	mount_cluster node=1
	mkdir "$DIR/client"
	run weft mount "$FILE" "$DIR/client" -o node=2
	echo "$output"
	[ "$status" -eq 32 ]
	[[ $output == *"no room for the log of another client"* ]]
	echo "still" >"$MNT/there"
}

@test "mkfs.weft sets room for the logs of clients aside" {
	make_cluster
	run mkfs.weft -c "$FILE" --clients 2 --client-log 6M --force
	[ "$status" -eq 0 ]
	[[ $output == *"logs of 2"*"6.0 MiB"* ]]
	printf '[node 2]\nrole = client\naddress = 127.0.0.1:1\n' >>"$FILE"
	run mkfs.weft -c "$FILE" --node 1 --force # as many as the file has
	[ "$status" -eq 0 ]
	[[ $output == *"logs of 1"*"5.0 MiB"* ]]
	run mkfs.weft -c "$FILE" --node 1 --force --dry-run --size 4G # and some that may come
	[ "$status" -eq 0 ]
	[[ $output == *"logs of 3"*"64.0 MiB"* ]]
	run mkfs.weft -c "$FILE" --node 1 --force --dry-run --size 1T
	[[ $output == *"logs of 9"*"64.0 MiB"* ]]
	run mkfs.weft -c "$FILE" --node 1 --force --dry-run --size 4G --clients 0
	[ "$status" -eq 0 ]
	[[ $output != *"logs of"* ]]
	refused 1 "too few for a client's log" mkfs.weft -c "$FILE" --node 1 --client-log 1M --force
	refused 1 "too large for a store" mkfs.weft -c "$FILE" --node 1 --client-log 60M --force
	refused 2 "not a number of clients" mkfs.weft -c "$FILE" --node 1 --clients 64
	refused 2 "clients need a cluster file" mkfs.weft --clients 1 "$STORE"
}

@test "mkfs.weft takes a cluster file or a store, not both" {
	make_cluster
	refused 2 "the cluster file names the store" mkfs.weft -c "$FILE" "$STORE"
	refused 2 "no --label" mkfs.weft -c "$FILE" --label x
	refused 2 "--node is for cluster files" mkfs.weft --node 1 "$STORE"
	refused 2 "not a node" mkfs.weft -c "$FILE" --node 64
	run mkfs.weft -c "$FILE" --dry-run --force
	[ "$status" -eq 0 ]
	[[ $output == "Would make a weft store on $STORE"* ]]
}
