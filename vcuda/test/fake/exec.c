/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Modules, kernels, streams and events.
 *
 * A kernel's name says how long it runs: spin_200us, spin_10ms, spin_500ns; plain "spin" takes the
 * nanoseconds from its first argument (a uint64_t). Any other kernel takes 10 us, or
 * SLICEKEEPER_FAKE_KERNEL nanoseconds. A name that ends in _local4096 needs so many bytes of local
 * memory in each thread.
 */
#define _GNU_SOURCE
#include "api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define DEFAULT_NS 10000

static struct CUstream_st default_stream[FK_GPUS][FK_CTXS];

struct CUstream_st *fk_stream(CUstream stream) {
  if (stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD) return stream;
  CUcontext ctx = fk_current();
  if (!ctx || ctx->dead) return NULL;
  struct CUstream_st *s = &default_stream[ctx->gpu][ctx->queue];
  s->ctx = ctx;
  return s;
}

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

static CUresult function(CUfunction *out, const char *name) {
  struct CUfunc_st *f = calloc(1, sizeof *f);
  if (!f) return CUDA_ERROR_OUT_OF_MEMORY;
  snprintf(f->name, sizeof f->name, "%s", name);
  f->fixed_ns = duration_of(name, &f->from_argument);
  const char *local = strstr(name, "_local");
  f->local = local ? strtoull(local + 6, NULL, 10) : 0;
  *out = f;
  return CUDA_SUCCESS;
}

FK_API(cuModuleGetFunction, (CUfunction * out, CUmodule module, const char *name)) {
  CUresult r = fk_module_use(module);
  return r == CUDA_SUCCESS ? function(out, name) : r;
}
FK_API(cuLibraryGetKernel, (CUkernel * out, CUlibrary library, const char *name)) {
  return cuModuleGetFunction((CUfunction *)out, (CUmodule)library, name);
}
FK_API(cuKernelGetFunction, (CUfunction * out, CUkernel kernel)) {
  *out = (CUfunction)kernel;
  return CUDA_SUCCESS;
}
FK_API(cuFuncGetAttribute, (int *value, CUfunction_attribute attribute, CUfunction f)) {
  *value = attribute == CU_FUNC_ATTRIBUTE_MAX_THREADS_PER_BLOCK ? 1024
           : attribute == CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES    ? (int)f->local
                                                                : 0;
  return CUDA_SUCCESS;
}
FK_API(cuKernelGetAttribute, (int *value, CUfunction_attribute a, CUkernel kernel, CUdevice dev)) {
  (void)dev;
  return cuFuncGetAttribute(value, a, (CUfunction)kernel);
}
FK_API(cuFuncSetAttribute, (CUfunction f, CUfunction_attribute attribute, int value)) {
  (void)f, (void)attribute, (void)value;
  return CUDA_SUCCESS;
}
FK_API(cuFuncSetCacheConfig, (CUfunction f, CUfunc_cache config)) {
  (void)f, (void)config;
  return CUDA_SUCCESS;
}
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

static CUresult launch(CUfunction f, CUstream stream, void **params) {
  struct CUstream_st *s = fk_stream(stream);
  if (!s) return CUDA_ERROR_INVALID_CONTEXT;
  if (!f) return CUDA_ERROR_INVALID_HANDLE;
  uint64_t work = f->from_argument && params ? *(uint64_t *)params[0] : f->fixed_ns;
  if (s->capture) {
    fk_node_add(s->capture, CU_GRAPH_NODE_TYPE_KERNEL)->work = work;
    return CUDA_SUCCESS;
  }
  if (f->local && fk_local(s->ctx, f->local)) return CUDA_ERROR_OUT_OF_MEMORY;
  /* A kernel without work changes nothing; it costs no more than a call, to measure calls by. */
  if (!work) return CUDA_SUCCESS;
  fk_lock();
  s->last = fk_submit(s->ctx->gpu, s->ctx->queue, work);
  fk_unlock();
  return CUDA_SUCCESS;
}

#define SHAPE unsigned gx, unsigned gy, unsigned gz, unsigned bx, unsigned by, unsigned bz
#define UNUSED_SHAPE (void)gx, (void)gy, (void)gz, (void)bx, (void)by, (void)bz, (void)shared

FK_API(cuLaunchKernel,
       (CUfunction f, SHAPE, unsigned shared, CUstream stream, void **params, void **extra)) {
  FK_ENTER("cuLaunchKernel");
  UNUSED_SHAPE, (void)extra;
  return launch(f, stream, params);
}
FK_API(cuLaunchKernel_ptsz,
       (CUfunction f, SHAPE, unsigned shared, CUstream stream, void **params, void **extra)) {
  FK_ENTER("cuLaunchKernel_ptsz");
  UNUSED_SHAPE, (void)extra;
  return launch(f, stream, params);
}
FK_API(cuLaunchCooperativeKernel,
       (CUfunction f, SHAPE, unsigned shared, CUstream stream, void **params)) {
  FK_ENTER("cuLaunchCooperativeKernel");
  UNUSED_SHAPE;
  return launch(f, stream, params);
}
FK_API(cuLaunchCooperativeKernel_ptsz,
       (CUfunction f, SHAPE, unsigned shared, CUstream stream, void **params)) {
  UNUSED_SHAPE;
  return launch(f, stream, params);
}
FK_API(cuLaunchKernelEx, (const CUlaunchConfig *c, CUfunction f, void **params, void **extra)) {
  FK_ENTER("cuLaunchKernelEx");
  if (!c) return CUDA_ERROR_INVALID_VALUE;
  (void)extra;
  return launch(f, c->hStream, params);
}
FK_API(cuLaunchKernelEx_ptsz,
       (const CUlaunchConfig *c, CUfunction f, void **params, void **extra)) {
  return cuLaunchKernelEx(c, f, params, extra);
}
FK_API(cuLaunch, (CUfunction f)) {
  return launch(f, NULL, NULL);
}
FK_API(cuLaunchGrid, (CUfunction f, int w, int h)) {
  (void)w, (void)h;
  return launch(f, NULL, NULL);
}
FK_API(cuLaunchGridAsync, (CUfunction f, int w, int h, CUstream stream)) {
  (void)w, (void)h;
  return launch(f, stream, NULL);
}
FK_API(cuLaunchCooperativeKernelMultiDevice,
       (CUDA_LAUNCH_PARAMS * list, unsigned count, unsigned flags)) {
  (void)flags;
  CUresult r = CUDA_SUCCESS;
  for (unsigned i = 0; i < count && r == CUDA_SUCCESS; i++)
    r = launch(list[i].function, list[i].hStream, list[i].kernelParams);
  return r;
}

/* ---- streams ---- */

FK_API(cuStreamCreate, (CUstream * out, unsigned flags)) {
  FK_ENTER("cuStreamCreate");
  if (!fk_current()) return CUDA_ERROR_INVALID_CONTEXT;
  CUstream s = calloc(1, sizeof *s);
  if (!s) return CUDA_ERROR_OUT_OF_MEMORY;
  s->ctx = fk_current();
  s->flags = flags;
  *out = s;
  return CUDA_SUCCESS;
}
FK_API(cuStreamCreateWithPriority, (CUstream * out, unsigned flags, int priority)) {
  (void)priority;
  return cuStreamCreate(out, flags);
}
FK_API(cuStreamDestroy_v2, (CUstream s)) {
  free(s);
  return CUDA_SUCCESS;
}
FK_API(cuStreamDestroy, (CUstream s)) {
  return cuStreamDestroy_v2(s);
}
FK_API(cuStreamGetCtx, (CUstream stream, CUcontext *out)) {
  struct CUstream_st *s = fk_stream(stream);
  *out = s ? s->ctx : NULL;
  return s ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
FK_API(cuStreamGetFlags, (CUstream stream, unsigned *flags)) {
  struct CUstream_st *s = fk_stream(stream);
  *flags = s ? s->flags : 0;
  return CUDA_SUCCESS;
}
FK_API(cuStreamGetPriority, (CUstream stream, int *priority)) {
  (void)stream;
  *priority = 0;
  return CUDA_SUCCESS;
}

static CUresult query(CUcontext ctx, uint64_t seq) {
  fk_lock();
  bool done = !seq || fk_finished(ctx->gpu, ctx->queue, seq);
  fk_unlock();
  return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult finish(CUcontext ctx, uint64_t seq) {
  fk_lock();
  if (seq) fk_wait_seq(ctx->gpu, ctx->queue, seq);
  fk_pools_settle(ctx->gpu);
  fk_unlock();
  return CUDA_SUCCESS;
}

FK_API(cuStreamQuery, (CUstream stream)) {
  FK_ENTER("cuStreamQuery");
  struct CUstream_st *s = fk_stream(stream);
  if (!s) return CUDA_ERROR_INVALID_CONTEXT;
  return s->capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : query(s->ctx, s->last);
}
FK_API(cuStreamSynchronize, (CUstream stream)) {
  FK_ENTER("cuStreamSynchronize");
  struct CUstream_st *s = fk_stream(stream);
  if (!s) return CUDA_ERROR_INVALID_CONTEXT;
  return s->capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : finish(s->ctx, s->last);
}
FK_API(cuStreamQuery_ptsz, (CUstream stream)) {
  return cuStreamQuery(stream);
}
FK_API(cuStreamSynchronize_ptsz, (CUstream stream)) {
  return cuStreamSynchronize(stream);
}

FK_API(cuCtxSynchronize, (void)) {
  FK_ENTER("cuCtxSynchronize");
  CUcontext ctx = fk_current();
  if (!ctx) return CUDA_ERROR_INVALID_CONTEXT;
  return finish(ctx, fk_world()->gpu[ctx->gpu].queue[ctx->queue].submitted);
}
FK_API(cuCtxSynchronize_v2, (CUcontext ctx)) {
  return finish(ctx, fk_world()->gpu[ctx->gpu].queue[ctx->queue].submitted);
}

/* One queue per context keeps every order that a wait for an event could ask for. */
FK_API(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags)) {
  (void)flags;
  return fk_stream(stream) && event ? CUDA_SUCCESS : CUDA_ERROR_INVALID_HANDLE;
}
FK_API(cuStreamWaitEvent_ptsz, (CUstream stream, CUevent event, unsigned flags)) {
  return cuStreamWaitEvent(stream, event, flags);
}

/* ---- events ---- */

FK_API(cuEventCreate, (CUevent * out, unsigned flags)) {
  (void)flags;
  if (!fk_current()) return CUDA_ERROR_INVALID_CONTEXT;
  *out = calloc(1, sizeof **out);
  (*out)->ctx = fk_current();
  return CUDA_SUCCESS;
}
FK_API(cuEventDestroy_v2, (CUevent event)) {
  free(event);
  return CUDA_SUCCESS;
}
FK_API(cuEventDestroy, (CUevent event)) {
  return cuEventDestroy_v2(event);
}

FK_API(cuEventRecord, (CUevent event, CUstream stream)) {
  FK_ENTER("cuEventRecord");
  struct CUstream_st *s = fk_stream(stream);
  if (!s) return CUDA_ERROR_INVALID_CONTEXT;
  if (s->ctx != event->ctx) return CUDA_ERROR_INVALID_HANDLE;
  if (s->capture) return CUDA_SUCCESS;
  fk_lock();
  s->last = event->seq = fk_submit(s->ctx->gpu, s->ctx->queue, 0);
  event->when = 0;
  fk_unlock();
  return CUDA_SUCCESS;
}
FK_API(cuEventRecord_ptsz, (CUevent event, CUstream stream)) {
  return cuEventRecord(event, stream);
}
FK_API(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned flags)) {
  (void)flags;
  return cuEventRecord(event, stream);
}
FK_API(cuEventRecordWithFlags_ptsz, (CUevent event, CUstream stream, unsigned flags)) {
  return cuEventRecordWithFlags(event, stream, flags);
}

FK_API(cuEventQuery, (CUevent event)) {
  FK_ENTER("cuEventQuery");
  return query(event->ctx, event->seq);
}
FK_API(cuEventSynchronize, (CUevent event)) {
  FK_ENTER("cuEventSynchronize");
  return finish(event->ctx, event->seq);
}

static uint64_t reached(CUevent event) {
  if (!event->when) event->when = fk_finish_time(event->ctx->gpu, event->ctx->queue, event->seq);
  return event->when;
}

FK_API(cuEventElapsedTime, (float *ms, CUevent start, CUevent end)) {
  if (query(end->ctx, end->seq) != CUDA_SUCCESS) return CUDA_ERROR_NOT_READY;
  fk_lock();
  *ms = (float)((double)(int64_t)(reached(end) - reached(start)) / 1e6);
  fk_unlock();
  return CUDA_SUCCESS;
}
FK_API(cuEventElapsedTime_v2, (float *ms, CUevent start, CUevent end)) {
  return cuEventElapsedTime(ms, start, end);
}
