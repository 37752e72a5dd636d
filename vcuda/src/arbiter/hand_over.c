/* SPDX-License-Identifier: Apache-2.0 */
#include "hand_over.h"
#include "late_seats.h"
#include "next_seat.h"

#define DRAIN_MARGIN_NS (5 * VC_MS)
/* No seat is waited for longer, whatever it claims: what a lie costs its neighbours is made good within the window. */
#define DRAIN_MOST_NS (120 * VC_MS)
#define ALIVE_NS (50 * VC_MS) /* a process that has given no sign for so long is stopped */

uint64_t ar_hand_over_linger(const struct ar_member *m) {
  uint64_t said = m->seen.linger;
  if (!said || said > VC_LINGER_NS) return VC_LINGER_NS;
  return said > VC_LINGER_LEAST_NS ? said : VC_LINGER_LEAST_NS;
}

bool ar_others_want(const struct ar_sched *s, int me) {
  for (int i = 0; i < s->count; i++)
    if (i != me && s->member[i]->share.eligible) return true;
  return false;
}

static void shut(struct ar_sched *s, uint64_t now) {
  struct ar_member *m = s->member[s->holder];
  m->open = false;
  m->granted += now - m->opened_at;
  m->closed_at = now;
  s->draining = true;
}

static void begin_quantum(struct ar_member *m, uint64_t now) {
  m->opened_at = now;
  m->leftover = m->share.vclass != VC_IN_BUDGET || m->share.credit <= 0;
}

static void give(struct ar_sched *s, int i, uint64_t now) {
  struct ar_member *m = s->member[i];
  m->open = true;
  m->grants++;
  m->given_at = now;
  begin_quantum(m, now);
  s->holder = i;
  s->draining = false;
}

static void drained(struct ar_sched *s, uint64_t now) {
  struct ar_member *m = s->member[s->holder];
  uint64_t end = m->seen.idle_since > m->closed_at && m->seen.idle_since < now ? m->seen.idle_since : now;
  uint64_t took = end > m->closed_at ? end - m->closed_at : 0;
  /* A slow mean: one thread that woke late must not make short work look long. */
  uint64_t *residual = &m->share.residual;
  *residual = took > *residual ? *residual + (took - *residual) / 8 : *residual - (*residual - took) / 8;
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
  if (m->seen.waiting) return now - m->given_at > AR_WAKE_NS;
  return now - since >= ar_hand_over_linger(m);
}

static void lose(struct ar_member *m) {
  m->lost = true;
  m->lost_beat = m->seen.beat;
}

static bool must_leave(const struct ar_sched *s, uint64_t now) {
  struct ar_member *m = s->member[s->holder];
  if (!m->seen.connected || (ar_limited(m) && m->ceiling_shut)) return true;
  bool background = m->share.vclass == VC_BACKGROUND;
  if (!ar_others_want(s, s->holder))
    return background && ar_pauses_end(&s->in_budget, now) && ar_next_seat(s, now) != s->holder;
  if (idle(m, now)) {
    if (m->seen.waiting) lose(m);
    return true;
  }
  bool behind = background && now - s->in_budget.since < VC_LINGER_NS;
  bool awake = m->seen.active || !m->seen.waiting;
  bool due = awake && now - m->opened_at >= AR_QUANTUM_NS;
  bool yields = !background && ar_late_kept_by(s, m);
  if (!due && !behind && !yields && !s->reconsider) return false;
  int next = ar_next_seat(s, now);
  return next != s->holder && !(next >= 0 && ar_next_can_wait(s->member[next], m, now));
}

void ar_hand_over(struct ar_sched *s, uint64_t now) {
  if (s->holder >= 0 && !s->draining && must_leave(s, now)) {
    shut(s, now); /* the caller looks once more at what is in flight, after it has closed the gate */
  } else if (s->holder >= 0 && s->draining) {
    struct ar_member *m = s->member[s->holder];
    bool gone = !m->seen.active || !m->seen.connected;
    if (!gone && overdue(m, now)) lose(m);
    if (gone || m->lost) drained(s, now);
  }
  if (s->holder < 0) {
    int next = ar_next_seat(s, now);
    if (next >= 0) give(s, next, now);
  } else if (!s->draining && now - s->member[s->holder]->opened_at >= AR_QUANTUM_NS) {
    /* It keeps the GPU for another quantum, maybe on another account. */
    struct ar_member *m = s->member[s->holder];
    m->granted += now - m->opened_at;
    begin_quantum(m, now);
  }
  s->reconsider = false;
}
