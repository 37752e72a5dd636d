/* SPDX-License-Identifier: Apache-2.0 */
/* Arithmetic of bytes that does not wrap round: what is too large is UINT64_MAX, which fits nowhere. */
#ifndef VC_BYTES_H
#define VC_BYTES_H

#include "abi.h"

static inline uint64_t vc_plus(uint64_t a, uint64_t b) {
  return a > UINT64_MAX - b ? UINT64_MAX : a + b;
}

static inline uint64_t vc_times(uint64_t a, uint64_t b) {
  return b && a > UINT64_MAX / b ? UINT64_MAX : a * b;
}

/* Round up to whole units. */
static inline uint64_t vc_whole(uint64_t bytes, uint64_t unit) {
  return bytes > UINT64_MAX - unit ? UINT64_MAX : (bytes + unit - 1) / unit * unit;
}

/* Round up to the granules of device memory. */
static inline uint64_t vc_granules(uint64_t bytes) {
  return vc_whole(bytes, VC_GRANULE);
}

#endif
