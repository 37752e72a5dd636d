/* SPDX-License-Identifier: Apache-2.0 */
#include "launch_duration.h"
#include "unit.h"

static void measured(struct vc_duration *d, uint64_t each, uint32_t launches, uint64_t now) {
  vc_duration_measured(d, each * launches, each * launches, launches, now);
}

int main(void) {
  static char function, other;
  uint64_t now = VC_S;
  struct vc_duration *d = vc_duration_of(&function);
  CHECK(d == vc_duration_of(&function) && d != vc_duration_of(&other));
  CHECK(!vc_duration_known(d) && vc_duration_trust(d) == 1); /* the unknown runs alone */
  measured(d, 20 * VC_US, 1, now);
  CHECK(vc_duration_known(d) && d->longest == 20 * VC_US);
  CHECK(vc_duration_trust(d) == 2); /* short once: two at a time may be long, not sixteen */
  measured(d, 30 * VC_US, 4, now += VC_MS);
  CHECK(vc_duration_trust(d) == 6 && d->longest == 30 * VC_US);
  measured(d, 90 * VC_US, 4, now += VC_MS);
  CHECK(vc_duration_trust(d) == 10); /* three times as long, but short */
  vc_duration_measured(d, 10 * VC_US, 50 * VC_MS, 1, now += VC_MS);
  CHECK(vc_duration_trust(d) == 11); /* seen late: it may have been short */
  measured(d, 50 * VC_MS, 1, now += VC_MS);
  CHECK(vc_duration_trust(d) == 2 && d->longest == 50 * VC_MS);
  measured(d, 60 * VC_MS, 1, now += VC_MS);
  CHECK(vc_duration_trust(d) == 3); /* a little longer is no surprise */
  vc_duration_doubt(now += VC_S);
  CHECK(!vc_duration_known(d));
  measured(d, 40 * VC_MS, 1, now += VC_MS);
  CHECK(vc_duration_known(d) && vc_duration_trust(d) == 4); /* as before */
  return 0;
}
