/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "seat.h"
#include "loop.h"
#include "pages.h"
#include "procfs.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ORPHAN_NS (250 * VC_MS)
#define ORPHAN_LOOK_NS (1 * VC_S)
#define RESTORED_NS (2 * VC_S)
#define COUNTED_NS (1 * VC_S) /* what was counted is kept so often */
#define RESERVED 128  /* descriptors for everything but the seats' processes */
#define SEATS_LEAST 16 /* no seat may have more than its part of so many */
#define BELIEVED_NS (3600 * VC_S) /* no interval of work is longer */
#define PER_CLIENT 2  /* descriptors */

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

/* Garbage must not make a total run backwards or overflow. */
static uint64_t believable(uint64_t value) {
  return value > UINT64_MAX / 4096 ? 0 : value;
}

/* Time with work of any of its processes in flight, up to now. */
static uint64_t seat_busy(const struct ar_seat *s, uint64_t now) {
  uint64_t running = atomic_load(&s->usage->running);
  uint64_t since = (running >> VC_RUNNING_BITS) * 16;
  uint64_t busy = believable(atomic_load(&s->usage->busy_ns));
  return busy + ((running & VC_RUNNING) && since < now && now - since < BELIEVED_NS ? now - since : 0);
}

/* The same for others, who take a sum that steps back for a new one. It may: a process that was held
 * up says late that its work ended long ago, and until then the work counts as in flight. */
static uint64_t busy_told(struct ar_seat *s) {
  uint64_t busy = seat_busy(s, vc_now());
  if (busy > s->busy_told) s->busy_told = busy;
  return s->busy_told;
}

/* A process that died with work in flight does not count among its seat's active ones any more. */
static void leave_union(struct vc_usage *usage, const struct vc_slot *slot, uint64_t now) {
  uint64_t old = atomic_load(&usage->running), next;
  if (!atomic_load(&slot->inflight)) return;
  do {
    if (!(old & VC_RUNNING)) return;
    next = (old & VC_RUNNING) == 1 ? 0 : old - 1;
  } while (!atomic_compare_exchange_weak(&usage->running, &old, next));
  uint64_t since = (old >> VC_RUNNING_BITS) * 16;
  if (!next && since < now && now - since < BELIEVED_NS)
    atomic_fetch_add(&usage->busy_ns, now - since);
}

static struct ar_seen look(const struct ar_place *place, uint64_t now) {
  const struct ar_seat *s =
      (const struct ar_seat *)((const char *)place - offsetof(struct ar_seat, place));
  struct ar_seen seen = {.busy = seat_busy(s, now)};
  for (unsigned i = 0; i < VC_SLOTS; i++) {
    if (!s->client[i]) continue;
    const struct vc_slot *slot = &s->usage->slot[i];
    uint64_t since = atomic_load(&slot->idle_since), unit = atomic_load(&slot->unit_ns);
    seen.connected = true;
    seen.waiting |= atomic_load(&slot->waiting) != 0;
    seen.active |= atomic_load(&slot->inflight) != 0;
    seen.beat += atomic_load(&slot->beat);
    if (since > seen.idle_since && since <= now) {
      seen.idle_since = since;
      seen.linger = atomic_load(&slot->linger_ns);
    }
    if (unit > seen.unit) seen.unit = unit;
  }
  return seen;
}

static bool make_pages(struct ar_seat *s) {
  s->place.policy =
      ar_pages_make("slicekeeper-policy", sizeof *s->place.policy, true, &s->policy_fd);
  s->usage = ar_pages_make("slicekeeper-usage", sizeof *s->usage, false, &s->usage_fd);
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
  s->place.look = look;
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

/* ---- the programs that a seat was taken for ---- */

static bool alive(pid_t pid, uint64_t start) {
  if (start) return ar_procfs_start(pid) == start;
  return kill(pid, 0) == 0 || errno == EPERM;
}

static void add_root(struct ar_seat *s, pid_t pid, uint64_t start) {
  if (pid <= 0) {
    s->roots = 0; /* taken for no particular program: it stays until it is dropped */
    return;
  }
  int kept = 0;
  for (int i = 0; i < s->roots; i++)
    if (s->root[i].pid != pid && alive(s->root[i].pid, s->root[i].start))
      s->root[kept++] = s->root[i];
  /* The last place is the newest one's, so that a seat never goes from under the one who asked. */
  if (kept == AR_ROOTS) kept--;
  s->root[kept++] = (struct ar_root){pid, start};
  s->roots = kept;
}

static bool empty(const struct ar_seat *s) {
  for (unsigned i = 0; i < VC_SLOTS; i++)
    if (s->client[i]) return false;
  return true;
}

static bool over(struct ar_seat *s) {
  if (!s->config.root || !empty(s)) return false;
  for (int i = 0; i < s->roots; i++)
    if (alive(s->root[i].pid, s->root[i].start)) return false;
  return true;
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
    add_root(s, config->root, config->root > 0 ? ar_procfs_start(config->root) : 0);
  if (s && !ar_state_save(&s->config))
    fprintf(stderr, "arbiter: seat %s was not kept\n", config->name);
  return s;
}

void ar_seat_drop(struct ar_seat *s) {
  struct vc_policy *policy = s->place.policy;
  pthread_mutex_lock(&s->gpu->lock);
  ar_sched_remove(&s->gpu->sched, &s->place.member);
  pthread_mutex_unlock(&s->gpu->lock);
  /* Threads that wait at the gate learn that there is no seat any more. */
  atomic_store(&policy->confirmed, 0);
  uint32_t gate = atomic_load(&policy->gate);
  atomic_store(&policy->gate, gate & 1 ? gate + 1 : gate + 2);
  vc_wake(&policy->gate, policy->gate_key);
  for (unsigned i = 0; i < VC_SLOTS; i++)
    if (s->client[i]) ar_seat_leave(s->client[i]);
  if (s->closed) s->closed(s);
  ar_state_forget(s->config.name);
  struct ar_seat **p = &seats;
  while (*p != s) p = &(*p)->next;
  *p = s->next;
  release(s);
}

/* ---- its processes ---- */

static void died(void *client, int fd, bool writable) {
  (void)fd, (void)writable;
  ar_seat_leave(client);
}

/* Its caller gives it the slot. */
static struct ar_client *new_client(struct ar_seat *s, pid_t pid, int slot) {
  struct ar_client *c = calloc(1, sizeof *c);
  if (!c) return NULL;
  *c = (struct ar_client){.seat = s, .slot = slot, .fd = -1, .pid = pid};
  c->start = ar_procfs_start(pid);
  c->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
  if (c->pidfd >= 0) ar_loop_watch(c->pidfd, died, c);
  return c;
}

static void wipe(struct vc_slot *slot) {
  memset(slot, 0, sizeof *slot);
}

static void show_high(struct ar_seat *s) {
  uint32_t high = 0;
  for (unsigned i = 0; i < VC_SLOTS; i++)
    if (s->client[i]) high = i + 1;
  atomic_store(&s->usage->high, high);
}

/* What a process asks for that sits here already. A second program under the same process ID is an
 * exec'ed one, and what it held is gone; a second connection of the same program would be a way to
 * have its memory, or its work in flight, forgotten. Of the two only the latter still maps the page.
 * One that hung up before it mapped the page holds nothing, though it may map its parent's. */
static bool replaced(struct ar_client *c) {
  char byte;
  bool says_so = c->fd >= 0 && recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0; /* and was not read yet */
  if (!c->shown && !says_so) return true;
  int maps = ar_procfs_maps(c->pid, "slicekeeper-usage");
  return maps == 0 || (maps < 0 && (c->fd < 0 || recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0));
}

/* No seat may use up the descriptors that the others need. */
static int quota(void) {
  int each = ((int)ar_loop_descriptors() - RESERVED) / PER_CLIENT;
  int count = ar_seat_count();
  each /= count > SEATS_LEAST ? count : SEATS_LEAST;
  return each < 1 ? 1 : each < (int)VC_SLOTS ? each : (int)VC_SLOTS;
}

struct ar_client *ar_seat_sit(struct ar_seat *s, pid_t pid, int wanted) {
  int slot = 0, taken = 0;
  for (unsigned i = 0; i < VC_SLOTS; i++) {
    struct ar_client *c = s->client[i];
    if (!c) continue;
    taken++;
    if (c->pid != pid) continue;
    if (wanted == (int)i) {
      c->orphan_at = 0;
      c->restored = false;
      return c;
    }
    if (!replaced(c)) return NULL;
    ar_seat_leave(c);
    taken--;
  }
  if (taken >= quota()) return NULL;
  while (slot < (int)VC_SLOTS && s->client[slot]) slot++;
  if (slot == (int)VC_SLOTS) return NULL;
  /* Before the lock: the GPU's thread does not wait for the system to answer about a process. */
  struct ar_client *c = new_client(s, pid, slot);
  if (!c) return NULL;
  pthread_mutex_lock(&s->gpu->lock);
  wipe(&s->usage->slot[slot]);
  atomic_store(&s->usage->slot[slot].live, 1);
  atomic_store(&s->usage->slot[slot].pid, (uint32_t)pid);
  s->client[slot] = c;
  show_high(s);
  pthread_mutex_unlock(&s->gpu->lock);
  return c;
}

/* What a process exported may live on in another one: until that can have been looked at, it counts
 * as held by the driver. */
static void inherit(struct ar_seat *s, const struct vc_slot *slot) {
  uint64_t bytes = believable(atomic_load(&slot->exported)), most = atomic_load(&slot->charged);
  if (bytes > most) bytes = most;
  if (!bytes || !s->gpu->tells_memory) return;
  for (int i = 0; i < 3; i++) s->overhead[i] += bytes;
  atomic_fetch_add(&s->place.policy->overhead, bytes);
}

void ar_seat_leave(struct ar_client *c) {
  struct ar_seat *s = c->seat;
  struct vc_slot *slot = &s->usage->slot[c->slot];
  pthread_mutex_lock(&s->gpu->lock);
  leave_union(s->usage, slot, vc_now());
  s->done_waited += believable(atomic_load(&slot->waited_ns));
  s->done_launches += believable(atomic_load(&slot->launches));
  s->client[c->slot] = NULL;
  inherit(s, slot);
  wipe(slot);
  pthread_mutex_unlock(&s->gpu->lock);
  if (c->fd >= 0) {
    ar_loop_unwatch(c->fd);
    close(c->fd);
  }
  if (c->pidfd >= 0) {
    ar_loop_unwatch(c->pidfd);
    close(c->pidfd);
  }
  free(c);
  ar_gpu_ring(s->gpu);
}

void ar_seat_orphan(struct ar_client *c) {
  ar_loop_unwatch(c->fd);
  close(c->fd);
  c->fd = -1;
  c->orphan_at = vc_machine_now() + ORPHAN_NS;
}

/* A process without its socket: dead, another program by now, or its descriptors closed. Only in
 * the last case does it still hold what it held, and it keeps its slot however long it lives. */
static void look_at_orphan(struct ar_client *c, uint64_t now) {
  if (!c->orphan_at || c->fd >= 0 || now < c->orphan_at) return;
  if (!alive(c->pid, c->start) || ar_procfs_maps(c->pid, "slicekeeper-usage") == 0)
    ar_seat_leave(c);
  else
    c->orphan_at = now + ORPHAN_LOOK_NS;
}

/* ---- what a restarted arbiter must know of processes, and of what they used ---- */

struct record {
  int32_t slot; /* -1: a program that the seat was taken for; -2: since when, and its busy time */
  int32_t pid;
  uint64_t start, charged;
};

#define RECORDS (1 + AR_ROOTS + VC_SLOTS)

static int collect(struct ar_seat *s, struct record *out) {
  int count = 0;
  out[count++] = (struct record){-2, 0, s->since, busy_told(s)};
  for (int i = 0; i < s->roots; i++)
    out[count++] = (struct record){-1, s->root[i].pid, s->root[i].start, 0};
  for (unsigned i = 0; i < VC_SLOTS; i++)
    if (s->client[i])
      out[count++] = (struct record){(int32_t)i, s->client[i]->pid, s->client[i]->start,
                                     believable(atomic_load(&s->usage->slot[i].charged))};
  return count;
}

static void keep(struct ar_seat *s, uint64_t now) {
  struct record list[RECORDS];
  memset(list, 0, sizeof list);
  size_t bytes = (size_t)collect(s, list) * sizeof *list;
  uint64_t digest = 14695981039346656037u, busy = list[0].charged;
  for (size_t i = sizeof *list; i < bytes; i++)
    digest = (digest ^ ((uint8_t *)list)[i]) * 1099511628211u;
  if (digest == s->kept && (busy == s->kept_busy || now - s->kept_at < COUNTED_NS)) return;
  if (!ar_state_keep(s->config.name, list, bytes)) return;
  s->kept = digest;
  s->kept_busy = busy;
  s->kept_at = now;
}

/* A record from before the machine's last start refers to another clock. */
static void count_on(struct ar_seat *s, const struct record *r) {
  if (r->start >= s->since) return;
  s->since = r->start;
  atomic_store(&s->usage->busy_ns, r->charged);
}

/* Processes that still live keep their slots, to come back to. What they hold by now is known when
 * they have: until then, but no longer than RESTORED_NS, no process of the seat gets memory. */
static void adopt(struct ar_seat *s) {
  struct record list[RECORDS];
  size_t count = ar_state_kept(s->config.name, list, sizeof list) / sizeof *list;
  for (size_t i = 0; i < count; i++) {
    const struct record *r = &list[i];
    if (r->slot == -2) count_on(s, r);
    if (r->pid <= 0 || r->slot >= (int)VC_SLOTS || !alive(r->pid, r->start)) continue;
    if (r->slot < 0) {
      add_root(s, r->pid, r->start);
      continue;
    }
    struct ar_client *c = s->client[r->slot] ? NULL : new_client(s, r->pid, r->slot);
    if (!c) continue;
    s->client[r->slot] = c;
    struct vc_slot *slot = &s->usage->slot[r->slot];
    atomic_store(&slot->live, 1);
    atomic_store(&slot->pid, (uint32_t)r->pid);
    atomic_store(&slot->charged, r->charged);
    c->restored = c->shown = true;
    s->settle_until = vc_machine_now() + RESTORED_NS;
    c->orphan_at = s->settle_until;
    atomic_store(&s->place.policy->settling, 1);
  }
  show_high(s);
}

static void settle(struct ar_seat *s, uint64_t now) {
  bool missing = false;
  if (!s->settle_until) return;
  for (unsigned i = 0; i < VC_SLOTS; i++) missing |= s->client[i] && s->client[i]->restored;
  if (missing && now < s->settle_until) return;
  s->settle_until = 0;
  atomic_store(&s->place.policy->settling, 0);
}

static bool (*open_door)(struct ar_seat *, const char **);

static void restore_one(const struct ar_config *config) {
  const char *why;
  struct ar_seat *s = config_ok(config, &why) ? create(config, &why) : NULL;
  if (s) adopt(s);
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

void ar_seat_tick(uint64_t now) {
  for (struct ar_seat *s = seats, *next; s; s = next) {
    next = s->next;
    for (unsigned i = 0; i < VC_SLOTS; i++)
      if (s->client[i]) look_at_orphan(s->client[i], now);
    settle(s, now);
    if (over(s))
      ar_seat_drop(s);
    else
      keep(s, now);
  }
}

void ar_seat_keep_all(void) {
  for (struct ar_seat *s = seats; s; s = s->next) keep(s, UINT64_MAX);
}

struct ar_totals ar_seat_totals(struct ar_seat *s) {
  struct ar_totals t = {
      .busy = busy_told(s), .waited = s->done_waited, .launches = s->done_launches};
  t.peak = atomic_load(&s->usage->peak);
  for (unsigned i = 0; i < VC_SLOTS; i++) {
    const struct vc_slot *slot = &s->usage->slot[i];
    if (!s->client[i]) continue;
    t.processes++;
    t.waited += believable(atomic_load(&slot->waited_ns));
    t.launches += believable(atomic_load(&slot->launches));
    t.memory += believable(atomic_load(&slot->charged));
    t.exported += believable(atomic_load(&slot->exported));
  }
  return t;
}
