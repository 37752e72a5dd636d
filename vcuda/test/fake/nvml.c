/* SPDX-License-Identifier: Apache-2.0 */
/* The part of NVML that an inventory, an audit and a curious user ask for. */
#define _GNU_SOURCE
#include "nvml.h"

#include <dirent.h>
#include <errno.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

/* SLICEKEEPER_FAKE_NVML: "unknown" as under WSL2, which knows no process's memory, "bare" as on
 * GPUs that share the host's memory, which do not say how much there is, "silent" if processes
 * are not listed either, nor how busy the GPU was. */
static bool like(const char *what) {
  const char *chosen = fk_setting("NVML");
  return chosen && !strcmp(chosen, what);
}

struct memory {
  unsigned long long total, free, used;
};
struct memory_v2 {
  unsigned version;
  unsigned long long total, reserved, free, used;
};
struct process {
  unsigned pid;
  unsigned long long used;
  unsigned gpu_instance, compute_instance;
};
struct process_sample {
  unsigned pid;
  unsigned long long when;
  unsigned sm, mem, enc, dec;
};
struct utilization {
  unsigned gpu, memory;
};

static struct fk_gpu *gpu_of(void *device) {
  return (struct fk_gpu *)device;
}

/* Of a GPU in MIG mode, and of its MIG devices, the driver tells no utilisation. */
static bool divided(void *device) {
  int index = index_of(device);
  return index >= FK_GPUS || fk_world()->health[index].mig;
}

/* What is in use of a GPU with all its MIG devices. */
static uint64_t used_of(void *device) {
  uint64_t used = gpu_of(device)->mem_used;
  for (int i = FK_GPUS; i < FK_DEVICES; i++)
    if (fk_there((unsigned)i) && (int)fk_slice_of(i)->gpu == index_of(device))
      used += fk_world()->gpu[i].mem_used;
  return used;
}

NVML_API(nvmlInit_v2, (void)) {
  fk_world();
  return NVML_OK;
}
NVML_RESULT(nvmlInit, (void), nvmlInit_v2())
NVML_RESULT(nvmlInitWithFlags, (unsigned flags), ((void)flags, nvmlInit_v2()))
NVML_API(nvmlShutdown, (void)) {
  return NVML_OK;
}

NVML_API(nvmlSystemGetDriverVersion, (char *text, unsigned size)) {
  snprintf(text, size, "580.00");
  return NVML_OK;
}
NVML_API(nvmlSystemGetNVMLVersion, (char *text, unsigned size)) {
  snprintf(text, size, "13.580.00");
  return NVML_OK;
}
NVML_API(nvmlSystemGetCudaDriverVersion_v2, (int *version)) {
  *version = 13000;
  return NVML_OK;
}
NVML_RESULT(nvmlSystemGetCudaDriverVersion, (int *version), nvmlSystemGetCudaDriverVersion_v2(version))

NVML_API(nvmlDeviceGetCount_v2, (unsigned *count)) {
  *count = fk_world()->gpus;
  return NVML_OK;
}
NVML_RESULT(nvmlDeviceGetCount, (unsigned *count), nvmlDeviceGetCount_v2(count))

NVML_API(nvmlDeviceGetHandleByIndex_v2, (unsigned index, void **device)) {
  if (index >= fk_world()->gpus) return NVML_INVALID;
  *device = &fk_world()->gpu[index];
  return NVML_OK;
}
NVML_RESULT(nvmlDeviceGetHandleByIndex, (unsigned index, void **device), nvmlDeviceGetHandleByIndex_v2(index, device))

NVML_API(nvmlDeviceGetIndex, (void *device, unsigned *index)) {
  const struct fk_slice *slice = fk_slice_of(index_of(device));
  *index = slice ? slice->index : (unsigned)index_of(device);
  return NVML_OK;
}

NVML_API(nvmlDeviceGetUUID, (void *device, char *text, unsigned size)) {
  fk_uuid_text(index_of(device), text, size);
  return fk_there((unsigned)index_of(device)) ? NVML_OK : NVML_INVALID;
}

NVML_API(nvmlDeviceGetHandleByUUID, (const char *uuid, void **device)) {
  for (unsigned i = 0; i < FK_DEVICES; i++) {
    char text[96];
    fk_uuid_text((int)i, text, sizeof text);
    if (!fk_there(i) || strcmp(text, uuid)) continue;
    *device = &fk_world()->gpu[i];
    return NVML_OK;
  }
  return NVML_NOT_FOUND;
}

NVML_API(nvmlDeviceGetName, (void *device, char *text, unsigned size)) {
  fk_name(index_of(device), text, size);
  return NVML_OK;
}

NVML_API(nvmlDeviceGetMinorNumber, (void *device, unsigned *minor)) {
  if (fk_slice_of(index_of(device))) return NVML_INVALID;
  return nvmlDeviceGetIndex(device, minor);
}

NVML_API(nvmlDeviceGetMemoryInfo, (void *device, struct memory *out)) {
  struct fk_gpu *g = gpu_of(device);
  if (!out) return NVML_INVALID;
  if (like("bare")) return NVML_UNSUPPORTED;
  uint64_t used = used_of(device);
  *out = (struct memory){g->mem_total, g->mem_total - used, used};
  return NVML_OK;
}
NVML_API(nvmlDeviceGetMemoryInfo_v2, (void *device, struct memory_v2 *out)) {
  struct fk_gpu *g = gpu_of(device);
  if (!out) return NVML_INVALID;
  if (like("bare")) return NVML_UNSUPPORTED;
  uint64_t used = used_of(device);
  *out = (struct memory_v2){out->version, g->mem_total, 0, g->mem_total - used, used};
  return NVML_OK;
}

/* What a process has on a GPU; one that is no more, if another one holds its files open, has what it had. */
struct context {
  uint64_t space, mem, when;
  int pid;
  unsigned util;
};

/* A process ID of another space, as it is in ours; 0 if it cannot be named here. */
static int here(const struct context *c, int candidate) {
  char path[64], line[256];
  struct stat space;
  int last = 0;
  snprintf(path, sizeof path, "/proc/%d/ns/pid", candidate);
  if (stat(path, &space) < 0 || space.st_ino != c->space) return 0;
  snprintf(path, sizeof path, "/proc/%d/status", candidate);
  FILE *status = fopen(path, "re");
  while (status && fgets(line, sizeof line, status)) {
    const char *end = strrchr(line, '\t');
    if (!strncmp(line, "NSpid:", 6) && end) last = atoi(end); /* the innermost one */
  }
  if (status) fclose(status);
  return last == c->pid ? candidate : 0;
}

/* Containers have process IDs of their own, and a driver tells its caller's: those of containers
 * too, if the caller is outside of them. */
static int translate(const struct context *c, int *known) {
  struct dirent *entry;
  int pid = *known ? here(c, *known) : 0;
  DIR *all = pid ? NULL : opendir("/proc");
  while (!pid && all && (entry = readdir(all)))
    if (atoi(entry->d_name) > 0) pid = here(c, atoi(entry->d_name));
  if (all) closedir(all);
  return *known = pid;
}

/* A process that is gone is still listed if others hold its files open; SLICEKEEPER_FAKE_DEAD=hidden: it is not. */
static bool hidden(int pid) {
  const char *dead = fk_setting("DEAD");
  return dead && !strcmp(dead, "hidden") && kill(pid, 0) < 0 && errno == ESRCH;
}

/* The processes with contexts of a GPU that the caller can name. */
static unsigned contexts(void *device, struct context list[FK_CTXS]) {
  static _Thread_local int known[FK_DEVICES][FK_CTXS];
  struct fk_gpu *g = gpu_of(device);
  int gpu = index_of(device);
  uint64_t space = fk_space();
  unsigned found = 0;
  fk_reap();
  fk_lock();
  fk_engine_advance(gpu);
  for (int i = 0; i < FK_CTXS; i++) {
    const struct fk_queue *q = &g->queue[i];
    list[i] = (struct context){fk_world()->space[gpu][i], q->mem, q->sample_at, q->pid, q->sm_util};
    if (!q->used) list[i].pid = 0;
  }
  fk_unlock();
  for (int i = 0; i < FK_CTXS; i++) {
    int pid = list[i].pid;
    if (pid && list[i].space != space) pid = translate(&list[i], &known[gpu][i]);
    if (!pid || hidden(pid)) continue;
    unsigned same = 0;
    while (same < found && list[same].pid != pid) same++;
    if (same == found) {
      list[found] = list[i];
      list[found++].pid = pid;
    } else {
      list[same].mem += list[i].mem;
      list[same].util += list[i].util;
    }
  }
  return found;
}

/* A GPU in MIG mode lists the processes of all its MIG devices, with the number of each. */
NVML_API(nvmlDeviceGetComputeRunningProcesses_v3,
         (void *device, unsigned *count, struct process *out)) {
  struct context list[FK_CTXS];
  if (!count) return NVML_INVALID;
  if (like("silent")) return NVML_UNSUPPORTED;
  unsigned room = *count, all = 0;
  for (int part = 0; part < FK_DEVICES; part++) {
    const struct fk_slice *slice = fk_slice_of(part);
    bool mine = part == index_of(device) || (slice && (int)slice->gpu == index_of(device));
    if (!mine || !fk_there((unsigned)part)) continue;
    unsigned found = contexts(&fk_world()->gpu[part], list);
    for (unsigned i = 0; i < found; i++, all++)
      if (all < room)
        out[all] = (struct process){(unsigned)list[i].pid,
                                    like("unknown") || like("bare") ? ~0ull : list[i].mem,
                                    slice ? slice->instance : ~0u,
                                    slice ? slice->compute_instance : ~0u};
  }
  *count = all;
  return all > room ? NVML_SIZE : NVML_OK;
}
NVML_RESULT(nvmlDeviceGetComputeRunningProcesses_v2, (void *device, unsigned *count, struct process *out),
            nvmlDeviceGetComputeRunningProcesses_v3(device, count, out))

struct process_v1 {
  unsigned pid;
  unsigned long long used;
};
NVML_API(nvmlDeviceGetComputeRunningProcesses,
         (void *device, unsigned *count, struct process_v1 *out)) {
  struct process list[FK_CTXS];
  unsigned found = FK_CTXS;
  if (!count) return NVML_INVALID;
  int r = nvmlDeviceGetComputeRunningProcesses_v3(device, &found, list);
  for (unsigned i = 0; r == NVML_OK && out && i < found && i < *count; i++)
    out[i] = (struct process_v1){list[i].pid, list[i].used};
  if (r == NVML_OK && found > *count) r = NVML_SIZE;
  *count = found;
  return r;
}

/* SLICEKEEPER_FAKE_GRAPHICS=PID draws, with 100 MiB of the first GPU: a program of Vulkan's, for example. */
NVML_API(nvmlDeviceGetGraphicsRunningProcesses_v3,
         (void *device, unsigned *count, struct process *out)) {
  const char *pid = fk_setting("GRAPHICS");
  if (!count) return NVML_INVALID;
  if (like("silent")) return NVML_UNSUPPORTED;
  unsigned room = *count;
  *count = pid && index_of(device) == 0;
  if (*count > room) return NVML_SIZE;
  if (*count && out) *out = (struct process){(unsigned)strtoul(pid, NULL, 10), 100ull << 20, ~0u, ~0u};
  return NVML_OK;
}
NVML_RESULT(nvmlDeviceGetGraphicsRunningProcesses_v2, (void *device, unsigned *count, struct process *out),
            nvmlDeviceGetGraphicsRunningProcesses_v3(device, count, out))
NVML_API(nvmlDeviceGetGraphicsRunningProcesses,
         (void *device, unsigned *count, struct process_v1 *out)) {
  struct process one;
  int r = nvmlDeviceGetGraphicsRunningProcesses_v3(device, count, out ? &one : NULL);
  if (r == NVML_OK && *count && out) *out = (struct process_v1){one.pid, one.used};
  return r;
}

/* What other limiters and tools ask for beside it. */
NVML_API(nvmlDeviceGetPciInfo_v3, (void *device, struct pci *out)) {
  if (!out) return NVML_INVALID;
  memset(out, 0, sizeof *out);
  out->bus = (unsigned)index_of(device) + 1;
  snprintf(out->legacy, sizeof out->legacy, "0000:%02X:00.0", out->bus & 0xff);
  snprintf(out->text, sizeof out->text, "00000000:%02X:00.0", out->bus & 0xff);
  return NVML_OK;
}
NVML_RESULT(nvmlDeviceGetPciInfo_v2, (void *device, struct pci *out), nvmlDeviceGetPciInfo_v3(device, out))
NVML_RESULT(nvmlDeviceGetPciInfo, (void *device, struct pci *out), nvmlDeviceGetPciInfo_v3(device, out))
NVML_API(nvmlDeviceGetCudaComputeCapability, (void *device, int *major, int *minor)) {
  (void)device;
  *major = fk_capability();
  *minor = 0;
  return NVML_OK;
}
NVML_API(nvmlSystemGetProcessName, (unsigned pid, char *name, unsigned size)) {
  snprintf(name, size, "%u", pid);
  return NVML_OK;
}

NVML_API(nvmlDeviceGetProcessUtilization,
         (void *device, struct process_sample *out, unsigned *count, unsigned long long since)) {
  struct context list[FK_CTXS];
  if (divided(device)) return NVML_UNSUPPORTED;
  unsigned room = *count, found = contexts(device, list);
  (void)since;
  for (unsigned i = 0; out && i < found && i < room; i++)
    out[i] = (struct process_sample){
        (unsigned)list[i].pid, list[i].when / 1000, list[i].util, 0, 0, 0};
  *count = found;
  return !out || found > room ? NVML_SIZE : NVML_OK;
}

struct sample {
  unsigned long long when;
  union {
    unsigned number;
    unsigned long long room;
  } value;
};
enum { NVML_GPU_UTILIZATION = 1, NVML_UNSIGNED = 1 };

/* How busy the GPU was from one of them to the next. */
NVML_API(nvmlDeviceGetSamples, (void *device, int what, unsigned long long since, int *kind,
                                unsigned *count, struct sample *out)) {
  const struct fk_samples *s = &fk_world()->samples[index_of(device)];
  unsigned room = *count, found = 0;
  if (what != NVML_GPU_UTILIZATION || like("silent") || divided(device)) return NVML_UNSUPPORTED;
  *kind = NVML_UNSIGNED;
  *count = FK_SAMPLES;
  if (!out) return NVML_OK;
  fk_lock();
  fk_engine_advance(index_of(device));
  uint32_t first = s->count > FK_SAMPLES ? s->count - FK_SAMPLES : 0;
  for (uint32_t i = first; i < s->count && found < room; i++) {
    unsigned long long until = s->ring[i % FK_SAMPLES].until / 1000;
    if (until <= since) continue;
    out[found].when = until;
    out[found++].value.number = s->ring[i % FK_SAMPLES].percent;
  }
  fk_unlock();
  *count = found;
  return found ? NVML_OK : NVML_NOT_FOUND;
}

NVML_API(nvmlDeviceGetUtilizationRates, (void *device, struct utilization *out)) {
  struct fk_gpu *g = gpu_of(device);
  unsigned sum = 0;
  if (divided(device)) return NVML_UNSUPPORTED;
  fk_lock();
  fk_engine_advance(index_of(device));
  for (int i = 0; i < g->queues; i++) sum += g->queue[i].used ? g->queue[i].sm_util : 0;
  fk_unlock();
  *out = (struct utilization){sum > 100 ? 100 : sum, 0};
  return NVML_OK;
}

__attribute__((visibility("default"))) const char *nvmlErrorString(int code);
const char *nvmlErrorString(int code) {
  return code ? "error" : "success";
}
