/* SPDX-License-Identifier: Apache-2.0 */
/*
 * A process's life with the limiter: what starts with its first connection, and what a forked child
 * must forget. The only module that knows all others with a state.
 */
#include "memory_account.h"
#include "connection.h"
#include "context.h"
#include "context_limit.h"
#include "handle_table.h"
#include "in_flight.h"
#include "keeper_thread.h"
#include "launch.h"
#include "memory.h"
#include "module.h"
#include "nvml.h"
#include "pool.h"

static void forget_parent(void) {
  vc_account_reset();
  vc_table_clear();
  vc_context_reset();
  vc_context_limit_reset();
  vc_libraries_reset();
  vc_graph_reset();
  vc_vmm_reset();
  vc_pools_reset();
  vc_launch_reset();
  vc_nvml_reset();
}

/* A forked child has one thread, and any lock that another thread held stays locked. musl has no such function; there
 * the first call that needs the seat notices the fork. */
extern int __register_atfork(void (*)(void), void (*)(void), void (*)(void), void *)
    __attribute__((weak));
extern void *__dso_handle __attribute__((visibility("hidden")));

__attribute__((constructor)) static void watch_forks(void) {
  if (__register_atfork) __register_atfork(NULL, NULL, vc_seat_forked, &__dso_handle);
}

static void seated(struct vc_slot *slot) {
  vc_account_move(slot);
  vc_flight_join();
}

const struct vc_life vc_life = {.start = vc_keeper_start,
                                .moves = vc_flight_leave,
                                .seated = seated,
                                .forget = forget_parent};
