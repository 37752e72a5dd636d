/* SPDX-License-Identifier: Apache-2.0 */
#include "rule.h"

#include <stddef.h>

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
