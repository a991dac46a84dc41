/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The list of owed images. It is an array, for tasks that look at all of them, with a hash table
 * for questions about one page. Each PERSISTED of a home is about one page, and an eighth of the
 * cache may be owed.
 */
#include "engine/cache/cache_internal.h"

#include <errno.h>

static uint32_t *bucket_of(struct cache *c, page_id pid)
{
	uint64_t hash = (pid * 0x9e3779b97f4a7c15ull) >> 32;

	return &c->revoke.owed_bucket[hash & (c->revoke.owed_room - 1)];
}

static struct owed *owed_at(struct cache *c, uint32_t link)
{
	return link ? &c->revoke.owed[link - 1] : NULL;
}

static void owed_link(struct cache *c, struct owed *o)
{
	uint32_t *bucket = bucket_of(c, o->pid);

	o->next = *bucket;
	*bucket = (uint32_t)(o - c->revoke.owed) + 1;
}

static void owed_unlink(struct cache *c, struct owed *o)
{
	uint32_t *link = bucket_of(c, o->pid);

	while (owed_at(c, *link) != o)
		link = &owed_at(c, *link)->next;
	*link = o->next;
}

int owed_list_open(struct cache *c, uint32_t places)
{
	uint32_t room = 16;
	uint32_t *bucket;
	struct owed *owed;

	while (room < places)
		room *= 2;
	if (room <= c->revoke.owed_room)
		return 0;
	owed = rt_alloc(room * sizeof(*owed));
	bucket = rt_alloc(room * sizeof(*bucket));
	if (!owed || !bucket) {
		rt_free(owed);
		rt_free(bucket);
		return -ENOMEM;
	}
	if (c->revoke.owed_count)
		memcpy(owed, c->revoke.owed, c->revoke.owed_count * sizeof(*owed));
	owed_list_close(c);
	c->revoke.owed = owed;
	c->revoke.owed_bucket = bucket;
	c->revoke.owed_room = room;
	for (uint32_t i = 0; i < c->revoke.owed_count; i++)
		owed_link(c, &owed[i]);
	return 0;
}

void owed_list_close(struct cache *c)
{
	rt_free(c->revoke.owed);
	rt_free(c->revoke.owed_bucket);
	c->revoke.owed = NULL;
	c->revoke.owed_bucket = NULL;
}

void owed_list_add(struct cache *c, page_id pid, uint32_t frame)
{
	struct owed *o = &c->revoke.owed[c->revoke.owed_count];

	WEFT_ASSERT(c->revoke.owed_count < c->revoke.owed_room);
	c->revoke.owed_count++;
	*o = (struct owed){.pid = pid, .frame = frame, .since = ++c->revoke.newest};
	owed_link(c, o);
}

void owed_list_remove(struct cache *c, struct owed *o)
{
	struct owed *last = &c->revoke.owed[c->revoke.owed_count - 1];

	owed_unlink(c, o);
	if (o != last) {
		owed_unlink(c, last);
		*o = *last;
		owed_link(c, o);
	}
	c->revoke.owed_count--;
}

static struct owed *owed_of_page(struct cache *c, uint32_t link, page_id pid)
{
	struct owed *o = owed_at(c, link);

	while (o && o->pid != pid)
		o = owed_at(c, o->next);
	return o;
}

struct owed *owed_list_find(struct cache *c, page_id pid)
{
	return owed_of_page(c, *bucket_of(c, pid), pid);
}

struct owed *owed_list_next(struct cache *c, const struct owed *o)
{
	return owed_of_page(c, o->next, o->pid);
}
