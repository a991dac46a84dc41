/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What travels to the byte (docs/protocol.md, "Transports"): structures, and pure
 * functions that make and check them. Nothing here does I/O; nothing from outside is used
 * before a function of this header has looked at it (invariant 9).
 */
#ifndef WEFT_NET_WIRE_H
#define WEFT_NET_WIRE_H

#include "engine/net/net.h"

_Static_assert(
	__BYTE_ORDER__ == __ORDER_LITTLE_ENDIAN__, "weft needs a little-endian machine");

#define WIRE_VERSION     4u
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
	uint32_t sum; /* CRC32C of what stands before it */
};
_Static_assert(sizeof(struct wire_hello) == 160, "hello size");
_Static_assert(offsetof(struct wire_hello, nonce) == 112, "hello layout");

struct wire_proof {
	char magic[WIRE_MAGIC_BYTES];
	uint8_t mac[WIRE_MAC_BYTES];
	uint32_t sum; /* CRC32C of what stands before it */
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
	WIRE_REFUSALS, /* how many there are, and one */
};

struct wire_refuse {
	char magic[WIRE_MAGIC_BYTES];
	uint32_t reason; /* enum wire_refusal */
	uint32_t detail;
};
_Static_assert(sizeof(struct wire_refuse) == 16, "refusal size");

/* shm: with it come descriptors of what the dialer shares. */
struct wire_memory {
	char magic[WIRE_MAGIC_BYTES];
	uint8_t pad[8];
};
_Static_assert(sizeof(struct wire_memory) == 16, "memory size");

/* verbs: where the listener's queue pairs are to be had, behind its proof. */
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

/* verbs: what this end's card lets the other reach, last. */
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
/*
 * What does not depend on what is known of the peer: 0, or an enum wire_refusal and its
 * detail. `self` is the receiver.
 */
int wire_hello_check(const struct wire_hello *h, const struct net_identity *self,
	enum wire_transport transport, uint32_t *detail);
/* What is well formed in them; whether it is true shows when it is used. */
bool wire_offer_check(const struct wire_offer *o);
bool wire_keys_check(const struct wire_keys *k);
/* Sets the sum of a HELLO that is complete. */
void wire_hello_seal(struct wire_hello *h);
/* Return true if it is as it was sealed. If not, it says nothing of who sent it. */
bool wire_hello_whole(const struct wire_hello *h);
bool wire_proof_whole(const struct wire_proof *p);
/* By the dialer or by the listener, over both. false: out of memory. */
bool wire_proof_make(struct wire_proof *p, const uint8_t key[NET_KEY_BYTES],
	bool by_dialer, const struct wire_hello *dialer,
	const struct wire_hello *listener);
bool wire_proof_check(const struct wire_proof *p, const uint8_t key[NET_KEY_BYTES],
	bool by_dialer, const struct wire_hello *dialer,
	const struct wire_hello *listener);
/* HMAC-SHA256 of the label with the cluster's key. */
bool wire_derive(
	uint8_t out[WIRE_MAC_BYTES], const uint8_t key[NET_KEY_BYTES], const char *label);
/* The negative errno of a refusal; -EPROTO for one that is not known. */
int wire_refusal_code(uint32_t reason);
/*
 * For people: what is wrong and what to do; `theirs`: the other end refused us. WIRE_OTHER_VERSION: the
 * detail is the other end's version, whoever refuses.
 */
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
	uint32_t fixed_sum; /* CRC32C of what follows, up to the data */
	uint32_t head_sum;  /* CRC32C of what stands before it */
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
 * Writes of one length to one region, each with a message behind it: `count` entries, then
 * the bytes of all. It says what the frames would say one by one, but where the bytes go
 * is known before they come.
 */
#define WIRE_RUN_MAX       64u
#define WIRE_RUN_BYTES_MAX 65536u /* of one write */
struct wire_run {
	uint32_t count;
	uint32_t region;
	uint32_t length; /* of each write */
	uint32_t pad;
};

struct wire_run_entry {
	uint64_t offset;
	struct net_message message;
};

_Static_assert(sizeof(struct wire_write) == 16, "write size");
_Static_assert(sizeof(struct wire_read) == 24, "read size");
_Static_assert(sizeof(struct wire_read_reply) == 8, "read reply size");
_Static_assert(sizeof(struct wire_atomic) == 40, "atomic size");
_Static_assert(sizeof(struct wire_atomic_reply) == 16, "atomic reply size");
_Static_assert(sizeof(struct wire_run) == 16, "run size");
_Static_assert(sizeof(struct wire_run_entry) == 72, "run entry size");

#define WIRE_FIXED_MAX sizeof(struct net_message)

/* Bytes after the frame's header that are no data, and no entries of a run. */
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

/* Sets the sums of a frame that is complete. `fixed`: what follows it, without data. */
void wire_frame_seal(struct wire_frame *f, const void *fixed, uint32_t fixed_bytes);
struct wire_last wire_last_make(uint32_t reason);
/* Returns true if the frame's own bytes are as they were sealed. */
bool wire_head_whole(const struct wire_frame *f);
/* Returns true if what follows it is as it was sealed. */
bool wire_fixed_whole(
	const struct wire_frame *f, const void *fixed, uint32_t fixed_bytes);
/* The frame is of a known type, and of a length that this type may have. */
bool wire_frame_check(const struct wire_frame *f);
/* What follows the header of a checked frame, `fixed` bytes of it, is well formed. */
bool wire_fixed_check(const struct wire_frame *f, const void *fixed, uint16_t sender);
/* An entry of a run that is well formed. */
bool wire_entry_check(const struct wire_run_entry *e, uint16_t sender);
/* A region of that size and those rights allows it. */
bool wire_access_check(uint64_t region_bytes, unsigned rights, unsigned wanted,
	uint64_t offset, uint64_t length);

#endif
