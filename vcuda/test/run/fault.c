/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Tenants that misbehave, one way each:
 *
 *   fault KIND SECONDS     KIND: garbage-page, garbage-socket, close-all, clear-env, fork, exec,
 *                          no-cleanup, threads, other-gpu, signal, killed, stopped
 *
 * Each then goes on launching for the given time and prints how many kernels it ran; killed and
 * stopped do that to themselves after a fifth of it, with kernels in flight. Times are on the GPU's
 * clock, virtual or not.
 */
#define _GNU_SOURCE
#include "gpu_clock.h"
#include "program.h"

#include <dirent.h>
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/un.h>
#include <sys/wait.h>
#include <unistd.h>

static CUcontext context;
static CUfunction kernel;
static double seconds;

static void set_up(void) {
  context = open_gpu();
  kernel = kernel_named("spin_500us");
  if (fake_arrive) fake_arrive();
  fake_arrive = NULL; /* once is enough */
}

static long work(double span) {
  long count = 0;
  for (double end = now() + span; now() < end; count++)
    must(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), "launch");
  must(cuCtxSynchronize(), "synchronise");
  return count;
}

/* Write nonsense over every shared page that this process can write. */
static void garbage_page(void) {
  char line[512];
  FILE *maps = fopen("/proc/self/maps", "r");
  while (maps && fgets(line, sizeof line, maps)) {
    unsigned long from, to;
    char access[8];
    if (!strstr(line, "slicekeeper-usage") && !strstr(line, "slicekeeper-bell")) continue;
    if (sscanf(line, "%lx-%lx %7s", &from, &to, access) != 3 || access[1] != 'w') continue;
    for (unsigned long *p = (unsigned long *)from; p < (unsigned long *)to; p++)
      *p = (unsigned long)rand() * 0x9e3779b97f4a7c15ul;
  }
  if (maps) fclose(maps);
}

static void garbage_socket(void) {
  struct sockaddr_un at = {.sun_family = AF_UNIX};
  const char *path = getenv("SLICEKEEPER_SEAT");
  char noise[4096];
  for (unsigned i = 0; i < sizeof noise; i++) noise[i] = (char)rand();
  for (int round = 0; round < 200 && path; round++) {
    int fd = socket(AF_UNIX, SOCK_SEQPACKET, 0);
    strncpy(at.sun_path, path, sizeof at.sun_path - 1);
    if (connect(fd, (struct sockaddr *)&at, sizeof at) == 0)
      send(fd, noise, 1 + (size_t)rand() % sizeof noise, MSG_NOSIGNAL | MSG_DONTWAIT);
    if (round % 2) close(fd);
  }
  for (int fd = 3; fd < 1024; fd++) {
    struct stat s;
    if (fstat(fd, &s) == 0 && S_ISSOCK(s.st_mode)) send(fd, noise, 64, MSG_NOSIGNAL | MSG_DONTWAIT);
  }
}

static void close_all(void) {
  for (int fd = 3; fd < 1024; fd++) close(fd);
  for (int i = 0; i < 20; i++)
    if (!fopen("/dev/null", "r")) break; /* their numbers are taken at once */
}

/* All but what names the fake GPU: on another GPU it would not disturb the others. */
static void clear_environment(void) {
  const char *world = getenv("SLICEKEEPER_FAKE_WORLD");
  char *kept = world ? strdup(world) : NULL;
  clearenv();
  if (kept) setenv("SLICEKEEPER_FAKE_WORLD", kept, 1);
  free(kept);
}

/* In the middle of launching, the gate open and kernels in flight. */
static void raise_at(int number) {
  for (double at = now() + seconds / 5; now() < at;)
    must(cuLaunchKernel(kernel, 1, 1, 1, 32, 1, 1, 0, NULL, NULL, NULL), "launch");
  raise(number);
}

static void *thread(void *count) {
  must(cuCtxSetCurrent(context), "context");
  *(long *)count = work(seconds);
  return NULL;
}

/* To wait for others must not hold up virtual time. */
static void a_while(void) {
  sleep_ns(1000000);
}

static long threads(void) {
  pthread_t t[16];
  long count[16], sum = 0;
  for (int i = 0; i < 16; i++) pthread_create(&t[i], NULL, thread, &count[i]);
  for (int i = 0; i < 16; i++) {
    while (pthread_tryjoin_np(t[i], NULL)) a_while();
    sum += count[i];
  }
  return sum;
}

static void on_signal(int number) {
  (void)number;
}

/* The limiter must have left every disposition and the mask as they were. */
static int signals_untouched(void) {
  sigset_t mask;
  struct sigaction action;
  for (int i = 1; i < 32; i++) {
    if (i == SIGUSR1 || sigaction(i, NULL, &action) < 0) continue;
    if (action.sa_handler != SIG_DFL && action.sa_handler != SIG_IGN) return 0;
  }
  sigaction(SIGUSR1, NULL, &action);
  pthread_sigmask(SIG_SETMASK, NULL, &mask);
  for (int i = 1; i < 32; i++)
    if (sigismember(&mask, i) == 1) return 0;
  return action.sa_handler == on_signal;
}

int main(int argc, char **argv) {
  const char *kind = argc > 2 ? argv[1] : "";
  long count;
  seconds = argc > 2 ? atof(argv[2]) : 0;
  find_fake();
  if (!strcmp(kind, "clear-env")) clear_environment();
  if (!strcmp(kind, "signal")) signal(SIGUSR1, on_signal);
  if (!strcmp(kind, "other-gpu")) {
    setenv("CUDA_VISIBLE_DEVICES", "1", 1);
    CUdevice device;
    must(cuInit(0), "init");
    must(cuDeviceGet(&device, 0), "device");
    CUresult r = cuDevicePrimaryCtxRetain(&context, device);
    CUcheckpointGpuPair there = {0};
    CUcheckpointRestoreArgs restore = {.gpuPairs = &there, .gpuPairsCount = 1};
    must(cuDeviceGetUuid_v2(&there.newUuid, device), "UUID");
    CUresult moved = cuCheckpointProcessRestore(getpid(), &restore);
    restore.gpuPairsCount = 0;
    must(cuCheckpointProcessRestore(getpid(), &restore), "restore where it was");
    printf("{\"refused\": %d, \"moved\": %d}\n", r == CUDA_ERROR_INVALID_DEVICE, moved != CUDA_ERROR_INVALID_DEVICE);
    return 0;
  }
  /* The parent's driver state does not survive a fork, so the child starts first. */
  if (strcmp(kind, "fork")) set_up();
  if (!strcmp(kind, "garbage-page")) work(0.1), garbage_page();
  if (!strcmp(kind, "garbage-socket")) garbage_socket();
  if (!strcmp(kind, "close-all")) work(0.1), close_all();
  if (!strcmp(kind, "killed")) raise_at(SIGKILL);
  if (!strcmp(kind, "stopped")) raise_at(SIGSTOP);
  if (!strcmp(kind, "exec")) {
    CUdeviceptr p;
    must(cuMemAlloc(&p, 64 << 20), "allocation");
    work(0.1);
    char *const again[] = {argv[0], "plain", argv[2], NULL};
    execv("/proc/self/exe", again);
    return 6;
  }
  if (!strcmp(kind, "threads")) {
    count = threads();
  } else if (!strcmp(kind, "fork")) {
    pid_t child = fork();
    set_up();
    count = work(seconds);
    if (child == 0) _exit(0);
    int status = 1;
    while (waitpid(child, &status, WNOHANG) == 0) a_while();
    if (status) return 5;
  } else {
    count = work(seconds);
  }
  int clean = !strcmp(kind, "signal") ? signals_untouched() : 1;
  printf("{\"kernels\": %ld, \"clean\": %d}\n", count, clean);
  fflush(stdout);
  if (!strcmp(kind, "no-cleanup")) {
    work(0.05);
    _exit(0);
  }
  return 0;
}
