/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The provider of coherence.h and peers.h for a volume of several nodes. It runs the functions of
 * protocol.h over the network (docs/nodes/driver.md, "The driver"). Once it is open, all calls go
 * through its tables.
 */
#ifndef WEFT_PAGE_DRIVER_H
#define WEFT_PAGE_DRIVER_H

#include "engine/coherence/peers.h"

/* Opens the provider. Returns 0, -EINVAL if this node's id is too high, or -ENOMEM. */
int page_driver_open(struct coherence **out, const struct coherence_options *o);

#endif
