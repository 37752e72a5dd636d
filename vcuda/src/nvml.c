/* SPDX-License-Identifier: Apache-2.0 */
/* NVML shows the slice. Its types are few and fixed, so its header is not needed. */
#include "account.h"
#include "hook.h"
#include "connection.h"
#include "nvml.h"
#include "text.h"

#include <string.h>

#define VC_NVML_HOOK(name) VC_EXPORT int name

struct memory_v1 {
  unsigned long long total, free, used;
};
struct memory_v2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

enum { NVML_SUCCESS = 0, NVML_UNINITIALIZED = 1 };

VC_NVML_HOOK(nvmlDeviceGetMemoryInfo)(void *device, struct memory_v1 *out);
VC_NVML_HOOK(nvmlDeviceGetMemoryInfo_v2)(void *device, struct memory_v2 *out);

static const struct {
  const char *name;
  void *hook;
} hooks[] = {
    {"nvmlDeviceGetMemoryInfo", (void *)nvmlDeviceGetMemoryInfo},
    {"nvmlDeviceGetMemoryInfo_v2", (void *)nvmlDeviceGetMemoryInfo_v2},
};
static void *real[sizeof hooks / sizeof *hooks];

void *vc_nvml_hook(const char *name, void *found) {
  for (unsigned i = 0; i < sizeof hooks / sizeof *hooks; i++) {
    if (vc_text_order(hooks[i].name, name)) continue;
    if (found && found != hooks[i].hook) real[i] = found;
    return hooks[i].hook;
  }
  return found;
}

static void *real_of(unsigned index) {
  if (!real[index]) real[index] = vc_resolve_symbol("libnvidia-ml.so.1", hooks[index].name);
  return real[index];
}

static int digit(char c) {
  if (c >= '0' && c <= '9') return c - '0';
  if (c >= 'a' && c <= 'f') return c - 'a' + 10;
  return c >= 'A' && c <= 'F' ? c - 'A' + 10 : -1;
}

/* "GPU-" and 32 hexadecimal digits, dashes between. */
static bool parse_uuid(const char *text, uint8_t out[16]) {
  int nibbles = 0;
  if (strncmp(text, "GPU-", 4)) return false;
  for (text += 4; *text && nibbles < 32; text++) {
    if (*text == '-') continue;
    int d = digit(*text);
    if (d < 0) return false;
    out[nibbles / 2] = (uint8_t)(nibbles % 2 ? out[nibbles / 2] | d : d << 4);
    nibbles++;
  }
  return nibbles == 32;
}

static bool ours(void *device) {
  static int (*uuid_of)(void *, char *, unsigned);
  static const uint8_t any[16];
  char text[96] = "";
  uint8_t uuid[16];
  if (!memcmp(vc_seat.policy->uuid, any, sizeof any)) return true;
  if (!uuid_of)
    uuid_of = (int (*)(void *, char *, unsigned))vc_resolve_symbol("libnvidia-ml.so.1",
                                                                   "nvmlDeviceGetUUID");
  return uuid_of && uuid_of(device, text, sizeof text) == NVML_SUCCESS && parse_uuid(text, uuid) &&
         !memcmp(uuid, vc_seat.policy->uuid, sizeof uuid);
}

static bool slice(void *device, unsigned long long *total, unsigned long long *used,
                  unsigned long long *spare) {
  if (!vc_seat_ready() || !ours(device)) return false;
  uint64_t cap = vc_cap(), held = vc_held();
  if (cap < *total) *total = cap;
  *used = held < *total ? held : *total;
  *spare = *total - *used;
  return true;
}

VC_NVML_HOOK(nvmlDeviceGetMemoryInfo)(void *device, struct memory_v1 *out) {
  int (*call)(void *, struct memory_v1 *) = (int (*)(void *, struct memory_v1 *))real_of(0);
  int r = call ? call(device, out) : NVML_UNINITIALIZED;
  if (r == NVML_SUCCESS && out) slice(device, &out->total, &out->used, &out->free);
  return r;
}

VC_NVML_HOOK(nvmlDeviceGetMemoryInfo_v2)(void *device, struct memory_v2 *out) {
  int (*call)(void *, struct memory_v2 *) = (int (*)(void *, struct memory_v2 *))real_of(1);
  int r = call ? call(device, out) : NVML_UNINITIALIZED;
  if (r == NVML_SUCCESS && out && slice(device, &out->total, &out->used, &out->free))
    out->reserved = 0;
  return r;
}
