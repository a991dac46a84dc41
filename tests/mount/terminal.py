# SPDX-License-Identifier: Apache-2.0
"""
Runs a command on a terminal of its own, and plays a user.

    terminal.py ROWS COLUMNS STEP... -- COMMAND...

A STEP is `see:TEXT` (waits until TEXT has been printed since the step before), `key:TEXT` (types
it; \\x03 is ^C), `size:ROWS:COLUMNS`, or `stop` (^Z by a signal, then goes on). Prints all that was
printed. The exit code is the command's, or 128 and the signal; 99 if TEXT did not come in 20 s, 98 if
the terminal's settings differ at the end.
"""
import fcntl
import os
import pty
import select
import signal
import struct
import sys
import termios
import time


def resize(fd, rows, columns):
    fcntl.ioctl(fd, termios.TIOCSWINSZ, struct.pack("HHHH", int(rows), int(columns), 0, 0))


class Terminal:
    def __init__(self, command, rows, columns):
        self.master, self.slave = pty.openpty()
        resize(self.master, rows, columns)
        self.before = termios.tcgetattr(self.slave)
        self.output = b""
        self.seen = 0
        self.pid = os.fork()
        if self.pid == 0:
            os.setsid()
            fcntl.ioctl(self.slave, termios.TIOCSCTTY, 0)
            for fd in 0, 1, 2:
                os.dup2(self.slave, fd)
            os.close(self.master)
            os.execvp(command[0], command)

    def read(self, seconds):
        """False: nothing came."""
        if not select.select([self.master], [], [], seconds)[0]:
            return False
        self.output += os.read(self.master, 65536)
        return True

    def step(self, step):
        what, _, text = step.partition(":")
        if what == "see":
            end = time.monotonic() + 20
            while text.encode() not in self.output[self.seen:]:
                if not self.read(0.1) and time.monotonic() > end:
                    return False
            self.seen += self.output[self.seen:].index(text.encode()) + len(text.encode())
        elif what == "key":
            os.write(self.master, text.encode().decode("unicode_escape").encode())
        elif what == "size":
            resize(self.master, *text.split(":"))
        elif what == "stop":
            os.kill(self.pid, signal.SIGSTOP)
            os.kill(self.pid, signal.SIGCONT)
        return True

    def end(self):
        end = time.monotonic() + 20
        while True:
            pid, status = os.waitpid(self.pid, os.WNOHANG)
            if pid:
                break
            if time.monotonic() > end:
                os.kill(self.pid, signal.SIGKILL)
            self.read(0.05)
        while self.read(0):
            pass
        return os.waitstatus_to_exitcode(status)


def main():
    rows, columns, *rest = sys.argv[1:]
    steps, command = rest[:rest.index("--")], rest[rest.index("--") + 1:]
    t = Terminal(command, rows, columns)
    missing = next((s for s in steps if not t.step(s)), None)
    if missing:
        os.kill(t.pid, signal.SIGKILL)
    code = t.end()
    sys.stdout.buffer.write(t.output.replace(b"\r\n", b"\n"))
    sys.stdout.flush()
    if missing:
        print(f"\nnever came: {missing}", file=sys.stderr)
        return 99
    if termios.tcgetattr(t.slave) != t.before:
        print("\nthe terminal's settings were changed", file=sys.stderr)
        return 98
    return code if code >= 0 else 128 - code


sys.exit(main())
