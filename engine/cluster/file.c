/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The static cluster file: text to members. docs/operations.md has the format.
 *
 * libinih splits lines into keys and values. It accepts some mistakes in silence, and no mistake in
 * this file must go unnoticed. So the reader that feeds it refuses lines that are too long, and
 * control characters. It refuses sections that occur twice or are empty, and text behind a
 * section's bracket. The reader also counts lines, and removes the blanks before them. libinih
 * would take such a line for the continuation of a value.
 *
 * This file uses nothing but the text (invariant 9). An error's text has the line, section and key,
 * and the way to mend it.
 */
#include "engine/cluster/parse_internal.h"

#include <ctype.h>
#include <ini.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#define PATH_SHOWN      160u
#define CACHE_MIN_BYTES (1ull << 20)

int cluster_file_error(struct weft_error *err, const char *path, unsigned line,
	const char *section, const char *key, const char *fmt, ...)
{
	size_t length = strlen(path);
	char text[320];
	va_list args;

	va_start(args, fmt);
	vsnprintf(text, sizeof(text), fmt, args);
	va_end(args);
	/* A path that would leave no room for the rest is cut at its beginning. */
	if (length > PATH_SHOWN)
		path += length - PATH_SHOWN;
	line = MAX(line, 1);
	if (!section)
		return weft_error(err, -EINVAL, "%s:%u: %s", path, line, text);
	return weft_error(err, -EINVAL, "%s:%u: [%s]%s%s: %s", path, line, section,
		key ? " " : "", key ? key : "", text);
}

void cluster_section_print(
	const struct cluster_member *m, unsigned machine, char *out, size_t cap)
{
	if (machine > 1)
		snprintf(out, cap, "node %u machine %u", m->id, machine);
	else
		snprintf(out, cap, "node %u", m->id);
}

/* ---- values -------------------------------------------------------------------------- */

/* A whole number from low to high, in digits only. */
static bool bounded_parse(const char *text, unsigned low, unsigned high, unsigned *out)
{
	unsigned value = 0;

	if (!*text || strlen(text) > 5)
		return false;
	for (; *text; text++) {
		if (*text < '0' || *text > '9')
			return false;
		value = value * 10 + (unsigned)(*text - '0');
	}
	*out = value;
	return value >= low && value <= high;
}

static bool is_word(char c)
{
	return (c >= '0' && c <= '9') || (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z');
}

static bool name_valid(const char *name)
{
	if (!is_word(name[0]) || strlen(name) >= CLUSTER_NAME_BYTES)
		return false;
	for (; *name; name++)
		if (!is_word(*name) && !strchr(".-_", *name))
			return false;
	return true;
}

/* A name of DNS, or an address of IPv4 or IPv6, by its characters. */
static bool host_valid(const char *host)
{
	if (!*host || *host == '-' || *host == '.')
		return false;
	for (; *host; host++)
		if (!is_word(*host) && !strchr(".-_:%", *host))
			return false;
	return true;
}

/* HOST, HOST:PORT, [IPV6], [IPV6]:PORT. Two colons and no bracket: IPv6. Cuts `text`. */
static bool address_parse(char *text, struct cluster_address *out, unsigned machine)
{
	char *port = NULL, *host = text, *colon = strchr(text, ':');
	unsigned number = CLUSTER_PORT_DEFAULT;

	if (*text == '[') {
		char *bracket = strchr(text, ']');

		if (!bracket || (bracket[1] && bracket[1] != ':'))
			return false;
		*bracket = '\0';
		host = text + 1;
		port = bracket[1] ? bracket + 2 : NULL;
		if (!strchr(host, ':'))
			return false;
	} else if (colon && !strchr(colon + 1, ':')) {
		*colon = '\0';
		port = colon + 1;
	}
	if (!host_valid(host) || strlen(host) >= sizeof(out->host))
		return false;
	if (port && !bounded_parse(port, 1, 65535, &number))
		return false;
	strcpy(out->host, host);
	out->port = (uint16_t)number;
	out->machine = machine;
	return true;
}

/* ---- [volume] -------------------------------------------------------------------------- */

/* Notes the line of a key. Returns false, with an error, if the key was there before. */
static bool key_is_first(struct parse *p, const char *key, unsigned *line)
{
	if (*line) {
		WRONG(p, key, "is there twice, here and in line %u; remove one of them",
			*line);
		return false;
	}
	*line = p->line;
	return true;
}

static void volume_uuid(struct parse *p, const char *value)
{
	static const uint8_t nil[UUID_BYTES];

	if (!uuid_parse(value, p->c->volume_uuid) ||
		memcmp(p->c->volume_uuid, nil, sizeof(nil)) == 0)
		WRONG(p, "uuid",
			"\"%.40s\" is not a UUID; write the one that `weft cluster new` "
			"made, like uuid = 0d4f6f0e-6d8c-4c1f-9a57-0f5f3c0f2b11",
			value);
}

/* A relative path begins at the folder of the cluster file. */
static void volume_key_path(struct parse *p, const char *value)
{
	struct cluster *c = p->c;
	const char *slash = strrchr(c->path, '/');
	int folder = *value == '/' || !slash ? 0 : (int)(slash + 1 - c->path);
	int n = snprintf(
		c->key_path, sizeof(c->key_path), "%.*s%s", folder, c->path, value);

	if (n < 0 || (size_t)n >= sizeof(c->key_path))
		WRONG(p, "key", "the path is too long");
}

static void volume_tls(struct parse *p, const char *value)
{
	if (strcmp(value, "yes") == 0)
		p->c->tls = true;
	else if (strcmp(value, "no") != 0)
		WRONG(p, "tls", "\"%.40s\" is neither yes nor no; write one of them",
			value);
}

static void volume_transport(struct parse *p, const char *value)
{
	if (strcmp(value, "verbs") == 0)
		p->c->verbs = true;
	else if (strcmp(value, "tcp") != 0)
		WRONG(p, "transport",
			"\"%.40s\" is not a transport; write tcp, or verbs for RDMA",
			value);
}

static void volume_set(struct parse *p, const char *key, const char *value)
{
	if (strcmp(key, "name") == 0) {
		if (!key_is_first(p, key, &p->c->name_line))
			return;
		if (name_valid(value))
			strcpy(p->c->name, value);
		else
			WRONG(p, key,
				"\"%.70s\" is not a name; write 1 to %u letters, digits, "
				"'.', '-' and '_', a letter or digit first",
				value, CLUSTER_NAME_BYTES - 1);
	} else if (strcmp(key, "uuid") == 0) {
		if (key_is_first(p, key, &p->c->uuid_line))
			volume_uuid(p, value);
	} else if (strcmp(key, "key") == 0) {
		if (key_is_first(p, key, &p->c->key_line))
			volume_key_path(p, value);
	} else if (strcmp(key, "tls") == 0) {
		if (key_is_first(p, key, &p->c->tls_line))
			volume_tls(p, value);
	} else if (strcmp(key, "transport") == 0) {
		if (key_is_first(p, key, &p->c->transport_line))
			volume_transport(p, value);
	} else {
		WRONG(p, key,
			"is unknown; the keys of [volume] are name, uuid, key, tls and "
			"transport");
	}
}

static void volume_end(struct parse *p)
{
	const char *missing = !p->c->name_line   ? "name"
			      : !p->c->uuid_line ? "uuid"
			      : !p->c->key_line  ? "key"
						 : NULL;

	if (missing)
		WRONG_AT(p, p->section_line, missing,
			"is missing; write it below this line, like %s",
			!p->c->name_line   ? "name = scratch"
			: !p->c->uuid_line ? "uuid = (what `weft cluster new` made)"
					   : "key = scratch.key");
	if (p->c->tls && p->c->verbs)
		WRONG_AT(p, p->c->tls_line, "tls",
			"RDMA is not encrypted; write no, or transport = tcp");
}

/* ---- [node N] ---------------------------------------------------------------------------- */

static void node_addresses(struct parse *p, const char *value)
{
	struct cluster_member *m = p->member;
	char copy[CLUSTER_VALUE_BYTES];
	unsigned before = m->address_count;
	char *rest = copy, *word;

	snprintf(copy, sizeof(copy), "%s", value);
	while (!p->rc && (word = strsep(&rest, ", \t"))) {
		char said[CLUSTER_VALUE_BYTES];

		if (!*word)
			continue;
		snprintf(said, sizeof(said), "%s", word);
		if (m->address_count == CLUSTER_ADDRESSES_MAX)
			WRONG(p, "address",
				"has more than %u addresses%s; remove some",
				CLUSTER_ADDRESSES_MAX,
				p->machine > 1 ? ", with those of the node's other machines"
					       : "");
		else if (!address_parse(word, &m->address[m->address_count++], p->machine))
			WRONG(p, "address",
				"\"%.80s\" is not an address; write HOST, HOST:PORT or "
				"[IPV6]:PORT, with a port from 1 to 65535",
				said);
	}
	if (!p->rc && m->address_count == before)
		WRONG(p, "address", "names no host; write it like address = alpha");
}

static void node_role(struct parse *p, const char *value)
{
	if (strcmp(value, "client") == 0)
		p->member->role = CLUSTER_CLIENT;
	else if (strcmp(value, "storage") == 0)
		p->member->role = CLUSTER_STORAGE;
	else
		WRONG(p, "role", "\"%.40s\" is not a role; write storage or client",
			value);
}

static void node_store(struct parse *p, const char *value)
{
	if (*value != '/' || value[1] == '\0')
		WRONG(p, "store",
			"\"%.80s\" is not an absolute path; write it like store = "
			"/dev/nvme0n1p4",
			value);
	else
		snprintf(p->machine > 1 ? p->member->machine[p->machine].store
					: p->member->store,
			CLUSTER_VALUE_BYTES, "%s", value);
}

static void node_cache(struct parse *p, const char *value)
{
	uint64_t bytes;

	if (size_parse(value, &bytes) < 0 || bytes < CACHE_MIN_BYTES)
		WRONG(p, "cache",
			"\"%.40s\" is not a size of 1M or more; write it like cache = 4G",
			value);
	else
		*(p->machine > 1 ? &p->member->machine[p->machine].cache_bytes
				 : &p->member->cache_bytes) =
			bytes & ~(uint64_t)(PAGE_SIZE - 1);
}

static void node_shard(struct parse *p, const char *value)
{
	unsigned shard;

	if (bounded_parse(value, 0, CLUSTER_SHARD_MAX, &shard))
		p->member->shard = (uint16_t)shard;
	else
		WRONG(p, "shard", "\"%.40s\" is not a shard; write a number from 0 to %u",
			value, CLUSTER_SHARD_MAX);
}

static void node_host(struct parse *p, const char *value)
{
	if (!bounded_parse(value, 1, CLUSTER_NODE_MAX, &p->member->host))
		WRONG(p, "host", "\"%.40s\" is not a node; write a number from 1 to %u",
			value, CLUSTER_NODE_MAX);
}

static void node_set(struct parse *p, const char *key, const char *value)
{
	struct cluster_member *m = p->member;
	const struct {
		const char *key;
		unsigned *line;
		void (*set)(struct parse *p, const char *value);
	} keys[] = {
		{"role", &m->role_line, node_role},
		{"address", &m->address_line, node_addresses},
		{"store", &m->store_line, node_store},
		{"shard", &m->shard_line, node_shard},
		{"host", &m->host_line, node_host},
		{"cache", &m->cache_line, node_cache},
	};

	for (size_t i = 0; i < ARRAY_SIZE(keys); i++) {
		if (strcmp(key, keys[i].key) == 0) {
			if (key_is_first(p, key, keys[i].line))
				keys[i].set(p, value);
			return;
		}
	}
	WRONG(p, key,
		"is unknown; the keys of [node N] are role, address, store, shard, host "
		"and cache");
}

static void machine_set(struct parse *p, const char *key, const char *value)
{
	struct cluster_machine *at = &p->member->machine[p->machine];

	if (strcmp(key, "address") == 0) {
		if (key_is_first(p, key, &at->address_line))
			node_addresses(p, value);
	} else if (strcmp(key, "store") == 0) {
		if (key_is_first(p, key, &at->store_line))
			node_store(p, value);
	} else if (strcmp(key, "cache") == 0) {
		if (key_is_first(p, key, &at->cache_line))
			node_cache(p, value);
	} else {
		WRONG(p, key,
			"is unknown here; the keys of [node N machine M] are address, store "
			"and cache, and all others are in [node N]");
	}
}

static void machine_end(struct parse *p)
{
	const struct cluster_machine *at = &p->member->machine[p->machine];

	if (!at->address_line)
		WRONG_AT(p, at->line, "address",
			"is missing; write it below this line, like address = beta");
	else if (p->member->role == CLUSTER_CLIENT)
		WRONG_AT(p, at->line, NULL,
			"node %u is a client, which has no store that another machine could "
			"serve; remove this section, or write a client of its own for that "
			"machine",
			p->member->id);
}

static void node_end(struct parse *p)
{
	struct cluster_member *m = p->member;

	if (!m->address_line)
		WRONG_AT(p, m->line, "address",
			"is missing; write it below this line, like address = alpha");
	else if (m->role == CLUSTER_STORAGE && !m->store_line)
		WRONG_AT(p, m->line, "store",
			"is missing; write it below this line, like store = "
			"/dev/nvme0n1p4, or role = client");
	else if (m->role == CLUSTER_CLIENT && m->store_line)
		WRONG_AT(p, m->store_line, "store",
			"a client has none; remove this line, or write role = storage");
	else if (m->role == CLUSTER_CLIENT && m->shard_line)
		WRONG_AT(p, m->shard_line, "shard",
			"a client has none; remove this line, or write role = storage");
	else if (m->role == CLUSTER_STORAGE && m->host_line)
		WRONG_AT(p, m->host_line, "host",
			"a storage node has its own log; remove this line, or write role "
			"= client");
	if (m->role == CLUSTER_CLIENT)
		m->shard = DISK_SHARD_CLIENT(m->id);
	else if (!m->shard_line)
		m->shard = (uint16_t)(m->id - 1);
}

/* ---- sections ---------------------------------------------------------------------------- */

static void section_end(struct parse *p)
{
	if (p->rc)
		return;
	if (p->section == SECTION_VOLUME)
		volume_end(p);
	else if (p->section == SECTION_NODE)
		node_end(p);
	else if (p->section == SECTION_MACHINE)
		machine_end(p);
}

static void node_begin(struct parse *p, unsigned id)
{
	p->member = &p->c->member[id];
	p->machine = 1;
	if (p->member->id)
		WRONG(p, NULL,
			"[node %u] is there twice, here and in line %u; give one "
			"of them another id",
			id, p->member->line);
	p->member->id = id;
	p->member->line = p->line;
	p->section = SECTION_NODE;
	cluster_section_print(p->member, 1, p->section_name, sizeof(p->section_name));
	cluster_member_is_there(p->c, id);
}

static void machine_begin(struct parse *p, unsigned id, unsigned machine)
{
	struct cluster_member *m = &p->c->member[id];

	p->member = m;
	p->machine = machine;
	if (!m->id)
		WRONG(p, NULL,
			"[node %u machine %u] stands above [node %u], or there is no such "
			"section; write [node %u] first, which is its machine 1",
			id, machine, id, id);
	else if (m->machine[machine].line)
		WRONG(p, NULL,
			"[node %u machine %u] is there twice, here and in line %u; give one "
			"of them another number",
			id, machine, m->machine[machine].line);
	m->machine[machine].line = p->line;
	p->section = SECTION_MACHINE;
	cluster_section_print(m, machine, p->section_name, sizeof(p->section_name));
}

/* "node N", "node N machine M". Returns false if it is neither. */
static bool node_name_parse(const char *name, unsigned *id, unsigned *machine)
{
	char words[CLUSTER_VALUE_BYTES], *rest = words, *word[4];
	unsigned count = 0;

	snprintf(words, sizeof(words), "%s", name);
	while (rest && count < ARRAY_SIZE(word)) {
		word[count] = strsep(&rest, " ");
		count += *word[count] != '\0';
	}
	*machine = 1;
	if (rest || (count != 2 && count != 4) || strcmp(word[0], "node") != 0 ||
		!bounded_parse(word[1], 1, CLUSTER_NODE_MAX, id))
		return false;
	return count == 2 || (strcmp(word[2], "machine") == 0 &&
				     bounded_parse(word[3], 2, CLUSTER_MACHINES_MAX, machine));
}

static void section_begin(struct parse *p, const char *name)
{
	unsigned id, machine;

	p->section = SECTION_NONE; /* messages name the line only */
	if (strcmp(name, "volume") == 0) {
		if (p->c->volume_line)
			WRONG(p, NULL,
				"[volume] is there twice, here and in line %u; remove "
				"one of them",
				p->c->volume_line);
		p->c->volume_line = p->line;
		p->section = SECTION_VOLUME;
		strcpy(p->section_name, "volume");
	} else if (node_name_parse(name, &id, &machine)) {
		if (machine == 1)
			node_begin(p, id);
		else
			machine_begin(p, id, machine);
	} else {
		WRONG(p, NULL,
			"section [%.60s] is unknown; write [volume], [node N] with N from "
			"1 to %u, or [node N machine M] with M from 2 to %u",
			name, CLUSTER_NODE_MAX, CLUSTER_MACHINES_MAX);
	}
	p->section_line = p->line;
}

/* "[name]", then only blanks or a comment. */
static void section_line(struct parse *p, const char *line)
{
	const char *bracket = strchr(line, ']');
	const char *behind = bracket ? bracket + 1 + strspn(bracket + 1, " \t\r\n") : "x";
	char name[CLUSTER_VALUE_BYTES];

	section_end(p);
	if (p->rc)
		return;
	p->section = SECTION_NONE;
	if (!bracket || (*behind && *behind != ';' && *behind != '#')) {
		WRONG(p, NULL,
			"is not a section; write [volume] or [node N], and nothing "
			"behind it");
		return;
	}
	snprintf(name, sizeof(name), "%.*s", (int)(bracket - line - 1), line + 1);
	section_begin(p, name);
}

/* ---- lines ------------------------------------------------------------------------------- */

static bool line_is_text(const char *line, size_t length)
{
	for (size_t i = 0; i < length; i++) {
		unsigned char c = (unsigned char)line[i];

		if (c == 0x7f || (c < 0x20 && c != '\t' && c != '\n' &&
					 !(c == '\r' && i + 2 >= length)))
			return false;
	}
	return true;
}

/* libinih's fgets: one line, without the blanks before it. NULL ends the file. */
static char *line_read(char *out, int cap, void *stream)
{
	struct parse *p = stream;
	const char *begin = p->next, *stop;
	/* the newline and the NUL take one each */
	size_t line_max = MIN((size_t)cap, CLUSTER_VALUE_BYTES) - 2;
	size_t length;

	if (p->rc || begin == p->end)
		return NULL;
	p->line++;
	stop = memchr(begin, '\n', (size_t)(p->end - begin));
	stop = stop ? stop + 1 : p->end;
	p->next = stop;
	length = (size_t)(stop - begin);
	if (length - (stop[-1] == '\n') > line_max) {
		WRONG(p, NULL, "the line is longer than %zu bytes", line_max);
		return NULL;
	}
	if (!line_is_text(begin, length)) {
		WRONG(p, NULL, "the line has control characters: this is not text");
		return NULL;
	}
	while (length && (*begin == ' ' || *begin == '\t')) {
		begin++;
		length--;
	}
	memcpy(out, begin, length);
	out[length] = '\0';
	if (*out == '[')
		section_line(p, out);
	return p->rc ? NULL : out;
}

static int key_read(void *user, const char *section, const char *key, const char *value)
{
	struct parse *p = user;

	if (p->section == SECTION_NONE)
		WRONG(p, NULL, "\"%.60s\" is in no section; write [volume] above it",
			key);
	else if (!*key)
		WRONG(p, NULL, "there is no key before the '='");
	else if (!*value)
		WRONG(p, key, "is empty; write its value, or remove the line");
	else if (p->section == SECTION_VOLUME)
		volume_set(p, key, value);
	else if (p->section == SECTION_MACHINE)
		machine_set(p, key, value);
	else
		node_set(p, key, value);
	return p->rc == 0;
}

/* ---- the whole ----------------------------------------------------------------------------- */

static void map_make(struct parse *p)
{
	struct cluster *c = p->c;
	const struct cluster_member *m = NULL;

	while ((m = cluster_next(c, m))) {
		if (m->role != CLUSTER_STORAGE)
			continue;
		c->home[m->shard] = (uint8_t)m->id;
		c->storage_nodes++;
	}
	p->section = SECTION_NONE;
	if (!c->storage_nodes)
		WRONG(p, NULL,
			"no node has a store; write a section [node 1] with an address "
			"and a store");
	else if (c->home[0] == CLUSTER_NODE_NONE)
		WRONG(p, NULL,
			"no node has shard 0, which holds the root directory; write "
			"shard = 0 into the section of the node whose store has it");
}

/* If a client names no host, the first storage node has its log. */
static void hosts_find(struct parse *p)
{
	const struct cluster_member *m = NULL, *first = NULL;

	while ((m = cluster_next(p->c, m)))
		if (!first && m->role == CLUSTER_STORAGE)
			first = m;
	for (unsigned id = 1; id <= CLUSTER_NODE_MAX && !p->rc; id++) {
		struct cluster_member *client = &p->c->member[id];
		const struct cluster_member *host;

		if (!client->id || client->role != CLUSTER_CLIENT)
			continue;
		if (!client->host)
			client->host = first->id;
		host = cluster_member(p->c, client->host);
		p->section = SECTION_NODE;
		snprintf(p->section_name, sizeof(p->section_name), "node %u", id);
		if (!host || host->role != CLUSTER_STORAGE)
			WRONG_AT(p, client->host_line, "host",
				"node %u %s; name a storage node, whose store has the "
				"client's log",
				client->host, host ? "is a client" : "is not there");
	}
	p->section = SECTION_NONE;
}

static int parse_all(struct parse *p)
{
	int bad_line = ini_parse_stream(line_read, p, key_read, p);

	/* libinih's own complaint. Later errors may follow from it. */
	if (bad_line > 0 && (unsigned)bad_line != p->wrong_line) {
		p->err->code = 0;
		return cluster_file_error(p->err, p->c->path, (unsigned)bad_line, NULL,
			NULL,
			"is neither [SECTION] nor KEY = VALUE; comments begin with ;");
	}
	if (!p->rc && bad_line < 0)
		return weft_error(
			p->err, -ENOMEM, "reading %s: out of memory", p->c->path);
	section_end(p);
	p->section = SECTION_NONE;
	if (!p->rc && !p->c->volume_line)
		WRONG(p, NULL,
			"there is no section [volume]; `weft cluster new` writes a file "
			"that has it");
	if (!p->rc)
		cluster_pairs_check(p);
	if (!p->rc)
		map_make(p);
	if (!p->rc)
		hosts_find(p);
	return p->rc;
}

int cluster_parse(struct cluster **out, const char *text, size_t length, const char *path,
	struct weft_error *err)
{
	struct weft_error why = {0};
	struct parse p = {.next = text, .end = text + length, .err = &why};
	int rc;

	*out = NULL;
	if (strlen(path) >= CLUSTER_PATH_BYTES)
		return weft_error(
			err, -ENAMETOOLONG, "the cluster file's path is too long");
	if (length > CLUSTER_FILE_BYTES)
		return weft_error(err, -EFBIG,
			"%s has more than %u bytes: it is no cluster file", path,
			CLUSTER_FILE_BYTES);
	p.c = rt_alloc(sizeof(*p.c));
	if (!p.c)
		return weft_error(err, -ENOMEM, "reading %s: out of memory", path);
	p.c->ops = &cluster_file_ops;
	strcpy(p.c->path, path);
	rc = parse_all(&p);
	if (rc) {
		weft_error(err, rc, "%s", why.text);
		cluster_close(p.c);
		return rc;
	}
	*out = p.c;
	return 0;
}
