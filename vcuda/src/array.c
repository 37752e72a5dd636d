/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays and mipmaps. */
#include "array_size.h"
#include "memory_account.h"
#include "memory.h"
#include "connection.h"

/* Sparse arrays and those mapped later get their memory from elsewhere. */
static bool backed(unsigned flags) {
  return !(flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING));
}

/* Descriptors are copied before they are read: another thread may change them between our look and the driver's. */

static CUresult end(CUresult r, void *handle, uint64_t bytes) {
  return vc_memory_end(r, VC_ARRAY, (uint64_t)(uintptr_t)handle, bytes);
}

VC_HOOK CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *d) {
  if (!out || !d) return VC_CALL(cuArrayCreate_v2)(out, d);
  CUDA_ARRAY_DESCRIPTOR same = *d;
  CUDA_ARRAY3D_DESCRIPTOR flat = {same.Width, same.Height, 0, same.Format, same.NumChannels, 0};
  uint64_t bytes = vc_array_size(&flat, 1);
  if (!vc_memory_begin(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult r = VC_CALL(cuArrayCreate_v2)(out, &same);
  return end(r, r == CUDA_SUCCESS ? *out : NULL, bytes);
}

VC_HOOK CUresult cuArrayCreate(CUarray *out, const CUDA_ARRAY_DESCRIPTOR_v1 *d) {
  if (!out || !d) return VC_CALL(cuArrayCreate)(out, d);
  CUDA_ARRAY_DESCRIPTOR_v1 same = *d;
  CUDA_ARRAY3D_DESCRIPTOR flat = {same.Width, same.Height, 0, same.Format, same.NumChannels, 0};
  uint64_t bytes = vc_array_size(&flat, 1);
  if (!vc_memory_begin(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult r = VC_CALL(cuArrayCreate)(out, &same);
  return end(r, r == CUDA_SUCCESS ? *out : NULL, bytes);
}

VC_HOOK CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d) {
  if (!out || !d) return VC_CALL(cuArray3DCreate_v2)(out, d);
  CUDA_ARRAY3D_DESCRIPTOR same = *d;
  uint64_t bytes = backed(same.Flags) ? vc_array_size(&same, 1) : 0;
  if (!bytes) return VC_CALL(cuArray3DCreate_v2)(out, &same);
  if (!vc_memory_begin(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult r = VC_CALL(cuArray3DCreate_v2)(out, &same);
  return end(r, r == CUDA_SUCCESS ? *out : NULL, bytes);
}

VC_HOOK CUresult cuArray3DCreate(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR_v1 *d) {
  if (!out || !d) return VC_CALL(cuArray3DCreate)(out, d);
  CUDA_ARRAY3D_DESCRIPTOR_v1 same = *d;
  CUDA_ARRAY3D_DESCRIPTOR wide = {same.Width,  same.Height,      same.Depth,
                                  same.Format, same.NumChannels, same.Flags};
  uint64_t bytes = vc_array_size(&wide, 1);
  if (!vc_memory_begin(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult r = VC_CALL(cuArray3DCreate)(out, &same);
  return end(r, r == CUDA_SUCCESS ? *out : NULL, bytes);
}

VC_HOOK CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels) {
  if (!out || !d) return VC_CALL(cuMipmappedArrayCreate)(out, d, levels);
  CUDA_ARRAY3D_DESCRIPTOR same = *d;
  uint64_t bytes = backed(same.Flags) ? vc_array_size(&same, levels) : 0;
  if (!bytes) return VC_CALL(cuMipmappedArrayCreate)(out, &same, levels);
  if (!vc_memory_begin(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult r = VC_CALL(cuMipmappedArrayCreate)(out, &same, levels);
  return end(r, r == CUDA_SUCCESS ? *out : NULL, bytes);
}

/* Only an array without memory of its own can have tiles. */
static CUresult destroy(CUresult (*real)(void *), void *handle) {
  struct vc_item item;
  if (!vc_table_take(VC_ARRAY, (uint64_t)(uintptr_t)handle, &item)) return vc_vmm_destroy(real, handle);
  CUresult r = real(handle);
  if (r == CUDA_SUCCESS)
    vc_give(item.bytes, item.owner);
  else
    vc_table_put(item);
  return r;
}

VC_HOOK CUresult cuArrayDestroy(CUarray array) {
  return destroy((CUresult(*)(void *))VC_REAL(cuArrayDestroy), array);
}

VC_HOOK CUresult cuMipmappedArrayDestroy(CUmipmappedArray array) {
  return destroy((CUresult(*)(void *))VC_REAL(cuMipmappedArrayDestroy), array);
}
