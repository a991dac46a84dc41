/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What libfuse 3.14 (Debian 12's) drops on the floor, done here.
 *
 * It speaks protocol 7.31 and neither sends some INIT flags (PARALLEL_DIROPS,
 * HANDLE_KILLPRIV_V2, SETXATTR_EXT) nor knows some requests (STATX, TMPFILE, SYNCFS) and
 * fields (the "kill setuid" flags of OPEN, WRITE and SETXATTR). The shim sees each
 * message before libfuse and each reply after it. A newer libfuse does part of this
 * itself; setting a flag twice, or answering a request that it would also know, changes
 * nothing, so there is one path for both.
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
	_Atomic uint64_t agreed; /* ours */
};

/*
 * Looks at a message (checked to be whole) before libfuse does. True: answered, or needs
 * no answer. False: give it to libfuse.
 */
bool shim_receive(struct session *s, const struct fuse_in_header *in);
/* fuse_custom_io's writev: libfuse's replies on their way to the kernel. */
ssize_t shim_writev(int fd, struct iovec *iov, int count, void *session);
/* fuse_custom_io's read; the receive loop does not use it. */
ssize_t shim_read(int fd, void *buf, size_t len, void *session);
/* Answers a message without libfuse: `error` is 0 or a negative errno. False: nobody took
 * it. */
bool shim_reply(
	struct session *s, uint64_t unique, int error, const void *payload, size_t len);
/*
 * The request that this worker is handing to libfuse asks for setuid and setgid bits to
 * be cleared (OPEN, CREATE, WRITE, SETATTR). Ask at the start of a handler, before it
 * waits.
 */
bool shim_request_kills_setid(void);
/* A READ into a program's memory, or a WRITE from it, past the kernel's page cache. */
bool shim_request_is_direct(void);
/* A WRITE from the kernel's page cache (a mapping's dirty page), not from write(2). */
bool shim_request_is_writeback(void);
/* Its number, for shim_reply. */
uint64_t shim_request_unique(void);

#endif
