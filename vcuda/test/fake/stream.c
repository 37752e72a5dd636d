/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Streams and events.
 *
 * If the documents leave open what cuEventQuery answers, SLICEKEEPER_FAKE_EVENTS chooses: by
 * default a thread needs no current context for it, and an event of a destroyed context is an invalid
 * handle; `strict` wants a current context (CUDA_ERROR_INVALID_CONTEXT) and answers
 * CUDA_ERROR_CONTEXT_IS_DESTROYED; `done` takes events of destroyed contexts for complete.
 */
#define _GNU_SOURCE
#include "api.h"

#include <stdlib.h>
#include <string.h>

#define OWN 64

static struct CUstream_st legacy_stream[FK_DEVICES][FK_CTXS];
static struct CUstream_st *streams;
FK_GUARD(guard)
static __thread struct CUstream_st own_stream[OWN];
static _Atomic int global_captures;
static __thread CUstreamCaptureMode capture_mode = CU_STREAM_CAPTURE_MODE_GLOBAL;

static bool alive(CUcontext ctx, unsigned life) {
  return ctx && !ctx->dead && ctx->life == life;
}

enum answer { LENIENT, STRICT, DONE };

static enum answer events(void) {
  static _Atomic int known = -1;
  if (known < 0) {
    const char *s = fk_setting("EVENTS");
    known = !s ? LENIENT : !strcmp(s, "strict") ? STRICT : !strcmp(s, "done") ? DONE : LENIENT;
  }
  return (enum answer)known;
}

static struct CUstream_st *own_of(CUcontext ctx) {
  struct CUstream_st *spare = NULL;
  for (int i = 0; i < OWN; i++) {
    if (own_stream[i].ctx == ctx && own_stream[i].life == ctx->life) return &own_stream[i];
    if (!alive(own_stream[i].ctx, own_stream[i].life) && !spare) spare = &own_stream[i];
  }
  if (!spare) return NULL;
  *spare = (struct CUstream_st){.ctx = ctx, .life = ctx->life, .per_thread = true};
  fk_lock();
  spare->slot = fk_stream_open(ctx->gpu, ctx->queue, false, true, 0);
  fk_unlock();
  return spare->slot ? spare : NULL;
}

struct CUstream_st *fk_stream_of(CUstream stream, bool own) {
  if (stream == CU_STREAM_PER_THREAD) own = true;
  if (stream == CU_STREAM_LEGACY) own = false;
  if (stream && stream != CU_STREAM_LEGACY && stream != CU_STREAM_PER_THREAD)
    return alive(stream->ctx, stream->life) ? stream : NULL;
  CUcontext ctx = fk_current();
  if (!ctx || ctx->dead) return NULL;
  if (own) return own_of(ctx);
  struct CUstream_st *s = &legacy_stream[ctx->gpu][ctx->queue];
  pthread_mutex_lock(&guard);
  if (s->ctx != ctx || s->life != ctx->life || !s->slot) {
    *s = (struct CUstream_st){.ctx = ctx, .life = ctx->life};
    fk_lock();
    s->slot = fk_stream_open(ctx->gpu, ctx->queue, true, false, 0);
    fk_unlock();
  }
  pthread_mutex_unlock(&guard);
  return s->slot ? s : NULL;
}

struct CUstream_st *fk_stream(CUstream stream) {
  return fk_stream_of(stream, false);
}

void fk_push(struct CUstream_st *s, uint64_t work, uint32_t width) {
  struct fk_op op = {.kind = work ? FK_KERNEL : FK_MARK, .left = work * 1000, .width = width};
  fk_lock();
  fk_submit(s->ctx->gpu, s->slot, op);
  fk_unlock();
}

static struct fk_place at_end(struct CUstream_st *s, struct fk_op op) {
  fk_submit(s->ctx->gpu, s->slot, op);
  return fk_last(s->ctx->gpu, s->slot);
}

void fk_drain(struct CUstream_st *s) {
  fk_lock();
  fk_wait_place(s->ctx->gpu, fk_last(s->ctx->gpu, s->slot));
  fk_unlock();
}

void fk_order(CUcontext ctx) {
  struct CUstream_st *s = ctx == fk_current() ? fk_stream(NULL) : NULL;
  if (s && !s->capture) fk_push(s, 0, 0);
}

void fk_wait_context(CUcontext ctx) {
  fk_lock();
  if (!ctx->dead) fk_wait_queue(ctx->gpu, ctx->queue);
  fk_unlock();
}

/* What runs in another context does so in a stream of its own there. */
CUresult fk_push_in(struct CUstream_st *s, CUcontext ctx, uint64_t work, uint32_t width) {
  if (!ctx || ctx == s->ctx || ctx->gpu != s->ctx->gpu) {
    fk_push(s, work, width);
    return CUDA_SUCCESS;
  }
  if (ctx->dead) return CUDA_ERROR_INVALID_CONTEXT;
  struct CUstream_st there = {.ctx = ctx};
  fk_lock();
  there.slot = fk_stream_open(ctx->gpu, ctx->queue, false, false, s->priority);
  struct fk_place before = fk_last(s->ctx->gpu, s->slot);
  if (there.slot) {
    at_end(&there, (struct fk_op){.kind = FK_AFTER, .after = before});
    struct fk_op kernel = {.kind = FK_KERNEL, .left = work * 1000, .width = width};
    at_end(s, (struct fk_op){.kind = FK_AFTER, .after = at_end(&there, kernel)});
    fk_stream_close(ctx->gpu, there.slot);
  }
  fk_unlock();
  return there.slot ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
}

/* The context goes; its default streams went with its queue. */
void fk_streams_forget(CUcontext ctx) {
  pthread_mutex_lock(&guard);
  legacy_stream[ctx->gpu][ctx->queue] = (struct CUstream_st){0};
  pthread_mutex_unlock(&guard);
}

/* ---- what a capture forbids ---- */

bool fk_unsafe(void) {
  if (!global_captures || capture_mode == CU_STREAM_CAPTURE_MODE_RELAXED) return false;
  pthread_mutex_lock(&guard);
  for (struct CUstream_st *s = streams; s; s = s->next)
    if (s->capture && s->mode == CU_STREAM_CAPTURE_MODE_GLOBAL) s->invalid = true;
  pthread_mutex_unlock(&guard);
  return true;
}

void fk_capture_began(struct CUstream_st *s, CUstreamCaptureMode mode) {
  s->mode = mode;
  if (mode == CU_STREAM_CAPTURE_MODE_GLOBAL) global_captures++;
}

void fk_capture_ended(struct CUstream_st *s) {
  if (s->mode == CU_STREAM_CAPTURE_MODE_GLOBAL) global_captures--;
  pthread_mutex_lock(&guard);
  for (struct CUstream_st *o = streams; o; o = o->next)
    if (o != s && o->joined && o->capture == s->capture) {
      o->capture = NULL;
      o->joined = false;
    }
  pthread_mutex_unlock(&guard);
  s->capture = NULL;
  s->invalid = false;
}

FK_API(cuThreadExchangeStreamCaptureMode, (CUstreamCaptureMode * mode)) {
  CUstreamCaptureMode old = capture_mode;
  capture_mode = *mode;
  *mode = old;
  return CUDA_SUCCESS;
}

/* ---- streams ---- */

FK_API(cuStreamCreateWithPriority, (CUstream * out, unsigned flags, int priority)) {
  FK_ENTER("cuStreamCreate");
  CUcontext ctx = fk_current();
  if (!ctx || ctx->dead) return CUDA_ERROR_INVALID_CONTEXT;
  CUstream s = fk_new(sizeof *s);
  if (!s) return CUDA_ERROR_OUT_OF_MEMORY;
  s->ctx = ctx;
  s->life = ctx->life;
  s->flags = flags;
  s->priority = priority > 0 ? 0 : priority < -5 ? -5 : priority;
  fk_lock();
  s->slot = fk_stream_open(ctx->gpu, ctx->queue, false, !(flags & CU_STREAM_NON_BLOCKING),
                           s->priority);
  fk_unlock();
  if (!s->slot) {
    fk_gone(s, sizeof *s);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  pthread_mutex_lock(&guard);
  s->next = streams;
  streams = s;
  pthread_mutex_unlock(&guard);
  *out = s;
  return CUDA_SUCCESS;
}
FK_RESULT(cuStreamCreate, (CUstream * out, unsigned flags), cuStreamCreateWithPriority(out, flags, 0))
/* It returns at once; what the stream holds is still done. */
FK_API(cuStreamDestroy_v2, (CUstream s)) {
  FK_ENTER("cuStreamDestroy");
  if (!s || s == CU_STREAM_LEGACY || s == CU_STREAM_PER_THREAD) return CUDA_ERROR_INVALID_HANDLE;
  pthread_mutex_lock(&guard);
  struct CUstream_st **link = &streams;
  while (*link && *link != s) link = &(*link)->next;
  if (*link) *link = s->next;
  pthread_mutex_unlock(&guard);
  if (alive(s->ctx, s->life)) {
    fk_lock();
    fk_stream_close(s->ctx->gpu, s->slot);
    fk_unlock();
  }
  fk_gone(s, sizeof *s);
  return CUDA_SUCCESS;
}
FK_RESULT(cuStreamDestroy, (CUstream s), cuStreamDestroy_v2(s))
FK_API(cuStreamGetCtx, (CUstream stream, CUcontext *out)) {
  FK_ENTER("cuStreamGetCtx");
  struct CUstream_st *s = fk_stream(stream);
  *out = s ? s->ctx : NULL;
  return s ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
FK_RESULT(cuStreamGetCtx_ptsz, (CUstream stream, CUcontext *out), cuStreamGetCtx(stream, out))
FK_API(cuStreamGetFlags, (CUstream stream, unsigned *flags)) {
  struct CUstream_st *s = fk_stream(stream);
  *flags = s ? s->flags : 0;
  return CUDA_SUCCESS;
}
FK_API(cuStreamGetPriority, (CUstream stream, int *priority)) {
  struct CUstream_st *s = fk_stream(stream);
  *priority = s ? s->priority : 0;
  return CUDA_SUCCESS;
}
FK_API(cuCtxGetStreamPriorityRange, (int *least, int *greatest)) {
  *least = 0;
  *greatest = -5;
  return CUDA_SUCCESS;
}

static CUresult query(CUcontext ctx, struct fk_place place) {
  fk_lock();
  bool done = fk_finished(ctx->gpu, place);
  fk_unlock();
  return done ? CUDA_SUCCESS : CUDA_ERROR_NOT_READY;
}

static CUresult finish(CUcontext ctx, struct fk_place place) {
  fk_lock();
  fk_wait_place(ctx->gpu, place);
  fk_pools_settle(ctx->gpu);
  fk_unlock();
  return CUDA_SUCCESS;
}

static struct fk_place last_of(struct CUstream_st *s) {
  fk_lock();
  struct fk_place place = fk_last(s->ctx->gpu, s->slot);
  fk_unlock();
  return place;
}

static CUresult stream_query(struct CUstream_st *s) {
  if (!s) return CUDA_ERROR_INVALID_CONTEXT;
  return s->capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : query(s->ctx, last_of(s));
}
static CUresult stream_finish(struct CUstream_st *s) {
  if (!s) return CUDA_ERROR_INVALID_CONTEXT;
  return s->capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : finish(s->ctx, last_of(s));
}

FK_STREAM_API(cuStreamQuery, (CUstream stream), stream_query(s))
FK_STREAM_API(cuStreamSynchronize, (CUstream stream), stream_finish(s))

FK_API(cuCtxSynchronize_v2, (CUcontext ctx)) {
  FK_ENTER("cuCtxSynchronize");
  ctx = ctx ? fk_whole(ctx) : fk_current();
  if (!ctx || ctx->dead) return CUDA_ERROR_INVALID_CONTEXT;
  if (fk_unsafe()) return CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED;
  fk_lock();
  fk_wait_queue(ctx->gpu, ctx->queue);
  fk_pools_settle(ctx->gpu);
  fk_unlock();
  return CUDA_SUCCESS;
}
FK_RESULT(cuCtxSynchronize, (void), cuCtxSynchronize_v2(NULL))

static CUresult wait_event(struct CUstream_st *s, CUevent event) {
  if (!s || !event) return CUDA_ERROR_INVALID_HANDLE;
  if (event->capture) {
    if (s->capture && s->capture != event->capture) return CUDA_ERROR_STREAM_CAPTURE_MERGE;
    s->joined |= !s->capture;
    s->capture = event->capture;
    return CUDA_SUCCESS;
  }
  if (s->capture) return CUDA_ERROR_STREAM_CAPTURE_ISOLATION;
  if (!event->place.seq || !alive(event->ctx, event->life) || event->ctx->gpu != s->ctx->gpu) return CUDA_SUCCESS;
  fk_lock();
  fk_submit(s->ctx->gpu, s->slot, (struct fk_op){.kind = FK_AFTER, .after = event->place});
  fk_unlock();
  return CUDA_SUCCESS;
}
FK_STREAM_API(cuStreamWaitEvent, (CUstream stream, CUevent event, unsigned flags),
              ((void)flags, wait_event(s, event)))

/* All streams of the context that there are wait, and those without a name. */
FK_API(cuCtxWaitEvent, (CUcontext ctx, CUevent event)) {
  FK_ENTER("cuCtxWaitEvent");
  CUresult r = CUDA_SUCCESS;
  ctx = ctx ? fk_whole(ctx) : fk_current();
  if (!ctx || ctx->dead || !event) return CUDA_ERROR_INVALID_CONTEXT;
  pthread_mutex_lock(&guard);
  for (struct CUstream_st *s = streams; s && r == CUDA_SUCCESS; s = s->next)
    if (s->ctx == ctx && alive(ctx, s->life)) r = s->capture ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : wait_event(s, event);
  struct CUstream_st *unnamed[] = {&legacy_stream[ctx->gpu][ctx->queue], own_of(ctx)};
  pthread_mutex_unlock(&guard);
  for (int i = 0; i < 2 && r == CUDA_SUCCESS; i++)
    if (unnamed[i] && unnamed[i]->ctx == ctx && unnamed[i]->life == ctx->life) r = wait_event(unnamed[i], event);
  return r;
}
FK_API(cuGreenCtxWaitEvent, (CUgreenCtx green, CUevent event)) {
  CUcontext ctx = NULL;
  CUresult r = cuCtxFromGreenCtx(&ctx, green);
  return r == CUDA_SUCCESS ? cuCtxWaitEvent(ctx, event) : r;
}

/* ---- events ---- */

FK_API(cuEventCreate, (CUevent * out, unsigned flags)) {
  FK_ENTER("cuEventCreate");
  CUcontext ctx = fk_current();
  if (!ctx || ctx->dead) return CUDA_ERROR_INVALID_CONTEXT;
  CUevent event = fk_new(sizeof *event);
  if (!event) return CUDA_ERROR_OUT_OF_MEMORY;
  event->ctx = ctx;
  event->life = ctx->life;
  fk_lock();
  if (!(flags & CU_EVENT_DISABLE_TIMING)) event->mark = fk_mark_open(ctx->gpu);
  fk_unlock();
  *out = event;
  return CUDA_SUCCESS;
}
FK_API(cuEventDestroy_v2, (CUevent event)) {
  FK_ENTER("cuEventDestroy");
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  fk_lock();
  fk_mark_close(event->ctx->gpu, event->mark);
  fk_unlock();
  fk_gone(event, sizeof *event);
  return CUDA_SUCCESS;
}
FK_RESULT(cuEventDestroy, (CUevent event), cuEventDestroy_v2(event))

static CUresult record(CUevent event, struct CUstream_st *s) {
  if (!s) return CUDA_ERROR_INVALID_CONTEXT;
  if (!event || s->ctx != event->ctx || event->life != s->ctx->life) return CUDA_ERROR_INVALID_HANDLE;
  event->capture = s->capture;
  if (s->capture) return CUDA_SUCCESS;
  struct fk_op op = {.kind = FK_MARK, .mark = event->mark};
  fk_lock();
  uint64_t seq = fk_submit(s->ctx->gpu, s->slot, op);
  event->place = fk_last(s->ctx->gpu, s->slot);
  event->place.seq = seq;
  fk_unlock();
  return CUDA_SUCCESS;
}

FK_STREAM_API(cuEventRecord, (CUevent event, CUstream stream), record(event, s))
FK_RESULT(cuEventRecordWithFlags, (CUevent event, CUstream stream, unsigned flags),
          ((void)flags, cuEventRecord(event, stream)))
FK_RESULT(cuEventRecordWithFlags_ptsz, (CUevent event, CUstream stream, unsigned flags),
          ((void)flags, cuEventRecord_ptsz(event, stream)))

static CUresult usable(CUevent event) {
  if (!event) return CUDA_ERROR_INVALID_HANDLE;
  if (events() == STRICT && !fk_current()) return CUDA_ERROR_INVALID_CONTEXT;
  if (!alive(event->ctx, event->life))
    return events() == DONE     ? CUDA_SUCCESS
           : events() == STRICT ? CUDA_ERROR_CONTEXT_IS_DESTROYED
                                : CUDA_ERROR_INVALID_HANDLE;
  if (event->capture) return CUDA_ERROR_CAPTURED_EVENT;
  return fk_unsafe() ? CUDA_ERROR_STREAM_CAPTURE_UNSUPPORTED : CUDA_SUCCESS;
}

FK_API(cuEventQuery, (CUevent event)) {
  FK_ENTER("cuEventQuery");
  CUresult r = usable(event);
  return r != CUDA_SUCCESS || !alive(event->ctx, event->life) ? r : query(event->ctx, event->place);
}
FK_API(cuEventSynchronize, (CUevent event)) {
  FK_ENTER("cuEventSynchronize");
  CUresult r = usable(event);
  return r != CUDA_SUCCESS || !alive(event->ctx, event->life) ? r : finish(event->ctx, event->place);
}

FK_API(cuEventElapsedTime, (float *ms, CUevent start, CUevent end)) {
  FK_ENTER("cuEventElapsedTime");
  if (!start->mark || !end->mark) return CUDA_ERROR_INVALID_HANDLE;
  if (query(end->ctx, end->place) != CUDA_SUCCESS) return CUDA_ERROR_NOT_READY;
  fk_lock();
  const struct fk_gpu *g = &fk_world()->gpu[end->ctx->gpu];
  *ms = (float)((double)(int64_t)(g->mark[end->mark].when - g->mark[start->mark].when) / 1e6);
  fk_unlock();
  return CUDA_SUCCESS;
}
FK_RESULT(cuEventElapsedTime_v2, (float *ms, CUevent start, CUevent end), cuEventElapsedTime(ms, start, end))
