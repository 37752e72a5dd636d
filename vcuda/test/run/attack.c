/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tenant that means harm to its neighbours and to the arbiter, one way each:
 *
 *   attack list           names, one a line
 *   attack KIND SECONDS   go on with it for so long, launching beside it all the time
 */
#define _GNU_SOURCE
#include "abi.h"
#include "program.h"

#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

static CUcontext context;
static CUfunction kernel;
static double until;           /* on the GPU's clock, virtual or not */
static _Atomic int over;       /* for what goes on beside the launches */
static unsigned long (*fake_now)(void);
static void (*fake_sleep)(unsigned long);
static int idles;              /* launch nothing */
static int pages[3] = {-1, -1, -1}; /* a seat's descriptors, by a connection of our own */
static struct vc_usage *usage;      /* the page as the limiter has it mapped */
static struct vc_bell *bell;

static double now(void) {
  struct timespec t;
  if (fake_now) return (double)fake_now() / 1e9;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int dial(void) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  const char *path = getenv("SLICEKEEPER_SEAT");
  int fd = path ? socket(AF_UNIX, SOCK_SEQPACKET, 0) : -1;
  if (fd < 0) return -1;
  strncpy(at.sun_path, path, sizeof at.sun_path - 1);
  if (connect(fd, (struct sockaddr *)&at, sizeof at) == 0) return fd;
  close(fd);
  return -1;
}

static int hello(int fd, int slot) {
  struct vc_hello h = {VC_MAGIC, VC_VERSION, slot, 0};
  return send(fd, &h, sizeof h, MSG_NOSIGNAL) == sizeof h;
}

/* A connection like the limiter's own; as another process, for one has only one place. */
static int sit(int slot) {
  struct vc_welcome welcome;
  char room[CMSG_SPACE(sizeof pages)];
  struct iovec part = {&welcome, sizeof welcome};
  struct msghdr m = {
      .msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = sizeof room};
  struct timeval patience = {1, 0};
  int fd = dial();
  if (fd < 0) return -1;
  setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof patience);
  if (!hello(fd, slot) || recvmsg(fd, &m, 0) != sizeof welcome || !CMSG_FIRSTHDR(&m)) {
    close(fd);
    return -1;
  }
  memcpy(pages, CMSG_DATA(CMSG_FIRSTHDR(&m)), sizeof pages);
  return fd;
}

static void find_pages(void) {
  char line[512];
  FILE *maps = fopen("/proc/self/maps", "r");
  while (maps && fgets(line, sizeof line, maps)) {
    unsigned long from = strtoul(line, NULL, 16);
    if (strstr(line, "slicekeeper-usage")) usage = (void *)from;
    if (strstr(line, "slicekeeper-bell")) bell = (void *)from;
  }
  if (maps) fclose(maps);
}

/* ---- the pages ---- */

static void change_size(int length) {
  for (int i = 0; i < 3; i++) {
    if (ftruncate(pages[i], length) == 0) printf("page %d has another size\n", i);
    fallocate(pages[i], FALLOC_FL_PUNCH_HOLE | FALLOC_FL_KEEP_SIZE, 0, 4096);
    fallocate(pages[i], 0, 0, 1 << 30);
    fcntl(pages[i], F_ADD_SEALS, F_SEAL_WRITE);
  }
}
static void in_child(void (*what)(void)) {
  pid_t child = fork();
  if (!child) {
    if (sit(-1) >= 0) what();
    _exit(0);
  }
  waitpid(child, NULL, 0);
}
static void shrink_now(void) {
  change_size(0);
}
static void grow_now(void) {
  change_size(1 << 24);
}
static void shrink(void) {
  in_child(shrink_now);
}
static void grow(void) {
  in_child(grow_now);
}
static void write_policy_now(void) {
  void *p = mmap(NULL, 4096, PROT_READ | PROT_WRITE, MAP_SHARED, pages[0], 0);
  if (p != MAP_FAILED) puts("the policy can be written");
  char path[64];
  snprintf(path, sizeof path, "/proc/self/fd/%d", pages[0]);
  int fd = open(path, O_RDWR);
  if (fd >= 0 && pwrite(fd, "x", 1, 0) == 1) puts("the policy can be written");
}
static void write_policy(void) {
  in_child(write_policy_now);
}

/* By the GPU's clock, virtual or not: a lie comes as often whatever the machine's load is. */
static void lie_again_later(void) {
  if (fake_sleep)
    fake_sleep(100000);
  else
    usleep(100);
}

static void *lie(void *what) {
  const char *kind = what;
  while (!over) {
    for (unsigned i = 0; i < VC_SLOTS && usage; i++) {
      struct vc_slot *s = &usage->slot[i];
      if (!atomic_load(&s->live)) continue;
      if (!strcmp(kind, "idle")) {
        atomic_store(&s->inflight, 0);
        atomic_store(&s->waiting, 0);
        atomic_store(&s->busy_ns, 0);
        atomic_store(&s->idle_since, (uint64_t)(now() * 1e9));
      } else if (!strcmp(kind, "unused")) {
        atomic_store(&s->busy_ns, 0);
      } else if (!strcmp(kind, "wanting")) {
        atomic_store(&s->waiting, 1);
      } else if (!strcmp(kind, "huge")) {
        atomic_store(&s->busy_ns, UINT64_MAX / 2);
        atomic_store(&s->unit_ns, UINT64_MAX);
        atomic_store(&s->launches, UINT64_MAX);
        atomic_store(&s->charged, UINT64_MAX);
        atomic_store(&s->pending, UINT64_MAX);
        atomic_store(&s->exported, UINT64_MAX);
        atomic_store(&s->let_go, UINT64_MAX);
      } else {
        atomic_store(&s->inflight, 1000);
        if (strcmp(kind, "stuck")) continue;
        atomic_store(&s->unit_ns, UINT64_MAX);
        atomic_store(&s->waiting, 1);
      }
    }
    atomic_store(&usage->high, 0xffffffffu);
    lie_again_later();
  }
  return NULL;
}
static void aside(void *(*f)(void *), const char *what) {
  pthread_t t;
  pthread_create(&t, NULL, f, (void *)(uintptr_t)what);
  pthread_detach(t);
}
static void lie_idle(void) {
  aside(lie, "idle");
}
static void lie_unused(void) {
  aside(lie, "unused");
}
static void lie_wanting(void) {
  aside(lie, "wanting");
}
static void lie_huge(void) {
  aside(lie, "huge");
}
static void lie_busy(void) {
  aside(lie, "busy");
}
/* Nothing is launched, and what is in flight never ends. */
static void lie_stuck(void) {
  idles = 1;
  aside(lie, "stuck");
}

/* A process of the seat, without the limiter, that says it wants the GPU, and never takes it; the other one
 * launches nothing. */
static void wants_for_nothing(void) {
  idles = 1;
  if (fork()) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  sit(-1);
  struct vc_usage *page = mmap(NULL, sizeof *page, PROT_READ | PROT_WRITE, MAP_SHARED, pages[1], 0);
  struct vc_bell *mine = mmap(NULL, sizeof *mine, PROT_READ | PROT_WRITE, MAP_SHARED, pages[2], 0);
  if (page == MAP_FAILED || mine == MAP_FAILED) _exit(0);
  for (;; usleep(20)) {
    for (unsigned i = 0; i < VC_SLOTS; i++) {
      if (atomic_load(&page->slot[i].pid) != (uint32_t)getpid()) continue;
      atomic_store(&page->slot[i].waiting, 1);
      atomic_fetch_add(&page->slot[i].beat, 1);
    }
    atomic_fetch_add(&mine->word, 1);
    syscall(SYS_futex, &mine->word, FUTEX_WAKE, 1000, NULL, NULL, 0);
  }
}

/* ---- futexes ---- */

static void *requeue(void *unused) {
  static _Atomic uint32_t elsewhere;
  while (!over && bell) {
    uint32_t word = atomic_load(&bell->word);
    syscall(SYS_futex, &bell->word, FUTEX_CMP_REQUEUE, 0, (void *)1000, &elsewhere, word);
    usleep(50);
  }
  return unused;
}
static void requeue_bell(void) {
  aside(requeue, NULL);
}
static void *ring(void *unused) {
  while (!over && bell) {
    atomic_fetch_add(&bell->word, 1);
    syscall(SYS_futex, &bell->word, FUTEX_WAKE, 1000, NULL, NULL, 0);
  }
  return unused;
}
static void ring_without_end(void) {
  aside(ring, NULL);
}

/* ---- the socket ---- */

static void many_connections(void) {
  struct rlimit limit = {4096, 4096};
  setrlimit(RLIMIT_NOFILE, &limit);
  for (int i = 0; i < 1500; i++) {
    int fd = dial();
    if (fd >= 0) hello(fd, -1);
  }
}
static void silent_connections(void) {
  for (int i = 0; i < 900; i++) dial();
}
static void *knock(void *unused) {
  while (!over) {
    int fd = dial();
    if (fd >= 0) close(fd);
  }
  return unused;
}
static void knock_without_end(void) {
  aside(knock, NULL);
}
static void many_processes(void) {
  for (int i = 0; i < 400; i++)
    if (!fork()) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      sit(-1);
      pause();
      _exit(0);
    }
}
static void others_slots(void) {
  for (int i = 0; i < 256; i++) {
    pid_t child = fork();
    if (!child) {
      int fd = dial();
      if (fd >= 0) hello(fd, i);
      usleep(1000);
      _exit(0);
    }
    waitpid(child, NULL, 0);
  }
}
static void *babble(void *unused) {
  char noise[4096] = "x";
  int fd = dial();
  hello(fd, -1);
  while (!over)
    if (send(fd, noise, sizeof noise, MSG_NOSIGNAL) < 0) break;
  return unused;
}
static void babble_without_end(void) {
  aside(babble, NULL);
}

/* The control socket, where a tenant can reach it: one user's arbiter. */
static int control(void) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  const char *path = getenv("SLICEKEEPER_SEAT");
  const char *end = path ? strstr(path, "/seats/") : NULL;
  int fd = end ? socket(AF_UNIX, SOCK_STREAM, 0) : -1;
  if (fd < 0) return -1;
  snprintf(at.sun_path, sizeof at.sun_path, "%.*s/control.sock", (int)(end - path), path);
  if (connect(fd, (struct sockaddr *)&at, sizeof at) == 0) return fd;
  close(fd);
  return -1;
}
static void never_reads(void) {
  for (int i = 0; i < 40; i++) {
    int fd = control();
    int size = 1024;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    for (int k = 0; k < 2000; k++)
      if (send(fd, "{\"op\":\"read\"}\n", 14, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) break;
  }
}
static void half_a_line(void) {
  for (int i = 0; i < 100; i++) {
    int fd = control();
    if (send(fd, "{\"op\":", 6, MSG_NOSIGNAL) < 0) break;
  }
}

/* ---- processes ---- */

static void *come_and_go(void *unused) {
  while (!over) {
    pid_t child = fork();
    if (!child) {
      sit(-1);
      _exit(0);
    }
    waitpid(child, NULL, 0);
  }
  return unused;
}
static void come_and_go_without_end(void) {
  aside(come_and_go, NULL);
}
static void odd_name(void) {
  prctl(PR_SET_NAME, "a) Z 1 (b");
}
static void many_mappings(void) {
  for (int i = 0; i < 60000; i++)
    mmap(NULL, 4096, i % 2 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (int fd = 3; fd < 1024; fd++) close(fd);
}
static void *no_descriptors(void *unused) {
  while (!over) {
    for (int fd = 3; fd < 200; fd++) close(fd);
    usleep(1000);
  }
  return unused;
}
static void closes_without_end(void) {
  aside(no_descriptors, NULL);
}
static void stops_in_between(void) {
  if (fork()) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (pid_t victim = getppid();; usleep(3000)) {
    kill(victim, SIGSTOP);
    usleep(3000);
    if (kill(victim, SIGCONT) < 0) _exit(0);
  }
}

#define KIND(name) {#name, name}
static const struct {
  const char *name;
  void (*go)(void);
} kinds[] = {
    KIND(shrink),
    KIND(grow),
    KIND(write_policy),
    KIND(lie_idle),
    KIND(lie_unused),
    KIND(lie_wanting),
    KIND(lie_huge),
    KIND(lie_busy),
    KIND(lie_stuck),
    KIND(wants_for_nothing),
    KIND(requeue_bell),
    KIND(ring_without_end),
    KIND(many_connections),
    KIND(silent_connections),
    KIND(knock_without_end),
    KIND(many_processes),
    KIND(others_slots),
    KIND(babble_without_end),
    KIND(never_reads),
    KIND(half_a_line),
    KIND(come_and_go_without_end),
    KIND(odd_name),
    KIND(many_mappings),
    KIND(closes_without_end),
    KIND(stops_in_between),
};

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  void (*go)(void) = NULL;
  CUmodule module;
  void (*fake_arrive)(void);
  long count = 0;
  for (unsigned i = 0; i < sizeof kinds / sizeof *kinds; i++) {
    if (!strcmp(what, "list")) puts(kinds[i].name);
    if (!strcmp(what, kinds[i].name)) go = kinds[i].go;
  }
  if (!go || argc < 3) return strcmp(what, "list") != 0;
  signal(SIGPIPE, SIG_IGN);
  context = open_gpu();
  *(void **)&fake_now = dlsym(RTLD_DEFAULT, "skfNow");
  *(void **)&fake_sleep = dlsym(RTLD_DEFAULT, "skfSleep");
  *(void **)&fake_arrive = dlsym(RTLD_DEFAULT, "skfArrive");
  must(cuModuleLoadData(&module, "spin"), "module");
  must(cuModuleGetFunction(&kernel, module, "spin_500us"), "function");
  find_pages();
  go();
  if (fake_arrive) fake_arrive();
  until = now() + atof(argv[2]);
  while (now() < until) {
    if (idles && fake_sleep) {
      fake_sleep(1000000);
      continue;
    }
    if (cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL)) break;
    count++;
  }
  over = 1;
  printf("{\"kernels\": %ld}\n", count);
  return 0;
}
