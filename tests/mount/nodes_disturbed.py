# SPDX-License-Identifier: Apache-2.0
# Loads on all nodes of a volume while nodes are killed, stand still or are cut off; each knows what
# may be lost by it.
#
#   nodes_disturbed.py prepare MOUNT STATE
#   nodes_disturbed.py work KIND MOUNT NODE STATE SEED   until STATE/stop is there, or the mount dies
#   nodes_disturbed.py doom MOUNT STATE NODE...          these nodes will be killed
#   nodes_disturbed.py back MOUNT STATE                  they are mounted again
#   nodes_disturbed.py check MOUNT STATE
#
# KIND:
#   locks    counts in files under locks (fcntl, flock): one holder, no count lost
#   appends  records to one file, through O_APPEND: none lost, torn or twice, each node's in order
#   names    are made, moved between two directories, linked and removed: all are as they were left
#
# What a doomed node has done and not synced may be lost. All that was done before it was doomed is
# synced by then; what others do never may be. STATE is outside the volume. What is
# noted there before an operation may have happened once it has begun; what is noted after it has.
import errno
import fcntl
import mmap
import os
import random
import re
import struct
import sys
import time

NODES = 8
SLOTS = 12
RECORD = 600
PAGE = 4096
REST_S = 0.005  # from one operation to the next; the nodes are to have processors, too
LOCKS = (("fcntl", fcntl.lockf), ("flock", fcntl.flock))
DEAD = (errno.ENOTCONN, errno.ECONNABORTED)
root = None


class Dead(Exception):
    pass


def fail(*what):
    print(*what, flush=True)
    sys.exit(1)


class State:
    """Numbers that all processes see: who is doomed, the counts, the names."""

    def __init__(self, folder):
        self.folder = folder
        path = os.path.join(folder, "numbers")
        fd = os.open(path, os.O_RDWR | os.O_CREAT)
        os.ftruncate(fd, PAGE)
        self.map = mmap.mmap(fd, PAGE)

    def get(self, i):
        return struct.unpack_from("q", self.map, i * 8)[0]

    def set(self, i, value):
        struct.pack_into("q", self.map, i * 8, value)

    def doomed(self, node):
        return self.get(0) >> node & 1 == 1

    # So that all see that work goes on.
    def count(self, node, kind):
        i = 256 + node * 3 + kind
        self.set(i, self.get(i) + 1)

    def over(self):
        return os.path.exists(os.path.join(self.folder, "stop"))


# What the kernel was just handing to a daemon that was killed ends with EIO; a daemon that lives
# and says so answers what comes next.
def is_dead(error):
    for wait_s in (0, 0.1, 0.2, 0.3, 0.4):
        if error != errno.EIO or root is None:
            break
        time.sleep(wait_s)
        try:
            os.fstatvfs(root)
        except OSError as e:
            error = e.errno
    return error in DEAD


def alive(call, *args, **kwargs):
    try:
        return call(*args, **kwargs)
    except OSError as e:
        if is_dead(e.errno):
            raise Dead()
        raise


# ---- locks ----------------------------------------------------------------------------------


class Count:
    """A number in a file. It is from `floor` to `last`, and `last` while nobody is doomed."""

    def __init__(self, state, which, folder):
        self.state, self.base = state, 1 + 3 * which
        self.name, self.lock = LOCKS[which]
        self.fd = alive(os.open, self.name, os.O_RDWR | os.O_CREAT, dir_fd=folder)

    HOLDER, FLOOR, LAST = range(3)

    def get(self, i):
        return self.state.get(self.base + i)

    def set(self, i, value):
        self.state.set(self.base + i, value)

    def read(self):
        value = int(alive(os.pread, self.fd, 20, 0) or b"0")
        if self.state.get(0) == 0 and value != self.get(Count.LAST):
            fail(self.name, "is", value, "not", self.get(Count.LAST))
        if not self.get(Count.FLOOR) <= value <= self.get(Count.LAST):
            fail(self.name, value, "of", self.get(Count.FLOOR), self.get(Count.LAST))
        return value

    def one_more(self, node, sync):
        value = self.read() + 1
        self.set(Count.LAST, value)
        alive(os.pwrite, self.fd, b"%019d" % value, 0)
        if sync:
            alive(os.fsync, self.fd)
        if sync or not self.state.doomed(node):
            self.set(Count.FLOOR, value)

    def held(self, me, work):
        alive(self.lock, self.fd, fcntl.LOCK_EX)
        if self.get(Count.HOLDER):
            fail(self.name, me, "has it, and so has", self.get(Count.HOLDER))
        self.set(Count.HOLDER, me)
        try:
            work()
        finally:
            if self.get(Count.HOLDER) != me:
                fail(self.name, me, "had it, and so has", self.get(Count.HOLDER))
            self.set(Count.HOLDER, 0)
        alive(self.lock, self.fd, fcntl.LOCK_UN)

    # Called under the lock.
    def settle(self):
        value = self.read()
        alive(os.fsync, self.fd)
        self.set(Count.FLOOR, value)
        self.set(Count.LAST, value)


def locks(folder, node, state, dice):
    counts = [Count(state, i, folder) for i in range(2)]
    while not state.over():
        count, sync = dice.choice(counts), dice.randrange(20) == 0
        count.held(os.getpid(), lambda: count.one_more(node, sync))
        state.count(node, 0)
        time.sleep(REST_S)


# ---- appends --------------------------------------------------------------------------------


def record(node, number):
    return struct.pack("<II", node, number) * (RECORD // 8)


def noted(state, node):
    """Of a node's records: the last that was begun, those that must be there."""
    begun, must, soft = 0, set(), []
    try:
        with open(os.path.join(state.folder, "appends.%d" % node)) as f:
            for line in f:
                what, number = line.split()
                number = int(number)
                if what == "begun":
                    begun = number
                elif what == "done":
                    must.add(number)
                elif what == "soft":
                    soft.append(number)
                elif what == "synced":
                    must.update(soft)
                elif what == "again":  # what was not synced by then may be lost
                    soft = []
    except FileNotFoundError:
        pass
    return begun, must


def appends(folder, node, state, dice):
    fd = alive(os.open, "appends", os.O_RDWR | os.O_CREAT | os.O_APPEND, dir_fd=folder)
    number, _ = noted(state, node)
    with open(os.path.join(state.folder, "appends.%d" % node), "a", buffering=1) as notes:
        notes.write("again 0\n")
        while not state.over():
            number += 1
            notes.write("begun %d\n" % number)
            if alive(os.write, fd, record(node, number)) != RECORD:
                fail("part of a record was appended")
            notes.write("%s %d\n" % ("soft" if state.doomed(node) else "done", number))
            if dice.randrange(20) == 0:
                alive(os.fsync, fd)
                notes.write("synced %d\n" % number)
            if dice.randrange(4) == 0 and alive(os.fstat, fd).st_size % RECORD:
                fail("the size is no whole number of records")
            state.count(node, 1)
            time.sleep(REST_S)


def is_part(piece, at, begun):
    """Zeros, or of a record that was lost in part."""
    if not any(piece):
        return True
    node, number = struct.unpack_from("<II", piece)
    return number <= begun.get(node, 0) and piece == record(node, number)[at : at + len(piece)]


def check_appends(mount, state):
    notes = {node: noted(state, node) for node in range(1, NODES)}
    begun = {node: n[0] for node, n in notes.items()}
    seen, parts = {node: [] for node in notes}, 0
    with open(os.path.join(mount, "disturbed", "appends"), "rb") as f:
        data = f.read()
    if len(data) % RECORD:
        fail("appends:", len(data), "bytes are no whole number of records")
    for at in range(0, len(data), RECORD):
        slot = data[at : at + RECORD]
        node, number = struct.unpack_from("<II", slot)
        if node in seen and slot == record(node, number):
            seen[node].append(number)
            continue
        cut = min(-at % PAGE or RECORD, RECORD)
        if not is_part(slot[:cut], 0, begun) or not is_part(slot[cut:], cut, begun):
            fail("appends: nobody wrote what is at", at, slot[:16])
        parts += 1
    for node, (_, must) in notes.items():
        if seen[node] != sorted(set(seen[node])):
            fail("appends: those of node", node, "are out of order, or twice")
        missing = must - set(seen[node])
        if missing:
            fail("appends: of node", node, "are missing", sorted(missing)[:20])
        if seen[node] and seen[node][-1] > begun[node]:
            fail("appends: one of node", node, "that it has not begun")
    print("%d records, %d of them lost in part" % (len(data) // RECORD, parts))


# ---- names ----------------------------------------------------------------------------------

# A slot has a name in the one directory, in the other, in both, in none: a number of two bits.
# What it may be is a bit for each.


def names_at(node):
    return 16 + node * SLOTS


def name_of(node, slot):
    return "n%d-%d" % (node, slot)


class Names:
    def __init__(self, folder, node, state):
        self.node, self.state = node, state
        self.dirs = [
            alive(os.open, name, os.O_RDONLY | os.O_DIRECTORY, dir_fd=folder)
            for name in ("here", "there")
        ]
        self.now = [self.look(slot) for slot in range(SLOTS)]

    def look(self, slot):
        """What it is now; it must be one of those that it may be."""
        is_now, links = 0, set()
        for i, fd in enumerate(self.dirs):
            try:
                links.add(alive(os.stat, name_of(self.node, slot), dir_fd=fd).st_nlink)
                is_now |= 1 << i
            except FileNotFoundError:
                pass
        may = self.state.get(names_at(self.node) + slot) or 1
        if not may >> is_now & 1:
            fail(name_of(self.node, slot), "is", is_now, "of", bin(may))
        if is_now and links != {bin(is_now).count("1")}:
            fail(name_of(self.node, slot), "is", is_now, "with links", links)
        return is_now

    def may(self, slot, now):
        self.state.set(names_at(self.node) + slot, now)

    def change(self, slot, to):
        name, now = name_of(self.node, slot), self.now[slot]
        if now == 0:
            fd = alive(os.open, name, os.O_CREAT | os.O_EXCL | os.O_RDWR, dir_fd=self.dirs[to >> 1])
            alive(os.close, fd)
        elif to == 0 or now == 3:
            alive(os.unlink, name, dir_fd=self.dirs[(now & ~to) >> 1])
        else:
            way = os.link if to == 3 else os.rename
            from_fd, to_fd = self.dirs[now >> 1], self.dirs[2 - now]
            alive(way, name, name, src_dir_fd=from_fd, dst_dir_fd=to_fd)

    def step(self, dice):
        slot = dice.randrange(SLOTS)
        now = self.now[slot]
        to = dice.choice(((1, 2), (0, 2, 3), (0, 1, 3), (1, 2))[now])
        may = (self.state.get(names_at(self.node) + slot) or 1) | 1 << to
        self.may(slot, may)
        self.change(slot, to)
        self.now[slot] = to
        if not self.state.doomed(self.node):
            self.may(slot, 1 << to)

    def sync(self):
        for fd in self.dirs:
            alive(os.fsync, fd)
        for slot in range(SLOTS):
            self.may(slot, 1 << self.now[slot])


def names(folder, node, state, dice):
    mine = Names(folder, node, state)
    for slot in range(SLOTS):
        if not state.doomed(node):
            mine.may(slot, 1 << mine.now[slot])
    while not state.over():
        mine.step(dice)
        mine.look(dice.randrange(SLOTS))
        if dice.randrange(30) == 0:
            mine.sync()
        state.count(node, 2)
        time.sleep(REST_S)


def check_names(mount, state):
    folder = os.open(os.path.join(mount, "disturbed"), os.O_RDONLY)
    there = set()
    for node in range(1, NODES):
        now = Names(folder, node, state).now
        for i, way in enumerate(("here", "there")):
            there |= {way + "/" + name_of(node, s) for s in range(SLOTS) if now[s] >> i & 1}
    listed = [w + "/" + n for w in ("here", "there") for n in os.listdir(mount + "/disturbed/" + w)]
    if sorted(listed) != sorted(there):
        fail("listed are", sorted(listed), "not", sorted(there))
    print("%d names" % len(listed))


# ---- the whole ------------------------------------------------------------------------------


def open_folder(mount):
    global root
    root = alive(os.open, os.path.join(mount, "disturbed"), os.O_RDONLY | os.O_DIRECTORY)
    return root


def prepare(mount, folder):
    for name in ("", "/here", "/there"):
        os.mkdir(mount + "/disturbed" + name)
    for name in ("fcntl", "flock", "appends"):
        os.close(os.open(mount + "/disturbed/" + name, os.O_CREAT | os.O_RDWR))
    sync_all(mount)
    State(folder)


def sync_all(mount):
    for name in ("fcntl", "flock", "appends", "here", "there", ""):
        fd = os.open(mount + "/disturbed/" + name, os.O_RDONLY)
        os.fsync(fd)
        os.close(fd)


def work(kind, mount, node, folder, seed):
    try:
        globals()[kind](
            open_folder(mount), int(node), State(folder), random.Random(int(seed))
        )
    except Dead:
        pass


def doom(mount, folder, *nodes):
    state = State(folder)
    counts = [Count(state, i, open_folder(mount)) for i in range(2)]
    state.set(0, sum(1 << int(node) for node in nodes))
    sync_all(mount)
    for count in counts:
        count.held(os.getpid(), count.settle)


def back(mount, folder):
    state = State(folder)
    counts = [Count(state, i, open_folder(mount)) for i in range(2)]
    for count in counts:
        alive(count.lock, count.fd, fcntl.LOCK_EX)
        count.settle()
    state.set(0, 0)
    for count in counts:
        count.lock(count.fd, fcntl.LOCK_UN)


def check(mount, folder):
    state = State(folder)
    for i in range(2):
        count = Count(state, i, open_folder(mount))
        count.held(os.getpid(), count.read)
        print(LOCKS[i][0], count.get(Count.LAST))
    check_appends(mount, state)
    check_names(mount, state)


globals()[sys.argv[1]](*sys.argv[2:])
