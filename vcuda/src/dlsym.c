/* SPDX-License-Identifier: Apache-2.0 */
/* The dlsym of ours, one of the three ways by which programs ask for the driver's functions; the
 * others are linking (our exports) and cuGetProcAddress. */
#define _GNU_SOURCE
#include "hook.h"
#include "nvml.h"
#include "text.h"

static void *dlsym_ours(void *handle, const char *name, bool nvml) {
  int function = nvml ? -1 : vc_resolve_named(name);
  void *found = vc_resolve_dlsym()(handle, name);
  if (!found) return NULL;
  if (nvml) return vc_nvml_hook(name, found);
  void *hook = vc_hooks[function];
  if (found != hook) vc_resolve_learn((unsigned)function, found);
  return hook;
}

/* What is not exactly one of our names is passed on by a tail call: the real dlsym looks at its
 * return address to know what RTLD_NEXT means. */
VC_EXPORT void *dlsym(void *restrict handle, const char *restrict name) {
  if (!name) return vc_resolve_dlsym()(handle, name);
  if (name[0] == 'c' && name[1] == 'u' && vc_resolve_named(name) >= 0)
    return dlsym_ours(handle, name, false);
  if (vc_text_starts(name, "nvml") && vc_nvml_hook(name, NULL)) return dlsym_ours(handle, name, true);
  return vc_resolve_dlsym()(handle, name);
}
