/* SPDX-License-Identifier: Apache-2.0 */
#include "time_account.h"

#define SAID_MAX_NS (1000 * VC_MS)
#define WINDOW_NS (1000 * VC_MS)      /* within it a seat gets its request, however it pauses */
#define DEBT_MAX_NS (100 * VC_MS)     /* how much of what it used while no other seat was owed counts against it */
#define CEILING_BURST_NS (40 * VC_MS) /* how much a resting seat saves up below its ceiling */
#define CEILING_START_NS (1 * VC_MS)
#define CEILING_START_MAX_NS (50 * VC_MS)
#define DEMAND_NS (200 * VC_MS)       /* a seat's demand is its mean over about this time */
#define DEMANDING 0.85                /* a seat that wants at least this part of its request is helped to get it */
#define UNDEMANDING 0.75              /* until it wants less than this part */

static void window(struct ar_member *m, uint64_t amount, uint64_t now) {
  const uint64_t width = AR_WINDOW_NS / AR_BUCKETS;
  while (now - m->bucket_at >= width) {
    if (now - m->bucket_at >= 2 * AR_WINDOW_NS) m->bucket_at = now - now % width - AR_WINDOW_NS;
    m->bucket_at += width;
    uint64_t *next = &m->bucket[m->bucket_at / width % AR_BUCKETS];
    m->share.window_used -= *next < m->share.window_used ? *next : m->share.window_used;
    *next = 0;
  }
  m->bucket[m->bucket_at / width % AR_BUCKETS] += amount;
  m->share.window_used += amount;
}

/* Leftovers do not count against what a seat is owed, as long as no other seat is owed anything. */
static bool spare(const struct ar_sched *s, const struct ar_member *m) {
  if (!m->leftover) return false;
  for (int i = 0; i < s->count; i++) {
    const struct ar_share *o = &s->member[i]->share;
    if (o != &m->share && o->eligible && o->vclass == VC_IN_BUDGET && o->credit > 0) return false;
  }
  return true;
}

static void book(const struct ar_sched *s, struct ar_member *m, uint64_t amount, uint64_t now) {
  m->used += amount;
  m->share.has_history = true;
  if (spare(s, m) || m->share.vclass != VC_IN_BUDGET) {
    int64_t floor = m->share.credit < -(int64_t)DEBT_MAX_NS ? m->share.credit : -(int64_t)DEBT_MAX_NS;
    m->share.excess += (int64_t)(amount * VC_PERMILLE / m->share.request);
    m->share.credit -= (int64_t)amount;
    if (m->share.credit < floor) m->share.credit = floor;
  } else {
    m->share.credit -= (int64_t)amount;
  }
  m->ceiling -= (int64_t)amount;
  window(m, amount, now);
}

/* How much a seat says it used since it was last charged. The end of an interval is known only later, so the sum may
 * fall a little; if it falls far, it was started again. */
static uint64_t said(struct ar_member *m) {
  uint64_t more = m->seen.busy > m->busy_seen ? m->seen.busy - m->busy_seen : 0;
  if (more || m->busy_seen - m->seen.busy > 10 * VC_MS) m->busy_seen = m->seen.busy;
  return more < SAID_MAX_NS ? more : SAID_MAX_NS;
}

/* How long a seat kept the GPU since it was last charged; a grant counts, even if the seat says that it still waits. */
static uint64_t kept(const struct ar_member *m, uint64_t now) {
  bool keeps = m->seen.active || (m->open && m->seen.waiting);
  uint64_t begin = m->charged_to, end = keeps ? now : m->seen.idle_since;
  return end > begin ? (end < now ? end : now) - begin : 0;
}

/* While others want the GPU, the holder is charged for the time it kept it; if none does, for the time it reports. A
 * seat whose gate closed while its work waited in a stream for something shares the GPU with the holder, and is charged
 * for the time it reports. */
void ar_account_charge(const struct ar_sched *s, uint64_t now) {
  uint64_t says[s->count + 1], sum = 0;
  for (int i = 0; i < s->count; i++) {
    struct ar_member *m = s->member[i];
    uint64_t span = now - m->charged_to;
    says[i] = said(m);
    if (s->holder != i && says[i] > span) says[i] = span;
    sum += says[i];
  }
  for (int i = 0; i < s->count; i++) {
    struct ar_member *m = s->member[i];
    uint64_t amount = s->holder == i && m->contended ? kept(m, now) : says[i], others = sum - says[i];
    if (amount && others) amount = (uint64_t)((double)amount * (double)amount / (double)(amount + others));
    m->charged_to = now;
    if (amount) book(s, m, amount, now);
  }
}

/* How much of an amount may be saved up below the ceiling. A seat catches up with what others kept it from, as with its
 * request; its average since it began to wait is not above the ceiling. */
static int64_t below_ceiling(const struct ar_member *m, int64_t amount) {
  int64_t most = (int64_t)(m->seen.waiting ? WINDOW_NS * m->share.limit / VC_PERMILLE : CEILING_BURST_NS);
  int64_t room = most > m->ceiling ? most - m->ceiling : 0;
  return amount < room ? amount : room;
}

void ar_account_accrue(struct ar_member *m, uint64_t span, uint64_t now) {
  int64_t most = (int64_t)(WINDOW_NS * m->share.request / VC_PERMILLE);
  window(m, 0, now);
  /* A pause does not end what the seat is owed within the window. */
  if (m->seen.connected) m->share.credit += (int64_t)(span * m->share.request / VC_PERMILLE);
  if (m->share.vclass != VC_IN_BUDGET) m->share.credit = 0; /* nothing is owed to background */
  if (m->share.credit > most) m->share.credit = most;
  m->ceiling += below_ceiling(m, (int64_t)(span * m->share.limit / VC_PERMILLE));
  /* A long launch may begin when half of it is due, so that it ends as much above as it began below. */
  uint64_t start = m->seen.unit / 2;
  if (start < CEILING_START_NS) start = CEILING_START_NS;
  if (start > CEILING_START_MAX_NS) start = CEILING_START_MAX_NS;
  if (m->ceiling <= 0) m->ceiling_shut = true;
  if (m->ceiling >= (int64_t)start) m->ceiling_shut = false;
}

/* A fading mean. The span counts by what was seen at its start. */
void ar_account_weigh_demand(struct ar_member *m, uint64_t span) {
  if (m->was_present && !m->was_active) return; /* it waits for others */
  double uses = m->was_active ? 1 : 0;
  m->demand += (uses - m->demand) * (double)span / (double)(DEMAND_NS + span);
  m->demands = m->demand * VC_PERMILLE >= (m->demands ? UNDEMANDING : DEMANDING) * m->share.request;
}

void ar_account_join(struct ar_sched *s, struct ar_member *m) {
  /* A newcomer starts level with the others: it has no claim on what was left over before. */
  int64_t least = INT64_MAX;
  for (int i = 0; i < s->count; i++) {
    const struct ar_member *o = s->member[i];
    if (o != m && o->was_present && o->share.vclass == m->share.vclass && o->share.excess < least)
      least = o->share.excess;
  }
  if (least != INT64_MAX && m->share.excess < least) m->share.excess = least;
}
