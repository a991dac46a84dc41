/* SPDX-License-Identifier: Apache-2.0 */
/* The inodes that nodes contend for; see contended.h. */
#include "fs/contended.h"

#include <stdlib.h>

/* Begins a new window if the present one is over. A window without requests may last longer. Under
 * the lock. */
static void windows_turn(struct contended *c, uint64_t now_ns)
{
	uint64_t began_ns = c->window[c->now].began_ns;
	uint64_t age = now_ns > began_ns ? now_ns - began_ns : 0; /* others' clocks may be ahead */

	if (began_ns && age < CONTENDED_WINDOW_NS)
		return;
	if (age >= 2 * CONTENDED_WINDOW_NS) { /* also the one before is too old */
		c->window[c->now].count = 0;
		c->window[c->now].began_ns = now_ns;
	}
	c->now ^= 1;
	c->window[c->now].count = 0;
	c->window[c->now].began_ns = now_ns;
}

/* The count of Space-Saving. */
static uint64_t pages_of(const struct contended_inode *p)
{
	return p->changed + p->read + p->error;
}

/* Returns the inode's place in the window. A new one takes the place of the one with fewest pages,
 * and its count. */
static struct contended_inode *place_take(struct contended *c, uint64_t ino)
{
	struct contended_inode *at = c->window[c->now].at, *least = at;
	unsigned *count = &c->window[c->now].count;

	for (unsigned i = 0; i < *count; i++) {
		if (at[i].ino == ino)
			return &at[i];
		if (pages_of(&at[i]) < pages_of(least))
			least = &at[i];
	}
	if (*count < CONTENDED_MAX) {
		at[*count] = (struct contended_inode){.ino = ino};
		return &at[(*count)++];
	}
	*least = (struct contended_inode){.ino = ino, .error = pages_of(least)};
	return least;
}

void contended_note(struct contended *c, uint64_t now_ns, uint64_t ino, uint64_t changed,
	uint64_t read, uint64_t took_ns)
{
	struct contended_inode *p;

	rt_mutex_lock(&c->lock);
	windows_turn(c, now_ns);
	p = place_take(c, ino);
	p->changed += changed;
	p->read += read;
	p->requests++;
	p->took_ns += took_ns;
	rt_mutex_unlock(&c->lock);
}

static void list_add(struct contended_inode *list, unsigned *count,
	const struct contended_inode *one)
{
	unsigned i = 0;

	while (i < *count && list[i].ino != one->ino)
		i++;
	if (i == *count) {
		list[(*count)++] = *one;
		return;
	}
	list[i].changed += one->changed;
	list[i].read += one->read;
	list[i].error += one->error;
	list[i].requests += one->requests;
	list[i].took_ns += one->took_ns;
}

static int compare_inodes(const void *a, const void *b)
{
	const struct contended_inode *x = a, *y = b;

	if (x->changed != y->changed)
		return x->changed > y->changed ? -1 : 1;
	if (x->read != y->read)
		return x->read > y->read ? -1 : 1;
	return x->ino < y->ino ? -1 : x->ino > y->ino;
}

unsigned contended_list(struct contended *c, uint64_t now_ns, struct contended_inode *out,
	unsigned max, uint64_t *since_ns)
{
	struct contended_inode list[2 * CONTENDED_MAX];
	unsigned count = 0;

	rt_mutex_lock(&c->lock);
	windows_turn(c, now_ns);
	for (unsigned w = 0; w < 2; w++)
		for (unsigned i = 0; i < c->window[w].count; i++)
			list_add(list, &count, &c->window[w].at[i]);
	*since_ns = c->window[c->now ^ 1].began_ns ?: c->window[c->now].began_ns;
	rt_mutex_unlock(&c->lock);
	qsort(list, count, sizeof(*list), compare_inodes);
	count = MIN(count, max);
	for (unsigned i = 0; i < count; i++)
		out[i] = list[i];
	return count;
}
