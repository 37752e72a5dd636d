/* SPDX-License-Identifier: Apache-2.0 */
/* The event loop: seats' sockets, their processes' ends, and the control socket. */
#ifndef AR_DOOR_H
#define AR_DOOR_H

#include "seat.h"

bool ar_door_open(struct ar_seat *seat, const char **why);
void ar_door_close(struct ar_seat *seat);
void ar_door_watch_root(struct ar_seat *seat);
void ar_door_watch_client(struct ar_client *client);
void ar_door_forget_client(struct ar_client *client);
bool ar_loop_start(const char **why);
/* Until told to stop, or idle for so many seconds (0: never). */
void ar_loop_run(int idle_exit);
void ar_loop_stop(void);
/* Listen on a Unix socket, replacing one that a dead arbiter left. */
int ar_listen(const char *path, int type, mode_t mode, const char **why);

#endif
