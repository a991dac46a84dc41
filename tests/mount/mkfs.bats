#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# mkfs.weft makes what it says and overwrites nothing that somebody needs.

load common

setup() {
	DIR=$(mktemp -d "${WEFT_TMP:-/tmp}/weft-test.XXXXXX")
	STORE=$DIR/store
}

teardown() {
	[ -z "$LOOP" ] || losetup -d "$LOOP"
	! mountpoint -q "$DIR/small" || umount -l "$DIR/small"
	rm -rf "$DIR"
}

refused() { # TEXT COMMAND...: exit status 1, the text, and not a byte changed
	local text=$1 before after
	shift
	before=$(sha256sum <"$STORE")
	run "$@"
	[ "$status" -eq 1 ]
	[[ $output == *"$text"* ]]
	after=$(sha256sum <"$STORE")
	[ "$before" = "$after" ]
}

@test "a file is made with the size and label asked for" {
	run mkfs.weft --size 64M --label "a label" "$STORE"
	[ "$status" -eq 0 ]
	[[ $output == *UUID* && $output == *"a label"* && $output == *67108864* ]]
	[ "$(stat -c %s "$STORE")" = 67108864 ]
	[ "$(stat -c %b "$STORE")" -lt 20000 ] # in blocks of 512: the pages are sparse
}

@test "a failed run leaves no file behind, a dry run none at all" {
	run mkfs.weft --size 1M "$STORE"
	[ "$status" -eq 1 ]
	[ ! -e "$STORE" ]
	run mkfs.weft --dry-run --size 64M "$STORE"
	[ "$status" -eq 0 ]
	[[ $output == "Would make"* ]]
	[ ! -e "$STORE" ]
	run mkfs.weft "$STORE"
	[ "$status" -eq 1 ]
	[[ $output == *--size* ]]
}

@test "a dry run changes nothing" {
	truncate -s 64M "$STORE"
	before=$(sha256sum <"$STORE")
	mkfs.weft --dry-run "$STORE"
	mkfs.weft --dry-run --size 128M "$STORE"
	[ "$before" = "$(sha256sum <"$STORE")" ]
}

@test "a file whose filesystem has no room for log and table is refused at once, and nothing is written" {
	[ "$(id -u)" = 0 ] || skip "needs root"
	mkdir "$DIR/small"
	mount -t tmpfs -o size=64M none "$DIR/small"
	STORE=$DIR/small/store
	for option in --quiet --dry-run; do
		run timeout 20 mkfs.weft $option --size 10T "$STORE"
		echo "$output"
		[ "$status" -eq 1 ]
		[[ $output == *"10.0 TiB needs 121.8 GiB"*"room for 64.0 MiB"* ]]
		[ ! -e "$STORE" ]
	done
	[ "$(df --output=used "$DIR/small" | tail -1)" -eq 0 ]
	# a file has the room that it takes up already
	fallocate -l 56M "$STORE"
	refused "room for 64.0 MiB" mkfs.weft --size 2G "$STORE"
	[ "$(stat -c %s "$STORE")" = 58720256 ]
	run mkfs.weft --dry-run --size 1G "$STORE"
	[ "$status" -eq 0 ]
	run mkfs.weft --size 1G "$STORE"
	[ "$status" -eq 0 ]
	[[ $output == *"can grow to 1.0 GiB"*"room for 64.0 MiB"* ]]
}

@test "a store of weft is refused, and made anew by force" {
	mkfs.weft --size 64M --label first "$STORE"
	refused "weft store labelled 'first'" mkfs.weft "$STORE"
	refused "Nothing was written" mkfs.weft --size 128M "$STORE"
	dd if=/dev/zero of="$STORE" bs=4096 count=1 conv=notrunc status=none
	refused "weft store" mkfs.weft "$STORE" # the copy at its end tells
	mkfs.weft --force --label second "$STORE"
	refused "'second'" mkfs.weft "$STORE"
}

@test "another filesystem is refused by name" {
	command -v mkfs.ext4 >/dev/null || skip "needs mkfs.ext4"
	truncate -s 64M "$STORE"
	mkfs.ext4 -q -L precious "$STORE"
	refused "contains an ext4 filesystem labelled 'precious'" mkfs.weft "$STORE"
	mkfs.weft --force "$STORE"
	[ -z "$(blkid -p -s TYPE -o value "$STORE" | grep ext4)" ]
}

@test "a file with data somewhere is refused, one of zeros is not" {
	truncate -s 64M "$STORE"
	printf x | dd of="$STORE" bs=1 seek=50000000 conv=notrunc status=none
	refused "contains data" mkfs.weft "$STORE"
	rm "$STORE"
	head -c 8M /dev/zero >"$STORE"
	mkfs.weft "$STORE"
}

@test "a store in use is refused even by force" {
	truncate -s 64M "$STORE"
	exec 9<"$STORE"
	flock 9
	refused "in use" mkfs.weft "$STORE"
	refused "in use" mkfs.weft --force "$STORE"
	exec 9<&-
	mkfs.weft "$STORE"
}

@test "a mounted device is refused even by force" {
	[ "$(id -u)" = 0 ] || skip "needs root"
	truncate -s 64M "$STORE"
	mkfs.ext4 -q "$STORE"
	LOOP=$(losetup --find --show "$STORE") || skip "needs loop devices"
	mkdir "$DIR/mnt"
	mount "$LOOP" "$DIR/mnt"
	run mkfs.weft --force "$LOOP"
	umount "$DIR/mnt"
	[ "$status" -eq 1 ]
	[[ $output == *"in use"* ]]
	run mkfs.weft "$LOOP"
	[[ $output == *"ext4"* ]]
	mkfs.weft --force "$LOOP"
}

@test "wrong usage has its own exit status" {
	for args in "" "--size 5X $STORE" "--checksum crc $STORE" "--size 0 $STORE" "--bogus $STORE" \
		"--log-size -1 $STORE" "--size 99999999999T $STORE" "$STORE $STORE"; do
		run mkfs.weft $args
		[ "$status" -eq 2 ]
		[[ $output == *--help* ]]
	done
	run mkfs.weft --label "$(head -c 64 /dev/zero | tr '\0' x)" "$STORE"
	[ "$status" -eq 2 ]
	run mkfs.weft --help
	[ "$status" -eq 0 ]
	run mkfs.weft --version
	[ "$status" -eq 0 ]
	[ ! -e "$STORE" ]
}

@test "each kind of checksum makes a volume" {
	for kind in gmac sha256 blake2b; do
		mkfs.weft --size 32M --checksum $kind --force "$STORE"
	done
}

@test "all programs are of one version, and take the same sizes" {
	version=$(weft version | cut -d' ' -f2)
	[ "$(weftd --version)" = "weftd $version" ]
	[[ $(mkfs.weft --version) == "mkfs.weft $version, disk format "* ]]
	[[ $(fsck.weft --version) == "fsck.weft $version, disk format "* ]]
	mkfs.weft --size 32MiB --log-size 4m "$STORE"
	fsck.weft -n -m 64MiB "$STORE"
	run fsck.weft -n -m 99999999999999999999 "$STORE"
	[ "$status" -eq 16 ]
}

@test "of two that make a volume on one file, one does, and it stays" {
	for i in 1 2 3 4 5 6 7 8; do
		rm -f "$STORE"
		[ $((i % 2)) -eq 0 ] || truncate -s 16M "$STORE" # there, but too small
		made=0
		mkfs.weft --size 64M --label first "$STORE" >"$DIR/1" 2>&1 &
		one=$!
		mkfs.weft --size 64M --label second "$STORE" >"$DIR/2" 2>&1 &
		two=$!
		! wait $one || made=$((made + 1)) label=first
		! wait $two || made=$((made + 1)) label=second
		[ $made -eq 1 ]
		[ "$(stat -c %s "$STORE")" = 67108864 ]
		refused "'$label'" mkfs.weft "$STORE"
	done
}

@test "quiet says nothing, labels are UTF-8 that prints" {
	[ -z "$(mkfs.weft -q --size 32M --label "grüße" "$STORE" 2>&1)" ]
	for label in $'a\nb' $'\xff' $'\xc0\xaf' $'\xed\xa0\x80' $'\xe0\x80\xaf' $'\xc2\x9b'; do
		run mkfs.weft --force --label "$label" "$STORE"
		[ "$status" -eq 2 ]
	done
	run mkfs.weft -q "$STORE"
	[ "$status" -eq 1 ]
	[[ $output == *"grüße"* ]]
}

@test "libblkid's probe (packaging/libblkid) finds what weft probe finds" {
	local here=$BATS_TEST_DIRNAME/blkid
	need gcc
	awk '/^\+\+\+ /{ on = /superblocks\/weft.c$/; next } on && sub(/^\+/, "")' \
		"$ROOT/packaging/libblkid/weft.patch" >"$DIR/weft.c"
	gcc -Wall -Werror -Wno-unused-parameter -I "$here" -o "$DIR/probe" "$DIR/weft.c" "$here/probe.c"
	mkfs.weft --size 64M --label shelf "$STORE"
	[ "$("$DIR/probe" "$STORE")" = "$(weft probe "$STORE")" ]
	dd if=/dev/zero of="$STORE" bs=1 seek=56 count=8 conv=notrunc status=none # its size
	run "$DIR/probe" "$STORE"
	[ "$status" -eq 1 ]
	head -c 4096 /dev/zero >"$STORE"
	run "$DIR/probe" "$STORE"
	[ "$status" -eq 1 ]
}
