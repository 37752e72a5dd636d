/* SPDX-License-Identifier: Apache-2.0 */
/* The event loop: descriptors and what to do if they are ready, and what is due by time. It knows nothing of seats. */
#ifndef AR_EVENT_LOOP_H
#define AR_EVENT_LOOP_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

/* A descriptor can be read, or written if that was asked for. */
typedef void ar_ready(void *owner, int fd, bool writable);

/* Call `ready` when the descriptor can be read; false without memory. */
bool ar_loop_watch(int fd, ar_ready *ready, void *owner);
/* Wait for room to write instead of something to read, or the other way round. */
void ar_loop_want(int fd, bool writable);
/* Stop that, before the descriptor is closed. */
void ar_loop_unwatch(int fd);

/* Accept a connection (close-on-exec, non-blocking); -1 if there is none. If descriptors have run out, disconnect the
 * caller at once, so that it does not keep the loop busy. */
int ar_loop_accept(int fd);
/* Listen on a Unix socket, replacing one that a dead arbiter left; -1, with a reason, if that is impossible. */
int ar_loop_listen(const char *path, int type, mode_t mode, const char **why);
/* How many descriptors the process may have. */
unsigned ar_loop_descriptors(void);

bool ar_loop_start(const char **why);
/* Run until stopped, or until `busy` has been false for so many seconds (0: never); call `tick` about every 50 ms. */
void ar_loop_run(void (*tick)(uint64_t now), bool (*busy)(void), int idle_exit);
void ar_loop_stop(void);

#endif
