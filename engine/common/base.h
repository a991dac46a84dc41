/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Definitions that every layer uses: page identity, units, assertions, errors as text.
 *
 * This header is below all layers, and includes no other header of weft.
 */
#ifndef WEFT_COMMON_BASE_H
#define WEFT_COMMON_BASE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

/* The unit of caching, coherence, checksum and I/O, in bytes. */
#define PAGE_SIZE  4096u
#define PAGE_SHIFT 12

/*
 * Page id: shard (16 bits, high) and slot (48 bits, low). The node that the map
 * gives for the shard is the page's home. PID_NONE is never a page.
 */
typedef uint64_t page_id;
#define PID_NONE      UINT64_MAX
#define PID_SLOT_BITS 48
#define PID_SLOT_MASK ((1ull << PID_SLOT_BITS) - 1)

static inline page_id pid_make(uint16_t shard, uint64_t slot)
{
	return ((uint64_t)shard << PID_SLOT_BITS) | slot;
}

static inline uint64_t pid_slot(page_id pid)
{
	return pid & PID_SLOT_MASK;
}

static inline uint16_t pid_shard(page_id pid)
{
	return (uint16_t)(pid >> PID_SLOT_BITS);
}

/* Position in a node's log, in bytes since the log's creation. */
typedef uint64_t lsn_t;
#define LSN_NONE 0ull
#define LSN_MAX  UINT64_MAX

/* The descriptor that a home keeps for each page. Pages are ordered by (incarnation, version);
 * incarnation 0 means "never allocated". */
struct page_descriptor {
	uint64_t incarnation;
	uint64_t version;
	uint64_t checksum;
};

/* Returns less than 0, 0, or more than 0: (incarnation, version) of a is older than b's, equal to
 * it, or newer. */
static inline int page_order(
	uint64_t inc_a, uint64_t ver_a, uint64_t inc_b, uint64_t ver_b)
{
	if (inc_a != inc_b)
		return inc_a < inc_b ? -1 : 1;
	if (ver_a != ver_b)
		return ver_a < ver_b ? -1 : 1;
	return 0;
}

/* Returns true if all `len` bytes are zero; also if there are none. */
static inline bool bytes_are_zero(const void *bytes, size_t len)
{
	const uint8_t *p = (const uint8_t *)bytes;

	return len == 0 || (p[0] == 0 && memcmp(p, p + 1, len - 1) == 0);
}

/* Tells the processor that this loop waits for another one's store. */
static inline void cpu_pause(void)
{
#if defined(__x86_64__)
	__builtin_ia32_pause();
#elif defined(__aarch64__)
	__asm__ volatile("yield");
#endif
}

#define ARRAY_SIZE(a) (sizeof(a) / sizeof((a)[0]))
#ifndef MIN
#define MIN(a, b) ((a) < (b) ? (a) : (b))
#define MAX(a, b) ((a) > (b) ? (a) : (b))
#endif
#define ALIGN_UP(x, a)                  (((x) + ((a)-1)) & ~((__typeof__(x))(a)-1))
#define DIV_UP(x, y)                    (((x) + (y)-1) / (y))
#define container_of(ptr, type, member) ((type *)((char *)(ptr)-offsetof(type, member)))
#define likely(x)                       __builtin_expect(!!(x), 1)
#define unlikely(x)                     __builtin_expect(!!(x), 0)
#define CACHE_LINE                      64

/* Checks a condition, always. A failure prints the expression and its place and aborts: a wrong
 * state must not reach a device or a reply. */
_Noreturn void weft_assert_fail(const char *expr, const char *file, int line);
#define WEFT_ASSERT(expr)                                                                \
	do {                                                                             \
		if (unlikely(!(expr)))                                                   \
			weft_assert_fail(#expr, __FILE__, __LINE__);                     \
	} while (0)

/* An error with a text for a person: the attempt, its object, and the remedy. `code` is a negative
 * errno. Functions that take a `struct weft_error *` accept NULL; the first text set wins. */
struct weft_error {
	int code;
	char text[512];
};

/* Fills *err (may be NULL) and returns code, so that `return weft_error(...)` reads. */
int weft_error(struct weft_error *err, int code, const char *fmt, ...)
	__attribute__((format(printf, 3, 4)));

/*
 * One line to the daemon's log (stderr by default, see weft_log_sink).
 * Levels as in syslog(3): 3 error, 4 warning, 6 info, 7 debug.
 */
void weft_log(int level, const char *fmt, ...) __attribute__((format(printf, 2, 3)));
extern void (*weft_log_sink)(int level, const char *line);

#endif
