/* SPDX-License-Identifier: Apache-2.0 */
#include "pool.h"
#include "memory_account.h"
#include "connection.h"
#include "hook.h"
#include "meter.h"
#include "stream.h"

#include <stdlib.h>

#define ASKED_MS 1000
/* cuda.h has a name for it since 13: CU_MEMPOOL_ATTR_LOCATION_TYPE. */
#define LOCATION_TYPE ((CUmemPool_attribute)12)

struct pool {
  struct pool *next;
  _Atomic(CUmemoryPool) handle; /* NULL: this place can be taken again */
  struct vc_meter meter;
  _Atomic bool on_host;
  _Atomic bool doomed; /* destroyed by the program, but still in use */
  struct vc_lock burial;
  _Atomic uint32_t asking; /* threads that ask the driver about it just now */
};

/* Places are never freed, so that the list can be read without a lock. */
static struct pool *_Atomic pools;
static struct vc_lock guard;
static _Atomic uint32_t doomed;

typedef CUresult alloc_t(CUdeviceptr *, size_t, CUstream);
typedef CUresult alloc_from_t(CUdeviceptr *, size_t, CUmemoryPool, CUstream);

/* What the driver says of a pool; 0 once it is gone. */
static uint64_t ask(struct pool *p, CUmemPool_attribute name) {
  cuuint64_t value = 0;
  atomic_fetch_add(&p->asking, 1);
  CUmemoryPool handle = p->handle;
  if (handle) VC_CALL(cuMemPoolGetAttribute)(handle, name, &value);
  atomic_fetch_sub(&p->asking, 1);
  return value;
}

static struct vc_reading look(void *pool) {
  uint64_t used = ask(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT);
  return (struct vc_reading){ask(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT), used};
}

static bool lies_on_host(CUmemLocationType type) {
  return type == CU_MEM_LOCATION_TYPE_HOST || type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
         type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
}

static struct pool *find(CUmemoryPool handle) {
  for (struct pool *p = atomic_load(&pools); p; p = p->next)
    if (p->handle == handle) return p;
  return NULL;
}

/* NULL when there is no memory for a place. Drivers before 13 do not say where a pool lies, but on
 * them all others than those that the program made lie on the device. */
static struct pool *find_or_add(CUmemoryPool handle) {
  struct pool *p = find(handle);
  if (p) return p;
  int type = CU_MEM_LOCATION_TYPE_DEVICE;
  if (VC_CALL(cuMemPoolGetAttribute)(handle, LOCATION_TYPE, &type) != CUDA_SUCCESS)
    type = CU_MEM_LOCATION_TYPE_DEVICE;
  vc_lock(&guard);
  p = find(handle);
  if (!p) p = find(NULL);
  if (p && !p->handle) {
    p->on_host = lies_on_host((CUmemLocationType)type);
    p->handle = handle;
  }
  if (!p && (p = calloc(1, sizeof *p))) {
    p->on_host = lies_on_host((CUmemLocationType)type);
    p->handle = handle;
    p->next = atomic_load(&pools);
    atomic_store(&pools, p);
  }
  vc_unlock(&guard);
  return p;
}

/* A place that is free again is looked at too: what is still charged there belongs to no pool. */
static void settle(struct pool *p) {
  if (!p->on_host) vc_meter_settle(&p->meter, look, p);
}

/* A pool that the program destroyed in use is kept in the driver's hands until its last byte is
 * free, for as long as it is there it can be asked what it holds. If another thread is at it, wait:
 * it may have asked before our caller gave back the bytes that the next request needs. */
static void bury(struct pool *p) {
  vc_lock(&p->burial);
  CUmemoryPool handle = p->handle;
  if (atomic_load(&p->doomed)) {
    VC_CALL(cuMemPoolTrimTo)(handle, 0);
    settle(p);
    if (!look(p).reserved) {
      /* The place first: the handle can be a new pool's at once. */
      atomic_store(&p->doomed, false);
      p->handle = NULL;
      for (int i = 0; i < ASKED_MS && atomic_load(&p->asking); i++) vc_machine_sleep(VC_MS);
      VC_CALL(cuMemPoolDestroy)(handle);
      atomic_fetch_sub(&doomed, 1);
    }
  }
  vc_unlock(&p->burial);
}

void vc_pools_settle(void) {
  for (struct pool *p = atomic_load(&pools); p; p = p->next)
    if (atomic_load(&p->doomed))
      bury(p);
    else if (p->meter.charged)
      settle(p);
}

void vc_pools_reset(void) {
  atomic_store(&guard.word, 0);
  atomic_store(&pools, NULL);
  atomic_store(&doomed, 0);
}

static uint64_t rounded(uint64_t bytes) {
  return bytes > UINT64_MAX - 511 ? UINT64_MAX : (bytes + 511) / 512 * 512;
}

static CUresult allocate(CUdeviceptr *out, size_t bytes, CUmemoryPool handle, CUstream stream,
                         alloc_from_t *real) {
  if (!vc_seat_ready()) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!handle || !out || !bytes) return real(out, bytes, handle, stream);
  struct pool *p = find_or_add(handle);
  if (!p || bytes > vc_cap()) return CUDA_ERROR_OUT_OF_MEMORY;
  if (p->doomed) return CUDA_ERROR_INVALID_VALUE;
  if (p->on_host) return real(out, bytes, handle, stream);
  uint64_t request = rounded(bytes);
  bool ok = vc_meter_begin(&p->meter, request, look, p);
  if (!ok) {
    vc_pools_settle();
    ok = vc_meter_begin(&p->meter, request, look, p);
  }
  if (!ok) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult r = real(out, bytes, handle, stream);
  vc_meter_end(&p->meter, request, look, p);
  /* The driver grew the pool by more than the request: with the cap passed, hand it back. */
  if (r == CUDA_SUCCESS && vc_held() > vc_cap()) {
    VC_CALL(cuMemFreeAsync)(*out, stream);
    VC_CALL(cuMemPoolTrimTo)(handle, 0);
    settle(p);
    r = CUDA_ERROR_OUT_OF_MEMORY;
  }
  return r;
}

static CUresult allocate_default(CUdeviceptr *out, size_t bytes, CUstream stream, alloc_t *real,
                                 alloc_from_t *real_from) {
  CUdevice device;
  CUmemoryPool pool;
  /* A captured allocation is a node of a graph; it is charged when the graph runs. */
  if (vc_stream_capturing(stream)) return real(out, bytes, stream);
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
  if (vc_stream_capturing(stream)) return real(out, bytes, pool, stream);
  return allocate(out, bytes, pool, stream, real);
}

VC_HOOK(cuMemAllocFromPoolAsync_ptsz,
        (CUdeviceptr * out, size_t bytes, CUmemoryPool pool, CUstream stream)) {
  alloc_from_t *real = VC_REAL(cuMemAllocFromPoolAsync_ptsz);
  if (vc_stream_capturing(vc_per_thread(stream))) return real(out, bytes, pool, stream);
  return allocate(out, bytes, pool, stream, real);
}

/* A plain allocation may be freed in stream order as well. */
static CUresult free_async(CUdeviceptr address, CUresult (*real)(CUdeviceptr, CUstream),
                           CUstream stream) {
  struct vc_item item;
  bool plain = vc_table_take(VC_PLAIN, address, &item);
  CUresult r = real(address, stream);
  if (plain && r != CUDA_SUCCESS) vc_table_put(item);
  if (plain && r == CUDA_SUCCESS) vc_give_back(&item);
  if (!plain && atomic_load_explicit(&doomed, memory_order_relaxed)) vc_pools_settle();
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
  CUresult r = CUDA_ERROR_INVALID_VALUE;
  if (out && props && props->location.type == CU_MEM_LOCATION_TYPE_DEVICE &&
      (!props->maxSize || props->maxSize > vc_cap())) {
    CUmemPoolProps capped = *props;
    capped.maxSize = vc_cap();
    r = VC_CALL(cuMemPoolCreate)(out, &capped);
  }
  if (r != CUDA_SUCCESS) r = VC_CALL(cuMemPoolCreate)(out, props);
  if (r == CUDA_SUCCESS && lies_on_host(props->location.type)) {
    struct pool *p = find_or_add(*out);
    if (p) p->on_host = true;
  }
  return r;
}

/* The device must not go on allocating from it. */
static void put_out_of_use(CUmemoryPool handle) {
  int count = 0;
  CUmemoryPool pool;
  VC_CALL(cuDeviceGetCount)(&count);
  for (CUdevice i = 0; i < count; i++)
    if (VC_CALL(cuDeviceGetMemPool)(&pool, i) == CUDA_SUCCESS && pool == handle &&
        VC_CALL(cuDeviceGetDefaultMemPool)(&pool, i) == CUDA_SUCCESS)
      VC_CALL(cuDeviceSetMemPool)(i, pool);
}

static bool the_drivers_own(CUmemoryPool handle) {
  int count = 0;
  CUmemoryPool pool;
  VC_CALL(cuDeviceGetCount)(&count);
  for (CUdevice i = 0; i < count; i++)
    if (VC_CALL(cuDeviceGetDefaultMemPool)(&pool, i) == CUDA_SUCCESS && pool == handle) return true;
  return false;
}

VC_HOOK(cuMemPoolDestroy, (CUmemoryPool handle)) {
  struct pool *p = handle ? find(handle) : NULL;
  if (!p || p->on_host || the_drivers_own(handle)) {
    CUresult r = VC_CALL(cuMemPoolDestroy)(handle);
    if (p && r == CUDA_SUCCESS) p->handle = NULL;
    return r;
  }
  if (atomic_exchange(&p->doomed, true)) return CUDA_ERROR_INVALID_VALUE;
  atomic_fetch_add(&doomed, 1);
  put_out_of_use(handle);
  bury(p);
  return CUDA_SUCCESS;
}

VC_HOOK(cuMemPoolTrimTo, (CUmemoryPool handle, size_t keep)) {
  CUresult r = VC_CALL(cuMemPoolTrimTo)(handle, keep);
  vc_pools_settle();
  return r;
}
