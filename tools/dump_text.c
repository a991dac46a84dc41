/* SPDX-License-Identifier: Apache-2.0 */
/* What weft dump prints of items and pages. Their bytes are not trusted (invariant 9). */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <time.h>

#include "engine/common/text.h"
#include "tools/dump.h"

void print_uuid(const char *label, const uint8_t u[16])
{
	char text[37];

	uuid_print(u, text);
	printf("  %-16s %s\n", label, text);
}

void print_u64(const char *label, uint64_t value)
{
	printf("  %-16s %" PRIu64 "\n", label, value);
}

void print_time(const char *label, int64_t ns)
{
	time_t seconds = (time_t)(ns / 1000000000);
	char text[64] = "?";
	struct tm tm;

	if (gmtime_r(&seconds, &tm))
		strftime(text, sizeof(text), "%Y-%m-%d %H:%M:%S", &tm);
	printf("  %-16s %s.%09lld UTC\n", label, text, (long long)(ns % 1000000000));
}

/* Bytes as a person can read them on one line. */
void print_text(const void *bytes, size_t len)
{
	const unsigned char *p = bytes;

	for (size_t i = 0; i < len; i++) {
		if (p[i] < 0x20 || p[i] == 0x7f || p[i] == '\\')
			printf("\\x%02x", p[i]);
		else
			putchar(p[i]);
	}
}

void print_hex(const uint8_t *p, size_t len)
{
	for (size_t i = 0; i < len; i += 16) {
		printf("  %04zx ", i);
		for (size_t k = i; k < i + 16 && k < len; k++)
			printf(" %02x", p[k]);
		putchar('\n');
	}
}

/* ---- items ----------------------------------------------------------------------- */

static void print_inode(const struct disk_inode *i)
{
	printf("mode %06o, nlink %u, uid %u, gid %u\n", i->mode, i->nlink, i->uid,
		i->gid);
	print_u64("size", i->size);
	print_u64("pages", i->blocks);
	if (S_ISDIR(i->mode))
		print_u64("parent", i->parent);
	if (S_ISCHR(i->mode) || S_ISBLK(i->mode))
		printf("  %-16s %u:%u\n", "device", i->rdev_major, i->rdev_minor);
	printf("  %-16s %#x%s%s%s%s\n", "flags", i->flags,
		i->flags & DISK_INODE_IMMUTABLE ? ", immutable" : "",
		i->flags & DISK_INODE_APPEND_ONLY ? ", append only" : "",
		i->flags & DISK_INODE_NODUMP ? ", no dump" : "",
		i->flags & DISK_INODE_NOATIME ? ", no atime" : "");
	print_u64("changes", i->changes);
	print_time("accessed", i->atime_ns);
	print_time("modified", i->mtime_ns);
	print_time("changed", i->ctime_ns);
	print_time("born", i->btime_ns);
}

static void print_extent(const uint8_t *value)
{
	struct disk_extent e;

	memcpy(&e, value, sizeof(e));
	printf("%u pages from %#" PRIx64 ", incarnation %" PRIu64 "%s", e.length, e.pid,
		e.incarnation, e.flags & DISK_EXTENT_UNWRITTEN ? ", unwritten" : "");
}

static void print_entries(const uint8_t *value, size_t len)
{
	struct disk_entry head;

	for (size_t at = 0; at < len; at += sizeof(head) + head.name_bytes) {
		if (len - at < sizeof(head))
			break;
		memcpy(&head, value + at, sizeof(head));
		if (!head.name_bytes || head.name_bytes > len - at - sizeof(head)) {
			printf("MALFORMED");
			break;
		}
		printf("%s\"", at ? ", " : "");
		print_text(value + at + sizeof(head), head.name_bytes);
		printf("\" is inode %" PRIu64 ", type %u", head.ino, head.type);
	}
	putchar('\n');
}

static void print_xattr(const uint8_t *value, size_t len)
{
	struct disk_xattr head;
	size_t at = sizeof(head);

	if (len < sizeof(head)) {
		puts("MALFORMED");
		return;
	}
	memcpy(&head, value, sizeof(head));
	if (head.name_bytes > len - at) {
		puts("MALFORMED");
		return;
	}
	putchar('"');
	print_text(value + at, head.name_bytes);
	printf("\", %u bytes", head.value_bytes);
	at += head.name_bytes;
	for (unsigned i = 0; i < head.run_count && len - at >= sizeof(struct disk_extent);
		i++) {
		printf("; ");
		print_extent(value + at);
		at += sizeof(struct disk_extent);
	}
	if (!head.run_count) {
		printf(": ");
		print_text(value + at, MIN(len - at, 64u));
	}
	putchar('\n');
}

static void print_lock(const struct disk_lock *l)
{
	printf("  node %u, incarnation %" PRIu64 ", owner %#" PRIx64 ", process %u: ",
		l->node, l->incarnation, l->owner, l->pid);
	if (!disk_lock_valid(l)) {
		puts("MALFORMED");
		return;
	}
	printf("%s, %s, ", l->kind == DISK_LOCK_FLOCK ? "flock" : "fcntl",
		(l->type & ~DISK_LOCK_WAITS) == DISK_LOCK_SHARED ? "shared"
								 : "exclusive");
	if (l->last == INT64_MAX)
		printf("from byte %" PRIu64 " on", l->first);
	else
		printf("bytes %" PRIu64 " to %" PRIu64, l->first, l->last);
	if (l->type & DISK_LOCK_WAITS)
		printf(", waits as number %" PRIu64 ", ticket %" PRIu64, l->order,
			l->ticket);
	putchar('\n');
}

static void print_locks(const uint8_t *value, size_t len)
{
	struct disk_lock l;

	printf("%zu locks\n", len / sizeof(l));
	for (; len >= sizeof(l); value += sizeof(l), len -= sizeof(l)) {
		memcpy(&l, value, sizeof(l));
		print_lock(&l);
	}
	if (len)
		puts("  MALFORMED");
}

void print_item(struct disk_key key, const uint8_t *value, size_t len)
{
	static const char *const names[] = {"?", "inode", "link", "xattr", "entry",
		"extent", "lock", "orphan", "intent", "openers"};
	unsigned type = key.high & 0xff;
	struct disk_inode inode;
	struct disk_intent intent;

	printf("%" PRIu64 " %s %#" PRIx64 ": ", (uint64_t)(key.high >> 8),
		type < ARRAY_SIZE(names) ? names[type] : "?", key.low);
	if (type == DISK_ITEM_INODE && len == sizeof(inode)) {
		memcpy(&inode, value, len);
		print_inode(&inode);
	} else if (type == DISK_ITEM_ENTRY) {
		print_entries(value, len);
	} else if (type == DISK_ITEM_XATTR) {
		print_xattr(value, len);
	} else if (type == DISK_ITEM_EXTENT && len == sizeof(struct disk_extent)) {
		print_extent(value);
		putchar('\n');
	} else if (type == DISK_ITEM_LINK) {
		print_text(value, len);
		putchar('\n');
	} else if (type == DISK_ITEM_LOCK) {
		print_locks(value, len);
	} else if (type == DISK_ITEM_OPENERS && len == sizeof(struct disk_openers)) {
		struct disk_openers openers;

		memcpy(&openers, value, len);
		printf("nodes %#" PRIx64 "\n", openers.nodes);
	} else if (type == DISK_ITEM_INTENT && len == sizeof(intent)) {
		memcpy(&intent, value, len);
		printf("%s from block %" PRIu64 "\n",
			intent.kind == DISK_INTENT_TRUNCATE ? "truncate" : "reclaim",
			intent.from);
	} else {
		printf("%zu bytes\n", len);
		print_hex(value, MIN(len, 128u));
	}
}

static void print_key(struct disk_key k)
{
	if (k.low == UINT64_MAX && k.high == UINT64_MAX)
		printf("end");
	else
		printf("%" PRIu64 "/%u/%#" PRIx64, (uint64_t)(k.high >> 8),
			(unsigned)(k.high & 0xff), k.low);
}

void print_node(const struct disk_node *n)
{
	printf("level %u, %u %s, keys ", n->level, n->count,
		n->level ? "children" : "items");
	print_key(n->low_fence);
	printf(" to ");
	print_key(n->high_fence);
	putchar('\n');
}

void print_leaf(const struct disk_leaf *leaf)
{
	for (unsigned i = 0; i < leaf->node.count; i++) {
		const struct disk_leaf_slot *s = &leaf->slot[i];

		print_item(s->key, (const uint8_t *)leaf + s->offset, s->length);
	}
}
