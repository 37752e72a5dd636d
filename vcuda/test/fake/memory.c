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
  bool registered; /* the program's own pages */
  bool managed;
  CUmemoryPool pool;
  int share;             /* once it was exported, or since it is another process's; else -1 */
  unsigned opened;       /* how often another process's memory was opened; 0: it is our own */
  struct fk_place until; /* freed in stream order: held until then */
};

/* A pool is its device's, and outlives contexts. */
struct CUmemPoolHandle_st {
  uint64_t used, reserved, threshold, maximum;
  bool lives; /* a program may use what it has destroyed, or another thread */
  int gpu; /* -1: on the host */
  bool destroyed; /* it lives on until its last free */
  bool standard;  /* the driver's own: it cannot be destroyed */
  bool foreign;   /* another process's, imported */
  CUmemAllocationType type;
  CUmemLocation location;
  CUmemAllocationHandleType handles;
  int share; /* once it was exported or imported, else -1 */
};

static struct block *blocks;
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;

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

/* With the lock held: what a pool has reserved becomes so many bytes. An exported pool's is counted with its share. */
static bool reserve(CUmemoryPool pool, uint64_t bytes) {
  int queue = pool->gpu < 0 ? -1 : fk_queue_bare(pool->gpu);
  if (pool->gpu >= 0 && bytes > pool->reserved &&
      (queue < 0 || !fk_mem_take(pool->gpu, queue, bytes - pool->reserved)))
    return false;
  if (pool->gpu >= 0 && bytes < pool->reserved) fk_mem_give(pool->gpu, queue, pool->reserved - bytes);
  if (pool->share >= 0) fk_world()->gpu[pool->gpu].share[pool->share].bytes = bytes;
  pool->reserved = bytes;
  return true;
}

/* With the lock held. */
static void shrink(CUmemoryPool pool, uint64_t keep) {
  if (pool->foreign || keep >= pool->reserved) return;
  uint64_t want = fk_up(pool->used > keep ? pool->used : keep, VC_GRANULE);
  if (want < pool->reserved) reserve(pool, want);
}

static void release(struct block *b) {
  if (b->pool) {
    pool_free(b->pool, b->bytes);
  } else if (b->share >= 0) {
    fk_lock();
    if (!b->ctx->dead && b->ctx->life == b->life) fk_share_let_go(b->ctx->gpu, b->share, b->ctx->queue);
    fk_unlock();
  } else if (!b->host) {
    fk_give(b->ctx, b->bytes, b->life);
  }
  if (!b->registered) fk_unmap((void *)b->address, b->bytes);
  free(b);
}

/* What is plain may be in use: to free it is to wait for its context's work. */
static void wait_before(const struct block *b) {
  if (!b->pool && !b->host && !b->ctx->dead && b->ctx->life == b->life) fk_wait_context(b->ctx);
}

enum fk_place_kind fk_place_kind(const void *address) {
  struct block *b = find((CUdeviceptr)address);
  if (!b) return fk_mapped((CUdeviceptr)address) ? FK_DEVICE : FK_PAGEABLE;
  return b->host ? FK_PINNED : b->managed ? FK_MANAGED : FK_DEVICE;
}

static struct block *new_block(CUcontext ctx, uint64_t bytes) {
  struct block *b = calloc(1, sizeof *b);
  *b = (struct block){.ctx = ctx, .bytes = bytes, .share = -1};
  return b;
}

static CUresult allocate(CUdeviceptr *out, uint64_t bytes) {
  CUcontext ctx = fk_current();
  fk_blocks_settle();
  if (!ctx) return CUDA_ERROR_INVALID_CONTEXT;
  if (!bytes || !out) return CUDA_ERROR_INVALID_VALUE;
  if (bytes > 1ull << 46) return CUDA_ERROR_OUT_OF_MEMORY;
  struct block *b = new_block(ctx, bytes);
  if (!fk_take(ctx, bytes, &b->life)) {
    free(b);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  b->address = (CUdeviceptr)fk_map(bytes);
  *out = b->address;
  remember(b);
  fk_order(ctx);
  return CUDA_SUCCESS;
}

/* A context's end frees its memory, but not that of pools. */
void fk_forget(CUcontext ctx) {
  for (;;) {
    struct block *b = NULL;
    pthread_mutex_lock(&guard);
    for (struct block **p = &blocks; *p; p = &(*p)->next)
      if ((*p)->ctx == ctx && !(*p)->pool) {
        b = *p;
        *p = b->next;
        break;
      }
    pthread_mutex_unlock(&guard);
    if (!b) break;
    release(b);
  }
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
  CUresult r = allocate(out, bytes);
  if (r == CUDA_SUCCESS) find(*out)->managed = true;
  return r;
}

FK_API(cuMemFree_v2, (CUdeviceptr address)) {
  FK_ENTER("cuMemFree_v2");
  if (!address) return CUDA_SUCCESS;
  struct block *b = take(address);
  if (!b) return CUDA_ERROR_INVALID_VALUE;
  wait_before(b);
  release(b);
  return CUDA_SUCCESS;
}
FK_RESULT(cuMemFree, (CUdeviceptr_v1 address), cuMemFree_v2(address))

FK_API(cuMemGetInfo_v2, (size_t * spare, size_t *total)) {
  CUcontext ctx = fk_current();
  if (!ctx) return CUDA_ERROR_INVALID_CONTEXT;
  struct fk_gpu *g = &fk_world()->gpu[ctx->gpu];
  if (fk_world()->shares) fk_reap();
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
  struct block *b = new_block(fk_current(), bytes);
  b->host = true;
  *out = fk_map(bytes);
  b->address = (CUdeviceptr)*out;
  remember(b);
  if (b->ctx) fk_order(b->ctx);
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
FK_API(cuMemHostRegister_v2, (void *p, size_t bytes, unsigned flags)) {
  FK_LATE;
  (void)flags;
  if (!p || !bytes) return CUDA_ERROR_INVALID_VALUE;
  if (find((CUdeviceptr)p)) return CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED;
  struct block *b = new_block(fk_current(), bytes);
  b->host = b->registered = true;
  b->address = (CUdeviceptr)p;
  remember(b);
  return CUDA_SUCCESS;
}
FK_API(cuMemHostUnregister, (void *p)) {
  FK_LATE;
  struct block *b = find((CUdeviceptr)p);
  if (!b || !b->registered) return CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED;
  release(take((CUdeviceptr)p));
  return CUDA_SUCCESS;
}
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
    *(unsigned *)out = b->managed;
    break;
  default:
    return CUDA_ERROR_INVALID_VALUE;
  }
  return CUDA_SUCCESS;
}

/* With the guard held: the memory's share, in which other processes can join; small memory, which shares its granule,
 * has none. */
static int share_of(struct block *b) {
  if (b->host || b->pool || b->bytes <= 1 << 20) return -1;
  fk_lock();
  if (b->share < 0) b->share = fk_share_open(b->ctx->gpu, b->ctx->queue, fk_granules(b->bytes));
  fk_unlock();
  return b->share;
}

CUresult fk_block_export(int *out, CUdeviceptr address) {
  struct block *b = find(address);
  if (!b) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&guard);
  int share = share_of(b);
  pthread_mutex_unlock(&guard);
  fk_lock();
  *out = fk_share_export(b->ctx->gpu, share);
  fk_unlock();
  return *out < 0 ? CUDA_ERROR_NOT_SUPPORTED : CUDA_SUCCESS;
}

/* A handle by itself holds nothing; who opens it holds the memory too. The pages are the opener's own. */
struct handle {
  uint64_t pid, address, bytes;
  int gpu, share;
  uint32_t life;
};

FK_API(cuIpcGetMemHandle, (CUipcMemHandle * out, CUdeviceptr address)) {
  FK_LATE;
  struct block *b = find(address);
  if (!b || b->pool || b->host) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&guard);
  struct handle h = {(uint64_t)getpid(), address, b->bytes, b->ctx->gpu, share_of(b), 0};
  pthread_mutex_unlock(&guard);
  if (h.share >= 0) h.life = fk_world()->gpu[h.gpu].share[h.share].life;
  memset(out, 0, sizeof *out);
  memcpy(out, &h, sizeof h);
  return CUDA_SUCCESS;
}

/* With the guard held: what this context has opened already. */
static struct block *opened(CUcontext ctx, int share) {
  struct block *b = blocks;
  while (b && !(b->opened && b->ctx == ctx && b->share == share)) b = b->next;
  return b;
}

FK_API(cuIpcOpenMemHandle_v2, (CUdeviceptr * out, CUipcMemHandle in, unsigned flags)) {
  FK_LATE;
  struct handle h;
  CUcontext ctx = fk_current();
  if (!ctx) return CUDA_ERROR_INVALID_CONTEXT;
  if (!out || flags != CU_IPC_MEM_LAZY_ENABLE_PEER_ACCESS) return CUDA_ERROR_INVALID_VALUE;
  memcpy(&h, &in, sizeof h);
  if (h.pid == (uint64_t)getpid()) return CUDA_ERROR_INVALID_CONTEXT;
  pthread_mutex_lock(&guard);
  struct block *b = h.share >= 0 ? opened(ctx, h.share) : NULL;
  if (b) b->opened++;
  pthread_mutex_unlock(&guard);
  if (b) {
    *out = b->address;
    return CUDA_SUCCESS;
  }
  fk_lock();
  const struct fk_share *s = h.share < 0 ? NULL : &fk_world()->gpu[h.gpu].share[h.share];
  bool there = !s || (s->used && s->life == h.life && fk_share_hold(h.gpu, h.share, ctx->queue));
  fk_unlock();
  if (!there) return CUDA_ERROR_INVALID_VALUE;
  b = new_block(ctx, h.bytes);
  b->life = ctx->life;
  b->share = h.share;
  b->host = h.share < 0;
  b->opened = 1;
  *out = b->address = (CUdeviceptr)fk_map(h.bytes);
  remember(b);
  return CUDA_SUCCESS;
}
FK_API(cuIpcCloseMemHandle, (CUdeviceptr address)) {
  FK_LATE;
  struct block *b = find(address);
  if (!b || !b->opened) return CUDA_ERROR_INVALID_VALUE;
  if (--b->opened) return CUDA_SUCCESS;
  take(address);
  release(b);
  return CUDA_SUCCESS;
}

/* ---- pools ---- */

/* The driver's own, and which is in use, for each place and kind of memory. */
enum {
  ON_DEVICE,
  ON_HOST = FK_DEVICES,
  MANAGED_ON_DEVICE,
  MANAGED_ON_HOST = MANAGED_ON_DEVICE + FK_DEVICES,
  MANAGED,
  PLACES
};
static struct CUmemPoolHandle_st default_pool[PLACES];
static CUmemoryPool current_pool[PLACES]; /* NULL: the default one */

__attribute__((constructor)) static void make_default_pools(void) {
  for (int i = 0; i < PLACES; i++) {
    bool managed = i >= MANAGED_ON_DEVICE, host = i == ON_HOST || i == MANAGED_ON_HOST || i == MANAGED;
    default_pool[i] = (struct CUmemPoolHandle_st){
        .gpu = host ? -1 : managed ? i - MANAGED_ON_DEVICE : i,
        .lives = true,
        .standard = true,
        .type = managed ? CU_MEM_ALLOCATION_TYPE_MANAGED : CU_MEM_ALLOCATION_TYPE_PINNED,
        .share = -1};
    default_pool[i].location.type = i == MANAGED ? CU_MEM_LOCATION_TYPE_NONE
                                    : host       ? CU_MEM_LOCATION_TYPE_HOST
                                                 : CU_MEM_LOCATION_TYPE_DEVICE;
  }
}

/* -1: there is no such place. */
static int place_of(const CUmemLocation *location, CUmemAllocationType type) {
  bool managed = type == CU_MEM_ALLOCATION_TYPE_MANAGED;
  if (!location || (!managed && type != CU_MEM_ALLOCATION_TYPE_PINNED)) return -1;
  switch (location->type) {
  case CU_MEM_LOCATION_TYPE_DEVICE: {
    int gpu = fk_gpu_of_device(location->id);
    return gpu < 0 ? -1 : (managed ? MANAGED_ON_DEVICE : ON_DEVICE) + gpu;
  }
  case CU_MEM_LOCATION_TYPE_HOST:
  case CU_MEM_LOCATION_TYPE_HOST_NUMA:
    return managed ? MANAGED_ON_HOST : ON_HOST;
  case CU_MEM_LOCATION_TYPE_NONE:
    return managed ? MANAGED : -1;
  default:
    return -1;
  }
}

static CUmemoryPool default_of(int place) {
  bool host = place == ON_HOST || place == MANAGED_ON_HOST || place == MANAGED;
  bool counts = place != ON_HOST || fk_bytes(fk_setting("INTEGRATED"), 0);
  /* The host's memory counts if GPU and host share it, and managed memory goes where it is used. */
  if (host && counts) default_pool[place].gpu = fk_gpu_of_device(0);
  return &default_pool[place];
}

static CUmemoryPool current_at(int place) {
  return current_pool[place] ? current_pool[place] : default_of(place);
}

/* With the lock held. If others hold the pool as well, its memory stays with them. */
static void drop_if_over(CUmemoryPool pool) {
  if (!pool->destroyed || pool->used) return;
  pool->lives = false;
  if (pool->share >= 0)
    fk_share_let_go(pool->gpu, pool->share, fk_queue_bare(pool->gpu));
  else
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
  for (int place = gpu; place < PLACES; place += MANAGED_ON_DEVICE)
    if (default_pool[place].reserved) shrink(&default_pool[place], default_pool[place].threshold);
}

static bool pool_take(CUmemoryPool pool, uint64_t bytes) {
  fk_lock();
  uint64_t want = pool->used + fk_up(bytes, 512);
  uint64_t grow = want > pool->reserved ? fk_up(want - pool->reserved, VC_GRANULE) : 0;
  bool fits = !pool->maximum || pool->reserved + grow <= pool->maximum;
  bool ok = pool->lives && fits && (!grow || reserve(pool, pool->reserved + grow));
  if (ok) pool->used = want;
  fk_unlock();
  return ok;
}

static CUresult pool_alloc(CUdeviceptr *out, size_t bytes, CUmemoryPool pool) {
  CUcontext ctx = fk_current();
  if (!ctx) return CUDA_ERROR_INVALID_CONTEXT;
  if (!pool || !out || pool->foreign) return CUDA_ERROR_INVALID_VALUE;
  if (!bytes || bytes > 1ull << 46)
    return bytes ? CUDA_ERROR_OUT_OF_MEMORY : CUDA_ERROR_INVALID_VALUE;
  if (!pool_take(pool, bytes)) {
    fk_reap();
    if (!pool_take(pool, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  struct block *b = new_block(ctx, bytes);
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
  struct CUstream_st *s = fk_stream(stream);
  if (!fk_current()) return CUDA_ERROR_INVALID_CONTEXT;
  if (!out || !bytes) return CUDA_ERROR_INVALID_VALUE;
  if (!s) return CUDA_ERROR_INVALID_CONTEXT;
  return cuMemAllocFromPoolAsync(out, bytes, current_at(ON_DEVICE + s->ctx->gpu), stream);
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

static CUresult default_at(CUmemoryPool *out, int place) {
  if (!out || place < 0) return CUDA_ERROR_INVALID_VALUE;
  *out = default_of(place);
  return CUDA_SUCCESS;
}
static CUresult get_at(CUmemoryPool *out, int place) {
  if (!out || place < 0) return CUDA_ERROR_INVALID_VALUE;
  *out = current_at(place);
  return CUDA_SUCCESS;
}
/* A pool of that kind and place; what was imported cannot be allocated from. */
static CUresult set_at(int place, CUmemoryPool pool) {
  if (place < 0 || !pool || pool->foreign || pool->destroyed) return CUDA_ERROR_INVALID_VALUE;
  CUmemoryPool own = default_of(place);
  if (pool->type != own->type || pool->gpu != own->gpu) return CUDA_ERROR_INVALID_VALUE;
  current_pool[place] = pool == own ? NULL : pool;
  return CUDA_SUCCESS;
}
static int place_of_device(CUdevice device) {
  int gpu = fk_gpu_of_device(device);
  return gpu < 0 ? -1 : ON_DEVICE + gpu;
}

FK_RESULT(cuDeviceGetDefaultMemPool, (CUmemoryPool * out, CUdevice device), default_at(out, place_of_device(device)))
FK_RESULT(cuDeviceGetMemPool, (CUmemoryPool * out, CUdevice device), get_at(out, place_of_device(device)))
FK_RESULT(cuDeviceSetMemPool, (CUdevice device, CUmemoryPool pool), set_at(place_of_device(device), pool))
FK_RESULT(cuMemGetDefaultMemPool, (CUmemoryPool * out, CUmemLocation *location, CUmemAllocationType type),
          default_at(out, place_of(location, type)))
FK_RESULT(cuMemGetMemPool, (CUmemoryPool * out, CUmemLocation *location, CUmemAllocationType type),
          get_at(out, place_of(location, type)))
FK_RESULT(cuMemSetMemPool, (CUmemLocation * location, CUmemAllocationType type, CUmemoryPool pool),
          set_at(place_of(location, type), pool))

FK_API(cuMemPoolCreate, (CUmemoryPool * out, const CUmemPoolProps *props)) {
  FK_ENTER("cuMemPoolCreate");
  if (!out || !props) return CUDA_ERROR_INVALID_VALUE;
  bool managed = props->allocType == CU_MEM_ALLOCATION_TYPE_MANAGED;
  int place = place_of(&props->location, props->allocType);
  if (place < 0 || (managed && (props->maxSize || props->handleTypes))) return CUDA_ERROR_INVALID_VALUE;
  if (props->location.type == CU_MEM_LOCATION_TYPE_HOST && props->handleTypes) return CUDA_ERROR_INVALID_VALUE;
  struct CUmemPoolHandle_st pool = {.lives = true,
                                      .gpu = default_of(place)->gpu,
                                      .maximum = props->maxSize,
                                      .type = props->allocType,
                                      .location = props->location,
                                      .handles = props->handleTypes,
                                      .share = -1};
  CUmemoryPool made = fk_new(sizeof *made);
  fk_lock();
  *made = pool;
  fk_unlock();
  *out = made;
  return CUDA_SUCCESS;
}

/* What is still in use stays, and the pool with it; a device's default pool cannot be destroyed. */
/* What gives memory back to the kernel may close descriptors, and a thread may be cancelled there. */
FK_API(cuMemPoolDestroy, (CUmemoryPool pool)) {
  FK_ENTER("cuMemPoolDestroy");
  pthread_testcancel();
  if (!pool || pool->standard) return CUDA_ERROR_INVALID_VALUE;
  fk_lock();
  bool lives = pool->lives && !pool->destroyed;
  for (int i = 0; i < PLACES; i++)
    if (current_pool[i] == pool) current_pool[i] = NULL;
  pool->destroyed |= lives;
  if (lives) shrink(pool, 0);
  if (lives) drop_if_over(pool);
  fk_unlock();
  return lives ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FK_API(cuMemPoolTrimTo, (CUmemoryPool pool, size_t keep)) {
  FK_LATE;
  pthread_testcancel();
  fk_lock();
  if (pool->lives) shrink(pool, keep);
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
    *(int *)value = (int)pool->type;
    break;
  case CU_MEMPOOL_ATTR_LOCATION_TYPE:
    *(int *)value = (int)pool->location.type;
    break;
  case CU_MEMPOOL_ATTR_LOCATION_ID:
    *(int *)value = pool->location.id;
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

/* ---- pools of other processes ---- */

/* As of virtual memory, the descriptor holds what the pool holds. */
FK_API(cuMemPoolExportToShareableHandle,
       (void *out, CUmemoryPool pool, CUmemAllocationHandleType type, unsigned long long flags)) {
  FK_ENTER("cuMemPoolExportToShareableHandle");
  if (!out || !pool || flags || pool->gpu < 0 || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR ||
      !(pool->handles & type))
    return CUDA_ERROR_INVALID_VALUE;
  fk_lock();
  if (pool->lives && pool->share < 0) pool->share = fk_share_open(pool->gpu, fk_queue_bare(pool->gpu), pool->reserved);
  *(int *)out = fk_share_export(pool->gpu, pool->share);
  fk_unlock();
  return *(int *)out < 0 ? CUDA_ERROR_OPERATING_SYSTEM : CUDA_SUCCESS;
}

FK_API(cuMemPoolImportFromShareableHandle,
       (CUmemoryPool * out, void *handle, CUmemAllocationHandleType type, unsigned long long flags)) {
  FK_ENTER("cuMemPoolImportFromShareableHandle");
  struct CUmemPoolHandle_st pool = {
      .lives = true, .type = CU_MEM_ALLOCATION_TYPE_PINNED, .handles = type, .foreign = true};
  if (!out || flags || type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_INVALID_VALUE;
  fk_lock();
  bool there = fk_share_of((int)(uintptr_t)handle, &pool.gpu, &pool.share) &&
               fk_share_hold(pool.gpu, pool.share, fk_queue_bare(pool.gpu));
  fk_unlock();
  if (!there) return CUDA_ERROR_INVALID_VALUE;
  pool.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  *out = fk_new(sizeof **out);
  **out = pool;
  return CUDA_SUCCESS;
}

FK_API(cuMemPoolExportPointer, (CUmemPoolPtrExportData * out, CUdeviceptr address)) {
  struct block *b = find(address);
  if (!out || !b || !b->pool || b->pool->share < 0) return CUDA_ERROR_INVALID_VALUE;
  memset(out, 0, sizeof *out);
  memcpy(out, &b->bytes, sizeof b->bytes);
  return CUDA_SUCCESS;
}

FK_API(cuMemPoolImportPointer, (CUdeviceptr * out, CUmemoryPool pool, CUmemPoolPtrExportData *data)) {
  FK_ENTER("cuMemPoolImportPointer");
  uint64_t bytes;
  if (!out || !data || !pool || !pool->foreign) return CUDA_ERROR_INVALID_VALUE;
  memcpy(&bytes, data, sizeof bytes);
  fk_lock();
  pool->used += fk_up(bytes, 512);
  fk_unlock();
  struct block *b = new_block(fk_current(), bytes);
  b->pool = pool;
  *out = b->address = (CUdeviceptr)fk_map(bytes);
  remember(b);
  return CUDA_SUCCESS;
}
