#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Programs that people use, and Debian's filesystem testers, on a mount; fsck finds nothing after.

load common

setup() {
	setup_store 1G
	CACHE=32M mount_store
	cd "$MNT"
}

# What a test has passed with is also sound on the store.
finish() {
	cd /
	umount_store
	check_store
}

teardown() {
	cd /
	umount -l "$MNT/merged" 2>/dev/null || true
	teardown_store
}

# A folder of every kind of thing, with all that an archive should keep.
make_tree() {
	mkdir -p "$1/dir/sub" "$1/empty"
	head -c 100000 /dev/urandom >"$1/dir/data"
	seq 1 5000 >"$1/dir/sub/text"
	ln "$1/dir/data" "$1/dir/sub/hard"
	ln -s ../dir/data "$1/dir/soft"
	ln -s nowhere "$1/dangling"
	mkfifo "$1/fifo"
	truncate -s 50M "$1/sparse"
	printf middle | dd of="$1/sparse" bs=1 seek=20M conv=notrunc oflag=seek_bytes status=none
	printf 'odd \001\377 name' >"$1/$(printf 'odd \001\377 name')"
	setfattr -n user.color -v blue "$1/dir/data"
	setfattr -n user.big -v "$(head -c 1500 /dev/zero | tr '\0' b)" "$1/dir/sub/text"
	setfacl -m u:12345:rw,g:54321:r "$1/dir/sub/text"
	setfacl -d -m u:12345:rwx "$1/dir"
	chmod 2755 "$1/dir/sub"
	chmod 1777 "$1/empty"
	chown -h 1000:1000 "$1/dir/soft" "$1/dir/data"
	touch -d '2001-02-03 04:05:06.123456789' "$1/dir/data" "$1/empty"
}

# All of a tree that must be the same in a copy.
describe() (
	cd "$1"
	find . ! -type d -printf '%p %y %m %U %G %s %n %l %T@\n' | sort
	find . -type d -printf '%p %y %m %U %G %n\n' | sort
	find . -type f -exec sha256sum {} + | sort
	find . ! -type l -print0 | sort -z | xargs -0 getfacl -n -p
	find . -type f -exec getfattr -h -d -m - --absolute-names {} + | sort
)

assert_copy() {
	describe "$1" >"$DIR/want"
	describe "$2" >"$DIR/got"
	diff "$DIR/want" "$DIR/got"
	[ "$(stat -c %i "$2/dir/data")" = "$(stat -c %i "$2/dir/sub/hard")" ]
}

@test "git: init, commit, clone, gc, fsck" {
	need git
	export HOME=$DIR GIT_CONFIG_NOSYSTEM=1
	git config --global user.email a@b.c
	git config --global user.name name
	git init -q one
	for i in 1 2 3 4 5; do
		cp -r "$ROOT/engine" one/
		echo "$i" >"one/engine/number"
		git -C one add -A
		git -C one commit -q -m "commit $i"
	done
	git clone -q one two
	git clone -q --no-local one three
	git -C two checkout -q -b branch HEAD~2
	git -C two gc -q --prune=now
	git -C three repack -q -a -d
	for r in one two three; do
		git -C $r fsck --full --strict
		[ -z "$(git -C $r status --porcelain)" ]
	done
	finish
}

@test "sqlite: a rollback journal, WAL, two writers" {
	need sqlite3
	for mode in delete wal truncate; do
		sqlite3 "$mode.db" "pragma journal_mode=$mode; create table t(a integer primary key, b)"
		for w in 1 2; do
			(for i in $(seq 1 15); do
				sqlite3 "$mode.db" ".timeout 20000" \
					"insert into t(b) select randomblob(500) from generate_series(1,40)" ||
					exit 1
			done) &
		done
		wait
		[ "$(sqlite3 "$mode.db" 'pragma integrity_check')" = ok ]
		[ "$(sqlite3 "$mode.db" 'select count(*) from t')" = 1200 ]
		sqlite3 "$mode.db" "delete from t where a % 2; vacuum"
		[ "$(sqlite3 "$mode.db" 'pragma integrity_check')" = ok ]
	done
	finish
}

@test "cp -a, tar and rsync keep everything" {
	need rsync setfacl setfattr
	make_tree tree
	cp -a tree copied
	assert_copy tree copied
	[ "$(stat -c %b copied/sparse)" -lt 1000 ]
	tar --xattrs --xattrs-include='*' --acls -S -cf tree.tar tree
	mkdir untarred
	tar --xattrs --xattrs-include='*' --acls -S -xpf tree.tar -C untarred
	assert_copy tree untarred/tree
	tar --compare -f tree.tar
	# without the window rsync leaves a time alone that is right to the second
	rsync -aHAXS --modify-window=-1 tree/ synced/
	assert_copy tree synced
	[ -z "$(rsync -aHAXSn --modify-window=-1 --delete -c -i tree/ synced/)" ]
	# to another filesystem and back
	cp -a tree "$DIR/outside"
	assert_copy tree "$DIR/outside"
	mkdir back
	cp -a "$DIR/outside" back/tree
	assert_copy tree back/tree
	diff -r --no-dereference -x fifo tree back/tree
	finish
}

@test "gcc and make build in parallel, and what they built runs" {
	need gcc make
	mkdir src
	for i in $(seq 1 20); do
		echo "int f$i(int x) { return x + $i; }" >"src/f$i.c"
		echo "int f$i(int x);" >>src/all.h
	done
	{
		echo '#include "all.h"'
		echo 'int main(void) { int x = 0;'
		for i in $(seq 1 20); do echo "x = f$i(x);"; done
		echo 'return x == 210 ? 0 : 1; }'
	} >src/main.c
	printf 'main: %s main.o\n\tgcc -o $@ $^\n%%.o: %%.c\n\tgcc -O1 -c $< -o $@\n' \
		"$(seq -f 'f%g.o' -s ' ' 1 20)" >src/Makefile
	make -s -C src -j2
	src/main
	sleep 1.1
	touch src/f3.c
	[ "$(make -C src -j2 | grep -c 'gcc -O1')" = 1 ]
	finish
}

fio_verify() {
	fio --name="$1" --directory="$MNT" --size=24m --verify=crc32c --verify_fatal=1 \
		--randseed=1 --output="$DIR/fio.log" "${@:2}" || { cat "$DIR/fio.log"; false; }
}

@test "fio verifies what it wrote, with every engine" {
	need fio
	fio_verify psync --ioengine=psync --rw=randwrite --bs=4k
	fio_verify direct --ioengine=psync --direct=1 --rw=randwrite --bs=4k
	fio_verify mmap --ioengine=mmap --rw=randwrite --bs=4k
	fio_verify uring --ioengine=io_uring --rw=randwrite --bs=4k-64k --iodepth=16
	fio_verify uring-direct --ioengine=io_uring --direct=1 --rw=randwrite --bs=4k --iodepth=16
	fio_verify libaio --ioengine=libaio --direct=1 --rw=randwrite --bs=4k --iodepth=16
	fio_verify vsync --ioengine=vsync --rw=write --bs=512-9k --bs_unaligned=1
	fio_verify fsync --ioengine=psync --rw=randwrite --bs=4k --fsync=16 --size=4m
	fio_verify jobs --ioengine=psync --rw=randrw --bs=8k --numjobs=4 --size=8m --group_reporting
	finish
}

@test "dbench" {
	need dbench
	dbench -D "$MNT" -t 5 -c /usr/share/dbench/client.txt 4 >"$DIR/dbench.log" ||
		{ tail -20 "$DIR/dbench.log"; false; }
	grep -q '^Throughput' "$DIR/dbench.log"
	finish
}

@test "fs_mark" {
	need fs_mark
	# A folder for each thread: it draws its files' names with the microsecond of its start as seed,
	# so that two threads may draw the same ones.
	local marks=("$MNT"/marks/{1,2,3,4}) folder
	mkdir "$MNT/marks"
	fs_mark "${marks[@]/#/-d}" -n 500 -s 16384 -t 4 -S 1 -k >"$DIR/marks.log"
	for folder in "${marks[@]}"; do
		[ "$(find "$folder" -type f -size 16384c | wc -l)" = 500 ]
	done
	rm -r "$MNT/marks"
	finish
}

# Each group of stressors at once. Not `io`: it opens all mounts there are, so those of other suites cannot
# be unmounted meanwhile.
stressors() {
	local group s
	for group in "$@"; do
		local args=()
		for s in $group; do args+=("--$s" 1); done
		stress-ng "${args[@]}" --timeout 2 --temp-path "$MNT/ng" --verify --oom-avoid \
			--copy-file-bytes 128M --fallocate-bytes 16M --fiemap-bytes 16M \
			--hdd-bytes 16M --iomix-bytes 16M --mmap-bytes 16M --readahead-bytes 16M \
			--sync-file-bytes 16M >"$DIR/ng.log" 2>&1 || { cat "$DIR/ng.log"; false; }
	done
}

@test "stress-ng's filesystem stressors" {
	need stress-ng
	mkdir ng
	# a few seconds of each that a FUSE filesystem can serve
	stressors \
		"access chattr chdir chmod chown close" "copy-file dentry dir dirdeep dirmany dup" \
		"dynlib fallocate fanotify fcntl fiemap file-ioctl filename" \
		"flock fpunch fstat getdent handle hdd" "inode-flags inotify iomix lease link" \
		"locka lockf lockofd mknod open readahead" "rename revio seek sendfile splice symlink" \
		"sync-file touch utime verity xattr" "mmap mmapfixed mmapmany msync"
	cd /
	rm -rf "$MNT/ng"
	finish
}

@test "overlayfs on top" {
	grep -qw overlay /proc/filesystems || modprobe overlay 2>/dev/null || return 0
	mkdir -p lower/sub upper work merged
	echo a >lower/a
	echo b >lower/b
	mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged
	rm merged/a
	mv merged/b merged/c
	echo more >>merged/c
	mkdir merged/new
	rm -r merged/sub
	umount merged
	[ -c upper/a ] && [ -c upper/b ] && [ -c upper/sub ]
	[ "$(cat upper/c)" = "$(printf 'b\nmore')" ]
	mount -t overlay overlay -o lowerdir=lower,upperdir=upper,workdir=work merged
	[ "$(ls merged | tr '\n' ' ')" = "c new " ]
	umount merged
	finish
}

@test "xfs_io's commands" {
	need xfs_io
	xfs_io -f -c 'pwrite -S 0x61 0 64k' -c 'fpunch 4k 8k' -c 'fzero 32k 100' \
		-c 'falloc -k 64k 64k' -c fsync f >/dev/null
	[ "$(stat -c %s f)" = 65536 ]
	[ "$(xfs_io -c 'seek -h 0' f | tail -1 | awk '{print $2}')" = 4096 ]
	[ "$(xfs_io -c 'seek -d 4k' f | tail -1 | awk '{print $2}')" = 12288 ]
	xfs_io -c 'mmap 0 64k' -c 'mwrite -S 0x62 0 4k' -c 'msync -s' -c munmap f
	[ "$(head -c 4096 f | tr -d b | wc -c)" = 0 ]
	xfs_io -f -c 'copy_range f' g
	cmp f g
	xfs_io -c 'truncate 100' -c 'pwrite -V 4 -b 1k 0 4k' -c 'pread 0 4k' g >/dev/null
	xfs_io -f -d -c 'pwrite 0 8k' -c 'pread 0 8k' direct >/dev/null
	xfs_io -T -c 'pwrite 0 4k' -c 'flink named' . >/dev/null
	[ "$(stat -c '%s %h' named)" = "4096 1" ]
	xfs_io -c 'statx -r -m 0xfff' f | grep -q 'stat.btime.tv_sec = [1-9]'
	xfs_io -c 'sync_range 0 64k' -c syncfs f
	finish
}

@test "setfacl, getfacl, setfattr, getfattr" {
	need setfacl setfattr
	mkdir d
	setfacl -m u:1001:rwx,g:1002:r-x,d:u:1001:rw d
	: >d/f
	getfacl -n --absolute-names d/f | grep -q '^user:1001:rw'
	getfacl -R -n d >"$DIR/acls"
	setfacl -R -b -k d
	[ "$(getfacl -s -n d/f)" = "" ]
	setfacl --restore="$DIR/acls"
	getfacl -R -n d | diff "$DIR/acls" -
	setfattr -n user.a -v 0x00ff10 d/f
	setfattr -n user.b -v 0sAAEC d/f
	[ "$(getfattr -n user.a -e hex --only-values --absolute-names d/f | wc -c)" = 3 ]
	getfattr -d -m - d/f >"$DIR/attrs"
	setfattr -x user.a d/f
	setfattr --restore="$DIR/attrs"
	getfattr -d -m - d/f | diff "$DIR/attrs" -
	head -c 65536 /dev/zero | tr '\0' v >"$DIR/value"
	python3 -c 'import os,sys; os.setxattr("d/f", "user.big", open(sys.argv[1],"rb").read())' \
		"$DIR/value"
	getfattr -n user.big --only-values --absolute-names d/f | cmp - "$DIR/value"
	finish
}
