/* SPDX-License-Identifier: Apache-2.0 */
/*
 * One memory counter per container, without a shared word that every process must keep correct: each
 * process has a slot, and the counter is the sum of the slots. A process first publishes what it
 * wants (pending), then reads the sum. The last of several sees all others, so the sum of what was
 * granted never exceeds the cap. A process killed at any instruction leaves nothing outside its slot,
 * and clearing that slot releases everything at once. A single total could be repaired only by guess.
 */
#include "memory_account.h"
#include "bytes.h"
#include "connection.h"

#include <sched.h>
#include <stddef.h>

#define SMALL (1ull << 20) /* up to this size requests share granules */
#define YIELDS 100
#define ROUNDS 400
#define SETTLE_NS (3 * VC_S)

static struct vc_lock guard;
static uint64_t mine;  /* what this process holds; the slot's copy can be garbled by the tenant */

/* Of mine, see abi.h. What is atomic is read without the guard too. */
static _Atomic uint64_t let_go;
static _Atomic uint32_t released; /* the last serial that was acted upon */

struct sum {
  uint64_t charged, pending;
};

/* The tenant can write anything into the page, but a process knows its own bytes: it leaves out its own slot. */
static struct sum add_up(const struct vc_slot *but) {
  struct vc_usage *usage = vc_seat.usage;
  uint32_t high = atomic_load(&usage->high);
  struct sum s = {atomic_load(&vc_seat.policy->overhead), 0};
  if (high > VC_SLOTS) high = VC_SLOTS;
  for (uint32_t i = 0; i < high; i++) {
    if (&usage->slot[i] == but) continue;
    /* Pending first: a reservation moves from pending to charged, never back. */
    s.pending = vc_plus(s.pending, atomic_load(&usage->slot[i].pending));
    s.charged = vc_plus(s.charged, atomic_load(&usage->slot[i].charged));
  }
  return s;
}

uint64_t vc_held(void) {
  return add_up(NULL).charged;
}

uint64_t vc_cap(void) {
  return atomic_load(&vc_seat.policy->memory);
}

static void note_peak(uint64_t held) {
  _Atomic uint64_t *peak = &vc_seat.usage->peak;
  uint64_t old = atomic_load(peak);
  while (held > old && !atomic_compare_exchange_weak(peak, &old, held)) continue;
}

/* With the guard held. */
static void show_mine(void) {
  struct vc_slot *slot = atomic_load(&vc_seat.slot);
  /* The slot is set, not incremented: it cannot wrap round whatever was written there. */
  if (slot && atomic_load(&slot->charged) != mine) atomic_store(&slot->charged, mine);
}

/* Try once: 1 if granted, 0 if refused for good, -1 if others are in the middle of theirs. */
static int try_reserve(struct vc_slot *slot, uint64_t bytes) {
  uint64_t cap = vc_cap();
  if (!atomic_load(&vc_seat.policy->confirmed)) return 0;
  show_mine();
  atomic_fetch_add(&slot->pending, bytes);
  struct sum s = add_up(slot);
  s.charged = vc_plus(s.charged, mine);
  s.pending = vc_plus(s.pending, bytes);
  int verdict = vc_plus(s.charged, s.pending) <= cap ? 1 : vc_plus(s.charged, bytes) > cap ? 0 : -1;
  if (verdict == 1) {
    atomic_fetch_add(&slot->charged, bytes);
    mine += bytes;
    note_peak(vc_plus(s.charged, bytes));
  }
  atomic_fetch_sub(&slot->pending, bytes);
  return verdict;
}

static bool reserve_locked(uint64_t bytes) {
  struct vc_slot *slot = atomic_load(&vc_seat.slot);
  if (!slot) return false;
  for (int round = 0; round < ROUNDS; round++) {
    int verdict = try_reserve(slot, bytes);
    if (verdict >= 0) return verdict;
    /* A process in the middle of its own needs a few nanoseconds or, if it was preempted there, our processor. */
    if (round < YIELDS)
      sched_yield();
    else
      vc_machine_sleep((1 + (uint64_t)round * 7 % 13) * 10 * VC_US);
  }
  return false;
}

static void release_locked(uint64_t bytes) {
  mine -= bytes < mine ? bytes : mine;
  show_mine();
}

/* After the arbiter's restart the sum is known once all of the container's processes are back. */
void vc_await_others(void) {
  uint64_t until = vc_machine_now() + SETTLE_NS;
  while (atomic_load(&vc_seat.policy->settling) && vc_machine_now() < until)
    vc_machine_sleep(1 * VC_MS);
}

bool vc_reserve_now(uint64_t bytes) {
  if (!bytes) return true;
  vc_lock(&guard);
  bool ok = reserve_locked(bytes);
  vc_unlock(&guard);
  return ok;
}

bool vc_reserve(uint64_t bytes) {
  if (bytes) vc_await_others();
  return vc_reserve_now(bytes);
}

void vc_unreserve(uint64_t bytes) {
  vc_lock(&guard);
  release_locked(bytes);
  vc_unlock(&guard);
}

void vc_book(uint64_t bytes) {
  vc_lock(&guard);
  mine += bytes;
  show_mine();
  vc_unlock(&guard);
}

/* ---- small requests: those of one context share granules. With the guard held. ---- */

/* What a small request takes: it lies in one granule, beside as many others of its size as fit there with it. */
static uint64_t share(uint64_t bytes) {
  if (!bytes) return 0;
  uint64_t fit = VC_GRANULE / vc_whole(bytes, 512);
  return (VC_GRANULE + fit - 1) / fit;
}

static uint64_t key_of(const void *context) {
  return (uint64_t)(uintptr_t)context;
}

static uint64_t small_in(const void *context) {
  struct vc_item item;
  return vc_table_find(VC_SMALL, key_of(context), &item) ? item.bytes : 0;
}

/* If there is no memory for the entry, the bytes are forgotten as small ones: more is charged then, never less. */
static void set_small(const void *context, uint64_t bytes) {
  struct vc_item item;
  vc_table_take(VC_SMALL, key_of(context), &item);
  if (bytes) vc_table_put((struct vc_item){.key = key_of(context), .bytes = bytes, .kind = VC_SMALL});
}

bool vc_take(uint64_t bytes, const void *context) {
  if (bytes > SMALL) return vc_reserve(vc_granules(bytes));
  vc_await_others();
  vc_lock(&guard);
  uint64_t before = small_in(context), after = before + share(bytes);
  uint64_t grow = vc_granules(after) - vc_granules(before);
  bool ok = !grow || reserve_locked(grow);
  if (ok && after != before) set_small(context, after);
  vc_unlock(&guard);
  return ok;
}

/* What a request of so many bytes takes from the counter, and gives back to it. */
static uint64_t part_of(uint64_t bytes, const void *context) {
  if (bytes > SMALL) return vc_granules(bytes);
  uint64_t before = small_in(context), gone = share(bytes);
  uint64_t after = before > gone ? before - gone : 0;
  if (after != before) set_small(context, after);
  return vc_granules(before) - vc_granules(after);
}

void vc_give(uint64_t bytes, const void *context) {
  vc_lock(&guard);
  release_locked(part_of(bytes, context));
  vc_unlock(&guard);
}

void vc_account_rename(const void *from, const void *to) {
  vc_lock(&guard);
  uint64_t one = small_in(from), other = small_in(to);
  set_small(from, 0);
  if (one) set_small(to, one + other);
  release_locked(vc_granules(one) + vc_granules(other) - vc_granules(one + other));
  vc_unlock(&guard);
}

/* With the guard held. */
static void show_let_go(void) {
  struct vc_slot *slot = atomic_load(&vc_seat.slot);
  if (slot) atomic_store(&slot->let_go, let_go);
}

void vc_let_go(uint64_t bytes, const void *context) {
  vc_lock(&guard);
  let_go += part_of(bytes, context);
  show_let_go();
  vc_unlock(&guard);
}

void vc_give_back(const struct vc_item *item) {
  if (item->extra & VC_EXPORTED)
    vc_let_go(item->bytes, item->owner);
  else
    vc_give(item->bytes, item->owner);
}

void vc_account_tend(void) {
  const struct vc_policy *policy = atomic_load(&vc_seat.policy);
  const struct vc_slot *slot = atomic_load(&vc_seat.slot);
  uint32_t serial = atomic_load(&policy->release_serial);
  vc_lock(&guard);
  show_mine();
  vc_unlock(&guard);
  if (!let_go || !slot || serial == released) return;
  vc_lock(&guard);
  released = serial;
  if (atomic_load(&policy->release_slot) == (uint32_t)(slot - vc_seat.usage->slot)) {
    uint64_t bytes = atomic_load(&policy->release_bytes);
    if (bytes > let_go) bytes = let_go;
    let_go -= bytes;
    release_locked(bytes);
    show_let_go();
  }
  vc_unlock(&guard);
}

void vc_account_move(struct vc_slot *slot) {
  vc_lock(&guard);
  atomic_store(&slot->charged, mine);
  atomic_store(&slot->let_go, let_go);
  released = atomic_load(&vc_seat.policy->release_serial);
  atomic_store(&vc_seat.slot, slot);
  vc_unlock(&guard);
}

void vc_account_reset(void) {
  atomic_store(&guard.word, 0);
  mine = 0;
  let_go = 0;
  atomic_store(&vc_seat.slot, NULL);
}
