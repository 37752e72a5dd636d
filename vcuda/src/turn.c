/* SPDX-License-Identifier: Apache-2.0 */
#include "turn.h"
#include "connection.h"

#define FRESH_NS (10 * VC_MS)  /* who waits says so more often; the others do not wait for a stopped process */
#define PAIR_NS (10 * VC_MS)   /* two launches that are over by then may be in flight */
#define BEFORE_NS (200 * VC_US) /* so long before the end of a launch the next one may follow it */
#define LATE_NS (5 * VC_MS)    /* a launch that is over by now for certain, if its like takes no longer */

/* Whether another process began to wait before this one. */
static bool is_before(const struct vc_slot *o, const struct vc_slot *mine, uint64_t since, uint64_t now) {
  uint64_t began = atomic_load(&o->turn_since), seen = atomic_load(&o->turn_seen);
  if (!began || (now > seen && now - seen > FRESH_NS)) return false;
  return began < since || (began == since && o < mine);
}

/* What keeps a launch from following another's that is expected to end then. */
static bool in_the_way(uint64_t end, uint64_t takes, uint64_t now) {
  if (!end) return false;
  if (end <= now) return now - end < takes + LATE_NS; /* it takes longer than expected */
  return end - now > BEFORE_NS && end - now + takes > PAIR_NS;
}

bool vc_turn_take(uint64_t since, uint64_t takes, uint64_t now) {
  struct vc_usage *usage = vc_seat.usage;
  struct vc_slot *mine = atomic_load(&vc_seat.slot);
  uint64_t last = now;
  if (!usage || !mine) return true;
  atomic_store(&mine->turn_seen, now);
  atomic_store(&mine->turn_since, since); /* first shown, then looked: of two at once one sees the other */
  uint32_t high = atomic_load(&usage->high);
  for (uint32_t i = 0; i < high && i < VC_SLOTS; i++) {
    const struct vc_slot *o = &usage->slot[i];
    if (o == mine || !atomic_load(&o->live)) continue;
    /* In this order: who takes the turn says when it ends before it leaves the queue. */
    if (is_before(o, mine, since, now)) return false;
    uint64_t end = atomic_load(&o->turn_end);
    if (in_the_way(end, takes, now)) return false;
    if (end > last) last = end;
  }
  atomic_store(&mine->turn_end, last + takes);
  atomic_store(&mine->turn_since, 0);
  return true;
}

void vc_turn_leave(void) {
  struct vc_slot *mine = atomic_load(&vc_seat.slot);
  if (mine && atomic_load_explicit(&mine->turn_since, memory_order_relaxed)) atomic_store(&mine->turn_since, 0);
}

void vc_turn_over(void) {
  struct vc_slot *mine = atomic_load(&vc_seat.slot);
  if (mine && atomic_load_explicit(&mine->turn_end, memory_order_relaxed)) atomic_store(&mine->turn_end, 0);
}

void vc_turn_keep(uint64_t now) {
  struct vc_slot *mine = atomic_load(&vc_seat.slot);
  if (mine && atomic_load_explicit(&mine->turn_since, memory_order_relaxed)) atomic_store(&mine->turn_seen, now);
}
