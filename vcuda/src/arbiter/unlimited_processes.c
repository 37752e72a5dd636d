/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "unlimited_processes.h"
#include "control_group.h"
#include "nvml_library.h"
#include "procfs.h"
#include "seats.h"
#include "usage_page.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define EVERY_NS (500 * VC_MS)
/* How much a driver may hold for an honest seat beyond its cap, for what cannot be foreseen. */
#define SLACK (256ull << 20)
/* From so much on, what is left of processes that have ended is named. */
#define TOLD (64ull << 20)

/* An honest seat's charge and the driver's samples of it may be off by so many per cent of a
 * comparison's span, for neither begins when the other does. */
#define OFF 25

struct finding {
  pid_t pid;
  int gpu;
  uint64_t memory, first;
  char seat[AR_NAME], cgroup[512];
  const char *how;
  bool seen, named;
};

static struct finding *found;
static int found_count, found_room;

/* A container may have control groups of its own, named like any: what is outermost counts, and of paths that begin
 * there the longest. */
static struct ar_seat *seat_of_group(const char *cgroup) {
  struct ar_seat *found = NULL;
  const char *first = NULL;
  for (struct ar_seat *s = ar_seat_first(); s; s = s->next) {
    const char *at = ar_control_group_find(cgroup, s->config.cgroup);
    if (!at || (found && (at > first || (at == first && strlen(s->config.cgroup) <= strlen(found->config.cgroup)))))
      continue;
    first = at;
    found = s;
  }
  return found;
}

/* Return the seat that a process belongs to by its control group, or by descent from the seat's first process. */
static struct ar_seat *seat_of(pid_t pid, const char *cgroup) {
  struct ar_seat *of_group = seat_of_group(cgroup);
  if (of_group) return of_group;
  for (int depth = 0; pid > 1 && depth < 64; depth++, pid = ar_procfs_parent(pid))
    for (struct ar_seat *s = ar_seat_first(); s; s = s->next)
      for (int i = 0; i < s->roots; i++)
        if (s->root[i].pid == pid && ar_procfs_alive(pid, s->root[i].start)) return s;
  return NULL;
}

static bool make_room(void) {
  if (found_count < found_room) return true;
  struct finding *grown = realloc(found, (size_t)(2 * found_room + 16) * sizeof *grown);
  if (!grown) return false;
  found = grown;
  found_room = 2 * found_room + 16;
  return true;
}

static void note(int gpu, const struct ar_nvml_process *p, struct ar_seat *of, const char *how,
                 uint64_t now) {
  struct finding *f = NULL;
  for (int i = 0; i < found_count && !f; i++)
    if (found[i].pid == (pid_t)p->pid && found[i].gpu == gpu) f = &found[i];
  if (!f) {
    if (!make_room()) return;
    f = &found[found_count++];
    *f = (struct finding){.pid = (pid_t)p->pid, .gpu = gpu, .first = now};
    ar_procfs_cgroup(f->pid, f->cgroup, sizeof f->cgroup);
    struct ar_seat *s = of ? of : seat_of(f->pid, f->cgroup);
    if (s) strcpy(f->seat, s->config.name);
  }
  f->memory = p->memory;
  f->how = how;
  f->seen = true;
  /* It is named at the second look: the first may fall between its start and its connection. */
  if (f->named || now == f->first) return;
  f->named = true;
  fprintf(stderr,
          "arbiter: audit: process %d uses GPU %d %s: seat %s, %llu bytes, %s\n", (int)f->pid, gpu,
          how, *f->seat ? f->seat : "unknown", p->memory, f->cgroup);
}

/* What a look at a GPU found. */
struct look {
  struct ar_nvml_process *list;
  int count;
  bool tells; /* what each process holds */
};

/* A process whose figure is not available (Windows' own driver, GPUs without memory of their own) is none without
 * memory: then nothing is known of the whole seat. */
static struct look look_at(int gpu) {
  struct look l = {.list = ar_nvml_processes(gpu, &l.count)};
  l.tells = l.list != NULL;
  for (int i = 0; i < l.count; i++) l.tells &= l.list[i].memory != AR_NV_UNKNOWN;
  ar_gpus[gpu].tells_memory = l.tells;
  return l;
}

/* By those that live: the driver still lists one that ended as long as others hold its files open. */
static uint64_t explained(const struct look *l) {
  uint64_t sum = 0;
  for (int i = 0; i < l->count; i++)
    if (!ar_procfs_ended((pid_t)l->list[i].pid)) sum += l->list[i].memory;
  return sum;
}

/* What the GPU holds besides. The figures are of different moments: two readings of the processes must agree. */
static bool besides(int gpu, const struct look *l, uint64_t *bytes) {
  uint64_t before = explained(l), least = UINT64_MAX;
  for (int i = 0; i < AR_LOOKS; i++) {
    uint64_t used, most = before;
    if (!ar_nvml_used(gpu, &used)) return false;
    struct look again = look_at(gpu);
    uint64_t after = explained(&again);
    free(again.list);
    if (!again.tells) return false;
    if (after > most) most = after;
    if (used < most) used = most;
    if (used - most < least) least = used - most;
    if (after == before) break;
    before = after;
  }
  *bytes = least;
  return true;
}

static uint64_t least_of(const uint64_t looks[AR_LOOKS]) {
  uint64_t least = looks[0] < looks[1] ? looks[0] : looks[1];
  return looks[2] < least ? looks[2] : least;
}

static void shift(uint64_t looks[AR_LOOKS], uint64_t now) {
  looks[2] = looks[1];
  looks[1] = looks[0];
  looks[0] = now;
}

/* Once the driver holds less than is charged, a process may stop counting exported memory that it has
 * released. Notify one process at a time, then compare again. */
static void release_exported(struct ar_seat *s, uint64_t unheld) {
  struct vc_policy *p = s->place.policy;
  for (unsigned i = 0; unheld && i < VC_SLOTS; i++) {
    uint64_t let_go = s->client[i] ? atomic_load(&s->usage->slot[i].let_go) : 0;
    if (!let_go) continue;
    atomic_store(&p->release_slot, i);
    atomic_store(&p->release_bytes, let_go < unheld ? let_go : unheld);
    atomic_fetch_add(&p->release_serial, 1);
    memset(s->unheld, 0, sizeof s->unheld);
    return;
  }
}

static uint64_t let_go_of(const struct ar_seat *s) {
  uint64_t sum = 0;
  for (unsigned i = 0; i < VC_SLOTS; i++)
    if (s->client[i]) sum += ar_usage_believable(atomic_load(&s->usage->slot[i].let_go));
  return sum;
}

/* What the driver holds for the seat's processes; it is noted of each. */
static uint64_t physical_of(const struct ar_seat *s, const struct look *l) {
  uint64_t sum = 0;
  for (unsigned i = 0; i < VC_SLOTS; i++) {
    struct ar_client *c = s->client[i];
    if (!c) continue;
    c->physical = 0;
    for (int k = 0; k < l->count; k++)
      if ((pid_t)l->list[k].pid == c->pid) c->physical += l->list[k].memory;
    sum += c->physical;
  }
  return sum;
}

/* The least of three looks: an allocation between two counters is no overhead. A look in between replaces the last. */
static void set_overhead(struct ar_seat *s, uint64_t over, uint64_t unheld, bool new_look) {
  if (new_look) {
    shift(s->overhead, over);
    shift(s->unheld, unheld);
  }
  s->overhead[0] = over;
  atomic_store(&s->place.policy->overhead, least_of(s->overhead));
  if (new_look) release_exported(s, least_of(s->unheld));
}

/* The driver does not say what processes hold: nothing can be missed. */
static void forget_left(struct ar_seat *s) {
  s->left = (struct ar_left){0};
  s->left_until = s->told = 0;
  if (!s->settle_until) atomic_store(&s->place.policy->settling, 0);
  release_exported(s, UINT64_MAX);
}

/* Begin: what of a seat's charge no process holds. */
static void count(struct ar_seat *s, const struct look *l, uint64_t now) {
  uint64_t charged = ar_usage_totals(s).memory, physical = physical_of(s, l), let_go = let_go_of(s);
  s->over = physical > charged ? physical - charged : 0;
  s->under = charged > physical ? charged - physical : 0;
  s->left.let_go = let_go < s->under ? let_go : s->under;
  s->left.settled = now >= s->left_until;
}

/* End: the driver has been asked what is left of those that ended. */
static void judge(struct ar_seat *s, bool new_look) {
  uint64_t left = s->left.proven + s->left.claimed;
  if (!s->left.claimed) s->left_until = 0;
  if (!s->left_until && !s->settle_until) atomic_store(&s->place.policy->settling, 0);
  /* What is left was compared with earlier looks already. */
  for (int i = 0; i < AR_LOOKS; i++)
    if (s->overhead[i] < left) s->overhead[i] = left;
  set_overhead(s, s->over + left, s->under - s->left.explained, new_look);
  if (s->left_until) return;
  if (left >= TOLD && !s->told)
    fprintf(stderr, "arbiter: audit: seat %s: %llu bytes on GPU %d are of processes that have ended\n", s->config.name,
            (unsigned long long)left, s->config.gpu);
  s->told = left >= TOLD ? left : 0;
}

/* Compare what a GPU holds with what its seats are charged for. */
static void compare(int gpu, const struct look *l, bool new_look, uint64_t now) {
  struct ar_left *first = NULL;
  uint64_t bytes;
  for (struct ar_seat *s = ar_seat_first(); s; s = s->next) {
    if (s->config.gpu != gpu) continue;
    count(s, l, now);
    s->left.next = first;
    first = &s->left;
  }
  if (besides(gpu, l, &bytes)) {
    ar_left_look(first, &ar_gpus[gpu].baseline, bytes, new_look);
  } else {
    for (struct ar_left *left = first; left; left = left->next) *left = (struct ar_left){.next = left->next};
  }
  for (struct ar_seat *s = ar_seat_first(); s; s = s->next)
    if (s->config.gpu == gpu) judge(s, new_look);
}

/* By the last looks, because a process may sit in a seat and call the driver past the limiter. */
static bool over_cap(struct ar_seat *s) {
  return ar_usage_totals(s).memory + least_of(s->overhead) > s->config.memory + SLACK;
}

/* When the last looks were taken, and the driver's last sample before each. */
static struct {
  uint64_t at[AR_LOOKS], sampled[AR_LOOKS];
  unsigned looks;
} timing[AR_GPUS];

/* For how much of the GPU's time a seat was charged since a look, per cent. */
static int charge_of(struct ar_seat *s, uint64_t *timed, uint64_t span) {
  pthread_mutex_lock(&s->gpu->lock);
  uint64_t used = s->place.member.used, since = used - *timed;
  pthread_mutex_unlock(&s->gpu->lock);
  *timed = used;
  return (int)(100 * since / span);
}

static int mean_of(const unsigned looks[AR_LOOKS]) {
  unsigned sum = 0;
  for (int i = 0; i < AR_LOOKS; i++) sum += looks[i];
  return (int)(sum / AR_LOOKS);
}

/* A process may sit in a seat and launch past the limiter: then the GPU is busier than its seats are
 * charged for, and one of them is by the driver's word too. That word alone is no proof: it is of
 * a moment, and work that comes and goes may do so in step with our looks. At every look all of
 * the last ones are compared: waiting for as many new ones would double the time to a finding. */
static void look_time(int gpu, bool strangers, uint64_t now) {
  int count, worst = OFF, charged = 0;
  unsigned oldest = timing[gpu].looks++ % AR_LOOKS;
  uint64_t *at = &timing[gpu].at[oldest], span = now > *at ? now - *at : 1;
  struct ar_seat *sly = NULL;
  for (struct ar_seat *s = ar_seat_first(); s; s = s->next)
    if (s->config.gpu == gpu) s->used[oldest] = 0;
  struct ar_nvml_use *use = ar_nvml_uses(gpu, &count);
  for (int i = 0; i < count; i++) {
    struct ar_seat *s = ar_seat_of((pid_t)use[i].pid);
    if (s && s->config.gpu == gpu) s->used[oldest] += use[i].sm;
  }
  free(use);
  int busy = ar_nvml_busy(gpu, &timing[gpu].sampled[oldest]);
  for (struct ar_seat *s = ar_seat_first(); s; s = s->next) {
    if (s->config.gpu != gpu) continue;
    int charge = charge_of(s, &s->timed[oldest], span), beyond = mean_of(s->used) - charge;
    charged += charge;
    s->beyond_time = false;
    if (beyond <= worst || s->settle_until) continue;
    worst = beyond;
    sly = s;
  }
  if (sly && *at && !strangers) sly->beyond_time = busy > charged + OFF;
  *at = now;
}

static void look(int gpu, uint64_t now) {
  struct look l = look_at(gpu);
  bool strangers = false;
  for (int i = 0; i < l.count; i++)
    strangers |= !ar_seat_of((pid_t)l.list[i].pid) && !ar_procfs_ended((pid_t)l.list[i].pid);
  if (!vc_clock) look_time(gpu, strangers, now);
  for (struct ar_seat *s = ar_seat_first(); s; s = s->next)
    if (s->config.gpu == gpu) s->beyond_memory = over_cap(s);
  for (int i = 0; i < l.count; i++) {
    struct ar_seat *seat = ar_seat_of((pid_t)l.list[i].pid);
    if (!seat && ar_procfs_ended((pid_t)l.list[i].pid)) continue;
    if (!seat)
      note(gpu, &l.list[i], seat, "without the limiter", now);
    else if (seat->config.gpu != gpu)
      note(gpu, &l.list[i], seat, "besides its seat's", now);
    else if (seat->beyond_memory)
      note(gpu, &l.list[i], seat, "beyond its seat's memory", now);
    else if (seat->beyond_time)
      note(gpu, &l.list[i], seat, "beyond its seat's time", now);
  }
  if (l.tells)
    compare(gpu, &l, true, now);
  else
    for (struct ar_seat *s = ar_seat_first(); s; s = s->next)
      if (s->config.gpu == gpu) forget_left(s);
  free(l.list);
}

/* Processes have ended: those of their seats that ask for memory wait for this. */
static void look_again(int gpu, uint64_t now) {
  bool waited_for = false;
  for (struct ar_seat *s = ar_seat_first(); s; s = s->next) waited_for |= s->config.gpu == gpu && s->left_until;
  if (!waited_for) return;
  struct look l = look_at(gpu);
  if (l.tells) compare(gpu, &l, false, now);
  free(l.list);
}

void ar_unlimited_tick(uint64_t now) {
  static uint64_t last;
  if (now - last < EVERY_NS) {
    for (int g = 0; g < ar_gpu_count; g++) look_again(g, now);
    return;
  }
  last = now;
  for (int i = 0; i < found_count; i++) found[i].seen = false;
  for (int g = 0; g < ar_gpu_count; g++) look(g, now);
  int kept = 0;
  for (int i = 0; i < found_count; i++)
    if (found[i].seen) found[kept++] = found[i];
  found_count = kept;
}

static void write_one(struct ar_text *out, bool *first, const struct finding *f) {
  ar_text_add(out, "%s{\"pid\":%d,\"gpu\":%d,\"memory\":%llu,\"how\":\"%s\",\"seat\":",
              *first ? "" : ",", (int)f->pid, f->gpu, (unsigned long long)f->memory, f->how);
  if (*f->seat)
    ar_text_quote(out, f->seat);
  else
    ar_text_add(out, "null");
  ar_text_add(out, ",\"cgroup\":");
  ar_text_quote(out, f->cgroup);
  ar_text_add(out, "}");
  *first = false;
}

/* A seat is named for what no process holds: within its cap, to say where its memory is. */
static void write_left(struct ar_text *out, bool *first, const struct ar_seat *s) {
  struct finding f = {.gpu = s->config.gpu, .memory = s->told, .how = "by no process that lives"};
  if (!s->told) return;
  if (s->beyond_memory) f.how = "beyond its seat's memory";
  snprintf(f.seat, sizeof f.seat, "%s", s->config.name);
  snprintf(f.cgroup, sizeof f.cgroup, "%s", s->config.cgroup);
  write_one(out, first, &f);
}

void ar_unlimited_write(struct ar_text *out) {
  bool first = true;
  for (int i = 0; i < found_count; i++)
    if (found[i].named) write_one(out, &first, &found[i]);
  for (const struct ar_seat *s = ar_seat_first(); s; s = s->next) write_left(out, &first, s);
}
