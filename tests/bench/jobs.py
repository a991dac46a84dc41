# SPDX-License-Identifier: Apache-2.0
"""Ordinary jobs on trees that are in the kernel's cache, for tests/bench/run: weft with one node, ext4, and weft
with three nodes, in turns. The requests that weft's kernel makes are counted."""
import os
import shutil
import subprocess
import time

import mounts

FILES = 5000
CACHE_MIB = 1024
SOURCE = "/usr/include"
# The requests of a job that only reads are 0 on one node. Those of the others are told, not held.
READING = ("diff", "grep", "du", "cat")
# Linux keeps no answers to these: grep looks for holes, du for the device's numbers.
ALWAYS = ("lseek", "statfs")
TRIES = 5


class Side:
    """A folder on one filesystem, with two copies of a tree, a git repository, and many small files."""

    def __init__(self, name, base, requests=None):
        self.name, self.base, self.requests = name, os.path.join(base, "jobs"), requests
        os.mkdir(self.base)
        for copy in ("a", "b"):
            self.run(f"cp -a {SOURCE} {copy}")
        os.mkdir(self.path("small"))
        for i in range(FILES):
            with open(self.path(f"small/f{i}"), "wb") as f:
                f.write(b"%d\n" % i * 100)
        self.run("cp -a a repository && cd repository && git init -q . && git add -A && "
                 "git -c user.name=bench -c user.email=bench@localhost commit -qm all")

    def path(self, name):
        return os.path.join(self.base, name)

    def run(self, command):
        done = subprocess.run(["bash", "-c", command], cwd=self.base, capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{self.name}: {command}: {done.stderr.strip()[-300:]}")

    def seconds(self, job):
        for name in ("copied", "synced"):
            shutil.rmtree(self.path(name), ignore_errors=True)
        began = time.monotonic()
        self.run(JOBS[job])
        return time.monotonic() - began

    def asked(self, job):
        """The requests of one run, by kind."""
        for name in ("copied", "synced"):
            shutil.rmtree(self.path(name), ignore_errors=True)
        idle, before = self.requests(), self.requests()
        self.run(JOBS[job])
        after = self.requests()
        looking = {kind: before[kind] - idle.get(kind, 0) for kind in before}
        made = {kind: after[kind] - before.get(kind, 0) - looking.get(kind, 0) for kind in after}
        return {kind: n for kind, n in made.items() if n > 0}


JOBS = {
    "diff": "diff -r --no-dereference a b",
    "grep": "grep -rc include a >/dev/null",
    "rsync": "rsync -a a/ synced",
    "cp": "cp -a a copied",
    "git": "cd repository && git status --porcelain",
    "du": "du -s a",
    "cat": "cd small && cat f{0..%d} >/dev/null" % (FILES - 1),
}


def requests_of(status):
    return lambda: {kind: value["count"] for kind, value in status()["requests"].items()}


def text_of(kinds):
    return ",".join(f"{kind}:{n}" for kind, n in sorted(kinds.items(), key=lambda pair: -pair[1])) or "none"


def least_of(side, job):
    """The requests of the best of some tries: a kernel that is short of memory drops pages."""
    best = None
    for _ in range(TRIES):
        made = side.asked(job)
        if best is None or sum(made.values()) < sum(best.values()):
            best = made
        if job not in READING or not set(best) - set(ALWAYS):
            break
    return best


def row(bench):
    weft = Side("weft", bench.weft.dir, requests_of(bench.weft.status))
    ext4 = Side("ext4", bench.ext4)
    nodes = mounts.Nodes(bench, "jobs-nodes", 3, 2048, CACHE_MIB)
    several = Side("nodes", nodes.mount_point(1), requests_of(lambda: nodes.status(1)))
    sides = (weft, ext4, several)
    for job in JOBS:
        took = {side: [] for side in sides}
        for side in sides:
            side.seconds(job)  # fills the kernel's cache
        time.sleep(2.5)  # what was written is at rest, and its access times are looked at
        for side in sides:
            side.seconds(job)
        for turn in range(bench.options.rounds):
            for side in sides[turn % 3:] + sides[:turn % 3]:
                took[side].append(side.seconds(job))
        bench.report(f"job_{job}", "s", "ext4", took[weft], took[ext4], bar=1.5, lower=True)
        bench.report(f"job_{job}_3nodes", "s", "ext4", took[several], took[ext4], bar=3, lower=True)
        made = least_of(weft, job)
        if job in READING:
            count = sum(n for kind, n in made.items() if kind not in ALWAYS)
            bench.held(f"job_{job}_requests", "requests", count, 0, f"kinds={text_of(made)}")
        else:
            print(f"jobs name=job_{job} requests={sum(made.values())} kinds={text_of(made)}")
        made = several.asked(job)
        print(f"jobs name=job_{job}_3nodes requests={sum(made.values())} kinds={text_of(made)}", flush=True)
    nodes.close()
