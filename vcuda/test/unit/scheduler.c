/* SPDX-License-Identifier: Apache-2.0 */
#include "two_seats.h"

/* Whatever a page says, shares of the others hold and arithmetic does not overflow. */
static void garbage(void) {
  struct ar_sched s;
  struct ar_member a = member(500, VC_IN_BUDGET), b = member(500, VC_IN_BUDGET);
  unsigned state = 3;
  uint64_t now = begin(&s, &a, &b);
  for (int i = 0; i < 200000; i++) {
    a.seen.waiting = unit_random(&state) & 1;
    a.seen.active = unit_random(&state) & 1;
    a.seen.unit = (uint64_t)unit_random(&state) << (unit_random(&state) % 40);
    a.seen.busy = (uint64_t)unit_random(&state) << (unit_random(&state) % 28);
    a.seen.idle_since = (uint64_t)unit_random(&state) << (unit_random(&state) % 40);
    a.seen.beat = unit_random(&state);
    a.seen.linger = unit_random(&state);
    b.seen.waiting = !b.open;
    b.seen.active = b.open;
    b.seen.busy += b.open ? MS / 4 : 0;
    b.seen.idle_since = b.open ? 0 : now;
    b.seen.beat++;
    uint64_t next = ar_sched_step(&s, now);
    CHECK(next > now);
    now += MS / 4;
    CHECK(!(a.open && b.open));
  }
  CHECK(b.used > 200000ull * (MS / 4) * 4 / 10);
  ar_sched_free(&s);
}

int main(void) {
  garbage();
  return 0;
}
