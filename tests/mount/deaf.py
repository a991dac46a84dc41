#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""deaf.py read|map PID FILE: a process of FILE's node keeps a page locked that the daemon must drop.

The thread of weftd PID that reads the FUSE device is stopped (by ptrace), so nothing that the kernel asks
is answered any more, while all else of the daemon goes on. Before that FILE is opened; after it, with
"read", its end is read, of which the kernel has nothing yet; with "map" something is stored through a
mapping. Says "deaf" then, and how that went when the daemon has been killed."""
import contextlib, ctypes, mmap, os, sys, threading, time

PTRACE_SEIZE, PTRACE_INTERRUPT, WALL = 0x4206, 0x4207, 0x40000000
libc = ctypes.CDLL(None, use_errno=True)
libc.ptrace.argtypes = [ctypes.c_long, ctypes.c_long, ctypes.c_void_p, ctypes.c_void_p]


def of_each(folder, read):
    """What `read` finds for each entry of a folder of /proc, by its name. Entries may go meanwhile."""
    found = {}
    for name in os.listdir(folder):
        with contextlib.suppress(FileNotFoundError, ProcessLookupError):
            found[name] = read(folder + name)
    return found


def call_of(thread):
    with open(thread + "/syscall") as f:
        return f.read().split()


def reader(pid):
    """The thread that is in read(2) of the device."""
    proc = "/proc/%d/" % pid
    while True:
        device = [fd for fd, name in of_each(proc + "fd/", os.readlink).items() if name == "/dev/fuse"]
        for tid, call in of_each(proc + "task/", call_of).items():
            if call[0] == "0" and str(int(call[1], 16)) in device:
                return int(tid)
        time.sleep(0.01)


def stop(tid):
    if libc.ptrace(PTRACE_SEIZE, tid, None, None) or libc.ptrace(PTRACE_INTERRUPT, tid, None, None):
        sys.exit("ptrace: " + os.strerror(ctypes.get_errno()))
    os.waitpid(tid, WALL)


def use():
    try:
        if how == "read":
            os.pread(fd, 4096, size - 4096)
        else:
            os.fsync(fd)
        print("done", flush=True)
    except OSError as e:
        print(os.strerror(e.errno), flush=True)

how, pid, path = sys.argv[1], int(sys.argv[2]), sys.argv[3]
fd = os.open(path, os.O_RDONLY if how == "read" else os.O_RDWR)
size = os.fstat(fd).st_size
if how == "read":
    os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_RANDOM)
    os.pread(fd, 4096, 0)
else:
    m = mmap.mmap(fd, size)
    m[0] = 1
stop(reader(pid))
if how == "read":
    asks = threading.Thread(target=use)
    asks.start()
    while open("/proc/self/task/%d/wchan" % asks.native_id).read() in ("", "0"):
        time.sleep(0.01)
print("deaf", flush=True)
sys.stdin.read()
os._exit(0)
