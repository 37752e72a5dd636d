/* SPDX-License-Identifier: Apache-2.0 */
#include "launch_room.h"

#define SHARED_NS (2 * VC_MS)
#define OVERLAP_NS (10 * VC_MS)
#define FEW_NS (200 * VC_US)
#define FEW_MOST_NS (20 * VC_MS)

static void add(struct vc_stream *s, uint64_t to) {
  struct vc_load *sum = (struct vc_load *)(uintptr_t)to;
  if (!s->shown) return;
  sum->ns += s->queued;
  sum->launches += vc_lane_covers(&s->lane) - s->lane.done;
}

struct vc_load vc_room_load(void) {
  struct vc_load sum = {0, 0};
  vc_stream_each(add, (uint64_t)(uintptr_t)&sum);
  return sum;
}

/* How many launches may be in flight at most while others are seated. */
static uint64_t crowd(void) {
  uint64_t trust = vc_duration_trust() + 1;
  return trust < VC_ROOM_CROWD ? trust : VC_ROOM_CROWD;
}

bool vc_room_fits(const struct vc_duration *d, struct vc_load load, uint64_t depth) {
  uint64_t each = vc_room_expected(d, depth);
  if (!depth || !load.launches) return true;
  if (depth < VC_ROOM_ALONE_NS && load.launches >= crowd()) return false;
  if (load.ns + each <= depth) return true;
  if (!vc_duration_known(d)) return depth >= VC_ROOM_ALONE_NS && load.launches < 2;
  if (depth < SHARED_NS) return false;
  /* One waits behind another, so that the GPU does not idle in between. */
  if (load.launches == 1 && (load.ns + each <= OVERLAP_NS || 2 * d->mean <= FEW_NS)) return true;
  return (load.launches + 1) * d->mean <= FEW_NS && load.ns + each <= FEW_MOST_NS;
}

uint32_t vc_room_step(const struct vc_duration *d, struct vc_load load, uint64_t depth) {
  if (!vc_duration_known(d) || vc_duration_doubted(d) || atomic_load(&vc_captures) > 0) return 1;
  uint64_t room = depth > load.ns ? depth - load.ns : 0;
  uint64_t least = vc_room_fence(depth), longest = d->longest;
  /* Another thread may just be giving the entry to another function. */
  uint64_t count = (depth && room < least ? room : least) / (longest ? longest : 1);
  if (depth && depth < VC_ROOM_ALONE_NS && count > crowd() / 4) count = crowd() / 4;
  return count < 1 ? 1 : count > VC_STEP_MAX ? VC_STEP_MAX : (uint32_t)count;
}

bool vc_room_is_long(const struct vc_duration *d, uint64_t depth) {
  uint64_t room = depth < SHARED_NS ? depth : SHARED_NS;
  return depth && depth < VC_ROOM_ALONE_NS && vc_room_expected(d, depth) > room;
}

uint64_t vc_room_turn(const struct vc_duration *d, uint64_t depth) {
  uint64_t each = vc_room_expected(d, depth);
  return vc_duration_known(d) || each > OVERLAP_NS ? each : OVERLAP_NS;
}
