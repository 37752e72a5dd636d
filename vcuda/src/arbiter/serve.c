/* SPDX-License-Identifier: Apache-2.0 */
#define _GNU_SOURCE
#include "cli.h"
#include "control.h"
#include "event_loop.h"
#include "nvml_library.h"
#include "context_probe.h"
#include "seat_socket.h"
#include "seats.h"
#include "unlimited_processes.h"

#include <fcntl.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <unistd.h>

static int fail(const char *why) {
  fprintf(stderr, "arbiter: %s\n", why);
  return 1;
}

static bool only_one(void) {
  char path[AR_PATH];
  if (!ar_path(path, "lock")) return false;
  int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
  return fd >= 0 && flock(fd, LOCK_EX | LOCK_NB) == 0; /* held until the process ends */
}

/* A fake GPU's world is a file in the arbiter's folder, unless the caller has one already. An arbiter that finds seats
 * goes on with the world that it finds; without seats it starts a new one. */
static void fake_world(void) {
  char path[AR_PATH];
  if (!ar_path(path, "world")) return;
  if (!ar_state_each(NULL)) unlink(path);
  setenv("SLICEKEEPER_FAKE_WORLD", path, 0);
}

/* The folder may be emptied while we serve: without its sockets no seat can be changed or taken. Processes that have a
 * seat by then do not need the folder. */
static void look_after_folder(void) {
  char path[AR_PATH];
  const char *why;
  if (!ar_path(path, "control.sock") || access(path, F_OK) == 0) return;
  if (!ar_folder_make() || !only_one() || !ar_control_open(&why)) return;
  ar_seat_put_back();
  fprintf(stderr, "arbiter: the folder was emptied, and is filled again\n");
}

static void tick(uint64_t now) {
  look_after_folder();
  ar_seat_tick(now);
  ar_seat_socket_tick(now);
  ar_control_tick(now);
  ar_unlimited_tick(now);
}

static void *wait_for_signal(void *set) {
  int got;
  sigwait(set, &got);
  ar_loop_stop();
  return NULL;
}

static bool open_gpus(bool fake, const char **why) {
  char library[AR_PATH] = "libnvidia-ml.so.1", cuda[AR_PATH] = "libcuda.so.1";
  if (fake) {
    fake_world();
    *why = "the path of this program is too long for it to find the fake GPU";
    if (!ar_beside(library, "fake/libnvidia-ml.so.1") || !ar_beside(cuda, "fake/libcuda.so.1")) return false;
  }
  if (!ar_nvml_open(library, why)) return false;
  ar_context_probe(cuda);
  return true;
}

static bool busy(void) {
  return ar_seat_first() != NULL;
}

int ar_serve(const struct ar_options *o) {
  static sigset_t set;
  const char *why = "no such rule: slicekeeper, kubegpu or gemini";
  pthread_t waiter;
  ar_rule *rule = ar_rule_named(o->rule ? o->rule : "slicekeeper");
  if (!rule) return fail(why);
  if (!ar_folder_open(ar_folder_of(o), &why)) return fail(why);
  if (!only_one()) return fail("another arbiter serves this folder");
  sigemptyset(&set);
  sigaddset(&set, SIGTERM);
  sigaddset(&set, SIGINT);
  pthread_sigmask(SIG_BLOCK, &set, NULL);
  signal(SIGPIPE, SIG_IGN);
  if (!open_gpus(o->fake, &why)) return fail(why);
  for (int i = 0; i < ar_gpu_count; i++)
    if (!ar_gpu_start(&ar_gpus[i], rule)) return fail("a GPU's thread cannot be started");
  if (!ar_loop_start(&why)) return fail(why);
  ar_seat_restore(ar_seat_socket_open);
  if (!ar_control_open(&why)) return fail(why);
  if (pthread_create(&waiter, NULL, wait_for_signal, &set)) return fail("no thread for signals");
  pthread_detach(waiter);
  ar_loop_run(tick, busy, o->idle_exit);
  for (int i = 0; i < ar_gpu_count; i++) ar_gpu_stop(&ar_gpus[i]);
  ar_seat_keep_all();
  return 0;
}
