#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# weft scrub: damage below a mounted volume is found and named, and nothing else is called damage.

load common

setup() { setup_store 256M; }

teardown() {
	[ -z "${LOAD:-}" ] || kill "$LOAD" 2>/dev/null || true
	if [ -n "${NODES:-}" ]; then teardown_nodes; else teardown_store; fi
}

# The number of a member of weft scrub --status.
scrubbed() {
	local json
	json=$(weft scrub --status --json "$MNT") || true
	[[ $json =~ \"$1\":\ ([0-9]+) ]] && echo "${BASH_REMATCH[1]}"
}

state_is() { weft scrub --status --json "$MNT" | grep -q "\"state\": \"$1\""; }

read_more_than() { [ "$(scrubbed pages)" -gt "$1" ]; }

# A field of the superblock: the offset of the table, or of the pages.
place_of() { weft dump "$STORE" super | sed -nE "s/^ *$1 bytes? .* at ([0-9]+).*|^ *$1 +[0-9]+ at ([0-9]+).*/\1\2/p" | head -1; }

# Writes other bytes at a place of the store's file, past the daemon.
damage_at() { printf 'damaged!' | dd of="$STORE" bs=1 seek="$1" conv=notrunc,fsync status=none; }

# The slot of the first page of a file.
first_page() { echo $(($(weft dump "$STORE" path "$1" | sed -nE 's/.* pages? from (0x[0-9a-f]+),.*/\1/p' | head -1))); }

damage_page() { damage_at $(($(place_of pages) + $1 * 4096 + 2000)); }

@test "damaged pages of a file and of the tree, and descriptors, are found and named" {
	local slot leaf other
	mount_store
	mkdir -p "$MNT/some/folder"
	head -c 1M /dev/urandom >"$MNT/some/folder/data"
	for ((i = 0; i < 400; i++)); do echo $i >"$MNT/$i"; done
	umount_store
	slot=$(first_page /some/folder/data)
	leaf=$(($(weft dump "$STORE" tree | sed -nE 's/^ +(0x[0-9a-f]+): level 0.*/\1/p' | tail -1)))
	other=$(first_page /17)
	[ "$slot" -gt 0 ]
	[ "$other" -gt 0 ]
	[ "$leaf" -gt 0 ]
	mount_store

	weft scrub "$MNT"
	[ "$(scrubbed damaged)" -eq 0 ]
	read_more_than 600

	damage_page $((slot + 3))
	damage_page $((slot + 4))
	damage_page "$other"
	damage_page "$leaf"
	# the first copy of the last block, whose slots nothing uses: the second was never written
	damage_at $(($(place_of table) + 200 * 8192 + 500))
	run weft scrub "$MNT"
	echo "$output"
	[ "$status" -eq 4 ]
	[[ $output == *"DAMAGED  /some/folder/data, bytes 12288 to 20479, page 0:$((slot + 3)) to $((slot + 4)): it does not fit its checksum"* ]]
	[[ $output == *"DAMAGED  /17, bytes 0 to 4095, page 0:$other: it does not fit its checksum"* ]]
	[[ $output == *"the metadata tree, page 0:$leaf: it does not fit its checksum"* ]]
	[[ $output == *"block 200 of the table): both copies are damaged"* || $output == *"block 200 of the table): the first copy is damaged"* ]]
	[ "$(scrubbed damaged)" -eq 5 ]
	weft status "$MNT" | grep -q '^scrub .* 5 damaged'
	weft status "$MNT" --prometheus | grep -q '^weft_scrub_damaged{.*} 5$'

	# what is written anew is well again
	dd if=/dev/zero of="$MNT/some/folder/data" bs=1M count=1 conv=notrunc,fsync status=none
	run weft scrub "$MNT"
	[[ $output != *"/some/folder/data"* ]]
	[ "$status" -eq 4 ]
}

@test "a page that a newer image in memory replaces is written again, and no damage" {
	local slot
	mount_store
	head -c 64K /dev/urandom >"$MNT/file"
	remount_store
	slot=$(first_page /file)
	printf 'newer' | dd of="$MNT/file" conv=notrunc status=none
	damage_page "$slot"
	weft scrub "$MNT"
	[ "$(scrubbed damaged)" -eq 0 ]
	[ "$(scrubbed healed)" -eq 1 ]
	umount_store
	run fsck.weft -n -c "$STORE"
	[ "$status" -eq 0 ]
}

@test "files that are written, freed and made anew meanwhile are no damage" {
	CACHE=16M mount_store
	(while :; do
		for i in 1 2 3 4; do head -c 6M /dev/urandom >"$MNT/$i"; done
		for i in 5 6 7 8; do dd if=/dev/urandom of="$MNT/$i" bs=64K count=80 conv=fsync status=none; done
		rm "$MNT"/[3-6]
	done) &
	LOAD=$!
	wait_until 10 test -e "$MNT/8"
	for i in 1 2 3 4 5 6; do
		weft scrub --restart --rate=1G "$MNT"
		[ "$(scrubbed damaged)" -eq 0 ]
	done
	# images that a crash leaves without their descriptors are not read by anybody
	crash_store
	kill "$LOAD" || true
	wait "$LOAD" || true
	LOAD=
	CACHE=16M mount_store
	weft scrub --restart --rate=1G "$MNT"
	[ "$(scrubbed damaged)" -eq 0 ]
}

@test "a scrub keeps its rate, can be stopped, and goes on after a crash" {
	local before pages slot
	mount_store
	head -c 40M /dev/zero | tr '\0' x >"$MNT/file"
	weft sync "$MNT"
	run weft scrub --stop --rate=1M "$MNT"
	[ "$status" -eq 1 ]
	run weft scrub --rate=12 "$MNT"
	[ "$status" -eq 1 ]
	[[ $output == *"64K to 1P"* ]]

	slot=$(first_page /file)
	damage_page "$slot"
	weft scrub --background --rate=2M "$MNT"
	before=$SECONDS
	wait_until 10 read_more_than 400
	run timeout --preserve-status -s INT 0.3 weft scrub "$MNT" # ends the display alone
	[[ $output == *"it goes on in the background; --stop stops it"* ]]
	state_is running
	run weft scrub --stop "$MNT"
	[[ $output == stopped* ]]
	sleep 1
	pages=$(scrubbed pages)
	run weft scrub --status "$MNT"
	[[ $output == *"/file, bytes"*"page 0:$slot: it does not fit"* ]]
	[ "$pages" -le $((512 * (SECONDS - before + 3))) ]
	sleep 0.5
	[ "$(scrubbed pages)" -eq "$pages" ]

	run weft scrub --background "$MNT"
	wait_until 10 read_more_than "$((pages + 400))"
	sleep 0.3
	crash_store
	mount_store
	state_is running
	[ "$(scrubbed pages)" -ge "$pages" ]
	run weft scrub --rate=1G "$MNT"
	[ "$status" -eq 4 ]
	[[ $output == *"log of weftd names the 1"* ]]
	state_is ended
	[ "$(scrubbed damaged)" -eq 1 ]
	read_more_than 10200

	# one that passed the damage, and had no time to look into it before the unmount
	weft scrub --background --restart --rate=2M "$MNT"
	wait_until 10 read_more_than 400
	remount_store
	state_is running
	run weft scrub --rate=1G "$MNT"
	[[ $output == *"/file, bytes"*"page 0:$slot: it does not fit"* ]]
	[ "$(scrubbed damaged)" -eq 1 ]
	remount_store
	state_is ended
}

@test "a volume that is mounted read-only is scrubbed, too" {
	mount_store
	echo a >"$MNT/file"
	umount_store
	mount_store -o ro
	weft scrub "$MNT"
	[ "$(scrubbed damaged)" -eq 0 ]
}

@test "of several nodes each scrubs its own store, and a client has none" {
	teardown_store
	CLIENTS=1 setup_nodes 3 64M
	mount_nodes
	MNT=${M[1]}
	head -c 8M /dev/urandom >"${M[1]}/one"
	head -c 8M /dev/urandom >"${M[2]}/two"
	head -c 8M /dev/urandom >"${M[3]}/three"
	(while :; do dd if=/dev/urandom of="${M[3]}/three" bs=64K count=64 conv=notrunc,fsync status=none; done) &
	LOAD=$!
	for i in 1 2 3 4; do
		for n in 1 2; do weft scrub --restart --rate=1G "${M[n]}"; done
	done
	kill "$LOAD" || true
	wait "$LOAD" || true
	LOAD=
	run weft scrub "${M[3]}"
	[ "$status" -eq 2 ]
	[[ $output == *"this node has no store; run it on the nodes that have one"* ]]
	weft scrub --status --json "${M[2]}" | grep -q '"damaged": 0'
}
