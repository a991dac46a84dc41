/* SPDX-License-Identifier: Apache-2.0 */
/* Structures that the two runtimes share: the table of functions behind rt.h, and the common heads
 * of their tasks and disks. Only engine/rt includes this. */
#ifndef WEFT_RT_INTERNAL_H
#define WEFT_RT_INTERNAL_H

#include "engine/rt/rt.h"
#include "engine/rt/rt_socket.h"

#define RT_TASK_NAME_BYTES 16
#define RT_IOV_MAX         256
#define RT_CHAIN_MAX       64

/* Each runtime's own structures begin with these. */
struct rt_task {
	char name[RT_TASK_NAME_BYTES];
	unsigned index;
};

struct rt_disk {
	struct rt_disk_info info;
	const struct rt_disk_functions *functions; /* NULL: the runtime's own */
	void *owner;
};

/* disk_made.c */
void rt_made_run(struct rt_disk *disk, struct rt_io *ios, unsigned count);
void rt_made_close(struct rt_disk *disk);

/* One for each runtime. Each function means the same as that of rt_socket.h. */
struct rt_socket_ops {
	int (*resolve)(struct rt_address *out, unsigned max, const char *text,
		struct weft_error *err);
	void (*print)(const struct rt_address *address, char *out, size_t size);
	int (*listen)(struct rt_socket **out, const struct rt_address *at,
		struct weft_error *err);
	void (*name)(struct rt_socket *listener, char *out, size_t size);
	void (*peer_name)(struct rt_socket *s, char *out, size_t size);
	int (*accept)(struct rt_socket **out, struct rt_socket *listener);
	int (*connect)(struct rt_socket **out, const struct rt_address *to);
	int (*connected)(struct rt_socket *s);
	ssize_t (*send)(struct rt_socket *s, const struct iovec *iov, unsigned count);
	ssize_t (*recv)(struct rt_socket *s, const struct iovec *iov, unsigned count);
	void (*shutdown)(struct rt_socket *s);
	void (*close)(struct rt_socket *s);
	int (*wait)(struct rt_socket *s, uint64_t deadline_ns);
	void (*kick)(struct rt_socket *s);
	int (*poller_open)(struct rt_poller **out);
	void (*poller_close)(struct rt_poller *p);
	int (*poller_add)(
		struct rt_poller *p, struct rt_socket *s, unsigned events, void *tag);
	void (*poller_change)(
		struct rt_poller *p, struct rt_socket *s, unsigned events, void *tag);
	void (*poller_remove)(struct rt_poller *p, struct rt_socket *s);
	unsigned (*poller_wait)(struct rt_poller *p, struct rt_ready *out, unsigned max,
		uint64_t deadline_ns);
	void (*poller_kick)(struct rt_poller *p);
};

extern const struct rt_socket_ops rt_real_socket_ops;
extern const struct rt_socket_ops rt_sim_socket_ops;

/* One for each runtime. Each function means the same as that of rt.h. */
struct rt_ops {
	uint64_t (*now_ns)(void);
	int64_t (*wall_ns)(void);
	uint64_t (*random)(void);
	void (*random_bytes)(void *buf, size_t len);

	void *(*alloc)(size_t size);
	void (*free)(void *p);
	void *(*alloc_pages)(size_t size);
	void (*free_pages)(void *p, size_t size);
	void (*on_crash)(void (*fn)(void *), void *arg);
	void (*on_crash_forget)(void (*fn)(void *), void *arg);

	int (*task_spawn)(
		struct rt_task **out, const char *name, void (*fn)(void *), void *arg);
	void (*task_join)(struct rt_task *task);
	unsigned (*task_index)(void);
	void (*task_on_cpu)(unsigned cpu);
	void (*yield)(void);
	void (*sleep_ns)(uint64_t ns);
	void (*spin)(unsigned *spins);
	void (*sched_point)(void);
	/* locks that tasks hold: the simulator's alone */
	void (*holds)(const void *what, bool (*may)(const void *what), const void *from);
	void (*lets_go)(const void *what);
	void (*awaits)(const void *what);
	void (*may_wait)(void);

	int (*wait)(_Atomic uint32_t *word, uint32_t expected, uint64_t deadline_ns);
	int (*wake)(_Atomic uint32_t *word, int count); /* returns how many tasks it woke */

	int (*disk_open)(struct rt_disk **out, const char *path, unsigned flags,
		struct weft_error *err);
	void (*disk_close)(struct rt_disk *disk);
	void (*disk_register)(struct rt_disk *disk, void *base, size_t size);
	void (*disk_submit)(struct rt_disk *disk, struct rt_io *ios, unsigned count);
	void (*disk_wait)(struct rt_disk *disk, struct rt_io *ios, unsigned count);
	void (*disk_run)(struct rt_disk *disk, struct rt_io *ios, unsigned count);
	const struct rt_socket_ops *sockets;
};

extern const struct rt_ops rt_real_ops;
extern const struct rt_ops rt_sim_ops;

/* Selects a runtime. Only while no task runs on the one before. */
void rt_select(const struct rt_ops *ops, bool simulated);
const struct rt_ops *rt_selected(void);

/* As rt_wake. Returns how many tasks it woke. */
int rt_wake_counted(_Atomic uint32_t *word, int count);

static inline const struct iovec *rt_io_iov(const struct rt_io *io)
{
	return io->iov ? io->iov : &io->one;
}

static inline uint64_t rt_io_bytes(const struct rt_io *io)
{
	const struct iovec *iov = rt_io_iov(io);
	uint64_t bytes = 0;

	for (unsigned i = 0; i < io->iov_count; i++)
		bytes += iov[i].iov_len;
	return bytes;
}

/* Requests from ios[0] to the end of its chain. */
static inline unsigned rt_io_chain(const struct rt_io *ios, unsigned count)
{
	unsigned n = 1;

	while (n < count && ios[n].after_previous)
		n++;
	WEFT_ASSERT(n <= RT_CHAIN_MAX);
	return n;
}

#endif
