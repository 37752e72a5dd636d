/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver-API program of the GPU suite. Its kernel spins for a given time by the GPU's own
 * timer.
 *
 *   gpu spin SECONDS US [BATCH HOST_US]  launch without end, or batches with host work in between
 *   gpu cap                              fill the slice by each allocating call until it is refused
 *   gpu hold MIB                         allocate, say so, and wait to be killed
 */
#include <cuda.h>

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define PIECE (64 * MIB)
#define PIECES 512
#define SLACK (320 * MIB) /* what a pool or the driver may keep, and a piece that no longer fits   \
                           */

static const char ptx[] = ".version 6.0\n.target sm_52\n.address_size 64\n"
                          ".visible .entry spin(.param .u64 ns)\n{\n"
                          ".reg .u64 %a, %b, %n;\n.reg .pred %p;\n"
                          "ld.param.u64 %n, [ns];\nmov.u64 %a, %globaltimer;\n"
                          "again:\nmov.u64 %b, %globaltimer;\nsub.u64 %b, %b, %a;\n"
                          "setp.lt.u64 %p, %b, %n;\n@%p bra again;\nret;\n}\n";

static CUmemoryPool own_pool;

static void must(CUresult r, const char *what) {
  if (r == CUDA_SUCCESS) return;
  fprintf(stderr, "gpu: %s failed with %d\n", what, (int)r);
  exit(3);
}

static void set_up(void) {
  CUdevice device;
  CUcontext context;
  must(cuInit(0), "init");
  must(cuDeviceGet(&device, 0), "device");
  must(cuDevicePrimaryCtxRetain(&context, device), "context");
  must(cuCtxSetCurrent(context), "context");
}

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int spin(int argc, char **argv) {
  double seconds = atof(argv[2]), start, at;
  unsigned long long ns = strtoull(argv[3], NULL, 10) * 1000;
  int batch = argc > 4 ? atoi(argv[4]) : 1, host_us = argc > 5 ? atoi(argv[5]) : 0;
  void *params[] = {&ns};
  CUmodule module;
  CUfunction kernel;
  long count = 0;
  must(cuModuleLoadData(&module, ptx), "module");
  must(cuModuleGetFunction(&kernel, module, "spin"), "function");
  for (start = at = now(); at < start + seconds; at = now()) {
    for (int i = 0; i < batch; i++, count++)
      must(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL), "launch");
    if (!host_us) continue;
    must(cuCtxSynchronize(), "synchronise");
    usleep((unsigned)host_us);
  }
  must(cuCtxSynchronize(), "synchronise");
  printf("{\"kernels\": %ld, \"seconds\": %.6f}\n", count, now() - start);
  return 0;
}

/* ---- the cap, by every allocating call ---- */

struct piece {
  CUdeviceptr address;
  void *object;
};

static CUresult plain(struct piece *p) {
  return cuMemAlloc(&p->address, PIECE);
}
static CUresult pitched(struct piece *p) {
  size_t pitch;
  return cuMemAllocPitch(&p->address, &pitch, 65536, PIECE / 65536, 4);
}
static CUresult managed(struct piece *p) {
  return cuMemAllocManaged(&p->address, PIECE, CU_MEM_ATTACH_GLOBAL);
}
static CUresult plain_free(struct piece *p) {
  return cuMemFree(p->address);
}

static CUresult ordered(struct piece *p) {
  return cuMemAllocAsync(&p->address, PIECE, NULL);
}
static CUresult pooled(struct piece *p) {
  CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                          .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  if (!own_pool) must(cuMemPoolCreate(&own_pool, &props), "pool");
  return cuMemAllocFromPoolAsync(&p->address, PIECE, own_pool, NULL);
}
static CUresult ordered_free(struct piece *p) {
  return cuMemFreeAsync(p->address, NULL);
}

static CUresult physical(struct piece *p) {
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  CUmemGenericAllocationHandle handle = 0;
  CUresult r = cuMemCreate(&handle, PIECE, &prop, 0);
  p->address = handle;
  return r;
}
static CUresult physical_free(struct piece *p) {
  return cuMemRelease(p->address);
}

static CUresult array(struct piece *p) {
  CUDA_ARRAY_DESCRIPTOR d = {4096, PIECE / 16384, CU_AD_FORMAT_FLOAT, 1};
  return cuArrayCreate((CUarray *)&p->object, &d);
}
static CUresult deep_array(struct piece *p) {
  CUDA_ARRAY3D_DESCRIPTOR d = {256, 256, PIECE / (256 * 256 * 4), CU_AD_FORMAT_FLOAT, 1, 0};
  return cuArray3DCreate((CUarray *)&p->object, &d);
}
static CUresult array_free(struct piece *p) {
  return cuArrayDestroy(p->object);
}

static CUresult mipmap(struct piece *p) {
  CUDA_ARRAY3D_DESCRIPTOR d = {4096, 4096, 0, CU_AD_FORMAT_FLOAT, 1, 0};
  return cuMipmappedArrayCreate((CUmipmappedArray *)&p->object, &d, 1);
}
static CUresult mipmap_free(struct piece *p) {
  return cuMipmappedArrayDestroy(p->object);
}

static CUresult graph(struct piece *p) {
  CUDA_MEM_ALLOC_NODE_PARAMS params = {
      .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
      .bytesize = PIECE};
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

static size_t spare(size_t *total) {
  size_t left;
  CUmemoryPool standard;
  must(cuCtxSynchronize(), "synchronise");
  must(cuDeviceGetDefaultMemPool(&standard, 0), "pool");
  must(cuMemPoolTrimTo(standard, 0), "trim");
  if (own_pool) must(cuMemPoolTrimTo(own_pool, 0), "trim");
  must(cuDeviceGraphMemTrim(0), "trim");
  must(cuMemGetInfo(&left, total), "info");
  return left;
}

static int cap(void) {
  static struct piece piece[PIECES];
  size_t total;
  int bad = 0;
  usleep(1000000); /* until the arbiter has seen what the context takes */
  for (unsigned k = 0; k < sizeof calls / sizeof *calls; k++) {
    size_t before = spare(&total);
    unsigned count = 0;
    CUresult r = CUDA_SUCCESS;
    while (count < PIECES && (r = calls[k].take(&piece[count])) == CUDA_SUCCESS) count++;
    size_t taken = count * PIECE;
    for (unsigned i = 0; i < count; i++) must(calls[k].give(&piece[i]), "free");
    size_t after = spare(&total);
    if (r == CUDA_ERROR_OUT_OF_MEMORY && taken <= before && taken + SLACK >= before &&
        after + SLACK >= before)
      continue;
    printf("%s: %zu MiB granted of %zu, then %d; %zu MiB after\n", calls[k].name,
           (size_t)(taken / MIB), (size_t)(before / MIB), (int)r, (size_t)(after / MIB));
    bad++;
  }
  printf("{\"calls\": %zu, \"bad\": %d, \"total\": %zu}\n", sizeof calls / sizeof *calls, bad,
         total);
  return 0;
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  CUdeviceptr p;
  set_up();
  if (!strcmp(what, "spin") && argc > 3) return spin(argc, argv);
  if (!strcmp(what, "cap")) return cap();
  if (strcmp(what, "hold") || argc < 3) return 2;
  must(cuMemAlloc(&p, strtoull(argv[2], NULL, 10) * MIB), "hold");
  printf("holding\n");
  fflush(stdout);
  pause();
  return 0;
}
