/* SPDX-License-Identifier: Apache-2.0 */
#include "scheduler.h"

#include <stdlib.h>
#include <string.h>

#define US 1000ull
#define MS 1000000ull
#define QUANTUM_NS (5 * MS)
#define SAID_MAX_NS (1000 * MS)
#define BEAT_NS (20 * MS)
#define WAKE_NS (10 * MS) /* a granted seat may take this long to wake up */
#define DRAIN_MARGIN_NS (5 * MS)
/* No seat is waited for longer, whatever it claims: what a lie costs its neighbours is paid back within the window. */
#define DRAIN_MOST_NS (120 * MS)
#define ALIVE_NS (50 * MS)      /* a process that gave no sign for so long is stopped */
#define WINDOW_NS (1000 * MS)   /* within it a seat gets its request, however it pauses */
#define DEBT_MAX_NS (100 * MS)  /* what it used while no other seat was owed is held against it */
#define CEILING_BURST_NS (40 * MS) /* what a seat that rests saves up below its ceiling */
#define CEILING_START_NS (1 * MS)
#define CEILING_START_MAX_NS (50 * MS)
#define RECENT_NS (50 * MS) /* an in-budget seat counts as busy for so long */
#define CROWD_NS (20 * MS) /* what work may keep the GPU past its gate in another's short pause */
#define LATE_NS (20 * MS)  /* a seat that is owed so much does not get its request: it waits after each pause */
#define FAR_NS (150 * MS)  /* a seat that should have had so long ago what it is owed is far behind */
#define LATE_CROWD_NS (1 * MS) /* what work may then keep the GPU past its gate in that seat's short pause */
#define DEMAND_NS (200 * MS) /* over about so much time of its own it is seen how much a seat wants */
#define DEMANDING 0.85        /* a seat that wants so much of its request is helped to it */
#define UNDEMANDING 0.75      /* until it wants less than so much */
#define RESTLESS 0.95         /* one that wants less than this of the GPU pauses */
#define HUNGRY_NS (100 * MS)
/* How long background may hold up in-budget work: in all, and with launches known to be long. */
#define ALLOWANCE_PERMILLE 30
#define ALLOWANCE_MAX_NS (20 * MS)
#define INTERFERENCE_PERMILLE 15
#define INTERFERENCE_MAX_NS (20 * MS)
#define RESIDUAL_UNKNOWN_NS (2 * MS)
#define DEPTH_ALONE_NS (10 * MS) /* so that a newcomer does not wait behind a thousand launches */
#define DEPTH_QUIET_NS (4 * MS)
#define DEPTH_SHARED_NS (2 * MS)
#define DEPTH_BEHIND_NS (500 * US)
#define DEPTH_LEAST_NS (100 * US)

void ar_sched_init(struct ar_sched *s, ar_rule *rule, uint64_t now) {
  *s = (struct ar_sched){.rule = rule, .holder = -1, .at = now, .quantum = QUANTUM_NS,
                         .allowance = (int64_t)ALLOWANCE_MAX_NS};
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

static bool limited(const struct ar_member *m) {
  return m->share.limit < VC_PERMILLE;
}

/* ---- accounts ---- */

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

/* What a seat says it used since it was last charged. The end of an interval is known later, so the sum may
 * step back a little; what steps back far is another sum. */
static uint64_t said(struct ar_member *m) {
  uint64_t more = m->seen.busy > m->busy_seen ? m->seen.busy - m->busy_seen : 0;
  if (more || m->busy_seen - m->seen.busy > 10 * MS) m->busy_seen = m->seen.busy;
  return more < SAID_MAX_NS ? more : SAID_MAX_NS;
}

/* How long it kept the GPU since then; also when it was given it, and says that it still waits. */
static uint64_t kept(const struct ar_member *m, uint64_t now) {
  bool keeps = m->seen.active || (m->open && m->seen.waiting);
  uint64_t begin = m->charged_to, end = keeps ? now : m->seen.idle_since;
  return end > begin ? (end < now ? end : now) - begin : 0;
}

/* The holder is charged for the time it kept the GPU while others want it, and alone for what it says of itself.
 * Another seat that has work in flight, which waited in the stream for something when its gate closed, shares the
 * GPU with the holder: for so long as it says, since it pays for it. */
static void charge_all(const struct ar_sched *s, uint64_t now) {
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

/* How much of an amount may be saved up below the ceiling. What others keep a seat from, it catches up
 * with, as with its request; the average since it began to wait is not above the ceiling. */
static int64_t below_ceiling(const struct ar_member *m, int64_t amount) {
  int64_t most = (int64_t)(m->seen.waiting ? WINDOW_NS * m->share.limit / VC_PERMILLE : CEILING_BURST_NS);
  int64_t room = most > m->ceiling ? most - m->ceiling : 0;
  return amount < room ? amount : room;
}

static void accrue(struct ar_member *m, uint64_t span, uint64_t now) {
  int64_t most = (int64_t)(WINDOW_NS * m->share.request / VC_PERMILLE);
  window(m, 0, now);
  /* A pause does not end what is owed within the window. */
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

/* A mean that fades. The span counts as it was seen when it began. */
static void weigh_demand(struct ar_member *m, uint64_t span) {
  if (m->was_present && !m->was_active) return; /* it waits for others */
  double uses = m->was_active ? 1 : 0;
  m->demand += (uses - m->demand) * (double)span / (double)(DEMAND_NS + span);
  m->demands = m->demand * VC_PERMILLE >= (m->demands ? UNDEMANDING : DEMANDING) * m->share.request;
}

static void join(struct ar_sched *s, struct ar_member *m) {
  /* A newcomer starts level with the others: it has no claim on what was left over before. */
  int64_t least = INT64_MAX;
  for (int i = 0; i < s->count; i++) {
    const struct ar_member *o = s->member[i];
    if (o != m && o->was_present && o->share.vclass == m->share.vclass && o->share.excess < least)
      least = o->share.excess;
  }
  if (least != INT64_MAX && m->share.excess < least) m->share.excess = least;
}

/* ---- what is seen ---- */

/* How long the holder is idle before the GPU is given to others. It says so itself, and can only be too short. */
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
    m->share.eligible = m->share.present && (!limited(m) || !m->ceiling_shut);
    if (m->share.present && !m->was_present) join(s, m);
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

/* What may be in flight in a pause, so that little is left of it when the pause ends: a part of the pause. */
static uint64_t depth_in_pause(const struct ar_pauses *p, uint64_t now) {
  uint64_t end = ar_pauses_end(p, now), part = end ? (end - p->since) / 4 : DEPTH_BEHIND_NS;
  return part < DEPTH_LEAST_NS ? DEPTH_LEAST_NS : part > DEPTH_BEHIND_NS ? DEPTH_BEHIND_NS : part;
}

/* When a background seat has to stop to be gone before in-budget work comes back; 0: not known. It may be a little
 * late if most of the stops before were in time. */
static uint64_t latest(const struct ar_sched *s, const struct ar_member *m, uint64_t now) {
  uint64_t end = ar_pauses_end(&s->in_budget, now), needs = depth_in_pause(&s->in_budget, now);
  uint64_t late = s->allowance > (int64_t)ALLOWANCE_MAX_NS / 2 && end ? (end - s->in_budget.since) / 8 : 0;
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
    copy[i].fits = latest(s, m, now) > now;
    if (m->share.vclass == VC_BACKGROUND && m->share.eligible && now - m->served_at > HUNGRY_NS)
      v.background_hungry = true;
  }
  return v;
}

/* How long ago a seat should have had what it is owed. */
static int64_t behind_by(const struct ar_member *m) {
  return m->share.credit * VC_PERMILLE / m->share.request;
}

/* Another in-budget seat does not get its request, and lags much more than this one. */
static bool is_late(const struct ar_member *o, const struct ar_member *m) {
  return o != m && o->share.vclass == VC_IN_BUDGET && o->share.credit > (int64_t)LATE_NS &&
         behind_by(o) > 2 * behind_by(m);
}

/* It pauses for a moment, as it does. */
static bool is_back_soon(const struct ar_member *o, uint64_t within, uint64_t now) {
  uint64_t end = ar_pauses_end(&o->pauses, now);
  return o->seen.connected && !o->lost && o->pauses.paused && now - o->pauses.since < RECENT_NS &&
         ar_pauses_short(&o->pauses, RECENT_NS) && end < now + within;
}

/* Such a seat waits for this one to end its quantum. */
static bool keeps_late(const struct ar_sched *s, const struct ar_member *m) {
  for (int i = 0; i < s->count; i++)
    if (s->member[i]->share.eligible && is_late(s->member[i], m)) return true;
  return false;
}

/* Such a seat will be back before much work has left the GPU: what may be in flight, a part of its pause. */
static uint64_t depth_before_late(const struct ar_sched *s, const struct ar_member *m, uint64_t now) {
  uint64_t depth = DEPTH_SHARED_NS;
  for (int i = 0; i < s->count; i++) {
    const struct ar_member *o = s->member[i];
    if (!is_late(o, m) || !is_back_soon(o, DEPTH_QUIET_NS, now)) continue;
    uint64_t part = depth_in_pause(&o->pauses, now);
    if (part < depth) depth = part;
  }
  return depth;
}

/* Work that keeps the GPU for so long in its pause would cost it more of the GPU than there is idle without. */
static bool costs_more(const struct ar_member *o, uint64_t keeps, uint64_t now) {
  uint64_t end = ar_pauses_end(&o->pauses, now), pause = (end ? end : now) - o->pauses.since;
  return (double)keeps * (2 * o->demand - 1) > 2 * o->demand * (double)pause;
}

/* Work that keeps the GPU past its gate takes, beyond its request, no short pause of a seat that is owed and wants
 * what it is owed: each would cost that seat more than its window pays back. Shorter work does so only if that seat
 * is far behind: the GPU idles meanwhile. */
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

static int pick(const struct ar_sched *s, uint64_t now) {
  struct ar_share copy[s->count + 1];
  struct ar_view v = view(s, copy, now);
  for (int i = 0; i < s->count; i++) copy[i].eligible &= !crowds_out(s, s->member[i], now);
  int best = s->rule(&v);
  return best >= 0 && best < s->count && copy[best].eligible ? best : -1;
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

/* A holder that should have finished is passed by: soon if it is stopped, late if it lives, for it
 * may run a kernel longer than any before. It is charged for all of that time. */
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

/* Work of long launches beyond its request: begun in the holder's next pause, some of it costs no other seat time. */
static bool can_await_pause(const struct ar_member *next, const struct ar_member *holder, uint64_t now) {
  return next->share.residual >= CROWD_NS && next->share.credit <= 0 && next->share.vclass == VC_IN_BUDGET &&
         holder->demand < RESTLESS && now - holder->given_at < RECENT_NS;
}

static bool must_leave(const struct ar_sched *s, uint64_t now) {
  struct ar_member *m = s->member[s->holder];
  if (!m->seen.connected || (limited(m) && m->ceiling_shut)) return true;
  bool background = m->share.vclass == VC_BACKGROUND;
  if (!others_want(s, s->holder))
    return background && ar_pauses_end(&s->in_budget, now) && pick(s, now) != s->holder;
  if (idle(m, now)) {
    if (m->seen.waiting) lose(m);
    return true;
  }
  bool behind = background && now - s->in_budget.since < VC_LINGER_NS;
  bool awake = m->seen.active || !m->seen.waiting;
  bool due = awake && now - m->opened_at >= s->quantum;
  bool yields = !background && keeps_late(s, m);
  if (!due && !behind && !yields && !s->reconsider) return false;
  int next = pick(s, now);
  return next != s->holder && !(next >= 0 && can_await_pause(s->member[next], m, now));
}

static void decide(struct ar_sched *s, uint64_t now) {
  if (s->holder >= 0 && !s->draining && must_leave(s, now)) {
    shut(s, now); /* what is in flight is to be looked at again once the gate shows closed */
  } else if (s->holder >= 0 && s->draining) {
    struct ar_member *m = s->member[s->holder];
    bool gone = !m->seen.active || !m->seen.connected;
    if (!gone && overdue(m, now)) lose(m);
    if (gone || m->lost) drained(s, now);
  }
  if (s->holder < 0) {
    int next = pick(s, now);
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

static void publish(struct ar_sched *s, uint64_t now) {
  int connected = 0, in_budget = 0;
  for (int i = 0; i < s->count; i++) {
    connected += s->member[i]->seen.connected;
    in_budget += s->member[i]->seen.connected && s->member[i]->share.vclass == VC_IN_BUDGET;
  }
  for (int i = 0; i < s->count; i++) {
    struct ar_member *m = s->member[i];
    m->contended = others_want(s, i);
    uint64_t before = depth_before_late(s, m, now);
    m->depth = m->share.vclass == VC_BACKGROUND && in_budget ? depth_in_pause(&s->in_budget, now)
               : before < DEPTH_SHARED_NS                    ? before
               : m->contended                                ? DEPTH_SHARED_NS
               : connected > 1 || limited(m)                 ? DEPTH_QUIET_NS
                                                             : DEPTH_ALONE_NS;
  }
}

/* Time by which background work holds up in-budget seats is taken from its allowances. The span counts
 * as it was seen when it began: a seat that begins to wait rings, so a wait begins with a span. */
static void interfere(struct ar_sched *s, uint64_t span) {
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
  if (s->interference > (int64_t)INTERFERENCE_MAX_NS)
    s->interference = (int64_t)INTERFERENCE_MAX_NS;
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
    if (at_ < next) next = at_ > now ? at_ : now + 10 * US;                                        \
  } while (0)
  if (s->holder >= 0) {
    const struct ar_member *m = s->member[s->holder];
    if (s->draining) AT(now + 250 * US);
    if (m->contended && !s->draining) AT(m->opened_at + s->quantum);
    if (limited(m)) AT(now + 1 * MS);
    if (m->open && m->share.vclass == VC_BACKGROUND && latest(s, m, now) > now) AT(latest(s, m, now));
    if (m->open && m->contended && !m->seen.active && !m->seen.waiting)
      AT(m->last_active + linger(m));
    if (m->open && m->contended && m->seen.waiting) AT(m->given_at + WAKE_NS);
  }
  for (int i = 0; i < s->count; i++)
    if (s->member[i]->seen.waiting && !s->member[i]->share.eligible) AT(now + 500 * US);
  for (int i = 0; i < s->count; i++) {
    uint64_t end = ar_pauses_end(&s->member[i]->pauses, now);
    if (end > now + DEPTH_QUIET_NS) AT(end - DEPTH_QUIET_NS);
  }
  for (int i = 0; i < s->count && s->holder < 0; i++)
    if (s->member[i]->share.eligible) AT(now + 1 * MS);
#undef AT
  return next;
}

uint64_t ar_sched_step(struct ar_sched *s, uint64_t now) {
  uint64_t span = now > s->at ? now - s->at : 0;
  for (int i = 0; i < s->count; i++) {
    accrue(s->member[i], span, now);
    weigh_demand(s->member[i], span);
  }
  charge_all(s, now);
  interfere(s, span);
  s->at = now;
  look(s, now);
  decide(s, now);
  for (int i = 0; i < s->count; i++) {
    struct ar_member *m = s->member[i];
    m->was_active = m->share.present && (m->seen.active || !m->seen.waiting || held_by(s, i));
  }
  s->held_up = held_up(s);
  publish(s, now);
  return soonest(s, now);
}
