/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "clock_and_lock.h"
#include "time_namespace.h"

#include <linux/futex.h>
#include <pthread.h>
#include <sys/syscall.h>
#include <time.h>
#include <unistd.h>

#define SPIN_NS (20 * VC_US)

const struct vc_clock *vc_clock;
static _Atomic int64_t ahead; /* by how much this process's clock is ahead of the machine's */

void vc_machine_clock_find(void) {
  atomic_store(&ahead, vc_time_namespace_ahead());
}

uint64_t vc_machine_now(void) {
  struct timespec t;
  clock_gettime(CLOCK_MONOTONIC, &t);
  return (uint64_t)t.tv_sec * VC_S + (uint64_t)t.tv_nsec - (uint64_t)atomic_load_explicit(&ahead, memory_order_relaxed);
}

uint64_t vc_now(void) {
  return vc_clock ? vc_clock->now() : vc_machine_now();
}

static void futex_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t ns) {
  struct timespec limit = {(time_t)(ns / VC_S), (long)(ns % VC_S)};
  syscall(SYS_futex, word, FUTEX_WAIT, seen, &limit, NULL, 0);
}

/* The kernel's timers are late by about SPIN_NS, so shorter waits spin. */
void vc_wait(_Atomic uint32_t *word, uint32_t seen, uint64_t key, uint64_t deadline) {
  if (vc_clock) {
    vc_clock->wait(word, seen, key, deadline);
    return;
  }
  uint64_t now = vc_machine_now();
  if (deadline > now + SPIN_NS)
    futex_wait(word, seen, deadline - now);
  else
    while (atomic_load(word) == seen && vc_machine_now() < deadline) continue;
}

void vc_wake(_Atomic uint32_t *word, uint64_t key) {
  if (vc_clock)
    vc_clock->wake(word, key);
  else
    syscall(SYS_futex, word, FUTEX_WAKE, INT32_MAX, NULL, NULL, 0);
}

void vc_machine_sleep(uint64_t ns) {
  struct timespec span = {(time_t)(ns / VC_S), (long)(ns % VC_S)};
  nanosleep(&span, NULL);
}

static bool take(struct vc_lock *lock) {
  uint32_t free_word = 0;
  return atomic_compare_exchange_strong(&lock->word, &free_word, 1);
}

/* Most holders ask the driver a thing or two, which takes less time than to sleep and to wake up. */
static bool take_soon(struct vc_lock *lock) {
  uint64_t until = vc_machine_now() + SPIN_NS;
  do
    if (!atomic_load(&lock->word) && take(lock)) return true;
  while (vc_machine_now() < until);
  return false;
}

void vc_lock(struct vc_lock *lock) {
  int cancel;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
  /* Waits are cut into pieces, so that no lost wake-up can hang a thread. */
  if (!take(lock) && !take_soon(lock))
    while (atomic_exchange(&lock->word, 2)) futex_wait(&lock->word, 2, 10 * VC_MS);
  lock->cancel = cancel;
}

bool vc_lock_try(struct vc_lock *lock) {
  int cancel;
  pthread_setcancelstate(PTHREAD_CANCEL_DISABLE, &cancel);
  bool ok = take(lock);
  if (ok)
    lock->cancel = cancel;
  else
    pthread_setcancelstate(cancel, NULL);
  return ok;
}

void vc_unlock(struct vc_lock *lock) {
  int cancel = lock->cancel;
  if (atomic_exchange(&lock->word, 0) == 2)
    syscall(SYS_futex, &lock->word, FUTEX_WAKE, 1, NULL, NULL, 0);
  pthread_setcancelstate(cancel, NULL);
}
