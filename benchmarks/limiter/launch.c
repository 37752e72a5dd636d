/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What one launch costs on the CPU, in nanoseconds, the least of many rounds: launches right after
 * one another of a kernel that does nothing, without a fence falling due, and all launches, fences
 * included. A second thread sleeps beside them, as in every process that a CUDA driver has started in: with one
 * thread alone the C library takes its locks, of which the fake driver has some, in a cheaper way.
 */
#define _GNU_SOURCE
#include <cuda.h>

#include <pthread.h>
#include <stdio.h>
#include <time.h>
#include <unistd.h>

#define ROUNDS 4000
#define BATCH 48 /* fewer than a fence covers */
#define LONG 20000
#define QUESTIONS 200

static const char ptx[] = ".version 6.0\n.target sm_52\n.address_size 64\n"
                          ".visible .entry spin_0ns()\n{\nret;\n}\n";
static CUfunction kernel;

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec * 1e9 + (double)t.tv_nsec;
}

static double launches(int count) {
  double start = now();
  for (int i = 0; i < count; i++)
    if (cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL)) return 1e18;
  return (now() - start) / count;
}

static CUstream idle;

static double questions(int count) {
  size_t free, total;
  double start = now();
  for (int i = 0; i < count; i++)
    if (cuMemGetInfo(&free, &total)) return 1e18;
  return (now() - start) / count;
}

static double waits(int count) {
  double start = now();
  for (int i = 0; i < count; i++)
    if (cuStreamSynchronize(idle)) return 1e18;
  return (now() - start) / count;
}

static double least(double (*calls)(int), int rounds, int count) {
  double best = 1e18;
  for (int round = 0; round < rounds; round++) {
    double each = calls(count);
    best = each < best ? each : best;
  }
  return best;
}

static void *sleeps(void *unused) {
  pause();
  return unused;
}

int main(void) {
  pthread_t second;
  CUdevice device;
  CUcontext context;
  CUmodule module;
  double open = 1e18;
  if (pthread_create(&second, NULL, sleeps, NULL) || cuInit(0) || cuDeviceGet(&device, 0) || cuDevicePrimaryCtxRetain(&context, device) ||
      cuCtxSetCurrent(context) || cuModuleLoadData(&module, ptx) ||
      cuModuleGetFunction(&kernel, module, "spin_0ns") || cuStreamCreate(&idle, 0))
    return 1;
  for (int round = 0; round < ROUNDS; round++) {
    launches(1); /* the first one after a pause notes the time */
    double each = launches(BATCH);
    open = each < open ? each : open;
    if (cuCtxSynchronize()) return 3;
  }
  double fenced = least(launches, ROUNDS / 200, LONG);
  if (cuCtxSynchronize()) return 3;
  printf("{\"open_ns\": %.2f, \"fenced_ns\": %.2f, \"info_ns\": %.2f, \"wait_ns\": %.2f}\n", open, fenced,
         least(questions, ROUNDS / 20, QUESTIONS), least(waits, ROUNDS / 20, QUESTIONS));
  return 0;
}
