/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Adds the features that libfuse 3.14 (Debian 12) lacks.
 *
 * That version speaks protocol 7.31. It does not send some INIT flags (PARALLEL_DIROPS,
 * HANDLE_KILLPRIV_V2, SETXATTR_EXT). It does not know some requests (STATX, TMPFILE, SYNCFS) and
 * fields (the "kill setuid" flags of OPEN, WRITE and SETXATTR). The shim sees each message before
 * libfuse and each reply after it. A newer libfuse does part of this itself. To set a flag twice,
 * or to answer a request that libfuse also knows, changes nothing. So there is one path for both.
 */
#ifndef WEFT_FS_SHIM_H
#define WEFT_FS_SHIM_H

#include <linux/fuse.h>
#include <stdatomic.h>
#include <sys/uio.h>

#include "engine/common/base.h"

struct session;

struct shim {
	uint64_t init_unique;    /* the INIT request being answered, or 0 */
	uint32_t minor;          /* of the protocol that the kernel speaks */
	uint64_t offered;        /* the kernel's INIT flags */
	_Atomic uint64_t agreed; /* the flags of the answer */
};

/* Processes a message (checked to be whole) before libfuse. Returns true if it is answered or needs
 * no answer. Returns false if libfuse must get it. */
bool shim_receive(struct session *s, const struct fuse_in_header *in);
/* fuse_custom_io's writev: sends replies of libfuse to the kernel. */
ssize_t shim_writev(int fd, struct iovec *iov, int count, void *session);
/* fuse_custom_io's read. The receive loop does not use it. */
ssize_t shim_read(int fd, void *buf, size_t len, void *session);
/* Answers a message without libfuse. `error`: 0 or a negative errno. Returns false if the kernel
 * refused the answer. */
bool shim_reply(
	struct session *s, uint64_t unique, int error, const void *payload, size_t len);
/* Returns true if the request that this worker passes to libfuse asks to clear setuid and setgid
 * bits (OPEN, CREATE, WRITE, SETATTR). Call it at the start of a handler, before it waits. */
bool shim_request_kills_setid(void);
/* Returns true for a READ into a program's memory, or a WRITE from it, past the kernel's page
 * cache. */
bool shim_request_is_direct(void);
/* Returns true for a WRITE from the kernel's page cache (a dirty page of a mapping), not from
 * write(2). */
bool shim_request_is_writeback(void);
/* Returns its number, for shim_reply. */
uint64_t shim_request_unique(void);

#endif
