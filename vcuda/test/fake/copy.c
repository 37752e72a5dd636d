/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Copies and fills take no time, but have their place in their stream, the synchronous ones in a default stream. The
 * bytes move at once, because no kernel computes. Who waits for whom is as NVIDIA's "API synchronization behavior"
 * says; where that says "may", the host waits.
 */
#define _GNU_SOURCE
#include "api.h"

#include <string.h>

static bool on_host(enum fk_place_kind kind) {
  return kind == FK_PAGEABLE || kind == FK_PINNED;
}

/* Within the device's memory nothing waits; from host to host, and with managed memory, the host always does. Pageable
 * memory is copied by way of the driver's own buffer. */
static bool host_waits(const void *to, const void *from, bool async) {
  enum fk_place_kind a = fk_place_kind(to), b = fk_place_kind(from);
  if (a == FK_MANAGED || b == FK_MANAGED || (on_host(a) && on_host(b))) return true;
  if (a == FK_DEVICE && b == FK_DEVICE) return false;
  return !async || a == FK_PAGEABLE || b == FK_PAGEABLE;
}

static CUresult place(struct CUstream_st *s, bool waits) {
  fk_push(s, 0, 0);
  if (waits) fk_drain(s);
  return CUDA_SUCCESS;
}

/* The synchronous forms are forbidden while a stream is under a global capture. */
static CUresult copy(void *to, const void *from, size_t bytes, bool own) {
  struct CUstream_st *s = fk_stream_of(NULL, own);
  if (!s) return CUDA_ERROR_INVALID_CONTEXT;
  if (fk_unsafe()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  CUresult r = place(s, host_waits(to, from, false));
  memcpy(to, from, bytes);
  return r;
}

static CUresult copy_async(void *to, const void *from, size_t bytes, CUstream stream, bool own) {
  struct CUstream_st *s = fk_stream_of(stream, own);
  if (!s) return CUDA_ERROR_INVALID_CONTEXT;
  if (s->capture) {
    fk_node_add(s->capture, CU_GRAPH_NODE_TYPE_MEMCPY);
    return CUDA_SUCCESS;
  }
  CUresult r = place(s, host_waits(to, from, true));
  memcpy(to, from, bytes);
  return r;
}

static void set(void *to, unsigned value, size_t width, size_t count) {
  for (size_t i = 0; i < count; i++) memcpy((char *)to + i * width, &value, width);
}

/* The host waits for a fill of memory that it can reach itself. */
static CUresult fill(void *to, unsigned value, size_t width, size_t count, bool own) {
  struct CUstream_st *s = fk_stream_of(NULL, own);
  if (!s) return CUDA_ERROR_INVALID_CONTEXT;
  if (fk_unsafe()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  CUresult r = place(s, fk_place_kind(to) != FK_DEVICE);
  set(to, value, width, count);
  return r;
}

static CUresult fill_async(void *to, unsigned value, size_t width, size_t count, CUstream stream, bool own) {
  struct CUstream_st *s = fk_stream_of(stream, own);
  if (!s) return CUDA_ERROR_INVALID_CONTEXT;
  if (s->capture) {
    fk_node_add(s->capture, CU_GRAPH_NODE_TYPE_MEMSET);
    return CUDA_SUCCESS;
  }
  set(to, value, width, count);
  return place(s, false);
}

#define P(address) ((void *)(uintptr_t)(address))
#define PTR CUdeviceptr
#define HOST const void *

FK_RESULT(cuMemcpyHtoD_v2, (PTR to, HOST from, size_t n), copy(P(to), from, n, false))
FK_RESULT(cuMemcpyHtoD_v2_ptds, (PTR to, HOST from, size_t n), copy(P(to), from, n, true))
FK_RESULT(cuMemcpyHtoDAsync_v2, (PTR to, HOST from, size_t n, CUstream s), copy_async(P(to), from, n, s, false))
FK_RESULT(cuMemcpyHtoDAsync_v2_ptsz, (PTR to, HOST from, size_t n, CUstream s), copy_async(P(to), from, n, s, true))
FK_RESULT(cuMemcpyDtoH_v2, (void *to, PTR from, size_t n), copy(to, P(from), n, false))
FK_RESULT(cuMemcpyDtoH_v2_ptds, (void *to, PTR from, size_t n), copy(to, P(from), n, true))
FK_RESULT(cuMemcpyDtoHAsync_v2, (void *to, PTR from, size_t n, CUstream s), copy_async(to, P(from), n, s, false))
FK_RESULT(cuMemcpyDtoHAsync_v2_ptsz, (void *to, PTR from, size_t n, CUstream s), copy_async(to, P(from), n, s, true))
FK_RESULT(cuMemcpyDtoD_v2, (PTR to, PTR from, size_t n), copy(P(to), P(from), n, false))
FK_RESULT(cuMemcpyDtoD_v2_ptds, (PTR to, PTR from, size_t n), copy(P(to), P(from), n, true))
FK_RESULT(cuMemcpyDtoDAsync_v2, (PTR to, PTR from, size_t n, CUstream s), copy_async(P(to), P(from), n, s, false))
FK_RESULT(cuMemcpyDtoDAsync_v2_ptsz, (PTR to, PTR from, size_t n, CUstream s), copy_async(P(to), P(from), n, s, true))
FK_RESULT(cuMemcpy, (PTR to, PTR from, size_t n), copy(P(to), P(from), n, false))
FK_RESULT(cuMemcpy_ptds, (PTR to, PTR from, size_t n), copy(P(to), P(from), n, true))
FK_RESULT(cuMemcpyAsync, (PTR to, PTR from, size_t n, CUstream s), copy_async(P(to), P(from), n, s, false))
FK_RESULT(cuMemcpyAsync_ptsz, (PTR to, PTR from, size_t n, CUstream s), copy_async(P(to), P(from), n, s, true))
FK_RESULT(cuMemsetD8_v2, (PTR to, unsigned char v, size_t n), fill(P(to), v, 1, n, false))
FK_RESULT(cuMemsetD8_v2_ptds, (PTR to, unsigned char v, size_t n), fill(P(to), v, 1, n, true))
FK_RESULT(cuMemsetD8Async, (PTR to, unsigned char v, size_t n, CUstream s), fill_async(P(to), v, 1, n, s, false))
FK_RESULT(cuMemsetD8Async_ptsz, (PTR to, unsigned char v, size_t n, CUstream s), fill_async(P(to), v, 1, n, s, true))
FK_RESULT(cuMemsetD16_v2, (PTR to, unsigned short v, size_t n), fill(P(to), v, 2, n, false))
FK_RESULT(cuMemsetD16_v2_ptds, (PTR to, unsigned short v, size_t n), fill(P(to), v, 2, n, true))
FK_RESULT(cuMemsetD16Async, (PTR to, unsigned short v, size_t n, CUstream s), fill_async(P(to), v, 2, n, s, false))
FK_RESULT(cuMemsetD16Async_ptsz, (PTR to, unsigned short v, size_t n, CUstream s), fill_async(P(to), v, 2, n, s, true))
FK_RESULT(cuMemsetD32_v2, (PTR to, unsigned v, size_t n), fill(P(to), v, 4, n, false))
FK_RESULT(cuMemsetD32_v2_ptds, (PTR to, unsigned v, size_t n), fill(P(to), v, 4, n, true))
FK_RESULT(cuMemsetD32Async, (PTR to, unsigned v, size_t n, CUstream s), fill_async(P(to), v, 4, n, s, false))
FK_RESULT(cuMemsetD32Async_ptsz, (PTR to, unsigned v, size_t n, CUstream s), fill_async(P(to), v, 4, n, s, true))
