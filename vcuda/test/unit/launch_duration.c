/* SPDX-License-Identifier: Apache-2.0 */
#include "launch_duration.h"
#include "unit.h"

static void measured(struct vc_duration *d, uint64_t each, uint32_t launches, uint64_t now) {
  vc_duration_measured(d, each * launches, each * launches, launches, now);
}

int main(void) {
  static char function, other, many[64][64];
  uint64_t now = VC_S;
  struct vc_duration *d = vc_duration_of(&function);
  CHECK(d == vc_duration_of(&function) && d != vc_duration_of(&other));
  CHECK(!vc_duration_known(d) && vc_duration_doubted(d) && vc_duration_trust() == 0);
  measured(d, 20 * VC_US, 1, now);
  CHECK(vc_duration_known(d) && !vc_duration_doubted(d) && d->longest == 20 * VC_US);
  measured(d, 30 * VC_US, 4, now += VC_MS);
  CHECK(vc_duration_trust() == 5 && d->longest == 30 * VC_US);
  measured(d, 90 * VC_US, 4, now += VC_MS);
  CHECK(vc_duration_trust() == 9); /* three times as long, but short */
  vc_duration_measured(d, 10 * VC_US, 50 * VC_MS, 1, now += VC_MS);
  CHECK(vc_duration_trust() == 10); /* seen late: it may have been short */
  measured(d, 50 * VC_MS, 1, now += VC_MS);
  CHECK(vc_duration_trust() == 0 && d->longest == 50 * VC_MS);
  measured(d, 60 * VC_MS, 1, now += VC_MS);
  CHECK(vc_duration_trust() == 1); /* a little longer is no surprise */

  /* Launches of several functions: about as long as expected, longer, and shorter. */
  vc_duration_compared(VC_MS, 800 * VC_US, VC_MS, 10, now += VC_S);
  CHECK(vc_duration_trust() == 11 && !vc_duration_doubted(d));
  vc_duration_compared(VC_MS, 100 * VC_US, 9 * VC_MS, 10, now += VC_S); /* the program was slow, maybe not the GPU */
  CHECK(vc_duration_trust() == 21 && !vc_duration_doubted(d));
  vc_duration_compared(VC_MS, 3 * VC_MS, 3 * VC_MS, 10, now += VC_S);
  CHECK(vc_duration_trust() == 0 && vc_duration_doubted(d) && vc_duration_known(d));
  measured(d, 40 * VC_MS, 1, now += VC_MS);
  CHECK(!vc_duration_doubted(d) && vc_duration_trust() == 1);
  vc_duration_compared(VC_MS, 100 * VC_US, 200 * VC_US, 10, now += VC_S);
  CHECK(vc_duration_trust() == 11 && vc_duration_doubted(d));
  measured(d, 40 * VC_MS, 1, now += VC_MS);
  vc_duration_compared(VC_MS, 100 * VC_US, 200 * VC_US, 10, now += 20 * VC_MS);
  CHECK(!vc_duration_doubted(d)); /* not that often */

  /* After a long time, one measurement that bounds nothing from below: a launch never counts as none. */
  vc_duration_measured(d, 0, 20 * VC_US, 1, now += 100 * VC_S);
  CHECK(d->longest == 20 * VC_US && d->mean == 20 * VC_US);

  /* Functions keep their places beside as many others as a framework has. */
  for (unsigned i = 0; i < 512; i++) measured(vc_duration_of(&many[i / 8][i % 8 * 8]), VC_US, 1, now += VC_MS);
  unsigned lost = 0;
  for (unsigned i = 0; i < 512; i++) lost += !vc_duration_known(vc_duration_of(&many[i / 8][i % 8 * 8]));
  CHECK(lost == 0 && vc_duration_known(vc_duration_of(&function)));
  return 0;
}
