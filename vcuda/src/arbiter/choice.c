/* SPDX-License-Identifier: Apache-2.0 */
#include "choice.h"
#include "account.h"

#define RECENT_NS (50 * VC_MS)    /* an in-budget seat counts as busy for so long after its work */
#define CROWD_NS (20 * VC_MS)     /* for how long work may keep the GPU past its gate in another's short pause */
#define LATE_NS (20 * VC_MS)      /* a seat that is owed more does not get its request: it waits after each pause */
#define FAR_NS (150 * VC_MS)      /* a seat that is this far behind what it should have had is helped first */
#define LATE_CROWD_NS (1 * VC_MS) /* for how long work may then keep the GPU past its gate in that seat's short pause */
#define RESTLESS 0.95             /* a seat that wants less than this part of the GPU pauses */
#define HUNGRY_NS (100 * VC_MS)   /* background that has waited longer is hungry */
#define DEPTH_ALONE_NS (10 * VC_MS) /* so that a newcomer does not wait behind a thousand launches */
#define DEPTH_SHARED_NS (2 * VC_MS)
#define DEPTH_BEHIND_NS (500 * VC_US)
#define DEPTH_LEAST_NS (100 * VC_US)

/* How much may be in flight in a pause, so that little of it is left when the pause ends: a part of the pause. */
static uint64_t depth_in_pause(const struct ar_pauses *p, uint64_t now) {
  uint64_t end = ar_pauses_end(p, now), part = end ? (end - p->since) / 4 : DEPTH_BEHIND_NS;
  return part < DEPTH_LEAST_NS ? DEPTH_LEAST_NS : part > DEPTH_BEHIND_NS ? DEPTH_BEHIND_NS : part;
}

/* It may be a little late if most of the earlier stops were in time. */
uint64_t ar_choice_latest(const struct ar_sched *s, const struct ar_member *m, uint64_t now) {
  uint64_t end = ar_pauses_end(&s->in_budget, now), needs = depth_in_pause(&s->in_budget, now);
  uint64_t late = s->allowance > (int64_t)AR_ALLOWANCE_MAX_NS / 2 && end ? (end - s->in_budget.since) / 8 : 0;
  if (late > AR_SHORT_NS) late = AR_SHORT_NS;
  if (m->share.residual > needs) needs = m->share.residual;
  if (m->seen.unit > needs) needs = m->seen.unit;
  return end > needs ? end + late - needs : 0;
}

static struct ar_view view(const struct ar_sched *s, struct ar_share *copy, uint64_t now) {
  struct ar_view v = {copy, s->count, s->in_budget.since && now - s->in_budget.since < RECENT_NS,
                      ar_pauses_end(&s->in_budget, now) != 0, s->interference, s->allowance, false};
  for (int i = 0; i < s->count; i++) {
    const struct ar_member *m = s->member[i];
    copy[i] = m->share;
    copy[i].fits = ar_choice_latest(s, m, now) > now;
    if (m->share.vclass == VC_BACKGROUND && m->share.eligible && now - m->served_at > HUNGRY_NS)
      v.background_hungry = true;
  }
  return v;
}

/* How long ago a seat should have had what it is owed. */
static int64_t behind_by(const struct ar_member *m) {
  return m->share.credit * VC_PERMILLE / m->share.request;
}

/* Whether another in-budget seat does not get its request, and lags much more than this one. */
static bool is_late(const struct ar_member *o, const struct ar_member *m) {
  return o != m && o->share.vclass == VC_IN_BUDGET && o->share.credit > (int64_t)LATE_NS &&
         behind_by(o) > 2 * behind_by(m);
}

/* Whether a seat is in one of its usual short pauses, which ends within so many nanoseconds. */
static bool is_back_soon(const struct ar_member *o, uint64_t within, uint64_t now) {
  uint64_t end = ar_pauses_end(&o->pauses, now);
  return o->seen.connected && !o->lost && o->pauses.paused && now - o->pauses.since < RECENT_NS &&
         ar_pauses_short(&o->pauses, RECENT_NS) && end < now + within;
}

bool ar_choice_keeps_late(const struct ar_sched *s, const struct ar_member *m) {
  for (int i = 0; i < s->count; i++)
    if (s->member[i]->share.eligible && is_late(s->member[i], m)) return true;
  return false;
}

/* How much may be in flight if such a seat will be back before much work has left the GPU: a part of its pause. */
static uint64_t depth_before_late(const struct ar_sched *s, const struct ar_member *m, uint64_t now) {
  uint64_t depth = DEPTH_SHARED_NS;
  for (int i = 0; i < s->count; i++) {
    const struct ar_member *o = s->member[i];
    if (!is_late(o, m) || !is_back_soon(o, AR_DEPTH_QUIET_NS, now)) continue;
    uint64_t part = depth_in_pause(&o->pauses, now);
    if (part < depth) depth = part;
  }
  return depth;
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
    if (o->share.vclass != VC_IN_BUDGET || behind_by(o) <= least || !is_back_soon(o, keeps, now)) continue;
    if (o->demands || costs_more(o, keeps, now)) return true;
  }
  return false;
}

int ar_choice_next(const struct ar_sched *s, uint64_t now) {
  struct ar_share copy[s->count + 1];
  struct ar_view v = view(s, copy, now);
  for (int i = 0; i < s->count; i++) copy[i].eligible &= !crowds_out(s, s->member[i], now);
  int best = s->rule(&v);
  return best >= 0 && best < s->count && copy[best].eligible ? best : -1;
}

bool ar_choice_can_wait(const struct ar_member *next, const struct ar_member *holder, uint64_t now) {
  return next->share.residual >= CROWD_NS && next->share.credit <= 0 && next->share.vclass == VC_IN_BUDGET &&
         holder->demand < RESTLESS && now - holder->given_at < RECENT_NS;
}

uint64_t ar_choice_depth(const struct ar_sched *s, const struct ar_member *m, uint64_t now) {
  int connected = 0, in_budget = 0;
  for (int i = 0; i < s->count; i++) {
    connected += s->member[i]->seen.connected;
    in_budget += s->member[i]->seen.connected && s->member[i]->share.vclass == VC_IN_BUDGET;
  }
  if (m->share.vclass == VC_BACKGROUND && in_budget) return depth_in_pause(&s->in_budget, now);
  uint64_t before = depth_before_late(s, m, now);
  if (before < DEPTH_SHARED_NS) return before;
  if (m->contended) return DEPTH_SHARED_NS;
  return connected > 1 || ar_limited(m) ? AR_DEPTH_QUIET_NS : DEPTH_ALONE_NS;
}
