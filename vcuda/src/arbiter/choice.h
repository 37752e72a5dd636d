/* SPDX-License-Identifier: Apache-2.0 */
/* Which seat gets the GPU next, and how much a seat may have in flight, by when others will want the GPU again. */
#ifndef AR_CHOICE_H
#define AR_CHOICE_H

#include "member.h"
#include "os.h"

#define AR_DEPTH_QUIET_NS (4 * VC_MS) /* the depth of a seat if others are seated, and idle */

/* The index of the seat to run next by the rule, or -1. */
int ar_choice_next(const struct ar_sched *sched, uint64_t now);
/* Whether a seat that lags much more than this one waits for it to end its quantum. */
bool ar_choice_keeps_late(const struct ar_sched *sched, const struct ar_member *member);
/* Whether the next seat can wait for the holder's next pause: its launches are long and beyond its request, and some of
 * that work then costs no other seat time. */
bool ar_choice_can_wait(const struct ar_member *next, const struct ar_member *holder, uint64_t now);
/* When a background seat must stop to be gone before in-budget work comes back; 0: unknown. */
uint64_t ar_choice_latest(const struct ar_sched *sched, const struct ar_member *member, uint64_t now);
/* Nanoseconds of work that a seat may have in flight. */
uint64_t ar_choice_depth(const struct ar_sched *sched, const struct ar_member *member, uint64_t now);

#endif
