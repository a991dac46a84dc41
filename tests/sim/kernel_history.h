/* SPDX-License-Identifier: Apache-2.0 */
/*
 * For tests of what kernels keep: all that each file, and the directory, has been, and what of
 * that an answer may say.
 *
 * Where a node crashes, what it has changed may be lost, of each block, size and name by itself, but for what
 * was made durable, and what a node that lives has changed later (docs/nodes/failures.md). Not even
 * what others were told need stay if they crash, too: a record that changed one page alone need not be
 * durable when the page is given ("What leaves a frame").
 * From then on a file is in doubt: it may be as any state says from the last on that cannot be lost. When
 * all nodes are there again somebody looks; what is found is a state, and each answer is exact again.
 */
#ifndef WEFT_TEST_KERNEL_HISTORY_H
#define WEFT_TEST_KERNEL_HISTORY_H

#include "tests/sim/cluster_world.h"
#include "tests/world/kernel.h"

#define STATES_MAX 4096
#define WORD_ANY   (UINT64_MAX - 1)
#define WORDS      MAX(BLOCKS, LINKS)
#define SIZE       WORDS /* as if it were one more */
#define NOBODY     UINT8_MAX
#define CRASHES_MAX 16

/*
 * All that a file, or the directory, has been: state `done` is there, up to `begun` may be. Somebody has
 * read bytes of `seen`; those are of one write. What was there up to `durable` cannot be lost.
 */
struct history {
	_Atomic uint32_t by; /* the node that changes it; 0: none does */
	unsigned begun, done, seen, durable;
	bool doubt;
	unsigned fell[CRASHES_MAX][WORDS + 1]; /* history_floor behind each crash */
	uint64_t size[STATES_MAX];
	uint64_t word[STATES_MAX][WORDS];
	/* of each state, in bits: what differs from the one before, or was set anew */
	uint16_t set[STATES_MAX];
	uint8_t writer[STATES_MAX]; /* a node that can lose it; NOBODY: it may be lost */
	/* another node crashed meanwhile: its size and holes are a guess */
	bool blind[STATES_MAX];
};

static struct history *files, *names;
static uint64_t file_ino[FILES], links_dir, next_word;
static unsigned crashes; /* of nodes, in this run */
/* The node into whose kernel is looked; 0: it is an answer. */
static unsigned kernel_of;

/* ---- what was so --------------------------------------------------------------------------- */

/* Who changes it, on whatever node. */
static void history_take(struct history *h, unsigned node)
{
	uint32_t by = 0;

	while (!atomic_compare_exchange_strong(&h->by, &by, node)) {
		rt_wait(&h->by, by, RT_FOREVER);
		by = 0;
	}
}

static void history_let_go(struct history *h)
{
	atomic_store(&h->by, 0);
	rt_wake(&h->by, INT32_MAX);
}

/* The state that a change will lead to, a copy of the one that is. */
static unsigned history_next(struct history *h)
{
	unsigned next = h->done + 1;

	HOLDS(next < STATES_MAX);
	h->size[next] = h->size[h->done];
	memcpy(h->word[next], h->word[h->done], sizeof(h->word[next]));
	h->set[next] = 0;
	h->writer[next] = (uint8_t)h->by;
	h->blind[next] = false;
	return next;
}

/* `set`: what it sets, whatever was there. */
static void history_begins(struct history *h, unsigned s, unsigned set)
{
	h->set[s] = (uint16_t)set;
	h->begun = s;
}

static void history_ends(struct history *h, unsigned s)
{
	h->done = s;
	if (h->blind[s])
		return;
	for (unsigned at = 0; at < WORDS; at++)
		if (h->word[s][at] != h->word[s - 1][at])
			h->set[s] |= 1u << at;
	if (h->size[s] != h->size[s - 1])
		h->set[s] |= 1u << SIZE;
}

/* The last state of that block, name or size which cannot be lost. */
static unsigned history_floor(const struct history *h, unsigned at)
{
	unsigned s = h->done;

	while (s > h->durable && !(h->set[s] >> at & 1 && h->writer[s] != NOBODY))
		s--;
	return s;
}

/* A node has crashed, and is counted in `crashes`. */
static inline void history_crashed(struct history *h, unsigned node)
{
	for (unsigned s = 1; s <= h->begun; s++)
		if (h->writer[s] == node)
			h->writer[s] = NOBODY;
	h->doubt = true;
	h->seen = 0;
	if (h->by == node) {
		if (h->begun > h->done)
			history_ends(h, h->begun);
		history_let_go(h);
	} else if (h->begun > h->done) {
		h->blind[h->begun] = true;
		for (unsigned at = 0; h == names && at < LINKS; at++)
			if (h->word[h->begun][at] != h->word[h->done][at])
				h->word[h->begun][at] = WORD_ANY;
	}
	HOLDS(crashes <= CRASHES_MAX);
	for (unsigned at = 0; at <= WORDS; at++)
		h->fell[crashes - 1][at] = history_floor(h, at);
}

/* ---- what an answer may say ----------------------------------------------------------------- */

struct asked {
	unsigned from; /* it is answered by no earlier state */
	unsigned size_from; /* ... as far as that goes by the size */
	unsigned crashes;
	bool doubt;
};

static unsigned answered_from(const struct history *h, unsigned at)
{
	return h->doubt ? history_floor(h, at) : MAX(h->done, h->seen);
}

/* Now, wherever: it is answered by what was done, or what another was told. */
static struct asked history_ask(const struct history *h, unsigned at)
{
	return (struct asked){.from = answered_from(h, at),
		.size_from = answered_from(h, SIZE),
		.crashes = crashes,
		.doubt = h->doubt};
}

/* ... unless that was lost meanwhile: then by what was there behind the crash. */
static struct asked history_answer(const struct history *h, struct asked a, unsigned at)
{
	for (unsigned i = a.crashes; i < crashes; i++) {
		a.from = MIN(a.from, h->fell[i][at]);
		a.size_from = MIN(a.size_from, h->fell[i][SIZE]);
		a.doubt = true;
	}
	return a;
}

/* A read that begins before and ends behind a change of the size may find zeros: the kernel
 * has looked at the old size, and gets an answer that goes by the new one. */
static bool resized(const struct history *h, unsigned from, unsigned to)
{
	for (unsigned s = from; s < to; s++)
		if (h != names && h->size[s] != h->size[s + 1])
			return true;
	return false;
}

/*
 * What a crash leaves that was no state: a block that was given a page, whose bytes are lost, is
 * zeros; where the size is in doubt, so is what is behind the end.
 */
static bool in_doubt(
	const struct history *h, const struct asked *a, unsigned at, uint64_t word)
{
	unsigned s = word == WORD_END ? MIN(a->from, a->size_from) : a->from;

	if (h == names || (word != WORD_HOLE && word != WORD_END))
		return false;
	for (; s <= h->begun; s++)
		if (h->blind[s] || h->word[s][at] == WORD_END ||
			(h->word[s][at] == WORD_HOLE && word == WORD_HOLE))
			return true;
	return false;
}

static void history_says(
	struct history *h, struct asked asked, unsigned to, unsigned at, uint64_t word)
{
	struct asked a = history_answer(h, asked, at);

	for (unsigned s = a.from; s <= to; s++)
		if (h->word[s][at] == word || h->word[s][at] == WORD_ANY) {
			if (h != names && word != WORD_HOLE && word != WORD_END &&
				!a.doubt)
				h->seen = MAX(h->seen, s);
			return;
		}
	if (word == WORD_HOLE && resized(h, a.from, to))
		return;
	if (a.doubt && in_doubt(h, &a, at, word))
		return;
	if (kernel_of)
		print_message("the kernel of node %u has something else:\n", kernel_of);
	print_message("%s %u: %u is %" PRIu64 ", as in none of the states %u to %u%s:\n",
		h == names ? "names" : "file", (unsigned)(h - files), at, word, a.from,
		to, a.doubt ? ", in doubt" : "");
	for (unsigned s = 0; s <= to; s++)
		print_message("%u: %" PRId64 " of %" PRIu64 ", by %u%s%s\n", s,
			(int64_t)h->word[s][at], h->size[s], h->writer[s],
			h->set[s] >> at & 1 ? ", set" : "",
			h->word[s][at] == word ? ", as here" : "");
	abort();
}

static void history_sizes(
	const struct history *h, struct asked asked, unsigned to, uint64_t size)
{
	struct asked a = history_answer(h, asked, SIZE);
	uint64_t least = UINT64_MAX, most = 0;
	bool blind = false;

	for (unsigned s = a.from; s <= to; s++) {
		if (h->size[s] == size)
			return;
		least = MIN(least, h->size[s]);
		most = MAX(most, h->size[s]);
		blind |= h->blind[s];
	}
	if (a.doubt && blind && size >= least && size <= most)
		return;
	if (kernel_of)
		print_message("the kernel of node %u has something else:\n", kernel_of);
	print_message("file %u: the size is %" PRIu64
		      ", as in none of the states %u to %u%s\n",
		(unsigned)(h - files), size, a.from, to, a.doubt ? ", in doubt" : "");
	for (unsigned s = 0; s <= to; s++)
		print_message("%u: %" PRIu64 ", by %u%s\n", s, h->size[s], h->writer[s],
			h->set[s] >> SIZE & 1 ? ", set" : "");
	abort();
}

#endif
