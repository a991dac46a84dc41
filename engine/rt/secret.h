/* SPDX-License-Identifier: Apache-2.0 */
/* Memory for keys: locked, in no core dump and no child, wiped at its end. */
#ifndef WEFT_RT_SECRET_H
#define WEFT_RT_SECRET_H

#include "engine/common/base.h"

/* Zeros; NULL without memory. Where memory may not be locked (RLIMIT_MEMLOCK), it is as any
 * other. */
void *secret_alloc(size_t bytes);
/* NULL is none. */
void secret_free(void *secret, size_t bytes);

#endif
