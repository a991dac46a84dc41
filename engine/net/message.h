/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A message between two nodes: 64 bytes, little-endian, the same on every transport.
 *
 * The network reads only `sender`. The other fields belong to the protocol that uses it
 * (docs/protocol.md).
 */
#ifndef WEFT_NET_MESSAGE_H
#define WEFT_NET_MESSAGE_H

#include "engine/common/base.h"

#define NET_MESSAGE_BYTES 64u
#define NET_BODY_BYTES    48u

struct net_message {
	uint16_t type;    /* defined by the protocol; 0 is never sent */
	uint16_t sender;  /* node id; net_send fills it in, the receiving end checks it */
	uint32_t request; /* the number of the request it belongs to, given by the requester */
	uint64_t epoch;   /* cluster epoch of the sender */
	union {
		uint8_t body[NET_BODY_BYTES];
		uint64_t words[NET_BODY_BYTES / 8];
	};
} __attribute__((aligned(8)));
_Static_assert(sizeof(struct net_message) == NET_MESSAGE_BYTES, "message size");
_Static_assert(offsetof(struct net_message, body) == 16, "message layout");

#endif
