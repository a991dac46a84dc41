#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""
A service manager for one service, as far as sd_notify(3) goes.

  manager.py LOG SOCKET [WATCHDOG_SECONDS] -- COMMAND...

Runs COMMAND with NOTIFY_SOCKET=SOCKET (@NAME: an abstract one), and with WATCHDOG_USEC if asked. Writes
a line to LOG for its pid, for each NAME=VALUE that it sends (and the sender's pid), and for its end. A
signal goes on to it. Ends with its exit code.
"""
import os
import signal
import socket
import struct
import subprocess
import sys


def main():
    split = sys.argv.index("--")
    log, name, *seconds = sys.argv[1:split]
    address = "\0" + name[1:] if name.startswith("@") else name
    out = open(log, "w", buffering=1)
    manager = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
    manager.setsockopt(socket.SOL_SOCKET, socket.SO_PASSCRED, 1)
    if not name.startswith("@") and os.path.exists(name):
        os.unlink(name)
    manager.bind(address)
    environment = dict(os.environ, NOTIFY_SOCKET=name)
    if seconds:
        environment["WATCHDOG_USEC"] = str(int(float(seconds[0]) * 1e6))
    service = subprocess.Popen(sys.argv[split + 1:], env=environment)
    print("pid", service.pid, file=out)
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda n, _: service.send_signal(n))

    manager.settimeout(0.05)
    while True:
        try:
            words, control, _, _ = manager.recvmsg(4096, socket.CMSG_SPACE(12))
        except socket.timeout:
            if service.poll() is not None:
                break  # and all that it has sent is read
            continue
        pid = struct.unpack("iii", control[0][2])[0] if control else 0
        for word in words.decode().split("\n"):
            print(pid, word, file=out)
    print("ended", service.returncode, file=out)
    sys.exit(service.returncode if service.returncode >= 0 else 128 - service.returncode)


main()
