# SPDX-License-Identifier: Apache-2.0
"""A volume of several nodes on this machine, for tests/bench/run: each node in a network namespace of its
own, joined by a bridge in another, with a store, a daemon and a mount."""
import json
import os
import subprocess
import time

WAIT_S = 60


class Nodes:
    """Mounted from the beginning; `close` takes everything away, whatever state it is in. The last `clients`
    nodes have no store."""

    def __init__(self, bench, name, count, store_mib, cache_mib, options="", clients=0, client_cache_mib=None):
        self.bench, self.count, self.stores = bench, count, count - clients
        self.dir = bench.directory(name)
        self.net = f"weft-bench-{os.getpid()}-{name}"
        self.file = os.path.join(self.dir, "bench.cluster")
        self.cache_mib, self.client_cache_mib = cache_mib, client_cache_mib or cache_mib
        self.options = "norestart" + (f",{options}" if options else "")
        self.daemons = {}
        bench.stack.callback(self.close)
        self._network()
        self._run(bench.bin("weft"), "cluster", "new", "-d", self.dir, "bench",
                  *(f"{self.address(n)}:{self.dir}/{n}.weft" for n in self.all() if n <= self.stores),
                  *(word for n in self.all() if n > self.stores for word in ("--client", self.address(n))))
        for n in self.all():
            os.mkdir(self.mount_point(n))
            if n <= self.stores:
                self._run(*self._inside(n), bench.bin("mkfs.weft"), "-c", self.file, "--size", f"{store_mib}M")
        self.start(*self.all())

    @staticmethod
    def _run(*command):
        done = subprocess.run([str(c) for c in command], capture_output=True, text=True)
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))}: {(done.stderr or done.stdout).strip()}")
        return done.stdout

    def all(self):
        return range(1, self.count + 1)

    @staticmethod
    def address(n):
        return f"10.78.0.{n}"

    def namespace(self, n):
        return f"/run/netns/{self.net}-{n}"

    def mount_point(self, n):
        return os.path.join(self.dir, f"m{n}")

    def path(self, n, name):
        return os.path.join(self.mount_point(n), name)

    def log(self, n):
        return os.path.join(self.dir, f"log{n}")

    def _inside(self, n):
        return ("nsenter", f"--net={self.namespace(n)}")

    def _network(self):
        self._run("ip", "netns", "add", self.net)
        self._run("ip", "-n", self.net, "link", "add", "br0", "type", "bridge")
        self._run("ip", "-n", self.net, "link", "set", "br0", "up")
        for n in self.all():
            inside = f"{self.net}-{n}"
            self._run("ip", "netns", "add", inside)
            self._run("ip", "-n", inside, "link", "set", "lo", "up")
            self._run("ip", "-n", inside, "link", "add", "eth0", "type", "veth", "peer", "name", f"node{n}",
                      "netns", self.net)
            self._run("ip", "-n", self.net, "link", "set", f"node{n}", "master", "br0", "up")
            self._run("ip", "-n", inside, "addr", "add", f"{self.address(n)}/24", "dev", "eth0")
            self._run("ip", "-n", inside, "link", "set", "eth0", "up")

    def start(self, *nodes):
        """Mounts these, and waits until all are."""
        for n in nodes:
            cache_mib = self.cache_mib if n <= self.stores else self.client_cache_mib
            with open(self.log(n), "a") as log:
                self.daemons[n] = subprocess.Popen(
                    [*self._inside(n), self.bench.bin("weftd"), self.file, self.mount_point(n), "-f", "-o",
                     f"{self.options},cache={cache_mib}M"], stderr=log)
        for n in nodes:
            self._wait_for(n)

    def _wait_for(self, n):
        end = time.monotonic() + WAIT_S
        while not self._answers(n):
            if self.daemons[n].poll() is not None or time.monotonic() > end:
                with open(self.log(n)) as log:
                    raise RuntimeError(f"node {n} does not mount: {log.read()[-500:]}")
            time.sleep(0.01)

    def _answers(self, n):
        """It is mounted, and can be asked."""
        return os.path.ismount(self.mount_point(n)) and subprocess.run(
            [self.bench.bin("weft"), "status", self.mount_point(n), "--json"], capture_output=True).returncode == 0

    def crash(self, n):
        """Ends the daemon as a crash does, and takes the dead mount away."""
        self.daemons[n].kill()
        self.daemons[n].wait()
        subprocess.run(["umount", "-l", self.mount_point(n)], check=False)
        del self.daemons[n]

    def remount(self):
        """All leave the volume and come back, with empty caches."""
        self.leave(*self.all())
        self.start(*self.all())

    def leave(self, *nodes):
        """Unmounts these, and waits until all have left the volume."""
        for n in nodes:
            self._run(self.bench.bin("weft"), "umount", self.mount_point(n))
        for n in nodes:
            self.daemons.pop(n).wait(WAIT_S)

    def status(self, n):
        return json.loads(self._run(self.bench.bin("weft"), "status", self.mount_point(n), "--json"))

    def change(self, n):
        """How the last change of the cluster's epoch went, as node n sees it."""
        return self.status(n)["cluster"]["coherence"]["change"]

    def sent(self):
        """Messages that all have sent so far, and device flushes that all have made."""
        all_of_them = [self.status(n) for n in self.all()]
        return (sum(node["traffic"]["messages_out"] for status in all_of_them
                    for node in status["cluster"]["nodes"] if "traffic" in node),
                sum(status["device"]["flushes"] + status["log"]["flushes"] for status in all_of_them))

    def close(self):
        for n in list(self.daemons):
            subprocess.run([self.bench.bin("weft"), "umount", self.mount_point(n)], check=False,
                           stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=WAIT_S)
        for n, daemon in self.daemons.items():
            try:
                daemon.wait(WAIT_S)
            except subprocess.TimeoutExpired:
                daemon.kill()
                daemon.wait()
            if os.path.ismount(self.mount_point(n)):
                subprocess.run(["umount", "-l", self.mount_point(n)], check=False)
        self.daemons.clear()
        for n in self.all():
            subprocess.run(["ip", "netns", "del", f"{self.net}-{n}"], check=False, stderr=subprocess.DEVNULL)
        subprocess.run(["ip", "netns", "del", self.net], check=False, stderr=subprocess.DEVNULL)
