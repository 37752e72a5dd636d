/* SPDX-License-Identifier: Apache-2.0 */
#include "control_group.h"

#include <stdbool.h>
#include <string.h>

static char folded(char c) {
  return c == '-' ? '_' : c;
}

static size_t length_of_match(const char *at, const char *name) {
  size_t n = 0;
  while (name[n] && folded(at[n]) == folded(name[n])) n++;
  return name[n] ? 0 : n;
}

static bool ends_part(const char *at) {
  return !*at || *at == '/';
}

static bool is_unit(const char *at, const char *suffix) {
  size_t n = strlen(suffix);
  return !strncmp(at, suffix, n) && ends_part(at + n);
}

const char *ar_control_group_find(const char *line, const char *name) {
  for (const char *at = line; *name && *at; at++) {
    size_t n = length_of_match(at, name);
    const char *end = at + n;
    if (!n) continue;
    bool slice = is_unit(end, ".slice");
    bool begins = at == line || *name == '/' || at[-1] == '/' || at[-1] == ':' || (slice && at[-1] == '-');
    bool ends = end[-1] == '/' || ends_part(end) || slice || is_unit(end, ".scope") || is_unit(end, ".service");
    if (begins && ends) return at;
  }
  return NULL;
}
