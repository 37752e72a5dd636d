/* SPDX-License-Identifier: Apache-2.0 */
/* When the GPU passes from one seat to the next, and who is passed by. */
#include "two_seats.h"

static void hand_over(void) {
  struct ar_sched s;
  struct ar_member a = member(500, VC_IN_BUDGET), b = member(500, VC_IN_BUDGET);
  uint64_t now = begin(&s, &a, &b);
  a.seen.waiting = true;
  ar_sched_step(&s, now);
  CHECK(a.open && !b.open);
  a.seen.waiting = false;
  a.seen.active = true;
  b.seen.waiting = true;
  ar_sched_step(&s, now += MS);
  CHECK(a.open && a.contended && !b.open); /* not before its quantum is over */
  ar_sched_step(&s, now += 6 * MS);
  CHECK(!a.open && !b.open); /* closed, with work still in flight: no other seat runs beside it */
  a.seen.active = false;
  a.seen.idle_since = now += MS;
  ar_sched_step(&s, now);
  CHECK(b.open && !a.open);
  CHECK(a.used >= 7 * MS); /* the overrun is charged */
  ar_sched_remove(&s, &b);
  a.seen.waiting = true;
  ar_sched_step(&s, now += MS);
  CHECK(a.open);
  ar_sched_free(&s);
}

static void stopped_holder(void) {
  struct ar_sched s;
  struct ar_member a = member(500, VC_IN_BUDGET), b = member(500, VC_IN_BUDGET);
  uint64_t now = begin(&s, &a, &b);
  a.seen.waiting = true;
  ar_sched_step(&s, now);
  b.seen.waiting = true;
  ar_sched_step(&s, now += MS);
  for (int i = 0; i < 200 && !b.open; i++) ar_sched_step(&s, now += MS);
  CHECK(b.open && a.lost);     /* it never answered */
  CHECK(a.used >= 10 * MS); /* and pays for what it kept the others from */
  a.seen.beat++;
  ar_sched_step(&s, now += MS);
  CHECK(!a.lost);
  ar_sched_free(&s);
}

/* A process that claims endless launches, and that one never ends, costs the others what they are paid back. */
static void endless_claims(void) {
  struct ar_sched s;
  struct ar_member a = member(400, VC_IN_BUDGET), b = member(600, VC_IN_BUDGET);
  uint64_t now = begin(&s, &a, &b), longest = 0, waited = 0;
  a.seen.unit = UINT64_MAX;
  a.seen.active = a.seen.waiting = true;
  for (int i = 0; i < 10000; i++) {
    a.seen.beat++;
    b.seen.beat++;
    b.seen.active = b.open;
    b.seen.waiting = !b.open;
    b.seen.idle_since = b.open ? 0 : now;
    waited = b.open ? 0 : waited + MS;
    if (waited > longest) longest = waited;
    ar_sched_step(&s, now += MS);
  }
  CHECK(longest < 200 * MS);
  CHECK(b.used > 5900 * MS);
  ar_sched_free(&s);
}

/* A holder whose pauses are all long is waited for less; what it says is believed within bounds. */
static void lingers(void) {
  static const struct {
    uint64_t said, lasts;
  } list[] = {{0, 100}, {10000, 10}, {50000, 50}, {1, 10}, {UINT32_MAX, 100}};
  for (unsigned i = 0; i < sizeof list / sizeof *list; i++) {
    struct ar_sched s;
    struct ar_member a = member(500, VC_IN_BUDGET), b = member(500, VC_IN_BUDGET);
    uint64_t now = begin(&s, &a, &b), lasts = list[i].lasts * 1000;
    a.seen.waiting = true;
    ar_sched_step(&s, now);
    a.seen.waiting = false;
    a.seen.active = b.seen.waiting = true;
    ar_sched_step(&s, now += MS);
    a.seen.active = false;
    a.seen.idle_since = now;
    a.seen.linger = list[i].said;
    CHECK(ar_sched_step(&s, now) == now + lasts);
    ar_sched_step(&s, now + lasts - 1);
    CHECK(a.open);
    ar_sched_step(&s, now + lasts);
    CHECK(!a.open);
    ar_sched_free(&s);
  }
}

int main(void) {
  hand_over();
  stopped_holder();
  endless_claims();
  lingers();
  return 0;
}
