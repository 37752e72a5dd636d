/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A tenant that means harm to its neighbours and to the arbiter, one way each:
 *
 *   attack list           names, one a line
 *   attack KIND SECONDS   go on with it for so long, launching beside it all the time
 */
#define _GNU_SOURCE
#include "abi.h"
#include "by_name.h"
#include "gpu_clock.h"
#include "program.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/futex.h>
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/ptrace.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/syscall.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static CUcontext context;
static CUfunction kernel;
static double until;           /* on the GPU's clock, virtual or not */
static _Atomic int over;       /* for what goes on beside the launches */
static int idles;              /* launch nothing */
static int pages[3] = {-1, -1, -1}; /* a seat's descriptors, by a connection of our own */
static struct vc_usage *usage;      /* the page as the limiter has it mapped */
static struct vc_bell *bell;

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

static void aside(void *(*f)(void *), void *argument) {
  pthread_t t;
  pthread_create(&t, NULL, f, argument);
  pthread_detach(t);
}
static void *call(void *function) {
  void (*go)(void);
  *(void **)&go = function;
  go();
  return NULL;
}
/* A kind that goes on by itself, in a thread. */
#define BESIDE(f)                   \
  static void f##_on_and_on(void);  \
  BY_NAME(f) {                      \
    aside(call, f##_on_and_on);     \
  }                                 \
  static void f##_on_and_on(void)

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
BY_NAME(shrink) {
  in_child(shrink_now);
}
BY_NAME(grow) {
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
BY_NAME(write_policy) {
  in_child(write_policy_now);
}

/* By the GPU's clock, virtual or not: a lie comes as often whatever the machine's load is. */
static void lie_again_later(void) {
  sleep_ns(100000);
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
BY_NAME(lie_idle) {
  aside(lie, "idle");
}
BY_NAME(lie_unused) {
  aside(lie, "unused");
}
BY_NAME(lie_wanting) {
  aside(lie, "wanting");
}
BY_NAME(lie_huge) {
  aside(lie, "huge");
}
BY_NAME(lie_busy) {
  aside(lie, "busy");
}
/* Nothing is launched, and what is in flight never ends. */
BY_NAME(lie_stuck) {
  idles = 1;
  aside(lie, "stuck");
}

/* A process of the seat, without the limiter, that says it wants the GPU, and never takes it; the other one
 * launches nothing. */
BY_NAME(wants_for_nothing) {
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

BESIDE(requeue_bell) {
  static _Atomic uint32_t elsewhere;
  while (!over && bell) {
    uint32_t word = atomic_load(&bell->word);
    syscall(SYS_futex, &bell->word, FUTEX_CMP_REQUEUE, 0, (void *)1000, &elsewhere, word);
    usleep(50);
  }
}
BESIDE(ring_without_end) {
  while (!over && bell) {
    atomic_fetch_add(&bell->word, 1);
    syscall(SYS_futex, &bell->word, FUTEX_WAKE, 1000, NULL, NULL, 0);
  }
}

/* ---- the socket ---- */

BY_NAME(many_connections) {
  struct rlimit limit = {4096, 4096};
  setrlimit(RLIMIT_NOFILE, &limit);
  for (int i = 0; i < 1500; i++) {
    int fd = dial();
    if (fd >= 0) hello(fd, -1);
  }
}
BY_NAME(silent_connections) {
  for (int i = 0; i < 900; i++) dial();
}
BESIDE(knock_without_end) {
  while (!over) {
    int fd = dial();
    if (fd >= 0) close(fd);
  }
}
BY_NAME(many_processes) {
  for (int i = 0; i < 400; i++)
    if (!fork()) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      sit(-1);
      pause();
      _exit(0);
    }
}
BY_NAME(others_slots) {
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
BESIDE(babble_without_end) {
  char noise[4096] = "x";
  int fd = dial();
  hello(fd, -1);
  while (!over)
    if (send(fd, noise, sizeof noise, MSG_NOSIGNAL) < 0) break;
}

/* The control socket, if a tenant can reach it, as with one user's arbiter. */
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
BY_NAME(never_reads) {
  for (int i = 0; i < 40; i++) {
    int fd = control();
    int size = 1024;
    setsockopt(fd, SOL_SOCKET, SO_RCVBUF, &size, sizeof size);
    for (int k = 0; k < 2000; k++)
      if (send(fd, "{\"op\":\"read\"}\n", 14, MSG_NOSIGNAL | MSG_DONTWAIT) < 0) break;
  }
}
BY_NAME(half_a_line) {
  for (int i = 0; i < 100; i++) {
    int fd = control();
    if (send(fd, "{\"op\":", 6, MSG_NOSIGNAL) < 0) break;
  }
}

/* ---- processes ---- */

BESIDE(come_and_go_without_end) {
  while (!over) {
    pid_t child = fork();
    if (!child) {
      sit(-1);
      _exit(0);
    }
    waitpid(child, NULL, 0);
  }
}
BY_NAME(odd_name) {
  prctl(PR_SET_NAME, "a) Z 1 (b");
}
BY_NAME(many_mappings) {
  for (int i = 0; i < 60000; i++)
    mmap(NULL, 4096, i % 2 ? PROT_READ : PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
  for (int fd = 3; fd < 1024; fd++) close(fd);
}
BESIDE(closes_without_end) {
  while (!over) {
    for (int fd = 3; fd < 200; fd++) close(fd);
    usleep(1000);
  }
}
static void stop_again_and_again(useconds_t between, useconds_t stopped) {
  if (fork()) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  for (pid_t victim = getppid();; usleep(between)) {
    kill(victim, SIGSTOP);
    usleep(stopped);
    if (kill(victim, SIGCONT) < 0) _exit(0);
  }
}
BY_NAME(stops_in_between) {
  stop_again_and_again(3000, 3000);
}

/* ---- work that is let go all at once ---- */

#define BURST_CONTEXTS 4
#define BURST_STREAMS 60

/* Streams wait for a word; when many have work behind the wait, it is written. */
BESIDE(burst_behind_waits) {
  static unsigned flag[1 << 16];
  static CUcontext own[BURST_CONTEXTS];
  static CUstream stream[BURST_CONTEXTS][BURST_STREAMS];
  static CUfunction f[BURST_CONTEXTS];
  for (int c = 0; c < BURST_CONTEXTS; c++) {
    if (cuCtxCreate(&own[c], NULL, 0, 0)) return;
    f[c] = kernel_named("spin_500us");
    for (int s = 0; s < BURST_STREAMS; s++) must(cuStreamCreate(&stream[c][s], CU_STREAM_NON_BLOCKING), "stream");
  }
  for (unsigned round = 0; !over && round < 1 << 16; round++) {
    for (int c = 0; c < BURST_CONTEXTS && !over; c++) {
      cuCtxSetCurrent(own[c]);
      for (int s = 0; s < BURST_STREAMS && !over; s++) {
        cuStreamWaitValue32(stream[c][s], (CUdeviceptr)(unsigned long)&flag[round], 1, CU_STREAM_WAIT_VALUE_EQ);
        for (int k = 0; k < 4; k++) cuLaunchKernel(f[c], 1, 1, 1, 32, 1, 1, 0, stream[c][s], NULL, NULL);
      }
    }
    *(volatile unsigned *)&flag[round] = 1;
    for (int c = 0; c < BURST_CONTEXTS; c++) {
      cuCtxSetCurrent(own[c]);
      cuCtxSynchronize();
    }
  }
}
/* The same behind an event of another stream, in one context. */
BESIDE(burst_behind_events) {
  CUstream first, stream[BURST_STREAMS];
  CUevent event;
  cuCtxSetCurrent(context);
  must(cuStreamCreate(&first, CU_STREAM_NON_BLOCKING), "stream");
  must(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "event");
  for (int s = 0; s < BURST_STREAMS; s++) must(cuStreamCreate(&stream[s], CU_STREAM_NON_BLOCKING), "stream");
  while (!over) {
    cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, first, NULL, NULL);
    cuEventRecord(event, first);
    for (int s = 0; s < BURST_STREAMS && !over; s++) {
      cuStreamWaitEvent(stream[s], event, 0);
      for (int k = 0; k < 4; k++) cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream[s], NULL, NULL);
    }
    cuCtxSynchronize();
  }
}

/* ---- launches that wait for the host ---- */

#define LONG_CONTEXTS 8
#define LONG_STREAMS 30
#define MS 1000000ul
static unsigned never, let_go;

static void *let_go_after_a_second(void *unused) {
  for (unsigned round = 1; !over; round++) {
    fake_sleep(1000 * MS);
    *(volatile unsigned *)&let_go = round;
  }
  return unused;
}
/* Many streams wait with long work behind, and are let go all at once. */
BESIDE(long_work_behind_waits) {
  aside(let_go_after_a_second, NULL);
  CUcontext own[LONG_CONTEXTS];
  CUfunction f[LONG_CONTEXTS];
  CUstream stream[LONG_CONTEXTS][LONG_STREAMS];
  for (int c = 0; c < LONG_CONTEXTS; c++) {
    if (cuCtxCreate(&own[c], NULL, 0, 0)) return;
    f[c] = kernel_named("spin_100ms");
    for (int s = 0; s < LONG_STREAMS; s++) must(cuStreamCreate(&stream[c][s], CU_STREAM_NON_BLOCKING), "stream");
  }
  while (!over) {
    unsigned round = *(volatile unsigned *)&let_go + 1;
    for (int i = 0; i < LONG_CONTEXTS * LONG_STREAMS && !over && *(volatile unsigned *)&let_go < round; i++) {
      CUstream s = stream[i % LONG_CONTEXTS][i / LONG_CONTEXTS];
      cuCtxSetCurrent(own[i % LONG_CONTEXTS]);
      cuStreamWaitValue32(s, (CUdeviceptr)(unsigned long)&let_go, round, CU_STREAM_WAIT_VALUE_GEQ);
      cuLaunchKernel(f[i % LONG_CONTEXTS], 1, 1, 1, 32, 1, 1, 0, s, NULL, NULL);
    }
    for (int c = 0; c < LONG_CONTEXTS; c++) {
      cuCtxSetCurrent(own[c]);
      cuCtxSynchronize();
    }
  }
}

static void seconds_pass(void *unused) {
  (void)unused;
  fake_sleep(3000 * MS);
}
/* Go on launching into a stream that waits: at its third argument, of what kind the wait is. */
static void launch_behind(int kind) {
  CUstream waits, other;
  CUevent event;
  idles = 1;
  must(cuStreamCreate(&waits, CU_STREAM_NON_BLOCKING), "stream");
  must(cuStreamCreate(&other, CU_STREAM_NON_BLOCKING), "stream");
  must(cuEventCreate(&event, CU_EVENT_DISABLE_TIMING), "event");
  CUstream first = kind == 2 ? other : waits;
  cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, first, NULL, NULL);
  if (kind == 0)
    cuLaunchHostFunc(first, seconds_pass, NULL);
  else
    cuStreamWaitValue32(first, (CUdeviceptr)(unsigned long)&never, 1, CU_STREAM_WAIT_VALUE_EQ);
  if (kind == 2) {
    cuEventRecord(event, other);
    cuStreamWaitEvent(waits, event, 0);
  }
  while (!over) cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, waits, NULL, NULL);
}
static void *launch_behind_a(void *kind) {
  cuCtxSetCurrent(context);
  launch_behind((int)(long)kind);
  return NULL;
}
BY_NAME(launches_behind_a_callback) {
  idles = 1;
  aside(launch_behind_a, (void *)0);
}
BY_NAME(launches_behind_a_value) {
  idles = 1;
  aside(launch_behind_a, (void *)1);
}
BY_NAME(launches_behind_an_event) {
  idles = 1;
  aside(launch_behind_a, (void *)2);
}
static void *capture_on_and_off(void *stream) {
  CUgraph graph;
  cuCtxSetCurrent(context);
  while (!over) {
    if (cuStreamBeginCapture(stream, CU_STREAM_CAPTURE_MODE_RELAXED)) continue;
    if (cuStreamEndCapture(stream, &graph) == CUDA_SUCCESS && graph) cuGraphDestroy(graph);
    if (fake_sleep) fake_sleep(20000);
  }
  return NULL;
}
static void *launch_in(void *stream) {
  cuCtxSetCurrent(context);
  while (!over) cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, stream, NULL, NULL);
  return NULL;
}
BY_NAME(captures_without_end) {
  CUstream s;
  must(cuStreamCreate(&s, CU_STREAM_NON_BLOCKING), "stream");
  pthread_t t;
  pthread_create(&t, NULL, capture_on_and_off, s);
  pthread_create(&t, NULL, launch_in, s);
}
BY_NAME(many_threads) {
  pthread_t t;
  pthread_attr_t small;
  pthread_attr_init(&small);
  pthread_attr_setstacksize(&small, 128 * 1024);
  for (int i = 0; i < 100; i++) pthread_create(&t, &small, launch_in, NULL);
}
static void *streams_come_and_go(void *unused) {
  cuCtxSetCurrent(context);
  while (!over) {
    CUstream s;
    if (cuStreamCreate(&s, CU_STREAM_NON_BLOCKING)) break;
    cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, s, NULL, NULL);
    cuStreamDestroy(s);
  }
  return unused;
}
BY_NAME(streams_without_end) {
  for (int i = 0; i < 4; i++) aside(streams_come_and_go, NULL);
}
BESIDE(contexts_without_end) {
  while (!over) {
    CUcontext c;
    if (cuCtxCreate(&c, NULL, 0, 0)) break;
    CUfunction f = kernel_named("spin_500us");
    for (int i = 0; i < 8; i++) cuLaunchKernel(f, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL);
    cuCtxDestroy(c);
  }
}

/* ---- more lies ---- */

BESIDE(lie_garbage) {
  unsigned state = 1;
  while (!over && usage) {
    for (unsigned i = 0; i < VC_SLOTS; i++) {
      if (!atomic_load(&usage->slot[i].pid)) continue;
      volatile uint32_t *word = (volatile uint32_t *)&usage->slot[i];
      for (unsigned k = 0; k < 8; k++) {
        state = state * 1664525u + 1013904223u;
        word[state >> 8 & 31] = state & 64 ? 0 : state & 128 ? 0xffffffffu : state;
      }
    }
    lie_again_later();
  }
}
BESIDE(lie_future) {
  while (!over && usage) {
    uint64_t soon = (uint64_t)(now() * 1e9) + 1000000000;
    for (unsigned i = 0; i < VC_SLOTS; i++) {
      struct vc_slot *s = &usage->slot[i];
      if (!atomic_load(&s->live)) continue;
      atomic_store(&s->idle_since, soon);
      atomic_store(&s->turn_since, 1);
      atomic_store(&s->turn_seen, soon);
      atomic_store(&s->turn_end, soon);
      atomic_store(&s->linger_ns, 0xffffffffu);
      atomic_store(&s->unit_ns, 0);
    }
    lie_again_later();
  }
}
BESIDE(lie_union) {
  for (uint64_t n = 0; !over && usage; n++) {
    atomic_store(&usage->running, n % 2 ? VC_RUNNING : UINT64_MAX);
    atomic_store(&usage->busy_ns, n % 3 ? 0 : UINT64_MAX - n);
    atomic_store(&usage->peak, UINT64_MAX);
    usage->magic = usage->version = (uint32_t)n;
    lie_again_later();
  }
}
BESIDE(lie_others) {
  while (!over && usage) {
    for (unsigned i = 0; i < VC_SLOTS; i++) {
      atomic_store(&usage->slot[i].live, 1);
      atomic_store(&usage->slot[i].pid, 1 + i);
      atomic_store(&usage->slot[i].waiting, 1);
      atomic_store(&usage->slot[i].inflight, 0xffffffffu);
      atomic_fetch_add(&usage->slot[i].beat, 1);
    }
    atomic_store(&usage->high, 0);
    lie_again_later();
  }
}

/* ---- more of the socket ---- */

BESIDE(empty_messages) {
  while (!over) {
    int fd = dial();
    if (fd < 0) break;
    hello(fd, -1);
    for (int i = 0; i < 100 && send(fd, "", 0, MSG_NOSIGNAL | MSG_DONTWAIT) == 0; i++) continue;
    close(fd);
  }
}
BESIDE(half_messages) {
  struct vc_hello h = {VC_MAGIC, VC_VERSION, -1, 0};
  for (unsigned i = 0; !over; i++) {
    int fd = dial();
    if (fd < 0) break;
    send(fd, &h, i % sizeof h, MSG_NOSIGNAL);
    send(fd, (char *)&h + i % sizeof h, sizeof h - i % sizeof h, MSG_NOSIGNAL);
    close(fd);
  }
}
BESIDE(wrong_messages) {
  static const int slots[] = {-2, 256, 255, INT32_MAX, INT32_MIN, 0, 1};
  for (unsigned i = 0; !over; i++) {
    struct vc_hello h = {i % 5 ? VC_MAGIC : i, i % 3 ? VC_VERSION : i, slots[i % 7], i};
    int fd = dial();
    if (fd < 0) break;
    send(fd, &h, sizeof h, MSG_NOSIGNAL);
    if (i % 2) shutdown(fd, SHUT_RD);
    close(fd);
  }
}
static void send_fds(int to, int count) {
  int fds[200];
  char room[CMSG_SPACE(sizeof fds)] = {0};
  struct iovec part = {"x", 1};
  struct msghdr m = {.msg_iov = &part, .msg_iovlen = 1, .msg_control = room, .msg_controllen = CMSG_SPACE((size_t)count * sizeof *fds)};
  struct cmsghdr *c = CMSG_FIRSTHDR(&m);
  for (int i = 0; i < count; i++) fds[i] = to;
  c->cmsg_level = SOL_SOCKET;
  c->cmsg_type = SCM_RIGHTS;
  c->cmsg_len = CMSG_LEN((size_t)count * sizeof *fds);
  memcpy(CMSG_DATA(c), fds, (size_t)count * sizeof *fds);
  sendmsg(to, &m, MSG_NOSIGNAL | MSG_DONTWAIT);
}
/* Descriptors, each of the very socket that they are sent by. */
BESIDE(descriptors_sent) {
  while (!over) {
    int fd = dial();
    if (fd < 0) break;
    hello(fd, -1);
    for (int i = 0; i < 50; i++) send_fds(fd, 200);
    close(fd);
    fd = control();
    if (fd >= 0) {
      for (int i = 0; i < 50; i++) send_fds(fd, 200);
      close(fd);
    }
  }
}
BESIDE(nonsense_commands) {
  static const char *const lines[] = {
      "{\"op\":\"change\",\"seat\":\"bad\",\"core\":-1}\n",
      "{\"op\":\"change\",\"seat\":\"bad\",\"core\":4294967297}\n",
      "{\"op\":\"change\",\"seat\":\"bad\",\"memory\":99999999999999999999999999}\n",
      "{\"op\":\"change\",\"seat\":\"bad\",\"memory\":-1}\n",
      "{\"op\":\"change\",\"seat\":\"bad\",\"limit\":0}\n",
      "{\"op\":\"set\",\"seat\":\"../../x\",\"gpu\":0,\"core\":10,\"memory\":1}\n",
      "{\"op\":\"set\",\"seat\":\"x\",\"gpu\":-1,\"core\":10,\"memory\":1}\n",
      "{\"op\":\"set\",\"seat\":\"x\",\"gpu\":1e9,\"core\":10,\"memory\":1}\n",
      "{\"op\":\"drop\",\"seat\":\"\"}\n",
      "{\"op\":\"rule\",\"rule\":\"\\u0000\"}\n",
      "[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[[\n",
      "{\"op\":\"read\",\"op\":\"read\",\"op\":\"drop\"}\n",
      "\"\\ud800\"\n{}\n\n\n\xff\xfe\n",
  };
  static char longest[100000];
  memset(longest, '{', sizeof longest);
  for (unsigned i = 0; !over; i++) {
    int fd = control();
    const char *line = lines[i % (sizeof lines / sizeof *lines)];
    if (fd < 0) break;
    if (send(fd, line, strlen(line), MSG_NOSIGNAL) > 0 && i % 4 == 0) send(fd, longest, sizeof longest, MSG_NOSIGNAL | MSG_DONTWAIT);
    close(fd);
    usleep(500); /* so that the test can ask as well */
  }
}
BY_NAME(many_controls) {
  for (int i = 0; i < 800; i++) control();
}
BY_NAME(unlink_socket) {
  const char *path = getenv("SLICEKEEPER_SEAT");
  char other[512];
  if (!path) return;
  snprintf(other, sizeof other, "%s.old", path);
  if (rename(path, other) == 0) unlink(other);
  if (symlink("/dev/zero", path) == 0) printf("the seat is a link now\n");
  in_child(shrink_now);
}

/* ---- more of processes ---- */

BY_NAME(stops_for_good) {
  if (fork()) return;
  prctl(PR_SET_PDEATHSIG, SIGKILL);
  usleep(400000);
  kill(getppid(), SIGSTOP);
  pause();
}
BY_NAME(stops_for_long) {
  stop_again_and_again(100000, 150000);
}
BY_NAME(lowest_priority) {
  struct sched_param none = {0};
  for (int tid = getpid(); tid < getpid() + 8; tid++) {
    sched_setscheduler(tid, SCHED_IDLE, &none);
    setpriority(PRIO_PROCESS, (id_t)tid, 19);
  }
}
BY_NAME(traced) {
  for (int i = 0; i < 8; i++) {
    pid_t child = fork();
    if (!child) {
      prctl(PR_SET_PDEATHSIG, SIGKILL);
      ptrace(PTRACE_TRACEME, 0, NULL, NULL);
      sit(-1);
      raise(SIGSTOP);
      _exit(0);
    }
  }
}
BY_NAME(passed_on) {
  for (int i = 0; i < 40; i++) {
    int pair[2];
    if (socketpair(AF_UNIX, SOCK_STREAM, 0, pair)) return;
    pid_t child = fork();
    if (!child) {
      int fd = sit(-1);
      if (fd >= 0) dup2(fd, pair[1]);
      if (fork()) _exit(0); /* its own child goes on with the socket */
      prctl(PR_SET_PDEATHSIG, 0);
      sleep(3);
      _exit(0);
    }
    close(pair[0]), close(pair[1]);
    waitpid(child, NULL, 0);
  }
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  long count = 0;
  const struct by_name *kind = find_by_name(what);
  if (!strcmp(what, "list")) return list_names(), 0;
  if (!kind || argc < 3) return 1;
  signal(SIGPIPE, SIG_IGN);
  context = open_gpu();
  find_fake();
  kernel = kernel_named("spin_500us");
  find_pages();
  kind->go();
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
