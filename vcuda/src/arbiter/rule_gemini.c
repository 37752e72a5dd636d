/* SPDX-License-Identifier: Apache-2.0 */
#include "rule.h"

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
