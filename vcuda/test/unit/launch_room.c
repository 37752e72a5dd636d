/* SPDX-License-Identifier: Apache-2.0 */
/* How much may be in flight: by what is known of a launch, and by how many share the GPU. */
#include "../../src/launch_room.c"
#include "unit.h"

#define ALONE (10 * VC_MS)
#define SHARED (2 * VC_MS)
#define BRIEF (500 * VC_US) /* another seat is back soon */

_Atomic int vc_captures;
struct vc_seat vc_seat;
static struct vc_policy policy = {.request = 500, .behind_ns = 50 * VC_MS};
_Atomic uint32_t *_Atomic vc_gate = &policy.gate;
static struct vc_stream one, two;

void vc_stream_each(void (*visit)(struct vc_stream *, uint64_t), uint64_t argument) {
  visit(&one, argument);
  visit(&two, argument);
}

/* A function of which so many launches took `each` nanoseconds, one by one. */
static const struct vc_duration *known(uint64_t each, int launches) {
  static char functions[64];
  static int next;
  struct vc_duration *d = vc_duration_of(&functions[next++]);
  for (int i = 0; i < launches; i++) vc_duration_measured(d, each, each, 1, VC_S);
  return d;
}

static struct vc_load load(uint64_t ns, uint64_t launches) {
  return (struct vc_load){ns, launches};
}

/* What waits for the host is bounded for all processes of the seat together, by what the seat is owed. */
static void behind(const struct vc_duration *unknown, const struct vc_duration *brief,
                   const struct vc_duration *lengthy) {
  static struct vc_usage usage = {.high = 2};
  uint64_t t = VC_S;
  vc_seat = (struct vc_seat){&policy, &usage, NULL, &usage.slot[0]};
  usage.slot[0].live = usage.slot[1].live = 1;
  two.lane.begun = two.lane.ended = 2;
  vc_lane_fenced(&two.lane, 2, false); /* two launches, a wait, and five behind it, the last one without a fence */
  vc_lane_fenced(&two.lane, 2, true);
  two.lane.begun = two.lane.ended = 6;
  vc_lane_fenced(&two.lane, 6, false);
  two.lane.begun = two.lane.ended = 7;
  two.behind = 3 * VC_MS;
  two.before_wait = 2;
  two.queued = 9 * VC_MS;
  two.shown = true;
  one.shown = false;
  CHECK(vc_room_load().ns == 6 * VC_MS && vc_room_load().launches == 2);
  usage.slot[1].behind = 2;
  usage.slot[1].behind_us = 4000;
  CHECK(vc_room_behind().ns == 7 * VC_MS && vc_room_behind().launches == 7);
  CHECK(usage.slot[0].behind == 5 && usage.slot[0].behind_us == 3000);

  CHECK(vc_room_fits_behind(lengthy, load(0, 0), SHARED) && vc_room_fits_behind(lengthy, load(20 * VC_MS, 9), SHARED));
  CHECK(!vc_room_fits_behind(lengthy, load(21 * VC_MS, 9), SHARED) && !vc_room_fits_behind(unknown, load(0, 0), SHARED));
  CHECK(vc_room_fits_behind(brief, load(0, VC_BEHIND_MOST - 1), SHARED));
  CHECK(!vc_room_fits_behind(brief, load(0, VC_BEHIND_MOST), SHARED));
  policy.behind_ns = 0; /* it is owed nothing */
  CHECK(!vc_room_fits_behind(brief, load(0, 0), SHARED));
  policy.gate = 1; /* but it has its turn */
  CHECK(vc_room_fits_behind(brief, load(VC_MS, 3), SHARED) && !vc_room_fits_behind(brief, load(SHARED, 3), SHARED));
  policy.gate = 0;
  CHECK(vc_room_fits_behind(lengthy, load(0, 0), ALONE) && !vc_room_fits_behind(lengthy, load(1, 1), ALONE));

  /* In the end a launch returns: one after the other, not faster than the seat would have its share. */
  CHECK(!vc_room_force_behind(brief, load(0, 40), SHARED, t, t + 9 * VC_MS));
  CHECK(vc_room_force_behind(brief, load(0, 40), SHARED, t, t + 10 * VC_MS));
  CHECK(!vc_room_force_behind(brief, load(0, 40), SHARED, t, t + 19 * VC_MS));
  CHECK(!vc_room_force_behind(lengthy, load(20 * VC_MS, 1), SHARED, t, t + 109 * VC_MS));
  CHECK(vc_room_force_behind(lengthy, load(20 * VC_MS, 1), SHARED, t, t + 110 * VC_MS));
  CHECK(vc_room_force_behind(lengthy, load(20 * VC_MS, 1), ALONE, t, t + 120 * VC_MS));
  policy.vclass = VC_BACKGROUND;
  CHECK(!vc_room_force_behind(lengthy, load(0, 0), SHARED, t, t + VC_S));
}

int main(void) {
  /* Beside other seats the number in flight grows with the launches that took as long as expected. */
  const struct vc_duration *once = known(5 * VC_US, 1);
  CHECK(vc_room_fits(once, load(5 * VC_US, 1), SHARED) && !vc_room_fits(once, load(10 * VC_US, 2), SHARED));
  CHECK(!vc_room_trusts());

  const struct vc_duration *unknown = known(0, 0), *brief = known(5 * VC_US, 100), *medium = known(900 * VC_US, 100);
  const struct vc_duration *lengthy = known(30 * VC_MS, 100);
  CHECK(vc_room_trusts());

  /* An idle GPU takes any launch, however deep. */
  CHECK(vc_room_fits(unknown, load(0, 0), BRIEF) && vc_room_fits(lengthy, load(0, 0), BRIEF));
  /* What was never measured runs alone beside other seats, and else at most in pairs. */
  CHECK(!vc_room_fits(unknown, load(1, 1), SHARED) && vc_room_fits(unknown, load(5 * VC_MS, 1), ALONE));
  CHECK(!vc_room_fits(unknown, load(10 * VC_MS, 2), ALONE));
  /* What is known fills the depth, beside other seats up to a number. */
  CHECK(vc_room_fits(medium, load(1000 * VC_US, 1), SHARED) && !vc_room_fits(medium, load(1800 * VC_US, 2), SHARED));
  CHECK(vc_room_fits(brief, load(315 * VC_US, 63), SHARED) && !vc_room_fits(brief, load(320 * VC_US, 64), SHARED));
  CHECK(vc_room_fits(brief, load(320 * VC_US, 64), ALONE) && vc_room_fits(brief, load(VC_S, 1000), 0));
  /* One launch waits behind another, but not in the short pause of another seat. */
  CHECK(vc_room_fits(medium, load(3 * VC_MS, 1), SHARED) && !vc_room_fits(medium, load(VC_MS, 1), BRIEF));

  /* Launches that follow without another look: as many as a fence covers, one if nothing is known or in a capture. */
  CHECK(vc_room_fence(0) == 500 * VC_US && vc_room_fence(ALONE) == 500 * VC_US && vc_room_fence(BRIEF) == 125 * VC_US);
  CHECK(vc_room_step(brief, load(0, 0), ALONE) == VC_STEP_MAX && vc_room_step(medium, load(0, 0), ALONE) == 1);
  CHECK(vc_room_step(brief, load(0, 0), SHARED) == VC_ROOM_CROWD / 4 && vc_room_step(unknown, load(0, 0), 0) == 1);
  CHECK(vc_room_step(brief, load(ALONE, 1), ALONE) == 1);
  vc_captures = 1;
  CHECK(vc_room_step(brief, load(0, 0), ALONE) == 1);
  vc_captures = 0;
  /* What is doubted is measured again, and fills the depth by what was known of it. */
  vc_duration_compared(VC_MS, 50 * VC_MS, 50 * VC_MS, 4, 10 * VC_S);
  CHECK(vc_room_step(brief, load(0, 0), ALONE) == 1 && vc_room_fits(medium, load(VC_MS, 2), ALONE));

  /* Long launches take turns, if others want the GPU. */
  CHECK(vc_room_is_long(lengthy, SHARED) && !vc_room_is_long(lengthy, ALONE) && !vc_room_is_long(medium, SHARED));
  CHECK(vc_room_is_long(medium, BRIEF) && vc_room_is_long(unknown, SHARED) && !vc_room_is_long(lengthy, 0));
  CHECK(vc_room_turn(lengthy, SHARED) == 30 * VC_MS && vc_room_turn(unknown, SHARED) == 10 * VC_MS);

  /* What is in flight: of all streams that count as active. */
  one.shown = true;
  one.queued = 7;
  one.lane.begun = one.lane.ended = 3;
  two.queued = 100;
  CHECK(vc_room_load().ns == 7 && vc_room_load().launches == 3);
  two = (struct vc_stream){0};
  behind(unknown, brief, lengthy);
  return 0;
}
