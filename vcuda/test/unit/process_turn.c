/* SPDX-License-Identifier: Apache-2.0 */
#include "process_turn.h"

#include "connection.h"
#include "unit.h"

#define LONG (30 * VC_MS)
#define SHORT (4 * VC_MS)

struct vc_seat vc_seat;
static struct vc_usage usage = {.high = 3};

static void as(int process) {
  vc_seat.slot = &usage.slot[process];
}

static bool take(int process, uint64_t since, uint64_t takes, uint64_t now) {
  as(process);
  if (!vc_turn_take(since, takes, 0, now)) return false;
  vc_turn_made();
  return true;
}

static void over(int process) {
  as(process);
  vc_turn_over(vc_turn_seen());
}

int main(void) {
  uint64_t t = VC_S;
  CHECK(take(0, t, LONG, t)); /* without a seat there are no others to wait for */
  vc_seat.usage = &usage;
  for (int i = 0; i < 3; i++) usage.slot[i].live = 1;

  CHECK(take(0, t, LONG, t));
  CHECK(!take(1, t, LONG, t + 1)); /* one after the other */
  CHECK(!take(2, t + 1, LONG, t + 1));
  CHECK(take(1, t, LONG, t + LONG - 100 * VC_US)); /* just before the end, so that the GPU does not idle */
  CHECK(!take(2, t + 1, LONG, t + LONG));
  over(0);
  CHECK(!take(2, t + 1, LONG, t + LONG)); /* behind the second one */
  over(1);
  CHECK(take(2, t + 1, LONG, t + LONG));
  over(2);

  t += VC_S; /* two that are over soon may be in flight at once, not three */
  CHECK(take(0, t, SHORT, t) && take(1, t, SHORT, t) && !take(2, t, SHORT, t));
  over(0);
  CHECK(take(2, t, SHORT, t + SHORT));
  over(1), over(2);

  t += VC_S; /* who has waited longest is first, of two since the same moment the one with the lower slot */
  CHECK(take(0, t, LONG, t));
  CHECK(!take(2, t + 1, LONG, t + 3) && !take(1, t + 2, LONG, t + 3));
  over(0);
  CHECK(!take(1, t + 2, LONG, t + 3) && take(2, t + 1, LONG, t + 3));
  over(2);
  CHECK(take(1, t + 2, LONG, t + 3));
  over(1);

  t += VC_S; /* who waits no more, was stopped or has died is not waited for */
  CHECK(take(0, t, LONG, t));
  CHECK(!take(1, t, LONG, t) && !take(2, t + 1, LONG, t));
  over(0);
  CHECK(!take(2, t + 1, LONG, t + VC_MS));
  as(1), vc_turn_keep(t + 15 * VC_MS); /* it waits at the gate meanwhile */
  CHECK(!take(2, t + 1, LONG, t + 20 * VC_MS));
  CHECK(take(2, t + 1, LONG, t + 30 * VC_MS));
  over(2);
  CHECK(take(0, t, LONG, t + VC_S) && !take(1, t + VC_S, LONG, t + VC_S));
  as(1), vc_turn_leave();
  vc_turn_keep(t + VC_S);
  over(0);
  CHECK(take(2, t + 2 * VC_S, LONG, t + VC_S));
  CHECK(!take(0, t + VC_S, LONG, t + VC_S));
  usage.slot[2].live = 0;
  CHECK(take(0, t + VC_S, LONG, t + VC_S));
  over(0);
  usage.slot[2].live = 1;
  over(2);

  t += 4 * VC_S; /* a launch may take longer than expected, a stopped process does not hold its turn for good */
  CHECK(take(0, t, LONG, t));
  CHECK(!take(1, t, LONG, t + LONG + 1) && !take(1, t, LONG, t + 2 * LONG));
  CHECK(take(1, t, LONG, t + 2 * LONG + 10 * VC_MS));
  over(0), over(1);

  t += VC_S; /* in the driver's call a launch does not show as in flight: the turn is not over */
  as(0);
  CHECK(vc_turn_take(t, LONG, 0, t));
  over(0);
  CHECK(!take(1, t, LONG, t + 1));
  vc_turn_leave();
  as(0), vc_turn_made();
  uint64_t seen = vc_turn_seen(); /* idle when it was looked at, but not any more */
  CHECK(vc_turn_take(t + 2, LONG, LONG, t + 2));
  vc_turn_over(seen);
  vc_turn_made();
  CHECK(!take(1, t, LONG, t + LONG)); /* behind what its process had in flight before */
  CHECK(take(1, t, LONG, t + 2 * LONG));
  over(0), over(1);

  t += VC_S; /* two threads of a process, one right after the other */
  as(0);
  CHECK(vc_turn_take(t, LONG, 0, t) && vc_turn_take(t, LONG, 0, t));
  vc_turn_made(), vc_turn_made();
  CHECK(!take(1, t, LONG, t + LONG) && take(1, t, LONG, t + 2 * LONG - 100 * VC_US));
  over(0), over(1);

  t += VC_S; /* who may wait no longer says so to those who wait */
  CHECK(take(0, t, LONG, t));
  as(1), vc_turn_force(LONG, 0, t), vc_turn_made();
  over(0);
  CHECK(!take(2, t, LONG, t + 1));
  return 0;
}
