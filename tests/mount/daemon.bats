#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The daemon, `weft` and the helpers of mount(8): options, signals, refusals, messages.

load common

setup() { setup_store 64M; }
teardown() {
	umount -l "$DIR/copy" "$DIR/small" 2>/dev/null || true
	teardown_store
}

@test "SIGTERM unmounts and ends the daemon" {
	mount_store
	echo x >"$MNT/f"
	kill -TERM "$DAEMON"
	wait_until 10 gone "$DAEMON"
	run mountpoint -q "$MNT"
	[ "$status" -ne 0 ]
	mount_store
	[ "$(cat "$MNT/f")" = x ]
}

@test "SIGTERM on a busy mount detaches it and keeps what was written" {
	mount_store
	exec 7>"$MNT/f"
	echo x >&7
	kill -TERM "$DAEMON"
	wait_until 15 gone "$DAEMON"
	exec 7>&-
	mount_store
	[ "$(cat "$MNT/f")" = x ]
	umount_store
	check_store
}

@test "SIGTERM keeps what a program has stored through a mapping of a bind mount" {
	need python3
	mount_store
	echo 0000 >"$MNT/f"
	mkdir "$DIR/copy"
	mount --bind "$MNT" "$DIR/copy"
	python3 - "$DIR/copy/f" "$DAEMON" <<-'P'
		import mmap, os, signal, sys
		fd = os.open(sys.argv[1], os.O_RDWR)
		m = mmap.mmap(fd, 4)
		m[0:4] = b"kept"
		os.kill(int(sys.argv[2]), signal.SIGTERM)
		pid = os.pidfd_open(int(sys.argv[2]))
		import select
		assert select.select([pid], [], [], 20)[0]
	P
	umount "$DIR/copy"
	mount_store
	[ "$(cat "$MNT/f")" = kept ]
}

@test "SIGTERM leaves a filesystem that is mounted over the volume alone" {
	mount_store
	echo x >"$MNT/f"
	mount -t tmpfs over "$MNT"
	kill -TERM "$DAEMON"
	wait_until 15 gone "$DAEMON"
	grep -q "^over $MNT tmpfs" /proc/mounts
	umount "$MNT"
	weft umount "$MNT"
	mount_store
	[ "$(cat "$MNT/f")" = x ]
}

@test "on a full disk programs, status, metrics and umount say so, and the next mount has what they promised" {
	need python3
	mkdir "$DIR/small"
	mount -t tmpfs -o size=48M none "$DIR/small"
	STORE=$DIR/small/store
	truncate -s 256M "$STORE"
	mkfs.weft "$STORE" >"$DIR/mkfs.log"
	mount_store 2>"$DIR/said"
	python3 - "$MNT/f" >"$DIR/count" <<-'P'
		import errno, os, sys
		fd = os.open(sys.argv[1], os.O_CREAT | os.O_WRONLY)
		for i in range(20000):
		    try:
		        assert os.write(fd, bytes([1 + i % 255]) * 4096) == 4096
		    except OSError as e:
		        assert e.errno == errno.ENOSPC, e
		        print(i)
		        break
	P
	[ -s "$DIR/count" ]
	weft status "$MNT" | grep "^NOT WRITTEN: the store refuses writes (No space left on device), [1-9]"
	weft status "$MNT" --prometheus | grep '^weft_cache_write_failures_total{.*} [1-9]'
	run weft umount "$MNT"
	echo "$output"
	[ "$status" -eq 2 ]
	[[ $output =~ "No space left on device" && $output =~ [1-9][0-9]*\ pages.*wait\ in\ the\ store\'s\ log ]]
	# how much was dirty by then is up to the machine: what the log has no room for is lost, and said so
	lost=$(grep -oP 'up to \K[0-9]+(?= pages .* LOST)' <<<"$output" || echo 0)
	run weftd "$STORE" "$MNT"
	[[ $status -ne 0 && $output == *"No space left on device"* ]]
	mount -o remount,size=200M "$DIR/small"
	mount_store
	python3 - "$MNT/f" "$(cat "$DIR/count")" "$lost" <<-'P'
		import sys
		data, count = open(sys.argv[1], "rb").read(), int(sys.argv[2])
		assert len(data) == count * 4096
		wrong = sum(data[i * 4096:(i + 1) * 4096] != bytes([1 + i % 255]) * 4096 for i in range(count))
		assert wrong <= int(sys.argv[3]), wrong
	P
	umount_store
	check_store
}

@test "each thread of weftd has the capabilities that it uses alone, and can gain none" {
	local own used thread
	mount_store
	own=$((0x$(sed -n 's/^CapBnd:\t//p' /proc/self/status)))
	# dac_override, dac_read_search, net_bind_service, ipc_lock, sys_ptrace, sys_admin, sys_resource
	used=$(printf %016x $((own & (1 << 1 | 1 << 2 | 1 << 10 | 1 << 14 | 1 << 19 | 1 << 21 | 1 << 24))))
	for thread in /proc/"$DAEMON"/task/*/status; do
		[ "$(grep -c -E "^Cap(Prm|Eff|Bnd):.$used$" "$thread")" -eq 3 ]
		grep -q "^NoNewPrivs:.1$" "$thread"
	done
	umount_store
}

@test "umount(8) ends the daemon" {
	mount_store
	umount "$MNT"
	wait_until 10 gone "$DAEMON"
}

@test "weft umount waits for who uses the mount for a moment, and is refused by who stays" {
	mount_store
	exec 7<"$MNT"
	! weft umount "$MNT" 2>"$DIR/said" || return 1
	grep "busy; .fuser" "$DIR/said"
	mountpoint -q "$MNT"
	sleep 0.3 7<"$MNT" &
	exec 7<&-
	weft umount "$MNT"
	wait_until 10 gone "$DAEMON"
	wait $!
}

@test "weft umount returns when the store is free" {
	for i in 1 2 3 4 5; do
		mount_store
		echo "$i" >"$MNT/f"
		umount_store
	done
	mount_store
	[ "$(cat "$MNT/f")" = 5 ]
}

@test "a connection that is cut under load ends the daemon, and the volume is whole" {
	need dd
	for round in 1 2 3 4 5; do
		weftd "$STORE" "$MNT" -o cache=16M -f 2>>"$DIR/log" &
		DAEMON=$!
		echo "$DAEMON" >>"$DIR/pids"
		wait_until 60 weft status "$MNT"
		echo "$round" >"$MNT/synced"
		weft sync "$MNT"
		load=()
		for i in 1 2 3 4 5 6; do
			# again and again, as the volume would soon be full; within the mount, as its path
			# leads elsewhere when that has gone
			(cd "$MNT" && while dd if=/dev/zero of="f$i" bs=256K count=16 conv=notrunc; do :; done) \
				>/dev/null 2>&1 3>&- &
			load+=($!)
		done
		wait_until 10 [ -s "$MNT/f6" ]
		umount -f "$MNT" 2>/dev/null || umount -l "$MNT"
		wait "$DAEMON" # its exit code
		for pid in "${load[@]}"; do wait "$pid" || true; done
		! mounted "$MNT" fuse.weft || umount -l "$MNT"
		check_store
		mount_store
		[ "$(cat "$MNT/synced")" = "$round" ]
		rm -f "$MNT"/f?
		umount_store
	done
	cat "$DIR/log"
	! grep -i "error\|sanitizer" "$DIR/log"
}

@test "a daemon started with its standard descriptors closed serves and ends as others do" {
	weftd "$STORE" "$MNT" -o cache=16M <&- >&- 2>&-
	DAEMON=$(weft status "$MNT" --json | sed -n 's/^  "pid": \([0-9]*\),*$/\1/p')
	echo "$DAEMON" >>"$DIR/pids"
	echo x >"$MNT/f"
	weft sync "$MNT"
	kill -TERM "$DAEMON"
	wait_until 10 gone "$DAEMON"
	check_store
}

@test "a store is mounted once at a time" {
	mount_store
	mkdir "$DIR/other"
	run weftd "$STORE" "$DIR/other"
	[ "$status" -eq 32 ]
	[[ $output == *"in use"* ]]
}

@test "wrong command lines say what is wrong" {
	run weftd
	[ "$status" -eq 1 ]
	[[ $output == *"--help"* ]]
	run weftd "$STORE" "$MNT" -o nonsense
	[ "$status" -eq 1 ]
	[[ $output == *'"nonsense" is unknown'* ]]
	run weftd "$STORE" "$MNT" -o cache=many
	[ "$status" -eq 1 ]
	[[ $output == *"cache=many"* ]]
	run weftd "$DIR/absent" "$MNT"
	[ "$status" -eq 32 ]
	[[ $output == *"absent"* ]]
	run weftd "$STORE" "$DIR/absent"
	[ "$status" -eq 32 ]
	run weftd "$STORE" "$STORE"
	[ "$status" -eq 32 ]
	[[ $output == *"not a directory"* ]]
}

@test "what is no store is refused" {
	head -c 16M /dev/zero >"$DIR/zeros"
	run weftd "$DIR/zeros" "$MNT"
	[ "$status" -eq 32 ]
	[[ $output == *"zeros"* ]]
	run mountpoint -q "$MNT"
	[ "$status" -ne 0 ]
}

@test "a read-only mount takes no change and leaves the store as it is" {
	mount_store
	echo x >"$MNT/f"
	umount_store
	sum=$(sha256sum <"$STORE")
	mount_store -o ro
	[ "$(cat "$MNT/f")" = x ]
	run touch "$MNT/g"
	[ "$status" -ne 0 ]
	[[ $output == *"Read-only"* ]]
	umount_store
	[ "$(sha256sum <"$STORE")" = "$sum" ]
}

@test "mount options reach the kernel" {
	mount_store -o nosuid,nodev,noexec,noatime,fsname=somewhere
	line=$(grep " $MNT fuse.weft " /proc/mounts)
	[[ $line == somewhere\ * ]]
	for word in nosuid nodev noexec noatime; do [[ $line == *"$word"* ]]; done
}

@test "status knows the mount by its point, store and UUID, as table, JSON and metrics" {
	mount_store
	echo x >"$MNT/f"
	weft status | grep -q "$MNT"
	weft status "$MNT" | grep -q "^mounted *$MNT"
	weft status "$STORE" | grep -q "^store *$STORE"
	uuid=$(weft status "$MNT" --json | sed -n 's/^  "volume_uuid": "\(.*\)",*$/\1/p')
	weft status "$uuid" >/dev/null
	weft status "$MNT" --json | python3 -m json.tool >/dev/null
	weft status "$MNT" --prometheus | grep -q '^weft_cache_frames{volume='
	weft status "$MNT" --prometheus | grep -q '^weft_request_duration_seconds_count{.*request="create"} [1-9]'
	run weft status "$DIR"
	[ "$status" -eq 2 ]
}

@test "a cached stat and read ask the daemon nothing" {
	mount_store
	echo data >"$MNT/f"
	cat "$MNT/f" >/dev/null
	stat "$MNT/f" >/dev/null
	count() { weft status "$MNT" --json | sed -n 's/^    "requests": \([0-9]*\),*$/\1/p'; }
	python3 - "$MNT/f" "$BIN/weft" "$MNT" <<-'P'
		import json, os, subprocess, sys
		path, weft, mnt = sys.argv[1:]
		def asked():
		    s = json.loads(subprocess.check_output([weft, "status", mnt, "--json"]))
		    return s["session"]["requests"]
		fd = os.open(path, os.O_RDONLY)
		os.pread(fd, 4, 0)
		os.stat(path)
		before = asked()
		for _ in range(1000):
		    assert os.pread(fd, 4, 0) == b"data"
		    os.stat(path)
		after = asked()
		assert after - before < 20, (before, after)
	P
}

@test "locks of both kinds exclude, and end with their process" {
	need flock python3
	mount_store
	: >"$MNT/f"
	exec 7>"$MNT/f"
	flock 7
	run flock -n "$MNT/f" true
	[ "$status" -eq 1 ]
	exec 7>&-
	flock -n "$MNT/f" true
	python3 - "$MNT/f" <<-'P'
		import fcntl, os, sys
		f = open(sys.argv[1], "r+")
		fcntl.lockf(f, fcntl.LOCK_EX, 10, 0)
		if os.fork() == 0:
		    g = open(sys.argv[1], "r+")
		    fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB, 10, 10)
		    try:
		        fcntl.lockf(g, fcntl.LOCK_EX | fcntl.LOCK_NB, 1, 5)
		        os._exit(1)
		    except OSError:
		        os._exit(0)
		assert os.wait()[1] == 0
	P
}

@test "a write by another user takes setuid off, at once" {
	mount_store
	cp /bin/true "$MNT/t"
	chmod 777 "$MNT"
	chown 1:1 "$MNT/t"
	chmod 6777 "$MNT/t"
	[ "$(stat -c %a "$MNT/t")" = 6777 ]
	setpriv --reuid 2 --regid 2 --clear-groups sh -c "echo >>'$MNT/t'"
	[ "$(stat -c %a "$MNT/t")" = 777 ]
	chmod 4755 "$MNT/t"
	chown 2:2 "$MNT/t"
	[ "$(stat -c %a "$MNT/t")" = 755 ]
}

@test "the helpers of mount(8) mount, remount and unmount" {
	ln -s "$BIN/weft" "$DIR/mount.weft"
	ln -s "$BIN/weft" "$DIR/umount.fuse.weft"
	"$DIR/mount.weft" "$STORE" "$MNT" -o rw,nosuid,cache=16M,_netdev,x-systemd.automount
	DAEMON=$(weft status "$MNT" --json | sed -n 's/^  "pid": \([0-9]*\),*$/\1/p')
	echo "$DAEMON" >>"$DIR/pids"
	grep " $MNT fuse.weft " /proc/mounts | grep nosuid | grep -qv nodev
	"$DIR/mount.weft" "$STORE" "$MNT" -o remount,ro,user_id=0,group_id=0
	run touch "$MNT/f"
	[ "$status" -ne 0 ]
	"$DIR/mount.weft" "$STORE" "$MNT" -o remount,rw,noatime
	touch "$MNT/f"
	wait_until 10 shows noatime
	"$DIR/mount.weft" "$STORE" "$MNT" -o remount,rw,nodev
	grep " $MNT fuse.weft " /proc/mounts | grep -w nodev | grep -w noatime
	"$DIR/umount.fuse.weft" "$MNT"
	wait_until 5 gone "$DAEMON"
}

# mount(8) alone, without a helper: the daemon learns of it from the kernel.
remount() {
	mount -i -o "remount,$1" "$MNT"
	wait_until 10 shows "$2"
}
shows() { weft status "$MNT" | grep "^mounted" | tr '(),' '   ' | grep -qw "$1"; }
# The access time of $MNT/f after a read, where the last was long ago; relatime would set it.
atime_read() {
	touch -a -d @1000000000 "$MNT/f"
	cat "$MNT/f" >/dev/null
	stat -c %X "$MNT/f"
}

@test "a remount changes when reading sets access times" {
	mount_store
	echo x >"$MNT/f"
	shows relatime
	[ "$(atime_read)" -gt 1000000000 ]
	remount noatime noatime
	[ "$(atime_read)" = 1000000000 ]
	remount strictatime strictatime
	[ "$(atime_read)" -gt 1000000000 ]
	remount relatime relatime
	[ "$(atime_read)" -gt 1000000000 ]
	remount nodiratime nodiratime
	shows relatime
	remount nosuid nosuid
	shows nodiratime
}

@test "another mount of the volume, or on top of it, is not the daemon's to follow" {
	mount_store
	echo x >"$MNT/f"
	mkdir "$DIR/copy"
	mount --bind "$MNT" "$DIR/copy"
	mount -i -o remount,bind,noatime "$DIR/copy"
	mount -t tmpfs -o noatime,sync none "$MNT"
	mount -i -o remount,ro "$MNT"
	sleep 2 # what has not happened by now does not happen
	umount "$MNT"
	umount "$DIR/copy"
	shows relatime
	shows rw
	[ "$(atime_read)" -gt 1000000000 ]
	remount noatime noatime
}

@test "a remount with sync makes names durable at once" {
	mount_store -o log_interval=3600
	flushes() { weft status "$MNT" --json | sed -n '/^  "log"/,/}/s/^    "flushes": \([0-9]*\),*$/\1/p'; }
	touch "$MNT/f"
	before=$(flushes)
	touch "$MNT/g"
	[ "$(flushes)" = "$before" ]
	remount sync sync
	touch "$MNT/h"
	[ "$(flushes)" -gt "$before" ]
	crash_store
	mount_store
	[ -e "$MNT/h" ]
}

@test "what a remount has made read-only is durable and takes no more times" {
	mount_store -o log_interval=3600
	echo x >"$MNT/f"
	touch -a -d @1000000000 "$MNT/f"
	remount ro ro
	cat "$MNT/f"
	[ "$(stat -c %X "$MNT/f")" = 1000000000 ]
	crash_store
	mount_store -o noatime
	[ "$(cat "$MNT/f")" = x ]
	[ "$(stat -c %X "$MNT/f")" = 1000000000 ]
}

# A cache of 1 MiB gives large reads in parts.
@test "a page that cannot be read is an error, not the end of the file" {
	need python3
	mount_store
	python3 -c 'for i in range(256): print(end=f"page {i:04} ".ljust(4096, "x"))' >"$MNT/f"
	umount_store
	python3 - "$STORE" <<-'P'
		import mmap, sys
		with open(sys.argv[1], "r+b") as f, mmap.mmap(f.fileno(), 0) as m:
		    at = -1
		    while (at := m.find(b"page 0200 ", at + 1)) >= 0:
		        m[at] ^= 1
	P
	for cache in 1M 64M; do
		CACHE=$cache mount_store
		run python3 - "$MNT/f" <<-'P'
			import errno, mmap, os, sys
			for direct in 0, os.O_DIRECT:
			    fd = os.open(sys.argv[1], os.O_RDONLY | direct)
			    buf = mmap.mmap(-1, 1 << 20)
			    try:
			        n = os.preadv(fd, [buf], 0)
			        # before the page a read may end, but what it gave is the file's
			        assert n <= 200 * 4096, n
			    except OSError as e:
			        assert e.errno in (errno.EIO, errno.EUCLEAN), e
			    try:
			        os.preadv(fd, [buf], 200 * 4096)
			        sys.exit("the page was read")
			    except OSError as e:
			        assert e.errno in (errno.EIO, errno.EUCLEAN), e
		P
		echo "$output"
		[ "$status" -eq 0 ]
		umount_store
	done
}

@test "resident memory stays within the cache, 64 MiB and 3 %" {
	CACHE=64M mount_store
	for i in 1 2 3 4; do dd if=/dev/zero of="$MNT/f$i" bs=1M count=10 status=none & done
	wait
	cat "$MNT"/f? >/dev/null
	rss=$(awk '/^VmRSS/ {print $2}' "/proc/$DAEMON/status")
	echo "$rss KiB"
	[ "$rss" -le $(((64 * 103 / 100 + 64) * 1024)) ]
}

@test "an idle daemon uses no processor" {
	mount_store
	touch "$MNT/f"
	sleep 6
	idles 3
}

# A long path with what separates fusermount3's options; a device node that anybody may open, in
# a mount namespace of the test's own.
@test "an ordinary user mounts through fusermount3: no option is lost, permissions are checked" {
	need fusermount3 setpriv unshare
	mkdir -p "$DIR/bin" "$DIR/dev" "$DIR/user/home"
	echo "someone:x:1000:1000::$DIR/user/home:/bin/sh" >"$DIR/passwd"
	install -m 755 "$BIN/weftd" "$BIN/weft" "$BIN/mkfs.weft" "$DIR/bin"
	home="$DIR/user/a,suid,b\\c/$(printf 'x%.0s' {1..200})/$(printf 'y%.0s' {1..200})"
	mkdir -p "$home"
	chown -R 1000:1000 "$DIR/user" "$MNT"
	export DIR MNT home
	export PATH=$DIR/bin:$PATH XDG_RUNTIME_DIR=$DIR/user
	cat >"$DIR/as_user" <<-'S'
		set -e
		mkfs.weft --size 32M "$home/store" >"$DIR/user/mkfs.log"
		weftd "$home/store" "$MNT" -o cache=8M,sync,noatime
		grep " $MNT fuse.weft " /proc/mounts
		weft status "$MNT" | grep '^mounted .*noatime.*sync'
		weft waits | grep -F "$MNT: nothing waits"
		weft top -b -n 1 | grep -F "  $MNT, weftd"
		echo secret >"$MNT/f"
		chmod 0 "$MNT/f"
		! cat "$MNT/f" 2>/dev/null || exit 1
		exec 3<"$MNT/"
		! weft umount "$MNT" 2>"$DIR/user/said" || exit 1
		exec 3<&-
		grep "busy; .fuser" "$DIR/user/said"
		weft umount "$MNT"
		! grep -q " $MNT fuse.weft " /proc/mounts || exit 1
		# as of cron, and found from a session
		env -u XDG_RUNTIME_DIR weftd "$home/store" "$MNT" -o cache=8M
		ls "$DIR"/user/home/.weft/*.sock
		weft status | grep -F " $home/store"
		weft umount "$MNT"
	S
	run unshare -m sh -ec '
		mount -t tmpfs none "$DIR/dev"
		mknod -m 666 "$DIR/dev/fuse" c 10 229
		mount --bind "$DIR/dev/fuse" /dev/fuse
		mount -t tmpfs none /run/user
		mount --bind "$DIR/passwd" /etc/passwd
		setpriv --reuid 1000 --regid 1000 --clear-groups sh "$DIR/as_user"
		mkfs.weft --size 32M "$DIR/roots" >/dev/null
		weftd "$DIR/roots" "$MNT" -o cache=8M
		! setpriv --reuid 1000 --regid 1000 --clear-groups weft umount "$MNT" 2>"$DIR/refused" || exit 1
		grep -F "not permitted: root has mounted it; use \`sudo weft umount $MNT\`" "$DIR/refused"
		setpriv --reuid 1000 --regid 1000 --clear-groups weft status >"$DIR/told"
		grep -F "$MNT is mounted by root, and its weftd answers only root; use \`sudo weft status\`" "$DIR/told"
		! grep "No weft volume" "$DIR/told" || exit 1
		setpriv --reuid 1000 --regid 1000 --clear-groups weft waits | grep -F "use \`sudo weft waits\`"
		! setpriv --reuid 1000 --regid 1000 --clear-groups weft top "$MNT" -b -n 1 2>"$DIR/refused" || exit 1
		grep -F "\`sudo weft status\` what root has mounted" "$DIR/refused"
		weft umount "$MNT"'
	echo "$output"
	[ "$status" -eq 0 ]
	[[ ${lines[0]} == "$DIR/user/a,suid,b"* ]]
	for word in nosuid nodev noatime sync default_permissions; do
		[[ ,${lines[0]##* fuse.weft }, == *[,\ ]$word[,\ ]* ]]
	done
}
