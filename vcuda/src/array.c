/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays and mipmaps: format x channels x extent. */
#include "account.h"
#include "memory.h"
#include "connection.h"

/* Bytes of one texel for all channels; block-compressed and planar formats by their upper bound. */
static uint64_t texel(CUarray_format format, unsigned channels) {
  unsigned number = (unsigned)format;
  if (!channels) channels = 1;
  switch (number) {
  case CU_AD_FORMAT_UNSIGNED_INT8:
  case CU_AD_FORMAT_SIGNED_INT8:
    return channels;
  case CU_AD_FORMAT_UNSIGNED_INT16:
  case CU_AD_FORMAT_SIGNED_INT16:
  case CU_AD_FORMAT_HALF:
    return 2ull * channels;
  case CU_AD_FORMAT_NV12:
    return 2;
  default:
    return number >= 0x90 ? 16 : 4ull * channels;
  }
}

static uint64_t product(uint64_t a, uint64_t b) {
  return b && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

static uint64_t or_one(uint64_t n) {
  return n ? n : 1;
}

/* Sparse arrays and those mapped later get their memory from elsewhere. */
static bool backed(unsigned flags) {
  return !(flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING));
}

static uint64_t extent(const CUDA_ARRAY3D_DESCRIPTOR *d) {
  uint64_t plane = product(or_one(d->Width), or_one(d->Height));
  return product(product(plane, or_one(d->Depth)), texel(d->Format, d->NumChannels));
}

static bool begin(uint64_t bytes) {
  return vc_memory_begin(vc_granules(bytes));
}

static CUresult end(CUresult r, void *handle, uint64_t bytes) {
  return vc_memory_end(r, VC_ARRAY, (uint64_t)(uintptr_t)handle, vc_granules(bytes));
}

VC_HOOK(cuArrayCreate_v2, (CUarray * out, const CUDA_ARRAY_DESCRIPTOR *d)) {
  uint64_t plane = product(or_one(d->Width), or_one(d->Height));
  uint64_t bytes = product(plane, texel(d->Format, d->NumChannels));
  if (!begin(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult r = VC_CALL(cuArrayCreate_v2)(out, d);
  return end(r, r == CUDA_SUCCESS ? *out : NULL, bytes);
}

VC_HOOK(cuArrayCreate, (CUarray * out, const CUDA_ARRAY_DESCRIPTOR_v1 *d)) {
  uint64_t plane = product(or_one(d->Width), or_one(d->Height));
  uint64_t bytes = product(plane, texel(d->Format, d->NumChannels));
  if (!begin(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult r = VC_CALL(cuArrayCreate)(out, d);
  return end(r, r == CUDA_SUCCESS ? *out : NULL, bytes);
}

VC_HOOK(cuArray3DCreate_v2, (CUarray * out, const CUDA_ARRAY3D_DESCRIPTOR *d)) {
  if (!backed(d->Flags)) return VC_CALL(cuArray3DCreate_v2)(out, d);
  uint64_t bytes = extent(d);
  if (!begin(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult r = VC_CALL(cuArray3DCreate_v2)(out, d);
  return end(r, r == CUDA_SUCCESS ? *out : NULL, bytes);
}

VC_HOOK(cuArray3DCreate, (CUarray * out, const CUDA_ARRAY3D_DESCRIPTOR_v1 *d)) {
  CUDA_ARRAY3D_DESCRIPTOR wide = {d->Width,  d->Height,      d->Depth,
                                  d->Format, d->NumChannels, d->Flags};
  uint64_t bytes = extent(&wide);
  if (!begin(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult r = VC_CALL(cuArray3DCreate)(out, d);
  return end(r, r == CUDA_SUCCESS ? *out : NULL, bytes);
}

VC_HOOK(cuMipmappedArrayCreate,
        (CUmipmappedArray * out, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)) {
  CUDA_ARRAY3D_DESCRIPTOR level = *d;
  uint64_t bytes = 0;
  if (!backed(d->Flags)) return VC_CALL(cuMipmappedArrayCreate)(out, d, levels);
  for (unsigned i = 0; i < levels && i < 64; i++) {
    uint64_t one = extent(&level);
    bytes = bytes > UINT64_MAX - one ? UINT64_MAX : bytes + one;
    level.Width = or_one(level.Width / 2);
    level.Height = level.Height > 1 ? level.Height / 2 : level.Height;
    level.Depth = level.Depth > 1 ? level.Depth / 2 : level.Depth;
  }
  if (!begin(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult r = VC_CALL(cuMipmappedArrayCreate)(out, d, levels);
  return end(r, r == CUDA_SUCCESS ? *out : NULL, bytes);
}

static CUresult destroy(CUresult (*real)(void *), void *handle) {
  struct vc_item item;
  bool known = vc_table_take(VC_ARRAY, (uint64_t)(uintptr_t)handle, &item);
  CUresult r = real(handle);
  if (known && r == CUDA_SUCCESS) vc_give(item.bytes);
  if (r == CUDA_SUCCESS) vc_vmm_forget(handle);
  if (known && r != CUDA_SUCCESS) vc_table_put(item);
  return r;
}

VC_HOOK(cuArrayDestroy, (CUarray array)) {
  return destroy((CUresult(*)(void *))VC_REAL(cuArrayDestroy), array);
}

VC_HOOK(cuMipmappedArrayDestroy, (CUmipmappedArray array)) {
  return destroy((CUresult(*)(void *))VC_REAL(cuMipmappedArrayDestroy), array);
}
