# SPDX-License-Identifier: Apache-2.0
# Loads for kill -9, and what must be left of each. A load works in a folder of the volume until
# the mount is gone, and notes in $PROOF, outside the volume, what it has synced; check_LOAD NAME
# compares and adds to $SYNCED the number of things that were. Each load keeps its folder and its
# notes from round to round, so later rounds also check what earlier ones synced.

HERE=$ROOT/tests/mount
LOADS=(fsync untar git sqlite_wal sqlite_delete fio)

# What untar unpacks: a part of /usr/include, made once per test.
make_tarball() {
	mkdir "$DIR/reference"
	cp -a /usr/include/linux /usr/include/x86_64-linux-gnu "$DIR/reference/" 2>/dev/null ||
		cp -a /usr/include/linux "$DIR/reference/"
	tar -C "$DIR/reference" -cf "$DIR/include.tar" .
}

# ---- loads: each runs in a process group of its own, so that all of it can be ended -----------

load_fsync() {
	local i
	for i in 1 2 3; do
		mkdir -p "$MNT/fsync$i"
		"$BIN/tests/mount/fsync_log" write "$MNT/fsync$i" "$PROOF/fsync$i" "$1$i" &
	done
	wait
}

check_fsync() {
	local i line
	for i in 1 2 3; do
		[ -s "$PROOF/fsync$i" ] || continue
		line=$("$BIN/tests/mount/fsync_log" check "$MNT/fsync$i" "$PROOF/fsync$i") || {
			# 3: whole, but this one has synced nothing yet
			[ $? -eq 3 ] || return 1
		}
		echo "fsync $i: $line"
		SYNCED=$((SYNCED + ${line%% *}))
	done
}

load_untar() {
	local n=0
	[ ! -s "$PROOF/untar" ] || n=$(tail -n 1 "$PROOF/untar")
	while n=$((n + 1)) && mkdir -p "$MNT/untar/$n" && tar -C "$MNT/untar/$n" -xf "$DIR/include.tar" &&
		weft sync "$MNT"; do
		echo "$n" >>"$PROOF/untar"
		# what was removed may come back, since nothing synced it: no one looks at it
		rm -rf "$MNT/untar/$((n - 2))" || break
	done
}

check_untar() {
	local n
	[ -s "$PROOF/untar" ] || return 0
	n=$(tail -n 1 "$PROOF/untar")
	diff -r --no-dereference "$DIR/reference" "$MNT/untar/$n" || return 1
	SYNCED=$((SYNCED + n))
	echo "untar: $n trees"
	find "$MNT/untar" -mindepth 1 -maxdepth 1 ! -name "$n" -exec rm -rf {} +
}

GIT=(git -c core.fsync=all -c core.fsyncMethod=fsync -c gc.auto=0 -c user.name=t -c user.email=t@t)

load_git() {
	local n=0 repo=$MNT/git
	# under another name until all of it is synced: half of a repository is none
	[ -d "$repo" ] || {
		rm -rf "$repo.new" && "${GIT[@]}" init -q "$repo.new" && weft sync "$MNT" &&
			mv "$repo.new" "$repo"
	} || return 0
	cd "$repo" || return 0
	find .git -name '*.lock' -delete && rm -f .git/gc.pid || return 0
	while n=$((n + 1)); do
		cp "$DIR/reference/linux"/[a-f]*.h . && echo "$1 $n" >"file$((n % 7))" &&
			"${GIT[@]}" add -A && "${GIT[@]}" commit -q --allow-empty -m "$n" && sync .git/refs/heads || break
		"${GIT[@]}" rev-parse HEAD >>"$PROOF/git" || break
		if [ $((n % 5)) -eq 0 ]; then
			rm -rf "$MNT/clone" && git clone -q "$repo" "$MNT/clone" &&
				"${GIT[@]}" gc -q --prune=now || break
		fi
	done
}

check_git() {
	local commit n
	[ -s "$PROOF/git" ] || return 0
	git -C "$MNT/git" fsck --full --no-dangling --no-progress || return 1
	n=$(wc -l <"$PROOF/git")
	commit=$(tail -n 1 "$PROOF/git")
	git -C "$MNT/git" merge-base --is-ancestor "$commit" HEAD || {
		echo "commit $commit is lost"
		return 1
	}
	[ "$(git -C "$MNT/git" rev-list --count HEAD)" -ge "$n" ] || return 1
	SYNCED=$((SYNCED + n))
	echo "git: $n commits"
}

load_sqlite_wal() { python3 "$HERE/sqlite_load.py" load "$MNT/wal.db" wal "$PROOF/sqlite_wal"; }
load_sqlite_delete() { python3 "$HERE/sqlite_load.py" load "$MNT/delete.db" delete "$PROOF/sqlite_delete"; }

check_sqlite() {
	local line
	[ -s "$PROOF/sqlite_$1" ] || return 0
	line=$(python3 "$HERE/sqlite_load.py" check "$MNT/$1.db" "$1" "$PROOF/sqlite_$1") || return 1
	echo "sqlite $1: $line"
	SYNCED=$((SYNCED + ${line%% *}))
}
check_sqlite_wal() { check_sqlite wal; }
check_sqlite_delete() { check_sqlite delete; }

# Files written by fio at random places and synced at its end. By a thread: a process of its own
# would leave the group that is killed, and wait for ever.
FIO=(fio --thread --name=job --ioengine=psync --rw=randwrite --bsrange=512-64k --blockalign=512 --size=4m
	--verify=crc32c --verify_fatal=1 --group_reporting --minimal)

load_fio() {
	local n=0
	[ ! -s "$PROOF/fio" ] || n=$(tail -n 1 "$PROOF/fio")
	# the path leads elsewhere when the dead mount is taken away
	cd "$MNT" || return 0
	while n=$((n + 1)) && "${FIO[@]}" --filename="fio$((n % 4))" --randseed="$n" --do_verify=0 \
		--end_fsync=1 --aux-path="$PROOF" >/dev/null; do
		echo "$n" >>"$PROOF/fio"
	done
}

check_fio() {
	local n
	[ -s "$PROOF/fio" ] || return 0
	n=$(tail -n 1 "$PROOF/fio")
	"${FIO[@]}" --filename="$MNT/fio$((n % 4))" --randseed="$n" --verify_only --aux-path="$PROOF" \
		>/dev/null || return 1
	SYNCED=$((SYNCED + n))
	echo "fio: $n files"
}

# ---- rounds -------------------------------------------------------------------------------------

# Starts a load with a seed; its process group is in $DIR/groups until the loads are ended. A load
# that ends by itself leaves $DIR/ended-LOAD.
start_load() {
	export ROOT BIN DIR MNT PROOF PATH
	rm -f "$DIR/ended-$1"
	setsid bash -c ". '$HERE/common.bash'; . '$HERE/crash.bash'; load_$1 $2; : >'$DIR/ended-$1'" \
		>"$DIR/load-$1.log" 2>&1 </dev/null 3>&- &
	echo $! >>"$DIR/groups"
}

end_loads() {
	local group
	[ -f "$DIR/groups" ] || return 0
	while read -r group; do
		kill -9 -- "-$group" 2>/dev/null || true
		wait "$group" 2>/dev/null || true
	done <"$DIR/groups"
	rm -f "$DIR/groups"
}

# How many things the loads named have synced so far.
proof_lines() {
	local load
	for load; do cat "$PROOF/$load"* 2>/dev/null; done | grep -vc '^I' || true
}

proof_grows() { [ "$(proof_lines "$2")" -gt "$1" ]; }
grows_or_ended() { proof_grows "$1" "$2" || [ -e "$DIR/ended-$2" ]; }

# Waits until the load LOAD has synced more than BEFORE things; a load that ends instead has failed.
wait_for_load() { # LOAD BEFORE
	wait_until 60 grows_or_ended "$2" "$1" && proof_grows "$2" "$1" && return
	echo "load $1 synced nothing; the last it said:"
	tail -n 20 "$DIR/load-$1.log"
	[ -e "$DIR/ended-$1" ] || "$ROOT/tests/threads" "$DAEMON" || true
	return 1
}

# Starts the loads named after SEED, kills the daemon 0 to 1.5 s after the first of them has
# synced something (or the first two, or more), and takes the dead mount away: once the loads have
# ended, since one that starts late would find the folder below it, and work, and sync, there.
kill_under_load() {
	local seed=$1 load
	local -A before=()
	shift
	RANDOM=$seed
	for load; do before[$load]=$(proof_lines "$load"); done
	for load; do start_load "$load" "$seed"; done
	for load; do
		wait_for_load "$load" "${before[$load]}"
		[ $((RANDOM % 2)) -eq 0 ] || break
	done
	sleep "$(printf '%d.%03d' $((RANDOM % 2)) $((RANDOM % 1000 / 2)))"
	kill -9 "$DAEMON"
	end_loads
	umount -l "$MNT"
	wait_until 30 gone "$DAEMON"
}

# Recovers, and everything is there. Counts in SYNCED what was to be.
recover_and_check() {
	local load
	mount_store
	for load in "${LOADS[@]}"; do
		"check_$load" || {
			echo "$load: not what was synced"
			return 1
		}
	done
}

new_seed() { echo "${WEFT_CRASH_SEED:-$((($(date +%s%N) / 1000) % 1000000))}"; }
