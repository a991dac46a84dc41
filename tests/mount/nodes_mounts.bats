#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# What a node's programs have on top of a volume, or hold of its names, stays while other nodes change names.

load common

setup() {
	setup_nodes 2
	mount_nodes
	A=${M[1]} B=${M[2]}
	OVER=$DIR/over
}

teardown() {
	local pid
	cd /
	for pid in "${RUNNING[@]}"; do kill -9 "$pid" 2>/dev/null || true; done
	umount -l "$OVER" 2>/dev/null || true
	# what is mounted on the volume
	grep -o " $DIR/m2/[^ ]*" /proc/mounts | sort -r | while read -r point; do umount -l "$point" || true; done
	teardown_nodes
}

# Node 1 changes names beside those that node 2 uses, in the same directories and in others.
change_names() {
	local n dir
	mkdir -p "$A/else"
	for n in $(seq 20); do
		for dir in "$A" "$A/d" "$A/d/deep" "$A/low" "$A/else"; do
			echo "$n" >"$dir/x$n"
			mv "$dir/x$n" "$dir/y"
		done
	done
}

# Looks at all of it, as programs do.
look() {
	[ "$(cat "$B/d/tmpfs/inside")" = kept ]
	[ "$(cat "$B/d/deep/tmpfs/inside")" = kept ]
	[ "$(cat "$B/d/file")" = "bound" ]
	[ "$(cat "$B/d/bound/hosts")" = "$(cat /etc/hosts)" ]
	[ "$(cat "$OVER/a/b/f" "$OVER/g")" = "$(printf 'low\nlow')" ]
	echo "$1" >"$OVER/a/b/up"
	[ "$(cat "$OVER/a/b/up")" = "$1" ]
	[ "$(readlink "/proc/$PROGRAM/exe")" = "$B/d/sleep" ]
	[ "$(readlink "/proc/$PROGRAM/cwd")" = "$B/d/deep" ]
	[ "$(readlink "/proc/$PROGRAM/fd/7")" = "$B/d/open" ]
	[ "$(cd "$B/d/deep" && /bin/pwd -P)" = "$B/d/deep" ]
}

cwd_is() { [ "$(readlink "/proc/$BASHPID/cwd")" = "$1" ]; }

@test "tmpfs, bind mounts, overlayfs, other mount namespaces and running programs stay" {
	mkdir -p "$B/d/tmpfs" "$B/d/deep/tmpfs" "$B/d/bound" "$B/low/a/b" "$B/root/dev" "$OVER" "$DIR/up" "$DIR/work"
	echo on the volume | tee "$B/d/file" >"$B/d/open"
	echo low | tee "$B/low/a/b/f" >"$B/low/g"
	echo bound >"$DIR/bound"
	mount -t tmpfs t "$B/d/tmpfs"
	mount -t tmpfs t "$B/d/deep/tmpfs"
	echo kept | tee "$B/d/tmpfs/inside" >"$B/d/deep/tmpfs/inside"
	mount --bind "$DIR/bound" "$B/d/file"
	mount --bind /etc "$B/d/bound"
	mount -t overlay o -o "lowerdir=$B/low,upperdir=$DIR/up,workdir=$DIR/work" "$OVER"
	cp "$(command -v sleep)" "$B/d/sleep"
	(cd "$B/d/deep" && exec "$B/d/sleep" 600 7<"$B/d/open" 3>&-) &
	PROGRAM=$!
	# as a container has it: a root on the volume, with mounts that only its own namespace sees
	unshare --mount --propagation private sh -c '
		mount -t tmpfs t "$1/root/dev" && echo kept >"$1/root/dev/inside" && touch "$2/ready"
		while [ ! -e "$2/end" ]; do sleep 0.05; done
		cat "$1/root/dev/inside" >"$2/namespace"' sh "$B" "$DIR" 3>&- &
	RUNNING=("$PROGRAM" $!)
	wait_until 20 test -e "$DIR/ready"
	wait_until 20 test "$(readlink "/proc/$PROGRAM/exe")" = "$B/d/sleep"
	look before
	for n in 1 2 3; do
		change_names
		look "$n"
	done
	echo x >"$A/root/other"
	mv "$A/root/other" "$A/root/moved"
	touch "$DIR/end"
	wait "${RUNNING[1]}"
	[ "$(cat "$DIR/namespace")" = kept ]
	kill "$PROGRAM"
	RUNNING=()
	umount "$OVER" "$B/d/deep/tmpfs" "$B/d/tmpfs" "$B/d/file" "$B/d/bound"
	[ "$(cat "$B/d/file")" = "on the volume" ]
	umount_nodes 1 2
}

@test "a tree that is walked while names in it change elsewhere has all its other names" {
	local expected walks=0
	mkdir -p "$A"/t/{a,b,c}/{d,e,f}
	for n in "$A"/t/*/*; do touch "$n/1" "$n/2" "$n/absent-before"; rm "$n/absent-before"; done
	expected=$(cd "$A/t" && find . ! -name 'x*' | sort)
	(
		while [ ! -e "$DIR/end" ]; do
			for n in "$A"/t/*/* "$A"/t/*; do
				echo >"$n/x1"
				mv "$n/x1" "$n/x2"
				rm "$n/x2"
			done
		done
	) 3>&- &
	RUNNING=($!)
	until [ $walks -ge 100 ]; do
		[ "$(cd "$B/t" && find . ! -name 'x*' 2>/dev/null | sort)" = "$expected" ]
		stat "$B"/t/*/*/[12] >/dev/null
		[ ! -e "$B/t/a/d/absent-before" ]
		walks=$((walks + 1))
	done
	touch "$DIR/end"
	wait "${RUNNING[0]}"
	RUNNING=()
	umount_nodes 2 1
}

@test "a directory that another node moves takes along who works in it, and what is mounted on and below it" {
	mkdir -p "$B/p1/job/sub" "$B/before"
	mkdir "$A/p2" # which this kernel has not seen
	touch "$A/p1/old" "$A/p2/new"
	mount -t tmpfs t "$B/p1/job/sub"
	mount -t tmpfs t "$B/before"
	echo kept | tee "$B/p1/job/sub/inside" >"$B/before/inside"
	cd "$B/p1/job"
	mv "$A/p1/job" "$A/p2/job"
	[ "$(ls ..)" = "job
new" ]
	echo here >../out
	[ "$(cat "$A/p2/out")" = here ]
	[ ! -e ../old ]
	[ "$(/bin/pwd -P)" = "$B/p2/job" ]
	[ "$(cat sub/inside "$B/p2/job/sub/inside")" = "kept
kept" ]
	# to another name in the same folder: nobody walks through it, and getcwd follows all the same
	mv "$A/p2/job" "$A/p2/later"
	wait_until 20 cwd_is "$B/p2/later"
	cd /
	# the old name is asked for first
	mv "$A/before" "$A/after"
	[ ! -e "$B/before" ]
	[ "$(cat "$B/after/inside" "$B/p2/later/sub/inside")" = "kept
kept" ]
	umount "$B/after" "$B/p2/later/sub"
	# calls that have a directory locked, which the kernel needs to move the other one
	mkdir -p "$A/q/n"
	ls "$B/q/n"
	mv "$A/q/n" "$A/q/m"
	timeout -s KILL 240 mkdir "$B/q/n"
	touch "$B/q/x"
	mv "$A/q/m" "$A/moved"
	mv "$A/moved" "$A/q/n/in"
	timeout -s KILL 240 mv "$B/q/x" "$B/q/n/in/y"
	[ "$(cd "$A/q" && find . | sort)" = "$(printf '.\n./n\n./n/in\n./n/in/y')" ]
	umount_nodes 1 2
}
