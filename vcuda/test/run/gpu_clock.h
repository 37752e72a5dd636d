/* SPDX-License-Identifier: Apache-2.0 */
/* The GPU's clock, virtual with the fake driver, and what else that driver tells its programs. */
#ifndef GPU_CLOCK_H
#define GPU_CLOCK_H
#include <dlfcn.h>
#include <time.h>

/* NULL with another driver. */
static unsigned long (*fake_now)(void), (*fake_busy)(int, int);
static void (*fake_sleep)(unsigned long), (*fake_arrive)(void);

static inline void find_fake(void) {
  *(void **)&fake_now = dlsym(RTLD_DEFAULT, "skfNow");
  *(void **)&fake_busy = dlsym(RTLD_DEFAULT, "skfBusy");
  *(void **)&fake_sleep = dlsym(RTLD_DEFAULT, "skfSleep");
  *(void **)&fake_arrive = dlsym(RTLD_DEFAULT, "skfArrive");
}

static inline unsigned long now_ns(void) {
  struct timespec t;
  if (fake_now) return fake_now();
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (unsigned long)t.tv_sec * 1000000000ul + (unsigned long)t.tv_nsec;
}

/* Seconds. */
static inline double now(void) {
  return (double)now_ns() / 1e9;
}

static inline void sleep_ns(unsigned long ns) {
  struct timespec t = {(time_t)(ns / 1000000000ul), (long)(ns % 1000000000ul)};
  if (!ns) return;
  if (fake_sleep)
    fake_sleep(ns);
  else
    nanosleep(&t, NULL);
}

#endif
