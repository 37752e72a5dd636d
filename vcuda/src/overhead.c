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

#define MAX_STACK (512ull << 10) /* the driver refuses more */
#define STACK_DEFAULT 1024u
#define HEAP_DEFAULT (8ull << 20)
#define FIFO_DEFAULT (1ull << 20)

/* ---- contexts ---- */

bool vc_context_begin(uint64_t *bytes) {
  *bytes = vc_granules(atomic_load(&vc_seat.policy->context_bytes));
  if (vc_reserve(*bytes)) return true;
  vc_pools_settle();
  return vc_reserve(*bytes);
}

void vc_context_end(CUresult result, CUcontext context, uint64_t bytes) {
  struct vc_item item = {
      .key = (uint64_t)(uintptr_t)context, .bytes = bytes, .owner = context, .kind = VC_CONTEXT};
  struct vc_item known;
  /* A primary context that was there already is charged already. */
  if (result != CUDA_SUCCESS || vc_table_find(VC_CONTEXT, item.key, &known))
    vc_unreserve(bytes);
  else
    vc_table_put(item);
}

void vc_context_again(CUcontext context) {
  uint64_t bytes = vc_granules(atomic_load(&vc_seat.policy->context_bytes));
  vc_book(bytes);
  vc_context_end(CUDA_SUCCESS, context, bytes);
}

/* ---- stacks, the heap and the buffer of printf: `extra` of a context's entry holds the stack ---- */

static uint64_t threads(void) {
  int each = 0, count = 0;
  CUdevice device;
  if (VC_CALL(cuCtxGetDevice)(&device) != CUDA_SUCCESS) return 0;
  VC_CALL(cuDeviceGetAttribute)(&each, CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, device);
  VC_CALL(cuDeviceGetAttribute)(&count, CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, device);
  return (uint64_t)each * (uint64_t)count;
}

static struct vc_lock guard;

/* Raise a context's charge by so many bytes, or lower it. */
static bool change(CUcontext context, uint64_t before, uint64_t after) {
  struct vc_item item;
  uint64_t key = (uint64_t)(uintptr_t)context;
  if (after > before && !vc_reserve(after - before)) {
    vc_pools_settle();
    if (!vc_reserve(after - before)) return false;
  }
  vc_lock(&guard);
  bool known = vc_table_take(VC_CONTEXT, key, &item);
  if (!known) item = (struct vc_item){.key = key, .owner = context, .kind = VC_CONTEXT};
  item.bytes = item.bytes + after > before ? item.bytes + after - before : 0;
  vc_table_put(item);
  vc_unlock(&guard);
  if (after < before) vc_unreserve(before - after);
  return true;
}

static uint64_t stacks(uint64_t each) {
  return each > STACK_DEFAULT ? vc_granules((each - STACK_DEFAULT) * threads()) : 0;
}

static uint64_t above(uint64_t bytes, uint64_t usual) {
  return bytes > usual ? vc_granules(bytes - usual) : 0;
}

static uint64_t part_of(CUlimit limit, uint64_t value) {
  return limit == CU_LIMIT_STACK_SIZE         ? stacks(value)
         : limit == CU_LIMIT_MALLOC_HEAP_SIZE ? above(value, HEAP_DEFAULT)
                                              : above(value, FIFO_DEFAULT);
}

VC_HOOK(cuCtxSetLimit, (CUlimit limit, size_t value)) {
  CUcontext context = NULL;
  size_t before = 0, after = 0;
  bool takes = limit == CU_LIMIT_STACK_SIZE || limit == CU_LIMIT_MALLOC_HEAP_SIZE ||
               limit == CU_LIMIT_PRINTF_FIFO_SIZE;
  if (!takes || (limit == CU_LIMIT_STACK_SIZE && value > MAX_STACK) ||
      VC_CALL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || !context)
    return VC_CALL(cuCtxSetLimit)(limit, value);
  if (!vc_seat_ready()) return CUDA_ERROR_OUT_OF_MEMORY;
  VC_CALL(cuCtxGetLimit)(&before, limit);
  uint64_t had = part_of(limit, before), wants = part_of(limit, value);
  if (wants > had && !change(context, had, wants)) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult r = VC_CALL(cuCtxSetLimit)(limit, value);
  after = value;
  VC_CALL(cuCtxGetLimit)(&after, limit);
  uint64_t has = part_of(limit, r == CUDA_SUCCESS ? after : before);
  uint64_t needs = wants > had ? wants : had;
  if (has != needs) change(context, needs, has);
  return r;
}

/* A kernel that needs deeper stacks than the current context has makes the driver take them when it is
 * launched, and keep them. They are charged when the kernel is looked up: a launch has no time for that. */
static bool deepen(CUcontext context, uint32_t local) {
  struct vc_item item;
  size_t limit = 0;
  if (!vc_seat_ready()) return false;
  VC_CALL(cuCtxGetLimit)(&limit, CU_LIMIT_STACK_SIZE);
  uint64_t key = (uint64_t)(uintptr_t)context, had = limit;
  if (vc_table_find(VC_CONTEXT, key, &item) && item.extra > had) had = item.extra;
  if (local <= had) return true;
  if (!change(context, stacks(had), stacks(local))) return false;
  vc_table_mark(VC_CONTEXT, key, local);
  return true;
}

static CUresult found(CUresult r, int local) {
  CUcontext context = NULL;
  if (r != CUDA_SUCCESS || local <= (int)STACK_DEFAULT ||
      VC_CALL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || !context)
    return r;
  return deepen(context, (uint32_t)local) ? r : CUDA_ERROR_OUT_OF_MEMORY;
}

/* A library's kernel is the only one that runs in other contexts than that in which it was looked up. */
_Atomic uint32_t vc_deep_kernels;

static void remember(CUkernel kernel, CUlibrary library, int local) {
  struct vc_item item = {.key = (uint64_t)(uintptr_t)kernel, .owner = library, .kind = VC_KERNEL_DEEP,
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

VC_HOOK(cuModuleGetFunction, (CUfunction * out, CUmodule module, const char *name)) {
  int local = 0;
  CUresult r = VC_CALL(cuModuleGetFunction)(out, module, name);
  if (r == CUDA_SUCCESS)
    VC_CALL(cuFuncGetAttribute)(&local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, *out);
  return found(r, local);
}

VC_HOOK(cuLibraryGetKernel, (CUkernel * out, CUlibrary library, const char *name)) {
  int local = 0;
  CUdevice device = 0; /* without a context: there is one GPU in a slice */
  CUresult r = VC_CALL(cuLibraryGetKernel)(out, library, name);
  if (r != CUDA_SUCCESS) return r;
  VC_CALL(cuCtxGetDevice)(&device);
  VC_CALL(cuKernelGetAttribute)(&local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, *out, device);
  remember(*out, library, local);
  return found(r, local);
}

VC_HOOK(cuKernelGetFunction, (CUfunction * out, CUkernel kernel)) {
  int local = 0;
  CUresult r = VC_CALL(cuKernelGetFunction)(out, kernel);
  if (r == CUDA_SUCCESS)
    VC_CALL(cuFuncGetAttribute)(&local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, *out);
  return found(r, local);
}

/* Handles that come by the dozen: one of these functions will be launched, maybe that with the deepest stack. */
VC_HOOK(cuModuleEnumerateFunctions, (CUfunction * out, unsigned room, CUmodule module)) {
  unsigned count = 0;
  int deepest = 0;
  CUresult r = VC_CALL(cuModuleEnumerateFunctions)(out, room, module);
  if (r == CUDA_SUCCESS) VC_CALL(cuModuleGetFunctionCount)(&count, module);
  for (unsigned i = 0; i < count && i < room; i++) {
    int local = 0;
    VC_CALL(cuFuncGetAttribute)(&local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, out[i]);
    if (local > deepest) deepest = local;
  }
  return found(r, deepest);
}

VC_HOOK(cuLibraryEnumerateKernels, (CUkernel * out, unsigned room, CUlibrary library)) {
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

/* ---- modules ---- */

static CUresult module_end(CUresult r, void *handle, uint64_t bytes) {
  return bytes ? vc_memory_end(r, VC_MODULE, (uint64_t)(uintptr_t)handle, bytes) : r;
}

static CUresult module_gone(CUresult r, struct vc_item *item, bool known) {
  if (known && r == CUDA_SUCCESS)
    vc_give(item->bytes);
  else if (known)
    vc_table_put(*item);
  return r;
}

#define LOAD(call, out, bytes)                                                                     \
  uint64_t bytes_ = (bytes);                                                                       \
  if (bytes_ && !vc_memory_begin(bytes_)) return CUDA_ERROR_OUT_OF_MEMORY;                         \
  CUresult r_ = (call);                                                                            \
  return module_end(r_, r_ == CUDA_SUCCESS ? *(out) : NULL, bytes_)

VC_HOOK(cuModuleLoad, (CUmodule * out, const char *path)) {
  LOAD(VC_CALL(cuModuleLoad)(out, path), out, vc_image_file(path));
}
VC_HOOK(cuModuleLoadData, (CUmodule * out, const void *image)) {
  LOAD(VC_CALL(cuModuleLoadData)(out, image), out, vc_image_globals(image));
}
VC_HOOK(cuModuleLoadDataEx,
        (CUmodule * out, const void *image, unsigned n, CUjit_option *o, void **v)) {
  LOAD(VC_CALL(cuModuleLoadDataEx)(out, image, n, o, v), out, vc_image_globals(image));
}
VC_HOOK(cuModuleLoadFatBinary, (CUmodule * out, const void *image)) {
  LOAD(VC_CALL(cuModuleLoadFatBinary)(out, image), out, vc_image_globals(image));
}
VC_HOOK(cuModuleUnload, (CUmodule module)) {
  struct vc_item item;
  bool known = vc_table_take(VC_MODULE, (uint64_t)(uintptr_t)module, &item);
  return module_gone(VC_CALL(cuModuleUnload)(module), &item, known);
}

VC_HOOK(cuLibraryLoadData, (CUlibrary * out, const void *image, CUjit_option *jo, void **jv,
                            unsigned jn, CUlibraryOption *lo, void **lv, unsigned ln)) {
  LOAD(VC_CALL(cuLibraryLoadData)(out, image, jo, jv, jn, lo, lv, ln), out,
       vc_image_globals(image));
}
VC_HOOK(cuLibraryLoadFromFile, (CUlibrary * out, const char *path, CUjit_option *jo, void **jv,
                                unsigned jn, CUlibraryOption *lo, void **lv, unsigned ln)) {
  LOAD(VC_CALL(cuLibraryLoadFromFile)(out, path, jo, jv, jn, lo, lv, ln), out,
       vc_image_file(path));
}
VC_HOOK(cuLibraryUnload, (CUlibrary library)) {
  struct vc_item item;
  bool known = vc_table_take(VC_MODULE, (uint64_t)(uintptr_t)library, &item);
  vc_table_sweep(library, forget);
  return module_gone(VC_CALL(cuLibraryUnload)(library), &item, known);
}

void vc_overhead_reset(void) {
  atomic_store(&guard.word, 0);
  atomic_store(&vc_deep_kernels, 0);
}
