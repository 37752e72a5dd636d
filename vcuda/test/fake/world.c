/* SPDX-License-Identifier: Apache-2.0 */
/* The shared world: its place, its lock, its clock. */
#define _GNU_SOURCE
#include "fake.h"
#include "time_namespace.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SPIN_NS 80000ull
#define WALL_WAIT_NS 500000ull /* a wait for the GPU is not woken before its time */
#define DEAD_CHECK_NS 200000000ull

static struct fk_world *world;
static int world_fd = -1;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static pthread_key_t actor_key;
static __thread struct fk_actor *self;
static __thread pid_t self_pid;
static _Atomic bool over;

bool fk_over(void) {
  return over;
}

const char *fk_setting(const char *name) {
  char key[64];
  snprintf(key, sizeof key, "SLICEKEEPER_FAKE_%s", name);
  return getenv(key);
}

uint64_t fk_bytes(const char *text, uint64_t fallback) {
  if (!text || !*text) return fallback;
  char *end = NULL;
  uint64_t value = strtoull(text, &end, 10);
  switch (*end) {
  case 'K':
    return value << 10;
  case 'M':
    return value << 20;
  case 'G':
    return value << 30;
  default:
    return value;
  }
}

static int64_t ahead; /* by how much a time namespace shifts this process's clock */

static uint64_t monotonic(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * 1000000000ull + (uint64_t)t.tv_nsec - (uint64_t)ahead;
}

uint64_t fk_space(void) {
  struct stat found;
  return stat("/proc/self/ns/pid", &found) == 0 ? found.st_ino : 0;
}

static void default_path(char *path, size_t size) {
  const char *given = fk_setting("WORLD");
  const char *run = getenv("XDG_RUNTIME_DIR");
  const char *home = getenv("HOME");
  if (given) {
    snprintf(path, size, "%s", given);
  } else if (run) {
    snprintf(path, size, "%s/slicekeeper-fake-world", run);
  } else {
    snprintf(path, size, "%s/.cache/slicekeeper", home ? home : "/run");
    mkdir(path, 0700);
    snprintf(path, size, "%s/.cache/slicekeeper/fake-world", home ? home : "/run");
  }
}

/*
 * A driver frees what a process made when the last descriptor of the file is closed through which it was made, in
 * whatever process: forked children inherit them, executed programs do not. Here that file is the world's, and what was
 * made through it is a locked byte behind the world's end. An open file of its own lies behind every exported
 * descriptor. A private page of it keeps our own open if the program closes descriptors that are not its own; it is not
 * inherited.
 */
static int life_fd = -1;
static dev_t world_device;
static ino_t world_number;
static bool inherited; /* by a child, maybe */

static bool is_world(int fd) {
  struct stat found;
  return fstat(fd, &found) == 0 && found.st_dev == world_device && found.st_ino == world_number;
}

static int open_again(void) {
  char path[512];
  default_path(path, sizeof path);
  int fd = open(path, O_RDWR | O_CLOEXEC);
  if (fd >= 0 && is_world(fd)) return fd;
  if (fd >= 0) close(fd);
  if (!is_world(world_fd)) return -1;
  snprintf(path, sizeof path, "/proc/self/fd/%d", world_fd);
  return open(path, O_RDWR | O_CLOEXEC);
}

/* With the lock held, as for those that follow. */
static int own_file(void) {
  if (life_fd >= 0 && is_world(life_fd)) return life_fd;
  life_fd = open_again();
  void *page = mmap(NULL, 4096, PROT_READ, MAP_SHARED, life_fd, 0);
  if (page != MAP_FAILED) madvise(page, 4096, MADV_DONTFORK);
  return life_fd;
}

static struct flock byte_of(int place, short type) {
  return (struct flock){.l_type = type, .l_whence = SEEK_SET, .l_start = (off_t)sizeof *world + place, .l_len = 1};
}

int fk_place_of_queue(int gpu, int queue) {
  return gpu * FK_CTXS + queue;
}

int fk_place_of_share(int gpu, int share) {
  return FK_DEVICES * FK_CTXS + gpu * FK_SHARES + share;
}

void fk_life_take(int place) {
  struct flock byte = byte_of(place, F_RDLCK);
  fcntl(own_file(), F_OFD_SETLK, &byte);
}

void fk_life_give(int place) {
  struct flock byte = byte_of(place, F_UNLCK);
  fcntl(own_file(), F_OFD_SETLK, &byte);
}

/* Through the file of the world itself, which holds none of them. */
bool fk_life_over(int place) {
  struct flock byte = byte_of(place, F_WRLCK);
  if (!is_world(world_fd)) world_fd = open_again();
  return fcntl(world_fd, F_OFD_GETLK, &byte) == 0 && byte.l_type == F_UNLCK;
}

bool fk_life_shared(void) {
  return inherited;
}

/* Where the file is read next says which place it holds: that goes with it to another process. */
int fk_life_export(int place, uint32_t mark) {
  struct flock byte = byte_of(place, F_RDLCK);
  int fd = open_again();
  if (fd < 0) return -1;
  if (fcntl(fd, F_OFD_SETLK, &byte) == 0 && lseek(fd, (off_t)mark << 16 | place, SEEK_SET) >= 0) return fd;
  close(fd);
  return -1;
}

bool fk_life_import(int fd, int *place, uint32_t *mark) {
  off_t at = is_world(fd) ? lseek(fd, 0, SEEK_CUR) : -1;
  *place = (int)(at & 0xffff);
  *mark = (uint32_t)(at >> 16);
  return at > 0;
}

static void forks(void) {
  if (life_fd >= 0) inherited = true;
}

/* What the parent holds stays in the child's hands; what the child makes is its own. */
static void forked(void) {
  life_fd = -1;
  inherited = false;
}

/* SLICEKEEPER_FAKE_NODE: any text; the same text makes the same UUIDs. */
static uint64_t node_of(const char *text) {
  uint64_t hash = 14695981039346656037u;
  if (!text || !*text) return 0x5c1ce0eefa4e;
  for (; *text; text++) hash = (hash ^ (uint8_t)*text) * 1099511628211u;
  return (hash ^ hash >> 48) & 0xffffffffffff;
}

struct fk_slice *fk_slice_of(int device) {
  return device < FK_GPUS ? NULL : &fk_world()->slice[device - FK_GPUS];
}

bool fk_there(unsigned device) {
  return device < fk_world()->gpus || (device >= FK_GPUS && fk_slice_of((int)device)->used);
}

void fk_uuid(int device, unsigned char out[16]) {
  static const unsigned char tail[] = {0x40, 0x00, 0x80, 0x00, 0x46, 0x41, 0x4b, 0x45, 0x00};
  for (int i = 0; i < 6; i++) out[i] = (unsigned char)(fk_world()->node >> (40 - 8 * i));
  memcpy(out + 6, tail, sizeof tail);
  const struct fk_slice *slice = fk_slice_of(device);
  unsigned mark = slice ? FK_GPUS + slice->serial : (unsigned)device;
  out[3] += (unsigned char)mark; /* people are shown the first eight digits alone */
  out[14] = (unsigned char)(mark >> 8);
  out[15] = (unsigned char)mark;
}

void fk_uuid_text(int device, char *out, size_t size) {
  unsigned char u[16];
  fk_uuid(device, u);
  snprintf(out, size, "%s-%02x%02x%02x%02x-%02x%02x-%02x%02x-%02x%02x-%02x%02x%02x%02x%02x%02x",
           fk_slice_of(device) ? "MIG" : "GPU", u[0], u[1], u[2], u[3], u[4], u[5], u[6], u[7], u[8],
           u[9], u[10], u[11], u[12], u[13], u[14], u[15]);
}

void fk_name(int device, char *out, size_t size) {
  const struct fk_slice *slice = fk_slice_of(device);
  char model[64];
  snprintf(model, sizeof model, "Fake GPU %d", slice ? (int)slice->gpu : device);
  snprintf(out, size, "%s%s%s", *fk_world()->name ? fk_world()->name : model, slice ? " MIG " : "",
           slice ? slice->profile : "");
}

/* The GPU's slice with this profile that is not in `kept` yet, made if there is none. */
static void take_slice(unsigned gpu, const char *profile, bool kept[FK_SLICES]) {
  struct fk_world *w = world;
  unsigned compute = 0, slices = 0, gigabytes = 0, indexes = 0;
  int free_one = -1;
  for (int i = FK_SLICES; i--;) {
    struct fk_slice *s = &w->slice[i];
    if (!s->used) free_one = i;
    if (!s->used || s->gpu != gpu) continue;
    indexes |= 1u << s->index;
    if (!kept[i] && !strcmp(s->profile, profile)) {
      kept[i] = true;
      return;
    }
  }
  if (sscanf(profile, "%uc.%ug.%ugb", &compute, &slices, &gigabytes) < 3 &&
      (sscanf(profile, "%ug.%ugb", &slices, &gigabytes) < 2 || !(compute = slices)))
    return;
  if (free_one < 0) return;
  struct fk_slice *s = &w->slice[free_one];
  struct fk_gpu *g = &w->gpu[FK_GPUS + free_one];
  *s = (struct fk_slice){1, gpu, 0, ++w->serial, 0, 0, compute, slices, ""};
  while (indexes & 1u << s->index) s->index++;
  s->instance = s->index + 1;
  /* Compute instances that do not fill their GPU instance lie in one together. */
  for (int i = 0; compute < slices && i < FK_SLICES; i++)
    if (i != free_one && w->slice[i].used && w->slice[i].gpu == gpu && !strcmp(w->slice[i].profile, profile)) {
      s->instance = w->slice[i].instance;
      s->compute_instance++;
    }
  snprintf(s->profile, sizeof s->profile, "%s", profile);
  g->mem_total = ((uint64_t)gigabytes << 30) - (512ull << 20); /* the driver keeps some */
  g->mem_used = g->mem_peak = 0;
  g->at = fk_now_locked();
  g->current = -1;
  kept[free_one] = true;
}

void fk_divide(unsigned gpu, const char *profiles) {
  bool kept[FK_SLICES] = {false};
  char copy[256], *save = NULL;
  world->health[gpu].mig = profiles != NULL;
  snprintf(copy, sizeof copy, "%s", profiles ? profiles : "");
  for (char *p = strtok_r(copy, "+", &save); p; p = strtok_r(NULL, "+", &save))
    take_slice(gpu, p, kept);
  for (int i = 0; i < FK_SLICES; i++)
    if (world->slice[i].gpu == gpu && !kept[i]) world->slice[i].used = 0;
}

static void set_up(struct fk_world *w) {
  pthread_mutexattr_t attr;
  pthread_mutexattr_init(&attr);
  pthread_mutexattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
  pthread_mutexattr_setrobust(&attr, PTHREAD_MUTEX_ROBUST);
  pthread_mutex_init(&w->lock, &attr);
  w->magic = VC_MAGIC;
  w->version = VC_VERSION;
  w->virtual_time = (uint32_t)fk_bytes(fk_setting("VIRTUAL"), 0);
  w->hold = (uint32_t)fk_bytes(fk_setting("HOLD"), 0);
  w->now = 1000000000ull;
  w->gpus = (uint32_t)fk_bytes(fk_setting("GPUS"), 1);
  if (w->gpus < 1 || w->gpus > FK_GPUS) w->gpus = 1;
  w->context_bytes = fk_bytes(fk_setting("CONTEXT"), 0);
  w->node = node_of(fk_setting("NODE"));
  snprintf(w->name, sizeof w->name, "%s", fk_setting("MODEL") ? fk_setting("MODEL") : "");
  for (uint32_t i = 0; i < w->gpus; i++) {
    w->gpu[i].mem_total = fk_bytes(fk_setting("MEMORY"), 16ull << 30);
    w->gpu[i].at = w->virtual_time ? w->now : monotonic();
    w->gpu[i].current = -1;
  }
  /* SLICEKEEPER_FAKE_MIG: what fk_divide takes, of each GPU from the first on, with / between them. */
  char copy[512], *save = copy;
  snprintf(copy, sizeof copy, "%s", fk_setting("MIG") ? fk_setting("MIG") : "");
  for (uint32_t i = 0; *copy && save && i < w->gpus; i++) {
    const char *profiles = strsep(&save, "/");
    if (*profiles) fk_divide(i, profiles);
  }
  atomic_store(&w->ready, 1);
}

static void tick(void);

static void leave(void *actor) {
  struct fk_actor *a = actor;
  if (self_pid != getpid()) return; /* a fork's copy: the actor is the parent's */
  fk_lock();
  a->used = 0;
  fk_wake_locked(0);
  fk_unlock();
}

/* A process that ends leaves virtual time to the others at once. */
__attribute__((destructor)) static void leave_all(void) {
  over = true;
  if (!world) return;
  fk_lock();
  for (uint32_t i = 0; i < world->actors; i++)
    if (world->actor[i].used && world->actor[i].pid == getpid()) world->actor[i].used = 0;
  fk_leave();
  tick();
  fk_unlock();
}

static void open_world(void) {
  char path[512];
  ahead = vc_time_namespace_ahead();
  default_path(path, sizeof path);
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0666);
  if (fd < 0 || flock(fd, LOCK_EX) < 0 || ftruncate(fd, sizeof *world) < 0) {
    fprintf(stderr, "fake GPU: no world at %s: %s\n", path, strerror(errno));
    if (fd >= 0) close(fd);
    fd = memfd_create("fake-world", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, sizeof *world) < 0) abort();
  }
  world = mmap(NULL, sizeof *world, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
  if (world == MAP_FAILED) abort();
  if (!atomic_load(&world->ready)) set_up(world);
  flock(fd, LOCK_UN); /* the mapping would keep the lock */
  world_fd = fd;
  struct stat found;
  if (fstat(fd, &found) == 0) world_device = found.st_dev, world_number = found.st_ino;
  pthread_atfork(NULL, forks, forked);
  pthread_key_create(&actor_key, leave);
  /* What the process was before it executed this program is gone. */
  if (pthread_mutex_lock(&world->lock) == EOWNERDEAD) pthread_mutex_consistent(&world->lock);
  for (uint32_t i = 0; i < world->actors; i++)
    if (world->actor[i].pid == getpid()) world->actor[i].used = 0;
  pthread_mutex_unlock(&world->lock);
}

struct fk_world *fk_world(void) {
  pthread_once(&once, open_world);
  return world;
}

void fk_lock(void) {
  struct fk_world *w = fk_world();
  if (pthread_mutex_lock(&w->lock) == EOWNERDEAD) pthread_mutex_consistent(&w->lock);
}

void fk_unlock(void) {
  pthread_mutex_unlock(&fk_world()->lock);
}

uint64_t fk_now_locked(void) {
  return world->virtual_time ? world->now : monotonic();
}

void fk_attach(void) {
  struct fk_world *w = fk_world();
  if (!w->virtual_time) return;
  if (self && self_pid == getpid()) {
    self->stopped = 0;
    return;
  }
  fk_lock();
  for (uint32_t i = 0; i < FK_ACTORS; i++) {
    struct fk_actor *a = &w->actor[i];
    if (a->used) continue;
    a->pid = getpid();
    a->running = a->used = 1;
    a->stopped = 0;
    if (w->actors <= i) w->actors = i + 1;
    self = a;
    break;
  }
  self_pid = getpid();
  fk_unlock();
  pthread_setspecific(actor_key, self);
}

static void futex(_Atomic uint32_t *word, int op, uint32_t value, const struct timespec *limit) {
  syscall(SYS_futex, word, op, value, limit, NULL, 0);
}

static void run(struct fk_actor *a) {
  a->running = 1;
  atomic_fetch_add(&a->word, 1);
  futex(&a->word, FUTEX_WAKE, 1, NULL);
}

/* Move virtual time to the next deadline if everybody waits. */
static void tick(void) {
  struct fk_world *w = world;
  uint64_t next = FK_NEVER;
  if (w->hold) return;
  for (uint32_t i = 0; i < w->actors; i++) {
    if (!w->actor[i].used || w->actor[i].stopped) continue;
    if (w->actor[i].running) return;
    if (w->actor[i].until < next) next = w->actor[i].until;
  }
  if (next == FK_NEVER) return;
  if (next > w->now) w->now = next;
  for (uint32_t i = 0; i < w->actors; i++)
    if (w->actor[i].used && w->actor[i].until <= w->now) run(&w->actor[i]);
}

/* 'Z' for a process that is no more, whether or not its parent has noticed. */
static char state_of(int pid) {
  char path[32], text[256] = "";
  snprintf(path, sizeof path, "/proc/%d/stat", pid);
  int fd = open(path, O_RDONLY | O_CLOEXEC);
  if (fd < 0) return errno == ENOENT ? 'Z' : 'R';
  ssize_t length = read(fd, text, sizeof text - 1);
  close(fd);
  const char *after = length > 0 ? strrchr(text, ')') : NULL;
  return after && after[1] ? after[2] : 'R';
}

static void drop_dead(void) {
  for (uint32_t i = 0; i < world->actors; i++) {
    struct fk_actor *a = &world->actor[i];
    if (!a->used) continue;
    char state = state_of(a->pid);
    a->used = state != 'Z' && state != 'X';
    a->stopped = state == 'T';
  }
}

static void wait_virtual(_Atomic uint32_t *word, uint32_t seen, uint64_t key, uint64_t until) {
  struct fk_world *w = world;
  if (word && atomic_load(word) != seen) return;
  if (until <= w->now) return;
  struct fk_actor *a = self;
  a->key = key;
  a->until = until;
  a->running = 0;
  a->stopped = 0;
  tick();
  while (!a->running) {
    uint32_t before = atomic_load(&a->word);
    struct timespec limit = {0, DEAD_CHECK_NS};
    fk_unlock();
    futex(&a->word, FUTEX_WAIT, before, &limit);
    fk_lock();
    if (a->running) break;
    if (atomic_load(&a->word) == before) drop_dead();
    tick();
  }
  a->key = 0;
}

static void wait_wall(_Atomic uint32_t *word, uint32_t seen, uint64_t until) {
  fk_unlock();
  uint64_t now = monotonic();
  if (!word && until > now + WALL_WAIT_NS) until = now + WALL_WAIT_NS;
  if (word && until > now) {
    uint64_t left = until - now;
    struct timespec limit = {(time_t)(left / 1000000000ull), (long)(left % 1000000000ull)};
    futex(word, FUTEX_WAIT, seen, &limit);
  } else if (until > now) {
    /* A short wait is spun: a sleep would be longer than the kernel it waits for. */
    if (until - now > SPIN_NS) {
      uint64_t wake = until - SPIN_NS / 2 + (uint64_t)ahead;
      struct timespec at = {(time_t)(wake / 1000000000ull), (long)(wake % 1000000000ull)};
      clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &at, NULL);
    }
    while (monotonic() < until) __builtin_ia32_pause();
  }
  fk_lock();
}

void fk_wait_locked(_Atomic uint32_t *word, uint32_t seen, uint64_t key, uint64_t until) {
  if (world->virtual_time)
    wait_virtual(word, seen, key, until);
  else
    wait_wall(word, seen, until);
}

void fk_wake_locked(uint64_t key) {
  struct fk_world *w = world;
  if (!w->virtual_time) return;
  for (uint32_t i = 0; key && i < w->actors; i++) {
    struct fk_actor *a = &w->actor[i];
    if (a->used && !a->running && a->key == key) run(a);
  }
  if (!key) tick();
}

/* What a limiter or an arbiter in virtual time uses for its own waits. */
static uint64_t clock_now(void) {
  fk_lock();
  uint64_t now = fk_now_locked();
  fk_unlock();
  return now;
}

static void clock_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t key, uint64_t deadline) {
  fk_attach();
  fk_lock();
  fk_wait_locked(word, seen, key, deadline);
  fk_unlock();
}

static void clock_wake(_Atomic uint32_t *word, uint64_t key) {
  (void)word;
  fk_lock();
  fk_wake_locked(key);
  fk_unlock();
}

#pragma GCC visibility push(default)
const struct vc_clock *skfClock(void);
void skfSleep(uint64_t ns);
uint64_t skfNow(void);
void skfArrive(void);
uint64_t skfBusy(int gpu, int pid);
uint64_t skfPeak(int gpu);
uint64_t skfUsed(int gpu);
#pragma GCC visibility pop

const struct vc_clock *skfClock(void) {
  static const struct vc_clock clock = {clock_now, clock_wait, clock_wake};
  return fk_world()->virtual_time ? &clock : NULL;
}

/* Host work of a test program: it takes time on the GPU's clock. */
void skfSleep(uint64_t ns) {
  fk_attach();
  fk_lock();
  fk_wait_locked(NULL, 0, 0, fk_now_locked() + ns);
  fk_unlock();
}

uint64_t skfNow(void) {
  fk_world();
  return clock_now();
}

/* One of the threads that virtual time is held for is ready. */
void skfArrive(void) {
  fk_attach();
  fk_lock();
  if (world->hold) world->hold--;
  fk_unlock();
}

uint64_t skfBusy(int gpu, int pid) {
  uint64_t busy = 0;
  fk_lock();
  fk_engine_advance(gpu);
  for (int i = 0; i < FK_CTXS; i++)
    if (world->gpu[gpu].queue[i].used && world->gpu[gpu].queue[i].pid == pid &&
        world->space[gpu][i] == fk_space())
      busy += world->gpu[gpu].queue[i].busy;
  if (!pid) busy = world->gpu[gpu].busy;
  fk_unlock();
  return busy;
}

uint64_t skfPeak(int gpu) {
  return fk_world()->gpu[gpu].mem_peak;
}

uint64_t skfUsed(int gpu) {
  fk_reap();
  return fk_world()->gpu[gpu].mem_used;
}
