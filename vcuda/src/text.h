/* SPDX-License-Identifier: Apache-2.0 */
/* Comparisons for the paths that a sanitizer walks before it is ready: it replaces the C library's,
 * and those must not be called yet. */
#ifndef VC_TEXT_H
#define VC_TEXT_H

#include <stdbool.h>

static inline int vc_text_order(const char *a, const char *b) {
  while (*a && *a == *b) a++, b++;
  return (unsigned char)*a - (unsigned char)*b;
}

static inline bool vc_text_starts(const char *text, const char *prefix) {
  while (*prefix && *text == *prefix) text++, prefix++;
  return !*prefix;
}

#endif
