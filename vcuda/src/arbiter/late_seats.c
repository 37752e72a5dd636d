/* SPDX-License-Identifier: Apache-2.0 */
#include "late_seats.h"

#define LATE_NS (20 * VC_MS) /* a seat that is owed more does not get its request: it waits after each pause */

int64_t ar_late_by(const struct ar_member *m) {
  return m->share.credit * VC_PERMILLE / m->share.request;
}

bool ar_late_is(const struct ar_member *o, const struct ar_member *m) {
  return o != m && o->share.vclass == VC_IN_BUDGET && o->share.credit > (int64_t)LATE_NS &&
         ar_late_by(o) > 2 * ar_late_by(m);
}

bool ar_late_kept_by(const struct ar_sched *s, const struct ar_member *m) {
  for (int i = 0; i < s->count; i++)
    if (s->member[i]->share.eligible && ar_late_is(s->member[i], m)) return true;
  return false;
}

bool ar_late_back_soon(const struct ar_member *o, uint64_t within, uint64_t now) {
  uint64_t end = ar_pauses_end(&o->pauses, now);
  return o->seen.connected && !o->lost && o->pauses.paused && now - o->pauses.since < AR_RECENT_NS &&
         ar_pauses_short(&o->pauses, AR_RECENT_NS) && end < now + within;
}
