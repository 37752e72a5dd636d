/* SPDX-License-Identifier: Apache-2.0 */
#include "launch_room.h"
#include "connection.h"
#include "in_flight.h"
#include "ready.h"

#define SHARED_NS (2 * VC_MS)
#define OVERLAP_NS (10 * VC_MS)
#define FEW_NS (200 * VC_US)
#define FEW_MOST_NS (20 * VC_MS)
#define FORCED_NS (10 * VC_MS)
#define UNKNOWN_NS (100 * VC_MS)
#define BACKGROUND_PERMILLE 15 /* of the GPU for background beside in-budget work that never pauses */

/* What of a stream's work comes after a wait. */
static struct vc_load after_wait(const struct vc_stream *s) {
  if (VC_LIKELY(!vc_lane_waits(&s->lane))) return (struct vc_load){0, 0};
  uint64_t ended = vc_lane_covers(&s->lane), before = s->before_wait;
  return (struct vc_load){s->behind, ended > before ? ended - before : 0};
}

static void add(struct vc_stream *s, uint64_t to) {
  struct vc_load *sum = (struct vc_load *)(uintptr_t)to;
  if (!s->shown) return;
  struct vc_load behind = after_wait(s);
  uint64_t queued = s->queued, launches = vc_lane_covers(&s->lane) - s->lane.done;
  sum->ns += queued > behind.ns ? queued - behind.ns : 0;
  sum->launches += launches > behind.launches ? launches - behind.launches : 0;
}

struct vc_load vc_room_load(void) {
  struct vc_load sum = {0, 0};
  vc_stream_each(add, (uint64_t)(uintptr_t)&sum);
  return sum;
}

static void add_behind(struct vc_stream *s, uint64_t to) {
  struct vc_load *sum = (struct vc_load *)(uintptr_t)to;
  struct vc_load behind = after_wait(s);
  sum->ns += behind.ns;
  sum->launches += behind.launches;
}

struct vc_load vc_room_behind(void) {
  struct vc_load sum = {0, 0};
  struct vc_usage *usage = vc_seat.usage;
  struct vc_slot *mine = atomic_load(&vc_seat.slot);
  vc_stream_each(add_behind, (uint64_t)(uintptr_t)&sum);
  if (!usage || !mine) return sum;
  atomic_store(&mine->behind, (uint32_t)sum.launches);
  atomic_store(&mine->behind_us, sum.ns < UINT32_MAX * VC_US ? (uint32_t)(sum.ns / VC_US) : UINT32_MAX);
  uint32_t high = atomic_load(&usage->high);
  for (uint32_t i = 0; i < high && i < VC_SLOTS; i++) {
    const struct vc_slot *o = &usage->slot[i];
    if (o == mine || !atomic_load(&o->live)) continue;
    sum.launches += atomic_load(&o->behind);
    sum.ns += atomic_load(&o->behind_us) * VC_US;
  }
  return sum;
}

uint64_t vc_room_expected_behind(const struct vc_duration *d) {
  return vc_duration_known(d) ? d->longest : UNKNOWN_NS;
}

bool vc_room_fits_behind(const struct vc_duration *d, struct vc_load behind, uint64_t depth) {
  const struct vc_policy *policy = atomic_load(&vc_seat.policy);
  if (!behind.launches && (!depth || depth >= VC_ROOM_ALONE_NS)) return true;
  if (!depth || depth >= VC_ROOM_ALONE_NS) return behind.ns + d->longest <= VC_ROOM_ALONE_NS;
  if (behind.launches >= VC_BEHIND_MOST) return false;
  uint64_t most = policy ? atomic_load_explicit(&policy->behind_ns, memory_order_relaxed) : 0;
  if (vc_gate_open() && most < depth) most = depth;
  return behind.ns + vc_room_expected_behind(d) <= most;
}

bool vc_room_force_behind(const struct vc_duration *d, struct vc_load behind, uint64_t depth, uint64_t since,
                          uint64_t now) {
  const struct vc_policy *policy = atomic_load(&vc_seat.policy);
  uint64_t share = atomic_load(&policy->vclass) == VC_BACKGROUND ? BACKGROUND_PERMILLE : atomic_load(&policy->request);
  uint64_t patience = (behind.ns + vc_room_expected_behind(d)) * VC_PERMILLE / (share ? share : 1);
  uint64_t last = atomic_load(&vc_seat.usage->forced_at), from = last > since && last <= now ? last : since;
  if (!depth || depth >= VC_ROOM_ALONE_NS || patience < FORCED_NS) patience = FORCED_NS;
  return now - from >= patience && atomic_compare_exchange_strong(&vc_seat.usage->forced_at, &last, now);
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
