/* SPDX-License-Identifier: Apache-2.0 */
#include "arbiter/pauses.h"
#include "unit.h"

/* Work for `busy`, then none for `pause`. */
static uint64_t go_on(struct ar_pauses *p, uint64_t now, uint64_t busy, uint64_t pause) {
  for (uint64_t t = 0; t <= busy; t++) ar_pauses_see(p, true, now + t);
  for (uint64_t t = 1; t < pause; t++) ar_pauses_see(p, false, now + busy + t);
  return now + busy + pause;
}

int main(void) {
  struct ar_pauses p = {0};
  uint64_t now = 1000;
  ar_pauses_see(&p, false, now);
  CHECK(!p.paused && !ar_pauses_end(&p, now)); /* nothing was ever seen */
  now = go_on(&p, now, 50, 100);
  CHECK(!ar_pauses_end(&p, now - 1)); /* the first pause: nothing is known of its end */
  CHECK(!ar_pauses_short(&p, 1000));
  now = go_on(&p, now, 50, 100);
  CHECK(!ar_pauses_end(&p, now - 1)); /* one is no habit */
  now = go_on(&p, now, 50, 40);
  CHECK(ar_pauses_end(&p, now - 1) == now - 40 + 100); /* as long as those before */
  now = go_on(&p, now, 50, 40);
  now = go_on(&p, now, 50, 120);
  now = go_on(&p, now, 50, 1);
  ar_pauses_see(&p, true, now);
  CHECK(!ar_pauses_end(&p, now)); /* no pause */
  ar_pauses_see(&p, false, now + 1);
  CHECK(ar_pauses_end(&p, now + 1) == now + 40); /* the shortest that lasted longer */
  ar_pauses_see(&p, false, now + 41);
  CHECK(ar_pauses_end(&p, now + 41) == now + 100); /* what lasts longer is one of the longer ones */
  ar_pauses_see(&p, false, now + 101);
  CHECK(!ar_pauses_end(&p, now + 101)); /* one was longer still, and is no habit */
  CHECK(ar_pauses_short(&p, 101) && !ar_pauses_short(&p, 99)); /* all but one */
  for (int i = 0; i <= AR_PAUSES; i++) now = go_on(&p, now, 5, 7);
  ar_pauses_see(&p, true, now);
  ar_pauses_see(&p, false, now + 8);
  CHECK(!ar_pauses_end(&p, now + 8)); /* old ones are forgotten */
  return 0;
}
