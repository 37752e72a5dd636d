/* SPDX-License-Identifier: Apache-2.0 */
/*
 * Calls with missing arguments: each function that is named on a line of the standard input is called with zeros, but
 * for a pointer to zeros as the argument of the number that follows the name (0: none). Prints a line for each: name,
 * number and what came back, or "crash", which is its last.
 *
 *   zeros <LIST
 */
#define _GNU_SOURCE
#include "program.h"

#include <dlfcn.h>
#include <setjmp.h>
#include <signal.h>
#include <string.h>
#include <unistd.h>

typedef CUresult any(long, long, long, long, long, long, long, long, long, long, long, long);

static sigjmp_buf back;
static char name[128], page[4096];

static void crashed(int signal) {
  siglongjmp(back, signal);
}

static void hung(int signal) {
  (void)signal;
  fprintf(stderr, "%s hangs\n", name);
  _exit(1);
}

/* Each call finds the same: an earlier one may have popped or reset the context. */
static void make_ready(void) {
  CUcontext context = NULL;
  cuDevicePrimaryCtxRetain(&context, 0);
  cuCtxSetCurrent(context);
}

static void call(any *function, int number) {
  long a[12] = {0};
  memset(page, 0, sizeof page);
  if (number) a[number - 1] = (long)page;
  int signal = sigsetjmp(back, 1);
  if (signal) {
    printf("%s %d crash\n", name, number);
    fflush(stdout);
    _exit(0); /* it may hold a lock */
  }
  CUresult r = function(a[0], a[1], a[2], a[3], a[4], a[5], a[6], a[7], a[8], a[9], a[10], a[11]);
  printf("%s %d %d\n", name, number, (int)r);
}

int main(void) {
  struct sigaction crash = {.sa_handler = crashed}, late = {.sa_handler = hung};
  int number;
  must(cuInit(0), "init");
  sigaction(SIGSEGV, &crash, NULL);
  sigaction(SIGBUS, &crash, NULL);
  sigaction(SIGFPE, &crash, NULL);
  sigaction(SIGALRM, &late, NULL);
  void *driver = dlopen("libcuda.so.1", RTLD_NOW);
  while (scanf("%127s %d", name, &number) == 2) {
    any *function;
    *(void **)&function = dlsym(driver, name);
    if (!function) continue;
    alarm(20);
    make_ready();
    call(function, number);
    fflush(stdout);
  }
  return 0;
}
