/* SPDX-License-Identifier: Apache-2.0 */
#include "arbiter/rule.h"
#include "unit.h"

static struct ar_share seat(uint32_t request, uint32_t vclass, int64_t credit) {
  return (struct ar_share){.request = request,
                           .limit = 1000,
                           .vclass = vclass,
                           .present = true,
                           .eligible = true,
                           .credit = credit,
                           .has_history = true};
}

static void classes(void) {
  struct ar_share s[] = {seat(100, VC_BACKGROUND, 0), seat(400, VC_IN_BUDGET, 5),
                         seat(500, VC_IN_BUDGET, 9)};
  struct ar_view v = {.share = s, .count = 3, .in_budget_busy = true, .allowance = 1};
  CHECK(ar_rule_slicekeeper(&v) == 2); /* owed most */
  s[2].eligible = false;
  CHECK(ar_rule_slicekeeper(&v) == 1);
  s[1].credit = -4; /* no seat is owed anything: what is left over still goes to in-budget first */
  CHECK(ar_rule_slicekeeper(&v) == 1);
  s[1].eligible = false;
  CHECK(ar_rule_slicekeeper(&v) == 0);
  s[0].residual = 10 * AR_SHORT_NS; /* long background work waits while in-budget is about */
  CHECK(ar_rule_slicekeeper(&v) == -1);
  v.interference = 1;
  CHECK(ar_rule_slicekeeper(&v) == 0);
  v.interference = 0;
  v.in_budget_busy = false;
  CHECK(ar_rule_slicekeeper(&v) == 0);
  v.allowance = 0; /* in-budget seats have waited enough */
  CHECK(ar_rule_slicekeeper(&v) == -1);
}

static void starvation(void) {
  struct ar_share s[] = {seat(100, VC_BACKGROUND, 0), seat(900, VC_IN_BUDGET, 5)};
  struct ar_view v = {.share = s, .count = 2, .in_budget_busy = true, .background_hungry = true};
  CHECK(ar_rule_slicekeeper(&v) == 1);
  v.interference = 1;
  CHECK(ar_rule_slicekeeper(&v) == 0);
}

static void kubegpu(void) {
  struct ar_share s[] = {seat(400, VC_IN_BUDGET, 0), seat(600, VC_IN_BUDGET, 0)};
  struct ar_view v = {.share = s, .count = 2};
  CHECK(ar_rule_kubegpu(&v) == 1);          /* GU_BIAS 400 against 600 */
  s[1].window_used = AR_WINDOW_NS / 10 * 3; /* 400 against 300 */
  CHECK(ar_rule_kubegpu(&v) == 0);
  s[0].window_used = AR_WINDOW_NS / 10 * 5; /* both used up: the larger GU */
  s[1].window_used = AR_WINDOW_NS / 10 * 7;
  CHECK(ar_rule_kubegpu(&v) == 0);
}

static void gemini(void) {
  struct ar_share s[] = {seat(400, VC_IN_BUDGET, 0), seat(600, VC_IN_BUDGET, 0)};
  struct ar_view v = {.share = s, .count = 2};
  s[0].window_used = AR_WINDOW_NS / 10; /* lacks 3 of 4 */
  s[1].window_used = AR_WINDOW_NS / 10; /* lacks 5 of 6 */
  CHECK(ar_rule_gemini(&v) == 1);
  s[1].window_used = AR_WINDOW_NS / 10 * 7;
  CHECK(ar_rule_gemini(&v) == 0);
  s[0].limit = 100; /* at its ceiling */
  CHECK(ar_rule_gemini(&v) == 1);
  s[0].limit = 1000;
  s[0].has_history = false;
  CHECK(ar_rule_gemini(&v) == 0);
}

int main(void) {
  classes();
  starvation();
  kubegpu();
  gemini();
  CHECK(ar_rule_named("gemini") == ar_rule_gemini && !ar_rule_named("best"));
  return 0;
}
