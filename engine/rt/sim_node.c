/* SPDX-License-Identifier: Apache-2.0 */
/* The nodes of a simulation, and the memory that they hold, so that a power cut can take it all. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "engine/rt/sim.h"

#define CHUNK_MAGIC 0x6b6e7568636d6973ull
/*
 * From this size on memory is mapped, so that untouched memory costs nothing. Below it malloc's
 * memory is cleared, which costs less than page faults do. With AddressSanitizer malloc maps anew,
 * too.
 */
#ifdef __SANITIZE_ADDRESS__
#define MAP_BYTES ((size_t)128 << 10)
#else
#define MAP_BYTES ((size_t)1 << 20)
#endif

/* A mapping of a multiple of this starts at one, so the kernel fills it with huge pages. */
#define HUGE_BYTES ((size_t)2 << 20)

/* ---- memory ---------------------------------------------------------------------- */

/* Lies right below the memory that it describes. */
struct sim_chunk {
	uint64_t magic;
	size_t size;
	void *raw;
	size_t mapped_bytes; /* 0: from malloc */
	struct sim_chunk *next, **link;
	unsigned node;
	bool pages;
};
_Static_assert(sizeof(struct sim_chunk) <= CACHE_LINE, "fits below a block");

static struct sim_chunk *chunk_of(void *p)
{
	struct sim_chunk *c = (struct sim_chunk *)((char *)p - CACHE_LINE);

	WEFT_ASSERT(c->magic == CHUNK_MAGIC);
	return c;
}

/* Memory of `size` zero bytes after `before` bytes, aligned like them. NULL: there is none. */
static void *raw_alloc(size_t before, size_t size, size_t *mapped)
{
	void *raw;

	*mapped = 0;
	if (size > SIZE_MAX / 2)
		return NULL;
	if (size >= MAP_BYTES) {
		before = MAX(before, (size_t)PAGE_SIZE);
		*mapped = ALIGN_UP(before + size, HUGE_BYTES);
		raw = mmap(NULL, *mapped, PROT_READ | PROT_WRITE,
			MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
		if (raw == MAP_FAILED)
			return NULL;
		/* page faults would take half of a simulation's time */
		(void)madvise(raw, *mapped, MADV_HUGEPAGE);
		return raw;
	}
	if (posix_memalign(&raw, before, before + size))
		return NULL;
	memset((char *)raw + before - CACHE_LINE, 0, CACHE_LINE + size);
	return raw;
}

static void *chunk_alloc(size_t align, size_t size, bool pages)
{
	unsigned id = sim_current_node();
	struct sim_node *node = sim->nodes[id];
	struct sim_chunk *c;
	size_t mapped;
	char *raw, *p;

	if (id != 0 && ++sim->allocs == sim->alloc_fail_at)
		return NULL;
	raw = raw_alloc(align, size, &mapped);
	if (!raw)
		return NULL;
	p = raw + (mapped ? PAGE_SIZE : align);
	c = (struct sim_chunk *)(p - CACHE_LINE);
	*c = (struct sim_chunk){
		.magic = CHUNK_MAGIC,
		.size = size,
		.raw = raw,
		.mapped_bytes = mapped,
		.next = node->chunks,
		.link = &node->chunks,
		.node = id,
		.pages = pages,
	};
	if (c->next)
		c->next->link = &c->next;
	node->chunks = c;
	node->memory_bytes += size;
	return p;
}

static void chunk_free(struct sim_chunk *c)
{
	*c->link = c->next;
	if (c->next)
		c->next->link = c->link;
	sim->nodes[c->node]->memory_bytes -= c->size;
	c->magic = 0;
	if (c->mapped_bytes)
		WEFT_ASSERT(munmap(c->raw, c->mapped_bytes) == 0);
	else
		free(c->raw);
}

void *sim_alloc(size_t size)
{
	return chunk_alloc(CACHE_LINE, size, false);
}

void sim_free(void *p)
{
	struct sim_chunk *c = chunk_of(p);

	WEFT_ASSERT(!c->pages);
	chunk_free(c);
}

void *sim_alloc_pages(size_t size)
{
	return size ? chunk_alloc(PAGE_SIZE, size, true) : NULL;
}

void sim_free_pages(void *p, size_t size)
{
	struct sim_chunk *c = chunk_of(p);

	WEFT_ASSERT(c->pages && c->size == size);
	chunk_free(c);
}

void rt_sim_alloc_fail(uint64_t n)
{
	sim->alloc_fail_at = n ? sim->allocs + n : 0;
}

uint64_t rt_sim_allocs(void)
{
	return sim->allocs;
}

/* ---- crash functions -------------------------------------------------------------- */

void sim_on_crash(void (*fn)(void *), void *arg)
{
	struct sim_node *node = sim->nodes[sim_current_node()];
	struct sim_crash_fn *c = sim_own_alloc(sizeof(*c));

	*c = (struct sim_crash_fn){.fn = fn, .arg = arg, .next = node->crash_fns};
	node->crash_fns = c;
}

/* A pair may be absent, because the crash functions themselves may release in order. */
void sim_on_crash_forget(void (*fn)(void *), void *arg)
{
	struct sim_crash_fn **link = &sim->nodes[sim_current_node()]->crash_fns;

	for (; *link; link = &(*link)->next) {
		struct sim_crash_fn *c = *link;

		if (c->fn == fn && c->arg == arg) {
			*link = c->next;
			free(c);
			return;
		}
	}
}

static void run_crash_fns(unsigned id)
{
	struct sim_node *node = sim->nodes[id];

	sim->crashing = id;
	while (node->crash_fns) {
		struct sim_crash_fn c = *node->crash_fns;

		free(node->crash_fns);
		node->crash_fns = c.next;
		c.fn(c.arg);
	}
	sim->crashing = UINT32_MAX;
}

/* ---- nodes ----------------------------------------------------------------------- */

unsigned rt_sim_node_new(const char *name)
{
	struct sim_node *node = sim_own_alloc(sizeof(*node));

	WEFT_ASSERT(sim->node_count < RT_SIM_NODES_MAX);
	strncpy(node->name, name, sizeof(node->name) - 1);
	sim->nodes[sim->node_count] = node;
	return sim->node_count++;
}

static struct sim_node *node_of(unsigned id)
{
	WEFT_ASSERT(id < sim->node_count);
	return sim->nodes[id];
}

unsigned rt_sim_node(void)
{
	return sim_current_node();
}

int rt_sim_spawn_on(unsigned id, const char *name, void (*fn)(void *), void *arg)
{
	struct sim_task *task;
	int rc;

	WEFT_ASSERT(!node_of(id)->dead);
	rc = sim_task_new(&task, id, name, fn, arg);
	if (!rc)
		task->detached = true;
	return rc;
}

void sim_node_clear(unsigned id)
{
	struct sim_node *node = sim->nodes[id];

	run_crash_fns(id);
	for (struct sim_task *t = node->tasks, *next; t; t = next) {
		next = t->node_next;
		if (t != sim->current)
			sim_task_free(t);
	}
	while (node->chunks)
		chunk_free(node->chunks);
}

void rt_sim_node_kill(unsigned id)
{
	struct sim_node *node = node_of(id);

	WEFT_ASSERT(id != 0 && sim->crashing == UINT32_MAX);
	if (node->dead)
		return;
	node->dead = true;
	sim_sockets_power_cut(id);
	sim_disks_power_cut(id); /* reads the memory of writes in flight */
	sim_node_clear(id);
	atomic_fetch_add(&node->changed, 1);
	sim_wake_quietly(&node->changed, INT32_MAX);
	if (sim->current->node == id)
		sim_task_vanish();
}

bool rt_sim_node_dead(unsigned id)
{
	return node_of(id)->dead;
}

bool rt_sim_node_wait(unsigned id)
{
	struct sim_node *node = node_of(id);

	WEFT_ASSERT(sim_current_node() != id);
	for (;;) {
		uint32_t seen = atomic_load(&node->changed);

		if (node->dead)
			return true;
		if (node->running_tasks == 0)
			return false;
		sim_wait(&node->changed, seen, RT_FOREVER);
	}
}

size_t rt_sim_node_memory(unsigned id)
{
	return node_of(id)->memory_bytes;
}
