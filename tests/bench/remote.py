# SPDX-License-Identifier: Apache-2.0
"""File data between nodes, for tests/bench/run: read from another node's memory or store, written where another
node has it, written by nodes without a store. Counts are of messages, sends and device requests of all nodes.
Rates are set against the same loop on one node, in the same run."""
import os
import statistics
import subprocess
import threading
import time

import mounts

MIB = 256
STORE_MIB, CACHE_MIB = 768, 640


def counts(nodes):
    """What all nodes have sent, and what their devices were asked for."""
    sums = dict.fromkeys(("messages", "sends", "reads", "writes", "flushes"), 0)
    for status in (nodes.status(n) for n in nodes.all()):
        links = [node["traffic"] for node in status["cluster"]["nodes"] if "traffic" in node]
        sums["messages"] += sum(link["messages_out"] for link in links)
        sums["sends"] += sum(link.get("sends_out", link["messages_out"]) for link in links)
        sums["reads"] += status["device"]["read_requests"]
        sums["writes"] += status["device"]["write_requests"]
        sums["flushes"] += status["device"]["flushes"] + status["log"]["flushes"]
    return sums


def counted(nodes, what):
    """Runs it. Returns its result and what it took of each."""
    before = counts(nodes)
    result = what()
    after = counts(nodes)
    return result, {name: after[name] - before[name] for name in after}


def say(name, rate, took, beside=None):
    ratio = f" reference=one_node ref={beside / 1e6:.6g} ratio={rate / beside:.2f}" if beside else ""
    print(f"remote name={name} unit=MB/s weft={rate / 1e6:.6g}{ratio} "
          + " ".join(f"{key}={value / MIB:.4g}" for key, value in took.items()) + " each=MiB", flush=True)


class Remote:
    def __init__(self, bench):
        self.bench = bench
        self.nodes = mounts.Nodes(bench, "remote", 3, STORE_MIB, CACHE_MIB)

    def write(self, node, name):
        return self.bench.loop("seqwrite", self.nodes.path(node, name), MIB)

    def read(self, node, name):
        return self.bench.loop("seqread", self.nodes.path(node, name))

    def held(self, name, took, **most):
        """Counts for each MiB: they do not depend on the machine."""
        for key, limit in most.items():
            self.bench.held(f"{name}_{key}", key, took[key] / MIB, limit, "each=MiB")

    def row(self):
        alone = self.write(1, "file")
        self.read(2, "file")  # frames are used for the first time
        rate, took = counted(self.nodes, lambda: self.write(1, "other"))
        say("write1m", rate, took)
        rate, took = counted(self.nodes, lambda: self.read(2, "other"))
        say("nodes_read1m", rate, took)
        self.held("nodes_read1m", took, sends=16)  # a request and a grant for 32 pages
        rate, took = counted(self.nodes, lambda: self.overwrite(1, "other"))
        say("overwrite1m", rate, took)
        self.held("overwrite1m", took, sends=16)
        for turn in range(3):
            self.read(2, "other")
            self.remove(1, "other", 2)
            rate, took = counted(self.nodes, lambda: self.write(1, "other"))
            say(f"rewrite_{turn}", rate, took, alone)
            self.held(f"rewrite_{turn}", took, sends=1)
        self.nodes.remount()
        local, took = counted(self.nodes, lambda: self.read(1, "file"))
        say("local_cold1m", local, took)
        self.nodes.remount()
        rate, took = counted(self.nodes, lambda: self.read(2, "file"))
        say("nodes_cold1m", rate, took, local)
        self.held("nodes_cold1m", took, sends=16, reads=8)
        self.nodes.close()

    def dropped(self, node):
        return self.nodes.status(node)["cluster"]["coherence"]["sent"].get("DROP", 0)

    def remove(self, node, name, reader):
        """Removes a file that the reader has in memory, and waits until the reader has dropped it."""
        before, end = self.dropped(reader), time.monotonic() + 60
        os.unlink(self.nodes.path(node, name))
        os.statvfs(self.nodes.mount_point(node))  # frees its pages at once
        while self.dropped(reader) - before < 0.95 * MIB * 256:
            if time.monotonic() > end:
                raise RuntimeError(f"node {reader} keeps the pages of a file that was removed")
            time.sleep(0.05)

    def overwrite(self, node, name):
        block = b"o" * (1 << 20)
        began = time.monotonic()
        with open(self.nodes.path(node, name), "r+b", buffering=0) as f:
            for _ in range(MIB):
                f.write(block)
            os.fsync(f.fileno())
        return MIB * (1 << 20) / (time.monotonic() - began)


class Clients:
    """Two nodes with a store, two without."""

    def __init__(self, bench):
        self.bench = bench
        self.nodes = mounts.Nodes(bench, "clients", 4, STORE_MIB, CACHE_MIB, clients=2)

    def write(self, node, name):
        return self.bench.loop("seqwrite", self.nodes.path(node, name), MIB)

    def row(self):
        self.write(1, "warm")
        alone, took = counted(self.nodes, lambda: self.write(1, "stored"))
        say("store_write", alone, took)
        rate, took = counted(self.nodes, lambda: self.write(3, "client"))
        say("client_write", rate, took, alone)
        self.bench.held("client_write_flushes", "flushes", took["flushes"] / MIB, 8, "each=MiB")
        self.bench.held("client_write_sends", "sends", took["sends"] / MIB, 60, "each=MiB")
        self.stall()
        self.nodes.close()

    def stall(self):
        """The longest call on a node that has much of another node's, while a third one that has nothing
        leaves, and mounts."""
        for name in ("warm", "stored", "client"):
            self.bench.loop("seqread", self.nodes.path(2, name))
        self.write(2, "own")
        for what, change in (("leave", lambda: self.nodes.leave(4)), ("join", lambda: self.nodes.start(4))):
            calls = Calls(self.nodes.path(2, "own"))
            change()
            time.sleep(1)
            longest = calls.end()
            print(f"remote name={what}_stall unit=ms longest={longest * 1000:.1f} calls={calls.count}", flush=True)


class Calls:
    """4 KiB overwrites of a file, one after the other, on a task of their own."""

    def __init__(self, path):
        self.file = os.open(path, os.O_RDWR)
        self.count, self.longest, self.ended = 0, 0.0, False
        self.task = threading.Thread(target=self._run)
        self.task.start()

    def _run(self):
        while not self.ended:
            began = time.monotonic()
            os.pwrite(self.file, b"c" * 4096, self.count % 1024 * 4096)
            self.longest = max(self.longest, time.monotonic() - began)
            self.count += 1

    def end(self):
        self.ended = True
        self.task.join()
        os.close(self.file)
        return self.longest


class Listed:
    """A client that has nothing yet looks at files that a node has made."""

    JOBS = {
        "ls": "ls -U -l flat",
        "du": "du -s flat",  # sorts so many names by inode
        "find_flat": "find flat -size +1",
        "find": "find folders -size +1",
        "find_name": "find folders -name x",  # looks at no file
    }

    def __init__(self, bench):
        self.bench = bench
        self.files = bench.options.files
        self.nodes = mounts.Nodes(bench, "listed", 3, max(512, self.files // 200), 512, clients=1, client_cache_mib=64)

    def make(self):
        os.mkdir(self.nodes.path(1, "flat"))
        os.mkdir(self.nodes.path(1, "folders"))
        folders = max(100, self.files // 1000)
        for folder in range(folders):
            os.mkdir(self.nodes.path(1, f"folders/{folder}"))
        for i in range(self.files):
            for name in (f"flat/{i}", f"folders/{i % folders}/{i}"):
                os.close(os.open(self.nodes.path(1, name), os.O_CREAT | os.O_WRONLY))

    def run(self, node, job):
        began = time.monotonic()
        subprocess.run(self.JOBS[job], shell=True, check=True, cwd=self.nodes.mount_point(node),
                       stdout=subprocess.DEVNULL)
        return time.monotonic() - began

    def row(self):
        self.make()
        for job in self.JOBS:
            near, far = self.run(1, job), []
            for _ in range(self.bench.options.rounds):
                self.nodes.leave(3)
                self.nodes.start(3)
                before = self.nodes.status(3)
                far.append(self.run(3, job))
                after = self.nodes.status(3)
            waits = after["tree"]["waits"] - before["tree"]["waits"]
            pages = [s["cluster"]["coherence"]["sent"].get("REQUEST", 0) for s in (before, after)]
            pages = pages[1] - pages[0]
            print(f"remote name=listed_{job} unit=s weft={statistics.median(far):.3f} reference=maker ref={near:.3f} "
                  f"ratio={statistics.median(far) / near:.1f} waits={waits} pages={pages}", flush=True)
            if job in ("ls", "du"):
                self.bench.held(f"listed_{job}_waits", "waits", waits / pages, 0.2, "each=page")
        self.nodes.close()


class Visible:
    """How long after a change on one node another node has read it; beside one mount of ext4."""

    TRIES = 500

    def __init__(self, bench):
        self.bench = bench
        self.nodes = mounts.Nodes(bench, "visible", 3, 256, 64)
        self.alone = bench.directory("visible-ext4")

    @staticmethod
    def reopened(writer, reader, i):
        fd = os.open(writer, os.O_WRONLY)
        os.pwrite(fd, b"%08d" % i, 0)
        os.close(fd)
        fd = os.open(reader, os.O_RDONLY)
        data = os.pread(fd, 8, 0)
        os.close(fd)
        return data == b"%08d" % i

    def held(self, writer, reader, i):
        os.pwrite(self.writer, b"%08d" % i, 0)
        return os.pread(self.reader, 8, 0) == b"%08d" % i

    def appended(self, writer, reader, i):
        os.write(self.appender, b"%08d" % i)
        return os.pread(self.reader, 8, os.fstat(self.reader).st_size - 8) == b"%08d" % i

    def times(self, how, writer, reader):
        with open(writer, "wb") as f:
            f.write(bytes(4096))
        self.writer, self.appender = os.open(writer, os.O_RDWR), os.open(writer, os.O_WRONLY | os.O_APPEND)
        self.reader = os.open(reader, os.O_RDONLY)
        all_of_them = []
        for i in range(self.TRIES):
            began = time.monotonic()
            if not how(writer, reader, i):
                raise RuntimeError(f"{how.__name__}: change {i} is not seen")
            all_of_them.append(time.monotonic() - began)
        for fd in (self.writer, self.appender, self.reader):
            os.close(fd)
        return sorted(all_of_them)

    def row(self):
        for how in (self.reopened, self.held, self.appended):
            far = self.times(how, self.nodes.path(1, how.__name__), self.nodes.path(2, how.__name__))
            near = self.times(how, *[os.path.join(self.alone, how.__name__)] * 2)
            print(f"remote name=visible_{how.__name__} unit=ms weft={statistics.median(far) * 1000:.3f} "
                  f"p90={far[self.TRIES * 9 // 10] * 1000:.3f} reference=host "
                  f"ref={statistics.median(near) * 1000:.3f} "
                  f"ratio={statistics.median(far) / statistics.median(near):.1f}", flush=True)
        self.nodes.close()
