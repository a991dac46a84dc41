# SPDX-License-Identifier: Apache-2.0
# SEND or mailboxes, measured (tests/rdma/ways_bench.c).
. /mnt/common.sh
for looks in 4 16 64; do
	say "# looks without a pause: $looks"
	timeout 600 ways_bench $WEFT_RDMA_ADDRESS 9 $looks 2>&1 | sed 's/^/# /' >>"$OUT"
done
