/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What a stream does with its process's memory and functions: it waits for a value, writes one, calls
 * a function. The engine is shared by all processes, so a thread of the process that queued it does
 * it, once it is first in its stream.
 */
#define _GNU_SOURCE
#include "api.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define LOOK_NS 10000ull /* how often memory that a stream waits on is looked at */

struct task {
  int gpu;
  struct fk_place place;
  CUhostFn function;
  CUstreamCallback callback;
  CUstream stream;
  void *data;
  CUstreamBatchMemOpParams memory;
  struct task *next;
};

static struct task *tasks; /* under the world's lock */
static _Atomic pid_t worker_of, started;
static pthread_mutex_t starting = PTHREAD_MUTEX_INITIALIZER;

static bool reached(uint64_t value, uint64_t want, unsigned flags, bool wide) {
  if (!wide) value = (uint32_t)value, want = (uint32_t)want;
  switch (flags & 3) {
  case CU_STREAM_WAIT_VALUE_EQ:
    return value == want;
  case CU_STREAM_WAIT_VALUE_AND:
    return (value & want) != 0;
  case CU_STREAM_WAIT_VALUE_NOR:
    return wide ? ~(value | want) != 0 : (uint32_t) ~(value | want) != 0;
  default:
    return wide ? (int64_t)(value - want) >= 0 : (int32_t)(value - want) >= 0;
  }
}

/* True when the task is done; without the lock. */
static bool perform(struct task *t) {
  const CUstreamBatchMemOpParams *m = &t->memory;
  void *p = (void *)(uintptr_t)m->waitValue.address;
  if (t->function) t->function(t->data);
  if (t->callback) t->callback(t->stream, CUDA_SUCCESS, t->data);
  if (t->function || t->callback) return true;
  switch (m->operation) {
  case CU_STREAM_MEM_OP_WAIT_VALUE_32:
    return reached(__atomic_load_n((uint32_t *)p, __ATOMIC_ACQUIRE), m->waitValue.value,
                   m->waitValue.flags, false);
  case CU_STREAM_MEM_OP_WAIT_VALUE_64:
    return reached(__atomic_load_n((uint64_t *)p, __ATOMIC_ACQUIRE), m->waitValue.value64,
                   m->waitValue.flags, true);
  case CU_STREAM_MEM_OP_WRITE_VALUE_32:
    __atomic_store_n((uint32_t *)p, m->writeValue.value, __ATOMIC_RELEASE);
    return true;
  case CU_STREAM_MEM_OP_WRITE_VALUE_64:
    __atomic_store_n((uint64_t *)p, m->writeValue.value64, __ATOMIC_RELEASE);
    return true;
  default:
    return true;
  }
}

static bool gone(const struct task *t) {
  const struct fk_stream *s = &fk_world()->gpu[t->gpu].stream[t->place.stream];
  return !s->used || s->life != t->place.life;
}

static void drop(struct task *t) {
  struct task **link = &tasks;
  while (*link != t) link = &(*link)->next;
  *link = t->next;
  free(t);
}

/* With the lock held: do what can be done; returns when to look again. */
static uint64_t round_of_tasks(void) {
  uint64_t until = FK_NEVER;
  for (struct task *t = tasks, *next; t; t = next) {
    next = t->next;
    if (gone(t)) {
      drop(t);
      continue;
    }
    uint64_t when = fk_host_ready(t->gpu, t->place) ? 0 : fk_next_event(t->gpu);
    if (!when) {
      fk_unlock();
      bool done = perform(t);
      fk_lock();
      if (done) {
        fk_host_done(t->gpu, t->place);
        drop(t);
        return 0; /* the list may have changed meanwhile */
      }
      when = fk_now_locked() + LOOK_NS;
    }
    if (when < until) until = when;
  }
  return until;
}

static void *work(void *unused) {
  fk_attach();
  started = getpid();
  fk_lock();
  for (;;) {
    uint64_t until = round_of_tasks();
    if (until) fk_wait_locked(NULL, 0, fk_host_key(getpid()), until);
  }
  return unused;
}

/* Virtual time must not run on before the thread lives by it. */
static void start_worker(void) {
  pthread_t thread;
  if (started == getpid()) return;
  fk_attach();
  pthread_mutex_lock(&starting);
  if (worker_of != getpid()) {
    worker_of = getpid();
    tasks = NULL; /* a fork's copy */
    if (pthread_create(&thread, NULL, work, NULL) == 0) pthread_detach(thread);
  }
  pthread_mutex_unlock(&starting);
  while (started != getpid()) usleep(100);
}

static CUresult queue(struct CUstream_st *s, struct task task) {
  if (!s) return CUDA_ERROR_INVALID_CONTEXT;
  if (s->capture) {
    fk_node_add(s->capture, CU_GRAPH_NODE_TYPE_HOST);
    return CUDA_SUCCESS;
  }
  struct task *t = malloc(sizeof *t);
  if (!t) return CUDA_ERROR_OUT_OF_MEMORY;
  *t = task;
  start_worker();
  fk_lock();
  t->gpu = s->ctx->gpu;
  t->place = fk_last(t->gpu, s->slot);
  t->place.seq++;
  t->next = NULL;
  struct task **end = &tasks;
  while (*end) end = &(*end)->next;
  *end = t;
  fk_submit(t->gpu, s->slot, (struct fk_op){.kind = FK_HOST});
  fk_wake_locked(fk_host_key(getpid()));
  fk_unlock();
  return CUDA_SUCCESS;
}

static CUresult batch(struct CUstream_st *s, unsigned count, CUstreamBatchMemOpParams *list) {
  CUresult r = CUDA_SUCCESS;
  for (unsigned i = 0; i < count && r == CUDA_SUCCESS; i++)
    r = queue(s, (struct task){.memory = list[i]});
  return r;
}

static CUresult value(struct CUstream_st *s, CUstreamBatchMemOpType op, CUdeviceptr address,
                      cuuint64_t value, unsigned flags) {
  CUstreamBatchMemOpParams p;
  memset(&p, 0, sizeof p);
  p.waitValue.operation = op; /* waiting and writing have the same layout */
  p.waitValue.address = address;
  p.waitValue.value64 = value;
  p.waitValue.flags = flags;
  return batch(s, 1, &p);
}

FK_STREAM_API(cuLaunchHostFunc, (CUstream stream, CUhostFn f, void *data),
              queue(s, (struct task){.function = f, .data = data}))
FK_STREAM_API(cuStreamAddCallback,
              (CUstream stream, CUstreamCallback f, void *data, unsigned flags),
              ((void)flags,
               queue(s, (struct task){.callback = f, .stream = stream, .data = data})))
FK_STREAM_API(cuStreamBatchMemOp_v2,
              (CUstream stream, unsigned count, CUstreamBatchMemOpParams *list, unsigned flags),
              ((void)flags, batch(s, count, list)))
FK_STREAM_API(cuStreamWaitValue32_v2,
              (CUstream stream, CUdeviceptr address, cuuint32_t v, unsigned flags),
              value(s, CU_STREAM_MEM_OP_WAIT_VALUE_32, address, v, flags))
FK_STREAM_API(cuStreamWaitValue64_v2,
              (CUstream stream, CUdeviceptr address, cuuint64_t v, unsigned flags),
              value(s, CU_STREAM_MEM_OP_WAIT_VALUE_64, address, v, flags))
FK_STREAM_API(cuStreamWriteValue32_v2,
              (CUstream stream, CUdeviceptr address, cuuint32_t v, unsigned flags),
              value(s, CU_STREAM_MEM_OP_WRITE_VALUE_32, address, v, flags))
FK_STREAM_API(cuStreamWriteValue64_v2,
              (CUstream stream, CUdeviceptr address, cuuint64_t v, unsigned flags),
              value(s, CU_STREAM_MEM_OP_WRITE_VALUE_64, address, v, flags))
