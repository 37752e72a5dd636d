/* SPDX-License-Identifier: Apache-2.0 */
/* This process's and its seat's time on the GPU: the union of the times with some lane active. */
#ifndef VC_IN_FLIGHT_H
#define VC_IN_FLIGHT_H

#include "clock_and_lock.h"

/* A lane became active, or stopped being so at `then`, at the latest now. */
void vc_flight_start(uint64_t now);
void vc_flight_land(uint64_t then, uint64_t now);
/* Before and after the seat's pages are replaced: work in flight goes on counting in the new ones. */
void vc_flight_leave(void);
void vc_flight_join(void);
/* Count launches, for the arbiter to show. */
void vc_flight_launched(uint64_t launches);
/* Bring the busy time up to now and publish it; returns the number of active lanes. */
uint32_t vc_flight_publish(uint64_t now);
/* Whether some lane is active. */
bool vc_flight_any(void);
/* Nanoseconds with work in flight, ever; and since when there is none. */
uint64_t vc_flight_busy(void);
uint64_t vc_flight_idle_since(void);
/* For how many nanoseconds this process must be idle before the gate is offered to others, learned from its pauses. */
uint64_t vc_flight_linger(void);
/* The process waited for the gate or for room, which is not a pause. */
void vc_flight_waited(void);
/* Whether another seat's work was on the GPU after that time: then none of ours shows how long it takes. */
bool vc_flight_beside(uint64_t since);
/* How many nanoseconds of work may be in flight; 0: any number. */
uint64_t vc_flight_depth(void);
/* Let the keeper sleep. A long sleep ends early if a lane becomes active, or by vc_flight_nudge. */
void vc_flight_rest(uint64_t until, bool long_one);
void vc_flight_nudge(void);
/* In a forked child. */
void vc_flight_reset(void);

#endif
