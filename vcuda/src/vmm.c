/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Virtual memory management. The bytes are held until the last handle is released and the last
 * mapping is gone, so each physical allocation counts both.
 */
#include "account.h"
#include "memory.h"
#include "connection.h"

#include <stdlib.h>

struct physical {
  uint64_t bytes;
  uint32_t handles, mappings;
};

static struct vc_lock guard;

/* With the guard held. */
static void drop_if_unused(struct physical *p) {
  if (p->handles || p->mappings) return;
  vc_unreserve(p->bytes);
  free(p);
}

static bool note(enum vc_kind kind, uint64_t key, uint64_t bytes, struct physical *p) {
  return vc_table_put(
      (struct vc_item){.key = key, .bytes = bytes, .owner = p, .kind = (uint32_t)kind});
}

VC_HOOK(cuMemCreate, (CUmemGenericAllocationHandle * out, size_t bytes,
                      const CUmemAllocationProp *prop, unsigned long long flags)) {
  if (!prop || prop->location.type != CU_MEM_LOCATION_TYPE_DEVICE)
    return VC_CALL(cuMemCreate)(out, bytes, prop, flags);
  if (!vc_seat_ready() || !vc_reserve(vc_granules(bytes))) return CUDA_ERROR_OUT_OF_MEMORY;
  struct physical *p = malloc(sizeof *p);
  CUresult r = p ? VC_CALL(cuMemCreate)(out, bytes, prop, flags) : CUDA_ERROR_OUT_OF_MEMORY;
  if (r != CUDA_SUCCESS) {
    free(p);
    vc_unreserve(vc_granules(bytes));
    return r;
  }
  *p = (struct physical){vc_granules(bytes), 1, 0};
  note(VC_PHYSICAL, *out, bytes, p);
  return r;
}

VC_HOOK(cuMemRelease, (CUmemGenericAllocationHandle handle)) {
  struct vc_item item;
  vc_lock(&guard);
  bool known = vc_table_take(VC_PHYSICAL, handle, &item);
  CUresult r = VC_CALL(cuMemRelease)(handle);
  if (known && r == CUDA_SUCCESS) {
    struct physical *p = item.owner;
    if (--p->handles) vc_table_put(item);
    drop_if_unused(p);
  } else if (known) {
    vc_table_put(item);
  }
  vc_unlock(&guard);
  return r;
}

VC_HOOK(cuMemMap, (CUdeviceptr address, size_t bytes, size_t offset,
                   CUmemGenericAllocationHandle handle, unsigned long long flags)) {
  struct vc_item item;
  vc_lock(&guard);
  CUresult r = VC_CALL(cuMemMap)(address, bytes, offset, handle, flags);
  if (r == CUDA_SUCCESS && vc_table_find(VC_PHYSICAL, handle, &item)) {
    struct physical *p = item.owner;
    if (note(VC_MAPPING, address, bytes, p)) p->mappings++;
  }
  vc_unlock(&guard);
  return r;
}

struct range {
  uint64_t from, to;
};

static bool mapped_within(const struct vc_item *item, void *argument) {
  const struct range *r = argument;
  return item->kind == VC_MAPPING && item->key >= r->from && item->key < r->to;
}

VC_HOOK(cuMemUnmap, (CUdeviceptr address, size_t bytes)) {
  struct range range = {address, address + bytes};
  struct vc_item item;
  vc_lock(&guard);
  CUresult r = VC_CALL(cuMemUnmap)(address, bytes);
  while (r == CUDA_SUCCESS && vc_table_take_if(mapped_within, &range, &item)) {
    struct physical *p = item.owner;
    p->mappings--;
    drop_if_unused(p);
  }
  vc_unlock(&guard);
  return r;
}

static bool covers(const struct vc_item *item, void *argument) {
  uint64_t at = *(uint64_t *)argument;
  return item->kind == VC_MAPPING && at >= item->key && at - item->key < item->bytes;
}

VC_HOOK(cuMemRetainAllocationHandle, (CUmemGenericAllocationHandle * out, void *address)) {
  struct vc_item mapping, handle;
  uint64_t at = (uint64_t)(uintptr_t)address;
  vc_lock(&guard);
  CUresult r = VC_CALL(cuMemRetainAllocationHandle)(out, address);
  if (r == CUDA_SUCCESS && vc_table_take_if(covers, &at, &mapping)) {
    struct physical *p = mapping.owner;
    vc_table_put(mapping);
    p->handles++;
    if (!vc_table_find(VC_PHYSICAL, *out, &handle)) note(VC_PHYSICAL, *out, p->bytes, p);
  }
  vc_unlock(&guard);
  return r;
}

/* ---- tiles of sparse arrays: what maps, remaps and unmaps a region of one subresource ---- */

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

void vc_vmm_forget(const void *array) {
  vc_lock(&guard);
  untile(array, NULL);
  vc_unlock(&guard);
}

static void retile(const CUarrayMapInfo *info) {
  struct vc_item item = {0};
  bool maps = info->memOperationType == CU_MEM_OPERATION_TYPE_MAP;
  bool known = maps && vc_table_find(VC_PHYSICAL, info->memHandle.memHandle, &item);
  struct physical *p = item.owner;
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
  vc_lock(&guard);
  CUresult r = real(list, count, stream);
  for (unsigned i = 0; r == CUDA_SUCCESS && i < count; i++) retile(&list[i]);
  vc_unlock(&guard);
  return r;
}

VC_HOOK(cuMemMapArrayAsync, (CUarrayMapInfo * list, unsigned count, CUstream stream)) {
  return map_array(list, count, stream, VC_REAL(cuMemMapArrayAsync));
}
VC_HOOK(cuMemMapArrayAsync_ptsz, (CUarrayMapInfo * list, unsigned count, CUstream stream)) {
  return map_array(list, count, stream, VC_REAL(cuMemMapArrayAsync_ptsz));
}
