/* SPDX-License-Identifier: Apache-2.0 */
/* fsck on simulated disks, which have to be sound; ends the run with what it says if not. */
#ifndef WEFT_TEST_CHECK_FSCK_H
#define WEFT_TEST_CHECK_FSCK_H

#include <stdbool.h>

/*
 * All stores of a volume, by the names of their disks, as they are: what is not closed is
 * replayed in memory. Runs on a node of its own. True: some of it was.
 */
bool sim_check_stores(const char *const *names, unsigned count);
/*
 * The same with leave to repair, which writes what is replayed. False: its power was cut.
 */
bool sim_recover_stores(const char *const *names, unsigned count);
/* One of several without the others. */
void sim_check_store_alone(const char *name);

#endif
