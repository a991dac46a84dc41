/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Compares the sections of a cluster file with each other. Two nodes have no address and no shard
 * in common, and no store on one host. Two machines of a node have no host in common. It uses
 * nothing but the members that were read.
 */
#include "engine/cluster/parse_internal.h"

#include <stdio.h>

static bool same_address(const struct cluster_address *a, const struct cluster_address *b)
{
	return a->port == b->port && strcasecmp(a->host, b->host) == 0;
}

/* Machine `i` of a is also machine `k` of b, by a host's name. */
static bool same_host(const struct cluster_member *a, unsigned i,
	const struct cluster_member *b, unsigned k)
{
	for (unsigned x = 0; x < a->address_count; x++)
		for (unsigned y = 0; y < b->address_count; y++)
			if (a->address[x].machine == i && b->address[y].machine == k &&
				strcasecmp(a->address[x].host, b->address[y].host) == 0)
				return true;
	return false;
}

static unsigned store_line_at(const struct cluster_member *m, unsigned machine)
{
	if (machine == 1 || !*m->machine[machine].store)
		return machine == 1 ? m->store_line : m->machine[machine].line;
	return m->machine[machine].store_line;
}

/* The later of the two lines is wrong. */
static void wrong_address(struct parse *p, const struct cluster_member *a, unsigned machine,
	const struct cluster_member *b, const struct cluster_address *address)
{
	unsigned line_a = cluster_address_line(a, machine);
	unsigned line_b = cluster_address_line(b, address->machine);
	bool later = line_b > line_a;

	cluster_section_print(later ? b : a, later ? address->machine : machine, p->section_name,
		sizeof(p->section_name));
	WRONG_AT(p, MAX(line_a, line_b), "address",
		"%s port %u is also node %u's (line %u); give one of them another port",
		address->host, address->port, later ? a->id : b->id, MIN(line_a, line_b));
}

/* The same. */
static void wrong_store(struct parse *p, const struct cluster_member *a, unsigned i,
	const struct cluster_member *b, unsigned k)
{
	unsigned line_a = store_line_at(a, i), line_b = store_line_at(b, k);
	bool later = line_b > line_a;

	cluster_section_print(later ? b : a, later ? k : i, p->section_name,
		sizeof(p->section_name));
	WRONG_AT(p, MAX(line_a, line_b), "store",
		"%s is also node %u's on the same host (line %u); each node has a store of its "
		"own",
		cluster_store_at(a, i), later ? a->id : b->id, MIN(line_a, line_b));
}

/* Two nodes may run on one machine, but each with a store of its own. */
static void check_stores(
	struct parse *p, const struct cluster_member *a, const struct cluster_member *b)
{
	for (unsigned i = 1; i <= CLUSTER_MACHINES_MAX; i++)
		for (unsigned k = 1; k <= CLUSTER_MACHINES_MAX; k++)
			if (cluster_has_machine(a, i) && cluster_has_machine(b, k) &&
				same_host(a, i, b, k) &&
				strcmp(cluster_store_at(a, i), cluster_store_at(b, k)) == 0)
				wrong_store(p, a, i, b, k);
}

/* A machine of a node must be found by its addresses. */
static void check_machines(struct parse *p, const struct cluster_member *m)
{
	for (unsigned k = 2; k <= CLUSTER_MACHINES_MAX; k++)
		for (unsigned i = 1; i < k; i++) {
			unsigned later = k, other = i;

			if (!cluster_has_machine(m, k) || !cluster_has_machine(m, i) ||
				!same_host(m, i, m, k))
				continue;
			if (cluster_address_line(m, i) > cluster_address_line(m, k)) {
				later = i;
				other = k;
			}
			cluster_section_print(
				m, later, p->section_name, sizeof(p->section_name));
			WRONG_AT(p, cluster_address_line(m, later), "address",
				"names a host of machine %u (line %u), too; each machine "
				"has one section, with all its addresses",
				other, cluster_address_line(m, other));
		}
}

static void check_pair(
	struct parse *p, const struct cluster_member *a, const struct cluster_member *b)
{
	bool stores = a->role == CLUSTER_STORAGE && b->role == CLUSTER_STORAGE;

	for (unsigned i = 0; i < b->address_count; i++)
		for (unsigned k = 0; k < a->address_count; k++)
			if (same_address(&a->address[k], &b->address[i]))
				wrong_address(p, a, a->address[k].machine, b, &b->address[i]);
	if (stores)
		check_stores(p, a, b);
	snprintf(p->section_name, sizeof(p->section_name), "node %u", b->id);
	if (stores && a->shard == b->shard)
		WRONG_AT(p, b->shard_line ? b->shard_line : b->line, "shard",
			"%u is also node %u's (line %u); give one of them another",
			b->shard, a->id, a->shard_line ? a->shard_line : a->line);
}

void cluster_pairs_check(struct parse *p)
{
	const struct cluster_member *a = NULL, *b;

	p->section = SECTION_NODE;
	while ((a = cluster_next(p->c, a))) {
		check_machines(p, a);
		for (b = cluster_next(p->c, a); b; b = cluster_next(p->c, b)) {
			bool later = b->line > a->line;
			const struct cluster_member *named = later ? b : a;

			snprintf(p->section_name, sizeof(p->section_name), "node %u",
				named->id);
			check_pair(p, later ? a : b, named);
		}
	}
}
