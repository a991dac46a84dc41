/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sockets of the real runtime: TCP and unix streams, never blocking. The poller is epoll.
 *
 * Each socket has a poller of its own for a task that waits for this socket alone. It may be in
 * another poller, too. Both are exclusive waiters on the socket (EPOLLEXCLUSIVE), and its own is
 * the first. So arriving bytes wake the task at its own poller. They wake the other one only if no
 * task waits there.
 *
 * Why not io_uring: a task that waits for an answer takes the receiving over from the poller's
 * task. With two tasks on one ring both wake for every completion. docs/transports.md, "How tcp
 * waits", has the measurements.
 */
#include <errno.h>
#include <fcntl.h>
#include <netdb.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <unistd.h>

#include "engine/rt/real.h"
#include "engine/rt/rt_shared.h"

#define BACKLOG       128
#define POLL_MAX      64u
#define NSEC_PER_MSEC 1000000ull
#define PATH_BYTES    sizeof(((struct sockaddr_un *)0)->sun_path)

struct rt_socket {
	int fd;
	/* For rt_socket_wait; -1: a listener. The first poller that learns of arriving bytes. */
	int wait_fd, kick_fd;
	bool local;  /* a unix socket */
	int process; /* pidfd of its other end; -1: none */
	/* Descriptors that have arrived and are not taken yet. */
	int came[RT_SHARED_MAX];
	unsigned came_count;
	char path[PATH_BYTES]; /* of a listening unix socket; else empty */
	ino_t path_inode;      /* the inode at the path when the socket was made */
};

struct rt_poller {
	int fd;
	int kick_fd;
};

_Static_assert(sizeof(struct rt_address) - offsetof(struct rt_address, bytes) >=
		       sizeof(struct sockaddr_storage),
	"room for any address");

/* ---- addresses ------------------------------------------------------------------- */

static int resolve_path(struct rt_address *out, const char *path, struct weft_error *err)
{
	struct sockaddr_un un = {.sun_family = AF_UNIX};

	if (strlen(path) >= sizeof(un.sun_path))
		return weft_error(err, -ENAMETOOLONG,
			"%s: a socket's path has at most %zu bytes", path,
			sizeof(un.sun_path) - 1);
	*out = (struct rt_address){.length = sizeof(un)};
	strcpy(un.sun_path, path);
	memcpy(out->bytes, &un, sizeof(un));
	return 1;
}

/* Splits "host:port" or "[host]:port". */
static bool split_host_port(
	const char *text, char *host, size_t host_size, const char **port)
{
	const char *colon = strrchr(text, ':'), *end = colon;
	const char *begin = text;

	if (!colon || !colon[1])
		return false;
	if (*begin == '[') {
		begin++;
		end--;
		if (end <= begin || *end != ']')
			return false;
	}
	if (end <= begin || (size_t)(end - begin) >= host_size)
		return false;
	memcpy(host, begin, (size_t)(end - begin));
	host[end - begin] = 0;
	*port = colon + 1;
	return true;
}

/* Adds an address unless it is there. Returns the number of addresses. */
static unsigned take_address(
	struct rt_address *out, unsigned count, const struct addrinfo *found)
{
	struct rt_address a = {.length = found->ai_addrlen};

	memcpy(a.bytes, found->ai_addr, found->ai_addrlen);
	for (unsigned i = 0; i < count; i++)
		if (!memcmp(&out[i], &a, sizeof(a)))
			return count;
	out[count] = a;
	return count + 1;
}

static int socket_resolve(
	struct rt_address *out, unsigned max, const char *text, struct weft_error *err)
{
	struct addrinfo hints = {.ai_socktype = SOCK_STREAM}, *found;
	const char *port;
	unsigned count = 0;
	char host[256];
	int rc;

	if (strchr(text, '/'))
		return resolve_path(out, text, err);
	if (!split_host_port(text, host, sizeof(host), &port))
		return weft_error(err, -EINVAL,
			"%s is no address: write host:port or [IPv6 address]:port", text);
	rc = getaddrinfo(host, port, &hints, &found);
	if (rc)
		return weft_error(err, rc == EAI_MEMORY ? -ENOMEM : -EHOSTUNREACH,
			"%s cannot be looked up: %s", text, gai_strerror(rc));
	for (struct addrinfo *a = found; a && count < max; a = a->ai_next)
		count = take_address(out, count, a);
	freeaddrinfo(found);
	return (int)count;
}

static int address_family(const struct rt_address *a)
{
	return ((const struct sockaddr *)a->bytes)->sa_family;
}

static void to_text(const struct sockaddr *sa, socklen_t length, char *out, size_t size)
{
	char host[128], port[16];

	if (sa->sa_family == AF_UNIX) {
		snprintf(out, size, "%s", ((const struct sockaddr_un *)sa)->sun_path);
		return;
	}
	if (getnameinfo(sa, length, host, sizeof(host), port, sizeof(port),
		    NI_NUMERICHOST | NI_NUMERICSERV))
		snprintf(out, size, "?");
	else
		snprintf(out, size, sa->sa_family == AF_INET6 ? "[%s]:%s" : "%s:%s", host,
			port);
}

static void address_print(const struct rt_address *a, char *out, size_t size)
{
	to_text((const struct sockaddr *)a->bytes, a->length, out, size);
}

/* ---- sockets ------------------------------------------------------------------------ */

static void close_fds(struct rt_socket *s)
{
	close(s->fd);
	for (unsigned i = 0; i < s->came_count; i++)
		close(s->came[i]);
	if (s->process >= 0)
		close(s->process);
	if (s->wait_fd >= 0)
		close(s->wait_fd);
	if (s->kick_fd >= 0)
		close(s->kick_fd);
}

static int watch_alone(struct rt_socket *s)
{
	struct epoll_event bytes = {.events = EPOLLIN | EPOLLEXCLUSIVE};
	struct epoll_event kick = {.events = EPOLLIN, .data.u32 = 1};

	s->wait_fd = epoll_create1(EPOLL_CLOEXEC);
	s->kick_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (s->wait_fd < 0 || s->kick_fd < 0 ||
		epoll_ctl(s->wait_fd, EPOLL_CTL_ADD, s->fd, &bytes) ||
		epoll_ctl(s->wait_fd, EPOLL_CTL_ADD, s->kick_fd, &kick))
		return -errno;
	return 0;
}

static int socket_wrap(struct rt_socket **out, int fd, bool listener)
{
	struct rt_socket *s = calloc(1, sizeof(*s));
	int one = 1, r = 0;

	if (!s) {
		close(fd);
		return -ENOMEM;
	}
	s->fd = fd;
	s->wait_fd = s->kick_fd = s->process = -1;
	if (!listener) {
		r = watch_alone(s);
		/* Fails on unix sockets, which do not need it. */
		setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
	}
	if (r) {
		close_fds(s);
		free(s);
		return r;
	}
	*out = s;
	return 0;
}

int real_socket_watch(struct rt_socket **out, int fd)
{
	int own = fcntl(fd, F_DUPFD_CLOEXEC, 0);

	return own < 0 ? -errno : socket_wrap(out, own, false);
}

/* Removes a socket that a crash has left: no process listens at it. */
static void remove_stale(const struct rt_address *at)
{
	const struct sockaddr_un *un = (const struct sockaddr_un *)at->bytes;
	struct stat st;
	int fd;

	if (lstat(un->sun_path, &st) || !S_ISSOCK(st.st_mode))
		return;
	fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return;
	if (connect(fd, (const struct sockaddr *)at->bytes, at->length) &&
		errno == ECONNREFUSED)
		unlink(un->sun_path);
	close(fd);
}

/* No other user may put a socket at the path of this one. */
static int private_directory(const char *path, struct weft_error *err)
{
	char folder[160];
	struct stat st;

	snprintf(folder, sizeof(folder), "%s", path);
	*strrchr(folder, '/') = 0;
	if (!folder[0])
		strcpy(folder, "/");
	if (mkdir(folder, 0700) && errno != EEXIST)
		return weft_error(err, -errno, "cannot make the directory %s: %s", folder,
			strerror(errno));
	if (stat(folder, &st))
		return weft_error(err, -errno, "cannot use the directory %s: %s", folder,
			strerror(errno));
	if (st.st_uid != geteuid() || (st.st_mode & 022))
		return weft_error(err, -EPERM,
			"%s can be written by others: make it a directory of this user's "
			"own, "
			"mode 0700",
			folder);
	return 0;
}

static void remember_path(struct rt_socket *s, const struct rt_address *at)
{
	struct stat st;

	strcpy(s->path, ((const struct sockaddr_un *)at->bytes)->sun_path);
	if (chmod(s->path, 0600) || lstat(s->path, &st))
		s->path[0] = 0;
	else
		s->path_inode = st.st_ino;
}

static int socket_listen(
	struct rt_socket **out, const struct rt_address *at, struct weft_error *err)
{
	const struct sockaddr *sa = (const struct sockaddr *)at->bytes;
	char name[160];
	int one = 1, r, fd;

	to_text(sa, at->length, name, sizeof(name));
	fd = socket(address_family(at), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	if (fd < 0)
		return weft_error(err, -errno, "cannot make a socket to listen at %s: %s",
			name, strerror(errno));
	r = address_family(at) == AF_UNIX ? private_directory(name, err) : 0;
	if (r) {
		close(fd);
		return r;
	}
	if (address_family(at) == AF_UNIX)
		remove_stale(at);
	else
		setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof(one));
	if (bind(fd, sa, at->length) || listen(fd, BACKLOG)) {
		r = weft_error(
			err, -errno, "cannot listen at %s: %s", name, strerror(errno));
		close(fd);
		return r;
	}
	r = socket_wrap(out, fd, true);
	if (r)
		return weft_error(err, r, "cannot listen at %s: %s", name, strerror(-r));
	(*out)->local = address_family(at) == AF_UNIX;
	if ((*out)->local)
		remember_path(*out, at);
	return 0;
}

static void socket_name(struct rt_socket *s, char *out, size_t size)
{
	struct sockaddr_storage sa;
	socklen_t length = sizeof(sa);

	memset(&sa, 0, sizeof(sa));
	if (getsockname(s->fd, (struct sockaddr *)&sa, &length))
		snprintf(out, size, "?");
	else
		to_text((struct sockaddr *)&sa, length, out, size);
}

static void socket_peer_name(struct rt_socket *s, char *out, size_t size)
{
	struct sockaddr_storage sa;
	struct ucred peer;
	socklen_t length = sizeof(sa), peer_length = sizeof(peer);

	memset(&sa, 0, sizeof(sa));
	if (getpeername(s->fd, (struct sockaddr *)&sa, &length))
		snprintf(out, size, "an address that is gone");
	else if (sa.ss_family != AF_UNIX)
		to_text((struct sockaddr *)&sa, length, out, size);
	else if (getsockopt(s->fd, SOL_SOCKET, SO_PEERCRED, &peer, &peer_length))
		snprintf(out, size, "a process of this machine");
	else
		snprintf(out, size, "process %d of user %u of this machine", peer.pid,
			peer.uid);
}

static int socket_accept(struct rt_socket **out, struct rt_socket *listener)
{
	int fd, r;

	do
		fd = accept4(listener->fd, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC);
	while (fd < 0 && (errno == EINTR || errno == ECONNABORTED));
	if (fd < 0)
		return -errno;
	r = socket_wrap(out, fd, false);
	if (!r)
		(*out)->local = listener->local;
	return r;
}

static int socket_connect(struct rt_socket **out, const struct rt_address *to)
{
	int fd =
		socket(address_family(to), SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
	int rc;

	if (fd < 0)
		return -errno;
	if (connect(fd, (const struct sockaddr *)to->bytes, to->length) &&
		errno != EINPROGRESS && errno != EINTR) {
		rc = -errno;
		close(fd);
		return rc;
	}
	rc = socket_wrap(out, fd, false);
	if (!rc)
		(*out)->local = address_family(to) == AF_UNIX;
	return rc;
}

static int socket_connected(struct rt_socket *s)
{
	struct pollfd p = {.fd = s->fd, .events = POLLOUT};
	socklen_t length = sizeof(int);
	int error = 0;

	if (getsockopt(s->fd, SOL_SOCKET, SO_ERROR, &error, &length))
		return -errno;
	if (error)
		return -error;
	if (poll(&p, 1, 0) != 1)
		return -EINPROGRESS;
	return p.revents & POLLOUT ? 0 : -ECONNRESET;
}

/*
 * These are the system calls themselves. ThreadSanitizer takes libc's for plain loads and stores of
 * a frame. The store races with an optimistic reader of the frame's earlier page, which will find
 * out. If both ends are in one process, the load is over before the answer that allows a change of
 * the frame.
 */
static ssize_t socket_send(struct rt_socket *s, const struct iovec *iov, unsigned count)
{
	struct msghdr m = {.msg_iov = (struct iovec *)iov, .msg_iovlen = count};
	ssize_t n;

	do
		n = count == 1 ? syscall(SYS_sendto, s->fd, iov->iov_base, iov->iov_len,
					 MSG_DONTWAIT | MSG_NOSIGNAL, NULL, 0)
			       : syscall(SYS_sendmsg, s->fd, &m,
					 MSG_DONTWAIT | MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

/* Descriptors without room are closed. */
static void keep_descriptors(struct rt_socket *s, struct msghdr *m)
{
	for (struct cmsghdr *c = CMSG_FIRSTHDR(m); c; c = CMSG_NXTHDR(m, c)) {
		unsigned n;

		if (c->cmsg_level != SOL_SOCKET || c->cmsg_type != SCM_RIGHTS)
			continue;
		n = (unsigned)((c->cmsg_len - CMSG_LEN(0)) / sizeof(int));
		for (unsigned i = 0; i < n; i++) {
			int fd;

			memcpy(&fd, CMSG_DATA(c) + i * sizeof(int), sizeof(fd));
			if (s->came_count < RT_SHARED_MAX)
				s->came[s->came_count++] = fd;
			else
				close(fd);
		}
	}
}

static ssize_t local_recv(struct rt_socket *s, const struct iovec *iov, unsigned count)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(RT_SHARED_MAX * sizeof(int))];
	} control;
	struct msghdr m = {.msg_iov = (struct iovec *)iov,
		.msg_iovlen = count,
		.msg_control = &control,
		.msg_controllen = sizeof(control)};
	ssize_t n;

	do
		n = recvmsg(s->fd, &m, MSG_DONTWAIT | MSG_CMSG_CLOEXEC);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	keep_descriptors(s, &m);
	return n;
}

static ssize_t socket_recv(struct rt_socket *s, const struct iovec *iov, unsigned count)
{
	struct msghdr m = {.msg_iov = (struct iovec *)iov, .msg_iovlen = count};
	ssize_t n;

	if (s->local)
		return local_recv(s, iov, count);
	do
		n = count == 1 ? syscall(SYS_recvfrom, s->fd, iov->iov_base, iov->iov_len,
					 MSG_DONTWAIT, NULL, NULL)
			       : syscall(SYS_recvmsg, s->fd, &m, MSG_DONTWAIT);
	while (n < 0 && errno == EINTR);
	return n < 0 ? -errno : n;
}

static void socket_shutdown(struct rt_socket *s)
{
	shutdown(s->fd, SHUT_RDWR);
}

static void socket_close(struct rt_socket *s)
{
	struct stat st;

	if (s->path[0] && lstat(s->path, &st) == 0 && st.st_ino == s->path_inode)
		unlink(s->path);
	close_fds(s);
	free(s);
}

/* ---- shared memory ----------------------------------------------------------------- */

int rt_socket_send_shared(struct rt_socket *s, const void *what, size_t bytes,
	struct rt_shared *const *shared, unsigned count)
{
	union {
		struct cmsghdr align;
		char bytes[CMSG_SPACE(RT_SHARED_MAX * sizeof(int))];
	} control = {0};
	struct iovec iov = {(void *)what, bytes};
	struct msghdr m = {.msg_iov = &iov,
		.msg_iovlen = 1,
		.msg_control = &control,
		.msg_controllen = CMSG_SPACE(count * sizeof(int))};
	struct cmsghdr *c = CMSG_FIRSTHDR(&m);
	ssize_t n;

	WEFT_ASSERT(count > 0 && count <= RT_SHARED_MAX);
	c->cmsg_level = SOL_SOCKET;
	c->cmsg_type = SCM_RIGHTS;
	c->cmsg_len = CMSG_LEN(count * sizeof(int));
	for (unsigned i = 0; i < count; i++) {
		int fd = real_shared_fd(shared[i]);

		memcpy(CMSG_DATA(c) + i * sizeof(int), &fd, sizeof(fd));
	}
	do
		n = sendmsg(s->fd, &m, MSG_DONTWAIT | MSG_NOSIGNAL);
	while (n < 0 && errno == EINTR);
	if (n < 0)
		return -errno;
	return (size_t)n == bytes ? 0 : -EPIPE; /* a part of it is of no use */
}

int rt_socket_take_shared(struct rt_socket *s, struct rt_shared **out, unsigned max)
{
	unsigned n = 0;
	int rc = s->came_count > max ? -EPERM : 0;

	while (!rc && n < s->came_count) {
		rc = real_shared_adopt(&out[n], s->came[n]);
		if (!rc)
			n++;
	}
	if (!rc) {
		s->came_count = 0;
		return (int)n;
	}
	/* The shared memory that was made closes its descriptor itself. */
	memmove(s->came, s->came + n, (s->came_count - n) * sizeof(s->came[0]));
	s->came_count -= n;
	while (n)
		rt_shared_free(out[--n]);
	return rc;
}

bool rt_socket_process_lives(struct rt_socket *s)
{
	struct ucred peer;
	socklen_t length = sizeof(peer);
	struct pollfd p = {.events = POLLIN};

	if (s->process < 0) {
		if (getsockopt(s->fd, SOL_SOCKET, SO_PEERCRED, &peer, &length))
			return false;
		s->process = (int)syscall(SYS_pidfd_open, peer.pid, 0);
		if (s->process < 0)
			return errno != ESRCH;
	}
	p.fd = s->process;
	return poll(&p, 1, 0) == 0;
}

static void raise_event(int fd)
{
	uint64_t one = 1;

	/* A counter that is full has an event already. */
	if (write(fd, &one, sizeof(one)) < 0)
		WEFT_ASSERT(errno == EAGAIN);
}

static void clear_event(int fd)
{
	uint64_t count;

	if (read(fd, &count, sizeof(count)) < 0)
		WEFT_ASSERT(errno == EAGAIN);
}

static void socket_kick(struct rt_socket *s)
{
	raise_event(s->kick_fd);
}

/* Rounded up: a wait never ends before its deadline. */
static int ms_until(uint64_t deadline_ns)
{
	uint64_t now;

	if (deadline_ns == RT_FOREVER)
		return -1;
	now = real_now_ns();
	if (deadline_ns <= now)
		return 0;
	return (int)MIN(DIV_UP(deadline_ns - now, NSEC_PER_MSEC), 1000000000u);
}

static int socket_wait(struct rt_socket *s, uint64_t deadline_ns)
{
	struct epoll_event events[2];
	int n = epoll_wait(s->wait_fd, events, 2, ms_until(deadline_ns));

	for (int i = 0; i < n; i++)
		if (events[i].data.u32 == 1)
			clear_event(s->kick_fd);
	return n == 0 ? -ETIMEDOUT : 0;
}

/* ---- pollers ------------------------------------------------------------------------- */

static int poller_open(struct rt_poller **out)
{
	struct epoll_event kick = {.events = EPOLLIN};
	struct rt_poller *p = calloc(1, sizeof(*p));
	int rc;

	if (!p)
		return -ENOMEM;
	p->fd = epoll_create1(EPOLL_CLOEXEC);
	p->kick_fd = eventfd(0, EFD_NONBLOCK | EFD_CLOEXEC);
	if (p->fd < 0 || p->kick_fd < 0 ||
		epoll_ctl(p->fd, EPOLL_CTL_ADD, p->kick_fd, &kick)) {
		rc = -errno;
		if (p->fd >= 0)
			close(p->fd);
		if (p->kick_fd >= 0)
			close(p->kick_fd);
		free(p);
		return rc;
	}
	*out = p;
	return 0;
}

static void poller_close(struct rt_poller *p)
{
	close(p->fd);
	close(p->kick_fd);
	free(p);
}

static struct epoll_event epoll_interest(unsigned events, void *tag)
{
	return (struct epoll_event){
		.events = (events & RT_READABLE ? EPOLLIN : 0u) |
			  (events & RT_WRITABLE ? EPOLLOUT : 0u) | EPOLLEXCLUSIVE,
		.data.ptr = tag,
	};
}

static int poller_add(
	struct rt_poller *p, struct rt_socket *s, unsigned events, void *tag)
{
	struct epoll_event e = epoll_interest(events, tag);

	WEFT_ASSERT(tag);
	return epoll_ctl(p->fd, EPOLL_CTL_ADD, s->fd, &e) ? -errno : 0;
}

static void poller_change(
	struct rt_poller *p, struct rt_socket *s, unsigned events, void *tag)
{
	struct epoll_event e = epoll_interest(events, tag);

	/* An exclusive waiter cannot be modified. */
	WEFT_ASSERT(epoll_ctl(p->fd, EPOLL_CTL_DEL, s->fd, NULL) == 0);
	WEFT_ASSERT(epoll_ctl(p->fd, EPOLL_CTL_ADD, s->fd, &e) == 0);
}

static void poller_remove(struct rt_poller *p, struct rt_socket *s)
{
	WEFT_ASSERT(epoll_ctl(p->fd, EPOLL_CTL_DEL, s->fd, NULL) == 0);
}

static unsigned poller_wait(
	struct rt_poller *p, struct rt_ready *out, unsigned max, uint64_t deadline_ns)
{
	struct epoll_event events[POLL_MAX];
	unsigned found = 0;
	int n = epoll_wait(p->fd, events, (int)MIN(max, POLL_MAX), ms_until(deadline_ns));

	for (int i = 0; i < n; i++) {
		uint32_t e = events[i].events;

		if (!events[i].data.ptr) {
			clear_event(p->kick_fd);
			continue;
		}
		out[found++] = (struct rt_ready){
			.tag = events[i].data.ptr,
			.events = (e & EPOLLIN ? RT_READABLE : 0u) |
				  (e & EPOLLOUT ? RT_WRITABLE : 0u) |
				  (e & (EPOLLERR | EPOLLHUP) ? RT_HANGUP : 0u),
		};
	}
	return found;
}

static void poller_kick(struct rt_poller *p)
{
	raise_event(p->kick_fd);
}

const struct rt_socket_ops rt_real_socket_ops = {
	.resolve = socket_resolve,
	.print = address_print,
	.listen = socket_listen,
	.name = socket_name,
	.peer_name = socket_peer_name,
	.accept = socket_accept,
	.connect = socket_connect,
	.connected = socket_connected,
	.send = socket_send,
	.recv = socket_recv,
	.shutdown = socket_shutdown,
	.close = socket_close,
	.wait = socket_wait,
	.kick = socket_kick,
	.poller_open = poller_open,
	.poller_close = poller_close,
	.poller_add = poller_add,
	.poller_change = poller_change,
	.poller_remove = poller_remove,
	.poller_wait = poller_wait,
	.poller_kick = poller_kick,
};
