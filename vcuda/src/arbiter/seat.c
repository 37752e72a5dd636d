/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "seat.h"
#include "door.h"
#include "gpu.h"
#include "state.h"

#include <errno.h>
#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

#ifndef F_SEAL_FUTURE_WRITE
#define F_SEAL_FUTURE_WRITE 0x0010
#endif
#define ORPHAN_NS (250 * VC_MS)
#define RESTORED_NS (2 * VC_S)

static struct ar_seat *seats;

struct ar_seat *ar_seat_first(void) {
  return seats;
}

struct ar_seat *ar_seat_find(const char *name) {
  struct ar_seat *s = seats;
  while (s && strcmp(s->config.name, name)) s = s->next;
  return s;
}

/* Only we can write this page: tenants get a descriptor that cannot be mapped for writing. */
static bool make_policy(struct ar_seat *s) {
  s->policy_fd = memfd_create("slicekeeper-policy", MFD_CLOEXEC | MFD_ALLOW_SEALING);
  if (s->policy_fd < 0 || ftruncate(s->policy_fd, sizeof *s->policy) < 0) return false;
  s->policy = mmap(NULL, sizeof *s->policy, PROT_READ | PROT_WRITE, MAP_SHARED, s->policy_fd, 0);
  if (s->policy == MAP_FAILED) {
    s->policy = NULL;
    return false;
  }
  int seals = F_SEAL_GROW | F_SEAL_SHRINK | F_SEAL_FUTURE_WRITE | F_SEAL_SEAL;
  return fcntl(s->policy_fd, F_ADD_SEALS, seals) == 0;
}

/* A file and not a memfd: after a restart we open the same page that the tenants still have. */
static bool make_usage(struct ar_seat *s) {
  char path[AR_PATH];
  if (!ar_path(path, "state/%s.usage", s->config.name)) return false;
  s->usage_fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  if (s->usage_fd < 0 || ftruncate(s->usage_fd, sizeof *s->usage) < 0) return false;
  s->usage = mmap(NULL, sizeof *s->usage, PROT_READ | PROT_WRITE, MAP_SHARED, s->usage_fd, 0);
  if (s->usage == MAP_FAILED) {
    s->usage = NULL;
    return false;
  }
  s->usage->magic = VC_MAGIC;
  s->usage->version = VC_VERSION;
  return true;
}

static void apply(struct ar_seat *s) {
  static uint32_t serial;
  struct vc_policy *p = s->policy;
  s->member.share.request = s->config.core * VC_PERMILLE / 100;
  s->member.share.limit = s->config.limit * VC_PERMILLE / 100;
  s->member.share.vclass = s->config.vclass;
  p->magic = VC_MAGIC;
  p->version = VC_VERSION;
  p->virtual_time = vc_clock != NULL;
  if (!p->gate_key) p->gate_key = ((uint64_t)getpid() << 32) | 0x9a7e0000u | (++serial & 0xffff);
  p->bell_key = s->gpu->bell_key;
  memcpy(p->uuid, s->gpu->uuid, sizeof p->uuid);
  atomic_store(&p->vclass, s->config.vclass);
  atomic_store(&p->request, s->member.share.request);
  atomic_store(&p->limit, s->member.share.limit);
  atomic_store(&p->memory, s->config.memory);
  atomic_store(&p->heartbeat, vc_now());
  atomic_store(&p->confirmed, 1);
}

static void release(struct ar_seat *s) {
  if (s->policy) munmap(s->policy, sizeof *s->policy);
  if (s->usage) munmap(s->usage, sizeof *s->usage);
  if (s->policy_fd >= 0) close(s->policy_fd);
  if (s->usage_fd >= 0) close(s->usage_fd);
  if (s->root_pidfd >= 0) close(s->root_pidfd);
  free(s);
}

static int pidfd_of(pid_t pid) {
  return (int)syscall(SYS_pidfd_open, pid, 0);
}

static struct ar_seat *create(const struct ar_config *config, const char **why) {
  struct ar_seat *s = calloc(1, sizeof *s);
  *why = "no memory";
  if (!s) return NULL;
  s->config = *config;
  s->gpu = &ar_gpus[config->gpu];
  s->policy_fd = s->usage_fd = s->door = s->root_pidfd = -1;
  s->since = vc_now();
  *why = "the seat's pages could not be made";
  if (!make_policy(s) || !make_usage(s)) {
    release(s);
    return NULL;
  }
  apply(s);
  if (!ar_door_open(s, why)) {
    release(s);
    return NULL;
  }
  if (config->root) {
    s->root_pidfd = pidfd_of(config->root);
    ar_door_watch_root(s);
  }
  pthread_mutex_lock(&s->gpu->lock);
  ar_sched_add(&s->gpu->sched, &s->member, vc_now());
  pthread_mutex_unlock(&s->gpu->lock);
  s->next = seats;
  seats = s;
  return s;
}

static bool config_ok(const struct ar_config *c, const char **why) {
  *why = !*c->name                              ? "a seat needs a name"
         : c->gpu < 0 || c->gpu >= ar_gpu_count ? "no such GPU"
         : c->core < 1 || c->core > 100         ? "core must be 1 to 100"
         : c->limit < c->core || c->limit > 100 ? "limit must lie between core and 100"
         : !c->memory                           ? "memory must be given in bytes"
                                                : NULL;
  return !*why;
}

struct ar_seat *ar_seat_set(const struct ar_config *config, const char **why) {
  if (!config_ok(config, why)) return NULL;
  struct ar_seat *s = ar_seat_find(config->name);
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
  if (s && !ar_state_save(&s->config))
    fprintf(stderr, "arbiter: seat %s was not kept\n", config->name);
  return s;
}

void ar_seat_drop(struct ar_seat *s) {
  pthread_mutex_lock(&s->gpu->lock);
  ar_sched_remove(&s->gpu->sched, &s->member);
  pthread_mutex_unlock(&s->gpu->lock);
  /* Whoever waits at the gate learns that there is no seat any more. */
  atomic_store(&s->policy->confirmed, 0);
  uint32_t gate = atomic_load(&s->policy->gate);
  atomic_store(&s->policy->gate, gate & 1 ? gate + 1 : gate + 2);
  vc_wake(&s->policy->gate, s->policy->gate_key);
  for (unsigned i = 0; i < VC_SLOTS; i++)
    if (s->client[i]) ar_seat_leave(s->client[i]);
  ar_door_close(s);
  ar_state_forget(s->config.name);
  struct ar_seat **p = &seats;
  while (*p != s) p = &(*p)->next;
  *p = s->next;
  release(s);
}

static struct ar_client *new_client(struct ar_seat *s, pid_t pid, int slot) {
  struct ar_client *c = calloc(1, sizeof *c);
  if (!c) return NULL;
  *c = (struct ar_client){.seat = s, .slot = slot, .fd = -1, .pid = pid, .pidfd = pidfd_of(pid)};
  s->client[slot] = c;
  ar_door_watch_client(c);
  return c;
}

static void wipe(struct vc_slot *slot) {
  memset(slot, 0, sizeof *slot);
}

struct ar_client *ar_seat_sit(struct ar_seat *s, pid_t pid, int wanted) {
  if (wanted >= 0 && wanted < (int)VC_SLOTS && s->client[wanted] && s->client[wanted]->pid == pid) {
    s->client[wanted]->orphan_at = 0;
    return s->client[wanted];
  }
  int slot = 0;
  /* An exec'ed program comes anew under its old process ID: what it held is gone. */
  for (unsigned i = 0; i < VC_SLOTS; i++)
    if (s->client[i] && s->client[i]->pid == pid && s->client[i]->orphan_at)
      ar_seat_leave(s->client[i]);
  while (slot < (int)VC_SLOTS && s->client[slot]) slot++;
  if (slot == (int)VC_SLOTS) return NULL;
  pthread_mutex_lock(&s->gpu->lock);
  wipe(&s->usage->slot[slot]);
  atomic_store(&s->usage->slot[slot].live, 1);
  atomic_store(&s->usage->slot[slot].pid, (uint32_t)pid);
  uint32_t high = 1;
  for (unsigned i = 0; i < VC_SLOTS; i++)
    if (s->client[i] || (int)i == slot) high = i + 1;
  atomic_store(&s->usage->high, high);
  struct ar_client *c = new_client(s, pid, slot);
  pthread_mutex_unlock(&s->gpu->lock);
  return c;
}

/* Garbage must not make a total run backwards or overflow. */
static uint64_t believable(uint64_t value) {
  return value > UINT64_MAX / 4096 ? 0 : value;
}

void ar_seat_leave(struct ar_client *c) {
  struct ar_seat *s = c->seat;
  struct vc_slot *slot = &s->usage->slot[c->slot];
  pthread_mutex_lock(&s->gpu->lock);
  s->done_busy += believable(atomic_load(&slot->busy_ns));
  s->done_waited += believable(atomic_load(&slot->waited_ns));
  s->done_launches += believable(atomic_load(&slot->launches));
  s->client[c->slot] = NULL;
  wipe(slot);
  pthread_mutex_unlock(&s->gpu->lock);
  ar_door_forget_client(c);
  if (c->fd >= 0) close(c->fd);
  if (c->pidfd >= 0) close(c->pidfd);
  free(c);
  ar_gpu_ring(s->gpu);
}

bool ar_seat_empty(const struct ar_seat *s) {
  for (unsigned i = 0; i < VC_SLOTS; i++)
    if (s->client[i]) return false;
  return true;
}

/* After a restart: processes that still live keep their slots for a while, to come back to. */
static void adopt(struct ar_seat *s) {
  uint32_t high = 0;
  for (unsigned i = 0; i < VC_SLOTS; i++) {
    struct vc_slot *slot = &s->usage->slot[i];
    pid_t pid = (pid_t)atomic_load(&slot->pid);
    if (atomic_load(&slot->live) && pid > 0 && kill(pid, 0) == 0) {
      struct ar_client *c = new_client(s, pid, (int)i);
      if (c) c->orphan_at = vc_machine_now() + RESTORED_NS;
      high = i + 1;
    } else {
      wipe(slot);
    }
  }
  if (high > atomic_load(&s->usage->high)) atomic_store(&s->usage->high, high);
}

static void restore_one(const struct ar_config *config) {
  const char *why;
  struct ar_seat *s = config_ok(config, &why) ? create(config, &why) : NULL;
  if (s)
    adopt(s);
  else
    fprintf(stderr, "arbiter: seat %s was not restored: %s\n", config->name, why);
}

void ar_seat_restore(void) {
  ar_state_each(restore_one);
}

struct ar_totals ar_seat_totals(const struct ar_seat *s) {
  struct ar_totals t = {
      .busy = s->done_busy, .waited = s->done_waited, .launches = s->done_launches};
  t.peak = atomic_load(&s->usage->peak);
  for (unsigned i = 0; i < VC_SLOTS; i++) {
    const struct vc_slot *slot = &s->usage->slot[i];
    if (!s->client[i]) continue;
    t.processes++;
    t.busy += believable(atomic_load(&slot->busy_ns));
    t.waited += believable(atomic_load(&slot->waited_ns));
    t.launches += believable(atomic_load(&slot->launches));
    t.memory += believable(atomic_load(&slot->charged));
  }
  return t;
}

void ar_seat_look(struct ar_seat *s, uint64_t now) {
  struct ar_seen seen = {.busy = s->done_busy};
  for (unsigned i = 0; i < VC_SLOTS; i++) {
    if (!s->client[i]) continue;
    const struct vc_slot *slot = &s->usage->slot[i];
    uint64_t since = atomic_load(&slot->idle_since), unit = atomic_load(&slot->unit_ns);
    seen.connected = true;
    seen.waiting |= atomic_load(&slot->waiting) != 0;
    seen.active |= atomic_load(&slot->inflight) != 0;
    seen.busy += believable(atomic_load(&slot->busy_ns));
    seen.beat += atomic_load(&slot->beat);
    if (since > seen.idle_since && since <= now) seen.idle_since = since;
    if (unit > seen.unit) seen.unit = unit;
  }
  s->member.seen = seen;
}
