/* SPDX-License-Identifier: Apache-2.0 */
/* A seat's socket: which processes are let in, and which descriptors they get. */
#ifndef AR_SEAT_SOCKET_H
#define AR_SEAT_SOCKET_H

#include "seat.h"

/* Listen at the seat's socket, and no longer at the one before; false, with a reason, if that is impossible. */
bool ar_seat_socket_open(struct ar_seat *seat, const char **why);
/* Disconnects processes that have not identified themselves in time. */
void ar_seat_socket_tick(uint64_t now);

#endif
