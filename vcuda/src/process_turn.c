/* SPDX-License-Identifier: Apache-2.0 */
#include "process_turn.h"
#include "connection.h"

#define FRESH_NS (10 * VC_MS)   /* a waiting process says so more often; nothing waits for a stopped one */
#define OVERLAP_NS (10 * VC_MS) /* two launches that end within this time may be in flight together */
#define BEFORE_NS (200 * VC_US) /* how long before a launch's end the next one may follow it */
#define LATE_NS (5 * VC_MS)     /* a launch this late is over, unless it takes longer than any of its function */

/* Launches that took the turn, and are in the driver's call: they do not show as in flight yet. */
static _Atomic uint32_t making;

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
  return end - now > BEFORE_NS && end - now + takes > OVERLAP_NS;
}

/* The launch runs behind what of this process is in flight or about to be, and behind others' launches. */
static void take(struct vc_slot *mine, uint64_t takes, uint64_t begin) {
  if (atomic_fetch_add(&making, 1)) {
    uint64_t end = atomic_load(&mine->turn_end);
    if (end > begin) begin = end;
  }
  atomic_store(&mine->turn_end, begin + takes);
  atomic_store(&mine->turn_since, 0);
}

bool vc_turn_take(uint64_t since, uint64_t takes, uint64_t own, uint64_t now) {
  struct vc_usage *usage = vc_seat.usage;
  struct vc_slot *mine = atomic_load(&vc_seat.slot);
  uint64_t last = now + own;
  if (!usage || !mine) {
    atomic_fetch_add(&making, 1);
    return true;
  }
  atomic_store(&mine->turn_seen, now);
  atomic_store(&mine->turn_since, since); /* publish first, then look: of two at once, one sees the other */
  uint32_t high = atomic_load(&usage->high);
  for (uint32_t i = 0; i < high && i < VC_SLOTS; i++) {
    const struct vc_slot *o = &usage->slot[i];
    if (o == mine || !atomic_load(&o->live)) continue;
    /* In this order: a process that takes the turn says when it ends before it leaves the queue. */
    if (is_before(o, mine, since, now)) return false;
    uint64_t end = atomic_load(&o->turn_end);
    if (in_the_way(end, takes, now)) return false;
    if (end > last) last = end;
  }
  take(mine, takes, last);
  return true;
}

void vc_turn_force(uint64_t takes, uint64_t own, uint64_t now) {
  struct vc_slot *mine = atomic_load(&vc_seat.slot);
  if (mine)
    take(mine, takes, now + own);
  else
    atomic_fetch_add(&making, 1);
}

void vc_turn_made(void) {
  atomic_fetch_sub(&making, 1);
}

void vc_turn_leave(void) {
  struct vc_slot *mine = atomic_load(&vc_seat.slot);
  if (mine && atomic_load_explicit(&mine->turn_since, memory_order_relaxed)) atomic_store(&mine->turn_since, 0);
}

/* The others wait as for the gate. By their own looks they would find the turn free later, with the GPU idle. */
static void wake_waiting(const struct vc_slot *mine) {
  struct vc_policy *policy = atomic_load(&vc_seat.policy);
  uint32_t high = atomic_load(&vc_seat.usage->high);
  for (uint32_t i = 0; policy && i < high && i < VC_SLOTS; i++) {
    const struct vc_slot *o = &vc_seat.usage->slot[i];
    if (o == mine || !atomic_load(&o->live) || !atomic_load(&o->turn_since)) continue;
    vc_wake(&policy->gate, policy->gate_key);
    return;
  }
}

uint64_t vc_turn_seen(void) {
  struct vc_slot *mine = atomic_load(&vc_seat.slot);
  uint64_t end = mine ? atomic_load(&mine->turn_end) : 0;
  return atomic_load(&making) ? 0 : end;
}

void vc_turn_over(uint64_t seen) {
  struct vc_slot *mine = atomic_load(&vc_seat.slot);
  if (mine && seen && atomic_compare_exchange_strong(&mine->turn_end, &seen, 0)) wake_waiting(mine);
}

void vc_turn_keep(uint64_t now) {
  struct vc_slot *mine = atomic_load(&vc_seat.slot);
  if (mine && atomic_load_explicit(&mine->turn_since, memory_order_relaxed)) atomic_store(&mine->turn_seen, now);
}

void vc_turn_reset(void) {
  atomic_store(&making, 0);
}
