/* SPDX-License-Identifier: Apache-2.0 */
/* Our dlsym, one of the three ways in which programs get the driver's functions; the others are linking (our exports)
 * and cuGetProcAddress. */
#define _GNU_SOURCE
#include "hook.h"
#include "nvml.h"
#include "symbols.h"
#include "text.h"

static void *ours(void *found, const char *name, bool nvml) {
  int function = nvml ? -1 : vc_resolve_named(name);
  if (!found) return NULL;
  if (nvml) return vc_nvml_hook(name, found);
  void *hook = vc_hooks[function];
  if (found != hook) vc_resolve_learn((unsigned)function, found);
  return hook;
}

enum whose { THEIRS, CUDA, NVML };

static enum whose whose(const char *name) {
  if (!name) return THEIRS;
  if (name[0] == 'c' && name[1] == 'u' && vc_resolve_named(name) >= 0) return CUDA;
  return vc_text_starts(name, "nvml") && vc_nvml_hook(name, NULL) ? NVML : THEIRS;
}

/* What is not exactly one of our names is passed on by a tail call: the real dlsym looks at its
 * return address to know what RTLD_NEXT means. */
VC_EXPORT void *dlsym(void *restrict handle, const char *restrict name) {
  enum whose it = whose(name);
  if (it != THEIRS) return ours(vc_resolve_dlsym()(handle, name), name, it == NVML);
  return vc_resolve_dlsym()(handle, name);
}

/* The driver's symbols have no versions, so any is accepted. musl has no such function. */
VC_EXPORT void *dlvsym(void *restrict handle, const char *restrict name, const char *restrict version) {
  static void *(*real)(void *, const char *, const char *);
  if (!real) *(void **)&real = vc_symbols_find("dlvsym");
  if (!real) return NULL;
  enum whose it = whose(name);
  if (it != THEIRS) return ours(real(handle, name, version), name, it == NVML);
  return real(handle, name, version);
}
