/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Who gets the GPU next. A rule is one function over what the scheduler knows of each seat; it has
 * no side effects, so rules can be compared on the same history.
 */
#ifndef AR_RULE_H
#define AR_RULE_H

#include "abi.h"

#include <stdbool.h>

struct ar_share {
  /* what was asked for */
  uint32_t request, limit; /* per mille */
  uint32_t vclass;
  /* what is seen */
  bool present;  /* has work or wants some */
  bool eligible; /* wants the GPU, or holds it, and is below its ceiling */
  /* what it got, in nanoseconds of GPU time */
  int64_t credit;       /* owed to it against its request */
  int64_t excess;       /* had beyond its request, in proportion to it */
  uint64_t window_used; /* in the last AR_WINDOW_NS */
  bool has_history;
  uint64_t residual; /* how long it keeps the GPU after its gate is closed */
  bool fits;         /* it will have left the GPU before in-budget work comes back, as far as is known */
};

#define AR_WINDOW_NS 10000000000ull
/* Background work that leaves the GPU within this time may use any gap whose end is unknown. */
#define AR_SHORT_NS 600000ull

struct ar_view {
  const struct ar_share *share;
  int count;
  bool in_budget_busy;    /* an in-budget seat was active a moment ago */
  bool back_known;        /* and it is known when one will be again */
  int64_t interference;   /* time that long background work may still cost in-budget seats */
  int64_t allowance;      /* and that any may, in-budget seats having paused or not */
  bool background_hungry; /* some background has not run for a while */
};

/* The index of the seat to run, or -1 for none. */
typedef int ar_rule(const struct ar_view *view);

ar_rule ar_rule_slicekeeper, ar_rule_kubegpu, ar_rule_gemini;
/* NULL if there is no such rule. */
ar_rule *ar_rule_named(const char *name);
const char *ar_rule_name(ar_rule *rule);

#endif
