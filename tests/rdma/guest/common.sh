# SPDX-License-Identifier: Apache-2.0
# What the guest's scripts share. Results go to $OUT, a line each: "ok - NAME" or "not ok - NAME", with
# what was said behind "# ".
OUT=/mnt/results.$WEFT_RDMA_ROLE
LD_LIBRARY_PATH=/mnt/lib
PATH=/tmp/bin:$PATH
export PATH LD_LIBRARY_PATH
mkdir -p /tmp/bin
cp /mnt/bin/* /tmp/bin/ # a program on 9p is read anew by each start

say() { echo "$*" >>"$OUT"; }

# check NAME COMMAND...: in a shell of its own, so that it may use what is defined here
check() {
	name=$1
	shift
	(set -e; "$@") >/tmp/said 2>&1 # in a condition -e would mean nothing
	if [ $? = 0 ]; then
		say "ok - $name"
	else
		say "not ok - $name"
		tail -n 40 /tmp/said | sed 's/^/# /' >>"$OUT"
	fi
}

# A cmocka program's tests, each by its name.
suite() {
	timeout 900 "$@" >/tmp/said 2>&1 || echo "[  FAILED  ] exit code $?" >>/tmp/said
	sed -n 's/^\[       OK \] /ok - '"$1"': /p; s/^\[  FAILED  \] \([a-z].*\)/not ok - '"$1"': \1/p' \
		/tmp/said | sort -u >>"$OUT"
	if grep -q '^\[  FAILED  \]' /tmp/said; then
		say "not ok - $1 ends without an error"
		grep -v '^\[ RUN\|^\[       OK' /tmp/said | tail -n 40 | sed 's/^/# /' >>"$OUT"
	fi
}

# until SECONDS COMMAND...: as often as need be
until_ok() {
	left=$1
	shift
	while ! "$@" 2>/dev/null; do
		left=$((left - 1))
		[ $left -gt 0 ] || { echo "not within its time: $*"; return 1; }
		sleep 1
	done
}

# measured_right FILE LEAST: what weft bench net prints: what the card was asked for, an operation; each
# program of perftest, by a figure beside weft's, or words for the one that measured nothing, behind LEAST
# figures (over an emulated wire they may hang, the first of them, too). Times in a guest say nothing, and
# are not looked at.
measured_right() {
	awk -v least="$2" '
		function about(is, wanted) { return is >= wanted - 0.01 && is <= wanted * 1.2 + 0.05 }
		NF == 9 && $1 == "message" { good += about($2, 1) && about($6, 1) }
		NF == 9 && $1 == "fetch" { good += about($2, 1) && about($6, 2) && about($7, 1) && about($8, 1) }
		NF == 9 && ($1 == "read" || $1 == "cas") { good += about($2, 1) && about($4, 1) && about($6, 0) }
		NF == 9 && $1 == "write_pages" { good += about($2, 33 / 32) && about($4, 1 / 32) && $3 < 0.5 }
		NF == 9 && $1 == "write_large" { good += about($2, 2) }
		/ib_(send|write|read|atomic)_(lat|bw), / { beside += $3 > 0 && ($4 > 0 || $1 == "fetch") } # nothing may be left of one
		/^ib_[a-z]*_[a-z]* measured nothing/ { hung = 1 }
		END { print good " of 6 counted right, " beside " of 6 beside"; exit !(good == 6 && (beside == 6 || beside >= least && hung)) }
	' "$1"
}
