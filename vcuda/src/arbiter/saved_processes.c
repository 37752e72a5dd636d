/* SPDX-License-Identifier: Apache-2.0 */
#include "saved_processes.h"
#include "seat_processes.h"
#include "procfs.h"
#include "usage_page.h"

#include <fcntl.h>
#include <string.h>
#include <unistd.h>

#define RESTORED_NS (2 * VC_S)
#define COUNTED_NS (1 * VC_S) /* how often the busy time is kept */

struct record {
  /* -1: a program for which the seat was made; -2: since when there is the seat, and its busy time; -3: what its GPU
   * holds of itself, and what processes have left there that ended. */
  int32_t slot;
  int32_t pid; /* of -2: the machine's start by which times and process IDs count; 0: unknown */
  uint64_t start, charged;
};

#define RECORDS (2 + AR_ROOTS + VC_SLOTS)

/* A name for the time since the machine's last start. */
static int32_t boot(void) {
  static int32_t known;
  char id[64];
  uint32_t digest = 2166136261u;
  if (known) return known;
  int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
  ssize_t n = fd >= 0 ? read(fd, id, sizeof id) : -1;
  if (fd >= 0) close(fd);
  for (ssize_t i = 0; i < n; i++) digest = (digest ^ (uint8_t)id[i]) * 16777619u;
  if (n > 0) known = (int32_t)(digest | 1);
  return known;
}

static int collect(struct ar_seat *s, struct record *out) {
  int count = 0;
  out[count++] = (struct record){-2, boot(), s->since, ar_usage_busy(s)};
  if (s->gpu->baseline.known)
    out[count++] = (struct record){-3, 0, s->gpu->baseline.bytes, s->left.proven + s->left.claimed};
  for (int i = 0; i < s->roots; i++)
    out[count++] = (struct record){-1, s->root[i].pid, s->root[i].start, 0};
  for (unsigned i = 0; i < VC_SLOTS; i++)
    if (s->client[i])
      out[count++] = (struct record){(int32_t)i, s->client[i]->pid, s->client[i]->start,
                                     ar_usage_believable(atomic_load(&s->usage->slot[i].charged))};
  return count;
}

void ar_saved_write(struct ar_seat *s, uint64_t now) {
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

static void count_on(struct ar_seat *s, const struct record *r) {
  if (r->start >= s->since) return;
  s->since = r->start;
  atomic_store(&s->usage->busy_ns, r->charged);
}

static void left_before(struct ar_seat *s, const struct record *r) {
  struct ar_baseline *b = &s->gpu->baseline;
  if (!b->known || r->start < b->bytes) b->bytes = r->start;
  b->known = true;
  ar_process_left(s, r->charged);
}

/* Processes that still live keep their slots, and come back to them. Only then is known what they hold by now: until
 * then, but no longer than RESTORED_NS, no process of the seat gets memory. */
void ar_saved_adopt(struct ar_seat *s) {
  struct record list[RECORDS];
  size_t count = ar_state_kept(s->config.name, list, sizeof list) / sizeof *list;
  /* Records from before the machine's last start are of another clock and of other processes. */
  if (count && list[0].slot == -2 && list[0].pid && list[0].pid != boot()) return;
  for (size_t i = 0; i < count; i++) {
    const struct record *r = &list[i];
    if (r->slot == -2) {
      count_on(s, r);
      continue;
    }
    if (r->slot == -3) left_before(s, r);
    if (r->pid <= 0 || r->slot >= (int)VC_SLOTS) continue;
    if (!ar_procfs_alive(r->pid, r->start)) {
      if (r->slot >= 0) ar_process_left(s, r->charged);
      continue;
    }
    if (r->slot < 0) {
      ar_process_add_root(s, r->pid, r->start);
      continue;
    }
    struct ar_client *c = s->client[r->slot] ? NULL : ar_process_new(s, r->pid, r->slot);
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
  ar_process_show_high(s);
}

void ar_saved_settle(struct ar_seat *s, uint64_t now) {
  bool missing = false;
  if (!s->settle_until) return;
  for (unsigned i = 0; i < VC_SLOTS; i++) missing |= s->client[i] && s->client[i]->restored;
  if (missing && now < s->settle_until) return;
  s->settle_until = 0;
  if (!s->left_until) atomic_store(&s->place.policy->settling, 0);
}
