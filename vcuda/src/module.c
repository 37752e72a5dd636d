/* SPDX-License-Identifier: Apache-2.0 */
/*
 * The global variables of modules and libraries. A module's are in the context that was current when it was loaded. A
 * library is loaded into every context, those made later too, each with its own variables: at once, or when it is first
 * used there.
 */
#include "module.h"
#include "bytes.h"
#include "connection.h"
#include "context_limit.h"
#include "memory.h"
#include "memory_account.h"
#include "module_image.h"

#include <stdlib.h>

/* ---- modules: of the context that is current ---- */

static CUresult load(CUmodule *out, const void *image, uint64_t bytes) {
  VC_TAKING(VC_MODULE, *out, bytes, VC_CALL(cuModuleLoadData)(out, image));
}

/* The driver gets what we have read: the file may be replaced meanwhile. */
VC_HOOK CUresult cuModuleLoad(CUmodule *out, const char *path) {
  uint64_t bytes;
  if (!path) return VC_CALL(cuModuleLoad)(out, path);
  void *image = vc_image_read(path, &bytes);
  if (!image) return CUDA_ERROR_FILE_NOT_FOUND;
  CUresult r = load(out, image, bytes);
  free(image);
  return r;
}
VC_HOOK CUresult cuModuleLoadData(CUmodule *out, const void *image) {
  return load(out, image, vc_image_globals(image));
}
VC_HOOK CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned n, CUjit_option *o, void **v) {
  VC_TAKING(VC_MODULE, *out, vc_image_globals(image), VC_CALL(cuModuleLoadDataEx)(out, image, n, o, v));
}
VC_HOOK CUresult cuModuleLoadFatBinary(CUmodule *out, const void *image) {
  VC_TAKING(VC_MODULE, *out, vc_image_globals(image), VC_CALL(cuModuleLoadFatBinary)(out, image));
}
VC_HOOK CUresult cuModuleUnload(CUmodule module) {
  struct vc_item item;
  bool known = vc_table_take(VC_MODULE, (uint64_t)(uintptr_t)module, &item);
  vc_context_limit_forget(module);
  CUresult r = VC_CALL(cuModuleUnload)(module);
  if (known && r == CUDA_SUCCESS)
    vc_give_back(&item);
  else if (known)
    vc_table_put(item);
  return r;
}

/* ---- libraries: an entry for each context, all under the library's handle ---- */

struct vc_lock vc_libraries_lock;

void vc_libraries_reset(void) {
  atomic_store(&vc_libraries_lock.word, 0);
}

bool vc_libraries_into(const void *context, bool forced) {
  uint32_t count;
  struct vc_item *list = vc_table_list(VC_LIBRARY, &count);
  bool ok = list || !count;
  for (uint32_t i = 0; list && i < count && ok; i++) {
    struct vc_item item = {.key = list[i].key, .bytes = list[i].bytes, .owner = (void *)(uintptr_t)context,
                           .kind = VC_MODULE};
    ok = vc_memory_take(item.bytes, context);
    if (!ok && forced) {
      item.bytes = vc_granules(item.bytes);
      vc_book(item.bytes);
      ok = true;
    }
    if (ok) vc_table_put(item);
  }
  free(list);
  return ok;
}

/* False if it is not known. */
static bool library_rename(uint64_t from, uint64_t to) {
  vc_lock(&vc_libraries_lock);
  bool known = vc_table_rename(VC_LIBRARY, from, to);
  while (known && vc_table_rename(VC_MODULE, from, to)) continue;
  vc_unlock(&vc_libraries_lock);
  return known;
}

/* With the lock held. */
static void give_all(uint64_t key) {
  struct vc_item item;
  vc_table_take(VC_LIBRARY, key, &item);
  while (vc_table_take(VC_MODULE, key, &item)) vc_give_back(&item);
}

static void library_forget(uint64_t key) {
  vc_lock(&vc_libraries_lock);
  give_all(key);
  vc_unlock(&vc_libraries_lock);
}

/* With the lock held. */
static bool into_contexts(uint64_t key, uint64_t bytes) {
  uint32_t count;
  struct vc_item *list = vc_table_list(VC_CONTEXT, &count);
  bool ok = list || !count;
  for (uint32_t i = 0; list && i < count && ok; i++) {
    void *context = (void *)(uintptr_t)list[i].key;
    ok = vc_memory_take(bytes, context);
    if (ok) vc_table_put((struct vc_item){.key = key, .bytes = bytes, .owner = context, .kind = VC_MODULE});
  }
  free(list);
  return ok;
}

static bool library_begin(uint64_t key, uint64_t bytes) {
  if (!bytes) return true;
  if (!vc_seat_ready()) return false;
  vc_lock(&vc_libraries_lock);
  bool ok = vc_table_put((struct vc_item){.key = key, .bytes = bytes, .kind = VC_LIBRARY}) && into_contexts(key, bytes);
  if (!ok) give_all(key);
  vc_unlock(&vc_libraries_lock);
  return ok;
}

static CUresult library_end(CUresult r, CUlibrary *out, uint64_t key, uint64_t bytes) {
  if (bytes && r == CUDA_SUCCESS)
    library_rename(key, (uint64_t)(uintptr_t)*out);
  else if (bytes)
    library_forget(key);
  return r;
}

static CUresult library_load(CUlibrary *out, const void *image, uint64_t bytes, CUjit_option *jo, void **jv,
                             unsigned jn, CUlibraryOption *lo, void **lv, unsigned ln) {
  uint64_t key = vc_table_place();
  if (!library_begin(key, bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  return library_end(VC_CALL(cuLibraryLoadData)(out, image, jo, jv, jn, lo, lv, ln), out, key, bytes);
}

VC_HOOK CUresult cuLibraryLoadData(CUlibrary *out, const void *image, CUjit_option *jo, void **jv, unsigned jn,
                                   CUlibraryOption *lo, void **lv, unsigned ln) {
  return library_load(out, image, vc_image_globals(image), jo, jv, jn, lo, lv, ln);
}
VC_HOOK CUresult cuLibraryLoadFromFile(CUlibrary *out, const char *path, CUjit_option *jo, void **jv, unsigned jn,
                                       CUlibraryOption *lo, void **lv, unsigned ln) {
  for (unsigned i = 0; lo && i < ln; i++)
    if (lo[i] == CU_LIBRARY_BINARY_IS_PRESERVED) return CUDA_ERROR_INVALID_VALUE;
  uint64_t bytes;
  if (!path) return VC_CALL(cuLibraryLoadFromFile)(out, path, jo, jv, jn, lo, lv, ln);
  void *image = vc_image_read(path, &bytes);
  if (!image) return CUDA_ERROR_FILE_NOT_FOUND;
  CUresult r = library_load(out, image, bytes, jo, jv, jn, lo, lv, ln);
  free(image);
  return r;
}
VC_HOOK CUresult cuLibraryUnload(CUlibrary library) {
  uint64_t key = (uint64_t)(uintptr_t)library, aside = vc_table_place();
  /* Under another key first: once unloaded, the handle can be another library's at once. Until then a context that is
   * made gets the library too. */
  bool known = library_rename(key, aside);
  vc_context_limit_forget(library);
  CUresult r = VC_CALL(cuLibraryUnload)(library);
  if (known && r == CUDA_SUCCESS)
    library_forget(aside);
  else if (known)
    library_rename(aside, key);
  return r;
}
