/* SPDX-License-Identifier: Apache-2.0 */
/* A seat's socket: which processes are let in, and which descriptors they get. */
#ifndef AR_DOOR_H
#define AR_DOOR_H

#include "seat.h"

/* Listen at the seat's socket, and no longer at the one before; false, with a reason, if that is impossible. */
bool ar_door_open(struct ar_seat *seat, const char **why);
/* Disconnects processes that have not identified themselves in time. */
void ar_door_tick(uint64_t now);

#endif
