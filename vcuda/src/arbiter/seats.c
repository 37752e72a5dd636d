/* SPDX-License-Identifier: Apache-2.0 */
#include "seats.h"
#include "sealed_page.h"
#include "seat_processes.h"
#include "procfs.h"
#include "saved_processes.h"
#include "usage_page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static struct ar_seat *seats;

struct ar_seat *ar_seat_first(void) {
  return seats;
}

struct ar_seat *ar_seat_find(const char *name) {
  struct ar_seat *s = seats;
  while (s && strcmp(s->config.name, name)) s = s->next;
  return s;
}

int ar_seat_count(void) {
  int count = 0;
  for (struct ar_seat *s = seats; s; s = s->next) count++;
  return count;
}

struct ar_seat *ar_seat_of(pid_t pid) {
  for (struct ar_seat *s = seats; s; s = s->next)
    for (unsigned i = 0; i < VC_SLOTS; i++)
      if (s->client[i] && s->client[i]->pid == pid) return s;
  return NULL;
}

static bool make_pages(struct ar_seat *s) {
  s->place.policy =
      ar_sealed_page("slicekeeper-policy", sizeof *s->place.policy, true, &s->policy_fd);
  s->usage = ar_sealed_page("slicekeeper-usage", sizeof *s->usage, false, &s->usage_fd);
  s->bell = ar_bell_open(s->gpu);
  if (!s->place.policy || !s->usage || !s->bell) return false;
  s->usage->magic = VC_MAGIC;
  s->usage->version = VC_VERSION;
  return true;
}

static void apply(struct ar_seat *s) {
  static uint32_t serial;
  struct vc_policy *p = s->place.policy;
  struct ar_share *share = &s->place.member.share;
  share->request = s->config.core * VC_PERMILLE / 100;
  share->limit = s->config.limit * VC_PERMILLE / 100;
  share->vclass = s->config.vclass;
  p->magic = VC_MAGIC;
  p->version = VC_VERSION;
  p->virtual_time = vc_clock != NULL;
  if (!p->gate_key) p->gate_key = ((uint64_t)getpid() << 32) | 0x9a7e0000u | (++serial & 0xffff);
  p->bell_key = s->gpu->bell_key;
  memcpy(p->uuid, s->gpu->uuid, sizeof p->uuid);
  atomic_store(&p->context_bytes, s->gpu->context_bytes);
  atomic_store(&p->vclass, s->config.vclass);
  atomic_store(&p->request, share->request);
  atomic_store(&p->limit, share->limit);
  atomic_store(&p->memory, s->config.memory);
  atomic_store(&p->heartbeat, vc_now());
  atomic_store(&p->confirmed, 1);
}

static void release(struct ar_seat *s) {
  if (s->bell) ar_bell_close(s->bell);
  if (s->place.policy) munmap(s->place.policy, sizeof *s->place.policy);
  if (s->usage) munmap(s->usage, sizeof *s->usage);
  if (s->policy_fd >= 0) close(s->policy_fd);
  if (s->usage_fd >= 0) close(s->usage_fd);
  free(s);
}

static struct ar_seat *create(const struct ar_config *config, const char **why) {
  struct ar_seat *s = calloc(1, sizeof *s);
  *why = "no memory";
  if (!s) return NULL;
  s->config = *config;
  s->gpu = &ar_gpus[config->gpu];
  s->policy_fd = s->usage_fd = s->door = -1;
  s->since = vc_now();
  s->place.look = ar_usage_look;
  *why = "the seat's pages could not be made: no memory or no descriptors";
  if (!make_pages(s)) {
    release(s);
    return NULL;
  }
  apply(s);
  pthread_mutex_lock(&s->gpu->lock);
  bool added = ar_sched_add(&s->gpu->sched, &s->place.member, vc_now());
  pthread_mutex_unlock(&s->gpu->lock);
  if (!added) {
    release(s);
    return NULL;
  }
  s->next = seats;
  seats = s;
  return s;
}

static bool config_ok(const struct ar_config *c, const char **why) {
  *why = !*c->name                              ? "seat is missing: a seat needs a name"
         : c->gpu < 0 || c->gpu >= ar_gpu_count ? "gpu names no GPU of this machine"
         : c->core < 1 || c->core > 100         ? "core must be 1 to 100"
         : c->limit < c->core || c->limit > 100 ? "limit must lie between core and 100"
         : !c->memory                           ? "memory must be given in bytes, more than 0"
                                                : NULL;
  return !*why;
}

static bool empty(const struct ar_seat *s) {
  for (unsigned i = 0; i < VC_SLOTS; i++)
    if (s->client[i]) return false;
  return true;
}

static bool over(struct ar_seat *s) {
  return s->config.root && empty(s) && !ar_process_roots_live(s);
}

struct ar_seat *ar_seat_set(const struct ar_config *config, bool *made, const char **why) {
  if (!config_ok(config, why)) return NULL;
  struct ar_seat *s = ar_seat_find(config->name);
  pid_t before = s ? s->config.root : 0;
  *made = !s;
  if (s && s->config.gpu != config->gpu) {
    *why = "the seat is on another GPU; drop it first";
    return NULL;
  }
  if (!s) {
    s = create(config, why);
  } else {
    pthread_mutex_lock(&s->gpu->lock);
    s->config = *config;
    apply(s);
    ar_sched_changed(&s->gpu->sched);
    pthread_mutex_unlock(&s->gpu->lock);
    ar_gpu_ring(s->gpu);
  }
  if (s && (*made || config->root != before))
    ar_process_add_root(s, config->root, config->root > 0 ? ar_procfs_start(config->root) : 0);
  if (s && !ar_state_save(&s->config))
    fprintf(stderr, "arbiter: seat %s was not kept\n", config->name);
  return s;
}

void ar_seat_drop(struct ar_seat *s) {
  struct vc_policy *policy = s->place.policy;
  pthread_mutex_lock(&s->gpu->lock);
  ar_sched_remove(&s->gpu->sched, &s->place.member);
  pthread_mutex_unlock(&s->gpu->lock);
  /* Wake the threads at the gate, which then see that there is no seat any more. */
  atomic_store(&policy->confirmed, 0);
  uint32_t gate = atomic_load(&policy->gate);
  atomic_store(&policy->gate, gate & 1 ? gate + 1 : gate + 2);
  vc_wake(&policy->gate, policy->gate_key);
  for (unsigned i = 0; i < VC_SLOTS; i++)
    if (s->client[i]) ar_process_leave(s->client[i]);
  if (s->closed) s->closed(s);
  ar_state_forget(s->config.name);
  struct ar_seat **p = &seats;
  while (*p != s) p = &(*p)->next;
  *p = s->next;
  release(s);
}

static bool (*open_door)(struct ar_seat *, const char **);

static void restore_one(const struct ar_config *config) {
  const char *why;
  struct ar_seat *s = config_ok(config, &why) ? create(config, &why) : NULL;
  if (s) ar_saved_adopt(s);
  if (s && !open_door(s, &why)) {
    ar_seat_drop(s);
    s = NULL;
  }
  if (!s) fprintf(stderr, "arbiter: seat %s was not restored: %s\n", config->name, why);
}

void ar_seat_restore(bool (*open)(struct ar_seat *, const char **)) {
  open_door = open;
  ar_state_each(restore_one);
}

void ar_seat_put_back(void) {
  const char *why;
  for (struct ar_seat *s = seats; s; s = s->next) {
    s->kept = 0;
    if (!open_door(s, &why) || !ar_state_save(&s->config))
      fprintf(stderr, "arbiter: seat %s was not put back\n", s->config.name);
  }
}

void ar_seat_tick(uint64_t now) {
  for (struct ar_seat *s = seats, *next; s; s = next) {
    next = s->next;
    for (unsigned i = 0; i < VC_SLOTS; i++)
      if (s->client[i]) ar_process_look(s->client[i], now);
    ar_saved_settle(s, now);
    if (over(s))
      ar_seat_drop(s);
    else
      ar_saved_write(s, now);
  }
}

void ar_seat_keep_all(void) {
  for (struct ar_seat *s = seats; s; s = s->next) ar_saved_write(s, UINT64_MAX);
}
