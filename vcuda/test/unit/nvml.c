/* SPDX-License-Identifier: Apache-2.0 */
/* NVML's side under noise: identifiers, names and figures at random, against a reading of our own.
 */
#define _GNU_SOURCE
#include "../../src/nvml.c"
#include "unit.h"

#include <ctype.h>
#include <stdio.h>

static struct vc_policy policy;
struct vc_seat vc_seat = {.policy = &policy};
static bool seated;
static uint64_t cap, held;
static char identifier[96];
static struct memory_v2 figures;
static int verdict;

bool vc_seat_ready(void) {
  return seated;
}
uint64_t vc_cap(void) {
  return cap;
}
uint64_t vc_held(void) {
  return held;
}

static int fake_uuid(void *device, char *text, unsigned size) {
  (void)device;
  snprintf(text, size, "%s", identifier);
  return 0;
}
static int fake_memory(void *device, struct memory_v1 *out) {
  (void)device;
  if (out) *out = (struct memory_v1){figures.total, figures.free, figures.used};
  return verdict;
}
static int fake_memory_v2(void *device, struct memory_v2 *out) {
  (void)device;
  if (out) *out = figures;
  return verdict;
}

void *vc_resolve_symbol(const char *library, const char *symbol) {
  CHECK(!strcmp(library, "libnvidia-ml.so.1"));
  if (!strcmp(symbol, "nvmlDeviceGetUUID")) return (void *)fake_uuid;
  return !strcmp(symbol, "nvmlDeviceGetMemoryInfo") ? (void *)fake_memory : (void *)fake_memory_v2;
}

static uint64_t wide(unsigned *state) {
  return ((uint64_t)unit_random(state) << 40 ^ (uint64_t)unit_random(state) << 20 ^
          unit_random(state)) >>
         unit_random(state) % 64;
}

static void make_identifier(unsigned *state) {
  static const char good[] = "GPU-5c1ce0ee-fa4e-4000-8000-46414b450000";
  memcpy(identifier, good, sizeof good);
  for (unsigned n = unit_random(state) % 4; n; n--)
    identifier[unit_random(state) % (sizeof good - 1)] = (char)(unit_random(state) % 256);
  if (unit_random(state) % 16 == 0) {
    unsigned length = unit_random(state) % (sizeof identifier);
    for (unsigned i = 0; i < length; i++) identifier[i] = (char)(1 + unit_random(state) % 255);
    identifier[length ? length - 1 : 0] = 0;
  }
}

/* Our own reading, letter by letter. */
static bool read_identifier(uint8_t out[16]) {
  unsigned count = 0;
  if (strncmp(identifier, "GPU-", 4)) return false;
  for (const char *p = identifier + 4; *p && count < 32; p++) {
    if (*p == '-') continue;
    if (!isxdigit((unsigned char)*p)) return false;
    unsigned value = 0;
    char one[2] = {*p, 0};
    sscanf(one, "%x", &value);
    out[count / 2] = (uint8_t)(count % 2 ? out[count / 2] | value : value << 4);
    count++;
  }
  return count == 32;
}

static void one_round(unsigned *state) {
  static const uint8_t ours[16] = {0x5c, 0x1c, 0xe0, 0xee, 0xfa, 0x4e, 0x40, 0x00,
                                   0x80, 0x00, 0x46, 0x41, 0x4b, 0x45, 0x00, 0x00};
  uint8_t mine[16] = {0}, theirs[16] = {0};
  make_identifier(state);
  bool readable = read_identifier(mine);
  CHECK(vc_parse_uuid(identifier, theirs) == readable);
  if (readable) CHECK(!memcmp(mine, theirs, sizeof mine));
  memcpy(policy.uuid, ours, sizeof ours);
  bool this_one = readable && !memcmp(mine, ours, sizeof ours);
  figures = (struct memory_v2){0, wide(state), wide(state), wide(state), wide(state)};
  cap = wide(state), held = wide(state);
  verdict = unit_random(state) % 8 == 0;
  seated = unit_random(state) % 8 != 0;
  struct memory_v1 one = {0};
  struct memory_v2 two = {0};
  CHECK(nvmlDeviceGetMemoryInfo(&figures, &one) == verdict);
  CHECK(nvmlDeviceGetMemoryInfo_v2(&figures, &two) == verdict);
  CHECK(nvmlDeviceGetMemoryInfo(&figures, NULL) == verdict);
  CHECK(one.total == two.total && one.used == two.used && one.free == two.free);
  if (verdict || !seated || !this_one) {
    CHECK(two.total == figures.total && two.used == figures.used);
    return;
  }
  CHECK(two.total <= cap && two.total <= figures.total && two.used <= two.total);
  CHECK(two.used == (held < two.total ? held : two.total) && two.free == two.total - two.used);
}

static void names(unsigned *state) {
  char text[64];
  unsigned length = unit_random(state) % sizeof text;
  snprintf(text, sizeof text, "%s", "nvmlDeviceGetMemoryInfo_v2");
  if (unit_random(state) % 2) text[unit_random(state) % 27] = (char)(unit_random(state) % 256);
  if (unit_random(state) % 8 == 0) text[length] = 0;
  void *got = vc_nvml_hook(text, text);
  CHECK((got != text) ==
        (!strcmp(text, "nvmlDeviceGetMemoryInfo") || !strcmp(text, "nvmlDeviceGetMemoryInfo_v2")));
  real[0] = real[1] = NULL; /* what it was given is no function */
}

int main(void) {
  unsigned state = 23;
  for (int i = 0; i < 300000; i++) {
    names(&state);
    one_round(&state);
  }
  return 0;
}
