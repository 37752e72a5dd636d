/* SPDX-License-Identifier: Apache-2.0 */
/* How much work a seat may have on the GPU at once, by when others will want the GPU again. */
#ifndef AR_QUEUE_DEPTH_H
#define AR_QUEUE_DEPTH_H

#include "scheduler_state.h"
#include "clock_and_lock.h"

#define AR_DEPTH_QUIET_NS (4 * VC_MS) /* the depth of a seat if others are seated, and idle */

/* Nanoseconds of work that a seat may have in flight. */
uint64_t ar_depth(const struct ar_sched *sched, const struct ar_member *member, uint64_t now);
/* Nanoseconds of work that a seat may have behind waits of its streams: nothing holds it back when they are over. */
uint64_t ar_depth_behind_waits(const struct ar_sched *sched, const struct ar_member *member);
/* How much may be in flight in a pause, so that little of it is left when the pause ends: a part of the pause. */
uint64_t ar_depth_in_pause(const struct ar_pauses *pauses, uint64_t now);

#endif
