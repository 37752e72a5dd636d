/* SPDX-License-Identifier: Apache-2.0 */
/* One GPU's time with two seats, by hand: time is an argument. */
#ifndef TWO_SEATS_H
#define TWO_SEATS_H

#include "arbiter/scheduler.h"
#include "unit.h"

#define MS 1000000ull

static inline struct ar_member member(uint32_t request, uint32_t vclass) {
  struct ar_member m = {0};
  m.share.request = request;
  m.share.limit = 1000;
  m.share.vclass = vclass;
  m.seen.connected = true;
  return m;
}

/* Two seats at the GPU's first instant, which is returned. */
static inline uint64_t begin(struct ar_sched *s, struct ar_member *a, struct ar_member *b) {
  uint64_t now = 1000 * MS;
  ar_sched_init(s, ar_rule_slicekeeper, now);
  CHECK(ar_sched_add(s, a, now) && ar_sched_add(s, b, now));
  return now;
}

#endif
