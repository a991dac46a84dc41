# SPDX-License-Identifier: Apache-2.0
"""What an idmapped mount of a folder does, said line by line: on weft as on any filesystem.

    idmap.py DIR MOUNTPOINT

Users 0 to 65535 of DIR are 100000 and so on behind MOUNTPOINT.
"""
import ctypes
import os
import stat
import struct
import sys

AT_FDCWD, OPEN_TREE_CLONE, AT_EMPTY_PATH, AT_SYMLINK_FOLLOW = -100, 1, 0x1000, 0x400
SYS_OPEN_TREE, SYS_MOVE_MOUNT, SYS_MOUNT_SETATTR, MOUNT_ATTR_IDMAP = 428, 429, 442, 0x00100000
CLONE_NEWUSER, MOVE_MOUNT_F_EMPTY_PATH, BASE = 0x10000000, 4, 100000

libc = ctypes.CDLL(None, use_errno=True)
inside, outside = sys.argv[2], sys.argv[1]


def call(what, ret):
    if ret < 0:
        sys.exit(f"{what}: {os.strerror(ctypes.get_errno())}")
    return ret


def user_namespace():
    """A namespace of users with the mapping, kept by a descriptor."""
    ready, go = os.pipe(), os.pipe()
    pid = os.fork()
    if pid == 0:
        call("unshare", libc.unshare(CLONE_NEWUSER))
        os.write(ready[1], b"x")
        os.read(go[0], 1)
        os._exit(0)
    os.read(ready[0], 1)
    for what in ("uid_map", "gid_map"):
        with open(f"/proc/{pid}/{what}", "w") as f:
            f.write(f"0 {BASE} 65536")
    fd = os.open(f"/proc/{pid}/ns/user", os.O_RDONLY)
    os.write(go[1], b"x")
    os.waitpid(pid, 0)
    return fd


def mount():
    tree = call("open_tree", libc.syscall(SYS_OPEN_TREE, AT_FDCWD, outside.encode(), OPEN_TREE_CLONE | os.O_CLOEXEC))
    attr = struct.pack("4Q", MOUNT_ATTR_IDMAP, 0, 0, user_namespace())
    call("mount_setattr", libc.syscall(SYS_MOUNT_SETATTR, tree, b"", AT_EMPTY_PATH, attr, len(attr)))
    call("move_mount", libc.syscall(SYS_MOVE_MOUNT, tree, b"", AT_FDCWD, inside.encode(), MOVE_MOUNT_F_EMPTY_PATH))
    os.close(tree)


def act_as(uid, gid, what):
    """In a process of that user, whose groups are none. What went wrong, or "ok"."""
    out = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.setgroups([])
        os.setresgid(gid, gid, gid)
        os.setresuid(uid, uid, uid)
        try:
            what()
            said = "ok"
        except OSError as e:
            said = e.strerror
        os.write(out[1], said.encode())
        os._exit(0)
    os.close(out[1])
    said = os.read(out[0], 100).decode()
    os.close(out[0])
    os.waitpid(pid, 0)
    return said


def owners(name):
    both = []
    for folder in (outside, inside):
        s = os.lstat(f"{folder}/{name}")
        both.append(f"{s.st_uid}:{s.st_gid}")
    return f"{name} {both[0]} is {both[1]} behind the mount, {stat.filemode(os.lstat(f'{outside}/{name}').st_mode)}"


def user(name, uid, what, gid=None):
    print(f"{uid} {name}:", act_as(BASE + uid, BASE + (uid if gid is None else gid), what))


def tmpfile():
    fd = os.open(inside, os.O_TMPFILE | os.O_RDWR)
    if libc.linkat(AT_FDCWD, f"/proc/self/fd/{fd}".encode(), AT_FDCWD, path("tmp").encode(), AT_SYMLINK_FOLLOW) < 0:
        raise OSError(ctypes.get_errno(), os.strerror(ctypes.get_errno()))


def mkdirs():
    os.mkdir(f"{inside}/dir")
    os.chmod(f"{inside}/dir", 0o2775)


def acl(uid):
    entries = [(1, 6, 0xffffffff), (2, 6, uid), (4, 4, 0xffffffff), (16, 6, 0xffffffff), (32, 0, 0xffffffff)]
    return struct.pack("<I", 2) + b"".join(struct.pack("<HHI", *e) for e in entries)


def path(name):
    return f"{inside}/{name}"


os.umask(0o022)
os.chmod(outside, 0o777)
with open(f"{outside}/old", "w"):
    pass
os.chown(f"{outside}/old", 5, 6)
mount()
print(owners("old"))
user("makes a file", 5, lambda: os.close(os.open(path("file"), os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o644)))
user("makes a directory", 5, mkdirs)
user("makes a symlink", 5, lambda: os.symlink("x", path("link")))
user("makes a pipe", 5, lambda: os.mkfifo(path("pipe")))
user("makes a file without a name", 5, tmpfile)
for made in ("file", "dir", "link", "pipe", "tmp"):
    print(owners(made))
try:
    os.mkdir(path("none"))
    print("root, who is nobody behind it, made a directory")
except OSError as e:
    print("root, who is nobody behind it, makes a directory:", e.strerror)
os.chmod(f"{outside}/dir", 0o2777)
user("makes a file in a setgid directory", 7, lambda: os.close(os.open(path("dir/in"), os.O_CREAT | os.O_RDWR, 0o644)))
print(owners("dir/in"))
user("changes the mode of another's", 8, lambda: os.chmod(path("file"), 0o600))
user("changes the mode of its own", 5, lambda: os.chmod(path("file"), 0o4755))
user("gives a file away", 5, lambda: os.chown(path("file"), BASE + 9, -1))
user("chowns to no one another's setuid file", 8, lambda: os.chown(path("file"), -1, -1))
print(owners("file"))
os.chown(path("file"), BASE + 10, BASE + 11)
print(owners("file"))
try:
    os.chown(path("file"), 1, 1)
    print("an owner outside of the mapping was taken")
except OSError as e:
    print("an owner outside of the mapping:", e.strerror)
os.chmod(f"{outside}/file", 0o4777)
user("allocates in another's setuid file", 8, lambda: os.posix_fallocate(os.open(path("file"), os.O_RDWR), 0, 4096))
print(owners("file"))
os.chmod(f"{outside}/file", 0o6777)
user("writes to another's setuid file", 8, lambda: os.write(os.open(path("file"), os.O_RDWR), b"x"))
print(owners("file"))
os.setxattr(path("file"), "system.posix_acl_access", acl(BASE + 12))
print("an acl of 100012 is one of", struct.unpack_from("<I", os.getxattr(f"{outside}/file", "system.posix_acl_access"), 16)[0])
os.chmod(f"{outside}/file", 0o660)
user("reads what the acl lets it", 12, lambda: os.close(os.open(path("file"), os.O_RDWR)))
user("reads what it may not", 13, lambda: os.close(os.open(path("file"), os.O_RDONLY)))
user("renames over its own", 5, lambda: os.rename(path("tmp"), path("link")))
os.chmod(outside, 0o1777)
user("removes another's from a sticky directory", 8, lambda: os.unlink(path("pipe")))
user("removes its own", 5, lambda: os.unlink(path("pipe")))
call("umount", libc.umount2(inside.encode(), 0))
