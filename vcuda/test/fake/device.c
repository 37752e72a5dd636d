/* SPDX-License-Identifier: Apache-2.0 */
/* Devices and contexts. */
#define _GNU_SOURCE
#include "api.h"
#include "interop.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define STACK 32

static __thread CUcontext stack[STACK];
static __thread int depth;
static struct {
  struct CUctx_st ctx;
  int count;
} primary[FK_GPUS];
static int visible[FK_GPUS], visible_count;
static bool initialised;

/* CUDA_VISIBLE_DEVICES takes indices and UUIDs, those of MIG devices too; the first word that is neither ends the list. */
static void choose_visible(void) {
  const char *list = getenv("CUDA_VISIBLE_DEVICES");
  int all = (int)fk_world()->gpus;
  visible_count = 0;
  if (!list) {
    for (int i = 0; i < all; i++) visible[visible_count++] = i;
    return;
  }
  char copy[1024], *save = NULL;
  snprintf(copy, sizeof copy, "%s", list);
  for (char *w = strtok_r(copy, ",", &save); w; w = strtok_r(NULL, ",", &save)) {
    int gpu = -1;
    if (!strncmp(w, "GPU-", 4) && strlen(w) >= 40)
      gpu = (int)strtol(w + 38, NULL, 16);
    else if (*w >= '0' && *w <= '9')
      gpu = atoi(w);
    if (gpu >= all) break;
    for (int i = FK_GPUS; !strncmp(w, "MIG-", 4) && i < FK_DEVICES; i++) {
      char text[64];
      fk_uuid_text(i, text, sizeof text);
      if (fk_there((unsigned)i) && !strcmp(w, text)) gpu = i;
    }
    if (gpu < 0 || visible_count == FK_GPUS) break;
    visible[visible_count++] = gpu;
  }
}

CUcontext fk_current(void) {
  return depth ? fk_whole(stack[depth - 1]) : NULL;
}

int fk_gpu_of_device(CUdevice device) {
  return device < 0 || device >= visible_count ? -1 : visible[device];
}

FK_API(cuInit, (unsigned flags)) {
  FK_ENTER("cuInit");
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  choose_visible();
  initialised = true;
  return visible_count ? CUDA_SUCCESS : CUDA_ERROR_NO_DEVICE;
}

FK_API(cuDriverGetVersion, (int *version)) {
  *version = (int)fk_bytes(fk_setting("VERSION"), CUDA_VERSION);
  return CUDA_SUCCESS;
}

FK_API(cuDeviceGetCount, (int *count)) {
  *count = visible_count;
  return initialised ? CUDA_SUCCESS : CUDA_ERROR_NOT_INITIALIZED;
}

FK_API(cuDeviceGet, (CUdevice * device, int ordinal)) {
  if (!initialised) return CUDA_ERROR_NOT_INITIALIZED;
  if (ordinal < 0 || ordinal >= visible_count) return CUDA_ERROR_INVALID_DEVICE;
  *device = ordinal;
  return CUDA_SUCCESS;
}

FK_API(cuDeviceGetName, (char *name, int size, CUdevice device)) {
  fk_name(visible[device], name, (size_t)size);
  return CUDA_SUCCESS;
}

FK_API(cuDeviceGetUuid_v2, (CUuuid * uuid, CUdevice device)) {
  if (device < 0 || device >= visible_count) return CUDA_ERROR_INVALID_DEVICE;
  fk_uuid(visible[device], (unsigned char *)uuid->bytes);
  return CUDA_SUCCESS;
}

FK_RESULT(cuDeviceGetUuid, (CUuuid * uuid, CUdevice device), cuDeviceGetUuid_v2(uuid, device))

FK_API(cuDeviceTotalMem_v2, (size_t * bytes, CUdevice device)) {
  if (!bytes) return CUDA_ERROR_INVALID_VALUE;
  if (device < 0 || device >= visible_count) return CUDA_ERROR_INVALID_DEVICE;
  *bytes = fk_world()->gpu[visible[device]].mem_total;
  return CUDA_SUCCESS;
}

FK_API(cuDeviceTotalMem, (unsigned *bytes, CUdevice device)) {
  size_t all = 0;
  CUresult r = cuDeviceTotalMem_v2(&all, device);
  *bytes = all > UINT32_MAX ? UINT32_MAX : (unsigned)all;
  return r;
}

FK_API(cuDeviceComputeCapability, (int *major, int *minor, CUdevice device)) {
  (void)device;
  *major = fk_capability();
  *minor = 0;
  return CUDA_SUCCESS;
}

FK_API(cuDeviceGetAttribute, (int *value, CUdevice_attribute attribute, CUdevice device)) {
  static const struct {
    CUdevice_attribute attribute;
    int value;
  } table[] = {
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_BLOCK, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_X, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Y, 1024},
      {CU_DEVICE_ATTRIBUTE_MAX_BLOCK_DIM_Z, 64},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_X, 2147483647},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Y, 65535},
      {CU_DEVICE_ATTRIBUTE_MAX_GRID_DIM_Z, 65535},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK, 49152},
      {CU_DEVICE_ATTRIBUTE_MAX_SHARED_MEMORY_PER_BLOCK_OPTIN, 232448},
      {CU_DEVICE_ATTRIBUTE_WARP_SIZE, 32},
      {CU_DEVICE_ATTRIBUTE_MULTIPROCESSOR_COUNT, 132},
      {CU_DEVICE_ATTRIBUTE_CLOCK_RATE, 1980000},
      {CU_DEVICE_ATTRIBUTE_MAX_THREADS_PER_MULTIPROCESSOR, 2048},
      {CU_DEVICE_ATTRIBUTE_MAX_REGISTERS_PER_BLOCK, 65536},
      {CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR, 0},
      {CU_DEVICE_ATTRIBUTE_UNIFIED_ADDRESSING, 1},
      {CU_DEVICE_ATTRIBUTE_MANAGED_MEMORY, 1},
      {CU_DEVICE_ATTRIBUTE_CONCURRENT_MANAGED_ACCESS, 1},
      {CU_DEVICE_ATTRIBUTE_COOPERATIVE_LAUNCH, 1},
      {CU_DEVICE_ATTRIBUTE_MEMORY_POOLS_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_VIRTUAL_MEMORY_MANAGEMENT_SUPPORTED, 1},
      {CU_DEVICE_ATTRIBUTE_CAN_MAP_HOST_MEMORY, 1},
      {CU_DEVICE_ATTRIBUTE_ASYNC_ENGINE_COUNT, 2},
      {CU_DEVICE_ATTRIBUTE_PCI_BUS_ID, 1},
  };
  FK_ENTER("cuDeviceGetAttribute");
  if (device < 0 || device >= visible_count) return CUDA_ERROR_INVALID_DEVICE;
  *value = 0;
  for (size_t i = 0; i < sizeof table / sizeof *table; i++)
    if (table[i].attribute == attribute) *value = table[i].value;
  if (attribute == CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR) *value = fk_capability();
  if (attribute == CU_DEVICE_ATTRIBUTE_INTEGRATED)
    *value = (int)fk_bytes(fk_setting("INTEGRATED"), 0);
  return CUDA_SUCCESS;
}

FK_API(cuDeviceGetPCIBusId, (char *id, int size, CUdevice device)) {
  snprintf(id, (size_t)size, "0000:%02x:00.0", visible[device] + 1);
  return CUDA_SUCCESS;
}

static struct CUctx_st *contexts; /* those that were destroyed too: their streams and events still point there */
FK_GUARD(contexts_guard)

void fk_contexts_hold(void) {
  pthread_mutex_lock(&contexts_guard);
}

void fk_contexts_let_go(void) {
  pthread_mutex_unlock(&contexts_guard);
}

#define SMALL (1ull << 20)

/* What a small request takes: it lies in one granule, beside as many others of its size as fit there with it. */
static uint64_t share(uint64_t bytes) {
  if (!bytes) return 0;
  uint64_t fit = VC_GRANULE / fk_up(bytes, 512);
  return (VC_GRANULE + fit - 1) / fit;
}

static bool take(CUcontext ctx, uint64_t bytes, unsigned *life) {
  fk_lock();
  bool ok = !ctx->dead && (bytes <= SMALL ? fk_small_take(ctx->gpu, ctx->queue, share(bytes))
                                          : fk_mem_take(ctx->gpu, ctx->queue, fk_granules(bytes)));
  *life = ctx->life;
  fk_unlock();
  return ok;
}

bool fk_take(CUcontext ctx, uint64_t bytes, unsigned *life) {
  if (take(ctx, bytes, life)) return true;
  fk_reap(); /* what others held may be free */
  return take(ctx, bytes, life);
}

void fk_give(CUcontext ctx, uint64_t bytes, unsigned life) {
  fk_lock();
  if (ctx->dead || ctx->life != life) {
    /* Its bytes went with the context. */
  } else if (bytes <= SMALL) {
    fk_small_give(ctx->gpu, ctx->queue, share(bytes));
  } else {
    fk_mem_give(ctx->gpu, ctx->queue, fk_granules(bytes));
  }
  fk_unlock();
}

static void close_context(struct CUctx_st *ctx);

/* With contexts held, as for those that follow. */
static CUresult open_context(struct CUctx_st *ctx, CUdevice device) {
  if (!initialised) return CUDA_ERROR_NOT_INITIALIZED;
  if (device < 0 || device >= visible_count) return CUDA_ERROR_INVALID_DEVICE;
  fk_reap();
  fk_lock();
  ctx->gpu = visible[device];
  ctx->queue = fk_queue_open(ctx->gpu);
  ctx->dead = ctx->queue < 0;
  ctx->stack = ctx->heap = ctx->fifo = ctx->depth = ctx->pending = 0;
  ctx->life++;
  if (!ctx->listed) {
    ctx->next = contexts;
    contexts = ctx;
    ctx->listed = true;
  }
  fk_unlock();
  if (ctx->queue < 0) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult r = fk_libraries_use(ctx);
  if (r != CUDA_SUCCESS) close_context(ctx);
  return r;
}

CUresult fk_each_context(CUresult (*visit)(CUcontext ctx)) {
  CUresult r = CUDA_SUCCESS;
  for (struct CUctx_st *c = contexts; c && r == CUDA_SUCCESS; c = c->next)
    if (!c->dead) r = visit(c);
  return r;
}

static void close_context(struct CUctx_st *ctx) {
  fk_forget(ctx);
  fk_streams_forget(ctx);
  fk_lock();
  fk_queue_close(ctx->gpu, ctx->queue);
  ctx->dead = true;
  fk_unlock();
}

FK_API(cuCtxPushCurrent_v2, (CUcontext ctx)) {
  if (depth == STACK) return CUDA_ERROR_INVALID_CONTEXT;
  stack[depth++] = ctx;
  return CUDA_SUCCESS;
}
FK_RESULT(cuCtxPushCurrent, (CUcontext ctx), cuCtxPushCurrent_v2(ctx))

FK_API(cuCtxPopCurrent_v2, (CUcontext * ctx)) {
  if (!depth) return CUDA_ERROR_INVALID_CONTEXT;
  depth--;
  if (ctx) *ctx = stack[depth];
  return CUDA_SUCCESS;
}
FK_RESULT(cuCtxPopCurrent, (CUcontext * ctx), cuCtxPopCurrent_v2(ctx))

FK_API(cuCtxSetCurrent, (CUcontext ctx)) {
  if (!ctx) {
    if (depth) depth--;
    return CUDA_SUCCESS;
  }
  if (depth)
    stack[depth - 1] = ctx;
  else
    stack[depth++] = ctx;
  return CUDA_SUCCESS;
}

FK_API(cuCtxGetCurrent, (CUcontext * ctx)) {
  *ctx = depth ? stack[depth - 1] : NULL;
  return CUDA_SUCCESS;
}

FK_API(cuCtxGetDevice, (CUdevice * device)) {
  CUcontext ctx = fk_current();
  if (!ctx) return CUDA_ERROR_INVALID_CONTEXT;
  for (int i = 0; i < visible_count; i++)
    if (visible[i] == ctx->gpu) *device = i;
  return CUDA_SUCCESS;
}

/* A handle is an address, which an allocator gives to the next one at once. */
static struct CUctx_st *last_dead(void) {
  struct CUctx_st *c = contexts;
  while (c && (!c->dead || c->primary)) c = c->next;
  if (c) c->attached = 0;
  return c;
}

FK_API(cuCtxCreate_v2, (CUcontext * out, unsigned flags, CUdevice device)) {
  FK_ENTER("cuCtxCreate_v2");
  (void)flags;
  fk_contexts_hold();
  struct CUctx_st *ctx = last_dead();
  if (!ctx) ctx = calloc(1, sizeof *ctx);
  CUresult r = ctx ? open_context(ctx, device) : CUDA_ERROR_OUT_OF_MEMORY;
  if (ctx && !ctx->listed) free(ctx);
  fk_contexts_let_go();
  if (r != CUDA_SUCCESS) return r;
  *out = ctx;
  return cuCtxPushCurrent_v2(ctx);
}
FK_RESULT(cuCtxCreate, (CUcontext * out, unsigned flags, CUdevice device), cuCtxCreate_v2(out, flags, device))
FK_RESULT(cuCtxCreate_v3, (CUcontext * out, CUexecAffinityParam *p, int n, unsigned flags, CUdevice device),
          ((void)p, (void)n, cuCtxCreate_v2(out, flags, device)))
FK_RESULT(cuCtxCreate_v4, (CUcontext * out, CUctxCreateParams *p, unsigned flags, CUdevice device),
          ((void)p, cuCtxCreate_v2(out, flags, device)))

FK_RESULT(cuGLCtxCreate_v2, (CUcontext * out, unsigned flags, CUdevice device), cuCtxCreate_v2(out, flags, device))
FK_RESULT(cuVDPAUCtxCreate_v2, (CUcontext * out, unsigned flags, CUdevice device, unsigned vdpau, void *get),
          ((void)vdpau, (void)get, cuCtxCreate_v2(out, flags, device)))

FK_API(cuCtxDestroy_v2, (CUcontext ctx)) {
  FK_LATE;
  if (!ctx || ctx->primary) return CUDA_ERROR_INVALID_CONTEXT;
  fk_contexts_hold();
  bool lives = !ctx->dead;
  if (lives && fk_current() == ctx) depth--;
  if (lives) close_context(ctx); /* its streams and events still point to it */
  fk_contexts_let_go();
  return lives ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
FK_RESULT(cuCtxDestroy, (CUcontext ctx), cuCtxDestroy_v2(ctx))

FK_API(cuCtxAttach, (CUcontext * out, unsigned flags)) {
  FK_LATE;
  if (flags) return CUDA_ERROR_INVALID_VALUE;
  CUcontext ctx = fk_current();
  fk_contexts_hold();
  bool lives = ctx && !ctx->dead;
  if (lives) ctx->attached++;
  fk_contexts_let_go();
  *out = ctx;
  return lives ? CUDA_SUCCESS : CUDA_ERROR_INVALID_CONTEXT;
}
FK_API(cuCtxDetach, (CUcontext ctx)) {
  FK_LATE;
  if (!ctx || ctx != fk_current()) return CUDA_ERROR_INVALID_CONTEXT;
  fk_contexts_hold();
  bool last = !ctx->attached;
  if (!last) ctx->attached--;
  fk_contexts_let_go();
  return last ? cuCtxDestroy_v2(ctx) : CUDA_SUCCESS;
}

FK_API(cuDevicePrimaryCtxRetain, (CUcontext * out, CUdevice device)) {
  FK_ENTER("cuDevicePrimaryCtxRetain");
  if (device < 0 || device >= visible_count) return CUDA_ERROR_INVALID_DEVICE;
  CUresult r = CUDA_SUCCESS;
  fk_contexts_hold();
  primary[device].ctx.primary = true;
  if (!primary[device].count) r = open_context(&primary[device].ctx, device);
  if (r == CUDA_SUCCESS) {
    primary[device].count++;
    *out = &primary[device].ctx;
  }
  fk_contexts_let_go();
  return r;
}

FK_API(cuDevicePrimaryCtxRelease_v2, (CUdevice device)) {
  FK_LATE;
  CUresult r = CUDA_ERROR_INVALID_CONTEXT;
  if (device < 0 || device >= visible_count) return r;
  fk_contexts_hold();
  if (primary[device].count) {
    r = CUDA_SUCCESS;
    if (!--primary[device].count) close_context(&primary[device].ctx);
  }
  fk_contexts_let_go();
  return r;
}
FK_RESULT(cuDevicePrimaryCtxRelease, (CUdevice device), cuDevicePrimaryCtxRelease_v2(device))

FK_API(cuDevicePrimaryCtxReset_v2, (CUdevice device)) {
  FK_LATE;
  if (device < 0 || device >= visible_count) return CUDA_ERROR_INVALID_DEVICE;
  CUresult r = CUDA_SUCCESS;
  fk_contexts_hold();
  if (primary[device].count) {
    close_context(&primary[device].ctx);
    r = open_context(&primary[device].ctx, device);
  }
  fk_contexts_let_go();
  return r;
}
FK_RESULT(cuDevicePrimaryCtxReset, (CUdevice device), cuDevicePrimaryCtxReset_v2(device))

FK_API(cuDevicePrimaryCtxGetState, (CUdevice device, unsigned *flags, int *active)) {
  if (device < 0 || device >= visible_count) return CUDA_ERROR_INVALID_DEVICE;
  *flags = 0;
  *active = primary[device].count > 0;
  return CUDA_SUCCESS;
}

FK_RESULT(cuDevicePrimaryCtxSetFlags_v2, (CUdevice device, unsigned flags), ((void)device, (void)flags, CUDA_SUCCESS))

/* ---- green contexts: parts of the primary one, which each of them retains ---- */

struct CUgreenCtx_st {
  CUdevice device;
  struct CUctx_st ctx;
  bool over;
  struct CUgreenCtx_st *next; /* of all that there were: a thread may still have it on its stack */
};

static struct CUgreenCtx_st *greens; /* while contexts are held */

FK_API(cuDeviceGetDevResource, (CUdevice device, CUdevResource *out, CUdevResourceType type)) {
  if (device < 0 || device >= visible_count) return CUDA_ERROR_INVALID_DEVICE;
  memset(out, 0, sizeof *out);
  out->type = type;
  out->sm.smCount = 132;
  return CUDA_SUCCESS;
}
FK_API(cuDevResourceGenerateDesc, (CUdevResourceDesc * out, CUdevResource *resources, unsigned count)) {
  static char all;
  if (!resources || !count) return CUDA_ERROR_INVALID_VALUE;
  *out = (CUdevResourceDesc)(void *)&all;
  return CUDA_SUCCESS;
}
FK_API(cuGreenCtxCreate, (CUgreenCtx * out, CUdevResourceDesc resources, CUdevice device, unsigned flags)) {
  FK_LATE;
  CUcontext ctx;
  if (!resources || !(flags & CU_GREEN_CTX_DEFAULT_STREAM)) return CUDA_ERROR_INVALID_VALUE;
  CUresult r = cuDevicePrimaryCtxRetain(&ctx, device);
  if (r != CUDA_SUCCESS) return r;
  fk_contexts_hold();
  struct CUgreenCtx_st *green = greens;
  while (green && !green->over) green = green->next;
  if (!green) {
    green = calloc(1, sizeof *green);
    green->next = greens;
    greens = green;
  }
  green->over = false;
  green->device = device;
  green->ctx.whole = ctx;
  fk_contexts_let_go();
  *out = green;
  return CUDA_SUCCESS;
}
FK_API(cuCtxFromGreenCtx, (CUcontext * out, CUgreenCtx green)) {
  if (!green) return CUDA_ERROR_INVALID_CONTEXT;
  *out = &green->ctx;
  return CUDA_SUCCESS;
}
FK_API(cuGreenCtxDestroy, (CUgreenCtx green)) {
  FK_LATE;
  if (!green || green->over) return CUDA_ERROR_INVALID_CONTEXT;
  CUresult r = cuDevicePrimaryCtxRelease_v2(green->device);
  fk_contexts_hold();
  green->over = true;
  fk_contexts_let_go();
  return r;
}

/* Another process's memory is brought back, on another GPU if the arguments say so. */
FK_RESULT(cuCheckpointProcessRestore, (int pid, CUcheckpointRestoreArgs *arguments),
          ((void)pid, (void)arguments, CUDA_SUCCESS))

FK_API(cuCtxGetFlags, (unsigned *flags)) {
  *flags = 0;
  return CUDA_SUCCESS;
}

FK_API(cuCtxGetApiVersion, (CUcontext ctx, unsigned *version)) {
  (void)ctx;
  *version = 3020;
  return CUDA_SUCCESS;
}

FK_API(cuDeviceCanAccessPeer, (int *can, CUdevice a, CUdevice b)) {
  (void)a, (void)b;
  *can = 0;
  return CUDA_SUCCESS;
}
