/* SPDX-License-Identifier: Apache-2.0 */
/* Each secret has pages of its own, since locking and protection work by pages. */
#include "engine/rt/secret.h"

#include <string.h>
#include <sys/mman.h>

void *secret_alloc(size_t bytes)
{
	size_t length = ALIGN_UP(bytes, (size_t)PAGE_SIZE);
	void *secret = mmap(NULL, length, PROT_READ | PROT_WRITE,
		MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

	if (secret == MAP_FAILED)
		return NULL;
	(void)mlock(secret, length);
	(void)madvise(secret, length, MADV_DONTDUMP);
	(void)madvise(secret, length, MADV_WIPEONFORK);
	return secret;
}

void secret_free(void *secret, size_t bytes)
{
	if (!secret)
		return;
	explicit_bzero(secret, bytes);
	munmap(secret, ALIGN_UP(bytes, (size_t)PAGE_SIZE));
}
