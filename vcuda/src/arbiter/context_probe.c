/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "context_probe.h"
#include "gpu.h"
#include "nvml_library.h"

#include <dlfcn.h>
#include <poll.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/wait.h>
#include <unistd.h>

#define READY_MS 10000

struct child {
  pid_t pid;       /* -1: it could not be started */
  int ready, done; /* its pipe to us, and ours to it */
};

/* In a child: hold a context on the one GPU that it sees, until we close our pipe. */
static void hold_context(const char *library, const char *uuid, int ready, int done) {
  int device = 0;
  void *context;
  char byte = 0;
  setenv("CUDA_VISIBLE_DEVICES", uuid, 1);
  unsetenv("LD_PRELOAD");
  void *cuda = dlopen(library, RTLD_NOW);
  int (*init)(unsigned) = cuda ? (int (*)(unsigned))dlsym(cuda, "cuInit") : NULL;
  int (*get)(int *, int) = cuda ? (int (*)(int *, int))dlsym(cuda, "cuDeviceGet") : NULL;
  int (*retain)(void **, int) =
      cuda ? (int (*)(void **, int))dlsym(cuda, "cuDevicePrimaryCtxRetain") : NULL;
  if (!init || !get || !retain || init(0) || get(&device, 0) || retain(&context, device)) exit(1);
  if (write(ready, &byte, 1) == 1 && read(done, &byte, 1) < 0) exit(1);
  exit(0);
}

static struct child start(const char *library, const char *uuid) {
  struct child c = {-1, -1, -1};
  int up[2], down[2];
  if (pipe2(up, 0)) return c;
  if (pipe2(down, 0)) {
    close(up[0]), close(up[1]);
    return c;
  }
  fflush(NULL);
  c.pid = fork();
  if (c.pid == 0) {
    close(up[0]), close(down[1]);
    hold_context(library, uuid, up[1], down[0]);
  }
  close(up[1]), close(down[0]);
  c.ready = up[0];
  c.done = down[1];
  if (c.pid < 0) close(c.ready), close(c.done);
  return c;
}

static uint64_t held_by(int gpu, pid_t pid) {
  int count;
  uint64_t bytes = 0;
  struct ar_nvml_process *list = ar_nvml_processes(gpu, &count);
  for (int i = 0; i < count; i++)
    if ((pid_t)list[i].pid == pid && list[i].memory != AR_NV_UNKNOWN) bytes += list[i].memory;
  free(list);
  return bytes;
}

void ar_context_probe(const char *library) {
  struct child child[AR_GPUS];
  char byte;
  for (int i = 0; i < ar_gpu_count; i++) child[i] = start(library, ar_gpus[i].uuid_text);
  for (int i = 0; i < ar_gpu_count; i++) {
    struct child *c = &child[i];
    struct pollfd ready = {c->ready, POLLIN, 0};
    if (c->pid < 0) continue;
    if (poll(&ready, 1, READY_MS) == 1 && read(c->ready, &byte, 1) == 1)
      ar_gpus[i].context_bytes = held_by(i, c->pid);
    else
      kill(c->pid, SIGKILL);
    /* A later child has this pipe open as well: closing it would not be seen. */
    if (write(c->done, "", 1) < 0) kill(c->pid, SIGKILL);
    close(c->ready), close(c->done);
    waitpid(c->pid, NULL, 0);
  }
}
