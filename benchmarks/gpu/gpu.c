/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The driver-API program of the GPU suite. Its kernel spins for a given time by the GPU's own
 * timer.
 *
 *   gpu spin SECONDS US [BATCH HOST_US]  launch without end, or batches with host work in between
 *   gpu cap                              fill the slice by each allocating call until it is refused
 *   gpu hold MIB                         allocate, say so, and wait to be killed
 *   gpu each MIB COUNT                   hold so many pieces of each allocating call, and wait for a line before the next
 */
#include "../../vcuda/test/run/calls.h"

#include <string.h>
#include <time.h>
#include <unistd.h>

#define PIECE (64 * MIB)
#define PIECES 512
#define SLACK (320 * MIB) /* what a pool or the driver may keep, and a piece that no longer fits   \
                           */

static const char ptx[] = ".version 6.0\n.target sm_52\n.address_size 64\n"
                          ".visible .entry spin(.param .u64 ns)\n{\n"
                          ".reg .u64 %a, %b, %n;\n.reg .pred %p;\n"
                          "ld.param.u64 %n, [ns];\nmov.u64 %a, %globaltimer;\n"
                          "again:\nmov.u64 %b, %globaltimer;\nsub.u64 %b, %b, %a;\n"
                          "setp.lt.u64 %p, %b, %n;\n@%p bra again;\nret;\n}\n";

static double now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (double)t.tv_sec + (double)t.tv_nsec / 1e9;
}

static int spin(int argc, char **argv) {
  double seconds = atof(argv[2]), start, at;
  unsigned long long ns = strtoull(argv[3], NULL, 10) * 1000;
  int batch = argc > 4 ? atoi(argv[4]) : 1, host_us = argc > 5 ? atoi(argv[5]) : 0;
  void *params[] = {&ns};
  CUmodule module;
  CUfunction kernel;
  long count = 0;
  must(cuModuleLoadData(&module, ptx), "module");
  must(cuModuleGetFunction(&kernel, module, "spin"), "function");
  for (start = at = now(); at < start + seconds; at = now()) {
    for (int i = 0; i < batch; i++, count++)
      must(cuLaunchKernel(kernel, 1, 1, 1, 1, 1, 1, 0, NULL, params, NULL), "launch");
    if (!host_us) continue;
    must(cuCtxSynchronize(), "synchronise");
    usleep((unsigned)host_us);
  }
  must(cuCtxSynchronize(), "synchronise");
  printf("{\"kernels\": %ld, \"seconds\": %.6f}\n", count, now() - start);
  return 0;
}

/* ---- the cap, by every allocating call ---- */

static size_t spare(size_t *total) {
  size_t left;
  must(cuCtxSynchronize(), "synchronise");
  trim();
  must(cuMemGetInfo(&left, total), "info");
  return left;
}

static int cap(void) {
  static struct piece piece[PIECES];
  size_t total;
  int bad = 0;
  usleep(1000000); /* until the arbiter has seen what the context takes */
  for (unsigned k = 0; k < CALLS; k++) {
    size_t before = spare(&total);
    unsigned count = 0;
    CUresult r = CUDA_SUCCESS;
    while (count < PIECES && (r = take(&piece[count], k, PIECE / MIB)) == CUDA_SUCCESS) count++;
    size_t taken = count * PIECE;
    for (unsigned i = 0; i < count; i++) give(&piece[i]);
    size_t after = spare(&total);
    if (r == CUDA_ERROR_OUT_OF_MEMORY && taken <= before && taken + SLACK >= before &&
        after + SLACK >= before)
      continue;
    printf("%s: %zu MiB granted of %zu, then %d; %zu MiB after\n", calls[k].name,
           (size_t)(taken / MIB), (size_t)(before / MIB), (int)r, (size_t)(after / MIB));
    bad++;
  }
  printf("{\"calls\": %zu, \"bad\": %d, \"total\": %zu}\n", CALLS, bad, total);
  return 0;
}

static int each(size_t mib, unsigned count) {
  static struct piece piece[PIECES];
  char line[16];
  size_t total;
  for (unsigned k = 0; k < CALLS && count <= PIECES; k++) {
    for (unsigned n = 0; n < 2; n++) {
      printf("%s\n", n ? calls[k].name : "nothing");
      fflush(stdout);
      if (!fgets(line, sizeof line, stdin)) return 2;
      for (unsigned i = 0; i < count; i++)
        n ? give(&piece[i]) : must(take(&piece[i], k, mib), calls[k].name);
    }
    spare(&total);
  }
  return 0;
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  struct piece p;
  open_gpu();
  if (!strcmp(what, "spin") && argc > 3) return spin(argc, argv);
  if (!strcmp(what, "cap")) return cap();
  if (!strcmp(what, "each") && argc > 3)
    return each(strtoull(argv[2], NULL, 10), (unsigned)atoi(argv[3]));
  if (strcmp(what, "hold") || argc < 3) return 2;
  must(take(&p, 0, strtoull(argv[2], NULL, 10)), "hold");
  printf("holding\n");
  fflush(stdout);
  pause();
  return 0;
}
