/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Checksums: 64 bits over bytes and the place they belong to.
 *
 * The place of a page is its PID, incarnation and version. So a whole image in the wrong slot is as
 * wrong as a damaged one. So is an image that a lost write should have replaced (invariant 9). With
 * GMAC the place is the nonce, and the bytes are authenticated data without ciphertext. This finds
 * damage, not attackers: it has 64 bits, and a place may recur after a crash.
 *
 * OpenSSL's contexts are made at open and kept in slots, so that a sum allocates nothing and never
 * waits. A task takes the first free slot from its own on. There is no scheduling point between
 * taking a slot and giving it back.
 */
#include "engine/store/store_internal.h"

#include <errno.h>
#include <limits.h>
#include <openssl/evp.h>
#include <openssl/sha.h>

#define CHECKSUM_SLOTS          16u
#define CHECKSUM_PLACE_BYTES    24
#define CHECKSUM_GMAC_TAG_BYTES 16

struct checksum_slot {
	_Atomic uint32_t
		taken; /* protects the contexts; acquire to take, release to give back */
	EVP_CIPHER_CTX *cipher;
	EVP_MD_CTX *digest;
} __attribute__((aligned(CACHE_LINE)));

struct checksummer {
	struct checksum_slot slot[CHECKSUM_SLOTS];
	EVP_CIPHER *cipher;
	EVP_MD *digest;
};

/* Gives the library's objects back; also when the simulator cuts this node's power. */
static void checksummer_release(void *arg)
{
	struct checksummer *c = arg;

	for (unsigned i = 0; i < CHECKSUM_SLOTS; i++) {
		EVP_CIPHER_CTX_free(c->slot[i].cipher);
		EVP_MD_CTX_free(c->slot[i].digest);
	}
	EVP_CIPHER_free(c->cipher);
	EVP_MD_free(c->digest);
}

static int gmac_slot_open(
	struct checksummer *c, struct checksum_slot *slot, const uint8_t *key)
{
	slot->cipher = EVP_CIPHER_CTX_new();
	if (!slot->cipher)
		return -ENOMEM;
	if (!EVP_EncryptInit_ex2(slot->cipher, c->cipher, NULL, NULL, NULL) ||
		!EVP_CIPHER_CTX_ctrl(slot->cipher, EVP_CTRL_AEAD_SET_IVLEN,
			CHECKSUM_PLACE_BYTES, NULL) ||
		!EVP_EncryptInit_ex2(slot->cipher, NULL, key, NULL, NULL))
		return -ENOSYS;
	return 0;
}

static int digest_slot_open(struct checksummer *c, struct checksum_slot *slot)
{
	slot->digest = EVP_MD_CTX_new();
	if (!slot->digest)
		return -ENOMEM;
	return EVP_DigestInit_ex2(slot->digest, c->digest, NULL) ? 0 : -ENOSYS;
}

int checksummer_open(
	struct checksummer **out, enum disk_checksum kind, const uint8_t key[32])
{
	struct checksummer *c;
	int rc = 0;

	if (!checksum_name(kind))
		return -EINVAL;
	c = rt_alloc(sizeof(*c));
	if (!c)
		return -ENOMEM;
	rt_on_crash(checksummer_release, c);
	if (kind == DISK_CHECKSUM_GMAC)
		c->cipher = EVP_CIPHER_fetch(NULL, "AES-128-GCM", NULL);
	else
		c->digest = EVP_MD_fetch(NULL,
			kind == DISK_CHECKSUM_SHA256 ? "SHA2-256" : "BLAKE2B-512", NULL);
	if (!c->cipher && !c->digest)
		rc = -ENOSYS;
	for (unsigned i = 0; !rc && i < CHECKSUM_SLOTS; i++)
		rc = c->cipher ? gmac_slot_open(c, &c->slot[i], key)
			       : digest_slot_open(c, &c->slot[i]);
	if (rc) {
		checksummer_close(c);
		return rc;
	}
	*out = c;
	return 0;
}

void checksummer_close(struct checksummer *c)
{
	if (!c)
		return;
	rt_on_crash_forget(checksummer_release, c);
	checksummer_release(c);
	rt_free(c);
}

static struct checksum_slot *slot_take(struct checksummer *c)
{
	unsigned first = rt_task_index();
	unsigned spins = 0;

	for (unsigned i = first;; i++) {
		struct checksum_slot *slot = &c->slot[i % CHECKSUM_SLOTS];

		if (!atomic_load_explicit(&slot->taken, memory_order_relaxed) &&
			!atomic_exchange_explicit(&slot->taken, 1, memory_order_acquire))
			return slot;
		if (i - first >= CHECKSUM_SLOTS)
			rt_spin(&spins);
	}
}

/* A failure of the library is no property of the bytes. It must pass neither as a good sum nor as
 * damage. */
static void gmac_sum(EVP_CIPHER_CTX *ctx, const uint64_t place[3],
	const struct iovec *iov, unsigned iov_count, uint8_t *tag)
{
	int len = 0;

	WEFT_ASSERT(
		EVP_EncryptInit_ex2(ctx, NULL, NULL, (const uint8_t *)place, NULL) == 1);
	for (unsigned i = 0; i < iov_count; i++) {
		WEFT_ASSERT(iov[i].iov_len <= INT_MAX);
		WEFT_ASSERT(EVP_EncryptUpdate(ctx, NULL, &len, iov[i].iov_base,
				    (int)iov[i].iov_len) == 1);
	}
	WEFT_ASSERT(EVP_EncryptFinal_ex(ctx, tag, &len) == 1);
	WEFT_ASSERT(EVP_CIPHER_CTX_ctrl(ctx, EVP_CTRL_AEAD_GET_TAG,
			    CHECKSUM_GMAC_TAG_BYTES, tag) == 1);
}

static void digest_sum(EVP_MD_CTX *ctx, const uint64_t place[3], const struct iovec *iov,
	unsigned iov_count, uint8_t *sum)
{
	WEFT_ASSERT(EVP_DigestInit_ex2(ctx, NULL, NULL) == 1);
	WEFT_ASSERT(EVP_DigestUpdate(ctx, place, CHECKSUM_PLACE_BYTES) == 1);
	for (unsigned i = 0; i < iov_count; i++)
		WEFT_ASSERT(EVP_DigestUpdate(ctx, iov[i].iov_base, iov[i].iov_len) == 1);
	WEFT_ASSERT(EVP_DigestFinal_ex(ctx, sum, NULL) == 1);
}

uint64_t checksummer_sum(struct checksummer *c, const uint64_t place[3],
	const struct iovec *iov, unsigned iov_count)
{
	struct checksum_slot *slot = slot_take(c);
	uint8_t sum[EVP_MAX_MD_SIZE];
	uint64_t first;

	if (slot->cipher)
		gmac_sum(slot->cipher, place, iov, iov_count, sum);
	else
		digest_sum(slot->digest, place, iov, iov_count, sum);
	atomic_store_explicit(&slot->taken, 0, memory_order_release);
	memcpy(&first, sum, sizeof(first));
	return first ? first : 1; /* 0 marks a descriptor that was never written */
}

uint64_t checksummer_sum_table(struct checksummer *c, const struct disk_table_block *b)
{
	const uint64_t place[3] = {DISK_PLACE_TABLE + b->block, b->generation, 0};
	uint64_t zero = 0;
	const struct iovec iov[3] = {
		{(void *)b, offsetof(struct disk_table_block, checksum)},
		{&zero, sizeof(zero)},
		{(void *)b->slot, sizeof(b->slot)},
	};

	return checksummer_sum(c, place, iov, ARRAY_SIZE(iov));
}

uint64_t checksummer_sum_head(struct checksummer *c, const struct disk_log_head *h)
{
	const uint64_t place[3] = {DISK_PLACE_LOG_HEAD, h->generation, 0};
	const struct iovec iov = {(void *)h, offsetof(struct disk_log_head, checksum)};

	return checksummer_sum(c, place, &iov, 1);
}

uint64_t superblock_sum(const struct disk_superblock *sb)
{
	uint8_t sum[SHA256_DIGEST_LENGTH];
	uint64_t first;

	WEFT_ASSERT(SHA256(
		(const uint8_t *)sb, offsetof(struct disk_superblock, checksum), sum));
	memcpy(&first, sum, sizeof(first));
	return first;
}

const char *checksum_name(enum disk_checksum kind)
{
	switch (kind) {
	case DISK_CHECKSUM_GMAC:
		return "AES-128-GMAC";
	case DISK_CHECKSUM_SHA256:
		return "SHA-256";
	case DISK_CHECKSUM_BLAKE2B:
		return "BLAKE2b";
	}
	return NULL;
}

uint64_t store_checksum(struct store *s, uint64_t place0, uint64_t place1,
	uint64_t place2, const struct iovec *iov, unsigned iov_count)
{
	const uint64_t place[3] = {place0, place1, place2};

	return checksummer_sum(s->checksums, place, iov, iov_count);
}

uint64_t store_page_checksum(struct store *s, page_id pid, uint64_t incarnation,
	uint64_t version, const void *image)
{
	const uint64_t place[3] = {pid, incarnation, version};
	const struct iovec iov = {(void *)image, PAGE_SIZE};

	return checksummer_sum(s->checksums, place, &iov, 1);
}

uint64_t store_table_checksum(struct store *s, const struct disk_table_block *b)
{
	return checksummer_sum_table(s->checksums, b);
}
