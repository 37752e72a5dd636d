/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Which of the driver's functions is which, and what cuGetProcAddress answers.
 *
 * The answer of the real cuGetProcAddress is mapped by pointer to the hook of exactly that version
 * and stream variant. Only if a driver hands out pointers we have never seen do the name,
 * version and flags decide, and a variant newer than our headers is refused: unhooked it would be a
 * hole.
 */
#define _GNU_SOURCE
#include "hook.h"
#include "clock_and_lock.h"
#include "symbols.h"
#include "text.h"

#include <dlfcn.h>
#include <stddef.h>
#include <stdlib.h>
#include <string.h>

#define MAP_SIZE 2048u /* power of two, several times the number of hooks */

struct vc_real vc_real;
static void **const real_slots = (void **)&vc_real;
static vc_dlsym_t *_Atomic real_dlsym;
struct map {
  const void *pointer[MAP_SIZE];
  unsigned function[MAP_SIZE];
};
static struct map *_Atomic map; /* NULL until the driver was asked; then it never changes */

/* Other threads may be storing the same pointers. */
static void *real_of(unsigned function) {
  return __atomic_load_n(&real_slots[function], __ATOMIC_ACQUIRE);
}

static CUresult not_there(void) {
  return CUDA_ERROR_NOT_FOUND;
}

vc_dlsym_t *vc_resolve_dlsym(void) {
  vc_dlsym_t *found = atomic_load_explicit(&real_dlsym, memory_order_acquire);
  if (VC_LIKELY(found != NULL)) return found;
  found = (vc_dlsym_t *)vc_symbols_find("dlsym");
  atomic_store_explicit(&real_dlsym, found, memory_order_release);
  return found;
}

/* At the start, before there is a second thread: the search holds a lock of the loader, and the C
 * library does not free that one in a forked child. */
__attribute__((constructor)) static void resolve_early(void) {
  vc_resolve_dlsym();
}

void *vc_resolve_symbol(const char *library, const char *symbol) {
  vc_dlsym_t *look_up = vc_resolve_dlsym();
  void *handle = dlopen(library, RTLD_LAZY | RTLD_NOLOAD);
  return look_up && handle ? look_up(handle, symbol) : NULL;
}

static unsigned hash(const void *pointer) {
  return (unsigned)(((uintptr_t)pointer >> 4) * 2654435761u) & (MAP_SIZE - 1);
}

static void map_add(struct map *m, const void *pointer, unsigned function) {
  unsigned i = hash(pointer);
  while (m->pointer[i] && m->pointer[i] != pointer) i = (i + 1) & (MAP_SIZE - 1);
  if (m->pointer[i]) return;
  m->function[i] = function;
  m->pointer[i] = pointer;
}

static void seed_from_lookups(struct map *m) {
  __typeof__(&cuGetProcAddress_v2) get = VC_KNOWN(cuGetProcAddress_v2);
  for (unsigned i = 0; get && i < vc_lookup_count; i++) {
    const struct vc_lookup *row = &vc_lookups[i];
    void *pointer = NULL;
    CUdriverProcAddressQueryResult status;
    cuuint64_t flags = row->per_thread ? CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM
                                       : CU_GET_PROC_ADDRESS_LEGACY_STREAM;
    if (get(row->base, &pointer, row->version, flags, &status) != CUDA_SUCCESS || !pointer)
      continue;
    if (!real_of(row->function))
      __atomic_store_n(&real_slots[row->function], pointer, __ATOMIC_RELEASE);
    map_add(m, pointer, row->function);
  }
}

/* Learn the driver's pointers, once it is loaded. Several threads may do so at once, and get the
 * same: the first map that is finished stays. A lock held over calls of the driver and of the
 * loader could be waited for by a thread that they wait for. */
static bool seed(void) {
  if (VC_LIKELY(atomic_load_explicit(&map, memory_order_acquire) != NULL)) return true;
  vc_dlsym_t *look_up = vc_resolve_dlsym();
  void *driver = dlopen("libcuda.so.1", RTLD_LAZY | RTLD_NOLOAD);
  struct map *m = driver && look_up ? calloc(1, sizeof *m) : NULL, *first = NULL;
  if (!m) return false;
  for (unsigned i = 0; i < VC_FN_COUNT; i++) {
    void *pointer = look_up(driver, vc_names[i]);
    if (!pointer) continue;
    __atomic_store_n(&real_slots[i], pointer, __ATOMIC_RELEASE);
    if (i < VC_FN_HOOKS) map_add(m, pointer, i);
  }
  seed_from_lookups(m);
  if (!atomic_compare_exchange_strong(&map, &first, m)) free(m);
  return true;
}

void *vc_resolve_function(unsigned function) {
  void *found = seed() ? real_of(function) : NULL;
  return found ? found : (void *)not_there;
}

void *vc_resolve_hook(const void *driver_pointer) {
  if (!seed()) return NULL;
  const struct map *m = atomic_load(&map);
  unsigned i = hash(driver_pointer);
  while (m->pointer[i] && m->pointer[i] != driver_pointer) i = (i + 1) & (MAP_SIZE - 1);
  return m->pointer[i] ? vc_hooks[m->function[i]] : NULL;
}

/* Before the driver can be asked for all of its functions. */
void vc_resolve_learn(unsigned function, void *found) {
  if (!seed()) __atomic_store_n(&real_slots[function], found, __ATOMIC_RELEASE);
}

/* The names are sorted by the generator. */
int vc_resolve_named(const char *name) {
  int low = 0, high = VC_FN_HOOKS - 1;
  while (low <= high) {
    int middle = (low + high) / 2, order = vc_text_order(name, vc_names[middle]);
    if (!order) return middle;
    if (order < 0)
      high = middle - 1;
    else
      low = middle + 1;
  }
  return -1;
}

/* Did the caller get a function that we know, or one that lies outside our headers? */
static bool known_base(const char *base) {
  for (unsigned i = 0; i < vc_lookup_count; i++)
    if (!strcmp(vc_lookups[i].base, base)) return true;
  return false;
}

static void *hook_by_name(const char *base, int version, bool per_thread) {
  const struct vc_lookup *best = NULL;
  for (unsigned i = 0; i < vc_lookup_count; i++) {
    const struct vc_lookup *row = &vc_lookups[i];
    if (row->version > version || row->per_thread > per_thread || strcmp(row->base, base)) continue;
    if (!best || row->per_thread > best->per_thread ||
        (row->per_thread == best->per_thread && row->version >= best->version))
      best = row;
  }
  return best ? vc_hooks[best->function] : NULL;
}

/* False if the answer must be withheld. */
static bool take_over(const char *base, void **pfn, int version, cuuint64_t flags) {
  if (!pfn || !*pfn) return true;
  void *hook = vc_resolve_hook(*pfn);
  if (!hook && known_base(base)) {
    bool per_thread = flags & CU_GET_PROC_ADDRESS_PER_THREAD_DEFAULT_STREAM;
    if (version <= CUDA_VERSION) hook = hook_by_name(base, version, per_thread);
    if (!hook) {
      *pfn = NULL;
      return false;
    }
  }
  if (hook) *pfn = hook;
  return true;
}

VC_HOOK CUresult cuGetProcAddress_v2(const char *symbol, void **pfn, int version, cuuint64_t flags,
                                     CUdriverProcAddressQueryResult *status) {
  CUresult r = VC_CALL(cuGetProcAddress_v2)(symbol, pfn, version, flags, status);
  if (r != CUDA_SUCCESS || take_over(symbol, pfn, version, flags)) return r;
  if (status) *status = CU_GET_PROC_ADDRESS_VERSION_NOT_SUFFICIENT;
  return status ? CUDA_SUCCESS : CUDA_ERROR_NOT_FOUND;
}

VC_HOOK CUresult cuGetProcAddress(const char *symbol, void **pfn, int version, cuuint64_t flags) {
  CUresult r = VC_CALL(cuGetProcAddress)(symbol, pfn, version, flags);
  if (r != CUDA_SUCCESS || take_over(symbol, pfn, version, flags)) return r;
  return CUDA_ERROR_NOT_FOUND;
}
