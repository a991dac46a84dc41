#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# `make install` and `make uninstall` into a folder: what is there runs, and all of it goes again.

load common

setup() {
	DIR=$(mktemp -d "${WEFT_TMP:-/tmp}/weft-test.XXXXXX")
	mkdir -p "$DIR/usr/sbin"
}
teardown() { rm -rf "$DIR"; }

make_() { env -u MAKEFLAGS -u MAKELEVEL make -s -C "$ROOT" DESTDIR="$DIR" "$@"; }

# Links are for the machine on which DIR is the root.
resolves_to_program() {
	local target=$1 hops
	for hops in 1 2 3; do
		[ -L "$target" ] || break
		target=$(readlink "$target")
		[[ $target != /* ]] || target=$DIR$target
	done
	[ ! -L "$target" ] && [ -x "$target" ] && [ -s "$target" ]
}

installed() {
	for program in mkfs.weft fsck.weft mount.weft mount.fuse.weft umount.fuse.weft; do
		resolves_to_program "$DIR${2:-/sbin}/$program"
	done
	"$DIR$1/bin/weft" version
	"$DIR$1/sbin/weftd" --version
	[ -f "$DIR$1/share/man/man8/weft.8" ]
	grep -q "^IMPORT{program}=\"$1/bin/weft probe --udev \$devnode\"" "$DIR$1/lib/udev/rules.d/64-weft.rules"
	grep -q "^ExecStart=$1/sbin/weftd " "$DIR$1/lib/systemd/system/weft@.service"
}

@test "programs are built to be hard to subvert: PIE, RELRO, bound at start, stack protector, fortified" {
	local program
	need readelf nm
	for program in weft weftd mkfs.weft fsck.weft; do
		readelf -d "$ROOT/build/$program" | grep -q "FLAGS_1.* NOW PIE"
		readelf -lW "$ROOT/build/$program" | grep -q GNU_RELRO
		nm -D "$ROOT/build/$program" | grep -q __stack_chk_fail
		nm -D "$ROOT/build/$program" | grep -q "__.*printf_chk"
	done
}

@test "under /usr/local, with a /sbin of its own" {
	make_ install
	installed /usr/local
	make_ uninstall
	[ -z "$(find "$DIR" ! -type d)" ]
}

@test "under /usr, where /sbin and /usr/sbin are one" {
	ln -s usr/sbin "$DIR/sbin"
	make_ PREFIX=/usr install
	make_ PREFIX=/usr install
	installed /usr
	make_ PREFIX=/usr uninstall
	[ "$(find "$DIR" ! -type d)" = "$DIR/sbin" ]
}

@test "under /usr for a package, which has nothing in /sbin" {
	make_ PREFIX=/usr install
	[ ! -e "$DIR/sbin" ]
	installed /usr /usr/sbin
	make_ PREFIX=/usr uninstall
	[ -z "$(find "$DIR" ! -type d)" ]
}

@test "what root builds in another's tree belongs to the other" {
	local tree=$DIR/tree
	mkdir -p "$tree/build"
	cp -a "$ROOT"/[!b]* "$tree"
	cp -a "$ROOT"/build/{weft,weftd,fsck.weft,lib,engine,fs,mkfs,tools} "$tree/build" # no mkfs.weft
	chown -R 12345:12346 "$tree"
	env -u MAKEFLAGS -u MAKELEVEL make -s -C "$tree" DESTDIR="$DIR/to" install
	[ -x "$tree/build/mkfs.weft" ]
	[ -z "$(find "$tree" ! -user 12345 -o ! -group 12346)" ]
}
