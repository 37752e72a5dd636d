/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VC_ARRAY_SIZE_H
#define VC_ARRAY_SIZE_H

#include "hook.h"

/* Return the bytes that an array takes, as it lies in memory, or a mipmap of so many levels; UINT64_MAX if they cannot
 * be counted. */
uint64_t vc_array_size(const CUDA_ARRAY3D_DESCRIPTOR *array, unsigned levels);

#endif
