/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler.h"
#include "background_allowance.h"
#include "hand_over.h"
#include "queue_depth.h"
#include "ready.h"
#include "time_account.h"

#include <stdlib.h>
#include <string.h>

#define BEAT_NS (20 * VC_MS)
#define RESIDUAL_UNKNOWN_NS (2 * VC_MS)

void ar_sched_init(struct ar_sched *s, ar_rule *rule, uint64_t now) {
  *s = (struct ar_sched){.rule = rule, .holder = -1, .at = now};
  ar_background_init(s);
}

void ar_sched_free(struct ar_sched *s) {
  free(s->member);
}

bool ar_sched_add(struct ar_sched *s, struct ar_member *m, uint64_t now) {
  struct ar_member **grown = realloc(s->member, (size_t)(s->count + 1) * sizeof *grown);
  if (!grown) return false;
  s->member = grown;
  m->charged_to = m->bucket_at = m->last_active = m->served_at = now;
  if (!m->share.residual) m->share.residual = RESIDUAL_UNKNOWN_NS;
  s->member[s->count++] = m;
  return true;
}

void ar_sched_remove(struct ar_sched *s, struct ar_member *gone) {
  for (int i = 0; i < s->count; i++) {
    if (s->member[i] != gone) continue;
    if (s->holder == i) {
      s->holder = -1;
      s->draining = false;
    } else if (s->holder > i) {
      s->holder--;
    }
    memmove(&s->member[i], &s->member[i + 1], (size_t)(s->count - i - 1) * sizeof *s->member);
    s->count--;
    return;
  }
}

void ar_sched_changed(struct ar_sched *s) {
  s->reconsider = true;
}

static bool held_by(const struct ar_sched *s, int i) {
  return s->holder == i && !s->draining;
}

/* What runs without a turn, because its wait is over, needs none unless it takes long. */
static bool needs_turn(const struct ar_sched *s, int i, uint64_t now) {
  const struct ar_member *m = s->member[i];
  uint64_t without = m->active_since ? now - m->active_since : 0;
  return s->holder == i || vc_needs_turn(m->seen.waiting, without);
}

static void look(struct ar_sched *s, uint64_t now) {
  bool busy = false;
  for (int i = 0; i < s->count; i++) {
    struct ar_member *m = s->member[i];
    if (m->seen.active) m->last_active = now;
    if (!m->seen.active && m->seen.idle_since > m->last_active && m->seen.idle_since <= now)
      m->last_active = m->seen.idle_since;
    bool lingering = now - m->last_active < ar_hand_over_linger(m);
    if (m->seen.beat != m->beat) m->beat_at = now;
    m->beat = m->seen.beat;
    if (m->lost && m->beat != m->lost_beat) m->lost = false;
    m->share.present = m->seen.connected && !m->lost &&
                       (vc_can_use(m->seen.active, m->seen.waiting) || (held_by(s, i) && lingering));
    if (!m->seen.active)
      m->active_since = 0;
    else if (!m->active_since)
      m->active_since = now;
    m->share.eligible = m->share.present && needs_turn(s, i, now) && (!ar_limited(m) || !m->ceiling_shut);
    if (m->share.present && !m->was_present) ar_account_join(s, m);
    m->was_present = m->share.present;
    ar_pauses_see(&m->pauses, m->share.present, now);
    busy |= m->share.present && m->share.vclass == VC_IN_BUDGET;
  }
  ar_pauses_see(&s->in_budget, busy, now);
}

/* Work that was behind a wait, or did not leave the GPU in time, runs beside the holder's. */
static void note_beside(struct ar_sched *s, struct ar_member *m, uint64_t now) {
  bool beside = false;
  for (int i = 0; i < s->count; i++) beside |= s->member[i] != m && s->member[i]->seen.active;
  if (beside)
    m->beside_until = UINT64_MAX;
  else if (m->beside_until == UINT64_MAX)
    m->beside_until = now;
}

static uint64_t soonest(const struct ar_sched *s, uint64_t now) {
  uint64_t next = now + BEAT_NS;
#define AT(t)                                                  \
  do {                                                         \
    uint64_t at_ = (t);                                        \
    if (at_ < next) next = at_ > now ? at_ : now + 10 * VC_US; \
  } while (0)
  if (s->holder >= 0) {
    const struct ar_member *m = s->member[s->holder];
    if (s->draining) AT(now + 250 * VC_US);
    if (m->contended && !s->draining) AT(m->opened_at + AR_QUANTUM_NS);
    if (ar_limited(m)) AT(now + 1 * VC_MS);
    uint64_t latest = m->open && m->share.vclass == VC_BACKGROUND ? ar_background_latest(s, m, now) : 0;
    if (latest > now) AT(latest);
    if (m->open && m->contended && !m->seen.active && !m->seen.waiting) AT(m->last_active + ar_hand_over_linger(m));
    if (m->open && m->contended && m->seen.waiting) AT(m->given_at + AR_WAKE_NS);
  }
  for (int i = 0; i < s->count; i++)
    if (s->member[i]->seen.waiting && !s->member[i]->share.eligible) AT(now + 500 * VC_US);
  for (int i = 0; i < s->count; i++)
    if (s->holder != i && s->member[i]->active_since + VC_TURN_NS > now && s->member[i]->seen.active)
      AT(s->member[i]->active_since + VC_TURN_NS);
  for (int i = 0; i < s->count; i++) {
    uint64_t end = ar_pauses_end(&s->member[i]->pauses, now);
    if (end > now + AR_DEPTH_QUIET_NS) AT(end - AR_DEPTH_QUIET_NS);
  }
  for (int i = 0; i < s->count && s->holder < 0; i++)
    if (s->member[i]->share.eligible) AT(now + 1 * VC_MS);
#undef AT
  return next;
}

uint64_t ar_sched_step(struct ar_sched *s, uint64_t now) {
  uint64_t span = now > s->at ? now - s->at : 0;
  for (int i = 0; i < s->count; i++) {
    ar_account_accrue(s->member[i], span, now);
    ar_account_weigh_demand(s->member[i], span);
  }
  ar_account_charge(s, now);
  ar_background_charge(s, span);
  s->at = now;
  look(s, now);
  ar_hand_over(s, now);
  for (int i = 0; i < s->count; i++) {
    struct ar_member *m = s->member[i];
    m->was_active = m->share.present && (m->seen.active || !m->seen.waiting || held_by(s, i));
  }
  s->held_up = ar_background_holds_up(s);
  for (int i = 0; i < s->count; i++) {
    s->member[i]->contended = ar_others_want(s, i);
    s->member[i]->depth = ar_depth(s, s->member[i], now);
    note_beside(s, s->member[i], now);
    s->member[i]->behind = ar_depth_behind_waits(s, s->member[i]);
  }
  return soonest(s, now);
}
