/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the driver takes for a context, with the variables of the libraries in it. It is taken from the cap before; what
 * it really was the arbiter sees later, in NVML's figures.
 */
#include "overhead.h"
#include "connection.h"
#include "memory_account.h"
#include "module.h"
#include "pool.h"

static bool note_context(uint64_t key, void *owner, uint64_t bytes) {
  return vc_table_put((struct vc_item){.key = key, .bytes = bytes, .owner = owner, .kind = VC_CONTEXT});
}

/* Note the context first, then look for libraries, which do it the other way round: if a context and a library are made
 * at the same time, at least one of them sees the other. */
bool vc_context_begin(struct vc_making *m) {
  uint64_t place = vc_table_place();
  m->place = (void *)(uintptr_t)place;
  m->bytes = vc_granules(atomic_load(&vc_seat.policy->context_bytes));
  if (!vc_reserve(m->bytes)) {
    vc_pools_settle();
    if (!vc_reserve(m->bytes)) return false;
  }
  if (note_context(place, m->place, m->bytes) && vc_libraries_into(m->place, false)) return true;
  vc_context_end(CUDA_ERROR_OUT_OF_MEMORY, NULL, m);
  return false;
}

void vc_context_end(CUresult result, CUcontext context, struct vc_making *m) {
  /* A primary context that was there already is charged already. The place's own entry is one of those swept. */
  if (result != CUDA_SUCCESS || vc_context_known(context)) {
    vc_table_sweep(m->place, 0, vc_give_back);
    return;
  }
  vc_context_rename(m->place, context);
}

void vc_context_rename(void *from, void *to) {
  vc_table_rename(VC_CONTEXT, (uint64_t)(uintptr_t)from, (uint64_t)(uintptr_t)to);
  vc_account_rename(from, to);
  vc_table_hand_over(from, to);
}

bool vc_context_known(CUcontext context) {
  struct vc_item item;
  return vc_table_find(VC_CONTEXT, (uint64_t)(uintptr_t)context, &item);
}

void vc_context_again(CUcontext context) {
  uint64_t bytes = vc_granules(atomic_load(&vc_seat.policy->context_bytes)), place = vc_table_place();
  struct vc_making m = {bytes, (void *)(uintptr_t)place};
  vc_book(bytes);
  note_context(place, m.place, bytes);
  if (!vc_context_known(context)) vc_libraries_into(m.place, true);
  vc_context_end(CUDA_SUCCESS, context, &m);
}
