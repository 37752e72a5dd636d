/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "gpu.h"
#include "sealed_page.h"

#include <stddef.h>
#include <stdio.h>
#include <sys/prctl.h>
#include <unistd.h>

#define CROWD 4000 /* more turns within CROWD_NS are a tenant's mischief */
#define CROWD_NS (20 * VC_MS)

struct ar_gpu ar_gpus[AR_GPUS];
int ar_gpu_count;

static struct ar_place *place_of(struct ar_member *m) {
  return (struct ar_place *)((char *)m - offsetof(struct ar_place, member));
}

static void show(struct ar_member *m, uint64_t now) {
  struct vc_policy *p = place_of(m)->policy;
  atomic_store_explicit(&p->contended, m->contended, memory_order_relaxed);
  atomic_store_explicit(&p->depth_ns, m->depth, memory_order_relaxed);
  atomic_store_explicit(&p->beside_until, m->beside_until, memory_order_relaxed);
  atomic_store_explicit(&p->behind_ns, m->behind, memory_order_relaxed);
  atomic_store_explicit(&p->heartbeat, now, memory_order_relaxed);
  uint32_t gate = atomic_load(&p->gate);
  if ((gate & 1) == m->open) return;
  atomic_store(&p->gate, gate + 1);
  if (m->open) vc_wake(&p->gate, p->gate_key);
}

static uint64_t pass(struct ar_gpu *g, uint64_t now) {
  for (int i = 0; i < g->sched.count; i++) {
    struct ar_place *place = place_of(g->sched.member[i]);
    place->member.seen = place->look(place, now);
  }
  uint64_t next = ar_sched_step(&g->sched, now);
  /* Close before opening: two gates are never open at once. */
  for (int i = 0; i < g->sched.count; i++)
    if (!g->sched.member[i]->open) show(g->sched.member[i], now);
  for (int i = 0; i < g->sched.count; i++)
    if (g->sched.member[i]->open) show(g->sched.member[i], now);
  return next;
}

/* Look once more after a gate was closed: its seat may have nothing in flight. */
static uint64_t turn(struct ar_gpu *g) {
  pthread_mutex_lock(&g->lock);
  bool before = g->sched.draining;
  uint64_t now = vc_now(), next = pass(g, now);
  if (g->sched.draining && !before) next = pass(g, now);
  pthread_mutex_unlock(&g->lock);
  return next;
}

static void *run(void *argument) {
  struct ar_gpu *g = argument;
  uint64_t crowd_at = 0;
  int turns = 0;
  prctl(PR_SET_TIMERSLACK, 1000);
  while (!atomic_load(&g->stop)) {
    uint32_t seen = atomic_load(&g->bell->word);
    uint64_t next = turn(g);
    vc_wait(&g->bell->word, seen, g->bell_key, next);
    uint64_t now = vc_machine_now();
    if (now - crowd_at > CROWD_NS) {
      crowd_at = now;
      turns = 0;
    }
    if (!vc_clock && ++turns > CROWD) vc_machine_sleep(200 * VC_US);
  }
  return NULL;
}

bool ar_gpu_start(struct ar_gpu *g, ar_rule *rule) {
  g->bell = ar_sealed_page("slicekeeper-bell", sizeof *g->bell, false, &g->bell_fd);
  if (!g->bell) return false;
  g->bell_key = ((uint64_t)getpid() << 32) | 0xbe110000u | (unsigned)g->index;
  pthread_mutex_init(&g->lock, NULL);
  ar_sched_init(&g->sched, rule, vc_now());
  return pthread_create(&g->thread, NULL, run, g) == 0;
}

void ar_gpu_stop(struct ar_gpu *g) {
  atomic_store(&g->stop, true);
  ar_gpu_ring(g);
  pthread_join(g->thread, NULL);
  ar_sched_free(&g->sched);
  close(g->bell_fd); /* the page stays: a seat's bell may still be heard */
}

void ar_gpu_follow(struct ar_gpu *g, ar_rule *rule) {
  pthread_mutex_lock(&g->lock);
  g->sched.rule = rule;
  ar_sched_changed(&g->sched);
  pthread_mutex_unlock(&g->lock);
  ar_gpu_ring(g);
}

void ar_gpu_ring(struct ar_gpu *g) {
  atomic_fetch_add(&g->bell->word, 1);
  vc_wake(&g->bell->word, g->bell_key);
}
