/* SPDX-License-Identifier: Apache-2.0 */
/* How every program of ours on a GPU begins, and what it does when a call fails that must not. */
#ifndef PROGRAM_H
#define PROGRAM_H
#include <cuda.h>

#include <stdio.h>
#include <stdlib.h>

static inline void must(CUresult r, const char *what) {
  if (r == CUDA_SUCCESS) return;
  fprintf(stderr, "%s failed with %d\n", what, (int)r);
  exit(3);
}

/* Take the first GPU's primary context. */
static inline CUcontext open_gpu(void) {
  CUdevice device;
  CUcontext context;
  must(cuInit(0), "init");
  must(cuDeviceGet(&device, 0), "device");
  must(cuDevicePrimaryCtxRetain(&context, device), "context");
  must(cuCtxSetCurrent(context), "context");
  return context;
}

/* A kernel of the fake driver, from a module of its own. */
static inline CUfunction kernel_named(const char *name) {
  CUmodule module;
  CUfunction f;
  must(cuModuleLoadData(&module, "spin"), "module");
  must(cuModuleGetFunction(&f, module, name), "function");
  return f;
}

#endif
