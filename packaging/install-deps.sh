#!/bin/sh
# SPDX-License-Identifier: Apache-2.0
# Installs what weft needs to be built, run and tested on Debian 12 (and its relatives), and only
# what is missing: does nothing, quickly, when all is there. Needs root to install.
#   packaging/install-deps.sh          to build and run
#   packaging/install-deps.sh --check  also for `make check`
#   packaging/install-deps.sh --bench  also for `make bench`
#   packaging/install-deps.sh --deb    also for `make deb`
set -eu
# dpkg runs programs of these, which `su` without `-` leaves out
PATH=$PATH:/usr/local/sbin:/usr/sbin:/sbin

build="gcc make pkg-config scdoc iproute2 procps libc6-dev libfuse3-dev fuse3 liburing-dev libssl-dev libjansson-dev
	libblkid-dev libsmartcols-dev libncurses-dev libinih-dev libmicrohttpd-dev libcap-ng-dev libbsd-dev
	libisal-dev libibverbs-dev librdmacm-dev"
deb="dpkg-dev debhelper"
check="libcmocka-dev spin bats perl python3 fio attr acl util-linux sqlite3 git rsync xfsprogs nftables faketime
	stress-ng dbench fsmark e2fsprogs mount groff-base clang libclang-rt-dev gdb python3-prometheus-client curl
	qemu-system-x86 cpio kmod busybox-static ibverbs-providers ibverbs-utils perftest nfs-ganesha nfs-ganesha-vfs
	libnfs-utils lintian systemd zsh
	chromium-headless-shell prometheus"
bench="python3 e2fsprogs util-linux mount libfuse3-dev liblmdb-dev libwiredtiger-dev libdb-dev libcmocka-dev
	git rsync iproute2"

wanted=$build
case ${1:-} in
'') ;;
--check) wanted="$build $deb $check" ;;
--bench) wanted="$build $bench" ;;
--deb) wanted="$build $deb" ;;
*)
	echo "usage: $0 [--check|--bench|--deb]" >&2
	exit 2
	;;
esac

if ! command -v dpkg-query >/dev/null; then
	echo "This is no Debian-like system. Please install what these Debian packages hold:" $wanted >&2
	exit 1
fi

missing=
for package in $wanted; do
	# A package that is removed but not purged is still known: ask for its state.
	state=$(dpkg-query -W -f '${db:Status-Status}' "$package" 2>/dev/null) || state=
	[ "$state" = installed ] || missing="$missing $package"
done
[ -n "$missing" ] || exit 0

echo "Installing:$missing"
if [ "$(id -u)" != 0 ]; then
	echo "That needs root: sudo $0 ${1:-}" >&2
	exit 1
fi
# Tests start a server of their own, or use a package's tools alone: the services that these packages would
# start stay off.
units=
case $missing in
*nfs-ganesha*) units="nfs-ganesha.service rpcbind.service rpcbind.socket" ;;
esac
case $missing in
*" prometheus"*) units="$units prometheus.service" ;;
esac
for unit in $units; do
	systemctl cat "$unit" >/dev/null 2>&1 || systemctl mask "$unit" 2>/dev/null || true
done
export DEBIAN_FRONTEND=noninteractive
# on a fresh machine the nightly upgrade may hold the lock
apt-get -o DPkg::Lock::Timeout=300 update -q
# shellcheck disable=SC2086
apt-get -o DPkg::Lock::Timeout=300 install -q -y --no-install-recommends $missing
