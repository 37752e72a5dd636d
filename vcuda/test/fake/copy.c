/* SPDX-License-Identifier: Apache-2.0 */
/* Copies and fills happen at once, after what is queued when the call is a synchronous one. */
#define _GNU_SOURCE
#include "api.h"

#include <string.h>

static CUresult copy(void *to, const void *from, size_t bytes) {
  CUcontext ctx = fk_current();
  if (!ctx) return CUDA_ERROR_INVALID_CONTEXT;
  cuCtxSynchronize();
  memcpy(to, from, bytes);
  return CUDA_SUCCESS;
}

/* An asynchronous copy of pages on which no kernel computes can be done now; its place in the queue stays
 * visible through the stream. */
static CUresult copy_async(void *to, const void *from, size_t bytes, CUstream stream) {
  struct CUstream_st *s = fk_stream(stream);
  if (!s) return CUDA_ERROR_INVALID_CONTEXT;
  if (s->capture) {
    fk_node_add(s->capture, CU_GRAPH_NODE_TYPE_MEMCPY);
    return CUDA_SUCCESS;
  }
  memcpy(to, from, bytes);
  fk_push(s, 0, 0);
  return CUDA_SUCCESS;
}

static CUresult fill(void *to, unsigned value, size_t width, size_t count) {
  if (!fk_current()) return CUDA_ERROR_INVALID_CONTEXT;
  for (size_t i = 0; i < count; i++) memcpy((char *)to + i * width, &value, width);
  return CUDA_SUCCESS;
}

#define P(address) ((void *)(uintptr_t)(address))

FK_RESULT(cuMemcpyHtoD_v2, (CUdeviceptr to, const void *from, size_t n), copy(P(to), from, n))
FK_RESULT(cuMemcpyDtoH_v2, (void *to, CUdeviceptr from, size_t n), copy(to, P(from), n))
FK_RESULT(cuMemcpyDtoD_v2, (CUdeviceptr to, CUdeviceptr from, size_t n), copy(P(to), P(from), n))
FK_RESULT(cuMemcpy, (CUdeviceptr to, CUdeviceptr from, size_t n), copy(P(to), P(from), n))
FK_RESULT(cuMemcpyHtoD_v2_ptds, (CUdeviceptr to, const void *from, size_t n), copy(P(to), from, n))
FK_RESULT(cuMemcpyDtoH_v2_ptds, (void *to, CUdeviceptr from, size_t n), copy(to, P(from), n))
FK_RESULT(cuMemcpyHtoDAsync_v2, (CUdeviceptr to, const void *from, size_t n, CUstream s), copy_async(P(to), from, n, s))
FK_RESULT(cuMemcpyDtoHAsync_v2, (void *to, CUdeviceptr from, size_t n, CUstream s), copy_async(to, P(from), n, s))
FK_RESULT(cuMemcpyDtoDAsync_v2, (CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s),
          copy_async(P(to), P(from), n, s))
FK_RESULT(cuMemcpyAsync, (CUdeviceptr to, CUdeviceptr from, size_t n, CUstream s), copy_async(P(to), P(from), n, s))
FK_RESULT(cuMemcpyHtoDAsync_v2_ptsz, (CUdeviceptr to, const void *from, size_t n, CUstream s),
          copy_async(P(to), from, n, s))
FK_RESULT(cuMemcpyDtoHAsync_v2_ptsz, (void *to, CUdeviceptr from, size_t n, CUstream s), copy_async(to, P(from), n, s))
FK_RESULT(cuMemsetD8_v2, (CUdeviceptr to, unsigned char v, size_t n), fill(P(to), v, 1, n))
FK_RESULT(cuMemsetD16_v2, (CUdeviceptr to, unsigned short v, size_t n), fill(P(to), v, 2, n))
FK_RESULT(cuMemsetD32_v2, (CUdeviceptr to, unsigned v, size_t n), fill(P(to), v, 4, n))
FK_RESULT(cuMemsetD8Async, (CUdeviceptr to, unsigned char v, size_t n, CUstream s), ((void)s, fill(P(to), v, 1, n)))
FK_RESULT(cuMemsetD32Async, (CUdeviceptr to, unsigned v, size_t n, CUstream s), ((void)s, fill(P(to), v, 4, n)))
