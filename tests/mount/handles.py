#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
# File handles, as NFS servers use them (name_to_handle_at, open_by_handle_at).
#   handles.py make DIR FILE      makes files of every type in DIR, writes their handles to FILE
#   handles.py open MOUNT FILE    each opens on MOUNT, and is what was made
#   handles.py gone MOUNT FILE    each is ESTALE on MOUNT, or has no links
#   handles.py wrong MOUNT FILE   each with another generation, or another number, is ESTALE
#   handles.py held A B           an unlinked file that is open on A opens by its handle on B
import ctypes
import errno
import json
import os
import socket
import stat
import struct
import sys
import time

libc = ctypes.CDLL(None, use_errno=True)
AT_FDCWD = -100
# The kernel's handle: length and type, then number (high, low) and generation.
HEAD, BODY = "Ii", "III"


def handle_of(path):
    buf = ctypes.create_string_buffer(struct.pack(HEAD, 128, 0) + bytes(128))
    mount = ctypes.c_int()
    if libc.name_to_handle_at(AT_FDCWD, path.encode(), buf, ctypes.byref(mount), 0):
        raise OSError(ctypes.get_errno(), "name_to_handle_at", path)
    return buf.raw[: struct.calcsize(HEAD) + struct.unpack_from("I", buf.raw)[0]]


def open_handle(mount, handle, flags):
    at = os.open(mount, os.O_RDONLY)
    try:
        fd = libc.open_by_handle_at(at, ctypes.create_string_buffer(handle), flags)
        if fd < 0:
            raise OSError(ctypes.get_errno(), "open_by_handle_at")
        return fd
    finally:
        os.close(at)


def stale(mount, handle):
    try:
        os.close(open_handle(mount, handle, os.O_PATH))
    except OSError as e:
        return e.errno == errno.ESTALE
    return False


# A kernel that has kept a name finds the inode without a question, and learns the rest by one.
def gone(mount, handle):
    if stale(mount, handle):
        return True
    fd = open_handle(mount, handle, os.O_PATH)
    try:
        return os.fstat(fd).st_nlink == 0
    except OSError as e:
        return e.errno == errno.ESTALE
    finally:
        os.close(fd)


def make(where):
    os.makedirs(where + "/dir/sub")
    with open(where + "/dir/file", "w") as f:
        f.write("content")
    os.link(where + "/dir/file", where + "/other name")
    os.symlink("target", where + "/link")
    os.mkfifo(where + "/fifo")
    os.mknod(where + "/null", stat.S_IFCHR | 0o666, os.makedev(1, 3))
    with socket.socket(socket.AF_UNIX) as s:
        s.bind(where + "/socket")
    # directories last: a listing tells the kernel of what is in them
    names = ["/dir/file", "/link", "/fifo", "/null", "/socket", "/dir/sub", "/dir", ""]
    return {
        name: (handle_of(where + name).hex(), os.lstat(where + name).st_mode, os.lstat(where + name).st_ino)
        for name in names
    }


def check_open(mount, name, handle, mode, ino):
    fd = open_handle(mount, handle, os.O_PATH)
    st = os.fstat(fd)
    assert (st.st_mode, st.st_ino) == (mode, ino), (name, st)
    if name == "/link":
        assert os.readlink("", dir_fd=fd) == "target"
    os.close(fd)
    if name == "/dir/file":
        fd = open_handle(mount, handle, os.O_RDWR)
        assert os.read(fd, 99) == b"content"
        os.close(fd)
    if name == "/dir":
        # a directory is found with the path that leads to it
        fd = open_handle(mount, handle, os.O_RDONLY)
        assert sorted(os.listdir(fd)) == ["file", "sub"]
        path = os.readlink("/proc/self/fd/%d" % fd)
        assert path.startswith(mount) and path.endswith(name), path
        assert os.stat("..", dir_fd=fd).st_ino == os.stat(os.path.dirname(path)).st_ino
        os.close(fd)


def check_wrong(mount, name, handle):
    high, low, generation = struct.unpack_from(BODY, handle, struct.calcsize(HEAD))
    for other in ((high, low, generation + 1), (high, low + 1000000, generation), (high + 1, low, generation)):
        changed = bytearray(handle)
        struct.pack_into(BODY, changed, struct.calcsize(HEAD), *other)
        assert stale(mount, bytes(changed)), (name, other)


def held(a, b):
    path = a + "/held"
    f = open(path, "w+")
    f.write("still here")
    f.flush()
    handle = handle_of(path)
    os.unlink(path)
    fd = open_handle(b, handle, os.O_PATH)
    st = os.fstat(fd)
    assert (st.st_nlink, st.st_size) == (0, 10), st
    os.close(fd)
    f.close()
    # the kernel tells of the last close behind it
    end = time.monotonic() + 30
    while not stale(b, handle):
        assert time.monotonic() < end
        time.sleep(0.05)


def main():
    what, mount, argument = sys.argv[1:]
    mount = mount.rstrip("/")
    if what == "held":
        held(mount, argument)
        return
    if what == "make":
        with open(argument, "w") as f:
            json.dump(make(mount), f)
        return
    with open(argument) as f:
        made = json.load(f)
    for name, (handle, mode, ino) in made.items():
        handle = bytes.fromhex(handle)
        if what == "open":
            check_open(mount, name, handle, mode, ino)
        elif what == "wrong":
            check_wrong(mount, name, handle)
        else:
            assert what == "gone" and gone(mount, handle), (what, name)


main()
