/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Modules and kernels.
 *
 * A kernel's name says how long it runs: spin_200us, spin_10ms, spin_500ns; plain "spin" takes the
 * nanoseconds from its first argument (a uint64_t). Any other kernel takes 10 us, or
 * SLICEKEEPER_FAKE_KERNEL nanoseconds. A name that ends in _local4096 needs so many bytes of local
 * memory in each thread. A kernel fills the GPU, unless its name ends in _w and the per cent
 * of the GPU that it fills (spin_1ms_w25), or in _grid: then it fills what its blocks fill.
 */
#define _GNU_SOURCE
#include "api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_NS 10000

static uint64_t duration_of(const char *name, bool *from_argument) {
  *from_argument = !strcmp(name, "spin");
  const char *digits = strstr(name, "spin_");
  if (!digits) return fk_bytes(fk_setting("KERNEL"), DEFAULT_NS);
  char *unit = NULL;
  uint64_t value = strtoull(digits + 5, &unit, 10);
  if (!strncmp(unit, "us", 2)) return value * 1000;
  if (!strncmp(unit, "ms", 2)) return value * 1000000;
  return value;
}

static uint32_t width_of(const char *name) {
  const char *end = strstr(name, "_w");
  unsigned long percent = end ? strtoul(end + 2, NULL, 10) : 0;
  if (strstr(name, "_grid")) return 0;
  return percent && percent < 100 ? (uint32_t)percent * (FK_WHOLE / 100) : FK_WHOLE;
}

/* 132 multiprocessors hold 32 blocks or 2048 threads each. */
uint32_t fk_width(CUfunction f, uint64_t blocks, unsigned threads) {
  if (f->width) return f->width;
  uint64_t share = FK_WHOLE / 132 / 32, by_threads = (uint64_t)threads * FK_WHOLE / 132 / 2048;
  uint64_t width = (blocks ? blocks : 1) * (share > by_threads ? share : by_threads);
  return width > FK_WHOLE ? FK_WHOLE : (uint32_t)width;
}

static CUresult function(CUfunction *out, void *module, const char *name) {
  struct CUfunc_st *f = calloc(1, sizeof *f);
  if (!f) return CUDA_ERROR_OUT_OF_MEMORY;
  snprintf(f->name, sizeof f->name, "%s", name);
  f->module = module;
  f->fixed_ns = duration_of(name, &f->from_argument);
  const char *local = strstr(name, "_local");
  f->local = local ? strtoull(local + 6, NULL, 10) : 0;
  f->width = width_of(name);
  *out = f;
  return CUDA_SUCCESS;
}

FK_API(cuModuleGetFunction, (CUfunction * out, CUmodule module, const char *name)) {
  CUresult r = fk_module_use(module, fk_current());
  return r == CUDA_SUCCESS ? function(out, module, name) : r;
}
FK_RESULT(cuLibraryGetKernel, (CUkernel * out, CUlibrary library, const char *name),
          library ? function((CUfunction *)out, library, name) : CUDA_ERROR_INVALID_HANDLE)
FK_API(cuModuleGetFunctionCount, (unsigned *count, CUmodule module)) {
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  for (*count = 0; fk_module_entry(module, *count);) ++*count;
  return CUDA_SUCCESS;
}
FK_API(cuModuleEnumerateFunctions, (CUfunction * out, unsigned room, CUmodule module)) {
  if (!module) return CUDA_ERROR_INVALID_HANDLE;
  CUresult r = CUDA_SUCCESS;
  for (unsigned i = 0; i < room && fk_module_entry(module, i) && r == CUDA_SUCCESS; i++)
    r = function(&out[i], module, fk_module_entry(module, i));
  return r;
}
FK_RESULT(cuLibraryGetKernelCount, (unsigned *count, CUlibrary library),
          cuModuleGetFunctionCount(count, (CUmodule)library))
FK_RESULT(cuLibraryEnumerateKernels, (CUkernel * out, unsigned room, CUlibrary library),
          cuModuleEnumerateFunctions((CUfunction *)out, room, (CUmodule)library))
FK_API(cuKernelGetFunction, (CUfunction * out, CUkernel kernel)) {
  *out = (CUfunction)kernel;
  return fk_module_use((*out)->module, fk_current());
}
FK_API(cuFuncGetAttribute, (int *value, CUfunction_attribute attribute, CUfunction f)) {
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
           : attribute == CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES    ? (int)f->local
                                                                : 0;
  return CUDA_SUCCESS;
}
FK_RESULT(cuKernelGetAttribute, (int *value, CUfunction_attribute a, CUkernel kernel, CUdevice dev),
          ((void)dev, cuFuncGetAttribute(value, a, (CUfunction)kernel)))
FK_RESULT(cuFuncSetAttribute, (CUfunction f, CUfunction_attribute attribute, int value),
          ((void)f, (void)attribute, (void)value, CUDA_SUCCESS))
FK_RESULT(cuFuncSetCacheConfig, (CUfunction f, CUfunc_cache config), ((void)f, (void)config, CUDA_SUCCESS))
FK_API(cuFuncGetName, (const char **name, CUfunction f)) {
  *name = f->name;
  return CUDA_SUCCESS;
}
FK_API(cuFuncGetModule, (CUmodule * out, CUfunction f)) {
  *out = (CUmodule)f;
  return CUDA_SUCCESS;
}
FK_API(cuFuncGetParamInfo, (CUfunction f, size_t index, size_t *offset, size_t *size)) {
  if (!f->from_argument || index) return CUDA_ERROR_INVALID_VALUE;
  *offset = 0;
  if (size) *size = 8;
  return CUDA_SUCCESS;
}

static CUresult launch(CUfunction f, struct CUstream_st *s, uint64_t blocks, unsigned threads,
                       void **params) {
  if (!s) return CUDA_ERROR_INVALID_CONTEXT;
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  uint64_t work = f->from_argument && params ? *(uint64_t *)params[0] : f->fixed_ns;
  if (fk_capture_hold(s)) {
    struct CUgraphNode_st *n = fk_node_add(s->capture, CU_GRAPH_NODE_TYPE_KERNEL);
    n->ctx = s->ctx;
    n->function = f;
    n->work = work;
    n->width = fk_width(f, blocks, threads);
    fk_capture_let_go();
    return CUDA_SUCCESS;
  }
  if (fk_module_use(f->module, s->ctx)) return CUDA_ERROR_OUT_OF_MEMORY;
  if (f->local && fk_local(s->ctx, f->local)) return CUDA_ERROR_OUT_OF_MEMORY;
  /* A kernel without work changes nothing; it costs no more than a call, to measure calls by. */
  if (work) fk_push(s, work, fk_width(f, blocks, threads));
  return CUDA_SUCCESS;
}

#define SHAPE unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz
#define BLOCKS (uint64_t)gx *gy *gz, bx *by *bz

FK_STREAM_API(cuLaunchKernel,
              (CUfunction f, SHAPE, unsigned shared, CUstream stream, void **params, void **extra),
              ((void)shared, (void)extra, launch(f, s, BLOCKS, params)))
FK_STREAM_API(cuLaunchCooperativeKernel,
              (CUfunction f, SHAPE, unsigned shared, CUstream stream, void **params),
              ((void)shared, launch(f, s, BLOCKS, params)))

static CUresult launch_ex(const CUlaunchConfig *c, CUfunction f, void **params, bool own) {
  uint64_t blocks = (uint64_t)c->gridDimX * c->gridDimY * c->gridDimZ;
  return launch(f, fk_stream_of(c->hStream, own), blocks,
                c->blockDimX * c->blockDimY * c->blockDimZ, params);
}

FK_API(cuLaunchKernelEx, (const CUlaunchConfig *c, CUfunction f, void **params, void **extra)) {
  FK_ENTER("cuLaunchKernelEx");
  if (!c) return CUDA_ERROR_INVALID_VALUE;
  (void)extra;
  return launch_ex(c, f, params, false);
}
FK_API(cuLaunchKernelEx_ptsz,
       (const CUlaunchConfig *c, CUfunction f, void **params, void **extra)) {
  FK_ENTER("cuLaunchKernelEx_ptsz");
  (void)extra;
  return launch_ex(c, f, params, true);
}
FK_RESULT(cuLaunch, (CUfunction f), launch(f, fk_stream_of(NULL, false), 1, 32, NULL))
FK_RESULT(cuLaunchGrid, (CUfunction f, int w, int h), launch(f, fk_stream_of(NULL, false), (uint64_t)(w * h), 32, NULL))
FK_RESULT(cuLaunchGridAsync, (CUfunction f, int w, int h, CUstream stream),
          launch(f, fk_stream_of(stream, false), (uint64_t)(w * h), 32, NULL))
FK_API(cuLaunchCooperativeKernelMultiDevice,
       (CUDA_LAUNCH_PARAMS * list, unsigned count, unsigned flags)) {
  (void)flags;
  CUresult r = CUDA_SUCCESS;
  for (unsigned i = 0; i < count && r == CUDA_SUCCESS; i++)
    r = launch(list[i].function, fk_stream_of(list[i].hStream, false),
               (uint64_t)list[i].gridDimX * list[i].gridDimY * list[i].gridDimZ,
               list[i].blockDimX * list[i].blockDimY * list[i].blockDimZ, list[i].kernelParams);
  return r;
}
