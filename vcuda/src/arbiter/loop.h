/* SPDX-License-Identifier: Apache-2.0 */
/* The event loop: descriptors and what to do when they are ready, and what is due by time. Knows
 * nothing of seats. */
#ifndef AR_LOOP_H
#define AR_LOOP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* A descriptor can be read, or written if that was asked for. */
typedef void ar_ready(void *owner, int fd, bool writable);

bool ar_loop_watch(int fd, ar_ready *ready, void *owner);
/* Wait for room to write instead of something to read, or the other way round. */
void ar_loop_want(int fd, bool writable);
/* Before the descriptor is closed. */
void ar_loop_unwatch(int fd);
/* Call this about every 50 ms, in the order of registration. */
bool ar_loop_every(void (*tick)(uint64_t now));

/* Accept a connection (close-on-exec, non-blocking), or -1. Out of descriptors, the caller is
 * turned away at once, so that it does not keep the loop busy. */
int ar_loop_accept(int fd);
/* Listen on a Unix socket, replacing one that a dead arbiter left. */
int ar_loop_listen(const char *path, int type, mode_t mode, const char **why);
/* How many descriptors the process may have. */
unsigned ar_loop_descriptors(void);

bool ar_loop_start(const char **why);
/* Run until stopped, or until `busy` has been false for so many seconds (0: never). */
void ar_loop_run(bool (*busy)(void), int idle_exit);
void ar_loop_stop(void);

#endif
