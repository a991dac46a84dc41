#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# -o mmap=local: what is stored through mappings reaches other nodes when it is written back, and
# takes nothing from what they have changed in the same page.

load common

setup() { setup_nodes 3 256M; }
teardown() { teardown_nodes; }

clean() {
	umount_nodes 1 2 3
	run fsck.weft -n -f "$FILE"
	echo "$output"
	[ "$status" -eq 0 ]
}

# A program of python's with the mounts as arguments; `need` says that something must hold.
program() {
	timeout -s KILL 120 python3 -c 'import mmap, os, random, signal, sys, threading, time
def need(what, *said):
    if not what:
        sys.exit("wrong: %s" % (said,))
def full(path, flags=os.O_RDWR, size=0):
    fd = os.open(path, flags | os.O_CREAT)
    return fd, mmap.mmap(fd, size or os.fstat(fd).st_size)
dirs = sys.argv[1:]
'"$1" "${@:2}"
}

@test "mmap=local: msync, munmap and close bring stores to the other nodes" {
	mount_nodes -o mmap=local
	head -c 65536 /dev/zero >"${M[1]}/f"
	program '
(a, ma), (b, mb) = (full(d + "/f") for d in dirs[:2])
ra, rb = (os.open(d + "/f", os.O_RDONLY) for d in dirs[:2])
for i in range(100):
    p, v = random.randrange(65536), i % 250
    ma[p] = v
    need(ma[p] == v and os.pread(ra, 1, p)[0] == v, "here", i)
    need(os.pread(a, 1, p)[0] == v, "here, past the cache", i)
    ma.flush()
    need(os.pread(b, 1, p)[0] == v, "read", i)
    need(os.pread(rb, 1, p)[0] == v, "cached read", i)
    need(mb[p] == v, "access", i)
    os.pwrite(b, bytes([v + 1]), p)
    need(ma[p] == v + 1 and os.pread(ra, 1, p)[0] == v + 1, "write there", i)
    with mmap.mmap(b, 65536) as m:
        m[p] = v + 2
    need(ma[p] == v + 2 and os.pread(a, 1, p)[0] == v + 2, "munmap", i)
    c, mc = full(dirs[2] + "/f")
    mc[p] = v + 3
    mc.close()
    os.close(c)
    need(mb[p] == v + 3 and os.pread(rb, 1, p)[0] == v + 3, "close", i)
' "${M[@]:1}"
	mkdir "${M[1]}/t"
	"$BIN/tests/mount/posix/run" "${M[1]}/t" weft mappings
	clean
}

@test "mmap=local: what two nodes store in one page stays, both, and what is written beside it" {
	mount_nodes -o mmap=local
	head -c 65536 /dev/zero >"${M[1]}/f"
	program '
maps = [full(d + "/f") for d in dirs]
for i in range(60):
    p = random.randrange(16) * 4096
    v = [random.randrange(1, 256) for n in range(3)]
    for n in range(3):
        maps[n][1][p + 10 + n] = v[n]           # all three have it, and none has told
    w = random.randrange(1, 256)
    os.pwrite(maps[i % 3][0], bytes([w]), p + 20)
    for fd, m in maps:
        m.flush()
    for fd, m in maps:
        need(list(m[p + 10:p + 13]) == v and m[p + 20] == w, "lost", i, v, w, m[p:p + 30])
        need(os.pread(fd, 11, p + 10) == bytes(v) + bytes(os.pread(fd, 8, p + 13)), "read")
' "${M[@]:1}"
	clean
}

@test "mmap=local: stores, writes and reads of three nodes at once: each byte is its last writer's" {
	mount_nodes -o mmap=local
	head -c 40000 /dev/zero >"${M[1]}/f"
	program '
SIZE, last = 40000, bytearray(40000)
def work(n):
    fd, m = full(dirs[n] + "/f")
    rd = os.open(dirs[n] + "/f", os.O_RDONLY)
    until = time.time() + 8
    while time.time() < until:
        p = random.randrange(SIZE // 3) * 3 + n     # nobody else changes this one
        what = random.randrange(12)
        v = random.randrange(256)
        if what < 6:
            m[p] = v
            last[p] = v
        elif what < 8:
            os.pwrite(fd, bytes([v]), p)
            last[p] = v
        elif what == 8:
            m.flush()
        got = (m[p], os.pread(fd, 1, p)[0], os.pread(rd, 1, p)[0])
        need(got == (last[p],) * 3, "own byte", n, p, got, last[p])
    m.flush()
    os.close(fd)
    m.close()
failed = []
def run(n):
    try:
        work(n)
    except BaseException as e:
        failed.append((n, e))
threads = [threading.Thread(target=run, args=(n,)) for n in range(3)]
[t.start() for t in threads]
[t.join() for t in threads]
need(not failed, failed)
for d in dirs:
    data = open(d + "/f", "rb").read()
    wrong = [p for p in range(SIZE) if data[p] != last[p]]
    need(not wrong, d, wrong[:10], len(wrong))
' "${M[@]:1}"
	clean
}

@test "mmap=local: holes stay holes until a store, and ends are ends" {
	mount_nodes -o mmap=local
	truncate -s 1M "${M[1]}/f"
	program '
(a, ma), (b, mb) = (full(d + "/f") for d in dirs[:2])
need(bytes(ma) == bytes(1 << 20) and os.fstat(b).st_blocks == 0, "looking fills no hole")
for p in (0, 5000, 500000, 1048575):
    ma[p] = 7
    os.pwrite(b, b"\5", p ^ 1)
    ma.flush()
    need(mb[p] == 7 and mb[p ^ 1] == 5 and ma[p ^ 1] == 5, "a hole", p)
ma[600000] = 1
os.ftruncate(b, 8192 + 10)
need(os.fstat(a).st_size == 8202 and ma[5000] == 7)
ma[8201] = 9
ma[8300] = 9                   # behind the end: nobody sees it
ma.flush()
os.ftruncate(b, 1 << 20)
need(os.pread(b, 200, 8200) == b"\0\11" + bytes(198), os.pread(b, 200, 8200))
need(os.fstat(a).st_size == 1 << 20 and ma[600000] == 0 and mb[500000] == 0)
ma[500000] = 3
ma.flush()
need(mb[500000] == 3)
for p in (520000, 540000):     # a hole, and unwritten space: there and back
    if p == 540000:
        os.posix_fallocate(a, p, 10000)
    for i in range(3):
        ma[p] = 7
        ma.flush()
        need(mb[p] == 7 and os.pread(a, 1, p) == b"\7", "there", p, i)
        ma[p] = 0
        ma.flush()
        need(mb[p] == 0 and os.pread(a, 1, p) == b"\0", "and back", p, i)
    mb[p] = 1
    mb.flush()
    ma[p + 1] = 2
    ma.flush()
    need(ma[p] == 1 and mb[p:p + 2] == b"\1\2", "beside", p)
ma[700000] = 8                 # cut off here
os.ftruncate(a, 650000)
os.ftruncate(a, 1 << 20)
ma.flush()
need(mb[700000] == 0 and ma[700000] == 0)
' "${M[@]:1}"
	clean
}

# What nodes look at, be it through handles that may write, is theirs all together, in their kernels' caches.
@test "mmap=local: a file that all nodes have open to write, and look at, moves no page" {
	mount_nodes -o mmap=local,noatime # an atime follows a moment after, and costs the kernels a look
	head -c 262144 /dev/urandom >"${M[1]}/f"
	program '
import json, subprocess
maps = [full(d + "/f") for d in dirs]
rd = [os.open(d + "/f", os.O_RDONLY) for d in dirs]
def look():
    return {bytes(m) for fd, m in maps} | {os.pread(fd, 262144, 0) for fd in rd}
def count():
    said = [json.loads(subprocess.check_output(["weft", "status", d, "--json"])) for d in dirs]
    return sum(s["requests"]["read"]["count"] for s in said)
need(len(look()) == 1)
before = count()
for i in range(20):
    need(len(look()) == 1)
need(count() == before, "READs", before, count())
' "${M[@]:1}"
	clean
}

@test "mmap=local: a program that is killed with stores ends, though the page's home is stopped" {
	local pid home
	mount_nodes -o mmap=local
	head -c 65536 /dev/zero >"${M[2]}/f"
	home=$(node_pid 2)
	python3 -c 'import mmap, os, sys, time
m = mmap.mmap(os.open(sys.argv[1], os.O_RDWR), 65536)
assert bytes(m) == bytes(65536)
open(sys.argv[2] + "/ready", "w")
while not os.path.exists(sys.argv[2] + "/go"):
    time.sleep(0.01)
m[5000] = 7
open(sys.argv[2] + "/stored", "w")
time.sleep(600)' "${M[1]}/f" "$DIR" &
	pid=$!
	wait_until 30 test -e "$DIR/ready"
	kill -STOP "$home"
	touch "$DIR/go"
	wait_until 30 test -e "$DIR/stored" || { kill -CONT "$home"; return 1; }
	kill -9 "$pid"
	wait_until 20 gone "$pid" || { cat /proc/$pid/status /proc/$pid/stack; weft status "${M[1]}" --json; kill -CONT "$home"; return 1; }
	kill -CONT "$home"
	wait_until 20 python3 -c 'import sys
sys.exit(open(sys.argv[1], "rb").read()[5000] != 7)' "${M[3]}/f"
	clean
}
