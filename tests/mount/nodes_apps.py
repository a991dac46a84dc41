# SPDX-License-Identifier: Apache-2.0
# Programs that several nodes use one volume with: nodes_apps.py WHAT ...
#   init MOUNT            a database and a repository
#   sql MOUNT N PROOF     commits rows of node N, and notes each in PROOF once it is committed
#   git MOUNT N PROOF     the same with commits, in a worktree of its own
#   check MOUNT PROOFS    what is in the folder PROOFS is there, and both are in order
# The loads end when their mount does. Anything else that fails is said, and is exit code 1.
import errno
import glob
import os
import sqlite3
import subprocess
import sys
import time

GONE = (errno.ENOTCONN, errno.ENOENT, errno.ECONNABORTED, errno.EIO, errno.ESTALE)


def there(mount):
    try:
        os.stat(os.path.join(mount, "repo", "HEAD"))
        return True
    except OSError as e:
        assert e.errno in GONE, e
        return False


def database(mount):
    db = sqlite3.connect(os.path.join(mount, "db"), timeout=120, isolation_level=None)
    # full does not sync the folder when the journal is unlinked, which is what commits
    db.execute("pragma synchronous = extra")
    return db


def git(where, *words, check=True):
    done = subprocess.run(
        ["git", "-c", "user.name=t", "-c", "user.email=t@t", "-c", "gc.auto=0"]
        + ["-c", "core.fsync=all", "-C", where, *words],
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )
    if check and done.returncode:
        raise RuntimeError("git %s: %s" % (" ".join(words), done.stdout))
    return done.stdout.strip()


def init(mount):
    database(mount).execute("create table t (node int, i int, primary key (node, i))")
    repo = os.path.join(mount, "repo")
    subprocess.run(["git", "init", "-q", "--bare", repo], check=True)
    tree = git(repo, "hash-object", "-w", "-t", "tree", "/dev/null")
    first = git(repo, "commit-tree", "-m", "first", tree)
    for n in "123":
        git(repo, "branch", "node" + n, first)
        git(repo, "worktree", "add", "-q", os.path.join("..", "work" + n), "node" + n)


def sync(folder):
    fd = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def load(mount, step):
    while True:
        try:
            step()
        except (OSError, RuntimeError, sqlite3.Error) as e:
            time.sleep(0.2)
            if not there(mount):
                return
            print(repr(e), flush=True)
            sys.exit(1)


def sql(mount, n, proof):
    db = database(mount)
    folder = os.open(mount, os.O_RDONLY | os.O_DIRECTORY)
    i = db.execute("select coalesce(max(i), 0) from t where node = ?", (n,)).fetchone()[0]

    def step():
        nonlocal i
        i += 1
        db.execute("begin immediate")
        db.execute("insert into t values (?, ?)", (n, i))
        db.execute("insert into t values (?, ?)", (n, -i))
        db.execute("commit")
        os.fstatvfs(folder)  # where SQLite found no folder to sync it has not said so
        proof.write("%d\n" % i)
        proof.flush()
        time.sleep(0.01)

    load(mount, step)


def commits(mount, n, proof):
    repo = os.path.join(mount, "repo")
    # what a git that died here has left, as its own message asks for
    for lock in glob.glob(repo + "/worktrees/*%s/*.lock" % n):
        os.unlink(lock)
    for lock in glob.glob(repo + "/refs/heads/node%s.lock" % n):
        os.unlink(lock)
    where = os.path.join(mount, "work%s" % n)
    # worktrees know each other by the path of the node that made them
    env = ("--git-dir", repo + "/worktrees/work%s" % n, "--work-tree", where)
    git(where, *env, "reset", "-q", "--hard")
    i = int(git(where, *env, "rev-list", "--count", "HEAD"))

    def step():
        nonlocal i
        i += 1
        with open(where + "/f%d" % (i % 20), "w") as f:
            f.write("%d\n" % i * (i % 50))
        git(where, *env, "add", ".")
        git(where, *env, "commit", "-q", "-m", "commit %d" % i, "--allow-empty")
        commit = git(where, *env, "rev-parse", "HEAD")
        sync(repo + "/refs/heads")  # git itself does not, so the branch's new name might go
        proof.write(commit + "\n")
        proof.flush()

    load(mount, step)


def check(mount, proofs):
    db = database(mount)
    assert db.execute("pragma integrity_check").fetchall() == [("ok",)]
    rows = db.execute("select node, i from t").fetchall()
    assert sum(i for _, i in rows) == 0, "half a transaction"
    repo = os.path.join(mount, "repo")
    # a commit that was cut off leaves objects that nothing names, and nothing else
    print(git(repo, "fsck", "--strict", "--no-dangling", "--full"))
    for n in (1, 2, 3):
        kept = {i for node, i in rows if node == n}
        for line in open("%s/sql%d" % (proofs, n)):
            assert int(line) in kept, "row %s of node %d is lost" % (line, n)
        kept = set(git(repo, "rev-list", "node%d" % n).split())
        for line in open("%s/git%d" % (proofs, n)):
            assert line.strip() in kept, "commit %s of node %d is lost" % (line, n)
        print("node %d: %d rows, %d commits" % (n, len(rows), len(kept)))


what, mount = sys.argv[1:3]
if what == "init":
    init(mount)
elif what == "check":
    check(mount, sys.argv[3])
else:
    with open(sys.argv[4], "a") as out:
        try:
            {"sql": sql, "git": commits}[what](mount, int(sys.argv[3]), out)
        except (OSError, RuntimeError, sqlite3.Error):
            if there(mount):
                raise
