/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Sixteen processes race for the last bytes of a cap, by every allocating call.
 *
 *   memory race ROUNDS PROCESSES CAP_MIB   the race, with this program as its own referee
 *   memory calls                           each allocating call against the cap, one by one
 *   memory hold MIB                        allocate, say so, and wait to be killed
 *   memory loop                            allocate and free without end
 *   memory info                            what the driver says there is
 */
#define _GNU_SOURCE
#include "calls.h"

#include <pthread.h>
#include <stdbool.h>
#include <stdatomic.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

struct shared {
  pthread_barrier_t barrier;
  _Atomic unsigned long held, over, granted, refused, wrong;
  unsigned long cap;
};

/* What every process has been granted is added up on the side; the sum must never pass the cap. */
static void racer(struct shared *s, int me, int rounds) {
  struct piece piece[8];
  unsigned seed = (unsigned)me * 2654435761u + 1;
  open_gpu();
  pthread_barrier_wait(&s->barrier);
  for (int round = 0; round < rounds; round++) {
    int have = 0;
    for (int i = 0; i < 2; i++) {
      unsigned long mib = 2 * (1 + (unsigned)rand_r(&seed) % 64);
      CUresult r = take(&piece[have], (unsigned)(round + me + i) % CALLS, mib);
      if (r == CUDA_SUCCESS) {
        unsigned long held = atomic_fetch_add(&s->held, mib * MIB) + mib * MIB;
        if (held > s->cap) atomic_fetch_add(&s->over, 1);
        atomic_fetch_add(&s->granted, 1);
        have++;
      } else {
        atomic_fetch_add(r == CUDA_ERROR_OUT_OF_MEMORY ? &s->refused : &s->wrong, 1);
      }
    }
    while (have--) {
      atomic_fetch_sub(&s->held, piece[have].bytes);
      give(&piece[have]);
      trim();
    }
  }
  exit(0);
}

static int race(int rounds, int processes, unsigned long cap_mib) {
  struct shared *s =
      mmap(NULL, sizeof *s, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
  pthread_barrierattr_t attr;
  pthread_barrierattr_init(&attr);
  pthread_barrierattr_setpshared(&attr, PTHREAD_PROCESS_SHARED);
  pthread_barrier_init(&s->barrier, &attr, (unsigned)processes);
  s->cap = cap_mib * MIB;
  int bad = 0, status;
  for (int i = 0; i < processes; i++)
    if (fork() == 0) racer(s, i, rounds);
  while (wait(&status) > 0) bad += status != 0;
  printf("{\"over\": %lu, \"granted\": %lu, \"refused\": %lu, \"wrong\": %lu, \"bad\": %d, "
         "\"left\": %lu}\n",
         s->over, s->granted, s->refused, s->wrong, bad, s->held);
  return 0;
}

static int each_call(void) {
  size_t before, after, total;
  struct piece p, q;
  int bad = 0;
  open_gpu();
  must(cuMemGetInfo(&before, &total), "info");
  for (unsigned call = 0; call < CALLS; call++) {
    CUresult too_much = take(&q, call, (total / MIB) + 2);
    CUresult fits = take(&p, call, total / MIB - 2), again = CUDA_SUCCESS;
    if (fits == CUDA_SUCCESS) {
      again = take(&q, (call + 1) % CALLS, 4);
      give(&p);
      trim();
    }
    cuCtxSynchronize();
    must(cuMemGetInfo(&after, &total), "info");
    bool ok = too_much == CUDA_ERROR_OUT_OF_MEMORY && fits == CUDA_SUCCESS &&
              again == CUDA_ERROR_OUT_OF_MEMORY && after == before;
    if (!ok)
      printf("%s: %d %d %d, free %zu then %zu\n", calls[call].name, too_much, fits, again, before,
             after);
    bad += !ok;
  }
  printf("{\"bad\": %d, \"total\": %zu, \"free\": %zu}\n", bad, total, after);
  return 0;
}

int main(int argc, char **argv) {
  const char *what = argc > 1 ? argv[1] : "";
  size_t spare, total, all;
  struct piece p;
  if (!strcmp(what, "race")) return race(atoi(argv[2]), atoi(argv[3]), strtoul(argv[4], NULL, 10));
  if (!strcmp(what, "calls")) return each_call();
  open_gpu();
  if (!strcmp(what, "hold")) {
    must(take(&p, 0, strtoul(argv[2], NULL, 10)), "hold");
    printf("holding\n");
    fflush(stdout);
    pause();
  }
  for (unsigned i = 0; !strcmp(what, "loop"); i++) {
    if (take(&p, i % CALLS, 64) == CUDA_SUCCESS) {
      give(&p);
      trim();
    }
  }
  must(cuMemGetInfo(&spare, &total), "info");
  must(cuDeviceTotalMem(&all, 0), "total");
  printf("{\"free\": %zu, \"total\": %zu, \"device\": %zu}\n", spare, total, all);
  return 0;
}
