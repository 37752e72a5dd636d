/* SPDX-License-Identifier: Apache-2.0 */
/* How a driver call is taken over: the hooks' table is generated from cuda.h, see hookgen.py. */
#ifndef VC_HOOK_H
#define VC_HOOK_H

#define __CUDA_API_VERSION_INTERNAL 1
#include "cuda.h"
#include "interop.h"

#include "hooks.gen.h"
#include "clock_and_lock.h"

#include <stdbool.h>
#include <stdint.h>

#define VC_EXPORT __attribute__((visibility("default")))
/* Before a function that takes the place of the driver's: hookgen.py finds it by this word. */
#define VC_HOOK VC_EXPORT

/* The driver's own function; found at the first call, NULL before. */
#define VC_KNOWN(name) __atomic_load_n(&vc_real.name, __ATOMIC_ACQUIRE)
#define VC_REAL(name)                                                                              \
  ({                                                                                               \
    __typeof__(&name) known_ = VC_KNOWN(name);                                                     \
    VC_LIKELY(known_ != NULL) ? known_ : (__typeof__(&name))vc_resolve_function(VC_FN_##name);     \
  })
#define VC_CALL(name) (VC_REAL(name))

struct vc_lookup {
  const char *base;
  int version, per_thread;
  unsigned function;
};

extern struct vc_real vc_real;
extern const char *const vc_names[];
extern void *const vc_hooks[];
extern const struct vc_lookup vc_lookups[];
extern const unsigned vc_lookup_count;

/* Never NULL: what the driver lacks answers CUDA_ERROR_NOT_FOUND. */
void *vc_resolve_function(unsigned function);
/* A symbol of an already loaded library, past our own dlsym. */
void *vc_resolve_symbol(const char *library, const char *symbol);
/* The C library's own dlsym. */
typedef void *vc_dlsym_t(void *handle, const char *name);
vc_dlsym_t *vc_resolve_dlsym(void);
void vc_resolve_learn(unsigned function, void *found);
/* The hook of exactly this name, or -1. */
int vc_resolve_named(const char *name);
/* The hook for a pointer of the driver's, or NULL. */
void *vc_resolve_hook(const void *driver_pointer);

static inline CUstream vc_per_thread(CUstream stream) {
  return stream ? stream : CU_STREAM_PER_THREAD;
}

#endif
