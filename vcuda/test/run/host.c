/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What programs do with their processes that has nothing to do with a GPU:
 *
 *   host forks            children forked while other threads are in the middle of every call
 *   host strays           the same in a program that has no seat, by calls that need none
 *   host starts           the same while another thread takes the seat
 *   host cancels          threads cancelled in the middle of calls, and others that go on
 *   host stacks           a thread with a stack of 16 KiB
 *   host nulls            calls with missing arguments
 *   host threadless       calls while no thread can be made
 *   host unmaps COUNT     so many mappings, made and taken away; prints the seconds it took
 */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL 1
#include "program.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <pthread.h>
#include <signal.h>
#include <stdint.h>
#include <string.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#define MIB (1ull << 20)

static CUcontext context;
static CUfunction kernel;
static _Atomic int over;

static void set_up(void) {
  context = open_gpu();
  kernel = kernel_named("spin_1us");
}

static CUmemAllocationProp on_device = {.type = CU_MEM_ALLOCATION_TYPE_PINNED,
                                        .location = {.type = CU_MEM_LOCATION_TYPE_DEVICE}};

static void once_each(void) {
  CUdeviceptr p, at;
  CUmemGenericAllocationHandle handle;
  CUgraph graph;
  CUgraphNode node;
  CUgraphExec exec;
  CUDA_MEM_ALLOC_NODE_PARAMS params = {.poolProps = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED,
                                                     .location = on_device.location},
                                       .bytesize = 2 * MIB};
  if (cuMemAlloc_v2(&p, 4096) == CUDA_SUCCESS) cuMemFree_v2(p);
  if (cuMemAllocAsync(&p, 4096, NULL) == CUDA_SUCCESS) cuMemFreeAsync(p, NULL);
  cuMemAddressReserve(&at, 2 * MIB, 0, 0, 0);
  if (cuMemCreate(&handle, 2 * MIB, &on_device, 0) == CUDA_SUCCESS) {
    cuMemMap(at, 2 * MIB, 0, handle, 0);
    cuMemRelease(handle);
    cuMemUnmap(at, 2 * MIB);
  }
  cuMemAddressFree(at, 2 * MIB);
  cuGraphCreate(&graph, 0);
  cuGraphAddMemAllocNode(&node, graph, NULL, 0, &params);
  if (cuGraphInstantiateWithFlags(&exec, graph, 0) == CUDA_SUCCESS) {
    cuGraphLaunch(exec, NULL);
    cuGraphExecDestroy(exec);
  }
  cuGraphDestroy(graph);
  cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
  cuCtxSynchronize();
}

static void *busy(void *unused) {
  cuCtxSetCurrent(context);
  while (!over) once_each();
  return unused;
}

/* Nothing of CUDA works in a child of a process that uses it; but the calls that programs make
 * there by their destructors must come back. */
static void in_child(void) {
  void *found;
  CUdriverProcAddressQueryResult status;
  cuGetProcAddress_v2("cuMemAlloc", &found, 12000, 0, &status);
  dlsym(RTLD_DEFAULT, "cuMemAlloc_v2");
  cuMemFree_v2(12345);
  cuMemFreeAsync(12345, NULL);
  cuMemUnmap(1ull << 40, 2 * MIB);
  cuMemFreeHost((void *)(uintptr_t)12345);
}

/* Whether a child hangs that is forked now, and does this. */
static int hangs(void (*what)(void)) {
  int status;
  pid_t child = fork();
  if (!child) {
    alarm(10);
    what();
    _exit(0);
  }
  waitpid(child, &status, 0);
  return WIFSIGNALED(status) && WTERMSIG(status) == SIGALRM;
}

static int forks_beside(void *(*work)(void *), int children) {
  pthread_t t[3];
  int hung = 0;
  for (int i = 0; i < 3; i++) pthread_create(&t[i], NULL, work, NULL);
  for (int i = 0; i < children; i++) {
    hung += hangs(in_child);
    usleep(300);
  }
  over = 1;
  for (int i = 0; i < 3; i++) pthread_join(t[i], NULL);
  return hung;
}

static int forks(void) {
  set_up();
  return forks_beside(busy, 150);
}

static void *stray(void *unused) {
  while (!over) cuMemFree_v2(12345);
  return unused;
}

static void retain(void) {
  cuDevicePrimaryCtxRetain(&context, 0);
}

static void *take_seat(void *unused) {
  retain();
  return unused;
}

/* Each in a process of its own, for a seat is taken once. Its children take it as well. */
static int starts(void) {
  int hung = 0;
  for (int i = 0; i < 60; i++) {
    int status;
    pid_t first = fork();
    if (!first) {
      pthread_t t;
      must(cuInit(0), "init");
      pthread_create(&t, NULL, take_seat, NULL);
      usleep((useconds_t)(i % 20) * 50);
      int hung_there = hangs(retain);
      pthread_join(t, NULL);
      _exit(hung_there);
    }
    waitpid(first, &status, 0);
    hung += !WIFEXITED(status) || WEXITSTATUS(status);
  }
  return hung;
}

static void *destroys(void *unused) {
  CUmemPoolProps props = {.allocType = CU_MEM_ALLOCATION_TYPE_PINNED, .location = on_device.location};
  CUmemoryPool pool;
  CUdeviceptr p;
  cuCtxSetCurrent(context);
  must(cuMemPoolCreate(&pool, &props), "pool");
  must(cuMemAllocFromPoolAsync(&p, 2 * MIB, pool, NULL), "allocation");
  cuMemPoolDestroy(pool);
  cuMemFreeAsync(p, NULL);
  cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
  return unused;
}

/* Each is cancelled at its first call that has a cancellation point. What it was about may stay charged; the
 * next ones need the same locks. */
static int cancels(void) {
  pthread_t t;
  set_up();
  alarm(60);
  for (int i = 0; i < 50; i++) {
    pthread_create(&t, NULL, destroys, NULL);
    pthread_cancel(t);
    pthread_join(t, NULL);
    once_each();
  }
  destroys(NULL);
  return 0;
}

static void *small(void *unused) {
  cuCtxSetCurrent(context);
  for (int i = 0; i < 20; i++) once_each();
  return unused;
}

static int stacks(void) {
  pthread_attr_t attributes;
  pthread_t t;
  set_up();
  pthread_attr_init(&attributes);
  pthread_attr_setstacksize(&attributes, 16384);
  if (pthread_create(&t, &attributes, small, NULL)) return 1;
  pthread_join(t, NULL);
  return 0;
}

static int nulls(void) {
  CUdriverProcAddressQueryResult status;
  CUcontext c;
  set_up();
  cuMemAlloc_v2(NULL, 4096);
  cuMemAllocAsync(NULL, 4096, NULL);
  cuMemAllocFromPoolAsync(NULL, 4096, NULL, NULL);
  cuMemAllocManaged(NULL, 4096, 1);
  cuMemAllocPitch_v2(NULL, NULL, 4096, 16, 4);
  cuMemCreate(NULL, 2 * MIB, &on_device, 0);
  cuMemCreate(NULL, 2 * MIB, NULL, 0);
  cuArrayCreate_v2(NULL, NULL);
  cuArray3DCreate_v2(NULL, NULL);
  cuMipmappedArrayCreate(NULL, NULL, 1);
  cuArrayDestroy(NULL);
  cuMemPoolCreate(NULL, NULL);
  cuMemPoolDestroy(NULL);
  cuLaunchKernelEx(NULL, kernel, NULL, NULL);
  cuLaunchKernel(NULL, 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL);
  cuModuleLoadData(NULL, NULL);
  cuModuleLoad(NULL, NULL);
  cuModuleUnload(NULL);
  cuGetProcAddress_v2(NULL, NULL, 0, 0, &status);
  cuMemGetInfo_v2(NULL, NULL);
  cuDeviceTotalMem_v2(NULL, 0);
  cuMemMapArrayAsync(NULL, 0, NULL);
  cuCtxCreate_v2(&c, 0, 99);
  cuMemFree_v2(0);
  return 0;
}

static int descriptors(void) {
  int count = 0;
  for (int fd = 0; fd < 1024; fd++) count += fcntl(fd, F_GETFD) >= 0;
  return count;
}

/* Nothing is taken and nothing is lost; once there are threads again, all is well. */
static int threadless(void) {
  pthread_attr_t usual, endless;
  CUdeviceptr p;
  int bad = 0, before = 0;
  must(cuInit(0), "init");
  pthread_getattr_default_np(&usual);
  endless = usual;
  pthread_attr_setstacksize(&endless, (size_t)1 << 46);
  pthread_setattr_default_np(&endless);
  for (int i = 0; i < 100; i++) {
    bad += cuDevicePrimaryCtxRetain(&context, 0) == CUDA_SUCCESS;
    if (!i) before = descriptors();
  }
  bad += descriptors() != before;
  pthread_setattr_default_np(&usual);
  set_up();
  return bad + (cuMemAlloc_v2(&p, MIB) != CUDA_SUCCESS);
}

static int unmaps(long count) {
  struct timespec from, to;
  CUmemGenericAllocationHandle handle;
  CUdeviceptr at;
  set_up();
  must(cuMemAddressReserve(&at, (size_t)count * 2 * MIB, 0, 0, 0), "reserve");
  must(cuMemCreate(&handle, 2 * MIB, &on_device, 0), "create");
  clock_gettime(CLOCK_MONOTONIC, &from);
  for (long i = 0; i < count; i++)
    must(cuMemMap(at + (CUdeviceptr)i * 2 * MIB, 2 * MIB, 0, handle, 0), "map");
  for (long i = count; i-- > 0;) must(cuMemUnmap(at + (CUdeviceptr)i * 2 * MIB, 2 * MIB), "unmap");
  clock_gettime(CLOCK_MONOTONIC, &to);
  printf("{\"seconds\": %.3f}\n",
         (double)(to.tv_sec - from.tv_sec) + (double)(to.tv_nsec - from.tv_nsec) / 1e9);
  return 0;
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  int bad = !strcmp(what, "forks")    ? forks()
            : !strcmp(what, "strays") ? forks_beside(stray, 300)
            : !strcmp(what, "starts") ? starts()
            : !strcmp(what, "cancels") ? cancels()
            : !strcmp(what, "stacks") ? stacks()
            : !strcmp(what, "nulls")  ? nulls()
            : !strcmp(what, "threadless") ? threadless()
                                      : unmaps(argc > 2 ? atol(argv[2]) : 1000);
  printf("{\"bad\": %d}\n", bad);
  return 0;
}
