/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How much work this process may have in flight: by how long launches of each function take, and by the depth that the
 * arbiter allows, in nanoseconds of work (0: any amount).
 */
#ifndef VC_LAUNCH_ROOM_H
#define VC_LAUNCH_ROOM_H

#include "stream.h"

#define VC_ROOM_ALONE_NS (10 * VC_MS)  /* with less depth than this, others are seated on this GPU */
#define VC_ROOM_FENCE_NS (500 * VC_US) /* how much work a fence covers if no other seat waits */
#define VC_ROOM_CROWD 64u              /* launches in flight while others are seated, since estimates can be wrong */
#define VC_ROOM_FEW 16u                /* with fewer allowed than that, each is looked at */

struct vc_load {
  uint64_t ns, launches;
};

/* What the seat has behind waits; also says what this process has. */
struct vc_load vc_room_behind(void);
/* Whether a launch may join it. */
bool vc_room_fits_behind(const struct vc_duration *d, struct vc_load behind, uint64_t depth);
/* How long a launch there is expected to take: nothing stops it, so one that was never measured counts as long. */
uint64_t vc_room_expected_behind(const struct vc_duration *d);
/* Whether a launch that found no room there since `since` joins it all the same, because a program may count on launches
 * to return. One of a seat at a time, and no faster than the seat would have its share of the GPU. */
bool vc_room_force_behind(const struct vc_duration *d, struct vc_load behind, uint64_t depth, uint64_t since,
                          uint64_t now);

/* What is in flight, in all streams. */
struct vc_load vc_room_load(void);
/* Whether a launch may join what is in flight. */
bool vc_room_fits(const struct vc_duration *d, struct vc_load load, uint64_t depth);
/* How many launches of a function may follow, at least 1, before the room is looked at again. */
uint32_t vc_room_step(const struct vc_duration *d, struct vc_load load, uint64_t depth);
/* Whether a launch leaves room for no other while others want the GPU: the seat's processes take turns.
 * In another's pause no more may follow each other than when it is over. */
bool vc_room_is_long(const struct vc_duration *d, uint64_t depth);
/* What a long launch shows the others of its seat as its time: none of them launches just before the end of one whose
 * function was never measured. */
uint64_t vc_room_turn(const struct vc_duration *d, uint64_t depth);

/* How long a launch is expected to take. One whose function was never measured runs alone if others are seated, and at
 * most in pairs if none is. */
static inline uint64_t vc_room_expected(const struct vc_duration *d, uint64_t depth) {
  if (vc_duration_known(d)) return d->longest;
  uint64_t guess = depth >= VC_ROOM_ALONE_NS ? depth / 2 : depth + 1;
  return d->longest > guess ? d->longest : guess;
}

/* How much work a fence covers. */
static inline uint64_t vc_room_fence(uint64_t depth) {
  return depth && depth / 4 < VC_ROOM_FENCE_NS ? depth / 4 : VC_ROOM_FENCE_NS;
}

/* Whether enough launches took as long as expected for some to be made without a look at the room. */
static inline bool vc_room_trusts(void) {
  return vc_duration_trust() >= VC_ROOM_FEW;
}

#endif
