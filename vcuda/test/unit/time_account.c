/* SPDX-License-Identifier: Apache-2.0 */
/* What a seat saves up, and what it pays. */
#include "two_seats.h"

/* Steps of a millisecond in which a seat's work keeps the GPU past its gate; it is not passed by. */
static uint64_t kept_by(struct ar_sched *s, struct ar_member *b, int steps, uint64_t now) {
  for (int i = 0; i < steps; i++) {
    b->seen.beat++;
    b->closed_at = now;
    ar_sched_step(s, now += MS);
  }
  return now;
}

/* What others keep a seat from counts on below its ceiling, for a second; what it rests does not. */
static void below_its_ceiling(void) {
  struct ar_sched s;
  struct ar_member a = member(400, VC_IN_BUDGET), b = member(400, VC_IN_BUDGET);
  a.share.limit = 400;
  uint64_t now = begin(&s, &a, &b);
  ar_sched_step(&s, now);
  for (int i = 0; i < 500; i++) ar_sched_step(&s, now += MS);
  CHECK(a.ceiling == 40 * MS);
  b.seen.active = true; /* a long kernel */
  b.seen.waiting = true;
  b.seen.unit = 2000 * MS;
  ar_sched_step(&s, now += MS);
  CHECK(b.open);
  a.seen.waiting = true;
  now = kept_by(&s, &b, 500, now);
  CHECK(a.ceiling == (40 + 500 * 400 / 1000) * MS);
  a.seen.waiting = false; /* saved up is saved up */
  ar_sched_step(&s, now += MS);
  CHECK(a.ceiling == (40 + 500 * 400 / 1000) * MS);
  a.seen.waiting = true;
  now = kept_by(&s, &b, 1000, now);
  CHECK(a.ceiling <= (int64_t)(400 * MS) && a.ceiling > (int64_t)(390 * MS));
  ar_sched_free(&s);
}

/* The holder pays for its time in full when another seat shows work in flight, be it for the moment in which a
 * launch finds the gate closed, be it a lie: a share of it only to one that says it was busy, and pays. */
static void in_full(void) {
  struct ar_sched s;
  struct ar_member a = member(500, VC_IN_BUDGET), b = member(300, VC_IN_BUDGET);
  uint64_t now = begin(&s, &a, &b);
  a.seen.waiting = true;
  ar_sched_step(&s, now);
  CHECK(a.open);
  a.seen.waiting = false;
  a.seen.active = b.seen.active = true;
  a.seen.busy += 2 * MS;
  ar_sched_step(&s, now += 2 * MS);
  CHECK(a.used == 2 * MS && b.used == 0);
  a.seen.busy += MS;
  b.seen.busy += 10 * MS; /* more than there was */
  ar_sched_step(&s, now += MS);
  CHECK(a.used == 5 * MS / 2 && b.used == MS / 2);
  ar_sched_free(&s);
}

int main(void) {
  below_its_ceiling();
  in_full();
  return 0;
}
