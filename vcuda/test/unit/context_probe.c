/* SPDX-License-Identifier: Apache-2.0 */
/* The probe on a machine on which no child can be started: it learns nothing, and harms no other process. */
#define _GNU_SOURCE
#include <signal.h>
#include <unistd.h>

static int kills;

static pid_t no_child(void) {
  return -1;
}
static int count_kill(pid_t pid, int number) {
  (void)pid, (void)number;
  kills++;
  return 0;
}

#define fork no_child
#define kill count_kill
#include "../../src/arbiter/context_probe.c"
#undef fork
#undef kill
#include "unit.h"

struct ar_gpu ar_gpus[AR_GPUS];
int ar_gpu_count = 2;

struct ar_nvml_process *ar_nvml_processes(int gpu, int *count) {
  (void)gpu;
  *count = 0;
  return NULL;
}

int main(void) {
  signal(SIGPIPE, SIG_IGN); /* as the arbiter does */
  ar_context_probe("libcuda.so.1");
  CHECK(kills == 0);
  for (int i = 0; i < ar_gpu_count; i++) CHECK(ar_gpus[i].context_bytes == 0);
  CHECK(dup(0) == 3); /* no pipe is left open */
  return 0;
}
