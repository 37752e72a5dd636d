/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "nv.h"
#include "gpu.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <string.h>

struct memory {
  unsigned long long total, free, used;
};

static struct {
  int (*init)(void);
  int (*count)(unsigned *);
  int (*handle)(unsigned, void **);
  int (*uuid)(void *, char *, unsigned);
  int (*name)(void *, char *, unsigned);
  int (*memory)(void *, struct memory *);
  int (*processes)(void *, unsigned *, struct ar_nv_process *);
} nv;

static bool load(void *library) {
  const struct {
    void *slot;
    const char *name;
  } wanted[] = {
      {&nv.init, "nvmlInit_v2"},
      {&nv.count, "nvmlDeviceGetCount_v2"},
      {&nv.handle, "nvmlDeviceGetHandleByIndex_v2"},
      {&nv.uuid, "nvmlDeviceGetUUID"},
      {&nv.name, "nvmlDeviceGetName"},
      {&nv.memory, "nvmlDeviceGetMemoryInfo"},
      {&nv.processes, "nvmlDeviceGetComputeRunningProcesses_v3"},
  };
  for (unsigned i = 0; i < sizeof wanted / sizeof *wanted; i++) {
    void *found = dlsym(library, wanted[i].name);
    if (!found && i == 6) found = dlsym(library, "nvmlDeviceGetComputeRunningProcesses_v2");
    if (!found) return false;
    memcpy(wanted[i].slot, &found, sizeof found);
  }
  return true;
}

static void read_uuid(const char *text, uint8_t out[16]) {
  unsigned byte;
  int n = 0;
  memset(out, 0, 16);
  for (text += strncmp(text, "GPU-", 4) ? 0 : 4; *text && n < 16; text += 2) {
    while (*text == '-') text++;
    if (sscanf(text, "%2x", &byte) != 1) break;
    out[n++] = (uint8_t)byte;
  }
}

static bool describe(struct ar_gpu *g) {
  struct memory memory;
  if (nv.handle((unsigned)g->index, &g->nvml) ||
      nv.uuid(g->nvml, g->uuid_text, sizeof g->uuid_text) ||
      nv.name(g->nvml, g->name, sizeof g->name) || nv.memory(g->nvml, &memory))
    return false;
  g->memory = memory.total;
  read_uuid(g->uuid_text, g->uuid);
  return true;
}

bool ar_nv_open(const char *library, const char **why) {
  unsigned count = 0;
  void *handle = dlopen(library, RTLD_NOW);
  *why = "no NVIDIA management library on this machine (try --fake)";
  if (!handle) return false;
  *why = "the NVIDIA management library is not usable";
  if (!load(handle) || nv.init() || nv.count(&count)) return false;
  *why = "no GPU on this machine (try --fake)";
  for (unsigned i = 0; i < count && i < AR_GPUS; i++) {
    ar_gpus[i].index = (int)i;
    if (!describe(&ar_gpus[i])) return false;
    ar_gpu_count++;
  }
  const struct vc_clock *(*clock)(void) =
      (const struct vc_clock *(*)(void))dlsym(handle, "skfClock");
  if (clock) vc_clock = clock();
  return ar_gpu_count > 0;
}

int ar_nv_processes(int gpu, struct ar_nv_process *out, int room) {
  unsigned count = (unsigned)room;
  if (nv.processes(ar_gpus[gpu].nvml, &count, out)) return -1;
  return (int)count < room ? (int)count : room;
}
