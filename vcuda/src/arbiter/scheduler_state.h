/* SPDX-License-Identifier: Apache-2.0 */
/* What the scheduler of a GPU knows: of each seat, and of all. */
#ifndef AR_SCHEDULER_STATE_H
#define AR_SCHEDULER_STATE_H

#include "pauses.h"
#include "rule.h"

#define AR_BUCKETS 100

/* What a seat's processes say of themselves at this moment. */
struct ar_seen {
  bool connected;
  bool waiting;        /* it is ready, in the words of ready.h */
  bool active;         /* it is running */
  uint64_t idle_since; /* when the last of it was seen complete */
  uint64_t busy;       /* nanoseconds with work in flight, ever */
  uint64_t unit;       /* time of one launch */
  uint64_t linger;     /* after so many idle nanoseconds it pauses */
  uint64_t beat;       /* moves while its processes are not stopped */
};

/* A seat on this GPU. Lives inside the seat; the scheduler holds pointers. */
struct ar_member {
  struct ar_share share;
  struct ar_seen seen;
  /* decided */
  bool open, contended;
  uint64_t depth, behind, beside_until;
  /* accounts */
  int64_t ceiling;
  uint64_t active_since; /* 0: it is not */
  uint64_t charged_to, given_at, opened_at, closed_at, last_active, served_at;
  uint64_t used, granted, grants, busy_seen;
  uint64_t bucket[AR_BUCKETS];
  uint64_t bucket_at;
  uint64_t lost_beat, beat, beat_at;
  double demand; /* the part of the time that others leave it which it uses: 0 to 1 */
  bool demands;  /* whether that is nearly all of its request, or more */
  struct ar_pauses pauses;
  bool was_present, was_active, leftover, ceiling_shut;
  bool lost; /* it did not use a grant, or did not drain: it is passed by until it moves again */
};

struct ar_sched {
  ar_rule *rule;
  struct ar_member **member;
  int count;
  int holder; /* the seat whose gate is open, or that still drains; -1: none */
  bool draining, reconsider;
  bool held_up; /* background holds the GPU, and an in-budget seat waits */
  struct ar_pauses in_budget;
  uint64_t at;
  int64_t interference, allowance;
};

/* Whether it has a ceiling below the whole GPU. */
static inline bool ar_limited(const struct ar_member *m) {
  return m->share.limit < VC_PERMILLE;
}

#endif
