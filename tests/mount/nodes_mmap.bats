#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# Shared mappings to store into, on several nodes: each store is seen by the next read, or
# access through a mapping, of every other.

load common

setup() { setup_nodes 3 256M; }
teardown() { teardown_nodes; }

kept() { timeout 120 "$BIN/tests/mount/kept" "$1" "${WEFT_KEPT_SECONDS:-4}" "${@:2}"; }

# On a file of its own; all must have come to an end.
shaken() {
	mount_nodes
	timeout -s KILL 600 "$BIN/tests/mount/shaken" "$1" "${WEFT_SHAKEN_SECONDS:-4}" \
		"${WEFT_SEED:-$RANDOM}" "${@:2}"
	umount_nodes 1 2 3
	run fsck.weft -n -f "$FILE"
	echo "$output"
	[ "$status" -eq 0 ]
}

random_work() { # NAME ARGUMENT...
	local name=$1
	shift
	[ -d "${M[1]}/$name" ] || mkdir "${M[1]}/$name"
	timeout -s KILL "${WEFT_PATIENCE:-300}" "$BIN/tests/mount/fsx/run" data \
		"${M[1]}/$name" "${M[2]}/$name" "${M[3]}/$name" "$@" -m
}

# Ends all nodes as a crash does, at once.
crash_all() {
	local n pids=()
	for n in 1 2 3; do pids+=("$(node_pid "$n")"); done
	kill -9 "${pids[@]}"
	for n in 1 2 3; do umount -l "${M[n]}"; done
	for n in "${pids[@]}"; do wait_until 10 gone "$n"; done
}

# A program of python's with the mounts as arguments; `need` says that something must hold.
program() {
	timeout 120 python3 -c 'import fcntl, mmap, os, random, signal, sys, time
def need(what, *said):
    if not what:
        sys.exit("wrong: %s" % (said,))
def full(path, flags=os.O_RDWR, size=0):
    fd = os.open(path, flags | os.O_CREAT)
    return fd, mmap.mmap(fd, size or os.fstat(fd).st_size)
dirs = sys.argv[1:]
'"$1" "${@:2}"
}

@test "stores on two nodes, and looks on three, in every way: nothing is behind or lost" {
	mount_nodes
	kept stores "${M[1]}" "${M[2]}" "${M[2]}" "${M[3]}"
	mkdir "${M[1]}/t"
	"$BIN/tests/mount/posix/run" "${M[1]}/t" weft mappings
	umount_nodes 1 2 3
}

@test "two nodes store in one page in turn, each when it sees the other's" {
	local looks
	mount_nodes
	looks=$(kept turns "${M[1]}" "${M[2]}")
	echo "$looks"
	[[ $looks =~ at\ ([0-9]+)\ and\ ([0-9]+)\ changes ]]
	[ "${BASH_REMATCH[1]}" -gt 25 ]
	[ "${BASH_REMATCH[2]}" -gt 25 ]
	umount_nodes 3 2 1
}

@test "a store is there at the next read, and a write at the next access" {
	mount_nodes
	head -c 65536 /dev/zero >"${M[1]}/f"
	program '
(a, ma), (b, mb) = (full(d + "/f") for d in dirs[:2])
ra, rb = (os.open(d + "/f", os.O_RDONLY) for d in dirs[:2])
for i in range(100):
    p, v = random.randrange(65536), i % 250
    ma[p] = v
    need(os.pread(b, 1, p)[0] == v, "read", i)
    need(os.pread(rb, 1, p)[0] == v, "cached read", i)
    need(mb[p] == v, "access", i)
    mb[p] = v + 1
    need(ma[p] == v + 1 and os.pread(ra, 1, p)[0] == v + 1, "access there", i)
    os.pwrite(b, bytes([v + 2]), p)
    need(ma[p] == v + 2, "write", i)
    os.pwrite(a, bytes([v + 3]), p)
    need(mb[p] == v + 3 and ma[p] == v + 3, "write here", i)
' "${M[@]:1}"
	umount_nodes 1 2 3
}

@test "holes, unwritten space, and the end of a file under a mapping" {
	mount_nodes
	truncate -s 1M "${M[1]}/f"
	fallocate -l 64K "${M[1]}/f"
	program '
(a, ma), (b, mb) = (full(d + "/f") for d in dirs[:2])
for p in (0, 5000, 500000, 1048575):
    need(mb[p] == 0)
    ma[p] = 7
    need(mb[p] == 7 and os.pread(b, 1, p) == b"\7", "a hole", p)
os.ftruncate(b, 8192 + 10)
need(os.fstat(a).st_size == 8202 and ma[5000] == 7)
ma[8201] = 9
ma[8300] = 9                   # behind the end: nobody sees it
os.ftruncate(b, 1 << 20)
need(os.pread(b, 200, 8200) == b"\0\11" + bytes(198), os.pread(b, 200, 8200))
need(os.fstat(a).st_size == 1 << 20 and ma[500000] == 0)
ma[500000] = 3
need(mb[500000] == 3)
os.ftruncate(a, 4096)
pid = os.fork()
if pid == 0:                   # behind the end there is nothing to map
    need(os.fstat(b).st_size == 4096)
    mb[500000] = 1
    os._exit(0)
need(os.waitpid(pid, 0)[1] == signal.SIGBUS, "no SIGBUS")
' "${M[@]:1}"
	umount_nodes 1 2 3
}

@test "whoever stores is killed: what was stored stays, and is seen" {
	mount_nodes
	head -c 65536 /dev/zero >"${M[1]}/f"
	program '
b, mb = full(dirs[1] + "/f")
for i in range(1, 12):
    r, w = os.pipe()
    pid = os.fork()
    if pid == 0:
        a, ma = full(dirs[0] + "/f")
        for k in range(0, 65536, 4096):
            ma[k] = i
        os.write(w, b"x")
        signal.pause()
    os.read(r, 1)
    os.kill(pid, signal.SIGKILL)
    if i % 2:
        os.waitpid(pid, 0)
    need(all(mb[k] == i for k in range(0, 65536, 4096)), i)
    if not i % 2:
        os.waitpid(pid, 0)
    os.close(r); os.close(w)
' "${M[@]:1}"
	umount_nodes 1 2 3
}

@test "msync and fsync bring stores to the store, also those of another node" {
	mount_nodes
	head -c 65536 /dev/zero >"${M[1]}/f"
	head -c 65536 /dev/zero >"${M[1]}/g"
	program '
a, ma = full(dirs[0] + "/f")
g, mg = full(dirs[0] + "/g")
for i in range(0, 65536, 4096):
    ma[i] = 5
ma.flush()                     # msync
for i in range(0, 65536, 4096):
    mg[i] = 6
os.fsync(os.open(dirs[1] + "/g", os.O_RDWR))
' "${M[@]:1}"
	crash_all
	mount_nodes
	program '
for d in dirs:
    for name, v in (("f", 5), ("g", 6)):
        fd = os.open(d + "/" + name, os.O_RDONLY)
        need(all(os.pread(fd, 1, i)[0] == v for i in range(0, 65536, 4096)), d, name)
' "${M[@]:1}"
	umount_nodes 1 2 3
}

@test "weft sync on one node brings to the stores what programs on another have stored" {
	mount_nodes
	head -c 65536 /dev/zero >"${M[1]}/f"
	head -c 65536 /dev/zero >"${M[1]}/g"
	program '
mapped = [full(dirs[0] + "/" + name) for name in ("f", "g")]
for fd, m in mapped:
    for i in range(0, 65536, 4096):
        m[i] = 7
open(dirs[1], "w").write("stored")
while not os.path.exists(dirs[2]):     # no msync, and they stay mapped until the daemons are killed
    time.sleep(0.1)
os._exit(0)
' "${M[1]}" "$DIR/stored" "$DIR/killed" 3>&- &
	wait_until 30 test -s "$DIR/stored"
	weft sync "${M[2]}"
	crash_all
	touch "$DIR/killed"
	wait
	mount_nodes
	program '
for d in dirs:
    for name in ("f", "g"):
        fd = os.open(d + "/" + name, os.O_RDONLY)
        need(all(os.pread(fd, 1, i)[0] == 7 for i in range(0, 65536, 4096)), d, name)
' "${M[@]:1}"
	umount_nodes 1 2 3
}

@test "with soft, what a node that stands still has ends with SIGBUS or EIO; nothing stored is lost" {
	local pid
	mount_nodes -o soft,timeout=3
	head -c 65536 /dev/zero >"${M[1]}/f"
	pid=$(node_pid 2)
	program '
a, ma = full(dirs[0] + "/f")
r, w = os.pipe()
holder = os.fork()
if holder == 0:                # its page is with node 2, which stops
    b, mb = full(dirs[1] + "/f")
    mb[4096] = 2
    os.write(w, b"x")
    signal.alarm(110)
    signal.pause()
os.read(r, 1)
ma[0] = 1
ma[8192] = 3
def begun(fn):                 # a process of its own does that
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        try:
            fn()
        except OSError as e:
            os._exit(e.errno)
        os._exit(0)
    return pid
def ended(pid):                # how it ends
    status = os.waitpid(pid, 0)[1]
    return -os.WTERMSIG(status) if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)
def ends(fn):
    return ended(begun(fn))
EIO = 5
os.kill(int(dirs[2]), signal.SIGSTOP)
try:
    load, store, read, stored, fsync = [begun(fn) for fn in (
        lambda: ma[4096], lambda: ma.__setitem__(4097, 1), lambda: os.pread(a, 1, 4096),
        lambda: ma.__setitem__(8192, 9),               # where the page is still here
        lambda: os.fsync(a))]                          # whose part is there, too
    load, store, read, stored, fsync = map(ended, (load, store, read, stored, fsync))
    need((load, store, read) == (-signal.SIGBUS, -signal.SIGBUS, EIO), load, store, read)
    need(stored in (0, -signal.SIGBUS), stored)
    need(fsync == EIO, fsync)
finally:
    os.kill(int(dirs[2]), signal.SIGCONT)
end = time.time() + 60
while ends(lambda: ma[4096]) or ends(lambda: os.fsync(a)):
    need(time.time() < end, "does not go on")
    time.sleep(0.1)
bytes_now = tuple(os.pread(a, 1, p)[0] for p in (0, 4096, 8192))
need(bytes_now == (1, 2, 3 if stored else 9), bytes_now, stored)
os.kill(holder, signal.SIGKILL)
os.waitpid(holder, 0)
' "${M[1]}" "${M[2]}" "$pid"
	umount_nodes 1 2 3
}

@test "mtime follows stores, and those of a file that is closed are seen by all" {
	mount_nodes
	head -c 4096 /dev/zero >"${M[1]}/f"
	program '
os.utime(dirs[0] + "/f", (1000, 1000))
a, ma = full(dirs[0] + "/f")
ma[0] = 1
ma.flush()
need(os.stat(dirs[1] + "/f").st_mtime > 1e9, os.stat(dirs[1] + "/f"))
os.utime(dirs[0] + "/f", (1000, 1000))
ma[0] = 2
ma.close()
os.close(a)
need(os.stat(dirs[1] + "/f").st_mtime > 1e9, "closed")
for k in range(10):     # the descriptor first: nobody waits for the end of a mapping
    a, ma = full(dirs[0] + "/f")
    os.close(a)
    os.utime(dirs[0] + "/f", (1000, 1000))
    ma[0] = k
    if k % 2:
        ma.close()
    else:
        pid = os.fork()
        if pid == 0:
            ma[0] = k
            os._exit(0)
        os.waitpid(pid, 0)
        ma.close()
    end = time.time() + 60
    while os.stat(dirs[1] + "/f").st_mtime < 1e9:
        need(time.time() < end, "unmapped", k)
        time.sleep(0.05)
' "${M[@]:1}"
	umount_nodes 1 2 3
}

@test "a hole that is looked at changes neither times nor capabilities; what is stored in it sets the times" {
	mount_nodes
	program '
import ctypes
CAP = bytes([1, 0, 0, 2, 0, 0x20]) + bytes(14)
LEN = 1 << 20
libc = ctypes.CDLL(None)
def made(name, allocated):
    path = dirs[0] + "/" + name
    fd = os.open(path, os.O_RDWR | os.O_CREAT)
    os.ftruncate(fd, LEN)
    if allocated:
        os.posix_fallocate(fd, 0, LEN)
    os.close(fd)
    os.chmod(path, 0o6755)
    os.setxattr(path, "security.capability", CAP)
    os.utime(path, (1000, 1000))
    return name
def said(name):
    s = [os.stat(d + "/" + name) for d in dirs]
    caps = [os.listxattr(d + "/" + name) for d in dirs]
    return [(a.st_mtime_ns, a.st_ctime_ns, a.st_mode, c) for a, c in zip(s, caps)]
def mapped(fd, at):
    with mmap.mmap(fd, LEN) as m:
        return m[at:at + 4096]
def piped(way):
    def look(fd, at):
        r, w = os.pipe()
        n = way(w, fd, at)
        got = os.read(r, n)
        os.close(r), os.close(w)
        return got
    return look
looks = {"mapping": mapped,
    "sendfile": piped(lambda w, fd, at: os.sendfile(w, fd, at, 4096)),
    "splice": piped(lambda w, fd, at: os.splice(fd, w, 4096, offset_src=at))}
for allocated in (False, True):
    for how, look in looks.items():
        name = made("%s-%d" % (how, allocated), allocated)
        before = said(name)
        fd = os.open(dirs[0] + "/" + name, os.O_RDWR)
        for at in (0, 40960, LEN - 4096):
            need(look(fd, at) == bytes(4096), how, at)
        need(said(name) == before, how, allocated, before, said(name))
        os.close(fd)
        need(said(name) == before, "closed", how, allocated, before, said(name))
        fd, m = full(dirs[0] + "/" + name)
        for at in (0, 8192):           # looked at before, and not
            os.utime(fd, (1000, 1000))
            ctime = os.fstat(fd).st_ctime_ns
            m[at] = 1
            os.fsync(fd)
            for d in dirs:
                s = os.stat(d + "/" + name)
                need(s.st_mtime > 1e9 and s.st_ctime_ns > ctime, "a store", d, at, s)
        os.close(fd)
# the time of a store that is written back, and not yet in the tree
name = made("late", False)
fd, m = full(dirs[0] + "/" + name)
for at in range(8192, LEN, 8192):
    os.utime(fd, (1000, 1000))
    m[0] = at // 8192
    need(libc.sync_file_range(fd, ctypes.c_long(0), ctypes.c_long(4096), 7) == 0)
    need(m[at] == 0)
    need(os.fstat(fd).st_mtime > 1e9, "a look at", at, os.fstat(fd))
m.close()
os.close(fd)
for d in dirs:
    need(os.stat(d + "/" + name).st_mtime > 1e9, d)
' "${M[@]:1}"
	umount_nodes 1 2 3
}

@test "files are cut and punched on all nodes while all store into them: nothing hangs" {
	mount_nodes
	head -c 262144 /dev/zero >"${M[1]}/f"
	head -c 262144 /dev/zero >"${M[1]}/g"
	program '
end = time.time() + 8
mapped = {d: [full(d + "/" + n) for n in ("f", "g")] for d in dirs}
def work(d, seed):
    random.seed(seed)
    files = mapped[d]
    while time.time() < end:
        fd, m = random.choice(files)
        what = random.randrange(10)
        if what == 0:
            os.ftruncate(fd, random.randrange(200000, 262144))
            os.ftruncate(fd, 262144)
        elif what == 1:
            os.posix_fallocate(fd, 0, 262144)
        elif what == 2:
            os.pwrite(fd, b"x" * random.randrange(9000), random.randrange(240000))
        else:
            for i in range(20):
                m[random.randrange(200000)] = i
    os._exit(0)
pids = []
for d in dirs:
    for k in range(2):
        pid = os.fork()
        if pid == 0:
            signal.alarm(90)
            work(d, os.getpid())
        pids.append(pid)
for pid in pids:
    status = os.waitpid(pid, 0)[1]     # a page may be behind the end for a moment
    need(status in (0, signal.SIGBUS), status)
' "${M[@]:1}"
	umount_nodes 1 2 3
}

@test "holes come and go on all nodes under mappings: nobody waits for ever, nothing is behind" {
	shaken holes "${M[@]:1}"
}

@test "the size is set on all nodes, to anywhere, under mappings: nobody waits for ever" {
	shaken cuts "${M[@]:1}"
}

@test "all of that on one node of the volume" {
	shaken holes "${M[1]}"
	mount_nodes
	timeout -s KILL 600 "$BIN/tests/mount/shaken" cuts "${WEFT_SHAKEN_SECONDS:-4}" \
		"${WEFT_SEED:-$RANDOM}" "${M[1]}" "${M[1]}"
	umount_nodes 3 2 1
}

@test "processes of one node share the index of a write-ahead log, a mapping; then another node" {
	mount_nodes
	program '
import sqlite3
def db(d):
    c = sqlite3.connect(d + "/db", timeout=100, isolation_level=None)
    need(c.execute("pragma journal_mode=wal").fetchone()[0] == "wal", "no such log")
    c.execute("pragma synchronous=off")
    return c
def rows(d):
    c = db(d)
    need(c.execute("pragma integrity_check").fetchone()[0] == "ok", "integrity", d)
    n = c.execute("select count(*), count(distinct v) from t").fetchone()
    c.close()
    return n
c = db(dirs[0]); c.execute("create table t (v text)"); c.close()
for k, d in enumerate(dirs):       # the log is one node at a time
    pids = []
    for p in range(3):
        pid = os.fork()
        if pid == 0:
            c = db(d)
            for i in range(40):
                c.execute("insert into t values (?)", ("%d %d %d " % (k, p, i) + "x" * 500,))
                need(c.execute("select count(*) from t where v like ?",
                    ("%d %d %%" % (k, p),)).fetchone()[0] == i + 1, "own rows", k, p, i)
            c.close()
            os._exit(0)
        pids.append(pid)
    need(all(os.waitpid(pid, 0)[1] == 0 for pid in pids), "a writer of", d)
    need(rows(d) == (120 * (k + 1),) * 2, rows(d))
for d in dirs:
    need(rows(d) == (360, 360), d, rows(d))
' "${M[@]}"
	umount_nodes 1 2 3
}

@test "a database with a write-ahead log, whose index is a mapping, is written from all nodes at once" {
	mount_nodes
	program '
import sqlite3
def db(d):
    c = sqlite3.connect(d + "/db", timeout=100, isolation_level=None)
    need(c.execute("pragma journal_mode=wal").fetchone()[0] == "wal", "no such log")
    c.execute("pragma synchronous=off")
    c.execute("pragma wal_autocheckpoint=50")
    return c
rounds = 30
c = db(dirs[0]); c.execute("create table t (v text, n integer)"); c.close()
pids = []
for k, d in enumerate(dirs):
    for p in range(2):
        pid = os.fork()
        if pid == 0:
            c = db(d)
            most = 0
            for i in range(rounds):
                c.execute("begin immediate")
                n = c.execute("select count(*) from t").fetchone()[0]
                c.execute("insert into t values (?, ?)", ("%d %d " % (k, p) + "x" * 500, n))
                c.execute("commit")
                now = c.execute("select count(*), count(distinct n), max(n) from t").fetchone()
                need(now[0] > n and now[0] == now[1] == now[2] + 1, now, n)
                need(now[0] > most, now, most)
                most = now[0]
            c.close()
            os._exit(0)
        pids.append(pid)
need(all(os.waitpid(pid, 0)[1] == 0 for pid in pids), "a writer")
for d in dirs:
    c = db(d)
    need(c.execute("pragma integrity_check").fetchone()[0] == "ok", "integrity", d)
    need(c.execute("select count(*), count(distinct n) from t").fetchone() == (rounds * 2 * len(dirs),) * 2, d)
    c.close()
' "${M[@]:1}"
	umount_nodes 1 2 3
}

@test "a hole that there is no space for ends a store with SIGBUS; what has its page goes on, and nothing hangs" {
	mount_nodes
	program '
SIZE = 1 << 20
(a, ma), (b, mb) = ((lambda fd: (os.ftruncate(fd, SIZE), fd, mmap.mmap(fd, SIZE))[1:])(os.open(d + "/f", os.O_RDWR | os.O_CREAT)) for d in dirs[:2])
for i in range(0, SIZE // 2, 4096):
    ma[i] = 1
fill = []
size = 64 << 20
while size >= 4096:                # all but what is kept back
    fd = os.open(dirs[2] + "/fill%d" % len(fill), os.O_WRONLY | os.O_CREAT)
    fill.append(fd)
    try:
        os.posix_fallocate(fd, 0, size)
    except OSError:
        size //= 2
died = 0
for i in range(SIZE // 2, SIZE, 4096):
    pid = os.fork()
    if pid == 0:
        signal.alarm(60)
        mb[i] = 2
        os._exit(0)
    status = os.waitpid(pid, 0)[1]
    need(status in (0, signal.SIGBUS), status)
    died += status != 0
    if died == 3:
        break
need(died == 3, "there was space", died)
for i in range(0, SIZE // 2, 4096):
    mb[i + 1] = 2
    need(ma[i] == 1 and ma[i + 1] == 2, i)
ma.flush()
mb.flush()
for k in range(len(fill)):
    os.unlink(dirs[2] + "/fill%d" % k)
for fd in fill:
    os.close(fd)
end = time.time() + 60
while True:                        # freed pages come back a moment later
    pid = os.fork()
    if pid == 0:
        mb[SIZE - 1] = 3
        os._exit(0)
    if os.waitpid(pid, 0)[1] == 0:
        break
    need(time.time() < end, "no space came back")
    time.sleep(0.1)
need(ma[SIZE - 1] == 3)
' "${M[@]:1}"
	umount_nodes 1 2 3
}

@test "one file is read, written, cut, punched and mapped on three nodes in turn" {
	CACHE=16M mount_nodes
	random_work one -n 2000
	umount_nodes 1 2 3
	CACHE=16M mount_nodes
	random_work one -n 1000 -d
	umount_nodes 3 1 2
}

@test "mapped files larger than the caches, on three nodes at once" {
	CACHE=16M mount_nodes
	random_work large -n 400 -p 6 -l 8388608
	umount_nodes 2 3 1
}
