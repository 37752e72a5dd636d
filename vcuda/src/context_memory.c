/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the driver takes for a context, with the variables of the libraries in it. It is taken from the cap before; what
 * it really was the arbiter sees later, in NVML's figures.
 */
#include "context_memory.h"
#include "bytes.h"
#include "connection.h"
#include "memory_account.h"
#include "module.h"
#include "pool.h"

static uint64_t context_bytes(void) {
  return vc_granules(atomic_load(&vc_seat.policy->context_bytes));
}

static bool note_context(void *place, uint64_t bytes) {
  uint64_t key = (uint64_t)(uintptr_t)place;
  return vc_table_put((struct vc_item){.key = key, .bytes = bytes, .owner = place, .kind = VC_CONTEXT});
}

/* Give back all that is held in a context or in its place, and what is noted of it. */
static void give_all(const void *context) {
  vc_lock(&vc_libraries_lock);
  vc_table_sweep(context, 0, vc_give_back);
  vc_unlock(&vc_libraries_lock);
}

void *vc_context_begin(void) {
  void *place = (void *)(uintptr_t)vc_table_place();
  uint64_t bytes = context_bytes();
  if (!vc_pools_reserve(bytes)) return NULL;
  vc_lock(&vc_libraries_lock);
  bool ok = note_context(place, bytes) && vc_libraries_into(place, false);
  vc_unlock(&vc_libraries_lock);
  if (ok) return place;
  give_all(place);
  return NULL;
}

void vc_context_end(CUresult result, CUcontext context, void *place) {
  /* A primary context that was there already is charged already. */
  if (result != CUDA_SUCCESS || vc_context_known(context))
    give_all(place);
  else
    vc_context_rename(place, context);
}

void vc_context_rename(void *from, void *to) {
  vc_lock(&vc_libraries_lock);
  vc_table_rename(VC_CONTEXT, (uint64_t)(uintptr_t)from, (uint64_t)(uintptr_t)to);
  vc_account_rename(from, to);
  vc_table_hand_over(from, to);
  vc_unlock(&vc_libraries_lock);
}

bool vc_context_known(CUcontext context) {
  struct vc_item item;
  return vc_table_find(VC_CONTEXT, (uint64_t)(uintptr_t)context, &item);
}

void vc_context_again(CUcontext context) {
  void *place = (void *)(uintptr_t)vc_table_place();
  uint64_t bytes = context_bytes();
  vc_book(bytes);
  vc_lock(&vc_libraries_lock);
  note_context(place, bytes);
  if (!vc_context_known(context)) vc_libraries_into(place, true);
  vc_unlock(&vc_libraries_lock);
  vc_context_end(CUDA_SUCCESS, context, place);
}

void vc_context_forget(CUcontext context) {
  give_all(context);
  vc_pools_settle();
}
