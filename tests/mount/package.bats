#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# `make deb`. The package is installed, used by its own tests (packaging/debian/tests), and purged over
# this machine's root: an overlay, in namespaces that end with the test. Its upper folder shows each
# file that was made, changed, or left behind.

load common

setup_file() {
	need dpkg-buildpackage
	export FILES=$BATS_FILE_TMPDIR
	env -u MAKEFLAGS -u MAKELEVEL make -s -C "$ROOT" DEB="$FILES/deb" deb >"$FILES/log" 2>&1 || {
		cat "$FILES/log"
		return 1
	}
	dpkg-deb -x "$FILES"/deb/weft_*.deb "$FILES/package"
}

setup() {
	DIR=$(mktemp -d "${WEFT_TMP:-/tmp}/weft-test.XXXXXX")
	PACKAGE=$(echo "$FILES"/deb/weft_*.deb)
}
teardown() { rm -rf "$DIR"; }

@test "the package has the version of the programs, no complaint of lintian, and nothing in /sbin" {
	[ "weft $(dpkg-deb -f "$PACKAGE" Version)" = "$(weft version)" ]
	lintian --allow-root --pedantic --display-info --fail-on error,warning,info,pedantic,override \
		"$FILES"/deb/*.changes
	[ ! -e "$FILES/package/sbin" ]
	[ ! -e "$FILES/package/bin" ]
}

@test "it has the files of make install, and Debian's own" {
	env -u MAKEFLAGS -u MAKELEVEL make -s -C "$ROOT" DESTDIR="$DIR" PREFIX=/usr install
	(cd "$DIR" && find . ! -type d | sort) >"$FILES/installed"
	(cd "$FILES/package" && find . ! -type d ! -path './usr/share/doc/*' | sed 's/\.gz$//' | sort) >"$FILES/packaged"
	diff "$FILES/installed" "$FILES/packaged"
	zcat "$FILES/package/usr/share/man/man8/weftd.8.gz" | cmp - "$DIR/usr/share/man/man8/weftd.8"
	cmp "$FILES/package/usr/lib/udev/rules.d/64-weft.rules" "$DIR/usr/lib/udev/rules.d/64-weft.rules"
	[ -s "$FILES/package/usr/share/doc/weft/docs/fsck.md.gz" ]
}

@test "weft-dbgsym has what a debugger needs for each program" {
	local program id
	dpkg-deb -x "$FILES"/deb/weft-dbgsym_*.deb "$DIR"
	for program in bin/weft sbin/weftd sbin/mkfs.weft sbin/fsck.weft; do
		! nm "$FILES/package/usr/$program" 2>/dev/null | grep -q .
		id=$(readelf -n "$FILES/package/usr/$program" | sed -n 's/.*Build ID: //p')
		readelf -S "$DIR/usr/lib/debug/.build-id/${id:0:2}/${id:2}.debug" | grep -q '\.debug_info'
	done
}

# Runs a script as root of an overlay over this machine's root.
over_root() {
	mkdir -p "$DIR/up" "$DIR/work" "$DIR/root"
	unshare --mount --pid --net --fork --kill-child bash -euc '
		mount -t overlay -o "lowerdir=/,upperdir=$1/up,workdir=$1/work" none "$1/root"
		cd "$1/root"
		mount -t proc none proc
		mount --rbind /sys sys
		mount --rbind /dev dev
		mount -t tmpfs none run
		mount --bind "$2" mnt
		exec chroot . /bin/bash -euc "$3"' over_root "$DIR" "$FILES/deb" "
		export PATH=/usr/sbin:/usr/bin:/sbin:/bin HOME=/root
		$1"
}

# The files that are there now and were not, or not so, before. Those of dpkg itself are left out.
left_behind() {
	(cd "$DIR/up" && find . ! -type d ! -path './var/lib/dpkg/*' ! -path './var/log/*' ! -path './var/cache/*')
}

@test "installed it passes its own tests; removed and purged it leaves nothing behind" {
	over_root '
		dpkg --force-unsafe-io --no-triggers -i /mnt/weft_*.deb
		for test in $(sed -n "s/^Tests: //p" /mnt/weft/debian/tests/control); do
			export AUTOPKGTEST_TMP=$(mktemp -d /var/tmp/weft-test.XXXXXX)
			echo "---- $test"
			"/mnt/weft/debian/tests/$test"
			rm -r "$AUTOPKGTEST_TMP"
		done
		dpkg -V weft
		dpkg --force-unsafe-io --no-triggers -r weft
		command -v weft weftd mkfs.weft fsck.weft && exit 1
		dpkg --force-unsafe-io --no-triggers -P weft
		! dpkg -s weft' 3>&-
	run left_behind
	echo "left: $output"
	[ -z "$output" ]
	[ -z "$(find "$DIR/up" -name '*weft*')" ]
}
