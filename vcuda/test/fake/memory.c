/* SPDX-License-Identifier: Apache-2.0 */
/* Device memory. A device address is a host address of pages that are never touched unless the
 * program copies to them, so a terabyte costs nothing. */
#define _GNU_SOURCE
#include "api.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct block {
  struct block *next;
  CUcontext ctx;
  unsigned life;
  CUdeviceptr address;
  uint64_t bytes;
  bool host;
  CUmemoryPool pool;
  struct fk_place until; /* freed in stream order: held until then */
};

struct CUmemPoolHandle_st {
  CUcontext ctx; /* its memory is counted to this one, while it lives */
  unsigned life;
  uint64_t used, reserved, threshold, maximum;
  bool on_host, destroyed; /* destroyed, it lives on until its last free */
  bool managed;            /* its memory moves to its user, wherever it is at first */
};

static struct block *blocks;
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;
static struct CUmemPoolHandle_st default_pool[FK_DEVICES];
static CUmemoryPool current_pool[FK_DEVICES]; /* NULL: the default one */

/* A child of a fork inherits a lock that another thread held. */
static void after_fork(void) {
  pthread_mutex_init(&guard, NULL);
}
__attribute__((constructor)) static void watch_forks(void) {
  pthread_atfork(NULL, NULL, after_fork);
}

void *fk_map(uint64_t bytes) {
  void *p = mmap(NULL, fk_up(bytes, 4096), PROT_READ | PROT_WRITE,
                 MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? NULL : p;
}

void fk_unmap(void *address, uint64_t bytes) {
  munmap(address, fk_up(bytes, 4096));
}

static void remember(struct block *b) {
  pthread_mutex_lock(&guard);
  b->next = blocks;
  blocks = b;
  pthread_mutex_unlock(&guard);
}

static struct block *take(CUdeviceptr address) {
  pthread_mutex_lock(&guard);
  struct block **p = &blocks;
  while (*p && (*p)->address != address) p = &(*p)->next;
  struct block *b = *p;
  if (b) *p = b->next;
  pthread_mutex_unlock(&guard);
  return b;
}

static struct block *find(CUdeviceptr address) {
  pthread_mutex_lock(&guard);
  struct block *b = blocks;
  while (b && (address < b->address || address >= b->address + b->bytes)) b = b->next;
  pthread_mutex_unlock(&guard);
  return b;
}

static void pool_free(CUmemoryPool pool, uint64_t bytes);

static bool has_home(CUmemoryPool pool) {
  return pool->ctx && !pool->ctx->dead && pool->ctx->life == pool->life;
}

/* With the lock held. */
static void shrink(CUmemoryPool pool, uint64_t keep) {
  if (keep >= pool->reserved) return;
  uint64_t want = fk_up(pool->used > keep ? pool->used : keep, VC_GRANULE);
  if (want >= pool->reserved) return;
  if (!pool->on_host && has_home(pool)) fk_mem_give(pool->ctx->gpu, pool->ctx->queue, pool->reserved - want);
  pool->reserved = want;
}

/* With the lock held: what other contexts still use of a context's memory that is gone is counted to the next user. */
static bool find_home(CUmemoryPool pool, CUcontext ctx) {
  if (pool->on_host) return true;
  if (has_home(pool) && pool->reserved) return true;
  if (ctx->dead || (pool->reserved && !fk_mem_take(ctx->gpu, ctx->queue, pool->reserved))) return false;
  pool->ctx = ctx;
  pool->life = ctx->life;
  return true;
}

static void release(struct block *b) {
  if (b->pool) {
    pool_free(b->pool, b->bytes);
  } else if (!b->host) {
    fk_give(b->ctx, b->bytes, b->life);
  }
  fk_unmap((void *)b->address, b->bytes);
  free(b);
}

static CUresult allocate(CUdeviceptr *out, uint64_t bytes) {
  CUcontext ctx = fk_current();
  fk_blocks_settle();
  if (!ctx) return CUDA_ERROR_INVALID_CONTEXT;
  if (!bytes || !out) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > 1ull << 46) return CUDA_ERROR_OUT_OF_MEMORY;
  struct block *b = calloc(1, sizeof *b);
  b->ctx = ctx;
  b->bytes = bytes;
  if (!fk_take(ctx, bytes, &b->life)) {
    free(b);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  b->address = (CUdeviceptr)fk_map(bytes);
  *out = b->address;
  remember(b);
  return CUDA_SUCCESS;
}

/* A context's end frees its memory. */
void fk_forget(CUcontext ctx) {
  for (;;) {
    struct block *b = NULL;
    pthread_mutex_lock(&guard);
    for (struct block **p = &blocks; *p; p = &(*p)->next)
      if ((*p)->ctx == ctx && !(*p)->host) {
        b = *p;
        *p = b->next;
        break;
      }
    pthread_mutex_unlock(&guard);
    if (!b) break;
    release(b);
  }
  fk_lock();
  if (default_pool[ctx->gpu].ctx == ctx) shrink(&default_pool[ctx->gpu], 0);
  fk_unlock();
}

FK_API(cuMemAlloc_v2, (CUdeviceptr * out, size_t bytes)) {
  FK_ENTER("cuMemAlloc_v2");
  return allocate(out, bytes);
}

FK_API(cuMemAlloc, (CUdeviceptr_v1 * out, unsigned bytes)) {
  CUdeviceptr wide = 0;
  FK_ENTER("cuMemAlloc");
  CUresult r = allocate(&wide, bytes);
  *out = (CUdeviceptr_v1)wide; /* as on a real 64-bit driver, of little use */
  return r;
}

FK_API(cuMemAllocPitch_v2,
       (CUdeviceptr * out, size_t *pitch, size_t width, size_t height, unsigned element)) {
  FK_ENTER("cuMemAllocPitch_v2");
  if (!out || !pitch || (element != 4 && element != 8 && element != 16))
    return CUDA_ERROR_INVALID_VALUE;
  *pitch = fk_up(width, 512);
  return allocate(out, *pitch * height);
}

FK_API(cuMemAllocManaged, (CUdeviceptr * out, size_t bytes, unsigned flags)) {
  FK_ENTER("cuMemAllocManaged");
  (void)flags;
  return allocate(out, bytes);
}

FK_API(cuMemFree_v2, (CUdeviceptr address)) {
  FK_ENTER("cuMemFree_v2");
  if (!address) return CUDA_SUCCESS;
  struct block *b = take(address);
  if (!b) return CUDA_ERROR_INVALID_VALUE;
  release(b);
  return CUDA_SUCCESS;
}
FK_RESULT(cuMemFree, (CUdeviceptr_v1 address), cuMemFree_v2(address))

FK_API(cuMemGetInfo_v2, (size_t * spare, size_t *total)) {
  CUcontext ctx = fk_current();
  if (!ctx) return CUDA_ERROR_INVALID_CONTEXT;
  struct fk_gpu *g = &fk_world()->gpu[ctx->gpu];
  if (total) *total = g->mem_total;
  if (spare) *spare = g->mem_total - g->mem_used;
  return CUDA_SUCCESS;
}

FK_API(cuMemGetInfo, (unsigned *spare, unsigned *total)) {
  size_t s = 0, t = 0;
  CUresult r = cuMemGetInfo_v2(&s, &t);
  *spare = s > UINT32_MAX ? UINT32_MAX : (unsigned)s;
  *total = t > UINT32_MAX ? UINT32_MAX : (unsigned)t;
  return r;
}

FK_API(cuMemGetAddressRange_v2, (CUdeviceptr * base, size_t *size, CUdeviceptr address)) {
  struct block *b = find(address);
  if (!b) return CUDA_ERROR_NOT_FOUND;
  if (base) *base = b->address;
  if (size) *size = b->bytes;
  return CUDA_SUCCESS;
}

static CUresult host_alloc(void **out, size_t bytes) {
  struct block *b = calloc(1, sizeof *b);
  b->bytes = bytes;
  b->host = true;
  *out = fk_map(bytes);
  b->address = (CUdeviceptr)*out;
  remember(b);
  return CUDA_SUCCESS;
}

FK_API(cuMemHostAlloc, (void **out, size_t bytes, unsigned flags)) {
  FK_LATE;
  (void)flags;
  return host_alloc(out, bytes);
}
FK_API(cuMemAllocHost_v2, (void **out, size_t bytes)) {
  FK_LATE;
  return host_alloc(out, bytes);
}
FK_RESULT(cuMemFreeHost, (void *p), cuMemFree_v2((CUdeviceptr)p))
FK_RESULT(cuMemHostRegister_v2, (void *p, size_t bytes, unsigned flags),
          ((void)p, (void)bytes, (void)flags, CUDA_SUCCESS))
FK_RESULT(cuMemHostUnregister, (void *p), ((void)p, CUDA_SUCCESS))
FK_API(cuMemHostGetDevicePointer_v2, (CUdeviceptr * out, void *p, unsigned flags)) {
  (void)flags;
  *out = (CUdeviceptr)p;
  return CUDA_SUCCESS;
}

FK_API(cuPointerGetAttribute, (void *out, CUpointer_attribute attribute, CUdeviceptr address)) {
  struct block *b = find(address);
  if (!b) return CUDA_ERROR_INVALID_VALUE;
  switch (attribute) {
  case CU_POINTER_ATTRIBUTE_CONTEXT:
    *(CUcontext *)out = b->ctx;
    break;
  case CU_POINTER_ATTRIBUTE_MEMORY_TYPE:
    *(unsigned *)out = b->host ? CU_MEMORYTYPE_HOST : CU_MEMORYTYPE_DEVICE;
    break;
  case CU_POINTER_ATTRIBUTE_DEVICE_POINTER:
  case CU_POINTER_ATTRIBUTE_HOST_POINTER:
    *(CUdeviceptr *)out = address;
    break;
  case CU_POINTER_ATTRIBUTE_IS_MANAGED:
    *(unsigned *)out = 0;
    break;
  default:
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

/* The handle of another process's memory names a size; the pages are the opener's own. */
struct handle {
  uint64_t pid, address, bytes;
};

FK_API(cuIpcGetMemHandle, (CUipcMemHandle * out, CUdeviceptr address)) {
  FK_LATE;
  struct block *b = find(address);
  if (!b) return CUDA_ERROR_INVALID_VALUE;
  struct handle h = {(uint64_t)getpid(), address, b->bytes};
  memset(out, 0, sizeof *out);
  memcpy(out, &h, sizeof h);
  return CUDA_SUCCESS;
}

FK_API(cuIpcOpenMemHandle_v2, (CUdeviceptr * out, CUipcMemHandle in, unsigned flags)) {
  FK_LATE;
  struct handle h;
  (void)flags;
  memcpy(&h, &in, sizeof h);
  return host_alloc((void **)out, h.bytes);
}
FK_RESULT(cuIpcCloseMemHandle, (CUdeviceptr address), cuMemFree_v2(address))

/* ---- pools ---- */

static bool standard(CUmemoryPool pool) {
  return pool >= default_pool && pool < default_pool + FK_DEVICES;
}

/* With the lock held. */
static void drop_if_over(CUmemoryPool pool) {
  if (!pool->destroyed || pool->used) return;
  shrink(pool, 0);
  fk_gone(pool, sizeof *pool);
}

static void pool_free(CUmemoryPool pool, uint64_t bytes) {
  fk_lock();
  pool->used -= fk_up(bytes, 512);
  drop_if_over(pool);
  fk_unlock();
}

/* A synchronisation hands back what a pool keeps above its threshold. */
void fk_pools_settle(int gpu) {
  if (default_pool[gpu].reserved) shrink(&default_pool[gpu], default_pool[gpu].threshold);
}

static CUresult pool_alloc(CUdeviceptr *out, size_t bytes, CUmemoryPool pool) {
  CUcontext ctx = fk_current();
  if (!ctx) return CUDA_ERROR_INVALID_CONTEXT;
  if (!pool || !out) return CUDA_ERROR_INVALID_VALUE;
  if (!bytes || bytes > 1ull << 46)
    return bytes ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
  fk_lock();
  uint64_t want = pool->used + fk_up(bytes, 512);
  uint64_t grow = want > pool->reserved ? fk_up(want - pool->reserved, VC_GRANULE) : 0;
  bool ok = find_home(pool, ctx) && !(pool->maximum && pool->reserved + grow > pool->maximum) &&
            (!grow || pool->on_host || fk_mem_take(pool->ctx->gpu, pool->ctx->queue, grow));
  if (ok) {
    pool->used = want;
    pool->reserved += grow;
  }
  fk_unlock();
  if (!ok) return CUDA_ERROR_OUT_OF_MEMORY;
  struct block *b = calloc(1, sizeof *b);
  b->ctx = ctx;
  b->bytes = bytes;
  b->pool = pool;
  b->address = (CUdeviceptr)fk_map(bytes);
  *out = b->address;
  remember(b);
  return CUDA_SUCCESS;
}

FK_API(cuMemAllocFromPoolAsync,
       (CUdeviceptr * out, size_t bytes, CUmemoryPool pool, CUstream stream)) {
  FK_ENTER("cuMemAllocFromPoolAsync");
  struct CUstream_st *s = fk_stream(stream);
  if (s && fk_capture_hold(s)) {
    CUresult r = fk_graph_alloc(NULL, s->capture, bytes, out);
    fk_capture_let_go();
    return r;
  }
  return pool_alloc(out, bytes, pool);
}
FK_RESULT(cuMemAllocFromPoolAsync_ptsz, (CUdeviceptr * out, size_t bytes, CUmemoryPool pool, CUstream stream),
          cuMemAllocFromPoolAsync(out, bytes, pool, stream))

FK_API(cuMemAllocAsync, (CUdeviceptr * out, size_t bytes, CUstream stream)) {
  FK_ENTER("cuMemAllocAsync");
  CUcontext ctx = fk_current();
  if (!ctx) return CUDA_ERROR_INVALID_CONTEXT;
  CUmemoryPool pool = current_pool[ctx->gpu];
  return cuMemAllocFromPoolAsync(out, bytes, pool ? pool : &default_pool[ctx->gpu], stream);
}
FK_RESULT(cuMemAllocAsync_ptsz, (CUdeviceptr * out, size_t bytes, CUstream stream), cuMemAllocAsync(out, bytes, stream))

/* Plain memory is held until its stream has come to this point; a pool keeps what is freed for the next request. */
static struct block *freed;

void fk_blocks_settle(void) {
  pthread_mutex_lock(&guard);
  for (struct block **p = &freed; *p;) {
    struct block *b = *p;
    fk_lock();
    bool over = b->ctx->dead || b->ctx->life != b->life || fk_finished(b->ctx->gpu, b->until);
    fk_unlock();
    if (!over) {
      p = &b->next;
      continue;
    }
    *p = b->next;
    release(b);
  }
  pthread_mutex_unlock(&guard);
}

static CUresult free_async(CUdeviceptr address, CUstream stream, bool own) {
  FK_ENTER("cuMemFreeAsync");
  struct CUstream_st *s = fk_stream_of(stream, own);
  struct block *b = s && !s->capture ? take(address) : NULL;
  if (!b) return CUDA_ERROR_INVALID_VALUE;
  if (b->pool || b->host) {
    release(b);
    return CUDA_SUCCESS;
  }
  fk_push(s, 0, 0);
  fk_lock();
  b->until = fk_last(s->ctx->gpu, s->slot);
  fk_unlock();
  pthread_mutex_lock(&guard);
  b->next = freed;
  freed = b;
  pthread_mutex_unlock(&guard);
  fk_blocks_settle();
  return CUDA_SUCCESS;
}
FK_RESULT(cuMemFreeAsync, (CUdeviceptr address, CUstream stream), free_async(address, stream, false))
FK_RESULT(cuMemFreeAsync_ptsz, (CUdeviceptr address, CUstream stream), free_async(address, stream, true))

FK_API(cuDeviceGetDefaultMemPool, (CUmemoryPool * out, CUdevice device)) {
  CUcontext ctx = fk_current();
  *out = &default_pool[ctx ? ctx->gpu : device];
  return CUDA_SUCCESS;
}
FK_API(cuDeviceGetMemPool, (CUmemoryPool * out, CUdevice device)) {
  CUresult r = cuDeviceGetDefaultMemPool(out, device);
  CUmemoryPool chosen = current_pool[*out - default_pool];
  if (chosen) *out = chosen;
  return r;
}
FK_API(cuDeviceSetMemPool, (CUdevice device, CUmemoryPool pool)) {
  CUmemoryPool its_own;
  CUresult r = cuDeviceGetDefaultMemPool(&its_own, device);
  if (!pool) return CUDA_ERROR_INVALID_VALUE;
  current_pool[its_own - default_pool] = pool == its_own ? NULL : pool;
  return r;
}

FK_API(cuMemPoolCreate, (CUmemoryPool * out, const CUmemPoolProps *props)) {
  FK_ENTER("cuMemPoolCreate");
  if (!out || !props) return CUDA_ERROR_INVALID_VALUE;
  *out = fk_new(sizeof **out);
  (*out)->maximum = props->maxSize;
  (*out)->managed = props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
  (*out)->on_host = props->location.type == CU_MEM_LOCATION_TYPE_HOST ||
                    props->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA ||
                    props->location.type == CU_MEM_LOCATION_TYPE_HOST_NUMA_CURRENT;
  /* Memory on another GPU would be missed in the peak of this one: the limiter is to refuse it before. */
  if ((*out)->managed || fk_bytes(fk_setting("INTEGRATED"), 0)) (*out)->on_host = false;
  return CUDA_SUCCESS;
}

/* What is still in use stays, and the pool with it; a device's default pool cannot be destroyed. */
/* What gives memory back to the kernel may close descriptors, and a thread may be cancelled there. */
FK_API(cuMemPoolDestroy, (CUmemoryPool pool)) {
  FK_ENTER("cuMemPoolDestroy");
  pthread_testcancel();
  if (!pool || standard(pool)) return CUDA_ERROR_INVALID_VALUE;
  fk_lock();
  for (int i = 0; i < FK_DEVICES; i++)
    if (current_pool[i] == pool) current_pool[i] = NULL;
  pool->destroyed = true;
  shrink(pool, 0);
  drop_if_over(pool);
  fk_unlock();
  return CUDA_SUCCESS;
}

FK_API(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep)) {
  FK_LATE;
  pthread_testcancel();
  fk_lock();
  shrink(pool, keep);
  fk_unlock();
  return CUDA_SUCCESS;
}

FK_API(cuMemPoolGetAttribute, (CUmemoryPool pool, CUmemPool_attribute attribute, void *value)) {
  FK_ENTER("cuMemPoolGetAttribute");
  switch (attribute) {
  case CU_MEMPOOL_ATTR_RELEASE_THRESHOLD:
    *(uint64_t *)value = pool->threshold;
    break;
  case CU_MEMPOOL_ATTR_RESERVED_MEM_CURRENT:
    *(uint64_t *)value = pool->reserved;
    break;
  case CU_MEMPOOL_ATTR_USED_MEM_CURRENT:
    *(uint64_t *)value = pool->used;
    break;
  case CU_MEMPOOL_ATTR_ALLOCATION_TYPE:
    *(int *)value = pool->managed ? CU_MEM_ALLOCATION_TYPE_MANAGED : CU_MEM_ALLOCATION_TYPE_PINNED;
    break;
  case CU_MEMPOOL_ATTR_LOCATION_TYPE:
    *(int *)value = pool->on_host || pool->managed ? CU_MEM_LOCATION_TYPE_HOST : CU_MEM_LOCATION_TYPE_DEVICE;
    break;
  default:
    *(uint64_t *)value = 0;
  }
  return CUDA_SUCCESS;
}

FK_API(cuMemPoolSetAttribute, (CUmemoryPool pool, CUmemPool_attribute attribute, void *value)) {
  if (attribute == CU_MEMPOOL_ATTR_RELEASE_THRESHOLD) pool->threshold = *(uint64_t *)value;
  return CUDA_SUCCESS;
}
