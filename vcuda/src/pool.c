/* SPDX-License-Identifier: Apache-2.0 */
#include "pool.h"
#include "memory_account.h"
#include "bytes.h"
#include "connection.h"
#include "device.h"
#include "meter.h"
#include "stream.h"

#include <stdlib.h>

#define ASKED_MS 1000
/* cuda.h has names for them since 13: CU_MEMPOOL_ATTR_ALLOCATION_TYPE and CU_MEMPOOL_ATTR_LOCATION_TYPE. */
#define ALLOCATION_TYPE ((CUmemPool_attribute)9)
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

typedef CUresult alloc_from_t(CUdeviceptr *, size_t, CUmemoryPool, CUstream);

/* What the driver says of a pool; 0 once it is gone. */
static bool ask(struct pool *p, CUmemPool_attribute name, cuuint64_t *value) {
  *value = 0;
  atomic_fetch_add(&p->asking, 1);
  CUmemoryPool handle = p->handle;
  CUresult r = handle ? VC_CALL(cuMemPoolGetAttribute)(handle, name, value) : CUDA_SUCCESS;
  atomic_fetch_sub(&p->asking, 1);
  return r == CUDA_SUCCESS;
}

static struct vc_reading look(void *pool) {
  cuuint64_t used, reserved;
  bool ok = ask(pool, CU_MEMPOOL_ATTR_USED_MEM_CURRENT, &used);
  ok &= ask(pool, CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT, &reserved);
  return (struct vc_reading){reserved, used, !ok};
}

static struct pool *find(CUmemoryPool handle) {
  for (struct pool *p = atomic_load(&pools); p; p = p->next)
    if (p->handle == handle) return p;
  return NULL;
}

/* NULL if there is no memory for one more. Drivers before 13 do not say where a pool lies, but on
 * them all others than those that the program made lie on the device. */
static struct pool *find_or_add(CUmemoryPool handle) {
  struct pool *p = find(handle);
  if (p) return p;
  int type = CU_MEM_ALLOCATION_TYPE_PINNED, location = CU_MEM_LOCATION_TYPE_DEVICE;
  bool told = VC_CALL(cuMemPoolGetAttribute)(handle, ALLOCATION_TYPE, &type) == CUDA_SUCCESS &&
              VC_CALL(cuMemPoolGetAttribute)(handle, LOCATION_TYPE, &location) == CUDA_SUCCESS;
  bool on_host = told && vc_on_host((CUmemAllocationType)type, (CUmemLocationType)location);
  vc_lock(&guard);
  p = find(handle);
  if (!p) p = find(NULL);
  if (p && !p->handle) {
    p->on_host = on_host;
    atomic_store(&p->meter.exported, false);
    p->handle = handle;
  }
  if (!p && (p = calloc(1, sizeof *p))) {
    p->on_host = on_host;
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
    struct vc_reading now = look(p);
    if (!now.reserved && !now.failed) {
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

/* ---- plain memory that is freed in stream order: held until the stream has come to that point ---- */

static _Atomic uint32_t freed;
static struct vc_lock freed_guard;

static void free_later(struct vc_item item, CUstream stream) {
  CUevent event = NULL;
  struct vc_around a = vc_stream_enter(item.owner);
  bool over = VC_CALL(cuStreamQuery)(stream) == CUDA_SUCCESS;
  if (!over && VC_CALL(cuEventCreate)(&event, CU_EVENT_DISABLE_TIMING) == CUDA_SUCCESS &&
      VC_CALL(cuEventRecord)(event, stream) != CUDA_SUCCESS) {
    VC_CALL(cuEventDestroy_v2)(event);
    event = NULL;
  }
  vc_stream_leave(a);
  if (over) {
    vc_give_back(&item);
    return;
  }
  /* Without an event the bytes stay charged until the context goes: too much, never too little. */
  item.key = (uint64_t)(uintptr_t)event;
  item.kind = VC_FREED;
  if (vc_table_put(item)) atomic_fetch_add(&freed, 1);
}

/* Take the entry, if its stream has come so far, before the event goes: its handle can be the next one's at once. */
static bool is_over(struct vc_item *item) {
  struct vc_around a = vc_stream_enter(item->owner);
  CUevent event = (CUevent)(uintptr_t)item->key;
  bool over = VC_CALL(cuEventQuery)(event) == CUDA_SUCCESS && vc_table_take(VC_FREED, item->key, item);
  if (over) VC_CALL(cuEventDestroy_v2)(event);
  vc_stream_leave(a);
  return over;
}

static void settle_freed(void) {
  uint32_t count;
  if (!atomic_load_explicit(&freed, memory_order_relaxed)) return;
  vc_lock(&freed_guard);
  struct vc_item *list = vc_table_list(VC_FREED, &count);
  for (uint32_t i = 0; list && i < count; i++)
    if (list[i].key && is_over(&list[i])) {
      atomic_fetch_sub(&freed, 1);
      vc_give_back(&list[i]);
    }
  free(list);
  vc_unlock(&freed_guard);
}

/* Its events are no longer queried; the bytes are given back when it is gone. */
void vc_pools_freeze(CUcontext context) {
  struct vc_item item;
  uint32_t count;
  if (!atomic_load(&freed)) return;
  vc_lock(&freed_guard);
  struct vc_item *list = vc_table_list(VC_FREED, &count);
  for (uint32_t i = 0; list && i < count; i++) {
    if (!list[i].key || list[i].owner != context || !vc_table_take(VC_FREED, list[i].key, &item)) continue;
    item.key = 0;
    vc_table_put(item);
  }
  free(list);
  vc_unlock(&freed_guard);
}

void vc_pools_settle(void) {
  settle_freed();
  for (struct pool *p = atomic_load(&pools); p; p = p->next)
    if (atomic_load(&p->doomed))
      bury(p);
    else if (p->meter.charged)
      settle(p);
}

bool vc_pools_reserve(uint64_t bytes) {
  if (vc_reserve(bytes)) return true;
  vc_pools_settle();
  return vc_reserve(bytes);
}

void vc_pools_reset(void) {
  atomic_store(&guard.word, 0);
  atomic_store(&pools, NULL);
  atomic_store(&doomed, 0);
  atomic_store(&freed, 0);
  atomic_store(&freed_guard.word, 0);
}

static CUresult allocate(CUdeviceptr *out, size_t bytes, CUmemoryPool handle, CUstream stream,
                         alloc_from_t *real) {
  if (!vc_seat_ready()) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!handle || !out || !bytes) return real(out, bytes, handle, stream);
  struct pool *p = find_or_add(handle);
  if (!p || bytes > vc_cap()) return CUDA_ERROR_OUT_OF_MEMORY;
  if (p->doomed) return CUDA_ERROR_INVALID_VALUE;
  if (p->on_host) return real(out, bytes, handle, stream);
  uint64_t request = vc_whole(bytes, 512);
  bool ok = vc_meter_begin(&p->meter, request, look, p);
  if (!ok) {
    vc_pools_settle();
    ok = vc_meter_begin(&p->meter, request, look, p);
  }
  if (!ok) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult r = real(out, bytes, handle, stream);
  vc_meter_end(&p->meter, request, look, p);
  /* Destroyed meanwhile, the handle can be another pool's already, and the memory with it. */
  if (p->handle != handle && (p = find_or_add(handle))) settle(p);
  /* The driver grew the pool by more than the request: with the cap passed, hand it back. */
  if (r == CUDA_SUCCESS && vc_held() > vc_cap()) {
    VC_CALL(cuMemFreeAsync)(*out, stream);
    VC_CALL(cuMemPoolTrimTo)(handle, 0);
    if (p) settle(p);
    r = CUDA_ERROR_OUT_OF_MEMORY;
  }
  return r;
}

/* A captured allocation is a node of a graph; it is charged when the graph runs. Only the driver's word counts: a
 * stream that may not be asked is not captured. */
static bool makes_node(CUstream stream) {
  CUstreamCaptureStatus status = CU_STREAM_CAPTURE_STATUS_NONE;
  return atomic_load(&vc_captures) > 0 && VC_CALL(cuStreamIsCapturing)(stream, &status) == CUDA_SUCCESS &&
         status != CU_STREAM_CAPTURE_STATUS_NONE;
}

/* Another thread may have ended the capture before the driver came to it: then it is memory. */
static CUresult made_node(CUresult r, CUdeviceptr *out, CUmemoryPool handle, CUstream stream) {
  if (r != CUDA_SUCCESS || makes_node(stream)) return r;
  struct pool *p = find_or_add(handle);
  if (p) settle(p);
  if (p && vc_held() <= vc_cap()) return r;
  VC_CALL(cuMemFreeAsync)(*out, stream);
  VC_CALL(cuMemPoolTrimTo)(handle, 0);
  if (p) settle(p);
  return CUDA_ERROR_OUT_OF_MEMORY;
}

/* From the pool that was looked at, for another thread may choose another one meanwhile. */
static CUresult allocate_default(CUdeviceptr *out, size_t bytes, CUstream stream, alloc_from_t *real) {
  CUdevice device;
  CUmemoryPool pool;
  CUresult r = VC_CALL(cuCtxGetDevice)(&device);
  if (r == CUDA_SUCCESS) r = VC_CALL(cuDeviceGetMemPool)(&pool, device);
  if (r != CUDA_SUCCESS) return r;
  if (makes_node(stream)) return made_node(real(out, bytes, pool, stream), out, pool, stream);
  return allocate(out, bytes, pool, stream, real);
}

VC_HOOK CUresult cuMemAllocAsync(CUdeviceptr *out, size_t bytes, CUstream stream) {
  return allocate_default(out, bytes, stream, VC_REAL(cuMemAllocFromPoolAsync));
}

VC_HOOK CUresult cuMemAllocAsync_ptsz(CUdeviceptr *out, size_t bytes, CUstream stream) {
  return allocate_default(out, bytes, vc_per_thread(stream), VC_REAL(cuMemAllocFromPoolAsync_ptsz));
}

VC_HOOK CUresult cuMemAllocFromPoolAsync(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  alloc_from_t *real = VC_REAL(cuMemAllocFromPoolAsync);
  if (makes_node(stream)) return made_node(real(out, bytes, pool, stream), out, pool, stream);
  return allocate(out, bytes, pool, stream, real);
}

VC_HOOK CUresult cuMemAllocFromPoolAsync_ptsz(CUdeviceptr *out, size_t bytes, CUmemoryPool pool, CUstream stream) {
  alloc_from_t *real = VC_REAL(cuMemAllocFromPoolAsync_ptsz);
  CUstream own = vc_per_thread(stream);
  if (makes_node(own)) return made_node(real(out, bytes, pool, stream), out, pool, own);
  return allocate(out, bytes, pool, stream, real);
}

/* A plain allocation may be freed in stream order as well. */
static CUresult free_async(CUdeviceptr address, CUresult (*real)(CUdeviceptr, CUstream),
                           CUstream given, CUstream stream) {
  struct vc_item item;
  bool plain = vc_table_take(VC_PLAIN, address, &item);
  CUresult r = real(address, given);
  if (plain && r != CUDA_SUCCESS) vc_table_put(item);
  if (plain && r == CUDA_SUCCESS) free_later(item, stream);
  if (!plain && atomic_load_explicit(&doomed, memory_order_relaxed)) vc_pools_settle();
  return r;
}

VC_HOOK CUresult cuMemFreeAsync(CUdeviceptr address, CUstream stream) {
  return free_async(address, VC_REAL(cuMemFreeAsync), stream, stream);
}

VC_HOOK CUresult cuMemFreeAsync_ptsz(CUdeviceptr address, CUstream stream) {
  return free_async(address, VC_REAL(cuMemFreeAsync_ptsz), stream, vc_per_thread(stream));
}

/* A pool that knows its maximum keeps to it even if we do not look. Drivers before 12.2 refuse the
 * field. */
VC_HOOK CUresult cuMemPoolCreate(CUmemoryPool *out, const CUmemPoolProps *props) {
  if (!vc_seat_ready()) return CUDA_ERROR_OUT_OF_MEMORY;
  if (!out || !props) return VC_CALL(cuMemPoolCreate)(out, props);
  CUmemPoolProps same = *props, capped = same;
  CUresult r = CUDA_ERROR_INVALID_VALUE;
  if (same.location.type == CU_MEM_LOCATION_TYPE_DEVICE) {
    if (!vc_device_is_ours(same.location.id)) return CUDA_ERROR_INVALID_DEVICE;
    if (!same.maxSize || same.maxSize > vc_cap()) capped.maxSize = vc_cap();
    r = VC_CALL(cuMemPoolCreate)(out, &capped);
  }
  if (r != CUDA_SUCCESS) r = VC_CALL(cuMemPoolCreate)(out, &same);
  /* Noted now, since a driver before 13 does not say where a pool lies, and a pool of its handle may have been known. */
  struct pool *p = r == CUDA_SUCCESS ? find_or_add(*out) : NULL;
  if (p) p->on_host = vc_on_host(same.allocType, same.location.type);
  return r;
}

/* Other processes may hold what it holds when it has been given back here. */
VC_HOOK CUresult cuMemPoolExportToShareableHandle(void *out, CUmemoryPool handle, CUmemAllocationHandleType type,
                                                  unsigned long long flags) {
  CUresult r = VC_CALL(cuMemPoolExportToShareableHandle)(out, handle, type, flags);
  struct pool *p = r == CUDA_SUCCESS ? find_or_add(handle) : NULL;
  if (p) atomic_store(&p->meter.exported, true);
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

VC_HOOK CUresult cuMemPoolDestroy(CUmemoryPool handle) {
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

VC_HOOK CUresult cuMemPoolTrimTo(CUmemoryPool handle, size_t keep) {
  CUresult r = VC_CALL(cuMemPoolTrimTo)(handle, keep);
  vc_pools_settle();
  return r;
}
