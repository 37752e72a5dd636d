/* SPDX-License-Identifier: Apache-2.0 */
/* cuGetProcAddress, error names and fault injection. */
#define _GNU_SOURCE
#include "api.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

int fk_missing(const char *name) {
  if (fk_setting("TRACE")) fprintf(stderr, "fake GPU: %s is not implemented\n", name);
  return CUDA_ERROR_NOT_SUPPORTED;
}

/* SLICEKEEPER_FAKE_FAULT=NAME:N:CODE makes every N-th call of NAME fail with CODE. */
int fk_fault(const char *name) {
  static _Atomic unsigned calls;
  static _Atomic int planned = -1;
  if (planned < 0) planned = fk_setting("FAULT") != NULL;
  if (!planned) return 0;
  const char *plan = fk_setting("FAULT");
  size_t length = strlen(name);
  if (!plan || strncmp(plan, name, length) || plan[length] != ':') return 0;
  char *end = NULL;
  unsigned every = (unsigned)strtoul(plan + length + 1, &end, 10);
  if (!every || (atomic_fetch_add(&calls, 1) + 1) % every) return 0;
  return *end == ':' ? atoi(end + 1) : CUDA_ERROR_UNKNOWN;
}

/* SLICEKEEPER_FAKE_LATE=MICROSECONDS: random pauses, at most so long. No thread can be cancelled in one. */
uint64_t fk_lateness; /* in nanoseconds */

__attribute__((constructor)) static void choose_lateness(void) {
  uint64_t us = fk_bytes(fk_setting("LATE"), 0);
  fk_lateness = 1000 * (us < 999999 ? us : 999999);
}

void fk_pause(void) {
  static __thread uint64_t state;
  if (!state) state = (uint64_t)(uintptr_t)&state ^ (uint64_t)getpid() << 40;
  state = state * 6364136223846793005u + 1442695040888963407u;
  struct timespec pause = {0, (long)((state >> 33) % fk_lateness)};
  syscall(SYS_nanosleep, &pause, NULL);
}

/* An allocator keeps what is freed for its own thread at first; here the next thread has it at once. */
struct unused {
  struct unused *next;
  size_t size;
};
static struct unused *unused_list;
FK_GUARD(unused_guard)

void *fk_new(size_t size) {
  pthread_mutex_lock(&unused_guard);
  struct unused **at = &unused_list, *object;
  while (*at && (*at)->size != size) at = &(*at)->next;
  if ((object = *at)) *at = object->next;
  pthread_mutex_unlock(&unused_guard);
  return object ? memset(object, 0, size) : calloc(1, size);
}

void fk_gone(void *object, size_t size) {
  struct unused *one = object;
  if (!one) return;
  pthread_mutex_lock(&unused_guard);
  *one = (struct unused){unused_list, size};
  unused_list = one;
  pthread_mutex_unlock(&unused_guard);
}

/* The newest version up to the requested one, in its per-thread variant if there is one. */
static const struct fk_proc *look_up(const char *base, int version, bool per_thread) {
  const struct fk_proc *best = NULL;
  for (unsigned i = 0; i < fk_proc_count; i++) {
    const struct fk_proc *row = &fk_procs[i];
    if (row->version > version || strcmp(row->base, base)) continue;
    if (row->per_thread && !per_thread) continue;
    if (!best || row->per_thread > best->per_thread ||
        (row->per_thread == best->per_thread && row->version >= best->version))
      best = row;
  }
  return best;
}

/* SLICEKEEPER_FAKE_LOOKUPS=FILE collects what a program asks for. */
static void note(const char *symbol, int version, cuuint64_t flags) {
  const char *path = fk_setting("LOOKUPS");
  FILE *file = path ? fopen(path, "a") : NULL;
  if (!file) return;
  fprintf(file, "%s %d %llu\n", symbol, version, (unsigned long long)flags);
  fclose(file);
}

FK_API(cuGetProcAddress_v2, (const char *symbol, void **pfn, int version, cuuint64_t flags,
                             CUdriverProcAddressQueryResult *status)) {
  if (!symbol || !pfn) return CUDA_ERROR_INVALID_VALUE;
  const struct fk_proc *row =
      look_up(symbol, version, flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM);
  *pfn = row ? row->function : NULL;
  note(symbol, version, flags);
  if (status)
    *status = row                                ? CU_GET_PROC_ADDRESS_SUCCESS
              : look_up(symbol, INT32_MAX, true) ? CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT
                                                 : CU_GET_PROC_ADDRESS_SYMBOL_NOT_FOUND;
  return row || status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

FK_RESULT(cuGetProcAddress, (const char *symbol, void **pfn, int version, cuuint64_t flags),
          cuGetProcAddress_v2(symbol, pfn, version, flags, NULL))

FK_API(cuGetErrorName, (CUresult error, const char **text)) {
  static __thread char name[32];
  snprintf(name, sizeof name, "CUDA_ERROR_%d", (int)error);
  *text = error == CUDA_SUCCESS               ? "CUDA_SUCCESS"
          : error == CUDA_ERROR_OUT_OF_MEMORY ? "CUDA_ERROR_OUT_OF_MEMORY"
                                              : name;
  return CUDA_SUCCESS;
}

FK_RESULT(cuGetErrorString, (CUresult error, const char **text), cuGetErrorName(error, text))
