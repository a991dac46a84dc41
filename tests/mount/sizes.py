# SPDX-License-Identifier: Apache-2.0
# What programs find of a file whose end moves, by calls that go by the size that the kernel has. The first
# thing that is wrong ends it with exit code 1. WRITES and READS are mounts of one volume.
#   ahead WRITES READS HOW    a file grows; what fstat says is there to be read. HOW: write, direct, allocate
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


if __name__ == "__main__":
    {"ahead": ahead}[sys.argv[1]](*sys.argv[2:])
