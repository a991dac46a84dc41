/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The format of everything that travels, to the byte (docs/transports.md): structures, and pure
 * functions that make and check them. Nothing here does I/O. No data from outside is used before a
 * function of this header has checked it (invariant 9).
 */
#ifndef WEFT_NET_WIRE_H
#define WEFT_NET_WIRE_H

#include "engine/net/net.h"

_Static_assert(
	__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "weft needs a little-endian machine");

#define WIRE_VERSION     8u
#define WIRE_MAGIC_BYTES 8u
#define WIRE_HELLO       "WEFTHELO"
#define WIRE_PROOF       "WEFTPROF"
#define WIRE_REFUSE      "WEFTNOPE"
#define WIRE_MEMORY      "WEFTMEMO"
#define WIRE_OFFER       "WEFTRDMA"
#define WIRE_NONCE_BYTES 32u
#define WIRE_MAC_BYTES   32u
#define WIRE_TOKEN_BYTES 16u
#define WIRE_WINDOW      1024u

/* ---- connecting ---------------------------------------------------------------------- */

enum wire_transport { WIRE_TCP = 1, WIRE_SHM = 2, WIRE_VERBS = 3 };

struct wire_hello {
	char magic[WIRE_MAGIC_BYTES];
	uint32_t version;
	uint32_t bytes;
	uint8_t volume_uuid[NET_UUID_BYTES];
	uint8_t cluster_uuid[NET_UUID_BYTES];
	uint8_t node_uuid[NET_UUID_BYTES];
	uint8_t instance[NET_UUID_BYTES];
	uint64_t incarnation;
	int64_t wall_ns;
	uint16_t node;
	uint16_t to_node;
	uint8_t role;
	uint8_t transport;
	uint16_t pad0;
	uint32_t window;
	uint32_t transfer_max;
	uint8_t nonce[WIRE_NONCE_BYTES];
	uint8_t pad1[12];
	uint32_t sum; /* CRC32C of the bytes before it */
};
_Static_assert(sizeof(struct wire_hello) == 160, "hello size");
_Static_assert(offsetof(struct wire_hello, nonce) == 112, "hello layout");

struct wire_proof {
	char magic[WIRE_MAGIC_BYTES];
	uint8_t mac[WIRE_MAC_BYTES];
	uint32_t sum; /* CRC32C of the bytes before it */
};
_Static_assert(sizeof(struct wire_proof) == 44, "proof size");

enum wire_refusal {
	WIRE_OTHER_VERSION = 1,
	WIRE_OTHER_VOLUME,
	WIRE_OTHER_CLUSTER,
	WIRE_UNKNOWN_NODE,
	WIRE_NODE_TAKEN,
	WIRE_STALE,
	WIRE_WRONG_KEY,
	WIRE_CLOCKS,
	WIRE_TOO_MANY,
	WIRE_OTHER_NODE,
	WIRE_OTHER_TRANSPORT,
	WIRE_MALFORMED,
	WIRE_REFUSALS, /* the number of refusals, and one */
};

struct wire_refuse {
	char magic[WIRE_MAGIC_BYTES];
	uint32_t reason; /* enum wire_refusal */
	uint32_t detail;
};
_Static_assert(sizeof(struct wire_refuse) == 16, "refusal size");

/* shm: the descriptors of the memory that the dialer shares come with it. */
struct wire_memory {
	char magic[WIRE_MAGIC_BYTES];
	uint8_t pad[8];
};
_Static_assert(sizeof(struct wire_memory) == 16, "memory size");

/* verbs: the place of the listener's queue pairs, behind its proof. */
struct wire_offer {
	char magic[WIRE_MAGIC_BYTES];
	uint16_t port; /* of rdma_cm, in network order */
	uint8_t pad[6];
	uint8_t token[WIRE_TOKEN_BYTES];
};
_Static_assert(sizeof(struct wire_offer) == 32, "offer size");

struct wire_key {
	uint64_t base;
	uint64_t bytes; /* 0: no such region */
	uint32_t key;
	uint32_t rights; /* NET_REMOTE_* */
	uint64_t pad;
};
_Static_assert(sizeof(struct wire_key) == 32, "key size");

/* verbs: the regions that this end's card lets the other end reach. It is sent last. */
struct wire_keys {
	char magic[WIRE_MAGIC_BYTES]; /* WIRE_MEMORY */
	uint32_t window;
	uint32_t no_atomics;
	struct wire_key region[NET_REGIONS_MAX];
};
_Static_assert(sizeof(struct wire_keys) == 528, "keys size");

#define WIRE_GREETING_MAX sizeof(struct wire_keys)

void wire_hello_make(struct wire_hello *h, const struct net_identity *self,
	const uint8_t instance[NET_UUID_BYTES], uint16_t to_node,
	enum wire_transport transport);
/* Checks the part that needs no knowledge of the peer. Returns 0, or an enum wire_refusal and its
 * detail. `self` is the receiver. */
int wire_hello_check(const struct wire_hello *h, const struct net_identity *self,
	enum wire_transport transport, uint32_t *detail);
/* These check the form alone. Whether the contents are true shows when they are used. */
bool wire_offer_check(const struct wire_offer *o);
bool wire_keys_check(const struct wire_keys *k);
/* Sets the sum of a complete HELLO. */
void wire_hello_seal(struct wire_hello *h);
/* Return true if the structure is as it was sealed. If not, it says nothing about its sender. */
bool wire_hello_whole(const struct wire_hello *h);
bool wire_proof_whole(const struct wire_proof *p);
/* Makes the proof of the dialer or of the listener, over both HELLOs. Returns false if there is no
 * memory. */
bool wire_proof_make(struct wire_proof *p, const uint8_t key[NET_KEY_BYTES],
	bool by_dialer, const struct wire_hello *dialer,
	const struct wire_hello *listener);
bool wire_proof_check(const struct wire_proof *p, const uint8_t key[NET_KEY_BYTES],
	bool by_dialer, const struct wire_hello *dialer,
	const struct wire_hello *listener);
/* HMAC-SHA256 of the label with the cluster's key. */
bool wire_derive(
	uint8_t out[WIRE_MAC_BYTES], const uint8_t key[NET_KEY_BYTES], const char *label);
/* The negative errno of a refusal; -EPROTO for an unknown one. */
int wire_refusal_code(uint32_t reason);
/* Writes a text for operators: the fault, and how to mend it. `theirs`: the other end refused this
 * one. With WIRE_OTHER_VERSION the detail is the other end's version in either case. */
void wire_refusal_text(
	char *out, size_t size, uint32_t reason, uint32_t detail, bool theirs);

/* ---- frames of tcp ---------------------------------------------------------------------- */

enum wire_type {
	WIRE_MESSAGE = 1,
	WIRE_WRITE,
	WIRE_READ,
	WIRE_READ_REPLY,
	WIRE_ATOMIC,
	WIRE_ATOMIC_REPLY,
	WIRE_PING,
	WIRE_BYE,
	WIRE_RUN,
	WIRE_TYPES,
};

struct wire_frame {
	uint8_t type; /* enum wire_type */
	uint8_t pad;
	uint16_t credits;
	uint32_t bytes;     /* that follow */
	uint32_t fixed_sum; /* CRC32C of the bytes that follow, up to the data */
	uint32_t head_sum;  /* CRC32C of the bytes before it */
};
_Static_assert(sizeof(struct wire_frame) == 16, "frame size");
_Static_assert(offsetof(struct wire_frame, head_sum) == 12, "frame layout");

struct wire_write {
	uint32_t region;
	uint32_t pad;
	uint64_t offset;
};

struct wire_read {
	uint32_t op;
	uint32_t region;
	uint64_t offset;
	uint32_t length;
	uint32_t pad;
};

struct wire_read_reply {
	uint32_t op;
	uint32_t status;
};

enum wire_atomic_kind { WIRE_CAS = 1, WIRE_FAA = 2 };

struct wire_atomic {
	uint32_t op;
	uint32_t region;
	uint64_t offset;
	uint32_t kind; /* enum wire_atomic_kind */
	uint32_t pad;
	uint64_t compare;
	uint64_t operand;
};

struct wire_atomic_reply {
	uint32_t op;
	uint32_t status;
	uint64_t value;
};

struct wire_bye {
	uint32_t reason;
};

/* A whole BYE, as it travels. */
struct wire_last {
	struct wire_frame head;
	struct wire_bye bye;
};
_Static_assert(sizeof(struct wire_last) == 20, "BYE size");

/*
 * A run: `count` messages, packed. If `length` is not 0, a write of so many bytes comes before each
 * message. The offsets of all writes precede the messages, and their bytes follow the messages. A
 * run has the meaning of its single frames. But messages of pages in a row take fewer bytes, and
 * the receiver knows the place of the data before it arrives.
 */
#define WIRE_RUN_MAX       64u
#define WIRE_RUN_BYTES_MAX 65536u /* of one write */
struct wire_run {
	uint32_t count;
	uint32_t region;
	uint32_t length; /* of each write; 0: there are none */
	uint32_t packed; /* bytes of the messages */
};

/* ---- packed messages ---------------------------------------------------------------------- */

/*
 * A message is packed against the one before it. A byte has a bit for each of its eight words that
 * is not as expected. Then come these words. The expected words are those of the message before.
 * But the number of the request is greater by one, and so is the third word, a page's id. The first
 * message of a pack is packed against zeros.
 */
#define WIRE_PACKED_MAX (1u + NET_MESSAGE_BYTES)

/* Packs the message to `out`, which has room for WIRE_PACKED_MAX bytes. Returns the number of
 * bytes. `last`: the message before, or zeros; it becomes this one. */
unsigned wire_pack(uint8_t *out, struct net_message *last, const struct net_message *m);
/* Unpacks the first message of `bytes` bytes into `last`. Returns the number of bytes that it took;
 * 0: they are too few. */
unsigned wire_unpack(const uint8_t *in, size_t bytes, struct net_message *last);
/* Returns true if a message may come from this node. */
static inline bool wire_message_check(const struct net_message *m, uint16_t sender)
{
	return m->type != 0 && m->sender == sender;
}

_Static_assert(sizeof(struct wire_write) == 16, "write size");
_Static_assert(sizeof(struct wire_read) == 24, "read size");
_Static_assert(sizeof(struct wire_read_reply) == 8, "read reply size");
_Static_assert(sizeof(struct wire_atomic) == 40, "atomic size");
_Static_assert(sizeof(struct wire_atomic_reply) == 16, "atomic reply size");
_Static_assert(sizeof(struct wire_run) == 16, "run size");

#define WIRE_FIXED_MAX sizeof(struct net_message)

/* Bytes after the frame's header that are neither data nor entries of a run. */
static inline uint32_t wire_fixed_bytes(uint8_t type)
{
	switch (type) {
	case WIRE_MESSAGE:
		return sizeof(struct net_message);
	case WIRE_WRITE:
		return sizeof(struct wire_write);
	case WIRE_READ:
		return sizeof(struct wire_read);
	case WIRE_READ_REPLY:
		return sizeof(struct wire_read_reply);
	case WIRE_ATOMIC:
		return sizeof(struct wire_atomic);
	case WIRE_ATOMIC_REPLY:
		return sizeof(struct wire_atomic_reply);
	case WIRE_BYE:
		return sizeof(struct wire_bye);
	case WIRE_RUN:
		return sizeof(struct wire_run);
	default:
		return 0;
	}
}

/* Sets the sums of a complete frame. `fixed`: the bytes that follow it, without data. */
void wire_frame_seal(struct wire_frame *f, const void *fixed, uint32_t fixed_bytes);
struct wire_last wire_last_make(uint32_t reason);
/* Returns true if the frame's own bytes are as they were sealed. */
bool wire_head_whole(const struct wire_frame *f);
/* Returns true if the bytes that follow it are as they were sealed. */
bool wire_fixed_whole(
	const struct wire_frame *f, const void *fixed, uint32_t fixed_bytes);
/* The frame is of a known type, and its length is one that this type may have. */
bool wire_frame_check(const struct wire_frame *f);
/* The `fixed` bytes that follow the header of a checked frame are well formed. */
bool wire_fixed_check(const struct wire_frame *f, const void *fixed, uint16_t sender);
/* Returns the number of bytes between the header of a run and its data: offsets and messages. */
static inline uint32_t wire_run_head(const struct wire_run *r)
{
	return (r->length ? r->count * (uint32_t)sizeof(uint64_t) : 0) + r->packed;
}
/* A region of that size and those rights allows the access. */
bool wire_access_check(uint64_t region_bytes, unsigned rights, unsigned wanted,
	uint64_t offset, uint64_t length);

#endif
