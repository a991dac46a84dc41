/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A connection's bytes. They go plain, straight from and to the socket, or by TLS 1.3. In TLS the
 * cluster's key is the pre-shared key, and there are no certificates.
 *
 * TLS turns the caller's bytes into records. They wait in a bounded buffer until the socket takes
 * them. So a caller may offer other bytes next. For each stream, one task at a time is within
 * OpenSSL.
 */
#include "engine/net/connect.h"

#include <errno.h>
#include <openssl/err.h>
#include <openssl/ssl.h>
#include <string.h>

#define RECORD_BYTES 16384u
#define RECORD_EXTRA 512u /* more than TLS adds to a record, and alerts */
#define OUT_BYTES    (4 * (RECORD_BYTES + RECORD_EXTRA))
#define READ_BYTES   65536u
#define PSK_LABEL    "weft/net tls psk"
#define PSK_IDENTITY "weft"
#define CIPHER       "TLS_AES_128_GCM_SHA256"
/* The first byte of a TLS record: its type */
#define TLS_RECORD_FIRST 20
#define TLS_RECORD_LAST  23

struct net_tls {
	SSL *ssl;
	struct rt_socket *socket;
	struct rt_mutex lock; /* all of this */
	bool plain;           /* the other end does not speak TLS */
	bool garbage;         /* it speaks neither TLS nor weft's protocol */
	bool any;             /* bytes have arrived */
	size_t first, end;    /* of out */
	uint8_t out[OUT_BYTES];
};

struct tls_context {
	SSL_CTX *ssl;
	BIO_METHOD *method;
	SSL_SESSION *session; /* the key, in the form for TLS */
};

/* ---- between OpenSSL and the socket ------------------------------------------------------- */

static int bio_write(BIO *bio, const char *from, int length)
{
	struct net_tls *t = BIO_get_data(bio);
	size_t n = MIN((size_t)length, sizeof(t->out) - t->end);

	BIO_clear_retry_flags(bio);
	if (n == 0) {
		BIO_set_retry_write(bio);
		return -1;
	}
	memcpy(t->out + t->end, from, n);
	t->end += n;
	return (int)n;
}

static int bio_read(BIO *bio, char *to, int length)
{
	struct net_tls *t = BIO_get_data(bio);
	struct iovec iov = {to, (size_t)length};
	ssize_t n = rt_socket_recv(t->socket, &iov, 1);

	BIO_clear_retry_flags(bio);
	if (n == -EAGAIN)
		BIO_set_retry_read(bio);
	/* "WEFTHELO" or "WEFTNOPE" */
	if (n > 0 && !t->any) {
		t->any = true;
		t->plain = to[0] == 'W';
		t->garbage = !t->plain &&
			     (to[0] < TLS_RECORD_FIRST || to[0] > TLS_RECORD_LAST);
	}
	return n < 0 ? -1 : (int)n;
}

static long bio_control(BIO *bio, int command, long number, void *pointer)
{
	return command == BIO_CTRL_FLUSH;
}

/* Sends the bytes of the buffer, as far as the socket takes them. Returns 0, or the error of the
 * socket. */
static int push_out(struct net_tls *t)
{
	while (t->first < t->end) {
		struct iovec iov = {t->out + t->first, t->end - t->first};
		ssize_t n = rt_socket_send(t->socket, &iov, 1);

		if (n == -EAGAIN)
			break;
		if (n < 0)
			return (int)n;
		t->first += (size_t)n;
	}
	memmove(t->out, t->out + t->first, t->end - t->first);
	t->end -= t->first;
	t->first = 0;
	return 0;
}

/* ---- bytes -------------------------------------------------------------------------------- */

static ssize_t tls_send(struct net_tls *t, const struct iovec *iov, unsigned count)
{
	size_t total = 0;
	int rc = push_out(t);

	for (unsigned i = 0; i < count && !rc; i++) {
		size_t done = 0;

		while (done < iov[i].iov_len) {
			size_t n = MIN(iov[i].iov_len - done, RECORD_BYTES);

			if (sizeof(t->out) - t->end < n + RECORD_EXTRA) {
				rc = push_out(t);
				if (rc || sizeof(t->out) - t->end < n + RECORD_EXTRA)
					return rc ? rc : total ? (ssize_t)total : -EAGAIN;
			}
			/* The buffer has room for the whole record, so OpenSSL takes all bytes. */
			if (SSL_write_ex(t->ssl, (uint8_t *)iov[i].iov_base + done, n,
				    &n) != 1)
				return -ECONNRESET;
			done += n;
			total += n;
		}
	}
	if (!rc)
		rc = push_out(t);
	return rc ? rc : (ssize_t)total;
}

static ssize_t tls_recv(struct net_tls *t, const struct iovec *iov, unsigned count)
{
	size_t total = 0;

	for (unsigned i = 0; i < count; i++) {
		size_t done = 0, n;

		while (done < iov[i].iov_len) {
			int rc = SSL_read_ex(t->ssl, (uint8_t *)iov[i].iov_base + done,
				iov[i].iov_len - done, &n);

			if (rc == 1) {
				done += n;
				total += n;
				continue;
			}
			rc = SSL_get_error(t->ssl, rc);
			if (push_out(t) || (rc != SSL_ERROR_WANT_READ && total == 0))
				return rc == SSL_ERROR_ZERO_RETURN ? 0 : -ECONNRESET;
			return total ? (ssize_t)total : -EAGAIN;
		}
	}
	return (ssize_t)total;
}

ssize_t net_stream_send(struct net_stream *s, const struct iovec *iov, unsigned count)
{
	ssize_t n;

	if (!s->tls)
		return rt_socket_send(s->socket, iov, count);
	rt_mutex_lock(&s->tls->lock);
	ERR_clear_error();
	n = tls_send(s->tls, iov, count);
	rt_mutex_unlock(&s->tls->lock);
	return n;
}

ssize_t net_stream_recv(struct net_stream *s, const struct iovec *iov, unsigned count)
{
	ssize_t n;

	if (!s->tls)
		return rt_socket_recv(s->socket, iov, count);
	rt_mutex_lock(&s->tls->lock);
	ERR_clear_error();
	n = tls_recv(s->tls, iov, count);
	rt_mutex_unlock(&s->tls->lock);
	return n;
}

bool net_stream_pending(struct net_stream *s)
{
	bool pending;

	if (!s->tls)
		return false;
	rt_mutex_lock(&s->tls->lock);
	pending = s->tls->end > 0;
	rt_mutex_unlock(&s->tls->lock);
	return pending;
}

static void ssl_free(void *arg)
{
	SSL_free(((struct net_tls *)arg)->ssl);
}

void net_tls_drop(struct net_stream *s)
{
	if (!s->tls)
		return;
	rt_on_crash_forget(ssl_free, s->tls);
	ssl_free(s->tls);
	rt_free(s->tls);
	s->tls = NULL;
}

void net_stream_close(struct net_stream *s)
{
	net_tls_drop(s);
	rt_socket_close(s->socket);
	s->socket = NULL;
}

/* ---- beginning ------------------------------------------------------------------------------ */

int net_tls_begin(struct connect_net *net, struct net_stream *s, bool dialer)
{
	struct tls_context *context = net->tls;
	struct net_tls *t = rt_alloc(sizeof(*t));
	BIO *bio;

	if (!t)
		return -ENOMEM;
	t->socket = s->socket;
	t->ssl = SSL_new(context->ssl);
	bio = t->ssl ? BIO_new(context->method) : NULL;
	if (!bio) {
		SSL_free(t->ssl);
		rt_free(t);
		return -ENOMEM;
	}
	BIO_set_data(bio, t);
	BIO_set_init(bio, 1);
	SSL_set_bio(t->ssl, bio, bio);
	if (dialer) {
		SSL_set_connect_state(t->ssl);
		/* No certificate is accepted. */
		SSL_set_verify(t->ssl, SSL_VERIFY_PEER, NULL);
	} else {
		SSL_set_accept_state(t->ssl);
	}
	rt_on_crash(ssl_free, t);
	s->tls = t;
	return 0;
}

int net_tls_shake(struct net_stream *s, unsigned *wanted)
{
	struct net_tls *t = s->tls;
	int rc, error;

	ERR_clear_error();
	rc = SSL_do_handshake(t->ssl);
	error = rc == 1 ? SSL_ERROR_NONE : SSL_get_error(t->ssl, rc);
	if (push_out(t))
		return -ECONNRESET;
	*wanted = RT_READABLE | (t->end ? RT_WRITABLE : 0u);
	if (t->plain)
		return -EPROTOTYPE;
	if (t->garbage)
		return -EPROTO;
	if (error == SSL_ERROR_WANT_READ || (error == SSL_ERROR_NONE && t->end))
		return -EAGAIN;
	if (error == SSL_ERROR_SYSCALL || error == SSL_ERROR_ZERO_RETURN)
		return -ECONNRESET;
	/* Both ends had the key. Otherwise it is another handshake than this one needs. */
	return error == SSL_ERROR_NONE && SSL_session_reused(t->ssl) ? 0 : -EKEYREJECTED;
}

/* ---- the key ----------------------------------------------------------------------------- */

static SSL_SESSION *session_of(const SSL *ssl)
{
	struct tls_context *context = SSL_CTX_get_app_data(SSL_get_SSL_CTX(ssl));

	SSL_SESSION_up_ref(context->session);
	return context->session;
}

static int psk_use(SSL *ssl, const EVP_MD *md, const uint8_t **id, size_t *id_bytes,
	SSL_SESSION **session)
{
	*session = session_of(ssl);
	*id = (const uint8_t *)PSK_IDENTITY;
	*id_bytes = strlen(PSK_IDENTITY);
	return 1;
}

/* Returns 1 without a session: the handshake goes on without the key, and fails. */
static int psk_find(SSL *ssl, const uint8_t *id, size_t id_bytes, SSL_SESSION **session)
{
	*session = NULL;
	if (id_bytes == strlen(PSK_IDENTITY) && !memcmp(id, PSK_IDENTITY, id_bytes))
		*session = session_of(ssl);
	return 1;
}

static bool session_make(struct tls_context *c, const uint8_t key[NET_KEY_BYTES])
{
	static const uint8_t cipher_id[] = {0x13, 0x01};
	uint8_t psk[WIRE_MAC_BYTES];
	SSL *ssl = SSL_new(c->ssl);
	const SSL_CIPHER *cipher = ssl ? SSL_CIPHER_find(ssl, cipher_id) : NULL;
	bool made;

	c->session = SSL_SESSION_new();
	made = cipher && c->session && wire_derive(psk, key, PSK_LABEL) &&
	       SSL_SESSION_set1_master_key(c->session, psk, sizeof(psk)) &&
	       SSL_SESSION_set_cipher(c->session, cipher) &&
	       SSL_SESSION_set_protocol_version(c->session, TLS1_3_VERSION);
	explicit_bzero(psk, sizeof(psk));
	SSL_free(ssl);
	return made;
}

static bool context_make(struct tls_context *c)
{
	c->ssl = SSL_CTX_new(TLS_method());
	c->method = BIO_meth_new(BIO_get_new_index() | BIO_TYPE_SOURCE_SINK, "weft");
	if (!c->ssl || !c->method || !BIO_meth_set_read(c->method, bio_read) ||
		!BIO_meth_set_write(c->method, bio_write) ||
		!BIO_meth_set_ctrl(c->method, bio_control) ||
		!SSL_CTX_set_min_proto_version(c->ssl, TLS1_3_VERSION) ||
		!SSL_CTX_set_max_proto_version(c->ssl, TLS1_3_VERSION) ||
		!SSL_CTX_set_ciphersuites(c->ssl, CIPHER) ||
		!SSL_CTX_set_num_tickets(c->ssl, 0))
		return false;
	SSL_CTX_set_app_data(c->ssl, c);
	SSL_CTX_set_session_cache_mode(c->ssl, SSL_SESS_CACHE_OFF);
	SSL_CTX_set_options(c->ssl, SSL_OP_NO_TICKET | SSL_OP_IGNORE_UNEXPECTED_EOF);
	SSL_CTX_set_psk_use_session_callback(c->ssl, psk_use);
	SSL_CTX_set_psk_find_session_callback(c->ssl, psk_find);
	SSL_CTX_set_read_ahead(c->ssl, 1);
	SSL_CTX_set_default_read_buffer_len(c->ssl, READ_BYTES);
	return true;
}

static void context_free(void *arg)
{
	struct tls_context *c = arg;

	SSL_SESSION_free(c->session);
	SSL_CTX_free(c->ssl);
	BIO_meth_free(c->method);
}

int net_tls_open(struct connect_net *net, struct weft_error *err)
{
	struct tls_context *c = rt_alloc(sizeof(*c));

	if (!c)
		return weft_error(err, -ENOMEM, "no memory for TLS");
	if (!context_make(c) || !session_make(c, net->base.key)) {
		context_free(c);
		rt_free(c);
		return weft_error(err, -EOPNOTSUPP,
			"OpenSSL cannot do TLS 1.3 with " CIPHER " here");
	}
	rt_on_crash(context_free, c);
	net->tls = c;
	return 0;
}

void net_tls_close(struct connect_net *net)
{
	if (!net->tls)
		return;
	rt_on_crash_forget(context_free, net->tls);
	context_free(net->tls);
	rt_free(net->tls);
	net->tls = NULL;
}
