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
	if (set -e; "$@") >/tmp/said 2>&1; then
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
