/* SPDX-License-Identifier: Apache-2.0 */
#ifndef VC_MEMORY_H
#define VC_MEMORY_H

#include "hook.h"
#include "handle_table.h"

/* Before the driver's call: reserve the bytes for the current context; false if they do not fit. */
bool vc_memory_begin(uint64_t bytes);
/* After it: note what the key holds, or give the bytes back if the call failed. Returns the call's result. */
CUresult vc_memory_end(CUresult result, enum vc_kind kind, uint64_t key, uint64_t bytes);
/* The body of a hook whose call takes memory, of which there may be none (0 bytes): both of them around the call. */
#define VC_TAKING(kind, key, bytes, call)                                                          \
  uint64_t bytes_ = (bytes);                                                                       \
  if (bytes_ && !vc_memory_begin(bytes_)) return CUDA_ERROR_OUT_OF_MEMORY;                         \
  CUresult r_ = (call);                                                                            \
  if (!bytes_) return r_;                                                                          \
  return vc_memory_end(r_, kind, r_ == CUDA_SUCCESS ? (uint64_t)(uintptr_t)(key) : 0, bytes_)
/* Reserve bytes for a context, or for the place of one that is still to be made. */
bool vc_memory_take(uint64_t bytes, const void *context);
/* Other processes can open what lies at this address from now on. */
void vc_memory_exported(CUdeviceptr address);
/* Destroy a sparse array, and give back what was mapped into it. */
CUresult vc_vmm_destroy(CUresult (*real)(void *), void *array);
/* In a forked child. */
void vc_vmm_reset(void);
void vc_graph_reset(void);

#endif
