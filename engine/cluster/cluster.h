/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cluster: who its members are, which node is the home of a shard, and which start of
 * each is known.
 *
 * Where members come from is a provider's matter; there is one, the static cluster file
 * (docs/operations.md). What a provider found stays as it is while the cluster is open,
 * but for the epoch, and nodes that are added (cluster_add).
 *
 * The epoch is a vector: for each node the highest incarnation (start) that was heard of.
 * It only rises. What bears a lower incarnation comes from a start that is over.
 */
#ifndef WEFT_CLUSTER_H
#define WEFT_CLUSTER_H

#include "engine/common/format.h"
#include "engine/common/text.h"

/* Ids are 1 .. this; 0 is the node of a volume without a cluster. */
#define CLUSTER_NODE_MAX      DISK_NODE_MAX
#define CLUSTER_NODE_NONE     0u
#define CLUSTER_SHARD_MAX     (CLUSTER_NODE_MAX - 1)
#define CLUSTER_ADDRESSES_MAX 4u
#define CLUSTER_PORT_DEFAULT  9338u /* WEFT on a telephone */
#define CLUSTER_KEY_BYTES     32u
#define CLUSTER_NAME_BYTES    64u  /* with the NUL */
#define CLUSTER_VALUE_BYTES   200u /* of a host or path, with the NUL */
#define CLUSTER_FILE_BYTES    (64u << 10)

enum cluster_role { CLUSTER_STORAGE, CLUSTER_CLIENT };

struct cluster_address {
	char host[CLUSTER_VALUE_BYTES]; /* a name, or an IP address without brackets */
	uint16_t port;
};

struct cluster_member {
	unsigned id; /* 0: no such node */
	enum cluster_role role;
	uint16_t shard;                  /* of a storage node */
	char store[CLUSTER_VALUE_BYTES]; /* absolute path; empty: a client */
	unsigned host; /* of a client: the storage node that has its log */
	unsigned address_count;
	struct cluster_address address[CLUSTER_ADDRESSES_MAX];
	/* lines of the file, for messages; 0: not given */
	unsigned line, role_line, shard_line, store_line, address_line, host_line;
};

struct cluster;
struct sockaddr;
struct sockaddr_storage;

/* What a provider does; what it leaves out answers -EOPNOTSUPP. */
struct cluster_ops {
	const char *kind; /* "file" */
	/*
	 * Where the node can be reached now, best first: the number of addresses, up to
	 * cap, or -errno with a text if none is known. A text also if others are not. Waits
	 * for the name service.
	 */
	int (*resolve)(const struct cluster *c, unsigned node,
		struct sockaddr_storage *out, unsigned cap, struct weft_error *err);
};

/* ---- opening (file.c, host.c) ------------------------------------------------------ */

#define CLUSTER_WITHOUT_KEY (1u << 0) /* for looking only: the key file stays unread */

/* Could this path be a cluster file's? (A store never is: it is larger, or a device.) */
bool cluster_file_is(const char *path);
/* Reads and checks the file, and its key's. Errors say FILE:LINE, section and key. */
int cluster_open(
	struct cluster **out, const char *path, unsigned flags, struct weft_error *err);
/*
 * The same from text, with no key, touching nothing outside. `path` is what messages call
 * it, and where the key file's relative path begins.
 */
int cluster_parse(struct cluster **out, const char *text, size_t length, const char *path,
	struct weft_error *err);
void cluster_close(struct cluster *c);

/* ---- what it says -------------------------------------------------------------------- */

const char *cluster_path(const struct cluster *c); /* of the file */
const char *cluster_name(const struct cluster *c);
const uint8_t *cluster_volume_uuid(const struct cluster *c);
const char *cluster_key_path(const struct cluster *c);
const char *cluster_kind(const struct cluster *c);
/* Do nodes encrypt what they say to each other? */
bool cluster_tls(const struct cluster *c);
/* As net_options has it. */
const char *cluster_transport(const struct cluster *c);
unsigned cluster_nodes(const struct cluster *c);
unsigned cluster_storage_nodes(const struct cluster *c);
/* Bits: their ids. */
uint64_t cluster_node_bits(const struct cluster *c);
/* NULL: no node has this id. The member stays, and stays as it is. */
const struct cluster_member *cluster_member(const struct cluster *c, unsigned node);
/* By rising id; NULL at the end. Begin with NULL. */
const struct cluster_member *cluster_next(
	const struct cluster *c, const struct cluster_member *after);
/* How many clients have their logs with this node. */
unsigned cluster_clients_of(const struct cluster *c, unsigned host);
/* The node that is the home of the shard's pages, or CLUSTER_NODE_NONE. */
unsigned cluster_home(const struct cluster *c, uint16_t shard);

/* ---- a file that was read anew (change.c) ------------------------------------------------ */

/*
 * May what `newer` says be taken in while the volume is in use? 0, with the ids (bits) that are
 * new in *added, all of them clients; -EINVAL with a text that says where it differs in
 * what must stay.
 */
int cluster_compare(const struct cluster *c, const struct cluster *newer, uint64_t *added,
	struct weft_error *err);
/* Takes in a node of those. Others may look meanwhile; one caller at a time. */
void cluster_add(struct cluster *c, const struct cluster *newer, unsigned node);

/* ---- keys (key.c) ---------------------------------------------------------------------- */

/* What nodes prove to each other that they know. NULL if it was not read. */
const uint8_t *cluster_key(const struct cluster *c);
/* The key of the volume's checksums, made from the cluster's. 0, -ENOKEY, -ENOSYS. */
int cluster_volume_key(const struct cluster *c, uint8_t out[CLUSTER_KEY_BYTES]);

/* ---- the epoch ------------------------------------------------------------------------- */

/* The highest start of the node that was heard of; 0: none. */
uint64_t cluster_incarnation(const struct cluster *c, unsigned node);
/*
 * The node says that it is this start. 1: that is news, and a new epoch; 0: known;
 * -ESTALE: a later one is known, so this one is over; -ENOENT: no such node; -EINVAL: 0
 * is no start. Never waits.
 */
int cluster_heard(struct cluster *c, unsigned node, uint64_t incarnation);

/* ---- addresses (host.c) ------------------------------------------------------------------ */

/* HOST:PORT, with brackets around an IPv6 address. */
void cluster_address_print(const struct cluster_address *a, char *out, size_t cap);
/* All of a node's, best first, separated by ", ": as engine/net takes them. */
void cluster_addresses_print(const struct cluster_member *m, char *out, size_t cap);

/* As cluster_ops have it. Where only some could be looked up, err says so as well. */
int cluster_resolve(const struct cluster *c, unsigned node, struct sockaddr_storage *out,
	unsigned cap, struct weft_error *err);
/* Is that an address of this machine? */
bool cluster_address_here(const struct sockaddr *address);
/*
 * Which node this machine is: the one that was said (0: none was), or the one that has this
 * machine's addresses. Its id; -ENOENT: none; -ENOTUNIQ: several. `how` the caller is told
 * the node: "-o node=N". Waits.
 */
int cluster_self(
	const struct cluster *c, unsigned said, const char *how, struct weft_error *err);

#endif
