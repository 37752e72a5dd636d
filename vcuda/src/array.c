/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays and mipmaps. */
#include "array_size.h"
#include "memory_account.h"
#include "memory.h"
#include "connection.h"

/* Sparse arrays and those mapped later get their memory from elsewhere. */
static uint64_t bytes_of(const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels) {
  return d->Flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING) ? 0 : vc_array_size(d, levels);
}

/* Descriptors are copied before they are read: another thread may change them between our look and the driver's. */

VC_HOOK CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *d) {
  if (!out || !d) return VC_CALL(cuArrayCreate_v2)(out, d);
  CUDA_ARRAY_DESCRIPTOR same = *d;
  CUDA_ARRAY3D_DESCRIPTOR flat = {same.Width, same.Height, 0, same.Format, same.NumChannels, 0};
  VC_TAKING(VC_ARRAY, *out, bytes_of(&flat, 1), VC_CALL(cuArrayCreate_v2)(out, &same));
}

VC_HOOK CUresult cuArrayCreate(CUarray *out, const CUDA_ARRAY_DESCRIPTOR_v1 *d) {
  if (!out || !d) return VC_CALL(cuArrayCreate)(out, d);
  CUDA_ARRAY_DESCRIPTOR_v1 same = *d;
  CUDA_ARRAY3D_DESCRIPTOR flat = {same.Width, same.Height, 0, same.Format, same.NumChannels, 0};
  VC_TAKING(VC_ARRAY, *out, bytes_of(&flat, 1), VC_CALL(cuArrayCreate)(out, &same));
}

VC_HOOK CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d) {
  if (!out || !d) return VC_CALL(cuArray3DCreate_v2)(out, d);
  CUDA_ARRAY3D_DESCRIPTOR same = *d;
  VC_TAKING(VC_ARRAY, *out, bytes_of(&same, 1), VC_CALL(cuArray3DCreate_v2)(out, &same));
}

VC_HOOK CUresult cuArray3DCreate(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR_v1 *d) {
  if (!out || !d) return VC_CALL(cuArray3DCreate)(out, d);
  CUDA_ARRAY3D_DESCRIPTOR_v1 same = *d;
  CUDA_ARRAY3D_DESCRIPTOR wide = {same.Width, same.Height, same.Depth, same.Format, same.NumChannels, same.Flags};
  VC_TAKING(VC_ARRAY, *out, bytes_of(&wide, 1), VC_CALL(cuArray3DCreate)(out, &same));
}

VC_HOOK CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels) {
  if (!out || !d) return VC_CALL(cuMipmappedArrayCreate)(out, d, levels);
  CUDA_ARRAY3D_DESCRIPTOR same = *d;
  VC_TAKING(VC_ARRAY, *out, bytes_of(&same, levels), VC_CALL(cuMipmappedArrayCreate)(out, &same, levels));
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
