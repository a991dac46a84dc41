/* SPDX-License-Identifier: Apache-2.0 */
/* The tcp transport with TLS: what every transport must do, and who is refused. */
#include "engine/rt/rt_socket.h"
#include "tests/unit/net_conformance.h"

static const char *test_listen_address(void)
{
	return "127.0.0.1:0";
}

static void run_real(void **state)
{
	int (**run)(void *) = *state;

	assert_int_equal((*run)(NULL), 0);
}

static int tls_on_one_end_is_refused(void *arg)
{
	struct pair p = {end_new(1), end_new(2)};

	p.a->options.tls = false;
	expect_refusal(&p, 0, -EPROTOTYPE);
	p = (struct pair){end_new(1), end_new(2)};
	p.b->options.tls = false;
	expect_refusal(&p, 0, -EPROTOTYPE);
	return 0;
}

static int a_wrong_tls_key_is_refused(void *arg)
{
	struct pair p = {end_new(1), end_new(2)};

	p.b->options.key[0] ^= 1;
	expect_refusal(&p, 0, -EKEYREJECTED);
	return 0;
}

static _Atomic uint32_t told_garbage, told_key;

static void count_lines(int level, const char *line)
{
	if (strstr(line, "a connection from 127.0.0.1:") &&
		strstr(line, "does not speak weft's protocol"))
		atomic_fetch_add(&told_garbage, 1);
	if (strstr(line, "key"))
		atomic_fetch_add(&told_key, 1);
}

/* What does not begin like TLS has no key that could be wrong. */
static int garbage_is_no_wrong_key(void *arg)
{
	struct pair p = pair_up();
	void (*sink)(int, const char *) = weft_log_sink;
	struct rt_address at;
	struct rt_socket *s;
	uint8_t said[] = "GET / HTTP/1.0\r\n\r\n";
	struct iovec iov = {said, sizeof(said)};
	int rc;

	weft_log_sink = count_lines;
	CHECK(rt_address_resolve(&at, p.a->address, NULL) == 0);
	CHECK(rt_socket_connect(&s, &at) == 0);
	while ((rc = rt_socket_connected(s)) == -EINPROGRESS)
		rt_sleep_ns(MS / 10);
	CHECK(rc == 0 && rt_socket_send(s, &iov, 1) == (ssize_t)sizeof(said));
	while (rt_socket_recv(s, &iov, 1) == -EAGAIN)
		rt_socket_wait(s, rt_now_ns() + MS);
	rt_socket_close(s);
	pair_down(&p);
	weft_log_sink = sink;
	CHECK(told_garbage == 1 && told_key == 0);
	return 0;
}

/* What goes over the wire between the two, through a middleman, shows nothing of it. */
struct middleman {
	struct rt_socket *listener;
	char address[NET_ADDRESS_BYTES], to[NET_ADDRESS_BYTES];
	_Atomic uint32_t stop;
	bool seen_marker, changes;
	uint64_t bytes;
};

#define MARKER "a secret that is easily found"

static void pass_on(struct middleman *m, struct rt_socket *from, struct rt_socket *to)
{
	static uint8_t buffer[65536];
	struct iovec iov = {buffer, sizeof(buffer)};
	ssize_t n = rt_socket_recv(from, &iov, 1);

	if (n <= 0)
		return;
	m->bytes += (uint64_t)n;
	m->seen_marker |= memmem(buffer, (size_t)n, MARKER, sizeof(MARKER) - 1) != NULL;
	if (m->changes && m->bytes > 20000)
		buffer[n / 2] ^= 1;
	iov.iov_len = (size_t)n;
	while (iov.iov_len) {
		ssize_t sent = rt_socket_send(to, &iov, 1);

		if (sent < 0 && sent != -EAGAIN)
			return;
		if (sent > 0) {
			iov.iov_base = (uint8_t *)iov.iov_base + sent;
			iov.iov_len -= (size_t)sent;
		}
	}
}

static void be_between(void *arg)
{
	struct middleman *m = arg;
	struct rt_socket *in = NULL, *out = NULL;
	struct rt_address at;

	CHECK(rt_address_resolve(&at, m->to, NULL) == 0);
	while (!atomic_load(&m->stop)) {
		struct rt_socket *fresh;

		if (rt_socket_accept(&fresh, m->listener) == 0) {
			rt_socket_close(in);
			rt_socket_close(out);
			in = fresh;
			CHECK(rt_socket_connect(&out, &at) == 0);
		}
		if (in) {
			pass_on(m, in, out);
			pass_on(m, out, in);
		}
		rt_sleep_ns(MS / 20);
	}
	rt_socket_close(in);
	rt_socket_close(out);
	rt_socket_close(m->listener);
}

static void expect_marker(
	struct end *e, struct net_peer *peer, const struct net_message *m)
{
	CHECK(memcmp(m->body, MARKER, sizeof(MARKER)) == 0);
}

static void through_a_middleman(bool tls, bool changes, struct middleman *m)
{
	struct pair p = {end_new(1), end_new(2)};
	struct net_message secret = {.type = MESSAGE_PLAIN};
	struct rt_address any;
	struct rt_task *task;

	memset(m, 0, sizeof(*m));
	m->changes = changes;
	memcpy(secret.body, MARKER, sizeof(MARKER));
	p.a->options.tls = p.b->options.tls = tls;
	p.a->on_message = expect_marker;
	CHECK(rt_address_resolve(&any, "127.0.0.1:0", NULL) == 0);
	CHECK(rt_socket_listen(&m->listener, &any, NULL) == 0);
	rt_socket_name(m->listener, m->address, sizeof(m->address));
	end_open(p.a);
	end_open(p.b);
	end_add_peer(p.a, 2, NULL);
	end_start(p.a);
	memcpy(m->to, p.a->address, sizeof(m->to));
	CHECK(rt_task_spawn(&task, "between", be_between, m) == 0);
	end_add_peer(p.b, 1, m->address);
	end_start(p.b);
	wait_for(p.b, &p.b->ups, 1);
	if (changes) { /* a changed byte ends the link and is delivered to nobody */
		while (p.a->downs == 0 && send_waiting(p.b->peer, &secret, 0) == 0)
			rt_sleep_ns(MS / 10);
		wait_for(p.a, &p.a->downs, 1);
	} else {
		CHECK(net_send(p.b->peer, &secret, 0) == 0);
		wait_for(p.a, &p.a->messages, 1);
	}
	atomic_store(&m->stop, 1);
	rt_task_join(task);
	pair_down(&p);
}

static int nothing_shows_on_the_wire(void *arg)
{
	struct middleman m;

	through_a_middleman(false, false, &m);
	CHECK(m.seen_marker); /* it would be found */
	through_a_middleman(true, false, &m);
	CHECK(!m.seen_marker && m.bytes > 500);
	through_a_middleman(true, true, &m);
	return 0;
}

static int (*const own[])(void *) = {tls_on_one_end_is_refused,
	a_wrong_tls_key_is_refused, nothing_shows_on_the_wire, garbage_is_no_wrong_key};

int main(int argc, char **argv)
{
	const struct CMUnitTest tests[] = {
		{"tls_on_one_end_is_refused", run_real, NULL, NULL, (void *)&own[0]},
		{"a_wrong_tls_key_is_refused", run_real, NULL, NULL, (void *)&own[1]},
		{"nothing_shows_on_the_wire", run_real, NULL, NULL, (void *)&own[2]},
		{"garbage_is_no_wrong_key", run_real, NULL, NULL, (void *)&own[3]},
	};
	int r;

	rt_real_start();
	test_transport = "tcp";
	test_tls = true;
	test_scale = 4;
	r = conformance_main(run_real, argc > 1 ? argv[1] : NULL);
	return cmocka_run_group_tests(tests, NULL, NULL) || r;
}
