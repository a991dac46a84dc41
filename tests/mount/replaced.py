#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# A file and a symlink are replaced all the time: every call by their names works all the same.
# A file that is removed all the time is there, or ENOENT.
#   replaced.py SECONDS WRITER READER...    directories of one volume: one replaces, each other one uses
import collections
import errno
import os
import signal
import sys
import time

SIZE = 5000


def replace(where, end):
    n = 0
    while time.monotonic() < end:
        n += 1
        with open(where + "/fresh", "w") as f:
            f.write(str(n % 10) * SIZE)
        os.replace(where + "/fresh", where + "/file")
        os.symlink("file", where + "/fresh")
        os.replace(where + "/fresh", where + "/link")
        with open(where + "/comes", "w") as f:
            f.write("and goes")
        os.unlink(where + "/comes")
    return n


def read(path):
    with open(path) as f:
        text = f.read()
    assert len(text) == SIZE and len(set(text)) == 1, (len(text), text[:9])


# Linux itself says ENOENT of a file that has lost its last name between its look-up and the link.
def link(path):
    name = "%s-%d" % (path, os.getpid())
    try:
        os.link(path, name)
        os.unlink(name)
    except FileNotFoundError:
        pass


def open_what_goes(path):
    try:
        with open(path) as f:
            assert f.read() in ("", "and goes")
    except FileNotFoundError:
        pass


CALLS = {
    "read": lambda d: read(d + "/file"),
    "read by the link": lambda d: read(d + "/link"),
    "write": lambda d: os.close(os.open(d + "/file", os.O_RDWR)),
    "create": lambda d: os.close(os.open(d + "/file", os.O_RDWR | os.O_CREAT)),
    "truncate": lambda d: os.truncate(d + "/file", SIZE),
    "chmod": lambda d: os.chmod(d + "/file", 0o640),
    "chown": lambda d: os.chown(d + "/file", 1, 1),
    "utime": lambda d: os.utime(d + "/file"),
    "stat": lambda d: os.stat(d + "/file"),
    "readlink": lambda d: os.readlink(d + "/link"),
    "setxattr": lambda d: os.setxattr(d + "/file", "user.x", b"y"),
    "listxattr": lambda d: os.listxattr(d + "/file"),
    "link": lambda d: link(d + "/file"),
    "open what goes": lambda d: open_what_goes(d + "/comes"),
}


def use(where, end):
    done = collections.Counter()
    failed = collections.Counter()
    while time.monotonic() < end:
        for name, call in CALLS.items():
            try:
                call(where)
                done[name] += 1
            except OSError as e:
                failed[name + ": " + errno.errorcode[e.errno]] += 1
    print(where, dict(done), "failed:", dict(failed), flush=True)
    return not failed and len(done) == len(CALLS)


def main():
    seconds, writer, readers = float(sys.argv[1]), sys.argv[2], sys.argv[3:]
    with open(writer + "/file", "w") as f:
        f.write("0" * SIZE)
    os.symlink("file", writer + "/link")
    end = time.monotonic() + seconds
    pids = []
    for where in readers:
        pid = os.fork()
        if pid == 0:
            signal.alarm(int(seconds) + 60)
            os._exit(0 if use(where, end) else 1)
        pids.append(pid)
    replaced = replace(writer, end)
    good = all([os.waitpid(pid, 0)[1] == 0 for pid in pids])
    print("replaced", replaced)
    sys.exit(0 if good and replaced > 0 else 1)


main()
