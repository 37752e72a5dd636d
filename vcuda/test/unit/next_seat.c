/* SPDX-License-Identifier: Apache-2.0 */
/* Which seat is let in while another one pauses, or lags. */
#include "two_seats.h"

/* It was at work until now, and has paused for so long each time. */
static void pauses_from(struct ar_member *m, uint64_t now, uint64_t length) {
  m->last_active = m->pauses.since = now;
  for (int i = 0; i < AR_PAUSES; i++) m->pauses.length[i] = length;
}

/* Work that keeps the GPU for long beyond its request: not in a short pause of a seat that is owed and
 * wants what it is owed, if the pause will be over before. */
static void crowd(void) {
  static const struct {
    uint64_t residual, pause;
    int64_t owed;
    double demand;
    bool opens;
    uint32_t request;
  } list[] = {
      {160, 40, 100, 0.5, false, 500},
      {160, 40, 100, 0.2, true, 500},  /* it uses less than half of its request */
      {160, 100, 100, 0.5, true, 500}, /* no short pause */
      {30, 40, 100, 0.5, true, 500},   /* gone before it is over */
      {30, 20, 1, 0.5, false, 500},
      {10, 5, 100, 0.5, false, 500}, /* nor shorter work, if a gets less than its request */
      {10, 5, 10, 0.5, true, 500},
      {50, 5, 250, 0.6, false, 900}, /* it wants less, but would lose more than there is idle */
      {20, 5, 250, 0.6, true, 900},
  };
  for (unsigned i = 0; i < sizeof list / sizeof *list; i++) {
    struct ar_sched s;
    struct ar_member a = member(list[i].request, VC_IN_BUDGET), b = member(300, VC_IN_BUDGET);
    uint64_t now = begin(&s, &a, &b);
    pauses_from(&a, now, list[i].pause * MS);
    a.share.credit = list[i].owed * (int64_t)MS;
    a.demand = list[i].demand;
    b.share.residual = list[i].residual * MS;
    b.share.credit = -50 * (int64_t)MS;
    b.seen.waiting = true;
    ar_sched_step(&s, now += MS);
    CHECK(b.open == list[i].opens);
    ar_sched_step(&s, now += 200 * MS); /* longer than ever: it may not come back at all */
    CHECK(b.open);
    ar_sched_free(&s);
  }
}

/* A seat that pauses between its kernels and gets less than its request does not wait for another's quantum, nor
 * behind much of its work. */
static void late(void) {
  struct ar_sched s;
  struct ar_member a = member(500, VC_IN_BUDGET), b = member(300, VC_IN_BUDGET);
  uint64_t now = begin(&s, &a, &b);
  b.share.residual = MS / 10;
  for (int owed = 0; owed < 2; owed++) {
    a.share.credit = (owed ? 100 : 10) * (int64_t)MS;
    b.share.credit = MS;
    pauses_from(&a, now, 4 * MS);
    a.demand = 0.1; /* of the GPU: less than its request */
    b.seen.waiting = true;
    ar_sched_step(&s, now += MS);
    CHECK(b.open && b.depth == (owed ? MS / 2 : 4 * MS));
    b.seen.waiting = false;
    a.seen.waiting = b.seen.active = true;
    ar_sched_step(&s, now += MS);
    CHECK(b.open == !owed);
    b.seen.active = a.seen.waiting = a.open = b.open = s.draining = false;
    s.holder = -1;
  }
  /* Granted, a seat is at work, whether or not it has been seen to be. */
  a.seen.waiting = true;
  a.demand = 0;
  ar_sched_step(&s, now += MS);
  CHECK(a.open);
  a.seen.waiting = false;
  a.seen.idle_since = now += 200 * MS;
  ar_sched_step(&s, now);
  CHECK(a.demand > 0.4);
  ar_sched_free(&s);
}

int main(void) {
  crowd();
  late();
  return 0;
}
