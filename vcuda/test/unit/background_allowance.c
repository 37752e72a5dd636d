/* SPDX-License-Identifier: Apache-2.0 */
/* Background beside in-budget work: it gives way at once, and learns what fits into pauses. */
#include "two_seats.h"

static void background_gives_way(void) {
  struct ar_sched s;
  struct ar_member a = member(500, VC_IN_BUDGET), b = member(100, VC_BACKGROUND);
  uint64_t now = begin(&s, &a, &b);
  b.seen.waiting = true;
  ar_sched_step(&s, now);
  CHECK(b.open);
  b.seen.waiting = false;
  b.seen.active = true;
  a.seen.waiting = true;
  ar_sched_step(&s, now += MS / 10);
  CHECK(!b.open); /* at once, whatever its quantum */
  b.seen.active = false;
  b.seen.idle_since = now += MS / 10;
  b.seen.waiting = true;
  ar_sched_step(&s, now);
  CHECK(a.open);
  CHECK(b.depth < a.depth || b.depth == 500000); /* background keeps little in flight */
  ar_sched_free(&s);
}

/* In-budget work rests 45 ms after each 15: long background work learns how much fits in between. */
static void within_pauses(void) {
  struct ar_sched s;
  struct ar_member a = member(500, VC_IN_BUDGET), b = member(100, VC_BACKGROUND);
  int ran = 0, late = 0;
  uint64_t now = begin(&s, &a, &b), began = 0;
  b.seen.unit = 10 * MS;
  for (int step = 0; step < 20; step++) {
    for (int tick = 0; tick < 600; tick++) {
      bool resting = tick >= 150;
      if (!resting) a.seen.waiting = !(a.seen.active = a.open);
      if (resting && (a.seen.active || a.seen.waiting)) {
        a.seen.active = a.seen.waiting = false;
        a.seen.idle_since = now;
      }
      bool begins = b.open && !b.seen.active;
      if (begins) began = now;
      if (begins) ran += step >= 10;
      if (b.seen.active && now - began >= b.seen.unit) {
        b.seen.active = false;
        b.seen.idle_since = now;
        begins = b.open && (began = now);
        ran += begins && step >= 10;
      }
      b.seen.active |= begins;
      b.seen.waiting = !b.seen.active;
      late += step >= 10 && a.seen.waiting;
      ar_sched_step(&s, now += MS / 10);
    }
  }
  CHECK(ran >= 30); /* three of the four that there is room for at most, in each of ten pauses */
  CHECK(late <= 10 * 600 * 2 / 100);
  ar_sched_free(&s);
}

int main(void) {
  background_gives_way();
  within_pauses();
  return 0;
}
