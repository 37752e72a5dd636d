/* SPDX-License-Identifier: Apache-2.0 */
#include "queue_depth.h"
#include "late_seats.h"

#define ALONE_NS (10 * VC_MS) /* so that a newcomer does not wait behind a thousand launches */
#define SHARED_NS (2 * VC_MS)
#define BEHIND_NS (500 * VC_US)
#define LEAST_NS (100 * VC_US)
#define BEHIND_WAITS_NS (100 * VC_MS) /* at most, since it may come to run in many contexts at once */

uint64_t ar_depth_in_pause(const struct ar_pauses *p, uint64_t now) {
  uint64_t end = ar_pauses_end(p, now), part = end ? (end - p->since) / 4 : BEHIND_NS;
  return part < LEAST_NS ? LEAST_NS : part > BEHIND_NS ? BEHIND_NS : part;
}

/* How much may be in flight if a late seat is back before much work has left the GPU: a part of its pause. */
static uint64_t depth_before_late(const struct ar_sched *s, const struct ar_member *m, uint64_t now) {
  uint64_t depth = SHARED_NS;
  for (int i = 0; i < s->count; i++) {
    const struct ar_member *o = s->member[i];
    if (!ar_late_is(o, m) || !ar_late_back_soon(o, AR_DEPTH_QUIET_NS, now)) continue;
    uint64_t part = ar_depth_in_pause(&o->pauses, now);
    if (part < depth) depth = part;
  }
  return depth;
}

uint64_t ar_depth(const struct ar_sched *s, const struct ar_member *m, uint64_t now) {
  int connected = 0, in_budget = 0;
  bool wanted = false; /* if only by background, it can wait, and the seat may go on when it has launched enough */
  for (int i = 0; i < s->count; i++) {
    const struct ar_member *o = s->member[i];
    connected += o->seen.connected;
    in_budget += o->seen.connected && o->share.vclass == VC_IN_BUDGET;
    wanted |= o != m && o->share.present && (o->share.vclass == VC_IN_BUDGET || m->share.vclass == VC_BACKGROUND);
  }
  if (m->share.vclass == VC_BACKGROUND && in_budget) return ar_depth_in_pause(&s->in_budget, now);
  uint64_t before = depth_before_late(s, m, now);
  if (before < SHARED_NS) return before;
  if (wanted) return SHARED_NS;
  return connected > 1 || ar_limited(m) ? AR_DEPTH_QUIET_NS : ALONE_NS;
}

uint64_t ar_depth_behind_waits(const struct ar_sched *s, const struct ar_member *m) {
  bool in_budget = false, wanted = false;
  for (int i = 0; i < s->count; i++) {
    const struct ar_member *o = s->member[i];
    in_budget |= o != m && o->seen.connected && o->share.vclass == VC_IN_BUDGET;
    wanted |= o != m && o->share.present;
  }
  bool background = m->share.vclass == VC_BACKGROUND;
  int64_t owed = !background ? m->share.credit : in_budget ? s->interference : (int64_t)AR_DEPTH_QUIET_NS;
  int64_t spare = wanted || (background && in_budget) ? 0 : (int64_t)AR_DEPTH_QUIET_NS;
  if (owed > (int64_t)BEHIND_WAITS_NS) owed = BEHIND_WAITS_NS;
  return (uint64_t)(owed > spare ? owed : spare);
}
