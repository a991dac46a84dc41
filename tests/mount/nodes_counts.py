# SPDX-License-Identifier: Apache-2.0
"""What an overwrite on one node costs that another node then reads through a descriptor it holds.

    nodes_counts.py WRITER READER COUNT MOUNT...

Prints, for each alternation: messages of all nodes, requests of both kernels, flushes of all devices.
"""
import json
import os
import subprocess
import sys


def counters(mounts):
    all_of_them = [json.loads(subprocess.check_output(["weft", "status", m, "--json"])) for m in mounts]
    return {
        "messages": sum(node["traffic"]["messages_out"] for status in all_of_them
                        for node in status["cluster"]["nodes"] if "traffic" in node),
        "requests": sum(status["requests"].get(kind, {}).get("count", 0) for status in all_of_them
                        for kind in ("read", "write", "getattr", "statx", "lookup")),
        "flushes": sum(status["device"]["flushes"] + status["log"]["flushes"] for status in all_of_them),
    }


def alternate(writer, reader, count):
    for i in range(count):
        os.pwrite(writer, b"%08d" % i, 0)
        if os.pread(reader, 8, 0) != b"%08d" % i:
            sys.exit(f"alternation {i}: what was written is not read")


def main():
    writer = os.open(sys.argv[1], os.O_RDWR)
    reader = os.open(sys.argv[2], os.O_RDONLY)
    count, mounts = int(sys.argv[3]), sys.argv[4:]
    alternate(writer, reader, 20)
    before = counters(mounts)
    alternate(writer, reader, count)
    after = counters(mounts)
    print(" ".join(f"{key}={(after[key] - before[key]) / count:.3f}" for key in after))


main()
