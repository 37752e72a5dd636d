/* SPDX-License-Identifier: Apache-2.0 */
/* A GPU and the thread that shares it out. */
#ifndef AR_GPU_H
#define AR_GPU_H

#include "clock_and_lock.h"
#include "left_behind.h"
#include "scheduler.h"

#include <pthread.h>

#define AR_GPUS 16

/* What a GPU's thread needs of a seat. */
struct ar_place {
  struct ar_member member;
  struct vc_policy *policy;
  struct ar_seen (*look)(const struct ar_place *place, uint64_t now);
};

struct ar_gpu {
  int index;
  uint8_t uuid[16];
  char uuid_text[64], name[64];
  uint64_t memory;        /* bytes; 0: unknown */
  uint64_t context_bytes; /* of a context; 0: unknown */
  bool tells_memory;      /* NVML knows what each process holds */
  struct ar_baseline baseline;
  void *nvml;
  pthread_t thread;
  pthread_mutex_t lock; /* guards the scheduler and what it shows of the seats */
  struct ar_sched sched;
  struct vc_bell *bell;
  int bell_fd;
  uint64_t bell_key;
  _Atomic bool stop;
};

extern struct ar_gpu ar_gpus[AR_GPUS];
extern int ar_gpu_count;

/* Start the thread; false without memory or descriptors. */
bool ar_gpu_start(struct ar_gpu *gpu, ar_rule *rule);
void ar_gpu_stop(struct ar_gpu *gpu);
/* Share its time by another rule from now on. */
void ar_gpu_follow(struct ar_gpu *gpu, ar_rule *rule);
/* Wake the thread, because something changed for which no tenant rings. */
void ar_gpu_ring(struct ar_gpu *gpu);

#endif
