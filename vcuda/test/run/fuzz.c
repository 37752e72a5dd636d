/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Noise for the look-ups: names, versions and flags at random, missing pointers, and addresses that
 * were never allocated. The limiter is linked in, so that it runs under the sanitizers.
 *
 *   linked-fuzz SECONDS SEED
 *
 * Whatever is asked, the answer must carry the name of the driver's own answer, hooked or not; and
 * unknown pointers that a driver hands out must be hooked by their name or withheld.
 */
#define _GNU_SOURCE
#include "hook.h"
#include "handle_table.h"

#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#define LONG 70000

typedef CUresult get_t(const char *, void **, int, cuuint64_t, CUdriverProcAddressQueryResult *);

void *vc_unused_dlsym(void *handle, const char *name);

static get_t *driver;
static unsigned state;
static unsigned long asked, hooked, withheld;
static int strange; /* the driver hands out unknown pointers */
static int handed_out; /* it did so */
static char name[LONG + 64];

static unsigned roll(unsigned below) {
  state = state * 1664525u + 1013904223u;
  return (state >> 8) % below;
}

static void complain(const char *what, int version, unsigned long flags) {
  fprintf(stderr, "fuzz: %s: %.80s %d %lu\n", what, name, version, flags);
  exit(1);
}

static const char *symbol_of(void *pointer) {
  Dl_info info;
  return pointer && dladdr(pointer, &info) && info.dli_sname ? info.dli_sname : "-";
}

static void unseen(void) {}

/* The driver, or one that is newer than all headers. */
static CUresult newer(const char *base, void **pfn, int version, cuuint64_t flags,
                      CUdriverProcAddressQueryResult *status) {
  CUresult r = driver(base, pfn, version, flags, status);
  handed_out = strange && r == CUDA_SUCCESS && pfn && *pfn;
  if (handed_out) *pfn = (void *)unseen;
  return r;
}

static void make_name(void) {
  const char *known =
      roll(4) ? vc_lookups[roll(vc_lookup_count)].base : vc_names[roll(VC_FN_COUNT)];
  unsigned length = (unsigned)strlen(known);
  memcpy(name, known, length + 1);
  switch (roll(6)) {
  case 0:
    name[roll(length + 1)] = (char)roll(256);
    break;
  case 1:
    name[roll(length)] = 0;
    break;
  case 2:
    strcpy(name + length, roll(2) ? "_v2" : "_ptsz");
    break;
  case 3:
    if (roll(20)) break;
    length = roll(LONG);
    for (unsigned i = 0; i < length; i++) name[i] = (char)(1 + roll(255));
    name[length] = 0;
    break;
  default:
    break;
  }
}

static int make_version(void) {
  static const int odd[] = {0, -1, INT32_MAX, INT32_MIN, 1, CUDA_VERSION, CUDA_VERSION + 1};
  return roll(4) ? 1000 * (int)roll(15) + 10 * (int)roll(10) : odd[roll(7)];
}

static cuuint64_t make_flags(void) {
  return roll(4) ? roll(3) : (cuuint64_t)roll(1u << 24) << roll(40);
}

/* Known name and version: its hook; else nothing may come through. */
static void judge_strange(void *ours, void *theirs, int version, cuuint64_t flags) {
  int known = 0;
  for (unsigned i = 0; i < vc_lookup_count; i++) known |= !strcmp(vc_lookups[i].base, name);
  if (!known) {
    if (ours != (void *)unseen) complain("not passed on", version, flags);
  } else if (version > CUDA_VERSION) {
    if (ours) complain("not withheld", version, flags);
    withheld++;
  } else if (ours && strcmp(symbol_of(ours), symbol_of(theirs))) {
    complain("hooked as another", version, flags);
  } else if (ours == (void *)unseen) {
    complain("a hole", version, flags);
  }
}

static void look_up(void) {
  CUdriverProcAddressQueryResult status = 0, expected = 0;
  void *ours = NULL, *theirs = NULL;
  int version = make_version(), old = !roll(4);
  cuuint64_t flags = make_flags();
  make_name();
  strange = !roll(4);
  handed_out = 0;
  vc_real.cuGetProcAddress_v2 = newer; /* another thread that is late to learn the pointers stores the driver's own */
  CUresult r = old ? cuGetProcAddress(name, &ours, version, flags)
                   : cuGetProcAddress_v2(name, &ours, version, flags, &status);
  CUresult s = driver(name, &theirs, version, flags, old ? NULL : &expected);
  asked++;
  hooked += theirs && vc_resolve_hook(theirs) != NULL;
  if (handed_out) {
    judge_strange(ours, theirs, version, flags);
    return;
  }
  /* The first form has no strange driver behind it. */
  if (r != s || strcmp(symbol_of(ours), symbol_of(theirs)) || status != expected)
    complain("another answer", version, flags);
}

static void missing_pointers(void) {
  CUdriverProcAddressQueryResult status;
  void *found = NULL;
  make_name();
  strange = 0;
  cuGetProcAddress_v2(NULL, &found, 12000, 0, &status);
  cuGetProcAddress_v2(name, NULL, 12000, 0, &status);
  cuGetProcAddress_v2(name, &found, 12000, 0, NULL);
  cuGetProcAddress(NULL, NULL, 0, 0);
}

static void by_name(void *library) {
  make_name();
  void *ours = vc_unused_dlsym(library, name);
  if (strcmp(symbol_of(ours), symbol_of(dlsym(library, name)))) complain("dlsym", 0, 0);
}

/* Nothing was allocated: whatever is freed, the table must neither find it nor fall over it. */
static void free_nothing(void) {
  CUdeviceptr address = roll(3) ? ((CUdeviceptr)roll(1u << 24) << roll(41)) + roll(512) : 0;
  struct vc_item item;
  cuMemFree_v2(address);
  cuMemFreeAsync(address, NULL);
  cuMemFreeHost((void *)address);
  if (vc_table_find(VC_PLAIN, address, &item)) complain("in the table", 0, address);
}

int main(int argc, char **argv) {
  double seconds = argc > 1 ? atof(argv[1]) : 1;
  CUdevice device;
  CUcontext context;
  state = argc > 2 ? (unsigned)atoi(argv[2]) : 1;
  void *library = dlopen("libcuda.so.1", RTLD_NOW);
  *(void **)&driver = library ? dlsym(library, "cuGetProcAddress_v2") : NULL;
  if (!driver || cuInit(0) || cuDeviceGet(&device, 0) ||
      cuDevicePrimaryCtxRetain(&context, device) || cuCtxSetCurrent(context))
    return 2;
  time_t end = time(NULL) + (time_t)seconds + 1;
  while (time(NULL) < end)
    for (int i = 0; i < 50; i++) {
      look_up();
      by_name(library);
      if (!(i % 10)) missing_pointers(), free_nothing();
    }
  printf("{\"asked\": %lu, \"hooked\": %lu, \"withheld\": %lu}\n", asked, hooked, withheld);
  return 0;
}
