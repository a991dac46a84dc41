/* SPDX-License-Identifier: Apache-2.0 */
/* Makes and checks the structures that travel; see wire.h. */
#include "engine/net/wire.h"

#include <errno.h>
#include <openssl/crypto.h>
#include <openssl/evp.h>
#include <openssl/hmac.h>
#include <stdio.h>
#include <string.h>

#include "engine/common/crc32c.h"
#include "engine/rt/rt.h"

#define LABEL_BYTES 16u

static const char label_dialer[LABEL_BYTES] = "weft/net dialer";
static const char label_listener[LABEL_BYTES] = "weft/net listen";

/* ---- connecting ------------------------------------------------------------------------ */

void wire_hello_make(struct wire_hello *h, const struct net_identity *self,
	const uint8_t instance[NET_UUID_BYTES], uint16_t to_node,
	enum wire_transport transport)
{
	*h = (struct wire_hello){
		.version = WIRE_VERSION,
		.bytes = sizeof(*h),
		.incarnation = self->incarnation,
		.wall_ns = rt_wall_ns(),
		.node = self->node,
		.to_node = to_node,
		.role = self->role,
		.transport = (uint8_t)transport,
		.window = WIRE_WINDOW,
		.transfer_max = NET_TRANSFER_MAX,
	};
	memcpy(h->magic, WIRE_HELLO, sizeof(h->magic));
	memcpy(h->volume_uuid, self->volume_uuid, NET_UUID_BYTES);
	memcpy(h->cluster_uuid, self->cluster_uuid, NET_UUID_BYTES);
	memcpy(h->node_uuid, self->node_uuid, NET_UUID_BYTES);
	memcpy(h->instance, instance, NET_UUID_BYTES);
	rt_random_bytes(h->nonce, sizeof(h->nonce));
	wire_hello_seal(h);
}

static uint32_t hello_sum(const struct wire_hello *h)
{
	return crc32c(h, offsetof(struct wire_hello, sum));
}

static uint32_t proof_sum(const struct wire_proof *p)
{
	return crc32c(p, offsetof(struct wire_proof, sum));
}

void wire_hello_seal(struct wire_hello *h)
{
	h->sum = hello_sum(h);
}

bool wire_hello_whole(const struct wire_hello *h)
{
	return h->sum == hello_sum(h);
}

bool wire_proof_whole(const struct wire_proof *p)
{
	return p->sum == proof_sum(p);
}

static bool hello_well_formed(const struct wire_hello *h)
{
	return h->bytes == sizeof(*h) && h->node < NET_NODES_MAX &&
	       (h->role == NET_ROLE_STORAGE || h->role == NET_ROLE_CLIENT) &&
	       h->pad0 == 0 && bytes_are_zero(h->pad1, sizeof(h->pad1)) && h->window > 0 &&
	       h->window <= UINT16_MAX && h->transfer_max == NET_TRANSFER_MAX &&
	       !bytes_are_zero(h->node_uuid, sizeof(h->node_uuid));
}

int wire_hello_check(const struct wire_hello *h, const struct net_identity *self,
	enum wire_transport transport, uint32_t *detail)
{
	*detail = 0;
	if (memcmp(h->magic, WIRE_HELLO, sizeof(h->magic)))
		return WIRE_MALFORMED;
	if (h->version != WIRE_VERSION) {
		*detail = WIRE_VERSION;
		return WIRE_OTHER_VERSION;
	}
	if (h->transport != transport)
		return WIRE_OTHER_TRANSPORT;
	if (!hello_well_formed(h))
		return WIRE_MALFORMED;
	if (memcmp(h->cluster_uuid, self->cluster_uuid, NET_UUID_BYTES))
		return WIRE_OTHER_CLUSTER;
	if (memcmp(h->volume_uuid, self->volume_uuid, NET_UUID_BYTES))
		return WIRE_OTHER_VOLUME;
	if (h->to_node != self->node) {
		*detail = self->node;
		return WIRE_OTHER_NODE;
	}
	return h->node == self->node ? WIRE_NODE_TAKEN : 0;
}

bool wire_derive(
	uint8_t out[WIRE_MAC_BYTES], const uint8_t key[NET_KEY_BYTES], const char *label)
{
	unsigned length = 0;

	return HMAC(EVP_sha256(), key, NET_KEY_BYTES, (const uint8_t *)label,
		       strlen(label), out, &length) &&
	       length == WIRE_MAC_BYTES;
}

bool wire_proof_make(struct wire_proof *p, const uint8_t key[NET_KEY_BYTES],
	bool by_dialer, const struct wire_hello *dialer,
	const struct wire_hello *listener)
{
	uint8_t text[LABEL_BYTES + 2 * sizeof(*dialer)];
	unsigned length = 0;

	memcpy(text, by_dialer ? label_dialer : label_listener, LABEL_BYTES);
	memcpy(text + LABEL_BYTES, dialer, sizeof(*dialer));
	memcpy(text + LABEL_BYTES + sizeof(*dialer), listener, sizeof(*listener));
	memcpy(p->magic, WIRE_PROOF, sizeof(p->magic));
	if (!HMAC(EVP_sha256(), key, NET_KEY_BYTES, text, sizeof(text), p->mac,
		    &length) ||
		length != WIRE_MAC_BYTES)
		return false;
	p->sum = proof_sum(p);
	return true;
}

bool wire_proof_check(const struct wire_proof *p, const uint8_t key[NET_KEY_BYTES],
	bool by_dialer, const struct wire_hello *dialer,
	const struct wire_hello *listener)
{
	struct wire_proof right;

	return wire_proof_make(&right, key, by_dialer, dialer, listener) &&
	       CRYPTO_memcmp(p->mac, right.mac, sizeof(right.mac)) == 0;
}

static const struct {
	int code;
	const char *ours, *theirs;
} refusals[WIRE_REFUSALS] = {
	[WIRE_OTHER_VERSION] = {-EPROTONOSUPPORT, NULL, NULL}, /* the text has both versions,
							        * below */
	[WIRE_OTHER_VOLUME] = {-EXDEV,
		"it belongs to another volume: check the store and the cluster file "
		"there",
		"it belongs to another volume: check its address in the cluster file"},
	[WIRE_OTHER_CLUSTER] = {-EXDEV,
		"it belongs to another cluster: check the cluster file there",
		"it belongs to another cluster: check its address in the cluster file"},
	[WIRE_UNKNOWN_NODE] = {-ENOENT, "no node of that id is in the cluster file",
		"it does not know this node: copy this cluster file there, and run `weft "
		"cluster reload`"},
	[WIRE_NODE_TAKEN] = {-EADDRINUSE,
		"another node already has that id: give each node an id of its own",
		"another node already has this node's id: give each node an id of its "
		"own"},
	[WIRE_STALE] = {-ESTALE,
		"a later start of that node was seen: it runs twice, or its store is an "
		"old copy",
		"it has seen a later start of this node: this one runs twice, or its "
		"store is "
		"an old copy"},
	[WIRE_WRONG_KEY] = {-EKEYREJECTED,
		"it does not have this cluster's key: copy the key to that node",
		"the key does not match: copy the cluster's key to this node"},
	[WIRE_CLOCKS] = {-ETIME, "its clock differs by %u s: set the clocks",
		"the clocks differ by %u s: set the clocks"},
	[WIRE_TOO_MANY] = {-EBUSY, "there are too many connections",
		"it has too many connections: it is tried again"},
	[WIRE_OTHER_NODE] = {-EADDRNOTAVAIL,
		"it looks for another node here: check this node's address in the "
		"cluster file",
		"node %u answers there: check the address in the cluster file"},
	[WIRE_OTHER_TRANSPORT] = {-EPROTOTYPE,
		"it uses another transport, or TLS on one end only: check the cluster "
		"file",
		"it uses another transport, or TLS on one end only: check the cluster "
		"file"},
	[WIRE_MALFORMED] = {-EPROTO, "it sends a malformed message",
		"it received a malformed message from this node"},
};

int wire_refusal_code(uint32_t reason)
{
	return reason && reason < WIRE_REFUSALS ? refusals[reason].code : -EPROTO;
}

void wire_refusal_text(
	char *out, size_t size, uint32_t reason, uint32_t detail, bool theirs)
{
	const char *text = "it refuses for a reason unknown here", *at;

	if (reason == WIRE_OTHER_VERSION) {
		snprintf(out, size,
			"it speaks version %u of the protocol, this node version %u: "
			"run the same weft on all nodes",
			detail, WIRE_VERSION);
		return;
	}
	if (reason && reason < WIRE_REFUSALS)
		text = theirs ? refusals[reason].theirs : refusals[reason].ours;
	at = strstr(text, "%u");
	if (at)
		snprintf(out, size, "%.*s%u%s", (int)(at - text), text, detail, at + 2);
	else
		snprintf(out, size, "%s", text);
}

bool wire_offer_check(const struct wire_offer *o)
{
	static const uint8_t zeros[sizeof(o->pad)];

	return !memcmp(o->magic, WIRE_OFFER, sizeof(o->magic)) && o->port &&
	       !memcmp(o->pad, zeros, sizeof(zeros));
}

bool wire_keys_check(const struct wire_keys *k)
{
	if (memcmp(k->magic, WIRE_MEMORY, sizeof(k->magic)) != 0 || k->window == 0 ||
		k->window > UINT16_MAX || k->no_atomics > 1)
		return false;
	for (unsigned i = 0; i < NET_REGIONS_MAX; i++) {
		const struct wire_key *r = &k->region[i];

		if (r->pad || r->base + r->bytes < r->base ||
			(r->rights & ~(NET_REMOTE_READ | NET_REMOTE_WRITE |
					     NET_REMOTE_ATOMIC)))
			return false;
		if (!r->bytes && (r->base || r->key || r->rights))
			return false;
		if ((r->rights & NET_REMOTE_ATOMIC) && r->base % 8)
			return false;
	}
	return true;
}

/* ---- frames ---------------------------------------------------------------------------- */

static uint32_t head_sum(const struct wire_frame *f)
{
	return crc32c(f, offsetof(struct wire_frame, head_sum));
}

void wire_frame_seal(struct wire_frame *f, const void *fixed, uint32_t fixed_bytes)
{
	f->fixed_sum = crc32c(fixed, fixed_bytes);
	f->head_sum = head_sum(f);
}

struct wire_last wire_last_make(uint32_t reason)
{
	struct wire_last last = {
		.head = {.type = WIRE_BYE, .bytes = sizeof(struct wire_bye)},
		.bye = {.reason = reason},
	};

	wire_frame_seal(&last.head, &last.bye, sizeof(last.bye));
	return last;
}

bool wire_head_whole(const struct wire_frame *f)
{
	return f->head_sum == head_sum(f);
}

bool wire_fixed_whole(const struct wire_frame *f, const void *fixed, uint32_t fixed_bytes)
{
	return f->fixed_sum == crc32c(fixed, fixed_bytes);
}

bool wire_frame_check(const struct wire_frame *f)
{
	uint32_t fixed;

	if (f->type == 0 || f->type >= WIRE_TYPES || f->pad)
		return false;
	fixed = wire_fixed_bytes(f->type);
	if (f->type == WIRE_WRITE)
		return f->bytes > fixed && f->bytes <= fixed + NET_TRANSFER_MAX;
	if (f->type == WIRE_READ_REPLY)
		return f->bytes >= fixed && f->bytes <= fixed + NET_TRANSFER_MAX;
	if (f->type == WIRE_RUN)
		return f->bytes > fixed;
	return f->bytes == fixed;
}

static bool run_check(const struct wire_frame *f, const struct wire_run *r)
{
	return r->count >= 2 && r->count <= WIRE_RUN_MAX && r->packed >= r->count &&
	       r->packed <= r->count * WIRE_PACKED_MAX && r->length <= WIRE_RUN_BYTES_MAX &&
	       (r->length > 0 || r->region == 0) &&
	       f->bytes == sizeof(*r) + wire_run_head(r) + r->count * (uint64_t)r->length;
}

/* ---- packed messages ---------------------------------------------------------------------- */

#define WORDS       (NET_MESSAGE_BYTES / sizeof(uint64_t))
#define WORD_HEAD   0 /* type, sender, and the number of the request in the upper half */
#define WORD_PAGE   2
#define REQUEST_ONE (1ull << 32)

static void words_expect(uint64_t words[WORDS])
{
	words[WORD_HEAD] += REQUEST_ONE;
	words[WORD_PAGE]++;
}

unsigned wire_pack(uint8_t *out, struct net_message *last, const struct net_message *m)
{
	uint64_t expected[WORDS], words[WORDS];
	uint8_t *at = out + 1;

	memcpy(expected, last, sizeof(expected));
	memcpy(words, m, sizeof(words));
	words_expect(expected);
	out[0] = 0;
	for (unsigned i = 0; i < WORDS; i++) {
		if (words[i] == expected[i])
			continue;
		out[0] |= (uint8_t)(1u << i);
		memcpy(at, &words[i], sizeof(words[i]));
		at += sizeof(words[i]);
	}
	*last = *m;
	return (unsigned)(at - out);
}

unsigned wire_unpack(const uint8_t *in, size_t bytes, struct net_message *last)
{
	uint64_t words[WORDS];
	unsigned at = 1;

	if (!bytes || bytes < 1 + sizeof(uint64_t) * (unsigned)__builtin_popcount(in[0]))
		return 0;
	memcpy(words, last, sizeof(words));
	words_expect(words);
	for (unsigned i = 0; i < WORDS; i++) {
		if (!(in[0] & 1u << i))
			continue;
		memcpy(&words[i], in + at, sizeof(words[i]));
		at += sizeof(words[i]);
	}
	memcpy(last, words, sizeof(words));
	return at;
}

static bool status_known(uint32_t status)
{
	return status == 0 || status == EACCES;
}

bool wire_fixed_check(const struct wire_frame *f, const void *fixed, uint16_t sender)
{
	union {
		struct net_message message;
		struct wire_write write;
		struct wire_read read;
		struct wire_read_reply read_reply;
		struct wire_atomic atomic;
		struct wire_atomic_reply atomic_reply;
		struct wire_bye bye;
		struct wire_run run;
	} u = {0};

	memcpy(&u, fixed, wire_fixed_bytes(f->type));
	switch (f->type) {
	case WIRE_MESSAGE:
		return wire_message_check(&u.message, sender);
	case WIRE_WRITE:
		return u.write.pad == 0;
	case WIRE_READ:
		return u.read.pad == 0 && u.read.op < NET_OPS_MAX && u.read.length > 0 &&
		       u.read.length <= NET_TRANSFER_MAX;
	case WIRE_READ_REPLY:
		return u.read_reply.op < NET_OPS_MAX &&
		       status_known(u.read_reply.status) &&
		       (u.read_reply.status == 0) == (f->bytes > sizeof(u.read_reply));
	case WIRE_ATOMIC:
		return u.atomic.pad == 0 && u.atomic.op < NET_OPS_MAX &&
		       (u.atomic.kind == WIRE_CAS ||
			       (u.atomic.kind == WIRE_FAA && u.atomic.compare == 0));
	case WIRE_ATOMIC_REPLY:
		return u.atomic_reply.op < NET_OPS_MAX &&
		       status_known(u.atomic_reply.status) &&
		       (u.atomic_reply.status == 0 || u.atomic_reply.value == 0);
	case WIRE_BYE:
		return status_known(u.bye.reason);
	case WIRE_RUN:
		return run_check(f, &u.run);
	default:
		return true;
	}
}

bool wire_access_check(uint64_t region_bytes, unsigned rights, unsigned wanted,
	uint64_t offset, uint64_t length)
{
	return (rights & wanted) == wanted && length <= region_bytes &&
	       offset <= region_bytes - length &&
	       (!(wanted & NET_REMOTE_ATOMIC) || offset % 8 == 0);
}
