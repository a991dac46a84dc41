#!/usr/bin/env bats
# SPDX-License-Identifier: Apache-2.0
# A node finds the files that it has met, and others beside them, while the node is away that has the
# root of the tree (docs/nodes/learned.md). It has lost the root to splits, and has not needed it since.

load common

setup() { setup_nodes 3; }
teardown() { teardown_nodes; }

tree_counter() { weft status "${M[3]}" --json | python3 -c "import json, sys; print(json.load(sys.stdin)['tree']['$1'])"; }

# Node 3 looks at each fourth file of node 2's directory, through an open directory. Node 2 makes so
# many more that the root is changed, and node 1 is killed. Node 3 looks at all of the first files,
# within 20 seconds.
look_without_node_1() {
	python3 - "${M[3]}" "${M[2]}" "$(node_pid 1)" <<-'END'
		import os, signal, sys
		mount, other, pid = sys.argv[1], sys.argv[2], int(sys.argv[3])
		def make(first, end):
		    for i in range(first, end):
		        os.close(os.open(f"{other}/own/f{i}", os.O_CREAT | os.O_WRONLY))
		os.mkdir(f"{other}/own")
		make(0, 2000)
		place = os.open(f"{mount}/own", os.O_RDONLY | os.O_DIRECTORY)
		for i in range(0, 2000, 4):
		    os.stat(f"f{i}", dir_fd=place)
		make(2000, 9000)
		os.kill(pid, signal.SIGKILL)
		signal.alarm(20)
		for i in range(2000):
		    os.stat(f"f{i}", dir_fd=place)
	END
}

@test "files are found without the node that has the root of the tree" {
	mount_nodes -o "${OPTIONS:-noatime}"
	look_without_node_1
	echo "guesses: $(tree_counter guesses_right) right, $(tree_counter guesses_wrong) wrong; $(tree_counter leaf_calls) questions"
	[ "$(tree_counter guesses_right)" -gt 0 ]
	umount -l "${M[1]}"
	mount_node 1
	umount_nodes 3 2 1
}
