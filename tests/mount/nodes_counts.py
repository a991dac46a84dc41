# SPDX-License-Identifier: Apache-2.0
"""What file data between nodes costs.

    nodes_counts.py alternate WRITER READER COUNT MOUNT...
        An overwrite on one node, which another node reads through a descriptor it holds. Prints, for each
        alternation: messages of all nodes, requests of both kernels, flushes of all devices, and how often
        threads slept that drop pages for other threads (weft-notify).
    nodes_counts.py write|read FILE MIB MOUNT...
        Writes or reads the file in pieces of 1 MiB. Prints the same for each MiB.
    nodes_counts.py slept PID NAME
        Prints how often threads of that name have slept.
"""
import json
import os
import subprocess
import sys

MIB = 1 << 20


def sleeps(pid, name):
    """How often threads of this name have slept."""
    count = 0
    for thread in os.listdir(f"/proc/{pid}/task"):
        try:
            with open(f"/proc/{pid}/task/{thread}/comm") as f:
                if f.read().strip() != name:
                    continue
            with open(f"/proc/{pid}/task/{thread}/status") as f:
                count += sum(int(line.split()[1]) for line in f if line.startswith("voluntary_ctxt_switches"))
        except (FileNotFoundError, ProcessLookupError):
            pass  # it has ended
    return count


def counters(mounts):
    all_of_them = [json.loads(subprocess.check_output(["weft", "status", m, "--json"])) for m in mounts]
    return {
        "messages": sum(node["traffic"]["messages_out"] for status in all_of_them
                        for node in status["cluster"]["nodes"] if "traffic" in node),
        "sends": sum(node["traffic"]["sends_out"] for status in all_of_them
                     for node in status["cluster"]["nodes"] if "traffic" in node),
        "reads": sum(status["device"]["read_requests"] for status in all_of_them),
        "requests": sum(status["requests"].get(kind, {}).get("count", 0) for status in all_of_them
                        for kind in ("read", "write", "getattr", "statx", "lookup")),
        "flushes": sum(status["device"]["flushes"] + status["log"]["flushes"] for status in all_of_them),
        "notifiers": sum(sleeps(status["pid"], "weft-notify") for status in all_of_them),
    }


def alternate(writer, reader, count):
    for i in range(count):
        os.pwrite(writer, b"%08d" % i, 0)
        if os.pread(reader, 8, 0) != b"%08d" % i:
            sys.exit(f"alternation {i}: what was written is not read")


def write(path, mib):
    with open(path, "r+b" if os.path.exists(path) else "wb", buffering=0) as f:
        for _ in range(mib):
            f.write(b"w" * MIB)
        os.fsync(f.fileno())


def read(path, mib):
    with open(path, "rb", buffering=0) as f:
        while f.read(MIB):
            pass


def main():
    what, path = sys.argv[1:3]
    if what == "slept":
        print(sleeps(int(path), sys.argv[3]))
        return
    if what == "alternate":
        writer, reader = os.open(path, os.O_RDWR), os.open(sys.argv[3], os.O_RDONLY)
        count, mounts = int(sys.argv[4]), sys.argv[5:]
        alternate(writer, reader, 20)
    else:
        count, mounts = int(sys.argv[3]), sys.argv[4:]
    before = counters(mounts)
    if what == "alternate":
        alternate(writer, reader, count)
    else:
        {"write": write, "read": read}[what](path, count)
    after = counters(mounts)
    print(" ".join(f"{key}={(after[key] - before[key]) / count:.3f}" for key in after))


main()
