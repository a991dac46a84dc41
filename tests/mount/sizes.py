# SPDX-License-Identifier: Apache-2.0
# What programs find of a file whose end moves, by calls that go by the size that the kernel has. The first
# thing that is wrong ends it with exit code 1. WRITES and READS are mounts of one volume.
#   ahead WRITES READS HOW    a file grows; what fstat says is there to be read. HOW: write, direct, allocate
#   moved WRITES READS        a file grows on another node; who has it open finds that without asking, soon
#   locked WRITES READS       the same; who is given a lock finds it at once, by each such call and mapping
import fcntl
import mmap
import os
import struct
import sys
import termios
import time


def need(what, *said):
    if not what:
        print("wrong:", *said, flush=True)
        os._exit(1)


def fionread(fd):
    return struct.unpack("i", fcntl.ioctl(fd, termios.FIONREAD, bytes(4)))[0]


class Children:
    def __init__(self):
        self.pids = []

    def start(self, run, *args):
        pid = os.fork()
        if pid == 0:
            try:
                run(*args)
            except BaseException as e:
                need(False, run.__name__, args, repr(e))
            os._exit(0)
        self.pids.append(pid)

    def end(self):
        for pid in self.pids:
            need(os.waitpid(pid, 0)[1] == 0, "a child has failed")
        self.pids = []


CHUNK, CHUNKS = 4096, 700


def chunk(i, size):
    return struct.pack("I", i + 1) * (size // 4)


def ahead_read(path, how, size):
    fd, at, r, w = os.open(path, os.O_RDONLY), 0, *os.pipe()
    fcntl.fcntl(w, fcntl.F_SETPIPE_SZ, 1 << 20)
    whole = b"".join(chunk(i, size) for i in range(CHUNKS))
    while at < len(whole):
        end = os.fstat(fd).st_size
        n = min(end - at, 400000)
        if n == 0:
            continue
        got = os.pread(fd, n, at) if how == "read" else os.read(r, os.sendfile(w, fd, at, n))
        need(len(got) == n, how, "at", at, "to", end, "has got", len(got))
        need(got == whole[at : at + n] or how == "allocated", how, "at", at, "other bytes")
        at += n


def ahead(writes, reads, how):
    size = 1536 if how == "direct" else 2000
    path, c = "/ahead-" + how, Children()
    fd = os.open(writes + path, os.O_CREAT | os.O_WRONLY | (os.O_DIRECT if how == "direct" else 0))
    for way in ("read", "sendfile"):
        c.start(ahead_read, reads + path, "allocated" if how == "allocate" else way, size)
    buffer = mmap.mmap(-1, CHUNK)
    for i in range(CHUNKS):
        buffer[:size] = chunk(i, size)
        if how == "allocate":
            os.posix_fallocate(fd, i * size, size)
        else:
            need(os.write(fd, memoryview(buffer)[:size]) == size)
    c.end()


def grow(path, size):
    fd = os.open(path, os.O_CREAT | os.O_WRONLY | os.O_APPEND)
    need(os.write(fd, b"w" * size) == size)
    os.close(fd)


def load(fd, at):
    """The byte there through a mapping made just now, or None: SIGBUS."""
    pid = os.fork()
    if pid == 0:
        os._exit(mmap.mmap(fd, OLD + MORE, mmap.MAP_SHARED, mmap.PROT_READ)[at])
    status = os.waitpid(pid, 0)[1]
    return None if os.WIFSIGNALED(status) else os.WEXITSTATUS(status)


def sent(fd, at):
    r, w = os.pipe()
    n = os.sendfile(w, fd, at, 65536)
    need(os.read(r, n) == b"w" * n if n else True, "sendfile: other bytes")
    os.close(r)
    os.close(w)
    return n


def spliced(fd, at):
    r, w = os.pipe()
    n = os.splice(fd, w, 65536, offset_src=at)
    os.close(r)
    os.close(w)
    return n


def copied(fd, at):
    out = os.open(os.readlink("/proc/self/fd/%d" % fd) + "-copy", os.O_CREAT | os.O_WRONLY)
    n = os.copy_file_range(fd, out, 65536, at)
    os.close(out)
    return n


OLD, MORE = 3000, 20000
USES = {
    "FIONREAD": lambda fd: fionread(fd) == OLD + MORE,
    "sendfile": lambda fd: sent(fd, OLD) == MORE,
    "splice": lambda fd: spliced(fd, OLD) == MORE,
    "copy_file_range": lambda fd: copied(fd, OLD) == MORE,
    "a load behind the old end": lambda fd: load(fd, OLD + MORE - 1) == ord("w"),
    "a load behind it in its page": lambda fd: load(fd, OLD + 1) == ord("w"),
}


def opened(reads, name):
    """The file as a program has it that has looked at all of it."""
    fd = os.open(reads + name, os.O_RDONLY)
    need(len(os.pread(fd, 65536, 0)) == OLD)
    return fd


def moved(writes, reads):
    for i, (use, right) in enumerate(USES.items()):
        name = "/moved-%d" % i
        grow(writes + name, OLD)
        fd = opened(reads, name)
        grow(writes + name, MORE)
        end = time.monotonic() + 10
        while not right(fd):
            need(time.monotonic() < end, use, "goes by the old end")
        os.close(fd)
    name = "/moved-append"
    grow(writes + name, OLD)
    fd = os.open(reads + name, os.O_WRONLY)
    for i in range(1, 4):
        grow(writes + name, MORE)
        end = time.monotonic() + 10
        while fionread(fd) != OLD + i * MORE + i - 1:
            need(time.monotonic() < end, "FIONREAD of a handle that writes")
        need(os.pwritev(fd, [b"r"], 0, RWF_APPEND) == 1)
        need(os.stat(writes + name).st_size == OLD + i * (MORE + 1), "RWF_APPEND has written over")


RWF_APPEND = 0x10


def locked(writes, reads):
    for i in range(30):
        name = "/locked-%d" % i
        grow(writes + name, OLD)
        grow(writes + "/lock", 0)
        fd = opened(reads, name)
        there, here = (os.open(m + "/lock", os.O_RDWR) for m in (writes, reads))
        (fcntl.flock if i % 2 else fcntl.lockf)(there, fcntl.LOCK_EX)
        grow(writes + name, MORE)
        (fcntl.flock if i % 2 else fcntl.lockf)(there, fcntl.LOCK_UN)
        (fcntl.flock if i % 2 else fcntl.lockf)(here, fcntl.LOCK_EX | (fcntl.LOCK_NB if i % 3 else 0))
        use, right = list(USES.items())[i % len(USES)]
        need(right(fd), use, "goes by the old end")
        for f in (fd, there, here):
            os.close(f)


if __name__ == "__main__":
    {"ahead": ahead, "moved": moved, "locked": locked}[sys.argv[1]](*sys.argv[2:])
