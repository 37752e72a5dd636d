/* SPDX-License-Identifier: Apache-2.0 */
/* The part of NVML that tells of MIG devices, as NVIDIA documents it ("Multi Instance GPU Management"). */
#define _GNU_SOURCE
#include "nvml.h"

#include <stdlib.h>
#include <string.h>

enum { MOST = 7 }; /* MIG devices of one GPU */

struct attributes {
  unsigned multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
  unsigned instance_slices, compute_slices;
  unsigned long long memory_mib;
};
struct profile {
  unsigned id, peer_to_peer, slices, instances, multiprocessors, copy_engines, decoders, encoders, jpeg, ofa;
  unsigned long long memory_mib;
};

/* The MIG device of a handle, NULL if it is a GPU's or the device is gone. */
static struct fk_slice *slice_of(void *device) {
  struct fk_slice *slice = fk_slice_of(index_of(device));
  return slice && slice->used ? slice : NULL;
}

NVML_API(nvmlDeviceGetMigMode, (void *device, unsigned *current, unsigned *pending)) {
  if (index_of(device) >= FK_GPUS) return NVML_INVALID;
  const struct fk_health *h = &fk_world()->health[index_of(device)];
  *current = h->mig;
  *pending = h->mig ^ h->mig_flips;
  return *current || *pending ? NVML_OK : NVML_UNSUPPORTED;
}

NVML_API(nvmlDeviceGetMaxMigDeviceCount, (void *device, unsigned *count)) {
  int index = index_of(device);
  *count = index < FK_GPUS && fk_world()->health[index].mig ? MOST : 0;
  return NVML_OK;
}

NVML_API(nvmlDeviceGetMigDeviceHandleByIndex, (void *device, unsigned index, void **out)) {
  for (int i = 0; i < FK_SLICES; i++) {
    const struct fk_slice *s = &fk_world()->slice[i];
    if (!s->used || (int)s->gpu != index_of(device) || s->index != index) continue;
    *out = &fk_world()->gpu[FK_GPUS + i];
    return NVML_OK;
  }
  return index < MOST ? NVML_NOT_FOUND : NVML_INVALID;
}

NVML_API(nvmlDeviceIsMigDeviceHandle, (void *device, unsigned *is)) {
  *is = index_of(device) >= FK_GPUS;
  return NVML_OK;
}

NVML_API(nvmlDeviceGetDeviceHandleFromMigDeviceHandle, (void *device, void **out)) {
  const struct fk_slice *slice = slice_of(device);
  if (!slice) return NVML_INVALID;
  *out = &fk_world()->gpu[slice->gpu];
  return NVML_OK;
}

NVML_API(nvmlDeviceGetGpuInstanceId, (void *device, unsigned *id)) {
  const struct fk_slice *slice = slice_of(device);
  if (!slice) return NVML_INVALID;
  *id = slice->instance;
  return NVML_OK;
}

NVML_API(nvmlDeviceGetComputeInstanceId, (void *device, unsigned *id)) {
  const struct fk_slice *slice = slice_of(device);
  if (!slice) return NVML_INVALID;
  *id = slice->compute_instance;
  return NVML_OK;
}

NVML_API(nvmlDeviceGetAttributes_v2, (void *device, struct attributes *out)) {
  const struct fk_slice *slice = slice_of(device);
  if (!slice) return NVML_INVALID;
  *out = (struct attributes){.multiprocessors = 14 * slice->compute,
                             .instance_slices = slice->slices,
                             .compute_slices = slice->compute,
                             .memory_mib = ((struct fk_gpu *)device)->mem_total >> 20};
  return NVML_OK;
}
NVML_RESULT(nvmlDeviceGetAttributes, (void *device, struct attributes *out), nvmlDeviceGetAttributes_v2(device, out))

/* Profiles are numbered by their slices: 1, 2, 3, 4, 7. */
NVML_API(nvmlDeviceGetGpuInstanceProfileInfo, (void *device, unsigned profile, struct profile *out)) {
  static const unsigned slices[] = {1, 2, 3, 4, 7};
  int index = index_of(device);
  if (index >= FK_GPUS || !fk_world()->health[index].mig) return NVML_UNSUPPORTED;
  if (profile >= sizeof slices / sizeof *slices) return NVML_UNSUPPORTED;
  *out = (struct profile){.id = profile, .slices = slices[profile], .multiprocessors = 14 * slices[profile]};
  return NVML_OK;
}

/* For tests: what the administrator does by `nvidia-smi mig`. */
__attribute__((visibility("default"))) void skfMig(int gpu, const char *profiles);
void skfMig(int gpu, const char *profiles) {
  fk_lock();
  fk_divide((unsigned)gpu, profiles);
  fk_unlock();
}
