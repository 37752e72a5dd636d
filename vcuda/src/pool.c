/* SPDX-License-Identifier: Apache-2.0 */
#include "pool.h"
#include "account.h"
#include "hook.h"
#include "launch.h"
#include "memory.h"
#include "connection.h"

#define POOLS 64u

struct pool {
  CUmemoryPool handle;
  uint64_t charged;
};

static struct pool pools[POOLS];
static _Atomic uint32_t pool_count;
static struct vc_lock guard;

typedef CUresult alloc_t(CUdeviceptr *, size_t, CUstream);
typedef CUresult alloc_from_t(CUdeviceptr *, size_t, CUmemoryPool, CUstream);

static uint64_t attribute(CUmemoryPool pool, CUmemPool_attribute name) {
  cuuint64_t value = 0;
  VC_CALL(cuMemPoolGetAttribute)(pool, name, &value);
  return value;
}

static struct pool *find(CUmemoryPool handle) {
  struct pool *spare = NULL;
  for (uint32_t i = 0; i < pool_count; i++) {
    if (pools[i].handle == handle) return &pools[i];
    if (!pools[i].handle && !spare) spare = &pools[i];
  }
  if (!spare && pool_count < POOLS) spare = &pools[pool_count++];
  if (spare) *spare = (struct pool){handle, 0};
  return spare;
}

static void settle(struct pool *pool) {
  uint64_t reserved = attribute(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  if (reserved > pool->charged)
    vc_book(reserved - pool->charged);
  else
    vc_unreserve(pool->charged - reserved);
  pool->charged = reserved;
}

static void settle_all(void) {
  for (uint32_t i = 0; i < pool_count; i++)
    if (pools[i].handle && pools[i].charged) settle(&pools[i]);
}

void vc_pools_settle(void) {
  if (!atomic_load(&pool_count)) return;
  vc_lock(&guard);
  settle_all();
  vc_unlock(&guard);
}

void vc_pools_reset(void) {
  atomic_store(&guard.word, 0);
  pool_count = 0;
}

/* The bytes by which this request can make the pool grow, taken from the cap. */
static bool reserve_growth(struct pool *pool, uint64_t bytes) {
  uint64_t reserved = attribute(pool->handle, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT);
  uint64_t used = attribute(pool->handle, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
  uint64_t rounded = (bytes + 511) / 512 * 512;
  uint64_t room = reserved > used ? reserved - used : 0;
  uint64_t growth = rounded <= room ? 0 : vc_granules(rounded - room);
  settle(pool);
  if (growth && !vc_reserve(growth)) {
    settle_all();
    if (!vc_reserve(growth)) return false;
  }
  pool->charged += growth;
  return true;
}

static CUresult allocate(CUdeviceptr *out, size_t bytes, CUmemoryPool handle, CUstream stream,
                         alloc_from_t *real) {
  if (!vc_seat_ready()) return CUDA_ERROR_OUT_OF_MEMORY;
  vc_lock(&guard);
  struct pool *pool = find(handle);
  CUresult r = pool && reserve_growth(pool, bytes) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
  if (r == CUDA_SUCCESS) {
    r = real(out, bytes, handle, stream);
    settle(pool);
    /* The driver grew the pool by more than the request: with the cap passed, hand it back. */
    if (r == CUDA_SUCCESS && vc_held() > vc_cap()) {
      VC_CALL(cuMemFreeAsync)(*out, stream);
      VC_CALL(cuMemPoolTrimTo)(handle, 0);
      settle(pool);
      r = CUDA_ERROR_OUT_OF_MEMORY;
    }
  }
  vc_unlock(&guard);
  return r;
}

static CUresult allocate_default(CUdeviceptr *out, size_t bytes, CUstream stream, alloc_t *real,
                                 alloc_from_t *real_from) {
  CUdevice device;
  CUmemoryPool pool;
  /* A captured allocation is a node of a graph; it is charged when the graph runs. */
  if (vc_launch_capturing(stream)) return real(out, bytes, stream);
  CUresult r = VC_CALL(cuCtxGetDevice)(&device);
  if (r == CUDA_SUCCESS) r = VC_CALL(cuDeviceGetMemPool)(&pool, device);
  return r == CUDA_SUCCESS ? allocate(out, bytes, pool, stream, real_from) : r;
}

VC_HOOK(cuMemAllocAsync, (CUdeviceptr * out, size_t bytes, CUstream stream)) {
  return allocate_default(out, bytes, stream, VC_REAL(cuMemAllocAsync),
                          VC_REAL(cuMemAllocFromPoolAsync));
}

VC_HOOK(cuMemAllocAsync_ptsz, (CUdeviceptr * out, size_t bytes, CUstream stream)) {
  return allocate_default(out, bytes, vc_per_thread(stream), VC_REAL(cuMemAllocAsync_ptsz),
                          VC_REAL(cuMemAllocFromPoolAsync_ptsz));
}

VC_HOOK(cuMemAllocFromPoolAsync,
        (CUdeviceptr * out, size_t bytes, CUmemoryPool pool, CUstream stream)) {
  alloc_from_t *real = VC_REAL(cuMemAllocFromPoolAsync);
  if (vc_launch_capturing(stream)) return real(out, bytes, pool, stream);
  return allocate(out, bytes, pool, stream, real);
}

VC_HOOK(cuMemAllocFromPoolAsync_ptsz,
        (CUdeviceptr * out, size_t bytes, CUmemoryPool pool, CUstream stream)) {
  alloc_from_t *real = VC_REAL(cuMemAllocFromPoolAsync_ptsz);
  if (vc_launch_capturing(vc_per_thread(stream))) return real(out, bytes, pool, stream);
  return allocate(out, bytes, pool, stream, real);
}

/* A plain allocation may be freed in stream order as well. */
static CUresult free_async(CUdeviceptr address, CUresult (*real)(CUdeviceptr, CUstream),
                           CUstream stream) {
  struct vc_item item;
  bool plain = vc_table_take(VC_PLAIN, address, &item);
  CUresult r = real(address, stream);
  if (plain && r != CUDA_SUCCESS) vc_table_put(item);
  if (plain && r == CUDA_SUCCESS) vc_give(item.bytes);
  return r;
}

VC_HOOK(cuMemFreeAsync, (CUdeviceptr address, CUstream stream)) {
  return free_async(address, VC_REAL(cuMemFreeAsync), stream);
}

VC_HOOK(cuMemFreeAsync_ptsz, (CUdeviceptr address, CUstream stream)) {
  return free_async(address, VC_REAL(cuMemFreeAsync_ptsz), stream);
}

/* A pool that knows its maximum keeps it even where we do not look. Drivers before 12.2 refuse the
 * field. */
VC_HOOK(cuMemPoolCreate, (CUmemoryPool * out, const CUmemPoolProps *props)) {
  if (!vc_seat_ready()) return CUDA_ERROR_OUT_OF_MEMORY;
  if (props && !props->maxSize && props->location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    CUmemPoolProps capped = *props;
    capped.maxSize = vc_cap();
    if (VC_CALL(cuMemPoolCreate)(out, &capped) == CUDA_SUCCESS) return CUDA_SUCCESS;
  }
  return VC_CALL(cuMemPoolCreate)(out, props);
}

VC_HOOK(cuMemPoolDestroy, (CUmemoryPool handle)) {
  vc_lock(&guard);
  uint64_t charged = 0;
  for (uint32_t i = 0; i < pool_count; i++)
    if (pools[i].handle == handle) {
      charged = pools[i].charged;
      pools[i] = (struct pool){0};
    }
  CUresult r = VC_CALL(cuMemPoolDestroy)(handle);
  vc_unreserve(charged);
  vc_unlock(&guard);
  return r;
}

VC_HOOK(cuMemPoolTrimTo, (CUmemoryPool handle, size_t keep)) {
  CUresult r = VC_CALL(cuMemPoolTrimTo)(handle, keep);
  vc_pools_settle();
  return r;
}
