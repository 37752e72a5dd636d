/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "nvml_library.h"
#include "gpu.h"
#include "gpu_uuid.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

struct memory {
  unsigned long long total, free, used;
};

struct sample {
  unsigned long long when;
  union {
    unsigned number;
    unsigned long long room;
  } value;
};

typedef int list_t(void *, unsigned *, struct ar_nvml_process *);

enum { NV_OK = 0, NV_TOO_SMALL = 7, NV_UTILIZATION = 1, NV_UNSIGNED = 1 };

static struct {
  int (*init)(void);
  int (*count)(unsigned *);
  int (*handle)(unsigned, void **);
  int (*uuid)(void *, char *, unsigned);
  int (*name)(void *, char *, unsigned);
  int (*memory)(void *, struct memory *);
  list_t *processes, *graphics; /* NULL: not in this library */
  int (*samples)(void *, int, unsigned long long, int *, unsigned *, struct sample *);
  int (*uses)(void *, struct ar_nvml_use *, unsigned *, unsigned long long);
} nv;

static bool load(void *library) {
  const struct {
    void *slot;
    const char *name, *older;
  } wanted[] = {
      {&nv.processes, "nvmlDeviceGetComputeRunningProcesses_v3",
       "nvmlDeviceGetComputeRunningProcesses_v2"},
      {&nv.graphics, "nvmlDeviceGetGraphicsRunningProcesses_v3",
       "nvmlDeviceGetGraphicsRunningProcesses_v2"},
      {&nv.memory, "nvmlDeviceGetMemoryInfo", NULL},
      {&nv.samples, "nvmlDeviceGetSamples", NULL},
      {&nv.uses, "nvmlDeviceGetProcessUtilization", NULL},
      {&nv.init, "nvmlInit_v2", NULL},
      {&nv.count, "nvmlDeviceGetCount_v2", NULL},
      {&nv.handle, "nvmlDeviceGetHandleByIndex_v2", NULL},
      {&nv.uuid, "nvmlDeviceGetUUID", NULL},
      {&nv.name, "nvmlDeviceGetName", NULL},
  };
  for (unsigned i = 0; i < sizeof wanted / sizeof *wanted; i++) {
    void *found = dlsym(library, wanted[i].name);
    if (!found && wanted[i].older) found = dlsym(library, wanted[i].older);
    if (!found && i > 4) return false; /* the first ones may be missing: then less is known, and audited */
    memcpy(wanted[i].slot, &found, sizeof found);
  }
  return true;
}

static bool describe(struct ar_gpu *g) {
  struct memory memory;
  if (nv.handle((unsigned)g->index, &g->nvml) ||
      nv.uuid(g->nvml, g->uuid_text, sizeof g->uuid_text) ||
      nv.name(g->nvml, g->name, sizeof g->name))
    return false;
  /* GPUs that share the host's memory do not say how much there is. */
  g->memory = nv.memory && nv.memory(g->nvml, &memory) == NV_OK ? memory.total : 0;
  if (g->memory == AR_NV_UNKNOWN) g->memory = 0;
  g->tells_memory = true; /* until the first look */
  if (!vc_parse_uuid(g->uuid_text, g->uuid)) memset(g->uuid, 0, sizeof g->uuid); /* unknown: any counts as it */
  return true;
}

/* A GPU that the driver has lost is left out; the others keep the driver's index. */
static void list_gpus(unsigned count) {
  for (unsigned i = 0; i < count && ar_gpu_count < AR_GPUS; i++) {
    struct ar_gpu *g = &ar_gpus[ar_gpu_count];
    g->index = (int)i;
    if (describe(g)) ar_gpu_count++;
  }
}

bool ar_nvml_open(const char *library, const char **why) {
  unsigned count = 0;
  void *handle = dlopen(library, RTLD_NOW);
  *why = "no NVIDIA management library on this machine (try --fake)";
  if (!handle) return false;
  *why = "the NVIDIA management library is not usable";
  if (!load(handle) || nv.init() || nv.count(&count)) return false;
  *why = "no GPU on this machine (try --fake)";
  list_gpus(count);
  const struct vc_clock *(*clock)(void) =
      (const struct vc_clock *(*)(void))dlsym(handle, "skfClock");
  if (clock) vc_clock = clock();
  return ar_gpu_count > 0;
}

/* Append the processes of another list that are not in this one yet. */
static bool append(list_t *list, void *device, struct ar_nvml_process **all, int *count) {
  unsigned room = 64, found;
  struct ar_nvml_process *more = NULL;
  int r = NV_TOO_SMALL;
  for (int i = 0; list && r == NV_TOO_SMALL && i < 8; i++, room *= 4) {
    struct ar_nvml_process *grown = realloc(more, room * sizeof *more);
    if (!grown) break;
    more = grown;
    found = room;
    r = list(device, &found, more);
  }
  struct ar_nvml_process *grown =
      r == NV_OK ? realloc(*all, ((unsigned)*count + found + 1) * sizeof *grown) : NULL;
  if (grown) *all = grown;
  for (unsigned i = 0; grown && i < found; i++) {
    bool known = false;
    for (int k = 0; k < *count; k++)
      known |= list == nv.graphics && grown[k].pid == more[i].pid;
    if (!known) grown[(*count)++] = more[i];
  }
  free(more);
  return grown != NULL;
}

struct ar_nvml_process *ar_nvml_processes(int gpu, int *count) {
  struct ar_nvml_process *all = NULL;
  void *device = ar_gpus[gpu].nvml;
  *count = 0;
  bool compute = append(nv.processes, device, &all, count);
  bool graphics = append(nv.graphics, device, &all, count);
  if (compute || graphics) return all;
  free(all);
  return NULL;
}

bool ar_nvml_used(int gpu, uint64_t *bytes) {
  struct memory memory;
  if (!nv.memory || nv.memory(ar_gpus[gpu].nvml, &memory) != NV_OK || memory.total == AR_NV_UNKNOWN) return false;
  *bytes = memory.used;
  return true;
}

int ar_nvml_busy(int gpu, uint64_t *since) {
  unsigned most = 0, room;
  int kind, mean = -1;
  void *device = ar_gpus[gpu].nvml;
  if (!nv.samples || nv.samples(device, NV_UTILIZATION, 0, &kind, &most, NULL) || !most) return -1;
  struct sample *list = calloc(most, sizeof *list);
  unsigned long long sum = 0, newest = 0;
  room = most;
  if (list && nv.samples(device, NV_UTILIZATION, *since, &kind, &room, list) == NV_OK &&
      kind == NV_UNSIGNED && room) {
    for (unsigned i = 0; i < room; i++) {
      sum += list[i].value.number;
      if (list[i].when > *since) *since = list[i].when;
    }
    mean = (int)(sum / room);
  } else if (list && *since) {
    /* Samples bear the machine's time. If that was set back, none comes after `since` any more. */
    room = most;
    if (nv.samples(device, NV_UTILIZATION, 0, &kind, &room, list) != NV_OK) room = 0;
    for (unsigned i = 0; i < room; i++)
      if (list[i].when > newest) newest = list[i].when;
    if (newest && newest < *since) *since = newest;
  }
  free(list);
  return mean;
}

struct ar_nvml_use *ar_nvml_uses(int gpu, int *count) {
  unsigned room = 256;
  struct ar_nvml_use *list = nv.uses ? calloc(room, sizeof *list) : NULL;
  bool ok = list && nv.uses(ar_gpus[gpu].nvml, list, &room, 0) == NV_OK;
  *count = ok ? (int)room : 0;
  if (ok) return list;
  free(list);
  return NULL;
}
