/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the conformance tests share.
 *
 * The same assertions hold on every local filesystem: the program runs on a weft mount
 * and, as the control, on ext4. Each test has a fresh directory, which is its working
 * directory. What filesystems may answer differently is asked by posix_is_weft().
 */
#ifndef WEFT_TESTS_POSIX_H
#define WEFT_TESTS_POSIX_H

#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <unistd.h>

/* The value of a system call that must succeed. */
#define must(call) posix_must((int64_t)(call), #call, __FILE__, __LINE__)
int64_t posix_must(int64_t ret, const char *call, const char *file, int line);
/* A call that must fail with this error. */
#define refuses(error, call)                                                             \
	posix_refuses(error, (int64_t)(call), #call, __FILE__, __LINE__)
void posix_refuses(int error, int64_t ret, const char *call, const char *file, int line);

bool posix_is_weft(void);

/* A test's own directory, empty; and back, removing all. */
int posix_enter(void **state);
int posix_leave(void **state);
#define posix_test(f) cmocka_unit_test_setup_teardown(f, posix_enter, posix_leave)

/* Two users and a group apart. */
#define ALICE 65533u
#define BOB   65532u
#define GROUP 65531u

/* Acts as this user with this group and up to one more (0: none); 0, 0, 0 is root again.
 */
void posix_act_as(uid_t uid, gid_t gid, gid_t other);
#define as_root() posix_act_as(0, 0, 0)

/* Files of a content, closed; descriptors to be closed by the test. */
void posix_file(const char *path, const char *content);
int posix_open(const char *path, int flags); /* mode 0644; must succeed */
struct stat posix_stat(const char *path);    /* lstat */
struct stat posix_fstat(int fd);
mode_t posix_mode(const char *path); /* permission bits */
/* All bytes of [offset, offset + len) are `byte`. */
void posix_assert_bytes(int fd, off_t offset, size_t len, unsigned char byte);
/* Memory for O_DIRECT. */
void *posix_aligned(size_t len);
/* Lets the clock of timestamps move on. */
void posix_tick(void);
bool posix_before(struct timespec a, struct timespec b);
bool posix_same(struct timespec a, struct timespec b);
/* The exit status of a child that runs f(arg). */
int posix_child(int (*f)(void *), void *arg);

struct posix_topic {
	const char *name;
	const struct CMUnitTest *tests;
	size_t count;
};
#define POSIX_TOPIC(topic, list)                                                         \
	const struct posix_topic topic##_topic = {                                       \
		#topic, list, sizeof(list) / sizeof((list)[0])}

extern const struct posix_topic names_topic, rename_topic, permissions_topic, times_topic,
	data_topic, space_topic, mappings_topic, locks_topic, flags_topic, xattrs_topic, acls_topic,
	directories_topic, unlinked_topic;

#endif
