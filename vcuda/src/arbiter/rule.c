/* SPDX-License-Identifier: Apache-2.0 */
#include "rule.h"

#include <string.h>

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

static int64_t utilisation(const struct ar_share *s) {
  return (int64_t)(s->window_used * VC_PERMILLE / AR_WINDOW_NS);
}

/* KubeGPU's GU_BIAS: requested compute less actual utilisation. */
static int64_t gu_bias(const struct ar_share *s) {
  return (int64_t)s->request - utilisation(s);
}

/* KubeGPU's GU: what a seat leaves unused of the whole GPU. */
static int64_t gu(const struct ar_share *s) {
  return (int64_t)VC_PERMILLE - utilisation(s);
}

/* KubeGPU: the largest positive GU_BIAS has priority; with none, the largest GU. It has no classes.
 */
int ar_rule_kubegpu(const struct ar_view *v) {
  int best = -1;
  for (int i = 0; i < v->count; i++) {
    const struct ar_share *s = &v->share[i], *b = best >= 0 ? &v->share[best] : NULL;
    if (!s->eligible) continue;
    int64_t mine = gu_bias(s), theirs = b ? gu_bias(b) : INT64_MIN;
    if (!b || (mine > 0 && mine > theirs) || (mine <= 0 && theirs <= 0 && gu(s) > gu(b))) best = i;
  }
  return best;
}

static int64_t missing(const struct ar_share *s) {
  return (int64_t)(AR_WINDOW_NS / VC_PERMILLE * s->request) - (int64_t)s->window_used;
}

/* Gemini's order of two clients that both lack time: the larger lack relative to their share. */
static bool gemini_before(const struct ar_share *a, const struct ar_share *b) {
  int64_t ma = missing(a), mb = missing(b);
  if (a->has_history != b->has_history) return !a->has_history;
  if ((ma > 0) != (mb > 0)) return ma > 0;
  if (ma <= 0) return a->window_used < b->window_used;
  /* missing / (missing + usage), and missing + usage is the request's part of the window */
  return (__int128)ma * b->request > (__int128)mb * a->request;
}

int ar_rule_gemini(const struct ar_view *v) {
  int best = -1;
  for (int i = 0; i < v->count; i++) {
    const struct ar_share *s = &v->share[i];
    bool over = s->window_used >= AR_WINDOW_NS / VC_PERMILLE * s->limit && s->limit < VC_PERMILLE;
    if (!s->eligible || over) continue;
    if (best < 0 || gemini_before(s, &v->share[best])) best = i;
  }
  return best;
}

static const struct {
  const char *name;
  ar_rule *rule;
} rules[] = {
    {"slicekeeper", ar_rule_slicekeeper},
    {"kubegpu", ar_rule_kubegpu},
    {"gemini", ar_rule_gemini},
};
#define RULES (sizeof rules / sizeof *rules)

ar_rule *ar_rule_named(const char *name) {
  for (unsigned i = 0; i < RULES; i++)
    if (!strcmp(name, rules[i].name)) return rules[i].rule;
  return NULL;
}

const char *ar_rule_name(ar_rule *rule) {
  for (unsigned i = 0; i < RULES; i++)
    if (rules[i].rule == rule) return rules[i].name;
  return "";
}
