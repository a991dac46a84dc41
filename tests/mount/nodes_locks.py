# SPDX-License-Identifier: Apache-2.0
# Locks between mounts of one volume: nodes_locks.py TEST MOUNT MOUNT [MOUNT...]
# Says nothing if all is well.
import errno
import fcntl
import os
import signal
import sqlite3
import struct
import sys
import time

F_OFD_SETLK = 37
TRIES = 6000  # of 10 ms
FLOCK = struct.Struct("hhqqi4x")


def wait_for(what, condition):
    for _ in range(TRIES):
        if condition():
            return
        time.sleep(0.01)
    raise AssertionError("in vain: " + what)


def child(work):
    pid = os.fork()
    if pid == 0:
        code = 99
        try:
            code = work() or 0
        except BaseException as e:
            print("child:", repr(e), flush=True)
        os._exit(code)
    return pid


def end(pid, code=0):
    got = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert got == code, "ended with %d, not %d" % (got, code)


def asleep(pid):
    with open("/proc/%d/syscall" % pid) as f:
        return f.read().split()[0] in ("72", "73")  # fcntl, flock


# In a lock request, and not just on its way.
def blocked(pid):
    def sure():
        for _ in range(5):
            if not asleep(pid):
                return False
            time.sleep(0.01)
        return True

    wait_for("a request that is blocked", sure)


def refused(lock):
    try:
        lock()
    except OSError as e:
        assert e.errno in (errno.EAGAIN, errno.EACCES), e
        return
    raise AssertionError("there is a lock, and it was not in the way")


def opened(mount, name="f"):
    return os.open(os.path.join(mount, name), os.O_RDWR | os.O_CREAT)


def lock(fd, how, length=0, start=0):
    fcntl.lockf(fd, how, length, start)


EX, SH, UN, NB = fcntl.LOCK_EX, fcntl.LOCK_SH, fcntl.LOCK_UN, fcntl.LOCK_NB


# Who asks for the first one in the way, and then behind it, comes by all of them.
def walk(a, b):
    fa = opened(a)
    there = [(1000, 10), (0, 10), (500, 20), (200, 5)]
    for start, length in there:
        lock(fa, EX, length, start)
    fb = opened(b)

    def other():
        at, seen = 0, []
        while len(seen) < 9:
            asked = FLOCK.pack(fcntl.F_WRLCK, 0, at, 0, 0)
            kind, _, start, length, _ = FLOCK.unpack(fcntl.fcntl(fb, fcntl.F_GETLK, asked))
            if kind == fcntl.F_UNLCK:
                break
            seen.append((start, length))
            at = start + length
        assert seen == sorted(there), seen

    end(child(other))
    os.close(fb)
    os.close(fa)


def ranges(a, b):
    fa = opened(a)
    lock(fa, EX, 10, 5)
    lock(fa, SH, 10, 100)

    def other():
        fb = opened(b)
        refused(lambda: lock(fb, EX | NB, 10, 14))
        refused(lambda: lock(fb, SH | NB))
        lock(fb, EX | NB, 5, 15)
        lock(fb, SH | NB, 100, 100)
        asked = FLOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0)
        kind, _, start, length, pid = FLOCK.unpack(fcntl.fcntl(fb, fcntl.F_GETLK, asked))
        assert (kind, pid) == (fcntl.F_WRLCK, 0) and (start, length) == (5, 10)
        lock(fb, EX, 10, 5)

    pid = child(other)
    blocked(pid)
    lock(fa, UN, 5, 5)
    blocked(pid)  # the other half is still held
    lock(fa, UN)
    end(pid)
    walk(a, b)


def hand_over(a, b):
    for kind in (fcntl.lockf, fcntl.flock):
        fa = opened(a)
        kind(fa, EX)
        pid = child(lambda: kind(opened(b), EX))
        blocked(pid)
        kind(fa, UN)
        end(pid)
        # what a process has goes with it, also when it is killed
        pid = child(lambda: (kind(opened(b), EX), os.kill(os.getpid(), signal.SIGSTOP)))
        os.waitpid(pid, os.WUNTRACED)
        refused(lambda: kind(fa, SH | NB))
        os.kill(pid, signal.SIGKILL)
        kind(fa, SH)
        end(pid, -9)
        kind(fa, UN)
        os.close(fa)


# fcntl's go with any close of the file, those of an open file and flock with its last one.
def closing(a, b):
    fa = opened(a)
    lock(fa, EX)
    pid = child(lambda: lock(opened(b), EX))
    blocked(pid)
    os.close(opened(a))
    end(pid)
    for take in (
        lambda fd: fcntl.flock(fd, EX | NB),
        lambda fd: fcntl.fcntl(fd, F_OFD_SETLK, FLOCK.pack(fcntl.F_WRLCK, 0, 0, 0, 0)),
    ):
        held, fb = opened(a), opened(b)
        take(held)
        again = os.dup(held)
        os.close(held)
        os.close(opened(a))
        refused(lambda: take(fb))
        os.close(again)
        wait_for("the last close", lambda: taken(take, fb))
        os.close(fb)


def taken(take, fd):
    try:
        take(fd)
        return True
    except OSError:
        return False


class Rung(Exception):
    pass


def ring(*_):
    raise Rung()


def interrupts(a, b):
    for kind in (fcntl.lockf, fcntl.flock):
        fa = opened(a)
        kind(fa, EX)

        def rung():
            signal.signal(signal.SIGUSR1, ring)
            try:
                kind(opened(b), EX)
            except Rung:
                return 7

        pid = child(rung)
        blocked(pid)
        os.kill(pid, signal.SIGUSR1)
        end(pid, 7)
        pid = child(lambda: kind(opened(b), EX))
        blocked(pid)
        os.kill(pid, signal.SIGKILL)
        end(pid, -9)
        # who was interrupted waits no longer: the next one gets it, and the one after that
        for mount in (b, a):
            pid = child(lambda: kind(opened(mount), EX))
            blocked(pid)
            kind(fa, UN)
            end(pid)
            kind(fa, EX)
        os.close(fa)


def deadlock(a, b):
    fa = opened(a)
    lock(fa, EX, 1, 0)

    def last(fd, byte):
        try:
            lock(fd, EX, 1, byte)
        except OSError as e:
            assert e.errno == errno.EDEADLK, e
            return 35
        return 0

    ready, say = os.pipe()

    def other():
        fb = opened(b)
        lock(fb, EX, 1, 1)
        os.write(say, b"1")
        return last(fb, 0)

    pid = child(other)
    os.read(ready, 1)
    mine = last(fa, 1)
    lock(fa, UN)
    his = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    assert (mine, his) in ((35, 0), (0, 35), (35, 35)), (mine, his)


# More than there could be threads; others are served meanwhile.
def many(*mounts):
    fds = [opened(mounts[0])]
    lock(fds[0], EX)
    fcntl.flock(fds[0], EX)
    pids = []
    for i in range(80):
        for mount in mounts:
            kind = fcntl.lockf if i % 2 else fcntl.flock
            pids.append(child(lambda: kind(opened(mount), SH if i % 3 else EX)))
    wait_for("all to be blocked", lambda: all(asleep(pid) for pid in pids))
    for mount in mounts:
        name = os.path.join(mount, "other")
        with open(name, "w") as f:
            f.write(mount)
        with open(name) as f:
            assert f.read() == mount
    lock(fds[0], UN)
    fcntl.flock(fds[0], UN)
    for pid in pids:
        end(pid)


# A count in a file, by read and write under a lock.
def counting(*mounts):
    rounds = 150

    def count(mount, kind, name):
        fd = opened(mount, name)
        for _ in range(rounds):
            kind(fd, EX)
            value = int(os.pread(fd, 20, 0) or b"0")
            os.pwrite(fd, b"%d" % (value + 1), 0)
            kind(fd, UN)

    pids = [
        child(lambda: count(m, kind, name))
        for m in mounts
        for kind, name in ((fcntl.lockf, "posix"), (fcntl.flock, "flock"))
        for _ in range(2)
    ]
    for pid in pids:
        end(pid)
    for m in mounts:
        for name in ("posix", "flock"):
            with open(os.path.join(m, name)) as f:
                assert int(f.read()) == 2 * len(mounts) * rounds


# Holds locks until it is killed; then there is a file "held".
def hold(a):
    fa = opened(a)
    lock(fa, EX)
    fcntl.flock(fa, EX)
    os.fsync(fa)
    os.close(opened(a, "held"))
    signal.pause()


# Says so once it waits.
def wait_long(a, said):
    def wait():
        fa = opened(a)
        fcntl.flock(fa, EX)
        lock(fa, EX)

    pid = child(wait)
    blocked(pid)
    os.close(os.open(said, os.O_CREAT))
    end(pid)


def sqlite(*mounts):
    rounds = 25
    paths = [os.path.join(m, "db") for m in mounts]

    def open_db(path):
        return sqlite3.connect(path, timeout=60, isolation_level=None)

    db = open_db(paths[0])
    db.execute("create table t (node int, i int, unique (node, i))")
    db.execute("create table sums (total int)")
    db.execute("insert into sums values (0)")
    db.close()

    def work(n, path):
        db = open_db(path)
        for i in range(rounds):
            db.execute("begin immediate")
            db.execute("insert into t values (?, ?)", (n, i))
            db.execute("update sums set total = total + ?", (i,))
            db.execute("commit")

    pids = [child(lambda: work(n, p)) for n, p in enumerate(paths)]
    for pid in pids:
        end(pid)
    for path in paths:
        db = open_db(path)
        count, total = db.execute("select count(*), sum(i) from t").fetchone()
        assert count == rounds * len(mounts), count
        assert db.execute("select total from sums").fetchone()[0] == total
        assert db.execute("pragma integrity_check").fetchone()[0] == "ok"
        db.close()


signal.alarm(200)  # by then it hangs
globals()[sys.argv[1]](*sys.argv[2:])
