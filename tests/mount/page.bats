#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# The page at the address of -o metrics, in headless Chromium.

load common

setup() {
	need curl chromium-headless-shell
}
teardown() {
	[ -z "${WAITING:-}" ] || kill -9 "$WAITING" 2>/dev/null || true
	[ -z "${NET:-}" ] || teardown_nodes
	[ -n "${NET:-}" ] || teardown_store
}

# Where the page's last numbers are those of an answer.
SHOWN='document.body?.dataset.shown && document.getElementById("stale").hidden'

browse() { python3 "$ROOT/tests/mount/browser.py" --wait "$SHOWN" "$@"; }

# The text of the page's element has these words.
has() { echo "document.querySelector('$1')?.textContent.includes(${2@Q}) === true"; }

# A program's requests, which the page has to show: 40 syncs among them.
work_in() {
	python3 - "$1" <<-'END'
		import os, sys
		for i in range(40):
		    fd = os.open(f"{sys.argv[1]}/f{i}", os.O_CREAT | os.O_RDWR)
		    os.write(fd, bytes(5000))
		    os.fsync(fd)
		    os.close(fd)
	END
}

@test "the page shows a mount's numbers and its charts, takes nothing from elsewhere, and no text as HTML" {
	local url space log port
	setup_store
	rmdir "$MNT"
	MNT="$DIR/<i>&amp;\"x"
	mkdir "$MNT"
	port=$(free_port)
	mount_store -o "metrics=127.0.0.1:$port"
	url=http://127.0.0.1:$port
	curl -sS --max-time 10 -D "$DIR/head" "$url/" -o "$DIR/page"
	grep -qi "^content-security-policy: default-src 'none';" "$DIR/head"
	cmp "$DIR/page" "$ROOT/fs/page/page.html"
	work_in "$MNT"
	# a rate needs two samples
	wait_until 12 has_samples "$url" 2
	curl -sS --max-time 10 "$url/metrics" >"$DIR/metrics"
	space=$(awk '/^weft_space_bytes/ { printf "%.0f MiB", $2 / 1048576 }' "$DIR/metrics")
	log=$(awk '/^weft_log_bytes/ { printf "%.1f MiB", $2 / 1048576 }' "$DIR/metrics")
	browse "$url/" \
		"$(has '#about' "on $MNT")" 'document.querySelector("header i") === null' \
		"$(has '#problems .good' 'no problem')" 'document.getElementById("nodes").hidden' \
		"$(has '#chart-space .legend' "size $space")" "$(has '#chart-log .legend' "size $log")" \
		'document.querySelectorAll("figure").length === 11' \
		'[...document.querySelectorAll("figure")].every(f => [...f.querySelectorAll("path")].some(p => p.getAttribute("d")))' \
		'document.querySelectorAll("#chart-requests-of-programs path").length === 4' \
		'document.querySelector("#chart-memory-of-the-daemon path").getAttribute("d").includes("L")' \
		'shown.at(-1).sync_count >= 40 && shown.some(s => s.sync_p99_s > 0 && s.sync_p99_s >= s.sync_p50_s)' \
		'Math.max(...shown.map((s, i) => rate("sync_count")(s, shown[i - 1]))) >= 1'
	# a browser that has some asks for later ones alone
	[ "$(curl -sS --max-time 10 "$url/history?after=99999999999999" | count_samples)" = 1 ]
	[ "$(curl -sS --max-time 10 "$url/history?after=soon" | count_samples)" -ge 3 ]
	# the same on a telephone at night: nothing beyond its width
	browse --size 360x740 --dark --picture "$DIR/picture.png" "$url/" \
		'document.documentElement.scrollWidth <= 360' 'getComputedStyle(document.body).backgroundColor === "rgb(14, 17, 22)"'
	[ "$(head -c 8 "$DIR/picture.png" | od -An -tx1)" = " 89 50 4e 47 0d 0a 1a 0a" ]
	umount_store
}

count_samples() { python3 -c 'import json, sys; print(len(json.load(sys.stdin)["samples"]))'; }

# The daemon at $1 keeps $2 samples already. One more is of now.
has_samples() { [ "$(curl -sS --max-time 10 "$1/history" | count_samples)" -gt "$2" ]; }

requests_wait() { on 1 curl -sS --max-time 10 http://127.0.0.1:9339/metrics | grep -q '^weft_peer_waiting_requests{.*} 1$'; }

# Each metric that the dashboard, the alerts and the page name; of a histogram without its ending.
named_metrics() {
	cat "$ROOT"/packaging/grafana/* "$ROOT"/fs/page/page.js | grep -oE '\bweft_[a-z0-9_]+' | sort -u
}

# The expressions of the dashboard, as rules.
dashboard_rules() {
	python3 - "$ROOT/packaging/grafana/weft.json" <<-'END'
		import json, sys
		with open(sys.argv[1]) as f:
		    panels = json.load(f)["panels"]
		exprs = [t["expr"].replace("$__rate_interval", "1m") for p in panels for t in p["targets"]]
		assert len(exprs) > 20
		print(json.dumps({"groups": [{"name": "weft", "rules": [{"record": f"r{i}", "expr": e} for i, e in enumerate(exprs)]}]}))
	END
}

@test "the page shows which node is away, and the requests that wait for it; dashboard and alerts name metrics that are there" {
	local url=http://127.0.0.1:9339 name
	need promtool
	setup_nodes 2
	mount_nodes -o metrics=127.0.0.1:9339
	work_in "${M[1]}"
	echo x >"${M[2]}/file-of-node-2"
	on 1 curl -sS --max-time 10 "$url/metrics" >"$DIR/metrics"
	on 1 python3 "$ROOT/tests/mount/browser.py" --wait "$SHOWN" "$url/" \
		"$(has h1 'c, node 1')" "$(has '#problems .good' 'no problem')" \
		'document.querySelectorAll("#nodes tbody tr").length === 2' \
		"$(has '#nodes tbody tr:nth-child(1)' 'this node')" "$(has '#nodes tbody tr:nth-child(2)' connected)" \
		"$(has '#chart-other-nodes .legend' 'connected 1')" 'document.querySelectorAll("figure").length === 14'
	kill -9 "$(node_pid 2)"
	umount -l "${M[2]}"
	python3 -c 'import os, sys; os.open(sys.argv[1], os.O_RDWR | os.O_TRUNC)' "${M[1]}/file-of-node-2" 3>&- &
	WAITING=$!
	wait_until 30 requests_wait
	on 1 python3 "$ROOT/tests/mount/browser.py" --wait "$SHOWN" "$url/" \
		"$(has '#problems' '1 request waits for node 2.')" "$(has '#problems' 'Node 2 is away for')" "$(has '#nodes td.bad' 'away for')" \
		"$(has '#chart-other-nodes .legend' 'connected 0')"
	on 1 curl -sS --max-time 10 "$url/metrics" >>"$DIR/metrics"
	for name in $(named_metrics); do
		grep -qE "^$name(\{| )" "$DIR/metrics" || { echo "there is no $name"; return 1; }
	done
	dashboard_rules >"$DIR/rules.json"
	promtool check rules "$DIR/rules.json" "$ROOT/packaging/grafana/alerts.yml"
	promtool test rules "$ROOT/tests/grafana/alerts_test.yml"
	kill -9 "$WAITING"
	wait "$WAITING" || true
}
