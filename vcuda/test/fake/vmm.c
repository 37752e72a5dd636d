/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual memory management and arrays. */
#define _GNU_SOURCE
#include "api.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

/* Physical memory is its device's and no context's: it outlives the one in which it was made. */
struct physical {
  int gpu; /* -1: not on a device */
  CUmemAllocationProp prop;
  uint64_t bytes;
  unsigned handles, maps;
  int share; /* once it was exported, else -1 */
};

struct mapping {
  struct mapping *next;
  CUdeviceptr address;
  uint64_t bytes;
  struct physical *physical;
};

struct CUarray_st {
  CUcontext ctx;
  unsigned life;
  uint64_t bytes;
};

static struct mapping *mappings;
FK_GUARD(guard)

/* With the guard held. */
static void settle(struct physical *p) {
  if (p->handles || p->maps) return;
  fk_lock();
  if (p->gpu >= 0 && p->share >= 0) fk_share_let_go(p->gpu, p->share, fk_queue_bare(p->gpu));
  if (p->gpu >= 0 && p->share < 0) fk_mem_give(p->gpu, fk_queue_bare(p->gpu), p->bytes);
  fk_unlock();
  fk_gone(p, sizeof *p);
}

FK_API(cuMemGetAllocationGranularity,
       (size_t * out, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option)) {
  (void)prop, (void)option;
  *out = VC_GRANULE;
  return CUDA_SUCCESS;
}

/* On which GPU such memory lies; -1: on none, -2: there is no such device. */
static int gpu_of(const CUmemLocation *location) {
  if (location->type == CU_MEM_LOCATION_TYPE_DEVICE) {
    int gpu = fk_gpu_of_device(location->id);
    return gpu < 0 ? -2 : gpu;
  }
  return fk_bytes(fk_setting("INTEGRATED"), 0) ? fk_gpu_of_device(0) : -1;
}

static bool take_for(int gpu, uint64_t bytes) {
  fk_lock();
  int queue = fk_queue_bare(gpu);
  bool ok = queue >= 0 && fk_mem_take(gpu, queue, bytes);
  fk_unlock();
  return ok;
}

FK_API(cuMemCreate, (CUmemGenericAllocationHandle * out, size_t bytes,
                     const CUmemAllocationProp *prop, unsigned long long flags)) {
  FK_ENTER("cuMemCreate");
  (void)flags;
  if (!out || !prop || !bytes || bytes % VC_GRANULE) return CUDA_ERROR_INVALID_VALUE;
  int gpu = gpu_of(&prop->location);
  if (gpu == -2) return CUDA_ERROR_INVALID_DEVICE;
  if (gpu >= 0 && !take_for(gpu, bytes)) {
    fk_reap();
    if (!take_for(gpu, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  }
  struct physical *p = fk_new(sizeof *p);
  *p = (struct physical){.gpu = gpu, .prop = *prop, .bytes = bytes, .handles = 1, .share = -1};
  *out = (CUmemGenericAllocationHandle)(uintptr_t)p;
  return CUDA_SUCCESS;
}

FK_API(cuMemRelease, (CUmemGenericAllocationHandle handle)) {
  FK_LATE;
  struct physical *p = (struct physical *)(uintptr_t)handle;
  pthread_mutex_lock(&guard);
  bool there = p->handles; /* its place is kept, for the next one */
  if (there) p->handles--;
  if (there) settle(p);
  pthread_mutex_unlock(&guard);
  return there ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FK_API(cuMemAddressReserve, (CUdeviceptr * out, size_t bytes, size_t align, CUdeviceptr hint,
                             unsigned long long flags)) {
  (void)align, (void)hint, (void)flags;
  *out = (CUdeviceptr)fk_map(bytes);
  return *out ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

FK_API(cuMemAddressFree, (CUdeviceptr address, size_t bytes)) {
  fk_unmap((void *)address, bytes);
  return CUDA_SUCCESS;
}

FK_API(cuMemMap, (CUdeviceptr address, size_t bytes, size_t offset,
                  CUmemGenericAllocationHandle handle, unsigned long long flags)) {
  FK_LATE;
  (void)offset, (void)flags;
  struct physical *p = (struct physical *)(uintptr_t)handle;
  pthread_mutex_lock(&guard);
  bool there = p->handles;
  if (there) {
    struct mapping *m = calloc(1, sizeof *m);
    *m = (struct mapping){mappings, address, bytes, p};
    mappings = m;
    p->maps++;
  }
  pthread_mutex_unlock(&guard);
  return there ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

bool fk_mapped(CUdeviceptr address) {
  bool found = false;
  pthread_mutex_lock(&guard);
  for (struct mapping *m = mappings; m && !found; m = m->next)
    found = address >= m->address && address < m->address + m->bytes;
  pthread_mutex_unlock(&guard);
  return found;
}

FK_API(cuMemUnmap, (CUdeviceptr address, size_t bytes)) {
  FK_LATE;
  bool any = false;
  pthread_mutex_lock(&guard);
  for (struct mapping **p = &mappings; *p;) {
    struct mapping *m = *p;
    if (m->address < address || m->address + m->bytes > address + bytes) {
      p = &m->next;
      continue;
    }
    any = true;
    *p = m->next;
    m->physical->maps--;
    settle(m->physical);
    bool all = m->bytes == bytes;
    free(m);
    if (all) break;
  }
  pthread_mutex_unlock(&guard);
  return any ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FK_RESULT(cuMemSetAccess, (CUdeviceptr address, size_t bytes, const CUmemAccessDesc *desc, size_t count),
          ((void)address, (void)bytes, (void)desc, (void)count, CUDA_SUCCESS))

FK_API(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * out, void *address)) {
  FK_LATE;
  CUresult r = CUDA_ERROR_INVALID_VALUE;
  CUdeviceptr at = (CUdeviceptr)address;
  pthread_mutex_lock(&guard);
  for (struct mapping *m = mappings; m; m = m->next)
    if (at >= m->address && at < m->address + m->bytes) {
      m->physical->handles++;
      *out = (CUmemGenericAllocationHandle)(uintptr_t)m->physical;
      r = CUDA_SUCCESS;
    }
  pthread_mutex_unlock(&guard);
  return r;
}

/* With the guard held: a descriptor by which others import, and which holds the memory until it is closed. */
static CUresult export(struct physical *p, int *out) {
  fk_lock();
  if (p->share < 0) p->share = fk_share_open(p->gpu, fk_queue_bare(p->gpu), p->bytes);
  int fd = fk_share_export(p->gpu, p->share);
  fk_unlock();
  if (fd < 0) return CUDA_ERROR_OPERATING_SYSTEM;
  *out = fd;
  return CUDA_SUCCESS;
}

FK_API(cuMemExportToShareableHandle, (void *out, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags)) {
  FK_LATE;
  struct physical *p = (struct physical *)(uintptr_t)handle;
  (void)flags;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  if (p->gpu < 0 || !(p->prop.requestedHandleTypes & type)) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&guard);
  CUresult r = export(p, out);
  pthread_mutex_unlock(&guard);
  return r;
}

/* What a mapping shows, as a descriptor of another kind. */
FK_API(cuMemGetHandleForAddressRange,
       (void *out, CUdeviceptr address, size_t bytes, CUmemRangeHandleType type, unsigned long long flags)) {
  FK_LATE;
  CUresult r = CUDA_ERROR_INVALID_VALUE;
  (void)flags;
  if (type != CU_MEM_RANGE_HANDLE_TYPE_DMA_BUF_FD) return CUDA_ERROR_INVALID_VALUE;
  pthread_mutex_lock(&guard);
  for (struct mapping *m = mappings; m; m = m->next)
    if (address >= m->address && address + bytes <= m->address + m->bytes && m->physical->gpu >= 0)
      r = export(m->physical, out);
  pthread_mutex_unlock(&guard);
  return r == CUDA_ERROR_INVALID_VALUE ? fk_block_export(out, address) : r;
}

/* A handle of its own, in the process that exported it too. */
FK_API(cuMemImportFromShareableHandle,
       (CUmemGenericAllocationHandle * out, void *handle, CUmemAllocationHandleType type)) {
  FK_LATE;
  int gpu, share;
  uint64_t bytes = 0;
  if (!fk_current()) return CUDA_ERROR_INVALID_CONTEXT;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  fk_lock();
  if (fk_share_of((int)(uintptr_t)handle, &gpu, &share) && fk_share_hold(gpu, share, fk_queue_bare(gpu)))
    bytes = fk_world()->gpu[gpu].share[share].bytes;
  fk_unlock();
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  struct physical *p = fk_new(sizeof *p);
  *p = (struct physical){.gpu = gpu, .bytes = bytes, .handles = 1, .share = share};
  p->prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
  p->prop.requestedHandleTypes = type;
  *out = (CUmemGenericAllocationHandle)(uintptr_t)p;
  return CUDA_SUCCESS;
}

/* Bytes of one element; of block-compressed formats, of a block of 4 x 4 texels. */
static uint64_t element(CUarray_format format, unsigned channels) {
  unsigned f = (unsigned)format;
  if (f >= CU_AD_FORMAT_BC1_UNORM && f <= CU_AD_FORMAT_BC7_UNORM_SRGB)
    return f <= CU_AD_FORMAT_BC1_UNORM_SRGB ||
                   (f >= CU_AD_FORMAT_BC4_UNORM && f <= CU_AD_FORMAT_BC4_SNORM)
               ? 8
               : 16;
  if (f >= CU_AD_FORMAT_UNORM_INT8X1 && f <= CU_AD_FORMAT_SNORM_INT16X4)
    return (1ull << (f - CU_AD_FORMAT_UNORM_INT8X1) % 3)
           << (((f - CU_AD_FORMAT_UNORM_INT8X1) / 3) & 1);
  if (f == CU_AD_FORMAT_UNSIGNED_INT8 || f == CU_AD_FORMAT_SIGNED_INT8) return channels;
  if (f == CU_AD_FORMAT_UNSIGNED_INT16 || f == CU_AD_FORMAT_SIGNED_INT16 ||
      f == CU_AD_FORMAT_HALF)
    return 2ull * channels;
  if (f == CU_AD_FORMAT_NV12) return 2;
  if (f == CU_AD_FORMAT_UNSIGNED_INT32 || f == CU_AD_FORMAT_SIGNED_INT32 ||
      f == CU_AD_FORMAT_FLOAT)
    return 4ull * channels;
  if (f == 0x50) return 4; /* 10, 10, 10 and 2 bits */
  bool video = (f > 0x50 && f <= 0x5e) || (f >= 0x9f && f <= 0xa9 && f != 0xa0) ||
               (f > 0xb0 && f <= 0xb5);
  return video ? 6 : 0;
}

static bool compressed(const CUDA_ARRAY3D_DESCRIPTOR *d) {
  return d->Format >= CU_AD_FORMAT_BC1_UNORM && d->Format <= CU_AD_FORMAT_BC7_UNORM_SRGB;
}

/* As measured on an H200: arrays lie in blocks of 64 bytes by 8 rows, as many of them one above the other as the height
 * has need of, 16 at most. With a depth, none lies above another, but up to 16 slices of one block lie behind each
 * other. Every size is rounded up to the block's. */
static uint64_t extent(const CUDA_ARRAY3D_DESCRIPTOR *d) {
  bool layers = d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP), deep = d->Depth && !layers;
  uint64_t width = d->Width, height = d->Height ? d->Height : 1, rows = 8, slices = 1;
  if (compressed(d)) width = (width + 3) / 4, height = (height + 3) / 4;
  while (!deep && rows < height && rows < 128) rows *= 2;
  while (deep && slices < d->Depth && slices < 16) slices *= 2;
  uint64_t size = element(d->Format, d->NumChannels);
  if (!size) return UINT64_MAX; /* no such format */
  return fk_up(width * size, 64) * fk_up(height, rows) * fk_up(d->Depth ? d->Depth : 1, slices);
}

#define LATER (CUDA_ARRAY3D_SPARSE | CUDA_ARRAY3D_DEFERRED_MAPPING) /* memory is mapped into it */

static CUresult array(CUarray *out, uint64_t bytes) {
  CUcontext ctx = fk_current();
  if (!ctx) return CUDA_ERROR_INVALID_CONTEXT;
  if (!out || bytes == UINT64_MAX) return CUDA_ERROR_INVALID_VALUE;
  struct CUarray_st a = {.ctx = ctx, .bytes = fk_up(bytes, 32768)};
  if (!fk_take(ctx, a.bytes, &a.life)) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = fk_new(sizeof **out);
  **out = a;
  return CUDA_SUCCESS;
}

FK_API(cuArrayCreate_v2, (CUarray * out, const CUDA_ARRAY_DESCRIPTOR *d)) {
  FK_ENTER("cuArrayCreate_v2");
  if (!d) return CUDA_ERROR_INVALID_VALUE;
  CUDA_ARRAY3D_DESCRIPTOR flat = {d->Width, d->Height, 0, d->Format, d->NumChannels, 0};
  return array(out, extent(&flat));
}

FK_API(cuArray3DCreate_v2, (CUarray * out, const CUDA_ARRAY3D_DESCRIPTOR *d)) {
  FK_ENTER("cuArray3DCreate_v2");
  if (!d) return CUDA_ERROR_INVALID_VALUE;
  return array(out, d->Flags & LATER ? 0 : extent(d));
}

/* Tiles of sparse arrays; a tile is what was mapped by one entry of a list. */
static struct tile {
  struct tile *next;
  struct physical *physical;
  CUarrayMapInfo at;
} * tiles;

static void drop_tiles(CUarray array, const CUarrayMapInfo *same) {
  for (struct tile **p = &tiles; *p;) {
    struct tile *t = *p;
    bool hit =
        t->at.resource.array == array &&
        (!same || (t->at.subresourceType == same->subresourceType &&
                   !memcmp(&t->at.subresource, &same->subresource, sizeof t->at.subresource)));
    if (!hit) {
      p = &t->next;
      continue;
    }
    *p = t->next;
    t->physical->maps--;
    settle(t->physical);
    free(t);
  }
}

FK_API(cuMemMapArrayAsync, (CUarrayMapInfo * list, unsigned count, CUstream stream)) {
  FK_ENTER("cuMemMapArrayAsync");
  (void)stream;
  pthread_mutex_lock(&guard);
  for (unsigned i = 0; i < count; i++) {
    struct physical *p = (struct physical *)(uintptr_t)list[i].memHandle.memHandle;
    bool maps = list[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP;
    if (maps) p->maps++;
    drop_tiles(list[i].resource.array, &list[i]);
    if (!maps) continue;
    struct tile *t = calloc(1, sizeof *t);
    *t = (struct tile){tiles, p, list[i]};
    tiles = t;
  }
  pthread_mutex_unlock(&guard);
  return CUDA_SUCCESS;
}
FK_RESULT(cuMemMapArrayAsync_ptsz, (CUarrayMapInfo * list, unsigned count, CUstream stream),
          cuMemMapArrayAsync(list, count, stream))

FK_API(cuArrayDestroy, (CUarray a)) {
  FK_LATE;
  if (!a) return CUDA_ERROR_INVALID_HANDLE;
  pthread_mutex_lock(&guard);
  drop_tiles(a, NULL);
  pthread_mutex_unlock(&guard);
  fk_give(a->ctx, a->bytes, a->life);
  fk_gone(a, sizeof *a);
  return CUDA_SUCCESS;
}

FK_API(cuMipmappedArrayCreate,
       (CUmipmappedArray * out, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)) {
  FK_ENTER("cuMipmappedArrayCreate");
  if (!d) return CUDA_ERROR_INVALID_VALUE;
  CUDA_ARRAY3D_DESCRIPTOR level = *d;
  bool layers = d->Flags & (CUDA_ARRAY3D_LAYERED | CUDA_ARRAY3D_CUBEMAP);
  uint64_t bytes = 0, rows = 8;
  size_t most = d->Width > d->Height ? d->Width : d->Height;
  if (layers) level.Depth = 0; /* one layer with all of its levels, then the next one */
  if (level.Depth > most) most = level.Depth;
  /* One at least, and no more than down to a single texel. */
  for (unsigned i = 0; !i || (i < levels && most >> i); i++) {
    if (!(d->Flags & LATER)) bytes = extent(&level) == UINT64_MAX ? UINT64_MAX : bytes + extent(&level);
    level.Width = level.Width > 1 ? level.Width / 2 : 1;
    level.Height /= level.Height > 1 ? 2 : 1;
    level.Depth /= level.Depth > 1 ? 2 : 1;
  }
  while (rows < (compressed(d) ? (d->Height + 3) / 4 : d->Height) && rows < 128) rows *= 2;
  if (layers && bytes != UINT64_MAX) bytes = fk_up(bytes, 64 * rows) * (d->Depth ? d->Depth : 1);
  return array((CUarray *)out, bytes);
}

FK_RESULT(cuMipmappedArrayDestroy, (CUmipmappedArray a), cuArrayDestroy((CUarray)a))
