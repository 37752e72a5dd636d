/* SPDX-License-Identifier: Apache-2.0 */
/* Seats that get less than they are owed, and those among them that pause and are back soon. */
#ifndef AR_LATE_SEATS_H
#define AR_LATE_SEATS_H

#include "scheduler_state.h"
#include "clock_and_lock.h"

#define AR_RECENT_NS (50 * VC_MS) /* a seat counts as busy for so long after its work */

/* How long ago a seat should have had what it is owed. */
int64_t ar_late_by(const struct ar_member *member);
/* Whether another in-budget seat does not get its request, and lags much more than this one. */
bool ar_late_is(const struct ar_member *other, const struct ar_member *member);
/* Whether such a seat waits for this one to end its quantum. */
bool ar_late_kept_by(const struct ar_sched *sched, const struct ar_member *member);
/* Whether a seat is in one of its usual short pauses, which ends within so many nanoseconds. */
bool ar_late_back_soon(const struct ar_member *member, uint64_t within, uint64_t now);

#endif
