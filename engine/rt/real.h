/* SPDX-License-Identifier: Apache-2.0 */
/* Structures and functions that the files of the real runtime share. */
#ifndef WEFT_RT_REAL_H
#define WEFT_RT_REAL_H

#include "engine/rt/rt_internal.h"

uint64_t real_now_ns(void);
int64_t real_wall_ns(void);
uint64_t real_random(void);
void real_random_bytes(void *buf, size_t len);

void *real_alloc(size_t size);
void real_free(void *p);
void *real_alloc_pages(size_t size);
void real_free_pages(void *p, size_t size);

int real_task_spawn(
	struct rt_task **out, const char *name, void (*fn)(void *), void *arg);
void real_task_join(struct rt_task *task);
unsigned real_task_index(void);
void real_task_on_cpu(unsigned cpu);
void real_yield(void);
void real_sleep_ns(uint64_t ns);
void real_spin(unsigned *spins);

int real_wait(_Atomic uint32_t *word, uint32_t expected, uint64_t deadline_ns);
int real_wake(_Atomic uint32_t *word, int count);

int real_disk_open(
	struct rt_disk **out, const char *path, unsigned flags, struct weft_error *err);
void real_disk_close(struct rt_disk *disk);
void real_disk_register(struct rt_disk *disk, void *base, size_t size);
void real_disk_submit(struct rt_disk *disk, struct rt_io *ios, unsigned count);
void real_disk_wait(struct rt_disk *disk, struct rt_io *ios, unsigned count);
void real_disk_run(struct rt_disk *disk, struct rt_io *ios, unsigned count);

/* ---- the ring of a disk (real_ring.c) ---- */

struct real_ring;

/* The result of a flush, given the failures of earlier flushes. Notes the first failure. */
int real_flush_result(_Atomic int *failed, int result);

/* Returns -errno when io_uring is not available. The disk then works without it. */
int real_ring_open(struct real_ring **out, int fd, _Atomic int *flush_failed);
/* Reaps the requests that no task has waited for. No task may use any request any more. */
void real_ring_close(struct real_ring *ring);
void real_ring_register(struct real_ring *ring, void *base, size_t size);
/* The memory is about to be freed. No request may name it as a registered buffer any more. */
void real_ring_forget(struct real_ring *ring, void *base, size_t size);
void real_ring_submit(struct real_ring *ring, struct rt_io *ios, unsigned count);
void real_ring_wait(struct real_ring *ring, struct rt_io *ios, unsigned count);

/* ---- shared memory (real_shared.c) ---- */

struct rt_shared;
int real_shared_create(struct rt_shared **out, size_t size_bytes, bool others_write);
int real_shared_fd(const struct rt_shared *s);
/* Takes the descriptor, unless it fails. */
int real_shared_adopt(struct rt_shared **out, int fd);

/* ---- sockets (real_socket.c) ---- */

struct rt_socket;
int real_socket_watch(struct rt_socket **out, int fd);

/* real_free_pages calls it: all disks forget the memory. */
void real_disks_forget(void *base, size_t size);

#endif
