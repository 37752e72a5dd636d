/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Look functions up in the three ways and print what came back.
 *
 *   lookup < LINES     "SYMBOL VERSION FLAGS" each: cuGetProcAddress; adds the symbol and its
 * library lookup dlsym NAME... lookup next        RTLD_NEXT from here must skip this program lookup
 * cudart LIB  let a CUDA runtime make its look-ups
 */
#define _GNU_SOURCE
#define __CUDA_API_VERSION_INTERNAL 1
#include <cuda.h>

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

static void show(const char *asked, void *found) {
  Dl_info info = {0};
  if (!found || !dladdr(found, &info) || !info.dli_sname) {
    printf("%s - -\n", asked);
    return;
  }
  const char *slash = strrchr(info.dli_fname, '/');
  printf("%s %s %s\n", asked, info.dli_sname, slash ? slash + 1 : info.dli_fname);
}

/* Ours shadows libc's; RTLD_NEXT asked from here must find libc's. */
int atoi(const char *text);
int atoi(const char *text) {
  return *text ? -7 : 0;
}

static int next(void) {
  int (*other)(const char *) = (int (*)(const char *))dlsym(RTLD_NEXT, "atoi");
  int right = other && other != atoi && other("42") == 42;
  printf("{\"next\": %d, \"unknown\": %d}\n", right, dlsym(RTLD_DEFAULT, "cuNoSuchCall") == NULL);
  return !right;
}

static int cudart(const char *library) {
  void *handle = dlopen(library, RTLD_NOW);
  int (*devices)(int *) = handle ? (int (*)(int *))dlsym(handle, "cudaGetDeviceCount") : NULL;
  int count = 0;
  if (!devices) return 1;
  devices(&count); /* its verdict does not matter: it has asked for all its functions */
  return 0;
}

int main(int argc, char **argv) {
  char symbol[128], line[256];
  int version;
  unsigned long long flags;
  if (argc > 1 && !strcmp(argv[1], "next")) return next();
  if (argc > 2 && !strcmp(argv[1], "cudart")) return cudart(argv[2]);
  if (argc > 1 && !strcmp(argv[1], "dlsym")) {
    void *driver = dlopen("libcuda.so.1", RTLD_NOW);
    for (int i = 2; i < argc; i++) show(argv[i], dlsym(driver, argv[i]));
    return 0;
  }
  cuInit(0);
  while (fgets(line, sizeof line, stdin)) {
    void *found = NULL;
    CUdriverProcAddressQueryResult status;
    if (sscanf(line, "%127s %d %llu", symbol, &version, &flags) != 3) continue;
    line[strcspn(line, "\n")] = 0;
    cuGetProcAddress_v2(symbol, &found, version, flags, &status);
    show(line, found);
  }
  return 0;
}
