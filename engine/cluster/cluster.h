/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cluster: its members, the home of each shard, and the last known start of each node.
 *
 * A provider finds the members. There is one provider, the static cluster file
 * (docs/operations.md). The members do not change while the cluster is open, except by cluster_add.
 * The epoch changes.
 *
 * The epoch is a vector: for each node the highest incarnation (start) that was heard of. It only
 * rises. A lower incarnation belongs to a start that is over.
 */
#ifndef WEFT_CLUSTER_H
#define WEFT_CLUSTER_H

#include "engine/common/format.h"
#include "engine/common/text.h"

/* Ids are 1 .. this; 0 is the node of a volume without a cluster. */
#define CLUSTER_NODE_MAX      DISK_NODE_MAX
#define CLUSTER_NODE_NONE     0u
#define CLUSTER_SHARD_MAX     (CLUSTER_NODE_MAX - 1)
#define CLUSTER_ADDRESSES_MAX 4u /* of all machines of a node together */
#define CLUSTER_MACHINES_MAX  4u
#define CLUSTER_PORT_DEFAULT  9338u /* WEFT on a telephone */
#define CLUSTER_KEY_BYTES     32u
#define CLUSTER_NAME_BYTES    64u  /* with the NUL */
#define CLUSTER_VALUE_BYTES   200u /* of a host or path, with the NUL */
#define CLUSTER_FILE_BYTES    (64u << 10)

enum cluster_role { CLUSTER_STORAGE, CLUSTER_CLIENT };

struct cluster_address {
	char host[CLUSTER_VALUE_BYTES]; /* a name, or an IP address without brackets */
	uint16_t port;
	unsigned machine; /* the number of the machine that has it, from 1 */
};

/* A further machine that may run the node: [node N machine M]. */
struct cluster_machine {
	unsigned line; /* of its section; 0: there is no such machine */
	char store[CLUSTER_VALUE_BYTES]; /* empty: the same path as at [node N] */
	uint64_t cache_bytes;            /* 0: as at [node N] */
	/* lines of the file, for messages; 0: not given */
	unsigned address_line, store_line, cache_line;
};

struct cluster_member {
	unsigned id; /* 0: no such node */
	enum cluster_role role;
	uint16_t shard;                  /* of a storage node */
	char store[CLUSTER_VALUE_BYTES]; /* absolute path; empty: a client */
	unsigned host;                   /* of a client: the storage node that has its log */
	unsigned address_count;
	/* those of all its machines, in the order of the file */
	struct cluster_address address[CLUSTER_ADDRESSES_MAX];
	uint64_t cache_bytes; /* 0: not given */
	/* by number, from 2. Machine 1 is that of [node N] itself. */
	struct cluster_machine machine[CLUSTER_MACHINES_MAX + 1];
	/* lines of the file, for messages; 0: not given */
	unsigned line, role_line, shard_line, store_line, address_line, host_line, cache_line;
};

struct cluster;
struct sockaddr;
struct sockaddr_storage;

/* The functions of a provider; a missing one answers -EOPNOTSUPP. */
struct cluster_ops {
	const char *kind; /* "file" */
	/*
	 * Gives the addresses where the node can be reached now, best first. With a machine that
	 * is not 0, those of this machine alone. Returns their number, up to cap, or -errno with a
	 * text if none is known. Also writes a text if some are not known. Waits for the name
	 * service.
	 */
	int (*resolve)(const struct cluster *c, unsigned node, unsigned machine,
		struct sockaddr_storage *out, unsigned cap, struct weft_error *err);
};

/* ---- opening (file.c, host.c) ------------------------------------------------------ */

#define CLUSTER_WITHOUT_KEY (1u << 0) /* for inspection only: the key file stays unread */

/* Returns true if this path may be a cluster file's. (A store never is: it is larger, or a
 * device.) */
bool cluster_file_is(const char *path);
/* Reads and checks the file, and its key's. Returns 0 or a negative errno with a text: FILE:LINE,
 * section and key. */
int cluster_open(
	struct cluster **out, const char *path, unsigned flags, struct weft_error *err);
/* The same from text, with no key and no access to anything outside. Messages give `path` as the
 * file's name. The key file's relative path begins there, too. */
int cluster_parse(struct cluster **out, const char *text, size_t length, const char *path,
	struct weft_error *err);
void cluster_close(struct cluster *c);

/* ---- its contents ----------------------------------------------------------------------- */

const char *cluster_path(const struct cluster *c); /* of the file */
const char *cluster_name(const struct cluster *c);
const uint8_t *cluster_volume_uuid(const struct cluster *c);
const char *cluster_key_path(const struct cluster *c);
const char *cluster_kind(const struct cluster *c);
/* Returns true if nodes encrypt their messages. */
bool cluster_tls(const struct cluster *c);
/* As net_options has it. */
const char *cluster_transport(const struct cluster *c);
unsigned cluster_nodes(const struct cluster *c);
unsigned cluster_storage_nodes(const struct cluster *c);
/* Bits: their ids. */
uint64_t cluster_node_bits(const struct cluster *c);
/* Returns the member, or NULL if no node has this id. The member never moves or changes. */
const struct cluster_member *cluster_member(const struct cluster *c, unsigned node);
/* Returns the next member by rising id; NULL at the end. Begin with NULL. */
const struct cluster_member *cluster_next(
	const struct cluster *c, const struct cluster_member *after);
/* Returns the number of clients with their logs at this node. */
unsigned cluster_clients_of(const struct cluster *c, unsigned host);
/* Returns the number of machines that may run the node: 1 or more. */
unsigned cluster_machines(const struct cluster_member *m);
/* Returns true if the node has this machine. */
bool cluster_has_machine(const struct cluster_member *m, unsigned machine);
/* Returns the path of the node's store on this machine. */
const char *cluster_store_at(const struct cluster_member *m, unsigned machine);
/* Returns the size of the node's cache on this machine; 0: the file does not say it. */
uint64_t cluster_cache_at(const struct cluster_member *m, unsigned machine);
/* Returns the home of the shard's pages, or CLUSTER_NODE_NONE. */
unsigned cluster_home(const struct cluster *c, uint16_t shard);

/* ---- a file that was read anew (change.c) ------------------------------------------------ */

/*
 * Checks that the changes of `newer` can be added while the volume is in use. Returns 0, with a map
 * of the new nodes in *added, all of them clients. Returns -EINVAL with a text that names a change
 * which is not allowed.
 */
int cluster_compare(const struct cluster *c, const struct cluster *newer, uint64_t *added,
	struct weft_error *err);
/* Adds one of these nodes. Other tasks may read meanwhile; one caller at a time. */
void cluster_add(struct cluster *c, const struct cluster *newer, unsigned node);

/* ---- keys (key.c) ---------------------------------------------------------------------- */

/* Returns the key with which nodes prove their membership. NULL if it was not read. */
const uint8_t *cluster_key(const struct cluster *c);
/* Makes the key of the volume's checksums from the cluster's. Returns 0, -ENOKEY or -ENOSYS. */
int cluster_volume_key(const struct cluster *c, uint8_t out[CLUSTER_KEY_BYTES]);

/* ---- the epoch ------------------------------------------------------------------------- */

/* Returns the highest known start of the node; 0: none. */
uint64_t cluster_incarnation(const struct cluster *c, unsigned node);
/*
 * Notes that the node is in this start. Never waits. Returns 1 if it is new (a new epoch), or 0 if
 * it is known. Returns -ESTALE if a later start is known, -ENOENT if there is no such node, or
 * -EINVAL for start 0.
 */
int cluster_heard(struct cluster *c, unsigned node, uint64_t incarnation);

/* ---- addresses (host.c) ------------------------------------------------------------------ */

/* HOST:PORT, with brackets around an IPv6 address. */
void cluster_address_print(const struct cluster_address *a, char *out, size_t cap);
/* Those of a node on this machine, best first, separated by ", ": as engine/net takes them. Machine
 * 0: those of all its machines, in the order of the file. */
void cluster_addresses_print(
	const struct cluster_member *m, unsigned machine, char *out, size_t cap);

/* Resolves a node's addresses, as cluster_ops.resolve. If some could not be resolved, err says
 * so. */
int cluster_resolve(const struct cluster *c, unsigned node, unsigned machine,
	struct sockaddr_storage *out, unsigned cap, struct weft_error *err);
/* Returns true if this is an address of this machine. */
bool cluster_address_here(const struct sockaddr *address);
/*
 * Finds the node that this machine is. That is the given one (0: none is given), or the one whose
 * section [node N] has this machine's addresses. A node that may also run here must be given.
 * Returns its id; -ENOENT: none; -ENOTUNIQ: several. `how` is how the caller is given the node:
 * "-o node=N". Waits.
 */
int cluster_self(
	const struct cluster *c, unsigned said, const char *how, struct weft_error *err);
/*
 * Finds which of the node's machines this one is, by its addresses. A node with one machine is not
 * looked for, since its address may be translated on the way. Returns its number; -ENOENT: none;
 * -ENOTUNIQ: several. Waits.
 */
int cluster_machine_here(const struct cluster *c, unsigned node, struct weft_error *err);
/* Returns the path of the node's store on this machine, or, if no section names this machine, the
 * one in [node N]. Waits. */
const char *cluster_store_here(const struct cluster *c, unsigned node);

#endif
