#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The completions of bash and zsh, as `make` has made them from the help texts: their table against the
# options that the programs know, and then real shells on a terminal.

load common

setup() {
	DIR=$(mktemp -d "${WEFT_TMP:-/tmp}/weft-test.XXXXXX")
	TABLE=$ROOT/build/completion/table
}
teardown() { rm -rf "$DIR"; }

# The words of a kind, without their command.
of_kind() { awk -F'\t' -v kind="$1" '$2 == kind { print $3 }' "$TABLE"; }

@test "the table has all options that the programs take, and no others" {
	sed -nE 's/^.*\{"([a-z-]+)", (no|optional|required)_argument.*/\1/p' <(
		sed 's/{"/\n&/g' "$ROOT"/tools/*.c "$ROOT"/mkfs/mkfs_main.c "$ROOT"/mkfs/fsck_main.c "$ROOT/fs/arguments.c"
	) | sort -u >"$DIR/known"
	of_kind option | sed -n 's/^--//p' | sort -u >"$DIR/offered"
	[ "$(wc -l <"$DIR/known")" -gt 30 ]
	diff "$DIR/known" "$DIR/offered"
}

@test "each command of the table is one, with these options; each mount option is taken" {
	local command word value
	ln -s "$BIN/weft" "$DIR/mount.weft"
	while IFS=$'\t' read -r command word; do
		run $command "$word" --help # an option that is unknown comes before the help
		[ "$status" -eq 0 ] || { echo "$command $word: $output"; false; }
	done < <(awk -F'\t' '$2 == "word" || $2 == "option" && $4 == "" && $1 !~ /^weft mount/ { print $1 "\t" $3 }' "$TABLE" |
		sort -u)
	while IFS=$'\t' read -r word value; do
		case $value in
		*'|'*) value=${value%%|*} ;;
		SIZE) value=16M ;;
		ADDR:PORT) value=127.0.0.1:9339 ;;
		*) value=${value:+1} ;;
		esac
		"$DIR/mount.weft" -f none none -o "$word$value"
	done < <(awk -F'\t' '$2 == "mount" { print $3 "\t" $4 }' "$TABLE")
}

@test "make install puts them where the shells look, and the package does" {
	local program
	env -u MAKEFLAGS -u MAKELEVEL make -s -C "$ROOT" DESTDIR="$DIR" PREFIX=/usr install
	for program in weft weftd mkfs.weft fsck.weft; do
		grep -q "^complete .* $program\( \|$\)" "$DIR/usr/share/bash-completion/completions/$program"
		head -n 1 "$DIR/usr/share/zsh/vendor-completions/_weft" | grep -q "^#compdef.* $program\( \|$\)"
	done
}

# LINE|the line after a tab; or LINE?|a word of the list of choices, and more of them.
CASES="
weft sta|weft status
weft net check --tr|weft net check --transport
weft net check --transport=v|weft net check --transport=verbs
weft net check -t v|weft net check -t verbs
weft mount store dir -o ro,uri|weft mount store dir -o ro,uring=
weft mount store dir -o ro,uring=a|weft mount store dir -o ro,uring=auto
weft cluster ne|weft cluster new
weft cluster new -d fol|weft cluster new -d folder/
weft cluster check fil|weft cluster check file.cluster
weft dump file.cluster sup|weft dump file.cluster super
weft node fence file.cluster 3 --without|weft node fence file.cluster 3 --without-store
mkfs.weft --che|mkfs.weft --checksum
mkfs.weft -k s|mkfs.weft -k sha256
fsck.weft fil|fsck.weft file.cluster
weftd --unm|weftd --unmounted
weft ?|mount umount sync status cluster net node probe dump bench version help
weft cluster ?|new show check add reload
weft status --?|--json --prometheus --help
weft mount x y -o ?|cache= uring= soft noatime
weft bench ?|guard tree net"

check_shell() {
	local line expected got word lines=()
	need zsh "$1"
	mkdir "$DIR/work" "$DIR/work/folder"
	touch "$DIR/work/file.cluster"
	cd "$DIR/work"
	while IFS='|' read -r line expected; do
		[ -z "$line" ] || lines+=("$line")
	done <<<"$CASES"
	timeout 60 zsh -f "$BATS_TEST_DIRNAME/completion.zsh" "$1" "$ROOT/build/completion" "${lines[@]}" >"$DIR/got"
	cat "$DIR/got"
	while IFS='|' read -r line expected; do
		[ -n "$line" ] || continue
		got=$(grep -F -- "$line => " "$DIR/got")
		got=${got#"$line => "}
		if [[ $line == *\? ]]; then
			for word in $expected; do [[ " $got " == *" $word "* ]] || { echo "$line: no $word"; false; }; done
		else
			[ "${got% }" = "$expected" ] || { echo "$line: $got"; false; }
		fi
	done <<<"$CASES"
}

@test "bash completes on a terminal" { check_shell bash; }
@test "zsh completes on a terminal" { check_shell zsh; }
