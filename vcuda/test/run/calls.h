/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Every allocating call of the driver API beside the one that gives back, for programs that try
 * them all against a cap: on the fake GPU (memory.c) and on a real one (benchmarks/gpu/gpu.c).
 * Sizes are whole MiB.
 */
#ifndef CALLS_H
#define CALLS_H
#include "program.h"

#define MIB (1ull << 20)

struct piece {
  unsigned call;
  size_t bytes;
  CUdeviceptr address;
  void *object;
};

static CUmemoryPool own_pool;

static CUresult plain(struct piece *p) {
  return cuMemAlloc(&p->address, p->bytes);
}
static CUresult pitched(struct piece *p) {
  size_t pitch;
  return cuMemAllocPitch(&p->address, &pitch, 65536, p->bytes / 65536, 4);
}
static CUresult managed(struct piece *p) {
  return cuMemAllocManaged(&p->address, p->bytes, CU_MEM_ATTACH_GLOBAL);
}
static CUresult plain_free(struct piece *p) {
  return cuMemFree(p->address);
}

static CUresult ordered(struct piece *p) {
  return cuMemAllocAsync(&p->address, p->bytes, NULL);
}
static CUresult pooled(struct piece *p) {
  CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                          .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  if (!own_pool) must(cuMemPoolCreate(&own_pool, &props), "pool");
  return cuMemAllocFromPoolAsync(&p->address, p->bytes, own_pool, NULL);
}
static CUresult ordered_free(struct piece *p) {
  return cuMemFreeAsync(p->address, NULL);
}

static CUresult physical(struct piece *p) {
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  CUmemGenericAllocationHandle handle = 0;
  CUresult r = cuMemCreate(&handle, p->bytes, &prop, 0);
  p->address = handle;
  return r;
}
static CUresult physical_free(struct piece *p) {
  return cuMemRelease(p->address);
}

static CUresult array(struct piece *p) {
  CUDA_ARRAY_DESCRIPTOR d = {4096, p->bytes / 16384, CU_AD_FORMAT_FLOAT, 1};
  return cuArrayCreate((CUarray *)&p->object, &d);
}
static CUresult deep_array(struct piece *p) {
  CUDA_ARRAY3D_DESCRIPTOR d = {256, 256, p->bytes / (256 * 256 * 4), CU_AD_FORMAT_FLOAT, 1, 0};
  return cuArray3DCreate((CUarray *)&p->object, &d);
}
static CUresult array_free(struct piece *p) {
  return cuArrayDestroy(p->object);
}

static CUresult mipmap(struct piece *p) {
  CUDA_ARRAY3D_DESCRIPTOR d = {4096, p->bytes / 16384, 0, CU_AD_FORMAT_FLOAT, 1, 0};
  return cuMipmappedArrayCreate((CUmipmappedArray *)&p->object, &d, 1);
}
static CUresult mipmap_free(struct piece *p) {
  return cuMipmappedArrayDestroy(p->object);
}

/* A graph's memory is the device's from its first launch until it is trimmed. */
static CUresult graph(struct piece *p) {
  CUDA_MEM_ALLOC_NODE_PARAMS params = {
      .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
      .bytesize = p->bytes};
  CUgraph g;
  CUgraphNode node;
  must(cuGraphCreate(&g, 0), "graph");
  must(cuGraphAddMemAllocNode(&node, g, NULL, 0, &params), "node");
  must(cuGraphInstantiateWithFlags((CUgraphExec *)&p->object, g, 0), "instantiate");
  must(cuGraphDestroy(g), "destroy");
  p->address = params.dptr;
  CUresult r = cuGraphLaunch(p->object, NULL);
  if (r != CUDA_SUCCESS) must(cuGraphExecDestroy(p->object), "destroy");
  return r;
}
/* On a real GPU the memory is free for the next graph once it is freed; trimmed, it is gone. */
static CUresult graph_free(struct piece *p) {
  cuMemFree(p->address);
  return cuGraphExecDestroy(p->object);
}

static const struct {
  const char *name;
  CUresult (*take)(struct piece *), (*give)(struct piece *);
} calls[] = {
    {"cuMemAlloc", plain, plain_free},
    {"cuMemAllocPitch", pitched, plain_free},
    {"cuMemAllocManaged", managed, plain_free},
    {"cuMemAllocAsync", ordered, ordered_free},
    {"cuMemAllocFromPoolAsync", pooled, ordered_free},
    {"cuMemCreate", physical, physical_free},
    {"cuArrayCreate", array, array_free},
    {"cuArray3DCreate", deep_array, array_free},
    {"cuMipmappedArrayCreate", mipmap, mipmap_free},
    {"cuGraphAddMemAllocNode", graph, graph_free},
};
#define CALLS (sizeof calls / sizeof *calls)

static CUresult take(struct piece *p, unsigned call, size_t mib) {
  *p = (struct piece){.call = call, .bytes = mib * MIB};
  return calls[call].take(p);
}

static void give(struct piece *p) {
  must(calls[p->call].give(p), "free");
}

/* Have the driver give back what it keeps for later. */
static void trim(void) {
  CUmemoryPool standard;
  must(cuDeviceGetDefaultMemPool(&standard, 0), "pool");
  must(cuMemPoolTrimTo(standard, 0), "trim");
  if (own_pool) must(cuMemPoolTrimTo(own_pool, 0), "trim");
  must(cuDeviceGraphMemTrim(0), "trim");
}

#endif
