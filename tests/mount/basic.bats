#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# A volume is made, mounted, used, unmounted and mounted again.

load common

setup() { setup_store; }
teardown() { teardown_store; }

@test "a new volume mounts, is empty and says its size" {
	mount_store
	[ -z "$(ls -A "$MNT")" ]
	[ "$(stat -c %F "$MNT")" = directory ]
	mounted "$MNT" fuse.weft
	size=$(df --output=size -B1M "$MNT" | tail -1)
	[ "$size" -gt 200 ] && [ "$size" -le 256 ]
}

@test "files keep their bytes across a remount" {
	mount_store
	head -c 5000000 /dev/urandom >"$DIR/data"
	cp "$DIR/data" "$MNT/data"
	printf x >"$MNT/one"
	: >"$MNT/empty"
	cmp "$DIR/data" "$MNT/data"
	remount_store
	cmp "$DIR/data" "$MNT/data"
	[ "$(cat "$MNT/one")" = x ]
	[ ! -s "$MNT/empty" ]
	[ "$(stat -c %s "$MNT/data")" = 5000000 ]
}

@test "a tree of directories is the same after a remount, and goes away with rm -r" {
	mount_store
	mkdir -p "$MNT"/a/{b,c}/{d,e}
	for d in "$MNT"/a/*/*; do seq 1 1000 >"$d/numbers"; done
	(cd "$MNT" && find . -exec stat -c '%n %F %a %h %s' {} + | sort) >"$DIR/before"
	remount_store
	(cd "$MNT" && find . -exec stat -c '%n %F %a %h %s' {} + | sort) >"$DIR/after"
	diff "$DIR/before" "$DIR/after"
	rm -r "$MNT/a"
	[ -z "$(ls -A "$MNT")" ]
	umount_store
	check_store
}

@test "rename moves, replaces, refuses and exchanges" {
	mount_store
	cd "$MNT"
	echo 1 >one
	echo 2 >two
	mkdir dir
	mv one dir/one
	[ "$(cat dir/one)" = 1 ]
	[ ! -e one ]
	mv dir/one two
	[ "$(cat two)" = 1 ]
	run mv -T two dir
	[ "$status" -ne 0 ]
	mkdir dir/sub
	run mv dir dir/sub/
	[ "$status" -ne 0 ]
	echo 3 >three
	mv -n three two
	[ "$(cat two)" = 1 ]
	cd /
	remount_store
	[ "$(ls "$MNT" | tr '\n' ' ')" = "dir three two " ]
}

@test "symlinks, short and long, say what they were told" {
	mount_store
	long=$(printf 'x%.0s' $(seq 1 4000))
	ln -s target "$MNT/short"
	ln -s "$long" "$MNT/long"
	remount_store
	[ "$(readlink "$MNT/short")" = target ]
	[ "$(readlink "$MNT/long")" = "$long" ]
}

@test "hard links share a file until the last one goes" {
	mount_store
	echo hello >"$MNT/a"
	ln "$MNT/a" "$MNT/b"
	[ "$(stat -c %h "$MNT/a")" = 2 ]
	[ "$(stat -c %i "$MNT/a")" = "$(stat -c %i "$MNT/b")" ]
	rm "$MNT/a"
	[ "$(stat -c %h "$MNT/b")" = 1 ]
	[ "$(cat "$MNT/b")" = hello ]
	run ln "$MNT" "$MNT/root"
	[ "$status" -ne 0 ]
}

@test "permissions and owners are kept and obeyed" {
	mount_store
	echo secret >"$MNT/s"
	chmod 600 "$MNT/s"
	chown 1:1 "$MNT/s"
	remount_store
	[ "$(stat -c '%a %u %g' "$MNT/s")" = "600 1 1" ]
	run setpriv --reuid 2 --regid 2 --clear-groups cat "$MNT/s"
	[ "$status" -ne 0 ]
	[ "$(setpriv --reuid 1 --regid 1 --clear-groups cat "$MNT/s")" = secret ]
}

@test "umask applies to what is made" {
	mount_store
	(umask 027 && : >"$MNT/f" && mkdir "$MNT/d")
	[ "$(stat -c %a "$MNT/f")" = 640 ]
	[ "$(stat -c %a "$MNT/d")" = 750 ]
}

@test "fifos, sockets and devices are made with their numbers" {
	mount_store
	mkfifo "$MNT/fifo"
	mknod "$MNT/null" c 1 3
	mknod "$MNT/far" b 259 70000
	remount_store
	[ -p "$MNT/fifo" ]
	[ "$(stat -c '%t %T' "$MNT/null")" = "1 3" ]
	[ "$(stat -c '%t %T' "$MNT/far")" = "103 11170" ]
}

@test "times have nanoseconds, and a birth" {
	mount_store
	before=$(date +%s)
	: >"$MNT/f"
	touch -d '2001-02-03 04:05:06.123456789 UTC' "$MNT/f"
	remount_store
	[ "$(TZ=UTC stat -c %y "$MNT/f")" = "2001-02-03 04:05:06.123456789 +0000" ]
	[ "$(stat -c %W "$MNT/f")" -ge "$before" ]
}

@test "an unlinked file lives while it is open" {
	mount_store
	exec 7<>"$MNT/f"
	echo data >&7
	rm "$MNT/f"
	[ ! -e "$MNT/f" ]
	[ "$(cat "/proc/$$/fd/7")" = data ] || [ "$(cat /dev/fd/7 7<&7)" = data ]
	exec 7>&-
	umount_store
	check_store
}

@test "sparse files and truncation" {
	mount_store
	truncate -s 10G "$MNT/big"
	[ "$(stat -c %b "$MNT/big")" -lt 100 ]
	printf end | dd of="$MNT/big" bs=1 seek=5G conv=notrunc status=none oflag=seek_bytes
	[ "$(dd if="$MNT/big" bs=3 count=1 skip=5G iflag=skip_bytes status=none)" = end ]
	truncate -s 2 "$MNT/big"
	truncate -s 100 "$MNT/big"
	[ "$(tr -d '\0' <"$MNT/big" | wc -c)" = 0 ]
}

@test "O_APPEND, O_DIRECT and O_TMPFILE" {
	mount_store
	for i in 1 2 3; do echo $i >>"$MNT/log"; done
	[ "$(tr '\n' ' ' <"$MNT/log")" = "1 2 3 " ]
	head -c 1M /dev/urandom >"$DIR/data"
	dd if="$DIR/data" of="$MNT/direct" bs=64k oflag=direct status=none
	dd if="$MNT/direct" of="$DIR/back" bs=64k iflag=direct status=none
	cmp "$DIR/data" "$DIR/back"
	cmp "$DIR/data" "$MNT/direct"
	need python3
	python3 - "$MNT" <<-'P'
		import os, subprocess, sys
		fd = os.open(sys.argv[1], os.O_TMPFILE | os.O_RDWR, 0o600)
		os.write(fd, b"named later")
		name = "/proc/%d/fd/%d" % (os.getpid(), fd)
		subprocess.check_call(["ln", "-L", name, sys.argv[1] + "/named"])
	P
	[ "$(cat "$MNT/named")" = "named later" ]
}

@test "what fstat says of a file that grows is there to be read" {
	local how
	mount_store
	for how in write direct allocate; do
		timeout 60 python3 "$BATS_TEST_DIRNAME/sizes.py" ahead "$MNT" "$MNT" "$how"
	done
}

@test "mappings are read and written" {
	need python3
	mount_store
	python3 - "$MNT/m" <<-'P'
		import mmap, os, sys
		fd = os.open(sys.argv[1], os.O_RDWR | os.O_CREAT)
		os.ftruncate(fd, 1 << 20)
		m = mmap.mmap(fd, 1 << 20)
		m[100:105] = b"mmap!"
		m[-5:] = b"tail!"
		assert os.pread(fd, 5, 100) == b"mmap!"
		os.pwrite(fd, b"write", 5000)
		assert m[5000:5005] == b"write"
	P
	remount_store
	[ "$(dd if="$MNT/m" bs=1 skip=100 count=5 status=none)" = "mmap!" ]
	[ "$(tail -c 5 "$MNT/m")" = "tail!" ]
	[ "$(stat -c %s "$MNT/m")" = 1048576 ]
}

@test "a directory of 5,000 names lists each once" {
	mount_store
	mkdir "$MNT/d"
	(cd "$MNT/d" && seq -f 'name-%g' 1 5000 | xargs touch)
	[ "$(ls "$MNT/d" | sort -u | wc -l)" = 5000 ]
	remount_store
	[ "$(ls "$MNT/d" | sort -u | wc -l)" = 5000 ]
	rm -r "$MNT/d"
}

@test "a name may have 255 bytes and not one more" {
	mount_store
	name=$(printf 'n%.0s' $(seq 1 255))
	: >"$MNT/$name"
	[ -e "$MNT/$name" ]
	run touch "$MNT/${name}x"
	[ "$status" -ne 0 ]
	[[ $output == *"File name too long"* ]]
}

@test "a full volume says ENOSPC and unlink still works" {
	mount_store
	run dd if=/dev/zero of="$MNT/fill" bs=1M status=none
	[ "$status" -ne 0 ]
	[[ $output == *"No space left"* ]]
	rm "$MNT/fill"
	head -c 10M /dev/zero >"$MNT/again"
	umount_store
	check_store
}

@test "weft sync makes all files durable" {
	mount_store
	mkdir "$MNT/d"
	for i in $(seq 1 200); do head -c $((i * 100)) /dev/urandom >"$DIR/f$i"; done
	cp "$DIR"/f* "$MNT/d"
	weft sync "$MNT"
	crash_store
	mount_store
	for i in $(seq 1 200); do cmp "$DIR/f$i" "$MNT/d/f$i"; done
}

@test "what was fsynced is there after a crash" {
	mount_store
	head -c 300000 /dev/urandom >"$DIR/data"
	dd if="$DIR/data" of="$MNT/data" conv=fsync status=none
	crash_store
	mount_store
	cmp "$DIR/data" "$MNT/data"
	umount_store
	check_store
}
