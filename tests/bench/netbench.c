/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The network against what it runs on: two processes, one asks, one has the pages.
 *
 *	netbench fetch|gather|bulk|messages HOW [COUNT [ADDRESS NAMESPACE]]
 *
 * fetch: a message asks for a page, which is written into the asker's memory with a message
 * behind it. gather: the same for 256 pages at once. bulk: writes of 1 MiB, several under
 * way. messages: one way, as fast as they go.
 * HOW: tcp, tls or shm through engine/net, tcp-progress the same with the progress task
 * waking the asker; raw-tcp and raw-uring are a socket's ping-pong,
 * raw-shm a ring in shared memory with a futex, each with nothing around it (fetch, bulk).
 * HOW:MIB (not gather, messages, raw-uring): what is sent lies in so much memory, one behind the other, and goes to as
 * much, as the pages of nodes do (at most 4096). Else it is one page, or 1 MiB, again and again, which stays in a
 * processor's cache.
 * With ADDRESS the one that has the pages listens there, in the network namespace of that
 * file (tcp, tls).
 * Prints median_ns, mean_ns, p99_ns, or bytes_per_second and per_second.
 */
#include <errno.h>
#include <fcntl.h>
#include <liburing.h>
#include <linux/futex.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sched.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "engine/net/net.h"
#include "engine/rt/rt.h"

#define MIB          (1u << 20)
#define REGION_LEAST (16u * MIB)
#define SPREAD_MAX   (4096ull * MIB)
#define GATHER       256u
#define BULK_DEPTH   4u
#define MESSAGE      64u
#define SPIN_NS      1000000u /* the other is at work: as fast as it can be */

/* Where the i-th piece of what is sent lies: in `spread` bytes, or always at the beginning. */
static uint64_t spread;

static uint64_t piece_at(uint64_t i, uint64_t bytes)
{
	return spread ? i % (spread / bytes) * bytes : 0;
}

/* So many come before what is counted: until no memory is touched for the first time. */
static unsigned pieces_before(unsigned count, uint64_t bytes)
{
	return MAX(count / 10, (unsigned)(spread / bytes));
}

static void must_(int ok, const char *what)
{
	if (ok)
		return;
	fprintf(stderr, "netbench: %s: %s\n", what, strerror(errno));
	exit(1);
}
#define MUST(expr) must_(!!(expr), #expr)

static uint64_t now_ns(void)
{
	struct timespec t;

	clock_gettime(CLOCK_MONOTONIC, &t);
	return (uint64_t)t.tv_sec * 1000000000u + (uint64_t)t.tv_nsec;
}

static int compare(const void *a, const void *b)
{
	uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;

	return x < y ? -1 : x > y;
}

static void print_latency(uint64_t *ns, unsigned count)
{
	uint64_t sum = 0;

	for (unsigned i = 0; i < count; i++)
		sum += ns[i];
	qsort(ns, count, sizeof(*ns), compare);
	printf("median_ns=%llu\nmean_ns=%llu\np99_ns=%llu\n",
		(unsigned long long)ns[count / 2], (unsigned long long)(sum / count),
		(unsigned long long)ns[(uint64_t)count * 99 / 100]);
}

static void print_rate(uint64_t began, unsigned count, uint64_t bytes)
{
	double s = (double)(now_ns() - began) / 1e9;

	printf("per_second=%.1f\nbytes_per_second=%.0f\n", count / s, (double)bytes / s);
}

/* ---- through engine/net ----------------------------------------------------------------- */

enum { ASK_PAGE = 1, ASK_MANY, ASK_BULK, PAGE_IS_HERE, PLAIN };

static struct {
	struct net *net;
	struct net_peer *peer, *likely;
	uint8_t *memory;
	_Atomic uint32_t up, pages;
	/* The server's. */
	struct net_op ops[GATHER];
	_Atomic uint32_t busy;
	uint64_t bulk_left, bulk_begun, asked;
} n;

static void bulk_next(struct net_op *op);

static void post_bulk(struct net_op *op)
{
	int r;

	n.bulk_left--;
	op->offset = piece_at(n.bulk_begun++, MIB);
	op->local = n.memory + op->offset;
	op->done = bulk_next;
	r = net_post(n.peer, op, NET_URGENT);
	MUST(r == 0 || r == -ENOTCONN); /* who asked may have gone */
}

static void bulk_next(struct net_op *op)
{
	if (n.bulk_left && op->result == 0)
		post_bulk(op);
}

/* The page's memory is never changed: an op may be used again while it is under way only
 * if it has ended, which the next question proves. */
static void serve(struct net_peer *peer, const struct net_message *m)
{
	unsigned count = m->type == ASK_MANY ? GATHER : 1;

	if (m->type == ASK_BULK) {
		n.bulk_left = m->words[0];
		count = BULK_DEPTH;
	}
	for (unsigned i = 0; i < count; i++) {
		uint32_t length = m->type == ASK_BULK ? MIB : PAGE_SIZE;
		uint64_t at = m->type == ASK_MANY ? (uint64_t)i * length
						  : piece_at(n.asked++, length);

		n.ops[i] = (struct net_op){.kind = NET_WRITE,
			.offset = at,
			.local = n.memory + at,
			.length = length,
			.message = {.type = PAGE_IS_HERE}};
		if (m->type == ASK_BULK)
			post_bulk(&n.ops[i]);
		else
			MUST(net_post(peer, &n.ops[i],
				     NET_URGENT | (i + 1 < count ? NET_MORE : 0)) == 0);
	}
}

static void on_message(void *owner, struct net_peer *peer, const struct net_message *m)
{
	if (m->type < PAGE_IS_HERE) {
		serve(peer, m);
		return;
	}
	atomic_fetch_add(&n.pages, 1);
	if (m->type == PAGE_IS_HERE || n.pages % 1024 == 0)
		net_wake(n.net, &n.pages, 1);
}

static void on_event(void *owner, struct net_peer *peer, const struct net_event *e)
{
	if (e->kind != NET_LINK_UP) {
		if (e->code != -ESHUTDOWN)
			fprintf(stderr, "netbench: %s\n", e->text);
		return;
	}
	atomic_store(&n.up, 1);
	net_wake(n.net, &n.up, 1);
}

static void net_begin(const char *how, unsigned node, const char *address, int tell)
{
	struct net_options o = {
		.transport = strcmp(how, "tls") ? how : "tcp",
		.self = {.incarnation = 1,
			.node = (uint16_t)node,
			.role = NET_ROLE_STORAGE},
		.tls = !strcmp(how, "tls"),
		.listen = node == 1 ? address : NULL,
		.handlers = {NULL, on_message, on_event},
	};
	struct net_peer_options p = {.node = (uint16_t)(3 - node)};
	char where[NET_ADDRESS_BYTES];
	struct weft_error err = {0};
	size_t bytes = MAX((size_t)spread, (size_t)REGION_LEAST);
	void *base;

	rt_real_start();
	memset(o.self.node_uuid, (int)node, NET_UUID_BYTES);
	if (net_open(&n.net, &o, &err) ||
		net_region_create(
			n.net, 0, bytes, NET_REMOTE_READ | NET_REMOTE_WRITE, &base)) {
		fprintf(stderr, "netbench: %s\n", err.text);
		exit(1);
	}
	n.memory = base;
	memset(n.memory, (int)node, bytes);
	if (node == 2)
		p.address = address;
	MUST(net_peer_add(&n.peer, n.net, &p, &err) == 0);
	MUST(net_start(n.net, &err) == 0);
	net_address(n.net, where);
	if (node == 1)
		MUST(write(tell, where, sizeof(where)) == sizeof(where));
	while (!atomic_load(&n.up))
		net_wait(n.net, n.peer, &n.up, 0, RT_FOREVER);
}

static void wait_pages(uint32_t wanted)
{
	for (uint32_t seen; (seen = atomic_load(&n.pages)) < wanted;)
		net_wait(n.net, n.likely, &n.pages, seen, RT_FOREVER);
}

static void ask_repeatedly(uint16_t type, uint32_t pages, unsigned count)
{
	struct net_message m = {.type = type};
	uint64_t *ns = calloc(count, sizeof(*ns));
	unsigned first = pieces_before(count, PAGE_SIZE);

	MUST(ns);
	for (unsigned i = 0; i < first + count; i++) {
		uint64_t began = now_ns();
		uint32_t before = n.pages;

		MUST(net_send(n.peer, &m, 0) == 0);
		wait_pages(before + pages);
		if (i >= first)
			ns[i - first] = now_ns() - began;
	}
	print_latency(ns, count);
	free(ns);
}

static void ask_bulk(unsigned count)
{
	unsigned first = MAX(pieces_before(count, MIB), BULK_DEPTH);
	struct net_message m = {.type = ASK_BULK, .words = {first + count}};
	uint64_t began;
	uint32_t got;

	MUST(net_send(n.peer, &m, 0) == 0);
	wait_pages(first);
	began = now_ns();
	got = n.pages;
	wait_pages(first + count);
	count = first + count - got;
	print_rate(began, count, (uint64_t)count * MIB);
}

/* The last one is asked for, so the end is known. */
static void send_messages(unsigned count)
{
	struct net_message m = {.type = PLAIN}, last = {.type = ASK_PAGE};
	uint64_t began = now_ns();

	for (unsigned i = 0; i < count; i++) {
		int r;

		while ((r = net_send(n.peer, &m, i % 32 == 31 ? 0 : NET_MORE)) == -EAGAIN)
			net_wait_room(n.peer, RT_FOREVER);
		MUST(r == 0);
	}
	MUST(net_send(n.peer, &last, 0) == 0);
	wait_pages(1);
	print_rate(began, count, (uint64_t)count * NET_MESSAGE_BYTES);
}

static void net_client(const char *what, unsigned count, bool progress)
{
	n.likely = progress ? NULL : n.peer;
	if (!strcmp(what, "fetch"))
		ask_repeatedly(ASK_PAGE, 1, count);
	else if (!strcmp(what, "gather"))
		ask_repeatedly(ASK_MANY, GATHER, count);
	else if (!strcmp(what, "bulk"))
		ask_bulk(count);
	else
		send_messages(count);
}

static void enter_namespace(const char *path)
{
	int fd = open(path, O_RDONLY | O_CLOEXEC);

	MUST(fd >= 0 && setns(fd, CLONE_NEWNET) == 0);
	close(fd);
}

/* `at`: an address and the namespace it is in, or NULL. */
static void net_run(const char *what, const char *how, unsigned count, char **at)
{
	char address[NET_ADDRESS_BYTES], listen[64];
	bool progress = !strcmp(how, "tcp-progress");
	int tell[2];
	pid_t child;

	if (progress)
		how = "tcp";
	if (!strcmp(how, "shm"))
		snprintf(listen, sizeof(listen), "/tmp/netbench.%d/sock", getpid());
	else
		snprintf(listen, sizeof(listen), "%s:0", at ? at[0] : "127.0.0.1");
	MUST(pipe(tell) == 0);
	child = fork();
	MUST(child >= 0);
	if (child == 0) {
		if (at)
			enter_namespace(at[1]);
		net_begin(how, 1, listen, tell[1]);
		for (;;)
			pause();
	}
	MUST(read(tell[0], address, sizeof(address)) == sizeof(address));
	net_begin(how, 2, address, -1);
	net_client(what, count, progress);
	fflush(stdout);
	net_close(n.net);
	kill(child, SIGTERM);
	waitpid(child, NULL, 0);
	unlink(listen);
	if (!strcmp(how, "shm")) {
		*strrchr(listen, 0x2f) = 0;
		rmdir(listen);
	}
}

/* ---- a socket with nothing around it ------------------------------------------------------- */

static uint8_t *raw_memory;

static void recv_all(int fd, uint8_t *to, size_t bytes)
{
	for (size_t got = 0; got < bytes;) {
		ssize_t r = read(fd, to + got, bytes - got);

		if (r <= 0)
			_exit(0);
		got += (size_t)r;
	}
}

static void send_all(int fd, const uint8_t *from, size_t bytes)
{
	for (size_t sent = 0; sent < bytes;) {
		ssize_t r = write(fd, from + sent, bytes - sent);

		if (r <= 0)
			_exit(0);
		sent += (size_t)r;
	}
}

static struct io_uring ring;

static void uring_recv(int fd, size_t bytes)
{
	for (size_t got = 0; got < bytes;) {
		struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);
		struct io_uring_cqe *cqe;
		int r;

		io_uring_prep_recv(sqe, fd, raw_memory + got, bytes - got, 0);
		io_uring_submit_and_wait(&ring, 1);
		MUST(io_uring_wait_cqe(&ring, &cqe) == 0);
		r = cqe->res;
		io_uring_cqe_seen(&ring, cqe);
		if (r <= 0)
			_exit(0);
		got += (size_t)r;
	}
}

/* Goes to the kernel together with the receive that follows. */
static void uring_send(int fd, size_t bytes)
{
	struct io_uring_sqe *sqe = io_uring_get_sqe(&ring);

	io_uring_prep_send(sqe, fd, raw_memory, bytes, MSG_WAITALL);
	sqe->flags |= IOSQE_CQE_SKIP_SUCCESS;
}

static void uring_begin(void)
{
	struct io_uring_params p = {
		.flags = IORING_SETUP_SINGLE_ISSUER | IORING_SETUP_DEFER_TASKRUN};

	MUST(io_uring_queue_init_params(16, &ring, &p) == 0);
}

static void raw_server(int fd, const char *what, bool uring)
{
	if (uring)
		uring_begin();
	for (uint64_t i = 0;; i++) {
		if (!strcmp(what, "bulk")) {
			send_all(fd, raw_memory + piece_at(i, MIB), MIB);
		} else if (uring) {
			uring_recv(fd, MESSAGE);
			uring_send(fd, PAGE_SIZE + MESSAGE);
		} else {
			recv_all(fd, raw_memory, MESSAGE);
			send_all(fd, raw_memory + piece_at(i, PAGE_SIZE),
				PAGE_SIZE + MESSAGE);
		}
	}
}

static void raw_client(int fd, const char *what, unsigned count, bool uring)
{
	bool bulk = !strcmp(what, "bulk");
	unsigned first = pieces_before(count, bulk ? MIB : PAGE_SIZE);
	uint64_t began = 0, *ns = calloc(count, sizeof(*ns));

	MUST(ns);
	if (uring)
		uring_begin();
	for (unsigned i = 0; i < first + count; i++) {
		uint64_t at = now_ns();

		began = i == first ? at : began;

		if (bulk) {
			recv_all(fd, raw_memory + piece_at(i, MIB), MIB);
		} else if (uring) {
			uring_send(fd, MESSAGE);
			uring_recv(fd, PAGE_SIZE + MESSAGE);
		} else {
			send_all(fd, raw_memory, MESSAGE);
			recv_all(fd, raw_memory + piece_at(i, PAGE_SIZE),
				PAGE_SIZE + MESSAGE);
		}
		if (i >= first)
			ns[i - first] = now_ns() - at;
	}
	if (bulk)
		print_rate(began, count, (uint64_t)count * MIB);
	else
		print_latency(ns, count);
}

static int no_delay(int fd)
{
	int one = 1;

	MUST(fd >= 0 && setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one)) == 0);
	return fd;
}

static void raw_tcp(const char *what, unsigned count, bool uring)
{
	struct sockaddr_in at = {
		.sin_family = AF_INET, .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
	socklen_t length = sizeof(at);
	int listener = socket(AF_INET, SOCK_STREAM, 0), fd;
	pid_t child;

	MUST(bind(listener, (struct sockaddr *)&at, sizeof(at)) == 0 &&
		listen(listener, 1) == 0 &&
		getsockname(listener, (struct sockaddr *)&at, &length) == 0);
	MUST((child = fork()) >= 0);
	if (child == 0)
		raw_server(no_delay(accept(listener, NULL, NULL)), what, uring);
	fd = socket(AF_INET, SOCK_STREAM, 0);
	MUST(connect(fd, (struct sockaddr *)&at, sizeof(at)) == 0);
	raw_client(no_delay(fd), what, count, uring);
	kill(child, SIGTERM);
	waitpid(child, NULL, 0);
}

/* ---- shared memory with nothing around it ---------------------------------------------------- */

struct shared {
	_Alignas(64) _Atomic uint32_t turn[2], asleep[2];
	_Alignas(64) uint8_t question[MESSAGE];
};

static void take_turn(struct shared *s, unsigned who, uint32_t wanted)
{
	uint64_t began = now_ns();

	while (atomic_load_explicit(&s->turn[who], memory_order_acquire) != wanted) {
		if (now_ns() - began < SPIN_NS) {
			__builtin_ia32_pause();
			continue;
		}
		atomic_store(&s->asleep[who], 1);
		if (atomic_load(&s->turn[who]) != wanted)
			syscall(SYS_futex, &s->turn[who], FUTEX_WAIT, wanted - 1, NULL,
				NULL, 0);
		atomic_store(&s->asleep[who], 0);
	}
}

static void give_turn(struct shared *s, unsigned who, uint32_t turn)
{
	atomic_store(&s->turn[who], turn);
	if (atomic_load(&s->asleep[who]))
		syscall(SYS_futex, &s->turn[who], FUTEX_WAKE, 1, NULL, NULL, 0);
}

static void raw_shm(const char *what, unsigned count)
{
	size_t room = MAX((size_t)spread, (size_t)MIB);
	struct shared *s = mmap(NULL, sizeof(*s) + room, PROT_READ | PROT_WRITE,
		MAP_SHARED | MAP_ANONYMOUS, -1, 0);
	uint8_t *pages = (uint8_t *)(s + 1);
	size_t bytes = strcmp(what, "bulk") ? PAGE_SIZE : MIB;
	unsigned first = pieces_before(count, bytes);
	uint64_t began = 0, *ns = calloc(count, sizeof(*ns));
	pid_t child;

	MUST(s != MAP_FAILED && ns);
	memset(pages, 2, room);
	child = fork();
	MUST(child >= 0);
	if (child == 0)
		for (uint32_t i = 1;; i++) {
			uint64_t at = piece_at(i, bytes);

			take_turn(s, 0, i);
			memcpy(pages + at, raw_memory + at, bytes);
			give_turn(s, 1, i);
		}
	for (uint32_t i = 1; i <= first + count; i++) {
		uint64_t at = now_ns();

		began = i == first + 1 ? at : began;
		memset(s->question, (int)i, MESSAGE);
		give_turn(s, 0, i);
		take_turn(s, 1, i);
		if (i > first)
			ns[i - 1 - first] = now_ns() - at;
	}
	if (bytes == MIB)
		print_rate(began, count, (uint64_t)count * MIB);
	else
		print_latency(ns, count);
	fflush(stdout);
	kill(child, SIGTERM);
	waitpid(child, NULL, 0);
}

int main(int argc, char **argv)
{
	unsigned count = argc > 3 ? (unsigned)atoi(argv[3]) : 20000;
	char *mib = argc > 2 ? strchr(argv[2], ':') : NULL;

	if (argc < 3 || count < 10) {
		fprintf(stderr, "usage: netbench fetch|gather|bulk|messages "
				"tcp|tcp-progress|tls|shm|raw-tcp|raw-uring|raw-shm "
				"[COUNT [ADDRESS NAMESPACE]]\n");
		return 2;
	}
	if (mib) {
		*mib++ = 0;
		spread = strtoull(mib, NULL, 10) * MIB;
		MUST(spread && spread <= SPREAD_MAX);
	}
	raw_memory = aligned_alloc(PAGE_SIZE, spread + 2 * MIB);
	MUST(raw_memory);
	memset(raw_memory, 1, spread + 2 * MIB);
	if (!strcmp(argv[2], "raw-tcp") || !strcmp(argv[2], "raw-uring"))
		raw_tcp(argv[1], count, !strcmp(argv[2], "raw-uring"));
	else if (!strcmp(argv[2], "raw-shm"))
		raw_shm(argv[1], count);
	else
		net_run(argv[1], argv[2], count, argc > 5 ? argv + 4 : NULL);
	return 0;
}
