/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Shared memory and the ends of processes: killed within an access, stopped, leaving a
 * socket behind; and peers that share what is none of the protocol's.
 */
#include <dirent.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "engine/net/wire.h"
#include "engine/rt/rt_shared.h"
#include "tests/unit/net_fixture.h"

/* Times that a writer is stopped until it is not just within an access. */
#define STOPS_MAX 20u

static char folder[64], path[96];

static const char *test_listen_address(void)
{
	snprintf(path, sizeof(path), "%s/node1", folder);
	return path;
}

static unsigned open_files(void)
{
	DIR *d = opendir("/proc/self/fd");
	unsigned n = 0;

	CHECK(d);
	while (readdir(d))
		n++;
	closedir(d);
	return n;
}

/* ---- processes ---------------------------------------------------------------------------- */

/* This program again, as a process of its own. */
static pid_t process_start(const char *role, uint64_t incarnation)
{
	char number[24];
	pid_t child;

	snprintf(number, sizeof(number), "%llu", (unsigned long long)incarnation);
	child = fork();
	CHECK(child >= 0);
	if (child == 0) {
		execl("/proc/self/exe", "net_shm_crash_test", role, folder, number, NULL);
		_exit(127);
	}
	return child;
}

/* Node 2, which writes into node 1's memory without end. */
static void be_writer(uint64_t incarnation)
{
	struct end *e = end_new(2);
	uint8_t *from = rt_alloc_pages(NET_TRANSFER_MAX);

	e->options.self.incarnation = incarnation;
	e->options.stall_ns = 1000 * MS;
	end_open(e);
	end_add_peer(e, 1, test_listen_address());
	end_start(e);
	for (uint64_t i = 0;; i++) {
		struct net_op op = {.kind = NET_WRITE,
			.local = from,
			.length = NET_TRANSFER_MAX,
			.message = {.type = MESSAGE_PLAIN}};

		memset(from, (int)i, NET_TRANSFER_MAX);
		if (post_waiting(e->peer, &op, 0) == 0)
			net_op_wait(e->peer, &op);
		else
			rt_sleep_ns(MS);
	}
}

/* Node 1, which listens. */
static void be_listener(void)
{
	struct end *e = end_new(1);

	end_open(e);
	end_start(e);
	for (;;)
		pause();
}

static void process_end(pid_t child)
{
	kill(child, SIGKILL);
	CHECK(waitpid(child, NULL, 0) == child);
}

static void memory_stands_still(struct end *e)
{
	uint8_t *copy = malloc(NET_TRANSFER_MAX);

	CHECK(copy);
	memcpy(copy, e->memory, NET_TRANSFER_MAX);
	rt_sleep_ns(5 * MS);
	CHECK(memcmp(copy, e->memory, NET_TRANSFER_MAX) == 0);
	free(copy);
}

static void a_killed_process_is_noticed_at_once(void **state)
{
	struct end *a = end_new(1);
	unsigned files = UINT32_MAX;
	uint64_t until;

	end_open(a);
	end_add_peer(a, 2, NULL);
	end_start(a);
	for (uint32_t i = 1; i <= 12; i++) {
		pid_t child = process_start("writer", i);
		uint64_t began;

		wait_for(a, &a->ups, i);
		wait_for(a, &a->messages, a->messages + 3);
		process_end(child);
		began = rt_now_ns();
		wait_for(a, &a->downs, i);
		CHECK(rt_now_ns() - began < 5000 * MS); /* silence is 10 s */
		CHECK(a->down_code == -ECONNRESET);
		memory_stands_still(a);
		files = MIN(files, open_files());
	}
	/* they are closed a moment after it is told */
	until = rt_now_ns() + PATIENCE_NS;
	while (open_files() > files) {
		CHECK(rt_now_ns() < until);
		rt_sleep_ns(MS);
	}
	end_free(a);
}

/* Stops the writer, most likely not within an access. */
static void stop_between_writes(struct end *a, pid_t child)
{
	for (;;) {
		uint8_t last;

		CHECK(kill(child, SIGSTOP) == 0);
		rt_sleep_ns(5 * MS);
		last = a->memory[NET_TRANSFER_MAX - 1];
		if (a->memory[0] == last && a->memory[NET_TRANSFER_MAX / 2] == last)
			return;
		kill(child, SIGCONT);
		rt_sleep_ns(3 * MS);
	}
}

/* Does the counter get there while the process is stopped? A look at the link might wait for that. */
static bool gets_there(const _Atomic uint32_t *counter, uint32_t wanted, uint64_t wait_ns)
{
	uint64_t until = rt_now_ns() + wait_ns;

	while (atomic_load(counter) < wanted) {
		if (rt_now_ns() >= until)
			return false;
		rt_sleep_ns(MS);
	}
	return true;
}

/*
 * One that is stopped at the edge of an access, where its memory does not show it, keeps us
 * until it goes on, as the protocol says: then it is stopped once more.
 */
static void a_stopped_process_is_cut_off_and_comes_back(void **state)
{
	struct end *a = end_new(1);
	bool meanwhile = false;
	uint32_t cuts = 0;
	pid_t child;

	a->options.stall_ns = 500 * MS;
	end_open(a);
	end_add_peer(a, 2, NULL);
	end_start(a);
	child = process_start("writer", 1);
	while (!meanwhile) {
		CHECK(++cuts <= STOPS_MAX);
		wait_for(a, &a->messages, atomic_load(&a->messages) + 3);
		stop_between_writes(a, child);
		meanwhile = gets_there(&a->downs, cuts, 2000 * MS);
		kill(child, SIGCONT);
		wait_for(a, &a->downs, cuts);
		CHECK(a->down_code == -ETIMEDOUT);
		wait_for(a, &a->ups, cuts + 1);
	}
	process_end(child);
	wait_for(a, &a->downs, cuts + 1);
	end_free(a);
}

static void a_socket_left_by_a_crash_is_replaced(void **state)
{
	struct weft_error err = {0};
	struct end *a, *second = end_new(1);
	pid_t child = process_start("listener", 1);
	struct rt_socket *socket;
	struct rt_address at;
	uint64_t until = rt_now_ns() + PATIENCE_NS;

	CHECK(rt_address_resolve(&at, test_listen_address(), NULL) == 0);
	while (rt_socket_connect(&socket, &at)) {
		CHECK(rt_now_ns() < until);
		rt_sleep_ns(MS);
	}
	rt_socket_close(socket);
	/* While it lives nobody takes its place. */
	end_open(second);
	assert_int_equal(net_start(second->net, &err), -EADDRINUSE);
	assert_non_null(strstr(err.text, path));
	end_free(second);
	process_end(child);
	assert_int_equal(access(path, F_OK), 0);
	a = end_new(1);
	end_open(a);
	end_start(a);
	end_free(a);
	assert_int_equal(access(path, F_OK), -1);
}

static void a_directory_of_others_is_refused(void **state)
{
	struct weft_error err = {0};
	struct end *a = end_new(1);

	CHECK(chmod(folder, 0777) == 0);
	end_open(a);
	assert_int_equal(net_start(a->net, &err), -EPERM);
	assert_non_null(strstr(err.text, folder));
	CHECK(chmod(folder, 0700) == 0);
	end_free(a);
}

/* ---- what is shared ------------------------------------------------------------------------- */

/* The segments of node 2, as docs/protocol.md has them, byte by byte. */
struct raw {
	struct rt_socket *socket;
	struct rt_shared *node, *link, *theirs[8];
	int their_count;
	uint8_t *node_bytes, *link_bytes;
};

static void raw_put(uint8_t *at, uint64_t value, unsigned bytes)
{
	memcpy(at, &value, bytes);
}

static void raw_make(struct raw *r)
{
	memset(r, 0, sizeof(*r));
	CHECK(rt_shared_create(&r->node, 4096, true) == 0);
	CHECK(rt_shared_create(&r->link, 4096 + 64 * 1024, true) == 0);
	r->node_bytes = rt_shared_base(r->node);
	r->link_bytes = rt_shared_base(r->link);
	memcpy(r->node_bytes, "WEFTSHMN", 8);
	raw_put(r->node_bytes + 8, 2, 4);
	memcpy(r->link_bytes, "WEFTSHML", 8);
	raw_put(r->link_bytes + 8, 2, 4);
	raw_put(r->link_bytes + 12, 1024, 4);
	raw_put(r->link_bytes + 320, 1, 4);
}

static void raw_recv(struct raw *r, void *to, size_t bytes)
{
	for (uint8_t *p = to; bytes;) {
		struct iovec iov = {p, bytes};
		ssize_t n = rt_socket_recv(r->socket, &iov, 1);

		if (n == -EAGAIN) {
			rt_socket_wait(r->socket, rt_now_ns() + 10 * MS);
			continue;
		}
		CHECK(n > 0);
		p += n;
		bytes -= (size_t)n;
	}
}

static void raw_send(struct raw *r, const void *what, size_t bytes)
{
	struct iovec iov = {(void *)what, bytes};

	CHECK(rt_socket_send(r->socket, &iov, 1) == (ssize_t)bytes);
}

/* Up to what is shared. */
static void raw_greet(struct raw *r)
{
	struct wire_hello ours, theirs;
	struct wire_proof proof;
	struct net_options me;
	struct rt_address at;
	uint8_t instance[NET_UUID_BYTES] = {7};

	options_default(&me, "shm", 2, NULL);
	CHECK(rt_address_resolve(&at, test_listen_address(), NULL) == 0);
	CHECK(rt_socket_connect(&r->socket, &at) == 0);
	wire_hello_make(&ours, &me.self, instance, 1, WIRE_SHM);
	raw_send(r, &ours, sizeof(ours));
	raw_recv(r, &theirs, sizeof(theirs));
	CHECK(wire_proof_make(&proof, me.key, true, &ours, &theirs));
	raw_send(r, &proof, sizeof(proof));
	raw_recv(r, &proof, sizeof(proof));
	r->their_count = rt_socket_take_shared(r->socket, r->theirs, 8);
	CHECK(r->their_count == 4);
	CHECK(rt_shared_writable(r->theirs[2]) && !rt_shared_writable(r->theirs[3]));
}

static void raw_share(struct raw *r, struct rt_shared *extra)
{
	struct wire_memory m = {.magic = WIRE_MEMORY};
	struct rt_shared *all[3] = {r->node, r->link, extra};

	CHECK(rt_socket_send_shared(r->socket, &m, sizeof(m), all, extra ? 3 : 2) == 0);
}

static void raw_end(struct raw *r)
{
	rt_socket_close(r->socket);
	rt_shared_free(r->node);
	rt_shared_free(r->link);
	for (int i = 0; i < r->their_count; i++)
		rt_shared_free(r->theirs[i]);
}

static struct end *victim_new(void)
{
	struct end *a = end_new(1);

	end_open(a);
	end_add_peer(a, 2, NULL);
	end_start(a);
	return a;
}

static void wait_refused(struct end *a, uint32_t count)
{
	wait_for(a, &a->refusals, count);
	CHECK(a->ups == 0);
}

static void strange_memory_is_refused(void **state)
{
	for (unsigned i = 0; i < 9; i++) {
		struct end *a = victim_new();
		struct rt_shared *extra = NULL;
		struct raw r;

		raw_make(&r);
		raw_greet(&r);
		switch (i) {
		case 0:
			r.node_bytes[0] ^= 1;
			break;
		case 1:
			r.link_bytes[7] ^= 1;
			break;
		case 2:
			raw_put(r.link_bytes + 8, 1, 4);
			break;
		case 3:
			raw_put(r.link_bytes + 12, 1u << 30, 4);
			break;
		case 4: /* a region that is not there */
			raw_put(r.link_bytes + 384, 4096, 8);
			break;
		case 5: /* memory without a region */
			CHECK(rt_shared_create(&extra, 4096, true) == 0);
			break;
		case 6: /* a region larger than its memory */
			CHECK(rt_shared_create(&extra, 4096, true) == 0);
			raw_put(r.link_bytes + 384, 4097, 8);
			break;
		case 7: /* too short for a ring */
			rt_shared_free(r.link);
			CHECK(rt_shared_create(&r.link, 4096, true) == 0);
			memcpy(rt_shared_base(r.link), "WEFTSHML\2\0\0\0\0\4", 15);
			break;
		case 8: /* that cannot be written */
			rt_shared_free(r.node);
			CHECK(rt_shared_create(&r.node, 4096, false) == 0);
			memcpy(rt_shared_base(r.node), "WEFTSHMN\2", 9);
			break;
		}
		raw_share(&r, extra);
		wait_refused(a, 1);
		rt_shared_free(extra);
		raw_end(&r);
		end_free(a);
	}
}

/* Memory that its owner can cut short would kill who reads it. */
static void memory_that_can_shrink_is_refused(void **state)
{
	struct end *a = victim_new();
	struct wire_memory memory = {.magic = WIRE_MEMORY};
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(2 * sizeof(int))];
	} control = {0};
	struct iovec iov = {&memory, sizeof(memory)};
	struct msghdr m = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = sizeof(control)};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	int fds[2] = {memfd_create("a", 0), memfd_create("b", 0)};
	struct raw r;

	CHECK(ftruncate(fds[0], 4096) == 0 && ftruncate(fds[1], 1 << 20) == 0);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(sizeof(fds));
	memcpy(CMSG_DATA(c), fds, sizeof(fds));
	raw_make(&r);
	raw_greet(&r);
	/* The runtime's socket begins with its descriptor. */
	CHECK(sendmsg(*(int *)r.socket, &m, 0) == sizeof(memory));
	wait_refused(a, 1);
	close(fds[0]);
	close(fds[1]);
	raw_end(&r);
	end_free(a);
}

static void a_ring_that_is_none_ends_the_link(void **state)
{
	struct end *a = victim_new();

	for (uint32_t i = 0; i < 6; i++) {
		uint8_t *ring;
		struct raw r;

		raw_make(&r);
		raw_greet(&r);
		raw_share(&r, NULL);
		wait_for(a, &a->ups, i + 1);
		ring = rt_shared_base(r.theirs[1]);
		switch (i) {
		case 0: /* more than fits, though each is a message */
			for (unsigned n = 0; n < 1024; n++)
				raw_put(ring + 4096 + n * 64, 1 | 2u << 16, 4);
			raw_put(ring + 192, 1025, 8);
			break;
		case 1: /* no message */
			raw_put(ring + 192, 1, 8);
			break;
		case 2: /* of another node */
			raw_put(ring + 4096, 1, 2);
			raw_put(ring + 4096 + 2, 3, 2);
			raw_put(ring + 192, 1, 8);
			break;
		case 3: /* backwards */
			raw_put(ring + 192, UINT64_MAX, 8);
			break;
		case 4: /* a head that was never there: seen when we send */
			raw_put(r.link_bytes + 256, 5, 8);
			net_send(a->peer, &(struct net_message){.type = 1}, 0);
			break;
		case 5: /* words where none are said */
			raw_send(&r, "hello", 5);
			break;
		}
		/* The node's bell, as a writer rings it. */
		raw_put((uint8_t *)rt_shared_base(r.theirs[0]) + 64, 77 + i, 4);
		rt_shared_wake(
			(_Atomic uint32_t *)((uint8_t *)rt_shared_base(r.theirs[0]) + 64),
			1);
		wait_for(a, &a->downs, i + 1);
		CHECK(a->down_code == -EPROTO);
		raw_end(&r);
	}
	CHECK(a->messages == 0);
	end_free(a);
}

/* An access under way keeps the link from being told down. */
static void down_waits_for_an_access(void **state)
{
	struct end *a = victim_new();
	uint8_t *ring;
	struct raw r;

	raw_make(&r);
	raw_greet(&r);
	raw_share(&r, NULL);
	wait_for(a, &a->ups, 1);
	ring = rt_shared_base(r.theirs[1]);
	CHECK(ring[320] == 1);
	raw_put(ring + 324, 1, 4);
	net_cut(a->peer, -ECONNABORTED);
	for (unsigned i = 0; i < 20; i++) {
		rt_sleep_ns(5 * MS);
		CHECK(a->downs == 0);
	}
	CHECK(ring[320] == 0 && !net_peer_up(a->peer));
	raw_put(ring + 324, 0, 4);
	wait_for(a, &a->downs, 1);
	CHECK(a->down_code == -ECONNABORTED);
	raw_end(&r);
	end_free(a);
}

/* Who rings may be killed, or stopped, between raising the word and waking the sleeper. */
static void a_ring_that_was_only_begun_keeps_nobody_asleep(void **state)
{
	for (unsigned i = 0; i < 20; i++) {
		struct end *a = victim_new();
		_Atomic uint32_t *bell;
		_Atomic uint64_t *sleeps;
		uint64_t until = rt_now_ns() + PATIENCE_NS;
		struct raw r;

		raw_make(&r);
		raw_greet(&r);
		raw_share(&r, NULL);
		wait_for(a, &a->ups, 1);
		bell = (void *)((uint8_t *)rt_shared_base(r.theirs[0]) + 64);
		sleeps = (void *)((uint8_t *)rt_shared_base(r.theirs[0]) + 128);
		while (atomic_load(sleeps) % 2 == 0)
			CHECK(rt_now_ns() < until);
		rt_sleep_ns(i % 2 * MS);
		atomic_fetch_add(bell, 1);
		if (i < 10) {
			raw_end(&r);
			wait_for(a, &a->downs, 1);
		}
		end_free(a); /* its task ends */
		if (i >= 10)
			raw_end(&r);
	}
}

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		cmocka_unit_test(a_killed_process_is_noticed_at_once),
		cmocka_unit_test(a_stopped_process_is_cut_off_and_comes_back),
		cmocka_unit_test(a_socket_left_by_a_crash_is_replaced),
		cmocka_unit_test(a_directory_of_others_is_refused),
		cmocka_unit_test(strange_memory_is_refused),
		cmocka_unit_test(memory_that_can_shrink_is_refused),
		cmocka_unit_test(a_ring_that_is_none_ends_the_link),
		cmocka_unit_test(down_waits_for_an_access),
		cmocka_unit_test(a_ring_that_was_only_begun_keeps_nobody_asleep),
	};
	int r;

	rt_real_start();
	test_transport = "shm";
	if (argc == 4) {
		snprintf(folder, sizeof(folder), "%s", argv[2]);
		if (!strcmp(argv[1], "writer"))
			be_writer(strtoull(argv[3], NULL, 10));
		be_listener();
	}
	snprintf(folder, sizeof(folder), "%s/weft-net-crash-%d",
		getenv("TMPDIR") ? getenv("TMPDIR") : "/tmp", (int)getpid());
	CHECK(mkdir(folder, 0700) == 0);
	r = cmocka_run_group_tests(tests, NULL, NULL);
	return rmdir(folder) ? 1 : r;
}
