/* SPDX-License-Identifier: Apache-2.0 */
/* Plain, pitched and managed memory, arrays, pinned memory, and what the driver says there is. */
#include "memory.h"
#include "bytes.h"
#include "memory_account.h"
#include "pool.h"
#include "connection.h"
#include "device.h"

static CUcontext current(void) {
  CUcontext context = NULL;
  VC_CALL(cuCtxGetCurrent)(&context);
  return context;
}

bool vc_memory_take(uint64_t bytes, const void *context) {
  if (vc_take(bytes, context)) return true;
  /* What pools have let go of since we looked may be enough. */
  vc_pools_settle();
  return vc_take(bytes, context);
}

bool vc_memory_begin(uint64_t bytes) {
  return vc_seat_ready() && vc_memory_take(bytes, current());
}

CUresult vc_memory_end(CUresult result, enum vc_kind kind, uint64_t key, uint64_t bytes) {
  struct vc_item item = {.key = key, .bytes = bytes, .owner = current(), .kind = (uint32_t)kind};
  if (result != CUDA_SUCCESS)
    vc_give(bytes, item.owner);
  else
    vc_table_put(item); /* without a place to note it the bytes stay charged: too much, never too little */
  return result;
}

static void settle_free(CUresult result, const struct vc_item *item) {
  if (result == CUDA_SUCCESS)
    vc_give_back(item);
  else
    vc_table_put(*item);
}

/* Another process may open it, and hold it when this one has given it back. */
void vc_memory_exported(CUdeviceptr address) {
  CUdeviceptr base = address;
  if (VC_CALL(cuMemGetAddressRange_v2)(&base, NULL, address) == CUDA_SUCCESS)
    vc_table_mark(VC_PLAIN, base, VC_EXPORTED);
}

VC_HOOK CUresult cuIpcGetMemHandle(CUipcMemHandle *out, CUdeviceptr address) {
  CUresult r = VC_CALL(cuIpcGetMemHandle)(out, address);
  if (r == CUDA_SUCCESS) vc_memory_exported(address);
  return r;
}

VC_HOOK CUresult cuMemAlloc_v2(CUdeviceptr *out, size_t bytes) {
  VC_TAKING(VC_PLAIN, *out, bytes, VC_CALL(cuMemAlloc_v2)(out, bytes));
}

VC_HOOK CUresult cuMemAlloc(CUdeviceptr_v1 *out, unsigned bytes) {
  VC_TAKING(VC_PLAIN, *out, bytes, VC_CALL(cuMemAlloc)(out, bytes));
}

VC_HOOK CUresult cuMemAllocManaged(CUdeviceptr *out, size_t bytes, unsigned flags) {
  VC_TAKING(VC_PLAIN, *out, bytes, VC_CALL(cuMemAllocManaged)(out, bytes, flags));
}

/* The driver chooses the pitch: take what an alignment of 512 gives, then correct. */
static uint64_t pitched(uint64_t width, uint64_t height) {
  return vc_times(vc_whole(width, 512), height);
}

static CUresult pitch_end(CUresult r, CUdeviceptr address, uint64_t bytes, uint64_t all) {
  if (r == CUDA_SUCCESS && all > bytes) {
    bool fits = vc_memory_begin(all);
    vc_give(bytes, current());
    if (!fits) {
      VC_CALL(cuMemFree_v2)(address);
      return CUDA_ERROR_OUT_OF_MEMORY;
    }
    bytes = all;
  }
  return vc_memory_end(r, VC_PLAIN, address, bytes);
}

VC_HOOK CUresult cuMemAllocPitch_v2(CUdeviceptr *out, size_t *pitch, size_t width, size_t height, unsigned element) {
  uint64_t bytes = pitched(width, height);
  if (!vc_memory_begin(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult r = VC_CALL(cuMemAllocPitch_v2)(out, pitch, width, height, element);
  return r == CUDA_SUCCESS ? pitch_end(r, *out, bytes, *pitch * height) : pitch_end(r, 0, bytes, 0);
}

VC_HOOK CUresult cuMemAllocPitch(CUdeviceptr_v1 *out, unsigned *pitch, unsigned width, unsigned height,
                                 unsigned element) {
  uint64_t bytes = pitched(width, height);
  if (!vc_memory_begin(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult r = VC_CALL(cuMemAllocPitch)(out, pitch, width, height, element);
  return r == CUDA_SUCCESS ? pitch_end(r, *out, bytes, (uint64_t)*pitch * height) : pitch_end(r, 0, bytes, 0);
}

/* The entry goes first: once freed, the address can be another thread's at once. */
VC_HOOK CUresult cuMemFree_v2(CUdeviceptr address) {
  struct vc_item item;
  bool known = vc_table_take(VC_PLAIN, address, &item);
  CUresult r = VC_CALL(cuMemFree_v2)(address);
  if (known)
    settle_free(r, &item);
  else
    vc_pools_settle();
  return r;
}

VC_HOOK CUresult cuMemFree(CUdeviceptr_v1 address) {
  struct vc_item item;
  bool known = vc_table_take(VC_PLAIN, address, &item);
  CUresult r = VC_CALL(cuMemFree)(address);
  if (known) settle_free(r, &item);
  return r;
}

/* ---- pinned memory: on the device only if device and host share their memory ---- */

static uint64_t counted(uint64_t bytes) {
  return vc_host_counts() ? bytes : 0;
}

/* The entry goes first, as with other memory. */
static CUresult host_free(CUresult (*real)(void *), void *p) {
  struct vc_item item;
  bool known = vc_table_take(VC_HOST, (uint64_t)(uintptr_t)p, &item);
  CUresult r = real(p);
  if (known) settle_free(r, &item);
  return r;
}

VC_HOOK CUresult cuMemHostAlloc(void **out, size_t bytes, unsigned flags) {
  VC_TAKING(VC_HOST, *out, counted(bytes), VC_CALL(cuMemHostAlloc)(out, bytes, flags));
}

VC_HOOK CUresult cuMemAllocHost_v2(void **out, size_t bytes) {
  VC_TAKING(VC_HOST, *out, counted(bytes), VC_CALL(cuMemAllocHost_v2)(out, bytes));
}

VC_HOOK CUresult cuMemHostRegister_v2(void *p, size_t bytes, unsigned flags) {
  VC_TAKING(VC_HOST, p, counted(bytes), VC_CALL(cuMemHostRegister_v2)(p, bytes, flags));
}

/* The versions of CUDA 2 and 4. */
VC_HOOK CUresult cuMemAllocHost(void **out, unsigned bytes) {
  VC_TAKING(VC_HOST, *out, counted(bytes), VC_CALL(cuMemAllocHost)(out, bytes));
}

VC_HOOK CUresult cuMemHostRegister(void *p, size_t bytes, unsigned flags) {
  VC_TAKING(VC_HOST, p, counted(bytes), VC_CALL(cuMemHostRegister)(p, bytes, flags));
}

VC_HOOK CUresult cuMemFreeHost(void *p) {
  return host_free(VC_REAL(cuMemFreeHost), p);
}

VC_HOOK CUresult cuMemHostUnregister(void *p) {
  return host_free(VC_REAL(cuMemHostUnregister), p);
}

/* ---- what there is ---- */

static uint64_t narrow(uint64_t bytes) {
  return bytes > UINT32_MAX ? UINT32_MAX : bytes;
}

static CUresult slice_info(uint64_t *spare, uint64_t *total) {
  size_t real_spare = 0, real_total = 0;
  CUresult r = VC_CALL(cuMemGetInfo_v2)(&real_spare, &real_total);
  if (r != CUDA_SUCCESS) return r;
  if (!vc_seat_ready()) return CUDA_ERROR_SYSTEM_NOT_READY;
  vc_pools_settle();
  uint64_t cap = vc_cap(), held = vc_held();
  *total = cap < real_total ? cap : real_total;
  *spare = held < *total ? *total - held : 0;
  if (*spare > real_spare) *spare = real_spare;
  return r;
}

VC_HOOK CUresult cuMemGetInfo_v2(size_t *spare, size_t *total) {
  uint64_t s = 0, t = 0;
  CUresult r = slice_info(&s, &t);
  if (r != CUDA_SUCCESS) return r;
  if (spare) *spare = s;
  if (total) *total = t;
  return r;
}

VC_HOOK CUresult cuMemGetInfo(unsigned *spare, unsigned *total) {
  uint64_t s = 0, t = 0;
  CUresult r = slice_info(&s, &t);
  if (r != CUDA_SUCCESS) return r;
  if (spare) *spare = (unsigned)narrow(s);
  if (total) *total = (unsigned)narrow(t);
  return r;
}

static CUresult slice_total(uint64_t *bytes, CUdevice device) {
  size_t real = 0;
  CUresult r = VC_CALL(cuDeviceTotalMem_v2)(&real, device);
  if (r != CUDA_SUCCESS) return r;
  if (!vc_seat_ready()) return CUDA_ERROR_SYSTEM_NOT_READY;
  *bytes = vc_cap() < real ? vc_cap() : real;
  return r;
}

VC_HOOK CUresult cuDeviceTotalMem_v2(size_t *bytes, CUdevice device) {
  uint64_t total = 0;
  if (!bytes) return VC_CALL(cuDeviceTotalMem_v2)(bytes, device);
  CUresult r = slice_total(&total, device);
  if (r == CUDA_SUCCESS) *bytes = total;
  return r;
}

VC_HOOK CUresult cuDeviceTotalMem(unsigned *bytes, CUdevice device) {
  uint64_t total = 0;
  if (!bytes) return VC_CALL(cuDeviceTotalMem)(bytes, device);
  CUresult r = slice_total(&total, device);
  if (r == CUDA_SUCCESS) *bytes = (unsigned)narrow(total);
  return r;
}
