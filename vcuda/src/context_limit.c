/* SPDX-License-Identifier: Apache-2.0 */
/*
 * What the driver takes for a context's limits: the stacks of its threads, the heap and the printf of device code, and
 * what kernels need to launch others. By context and limit, it is taken from the cap before a limit is raised, and
 * before a kernel that needs deeper stacks can run.
 */
#include "context_limit.h"
#include "bytes.h"
#include "connection.h"
#include "memory_account.h"
#include "pool.h"

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
  return vc_granules(vc_times(more, each));
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

static uint64_t key_of(CUcontext context, CUlimit limit) {
  return (uint64_t)(uintptr_t)context ^ (uint64_t)limit << 56;
}

static struct vc_item limit_of(CUcontext context, CUlimit limit) {
  uint64_t key = key_of(context, limit);
  struct vc_item item = {.key = key, .owner = context, .kind = VC_LIMIT};
  vc_table_take(VC_LIMIT, key, &item);
  return item;
}

static void store(struct vc_item item) {
  if (item.bytes || item.extra) vc_table_put(item);
}

void vc_context_limit_rename(CUcontext from, CUcontext to) {
  vc_lock(&guard);
  for (unsigned limit = 0; limit <= CU_LIMIT_DEV_RUNTIME_PENDING_LAUNCH_COUNT; limit++) {
    struct vc_item item = limit_of(from, (CUlimit)limit);
    item.key = key_of(to, (CUlimit)limit);
    item.owner = to;
    store(item);
  }
  vc_unlock(&guard);
}

/* Charge at least so much for a limit; `extra` is the deepest stack that a kernel needed. False if it does not fit. */
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

/* What the driver said the limit is counts only if no other call can have changed it meanwhile. Stacks stay as deep as
 * a kernel has needed them, because its next launch is not checked. */
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

static CUresult found(int local) {
  CUcontext context = NULL;
  if (local <= (int)STACK_DEFAULT || VC_CALL(cuCtxGetCurrent)(&context) != CUDA_SUCCESS || !context)
    return CUDA_SUCCESS;
  return deepen(context, (uint32_t)local) ? CUDA_SUCCESS : CUDA_ERROR_OUT_OF_MEMORY;
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

static void forget_one(const struct vc_item *unused) {
  (void)unused;
  atomic_fetch_sub(&vc_deep_kernels, 1);
}

void vc_context_limit_forget(const void *image) {
  vc_table_sweep(image, VC_KERNEL_DEEP, forget_one);
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

static int local_of_function(CUfunction function) {
  int local = 0;
  VC_CALL(cuFuncGetAttribute)(&local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, function);
  return local;
}

static int local_of_kernel(CUkernel kernel) {
  int local = 0;
  CUdevice device = 0; /* without a context: there is one GPU in a slice */
  VC_CALL(cuCtxGetDevice)(&device);
  VC_CALL(cuKernelGetAttribute)(&local, CU_FUNC_ATTRIBUTE_LOCAL_SIZE_BYTES, kernel, device);
  return local;
}

VC_HOOK CUresult cuModuleGetFunction(CUfunction *out, CUmodule module, const char *name) {
  CUresult r = VC_CALL(cuModuleGetFunction)(out, module, name);
  if (r != CUDA_SUCCESS) return r;
  int local = local_of_function(*out);
  remember(*out, module, local);
  return found(local);
}

VC_HOOK CUresult cuLibraryGetKernel(CUkernel *out, CUlibrary library, const char *name) {
  CUresult r = VC_CALL(cuLibraryGetKernel)(out, library, name);
  if (r != CUDA_SUCCESS) return r;
  int local = local_of_kernel(*out);
  remember(*out, library, local);
  return found(local);
}

VC_HOOK CUresult cuKernelGetFunction(CUfunction *out, CUkernel kernel) {
  struct vc_item item;
  CUresult r = VC_CALL(cuKernelGetFunction)(out, kernel);
  if (r != CUDA_SUCCESS) return r;
  int local = local_of_function(*out);
  if (vc_table_find(VC_KERNEL_DEEP, (uint64_t)(uintptr_t)kernel, &item)) remember(*out, item.owner, local);
  return found(local);
}

/* Of the functions that are listed at once, any may be launched, so the deepest stack counts. */
VC_HOOK CUresult cuModuleEnumerateFunctions(CUfunction *out, unsigned room, CUmodule module) {
  unsigned count = 0;
  int deepest = 0;
  CUresult r = VC_CALL(cuModuleEnumerateFunctions)(out, room, module);
  if (r != CUDA_SUCCESS) return r;
  VC_CALL(cuModuleGetFunctionCount)(&count, module);
  for (unsigned i = 0; i < count && i < room; i++) {
    int local = local_of_function(out[i]);
    remember(out[i], module, local);
    if (local > deepest) deepest = local;
  }
  return found(deepest);
}

VC_HOOK CUresult cuLibraryEnumerateKernels(CUkernel *out, unsigned room, CUlibrary library) {
  unsigned count = 0;
  CUresult r = VC_CALL(cuLibraryEnumerateKernels)(out, room, library);
  if (r == CUDA_SUCCESS) VC_CALL(cuLibraryGetKernelCount)(&count, library);
  for (unsigned i = 0; i < count && i < room; i++) remember(out[i], library, local_of_kernel(out[i]));
  return r;
}

void vc_context_limit_reset(void) {
  atomic_store(&guard.word, 0);
  changing = 0;
  atomic_store(&vc_deep_kernels, 0);
}
