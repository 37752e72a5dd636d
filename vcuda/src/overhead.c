/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the driver takes without being asked for memory: for a context, for the global variables of
 * its modules, for the stacks of its threads and for the heap and the printf of device code. It is taken from the
 * cap before; what it really was the arbiter sees later, in NVML's figures.
 */
#include "overhead.h"
#include "memory_account.h"
#include "connection.h"
#include "image.h"
#include "memory.h"
#include "pool.h"

#include <stdlib.h>

#define MAX_STACK (512ull << 10) /* the driver refuses more */
#define STACK_DEFAULT 1024u
#define HEAP_DEFAULT (8ull << 20)
#define FIFO_DEFAULT (1ull << 20)
/* Kernels that launch others: the guide speaks of up to 150 MB for each level that they wait for, and of no figure for
 * pending launches. */
#define DEPTH_DEFAULT 2u
#define DEPTH_BYTES (150ull << 20)
#define PENDING_DEFAULT 2048u
#define PENDING_BYTES 4096u

/* ---- contexts, and the libraries in them ---- */

/* A library is loaded into every context, those made later too, each with its own variables: at once, or when it is
 * first used there. `context` may be the place of one that is still to be made. */
static bool libraries_into(const void *context, bool forced) {
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

/* The key of a context or a library until it is made: no address, and never used again. */
static uint64_t new_place(void) {
  static _Atomic uint64_t count;
  return 1ull << 63 | atomic_fetch_add(&count, 1);
}

static bool note_context(uint64_t key, void *owner, uint64_t bytes) {
  return vc_table_put((struct vc_item){.key = key, .bytes = bytes, .owner = owner, .kind = VC_CONTEXT});
}

/* First noted, then looked for libraries, which do the same the other way round: of a context and a library that are
 * made at once, one sees the other. */
bool vc_context_begin(struct vc_making *m) {
  uint64_t place = new_place();
  m->place = (void *)(uintptr_t)place;
  m->bytes = vc_granules(atomic_load(&vc_seat.policy->context_bytes));
  if (!vc_reserve(m->bytes)) {
    vc_pools_settle();
    if (!vc_reserve(m->bytes)) return false;
  }
  if (note_context(place, m->place, m->bytes) && libraries_into(m->place, false)) return true;
  vc_context_end(CUDA_ERROR_OUT_OF_MEMORY, NULL, m);
  return false;
}

void vc_context_end(CUresult result, CUcontext context, struct vc_making *m) {
  /* A primary context that was there already is charged already. The place's own entry is one of those swept. */
  if (result != CUDA_SUCCESS || vc_context_known(context)) {
    vc_table_sweep(m->place, 0, vc_give_back);
    return;
  }
  vc_table_rename(VC_CONTEXT, (uint64_t)(uintptr_t)m->place, (uint64_t)(uintptr_t)context);
  vc_account_rename(m->place, context);
  vc_table_hand_over(m->place, context);
}

bool vc_context_known(CUcontext context) {
  struct vc_item item;
  return vc_table_find(VC_CONTEXT, (uint64_t)(uintptr_t)context, &item);
}

void vc_context_again(CUcontext context) {
  uint64_t bytes = vc_granules(atomic_load(&vc_seat.policy->context_bytes)), place = new_place();
  struct vc_making m = {bytes, (void *)(uintptr_t)place};
  vc_book(bytes);
  note_context(place, m.place, bytes);
  if (!vc_context_known(context)) libraries_into(m.place, true);
  vc_context_end(CUDA_SUCCESS, context, &m);
}

/* ---- stacks, the heap, the buffer of printf and what kernels need to launch others: by context and limit ---- */

static uint64_t threads(void) {
  int each = 0, count = 0;
  CUdevice device;
  if (VC_CALL(cuCtxGetDevice)(&device) != CUDA_SUCCESS) return 0;
  VC_CALL(cuDeviceGetAttribute)(&each, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device);
  VC_CALL(cuDeviceGetAttribute)(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
  return (uint64_t)each * (uint64_t)count;
}

static uint64_t stacks(uint64_t each) {
  return each > STACK_DEFAULT ? vc_granules((each - STACK_DEFAULT) * threads()) : 0;
}

static uint64_t above(uint64_t value, uint64_t usual, uint64_t each) {
  uint64_t more = value > usual ? value - usual : 0;
  return vc_granules(more > UINT64_MAX / each ? UINT64_MAX : more * each);
}

/* What a limit's value takes, from what contexts have anyway. */
static uint64_t part_of(CUlimit limit, uint64_t value) {
  switch (limit) {
  case CU_LIMIT_STACK_SIZE:
    return stacks(value);
  case CU_LIMIT_MALLOC_HEAP_SIZE:
    return above(value, HEAP_DEFAULT, 1);
  case CU_LIMIT_PRINTF_FIFO_SIZE:
    return above(value, FIFO_DEFAULT, 1);
  case CU_LIMIT_DEV_RUNTIME_SYNC_DEPTH:
    return above(value, DEPTH_DEFAULT, DEPTH_BYTES);
  case CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT:
    return above(value, PENDING_DEFAULT, PENDING_BYTES);
  default:
    return 0;
  }
}

static struct vc_lock guard;
static uint32_t changing, changes; /* calls under way, and all that ever began */

static struct vc_item limit_of(CUcontext context, CUlimit limit) {
  uint64_t key = (uint64_t)(uintptr_t)context ^ (uint64_t)limit << 56;
  struct vc_item item = {.key = key, .owner = context, .kind = VC_LIMIT};
  vc_table_take(VC_LIMIT, key, &item);
  return item;
}

static void store(struct vc_item item) {
  if (item.bytes || item.extra) vc_table_put(item);
}

/* Have at least so much charged for a limit; `extra` is the deepest stack that was needed. */
static bool raise_now(CUcontext context, CUlimit limit, uint64_t bytes, uint32_t extra) {
  vc_lock(&guard);
  struct vc_item item = limit_of(context, limit);
  bool ok = bytes <= item.bytes || vc_reserve_now(bytes - item.bytes);
  if (ok && bytes > item.bytes) item.bytes = bytes;
  if (ok && extra > item.extra) item.extra = extra;
  store(item);
  vc_unlock(&guard);
  return ok;
}

static bool raise(CUcontext context, CUlimit limit, uint64_t bytes, uint32_t extra) {
  vc_await_others();
  if (raise_now(context, limit, bytes, extra)) return true;
  vc_pools_settle();
  return raise_now(context, limit, bytes, extra);
}

static uint32_t begin_change(void) {
  vc_lock(&guard);
  changing++;
  uint32_t mine = ++changes;
  vc_unlock(&guard);
  return mine;
}

/* The driver's word is only good if no other call could have changed it meanwhile; and stacks stay as deep as a kernel
 * has needed them, because its next launch is not checked. */
static void end_change(CUcontext context, CUlimit limit, uint64_t bytes, uint32_t mine) {
  vc_lock(&guard);
  struct vc_item item = limit_of(context, limit);
  uint64_t deepest = limit == CU_LIMIT_STACK_SIZE ? stacks(item.extra) : 0;
  if (deepest > bytes) bytes = deepest;
  bool alone = --changing == 0 && mine == changes;
  uint64_t less = alone && item.bytes > bytes ? item.bytes - bytes : 0;
  item.bytes -= less;
  store(item);
  vc_unlock(&guard);
  vc_unreserve(less);
}

/* A limit that the GPU lacks takes nothing; the driver refuses to set it. */
static bool lacks(CUlimit limit) {
  size_t value;
  return VC_CALL(cuCtxGetLimit)(&value, limit) == CUDA_ERROR_UNSUPPORTED_LIMIT;
}

VC_HOOK CUresult cuCtxSetLimit(CUlimit limit, size_t value) {
  CUcontext context = NULL;
  size_t after = value;
  if ((limit == CU_LIMIT_STACK_SIZE && value > MAX_STACK) || VC_CALL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS ||
      !context || limit > CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT || lacks(limit))
    return VC_CALL(cuCtxSetLimit)(limit, value);
  if (!vc_seat_ready()) return CUDA_ERROR_OUT_OF_MEMORY;
  uint32_t mine = begin_change();
  bool ok = raise(context, limit, part_of(limit, value), 0);
  CUresult r = ok ? VC_CALL(cuCtxSetLimit)(limit, value) : CUDA_ERROR_OUT_OF_MEMORY;
  if (VC_CALL(cuCtxGetLimit)(&after, limit) != CUDA_SUCCESS) after = SIZE_MAX; /* nothing is given back */
  end_change(context, limit, part_of(limit, after), mine);
  return r;
}

/* A kernel that needs deeper stacks than the current context has makes the driver take them when it is
 * launched, and keep them. They are charged when the kernel is looked up: a launch has no time for that. */
static bool deepen(CUcontext context, uint32_t local) {
  if (!vc_seat_ready()) return false;
  return raise(context, CU_LIMIT_STACK_SIZE, stacks(local), local);
}

static CUresult found(CUresult r, int local) {
  CUcontext context = NULL;
  if (r != CUDA_SUCCESS || local <= (int)STACK_DEFAULT ||
      VC_CALL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || !context)
    return r;
  return deepen(context, (uint32_t)local) ? r : CUDA_ERROR_OUT_OF_MEMORY;
}

/* A library's kernel runs in any context, and a function may be looked up while another context than its own is
 * current. So both are looked at again when they are launched. */
_Atomic uint32_t vc_deep_kernels;

static void remember(const void *kernel, void *image, int local) {
  struct vc_item item = {.key = (uint64_t)(uintptr_t)kernel, .owner = image, .kind = VC_KERNEL_DEEP,
                         .extra = (uint32_t)local};
  if (local <= (int)STACK_DEFAULT || vc_table_mark(VC_KERNEL_DEEP, item.key, item.extra) != UINT32_MAX) return;
  if (vc_table_put(item)) atomic_fetch_add(&vc_deep_kernels, 1);
}

static void forget(const struct vc_item *unused) {
  (void)unused;
  atomic_fetch_sub(&vc_deep_kernels, 1);
}

bool vc_context_runs(const void *kernel, CUcontext context) {
  struct vc_item item;
  CUcontext current = NULL;
  if (!atomic_load(&vc_deep_kernels) || !vc_table_find(VC_KERNEL_DEEP, (uint64_t)(uintptr_t)kernel, &item))
    return true;
  VC_CALL(cuCtxGetCurrent)(&current);
  bool pushed = current != context && VC_CALL(cuCtxPushCurrent_v2)(context) == CUDA_SUCCESS;
  bool ok = deepen(context, item.extra);
  if (pushed) VC_CALL(cuCtxPopCurrent_v2)(&current);
  return ok;
}

VC_HOOK CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
  int local = 0;
  CUresult r = VC_CALL(cuModuleGetFunction)(out, module, name);
  if (r == CUDA_SUCCESS)
    VC_CALL(cuFuncGetAttribute)(&local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, *out);
  if (r == CUDA_SUCCESS) remember(*out, module, local);
  return found(r, local);
}

VC_HOOK CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary library, const char *name) {
  int local = 0;
  CUdevice device = 0; /* without a context: there is one GPU in a slice */
  CUresult r = VC_CALL(cuLibraryGetKernel)(out, library, name);
  if (r != CUDA_SUCCESS) return r;
  VC_CALL(cuCtxGetDevice)(&device);
  VC_CALL(cuKernelGetAttribute)(&local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, *out, device);
  remember(*out, library, local);
  return found(r, local);
}

VC_HOOK CUresult cuKernelGetFunction(CUfunction *out, CUkernel kernel) {
  int local = 0;
  struct vc_item item;
  CUresult r = VC_CALL(cuKernelGetFunction)(out, kernel);
  if (r == CUDA_SUCCESS)
    VC_CALL(cuFuncGetAttribute)(&local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, *out);
  if (r == CUDA_SUCCESS && vc_table_find(VC_KERNEL_DEEP, (uint64_t)(uintptr_t)kernel, &item))
    remember(*out, item.owner, local);
  return found(r, local);
}

/* Handles that come by the dozen: one of these functions will be launched, maybe that with the deepest stack. */
VC_HOOK CUresult cuModuleEnumerateFunctions(CUfunction *out, unsigned room, CUmodule module) {
  unsigned count = 0;
  int deepest = 0;
  CUresult r = VC_CALL(cuModuleEnumerateFunctions)(out, room, module);
  if (r == CUDA_SUCCESS) VC_CALL(cuModuleGetFunctionCount)(&count, module);
  for (unsigned i = 0; i < count && i < room; i++) {
    int local = 0;
    VC_CALL(cuFuncGetAttribute)(&local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, out[i]);
    remember(out[i], module, local);
    if (local > deepest) deepest = local;
  }
  return found(r, deepest);
}

VC_HOOK CUresult cuLibraryEnumerateKernels(CUkernel *out, unsigned room, CUlibrary library) {
  unsigned count = 0;
  CUdevice device = 0;
  CUresult r = VC_CALL(cuLibraryEnumerateKernels)(out, room, library);
  if (r == CUDA_SUCCESS) VC_CALL(cuLibraryGetKernelCount)(&count, library);
  VC_CALL(cuCtxGetDevice)(&device);
  for (unsigned i = 0; i < count && i < room; i++) {
    int local = 0;
    VC_CALL(cuKernelGetAttribute)(&local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, out[i], device);
    remember(out[i], library, local);
  }
  return r;
}

/* ---- modules: of the context that is current ---- */

static CUresult module_end(CUresult r, void *handle, uint64_t bytes) {
  return bytes ? vc_memory_end(r, VC_MODULE, (uint64_t)(uintptr_t)handle, bytes) : r;
}

static CUresult load(CUmodule *out, const void *image, uint64_t bytes, CUresult (*real)(CUmodule *, const void *)) {
  if (bytes && !vc_memory_begin(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult r = real(out, image);
  return module_end(r, r == CUDA_SUCCESS ? *out : NULL, bytes);
}

/* The driver is given what we have read: a file can become another one. */
VC_HOOK CUresult cuModuleLoad(CUmodule *out, const char *path) {
  uint64_t bytes;
  void *image = vc_image_read(path, &bytes);
  if (!image) return path ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
  CUresult r = load(out, image, bytes, VC_REAL(cuModuleLoadData));
  free(image);
  return r;
}
VC_HOOK CUresult cuModuleLoadData(CUmodule *out, const void *image) {
  return load(out, image, vc_image_globals(image), VC_REAL(cuModuleLoadData));
}
VC_HOOK CUresult cuModuleLoadDataEx(CUmodule *out, const void *image, unsigned n, CUjit_option *o, void **v) {
  uint64_t bytes = vc_image_globals(image);
  if (bytes && !vc_memory_begin(bytes)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult r = VC_CALL(cuModuleLoadDataEx)(out, image, n, o, v);
  return module_end(r, r == CUDA_SUCCESS ? *out : NULL, bytes);
}
VC_HOOK CUresult cuModuleLoadFatBinary(CUmodule *out, const void *image) {
  return load(out, image, vc_image_globals(image), VC_REAL(cuModuleLoadFatBinary));
}
VC_HOOK CUresult cuModuleUnload(CUmodule module) {
  struct vc_item item;
  bool known = vc_table_take(VC_MODULE, (uint64_t)(uintptr_t)module, &item);
  vc_table_sweep(module, VC_KERNEL_DEEP, forget);
  CUresult r = VC_CALL(cuModuleUnload)(module);
  if (known && r == CUDA_SUCCESS)
    vc_give_back(&item);
  else if (known)
    vc_table_put(item);
  return r;
}

/* ---- libraries: an entry for each context, all under the library's handle ---- */

static void rename_each(uint64_t from, uint64_t to) {
  while (vc_table_rename(VC_MODULE, from, to)) continue;
}

static void give_each(uint64_t key) {
  struct vc_item item;
  while (vc_table_take(VC_MODULE, key, &item)) vc_give_back(&item);
}

static bool library_begin(uint64_t key, uint64_t bytes) {
  uint32_t count;
  struct vc_item item = {.key = key, .bytes = bytes, .kind = VC_LIBRARY};
  if (!bytes) return true;
  if (!vc_seat_ready() || !vc_table_put(item)) return false;
  struct vc_item *list = vc_table_list(VC_CONTEXT, &count);
  bool ok = list || !count;
  for (uint32_t i = 0; list && i < count && ok; i++) {
    void *context = (void *)(uintptr_t)list[i].key;
    ok = vc_memory_take(bytes, context);
    if (ok) vc_table_put((struct vc_item){.key = key, .bytes = bytes, .owner = context, .kind = VC_MODULE});
  }
  free(list);
  if (ok) return true;
  vc_table_take(VC_LIBRARY, key, &item);
  give_each(key);
  return false;
}

static CUresult library_end(CUresult r, CUlibrary *out, uint64_t key, uint64_t bytes) {
  struct vc_item item;
  if (!bytes) return r;
  if (r != CUDA_SUCCESS) {
    vc_table_take(VC_LIBRARY, key, &item);
    give_each(key);
    return r;
  }
  vc_table_rename(VC_LIBRARY, key, (uint64_t)(uintptr_t)*out);
  rename_each(key, (uint64_t)(uintptr_t)*out);
  return r;
}

static CUresult library_load(CUlibrary *out, const void *image, uint64_t bytes, CUjit_option *jo, void **jv,
                             unsigned jn, CUlibraryOption *lo, void **lv, unsigned ln) {
  uint64_t key = new_place();
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
  void *image = vc_image_read(path, &bytes);
  if (!image) return path ? CUDA_ERROR_FILE_NOT_FOUND : CUDA_ERROR_INVALID_VALUE;
  CUresult r = library_load(out, image, bytes, jo, jv, jn, lo, lv, ln);
  free(image);
  return r;
}
VC_HOOK CUresult cuLibraryUnload(CUlibrary library) {
  struct vc_item item;
  uint64_t key = (uint64_t)(uintptr_t)library, aside = new_place();
  /* Under another key first: once unloaded, the handle can be another library's at once. Until then a context that is
   * made gets the library too. */
  bool known = vc_table_rename(VC_LIBRARY, key, aside);
  if (known) rename_each(key, aside);
  vc_table_sweep(library, VC_KERNEL_DEEP, forget);
  CUresult r = VC_CALL(cuLibraryUnload)(library);
  if (known && r == CUDA_SUCCESS) {
    vc_table_take(VC_LIBRARY, aside, &item);
    give_each(aside);
  } else if (known) {
    vc_table_rename(VC_LIBRARY, aside, key);
    rename_each(aside, key);
  }
  return r;
}

void vc_overhead_reset(void) {
  atomic_store(&guard.word, 0);
  changing = 0;
  atomic_store(&vc_deep_kernels, 0);
}
