/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sixteen processes race for the last bytes of a cap, by every allocating call.
 *
 *   memory race ROUNDS PROCESSES CAP_MIB   the race, with this program as its own referee
 *   memory calls                           each allocating call against the cap, one by one
 *   memory hold MIB                        allocate, say so, and wait to be killed
 *   memory loop                            allocate and free without end
 *   memory info                            what the driver says there is
 */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>

#include <pthread.h>
#include <stdbool.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#define MIB (1ull << 20)
#define KINDS 10

struct shared {
  pthread_barrier_t barrier;
  _Atomic unsigned long held, over, granted, refused, wrong;
  unsigned long cap;
};

struct piece {
  int kind;
  unsigned long bytes;
  CUdeviceptr address;
  void *handle;
};

static const char *names[KINDS] = {"cuMemAlloc",
                                   "cuMemAllocPitch",
                                   "cuMemAllocManaged",
                                   "cuMemAllocAsync",
                                   "cuMemCreate",
                                   "cuArrayCreate",
                                   "cuArray3DCreate",
                                   "cuMipmappedArrayCreate",
                                   "cuMemAllocFromPoolAsync",
                                   "cuGraphAddMemAllocNode"};

static void must(CUresult r, const char *what) {
  if (r == CUDA_SUCCESS) return;
  fprintf(stderr, "memory: %s failed with %d\n", what, (int)r);
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

static CUmemoryPool pool(void) {
  static CUmemoryPool own;
  CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                          .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  if (!own) must(cuMemPoolCreate(&own, &props), "pool");
  return own;
}

/* A graph's memory is the device's from its first launch until it is trimmed. */
static CUresult take_graph(struct piece *p) {
  CUDA_MEM_ALLOC_NODE_PARAMS params = {
      .poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                    .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}},
      .bytesize = p->bytes};
  CUgraph graph;
  CUgraphNode node;
  CUgraphExec exec;
  must(cuGraphCreate(&graph, 0), "graph");
  must(cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params), "node");
  must(cuGraphInstantiateWithFlags(&exec, graph, 0), "instantiate");
  must(cuGraphDestroy(graph), "destroy");
  CUresult r = cuGraphLaunch(exec, NULL);
  if (r != CUDA_SUCCESS) must(cuGraphExecDestroy(exec), "destroy");
  p->handle = exec;
  return r;
}

static CUresult take(struct piece *p, int kind, unsigned long mib) {
  unsigned long bytes = mib * MIB;
  size_t pitch;
  CUmemGenericAllocationHandle handle = 0;
  CUmemAllocationProp prop = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                              .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};
  CUDA_ARRAY_DESCRIPTOR flat = {1024, mib * 1024, CU_AD_FORMAT_UNSIGNED_INT8, 1};
  CUDA_ARRAY3D_DESCRIPTOR deep = {1024, 1024, mib, CU_AD_FORMAT_UNSIGNED_INT8, 1, 0};
  CUresult r = CUDA_SUCCESS;
  *p = (struct piece){.kind = kind, .bytes = bytes};
  switch (kind) {
  case 0:
    r = cuMemAlloc_v2(&p->address, bytes);
    break;
  case 1:
    r = cuMemAllocPitch_v2(&p->address, &pitch, 1024, mib * 1024, 4);
    break;
  case 2:
    r = cuMemAllocManaged(&p->address, bytes, CU_MEM_ATTACH_GLOBAL);
    break;
  case 3:
    r = cuMemAllocAsync(&p->address, bytes, NULL);
    break;
  case 4:
    r = cuMemCreate(&handle, bytes, &prop, 0);
    break;
  case 5:
    r = cuArrayCreate_v2((CUarray *)&p->handle, &flat);
    break;
  case 6:
    r = cuArray3DCreate_v2((CUarray *)&p->handle, &deep);
    break;
  case 7:
    r = cuMipmappedArrayCreate((CUmipmappedArray *)&p->handle, &deep, 1);
    break;
  case 8:
    r = cuMemAllocFromPoolAsync(&p->address, bytes, pool(), NULL);
    break;
  case 9:
    r = take_graph(p);
    break;
  }
  if (kind == 4) p->address = handle;
  return r;
}

static void give(struct piece *p) {
  switch (p->kind) {
  case 3:
  case 8:
    must(cuMemFreeAsync(p->address, NULL), "free");
    must(cuMemPoolTrimTo(p->kind == 8 ? pool() : ({
                           CUmemoryPool d;
                           must(cuDeviceGetDefaultMemPool(&d, 0), "pool");
                           d;
                         }),
                         0),
         "trim");
    break;
  case 4:
    must(cuMemRelease(p->address), "release");
    break;
  case 9:
    must(cuGraphExecDestroy(p->handle), "destroy");
    must(cuDeviceGraphMemTrim(0), "trim");
    break;
  case 5:
  case 6:
    must(cuArrayDestroy(p->handle), "destroy");
    break;
  case 7:
    must(cuMipmappedArrayDestroy(p->handle), "destroy");
    break;
  default:
    must(cuMemFree_v2(p->address), "free");
  }
}

/* What every process has been granted is added up on the side; the sum must never pass the cap. */
static void racer(struct shared *s, int me, int rounds) {
  struct piece piece[8];
  unsigned seed = (unsigned)me * 2654435761u + 1;
  set_up();
  pthread_barrier_wait(&s->barrier);
  for (int round = 0; round < rounds; round++) {
    int have = 0;
    for (int i = 0; i < 2; i++) {
      unsigned long mib = 2 * (1 + (unsigned)rand_r(&seed) % 64);
      CUresult r = take(&piece[have], (round + me + i) % KINDS, mib);
      if (r == CUDA_SUCCESS) {
        unsigned long held = atomic_fetch_add(&s->held, mib * MIB) + mib * MIB;
        if (held > s->cap) atomic_fetch_add(&s->over, 1);
        atomic_fetch_add(&s->granted, 1);
        have++;
      } else {
        atomic_fetch_add(r == CUDA_ERROR_OUT_OF_MEMORY ? &s->refused : &s->wrong, 1);
      }
    }
    while (have--) {
      atomic_fetch_sub(&s->held, piece[have].bytes);
      give(&piece[have]);
    }
  }
  exit(0);
}

static int race(int rounds, int processes, unsigned long cap_mib) {
  struct shared *s =
      mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pthread_barrierattr_t attr;
  pthread_barrierattr_init(&attr);
  pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&s->barrier, &attr, (unsigned)processes);
  s->cap = cap_mib * MIB;
  int bad = 0, status;
  for (int i = 0; i < processes; i++)
    if (fork() == 0) racer(s, i, rounds);
  while (wait(&status) > 0) bad += status != 0;
  printf("{\"over\": %lu, \"granted\": %lu, \"refused\": %lu, \"wrong\": %lu, \"bad\": %d, "
         "\"left\": %lu}\n",
         s->over, s->granted, s->refused, s->wrong, bad, s->held);
  return 0;
}

static int calls(void) {
  size_t before, after, total;
  struct piece p, q;
  int bad = 0;
  set_up();
  must(cuMemGetInfo_v2(&before, &total), "info");
  for (int kind = 0; kind < KINDS; kind++) {
    CUresult too_much = take(&q, kind, (total / MIB) + 2);
    CUresult fits = take(&p, kind, total / MIB - 2), again = CUDA_SUCCESS;
    if (fits == CUDA_SUCCESS) {
      again = take(&q, (kind + 1) % KINDS, 4);
      give(&p);
    }
    cuCtxSynchronize();
    must(cuMemGetInfo_v2(&after, &total), "info");
    bool ok = too_much == CUDA_ERROR_OUT_OF_MEMORY && fits == CUDA_SUCCESS &&
              again == CUDA_ERROR_OUT_OF_MEMORY && after == before;
    if (!ok)
      printf("%s: %d %d %d, free %zu then %zu\n", names[kind], too_much, fits, again, before,
             after);
    bad += !ok;
  }
  printf("{\"bad\": %d, \"total\": %zu, \"free\": %zu}\n", bad, total, after);
  return 0;
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  size_t spare, total, all;
  struct piece p;
  if (!strcmp(what, "race")) return race(atoi(argv[2]), atoi(argv[3]), strtoul(argv[4], NULL, 10));
  if (!strcmp(what, "calls")) return calls();
  set_up();
  if (!strcmp(what, "hold")) {
    must(take(&p, 0, strtoul(argv[2], NULL, 10)), "hold");
    printf("holding\n");
    fflush(stdout);
    pause();
  }
  for (int i = 0; !strcmp(what, "loop"); i++)
    if (take(&p, i % KINDS, 64) == CUDA_SUCCESS) give(&p);
  must(cuMemGetInfo_v2(&spare, &total), "info");
  must(cuDeviceTotalMem_v2(&all, 0), "total");
  printf("{\"free\": %zu, \"total\": %zu, \"device\": %zu}\n", spare, total, all);
  return 0;
}
