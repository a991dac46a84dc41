# SPDX-License-Identifier: Apache-2.0
"""opens.py PART MOUNT WEFT [FILE]: what opens.bats looks at, on a volume of one node."""
import errno
import json
import mmap
import os
import stat
import subprocess
import sys
import time

PART, MNT, WEFT = sys.argv[1:4]
MIB = 1 << 20


def path(name):
    return os.path.join(MNT, name)


def requests():
    """How many requests of each kind the kernel has made."""
    status = json.loads(subprocess.check_output([WEFT, "status", MNT, "--json"]))
    return {kind: value["count"] for kind, value in status["requests"].items()}


def made_by(action):
    """The requests that the action leads to, without those of looking."""
    idle, before = requests(), requests()
    action()
    after = requests()
    made = {kind: after[kind] - 2 * before.get(kind, 0) + idle.get(kind, 0) for kind in after}
    return {kind: n for kind, n in made.items() if n}


def fails(error, call, *arguments):
    try:
        call(*arguments)
    except OSError as e:
        assert e.errno == error, (e, error)
        return
    raise AssertionError(f"{call.__name__}{arguments} does not fail")


def read_all(directory, count):
    for i in range(count):
        fd = os.open(f"{directory}/f{i}", os.O_RDONLY)
        assert os.read(fd, 4096) == b"%d" % i
        os.close(fd)


def fill(name, count):
    os.mkdir(path(name))
    for i in range(count):
        with open(path(f"{name}/f{i}"), "wb") as f:
            f.write(b"%d" % i)


def busy():
    """Uses so many other files that no handle of an earlier one is kept."""
    fill("busy", 3000)
    for i in range(3000):
        os.unlink(path(f"busy/f{i}"))
    os.rmdir(path("busy"))
    time.sleep(2.5)


def cached():
    fill("d", 500)
    read_all(path("d"), 500)
    time.sleep(2.5)  # what was written is idle: its access times are due
    read_all(path("d"), 500)
    os.listdir(path("d"))
    tries = []
    for _ in range(5):  # a kernel that is short of memory drops pages
        tries.append(made_by(lambda: (read_all(path("d"), 500), os.listdir(path("d")))))
        if not tries[-1]:
            break
    assert not tries[-1], tries
    made = made_by(lambda: [os.close(os.open(path(f"d/f{i}"), os.O_RDWR)) for i in range(500)])
    assert not made, made
    made = made_by(lambda: fill("e", 100))
    assert made.get("mknod") == 100 and not set(made) & {"create", "open", "release", "flush"}, made


def told():
    fill("d", 10)
    made = made_by(lambda: read_all(path("d"), 10))
    assert made.get("open") == 10, made


def writes():
    with open(path("cut"), "wb") as f:
        f.write(b"x" * 10000)
    before = os.stat(path("cut"))
    time.sleep(0.05)
    fd = os.open(path("cut"), os.O_RDWR | os.O_TRUNC)
    after = os.fstat(fd)
    assert after.st_size == 0 and after.st_mtime_ns > before.st_mtime_ns
    assert os.pread(fd, 10, 0) == b""
    assert os.pwrite(fd, b"end", 9000) == 3
    assert os.pread(fd, 10000, 0) == bytes(9000) + b"end"
    os.close(fd)
    os.close(os.open(path("empty"), os.O_RDWR | os.O_CREAT | os.O_TRUNC, 0o600))
    one = os.open(path("log"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    two = os.open(path("log"), os.O_WRONLY | os.O_APPEND)
    plain = os.open(path("log"), os.O_RDWR)
    for i in range(100):
        os.write(one, b"1" * 50)
        os.write(two, b"2" * 50)
    os.pwrite(plain, b"P", 0)
    assert os.pread(plain, 20000, 0) == b"P" + b"1" * 49 + b"2" * 50 + (b"1" * 50 + b"2" * 50) * 99
    for fd in (one, two, plain):
        os.close(fd)
    buffer = mmap.mmap(-1, 8192)
    buffer[:] = b"d" * 8192
    direct = os.open(path("direct"), os.O_RDWR | os.O_CREAT | os.O_DIRECT, 0o644)
    through = os.open(path("direct"), os.O_RDWR)
    for turn in range(200):
        buffer[:4] = b"%04d" % turn
        assert os.pwritev(direct, [buffer], 0) == 8192
        assert os.pread(through, 4, 0) == b"%04d" % turn
        os.pwrite(through, b"t%03d" % turn, 4096)
        got = mmap.mmap(-1, 8192)
        assert os.preadv(direct, [got], 0) == 8192
        assert got[4096:4100] == b"t%03d" % turn and got[:4] == b"%04d" % turn
        buffer[4096:4100] = b"t%03d" % turn
    os.close(direct)
    os.close(through)
    sparse = os.open(path("sparse"), os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(sparse, 4 * MIB)
    os.pwrite(sparse, b"x", MIB)
    assert os.lseek(sparse, 0, os.SEEK_DATA) == MIB
    assert os.lseek(sparse, MIB, os.SEEK_HOLE) == MIB + 4096
    assert os.copy_file_range(sparse, sparse, 4096, MIB, 2 * MIB) == 4096
    assert os.pread(sparse, 1, 2 * MIB) == b"x"
    os.posix_fallocate(sparse, 0, 5 * MIB)
    assert os.fstat(sparse).st_size == 5 * MIB
    os.close(sparse)


def written():
    with open(path("cut"), "rb") as f:
        assert f.read() == bytes(9000) + b"end"
    with open(path("log"), "rb") as f:
        assert f.read() == b"P" + b"1" * 49 + b"2" * 50 + (b"1" * 50 + b"2" * 50) * 99
    with open(path("direct"), "rb") as f:
        assert f.read(4) == b"0199" and f.seek(4096) == 4096 and f.read(4) == b"t199"
    assert os.stat(path("sparse")).st_size == 5 * MIB and os.stat(path("empty")).st_size == 0


def as_user(uid, action):
    """In a child: groups and umask are its own."""
    child = os.fork()
    if child == 0:
        try:
            os.setgroups([])
            os.setgid(uid)
            os.setuid(uid)
            action()
            os._exit(0)
        except BaseException as e:  # the parent tells
            print(repr(e), file=sys.stderr)
            os._exit(1)
    assert os.waitpid(child, 0)[1] == 0


def makes():
    new = os.O_CREAT | os.O_EXCL | os.O_WRONLY
    os.umask(0)
    os.mkdir(path("d"), 0o777)
    os.mkdir(path("group"), 0o777)
    os.chown(path("group"), 0, 4321)
    os.chmod(path("group"), 0o2777)
    os.mkdir(path("closed"), 0o755)
    os.mkdir(path("acl"), 0o777)
    subprocess.check_call(["setfacl", "-d", "-m", "u::rwx,u:1001:rw-,g::r-x,o::---,m::rwx", path("acl")])
    os.symlink("made", path("d/dangling"))

    def user():
        os.umask(0o027)
        fd = os.open(path("d/f"), new, 0o666)
        st = os.fstat(fd)
        assert (st.st_mode, st.st_uid, st.st_gid) == (stat.S_IFREG | 0o640, 1000, 1000), st
        os.close(fd)
        fails(errno.EEXIST, os.open, path("d/f"), new, 0o666)
        fails(errno.EEXIST, os.open, path("d/dangling"), new, 0o666)
        # the mode does not concern the open that makes the file
        fd = os.open(path("d/readonly"), new, 0o444)
        assert os.write(fd, b"bytes") == 5
        os.close(fd)
        fails(errno.EACCES, os.open, path("d/readonly"), os.O_WRONLY)
        fails(errno.EACCES, os.open, path("closed/f"), new, 0o666)
        fd = os.open(path("group/f"), new, 0o666)
        assert os.fstat(fd).st_gid == 4321
        os.close(fd)
        fd = os.open(path("acl/f"), new, 0o666)
        assert stat.S_IMODE(os.fstat(fd).st_mode) == 0o660, oct(os.fstat(fd).st_mode)
        os.close(fd)
        os.close(os.open(path("d/dangling"), os.O_CREAT | os.O_WRONLY, 0o600))
        assert stat.S_ISREG(os.stat(path("d/made")).st_mode)
        fails(errno.ELOOP, os.open, path("d/dangling"), os.O_WRONLY | os.O_NOFOLLOW)

    as_user(1000, user)
    assert b"user:1001:rw-" in subprocess.check_output(["getfacl", "-cn", path("acl/f")])
    os.chmod(path("d"), 0o1777)
    as_user(1001, lambda: fails(errno.EPERM, os.unlink, path("d/f")))
    children = []
    while len(children) < 4 and 0 not in children:
        children.append(os.fork())
    if 0 in children:
        won = 0
        for i in range(500):
            try:
                os.close(os.open(path(f"d/race{i}"), new, 0o600))
                won += 1
            except FileExistsError:
                pass
        os.write(os.open(path("d/won"), os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600), b"%d\n" % won)
        os._exit(0)
    for child in children:
        assert os.waitpid(child, 0)[1] == 0
    with open(path("d/won")) as f:
        assert sum(int(line) for line in f) == 500


def free_pages():
    return os.statvfs(MNT).f_bfree


def unlinked():
    subprocess.check_call(["sync", "-f", MNT])
    before = free_pages()
    held = []
    for i in range(40):
        fd = os.open(path(f"u{i}"), os.O_RDWR | os.O_CREAT, 0o644)
        os.write(fd, b"%06d" % i * 20000)
        if i % 2:
            os.link(path(f"u{i}"), path("other"))
            os.rename(path("other"), path(f"u{i}x"))
            os.unlink(path(f"u{i}x"))
        os.unlink(path(f"u{i}"))
        held.append(fd)
    fails(errno.ENOENT, os.stat, path("u0"))
    busy()
    for i, fd in enumerate(held):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.fstat(fd).st_nlink == 0 and os.fstat(fd).st_size == 120000
        assert os.pread(fd, 120000, 0) == b"%06d" % i * 20000
        assert os.pwrite(fd, b"tail", 200000) == 4
        os.ftruncate(fd, 200002)
    busy()
    for i, fd in enumerate(held):
        os.posix_fadvise(fd, 0, 0, os.POSIX_FADV_DONTNEED)
        assert os.pread(fd, 200000, 119999) == b"%d" % (i % 10) + bytes(80000) + b"ta"
        again = os.open(f"/proc/self/fd/{fd}", os.O_RDONLY)
        assert os.pread(again, 6, 0) == b"%06d" % i
        os.close(fd)
        assert os.pread(again, 6, 6) == b"%06d" % i
        os.close(again)
    end = time.monotonic() + 20
    while before - free_pages() > 32 and time.monotonic() < end:
        time.sleep(0.1)
    assert before - free_pages() <= 32, (before, free_pages())


def give_name(fd, name):
    """With a folder, Python calls linkat(2), which follows the link in /proc."""
    os.link(f"/proc/self/fd/{fd}", path(name), src_dir_fd=fd, follow_symlinks=True)


def tmpfile():
    before = free_pages()
    fd = os.open(MNT, os.O_TMPFILE | os.O_RDWR, 0o640)
    os.write(fd, b"content" * 1000)
    alone = os.open(MNT, os.O_TMPFILE | os.O_RDWR | os.O_EXCL, 0o640)
    gone = os.open(MNT, os.O_TMPFILE | os.O_RDWR, 0o640)
    os.write(gone, b"x" * 4 * MIB)
    busy()
    give_name(fd, "named")
    fails(errno.ENOENT, give_name, alone, "not")
    for one in (fd, alone, gone):
        os.close(one)
    busy()
    with open(path("named"), "rb") as f:
        assert f.read() == b"content" * 1000 and os.fstat(f.fileno()).st_nlink == 1
    os.unlink(path("named"))
    fd = os.open(MNT, os.O_TMPFILE | os.O_WRONLY, 0o640)
    os.write(fd, b"only written")
    give_name(fd, "written")
    with open(path("written"), "r+b") as f:  # another open, for more
        assert f.read() == b"only written"
        f.write(b" and more")
    os.close(fd)
    os.unlink(path("written"))
    end = time.monotonic() + 20
    while before - free_pages() > 32 and time.monotonic() < end:
        time.sleep(0.1)
    assert before - free_pages() <= 32, (before, free_pages())


def maps():
    fd = os.open(path("m"), os.O_RDWR | os.O_CREAT, 0o644)
    os.ftruncate(fd, MIB)
    m = mmap.mmap(fd, MIB)
    os.close(fd)
    m[5000:5005] = b"store"
    busy()
    assert os.stat(path("m")).st_blocks > 0  # what was stored is data
    fd = os.open(path("m"), os.O_RDONLY)
    assert os.lseek(fd, 0, os.SEEK_DATA) <= 4096
    os.close(fd)
    m[MIB - 3:] = b"end"
    m.flush()
    fd = os.open(path("m"), os.O_RDWR)
    os.pwrite(fd, b"written", 9000)
    assert m[9000:9007] == b"written"
    os.fsync(fd)
    os.close(fd)
    directory = os.open(MNT, os.O_RDONLY)
    os.fsync(directory)


def mapped():
    with open(path("m"), "rb") as f:
        data = f.read()
    assert len(data) == MIB and data[5000:5005] == b"store" and data[-3:] == b"end" and data[9000:9007] == b"written"


def hold():
    held = []
    for i in range(200):
        fd = os.open(path(f"h{i}"), os.O_RDWR | os.O_CREAT, 0o644)
        os.write(fd, b"y" * 20000)
        os.unlink(path(f"h{i}"))
        held.append(fd)
    os.sync()
    with open(sys.argv[4], "w"):
        pass
    time.sleep(60)


def atime_of(name):
    return os.stat(path(name)).st_atime


def read_plainly(name):
    fd = os.open(path(name), os.O_RDONLY)
    while os.read(fd, 65536):
        pass
    os.close(fd)


def atime():
    with open(path("f"), "wb") as f:
        f.write(b"x" * 20000)
    with open(path("f"), "rb") as f:
        f.read()
    assert not made_by(lambda: read_plainly("f"))  # it is cached
    os.utime(path("f"), (1000000000, 1000000000))
    time.sleep(2.5)
    read_plainly("f")
    assert atime_of("f") > 1000000000
    assert not made_by(lambda: read_plainly("f"))  # it is not due any more
    # what was written whole is in the kernel's cache; the next read is told
    time.sleep(0.1)
    fd = os.open(path("f"), os.O_RDWR)
    os.pwrite(fd, b"y" * 20480, 0)
    os.close(fd)
    before = atime_of("f")
    time.sleep(2.5)
    read_plainly("f")
    moved = atime_of("f")
    assert moved > before, (moved, before)
    time.sleep(2.5)
    fd = os.open(path("f"), os.O_RDWR)
    os.pwrite(fd, b"z" * 20480, 0)
    os.close(fd)
    time.sleep(2.5)
    fd = os.open(path("f"), os.O_RDONLY | os.O_NOATIME)
    os.read(fd, 100)
    os.close(fd)
    assert atime_of("f") == moved


def fixed():
    with open(path("f"), "wb") as f:
        f.write(b"x" * 8192)
    fd = os.open(path("f"), os.O_RDWR)
    before = mmap.mmap(fd, 8192)
    before[1] = ord("m")
    subprocess.check_call(["chattr", "+i", path("f")])
    new = os.open(path("f"), os.O_RDWR)
    fails(errno.EPERM, os.pwrite, new, b"y", 0)
    fails(errno.EPERM, os.open, path("f"), os.O_WRONLY | os.O_TRUNC)
    m = mmap.mmap(new, 8192)
    m[4097] = ord("n")
    try:
        m.flush()
        raise AssertionError("stored into an immutable file")
    except OSError:
        pass
    before.close()
    m.close()
    os.close(fd)
    os.close(new)
    subprocess.check_call(["chattr", "-i", path("f")])
    with open(path("f"), "rb") as f:
        os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
        data = f.read()
    assert data[:2] == b"xm" and data[4096:4098] == b"xx", (data[:4], data[4096:4100])


{f.__name__: f for f in (cached, told, writes, written, makes, unlinked, tmpfile, maps, mapped, hold, atime,
                         fixed)}[PART]()
