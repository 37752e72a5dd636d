/* SPDX-License-Identifier: Apache-2.0 */
/* A library that is loaded while a context is made is charged in it once, whatever each of the two sees of the other. */
#define _GNU_SOURCE
#include "handle_table.h"

static struct vc_item *list_meanwhile(enum vc_kind kind, uint32_t *count);
#define vc_table_list list_meanwhile
#include "../../src/module.c"
#undef vc_table_list
#include "context_memory.h"
#include "unit.h"

#include <pthread.h>
#include <time.h>

struct vc_real vc_real;
struct vc_seat vc_seat;
static pthread_t other;
static bool make_context;

/* ---- what a module needs of the others ---- */

bool vc_seat_ready(void) {
  return true;
}
bool vc_memory_begin(uint64_t bytes) {
  return bytes;
}
CUresult vc_memory_end(CUresult r, enum vc_kind kind, uint64_t key, uint64_t bytes) {
  (void)kind, (void)key, (void)bytes;
  return r;
}
bool vc_memory_take(uint64_t bytes, const void *context) {
  return bytes && context;
}
bool vc_pools_reserve(uint64_t bytes) {
  (void)bytes;
  return true;
}
void vc_book(uint64_t bytes) {
  (void)bytes;
}
void vc_give_back(const struct vc_item *item) {
  (void)item;
}
void vc_account_rename(const void *from, const void *to) {
  (void)from, (void)to;
}
void vc_context_limit_forget(const void *image) {
  (void)image;
}
void vc_pools_settle(void) {
}

static CUresult load_data(CUlibrary *out, const void *image, CUjit_option *jo, void **jv, unsigned jn,
                          CUlibraryOption *lo, void **lv, unsigned ln) {
  (void)image, (void)jo, (void)jv, (void)jn, (void)lo, (void)lv, (void)ln;
  *out = (CUlibrary)0x100;
  return CUDA_SUCCESS;
}
static CUresult unload(CUlibrary library) {
  (void)library;
  return CUDA_SUCCESS;
}
void *vc_resolve_function(unsigned function) {
  return function == VC_FN_cuLibraryLoadData ? (void *)load_data : (void *)unload;
}

/* ---- the two ---- */

static void *begin_context(void *unused) {
  (void)unused;
  return vc_context_begin();
}

/* The library is noted, and about to look for contexts: now one is made, if it need not wait for the library. */
static struct vc_item *list_meanwhile(enum vc_kind kind, uint32_t *count) {
  struct timespec until;
  if (make_context) {
    make_context = false;
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_nsec += 100000000;
    until.tv_sec += until.tv_nsec / 1000000000;
    until.tv_nsec %= 1000000000;
    CHECK(!pthread_create(&other, NULL, begin_context, NULL));
    void *place;
    if (pthread_timedjoin_np(other, &place, &until) == 0) other = 0;
  }
  return vc_table_list(kind, count);
}

static unsigned charged(void) {
  uint32_t count;
  free(vc_table_list(VC_MODULE, &count));
  return count;
}

int main(void) {
  static struct vc_policy policy = {.context_bytes = 1};
  CUlibrary library;
  vc_seat.policy = &policy;
  make_context = true;
  CHECK(cuLibraryLoadData(&library, ".global .b8 big[1000];", NULL, NULL, 0, NULL, NULL, 0) == CUDA_SUCCESS);
  if (other) pthread_join(other, NULL);
  CHECK(charged() == 1);
  CHECK(vc_context_begin() && charged() == 2);
  CHECK(cuLibraryUnload(library) == CUDA_SUCCESS && charged() == 0);
  return 0;
}
