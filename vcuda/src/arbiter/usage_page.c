/* SPDX-License-Identifier: Apache-2.0 */
#include "usage_page.h"

#include <stddef.h>

#define BELIEVED_NS (3600 * VC_S) /* no interval of work is longer */

uint64_t ar_usage_believable(uint64_t value) {
  return value > UINT64_MAX / 4096 ? 0 : value;
}

/* Time with work of any of its processes in flight, up to now. */
static uint64_t seat_busy(const struct ar_seat *s, uint64_t now) {
  uint64_t running = atomic_load(&s->usage->running);
  uint64_t since = (running >> VC_RUNNING_BITS) * 16;
  uint64_t busy = ar_usage_believable(atomic_load(&s->usage->busy_ns));
  return busy + ((running & VC_RUNNING) && since < now && now - since < BELIEVED_NS ? now - since : 0);
}

/* For readers that take a falling sum for a new one. It may fall: a process that was held up may report late that its
 * work ended long ago, and until then the work counts as in flight. */
uint64_t ar_usage_busy(struct ar_seat *s) {
  uint64_t busy = seat_busy(s, vc_now());
  if (busy > s->busy_shown) s->busy_shown = busy;
  return s->busy_shown;
}

void ar_usage_leave(struct vc_usage *usage, const struct vc_slot *slot, uint64_t now) {
  uint64_t old = atomic_load(&usage->running), next;
  if (!atomic_load(&slot->inflight)) return;
  do {
    if (!(old & VC_RUNNING)) return;
    next = (old & VC_RUNNING) == 1 ? 0 : old - 1;
  } while (!atomic_compare_exchange_weak(&usage->running, &old, next));
  uint64_t since = (old >> VC_RUNNING_BITS) * 16;
  if (!next && since < now && now - since < BELIEVED_NS)
    atomic_fetch_add(&usage->busy_ns, now - since);
}

struct ar_seen ar_usage_look(const struct ar_place *place, uint64_t now) {
  const struct ar_seat *s =
      (const struct ar_seat *)((const char *)place - offsetof(struct ar_seat, place));
  struct ar_seen seen = {.busy = seat_busy(s, now)};
  for (unsigned i = 0; i < VC_SLOTS; i++) {
    if (!s->client[i]) continue;
    const struct vc_slot *slot = &s->usage->slot[i];
    uint64_t since = atomic_load(&slot->idle_since), unit = atomic_load(&slot->unit_ns);
    seen.connected = true;
    seen.waiting |= atomic_load(&slot->waiting) != 0;
    seen.active |= atomic_load(&slot->inflight) != 0;
    seen.beat += atomic_load(&slot->beat);
    if (since > seen.idle_since && since <= now) {
      seen.idle_since = since;
      seen.linger = atomic_load(&slot->linger_ns);
    }
    if (unit > seen.unit) seen.unit = unit;
  }
  return seen;
}

struct ar_totals ar_usage_totals(struct ar_seat *s) {
  struct ar_totals t = {
      .busy = ar_usage_busy(s), .waited = s->done_waited, .launches = s->done_launches};
  t.peak = atomic_load(&s->usage->peak);
  for (unsigned i = 0; i < VC_SLOTS; i++) {
    const struct vc_slot *slot = &s->usage->slot[i];
    if (!s->client[i]) continue;
    t.processes++;
    t.waited += ar_usage_believable(atomic_load(&slot->waited_ns));
    t.launches += ar_usage_believable(atomic_load(&slot->launches));
    t.memory += ar_usage_believable(atomic_load(&slot->charged));
  }
  return t;
}
