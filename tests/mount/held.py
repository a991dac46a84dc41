# SPDX-License-Identifier: Apache-2.0
# held.py MOUNT: has MOUNT/f and MOUNT/d open, f mapped, and all of it in the kernel's cache; says "held". For each line
# that comes then: what a read, stats and a load give now, a word each: the first letters of what was read, the size,
# or the error's name.
import errno
import mmap
import os
import signal
import sys

mount = sys.argv[1]
f = os.open(mount + "/f", os.O_RDONLY)
d = os.open(mount + "/d", os.O_RDONLY)
mapped = mmap.mmap(f, 4, prot=mmap.PROT_READ)


def load():
    """In a child, since the answer may be a signal."""
    child = os.fork()
    if child == 0:
        os._exit(mapped[0])
    status = os.waitpid(child, 0)[1]
    return signal.Signals(status).name if os.WIFSIGNALED(status) else chr(status >> 8)


def looks():
    yield lambda: os.pread(f, 3, 0).decode()
    yield lambda: os.fstat(f).st_size
    yield lambda: os.stat(mount + "/f").st_size
    yield lambda: os.stat("e", dir_fd=d).st_size
    yield load


def word(look):
    try:
        return str(look())
    except OSError as e:
        return errno.errorcode[e.errno]


def look():
    return " ".join(word(one) for one in looks())


for _ in range(3):  # what was asked for twice is kept
    look()
print("held", flush=True)
for _ in sys.stdin:
    print(look(), flush=True)
