#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Many requests of one mount at a time that need what only another node has.

crowd.py FOLDER COUNT make      makes COUNT files, each of one page that says its number
crowd.py FOLDER COUNT read DIR  opens all, for reading; when DIR/go is there reads all at once, a thread each, and
                                says in DIR/begun and DIR/ended how many
crowd.py FOLDER COUNT write DIR opens all, for writing; changes all at once
crowd.py FOLDER COUNT check     all have what `make` wrote, or `write`

At the end: how many ended how ("right 600", "EIO 600"); wrong bytes are status 1."""

import errno
import os
import sys
import threading
import time

PAGE = 4096


def page_of(number, changed=False):
    return (b"%d %s\n" % (number, b"changed" if changed else b"made") * PAGE)[:PAGE]


class Crowd:
    def __init__(self, folder, count, told):
        self.folder, self.count, self.told = folder, count, told
        self.lock = threading.Lock()
        self.begun = 0
        self.ended = {}

    def path(self, number):
        return os.path.join(self.folder, str(number))

    def tell(self, name, value):
        with open(os.path.join(self.told, name + ".new"), "w") as f:
            f.write("%d\n" % value)
        os.rename(os.path.join(self.told, name + ".new"), os.path.join(self.told, name))

    def read(self, fd, number):
        bytes_read = os.pread(fd, PAGE, 0)
        return "right" if bytes_read in (page_of(number), page_of(number, True)) else "wrong"

    def write(self, fd, number):
        return "right" if os.pwrite(fd, page_of(number, True), 0) == PAGE else "wrong"

    def one(self, does, fd, number):
        with self.lock:
            self.begun += 1
            self.tell("begun", self.begun)
        try:
            how = does(fd, number)
        except OSError as e:
            how = errno.errorcode[e.errno]
        with self.lock:
            self.ended[how] = self.ended.get(how, 0) + 1
            self.tell("ended", sum(self.ended.values()))

    def run(self, does, flags):
        fds = [os.open(self.path(i), flags) for i in range(self.count)]
        threading.stack_size(256 << 10)
        threads = [
            threading.Thread(target=self.one, args=(does, fd, i), daemon=True)
            for i, fd in enumerate(fds)
        ]
        self.tell("open", self.count)
        while not os.path.exists(os.path.join(self.told, "go")):
            time.sleep(0.05)
        for t in threads:
            t.start()
        for t in threads:
            t.join()


def main():
    folder, count, what = sys.argv[1], int(sys.argv[2]), sys.argv[3]
    crowd = Crowd(folder, count, sys.argv[4] if len(sys.argv) > 4 else None)
    if what == "make":
        for i in range(count):
            with open(crowd.path(i), "wb") as f:
                f.write(page_of(i))
    elif what == "check":
        for i in range(count):
            with open(crowd.path(i), "rb") as f:
                how = "right" if f.read() in (page_of(i), page_of(i, True)) else "wrong"
            crowd.ended[how] = crowd.ended.get(how, 0) + 1
    elif what == "read":
        crowd.run(crowd.read, os.O_RDONLY)
    else:
        crowd.run(crowd.write, os.O_WRONLY)
    print(", ".join("%s %d" % (how, n) for how, n in sorted(crowd.ended.items())))
    sys.exit("wrong" in crowd.ended)


main()
