#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Requests through io_uring: the conformance tests, random work, more requests at a time than there
# are entries, and every end of a connection under load. The kernel's switch is as it was afterwards.
# A kernel without FUSE over io_uring runs the same over the device: there uring=auto must mean that.

load common

SWITCH=/sys/module/fuse/parameters/enable_uring

setup_file() {
	need
	[ -x "$BIN/tests/mount/posix/run" ] || make -s -C "$ROOT" build/tests/mount/posix/run
	[ -x "$BIN/tests/mount/fsx/run" ] || make -s -C "$ROOT" build/tests/mount/fsx/run
	export SWITCH_WAS=none USED=false HOW=uring=auto
	if [ -w "$SWITCH" ]; then
		SWITCH_WAS=$(cat "$SWITCH")
		echo Y >"$SWITCH"
		USED=true HOW=uring=on
	else
		echo "# this kernel has no FUSE over io_uring: tested over the device" >&3
	fi
}

teardown_file() {
	[ "${SWITCH_WAS:-none}" = none ] || echo "$SWITCH_WAS" >"$SWITCH"
}

setup() { setup_store 512M; }

teardown() {
	[ -z "${CONTROL:-}" ] || umount "$CONTROL" || true
	teardown_store
}

session_value() {
	weft status "$MNT" --json | sed -n "s/^    \"$1\": \([a-z0-9]*\),*\$/\1/p"
}

uses_uring() {
	[ "$(session_value uring)" = "$USED" ]
	[ $USED = false ] || [ "$(session_value uring_requests)" -gt 0 ]
}

@test "a mount uses io_uring where the kernel offers it, and says so" {
	mount_store
	uses_uring
	[ $USED = false ] || weft status "$MNT" | grep -q '^mounted .*by io_uring'
	remount_store -o uring=off
	echo x >"$MNT/f"
	[ "$(session_value uring)" = false ]
	[ "$(session_value uring_requests)" -eq 0 ]
	run weft status "$MNT"
	[[ $output != *"by io_uring"* ]]
	umount_store
	run weftd "$STORE" "$MNT" -o uring=perhaps
	[ "$status" -eq 1 ]
	[[ $output == *"uring=perhaps"*"auto, on or off"* ]]
}

@test "uring=on says what to do where the kernel does not offer it; auto does without" {
	[ $USED = false ] || echo N >"$SWITCH"
	run weftd "$STORE" "$MNT" -o uring=on
	[ $USED = false ] || echo Y >"$SWITCH"
	echo "$output"
	[ "$status" -eq 32 ]
	if [ $USED = true ]; then
		[[ $output == *"echo Y > $SWITCH"* ]]
	else
		[[ $output == *"Linux 6.14"* ]]
	fi
	run mountpoint -q "$MNT"
	[ "$status" -ne 0 ]
	[ $USED = false ] || echo N >"$SWITCH"
	mount_store
	[ $USED = false ] || echo Y >"$SWITCH"
	[ "$(session_value uring)" = false ]
	echo x >"$MNT/f"
	# what is mounted stays as it is
	[ "$(session_value uring)" = false ]
}

@test "the conformance tests" {
	mount_store -o $HOW
	mkdir "$MNT/t"
	"$BIN/tests/mount/posix/run" "$MNT/t" weft
	uses_uring
	umount_store
	check_store
}

@test "random work on names and data at once" {
	CACHE=16M mount_store -o $HOW
	mkdir "$MNT/names"
	"$BIN/tests/mount/fsx/run" names "$MNT/names" -n 3000 -p 3 >"$DIR/names.log" 2>&1 &
	"$BIN/tests/mount/fsx/run" data "$MNT" -n 2000 -d -m -p 3 -l 4194304
	wait $! || { cat "$DIR/names.log"; false; }
	umount_store
	check_store
}

@test "more requests at a time than entries: all are answered, memory stays bounded" {
	need python3
	mount_store -o $HOW
	timeout 60 python3 - "$MNT" <<-'P'
		import os, sys, threading
		mnt, failed = sys.argv[1], []
		def work(number):
		    try:
		        path, block = f"{mnt}/f{number}", bytes([number]) * (1 << 20)
		        fd = os.open(path, os.O_RDWR | os.O_CREAT)
		        for i in range(4):
		            os.pwrite(fd, block, i << 20)
		            os.fsync(fd)
		        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
		        for i in range(4):
		            assert os.pread(fd, 1 << 20, i << 20) == block
		        os.close(fd)
		        os.rename(path, path + ".done")
		    except BaseException as error:
		        failed.append(error)
		threads = [threading.Thread(target=work, args=(i,)) for i in range(64)]
		for t in threads: t.start()
		for t in threads: t.join()
		assert not failed, failed
	P
	[ "$(ls "$MNT" | grep -c done)" -eq 64 ]
	[ "$(session_value uring_entries)" -le $(($(getconf _NPROCESSORS_CONF) * 4 + 16)) ]
	rss=$(awk '/^VmRSS/ {print $2}' "/proc/$DAEMON/status")
	echo "$rss KiB, $(session_value workers) workers"
	[ "$rss" -le $(((64 * 103 / 100 + 64) * 1024)) ]
	umount_store
	check_store
}

requests() {
	weft status "$MNT" --json | python3 -c "import json, sys
print(json.load(sys.stdin)['requests'].get('$1', {}).get('count', 0))"
}

# Memory that begins within a page has bytes in 257 pages for each MiB.
@test "1 MiB of direct I/O from any memory is one request, where 257 pages are allowed" {
	local limit=/proc/sys/fs/fuse/max_pages_limit was how
	need python3
	[ -w $limit ] || skip "this kernel allows 256 pages"
	for how in $HOW uring=off; do
		was=$(cat $limit)
		echo 257 >$limit
		mount_store -o $how
		echo "$was" >$limit
		timeout 60 python3 - "$MNT/$how" <<-'P'
			import mmap, os, sys
			MIB, COUNT = 1 << 20, 8
			def unaligned():
			    return memoryview(mmap.mmap(-1, 2 * MIB))[512:512 + MIB]
			fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT | os.O_DIRECT)
			blocks = [os.urandom(MIB) for _ in range(COUNT)]
			memory = unaligned()
			for i, block in enumerate(blocks):
			    memory[:] = block
			    assert os.pwrite(fd, memory, i * MIB) == MIB
			for i, block in enumerate(blocks):
			    assert os.preadv(fd, [memory], i * MIB) == MIB
			    assert memory == block
		P
		echo "$how: $(requests write) WRITE, $(requests read) READ"
		[ "$(requests write)" -eq 8 ]
		[ "$(requests read)" -eq 8 ]
		umount_store
	done
	check_store
}

@test "an idle daemon uses no processor" {
	mount_store -o $HOW,log_interval=0.1
	dd if=/dev/zero of="$MNT/f" bs=1M count=32 conv=fsync status=none
	sleep 4
	idles 2
}

# Writers, readers and name changes on $MNT, until it fails or is gone, at most a few seconds.
load_mount() {
	local i
	for i in 1 2 3 4 5; do
		(
			end=$((SECONDS + 4))
			while [ $SECONDS -lt $end ]; do
				dd if=/dev/zero of="$MNT/f$i" bs=1M count=4 conv=fsync status=none || exit
				cat "$MNT/f$i" >/dev/null || exit
				for n in 1 2 3 4 5 6; do : >"$MNT/n$i.$n" || exit; done
				rm "$MNT/n$i".* || exit
			done
		) >/dev/null 2>&1 &
	done
	sleep 0.7
}

# The daemon ends, nobody hangs, and the store is sound.
assert_ended() {
	wait_until 20 gone "$DAEMON"
	wait
	! mounted "$MNT" fuse.weft || umount -l "$MNT"
	check_store
}

@test "umount under load" {
	mount_store -o $HOW
	load_mount
	umount -l "$MNT"
	assert_ended
}

@test "SIGTERM under load" {
	mount_store -o $HOW
	load_mount
	kill "$DAEMON"
	assert_ended
}

@test "an aborted connection under load" {
	CONTROL=$DIR/control
	mkdir "$CONTROL"
	mount -t fusectl none "$CONTROL"
	mount_store -o $HOW
	load_mount
	number=$(stat -c %d "$MNT")
	echo 1 >"$CONTROL/$((number & 0xff | number >> 12 & 0xfff00))/abort"
	assert_ended
}

@test "kill -9 under load" {
	mount_store -o $HOW
	load_mount
	crash_store
	assert_ended
	mount_store -o $HOW
	umount_store
	check_store
}
