/* SPDX-License-Identifier: Apache-2.0 */
#include "next_seat.h"
#include "background_allowance.h"
#include "late_seats.h"

#define CROWD_NS (20 * VC_MS)     /* for how long work may keep the GPU past its gate in another's short pause */
#define FAR_NS (150 * VC_MS)      /* a seat that is this far behind what it should have had is helped first */
#define LATE_CROWD_NS (1 * VC_MS) /* for how long work may then keep the GPU past its gate in that seat's short pause */
#define RESTLESS 0.95             /* a seat that wants less than this part of the GPU pauses */
#define HUNGRY_NS (100 * VC_MS)   /* background that has waited longer is hungry */

static struct ar_view view(const struct ar_sched *s, struct ar_share *copy, uint64_t now) {
  struct ar_view v = {copy, s->count, s->in_budget.since && now - s->in_budget.since < AR_RECENT_NS,
                      ar_pauses_end(&s->in_budget, now) != 0, s->interference, s->allowance, false};
  for (int i = 0; i < s->count; i++) {
    const struct ar_member *m = s->member[i];
    copy[i] = m->share;
    copy[i].fits = ar_background_latest(s, m, now) > now;
    if (m->share.vclass == VC_BACKGROUND && m->share.eligible && now - m->served_at > HUNGRY_NS)
      v.background_hungry = true;
  }
  return v;
}

/* Whether work that keeps the GPU for so long in a seat's pause costs the seat more than the GPU would idle without. */
static bool costs_more(const struct ar_member *o, uint64_t keeps, uint64_t now) {
  uint64_t end = ar_pauses_end(&o->pauses, now), pause = (end ? end : now) - o->pauses.since;
  return (double)keeps * (2 * o->demand - 1) > 2 * o->demand * (double)pause;
}

/* Whether a seat beyond its request must not use another's short pause, because its work would keep the GPU past its
 * gate, and the other seat is owed GPU time and wants it: each such pause would cost that seat more than its window
 * pays back. Shorter work is kept out only if that seat is far behind, because the GPU idles meanwhile. */
static bool crowds_out(const struct ar_sched *s, const struct ar_member *m, uint64_t now) {
  uint64_t keeps = m->share.residual;
  if (m->share.vclass != VC_IN_BUDGET || m->share.credit > 0 || keeps < LATE_CROWD_NS) return false;
  int64_t least = keeps < CROWD_NS ? (int64_t)FAR_NS : 0;
  for (int i = 0; i < s->count; i++) {
    const struct ar_member *o = s->member[i];
    if (o->share.vclass != VC_IN_BUDGET || ar_late_by(o) <= least || !ar_late_back_soon(o, keeps, now)) continue;
    if (o->demands || costs_more(o, keeps, now)) return true;
  }
  return false;
}

int ar_next_seat(const struct ar_sched *s, uint64_t now) {
  struct ar_share copy[s->count + 1];
  struct ar_view v = view(s, copy, now);
  for (int i = 0; i < s->count; i++) copy[i].eligible &= !crowds_out(s, s->member[i], now);
  int best = s->rule(&v);
  return best >= 0 && best < s->count && copy[best].eligible ? best : -1;
}

bool ar_next_can_wait(const struct ar_member *next, const struct ar_member *holder, uint64_t now) {
  return next->share.residual >= CROWD_NS && next->share.credit <= 0 && next->share.vclass == VC_IN_BUDGET &&
         holder->demand < RESTLESS && now - holder->given_at < AR_RECENT_NS;
}

