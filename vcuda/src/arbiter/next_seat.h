/* SPDX-License-Identifier: Apache-2.0 */
/* Which seat gets the GPU next. */
#ifndef AR_NEXT_SEAT_H
#define AR_NEXT_SEAT_H

#include "scheduler_state.h"

/* The index of the seat to run next by the rule, or -1. */
int ar_next_seat(const struct ar_sched *sched, uint64_t now);
/* Whether the next seat can wait for the holder's next pause: its launches are long and beyond its request, and some of
 * that work then costs no other seat time. */
bool ar_next_can_wait(const struct ar_member *next, const struct ar_member *holder, uint64_t now);

#endif
