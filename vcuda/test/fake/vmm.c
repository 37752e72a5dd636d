/* SPDX-License-Identifier: Apache-2.0 */
/* Virtual memory management and arrays. */
#define _GNU_SOURCE
#include "api.h"

#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

struct physical {
  CUcontext ctx;
  CUmemAllocationProp prop;
  uint64_t bytes;
  unsigned handles, maps;
  bool foreign; /* another process's: it holds the bytes */
};

struct mapping {
  struct mapping *next;
  CUdeviceptr address;
  uint64_t bytes;
  struct physical *physical;
};

struct CUarray_st {
  CUcontext ctx;
  uint64_t bytes;
};

static struct mapping *mappings;
static pthread_mutex_t guard = PTHREAD_MUTEX_INITIALIZER;

static bool take(CUcontext ctx, uint64_t bytes) {
  fk_lock();
  bool ok = fk_mem_take(ctx->gpu, ctx->queue, bytes);
  fk_unlock();
  return ok;
}

static void give(CUcontext ctx, uint64_t bytes) {
  fk_lock();
  fk_mem_give(ctx->gpu, ctx->queue, bytes);
  fk_unlock();
}

static bool on_device(const struct physical *p) {
  return p->prop.location.type == CU_MEM_LOCATION_TYPE_DEVICE;
}

static void settle(struct physical *p) {
  if (p->handles || p->maps) return;
  if (on_device(p) && !p->foreign) give(p->ctx, p->bytes);
  free(p);
}

FK_API(cuMemGetAllocationGranularity,
       (size_t * out, const CUmemAllocationProp *prop, CUmemAllocationGranularity_flags option)) {
  (void)prop, (void)option;
  *out = VC_GRANULE;
  return CUDA_SUCCESS;
}

FK_API(cuMemCreate, (CUmemGenericAllocationHandle * out, size_t bytes,
                     const CUmemAllocationProp *prop, unsigned long long flags)) {
  FK_ENTER("cuMemCreate");
  (void)flags;
  CUcontext ctx = fk_current();
  if (!ctx) return CUDA_ERROR_INVALID_CONTEXT;
  if (!bytes || bytes % VC_GRANULE) return CUDA_ERROR_INVALID_VALUE;
  struct physical *p = calloc(1, sizeof *p);
  *p = (struct physical){ctx, *prop, bytes, 1, 0, false};
  if (on_device(p) && !take(ctx, bytes)) {
    free(p);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  *out = (CUmemGenericAllocationHandle)(uintptr_t)p;
  return CUDA_SUCCESS;
}

FK_API(cuMemRelease, (CUmemGenericAllocationHandle handle)) {
  struct physical *p = (struct physical *)(uintptr_t)handle;
  pthread_mutex_lock(&guard);
  p->handles--;
  settle(p);
  pthread_mutex_unlock(&guard);
  return CUDA_SUCCESS;
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
  (void)offset, (void)flags;
  struct mapping *m = calloc(1, sizeof *m);
  pthread_mutex_lock(&guard);
  *m = (struct mapping){mappings, address, bytes, (struct physical *)(uintptr_t)handle};
  mappings = m;
  m->physical->maps++;
  pthread_mutex_unlock(&guard);
  return CUDA_SUCCESS;
}

FK_API(cuMemUnmap, (CUdeviceptr address, size_t bytes)) {
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
    free(m);
  }
  pthread_mutex_unlock(&guard);
  return any ? CUDA_SUCCESS : CUDA_ERROR_INVALID_VALUE;
}

FK_API(cuMemSetAccess,
       (CUdeviceptr address, size_t bytes, const CUmemAccessDesc *desc, size_t count)) {
  (void)address, (void)bytes, (void)desc, (void)count;
  return CUDA_SUCCESS;
}

FK_API(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * out, void *address)) {
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

/* The descriptor of an allocation names it to its own process, and its size to another. */
struct exported {
  pid_t pid;
  struct physical *physical;
  uint64_t bytes;
};

FK_API(cuMemExportToShareableHandle, (void *out, CUmemGenericAllocationHandle handle,
                                      CUmemAllocationHandleType type, unsigned long long flags)) {
  struct physical *p = (struct physical *)(uintptr_t)handle;
  struct exported e = {getpid(), p, p->bytes};
  (void)flags;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  int fd = memfd_create("fake-memory", MFD_CLOEXEC);
  if (fd < 0 || write(fd, &e, sizeof e) != sizeof e) return CUDA_ERROR_OPERATING_SYSTEM;
  *(int *)out = fd;
  return CUDA_SUCCESS;
}

FK_API(cuMemImportFromShareableHandle,
       (CUmemGenericAllocationHandle * out, void *handle, CUmemAllocationHandleType type)) {
  struct exported e;
  CUcontext ctx = fk_current();
  if (!ctx) return CUDA_ERROR_INVALID_CONTEXT;
  if (type != CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR) return CUDA_ERROR_NOT_SUPPORTED;
  if (pread((int)(uintptr_t)handle, &e, sizeof e, 0) != sizeof e) return CUDA_ERROR_INVALID_VALUE;
  struct physical *p = e.physical;
  if (e.pid == getpid()) {
    pthread_mutex_lock(&guard);
    p->handles++;
    pthread_mutex_unlock(&guard);
  } else {
    p = calloc(1, sizeof *p);
    *p = (struct physical){ctx, {.location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}}, e.bytes, 1, 0,
                           true};
  }
  *out = (CUmemGenericAllocationHandle)(uintptr_t)p;
  return CUDA_SUCCESS;
}

static uint64_t element(CUarray_format format, unsigned channels) {
  switch (format) {
  case CU_AD_FORMAT_UNSIGNED_INT8:
  case CU_AD_FORMAT_SIGNED_INT8:
    return channels;
  case CU_AD_FORMAT_UNSIGNED_INT16:
  case CU_AD_FORMAT_SIGNED_INT16:
  case CU_AD_FORMAT_HALF:
    return 2ull * channels;
  default:
    return 4ull * channels;
  }
}

static CUresult array(CUarray *out, uint64_t bytes) {
  CUcontext ctx = fk_current();
  if (!ctx) return CUDA_ERROR_INVALID_CONTEXT;
  bytes = (bytes + VC_GRANULE - 1) / VC_GRANULE * VC_GRANULE;
  if (!take(ctx, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  *out = calloc(1, sizeof **out);
  **out = (struct CUarray_st){ctx, bytes};
  return CUDA_SUCCESS;
}

static uint64_t extent(const CUDA_ARRAY3D_DESCRIPTOR *d) {
  return element(d->Format, d->NumChannels) * d->Width * (d->Height ? d->Height : 1) *
         (d->Depth ? d->Depth : 1);
}

FK_API(cuArrayCreate_v2, (CUarray * out, const CUDA_ARRAY_DESCRIPTOR *d)) {
  FK_ENTER("cuArrayCreate_v2");
  return array(out, element(d->Format, d->NumChannels) * d->Width * (d->Height ? d->Height : 1));
}

FK_API(cuArray3DCreate_v2, (CUarray * out, const CUDA_ARRAY3D_DESCRIPTOR *d)) {
  FK_ENTER("cuArray3DCreate_v2");
  return array(out, d->Flags & CUDA_ARRAY3D_SPARSE ? 0 : extent(d));
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
FK_API(cuMemMapArrayAsync_ptsz, (CUarrayMapInfo * list, unsigned count, CUstream stream)) {
  return cuMemMapArrayAsync(list, count, stream);
}

FK_API(cuArrayDestroy, (CUarray a)) {
  pthread_mutex_lock(&guard);
  drop_tiles(a, NULL);
  pthread_mutex_unlock(&guard);
  give(a->ctx, a->bytes);
  free(a);
  return CUDA_SUCCESS;
}

FK_API(cuMipmappedArrayCreate,
       (CUmipmappedArray * out, const CUDA_ARRAY3D_DESCRIPTOR *d, unsigned levels)) {
  FK_ENTER("cuMipmappedArrayCreate");
  CUDA_ARRAY3D_DESCRIPTOR level = *d;
  uint64_t bytes = 0;
  for (unsigned i = 0; i < levels; i++) {
    if (!(d->Flags & CUDA_ARRAY3D_SPARSE)) bytes += extent(&level);
    level.Width = level.Width > 1 ? level.Width / 2 : 1;
    level.Height /= level.Height > 1 ? 2 : 1;
    level.Depth /= level.Depth > 1 ? 2 : 1;
  }
  return array((CUarray *)out, bytes);
}

FK_API(cuMipmappedArrayDestroy, (CUmipmappedArray a)) {
  return cuArrayDestroy((CUarray)a);
}
