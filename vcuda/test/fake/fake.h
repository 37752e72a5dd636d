/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A CUDA driver on the CPU. All processes share one world (a mapped file): its GPUs, their memory
 * and queues, and a clock that is either the machine's or a virtual one.
 *
 * The GPU is a time line, not a worker: whoever asks moves it up to the present. Nothing runs, so
 * kernels cost no CPU, and in virtual time results do not depend on the machine's load.
 */
#ifndef FAKE_H
#define FAKE_H

#include "abi.h"

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FK_GPUS 8
#define FK_CTXS 96
#define FK_RING 1024u
#define FK_ACTORS 1024
#define FK_NEVER UINT64_MAX
#define FK_SLICE_NS 2000000ull
#define FK_SAMPLE_NS 166666667ull

struct fk_op {
  uint64_t work_end; /* the context's work counter when this operation is done */
  uint64_t finish;   /* when it was done, 0 before */
};

/* A context's queue: one FIFO for all its streams, as with a single hardware queue. */
struct fk_queue {
  uint32_t used;
  int32_t pid;
  uint64_t submitted, done;       /* operations */
  uint64_t work_total, work_done; /* nanoseconds of GPU work */
  uint64_t slice_left;
  uint64_t mem, small;             /* bytes on the device; small requests share granules */
  uint64_t sample_work, sample_at; /* utilisation window for NVML */
  uint32_t sm_util;
  struct fk_op ring[FK_RING];
};

struct fk_gpu {
  uint64_t mem_total, mem_used, mem_peak;
  uint64_t at;   /* the time line is known up to here */
  uint64_t busy; /* nanoseconds with a kernel running */
  int32_t current;
  struct fk_queue queue[FK_CTXS];
};

/* A thread that lives in virtual time: time moves only while all of them wait. */
struct fk_actor {
  uint32_t used, running;
  uint32_t stopped; /* its process was stopped: time does not wait for it */
  int32_t pid;
  _Atomic uint32_t word;
  uint64_t key, until;
};

struct fk_world {
  uint32_t magic, version;
  _Atomic uint32_t ready;
  uint32_t virtual_time;
  pthread_mutex_t lock;
  uint64_t now;
  uint32_t hold; /* virtual time stands still until this many threads have arrived */
  uint32_t gpus;
  uint64_t context_bytes;
  uint32_t actors; /* slots in use lie below this */
  struct fk_actor actor[FK_ACTORS];
  struct fk_gpu gpu[FK_GPUS];
};

struct fk_proc {
  const char *base;
  int version, per_thread;
  void *function;
  const char *symbol;
};
extern const struct fk_proc fk_procs[];
extern const unsigned fk_proc_count;

static inline uint64_t fk_granules(uint64_t bytes) {
  return (bytes + VC_GRANULE - 1) / VC_GRANULE * VC_GRANULE;
}

/* world.c */
struct fk_world *fk_world(void);
void fk_lock(void);
void fk_unlock(void);
uint64_t fk_now_locked(void);
/* With the lock held; it is let go while waiting. The word may be NULL. */
void fk_wait_locked(_Atomic uint32_t *word, uint32_t seen, uint64_t key, uint64_t until);
void fk_wake_locked(uint64_t key);
void fk_attach(void);
const char *fk_setting(const char *name);
uint64_t fk_bytes(const char *text, uint64_t fallback);

/* engine.c; all with the lock held */
int fk_queue_open(int gpu);
void fk_queue_close(int gpu, int queue);
void fk_engine_advance(int gpu);
uint64_t fk_submit(int gpu, int queue, uint64_t work);
bool fk_finished(int gpu, int queue, uint64_t seq);
uint64_t fk_finish_time(int gpu, int queue, uint64_t seq);
void fk_wait_seq(int gpu, int queue, uint64_t seq);
bool fk_mem_take(int gpu, int queue, uint64_t bytes);
void fk_mem_give(int gpu, int queue, uint64_t bytes);
void fk_mem_move(int gpu, int from, int to, uint64_t bytes);
bool fk_small_take(int gpu, int queue, uint64_t bytes);
void fk_small_give(int gpu, int queue, uint64_t bytes);
void fk_reap(void);

/* proc.c */
int fk_missing(const char *name);
int fk_fault(const char *name);

#endif
