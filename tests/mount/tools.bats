#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# How `weft` and the helpers of mount(8) find the volume that is meant, and what they refuse.

load common

setup() { setup_store 64M; }

teardown() {
	[ -z "${LOOP:-}" ] || losetup -d "$LOOP" || true
	for mount in "$DIR/other" "$MNT"; do
		! mountpoint -q "$mount" || weft umount "$mount" || umount -l "$mount"
	done
	teardown_store
}

# A second volume: $OTHER, labelled as $1, mounted on $2.
mount_other() {
	OTHER=$DIR/other.store
	mkfs.weft --size 64M --label "$1" "$OTHER" >/dev/null
	mkdir -p "$2"
	weftd "$OTHER" "$2" -o cache=16M
	json_of "$OTHER" pid >>"$DIR/pids"
}

json_of() { weft status "$1" --json | sed -nE "s/^  \"$2\": \"?([^\",]*)\"?,*\$/\1/p"; }

socket_of() { echo "/run/weft/$(json_of "$1" store_uuid).sock"; }

@test "every command explains itself: on stdout when asked, else on stderr with 1" {
	for command in mount umount sync scrub status probe dump bench net; do
		run weft $command --help
		[ "$status" -eq 0 ]
		[[ $output == Usage:* ]]
		[ -z "$(weft $command --help 2>&1 >/dev/null)" ]
		run weft $command --nonsense
		[ "$status" -eq 1 ]
		[[ $output == *weft* ]]
		[ -z "$(weft $command --nonsense 2>/dev/null)" ]
	done
	run weft
	[ "$status" -eq 1 ]
	run weft nonsense
	[ "$status" -eq 1 ]
	[[ $output == *nonsense* ]]
}

@test "a wrong word is named, with the word that may have been meant, and in one line" {
	local words
	while IFS='|' read -r words wrong meant; do
		run weft $words
		echo "weft $words: $output"
		[ "$status" -eq 1 ]
		[ "${#lines[@]}" -le 2 ]
		[[ $output == *"$wrong"* && $output == *"$meant"* && $output == *"--help"* ]]
	done <<-END
		stats|"stats"|did you mean "status"?
		cluster chekc $DIR/f|"chekc"|did you mean "check"?
		cluster list|"list"|weft cluster
		cluster check a b|"b" is one word too many|FILE
		cluster check --nodee 1 f|--nodee|did you mean --node?
		cluster new name|expected NAME HOST:STORE|weft cluster new
		cluster add f|--client|is missing
		net chek|"chek"|did you mean "check"?
		net check a b|"b"|too many
		node fenc f 1|"fenc"|did you mean "fence"?
		node fence f 64|"64"|1 to 63
		dump $STORE supper|"supper"|did you mean "super"?
		dump $STORE inode x|"x"|inode
		dump $STORE path|expected|WHICH
		dump $STORE super x|"x"|too many
		bench tre|"tre"|did you mean "tree"?
		bench tree --cache 1|--cache 1|16 to
		status --jsno|--jsno|did you mean --json?
		status a b|"b"|too many
		umount a b|"b"|too many
		sync a b|"b"|too many
		scrub --rate=x $MNT|--rate x|64K
		mount a b c|"c"|too many
		mount $STORE $MNT $DIR|"$DIR" is one word|too many
		mount $STORE $MNT -o cahce=1M|"cahce=1M"|did you mean "cache="?
	END
	run mkfs.weft "$DIR/a" "$DIR/b"
	[[ $output == *"more than one STORE"*"$DIR/b"* ]]
	run fsck.weft -m lots "$STORE"
	[[ $output == *'"lots"'* ]]
}

@test "output that cannot be written is an error" {
	[ -c /dev/full ] || skip "needs /dev/full"
	run bash -c "weft status >/dev/full"
	[ "$status" -eq 2 ]
	[[ $output == *"cannot write"* ]]
	run bash -c "fsck.weft -n '$STORE' >/dev/full"
	[ "$status" -eq 8 ]
	run bash -c "mkfs.weft -n '$DIR/new' --size 64M >/dev/full"
	[ "$status" -eq 1 ]
}

@test "a line of input answers one question of fsck, however long it is" {
	"$BIN/tests/images/make_image" make directory-counts "$DIR/image"
	run fsck.weft -f "$DIR/image" <<<"nnnnnnnnnnnnnnnyyyyyyyyyyyyyyyy"
	[ "$status" -eq 4 ]
	[ "$(grep -c 'Repair?' <<<"$output")" -ge 2 ]
	[[ $output != *FIXED* ]]
	yes | fsck.weft -f "$DIR/image" || [ $? -eq 1 ]
	fsck.weft -n -f "$DIR/image"
}

@test "the socket of a killed daemon goes with the next status, and with the next mount" {
	mount_store
	socket=$(socket_of "$MNT")
	[ -S "$socket" ]
	crash_store
	wait_until 10 gone "$DAEMON" # until then it listens
	[ -S "$socket" ]
	weft status
	[ ! -e "$socket" ]
	mount_store
	[ -S "$socket" ]
	crash_store
	wait_until 10 gone "$DAEMON"
	mount_other second "$DIR/other"
	[ ! -e "$socket" ]
	weft status "$DIR/other" >/dev/null
}

@test "a socket is there and answers while others sweep" {
	(while [ ! -e "$DIR/stop" ]; do weft status >/dev/null 2>&1 || true; done) 3>&- &
	for i in 1 2 3 4 5 6 7 8; do
		mount_store
		[ -S "$(socket_of "$MNT")" ]
		crash_store
	done
	touch "$DIR/stop"
	wait
}

@test "the next daemon of a store keeps its socket when the last one ends" {
	for i in 1 2 3 4 5 6 7 8; do
		mount_store
		umount "$MNT" # returns before the daemon has ended
		mount_store
		weft status "$MNT" >/dev/null
		umount_store
	done
}

@test "only what weft has mounted is unmounted" {
	mount -t tmpfs none "$MNT"
	run weft umount "$MNT"
	[ "$status" -eq 32 ]
	[[ $output == *tmpfs* ]]
	mountpoint -q "$MNT"
	umount "$MNT"
	mount_store
	mount -t tmpfs none "$MNT" # over it
	run weft umount "$STORE"
	[ "$status" -eq 32 ]
	mountpoint -q "$MNT"
	umount "$MNT"
	run weft umount "$DIR"
	[ "$status" -eq 32 ]
	[[ $output == *"not mounted"* ]]
	weft umount "$STORE"
}

@test "of two volumes on one directory the upper one is meant" {
	mount_store
	echo lower >"$MNT/f"
	mount_other upper "$MNT"
	[ "$(json_of "$MNT" store)" = "$OTHER" ]
	run weft umount "$STORE"
	[ "$status" -eq 32 ]
	[[ $output == *"over it"* ]]
	weft umount "$MNT"
	[ "$(json_of "$MNT" store)" = "$STORE" ]
	[ "$(cat "$MNT/f")" = lower ]
}

@test "a label that two volumes have names neither; a mount point comes before a label" {
	mkfs.weft --force --label same "$STORE" >/dev/null
	mount_store
	mount_other same "$DIR/other"
	run weft sync same
	[ "$status" -eq 2 ]
	[[ $output == *"more than one"* ]]
	run weft umount same
	[ "$status" -eq 32 ]
	run weft status same
	[ "$status" -eq 2 ]
	weft umount "$OTHER"
	weft sync same
	mkfs.weft --force --label mnt "$OTHER" >/dev/null
	weftd "$OTHER" "$DIR/other" -o cache=16M
	json_of "$OTHER" pid >>"$DIR/pids"
	cd "$DIR"
	[ "$(json_of mnt store)" = "$STORE" ]
}

@test "mount.weft takes several -o, and with -f checks them and mounts nothing" {
	ln -s "$BIN/weft" "$DIR/mount.weft"
	run "$DIR/mount.weft" -f "$STORE" "$MNT" -o nonsense
	[ "$status" -eq 1 ]
	[[ $output == *nonsense* ]]
	"$DIR/mount.weft" -f "$STORE" "$MNT" -o cache=16M
	run mountpoint -q "$MNT"
	[ "$status" -ne 0 ]
	"$DIR/mount.weft" "$STORE" "$MNT" -o cache=16M,nosuid -o noexec
	json_of "$MNT" pid >>"$DIR/pids"
	grep " $MNT fuse.weft " /proc/mounts | grep nosuid | grep -q noexec
	weft status "$MNT" | grep -q 'cache=16M'
}

# With mount.weft where mount(8) looks for it: in a namespace of its own, /sbin has nothing else.
with_helper() {
	unshare -m bash -euc "mount -t tmpfs none /sbin; ln -s '$BIN/weft' /sbin/mount.weft; $1"
}

@test "fstab may say what it says of every filesystem; df -i has numbers; umount is silent" {
	words=defaults,rw,nofail,_netdev,x-systemd.automount,X-a=b,comment=c,lazytime,acl,user_xattr,discard,iversion
	words=$words,mand,noauto,user,owner,group,norelatime,nostrictatime,nosymfollow,noatime,cache=16M
	echo "$STORE $MNT weft $words 0 0" >"$DIR/fstab"
	with_helper "
		mount -T '$DIR/fstab' '$MNT'
		weft status '$MNT' --json | sed -n 's/^  \"pid\": \([0-9]*\),*\$/\1/p' >>'$DIR/pids'
		grep ' $MNT ' /proc/mounts >'$DIR/mounts'
		df --output=itotal,iused,iavail '$MNT' | tail -1 >'$DIR/inodes'
		umount '$MNT' >'$DIR/said' 2>&1
		[ ! -s '$DIR/said' ]"
	grep nosuid "$DIR/mounts" | grep nodev | grep -q noatime # user, owner, group say so
	read -r total used free <"$DIR/inodes"
	[ "$total" -gt 100000 ] && [ "$free" -gt 100000 ] && [ $((used + free)) -eq "$total" ]
	echo "$STORE $MNT weft noatme 0 0" >"$DIR/fstab"
	run with_helper "mount -T '$DIR/fstab' '$MNT'"
	echo "$output"
	[ "$status" -eq 1 ]
	[[ $output == *'"noatme" is unknown; did you mean "noatime"?'* ]]
}

@test "probe says what is on a device; LABEL= and UUID= in fstab go by the links that udev makes of it" {
	local uuid
	mkfs.weft --force --label 'my "disk' "$STORE" >"$DIR/mkfs"
	uuid=$(sed -n 's/^  UUID *//p' "$DIR/mkfs")
	run weft probe "$STORE"
	[ "$status" -eq 0 ]
	[[ $output == "$STORE: LABEL="*" UUID=\"$uuid\" UUID_SUB=\""*"\" TYPE=\"weft\"" ]]
	weft probe --udev "$STORE" >"$DIR/udev"
	grep -qx "ID_FS_TYPE=weft" "$DIR/udev"
	grep -qx "ID_FS_UUID_ENC=$uuid" "$DIR/udev"
	grep -qxF 'ID_FS_LABEL_ENC=my\x20\x22disk' "$DIR/udev"
	! grep -v '^ID_FS_[A-Z_]*=[^ ]*$' "$DIR/udev" || false
	dd if=/dev/zero of="$STORE" bs=4096 count=1 conv=notrunc status=none # the copy at the end tells
	[[ $(weft probe "$STORE") == *"$uuid"* ]]
	head -c 1M /dev/urandom >"$DIR/noise"
	for name in "$DIR/noise" "$DIR" /dev/null "$DIR/none"; do
		run weft probe --udev "$name"
		[ "$status" -eq 2 ]
		[[ $output != *ID_FS* ]]
	done
	mkfs.weft --force --label 'my disk' "$STORE" >"$DIR/mkfs"
	uuid=$(sed -n 's/^  UUID *//p' "$DIR/mkfs")
	LOOP=$(losetup --find --show "$STORE") || skip "needs loop devices"
	# a /dev with the links that packaging/udev has udev make
	mkdir -p "$DIR/dev"
	echo "LABEL=my\\040disk $MNT weft noauto 0 0" >"$DIR/fstab"
	run with_helper "
		mount -t tmpfs none '$DIR/dev'
		cp -a /dev/null /dev/fuse /dev/urandom '$LOOP' '$DIR/dev'
		mkdir -p '$DIR/dev/disk/by-uuid' '$DIR/dev/disk/by-label'
		ln -s '../../${LOOP##*/}' '$DIR/dev/disk/by-uuid/$uuid'
		ln -s '../../${LOOP##*/}' '$DIR/dev/disk/by-label/my\x20disk'
		mount --bind '$DIR/dev' /dev
		mount -T '$DIR/fstab' '$MNT'
		weft status '$MNT' | grep '^store  *$LOOP\$'
		umount '$MNT'
		mount -t weft 'UUID=$uuid' '$MNT'
		umount '$MNT'"
	echo "$output"
	[ "$status" -eq 0 ]
}

@test "remount refuses what it cannot change, and keeps how access times are set" {
	ln -s "$BIN/weft" "$DIR/mount.weft"
	mount_store -o cache=16M,noatime
	for option in cache=32M log_interval=9 dirsync noallow_other; do
		run "$DIR/mount.weft" "$STORE" "$MNT" -o "remount,$option"
		[ "$status" -eq 32 ]
		[[ $output == *"${option%%=*}"*"cannot change"* ]]
	done
	"$DIR/mount.weft" "$STORE" "$MNT" -o remount,noexec,cache=16M,noatime
	"$DIR/mount.weft" "$STORE" "$MNT" -o remount,noexec
	grep " $MNT fuse.weft " /proc/mounts | grep noexec | grep -q noatime
	"$DIR/mount.weft" "$STORE" "$MNT" -o remount,nodiratime
	grep " $MNT fuse.weft " /proc/mounts | grep noatime | grep -q nodiratime
	"$DIR/mount.weft" "$STORE" "$MNT" -o remount,relatime,sync
	grep " $MNT fuse.weft " /proc/mounts | grep relatime | grep sync | grep -qv nodiratime
}
