/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler.h"
#include "account.h"
#include "choice.h"

#include <stdlib.h>
#include <string.h>

#define QUANTUM_NS (5 * VC_MS)
#define BEAT_NS (20 * VC_MS)
#define WAKE_NS (10 * VC_MS) /* a granted seat may take this long to wake up */
#define DRAIN_MARGIN_NS (5 * VC_MS)
/* No seat is waited for longer, whatever it claims: what a lie costs its neighbours is made good within the window. */
#define DRAIN_MOST_NS (120 * VC_MS)
#define ALIVE_NS (50 * VC_MS) /* a process that has given no sign for so long is stopped */
#define RESIDUAL_UNKNOWN_NS (2 * VC_MS)

void ar_sched_init(struct ar_sched *s, ar_rule *rule, uint64_t now) {
  *s = (struct ar_sched){.rule = rule, .holder = -1, .at = now, .quantum = QUANTUM_NS,
                         .allowance = (int64_t)AR_ALLOWANCE_MAX_NS};
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

/* ---- what is seen ---- */

/* How long the holder is idle before the GPU is given to others. The holder says so itself, but no more than
 * VC_LINGER_NS counts. */
static uint64_t linger(const struct ar_member *m) {
  uint64_t said = m->seen.linger;
  if (!said || said > VC_LINGER_NS) return VC_LINGER_NS;
  return said > VC_LINGER_LEAST_NS ? said : VC_LINGER_LEAST_NS;
}

static bool held_by(const struct ar_sched *s, int i) {
  return s->holder == i && !s->draining;
}

static void look(struct ar_sched *s, uint64_t now) {
  bool busy = false;
  for (int i = 0; i < s->count; i++) {
    struct ar_member *m = s->member[i];
    if (m->seen.active) m->last_active = now;
    if (!m->seen.active && m->seen.idle_since > m->last_active && m->seen.idle_since <= now)
      m->last_active = m->seen.idle_since;
    bool lingering = now - m->last_active < linger(m);
    if (m->seen.beat != m->beat) m->beat_at = now;
    m->beat = m->seen.beat;
    if (m->lost && m->beat != m->lost_beat) m->lost = false;
    m->share.present = m->seen.connected && !m->lost &&
                       (m->seen.waiting || m->seen.active || (held_by(s, i) && lingering));
    m->share.eligible = m->share.present && (!ar_limited(m) || !m->ceiling_shut);
    if (m->share.present && !m->was_present) ar_account_join(s, m);
    m->was_present = m->share.present;
    ar_pauses_see(&m->pauses, m->share.present, now);
    busy |= m->share.present && m->share.vclass == VC_IN_BUDGET;
  }
  ar_pauses_see(&s->in_budget, busy, now);
}

/* ---- what is decided ---- */

static void shut(struct ar_sched *s, uint64_t now) {
  struct ar_member *m = s->member[s->holder];
  m->open = false;
  m->granted += now - m->opened_at;
  m->closed_at = now;
  s->draining = true;
}

static void give(struct ar_sched *s, int i, uint64_t now) {
  struct ar_member *m = s->member[i];
  m->open = true;
  m->grants++;
  m->given_at = m->opened_at = now;
  m->leftover = m->share.vclass != VC_IN_BUDGET || m->share.credit <= 0;
  s->holder = i;
  s->draining = false;
}

static bool others_want(const struct ar_sched *s, int me) {
  for (int i = 0; i < s->count; i++)
    if (i != me && s->member[i]->share.eligible) return true;
  return false;
}

static void drained(struct ar_sched *s, uint64_t now) {
  struct ar_member *m = s->member[s->holder];
  uint64_t end =
      m->seen.idle_since > m->closed_at && m->seen.idle_since < now ? m->seen.idle_since : now;
  uint64_t took = end > m->closed_at ? end - m->closed_at : 0;
  /* A slow mean: one thread that woke late must not make short work look long. */
  uint64_t *residual = &m->share.residual;
  *residual =
      took > *residual ? *residual + (took - *residual) / 8 : *residual - (*residual - took) / 8;
  m->served_at = now;
  s->holder = -1;
  s->draining = false;
}

/* Whether a holder should have finished, and is passed by: soon if it is stopped, late if it is alive, since it may run
 * a longer kernel than ever. It is charged for all of that time. */
static bool overdue(const struct ar_member *m, uint64_t now) {
  uint64_t unit = m->seen.unit > m->share.residual ? m->seen.unit : m->share.residual;
  bool alive = now - m->beat_at < ALIVE_NS;
  uint64_t patience = alive || unit > DRAIN_MOST_NS / 2 ? DRAIN_MOST_NS : 2 * unit + DRAIN_MARGIN_NS;
  return now - m->closed_at > patience;
}

static bool idle(const struct ar_member *m, uint64_t now) {
  uint64_t since = m->last_active > m->opened_at ? m->last_active : m->opened_at;
  if (m->seen.active) return false;
  /* Granted, but its thread has not woken up yet. */
  if (m->seen.waiting) return now - m->given_at > WAKE_NS;
  return now - since >= linger(m);
}

static void lose(struct ar_member *m) {
  m->lost = true;
  m->lost_beat = m->seen.beat;
}

static bool must_leave(const struct ar_sched *s, uint64_t now) {
  struct ar_member *m = s->member[s->holder];
  if (!m->seen.connected || (ar_limited(m) && m->ceiling_shut)) return true;
  bool background = m->share.vclass == VC_BACKGROUND;
  if (!others_want(s, s->holder))
    return background && ar_pauses_end(&s->in_budget, now) && ar_choice_next(s, now) != s->holder;
  if (idle(m, now)) {
    if (m->seen.waiting) lose(m);
    return true;
  }
  bool behind = background && now - s->in_budget.since < VC_LINGER_NS;
  bool awake = m->seen.active || !m->seen.waiting;
  bool due = awake && now - m->opened_at >= s->quantum;
  bool yields = !background && ar_choice_keeps_late(s, m);
  if (!due && !behind && !yields && !s->reconsider) return false;
  int next = ar_choice_next(s, now);
  return next != s->holder && !(next >= 0 && ar_choice_can_wait(s->member[next], m, now));
}

static void decide(struct ar_sched *s, uint64_t now) {
  if (s->holder >= 0 && !s->draining && must_leave(s, now)) {
    shut(s, now); /* the caller looks once more at what is in flight, after it has closed the gate */
  } else if (s->holder >= 0 && s->draining) {
    struct ar_member *m = s->member[s->holder];
    bool gone = !m->seen.active || !m->seen.connected;
    if (!gone && overdue(m, now)) lose(m);
    if (gone || m->lost) drained(s, now);
  }
  if (s->holder < 0) {
    int next = ar_choice_next(s, now);
    if (next >= 0) give(s, next, now);
  } else if (!s->draining && now - s->member[s->holder]->opened_at >= s->quantum) {
    /* It keeps the GPU for another quantum, maybe on another account. */
    struct ar_member *m = s->member[s->holder];
    m->granted += now - m->opened_at;
    m->opened_at = now;
    m->leftover = m->share.vclass != VC_IN_BUDGET || m->share.credit <= 0;
  }
  s->reconsider = false;
}

static bool held_up(const struct ar_sched *s) {
  if (s->holder < 0 || s->member[s->holder]->share.vclass != VC_BACKGROUND) return false;
  for (int i = 0; i < s->count; i++) {
    const struct ar_member *m = s->member[i];
    if (m->share.vclass == VC_IN_BUDGET && m->seen.waiting && i != s->holder) return true;
  }
  return false;
}

static uint64_t soonest(const struct ar_sched *s, uint64_t now) {
  uint64_t next = now + BEAT_NS;
#define AT(t)                                                                                      \
  do {                                                                                             \
    uint64_t at_ = (t);                                                                            \
    if (at_ < next) next = at_ > now ? at_ : now + 10 * VC_US;                                        \
  } while (0)
  if (s->holder >= 0) {
    const struct ar_member *m = s->member[s->holder];
    if (s->draining) AT(now + 250 * VC_US);
    if (m->contended && !s->draining) AT(m->opened_at + s->quantum);
    if (ar_limited(m)) AT(now + 1 * VC_MS);
    if (m->open && m->share.vclass == VC_BACKGROUND && ar_choice_latest(s, m, now) > now) AT(ar_choice_latest(s, m, now));
    if (m->open && m->contended && !m->seen.active && !m->seen.waiting)
      AT(m->last_active + linger(m));
    if (m->open && m->contended && m->seen.waiting) AT(m->given_at + WAKE_NS);
  }
  for (int i = 0; i < s->count; i++)
    if (s->member[i]->seen.waiting && !s->member[i]->share.eligible) AT(now + 500 * VC_US);
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
  ar_account_interfere(s, span);
  s->at = now;
  look(s, now);
  decide(s, now);
  for (int i = 0; i < s->count; i++) {
    struct ar_member *m = s->member[i];
    m->was_active = m->share.present && (m->seen.active || !m->seen.waiting || held_by(s, i));
  }
  s->held_up = held_up(s);
  for (int i = 0; i < s->count; i++) {
    s->member[i]->contended = others_want(s, i);
    s->member[i]->depth = ar_choice_depth(s, s->member[i], now);
  }
  return soonest(s, now);
}
