/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The time line of one GPU. Contexts with work are served in turn, 2 ms at a time; the streams of
 * the one that is served run side by side, as far as their kernels fit on the GPU together.
 */
#define _GNU_SOURCE
#include "fake.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

static uint64_t granules(uint64_t bytes) {
  return (bytes + VC_GRANULE - 1) / VC_GRANULE * VC_GRANULE;
}

static struct fk_queue *at(int gpu, int queue) {
  return &fk_world()->gpu[gpu].queue[queue];
}

static void free_stream(struct fk_gpu *g, uint32_t stream);
static void settle_share(int gpu, struct fk_share *s);

static void free_streams(int gpu, int queue) {
  struct fk_gpu *g = &fk_world()->gpu[gpu];
  while (at(gpu, queue)->streams) free_stream(g, at(gpu, queue)->streams);
  if (g->current == queue) g->current = -1;
}

static void free_queue(int gpu, int queue) {
  struct fk_gpu *g = &fk_world()->gpu[gpu];
  struct fk_queue *q = at(gpu, queue);
  free_streams(gpu, queue);
  for (struct fk_share *s = g->share; fk_world()->shares && s < g->share + FK_SHARES; s++) {
    s->held[queue] = 0;
    if (s->used) settle_share(gpu, s);
  }
  g->mem_used -= q->mem;
  q->used = 0;
}

/* Forget contexts whose open file is gone, and exported memory that nothing holds any more. Without the lock at first:
 * each is a question to the system, and who loses the processor in the middle of a hundred would hold up every GPU. */
void fk_reap(void) {
  for (int g = 0; g < FK_DEVICES; g++) {
    if (!fk_there((unsigned)g)) continue;
    for (int i = 0; i < fk_world()->gpu[g].queues; i++) {
      if (!at(g, i)->used || !fk_life_over(fk_place_of_queue(g, i))) continue;
      fk_lock();
      if (at(g, i)->used && fk_life_over(fk_place_of_queue(g, i))) {
        fk_engine_advance(g);
        free_queue(g, i);
      }
      fk_unlock();
    }
    for (int i = 0; fk_world()->shares && i < FK_SHARES; i++) {
      struct fk_share *s = &fk_world()->gpu[g].share[i];
      if (!s->used || s->counted >= 0 || !fk_life_over(fk_place_of_share(g, i))) continue;
      fk_lock();
      if (s->used) settle_share(g, s);
      fk_unlock();
    }
  }
}

static bool mine; /* NVML's library has an engine too, which must not close what CUDA's opened */

static bool is_ours(int gpu, int queue) {
  return at(gpu, queue)->used && at(gpu, queue)->pid == getpid() && fk_world()->space[gpu][queue] == fk_space();
}

/* A child that holds our files keeps our memory, as it does if we are killed. */
void fk_leave(void) {
  if (!mine) return;
  for (int g = 0; g < FK_DEVICES; g++)
    for (int i = 0; fk_there((unsigned)g) && i < fk_world()->gpu[g].queues; i++) {
      if (!is_ours(g, i)) continue;
      fk_engine_advance(g);
      if (fk_life_shared())
        free_streams(g, i);
      else
        fk_queue_close(g, i);
    }
}

static int open_queue(int gpu, bool bare) {
  for (int i = 0; i < FK_CTXS; i++) {
    struct fk_queue *q = at(gpu, i);
    if (q->used) continue;
    mine = true;
    if (fk_world()->gpu[gpu].queues <= i) fk_world()->gpu[gpu].queues = i + 1;
    memset(q, 0, sizeof *q);
    q->used = 1;
    q->bare = bare;
    q->pid = getpid();
    fk_world()->space[gpu][i] = fk_space();
    fk_life_take(fk_place_of_queue(gpu, i));
    q->sample_at = fk_now_locked();
    if (bare || fk_mem_take(gpu, i, granules(fk_world()->context_bytes))) return i;
    fk_life_give(fk_place_of_queue(gpu, i));
    q->used = 0;
    break;
  }
  return -1;
}

int fk_queue_open(int gpu) {
  return open_queue(gpu, false);
}

int fk_queue_bare(int gpu) {
  static pid_t owner;
  static int known[FK_DEVICES];
  if (owner != getpid()) {
    owner = getpid();
    for (int i = 0; i < FK_DEVICES; i++) known[i] = -1;
  }
  if (known[gpu] < 0) known[gpu] = open_queue(gpu, true);
  return known[gpu];
}

void fk_queue_close(int gpu, int queue) {
  fk_engine_advance(gpu);
  free_queue(gpu, queue);
  fk_life_give(fk_place_of_queue(gpu, queue));
}

/* ---- streams and their operations ---- */

static struct fk_op *head_of(struct fk_gpu *g, const struct fk_stream *s) {
  return s->head ? &g->op[s->head] : NULL;
}

uint32_t fk_stream_open(int gpu, int queue, bool legacy, bool blocking, int priority) {
  struct fk_gpu *g = &fk_world()->gpu[gpu];
  for (uint32_t i = 1; i < FK_STREAMS; i++) {
    struct fk_stream *s = &g->stream[i];
    if (s->used) continue;
    uint32_t life = s->life + 1;
    *s = (struct fk_stream){.used = 1,
                            .life = life,
                            .queue = (uint32_t)queue,
                            .legacy = legacy,
                            .blocking = blocking,
                            .priority = priority,
                            .next = g->queue[queue].streams};
    g->queue[queue].streams = i;
    if (legacy) g->queue[queue].legacy = i;
    return i;
  }
  return 0;
}

static void free_op(struct fk_gpu *g, uint32_t op) {
  g->op[op].next = g->op_free;
  g->op_free = op;
}

static void free_stream(struct fk_gpu *g, uint32_t stream) {
  struct fk_stream *s = &g->stream[stream];
  struct fk_queue *q = &g->queue[s->queue];
  while (s->head) {
    uint32_t op = s->head;
    s->head = g->op[op].next;
    free_op(g, op);
    q->pending--;
    g->pending--;
  }
  uint32_t *link = &q->streams;
  while (*link && *link != stream) link = &g->stream[*link].next;
  if (*link) *link = s->next;
  s->used = 0;
}

void fk_stream_close(int gpu, uint32_t stream) {
  struct fk_gpu *g = &fk_world()->gpu[gpu];
  fk_engine_advance(gpu);
  g->stream[stream].closing = 1;
  if (!g->stream[stream].head) free_stream(g, stream);
}

static bool passed(const struct fk_gpu *g, struct fk_place place) {
  const struct fk_stream *s = &g->stream[place.stream];
  return !place.seq || !s->used || s->life != place.life || s->done >= place.seq;
}

/* The legacy default stream waits for all earlier work of the context's blocking streams, and they
 * for its own; the number that each operation has in its context tells which is earlier. */
static bool in_turn(struct fk_gpu *g, const struct fk_stream *s) {
  const struct fk_queue *q = &g->queue[s->queue];
  uint64_t serial = g->op[s->head].serial;
  if (s->legacy) {
    for (uint32_t i = q->streams; i; i = g->stream[i].next) {
      const struct fk_stream *o = &g->stream[i];
      if (o->blocking && o->head && g->op[o->head].serial < serial) return false;
    }
  } else if (s->blocking && q->legacy) {
    const struct fk_op *op = head_of(g, &g->stream[q->legacy]);
    if (op && op->serial < serial) return false;
  }
  return true;
}

static void complete(struct fk_gpu *g, uint32_t stream) {
  struct fk_stream *s = &g->stream[stream];
  uint32_t op = s->head;
  s->done++;
  struct fk_mark *m = g->op[op].mark ? &g->mark[g->op[op].mark] : NULL;
  if (m && m->used && m->seq == s->done) m->when = g->at;
  s->head = g->op[op].next;
  if (!s->head) s->tail = 0;
  g->queue[s->queue].pending--;
  g->pending--;
  free_op(g, op);
  if (s->closing && !s->head) free_stream(g, stream);
}

/* Complete what is first in the stream, if it takes no time any more. */
static bool settle_stream(struct fk_gpu *g, uint32_t stream) {
  struct fk_stream *s = &g->stream[stream];
  struct fk_op *op = head_of(g, s);
  if (!op || !in_turn(g, s)) return false;
  if (op->kind == FK_KERNEL && op->left) return false;
  if (op->kind == FK_AFTER && !passed(g, op->after)) return false;
  if (op->kind == FK_HOST) {
    if (!op->ready) {
      op->ready = 1;
      fk_wake_locked(fk_host_key(g->queue[s->queue].pid));
    }
    return false;
  }
  complete(g, stream);
  return true;
}

static void settle(struct fk_gpu *g) {
  for (bool again = g->pending; again;) {
    again = false;
    for (int i = 0; i < g->queues; i++) {
      struct fk_queue *q = &g->queue[i];
      if (!q->used || !q->pending) continue;
      for (uint32_t k = q->streams, next; k; k = next) {
        next = g->stream[k].next;
        while (settle_stream(g, k)) again = true;
      }
    }
  }
}

/* ---- the time line ---- */

#define SAMPLE_LOOK_NS 1000000ull
#define SIDE_BY_SIDE 128

struct running {
  struct fk_op *op[SIDE_BY_SIDE];
  uint32_t rate[SIDE_BY_SIDE];
  int32_t priority[SIDE_BY_SIDE];
  int count;
};

/* A kernel that has begun gives way to none. */
static bool runs_before(const struct running *r, int i, const struct fk_op *op, int32_t priority) {
  if (r->op[i]->began != op->began) return r->op[i]->began;
  if (!op->began && r->priority[i] != priority) return r->priority[i] < priority;
  return r->op[i]->serial < op->serial;
}

/* The kernels that are first in a context's streams: those that have begun by age, then the others by priority and age,
 * each takes its width; what does not fit runs in what is left, slower. */
static void share(struct fk_gpu *g, const struct fk_queue *q, struct running *r) {
  uint32_t room = FK_WHOLE;
  r->count = 0;
  for (uint32_t k = q->streams; k; k = g->stream[k].next) {
    const struct fk_stream *s = &g->stream[k];
    struct fk_op *op = head_of(g, s);
    if (!op || op->kind != FK_KERNEL || !in_turn(g, s) || r->count == SIDE_BY_SIDE) continue;
    int at = r->count++;
    for (; at > 0 && !runs_before(r, at - 1, op, s->priority); at--) {
      r->op[at] = r->op[at - 1];
      r->priority[at] = r->priority[at - 1];
    }
    r->op[at] = op;
    r->priority[at] = s->priority;
  }
  for (int i = 0; i < r->count; i++) {
    uint32_t width = r->op[i]->width < room ? r->op[i]->width : room;
    r->rate[i] = (uint32_t)((uint64_t)width * FK_WHOLE / r->op[i]->width);
    room -= width;
  }
}

static bool runnable(struct fk_gpu *g, const struct fk_queue *q) {
  if (!q->used || !q->pending) return false;
  for (uint32_t k = q->streams; k; k = g->stream[k].next) {
    const struct fk_op *op = head_of(g, &g->stream[k]);
    if (op && op->kind == FK_KERNEL && in_turn(g, &g->stream[k])) return true;
  }
  return false;
}

/* The context that runs next: the current one while its slice lasts, else the next with work. */
static int choose(struct fk_gpu *g, bool *others) {
  int first = -1;
  *others = false;
  if (!g->pending) return -1;
  for (int k = 1; k <= g->queues; k++) {
    int i = (g->current + k + g->queues) % g->queues;
    if (i == g->current || !runnable(g, &g->queue[i])) continue;
    if (first < 0) first = i;
    *others = true;
  }
  bool has_work = g->current >= 0 && runnable(g, &g->queue[g->current]);
  if (has_work && (g->queue[g->current].slice_left || first < 0)) return g->current;
  if (first < 0) return -1;
  g->queue[first].slice_left = FK_SLICE_NS;
  return first;
}

static void sample(struct fk_queue *q, uint64_t now) {
  if (now - q->sample_at < FK_SAMPLE_NS) return;
  q->sm_util = (uint32_t)((q->busy - q->sample_work) * 100 / (now - q->sample_at));
  q->sample_work = q->busy;
  q->sample_at = now;
}

static void sample_gpu(struct fk_samples *s, uint64_t busy, uint64_t now) {
  if (s->at && now - s->at < FK_SAMPLE_NS) return;
  if (s->at) {
    uint32_t i = s->count++ % FK_SAMPLES;
    s->ring[i].until = now;
    s->ring[i].percent = (uint32_t)((busy - s->busy) * 100 / (now - s->at));
  }
  s->at = now;
  s->busy = busy;
}

/* The kernels that run now, and for how long nothing changes; no kernel: FK_NEVER. */
static uint64_t next_step(struct fk_gpu *g, struct running *r) {
  bool others;
  int i = choose(g, &others);
  r->count = 0;
  if (i < 0) return FK_NEVER;
  struct fk_queue *q = &g->queue[i];
  g->current = i;
  if (others && !q->slice_left) q->slice_left = FK_SLICE_NS;
  uint64_t step = others ? q->slice_left : FK_NEVER;
  share(g, q, r);
  for (int k = 0; k < r->count; k++) {
    if (!r->rate[k]) continue;
    uint64_t ends = (r->op[k]->left * 1000 + r->rate[k] - 1) / r->rate[k];
    if (ends < step) step = ends;
  }
  return step ? step : 1;
}

void fk_engine_advance(int gpu) {
  struct fk_gpu *g = &fk_world()->gpu[gpu];
  uint64_t now = fk_now_locked();
  struct running r;
  settle(g);
  while (g->at < now) {
    uint64_t step = next_step(g, &r);
    if (step > now - g->at) step = now - g->at;
    g->at += step;
    if (r.count) {
      struct fk_queue *q = &g->queue[g->current];
      g->busy += step;
      q->busy += step;
      q->slice_left -= step < q->slice_left ? step : q->slice_left;
    }
    for (int k = 0; k < r.count; k++) {
      uint64_t done = step * r.rate[k] / 1000;
      if (done) r.op[k]->began = 1;
      r.op[k]->left -= done < r.op[k]->left ? done : r.op[k]->left;
    }
    settle(g);
  }
  if (now - g->sampled < SAMPLE_LOOK_NS) return;
  g->sampled = now;
  sample_gpu(&fk_world()->samples[gpu], g->busy, now);
  for (int i = 0; i < g->queues; i++)
    if (g->queue[i].used) sample(&g->queue[i], now);
}

uint64_t fk_next_event(int gpu) {
  struct fk_gpu *g = &fk_world()->gpu[gpu];
  struct running r;
  uint64_t step = next_step(g, &r);
  return step == FK_NEVER ? FK_NEVER : g->at + step;
}

/* ---- submitting and waiting ---- */

static uint64_t gpu_key(int gpu) {
  return 0x6f00000000000000ull | (unsigned)gpu;
}

uint64_t fk_host_key(int pid) {
  return 0x6e00000000000000ull | (unsigned)pid;
}

static uint32_t take_op(struct fk_gpu *g) {
  uint32_t op = g->op_free;
  if (op) {
    g->op_free = g->op[op].next;
    return op;
  }
  return g->op_high + 1 < FK_OPS ? ++g->op_high : 0;
}

uint64_t fk_submit(int gpu, uint32_t stream, struct fk_op op) {
  struct fk_gpu *g = &fk_world()->gpu[gpu];
  struct fk_stream *s = &g->stream[stream];
  fk_engine_advance(gpu);
  while (s->submitted - s->done >= FK_QUEUED - 1)
    fk_wait_place(gpu, (struct fk_place){stream, s->life, s->done + 1});
  uint32_t at;
  while (!(at = take_op(g))) {
    fk_wait_locked(NULL, 0, gpu_key(gpu), fk_next_event(gpu));
    fk_engine_advance(gpu);
  }
  op.serial = ++g->queue[s->queue].serial;
  op.next = 0;
  if (op.kind != FK_KERNEL) op.left = 0;
  if (op.width > FK_WHOLE || !op.width) op.width = FK_WHOLE;
  g->op[at] = op;
  if (s->tail)
    g->op[s->tail].next = at;
  else
    s->head = at;
  s->tail = at;
  g->queue[s->queue].pending++;
  g->pending++;
  uint64_t seq = ++s->submitted;
  if (op.mark) g->mark[op.mark].seq = seq, g->mark[op.mark].when = 0;
  if (op.kind != FK_KERNEL && g->op[s->head].kind != FK_KERNEL) settle(g);
  return seq;
}

struct fk_place fk_last(int gpu, uint32_t stream) {
  struct fk_stream *s = &fk_world()->gpu[gpu].stream[stream];
  return (struct fk_place){stream, s->life, s->submitted};
}

bool fk_finished(int gpu, struct fk_place place) {
  fk_engine_advance(gpu);
  return passed(&fk_world()->gpu[gpu], place);
}

/* The operation is not done before this time, if no more is submitted; it may be much later. */
static uint64_t earliest(int gpu, struct fk_place place) {
  struct fk_gpu *g = &fk_world()->gpu[gpu];
  const struct fk_stream *s = &g->stream[place.stream];
  uint64_t next = fk_next_event(gpu), work = 0, seq = s->done;
  for (uint32_t op = s->head; op && seq < place.seq; op = g->op[op].next, seq++)
    if (g->op[op].kind == FK_KERNEL) work += g->op[op].left;
  work = (work + 999) / 1000;
  uint64_t when = g->at + work;
  if (next != FK_NEVER && g->current != (int)s->queue) when = next + work;
  return when > g->at && next != FK_NEVER ? when : next;
}

void fk_wait_place(int gpu, struct fk_place place) {
  while (!fk_finished(gpu, place)) fk_wait_locked(NULL, 0, gpu_key(gpu), earliest(gpu, place));
}

void fk_wait_queue(int gpu, int queue) {
  struct fk_gpu *g = &fk_world()->gpu[gpu];
  struct fk_place all[SIDE_BY_SIDE];
  for (bool more = true; more;) {
    int count = 0;
    for (uint32_t k = at(gpu, queue)->streams; k && count < SIDE_BY_SIDE; k = g->stream[k].next)
      if (g->stream[k].head) all[count++] = fk_last(gpu, k);
    for (int i = 0; i < count; i++) fk_wait_place(gpu, all[i]);
    more = count == SIDE_BY_SIDE;
  }
}

bool fk_host_ready(int gpu, struct fk_place place) {
  struct fk_gpu *g = &fk_world()->gpu[gpu];
  const struct fk_stream *s = &g->stream[place.stream];
  fk_engine_advance(gpu);
  return s->used && s->life == place.life && s->done + 1 == place.seq && g->op[s->head].ready;
}

void fk_host_done(int gpu, struct fk_place place) {
  struct fk_gpu *g = &fk_world()->gpu[gpu];
  if (!fk_host_ready(gpu, place)) return;
  complete(g, place.stream);
  settle(g);
  fk_wake_locked(gpu_key(gpu));
}

uint32_t fk_mark_open(int gpu) {
  struct fk_gpu *g = &fk_world()->gpu[gpu];
  uint32_t mark = g->mark_free;
  if (mark)
    g->mark_free = g->mark[mark].next;
  else if (g->mark_high + 1 < FK_MARKS)
    mark = ++g->mark_high;
  if (mark) g->mark[mark] = (struct fk_mark){.used = 1};
  return mark;
}

void fk_mark_close(int gpu, uint32_t mark) {
  struct fk_gpu *g = &fk_world()->gpu[gpu];
  if (!mark || !g->mark[mark].used) return;
  g->mark[mark].used = 0;
  g->mark[mark].next = g->mark_free;
  g->mark_free = mark;
}

/* ---- memory ---- */

static void fk_wrong(const char *what) {
  fprintf(stderr, "fake GPU: %s\n", what);
  abort();
}

bool fk_mem_take(int gpu, int queue, uint64_t bytes) {
  struct fk_gpu *g = &fk_world()->gpu[gpu];
  if (bytes > g->mem_total - g->mem_used) return false;
  if (!at(gpu, queue)->used) fk_wrong("memory was taken for a context that is gone");
  g->mem_used += bytes;
  at(gpu, queue)->mem += bytes;
  if (g->mem_used > g->mem_peak) g->mem_peak = g->mem_used;
  return true;
}

void fk_mem_give(int gpu, int queue, uint64_t bytes) {
  if (bytes > at(gpu, queue)->mem) fk_wrong("a context gave back more memory than it had");
  fk_world()->gpu[gpu].mem_used -= bytes;
  at(gpu, queue)->mem -= bytes;
}

int fk_share_open(int gpu, int queue, uint64_t bytes) {
  for (int i = 0; i < FK_SHARES; i++) {
    struct fk_share *s = &fk_world()->gpu[gpu].share[i];
    if (s->used || !fk_life_over(fk_place_of_share(gpu, i))) continue;
    *s = (struct fk_share){.used = 1, .life = s->life + 1, .counted = queue, .bytes = bytes};
    s->held[queue] = 1;
    atomic_fetch_add(&fk_world()->shares, 1);
    return i;
  }
  return -1;
}

/* Count it to another queue if that one does not hold it any more, to none if only a descriptor is left, and free it if
 * nothing is. */
static void settle_share(int gpu, struct fk_share *s) {
  int heir = 0;
  if (s->counted >= 0 && s->held[s->counted]) return;
  while (heir < FK_CTXS && !s->held[heir]) heir++;
  if (s->counted >= 0) at(gpu, s->counted)->mem -= s->bytes;
  s->counted = heir < FK_CTXS ? heir : -1;
  if (s->counted >= 0) {
    at(gpu, heir)->mem += s->bytes;
  } else if (fk_life_over(fk_place_of_share(gpu, (int)(s - fk_world()->gpu[gpu].share)))) {
    fk_world()->gpu[gpu].mem_used -= s->bytes;
    s->used = 0;
    atomic_fetch_sub(&fk_world()->shares, 1);
  }
}

void fk_share_let_go(int gpu, int share, int queue) {
  struct fk_share *s = &fk_world()->gpu[gpu].share[share];
  if (s->held[queue]) s->held[queue]--;
  settle_share(gpu, s);
}

bool fk_share_hold(int gpu, int share, int queue) {
  if (queue < 0) return false;
  fk_world()->gpu[gpu].share[share].held[queue]++;
  settle_share(gpu, &fk_world()->gpu[gpu].share[share]);
  return true;
}

int fk_share_export(int gpu, int share) {
  return share < 0 ? -1 : fk_life_export(fk_place_of_share(gpu, share), fk_world()->gpu[gpu].share[share].life);
}

bool fk_share_of(int fd, int *gpu, int *share) {
  int place;
  uint32_t life;
  if (!fk_life_import(fd, &place, &life)) return false;
  place -= fk_place_of_share(0, 0);
  *gpu = place / FK_SHARES;
  *share = place % FK_SHARES;
  if (place < 0 || *gpu >= FK_DEVICES) return false;
  const struct fk_share *s = &fk_world()->gpu[*gpu].share[*share];
  return s->used && s->life == life;
}

/* Small requests share granules with others of their context. */
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
