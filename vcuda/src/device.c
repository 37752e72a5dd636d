/* SPDX-License-Identifier: Apache-2.0 */
/* Which GPU a seat is for, and what memory is that GPU's. */
#include "device.h"
#include "connection.h"

#include <string.h>

/* cuda.h has a name for it since 13: CU_MEM_ALLOCATION_TYPE_MANAGED. */
#define MANAGED ((CUmemAllocationType)2)

/* A seat is for one GPU. A context on another one, which a program can see when it changes its
 * environment, would be outside every limit. */
bool vc_device_has(const CUuuid *gpu) {
  static const uint8_t any[16];
  const uint8_t *mine = vc_seat.policy->uuid;
  return !memcmp(mine, any, sizeof any) || !memcmp(mine, gpu->bytes, sizeof any);
}

CUresult vc_device_admit(CUdevice device) {
  CUuuid uuid;
  if (!vc_seat_ready()) return CUDA_ERROR_SYSTEM_NOT_READY;
  CUresult r = VC_CALL(cuDeviceGetUuid_v2)(&uuid, device);
  if (r != CUDA_SUCCESS) return r;
  return vc_device_has(&uuid) ? CUDA_SUCCESS : CUDA_ERROR_INVALID_DEVICE;
}

/* What is no device is the driver's to refuse. */
bool vc_device_is_ours(CUdevice device) {
  CUuuid uuid;
  return VC_CALL(cuDeviceGetUuid_v2)(&uuid, device) != CUDA_SUCCESS || vc_device_admit(device) == CUDA_SUCCESS;
}

bool vc_host_counts(void) {
  static _Atomic int known = -1;
  int integrated = atomic_load(&known);
  CUdevice device = 0; /* without a context: there is one GPU in a slice */
  if (integrated >= 0) return integrated;
  VC_CALL(cuCtxGetDevice)(&device);
  if (VC_CALL(cuDeviceGetAttribute)(&integrated, CU_DEVICE_ATTRIBUTE_INTEGRATED, device) != CUDA_SUCCESS)
    return false;
  atomic_store(&known, integrated != 0);
  return integrated;
}

bool vc_on_host(CUmemAllocationType type, CUmemLocationType location) {
  bool host = location == CU_MEM_LOCATION_TYPE_HOST || location == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
              location == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
  return host && type != MANAGED && !vc_host_counts();
}
