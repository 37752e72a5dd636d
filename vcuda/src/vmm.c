/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual memory management. The bytes are held until the last handle is released and the last
 * mapping is gone, so each physical allocation counts both. The lock is held over the driver's calls: a handle that
 * one thread releases could be mapped by another one just before, or be another allocation's just after.
 */
#include "memory_account.h"
#include "bytes.h"
#include "connection.h"
#include "device.h"
#include "memory.h"
#include "pool.h"

#include <search.h>
#include <stdlib.h>

struct physical {
  uint64_t bytes;
  uint32_t handles, mappings;
  bool exported;
};

static struct vc_lock guard;

/* With the guard held. */
static void drop_if_unused(struct physical *p) {
  if (p->handles || p->mappings) return;
  if (p->exported)
    vc_let_go(p->bytes, NULL);
  else
    vc_unreserve(p->bytes);
  free(p);
}

static struct physical *of_handle(CUmemGenericAllocationHandle handle) {
  struct vc_item item;
  return vc_table_find(VC_PHYSICAL, handle, &item) ? item.owner : NULL;
}

static bool name_it(CUmemGenericAllocationHandle handle, struct physical *p) {
  return vc_table_put((struct vc_item){.key = handle, .owner = p, .kind = VC_PHYSICAL});
}

VC_HOOK CUresult cuMemCreate(CUmemGenericAllocationHandle *out, size_t bytes, const CUmemAllocationProp *prop,
                             unsigned long long flags) {
  if (!out || !prop) return VC_CALL(cuMemCreate)(out, bytes, prop, flags);
  CUmemAllocationProp same = *prop; /* another thread may change it between our look and the driver's */
  if (vc_on_host(same.type, same.location.type)) return VC_CALL(cuMemCreate)(out, bytes, &same, flags);
  if (!vc_seat_ready()) return CUDA_ERROR_OUT_OF_MEMORY;
  if (same.location.type == CU_MEM_LOCATION_TYPE_DEVICE && !vc_device_is_ours(same.location.id))
    return CUDA_ERROR_INVALID_DEVICE;
  if (!vc_pools_reserve(vc_granules(bytes))) return CUDA_ERROR_OUT_OF_MEMORY;
  struct physical *p = malloc(sizeof *p);
  vc_lock(&guard);
  CUresult r = p ? VC_CALL(cuMemCreate)(out, bytes, &same, flags) : CUDA_ERROR_OUT_OF_MEMORY;
  if (r == CUDA_SUCCESS) {
    *p = (struct physical){.bytes = vc_granules(bytes), .handles = 1};
    /* Without a place to note it the memory stays charged: too much, never too little. */
    name_it(*out, p);
  }
  vc_unlock(&guard);
  if (r == CUDA_SUCCESS) return r;
  free(p);
  vc_unreserve(vc_granules(bytes));
  return r;
}

VC_HOOK CUresult cuMemRelease(CUmemGenericAllocationHandle handle) {
  struct vc_item item;
  vc_lock(&guard);
  struct physical *p = of_handle(handle);
  CUresult r = VC_CALL(cuMemRelease)(handle);
  if (p && r == CUDA_SUCCESS) {
    if (!--p->handles) vc_table_take(VC_PHYSICAL, handle, &item);
    drop_if_unused(p);
  }
  vc_unlock(&guard);
  return r;
}

/* ---- mappings, by address ---- */

struct mapping {
  uint64_t from, to;
  struct physical *physical;
};

static void *mappings; /* a tree of what does not overlap */

/* Overlapping ones are "equal", so that any address of a mapping finds it. */
static int by_address(const void *a, const void *b) {
  const struct mapping *x = a, *y = b;
  return x->to <= y->from ? -1 : x->from >= y->to;
}

/* With the guard held. */
static struct mapping *mapping_at(uint64_t from, uint64_t to) {
  struct mapping probe = {from, to, NULL};
  struct mapping **found = from < to ? tfind(&probe, &mappings, by_address) : NULL;
  return found ? *found : NULL;
}

static void put_mapping(struct mapping *m) {
  struct mapping **at = tsearch(m, &mappings, by_address);
  if (!at || *at != m) free(m); /* no memory for it: the allocation stays charged */
}

VC_HOOK CUresult cuMemMap(CUdeviceptr address, size_t bytes, size_t offset, CUmemGenericAllocationHandle handle,
                          unsigned long long flags) {
  vc_lock(&guard);
  struct physical *p = of_handle(handle);
  CUresult r = VC_CALL(cuMemMap)(address, bytes, offset, handle, flags);
  if (p && r == CUDA_SUCCESS) {
    struct mapping *m = malloc(sizeof *m);
    p->mappings++;
    if (m) {
      *m = (struct mapping){address, address + bytes, p};
      put_mapping(m);
    }
  }
  vc_unlock(&guard);
  return r;
}

/* With the guard held: what lies in the range, taken out of the tree. */
static struct mapping **take_mappings(uint64_t from, uint64_t to, size_t *count) {
  struct mapping **list = NULL, *m;
  size_t room = 0;
  for (*count = 0; (m = mapping_at(from, to)); ++*count) {
    if (*count == room) {
      struct mapping **more = realloc(list, (room = room ? 2 * room : 4) * sizeof *more);
      if (!more) break;
      list = more;
    }
    tdelete(m, &mappings, by_address);
    list[*count] = m;
  }
  return list;
}

VC_HOOK CUresult cuMemUnmap(CUdeviceptr address, size_t bytes) {
  size_t count;
  vc_lock(&guard);
  struct mapping **list = take_mappings(address, address + bytes, &count);
  CUresult r = VC_CALL(cuMemUnmap)(address, bytes);
  for (size_t i = 0; i < count; i++) {
    struct physical *p = list[i]->physical;
    if (r != CUDA_SUCCESS) {
      put_mapping(list[i]);
      continue;
    }
    p->mappings--;
    drop_if_unused(p);
    free(list[i]);
  }
  vc_unlock(&guard);
  free(list);
  return r;
}

VC_HOOK CUresult cuMemRetainAllocationHandle(CUmemGenericAllocationHandle *out, void *address) {
  uint64_t at = (uint64_t)(uintptr_t)address;
  vc_lock(&guard);
  struct mapping *m = mapping_at(at, at + 1);
  struct physical *p = m ? m->physical : NULL;
  CUresult r = VC_CALL(cuMemRetainAllocationHandle)(out, address);
  if (r == CUDA_SUCCESS) {
    struct physical *named = of_handle(*out), *held = named ? named : p;
    if (held) held->handles++;
    if (p && !named) name_it(*out, p);
  }
  vc_unlock(&guard);
  return r;
}

/* ---- what other processes can hold as well ---- */

VC_HOOK CUresult cuMemExportToShareableHandle(void *out, CUmemGenericAllocationHandle handle,
                                              CUmemAllocationHandleType type, unsigned long long flags) {
  vc_lock(&guard);
  CUresult r = VC_CALL(cuMemExportToShareableHandle)(out, handle, type, flags);
  struct physical *p = r == CUDA_SUCCESS ? of_handle(handle) : NULL;
  if (p) p->exported = true;
  vc_unlock(&guard);
  return r;
}

/* Our own, imported again: one handle more. */
VC_HOOK CUresult cuMemImportFromShareableHandle(CUmemGenericAllocationHandle *out, void *handle,
                                                CUmemAllocationHandleType type) {
  vc_lock(&guard);
  CUresult r = VC_CALL(cuMemImportFromShareableHandle)(out, handle, type);
  struct physical *p = r == CUDA_SUCCESS ? of_handle(*out) : NULL;
  if (p) p->handles++;
  vc_unlock(&guard);
  return r;
}

VC_HOOK CUresult cuMemGetHandleForAddressRange(void *out, CUdeviceptr address, size_t bytes, CUmemRangeHandleType type,
                                               unsigned long long flags) {
  vc_lock(&guard);
  CUresult r = VC_CALL(cuMemGetHandleForAddressRange)(out, address, bytes, type, flags);
  struct mapping *m = r == CUDA_SUCCESS ? mapping_at(address, address + 1) : NULL;
  if (m) m->physical->exported = true;
  vc_unlock(&guard);
  if (r == CUDA_SUCCESS) vc_memory_exported(address);
  return r;
}

/* ---- tiles of sparse arrays: mapping, remapping and unmapping a region of one subresource ---- */

struct tile {
  struct tile *next;
  struct physical *physical;
  CUarrayMapInfo at;
};

static struct tile *tiles;

struct box {
  uint64_t from[3], size[3];
};

static struct box box_of(const CUarrayMapInfo *i) {
  if (i->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL)
    return (struct box){{i->subresource.miptail.offset, 0, 0}, {i->subresource.miptail.size, 1, 1}};
  return (struct box){{i->subresource.sparseLevel.offsetX, i->subresource.sparseLevel.offsetY,
                       i->subresource.sparseLevel.offsetZ},
                      {i->subresource.sparseLevel.extentWidth,
                       i->subresource.sparseLevel.extentHeight,
                       i->subresource.sparseLevel.extentDepth}};
}

static uint64_t layer_of(const CUarrayMapInfo *i) {
  if (i->subresourceType == CU_ARRAY_SPARSE_SUBRESOURCE_TYPE_MIPTAIL)
    return i->subresource.miptail.layer;
  return (uint64_t)i->subresource.sparseLevel.level << 32 | i->subresource.sparseLevel.layer;
}

/* Only what lies wholly inside is gone: of a tile that is cut, a part may be in use. */
static bool inside(const CUarrayMapInfo *tile, const CUarrayMapInfo *region) {
  struct box t = box_of(tile), r = box_of(region);
  if (tile->resource.array != region->resource.array ||
      tile->subresourceType != region->subresourceType || layer_of(tile) != layer_of(region))
    return false;
  for (int i = 0; i < 3; i++)
    if (t.from[i] < r.from[i] || t.from[i] - r.from[i] + t.size[i] > r.size[i]) return false;
  return true;
}

/* With the guard held. A region means that one, none the whole array. */
static void untile(const void *array, const CUarrayMapInfo *region) {
  for (struct tile **at = &tiles; *at;) {
    struct tile *t = *at;
    if (t->at.resource.array != array || (region && !inside(&t->at, region))) {
      at = &t->next;
      continue;
    }
    *at = t->next;
    t->physical->mappings--;
    drop_if_unused(t->physical);
    free(t);
  }
}

CUresult vc_vmm_destroy(CUresult (*real)(void *), void *array) {
  vc_lock(&guard);
  CUresult r = real(array);
  if (r == CUDA_SUCCESS) untile(array, NULL);
  vc_unlock(&guard);
  return r;
}

static void retile(const CUarrayMapInfo *info, struct physical *p) {
  bool known = p != NULL;
  /* Counted before the old tile goes: it may show the same memory. Without a place to note the
   * tile the memory stays charged: too much, never too little. */
  if (known) p->mappings++;
  untile(info->resource.array, info);
  struct tile *t = known ? malloc(sizeof *t) : NULL;
  if (!t) return;
  *t = (struct tile){tiles, p, *info};
  tiles = t;
}

static CUresult map_array(CUarrayMapInfo *list, unsigned count, CUstream stream,
                          CUresult (*real)(CUarrayMapInfo *, unsigned, CUstream)) {
  struct physical **held = list && count ? calloc(count, sizeof *held) : NULL;
  if (!held) return list && count ? CUDA_ERROR_OUT_OF_MEMORY : real(list, count, stream);
  vc_lock(&guard);
  for (unsigned i = 0; i < count; i++)
    if (list[i].memOperationType == CU_MEM_OPERATION_TYPE_MAP) held[i] = of_handle(list[i].memHandle.memHandle);
  CUresult r = real(list, count, stream);
  for (unsigned i = 0; r == CUDA_SUCCESS && i < count; i++) retile(&list[i], held[i]);
  vc_unlock(&guard);
  free(held);
  return r;
}

VC_HOOK CUresult cuMemMapArrayAsync(CUarrayMapInfo *list, unsigned count, CUstream stream) {
  return map_array(list, count, stream, VC_REAL(cuMemMapArrayAsync));
}
VC_HOOK CUresult cuMemMapArrayAsync_ptsz(CUarrayMapInfo *list, unsigned count, CUstream stream) {
  return map_array(list, count, stream, VC_REAL(cuMemMapArrayAsync_ptsz));
}

void vc_vmm_reset(void) {
  atomic_store(&guard.word, 0);
  mappings = NULL;
  tiles = NULL;
}
