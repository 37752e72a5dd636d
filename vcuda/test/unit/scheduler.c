/* SPDX-License-Identifier: Apache-2.0 */
/* One GPU's time with two seats, by hand: time is an argument. */
#include "arbiter/scheduler.h"
#include "unit.h"

#define MS 1000000ull

static struct ar_member member(uint32_t request, uint32_t vclass) {
  struct ar_member m = {0};
  m.share.request = request;
  m.share.limit = 1000;
  m.share.vclass = vclass;
  m.seen.connected = true;
  return m;
}

/* Two seats at the GPU's first instant, which is returned. */
static uint64_t begin(struct ar_sched *s, struct ar_member *a, struct ar_member *b) {
  uint64_t now = 1000 * MS;
  ar_sched_init(s, ar_rule_slicekeeper, now);
  CHECK(ar_sched_add(s, a, now) && ar_sched_add(s, b, now));
  return now;
}

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

/* Steps of a millisecond in which a seat's work keeps the GPU past its gate; it is not passed by. */
static uint64_t kept_by(struct ar_sched *s, struct ar_member *b, int steps, uint64_t now) {
  for (int i = 0; i < steps; i++) {
    b->seen.beat++;
    b->closed_at = now;
    ar_sched_step(s, now += MS);
  }
  return now;
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
  hand_over();
  background_gives_way();
  stopped_holder();
  endless_claims();
  below_its_ceiling();
  within_pauses();
  crowd();
  in_full();
  late();
  lingers();
  garbage();
  return 0;
}
