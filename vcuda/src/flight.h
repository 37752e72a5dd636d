/* SPDX-License-Identifier: Apache-2.0 */
/* This process's and its seat's time on the GPU: the union of the times with some lane active. */
#ifndef VC_FLIGHT_H
#define VC_FLIGHT_H

#include "os.h"

/* A lane became active / is active no more; `then` is when, at the latest now. */
void vc_flight_start(uint64_t now);
void vc_flight_land(uint64_t then, uint64_t now);
/* The seat's pages are about to be others / are there: work in flight counts on in those. */
void vc_flight_leave(void);
void vc_flight_join(void);
void vc_flight_launched(uint64_t launches);
/* Bring the busy time up to now and publish it; returns the number of active lanes. */
uint32_t vc_flight_publish(uint64_t now);
/* Whether some lane is active. */
bool vc_flight_any(void);
uint64_t vc_flight_busy(void);
uint64_t vc_flight_idle_since(void);
/* How long this process is idle before the gate is offered to others, learned from its pauses. */
uint64_t vc_flight_linger(void);
/* It waited for the gate or for room: that was no pause. */
void vc_flight_waited(void);
/* How much work may be in flight; 0: any amount. */
uint64_t vc_flight_depth(void);
/* The keeper's rest. A long one ends when a lane becomes active, or by vc_flight_nudge. */
void vc_flight_rest(uint64_t until, bool long_one);
void vc_flight_nudge(void);
void vc_flight_reset(void);

#endif
