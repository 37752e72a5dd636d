/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "seat_processes.h"
#include "event_loop.h"
#include "procfs.h"
#include "usage_page.h"

#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <unistd.h>

#define ORPHAN_NS (250 * VC_MS)
#define ORPHAN_LOOK_NS (1 * VC_S)
#define RESERVED 128   /* descriptors for everything but the seats' processes */
#define SEATS_LEAST 16 /* no seat may have more than its part of so many */
#define PER_CLIENT 2   /* descriptors */
#define FREED_NS (500 * VC_MS) /* the driver frees what a process held a while after its end */

/* ---- the programs for which a seat was made ---- */

void ar_process_add_root(struct ar_seat *s, pid_t pid, uint64_t start) {
  if (pid <= 0) {
    s->roots = 0; /* made for no program in particular: it stays until it is dropped */
    return;
  }
  int kept = 0;
  for (int i = 0; i < s->roots; i++)
    if (s->root[i].pid != pid && ar_procfs_alive(s->root[i].pid, s->root[i].start))
      s->root[kept++] = s->root[i];
  /* The newest one always gets a place, so that a seat is not dropped while its caller uses it. */
  if (kept == AR_ROOTS) kept--;
  s->root[kept++] = (struct ar_root){pid, start};
  s->roots = kept;
}

bool ar_process_roots_live(const struct ar_seat *s) {
  for (int i = 0; i < s->roots; i++)
    if (ar_procfs_alive(s->root[i].pid, s->root[i].start)) return true;
  return false;
}

/* ---- the processes that sit in it ---- */

static void died(void *client, int fd, bool writable) {
  (void)fd, (void)writable;
  ar_process_leave(client);
}

struct ar_client *ar_process_new(struct ar_seat *s, pid_t pid, int slot) {
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

void ar_process_show_high(struct ar_seat *s) {
  uint32_t high = 0;
  for (unsigned i = 0; i < VC_SLOTS; i++)
    if (s->client[i]) high = i + 1;
  atomic_store(&s->usage->high, high);
}

/* Whether a process that sits here already, and asks for a slot, may have a new one. A second program under the same
 * process ID was exec'ed, and what the first held is gone; a second connection of the same program would be a way to
 * have its memory, or its work in flight, forgotten. Of the two, only the latter still maps the page. A process that
 * hung up before it mapped the page holds nothing, though it may map its parent's. */
static bool replaced(struct ar_client *c) {
  char byte;
  bool says_so = c->fd >= 0 && recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) > 0; /* not read yet */
  if (!c->shown && !says_so) return true;
  int maps = ar_procfs_maps(c->pid, "slicekeeper-usage");
  return maps == 0 || (maps < 0 && (c->fd < 0 || recv(c->fd, &byte, 1, MSG_PEEK | MSG_DONTWAIT) == 0));
}

/* How many processes a seat may have, so that it does not use up the descriptors that other seats need. */
static int quota(int seats) {
  int each = ((int)ar_loop_descriptors() - RESERVED) / PER_CLIENT;
  each /= seats > SEATS_LEAST ? seats : SEATS_LEAST;
  return each < 1 ? 1 : each < (int)VC_SLOTS ? each : (int)VC_SLOTS;
}

struct ar_client *ar_process_sit(struct ar_seat *s, pid_t pid, int wanted, int seats) {
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
    ar_process_leave(c);
    taken--;
  }
  if (taken >= quota(seats)) return NULL;
  while (slot < (int)VC_SLOTS && s->client[slot]) slot++;
  if (slot == (int)VC_SLOTS) return NULL;
  /* Before the lock is taken: the GPU's thread must not wait for system calls about a process. */
  struct ar_client *c = ar_process_new(s, pid, slot);
  if (!c) return NULL;
  pthread_mutex_lock(&s->gpu->lock);
  wipe(&s->usage->slot[slot]);
  atomic_store(&s->usage->slot[slot].live, 1);
  atomic_store(&s->usage->slot[slot].pid, (uint32_t)pid);
  s->client[slot] = c;
  ar_process_show_high(s);
  pthread_mutex_unlock(&s->gpu->lock);
  return c;
}

void ar_process_left(struct ar_seat *s, uint64_t bytes) {
  if (!s->gpu->tells_memory) return;
  s->left.ended = true;
  s->left.claimed += bytes;
  for (int i = 0; i < AR_LOOKS; i++) s->overhead[i] += bytes;
  atomic_fetch_add(&s->place.policy->overhead, bytes);
  if (!s->left_until) s->left_until = vc_machine_now() + FREED_NS;
  /* Whoever asks for memory now waits until the driver was asked: it is not refused for what is about to be freed, nor
   * granted what was left by a process that said that it held nothing. */
  atomic_store(&s->place.policy->settling, 1);
}

/* What it held by its own word, which it may have garbled, or by the driver's at the last look. */
static uint64_t held_by(const struct ar_client *c, const struct vc_slot *slot) {
  uint64_t charged = ar_usage_believable(atomic_load(&slot->charged));
  return charged > c->physical ? charged : c->physical;
}

void ar_process_leave(struct ar_client *c) {
  struct ar_seat *s = c->seat;
  struct vc_slot *slot = &s->usage->slot[c->slot];
  pthread_mutex_lock(&s->gpu->lock);
  ar_usage_leave(s->usage, slot, vc_now());
  s->done_waited += ar_usage_believable(atomic_load(&slot->waited_ns));
  s->done_launches += ar_usage_believable(atomic_load(&slot->launches));
  s->client[c->slot] = NULL;
  ar_process_left(s, held_by(c, slot));
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

void ar_process_orphan(struct ar_client *c) {
  ar_loop_unwatch(c->fd);
  close(c->fd);
  c->fd = -1;
  c->orphan_at = vc_machine_now() + ORPHAN_NS;
}

/* A process without its socket is dead, was replaced by exec, or has closed its descriptors. Only in the last case does
 * it still hold what it held, and it keeps its slot for as long as it lives. */
void ar_process_look(struct ar_client *c, uint64_t now) {
  if (!c->orphan_at || c->fd >= 0 || now < c->orphan_at) return;
  if (!ar_procfs_alive(c->pid, c->start) || ar_procfs_maps(c->pid, "slicekeeper-usage") == 0)
    ar_process_leave(c);
  else
    c->orphan_at = now + ORPHAN_LOOK_NS;
}
