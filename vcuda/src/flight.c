/* SPDX-License-Identifier: Apache-2.0 */
#include "flight.h"
#include "keeper.h"
#include "connection.h"

#define OWN_DEPTH_NS (1 * VC_MS)

static struct vc_lock guard;
static uint32_t active;
static uint64_t mark;
static _Atomic uint64_t busy, idle_since;
static _Atomic uint64_t launches;

static void advance(uint64_t now) {
  if (active && now > mark) busy += now - mark;
  mark = now;
}

static void publish(void) {
  struct vc_slot *slot = atomic_load(&vc_seat.slot);
  if (!slot) return;
  atomic_store_explicit(&slot->busy_ns, busy, memory_order_relaxed);
  atomic_store_explicit(&slot->idle_since, idle_since, memory_order_relaxed);
  atomic_store_explicit(&slot->launches, atomic_load(&launches), memory_order_relaxed);
  atomic_store_explicit(&slot->inflight, active, memory_order_release);
}

void vc_flight_start(struct vc_lane *lane, uint64_t now) {
  if (atomic_exchange(&lane->active, 1)) return;
  vc_lock(&guard);
  advance(now);
  bool first = !active++;
  publish();
  vc_unlock(&guard);
  if (first) vc_keeper_nudge();
}

void vc_flight_land(struct vc_lane *lane, uint64_t now) {
  if (!atomic_exchange(&lane->active, 0)) return;
  vc_lock(&guard);
  advance(now);
  if (active && !--active) idle_since = now;
  publish();
  vc_unlock(&guard);
}

void vc_flight_launched(uint32_t count) {
  atomic_fetch_add_explicit(&launches, count, memory_order_relaxed);
}

uint32_t vc_flight_publish(uint64_t now) {
  vc_lock(&guard);
  advance(now);
  publish();
  uint32_t count = active;
  vc_unlock(&guard);
  return count;
}

uint64_t vc_flight_busy(void) {
  return busy;
}

uint64_t vc_flight_idle_since(void) {
  return idle_since;
}

uint64_t vc_flight_depth(void) {
  struct vc_policy *policy = atomic_load(&vc_seat.policy);
  if (atomic_load_explicit(&vc_gate, memory_order_relaxed) == &vc_own_gate) return OWN_DEPTH_NS;
  return policy ? atomic_load_explicit(&policy->depth_ns, memory_order_relaxed) : OWN_DEPTH_NS;
}

void vc_flight_reset(void) {
  atomic_store(&guard.word, 0);
  active = 0;
  busy = mark = idle_since = 0;
  atomic_store(&launches, 0);
}
