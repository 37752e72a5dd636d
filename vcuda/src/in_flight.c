/* SPDX-License-Identifier: Apache-2.0 */
#include "in_flight.h"
#include "connection.h"

#define OWN_DEPTH_NS (1 * VC_MS)
#define CERTAIN 1024 /* all of the last pauses were long ones */
#define LONG_ENOUGH (CERTAIN * 7 / 8)

static struct vc_lock guard;
static _Atomic uint32_t active;
static bool in_union; /* this process counts among the seat's active ones */
static bool moving;   /* between two pages: neither counts it */
static uint64_t mark;
static _Atomic uint64_t busy, idle_since;
static uint64_t rest_since;       /* 0: it does not pause */
static _Atomic uint32_t long_rests; /* how many of the last pauses were long ones, of CERTAIN */
static _Atomic uint64_t launches;
static _Atomic uint32_t word, asleep;

/*
 * The processes of a seat overlap. Their union is kept by all of them in one word, how many are
 * active and since when; the thread that ends the interval adds it. A process that dies in between is taken
 * out by the arbiter.
 */
static void union_start(struct vc_usage *usage, uint64_t now) {
  uint64_t old = atomic_load(&usage->running), next;
  do next = (old & VC_RUNNING) ? old + 1 : now / 16 << VC_RUNNING_BITS | 1;
  while (!atomic_compare_exchange_weak(&usage->running, &old, next));
}

static void union_stop(struct vc_usage *usage, uint64_t then) {
  uint64_t old = atomic_load(&usage->running), next;
  do {
    if (!(old & VC_RUNNING)) return;
    next = (old & VC_RUNNING) == 1 ? 0 : old - 1;
  } while (!atomic_compare_exchange_weak(&usage->running, &old, next));
  uint64_t since = (old >> VC_RUNNING_BITS) * 16;
  if (!next && then > since) atomic_fetch_add(&usage->busy_ns, then - since);
}

static void advance(uint64_t now) {
  if (active && now > mark) busy += now - mark;
  if (now > mark) mark = now;
}

static void publish(void) {
  struct vc_slot *slot = atomic_load(&vc_seat.slot);
  if (!slot) return;
  atomic_store_explicit(&slot->busy_ns, busy, memory_order_relaxed);
  atomic_store_explicit(&slot->idle_since, idle_since, memory_order_relaxed);
  atomic_store_explicit(&slot->launches, atomic_load(&launches), memory_order_relaxed);
  atomic_store_explicit(&slot->linger_ns, (uint32_t)vc_flight_linger(), memory_order_relaxed);
  atomic_store_explicit(&slot->inflight, active, memory_order_seq_cst);
}

/* With the guard held. */
static void join(uint64_t now) {
  if (in_union || moving || !vc_seat.usage) return;
  union_start(vc_seat.usage, now);
  in_union = true;
}

/* Of pauses longer than the shortest linger: a mean, that fades, of how many outlast the longest. */
static void rested(uint64_t now) {
  uint64_t length = rest_since && now > rest_since ? now - rest_since : 0;
  rest_since = 0;
  if (length < VC_LINGER_LEAST_NS) return;
  uint32_t mean = long_rests;
  long_rests = length >= VC_LINGER_NS ? mean + (CERTAIN - mean) / 16 : mean - (mean + 15) / 16;
}

void vc_flight_start(uint64_t now) {
  vc_lock(&guard);
  advance(now);
  bool first = !active++;
  if (first) rested(now);
  publish(); /* a process in the union shows work in flight, so that the arbiter takes it out if it dies */
  if (first) join(now);
  vc_unlock(&guard);
  if (first) vc_flight_nudge();
}

void vc_flight_land(uint64_t then, uint64_t now) {
  vc_lock(&guard);
  if (then > now) then = now;
  if (active == 1) {
    /* Busy time was published up to an earlier look, and cannot be taken back. */
    advance(then);
    rest_since = then > mark ? then : mark;
    idle_since = rest_since;
    if (in_union && vc_seat.usage) union_stop(vc_seat.usage, then);
    in_union = false;
    mark = now;
  } else {
    advance(now);
  }
  if (active) active--;
  publish();
  vc_unlock(&guard);
}

void vc_flight_leave(void) {
  uint64_t now = vc_now();
  vc_lock(&guard);
  moving = true;
  if (in_union && vc_seat.usage) union_stop(vc_seat.usage, now);
  in_union = false;
  vc_unlock(&guard);
}

void vc_flight_join(void) {
  uint64_t now = vc_now();
  vc_lock(&guard);
  moving = false;
  publish();
  if (active) join(now);
  vc_unlock(&guard);
}

void vc_flight_launched(uint64_t count) {
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

bool vc_flight_any(void) {
  return atomic_load_explicit(&active, memory_order_relaxed);
}

uint64_t vc_flight_busy(void) {
  return busy;
}

uint64_t vc_flight_idle_since(void) {
  return idle_since;
}

uint64_t vc_flight_linger(void) {
  return atomic_load_explicit(&long_rests, memory_order_relaxed) >= LONG_ENOUGH ? VC_LINGER_LEAST_NS : VC_LINGER_NS;
}

void vc_flight_waited(void) {
  vc_lock(&guard);
  rest_since = 0;
  vc_unlock(&guard);
}

uint64_t vc_flight_depth(void) {
  struct vc_policy *policy = atomic_load(&vc_seat.policy);
  if (atomic_load_explicit(&vc_gate, memory_order_relaxed) == &vc_own_gate) return OWN_DEPTH_NS;
  return policy ? atomic_load_explicit(&policy->depth_ns, memory_order_relaxed) : OWN_DEPTH_NS;
}

bool vc_flight_beside(uint64_t since) {
  struct vc_policy *policy = atomic_load(&vc_seat.policy);
  return policy && atomic_load_explicit(&policy->beside_until, memory_order_relaxed) > since;
}

void vc_flight_rest(uint64_t until, bool long_one) {
  uint32_t seen = atomic_load(&word);
  atomic_store(&asleep, long_one);
  if (!long_one || !active) vc_wait(&word, seen, (uint64_t)(uintptr_t)&word, until);
  atomic_store(&asleep, 0);
}

void vc_flight_nudge(void) {
  if (!atomic_load(&asleep)) return;
  atomic_fetch_add(&word, 1);
  vc_wake(&word, (uint64_t)(uintptr_t)&word);
}

void vc_flight_reset(void) {
  atomic_store(&guard.word, 0);
  active = 0;
  in_union = moving = false;
  mark = rest_since = 0;
  busy = idle_since = 0;
  long_rests = 0;
  atomic_store(&launches, 0);
  atomic_store(&asleep, 0);
}
