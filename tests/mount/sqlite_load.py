#!/usr/bin/env python3
# SPDX-License-Identifier: Apache-2.0
"""Commits to a database for as long as it goes, and notes outside the volume what it committed.

    sqlite_load.py load DB MODE LOG    MODE: wal, delete, truncate, persist
    sqlite_load.py check DB MODE LOG   exit status 0 if all that was committed is there
"""
import hashlib
import os
import random
import sqlite3
import sys


def payload(n):
    one = hashlib.sha256(str(n).encode()).hexdigest()
    return one * (1 + n % 60)


def opened(db, mode):
    con = sqlite3.connect(db, timeout=5, isolation_level=None)
    con.execute("pragma journal_mode=" + mode)
    # FULL does not sync the directory after the rollback journal is unlinked, which is what commits
    # in delete mode: a crash may bring the journal, and so the state before, back. EXTRA does.
    con.execute("pragma synchronous=extra")
    con.execute("pragma wal_autocheckpoint=50")
    return con


def load(db, mode, log):
    con = opened(db, mode)
    folder = os.open(os.path.dirname(db), os.O_RDONLY | os.O_DIRECTORY)
    con.execute("create table if not exists t (n integer primary key, data text)")
    con.execute("create index if not exists i on t (data)")
    n = con.execute("select coalesce(max(n), 0) from t").fetchone()[0]
    with open(log, "a", buffering=1) as out:
        while True:
            con.execute("begin immediate")
            for _ in range(random.randint(1, 8)):
                n += 1
                con.execute("insert into t values (?, ?)", (n, payload(n)))
            con.execute("commit")
            # Where the daemon dies between unlink and sync, SQLite cannot open the folder, or opens
            # what the dead mount had covered, and says that all is well. Asking the daemon once
            # more fails then; by descriptor, since the path leads elsewhere when the mount is gone.
            os.fstatvfs(folder)
            out.write("%d\n" % n)


def check(db, mode, log):
    with open(log) as lines:
        committed = max([int(line) for line in lines if line.endswith("\n")], default=0)
    con = opened(db, mode)
    answer = con.execute("pragma integrity_check").fetchall()
    if answer != [("ok",)]:
        sys.exit("%s: %s" % (db, answer[:5]))
    found = 0
    try:
        for n, data in con.execute("select n, data from t order by n"):
            found += 1
            if n != found or data != payload(n):
                sys.exit("%s: row %d is not what was committed" % (db, n))
    except sqlite3.OperationalError:
        if committed:  # else the crash came before the table
            raise
    if found < committed:
        sys.exit("%s: committed up to %d, found %d" % (db, committed, found))
    con.close()
    print("%d committed, %d found" % (committed, found))


if __name__ == "__main__":
    {"load": load, "check": check}[sys.argv[1]](*sys.argv[2:])
