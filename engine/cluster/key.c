/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The cluster's key, and the volume's key that is made from it.
 *
 * The volume's key is in every store, so any reader of a store has it. It is an HMAC of the
 * cluster's key, so that no node can join with it.
 */
#include "engine/cluster/cluster_internal.h"

#include "engine/rt/secret.h"

#include <openssl/evp.h>
#include <openssl/hmac.h>

int cluster_key_parse(struct cluster *c, const char *text, size_t length,
	const char *path, struct weft_error *err)
{
	const size_t digits = 2 * (size_t)CLUSTER_KEY_BYTES;

	if (!c->key)
		c->key = secret_alloc(CLUSTER_KEY_BYTES);
	if (!c->key)
		return weft_error(err, -ENOMEM, "reading %s: out of memory", path);
	while (length && strchr(" \t\r\n", text[length - 1]) && text[length - 1])
		length--;
	if (length != digits || !hex_parse(text, c->key, CLUSTER_KEY_BYTES))
		return weft_error(err, -EINVAL,
			"the key file %s does not hold a key: it must be %zu hexadecimal "
			"digits and a newline, as `weft cluster new` writes them",
			path, digits);
	c->has_key = true;
	return 0;
}

int cluster_volume_key(const struct cluster *c, uint8_t out[CLUSTER_KEY_BYTES])
{
	static const char what[] = "weft volume key";
	uint8_t message[sizeof(what) - 1 + UUID_BYTES];
	unsigned length = CLUSTER_KEY_BYTES;

	if (!c->has_key)
		return -ENOKEY;
	memcpy(message, what, sizeof(what) - 1);
	memcpy(message + sizeof(what) - 1, c->volume_uuid, UUID_BYTES);
	if (!HMAC(EVP_sha256(), c->key, CLUSTER_KEY_BYTES, message, sizeof(message), out,
		    &length) ||
		length != CLUSTER_KEY_BYTES)
		return -ENOSYS;
	return 0;
}
