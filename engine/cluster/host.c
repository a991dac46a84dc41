/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cluster's use of the machine: the two files, the name service, and the machine's addresses.
 * Only at start and from tools. All of it may wait, for as long as the name service takes. The
 * simulator makes its clusters from text, and never calls this file.
 */
#include "engine/cluster/cluster_internal.h"

#include <ifaddrs.h>
#include <netdb.h>
#include <netinet/in.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

#define KEY_FILE_BYTES 256u

/* ---- files ------------------------------------------------------------------------------- */

/* Reads up to cap bytes of a regular file, which `check` has accepted. Returns the length or
 * -errno. */
static int file_read(const char *path, char *out, size_t cap,
	int (*check)(const struct stat *st, const char *path, struct weft_error *err),
	struct weft_error *err)
{
	FILE *f = NULL;
	struct stat st;
	size_t length;
	int rc;

	/* before it is opened: opening a FIFO waits */
	if (stat(path, &st) < 0 || (S_ISREG(st.st_mode) && !(f = fopen(path, "re"))))
		return weft_error(
			err, -errno, "cannot read %s: %s", path, strerrordesc_np(errno));
	if (!f)
		return weft_error(err, -EINVAL, "%s is not a regular file", path);
	rc = fstat(fileno(f), &st) < 0 ? -errno : 0;
	if (!rc && check)
		rc = check(&st, path, err);
	if (!rc) {
		length = fread(out, 1, cap, f);
		rc = ferror(f) ? -EIO : (int)length;
	}
	fclose(f);
	if (rc < 0)
		weft_error(err, rc, "reading %s: %s", path, strerrordesc_np(-rc));
	return rc;
}

/* The same rule as that of ssh for its keys. */
static int key_guarded(const struct stat *st, const char *path, struct weft_error *err)
{
	if (st->st_uid != 0 && st->st_uid != geteuid())
		return weft_error(err, -EACCES,
			"the key file %s belongs to user %u, who may change it: it must "
			"belong to root or to the user who runs weft; chown root %s",
			path, st->st_uid, path);
	if (st->st_mode & 077)
		return weft_error(err, -EACCES,
			"the key file %s may be read by others (mode %04o) and is not "
			"used: chmod 600 %s, and if others may have read it, write a new "
			"cluster",
			path, st->st_mode & 07777, path);
	return 0;
}

/* The file gives the key and the addresses. A user that may write it may choose them. */
static int file_guarded(const struct stat *st, const char *path, struct weft_error *err)
{
	if (st->st_uid != 0 && st->st_uid != geteuid())
		return weft_error(err, -EACCES,
			"the cluster file %s belongs to user %u, who may change it: it must "
			"belong to root or to the user who runs weft; chown root %s",
			path, st->st_uid, path);
	if (st->st_mode & 022)
		return weft_error(err, -EACCES,
			"the cluster file %s may be written by others (mode %04o) and is "
			"not used: look at what it says, then chmod go-w %s",
			path, st->st_mode & 07777, path);
	return 0;
}

static int key_load(struct cluster *c, struct weft_error *err)
{
	char text[KEY_FILE_BYTES];
	int length = file_read(c->key_path, text, sizeof(text) - 1, key_guarded, err);
	int rc;

	if (length < 0)
		return length;
	text[length] = '\0';
	rc = cluster_key_parse(c, text, (size_t)length, c->key_path, err);
	explicit_bzero(text, sizeof(text));
	return rc;
}

bool cluster_file_is(const char *path)
{
	char text[CLUSTER_VALUE_BYTES];
	struct stat st;
	bool found = false, end = false;
	FILE *f;

	if (stat(path, &st) < 0 || !S_ISREG(st.st_mode) ||
		st.st_size > (off_t)CLUSTER_FILE_BYTES)
		return false;
	f = fopen(path, "re");
	if (!f)
		return false;
	while (!end && fgets(text, sizeof(text), f)) {
		const char *p = text + strspn(text, " \t\r\n");

		if (strncmp(p, "\xef\xbb\xbf", 3) == 0)
			p += 3;
		found = *p == '[';
		end = *p && *p != ';' && *p != '#';
	}
	fclose(f);
	return found;
}

int cluster_open(
	struct cluster **out, const char *path, unsigned flags, struct weft_error *err)
{
	const size_t cap = CLUSTER_FILE_BYTES + 1;
	char *text = rt_alloc(cap);
	int rc;

	*out = NULL;
	if (!text)
		return weft_error(err, -ENOMEM, "reading %s: out of memory", path);
	rc = file_read(path, text, cap,
		flags & CLUSTER_WITHOUT_KEY ? NULL : file_guarded, err);
	if (rc >= 0)
		rc = cluster_parse(out, text, (size_t)rc, path, err);
	rt_free(text);
	if (rc || flags & CLUSTER_WITHOUT_KEY)
		return rc;
	rc = key_load(*out, err);
	if (rc) {
		cluster_close(*out);
		*out = NULL;
	}
	return rc;
}

/* ---- addresses ----------------------------------------------------------------------------- */

void cluster_address_print(const struct cluster_address *a, char *out, size_t cap)
{
	bool v6 = strchr(a->host, ':');

	snprintf(out, cap, "%s%s%s:%u", v6 ? "[" : "", a->host, v6 ? "]" : "", a->port);
}

void cluster_addresses_print(
	const struct cluster_member *m, unsigned machine, char *out, size_t cap)
{
	size_t used = 0;

	out[0] = '\0';
	for (unsigned i = 0; i < m->address_count; i++) {
		char one[CLUSTER_VALUE_BYTES + 16];

		if (machine && m->address[i].machine != machine)
			continue;
		cluster_address_print(&m->address[i], one, sizeof(one));
		if (used < cap)
			used += (size_t)snprintf(
				out + used, cap - used, "%s%s", used ? ", " : "", one);
	}
}

static int address_resolve(const struct cluster *c, const struct cluster_member *m,
	const struct cluster_address *a, struct addrinfo **out, struct weft_error *err)
{
	const struct addrinfo hints = {
		.ai_family = AF_UNSPEC,
		.ai_socktype = SOCK_STREAM,
		.ai_flags = AI_NUMERICSERV,
	};
	char port[8], section[32];
	int rc;

	snprintf(port, sizeof(port), "%u", a->port);
	rc = getaddrinfo(a->host, port, &hints, out);
	if (!rc)
		return 0;
	cluster_section_print(m, a->machine, section, sizeof(section));
	cluster_file_error(err, c->path, cluster_address_line(m, a->machine), section, "address",
		"\"%.80s\" does not resolve (%s); mend the name service or /etc/hosts, "
		"or write the node's IP address",
		a->host, rc == EAI_SYSTEM ? strerrordesc_np(errno) : gai_strerror(rc));
	return -EHOSTUNREACH;
}

static int file_resolve(const struct cluster *c, unsigned node, unsigned machine,
	struct sockaddr_storage *out, unsigned cap, struct weft_error *err)
{
	const struct cluster_member *m = &c->member[node];
	unsigned count = 0;
	int unknown = 0;

	for (unsigned i = 0; i < m->address_count; i++) {
		struct addrinfo *found;
		int rc;

		if (machine && m->address[i].machine != machine)
			continue;
		rc = address_resolve(c, m, &m->address[i], &found, err);
		if (rc) {
			unknown = rc;
			continue;
		}
		for (struct addrinfo *ai = found; ai && count < cap; ai = ai->ai_next) {
			if (ai->ai_addrlen > sizeof(out[count]))
				continue;
			memset(&out[count], 0, sizeof(out[count]));
			memcpy(&out[count++], ai->ai_addr, ai->ai_addrlen);
		}
		freeaddrinfo(found);
	}
	return count ? (int)count : unknown;
}

const struct cluster_ops cluster_file_ops = {
	.kind = "file",
	.resolve = file_resolve,
};

/* ---- which node is this? ------------------------------------------------------------------- */

static bool same_ip(const struct sockaddr *a, const struct sockaddr *b)
{
	const struct sockaddr_in *a4 = (const struct sockaddr_in *)a;
	const struct sockaddr_in *b4 = (const struct sockaddr_in *)b;
	const struct sockaddr_in6 *a6 = (const struct sockaddr_in6 *)a;
	const struct sockaddr_in6 *b6 = (const struct sockaddr_in6 *)b;

	if (a->sa_family != b->sa_family)
		return false;
	if (a->sa_family == AF_INET)
		return a4->sin_addr.s_addr == b4->sin_addr.s_addr;
	return a->sa_family == AF_INET6 &&
	       memcmp(&a6->sin6_addr, &b6->sin6_addr, sizeof(a6->sin6_addr)) == 0;
}

static bool is_own(const struct sockaddr *address, const struct ifaddrs *own)
{
	const struct sockaddr_in *in = (const struct sockaddr_in *)address;

	/* all of 127.0.0.0/8 is this machine; its interface has only one of them */
	if (address->sa_family == AF_INET && ntohl(in->sin_addr.s_addr) >> 24 == 127)
		return true;
	for (; own; own = own->ifa_next)
		if (own->ifa_addr && same_ip(address, own->ifa_addr))
			return true;
	return false;
}

bool cluster_address_here(const struct sockaddr *address)
{
	struct ifaddrs *own;
	bool here;

	if (getifaddrs(&own) < 0)
		return false;
	here = is_own(address, own);
	freeifaddrs(own);
	return here;
}

/* Returns 1 if this is the node's machine, 0 if it is not, and -errno if an address does not
 * resolve. */
static int machine_is_here(const struct cluster *c, const struct cluster_member *m,
	unsigned machine, const struct ifaddrs *own, struct weft_error *err)
{
	struct sockaddr_storage address[4 * CLUSTER_ADDRESSES_MAX];
	int count = cluster_resolve(c, m->id, machine, address, ARRAY_SIZE(address), err);

	for (int i = 0; i < count; i++)
		if (is_own((const struct sockaddr *)&address[i], own))
			return 1;
	return MIN(count, 0);
}

int cluster_self(
	const struct cluster *c, unsigned said, const char *how, struct weft_error *err)
{
	const struct cluster_member *m = NULL;
	struct weft_error unknown = {0};
	struct ifaddrs *own;
	unsigned here[2], count = 0;

	if (said && !cluster_member(c, said))
		return weft_error(err, -ENOENT,
			"%s names no node %u; `weft cluster show` lists its nodes",
			c->path, said);
	if (said)
		return (int)said;
	if (getifaddrs(&own) < 0)
		return weft_error(err, -errno, "cannot list this machine's addresses: %s",
			strerrordesc_np(errno));
	while (count < 2 && (m = cluster_next(c, m)))
		if (machine_is_here(c, m, 1, own, &unknown) > 0)
			here[count++] = m->id;
	freeifaddrs(own);
	if (count == 1)
		return (int)here[0];
	if (count)
		return weft_error(err, -ENOTUNIQ,
			"%s: the addresses of nodes %u and %u are all on this machine: "
			"say which is meant, with %s",
			c->path, here[0], here[1], how);
	if (unknown.code)
		return weft_error(err, -ENOENT,
			"none of this machine's addresses is a node's, as far as they "
			"are known: %s. Or say which node this is, with %s",
			unknown.text, how);
	return weft_error(err, -ENOENT,
		"%s: none of this machine's addresses is a node's: say which node this "
		"is, with %s, or mend the file",
		c->path, how);
}

int cluster_machine_here(const struct cluster *c, unsigned node, struct weft_error *err)
{
	const struct cluster_member *m = cluster_member(c, node);
	struct weft_error unknown = {0};
	struct ifaddrs *own;
	unsigned here[2], count = 0;

	if (cluster_machines(m) == 1)
		return 1;
	if (getifaddrs(&own) < 0)
		return weft_error(err, -errno, "cannot list this machine's addresses: %s",
			strerrordesc_np(errno));
	for (unsigned i = 1; i <= CLUSTER_MACHINES_MAX && count < 2; i++)
		if (cluster_has_machine(m, i) &&
			machine_is_here(c, m, i, own, &unknown) > 0)
			here[count++] = i;
	freeifaddrs(own);
	if (count == 1)
		return (int)here[0];
	if (count)
		return weft_error(err, -ENOTUNIQ,
			"%s: node %u: the addresses of its machines %u and %u are both of "
			"this machine: mend the file",
			c->path, node, here[0], here[1]);
	return weft_error(err, -ENOENT,
		"%s:%u: node %u: no address of its %u machines is one of this machine's: "
		"write a section [node %u machine M] with an address of this machine, or "
		"start it on one of those%s%s",
		c->path, m->line, node, cluster_machines(m), node,
		unknown.code ? "; not all are known: " : "", unknown.text);
}

const char *cluster_store_here(const struct cluster *c, unsigned node)
{
	struct weft_error unused = {0};
	int machine = cluster_machine_here(c, node, &unused);

	return cluster_store_at(cluster_member(c, node), machine > 0 ? (unsigned)machine : 1);
}
