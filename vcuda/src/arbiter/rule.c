/* SPDX-License-Identifier: Apache-2.0 */
#include "rule.h"

#include <string.h>

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
