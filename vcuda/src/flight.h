/* SPDX-License-Identifier: Apache-2.0 */
/* This process's time on the GPU: the union of the intervals in which some lane is active. */
#ifndef VC_FLIGHT_H
#define VC_FLIGHT_H

#include "lane.h"

/* A lane has something in flight again / has nothing any more. */
void vc_flight_start(struct vc_lane *lane, uint64_t now);
void vc_flight_land(struct vc_lane *lane, uint64_t now);
void vc_flight_launched(uint32_t launches);
/* Bring the busy time up to now and publish it; returns the number of active lanes. */
uint32_t vc_flight_publish(uint64_t now);
uint64_t vc_flight_busy(void);
uint64_t vc_flight_idle_since(void);
/* How much work may be in flight; 0: any amount. */
uint64_t vc_flight_depth(void);
void vc_flight_reset(void);

#endif
