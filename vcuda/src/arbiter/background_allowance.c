/* SPDX-License-Identifier: Apache-2.0 */
#include "background_allowance.h"
#include "clock_and_lock.h"
#include "queue_depth.h"

/* How long background may hold up in-budget work: in all, and with launches known to be long; and how much at once. */
#define ALLOWANCE_PERMILLE 30
#define INTERFERENCE_PERMILLE 15
#define ALLOWANCE_MAX_NS (20 * VC_MS)
#define INTERFERENCE_MAX_NS (20 * VC_MS)

void ar_background_init(struct ar_sched *s) {
  s->allowance = (int64_t)ALLOWANCE_MAX_NS;
}

/* The span counts as it was seen when it began: a seat that begins to wait rings, so a wait begins with a span. */
void ar_background_charge(struct ar_sched *s, uint64_t span) {
  bool behind = false;
  for (int i = 0; i < s->count; i++)
    behind |= s->member[i]->share.vclass == VC_BACKGROUND && s->member[i]->share.present;
  if (behind) {
    s->interference += (int64_t)(span * INTERFERENCE_PERMILLE / VC_PERMILLE);
    s->allowance += (int64_t)(span * ALLOWANCE_PERMILLE / VC_PERMILLE);
  }
  if (s->held_up) {
    s->interference -= (int64_t)span;
    s->allowance -= (int64_t)span;
  }
  if (s->allowance > (int64_t)ALLOWANCE_MAX_NS) s->allowance = (int64_t)ALLOWANCE_MAX_NS;
  if (s->interference > (int64_t)INTERFERENCE_MAX_NS) s->interference = (int64_t)INTERFERENCE_MAX_NS;
}

/* With the GPU, or beside its holder, because a wait of its streams is over. */
static bool runs(const struct ar_sched *s) {
  if (s->holder >= 0 && s->member[s->holder]->share.vclass == VC_BACKGROUND) return true;
  for (int i = 0; i < s->count; i++)
    if (s->member[i]->share.vclass == VC_BACKGROUND && s->member[i]->seen.active) return true;
  return false;
}

bool ar_background_holds_up(const struct ar_sched *s) {
  if (!runs(s)) return false;
  for (int i = 0; i < s->count; i++) {
    const struct ar_member *m = s->member[i];
    if (m->share.vclass != VC_IN_BUDGET) continue;
    if (i == s->holder ? m->seen.active : m->seen.waiting) return true;
  }
  return false;
}

/* It may be a little late if most of the earlier stops were in time. */
uint64_t ar_background_latest(const struct ar_sched *s, const struct ar_member *m, uint64_t now) {
  uint64_t end = ar_pauses_end(&s->in_budget, now), needs = ar_depth_in_pause(&s->in_budget, now);
  uint64_t late = s->allowance > (int64_t)ALLOWANCE_MAX_NS / 2 && end ? (end - s->in_budget.since) / 8 : 0;
  if (late > AR_SHORT_NS) late = AR_SHORT_NS;
  if (m->share.residual > needs) needs = m->share.residual;
  if (m->seen.unit > needs) needs = m->seen.unit;
  return end > needs ? end + late - needs : 0;
}
