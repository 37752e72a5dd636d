/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A program that uses the GPU as a deep-learning framework does: steps of some hundred launches of forty functions, of
 * 1 to 160 us, in streams' order. The host needs its time for each launch, and more for the optimizer; it is ahead of
 * the GPU between these, and waits for it at the end of a step. Alone, the GPU idles for about 5 % of a step.
 *
 *   framework --seconds N [--arrive]
 */
#define _GNU_SOURCE
#include <stdbool.h>
#include <string.h>
#include <unistd.h>

#include "gpu_clock.h"
#include "program.h"

#define LAUNCHES 400
#define FUNCTIONS 40
#define LAUNCH_NS 15000ul /* of the host */
#define OPTIMIZER 360     /* the first launch of the optimizer */
#define OPTIMIZER_NS 2500000ul

/* Short ones are the most frequent. */
static unsigned long us_of(int function) {
  return 1 + (unsigned long)function * (unsigned long)function / 10;
}

int main(int argc, char **argv) {
  CUfunction function[FUNCTIONS];
  char name[32];
  double seconds = 1;
  bool arrive = false;
  for (int i = 1; i < argc; i++) {
    arrive |= !strcmp(argv[i], "--arrive");
    if (!strcmp(argv[i], "--seconds") && i + 1 < argc) seconds = atof(argv[i + 1]);
  }
  find_fake();
  open_gpu();
  for (int i = 0; i < FUNCTIONS; i++) {
    snprintf(name, sizeof name, "spin_%luus", us_of(i) + (unsigned long)(i < 6) * (unsigned long)i);
    function[i] = kernel_named(name);
  }
  if (arrive && fake_arrive) fake_arrive();
  unsigned long start = now_ns(), end = start + (unsigned long)(seconds * 1e9), at = start;
  long steps = 0;
  for (; at < end; at = now_ns(), steps++) {
    for (int i = 0; i < LAUNCHES; i++) {
      sleep_ns(i == OPTIMIZER ? OPTIMIZER_NS : LAUNCH_NS);
      must(cuLaunchKernel(function[i * 7 % FUNCTIONS], 1, 1, 1, 1, 1, 1, 0, NULL, NULL, NULL), "launch");
    }
    must(cuCtxSynchronize(), "synchronise");
  }
  unsigned long busy = fake_busy ? fake_busy(0, getpid()) : 0;
  printf("{\"wall_ns\": %lu, \"busy_ns\": %lu, \"steps\": %ld}\n", at - start, busy, steps);
  return 0;
}
