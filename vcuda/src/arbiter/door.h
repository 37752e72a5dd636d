/* SPDX-License-Identifier: Apache-2.0 */
/* A seat's socket: who comes in, and what they are handed. */
#ifndef AR_DOOR_H
#define AR_DOOR_H

#include "seat.h"

bool ar_door_open(struct ar_seat *seat, const char **why);
/* Strangers who never said who they are are shown out. */
void ar_door_tick(uint64_t now);

#endif
