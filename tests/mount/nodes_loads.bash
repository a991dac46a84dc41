# SPDX-License-Identifier: Apache-2.0
# Loads on three nodes whose synced work is looked for afterwards. setup: LOADS=(); teardown:
# end_loads.

# One of the loads that fsync_log makes; it ends with its mount.
start_load() { # NODE
	setsid "$BIN/tests/mount/fsync_log" write "${M[$1]}/load$1" "$DIR/proof$1" "$RANDOM" \
		>>"$DIR/load$1.log" 2>&1 3>&- &
	LOADS[$1]=$!
}

end_loads() {
	local n
	for n in "${!LOADS[@]}"; do
		kill -9 -- "-${LOADS[n]}" 2>/dev/null || true
		wait "${LOADS[n]}" 2>/dev/null || true
		unset "LOADS[$n]"
	done
}

# How often; 0 also where the load has not begun to write yet.
synced() {
	local count
	count=$(grep -c '^S' "$DIR/proof$1" 2>/dev/null) || true
	echo "${count:-0}"
}
grows() { [ "$(synced "$1")" -gt "$2" ]; }

# What load $1 has synced is there, by the mount of node $2. Exit status 3: it has synced nothing.
check_load() {
	"$BIN/tests/mount/fsync_log" check "${M[$2]}/load$1" "$DIR/proof$1" || {
		echo "load $1, looked at on node $2"
		return 1
	}
}

start_loads() {
	local n
	for n in 1 2 3; do
		mkdir "${M[n]}/load$n"
		start_load "$n"
	done
}

# Each load goes on.
all_grow() {
	local n before
	for n in 1 2 3; do
		before=$(synced "$n")
		wait_until 60 grows "$n" "$before" || {
			echo "load $n stands still:"
			tail -n 20 "$DIR/load$n.log"
			return 1
		}
		kill -0 "${LOADS[n]}"
	done
}

# Ends the loads; what they have synced is there on all nodes, and fsck finds nothing.
check_all() {
	local n i
	end_loads
	for n in 1 2 3; do
		for i in 1 2 3; do check_load "$i" "$n"; done
	done
	umount_nodes 2 3 1
	run fsck.weft -f -n "$FILE"
	echo "$output"
	[ "$status" -eq 0 ]
}
