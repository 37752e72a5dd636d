/* SPDX-License-Identifier: Apache-2.0 */
/* How long a seat that launches past the limiter goes unnamed, from whenever it begins, on a driver
 * and a clock of our own; and that no other is named. */
#include "arbiter/unlimited_processes.h"
#include "arbiter/gpu.h"
#include "arbiter/nvml_library.h"
#include "arbiter/procfs.h"
#include "arbiter/seats.h"
#include "arbiter/usage_page.h"
#include "unit.h"

#include <string.h>

#define TICK (50 * VC_MS)
#define SAMPLE (167 * VC_MS)
/* The agent asks every half second and tells at the second sight, and a driver's sample may be a
 * second old: together they must stay below 5 s. */
#define LONGEST (5 * VC_S / 2)
enum { SLY = 10, GOOD, PROCESSES = 2, SAMPLES = 120 };

struct ar_gpu ar_gpus[AR_GPUS];
int ar_gpu_count = 1;

static struct vc_policy policy[PROCESSES];
static struct ar_seat seat[PROCESSES];
static uint64_t now = VC_S, ran[PROCESSES], sampled[PROCESSES];
static unsigned use[PROCESSES];
static struct {
  uint64_t until;
  unsigned percent;
} ring[SAMPLES];
static unsigned samples;

struct ar_seat *ar_seat_first(void) {
  return seat;
}
struct ar_seat *ar_seat_of(pid_t pid) {
  return &seat[pid - SLY];
}
struct ar_totals ar_usage_totals(struct ar_seat *s) {
  (void)s;
  return (struct ar_totals){0};
}
uint64_t ar_usage_believable(uint64_t value) {
  return value;
}
bool ar_nvml_used(int gpu, uint64_t *bytes) {
  *bytes = 0;
  return !gpu;
}
bool ar_procfs_ended(pid_t pid) {
  return !pid;
}
pid_t ar_procfs_parent(pid_t pid) {
  (void)pid;
  return 0;
}
bool ar_procfs_alive(pid_t pid, uint64_t start) {
  (void)pid, (void)start;
  return false;
}
void ar_procfs_cgroup(pid_t pid, char *out, size_t size) {
  snprintf(out, size, "/%d", (int)pid);
}
struct ar_nvml_process *ar_nvml_processes(int gpu, int *count) {
  struct ar_nvml_process *list = calloc(PROCESSES, sizeof *list);
  CHECK(list && !gpu);
  for (int i = 0; i < PROCESSES; i++) list[i].pid = (unsigned)(SLY + i);
  *count = PROCESSES;
  return list;
}
struct ar_nvml_use *ar_nvml_uses(int gpu, int *count) {
  struct ar_nvml_use *list = calloc(PROCESSES, sizeof *list);
  CHECK(list && !gpu);
  for (int i = 0; i < PROCESSES; i++)
    list[i] = (struct ar_nvml_use){.pid = (unsigned)(SLY + i), .sm = use[i]};
  *count = PROCESSES;
  return list;
}
int ar_nvml_busy(int gpu, uint64_t *since) {
  unsigned sum = 0, count = 0;
  for (unsigned i = 0; i < SAMPLES && i < samples && !gpu; i++) {
    if (ring[i].until <= *since) continue;
    sum += ring[i].percent;
    count++;
  }
  if (count) *since = ring[(samples - 1) % SAMPLES].until;
  return count ? (int)(sum / count) : -1;
}

/* Let them run for a while, each so many per cent of the time; the honest one pays for it. */
static void go_on(uint64_t until, unsigned sly, unsigned good, unsigned paid) {
  static uint64_t sample_at, tick_at;
  const unsigned part[PROCESSES] = {sly, good};
  for (; now < until; now += VC_MS) {
    for (int i = 0; i < PROCESSES; i++) ran[i] += VC_MS * part[i] / 100;
    seat[0].place.member.used += VC_MS * paid / 100;
    seat[1].place.member.used += VC_MS * good / 100;
    if (now - sample_at >= SAMPLE) {
      uint64_t all = 0;
      for (int i = 0; i < PROCESSES; i++) {
        use[i] = (unsigned)(100 * (ran[i] - sampled[i]) / (now - sample_at));
        all += use[i];
        sampled[i] = ran[i];
      }
      ring[samples % SAMPLES].until = sample_at = now;
      ring[samples++ % SAMPLES].percent = (unsigned)all;
    }
    if (now - tick_at < TICK) continue;
    tick_at = now;
    ar_unlimited_tick(now);
  }
}

static bool named(void) {
  struct ar_text text = {0};
  ar_unlimited_write(&text);
  bool any = text.length;
  if (any) CHECK(strstr(text.data, "\"seat\":\"sly\"") && strstr(text.data, "its seat's time"));
  ar_text_free(&text);
  return any;
}

/* How many findings were logged. */
static unsigned lines(FILE *log) {
  unsigned count = 0;
  char line[512];
  rewind(log);
  while (fgets(line, sizeof line, log)) count++;
  return count;
}

int main(void) {
  uint64_t longest = 0;
  FILE *console = stderr, *log = tmpfile();
  CHECK(log);
  for (int i = 0; i < PROCESSES; i++) {
    seat[i].gpu = &ar_gpus[0];
    seat[i].place.policy = &policy[i];
    seat[i].next = i + 1 < PROCESSES ? &seat[i + 1] : NULL;
    pthread_mutex_init(&ar_gpus[0].lock, NULL);
  }
  strcpy(seat[0].config.name, "sly");
  strcpy(seat[1].config.name, "good");
  for (unsigned phase = 0; phase < 100; phase++) {
    go_on(now + 4 * VC_S + phase * 17 * VC_MS, 10, 45, 10);
    CHECK(!named());
    uint64_t began = now;
    stderr = log;
    while (!named() && now - began < 60 * VC_S) go_on(now + 10 * VC_MS, 50, 45, 10);
    stderr = console;
    CHECK(named());
    if (now - began > longest) longest = now - began;
  }
  printf("time past the limiter is named within %.2f s\n", (double)longest / 1e9);
  CHECK(longest < LONGEST && lines(log) == 100);
  /* Paid for what it used, however it comes and goes. */
  for (unsigned pause = 100; pause < 2000; pause += 130) {
    go_on(now + 4 * VC_S, 20, 45, 20);
    for (int i = 0; i < 8; i++) {
      go_on(now + pause * VC_MS, 50, 45, 50);
      go_on(now + pause * VC_MS, 0, 45, 0);
      CHECK(!named());
    }
  }
  return 0;
}
