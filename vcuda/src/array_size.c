/* SPDX-License-Identifier: Apache-2.0 */
/*
 * How arrays lie in memory: format x channels x extent, filled up to whole blocks. The driver tells the size only of
 * arrays that are mapped later, and only newer drivers do. The rule was derived from what one told on an H200, for all
 * of 341 arrays and mipmaps; test/unit/array_size.c has the telling ones.
 */
#include "array_size.h"
#include "bytes.h"

#include <stdbool.h>

#define GOB_WIDTH 64u    /* bytes of a row, in what the hardware calls a GOB */
#define GOB_HEIGHT 8u    /* rows */
#define GOBS_MAX 16u     /* in a block: one above the other or, if the array has a depth, one behind the other */
#define UNIT (32u << 10) /* of 64 arrays of 4 x 4 texels none took more */

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

static uint64_t or_one(uint64_t n) {
  return n ? n : 1;
}

static uint64_t half(uint64_t n) {
  return or_one(n / 2);
}

/* The smallest power of two that holds so many, or the largest allowed. */
static uint64_t block(uint64_t needed, uint64_t least, uint64_t most) {
  while (least < needed && least < most) least *= 2;
  return least;
}

uint64_t vc_array_size(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned levels) {
  unsigned side;
  uint64_t texel = element(array->Format, array->NumChannels, &side), all = 0, first = 0, layers = 1;
  uint64_t width = or_one(array->Width), height = or_one(array->Height), depth = or_one(array->Depth);
  bool deep = array->Depth && !(array->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP));
  if (!deep) layers = depth, depth = 1;
  /* The driver makes one level at least, and no more than down to a single texel. */
  for (unsigned i = 0; !i || i < levels; i++) {
    uint64_t rows = vc_whole(height, side) / side, row = vc_whole(vc_times(vc_whole(width, side) / side, texel), GOB_WIDTH);
    uint64_t high = block(rows, GOB_HEIGHT, deep ? GOB_HEIGHT : GOB_HEIGHT * GOBS_MAX);
    all = vc_plus(all, vc_times(vc_times(row, vc_whole(rows, high)), vc_whole(depth, block(depth, 1, GOBS_MAX))));
    if (!i) first = GOB_WIDTH * high;
    if (width == 1 && height == 1 && depth == 1) break;
    width = half(width), height = half(height), depth = half(depth);
  }
  /* A layer, with all of its levels, is filled up to a whole block of the first. */
  return vc_whole(vc_times(vc_whole(all, first), layers), UNIT);
}
