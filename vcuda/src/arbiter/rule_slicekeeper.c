/* SPDX-License-Identifier: Apache-2.0 */
#include "rule.h"

/* The largest claim among the eligible seats of a class; claims not above the floor do not count.
 */
static int largest(const struct ar_view *v, uint32_t vclass,
                   int64_t (*claim)(const struct ar_share *), int64_t floor) {
  int best = -1;
  int64_t most = floor;
  for (int i = 0; i < v->count; i++) {
    const struct ar_share *s = &v->share[i];
    if (!s->eligible || s->vclass != vclass || claim(s) <= most) continue;
    most = claim(s);
    best = i;
  }
  return best;
}

/* What a seat is owed, in proportion to its request: how long ago it should have had it. */
static int64_t owed(const struct ar_share *s) {
  return s->credit * (int64_t)VC_PERMILLE / (int64_t)s->request;
}

static int64_t least_excess(const struct ar_share *s) {
  return -s->excess;
}

/* Whether this background seat may start now. Short work fits into any gap, and any work into a long one or one
 * that will be long enough, as long as in-budget seats were not made to wait for more than is allowed;
 * other work has a smaller allowance of its own. */
static bool may_start(const struct ar_view *v, const struct ar_share *s) {
  if (v->interference > 0) return true;
  bool is_short = s->residual <= AR_SHORT_NS && !v->back_known;
  return v->allowance > 0 && (!v->in_budget_busy || is_short || s->fits);
}

/*
 * Ours: in-budget seats first, by what they are owed; then what is left over to in-budget seats
 * below their ceiling, in proportion to their requests; background last. Background work that
 * finds no gap at all still gets the interference allowance, so that it never starves.
 */
int ar_rule_slicekeeper(const struct ar_view *v) {
  int back = largest(v, VC_BACKGROUND, least_excess, INT64_MIN);
  if (back >= 0 && v->background_hungry && v->interference > 0) return back;
  int best = largest(v, VC_IN_BUDGET, owed, 0);
  if (best < 0) best = largest(v, VC_IN_BUDGET, least_excess, INT64_MIN);
  if (best >= 0) return best;
  return back >= 0 && may_start(v, &v->share[back]) ? back : -1;
}
