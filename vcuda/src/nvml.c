/* SPDX-License-Identifier: Apache-2.0 */
/* NVML shows the slice. Its types are few and fixed, so its header is not needed. */
#include "memory_account.h"
#include "gpu_uuid.h"
#include "hook.h"
#include "connection.h"
#include "nvml.h"
#include "text.h"

#include <stdlib.h>
#include <string.h>

struct memory_v1 {
  unsigned long long total, free, used;
};
struct memory_v2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};

struct process_v1 {
  unsigned pid;
  unsigned long long used;
};
struct process_v2 {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};
struct sample {
  unsigned pid;
  unsigned long long when;
  unsigned sm, memory, encoder, decoder;
};
struct rates {
  unsigned gpu, memory;
};

enum { NVML_SUCCESS = 0, NVML_UNINITIALIZED = 1, NVML_INVALID = 2, NVML_TOO_SMALL = 7 };
#define NOT_AVAILABLE (~0ull)
#define ROOM_FIRST 64u
#define ROOM_MOST 65536u
#define RATE_NS (100 * VC_MS) /* a rate is taken over no less than this */

VC_EXPORT int nvmlDeviceGetMemoryInfo(void *device, struct memory_v1 *out);
VC_EXPORT int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *out);
VC_EXPORT int nvmlDeviceGetComputeRunningProcesses(void *, unsigned *, struct process_v1 *);
VC_EXPORT int nvmlDeviceGetComputeRunningProcesses_v2(void *, unsigned *, struct process_v2 *);
VC_EXPORT int nvmlDeviceGetComputeRunningProcesses_v3(void *, unsigned *, struct process_v2 *);
VC_EXPORT int nvmlDeviceGetGraphicsRunningProcesses(void *, unsigned *, struct process_v1 *);
VC_EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v2(void *, unsigned *, struct process_v2 *);
VC_EXPORT int nvmlDeviceGetGraphicsRunningProcesses_v3(void *, unsigned *, struct process_v2 *);
VC_EXPORT int nvmlDeviceGetProcessUtilization(void *, struct sample *, unsigned *, unsigned long long);
VC_EXPORT int nvmlDeviceGetUtilizationRates(void *device, struct rates *out);

static const struct {
  const char *name;
  void *hook;
} hooks[] = {
    {"nvmlDeviceGetMemoryInfo", (void *)nvmlDeviceGetMemoryInfo},
    {"nvmlDeviceGetMemoryInfo_v2", (void *)nvmlDeviceGetMemoryInfo_v2},
    {"nvmlDeviceGetComputeRunningProcesses", (void *)nvmlDeviceGetComputeRunningProcesses},
    {"nvmlDeviceGetComputeRunningProcesses_v2", (void *)nvmlDeviceGetComputeRunningProcesses_v2},
    {"nvmlDeviceGetComputeRunningProcesses_v3", (void *)nvmlDeviceGetComputeRunningProcesses_v3},
    {"nvmlDeviceGetGraphicsRunningProcesses", (void *)nvmlDeviceGetGraphicsRunningProcesses},
    {"nvmlDeviceGetGraphicsRunningProcesses_v2", (void *)nvmlDeviceGetGraphicsRunningProcesses_v2},
    {"nvmlDeviceGetGraphicsRunningProcesses_v3", (void *)nvmlDeviceGetGraphicsRunningProcesses_v3},
    {"nvmlDeviceGetProcessUtilization", (void *)nvmlDeviceGetProcessUtilization},
    {"nvmlDeviceGetUtilizationRates", (void *)nvmlDeviceGetUtilizationRates},
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

static bool ours(void *device) {
  static int (*uuid_of)(void *, char *, unsigned);
  static const uint8_t any[16];
  char text[96] = "";
  uint8_t uuid[16];
  if (!memcmp(vc_seat.policy->uuid, any, sizeof any)) return true;
  if (!uuid_of)
    uuid_of = (int (*)(void *, char *, unsigned))vc_resolve_symbol("libnvidia-ml.so.1",
                                                                   "nvmlDeviceGetUUID");
  return uuid_of && uuid_of(device, text, sizeof text) == NVML_SUCCESS && vc_parse_uuid(text, uuid) &&
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

VC_EXPORT int nvmlDeviceGetMemoryInfo(void *device, struct memory_v1 *out) {
  int (*call)(void *, struct memory_v1 *) = (int (*)(void *, struct memory_v1 *))real_of(0);
  int r = call ? call(device, out) : NVML_UNINITIALIZED;
  if (r == NVML_SUCCESS && out) slice(device, &out->total, &out->used, &out->free);
  return r;
}

VC_EXPORT int nvmlDeviceGetMemoryInfo_v2(void *device, struct memory_v2 *out) {
  int (*call)(void *, struct memory_v2 *) = (int (*)(void *, struct memory_v2 *))real_of(1);
  int r = call ? call(device, out) : NVML_UNINITIALIZED;
  if (r == NVML_SUCCESS && out && slice(device, &out->total, &out->used, &out->free))
    out->reserved = 0;
  return r;
}

/* ---- processes: those that sit in this seat, by the IDs that the arbiter knows them by ---- */

static struct vc_slot *slot_of(unsigned pid) {
  struct vc_usage *usage = vc_seat.usage;
  for (unsigned i = 0; usage && i < VC_SLOTS; i++)
    if (atomic_load(&usage->slot[i].live) && atomic_load(&usage->slot[i].pid) == pid)
      return &usage->slot[i];
  return NULL;
}

typedef int list_t(void *, unsigned *, void *);

/* All that the driver lists, however many, and of them the seat's own. What the driver does not
 * say of their memory is what they are charged for. Without a seat no process is listed. */
static int own_processes(unsigned index, void *device, unsigned *count, void *out, size_t size) {
  list_t *call = (list_t *)real_of(index);
  char *all = NULL;
  unsigned found = 0, kept = 0;
  int r = NVML_TOO_SMALL;
  if (!call) return NVML_UNINITIALIZED;
  if (!count) return NVML_INVALID;
  for (unsigned room = ROOM_FIRST; r == NVML_TOO_SMALL && room <= ROOM_MOST; room *= 4) {
    free(all);
    all = calloc(room, size);
    if (!all) return NVML_UNINITIALIZED;
    found = room;
    r = call(device, &found, all);
  }
  bool seated = r == NVML_SUCCESS && vc_seat_ready();
  for (unsigned i = 0; seated && i < found; i++) {
    char *entry = all + i * size;
    struct process_v1 process;
    memcpy(&process, entry, sizeof process);
    const struct vc_slot *slot = slot_of(process.pid);
    if (!slot) continue;
    if (process.used == NOT_AVAILABLE) process.used = atomic_load(&slot->charged);
    memcpy(entry, &process, sizeof process);
    if (out && kept < *count) memcpy((char *)out + kept * size, entry, size);
    kept++;
  }
  free(all);
  if (r != NVML_SUCCESS) return r;
  r = kept > *count || (kept && !out) ? NVML_TOO_SMALL : NVML_SUCCESS;
  *count = kept;
  return r;
}

#define PROCESSES(index, name, type)                                                               \
  VC_EXPORT int name(void *device, unsigned *count, struct type *out) {                            \
    return own_processes(index, device, count, out, sizeof *out);                                  \
  }
PROCESSES(2, nvmlDeviceGetComputeRunningProcesses, process_v1)
PROCESSES(3, nvmlDeviceGetComputeRunningProcesses_v2, process_v2)
PROCESSES(4, nvmlDeviceGetComputeRunningProcesses_v3, process_v2)
PROCESSES(5, nvmlDeviceGetGraphicsRunningProcesses, process_v1)
PROCESSES(6, nvmlDeviceGetGraphicsRunningProcesses_v2, process_v2)
PROCESSES(7, nvmlDeviceGetGraphicsRunningProcesses_v3, process_v2)

/* ---- utilisation ---- */

VC_EXPORT int nvmlDeviceGetProcessUtilization(void *device, struct sample *out, unsigned *count, unsigned long long since) {
  int (*call)(void *, struct sample *, unsigned *, unsigned long long) =
      (int (*)(void *, struct sample *, unsigned *, unsigned long long))real_of(8);
  int r = call ? call(device, out, count, since) : NVML_UNINITIALIZED;
  if (r != NVML_SUCCESS || !out || !count) return r;
  unsigned kept = 0;
  bool seated = vc_seat_ready();
  for (unsigned i = 0; i < *count; i++)
    if (seated && slot_of(out[i].pid)) out[kept++] = out[i];
  *count = kept;
  return r;
}

static uint64_t busy_of_all(void) {
  struct vc_usage *usage = vc_seat.usage;
  uint64_t sum = 0;
  for (unsigned i = 0; usage && i < VC_SLOTS; i++)
    if (atomic_load(&usage->slot[i].live)) sum += atomic_load(&usage->slot[i].busy_ns);
  return sum;
}

static struct vc_lock guard;

/* The part of the time since the last look in which the seat had work on the GPU. */
static unsigned own_rate(void) {
  static uint64_t at, busy;
  static unsigned rate;
  uint64_t now = vc_now(), used = busy_of_all();
  vc_lock(&guard);
  if (!at || now - at >= RATE_NS) {
    uint64_t span = at ? now - at : 0, more = used > busy ? used - busy : 0;
    rate = span ? (unsigned)(more >= span ? 100 : more * 100 / span) : 0;
    at = now;
    busy = used;
  }
  unsigned answer = rate;
  vc_unlock(&guard);
  return answer;
}

VC_EXPORT int nvmlDeviceGetUtilizationRates(void *device, struct rates *out) {
  int (*call)(void *, struct rates *) = (int (*)(void *, struct rates *))real_of(9);
  int r = call ? call(device, out) : NVML_UNINITIALIZED;
  if (r != NVML_SUCCESS || !out || !vc_seat_ready() || !ours(device)) return r;
  out->gpu = own_rate();
  if (out->memory > out->gpu) out->memory = out->gpu;
  return r;
}

void vc_nvml_reset(void) {
  atomic_store(&guard.word, 0);
}
