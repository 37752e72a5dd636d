/* SPDX-License-Identifier: Apache-2.0 */
/* Contexts, synchronising calls, and streams that are destroyed. */
#include "context.h"
#include "context_limit.h"
#include "context_memory.h"
#include "device.h"
#include "launch.h"
#include "memory.h"
#include "memory_account.h"
#include "pool.h"
#include "sync.h"
#include "connection.h"

/* Memory of a device's pools needs no context there. */
VC_HOOK CUresult cuDeviceGetDefaultMemPool(CUmemoryPool *out, CUdevice device) {
  if (!vc_device_is_ours(device)) return CUDA_ERROR_INVALID_DEVICE;
  return VC_CALL(cuDeviceGetDefaultMemPool)(out, device);
}
VC_HOOK CUresult cuDeviceGetMemPool(CUmemoryPool *out, CUdevice device) {
  if (!vc_device_is_ours(device)) return CUDA_ERROR_INVALID_DEVICE;
  return VC_CALL(cuDeviceGetMemPool)(out, device);
}

/* Another context is current: the default stream is another stream. */
static CUresult switched(CUresult r) {
  vc_stream_uncache();
  return r;
}

#define CREATE(device, call, out)                                                                  \
  CUresult r_ = vc_device_admit(device);                                                           \
  if (r_ != CUDA_SUCCESS) return r_;                                                               \
  void *place_ = vc_context_begin();                                                               \
  if (!place_) return CUDA_ERROR_OUT_OF_MEMORY;                                                    \
  r_ = switched(call);                                                                             \
  vc_context_end(r_, r_ == CUDA_SUCCESS ? *(out) : NULL, place_);                                  \
  return r_

VC_HOOK CUresult cuCtxCreate(CUcontext *out, unsigned flags, CUdevice device) {
  CREATE(device, VC_CALL(cuCtxCreate)(out, flags, device), out);
}
VC_HOOK CUresult cuCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device) {
  CREATE(device, VC_CALL(cuCtxCreate_v2)(out, flags, device), out);
}
VC_HOOK CUresult cuCtxCreate_v3(CUcontext *out, CUexecAffinityParam *p, int count, unsigned flags, CUdevice device) {
  CREATE(device, VC_CALL(cuCtxCreate_v3)(out, p, count, flags, device), out);
}
VC_HOOK CUresult cuCtxCreate_v4(CUcontext *out, CUctxCreateParams *p, unsigned flags, CUdevice device) {
  CREATE(device, VC_CALL(cuCtxCreate_v4)(out, p, flags, device), out);
}

/* With a graphics library. */
VC_HOOK CUresult cuGLCtxCreate(CUcontext *out, unsigned flags, CUdevice device) {
  CREATE(device, VC_CALL(cuGLCtxCreate)(out, flags, device), out);
}
VC_HOOK CUresult cuGLCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device) {
  CREATE(device, VC_CALL(cuGLCtxCreate_v2)(out, flags, device), out);
}
VC_HOOK CUresult cuVDPAUCtxCreate(CUcontext *out, unsigned flags, CUdevice device, unsigned vdpau, void *get) {
  CREATE(device, VC_CALL(cuVDPAUCtxCreate)(out, flags, device, vdpau, get), out);
}
VC_HOOK CUresult cuVDPAUCtxCreate_v2(CUcontext *out, unsigned flags, CUdevice device, unsigned vdpau, void *get) {
  CREATE(device, VC_CALL(cuVDPAUCtxCreate_v2)(out, flags, device, vdpau, get), out);
}

static bool is_active(CUdevice device) {
  unsigned flags;
  int is = 0;
  return VC_CALL(cuDevicePrimaryCtxGetState)(device, &flags, &is) == CUDA_SUCCESS && is;
}

/* Held while a primary context may be made or end: of threads that ask for it at once, the second one would take the
 * memory of a second context, and be refused near the cap. */
static struct vc_lock making_primary;

static CUresult retain(CUcontext *out, CUdevice device) {
  bool makes = !is_active(device);
  void *place = makes ? vc_context_begin() : NULL;
  if (makes && !place) return CUDA_ERROR_OUT_OF_MEMORY;
  CUresult r = VC_CALL(cuDevicePrimaryCtxRetain)(out, device);
  if (makes) vc_context_end(r, r == CUDA_SUCCESS ? *out : NULL, place);
  /* Another thread may have released it in between: then it was made again. */
  if (r != CUDA_SUCCESS || vc_context_known(*out)) return r;
  place = vc_context_begin();
  if (!place) {
    VC_CALL(cuDevicePrimaryCtxRelease_v2)(device);
    return CUDA_ERROR_OUT_OF_MEMORY;
  }
  vc_context_end(r, *out, place);
  return r;
}

VC_HOOK CUresult cuDevicePrimaryCtxRetain(CUcontext *out, CUdevice device) {
  CUresult r = vc_device_admit(device);
  if (r != CUDA_SUCCESS) return r;
  vc_lock(&making_primary);
  r = retain(out, device);
  vc_unlock(&making_primary);
  return r;
}

static CUcontext primary_of(CUdevice device) {
  CUcontext context = NULL;
  if (is_active(device) && VC_CALL(cuDevicePrimaryCtxRetain)(&context, device) == CUDA_SUCCESS)
    VC_CALL(cuDevicePrimaryCtxRelease_v2)(device);
  return context;
}

static _Atomic CUdevice green_device; /* of all green contexts: a seat has one GPU */

/* It retains the primary context, which the driver makes if there is none. */
VC_HOOK CUresult cuGreenCtxCreate(CUgreenCtx *out, CUdevResourceDesc resources, CUdevice device, unsigned flags) {
  CUresult r = vc_device_admit(device);
  if (r != CUDA_SUCCESS) return r;
  vc_lock(&making_primary);
  bool makes = !is_active(device);
  void *place = makes ? vc_context_begin() : NULL;
  r = makes && !place ? CUDA_ERROR_OUT_OF_MEMORY : VC_CALL(cuGreenCtxCreate)(out, resources, device, flags);
  if (place) vc_context_end(r, primary_of(device), place);
  vc_unlock(&making_primary);
  if (r == CUDA_SUCCESS) atomic_store(&green_device, device);
  return r;
}

/* Note all that is known of a context under another name. */
static void rename_all(CUcontext from, CUcontext to) {
  struct vc_item item;
  vc_stream_rename(from, to);
  vc_context_limit_rename(from, to);
  if (vc_table_take(VC_ATTACHED, (uint64_t)(uintptr_t)from, &item)) {
    item.key = (uint64_t)(uintptr_t)to;
    vc_table_put(item);
  }
  vc_context_rename(from, to);
}

/* While the driver destroys a context, no other thread of ours may use it or its events. What it holds is noted under
 * another name first: once destroyed, the handle can be another context's at once, which would be taken for this one. */
static CUresult destroy(CUcontext context, CUresult (*real)(CUcontext)) {
  if (!context) return real(context);
  CUcontext aside = (CUcontext)(uintptr_t)vc_table_place();
  vc_stream_uncache();
  vc_stream_freeze(context, true);
  vc_pools_freeze(context);
  rename_all(context, aside);
  CUresult r = real(context);
  if (r == CUDA_SUCCESS) {
    vc_stream_forget(aside);
    vc_context_forget(aside);
  } else {
    rename_all(aside, context);
    vc_stream_freeze(context, false);
  }
  return r;
}

VC_HOOK CUresult cuCtxDestroy_v2(CUcontext context) {
  return destroy(context, VC_REAL(cuCtxDestroy_v2));
}
VC_HOOK CUresult cuCtxDestroy(CUcontext context) {
  return destroy(context, VC_REAL(cuCtxDestroy));
}

/* While the driver attaches or detaches: between its count and ours another thread could take the last detachment for
 * another one. */
static struct vc_lock attaching;

/* Whether a context was attached to more often than detached from since; counts one detachment. */
static bool detaches(CUcontext context) {
  struct vc_item item;
  uint64_t key = (uint64_t)(uintptr_t)context;
  if (!vc_table_take(VC_ATTACHED, key, &item)) return false;
  if (--item.extra) vc_table_put(item);
  return true;
}

VC_HOOK CUresult cuCtxAttach(CUcontext *out, unsigned flags) {
  struct vc_item item;
  vc_lock(&attaching);
  CUresult r = VC_CALL(cuCtxAttach)(out, flags);
  if (r == CUDA_SUCCESS) {
    uint64_t key = (uint64_t)(uintptr_t)*out;
    if (!vc_table_take(VC_ATTACHED, key, &item))
      item = (struct vc_item){.key = key, .owner = *out, .kind = VC_ATTACHED};
    item.extra++;
    vc_table_put(item);
  }
  vc_unlock(&attaching);
  return r;
}

/* The last one destroys the context. */
VC_HOOK CUresult cuCtxDetach(CUcontext context) {
  vc_lock(&attaching);
  CUresult r =
      detaches(context) ? switched(VC_CALL(cuCtxDetach)(context)) : destroy(context, VC_REAL(cuCtxDetach));
  vc_unlock(&attaching);
  return r;
}

VC_HOOK CUresult cuCtxSetCurrent(CUcontext context) {
  return switched(VC_CALL(cuCtxSetCurrent)(context));
}
VC_HOOK CUresult cuCtxPushCurrent_v2(CUcontext context) {
  return switched(VC_CALL(cuCtxPushCurrent_v2)(context));
}
VC_HOOK CUresult cuCtxPushCurrent(CUcontext context) {
  return switched(VC_CALL(cuCtxPushCurrent)(context));
}
VC_HOOK CUresult cuCtxPopCurrent_v2(CUcontext *context) {
  return switched(VC_CALL(cuCtxPopCurrent_v2)(context));
}
VC_HOOK CUresult cuCtxPopCurrent(CUcontext *context) {
  return switched(VC_CALL(cuCtxPopCurrent)(context));
}

/* A primary context ends with its last release; only the driver counts those. */
static CUcontext may_end(CUdevice device) {
  CUcontext context = primary_of(device);
  if (context) vc_stream_freeze(context, true);
  if (context) vc_pools_freeze(context);
  return context;
}

static CUresult may_have_ended(CUresult r, CUdevice device, CUcontext context) {
  if (!context) return r;
  if (r == CUDA_SUCCESS && !is_active(device)) {
    vc_stream_uncache();
    vc_stream_forget(context);
    vc_context_forget(context);
  } else {
    vc_stream_freeze(context, false);
  }
  return r;
}

/* With the lock, for the next primary context has the handle of the one that ends. */
static CUresult release(CUdevice device, CUresult (*real)(CUdevice)) {
  vc_lock(&making_primary);
  CUcontext context = may_end(device);
  CUresult r = may_have_ended(real(device), device, context);
  vc_unlock(&making_primary);
  return r;
}

/* It ends, and while it is retained it is made again under its handle, where other threads may use it at once: charge
 * the new one before the old one is given back, for the room may be taken by then. */
static CUresult reset(CUdevice device, CUresult (*real)(CUdevice)) {
  vc_lock(&making_primary);
  CUcontext context = may_end(device), aside = (CUcontext)(uintptr_t)vc_table_place();
  if (context) rename_all(context, aside);
  CUresult r = real(device);
  if (context && r == CUDA_SUCCESS) {
    vc_stream_uncache();
    if (is_active(device)) vc_context_again(context);
    vc_stream_forget(aside);
    vc_context_forget(aside);
  } else if (context) {
    rename_all(aside, context);
    vc_stream_freeze(context, false);
  }
  vc_unlock(&making_primary);
  return r;
}

VC_HOOK CUresult cuDevicePrimaryCtxRelease_v2(CUdevice device) {
  return release(device, VC_REAL(cuDevicePrimaryCtxRelease_v2));
}
VC_HOOK CUresult cuDevicePrimaryCtxRelease(CUdevice device) {
  return release(device, VC_REAL(cuDevicePrimaryCtxRelease));
}
VC_HOOK CUresult cuDevicePrimaryCtxReset_v2(CUdevice device) {
  return reset(device, VC_REAL(cuDevicePrimaryCtxReset_v2));
}
VC_HOOK CUresult cuDevicePrimaryCtxReset(CUdevice device) {
  return reset(device, VC_REAL(cuDevicePrimaryCtxReset));
}

/* A green context's memory and modules become the primary context's; its streams and events go. */
static void hand_over(CUcontext green, CUcontext primary) {
  vc_stream_forget(green);
  if (!primary) return;
  vc_account_rename(green, primary);
  vc_table_hand_over(green, primary);
}

VC_HOOK CUresult cuGreenCtxDestroy(CUgreenCtx green) {
  CUdevice device = atomic_load(&green_device);
  vc_lock(&making_primary);
  CUcontext own = NULL, context = may_end(device);
  VC_CALL(cuCtxFromGreenCtx)(&own, green);
  if (own) {
    vc_stream_freeze(own, true);
    vc_pools_settle();
    vc_pools_freeze(own);
  }
  CUresult r = switched(VC_CALL(cuGreenCtxDestroy)(green));
  if (own && own != context) {
    if (r == CUDA_SUCCESS) hand_over(own, context);
    vc_stream_freeze(own, false);
  }
  r = may_have_ended(r, device, context);
  vc_unlock(&making_primary);
  return r;
}

/* A process that was checkpointed keeps what it was charged for. Restored on another GPU, it would be outside
 * every limit. */
VC_HOOK CUresult cuCheckpointProcessRestore(int pid, CUcheckpointRestoreArgs *arguments) {
#if CUDA_VERSION >= 13000
  for (unsigned i = 0; arguments && i < arguments->gpuPairsCount; i++)
    if (!vc_seat_ready() || !vc_device_has(&arguments->gpuPairs[i].newUuid)) return CUDA_ERROR_INVALID_DEVICE;
#endif
  return VC_CALL(cuCheckpointProcessRestore)(pid, arguments);
}

/* ---- synchronising calls: what was launched is complete, and pools have shrunk ---- */

static CUresult synced(CUresult r, const CUstream *stream, CUcontext context, uint64_t since) {
  if (r == CUDA_SUCCESS && atomic_load(&vc_seat.policy)) {
    vc_sync_end(stream, context, since);
    vc_pools_settle();
  }
  return r;
}

VC_HOOK CUresult cuCtxSynchronize(void) {
  uint64_t since = vc_sync_begin();
  return synced(VC_CALL(cuCtxSynchronize)(), NULL, NULL, since);
}
#ifdef VC_HAVE_cuCtxSynchronize_v2
VC_HOOK CUresult cuCtxSynchronize_v2(CUcontext context) {
  uint64_t since = vc_sync_begin();
  return synced(VC_CALL(cuCtxSynchronize_v2)(context), NULL, context, since);
}
#endif
VC_HOOK CUresult cuStreamSynchronize(CUstream stream) {
  uint64_t since = vc_sync_begin();
  return synced(VC_CALL(cuStreamSynchronize)(stream), &stream, NULL, since);
}
VC_HOOK CUresult cuStreamSynchronize_ptsz(CUstream stream) {
  CUstream own = vc_per_thread(stream);
  uint64_t since = vc_sync_begin();
  return synced(VC_CALL(cuStreamSynchronize_ptsz)(stream), &own, NULL, since);
}

/* ---- contexts that wait ---- */

static CUresult waits(CUcontext context, CUresult r) {
  if (r == CUDA_SUCCESS && context) vc_sync_context_wait_end(context);
  return r;
}

VC_HOOK CUresult cuCtxWaitEvent(CUcontext context, CUevent event) {
  if (context) vc_sync_context_wait_begin(context);
  return waits(context, VC_CALL(cuCtxWaitEvent)(context, event));
}
VC_HOOK CUresult cuGreenCtxWaitEvent(CUgreenCtx green, CUevent event) {
  CUcontext context = NULL;
  if (green) VC_CALL(cuCtxFromGreenCtx)(&context, green);
  if (context) vc_sync_context_wait_begin(context);
  return waits(context, VC_CALL(cuGreenCtxWaitEvent)(green, event));
}

void vc_context_reset(void) {
  atomic_store(&making_primary.word, 0);
  atomic_store(&attaching.word, 0);
}

/* ---- streams that are destroyed ---- */

VC_HOOK CUresult cuStreamDestroy_v2(CUstream stream) {
  vc_stream_destroyed(stream);
  return VC_CALL(cuStreamDestroy_v2)(stream);
}
VC_HOOK CUresult cuStreamDestroy(CUstream stream) {
  vc_stream_destroyed(stream);
  return VC_CALL(cuStreamDestroy)(stream);
}
