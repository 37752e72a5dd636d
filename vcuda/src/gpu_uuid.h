/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU's UUID as NVML writes it: "GPU-" and 32 hexadecimal digits, with dashes between. */
#ifndef VC_GPU_UUID_H
#define VC_GPU_UUID_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

static inline int vc_hex_digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* False, and the UUID undefined, if the text is none. */
static inline bool vc_parse_uuid(const char *text, uint8_t out[16]) {
  int nibbles = 0;
  if (strncmp(text, "GPU-", 4)) return false;
  for (text += 4; *text && nibbles < 32; text++) {
    if (*text == '-') continue;
    int digit = vc_hex_digit(*text);
    if (digit < 0) return false;
    out[nibbles / 2] = (uint8_t)(nibbles % 2 ? out[nibbles / 2] | digit : digit << 4);
    nibbles++;
  }
  return nibbles == 32;
}

#endif
