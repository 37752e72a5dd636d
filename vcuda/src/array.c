/* SPDX-License-Identifier: Apache-2.0 */
/* Arrays and mipmaps: format x channels x extent, as they lie in memory. */
#include "memory_account.h"
#include "memory.h"
#include "connection.h"

#define GOB_WIDTH 64u /* bytes */
#define GOB_HEIGHT 8u /* rows */
#define GOBS_MAX 16u  /* one above the other in a block */

/* Bytes of one element, and of how many texels in each direction it is made. Formats that do not
 * say how they lie in memory are taken by their upper bound. */
static uint64_t element(CUarray_format format, unsigned channels, unsigned *side) {
  static const uint8_t unit[] = {1, 2, 4, 2, 4, 8}; /* 8 and 16 bits by 1, 2, 4 channels */
  unsigned number = (unsigned)format;
  *side = 1;
  if (!channels) channels = 1;
  if (number >= CU_AD_FORMAT_BC1_UNORM && number <= CU_AD_FORMAT_BC7_UNORM_SRGB) {
    *side = 4;
    return number <= CU_AD_FORMAT_BC1_UNORM_SRGB || number == CU_AD_FORMAT_BC4_UNORM ||
                   number == CU_AD_FORMAT_BC4_SNORM
               ? 8
               : 16;
  }
  if (number >= CU_AD_FORMAT_UNORM_INT8X1 && number <= CU_AD_FORMAT_SNORM_INT16X4)
    return unit[(number - CU_AD_FORMAT_UNORM_INT8X1) % 6];
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
  case CU_AD_FORMAT_UNSIGNED_INT32:
  case CU_AD_FORMAT_SIGNED_INT32:
  case CU_AD_FORMAT_FLOAT:
    return 4ull * channels;
  case 0x50: /* 10, 10, 10 and 2 bits */
    return 4;
  default: /* video: no more than three planes of 16 bits */
    return 8;
  }
}

static uint64_t product(uint64_t a, uint64_t b) {
  return b && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

static uint64_t up(uint64_t n, uint64_t unit) {
  return n > UINT64_MAX - unit ? UINT64_MAX : (n + unit - 1) / unit * unit;
}

static uint64_t or_one(uint64_t n) {
  return n ? n : 1;
}

/* Sparse arrays and those mapped later get their memory from elsewhere. */
static bool backed(unsigned flags) {
  return !(flags & (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING));
}

/* Descriptors are copied before they are read: another thread may change them between our look and the driver's.
 *
 * An array lies in blocks of 64 bytes by 8 rows, up to 16 of them one above the other: rows and
 * columns are filled up to whole blocks. */
static uint64_t extent(const CUDA_ARRAY3D_DESCRIPTOR *d) {
  unsigned side;
  uint64_t bytes = element(d->Format, d->NumChannels, &side), rows = GOB_HEIGHT;
  uint64_t width = up(or_one(d->Width), side) / side, height = up(or_one(d->Height), side) / side;
  while (rows < height && rows < GOB_HEIGHT * GOBS_MAX) rows *= 2;
  if (d->Height) height = up(height, rows);
  uint64_t plane = product(up(product(width, bytes), GOB_WIDTH), height);
  return product(plane, or_one(d->Depth));
}

static CUresult end(CUresult r, void *handle, uint64_t bytes) {
  return vc_memory_end(r, VC_ARRAY, (uint64_t)(uintptr_t)handle, bytes);
}

VC_HOOK CUresult cuArrayCreate_v2(CUarray *out, const CUDA_ARRAY_DESCRIPTOR *d) {
  if (!out || !d) return VC_CALL(cuArrayCreate_v2)(out, d);
  CUDA_ARRAY_DESCRIPTOR same = *d;
  CUDA_ARRAY3D_DESCRIPTOR flat = {same.Width, same.Height, 0, same.Format, same.NumChannels, 0};
  uint64_t bytes = extent(&flat);
  if (!vc_memory_begin(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult r = VC_CALL(cuArrayCreate_v2)(out, &same);
  return end(r, r == CUDA_SUCCESS ? *out : NULL, bytes);
}

VC_HOOK CUresult cuArrayCreate(CUarray *out, const CUDA_ARRAY_DESCRIPTOR_v1 *d) {
  if (!out || !d) return VC_CALL(cuArrayCreate)(out, d);
  CUDA_ARRAY_DESCRIPTOR_v1 same = *d;
  CUDA_ARRAY3D_DESCRIPTOR flat = {same.Width, same.Height, 0, same.Format, same.NumChannels, 0};
  uint64_t bytes = extent(&flat);
  if (!vc_memory_begin(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult r = VC_CALL(cuArrayCreate)(out, &same);
  return end(r, r == CUDA_SUCCESS ? *out : NULL, bytes);
}

VC_HOOK CUresult cuArray3DCreate_v2(CUarray *out, const CUDA_ARRAY3D_DESCRIPTOR *d) {
  if (!out || !d) return VC_CALL(cuArray3DCreate_v2)(out, d);
  CUDA_ARRAY3D_DESCRIPTOR same = *d;
  uint64_t bytes = backed(same.Flags) ? extent(&same) : 0;
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
  uint64_t bytes = extent(&wide);
  if (!vc_memory_begin(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult r = VC_CALL(cuArray3DCreate)(out, &same);
  return end(r, r == CUDA_SUCCESS ? *out : NULL, bytes);
}

VC_HOOK CUresult cuMipmappedArrayCreate(CUmipmappedArray *out, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels) {
  uint64_t bytes = 0;
  if (!out || !d) return VC_CALL(cuMipmappedArrayCreate)(out, d, levels);
  CUDA_ARRAY3D_DESCRIPTOR same = *d, level = same;
  if (!backed(same.Flags)) return VC_CALL(cuMipmappedArrayCreate)(out, &same, levels);
  /* The driver makes one level at least, and no more than down to a single texel. */
  for (unsigned i = 0; !i || (i < levels && i < 64); i++) {
    uint64_t one = extent(&level);
    bytes = bytes > UINT64_MAX - one ? UINT64_MAX : bytes + one;
    level.Width = or_one(level.Width / 2);
    level.Height = level.Height > 1 ? level.Height / 2 : level.Height;
    /* Layers stay as many as they are. */
    bool layers = same.Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
    level.Depth = level.Depth > 1 && !layers ? level.Depth / 2 : level.Depth;
  }
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
