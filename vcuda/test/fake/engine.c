/* SPDX-License-Identifier: Apache-2.0 */
/* The time line of one GPU: queues served in turn, 2 ms at a time, when more than one has work. */
#define _GNU_SOURCE
#include "fake.h"

#include <errno.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

static uint64_t granules(uint64_t bytes) {
  return (bytes + VC_GRANULE - 1) / VC_GRANULE * VC_GRANULE;
}

static struct fk_queue *at(int gpu, int queue) {
  return &fk_world()->gpu[gpu].queue[queue];
}

static void free_queue(int gpu, int queue) {
  struct fk_gpu *g = &fk_world()->gpu[gpu];
  struct fk_queue *q = at(gpu, queue);
  g->mem_used -= q->mem;
  if (g->current == queue) g->current = -1;
  q->used = 0;
}

/* Forget contexts of processes that died without cleaning up. */
void fk_reap(void) {
  for (uint32_t g = 0; g < fk_world()->gpus; g++)
    for (int i = 0; i < FK_CTXS; i++) {
      struct fk_queue *q = at((int)g, i);
      if (q->used && kill(q->pid, 0) < 0 && errno == ESRCH) free_queue((int)g, i);
    }
}

int fk_queue_open(int gpu) {
  fk_reap();
  for (int i = 0; i < FK_CTXS; i++) {
    struct fk_queue *q = at(gpu, i);
    if (q->used) continue;
    memset(q, 0, offsetof(struct fk_queue, ring));
    q->used = 1;
    q->pid = getpid();
    q->sample_at = fk_now_locked();
    if (fk_mem_take(gpu, i, granules(fk_world()->context_bytes))) return i;
    q->used = 0;
    break;
  }
  return -1;
}

void fk_queue_close(int gpu, int queue) {
  free_queue(gpu, queue);
}

static void finish_ready(struct fk_queue *q, uint64_t now) {
  while (q->done < q->submitted) {
    struct fk_op *op = &q->ring[q->done % FK_RING];
    if (op->work_end > q->work_done) return;
    op->finish = now;
    q->done++;
  }
}

/* The queue that runs next: the current one while its slice lasts, else the next with work. */
static int choose(struct fk_gpu *g, bool *others) {
  int first = -1;
  *others = false;
  for (int k = 1; k <= FK_CTXS; k++) {
    int i = (g->current + k + FK_CTXS) % FK_CTXS;
    struct fk_queue *q = &g->queue[i];
    if (!q->used || q->work_done >= q->work_total || i == g->current) continue;
    if (first < 0) first = i;
    *others = true;
  }
  struct fk_queue *now = g->current >= 0 ? &g->queue[g->current] : NULL;
  bool has_work = now && now->used && now->work_done < now->work_total;
  if (has_work && (now->slice_left || first < 0)) return g->current;
  if (first < 0) return -1;
  g->queue[first].slice_left = FK_SLICE_NS;
  return first;
}

static void sample(struct fk_queue *q, uint64_t now) {
  if (now - q->sample_at < FK_SAMPLE_NS) return;
  q->sm_util = (uint32_t)((q->work_done - q->sample_work) * 100 / (now - q->sample_at));
  q->sample_work = q->work_done;
  q->sample_at = now;
}

void fk_engine_advance(int gpu) {
  struct fk_gpu *g = &fk_world()->gpu[gpu];
  uint64_t now = fk_now_locked();
  while (g->at < now) {
    bool others;
    int i = choose(g, &others);
    if (i < 0) break;
    struct fk_queue *q = &g->queue[i];
    g->current = i;
    struct fk_op *op = &q->ring[q->done % FK_RING];
    uint64_t step = op->work_end - q->work_done;
    if (others && !q->slice_left) q->slice_left = FK_SLICE_NS;
    if (others && step > q->slice_left) step = q->slice_left;
    if (step > now - g->at) step = now - g->at;
    g->at += step;
    g->busy += step;
    q->work_done += step;
    q->slice_left -= step < q->slice_left ? step : q->slice_left;
    finish_ready(q, g->at);
  }
  g->at = now > g->at ? now : g->at;
  for (int i = 0; i < FK_CTXS; i++)
    if (g->queue[i].used) sample(&g->queue[i], now);
}

/* When the operation could be done at the earliest. */
static uint64_t estimate(int gpu, int queue, uint64_t seq) {
  struct fk_gpu *g = &fk_world()->gpu[gpu];
  struct fk_queue *q = at(gpu, queue);
  uint64_t end = q->ring[(seq - 1) % FK_RING].work_end;
  uint64_t when = g->at + (end - q->work_done);
  if (g->current >= 0 && g->current != queue) {
    struct fk_queue *other = &g->queue[g->current];
    uint64_t theirs = other->used ? other->work_total - other->work_done : 0;
    when += theirs < other->slice_left ? theirs : other->slice_left;
  }
  return when;
}

bool fk_finished(int gpu, int queue, uint64_t seq) {
  fk_engine_advance(gpu);
  finish_ready(at(gpu, queue), fk_now_locked());
  return at(gpu, queue)->done >= seq;
}

uint64_t fk_finish_time(int gpu, int queue, uint64_t seq) {
  struct fk_queue *q = at(gpu, queue);
  if (!seq || q->submitted - seq >= FK_RING) return 0;
  return q->ring[(seq - 1) % FK_RING].finish;
}

void fk_wait_seq(int gpu, int queue, uint64_t seq) {
  while (!fk_finished(gpu, queue, seq)) fk_wait_locked(NULL, 0, 0, estimate(gpu, queue, seq));
}

/* Queue work behind what is there and return its number; waits while the queue is full. */
uint64_t fk_submit(int gpu, int queue, uint64_t work) {
  struct fk_queue *q = at(gpu, queue);
  fk_engine_advance(gpu);
  finish_ready(q, fk_now_locked());
  if (q->submitted - q->done >= FK_RING - 1) fk_wait_seq(gpu, queue, q->done + 1);
  q->work_total += work;
  q->ring[q->submitted % FK_RING] = (struct fk_op){.work_end = q->work_total};
  q->submitted++;
  finish_ready(q, fk_now_locked());
  return q->submitted;
}

bool fk_mem_take(int gpu, int queue, uint64_t bytes) {
  struct fk_gpu *g = &fk_world()->gpu[gpu];
  if (bytes > g->mem_total - g->mem_used) return false;
  g->mem_used += bytes;
  at(gpu, queue)->mem += bytes;
  if (g->mem_used > g->mem_peak) g->mem_peak = g->mem_used;
  return true;
}

void fk_mem_give(int gpu, int queue, uint64_t bytes) {
  fk_world()->gpu[gpu].mem_used -= bytes;
  at(gpu, queue)->mem -= bytes;
}

/* It is counted to another context. */
void fk_mem_move(int gpu, int from, int to, uint64_t bytes) {
  at(gpu, from)->mem -= bytes;
  at(gpu, to)->mem += bytes;
}

/* Requests below a granule share granules with others of their process. */
bool fk_small_take(int gpu, int queue, uint64_t bytes) {
  struct fk_queue *q = at(gpu, queue);
  uint64_t grow = granules(q->small + bytes) - granules(q->small);
  if (grow && !fk_mem_take(gpu, queue, grow)) return false;
  q->small += bytes;
  return true;
}

void fk_small_give(int gpu, int queue, uint64_t bytes) {
  struct fk_queue *q = at(gpu, queue);
  uint64_t shrink = granules(q->small) - granules(q->small - bytes);
  q->small -= bytes;
  if (shrink) fk_mem_give(gpu, queue, shrink);
}
